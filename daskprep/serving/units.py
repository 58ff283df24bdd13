"""What normalizing does to numbers, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_TINY = float(np.finfo(np.float64).tiny)
_LARGEST = float(np.finfo(np.float64).max)


def center_and_scale(normalization: str | None, learned: Mapping[str, Any]) -> tuple[float, float]:
    """Return what is taken from numbers, and the factor by which the rest is multiplied; 0 for a constant column."""
    if normalization in (None, "log1p") or learned["mean"] is None:
        return 0.0, 1.0
    low, center, high = {
        "zscore": (0.0, learned["mean"], learned["std"]),
        "minmax": (learned["min"], learned["min"], learned["max"]),
        "iq": (learned["q1"], learned["q2"], learned["q3"]),
    }[normalization]
    spread = high - low
    # A spread whose inverse is no number, as of 1.7e308 and -1.7e308, is as good as none.
    return center, 1.0 / spread if _TINY <= spread < float("inf") else 0.0


def original_units(scaled: np.ndarray, normalization: str | None, learned: Mapping[str, Any]) -> np.ndarray:
    """Return normalized numbers as they were, in double precision; NaN and infinite ones stay so."""
    values = np.asarray(scaled, np.float64)
    center, scale = center_and_scale(normalization, learned)
    if not scale:
        return np.where(np.isnan(values), values, center)
    # float32 rounds: what was the largest double may come out as a little more.
    with np.errstate(over="ignore"):
        units: np.ndarray = np.expm1(values) if normalization == "log1p" else values / scale + center
    return np.clip(units, -_LARGEST, _LARGEST, out=units, where=np.isfinite(values))
