"""Write a dataset on a Dask cluster. Without one, the threads of this machine do the same work.

    python examples/clusters/preprocess.py

The environment says what to read and write, and where the workers are:

    SOURCE      Parquet files to read, such as /shared/sales/*.parquet or s3://shop/sales/*.parquet
    TARGET      folder or URL of the dataset to write
    SCRATCH     folder that all workers share; not needed if TARGET is a shared folder
    CLUSTER     "slurm-jobs", "slurm-allocation", "ssh", or "scheduler" for DASK_SCHEDULER_ADDRESS
    WORKERS     number of workers to wait for, or for "ssh" the names of the hosts, with commas

Without SOURCE, it creates a small table in a temporary folder, and leaves nothing behind.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pandas as pd
from distributed import Client, SSHCluster

import daskprep as dp

CORES, MEMORY = 2, "4GB"  # of each worker; daskprep keeps well below the memory


@contextmanager
def workers(cluster: str | None, wanted: str) -> Iterator[Client | None]:
    """Start or find the workers, and wait for the first one: daskprep looks at what workers can see."""
    with ExitStack() as stack:
        if cluster is None:
            yield None
            return
        if cluster == "slurm-jobs":
            from dask_jobqueue import SLURMCluster  # noqa: PLC0415 only on this cluster

            jobs = stack.enter_context(SLURMCluster(cores=CORES, processes=1, memory=MEMORY, walltime="01:00:00"))
            jobs.scale(jobs=int(wanted))
            client = stack.enter_context(Client(jobs))
        elif cluster == "slurm-allocation":
            from dask_jobqueue.slurm import SLURMRunner  # noqa: PLC0415

            # Every task of `srun` runs this script: the first becomes the scheduler, the second goes on here.
            runner = stack.enter_context(SLURMRunner(worker_options={"nthreads": CORES, "memory_limit": MEMORY}))
            client = stack.enter_context(Client(runner))
        elif cluster == "ssh":
            # The first host also runs the scheduler. Keys, ports and known hosts are those of ~/.ssh/config.
            hosts = wanted.split(",")
            options = {"nthreads": CORES, "memory_limit": MEMORY}
            machines = stack.enter_context(SSHCluster([hosts[0], *hosts], worker_options=options))
            client = stack.enter_context(Client(machines))
        elif cluster == "scheduler":
            client = stack.enter_context(Client(os.environ["DASK_SCHEDULER_ADDRESS"]))
        else:
            raise SystemExit(f"CLUSTER={cluster}: give slurm-jobs, slurm-allocation, ssh or scheduler")
        client.wait_for_workers(1, timeout=600)
        yield client


def preprocess(source: str, target: str) -> None:
    """Fit and write; if it is stopped, the same call goes on where it was."""
    prep = dp.Preprocessor(
        {"city": "category", "price": "number", "sold": "binary"},
        targets=["sold"],
        split=dp.RandomSplit(),
        scratch=os.environ.get("SCRATCH"),
    )
    dataset = prep.fit_write(source, target, progress=False)
    print({name: len(split) for name, split in dataset.splits.items()})


def main() -> None:
    """Connect and do the work."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = os.environ.get("SOURCE"), os.environ.get("TARGET", f"{folder}/sales.dp")
        if source is None:
            source = f"{folder}/*.parquet"
            for part in range(4):
                cities, prices = ["Oslo", "Rome"] * 500, range(part, part + 1_000)
                frame = pd.DataFrame({"city": cities, "price": prices, "sold": ["yes", "no", "no", "no"] * 250})
                frame.to_parquet(Path(folder) / f"{part}.parquet")
        with workers(os.environ.get("CLUSTER"), os.environ.get("WORKERS", "2")) as client:
            if client is not None:
                print(len(client.scheduler_info()["workers"]), "worker(s) to begin with")
            preprocess(source, target)


if __name__ == "__main__":
    main()
