"""Graphs of tuples, which replace Dask's `Task`, `DataNode`, `TaskRef` and `List` in versions without them.

Dask documents tuples as tasks. It replaces every item of a tuple that equals a key, so arguments other than references
are bound to the function with `functools.partial`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any


@dataclass(frozen=True)
class TaskRef:
    """A reference to the result of a task, as an argument of another task."""

    key: Any


class List:
    """A list of references to results, as an argument of a task."""

    def __init__(self, *references: TaskRef) -> None:
        self.references = references


def reference_future(future: Any) -> Any:
    """Return a reference to the result of a future, as an argument of a task.

    The reference is the future itself: its key alone would be unknown in a graph without the task.
    """
    return TaskRef(future)


def Task(key: Any, function: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:  # noqa: N802
    """Return a task that calls a function with arguments, in which references are replaced by results."""
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
    """Return a task that returns a value."""
    return Task(key, _identity, value)


def _call_with_results(function: Callable[..., Any], arguments: Sequence[tuple[str, Any]], *results: Any) -> Any:
    """Call a function with its arguments, with one result, or a list of n results, in place of references."""
    remaining = iter(results)
    return function(
        *[
            item if kind == "value" else next(remaining) if kind == "result" else list(islice(remaining, item))
            for kind, item in arguments
        ]
    )


def _identity(value: Any) -> Any:
    return value


def avoid_tokenizing(graph: Any) -> Any:
    """Return the graph unchanged: without `LLGExpr`, the client computes its token."""
    return graph
