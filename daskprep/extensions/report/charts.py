"""Charts of a report: histograms, axes and bands as data, drawn as HTML with inline SVG or by matplotlib."""

from __future__ import annotations

import base64
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from daskprep.columns.display import YEARS, Markup, element, format_count, format_number, format_share, join
from daskprep.columns.summaries import Quantiles


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart with a title and a note that is shown below."""

    title: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Histogram(Chart):
    """Counts in bins between edges, by split."""

    edges: np.ndarray  # one more than bins
    counts: Mapping[str, np.ndarray]  # of each bin, by split
    totals: Mapping[str, int]  # by split, including values outside of the edges
    ticks: Sequence[tuple[float, str]]  # positions on the axis, and their labels
    names: Sequence[str]  # of the bins
    unit: str = "row"  # noun for the counted items, in the singular


@dataclass(frozen=True, kw_only=True)
class Bars(Chart):
    """Counts of labels by split; shares are relative to `totals`."""

    labels: Sequence[str]
    counts: Mapping[str, Sequence[int]]
    totals: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Band(Chart):
    """Mean at each position by split, and the range of the first split.

    With fewer points than `positions`, each is the mean of neighboring positions.
    """

    positions: int
    means: Mapping[str, np.ndarray]
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True, kw_only=True)
class TableChart(Chart):
    """Table of values, with names in the first row and column."""

    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Pictures(Chart):
    """PNG files with captions; `is_audio`: drawings of audio over time."""

    pictures: Sequence[tuple[bytes, str]]
    is_audio: bool = False
    seconds: Sequence[float] = ()  # that each image shows
    vertical: tuple[str, str, str] | None = None  # labels of the vertical axis: top, middle and bottom
    audio: Sequence[bytes] = ()  # a WAV file for each image


Values = tuple[np.ndarray, np.ndarray]  # values, and how often each occurs

_BINS = 40
_MAX_STEPS = 4_000  # of a grid of values between minimum and maximum; finer steps are treated as continuous
_MIN_RELATIVE_WIDTH = 1e-9
_MIN_GAP, _MAX_VALUE = 1e-290, 1e300  # keep differences and sums finite; larger numbers are clipped
_MAX_TAIL_WIDTHS = 4.0  # longest axis without cutting tails, in widths of the middle 99 %
_TAIL_SHARE = 0.005  # of the values, at either end
_MAX_TICKS = 4
_MAX_PLAIN_NUMBER = 1e15
_MIN_LOG_RATIO, _MIN_LOG_SKEW = 100, 8  # ends and tails of the middle 99 %, from which an axis is logarithmic
_MAX_LABELS = 4
_MAX_DAYS, _MAX_MONTH_DAYS = 62, 1_860  # longest ranges with bins of days and of months


def nice_ticks(low: float, high: float, *, integers_only: bool = False) -> list[float]:
    """Return up to six round numbers within a range.

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
    # Multiples of decimal steps are not exact in binary: 3 * 0.1 is 0.30000000000000004.
    return [round(float(tick), 12 - math.floor(math.log10(step))) for tick in ticks]


def make_formatter(values: Sequence[np.ndarray]) -> tuple[Callable[[float], str], bool]:
    """Return a formatter of numbers; True if all are integers."""
    all_values = np.concatenate([[], *values])
    low, high = (float(all_values.min()), float(all_values.max())) if len(all_values) else (0.0, 0.0)
    spread = max(high, 0) - min(low, 0)
    if not 1 / _MAX_PLAIN_NUMBER < spread < _MAX_PLAIN_NUMBER:
        return format_number, False
    # Decoded values of a normalized feature have rounding errors of float32.
    digits = max(0, 6 - math.ceil(math.log10(spread)))
    is_integer = bool(np.array_equal(np.round(all_values, digits), np.rint(all_values)))

    def write(value: float) -> str:
        formatted = format_number(round(value, digits) + 0.0)
        return formatted.replace(",", "") if is_integer and low >= YEARS[0] and high <= YEARS[1] else formatted

    return write, is_integer


def bin_numbers(title: str, spreads: Mapping[str, Quantiles]) -> Histogram:
    """Return a histogram of numbers, logarithmic if skewed."""
    values = {
        split: (spread.values().clip(-_MAX_VALUE, _MAX_VALUE), spread.counts) for split, spread in spreads.items()
    }
    all_values, weights = _merge_values(values)
    if (ends := _find_log_range(all_values, weights)) is not None:
        return _bin_logarithms(title, values, *ends)
    edges = _choose_edges(all_values, *_choose_range(all_values, weights))
    write, is_integer = make_formatter([all_values])
    ticks = [(tick, write(tick)) for tick in nice_ticks(float(edges[0]), float(edges[-1]), integers_only=is_integer)]
    names = _name_bins(edges.tolist(), write, is_integer=is_integer)
    return _make_histogram(title, values, edges, ticks=ticks, names=names)


def _make_histogram(
    title: str,
    values: Mapping[str, Values],
    edges: np.ndarray,
    *,
    ticks: Sequence[tuple[float, str]],
    names: Sequence[str],
    note: str = "",
) -> Histogram:
    """Return a histogram; its note counts the values outside."""
    counts = {
        split: np.histogram(one, edges, weights=amounts)[0].astype(np.int64) for split, (one, amounts) in values.items()
    }
    totals = {split: int(amounts.sum()) for split, (_, amounts) in values.items()}
    total = sum(totals.values())
    if outside := total - sum(int(one.sum()) for one in counts.values()):
        note = f"{note} Values outside are not drawn: {outside:,} ({format_share(outside, total)}).".lstrip()
    return Histogram(title=title, note=note, edges=edges, counts=counts, totals=totals, ticks=ticks, names=names)


def _name_bins(edges: Sequence[float], format_number: Callable[[float], str], *, is_integer: bool) -> list[str]:
    """Return "low to high" for each bin; of integers, both are in it."""
    if not is_integer:
        return [f"{low} to {high}" for low, high in pairwise(map(format_number, edges))]
    bins = [(math.ceil(low), math.ceil(high) - 1) for low, high in pairwise(edges)]
    return [format_number(low) + (f" to {format_number(high)}" if high > low else "") for low, high in bins]


def _find_log_range(all_values: np.ndarray, weights: np.ndarray) -> tuple[float, float] | None:
    """Return the 0.5 % and 99.5 % quantiles of the positive values as a logarithmic range, or None.

    None: values are not skewed to the right, some are below rounding errors, or all are 0 or too large.
    """
    noise = 1e-6 * float(np.abs(all_values).max(initial=0))
    if not noise or noise > _MAX_PLAIN_NUMBER or all_values.min() < -noise:
        return None
    low, middle, high = _find_quantiles(all_values[all_values > noise], weights[all_values > noise], 0.5)
    is_skewed = high >= _MIN_LOG_RATIO * low and high - middle >= _MIN_LOG_SKEW * (middle - low)
    return (low, high) if is_skewed else None


def _bin_logarithms(title: str, values: Mapping[str, Values], low: float, high: float) -> Histogram:
    """Return a histogram of base-10 logarithms from low to high."""
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
    """Return the histogram of the numbers of rows of each length."""
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
    """Return counts of ordered classes by split as a histogram."""
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
    """Return a histogram of days in days, months or years."""
    low, high = _choose_range(*_merge_values({split: (one.values(), one.counts) for split, one in days.items()}))
    unit = "D" if high - low <= _MAX_DAYS else "M" if high - low <= _MAX_MONTH_DAYS else "Y"
    first, last = _convert_days(np.array([low, high]), unit).astype(int)
    width = max(1, -(-(last - first + 1) // (_MAX_MONTH_DAYS // 30)))
    edges = np.arange(first, last + 1 + width, width)
    names = edges[:-1].astype(f"datetime64[{unit}]").astype(str).tolist()
    labeled = range(0, len(names), -(-len(names) // _MAX_LABELS))
    return _make_histogram(
        f"{title} by {({'D': 'day', 'M': 'month', 'Y': 'year'})[unit]}",
        {split: (_convert_days(one.values(), unit), one.counts) for split, one in days.items()},
        edges - 0.5,
        ticks=[(float(edges[index]) + (width - 1) / 2, names[index]) for index in labeled],
        names=names if width == 1 else [f"{name} and {width - 1} after it" for name in names],
    )


def _convert_days(days: np.ndarray, unit: str) -> np.ndarray:
    """Return days since 1970 as days, months or years since 1970."""
    return np.rint(days).astype("datetime64[D]").astype(f"datetime64[{unit}]").astype(np.float64)


def _merge_values(values: Mapping[str, Values]) -> Values:
    pairs = list(values.values())
    return np.concatenate([one for one, _ in pairs]), np.concatenate([counts for _, counts in pairs])


def _find_quantiles(all_values: np.ndarray, weights: np.ndarray, *middle: float) -> list[float]:
    """Return the weighted quantiles 0.5 %, `middle` and 99.5 %."""
    order = np.argsort(all_values)
    running = np.cumsum(weights[order])
    low = np.searchsorted(running, _TAIL_SHARE * running[-1], "right")
    upper = np.searchsorted(running, np.array([*middle, 1 - _TAIL_SHARE]) * running[-1])
    return all_values[order][[low, *upper]].tolist()


def _choose_range(all_values: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Return the range of the axis, without far tails."""
    low, high = float(all_values.min()), float(all_values.max())
    first, last = _find_quantiles(all_values, weights)
    width = last - first
    if width > 0 and high - low > _MAX_TAIL_WIDTHS * width:
        return max(low, first - width / 4), min(high, last + width / 4)
    return low, high


def _choose_edges(all_values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return the edges of up to 40 bins of equal grid points."""
    shown = np.unique(all_values[(all_values >= low) & (all_values <= high)])
    # Narrower bins could not be represented as doubles.
    finest = max(_MIN_RELATIVE_WIDTH * max(abs(low), abs(high)), _MIN_GAP)
    if len(shown) < 2 or high - low < finest:
        half = max(0.5 if len(shown) < 2 else 0.0, finest)
        return np.array([low - half, high + half])
    # Values such as prices in cents, rooms or years form a grid: all bins contain the same number of grid points.
    span = float(shown[-1] - shown[0])
    steps = span / float(np.diff(shown).min())
    if steps > _MAX_STEPS:
        return np.linspace(low, high, _BINS + 1)
    # The smallest difference is slightly smaller than the grid step, because of rounding errors of float32.
    step, points = span / round(steps), round(steps) + 1
    bin_points = math.ceil(points / _BINS)
    return shown[0] - step / 2 + bin_points * step * np.arange(math.ceil(points / bin_points) + 1)


_WIDTH, _HEIGHT = 400.0, 100.0


def draw(chart: Chart) -> Markup:
    """Return a chart with its title and note."""
    note = element("p", chart.note, class_="note") if chart.note else Markup()
    wide = " wide" if isinstance(chart, Pictures) else ""
    caption = element("figcaption", chart.title)
    return element("figure", caption, _draw_body(chart), note, class_=f"chart{wide}")


def draw_bar(length: float) -> Markup:
    """Return a bar of `length` 0 to 1."""
    return _svg([element("g", _rect(0, 0, length * _WIDTH, 10), class_="train")], None, 10.0)


def draw_legend(splits: Iterable[str]) -> Markup:
    """Return the names of splits in their colors."""
    return element("p", *(element("span", split, class_=f"key {split}") for split in splits), class_="legend")


def draw_table(rows: Sequence[Sequence[str]], kind: str) -> Markup:
    """Return a table of a CSS class; the first row is the head."""
    head, *body = rows
    lines = [element("tr", *(element("th", cell, scope="col") for cell in head))] if any(head) else []
    lines += [
        element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:])) for row in body
    ]
    return element("table", element("tbody", *lines), class_=kind)


@functools.singledispatch
def _draw_body(chart: Chart) -> Markup:
    raise NotImplementedError(type(chart).__name__)


@_draw_body.register
def _(chart: Histogram) -> Markup:
    shares = {split: one / max(chart.totals[split], 1) for split, one in chart.counts.items()}
    top = max([1e-9, *(float(one.max(initial=0)) for one in shares.values())])
    low, high = float(chart.edges[0]), float(chart.edges[-1])
    x = (chart.edges - low) / (high - low) * _WIDTH
    first, *others = shares
    shapes = [_draw_column(chart, first, index, x, shares[first][index] / top) for index in range(len(x) - 1)]
    shapes += [_draw_steps(split, x, shares[split] / top) for split in others]
    plot = element("div", _svg(shapes, f"{chart.title}: histogram"), class_="plot")
    ticks = [(100 * (tick - low) / (high - low), text) for tick, text in chart.ticks]
    return join([element("p", f"highest bar {format_share(top, 1)}", class_="scale"), plot, _axis(ticks)])


def _draw_column(chart: Histogram, split: str, index: int, x: np.ndarray, height: float) -> Markup:
    """Return a bin as a bar of `height` 0 to 1, in the color of `split`.

    `x` has the edges of all bins in the drawing. The tooltip has the counts and shares of all splits.
    """
    amounts = [
        f"{name} {format_count(int(counts[index]), chart.unit)} "
        f"({format_share(int(counts[index]), max(chart.totals[name], 1))})"
        for name, counts in chart.counts.items()
    ]
    left, width = x[index], x[index + 1] - x[index]
    gap = min(0.8, 0.15 * width)
    tooltip = element("title", "\n".join([chart.names[index], *amounts]))
    bar = _rect(left + gap / 2, (1 - height) * _HEIGHT, width - gap, height * _HEIGHT)
    # The transparent rectangle shows the tooltip also above a short bar.
    return element("g", tooltip, _rect(left, 0, width, _HEIGHT, "hover"), bar, class_=split)


def _draw_steps(split: str, x: np.ndarray, heights: np.ndarray) -> Markup:
    """Return the outline of a histogram of a further split."""
    y = (1 - heights) * _HEIGHT
    points = "".join(f"H{_format_number(right)}V{_format_number(one)}" for right, one in zip(x[:-1], y, strict=True))
    return element(
        "path",
        d=f"M0 {_format_number(_HEIGHT)}{points}H{_format_number(x[-1])}V{_format_number(_HEIGHT)}",
        class_=f"line {split}",
    )


@_draw_body.register
def _(chart: Bars) -> Markup:
    shares = {split: [one / max(chart.totals[split], 1) for one in counts] for split, counts in chart.counts.items()}
    top = max([1e-9, *(one for counts in shares.values() for one in counts)])
    head = [element("th", "", scope="col"), element("th", "", class_="bar", scope="col")]
    head += [element("th", element("span", split, class_=f"key {split}"), scope="col") for split in shares]
    rows = [element("tr", *head)]
    for index, label in enumerate(chart.labels):
        cells = [element("th", label, scope="row"), element("td", _draw_bar_group(shares, index, top), class_="bar")]
        for split, counts in chart.counts.items():
            amount = counts[index]
            figure = element("b", format_share(amount, max(chart.totals[split], 1)))
            cells.append(element("td", figure, element("span", f"{amount:,}")))
        rows.append(element("tr", *cells))
    return element("table", element("tbody", *rows), class_=f"bars of{len(shares)}")


def _draw_bar_group(shares: Mapping[str, Sequence[float]], index: int, top: float) -> Markup:
    """Return a bar for each split, as long as its share of `top`."""
    height = 12.0 / len(shares)
    bars = []
    for row, (split, one) in enumerate(shares.items()):
        length = max(one[index] / top * _WIDTH, 0.6 * bool(one[index]))
        bars.append(element("g", _rect(0, row * height + 0.3, length, height - 0.6), class_=split))
    return _svg(bars, None, 12.0)


@_draw_body.register
def _(chart: Band) -> Markup:
    all_values = np.concatenate([chart.low, chart.high, *chart.means.values()])
    low, high = float(all_values.min()), float(all_values.max())
    height = (high - low) or 1.0
    x = np.linspace(0, _WIDTH, len(chart.low))

    def path(values: np.ndarray, positions: np.ndarray) -> str:
        y = (high - values) / height * _HEIGHT
        return "L".join(f"{_format_number(left)} {_format_number(one)}" for left, one in zip(positions, y, strict=True))

    first = next(iter(chart.means))
    outline = f"M{path(chart.high, x)}L{path(chart.low[::-1], x[::-1])}Z"
    shapes = [element("path", d=outline, class_=f"area {first}")]
    shapes += [element("path", d=f"M{path(one, x)}", class_=f"line {split}") for split, one in chart.means.items()]
    scale = element("p", f"from {format_number(low)} to {format_number(high)}", class_="scale")
    plot = element("div", _svg(shapes, f"{chart.title}: lines"), class_="plot")
    last = chart.positions - 1
    ticks = [(100 * tick / last, format_number(tick)) for tick in nice_ticks(0, last, integers_only=True)]
    return join([scale, plot, _axis(ticks)])


@_draw_body.register
def _(chart: TableChart) -> Markup:
    return draw_table(chart.rows, "facts")


@_draw_body.register
def _(chart: Pictures) -> Markup:
    figures = []
    for index, (data, caption) in enumerate(chart.pictures):
        parts = [element("img", src=_data_url("image/png", data), alt=caption, loading="lazy")]
        if chart.vertical is not None:
            labels = element("div", *(element("span", label) for label in chart.vertical), class_="vertical")
            parts = [element("div", labels, *parts, class_="spectrum")]
        if chart.seconds:
            end = max(chart.seconds[index], 1e-6)
            ticks = nice_ticks(0, end)
            marks = [(100 * tick / end, f"{format_number(tick)}{' s' * (tick == ticks[-1])}") for tick in ticks]
            parts.append(_axis(marks))
        parts.append(element("figcaption", caption))
        if chart.audio:
            url = _data_url("audio/wav", chart.audio[index])
            parts.append(element("audio", src=url, controls="", preload="none"))
        figures.append(element("figure", *parts))
    kind = "sounds spectra" if chart.vertical else "sounds" if chart.is_audio else "pictures"
    return element("div", *figures, class_=kind)


def _data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def _svg(shapes: Sequence[str], label: str | None, height: float = _HEIGHT) -> Markup:
    attributes = {"role": "img", "aria_label": label} if label else {"aria_hidden": "true"}
    box = f"0 0 {_format_number(_WIDTH)} {_format_number(height)}"
    return element("svg", *shapes, viewBox=box, preserveAspectRatio="none", **attributes)


def _rect(x: float, y: float, width: float, height: float, kind: str | None = None) -> Markup:
    sizes = {"x": x, "y": y, "width": max(width, 0.0), "height": max(height, 0.0)}
    return element("rect", **{key: _format_number(one) for key, one in sizes.items()}, class_=kind)


def _axis(ticks: Sequence[tuple[float, str]]) -> Markup:
    """Return the labels below a chart; `ticks` are in percent."""
    marks = []
    for percent, text in ticks:
        # Centered labels at the ends would extend beyond the page.
        side = "start" if percent < 3 else "end" if percent > 95 else "middle"
        marks.append(element("span", text, class_=side, style=f"left:{_format_number(percent)}%"))
    return element("div", *marks, class_="axis")


def _format_number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
