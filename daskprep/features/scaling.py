"""Parameters of normalizations and bins, learned from the quantiles of a column."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from daskprep.steps.normalization import power_transform
from daskprep.summaries import Quantiles, Range

MAX_REFERENCES = 1_000  # reference quantiles of a quantile transform, as in scikit-learn
_MAX_POWER = 10.0
_MAX_LOGARITHM = 700.0  # about the logarithm of the largest double
_SEARCH_STEPS = 38  # each narrows the interval of powers to 0.618 of its width: the last to less than 1e-6


def bounded_quantiles(quantiles: Quantiles, extent: Range, fractions: np.ndarray) -> np.ndarray:
    """Return the quantiles at these fractions (0 to 1); 0 and 1 return the ends of `extent`, exactly."""
    bounded: np.ndarray = np.clip(quantiles.quantiles(fractions), extent.min, extent.max)
    bounded[fractions == 0.0] = extent.min
    bounded[fractions == 1.0] = extent.max
    return bounded


def reference_quantiles(quantiles: Quantiles, extent: Range) -> tuple[float, ...]:
    """Return evenly spaced quantiles for a quantile transform: 1,000, or fewer if there are fewer numbers."""
    references = evenly_spaced_quantiles(quantiles, extent, min(MAX_REFERENCES, quantiles.count))
    return tuple(np.maximum.accumulate(references).tolist())


def evenly_spaced_quantiles(quantiles: Quantiles, extent: Range, number: int) -> np.ndarray:
    """Return `number` evenly spaced quantiles; the first and the last are the ends of `extent`, exactly."""
    bounded: np.ndarray = np.clip(quantiles.evenly_spaced(number), extent.min, extent.max)
    bounded[0] = extent.min
    bounded[-1] = extent.max
    return bounded


def learn_power(normalization: str, quantiles: Quantiles, extent: Range) -> tuple[float, float, float]:
    """Return the power of a power transform, and mean and standard deviation of the transformed numbers.

    It is the maximum-likelihood power, as in scikit-learn. Each number counts as the middle of its bucket.
    """
    numbers = np.clip(quantiles.values(), extent.min, extent.max)
    counts = quantiles.counts
    if normalization == "box_cox":
        numbers, counts = numbers[numbers > 0], counts[numbers > 0]
    if len(numbers) < 2:
        return 1.0, float(numbers.sum()), 0.0
    shares = counts / counts.sum()
    # Yeo-Johnson computes the formulas for both signs on all numbers, and the unused one may overflow.
    with np.errstate(over="ignore"):
        return _find_likeliest_power(normalization, numbers, shares)


def _find_likeliest_power(normalization: str, numbers: np.ndarray, shares: np.ndarray) -> tuple[float, float, float]:
    logarithms = np.log(numbers) if normalization == "box_cox" else np.copysign(np.log1p(np.abs(numbers)), numbers)
    slope = float(shares @ logarithms)

    def likelihood(power: float) -> float:
        # The normal log-likelihood of the transformed numbers plus the log-determinant of the Jacobian.
        _, deviation = _mean_and_deviation(power_transform(numbers, normalization, power), shares)
        return (power - 1.0) * slope - (math.log(deviation) if 0.0 < deviation < math.inf else math.inf)

    # No number may become infinite: large positive ones bound the power from above, negative ones from below, because
    # Yeo-Johnson uses the power 2 - x for them.
    max_positive, max_negative = max(float(logarithms[-1]), 1.0), max(-float(logarithms[0]), 1.0)
    high = min(_MAX_POWER, max(_MAX_LOGARITHM / max_positive, 1.0))
    low = (
        -min(_MAX_POWER, _MAX_LOGARITHM / max_negative)
        if normalization == "box_cox"
        else max(-_MAX_POWER, 2.0 - _MAX_LOGARITHM / max_negative)
    )
    power = round(_maximize(likelihood, min(low, 1.0), high), 6)
    mean, deviation = _mean_and_deviation(power_transform(numbers, normalization, power), shares)
    # The last digits of logarithms depend on the processor.
    return power, float(f"{mean:.12g}"), float(f"{deviation:.12g}")


def _mean_and_deviation(numbers: np.ndarray, shares: np.ndarray) -> tuple[float, float]:
    """Return mean and standard deviation of numbers with these weights; squares of numbers may exceed a double."""
    size = float(np.abs(numbers).max()) or 1.0
    mean = float(shares @ (numbers / size))
    return mean * size, math.sqrt(float(shares @ (numbers / size - mean) ** 2)) * size


def _maximize(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the argument of the maximum of a unimodal function, by golden-section search."""
    ratio = (math.sqrt(5.0) - 1.0) / 2.0
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    value_left, value_right = function(left), function(right)
    for _ in range(_SEARCH_STEPS):
        if value_left > value_right:
            high, right, value_right = right, left, value_left
            left = high - ratio * (high - low)
            value_left = function(left)
        else:
            low, left, value_left = left, right, value_right
            right = low + ratio * (high - low)
            value_right = function(right)
    return (low + high) / 2.0


def learn_edges(
    bins: int | Sequence[float], is_uniform: bool, quantiles: Quantiles | None, extent: Range
) -> np.ndarray:
    """Return ascending bin edges: `bins` itself unless it is their number, evenly spaced edges, or quantiles."""
    if not isinstance(bins, int):
        return np.array(bins, np.float64)
    fractions = np.linspace(0.0, 1.0, bins + 1)
    if is_uniform:
        return np.unique(extent.min * (1.0 - fractions) + extent.max * fractions)
    assert quantiles is not None
    return np.unique(evenly_spaced_quantiles(quantiles, extent, bins + 1))
