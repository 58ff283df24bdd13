"""What stands for Dask's own `Task`, `DataNode`, `TaskRef` and `List` where they are gone: graphs of tuples.

These Dask documents too, as its older kind. It looks for keys among all that a tuple holds, so arguments that are no
references hide in the function that is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    for argument in arguments:
        if isinstance(argument, TaskRef):
            needed.append(argument.key)
        elif isinstance(argument, List):
            needed.extend(reference.key for reference in argument.references)
    return _Call(function, arguments), *needed


def DataNode(key: Any, value: Any) -> tuple[Any, ...]:  # noqa: N802
    """Return a task that gives a value."""
    return Task(key, _same, value)


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class _Place:
    """Where a result goes, or a list of so many."""

    count: int | None


class _Call:
    """Called with the results that are needed, calls a function with all its arguments."""

    def __init__(self, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
        self.function = function
        self.arguments = [_place(argument) for argument in arguments]

    def __call__(self, *results: Any) -> Any:
        left = iter(results)
        return self.function(*[_filled(argument, left) for argument in self.arguments])


def _place(argument: Any) -> Any:
    if isinstance(argument, TaskRef):
        return _Place(None)
    return _Place(len(argument.references)) if isinstance(argument, List) else argument


def _filled(argument: Any, results: Iterator[Any]) -> Any:
    if not isinstance(argument, _Place):
        return argument
    return next(results) if argument.count is None else list(islice(results, argument.count))
