"""Exact sums and sums of squares, and the means and standard deviations that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from daskprep.summaries.base import Summary, finite_doubles

# Every double is an integer multiple of 2**-1074, so its square is one of 2**-2148.
SUM_BITS = 1074
SQUARE_BITS = 2 * SUM_BITS

# A value is split into digits of 21 bits, at most 2**20 in magnitude. Products of two are at most 2**40, so a dot
# product over 2**13 values stays within 2**53 and is exact in float64, in any order of additions by BLAS. For 2**13
# values, OpenBLAS also stays on one thread. Each call processes eight of these blocks, whose digits still fit in the
# CPU cache: fewer calls mean less waiting for the GIL between threads.
DIGIT_BITS = 21
BLOCK_VALUES = 1 << 13
GROUP_VALUES = 8 * BLOCK_VALUES
# Six digits reach 2**-125 below the largest value of a group: enough for every value down to 2**-64 of it.
DIGITS = 6
LAST_BIT = DIGIT_BITS * DIGITS - 1
MIN_RATIO = 2.0**-64
MIN_EXPONENT = -1022
# Groups with a largest value beyond 2**400 or below 2**-400 are scaled, to keep products of digits in range.
MAX_UNSCALED_EXPONENT = 400


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
        doubles = finite_doubles(values)
        total = squares = 0
        scratch = np.empty((DIGITS + 1, _padded_count(min(len(doubles), GROUP_VALUES))))
        for start in range(0, len(doubles), GROUP_VALUES):
            group_total, group_squares = _group_sums(doubles[start : start + GROUP_VALUES], scratch)
            total += group_total
            squares += group_squares
        return cls(len(doubles), total, squares)

    def mean(self) -> float:
        """Return the double closest to the mean; NaN without values."""
        # Division of Python integers rounds once, to the nearest double.
        return self.total / (self.count << SUM_BITS) if self.count else math.nan

    def std(self, ddof: int = 0) -> float:
        """Return the double closest to the standard deviation; NaN for `ddof` values or fewer."""
        if self.count <= ddof:
            return math.nan
        numerator = self.count * self.squares - self.total * self.total
        return sqrt_fraction(numerator, self.count * (self.count - ddof) << SQUARE_BITS)


def _group_sums(group: np.ndarray, scratch: np.ndarray) -> tuple[int, int]:
    """Return the sum and the sum of squares of a group of values, in units of 2**-1074 and 2**-2148."""
    peak = max(float(group.max()), -float(group.min()))
    if peak == 0.0:
        return 0, 0
    exponent = max(math.frexp(peak)[1], MIN_EXPONENT)
    scaling_exponent = exponent if abs(exponent) > MAX_UNSCALED_EXPONENT else 0
    scaled_group = group * math.ldexp(1.0, -scaling_exponent) if scaling_exponent else group
    # Scaling down may underflow the smallest values to zero, which would lose them.
    underflows = scaling_exponent > 0 and np.count_nonzero(scaled_group) < np.count_nonzero(group)
    digits = None if underflows else _split_digits(scaled_group, exponent - scaling_exponent, scratch)
    if digits is None:
        return _split_sums(group, math.ldexp(MIN_RATIO, exponent), scratch)
    total, squares = _digit_sums(digits, exponent - scaling_exponent)
    return (
        _shift(total, exponent - LAST_BIT + SUM_BITS),
        _shift(squares, 2 * (exponent - LAST_BIT) + SQUARE_BITS),
    )


def _split_digits(values: np.ndarray, top_exponent: int, scratch: np.ndarray) -> np.ndarray | None:
    """Split values below 2**`top_exponent` in magnitude into exact digits, of shape (digits, blocks, values).

    Zeros fill the last block. Return None if some values need more than `DIGITS` digits. `scratch` is the memory for
    the result.
    """
    count, padded_count = len(values), _padded_count(len(values))
    digits, rest = scratch[:DIGITS, :count], scratch[DIGITS, :count]
    unit = math.ldexp(1.0, top_exponent + 1 - DIGIT_BITS)
    for used, digit in enumerate(digits, start=1):
        # Adding 1.5 * 2**52 units rounds to a multiple of the unit; both subtractions are exact.
        shift = 1.5 * 2.0**52 * unit
        np.add(values, shift, out=digit)
        np.subtract(digit, shift, out=digit)
        values = np.subtract(values, digit, out=rest)
        if not rest.any():
            scratch[:used, count:padded_count] = 0
            return scratch[:used, :padded_count].reshape(used, -1, min(count, BLOCK_VALUES))
        unit *= 2.0**-DIGIT_BITS
    return None


def _padded_count(count: int) -> int:
    """Return a number of values rounded up to full blocks; less than a block stays the same."""
    return count if count < BLOCK_VALUES else BLOCK_VALUES * -(-count // BLOCK_VALUES)


def _digit_sums(digits: np.ndarray, top_exponent: int) -> tuple[int, int]:
    """Return the sum and the sum of squares of values from their digits, as integers.

    The sum is in units of 2**(`top_exponent` - 125), the sum of squares in squares of this unit.
    """
    total = squares = 0
    sums = digits.sum(axis=(1, 2)).tolist()
    for row, digit in enumerate(digits):
        bits = DIGIT_BITS * (row + 1) - 1
        total += int(math.ldexp(sums[row], bits - top_exponent)) << (LAST_BIT - bits)
        for column in range(row, len(digits)):
            pair_bits = bits + DIGIT_BITS * (column + 1) - 1
            products = np.vecdot(digit, digits[column]).tolist()
            product = sum(int(math.ldexp(dot, pair_bits - 2 * top_exponent)) for dot in products)
            squares += product << (2 * LAST_BIT - pair_bits + (column > row))
    return total, squares


def _split_sums(group: np.ndarray, border: float, scratch: np.ndarray) -> tuple[int, int]:
    """Return the sum and the sum of squares of a group, which are computed apart for magnitudes below `border`."""
    small = np.abs(group) < border
    small_total, small_squares = _group_sums(group[small], scratch)
    large_total, large_squares = _group_sums(group[~small], scratch)
    return small_total + large_total, small_squares + large_squares


def _shift(value: int, bits: int) -> int:
    """Return ``value * 2**bits``; a negative shift only drops zeros."""
    return value << bits if bits >= 0 else value >> -bits


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
