"""From values and how often each was seen to bins that tell something, with edges at which something can be written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from daskprep.display.words import YEARS, format_number, format_share
from daskprep.report.charts import Histogram
from daskprep.summaries import Quantiles

Values = tuple[np.ndarray, np.ndarray]

_BINS = 40
_MAX_STEPS = 4_000  # between the smallest and the largest value: what is finer is no grid
_MIN_RELATIVE_WIDTH = 1e-9
_MIN_GAP, _MAX_VALUE = 1e-290, 1e300  # gaps and sums within these are doubles; larger numbers are drawn as the last
_MAX_TAIL_WIDTHS = 4.0  # times the width of the middle 99 %
_TAIL_SHARE = 0.005  # of the values, at either end
_MAX_TICKS = 4
_MAX_PLAIN_NUMBER = 1e15
_MIN_LOG_RATIO, _MIN_LOG_SKEW = 100, 8  # of the middle 99 %: from which on an axis is logarithmic
_MAX_LABELS = 4
_MAX_DAYS, _MAX_MONTH_DAYS = 62, 1_860  # days that are shown day by day, and month by month


def nice_ticks(low: float, high: float, *, integers_only: bool = False) -> list[float]:
    """Return a few round numbers within a range, whole ones if asked for.

    >>> nice_ticks(0.0, 97.0), nice_ticks(-0.31, 0.42), nice_ticks(0.5, 9.5, integers_only=True)
    ([0.0, 25.0, 50.0, 75.0], [-0.2, 0.0, 0.2, 0.4], [2.0, 4.0, 6.0, 8.0])
    """
    if not high > low:
        return [low]
    step = 10.0 ** math.floor(math.log10((high - low) / _MAX_TICKS))
    step = max(step, 1.0) if integers_only else step
    factors = (1, 2, 5, 10, 20) if integers_only and step == 1 else (1, 2, 2.5, 5, 10, 20)
    step *= next(factor for factor in factors if (high - low) / (step * factor) <= _MAX_TICKS + integers_only)
    ticks = step * np.arange(math.ceil(low / step), math.floor(high / step) + 1)
    # Multiples of a tenth are none of a power of two.
    return [round(float(tick), 12 - math.floor(math.log10(step))) for tick in ticks]


def make_formatter(values: Sequence[np.ndarray]) -> tuple[Callable[[float], str], bool]:
    """Return what writes some numbers without noise, years without commas, and whether all are whole."""
    all_values = np.concatenate([[], *values])
    low, high = (float(all_values.min()), float(all_values.max())) if len(all_values) else (0.0, 0.0)
    spread = max(high, 0) - min(low, 0)
    if not 1 / _MAX_PLAIN_NUMBER < spread < _MAX_PLAIN_NUMBER:
        return format_number, False
    # Numbers that were normalized have the noise of single precision.
    digits = max(0, 6 - math.ceil(math.log10(spread)))
    is_integer = bool(np.array_equal(np.round(all_values, digits), np.rint(all_values)))

    def write(value: float) -> str:
        formatted = format_number(round(value, digits) + 0.0)
        return formatted.replace(",", "") if is_integer and low >= YEARS[0] and high <= YEARS[1] else formatted

    return write, is_integer


def bin_numbers(title: str, spreads: Mapping[str, Quantiles]) -> Histogram:
    """Return the histogram of numbers; its axis is logarithmic where they are very skewed."""
    values = {split: (one.values().clip(-_MAX_VALUE, _MAX_VALUE), one.counts) for split, one in spreads.items()}
    all_values, weights = _merge_values(values)
    if (ends := _find_log_range(all_values, weights)) is not None:
        return _bin_logarithms(title, values, *ends)
    edges = _choose_edges(all_values, *_choose_range(all_values, weights))
    format_number, is_integer = make_formatter([all_values])
    ticks = [
        (tick, format_number(tick)) for tick in nice_ticks(float(edges[0]), float(edges[-1]), integers_only=is_integer)
    ]
    return _make_histogram(
        title, values, edges, ticks=ticks, names=_name_bins(edges.tolist(), format_number, is_integer=is_integer)
    )


def _make_histogram(
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
    total = sum(totals.values())
    if outside := total - sum(int(one.sum()) for one in counts.values()):
        note = f"{note} Values outside are not drawn: {outside:,} ({format_share(outside, total)}).".lstrip()
    return Histogram(title=title, note=note, edges=edges, counts=counts, totals=totals, ticks=ticks, names=names)


def _name_bins(edges: Sequence[float], format_number: Callable[[float], str], *, is_integer: bool) -> list[str]:
    """Return what lies between edges; between those of whole numbers, only these."""
    if not is_integer:
        return [f"{low} to {high}" for low, high in pairwise(map(format_number, edges))]
    bins = [(math.ceil(low), math.ceil(high) - 1) for low, high in pairwise(edges)]
    return [format_number(low) + (f" to {format_number(high)}" if high > low else "") for low, high in bins]


def _find_log_range(all_values: np.ndarray, weights: np.ndarray) -> tuple[float, float] | None:
    """Return between which values a logarithmic axis shows more than a plain one, if it does."""
    noise = 1e-6 * float(np.abs(all_values).max(initial=0))
    if not noise or noise > _MAX_PLAIN_NUMBER or all_values.min() < -noise:
        return None
    low, middle, high = _find_quantiles(all_values[all_values > noise], weights[all_values > noise], 0.5)
    is_skewed = high >= _MIN_LOG_RATIO * low and high - middle >= _MIN_LOG_SKEW * (middle - low)
    return (low, high) if is_skewed else None


def _bin_logarithms(title: str, values: Mapping[str, Values], low: float, high: float) -> Histogram:
    first, last = math.log10(low), math.log10(high)
    edges = np.linspace(first, last + (last - first) * 1e-9, _BINS + 1)
    marks = [float(f"{factor}e{power}") for power in range(math.floor(first), math.ceil(last)) for factor in (1, 3)]
    inside = [mark for mark in marks if low <= mark <= high]
    return _make_histogram(
        title,
        {split: (np.log10(np.maximum(one, low / 2)), amounts) for split, (one, amounts) in values.items()},
        edges,
        ticks=[(math.log10(mark), format_number(mark)) for mark in inside[:: -(-len(inside) // (_MAX_TICKS + 1))]],
        names=[f"{format_number(10**left)} to {format_number(10**right)}" for left, right in pairwise(edges.tolist())],
        note="The axis is logarithmic.",
    )


def bin_lengths(title: str, lengths: Mapping[str, np.ndarray]) -> Histogram:
    """Return the histogram of the lengths of rows, of which index by index was counted how many there are."""
    longest = max(len(counts) for counts in lengths.values()) - 1
    width = -(-(longest + 1) // _BINS)
    edges = np.arange(0, longest + 1 + width, width) - 0.5
    first = (edges[:-1] + 0.5).astype(int)
    return _make_histogram(
        title,
        {split: (np.arange(len(counts), dtype=np.float64), counts) for split, counts in lengths.items()},
        edges,
        ticks=[(tick, format_number(tick)) for tick in nice_ticks(0, longest, integers_only=True)],
        names=[f"{low}" if width == 1 else f"{low} to {low + width - 1}" for low in first],
    )


def bin_classes(
    title: str, counts: Mapping[str, np.ndarray], names: Sequence[str], label_step: int = 1, unit: str = "row"
) -> Histogram:
    """Return upright bars for classes that have an order, every so many-th with its name below."""
    return Histogram(
        title=title,
        edges=np.arange(len(names) + 1) - 0.5,
        counts=counts,
        totals={split: int(one.sum()) for split, one in counts.items()},
        ticks=[(float(index), names[index]) for index in range(0, len(names), label_step)],
        names=names,
        unit=unit,
    )


def bin_dates(title: str, days: Mapping[str, Quantiles]) -> Histogram:
    """Return the histogram of days since 1970: by day, month or year, as their range asks for."""
    low, high = _choose_range(*_merge_values({split: (one.values(), one.counts) for split, one in days.items()}))
    unit = "D" if high - low <= _MAX_DAYS else "M" if high - low <= _MAX_MONTH_DAYS else "Y"
    first, last = _convert_days(np.array([low, high]), unit).astype(int)
    width = max(1, -(-(last - first + 1) // (_MAX_MONTH_DAYS // 30)))
    edges = np.arange(first, last + 1 + width, width)
    names = edges[:-1].astype(f"datetime64[{unit}]").astype(str).tolist()
    labelled = range(0, len(names), -(-len(names) // _MAX_LABELS))
    return _make_histogram(
        f"{title} by {({'D': 'day', 'M': 'month', 'Y': 'year'})[unit]}",
        {split: (_convert_days(one.values(), unit), one.counts) for split, one in days.items()},
        edges - 0.5,
        ticks=[(float(edges[index]) + (width - 1) / 2, names[index]) for index in labelled],
        names=names if width == 1 else [f"{name} and {width - 1} after it" for name in names],
    )


def _convert_days(days: np.ndarray, unit: str) -> np.ndarray:
    positions: np.ndarray = np.rint(days).astype("datetime64[D]").astype(f"datetime64[{unit}]").astype(np.float64)
    return positions


def _merge_values(values: Mapping[str, Values]) -> Values:
    pairs = list(values.values())
    return np.concatenate([one for one, _ in pairs]), np.concatenate([counts for _, counts in pairs])


def _find_quantiles(all_values: np.ndarray, weights: np.ndarray, *middle: float) -> list[float]:
    """Return the values between which 99 % lie, and others in the middle of these."""
    order = np.argsort(all_values)
    running = np.cumsum(weights[order])
    low = np.searchsorted(running, _TAIL_SHARE * running[-1], "right")
    others = np.searchsorted(running, np.array([*middle, 1 - _TAIL_SHARE]) * running[-1])
    ends: list[float] = all_values[order][[low, *others]].tolist()
    return ends


def _choose_range(all_values: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Return from where to where values are shown: all, but for a few that lie far outside."""
    low, high = float(all_values.min()), float(all_values.max())
    first, last = _find_quantiles(all_values, weights)
    width = last - first
    if width > 0 and high - low > _MAX_TAIL_WIDTHS * width:
        return max(low, first - width / 4), min(high, last + width / 4)
    return low, high


def _choose_edges(all_values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return the edges of the bins of values within a range."""
    shown = np.unique(all_values[(all_values >= low) & (all_values <= high)])
    # Bins that are finer than doubles are none.
    finest = max(_MIN_RELATIVE_WIDTH * max(abs(low), abs(high)), _MIN_GAP)
    if len(shown) < 2 or high - low < finest:
        half = max(0.5 if len(shown) < 2 else 0.0, finest)
        return np.array([low - half, high + half])
    # Prices in cents, rooms, years: where values lie on a grid, a bin holds as many places of it as its neighbours.
    span = float(shown[-1] - shown[0])
    steps = span / float(np.diff(shown).min())
    if steps > _MAX_STEPS:
        return np.linspace(low, high, _BINS + 1)
    # The smallest gap is a little less than that of the grid, as float32 has its noise.
    gap, grid_points = span / round(steps), round(steps) + 1
    points_per_bin = math.ceil(grid_points / _BINS)
    edges: np.ndarray = (
        shown[0] - gap / 2 + points_per_bin * gap * np.arange(math.ceil(grid_points / points_per_bin) + 1)
    )
    return edges
