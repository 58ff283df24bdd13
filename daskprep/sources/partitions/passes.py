"""Passes over all partitions of a source: map, map and reduce, exchange of results, and lazy arrays or frames.

Functions are called as ``function(shared, argument, table)``. Only tables have rows, and they exist only inside tasks.
A task reads several consecutive partitions, one at a time, with about 8 tasks for each thread. A partition of a Dask
frame, or a chunk of a lazy array, has a separate task: Dask would keep all partitions of one task in memory together.
Sources in memory (pandas, NumPy) never enter a graph: threads of this process read slices of them.
"""

from __future__ import annotations

import pickle
from collections import ChainMap, UserDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import getitem, itemgetter
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import pyarrow as pa
from dask.highlevelgraph import HighLevelGraph

from daskprep.sources.partitions.dask_internals import CPU_COUNT, Task, TaskRef
from daskprep.sources.partitions.graphs import (
    Arguments,
    Layer,
    LazyArguments,
    PartitionFunction,
    Work,
    add_tasks,
    add_value,
    keep_freed_memory,
    partition_layer,
    prepend_columns,
    reference_results,
    run_on_fragment,
    unique_name,
)
from daskprep.sources.partitions.schedulers import (
    Advance,
    compute,
    explain_worker_errors,
    is_distributed,
    run_on_threads,
    worker_threads,
)
from daskprep.storage.checkpoint import Checkpoint

if TYPE_CHECKING:
    import pandas as pd

_TREE_WIDTH = 8
# Enough for all threads to finish at about the same time; a task costs the scheduler and the client a millisecond.
_TASKS_PER_THREAD = 8
_DEFAULT_TASKS = 64  # for a cluster without workers yet
# Columns in a merge task. Summaries of 8 partitions for these columns are in memory together: 32 MB of quantiles.
_CHUNK_KEYS = 64
# Returns a list: first the list of small results, then other gathered values.
Gather = Callable[[Iterator[Any]], list[Any]]
_MIN_SEPARATE_RATIO = 0.8  # below 1, since even unrelated items share names of classes and folders in a pickle


def map_partitions(
    work: Work, name: str, *, checkpoint: Checkpoint | None = None, advance: Advance | None = None
) -> list[Any]:
    """Run a function over all partitions; return small results.

    `name` is the prefix of the tasks' keys. With `checkpoint`, results of tasks are kept in files, and results from an
    interrupted pass are read from them. `advance` is called in this process with each result when its task finishes, in
    any order, by one thread at a time.
    """
    if work.source.in_memory:
        return run_on_threads(work.run_on, work.source.npartitions, advance)
    layer, keys = _grouped_layer(work, name, _gather_list, checkpoint)
    if work.source.is_dask:
        groups = [[reference_results(keys[group.start : group.stop])] for group in group_partitions(len(keys))]
        keys = add_tasks(layer, f"gather-{name}", _join_small_results, groups)
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
    """Return ``function(shared, argument)`` by argument, in order."""
    if not arguments:
        return []
    layer = Layer()
    state = add_value(layer, f"state-{name}", shared)
    argument_lists = _pickle_for_cluster(
        [list(arguments[group.start : group.stop]) for group in group_partitions(len(arguments))]
    )
    keys = add_tasks(layer, name, call_each, [(function, state, task_arguments) for task_arguments in argument_lists])
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
    """Return ``use(argument, values)`` for every argument, with values of ``make(source)``.

    `make` returns a mapping. `needs` has for each argument the (number of the source, key) of its values. Values that
    no task needs any more are released while other sources are pending. Only for schedulers in this process: on a
    cluster, the values would be sent between workers.
    """
    pick_prefix, layer = unique_name(f"pick-{name}"), Layer()
    made = add_tasks(layer, name, make, [(source,) for source in sources])
    for i, key in {need for wanted in needs for need in wanted}:
        layer[pick_prefix, i, key] = Task((pick_prefix, i, key), getitem, TaskRef(made[i]), key)
    values = [reference_results([(pick_prefix, *need) for need in wanted]) for wanted in needs]
    keys = add_tasks(layer, use_name, use, list(zip(arguments, values, strict=True)))
    return compute(layer, keys, watched=keys, advance=advance)


def map_reduce(
    work: Work,
    name: str,
    *,
    merge: Callable[[list[Any]], Any],
    finish: Callable[[Any, list[Any]], Any],
    keys: Sequence[Hashable],
    checkpoint: Checkpoint | None = None,
    advance: Advance | None = None,
) -> tuple[list[Any], dict[Any, Any]]:
    """Run a function over every partition, and merge by key.

    Return small results too. The function returns a pair: a small result, and a mapping with a value for each of
    `keys`. ``merge(values)`` merges up to 8 values of one key into one. When at most 8 remain, ``finish(key, values)``
    returns the value of the key. `checkpoint` is as in `map_partitions`. `advance` is called with
    each small result; without it, a cluster sends only the finished values here, and small results are empty.
    """
    merger = Merger(merge)
    if work.source.in_memory:
        return _fold_in_memory(work, merger, finish, keys, advance)
    layer, tasks = _grouped_layer(work, name, merger, checkpoint)
    shared_finish = add_value(layer, "state-learn", finish)
    learn_arguments: list[tuple[Any, ...]] = []
    for number, chunk in enumerate(split_batches(keys, _CHUNK_KEYS), start=1):
        # A single chunk needs no task to pick it: half as many tasks for the scheduler.
        parts = tasks
        if len(chunk) < len(keys):
            parts = add_tasks(layer, "part", getitem, [(TaskRef(task), number) for task in tasks])
        while len(parts) > _TREE_WIDTH:
            batches = [[reference_results(batch)] for batch in split_batches(parts, _TREE_WIDTH)]
            parts = add_tasks(layer, "merge", merger.merge_chunk, batches)
        groups = (chunk[group.start : group.stop] for group in group_partitions(len(chunk)))
        learn_arguments += [(shared_finish, group, reference_results(parts)) for group in groups]
    finished = add_tasks(layer, "learn", _finish_keys, learn_arguments)
    small_results = [] if advance is None else [(TaskRef(task), 0) for task in tasks]
    small_keys = add_tasks(layer, "small-results", getitem, small_results)
    results = compute(layer, [*finished, *small_keys], watched=small_keys, advance=_advance_per_result(advance))
    learned = {key: value for one in results[: len(finished)] for key, value in one.items()}
    return _concatenate(results[len(finished) :]), learned


def exchange_results(work: Work, name: str, combine: Callable[[list[Any]], list[Any]]) -> Arguments:
    """Return ``combine(results)``, an argument per partition of a later pass; lazy unless rows are in memory."""
    if work.source.in_memory:
        return combine(run_on_threads(work.run_on, work.source.npartitions))
    layer, keys = partition_layer(work, name, separate_tasks=True)
    node = unique_name(f"exchange-{name}")
    layer[node] = Task(node, combine, reference_results(keys))
    return LazyArguments(node, layer)


def build_arrays(work: Work, *, like: Callable[[], Mapping[str, np.ndarray]]) -> dict[str, Any]:
    """Return an array per key of the results, of NumPy if rows are in memory, else lazy, typed as in ``like()``."""
    source = work.source
    if source.in_memory:
        parts = run_on_threads(work.run_on, source.npartitions)
        if len(parts) == 1:
            return dict(parts[0])
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    from dask.array import Array  # noqa: PLC0415 it takes half a second to import

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
        picked[output] = Array(graph, prefix, chunks, meta=empty)
    return picked


def build_frame(work: Work, *, meta: pd.DataFrame, leading_columns: Sequence[str]) -> Any:
    """Return a lazy Dask frame of the function's frames.

    `meta` is a result without rows. Results for a Dask frame get its index, and its `leading_columns` as first columns.
    """
    import dask.dataframe as dd  # noqa: PLC0415 it takes a second to import

    source = work.source
    layer, keys = partition_layer(work, "predict", leading_columns=leading_columns)
    divisions: Sequence[Any] = (None,) * (source.npartitions + 1)
    if source.is_dask:
        divisions, meta = source.frame.divisions, prepend_columns(source.frame._meta, leading_columns, meta)
    return dd.from_graph(_UntokenizedLayer(layer), meta, divisions, keys, "predict")


class _UntokenizedLayer(UserDict[Any, Any]):
    """A graph layer that Dask does not hash."""

    def __dask_tokenize__(self) -> str:
        return str(next(iter(self)))  # a name that no other graph has


def _grouped_layer(work: Work, name: str, gather: Gather, checkpoint: Checkpoint | None) -> tuple[Layer, list[Any]]:
    """Return a graph of tasks of several partitions, and keys."""
    if work.source.is_dask:
        shared = (gather, work.function, work.shared)
        return partition_layer(replace(work, function=_gather_partition, shared=shared), name)
    assert not isinstance(work.arguments, LazyArguments)
    layer, fragments = Layer(), work.source.fragments
    state = add_value(layer, f"state-{name}", work.shared)
    groups = group_partitions(len(fragments), size=None if checkpoint is None else checkpoint.size())
    pairs = list(zip(work.arguments, fragments, strict=True))
    argument_lists = _pickle_for_cluster([pairs[group.start : group.stop] for group in groups])
    columns = list(work.columns)
    tasks = [
        (work.function, state, task_arguments, columns, gather, group, checkpoint)
        for task_arguments, group in zip(argument_lists, groups, strict=True)
    ]
    return layer, add_tasks(layer, name, run_on_fragments, tasks)


def _pickle_for_cluster(lists: Sequence[list[Any]]) -> Sequence[Sequence[Any]]:
    """Return the arguments of each task, as one pickle if this saves frames on a cluster."""
    sample = lists[:2]
    if not is_distributed() or len(_dump(sample)) < _MIN_SEPARATE_RATIO * sum(len(_dump(items)) for items in sample):
        return lists
    return [Pickled(items) for items in lists]


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
    """Return a function that calls `advance` for each result of a task; None for None."""
    if advance is None:
        return None

    def advance_each(task_result: Any) -> None:
        for result in extract(task_result):
            advance(result)

    return advance_each


def _fold_in_memory(
    work: Work,
    merger: Merger,
    finish: Callable[[Any, list[Any]], Any],
    keys: Sequence[Hashable],
    advance: Advance | None,
) -> tuple[list[Any], dict[Any, Any]]:
    """Return the results of `map_reduce` for rows in memory."""
    groups = group_partitions(work.source.npartitions, CPU_COUNT)
    gathered = run_on_threads(
        lambda i: merger(map(work.run_on, groups[i])), len(groups), _advance_per_result(advance, itemgetter(0))
    )
    parts = [dict(ChainMap(*part[1:])) for part in gathered]
    while len(parts) > _TREE_WIDTH:
        batches = split_batches(parts, _TREE_WIDTH)
        parts = run_on_threads(lambda i: merger.merge_chunk(batches[i]), len(batches))  # noqa: B023 only called within this iteration
    finished = run_on_threads(lambda i: _finish_keys(finish, keys[i : i + 1], parts), len(keys))
    return _concatenate(part[0] for part in gathered), {key: value for one in finished for key, value in one.items()}


def _finish_keys(finish: Callable[[Any, list[Any]], Any], keys: Sequence[Any], parts: Sequence[Any]) -> dict[Any, Any]:
    return {key: finish(key, [_unwrap_chunk(part)[key] for part in parts]) for key in keys}


def _unwrap_chunk(part: Any) -> Mapping[Any, Any]:
    """Return a chunk, alone or as the second item of a gathered list."""
    chunk: Mapping[Any, Any] = part[1] if isinstance(part, list) else part
    return chunk


def split_batches(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Return the items in batches of `size`."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def group_partitions(count: int, threads: int | None = None, size: int | None = None) -> list[range]:
    """Return ranges of partitions, one for each task; `size` None: a few tasks for each thread."""
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
    """Return the gathered results for (argument, fragment) pairs."""

    def make() -> list[Any]:
        return gather(run_on_fragment(function, shared, argument, fragment, columns) for argument, fragment in pairs)

    return _pickle_small_results(make() if checkpoint is None else checkpoint.get_or_compute(partition_range, make))


def call_each(function: Callable[[Any, Any], Any], shared: Any, arguments: Sequence[Any]) -> Pickled:
    """Return the results for each argument, as one pickle."""
    keep_freed_memory()
    return Pickled([function(shared, argument) for argument in arguments])


@dataclass(frozen=True)
class Merger:
    """A `Gather` of pairs: small results, then the merged mapping in chunks."""

    merge: Callable[[list[Any]], Any]

    def __call__(self, results: Iterable[tuple[Any, Mapping[Any, Any]]]) -> list[Any]:
        """Return small results, and the merged mapping in chunks."""
        small_results: list[Any] = []
        merged: dict[Any, Any] = {}
        for small, values in results:
            small_results.append(small)
            # The first value is merged too, as merging bounds its size in memory.
            merged = {key: self.merge([*([merged[key]] if merged else []), values[key]]) for key in values}
            del values
        chunks = split_batches(list(merged), _CHUNK_KEYS)
        return [small_results, *({key: merged[key] for key in chunk} for chunk in chunks)]

    def merge_chunk(self, parts: Sequence[Any]) -> dict[Any, Any]:
        chunks = [_unwrap_chunk(part) for part in parts]
        return {key: self.merge([part[key] for part in chunks]) for key in chunks[0]}


class Pickled(Sequence[Any]):
    """A list that is pickled to a single bytes object.

    Dask sends every item of a list and every array as a separate frame, which costs 0.05 ms. Its scheduler would also
    unpickle and pickle all objects in a graph.
    """

    def __init__(self, items: list[Any] | None, data: bytes = b"") -> None:
        self._items = items
        self._data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return Pickled, (None, self._data or _dump(self._items))

    def _unpickle(self) -> list[Any]:
        if self._items is None:
            self._items = pickle.loads(self._data)  # noqa: S301 arguments or results of tasks of this job
        return self._items

    def __len__(self) -> int:
        return len(self._unpickle())

    def __getitem__(self, index: Any) -> Any:
        return self._unpickle()[index]


def _dump(items: Any) -> bytes:
    """Pickle like Dask: by value what workers cannot import."""
    try:
        data = pickle.dumps(items, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        data = b"__main__"
    if b"__main__" not in data:
        return data
    with explain_worker_errors():
        return bytes(cloudpickle.dumps(items))
