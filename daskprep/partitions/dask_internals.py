"""What is used of Dask and distributed that they do not document; no other module may.

Relied on, each with a test in ``tests/test_dask_internals.py``:

- ``dask._task_spec``: `Task`, `DataNode`, `TaskRef` and `List`, which Dask's specification of graphs describes, but no
  public module has. Where they are gone, `tuple_tasks` stands for them.
- ``dask._expr.LLGExpr`` is the graph as which a client sends a dict, and takes the token that else it would make.
- ``dask.base.get_scheduler`` tells what ``compute`` would use: the `get` of a client, one of Dask's own, or, of an
  executor, a partial of ``dask.local.get_async`` with its `submit` and its size.
- ``dask.core.istask`` tells tasks from values, in graphs of both kinds.
- ``dask.local.get_sync`` runs a graph on the thread that calls it.
- ``dask.system.CPU_COUNT`` goes by what a container may use.
- ``Client.run`` takes ``callback_timeout``, and raises TimeoutError after as many seconds.
- ``distributed.worker.thread_state.key`` is there while a thread runs a task, and
  ``distributed.threadpoolexecutor.thread_state.proceed`` is False once the task has seceded.
"""

from __future__ import annotations

import functools
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

import dask
import dask.threaded
from dask.base import get_scheduler
from dask.core import istask
from dask.local import get_async, get_sync
from dask.optimization import cull
from dask.system import CPU_COUNT

# `Task` and `TaskRef` say which argument is a reference; plain tuples would replace any argument that happens to equal
# a key, and dask.delayed costs 0.7 ms a task.
try:
    from dask._expr import LLGExpr
    from dask._task_spec import DataNode, List, Task, TaskRef
except ImportError:
    from daskprep.partitions.tuple_tasks import (  # type: ignore[assignment]
        DataNode,
        List,
        Task,
        TaskRef,
        result_of,
        unread,
    )
else:

    def result_of(future: Any) -> Any:
        """Return what stands for the result of a future, as an argument of a task."""
        return TaskRef(future.key)

    def unread(graph: Any) -> Any:
        """Return a graph for a client, which would look at all that the tasks are given to name what has a name."""
        return LLGExpr(graph, _determ_token=uuid.uuid4().hex)


Scheduler = Callable[..., Any]


def tasks_behind(graph: Mapping[Any, Any], key: Any) -> set[Any]:
    """Return the keys of all tasks that the value of a key is made by; values in the graph are no tasks."""
    nodes, _ = cull(graph, [key])
    return {one for one, node in nodes.items() if istask(node)}


def chosen_scheduler() -> Scheduler:
    """Return the scheduler that ``compute`` of a Dask collection would use."""
    # get_scheduler imports distributed, which takes a second, only to find that there is no client.
    if dask.config.get("scheduler", None) or "distributed" in sys.modules:
        chosen: Scheduler | None = get_scheduler()
        return chosen or dask.threaded.get
    return dask.threaded.get


def executor_of(get: Scheduler) -> tuple[Executor, int] | None:
    """Return the executor that was given as the scheduler, and how many tasks it runs at a time; None for others."""
    if not (isinstance(get, functools.partial) and get.func is get_async):
        return None
    submit, size = get.args
    return submit.__self__, size


def ask_workers(client: Any, function: Callable[..., Any], *arguments: Any, seconds: float) -> dict[str, Any]:
    """Return what every worker answers, or its error, by its address; TimeoutError if one does not in time."""
    answers: dict[str, Any] = client.run(function, *arguments, on_error="return", callback_timeout=seconds)
    return answers


@contextmanager
def seceded() -> Iterator[None]:
    """Let other tasks use the thread while it waits for them, if a task of a worker is what waits."""
    distributed = sys.modules["distributed"]
    state = distributed.worker.thread_state
    # A task that holds a worker_client() has seceded already, and then does not proceed.
    if not getattr(state, "key", False) or not getattr(distributed.threadpoolexecutor.thread_state, "proceed", True):
        yield
        return
    distributed.secede()
    try:
        yield
    finally:
        distributed.rejoin()
