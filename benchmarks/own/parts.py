"""CPU seconds of datasets with many parts and deleted rows: appends, loaders, compaction, purges, opening.

    python -m benchmarks.own.parts [--parts 1000] [--rows 1000000] [append loader purge deleted]

An append has 1,000 rows; a row of one of them is purged at the end. Loaders read the same 1,000,000 rows in 100 parts,
in one with blocks as small as in these, and in one with its own blocks, alternating; compaction merges the 100 parts. A
purge removes 1,000 rows of the dataset at random, and 500,000 of 1,000,000 rows are deleted before the dataset is
opened. All threads of the process count.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

import daskprep as dp

FEATURES = {"number": "number", "city": "category", "item": "category", "review": "text", "sold": "binary"}
WORDS = np.array([f"w{word}" for word in range(20_000)])
TAKEN = 10  # appends whose median is taken


def rows(count: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "number": rng.normal(size=count),
            "city": rng.choice([f"city{one}" for one in range(100)], count),
            "item": rng.integers(0, 10_000, count).astype(str),
            "review": [" ".join(row) for row in WORDS[rng.integers(0, len(WORDS), (count, 12))]],
            "sold": rng.random(count) < 0.5,
        }
    )


def cpu_of(call: Callable[[], Any]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def written(path: Path, frame: pd.DataFrame) -> tuple[dp.Preprocessor, float]:
    prep = dp.Preprocessor(FEATURES, split=None)
    return prep, cpu_of(lambda: prep.fit_write(frame, path, progress=False))


def measure_appends(folder: Path, parts: int) -> None:
    """Print the cost of appends as parts grow in number, and of opening the dataset."""
    frame, path, taken = rows(1_000 * (TAKEN + 1)), folder / "append.dp", list[float]()
    prep, _ = written(path, frame[:10_000])
    for number in range(1, parts + TAKEN):
        new = rows(1_000, number)
        taken.append(cpu_of(lambda: prep.append(new, path, progress=False, on_findings="ignore")))  # noqa: B023
        if number - TAKEN + 1 in (1, 10, 100, 1_000):
            print(f"append at part {number - TAKEN + 1:,}: {median(taken[-TAKEN:]):.3f} s")
    print(f"opening {parts + TAKEN:,} parts: {cpu_of(lambda: dp.open_dataset(path)):.3f} s")
    purge = cpu_of(dp.open_dataset(path).delete([0], part=1).purge)
    print(f"purge of a row of {parts + TAKEN:,} parts: {purge:.2f} s")


def measure_loaders(folder: Path, count: int) -> None:
    """Print the rates of loaders over one part and over 100, and the cost of compaction compared with a write."""
    frame, paths = rows(count), (folder / "one.dp", folder / "many.dp", folder / "small.dp")
    prep, write = written(paths[0], frame)
    for number, start in enumerate(range(0, count, count // 100)):
        new = frame[start : start + count // 100]
        if number == 0:
            prep.write(new, paths[1], progress=False)
        else:
            prep.append(new, paths[1], progress=False, on_findings="ignore")
    blocks = dp.open_dataset(paths[1]).layout.block_rows
    prep.write(frame, paths[2], block_rows=blocks, progress=False)
    epochs = list[list[float]]()
    for _ in range(5):
        loaders = [dp.open_dataset(one)["train"].loader(1_024) for one in paths]
        epochs.append([cpu_of(lambda: sum(1 for _ in loader)) for loader in loaders])  # noqa: B023
    one, many, small = map(median, zip(*epochs, strict=True))
    print(f"epoch of one part: {one:.2f} s, of 100: {many:.2f} s, of one in blocks of {blocks} rows: {small:.2f} s")
    compact = cpu_of(lambda: dp.open_dataset(paths[1]).compact())
    print(f"compaction of 100 parts: {compact:.2f} s, {compact / write:.2f} of a write ({write:.2f} s)")


def measure_purge(folder: Path, count: int) -> None:
    """Print the cost of a purge of 1,000 rows at random, compared with a write."""
    _, write = written(folder / "purge.dp", rows(count))
    chosen = np.random.default_rng(1).choice(count, 1_000, replace=False)
    dataset = dp.open_dataset(folder / "purge.dp").delete(chosen)
    purge = cpu_of(dataset.purge)
    print(f"purge of 1,000 of {count:,} rows: {purge:.2f} s, {purge / write:.2f} of a write ({write:.2f} s)")


def measure_deleted(folder: Path, count: int) -> None:
    """Print the cost of opening a dataset in which half of the rows are deleted."""
    prep = dp.Preprocessor({"number": "number"}, split=None)
    prep.fit_write(rows(count)[["number"]], folder / "deleted.dp", progress=False)
    chosen = np.random.default_rng(1).choice(count, count // 2, replace=False)
    dp.open_dataset(folder / "deleted.dp").delete(chosen)
    taken = [cpu_of(lambda: dp.open_dataset(folder / "deleted.dp")) for _ in range(5)]
    print(f"opening with {count // 2:,} deleted rows: {median(taken):.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("measures", nargs="*", default=["append", "loader", "purge", "deleted"])
    parser.add_argument("--parts", type=int, default=1_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    arguments = parser.parse_args()
    measures = {"loader": measure_loaders, "purge": measure_purge, "deleted": measure_deleted}
    for name in arguments.measures:
        with tempfile.TemporaryDirectory() as folder:
            if name == "append":
                measure_appends(Path(folder), arguments.parts)
            else:
                measures[name](Path(folder), arguments.rows)


if __name__ == "__main__":
    main()
