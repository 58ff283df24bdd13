"""Parts of a dataset merged into one, with blocks of full size."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc

from daskprep.dataset import Dataset, FoldedDataset
from daskprep.dataset.opening import open_folder
from daskprep.dataset.options import Options
from daskprep.dataset.segments import REJECTED, HiddenRows, encode_deleted
from daskprep.dataset.writing.deleting import (
    PURGED_ROW_ID,
    editable_root,
    listed_versions,
    read_unfinished,
    remove_unlisted_rows,
)
from daskprep.dataset.writing.encoded import EncodedOrCells, concatenate
from daskprep.dataset.writing.parts import NewFile, encode_part
from daskprep.dataset.writing.plan import choose_layout
from daskprep.dataset.writing.rejects import encode_rejects
from daskprep.dataset.writing.rewriting import StoredPart, read_row_ids, write_next_version
from daskprep.dataset.writing.versions import roll_forward
from daskprep.storage import Layout
from daskprep.storage.arrays import ROW_ID, Output
from daskprep.storage.layout import SPLITS
from daskprep.storage.manifest import APPENDED, FIRST_ROWS, NEXT, Manifest
from daskprep.storage.tables import REJECTS, REJECTS_SCHEMA


def compact_parts(dataset: Dataset) -> Dataset:
    """Merge the parts of a dataset into one, and return it, as `Dataset.compact` documents it.

    The list of versions commits. Killed before, this leaves the next version of the first part, which the next writer
    removes; killed later, the old files, which it removes as well.
    """
    if isinstance(dataset, FoldedDataset):
        return dataset  # nothing is appended to folds
    root = editable_root(dataset, "compact")
    with root.lock():
        roll_forward(root)
        current = open_folder(root, dataset.base_dir, trusted=dataset.trusted)
        versions = listed_versions(root, current)
        if len(current.segments) > 1:
            read_unfinished(root, versions)  # removes receipts that lack a commit, which this commit would seem to be
            stored = current._stored
            first_ids = list(itertools.accumulate(map(_count_row_ids, stored.datasets), initial=0))
            root.write(NEXT, (manifest := _write(stored, first_ids)).to_bytes())
            hidden = _join_hidden(current, first_ids)
            name, data = encode_deleted([hidden])
            if hidden:
                root.write(name, data)
            states = (*(None for _ in versions.states), (1, name if hidden else None))
            versions = dataclasses.replace(versions, digests=(manifest.digest,), states=states)
            root.write(APPENDED, versions.to_bytes())
            roll_forward(root)
        remove_unlisted_rows(root, versions)
        compacted = open_folder(root, dataset.base_dir, trusted=dataset.trusted)
        compacted.clear_cache(unused=True)
        return compacted


def _count_row_ids(part: Dataset) -> int:
    """Return the number of row ids of a part up to its last stored or rejected row."""
    ids = [ids for _, _, ids in read_row_ids(part)] + [part.rejects()[ROW_ID.name].to_numpy()]
    return int(np.concatenate(ids).max(initial=-1)) + 1


def _join_hidden(current: Dataset, first_ids: Sequence[int]) -> HiddenRows:
    """Return the deleted rows of all parts, by their positions and row ids in the merged one."""
    hidden: dict[str, list[np.ndarray]] = {}
    for segment, first_id, starts in zip(current.segments, first_ids, _split_starts(current), strict=False):
        for name, rows in segment.hidden.items():
            hidden.setdefault(name, []).append(rows + (first_id if name == REJECTED else starts[name]))
    return {name: np.concatenate(rows) for name, rows in hidden.items()}


def _split_starts(dataset: Dataset) -> Iterator[dict[str, int]]:
    """Yield, for each part, the number of rows that earlier parts store, by split."""
    starts = dict.fromkeys(SPLITS, 0)
    for manifest in dataset.manifests:
        yield dict(starts)
        for name, rows in manifest.layout.rows.items():
            starts[name] += rows


def _write(stored: Dataset, first_ids: Sequence[int]) -> Manifest:
    """Write all stored rows as the next version of the first part, and return its manifest."""
    manifests, first = stored.manifests, stored.datasets[0]
    own = manifests[0]
    options = Options(
        block_rows=own.settings.get("block_rows"), compression=own.layout.compression, shards=own.layout.sharded
    )
    layout = choose_layout(stored.features, stored.learned, stored.layout.rows, options)
    missing: list[list[Any]] = [
        [(split, row + starts[split], *cell) for split, row, *cell in one.missing_cells]
        for one, starts in zip(manifests, _split_starts(stored), strict=True)
        if one.missing_cells is not None
    ]
    return write_next_version(
        first,
        _list_files(stored, layout, first_ids),
        own.files.keys(),
        layout=layout,
        source={"parts": [source for one in manifests for source in one.sources]},
        losses=stored.loss_counts,
        missing_cells=tuple(sorted(cell for cells in missing for cell in cells if cell[1] < FIRST_ROWS))
        if len(missing) == len(manifests)
        else None,
    )


def _list_files(stored: Dataset, layout: Layout, first_ids: Sequence[int]) -> Iterator[NewFile]:
    """Yield the files of the merged part: the fitted state of the last part, and rows and rejects of all parts."""
    for name in stored._state.state_entries:
        yield NewFile(name, stored.files.read(name))
    rejects = [part.rejects() for part in stored.datasets]
    for number, (table, first_id) in enumerate(zip(rejects, first_ids, strict=False)):
        rejects[number] = table.set_column(0, ROW_ID.name, pc.add(table[ROW_ID.name], first_id)).cast(REJECTS_SCHEMA)
    yield NewFile(REJECTS, encode_rejects(rejects), sum(map(len, rejects)))
    for split in layout.rows:
        yield from itertools.starmap(NewFile, layout.metadata_files(split).items())
        parts = [
            (first_id, StoredPart(part[split], number))
            for part, first_id in zip(stored.datasets, first_ids, strict=False)
            if split in part.splits
            for number in range(part.layout.parts(split))
        ]
        ends = np.cumsum([len(part.range) for _, part in parts])
        for number in range(layout.parts(split)):
            rows = layout.part_range(split, number)
            first, last = np.searchsorted(ends, (rows.start, rows.stop - 1), side="right").tolist()
            start = int(ends[first]) - len(parts[first][1].range) - rows.start  # of the first stored part
            chosen = [(one[0], StoredPart(one[1].split, one[1].number)) for one in parts[first : last + 1]]
            yield from encode_part(layout, split, number, functools.partial(_read, chosen, start))


def _read(parts: Sequence[tuple[int, StoredPart]], first: int, output: Output, start: int, stop: int) -> EncodedOrCells:
    """Return rows of an output of a new part, in which the first of `parts` starts at row `first`.

    Each part comes with the number to add to its row ids.
    """
    arrays = []
    for first_id, part in parts:
        own = range(max(start, first) - first, min(stop, first + len(part.range)) - first)
        if own:
            rows = part.read(part.split.output(output.name), own.start, own.stop)
            if output == ROW_ID:
                rows = np.where(rows == PURGED_ROW_ID, rows, rows + first_id)
            arrays.append(rows.astype(output.dtype, copy=False) if isinstance(rows, np.ndarray) else rows)
        first += len(part.range)
    return concatenate(arrays)
