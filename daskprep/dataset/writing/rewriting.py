"""Next versions of a written dataset: its recipe, its stored rows, and files that differ."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from daskprep.columns.permutation import Integers
from daskprep.dataset import Dataset
from daskprep.dataset.options import WriteOptions
from daskprep.dataset.split import Split
from daskprep.dataset.writing.encoded import EncodedOrCells
from daskprep.dataset.writing.parts import NewFile, write_file
from daskprep.dataset.writing.versions import SCRATCH, Recipe, next_version
from daskprep.passes.state import METADATA, state_from_files
from daskprep.rows.saved import error_context
from daskprep.sources.balance import balance_from_dict
from daskprep.sources.split import split_from_dict
from daskprep.storage.arrays import ROW_ID, Output
from daskprep.storage.manifest import Manifest
from daskprep.storage.reading import column_array, read_table

_READ_ROWS = 1 << 20


def read_recipe(dataset: Dataset) -> Recipe:
    """Return the preprocessing of the rows of a dataset."""
    state = state_from_files(dataset.files.read)  # with the names of files also if the dataset is not trusted
    with error_context(METADATA):
        split, balance = split_from_dict(state["split"]), balance_from_dict(state["balance"])
    features = {name: {key: one[key] for key in one if key != "learned"} for name, one in state["features"].items()}

    def describe(learned: object) -> dict[str, Any]:
        return state if learned is not None else {**state, "features": features}

    return Recipe(dataset.features, split, balance, state["fit_on"], dataset.learned, describe)


def stored_options(dataset: Dataset) -> WriteOptions:
    """Return the options of the write of a dataset that determine its bytes."""
    layout, seed = dataset.manifest.layout, dataset.manifest.settings.get("shuffle_seed")
    return WriteOptions(
        shuffle=seed is not None,
        seed=seed or 0,
        block_rows=layout.block_rows,
        compression=layout.compression,
        shards=layout.sharded,
    )


def read_row_ids(stored: Dataset) -> Iterator[tuple[str, int, Integers]]:
    """Yield the name of a split, the position of a row in it, and the row ids from there on, of all stored rows."""
    for name, rows in stored.manifest.layout.rows.items():
        for start in range(0, rows, _READ_ROWS):
            positions = range(start, min(start + _READ_ROWS, rows))
            yield name, start, stored[name]._read(ROW_ID.name, positions)[ROW_ID.name]


class StoredPart:
    """The stored rows of a part of a split."""

    def __init__(self, split: Split, number: int) -> None:
        self.split, self.number, self.range = split, number, split.layout.part_range(split.name, number)

    @cached_property
    def _table(self) -> pa.Table:
        [(location, _, _)] = self.split._select_row_groups(self.range)
        layout = self.split.layout
        return read_table(self.split.dataset.files.folder, location, [ROW_ID, *layout.scalars, *layout.cells])

    def read(self, output: Output, start: int, stop: int) -> EncodedOrCells:
        """Return rows of an output for `encode_part`."""
        if output.stores_cells:
            return self._table[output.name].combine_chunks()[start:stop]
        if output.is_scalar:
            return column_array(self._table, output)[start:stop]
        return self.split._read(output.name, self.range[start:stop])[output.name]


def write_next_version(
    old: Dataset, changed: Iterable[NewFile], removed: Collection[str] = (), **fields: Any
) -> Manifest:
    """Write the next version of a dataset with the `changed` files, and return its manifest with other `fields`.

    It has no statistics of its rows but those in `fields`. All files but the `removed` ones are shared.
    """
    folder = old.root / next_version(old.version)
    folder.remove(*(name for name in folder.sizes() if not name.startswith(f"{SCRATCH}/")))
    new = {one.name: write_file(folder, one) for one in changed}
    shared = {name: one for name, one in old.manifest.files.items() if name not in new and name not in removed}
    for name in sorted(shared):
        folder.link(name, old.files.folder)
    folder.sync([*new, *shared], contents=False)
    unknown = dict.fromkeys(("missing_cells", "duplicates", "losses", "missing"))
    version = {"version": next_version(old.version), "files": {**shared, **new}}
    return replace(old.manifest, **{**version, **unknown, **fields})
