"""Splits row by row: at random, within classes, or by the value of a column; and random samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.parametrized import with_parameters
from daskprep.columns.permutation import Integers, hash_strings, make_key, permute
from daskprep.errors import ColumnError, warn
from daskprep.sources.classes import (
    ClassCounts,
    ClassShare,
    Mask,
    RowCounts,
    class_quotas,
    count_classes,
    data_changed_error,
    encode_classes,
    integer_weights,
    rejected_rows_error,
    share_classes,
    show_classes,
)
from daskprep.sources.split.base import (
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
    scatter_splits,
    split_positions,
)

OnSmall = Literal["error", "train"]


@with_parameters
class RandomSplit(Splitter):
    """Split rows at random into train, validation and test, with exact numbers of rows.

    Parameters
    ----------
    shares : sequence of float
        Shares of train, validation and test, or of train and test; they add up to 1.
    seed : int
        Seed of the random choice.

    Examples
    --------
    >>> import pyarrow as pa
    >>> split, table = RandomSplit((0.5, 0.25, 0.25), seed=1), pa.table({"x": range(8)})
    >>> [assignment] = split.plan([split.census(table)])
    >>> sorted(assignment.assign(table, None).tolist())
    [0, 0, 0, 0, 1, 1, 2, 2]
    """

    type = "random"
    draws_rows = True

    shares: Shares = DEFAULT_SHARES
    seed: int = 42

    def plan(self, censuses: Sequence[RowCounts], read_again: ReadAgain = None) -> list[RandomAssignment]:
        kept = [census.kept for census in censuses]
        return assign_ranks(kept, self._ends(sum(kept)), self._key)


@dataclass(frozen=True)
class RandomAssignment:
    """The plan of a random split for one partition."""

    ranks: range  # row numbers of the partition's kept rows among all kept rows
    total: int  # number of kept rows in all partitions
    ends: tuple[int, int]  # positions where train and validation end in the permutation of all kept rows
    key: int  # key of the permutation

    def assign(self, table: pa.Table, keep: Mask | None) -> SplitArray:
        return scatter_splits(table, keep, split_positions(self.positions(table, keep), *self.ends))

    def positions(self, table: pa.Table, keep: Mask | None) -> Integers:
        """Return the position of each kept row in the permutation."""
        return self._positions(table.num_rows if keep is None else int(np.count_nonzero(keep)))

    def is_train(self, rows: int) -> Mask:
        return self._positions(rows) < self.ends[TRAIN]

    def _positions(self, rows: int) -> Integers:
        """Return the permuted position of each row; an error for other rows."""
        if len(self.ranks) != rows:
            raise data_changed_error("The number of rows")
        return permute(np.arange(self.ranks.start, self.ranks.stop), self.total, self.key)


def assign_ranks(rows: Sequence[int], ends: tuple[int, int], key: int) -> list[RandomAssignment]:
    """Return each partition's assignment, by its kept rows."""
    first = list(accumulate(rows, initial=0))
    return [RandomAssignment(range(*span), first[-1], ends, key) for span in pairwise(first)]


def sample_rows(rows: Sequence[int], sample: float, seed: int) -> list[RandomAssignment]:
    """Return assignments whose training rows are a random sample.

    `rows` are the numbers of rows of the partitions, and `sample` is a share (float) or a number of rows (int). A
    larger sample of the same rows contains every smaller one. ColumnError for a share of no row.
    """
    total = sum(rows)
    # 0.35 means 35 / 100, not the binary fraction next to it.
    size = sample if isinstance(sample, int) else round(total * Fraction(str(float(sample))))
    if total and not size:
        raise ColumnError(f"sample={sample} of {total} rows is none: use a larger share, or a number of rows")
    return assign_ranks(rows, (size, size), make_key(seed, "sample"))


@with_parameters
class StratifiedSplit(Splitter):
    """Split every class of a column at random in the same proportions, with exact numbers of rows.

    Parameters
    ----------
    column : str
        Column of the classes, of any flat type; 1, 1.0 and "1" are one class, and so are all missing values.
    shares : sequence of float
        Shares of train, validation and test, or of train and test, for each class; they add up to 1.
    seed : int
        Seed of the random choice.
    on_small : {"error", "train"}
        What to do if a class is too small for its splits: "error" raises one, "train" warns and trains on its rows.

    Examples
    --------
    >>> import pyarrow as pa
    >>> split, table = StratifiedSplit("sold", (0.5, 0.5)), pa.table({"sold": [1, 0, 0, 1, None, None]})
    >>> [assignment] = split.plan([split.census(table)])
    >>> sorted(zip(table["sold"].to_pylist(), assignment.assign(table, None).tolist()), key=str)
    [(0, 0), (0, 2), (1, 0), (1, 2), (None, 0), (None, 2)]
    """

    type = "stratify"
    counts_column = draws_rows = True

    column: str
    shares: Shares = DEFAULT_SHARES
    seed: int = 42
    on_small: OnSmall = "error"

    def validate(self) -> None:
        super().validate()
        if self.on_small not in ("error", "train"):
            raise self._error("on_small", '"error" or "train"', "With train, small classes are not split.")

    def census(self, table: pa.Table, keep: Mask | None = None) -> ClassCounts:
        return count_classes(table, self.column, keep)

    def plan(self, censuses: Sequence[ClassCounts], read_again: ReadAgain = None) -> list[ClassAssignment]:
        """Return the plan; ColumnError or a warning for small classes, by `on_small`."""
        totals, shares = share_classes(censuses, self.column, self._key)
        small = np.flatnonzero(class_quotas(totals.counts, self._shares())[1])
        if small.size:
            self._report_small(totals, small[np.argsort(totals.counts[small], kind="stable")])
        return [ClassAssignment(share, self._shares()) for share in shares]

    def _report_small(self, totals: ClassCounts, small: Integers) -> None:
        """Raise ColumnError, or warn, about too small classes, smallest first."""
        shown = zip(show_classes(totals.classes, small[:5]), totals.counts[small[:5]].tolist(), strict=True)
        weights = integer_weights(self._shares())
        min_rows = -(-int(weights.sum()) // int(weights[weights > 0].min()))
        message = (
            f'Column "{self.column}": too few rows of {small.size} class(es) for the shares '
            f"{self.shares}: {', '.join(f'{name} has {rows}' for name, rows in shown)}"
            f"{', ...' * (small.size > 5)}. {min_rows} rows are always enough."
        )
        if self.on_small == "error":
            remedy = 'Merge rare classes, or train on them by set_params(split__on_small="train").'
            if totals.classes.take(pa.array(small)).null_count:
                remedy = f'Drop missing labels by missing_value_strategy="drop_row" of the target. {remedy}'
            raise ColumnError(f"{message} {remedy}")
        warn(f"{message} All rows of these classes are used for training.")


@dataclass(frozen=True)
class ClassAssignment:
    """The plan of `StratifiedSplit` for one partition."""

    share: ClassShare
    shares: tuple[float, float, float]

    def assign(self, table: pa.Table, keep: Mask | None) -> SplitArray:
        """Return the split of each kept row by its rank in its class."""
        rows, classes, position = self.share.positions(table, keep)
        ends = np.cumsum(class_quotas(self.share.totals, self.shares)[0], axis=1)[classes]
        return scatter_splits(table, rows, split_positions(position, ends[:, TRAIN], ends[:, VALIDATION]))


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
        """Return the split named in each row; RejectedValueError for another name."""
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
    shares : sequence of float
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
    shares: Shares = DEFAULT_SHARES
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
        """Return the split of each row by the hash of its value."""
        codes, names = encode_classes(table, self.column)
        splits = split_positions(hash_strings(names, self.key) >> np.uint64(11), *map(np.uint64, self.ends))[codes]
        return splits if keep is None else np.where(keep, splits, np.uint8(DROPPED))
