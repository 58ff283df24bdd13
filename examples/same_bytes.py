"""Print digests of a dataset by engine, partitions and killed workers, and of an epoch by ranks and interruptions.

    python examples/same_bytes.py

Each engine writes in a process of its own, of which one worker is killed as soon as the first files are there: on
threads and processes of one machine the same call is repeated and resumes, a cluster continues by itself.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import dask
import numpy as np
import pandas as pd
import psutil
from dask.distributed import Client

import daskprep as dp

ROWS = 200_000
# The partitions of each engine, and the words in the command lines of its workers; no word: the process itself.
ENGINES = {
    "threads": (1, ""),
    "processes": (7, "spawn_main"),
    "cluster": (64, "spawn_main"),
    "jobqueue": (16, "dask_worker"),
    "ray": (5, "ray::"),
}
PACKAGES = {"jobqueue": "dask_jobqueue", "ray": "ray"}
ENVIRONMENT = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
FEATURES = {"price": "number", "city": "category", "review": "text"}


def create_rows() -> pd.DataFrame:
    """Return random rows with a number, a category of many values and a text."""
    rng = np.random.default_rng(0)
    words = rng.choice(["calm", "loud", "sunny", "new"], (ROWS, 5))
    price, city = rng.lognormal(4, 1, ROWS), rng.zipf(1.5, ROWS).astype(str)
    return pd.DataFrame({"price": price, "city": city, "review": [" ".join(row) for row in words]})


def digest_dataset(path: Path) -> str:
    """Return a digest of the files in the folder of a version: arrays, tables, vocabularies and fitted state."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if file.is_file():
            digest.update(file.relative_to(path).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def digest_epoch(split: dp.dataset.Split, ranks: int, resumed_ranks: int | None = None) -> str:
    """Return a digest of the batches of all ranks; on request, new loaders of `resumed_ranks` read the second half."""

    def start(world_size: int, state: dict[str, object] | None) -> list[dp.loader.Loader]:
        loaders = [split.loader(batch_size=256, rank=rank, world_size=world_size) for rank in range(world_size)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        return loaders

    digest = hashlib.sha256()
    loaders = start(ranks, None)
    batches, half = zip(*loaders, strict=True), len(loaders[0]) // 2
    for number in range(len(loaders[0])):
        if number == half and resumed_ranks is not None:
            batches = zip(*start(resumed_ranks, loaders[0].state_dict()), strict=True)
        parts = next(batches)
        for name in FEATURES:
            digest.update(np.concatenate([part[name] for part in parts]).tobytes())
    return digest.hexdigest()[:16]


@contextmanager
def workers(engine: str) -> Iterator[None]:
    """Run the block on two workers of an engine."""
    if engine == "ray":
        import ray  # noqa: PLC0415 only for this engine
        from ray.util.dask import ray_dask_get  # noqa: PLC0415

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
        with dask.config.set(scheduler=ray_dask_get):
            yield
        ray.shutdown()
    elif engine == "jobqueue":
        from dask_jobqueue.local import LocalCluster  # noqa: PLC0415 its jobs are processes of this machine

        options = {"cores": 1, "memory": "1GB", "scheduler_options": {"dashboard_address": ":0"}}
        with LocalCluster(n_workers=2, **options) as cluster, Client(cluster) as client:
            client.wait_for_workers(2)
            yield
    elif engine == "cluster":
        with Client(n_workers=2, threads_per_worker=1, dashboard_address=":0"):
            yield
    else:
        with dask.config.set(scheduler=engine, num_workers=2) if engine == "processes" else nullcontext():
            yield


def write(engine: str, source: Path, target: Path) -> None:
    """Write the dataset on an engine."""
    with workers(engine):
        rows = dp.read_files(source, partitions=ENGINES[engine][0])
        dp.Preprocessor(FEATURES, split=dp.RandomSplit(seed=0)).fit_write(rows, target, shuffle=True, seed=0)


def write_and_kill(engine: str, source: Path, target: Path) -> int:
    """Write in processes, kill one of them, and return the number of processes that were killed."""
    command, killed = [sys.executable, __file__, engine, str(source), str(target)], 0
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:  # noqa: S603 this file
        while process.poll() is None and not killed:
            time.sleep(0.01)
            if any(target.parent.glob(f"*{target.name}*/**/c.*")):
                killed += kill_worker(psutil.Process(process.pid), ENGINES[engine][1])
    if process.returncode:
        subprocess.run(command, env=ENVIRONMENT, check=True)  # noqa: S603 this file
    return killed


def kill_worker(process: psutil.Process, word: str) -> int:
    """Kill the worker of a process with the most CPU time; return 1, or 0 if it has none."""
    found = (
        [child for child in process.children(recursive=True) if word in " ".join(child.cmdline())]
        if word
        else [process]
    )
    if not found:
        return 0
    max(found, key=lambda child: sum(child.cpu_times()[:2])).kill()
    return 1


def main() -> None:
    """Print the digests."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "rows.parquet"
        create_rows().to_parquet(source, row_group_size=500)
        for engine, (partitions, _) in ENGINES.items():
            package = PACKAGES.get(engine, "dask")
            if importlib.util.find_spec(package) is None:
                print(f"dataset, {engine:9} {package} is not installed")
                continue
            target = folder / f"{engine}.dp"
            killed = write_and_kill(engine, source, target)
            dataset = dp.open_dataset(target)
            digest = digest_dataset(Path(dataset.url) / dataset.version)
            print(f"dataset, {engine:9} {partitions:2} partitions, {killed} killed  {digest}")
        train = dataset["train"]
        for ranks in (1, 2, 4):
            print(f"epoch on {ranks} ranks                        {digest_epoch(train, ranks)}")
        print("epoch on 2 ranks, resumed on 4         ", digest_epoch(train, 2, resumed_ranks=4))


if __name__ == "__main__":
    if sys.argv[1:]:
        write(sys.argv[1], *map(Path, sys.argv[2:]))
    else:
        main()
