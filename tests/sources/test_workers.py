"""Workers that lack the package, have another version, are unresponsive or die raise an error with a remedy."""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import dask
import dask.threaded
import numpy as np
import pandas as pd
import pytest
from dask._task_spec import DataNode, Task, TaskRef
from dask.callbacks import Callback
from distributed import Client, LocalCluster
from distributed.client import FutureCancelledError

import daskprep as dp
from daskprep.dataset.writing import write
from daskprep.errors import ColumnError, WorkerError
from daskprep.sources import partitions
from daskprep.sources.partitions import schedulers


class Unimportable:
    """A function of a module that workers cannot import."""

    def __call__(self, *_: Any) -> None:
        """Never called: workers cannot import the function."""

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, ("daskprep_of_tomorrow",)


@pytest.fixture(scope="module")
def threads() -> Iterator[Client]:
    """Two workers on threads of this process."""
    with Client(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0") as client:
        yield client


def test_run_on_every_worker_returns_all_results(threads):
    assert partitions.run_on_every_worker(int, "7") == [7, 7]


def test_worker_without_a_package_raises(threads):
    with pytest.raises(WorkerError, match=r"worker inproc://.*daskprep_of_tomorrow.*same versions"):
        partitions.run_on_every_worker(Unimportable())


def test_task_without_a_package_raises(threads):
    with pytest.raises(WorkerError, match=r"a worker cannot import .*of_tomorrow.*same versions"):
        partitions.run_tasks("lacking", _import_it, None, [0])
    with pytest.raises(WorkerError, match=r"a worker cannot import .*of_tomorrow.*same versions"):
        partitions.run_tasks("lacking", _import_it, None, [0], advance=print)


def _import_it(shared: Any, argument: Any) -> None:
    importlib.import_module("daskprep_of_tomorrow")


def test_worker_of_another_version_raises(threads, monkeypatch):
    versions = iter(["2.0"])
    monkeypatch.setattr(schedulers, "_version", lambda: next(versions, "1.0"))
    with pytest.raises(WorkerError, match=r"daskprep is 1\.0 on .*, and 2\.0 here: workers need"):
        partitions.run_on_every_worker(int)


def test_unresponsive_worker_times_out(threads, monkeypatch, sizes):
    sizes(worker_answer_seconds=0.01)
    monkeypatch.setattr(schedulers, "_call_if_same_version", _sleep)
    with pytest.raises(WorkerError, match="did not all answer within"):
        partitions.run_on_every_worker(int)


async def _sleep(*_: Any) -> None:
    await asyncio.sleep(1)


def test_worker_that_ends_during_a_call_has_no_result(threads, monkeypatch, sizes):
    (here, _) = threads.nthreads()
    monkeypatch.setattr(schedulers, "call_workers", lambda *_, **__: {here: 7, "tcp://gone:1": OSError("closed")})
    assert partitions.run_on_every_worker(int) == [7]
    sizes(worker_removal_pause=0.0)
    monkeypatch.setattr(schedulers, "call_workers", lambda *_, **__: {here: OSError("closed")})
    with pytest.raises(WorkerError, match="did not answer"):
        partitions.run_on_every_worker(int)


def test_package_errors_are_raised_unchanged(threads):
    with pytest.raises(ColumnError, match="city"):
        partitions.run_on_every_worker(_refuse)


def _refuse() -> None:
    raise ColumnError("city")


def _die(*_: Any) -> None:
    os._exit(1)


def _wait(shared: Any, argument: Any) -> int:
    """Take half a second."""
    time.sleep(0.5)
    return 1


def test_paused_worker_warns_once(threads, monkeypatch, sizes):
    sizes(worker_watch_seconds=0.05)
    monkeypatch.setattr(schedulers, "_known_paused", set())
    asked = Client.scheduler_info

    def pause_one(client: Client, **options: Any) -> Any:
        info = asked(client, **options)
        info["workers"][min(info["workers"])]["status"] = "paused"
        return info

    monkeypatch.setattr(Client, "scheduler_info", pause_one)
    with pytest.warns(UserWarning, match=r"Dask paused worker .* of its memory_limit of .*Start workers with") as found:
        assert partitions.run_tasks("slow", _wait, None, range(4)) == [1] * 4
    assert len(found) == 1


@pytest.fixture
def mortal_worker() -> Iterator[Client]:
    """Start a worker process whose tasks are not rescheduled if it dies."""
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0") as workers,
        Client(workers) as client,
    ):
        client.run_on_scheduler(lambda dask_scheduler: setattr(dask_scheduler, "allowed_failures", 0))
        yield client


@pytest.mark.slow
@pytest.mark.cluster
def test_worker_killed_during_a_check_raises(mortal_worker, monkeypatch, tmp_path):
    monkeypatch.setattr(write, "_check_visible", _die)
    frame = pd.DataFrame({"x": [1.0, 2.0]})
    frame.to_parquet(tmp_path / "x.parquet")
    with pytest.raises(WorkerError, match=r"worker tcp://.* did not answer .*its log says why"):
        dp.Preprocessor({"x": "number"}).fit_write(tmp_path / "x.parquet", tmp_path / "x.dp")
    assert not list((tmp_path / "x.dp").rglob("probe-*"))


@pytest.mark.slow
@pytest.mark.cluster
def test_repeatedly_killed_workers_raise_worker_error(mortal_worker):
    with pytest.raises(WorkerError, match=r"killed for lack of memory.*partition_bytes"):
        partitions.run_tasks("dying", _die, None, [0])


def test_killed_process_of_a_pool_raises_worker_error():
    with (
        dask.config.set(scheduler="processes", num_workers=1),
        pytest.raises(
            WorkerError, match=r"terminated abruptly.*killed for lack of memory: start fewer.*partition_bytes"
        ),
    ):
        partitions.run_tasks("dying", lambda *_: os._exit(1), None, [0])


def test_rows_lost_with_their_client_raise_worker_error():
    message = "the cluster lost rows or tasks .* persist the frame again"
    layer = {"sum": Task("sum", sum, TaskRef("persisted"))}
    with pytest.raises(WorkerError, match=message):
        schedulers._compute(dask.threaded.get, layer, ["sum"])
    with pytest.raises(WorkerError, match=message), schedulers.explain_worker_errors():
        raise FutureCancelledError("sum", "lost dependencies")


def test_scheduler_that_reports_references_counts_each_result_once(monkeypatch):
    """Ray's scheduler calls Dask's callbacks with references instead of results, and takes values apart."""
    reference = type("ObjectRef", (), {"__module__": "ray"})()

    def get(graph: Any, keys: Any, **_: Any) -> list[Any]:
        assert not any(isinstance(node, DataNode) for node in graph.values())
        for key in keys:
            for *_, posttask, _ in Callback.active:
                posttask(key, reference, graph, None, None)
        return [dask.get(graph, key) for key in keys]

    get.__module__ = "ray.util.dask.scheduler"
    monkeypatch.setitem(
        sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True, cluster_resources=lambda: {"CPU": 3.0})
    )
    counted: list[Any] = []
    with dask.config.set(scheduler=get):
        assert partitions.run_tasks("count", _wait, None, [0, 1], advance=counted.append) == [1, 1]
        assert partitions.worker_threads() == (3, 3)
        assert not partitions.is_in_process()
    assert counted == [1, 1]


RAY = """
import sys
import dask, dask.dataframe, ray
from ray.util.dask import ray_dask_get
import daskprep as dp
from daskprep.errors import RejectedValueError

source, target = sys.argv[1:]
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
features = {"x": "number", "c": "category", "t": dp.TextComponents(size=2), "y": "number"}
features["w"] = dp.Timeseries(column="x", window_size=3)
prep = dp.Preprocessor(features, targets=["y"], split=dp.KFold(2, seed=0))
threads = prep.fit_write(source, f"{target}/threads.dp")
with dask.config.set(scheduler=ray_dask_get):
    written = prep.fit_write(dp.read_files(source, partition_bytes=20_000), f"{target}/ray.dp", memory="2GB")
    assert written.digest == threads.digest
    lazy = prep.fit(source).encode(dask.dataframe.read_parquet(source))
    assert lazy["c"].compute().shape == (4_000,)
    assert sum(len(inputs["c"]) for inputs, _ in prep.fold(0).stream(source, batch_size=100)) == 2_000
    try:
        dp.Preprocessor({"t": dp.Number(invalid="raise")}).fit_write(source, f"{target}/never.dp")
    except RejectedValueError as error:
        assert "t" in str(error) and "cannot be read" in str(error), error
    else:
        raise AssertionError("no error")
ray.shutdown()
"""


@pytest.mark.slow
def test_passes_and_streams_run_on_ray(tmp_path):
    """All passes write the bytes of threads on Ray's workers, within a memory limit, and raise the same errors."""
    pytest.importorskip("ray")
    rng = np.random.default_rng(0)
    source = tmp_path / "rows"
    source.mkdir()
    for part in range(4):
        columns = {
            "x": rng.normal(size=1_000),
            "c": rng.choice([*"abcdef"], 1_000),
            "t": rng.choice(["a dog", "a cat"], 1_000),
        }
        pd.DataFrame(columns | {"y": rng.normal(size=1_000)}).to_parquet(source / f"{part}.parquet")
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", RAY, source, tmp_path], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3_000:]
