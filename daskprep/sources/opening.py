"""Conversion of all accepted kinds of data, such as frames, Arrow data and paths, to sources."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd

from daskprep.errors import ConfigError
from daskprep.sources.base import Source
from daskprep.sources.composed import (
    Prepare,
    PreparedSource,
    apply_function,
    combine_splits,
    function_name,
    get_splits,
    prepare_partition,
)
from daskprep.sources.datasets import HuggingFaceSource, is_dataset, open_arrow_dataset, open_stream
from daskprep.sources.file_source import PARTITION_BYTES, read_files
from daskprep.sources.frames import (
    DaskSource,
    PandasSource,
    TableSource,
    arrow_table,
    frame_of_columns,
    frame_of_rows,
    is_cell,
    is_dask_frame,
    is_instance_of,
)

_ACCEPTED = (
    "a pandas or Dask DataFrame, Arrow tables, streams and datasets, objects with __arrow_c_stream__, such as frames "
    "and tables of polars, DuckDB, Delta Lake and Lance, a Hugging Face dataset, a dict of columns, a list of dicts, "
    "a Source, a path, glob, folder or URL of Parquet, CSV, TSV, JSON lines, Feather, Arrow IPC or ORC files, a list "
    "of these, or a dict of any of these by split"
)


def as_source(
    frame: Any,
    *,
    columns: Iterable[str] | None = None,
    partition_bytes: int = PARTITION_BYTES,
    partitions: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Source:
    """Return a source of the rows of a frame or of files; a source is returned unchanged.

    Parameters
    ----------
    frame : DataFrame, Dask DataFrame, Arrow data, Hugging Face dataset, dict, list of dicts, Source, path or paths
        The rows. The options of `read_files` are for files only. A stream is read to its end in this call. A dict of
        these by split has an additional column "split".
    columns : iterable of str, optional
        The columns that will be read. Other columns may then have any type, and do not count towards
        `partition_bytes`.
    partition_bytes : int
        Maximum bytes of a partition in memory, two fifths of that for a stream, unless a single row group or record is
        larger. Frames ignore it.
    partitions : int, optional
        Minimum number of partitions of files and Hugging Face datasets.
    scratch : str or path, optional
        Folder for the rows of a stream and for parsed rows of JSON, by default the system's temporary folder.
    **options
        Other parameters of `read_files`, for files.

    Examples
    --------
    >>> import pandas as pd
    >>> source = as_source(pd.DataFrame({"city": ["Rome", None], "price": [1.5, float("nan")]}))
    >>> source.row_counts
    [2]
    >>> source.read(0, ["price"]).to_pydict()
    {'price': [1.5, None]}
    """
    wanted = None if columns is None else list(dict.fromkeys(columns))
    if isinstance(frame, Source):
        frame.require(wanted or ())
        return frame
    if frames := get_splits(frame):
        source_options: Any = {
            "partition_bytes": partition_bytes,
            "partitions": partitions,
            "scratch": scratch,
            **options,
        }
        return combine_splits(
            frames,
            wanted,
            lambda split_frame, split_columns: as_source(split_frame, columns=split_columns, **source_options),
        )
    if is_dask_frame(frame):
        dask_source = DaskSource(frame, wanted)
        dask_source.require(wanted or ())
        return dask_source
    if is_dataset(frame):
        return HuggingFaceSource(frame, wanted, partition_bytes, partitions)
    if isinstance(frame, Mapping) and not _is_encoded(frame):
        return PandasSource(frame_of_columns(frame), wanted)
    if isinstance(frame, list | tuple) and frame and all(isinstance(row, Mapping) for row in frame):
        return PandasSource(frame_of_rows(frame), wanted)
    if isinstance(frame, pd.DataFrame):
        return PandasSource(frame, wanted)
    if (source := _open_arrow(frame, wanted, partition_bytes, scratch)) is not None:
        return source
    paths = frame if isinstance(frame, list | tuple | set) else [frame]
    if all(isinstance(item, str | os.PathLike) for item in paths):
        partitioning: Any = {"partition_bytes": partition_bytes, "partitions": partitions}
        return read_files(frame, columns=wanted, scratch=scratch, **partitioning, **options)
    raise ConfigError(f"{_describe_type(frame)} cannot be read as rows; accepted are {_ACCEPTED}{_remedy(frame)}")


def prepared(frame: Any, function: Prepare, *, storage_options: Mapping[str, Any] | None = None) -> Source:
    """Return a source whose rows a function prepares, partition by partition.

    Parameters
    ----------
    frame : DataFrame, Dask DataFrame, datasets.Dataset, Source, str, path or list of paths
        The raw rows. With a dict of these by split, the function is called with rows of one split at a time.
    function : callable
        Takes a pandas frame and returns one with a row for each row, in the same order. The result of a row may not
        depend on other rows, because partitions may start at any row. It runs where partitions are read: on threads
        or on the workers of a cluster. A first call with an empty frame determines the columns of the result.
    storage_options : mapping or None
        Options for fsspec to open URLs, for files.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"price": [300.0, 200.0], "rooms": [3, 1]})
    >>> source = prepared(frame, lambda rows: rows.assign(each=rows["price"] / rows["rooms"]))
    >>> source.columns, source.read(0, ["each"])["each"].to_pylist()
    (['price', 'rooms', 'each'], [100.0, 200.0])
    """
    if not callable(function):
        raise ConfigError(f"prepare={function!r}: expected a function from a pandas frame to a pandas frame")
    if frames := get_splits(frame):
        source = combine_splits(
            frames, None, lambda split_frame, _: prepared(split_frame, function, storage_options=storage_options)
        )
        source.prepared_by = function_name(function)
        return source
    raw = as_source(frame, storage_options=storage_options)
    if not raw.is_dask:
        return PreparedSource(raw, function)
    result = raw.frame.map_partitions(prepare_partition, function, meta=apply_function(function, raw.frame._meta))
    source = DaskSource(result)
    source.prepared_by = function_name(function)
    return source


def estimate_bytes(frame: Any, **options: Any) -> int | None:
    """Return the bytes of all partitions of files in memory, 0 for frames of pandas; None: not known before reading.

    Paths are opened with `options`, the parameters of `as_source`.
    """
    if frames := get_splits(frame):
        sizes = [estimate_bytes(one, **options) for one in frames.values()]
        return None if None in sizes else sum(filter(None, sizes))
    paths = frame if isinstance(frame, list | tuple | set) else [frame]
    if all(isinstance(item, str | os.PathLike) for item in paths):
        frame = as_source(frame, **options)
    if isinstance(frame, pd.DataFrame) or (isinstance(frame, Source) and frame.in_memory):
        return 0
    if not isinstance(frame, Source) or frame.is_dask:
        return None
    return sum(fragment.nbytes for fragment in frame.fragments)


def wrap_single_row(data: Any) -> Any:
    """Return rows for `as_source`: a dict of cells, such as a request to a service, becomes a list of one row."""
    is_row = isinstance(data, Mapping) and not get_splits(data) and any(map(is_cell, data.values()))
    return [data] if is_row else data


def _is_encoded(frame: Any) -> bool:
    """Return whether an object is a class of this package, such as a split or a loader."""
    return type(frame).__module__.startswith("daskprep.")


def _open_arrow(
    data: Any, wanted: list[str] | None, partition_bytes: int, scratch: str | os.PathLike[str] | None
) -> Source | None:
    """Return the source of Arrow tables, datasets and streams; None for other objects."""
    if _is_encoded(data) or hasattr(data, "to_frame"):  # to_frame: a single column
        return None
    if (table := arrow_table(data, wanted)) is not None:
        return TableSource.from_table(table, wanted, partition_bytes)
    if is_instance_of(data, "deltalake", "DeltaTable"):
        data = data.to_pyarrow_dataset()
    if is_instance_of(data, "pyarrow.dataset", "Dataset"):
        source = open_arrow_dataset(data, wanted, partition_bytes)
        if source is not None:
            return source
    return open_stream(data, wanted, partition_bytes, scratch)


def _describe_type(frame: Any) -> str:
    """Return a phrase for a message, such as "a numpy.ndarray", or "a list of int" by the first element."""
    kind = type(frame)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(frame, list | tuple) and frame:
        return f"a {name} of {type(frame[0]).__qualname__}"
    return f"a {name}"


def _remedy(frame: Any) -> str:
    """Return how to convert an object to rows, as the end of a message; "" if unknown."""
    if type(frame).__module__.startswith("pyspark."):
        return "; write it as Parquet and give the path: frame.write.parquet(path)"
    if hasattr(frame, "to_frame"):
        return "; for a single column use .to_frame(), and for a single row frame.iloc[[i]]"
    if hasattr(frame, "to_pandas"):
        return "; use .to_pandas()"
    if _is_encoded(frame):
        return "; the rows of a dataset are encoded already: iterate over the loader of a split"
    if hasattr(frame, "shape"):
        return "; use pandas.DataFrame(array, columns=[...])"
    if isinstance(frame, Iterator):
        return "; for batches use pyarrow.RecordBatchReader.from_batches(schema, batches)"
    return ""
