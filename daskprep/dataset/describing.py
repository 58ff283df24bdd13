"""Say what a dataset holds: splits, outputs and size, as text and as HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence

from daskprep.storage import Manifest

__all__ = ["describe_html", "describe_text"]

_MOST_OUTPUTS_HTML, _MOST_OUTPUTS_TEXT = 200, 40
_NAME_CHARACTERS = 60
_UNITS = ("", "KB", "MB", "GB", "TB")

# A grey that is seen on white and on black; all other colours are those of the page.
_ROW = "background:transparent;border-bottom:1px solid rgba(128,128,128,0.4)"
_CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0;overflow-wrap:anywhere"

Row = tuple[str, ...]


def describe_text(url: str, manifest: Manifest) -> str:
    """Return a line on the whole, a table of splits and one of outputs."""
    tables = [_splits(manifest), _outputs(manifest, _MOST_OUTPUTS_TEXT)]
    return "\n".join([_caption(url, manifest), *(line for rows in tables for line in _aligned(rows))])


def describe_html(url: str, manifest: Manifest) -> str:
    """Return the same as HTML: styles are inline, colours are those of the page, and every value is escaped."""
    caption = f'<div style="color:inherit">{html.escape(_caption(url, manifest))}</div>'
    return caption + "".join(map(_table, [_splits(manifest), _outputs(manifest, _MOST_OUTPUTS_HTML)]))


def _caption(url: str, manifest: Manifest) -> str:
    rows = sum(manifest.layout.rows.values())
    size = _size(sum(entry.bytes for entry in manifest.files.values()))
    return f"Dataset at {_printable(url)}: {_count(rows, 'row')}, {size} in {_count(len(manifest.files), 'file')}"


def _splits(manifest: Manifest) -> list[Row]:
    layout = manifest.layout
    rows = [(name, f"{rows:,}", f"{layout.blocks(name):,}") for name, rows in layout.rows.items()]
    return [("split", "rows", f"blocks of {_count(layout.block_rows, 'row')}"), *rows]


def _outputs(manifest: Manifest, limit: int) -> list[Row]:
    outputs = manifest.layout.outputs
    rows = [(_name(one.name), one.dtype, " x ".join(f"{size:,}" for size in one.shape)) for one in outputs[:limit]]
    if len(outputs) > limit:
        rows.append((f"and {len(outputs) - limit:,} more", "", ""))
    return [("output", "dtype", "row shape"), *rows]


def _aligned(rows: Sequence[Row]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _table(rows: Sequence[Row]) -> str:
    head = "".join(f'<th scope="col" style="{_CELL}">{html.escape(cell)}</th>' for cell in rows[0])
    body = ["".join(f'<td style="{_CELL}">{html.escape(cell)}</td>' for cell in row) for row in rows[1:]]
    lines = "".join(f'<tr style="{_ROW}">{line}</tr>' for line in [head, *body])
    return f'<table style="border-collapse:collapse;color:inherit">{lines}</table>'


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _size(size: float) -> str:
    power = 0
    while size >= 1000 and power < len(_UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:,.1f} {_UNITS[power]}" if power else _count(int(size), "byte")


def _name(text: str) -> str:
    return _printable(text if len(text) <= _NAME_CHARACTERS else f"{text[: _NAME_CHARACTERS - 1]}…")


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
