"""Tables: in columns for terminals, and as HTML for notebooks, in the colours of the page that they are put into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from daskprep.display.markup import Markup, element

__all__ = ["aligned", "notebook_table", "settings_table"]

# A grey that is seen on white and on black; all other colours are those of the page.
_ROW = "background:transparent;border-bottom:1px solid rgba(128,128,128,0.4)"
_CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0;overflow-wrap:anywhere"
_CAPTION = "caption-side:top;text-align:left;color:inherit"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, with cells below each other; a row of a single cell may be as wide as it likes.

    Examples
    --------
    >>> aligned([["split", "rows"], ["validation", "7"], ["and so on, and so on"]])
    ['split       rows', 'validation  7', 'and so on, and so on']
    """
    columns = zip(*(row for row in rows if len(row) == len(rows[0])), strict=True)
    widths = [max(map(len, column)) for column in columns]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


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
