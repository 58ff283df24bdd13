"""Processes of this machine, started for one call on large sources: the same bytes, and no process is left running."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import dask
import nbformat
import numpy as np
import pandas as pd
import psutil
import pytest
from distributed import Client

import daskprep as dp
from daskprep.errors import ConfigError, WorkerError
from daskprep.sources import estimate_bytes, partitions
from daskprep.sources.partitions import processes, schedulers
from tests.repository.test_notebooks import RUNNER, notebook_of, stream_text

GB = 10**9
ROWS = 600


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=ROWS), "c": rng.choice(list("abc"), ROWS), "t": "one two"})
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    frame.to_parquet(path, row_group_size=50)
    return path


@pytest.fixture
def source(path) -> dp.Source:
    return dp.read_files(path, partitions=8)


@pytest.fixture
def started(monkeypatch, sizes) -> list[int]:
    """Count processes instead of starting them, on a machine of 16 cores."""
    counts: list[int] = []
    sizes(cores=16)
    monkeypatch.setattr(
        "daskprep.sources.partitions.processes.LocalWorkers", lambda count, **_: counts.append(count) or _Nothing()
    )
    return counts


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def preprocessor() -> dp.Preprocessor:
    return dp.Preprocessor({"x": "number", "c": "category", "t": "text"}, split=dp.RandomSplit())


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a dataset except its manifest, which has times."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != "manifest.json"
    }


@pytest.mark.parametrize(
    ("cores", "nbytes", "count"),
    [
        (16, None, 0),
        (16, 10_000_000, 0),
        (16, 5 * GB, 16),
        (8, 5 * GB, 8),
        (4, 100 * GB, 4),
        (2, 1000 * GB, 0),
        (1, 1000 * GB, 0),
    ],
)
def test_choose_workers_uses_processes_for_large_sources(cores, nbytes, count):
    assert schedulers.choose_workers(nbytes, cores) == count


def test_choose_workers_is_limited_by_memory():
    assert schedulers.choose_workers(100 * GB, 16, 6) == 6
    assert schedulers.choose_workers(100 * GB, 16, 1) == 0


def test_small_source_uses_threads_and_workers_sets_processes(source, path, started):
    preprocessor().fit(source)
    preprocessor().fit(source, workers="threads")
    assert started == []
    preprocessor().fit(source, workers=3)
    dp.infer_features(path, workers=2)
    assert started == [3, 2]


def test_large_source_uses_all_cores_within_memory(source, sizes, started, tmp_path):
    sizes(seconds_per_byte=1.0)
    preprocessor().fit(source)
    preprocessor().fit_write(source, tmp_path / "a.dp", memory="4GB")
    assert started == [16, 8]


def test_estimate_bytes_does_not_open_files(tmp_path, path, monkeypatch):
    (tmp_path / "rows.jsonl").write_text('{"x": 1.0}\n' * 100)
    monkeypatch.setattr("daskprep.sources.opening.read_files", None)
    assert estimate_bytes(tmp_path / "rows.jsonl") == int(2.3 * 1_100)
    assert estimate_bytes({"train": str(path), "test": [tmp_path / "rows.jsonl"]}) > path.stat().st_size


def test_rows_in_memory_start_no_processes(path, started):
    frame = pd.read_parquet(path)
    preprocessor().fit(frame, workers=4)
    preprocessor().fit({"train": frame}, workers=4)
    assert started == []


def test_unpicklable_function_uses_threads_by_default(source, sizes, started):
    sizes(seconds_per_byte=1.0)
    lock = threading.Lock()

    def wait(rows: pd.DataFrame) -> pd.DataFrame:
        with lock:
            return rows

    preprocessor().fit(dp.prepared(source, wait))
    assert started == []
    preprocessor().fit(dp.prepared(source, pd.DataFrame.copy))
    assert started == [16]


def test_configured_scheduler_or_client_is_used(source, started):
    with dask.config.set(scheduler="synchronous"):
        preprocessor().fit(source, workers=4)
    with Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"):
        preprocessor().fit(source, workers=4)
    assert started == []


@pytest.mark.parametrize("workers", [0, -1, True, "processes", 2.0])
def test_invalid_workers_raise(source, workers):
    with pytest.raises(ConfigError, match=r'workers=.*: expected a number of processes, "threads", or None'):
        preprocessor().fit(source, workers=workers)


def test_use_client_applies_to_its_thread_only():
    seen = []
    with Client(n_workers=1, threads_per_worker=1, processes=False, set_as_default=False) as client:
        with partitions.use_client(client):
            other = threading.Thread(target=lambda: seen.append(partitions.is_distributed()))
            other.start()
            other.join()
            assert partitions.is_distributed()
        assert not partitions.is_distributed()
    assert seen == [False]


def test_failed_process_start_warns_by_default_and_raises_with_workers(source, monkeypatch, sizes):
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr("asyncio.create_subprocess_exec", refuse)
    with pytest.raises(WorkerError, match=r'2 processes could not be started.*no more processes.*workers="threads"'):
        preprocessor().fit(source, workers=2)
    sizes(cores=4, seconds_per_byte=1.0)
    with pytest.warns(UserWarning, match="so threads are used"):
        preprocessor().fit(source)


def test_process_killed_at_its_start_raises_at_once(source, monkeypatch, sizes):
    start = processes._CommandWorker._start

    async def start_and_kill(worker: processes._CommandWorker) -> None:
        await start(worker)
        if worker.process is not None and next(number) == 1:
            worker.process.kill()

    number = itertools.count()
    monkeypatch.setattr(processes._CommandWorker, "_start", start_and_kill)
    sizes(worker_start_seconds=1_000.0)  # the test would not end
    with pytest.raises(WorkerError, match=r"one ended with status -9 as it started.*workers=\"threads\""):
        preprocessor().fit(source, workers=2)


def test_unpicklable_function_raises_with_a_client(source):
    lock = threading.Lock()

    def wait(rows: pd.DataFrame) -> pd.DataFrame:
        with lock:
            return rows

    with (
        Client(n_workers=1, threads_per_worker=1, processes=False, set_as_default=False) as client,
        partitions.use_client(client),
        pytest.raises(WorkerError, match=r'cannot be sent to other processes \(.*lock.*workers="threads"'),
    ):
        preprocessor().fit(dp.prepared(source, wait))


def test_nested_use_client_none_keeps_the_client(source):
    with (
        Client(n_workers=1, threads_per_worker=1, processes=False, set_as_default=False) as client,
        partitions.use_client(client),
        partitions.use_client(None),
    ):
        assert partitions.is_distributed()


@pytest.mark.slow
@pytest.mark.cluster
def test_all_calls_on_processes_equal_threads_and_leave_none_running(source, tmp_path, capsys):
    expected = preprocessor().fit_write(source, tmp_path / "threads.dp", workers="threads")
    prep = preprocessor()
    written = prep.fit_write(source, tmp_path / "processes.dp", workers=2, progress=True)
    assert "on 2 processes" in capsys.readouterr().err
    assert bytes_of(tmp_path / "processes.dp") == bytes_of(tmp_path / "threads.dp")
    assert written.manifest.files.keys() == expected.manifest.files.keys()
    assert preprocessor().fit(source, workers=2).to_dict() == prep.to_dict()
    prep.write(source, tmp_path / "again.dp", workers=2)
    prep.write(source, tmp_path / "on_threads.dp", workers="threads")
    assert bytes_of(tmp_path / "again.dp") == bytes_of(tmp_path / "on_threads.dp")
    assert str(dp.infer_features(source, workers=2)) == str(dp.infer_features(source, workers="threads"))
    for on_processes, on_threads in zip(
        prep.stream(source, 100, workers=2), prep.stream(source, 100, workers="threads"), strict=True
    ):
        assert all(on_processes[name].equal(on_threads[name]) for name in on_threads)
    abandoned = iter(prep.stream(source, 100, workers=2))
    next(abandoned)
    del abandoned
    left = [process for process in psutil.Process().children(recursive=True) if "--spec" in process.cmdline()]
    assert left == []


@pytest.mark.slow
@pytest.mark.cluster
def test_killed_process_does_not_change_the_dataset(source, tmp_path):
    def kill_once(rows: pd.DataFrame) -> pd.DataFrame:
        if len(rows) and os.getpid() != parent:
            marker = tmp_path / f"killed-{len(list(tmp_path.glob('killed-*')))}"
            if marker.name in ("killed-0", "killed-1"):
                marker.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return rows

    parent = os.getpid()
    rows = dp.prepared(source, kill_once)
    preprocessor().fit_write(rows, tmp_path / "killed.dp", workers=2)
    assert len(list(tmp_path.glob("killed-*"))) == 2
    preprocessor().fit_write(dp.prepared(source, kill_once), tmp_path / "threads.dp", workers="threads")
    assert bytes_of(tmp_path / "killed.dp") == bytes_of(tmp_path / "threads.dp")


@pytest.mark.slow
@pytest.mark.cluster
def test_process_killed_in_each_pass_does_not_change_the_dataset(source, tmp_path, monkeypatch):
    compute, killed = schedulers._gather_as_completed, []

    def kill_and_compute(*arguments: Any) -> list[Any]:
        """Kill a worker that the scheduler still lists, whenever the tasks of a pass are sent."""
        supervisors = [process for process in psutil.Process().children() if "--spec" in process.cmdline()]
        workers = [worker for process in supervisors for worker in process.children() if worker.pid not in killed]
        workers[0].kill()
        killed.append(workers[0].pid)
        return compute(*arguments)

    expected = preprocessor().fit_write(source, tmp_path / "threads.dp", workers="threads")
    monkeypatch.setattr(schedulers, "_gather_as_completed", kill_and_compute)
    written = preprocessor().fit_write(source, tmp_path / "killed.dp", workers=2)
    assert bytes_of(tmp_path / "killed.dp") == bytes_of(tmp_path / "threads.dp")
    assert written.manifest.files.keys() == expected.manifest.files.keys()
    assert len(killed) > 2


@pytest.mark.slow
@pytest.mark.cluster
def test_processes_stay_within_the_memory_of_a_write(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(6):
        texts = [" ".join(map(str, row)) for row in rng.integers(0, 10_000, (20_000, 20))]
        pd.DataFrame({"t": texts}).to_parquet(tmp_path / f"{number}.parquet")
    prep, peaks, ended = dp.Preprocessor({"t": "text"}), [0], threading.Event()

    def watch() -> None:
        here = psutil.Process()
        before = here.memory_info().rss
        while not ended.wait(0.05):
            total = here.memory_info().rss - before
            for process in here.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    total += process.memory_info().rss
            peaks.append(total)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        prep.fit_write(str(tmp_path / "*.parquet"), tmp_path / "a.dp", workers=2, memory="1500MB")
    finally:
        ended.set()
        watcher.join()
    assert 400_000_000 < max(peaks) < 1_500_000_000


SCRIPT = """
import sys, threading
import daskprep as dp

class Shout(dp.Category):
    pass

def double(rows):
    return rows.assign(x=rows["x"] * 2)

def run():
    rows = dp.prepared(dp.read_files(sys.argv[1], partitions=8), double)
    prep = dp.Preprocessor({"x": "number", "c": Shout()}).fit(rows, workers=2)
    print(prep.learned_["c"].vocabulary.tokens[-1], round(prep.learned_["x"].mean, 6))

run()
service = threading.Thread(target=run)
service.start()
service.join()
"""


@pytest.mark.slow
@pytest.mark.cluster
def test_script_without_main_guard_runs_on_processes(path, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert lines[0] == lines[1]


@pytest.mark.slow
@pytest.mark.cluster
def test_notebook_function_runs_on_processes(path, tmp_path):
    source = f"""
        import daskprep as dp
        def double(rows):
            return rows.assign(x=rows["x"] * 2)
        rows = dp.prepared(dp.read_files({str(path)!r}, partitions=8), double)
        print(sorted(dp.Preprocessor({{"x": "number"}}).fit_write(rows, {str(tmp_path / "a.dp")!r}, workers=2)))
    """
    nbformat.write(notebook_of(textwrap.dedent(source)), tmp_path / "processes.ipynb")
    ran = RUNNER["run"](tmp_path / "processes.ipynb")
    assert stream_text(ran, "stdout") == "['train']\n"
