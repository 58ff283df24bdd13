"""Folds for cross-validation: every row in one of k folds, or the newest rows in folds in order of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.parametrized import is_integer, with_parameters
from daskprep.columns.permutation import Integers
from daskprep.errors import ColumnError, ConfigError
from daskprep.sources.classes import ClassShare, Mask, count_classes, share_classes
from daskprep.sources.split.base import (
    DROPPED,
    TRAIN,
    VALIDATION,
    PartitionAssignment,
    ReadAgain,
    SplitArray,
    Splitter,
    scatter_splits,
)
from daskprep.sources.split.groups import GroupAssignment, GroupUnits, count_groups
from daskprep.sources.split.rows import RandomAssignment, assign_ranks
from daskprep.sources.split.times import (
    ALL_ROWS,
    Cut,
    DatetimeSplit,
    TimeAssignment,
    TimeCounts,
    TimeOrder,
    TimeSplitter,
)

MAX_FOLDS = 255  # fold numbers are bytes, and 255 means that a row is in no fold


class _FoldSplitter(Splitter):
    """Base class of splits into `k` folds, one for validation."""

    max_folds: ClassVar[int]
    k: int
    fold: int | None

    @property
    def folds(self) -> int:
        return self.k if self.fold is None else 0

    def validate(self) -> None:
        """Raise ConfigError unless k is 2 or more, and fold below it."""
        super().validate()
        if not (is_integer(self.k) and 2 <= self.k <= self.max_folds):
            raise self._error("k", f"an integer from 2 to {self.max_folds}", "For example, use k=5.")
        if self.fold is not None and not (is_integer(self.fold) and 0 <= self.fold < self.k):
            raise self._error("fold", f"the number of a fold, 0 to {self.k - 1}, or None", "Folds count from 0.")


@with_parameters
class KFold(_FoldSplitter):
    """Cross-validation: put every row in one of k folds, at random, by class, by group, or in order of time.

    `fit` and `fit_write` learn k states in one pass, each without one of the folds, which is then for validation:
    see `Preprocessor.fold` and `FoldedDataset`. Fold sizes differ by at most one row, and with `stratify`, so do the
    sizes of each class. With `group`, they are as equal as undivided groups allow.

    Parameters
    ----------
    k : int
        Number of folds, 2 to 255.
    stratify : str or None
        Column whose classes have the same shares in all folds.
    group : str or None
        Column whose groups stay together: all rows of one value are in one fold.
    time : str or None
        Column of times: folds are periods, and the oldest rows are fold 0. Each fold is validated by a model trained on
        all other periods, also later ones; `TimeSeriesSplit` trains on the past only. Not with `stratify` or `group`.
    fold : int or None
        The fold for validation, 0 to k - 1; the other folds are for training. None: each in turn.
    seed : int
        Seed of the random choice; it does not matter with `time`.
    divide_times : bool
        Whether rows of the same `time` may be in two folds, in the order of rows, so that folds are equal.

    Examples
    --------
    >>> import pandas as pd
    >>> import daskprep as dp
    >>> frame = pd.DataFrame({"user": list("abacbcdd"), "price": range(8)})
    >>> prep = dp.Preprocessor({"price": "number"}, split=dp.KFold(2, group="user")).fit(frame)
    >>> prep.assign(frame)["split"]
    array([1, 0, 1, 1, 0, 1, 0, 0], dtype=uint8)
    >>> prep.fold(1).learned_["price"].mean  # of the rows of fold 0
    4.5
    """

    type = "kfold"
    counts_column = True
    max_folds = MAX_FOLDS

    k: int = 5
    stratify: str | None = None
    group: str | None = None
    time: str | None = None
    fold: int | None = None
    seed: int = 42
    divide_times: bool = False

    def _parameters(self) -> dict[str, Any]:
        parameters = super()._parameters()
        if self.divide_times or self.time is None:  # as in splits saved before the parameter existed
            del parameters["divide_times"]
        return parameters

    def validate(self) -> None:
        super().validate()
        if self.time is not None and (self.stratify or self.group):
            raise ConfigError("KFold: time cannot be combined with stratify or group: leave out time, or these two.")

    def census(self, table: pa.Table, keep: Mask | None = None) -> Any:
        """Count groups, classes, times or rows, which make folds."""
        if self.group is not None:
            return count_groups(table, self.group, self.stratify, self._key, keep)
        if self.stratify is not None:
            return count_classes(table, self.stratify, keep)
        return super().census(table, keep) if self.time is None else DatetimeSplit(self.time).census(table, keep)

    def plan(self, censuses: Sequence[Any], read_again: ReadAgain = None) -> Sequence[PartitionAssignment]:
        assignments = self._plan(censuses, read_again)
        return assignments if self.fold is None else [HeldOutFold(folds, self.fold) for folds in assignments]

    def _plan(self, censuses: Sequence[Any], read_again: ReadAgain) -> Sequence[PartitionAssignment]:
        """Return the assignment of rows to `k` folds by partition."""
        if self.group is not None:
            group_units = GroupUnits.of(censuses, self.stratify)
            self._check_enough(group_units.units.size, f'groups of column "{self.group}"')
            unit_splits = group_units.assign_units([1 / self.k] * self.k)
            assignment = GroupAssignment(self.group, self._key, group_units.shift, group_units.units, unit_splits)
            return [assignment] * len(censuses)
        if self.stratify is not None:
            return self._plan_classes(self.stratify, censuses)
        if self.time is not None:
            order = TimeOrder.of(DatetimeSplit(self.time), censuses, read_again)
            self._check_enough(order.rows, "rows")
            quotient, remainder = divmod(order.rows, self.k)
            ends = [quotient * fold + min(fold, remainder) for fold in range(1, self.k)]
            return order.assign(_cut_folds(self, order, ends))
        kept = [census.kept for census in censuses]
        self._check_enough(sum(kept), "rows")
        return [RowFolds(self.k, rows) for rows in assign_ranks(kept, (0, 0), self._key)]

    def _plan_classes(self, column: str, censuses: Sequence[Any]) -> list[ClassFolds]:
        """Return the folds of each partition, stratified by `column`."""
        totals, shares = share_classes(censuses, column, self._key)
        order = pc.sort_indices(totals.classes).to_numpy()
        before = np.zeros(order.size, np.int64)
        before[order] = np.cumsum(totals.counts[order]) - totals.counts[order]
        self._check_enough(int(totals.counts.sum()), "rows")
        class_indices = [pc.index_in(share.classes, value_set=totals.classes).to_numpy() for share in shares]
        return [
            ClassFolds(self.k, share, before[indices]) for share, indices in zip(shares, class_indices, strict=True)
        ]

    def _check_enough(self, count: int, noun: str) -> None:
        """Raise ColumnError for fewer rows, from 1 on, than folds."""
        if 0 < count < self.k:
            raise ColumnError(f"KFold: {count} {noun} are too few for {self.k} folds: add rows, or use fewer folds.")


def _cut_folds(split: KFold | TimeSeriesSplit, order: TimeOrder, ends: Sequence[int]) -> list[Cut]:
    """Return cuts at `ends`; ColumnError if a fold has no row."""
    cuts = order.cut(ends, split.divide_times)
    if order.find_empty(ends, cuts):
        raise ColumnError(
            f'{type(split).__name__}: the rows of one time of "{order.reader.name}" stay together, which leaves none '
            f"for one of {split.k} folds: use fewer folds, a finer time, or divide_times=True"
        )
    return cuts


@dataclass(frozen=True)
class HeldOutFold:
    """The plan for one partition with one fold for validation."""

    folds: PartitionAssignment
    fold: int  # for validation

    def assign(self, table: pa.Table, keep: Mask | None) -> SplitArray:
        """Return the fold as validation, others as training rows."""
        fold_numbers = self.folds.assign(table, keep)
        splits = np.where(fold_numbers == self.fold, np.uint8(VALIDATION), np.uint8(TRAIN))
        splits[fold_numbers == DROPPED] = DROPPED
        return splits


@dataclass(frozen=True)
class RowFolds:
    """The plan of a random KFold for one partition."""

    k: int
    rows: RandomAssignment  # the permutation

    def assign(self, table: pa.Table, keep: Mask | None) -> SplitArray:
        """Return the fold of each kept row, by its random position."""
        positions = self.rows.positions(table, keep)
        positions %= self.k
        return scatter_splits(table, keep, positions.astype(np.uint8))


@dataclass(frozen=True, eq=False)
class ClassFolds:
    """The plan of a stratified KFold for one partition."""

    k: int
    share: ClassShare
    before: Integers  # for each class of `share`, the rows of all earlier classes

    def assign(self, table: pa.Table, keep: Mask | None) -> SplitArray:
        """Return the fold of each kept row, by its rank in its class."""
        rows, classes, positions = self.share.positions(table, keep)
        positions += self.before[classes]
        positions %= self.k
        return scatter_splits(table, rows, positions.astype(np.uint8))


@with_parameters
class TimeSeriesSplit(_FoldSplitter, TimeSplitter):
    """Forward chaining: put the newest rows in k folds in order of time, and train for each fold on earlier rows.

    Of n rows, each fold has n // (k + 1), as in scikit-learn's TimeSeriesSplit, or as near as rows of the same time
    allow, which stay together. The oldest rows, which are in no fold, are only for training. `fit` and `fit_write`
    learn k states in one pass.

    Parameters
    ----------
    column : str or list of str
        Column of times, or columns of year, month, day, hour, minute and second, as for `DatetimeSplit`.
    k : int
        Number of folds, 2 to 80.
    datetime_format : str or None
        Format of strings in the codes of `strptime`. None: ISO 8601.
    gap : str, timedelta or None
        Rows less than this duration before the first validation row are not trained on. Text has a unit, as "7 days".
    window : str, timedelta or None
        Rolling window: rows more than this duration before the first validation row are not trained on. None: an
        expanding window of all earlier rows.
    fold : int or None
        The fold for validation, 0 to k - 1; rows after it are in no split. None: each in turn.
    divide_times : bool
        Whether rows of the same time may be in two folds, in the order of rows, as in scikit-learn.

    Examples
    --------
    >>> import pandas as pd
    >>> import daskprep as dp
    >>> frame = pd.DataFrame({"price": range(6), "day": pd.date_range("2024-01-01", periods=6)})
    >>> prep = dp.Preprocessor({"price": "number"}, split=dp.TimeSeriesSplit("day", k=2)).fit(frame)
    >>> prep.fold(0).assign(frame)["split"]
    array([  0,   0,   1,   1, 255, 255], dtype=uint8)
    >>> prep.fold(0).learned_["price"].mean  # over the rows before fold 0
    0.5
    >>> prep.assign(frame)["split"]
    array([255, 255,   0,   0,   1,   1], dtype=uint8)
    """

    type = "time_series"
    max_folds = 80  # a fold may need three borders, and segment numbers are bytes below 255 (`DROPPED`)

    column: str | list[str]
    k: int = 5
    datetime_format: str | None = None
    gap: str | timedelta | None = None
    window: str | timedelta | None = None
    fold: int | None = None
    divide_times: bool = False

    @property
    def segments(self) -> int:
        return 0 if self.fold is not None else 1 + self.k * (1 + (self.gap is not None) + (self.window is not None))

    def validate(self) -> None:
        """Raise ConfigError for a window that is not longer than `gap`."""
        super().validate()
        if self.window is not None and self._nanoseconds("window") <= self._nanoseconds("gap"):
            raise self._error("window", "longer than `gap`", 'For example, use `window="90 days", gap="7 days"`.')

    def plan(self, censuses: Sequence[TimeCounts], read_again: ReadAgain = None) -> Sequence[PartitionAssignment]:
        """Return the plan; ColumnError for as few rows as folds."""
        order = TimeOrder.of(self, censuses, read_again)
        rows = order.rows
        if not rows:
            empty = TimeAssignment(order.reader, order.unit, (), ())
            return [PeriodAssignment(empty, np.full((self.k, 1), TRAIN, np.uint8), self.fold)] * len(censuses)
        if rows <= self.k:
            raise ColumnError(
                f"TimeSeriesSplit: {rows} rows are too few for {self.k} folds: use more rows, or a smaller k."
            )
        cuts = _cut_folds(self, order, [rows - fold * (rows // (self.k + 1)) for fold in range(self.k, 0, -1)])
        first_rows = order.find([cut.rank for cut in cuts])
        borders = self._borders([first_rows[cut.rank][0].number for cut in cuts], 1 if order.unit == "ns" else 1_000)
        roles = self._roles([border[2:] for border in borders])
        # A border from a duration is placed after all rows of its time.
        placed = [
            cuts[fold] if name == "fold" else Cut(0, [(time, ALL_ROWS)] * len(censuses))
            for time, _, name, fold in borders
        ]
        return [PeriodAssignment(times, roles, self.fold) for times in order.assign(placed)]

    def _borders(self, starts: Sequence[int], tick: int) -> list[tuple[int, bool, str, int]]:
        """Return sorted borders of segments: (time, whether the border is after it, kind, fold)."""
        gap, window = -(-self._nanoseconds("gap") // tick), self._nanoseconds("window") // tick
        borders = [(start, False, "fold", fold) for fold, start in enumerate(starts)]
        if self.gap is not None:
            borders += [(start - gap - (gap == 0), True, "gap", fold) for fold, start in enumerate(starts)]
        if self.window is not None:
            borders += [(start - window - 1, True, "window", fold) for fold, start in enumerate(starts)]
        return sorted(borders, key=lambda border: (border[0], border[1], border[3]))

    def _roles(self, borders: Sequence[tuple[str, int]]) -> np.ndarray:
        """Return the split of each segment, a row per fold."""
        border_index, segments = {border: index for index, border in enumerate(borders)}, np.arange(len(borders) + 1)
        roles = np.full((self.k, len(segments)), DROPPED, np.uint8)
        for fold, row in enumerate(roles):
            first = border_index["fold", fold]
            start = border_index.get(("window", fold), -1)
            end = min(first, border_index.get(("gap", fold), first))
            row[(segments > start) & (segments <= end)] = TRAIN
            row[(segments > first) & (segments <= border_index.get(("fold", fold + 1), len(borders)))] = VALIDATION
        return roles


@dataclass(frozen=True, eq=False)
class PeriodAssignment:
    """The plan of `TimeSeriesSplit` for one partition."""

    times: TimeAssignment  # assigns each row the number of its segment: the rows between two borders of folds
    roles: np.ndarray  # split of each segment (column) for each fold (row)
    # Fold for validation. None: each in turn.
    fold: int | None = None

    def assign(self, table: pa.Table, keep: Mask | None) -> SplitArray:
        segments = self.times.assign(table, keep)
        return segments if self.fold is None else self._map_segments(segments, self.roles[self.fold])

    def select_fold(self, fold: int) -> PeriodAssignment:
        return PeriodAssignment(self.times, self.roles, fold)

    def fold_of(self, segments: SplitArray) -> SplitArray:
        """Return the fold that each row validates, or `DROPPED`."""
        is_validation = self.roles == VALIDATION
        return self._map_segments(
            segments, np.where(is_validation.any(axis=0), is_validation.argmax(axis=0), DROPPED).astype(np.uint8)
        )

    @property
    def trained_on(self) -> tuple[tuple[int, ...], ...]:
        """The segments that each fold trains on."""
        return tuple(tuple(np.flatnonzero(row == TRAIN).tolist()) for row in self.roles)

    def _map_segments(self, segments: SplitArray, row: np.ndarray) -> SplitArray:
        out: SplitArray = np.append(row, np.full(256 - len(row), DROPPED, np.uint8))[segments]
        return out


def select_fold(folds: PartitionAssignment, fold: int) -> PartitionAssignment:
    """Return the assignment with one fold for validation."""
    return folds.select_fold(fold) if isinstance(folds, PeriodAssignment) else HeldOutFold(folds, fold)
