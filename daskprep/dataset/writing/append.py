"""Rows appended to a dataset: a separate part, and the list of all parts, which is written last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from daskprep.dataset import Dataset
from daskprep.dataset.segments import open_segment
from daskprep.dataset.writing.deleting import listed_versions
from daskprep.dataset.writing.versions import (
    Options,
    Recipe,
    finish_cleaning,
    join_names,
    resolved_record,
    roll_forward,
)
from daskprep.dataset.writing.write import source_record, write_again
from daskprep.errors import ConfigError, warn
from daskprep.sources import Source
from daskprep.storage.files import Folder
from daskprep.storage.manifest import APPENDED, Versions, part_folder


def append_source(dataset: Dataset, recipe: Recipe, source: Source, root: Folder, options: Options) -> Dataset:
    """Write rows as a further part of the dataset in `root`, which is locked, and return the dataset with it.

    If it has these rows already, it is returned. Killed before the list of parts is written, this leaves a folder that
    the next call continues or replaces.
    """
    roll_forward(root)
    parts = dataset.manifests
    record = resolved_record(source_record(source, options))
    records = [resolved_record(part.source) for part in parts]
    is_purged = None in listed_versions(root, dataset).states
    if record is not None and record in records:
        finish_cleaning(root, parts[0])
        has_them = f"has these rows already{', but those that purge removed' * is_purged}"
        warn(f"{root.url} {has_them}, so that they are not appended: pass other rows, or another version=")
        return dataset
    known = set(chain.from_iterable(map(_recorded_files, records)))
    files = list(_recorded_files(record))
    if repeated := [file[0] for file in files if file in known]:
        new = join_names([file[0] for file in files if file not in known])
        remedy = f", but not of all files: pass only {new}" if new else ": pass new files, or another version="
        raise ConfigError(f"{root.url} has the rows of {join_names(repeated)} already{remedy}")
    if is_purged:  # the records of sources are all that a purge keeps
        own = resolved_record(source.record)
        named = {file[0] for file in _recorded_files(own)} & {file[0] for file in known}
        if named or (own is not None and own in records):
            origin = join_names(sorted(named)) or "the frame"
            warn(
                f"append: purge removed rows of {root.url}, and they return if {origin} still has them: take them out "
                "of the source, then delete and purge them again"
            )
    folder = root / part_folder(len(parts))
    write_again(recipe, source, folder, options)
    part = open_segment(dataset.root / part_folder(len(parts)), None, trusted=True)
    versions = listed_versions(root, dataset)
    state, digests = versions.states[-1], (*versions.digests, part.manifest.digest)
    root.write(APPENDED, Versions(digests, (*versions.states, (len(parts) + 1, state and state[1]))).to_bytes())
    finish_cleaning(root, parts[0])
    return Dataset([*dataset.segments, part])


def _recorded_files(record: Mapping[str, Any] | None) -> Iterator[tuple[Any, ...]]:
    """Yield path, size and time or mark of each file in the record of a source."""
    if record is not None:
        yield from map(tuple, record.get("files", ()))
        for split_record in record.get("splits", {}).values():
            yield from _recorded_files(split_record)
