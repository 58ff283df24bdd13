"""From values and how often each was seen to bins that tell something, with edges at which something can be written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from daskprep.display.words import YEARS, number, share
from daskprep.report.charts import Histogram
from daskprep.summaries import Quantiles

Values = tuple[np.ndarray, np.ndarray]

_BINS = 40
_MOST_STEPS = 4_000  # between the smallest and the largest value: what is finer is no grid
_FINEST = 1e-9
_SMALLEST, _LARGEST = 1e-290, 1e300  # gaps and sums within these are doubles; larger numbers are drawn as the last
_FAR = 4.0  # times the width of the middle 99 %
_OUTER = 0.005  # of the values, at either end
_TICKS = 4
_FAR_NUMBER = 1e15
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
        return written.replace(",", "") if is_whole and low >= YEARS[0] and high <= YEARS[1] else written

    return text, is_whole


def by_number(title: str, spreads: Mapping[str, Quantiles]) -> Histogram:
    """Return the histogram of numbers; its axis is logarithmic where they are very skewed."""
    values = {split: (one.values().clip(-_LARGEST, _LARGEST), one.counts) for split, one in spreads.items()}
    every, weights = _all(values)
    if (ends := _skewed(every, weights)) is not None:
        return _by_logarithm(title, values, *ends)
    edges = _choose(every, *_range(every, weights))
    text, is_whole = writing_of([every])
    ticks = [(tick, text(tick)) for tick in nice_ticks(float(edges[0]), float(edges[-1]), whole=is_whole)]
    return _histogram(title, values, edges, ticks=ticks, names=_names(edges.tolist(), text, is_whole=is_whole))


def _histogram(
    title: str,
    values: Mapping[str, Values],
    edges: np.ndarray,
    *,
    ticks: Sequence[tuple[float, str]],
    names: Sequence[str],
    note: str = "",
) -> Histogram:
    """Return a histogram, which says how many values its edges leave out."""
    counts = {
        split: np.histogram(one, edges, weights=amounts)[0].astype(np.int64) for split, (one, amounts) in values.items()
    }
    totals = {split: int(amounts.sum()) for split, (_, amounts) in values.items()}
    whole = sum(totals.values())
    if left := whole - sum(int(one.sum()) for one in counts.values()):
        note = f"{note} Values outside are not drawn: {left:,} ({share(left, whole)}).".lstrip()
    return Histogram(title=title, note=note, edges=edges, counts=counts, totals=totals, ticks=ticks, names=names)


def _names(edges: Sequence[float], text: Callable[[float], str], *, is_whole: bool) -> list[str]:
    """Return what lies between edges; between those of whole numbers, only these."""
    if not is_whole:
        return [f"{low} to {high}" for low, high in pairwise(map(text, edges))]
    bins = [(math.ceil(low), math.ceil(high) - 1) for low, high in pairwise(edges)]
    return [text(low) + (f" to {text(high)}" if high > low else "") for low, high in bins]


def _skewed(every: np.ndarray, weights: np.ndarray) -> tuple[float, float] | None:
    """Return between which values a logarithmic axis shows more than a plain one, if it does."""
    noise = 1e-6 * float(np.abs(every).max(initial=0))
    if not noise or noise > _FAR_NUMBER or every.min() < -noise:
        return None
    low, middle, high = _at(every[every > noise], weights[every > noise], 0.5)
    is_skewed = high >= _DECADES * low and high - middle >= _SKEWED * (middle - low)
    return (low, high) if is_skewed else None


def _by_logarithm(title: str, values: Mapping[str, Values], low: float, high: float) -> Histogram:
    first, last = math.log10(low), math.log10(high)
    edges = np.linspace(first, last + (last - first) * 1e-9, _BINS + 1)
    marks = [float(f"{factor}e{power}") for power in range(math.floor(first), math.ceil(last)) for factor in (1, 3)]
    inside = [mark for mark in marks if low <= mark <= high]
    return _histogram(
        title,
        {split: (np.log10(np.maximum(one, low / 2)), amounts) for split, (one, amounts) in values.items()},
        edges,
        ticks=[(math.log10(mark), number(mark)) for mark in inside[:: -(-len(inside) // (_TICKS + 1))]],
        names=[f"{number(10**left)} to {number(10**right)}" for left, right in pairwise(edges.tolist())],
        note="The axis is logarithmic.",
    )


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
    low, high = _range(*_all({split: (one.values(), one.counts) for split, one in days.items()}))
    unit = "D" if high - low <= _DAY_LIMIT else "M" if high - low <= _MONTH_LIMIT else "Y"
    first, last = _in_unit(np.array([low, high]), unit).astype(int)
    width = max(1, -(-(last - first + 1) // (_MONTH_LIMIT // 30)))
    edges = np.arange(first, last + 1 + width, width)
    names = edges[:-1].astype(f"datetime64[{unit}]").astype(str).tolist()
    labelled = range(0, len(names), -(-len(names) // _LABELS))
    return _histogram(
        f"{title} by {({'D': 'day', 'M': 'month', 'Y': 'year'})[unit]}",
        {split: (_in_unit(one.values(), unit), one.counts) for split, one in days.items()},
        edges - 0.5,
        ticks=[(float(edges[place]) + (width - 1) / 2, names[place]) for place in labelled],
        names=names if width == 1 else [f"{name} and {width - 1} after it" for name in names],
    )


def _in_unit(days: np.ndarray, unit: str) -> np.ndarray:
    places: np.ndarray = np.rint(days).astype("datetime64[D]").astype(f"datetime64[{unit}]").astype(np.float64)
    return places


def _all(values: Mapping[str, Values]) -> Values:
    both = list(values.values())
    return np.concatenate([one for one, _ in both]), np.concatenate([counts for _, counts in both])


def _at(every: np.ndarray, weights: np.ndarray, *middle: float) -> list[float]:
    """Return the values between which 99 % lie, and others in the middle of these."""
    places = np.argsort(every)
    running = np.cumsum(weights[places])
    low = np.searchsorted(running, _OUTER * running[-1], "right")
    others = np.searchsorted(running, np.array([*middle, 1 - _OUTER]) * running[-1])
    ends: list[float] = every[places][[low, *others]].tolist()
    return ends


def _range(every: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Return from where to where values are shown: all, but for a few that lie far outside."""
    low, high = float(every.min()), float(every.max())
    first, last = _at(every, weights)
    width = last - first
    if width > 0 and high - low > _FAR * width:
        return max(low, first - width / 4), min(high, last + width / 4)
    return low, high


def _choose(every: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return the edges of the bins of values within a range."""
    shown = np.unique(every[(every >= low) & (every <= high)])
    # Bins that are finer than doubles are none.
    finest = max(_FINEST * max(abs(low), abs(high)), _SMALLEST)
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
