"""Exact sums of a target by buckets of a number."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from daskprep.summaries.base import Summary, finite_doubles
from daskprep.summaries.multiset import DENSE_KEYS, empty_integers
from daskprep.summaries.quantiles import Quantiles, assign_buckets, finest_shift, merge_buckets

Label: TypeAlias = int | str

# Targets are rounded to 24 bits, and become integers of at most 27 bits at positions of 4 bits. Sums of 2**26 rows of a
# partition, and of 2**36 in total, are then exact. Positions 16 below the highest one are left out.
_MANTISSA_BITS, _POSITION_SHIFT, _MAX_POSITIONS = 24, 2, 16
_POSITION_BITS = 1 << _POSITION_SHIFT


@dataclass(frozen=True, eq=False)
class TargetSums(Summary):
    """Buckets of a number, as in `Quantiles`, with the rows of each class of a target, or the sums of its digits.

    Attributes
    ----------
    keys, shift : ndarray, int
        Buckets, as in `Quantiles`.
    rows : ndarray
        Number of rows by bucket.
    sums : ndarray
        Rows of each class or sums of digits, of shape (buckets, labels).
    labels : tuple
        Class, or position of the digits, of each column of `sums`.
    """

    keys: np.ndarray = field(default_factory=empty_integers)
    rows: np.ndarray = field(default_factory=empty_integers)
    sums: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    labels: tuple[Label, ...] = ()
    shift: int = 0

    @classmethod
    def of(
        cls, values: np.ndarray, codes: np.ndarray, labels: tuple[Label, ...], digits: np.ndarray | None = None
    ) -> TargetSums:
        """Summarize finite values and their targets.

        `codes` has the index in `labels` of each value, and `digits` integers of at most 27 bits to add up (None: 1).
        """
        keys, shift = assign_buckets(finite_doubles(values))
        if not len(keys):
            return cls()
        if digits is not None:
            highest = int(codes.max())
            lowest = max(int(codes.min()), highest - _MAX_POSITIONS + 1)
            if lowest or highest + 1 < len(labels):
                digits = np.where(codes < lowest, 0.0, digits)
                codes, labels = np.maximum(codes, lowest) - lowest, labels[lowest : highest + 1]
        low = int(keys.min())
        if int(keys.max()) - low < DENSE_KEYS:
            keys -= low
            rows = np.bincount(keys)
            present = np.flatnonzero(rows > 0)
            rows, distinct = rows[present], present + low
            row_offsets = np.zeros(int(present[-1]) + 1, np.int64)
            row_offsets[present] = np.arange(0, len(present) * len(labels), len(labels))
            cells = row_offsets.take(keys)
        else:
            distinct, cells, rows = np.unique(keys, return_inverse=True, return_counts=True)
            cells *= len(labels)
        cells += codes
        sums = np.bincount(cells, digits, len(distinct) * len(labels)).astype(np.int64).reshape(-1, len(labels))
        if digits is not None and len(labels) == 1 and not digits.any():  # zeros have no position
            sums, labels = sums[:, :0], ()
        return cls(distinct, rows, sums, labels, shift)._coarsen()

    @property
    def buckets(self) -> Quantiles:
        """Buckets and their numbers of rows."""
        return Quantiles(self.keys, self.rows, self.shift)

    def targets(self) -> np.ndarray:
        """Return the sum of the target by bucket, of shape (buckets, 1), or the rows of each class."""
        sums = self.sums.astype(np.float64)
        if not self.labels or isinstance(self.labels[0], str):
            return sums
        positions = np.array(self.labels)
        # Relative to the highest position, since sums may overflow; in order, so that empty positions have no effect.
        scaled = np.ldexp(sums, _POSITION_BITS * (positions - positions.max()))
        total: np.ndarray = functools.reduce(operator.add, scaled.T)[:, None]
        return total

    def __add__(self, other: TargetSums) -> TargetSums:
        """Return sums by bucket with the larger shift of both, coarsened to at most `MAX_BUCKETS` buckets."""
        labels = _select_labels({*self.labels, *other.labels})
        shift = max(self.shift, other.shift)
        keys = np.concatenate([part.keys >> (shift - part.shift) for part in (self, other)])
        keys, totals = merge_buckets(keys, np.concatenate([part._align_columns(labels) for part in (self, other)]))
        return TargetSums(keys, totals[:, 0], totals[:, 1:], labels, shift)._coarsen()

    def __mul__(self, times: int) -> TargetSums:
        repeated = TargetSums(self.keys, self.rows * times, self.sums * times, self.labels, self.shift)
        return repeated if times else TargetSums()

    def _align_columns(self, labels: tuple[Label, ...]) -> np.ndarray:
        """Return `rows`, then the column of `sums` of each of `labels`, zeros for new ones."""
        columns = dict(zip(self.labels, self.sums.T, strict=True))
        return np.column_stack([self.rows, *(columns.get(label, np.zeros_like(self.rows)) for label in labels)])

    def _coarsen(self) -> TargetSums:
        """Return a summary with at most `MAX_BUCKETS` buckets, without positions that are too low."""
        labels = _select_labels(set(self.labels))
        extra_shift = finest_shift(self.keys)
        if not extra_shift and labels == self.labels:
            return self
        keys, totals = merge_buckets(self.keys >> extra_shift, self._align_columns(labels))
        return TargetSums(keys, totals[:, 0], totals[:, 1:], labels, self.shift + extra_shift)


def split_into_digits(target: np.ndarray) -> tuple[np.ndarray, tuple[Label, ...], np.ndarray]:
    """Split finite numbers into digits: return the index of each number's position, all positions, and the digits."""
    mantissas, exponents = np.frexp(finite_doubles(target))
    exponents -= _MANTISSA_BITS
    digits = np.ldexp(np.rint(np.ldexp(mantissas, _MANTISSA_BITS)), exponents & (_POSITION_BITS - 1))
    positions = exponents >> _POSITION_SHIFT
    is_nonzero = mantissas != 0.0
    used = positions if is_nonzero.all() else positions[is_nonzero]
    lowest, highest = (int(used.min()), int(used.max())) if len(used) else (0, 0)
    return np.where(is_nonzero, positions - lowest, 0), tuple(range(lowest, highest + 1)), digits


def _select_labels(labels: set[Label]) -> tuple[Label, ...]:
    """Return labels in order: classes, or all positions up to the highest, at most `_MAX_POSITIONS`."""
    positions = [label for label in labels if isinstance(label, int)]
    if not positions:
        return tuple(sorted(labels, key=str))
    return tuple(range(max(min(positions), max(positions) - _MAX_POSITIONS + 1), max(positions) + 1))
