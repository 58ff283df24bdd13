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
    Layer,
    LazyArguments,
    PartitionFunction,
    Pass,
    keep_freed_memory,
    partition_layer,
    prepend_columns,
    reference_results,
    run_on_fragment,
    unique_name,
)
from daskprep.partitions.pickled import Pickled, share_little
from daskprep.partitions.schedulers import Advance, compute, is_distributed, run_on_threads, worker_threads
from daskprep.storage.checkpoint import Checkpoint

if TYPE_CHECKING:
    import pandas as pd

_TREE_WIDTH = 8
# Enough that all threads end at about the same time; a task costs the scheduler and the client a millisecond.
_TASKS_PER_THREAD = 8
# Of a cluster whose workers are still to come.
_DEFAULT_TASKS = 64
# Columns that are merged together. Eight summaries of so many are in memory at a time, of quantiles some 32 MB.
_CHUNK_KEYS = 64
# Gives a list of what is gathered, of which the first is a list of small things.
Gather = Callable[[Iterator[Any]], list[Any]]


def map_partitions(
    work: Pass, name: str, *, checkpoint: Checkpoint | None = None, advance: Advance | None = None
) -> list[Any]:
    """Run a function over every partition and return its small results in order.

    With `checkpoint`, results of tasks are kept in files, and those that are there already are taken from them.
    `advance` is called in this process with each result as it comes, in any order, by one thread at a time.
    """
    if work.source.in_memory:
        return run_on_threads(work.run_on, work.source.npartitions, advance)
    layer, keys = _grouped_layer(work, name, _gather_list, checkpoint)
    if work.source.is_dask:
        gathered = [(unique_name(f"gather-{name}"), i) for i in range(len(group_partitions(len(keys))))]
        for task, group in zip(gathered, group_partitions(len(keys)), strict=True):
            layer[task] = Task(task, _join_small_results, reference_results([keys[i] for i in group]))
        keys = gathered
    return _concatenate(
        results for [results] in compute(layer, keys, watched=keys, advance=_advance_per_result(advance, itemgetter(0)))
    )


def run_tasks(
    name: str,
    function: Callable[[Any, Any], Any],
    shared: Any,
    arguments: Sequence[Any],
    *,
    advance: Advance | None = None,
) -> list[Any]:
    """Run ``function(shared, argument)`` for every argument; results and `advance` are as of `map_partitions`."""
    if not arguments:
        return []
    state, prefix = unique_name(f"state-{name}"), unique_name(name)
    layer: Layer = {state: DataNode(state, shared)}
    argument_lists = _pickle_for_cluster(
        [list(arguments[group.start : group.stop]) for group in group_partitions(len(arguments))]
    )
    for i, task_arguments in enumerate(argument_lists):
        layer[prefix, i] = Task((prefix, i), call_each, function, TaskRef(state), task_arguments)
    keys = list(layer)[1:]
    return _concatenate(compute(layer, keys, watched=keys, advance=_advance_per_result(advance)))


def run_two_stages(
    name: str,
    make: Callable[[Any], Mapping[Any, Any]],
    sources: Sequence[Any],
    use_name: str,
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
    make_prefix, pick_prefix, use_prefix = unique_name(name), unique_name(f"pick-{name}"), unique_name(use_name)
    layer: Layer = {(make_prefix, i): Task((make_prefix, i), make, source) for i, source in enumerate(sources)}
    for i, key in {need for wanted in needs for need in wanted}:
        layer[pick_prefix, i, key] = Task((pick_prefix, i, key), getitem, TaskRef((make_prefix, i)), key)
    keys = [(use_prefix, i) for i in range(len(arguments))]
    for task, argument, wanted in zip(keys, arguments, needs, strict=True):
        layer[task] = Task(task, use, argument, reference_results([(pick_prefix, *need) for need in wanted]))
    return compute(layer, keys, watched=keys, advance=advance)


def map_reduce(
    work: Pass,
    name: str,
    *,
    merge: Callable[[list[Any]], Any],
    finish: Callable[[Any, list[Any]], Any],
    keys: Sequence[Hashable],
    checkpoint: Checkpoint | None = None,
    advance: Advance | None = None,
) -> dict[Any, Any]:
    """Run a function over every partition, merge what it gives by key in a tree, and finish each key.

    The function gives a pair: something small, and a mapping that has a value for each of `keys`. ``merge(values)``
    takes up to 8 values of one key and gives one; when at most 8 remain, ``finish(key, values)`` gives the value of the
    key, in a task of its own. `checkpoint` is as of `map_partitions`. `advance` is called with the small things: on a cluster
    these alone travel to this process.
    """
    merger = Merger(merge)
    if work.source.in_memory:
        return _fold_in_memory(work, merger, finish, keys, advance)
    layer, tasks = _grouped_layer(work, name, merger, checkpoint)
    shared_finish, learn = unique_name("state-learn"), unique_name("learn")
    layer[shared_finish] = DataNode(shared_finish, finish)
    finished: list[Any] = []
    for number, chunk in enumerate(split_batches(keys, _CHUNK_KEYS), start=1):
        # A single chunk is taken from where it lies: half as many tasks for the scheduler.
        parts = tasks if len(chunk) == len(keys) else _add_pick_tasks(layer, "part", tasks, number)
        last = _add_merge_tasks(layer, parts, merger)
        for key in chunk:
            finished.append(task := (learn, len(finished)))
            layer[task] = Task(task, _finish_key, TaskRef(shared_finish), key, reference_results(last))
    small_keys = [] if advance is None else _add_pick_tasks(layer, "tell", tasks, 0)
    results = compute(layer, [*finished, *small_keys], watched=small_keys, advance=_advance_per_result(advance))
    return dict(zip(keys, results, strict=False))


def exchange_results(work: Pass, name: str, combine: Callable[[list[Any]], list[Any]]) -> Arguments:
    """Let partitions tell each other something: `combine` turns all results into one argument for each partition.

    For sources outside this process the answer is lazy, a node of the graph that `build_arrays` builds.
    """
    if work.source.in_memory:
        return combine(run_on_threads(work.run_on, work.source.npartitions))
    layer, keys = partition_layer(work, name, separate_tasks=True)
    node = unique_name(f"exchange-{name}")
    layer[node] = Task(node, combine, reference_results(keys))
    return LazyArguments(node, layer)


def build_arrays(
    work: Pass,
    *,
    like: Callable[[], Mapping[str, np.ndarray]],
) -> dict[str, Any]:
    """Return one array for each key that `function` gives: NumPy for sources in memory, else lazy Dask arrays.

    The function gives a dict of arrays for one partition; `like` makes empty arrays of the same types and shapes.
    """
    source = work.source
    if source.in_memory:
        parts = run_on_threads(work.run_on, source.npartitions)
        if len(parts) == 1:
            return dict(parts[0])
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    layer, keys = partition_layer(work, "encode")
    name = keys[0][0]
    counts = (np.nan,) * source.npartitions if source.row_counts is None else tuple(source.row_counts)
    picked = {}
    for output, empty in like().items():
        prefix, tail = unique_name(f"pick-{output}"), (0,) * (empty.ndim - 1)
        picks = {
            (prefix, i, *tail): Task((prefix, i, *tail), getitem, TaskRef(key), output) for i, key in enumerate(keys)
        }
        graph = HighLevelGraph(dict[str, Any]({name: layer, prefix: picks}), {name: set(), prefix: {name}})
        chunks = (counts, *((size,) for size in empty.shape[1:]))
        picked[output] = da.Array(graph, prefix, chunks, meta=empty)
    return picked


def build_frame(
    work: Pass,
    *,
    meta: pd.DataFrame,
    leading_columns: Sequence[str],
) -> Any:
    """Return the pandas frames that a function gives as a lazy Dask frame, a partition for each.

    `meta` is such a frame without rows. Those of a Dask frame take its index, and the columns `leading_columns` in front.
    """
    import dask.dataframe as dd  # noqa: PLC0415 it takes a second to import

    source = work.source
    layer, keys = partition_layer(work, "predict", leading_columns=leading_columns)
    divisions: Sequence[Any] = (None,) * (source.npartitions + 1)
    if source.is_dask:
        divisions, meta = source.frame.divisions, prepend_columns(source.frame._meta, leading_columns, meta)
    return dd.from_graph(_UntokenizedLayer(layer), meta, divisions, keys, "predict")


class _UntokenizedLayer(UserDict[Any, Any]):
    """A layer that Dask names without a look at its values, which takes long for large models, and fails for some."""

    def __dask_tokenize__(self) -> str:
        return str(next(iter(self)))  # a name that no other graph has


def _grouped_layer(work: Pass, name: str, gather: Gather, checkpoint: Checkpoint | None) -> tuple[Layer, list[Any]]:
    """Return the graph of a task for some partitions each, or each of a Dask frame, that gathers what they give."""
    if work.source.is_dask:
        shared = (gather, work.function, work.shared)
        return partition_layer(replace(work, function=_gather_partition, shared=shared), name)
    assert not isinstance(work.arguments, LazyArguments)
    prefix, state, fragments = unique_name(name), unique_name(f"state-{name}"), work.source.fragments
    layer: Layer = {state: DataNode(state, work.shared)}
    partition_ranges = group_partitions(len(fragments), size=None if checkpoint is None else checkpoint.size())
    pairs = list(zip(work.arguments, fragments, strict=True))
    argument_lists = _pickle_for_cluster(
        [pairs[partition_range.start : partition_range.stop] for partition_range in partition_ranges]
    )
    for i, (task_arguments, partition_range) in enumerate(zip(argument_lists, partition_ranges, strict=True)):
        options = (list(work.columns), gather, partition_range, checkpoint)
        layer[prefix, i] = Task((prefix, i), run_on_fragments, work.function, TaskRef(state), task_arguments, *options)
    return layer, list(layer)[1:]


def _pickle_for_cluster(lists: Sequence[list[Any]]) -> Sequence[Sequence[Any]]:
    """Return what tasks are given, for a cluster each list in one piece, unless that repeats what they share."""
    return [Pickled(items) for items in lists] if is_distributed() and share_little(lists) else lists


def _gather_partition(shared: tuple[Gather, PartitionFunction, Any], argument: Any, table: pa.Table) -> Any:
    gather, function, inner = shared
    return _pickle_small_results(gather(iter([function(inner, argument, table)])))


def _pickle_small_results(gathered: list[Any]) -> list[Any]:
    return [Pickled(gathered[0]), *gathered[1:]]


def _gather_list(results: Iterator[Any]) -> list[Any]:
    return [list(results)]


def _join_small_results(gathered: Sequence[list[Any]]) -> list[Any]:
    return _pickle_small_results([_concatenate(results for [results] in gathered)])


def _concatenate(lists: Iterable[Sequence[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))


def _advance_per_result(advance: Advance | None, extract: Callable[[Any], Iterable[Any]] = iter) -> Advance | None:
    """Return what tells each of the results of a task, which are `extract` what it gives."""
    if advance is None:
        return None

    def advance_each(task_result: Any) -> None:
        for result in extract(task_result):
            advance(result)

    return advance_each


def _fold_in_memory(
    work: Pass,
    merger: Merger,
    finish: Callable[[Any, list[Any]], Any],
    keys: Sequence[Hashable],
    advance: Advance | None,
) -> dict[Any, Any]:
    partition_ranges = group_partitions(work.source.npartitions, CPU_COUNT)
    gathered = run_on_threads(
        lambda partition_range: merger(map(work.run_on, partition_ranges[partition_range])),
        len(partition_ranges),
        _advance_per_result(advance, itemgetter(0)),
    )
    parts = [dict(ChainMap(*part[1:])) for part in gathered]
    while len(parts) > _TREE_WIDTH:
        batches = split_batches(parts, _TREE_WIDTH)
        parts = run_on_threads(lambda i: merger.merge_chunk(batches[i]), len(batches))  # noqa: B023 it is called here alone
    finished = run_on_threads(lambda i: _finish_key(finish, keys[i], parts), len(keys))
    return dict(zip(keys, finished, strict=True))


def _finish_key(finish: Callable[[Any, list[Any]], Any], key: Any, parts: Sequence[Any]) -> Any:
    return finish(key, [_unwrap_chunk(part)[key] for part in parts])


def _unwrap_chunk(part: Any) -> Mapping[Any, Any]:
    """Return a chunk, which may be the only one of all that a task gathered."""
    chunk: Mapping[Any, Any] = part[1] if isinstance(part, list) else part
    return chunk


def _add_pick_tasks(layer: Layer, name: str, tasks: Sequence[Any], item_index: int) -> list[Any]:
    """Add tasks that take one of the things that each task gives, and return their keys."""
    prefix = unique_name(name)
    keys = [(prefix, i) for i in range(len(tasks))]
    layer.update({key: Task(key, getitem, TaskRef(task), item_index) for key, task in zip(keys, tasks, strict=True)})
    return keys


def _add_merge_tasks(layer: Layer, keys: Sequence[Any], merger: Merger) -> list[Any]:
    """Add tasks that merge the results of `keys` until at most 8 remain, and return the keys of these."""
    remaining = list(keys)
    while len(remaining) > _TREE_WIDTH:
        level = unique_name("merge")
        batches = split_batches(remaining, _TREE_WIDTH)
        remaining = [(level, i) for i in range(len(batches))]
        layer.update(
            {
                key: Task(key, merger.merge_chunk, reference_results(batch))
                for key, batch in zip(remaining, batches, strict=True)
            }
        )
    return remaining


def split_batches(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Cut items into those that are merged together."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def group_partitions(count: int, threads: int | None = None, size: int | None = None) -> list[range]:
    """Cut so many partitions into runs, one for each task: about 8 tasks for each thread, unless told their size."""
    tasks = _TASKS_PER_THREAD * (worker_threads()[1] if threads is None else threads)
    size = size or max(1, count // (tasks or _DEFAULT_TASKS))
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def run_on_fragments(
    function: Callable[..., Any],
    shared: Any,
    pairs: Sequence[tuple[Any, Any]],
    columns: list[str],
    gather: Gather,
    partition_range: range,
    checkpoint: Checkpoint | None,
) -> list[Any]:
    """Run a function with each argument on a piece of files, one in memory at a time, and gather the results."""

    def make() -> list[Any]:
        return gather(run_on_fragment(function, shared, argument, fragment, columns) for argument, fragment in pairs)

    return _pickle_small_results(make() if checkpoint is None else checkpoint.get_or_compute(partition_range, make))


def call_each(function: Callable[[Any, Any], Any], shared: Any, arguments: Sequence[Any]) -> Pickled:
    """Return what a function gives for each argument."""
    keep_freed_memory()
    return Pickled([function(shared, argument) for argument in arguments])


@dataclass(frozen=True)
class Merger:
    """Gathers what partitions give, a pair of something small and a mapping: the small things, and merged mappings.

    ``merge(values)`` merges values of one key. A mapping is cut into chunks of its keys, which are merged apart.
    """

    merge: Callable[[list[Any]], Any]

    def __call__(self, results: Iterable[tuple[Any, Mapping[Any, Any]]]) -> list[Any]:
        small_results: list[Any] = []
        merged: dict[Any, Any] = {}
        for small, values in results:
            small_results.append(small)
            # Also what comes first: a merge bounds what stays in memory.
            merged = {key: self.merge([*([merged[key]] if merged else []), values[key]]) for key in values}
            del values
        return [
            small_results,
            *({key: merged[key] for key in chunk} for chunk in split_batches(list(merged), _CHUNK_KEYS)),
        ]

    def merge_chunk(self, parts: Sequence[Any]) -> dict[Any, Any]:
        """Merge the same chunk of several."""
        chunks = [_unwrap_chunk(part) for part in parts]
        return {key: self.merge([part[key] for part in chunks]) for key in chunks[0]}
