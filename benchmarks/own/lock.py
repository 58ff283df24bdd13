"""The share of time in which Python's lock is held during a write and during an epoch of a loader.

    python -m benchmarks.own.lock --data data/1m --rows 1000000 --packed bench-data/packed [--threads 1 2]

The package gilknocker (installed by pip) requests the lock every millisecond; `contention` is the share of time spent
waiting. Other work on the machine increases it, since either thread may wait for a core: `idle`, a sleep, and `python`,
a loop that releases the lock only on request, are the lower and upper bound. The first job also imports.
Prints a JSON line for each job and number of threads.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import dask
import torch
from gilknocker import KnockKnock

import daskprep as dp
from benchmarks.peers.common import GROUPS, first_files
from benchmarks.peers.ours_prep import feature_of
from benchmarks.peers.packed_map import prepared


def measure(job: Callable[[], object]) -> dict[str, float]:
    """Run a job; return the share of the time spent waiting for the lock, and wall-clock and CPU seconds."""
    knocker = KnockKnock(polling_interval_micros=1000, sampling_interval_micros=1000, sleeping_interval_micros=1000)
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    knocker.start()
    job()
    contention, seconds = knocker.contention_metric, time.perf_counter() - began
    knocker.stop()
    time.sleep(0.1)  # stop its thread, which would abort at the end of the process
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"contention": round(contention, 3), "seconds": round(seconds, 2), "cpu": round(cpu, 2)}


def write(files: list[str], out: Path, threads: int) -> None:
    """Learn and write a dataset with threads of this process."""
    prep = dp.Preprocessor({name: feature_of(group) for group, names in GROUPS.items() for name in names})
    with dask.config.set(scheduler="threads", num_workers=threads):
        prep.fit_write(files, out, progress=False, overwrite=True)


def load(dataset: Path, threads: int) -> None:
    """Load an epoch in batches of 1,024."""
    for _ in dp.open_dataset(dataset)["train"].loader(1024, expand=False, threads=threads):
        pass


def loop(seconds: float) -> None:
    """Hold the lock."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def main() -> None:
    """Measure each job."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder that prep.py reads")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--packed", type=Path, required=True, help="the folder of packed_map.py")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    files, out = first_files(arguments.data, arguments.rows), arguments.packed / "lock.dp"
    dataset, _ = prepared(arguments.packed, 2_000_000, "none")
    jobs: dict[str, Callable[[], object]] = {"idle": partial(time.sleep, 2), "python": partial(loop, 2)}
    for threads in arguments.threads:
        jobs[f"write, {threads}"] = partial(write, files, out, threads)
        jobs[f"load, {threads}"] = partial(load, dataset, threads)
    for _ in range(arguments.rounds):
        for name, job in jobs.items():
            print(json.dumps({"job": name, **measure(job)}), flush=True)


if __name__ == "__main__":
    main()
