"""Means and deviations of numbers that count more or less."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from daskprep.summaries.moments import GROUP_VALUES, SUM_BITS, Moments, sqrt_fraction

# Of numbers between 2**-200 and 2**200 and weights down to 2**-500, products of three and their errors are doubles.
_MAX_EXPONENT, _MIN_WEIGHT = 200, 2.0**-500
_SPLITTER = 2.0**27 + 1


@dataclass(frozen=True)
class WeightedMoments(Moments):
    """Exact sums of weighted numbers and of their weighted squares.

    `count` counts the numbers with a weight above 0, and `missing_count` such rows that have no number. `weights` and `missing`
    are the sums of their weights, in units of 2**-1074. What is added as plain `Moments`, of equal numbers, fills the
    gaps.

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
        """Summarize numbers, NaN where there is none, and their weights."""
        missing, counts = np.isnan(values), weights > 0
        present, own_weights, missing_weights = (
            values[counts & ~missing],
            weights[counts & ~missing],
            weights[counts & missing],
        )
        far = (np.abs(np.frexp(present)[1]) > _MAX_EXPONENT) | (own_weights < _MIN_WEIGHT)
        total = squares = 0
        near, near_weights = present[~far], own_weights[~far]
        for start in range(0, len(near), GROUP_VALUES):
            block, block_weights = (one[start : start + GROUP_VALUES] for one in (near, near_weights))
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
        """Return the deviation; `ddof` corrects for the number of rows, whatever the scale of their weights."""
        if self.count <= ddof or not self.weights:
            return math.nan
        numerator = max(self.squares * self.weights - (self.total * self.total << SUM_BITS), 0) * self.count
        # In units of 2**-1074: squares have two of them.
        return (
            sqrt_fraction(numerator, self.weights * self.weights * (self.count - ddof) << SUM_BITS)
            if numerator
            else 0.0
        )


def _exact_product(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return products and their rounding errors, as Dekker does: both together are exact."""
    product = left * right
    (high, low), (other_high, other_low) = (
        (top := (one * _SPLITTER) - (one * _SPLITTER - one), one - top) for one in (left, right)
    )
    error = ((high * other_high - product) + high * other_low + low * other_high) + low * other_low
    return product, error


def _sum_terms(terms: Iterable[np.ndarray]) -> int:
    return sum(Moments.of(term).total for term in terms)


def _to_units(value: float) -> int:
    """Return how many units of 2**-1074 a double is."""
    numerator, denominator = value.as_integer_ratio()
    return (numerator << SUM_BITS) // denominator
