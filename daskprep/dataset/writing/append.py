"""Rows appended to a dataset: a separate part, and the list of all parts, which is written last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from daskprep.dataset import Dataset
from daskprep.dataset.opening import open_folder
from daskprep.dataset.segments import Segment, open_segment
from daskprep.dataset.writing.versions import (
    Options,
    Recipe,
    finish_cleaning,
    is_purged,
    join_names,
    resolved_record,
    short_digest,
)
from daskprep.dataset.writing.write import source_record, write_again
from daskprep.errors import ConfigError, warn
from daskprep.features import Learned
from daskprep.sources import Source
from daskprep.storage.files import Folder
from daskprep.storage.manifest import APPENDED, Versions, part_folder


def append_source(
    versions: Versions, first: Segment, recipe: Recipe, source: Source, root: Folder, options: Options
) -> tuple[Segment, Mapping[str, Learned]] | None:
    """Write rows as a further part of the dataset in `root`, which is locked, and return it with its fitted state.

    None if the dataset has these rows already. Killed before the list of parts is written, this leaves a folder that
    the next call continues or replaces. No part is read but the `first`: the list has digests of all sources.
    """
    has_new_files = True
    if (source.record or {}).get("table") is not None and options.version is None:
        source, has_new_files = _added_files(source, root, first)
    record, own = resolved_record(source_record(source, options)), resolved_record(source.record)
    known = set(_known_sources(versions, first))
    was_purged = is_purged(root, versions)
    if not has_new_files or (record is not None and _digest(record) in known):
        finish_cleaning(root, first.manifest)
        has_them = f"has these rows already{', but those that purge removed' * was_purged}"
        warn(f"{root.url} {has_them}, so that they are not appended: pass other rows, or another version=")
        return None
    files = list(_recorded_files(record))
    if repeated := [file[0] for file in files if _digest(file) in known]:
        new = join_names([file[0] for file in files if _digest(file) not in known])
        remedy = f", but not of all files: pass only {new}" if new else ": pass new files, or another version="
        raise ConfigError(f"{root.url} has the rows of {join_names(repeated)} already{remedy}")
    if was_purged:  # the digests of sources are all that a purge keeps
        named = [file[0] for file in _recorded_files(own) if _digest(file[0]) in known]
        if named or (own is not None and _digest(own) in known):
            origin = join_names(sorted(set(named))) or "the frame"
            warn(
                f"append: purge removed rows of {root.url}, and they return if {origin} still has them: take them out "
                "of the source, then delete and purge them again"
            )
    number, folder = len(versions.digests), part_folder(len(versions.digests))
    result = write_again(recipe, source, root / folder, options)
    part = open_segment(first.root / folder, None, trusted=True)
    state = versions.states[-1]
    listed = Versions(
        (*versions.digests, part.manifest.digest),
        (*versions.states, (number + 1, state and state[1])),
        tuple(sorted(known.union(_source_digests(record)))),
    )
    root.write(APPENDED, listed.to_bytes())
    finish_cleaning(root, first.manifest)
    return part, Dataset([part]).learned if result is None else result.states[0]


def _added_files(source: Any, root: Folder, first: Segment) -> tuple[Source, bool]:
    """Return the source of the files that a table got since its rows were written, and whether there are any.

    ConfigError if the table lost files, or rows of them.
    """
    parts = open_folder(first.root, None, trusted=True).segments
    sources = (one for part in parts for one in part.manifest.sources)
    recorded = [one for one in sources if (one or {}).get("table") == source.record["table"]]
    if recorded and any("files" not in (one or {}) for one in (source.record, *recorded)):
        if source.record in recorded:
            return source, False
        raise ConfigError(
            f"append: {root.url} has rows of {source.record['table']} already, and not all of its files can be read "
            "alone. The scan filters rows, or the table has deletes or several schemas: pass the new rows alone, "
            "with version="
        )
    written = {tuple(file) for record in recorded for file in _recorded_files(record)}
    files = set(map(tuple, source.record.get("files", ())))
    if lost := sorted(name for name, *_ in written - files):
        raise ConfigError(
            f"append: rows of {source.record['table']} were deleted or rewritten since they were written to "
            f"{root.url}, with {join_names(lost)}: write the dataset again, with overwrite=True"
        )
    added = {name for name, *_ in files - written}
    return source.only(added) if added and written else source, bool(added) or not recorded


def _known_sources(versions: Versions, first: Segment) -> Iterable[str]:
    """Return digests of the sources of all parts."""
    if versions.sources is not None:
        return versions.sources
    parts = [first] if len(versions.digests) == 1 else open_folder(first.root, None, trusted=True).segments
    sources = (one for part in parts for one in part.manifest.sources)
    return chain.from_iterable(map(_source_digests, map(resolved_record, sources)))


def _source_digests(record: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield digests of the record of a source, of each of its files, and of their paths."""
    if record is not None:
        yield _digest(record)
        for file in _recorded_files(record):
            yield from (_digest(file), _digest(file[0]))


def _digest(value: Any) -> str:
    return short_digest({"source": value})


def _recorded_files(record: Mapping[str, Any] | None) -> Iterator[tuple[Any, ...]]:
    """Yield path, size and time or mark of each file in the record of a source."""
    if record is not None:
        yield from map(tuple, record.get("files", ()))
        for split_record in record.get("splits", {}).values():
            yield from _recorded_files(split_record)
