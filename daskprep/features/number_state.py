"""What is summarized and learned of numbers, and what the rows around put in the place of gaps and outliers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.features.base import Learned
from daskprep.features.missing import Border, NeighbourImputer
from daskprep.features.notation import as_thousands, has_point_thousands, make_parsed_cells, parse_strict_notation
from daskprep.features.parameters import CellKind
from daskprep.serving.notation import derive_notation
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

    added_fields = ("written", "quantiles", "power", "power_mean", "power_std", "edges", "cell_type", "clipped")

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

    def mask_unlearned(self, parsed: pa.Array) -> pa.Array:
        if not pa.types.is_struct(parsed.type):
            return parsed
        numbers, ambiguous, texts = parsed.flatten()
        if self.written is None:
            return numbers
        notation, cells = derive_notation(self.written), texts.dictionary_encode()
        if has_point_thousands(notation):
            numbers = pc.if_else(ambiguous, as_thousands(numbers), numbers)
        return pc.coalesce(numbers, parse_strict_notation(cells.dictionary, notation).take(cells.indices))


OutlierDetector = Callable[[np.ndarray, Any], np.ndarray | None]
"""Tells which numbers are outliers, given what was learned; None of none."""


class NumberImputer(NeighbourImputer):
    """Fills gaps, and puts neighbours in place of outliers, which fill nothing themselves."""

    def __init__(
        self, gap_strategy: str | None, outlier_strategy: str | None, detect_outliers: OutlierDetector
    ) -> None:
        self._gap_imputer, self._outlier_imputer = (
            NeighbourImputer.of(gap_strategy),
            NeighbourImputer.of(outlier_strategy),
        )
        self._detect_outliers = detect_outliers
        self.used_in_fit = self._gap_imputer is not None

    def _mask_outliers(self, parsed: pa.Array, learned: Any) -> pa.Array:
        if learned is None:  # when texts are not numbers yet
            return parsed
        outliers = self._detect_outliers(parsed.to_numpy(zero_copy_only=False), learned)
        return parsed if outliers is None else pc.if_else(pa.array(outliers), pa.scalar(None, pa.float64()), parsed)

    def find_border(self, parsed: pa.Array, learned: Any = None) -> Border:
        return Border.of(self._mask_outliers(parsed, learned))

    def compute_border_values(self, borders: Sequence[Border]) -> list[Any]:
        no_values = [None] * len(borders)
        by_strategy = [
            no_values if one is None else one.compute_border_values(borders)
            for one in (self._gap_imputer, self._outlier_imputer)
        ]
        return list(zip(*by_strategy, strict=True))

    def complete(self, parsed: pa.Array, border_value: Any, learned: Any = None) -> pa.Array:
        border_value = border_value or (None, None)
        if any(
            isinstance(one, dict) for one in border_value
        ):  # numbers that may be others, as `make_parsed_cells` has them
            parsed = parsed if pa.types.is_struct(parsed.type) else make_parsed_cells(parsed)
        if pa.types.is_struct(parsed.type):
            border_value = [
                {"number": one, "doubtful": False} if isinstance(one, float) else one for one in border_value
            ]
        gap_fill, outlier_fill = border_value
        masked = self._mask_outliers(parsed, learned)
        filled = parsed
        if self._gap_imputer is not None:
            filled = self._gap_imputer.complete(masked, gap_fill)
            filled = filled if masked is parsed else pc.coalesce(parsed, filled)
        if masked is not parsed and self._outlier_imputer is not None:
            replacements = self._outlier_imputer.complete(masked, outlier_fill)
            outliers = pc.and_(parsed.is_valid(), masked.is_null())
            filled = pc.if_else(outliers, replacements, filled)
        return filled
