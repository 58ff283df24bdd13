"""Redundant columns of tables, and rows of one split in another: findings and cost.

    python -m benchmarks.own.duplicates tables adult.csv titanic.csv
    python -m benchmarks.own.duplicates planted --rows 10000000
    python -m benchmarks.own.duplicates cost --data data/1m --rows 1000000

`planted` writes rows of which 1,000 in "test" are copies of rows in "train", a tenth of them with the other label. It
prints the counts of the dataset and the peak memory of the write. `cost` prints the processor seconds of hashes, their
files and the comparison on the data of prep.py, and their share of fit_write.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import daskprep as dp

COPIES = 1_000
FILE_ROWS = 500_000


def show_tables(paths: Iterable[str]) -> None:
    """Print the columns of each table that inference skips."""
    for path in paths:
        skipped = dp.infer_features(path, progress=False).skipped
        print(json.dumps({"table": Path(path).name, "skipped": skipped}))


def write_planted(folder: Path, rows: int) -> None:
    """Write Parquet files whose last fifth is "test"; its first rows are copies of the first rows of "train"."""
    first_test = rows * 4 // 5
    for start in range(0, rows, FILE_ROWS):
        numbers = np.arange(start, min(start + FILE_ROWS, rows))
        sources = np.where((numbers >= first_test) & (numbers < first_test + COPIES), numbers - first_test, numbers)
        values = [np.sin(sources * factor) for factor in (0.37, 1.71, 2.9)]
        labels = sources % 2
        labels[(numbers != sources) & (numbers % 10 == 0)] ^= 1
        columns = {f"x{index}": column for index, column in enumerate(values)}
        columns |= {"city": pa.array(sources % 50).cast(pa.string()), "label": labels}
        columns["split"] = np.where(numbers < first_test, "train", "test")
        pq.write_table(pa.table(columns), folder / f"part-{start // FILE_ROWS:05d}.parquet")


def write_dataset(folder: str, memory: str) -> None:
    """Write the planted rows as a dataset, and print its counts of duplicates and the peak memory of this process."""
    features = {"x0": "number", "x1": "number", "x2": "number", "city": "category", "label": "binary"}
    prep = dp.Preprocessor(features, targets="label", split=dp.FixedSplit("split"))
    start = time.perf_counter()
    dataset = prep.fit_write(f"{folder}/rows", f"{folder}/a.dp", memory=memory, workers="threads", progress=False)
    seconds = round(time.perf_counter() - start, 1)
    duplicates = {split: rows._asdict() for split, rows in (dataset.duplicates or {}).items()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(json.dumps({"duplicates": duplicates, "seconds": seconds, "peak_gb": round(peak, 3)}))


def measure_cost(data: Path, rows: int) -> None:
    """Print the processor seconds of each step of the comparison, and their share of fit_write."""
    from benchmarks.peers.ours_prep import GROUPS, feature_of, first_files
    from daskprep.dataset.writing import job, parts

    seconds: dict[str, float] = {}

    def timed(function: Callable[..., Any], clock: Callable[[], float]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            start = clock()
            result = function(*arguments)
            name = function.__name__
            seconds[name] = seconds.get(name, 0.0) + clock() - start
            return result

        return call

    parts.hash_rows = timed(parts.hash_rows, time.thread_time)
    parts.save_hashes = timed(parts.save_hashes, time.thread_time)
    job.count_duplicates = timed(job.count_duplicates, time.process_time)
    features = {column: feature_of(group) for group, columns in GROUPS.items() for column in columns}
    prep = dp.Preprocessor(features, targets="label", split=dp.RandomSplit())
    files = first_files(data, rows)
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        prep.fit_write(files, f"{folder}/a.dp", workers="threads", progress=False)
        total = time.process_time() - start
    share = sum(seconds.values()) / total
    print(json.dumps({"seconds": seconds, "fit_write": total, "share": round(share, 4)}))


def main() -> None:
    """Run one of the three parts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("tables").add_argument("paths", nargs="+")
    planted, cost = commands.add_parser("planted"), commands.add_parser("cost")
    planted.add_argument("--rows", type=int, default=10_000_000)
    planted.add_argument("--memory", default="1GB")
    cost.add_argument("--data", type=Path, required=True)
    cost.add_argument("--rows", type=int, required=True)
    arguments = parser.parse_args()
    if arguments.command == "tables":
        show_tables(arguments.paths)
    elif arguments.command == "cost":
        measure_cost(arguments.data, arguments.rows)
    else:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "rows").mkdir()
            write_planted(Path(folder) / "rows", arguments.rows)
            # A separate process, whose peak memory is that of the write.
            process = multiprocessing.get_context("spawn").Process(
                target=write_dataset, args=(folder, arguments.memory)
            )
            process.start()
            process.join()


if __name__ == "__main__":
    main()
