"""Comparison of a dataset with its manifest, byte by byte."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

import numpy as np

from daskprep.display.words import format_count
from daskprep.errors import CorruptDatasetError, FormatVersionError
from daskprep.storage import FileEntry, Folder, Manifest, read_manifest
from daskprep.storage.layout import CACHE_FOLDER, FOLD_PREFIX
from daskprep.storage.local_files import NOT_REGULAR_FILE
from daskprep.storage.manifest import CHECKSUM_READ_BYTES, MANIFEST
from daskprep.storage.threads import map_in_threads

_MAX_NAMED = 5
# Files that a writer removes after the commit; if it was killed in between, the next write removes them.
_LEFTOVER = re.compile(rf"({FOLD_PREFIX}[0-9]+/)?(receipts|scratch|{CACHE_FOLDER})/|.*\.[0-9a-f]{{32}}\.tmp$")


@dataclass(frozen=True)
class Damage:
    """Damaged file of a dataset: its path relative to the dataset, and the problem."""

    file: str
    problem: str


def find_damage(root: Folder, manifest: Manifest) -> list[Damage]:
    """Return the damaged files of a dataset, after comparing every byte with the manifest that it was opened with."""
    folder = root / manifest.version
    sizes = folder.sizes()
    check = functools.partial(_check_file, folder, sizes)
    names = sorted(manifest.files.items())
    problems = zip(names, map_in_threads(check, names, local=folder.is_local), strict=True)
    damage = [Damage(f"{manifest.version}/{name}", problem) for (name, _), problem in problems if problem]
    strays = sorted(name for name in set(sizes) - set(manifest.files) if not _LEFTOVER.match(name))
    damage += [Damage(f"{manifest.version}/{name}", "is not part of the dataset") for name in strays]
    return _check_manifest(root, manifest) + damage


def raise_damage(url: str, damage: list[Damage]) -> None:
    """Raise CorruptDatasetError with the first damaged files; do nothing if there are none."""
    if not damage:
        return
    first = "; ".join(f"{one.file} {one.problem}" for one in damage[:_MAX_NAMED])
    more = f"; and {len(damage) - _MAX_NAMED:,} more" if len(damage) > _MAX_NAMED else ""
    raise CorruptDatasetError(
        f"{url}: {format_count(len(damage), 'damaged file')}: {first}{more}. damaged() lists all; restore "
        "them from a copy, write them again with daskprep.repair, or write the dataset again with overwrite=True"
    )


def _check_manifest(root: Folder, manifest: Manifest) -> list[Damage]:
    """Return whether the manifest on disk is missing, altered or another one, as damage."""
    try:
        current = read_manifest(root)
    except (CorruptDatasetError, FormatVersionError) as error:
        return [Damage(MANIFEST, f"was altered: {error}")]
    if current is None:
        return [Damage(MANIFEST, "is missing")]
    if current.to_bytes() != manifest.to_bytes():
        return [Damage(MANIFEST, "was replaced since the dataset was opened: open it again")]
    return []


def _check_file(folder: Folder, sizes: dict[str, int], item: tuple[str, FileEntry]) -> str | None:
    """Return the problem of a file (name and manifest entry), or None; `sizes` has the bytes of all existing files."""
    name, entry = item
    if name not in sizes:
        return "is missing"
    if sizes[name] == NOT_REGULAR_FILE:
        return "is a link, a pipe or a device"
    if sizes[name] != entry.bytes:
        return f"has {sizes[name]:,} bytes, not {entry.bytes:,}"
    try:
        # Read instead of mapped: a bad sector under a mapping kills the process.
        buffer = np.empty(min(entry.bytes, CHECKSUM_READ_BYTES), np.uint8)
        with folder.open_reader(name) as read_into:

            def read(start: int, stop: int) -> np.ndarray:
                view = buffer[: stop - start]
                read_into(start, view.data)
                return view

            matches_checksums = entry.matches_checksums(name, read)
    except (OSError, EOFError, CorruptDatasetError) as error:
        return f"cannot be read: {error}"
    return None if matches_checksums else "was altered: its checksum differs from the manifest"
