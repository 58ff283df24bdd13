"""Charts as HTML with inline SVG; shapes stretch with the page, and text does not."""

from __future__ import annotations

import base64
import functools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from daskprep.display.markup import Markup, element, join
from daskprep.display.words import format_count, format_number, format_share
from daskprep.report.axes import nice_ticks
from daskprep.report.charts import Band, Bars, Chart, Histogram, Pictures, TableChart

_WIDTH, _HEIGHT = 400.0, 100.0


def draw(chart: Chart) -> Markup:
    """Return a chart with its title and note."""
    note = element("p", chart.note, class_="note") if chart.note else Markup()
    wide = " wide" if isinstance(chart, Pictures) else ""
    caption = element("figcaption", chart.title)
    return element("figure", caption, _draw_body(chart), note, class_=f"chart{wide}")


def draw_bar(length: float) -> Markup:
    """Return a bar with `length` from 0 to 1 of the available width."""
    return _svg([element("g", _rect(0, 0, length * _WIDTH, 10), class_="train")], None, 10.0)


def draw_legend(splits: Iterable[str]) -> Markup:
    """Return the names of splits, each with its color."""
    return element("p", *(element("span", split, class_=f"key {split}") for split in splits), class_="legend")


def draw_table(rows: Sequence[Sequence[str]], kind: str) -> Markup:
    """Return a table with the CSS class `kind`; the first row contains column names, or only empty cells."""
    head, *body = rows
    lines = [element("tr", *(element("th", cell, scope="col") for cell in head))] if any(head) else []
    lines += [
        element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:])) for row in body
    ]
    return element("table", element("tbody", *lines), class_=kind)


@functools.singledispatch
def _draw_body(chart: Chart) -> Markup:
    """Return a chart without its title and note."""
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
    """Return a bin as a bar, with a tooltip of its counts; `x` are pixel positions of edges, `height` is 0 to 1."""
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
    """Return the outline of a histogram of a further split; `heights` are 0 to 1."""
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
    """Return the bars of one label, one per split; `top` is the share of the longest bar."""
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
    for data, caption in chart.pictures:
        source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        image = element("img", src=source, alt=caption, loading="lazy")
        figures.append(element("figure", image, element("figcaption", caption)))
    return element("div", *figures, class_="sounds" if chart.is_audio else "pictures")


def _svg(shapes: Sequence[str], label: str | None, height: float = _HEIGHT) -> Markup:
    attributes = {"role": "img", "aria_label": label} if label else {"aria_hidden": "true"}
    box = f"0 0 {_format_number(_WIDTH)} {_format_number(height)}"
    return element("svg", *shapes, viewBox=box, preserveAspectRatio="none", **attributes)


def _rect(x: float, y: float, width: float, height: float, kind: str | None = None) -> Markup:
    sizes = {"x": x, "y": y, "width": max(width, 0.0), "height": max(height, 0.0)}
    return element("rect", **{key: _format_number(one) for key, one in sizes.items()}, class_=kind)


def _axis(ticks: Sequence[tuple[float, str]]) -> Markup:
    """Return the labels below a chart, as HTML because text in the SVG would be stretched; `ticks` are in percent."""
    marks = []
    for percent, text in ticks:
        # Centered labels at the ends would extend beyond the page.
        side = "start" if percent < 3 else "end" if percent > 95 else "middle"
        marks.append(element("span", text, class_=side, style=f"left:{_format_number(percent)}%"))
    return element("div", *marks, class_="axis")


def _format_number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
