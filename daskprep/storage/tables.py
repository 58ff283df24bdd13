"""Columns of scalars as a Parquet file whose row groups are blocks."""

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

# A few bytes can tell of very many: what decodes to more than both of these is refused.
_MIN_LIMIT_BYTES = 256 << 20
_MAX_EXPANSION = 64

Columns: TypeAlias = Mapping[str, "np.ndarray | pa.Array"]


REJECTS = "rejects.parquet"
"""The file of the rows that could not be used, in the folder of a version."""

REJECTS_SCHEMA = pa.schema(
    [
        pa.field("row_id", pa.int64(), nullable=False),
        pa.field("column", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)


CELL_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""The type of a column of media: the bytes of a file, or else its path, as Hugging Face stores them."""


def encode_table(column_batches: Iterable[Columns], block_rows: int, compression: Compression = "lz4") -> pa.Buffer:
    """Return columns as the bytes of a Parquet file: the same columns give the same bytes.

    The columns come in pieces of whole blocks, but for the last; it makes no difference in which. Only the cells of
    media may be missing.
    """
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
    arrays = [column if isinstance(column, pa.Array) else pa.array(column) for column in columns.values()]
    fields = [
        pa.field(name, array.type, nullable=pa.types.is_struct(array.type))
        for name, array in zip(columns, arrays, strict=True)
    ]
    for field, array in zip(fields, arrays, strict=True):
        if array.null_count and not field.nullable:
            raise ValueError(f'column "{field.name}" has {array.null_count} nulls, and a table of outputs has none')
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def arrow_column(array: np.ndarray) -> pa.Array:
    """Return an array as a column, of lists of a fixed size where rows are no scalars; nothing is copied."""
    column = pa.array(array.reshape(-1))
    for axis in range(array.ndim - 1, 0, -1):
        kind = pa.list_(column.type, array.shape[axis])
        column = pa.Array.from_buffers(kind, math.prod(array.shape[:axis]), [None], children=[column])
    return column


def read_footer(data: Buffer) -> pq.FileMetaData:
    """Return what the end of a Parquet file says of all its parts; CorruptDatasetError if the bytes are damaged."""
    with _error_context():
        return pq.read_metadata(pa.BufferReader(pa.py_buffer(data)))


def column_types(footer: pq.FileMetaData) -> dict[str, pa.DataType]:
    """Return the types of the columns of a table; CorruptDatasetError if some are no numbers and no cells."""
    with _error_context():
        schema = footer.schema.to_arrow_schema()
    types = {field.name: field.type for field in schema}
    # Arrow reads some columns that it was not asked for, and one text may stand in a few bytes for very many rows.
    unexpected = [
        name
        for name, column_type in types.items()
        if not pa.types.is_primitive(column_type) and column_type != CELL_TYPE
    ]
    if unexpected or len(types) < len(schema):
        raise CorruptDatasetError(f"a table has columns twice, or of types that are never written: {unexpected}")
    return types


def column_ranges(
    footer: pq.FileMetaData, groups: Iterable[int], columns: Collection[str], nbytes: int, *, max_gap: int
) -> list[tuple[int, int]]:
    """Return where some columns of row groups lie in a file of so many bytes; CorruptDatasetError if it has not them.

    What lies no more than `max_gap` from the next is one range with it.
    """
    ranges: list[tuple[int, int]] = []
    for row_group in map(footer.row_group, groups):
        for column in map(row_group.column, range(row_group.num_columns)):
            # Asked for "a", Arrow reads "a.b" as well.
            if any(name in columns for name in accumulate(column.path_in_schema.split("."), "{}.{}".format)):
                start = column.data_page_offset
                if column.has_dictionary_page and column.dictionary_page_offset is not None:
                    start = min(start, column.dictionary_page_offset)
                ranges.append((start, start + column.total_compressed_size))
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if not 0 <= start <= stop <= nbytes:
            raise CorruptDatasetError(f"a column of a table lies at bytes {start:,} to {stop:,} of {nbytes:,}")
        if merged and start <= merged[-1][1] + max_gap:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged


def decode_table(
    data: Buffer, columns: Collection[str], row_groups: Iterable[int], footer: pq.FileMetaData
) -> pa.Table:
    """Return columns of some row groups, in the order asked for; CorruptDatasetError if the bytes are damaged.

    It runs on the thread that calls it: callers have threads of their own.
    """
    with _error_context():
        # The bytes are in memory: there is nothing to fetch ahead.
        source = pa.BufferReader(pa.py_buffer(data))
        file = pq.ParquetFile(source, metadata=footer, page_checksum_verification=True, pre_buffer=False)
        table = file.read_row_groups(list(row_groups), columns=list(columns), use_threads=False)
    # Asked for "a", Arrow gives "a.b" as well.
    return table.select(list(columns))


def read_bounded_table(source: IO[bytes], schema: pa.Schema) -> pa.Table:
    """Return the whole of a table of this schema; CorruptDatasetError for another, or for far too much text."""
    size = source.seek(0, os.SEEK_END)
    source.seek(0)
    limit = max(_MIN_LIMIT_BYTES, _MAX_EXPANSION * size)
    with _error_context():
        footer = pq.read_metadata(source)
        groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
        # Equal numbers take next to nothing in the file, and eight bytes each in memory.
        rows_bytes = footer.num_rows * 8 * len(schema)
        _check_expansion(max(rows_bytes, sum(group.total_byte_size for group in groups)), limit)
        # Kept as a dictionary, a text that stands in many rows takes no more memory than it does in the file.
        dictionary_columns = sorted(
            {
                column.path_in_schema
                for group in groups
                for column in map(group.column, range(group.num_columns))
                if column.has_dictionary_page and column.physical_type == "BYTE_ARRAY"
            }
        )
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
    """Return how many bytes a column of dictionaries takes when each row has its own text."""
    if not pa.types.is_dictionary(column.type):  # no text at all: the cast will say so
        return 0
    lengths = [pc.binary_length(one.dictionary).cast(pa.int64()).take(one.indices) for one in column.chunks]
    return sum(pc.sum(one).as_py() or 0 for one in lengths)


def _check_expansion(needed: int, limit: int) -> None:
    if needed > limit:
        raise CorruptDatasetError(
            f"it decodes to {needed >> 20:,} MB, more than {_MAX_EXPANSION} times its size and {_MIN_LIMIT_BYTES >> 20} MB"
        )


@contextmanager
def _error_context() -> Iterator[None]:
    try:
        yield
    except MemoryError:  # Arrow's own is an ArrowException too
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptDatasetError(f"a table cannot be read: {error}") from error
