"""Summaries of a dataset or a split for `repr` and notebooks: rows, outputs, size and first rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from daskprep.columns.display import (
    Description,
    Row,
    Table,
    escape_unprintable,
    format_bytes,
    format_count,
    format_share,
    format_value,
    truncate,
)
from daskprep.errors import DaskprepError
from daskprep.features.base import all_outputs, fills_with_one_value
from daskprep.features.checking import encode_fill_value
from daskprep.storage import Layout, Manifest, Output
from daskprep.storage.manifest import FIRST_ROWS, DuplicateRows

_MAX_COLUMNS = 40
_MAX_ROW_IDS = 5
_MAX_BLOCK_BYTES = 16_000_000  # of all columns together
_MAX_CELL_CHARACTERS, _MAX_ERROR_CHARACTERS = 32, 200


def describe_dataset(
    url: str,
    layout: Layout,
    manifests: Sequence[Manifest],
    duplicates: Mapping[str, DuplicateRows] | None,
    *more: Description,
) -> Description:
    """Return a line on the dataset, on duplicates across splits, a table of splits, `more`, and a table of outputs."""
    entries = [entry for manifest in manifests for entry in manifest.files.values()]
    stored, files = format_bytes(sum(entry.bytes for entry in entries)), format_count(len(entries), "file")
    rows = format_count(sum(layout.rows.values()), "row")
    line = f"Dataset at {escape_unprintable(url)}: {rows}, {stored} in {files}"

    def row(split: str) -> Row:
        return split, f"{layout.rows[split]:,}", f"{layout.blocks(split):,}"

    lines = [line, *describe_duplicates(layout, duplicates or {})]
    splits = Table(("split", "rows", f"blocks of {format_count(layout.block_rows, 'row')}"), layout.rows, row, "split")
    return _join_descriptions(Description(lines, [splits]), *more, Description([], [_outputs_table(layout)]))


def describe_duplicates(layout: Layout, duplicates: Mapping[str, DuplicateRows]) -> list[str]:
    """Return a sentence for each split but the first that has rows with the inputs of rows of other splits."""
    sentences = []
    for split in list(layout.rows)[1:]:
        if split in duplicates:
            rows, other_target, sample, _ = duplicates[split]
            share = format_share(rows, layout.rows[split])
            targets = f", {other_target:,} of them with another target" if other_target else ""
            ids = ", ".join(map(str, sample[:_MAX_ROW_IDS]))
            sentences.append(
                f"{format_count(rows, 'row')} of {split} ({share}) {'has' if rows == 1 else 'have'} the same inputs as "
                f"rows of other splits{targets}; row ids: {ids}{', ...' * (rows > _MAX_ROW_IDS)}"
            )
    return sentences


def describe_split(
    url: str, layout: Layout, manifests: Sequence[Manifest], split: str, *more: Description
) -> Description:
    """Return a line with rows, blocks and bytes of a split, the descriptions `more`, and a table of its outputs."""
    files = [file for manifest in manifests for file in manifest.files.items()]
    stored = sum(entry.bytes for name, entry in files if name.startswith(f"{split}/"))
    blocks = f"{format_count(layout.blocks(split), 'block')} of up to {format_count(layout.block_rows, 'row')}"
    line = (
        f'Split "{split}" of {escape_unprintable(url)}: {format_count(layout.rows[split], "row")} in {blocks}, '
        f"{format_bytes(stored)}"
    )
    return _join_descriptions(Description([line], []), *more, Description([], [_outputs_table(layout)]))


def describe_rows(split: Any) -> Description:
    """Return a table of the first rows of a local split, without media; empty for remote splits."""
    if not split.is_local:
        return Description([], [])
    try:
        head, *rows = read_first_rows(split)
    except (DaskprepError, OSError) as error:
        return Description([f"The first rows cannot be read: {truncate(str(error), _MAX_ERROR_CHARACTERS)}"], [])
    return Description([], [Table(head, rows, tuple, "row")] if head else [])


def read_first_rows(split: Any) -> list[Row]:
    """Return a row of feature names and the first decoded rows.

    Imputed cells are marked. Left out are media, columns from the 41st on, and those whose blocks take too much memory.
    """
    columns: list[str] = []
    left = _MAX_BLOCK_BYTES
    for name, feature in islice(split.dataset.features.items(), _MAX_COLUMNS):
        outputs = [split.output(name + suffix) for suffix in all_outputs(feature)]
        needed = sum(output.row_bytes for output in outputs) * split.layout.block_rows
        if feature.semantic_type not in ("images", "sounds") and needed <= left:
            columns += [output.name for output in outputs]
            left -= needed
    arrays = split.read(columns, stop=FIRST_ROWS)
    frame = split.dataset.decode(arrays)
    marks = _find_marks(split, arrays)
    # With a name, pandas would compile a namedtuple of the column names.
    cells = frame.itertuples(index=False, name=None)
    rows = [
        tuple(
            _append_mark(format_value(value, _MAX_CELL_CHARACTERS), marks.get((row_index, str(name)), ""))
            for name, value in zip(frame.columns, row, strict=True)
        )
        for row_index, row in enumerate(cells)
    ]
    return [tuple(truncate(str(name), _MAX_CELL_CHARACTERS) for name in frame.columns), *rows]


def _find_marks(split: Any, arrays: Mapping[str, np.ndarray]) -> dict[tuple[int, str], str]:
    """Return "missing" or "unreadable" for the imputed cells of the first rows, by row position and feature.

    Manifests of older datasets do not list them: there, cells that equal the encoded fill value are marked "maybe".
    """
    marks: dict[tuple[int, str], str] = {}
    start = 0
    for part in split.joined:
        if (imputed := part.dataset.segments[0].missing_cells) is not None:
            marks |= {(start + row, name): kind for owner, row, name, kind in imputed if owner == split.name}
        else:
            features = ((name, feature, part.dataset.learned[name]) for name, feature in part.dataset.features.items())
            for name, feature, learned in features:
                if learned.missing and name + feature.outputs[0] in arrays and fills_with_one_value(feature):
                    filled = encode_fill_value(feature, learned)
                    cells_equal = [(arrays[name + suffix] == row[0]) for suffix, row in filled.items()]
                    equal = np.all([cells.reshape(len(cells), -1).all(axis=1) for cells in cells_equal], axis=0)
                    rows = start + np.flatnonzero(equal[start : start + len(part)])
                    marks |= {(int(row), name): "maybe" for row in rows}
        start += len(part)
    return marks


def _append_mark(text: str, mark: str) -> str:
    """Return the text of a cell with its mark from `_find_marks`."""
    if not text:
        return f"({mark})" if mark in ("missing", "unreadable") else text
    notes = {"": "", "missing": " (imputed)", "unreadable": " (unreadable, imputed)"}
    return text + notes.get(mark, " (maybe imputed)")


def _join_descriptions(*parts: Description) -> Description:
    return Description([line for part in parts for line in part.lines], [one for part in parts for one in part.tables])


def _outputs_table(layout: Layout) -> Table:
    """Return a table of outputs: name, dtype, shape of a row."""

    def row(output: Output) -> Row:
        return truncate(output.name), output.dtype, " x ".join(f"{side:,}" for side in output.shape)

    return Table(("output", "dtype", "row shape"), layout.outputs, row, "output")
