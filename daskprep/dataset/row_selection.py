"""Resolution of row indexes, and their assignment to blocks and row groups, by arithmetic alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from daskprep.errors import ConfigError
from daskprep.permutation import Integers

RowSelection: TypeAlias = range | Integers
"""Row positions in a split: a range, or an array in any order."""
BlockSelection: TypeAlias = tuple[int, slice | Integers, slice | Integers]
"""Block number, positions of the selected rows in the block, and their positions in the result."""


def resolve_rows(index: Any, rows: int, label: str) -> RowSelection:
    """Return the positions that an index selects from `rows` rows, as in NumPy; `label` names the split in errors.

    The index is a slice, a sequence of positions (negative ones count from the end), or a boolean mask.
    """
    if isinstance(index, slice):
        selected = range(rows)[index]
        return selected if selected.step == 1 else np.array(selected, np.int64)
    indices = np.asarray(index)
    if indices.dtype == bool and indices.shape == (rows,):
        return np.flatnonzero(indices)
    if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
        raise ConfigError(
            f"{label} has {rows:,} rows: {index!r:.80} is not a valid index; use a number, a list of numbers, a "
            f"slice, or a boolean mask of {rows:,} values; columns are read by read(columns)"
        )
    outside = indices[(indices < -rows) | (indices >= rows)] if indices.size else indices
    if outside.size:
        raise IndexError(f"row {outside[0]} is out of range: {label} has {rows:,} rows")
    numbers: Integers = np.where(indices < 0, indices + rows, indices).astype(np.int64)
    return numbers


def split_by_block(rows: RowSelection, block_rows: int) -> Iterator[BlockSelection]:
    """Yield the blocks of `block_rows` rows each that contain any of the selected rows."""
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
