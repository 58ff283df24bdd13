"""Compare processes with threads: a write with `workers` of a number, "threads" and the default, alternating.

    python -m benchmarks.machines.processes --data data/5m --rows 1000 1000000 5000000 [--workers 2 4] [--rounds 3]

Each write runs in a process of its own. Prints a JSON line for each number of rows: median seconds of each choice,
its median CPU seconds with imports and processes, what the default chose, and the ratios of rows per second to those
of threads.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import pyarrow.parquet as pq

import daskprep as dp
from benchmarks.peers.common import GROUPS
from benchmarks.peers.ours_prep import feature_of
from daskprep.sources import estimate_bytes
from daskprep.sources.partitions.dask_internals import CPU_COUNT
from daskprep.sources.partitions.schedulers import choose_workers


def main() -> None:
    """Measure all numbers of rows; each child process measures one write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=int, nargs="+", required=True)
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--once", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(time_write(options.data, options.rows[0], json.loads(options.once)))
        return
    for rows in options.rows:
        numbers = {f"{count} processes": count for count in options.workers}
        choices: dict[str, str | int | None] = {"threads": "threads", **numbers, "default": None}
        seconds: dict[str, list[float]] = {name: [] for name in choices}
        cpu: dict[str, list[float]] = {name: [] for name in choices}
        for _ in range(options.rounds):
            for name, workers in choices.items():
                before = children_cpu()
                seconds[name].append(run_once(options.data, rows, workers))
                cpu[name].append(children_cpu() - before)
        medians, cpu_medians = (
            {name: round(median(times), 2) for name, times in measured.items()} for measured in (seconds, cpu)
        )
        with tempfile.TemporaryDirectory() as folder:
            chosen = choose_workers(estimate_bytes(first_rows(options.data, rows, Path(folder))), CPU_COUNT)
        ratios = {name: round(medians["threads"] / medians[name], 3) for name in (*numbers, "default")}
        line = {"rows": rows, **medians, "cpu": cpu_medians, "default_processes": chosen, "against_threads": ratios}
        print(json.dumps(line), flush=True)


def children_cpu() -> float:
    """Return the CPU seconds of all processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_once(data: Path, rows: int, workers: object) -> float:
    """Return the seconds of one write in a new process."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.machines.processes",
        "--data",
        str(data),
        "--rows",
        str(rows),
        "--once",
        json.dumps(workers),
    ]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def first_rows(data: Path, rows: int, folder: Path) -> list[str]:
    """Return files with the first rows: complete files, and a new one in `folder` for the rest."""
    names = []
    for path in sorted(data.glob("part-*.parquet")):
        count = pq.read_metadata(path).num_rows
        if count > rows:
            pq.write_table(pq.read_table(path).slice(0, rows), path := folder / "rest.parquet")
        names.append(str(path))
        rows -= min(rows, count)
        if not rows:
            break
    return names


def time_write(data: Path, rows: int, workers: object) -> float:
    """Return the seconds of one write."""
    features = {name: feature_of(group) for group, names in GROUPS.items() for name in names}
    with tempfile.TemporaryDirectory() as folder:
        files = first_rows(data, rows, Path(folder))
        for name in files:
            Path(name).read_bytes()
        began = time.perf_counter()
        dp.Preprocessor(features).fit_write(files, f"{folder}/out.dp", workers=workers, progress=False)  # type: ignore[arg-type]
        return time.perf_counter() - began


if __name__ == "__main__":
    main()
