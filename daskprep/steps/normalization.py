"""Normalization of numbers and its inverse, the standard normal distribution, and bins of numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from daskprep.errors import RejectedValueError
from daskprep.steps.base import smallest_uint

LearnedValues = Mapping[str, Any]

_TINY = float(np.finfo(np.float64).tiny)
_MAX_DOUBLE = float(np.finfo(np.float64).max)
MAX_FLOAT32 = float(np.finfo(np.float32).max)
_SMOOTH_LIMIT = 3.0
_MAX_ROBUST_INPUT = 1e150  # its square is finite
_SAFE_CENTER, _SAFE_EDGE_FLOAT32 = 2.0**970, 2.0**103  # subtracting less than these cannot overflow
# Ranks in 0 to 1 are clipped before they become normal scores, which are then within 5.2, as in scikit-learn.
_MIN_SHARE = 1e-7 - float(np.spacing(1.0))
_POWER_SPREAD = ("", "power_mean", "power_std")
# Learned values: the low end of the spread, the center, and the high end; "" is 0.
_SPREADS = {
    "zscore": ("", "mean", "std"),
    "minmax": ("min", "min", "max"),
    "iq": ("q1", "q2", "q3"),
    "robust": ("q1", "q2", "q3"),
    "yeo_johnson": _POWER_SPREAD,
    "box_cox": _POWER_SPREAD,
}
LINEAR_NORMALIZATIONS = ("zscore", "minmax", "iq")  # these only subtract a center and multiply by a scale
_LOWER_BOUNDS = {
    "log1p": (-1.0, "log1p", "another normalization"),
    "box_cox": (0.0, "Box-Cox transform", '"yeo_johnson"'),
}
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


def center_and_scale(normalization: str | None, learned: LearnedValues) -> tuple[float, float]:
    """Return the center to subtract from numbers, and the scale to multiply by: 0 for a constant column.

    Both apply after a power transform. For other normalizations, and without a learned center, they are 0 and 1.
    """
    first, middle, last = _SPREADS.get(normalization or "", _POWER_SPREAD)
    center = learned.get(middle)
    if normalization not in _SPREADS or center is None:
        return 0.0, 1.0
    low, high = learned.get(first) if first else 0.0, learned.get(last)
    if low is None or high is None:
        raise ValueError(f'a number that "{normalization}" needs was not learned')
    spread = high - low
    if normalization == "robust" and spread == 0.0:
        spread = learned["max"] / 2 - learned["min"] / 2
    if spread == math.inf:  # high - low may overflow
        return center, 0.5 / (high / 2 - low / 2)
    # The inverse of a subnormal spread may be infinite: the column counts as constant.
    return center, 1.0 / spread if spread >= _TINY else 0.0


def scale_without_overflow(values: Any, center: float, scale: float) -> Any:
    """Return ``(values - center) * scale`` if the difference may overflow."""
    return (values / 2 - center / 2) * scale * 2


def check_domain(normalization: str | None, values: np.ndarray) -> None:
    """Raise RejectedValueError for a number outside the domain of a normalization, such as -1 for "log1p"."""
    if normalization in _LOWER_BOUNDS:
        bound, name, remedy = _LOWER_BOUNDS[normalization]
        outside = np.flatnonzero(values <= bound)
        if len(outside):
            raise RejectedValueError(
                f"{values[outside[0]]:g} has no {name}, which needs values above {bound:g}: use {remedy}"
            )


def normalize(values: np.ndarray, normalization: str | None, learned: LearnedValues) -> np.ndarray:
    """Return normalized numbers as float32, clipped to its finite range; NaN stays NaN."""
    check_domain(normalization, values)
    center, scale = center_and_scale(normalization, learned)
    if scale == 0.0:
        return np.where(np.isnan(values), values, 0.0).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # infinite results are clipped at the end
        values = _apply_nonlinear(values, normalization, learned)
        if (center, scale) != (0.0, 1.0):
            original, values = values, np.subtract(values, center)
            overflowed = None if abs(center) < _SAFE_CENTER else np.isinf(values)
            np.multiply(values, scale, out=values)
            if overflowed is not None and overflowed.any():
                values[overflowed] = scale_without_overflow(original[overflowed], center, scale)
        if normalization == "robust":
            values = np.clip(values, -_MAX_ROBUST_INPUT, _MAX_ROBUST_INPUT)  # else the square is infinite
            values = values / np.sqrt(1.0 + (values / _SMOOTH_LIMIT) ** 2)
    # Clipped before the cast, which would overflow.
    clipped: np.ndarray = np.maximum(np.minimum(values, MAX_FLOAT32), -MAX_FLOAT32).astype(np.float32)
    return clipped


def original_units(normalized_values: np.ndarray, normalization: str | None, learned: LearnedValues) -> np.ndarray:
    """Return the original numbers of normalized ones, in double precision; NaN and infinities stay the same."""
    values = np.asarray(normalized_values, np.float64)
    center, scale = center_and_scale(normalization, learned)
    if not scale:
        return np.where(np.isnan(values), values, center)
    # float32 is rounded, so the inverse of the largest double may overflow.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if normalization == "robust":
            limit = float(np.nextafter(np.float32(_SMOOTH_LIMIT), np.float32(0)))
            values = np.clip(values, -limit, limit)
            values = values / np.sqrt(1.0 - (values / _SMOOTH_LIMIT) ** 2)
        units = values / scale + center
        # The distance from the center may overflow although the number itself does not.
        units = np.where(np.isinf(units), (values / 2 / scale + center / 2) * 2, units)
        units = _invert_nonlinear(units, normalization, learned)
    return np.clip(units, -_MAX_DOUBLE, _MAX_DOUBLE, out=units, where=np.isfinite(values))


def _apply_nonlinear(values: np.ndarray, normalization: str | None, learned: LearnedValues) -> np.ndarray:
    """Apply the part of a normalization that is not linear: "log1p", a power or a quantile transform."""
    if normalization == "log1p":
        return np.asarray(np.log1p(values))
    if normalization in ("box_cox", "yeo_johnson") and learned.get("power") is not None:
        return power_transform(values, normalization, learned["power"])
    if normalization in ("quantile_normal", "quantile_uniform") and learned.get("quantiles") is not None:
        return _quantile_transform(values, np.array(learned["quantiles"]), is_normal=normalization == "quantile_normal")
    return values


def _invert_nonlinear(values: np.ndarray, normalization: str | None, learned: LearnedValues) -> np.ndarray:
    """Return the inverse of `_apply_nonlinear`."""
    if normalization == "log1p":
        return np.asarray(np.expm1(values))
    if normalization == "box_cox" and learned.get("power") is not None:
        return np.asarray(np.exp(_invert_power(values, learned["power"])))
    if normalization == "yeo_johnson" and learned.get("power") is not None:
        power, size = learned["power"], np.abs(values)
        magnitudes = np.expm1(np.where(values < 0, _invert_power(size, 2.0 - power), _invert_power(size, power)))
        return np.asarray(np.copysign(magnitudes, values))
    if normalization in ("quantile_normal", "quantile_uniform") and learned.get("quantiles") is not None:
        shares = normal_cdf(values) if normalization == "quantile_normal" else values
        # Ranks within the clipping margin of `_MIN_SHARE` are the minimum or the maximum.
        shares = np.where(shares < 1e-7, 0.0, np.where(shares > 1.0 - 1e-7, 1.0, shares))
        quantiles = learned["quantiles"]
        return _interpolate(shares, np.linspace(0.0, 1.0, len(quantiles)), np.array(quantiles))
    return values


def power_transform(values: np.ndarray, normalization: str, power: float) -> np.ndarray:
    """Return the Box-Cox or Yeo-Johnson transform of numbers with the parameter `power` (lambda)."""
    if normalization == "box_cox":
        return _apply_power(np.log(values), power)
    logarithms = np.log1p(np.abs(values))
    sizes = np.where(values < 0, _apply_power(logarithms, 2.0 - power), _apply_power(logarithms, power))
    return np.asarray(np.copysign(sizes, values))


def _apply_power(logarithms: np.ndarray, power: float) -> np.ndarray:
    return np.asarray(np.expm1(power * logarithms) / power) if power else logarithms


def _invert_power(values: np.ndarray, power: float) -> np.ndarray:
    return np.asarray(np.log1p(np.maximum(power * values, -1.0)) / power) if power else values


def _quantile_transform(values: np.ndarray, quantiles: np.ndarray, *, is_normal: bool) -> np.ndarray:
    """Return the share of training rows below each number, interpolated as in scikit-learn, or its normal score."""
    low, high = quantiles[0], quantiles[-1]
    if low == high:
        return np.zeros(len(values))
    references = np.linspace(0.0, 1.0, len(quantiles))
    # The mean of interpolations from both sides, which differ where quantiles are equal.
    above = _interpolate(values, quantiles, references)
    shares = 0.5 * (above - _interpolate(-values, -quantiles[::-1], -references[::-1]))
    shares = np.where(values >= high, 1.0, np.where(values <= low, 0.0, shares))
    return normal_ppf(np.clip(shares, _MIN_SHARE, 1.0 - _MIN_SHARE)) if is_normal else shares


def _interpolate(values: np.ndarray, points: np.ndarray, results: np.ndarray) -> np.ndarray:
    """Interpolate as `numpy.interp` does, also if the distance or slope between two points overflows."""
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
    """Return quantiles of the standard normal distribution at shares from 1e-10 to 1 - 1e-10."""
    centered = shares - 0.5
    root = np.sqrt(-np.log(np.minimum(shares, 1.0 - shares))) - 1.6
    tail = np.polyval(_TAIL[0], root) / np.polyval(_TAIL[1], root)
    square = 0.180625 - centered * centered
    middle = centered * np.polyval(_MIDDLE[0], square) / np.polyval(_MIDDLE[1], square)
    return np.where(np.abs(centered) <= 0.425, middle, np.copysign(tail, centered))


def normal_cdf(scores: np.ndarray) -> np.ndarray:
    """Return the share of the standard normal distribution below each score."""
    distance = np.abs(scores) / math.sqrt(2.0)
    step = 1.0 / (1.0 + 0.5 * distance)
    beyond = 0.5 * step * np.exp(-distance * distance + np.polyval(_ERFC, step))
    return np.asarray(np.where(scores > 0, 1.0 - beyond, beyond))


# -- bins


def bin_ids(values: np.ndarray, edges: Sequence[float] | None) -> np.ndarray:
    """Return the bin number of each value; values outside the edges are in the first or the last bin."""
    inner = np.array(edges or ())[1:-1]
    return np.searchsorted(inner, values, side="right").astype(smallest_uint(len(inner) + 1))


def bin_middles(edges: Sequence[float] | None) -> np.ndarray:
    """Return the midpoint of each bin; a single 0 if `edges` is None."""
    if edges is None:
        return np.zeros(1)
    ends = np.array(edges)
    return np.asarray(ends[:-1] / 2 + ends[1:] / 2)


def piecewise_bins(normalization: str | None, learned: LearnedValues) -> dict[str, np.ndarray]:
    """Return the parameters of `encode_piecewise`, from the learned bin edges.

    Arrays by bin: "start" (normalized), "scale" (the inverse width), and the bounds "low" and "high" of the result.
    Numbers are multiplied by "unit" first, which keeps distances within the range of float32.
    """
    edges = normalize(np.array(learned.get("edges") or (0.0, 0.0)), normalization, learned)
    widths = np.diff(edges.astype(np.float64))
    unit = np.float32(1.0 if np.abs(edges).max() < _SAFE_EDGE_FLOAT32 else 0.5)
    inverse = np.divide(1.0, widths, out=np.zeros(len(widths)), where=widths > 0)
    with np.errstate(over="ignore"):  # infinite scales are clipped
        scale = np.minimum(inverse.astype(np.float32) / unit, np.float32(MAX_FLOAT32))
    low, high = np.zeros(len(widths), np.float32), np.ones(len(widths), np.float32)
    low[0], high[-1] = -MAX_FLOAT32, MAX_FLOAT32
    return {"start": edges[:-1] * unit, "scale": scale, "low": low, "high": high, "unit": unit}


def encode_piecewise(column: Any, bins: Mapping[str, Any]) -> Any:
    """Return the share of each bin that is below each number: a piecewise linear encoding of shape (rows, bins).

    `column` has normalized numbers, as an array or tensor of shape (rows, 1); `bins` is from `piecewise_bins`.
    """
    with np.errstate(over="ignore"):  # infinite results are clipped
        return ((column * bins["unit"] - bins["start"]) * bins["scale"]).clip(bins["low"], bins["high"])
