"""What is known about a column, and about its rows by fold."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any, Generic

from daskprep.summaries.base import Summary, SummaryT, merged
from daskprep.summaries.rejects import Rejects
from daskprep.summaries.token_counts import TokenCounts, bounded_together, counts_without_each, few_in_memory


@dataclass(frozen=True)
class CellType(Summary):
    """The type of a column: "" if all cells are missing, "text" for types of which no value is restored.

    Where the order of values matters, it is the JSON of the values that the column declares in order.
    """

    name: str = ""

    def __add__(self, other: CellType) -> CellType:
        names = {self.name, other.name} - {""}
        if len(names) < 2:
            return CellType(*names)
        if names == {"decimal", "integer"}:
            return CellType("decimal")
        return CellType("float" if names <= {"decimal", "integer", "float", "float32"} else "text")

    def __mul__(self, times: int) -> CellType:
        return self


@dataclass(frozen=True)
class ColumnSummary(Summary, Generic[SummaryT]):
    """What is known about one column: rows, missing cells, unreadable cells and the feature's own summary.

    `missing` counts every cell that is null after parsing, so it includes the `rejects`. `cells` counts equal
    cells, where the most frequent one is asked for. `seen` counts the rows that `missing` is counted among.
    `cell_type` is the type of the source's column.
    """

    rows: int
    missing: int
    rejects: Rejects
    values: SummaryT
    cells: TokenCounts | None = None
    seen: int = 0
    cell_type: CellType | None = None


@dataclass(frozen=True)
class FoldedSummary(Summary):
    """The summaries of a column by fold of its rows; the last one is of what counts whichever fold is left out."""

    parts: tuple[ColumnSummary, ...]
    # The parts that each state is learned from; None: all parts but one.
    trained_on: tuple[tuple[int, ...], ...] | None = None

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    def __add__(self, other: FoldedSummary) -> FoldedSummary:
        return FoldedSummary(tuple(map(operator.add, self.parts, other.parts)), self.trained_on)

    def __mul__(self, times: int) -> FoldedSummary:
        return FoldedSummary(tuple(part * times for part in self.parts), self.trained_on)

    def bounded(self, folder: str | None) -> FoldedSummary:
        return FoldedSummary(tuple(_by_field(self.parts, folder, _bounded)), self.trained_on)

    def states(self, folder: str | None) -> Iterator[ColumnSummary]:
        """Yield the sum of all parts, then those that each fold trains on; the last part is in all of them."""
        if self.trained_on is None:
            return without_each(self.parts, folder)
        return _by_field(self.parts, folder, functools.partial(_chosen, self.trained_on))


def without_each(parts: Sequence[Any], folder: str | None) -> Iterator[Any]:
    """Yield the sum of all parts, then the sums without each of them but the last."""
    return _by_field(parts, folder, _without_each)


def _chosen(trained_on: Sequence[Sequence[int]], parts: Sequence[Any], folder: str | None) -> Iterator[Any]:
    parts = _bounded(parts, folder)
    for chosen in (range(len(parts) - 1), *trained_on):
        yield functools.reduce(merged, [parts[place] for place in (*chosen, -1)])


def _by_field(parts: Sequence[Any], folder: str | None, function: Callable[..., Iterable[Any]]) -> Iterator[Any]:
    """Give what a function makes of several summaries, applied to each field where that is how they merge."""
    kind = type(parts[0])
    names = [one.name for one in fields(kind)] if getattr(kind, "__add__", None) is Summary.__add__ else []
    if not names:
        return iter(function(parts, folder))
    made = (_by_field([getattr(part, name) for part in parts], folder, function) for name in names)
    return (kind(**dict(zip(names, values, strict=True))) for values in zip(*made, strict=True))


def _bounded(parts: Sequence[Any], folder: str | None) -> list[Any]:
    if isinstance(parts[0], TokenCounts):
        return bounded_together(parts, folder)
    return [part.bounded(folder) if isinstance(part, Summary) else part for part in parts]


def _without_each(parts: Sequence[Any], folder: str | None) -> Iterator[Any]:
    if isinstance(parts[0], TokenCounts) and few_in_memory(parts):
        yield from counts_without_each(parts)
    else:
        parts = _bounded(parts, folder)
        after = list(accumulate(reversed(parts), merged))[::-1]
        yield from after[:2]
        yield from map(merged, after[2:], accumulate(parts, merged))
