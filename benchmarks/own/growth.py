"""Rows that arrive daily: the time of each append compared with a write of all rows, and of a loader over the parts.

    python -m benchmarks.own.growth [--rows 1000000] [--days 30] [--rounds 3]

A day has 1 % of the rows written first, with new categories and words. The full write has the rows of all days. Epochs
are measured in processor time as well, which depends less on other work of the machine.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import daskprep as dp

FEATURES = {"number": "number", "city": "category", "item": "category", "review": "text", "sold": "binary"}


def write_day(file: Path, number: int, rows: int) -> None:
    """Write the rows of a day; each day has new categories and words."""
    rng = np.random.default_rng(number)
    words = np.array([f"w{word}" for word in range(20_000 + 200 * number)])
    texts = words[rng.integers(0, len(words), (rows, 12))]
    table = pa.table(
        {
            "number": rng.normal(size=rows),
            "city": rng.choice([f"city{one}" for one in range(100 + number)], rows),
            "item": rng.integers(0, 100_000 + 1_000 * number, rows).astype(str),
            "review": [" ".join(row) for row in texts],
            "sold": rng.random(rows) < 0.5,
        }
    )
    pq.write_table(table, file)


def seconds_of(call: Any, clock: Any = time.perf_counter) -> float:
    began = clock()
    call()
    return float(clock() - began)


def read_epoch(loader: Any) -> None:
    for _ in loader:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = [folder / f"{number:03}.parquet" for number in range(arguments.days + 1)]
        for number, file in enumerate(files):
            write_day(file, number, arguments.rows if number == 0 else arguments.rows // 100)
        full, days = [], []
        loaders: dict[str, list[float]] = {}
        for _ in range(arguments.rounds):
            prep, path = dp.Preprocessor(FEATURES, split=None), folder / "days.dp"
            full.append(seconds_of(lambda: prep.fit_write(str(files[0]), path, overwrite=True, progress=False)))  # noqa: B023
            for file in files[1:]:
                began = time.perf_counter()
                prep.grow(str(file))
                prep.append(str(file), path, progress=False)
                days.append(time.perf_counter() - began)
            prep.write([str(file) for file in files], folder / "all.dp", overwrite=True, progress=False)
            parts, whole = (dp.open_dataset(one)["train"].loader(1_024) for one in (path, folder / "all.dp"))
            read_epoch(parts), read_epoch(whole)
            for kind, clock in (("elapsed", time.perf_counter), ("processor", time.process_time)):
                for _ in range(5):
                    epochs = [seconds_of(functools.partial(read_epoch, one), clock) for one in (whole, parts)]
                    loaders.setdefault(kind, []).append(epochs[0] / epochs[1])
    share = median(days) / median(full)
    print(
        f"full write {median(full):.2f} s; a day {median(days):.3f} s ({min(days):.3f} to {max(days):.3f}): {share:.3f}"
    )
    for kind, ratios in loaders.items():
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"loader over {arguments.days + 1} parts, {kind} time: {median(ratios):.2f} of one ({spread})")


if __name__ == "__main__":
    main()
