"""Summaries of the range and the quantiles of numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from daskprep.summaries.base import Summary, finite_doubles
from daskprep.summaries.multiset import (
    count_keys,
    empty_integers,
    interpolate,
    locate_quantiles,
    locate_ranks,
    sum_by_key,
)

# Keys and counts take 8 bytes each, so a summary has at most 64 KiB.
MAX_BUCKETS = 4_096
_MAGNITUDE_MASK = np.int64(0x7FFF_FFFF_FFFF_FFFF)
_MAX_DOUBLE_BITS = int(np.float64(np.finfo(np.float64).max).view(np.int64))
_SAMPLE_SIZE = 1 << 14  # enough distinct values to estimate the shift, even if half of the values are equal


@dataclass(frozen=True)
class Range(Summary):
    """Smallest and largest of finite values; infinity and minus infinity without values.

    A negative zero counts as zero: the two are equal, so the first one would depend on the order of merges.

    Examples
    --------
    >>> import numpy as np
    >>> (Range.of(np.array([3.0, -1.0])) + Range()).min
    -1.0
    """

    min: float = math.inf
    max: float = -math.inf

    @classmethod
    def of(cls, values: np.ndarray) -> Range:
        """Summarize finite values."""
        doubles = finite_doubles(values)
        return cls(float(doubles.min()) + 0.0, float(doubles.max()) + 0.0) if len(doubles) else cls()

    @property
    def empty(self) -> bool:
        """Whether there are no values."""
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
    2**(shift - 52), and the shift is at most 52. Zero and magnitudes below 2**(shift - 1074) are one bucket, and count
    as 0.

    Attributes
    ----------
    keys : ndarray
        Buckets: integers in the order of the values, from the bits of the doubles without the last `shift` ones.
    counts : ndarray
        Number of values in each bucket.
    shift : int
        Number of dropped bits.

    Examples
    --------
    >>> import numpy as np
    >>> halves = Quantiles.of(np.array([1.0, 3.0])) + Quantiles.of(np.array([2.0, 10.0]))
    >>> halves.quantile(0.5)
    2.5
    """

    keys: np.ndarray = field(default_factory=empty_integers)
    counts: np.ndarray = field(default_factory=empty_integers)
    shift: int = 0

    @classmethod
    def of(cls, values: np.ndarray) -> Quantiles:
        """Summarize finite values."""
        bits, shift = _drop_low_bits(finite_doubles(values))
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
        """Return a quantile, linearly interpolated between two values; NaN without values."""
        return float(self.quantiles(np.array(fraction)))

    def quantiles(self, fractions: np.ndarray) -> np.ndarray:
        """Return the quantiles at fractions from 0 to 1."""
        if not len(self.keys):
            return np.full(fractions.shape, math.nan)
        lower, upper, weight = locate_quantiles(self.counts, fractions)
        return interpolate(self._values_at(*lower), self._values_at(*upper), weight)

    def evenly_spaced(self, number: int) -> np.ndarray:
        """Return `number` evenly spaced quantiles from the minimum to the maximum; NaN without values.

        Unlike `quantiles`, this has no rounded fractions, which would mix a value with the next one.
        """
        if not len(self.keys):
            return np.full(number, math.nan)
        lower_ranks, rest = np.divmod(np.arange(number) * (self.count - 1), max(number - 1, 1))
        lower, upper = locate_ranks(self.counts, lower_ranks)
        return interpolate(self._values_at(*lower), self._values_at(*upper), rest / max(number - 1, 1))

    def values(self) -> np.ndarray:
        """Return the distinct values in order, or the midpoints of buckets; `counts` has their frequencies."""
        low, high = self.edges()
        return low if self.exact else low / 2 + high / 2

    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower and the upper end of each bucket."""
        return self._edges(self.keys)

    def __add__(self, other: Quantiles) -> Quantiles:
        shift = max(self.shift, other.shift)
        keys = np.concatenate([part.keys >> (shift - part.shift) for part in (self, other)])
        return Quantiles(*merge_buckets(keys, np.concatenate([self.counts, other.counts])), shift)._coarsen()

    def __mul__(self, times: int) -> Quantiles:
        # Without values, the shift is 0, or it would coarsen other summaries.
        return Quantiles(self.keys, self.counts * times, self.shift) if times else Quantiles()

    def _coarsen(self) -> Quantiles:
        """Return a summary with the smallest shift that leaves at most `MAX_BUCKETS` buckets."""
        extra_shift = finest_shift(self.keys)
        if not extra_shift:
            return self
        return Quantiles(*merge_buckets(self.keys >> extra_shift, self.counts), self.shift + extra_shift)

    def _values_at(self, indices: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """Return values by the index of their bucket, and by the share of the bucket below them."""
        low, high = self._edges(self.keys[indices])
        return low if self.exact else low + (high - low) * shares

    def _edges(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower and the upper end of buckets by their keys."""
        is_negative = keys < 0
        magnitude = np.where(is_negative, ~keys, keys)
        lower = (magnitude << self.shift).view(np.float64)
        if self.exact:
            return (values := np.where(is_negative, -lower, lower)), values
        # The bucket around zero has the ends 0: zeros are frequent, and its other values negligible.
        upper = np.where(keys == 0, 0, np.minimum((magnitude + 1) << self.shift, _MAX_DOUBLE_BITS)).view(np.float64)
        return np.where(is_negative, -upper, lower), np.where(is_negative, -lower, upper)


def assign_buckets(doubles: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the bucket key of each of finite doubles, and the shift of the keys; coarsening may increase the shift."""
    bits, shift = _drop_low_bits(doubles)
    keys = _to_ordered_keys(bits, shift)
    return np.where(keys == -1, 0, keys), shift


def _drop_low_bits(doubles: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the bits of doubles without the last ones, and the number of bits that were dropped.

    A sample shows how many bits must be dropped at least; then fewer distinct keys remain to be sorted.
    """
    bits = doubles.view(np.int64)
    # A step that is not even, since repeated patterns mostly have an even period.
    sample = np.sort(_to_ordered_keys(bits[:: len(bits) // _SAMPLE_SIZE | 1], 0))
    shift = finest_shift(sample) if len(bits) > MAX_BUCKETS else 0
    return bits >> shift, shift


def _to_ordered_keys(bits: np.ndarray, shift: int) -> np.ndarray:
    """Convert bits of doubles, already shifted, to integers in the order of the values; -0.0 is right below 0.0."""
    keys: np.ndarray = bits ^ ((bits >> 63) & (_MAGNITUDE_MASK >> shift))
    return keys


def merge_buckets(keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return distinct keys and sums of their counts, a number or a row each; the buckets next to zero are merged."""
    return sum_by_key(np.where(keys == -1, 0, keys), counts)


def finest_shift(keys: np.ndarray) -> int:
    """Return the smallest shift after which ascending `keys` have at most `MAX_BUCKETS` distinct values."""
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
