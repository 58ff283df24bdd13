"""Summaries of a column, of its unreadable cells, and of its rows by fold."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Generic

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.summaries.base import Summary, SummaryT, add_fields
from daskprep.columns.summaries.token_counts import (
    TokenCounts,
    fit_in_memory,
    leave_one_out_counts,
    limit_memory_together,
)
from daskprep.storage.checkpoint import field_names

MAX_SAMPLES = 5
MAX_SAMPLE_CHARACTERS = 200  # samples are shown in warnings and pickled with every summary, so long cells are truncated


@dataclass(frozen=True)
class CellType(Summary):
    """Type of a column's cells, "" if all are missing.

    "text" includes types that decoding does not restore. "untyped" is text of a file without types, whose cells may
    all be numbers or booleans. `name` may also be the JSON of a declared order of values, if their order matters.
    """

    name: str = ""

    def __add__(self, other: CellType) -> CellType:
        """Return the type that holds the cells of both."""
        names = {self.name, other.name} - {""}
        if len(names) < 2:
            return CellType(*names)
        if names == {"decimal", "integer"}:
            return CellType("decimal")
        return CellType("float" if names <= {"decimal", "integer", "float", "float32"} else "text")

    def __mul__(self, times: int) -> CellType:
        return self


@dataclass(frozen=True)
class Rejects(Summary):
    """Number of unreadable cells, and first five distinct ones."""

    count: int = 0
    samples: tuple[tuple[int, str], ...] = ()

    @classmethod
    def of(cls, rows: np.ndarray, values: pa.StringArray) -> Rejects:
        """Return the number of unreadable `values`, and up to `MAX_SAMPLES` distinct ones with their first rows.

        In order of rows; samples are cut to `MAX_SAMPLE_CHARACTERS`.
        """
        order = np.argsort(rows, kind="stable")
        texts = pc.utf8_slice_codeunits(values.take(pa.array(order)), 0, MAX_SAMPLE_CHARACTERS)
        # A dictionary lists its values in the order in which they first occur.
        first = texts.dictionary_encode().dictionary.slice(0, MAX_SAMPLES)
        samples = [(int(rows[order[texts.index(text).as_py()]]), text.as_py()) for text in first]
        return cls(len(rows), tuple(samples))

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(text for _, text in self.samples)

    def __mul__(self, times: int) -> Rejects:
        return Rejects(self.count * times, self.samples) if times else Rejects()

    def __add__(self, other: Rejects) -> Rejects:
        first: dict[str, int] = {}
        for row, text in sorted(self.samples + other.samples):
            first.setdefault(text, row)
        samples = sorted((row, text) for text, row in first.items())
        return Rejects(self.count + other.count, tuple(samples[:MAX_SAMPLES]))


@dataclass(frozen=True)
class ColumnSummary(Summary, Generic[SummaryT]):
    """Summary of one column, with the summary of its feature type."""

    rows: int  # that `values` summarizes
    missing: int  # cells that are null after parsing, including unreadable ones
    rejects: Rejects
    values: SummaryT  # what the feature type learns from
    cells: TokenCounts | None = None  # counts of equal cells, if the most frequent one is needed
    seen: int = 0  # rows in which `missing` was counted
    cell_type: CellType | None = None


@dataclass(frozen=True)
class FoldedSummary(Summary):
    """Summaries of a column by the fold of its rows."""

    # One summary per fold, then one without rows, for counts that belong to every fold.
    parts: tuple[ColumnSummary, ...]
    trained_on: tuple[tuple[int, ...], ...] | None = None  # parts that each fold trains on; None: all parts but one

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    def __add__(self, other: FoldedSummary) -> FoldedSummary:
        return FoldedSummary(tuple(map(operator.add, self.parts, other.parts)), self.trained_on)

    def __mul__(self, times: int) -> FoldedSummary:
        return FoldedSummary(tuple(part * times for part in self.parts), self.trained_on)

    def limit_memory(self, folder: str | None) -> FoldedSummary:
        return FoldedSummary(tuple(_apply_by_field(self.parts, folder, _limit_memory)), self.trained_on)

    def sums_per_fold(self, folder: str | None) -> Iterator[ColumnSummary]:
        """Yield the sum of all parts, then of each fold."""
        if self.trained_on is None:
            return _apply_by_field(self.parts, folder, _leave_one_out_sums)
        return _apply_by_field(self.parts, folder, functools.partial(_sum_selected, self.trained_on))


def _sum_selected(trained_on: Sequence[Sequence[int]], parts: Sequence[Any], folder: str | None) -> Iterator[Any]:
    """Yield the sum of all parts, then of each selection with the last part, which is in all."""
    parts = _limit_memory(parts, folder)
    for selected in (range(len(parts) - 1), *trained_on):
        yield functools.reduce(add_fields, [parts[index] for index in (*selected, -1)])


def _apply_by_field(parts: Sequence[Any], folder: str | None, function: Callable[..., Iterable[Any]]) -> Iterator[Any]:
    """Apply a function to all summaries, or field by field, and yield summaries of the results."""
    kind = type(parts[0])
    names = field_names(kind) if getattr(kind, "__add__", None) is Summary.__add__ else ()
    if not names:
        return iter(function(parts, folder))
    results = (_apply_by_field([getattr(part, name) for part in parts], folder, function) for name in names)
    return (kind(**dict(zip(names, values, strict=True))) for values in zip(*results, strict=True))


def _limit_memory(parts: Sequence[Any], folder: str | None) -> list[Any]:
    if isinstance(parts[0], TokenCounts):
        return limit_memory_together(parts, folder)
    return [part.limit_memory(folder) if isinstance(part, Summary) else part for part in parts]


def _leave_one_out_sums(parts: Sequence[Any], folder: str | None) -> Iterator[Any]:
    """Yield the sum of all parts, then the sums without one part; the last is in all."""
    if isinstance(parts[0], TokenCounts) and fit_in_memory(parts):
        yield from leave_one_out_counts(parts)
    else:
        parts = _limit_memory(parts, folder)
        suffix_sums = list(accumulate(reversed(parts), add_fields))[::-1]
        yield from suffix_sums[:2]
        yield from map(add_fields, suffix_sums[2:], accumulate(parts, add_fields))
