"""From values and how often each was seen to bins that tell something, with edges at which something can be written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

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


def by_number(title: str, spreads: Mapping[str, Quantiles], center: float) -> Histogram:
    """Return the histogram of numbers that lie around a center; its axis is logarithmic where they are very skewed."""
    values = {split: (one.values(), one.counts) for split, one in spreads.items()}
    unit = _unit_of([np.array([center]), *(one for one, _ in values.values())])
    if not unit and (drawn := _by_logarithm(title, values, center)):
        return drawn
    values = {split: (np.ldexp(one, -unit), counts) for split, (one, counts) in values.items()}
    every, amounts = _all(values)
    low, high = _range(values, _middle(spreads, unit))
    edges = _choose(every, low, high, math.ldexp(center, -unit))
    outside = [(amounts[every < low].sum(), "below"), (amounts[every > high].sum(), "above")]
    said = [f"{amount:,} ({share(amount, amounts.sum())}) {where}" for amount, where in outside if amount]
    moved = edges + math.ldexp(center, -unit)
    text, is_whole = writing_of([] if unit else [every + center])
    note = f"Values far outside are not drawn: {' and '.join(said)}." if said else ""
    marks = nice_ticks(float(moved[0]), float(moved[-1]), whole=is_whole)
    ticks = [(tick, text(_in_doubles(tick, unit))) for tick in marks]
    names = _names([_in_doubles(edge, unit) for edge in moved.tolist()], text, is_whole=is_whole)
    return _histogram(title, values, edges, moved, note=note, ticks=ticks, names=names)


def _histogram(
    title: str,
    values: Mapping[str, Values],
    edges: np.ndarray,
    drawn_at: np.ndarray | None = None,
    *,
    ticks: Sequence[tuple[float, str]],
    names: Sequence[str],
    note: str = "",
) -> Histogram:
    binned = {split: np.histogram(one, edges, weights=counts)[0] for split, (one, counts) in values.items()}
    return Histogram(
        title=title,
        note=note,
        edges=edges if drawn_at is None else drawn_at,
        counts={split: counts.astype(np.int64) for split, counts in binned.items()},
        totals={split: int(counts.sum()) for split, (_, counts) in values.items()},
        ticks=ticks,
        names=names,
    )


def _outside(chart: Histogram) -> tuple[int, str]:
    """Return how many rows no bin holds, and which share of all that is."""
    whole = sum(chart.totals.values())
    left = whole - sum(int(one.sum()) for one in chart.counts.values())
    return left, share(left, whole)


def _names(edges: Sequence[float], text: Callable[[float], str], *, is_whole: bool) -> list[str]:
    """Return what lies between edges; between those of whole numbers, only these."""
    if not is_whole:
        return [f"{low} to {high}" for low, high in pairwise(map(text, edges))]
    bins = [(math.ceil(low), math.ceil(high) - 1) for low, high in pairwise(edges)]
    return [text(low) + (f" to {text(high)}" if high > low else "") for low, high in bins]


def _by_logarithm(title: str, distances: Mapping[str, Values], center: float) -> Histogram | None:
    """Return the histogram on a logarithmic axis, or None where a plain one shows as much."""
    values = {split: (one + center, counts) for split, (one, counts) in distances.items()}
    every, weights = _all(values)
    noise = 1e-6 * float(np.abs(every).max(initial=0))
    if not noise or noise > _FAR_NUMBER or every.min() < -noise:
        return None
    weights, every = weights[every > noise], every[every > noise]
    places = np.argsort(every)
    running = np.cumsum(weights[places])
    ranks = np.searchsorted(running, [part * running[-1] for part in (_MIDDLE[0], 0.5, _MIDDLE[1])])
    low, middle, high = every[places][ranks].tolist()
    if high < _DECADES * low or high - middle < _SKEWED * (middle - low):
        return None
    first, last = math.log10(low), math.log10(high)
    edges = np.linspace(first, last + (last - first) * 1e-9, _BINS + 1)
    marks = [float(f"{factor}e{power}") for power in range(math.floor(first), math.ceil(last)) for factor in (1, 3)]
    inside = [mark for mark in marks if low <= mark <= high]
    chart = _histogram(
        title,
        {split: (np.log10(np.maximum(one, noise / 2)), amounts) for split, (one, amounts) in values.items()},
        edges,
        ticks=[(math.log10(mark), number(mark)) for mark in inside[:: -(-len(inside) // (_TICKS + 1))]],
        names=[f"{number(10**left)} to {number(10**right)}" for left, right in pairwise(edges.tolist())],
    )
    left, part = _outside(chart)
    more = f" Values that are 0 or far outside are not drawn: {left:,} ({part})." if left else ""
    return replace(chart, note=f"The axis is logarithmic.{more}")


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
    first = (edges[:-1] + 0.5).astype(int)
    return _histogram(
        title,
        {split: (np.arange(len(counts), dtype=np.float64), counts) for split, counts in lengths.items()},
        edges,
        ticks=[(tick, number(tick)) for tick in nice_ticks(0, longest, whole=True)],
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


def by_calendar(title: str, days: Mapping[str, Quantiles]) -> Histogram:
    """Return the histogram of days since 1970: by day, month or year, as their range asks for."""
    low, high = _range({split: (one.values(), one.counts) for split, one in days.items()}, _middle(days))
    unit = "D" if high - low <= _DAY_LIMIT else "M" if high - low <= _MONTH_LIMIT else "Y"
    first, last = _in_unit(np.array([low, high]), unit).astype(int)
    width = max(1, -(-(last - first + 1) // (_MONTH_LIMIT // 30)))
    edges = np.arange(first, last + 1 + width, width)
    names = edges[:-1].astype(f"datetime64[{unit}]").astype(str).tolist()
    labelled = range(0, len(names), -(-len(names) // _LABELS))
    chart = _histogram(
        f"{title} by {({'D': 'day', 'M': 'month', 'Y': 'year'})[unit]}",
        {split: (_in_unit(one.values(), unit), one.counts) for split, one in days.items()},
        edges - 0.5,
        ticks=[(float(edges[place]) + (width - 1) / 2, names[place]) for place in labelled],
        names=names if width == 1 else [f"{name} and {width - 1} after it" for name in names],
    )
    left, part = _outside(chart)
    return replace(chart, note=f"{part} of the rows lie outside.") if left else chart


def _in_unit(days: np.ndarray, unit: str) -> np.ndarray:
    places: np.ndarray = np.rint(days).astype("datetime64[D]").astype(f"datetime64[{unit}]").astype(np.float64)
    return places


def _all(values: Mapping[str, Values]) -> Values:
    both = list(values.values())
    return np.concatenate([one for one, _ in both]), np.concatenate([counts for _, counts in both])


def _middle(spreads: Mapping[str, Quantiles], unit: int = 0) -> tuple[float, float]:
    whole = sum(spreads.values(), Quantiles())
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


def _choose(every: np.ndarray, low: float, high: float, center: float) -> np.ndarray:
    """Return the edges of the bins of values within a range, as distances from a center."""
    shown = np.unique(every[(every >= low) & (every <= high)])
    # Bins that are finer than doubles around the center are none.
    finest = _FINEST * max(abs(low + center), abs(high + center))
    if len(shown) < 2 or high - low < finest:
        half = max(0.5 if len(shown) < 2 else 0.0, finest)
        return np.array([low - half, high + half])
    # Prices in cents, rooms, years: where values lie on a grid, a bin holds as many places of it as its neighbours.
    span = float(shown[-1] - shown[0])
    steps = span / float(np.diff(shown).min())
    if steps > _MOST_STEPS:
        return np.linspace(low, high, _BINS + 1)
    # The smallest gap is a little less than that of the grid, as float32 has its noise.
    gap, places = span / round(steps), round(steps) + 1
    together = math.ceil(places / _BINS)
    edges: np.ndarray = shown[0] - gap / 2 + together * gap * np.arange(math.ceil(places / together) + 1)
    return edges
