"""Write small datasets in processes that are killed, or run out of disk space, at a chosen moment.

Run as a script, it imports daskprep once and forks a process for each line of JSON that it reads, a `Job`. Nothing else
runs in it, so that no fork finds a thread; a write that is killed costs as long as it ran and no imports.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import itertools
import json
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROWS = 3_000
FILES = 4

# Modules that a write imports, so that the processes have them already.
_IMPORTED = ["dask.dataframe", "daskprep.extensions.erasing", "distributed", "pandas", "pyarrow.dataset", "zarr.codecs"]
# Calls that change files on disk; opening for reading is not a step.
_STEPS = ("open", "write", "fsync", "replace", "link", "unlink", "rmdir", "mkdir")


@dataclass(frozen=True)
class Job:
    """One write, and how it ends.

    The source is files in partitions of about `partition_bytes`, or a Dask frame where `frame` tells the rows of each
    of its partitions. With `repair` the damaged files of what is there are made again. With `append` the rows
    are appended, after the vocabularies have grown by them. With `delete` rows of the first part are hidden, and with
    `purge` deleted rows are removed. With `erase`, its arguments, rows are erased, and all else but the
    fault is ignored.

    It is killed before the step of the number `kill_at`, or the first one that the pattern `kill_on` is found in, where
    of a step that writes bytes the half is written; or after the seconds `kill_after`. From the step `limit_at` on it
    may write no file larger than `limit_bytes`.
    """

    path: str
    source: list[str]
    seed: int = 0
    overwrite: bool = False
    partition_bytes: int = 100_000
    frame: list[int] | None = None
    version: str | None = None
    filling: bool = False
    fitted: bool = False
    repair: bool = False
    append: bool = False
    delete: list[int] | None = None
    purge: bool = False
    erase: dict[str, Any] | None = None
    block_rows: int = 256
    shuffle: bool = False
    scheduler: str = "synchronous"
    kill_at: int | None = None
    kill_on: str | None = None
    kill_after: float | None = None
    limit_at: int | None = None
    limit_bytes: int = 0


@dataclass(frozen=True)
class Result:
    """How a write ended; `returncode` is as of `subprocess`, so -9 where it was killed."""

    returncode: int
    seconds: float
    steps: list[str] = dataclasses.field(default_factory=list)
    error: str | None = None
    message: str = ""


class WriterProcess:
    """A client of the writing process."""

    def __init__(self, command: Sequence[str] = (), *, shuffle: bool = False) -> None:
        self.shuffle = shuffle
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(
            [*command, sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def write(self, path: Path, source: Sequence[Path], **how: Any) -> Result:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        job = Job(str(path), [str(file) for file in source], **{"shuffle": self.shuffle, **how})
        self.process.stdin.write(json.dumps(dataclasses.asdict(job)) + "\n")
        self.process.stdin.flush()
        return Result(**json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        self.process.communicate(timeout=60)


@contextlib.contextmanager
def writer_process(command: Sequence[str] = (), *, shuffle: bool = False) -> Iterator[WriterProcess]:
    """Start a process that writes datasets, behind an optional command, and end it."""
    process = WriterProcess(command, shuffle=shuffle)
    try:
        yield process
    finally:
        process.close()


@dataclass(frozen=True)
class Undisturbed:
    """The result of an undisturbed write of the same files, to an empty folder or over an older dataset.

    `steps` and `seconds` are what it takes to replace the older one, or to write where there is nothing.
    """

    writer: WriterProcess
    source: list[Path]
    older: Path
    versions: dict[str, str]
    files: dict[str, bytes | None]
    steps: dict[str, list[str]]
    seconds: float

    def prepare(self, path: Path, situation: str) -> None:
        shutil.rmtree(path, ignore_errors=True)
        if situation == "older":
            shutil.copytree(self.older, path)

    def write(self, path: Path, **how: Any) -> Result:
        result = self.writer.write(path, self.source, **how)
        assert result.error is None, result.message
        return result


def write_undisturbed(writer: WriterProcess, folder: Path) -> Undisturbed:
    """Write an older dataset, a new one, and the new one over the older one."""
    source, older, new = make_source(folder / "source"), folder / "older.dp", folder / "new.dp"
    written = {path: writer.write(path, source, seed=seed) for seed, path in enumerate([new, older])}
    shutil.copytree(older, folder / "replaced.dp")
    replaced = writer.write(folder / "replaced.dp", source)
    files = content(new)
    assert content(folder / "replaced.dp") == files
    assert sum("arrays.zarr" in name for name in files) > 50
    versions = {json.loads((path / "manifest.json").read_bytes())["manifest"]["version"]: path.stem for path in written}
    steps = {"nothing": written[new].steps, "older": replaced.steps}
    return Undisturbed(writer, source, older, versions, files, steps, replaced.seconds)


@contextlib.contextmanager
def undisturbed_writes(folder: Path) -> Iterator[Callable[[str], Undisturbed]]:
    """Yield a function that writes "ordered" or "shuffled" datasets undisturbed, each once and lazily."""
    with contextlib.ExitStack() as writers:

        @functools.cache
        def write(order: str) -> Undisturbed:
            writer = writers.enter_context(writer_process(shuffle=order == "shuffled"))
            return write_undisturbed(writer, folder / order)

        yield write


def content(folder: Path) -> dict[str, bytes | None]:
    """Return every file and folder below a folder, by name, with its bytes."""
    found = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*")}
    return {name: file.read_bytes() if file.is_file() else None for name, file in sorted(found.items())}


def make_source(folder: Path, rows: int = ROWS, files: int = FILES) -> list[Path]:
    """Write Parquet files whose columns are of many types, with missing and unreadable cells."""
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(7)
    words = np.array([f"word{number}" for number in range(200)])
    table = pd.DataFrame(
        {
            "price": np.where(rng.random(rows) < 0.03, np.nan, rng.lognormal(size=rows)),
            "city": rng.choice(
                ["Rome", "Oslo", "Bern", "Lima", "Kiel", None], rows, p=[0.4, 0.3, 0.1, 0.1, 0.05, 0.05]
            ),
            "tags": [" ".join(row) for row in rng.choice(words[:30], (rows, 3))],
            "review": [" ".join(row) for row in rng.choice(words, (rows, 5))],
            "series": [" ".join(map(str, row)) for row in rng.integers(0, 99, (rows, 4))],
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 90_000_000, rows), "s"),
            "sold": rng.random(rows) < 0.2,
        }
    )
    table["day"] = table["day"].dt.strftime("%Y-%m-%d %H:%M:%S")
    folder.mkdir(parents=True)
    borders = np.linspace(0, rows, files + 1).astype(int).tolist()
    paths = [folder / f"{number}.parquet" for number in range(files)]
    for number, path in enumerate(paths):
        table.iloc[borders[number] : borders[number + 1]].to_parquet(path)
    return paths


# -- in the started process


def main() -> None:
    import daskprep.passes.state
    import daskprep.storage.layout

    for module in _IMPORTED:
        importlib.import_module(module)
    # Small data has many parts, and vocabularies in separate files.
    daskprep.storage.layout._PART_BYTES = 20_000
    daskprep.passes.state.LARGE_VOCABULARY = 100
    for line in sys.stdin:
        print(json.dumps(dataclasses.asdict(_run(Job(**json.loads(line))))), flush=True)


def _run(job: Job) -> Result:
    """Write in a separate process and wait until it ends."""
    begun = time.perf_counter()
    out, into = os.pipe()
    process = os.fork()
    if not process:
        os.close(out)
        _write_and_exit(job, into)
    os.close(into)
    # The pipe ends when the process does.
    if job.kill_after is not None and not select.select([out], [], [], job.kill_after)[0]:
        os.kill(process, signal.SIGKILL)
    with os.fdopen(out, "rb") as pipe:
        report = pipe.read()
    _, status = os.waitpid(process, 0)
    seconds = time.perf_counter() - begun
    return Result(os.waitstatus_to_exitcode(status), seconds, **(json.loads(report) if report else {}))


def _write_and_exit(job: Job, into: int) -> None:
    report: dict[str, Any] = {}
    try:
        warnings.simplefilter("ignore")
        report["steps"] = _count_steps(job)
        _write(job)
    except BaseException as error:
        report |= {"error": type(error).__name__, "message": str(error)}
    with os.fdopen(into, "wb") as pipe:
        pipe.write(json.dumps(report).encode())
    os._exit(1 if "error" in report else 0)


def _write(job: Job) -> None:
    import dask
    import dask.dataframe as dd
    import pandas as pd

    import daskprep as dp
    from daskprep.dataset.writing import repair
    from daskprep.errors import DatasetExistsError
    from daskprep.sources import as_source

    if job.erase is not None:
        dp.erase(**job.erase)
        return
    if job.delete is not None or job.purge:
        dataset = dp.open_dataset(job.path)
        _ = dataset.purge() if job.purge else dataset.delete(job.delete, part=0)
        return
    features: dict[str, Any] = {
        "price": dp.Number(missing_value_strategy="ffill" if job.filling else "drop_row"),
        "city": dp.Category(),
        "tags": dp.Set(),
        "review": dp.Text(),
        "series": dp.Timeseries(),
        "day": dp.Date(),
        "sold": dp.Binary(),
    }
    split, balance = dp.StratifiedSplit("city", (0.7, 0.1, 0.2), seed=job.seed), dp.Oversample("sold", ratio=0.5)
    prep = dp.Preprocessor(features, split=split, balance=balance)
    frame: Any = as_source(job.source, partition_bytes=job.partition_bytes)
    if job.frame is not None:
        table = pd.concat([pd.read_parquet(path) for path in job.source], ignore_index=True)
        borders = [sum(job.frame[:number]) for number in range(len(job.frame) + 1)]
        pieces = [table.iloc[start:stop] for start, stop in itertools.pairwise(borders)]
        frame = dd.from_map(lambda piece: piece, pieces, meta=table.iloc[:0])
    with dask.config.set(scheduler=job.scheduler):
        if job.repair:
            repair(job.path, progress=False, trusted=True)
            return
        if job.append:
            prep = dp.Preprocessor.from_dataset(job.path)
            prep.grow(frame)
            prep.append(frame, job.path, progress=False)
            return
        write = prep.fit(frame).write if job.fitted else prep.fit_write
        options = {"block_rows": job.block_rows, "version": job.version, "shuffle": job.shuffle, "progress": False}
        try:
            write(frame, job.path, overwrite=job.overwrite, **options)
        except DatasetExistsError:  # an older one; the same one is left as it is
            write(frame, job.path, overwrite=True, **options)


def _count_steps(job: Job) -> list[str]:
    """Record every call that changes files, and trigger the fault of the job before one of them."""
    steps: list[str] = []

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def step(target: Any, *arguments: Any, **options: Any) -> Any:
            if name == "open" and not arguments[0] & os.O_CREAT:
                return call(target, *arguments, **options)
            step_text = f"{name} {arguments[0] if name in {'replace', 'link'} else _path(target, options)}"
            if len(steps) == job.kill_at or (job.kill_on is not None and re.search(job.kill_on, step_text)):
                if name == "write":
                    call(target, arguments[0][: len(arguments[0]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            if len(steps) == job.limit_at:
                resource.setrlimit(resource.RLIMIT_FSIZE, (job.limit_bytes, resource.RLIM_INFINITY))
            steps.append(step_text)
            # A kill does not lose data that is not flushed, and flushing is slow.
            return None if name == "fsync" else call(target, *arguments, **options)

        return step

    for name in _STEPS:
        setattr(os, name, noted(name, getattr(os, name)))
    return steps


def _path(target: Any, options: dict[str, Any]) -> str:
    """Return the path of a call: a path, a descriptor, or a path relative to a descriptor."""
    folder = options.get("dir_fd")
    opened = folder if folder is not None else target if isinstance(target, int) else None
    if opened is None:
        return os.fspath(target)
    base = Path(f"/proc/self/fd/{opened}").readlink()
    return str(base if folder is None else base / target)


if __name__ == "__main__":
    main()
