"""Undocumented behavior of Dask that daskprep relies on; a release that changes it fails here."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import distributed
import numpy as np
import pytest
from distributed import Client, worker_client

import daskprep
from daskprep.sources import partitions
from daskprep.sources.partitions import dask_internals, graphs, schedulers

DOCUMENTED = {
    "dask",
    "dask.array",
    "dask.callbacks",
    "dask.dataframe",
    "dask.highlevelgraph",
    "dask.multiprocessing",
    "dask.optimization",
    "dask.threaded",
    "distributed",
}


def imported(path: Path) -> set[str]:
    """Return the modules of Dask and distributed that a file imports from."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if re.match(r"(dask|distributed)(\.|$)", name)}


def test_other_modules_import_only_documented_dask_names():
    package = Path(daskprep.__file__).parent
    used = {path.relative_to(package).as_posix(): imported(path) - DOCUMENTED for path in package.rglob("*.py")}
    assert {path for path, names in used.items() if names} == {
        "sources/partitions/dask_internals.py",
        "sources/partitions/processes.py",
    }


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """One worker with one thread."""
    with Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as client:
        yield client


class Unread:
    """An argument that cannot be tokenized."""

    def __dask_tokenize__(self):
        raise AssertionError


def test_clients_do_not_inspect_task_arguments(client):
    layer = {"given": graphs.Task("given", len, [Unread()])}
    assert schedulers.compute(layer, ["given"]) == [1]


def joined(*arguments):
    return list(arguments)


def a_graph():
    """Return a graph whose arguments look like keys, tasks and lists of them."""
    task, data, reference = graphs.Task, graphs.DataNode, graphs.TaskRef
    return {
        "x": data("x", (print, "y")),
        ("y", 0): task(("y", 0), joined, "x", ("y", 0), [reference]),
        "z": task(
            "z", joined, reference("x"), "x", graphs.reference_results(["x", ("y", 0)]), reference(("y", 0)), None
        ),
        "w": task("w", joined),
    }


@pytest.mark.parametrize("scheduler", ["sync", "threads", "client"])
def test_only_task_references_are_replaced(scheduler, client):
    x = (print, "y")
    y = ["x", ("y", 0), [graphs.TaskRef]]
    get = client.get if scheduler == "client" else dask.base.get_scheduler(scheduler=scheduler)
    assert list(get(a_graph(), ["z", "x", "w"])) == [[x, "x", [x, y], y, None], x, []]


def test_find_upstream_tasks_follows_references():
    found = dask_internals.find_upstream_tasks(a_graph(), "z")
    assert found - {"x"} == {"z", ("y", 0)}  # "x" is a value, which may be a task


def test_values_in_a_graph_are_not_tasks():
    graph = {"x": dask_internals.DataNode("x", 1), "y": [1]}
    assert [dask_internals.find_upstream_tasks(graph, key) for key in graph] == [set(), set()]


def test_blocks_of_chunked_arrays_are_computed_separately():
    arrays = partitions.build_chunked_array(
        "double",
        lambda factor, number: np.full(2, factor * number),
        2,
        [1, 2, 3],
        rows=[2, 2, 2],
        like=np.empty(0, int),
    )
    assert arrays[1:].sum().compute(scheduler="sync") == 22


def test_task_can_refer_to_a_future_key(client):
    (future,) = client.get({"held": graphs.DataNode("held", [1, 2])}, ["held"], sync=False)
    assert client.get({"sum": graphs.Task("sum", sum, graphs.TaskRef(future.key))}, "sum") == 3


def test_chosen_scheduler_equals_that_of_compute(client):
    choose = dask_internals.chosen_scheduler
    assert choose().__self__ is client
    expected = {
        "threads": dask.threaded.get,
        "processes": dask.multiprocessing.get,
        "sync": dask.get,
        dask.get: dask.get,
    }
    for scheduler, get in expected.items():
        with dask.config.set(scheduler=scheduler):
            assert choose() is get


def test_find_executor_returns_pool_and_size():
    assert dask_internals.find_executor(dask.threaded.get) is None
    with ThreadPoolExecutor(3) as pool, dask.config.set(scheduler=pool):
        assert dask_internals.find_executor(dask_internals.chosen_scheduler()) == (pool, 3)


def test_cpu_count_is_positive():
    assert dask_internals.CPU_COUNT >= 1


def test_call_workers_returns_results_or_errors_by_address(client):
    (address,) = client.scheduler_info()["workers"]
    assert dask_internals.call_workers(client, int, "7", seconds=60) == {address: 7}
    (error,) = dask_internals.call_workers(client, int, "x", seconds=60).values()
    assert isinstance(error, ValueError)
    with pytest.raises(TimeoutError):
        dask_internals.call_workers(client, asyncio.sleep, 1, seconds=0.01)


@pytest.mark.parametrize("has_seceded", [False, True])
def test_waiting_task_secedes_from_its_thread(client, has_seceded):
    def inner():
        return "inner"

    def waits():
        distributed.get_client().submit(inner, pure=False).result(timeout=120)
        return "outer"

    def outer():
        if not has_seceded:
            with dask_internals.secede_while_waiting():
                return waits()
        with worker_client(), dask_internals.secede_while_waiting():
            return waits()

    assert client.submit(outer, pure=False).result(timeout=120) == "outer"


def test_waiting_outside_of_tasks_does_not_secede(client):
    with dask_internals.secede_while_waiting():
        assert client.submit(int, "7").result() == 7
