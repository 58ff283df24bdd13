"""Parameters, outliers and encodings of `Number`, and its row encoder."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from daskprep.steps.base import NEIGHBOUR_STRATEGIES, Arrays, RowEncoder, fill_from_neighbours, smallest_uint
from daskprep.steps.cells import NUMBER_TYPES, is_missing, number_of, text_of
from daskprep.steps.normalization import MAX_FLOAT32, NORMALIZATIONS, Normalization
from daskprep.steps.notation import AMBIGUOUS, derive_notation, full_match, parse_number
from daskprep.steps.parameters import Count, NonNegative, Parameters

_SAFE_EDGE_FLOAT32 = 2.0**103  # subtracting less than this from a float32 cannot overflow

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


class Outliers:
    """Numbers that are further than `outlier_threshold` standard deviations from the mean."""

    def __init__(self, params: NumberParameters, learned: Mapping[str, Any]) -> None:
        self.mean, self.max_distance = 0.0, math.inf
        if params.outlier_strategy is not None and learned["std"]:
            self.mean, self.max_distance = learned["mean"], params.outlier_threshold * learned["std"]

    def contain(self, values: Any) -> Any:
        """Return whether a number is an outlier, or a mask of an array."""
        return abs(values - self.mean) > self.max_distance


class Values:
    """Encoding of numbers as normalized values, clipped to the learned quantiles if `clip_quantiles` is set."""

    def __init__(self, params: NumberParameters, learned: Mapping[str, Any]) -> None:
        self.normalizer = NORMALIZATIONS[params.normalization](learned)
        self.edges: Sequence[float] | None = learned.get("edges")
        clips = params.clip_quantiles is not None and learned["min"] is not None
        self._ends = (learned["min"], learned["max"]) if clips else None

    def encode(self, values: np.ndarray) -> np.ndarray:
        return self.normalizer.transform(self._clip(values))

    def decode(self, encoded: np.ndarray) -> np.ndarray:
        return self.normalizer.inverse_transform(encoded)

    def expand(self, batch: Any) -> Any:
        """Return a batch, an array or a tensor, as a model receives it."""
        return batch

    def _clip(self, values: np.ndarray) -> np.ndarray:
        return values if self._ends is None else np.clip(values, *self._ends)


class Bins(Values):
    """Encoding of numbers as ids of bins; numbers outside the edges are in the first or the last bin."""

    def encode(self, values: np.ndarray) -> np.ndarray:
        inner = np.array(self.edges or ())[1:-1]
        return np.searchsorted(inner, self._clip(values), side="right").astype(smallest_uint(len(inner) + 1))

    def decode(self, encoded: np.ndarray) -> np.ndarray:
        return bin_middles(self.edges).take(encoded)

    def expand(self, batch: Any) -> Any:
        return batch.astype(np.int64) if isinstance(batch, np.ndarray) else batch.long()


class PiecewiseLinear(Values):
    """Encoding of numbers as normalized values, which batches expand to the share of each bin below the number."""

    def expand(self, batch: Any) -> Any:
        """Return a (rows, bins) table with the share of each bin below the number, of the type of `batch`."""
        start, scale, low, high, unit = (
            self._bins if isinstance(batch, np.ndarray) else map(batch.new_tensor, self._bins)
        )
        with np.errstate(over="ignore"):  # infinite results are clipped
            return ((batch[:, None] * unit - start) * scale).clip(low, high)

    @functools.cached_property
    def _bins(self) -> tuple[np.ndarray, ...]:
        """Start and inverse width of each bin, bounds of the results, and a factor of numbers against overflows."""
        edges = self.normalizer.transform(np.array(self.edges or (0.0, 0.0)))
        widths = np.diff(edges.astype(np.float64))
        unit = np.float32(1.0 if np.abs(edges).max() < _SAFE_EDGE_FLOAT32 else 0.5)
        inverse = np.divide(1.0, widths, out=np.zeros(len(widths)), where=widths > 0)
        with np.errstate(over="ignore"):  # infinite scales are clipped
            scale = np.minimum(inverse.astype(np.float32) / unit, np.float32(MAX_FLOAT32))
        low, high = np.zeros(len(widths), np.float32), np.ones(len(widths), np.float32)
        low[0], high[-1] = -MAX_FLOAT32, MAX_FLOAT32
        return edges[:-1] * unit, scale, low, high, np.asarray(unit)


def bin_middles(edges: Sequence[float] | None) -> np.ndarray:
    """Return the midpoint of each bin; a single 0 if `edges` is None."""
    if edges is None:
        return np.zeros(1)
    ends = np.array(edges)
    return np.asarray(ends[:-1] / 2 + ends[1:] / 2)


ENCODINGS: dict[str | None, type[Values]] = {None: Values, "bins": Bins, "piecewise_linear": PiecewiseLinear}


class NumberRowEncoder(RowEncoder):
    """Row encoder of `Number`."""

    def prepare(self) -> None:
        """Set outliers, encoding and notation; `transform` is a faster encoder for numbers that are only normalized."""
        learned, params = self.learned, self.params
        self.outliers, self.encoding = Outliers(params, learned), ENCODINGS[params.encoding](params, learned)
        self.outlier_fill = learned["outlier_fill_value"]
        example = learned.get("written")
        self.notation = None if example is None else derive_notation(example)
        self.has_comma = self.notation is not None and self.notation.decimal == ","
        self.is_notation_set = params.written is not None
        self.uses_neighbours = params.outlier_strategy in NEIGHBOUR_STRATEGIES
        is_normalized_only = params.encoding != "bins" and params.clip_quantiles is None
        self.transform = self.encoding.normalizer.transform_list if is_normalized_only else None

    def read(self, cell: Any) -> float | None:
        """Return the number of a cell, plain or in the learned notation; None if it is missing or unreadable."""
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

    def apply_neighbours(self, values: list[Any]) -> list[Any]:
        """Return values with missing ones and outliers replaced by neighbors, each by its own strategy."""
        strategies = self.params.missing_value_strategy, self.params.outlier_strategy
        if not set(strategies) & set(NEIGHBOUR_STRATEGIES):
            return values
        without_outliers = [None if value is None or self.outliers.contain(value) else value for value in values]
        filled = [
            fill_from_neighbours(without_outliers, strategy) if strategy in NEIGHBOUR_STRATEGIES else values
            for strategy in strategies
        ]
        return [
            missing_fill if value is None else outlier_fill if kept is None else value
            for value, kept, missing_fill, outlier_fill in zip(values, without_outliers, *filled, strict=True)
        ]

    def to_arrays(self, values: Sequence[float]) -> Arrays:
        """Return the encoded numbers, after outliers are replaced by their learned fill value if there is one."""
        if self.outlier_fill is not None:
            values = [self.outlier_fill if self.outliers.contain(value) else value for value in values]
        if self.transform is not None:
            return {"": self.transform(values)}
        return {"": self.encoding.encode(np.array(values, np.float64))}

    def expand(self, encoded: np.ndarray) -> np.ndarray:
        return np.asarray(self.encoding.expand(encoded))
