"""Exact sums of a target by buckets of a number."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from daskprep.summaries.base import Summary, finite_doubles
from daskprep.summaries.multiset import DENSE_KEYS, no_integers
from daskprep.summaries.quantiles import Quantiles, bucketed, finest_shift

Label: TypeAlias = int | str

# A target is rounded to 24 bits, which stand at places of 4 bits: 2**26 rows of a partition, and 2**36 in all, add up
# without rounding. What is 16 places below the largest target is left out.
_BITS, _PLACE_SHIFT, _MOST_PLACES = 24, 2, 16
_PLACE_BITS = 1 << _PLACE_SHIFT


@dataclass(frozen=True, eq=False)
class TargetSums(Summary):
    """The buckets of `Quantiles`, and by bucket the rows of each class, or the sums of digits of a target.

    Attributes
    ----------
    labels : tuple
        Of each column of `sums`, the class, or the place of the digits.
    """

    keys: np.ndarray = field(default_factory=no_integers)
    rows: np.ndarray = field(default_factory=no_integers)
    sums: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    labels: tuple[Label, ...] = ()
    shift: int = 0

    @classmethod
    def of(
        cls, values: np.ndarray, codes: np.ndarray, labels: tuple[Label, ...], digits: np.ndarray | None = None
    ) -> TargetSums:
        """Summarize finite values, with the label of each, and a whole number of at most 27 bits (None: 1)."""
        keys, shift = bucketed(finite_doubles(values))
        if not len(keys):
            return cls()
        if digits is not None:
            highest = int(codes.max())
            lowest = max(int(codes.min()), highest - _MOST_PLACES + 1)
            if lowest or highest + 1 < len(labels):
                digits = np.where(codes < lowest, 0.0, digits)
                codes, labels = np.maximum(codes, lowest) - lowest, labels[lowest : highest + 1]
        low = int(keys.min())
        if int(keys.max()) - low < DENSE_KEYS:
            keys -= low
            rows = np.bincount(keys)
            present = np.flatnonzero(rows > 0)
            rows, found = rows[present], present + low
            numbers = np.zeros(int(present[-1]) + 1, np.int64)
            numbers[present] = np.arange(0, len(present) * len(labels), len(labels))
            cells = numbers.take(keys)
        else:
            found, cells, rows = np.unique(keys, return_inverse=True, return_counts=True)
            cells *= len(labels)
        cells += codes
        sums = np.bincount(cells, digits, len(found) * len(labels)).astype(np.int64).reshape(-1, len(labels))
        if digits is not None and len(labels) == 1 and not digits.any():  # zeros tell nothing of the places of others
            sums, labels = sums[:, :0], ()
        return cls(found, rows, sums, labels, shift)._settled()

    @classmethod
    def of_numbers(cls, values: np.ndarray, target: np.ndarray) -> TargetSums:
        """Summarize finite values and the finite targets beside them."""
        return cls.of(values, *in_digits(target))

    @property
    def buckets(self) -> Quantiles:
        """Where the buckets begin and end."""
        return Quantiles(self.keys, self.rows, self.shift)

    def targets(self) -> np.ndarray:
        """Return the sum of the target in each bucket, or of each class: (buckets, sums)."""
        sums = self.sums.astype(np.float64)
        if not self.labels or isinstance(self.labels[0], str):
            return sums
        places = np.array(self.labels)
        # By powers of 2 from the largest, as sums may be beyond the doubles; in turn, so that no empty place matters.
        scaled = np.ldexp(sums, _PLACE_BITS * (places - places.max()))
        total: np.ndarray = functools.reduce(operator.add, scaled.T)[:, None]
        return total

    def __add__(self, other: TargetSums) -> TargetSums:
        labels = _narrowed({*self.labels, *other.labels})
        shift = max(self.shift, other.shift)
        keys = np.concatenate([one.keys >> (shift - one.shift) for one in (self, other)])
        sums = np.concatenate([one._aligned(labels) for one in (self, other)])
        return _together(keys, np.concatenate([self.rows, other.rows]), sums, labels, shift)._settled()

    def __mul__(self, times: int) -> TargetSums:
        repeated = TargetSums(self.keys, self.rows * times, self.sums * times, self.labels, self.shift)
        return repeated if times else TargetSums()

    def _aligned(self, labels: tuple[Label, ...]) -> np.ndarray:
        sums = np.zeros((len(self.keys), len(labels)), np.int64)
        for column, label in enumerate(self.labels):
            if label in labels:
                sums[:, labels.index(label)] = self.sums[:, column]
        return sums

    def _settled(self) -> TargetSums:
        labels = _narrowed(set(self.labels))
        further = finest_shift(self.keys)
        if not further and labels == self.labels:
            return self
        return _together(self.keys >> further, self.rows, self._aligned(labels), labels, self.shift + further)


def in_digits(target: np.ndarray) -> tuple[np.ndarray, tuple[Label, ...], np.ndarray]:
    """Return of finite numbers which of some places each has its digits at, these places, and the digits."""
    mantissas, exponents = np.frexp(finite_doubles(target))
    exponents -= _BITS
    digits = np.ldexp(np.rint(np.ldexp(mantissas, _BITS)), exponents & (_PLACE_BITS - 1))
    places = exponents >> _PLACE_SHIFT
    some = mantissas != 0.0
    used = places if some.all() else places[some]
    lowest, highest = (int(used.min()), int(used.max())) if len(used) else (0, 0)
    return np.where(some, places - lowest, 0), tuple(range(lowest, highest + 1)), digits


def _together(
    keys: np.ndarray, rows: np.ndarray, sums: np.ndarray, labels: tuple[Label, ...], shift: int
) -> TargetSums:
    keys = np.where(keys == -1, 0, keys)
    distinct, places = np.unique(keys, return_inverse=True)
    added = np.zeros((len(distinct), 1 + len(labels)), np.int64)
    np.add.at(added, places, np.column_stack([rows, sums]))
    return TargetSums(distinct, added[:, 0], added[:, 1:], labels, shift)


def _narrowed(labels: set[Label]) -> tuple[Label, ...]:
    """Return labels in order; of places, all from the lowest on, but for those too far below the highest."""
    places = [label for label in labels if isinstance(label, int)]
    if not places:
        return tuple(sorted(labels, key=str))
    return tuple(range(max(min(places), max(places) - _MOST_PLACES + 1), max(places) + 1))
