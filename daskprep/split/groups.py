"""The split by groups: all rows of a group in one split, and the shares as near as whole groups allow.

Groups are counted by the keyed hash of their names, so that no name is held and two groups of one hash merely stay
together. Beyond some 16,384 groups (`OrderedCounts`), those whose hashes begin alike are one *unit*. What follows of
groups holds for units then, which are so small that shares are met to about a ten-thousandth.

Let v(g) be the shares of the rows that a unit has: of all rows and, stratified, of each class. A split s should have
the share p(s) of each, and lacks d(s). Units go, largest first, to the split that lacks most of what they have, where
v.d(s) is largest; then units move one by one while that lowers the sum of all d(s)**2. Where no such move is left,
that sum is at most the sum of v(g)**2, and without classes no split lacks more rows than another by more than the
smallest unit of the other has.
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

from daskprep.classes import Mask, OrderedCounts, data_changed_error, encode_classes
from daskprep.errors import ColumnError
from daskprep.parametrized import with_parameters
from daskprep.permutation import Integers, hash_strings
from daskprep.split.base import DEFAULT_SHARES, DROPPED, TRAIN, ReadAgain, Shares, SplitArray, Splitter
from daskprep.storage.checkpoint import checkpointable
from daskprep.summaries.multiset import count_keys

# The counts of all units, by class, are one array in the client: 128 MB at most.
MAX_STRATA = 1_000
_MIN_GAIN = 1e-12


@with_parameters
class GroupSplit(Splitter):
    """Split groups of rows, such as those of one customer, so that no group is in two splits.

    The shares of the rows, with `stratify` also those of each class, are as near to the probabilities as whole groups
    allow. Another number of rows may move groups; `HashSplit` keeps them where they are.

    Parameters
    ----------
    column : str
        Column whose value names the group, of any flat type; 1, 1.0 and "1" are one group, and so are all missing
        values.
    probabilities : sequence of float
        Shares of train, validation and test, or of train and test; they add up to 1.
    seed : int
        Seed of the choice among groups of the same size.
    stratify : str or None
        Column whose classes have these shares too, 1,000 classes at most.

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
    probabilities: Shares = DEFAULT_SHARES
    seed: int = 42
    stratify: str | None = None

    def census(self, table: pa.Table, keep: Mask | None = None) -> GroupCounts:
        return count_groups(table, self.column, self.stratify, self._key, keep)

    def plan(self, censuses: Sequence[GroupCounts], read_again: ReadAgain = None) -> list[GroupAssignment]:
        group_units = GroupUnits.of(censuses, self.stratify)
        unit_splits = group_units.assign_units(self._shares())
        if unit_splits.size and TRAIN not in unit_splits:
            raise ColumnError(
                f'Column "{self.column}": {unit_splits.size} group(s) are too few for {self.probabilities}: none would be '
                "left to train on. Give more groups, or a larger share to train."
            )
        return [GroupAssignment(self.column, self._key, group_units.shift, group_units.units, unit_splits)] * len(
            censuses
        )


@checkpointable
@dataclass(frozen=True, eq=False)
class GroupCounts:
    """How many rows of a partition each group has, by class; a single class (null) where there are none."""

    classes: pa.Array
    counts: tuple[OrderedCounts, ...]


def count_groups(table: pa.Table, column: str, stratify: str | None, key: int, keep: Mask | None) -> GroupCounts:
    """Count the groups of the kept rows of one partition."""
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
    """The units of all partitions, ascending, and their rows: in all, and of each class if there are several."""

    shift: int
    units: Integers
    rows: Integers

    @classmethod
    def of(cls, censuses: Sequence[GroupCounts], stratify: str | None) -> GroupUnits:
        """Add up the counts of all partitions."""
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
            for class_index, one in zip(class_indices, census.counts, strict=True):
                counts[class_index] += one
        total = reduce(add, counts, OrderedCounts.of(np.zeros(0, np.int64)))
        rows = np.zeros((1 + len(classes) * (stratify is not None), total.buckets.size), np.int64)
        rows[0] = total.counts
        for row, one in zip(rows[1:], counts, strict=False):
            np.add.at(row, np.searchsorted(total.buckets, one.buckets >> (total.shift - one.shift)), one.counts)
        return cls(total.shift, total.buckets, rows)

    def assign_units(self, shares: Sequence[float]) -> NDArray[np.uint8]:
        """Return the split of each unit; the module's docstring says how they are chosen."""
        totals = self.rows.sum(axis=1, keepdims=True)
        # Sums over the first axis add one row after the other, on every machine.
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
    """Return the split of units of one share each, largest first: seven times as fast as in arrays of one.

    None could move: the smallest of a split, which came last, went where most was lacking.
    """
    lacking, unit_splits = list(shares), list[int]()
    for weight in weights:
        lacked = [weight * lack for lack in lacking]
        unit_splits.append(lacked.index(max(lacked)))
        lacking[unit_splits[-1]] -= weight
    return unit_splits


@dataclass(frozen=True, eq=False)
class GroupAssignment:
    """The split of each unit of groups, which all partitions share."""

    column: str
    key: int
    shift: int
    units: Integers
    unit_splits: NDArray[np.uint8]

    def assign(self, table: pa.Table, keep: Mask | None) -> SplitArray:
        codes, names = encode_classes(table, self.column)
        units = pa.array(_hashes(names, self.key) >> self.shift)
        unit_index = pc.index_in(units, value_set=pa.array(self.units)).fill_null(len(self.units)).to_numpy()
        assigned: SplitArray = np.append(self.unit_splits, np.uint8(DROPPED))[unit_index][codes]
        if (assigned == DROPPED if keep is None else (assigned == DROPPED) & keep).any():
            raise data_changed_error(f'Column "{self.column}"')
        return assigned if keep is None else np.where(keep, assigned, np.uint8(DROPPED))
