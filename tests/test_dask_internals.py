"""What is relied on of Dask that it does not document; a release that changes it is to fail here."""

from __future__ import annotations

import ast
import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import distributed
import numpy as np
import pytest
from distributed import Client, worker_client

import daskprep
from daskprep import partitions
from daskprep.partitions import dask_internals, feeding, graphs, schedulers, tuple_tasks

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


def test_no_other_module_imports_what_is_not_documented():
    package = Path(daskprep.__file__).parent
    used = {path.relative_to(package).as_posix(): imported(path) - DOCUMENTED for path in package.rglob("*.py")}
    assert {path for path, names in used.items() if names} == {"partitions/dask_internals.py"}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """One worker with one thread."""
    with Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as client:
        yield client


class Unread:
    """An argument that cannot be looked at to make a name of it."""

    def __dask_tokenize__(self):
        raise AssertionError


def test_clients_do_not_look_at_all_that_tasks_are_given(client):
    layer = {"given": graphs.Task("given", len, [Unread()])}
    assert schedulers.compute(layer, ["given"]) == [1]


def joined(*arguments):
    return list(arguments)


def a_graph():
    """Make a graph whose arguments look like keys, tasks and lists of them."""
    task, data, reference = graphs.Task, graphs.DataNode, graphs.TaskRef
    return {
        "x": data("x", (print, "y")),
        ("y", 0): task(("y", 0), joined, "x", ("y", 0), [reference]),
        "z": task("z", joined, reference("x"), "x", graphs.references(["x", ("y", 0)]), reference(("y", 0)), None),
        "w": task("w", joined),
    }


@pytest.mark.usefixtures("task_kind")
@pytest.mark.parametrize("scheduler", ["sync", "threads", "client"])
def test_references_are_replaced_and_nothing_else_is(scheduler, client):
    x = (print, "y")
    y = ["x", ("y", 0), [graphs.TaskRef]]
    get = client.get if scheduler == "client" else dask.base.get_scheduler(scheduler=scheduler)
    assert list(get(a_graph(), ["z", "x", "w"])) == [[x, "x", [x, y], y, None], x, []]


@pytest.mark.usefixtures("task_kind")
def test_tasks_are_made_by_what_they_refer_to():
    found = dask_internals.tasks_behind(a_graph(), "z")
    assert found - {"x"} == {"z", ("y", 0)}  # "x" is a value, which may be a task


def test_values_in_a_graph_are_no_tasks():
    graph = {"x": dask_internals.DataNode("x", 1), "y": [1]}
    assert [dask_internals.tasks_behind(graph, key) for key in graph] == [set(), set()]


@pytest.mark.usefixtures("task_kind")
def test_arrays_of_blocks_are_read_where_they_are_used():
    arrays = partitions.blocks(
        "double",
        lambda factor, number: np.full(2, factor * number),
        2,
        [1, 2, 3],
        rows=[2, 2, 2],
        like=np.empty(0, int),
    )
    assert arrays[1:].sum().compute(scheduler="sync") == 22


@pytest.mark.usefixtures("task_kind")
def test_a_task_may_refer_to_what_a_cluster_holds(client):
    (future,) = client.get({"held": graphs.DataNode("held", [1, 2])}, ["held"], sync=False)
    assert client.get({"sum": graphs.Task("sum", sum, feeding.result_of(future))}, "sum") == 3


def test_tuples_stand_in_where_tasks_are_gone():
    code = """if True:
        import sys, dask.array, dask.dataframe
        module, sys.modules["dask._task_spec"] = sys.modules["dask._task_spec"], None
        from daskprep import partitions
        sys.modules["dask._task_spec"] = module
        from daskprep.partitions import passes
        print(passes.Task.__module__, partitions.run("add", lambda shared, i: shared + i, 1, [1, 2]))
    """
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split("\n")[0] == f"{tuple_tasks.__name__} [2, 3]"
    assert graphs.Task.__module__ == "dask._task_spec"


def test_the_scheduler_is_that_of_compute(client):
    assert dask_internals.chosen_scheduler().__self__ is client
    with dask.config.set(scheduler="threads"):
        assert dask_internals.chosen_scheduler() is dask.threaded.get
    with dask.config.set(scheduler="processes"):
        assert dask_internals.chosen_scheduler() is dask.multiprocessing.get
    with dask.config.set(scheduler="sync"):
        assert dask_internals.chosen_scheduler() is dask_internals.get_sync


def test_an_executor_and_its_size_are_found():
    assert dask_internals.executor_of(dask.threaded.get) is None
    with ThreadPoolExecutor(3) as pool, dask.config.set(scheduler=pool):
        assert dask_internals.executor_of(dask_internals.chosen_scheduler()) == (pool, 3)


def test_there_is_a_core():
    assert dask_internals.CPU_COUNT >= 1


def test_workers_answer_by_address_or_with_their_error(client):
    (address,) = client.scheduler_info()["workers"]
    assert dask_internals.ask_workers(client, int, "7", seconds=60) == {address: 7}
    (error,) = dask_internals.ask_workers(client, int, "x", seconds=60).values()
    assert isinstance(error, ValueError)
    with pytest.raises(TimeoutError):
        dask_internals.ask_workers(client, asyncio.sleep, 1, seconds=0.01)


@pytest.mark.parametrize("has_seceded", [False, True])
def test_a_task_that_waits_lets_another_use_its_thread(client, has_seceded):
    def inner():
        return "inner"

    def waits():
        distributed.get_client().submit(inner, key=f"inner-{has_seceded}").result(timeout=120)
        return "outer"

    def outer():
        if not has_seceded:
            with dask_internals.seceded():
                return waits()
        with worker_client(), dask_internals.seceded():
            return waits()

    assert client.submit(outer, key=f"outer-{has_seceded}").result(timeout=120) == "outer"


def test_who_waits_outside_of_tasks_does_not_secede(client):
    with dask_internals.seceded():
        assert client.submit(int, "7").result() == 7
