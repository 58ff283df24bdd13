"""Dask graphs with one task for each partition of a source."""

from __future__ import annotations

import functools
import os
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from dask.highlevelgraph import HighLevelGraph

from daskprep.errors import ConfigError
from daskprep.sources import Source, table_from_pandas
from daskprep.sources.partitions.dask_internals import DataNode, List, Task, TaskRef, optimize_frame
from daskprep.storage.local_files import load_c_function

if TYPE_CHECKING:
    import pandas as pd

Layer = dict[Any, Any]

# Dask's nannies start workers with this threshold. glibc returns free memory above it to the system, and no longer
# adapts the size from which each array is a new memory map.
_DASK_TRIM_THRESHOLD = "65536"
# Numbers of glibc's `mallopt` parameters M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, with values in bytes.
_MALLOC_PARAMETERS = ((-1, 1 << 28), (-3, 1 << 25))

PartitionFunction = Callable[[Any, Any, pa.Table], Any]


class LazyArguments:
    """Arguments that tasks compute, as the list `node` of `layer`."""

    def __init__(self, node: str, layer: Mapping[Any, Any]) -> None:
        self.node = node
        self.layer = layer


Arguments = Sequence[Any] | LazyArguments


@dataclass(frozen=True)
class Work:
    """A call of a function for every partition of a source.

    `shared` is the same for all partitions, and one node of the graph; `arguments` has one item for each partition.
    """

    source: Source
    function: PartitionFunction
    columns: Sequence[str]
    shared: Any
    arguments: Arguments

    def run_on(self, partition: int) -> Any:
        """Return the result for a partition, read in this process."""
        assert not isinstance(self.arguments, LazyArguments)
        table = self.source._read(partition, self.columns)
        return self.function(self.shared, self.arguments[partition], table)


def partition_layer(
    work: Work, name: str, *, separate_tasks: bool = False, leading_columns: Sequence[str] | None = None
) -> tuple[Layer, list[tuple[str, int]]]:
    """Return the graph of one task a partition, and the keys.

    With `separate_tasks`, the tasks that read a Dask frame are not shared with later graphs: Dask would keep partitions
    from first to last use. With `leading_columns`, results are frames that get these and the index of a Dask frame.
    """
    source, arguments = work.source, work.arguments
    wanted, layer = list(work.columns), Layer()
    state = add_value(layer, f"state-{name}", work.shared)
    if source.is_dask:
        frame = source.frame[list(dict.fromkeys([*wanted, *(leading_columns or ())]))]
        frame = optimize_frame(frame.map_partitions(identity) if separate_tasks else frame)
        layer.update(frame.__dask_graph__())
        run: Callable[..., Any] = (
            run_on_frame if leading_columns is None else functools.partial(_run_and_prepend, list(leading_columns))
        )
        partition_inputs: Sequence[Any] = [TaskRef(key) for key in frame.__dask_keys__()]
    else:
        run, partition_inputs = run_on_fragment, source.fragments
    if isinstance(arguments, LazyArguments):
        layer.update(arguments.layer)
        node, numbers = TaskRef(arguments.node), range(len(partition_inputs))
        arguments = [*map(TaskRef, add_tasks(layer, f"argument-{name}", getitem, [(node, i) for i in numbers]))]
    inputs = zip(arguments, partition_inputs, strict=True)
    return layer, add_tasks(layer, name, run, [(work.function, state, *both, wanted) for both in inputs])


def add_value(layer: Layer, name: str, value: Any) -> TaskRef:
    """Add a value to a graph, and return a reference to it."""
    key = unique_name(name)
    layer[key] = DataNode(key, value)
    return TaskRef(key)


def add_tasks(
    layer: Layer, name: str, function: Callable[..., Any], argument_lists: Iterable[Sequence[Any]]
) -> list[tuple[str, int]]:
    """Add a task for each list of arguments, and return the keys."""
    prefix, keys = unique_name(name), list[tuple[str, int]]()
    for i, arguments in enumerate(argument_lists):
        keys.append((prefix, i))
        layer[prefix, i] = Task((prefix, i), function, *arguments)
    return keys


def reference_results(keys: Sequence[Any]) -> List:
    """Return references to the results of `keys` as a list."""
    return List(*[TaskRef(key) for key in keys])


def unique_name(name: str) -> str:
    """Return a unique name for tasks; Dask groups by its start."""
    return f"{name}-{uuid.uuid4().hex}"


def identity(value: Any) -> Any:
    """Return the value unchanged, as a separate task."""
    return value


def run_on_frame(function: Callable[..., Any], shared: Any, argument: Any, frame: Any, columns: list[str]) -> Any:
    """Return the result for a partition of a Dask frame."""
    keep_freed_memory()
    return function(shared, argument, table_from_pandas(frame, columns))


def _run_and_prepend(leading_columns: list[str], *task: Any) -> pd.DataFrame:
    return prepend_columns(task[3], leading_columns, run_on_frame(*task))


def prepend_columns(frame: pd.DataFrame, leading_columns: Sequence[str], results: pd.DataFrame) -> pd.DataFrame:
    """Return results with the index and first columns of `frame`; ConfigError for a name in both."""
    combined = results.set_axis(frame.index)
    for position, name in enumerate(leading_columns):
        if name in combined.columns:
            raise ConfigError(f'two columns would be named "{name}": rename the column of the data')
        combined.insert(position, name, frame[name].array)
    return combined


def run_on_fragment(function: Callable[..., Any], shared: Any, argument: Any, fragment: Any, columns: list[str]) -> Any:
    """Return the result for a fragment, which is read here."""
    keep_freed_memory()
    return function(shared, argument, fragment.read(columns))


@functools.cache
def keep_freed_memory() -> bool:
    """Undo the malloc setting of Dask's nannies, and return whether it was undone.

    Other settings stay. With Dask's, encoding spends a third of its time on memory that glibc requests repeatedly.
    """
    if os.environ.get("MALLOC_TRIM_THRESHOLD_") != _DASK_TRIM_THRESHOLD or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return False
    mallopt = load_c_function("mallopt") if sys.platform == "linux" else None
    return mallopt is not None and all(mallopt(parameter, size) for parameter, size in _MALLOC_PARAMETERS)


def concatenate_arrays(arrays: Sequence[Any]) -> Any:
    """Return the concatenation of lazy Dask arrays along the rows."""
    import dask.array as da  # noqa: PLC0415 it takes half a second to import

    return da.concatenate(arrays)


def build_chunked_array(
    name: str,
    function: Callable[[Any, Any], np.ndarray],
    shared: Any,
    arguments: Sequence[Any],
    *,
    rows: Sequence[int],
    like: np.ndarray,
) -> Any:
    """Return a lazy Dask array of a function's chunks of `rows` rows, `like` an array."""
    from dask.array import Array  # noqa: PLC0415 as above

    prefix, tail, layer = unique_name(name), (0,) * (like.ndim - 1), Layer()
    state = add_value(layer, f"state-{name}", shared)
    for i, argument in enumerate(arguments):
        key = (prefix, i, *tail)
        layer[key] = Task(key, function, state, argument)
    graph = HighLevelGraph.from_collections(prefix, layer, dependencies=())
    return Array(graph, prefix, (tuple(rows), *((size,) for size in like.shape[1:])), meta=like)
