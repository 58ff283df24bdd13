"""Where values lie: their range, and their quantiles."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from daskprep.summaries.base import Summary, finite_doubles
from daskprep.summaries.multiset import between, distinct, kth, merged, no_integers, tallied

DISTINCT_LIMIT = 65_536
# A bucket is what sign, exponent and the top 12 bits of the mantissa say.
BUCKET_SHIFT = 52 - 12
MAGNITUDE = np.int64(0x7FFF_FFFF_FFFF_FFFF)


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
    """Counts of distinct values, or of buckets of them once there are more than 65,536.

    While `exact`, a quantile is what ``numpy.quantile`` gives. Afterwards each value it is interpolated from
    has a relative error of at most 2**-13 (subnormal values: an absolute one of 2**-1034; zero has none).
    Whether a summary is exact depends on the values alone, never on how they were cut into parts: a part can
    only have too many distinct values if all of them together have. A negative zero counts as zero.

    `keys` are integers in the order of the values: the bits of the double, or their upper part in buckets.

    Examples
    --------
    >>> import numpy as np
    >>> halves = Quantiles.of(np.array([1.0, 3.0])) + Quantiles.of(np.array([2.0, 10.0]))
    >>> halves.quantile(0.5)
    2.5
    """

    keys: np.ndarray = field(default_factory=no_integers)
    counts: np.ndarray = field(default_factory=no_integers)
    exact: bool = True

    @classmethod
    def of(cls, values: np.ndarray) -> Quantiles:
        """Summarize finite values."""
        keys = _keys(finite_doubles(values))
        # Sorting a part often tells that there are too many to be exact, and buckets need no sorting.
        part = 4 * DISTINCT_LIMIT
        exact = len(keys) <= part or distinct(keys[:part]) <= DISTINCT_LIMIT
        if not exact:
            keys >>= BUCKET_SHIFT
        return cls(*tallied(keys), exact)._settled()

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    def quantile(self, fraction: float) -> float:
        """Return a quantile, linearly interpolated between two values, or NaN of no values."""
        if not len(self.keys):
            return math.nan
        lower, upper, weight = kth(self.counts, fraction)
        low, high = self._values(self.keys[[lower, upper]]).tolist()
        return between(low, high, weight)

    def values(self) -> np.ndarray:
        """Return the values in order, each bucket's as its middle; `counts` says how often each was seen."""
        return self._values(self.keys)

    def __add__(self, other: Quantiles) -> Quantiles:
        left, right = (self, other) if self.exact == other.exact else (self._coarse(), other._coarse())
        keys = np.concatenate([left.keys, right.keys])
        return Quantiles(*merged(keys, np.concatenate([left.counts, right.counts])), left.exact)._settled()

    def __mul__(self, times: int) -> Quantiles:
        # No values are exact: they would let any other values be.
        return Quantiles(self.keys, self.counts * times, self.exact) if times else Quantiles()

    def _settled(self) -> Quantiles:
        return self._coarse() if len(self.keys) > DISTINCT_LIMIT else self

    def _coarse(self) -> Quantiles:
        if not self.exact:
            return self
        return Quantiles(*merged(self.keys >> BUCKET_SHIFT, self.counts), exact=False)

    def _values(self, keys: np.ndarray) -> np.ndarray:
        if self.exact:
            return _doubles(keys)
        middles = (keys << BUCKET_SHIFT) + (np.int64(1) << (BUCKET_SHIFT - 1))
        # Zeros are many, and what else is in the buckets around them is as good as zero.
        return np.where((keys == 0) | (keys == -1), 0.0, _doubles(middles))


def _keys(doubles: np.ndarray) -> np.ndarray:
    """Return int64 keys in the order of the values, with one key for both zeros."""
    bits = (doubles + 0.0).view(np.int64)
    return bits ^ ((bits >> 63) & MAGNITUDE)


def _doubles(keys: np.ndarray) -> np.ndarray:
    bits: np.ndarray = keys ^ ((keys >> 63) & MAGNITUDE)
    return bits.view(np.float64)
