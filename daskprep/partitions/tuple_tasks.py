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


def reference_future(future: Any) -> Any:
    """Return what stands for the result of a future, as an argument of a task.

    A key says nothing to a graph that does not have it; the future itself does.
    """
    return TaskRef(future)


def Task(key: Any, function: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:  # noqa: N802
    """Return a task that calls a function with arguments and the results of others."""
    del key
    needed: list[Any] = []
    argument_slots: list[tuple[str, Any]] = []
    for argument in arguments:
        if isinstance(argument, TaskRef):
            needed.append(argument.key)
            argument_slots.append(("result", None))
        elif isinstance(argument, List):
            needed.extend(reference.key for reference in argument.references)
            argument_slots.append(("results", len(argument.references)))
        else:
            argument_slots.append(("value", argument))
    return functools.partial(_call_with_results, function, argument_slots), *needed


def DataNode(key: Any, value: Any) -> tuple[Any, ...]:  # noqa: N802
    """Return a task that gives a value."""
    return Task(key, _identity, value)


def _call_with_results(function: Callable[..., Any], arguments: Sequence[tuple[str, Any]], *results: Any) -> Any:
    """Call a function with all its arguments, of which some are results, or lists of so many."""
    remaining = iter(results)
    return function(
        *[
            one if kind == "value" else next(remaining) if kind == "result" else list(islice(remaining, one))
            for kind, one in arguments
        ]
    )


def _identity(value: Any) -> Any:
    return value


def avoid_tokenizing(graph: Any) -> Any:
    """Return what is given: a graph that a client reads, to name it."""
    return graph
