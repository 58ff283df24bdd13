"""Sources of pandas frames and Arrow tables in memory, and of Dask frames."""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.types as pt

from daskprep.columns.kernels import unwrap_mixed_column, unwrap_mixed_table
from daskprep.errors import ColumnError
from daskprep.sources.arrow_types import narrow_column, narrow_schema, narrow_table
from daskprep.sources.base import (
    FragmentListSource,
    FunctionFragment,
    Source,
    check_names,
    require_columns,
    table_without_columns,
)
from daskprep.sources.cells import Cells, cell_kind
from daskprep.sources.columnar import decoded_nbytes
from daskprep.storage.threads import map_in_threads

_SLICE_ROWS = 131_072
# A slice of media is converted as one, and a cell may take megabytes.
_MEDIA_ROWS = 1_024
_MEDIA_KINDS = frozenset({"image", "audio", "bytes"})
_NON_TEXT_KINDS = frozenset({"list", "image", "audio", "refused"})
_SAMPLE_CELLS = 1_000
# Types of polars, also of the elements of lists.
_NOT_IN_ARROW = re.compile(r"\b(Object|U?Int128)\b")
_WIDE_INTEGERS = ("Int128", "UInt128")


class PandasSource(Source):
    """A pandas frame, converted to Arrow in slices when they are read."""

    in_memory = True
    row_counts: list[int]

    def __init__(self, frame: pd.DataFrame, columns: Iterable[str] | None = None) -> None:
        self.columns = column_names(frame.columns, columns)
        self.series = {name: frame[name] for name in self.columns}
        large = len(frame) > _MEDIA_ROWS and not _MEDIA_KINDS.isdisjoint(self._kinds.values())
        self._slice_rows = _MEDIA_ROWS if large else _SLICE_ROWS
        self.row_counts = slice_lengths(len(frame), self._slice_rows)
        self.npartitions = len(self.row_counts)
        self.frame = frame

    @functools.cached_property
    def _kinds(self) -> dict[str, str]:
        """The `cell_kind` of each object column, over all rows."""
        objects = {name: series for name, series in self.series.items() if _has_object_dtype(series.dtype)}
        return {name: cell_kind(series.to_numpy()) for name, series in objects.items()}

    def _read(self, partition: int, columns: Sequence[str]) -> pa.Table:
        """Return a converted slice of columns, or raise ColumnError."""
        self.require(columns)
        start = partition * self._slice_rows
        rows = self.row_counts[partition] if self.row_counts else 0
        arrays = {}
        for name in columns:
            series = self.series[name]
            part = series if self.npartitions == 1 else series.iloc[start : start + rows]
            arrays[name] = series_to_arrow(part, name, self._kinds.get(name), start)
        return _make_table(arrays, rows)

    @functools.cached_property
    def record(self) -> Mapping[str, Any] | None:  # type: ignore[override]
        return content_record(self) if _MEDIA_KINDS.isdisjoint(self._kinds.values()) else None

    def sample(self, columns: Sequence[str], max_rows: int) -> pa.Table:
        """Return columns of every n-th row, at most `max_rows`."""
        self.require(columns)
        step = -(-max(len(self.frame), 1) // max_rows)
        rows = self.frame.iloc[::step]
        arrays = {name: series_to_arrow(rows[name], name, self._kinds.get(name), None) for name in columns}
        return _make_table(arrays, len(rows))

    @property
    def partition_bytes(self) -> int:
        """Bytes of a full slice, by the mean size of a row."""
        rows = len(self.frame)
        total = int(self.frame[self.columns].memory_usage(index=False, deep=True).sum())
        return total * min(self._slice_rows, rows) // max(rows, 1)


class TableSource(FragmentListSource):
    """Arrow tables in memory, each of them a partition."""

    in_memory = True

    def __init__(self, tables: Sequence[pa.Table]) -> None:
        fragments = [
            FunctionFragment(functools.partial(_select_narrow, table), table.num_rows, decoded_nbytes(table))
            for table in tables
        ]
        super().__init__(narrow_schema(tables[0].schema), fragments)

    @functools.cached_property
    def record(self) -> Mapping[str, Any] | None:  # type: ignore[override]
        return None if _may_contain_media(self.schema) else content_record(self)

    @classmethod
    def from_table(cls, table: pa.Table, columns: list[str] | None, partition_bytes: int) -> TableSource:
        """Return a source of zero-copy slices of a table."""
        chosen = table.select(choose_columns(table.column_names, columns, "the table"))
        max_rows = max_slice_rows(chosen.schema, decoded_nbytes(chosen) / max(len(chosen), 1), partition_bytes)
        return cls([chosen.slice(i * max_rows, max_rows) for i in range(len(slice_lengths(len(chosen), max_rows)))])


class DaskSource(Source):
    """A Dask frame, converted where its partitions are computed."""

    is_dask = True

    def __init__(self, frame: Any, columns: Iterable[str] | None = None) -> None:
        self.columns = column_names(frame.columns, columns)
        self.row_counts = None
        self.npartitions = frame.npartitions
        self.frame = frame
        self._problems = _find_text_conversions(frame, self.columns)

    def identity(self) -> Any:
        return self.frame._name

    def _read(self, partition: int, columns: Sequence[str]) -> pa.Table:
        self.require(columns)
        return table_from_pandas(self.frame[list(columns)].partitions[partition].compute(), columns)

    def __repr__(self) -> str:
        return f"<DaskSource: {self.npartitions} partitions, {len(self.columns)} columns>"


def _find_text_conversions(frame: Any, columns: Sequence[str]) -> dict[str, str]:
    """Return, by column, errors for lists and media that Dask converted to text."""
    problems = {}
    text_columns = {name for name in columns if isinstance(frame.dtypes[name], pd.StringDtype)}
    nodes = list(frame.expr.walk()) if text_columns and hasattr(frame, "expr") else []
    text_columns -= {name for node in nodes if type(node).__name__ == "Assign" for name in node.operands[1::2]}
    for node in nodes:
        for name, cells in _cells_before_conversion(node, type(frame), text_columns).items():
            if cell_kind(cells) in _NON_TEXT_KINDS:
                problems[name] = (
                    f'column "{name}" of the Dask frame: its string conversion turned cells of type '
                    f'{type(cells[0]).__name__} into text; use dask.config.set({{"dataframe.convert-string": False}}) '
                    "before the frame is created"
                )
    return problems


def _cells_before_conversion(node: Any, frame_type: type, columns: set[str]) -> dict[str, np.ndarray]:
    """Return, by column, the first present cells that a node of Dask converts to text."""
    node_type = type(node).__name__
    if node_type.startswith("FromPandas") and node.operand("pyarrow_strings_enabled"):
        rows = node.operand("frame")._data
    elif node_type == "ArrowStringConversion":
        rows = node.frame._meta
    else:
        return {}
    dtypes = rows.dtypes if isinstance(rows, pd.DataFrame) else pd.Series()
    objects = [name for name, dtype in dtypes.items() if name in columns and _has_object_dtype(dtype)]
    if objects and node_type == "ArrowStringConversion":
        rows = frame_type(node.frame)[objects].partitions[0].compute()
    samples = {name: rows[name][rows[name].notna()].head(_SAMPLE_CELLS).to_numpy() for name in objects}
    return {name: cells for name, cells in samples.items() if len(cells)}


def is_dask_frame(frame: object) -> bool:
    """Return whether an object is a Dask frame."""
    return is_instance_of(frame, "dask.dataframe", "DataFrame")


def is_instance_of(value: object, module: str, name: str) -> bool:
    """Return whether an object is of a class, without an import."""
    cls = getattr(sys.modules.get(module), name, None)
    return isinstance(cls, type) and isinstance(value, cls)


def is_frame(frame: object) -> bool:
    """Return whether an object is a pandas or Dask frame."""
    return isinstance(frame, pd.DataFrame) or is_dask_frame(frame)


def is_array(data: Any) -> bool:
    """Return whether data is an array, or a list of lists; frames, columns and lazy arrays are not."""
    if isinstance(data, list):
        return bool(data) and isinstance(data[0], list | tuple | np.ndarray)
    # Frames and columns convert to arrays too, and lazy arrays would be computed.
    others = ("columns", "to_frame", "compute", "__arrow_c_stream__")
    converts = hasattr(data, "__array__") or hasattr(data, "tocsr")
    return converts and not isinstance(data, str) and not any(hasattr(data, name) for name in others)


def frame_of_array(array: Any, estimator: Any = None) -> pd.DataFrame:
    """Return a 2-D array as a frame with columns x0, x1, ..."""
    from sklearn.utils import check_array  # noqa: PLC0415 it takes a second to import

    checked = check_array(array, dtype=None, ensure_all_finite=False, estimator=estimator)
    return pd.DataFrame(checked, columns=[f"x{i}" for i in range(checked.shape[1])])


def with_text_names(frame: Any) -> Any:
    """Return a frame with column names that are integers as text, and others unchanged."""
    texts = {name: str(name) for name in frame.columns if isinstance(name, Integral) and not isinstance(name, bool)}
    return frame.rename(columns=texts) if texts else frame


def column_names(labels: pd.Index[Any], wanted: Iterable[str] | None) -> list[str]:
    """Return the `wanted` columns of a frame, or all; ColumnError for repeated names, and those not text."""
    chosen = None if wanted is None else list(wanted)
    texts = [name for name in labels if isinstance(name, str)]
    wanted_names = set(chosen or ()).difference(texts)
    for name in labels if len(texts) < len(labels) else ():
        has_levels = isinstance(labels, pd.MultiIndex)
        if not isinstance(name, str) and (has_levels or chosen is None or str(name) in wanted_names):
            expression = '["_".join(map(str, name)) for name in frame.columns]'
            remedy = expression if has_levels else "frame.columns.astype(str)"
            raise ColumnError(
                f"column {name!r} of the frame is named by a {type(name).__name__}, and names must be text: "
                f"use frame.columns = {remedy}"
            )
    return choose_columns(texts, chosen, "the frame", "rename one by frame.columns = [...]")


def choose_columns(names: Sequence[str], wanted: list[str] | None, where: str, remedy: str = "rename one") -> list[str]:
    """Return the `wanted` names (None: all) of a table; ColumnError for an absent or repeated one."""
    require_columns(wanted or (), names)
    wanted_names = set(names if wanted is None else wanted)
    check_names([name for name in names if name in wanted_names], where, remedy)
    return list(names) if wanted is None else wanted


def arrow_table(data: Any, wanted: list[str] | None = None) -> pa.Table | None:
    """Return Arrow data as a table; None for streams and others, ColumnError if unreadable."""
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    # DuckDB's relations have a length too, but computing it runs the query.
    sized = hasattr(data, "__arrow_c_stream__") and not is_instance_of(data, "duckdb", "DuckDBPyRelation")
    if not sized or not (hasattr(data, "num_rows") or hasattr(data, "__len__")):
        return None
    if is_instance_of(data, "polars", "DataFrame"):
        data = select_polars_columns(data, wanted)
    try:
        return pa.table(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ColumnError(f"the columns of a {type(data).__name__} cannot be read: {error}") from error


def select_polars_columns(frame: Any, wanted: list[str] | None) -> Any:
    """Return `wanted` columns, integers of 128 bits as text; ColumnError for types that Arrow lacks."""
    types = frame.collect_schema()
    require_columns(wanted or (), list(types))
    names = list(types) if wanted is None else wanted
    for name in names:
        if str(types[name]) not in _WIDE_INTEGERS and _NOT_IN_ARROW.search(str(types[name])):
            raise ColumnError(
                f'column "{name}" of a polars {type(frame).__name__} has type {types[name]}, which Arrow does not '
                "have: cast it, to numbers of 64 bits or text, or leave the column out"
            )
    polars = sys.modules["polars"]
    wide = [polars.col(name).cast(polars.String) for name in names if str(types[name]) in _WIDE_INTEGERS]
    return frame.select(names).with_columns(wide)


def frame_of_columns(columns: Mapping[str, Any]) -> pd.DataFrame:
    """Return a frame of lists and arrays by column name; ColumnError if their lengths differ."""
    series = {name: _series(name, cells) for name, cells in columns.items()}
    rows = {name: len(column) for name, column in series.items()}
    if len(set(rows.values())) > 1:
        raise ColumnError(f"the columns of a dict must have equal lengths, but have {rows}")
    return pd.DataFrame(series)


def frame_of_rows(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return a frame of a row per dict; None for absent keys."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pd.DataFrame({name: _series(name, [row.get(name) for row in rows]) for name in names}, range(len(rows)))


def is_cell(value: object) -> bool:
    """Return whether a value of a dict is a cell, not a column."""
    return isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__")


def _series(name: str, cells: Any) -> pd.Series[Any]:
    """Return a column of a dict as a Series, without its index; ColumnError for a single cell."""
    if is_cell(cells):
        raise ColumnError(
            f'column "{name}" of a dict is {cells!r:.80}: pass a list or an array for each column, or rows as a list '
            "of dicts"
        )
    if isinstance(cells, pd.Series):
        return cells.reset_index(drop=True)
    if hasattr(cells, "__arrow_c_array__") or hasattr(cells, "__arrow_c_stream__"):
        return pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array(cells)))
    array = np.asarray(cells) if hasattr(cells, "__array__") else None
    try:
        return pd.Series(array) if array is not None and array.ndim == 1 else pd.Series(list(cells), dtype=object)
    except UnicodeEncodeError as error:
        raise ColumnError(f'column "{name}": holds text that is not UTF-8 ({error}); decode or correct it') from error


def table_from_pandas(frame: pd.DataFrame, columns: Sequence[str]) -> pa.Table:
    """Return columns of a frame as an Arrow table."""
    return _make_table({name: series_to_arrow(frame[name], name, first_row=None) for name in columns}, len(frame))


def table_to_pandas(table: pa.Table) -> pd.DataFrame:
    """Return an Arrow table as a pandas frame; only ordered codes stay categories."""
    table = unwrap_mixed_table(table)
    types = table.schema.types
    plain = [pa.string() if pt.is_dictionary(kind) and not kind.ordered else kind for kind in types]
    flat = table.cast(pa.schema(zip(table.column_names, plain, strict=True)))
    frame: pd.DataFrame = flat.to_pandas(
        types_mapper=lambda arrow_type: (
            None if pt.is_string(arrow_type) or pt.is_dictionary(arrow_type) else pd.ArrowDtype(arrow_type)
        )
    )
    return frame


def series_to_arrow(
    series: pd.Series[Any], name: str, kind: str | None = None, first_row: int | None = 0
) -> pa.ChunkedArray:
    """Return a column of a frame as an Arrow column.

    ColumnError if its type or a cell cannot be read. `kind` is the `cell_kind` of all rows of an object column; None:
    from `series`. `first_row` is the row number of the first cell, for errors; None if unknown, as in Dask partitions.
    """
    dtype = series.dtype
    if _has_object_dtype(dtype):
        cells = series.to_numpy()
        return narrow_column(Cells(cells, name, kind or cell_kind(cells), first_row).to_arrow())
    if remedy := _remedy(dtype):
        raise ColumnError(f'column "{name}" has dtype {dtype}, which no feature reads: {remedy}')
    if isinstance(dtype, pd.CategoricalDtype):
        return narrow_column(_category_array(series, name))
    if isinstance(dtype, pd.SparseDtype):
        dense = pd.Series(np.asarray(series.array), copy=False)
        return series_to_arrow(dense, name, kind, first_row)
    # An array is converted faster than its column. `to_numpy` takes 20 times as long for dates.
    array: Any = series.values if isinstance(dtype, np.dtype) else series.array
    convertible = isinstance(array, np.ndarray) or hasattr(array, "__arrow_array__")
    try:
        column = pa.array(array if convertible else series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ColumnError(
            f'column "{name}" has dtype {dtype}, which cannot be read: {error}; use .astype(str)'
        ) from error
    return narrow_column(column)


def _remedy(dtype: Any) -> str | None:
    """Return how to convert an unreadable column, or None."""
    if isinstance(dtype, np.dtype):
        return "make two columns, of .real and .imag" if dtype.kind == "c" else None
    if isinstance(dtype, pd.IntervalDtype):
        return "use .astype(str), or the middle by .array.mid"
    return "use .dt.to_timestamp()" if isinstance(dtype, pd.PeriodDtype) else None


def _category_array(series: pd.Series[Any], name: str) -> pa.Array:
    """Return categories as codes, or decoded if two categories have one text."""
    codes = series.cat.codes.to_numpy().astype(np.int32)
    categories = unwrap_mixed_column(
        series_to_arrow(pd.Series(series.cat.categories.array, copy=False), name, first_row=None)
    )
    values = pa.concat_arrays(categories.chunks) if categories.num_chunks else pa.array([], categories.type)
    column = pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), values, ordered=series.cat.ordered)
    # Different categories may have the same text, such as 1 and "1".
    has_duplicates = pt.is_string(values.type) and len(values.unique()) < len(values)
    return column.dictionary_decode() if has_duplicates else column


def _has_object_dtype(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind == "O"


def max_slice_rows(schema: pa.Schema, row_bytes: float, partition_bytes: int) -> int:
    """Return the rows of a slice of `partition_bytes`: at least 1, and few if columns may be media."""
    # Media may be paths, and the size of a path does not show the size of the decoded media.
    max_rows = _MEDIA_ROWS if _may_contain_media(narrow_schema(schema)) else _SLICE_ROWS
    return max(1, min(max_rows, int(partition_bytes / max(row_bytes, 1))))


def _may_contain_media(schema: pa.Schema) -> bool:
    return any(pt.is_struct(arrow_type) or pt.is_binary(arrow_type) for arrow_type in schema.types)


def content_record(source: Source) -> Mapping[str, Any]:
    """Return the number of rows and a digest of their cells."""
    digest = hashlib.sha256(repr(source.columns).encode())
    for part in map_in_threads(functools.partial(_content_digest, source), range(source.npartitions), local=True):
        digest.update(part)
    return {"rows": sum(source.row_counts or ()), "content": digest.hexdigest()}


def _content_digest(source: Source, partition: int) -> bytes:
    """Return the SHA-256 of a partition's columns."""
    digest = hashlib.sha256()
    for name, column in zip(source.columns, source._read(partition, source.columns).columns, strict=True):
        # Memory of missing cells is undefined.
        buffers = {"valid": column.is_valid(), "cells": column.drop_null()} if column.null_count else {"cells": column}
        for buffer_name, cells in buffers.items():
            stream = pa.BufferOutputStream()
            table = pa.table({buffer_name: cells}).combine_chunks()
            with pa.ipc.new_stream(stream, table.schema) as writer:
                writer.write_table(table)
            digest.update(name.encode("utf-8", "surrogatepass"))
            digest.update(stream.getvalue())
    return digest.digest()


def slice_lengths(rows: int, slice_rows: int) -> list[int]:
    """Return the number of rows of each slice, [0] for no rows."""
    full, rest = divmod(rows, slice_rows)
    return [slice_rows] * full + ([rest] if rest or not full else [])


def _select_narrow(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    return narrow_table(table.select(list(columns)))


def _make_table(arrays: dict[str, pa.ChunkedArray], rows: int) -> pa.Table:
    return pa.table(arrays) if arrays else table_without_columns(rows)
