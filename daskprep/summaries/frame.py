"""What is known about a column, and about all columns of a frame."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Generic

from daskprep.summaries.base import Summary, SummaryT
from daskprep.summaries.rejects import Rejects
from daskprep.summaries.token_counts import TokenCounts


@dataclass(frozen=True)
class ColumnSummary(Summary, Generic[SummaryT]):
    """What is known about one column: rows, missing cells, unreadable cells and the feature's own summary.

    `missing` counts every cell that is null after parsing, so it includes the `rejects`. `cells` counts equal
    cells, where the most frequent one is asked for. `seen` counts the rows that `missing` is counted among.
    """

    rows: int
    missing: int
    rejects: Rejects
    values: SummaryT
    cells: TokenCounts | None = None
    seen: int = 0


@dataclass(frozen=True)
class FoldedSummary(Summary):
    """The summaries of a column by fold of its rows; the last one is of what counts whichever fold is left out."""

    parts: tuple[ColumnSummary, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    def __add__(self, other: FoldedSummary) -> FoldedSummary:
        return FoldedSummary(tuple(map(operator.add, self.parts, other.parts)))

    def __mul__(self, times: int) -> FoldedSummary:
        return FoldedSummary(tuple(part * times for part in self.parts))

    def bounded(self, folder: str | None) -> FoldedSummary:
        return FoldedSummary(tuple(part.bounded(folder) for part in self.parts))

    def merged(self) -> Iterator[ColumnSummary]:
        """Give the summary of all folds, then those without each of them."""
        after = list(accumulate(reversed(self.parts), operator.add))[::-1]
        yield after[0]
        yield after[1]
        for before, rest in zip(accumulate(self.parts), after[2:], strict=False):
            yield before + rest


@dataclass(frozen=True)
class FrameSummary(Summary):
    """The summaries of all columns of a frame, merged key by key: of all by fold, or of none."""

    columns: dict[str, Any]  # ColumnSummary or FoldedSummary

    def __add__(self, other: FrameSummary) -> FrameSummary:
        if self.columns.keys() != other.columns.keys():
            odd = sorted(self.columns.keys() ^ other.columns.keys())
            raise ValueError(
                f"Cannot merge summaries of different columns: {odd} are on one side only. "
                "Summarize the same columns in every partition."
            )
        return FrameSummary({name: column + other.columns[name] for name, column in self.columns.items()})

    def __mul__(self, times: int) -> FrameSummary:
        return FrameSummary({name: column * times for name, column in self.columns.items()})

    def bounded(self, folder: str | None) -> FrameSummary:
        return FrameSummary({name: column.bounded(folder) for name, column in self.columns.items()})
