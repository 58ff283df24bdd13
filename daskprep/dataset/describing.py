"""Say what a dataset or a split holds: rows, outputs and size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from daskprep.display.tables import Description, Row, Table
from daskprep.display.words import count, cut, printable, size, value_text
from daskprep.errors import DaskprepError
from daskprep.features.base import all_outputs, fills_all
from daskprep.features.checking import filled_row
from daskprep.storage import Layout, Manifest, Output
from daskprep.storage.manifest import FIRST_ROWS

_MOST_COLUMNS = 40
_BLOCK_BYTES = 16_000_000  # of all columns together
_CELL_CHARACTERS, _ERROR_CHARACTERS = 32, 200


def describe_dataset(url: str, layout: Layout, manifests: Sequence[Manifest], *more: Description) -> Description:
    """Return a line on the whole, a table of splits and one of outputs."""
    entries = [entry for manifest in manifests for entry in manifest.files.values()]
    stored, files = size(sum(entry.bytes for entry in entries)), count(len(entries), "file")
    line = f"Dataset at {printable(url)}: {count(sum(layout.rows.values()), 'row')}, {stored} in {files}"

    def row(split: str) -> Row:
        return split, f"{layout.rows[split]:,}", f"{layout.blocks(split):,}"

    splits = Table(("split", "rows", f"blocks of {count(layout.block_rows, 'row')}"), layout.rows, row, "split")
    return _joined(Description([line], [splits]), *more, Description([], [_outputs(layout)]))


def describe_split(
    url: str, layout: Layout, manifests: Sequence[Manifest], split: str, *more: Description
) -> Description:
    """Return a line on a split and a table of its outputs."""
    files = [file for manifest in manifests for file in manifest.files.items()]
    stored = sum(entry.bytes for name, entry in files if name.startswith(f"{split}/"))
    blocks = f"{count(layout.blocks(split), 'block')} of up to {count(layout.block_rows, 'row')}"
    line = f'Split "{split}" of {printable(url)}: {count(layout.rows[split], "row")} in {blocks}, {size(stored)}'
    return _joined(Description([line], []), *more, Description([], [_outputs(layout)]))


def describe_rows(split: Any) -> Description:
    """Return the first rows of a split: of local files, without media, from blocks of a few megabytes."""
    if not split.is_local:
        return Description([], [])
    try:
        head, *rows = first_rows(split)
    except (DaskprepError, OSError) as error:
        return Description([f"The first rows cannot be read: {cut(str(error), _ERROR_CHARACTERS)}"], [])
    return Description([], [Table(head, rows, tuple, "row")] if head else [])


def first_rows(split: Any) -> list[Row]:
    """Return the names of the first features and their first values, decoded; imputed cells are marked."""
    columns: list[str] = []
    left = _BLOCK_BYTES
    for name, feature in islice(split.dataset.features.items(), _MOST_COLUMNS):
        outputs = [split.output(name + suffix) for suffix in all_outputs(feature)]
        needed = sum(output.row_bytes for output in outputs) * split.layout.block_rows
        if feature.holds not in ("images", "sounds") and needed <= left:
            columns += [output.name for output in outputs]
            left -= needed
    arrays = split.read(columns, stop=FIRST_ROWS)
    frame = split.dataset.decode(arrays)
    marks = _marks(split, arrays)
    # pandas compiles a class with the names of the columns, unless rows have no name.
    cells = frame.itertuples(index=False, name=None)
    rows = [
        tuple(
            _marked(value_text(value, _CELL_CHARACTERS), marks.get((place, str(name)), ""))
            for name, value in zip(frame.columns, row, strict=True)
        )
        for place, row in enumerate(cells)
    ]
    return [tuple(cut(str(name), _CELL_CHARACTERS) for name in frame.columns), *rows]


def _marks(split: Any, arrays: Mapping[str, np.ndarray]) -> dict[tuple[int, str], str]:
    """Return which of the first cells were missing or unreadable, by row and feature.

    Older datasets do not say so: there, these are cells that are encoded as missing ones are.
    """
    marks: dict[tuple[int, str], str] = {}
    start = 0
    for one in split.joined:
        if (gaps := one.dataset.manifest.gaps) is not None:
            marks |= {(start + place, name): kind for of, place, name, kind in gaps if of == split.name}
        else:
            features = ((name, feature, one.dataset.learned[name]) for name, feature in one.dataset.features.items())
            for name, feature, learned in features:
                if learned.missing and name + feature.outputs[0] in arrays and fills_all(feature):
                    filled = filled_row(feature, learned)
                    alike = [(arrays[name + suffix] == row[0]) for suffix, row in filled.items()]
                    equal = np.all([part.reshape(len(part), -1).all(axis=1) for part in alike], axis=0)
                    places = start + np.flatnonzero(equal[start : start + len(one)])
                    marks |= {(int(place), name): "maybe" for place in places}
        start += len(one)
    return marks


def _marked(text: str, mark: str) -> str:
    if not text:
        return f"({mark})" if mark in ("missing", "unreadable") else text
    return text + {"": "", "missing": " (imputed)", "unreadable": " (unreadable, imputed)"}.get(
        mark, " (maybe imputed)"
    )


def _joined(*parts: Description) -> Description:
    return Description([line for one in parts for line in one.lines], [table for one in parts for table in one.tables])


def _outputs(layout: Layout) -> Table:
    def row(output: Output) -> Row:
        return cut(output.name), output.dtype, " x ".join(f"{side:,}" for side in output.shape)

    return Table(("output", "dtype", "row shape"), layout.outputs, row, "output")
