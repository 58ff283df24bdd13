"""What describes a thing: lines and tables, as text for terminals and as HTML in the colours of a notebook's page."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any

from daskprep.display.markup import Markup, element, join
from daskprep.display.words import count, cut

Row = tuple[str, ...]

_MOST_ROWS_TEXT, _MOST_ROWS_HTML = 60, 200
_LEAST_CHARACTERS = 6  # of a column
_TEXT_CELL_CHARACTERS = 48  # of all cells but the last of a row

# A grey that is seen on white and on black; all other colours are those of the page.
_ROW = "background:transparent;border-bottom:1px solid rgba(128,128,128,0.4)"
_CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0;overflow-wrap:anywhere"
_CAPTION = "caption-side:top;text-align:left;color:inherit"


@dataclass(frozen=True)
class Table:
    """Things with a row of text for each, made when it is shown, and what more of them are called."""

    head: Row
    things: Collection[Any]
    row: Callable[[Any], Row]
    noun: str

    def rows(self, most: int) -> list[Row]:
        """Return the names of the columns and the first rows, and how many more there are."""
        rows = [self.head, *map(self.row, islice(self.things, most))]
        more = len(self.things) - most
        return [*rows, (f"and {count(more, f'more {self.noun}')}",)] if more > 0 else rows


@dataclass(frozen=True)
class Description:
    """Lines of text, and tables below them."""

    lines: Sequence[str]
    tables: Sequence[Table]

    def text(self, width: int | None = None) -> str:
        """Return all as plain text, in columns; with a width, long cells are wrapped to fit."""
        lines = list(self.lines)
        for table in self.tables:
            rows = table.rows(_MOST_ROWS_TEXT)
            cells = [(*(cut(cell, _TEXT_CELL_CHARACTERS) for cell in row[:-1]), row[-1]) for row in rows]
            lines += aligned(cells, width)
        return "\n".join(lines)

    def html(self) -> Markup:
        """Return all as HTML that stands for itself: styles are inline, and every value is escaped."""
        first, *others = (table.rows(_MOST_ROWS_HTML) for table in self.tables)
        return join([notebook_table(first, *self.lines), *map(notebook_table, others)])


def aligned(rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Return a line for each row, with cells below each other; a row of a single cell may be as wide as it likes.

    With a width, the widest columns are narrowed until a line fits, and their cells take several lines.

    Examples
    --------
    >>> aligned([["split", "rows"], ["validation", "7"], ["and so on, and so on"]])
    ['split       rows', 'validation  7', 'and so on, and so on']
    >>> aligned([["feature", "learned"], ["city", "vocabulary of 4"]], width=20)
    ['feature  learned', 'city     vocabulary', '         of 4']
    """
    columns = zip(*(row for row in rows if len(row) == len(rows[0])), strict=True)
    widths = [max(map(len, column)) for column in columns]
    while width is not None and sum(widths) + 2 * len(widths) - 2 > width and max(widths) > _LEAST_CHARACTERS:
        widths[widths.index(max(widths))] -= 1
    lines: list[str] = []
    for row in rows:
        cells: list[list[str]] = [[cell] for cell in row]
        if width is not None and len(row) == len(widths):
            cells = [textwrap.wrap(cell, size) for cell, size in zip(row, widths, strict=True)]
        lines += ["  ".join(map(str.ljust, line, widths)).rstrip() for line in zip_longest(*cells, fillvalue="")]
    return lines


def notebook_table(rows: Sequence[Sequence[str]], *captions: str) -> Markup:
    """Return a table whose first row names its columns, below some lines of text; all cells and lines are escaped.

    A row of a single cell is as wide as the table.

    Examples
    --------
    >>> notebook_table([["split", "rows"], ["<b>", "7"]]).count("&lt;b&gt;")
    1
    """
    lines = [part for line in captions for part in (element("br"), line)][1:]
    head = [element("th", cell, scope="col", style=_CELL) for cell in rows[0]]
    body = []
    for row in rows[1:]:
        span = None if len(row) == len(head) else len(head)
        body.append([element("td", cell, colspan=span, style=_CELL) for cell in row])
    return element(
        "table",
        *([element("caption", *lines, style=_CAPTION)] if lines else []),
        *(element("tr", *cells, style=_ROW) for cells in [head, *body]),
        style="border-collapse:collapse;color:inherit",
    )


def settings_table(settings: Mapping[str, str], caption: str) -> Markup:
    """Return a table of settings by name."""
    return notebook_table([("setting", "value"), *settings.items()], caption)
