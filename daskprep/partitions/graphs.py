"""Graphs of one task for each partition of a source."""

from __future__ import annotations

import functools
import os
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import pyarrow as pa
from dask.highlevelgraph import HighLevelGraph

from daskprep.errors import ConfigError
from daskprep.partitions.dask_internals import DataNode, List, Task, TaskRef
from daskprep.sources import Source, table_from_pandas
from daskprep.storage.local_files import c_function

if TYPE_CHECKING:
    import pandas as pd

Layer = dict[Any, Any]

# Dask's nannies start workers with this threshold, above which glibc gives free memory back to the system, and no
# longer adapts by itself what it maps anew for every array.
_OF_DASK = "65536"
# Parameters of `mallopt` as glibc numbers them, M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, and bytes.
_KEEPING = ((-1, 1 << 28), (-3, 1 << 25))


Function = Callable[[Any, Any, pa.Table], Any]


class GraphArgument:
    """One argument for each partition that only the graph knows: a node that gives the list of them."""

    def __init__(self, node: str, layer: Mapping[Any, Any]) -> None:
        self.node = node
        self.layer = layer


Arguments = Sequence[Any] | GraphArgument


@dataclass(frozen=True)
class Pass:
    """What is done with every partition of a source: ``function(shared, argument, table)``.

    `shared` is the same for all partitions and is one node of the graph; each has one of the `arguments`.
    """

    source: Source
    function: Function
    columns: Sequence[str]
    shared: Any
    arguments: Arguments

    def on(self, partition: int) -> Any:
        """Return what the function gives for a partition, which is read in this process."""
        assert not isinstance(self.arguments, GraphArgument)
        table = self.source._read(partition, self.columns)
        return self.function(self.shared, self.arguments[partition], table)


def partition_layer(
    work: Pass, name: str, *, apart: bool = False, labels: Sequence[str] | None = None
) -> tuple[Layer, list[tuple[str, int]]]:
    """Return the graph of one task for each partition, and the keys of these tasks in order.

    With `apart` a Dask frame is read by tasks of its own: shared with later ones, Dask would keep every partition from
    the first use to the last. With `labels`, which columns may be, results are frames that take these columns of a Dask
    frame and its index.
    """
    source, arguments = work.source, work.arguments
    prefix, state, wanted = unique(name), unique(f"state-{name}"), list(work.columns)
    layer: Layer = {state: DataNode(state, work.shared)}
    if source.is_dask:
        frame = source.frame[list(dict.fromkeys([*wanted, *(labels or ())]))]
        frame = (frame.map_partitions(same) if apart else frame).optimize()
        layer.update(frame.__dask_graph__())
        run: Callable[..., Any] = on_frame if labels is None else functools.partial(_on_labelled, list(labels))
        parts: Sequence[Any] = [TaskRef(key) for key in frame.__dask_keys__()]
    else:
        run, parts = on_piece, source.pieces
    if isinstance(arguments, GraphArgument):
        layer.update(arguments.layer)
        told = [(unique(f"tell-{name}"), i) for i in range(len(parts))]
        layer.update({key: Task(key, getitem, TaskRef(arguments.node), key[1]) for key in told})
        given = [TaskRef(key) for key in told]
    else:
        given = list(arguments)
    keys = [(prefix, i) for i in range(len(parts))]
    for key, argument, part in zip(keys, given, parts, strict=True):
        layer[key] = Task(key, run, work.function, TaskRef(state), argument, part, wanted)
    return layer, keys


def references(keys: Sequence[Any]) -> List:
    """Return a list of the results of `keys`, as an argument of a task."""
    return List(*[TaskRef(key) for key in keys])


def unique(name: str) -> str:
    """Return a name that no other graph has; Dask's dashboard groups tasks by what stands before the hexadecimals."""
    return f"{name}-{uuid.uuid4().hex}"


def same(value: Any) -> Any:
    """Return what is given, as a task of its own."""
    return value


def on_frame(function: Callable[..., Any], shared: Any, argument: Any, frame: Any, columns: list[str]) -> Any:
    """Run a function on a partition of a Dask frame."""
    keep_freed_memory()
    return function(shared, argument, table_from_pandas(frame, columns))


def _on_labelled(labels: list[str], *task: Any) -> pd.DataFrame:
    frame = task[3]
    return labelled(frame, labels, on_frame(*task))


def labelled(frame: pd.DataFrame, labels: Sequence[str], results: pd.DataFrame) -> pd.DataFrame:
    """Return results, a row for each row of a frame, with the index of the frame and some of its columns in front."""
    found = results.set_axis(frame.index)
    for place, name in enumerate(labels):
        if name in found.columns:
            raise ConfigError(f'two columns would be named "{name}": rename that of the data')
        found.insert(place, name, frame[name].array)
    return found


def on_piece(function: Callable[..., Any], shared: Any, argument: Any, piece: Any, columns: list[str]) -> Any:
    """Run a function on a piece of files."""
    keep_freed_memory()
    return function(shared, argument, piece.read(columns))


@functools.cache
def keep_freed_memory() -> bool:
    """Undo what Dask's nannies set, once in this process, and tell whether it was set; other settings stay.

    Encoding spends a third of its time on memory that is had anew from the system otherwise.
    """
    if os.environ.get("MALLOC_TRIM_THRESHOLD_") != _OF_DASK or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return False
    mallopt = c_function("mallopt") if sys.platform == "linux" else None
    return mallopt is not None and all(mallopt(parameter, size) for parameter, size in _KEEPING)


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
