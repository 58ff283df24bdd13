"""Rows of `Number`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from daskprep.serving.base import Arrays, RowEncoder, from_neighbours
from daskprep.serving.cells import NUMBERS, is_missing, number_of, text_of
from daskprep.serving.units import LINEAR, bin_ids, center_and_scale, in_pieces, normalized, pieces, scaled
from daskprep.serving.written import DOUBTFUL, match, number_written, style_of

_LARGEST = float(np.finfo(np.float32).max)
_NEIGHBOURS = {"ffill", "bfill"}


class NumberRows(RowEncoder):
    """Rows of `Number`."""

    def prepare(self) -> None:
        learned, params = self.learned, self.params
        self.normalization = params["normalization"]
        self.center, self.scale = center_and_scale(self.normalization, learned)
        self.mean, self.reach = 0.0, float("inf")
        if params["outlier_strategy"] is not None and learned["std"]:
            self.mean, self.reach = learned["mean"], params["outlier_threshold"] * learned["std"]
        self.outlier_fill = learned["outlier_fill_value"]
        written = learned.get("written")
        self.style = None if written is None else style_of(written)
        self.has_comma = self.style is not None and self.style.decimal == ","
        self.is_given = params.get("written") is not None
        self.looks_around = params["outlier_strategy"] in _NEIGHBOURS
        self.encoding = params.get("encoding")
        changes = self.encoding == "bins" or params.get("clip_quantiles") is not None
        self.is_linear = self.normalization in (None, *LINEAR) and not changes

    def read(self, cell: Any) -> float | None:
        number = number_of(cell)
        if self.style is None or (number is not None and not self.has_comma):
            return number
        if is_missing(cell) or isinstance(cell, NUMBERS):
            return number
        text = text_of(cell) or ""
        if number is not None and not self.is_given and match(DOUBTFUL, text.strip()) is None:
            return number
        found = number_written(text, self.style)
        return number if found is None and not self.is_given else found

    def is_outlier(self, value: float) -> bool:
        """Tell whether a value is too far from the mean."""
        return abs(value - self.mean) > self.reach

    def complete(self, values: list[Any]) -> list[Any]:
        strategies = self.params["missing_value_strategy"], self.params["outlier_strategy"]
        if not set(strategies) & _NEIGHBOURS:
            return values
        smooth = [None if value is None or self.is_outlier(value) else value for value in values]
        around = [from_neighbours(smooth, one) if one in _NEIGHBOURS else values for one in strategies]
        return [
            of_gap if value is None else of_outlier if kept is None else value
            for value, kept, of_gap, of_outlier in zip(values, smooth, *around, strict=True)
        ]

    def arrays(self, values: Sequence[float]) -> Arrays:
        if self.outlier_fill is not None:
            values = [self.outlier_fill if self.is_outlier(value) else value for value in values]
        if not self.is_linear:
            return {"": self._array(np.array(values, np.float64))}
        center, scale = self.center, self.scale
        if not scale:
            return {"": np.array([0.0 if value == value else value for value in values], np.float32)}  # noqa: PLR0124
        narrow = [  # NaN stays so
            max(-_LARGEST, min(_LARGEST, scaled(value, center, scale)))
            if abs(one := (value - center) * scale) > _LARGEST
            else one
            for value in values
        ]
        return {"": np.array(narrow, np.float32)}

    def _array(self, values: np.ndarray) -> np.ndarray:
        if self.params.get("clip_quantiles") is not None and self.learned["min"] is not None:
            values = np.clip(values, self.learned["min"], self.learned["max"])
        if self.encoding == "bins":
            return bin_ids(values, self.learned.get("edges"))
        return normalized(values, self.normalization, self.learned)

    def expand(self, encoded: np.ndarray) -> np.ndarray:
        if self.encoding != "piecewise_linear":
            return super().expand(encoded)
        expanded: np.ndarray = in_pieces(encoded[:, None], pieces(self.normalization, self.learned))
        return expanded
