"""What columns hold: what is counted of it, and which charts show it."""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from daskprep.display.words import cut, number
from daskprep.features.base import Holds
from daskprep.report import measures
from daskprep.report.axes import by_calendar, by_class, by_length, by_number, writing_of
from daskprep.report.charts import Band, Bars, Chart, ChartData
from daskprep.report.measures import ClassTally, Column, Dates, Places, Positions, Tokens
from daskprep.report.samples import sample_images, sample_sounds
from daskprep.summaries import Quantiles

_MOST_BARS = 12
_MOST_POSITIONS = 512
_QUARTILES = ((0.0, "smallest"), (0.25, "first quarter"), (0.5, "median"), (0.75, "third quarter"), (1.0, "largest"))
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_LABEL_CHARACTERS = 40
_LEADING_NUMBER = re.compile(r"-?\d[\d,]*(\.\d+)?")
_ORDERS = [
    *([one.lower() for one in names] for names in (calendar.day_name, calendar.day_abbr)),
    *([one.lower() for one in names] for names in (calendar.month_name, calendar.month_abbr)),
    *(text.split(",") for text in ("very low,low,medium,high,very high", "xxs,xs,s,m,l,xl,xxl")),
]

BySplit = Mapping[str, Any]


class Kind(NamedTuple):
    """What is done for columns of a kind.

    `charts` shows what `measure` counted of the rows of each split; without that, it reads a few rows of the first.
    """

    charts: Callable[[Column, BySplit], list[Chart]]
    measure: Callable[[Column, np.ndarray], Any] | None = None


def _show_numbers(column: Column, found: Mapping[str, Quantiles]) -> list[Chart]:
    text, _ = writing_of([one.values() for one in found.values()])
    rows = [["", *found]]
    rows.append(["mean", *(text(measures.mean_of(one)) for one in found.values())])
    for fraction, name in _QUARTILES:
        rows.append([name, *(text(one.quantile(fraction)) for one in found.values())])
    return [by_number("Values", found), ChartData(title="Summary", rows=rows)]


def _show_classes(column: Column, found: Mapping[str, ClassTally]) -> list[Chart]:
    def names(ids: np.ndarray) -> list[str]:
        return _shown(column.feature.decode(ids.astype(column.output.dtype), column.learned))

    return [_bars("Classes", {split: one.counts for split, one in found.items()}, names, "classes")]


def _show_tokens(
    column: Column, found: Mapping[str, Tokens], title: str = "Distinct tokens of a row", *, of_rows: bool = False
) -> list[Chart]:
    specials = column.vocabulary.specials
    silent = [one for one in (specials.padding_id, specials.start_id, specials.stop_id) if one is not None]
    counts = {split: one.counts.copy() for split, one in found.items()}
    for one in counts.values():
        one[silent] = 0
    totals = {split: int(one.lengths.sum()) for split, one in found.items()} if of_rows else None
    note = f"Shares are of {'the rows' if of_rows else 'all tokens'}."
    return [
        _bars("Tokens", counts, lambda ids: _shown(column.vocabulary.decode(ids)), "tokens", totals, note),
        by_length(title, {split: one.lengths for split, one in found.items()}),
    ]


def _show_dates(column: Column, found: Mapping[str, Dates]) -> list[Chart]:
    charts = [
        by_calendar("Dates", {split: one.days for split, one in found.items()}),
        by_class("Days of the week", {split: one.weekdays for split, one in found.items()}, _WEEKDAYS),
    ]
    hours = {split: one.hours for split, one in found.items()}
    if np.count_nonzero(sum(hours.values())) > 1:
        charts.append(by_class("Hours", hours, [f"{hour}:00" for hour in range(24)], every=6))
    return list(charts)


def _show_places(column: Column, found: Mapping[str, Places]) -> list[Chart]:
    resolutions = {split: one.resolutions for split, one in found.items()}
    cells = {split: one.base_cells for split, one in found.items()}
    return [
        _bars("Resolutions", resolutions, lambda ids: [f"resolution {one}" for one in ids], "resolutions"),
        _bars("Base cells", cells, lambda ids: [f"base cell {one}" for one in ids], "base cells"),
    ]


def _show_positions(column: Column, found: Mapping[str, Positions]) -> list[Chart]:
    first = next(iter(found.values()))
    rows = [["", *found]]
    rows.append(["smallest", *(number(one.range.min) for one in found.values())])
    rows.append(["mean", *(number(float(one.means.mean())) if one.means.size else "" for one in found.values())])
    rows.append(["largest", *(number(one.range.max) for one in found.values())])
    charts: list[Chart] = [ChartData(title="Summary", rows=rows)]
    if len(first.sums) > 1:
        band = Band(
            title="Mean by position",
            note="The band is one standard deviation of the first split to either side; padding counts as it is.",
            positions=len(first.sums),
            means={split: _pooled(one.means) for split, one in found.items()},
            low=_pooled(first.means - first.deviations),
            high=_pooled(first.means + first.deviations),
        )
        charts.insert(0, band)
    return charts


def _show_other(column: Column, found: BySplit) -> list[Chart]:
    if not isinstance(next(iter(found.values())), Quantiles):
        return _show_positions(column, found)
    spreads = {split: one for split, one in found.items() if len(one.keys)}
    return [by_number("Values", spreads)] if spreads else []


KINDS: Mapping[Holds, Kind] = {
    "numbers": Kind(_show_numbers, measures.of_numbers),
    "classes": Kind(_show_classes, measures.of_classes),
    "tokens": Kind(partial(_show_tokens, title="Tokens of a row"), measures.of_tokens),
    "sets": Kind(partial(_show_tokens, of_rows=True), measures.of_tokens),
    "bags": Kind(_show_tokens, measures.of_tokens),
    "series": Kind(_show_positions, measures.of_positions),
    "dates": Kind(_show_dates, measures.of_dates),
    "places": Kind(_show_places, measures.of_places),
    "images": Kind(sample_images),
    "sounds": Kind(sample_sounds),
    "others": Kind(_show_other, measures.of_other),
}


def _bars(
    title: str,
    counts: Mapping[str, np.ndarray],
    names: Callable[[np.ndarray], list[str]],
    noun: str,
    totals: Mapping[str, int] | None = None,
    note: str = "",
) -> Bars:
    """Return the most frequent of the first split, and below them how much the others are together."""
    # Rows that were altered may hold ids that no vocabulary has.
    most = max(map(len, counts.values()))
    counts = {split: np.pad(one, (0, most - len(one))) for split, one in counts.items()}
    every = sum(counts.values(), np.int64(0))
    order = np.lexsort((-every, -next(iter(counts.values()))))
    ids = order[: min(_MOST_BARS, int(np.count_nonzero(every)))]
    if len(ids) == np.count_nonzero(every):
        ids = ids[_natural_order(names(ids))]
    labels = [cut(name, _LABEL_CHARACTERS) for name in names(ids)]
    shown = {split: one[ids].tolist() for split, one in counts.items()}
    left = int(np.count_nonzero(every)) - len(ids)
    if left and totals is None:
        labels.append(f"{left:,} other {noun}")
        shown = {split: [*few, int(counts[split].sum()) - sum(few)] for split, few in shown.items()}
    elif left:
        note = f"{note} {left:,} other {noun} are not shown."
    sums = {split: int(one.sum()) for split, one in counts.items()} if totals is None else totals
    return Bars(title=title, note=note, labels=labels, counts=shown, totals=sums)


def _natural_order(names: Sequence[str]) -> list[int]:
    """Return the places of names in the order of their numbers, days, months or sizes, if all have one."""
    places = list(range(len(names)))
    numbers = [_LEADING_NUMBER.match(name) for name in names]
    if all(numbers):
        return sorted(places, key=lambda place: float(numbers[place][0].replace(",", "")))  # type: ignore[index]
    for known in _ORDERS:
        if all(name.lower() in known for name in names):
            return sorted(places, key=lambda place: known.index(names[place].lower()))
    return places


def _shown(names: pa.Array) -> list[str]:
    # What is empty or has blanks around it would not be seen.
    return [name if name and name == name.strip() else repr(name) for name in map(str, names.to_pylist())]


def _pooled(numbers: np.ndarray) -> np.ndarray:
    """Return means of neighbours, where there are more numbers than can be seen."""
    if len(numbers) <= _MOST_POSITIONS:
        return numbers
    starts = np.linspace(0, len(numbers), _MOST_POSITIONS, endpoint=False).astype(int)
    pooled: np.ndarray = np.add.reduceat(numbers, starts) / np.diff(starts, append=len(numbers))
    return pooled
