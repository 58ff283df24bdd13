"""The split by groups: all rows of a group are in one split, and shares are as exact as undivided groups allow.

Groups are counted by the keyed hash of their names, so that no names are stored; two groups with the same hash merely
stay together. Beyond about 16,384 groups (`OrderedCounts`), groups whose hashes have the same leading bits form a
*unit*. Units are then assigned instead of groups; they are so small that shares are exact to about 0.0001.

The algorithm: for a unit g, v(g) is a vector of shares of rows, of all rows and, if stratified, of each class. A split
s has the target p(s) for each share, and lacks d(s). Units, largest first, are assigned to the split where the
product v(g)·d(s) is largest. Then single units are moved while a move lowers the sum of all d(s)**2. At the end, this
sum is at most the sum of all v(g)**2. Without classes, the rows that any two splits lack differ by at most the rows
of a unit: the smallest unit in the split that lacks fewer rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from daskprep.columns.parametrized import with_parameters
from daskprep.columns.permutation import Integers, hash_strings
from daskprep.columns.summaries.quantiles import count_keys
from daskprep.errors import ColumnError
from daskprep.sources.classes import Mask, OrderedCounts, data_changed_error, encode_classes
from daskprep.sources.split.base import DEFAULT_SHARES, DROPPED, TRAIN, ReadAgain, Shares, SplitArray, Splitter
from daskprep.storage.checkpoint import checkpointable

# Bounds the array of the counts of all units by class in the client to 128 MB.
MAX_STRATA = 1_000
_MIN_GAIN = 1e-12  # above rounding errors, so that moves end


@with_parameters
class GroupSplit(Splitter):
    """Split groups of rows, such as the rows of one customer, so that no group is in two splits.

    The shares of rows, and with `stratify` of each class, are as close to `shares` as undivided groups allow.
    Added rows may move groups to another split; `HashSplit` never moves them.

    Parameters
    ----------
    column : str
        Column of group names, of any flat type; 1, 1.0 and "1" are one group, and so are all missing values.
    shares : sequence of float
        Shares of train, validation and test, or of train and test; they add up to 1.
    seed : int
        Seed of the choice among groups of the same size.
    stratify : str or None
        Column with at most 1,000 classes; each class is split in the same shares.

    Examples
    --------
    >>> import pyarrow as pa
    >>> split = GroupSplit("user", (0.5, 0.25, 0.25))
    >>> table = pa.table({"user": ["a", "b", "a", "c", "b", "c", "a", "a"]})
    >>> split.plan([split.census(table)])[0].assign(table, None).tolist()
    [0, 2, 0, 1, 2, 1, 0, 0]
    """

    type = "group"
    counts_column = True

    column: str
    shares: Shares = DEFAULT_SHARES
    seed: int = 42
    stratify: str | None = None

    def census(self, table: pa.Table, keep: Mask | None = None) -> GroupCounts:
        return count_groups(table, self.column, self.stratify, self._key, keep)

    def plan(self, censuses: Sequence[GroupCounts], read_again: ReadAgain = None) -> list[GroupAssignment]:
        """Return the plan; ColumnError without a group to train on."""
        group_units = GroupUnits.of(censuses, self.stratify)
        unit_splits = group_units.assign_units(self._shares())
        if unit_splits.size and TRAIN not in unit_splits:
            raise ColumnError(
                f'Column "{self.column}": {unit_splits.size} group(s) are too few for {self.shares}: none would '
                "be left to train on. Use more groups, or a larger share of train."
            )
        return [GroupAssignment(self.column, self._key, group_units.shift, group_units.units, unit_splits)] * len(
            censuses
        )


@checkpointable
@dataclass(frozen=True, eq=False)
class GroupCounts:
    """Numbers of rows of a partition by class and group."""

    classes: pa.Array  # without stratify, a single class, null
    counts: tuple[OrderedCounts, ...]  # of each class, by the hash of the group


def count_groups(table: pa.Table, column: str, stratify: str | None, key: int, keep: Mask | None) -> GroupCounts:
    """Count the kept rows of one partition by group, and with `stratify` by class."""
    groups, names = encode_classes(table, column)
    pairs, classes = groups, pa.nulls(1, pa.large_string())
    if stratify is not None:
        strata, classes = encode_classes(table, stratify)
        pairs = strata * len(names) + groups
    pairs, rows = count_keys(pairs if keep is None else pairs[keep])
    hashes, present = _hashes(names, key)[pairs % len(names)], pairs // len(names)
    used, first = np.unique(present, return_index=True)
    class_parts = zip(np.split(hashes, first[1:]), np.split(rows, first[1:]), strict=True)
    counts = tuple(OrderedCounts.of(*class_part) for class_part in class_parts) if used.size else ()
    return GroupCounts(classes.take(pa.array(used)), counts)


def _hashes(names: pa.Array, key: int) -> Integers:
    return hash_strings(names, key).view(np.int64)


@dataclass(frozen=True, eq=False)
class GroupUnits:
    """The units of groups of all partitions, with their row counts."""

    shift: int  # units are hashes >> shift
    units: Integers  # ascending
    rows: Integers  # (1 + classes, units): all rows, and if stratified, rows of each class

    @classmethod
    def of(cls, censuses: Sequence[GroupCounts], stratify: str | None) -> GroupUnits:
        """Return the units with the rows of all partitions; ColumnError for too many classes."""
        classes = pa.chunked_array([census.classes for census in censuses], pa.large_string()).unique()
        if len(classes) > MAX_STRATA:
            raise ColumnError(
                f'Column "{stratify}" has {len(classes):,} classes, and groups are stratified by {MAX_STRATA:,} '
                "at most: use a column with fewer distinct values."
            )
        # The order of floating-point sums must not depend on which partition names a class first.
        classes = classes.take(pc.sort_indices(classes))
        counts = [OrderedCounts.of(np.zeros(0, np.int64))] * len(classes)
        for census in censuses:
            class_indices = pc.index_in(census.classes, value_set=classes).to_pylist()
            for class_index, class_counts in zip(class_indices, census.counts, strict=True):
                counts[class_index] += class_counts
        total = reduce(add, counts, OrderedCounts.of(np.zeros(0, np.int64)))
        rows = np.zeros((1 + len(classes) * (stratify is not None), total.buckets.size), np.int64)
        rows[0] = total.counts
        for row, part in zip(rows[1:], counts, strict=False):
            np.add.at(row, np.searchsorted(total.buckets, part.buckets >> (total.shift - part.shift)), part.counts)
        return cls(total.shift, total.buckets, rows)

    def assign_units(self, shares: Sequence[float]) -> NDArray[np.uint8]:
        """Return the split of each unit, by the algorithm in the module's docstring."""
        totals = self.rows.sum(axis=1, keepdims=True)
        # The trailing axis makes NumPy add the classes in sequence, with the same rounding on every machine.
        weights = np.ascontiguousarray((self.rows / totals).T)[:, :, None]
        squares = (weights * weights).sum(axis=1)[:, 0]
        order = np.argsort(-squares, kind="stable").tolist()
        unit_splits = np.zeros(self.units.size, np.uint8)
        if len(totals) == 1:
            unit_splits[order] = _assign_unstratified(weights[order, 0, 0].tolist(), shares)
            return unit_splits
        lacking = np.repeat(np.array([shares]), len(totals), axis=0)
        for unit in order:
            unit_splits[unit] = target = np.argmax((weights[unit] * lacking).sum(axis=0))
            lacking[:, target] -= weights[unit, :, 0]
        moving = True
        while moving:
            moving = False
            for unit in order:
                current = unit_splits[unit]
                lacked = (weights[unit] * lacking).sum(axis=0)
                target = np.argmax(lacked)
                if lacked[target] - lacked[current] > squares[unit] + _MIN_GAIN:
                    lacking[:, current] += weights[unit, :, 0]
                    lacking[:, target] -= weights[unit, :, 0]
                    unit_splits[unit], moving = target, True
        return unit_splits


def _assign_unstratified(weights: Sequence[float], shares: Sequence[float]) -> list[int]:
    """Return the splits of units without classes, in a seventh of the time on arrays."""
    lacking, unit_splits = list(shares), list[int]()
    for weight in weights:
        lacked = [weight * lack for lack in lacking]
        unit_splits.append(lacked.index(max(lacked)))
        lacking[unit_splits[-1]] -= weight
    return unit_splits


@dataclass(frozen=True, eq=False)
class GroupAssignment:
    """The plan of `GroupSplit`, the same for all partitions."""

    column: str
    key: int  # of the hashes
    shift: int  # units are hashes >> shift
    units: Integers  # ascending
    unit_splits: NDArray[np.uint8]  # of each unit

    def assign(self, table: pa.Table, keep: Mask | None) -> SplitArray:
        """Return each row's split; ColumnError for an unknown group."""
        codes, names = encode_classes(table, self.column)
        units = pa.array(_hashes(names, self.key) >> self.shift)
        unit_index = pc.index_in(units, value_set=pa.array(self.units)).fill_null(len(self.units)).to_numpy()
        assigned: SplitArray = np.append(self.unit_splits, np.uint8(DROPPED))[unit_index][codes]
        if (assigned == DROPPED if keep is None else (assigned == DROPPED) & keep).any():
            raise data_changed_error(f'Column "{self.column}"')
        return assigned if keep is None else np.where(keep, assigned, np.uint8(DROPPED))
