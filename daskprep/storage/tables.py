"""Columns of scalars as a Parquet file whose row groups are blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from daskprep.errors import CorruptDatasetError
from daskprep.storage.arrays import Compression
from daskprep.storage.checksum import Buffer

__all__ = ["REJECTS", "REJECTS_SCHEMA", "decode_table", "encode_table"]


REJECTS = "rejects.parquet"
"""The file of the rows that could not be used, in the folder of a version."""

REJECTS_SCHEMA = pa.schema(
    [
        pa.field("row_id", pa.int64(), nullable=False),
        pa.field("column", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)


def encode_table(
    columns: Mapping[str, np.ndarray | pa.Array], block_rows: int, compression: Compression = "lz4"
) -> pa.Buffer:
    """Return columns without nulls as the bytes of a Parquet file: the same columns give the same bytes."""
    arrays = [column if isinstance(column, pa.Array) else pa.array(column) for column in columns.values()]
    fields = [pa.field(name, array.type, nullable=False) for name, array in zip(columns, arrays, strict=True)]
    for field, array in zip(fields, arrays, strict=True):
        if array.null_count:
            raise ValueError(f'column "{field.name}" has {array.null_count} nulls, and a table of outputs has none')
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=pa.schema(fields)),
        sink,
        row_group_size=block_rows,
        compression=compression,
        store_schema=False,
        use_dictionary=False,
        write_page_checksum=True,
    )
    return sink.getvalue()


def decode_table(
    data: Buffer, columns: Sequence[str] | None = None, row_groups: Sequence[int] | None = None
) -> pa.Table:
    """Return columns of some row groups, in the order asked for; CorruptDatasetError if the bytes are damaged.

    It runs on the thread that calls it: callers have threads of their own.
    """
    try:
        # The bytes are in memory: there is nothing to fetch ahead.
        source = pa.BufferReader(pa.py_buffer(data))
        file = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False)
        groups = range(file.num_row_groups) if row_groups is None else row_groups
        table = file.read_row_groups(list(groups), columns=columns, use_threads=False)
    except MemoryError:  # Arrow's own is an ArrowException too
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptDatasetError(f"a table cannot be read: {error}") from error
    if columns is None:
        return table
    found = set(table.column_names)
    if missing := [name for name in columns if name not in found]:
        raise CorruptDatasetError(f"a table lacks the columns {missing}; it has {file.schema_arrow.names}")
    # Asked for "a", Arrow gives "a.b" as well.
    return table.select(list(columns))
