"""Balancing of classes in the training rows: repeat rows of rare classes, or drop rows of frequent classes.

As for splits, the steps are ``census``, ``plan``, and ``repeats(table, train_mask)`` of each `PartitionRepeats`.

A class with n training rows and a target of m rows has exactly m afterwards. Each row appears m // n times, and the
m % n rows that a permutation of the class puts first appear once more. These depend on the seed, the class, and the
rank of the row among the training rows of its class, never on partitioning. For each partition, the client needs
about 50 bytes and the text of each class in it.
"""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from daskprep.columns.display import format_count
from daskprep.columns.parametrized import Parametrized, is_integer, make_from_dict, with_parameters
from daskprep.columns.permutation import Integers, make_key
from daskprep.errors import ColumnError, ConfigError, did_you_mean, warn
from daskprep.sources.classes import (
    ClassCounts,
    ClassShare,
    Mask,
    class_names,
    count_classes,
    share_classes,
    show_classes,
)

Targets = Mapping[Any, int] | Sequence[tuple[Any, int]]


@dataclass(frozen=True)
class PartitionRepeats:
    """The plan of a balance for one partition: classes and targets."""

    share: ClassShare
    targets: Integers  # rows of each class of `share` after balancing, over all partitions

    def repeats(self, table: pa.Table, train_mask: Mask | None) -> Integers:
        """Return how often each row appears; 1 outside `train_mask`."""
        rows, classes, position = self.share.positions(table, train_mask)
        quotient, remainder = np.divmod(self.targets, self.share.totals)
        repeats = np.ones(table.num_rows, dtype=np.int64)
        repeats[rows] = quotient[classes] + (position < remainder[classes])
        return repeats


@with_parameters
class Balance(Parametrized, ABC):
    """Base class of `Oversample` and `Undersample`.

    `counts` sets the target rows of some class values; it is a mapping, or pairs (as in JSON, where keys are strings).
    """

    # Of the rows of a class and their target: np.maximum never drops, np.minimum never repeats.
    bound: ClassVar[np.ufunc]
    rule: ClassVar[str]  # for messages
    other: ClassVar[str]  # the opposite balance, for messages

    column: str
    ratio: float | None = None
    counts: Targets | None = None
    seed: int = 42

    @property
    def columns(self) -> list[str]:
        return [self.column]

    def validate(self) -> None:
        """Raise ConfigError unless either ratio or counts are valid."""
        super().validate()
        if (self.ratio is None) == (self.counts is None):
            passed = "neither" if self.ratio is None else "both"
            raise ConfigError(f"{type(self).__name__} needs either ratio or counts, not {passed}: set ratio=0.5.")
        is_number = isinstance(self.ratio, numbers.Real) and not isinstance(self.ratio, bool)
        if self.ratio is not None and not (is_number and 0 < self.ratio <= 1):
            raise self._error("ratio", "above 0 and at most 1", "It is the smallest class over the largest.")
        self._parse_counts()

    def census(self, table: pa.Table, train_mask: Mask | None = None) -> ClassCounts:
        return count_classes(table, self.column, train_mask)

    def plan(self, censuses: Sequence[ClassCounts]) -> list[PartitionRepeats]:
        """Return the plan of each partition from its census, in order."""
        totals, shares = share_classes(censuses, self.column, make_key(self.seed, self.type))
        targets = self.targets(totals)
        if self.ratio is not None and totals.classes.null_count:
            rows = format_count(int(totals.counts[np.asarray(totals.classes.is_null())].sum()), "training row")
            warn(
                f'column "{self.column}": {rows} without a value are a separate class for {type(self).__name__}: '
                'leave them out by a feature of this column with missing_value_strategy="drop_row", or fill the column'
            )
        class_indices = (pc.index_in(share.classes, value_set=totals.classes) for share in shares)
        pairs = zip(shares, class_indices, strict=True)
        return [PartitionRepeats(share, targets[indices.to_numpy()]) for share, indices in pairs]

    def targets(self, totals: ClassCounts) -> Integers:
        """Return the target rows of each class of `totals`; ColumnError or ConfigError if `counts` do not fit."""
        if self.ratio is None:
            return self._targets_from_counts(totals)
        ratio = Fraction(str(float(self.ratio)))  # 0.35 means 35 / 100, not the binary fraction next to it
        targets: Integers = self.bound(totals.counts, self._bound_from_ratio(totals.counts, ratio))
        return targets

    def _parameters(self) -> dict[str, Any]:
        pairs = None if self.counts is None else _as_pairs(self.counts)
        return {"counts": pairs, "column": self.column, "ratio": self.ratio, "seed": self.seed}

    @abstractmethod
    def _bound_from_ratio(self, counts: Integers, ratio: Fraction) -> int:
        """Return the bound of the rows of a class for a ratio."""

    def _targets_from_counts(self, totals: ClassCounts) -> Integers:
        """Return targets from `counts`; ColumnError for an absent class, ConfigError for one in the wrong direction."""
        requested = self._parse_counts()
        class_indices = pc.index_in(pa.array(requested, pa.large_string()), value_set=totals.classes).to_pylist()
        targets = totals.counts.copy()
        for name, class_index in zip(requested, class_indices, strict=True):
            if class_index is None:
                known = show_classes(totals.classes, np.argsort(-totals.counts, kind="stable")[:1000])
                hint = did_you_mean(name, [text.strip('"') for text in known])
                raise ColumnError(
                    f'Column "{self.column}": counts name the class {_show_class(name)}, which no training row has.'
                    f"{hint} The most frequent classes are {', '.join(known[:10])}."
                )
            if self.bound(requested[name], totals.counts[class_index]) != requested[name]:
                raise ConfigError(
                    f'Column "{self.column}": class {_show_class(name)} has {totals.counts[class_index]} training rows '
                    f"for a target of {requested[name]}, but {self.rule}. Use {self.other}, or leave this class out."
                )
            targets[class_index] = requested[name]
        return targets

    def _parse_counts(self) -> dict[str | None, int]:
        """Return the target rows in `counts` by class name, None for missing values; ConfigError for invalid ones."""
        try:
            pairs = [(class_names(pa.array([value]))[0].as_py(), rows) for value, rows in _as_pairs(self.counts or {})]
        except (TypeError, ValueError, pa.ArrowException):
            raise self._error("counts", "numbers of rows by class", 'For example, use {"yes": 100}.') from None
        requested: dict[str | None, int] = {}
        for name, rows in pairs:
            if not is_integer(rows) or not 0 <= rows < 1 << 62:
                raise self._error("counts", f"integers (class {_show_class(name)})", 'For example, use {"yes": 100}.')
            if name in requested:
                raise self._error("counts", f"one number per class ({_show_class(name)} has two)", "Drop one.")
            requested[name] = int(rows)
        return requested


def balanced_weights(counts: Integers) -> NDArray[np.float32]:
    """Return rows / (classes with rows * rows of the class); 0 for a class without rows."""
    weights = counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))
    return np.where(counts > 0, weights, 0.0).astype(np.float32)


def _as_pairs(counts: Targets) -> list[tuple[Any, int]]:
    return [(value, rows) for value, rows in (counts.items() if isinstance(counts, Mapping) else counts)]


def _show_class(name: str | None) -> str:
    return show_classes(pa.array([name], pa.large_string()), np.zeros(1, dtype=np.int64))[0]


class Oversample(Balance):
    """Balance that repeats training rows of rare classes; no class gets fewer rows.

    Parameters
    ----------
    column
        Column of the classes, of any flat type.
    ratio
        Every class smaller than ratio * (rows of the largest class) is repeated to that size (rounded). Above 0, at
        most 1.
    counts
        Alternative to `ratio`: target number of rows by class value, at least the current number.
    seed
        Seed that chooses the repeated rows; any integer.

    Examples
    --------
    >>> import pyarrow as pa
    >>> balance, table = Oversample("sold", ratio=0.5), pa.table({"sold": [0, 0, 0, 0, 0, 0, 1]})
    >>> balance.plan([balance.census(table)])[0].repeats(table, None).tolist()
    [1, 1, 1, 1, 1, 1, 3]
    """

    type = "oversample"
    bound = np.maximum
    rule = "oversampling never drops a row"
    other = "Undersample"

    def _bound_from_ratio(self, counts: Integers, ratio: Fraction) -> int:
        return round(ratio * int(counts.max(initial=0)))


class Undersample(Balance):
    """Balance that drops training rows of frequent classes; no class gets more rows.

    Parameters
    ----------
    column
        Column of the classes, of any flat type.
    ratio
        Every class larger than (rows of the smallest class) / ratio is reduced to that size (rounded). Above 0, at
        most 1.
    counts
        Alternative to `ratio`: target number of rows by class value, at most the current number.
    seed
        Seed that chooses the dropped rows; any integer.

    Examples
    --------
    >>> import pyarrow as pa
    >>> balance, table = Undersample("sold", ratio=0.5), pa.table({"sold": [0, 0, 0, 0, 0, 0, 1]})
    >>> sorted(balance.plan([balance.census(table)])[0].repeats(table, None).tolist())
    [0, 0, 0, 0, 1, 1, 1]
    """

    type = "undersample"
    bound = np.minimum
    rule = "undersampling never repeats a row"
    other = "Oversample"

    def _bound_from_ratio(self, counts: Integers, ratio: Fraction) -> int:
        largest, smallest = int(counts.max(initial=0)), int(counts.min(initial=2**62))
        return min(largest, round(smallest / ratio))


BALANCES: dict[str, type[Balance]] = {"oversample": Oversample, "undersample": Undersample}


def balance_from_dict(data: Mapping[str, Any] | None) -> Balance | None:
    """Return the balance for a result of `to_dict`; None for None."""
    return make_from_dict("balance", BALANCES, data)
