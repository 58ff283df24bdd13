"""Gaps and outliers of numbers that the rows around fill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.features.missing import Edge, Neighbours
from daskprep.features.written import as_cells

Outlying = Callable[[np.ndarray, Any], np.ndarray | None]
"""Tells which numbers are outliers, given what was learned; None of none."""


class NumbersAround(Neighbours):
    """Fills gaps, and puts neighbours in place of outliers, which fill nothing themselves."""

    def __init__(self, gaps: str | None, outliers: str | None, outlying: Outlying) -> None:
        self._gaps, self._outliers = Neighbours.of(gaps), Neighbours.of(outliers)
        self._outlying = outlying
        self.learns = self._gaps is not None

    def _smooth(self, parsed: pa.Array, learned: Any) -> pa.Array:
        if learned is None:  # when texts are not numbers yet
            return parsed
        outliers = self._outlying(parsed.to_numpy(zero_copy_only=False), learned)
        return parsed if outliers is None else pc.if_else(pa.array(outliers), pa.scalar(None, pa.float64()), parsed)

    def edge(self, parsed: pa.Array, learned: Any = None) -> Edge:
        return Edge.of(self._smooth(parsed, learned))

    def carries(self, edges: Sequence[Edge]) -> list[Any]:
        nothing = [None] * len(edges)
        told = [nothing if one is None else one.carries(edges) for one in (self._gaps, self._outliers)]
        return list(zip(*told, strict=True))

    def complete(self, parsed: pa.Array, carry: Any, learned: Any = None) -> pa.Array:
        carry = carry or (None, None)
        if any(isinstance(one, dict) for one in carry):  # numbers that may be others, as `as_cells` has them
            parsed = parsed if pa.types.is_struct(parsed.type) else as_cells(parsed)
        if pa.types.is_struct(parsed.type):
            carry = [{"number": one, "doubtful": False} if isinstance(one, float) else one for one in carry]
        of_gaps, of_outliers = carry
        smooth = self._smooth(parsed, learned)
        filled = parsed
        if self._gaps is not None:
            filled = self._gaps.complete(smooth, of_gaps)
            filled = filled if smooth is parsed else pc.coalesce(parsed, filled)
        if smooth is not parsed and self._outliers is not None:
            patch = self._outliers.complete(smooth, of_outliers)
            outliers = pc.and_(parsed.is_valid(), smooth.is_null())
            filled = pc.if_else(outliers, patch, filled)
        return filled
