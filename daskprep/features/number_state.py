"""What is summarized and learned of numbers, and what the rows around put in the place of gaps and outliers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.features.base import Learned
from daskprep.features.missing import Edge, Neighbours
from daskprep.features.parameters import CellKind
from daskprep.features.written import as_cells, as_thousands, thousands_have_points, written_numbers
from daskprep.serving.written import style_of
from daskprep.summaries import Moments, Quantiles, Range, Summary, TokenCounts
from daskprep.summaries.target_sums import TargetSums


@dataclass(frozen=True)
class NumberSummary(Summary):
    """Range of plain numbers; moments, quantiles, counts and sums of a target where a parameter needs them.

    `fractions` is above 0 if one of them is not whole. `written` counts the texts that may be other numbers: which
    they are, all of them tell together. So they do of texts such as "1.234", which `decimals` and `thousands` summarize
    as either; there, `fractions` counts those that are not whole as decimals.
    """

    moments: Moments | None
    range: Range
    quantiles: Quantiles | None
    counts: TokenCounts | None
    targets: TargetSums | None = None
    fractions: int = 0
    beyond: int = 0  # numbers that are stored as they are, which float32 cannot hold
    written: TokenCounts = field(default_factory=lambda: TokenCounts(pa.string()))
    decimals: NumberSummary | None = None
    thousands: NumberSummary | None = None

    @property
    def count(self) -> int:
        counted = self.moments or self.quantiles
        assert counted is not None
        return counted.count

    def mean(self) -> float:
        assert self.moments is not None
        return self.moments.mean()

    def median(self) -> float:
        assert self.quantiles is not None
        return self.quantiles.quantile(0.5)

    def mode(self) -> Any:
        assert self.counts is not None
        return self.counts.top()


@dataclass(frozen=True, kw_only=True)
class LearnedNumber(Learned):
    """What was learned of numbers, each None where no parameter asks for it.

    `written` is a number as those of the column are written, None if all are plain. `min` and `max` are the quantiles
    at which numbers are clipped, if they are. `quantiles` are those of a quantile transform, and `power` that of a
    power transform, with mean and deviation of what it gives. `edges` are those of bins.
    """

    later = ("written", "quantiles", "power", "power_mean", "power_std", "edges", "cell_type", "clipped")

    written: str | None = None
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    q1: float | None = None
    q2: float | None = None
    q3: float | None = None
    outlier_fill_value: float | None = None
    quantiles: tuple[float, ...] | None = None
    power: float | None = None
    power_mean: float | None = None
    power_std: float | None = None
    edges: tuple[float, ...] | None = None
    cell_type: CellKind | None = None  # "integer" if all numbers are whole, and the column is none of floats
    clipped: int | None = None  # numbers of training rows that became the largest float32

    @property
    def num_embeddings(self) -> int:
        """The number of bins, 0 if there are none."""
        return 0 if self.edges is None else len(self.edges) - 1

    def recognize(self, parsed: pa.Array) -> pa.Array:
        if not pa.types.is_struct(parsed.type):
            return parsed
        numbers, doubtful, texts = parsed.flatten()
        if self.written is None:
            return numbers
        style, cells = style_of(self.written), texts.dictionary_encode()
        if thousands_have_points(style):
            numbers = pc.if_else(doubtful, as_thousands(numbers), numbers)
        return pc.coalesce(numbers, written_numbers(cells.dictionary, style).take(cells.indices))


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
