"""CPU seconds and peak memory of a write of windows over the past rows of many groups, each size in a fresh process.

    python -m benchmarks.own.windows [--rows 1000000 10000000]
    python -m benchmarks.own.windows --days 10 100
    python -m benchmarks.own.windows --epoch
    python -m benchmarks.own.windows --borders 40000 4000

There is a group for every ten rows. Histories have up to 50 items, windows 8 numbers. With `--days`, a dataset has so
many days of 50,000 rows, and the day that is grown by and appended has two rows of each group. `--epoch` compares
epochs of 1,000,000 histories and of the same ids as a `Sequence`. `--borders` has numbers of groups, and measures the
rows that `encode` of 400,000 rows in 8 partitions exchanges in one process.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import daskprep as dp
from benchmarks.peers.common import own_cpu_s, peak_memory_mb

FILE_ROWS = 500_000
DAY_ROWS = 50_000
PAST_DAYS = 5  # whose rows are passed before a day
FEATURES = {
    "History": {"h": dp.History(column="item", by="user", time="at", last=50)},
    "Timeseries": {"w": dp.Timeseries(column="load", group_by="user", time="at", window_size=8)},
}


def make_files(folder: Path, rows: int, file_rows: int = FILE_ROWS, groups: int | None = None) -> None:
    rng = np.random.default_rng(0)
    for start in range(0, rows, file_rows):
        size = min(file_rows, rows - start)
        columns = {
            "user": rng.integers(0, groups or rows // 10, size),
            "item": rng.integers(0, 5000, size).astype(str),
            "load": rng.random(size).astype(np.float32),
            "at": pa.array(np.arange(start, start + size) * 1_000_000, pa.timestamp("us")),
        }
        pq.write_table(pa.table(columns), folder / f"{start:010}.parquet")


def append_day(kind: str, days: int, folder: Path) -> str:
    """Return CPU seconds of passing the rows before a day, of `grow`, and of `append`, once after a first day."""
    make_files(folder, (days + 2) * DAY_ROWS, DAY_ROWS, DAY_ROWS // 2)
    files, target = sorted(folder.iterdir()), folder / "dataset.dp"
    prep = dp.Preprocessor(FEATURES[kind], split=None)
    prep.fit_write(files[:days], target, progress=False)
    for number in (days, days + 1):
        moments = [own_cpu_s()]
        after = prep.with_history(files[number - PAST_DAYS : number])
        moments.append(own_cpu_s())
        prep.grow(files[number])
        moments.append(own_cpu_s())
        after.append(files[number], target, progress=False)
        moments.append(own_cpu_s())
    return " | ".join(f"{seconds:.2f}" for seconds in np.diff(moments))


def compare_epochs(folder: Path) -> str:
    """Return the least CPU seconds of an epoch of histories, and of the same ids in sequences, in turn."""
    (folder / "rows").mkdir()
    make_files(folder / "rows", 1_000_000)
    prep = dp.Preprocessor(FEATURES["History"], split=None)
    histories = prep.fit_write(folder / "rows", folder / "histories.dp", progress=False)["train"]
    items = pa.array(prep.decode({"h": histories.read(["h"])["h"]})["h"])
    pq.write_table(pa.table({"h": items}), folder / "items.parquet")
    same = dp.Preprocessor({"h": dp.Sequence(sequence_length=50)}, split=None)
    sequences = same.fit_write(folder / "items.parquet", folder / "sequences.dp", progress=False)["train"]
    seconds: dict[str, list[float]] = {"histories": [], "sequences": []}
    for _ in range(5):
        for name, split in {"histories": histories, "sequences": sequences}.items():
            start, lengths = own_cpu_s(), 0
            for batch in split.loader(batch_size=4096, trim=True):
                lengths += int((batch["h"] != 0).sum())
            seconds[name].append(own_cpu_s() - start)
            print(f"{name}: {lengths:,} ids, {seconds[name][-1]:.2f} s", file=sys.stderr)
    return " | ".join(f"{min(times):.2f}" for times in seconds.values())


def measure_borders(kind: str, groups: int, folder: Path) -> str:
    """Return the bytes that partitions pass on for each of their groups, and the bytes of the rows that all receive."""
    make_files(folder, 400_000, 50_000, groups)
    parts = [pq.read_table(file).to_pandas() for file in sorted(folder.iterdir())]
    prep = dp.Preprocessor(FEATURES[kind], split=None).fit(folder)
    [feature], [learned] = prep.features_.values(), prep.learned_.values()
    [name] = prep.features_
    imputer: Any = feature.imputer
    columns = [feature.parse(*(pa.array(part[one]) for one in feature.reads(name))) for part in parts]
    borders = [imputer.find_border(column, learned) for column in columns]
    passed, sizes = sum(one.nbytes for one in borders), [len(one.groups) for one in borders]
    received = sum(one.nbytes for outer in imputer.compute_border_values(borders) for one in outer[:3])
    return f"{sum(sizes) // len(sizes):,} | {passed / sum(sizes):.0f} | {received / sum(sizes):.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--days", type=int, nargs="+", help="days of datasets that a day is appended to")
    parser.add_argument("--epoch", action="store_true", help="compare epochs of histories and sequences")
    parser.add_argument("--borders", type=int, nargs="+", help="numbers of groups whose borders are measured")
    parser.add_argument("--one", nargs=2, help="type and folder of a single run")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # windows at the start of a group are incomplete
    if arguments.one:
        kind, folder = arguments.one
        start = own_cpu_s()
        prep = dp.Preprocessor(FEATURES[kind], split=None)
        prep.fit_write(folder, Path(folder).with_suffix(f".{kind}"), progress=False)
        print(f"{own_cpu_s() - start:.1f} | {peak_memory_mb():.0f}")
        return
    if arguments.epoch:
        with tempfile.TemporaryDirectory() as name:
            print("| histories: CPU s | sequences |\n|---|---|\n| " + compare_epochs(Path(name)) + " |")
        return
    for measure, numbers, columns in (
        (append_day, arguments.days, ["days", "with_history", "grow", "append"]),
        (measure_borders, arguments.borders, ["groups", "in a partition", "bytes passed by group", "received"]),
    ):
        if numbers:
            print(f"| type | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}")
            for kind in FEATURES:
                for number in numbers:
                    with tempfile.TemporaryDirectory() as name:
                        print(f"| {kind} | {number:,} | {measure(kind, number, Path(name))} |", flush=True)
            return
    print("| type | rows | groups | CPU seconds | peak memory, MB |\n|---|---|---|---|---|")
    for rows in arguments.rows:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "rows"
            folder.mkdir()
            make_files(folder, rows)
            for kind in FEATURES:
                command = [sys.executable, "-m", "benchmarks.own.windows", "--one", kind, str(folder)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                print(f"| {kind} | {rows:,} | {rows // 10:,} | {done.stdout.strip()} |", flush=True)


if __name__ == "__main__":
    main()
