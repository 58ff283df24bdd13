"""Outliers of a column of numbers: their mask, and the imputer that replaces them from neighboring rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.features.missing import Border, NeighbourImputer
from daskprep.features.notation import make_parsed_cells
from daskprep.rows.numbers import NumberParameters, Outliers


def mask_outliers(params: NumberParameters, numbers: Any, learned: Any) -> np.ndarray | None:
    """Return a mask of outliers; None without threshold or state."""
    if learned is None or (outliers := Outliers(params, vars(learned))).max_distance == math.inf:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        mask: np.ndarray = outliers.contain(np.asarray(numbers))
    return mask


class NumberImputer(NeighbourImputer):
    """Imputer from neighbors, of missing cells and outliers."""

    def __init__(self, params: NumberParameters) -> None:
        self._params = params
        self._missing_imputer = NeighbourImputer.of(params.missing_value_strategy)
        self._outlier_imputer = NeighbourImputer.of(params.outlier_strategy)
        self.used_in_fit = self._missing_imputer is not None

    def _mask_outliers(self, parsed: pa.Array, learned: Any) -> pa.Array:
        mask = mask_outliers(self._params, parsed, learned)
        return parsed if mask is None else pc.if_else(pa.array(mask), pa.scalar(None, pa.float64()), parsed)

    def mask_replaced(self, parsed: pa.Array, learned: Any) -> np.ndarray | None:
        return mask_outliers(self._params, parsed, learned) if self._outlier_imputer is not None else None

    def find_border(self, parsed: pa.Array, learned: Any = None) -> Border:
        return Border.of(self._mask_outliers(parsed, learned))

    def compute_border_values(self, borders: Sequence[Border]) -> list[Any]:
        """Return, by partition, a pair of values: for missing cells, and for outliers."""
        no_values = [None] * len(borders)
        by_strategy = [
            no_values if imputer is None else imputer.compute_border_values(borders)
            for imputer in (self._missing_imputer, self._outlier_imputer)
        ]
        return list(zip(*by_strategy, strict=True))

    def complete(self, parsed: pa.Array, border_value: Any, learned: Any = None) -> pa.Array:
        """Fill missing cells and outliers from a pair of values."""
        border_value = border_value or (None, None)
        # Only partitions with ambiguous numbers or notations have the structs of `make_parsed_cells`.
        if any(isinstance(cell, dict) for cell in border_value):
            parsed = parsed if pa.types.is_struct(parsed.type) else make_parsed_cells(parsed)
        if pa.types.is_struct(parsed.type):
            border_value = [
                {"number": cell, "doubtful": False} if isinstance(cell, float) else cell for cell in border_value
            ]
        missing_fill, outlier_fill = border_value
        masked = self._mask_outliers(parsed, learned)
        filled = parsed
        if self._missing_imputer is not None:
            filled = self._missing_imputer.complete(masked, missing_fill)
            filled = filled if masked is parsed else pc.coalesce(parsed, filled)
        if masked is not parsed and self._outlier_imputer is not None:
            replacements = self._outlier_imputer.complete(masked, outlier_fill)
            outliers = pc.and_(parsed.is_valid(), masked.is_null())
            filled = pc.if_else(outliers, replacements, filled)
        return filled
