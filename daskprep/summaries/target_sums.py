"""Exact sums of a target by buckets of a number."""

from __future__ import annotations

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
_LEAST_EXPONENT = -1073  # of a double


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
        low = int(keys.min())
        if int(keys.max()) - low < DENSE_KEYS:
            distinct, places = None, keys - low
        else:
            distinct, places = np.unique(keys, return_inverse=True)
        rows = np.bincount(places)
        present = np.flatnonzero(rows)
        numbers = np.zeros(len(rows), np.int64)
        numbers[present] = np.arange(len(present))
        cells = numbers[places] * len(labels) + codes
        sums = np.bincount(cells, digits, len(present) * len(labels)).astype(np.int64)
        found = present + low if distinct is None else distinct
        return cls(found, rows[present], sums.reshape(-1, len(labels)), labels, shift)._settled()

    @classmethod
    def of_numbers(cls, values: np.ndarray, target: np.ndarray) -> TargetSums:
        """Summarize finite values and the finite targets beside them."""
        mantissas, exponents = np.frexp(finite_doubles(target))
        if not len(exponents):
            return cls()
        # Zero is the least of targets: it must not leave out tiny ones.
        exponents = np.where(mantissas == 0.0, _LEAST_EXPONENT, exponents) - _BITS
        digits = np.ldexp(np.rint(np.ldexp(mantissas, _BITS)), exponents & ((1 << _PLACE_SHIFT) - 1))
        places = exponents >> _PLACE_SHIFT
        highest = int(places.max())
        lowest = max(int(places.min()), highest - _MOST_PLACES + 1)
        digits[places < lowest] = 0.0
        return cls.of(values, np.maximum(places, lowest) - lowest, tuple(range(lowest, highest + 1)), digits)

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
        # Of the largest first, each by powers of 2 from there: sums may be beyond the doubles.
        scaled: np.ndarray = np.ldexp(sums, _PLACE_BITS * (places - places.max())).sum(axis=1, keepdims=True)
        return scaled

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
