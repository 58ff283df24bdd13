"""The only builder of Dask graphs: run a function over every partition of a source, and merge what it gives.

Functions are called as ``function(shared, argument, table)``: `shared` is the same for all partitions and is one node
of the graph, `argument` belongs to the partition. Neither holds rows; tables exist only inside a task.
Sources in this process's memory (pandas, NumPy) never enter a graph: their partitions are slices that threads work
on where they are.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import getitem
from typing import Any

import dask.array as da
import numpy as np
import pyarrow as pa

# Task and TaskRef say which argument is a reference; tuple tasks would replace any argument that happens to equal a
# key, and dask.delayed costs 0.7 ms a task.
from dask._task_spec import DataNode, List, Task, TaskRef
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.system import CPU_COUNT

from daskprep.sources import Source, table_from_pandas

__all__ = ["Function", "Told", "arrays", "each", "exchanged", "fold"]

Function = Callable[[Any, Any, pa.Table], Any]

_TREE_WIDTH = 8


class Told:
    """One argument for each partition that only the graph knows: a node that gives the list of them."""

    def __init__(self, node: str, layer: Mapping[Any, Any]) -> None:
        self.node = node
        self.layer = layer


Arguments = Sequence[Any] | Told


def each(
    source: Source, name: str, function: Function, columns: Sequence[str], shared: Any, arguments: Arguments
) -> list[Any]:
    """Run a function over every partition and return its small results in order."""
    if source.in_memory:
        return _each_in_memory(source, function, columns, shared, arguments)
    layer, keys = _layer(source, name, function, columns, shared, arguments)
    gather = _unique(f"gather-{name}")
    layer[gather] = Task(gather, list, _references(keys))
    gathered: list[Any] = _delayed(gather, layer).compute()
    return gathered


def fold(
    source: Source,
    name: str,
    function: Function,
    columns: Sequence[str],
    shared: Any,
    arguments: Arguments,
    *,
    merge: Callable[[list[Any]], Any],
    finish: Callable[[Any], Any],
) -> Any:
    """Run a function over every partition, merge the results in a tree, and return `finish` of the last one."""
    if source.in_memory:
        return finish(merge(_each_in_memory(source, function, columns, shared, arguments)))
    layer, keys = _layer(source, name, function, columns, shared, arguments)
    depth = 0
    while len(keys) > 1:
        depth += 1
        level = _unique(f"merge-{depth}")
        groups = [keys[i : i + _TREE_WIDTH] for i in range(0, len(keys), _TREE_WIDTH)]
        keys = [(level, i) for i in range(len(groups))]
        layer.update({key: Task(key, merge, _references(group)) for key, group in zip(keys, groups, strict=True)})
    last = _unique("learn")
    layer[last] = Task(last, finish, TaskRef(keys[0]))
    return _delayed(last, layer).compute()


def exchanged(
    source: Source,
    name: str,
    function: Function,
    columns: Sequence[str],
    shared: Any,
    combine: Callable[[list[Any]], list[Any]],
) -> Arguments:
    """Let partitions tell each other something: `combine` turns all results into one argument for each partition.

    For sources outside this process the answer is lazy, a node of the graph that `arrays` builds.
    """
    numbers = range(source.npartitions)
    if source.in_memory:
        return combine(_each_in_memory(source, function, columns, shared, numbers))
    layer, keys = _layer(source, name, function, columns, shared, numbers, apart=True)
    node = _unique(f"exchange-{name}")
    layer[node] = Task(node, combine, _references(keys))
    return Told(node, layer)


def arrays(
    source: Source,
    function: Function,
    columns: Sequence[str],
    shared: Any,
    arguments: Arguments,
    *,
    like: Mapping[str, np.ndarray],
    rows: Sequence[int] | None,
) -> dict[str, Any]:
    """Return one array for each key of `like`: NumPy for sources in memory, else lazy Dask arrays.

    `function` gives a dict of arrays for one partition; `like` holds empty arrays of the same types and shapes, `rows`
    the rows of each partition where they are known.
    """
    if source.in_memory:
        parts = _each_in_memory(source, function, columns, shared, arguments)
        return {
            key: parts[0][key] if len(parts) == 1 else np.concatenate([part[key] for part in parts]) for key in like
        }
    layer, keys = _layer(source, "encode", function, columns, shared, arguments)
    name = keys[0][0]
    counts = tuple(rows) if rows is not None else (np.nan,) * source.npartitions
    picked = {}
    for output, empty in like.items():
        prefix, tail = _unique(f"pick-{output}"), (0,) * (empty.ndim - 1)
        picks = {
            (prefix, i, *tail): Task((prefix, i, *tail), getitem, TaskRef(key), output) for i, key in enumerate(keys)
        }
        graph = HighLevelGraph(dict[str, Any]({name: layer, prefix: picks}), {name: set(), prefix: {name}})
        chunks = (counts, *((size,) for size in empty.shape[1:]))
        picked[output] = da.Array(graph, prefix, chunks, meta=empty)
    return picked


def _each_in_memory(
    source: Source, function: Function, columns: Sequence[str], shared: Any, arguments: Arguments
) -> list[Any]:
    assert not isinstance(arguments, Told)

    def run(i: int) -> Any:
        return function(shared, arguments[i], source.read(i, columns))

    threads = min(CPU_COUNT, source.npartitions)
    if threads == 1:
        return [run(i) for i in range(source.npartitions)]
    with ThreadPoolExecutor(threads, thread_name_prefix="daskprep") as pool:
        return list(pool.map(run, range(source.npartitions)))


def _layer(
    source: Source,
    name: str,
    function: Function,
    columns: Sequence[str],
    shared: Any,
    arguments: Arguments,
    *,
    apart: bool = False,
) -> tuple[dict[Any, Any], list[tuple[str, int]]]:
    """Return the graph of one task for each partition, and the keys of these tasks in order.

    With `apart` a Dask frame is read by tasks of its own: shared with later ones, Dask would keep every partition from
    the first use to the last.
    """
    prefix, state, wanted = _unique(name), _unique(f"state-{name}"), list(columns)
    layer: dict[Any, Any] = {state: DataNode(state, shared)}
    if source.is_dask:
        frame = source.frame[wanted]
        frame = (frame.map_partitions(_same) if apart else frame).optimize()
        layer.update(frame.__dask_graph__())
        run: Callable[..., Any] = _on_frame
        parts: Sequence[Any] = [TaskRef(key) for key in frame.__dask_keys__()]
    else:
        run, parts = _on_piece, source.pieces
    if isinstance(arguments, Told):
        layer.update(arguments.layer)
        told = [(_unique(f"tell-{name}"), i) for i in range(len(parts))]
        layer.update({key: Task(key, getitem, TaskRef(arguments.node), key[1]) for key in told})
        given = [TaskRef(key) for key in told]
    else:
        given = list(arguments)
    keys = [(prefix, i) for i in range(len(parts))]
    for key, argument, part in zip(keys, given, parts, strict=True):
        layer[key] = Task(key, run, function, TaskRef(state), argument, part, wanted)
    return layer, keys


def _references(keys: Sequence[Any]) -> List:
    return List(*[TaskRef(key) for key in keys])


def _delayed(key: str, layer: Mapping[Any, Any]) -> Delayed:
    return Delayed(key, HighLevelGraph.from_collections(key, layer, dependencies=()), layer=key)


def _same(frame: Any) -> Any:
    return frame


def _on_frame(function: Function, shared: Any, argument: Any, frame: Any, columns: list[str]) -> Any:
    return function(shared, argument, table_from_pandas(frame, columns))


def _on_piece(function: Function, shared: Any, argument: Any, piece: Any, columns: list[str]) -> Any:
    return function(shared, argument, piece.read(columns))


def _unique(name: str) -> str:
    # Dask's dashboard groups tasks by what stands before the hexadecimal part.
    return f"{name}-{uuid.uuid4().hex}"
