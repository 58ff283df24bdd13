"""Splits by the value of one column: by its name of a split, or by its hash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.classes import Mask, RowCounts, encode_classes, integer_weights, rejected_rows_error, show_classes
from daskprep.parametrized import with_parameters
from daskprep.permutation import hash_strings
from daskprep.split.base import (
    DEFAULT_SHARES,
    DROPPED,
    MAX_EXAMPLES,
    TEST,
    TRAIN,
    VALIDATION,
    ReadAgain,
    Shares,
    SplitArray,
    Splitter,
    split_positions,
)


@with_parameters
class FixedSplit(Splitter):
    """Split by a column with 0, 1, 2, or train, validation (val, valid), test in any case.

    Any other value, and a missing value, raises `RejectedValueError` with the values and rows.

    Parameters
    ----------
    column : str
        Column with the split of each row.

    Examples
    --------
    >>> import pyarrow as pa
    >>> split, table = FixedSplit(), pa.table({"split": ["train", "Test", "val", "2"]})
    >>> split.plan([split.census(table)])[0].assign(table, None).tolist()
    [0, 2, 1, 2]
    """

    type = "fixed"

    column: str = "split"

    def plan(self, censuses: Sequence[RowCounts], read_again: ReadAgain = None) -> list[FixedAssignment]:
        first = np.cumsum([0, *(census.rows for census in censuses)]).tolist()
        return [FixedAssignment(self.column, row) for row in first[:-1]]


_SPLIT_NAMES = {"0": TRAIN, "1": VALIDATION, "2": TEST, "train": TRAIN, "test": TEST}
_SPLIT_NAMES |= dict.fromkeys(("validation", "valid", "val"), VALIDATION)


@dataclass(frozen=True)
class FixedAssignment:
    """The plan of `FixedSplit` for one partition."""

    column: str
    first_row: int  # row number of the partition's first row, for messages

    def assign(self, table: pa.Table, keep: Mask | None) -> SplitArray:
        """Return the split named by each cell; RejectedValueError, with cells and rows, for invalid cells of kept rows."""
        codes, names = encode_classes(table, self.column)
        known = pa.array(list(_SPLIT_NAMES), pa.large_string())
        indices = pc.index_in(pc.ascii_lower(pc.ascii_trim_whitespace(names)), value_set=known)
        split_codes = np.array([*_SPLIT_NAMES.values(), DROPPED], dtype=np.uint8)
        assigned: SplitArray = split_codes[indices.fill_null(len(_SPLIT_NAMES)).to_numpy()][codes]
        bad = np.flatnonzero(assigned == DROPPED if keep is None else (assigned == DROPPED) & keep)
        if bad.size:
            values = show_classes(names, codes[bad[:MAX_EXAMPLES]])
            examples = list(zip((bad + self.first_row).tolist(), values, strict=False))
            raise rejected_rows_error(self.column, bad.size, examples, "0, 1, 2 or train, validation, test")
        return assigned if keep is None else np.where(keep, assigned, np.uint8(DROPPED))


@with_parameters
class HashSplit(Splitter):
    """Split by the hash of a column's value, so that a row stays in its split when the data grows.

    Rows with the same value, such as the rows of one customer, stay together, which avoids leakage between splits.
    Values are compared as strings: 1, 1.0 and "1" are the same value, and so are all missing values. Shares are met
    on average over values, not exactly.

    Parameters
    ----------
    column : str
        Column whose values are hashed, of any flat type.
    probabilities : sequence of float
        Shares of train, validation and test, or of train and test; they add up to 1.
    seed : int
        Seed of the hash.

    Examples
    --------
    >>> import pyarrow as pa
    >>> split = HashSplit("user", (0.5, 0.5))
    >>> tables = pa.table({"user": [1, 2, 3, 4]}), pa.table({"user": ["4", "3", "2", "1"]})
    >>> first, second = split.plan([split.census(table) for table in tables])
    >>> first.assign(tables[0], None).tolist() == second.assign(tables[1], None).tolist()[::-1]
    True
    """

    type = "hash"
    counts_rows = False

    column: str
    probabilities: Shares = DEFAULT_SHARES
    seed: int = 0

    def plan(self, censuses: Sequence[RowCounts], read_again: ReadAgain = None) -> list[HashAssignment]:
        train, validation, total = np.cumsum(integer_weights(self._shares())).tolist()
        ends = round(Fraction(train << 53, total)), round(Fraction(validation << 53, total))
        return [HashAssignment(self.column, ends, self._key)] * len(censuses)


@dataclass(frozen=True)
class HashAssignment:
    """The plan of `HashSplit`, the same for all partitions."""

    column: str
    ends: tuple[int, int]  # of train and validation, among the upper 53 bits of the hashes
    key: int  # of the hashes

    def assign(self, table: pa.Table, keep: Mask | None) -> SplitArray:
        codes, names = encode_classes(table, self.column)
        splits = split_positions(hash_strings(names, self.key) >> np.uint64(11), *map(np.uint64, self.ends))[codes]
        return splits if keep is None else np.where(keep, splits, np.uint8(DROPPED))
