"""Weighted means and standard deviations."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from daskprep.summaries.moments import GROUP_VALUES, SUM_BITS, Moments, sqrt_fraction

# Products of two numbers from 2**-200 to 2**200 and a weight from 2**-500 on, and their errors, stay in double range.
_MAX_EXPONENT, _MIN_WEIGHT = 200, 2.0**-500
_SPLITTER = 2.0**27 + 1


@dataclass(frozen=True)
class WeightedMoments(Moments):
    """Exact sums of weighted numbers and of their weighted squares; rows of weight 0 do not count.

    Adding plain `Moments`, of equal numbers, imputes that number for the missing ones, with their weights.

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
        present, own_weights, missing_weights = (
            values[used & ~missing],
            weights[used & ~missing],
            weights[used & missing],
        )
        far = (np.abs(np.frexp(present)[1]) > _MAX_EXPONENT) | (own_weights < _MIN_WEIGHT)
        total = squares = 0
        near, near_weights = present[~far], own_weights[~far]
        for start in range(0, len(near), GROUP_VALUES):
            block, block_weights = (array[start : start + GROUP_VALUES] for array in (near, near_weights))
            total += _sum_terms(_exact_product(block, block_weights))
            squares += (
                _sum_terms(
                    term for part in _exact_product(block, block) for term in _exact_product(part, block_weights)
                )
                << SUM_BITS
            )
        for value, weight in zip(
            map(_to_units, present[far].tolist()), map(_to_units, own_weights[far].tolist()), strict=True
        ):
            total += value * weight >> SUM_BITS
            squares += value * value * weight >> SUM_BITS
        weight_total, missing_total = Moments.of(own_weights).total, Moments.of(missing_weights).total
        return cls(len(own_weights), total, squares, weight_total, missing_total, len(missing_weights))

    def __add__(self, other: Moments) -> WeightedMoments:
        if isinstance(other, WeightedMoments):
            return super().__add__(other)
        if not other.count:
            return self
        filled = replace(
            self,
            count=self.count + self.missing_count,
            total=self.total + (other.total // other.count * self.missing >> SUM_BITS),
            squares=self.squares + (other.squares // other.count * self.missing >> SUM_BITS),
            weights=self.weights + self.missing,
        )
        return replace(filled, missing=0, missing_count=0)

    def mean(self) -> float:
        return self.total / self.weights if self.weights else math.nan

    def std(self, ddof: int = 0) -> float:
        """Return the standard deviation; `ddof` is subtracted from the number of rows, not from the sum of weights."""
        if self.count <= ddof or not self.weights:
            return math.nan
        numerator = max(self.squares * self.weights - (self.total * self.total << SUM_BITS), 0) * self.count
        # The shifts bring all terms to one unit, 2**-1074 cubed.
        return (
            sqrt_fraction(numerator, self.weights * self.weights * (self.count - ddof) << SUM_BITS)
            if numerator
            else 0.0
        )


def _exact_product(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return products and their rounding errors, by Dekker's algorithm: their sum is exact."""
    product = left * right
    (high, low), (other_high, other_low) = (
        (top := (factor * _SPLITTER) - (factor * _SPLITTER - factor), factor - top) for factor in (left, right)
    )
    error = ((high * other_high - product) + high * other_low + low * other_high) + low * other_low
    return product, error


def _sum_terms(terms: Iterable[np.ndarray]) -> int:
    return sum(Moments.of(term).total for term in terms)


def _to_units(value: float) -> int:
    """Return a double as an integer, in units of 2**-1074."""
    numerator, denominator = value.as_integer_ratio()
    return (numerator << SUM_BITS) // denominator
