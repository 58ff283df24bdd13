"""What a partition costs however few rows it has: write the same rows cut into 1,000 and into 10,000 partitions.

    python benchmarks/partitions.py [--partitions 1000 10000] [--kind dask files]

Each partition has 10 rows of a number, a category and a text; each run is a fresh process. Printed are seconds,
milliseconds for each partition, and the ratio of the longest run to the shortest.

    python benchmarks/partitions.py --plan 100000     seconds and memory to build the graph of a fit
    python benchmarks/partitions.py --workers 256     share of the linear speed-up of a simulated cluster
    python benchmarks/partitions.py --columns 1000    memory of the tasks that merge quantiles of so many columns

The simulated cluster has workers of one thread in this process, and tasks that sleep.
"""

from __future__ import annotations

import argparse
import functools
import json
import operator
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROWS = 10


def partition(number: int) -> Any:
    """Make the rows of one partition."""
    import pandas as pd

    rows = range(number * ROWS, (number + 1) * ROWS)
    return pd.DataFrame(
        {
            "price": [row / 7 for row in rows],
            "city": [f"city {row % 100}" for row in rows],
            "review": [f"good {row % 1000}, really" for row in rows],
            "sold": [row % 3 == 0 for row in rows],
        }
    )


def source(kind: str, partitions: int, folder: Path) -> Any:
    """Give a Dask frame, or the folder of as many Parquet files, each a partition."""
    if kind == "dask":
        import dask.dataframe as dd

        return dd.from_map(partition, range(partitions), meta=partition(0).iloc[:0])
    import daskprep as dp

    for number in range(partitions):
        partition(number).to_parquet(folder / f"part-{number:05d}.parquet")
    return dp.read_files(folder, partition_bytes=1)


def run(kind: str, partitions: int) -> None:
    """Write once in this process, and print the figures."""
    import daskprep as dp

    features = {"price": "number", "city": "category", "review": "text", "sold": "binary"}
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "files"
        files.mkdir()
        frame = source(kind, partitions, files)
        prep = dp.Preprocessor(features, split=dp.StratifiedSplit("sold"))
        start = time.perf_counter()
        prep.fit_write(frame, Path(folder) / "out.dp", progress=False)
        print(json.dumps({"kind": kind, "partitions": partitions, "seconds": time.perf_counter() - start}))


def made(rows: int) -> Any:
    """Give a source of so many partitions of a row each, which makes them when they are read."""
    import pyarrow as pa

    from daskprep.sources.base import MadePiece, PieceSource

    table = pa.table({"price": [1.5]})
    return PieceSource(table.schema, [MadePiece(table.select, 1, 0) for _ in range(rows)])


def plan(partitions: int) -> None:
    """Build and pickle the graph of a fit with a random split for 1,000 threads, and run none of it."""
    import cloudpickle

    import daskprep as dp
    from daskprep.partitions import grouping

    class Planned(BaseException):
        pass

    def stop(graph: Any, keys: Any, **options: Any) -> None:
        size = len(cloudpickle.dumps(graph))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seconds = time.process_time() - start
        print(f"{partitions:,} partitions: {len(graph):,} tasks of {size / 1e6:.0f} MB")
        print(f"{seconds:.1f} CPU s, {peak >> 10} MB peak")
        raise Planned

    import dask

    source = made(partitions)
    grouping.worker_threads = lambda: (1000, 1000)
    start = time.process_time()
    try:
        with dask.config.set(scheduler=stop):
            dp.Preprocessor({"price": "number"}, split=dp.RandomSplit()).fit(source)
    except Planned:
        return


def simulate(workers: int, partitions: int = 20_480, nap: float = 0.2) -> None:
    """Fold partitions that take a nap each, on workers of one thread in this process."""
    from distributed import Client, LocalCluster

    from daskprep import partitions as passes

    def sleep(shared: None, number: int, table: Any) -> Any:
        time.sleep(nap)
        return None, {"key": 1}

    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=False, memory_limit=0, dashboard_address=None
        ) as cluster,
        Client(cluster),
    ):
        start, cpu = time.perf_counter(), time.process_time()
        folded = passes.fold(
            made(partitions),
            "nap",
            sleep,
            ["price"],
            None,
            range(partitions),
            merge=sum,
            finish=lambda key, values: sum(values),
            keys=["key"],
        )
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    assert folded == {"key": partitions}
    share = partitions * nap / workers / seconds
    print(
        f"{workers} workers: {seconds:.1f} s, {share:.2f} of linear, {1000 * cpu / partitions:.2f} CPU ms a partition"
    )


def merge_wide(columns: int) -> None:
    """Merge eight summaries of as many columns as are merged together, each of as many values as are kept."""
    import tracemalloc

    import numpy as np

    from daskprep.partitions import grouping
    from daskprep.summaries import Quantiles

    rng = np.random.default_rng(0)
    chunk = grouping.chunks(range(columns))[0]
    merging = grouping.Merging(lambda values: functools.reduce(operator.add, values))
    tracemalloc.start()
    parts = [{key: Quantiles.of(rng.lognormal(sigma=9, size=300_000)) for key in chunk} for _ in range(8)]
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    merging.chunk(parts)
    peak = tracemalloc.get_traced_memory()[1]
    tasks = len(grouping.chunks(range(columns)))
    print(
        f"{columns:,} columns: {tasks} merges of {len(chunk)}; eight hold {held / 1e6:.0f} MB, peak {peak / 1e6:.0f} MB"
    )


def main() -> None:
    """Run each case in a fresh process and compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--partitions", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--kind", choices=["dask", "files"], nargs="+", default=["dask", "files"])
    parser.add_argument("--plan", type=int, metavar="PARTITIONS")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--columns", type=int)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for does, given in ((plan, arguments.plan), (simulate, arguments.workers), (merge_wide, arguments.columns)):
        if given:
            does(given)
            return
    if arguments.one:
        run(arguments.kind[0], arguments.partitions[0])
        return
    for kind in arguments.kind:
        seconds = []
        for partitions in arguments.partitions:
            command = [sys.executable, __file__, "--one", "--kind", kind, "--partitions", str(partitions)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds.append(json.loads(done.stdout.splitlines()[-1])["seconds"])
            each = 1000 * seconds[-1] / partitions
            print(f"{kind}: {partitions:,} partitions, {seconds[-1]:.1f} s, {each:.2f} ms each", flush=True)
        print(f"{kind}: the last takes {seconds[-1] / seconds[0]:.1f} times the first")


if __name__ == "__main__":
    main()
