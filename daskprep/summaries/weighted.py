"""Means and deviations of numbers that count more or less."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from daskprep.summaries.moments import SUM_BITS, Moments, root


@dataclass(frozen=True)
class WeightedMoments(Moments):
    """Sums of weighted numbers and of their weighted squares, each rounded once and added up exactly.

    `count` counts the numbers with a weight above 0. `weights` and `missing` are the sums of the weights of numbers,
    and of rows that have none, in units of 2**-1074. What is added as plain `Moments`, of equal numbers, fills those.

    Examples
    --------
    >>> moments = WeightedMoments.of_weighted(np.array([1.0, 2.0, np.nan]), np.array([3.0, 1.0, 2.0]))
    >>> moments.mean(), (moments + Moments.of(np.array([5.0]))).mean()
    (1.25, 2.5)
    """

    weights: int = 0
    missing: int = 0

    @classmethod
    def of_weighted(cls, values: np.ndarray, weights: np.ndarray) -> WeightedMoments:
        """Summarize numbers, NaN where there is none, and their weights."""
        present = ~np.isnan(values)
        kept, own = values[present], weights[present]
        with np.errstate(over="ignore"):
            squares = np.minimum(own * kept * kept, np.finfo(np.float64).max)
        return cls(
            int(np.count_nonzero(own)),
            Moments.of(own * kept).total,
            Moments.of(squares).total << SUM_BITS,
            Moments.of(own).total,
            Moments.of(weights[~present]).total,
        )

    def __add__(self, other: Moments) -> WeightedMoments:
        if isinstance(other, WeightedMoments):
            return super().__add__(other)
        if not other.count:
            return self
        filled = replace(
            self,
            count=self.count + other.count,
            total=self.total + (other.total // other.count * self.missing >> SUM_BITS),
            squares=self.squares + (other.squares // other.count * self.missing >> SUM_BITS),
            weights=self.weights + self.missing,
        )
        return replace(filled, missing=0)

    def mean(self) -> float:
        return self.total / self.weights if self.weights else math.nan

    def std(self, ddof: int = 0) -> float:
        """Return the deviation; `ddof` corrects for the number of rows, whatever the scale of their weights."""
        if self.count <= ddof or not self.weights:
            return math.nan
        numerator = max(self.squares * self.weights - (self.total * self.total << SUM_BITS), 0) * self.count
        # In units of 2**-1074: squares have two of them.
        return root(numerator, self.weights * self.weights * (self.count - ddof) << SUM_BITS) if numerator else 0.0
