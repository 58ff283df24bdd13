"""Tasks worth scheduling: each takes some consecutive partitions, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from daskprep.partitions.graphs import keep_freed_memory, on_piece
from daskprep.partitions.schedulers import worker_threads
from daskprep.storage.kept import Kept

# Enough that all threads end at about the same time; a task costs the scheduler and the client a millisecond.
_TASKS_PER_THREAD = 8
# Of a cluster whose workers are still to come.
_UNKNOWN_TASKS = 64
# Columns that are merged together. Eight summaries of so many are in memory at a time, of quantiles some 32 MB.
_CHUNK_KEYS = 64

Gather = Callable[[Iterator[Any]], Any]


def groups(count: int, threads: int | None = None, size: int | None = None) -> list[range]:
    """Cut so many partitions into runs, one for each task: about 8 tasks for each thread, unless told their size."""
    tasks = _TASKS_PER_THREAD * (worker_threads()[1] if threads is None else threads)
    size = size or max(1, count // (tasks or _UNKNOWN_TASKS))
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def on_pieces(
    function: Callable[..., Any],
    shared: Any,
    arguments: Sequence[Any],
    pieces: Sequence[Any],
    columns: list[str],
    gather: Gather,
    run: range,
    kept: Kept | None,
) -> Any:
    """Run a function on pieces of files, of which one is in memory at a time, and gather the results."""

    def make() -> Any:
        given = zip(arguments, pieces, strict=True)
        return gather(on_piece(function, shared, argument, piece, columns) for argument, piece in given)

    return make() if kept is None else kept.result(run, make)


def with_each(function: Callable[[Any, Any], Any], shared: Any, arguments: Sequence[Any]) -> list[Any]:
    """Return what a function gives for each argument."""
    keep_freed_memory()
    return [function(shared, argument) for argument in arguments]


@dataclass(frozen=True)
class Merging:
    """Gathers what partitions give, a pair of something small and a mapping: the small things, and merged mappings.

    ``merge(values)`` merges values of one key. A mapping is cut into chunks of its keys, which are merged apart.
    """

    merge: Callable[[list[Any]], Any]

    def __call__(self, results: Iterable[tuple[Any, Mapping[Any, Any]]]) -> list[Any]:
        told: list[Any] = []
        merged: dict[Any, Any] = {}
        for small, values in results:
            told.append(small)
            merged = {key: self.merge([merged[key], values[key]]) for key in merged} or dict(values)
            del values
        return [told, *({key: merged[key] for key in chunk} for chunk in chunks(list(merged)))]

    def chunk(self, parts: list[Mapping[Any, Any]]) -> dict[Any, Any]:
        """Merge the same chunk of several."""
        return {key: self.merge([part[key] for part in parts]) for key in parts[0]}


def chunks(keys: Sequence[Any]) -> list[Sequence[Any]]:
    """Cut keys into those that are merged together."""
    return [keys[start : start + _CHUNK_KEYS] for start in range(0, len(keys), _CHUNK_KEYS)]
