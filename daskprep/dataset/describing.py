"""Say what a dataset or a split holds: rows, outputs and size, as text and as HTML."""

from __future__ import annotations

from daskprep.display.tables import aligned, notebook_table
from daskprep.display.words import count, cut, printable, size
from daskprep.storage import Manifest

__all__ = ["describe_html", "describe_split_html", "describe_text"]

_MOST_OUTPUTS_HTML, _MOST_OUTPUTS_TEXT = 200, 40

Row = tuple[str, ...]


def describe_text(url: str, manifest: Manifest) -> str:
    """Return a line on the whole, a table of splits and one of outputs."""
    tables = [_splits(manifest), _outputs(manifest, _MOST_OUTPUTS_TEXT)]
    return "\n".join([_caption(url, manifest), *(line for rows in tables for line in aligned(rows))])


def describe_html(url: str, manifest: Manifest) -> str:
    """Return the same as HTML: styles are inline, colours are those of the page, and every value is escaped."""
    outputs = notebook_table(_outputs(manifest, _MOST_OUTPUTS_HTML))
    return notebook_table(_splits(manifest), _caption(url, manifest)) + outputs


def describe_split_html(url: str, manifest: Manifest, split: str) -> str:
    """Return a line on a split and a table of its outputs, as HTML."""
    layout = manifest.layout
    stored = sum(entry.bytes for name, entry in manifest.files.items() if name.startswith(f"{split}/"))
    blocks = f"{count(layout.blocks(split), 'block')} of up to {count(layout.block_rows, 'row')}"
    line = f'Split "{split}" of {printable(url)}: {count(layout.rows[split], "row")} in {blocks}, {size(stored)}'
    return notebook_table(_outputs(manifest, _MOST_OUTPUTS_HTML), line)


def _caption(url: str, manifest: Manifest) -> str:
    rows = sum(manifest.layout.rows.values())
    stored = size(sum(entry.bytes for entry in manifest.files.values()))
    return f"Dataset at {printable(url)}: {count(rows, 'row')}, {stored} in {count(len(manifest.files), 'file')}"


def _splits(manifest: Manifest) -> list[Row]:
    layout = manifest.layout
    rows = [(name, f"{rows:,}", f"{layout.blocks(name):,}") for name, rows in layout.rows.items()]
    return [("split", "rows", f"blocks of {count(layout.block_rows, 'row')}"), *rows]


def _outputs(manifest: Manifest, limit: int) -> list[Row]:
    outputs = manifest.layout.outputs
    rows: list[Row] = [("output", "dtype", "row shape")]
    rows += [(cut(one.name), one.dtype, " x ".join(f"{side:,}" for side in one.shape)) for one in outputs[:limit]]
    if len(outputs) > limit:
        rows.append((f"and {len(outputs) - limit:,} more",))
    return rows
