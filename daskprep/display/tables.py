"""Tables for notebooks: they stand for themselves, in the colours of the page that they are put into."""

from __future__ import annotations

from collections.abc import Sequence

from daskprep.display.markup import Markup, element

__all__ = ["caption", "notebook_table"]

# A grey that is seen on white and on black; all other colours are those of the page.
_ROW = "background:transparent;border-bottom:1px solid rgba(128,128,128,0.4)"
_CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0;overflow-wrap:anywhere"


def caption(text: str) -> Markup:
    """Return a line of text."""
    return element("div", text, style="color:inherit")


def notebook_table(rows: Sequence[Sequence[str]]) -> Markup:
    """Return a table whose first row names its columns; all cells are escaped.

    Examples
    --------
    >>> notebook_table([["split", "rows"], ["<b>", "7"]]).count("&lt;b&gt;")
    1
    """
    head = [element("th", cell, scope="col", style=_CELL) for cell in rows[0]]
    body = [[element("td", cell, style=_CELL) for cell in row] for row in rows[1:]]
    lines = (element("tr", *cells, style=_ROW) for cells in [head, *body])
    return element("table", *lines, style="border-collapse:collapse;color:inherit")
