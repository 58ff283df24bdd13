"""Read files of a dataset and blocks of its outputs; nothing that the manifest does not list is used."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from daskprep.errors import CorruptDatasetError, FormatVersionError
from daskprep.storage import Compression, FileEntry, Folder, Output
from daskprep.storage.arrays import CHECKSUM_BYTES, decode_chunk
from daskprep.storage.checksum import crc32c, flat
from daskprep.storage.local_files import NO_FILE
from daskprep.storage.manifest import read_manifest
from daskprep.storage.tables import CELL_TYPE, column_types, decode_table, group_rows, read_footer

REMEDY = "verify() names all that is damaged; restore it from a copy, or write the dataset again with overwrite=True"

_FOOTER_BYTES = 1_000_000  # as stored; in memory they take eight times as much


@dataclass(frozen=True)
class Files:
    """The files of one version of a dataset, by their names in the version folder."""

    folder: Folder
    entries: Mapping[str, FileEntry]

    def entry(self, name: str) -> FileEntry:
        """Return what the manifest says of a file."""
        if name not in self.entries:
            raise CorruptDatasetError(f"{self.folder.url}/{name} is needed and the manifest does not list it; {REMEDY}")
        return self.entries[name]

    def read(self, name: str) -> bytes:
        """Return a whole file after checking size and checksum."""
        entry = self.entry(name)
        data = sized(self.folder, name, entry.bytes)
        if not entry.is_of(name, data):
            raise _altered(self.folder, name)
        whole: bytes = data.to_pybytes()
        return whole

    def check_size(self, name: str) -> None:
        """Raise CorruptDatasetError if a file is missing or not as long as it was."""
        size, expected = self.folder.size(name), self.entry(name).bytes
        if size != expected:
            raise _wrong_size(self.folder, name, size, expected)

    def check_sizes(self, folder: str) -> None:
        """Raise CorruptDatasetError for the first file below a folder that is missing or not as long as it was."""
        listed = {name: entry for name, entry in self.entries.items() if name.startswith(f"{folder}/")}
        found = (self.folder / folder).sizes()
        for name, entry in listed.items():
            size = found.get(name[len(folder) + 1 :])
            if size != entry.bytes:
                raise _wrong_size(self.folder, name, size, entry.bytes)


def sized(folder: Folder, name: str, size: int) -> pa.Buffer:
    """Return the bytes of a file, which must be `size` many."""
    try:
        data = folder.mapped(name)
    except OSError as error:
        if folder.size(name) is not None:
            raise
        raise _wrong_size(folder, name, None, size) from error
    if data.size != size:
        raise _wrong_size(folder, name, data.size, size)
    return data


def _altered(folder: Folder, name: str) -> CorruptDatasetError:
    return CorruptDatasetError(f"{folder.url}/{name} was altered: its checksum is not that of the manifest; {REMEDY}")


def _wrong_size(folder: Folder, name: str, size: int | None, expected: int) -> CorruptDatasetError:
    if size == NO_FILE:
        return CorruptDatasetError(f"{folder.url}/{name} is a link, a pipe or a device, not a file; {REMEDY}")
    if size is not None:
        return CorruptDatasetError(f"{folder.url}/{name} has {size:,} bytes, not {expected:,} as written; {REMEDY}")
    if _is_replaced(folder) or (not folder.children() and not folder.is_in_process):
        return CorruptDatasetError(f"{folder.url} is gone: the dataset was written again or removed; open it again")
    seen = "; memory:// is seen by the process that wrote it alone" if folder.is_in_process else ""
    return CorruptDatasetError(f"{folder.url}/{name} is missing{seen}; {REMEDY}")


def _is_replaced(version: Folder) -> bool:
    """Tell whether another version was committed, whose writer removes this one file by file."""
    url, path = (name.rpartition("/")[0] for name in (version.url, version.path))
    try:
        found = read_manifest(Folder(url, path, version.files))
    except (CorruptDatasetError, FormatVersionError, OSError):
        return False
    return found is not None and not version.path.endswith(f"/{found.version}")


@dataclass(frozen=True)
class Block:
    """Where one block of one output lies, in a chunk of its own, or the rows of some row groups of a table."""

    file: str
    entry: FileEntry
    rows: int
    groups: tuple[int, ...] = ()


@dataclass(frozen=True)
class BlockReader:
    """Read the blocks of one output; small, so that it may travel to workers."""

    folder: Folder
    output: Output
    block_rows: int
    compression: Compression


def read_block(reader: BlockReader, block: Block, out: np.ndarray | None = None) -> np.ndarray:
    """Return the rows of one block of one output; they may lie in `out`, if it is as large as a whole block."""
    if block.groups:
        return column_array(read_table(reader.folder, block, [reader.output]), reader.output)
    if out is not None and _lies_plain(reader, block, out):
        _read_plain(reader, block, out)
        return out[: block.rows]
    data = sized(reader.folder, block.file, block.entry.bytes)
    # Decoding proves that the chunk fits the checksum at its end; that this is the manifest's tells it from others.
    if int.from_bytes(data[-CHECKSUM_BYTES:].to_pybytes(), "little") != block.entry.crc32c:
        raise _altered(reader.folder, block.file)
    with _naming(reader.folder, block.file):
        return decode_chunk(data, reader.output, reader.block_rows, reader.compression, out)[: block.rows]


def _lies_plain(reader: BlockReader, block: Block, out: np.ndarray) -> bool:
    """Tell whether the chunk of a block is the bytes of `out` and a checksum, in a file that is read in parts."""
    return (
        reader.compression == "none"
        and reader.folder.is_local
        and sys.byteorder == "little"
        and out.flags.c_contiguous
        and out.dtype == np.dtype(reader.output.dtype)
        and out.shape == (reader.block_rows, *reader.output.shape)
        and block.entry.bytes == out.nbytes + CHECKSUM_BYTES
    )


def _read_plain(reader: BlockReader, block: Block, out: np.ndarray) -> None:
    """Read a chunk to where its rows belong: no byte is copied twice."""
    size = reader.folder.size(block.file)
    if size != block.entry.bytes:
        raise _wrong_size(reader.folder, block.file, size, block.entry.bytes)
    stored = bytearray(CHECKSUM_BYTES)
    with reader.folder.opened(block.file) as read_into:
        read_into(0, flat(out))
        read_into(out.nbytes, memoryview(stored))
    if not int.from_bytes(stored, "little") == block.entry.crc32c == crc32c(out):
        raise _altered(reader.folder, block.file)


def read_table(folder: Folder, block: Block, outputs: Iterable[Output]) -> pa.Table:
    """Return scalars and cells of row groups, as asked for, after checking that they are what the manifest says."""
    wanted = {
        output.name: CELL_TYPE if output.is_cells else pa.from_numpy_dtype(np.dtype(output.dtype)) for output in outputs
    }
    data = sized(folder, block.file, block.entry.bytes)
    with _naming(folder, block.file):
        key = folder.url, block.file, block.entry
        footer, types = _footers.find(key, data)
        # A few bytes may stand for very many rows, or long texts: what the columns are comes first.
        _check_table(wanted, block.rows, types, group_rows(footer, block.groups))
        table = decode_table(data, list(wanted), block.groups, footer)
        _check_table(wanted, block.rows, {field.name: field.type for field in table.schema}, table.num_rows)
    if nulls := [name for name in wanted if wanted[name] != CELL_TYPE and table[name].null_count]:
        raise CorruptDatasetError(f"{folder.url}/{block.file} was altered: {nulls} hold nulls; {REMEDY}")
    _footers.keep(key, footer, types)
    return table


def _check_table(wanted: Mapping[str, pa.DataType], rows: int, types: Mapping[str, pa.DataType], found: int) -> None:
    """Raise CorruptDatasetError unless there are so many rows of the columns wanted."""
    # Parquet keeps no checksum of its footer, which says what the columns are.
    held = {name: types[name] for name in wanted if name in types}
    if held != wanted or found != rows:
        raise CorruptDatasetError(f"{found:,} rows of {held} are not the {rows:,} of {wanted} that were written")


def column_array(table: pa.Table, output: Output) -> np.ndarray:
    """Return a column of scalars as NumPy."""
    values: np.ndarray = table[output.name].to_numpy()
    return values


class _Footers:
    """The footers of the tables that were read last: parsing one takes longer than reading a small block."""

    def __init__(self) -> None:
        self._kept: dict[object, tuple[pq.FileMetaData, Mapping[str, pa.DataType]]] = {}
        self._bytes = 0

    def find(self, key: object, data: pa.Buffer) -> tuple[pq.FileMetaData, Mapping[str, pa.DataType]]:
        """Return the footer of a file, by what tells it from all others, and the types of its columns."""
        if kept := self._kept.get(key):
            return kept
        footer = read_footer(data)
        return footer, column_types(footer)

    def keep(self, key: object, footer: pq.FileMetaData, types: Mapping[str, pa.DataType]) -> None:
        """Keep a footer that was proven right by reading with it."""
        if key in self._kept or footer.serialized_size > _FOOTER_BYTES:
            return
        if self._bytes + footer.serialized_size > _FOOTER_BYTES:
            self._kept, self._bytes = {}, 0
        self._kept[key] = footer, types
        self._bytes += footer.serialized_size


_footers = _Footers()


@contextmanager
def _naming(folder: Folder, name: str) -> Iterator[None]:
    try:
        yield
    except CorruptDatasetError as error:
        raise CorruptDatasetError(f"{folder.url}/{name} was altered: {error}; {REMEDY}") from error
