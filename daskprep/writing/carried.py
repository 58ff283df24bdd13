"""What a write carries from encoding to parts: arrays of numbers, and the cells of media, which only parts decode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.media.decoding import STORED_TYPE

Carried: TypeAlias = np.ndarray | pa.StructArray

HEAPS = STORED_TYPE.num_fields
"""How many columns of bytes make up a column of cells."""


def take(rows: Carried, order: np.ndarray) -> Carried:
    """Return some rows in some order."""
    if isinstance(rows, np.ndarray):
        return rows.take(order, axis=0, mode="clip")
    return rows.take(pa.array(order))


def concatenated(pieces: Sequence[Carried]) -> Carried:
    """Return pieces of one column as one; a single one without a copy."""
    if len(pieces) == 1:
        return pieces[0]
    if isinstance(pieces[0], np.ndarray):
        return np.concatenate(pieces)
    return pa.concat_arrays(pieces)


def heaps_of(cells: pa.StructArray) -> Iterator[tuple[np.ndarray, pa.Buffer]]:
    """Give the content of each field of cells: where every row begins, and where the last ends, in some bytes.

    What is not there has no bytes: no path and no file is empty.
    """
    for field in STORED_TYPE:
        column = pc.fill_null(pc.struct_field(cells, field.name).cast(pa.large_binary()), b"")
        _, offsets, data = column.buffers()
        starts = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        if data is None or not len(column):
            yield np.zeros(len(column) + 1, np.int64), pa.py_buffer(b"")
        else:
            yield starts - starts[0], data.slice(int(starts[0]), int(starts[-1] - starts[0]))


def cells_of(heaps: Sequence[tuple[np.ndarray, np.ndarray]]) -> pa.StructArray:
    """Return the cells that `heaps_of` took apart; starts may count from anywhere."""
    columns = []
    for field, (starts, data) in zip(STORED_TYPE, heaps, strict=True):
        buffers = [None, pa.py_buffer(starts - starts[0]), pa.py_buffer(data)]
        column = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(starts) - 1, buffers)
        present = pa.array(np.diff(starts) > 0)
        columns.append(pc.if_else(present, column, pa.scalar(None, pa.large_binary())).cast(field.type))
    missing = pc.and_(columns[0].is_null(), columns[1].is_null())
    return pa.StructArray.from_arrays(columns, fields=list(STORED_TYPE), mask=missing)
