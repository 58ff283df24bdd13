"""Where rows lie: in which blocks and row groups of tables, by arithmetic alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from daskprep.errors import ConfigError
from daskprep.permutation import Integers

RowSelection: TypeAlias = range | Integers
"""Rows one after the other, or any in any order."""
BlockSelection: TypeAlias = tuple[int, slice | Integers, slice | Integers]
"""The number of a piece, which of its rows are meant, and where they go."""


def resolve_rows(index: Any, rows: int, label: str) -> RowSelection:
    """Return the rows that an index means, as one of NumPy would: a slice, numbers from either end, or a mask."""
    if isinstance(index, slice):
        selected = range(rows)[index]
        return selected if selected.step == 1 else np.array(selected, np.int64)
    indices = np.asarray(index)
    if indices.dtype == bool and indices.shape == (rows,):
        return np.flatnonzero(indices)
    if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
        raise ConfigError(
            f"{label} has {rows:,} rows: {index!r:.80} is not a valid index; give a number, a list of numbers, a "
            f"slice, or a mask of {rows:,} times True or False; columns are read by read(columns)"
        )
    outside = indices[(indices < -rows) | (indices >= rows)] if indices.size else indices
    if outside.size:
        raise IndexError(f"row {outside[0]} is out of range: {label} has {rows:,} rows")
    numbers: Integers = np.where(indices < 0, indices + rows, indices).astype(np.int64)
    return numbers


def split_by_block(rows: RowSelection, block_rows: int) -> Iterator[BlockSelection]:
    """Give the pieces of `block_rows` rows each that hold some rows."""
    if isinstance(rows, range):
        for block in range(rows.start // block_rows, -(-rows.stop // block_rows)) if rows else ():
            first, stop = max(rows.start, block * block_rows), min(rows.stop, (block + 1) * block_rows)
            yield (
                block,
                slice(first - block * block_rows, stop - block * block_rows),
                slice(first - rows.start, stop - rows.start),
            )
        return
    order = np.argsort(rows, kind="stable")
    blocks, within = np.divmod(rows[order], block_rows)
    bounds = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(rows)] if len(rows) else []
    for start, stop in pairwise(bounds):
        yield int(blocks[start]), within[start:stop], order[start:stop]
