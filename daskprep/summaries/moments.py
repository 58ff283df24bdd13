"""Exact sums and sums of squares, and the means and standard deviations that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from daskprep.summaries.base import Summary
from daskprep.summaries.exact import UNIT_BITS, split_digits


@dataclass(frozen=True)
class Moments(Summary):
    """Count, exact sum and exact sum of squares of finite float64 values.

    `total` counts units of 2**-1074 and `squares` units of 2**-2148, so neither ever rounds, and the mean and
    standard deviation are the doubles closest to the true ones.

    Examples
    --------
    >>> import numpy as np
    >>> moments = Moments.of(np.array([1e16, 1.0, -1e16]))
    >>> moments.mean()
    0.3333333333333333
    """

    count: int = 0
    total: int = 0
    squares: int = 0

    @classmethod
    def of(cls, values: np.ndarray) -> Moments:
        """Summarize finite values."""
        doubles = np.ascontiguousarray(values, dtype=np.float64).ravel()
        total = squares = 0
        for (digits,) in split_digits(doubles):
            total += digits.total()
            squares += digits.dot(digits)
        return cls(len(doubles), total, squares)

    def mean(self) -> float:
        """Return the double closest to the mean; NaN without values."""
        # Division of Python integers rounds once, to the nearest double.
        return self.total / (self.count << UNIT_BITS) if self.count else math.nan

    def std(self, ddof: int = 0) -> float:
        """Return the double closest to the standard deviation; NaN for `ddof` values or fewer."""
        if self.count <= ddof:
            return math.nan
        numerator = self.count * self.squares - self.total * self.total
        return sqrt_fraction(numerator, self.count * (self.count - ddof) << 2 * UNIT_BITS)


@dataclass(frozen=True)
class WeightedMoments(Moments):
    """Exact sums of weighted numbers and of their weighted squares; rows of weight 0 do not count.

    `total` counts units of 2**-2148 and `squares` units of 2**-3222. Adding plain `Moments`, of equal numbers, imputes
    that number for the missing ones, with their weights.

    Attributes
    ----------
    weights, missing : int
        Sums of the weights of rows with a number and of rows without one, in units of 2**-1074.
    missing_count : int
        Number of rows without a number; `count` has the rows with one.

    Examples
    --------
    >>> moments = WeightedMoments.of_weighted(np.array([1.0, 2.0, np.nan]), np.array([3.0, 1.0, 2.0]))
    >>> moments.mean(), (moments + Moments.of(np.array([5.0]))).mean()
    (1.25, 2.5)
    """

    weights: int = 0
    missing: int = 0
    missing_count: int = 0

    @classmethod
    def of_weighted(cls, values: np.ndarray, weights: np.ndarray) -> WeightedMoments:
        """Summarize numbers, NaN if missing, and their weights."""
        missing, used = np.isnan(values), weights > 0
        present, missing_weights = used & ~missing, weights[used & missing]
        total = squares = weight_total = 0
        for number_digits, weight_digits in split_digits(values[present], weights[present]):
            total += number_digits.dot(weight_digits)
            squares += number_digits.squares().dot(weight_digits)
            weight_total += weight_digits.total()
        missing_total = sum(digits.total() for (digits,) in split_digits(missing_weights))
        return cls(int(present.sum()), total, squares, weight_total, missing_total, len(missing_weights))

    def __add__(self, other: Moments) -> WeightedMoments:
        """Add weighted moments; plain `Moments`, of equal numbers, impute the mean of these for missing ones."""
        if isinstance(other, WeightedMoments):
            return super().__add__(other)
        if not other.count:
            return self
        return replace(
            self,
            count=self.count + self.missing_count,
            total=self.total + other.total // other.count * self.missing,
            squares=self.squares + other.squares // other.count * self.missing,
            weights=self.weights + self.missing,
            missing=0,
            missing_count=0,
        )

    def mean(self) -> float:
        return self.total / (self.weights << UNIT_BITS) if self.weights else math.nan

    def std(self, ddof: int = 0) -> float:
        """Return the standard deviation; `ddof` is subtracted from the number of rows, not from the sum of weights."""
        if self.count <= ddof or not self.weights:
            return math.nan
        numerator = (self.squares * self.weights - self.total * self.total) * self.count
        return sqrt_fraction(numerator, self.weights * self.weights * (self.count - ddof) << 2 * UNIT_BITS)


def sqrt_fraction(numerator: int, denominator: int) -> float:
    """Return the double closest to the square root of a fraction."""
    # 64 bits of the root, the last one set if any later bit is, round to the same double as the exact root.
    shift_bits = max(0, (128 - numerator.bit_length() + denominator.bit_length()) // 2)
    scaled, remainder = divmod(numerator << 2 * shift_bits, denominator)
    root = math.isqrt(scaled)
    sticky = root | (remainder != 0 or root * root != scaled)
    try:
        return sticky / (1 << shift_bits)
    except OverflowError:
        return math.inf
