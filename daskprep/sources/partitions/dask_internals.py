"""Undocumented parts of Dask and distributed, used by no other module.

- ``dask._task_spec``: `Task`, `DataNode`, `TaskRef` and `List`, which Dask's specification of graphs describes. The
  tuples that they replace are deprecated.
- ``dask._expr.LLGExpr``, the graph that a client sends: takes the token that Dask would otherwise compute.
- ``Expr.simplify``, ``lower_completely`` and ``fuse`` of a frame: what ``optimize`` calls.
- ``dask.base.get_scheduler``: the scheduler that ``compute`` would use.
- ``dask.core.istask``: distinguishes tasks from values.
- ``dask.local.get_async``: what ``compute`` calls with the `submit` of an executor.
- ``dask.system.CPU_COUNT``: respects the limits of a container.

``tests/sources/test_dask_internals.py`` fails with a release of Dask that changes one.
"""

from __future__ import annotations

import functools
import queue
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

import dask
import dask.threaded
from dask._expr import LLGExpr

# `TaskRef` marks the arguments that are references; plain tuples would replace any argument that happens to equal a
# key, and dask.delayed costs 0.7 ms a task.
from dask._task_spec import DataNode, List, Task, TaskRef
from dask.base import get_scheduler
from dask.core import istask
from dask.local import get_async
from dask.optimization import cull
from dask.system import CPU_COUNT

Scheduler = Callable[..., Any]


def avoid_tokenizing(graph: Any) -> Any:
    """Return a graph with a random token: Dask's would hash all arguments."""
    return LLGExpr(graph, _determ_token=uuid.uuid4().hex)


def optimize_frame(frame: Any) -> Any:
    """Return a frame of the same partitions that reads the necessary columns alone.

    ``frame.optimize()`` joins small partitions of Parquet files too, to a number that depends on the columns.
    """
    return type(frame)(frame.expr.simplify().lower_completely().simplify().fuse())


def find_upstream_tasks(graph: Mapping[Any, Any], key: Any) -> set[Any]:
    """Return the keys of all tasks that `key` depends on."""
    nodes, _ = cull(graph, [key])
    return {task_key for task_key, node in nodes.items() if istask(node)}


def chosen_scheduler() -> Scheduler:
    """Return the `get` function of the scheduler that ``compute`` of a Dask collection would use."""
    # get_scheduler imports distributed, which takes a second, only to find that there is no client.
    if dask.config.get("scheduler", None) or "distributed" in sys.modules:
        chosen: Scheduler | None = get_scheduler()
        return chosen or dask.threaded.get
    return dask.threaded.get


def find_executor(get: Scheduler) -> tuple[Executor, int] | None:
    """Return Dask's executor and its number of tasks, or None."""
    if not isinstance(get, functools.partial):
        return None
    if get.func is get_async:
        submit, size = get.args
        return submit.__self__, size
    pool = get.keywords.get("pool")
    return None if pool is None else (pool, getattr(pool, "_max_workers", 1))


def call_workers(client: Any, function: Callable[..., Any], *arguments: Any, seconds: float) -> dict[str, Any]:
    """Return the result or error of a function on every worker, by address; TimeoutError if one is late."""
    outcomes: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcomes.put((client.run(function, *arguments, on_error="return"), None))
        except BaseException as error:
            outcomes.put((None, error))  # raised below

    # A daemon thread: a worker may never answer, and must not keep the program from ending.
    threading.Thread(target=run, name="daskprep-call", daemon=True).start()
    try:
        results, error = outcomes.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"not all workers answered within {seconds} seconds") from None
    if error is not None:
        raise error
    return dict(results)


@contextmanager
def secede_while_waiting() -> Iterator[None]:
    """Release a worker's thread while its task waits for others."""
    distributed = sys.modules["distributed"]
    try:
        distributed.secede()
    except (KeyError, ValueError):  # already seceded, as in worker_client(), or no task of a worker
        yield
        return
    try:
        yield
    finally:
        distributed.rejoin()
