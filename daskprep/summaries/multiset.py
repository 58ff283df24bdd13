"""Multisets of integers as two arrays, ascending distinct keys and their counts, and summaries of lengths of lists."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from daskprep.summaries.base import Summary

# Up to this size of the range of keys, counting into an array is faster than sorting.
DENSE_KEYS = 1 << 22

KeyPosition: TypeAlias = tuple[np.ndarray, np.ndarray]


def empty_integers() -> np.ndarray:
    """Return an empty int64 array."""
    return np.zeros(0, np.int64)


def count_keys(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct int64 keys, ascending, and their counts."""
    if not len(keys):
        return empty_integers(), empty_integers()
    low, high = int(keys.min()), int(keys.max())
    if high - low < min(DENSE_KEYS, 4 * len(keys) + 1024):
        counts = np.bincount(keys - low)
        present = np.flatnonzero(counts > 0)  # of booleans: eight times as fast as of sparse integers
        return present + low, counts[present]
    # NumPy sorts 32-bit integers about twice as fast as 64-bit ones; `np.unique` is slower than both.
    narrow = low >= -(2**31) and high < 2**31
    keys = np.sort(keys.astype(np.int32) if narrow else keys)
    starts = np.flatnonzero(_first_of_run(keys))
    return keys[starts].astype(np.int64), np.diff(starts, append=len(keys))


def sum_by_key(keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct keys, ascending, and the sums of their counts; a count may be a row of numbers."""
    if not len(keys):
        return keys, counts
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(_first_of_run(keys))
    return keys[starts], np.add.reduceat(counts[order], starts)


def _first_of_run(keys: np.ndarray) -> np.ndarray:
    """Return a mask of the first of equal neighbors among sorted keys."""
    first = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    return first


def locate_quantiles(counts: np.ndarray, fractions: np.ndarray) -> tuple[KeyPosition, KeyPosition, np.ndarray]:
    """Return the positions of the two values around each quantile, and the weight of the upper one (0 to 1).

    A position is the index of a key, and the share of the key's values below, counting half of the value itself.
    """
    if not ((fractions >= 0.0) & (fractions <= 1.0)).all():
        raise ValueError(f"A quantile must be between 0 and 1, not {fractions}.")
    last = int(counts.sum()) - 1
    position = fractions * last
    lower_rank = np.minimum(np.floor(position).astype(np.int64), last)
    return (*locate_ranks(counts, lower_rank), position - lower_rank)


def locate_ranks(counts: np.ndarray, lower_rank: np.ndarray) -> tuple[KeyPosition, KeyPosition]:
    """Return the positions of the values at ranks (from 0 on), and at the next higher ranks."""
    ends = np.cumsum(counts)

    def locate(rank: np.ndarray) -> KeyPosition:
        index = np.searchsorted(ends, rank, side="right")
        return index, (rank - (ends[index] - counts[index]) + 0.5) / counts[index]

    return locate(lower_rank), locate(np.minimum(lower_rank + 1, ends[-1] - 1))


def interpolate(low: np.ndarray, high: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Interpolate between `low` and `high`, with the same rounding as ``numpy.quantile``."""
    with np.errstate(over="ignore", invalid="ignore"):  # the difference may overflow
        difference = high - low
        interpolated = np.where(weight >= 0.5, high - difference * (1.0 - weight), low + difference * weight)
    result: np.ndarray = np.where(np.isinf(difference), low * (1.0 - weight) + high * weight, interpolated)
    return result


@dataclass(frozen=True, eq=False)
class Lengths(Summary):
    """Histogram of list lengths: `counts[i]` lists have `lengths[i]` items.

    Examples
    --------
    >>> import numpy as np
    >>> lengths = Lengths.of(np.array([3, 0, 3])).add(5, times=2)
    >>> lengths.max, lengths.total, lengths.quantile(0.5)
    (5, 16, 3.0)
    """

    lengths: np.ndarray = field(default_factory=empty_integers)
    counts: np.ndarray = field(default_factory=empty_integers)

    @classmethod
    def of(cls, lengths: np.ndarray) -> Lengths:
        """Summarize the lengths of lists, empty ones included."""
        return cls(*count_keys(np.ascontiguousarray(lengths, dtype=np.int64)))

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    @property
    def total(self) -> int:
        """Number of items of all lists together."""
        return int(self.lengths @ self.counts)

    @property
    def max(self) -> int:
        """Number of items of the longest list, 0 without lists."""
        return int(self.lengths[-1]) if len(self.lengths) else 0

    def quantile(self, fraction: float) -> float:
        """Return a quantile of the lengths, as ``numpy.quantile`` does; 0 without lists."""
        if not len(self.lengths):
            return 0.0
        (lower, _), (upper, _), weight = locate_quantiles(self.counts, np.array(fraction))
        return float(interpolate(self.lengths[lower].astype(float), self.lengths[upper].astype(float), weight))

    def add(self, length: int, times: int) -> Lengths:
        """Return this histogram with `times` more lists of `length` items."""
        return self + Lengths.of(np.array([length])) * times

    def __add__(self, other: Lengths) -> Lengths:
        keys = np.concatenate([self.lengths, other.lengths])
        return Lengths(*sum_by_key(keys, np.concatenate([self.counts, other.counts])))

    def __mul__(self, times: int) -> Lengths:
        return Lengths(self.lengths, self.counts * times) if times else Lengths()
