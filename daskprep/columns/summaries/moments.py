"""Exact sums of doubles and of their products and squares, and the means and standard deviations that follow from them.

Digits that float64 adds and multiplies without rounding make sums Python integers, independent of order and
partitioning.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from daskprep.columns.summaries.base import Summary, finite_doubles

UNIT_BITS = 1074  # every double is an integer multiple of 2**-1074; a product of two is one of 2**-2148

# Products of two digits are below 2**40, so a dot product over 2**13 values stays within 2**53 and is exact in float64,
# in any order of additions by BLAS. For 2**13 values, OpenBLAS also stays on one thread. Each call processes 16 of
# these blocks, which takes as long as with 8: fewer calls mean less waiting for the GIL between threads.
DIGIT_BITS = 20
BLOCK_VALUES = 1 << 13
GROUP_VALUES = 16 * BLOCK_VALUES
# Six digits are enough for every value down to 2**-64 of the largest one in its group.
MAX_DIGITS = 6
MIN_RATIO = 2.0**-64
MIN_EXPONENT = -1023  # of the first digit: 2**1023 is the largest factor


class Digits(NamedTuple):
    """Digits of a group of numbers: integers below 2**20 with their signs."""

    rows: np.ndarray  # from the highest on, of shape (digits, blocks, values)
    exponent: int  # the first digit counts units of 2**`exponent`, and each next one units 2**20 times smaller
    unit_bits: int = UNIT_BITS  # the numbers are integer multiples of 2**-`unit_bits`

    def total(self) -> int:
        """Return the sum of the numbers in units of 2**-`unit_bits`."""
        total = 0
        for digit_sum in self.rows.sum(axis=(1, 2)).tolist():
            total = (total << DIGIT_BITS) + int(digit_sum)
        return _shift(total, self.exponent - DIGIT_BITS * (len(self.rows) - 1) + self.unit_bits)

    def dot(self, other: Digits) -> int:
        """Return the exact dot product, in units of both `unit_bits`."""
        total, last, other_last = 0, len(self.rows) - 1, len(other.rows) - 1
        for position in range(last + other_last + 1):
            total <<= DIGIT_BITS
            for row in range(max(0, position - other_last), min(position, last) + 1):
                if self is other and 2 * row > position:
                    break
                products = sum(map(int, np.vecdot(self.rows[row], other.rows[position - row]).tolist()))
                total += products << (self is other and 2 * row < position)
        last_bit = self.exponent + other.exponent - DIGIT_BITS * (last + other_last)
        return _shift(total, last_bit + self.unit_bits + other.unit_bits)

    def squares(self) -> Digits:
        """Return the exact squares, with carries propagated."""
        count = len(self.rows)
        squares = np.zeros((2 * count, *self.rows.shape[1:]))
        for row, digits in enumerate(self.rows):
            squares[2 * row + 1] += digits * digits
            for next_row in range(row + 1, count):
                squares[row + next_row + 1] += 2.0 * digits * self.rows[next_row]
        for row in range(2 * count - 1, 0, -1):
            carry = np.trunc(squares[row] * 2.0**-DIGIT_BITS)
            squares[row] -= carry * 2.0**DIGIT_BITS
            squares[row - 1] += carry
        return Digits(squares, 2 * self.exponent + DIGIT_BITS, 2 * self.unit_bits)


def split_digits(*columns: np.ndarray) -> Iterator[list[Digits]]:
    """Yield the digits of columns for each group of values, which the next group overwrites.

    ValueError for NaN and infinity.
    """
    size, stop = len(columns[0]), 0
    scratch = [np.empty((MAX_DIGITS + 1, min(size, GROUP_VALUES))) for _ in columns]
    while stop < size:
        start, stop = stop, min(stop + GROUP_VALUES, size)
        if stop - start > BLOCK_VALUES:
            stop -= (stop - start) % BLOCK_VALUES
        group, digits = [column[start:stop] for column in columns], list[Digits]()
        for values, memory in zip(group, scratch, strict=True):
            split = _split_values(values, memory[:, : stop - start])
            if not isinstance(split, Digits):
                for mask in (split, ~split):
                    yield from split_digits(*(column[mask] for column in group))
                break
            digits.append(split)
        else:
            yield digits


def split_at_positions(numbers: np.ndarray, bits: int, max_positions: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield positions and digits of doubles, from the highest.

    A digit at a position counts units of 2**(`bits` * position). Only the `max_positions` highest are used; empty ones
    are left out.
    """
    peak = float(np.abs(numbers).max(initial=0.0))
    highest = (math.frexp(peak)[1] - 1) // bits
    digits = np.empty((max_positions, len(numbers)))
    used = _truncate(np.ldexp(numbers, -bits * highest), bits, digits)
    for row, position_digits in enumerate(digits[:used]):
        if position_digits.any():
            yield highest - row, position_digits


def _split_values(values: np.ndarray, scratch: np.ndarray) -> Digits | np.ndarray:
    """Return the digits of values, or a mask of small ones to split apart; ValueError if one is not finite."""
    peak = max(float(values.max()), -float(values.min()))
    if not math.isfinite(peak):
        finite_doubles(values)  # raises the error: one pass less over values that are finite
    exponent = max(math.frexp(peak)[1] - DIGIT_BITS, MIN_EXPONENT)
    rest = np.multiply(values, math.ldexp(1.0, -exponent), out=scratch[MAX_DIGITS])
    # Scaling down may underflow the smallest values to zero, which would lose them.
    if exponent <= 0 or rest.all() or np.count_nonzero(rest) == np.count_nonzero(values):
        used = _truncate(rest, DIGIT_BITS, scratch[:MAX_DIGITS])
        if used < MAX_DIGITS or not rest.any():
            return Digits(scratch[:used].reshape(used, -1, min(len(values), BLOCK_VALUES)), exponent)
    small: np.ndarray = np.abs(values) < peak * MIN_RATIO
    return small


def _truncate(rest: np.ndarray, bits: int, digits: np.ndarray) -> int:
    """Write the digits of `rest` to rows of `digits`, overwriting both; return the number of rows."""
    for used, digit in enumerate(digits, start=1):
        np.trunc(rest, out=digit)
        rest -= digit
        # The first double mostly decides, for which NumPy keeps the GIL.
        if not rest[:1].any() and not rest.any():
            return used
        rest *= 2.0**bits
    return len(digits)


def _shift(value: int, bits: int) -> int:
    """Return ``value * 2**bits``; right shifts drop only zeros."""
    return value << bits if bits >= 0 else value >> -bits


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
        """Return the exact sums of values of any shape; ValueError unless finite."""
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
    """

    weights: int = 0  # sum of the weights of rows with a number, in units of 2**-1074
    missing: int = 0  # sum of the weights of rows without one
    missing_count: int = 0  # number of rows without a number; `count` has the rows with one

    @classmethod
    def of_weighted(cls, values: np.ndarray, weights: np.ndarray) -> WeightedMoments:
        """Return exact weighted sums; NaN is missing."""
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
        """Add moments; each missing number of this one counts as the mean of plain ones."""
        if isinstance(other, WeightedMoments):
            return super().__add__(other)
        if not other.count:
            return self
        total = self.total + other.total // other.count * self.missing
        squares = self.squares + other.squares // other.count * self.missing
        return WeightedMoments(self.count + self.missing_count, total, squares, self.weights + self.missing)

    def mean(self) -> float:
        return self.total / (self.weights << UNIT_BITS) if self.weights else math.nan

    def std(self, ddof: int = 0) -> float:
        """Return the deviation; NaN for `ddof` numbers or fewer."""
        if self.count <= ddof or not self.weights:
            return math.nan
        numerator = (self.squares * self.weights - self.total * self.total) * self.count
        return sqrt_fraction(numerator, self.weights * self.weights * (self.count - ddof) << 2 * UNIT_BITS)


def sqrt_fraction(numerator: int, denominator: int) -> float:
    """Return the double closest to the square root of a fraction, infinity if too large."""
    # 64 bits of the root, the last one set if any later bit is, round to the same double as the exact root.
    shift_bits = max(0, (128 - numerator.bit_length() + denominator.bit_length()) // 2)
    scaled, remainder = divmod(numerator << 2 * shift_bits, denominator)
    root = math.isqrt(scaled)
    sticky = root | (remainder != 0 or root * root != scaled)
    try:
        return sticky / (1 << shift_bits)
    except OverflowError:
        return math.inf
