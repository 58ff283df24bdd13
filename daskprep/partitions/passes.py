"""What can be done with all partitions of a source: run a function over each, merge, exchange, or make arrays.

Functions are called as ``function(shared, argument, table)``: `shared` is the same for all partitions and is one node
of the graph, `argument` belongs to the partition. Neither holds rows; tables exist only inside a task.
Sources in this process's memory (pandas, NumPy) never enter a graph: their partitions are slices that threads work
on where they are.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import call, getitem
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import pyarrow as pa
from dask.highlevelgraph import HighLevelGraph

from daskprep.partitions.dask_internals import DataNode, Task, TaskRef
from daskprep.partitions.graphs import GraphArgument, Layer, labelled, partition_layer, references, same, unique
from daskprep.partitions.schedulers import Advance, compute, on_threads
from daskprep.sources import Source

if TYPE_CHECKING:
    import pandas as pd

Function = Callable[[Any, Any, pa.Table], Any]
Arguments = Sequence[Any] | GraphArgument

_TREE_WIDTH = 8


def each(
    source: Source,
    name: str,
    function: Function,
    columns: Sequence[str],
    shared: Any,
    arguments: Arguments,
    *,
    advance: Advance | None = None,
) -> list[Any]:
    """Run a function over every partition and return its small results in order.

    `advance` is called in this process with each result as it comes, in any order, by one thread at a time.
    """
    if source.in_memory:
        return _each_in_memory(source, function, columns, shared, arguments, advance)
    layer, keys = partition_layer(source, name, function, columns, shared, arguments)
    return compute(layer, keys, watched=keys, advance=advance)


def run(
    name: str,
    function: Callable[[Any, Any], Any],
    shared: Any,
    arguments: Sequence[Any],
    *,
    advance: Advance | None = None,
) -> list[Any]:
    """Run ``function(shared, argument)`` for every argument, one task each; results and `advance` are as of `each`."""
    if not arguments:
        return []
    state, prefix = unique(f"state-{name}"), unique(name)
    layer: Layer = {state: DataNode(state, shared)}
    keys = [(prefix, i) for i in range(len(arguments))]
    for key, argument in zip(keys, arguments, strict=True):
        layer[key] = Task(key, function, TaskRef(state), argument)
    return compute(layer, keys, watched=keys, advance=advance)


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
    return compute(layer, keys, watched=keys, advance=advance) if keys else []


def fold(
    source: Source,
    name: str,
    function: Function,
    columns: Sequence[str],
    shared: Any,
    arguments: Arguments,
    *,
    merge: Callable[[list[Any]], Any],
    finish: Callable[[Any, list[Any]], Any],
    keys: Sequence[Hashable],
    measure: Callable[[Any], Any] | None = None,
    advance: Advance | None = None,
) -> dict[Any, Any]:
    """Run a function over every partition, merge the results in a tree, and finish each key from the last few.

    ``merge(results)`` takes up to 8 results and gives one; when at most 8 remain, ``finish(key, results)`` gives the
    value of each key, in tasks of their own. `advance` is called as for `each`, with ``measure(result)``: on a cluster
    it travels to this process while the result itself stays where it is.
    """
    measure = measure or same
    if source.in_memory:
        tell = None if advance is None else lambda result: advance(measure(result))
        parts = _each_in_memory(source, function, columns, shared, arguments, tell)
        while len(parts) > _TREE_WIDTH:
            groups = _grouped(parts)
            parts = on_threads(lambda i: merge(groups[i]), len(groups))  # noqa: B023 it is called here alone
        return dict(zip(keys, on_threads(lambda i: finish(keys[i], parts), len(keys)), strict=True))
    layer, partition_keys = partition_layer(source, name, function, columns, shared, arguments)
    last = _merge_tree(layer, partition_keys, merge)
    finished = [(unique("learn"), i) for i in range(len(keys))]
    shared_finish = unique("state-learn")
    layer[shared_finish] = DataNode(shared_finish, finish)
    for task, key in zip(finished, keys, strict=True):
        layer[task] = Task(task, call, TaskRef(shared_finish), key, references(last))
    measured = [] if advance is None else [(unique(f"measure-{name}"), i) for i in range(len(partition_keys))]
    for task, key in zip(measured, partition_keys, strict=False):
        layer[task] = Task(task, measure, TaskRef(key))
    results = compute(layer, [*finished, *measured], watched=measured, advance=advance)
    return dict(zip(keys, results, strict=False))


def exchanged(
    source: Source,
    name: str,
    function: Function,
    columns: Sequence[str],
    shared: Any,
    arguments: Sequence[Any],
    combine: Callable[[list[Any]], list[Any]],
) -> Arguments:
    """Let partitions tell each other something: `combine` turns all results into one argument for each partition.

    For sources outside this process the answer is lazy, a node of the graph that `arrays` builds.
    """
    if source.in_memory:
        return combine(_each_in_memory(source, function, columns, shared, arguments))
    layer, keys = partition_layer(source, name, function, columns, shared, arguments, apart=True)
    node = unique(f"exchange-{name}")
    layer[node] = Task(node, combine, references(keys))
    return GraphArgument(node, layer)


def arrays(
    source: Source,
    function: Function,
    columns: Sequence[str],
    shared: Any,
    arguments: Arguments,
    *,
    like: Callable[[], Mapping[str, np.ndarray]],
    rows: Sequence[int] | None,
) -> dict[str, Any]:
    """Return one array for each key that `function` gives: NumPy for sources in memory, else lazy Dask arrays.

    `function` gives a dict of arrays for one partition; `like` makes empty arrays of the same types and shapes, `rows`
    are the rows of each partition where they are known.
    """
    if source.in_memory:
        parts = _each_in_memory(source, function, columns, shared, arguments)
        if len(parts) == 1:
            return dict(parts[0])
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    layer, keys = partition_layer(source, "encode", function, columns, shared, arguments)
    name = keys[0][0]
    counts = tuple(rows) if rows is not None else (np.nan,) * source.npartitions
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
    source: Source,
    function: Function,
    columns: Sequence[str],
    shared: Any,
    arguments: Arguments,
    *,
    meta: pd.DataFrame,
    labels: Sequence[str],
) -> Any:
    """Return the pandas frames that a function gives as a lazy Dask frame, a partition for each.

    `meta` is such a frame without rows. Those of a Dask frame take its index, and the columns `labels` in front.
    """
    import dask.dataframe as dd  # noqa: PLC0415 it takes a second to import

    layer, keys = partition_layer(source, "predict", function, columns, shared, arguments, labels=labels)
    divisions: Sequence[Any] = (None,) * (source.npartitions + 1)
    if source.is_dask:
        divisions, meta = source.frame.divisions, labelled(source.frame._meta, labels, meta)
    return dd.from_graph(_Unread(layer, keys), meta, divisions, keys, "predict")


class _Unread(UserDict[Any, Any]):
    """A layer that Dask names without a look at its values, which takes long for large models, and fails for some."""

    def __init__(self, layer: Layer, keys: Sequence[Any]) -> None:
        super().__init__(layer)
        self._name = keys[0][0]

    def __dask_tokenize__(self) -> str:
        return str(self._name)


def _each_in_memory(
    source: Source,
    function: Function,
    columns: Sequence[str],
    shared: Any,
    arguments: Arguments,
    advance: Advance | None = None,
) -> list[Any]:
    assert not isinstance(arguments, GraphArgument)
    return on_threads(lambda i: function(shared, arguments[i], source.read(i, columns)), source.npartitions, advance)


def _merge_tree(layer: Layer, keys: Sequence[Any], merge: Callable[[list[Any]], Any]) -> list[Any]:
    """Add tasks that merge the results of `keys` until at most 8 remain, and return the keys of these."""
    remaining, depth = list(keys), 0
    while len(remaining) > _TREE_WIDTH:
        depth += 1
        level = unique(f"merge-{depth}")
        groups = _grouped(remaining)
        remaining = [(level, i) for i in range(len(groups))]
        layer.update({key: Task(key, merge, references(group)) for key, group in zip(remaining, groups, strict=True)})
    return remaining


def _grouped(items: Sequence[Any]) -> list[list[Any]]:
    return [list(items[i : i + _TREE_WIDTH]) for i in range(0, len(items), _TREE_WIDTH)]
