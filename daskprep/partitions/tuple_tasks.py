"""What stands for Dask's own `Task`, `DataNode`, `TaskRef` and `List` where they are gone: graphs of tuples.

These Dask documents too, as its older kind. It looks for keys among all that a tuple holds, so arguments that are no
references hide in the function that is called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any


@dataclass(frozen=True)
class TaskRef:
    """The result of a task as an argument of another."""

    key: Any


class List:
    """A list of results as an argument of a task."""

    def __init__(self, *references: TaskRef) -> None:
        self.references = references


def result_of(future: Any) -> Any:
    """Return what stands for the result of a future, as an argument of a task.

    A key says nothing to a graph that does not have it; the future itself does.
    """
    return TaskRef(future)


def Task(key: Any, function: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:  # noqa: N802
    """Return a task that calls a function with arguments and the results of others."""
    del key
    needed: list[Any] = []
    given: list[tuple[str, Any]] = []
    for argument in arguments:
        if isinstance(argument, TaskRef):
            needed.append(argument.key)
            given.append(("result", None))
        elif isinstance(argument, List):
            needed.extend(reference.key for reference in argument.references)
            given.append(("results", len(argument.references)))
        else:
            given.append(("value", argument))
    return functools.partial(_called, function, given), *needed


def DataNode(key: Any, value: Any) -> tuple[Any, ...]:  # noqa: N802
    """Return a task that gives a value."""
    return Task(key, _same, value)


def _called(function: Callable[..., Any], arguments: Sequence[tuple[str, Any]], *results: Any) -> Any:
    """Call a function with all its arguments, of which some are results, or lists of so many."""
    left = iter(results)
    return function(
        *[
            one if kind == "value" else next(left) if kind == "result" else list(islice(left, one))
            for kind, one in arguments
        ]
    )


def _same(value: Any) -> Any:
    return value


def unread(graph: Any) -> Any:
    """Return what is given: a graph that a client reads, to name it."""
    return graph
