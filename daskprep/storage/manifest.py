"""The manifest: the description of a dataset, with the size and checksum of each of its files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

from daskprep.errors import CorruptDatasetError, FormatVersionError
from daskprep.rows.typed import Amount, read_fields
from daskprep.storage.arrays import Span, chunk_spans, is_chunk, tail_bytes
from daskprep.storage.checkpoint import checkpointable
from daskprep.storage.checksum import CHECKSUM_BYTES, Buffer, byte_view, crc32c
from daskprep.storage.files import Folder
from daskprep.storage.layout import MAX_PART_BLOCKS, Layout

MANIFEST = "manifest.json"
FORMAT = 2
"""The format of datasets with sharded arrays; others are written in format 1."""

CHECKSUM_READ_BYTES = 8_000_000
"""The bytes that are read at a time to compute the checksum of a file."""
APPENDED = "appended.json"
"""The file of `Versions`: it lists the appended parts, each a separate dataset in the folder of `part_folder`."""
NEXT = "next.json"
"""The manifest that replaces the one of a part as soon as `APPENDED` lists its digest."""
RECEIPT = re.compile(r"purge-[0-9]+\.json")
"""The name of the receipt of a purge, which is for people: it decides nothing about rows."""
ERASED = "erased.json"
"""The file of erased keys, which writes to the folder refuse."""
_APPENDED_FORMATS = (1, 3)  # the second with deleted rows, or versions that were removed
_DELETED = re.compile(r"deleted-[0-9a-f]{16}\.parquet")
_MAX_MANIFEST_BYTES = 1 << 30
_MAX_FOLDS = 255  # a row's fold is stored in a byte
_MAX_NAME_BYTES = 255  # of a folder or file, on all file systems
_VERSION = re.compile(r"[A-Za-z0-9_-]{1,100}")

FIRST_ROWS = 5
"""The number of rows of each split that reports and cards show."""
MissingCell: TypeAlias = tuple[str, Amount, str, str]
"""A missing or unreadable cell of the first rows: split, row in it, feature, and "missing" or "unreadable"."""
LossCounts: TypeAlias = Mapping[str, Mapping[str, Amount]]
"""By feature and cause, the number of cells whose encoding lacks information; those without any are left out."""


class DuplicateRows(NamedTuple):
    """Rows of a split whose inputs another split has too.

    Attributes
    ----------
    rows : int
        Number of these rows.
    other_target : int
        Number of them that have other targets than all rows of other splits with the same inputs.
    sample : tuple of int
        Row ids of up to ten of these rows, the smallest ones.
    other_target_sample : tuple of int
        Row ids of up to ten of those with other targets.
    """

    rows: Amount
    other_target: Amount
    sample: tuple[Amount, ...]
    other_target_sample: tuple[Amount, ...]


@checkpointable
@dataclass(frozen=True)
class FileEntry:
    """The size and checksum that a file of a dataset must have."""

    bytes: int
    # Of a chunk, the CRC-32C that it ends with: the CRC-32C of the full chunk would be the same for all chunks. Of a
    # shard, the CRC-32C of its index and the checksums of its chunks, so that each can be checked alone. Of other
    # files, the CRC-32C of their bytes.
    crc32c: int
    rows: int | None = None  # None of files without rows
    slots: int | None = None  # of the index of a shard; None of other files

    @classmethod
    def from_data(cls, name: str, data: Buffer, rows: int | None = None, slots: int | None = None) -> FileEntry:
        """Return the entry of a new file with the bytes `data`; its checksum covers what `crc32c` documents."""
        view = byte_view(data)
        covered = view[:-CHECKSUM_BYTES] if is_chunk(name) else view
        if slots is not None:
            covered = covered[len(view) - tail_bytes(slots) :]
        return cls(len(view), crc32c(covered), rows, slots)

    def matches(self, name: str, data: Buffer) -> bool:
        """Return whether `data` has the size and the checksums of the entry; `name` is the name of the file."""
        view = byte_view(data)
        return len(view) == self.bytes and self.matches_checksums(name, lambda start, stop: view[start:stop])

    def matches_checksums(self, name: str, read: Callable[[int, int], Buffer]) -> bool:
        """Return whether a file of the right size has the checksums of the entry; `read(start, stop)` reads it."""
        try:
            spans = self.spans(name, lambda start: read(start, self.bytes))
        except CorruptDatasetError:
            return False
        for span in spans:
            checksum = 0
            for start in range(span.start, span.stop, CHECKSUM_READ_BYTES):
                checksum = crc32c(read(start, min(start + CHECKSUM_READ_BYTES, span.stop)), start=checksum)
            if checksum != span.crc32c:
                return False
        return True

    def chunks(self, read_tail: Callable[[int], Buffer]) -> list[Span]:
        """Return the spans of the chunks of a shard or chunk file; `read_tail(start)` reads to the end."""
        if self.slots is None:
            return [Span(0, self.bytes, self.crc32c)]
        return chunk_spans(read_tail(self.bytes - tail_bytes(self.slots)), self.bytes, self.crc32c)

    def spans(self, name: str, read_tail: Callable[[int], Buffer]) -> list[Span]:
        """Return the spans of a file with the CRC-32C that each must have; those in a shard end before its tail."""
        if not is_chunk(name):
            return [Span(0, self.bytes, self.crc32c)]
        file_spans = []
        for start, stop, checksum in self.chunks(read_tail):
            end = max(start, stop - CHECKSUM_BYTES)
            checksum_of_end = crc32c(checksum.to_bytes(CHECKSUM_BYTES, "little"))
            file_spans += [Span(start, end, checksum), Span(end, stop, checksum_of_end)]
        return file_spans

    def to_list(self) -> list[int]:
        return [number for number in (self.bytes, self.crc32c, self.rows, self.slots) if number is not None]


@dataclass(frozen=True)
class Manifest:
    """The description of a dataset, which lists every file."""

    version: str  # the name of the folder with the files
    layout: Layout
    files: Mapping[str, FileEntry]  # by name in the version folder
    source: Mapping[str, Any] | None  # of the rows: files and their format
    settings: Mapping[str, Any]  # the parameters of the write.
    # The missing and unreadable cells of the first rows of each split; None of datasets without this record.
    missing_cells: tuple[MissingCell, ...] | None = None
    duplicates: Mapping[str, DuplicateRows] | None = None  # by split; None if the rows were not compared
    losses: Mapping[str, LossCounts] | None = None  # by split; None if they were not counted
    # By split and feature, the missing and unreadable cells that older writes counted.
    missing: Mapping[str, Mapping[str, Amount]] | None = None

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the manifest, which identifies the contents; a later write may use the same version name."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @property
    def sources(self) -> Sequence[Mapping[str, Any] | None]:
        """The sources of the rows: one of each part that `compact` merged."""
        sources: Sequence[Mapping[str, Any] | None] = (self.source or {}).get("parts", [self.source])
        return sources

    def loss_counts(self) -> Mapping[str, LossCounts] | None:
        """Return the losses by split; of older datasets the missing and unreadable cells, both as missing."""
        if self.losses is not None or self.missing is None:
            return self.losses
        return {split: {name: {"missing": n} for name, n in counts.items()} for split, counts in self.missing.items()}

    def to_bytes(self) -> bytes:
        """Return the manifest as canonical JSON with a checksum: equal manifests have the same bytes."""
        return _seal(
            "manifest",
            {
                "format": FORMAT if self.layout.sharded else 1,
                "version": self.version,
                "layout": self.layout.to_dict(),
                "files": _files_to_json(self.files),
                "source": self.source,
                "settings": self.settings,
                **({} if self.missing_cells is None else {"gaps": list(map(list, self.missing_cells))}),
                **({} if self.duplicates is None else {"duplicates": self.duplicates}),
                **({} if self.losses is None else {"losses": self.losses}),
                **({} if self.missing is None else {"missing": self.missing}),
            },
        )

    @classmethod
    def from_bytes(cls, data: Buffer, where: str) -> Manifest:
        """Return the manifest that `to_bytes` wrote; CorruptDatasetError naming `where` if a byte was altered."""
        body = _unseal("manifest", data, where)
        with _error_context(where):
            own: dict[str, Any] = {
                "layout": Layout.from_dict(body["layout"]),
                "files": {},
                "missing_cells": body.get("gaps"),
            }
            manifest = cls(**read_fields(cls, body | own) | {"files": _files_from_json(body["files"])})
            if not _VERSION.fullmatch(manifest.version):
                raise ValueError(f"the version {manifest.version!r} is not a folder name")
            if manifest.layout.sharded != (body["format"] == FORMAT):
                raise ValueError(f"format {body['format']}, and shards are {manifest.layout.sharded}")
            _check_rows(manifest.layout, manifest.files)
            _check_origin(manifest.source, manifest.settings)
        return manifest


def add_losses(first: LossCounts, second: LossCounts) -> LossCounts:
    """Return the sum of two counts."""
    total = {name: dict(causes) for name, causes in first.items()}
    for name, causes in second.items():
        own = total.setdefault(name, {})
        for cause, count in causes.items():
            own[cause] = own.get(cause, 0) + count
    return total


def read_manifest(folder: Folder, name: str = MANIFEST) -> Manifest | None:
    """Return the manifest in a folder; None if there is none, CorruptDatasetError if it is damaged or too large."""
    where = f"{folder.url}/{name}"
    size = folder.size(name)
    if size is None:
        return None
    if size > _MAX_MANIFEST_BYTES:
        raise _damage_error(where, f"it has {size:,} bytes, and no manifest has more than {_MAX_MANIFEST_BYTES:,}")
    return Manifest.from_bytes(folder.read(name), where)


def part_folder(number: int) -> str:
    """Return the name of the folder of an appended part, number 1 being the first."""
    return f"part-{number:05d}"


@dataclass(frozen=True)
class Versions:
    """The content of `APPENDED`: parts and versions of a dataset."""

    digests: tuple[str, ...]  # of the manifests of the dataset and of its parts, in order
    # Of each version, from 1 on: its number of parts, and the file of its deleted rows. None: it was removed.
    states: tuple[tuple[int, str | None] | None, ...]
    sources: tuple[str, ...] | None = None  # digests of the sources of all parts; None in lists of older versions

    @classmethod
    def of_parts(cls, digests: Sequence[str]) -> Versions:
        """Return the versions of a dataset without deleted rows: each has a part more than the one before."""
        return cls(tuple(digests), tuple((number, None) for number in range(1, len(digests) + 1)))

    def to_bytes(self) -> bytes:
        """Return versions as JSON, in the older format if possible."""
        plain, with_states = _APPENDED_FORMATS
        body: dict[str, Any] = {"format": plain, "digests": list(self.digests)}
        if self.states != self.of_parts(self.digests).states:
            body |= {"format": with_states, "versions": [one and list(one) for one in self.states]}
        if self.sources is not None:
            body["sources"] = list(self.sources)
        return _seal("appended", body)

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Versions:
        """Return the versions in JSON; ValueError if they contradict."""
        own = {"digests": body["digests"], "states": body.get("versions", []), "sources": body.get("sources")}
        versions = cls(**read_fields(cls, own))
        if "versions" not in body:
            return replace(versions, states=cls.of_parts(versions.digests).states)
        for parts, deleted in filter(None, versions.states):
            if not 1 <= parts <= len(versions.digests) or not (deleted is None or _DELETED.fullmatch(deleted)):
                raise ValueError(f"a version of {parts} parts with deleted rows in {deleted!r:.80}")
        if not versions.states or versions.states[-1] is None:
            raise ValueError("the last version was removed")
        return versions


def read_versions(folder: Folder) -> Versions | None:
    """Return the parts and versions of a dataset, None without a file; CorruptDatasetError if altered."""
    where, size = f"{folder.url}/{APPENDED}", folder.size(APPENDED)
    if size is None:
        return None
    if size > _MAX_MANIFEST_BYTES:
        raise _damage_error(where, f"it has {size:,} bytes, and no list of parts has more than {_MAX_MANIFEST_BYTES:,}")
    with _error_context(where):
        return Versions.from_body(_unseal("appended", folder.read(APPENDED), where, max(_APPENDED_FORMATS)))


@dataclass(frozen=True)
class Receipt:
    """A record of a written part, for a resumed write."""

    files: Mapping[str, FileEntry]  # of the part, by name
    # Row number, column and reason of each medium that could not be decoded and got the fill value.
    filled: Sequence[tuple[int, str, str]] = ()
    missing_cells: tuple[MissingCell, ...] = ()  # among the first rows of the split
    losses: LossCounts | None = None  # None in receipts of older versions

    def to_bytes(self) -> bytes:
        filled = {"filled": [list(one) for one in self.filled]} if self.filled else {}
        missing_cells = {"gaps": list(map(list, self.missing_cells))} if self.missing_cells else {}
        losses = {} if self.losses is None else {"losses": self.losses}
        return _seal("receipt", {"format": 1, "files": _files_to_json(self.files), **filled, **missing_cells, **losses})

    @classmethod
    def from_bytes(cls, data: Buffer, where: str = "a receipt") -> Receipt:
        """Return the receipt that `to_bytes` wrote; CorruptDatasetError naming `where` if a byte was altered."""
        body = _unseal("receipt", data, where)
        with _error_context(where):
            values = read_fields(cls, body | {"files": {}, "missing_cells": body.get("gaps", [])})
            return cls(**values | {"files": _files_from_json(body["files"])})


def _seal(kind: str, body: Mapping[str, Any]) -> bytes:
    """Return canonical JSON of `body`, with its checksum."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    return b'{"checksum":"%08x","%s":%s}\n' % (crc32c(text), kind.encode(), text)


def _unseal(kind: str, data: Buffer, where: str, newest: int = FORMAT) -> dict[str, Any]:
    """Return the body that `_seal` was called with; CorruptDatasetError unless the bytes are exactly its result."""
    text = bytes(byte_view(data))
    with _error_context(where):
        body = json.loads(text)[kind]
        format_number = body["format"]
        if type(format_number) is not int or format_number < 1:
            raise ValueError(f"the format {format_number!r}")
        if format_number > newest:
            raise FormatVersionError(
                f"{where} was written in format {format_number}, and this daskprep reads up to {newest}: upgrade it"
            )
        resealed = _seal(kind, body)
    if resealed != text:
        raise _damage_error(where, "its text does not match its checksum")
    return dict(body)


@contextmanager
def _error_context(where: str) -> Iterator[None]:
    """Raise errors of parsing as a CorruptDatasetError."""
    try:
        yield
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise _damage_error(where, f"{type(error).__name__}: {error}") from error


def _damage_error(where: str, problem: str) -> CorruptDatasetError:
    return CorruptDatasetError(f"{where} is damaged: {problem}; write the dataset again, or restore the file")


def _files_to_json(files: Mapping[str, FileEntry]) -> dict[str, list[int]]:
    return {name: entry.to_list() for name, entry in files.items()}


def _files_from_json(files: Mapping[str, Any]) -> dict[str, FileEntry]:
    return {_validate_name(name): _validate_entry(name, entry) for name, entry in files.items()}


def _check_rows(layout: Layout, files: Mapping[str, FileEntry]) -> None:
    """Raise ValueError if the files are too few for the rows of the layout: a reader would allocate memory for them."""
    for split in layout.rows:
        chunks = layout.parts(split) if layout.sharded else layout.blocks(split)
        if layout.parts(split) > len(files) or (layout.matrices and chunks > len(files)):
            raise ValueError(f'the split "{split}" has {layout.rows[split]:,} rows, too many for its files')
        for part in range(layout.parts(split)):
            table, rows = layout.table_file(split, part), len(layout.part_range(split, part))
            if table in files and files[table].rows not in {None, rows}:
                raise ValueError(f"{table} has {files[table].rows:,} rows, not the {rows:,} of the layout")


def _check_origin(source: Any, settings: Any) -> None:
    """Raise TypeError if the source or the settings of a manifest have values of unexpected types."""
    for one in (*(source or {}).get("splits", {}).values(), *(source or {}).get("parts", ())):
        _check_origin(one, settings)
    if source is not None and "files" in source:
        if not isinstance(source.get("format", ""), str) or not isinstance(source.get("settings", {}), dict):
            raise TypeError("the source has no format and settings")
        for file in source["files"]:
            if not isinstance(file, list) or not file or not isinstance(file[0], str):
                raise TypeError(f"the source names {file!r} as a file")
    if type(settings.get("shuffle_seed")) not in {int, type(None)}:
        raise TypeError(f"the seed {settings['shuffle_seed']!r}")
    folds = settings.get("folds")
    if folds is not None and (type(folds) is not int or not 0 <= folds <= _MAX_FOLDS):
        raise TypeError(f"{folds!r} folds")


def _validate_name(name: str) -> str:
    """Return the name of a file; ValueError if it leads out of the version folder or is too long."""
    # Files are read and removed by these names, which must not lead out of the folder.
    if any(part in {"", ".", ".."} for part in name.split("/")) or "\\" in name or "\0" in name:
        raise ValueError(f"the file name {name!r} leads out of the folder")
    if any(len(part.encode()) > _MAX_NAME_BYTES for part in name.split("/")):
        raise ValueError(f"the file name {name[:_MAX_NAME_BYTES]!r}... is too long")
    return name


def _validate_entry(name: str, entry: Any) -> FileEntry:
    """Return the entry of a file from its JSON list; ValueError if it is invalid."""
    if not isinstance(entry, list) or not 2 <= len(entry) <= (4 if is_chunk(name) else 3):
        raise ValueError(f"{name}: expected size, checksum and number of rows, not {entry!r}")
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in entry):
        raise ValueError(f"{name}: {str(entry)[:80]} are no counts")
    file_entry = FileEntry(*entry)
    if file_entry.crc32c >= 1 << 8 * CHECKSUM_BYTES:
        raise ValueError(f"{name}: the checksum {file_entry.crc32c:,} has more than {8 * CHECKSUM_BYTES} bits")
    slots = file_entry.slots or 0  # a reader allocates memory for the index of a shard
    if slots > MAX_PART_BLOCKS or (slots and tail_bytes(slots) > file_entry.bytes):
        raise ValueError(f"{name}: a shard of {slots:,} chunks in {file_entry.bytes:,} bytes")
    return file_entry
