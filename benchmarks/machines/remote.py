"""A dataset in an S3 store with 30 ms latency and 200 MB/s: objects, writing, first batch, epochs, cache, faults.

    python -m benchmarks.machines.remote [--rows 1000000] [--rounds 3] [--latency 0.03] [--bytes-per-second 200e6]

moto serves S3 from this machine, or with --port a server that has been started, such as s3rver, which is faster. Before
it is `slow_store.py`. All of it listens on the loopback interface alone and ends with this script.

The table has 8 numbers, a category and a vector of 48. What is compared runs in turn, and medians are printed as a
Markdown table: seconds of the clock, and of the processor in this process. The cap is what 32 threads read that ask for
the objects of the training split by plain HTTP, 3 MB at a time. Every epoch is checked to yield every row once.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import daskprep as dp
from daskprep.storage import Folder

BUCKET = "bucket"
KEY = "S3RVER"  # the only key of s3rver; moto accepts any
THREADS = 32
PIECE_BYTES = 3_000_000
WIDTH = 48


class Run(NamedTuple):
    """Wall-clock and CPU seconds of one run; for epochs, seconds to the first batch."""

    seconds: float
    cpu: float
    first: float = 0.0


def make_rows(path: Path, rows: int) -> None:
    """Write the source."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {f"number_{i}": rng.normal(size=rows) for i in range(8)}
    columns["city"] = rng.integers(0, 500, rows).astype(str)
    vectors = pa.array(rng.normal(size=rows * WIDTH).astype(np.float32))
    columns["vector"] = pa.FixedSizeListArray.from_arrays(vectors, WIDTH)
    pq.write_table(pa.table(columns), path, row_group_size=100_000)


def preprocessor() -> dp.Preprocessor:
    """Return the Preprocessor of the source."""
    numbers = {f"number_{i}": "number" for i in range(8)}
    return dp.Preprocessor({**numbers, "city": "category", "vector": "vector"})


@contextlib.contextmanager
def moto_server() -> Iterator[int]:
    """Serve S3 from a process, and yield its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _process(command, stdout=subprocess.DEVNULL):
        for _ in range(600):
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", port)
                connection.request("PUT", f"/{BUCKET}")
                connection.getresponse().read()
                break
            time.sleep(0.1)
        yield port


@contextlib.contextmanager
def slow_store(target: int, **options: float) -> Iterator[int]:
    """Start a slow proxy for a port, and yield its port."""
    given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "benchmarks.machines.slow_store", str(target), *given]
    with _process(command, stdout=subprocess.PIPE, text=True) as process:
        yield int(process.stdout.readline())


@contextlib.contextmanager
def _process(command: list[str], **how: Any) -> Iterator[Any]:
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, **how)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def options_of(port: int) -> dict[str, Any]:
    """Return the options for the store at a port."""
    return {"key": KEY, "secret": KEY, "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}"}}


def timed(call: Callable[[], Any]) -> Run:
    """Run a function, which may return the seconds to its first result."""
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    first = call()
    after, seconds = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter() - began
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(seconds, cpu, first if isinstance(first, float) else 0.0)


def epoch(dataset: dp.Dataset, seed: int, **options: Any) -> float:
    """Iterate over an epoch, check that it yields every row once, and return the seconds to its first batch."""
    train, first, began = dataset["train"], 0.0, time.perf_counter()
    seen = np.zeros(len(train), np.int64)
    for batch in train.loader(1024, seed=seed, row_ids=True, **options):
        first = first or time.perf_counter() - began
        np.add.at(seen, batch["row_id"].numpy(), 1)
    assert (seen == 1).all(), "rows were lost or duplicated"
    return first


def files_of(dataset: dp.Dataset) -> dict[str, int]:
    """Return the bytes of each file that an epoch reads."""
    files = dataset.manifest.files
    return {name: entry.bytes for name, entry in files.items() if entry.rows and name.startswith("train/")}


def plain_read(dataset: dp.Dataset) -> None:
    """Request the objects of the training split, in pieces, with many threads."""
    folder, files = dataset.files.folder, files_of(dataset)
    urls = {name: urlsplit(folder.filesystem.url(f"{folder.path}/{name}")) for name in files}
    pieces = [(urls[name], start) for name, size in files.items() for start in range(0, size, PIECE_BYTES)]

    def get(piece: tuple[SplitResult, int]) -> int:
        url, start = piece
        connection = http.client.HTTPConnection(url.netloc)
        with contextlib.closing(connection):
            wanted = {"Range": f"bytes={start}-{start + PIECE_BYTES - 1}"}
            connection.request("GET", f"{url.path}?{url.query}", headers=wanted)
            return len(connection.getresponse().read())

    with ThreadPoolExecutor(THREADS) as pool:
        assert sum(pool.map(get, pieces)) == sum(files.values())


def in_turn(calls: dict[str, Callable[[int], Any]], rounds: int) -> dict[str, Run]:
    """Run each call several times, alternating, and return the medians."""
    runs: dict[str, list[Run]] = {name: [] for name in calls}
    for number in range(rounds):
        for name, call in calls.items():
            runs[name].append(timed(lambda call=call, number=number: call(number)))
    return {name: Run(*(median(values) for values in zip(*some, strict=True))) for name, some in runs.items()}


def show(name: str, run: Run, nbytes: float = 0, note: str = "") -> None:
    """Print a row of the table."""
    speed = f"{nbytes / run.seconds / 1e6:.0f}" if nbytes else ""
    first = f"{run.first:.2f}" if run.first else ""
    print(f"| {name} | {run.seconds:.2f} | {run.cpu:.2f} | {speed} | {first} | {note} |", flush=True)


def objects(name: str, dataset: dp.Dataset) -> str:
    """Return the number of objects of a dataset and the size of its manifest, as text."""
    return f"{name}: {len(dataset.manifest.files) + 1} objects, manifest of {len(dataset.manifest.to_bytes()):,} bytes"


def main(arguments: argparse.Namespace) -> None:
    """Measure every step once, and stop all processes."""
    rate = {"latency": arguments.latency, "bytes_per_second": arguments.bytes_per_second}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        moto = arguments.port or stack.enter_context(moto_server())
        slow = stack.enter_context(slow_store(moto, **rate))
        url = f"s3://{BUCKET}/remote-{os.getpid()}"
        stack.callback(Folder.open(url, options_of(moto)).remove_all)
        make_rows(folder / "rows.parquet", arguments.rows)
        print("| run | seconds | CPU seconds | MB/s | first batch, s | |\n|---|---|---|---|---|---|")

        def write(path: str, shards: bool, port: int = 0) -> dp.Dataset:
            options = options_of(port) if port else None
            source = str(folder / "rows.parquet")
            return preprocessor().fit_write(source, path, version="1", shards=shards, storage_options=options)

        for kind, shards in (("chunks", False), ("shards", True)):
            show(f"write, {kind}", timed(lambda: write(f"{url}/{kind}.dp", shards, slow)))  # noqa: B023
            write(str(folder / f"{kind}.dp"), shards)
        opened = {
            kind: dp.open_dataset(f"{url}/{kind}.dp", storage_options=options_of(slow)) for kind in ("chunks", "shards")
        }
        local = {kind: dp.open_dataset(folder / f"{kind}.dp") for kind in opened}
        epoch(local["chunks"], 0)  # warm up imports
        nbytes = sum(files_of(opened["shards"]).values())
        runs = in_turn(
            {
                "cap: plain read": lambda _: plain_read(opened["shards"]),
                "epoch, shards": lambda seed: epoch(opened["shards"], seed),
                "epoch, chunks": lambda seed: epoch(opened["chunks"], seed),
            },
            arguments.rounds,
        )
        for name, run in runs.items():
            ratio = f"{runs['cap: plain read'].seconds / run.seconds:.2f} of the cap"
            show(name, run, nbytes, ratio if "epoch" in name else "")
        near = {"cache": True, "cache_dir": str(folder / "copies")}
        show("epoch that fills the cache", timed(lambda: epoch(opened["shards"], 0, **near)), nbytes)
        runs = in_turn(
            {
                "epoch from the cache": lambda seed: epoch(opened["shards"], seed, **near),
                "epoch, local chunks": lambda seed: epoch(local["chunks"], seed),
                "epoch, local shards": lambda seed: epoch(local["shards"], seed),
            },
            arguments.rounds,
        )
        for name, run in runs.items():
            show(name, run, nbytes, f"{runs['epoch, local chunks'].seconds / run.seconds:.2f} of local chunks")
        for kind, what in (("faults", {"faults": arguments.faults}), ("stalls", {"stalls": arguments.stalls})):
            port = stack.enter_context(slow_store(moto, **rate, **what))
            dataset = dp.open_dataset(f"{url}/shards.dp", storage_options=options_of(port))
            runs = in_turn(
                {
                    "epoch": lambda seed: epoch(opened["shards"], seed),
                    f"epoch, {kind}": lambda seed, dataset=dataset: epoch(dataset, seed),
                },
                arguments.rounds,
            )
            for name, run in runs.items():
                show(name, run, nbytes, f"{run.seconds / runs['epoch'].seconds:.2f} of the time")
        print("\n" + "; ".join(objects(kind, dataset) for kind, dataset in opened.items()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency", type=float, default=0.03, help="seconds")
    parser.add_argument("--bytes-per-second", type=float, default=200e6)
    parser.add_argument("--faults", type=float, default=0.05, help="share of requests that fail")
    parser.add_argument("--stalls", type=float, default=0.01, help="share of requests that are answered 2 s late")
    parser.add_argument("--port", type=int, default=0, help="of an S3 server on this machine, with a bucket")
    main(parser.parse_args())
