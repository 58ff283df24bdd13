"""From values and how often each was seen to bins that tell something, with edges at which something can be written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from daskprep.display.words import number, share
from daskprep.report.charts import Histogram
from daskprep.summaries import Quantiles

Values = tuple[np.ndarray, np.ndarray]

_BINS = 40
_MOST_STEPS = 4_000  # between the smallest and the largest value: what is finer is no grid
_FINEST = 1e-9
_FAR_EXPONENT = 960  # of two: sums and gaps of smaller numbers are doubles
_FAR = 4.0  # times the width of the middle 99 %
_MIDDLE = (0.005, 0.995)
_TICKS = 4
_FAR_NUMBER = 1e15
_YEARS = (1500, 2200)
_DECADES, _SKEWED = 100, 8  # of the middle 99 %: from which on an axis is logarithmic
_LABELS = 4
_DAY_LIMIT, _MONTH_LIMIT = 62, 1_860  # days that are shown day by day, and month by month


class _Axis(NamedTuple):
    """Edges of bins, and how many values lie below and above all of them."""

    edges: np.ndarray
    below: int
    above: int


def nice_ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Return a few round numbers within a range, whole ones if asked for.

    >>> nice_ticks(0.0, 97.0), nice_ticks(-0.31, 0.42), nice_ticks(0.5, 9.5, whole=True)
    ([0.0, 25.0, 50.0, 75.0], [-0.2, 0.0, 0.2, 0.4], [2.0, 4.0, 6.0, 8.0])
    """
    if not high > low:
        return [low]
    step = 10.0 ** math.floor(math.log10((high - low) / _TICKS))
    step = max(step, 1.0) if whole else step
    factors = (1, 2, 5, 10, 20) if whole and step == 1 else (1, 2, 2.5, 5, 10, 20)
    step *= next(factor for factor in factors if (high - low) / (step * factor) <= _TICKS + whole)
    ticks = step * np.arange(math.ceil(low / step), math.floor(high / step) + 1)
    # Multiples of a tenth are none of a power of two.
    return [round(float(tick), 12 - math.floor(math.log10(step))) for tick in ticks]


def writing_of(values: Sequence[np.ndarray]) -> tuple[Callable[[float], str], bool]:
    """Return what writes some numbers without noise, years without commas, and whether all are whole."""
    every = np.concatenate([[], *values])
    low, high = (float(every.min()), float(every.max())) if len(every) else (0.0, 0.0)
    spread = max(high, 0) - min(low, 0)
    if not 1 / _FAR_NUMBER < spread < _FAR_NUMBER:
        return number, False
    # Numbers that were normalized have the noise of single precision.
    digits = max(0, 6 - math.ceil(math.log10(spread)))
    is_whole = bool(np.array_equal(np.round(every, digits), np.rint(every)))

    def text(value: float) -> str:
        written = number(round(value, digits) + 0.0)
        return written.replace(",", "") if is_whole and low >= _YEARS[0] and high <= _YEARS[1] else written

    return text, is_whole


def by_number(title: str, spreads: Mapping[str, tuple[Values, Quantiles]], center: float) -> Histogram:
    """Return the histogram of numbers that lie around a center; its axis is logarithmic where they are very skewed."""
    unit = _unit_of([np.array([center]), *(values for (values, _), _ in spreads.values())])
    if not unit and (drawn := _by_logarithm(title, spreads, center)):
        return drawn
    values = {split: (np.ldexp(one, -unit), counts) for split, ((one, counts), _) in spreads.items()}
    axis = _choose(values, _middle(_sum(spreads), unit), math.ldexp(center, -unit))
    edges = axis.edges + math.ldexp(center, -unit)
    text, is_whole = writing_of([] if unit else [one + center for one, _ in values.values()])
    ticks = nice_ticks(float(edges[0]), float(edges[-1]), whole=is_whole)
    return Histogram(
        title=title,
        note=_outside(axis, sum(int(counts.sum()) for _, counts in values.values())),
        edges=edges,
        counts={split: _binned(one, axis.edges) for split, one in values.items()},
        totals={split: int(counts.sum()) for split, (_, counts) in values.items()},
        ticks=[(tick, text(_in_doubles(tick, unit))) for tick in ticks],
        names=_names([_in_doubles(edge, unit) for edge in edges.tolist()], text, is_whole=is_whole),
    )


def _names(edges: Sequence[float], text: Callable[[float], str], *, is_whole: bool) -> list[str]:
    """Return what lies between edges; between those of whole numbers, only these."""
    if not is_whole:
        return [f"{low} to {high}" for low, high in pairwise(map(text, edges))]
    bins = [(math.ceil(low), math.ceil(high) - 1) for low, high in pairwise(edges)]
    return [text(low) + (f" to {text(high)}" if high > low else "") for low, high in bins]


def _by_logarithm(title: str, spreads: Mapping[str, tuple[Values, Quantiles]], center: float) -> Histogram | None:
    """Return the histogram on a logarithmic axis, or None where a plain one shows as much."""
    values = {split: (one + center, counts) for split, ((one, counts), _) in spreads.items()}
    every = np.concatenate([one for one, _ in values.values()])
    noise = 1e-6 * float(np.abs(every).max(initial=0))
    if not noise or noise > _FAR_NUMBER or every.min() < -noise:
        return None
    weights = np.concatenate([counts for _, counts in values.values()])[every > noise]
    places = np.argsort(every := every[every > noise])
    running = np.cumsum(weights[places])
    ranks = np.searchsorted(running, [part * running[-1] for part in (_MIDDLE[0], 0.5, _MIDDLE[1])])
    low, middle, high = every[places][ranks].tolist()
    if high < _DECADES * low or high - middle < _SKEWED * (middle - low):
        return None
    first, last = math.log10(low), math.log10(high)
    edges = np.linspace(first, last + (last - first) * 1e-9, _BINS + 1)
    logarithms = {split: (np.log10(np.maximum(one, noise / 2)), amounts) for split, (one, amounts) in values.items()}
    counts = {split: _binned(one, edges) for split, one in logarithms.items()}
    totals = {split: int(amounts.sum()) for split, (_, amounts) in values.items()}
    left = sum(totals.values()) - sum(int(one.sum()) for one in counts.values())
    marks = [float(f"{factor}e{power}") for power in range(math.floor(first), math.ceil(last)) for factor in (1, 3)]
    inside = [mark for mark in marks if low <= mark <= high]
    every_few = -(-len(inside) // (_TICKS + 1))
    note = "The axis is logarithmic."
    if left:
        note += f" Values that are 0 or far outside are not drawn: {left:,} ({share(left, sum(totals.values()))})."
    return Histogram(
        title=title,
        note=note,
        edges=edges,
        counts=counts,
        totals=totals,
        ticks=[(math.log10(mark), number(mark)) for mark in inside[::every_few]],
        names=[f"{number(10**left)} to {number(10**right)}" for left, right in pairwise(edges.tolist())],
    )


def _unit_of(values: Sequence[np.ndarray]) -> int:
    """Return the power of two in whose multiples values are placed: 0, but where doubles end and gaps overflow."""
    peak = max((float(np.abs(one[[0, -1]]).max()) for one in values if len(one)), default=0.0)
    exponent = math.frexp(peak)[1]
    return exponent if abs(exponent) > _FAR_EXPONENT else 0


def _in_doubles(place: float, unit: int) -> float:
    """Return the value at a place, the last double where an edge lies behind it."""
    largest = math.ldexp(np.finfo(np.float64).max, -unit) if unit > 0 else math.inf
    return math.ldexp(min(max(place, -largest), largest), unit)


def by_length(title: str, lengths: Mapping[str, np.ndarray]) -> Histogram:
    """Return the histogram of the lengths of rows, of which index by index was counted how many there are."""
    longest = max(len(counts) for counts in lengths.values()) - 1
    width = -(-(longest + 1) // _BINS)
    edges = np.arange(0, longest + 1 + width, width) - 0.5
    steps = np.arange(longest + 1, dtype=np.float64)
    first = (edges[:-1] + 0.5).astype(int)
    ticks = nice_ticks(0, longest, whole=True)
    return Histogram(
        title=title,
        edges=edges,
        counts={split: _binned((steps, counts), edges) for split, counts in lengths.items()},
        totals={split: int(counts.sum()) for split, counts in lengths.items()},
        ticks=[(tick, number(tick)) for tick in ticks],
        names=[f"{low}" if width == 1 else f"{low} to {low + width - 1}" for low in first],
    )


def by_class(
    title: str, counts: Mapping[str, np.ndarray], names: Sequence[str], every: int = 1, of: str = "row"
) -> Histogram:
    """Return upright bars for classes that have an order, every so many-th with its name below."""
    return Histogram(
        title=title,
        edges=np.arange(len(names) + 1) - 0.5,
        counts=counts,
        totals={split: int(one.sum()) for split, one in counts.items()},
        ticks=[(float(place), names[place]) for place in range(0, len(names), every)],
        names=names,
        of=of,
    )


def by_calendar(title: str, days: Mapping[str, tuple[Values, Quantiles]]) -> Histogram:
    """Return the histogram of days since 1970: by day, month or year, as their range asks for."""
    low, high = _range({split: values for split, (values, _) in days.items()}, _middle(_sum(days)))
    unit = "D" if high - low <= _DAY_LIMIT else "M" if high - low <= _MONTH_LIMIT else "Y"
    places = {split: (_in_unit(values[0], unit), values[1]) for split, (values, _) in days.items()}
    first, last = _in_unit(np.array([low, high]), unit).astype(int)
    width = max(1, -(-(last - first + 1) // (_MONTH_LIMIT // 30)))
    edges = np.arange(first, last + 1 + width, width)
    names = edges[:-1].astype(f"datetime64[{unit}]").astype(str).tolist()
    every = -(-len(names) // _LABELS)
    counted = {split: _binned(values, edges - 0.5) for split, values in places.items()}
    rows = {split: int(values[1].sum()) for split, (values, _) in days.items()}
    outside = sum(rows.values()) - sum(int(one.sum()) for one in counted.values())
    return Histogram(
        title=f"{title} by {({'D': 'day', 'M': 'month', 'Y': 'year'})[unit]}",
        note=f"{share(outside, sum(rows.values()))} of the rows lie outside." if outside else "",
        edges=edges - 0.5,
        counts=counted,
        totals=rows,
        ticks=[(float(edges[place]) + (width - 1) / 2, names[place]) for place in range(0, len(names), every)],
        names=names if width == 1 else [f"{name} and {width - 1} after it" for name in names],
    )


def _in_unit(days: np.ndarray, unit: str) -> np.ndarray:
    places: np.ndarray = np.rint(days).astype("datetime64[D]").astype(f"datetime64[{unit}]").astype(np.float64)
    return places


def _sum(spreads: Mapping[str, tuple[Values, Quantiles]]) -> Quantiles:
    return sum((quantiles for _, quantiles in spreads.values()), Quantiles())


def _middle(whole: Quantiles, unit: int = 0) -> tuple[float, float]:
    first, last = (math.ldexp(whole.quantile(fraction), -unit) for fraction in _MIDDLE)
    return first, last


def _range(values: Mapping[str, Values], middle: tuple[float, float]) -> tuple[float, float]:
    """Return from where to where values are shown: all, but for a few that lie far outside."""
    low = min(float(one[0]) for one, _ in values.values() if len(one))
    high = max(float(one[-1]) for one, _ in values.values() if len(one))
    first, last = middle
    width = last - first
    if width > 0 and high - low > _FAR * width:
        return max(low, first - width / 4), min(high, last + width / 4)
    return low, high


def _choose(values: Mapping[str, Values], middle: tuple[float, float], center: float) -> _Axis:
    low, high = _range(values, middle)
    every = np.concatenate([one for one, _ in values.values()])
    amounts = np.concatenate([counts for _, counts in values.values()])
    shown = np.unique(every[(every >= low) & (every <= high)])
    outside = int(amounts[every < low].sum()), int(amounts[every > high].sum())
    # Bins that are finer than doubles around the center are none.
    finest = _FINEST * max(abs(low + center), abs(high + center))
    if len(shown) < 2 or high - low < finest:
        half = max(0.5 if len(shown) < 2 else 0.0, finest)
        return _Axis(np.array([low - half, high + half]), *outside)
    # Prices in cents, rooms, years: where values lie on a grid, a bin holds as many places of it as its neighbours.
    span = float(shown[-1] - shown[0])
    steps = span / float(np.diff(shown).min())
    if steps > _MOST_STEPS:
        return _Axis(np.linspace(low, high, _BINS + 1), *outside)
    # The smallest gap is a little less than that of the grid, as float32 has its noise.
    gap, places = span / round(steps), round(steps) + 1
    together = math.ceil(places / _BINS)
    edges = shown[0] - gap / 2 + together * gap * np.arange(math.ceil(places / together) + 1)
    return _Axis(edges, *outside)


def _binned(values: Values, edges: np.ndarray) -> np.ndarray:
    return np.histogram(values[0], edges, weights=values[1])[0].astype(np.int64)


def _outside(axis: _Axis, total: int) -> str:
    parts = [(axis.below, "below"), (axis.above, "above")]
    said = [f"{amount:,} ({share(amount, total)}) {where}" for amount, where in parts if amount]
    return f"Values far outside are not drawn: {' and '.join(said)}." if said else ""
