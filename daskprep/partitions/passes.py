"""What can be done with all partitions of a source: run a function over each, merge, exchange, or make arrays.

Functions are called as ``function(shared, argument, table)``. Neither of the first two holds rows; tables exist only
inside a task.
A task takes some consecutive partitions, one after the other, so that there are about 8 tasks for each thread. Only a
partition of a Dask frame, or of lazy arrays, has a task of its own: together they would be in memory at once.
Sources in this process's memory (pandas, NumPy) never enter a graph: their partitions are slices that threads work
on where they are.
"""

from __future__ import annotations

from collections import ChainMap, UserDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import getitem, itemgetter
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import pyarrow as pa
from dask.highlevelgraph import HighLevelGraph

from daskprep.partitions.dask_internals import CPU_COUNT, DataNode, Task, TaskRef
from daskprep.partitions.graphs import (
    Arguments,
    Function,
    GraphArgument,
    Layer,
    Pass,
    keep_freed_memory,
    labelled,
    on_piece,
    partition_layer,
    references,
    unique,
)
from daskprep.partitions.pickled import Pickled, share_little
from daskprep.partitions.schedulers import Advance, compute, is_distributed, on_threads, worker_threads
from daskprep.storage.kept import Kept

if TYPE_CHECKING:
    import pandas as pd

_TREE_WIDTH = 8
# Enough that all threads end at about the same time; a task costs the scheduler and the client a millisecond.
_TASKS_PER_THREAD = 8
# Of a cluster whose workers are still to come.
_UNKNOWN_TASKS = 64
# Columns that are merged together. Eight summaries of so many are in memory at a time, of quantiles some 32 MB.
_CHUNK_KEYS = 64
# Gives a list of what is gathered, of which the first is a list of small things.
Gather = Callable[[Iterator[Any]], list[Any]]


def each(work: Pass, name: str, *, kept: Kept | None = None, advance: Advance | None = None) -> list[Any]:
    """Run a function over every partition and return its small results in order.

    With `kept`, results of tasks are kept in files, and those that are there already are taken from them.
    `advance` is called in this process with each result as it comes, in any order, by one thread at a time.
    """
    if work.source.in_memory:
        return on_threads(work.on, work.source.npartitions, advance)
    layer, keys = _grouped_layer(work, name, _listed, kept)
    if work.source.is_dask:
        gathered = [(unique(f"gather-{name}"), i) for i in range(len(groups(len(keys))))]
        for task, group in zip(gathered, groups(len(keys)), strict=True):
            layer[task] = Task(task, _told_together, references([keys[i] for i in group]))
        keys = gathered
    return _joined(told for [told] in compute(layer, keys, watched=keys, advance=_each_told(advance, itemgetter(0))))


def run(
    name: str,
    function: Callable[[Any, Any], Any],
    shared: Any,
    arguments: Sequence[Any],
    *,
    advance: Advance | None = None,
) -> list[Any]:
    """Run ``function(shared, argument)`` for every argument; results and `advance` are as of `each`."""
    if not arguments:
        return []
    state, prefix = unique(f"state-{name}"), unique(name)
    layer: Layer = {state: DataNode(state, shared)}
    given = _to_travel([list(arguments[group.start : group.stop]) for group in groups(len(arguments))])
    for i, some in enumerate(given):
        layer[prefix, i] = Task((prefix, i), with_each, function, TaskRef(state), some)
    keys = list(layer)[1:]
    return _joined(compute(layer, keys, watched=keys, advance=_each_told(advance)))


def chained(
    name: str,
    make: Callable[[Any], Mapping[Any, Any]],
    sources: Sequence[Any],
    then: str,
    use: Callable[[Any, list[Any]], Any],
    arguments: Sequence[Any],
    needs: Sequence[Sequence[tuple[int, Hashable]]],
    *,
    advance: Advance | None = None,
) -> list[Any]:
    """Run ``make(source)`` for every source, and for every argument ``use(argument, made)`` with what it needs of them.

    `needs` holds, for each argument, numbers of sources and keys of what `make` gave. What nothing needs any more is
    forgotten, while other sources still wait: so this is for schedulers of this process, where it need not travel.
    """
    maker, picker, user = unique(name), unique(f"pick-{name}"), unique(then)
    layer: Layer = {(maker, i): Task((maker, i), make, source) for i, source in enumerate(sources)}
    for i, key in {need for wanted in needs for need in wanted}:
        layer[picker, i, key] = Task((picker, i, key), getitem, TaskRef((maker, i)), key)
    keys = [(user, i) for i in range(len(arguments))]
    for task, argument, wanted in zip(keys, arguments, needs, strict=True):
        layer[task] = Task(task, use, argument, references([(picker, *need) for need in wanted]))
    return compute(layer, keys, watched=keys, advance=advance)


def fold(
    work: Pass,
    name: str,
    *,
    merge: Callable[[list[Any]], Any],
    finish: Callable[[Any, list[Any]], Any],
    keys: Sequence[Hashable],
    kept: Kept | None = None,
    advance: Advance | None = None,
) -> dict[Any, Any]:
    """Run a function over every partition, merge what it gives by key in a tree, and finish each key.

    The function gives a pair: something small, and a mapping that has a value for each of `keys`. ``merge(values)``
    takes up to 8 values of one key and gives one; when at most 8 remain, ``finish(key, values)`` gives the value of the
    key, in a task of its own. `kept` is as of `each`. `advance` is called with the small things: on a cluster
    these alone travel to this process.
    """
    merging = Merging(merge)
    if work.source.in_memory:
        return _fold_in_memory(work, merging, finish, keys, advance)
    layer, tasks = _grouped_layer(work, name, merging, kept)
    shared_finish, learn = unique("state-learn"), unique("learn")
    layer[shared_finish] = DataNode(shared_finish, finish)
    finished: list[Any] = []
    for number, chunk in enumerate(cut(keys, _CHUNK_KEYS), start=1):
        # A single chunk is taken from where it lies: half as many tasks for the scheduler.
        parts = tasks if len(chunk) == len(keys) else _picked(layer, "part", tasks, number)
        last = _merge_tree(layer, parts, merging)
        for key in chunk:
            finished.append(task := (learn, len(finished)))
            layer[task] = Task(task, _finished, TaskRef(shared_finish), key, references(last))
    told = [] if advance is None else _picked(layer, "tell", tasks, 0)
    results = compute(layer, [*finished, *told], watched=told, advance=_each_told(advance))
    return dict(zip(keys, results, strict=False))


def exchanged(work: Pass, name: str, combine: Callable[[list[Any]], list[Any]]) -> Arguments:
    """Let partitions tell each other something: `combine` turns all results into one argument for each partition.

    For sources outside this process the answer is lazy, a node of the graph that `arrays` builds.
    """
    if work.source.in_memory:
        return combine(on_threads(work.on, work.source.npartitions))
    layer, keys = partition_layer(work, name, apart=True)
    node = unique(f"exchange-{name}")
    layer[node] = Task(node, combine, references(keys))
    return GraphArgument(node, layer)


def arrays(
    work: Pass,
    *,
    like: Callable[[], Mapping[str, np.ndarray]],
) -> dict[str, Any]:
    """Return one array for each key that `function` gives: NumPy for sources in memory, else lazy Dask arrays.

    The function gives a dict of arrays for one partition; `like` makes empty arrays of the same types and shapes.
    """
    source = work.source
    if source.in_memory:
        parts = on_threads(work.on, source.npartitions)
        if len(parts) == 1:
            return dict(parts[0])
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    layer, keys = partition_layer(work, "encode")
    name = keys[0][0]
    counts = (np.nan,) * source.npartitions if source.row_counts is None else tuple(source.row_counts)
    picked = {}
    for output, empty in like().items():
        prefix, tail = unique(f"pick-{output}"), (0,) * (empty.ndim - 1)
        picks = {
            (prefix, i, *tail): Task((prefix, i, *tail), getitem, TaskRef(key), output) for i, key in enumerate(keys)
        }
        graph = HighLevelGraph(dict[str, Any]({name: layer, prefix: picks}), {name: set(), prefix: {name}})
        chunks = (counts, *((size,) for size in empty.shape[1:]))
        picked[output] = da.Array(graph, prefix, chunks, meta=empty)
    return picked


def frames(
    work: Pass,
    *,
    meta: pd.DataFrame,
    labels: Sequence[str],
) -> Any:
    """Return the pandas frames that a function gives as a lazy Dask frame, a partition for each.

    `meta` is such a frame without rows. Those of a Dask frame take its index, and the columns `labels` in front.
    """
    import dask.dataframe as dd  # noqa: PLC0415 it takes a second to import

    source = work.source
    layer, keys = partition_layer(work, "predict", labels=labels)
    divisions: Sequence[Any] = (None,) * (source.npartitions + 1)
    if source.is_dask:
        divisions, meta = source.frame.divisions, labelled(source.frame._meta, labels, meta)
    return dd.from_graph(_Unread(layer), meta, divisions, keys, "predict")


class _Unread(UserDict[Any, Any]):
    """A layer that Dask names without a look at its values, which takes long for large models, and fails for some."""

    def __dask_tokenize__(self) -> str:
        return str(next(iter(self)))  # a name that no other graph has


def _grouped_layer(work: Pass, name: str, gather: Gather, kept: Kept | None) -> tuple[Layer, list[Any]]:
    """Return the graph of a task for some partitions each, or each of a Dask frame, that gathers what they give."""
    if work.source.is_dask:
        shared = (gather, work.function, work.shared)
        return partition_layer(replace(work, function=_gathered, shared=shared), name)
    assert not isinstance(work.arguments, GraphArgument)
    prefix, state, pieces = unique(name), unique(f"state-{name}"), work.source.pieces
    layer: Layer = {state: DataNode(state, work.shared)}
    runs = groups(len(pieces), size=None if kept is None else kept.size())
    pairs = list(zip(work.arguments, pieces, strict=True))
    given = _to_travel([pairs[run.start : run.stop] for run in runs])
    for i, (some, run) in enumerate(zip(given, runs, strict=True)):
        how = (list(work.columns), gather, run, kept)
        layer[prefix, i] = Task((prefix, i), on_pieces, work.function, TaskRef(state), some, *how)
    return layer, list(layer)[1:]


def _to_travel(given: Sequence[list[Any]]) -> Sequence[Sequence[Any]]:
    """Return what tasks are given, for a cluster each list in one piece, unless that repeats what they share."""
    return [Pickled(some) for some in given] if is_distributed() and share_little(given) else given


def _gathered(shared: tuple[Gather, Function, Any], argument: Any, table: pa.Table) -> Any:
    gather, function, inner = shared
    return _sealed(gather(iter([function(inner, argument, table)])))


def _sealed(gathered: list[Any]) -> list[Any]:
    return [Pickled(gathered[0]), *gathered[1:]]


def _listed(results: Iterator[Any]) -> list[Any]:
    return [list(results)]


def _told_together(gathered: Sequence[list[Any]]) -> list[Any]:
    return _sealed([_joined(told for [told] in gathered)])


def _joined(lists: Iterable[Sequence[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))


def _each_told(advance: Advance | None, of: Callable[[Any], Iterable[Any]] = iter) -> Advance | None:
    """Return what tells each of the results of a task, which are `of` what it gives."""
    if advance is None:
        return None

    def tell(given: Any) -> None:
        for result in of(given):
            advance(result)

    return tell


def _fold_in_memory(
    work: Pass,
    merging: Merging,
    finish: Callable[[Any, list[Any]], Any],
    keys: Sequence[Hashable],
    advance: Advance | None,
) -> dict[Any, Any]:
    runs = groups(work.source.npartitions, CPU_COUNT)
    gathered = on_threads(lambda run: merging(map(work.on, runs[run])), len(runs), _each_told(advance, itemgetter(0)))
    parts = [dict(ChainMap(*part[1:])) for part in gathered]
    while len(parts) > _TREE_WIDTH:
        some = cut(parts, _TREE_WIDTH)
        parts = on_threads(lambda i: merging.chunk(some[i]), len(some))  # noqa: B023 it is called here alone
    finished = on_threads(lambda i: _finished(finish, keys[i], parts), len(keys))
    return dict(zip(keys, finished, strict=True))


def _finished(finish: Callable[[Any, list[Any]], Any], key: Any, parts: Sequence[Any]) -> Any:
    return finish(key, [_chunk_of(part)[key] for part in parts])


def _chunk_of(part: Any) -> Mapping[Any, Any]:
    """Return a chunk, which may be the only one of all that a task gathered."""
    chunk: Mapping[Any, Any] = part[1] if isinstance(part, list) else part
    return chunk


def _picked(layer: Layer, name: str, tasks: Sequence[Any], place: int) -> list[Any]:
    """Add tasks that take one of the things that each task gives, and return their keys."""
    prefix = unique(name)
    keys = [(prefix, i) for i in range(len(tasks))]
    layer.update({key: Task(key, getitem, TaskRef(task), place) for key, task in zip(keys, tasks, strict=True)})
    return keys


def _merge_tree(layer: Layer, keys: Sequence[Any], merging: Merging) -> list[Any]:
    """Add tasks that merge the results of `keys` until at most 8 remain, and return the keys of these."""
    remaining = list(keys)
    while len(remaining) > _TREE_WIDTH:
        level = unique("merge")
        some = cut(remaining, _TREE_WIDTH)
        remaining = [(level, i) for i in range(len(some))]
        layer.update({key: Task(key, merging.chunk, references(one)) for key, one in zip(remaining, some, strict=True)})
    return remaining


def cut(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Cut items into those that are merged together."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def groups(count: int, threads: int | None = None, size: int | None = None) -> list[range]:
    """Cut so many partitions into runs, one for each task: about 8 tasks for each thread, unless told their size."""
    tasks = _TASKS_PER_THREAD * (worker_threads()[1] if threads is None else threads)
    size = size or max(1, count // (tasks or _UNKNOWN_TASKS))
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def on_pieces(
    function: Callable[..., Any],
    shared: Any,
    given: Sequence[tuple[Any, Any]],
    columns: list[str],
    gather: Gather,
    run: range,
    kept: Kept | None,
) -> list[Any]:
    """Run a function with each argument on a piece of files, one in memory at a time, and gather the results."""

    def make() -> list[Any]:
        return gather(on_piece(function, shared, argument, piece, columns) for argument, piece in given)

    return _sealed(make() if kept is None else kept.result(run, make))


def with_each(function: Callable[[Any, Any], Any], shared: Any, arguments: Sequence[Any]) -> Pickled:
    """Return what a function gives for each argument."""
    keep_freed_memory()
    return Pickled([function(shared, argument) for argument in arguments])


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
            # Also what comes first: a merge bounds what stays in memory.
            merged = {key: self.merge([*([merged[key]] if merged else []), values[key]]) for key in values}
            del values
        return [told, *({key: merged[key] for key in chunk} for chunk in cut(list(merged), _CHUNK_KEYS))]

    def chunk(self, parts: Sequence[Any]) -> dict[Any, Any]:
        """Merge the same chunk of several."""
        some = [_chunk_of(part) for part in parts]
        return {key: self.merge([part[key] for part in some]) for key in some[0]}
