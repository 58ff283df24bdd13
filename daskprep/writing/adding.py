"""An output added to a written dataset: encoded separately, and committed beside the files of the other outputs."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from daskprep.classes import Mask, RowCounts, data_changed_error
from daskprep.dataset import Dataset
from daskprep.dataset.dataset import open_single
from daskprep.dataset.filtered import FilteredDataset, StoredSplit
from daskprep.dataset.joined import open_folder
from daskprep.display import format_count
from daskprep.errors import ConfigError, DatasetExistsError, warn
from daskprep.features import Feature, Learned
from daskprep.features.parameter_values import make_features
from daskprep.passes.table import source_columns
from daskprep.permutation import Integers
from daskprep.sources import Source
from daskprep.split import DROPPED, TRAIN, Splitter
from daskprep.split.base import ReadAgain, SplitArray
from daskprep.state import feature_params, state_files, state_from_files
from daskprep.steps import saved
from daskprep.storage.arrays import ROW_ID, encode_chunk, encode_shard
from daskprep.storage.files import Folder
from daskprep.storage.layout import SPLITS, Layout
from daskprep.storage.manifest import APPENDED, NEXT, FileEntry, Manifest, read_versions
from daskprep.storage.reading import column_array, read_table
from daskprep.storage.tables import encode_table
from daskprep.writing.deleting import editable_root, stored_parts
from daskprep.writing.memory import on_workers, plan_source
from daskprep.writing.versions import SCRATCH, Options, Recipe, commit, next_version, roll_forward
from daskprep.writing.write import write_source

_GATHERED_BYTES = 64_000_000  # of new outputs, whose rows are read at a time
_READ_ROWS = 1 << 20
_File = tuple[str, Any, int, int | None]
"""Name, content, number of rows and slots of a file."""


def add_output(dataset: Dataset, name: str, feature: Feature | str, rows: Any, options: Options) -> Dataset:
    """Fit a feature, and add its outputs to all rows of a dataset; `Dataset.add` has the parameters.

    The outputs are written as a separate dataset in the scratch folder of the new version, which the same call
    continues if it is killed. Then the other files are linked, and the manifest is written last.
    """
    options.check()
    root = editable_root(dataset, "add")
    with root.lock():
        roll_forward(root)
        current = open_folder(root, dataset.base_dir, trusted=dataset.trusted)
        parts = stored_parts(current)
        [feature] = make_features({name: feature}, []).values()
        _check_addable(current, parts, name, feature)
        stored, version = parts[0], root / next_version(parts[0].version)
        version.remove(*(one for one in version.sizes() if not one.startswith(f"{SCRATCH}/")))
        computed = None
        if callable(rows):
            rows = computed = _ComputedSource(stored, list(feature.reads(name)), rows)
        members = _find_members(current, stored, by_position=computed is not None)
        with on_workers(rows, options.workers, options.memory, feature, **options.source_options):
            columns = source_columns({name: feature}, ())
            source = computed or plan_source(rows, columns, options.memory, options.source_options)
            added = _write_added(name, feature, source, members, version / SCRATCH / "added", options)
        manifest = _join(stored, added, members, version, by_position=computed is not None)
        if (versions := read_versions(root)) is None:
            commit(root, manifest)
        else:
            root.write(NEXT, manifest.to_bytes())
            root.write(APPENDED, dataclasses.replace(versions, digests=(manifest.digest,)).to_bytes())
            roll_forward(root)
        return open_folder(root, dataset.base_dir, trusted=dataset.trusted)


def _check_addable(current: Dataset, parts: Sequence[Dataset], name: str, feature: Feature) -> None:
    """Raise ConfigError for a name that is taken, and for datasets and features whose rows cannot be joined."""
    problem = None
    if name in current.features:
        problem = f'it has a feature "{name}" already: pass another name, and column= of the feature'
    elif len(parts) > 1:
        problem = f"it has {len(parts)} parts, of appended rows: write it again with this feature"
    elif current.metadata.get("sample") is not None:
        problem = "it has a sample of its rows: write it again with this feature"
    elif getattr(feature, "mode", "eager") != "eager":
        problem = 'media that are decoded while they are loaded cannot be added: use mode="eager"'
    if problem:
        raise ConfigError(f'add: "{name}" cannot be added to {current.url}: {problem}')


@dataclass(frozen=True)
class _Assignment:
    """The splits of the rows of one partition."""

    splits: SplitArray

    def assign(self, table: pa.Table, keep: Mask | None) -> SplitArray:
        if table.num_rows != len(self.splits):
            raise data_changed_error("The number of rows")
        return self.splits if keep is None else np.where(keep, self.splits, np.uint8(DROPPED))


class _Members(Splitter):
    """The split of each row of the source in a dataset, `DROPPED` for rows that it does not have."""

    type = "members"

    def __init__(self, splits: SplitArray, url: str) -> None:
        self.splits, self.url = splits, url

    def plan(self, censuses: Sequence[RowCounts], read_again: ReadAgain = None) -> list[_Assignment]:
        """Return the splits of each partition; ConfigError for too few rows, and a warning for more of them."""
        starts = list(accumulate((census.rows for census in censuses), initial=0))
        total, known = starts[-1], len(self.splits)
        if total < known:
            raise ConfigError(
                f"add: the rows are {total:,}, but {self.url} has row {known - 1:,}: pass the rows that it was written "
                "from, in the same order"
            )
        if total > known:
            warn(
                f"add: {format_count(total - known, 'row')} after row {known - 1:,} are left out, since {self.url} has "
                "none of them: check that these are the rows that it was written from, in the same order"
            )
        splits = np.concatenate([self.splits, np.full(total - known, DROPPED, np.uint8)])
        return [_Assignment(splits[start : start + one.rows]) for start, one in zip(starts, censuses, strict=False)]

    def to_dict(self) -> dict[str, Any]:
        return {"type": self.type, "digest": hashlib.sha256(self.splits.tobytes()).hexdigest()}

    def positions(self, ids: Integers, split: int) -> Integers:
        """Return the positions of rows of a split, among the rows of this split in the order of the source."""
        if split not in self._rows:
            self._rows[split] = np.flatnonzero(self.splits == split)
        return np.searchsorted(self._rows[split], ids)

    @functools.cached_property
    def _rows(self) -> dict[int, Integers]:
        return {}


def _find_members(current: Dataset, stored: Dataset, *, by_position: bool) -> _Members:
    """Return the split of each row of the source, or with `by_position` of each stored row, split after split.

    Deleted rows, and the places of rows that were purged, are not in a dataset. All rows are for training if the
    features of the dataset were fitted on all.
    """
    fits_on_all = current.metadata["fit_on"] == "all"
    hidden = current.hidden if isinstance(current, FilteredDataset) else {}
    rejects = stored.rejects()[ROW_ID.name].to_numpy()
    rows = sum(stored.manifest.layout.rows.values())
    splits = np.full(rows if by_position else int(rejects.max(initial=-1)) + 1, DROPPED, np.uint8)
    for name, start, ids in _read_ids(stored):
        positions = np.arange(start, start + len(ids))
        kept = (ids >= 0) & ~np.isin(positions, hidden.get(name, ()))
        numbers = positions + _offset(stored, name) if by_position else ids
        if (highest := int(numbers.max(initial=-1))) >= len(splits):
            splits = np.concatenate([splits, np.full(highest + 1 - len(splits), DROPPED, np.uint8)])
        splits[numbers[kept]] = TRAIN if fits_on_all else SPLITS.index(name)
    return _Members(splits, stored.url)


def _read_ids(stored: Dataset) -> Iterator[tuple[str, int, Integers]]:
    """Yield the name of a split, the position of a row in it, and the row ids from there on, of all stored rows."""
    for name, rows in stored.manifest.layout.rows.items():
        for start in range(0, rows, _READ_ROWS):
            positions = range(start, min(start + _READ_ROWS, rows))
            yield name, start, StoredSplit(stored, name)._read(ROW_ID.name, positions)[ROW_ID.name]


def _offset(stored: Dataset, split: str) -> int:
    """Return the number of stored rows in the splits before a split."""
    rows = stored.manifest.layout.rows
    return sum(rows[name] for name in list(rows)[: list(rows).index(split)])


class _ComputedSource(Source):
    """The columns that a function computes from the decoded rows of a dataset: a partition per block of each split."""

    def __init__(self, stored: Dataset, columns: list[str], function: Callable[[pd.DataFrame], Any]) -> None:
        layout = stored.manifest.layout
        self.stored, self.columns, self.function = stored, columns, function
        self.blocks = [(name, block) for name in layout.rows for block in range(layout.blocks(name))]
        self.row_counts = [len(layout.block_range(*block)) for block in self.blocks]
        self.inputs = [output.name for output in layout.outputs if not output.stores_cells]

    def read_rows(self, partition: int, columns: list[str]) -> Mapping[str, Any]:
        name, block = self.blocks[partition]
        rows = self.stored.manifest.layout.block_range(name, block)
        result = self.function(self.stored.decode(StoredSplit(self.stored, name)._read(self.inputs, rows)))
        values = {column: result[column] for column in columns} if len(self.columns) > 1 else {self.columns[0]: result}
        for column in values.values():
            if len(column) != len(rows):
                raise ConfigError(
                    f"add: the function returned {len(column):,} values for {len(rows):,} rows: it must return one "
                    "for each"
                )
        return {column: np.asarray(cells) for column, cells in values.items()}


def _write_added(
    name: str, feature: Feature, source: Source, members: _Members, folder: Folder, options: Options
) -> Dataset:
    """Return the dataset of a feature that is fitted on and written from the members, in the order of the source."""

    def describe(learned: Mapping[str, Learned] | None) -> dict[str, Any]:
        state = {"type": feature.kind, "params": feature_params(name, feature)}
        state |= {} if learned is None else {"learned": learned[name].to_state()}
        common = {"format": saved.PLAIN_FORMAT, "balance": None, "fit_on": "train", "split": members.to_dict()}
        return {**common, "features": {name: state}}

    recipe = Recipe({name: feature}, members, None, "train", None, describe)
    try:
        write_source(recipe, source, folder, options)
    except DatasetExistsError:  # other rows or another feature, of a call that was killed
        folder.remove_all()
        write_source(recipe, source, folder, options)
    added = open_single(folder, None, trusted=True)
    expected = sum(int(np.count_nonzero(members.splits == split)) for split in range(len(SPLITS)))
    if missing := expected - sum(added.layout.rows.values()):
        raise ConfigError(
            f'add: "{name}" drops {format_count(missing, "row")} that the dataset has: use another '
            "missing_value_strategy"
        )
    return added


def _join(stored: Dataset, added: Dataset, members: _Members, folder: Folder, *, by_position: bool) -> Manifest:
    """Write the files of a dataset that have added outputs, link the other files, and return the manifest."""
    old = stored.manifest
    outputs = (*old.layout.outputs, *added.layout.outputs)
    layout = Layout.from_dict(dataclasses.replace(old.layout, outputs=outputs).to_dict())  # which checks block_rows
    state = state_from_files(stored.files.read)  # with the names of files also if the dataset is not trusted
    state["features"] |= state_from_files(added.files.read)["features"]
    files, new_files = dict(old.files), set[str]()

    def write(name: str, data: Any, rows: int | None = None, slots: int | None = None) -> None:
        files[name] = FileEntry.from_data(name, data, rows, slots)
        folder.write(name, data)
        new_files.add(name)

    for name, data in state_files(state).items():
        write(name, data)
    for name in layout.rows:
        split = StoredSplit(stored, name)
        for file, data in layout.metadata_files(name).items() if added.layout.matrices else ():
            write(file, data)

        def gather(rows: range, split: StoredSplit = split) -> dict[str, np.ndarray]:
            if by_position:
                return _gather(added, members, np.arange(rows.start, rows.stop) + _offset(stored, split.name))
            return _gather(added, members, split._read(ROW_ID.name, rows)[ROW_ID.name])

        for one in _encode_files(split, layout, added.layout, gather):
            write(*one)
    for name in sorted(files.keys() - new_files):
        folder.link(name, stored.files.folder)
    folder.sync(files, contents=False)
    unknown: dict[str, Any] = {"missing_cells": None, "duplicates": None, "missing": None}
    return dataclasses.replace(old, version=next_version(old.version), layout=layout, files=files, **unknown)


def _gather(added: Dataset, members: _Members, ids: Integers) -> dict[str, np.ndarray]:
    """Return the added outputs of rows of the source; zeros for rows that are deleted or purged."""
    arrays = {output.name: output.empty(len(ids)) for output in added.layout.outputs}
    splits = np.where(ids < 0, np.uint8(DROPPED), members.splits[ids])
    for array in arrays.values():
        array[splits == DROPPED] = 0
    for name, split in added.splits.items():
        at = np.flatnonzero(splits == SPLITS.index(name))
        if len(at):
            positions, inverse = np.unique(members.positions(ids[at], SPLITS.index(name)), return_inverse=True)
            is_range = positions[-1] - positions[0] == len(positions) - 1
            rows = range(int(positions[0]), int(positions[-1]) + 1) if is_range else positions
            for output, values in split._read(None, rows).items():
                arrays[output][at] = values[inverse]
    return arrays


def _encode_files(
    split: StoredSplit, layout: Layout, new: Layout, gather: Callable[[range], dict[str, np.ndarray]]
) -> Iterator[_File]:
    """Yield the files of a split that have added outputs: its tables, if some are scalars, and chunks or shards."""
    name, size = split.name, layout.block_rows
    parts = max(1, _GATHERED_BYTES // max(1, new.row_bytes * size * layout.part_blocks))
    for first in range(0, layout.parts(name), parts):
        numbers = range(first, min(first + parts, layout.parts(name)))
        rows = range(layout.part_range(name, numbers[0]).start, layout.part_range(name, numbers[-1]).stop)
        arrays = gather(rows)
        for number in numbers:
            part = layout.part_range(name, number)
            own = {output: array[part.start - rows.start : part.stop - rows.start] for output, array in arrays.items()}
            if new.scalars:
                yield layout.table_file(name, number), _extend_table(split, layout, new, number, own), len(part), None
            for output in new.matrices:
                chunks = [
                    encode_chunk(own[output.name][start : start + size], size, layout.compression)
                    for start in range(0, len(part), size)
                ]
                if layout.sharded:
                    shard = encode_shard(chunks, layout.part_blocks)
                    yield layout.array_file(name, output, number), shard, len(part), layout.part_blocks
                    continue
                for block, chunk in zip(layout.part_block_range(name, number), chunks, strict=True):
                    yield layout.array_file(name, output, block), chunk, len(layout.block_range(name, block)), None


def _extend_table(split: StoredSplit, layout: Layout, new: Layout, part: int, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the table of a part with the added scalars, in the order of the layout."""
    rows = layout.part_range(split.name, part)
    [(location, _, _)] = split._select_row_groups(rows)
    old = split.layout
    table = read_table(split.dataset.files.folder, location, [ROW_ID, *old.scalars, *old.cells])
    columns: dict[str, Any] = {one.name: column_array(table, one) for one in (ROW_ID, *old.scalars)}
    columns |= {one.name: arrays[one.name] for one in new.scalars}
    columns |= {one.name: table[one.name].combine_chunks() for one in old.cells}
    starts = range(0, len(rows), layout.block_rows)
    batches = ({one: column[start : start + layout.block_rows] for one, column in columns.items()} for start in starts)
    return encode_table(batches, layout.block_rows, layout.compression)
