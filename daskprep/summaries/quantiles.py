"""Where values lie: their range, and their quantiles."""

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

# With keys and counts of 8 bytes, a summary has at most 64 KiB.
MAX_BUCKETS = 4_096
MAGNITUDE_MASK = np.int64(0x7FFF_FFFF_FFFF_FFFF)
_MAX_DOUBLE_BITS = int(np.float64(np.finfo(np.float64).max).view(np.int64))
_SAMPLE_SIZE = 1 << 14  # enough to tell, also if half of the values are equal


@dataclass(frozen=True)
class Range(Summary):
    """Smallest and largest of finite values; of none, infinity and minus infinity.

    A negative zero counts as zero, because which of the two came first would depend on the order.

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
        """Whether no value was seen."""
        return self.min > self.max

    def __add__(self, other: Range) -> Range:
        return Range(min(self.min, other.min), max(self.max, other.max))

    def __mul__(self, times: int) -> Range:
        return self if times else Range()


@dataclass(frozen=True, eq=False)
class Quantiles(Summary):
    """Counts of distinct values, or of buckets of them once there are more than 4,096.

    A bucket holds the doubles whose bits are equal but for the last `shift` ones. The shift is the smallest that leaves
    at most 4,096 buckets. It follows from the values alone, and no part needs a greater one than the whole, so that
    neither parts nor their order have an influence.

    With shift 0, a summary is `exact`: a quantile is what ``numpy.quantile`` gives. Otherwise, values are assumed to
    lie evenly within a bucket. A quantile then lies in the same bucket as the true one. Its relative error is below
    2**(shift - 52), and the shift is at most 52. Zero and what is below 2**(shift - 1074) are one bucket, and count
    as 0.

    `keys` are integers in the order of the values: the bits of the double but for the last ones.

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
        return cls(*_merge_buckets(_to_ordered_keys(keys, shift), counts), shift)._coarsen()

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    @property
    def exact(self) -> bool:
        """Whether all values are known, not only their buckets."""
        return self.shift == 0

    def quantile(self, fraction: float) -> float:
        """Return a quantile, linearly interpolated between two values, or NaN of no values."""
        return float(self.quantiles(np.array(fraction)))

    def quantiles(self, fractions: np.ndarray) -> np.ndarray:
        """Return the quantiles at several fractions."""
        if not len(self.keys):
            return np.full(fractions.shape, math.nan)
        lower, upper, weight = locate_quantiles(self.counts, fractions)
        return interpolate(self._values_at(*lower), self._values_at(*upper), weight)

    def evenly_spaced(self, number: int) -> np.ndarray:
        """Return so many evenly spaced quantiles from the least value to the greatest, or NaN of no values.

        Fractions of them would be rounded, and mix a value with the next where a rank is meant.
        """
        if not len(self.keys):
            return np.full(number, math.nan)
        lower_ranks, rest = np.divmod(np.arange(number) * (self.count - 1), max(number - 1, 1))
        lower, upper = locate_ranks(self.counts, lower_ranks)
        return interpolate(self._values_at(*lower), self._values_at(*upper), rest / max(number - 1, 1))

    def values(self) -> np.ndarray:
        """Return the values in order, each bucket's as its middle; `counts` says how often each was seen."""
        low, high = self.edges()
        return low if self.exact else low / 2 + high / 2

    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the least and the greatest value of each bucket."""
        return self._edges(self.keys)

    def __add__(self, other: Quantiles) -> Quantiles:
        shift = max(self.shift, other.shift)
        keys = np.concatenate([one.keys >> (shift - one.shift) for one in (self, other)])
        return Quantiles(*_merge_buckets(keys, np.concatenate([self.counts, other.counts])), shift)._coarsen()

    def __mul__(self, times: int) -> Quantiles:
        # No values are exact: they would let any other values be.
        return Quantiles(self.keys, self.counts * times, self.shift) if times else Quantiles()

    def _coarsen(self) -> Quantiles:
        extra_shift = finest_shift(self.keys)
        if not extra_shift:
            return self
        return Quantiles(*_merge_buckets(self.keys >> extra_shift, self.counts), self.shift + extra_shift)

    def _values_at(self, indices: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """Return values by the place of their bucket, and by how much of the bucket lies below."""
        low, high = self._edges(self.keys[indices])
        return low if self.exact else low + (high - low) * shares

    def _edges(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the least and the greatest value of buckets."""
        is_negative = keys < 0
        magnitude = np.where(is_negative, ~keys, keys)
        lower = (magnitude << self.shift).view(np.float64)
        if self.exact:
            return (values := np.where(is_negative, -lower, lower)), values
        # Zeros are many, and what else is in their bucket is as good as zero.
        upper = np.where(keys == 0, 0, np.minimum((magnitude + 1) << self.shift, _MAX_DOUBLE_BITS)).view(np.float64)
        return np.where(is_negative, -upper, lower), np.where(is_negative, -lower, upper)


def assign_buckets(doubles: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the bucket of each of finite doubles, with a shift that they need at least."""
    bits, shift = _drop_low_bits(doubles)
    keys = _to_ordered_keys(bits, shift)
    return np.where(keys == -1, 0, keys), shift


def _drop_low_bits(doubles: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the bits of doubles but for the last ones: some values tell how many of these all need to lose at least.

    Fewer keys are then to be sorted, or none.
    """
    bits = doubles.view(np.int64)
    sample = np.sort(
        _to_ordered_keys(bits[:: len(bits) // _SAMPLE_SIZE | 1], 0)
    )  # odd, as what repeats does so by even numbers
    shift = finest_shift(sample) if len(bits) > MAX_BUCKETS else 0
    return bits >> shift, shift


def _to_ordered_keys(bits: np.ndarray, shift: int) -> np.ndarray:
    """Return what is left of the bits of doubles as integers in the order of the values, -0.0 right below 0.0."""
    keys: np.ndarray = bits ^ ((bits >> 63) & (MAGNITUDE_MASK >> shift))
    return keys


def _merge_buckets(keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Add up the counts of equal keys; the buckets on both sides of zero are one."""
    return sum_by_key(np.where(keys == -1, 0, keys), counts)


def finest_shift(keys: np.ndarray) -> int:
    """Return the smallest shift that leaves at most 4,096 different ones of ascending keys."""
    if len(keys) <= MAX_BUCKETS:
        return 0
    differing = keys[1:] ^ keys[:-1]
    first = int(np.searchsorted(keys, 0))
    if 0 < first < len(keys):
        differing[first - 1] = ~keys[first - 1] | keys[first]  # one bucket once nothing is left of either
    # The length of an integer in bits; of its two top bits only the first, or it could be rounded up to one more.
    lengths = np.frexp((differing & ~(differing >> 1)).astype(np.float64))[1]
    return int(np.partition(lengths, -MAX_BUCKETS)[-MAX_BUCKETS])
