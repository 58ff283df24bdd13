"""Compare daskprep's loader with one packed memory map, on 8 numbers and a vector of 48: alternating epochs.

    python -m benchmarks.peers.packed_map --data bench-data/packed [--rows 2000000] [--epochs 5] [--compression lz4]

The map has a row of 56 floats for each row. Its batches are shuffled over all rows; the rows of each are read in the
order in which they lie, as that is faster. Prints a line for each tool: rows per second of the clock and of the
processor, each the median of the epochs after the first, and their range.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median

import numpy as np
import torch

import daskprep as dp
from benchmarks.peers.ours_load import write_dataset
from daskprep.storage.manifest import MANIFEST

NUMBERS, WIDTH = 8, 48
NAMES = [f"f{number}" for number in range(NUMBERS)]

Batches = Iterable[dict[str, torch.Tensor]]


def prepared(folder: Path, rows: int, compression: str) -> tuple[Path, np.ndarray]:
    """Return a dataset and a memory map of the same rows, created if they are missing."""
    packed, dataset = folder / f"{rows}.npy", folder / f"{rows}-{compression}.dp"
    folder.mkdir(parents=True, exist_ok=True)
    if not packed.exists():
        np.save(packed, np.random.default_rng(0).standard_normal((rows, NUMBERS + WIDTH), np.float32))
    if not (dataset / MANIFEST).exists():
        table = np.load(packed)
        numbers = {name: table[:, place].copy() for place, name in enumerate(NAMES)}
        write_dataset({**numbers, "vector": table[:, NUMBERS:].copy()}, dataset, compression, None)
    return dataset, np.load(packed, mmap_mode="r")


def of_map(table: np.ndarray, batch: int, epoch: int, *, in_order: bool) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the batches of an epoch of the memory map."""
    order = np.random.default_rng(epoch).permutation(len(table))
    for first in range(0, len(table), batch):
        rows = order[first : first + batch]
        found = torch.from_numpy(table[np.sort(rows) if in_order else rows])
        yield dict(zip(NAMES, found[:, :NUMBERS].unbind(1), strict=True)) | {"vector": found[:, NUMBERS:]}


def epoch_of(batches: Batches) -> dict[str, float]:
    """Load an epoch; return its rows, and its wall-clock and CPU seconds."""
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    rows = sum(len(batch["vector"]) for batch in batches)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"rows": rows, "seconds": seconds, "cpu": cpu}


def main() -> None:
    """Run both and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--compression", nargs="*", default=["lz4", "none"])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--only", help="a tool")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tools: dict[str, Callable[[int], Batches]] = {}
    for compression in arguments.compression:
        path, table = prepared(arguments.data, arguments.rows, compression)
        loader = dp.open_dataset(path)["train"].loader(arguments.batch, expand=False, threads=arguments.threads)
        tools[f"daskprep, {compression}"] = lambda epoch, loader=loader: loader.set_epoch(epoch) or loader
    tools["packed map, sorted"] = lambda epoch: of_map(table, arguments.batch, epoch, in_order=True)
    tools["packed map"] = lambda epoch: of_map(table, arguments.batch, epoch, in_order=False)
    tools = {name: tool for name, tool in tools.items() if arguments.only in (None, name)}
    epochs: dict[str, list[dict[str, float]]] = {name: [] for name in tools}
    for epoch in range(arguments.epochs):
        for name, tool in tools.items():
            epochs[name].append(epoch_of(tool(epoch)))
            if epochs[name][-1]["rows"] != arguments.rows:
                raise SystemExit(f"{name}: {epochs[name][-1]['rows']:,} rows in an epoch")
    for name, done in epochs.items():
        figures = {}
        for unit in ("seconds", "cpu"):
            rates = sorted(arguments.rows / one[unit] / 1e6 for one in done[1:])
            figures[f"million rows per {unit}"] = [round(rate, 2) for rate in (median(rates), rates[0], rates[-1])]
        print(json.dumps({"tool": name, **figures}))


if __name__ == "__main__":
    main()
