"""Write the same rows from Parquet files and from one-pass Arrow sources, and compare speed and memory.

    python -m benchmarks.own.arrow_sources --rows 2000000 [--rounds 3]

Each write is a process of its own, in turn. Prints a JSON line for each kind: the median of the seconds, the median of
the peaks of resident memory, and both as a ratio to those of Parquet.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pds
import pyarrow.parquet as pq

KINDS = ("parquet", "reader", "lazyframe", "duckdb", "dataset")
FILE_ROWS = 250_000


def make(folder: Path, rows: int) -> None:
    """Write files of numbers, categories, words, a set and a date."""
    rng = np.random.default_rng(0)
    cities = np.array([f"city {i}" for i in range(2_000)])
    words = np.array([f"word{i}" for i in range(20_000)])
    for start in range(0, rows, FILE_ROWS):
        n = min(FILE_ROWS, rows - start)
        picked = words[rng.integers(0, len(words), (n, 6))]
        table = pa.table(
            {
                **{f"number{i}": rng.normal(size=n) for i in range(4)},
                **{f"city{i}": cities[rng.integers(0, len(cities), n)] for i in range(2)},
                "text": [" ".join(row) for row in picked.tolist()],
                "set": picked[:, :3].tolist(),
                "day": pa.array(rng.integers(0, 2_000_000_000, n), pa.timestamp("s")),
                "sold": rng.random(n) < 0.3,
            }
        )
        pq.write_table(table, folder / f"part-{start // FILE_ROWS:03d}.parquet", row_group_size=125_000)


def frame_of(kind: str, folder: Path) -> Any:
    """Return a source of each kind with the rows of the files."""
    if kind == "parquet":
        return str(folder)
    if kind == "lazyframe":
        import polars as pl

        return pl.scan_parquet(folder / "*.parquet")
    if kind == "duckdb":
        import duckdb

        duckdb.sql("SET memory_limit = '1GB'")
        return duckdb.sql(f"FROM '{folder}/*.parquet'")
    dataset = pds.dataset(folder)
    return dataset if kind == "dataset" else dataset.scanner(batch_readahead=2, fragment_readahead=1).to_reader()


def write(kind: str, folder: Path) -> None:
    """Write once and print seconds and the peak of resident memory in bytes."""
    import resource

    import daskprep as dp

    features: dict[str, Any] = {f"number{i}": dp.Number(normalization="zscore") for i in range(4)}
    features |= {f"city{i}": "category" for i in range(2)}
    features |= {"text": "text", "set": "set", "day": "date", "sold": "binary"}
    prep = dp.Preprocessor(features, split=dp.RandomSplit())
    with tempfile.TemporaryDirectory(dir=folder.parent) as out:
        frame = frame_of(kind, folder)
        start = time.perf_counter()
        prep.fit_write(frame, f"{out}/rows.dp", progress=False)
        seconds = time.perf_counter() - start
    print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))


def main() -> None:
    """Compare all kinds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        write(arguments.one[0], Path(arguments.one[1]))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "rows"
        folder.mkdir()
        make(folder, arguments.rows)
        found: dict[str, list[tuple[float, int]]] = {kind: [] for kind in arguments.kinds}
        for _ in range(arguments.rounds):
            for kind, figures in found.items():
                command = [sys.executable, "-m", "benchmarks.own.arrow_sources", "--one", kind, str(folder)]
                run = subprocess.run(command, check=True, capture_output=True, text=True)
                figures.append(json.loads(run.stdout))
    medians = {kind: [statistics.median(one) for one in zip(*figures, strict=True)] for kind, figures in found.items()}
    for kind, (seconds, peak) in medians.items():
        speed, memory = medians["parquet"][0] / seconds, peak / medians["parquet"][1]
        line = {"kind": kind, "seconds": seconds, "peak_mb": peak / 1e6, "speed": speed, "memory": memory}
        print(json.dumps({key: value if isinstance(value, str) else round(value, 2) for key, value in line.items()}))


if __name__ == "__main__":
    main()
