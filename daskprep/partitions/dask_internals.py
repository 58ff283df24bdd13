"""Undocumented parts of Dask and distributed, used by no other module.

Each is checked when this module is imported or where it is used, and has a replacement that uses only documented parts:

- ``dask._task_spec``: `Task`, `DataNode`, `TaskRef` and `List`. Replaced by `tuple_tasks`, graphs of tuples.
- ``dask._expr.LLGExpr``, the graph that a client sends: takes the token that Dask would otherwise compute. Replaced by
  the graph itself.
- ``dask.base.get_scheduler``: the scheduler that ``compute`` would use. Replaced by the names of Dask's configuration.
- ``dask.core.istask``: distinguishes tasks from values. Replaced by checks of the node.
- ``dask.local.get_async``: what ``compute`` calls with the `submit` of an executor. Without it, `_public_scheduler`
  makes the call.
- ``dask.system.CPU_COUNT``: respects the limits of a container. Replaced by the affinity of the process.
- ``distributed.worker.thread_state.key``, set while a thread runs a task, and
  ``distributed.threadpoolexecutor.thread_state.proceed``, False once the task has seceded. Replaced by ``get_worker``.

``tests/test_dask_internals.py`` tests both ways.
"""

from __future__ import annotations

import functools
import os
import queue
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

import dask
import dask.multiprocessing
import dask.threaded
from dask.optimization import cull

# `TaskRef` marks the arguments that are references; plain tuples would replace any argument that happens to equal a
# key, and dask.delayed costs 0.7 ms a task.
try:
    from dask._expr import LLGExpr
    from dask._task_spec import DataNode, List, Task, TaskRef

    LLGExpr({}, _determ_token=uuid.uuid4().hex)
    if dask.get({"a": DataNode("a", 1), "b": Task("b", sum, List(TaskRef("a")))}, "b") != 1:
        raise ImportError("tasks do not pass lists of results")
except (AttributeError, ImportError, TypeError):
    from daskprep.partitions.tuple_tasks import (  # type: ignore[assignment]
        DataNode,
        List,
        Task,
        TaskRef,
        avoid_tokenizing,
        reference_future,
    )
else:

    def reference_future(future: Any) -> Any:
        """Return a reference to the result of a future, as an argument of a task."""
        return TaskRef(future.key)

    def avoid_tokenizing(graph: Any) -> Any:
        """Return a graph for a client with a random token: computing a token would hash all arguments of tasks."""
        return LLGExpr(graph, _determ_token=uuid.uuid4().hex)


try:
    from dask.system import CPU_COUNT
except ImportError:
    CPU_COUNT = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

try:
    from dask.core import istask
except ImportError:

    def istask(node: Any) -> bool:  # type: ignore[misc]
        """Return whether a node of a graph is a task, and not a value."""
        if isinstance(node, tuple):
            return bool(node) and callable(node[0])
        return hasattr(node, "dependencies") and type(node).__name__ != "DataNode"


Scheduler = Callable[..., Any]
_SCHEDULERS = {
    **dict.fromkeys(("sync", "synchronous", "single-threaded"), dask.get),
    **dict.fromkeys(("threads", "threading"), dask.threaded.get),
    **dict.fromkeys(("processes", "multiprocessing"), dask.multiprocessing.get),
}


def _public_scheduler() -> Scheduler | None:
    """Return the scheduler that ``compute`` would use, or None for the default, from documented parts of Dask."""
    configured = dask.config.get("scheduler", None)
    if isinstance(configured, Executor):
        return functools.partial(dask.threaded.get, pool=configured)
    if configured is not None and configured not in ("distributed", "dask.distributed"):
        return configured if callable(configured) else _SCHEDULERS[configured.lower()]
    try:
        get: Scheduler = sys.modules["distributed"].default_client().get
    except ValueError:
        return None
    return get


try:
    from dask.base import get_scheduler
    from dask.local import get_async
except ImportError:
    get_scheduler, get_async = _public_scheduler, None  # type: ignore[assignment]


def find_upstream_tasks(graph: Mapping[Any, Any], key: Any) -> set[Any]:
    """Return the keys of all tasks of a graph that the value of `key` depends on, with its own task; not of values."""
    nodes, _ = cull(graph, [key])
    return {task_key for task_key, node in nodes.items() if istask(node)}


def chosen_scheduler() -> Scheduler:
    """Return the scheduler that ``compute`` of a Dask collection would use."""
    # get_scheduler imports distributed, which takes a second, only to find that there is no client.
    if dask.config.get("scheduler", None) or "distributed" in sys.modules:
        chosen: Scheduler | None = get_scheduler()
        return chosen or dask.threaded.get
    return dask.threaded.get


def find_executor(get: Scheduler) -> tuple[Executor, int] | None:
    """Return the executor configured as the scheduler and its number of concurrent tasks; None for other schedulers."""
    if not isinstance(get, functools.partial):
        return None
    if get.func is get_async:
        submit, size = get.args
        return submit.__self__, size
    pool = get.keywords.get("pool")
    return None if pool is None else (pool, getattr(pool, "_max_workers", 1))


def call_workers(client: Any, function: Callable[..., Any], *arguments: Any, seconds: float) -> dict[str, Any]:
    """Return the result or the error of a function on every worker, by address; TimeoutError after `seconds`."""
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


def _secede() -> bool:
    """Secede from the worker's pool if this thread runs a task that has not seceded; return whether it seceded now."""
    distributed = sys.modules["distributed"]
    try:
        task, pool = distributed.worker.thread_state, distributed.threadpoolexecutor.thread_state
    except AttributeError:
        try:
            distributed.secede()
        except (KeyError, ValueError):  # already seceded, or no worker
            return False
        return True
    # Inside worker_client() a task has already seceded, and `proceed` is False.
    if not getattr(task, "key", False) or not getattr(pool, "proceed", True):
        return False
    distributed.secede()
    return True


@contextmanager
def secede_while_waiting() -> Iterator[None]:
    """Release the thread of a worker's task for other tasks while the task waits for them; elsewhere do nothing."""
    has_seceded = _secede()
    try:
        yield
    finally:
        if has_seceded:
            sys.modules["distributed"].rejoin()
