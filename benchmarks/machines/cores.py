"""Speedup with more cores: a write, an epoch of rows and an epoch of images on 1, 2, 4 ... of the machine's cores.

    python -m benchmarks.machines.cores --data data/4m --rows 4000000 --packed bench-data/packed
        --images bench-data/images

Each job runs in a process of its own, kept to the first so many cores, with as many threads as daskprep then chooses.
Prints a JSON line for each: rows per second, and how many times those of one core. The last epoch of three counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import daskprep as dp
from benchmarks.peers.common import GROUPS, first_files
from benchmarks.peers.media_runs import use_cores
from benchmarks.peers.ours_prep import feature_of
from benchmarks.peers.packed_map import prepared

PACKED_ROWS, IMAGES, SIDE = 2_000_000, 2_048, 224


def write(data: Path, rows: int) -> float:
    """Learn and write a table; return the rows per second."""
    files = first_files(data, rows)
    prep = dp.Preprocessor({name: feature_of(group) for group, names in GROUPS.items() for name in names})
    with tempfile.TemporaryDirectory() as folder:
        prep.fit_write(files[:1], Path(folder) / "first.dp", progress=False)  # warm up imports
        began = time.perf_counter()
        prep.fit_write(files, Path(folder) / "out.dp", progress=False)
        return rows / (time.perf_counter() - began)


def load(packed: Path) -> float:
    """Load epochs of 8 numbers and a vector of 48; return the rows per second."""
    dataset, _ = prepared(packed, PACKED_ROWS, "none")
    return epochs(dp.open_dataset(dataset)["train"].loader(1024, expand=False), PACKED_ROWS)


def decode(images: Path) -> float:
    """Load epochs of images that are decoded in the loader; return the images per second."""
    files = [str(path.resolve()) for path in sorted(images.iterdir())]
    frame = pd.DataFrame({"photo": [files[row % len(files)] for row in range(IMAGES)]})
    photo = dp.Image(height=SIDE, width=SIDE, num_channels=3, expand_to="uint8")
    with tempfile.TemporaryDirectory() as folder:
        dataset = dp.Preprocessor({"photo": photo}, split=None).fit_write(frame, f"{folder}/out.dp", progress=False)
        return epochs(dataset["train"].loader(64), IMAGES)


def epochs(loader: dp.Loader, rows: int) -> float:
    """Return the rows per second of the last epoch of three."""
    for _ in range(3):
        began = time.perf_counter()
        for _ in loader:
            pass
        rate = rows / (time.perf_counter() - began)
    return rate


def main() -> None:
    """Run each job on different numbers of cores, in separate processes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="the folder that prep.py reads")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--packed", type=Path, help="the folder of packed_map.py")
    parser.add_argument("--images", type=Path, help="a folder of JPEG files")
    parser.add_argument("--cores", type=int, nargs="*", default=[1, 2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    jobs: dict[str, Callable[[], float]] = {
        "write": partial(write, arguments.data, arguments.rows),
        "load": partial(load, arguments.packed),
        "decode": partial(decode, arguments.images),
    }
    if arguments.job is not None:
        use_cores(arguments.cores[0])
        torch.set_num_threads(1)
        print(jobs[arguments.job]())
        return
    folders = {"write": arguments.data, "load": arguments.packed, "decode": arguments.images}
    for job in (job for job, data in folders.items() if data is not None):
        one = 0.0
        for cores in (cores for cores in arguments.cores if cores <= len(os.sched_getaffinity(0))):
            rate = max(run(job, cores) for _ in range(arguments.rounds))
            one = one or rate
            figures: dict[str, Any] = {
                "job": job,
                "cores": cores,
                "rows_a_second": round(rate),
                "times": round(rate / one, 2),
            }
            print(json.dumps(figures), flush=True)


def run(job: str, cores: int) -> float:
    """Return the rate of a job in a separate process."""
    command = [sys.executable, "-m", "benchmarks.machines.cores", *sys.argv[1:], "--job", job, "--cores", str(cores)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


if __name__ == "__main__":
    main()
