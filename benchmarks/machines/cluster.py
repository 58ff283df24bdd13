"""Compare two workers of one thread with two threads of one process, alternating: a write, and an epoch of a stream.

    python -m benchmarks.machines.cluster --data data/5m --rows 5000000 --out bench-out

The workers are started anew for each round. Their first write and epoch import what they need; the ratios are of the
second. CPU seconds are those of the client, which is also the scheduler, and of the workers.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import dask
import psutil
import torch
from distributed import Client, LocalCluster

import daskprep as dp
from benchmarks.peers.common import GROUPS, first_files
from benchmarks.peers.ours_prep import feature_of

Figures = tuple[float, float]


def timed(job: Callable[[], None], pids: list[int]) -> Figures:
    """Return the wall-clock and CPU seconds of a job."""
    processes = [psutil.Process(), *map(psutil.Process, pids)]
    before, began = [sum(one.cpu_times()[:2]) for one in processes], time.perf_counter()
    job()
    seconds = time.perf_counter() - began
    return seconds, sum(sum(one.cpu_times()[:2]) for one in processes) - sum(before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", default="500MB")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    files = first_files(arguments.data, arguments.rows)
    features = {name: feature_of(group) for group, names in GROUPS.items() for name in names}
    fitted = dp.Preprocessor(features).fit(files)

    def write() -> None:
        shutil.rmtree(arguments.out, ignore_errors=True)
        dp.Preprocessor(features).fit_write(files, arguments.out, progress=False)

    def stream() -> None:
        for _ in fitted.stream(files, 1024, window=arguments.window, threads=2):
            pass

    found: dict[str, list[Figures]] = {}
    for _ in range(arguments.rounds):
        for job in (write, stream):
            with dask.config.set(scheduler="threads", num_workers=2):
                found.setdefault(f"{job.__name__}, threads", []).append(timed(job, []))
            with (
                LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as workers,
                Client(workers) as client,
            ):
                pids = list(client.run(os.getpid).values())
                for which in ("first", "second"):
                    found.setdefault(f"{job.__name__}, workers, {which}", []).append(timed(job, pids))
    print("| job | rows/s | CPU seconds |\n|---|---|---|")
    for name, runs in found.items():
        print(f"| {name} | {arguments.rows / median(one[0] for one in runs):,.0f} | {median(r[1] for r in runs):.1f} |")
    for job in ("write", "stream"):
        pairs = zip(found[f"{job}, threads"], found[f"{job}, workers, second"], strict=True)
        ratios = [(one[0] / two[0], one[1] / two[1]) for one, two in pairs]
        print(f"{job}: {median(r[0] for r in ratios):.2f} of the rate, {median(r[1] for r in ratios):.2f} by CPU")


if __name__ == "__main__":
    main()
