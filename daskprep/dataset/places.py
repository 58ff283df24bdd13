"""Where rows lie: in which blocks and row groups of tables, by arithmetic alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from daskprep.errors import ConfigError
from daskprep.permutation import Integers

Rows: TypeAlias = range | Integers
"""Rows one after the other, or any in any order."""
Overlap: TypeAlias = tuple[int, slice | Integers, slice | Integers]
"""The number of a piece, which of its rows are meant, and where they go."""


def row_numbers(index: Any, rows: int, where: str) -> Rows:
    """Return the rows that an index means, as one of NumPy would: a slice, numbers from either end, or a mask."""
    if isinstance(index, slice):
        found = range(rows)[index]
        return found if found.step == 1 else np.array(found, np.int64)
    asked = np.asarray(index)
    if asked.dtype == bool and asked.shape == (rows,):
        return np.flatnonzero(asked)
    if asked.ndim != 1 or (asked.size and asked.dtype.kind not in "iu"):
        raise ConfigError(
            f"{where} has {rows:,} rows: {index!r:.80} is not a valid index; give a number, a list of numbers, a "
            f"slice, or a mask of {rows:,} times True or False; columns are read by read(columns)"
        )
    outside = asked[(asked < -rows) | (asked >= rows)] if asked.size else asked
    if outside.size:
        raise IndexError(f"row {outside[0]} is out of range: {where} has {rows:,} rows")
    numbers: Integers = np.where(asked < 0, asked + rows, asked).astype(np.int64)
    return numbers


def overlaps(rows: Rows, size: int) -> Iterator[Overlap]:
    """Give the pieces of `size` rows each that hold some rows."""
    if isinstance(rows, range):
        for piece in range(rows.start // size, -(-rows.stop // size)) if rows else ():
            first, stop = max(rows.start, piece * size), min(rows.stop, (piece + 1) * size)
            yield piece, slice(first - piece * size, stop - piece * size), slice(first - rows.start, stop - rows.start)
        return
    order = np.argsort(rows, kind="stable")
    pieces, within = np.divmod(rows[order], size)
    edges = [0, *(np.flatnonzero(np.diff(pieces)) + 1).tolist(), len(rows)] if len(rows) else []
    for start, stop in pairwise(edges):
        yield int(pieces[start]), within[start:stop], order[start:stop]
