"""Conversion of all accepted kinds of data to sources, also composed ones: by split, selected or prepared rows."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Protocol, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from daskprep.errors import ColumnError, ConfigError, DaskprepError, MissingColumnError, did_you_mean
from daskprep.sources.base import (
    Fragment,
    FragmentListSource,
    FunctionFragment,
    ReadFunction,
    Source,
    content_key,
    repeat_text,
)
from daskprep.sources.datasets import (
    HuggingFaceSource,
    LakeTable,
    is_dataset,
    open_arrow_dataset,
    open_iceberg,
    open_stream,
)
from daskprep.sources.file_source import PARTITION_BYTES, estimate_file_bytes, read_files
from daskprep.sources.frames import (
    DaskSource,
    PandasSource,
    TableSource,
    arrow_table,
    column_names,
    frame_of_array,
    frame_of_columns,
    frame_of_rows,
    is_array,
    is_cell,
    is_dask_frame,
    is_instance_of,
    table_from_pandas,
    table_to_pandas,
    with_text_names,
)
from daskprep.storage.layout import SPLITS


class _Arrow(Protocol):
    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


class _Array(Protocol):
    def __array__(self) -> Any: ...


class _HuggingFace(Protocol):
    @property
    def column_names(self) -> Any: ...


class LazyRows(Protocol):
    """Frames and arrays of Dask, which has no annotations."""

    def compute(self, **kwargs: Any) -> Any: ...


Rows: TypeAlias = (
    LazyRows | _Array | _Arrow | _HuggingFace | Source | str | os.PathLike[str] | Collection[Any] | Iterator[Any]
)
"""Frames, arrays, tables, streams, paths and dicts whose rows `as_source` reads."""
RowsInMemory: TypeAlias = pd.DataFrame | NDArray[Any] | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""Rows for which results are NumPy arrays and pandas frames, also for a type checker."""
SPLIT = "split"

Mask = Callable[[int], np.ndarray]
Prepare: TypeAlias = Callable[[pd.DataFrame], pd.DataFrame]


class ComposedSource(FragmentListSource):
    """Fragments derived from fragments of other sources."""

    def __init__(
        self, columns: list[str], fragments: Sequence[Fragment], sources: Mapping[str, Source], *, splits: bool
    ) -> None:
        super().__init__(columns, fragments)
        self.in_memory = any(source.in_memory for source in sources.values())
        self.reads_all = any(source.reads_all for source in sources.values())
        self.files = tuple(file for source in sources.values() for file in source.files)
        self.sources = sources  # by split, or with the single key ""
        self.masks: Sequence[Mask] = ()  # of each partition, by its number of rows; empty: all rows
        self.splits = sources if splits else {}
        self._first = next(iter(sources.values()))

    @property
    def record(self) -> Mapping[str, Any] | None:  # type: ignore[override]
        """The records of all splits; None if one has none."""
        # A property, as the record of rows in memory is a digest of all cells, which only a write needs.
        if not self.splits:
            return self._first.record
        records = {name: source.record for name, source in self.splits.items()}
        return None if None in records.values() else {"splits": records}

    def identity(self) -> Any:
        """Return the identities of all sources; None if one has none."""
        rows = {name: source.identity() for name, source in self.sources.items()}
        mask_key = content_key(self.masks)
        return None if None in rows.values() or mask_key is None else [rows, mask_key]

    @property
    def schema(self) -> pa.Schema:
        return self._first.schema.append(pa.field(SPLIT, pa.string()))


def get_splits(frame: Any) -> Mapping[str, Any]:
    """Return the rows by split, or an empty mapping."""
    if isinstance(frame, Source):
        return frame.splits
    return frame if isinstance(frame, Mapping) and not frame.keys().isdisjoint(SPLITS) else {}


def combine_splits(
    frames: Mapping[str, Any], columns: Iterable[str] | None, open_source: Callable[..., Source]
) -> Source:
    """Return a source of splits, with a column "split"; ``open_source(frame, columns)`` opens one; or ConfigError."""
    for name in frames:
        if name not in SPLITS:
            raise ConfigError(f"no split {name!r}.{did_you_mean(name, SPLITS)} Splits are: {', '.join(SPLITS)}")
    wanted = None if columns is None else [name for name in columns if name != SPLIT]
    sources: dict[str, Source] = {}
    failed: list[tuple[str, DaskprepError]] = []
    for name in (name for name in SPLITS if name in frames):
        try:
            sources[name] = open_source(frames[name], wanted)
        except DaskprepError as error:
            failed.append((name, error))
    for name, reason in failed:
        # A column absent from all splits may be a target, which new rows need not have: callers catch the error.
        text = f'split "{name}": {reason}'
        if isinstance(reason, MissingColumnError):
            raise ColumnError(text) if sources else MissingColumnError(text, reason.column) from reason
        raise type(reason)(text) from reason
    data_columns = (
        [name for name in next(iter(sources.values())).columns if name != SPLIT] if wanted is None else wanted
    )
    dask_frames = {name: source.frame for name, source in sources.items() if source.is_dask}
    if len(dask_frames) == len(sources):
        frames_with_split = [frame[data_columns].assign(**{SPLIT: name}) for name, frame in dask_frames.items()]
        joined: Source = DaskSource(sys.modules["dask.dataframe"].concat(frames_with_split), [*data_columns, SPLIT])
        joined.splits = sources
        return joined
    for name in dask_frames:
        raise ConfigError(f'split "{name}" is a Dask frame, but another is not: pass all as Dask frames, or as files')
    fragments = [
        FunctionFragment(functools.partial(_add_split_column, name, fragment.read), fragment.rows, fragment.nbytes)
        for name, source in sources.items()
        for fragment in source.fragments
    ]
    return ComposedSource([*data_columns, SPLIT], fragments, sources, splits=True)


def select_rows(source: Source, masks: Sequence[Mask], rows: Sequence[int]) -> Source:
    """Return a lazy source of the rows in `masks`, one per partition; `rows` is how many each selects."""
    if source.is_dask:
        select = functools.partial(_select_frame_rows, masks)
        selected: Source = DaskSource(source.frame.map_partitions(select, meta=source.frame._meta), source.columns)
        selected.prepared_by = source.prepared_by
        return selected
    fragments = [
        FunctionFragment(functools.partial(_select_rows, mask, fragment.read), count, fragment.nbytes)
        for fragment, mask, count in zip(source.fragments, masks, rows, strict=True)
    ]
    selected = ComposedSource(source.columns, fragments, {"": source}, splits=False)
    selected.masks = list(masks)
    selected.prepared_by = source.prepared_by
    return selected


def _add_split_column(name: str, read: ReadFunction, columns: Sequence[str]) -> pa.Table:
    table = read([column for column in columns if column != SPLIT])
    return table.append_column(SPLIT, repeat_text(name, table.num_rows)).select(list(columns))


def _select_rows(mask: Mask, read: ReadFunction, columns: Sequence[str]) -> pa.Table:
    table = read(columns)
    return table.filter(pa.array(mask(table.num_rows)))


def _select_frame_rows(masks: Sequence[Mask], frame: Any, partition_info: Any = None) -> Any:
    return frame if partition_info is None else frame[masks[partition_info["number"]](len(frame))]


class PreparedSource(FragmentListSource):
    """The results of a function for the rows of another source, `raw`."""

    reads_all = True

    def __init__(self, raw: Source, function: Prepare) -> None:
        self.raw = raw
        self._function = function
        self.prepared_by = function_name(function)
        self.in_memory = raw.in_memory
        starts = list(accumulate(raw.row_counts or (), initial=0))
        if isinstance(raw, PandasSource):
            empty = raw.frame.iloc[:0]
        else:
            empty = table_to_pandas(raw.read(0, raw.columns).slice(0, 0) if raw.in_memory else raw.schema.empty_table())
        result = apply_function(function, empty)
        fragments = []
        for number, fragment in enumerate(raw.fragments):
            rows: Any = fragment
            if isinstance(raw, PandasSource):
                rows = raw.frame.iloc[starts[number] : starts[number + 1]]
            read_function = functools.partial(_read_prepared, function, rows, raw.columns, number)
            fragments.append(FunctionFragment(read_function, fragment.rows, fragment.nbytes))
        super().__init__(table_from_pandas(result, column_names(result.columns, None)).schema, fragments)

    def identity(self) -> Any:
        rows, function = self.raw.identity(), content_key(self._function)
        return None if rows is None or function is None else [rows, self.raw.columns, function]

    @property
    def folders(self) -> tuple[str, ...]:
        return self.raw.folders


def function_name(function: Any) -> str:
    """Return the module and qualified name of a function."""
    while isinstance(function, functools.partial):
        function = function.func
    owner = function if hasattr(function, "__qualname__") else type(function)
    return f"{owner.__module__}.{owner.__qualname__}"


def prepare_partition(frame: pd.DataFrame, function: Prepare, partition_info: Any = None) -> pd.DataFrame:
    """Return the result of the function for a partition of a Dask frame."""
    return apply_function(function, frame, f"partition {(partition_info or {}).get('number')}")


def _read_prepared(
    function: Prepare, rows: Fragment | pd.DataFrame, raw: Sequence[str], partition: int, columns: Sequence[str]
) -> pa.Table:
    """Return columns of the prepared rows; ColumnError if the function omits one."""
    frame = rows if isinstance(rows, pd.DataFrame) else table_to_pandas(rows.read(raw))
    result = apply_function(function, frame, f"partition {partition}")
    if missing := [column for column in columns if column not in result]:
        raise ColumnError(
            f'{function_name(function)} returned no column "{missing[0]}" for partition {partition}, but did for a '
            "frame without rows: return the same columns for all frames"
        )
    return table_from_pandas(result, columns)


def apply_function(function: Prepare, frame: pd.DataFrame, where: str = "a frame without rows") -> pd.DataFrame:
    """Return the function's result for a frame; ColumnError unless it has the same rows in the same order."""
    name = function_name(function)
    try:
        result = function(frame.copy(deep=False))
    except Exception as error:
        error.add_note(f"while {name} prepared {where}")
        raise
    if not isinstance(result, pd.DataFrame) or len(result) != len(frame):
        returned = f"{len(result):,} rows" if isinstance(result, pd.DataFrame) else f"a {type(result).__name__}"
        raise ColumnError(
            f"{name} returned {returned} for {where}, which has {len(frame):,} rows. Return a pandas frame with a row "
            "for each, in the same order; to drop rows, set a cell to a missing value, and use missing_value_strategy="
            '"drop_row" for its feature'
        )
    before, after = frame.index, result.index
    if not after.equals(before) and before.is_unique and after.is_unique and after.isin(before).all():
        raise ColumnError(
            f"{name} changed the order of the rows of {where}: return them in the same order, for example with "
            ".sort_index(); the order may not depend on the partitions"
        )
    return result


_ACCEPTED = (
    "frames of pandas, Dask and polars, Arrow tables and streams, Delta Lake, Lance, Iceberg, Hugging Face datasets, "
    "dicts of columns, lists of dicts, paths of Parquet, CSV, JSON, Feather, ORC and tar files, splits"
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
    """Return a source of the rows of a frame or of files.

    ConfigError for other data.

    Parameters
    ----------
    frame : DataFrame, Dask DataFrame, Arrow data, Hugging Face dataset, dict, list of dicts, Source, path or paths
        The rows. The options of `read_files` are for files only. A stream is read to its end in this call. A dict of
        these by split has an additional column "split".
    columns : iterable of str, optional
        The columns that will be read. Others may then have any type, and do not count towards `partition_bytes`.
    partition_bytes : int
        Maximum bytes of a partition in memory, 2/5 for a stream, unless a row group or record is larger.
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
        options |= {"partition_bytes": partition_bytes, "partitions": partitions, "scratch": scratch}
        return combine_splits(frames, wanted, lambda one, own_columns: as_source(one, columns=own_columns, **options))
    if is_dask_frame(frame):
        dask_source = DaskSource(with_text_names(frame), wanted)
        dask_source.require(wanted or ())
        return dask_source
    if is_dataset(frame):
        return HuggingFaceSource(frame, wanted, partition_bytes, partitions)
    if (rows := as_pandas(frame)) is not None:
        return PandasSource(rows, wanted)
    if (source := _open_arrow(frame, wanted, partition_bytes, scratch)) is not None:
        return source
    paths = frame if isinstance(frame, list | tuple | set) else [frame]
    if all(isinstance(item, str | os.PathLike) for item in paths):
        options |= {"partition_bytes": partition_bytes, "partitions": partitions, "scratch": scratch}
        return read_files(frame, columns=wanted, **options)
    kind = type(frame)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    items = f" of {type(frame[0]).__qualname__}" if isinstance(frame, list | tuple) and frame else ""
    raise ConfigError(f"a {name}{items} cannot be read as rows{_remedy(frame)}. Accepted: {_ACCEPTED}")


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
    """Return the bytes of all partitions: 0 if in memory, None if unknown. Paths are listed, not opened."""
    if frames := get_splits(frame):
        sizes = [estimate_bytes(one, **options) for one in frames.values()]
        return None if None in sizes else sum(filter(None, sizes))
    paths = frame if isinstance(frame, list | tuple | set) else [frame]
    if all(isinstance(item, str | os.PathLike) for item in paths):
        return estimate_file_bytes(frame, options.get("storage_options"), options.get("format"))
    if isinstance(frame, pd.DataFrame) or (isinstance(frame, Source) and frame.in_memory):
        return 0
    if not isinstance(frame, Source) or frame.is_dask:
        return None
    return sum(fragment.nbytes for fragment in frame.fragments)


def as_pandas(data: Any) -> pd.DataFrame | None:
    """Return pandas frames, arrays, dicts and lists of dicts as a frame; else None."""
    if _is_encoded(data) or get_splits(data):
        return None
    if isinstance(data, Mapping):
        return frame_of_columns(data)
    if isinstance(data, list | tuple) and data and all(isinstance(row, Mapping) for row in data):
        return frame_of_rows(data)
    if is_array(data):
        return frame_of_array(data)
    return with_text_names(data) if isinstance(data, pd.DataFrame) else None


def wrap_single_row(data: Any) -> Any:
    """Return a dict of cells in a list, other data unchanged."""
    is_row = isinstance(data, Mapping) and not get_splits(data) and any(map(is_cell, data.values()))
    return [data] if is_row else data


def _is_encoded(frame: Any) -> bool:
    return type(frame).__module__.startswith("daskprep.")


def _open_arrow(
    data: Any, wanted: list[str] | None, partition_bytes: int, scratch: str | os.PathLike[str] | None
) -> Source | None:
    """Return the source of Arrow tables, datasets and streams; None for others."""
    if _is_encoded(data) or hasattr(data, "to_frame"):  # to_frame: a single column
        return None
    if (table := arrow_table(data, wanted)) is not None:
        return TableSource.from_table(table, wanted, partition_bytes)
    if is_instance_of(data, "pyiceberg.table", "Table") or is_instance_of(data, "pyiceberg.table", "DataScan"):
        return open_iceberg(data, wanted, partition_bytes, scratch)
    lake = None
    if is_instance_of(data, "deltalake", "DeltaTable"):
        data, lake = data.to_pyarrow_dataset(), LakeTable(data.table_uri, data.table_uri)
    if is_instance_of(data, "pyarrow.dataset", "Dataset"):
        source = open_arrow_dataset(data, wanted, partition_bytes, lake)
        if source is not None:
            return source
    return open_stream(data, wanted, partition_bytes, scratch)


def _remedy(frame: Any) -> str:
    """Return a way to convert an object to rows, or ""."""
    if frame is None:
        return "; pass a frame or a path (methods of pandas with inplace=True return None)"
    first = frame[0] if isinstance(frame, list | tuple) and frame else frame
    if type(first).__module__.startswith(("dask.", "distributed.")) and not hasattr(type(first), "to_frame"):
        return "; make it a Dask frame, by to_dask_dataframe(columns=[...]), to_dataframe() or from_delayed([...])"
    if hasattr(frame, "to_frame"):
        return "; for a single column use .to_frame(), and for a single row frame.iloc[[i]]"
    if hasattr(frame, "to_pandas"):
        return "; use .to_pandas()"
    if _is_encoded(frame):
        return "; its rows are encoded already: pass the frame or the files that the dataset was written from"
    if isinstance(frame, Iterator):
        return "; for batches use pyarrow.RecordBatchReader.from_batches(schema, batches)"
    return ""
