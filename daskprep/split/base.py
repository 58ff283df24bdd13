"""Which rows are for training, which for validation, which for testing.

A split is a scikit-learn style object (parameters stored untouched, `clone` works) and three pure functions
over Arrow tables. Whoever owns the partitions calls ``split.validate()``, and then these in turn:

1. ``split.census(table, keep)`` for each partition, anywhere, in any order, gives a small picklable summary.
   `table` needs the columns ``split.columns``; `keep` marks the rows that are not dropped, None means all. If
   ``split.columns`` is empty, row counts are enough: ``RowCounts(rows, kept)`` may be made without a table
   (and should be: a table without columns forgets its rows when it is pickled).
2. ``split.plan(censuses, read_again)`` once, in the client, censuses in partition order, gives a small
   picklable `PartitionAssignment` for each partition. ``read_again(function)`` returns the small results of
   ``function(table, keep)`` on every partition, in order, of the same rows, `keep` and columns. Only `DatetimeSplit`
   calls it, if there are more distinct times than a census may hold: once as a rule, twice beyond some 268 million.
3. ``assignment.assign(table, keep)`` for each partition, with its own assignment and at least the columns
   ``split.assign_columns``, gives uint8 for each row: `TRAIN`, `VALIDATION`, `TEST`, or `DROPPED`.

Rows are shared out exactly, by `largest_remainder`; `StratifiedSplit` does so for each class. Which rows go where
depends on seed, class and rank of the row, never on partitions.

Memory, for each partition in the client: 16 bytes (random, fixed, hash), about 40 bytes and the text of each
of its classes (stratify), 256 KiB at most (datetime). No step holds anything the size of the data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from daskprep.classes import Mask, RowCounts, largest_remainder
from daskprep.errors import ColumnError
from daskprep.parametrized import Parametrized
from daskprep.permutation import Integers, make_key

SplitArray = NDArray[np.uint8]
Shares = Sequence[float]
ReadAgain = Callable[[Callable[[pa.Table, Mask | None], Any]], Sequence[Any]] | None

TRAIN, VALIDATION, TEST, DROPPED = 0, 1, 2, 255
DEFAULT_SHARES = (0.7, 0.1, 0.2)
MAX_EXAMPLES = 3
# Parameters that are columns, where a split has them and they are not None.
_OPTIONAL_COLUMNS = ("stratify", "group", "time")


class PartitionAssignment(Protocol):
    """What one partition must know to assign its rows; small and picklable."""

    def assign(self, table: pa.Table, keep: Mask | None) -> SplitArray:
        """Return `TRAIN`, `VALIDATION`, `TEST` or `DROPPED` (where `keep` is False) for every row."""


class Splitter(Parametrized, ABC):
    """What every split shares: parameters, checks, JSON. The module's docstring states the protocol.

    `probabilities` are the shares of train, validation and test, or of train and test. Another `seed`, a
    whole number, gives another choice.
    """

    counts_rows: ClassVar[bool] = True
    counts_column: ClassVar[bool] = False
    column: str
    probabilities: Shares
    seed: int

    @property
    def columns(self) -> list[str]:
        """Columns the census reads; none if row counts are enough."""
        return self.assign_columns if self.counts_column else []

    @property
    def assign_columns(self) -> list[str]:
        """Columns that `PartitionAssignment.assign` reads."""
        values = (getattr(self, parameter, None) for parameter in ("column", *_OPTIONAL_COLUMNS))
        names = [name for one in values for name in ([one] if isinstance(one, str | None) else one)]
        return list(dict.fromkeys(name for name in names if name is not None))

    @property
    def folds(self) -> int:
        """How many folds there are, if numbers stand for these: each is left out of a state of its own."""
        return 0

    @property
    def segments(self) -> int:
        """In how many pieces rows are summarized to learn the states of all folds; `folds`, if these are the pieces."""
        return self.folds

    @property
    def exclusion_reason(self) -> str | None:
        """Why the split leaves out kept rows, if it does."""
        return None

    def validate(self) -> None:
        super().validate()
        if hasattr(self, "probabilities"):
            self._shares()
        for name in _OPTIONAL_COLUMNS:
            column = getattr(self, name, None)
            if column is not None and not (isinstance(column, str) and column):
                raise self._error(name, "the name of a column or None", f'Give for instance {name}="label".')

    def census(self, table: pa.Table, keep: Mask | None = None) -> Any:
        """Summarize the kept rows of one partition."""
        return RowCounts(table.num_rows, table.num_rows if keep is None else int(np.count_nonzero(keep)))

    @abstractmethod
    def plan(self, censuses: Sequence[Any], read_again: ReadAgain = None) -> Sequence[PartitionAssignment]:
        """Return the assignment of each partition; `censuses` are in partition order."""

    @property
    def _key(self) -> int:
        return make_key(self.seed, self.type)

    def _shares(self) -> tuple[float, float, float]:
        try:
            shares = [float(p) for p in self.probabilities]
        except (TypeError, ValueError):
            shares = []
        adds_up = abs(sum(shares) - 1) <= 1e-6  # false of NaN, too
        if not (len(shares) in (2, 3) and adds_up and min(shares) >= 0 and shares[0] > 1e-9):
            expected = "3 shares (or 2), none below 0, that are 1 in sum, that of train above 0"
            remedy = "Give shares of train, validation, test, as (0.7, 0.1, 0.2), or of train, test."
            raise self._error("probabilities", expected, remedy)
        return shares[0], 0.0 if len(shares) == 2 else shares[1], shares[-1]

    def _ends(self, rows: int) -> tuple[int, int]:
        """Return where train ends and where validation ends among `rows` rows in order."""
        train, validation, _ = largest_remainder(rows, self._shares()).tolist()
        if rows and not train:
            raise ColumnError(
                f"{type(self).__name__}: {rows} rows are too few for {self.probabilities}: none would be "
                "left to train on. Give more rows, or a larger share to train."
            )
        return train, train + validation


def split_positions(position: NDArray[Any], train_end: Any, validation_end: Any) -> SplitArray:
    """Return the split of each position, from where train and validation end."""
    splits: SplitArray = (position >= train_end).astype(np.uint8) + (position >= validation_end)
    return splits


def scatter_splits(table: pa.Table, kept: Mask | Integers | None, splits: SplitArray) -> SplitArray:
    """Put the splits of the kept rows in their places, `DROPPED` elsewhere."""
    if kept is None:
        return splits
    assigned = np.full(table.num_rows, DROPPED, dtype=np.uint8)
    assigned[kept] = splits
    return assigned
