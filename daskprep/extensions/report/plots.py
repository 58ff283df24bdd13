"""Charts as matplotlib figures."""

from __future__ import annotations

import functools
import io
from typing import TYPE_CHECKING, Any

import numpy as np

from daskprep.columns.display import format_share, truncate
from daskprep.dataset import Dataset
from daskprep.errors import ConfigError, did_you_mean
from daskprep.extensions.report.charts import Band, Bars, Chart, Histogram, Pictures, TableChart, nice_ticks
from daskprep.extensions.report.reporters import choose_reporter, gather, list_columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 7.0, 3.0  # inches
_MAX_OUTPUTS, _MAX_ACROSS = 48, 2  # of an overview
_COLOURS = {"train": "#3f74b5", "validation": "#d98a2b", "test": "#2f9e86"}


def make_plot(dataset: Dataset, name: str | None = None, split: str | None = "train") -> Figure:
    """Return a figure of a feature, an output, or all; see `Dataset.plot`; ConfigError for an unknown name."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 an extra
    except ImportError as error:
        raise ImportError("plot needs matplotlib: pip install matplotlib") from error
    all_columns = list_columns(dataset)
    columns = [column for column in all_columns if name in (None, column.name, column.output.name)][:_MAX_OUTPUTS]
    if not columns:
        known = dict.fromkeys(one for column in all_columns for one in (column.name, column.output.name))
        raise ConfigError(
            f'{dataset.url} has no feature "{name}".{did_you_mean(name, known)} It has: {", ".join(dataset.features)}'
        )
    splits = list(dataset.splits.values()) if split is None else [dataset[split]]
    summaries = gather(splits, columns)
    charts: list[tuple[str, Chart]] = []
    for column in columns:
        drawable = choose_reporter(column).charts(column, summaries[column.output.name])
        parts = [(column.output.name, chart) for chart in drawable if not isinstance(chart, TableChart)]
        charts += parts if name is not None else parts[:1]
    across = _MAX_ACROSS if name is None and len(charts) > 1 else 1
    down = -(-len(charts) // across)
    figure = Figure(figsize=(_WIDTH * across, _HEIGHT * max(1, down)), layout="constrained")
    if not charts:  # such as for series of length 1
        figure.suptitle(f"{truncate(name or dataset.url)}: nothing to draw", parse_math=False)
        return figure
    for subfigure, (output, chart) in zip(figure.subfigures(down, across, squeeze=False).flat, charts, strict=False):
        subfigure.suptitle(f"{truncate(output)}: {chart.title.lower()}", parse_math=False)
        _draw(chart, subfigure)
    return figure


@functools.singledispatch
def _draw(chart: Chart, subfigure: Any) -> None:
    raise NotImplementedError(type(chart).__name__)


@_draw.register
def _(chart: Histogram, subfigure: Any) -> None:
    axes = _add_axes(subfigure)
    for index, (split, counts) in enumerate(chart.counts.items()):
        shares = counts / max(chart.totals[split], 1)
        axes.stairs(shares, chart.edges, fill=not index, color=_COLOURS[split], label=split)
    axes.set_xticks([tick for tick, _ in chart.ticks], [text for _, text in chart.ticks])
    _label_axes(axes, chart, f"share of {chart.unit}s")


@_draw.register
def _(chart: Bars, subfigure: Any) -> None:
    axes = _add_axes(subfigure)
    positions, height = np.arange(len(chart.labels)), 0.8 / len(chart.counts)
    for row, (split, counts) in enumerate(chart.counts.items()):
        total = max(chart.totals[split], 1)
        bar_positions, shares = positions + (row + 0.5) * height - 0.4, [one / total for one in counts]
        bars = axes.barh(bar_positions, shares, height, color=_COLOURS[split], label=split)
        if len(chart.counts) == 1:
            texts = [f"{one:,} ({format_share(one, total)})" for one in counts]
            axes.bar_label(bars, texts, padding=3, fontsize="small")
    axes.set_yticks(positions, chart.labels)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    _label_axes(axes, chart)


@_draw.register
def _(chart: Band, subfigure: Any) -> None:
    axes = _add_axes(subfigure)
    x = np.linspace(0, chart.positions - 1, len(chart.low))  # a point may be the mean of several positions
    first = next(iter(chart.means))
    axes.fill_between(x, chart.low, chart.high, color=_COLOURS[first], alpha=0.18, linewidth=0)
    for split, means in chart.means.items():
        axes.plot(x, means, color=_COLOURS[split], label=split)
    axes.set_xticks([tick for tick in nice_ticks(0, chart.positions - 1) if tick == int(tick)])
    _label_axes(axes, chart)


@_draw.register
def _(chart: Pictures, subfigure: Any) -> None:
    from PIL import Image  # noqa: PLC0415 a slow import that only images need

    row = subfigure.subplots(1, max(1, len(chart.pictures)), squeeze=False)[0]
    for axes, (data, caption) in zip(row, chart.pictures, strict=False):
        picture = np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))
        axes.imshow(picture, aspect="auto" if chart.is_audio else "equal")
        axes.set_title(caption, fontsize="small")
        axes.set_axis_off()


def _add_axes(subfigure: Any) -> Axes:
    """Return new axes without lines on the top and right."""
    axes: Axes = subfigure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _label_axes(axes: Axes, chart: Any, y_label: str | None = None) -> None:
    """Set labels, and for several splits a legend."""
    if y_label:
        axes.set_ylabel(y_label)
    axes.set_xlabel(chart.note, fontsize="small", color="grey")
    if len(chart.counts if hasattr(chart, "counts") else chart.means) > 1:
        axes.legend(frameon=False)
