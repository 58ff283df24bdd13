"""CPU time of a write, by column, and of a batch, for tables of 100 and 1,000 columns of numbers.

python -m benchmarks.own.wide [--rows 20000]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import daskprep as dp

COLUMNS = 100, 1000


def cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system


def measure(columns: int, rows: int, folder: Path) -> tuple[float, float]:
    """Return the CPU seconds of `fit_write` and of a batch of 256 rows, in the second epoch."""
    numbers = np.random.default_rng(0).random((rows, columns))
    frame = pd.DataFrame(numbers, columns=[f"c{i}" for i in range(columns)])
    prep = dp.Preprocessor(dict.fromkeys(frame, "number"), split=None)
    start = cpu_seconds()
    dataset = prep.fit_write(frame, folder / f"{columns}.dp", progress=False)
    written = cpu_seconds() - start
    loader = dataset["train"].loader(256)
    for _ in loader:
        pass
    start, batches = cpu_seconds(), sum(1 for _ in loader)
    return written, (cpu_seconds() - start) / batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as name:
        measure(10, rows, Path(name))  # warm up imports
        found = {columns: measure(columns, rows, Path(name)) for columns in COLUMNS}
    print("| columns | fit_write, ms by column | batch, ms |\n|---|---|---|")
    for columns, (written, batch) in found.items():
        print(f"| {columns:,} | {1000 * written / columns:.2f} | {1000 * batch:.1f} |")
    print(f"\na batch: {found[COLUMNS[1]][1] / found[COLUMNS[0]][1]:.1f} times for 10 times the columns")


if __name__ == "__main__":
    main()
