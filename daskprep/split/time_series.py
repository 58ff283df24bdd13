"""Folds in order of time, each validated by a model trained on earlier rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pyarrow as pa

from daskprep.classes import Mask
from daskprep.errors import ColumnError
from daskprep.parametrized import is_integer, with_parameters
from daskprep.split.base import DROPPED, TRAIN, VALIDATION, PartitionAssignment, ReadAgain, SplitArray
from daskprep.split.folds import HeldOutFold
from daskprep.split.times import TimeAssignment, TimeCounts, TimeSplitter, find_times

_MAX_FOLDS = 80  # a fold may need three borders, and segment numbers are bytes below 255 (`DROPPED`)


@with_parameters
class TimeSeriesSplit(TimeSplitter):
    """Forward chaining: put the newest rows in k folds in order of time, and train for each fold on earlier rows.

    Folds contain the same rows as in scikit-learn's TimeSeriesSplit: of n rows, each has n // (k + 1). The oldest rows,
    which are in no fold, are only for training. `fit` and `fit_write` learn k states in one pass. Rows of the same time
    are ordered by row number.

    Parameters
    ----------
    column : str or list of str
        Column of times, or columns of year, month, day, hour, minute and second, as for `DatetimeSplit`.
    k : int
        Number of folds, 2 to 80.
    datetime_format : str or None
        Format of strings in the codes of `strptime`. None: ISO 8601.
    gap : str, timedelta or None
        Rows less than this duration before the first validation row are not trained on. A string has a unit, such as
        "7 days".
    window : str, timedelta or None
        Rolling window: rows more than this duration before the first validation row are not trained on. None: an
        expanding window of all earlier rows.
    fold : int or None
        The fold for validation, 0 to k - 1; rows after it are in no split. None: each in turn.

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

    column: str | list[str]
    k: int = 5
    datetime_format: str | None = None
    gap: str | timedelta | None = None
    window: str | timedelta | None = None
    fold: int | None = None

    @property
    def folds(self) -> int:
        return self.k if self.fold is None else 0

    @property
    def segments(self) -> int:
        return 0 if self.fold is not None else 1 + self.k * (1 + (self.gap is not None) + (self.window is not None))

    def validate(self) -> None:
        """Raise ConfigError if `k` or `fold` is out of range, or `window` is not longer than `gap`."""
        super().validate()
        if not (is_integer(self.k) and 2 <= self.k <= _MAX_FOLDS):
            raise self._error("k", f"an integer from 2 to {_MAX_FOLDS}", "For example, use k=5.")
        if self.fold is not None and not (is_integer(self.fold) and 0 <= self.fold < self.k):
            raise self._error("fold", f"the number of a fold, 0 to {self.k - 1}, or None", "Folds count from 0.")
        if self.window is not None and self._nanoseconds("window") <= self._nanoseconds("gap"):
            raise self._error("window", "longer than `gap`", 'For example, use `window="90 days", gap="7 days"`.')

    def plan(self, censuses: Sequence[TimeCounts], read_again: ReadAgain = None) -> Sequence[PartitionAssignment]:
        """Return each partition's assignment to segments; ColumnError if there are too few rows for the folds."""
        first_ranks: list[int] = []

        def ranks_of(rows: int) -> set[int]:
            """Return the ranks of the first row of each fold, which are also kept in `first_ranks`."""
            if 0 < rows <= self.k:
                raise ColumnError(
                    f"TimeSeriesSplit: {rows} rows are too few for {self.k} folds: use more rows, or a smaller k."
                )
            first_ranks.extend(rows - fold * (rows // (self.k + 1)) for fold in range(self.k, 0, -1))
            return set(first_ranks) if rows else set()

        reader, unit, rows, cuts = find_times(self, censuses, ranks_of, read_again)
        if not rows:
            empty = TimeAssignment(reader, unit, (), ())
            return [PeriodAssignment(empty, np.full((self.k, 1), TRAIN, np.uint8), self.fold)] * len(censuses)
        borders = self._borders([cuts[first][0][0] for first in first_ranks], 1 if unit == "ns" else 1_000)
        roles = self._roles([border[2:] for border in borders])
        assignments = []
        for number in range(len(censuses)):
            # A border from a duration is placed after all rows of its time.
            pairs = [
                cuts[first_ranks[fold]][number] if name == "fold" else (time, 2**63 - 1)
                for time, _, name, fold in borders
            ]
            assignments.append(PeriodAssignment(TimeAssignment(reader, unit, tuple(pairs), ()), roles, self.fold))
        return assignments

    def _borders(self, starts: Sequence[int], tick: int) -> list[tuple[int, bool, str, int]]:
        """Return the sorted borders of segments: time, whether from a duration, name and fold.

        `starts` are the times of the first rows of folds, in ticks of `tick` nanoseconds.
        """
        gap, window = -(-self._nanoseconds("gap") // tick), self._nanoseconds("window") // tick
        borders = [(start, False, "fold", fold) for fold, start in enumerate(starts)]
        if self.gap is not None:
            borders += [(start - gap - (gap == 0), True, "gap", fold) for fold, start in enumerate(starts)]
        if self.window is not None:
            borders += [(start - window - 1, True, "window", fold) for fold, start in enumerate(starts)]
        return sorted(borders, key=lambda border: (border[0], border[1], border[3]))

    def _roles(self, borders: Sequence[tuple[str, int]]) -> np.ndarray:
        """Return the split of each segment between sorted borders (name and fold) for each fold; a row per fold."""
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
    """The plan of `TimeSeriesSplit` for one partition; `assign` returns segments, or with a fold, splits.

    Attributes
    ----------
    times : TimeAssignment
        Assigns each row the number of its segment: the rows between two borders of folds.
    roles : array of uint8
        Split of each segment (column) for each fold (row).
    fold : int or None
        Fold for validation. None: each in turn.
    """

    times: TimeAssignment
    roles: np.ndarray
    fold: int | None = None

    def assign(self, table: pa.Table, keep: Mask | None) -> SplitArray:
        segments = self.times.assign(table, keep)
        return segments if self.fold is None else self._map_segments(segments, self.roles[self.fold])

    def select_fold(self, fold: int) -> PeriodAssignment:
        """Return the assignment with one fold for validation."""
        return PeriodAssignment(self.times, self.roles, fold)

    def fold_of(self, segments: SplitArray) -> SplitArray:
        """Return the fold that has each row for validation, by the segments of rows; `DROPPED` for no fold."""
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
    """Return the assignment with one fold for validation, for an assignment to all folds."""
    return folds.select_fold(fold) if isinstance(folds, PeriodAssignment) else HeldOutFold(folds, fold)
