"""An output added to a written dataset: encoded separately, and committed beside the files of the other outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from daskprep.dataset import Dataset
from daskprep.dataset.filtered import StoredSplit
from daskprep.dataset.joined import open_folder
from daskprep.errors import ConfigError, DatasetExistsError
from daskprep.features import Feature
from daskprep.features.parameter_values import make_features
from daskprep.permutation import Integers
from daskprep.preprocessor import Preprocessor
from daskprep.sources import Source
from daskprep.split import split_from_dict
from daskprep.state import state_files, state_from_files
from daskprep.storage.arrays import ROW_ID, encode_chunk, encode_shard
from daskprep.storage.files import Folder
from daskprep.storage.layout import Layout
from daskprep.storage.manifest import APPENDED, NEXT, FileEntry, Manifest, read_versions
from daskprep.storage.reading import column_array, read_table
from daskprep.storage.tables import encode_table
from daskprep.writing.deleting import editable_root, stored_parts
from daskprep.writing.versions import SCRATCH, WriteOptions, commit, next_version, roll_forward

_GATHERED_BYTES = 64_000_000  # of new outputs, whose rows are read at a time
_Gather = Callable[[str, range], dict[str, np.ndarray]]
"""Returns the rows of a split at some positions, by new output."""
_File = tuple[str, Any, int, int | None]
"""Name, content, number of rows and slots of a file."""


def add_output(dataset: Dataset, name: str, feature: Feature | str, rows: Any, options: WriteOptions) -> Dataset:
    """Fit a feature, and add its outputs to all rows of a dataset; `Dataset.add` has the parameters.

    The outputs are written as a separate dataset in the scratch folder of the new version, which the same call
    continues if it is killed. Then the other files are linked, and the manifest is written last.
    """
    root = editable_root(dataset, "add")
    with root.lock():
        roll_forward(root)
        current = open_folder(root, dataset.base_dir, trusted=dataset.trusted)
        parts = stored_parts(current)
        [feature] = make_features({name: feature}, []).values()
        _check_addable(current, parts, name, feature)
        stored, version = parts[0], root / next_version(parts[0].version)
        leftovers = [one for one in version.sizes() if not one.startswith(f"{SCRATCH}/")]
        version.remove(*leftovers)
        is_function = callable(rows)
        source = _computed_columns(stored, name, feature, rows) if is_function else rows
        split = None if is_function else split_from_dict(stored.metadata["split"])
        new = Preprocessor({name: feature}, split=split, fit_on=stored.metadata["fit_on"])
        workers, progress = options.get("workers"), options.get("progress")
        new.fit(source, workers=workers, progress=progress).set_params(split=None)
        separate = version / SCRATCH / "added"
        try:
            added = new.write(source, separate.url, **options)
        except DatasetExistsError:  # other rows or another feature, of a call that was killed
            separate.remove_all()
            added = new.write(source, separate.url, **options)
        if dropped := len(added.rejects()):
            raise ConfigError(
                f'add: "{name}" drops {dropped:,} rows, which {current.url} has: use another missing_value_strategy'
            )
        manifest = _join(stored, added, new, version, by_position=is_function)
        if (versions := read_versions(root)) is None:
            commit(root, manifest)
        else:
            root.write(NEXT, manifest.to_bytes())
            root.write(APPENDED, dataclasses.replace(versions, digests=(manifest.digest,)).to_bytes())
            roll_forward(root)
        return open_folder(root, dataset.base_dir, trusted=dataset.trusted)


def _check_addable(current: Dataset, parts: list[Dataset], name: str, feature: Feature) -> None:
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


class _ComputedSource(Source):
    """The columns that a function computes from the decoded rows of a split, a partition per block."""

    def __init__(self, split: StoredSplit, columns: list[str], function: Callable[[pd.DataFrame], Any]) -> None:
        self.split, self.columns, self.function = split, columns, function
        self.row_counts = np.diff(split.layout.starts(split.name)).tolist()
        self.inputs = [output.name for output in split.layout.outputs if not output.stores_cells]

    def read_rows(self, partition: int, columns: list[str]) -> Mapping[str, Any]:
        rows = self.split.layout.block_range(self.split.name, partition)
        frame = self.split.dataset.decode(self.split._read(self.inputs, rows))
        result = self.function(frame)
        values = {name: result[name] for name in columns} if len(self.columns) > 1 else {self.columns[0]: result}
        for column in values.values():
            if len(column) != len(rows):
                raise ConfigError(
                    f"add: the function returned {len(column):,} values for {len(rows):,} rows: it must return one "
                    "for each"
                )
        return {name: np.asarray(column) for name, column in values.items()}


def _computed_columns(
    stored: Dataset, name: str, feature: Feature, function: Callable[[pd.DataFrame], Any]
) -> dict[str, Source]:
    columns = list(feature.reads(name))
    return {split: _ComputedSource(StoredSplit(stored, split), columns, function) for split in stored.splits}


def _join(stored: Dataset, added: Dataset, prep: Preprocessor, folder: Folder, *, by_position: bool) -> Manifest:
    """Write the files of a dataset that have added outputs, link the other files, and return the manifest.

    `added` has the rows of the source in its order, or with `by_position` the rows of the dataset.
    """
    old = stored.manifest
    outputs = (*old.layout.outputs, *added.layout.outputs)
    layout = Layout.from_dict(dataclasses.replace(old.layout, outputs=outputs).to_dict())  # which checks block_rows
    state = state_from_files(stored.files.read)  # with the names of files also if the dataset is not trusted
    state["features"] |= prep.to_state()["features"]
    files = dict(old.files)

    def write(name: str, data: Any, rows: int | None = None, slots: int | None = None) -> None:
        files[name] = FileEntry.from_data(name, data, rows, slots)
        folder.write(name, data)

    gather = _make_gather(stored, added, by_position=by_position)
    new_files = set[str]()
    for name, data in state_files(state).items():
        write(name, data)
        new_files.add(name)
    for split in layout.rows:
        for name, data in layout.metadata_files(split).items() if added.layout.matrices else ():
            write(name, data)
            new_files.add(name)
        for file in _encode_files(StoredSplit(stored, split), layout, added.layout, gather):
            write(*file)
            new_files.add(file[0])
    for name in sorted(files.keys() - new_files):
        folder.link(name, stored.files.folder)
    folder.sync(files, contents=False)
    return dataclasses.replace(
        old, version=next_version(old.version), layout=layout, files=files, missing_cells=None, duplicates=None
    )


def _make_gather(stored: Dataset, added: Dataset, *, by_position: bool) -> _Gather:
    """Return the function that reads the added outputs of the rows of a split; zeros for rows that were purged."""
    starts = {name: int(split.read(ROW_ID.name, 0, 1)[ROW_ID.name][0]) for name, split in added.splits.items()}
    total = sum(map(len, added.splits.values()))

    def gather(split: str, rows: range) -> dict[str, np.ndarray]:
        if by_position:
            return added[split]._read(None, rows)
        ids: Integers = StoredSplit(stored, split)._read(ROW_ID.name, rows)[ROW_ID.name]
        if len(ids) and ids.max() >= total:
            raise ConfigError(
                f"add: the rows are {total:,}, but {stored.url} has row {ids.max():,}: pass the rows that it was "
                "written from, in the same order"
            )
        arrays = {output.name: output.empty(len(ids)) for output in added.layout.outputs}
        for array in arrays.values():
            array[ids < 0] = 0
        for name, start in starts.items():
            at = np.flatnonzero((ids >= start) & (ids < start + len(added[name])))
            positions, inverse = np.unique(ids[at] - start, return_inverse=True)
            for output, values in added[name]._read(None, positions).items() if len(at) else ():
                arrays[output][at] = values[inverse]
        return arrays

    return gather


def _encode_files(split: StoredSplit, layout: Layout, new: Layout, gather: _Gather) -> Iterator[_File]:
    """Yield the files of a split that have added outputs: its tables, if some are scalars, and chunks or shards."""
    name, size = split.name, layout.block_rows
    parts = max(1, _GATHERED_BYTES // max(1, new.row_bytes * size * layout.part_blocks))
    for first in range(0, layout.parts(name), parts):
        numbers = range(first, min(first + parts, layout.parts(name)))
        rows = range(layout.part_range(name, numbers[0]).start, layout.part_range(name, numbers[-1]).stop)
        arrays = gather(name, rows)
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
