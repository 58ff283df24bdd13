"""Summaries of the range and quantiles of numbers, and of lengths of lists, by distinct keys and their counts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from daskprep.columns.summaries.base import Summary, finite_doubles

DENSE_KEYS = 1 << 22  # up to this size of the range of keys, counting into an array is faster than sorting

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
    """Return distinct keys, ascending, and sums of counts."""
    if not len(keys):
        return keys, counts
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(_first_of_run(keys))
    return keys[starts], np.add.reduceat(counts[order], starts)


def _first_of_run(keys: np.ndarray) -> np.ndarray:
    """Return a mask of keys that differ from the one before."""
    first = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    return first


def locate_quantiles(counts: np.ndarray, fractions: np.ndarray) -> tuple[KeyPosition, KeyPosition, np.ndarray]:
    """Return index and share of the values below and above quantiles, and the weight of the upper one."""
    last = int(counts.sum()) - 1
    position = fractions * last
    lower_rank = np.minimum(np.floor(position).astype(np.int64), last)
    return (*locate_ranks(counts, lower_rank), position - lower_rank)


def locate_ranks(counts: np.ndarray, lower_rank: np.ndarray) -> tuple[KeyPosition, KeyPosition]:
    """Return the positions of the values at ranks (from 0 on), and at the next ranks, of the last one itself."""
    ends = np.cumsum(counts)

    def locate(rank: np.ndarray) -> KeyPosition:
        index = np.searchsorted(ends, rank, side="right")
        return index, (rank - (ends[index] - counts[index]) + 0.5) / counts[index]

    return locate(lower_rank), locate(np.minimum(lower_rank + 1, ends[-1] - 1))


def interpolate(low: np.ndarray, high: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Interpolate with the same rounding as ``numpy.quantile``."""
    with np.errstate(over="ignore", invalid="ignore"):  # the difference may overflow
        difference = high - low
        interpolated = np.where(weight >= 0.5, high - difference * (1.0 - weight), low + difference * weight)
    result: np.ndarray = np.where(np.isinf(difference), low * (1.0 - weight) + high * weight, interpolated)
    return result


_MAX_MEANS = 8


@dataclass(frozen=True, eq=False)
class Lengths(Summary):
    """Histogram of list lengths: `counts[i]` lists have `lengths[i]` items."""

    lengths: np.ndarray = field(default_factory=empty_integers)
    counts: np.ndarray = field(default_factory=empty_integers)

    @classmethod
    def of(cls, lengths: np.ndarray) -> Lengths:
        return cls(*count_keys(np.ascontiguousarray(lengths, dtype=np.int64)))

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    @property
    def total(self) -> int:
        return int(self.lengths @ self.counts)

    @property
    def max(self) -> int:
        return int(self.lengths[-1]) if len(self.lengths) else 0

    def limit(self, least: int) -> int:
        """Return eight times the mean length, at least `least`, to limit padding."""
        return max(least, _MAX_MEANS * self.total // max(self.count, 1))

    def quantile(self, fraction: float) -> float:
        """Return a quantile as ``numpy.quantile``; 0 without lists."""
        if not len(self.lengths):
            return 0.0
        (lower, _), (upper, _), weight = locate_quantiles(self.counts, np.array(fraction))
        return float(interpolate(self.lengths[lower].astype(float), self.lengths[upper].astype(float), weight))

    def add(self, length: int, times: int) -> Lengths:
        return self + Lengths.of(np.array([length])) * times

    def __add__(self, other: Lengths) -> Lengths:
        keys = np.concatenate([self.lengths, other.lengths])
        return Lengths(*sum_by_key(keys, np.concatenate([self.counts, other.counts])))

    def __mul__(self, times: int) -> Lengths:
        return Lengths(self.lengths, self.counts * times) if times else Lengths()


# Keys and counts take 8 bytes each, so a summary has at most 64 KiB.
MAX_BUCKETS = 4_096
_MAGNITUDE_MASK = np.int64(0x7FFF_FFFF_FFFF_FFFF)
_MAX_DOUBLE_BITS = int(np.float64(np.finfo(np.float64).max).view(np.int64))
_SAMPLE_SIZE = 1 << 14  # enough distinct values to estimate the shift, even if half of the values are equal


@dataclass(frozen=True)
class Range(Summary):
    """Smallest and largest of finite values; a negative zero counts as zero."""

    min: float = math.inf
    max: float = -math.inf

    @classmethod
    def of(cls, values: np.ndarray) -> Range:
        doubles = finite_doubles(values)
        return cls(float(doubles.min()) + 0.0, float(doubles.max()) + 0.0) if len(doubles) else cls()

    @property
    def empty(self) -> bool:
        return self.min > self.max

    def __add__(self, other: Range) -> Range:
        return Range(min(self.min, other.min), max(self.max, other.max))

    def __mul__(self, times: int) -> Range:
        return self if times else Range()


@dataclass(frozen=True, eq=False)
class Quantiles(Summary):
    """Counts of distinct values, or of buckets of values if more than 4,096 are distinct.

    A bucket has the doubles that differ only in their last `shift` bits. The shift is the smallest that leaves at most
    4,096 buckets. It depends only on the values, and a part never needs a greater shift than all values together, so
    the partitioning and the order of merges have no influence.

    With shift 0, a summary is `exact`: quantiles are equal to ``numpy.quantile``. Otherwise, values are assumed to be
    uniform within a bucket. A quantile is then in the same bucket as the true one. Its relative error is below
    2**(shift - 52), and the shift is at most 52. Magnitudes below 2**(shift - 1074) count as 0.
    """

    # Buckets: integers in the order of the values, from the bits of the doubles without the last `shift` ones.
    keys: np.ndarray = field(default_factory=empty_integers)
    counts: np.ndarray = field(default_factory=empty_integers)  # values in each bucket
    shift: int = 0  # dropped bits

    @classmethod
    def of(cls, values: np.ndarray) -> Quantiles:
        """Summarize numbers; ValueError for NaN and infinities."""
        doubles = finite_doubles(values)
        if not len(doubles):
            return cls()
        bits, shift = _drop_low_bits(doubles)
        keys, counts = count_keys(bits)
        return cls(*merge_buckets(_to_ordered_keys(keys, shift), counts), shift)._coarsen()

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    @property
    def exact(self) -> bool:
        """Whether buckets are distinct values."""
        return self.shift == 0

    def quantile(self, fraction: float) -> float:
        """Return a quantile, interpolated; NaN without values."""
        return float(self.quantiles(np.array(fraction)))

    def quantiles(self, fractions: np.ndarray) -> np.ndarray:
        """Return a quantile for each fraction; NaN without values."""
        if not len(self.keys):
            return np.full(fractions.shape, math.nan)
        lower, upper, weight = locate_quantiles(self.counts, fractions)
        return interpolate(self._values_at(*lower), self._values_at(*upper), weight)

    def evenly_spaced(self, number: int) -> np.ndarray:
        """Return `number` evenly spaced quantiles, by integer arithmetic; NaN without values."""
        if not len(self.keys):
            return np.full(number, math.nan)
        lower_ranks, rest = np.divmod(np.arange(number) * (self.count - 1), max(number - 1, 1))
        lower, upper = locate_ranks(self.counts, lower_ranks)
        return interpolate(self._values_at(*lower), self._values_at(*upper), rest / max(number - 1, 1))

    def cut(self, number: int) -> np.ndarray:
        """Return the last keys of `number` bins of about equal counts, distinct, and without the last bin's."""
        ranks = np.cumsum(self.counts)
        keys = self.keys[np.searchsorted(ranks, ranks[-1] * np.arange(1, number) / number)]
        return keys[_first_of_run(keys)]

    def bins(self, number: int, extent: Range) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """Return the edges and counts of at most `number` bins.

        Both are empty without values. A bin has the values above its lower edge up to its upper edge, the first also
        its lower edge. `extent` is the exact range of the values.
        """
        if not len(self.keys):
            return (), ()
        last = np.append(self.cut(number), self.keys[-1])
        last = last[_first_of_run(last)]
        magnitude = np.where(last < 0, ~last, last)
        bits = np.where(last < 0, magnitude << self.shift, ((magnitude + 1) << self.shift) - 1)
        values = bits.view(np.float64)  # the greatest of each key
        edges = np.where(last < 0, -values, values)[:-1] + 0.0
        ranks = np.cumsum(self.counts)[np.searchsorted(self.keys, last)]
        return (extent.min, *edges.tolist(), extent.max), tuple(np.diff(ranks, prepend=0).tolist())

    def values(self) -> np.ndarray:
        """Return ascending distinct values, or midpoints of buckets."""
        low, high = self.edges()
        return low if self.exact else low / 2 + high / 2

    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        return self._edges(self.keys)

    def __add__(self, other: Quantiles) -> Quantiles:
        shift = max(self.shift, other.shift)
        keys = np.concatenate([part.keys >> (shift - part.shift) for part in (self, other)])
        return Quantiles(*merge_buckets(keys, np.concatenate([self.counts, other.counts])), shift)._coarsen()

    def __mul__(self, times: int) -> Quantiles:
        # Without values, the shift is 0, or it would coarsen other summaries.
        return Quantiles(self.keys, self.counts * times, self.shift) if times else Quantiles()

    def _coarsen(self) -> Quantiles:
        extra_shift = finest_shift(self.keys)
        if not extra_shift:
            return self
        return Quantiles(*merge_buckets(self.keys >> extra_shift, self.counts), self.shift + extra_shift)

    def _values_at(self, indices: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """Return the values in buckets, interpolated by the share of a bucket below them."""
        low, high = self._edges(self.keys[indices])
        return low if self.exact else low + (high - low) * shares

    def _edges(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower and the upper end of buckets as doubles."""
        is_negative = keys < 0
        magnitude = np.where(is_negative, ~keys, keys)
        lower = (magnitude << self.shift).view(np.float64)
        if self.exact:
            return (values := np.where(is_negative, -lower, lower)), values
        # The bucket around zero has the ends 0: zeros are frequent, and its other values negligible.
        upper = np.where(keys == 0, 0, np.minimum((magnitude + 1) << self.shift, _MAX_DOUBLE_BITS)).view(np.float64)
        return np.where(is_negative, -upper, lower), np.where(is_negative, -lower, upper)


def assign_buckets(doubles: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the bucket key of each double, and their shift."""
    bits, shift = _drop_low_bits(doubles)
    keys = _to_ordered_keys(bits, shift)
    return np.where(keys == -1, 0, keys), shift


def _drop_low_bits(doubles: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the doubles as int64 without their last bits, and the number of these.

    A sample shows how many bits must be dropped at least; then fewer distinct keys remain to be sorted.
    """
    bits = doubles.view(np.int64)
    # A step that is not even, since repeated patterns mostly have an even period.
    sample = np.sort(_to_ordered_keys(bits[:: len(bits) // _SAMPLE_SIZE | 1], 0))
    shift = finest_shift(sample) if len(bits) > MAX_BUCKETS else 0
    return bits >> shift, shift


def _to_ordered_keys(bits: np.ndarray, shift: int) -> np.ndarray:
    """Convert bits of doubles to integers in their order."""
    keys: np.ndarray = bits ^ ((bits >> 63) & (_MAGNITUDE_MASK >> shift))
    return keys


def merge_buckets(keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return distinct keys and sums of their counts."""
    return sum_by_key(np.where(keys == -1, 0, keys), counts)


def finest_shift(keys: np.ndarray) -> int:
    """Return the smallest shift of ascending keys that leaves at most `MAX_BUCKETS`."""
    if len(keys) <= MAX_BUCKETS:
        return 0
    differing = keys[1:] ^ keys[:-1]
    first = int(np.searchsorted(keys, 0))
    if 0 < first < len(keys):
        # The two keys around zero merge once all bits of both are dropped.
        differing[first - 1] = ~keys[first - 1] | keys[first]
    # Lengths in bits, by frexp: without the bit after the top one, conversion to float cannot round up to a power of 2.
    lengths = np.frexp((differing & ~(differing >> 1)).astype(np.float64))[1]
    return int(np.partition(lengths, -MAX_BUCKETS)[-MAX_BUCKETS])
