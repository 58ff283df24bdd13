"""Versions of a dataset: their names, their commit, and the removal of files of other versions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from daskprep.errors import ConfigError, CorruptDatasetError, DatasetExistsError, FormatVersionError
from daskprep.state import METADATA
from daskprep.storage import checksum
from daskprep.storage.files import Folder
from daskprep.storage.layout import CACHE_FOLDER, FOLD_PREFIX, SPLITS
from daskprep.storage.manifest import MANIFEST, Manifest, read_manifest
from daskprep.storage.tables import REJECTS
from daskprep.writing.parts import RECEIPTS

SCRATCH = "scratch"

_DIGEST_DIGITS = 16
_VERSION = re.compile(rf"[0-9a-f]{{{_DIGEST_DIGITS}}}(-[0-9]+)?")
_VERSION_CHILD = re.compile(
    rf"({re.escape(METADATA)}|{re.escape(REJECTS)})(\.[0-9a-f]+\.tmp)?|probe-.*|vocab"
    rf"|{'|'.join([*SPLITS, RECEIPTS, SCRATCH, CACHE_FOLDER])}|{FOLD_PREFIX}[0-9]+"
)
_CACHE_PATH = re.compile(rf"({FOLD_PREFIX}[0-9]+/)?{CACHE_FOLDER}/")
# Files that a killed write may leave next to the manifest.
_TEMPORARY = re.compile(rf"{re.escape(MANIFEST)}\.[0-9a-f]+\.tmp")


def short_digest(description: Mapping[str, Any]) -> str:
    """Return a short digest of JSON values as hexadecimal digits."""
    return checksum.json_sha256(description)[:_DIGEST_DIGITS]


def choose_version(
    root: Folder, digest: str, *, repeatable: bool, overwrite: bool, differences: Callable[[Manifest], str]
) -> tuple[str, Manifest | None]:
    """Return the name of the version to write, and None; or the committed version and its manifest, if it is the same.

    The name of a version is its digest. If a committed version is written again, a number is appended, so that readers
    keep the old one until the new one is complete. Without `repeatable`, equal digests do not imply equal rows. A
    finished dataset that may differ raises DatasetExistsError, unless `overwrite` is set; the message contains the
    result of `differences`.
    """
    try:
        committed = read_manifest(root)
    except (CorruptDatasetError, FormatVersionError) as error:
        if not overwrite:
            raise type(error)(f"{error}; overwrite=True writes the dataset again") from error
        committed = None
    if committed is None:
        if foreign_files := sorted(name for name in root.children() if not _is_ours(root, name)):
            shown = ", ".join(f'"{name}"' for name in foreign_files[:3])
            raise ConfigError(
                f"{root.url} is not a dataset and has other files, such as {shown}: use a new or empty folder"
            )
        return digest, None
    name, _, number = committed.version.partition("-")
    if not overwrite:
        if name == digest and repeatable:
            return committed.version, committed
        raise DatasetExistsError(
            f"{root.url} holds a dataset that differs: {differences(committed)}. Write to another path, or replace it "
            "with overwrite=True"
        )
    return (f"{digest}-{int(number or 0) + 1}" if name == digest else digest), None


def _is_ours(root: Folder, name: str) -> bool:
    """Return whether a file or folder in the folder of a dataset was written by daskprep."""
    if not _VERSION.fullmatch(name):
        return bool(name in {MANIFEST, CACHE_FOLDER} or _TEMPORARY.fullmatch(name))
    # A partly removed version lacks some of these files, but never has other files.
    return all(_VERSION_CHILD.fullmatch(child) for child in (root / name).children())


def check_committed(root: Folder, manifest: Manifest) -> None:
    """Raise ConfigError if another version was committed since the manifest was read; the folder must be locked."""
    current = read_manifest(root)
    if current is None or current.to_bytes() != manifest.to_bytes():
        raise ConfigError(f"{root.url} was written again meanwhile: open it again")


def commit(root: Folder, manifest: Manifest) -> None:
    """Check that the files of the manifest are complete, then write it, which makes its version the dataset.

    All other versions are removed. Raise CorruptDatasetError if a file is missing or has another size.
    """
    sizes = (root / manifest.version).sizes()
    if lost := [name for name, entry in manifest.files.items() if sizes.get(name) != entry.bytes]:
        raise CorruptDatasetError(
            f"{root.url}: {len(lost):,} files that were just written are gone, such as {lost[0]}: did two processes "
            "write to one path without locks, as in object stores? Nothing was committed; write again"
        )
    root.write(MANIFEST, manifest.to_bytes())
    clean(root, manifest)


def clean(root: Folder, manifest: Manifest) -> None:
    """Remove all files that are not part of the committed version."""
    _remove_others(root, manifest)
    version = root / manifest.version
    (version / SCRATCH).remove_all()
    leftovers = [name for name in version.sizes() if name not in manifest.files and not _CACHE_PATH.match(name)]
    version.remove(*(name for name in leftovers if not name.startswith(f"{RECEIPTS}/")))
    (version / RECEIPTS).remove_all()  # last: while it exists, `finish_cleaning` looks for other files


def finish_cleaning(root: Folder, manifest: Manifest) -> None:
    """Remove the files left by a write that was killed right after its commit."""
    if {RECEIPTS, SCRATCH} & set((root / manifest.version).children()):
        clean(root, manifest)
    else:
        _remove_others(root, manifest)


def _remove_others(root: Folder, manifest: Manifest) -> None:
    """Remove other versions and temporary manifests."""
    for name in root.children():
        if _VERSION.fullmatch(name) and name != manifest.version and _is_ours(root, name):
            (root / name).remove_all()
        elif _TEMPORARY.fullmatch(name):
            root.remove(name)
