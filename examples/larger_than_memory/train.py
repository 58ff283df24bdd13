"""Preprocess a table on a local Dask cluster with a memory limit, and train on it.

    python examples/larger_than_memory/train.py        # 2.7 GB of rows, twice as much as the workers may hold
    python examples/larger_than_memory/train.py 8      # 8 files instead of 104, for a quick look

It creates its own data in a temporary folder, and needs no network and 5 GB of disk.
The memory of the workers depends on the size of partitions, not on the number of rows.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from distributed import Client, LocalCluster

import daskprep as dp

FILES, ROWS, COLUMNS = 104, 200_000, 16
WORKERS, WORKER_BYTES = 2, 640 << 20


def write_files(folder: Path, files: int) -> int:
    """Write one Parquet file after the other; return the size of all rows in memory, in bytes."""
    folder.mkdir()
    rng, total = np.random.default_rng(0), 0
    weights = rng.normal(size=COLUMNS)
    for number in range(files):
        values = rng.random((ROWS, COLUMNS)) - 0.5
        frame = pd.DataFrame(values, columns=[f"sensor_{column}" for column in range(COLUMNS)])
        frame["failed"] = values @ weights + rng.random(ROWS) > 1
        frame.to_parquet(folder / f"{number:02}.parquet", row_group_size=50_000, compression=None)
        total += int(frame.memory_usage(index=False).sum())
    return total


def most_memory() -> int:
    """Return the most memory that this process has held so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def train(dataset: dp.Dataset) -> None:
    """Train a linear model on part of an epoch; the loader holds a few blocks of rows at a time."""
    import torch  # noqa: PLC0415 each worker imports this file, and would hold 190 MB more

    torch.manual_seed(0)
    model = torch.nn.Linear(COLUMNS, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for inputs, failed in dataset["train"].loader(batch_size=8_192):
        outputs = model(torch.stack(list(inputs.values()), dim=1)).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(outputs, failed.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"one epoch of {len(losses):,} batches: loss {losses[0]:.3f} to {losses[-1]:.3f}")


def main(files: int = FILES) -> None:
    """Write files, preprocess them on two workers with a memory limit, and train."""
    features = {f"sensor_{column}": "number" for column in range(COLUMNS)} | {"failed": "binary"}
    prep = dp.Preprocessor(features, targets="failed", split=dp.RandomSplit((0.9, 0.0, 0.1)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size, limit = write_files(folder / "parquet", files), WORKERS * WORKER_BYTES
        print(
            f"{files * ROWS:,} rows, {size / 1e6:,.0f} MB in memory: {size / limit:.1f} times what the workers may hold"
        )
        cluster = LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, memory_limit=WORKER_BYTES, dashboard_address=":0"
        )
        with cluster, Client(cluster) as client:
            start = time.perf_counter()
            source = dp.read_files(folder / "parquet", partition_bytes=8_000_000)
            dataset = prep.fit_write(source, folder / "sensors.dp")
            print(f"fitted and written in {time.perf_counter() - start:.1f} s, by {source.npartitions} partitions")
            for address, held in client.run(most_memory).items():
                print(f"worker {address} held at most {held / 1e6:,.0f} of {WORKER_BYTES / 1e6:,.0f} MB")
        print(dataset, end="\n\n")
        train(dataset)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
