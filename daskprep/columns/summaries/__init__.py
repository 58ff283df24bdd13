"""Summaries of columns that merge to the same result in any order and any grouping.

In: the parsed cells of one column and partition. Out: counts, moments, quantiles, samples and sums by target, from
which a feature learns. None of them refers to a feature or a frame.
"""

from __future__ import annotations

from daskprep.columns.summaries.base import Summary
from daskprep.columns.summaries.column_summary import CellType, ColumnSummary, FoldedSummary, Rejects
from daskprep.columns.summaries.moments import Moments, WeightedMoments
from daskprep.columns.summaries.quantiles import Lengths, Quantiles, Range
from daskprep.columns.summaries.samples import DistinctTexts, DistinctValues, FileSample, SampledFile
from daskprep.columns.summaries.token_counts import TokenCounts
