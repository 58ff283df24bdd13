"""Print digests of a dataset by partitions and scheduler, and of an epoch of batches by ranks and interruptions."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from dask.distributed import Client

import daskprep as dp

ROWS = 50_000
FEATURES = {"price": "number", "city": "category", "review": "text"}


def create_rows() -> pd.DataFrame:
    """Return random rows with a number, a category of many values and a text."""
    rng = np.random.default_rng(0)
    words = rng.choice(["calm", "loud", "sunny", "new"], (ROWS, 5))
    price, city = rng.lognormal(4, 1, ROWS), rng.zipf(1.5, ROWS).astype(str)
    return pd.DataFrame({"price": price, "city": city, "review": [" ".join(row) for row in words]})


def digest_dataset(path: Path) -> str:
    """Return a digest of the files in the folder of a version: arrays, tables, vocabularies and fitted state."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if file.is_file():
            digest.update(file.relative_to(path).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def digest_epoch(split: dp.dataset.Split, ranks: int, resumed_ranks: int | None = None) -> str:
    """Return a digest of the batches of all ranks; on request, new loaders of `resumed_ranks` read the second half."""

    def start(world_size: int, state: dict[str, object] | None) -> list[dp.loader.Loader]:
        loaders = [split.loader(batch_size=256, rank=rank, world_size=world_size) for rank in range(world_size)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        return loaders

    digest = hashlib.sha256()
    loaders = start(ranks, None)
    batches, half = zip(*loaders, strict=True), len(loaders[0]) // 2
    for number in range(len(loaders[0])):
        if number == half and resumed_ranks is not None:
            batches = zip(*start(resumed_ranks, loaders[0].state_dict()), strict=True)
        parts = next(batches)
        for name in FEATURES:
            digest.update(np.concatenate([part[name] for part in parts]).tobytes())
    return digest.hexdigest()[:16]


def main() -> None:
    """Print the digests."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        create_rows().to_parquet(folder / "rows.parquet", row_group_size=500)
        for scheduler in ("threads", "cluster"):
            cluster = contextlib.nullcontext() if scheduler == "threads" else Client(n_workers=2, threads_per_worker=1)
            with cluster:
                for partitions in (1, 7, 64):
                    rows = dp.read_files(folder / "rows.parquet", partitions=partitions)
                    prep = dp.Preprocessor(FEATURES, split=dp.RandomSplit(seed=0))
                    dataset = prep.fit_write(rows, folder / f"{scheduler}-{partitions}.dp", shuffle=True, seed=0)
                    digest = digest_dataset(Path(dataset.url) / dataset.version)
                    print(f"dataset, {scheduler}, {partitions:2} partitions ", digest)
        train = dataset["train"]
        for ranks in (1, 2, 4):
            print(f"epoch on {ranks} ranks                ", digest_epoch(train, ranks))
        print("epoch on 2 ranks, resumed on 4  ", digest_epoch(train, 2, resumed_ranks=4))


if __name__ == "__main__":
    main()
