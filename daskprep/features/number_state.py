"""Summary, fitted state and imputer of the feature type for numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from daskprep.features.base import Learned
from daskprep.features.notation import as_thousands, has_point_thousands, parse_strict_notation
from daskprep.features.parameters import CellKind
from daskprep.steps.numbers import derive_notation
from daskprep.summaries import Moments, Quantiles, Range, Summary, TokenCounts
from daskprep.summaries.target_sums import TargetSums


@dataclass(frozen=True)
class NumberSummary(Summary):
    """Statistics of the numbers of a column, before the notation of the column is learned.

    Attributes
    ----------
    moments, quantiles, counts, targets : Summary or None
        Statistics of plain numbers; None if no parameter needs them.
    range : Range
        Range of plain numbers.
    fractions : int
        How many plain numbers are not integers.
    beyond : int
        Number of values beyond float32 that are stored without normalization.
    written : TokenCounts
        Counts of texts that may be numbers in a notation other than the plain one.
    decimals, thousands : NumberSummary or None
        Ambiguous texts such as "1.234", summarized as 1.234 and as 1234.
    """

    moments: Moments | None
    range: Range
    quantiles: Quantiles | None
    counts: TokenCounts | None
    targets: TargetSums | None = None
    fractions: int = 0
    beyond: int = 0
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
    """Fitted state of a number column; a field is None if no parameter needs it.

    Attributes
    ----------
    written : str or None
        Example of the notation, such as "$1,234.5"; None if all numbers are plain.
    mean, std, q1, q2, q3 : float or None
        Mean, standard deviation and quartiles.
    min, max : float or None
        Range of the numbers, or the quantiles at which they are clipped.
    outlier_fill_value : float or None
        Value that replaces outliers.
    quantiles : tuple of float or None
        Reference quantiles of a quantile transform.
    power, power_mean, power_std : float or None
        Power of a power transform, and mean and standard deviation of the transformed numbers.
    edges : tuple of float or None
        Edges of the bins.
    cell_type : CellKind or None
        "integer" if all numbers are integers and the column has no float type.
    clipped : int or None
        Number of training rows that are stored as the largest float32.
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
    cell_type: CellKind | None = None
    clipped: int | None = None

    @property
    def num_embeddings(self) -> int:
        """Number of bins, 0 without bins."""
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
