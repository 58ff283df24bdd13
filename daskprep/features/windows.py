"""Windows over the rows of one column, across partitions.

All functions work on rows sorted by group. NaN represents a missing number, and `HIDDEN` a number of another split: it
fills no missing number, and becomes NaN in a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

HIDDEN = float("inf")


@dataclass(frozen=True)
class WindowBorder:
    """Information about one partition that the windows of other partitions need, by group.

    Attributes
    ----------
    groups : Array
        Names of the groups.
    sizes : ndarray
        Number of rows of each group.
    nearest : ndarray
        Numbers that windows of other partitions reach, outermost last; NaN: fewer rows. Shape (groups, reach).
    ends : ndarray
        First and last present number of each group. Shape (groups, 2).
    """

    groups: pa.Array
    sizes: np.ndarray
    nearest: np.ndarray
    ends: np.ndarray


@dataclass(frozen=True)
class GroupedRows:
    """The numbers of a partition, sorted by group."""

    numbers: np.ndarray
    order: np.ndarray | slice  # row numbers of the numbers before sorting
    sizes: np.ndarray  # number of rows of each group
    groups: pa.Array  # names of the groups

    @property
    def starts(self) -> np.ndarray:
        """Position of the first row of each group."""
        starts: np.ndarray = np.cumsum(self.sizes) - self.sizes
        return starts


def rows_by_group(parsed: pa.Array) -> GroupedRows:
    """Sort the numbers of a parsed column by group, stably; without groups, all rows are one group."""
    grouped = pa.types.is_struct(parsed.type)
    column = pc.if_else(parsed.is_valid(), parsed.field("number"), None) if grouped else parsed
    numbers = pc.fill_null(column, np.nan).to_numpy(zero_copy_only=False)
    if not grouped:
        present = min(len(numbers), 1)
        return GroupedRows(numbers, slice(None), np.full(present, len(numbers)), pa.nulls(present, pa.string()))
    groups = parsed.field("group").dictionary_encode(null_encoding="encode")
    codes = groups.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    return GroupedRows(numbers[order], order, np.bincount(codes, minlength=len(groups.dictionary)), groups.dictionary)


def fill_in_groups(rows: GroupedRows, strategy: Literal["ffill", "bfill"], fills: np.ndarray | None) -> np.ndarray:
    """Fill missing numbers from the nearest number before or after in their group, or from `fills`, by group."""
    numbers, sizes, starts = np.where(np.isinf(rows.numbers), np.nan, rows.numbers), rows.sizes, rows.starts
    positions = np.arange(len(numbers))
    if strategy == "ffill":
        source = np.maximum.accumulate(np.where(np.isnan(numbers), -1, positions))
        outside = source < np.repeat(starts, sizes)
    else:
        source = np.minimum.accumulate(np.where(np.isnan(numbers), len(numbers), positions)[::-1])[::-1]
        outside = source >= np.repeat(starts + sizes, sizes)
    outer_fills = np.float32(np.nan) if fills is None else np.repeat(fills, sizes)
    return np.where(outside, outer_fills, numbers.take(source, mode="clip"))


def group_ends(rows: GroupedRows) -> np.ndarray:
    """Return the first and the last present number of each group, as columns."""
    first = fill_in_groups(rows, "bfill", None)[rows.starts]
    last = fill_in_groups(rows, "ffill", None)[rows.starts + rows.sizes - 1]
    return np.stack([first, last], axis=1)


def find_border_fills(
    borders: Sequence[WindowBorder], parts: Sequence[np.ndarray], groups: int, strategy: str | None
) -> list[np.ndarray]:
    """Return for each partition the number that fills the outermost missing numbers of each of its groups, or NaN.

    `parts` has the ids of each partition's groups, of `groups` in all. `ffill` uses the last number of earlier
    partitions, or else the first number of all; `bfill` is the mirror image.
    """
    forward = list(range(len(borders)))
    near, far = 0, 1
    if strategy == "bfill":
        forward, near, far = forward[::-1], 1, 0
    latest = np.full(groups, np.nan, np.float32)
    for partition in reversed(forward):
        latest[parts[partition]] = _first_present(borders[partition].ends[:, near], latest[parts[partition]])
    fills: list[np.ndarray] = [latest] * len(borders)
    for partition in forward:
        fills[partition] = latest[parts[partition]]
        latest[parts[partition]] = _first_present(borders[partition].ends[:, far], fills[partition])
    return fills


def _first_present(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(first), second, first)


def push_numbers(known: np.ndarray, nearest: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Append the numbers of a partition, by group, to earlier numbers, and return the last `reach` ones.

    `known` and `nearest` have shape (groups, reach); `sizes` is the number of rows of each group in the partition.
    """
    reach = known.shape[1]
    column = np.arange(reach)
    older = column + np.minimum(sizes, reach)[:, None]
    newer = np.broadcast_to(column + reach, older.shape)
    return np.take_along_axis(np.hstack([known, nearest]), np.where(older < reach, older, newer), axis=1)


def nearest_numbers(rows: GroupedRows, numbers: np.ndarray, reach: int, *, ahead: bool) -> np.ndarray:
    """Return for each group the `reach` numbers at the border that windows reach across, outermost last.

    With `ahead`, windows extend to later rows, and the border is the first row.
    """
    empty = np.full((len(rows.groups), reach), np.nan, np.float32)
    extended, start = _extend_groups(rows, numbers, empty, ahead=ahead)
    first, column = (start, np.arange(reach)[::-1]) if ahead else (start + rows.sizes, np.arange(reach))
    return extended.take(first[:, None] + column)


def cut_windows(rows: GroupedRows, numbers: np.ndarray, outer_numbers: np.ndarray, *, ahead: bool) -> np.ndarray:
    """Return the window of each row, in the row order before sorting; `outer_numbers` are from other partitions."""
    reach = outer_numbers.shape[1]
    width = reach if ahead else reach + 1
    if not len(numbers):
        return np.empty((0, width), np.float32)
    extended, start = _extend_groups(rows, numbers, outer_numbers, ahead=ahead)
    first = np.arange(len(numbers)) + np.repeat(start - rows.starts, rows.sizes) + int(ahead)
    begin = np.empty_like(first)
    begin[rows.order] = first
    windows: np.ndarray = np.lib.stride_tricks.sliding_window_view(extended, width)[begin]
    return windows


def _extend_groups(
    rows: GroupedRows, numbers: np.ndarray, outer_numbers: np.ndarray, *, ahead: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Insert `outer_numbers` before each group, or with `ahead` after it; return the numbers and the group starts."""
    reach = outer_numbers.shape[1]
    start = rows.starts + np.arange(len(rows.groups)) * reach
    extended = np.empty(len(numbers) + outer_numbers.size, np.float32)
    shift = np.repeat(start - rows.starts, rows.sizes) + (0 if ahead else reach)
    extended[np.arange(len(numbers)) + shift] = numbers
    column = np.arange(reach)
    if ahead:
        extended[(start + rows.sizes)[:, None] + column[::-1]] = outer_numbers
    else:
        extended[start[:, None] + column] = outer_numbers
    return extended, start
