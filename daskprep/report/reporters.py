"""Charts and measures for each semantic type of a column."""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from daskprep.display.words import format_number, truncate
from daskprep.features.base import SemanticType
from daskprep.report import measures
from daskprep.report.axes import bin_classes, bin_dates, bin_lengths, bin_numbers, make_formatter
from daskprep.report.charts import Band, Bars, Chart, TableChart
from daskprep.report.measures import ClassTally, Column, DateTally, H3Tally, PositionSums, TokenTally
from daskprep.report.samples import sample_audio, sample_images
from daskprep.summaries import Quantiles

_MAX_BARS = 12
_MAX_POSITIONS = 512
_QUARTILES = ((0.0, "smallest"), (0.25, "first quarter"), (0.5, "median"), (0.75, "third quarter"), (1.0, "largest"))
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MAX_LABEL_CHARACTERS = 40
_LEADING_NUMBER = re.compile(r"-?\d[\d,]*(\.\d+)?")
_NATURAL_ORDERS = [
    *([one.lower() for one in names] for names in (calendar.day_name, calendar.day_abbr)),
    *([one.lower() for one in names] for names in (calendar.month_name, calendar.month_abbr)),
    *(text.split(",") for text in ("very low,low,medium,high,very high", "xxs,xs,s,m,l,xl,xxl")),
]

BySplit = Mapping[str, Any]


class ColumnReporter(NamedTuple):
    """Functions that report on columns of a semantic type.

    Attributes
    ----------
    charts : callable
        Returns the charts of a column from the results of `measure` by split. Without a measure, its second argument is
        the first split by name, from which it reads samples.
    measure : callable or None
        Returns a mergeable summary of rows of a column.
    """

    charts: Callable[[Column, BySplit], list[Chart]]
    measure: Callable[[Column, np.ndarray], Any] | None = None


def _show_numbers(column: Column, by_split: Mapping[str, Quantiles]) -> list[Chart]:
    format_number, _ = make_formatter([one.values() for one in by_split.values()])
    rows = [["", *by_split]]
    rows.append(["mean", *(format_number(measures.compute_mean(one)) for one in by_split.values())])
    for fraction, name in _QUARTILES:
        rows.append([name, *(format_number(one.quantile(fraction)) for one in by_split.values())])
    return [bin_numbers("Values", by_split), TableChart(title="Summary", rows=rows)]


def _show_classes(column: Column, by_split: Mapping[str, ClassTally]) -> list[Chart]:
    def decode_ids(ids: np.ndarray) -> list[str]:
        return _format_names(column.feature.decode(ids.astype(column.output.dtype), column.learned))

    return [_make_bars("Classes", {split: one.counts for split, one in by_split.items()}, decode_ids, "classes")]


def _show_tokens(
    column: Column,
    by_split: Mapping[str, TokenTally],
    title: str = "Distinct tokens of a row",
    *,
    share_of_rows: bool = False,
) -> list[Chart]:
    """Return the most frequent tokens and the lengths of rows; shares are of rows or of all tokens."""
    specials = column.vocabulary.specials
    hidden_ids = [one for one in (specials.padding_id, specials.start_id, specials.stop_id) if one is not None]
    counts = {split: one.counts.copy() for split, one in by_split.items()}
    for one in counts.values():
        one[hidden_ids] = 0
    totals = {split: int(one.lengths.sum()) for split, one in by_split.items()} if share_of_rows else None
    note = f"Shares are of {'the rows' if share_of_rows else 'all tokens'}."
    return [
        _make_bars("Tokens", counts, lambda ids: _format_names(column.vocabulary.decode(ids)), "tokens", totals, note),
        bin_lengths(title, {split: one.lengths for split, one in by_split.items()}),
    ]


def _show_dates(column: Column, by_split: Mapping[str, DateTally]) -> list[Chart]:
    charts = [
        bin_dates("Dates", {split: one.days for split, one in by_split.items()}),
        bin_classes("Days of the week", {split: one.weekdays for split, one in by_split.items()}, _WEEKDAYS),
    ]
    hours = {split: one.hours for split, one in by_split.items()}
    if np.count_nonzero(sum(hours.values())) > 1:
        charts.append(bin_classes("Hours", hours, [f"{hour}:00" for hour in range(24)], label_step=6))
    return list(charts)


def _show_h3_cells(column: Column, by_split: Mapping[str, H3Tally]) -> list[Chart]:
    resolutions = {split: one.resolutions for split, one in by_split.items()}
    cells = {split: one.base_cells for split, one in by_split.items()}
    return [
        _make_bars("Resolutions", resolutions, lambda ids: [f"resolution {one}" for one in ids], "resolutions"),
        _make_bars("Base cells", cells, lambda ids: [f"base cell {one}" for one in ids], "base cells"),
    ]


def _show_positions(column: Column, by_split: Mapping[str, PositionSums]) -> list[Chart]:
    first = next(iter(by_split.values()))
    rows = [["", *by_split]]
    rows.append(["smallest", *(format_number(one.range.min) for one in by_split.values())])
    rows.append(
        ["mean", *(format_number(float(one.means.mean())) if one.means.size else "" for one in by_split.values())]
    )
    rows.append(["largest", *(format_number(one.range.max) for one in by_split.values())])
    charts: list[Chart] = [TableChart(title="Summary", rows=rows)]
    if len(first.sums) > 1:
        band = Band(
            title="Mean by position",
            note="The band is one standard deviation of the first split to either side; padding is included.",
            positions=len(first.sums),
            means={split: _pool_means(one.means) for split, one in by_split.items()},
            low=_pool_means(first.means - first.deviations),
            high=_pool_means(first.means + first.deviations),
        )
        charts.insert(0, band)
    return charts


def _show_other(column: Column, by_split: BySplit) -> list[Chart]:
    if not isinstance(next(iter(by_split.values())), Quantiles):
        return _show_positions(column, by_split)
    spreads = {split: one for split, one in by_split.items() if len(one.keys)}
    return [bin_numbers("Values", spreads)] if spreads else []


REPORTERS: Mapping[SemanticType, ColumnReporter] = {
    "numbers": ColumnReporter(_show_numbers, measures.measure_numbers),
    "classes": ColumnReporter(_show_classes, measures.count_classes),
    "tokens": ColumnReporter(partial(_show_tokens, title="Tokens of a row"), measures.count_tokens),
    "sets": ColumnReporter(partial(_show_tokens, share_of_rows=True), measures.count_tokens),
    "bags": ColumnReporter(_show_tokens, measures.count_tokens),
    "series": ColumnReporter(_show_positions, measures.measure_positions),
    "dates": ColumnReporter(_show_dates, measures.count_dates),
    "places": ColumnReporter(_show_h3_cells, measures.count_h3_cells),
    "images": ColumnReporter(sample_images),
    "sounds": ColumnReporter(sample_audio),
    "others": ColumnReporter(_show_other, measures.measure_other),
}


def _make_bars(
    title: str,
    counts: Mapping[str, np.ndarray],
    name_ids: Callable[[np.ndarray], list[str]],
    noun: str,
    totals: Mapping[str, int] | None = None,
    note: str = "",
) -> Bars:
    """Return bars of the ids that are most frequent in the first split, and one bar for the sum of the rest.

    `counts` are by split and id, and `name_ids` returns the labels of ids. Shares are relative to `totals`, by default
    the sums of counts; with `totals`, the rest is only mentioned in the note.
    """
    # Splits may differ in the number of ids, because altered rows may contain ids beyond the vocabulary.
    max_length = max(map(len, counts.values()))
    counts = {split: np.pad(one, (0, max_length - len(one))) for split, one in counts.items()}
    total_counts = sum(counts.values(), np.int64(0))
    order = np.lexsort((-total_counts, -next(iter(counts.values()))))
    ids = order[: min(_MAX_BARS, int(np.count_nonzero(total_counts)))]
    if len(ids) == np.count_nonzero(total_counts):
        ids = ids[_sort_naturally(name_ids(ids))]
    labels = [truncate(name, _MAX_LABEL_CHARACTERS) for name in name_ids(ids)]
    shown = {split: one[ids].tolist() for split, one in counts.items()}
    others = int(np.count_nonzero(total_counts)) - len(ids)
    if others and totals is None:
        labels.append(f"{others:,} other {noun}")
        shown = {
            split: [*bar_counts, int(counts[split].sum()) - sum(bar_counts)] for split, bar_counts in shown.items()
        }
    elif others:
        note = f"{note} {others:,} other {noun} are not shown."
    sums = {split: int(one.sum()) for split, one in counts.items()} if totals is None else totals
    return Bars(title=title, note=note, labels=labels, counts=shown, totals=sums)


def _sort_naturally(names: Sequence[str]) -> list[int]:
    """Return the indices that sort names by number, day, month or size; the given order if a name has none."""
    indices = list(range(len(names)))
    numbers = [_LEADING_NUMBER.match(name) for name in names]
    if all(numbers):
        return sorted(indices, key=lambda index: float(numbers[index][0].replace(",", "")))  # type: ignore[index]
    for order in _NATURAL_ORDERS:
        if all(name.lower() in order for name in names):
            return sorted(indices, key=lambda index: order.index(names[index].lower()))
    return indices


def _format_names(names: pa.Array) -> list[str]:
    # Quotes show empty names and leading or trailing spaces.
    return [name if name and name == name.strip() else repr(name) for name in map(str, names.to_pylist())]


def _pool_means(numbers: np.ndarray) -> np.ndarray:
    """Return numbers by position, averaged over neighbors if there are more than `_MAX_POSITIONS`."""
    if len(numbers) <= _MAX_POSITIONS:
        return numbers
    starts = np.linspace(0, len(numbers), _MAX_POSITIONS, endpoint=False).astype(int)
    pooled: np.ndarray = np.add.reduceat(numbers, starts) / np.diff(starts, append=len(numbers))
    return pooled
