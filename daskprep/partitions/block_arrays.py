"""Lazy arrays over blocks that lie on disk already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph

from daskprep.partitions.dask_internals import DataNode, Task, TaskRef
from daskprep.partitions.graphs import unique


def end_to_end(arrays: Sequence[Any]) -> Any:
    """Return lazy Dask arrays as one, their rows one after the other."""
    return da.concatenate(arrays)


def blocks(
    name: str,
    function: Callable[[Any, Any], np.ndarray],
    shared: Any,
    arguments: Sequence[Any],
    *,
    rows: Sequence[int],
    like: np.ndarray,
) -> Any:
    """Return a lazy Dask array with a chunk for each argument, which ``function(shared, argument)`` reads.

    `rows` are the rows of each chunk, and `like` is an empty array of the same type and shape.
    """
    prefix, state, tail = unique(name), unique(f"state-{name}"), (0,) * (like.ndim - 1)
    layer: dict[Any, Any] = {state: DataNode(state, shared)}
    for i, argument in enumerate(arguments):
        key = (prefix, i, *tail)
        layer[key] = Task(key, function, TaskRef(state), argument)
    graph = HighLevelGraph.from_collections(prefix, layer, dependencies=())
    return da.Array(graph, prefix, (tuple(rows), *((size,) for size in like.shape[1:])), meta=like)
