"""Human-readable output: numbers, sizes and names as text of bounded length, HTML, tables for text and notebooks."""

from __future__ import annotations

import html
import math
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from typing import Any

from daskprep.errors import ConfigError

_UNITS = ("", "KB", "MB", "GB", "TB")
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_FACTORS |= {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_MAX_NAME_CHARACTERS = 60

YEARS = (1500, 2200)


def format_count(amount: int, noun: str, plural: str | None = None) -> str:
    """Return an amount with its noun in the singular or plural.

    >>> format_count(1, "row"), format_count(2000, "row"), format_count(2, "process", "processes")
    ('1 row', '2,000 rows', '2 processes')
    """
    return f"{amount:,} {noun if amount == 1 else plural or f'{noun}s'}"


def format_bytes(amount: float) -> str:
    """Return bytes in the unit with the shortest number.

    >>> format_bytes(1), format_bytes(1_234_000)
    ('1 byte', '1.2 MB')
    """
    power = 0
    while amount >= 1000 and power < len(_UNITS) - 1:
        amount, power = amount / 1000, power + 1
    return f"{amount:,.1f} {_UNITS[power]}" if power else format_count(int(amount), "byte")


def parse_bytes(memory: str | int, option: str = "memory") -> int:
    """Return bytes from text like "2GB" or "500 MiB", or an integer; ConfigError for others."""
    if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return memory
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?i?)b?\s*", str(memory).lower())
    if not isinstance(memory, str) or match is None or match[2] not in _FACTORS:
        raise ConfigError(f'{option}={memory!r}: expected bytes such as "2GB", "500MB" or 2_000_000_000')
    return int(float(match[1]) * _FACTORS[match[2]])


def format_share(part: float, total: float) -> str:
    """Return a share in percent; only an empty part is 0 %.

    >>> format_share(1, 8), format_share(1, 10_000), format_share(0, 0)
    ('12.5 %', '<0.1 %', '0 %')
    """
    if not part:
        return "0 %"
    percent = 100 * part / total
    return "<0.1 %" if percent < 0.1 else "100 %" if part == total else f"{min(percent, 99.9):.1f} %"


def format_number(value: float) -> str:
    """Return a number with about four significant digits.

    >>> format_number(1234567.0), format_number(0.000123), format_number(3.0), format_number(2.34567)
    ('1,234,567', '0.000123', '3', '2.346')
    """
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if 1000 <= abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def truncate(text: str, limit: int = _MAX_NAME_CHARACTERS) -> str:
    """Return printable text of at most `limit` characters, cut with an ellipsis."""
    return escape_unprintable(text if len(text) <= limit else f"{text[: limit - 1]}…")


def quote(text: str, limit: int) -> str:
    """Return the literal of a text, cut to `limit` characters."""
    return repr(text if len(text) <= limit else f"{text[: limit - 1]}…")


def join_names(names: Sequence[str], max_names: int) -> str:
    """Return the first names, each truncated, and the number of further names.

    >>> join_names(["a", "b", "c"], 2)
    'a, b, and 1 more'
    """
    more = [f"and {len(names) - max_names:,} more"] if len(names) > max_names else []
    return ", ".join([*map(truncate, names[:max_names]), *more])


def escape_unprintable(text: str) -> str:
    """Return text with unprintable characters as Python escapes."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def format_value(value: object, limit: int) -> str:
    """Return one value of a table, at most `limit` characters.

    >>> format_value(1994.0000002, 9), format_value(0.1 + 0.2, 9), format_value(1e-7, 9)
    ('1994', '0.3', '1e-07')
    >>> format_value(["a", "b"], 9)
    'a b'
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            return "" if math.isnan(value) else str(value)
        is_integral = abs(value) < 1e15 and abs(value - round(value)) <= 1e-7 * abs(value)
        return str(round(value)) if is_integral else f"{value:.6g}"
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return truncate(" ".join(format_value(item, limit) for item in islice(value, limit)), limit)
    return "" if value is None else truncate(str(value).removesuffix(" 00:00:00"), limit)


_VOID = frozenset({"br", "img", "input", "link", "meta"})


class Markup(str):
    """String that is already HTML."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: object) -> Markup:
    """Return an HTML element; `class_` becomes "class".

    Examples
    --------
    >>> element("p", "1 < 2", element("b", "!"), class_="note", title=None)
    '<p class="note">1 &lt; 2<b>!</b></p>'
    """
    attribute_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{attribute_text}>")
    return Markup(f"<{name}{attribute_text}>{join(children)}</{name}>")


def join(children: Iterable[str]) -> Markup:
    """Concatenate strings as HTML."""
    return Markup("".join(child if isinstance(child, Markup) else html.escape(child) for child in children))


_COLOR = "#4f8bd0"
_WIDTH, _HEIGHT = 72.0, 18.0


def bar_chart(heights: Sequence[float]) -> Markup:
    """Return upright bars; the highest one fills the chart. Empty if all are 0."""
    top, step = max([*heights, 0]), min(10.0, _WIDTH / max(len(heights), 1))
    if not top:
        return Markup()
    shapes = []
    for index, bar in enumerate(heights):
        height = max(bar / top * _HEIGHT, 1.0 * bool(bar))  # heights above 0 remain visible
        shapes.append(_rect(index * step, _HEIGHT - height, step * 0.85, height))
    return _chart(shapes)


def range_chart(low: float, mean: float, high: float, spread: float) -> Markup:
    """Return an SVG of a range, with a box of mean ± `spread`; empty unless `low` < `high`."""
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
    sizes = {"x": x, "y": y, "width": width, "height": height}
    return element("rect", **{name: f"{size:.1f}" for name, size in sizes.items()}, opacity=opacity)


Row = tuple[str, ...]

_MAX_TEXT_ROWS, _MAX_HTML_ROWS = 60, 200
_MIN_CHARACTERS = 6  # width of a narrowed column.
_MAX_TEXT_CELL_CHARACTERS = 48  # all cells except the last of a row.
# Longer cells of cards wrap between words, so that all columns are visible at the usual width of a notebook.
_MAX_LINE_CHARACTERS, _MAX_LAST_CHARACTERS = 12, 20
_NUMBER = re.compile(r"[-<]?\d[\d,.]*(e[-+]\d+)?( %| bytes?| [KMGT]B)?")

# A gray that is visible on white and on black; all other colors are inherited from the page.
_CARD = (
    "box-sizing:border-box;width:fit-content;max-width:100%;overflow:auto;margin:2px 0;"
    "padding:8px 12px;border:1px solid rgba(128,128,128,.4);border-radius:6px;font-variant-numeric:tabular-nums"
)
_LONG_CARD = ";max-height:60em"  # it scrolls, and is printed in full
_MAX_PRINTED_ROWS = 100
# Notebooks set a fixed layout with columns of equal width, which breaks words.
_TABLE = "table-layout:auto;border-collapse:collapse;color:inherit;margin:8px 0 0"
_ROW = "background:transparent;border-bottom:1px solid rgba(128,128,128,.3)"
_FLEX_ROW = "display:flex;flex-wrap:wrap;gap:0 8px;align-items:flex-start"  # stacked in narrow cells
_CELL = "vertical-align:top;padding:2px 0 2px 10px;overflow-wrap:normal;text-align:"


@dataclass(frozen=True)
class Table:
    """Items with a row of text each, created when it is displayed."""

    header: Row
    items: Collection[Any]
    row: Callable[[Any], Row]  # of an item
    noun: str  # for further items that are not displayed, in the singular
    chart: Callable[[Any], Markup] | None = None  # shown on cards before the text of an item's last cell

    def rows(self, max_rows: int) -> list[Row]:
        """Return the header, at most `max_rows` rows, and how many more."""
        rows = [self.header, *map(self.row, islice(self.items, max_rows))]
        more = len(self.items) - max_rows
        return [*rows, (f"and {format_count(more, f'more {self.noun}')}",)] if more > 0 else rows

    def html(self) -> Markup:
        header, *body = self.rows(_MAX_HTML_ROWS)
        columns = list(zip_longest(*body, fillvalue=""))
        are_numbers = (any(cells) and all(_NUMBER.fullmatch(cell) for cell in cells if cell) for cells in columns)
        sides = ["right" if is_number else "left" for is_number in are_numbers]
        charts = chain(map(self.chart or (lambda _: Markup()), self.items), [""])
        lines = [_line("th", header, sides, scope="col")]
        lines += [_line("td", cells, sides, chart=chart) for cells, chart in zip(body, charts, strict=False)]
        return element("table", *lines, style=_TABLE)


@dataclass(frozen=True)
class Description:
    """Lines of text followed by tables."""

    lines: Sequence[str]
    tables: Sequence[Table]

    def text(self, width: int | None = None) -> str:
        lines = list(self.lines)
        for table in self.tables:
            rows = table.rows(_MAX_TEXT_ROWS)
            cells = [(*(truncate(cell, _MAX_TEXT_CELL_CHARACTERS) for cell in row[:-1]), row[-1]) for row in rows]
            lines += align_columns(cells, width)
        return "\n".join(lines)

    def html(self) -> Markup:
        first, *other_lines = (element("div", line) for line in self.lines)
        title = element("div", first, style="font-weight:600")
        is_long = sum(min(len(table.items), _MAX_HTML_ROWS) for table in self.tables) > _MAX_PRINTED_ROWS
        style = _CARD + _LONG_CARD * is_long
        return element("div", title, *other_lines, *(table.html() for table in self.tables), style=style)


def align_columns(rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Return the lines of rows with aligned columns.

    With a width, the widest columns are narrowed until a line fits, and their cells wrap, between words if all fit.

    Examples
    --------
    >>> align_columns([["split", "rows"], ["validation", "7"], ["and many more splits"]])
    ['split       rows', 'validation  7', 'and many more splits']
    >>> align_columns([["feature", "learned"], ["city", "vocabulary of 4"]], width=20)
    ['feature  learned', 'city     vocabulary', '         of 4']
    """
    columns = list(zip(*(row for row in rows if len(row) == len(rows[0])), strict=True))
    widths = [max(map(len, column)) for column in columns]
    longest = [max(len(word) for cell in column for word in [*cell.split(), ""]) for column in columns]
    for minimum in (longest, [_MIN_CHARACTERS] * len(widths)):
        while width is not None and sum(widths) + 2 * len(widths) - 2 > width:
            spare = [size if size > least else 0 for size, least in zip(widths, minimum, strict=True)]
            if not any(spare):
                break
            widths[spare.index(max(spare))] -= 1
    lines: list[str] = []
    for row in rows:
        cells: list[list[str]] = [[cell] for cell in row]
        if width is not None and len(row) == len(widths):
            cells = [textwrap.wrap(cell, size) for cell, size in zip(row, widths, strict=True)]
        lines += ["  ".join(map(str.ljust, line, widths)).rstrip() for line in zip_longest(*cells, fillvalue="")]
    return lines


def settings_card(settings: Mapping[str, str], title: str) -> Markup:
    """Return an HTML card of settings by name."""
    return Description([title], [Table(("setting", "value"), list(settings.items()), tuple, "setting")]).html()


def _line(tag: str, cells: Row, sides: Sequence[str], scope: str | None = None, chart: str = "") -> Markup:
    """Return an HTML row; the last cell starts with `chart`."""
    span = None if len(cells) >= len(sides) else len(sides)
    elements = []
    for column_index, (text, side) in enumerate(zip(cells, sides or ["left"] * len(cells), strict=False)):
        is_last = column_index == len(cells) - 1
        limit, min_width = (_MAX_LAST_CHARACTERS, 9) if is_last else (_MAX_LINE_CHARACTERS, 5)
        wraps = f"normal;min-width:{min_width}em" if len(text) > limit else "nowrap"
        # Long parameters may wrap after "=", but a percent sign stays with its number.
        cell = Markup(html.escape(text).replace("=", "=<wbr>").replace(" %", "\u00a0%"))
        if chart and is_last:
            cell = element("span", chart, element("span", cell, style="flex:1 1 10em"), style=_FLEX_ROW)
        style = f"{_CELL if column_index else _CELL.replace('10px', '0')}{side};white-space:{wraps}"
        elements.append(element(tag, cell, colspan=span, scope=scope, style=style))
    return element("tr", *elements, style=_ROW)
