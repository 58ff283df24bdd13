"""What is summarized and learned of numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from daskprep.features.base import Learned
from daskprep.features.written import as_thousands, thousands_have_points, written_numbers
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

    later = ("written", "quantiles", "power", "power_mean", "power_std", "edges")

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
