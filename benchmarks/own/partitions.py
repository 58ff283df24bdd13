"""The cost of a partition with few rows: write the same rows in 1,000 and in 10,000 partitions.

    python -m benchmarks.own.partitions [--partitions 1000 10000] [--kind dask files]

Each partition has 10 rows of a number, a category and a text; each run is a fresh process. Printed are seconds,
milliseconds for each partition, and the ratio of the longest run to the shortest.

    python -m benchmarks.own.partitions --cluster 1000 4000   CPU time of scheduler and client for each partition
    python -m benchmarks.own.partitions --plan 100000     seconds and memory to build the graph of a fit
    python -m benchmarks.own.partitions --workers 256     share of the linear speed-up of a simulated cluster
    python -m benchmarks.own.partitions --columns 1000    memory of the tasks that merge quantiles of 1,000 columns

With --cluster, two workers are separate processes, so that this process is the scheduler and the client. Its idle CPU
time is measured first and subtracted, with monitoring reduced; the slope is the cost of each additional partition.
The simulated cluster has workers of one thread in this process, and tasks that sleep: 8 for each worker, of
0.1 to 2 s unless --seconds says otherwise. The monitors of its workers rest too: they alone would fill this process.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import operator
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROWS = 10
IDLE_SECONDS = 10
# Reduces the monitoring of the scheduler and the nannies, which takes CPU time also without partitions.
QUIET = {
    "distributed.admin.system-monitor.interval": "1h",
    "distributed.admin.tick.interval": "1s",
    "distributed.worker.memory.monitor-interval": "1h",
    "distributed.worker.profile.enabled": False,
}


def partition(number: int) -> Any:
    """Return the rows of one partition."""
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
    """Return a Dask frame, or the folder of as many Parquet files, each a partition."""
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


def write_row_groups(partitions: int, folder: Path) -> Any:
    """Write Parquet files of 100 row groups, each of which is a partition, and open them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    import daskprep as dp

    folder.mkdir()
    for start in range(0, partitions, 100):
        rows = [partition(number) for number in range(start, min(start + 100, partitions))]
        table = pa.concat_tables(pa.Table.from_pandas(one, preserve_index=False) for one in rows)
        pq.write_table(table, folder / f"part-{start:06d}.parquet", row_group_size=ROWS)
    return dp.read_files(folder, partition_bytes=1)


def measure_cpu(work: Any, idle: float) -> tuple[float, float]:
    """Run a function; return seconds, and CPU seconds of this process beyond those of waiting."""
    start, cpu = time.perf_counter(), time.process_time()
    work()
    seconds = time.perf_counter() - start
    return seconds, time.process_time() - cpu - idle * seconds


def cluster(counts: list[int]) -> None:
    """Fit and write partitions on two workers, and print the CPU time of scheduler and client per partition."""
    import dask
    from distributed import Client, LocalCluster

    import daskprep as dp

    features = {"price": "number", "city": "category", "review": "text", "sold": "binary"}
    with (
        dask.config.set(QUIET),
        tempfile.TemporaryDirectory() as name,
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as workers,
        Client(workers),
    ):
        folder, split = Path(name), dp.RandomSplit()
        warm = write_row_groups(100, folder / "warm")
        dp.Preprocessor(features, split=split).fit_write(warm, folder / "warm.dp", progress=False)
        _, idle = measure_cpu(lambda: time.sleep(IDLE_SECONDS), 0.0)
        idle /= IDLE_SECONDS
        print(f"idle: {1000 * idle:.1f} CPU ms a second", flush=True)
        found: dict[str, list[float]] = {"fit": [], "fit_write": []}
        for count in counts:
            source = write_row_groups(count, folder / str(count))
            for does, cpus in found.items():
                prep = dp.Preprocessor(features, split=split)
                given = () if does == "fit" else (folder / f"{count}.dp",)
                seconds, cpu = measure_cpu(functools.partial(getattr(prep, does), source, *given, progress=False), idle)
                cpus.append(cpu)
                each = 1000 * cpu / count
                print(f"{does}: {count:,} partitions, {seconds:.1f} s, {each:.3f} CPU ms each", flush=True)
    for does, cpus in found.items():
        for (less, first), (more, last) in itertools.pairwise(zip(counts, cpus, strict=True)):
            slope = 1000 * (last - first) / (more - less)
            print(f"{does}: {slope:.3f} CPU ms for each partition from {less:,} to {more:,}")


def make_source(rows: int) -> Any:
    """Return a source of a number of partitions with one row each, which are created when they are read."""
    import pyarrow as pa

    from daskprep.sources.base import FragmentListSource, FunctionFragment

    table = pa.table({"price": [1.5]})
    return FragmentListSource(table.schema, [FunctionFragment(table.select, 1, 0) for _ in range(rows)])


def plan(partitions: int) -> None:
    """Build and pickle the graph of a fit with a random split for 1,000 threads, without running it."""
    import cloudpickle

    import daskprep as dp
    from daskprep.sources.partitions import passes

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

    source = make_source(partitions)
    passes.worker_threads = lambda: (1000, 1000)
    start = time.process_time()
    try:
        with dask.config.set(scheduler=stop):
            dp.Preprocessor({"price": "number"}, split=dp.RandomSplit()).fit(source)
    except Planned:
        return


def simulate(tasks: Sequence[float], workers: int) -> None:
    """Reduce partitions that sleep, on workers of one thread in this process; a task has 10 of them."""
    import dask
    from distributed import Client, LocalCluster

    from daskprep.sources import partitions as passes

    each, count = 10, 80 * workers

    def sleep(nap: float, number: int, table: Any) -> Any:
        time.sleep(nap)
        return None, {"key": 1}

    with (
        dask.config.set(QUIET),
        LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=False, memory_limit=0, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(workers)
        _, idle = measure_cpu(lambda: time.sleep(IDLE_SECONDS), 0.0)
        idle /= IDLE_SECONDS
        print(f"{workers} workers idle: {1000 * idle:.0f} CPU ms a second", flush=True)
        for seconds in tasks:
            naps = passes.Work(make_source(count), sleep, ["price"], seconds / each, range(count))
            folding = functools.partial(
                passes.map_reduce, naps, "nap", merge=sum, finish=lambda key, values: sum(values), keys=["key"]
            )
            took, cpu = measure_cpu(folding, idle)
            share = count * seconds / each / workers / took
            task = 1000 * cpu * each / count
            print(f"tasks of {seconds} s: {took:.1f} s, {share:.2f} of linear, {task:.1f} CPU ms a task", flush=True)


def merge_wide(columns: int) -> None:
    """Merge eight summaries of as many columns as one batch merges, each with the maximum number of values."""
    import tracemalloc

    import numpy as np

    from daskprep.columns.summaries import Quantiles
    from daskprep.sources.partitions import passes

    rng = np.random.default_rng(0)
    chunk = passes.split_batches(list(range(columns)), passes._CHUNK_KEYS)[0]
    merger = passes.Merger(lambda values: functools.reduce(operator.add, values))
    tracemalloc.start()
    parts = [{key: Quantiles.of(rng.lognormal(sigma=9, size=300_000)) for key in chunk} for _ in range(8)]
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    merger.merge_chunk(parts)
    peak = tracemalloc.get_traced_memory()[1]
    tasks = len(passes.split_batches(list(range(columns)), passes._CHUNK_KEYS))
    print(
        f"{columns:,} columns: {tasks} merges of {len(chunk)}; eight hold {held / 1e6:.0f} MB, peak {peak / 1e6:.0f} MB"
    )


def main() -> None:
    """Run each case in a fresh process and compare them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--partitions", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--kind", choices=["dask", "files"], nargs="+", default=["dask", "files"])
    parser.add_argument("--cluster", type=int, nargs="+", metavar="PARTITIONS")
    parser.add_argument("--plan", type=int, metavar="PARTITIONS")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--seconds", type=float, nargs="+", default=[0.1, 0.5, 1.0, 2.0])
    parser.add_argument("--columns", type=int)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for does, given in (
        (cluster, arguments.cluster),
        (plan, arguments.plan),
        (functools.partial(simulate, arguments.seconds), arguments.workers),
        (merge_wide, arguments.columns),
    ):
        if given:
            does(given)
            return
    if arguments.one:
        run(arguments.kind[0], arguments.partitions[0])
        return
    for kind in arguments.kind:
        seconds = []
        for partitions in arguments.partitions:
            command = [
                sys.executable,
                "-m",
                "benchmarks.own.partitions",
                "--one",
                "--kind",
                kind,
                "--partitions",
                str(partitions),
            ]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds.append(json.loads(done.stdout.splitlines()[-1])["seconds"])
            each = 1000 * seconds[-1] / partitions
            print(f"{kind}: {partitions:,} partitions, {seconds[-1]:.1f} s, {each:.2f} ms each", flush=True)
        print(f"{kind}: the last takes {seconds[-1] / seconds[0]:.1f} times the first")


if __name__ == "__main__":
    main()
