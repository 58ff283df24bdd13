"""Base class of splits, and the protocol by which partitioned rows are split.

A split is a scikit-learn style object (parameters stored unchanged, `clone` works) with pure functions over Arrow
tables. Call ``split.validate()``, and then in turn:

1. ``split.census(table, keep)`` for each partition, on any worker and in any order, returns a small picklable summary.
   `table` needs the columns ``split.columns``; `keep` marks the rows that are not dropped, None marks all rows. If
   ``split.columns`` is empty, row counts are enough: create ``RowCounts(rows, kept)`` without a table, because a
   table without columns loses its number of rows when it is pickled.
2. ``split.plan(censuses, read_again)`` once, in the client, with the censuses in partition order, returns a small
   picklable `PartitionAssignment` for each partition. ``read_again(function)`` returns the small results of
   ``function(table, keep)`` on every partition, in order, with the same rows, `keep` and columns. Only splits by time
   call it, if the data has more distinct times than a census may hold: usually once, twice beyond about 268 million.
3. ``assignment.assign(table, keep)`` for each partition, with its own assignment and at least the columns
   ``split.assign_columns``, returns a uint8 for each row: `TRAIN`, `VALIDATION`, `TEST`, or `DROPPED`.

Numbers of rows are exact, by `largest_remainder`; with `StratifiedSplit`, also for each class. The split of a row
depends on the seed and on the class and rank of the row, never on partitioning.

For each partition, the client needs 16 bytes (random, fixed, hash), about 40 bytes and the text of each class in the
partition (stratify), or at most 256 KiB (datetime). Memory never grows with the number of rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from daskprep.columns.parametrized import Parametrized
from daskprep.columns.permutation import Integers, make_key
from daskprep.errors import ColumnError
from daskprep.sources.classes import Mask, RowCounts, largest_remainder

SplitArray = NDArray[np.uint8]
Shares = Sequence[float]
ReadAgain = Callable[[Callable[[pa.Table, Mask | None], Any]], Sequence[Any]] | None

TRAIN, VALIDATION, TEST, DROPPED = 0, 1, 2, 255
DEFAULT_SHARES = (0.7, 0.1, 0.2)
MAX_EXAMPLES = 3
_OPTIONAL_COLUMNS = ("stratify", "group", "time")  # parameters of splits that are optional columns


class PartitionAssignment(Protocol):
    """The plan of a split for one partition, small and picklable."""

    def assign(self, table: pa.Table, keep: Mask | None) -> SplitArray:
        """Return the split of rows; `DROPPED` where `keep` is False."""


class Splitter(Parametrized, ABC):
    """Base class of splits, by the protocol in the module's docstring.

    `shares` are the shares of train, validation and test, or of train and test. The integer `seed` changes the choice.
    """

    counts_rows: ClassVar[bool] = True  # whether `plan` needs the row counts of partitions
    counts_column: ClassVar[bool] = False  # whether `census` reads `assign_columns`
    draws_rows: ClassVar[bool] = False  # whether single rows are drawn, which leaks between rows in order of time
    column: str
    shares: Shares
    seed: int

    @property
    def columns(self) -> list[str]:
        """Columns the census reads; none if row counts are enough."""
        return self.assign_columns if self.counts_column else []

    @property
    def assign_columns(self) -> list[str]:
        """Columns that `PartitionAssignment.assign` reads."""
        values = (getattr(self, parameter, None) for parameter in ("column", *_OPTIONAL_COLUMNS))
        names = [name for value in values for name in ([value] if isinstance(value, str | None) else value)]
        return list(dict.fromkeys(name for name in names if name is not None))

    @property
    def folds(self) -> int:
        """The number of folds with separate states, or 0."""
        return 0

    @property
    def segments(self) -> int:
        """The number of segments that are summarized for all folds."""
        return self.folds

    @property
    def exclusion_reason(self) -> str | None:
        """The reason for which the split drops kept rows, or None."""
        return None

    def validate(self) -> None:
        """Raise ConfigError for invalid shares or columns."""
        super().validate()
        if hasattr(self, "shares"):
            self._shares()
        for name in _OPTIONAL_COLUMNS:
            column = getattr(self, name, None)
            if column is not None and not (isinstance(column, str) and column):
                raise self._error(name, "the name of a column or None", f'For example, use {name}="label".')

    def census(self, table: pa.Table, keep: Mask | None = None) -> Any:
        """Return the summary of a partition's kept rows for `plan`."""
        return RowCounts(table.num_rows, table.num_rows if keep is None else int(np.count_nonzero(keep)))

    @abstractmethod
    def plan(self, censuses: Sequence[Any], read_again: ReadAgain = None) -> Sequence[PartitionAssignment]:
        """Return the assignment of each partition, for censuses in partition order."""

    @property
    def _key(self) -> int:
        return make_key(self.seed, self.type)

    def _shares(self) -> tuple[float, float, float]:
        """Return the shares of train, validation (0 if there are two) and test; ConfigError if invalid."""
        try:
            shares = [float(p) for p in self.shares]
        except (TypeError, ValueError):
            shares = []
        adds_up = abs(sum(shares) - 1) <= 1e-6  # false of NaN, too
        if not (len(shares) in (2, 3) and adds_up and min(shares) >= 0 and shares[0] > 1e-9):
            expected = "3 numbers (or 2) of at least 0 with a sum of 1, the first above 0"
            remedy = "Use shares of train, validation, test, such as (0.7, 0.1, 0.2), or of train, test."
            raise self._error("shares", expected, remedy)
        return shares[0], 0.0 if len(shares) == 2 else shares[1], shares[-1]

    def _ends(self, rows: int) -> tuple[int, int]:
        """Return the row numbers where train and validation end; ColumnError if train has no row."""
        train, validation, _ = largest_remainder(rows, self._shares()).tolist()
        if rows and not train:
            raise ColumnError(
                f"{type(self).__name__}: {rows} rows are too few for {self.shares}: none would be "
                "left to train on. Use more rows, or a larger share of train."
            )
        return train, train + validation


def split_positions(position: NDArray[Any], train_end: Any, validation_end: Any) -> SplitArray:
    """Return train for positions below `train_end`, validation below `validation_end`, else test."""
    splits: SplitArray = (position >= train_end).astype(np.uint8) + (position >= validation_end)
    return splits


def scatter_splits(table: pa.Table, kept: Mask | Integers | None, splits: SplitArray) -> SplitArray:
    """Return the split of every row: `splits` for kept rows, `DROPPED` otherwise."""
    if kept is None:
        return splits
    assigned = np.full(table.num_rows, DROPPED, dtype=np.uint8)
    assigned[kept] = splits
    return assigned
