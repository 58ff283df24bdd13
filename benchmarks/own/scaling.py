"""CPU seconds of learning normalizations and encodings of numbers, compared with z-scores, in alternating runs.

.venv/bin/python -m benchmarks.own.scaling --rows 1000000

Beside z-scores of the same columns are `FEATURES`, the same with a target for two of them, and bins of all columns that
follow a target.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import daskprep as dp

PIECE = 250_000
FEATURES = {
    "robust": dp.Number(normalization="robust", missing_value_strategy="fill_with_median", missing_indicator=True),
    "quantile_normal": dp.Number(normalization="quantile_normal", missing_indicator=True),
    "quantile_uniform": dp.Number(normalization="quantile_uniform"),
    "yeo_johnson": dp.Number(normalization="yeo_johnson"),
    "box_cox": dp.Number(normalization="box_cox", fill_value=1.0),
    "bins": dp.Number(encoding="bins", clip_quantiles=(0.01, 0.99)),
    "pieces": dp.Number(encoding="piecewise_linear", normalization="quantile_normal"),
    "pieces_uniform": dp.Number(encoding="piecewise_linear", bin_strategy="uniform"),
}
TARGET: dict[str, Any] = {"bin_strategy": "target", "target": "target"}
WITH_TARGET = FEATURES | {
    "bins": dp.Number(encoding="bins", clip_quantiles=(0.01, 0.99), **TARGET),
    "pieces": dp.Number(encoding="piecewise_linear", normalization="quantile_normal", **TARGET),
}
WAYS = {
    "all of these": FEATURES,
    "all of these, two by target": WITH_TARGET,
    "bins by target": {name: dp.Number(encoding="bins", **TARGET) for name in FEATURES},
    "pieces by target": {name: dp.Number(encoding="piecewise_linear", **TARGET) for name in FEATURES},
}


def write(path: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    schema = pa.schema([(name, pa.float64()) for name in (*FEATURES, "target")])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, PIECE):
            size = min(PIECE, rows - start)
            columns = [rng.normal(size=size) if i % 2 else rng.lognormal(size=size) for i in range(len(FEATURES))]
            columns.append(np.sin(3 * columns[1]) + rng.normal(size=size))
            writer.write_table(pa.table(dict(zip(schema.names, columns, strict=True)), schema))


def seconds(features: dict[str, dp.Number], path: Path) -> float:
    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    start = spent()
    dp.Preprocessor(features).fit(path)
    return spent() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    plain = {name: dp.Number() for name in FEATURES}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "numbers.parquet"
        write(path, options.rows)
        seconds(WITH_TARGET, path)
        turns = [[seconds(ways, path) for ways in (plain, *WAYS.values())] for _ in range(options.turns)]
    print(f"| {options.rows:,} rows of {len(FEATURES)} columns | processor seconds | ratio, lowest to highest |")
    print("|---|---|---|")
    for way, (name, spent) in enumerate(zip(["z-scores", *WAYS], zip(*turns, strict=True), strict=True)):
        ratios = sorted(turn[way] / turn[0] for turn in turns)
        shown = f"{statistics.median(ratios):.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(f"| {name} | {statistics.median(spent):.3f} | {shown} |")


if __name__ == "__main__":
    main()
