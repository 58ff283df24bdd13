"""Summaries of columns that merge to the same result in any order and any grouping."""

from __future__ import annotations

from daskprep.summaries.base import Summary
from daskprep.summaries.column_summary import CellType, ColumnSummary, FoldedSummary, Rejects
from daskprep.summaries.moments import Moments, WeightedMoments
from daskprep.summaries.quantiles import Lengths, Quantiles, Range
from daskprep.summaries.samples import DistinctTexts, DistinctValues, FileSample, SampledFile
from daskprep.summaries.token_counts import TokenCounts
