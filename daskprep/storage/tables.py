"""Parquet files of scalars and media, with a row group per block."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from typing import IO, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from daskprep.errors import CorruptDatasetError
from daskprep.storage.arrays import Compression
from daskprep.storage.checksum import Buffer

# A few bytes may decode to very many: a table is rejected if it decodes to more than both of these limits.
_MIN_LIMIT_BYTES = 256 << 20
_MAX_EXPANSION = 64

Columns: TypeAlias = Mapping[str, "np.ndarray | pa.Array"]

REJECTS = "rejects.parquet"
"""The name of the file with the rejected rows, in the version folder."""

_REJECT_TYPES = {"row_id": pa.int64(), "column": pa.string(), "reason": pa.string()}
REJECTS_SCHEMA = pa.schema([pa.field(name, kind, nullable=False) for name, kind in _REJECT_TYPES.items()])

CELL_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""The type of a column of media: the bytes of a file, or its path, as in Hugging Face datasets."""


def encode_table(column_batches: Iterable[Columns], block_rows: int, compression: Compression = "lz4") -> pa.Buffer:
    """Return columns as a Parquet file; batches have multiples of `block_rows` rows, up to the last."""
    sink, tables = pa.BufferOutputStream(), map(_to_table, column_batches)
    table = next(tables)
    writer_options = {
        "compression": compression,
        "store_schema": False,
        "use_dictionary": False,
        "write_page_checksum": True,
    }
    with pq.ParquetWriter(sink, table.schema, **writer_options) as writer:
        while table is not None:
            writer.write_table(table, row_group_size=block_rows)
            table = next(tables, None)
    return sink.getvalue()


def _to_table(columns: Columns) -> pa.Table:
    """Return columns as a table; ValueError for nulls, which only media have."""
    arrays = [column if isinstance(column, pa.Array) else arrow_column(column) for column in columns.values()]
    fields = [
        pa.field(name, array.type, nullable=pa.types.is_struct(array.type))
        for name, array in zip(columns, arrays, strict=True)
    ]
    for field, array in zip(fields, arrays, strict=True):
        if array.null_count and not field.nullable:
            raise ValueError(f'column "{field.name}" has {array.null_count} nulls, which outputs must not have')
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def arrow_column(array: np.ndarray) -> pa.Array:
    """Return an array as an Arrow column, copied only if bool."""
    values = np.ascontiguousarray(array.reshape(-1))
    if values.dtype == bool:  # Arrow stores bits
        column = pa.array(values)
    else:  # `pa.array` would reacquire the GIL three times
        kind = pa.from_numpy_dtype(values.dtype)
        column = pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
    for axis in range(array.ndim - 1, 0, -1):
        kind = pa.list_(column.type, array.shape[axis])
        column = pa.Array.from_buffers(kind, math.prod(array.shape[:axis]), [None], children=[column])
    return column


def read_footer(data: Buffer) -> pq.FileMetaData:
    """Return the footer of a Parquet file, from its last bytes."""
    with _error_context():
        return pq.read_metadata(pa.BufferReader(pa.py_buffer(data)))


def column_types(footer: pq.FileMetaData) -> dict[str, pa.DataType]:
    """Return the types of columns; CorruptDatasetError for one that occurs twice, or is neither numbers nor media."""
    with _error_context():
        schema = footer.schema.to_arrow_schema()
    types = {field.name: field.type for field in schema}
    # Arrow reads some columns that were not requested, and the text of very many rows may be encoded in a few bytes.
    unexpected = [name for name, kind in types.items() if not pa.types.is_primitive(kind) and kind != CELL_TYPE]
    if unexpected or len(types) < len(schema):
        raise CorruptDatasetError(f"a table has columns twice, or of types that are never written: {unexpected}")
    return types


def column_ranges(
    footer: pq.FileMetaData, groups: Iterable[int], columns: Collection[str], nbytes: int, *, max_gap: int
) -> list[tuple[int, int]]:
    """Return sorted and merged (start, stop) bytes of columns; CorruptDatasetError beyond `nbytes`."""
    ranges: list[tuple[int, int]] = []
    for row_group in map(footer.row_group, groups):
        for column in map(row_group.column, range(row_group.num_columns)):
            # For the column "a", Arrow reads "a.b" as well.
            if any(name in columns for name in accumulate(column.path_in_schema.split("."), "{}.{}".format)):
                start = column.data_page_offset
                if column.has_dictionary_page and column.dictionary_page_offset is not None:
                    start = min(start, column.dictionary_page_offset)
                ranges.append((start, start + column.total_compressed_size))
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if not 0 <= start <= stop <= nbytes:
            raise CorruptDatasetError(f"a column of a table is at bytes {start:,} to {stop:,} of {nbytes:,}")
        if merged and start <= merged[-1][1] + max_gap:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged


def decode_table(
    data: Buffer, columns: Collection[str], row_groups: Iterable[int], footer: pq.FileMetaData
) -> pa.Table:
    """Return columns of row groups, both in the requested order; CorruptDatasetError if invalid."""
    with _error_context():
        source = pa.BufferReader(pa.py_buffer(data))  # the bytes are in memory: there is nothing to prefetch
        file = pq.ParquetFile(source, metadata=footer, page_checksum_verification=True, pre_buffer=False)
        table = file.read_row_groups(list(row_groups), columns=list(columns), use_threads=False)
    # For the column "a", Arrow returns "a.b" as well.
    return table if table.column_names == list(columns) else table.select(list(columns))


def read_bounded_table(source: IO[bytes], schema: pa.Schema) -> pa.Table:
    """Return a table; CorruptDatasetError for another schema, or if it decodes to too many bytes."""
    size = source.seek(0, os.SEEK_END)
    source.seek(0)
    limit = max(_MIN_LIMIT_BYTES, _MAX_EXPANSION * size)
    with _error_context():
        footer = pq.read_metadata(source)
        groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
        # Equal numbers take almost no bytes in the file, and eight bytes each in memory.
        rows_bytes = footer.num_rows * 8 * len(schema)
        _check_expansion(max(rows_bytes, sum(group.total_byte_size for group in groups)), limit)
        # As a dictionary, a text that occurs in many rows takes no more memory than in the file.
        columns = [group.column(i) for group in groups for i in range(group.num_columns)]
        text_columns = [one for one in columns if one.has_dictionary_page and one.physical_type == "BYTE_ARRAY"]
        dictionary_columns = sorted({column.path_in_schema for column in text_columns})
        source.seek(0)
        with pq.ParquetFile(source, page_checksum_verification=True, read_dictionary=dictionary_columns) as file:
            if file.schema_arrow.names != schema.names:
                raise CorruptDatasetError(f"its columns are {file.schema_arrow.names}, and not {schema.names}")
            table = file.read()
        _check_expansion(sum(_text_bytes(table[name]) for name in dictionary_columns), limit)
        cast_table = table.cast(pa.schema([field.with_nullable(True) for field in schema]))
    if null_columns := [field.name for field in schema if not field.nullable and cast_table[field.name].null_count]:
        raise CorruptDatasetError(f"it has nulls in {null_columns}")
    return pa.table(cast_table.columns, schema=schema)


def _text_bytes(column: pa.ChunkedArray) -> int:
    """Return the decoded bytes of a dictionary column."""
    if not pa.types.is_dictionary(column.type):  # not text: the cast raises an error
        return 0
    lengths = [pc.binary_length(chunk.dictionary).cast(pa.int64()).take(chunk.indices) for chunk in column.chunks]
    return sum(pc.sum(length).as_py() or 0 for length in lengths)


def _check_expansion(needed: int, limit: int) -> None:
    """Raise CorruptDatasetError for too many decoded bytes."""
    if needed > limit:
        raise CorruptDatasetError(
            f"it decodes to {needed >> 20:,} MB, more than {_MAX_EXPANSION} times its size and "
            f"{_MIN_LIMIT_BYTES >> 20} MB"
        )


@contextmanager
def _error_context() -> Iterator[None]:
    """Turn errors of a table into CorruptDatasetErrors."""
    try:
        yield
    except MemoryError:  # Arrow's own is an ArrowException too
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptDatasetError(f"a table cannot be read: {error}") from error
