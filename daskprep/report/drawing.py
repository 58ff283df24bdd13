"""Charts as HTML and inline SVG: what is drawn stretches with the page, what is written does not."""

from __future__ import annotations

import base64
import functools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from daskprep.display.markup import Markup, element, join
from daskprep.display.words import count, number, share
from daskprep.report.axes import nice_ticks
from daskprep.report.charts import Band, Bars, Chart, ChartData, Histogram, Pictures

_WIDTH, _HEIGHT = 400.0, 100.0


def draw(chart: Chart) -> Markup:
    """Return a chart with its title and note."""
    note = element("p", chart.note, class_="note") if chart.note else Markup()
    wide = " wide" if isinstance(chart, Pictures) else ""
    caption = element("figcaption", chart.title)
    return element("figure", caption, _body(chart), note, class_=f"chart{wide}")


def bar(length: float) -> Markup:
    """Return a bar that takes a share of the width that there is."""
    return _svg([element("g", _rect(0, 0, length * _WIDTH, 10), class_="train")], None, 10.0)


def legend(splits: Iterable[str]) -> Markup:
    """Return the names of splits, each with its colour."""
    return element("p", *(element("span", split, class_=f"key {split}") for split in splits), class_="legend")


def table(rows: Sequence[Sequence[str]], kind: str) -> Markup:
    """Return a table whose first row names the columns, if it names any."""
    head, *body = rows
    lines = [element("tr", *(element("th", cell, scope="col") for cell in head))] if any(head) else []
    lines += [
        element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:])) for row in body
    ]
    return element("table", element("tbody", *lines), class_=kind)


@functools.singledispatch
def _body(chart: Chart) -> Markup:
    raise NotImplementedError(type(chart).__name__)


@_body.register
def _(chart: Histogram) -> Markup:
    shares = {split: one / max(chart.totals[split], 1) for split, one in chart.counts.items()}
    top = max([1e-9, *(float(one.max(initial=0)) for one in shares.values())])
    low, high = float(chart.edges[0]), float(chart.edges[-1])
    x = (chart.edges - low) / (high - low) * _WIDTH
    first, *others = shares
    drawn = [_column(chart, first, place, x, shares[first][place] / top) for place in range(len(x) - 1)]
    drawn += [_steps(split, x, shares[split] / top) for split in others]
    plot = element("div", _svg(drawn, f"{chart.title}: histogram"), class_="plot")
    ticks = [(100 * (tick - low) / (high - low), text) for tick, text in chart.ticks]
    return join([element("p", f"highest bar {share(top, 1)}", class_="scale"), plot, _axis(ticks)])


def _column(chart: Histogram, split: str, place: int, x: np.ndarray, height: float) -> Markup:
    amounts = [
        f"{name} {count(int(one[place]), chart.of)} ({share(int(one[place]), max(chart.totals[name], 1))})"
        for name, one in chart.counts.items()
    ]
    left, width = x[place], x[place + 1] - x[place]
    gap = min(0.8, 0.15 * width)
    words = element("title", "\n".join([chart.names[place], *amounts]))
    bar = _rect(left + gap / 2, (1 - height) * _HEIGHT, width - gap, height * _HEIGHT)
    # The whole column answers to the pointer, also where its bar is short.
    return element("g", words, _rect(left, 0, width, _HEIGHT, "hover"), bar, class_=split)


def _steps(split: str, x: np.ndarray, heights: np.ndarray) -> Markup:
    y = (1 - heights) * _HEIGHT
    points = "".join(f"H{_short(right)}V{_short(one)}" for right, one in zip(x[:-1], y, strict=True))
    return element("path", d=f"M0 {_short(_HEIGHT)}{points}H{_short(x[-1])}V{_short(_HEIGHT)}", class_=f"line {split}")


@_body.register
def _(chart: Bars) -> Markup:
    shares = {split: [one / max(chart.totals[split], 1) for one in counts] for split, counts in chart.counts.items()}
    top = max([1e-9, *(one for counts in shares.values() for one in counts)])
    head = [element("th", "", scope="col"), element("th", "", class_="bar", scope="col")]
    head += [element("th", element("span", split, class_=f"key {split}"), scope="col") for split in shares]
    rows = [element("tr", *head)]
    for place, label in enumerate(chart.labels):
        cells = [element("th", label, scope="row"), element("td", _bundle(shares, place, top), class_="bar")]
        for split, counts in chart.counts.items():
            amount = counts[place]
            figure = element("b", share(amount, max(chart.totals[split], 1)))
            cells.append(element("td", figure, element("span", f"{amount:,}")))
        rows.append(element("tr", *cells))
    return element("table", element("tbody", *rows), class_=f"bars of{len(shares)}")


def _bundle(shares: Mapping[str, Sequence[float]], place: int, top: float) -> Markup:
    height = 12.0 / len(shares)
    bars = []
    for row, (split, one) in enumerate(shares.items()):
        length = max(one[place] / top * _WIDTH, 0.6 * bool(one[place]))
        bars.append(element("g", _rect(0, row * height + 0.3, length, height - 0.6), class_=split))
    return _svg(bars, None, 12.0)


@_body.register
def _(chart: Band) -> Markup:
    every = np.concatenate([chart.low, chart.high, *chart.means.values()])
    low, high = float(every.min()), float(every.max())
    height = (high - low) or 1.0
    x = np.linspace(0, _WIDTH, len(chart.low))

    def path(values: np.ndarray, places: np.ndarray) -> str:
        y = (high - values) / height * _HEIGHT
        return "L".join(f"{_short(left)} {_short(one)}" for left, one in zip(places, y, strict=True))

    first = next(iter(chart.means))
    outline = f"M{path(chart.high, x)}L{path(chart.low[::-1], x[::-1])}Z"
    drawn = [element("path", d=outline, class_=f"area {first}")]
    drawn += [element("path", d=f"M{path(one, x)}", class_=f"line {split}") for split, one in chart.means.items()]
    scale = element("p", f"from {number(low)} to {number(high)}", class_="scale")
    plot = element("div", _svg(drawn, f"{chart.title}: lines"), class_="plot")
    last = chart.positions - 1
    ticks = [(100 * tick / last, number(tick)) for tick in nice_ticks(0, last, whole=True)]
    return join([scale, plot, _axis(ticks)])


@_body.register
def _(chart: ChartData) -> Markup:
    return table(chart.rows, "facts")


@_body.register
def _(chart: Pictures) -> Markup:
    shown = []
    for data, caption in chart.pictures:
        source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        image = element("img", src=source, alt=caption, loading="lazy")
        shown.append(element("figure", image, element("figcaption", caption)))
    return element("div", *shown, class_="sounds" if chart.of_sounds else "pictures")


def _svg(drawn: Sequence[str], label: str | None, height: float = _HEIGHT) -> Markup:
    named = {"role": "img", "aria_label": label} if label else {"aria_hidden": "true"}
    box = f"0 0 {_short(_WIDTH)} {_short(height)}"
    return element("svg", *drawn, viewBox=box, preserveAspectRatio="none", **named)


def _rect(x: float, y: float, width: float, height: float, kind: str | None = None) -> Markup:
    sizes = {"x": x, "y": y, "width": max(width, 0.0), "height": max(height, 0.0)}
    return element("rect", **{key: _short(one) for key, one in sizes.items()}, class_=kind)


def _axis(ticks: Sequence[tuple[float, str]]) -> Markup:
    """Return what is written below: apart from the drawing, which is stretched."""
    marks = []
    for place, text in ticks:
        # Words at the ends would else stand beyond the page.
        side = "start" if place < 3 else "end" if place > 95 else "middle"
        marks.append(element("span", text, class_=side, style=f"left:{_short(place)}%"))
    return element("div", *marks, class_="axis")


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
