"""Normalizations of numbers: a class for each, which learns from quantiles, transforms numbers, and inverts that.

`_apply` is also called with the values of an ONNX graph, of whose functions `extensions/onnx.py` has a table.

To add one, write a class, and add its name to `Normalization` and `NORMALIZATIONS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from daskprep.errors import RejectedValueError

Normalization = Literal[
    "zscore", "minmax", "log1p", "iq", "robust", "quantile_normal", "quantile_uniform", "yeo_johnson", "box_cox"
]
MAX_FLOAT32 = float(np.finfo(np.float32).max)
_TINY = float(np.finfo(np.float64).tiny)
_MAX_DOUBLE = float(np.finfo(np.float64).max)
_SAFE_CENTER = 2.0**970  # the distance of any double from a smaller center is a double
_MAX_ROBUST_INPUT = 1e150  # its square is finite
_SMOOTH_LIMIT = 3.0
_MAX_REFERENCES = 1_000  # reference quantiles of a quantile transform, as in scikit-learn
_MIN_SHARE = 1e-7 - float(np.spacing(1.0))  # as in scikit-learn: normal scores are then between -5.2 and 5.2
_MAX_POWER = 10.0
_MAX_LOGARITHM = 700.0  # about the logarithm of the largest double
_SEARCH_STEPS = 38  # each narrows the interval of powers to 0.618 of its width: the last to less than 1e-6

# Normal quantiles by Wichura's AS 241 (1988), as in `statistics.NormalDist`: coefficients of the numerator and the
# denominator, highest powers first, in the middle and in the tails.
_MIDDLE = (
    (2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
     1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080e0),
    (5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
     5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0),
)  # fmt: skip
_TAIL = (
    (7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e0,
     3.64784832476320460504e0, 5.76949722146069140550e0, 4.63033784615654529590e0, 1.42343711074968357734e0),
    (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
     6.89767334985100004550e-1, 1.67638483018380384940e0, 2.05319162663775882187e0, 1.0),
)  # fmt: skip
# Coefficients of the complementary error function, with a relative error below 1.2e-7 (Numerical Recipes, `erfcc`).
_ERFC = (
    0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368,
    -1.26551223,
)  # fmt: skip


class Normalizer:
    """Center and scale numbers in double precision, to float32.

    Without learned values, which a column without numbers lacks, all leave numbers unchanged. The scale, a factor, is 0
    for a constant column. Results beyond the fitted range grow at most linearly: numbers are clipped to `ends`, if set,
    and inverse results too.
    """

    needs_moments = True  # whether fit computes them
    # Names of learned values: the center, and the two whose distance becomes 1; "" is 0.
    _center = _low = _high = ""
    # Numbers up to this bound have no result, whose name and alternative follow.
    _domain = (-math.inf, "", "")

    def __init__(self, learned: Mapping[str, Any]) -> None:
        self._learned, self.center, self.scale = learned, 0.0, 1.0
        self.ends: tuple[float, float] | None = learned.get("power_range")
        self._is_linear = type(self)._apply is Normalizer._apply
        if (center := learned.get(self._center)) is None:
            return
        low, high = learned.get(self._low) if self._low else 0.0, learned.get(self._high)
        if low is None or high is None:
            name = next(name for name, one in NORMALIZATIONS.items() if type(self) is one)
            raise ValueError(f'a number that "{name}" needs was not learned')
        self.center, spread = center, self._spread(low, high)
        if spread == math.inf:  # high - low may overflow
            self.scale = 0.5 / (high / 2 - low / 2)
        else:  # the inverse of a subnormal spread may be infinite: the column counts as constant
            self.scale = 1.0 / spread if spread >= _TINY else 0.0

    @classmethod
    def learn(cls, quantiles: Any, extent: Any) -> dict[str, Any]:
        """Return the learned values other than mean, deviation and range."""
        return {}

    @classmethod
    def check_domain(cls, values: np.ndarray) -> None:
        """Raise RejectedValueError for a number outside the domain."""
        bound, result, remedy = cls._domain
        if result and len(outside := np.flatnonzero(values <= bound)):
            raise RejectedValueError(
                f"{values[outside[0]]:g} has no {result}, which needs values above {bound:g}: use {remedy}"
            )

    def transform(self, values: np.ndarray) -> np.ndarray:
        """Return normalized numbers as float32, NaN for NaN; RejectedValueError outside of the domain."""
        self.check_domain(values)
        if self.scale == 0.0:
            return np.where(np.isnan(values), values, 0.0).astype(np.float32)
        values = values if self.ends is None else np.clip(values, *self.ends)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # infinite results are clipped
            values = self._apply(values)
        # Clipped before the cast, which would overflow.
        clipped: np.ndarray = np.maximum(np.minimum(values, MAX_FLOAT32), -MAX_FLOAT32).astype(np.float32)
        return clipped

    def transform_list(self, values: Sequence[float]) -> np.ndarray:
        """Return `transform` of a list, faster for few numbers."""
        if not self._is_linear:
            return self.transform(np.array(values, np.float64))
        center, scale = self.center, self.scale
        if not scale:
            return np.array([0.0 if value == value else value for value in values], np.float32)  # noqa: PLR0124
        most = MAX_FLOAT32
        clipped = [
            scaled if -most <= (scaled := (value - center) * scale) <= most else _scale_clipped(value, center, scale)
            for value in values
        ]
        return np.array(clipped, np.float32)

    def find_scaling(self, low: float, high: float) -> tuple[float, float, float, float] | None:
        """Return low, high, center and scale if scaling is all that numbers from low to high need; None if not."""
        if (
            self._is_linear
            and self.scale
            and all(abs((end - self.center) * self.scale) < MAX_FLOAT32 for end in (low, high))
        ):
            return low, high, self.center, self.scale
        return None

    def inverse_transform(self, normalized: np.ndarray) -> np.ndarray:
        """Return the original numbers in double precision, NaN for NaN; the center if the column was constant."""
        values = np.asarray(normalized, np.float64)
        if not self.scale:
            return np.where(np.isnan(values), values, self.center)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            numbers = self._invert(values)
        # float32 is rounded, so the inverse of the largest double may overflow.
        return np.clip(numbers, *self.ends or (-_MAX_DOUBLE, _MAX_DOUBLE), out=numbers, where=np.isfinite(values))

    def _spread(self, low: float, high: float) -> float:
        return high - low

    def _apply(self, values: Any) -> Any:
        """Return (values - center) * scale in double precision."""
        if (self.center, self.scale) == (0.0, 1.0):
            return values
        scaled = values - self.center
        overflowed = None if abs(self.center) < _SAFE_CENTER else np.isinf(scaled)
        scaled *= self.scale
        if overflowed is None:
            return scaled
        return np.where(overflowed, _scale_halves(values, self.center, self.scale), scaled)

    def _invert(self, values: np.ndarray) -> np.ndarray:
        numbers = values / self.scale + self.center
        # The distance from the center may overflow although the number itself does not.
        return np.where(np.isinf(numbers), (values / 2 / self.scale + self.center / 2) * 2, numbers)


def _scale_halves(values: Any, center: float, scale: float) -> Any:
    """Return ``(values - center) * scale`` if the difference may overflow."""
    return (values / 2 - center / 2) * scale * 2


def _scale_clipped(value: float, center: float, scale: float) -> float:
    """Return `_scale_halves` within float32; NaN stays NaN."""
    return value if math.isnan(value) else max(-MAX_FLOAT32, min(MAX_FLOAT32, _scale_halves(value, center, scale)))


class StandardScaler(Normalizer):
    """Distance from the mean in standard deviations."""

    _center, _high = "mean", "std"


class MinMaxScaler(Normalizer):
    """Position between the smallest and the largest number."""

    _center = _low = "min"
    _high = "max"


class InterquartileScaler(Normalizer):
    """Distance from the median in interquartile ranges."""

    _center, _low, _high = "q2", "q1", "q3"

    @classmethod
    def learn(cls, quantiles: Any, extent: Any) -> dict[str, Any]:
        return {f"q{quarter}": quantiles.quantile(quarter / 4) for quarter in (1, 2, 3)}


class RobustScaler(InterquartileScaler):
    """The same, smoothly clipped to -3 and 3."""

    needs_moments = False

    def _spread(self, low: float, high: float) -> float:
        return high - low or self._learned["max"] / 2 - self._learned["min"] / 2

    def _apply(self, values: Any) -> Any:
        values = np.clip(super()._apply(values), -_MAX_ROBUST_INPUT, _MAX_ROBUST_INPUT)
        return values / np.sqrt(1.0 + (values / _SMOOTH_LIMIT) ** 2)

    def _invert(self, values: np.ndarray) -> np.ndarray:
        limit = float(np.nextafter(np.float32(_SMOOTH_LIMIT), np.float32(0)))
        values = np.clip(values, -limit, limit)
        return super()._invert(values / np.sqrt(1.0 - (values / _SMOOTH_LIMIT) ** 2))


class LogTransformer(Normalizer):
    """Logarithm of 1 + x."""

    _domain = (-1.0, "log1p", "another normalization")

    def _apply(self, values: Any) -> Any:
        return np.log1p(values)

    def _invert(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(np.expm1(super()._invert(values)))


class QuantileTransformer(Normalizer):
    """Share of the training rows below x, interpolated as in scikit-learn."""

    needs_moments = False
    _is_normal = False

    def __init__(self, learned: Mapping[str, Any]) -> None:
        super().__init__(learned)
        quantiles = learned.get("quantiles")
        self._quantiles = None if quantiles is None else np.array(quantiles)
        self._shares = np.linspace(0.0, 1.0, 0 if quantiles is None else len(quantiles))

    @classmethod
    def learn(cls, quantiles: Any, extent: Any) -> dict[str, Any]:
        references = evenly_spaced_quantiles(quantiles, extent, min(_MAX_REFERENCES, quantiles.count))
        return {"quantiles": tuple(np.maximum.accumulate(references).tolist())}

    def _apply(self, values: Any) -> Any:
        """Return the share of training rows below, or its score."""
        if self._quantiles is None:
            return values
        low, high = self._quantiles[[0, -1]]
        if low == high:
            return np.where(np.isnan(values), np.nan, 0.0)
        # The mean of interpolations from both sides, which differ where quantiles are equal.
        above = _interpolate(values, self._quantiles, self._shares)
        shares = 0.5 * (above - _interpolate(-values, -self._quantiles[::-1], -self._shares[::-1]))
        shares = np.where(values >= high, 1.0, np.where(values <= low, 0.0, shares))
        return normal_ppf(np.clip(shares, _MIN_SHARE, 1.0 - _MIN_SHARE)) if self._is_normal else shares

    def _invert(self, values: np.ndarray) -> np.ndarray:
        """Return the learned quantile at each share or normal score, interpolated."""
        values = super()._invert(values)
        if self._quantiles is None:
            return values
        shares = normal_cdf(values) if self._is_normal else values
        # Shares within the clipping margin of `_MIN_SHARE` are the minimum or the maximum.
        shares = np.where(shares < 1e-7, 0.0, np.where(shares > 1.0 - 1e-7, 1.0, shares))
        return _interpolate(shares, self._shares, self._quantiles)


class NormalQuantileTransformer(QuantileTransformer):
    """Normal score of this share."""

    _is_normal = True


class YeoJohnson(Normalizer):
    """Z-score of the Yeo-Johnson transform, with the maximum-likelihood power, as in scikit-learn.

    Powers grow without bound, so numbers beyond the fitted range count as its ends.
    """

    needs_moments = False
    _center, _high = "power_mean", "power_std"
    _negative_power = 2.0  # the exponent of negative logarithms is the difference from this one

    @classmethod
    def learn(cls, quantiles: Any, extent: Any) -> dict[str, Any]:
        numbers = np.clip(quantiles.values(), extent.min, extent.max)  # each counts as the middle of its bucket
        is_inside = numbers > cls._domain[0]
        numbers, counts = numbers[is_inside], quantiles.counts[is_inside]
        if len(numbers) < 2:
            return {"power": 1.0, "power_mean": float(numbers.sum()), "power_std": 0.0}
        logarithms, shares = cls._to_logarithms(numbers), counts / counts.sum()
        slope = float(shares @ logarithms)

        def likelihood(power: float) -> float:
            # The normal log-likelihood of the transformed numbers plus the log-determinant of the Jacobian.
            _, deviation = _mean_and_deviation(cls._raise(logarithms, power), shares)
            return (power - 1.0) * slope - (math.log(deviation) if 0.0 < deviation < math.inf else math.inf)

        # No number may become infinite: large positive ones bound the power from above, negative ones from below.
        max_positive, max_negative = max(float(logarithms[-1]), 1.0), max(-float(logarithms[0]), 1.0)
        high = min(_MAX_POWER, max(_MAX_LOGARITHM / max_positive, 1.0))
        low = max(-_MAX_POWER, cls._negative_power - _MAX_LOGARITHM / max_negative)
        power = round(_maximize(likelihood, min(low, 1.0), high), 6)
        mean, deviation = _mean_and_deviation(cls._raise(logarithms, power), shares)
        low = extent.min if extent.min > cls._domain[0] else float(numbers[0])
        # The last digits of logarithms depend on the processor.
        rounded = {"power_mean": float(f"{mean:.12g}"), "power_std": float(f"{deviation:.12g}")}
        return {"power": power, **rounded, "power_range": (low, extent.max)}

    def _apply(self, values: Any) -> Any:
        power = self._learned.get("power")
        return super()._apply(values if power is None else self._raise(self._to_logarithms(values), power))

    def _invert(self, values: np.ndarray) -> np.ndarray:
        values, power = super()._invert(values), self._learned.get("power")
        if power is None:
            return values
        sizes, exponents = np.abs(values), np.where(values < 0, self._negative_power - power, power)
        logarithms = np.log1p(np.maximum(exponents * sizes, -1.0)) / exponents
        return self._from_logarithms(np.copysign(np.where(exponents == 0.0, sizes, logarithms), values))

    @classmethod
    def _raise(cls, logarithms: Any, power: float) -> Any:
        """Return the power transform, from signed logarithms."""
        sizes, exponents = np.abs(logarithms), np.where(logarithms < 0, cls._negative_power - power, power)
        with np.errstate(invalid="ignore"):  # for an exponent of 0
            raised = np.expm1(exponents * sizes) / exponents
        return np.copysign(np.where(exponents == 0.0, sizes, raised), logarithms)

    @staticmethod
    def _to_logarithms(numbers: Any) -> Any:
        return np.copysign(np.log1p(np.abs(numbers)), numbers)

    @staticmethod
    def _from_logarithms(logarithms: np.ndarray) -> np.ndarray:
        return np.asarray(np.copysign(np.expm1(np.abs(logarithms)), logarithms))


class BoxCox(YeoJohnson):
    """Z-score of the Box-Cox transform, of positive numbers."""

    _domain = (0.0, "Box-Cox transform", '"yeo_johnson"')
    _negative_power = 0.0

    @staticmethod
    def _to_logarithms(numbers: Any) -> Any:
        return np.log(numbers)

    @staticmethod
    def _from_logarithms(logarithms: np.ndarray) -> np.ndarray:
        return np.asarray(np.exp(logarithms))


NORMALIZATIONS: dict[Normalization | None, type[Normalizer]] = {
    None: Normalizer, "zscore": StandardScaler, "minmax": MinMaxScaler, "log1p": LogTransformer,
    "iq": InterquartileScaler, "robust": RobustScaler, "quantile_normal": NormalQuantileTransformer,
    "quantile_uniform": QuantileTransformer, "yeo_johnson": YeoJohnson, "box_cox": BoxCox,
}  # fmt: skip


def evenly_spaced_quantiles(quantiles: Any, extent: Any, number: int) -> np.ndarray:
    """Return `number` quantiles, with exact ends."""
    bounded: np.ndarray = np.clip(quantiles.evenly_spaced(number), extent.min, extent.max)
    bounded[[0, -1]] = extent.min, extent.max
    return bounded


def _mean_and_deviation(numbers: np.ndarray, shares: np.ndarray) -> tuple[float, float]:
    """Return mean and standard deviation of weighted numbers."""
    size = float(np.abs(numbers).max()) or 1.0
    mean = float(shares @ (numbers / size))
    return mean * size, math.sqrt(float(shares @ (numbers / size - mean) ** 2)) * size


def _maximize(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a unimodal function is largest."""
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


def _interpolate(values: np.ndarray, points: np.ndarray, results: np.ndarray) -> np.ndarray:
    """Interpolate as `numpy.interp`, also if distances overflow."""
    result: np.ndarray = np.interp(values, points, results)
    wide = np.isinf(np.diff(points))
    if not wide.any() and not np.isinf(result).any():
        return result
    segment = np.searchsorted(points[1:-1], values, side="right")
    unstable = np.flatnonzero(np.isfinite(values) & (wide[segment] | np.isinf(result)))
    (low, high), segment = points[[segment[unstable], segment[unstable] + 1]], segment[unstable]
    factor = np.where(wide[segment], 0.5, 1.0)
    weight = np.clip((values[unstable] * factor - low * factor) / (high * factor - low * factor), 0.0, 1.0)
    result[unstable] = results[segment] * (1.0 - weight) + results[segment + 1] * weight
    return result


def normal_ppf(shares: np.ndarray) -> np.ndarray:
    """Return quantiles of the standard normal distribution."""
    centered = shares - 0.5
    root = np.sqrt(-np.log(np.minimum(shares, 1.0 - shares))) - 1.6
    tail = np.polyval(_TAIL[0], root) / np.polyval(_TAIL[1], root)
    square = 0.180625 - centered * centered
    middle = centered * np.polyval(_MIDDLE[0], square) / np.polyval(_MIDDLE[1], square)
    return np.where(np.abs(centered) <= 0.425, middle, np.copysign(tail, centered))


def normal_cdf(scores: np.ndarray) -> np.ndarray:
    """Return the share of the standard normal below each score."""
    distance = np.abs(scores) / math.sqrt(2.0)
    step = 1.0 / (1.0 + 0.5 * distance)
    beyond = 0.5 * step * np.exp(-distance * distance + np.polyval(_ERFC, step))
    return np.asarray(np.where(scores > 0, 1.0 - beyond, beyond))
