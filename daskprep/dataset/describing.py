"""Say what a dataset or a split holds: rows, outputs and size."""

from __future__ import annotations

from collections.abc import Sequence

from daskprep.display.tables import Description, Row, Table
from daskprep.display.words import count, cut, printable, size
from daskprep.storage import Layout, Manifest, Output


def describe_dataset(url: str, layout: Layout, manifests: Sequence[Manifest]) -> Description:
    """Return a line on the whole, a table of splits and one of outputs."""
    entries = [entry for manifest in manifests for entry in manifest.files.values()]
    stored, files = size(sum(entry.bytes for entry in entries)), count(len(entries), "file")
    line = f"Dataset at {printable(url)}: {count(sum(layout.rows.values()), 'row')}, {stored} in {files}"

    def row(split: str) -> Row:
        return split, f"{layout.rows[split]:,}", f"{layout.blocks(split):,}"

    splits = Table(("split", "rows", f"blocks of {count(layout.block_rows, 'row')}"), layout.rows, row, "split")
    return Description([line], [splits, _outputs(layout)])


def describe_split(url: str, layout: Layout, manifests: Sequence[Manifest], split: str) -> Description:
    """Return a line on a split and a table of its outputs."""
    files = [file for manifest in manifests for file in manifest.files.items()]
    stored = sum(entry.bytes for name, entry in files if name.startswith(f"{split}/"))
    blocks = f"{count(layout.blocks(split), 'block')} of up to {count(layout.block_rows, 'row')}"
    line = f'Split "{split}" of {printable(url)}: {count(layout.rows[split], "row")} in {blocks}, {size(stored)}'
    return Description([line], [_outputs(layout)])


def _outputs(layout: Layout) -> Table:
    return Table(("output", "dtype", "row shape"), layout.outputs, _output_row, "output")


def _output_row(output: Output) -> Row:
    return cut(output.name), output.dtype, " x ".join(f"{side:,}" for side in output.shape)
