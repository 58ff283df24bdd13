"""The manifest: what a dataset is, and the bytes and checksum of every file of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from daskprep.errors import CorruptDatasetError, FormatVersionError
from daskprep.storage.arrays import is_chunk, validate_count
from daskprep.storage.checkpoint import checkpointable
from daskprep.storage.checksum import CHECKSUM_BYTES, Buffer, byte_view, crc32c
from daskprep.storage.files import Folder
from daskprep.storage.layout import MAX_PART_BLOCKS, Layout
from daskprep.storage.shards import Span, chunk_spans, tail_bytes

MANIFEST = "manifest.json"
FORMAT = 2
"""Of datasets whose arrays are sharded; others are written in format 1."""

CHECKSUM_READ_BYTES = 8_000_000
"""As much of a file as is compared with its checksum at once."""
_MAX_MANIFEST_BYTES = 1 << 30
_MAX_FOLDS = 255  # which are numbered by bytes
_MAX_NAME_BYTES = 255  # of one folder or file, on all file systems
_VERSION = re.compile(r"[A-Za-z0-9_-]{1,100}")


FIRST_ROWS = 5
"""Of each split, which reports and cards show."""
Gap: TypeAlias = tuple[str, int, str, str]
"""A cell of the first rows: split, row in it, feature, and "missing" or "unreadable"."""


@checkpointable
@dataclass(frozen=True)
class FileEntry:
    """What a file of a dataset must be: its bytes, their CRC-32C, and its rows where it has any.

    A chunk ends with the CRC-32C of the bytes before it. That makes the CRC-32C of the whole the same constant for
    every chunk, which tells no two apart: of chunks, the one that they end with is meant. Of a shard it is that of the
    checksums of its chunks and of its index, so that each chunk can be checked by itself.
    """

    bytes: int
    crc32c: int
    rows: int | None = None
    slots: int | None = None  # of a shard: how many chunks its index has room for

    @classmethod
    def of(cls, name: str, data: Buffer, rows: int | None = None, slots: int | None = None) -> FileEntry:
        """Return the entry of a file that was just made."""
        view = byte_view(data)
        covered = view[:-CHECKSUM_BYTES] if is_chunk(name) else view
        if slots is not None:
            covered = covered[len(view) - tail_bytes(slots) :]
        return cls(len(view), crc32c(covered), rows, slots)

    def matches(self, name: str, data: Buffer) -> bool:
        """Tell whether these are the bytes of the file that the entry is of."""
        view = byte_view(data)
        return len(view) == self.bytes and self.matches_checksums(name, lambda start, stop: view[start:stop])

    def matches_checksums(self, name: str, read: Callable[[int, int], Buffer]) -> bool:
        """Tell whether the bytes of a file of the right length, from a start to a stop, are those of the entry."""
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
        """Return where the chunks of a shard or a chunk lie, each with the checksum that it ends with.

        `read_tail` gives the bytes of a shard from an offset on; CorruptDatasetError if they are damaged.
        """
        if self.slots is None:
            return [Span(0, self.bytes, self.crc32c)]
        return chunk_spans(read_tail(self.bytes - tail_bytes(self.slots)), self.bytes, self.crc32c)

    def spans(self, name: str, read_tail: Callable[[int], Buffer]) -> list[Span]:
        """Return the pieces of the file, and the CRC-32C that each must have; those of a shard end before its tail."""
        if not is_chunk(name):
            return [Span(0, self.bytes, self.crc32c)]
        file_spans = []
        for start, stop, checksum in self.chunks(read_tail):
            end = max(start, stop - CHECKSUM_BYTES)
            file_spans += [
                Span(start, end, checksum),
                Span(end, stop, crc32c(checksum.to_bytes(CHECKSUM_BYTES, "little"))),
            ]
        return file_spans

    def to_list(self) -> list[int]:
        return [number for number in (self.bytes, self.crc32c, self.rows, self.slots) if number is not None]


@dataclass(frozen=True)
class Manifest:
    """All that makes a dataset: it is written last, and names every file."""

    version: str  # the folder of the files
    layout: Layout
    files: Mapping[str, FileEntry]  # by name relative to that folder
    source: Mapping[str, Any] | None  # what the rows were read from
    settings: Mapping[str, Any]  # how they were turned into files
    # Cells of the first rows of each split that were missing or unreadable; None of datasets that do not say so.
    gaps: tuple[Gap, ...] | None = None

    def to_bytes(self) -> bytes:
        """Return canonical JSON that holds its own checksum: one manifest has one text."""
        return _seal(
            "manifest",
            {
                "format": FORMAT if self.layout.sharded else 1,
                "version": self.version,
                "layout": self.layout.to_dict(),
                "files": _files_to_json(self.files),
                "source": self.source,
                "settings": self.settings,
                **({} if self.gaps is None else {"gaps": list(map(list, self.gaps))}),
            },
        )

    @classmethod
    def from_bytes(cls, data: Buffer, where: str) -> Manifest:
        """Return what `to_bytes` wrote; of text that differs from it in a byte, CorruptDatasetError naming `where`."""
        body = _unseal("manifest", data, where)
        with _error_context(where):
            manifest = cls(
                body["version"],
                Layout.from_dict(body["layout"]),
                _files_from_json(body["files"]),
                body["source"],
                body["settings"],
                None if body.get("gaps") is None else _gaps_from_json(body["gaps"]),
            )
            if not _VERSION.fullmatch(manifest.version):
                raise ValueError(f"the version {manifest.version!r} is not a folder name")
            if manifest.layout.sharded != (body["format"] == FORMAT):
                raise ValueError(f"format {body['format']}, and shards are {manifest.layout.sharded}")
            _check_rows(manifest.layout, manifest.files)
            _check_origin(manifest.source, manifest.settings)
        return manifest


def read_manifest(folder: Folder) -> Manifest | None:
    """Return the manifest of the dataset in a folder, or None if there is none."""
    where = f"{folder.url}/{MANIFEST}"
    size = folder.size(MANIFEST)
    if size is None:
        return None
    if size > _MAX_MANIFEST_BYTES:
        raise _damage_error(where, f"it has {size:,} bytes, and no manifest has more than {_MAX_MANIFEST_BYTES:,}")
    return Manifest.from_bytes(folder.read(MANIFEST), where)


@dataclass(frozen=True)
class Receipt:
    """What is kept of a part that was written, so that a rerun need not write it again."""

    files: Mapping[str, FileEntry]  # those of the part, by name
    # Row number, column and reason of each medium that could not be decoded, so that a fill value stands for it.
    filled: Sequence[tuple[int, str, str]] = ()
    gaps: tuple[Gap, ...] = ()

    def to_bytes(self) -> bytes:
        """Return the text of the receipt, sealed by a checksum."""
        filled = {"filled": [list(one) for one in self.filled]} if self.filled else {}
        gaps = {"gaps": list(map(list, self.gaps))} if self.gaps else {}
        return _seal("receipt", {"format": 1, "files": _files_to_json(self.files), **filled, **gaps})

    @classmethod
    def from_bytes(cls, data: Buffer, where: str = "a receipt") -> Receipt:
        """Return the receipt that `to_bytes` was called on; CorruptDatasetError if a byte differs."""
        body = _unseal("receipt", data, where)
        with _error_context(where):
            filled = [(int(row), str(column), str(reason)) for row, column, reason in body.get("filled", ())]
            return cls(_files_from_json(body["files"]), filled, _gaps_from_json(body.get("gaps", ())))


def _seal(kind: str, body: Mapping[str, Any]) -> bytes:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    return b'{"checksum":"%08x","%s":%s}\n' % (crc32c(text), kind.encode(), text)


def _unseal(kind: str, data: Buffer, where: str) -> dict[str, Any]:
    """Return the JSON that `_seal` was given; an error if it is not the very text that it returns."""
    text = bytes(byte_view(data))
    with _error_context(where):
        body = json.loads(text)[kind]
        format_number = body["format"]
        if type(format_number) is not int or format_number < 1:
            raise ValueError(f"the format {format_number!r}")
        if format_number > FORMAT:
            raise FormatVersionError(
                f"{where} was written in format {format_number}, and this daskprep reads up to {FORMAT}: upgrade it"
            )
        resealed = _seal(kind, body)
    if resealed != text:
        raise _damage_error(where, "its text does not match its checksum")
    return dict(body)


@contextmanager
def _error_context(where: str) -> Iterator[None]:
    """Say of what cannot be read which file it is."""
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


def _gaps_from_json(gaps: Sequence[Any]) -> tuple[Gap, ...]:
    return tuple((str(split), validate_count(row), str(name), str(kind)) for split, row, name, kind in gaps)


def _check_rows(layout: Layout, files: Mapping[str, FileEntry]) -> None:
    """Raise ValueError if there are fewer files than the rows lie in: whoever reads would make room for them."""
    for split in layout.rows:
        chunks = layout.parts(split) if layout.sharded else layout.blocks(split)
        if layout.parts(split) > len(files) or (layout.matrices and chunks > len(files)):
            raise ValueError(f'the split "{split}" has {layout.rows[split]:,} rows, and the files are too few')
        for part in range(layout.parts(split)):
            table, rows = layout.table_file(split, part), len(layout.part_range(split, part))
            if table in files and files[table].rows not in {None, rows}:
                raise ValueError(f"{table} has {files[table].rows:,} rows, and {rows:,} lie there")


def _check_origin(source: Any, settings: Any) -> None:
    """Raise ValueError or TypeError for what tells of no files, and of no way that they were written."""
    if not isinstance(source, dict | None) or not isinstance(settings, dict):
        raise TypeError("the source or the settings are no mapping")
    for one in (source or {}).get("splits", {}).values():
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
    # Files are removed and read by these names: none may lead out of the folder.
    if any(part in {"", ".", ".."} for part in name.split("/")) or "\\" in name or "\0" in name:
        raise ValueError(f"the file name {name!r} leads out of the folder")
    if any(len(part.encode()) > _MAX_NAME_BYTES for part in name.split("/")):
        raise ValueError(f"the file name {name[:_MAX_NAME_BYTES]!r}... is too long")
    return name


def _validate_entry(name: str, entry: Any) -> FileEntry:
    if not isinstance(entry, list) or not 2 <= len(entry) <= (4 if is_chunk(name) else 3):
        raise ValueError(f"{name}: {entry!r} is no size, checksum and number of rows")
    try:
        file_entry = FileEntry(*map(validate_count, entry))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if file_entry.crc32c >= 1 << 8 * CHECKSUM_BYTES:
        raise ValueError(f"{name}: the checksum {file_entry.crc32c:,} has more than {8 * CHECKSUM_BYTES} bits")
    # Who opens a shard makes room for its index.
    if file_entry.slots is not None and not (
        file_entry.slots <= MAX_PART_BLOCKS and tail_bytes(file_entry.slots) <= file_entry.bytes
    ):
        raise ValueError(f"{name}: a shard of {file_entry.slots:,} chunks in {file_entry.bytes:,} bytes")
    return file_entry
