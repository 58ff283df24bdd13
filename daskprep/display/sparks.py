"""Charts as small as words, in a color that is visible on white and on black."""

from __future__ import annotations

from collections.abc import Sequence

from daskprep.display.markup import Markup, element

_COLOR = "#4f8bd0"
_WIDTH, _HEIGHT = 72.0, 18.0


def bar_chart(heights: Sequence[float]) -> Markup:
    """Return upright bars, scaled so that the highest one has the height of the chart."""
    top, step = max([*heights, 0]), min(10.0, _WIDTH / max(len(heights), 1))
    if not top:
        return Markup()
    shapes = []
    for index, bar in enumerate(heights):
        # Heights above 0 remain visible.
        height = max(bar / top * _HEIGHT, 1.0 * bool(bar))
        shapes.append(_rect(index * step, _HEIGHT - height, step * 0.85, height))
    return _chart(shapes)


def range_chart(low: float, mean: float, high: float, spread: float) -> Markup:
    """Return a line from the smallest to the largest value with a box of one standard deviation around the mean."""
    width = high / 2 - low / 2  # halves, because the range of all doubles overflows
    if not width > 0:
        return Markup()

    def x_of(value: float) -> float:
        return min(max((value - low / 2) / width, 0.0), 1.0) * _WIDTH

    left, right = x_of(mean / 2 - spread / 2), x_of(mean / 2 + spread / 2)
    middle = min(x_of(mean / 2), _WIDTH - 1.5)
    return _chart([_rect(0, 8.5, _WIDTH, 1), _rect(left, 4, right - left, 10, 0.5), _rect(middle, 2, 1.5, 14)])


def _chart(shapes: Sequence[Markup]) -> Markup:
    style = f"flex:none;width:{_WIDTH:g}px;height:{_HEIGHT:g}px"
    return element("svg", *shapes, viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}", fill=_COLOR, style=style, aria_hidden="true")


def _rect(x: float, y: float, width: float, height: float, opacity: float | None = None) -> Markup:
    """Return a rectangle, with positions and sizes in pixels."""
    sizes = {"x": x, "y": y, "width": width, "height": height}
    return element("rect", **{name: f"{size:.1f}" for name, size in sizes.items()}, opacity=opacity)
