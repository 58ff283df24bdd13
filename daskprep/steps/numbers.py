"""Row encoder of `Number`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from daskprep.steps.base import NEIGHBOUR_STRATEGIES, Arrays, RowEncoder, fill_from_neighbours
from daskprep.steps.cells import NUMBER_TYPES, is_missing, number_of, text_of
from daskprep.steps.normalization import (
    LINEAR_NORMALIZATIONS,
    MAX_FLOAT32,
    bin_ids,
    center_and_scale,
    encode_piecewise,
    normalize,
    piecewise_bins,
    scale_without_overflow,
)
from daskprep.steps.notation import AMBIGUOUS, derive_notation, full_match, parse_number
from daskprep.steps.parameters import Count, NonNegative, Parameters

Normalization = Literal[
    "zscore", "minmax", "log1p", "iq", "robust", "quantile_normal", "quantile_uniform", "yeo_johnson", "box_cox"
]
BinStrategy = Literal["quantile", "uniform", "target"]
OutlierStrategy = Literal["fill_with_const", "fill_with_mean", "fill_with_mode", "bfill", "ffill", "drop_row"]
MissingStrategy = OutlierStrategy | Literal["fill_with_median", "keep"]


@dataclass(kw_only=True, eq=False, repr=False)
class NumberParameters(Parameters):
    """Parameters of `Number`."""

    normalization: Normalization | None = "zscore"
    clip_quantiles: Sequence[float] | None = None
    encoding: Literal["bins", "piecewise_linear"] | None = None
    bins: Count | Sequence[float] = 48
    bin_strategy: BinStrategy = "quantile"
    target: str | None = None
    target_type: Literal["number", "class"] = "number"
    outlier_strategy: OutlierStrategy | None = None
    outlier_threshold: NonNegative = 3.0
    missing_value_strategy: MissingStrategy = "fill_with_mean"
    fill_value: float | None = 0.0
    null_values: list[str] | None = None
    written: str | None = None

    def _normalize(self, values: np.ndarray, learned: Mapping[str, Any]) -> np.ndarray:
        """Return encoded numbers: clipped, then replaced by bin indices or normalized."""
        if self.clip_quantiles is not None and learned["min"] is not None:
            values = np.clip(values, learned["min"], learned["max"])
        if self.encoding == "bins":
            return bin_ids(values, learned.get("edges"))
        return normalize(values, self.normalization, learned)


class NumberRowEncoder(RowEncoder):
    """Row encoder of `Number`."""

    def prepare(self) -> None:
        learned, params = self.learned, self.params
        self.center, self.scale = center_and_scale(params.normalization, learned)
        self.mean, self.max_distance = 0.0, float("inf")
        if params.outlier_strategy is not None and learned["std"]:
            self.mean, self.max_distance = learned["mean"], params.outlier_threshold * learned["std"]
        self.outlier_fill = learned["outlier_fill_value"]
        example = learned.get("written")
        self.notation = None if example is None else derive_notation(example)
        self.has_comma = self.notation is not None and self.notation.decimal == ","
        self.is_notation_set = params.written is not None
        self.uses_neighbours = params.outlier_strategy in NEIGHBOUR_STRATEGIES
        is_nonlinear = params.encoding == "bins" or params.clip_quantiles is not None
        self.is_linear = params.normalization in (None, *LINEAR_NORMALIZATIONS) and not is_nonlinear

    def read(self, cell: Any) -> float | None:
        number = number_of(cell)
        if self.notation is None or (number is not None and not self.has_comma):
            return number
        if is_missing(cell) or isinstance(cell, NUMBER_TYPES):
            return number
        text = text_of(cell) or ""
        if number is not None and not self.is_notation_set and full_match(AMBIGUOUS, text.strip()) is None:
            return number
        parsed = parse_number(text, self.notation)
        return number if parsed is None and not self.is_notation_set else parsed

    def is_outlier(self, value: float) -> bool:
        """Return whether a value is farther from the mean than `outlier_threshold` standard deviations."""
        return abs(value - self.mean) > self.max_distance

    def apply_neighbours(self, values: list[Any]) -> list[Any]:
        strategies = self.params.missing_value_strategy, self.params.outlier_strategy
        if not set(strategies) & set(NEIGHBOUR_STRATEGIES):
            return values
        without_outliers = [None if value is None or self.is_outlier(value) else value for value in values]
        filled = [
            fill_from_neighbours(without_outliers, strategy) if strategy in NEIGHBOUR_STRATEGIES else values
            for strategy in strategies
        ]
        return [
            missing_fill if value is None else outlier_fill if kept is None else value
            for value, kept, missing_fill, outlier_fill in zip(values, without_outliers, *filled, strict=True)
        ]

    def to_arrays(self, values: Sequence[float]) -> Arrays:
        if self.outlier_fill is not None:
            values = [self.outlier_fill if self.is_outlier(value) else value for value in values]
        if not self.is_linear:
            return {"": self.params._normalize(np.array(values, np.float64), self.learned)}
        center, scale = self.center, self.scale
        if not scale:
            return {"": np.array([0.0 if value == value else value for value in values], np.float32)}  # noqa: PLR0124
        clipped = [  # NaN stays NaN, since comparisons with it are False
            max(-MAX_FLOAT32, min(MAX_FLOAT32, scale_without_overflow(value, center, scale)))
            if abs(scaled := (value - center) * scale) > MAX_FLOAT32
            else scaled
            for value in values
        ]
        return {"": np.array(clipped, np.float32)}

    def expand(self, encoded: np.ndarray) -> np.ndarray:
        if self.params.encoding != "piecewise_linear":
            return super().expand(encoded)
        expanded: np.ndarray = encode_piecewise(
            encoded[:, None], piecewise_bins(self.params.normalization, self.learned)
        )
        return expanded
