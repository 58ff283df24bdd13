"""CPU seconds of a fit without each of k folds, compared with a fit without one of them, and one of all rows.

The three are run in turn. Ratios are medians, with the lowest and highest.

.venv/bin/python -m benchmarks.own.folds --rows 1000000
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

import daskprep as dp

PIECE = 100_000
FEATURES = {
    **{f"number{i}": dp.Number() for i in range(4)},
    "label": dp.Category(),
    "city": dp.Category(),
    "user": dp.Category(),
    "text": dp.Text(),
}


def piece(first: int, rows: int) -> pa.Table:
    rng = np.random.default_rng(first)
    words = np.array([f"word{i}" for i in range(20_000)])
    picked = words[np.minimum(rng.zipf(1.3, rows * 8) - 1, len(words) - 1)]
    columns = {f"number{i}": rng.normal(size=rows) for i in range(4)}
    columns |= {"label": rng.integers(0, 5, rows).astype(str)}
    columns |= {"city": np.char.add("city", rng.integers(0, 1_000, rows).astype(str))}
    columns |= {"user": np.char.add("user", rng.integers(0, 50_000, rows).astype(str))}
    return pa.table(columns | {"text": [" ".join(row) for row in picked.reshape(rows, 8)]})


def write(folder: Path, rows: int) -> dict[str, Path]:
    paths = {suffix: folder / f"rows.{suffix}" for suffix in ("parquet", "csv")}
    schema = piece(0, 1).schema
    with pq.ParquetWriter(paths["parquet"], schema) as parquet, pa.csv.CSVWriter(paths["csv"], schema) as csv:
        for start in range(0, rows, PIECE):
            table = piece(start, min(PIECE, rows - start))
            parquet.write_table(table)
            csv.write_table(table)
    return paths


def seconds(split: dp.KFold | None, path: Path) -> float:
    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    start = spent()
    dp.Preprocessor(FEATURES, split=split).fit(path)
    return spent() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--k", type=int, default=10)
    options = parser.parse_args()
    ways: dict[str, dict[str, str]] = {
        "at random": {},
        "by class": {"stratify": "label"},
        "by group": {"group": "user"},
    }
    print(f"| {options.rows:,} rows, {options.k} folds | all rows | one fold | all folds | of one fold | of all rows |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for suffix, path in write(Path(folder), options.rows).items():
            seconds(None, path)
            for name, way in ways.items():
                splits = (None, dp.KFold(options.k, fold=0, **way), dp.KFold(options.k, **way))
                turns = [[seconds(split, path) for split in splits] for _ in range(options.turns)]
                times = " | ".join(f"{statistics.median(column):.2f} s" for column in zip(*turns, strict=True))
                ratios = [sorted(all_folds / one[which] for *one, all_folds in turns) for which in (1, 0)]
                spreads = " | ".join(f"{statistics.median(of):.2f} ({of[0]:.2f} to {of[-1]:.2f})" for of in ratios)
                print(f"| {suffix}, {name} | {times} | {spreads} |", flush=True)


if __name__ == "__main__":
    main()
