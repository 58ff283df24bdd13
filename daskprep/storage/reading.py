"""Read files of a dataset and blocks of its outputs; nothing that the manifest does not list is used."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from daskprep.errors import CorruptDatasetError, FormatVersionError
from daskprep.storage import Compression, FileEntry, Folder, Output
from daskprep.storage.arrays import decode_chunk
from daskprep.storage.checksum import CHECKSUM_BYTES, Buffer, byte_view
from daskprep.storage.local_files import NOT_REGULAR_FILE
from daskprep.storage.manifest import read_manifest
from daskprep.storage.shards import Span
from daskprep.storage.tables import CELL_TYPE, column_ranges, column_types, decode_table, read_footer
from daskprep.storage.threads import call_after_fork

REMEDY = "verify() names all that is damaged; restore it from a copy, or write the dataset again with overwrite=True"

_FOOTER_BYTES = 1_000_000  # as stored; in memory they take eight times as much
_INDEX_BYTES = 4_000_000  # of shards, in memory
_SPAN_BYTES = 250  # in memory
# At the end of a Parquet file: the length of its footer, and "PAR1".
_FOOTER_LENGTH_BYTES, _FOOTER_END_BYTES = 4, 8
# Of a table in a store: what a request brings in little more time than it takes to be answered.
_REQUEST_BYTES = 1 << 16


@dataclass(frozen=True)
class VersionFiles:
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
        data = read_exact(self.folder, name, entry.bytes)
        if not entry.matches(name, data):
            raise _altered_error(self.folder, name)
        content: bytes = data.to_pybytes()
        return content

    def check_size(self, name: str) -> None:
        """Raise CorruptDatasetError if a file is missing or not as long as it was."""
        size, expected = self.folder.size(name), self.entry(name).bytes
        if size != expected:
            raise _wrong_size_error(self.folder, name, size, expected)

    def check_sizes(self, folder: str) -> None:
        """Raise CorruptDatasetError for the first file below a folder that is missing or not as long as it was."""
        listed = {name: entry for name, entry in self.entries.items() if name.startswith(f"{folder}/")}
        sizes = (self.folder / folder).sizes()
        for name, entry in listed.items():
            size = sizes.get(name[len(folder) + 1 :])
            if size != entry.bytes:
                raise _wrong_size_error(self.folder, name, size, entry.bytes)


def read_exact(folder: Folder, name: str, size: int) -> pa.Buffer:
    """Return the bytes of a file, which must be `size` many."""
    try:
        data = folder.read_buffer(name)
    except OSError as error:
        if folder.size(name) is not None:
            raise
        raise _wrong_size_error(folder, name, None, size) from error
    if data.size != size:
        raise _wrong_size_error(folder, name, data.size, size)
    return data


def _altered_error(folder: Folder, name: str) -> CorruptDatasetError:
    return CorruptDatasetError(f"{folder.url}/{name} was altered: its checksum is not that of the manifest; {REMEDY}")


def _wrong_size_error(folder: Folder, name: str, size: int | None, expected: int) -> CorruptDatasetError:
    if size == NOT_REGULAR_FILE:
        return CorruptDatasetError(f"{folder.url}/{name} is a link, a pipe or a device, not a file; {REMEDY}")
    if size is not None:
        return CorruptDatasetError(f"{folder.url}/{name} has {size:,} bytes, not {expected:,} as written; {REMEDY}")
    if _is_replaced(folder) or (not folder.children() and not folder.is_process_local):
        return CorruptDatasetError(f"{folder.url} is gone: the dataset was written again or removed; open it again")
    hint = "; memory:// is seen by the process that wrote it alone" if folder.is_process_local else ""
    return CorruptDatasetError(f"{folder.url}/{name} is missing{hint}; {REMEDY}")


def _is_replaced(version: Folder) -> bool:
    """Tell whether another version was committed, whose writer removes this one file by file."""
    url, path = (name.rpartition("/")[0] for name in (version.url, version.path))
    try:
        manifest = read_manifest(Folder(url, path, version.files))
    except (CorruptDatasetError, FormatVersionError, OSError):
        return False
    return manifest is not None and not version.path.endswith(f"/{manifest.version}")


@dataclass(frozen=True)
class BlockLocation:
    """Where one block of one output lies: the chunk with a number in a file of chunks, or row groups of a table."""

    file: str
    entry: FileEntry
    rows: int
    groups: tuple[int, ...] = ()
    chunk: int = 0


@dataclass(frozen=True)
class BlockReader:
    """Read the blocks of one output; small, so that it may travel to workers."""

    folder: Folder
    output: Output
    block_rows: int
    compression: Compression


def read_block(reader: BlockReader, block: BlockLocation, out: np.ndarray | None = None) -> np.ndarray:
    """Return the rows of one block of one output; they may lie in `out`, if it is as large as a whole block."""
    if block.groups:
        return column_array(read_table(reader.folder, block, [reader.output]), reader.output)
    span = chunk_span(reader.folder, block)
    data = _read_range(reader.folder, block, span.start, span.stop)
    # Decoding proves that the chunk fits the checksum at its end; that this is the manifest's tells it from others.
    if int.from_bytes(byte_view(data)[-CHECKSUM_BYTES:], "little") != span.crc32c:
        raise _altered_error(reader.folder, block.file)
    with _error_context(reader.folder, block.file):
        return decode_chunk(data, reader.output, reader.block_rows, reader.compression, out)[: block.rows]


def chunk_span(folder: Folder, block: BlockLocation) -> Span:
    """Return where the chunk of a block lies in its file, and the checksum that it ends with."""
    key = folder.url, block.file, block.entry
    spans: list[Span] = _indexes.get(key) or []
    if not spans and block.entry.slots is None:
        spans = _read_chunk_spans(folder, block)
    elif not spans:
        # Threads that start with blocks of one shard ask for its index once; a fork leaves the lock of another thread.
        try:
            with _index_locks.setdefault(key, threading.Lock()):
                spans = _indexes.get(key) or _read_chunk_spans(folder, block)
                _indexes.put(key, spans, len(spans) * _SPAN_BYTES)
        finally:
            _index_locks.pop(key, None)
    if block.chunk >= len(spans):
        raise _altered_error(folder, block.file)
    return spans[block.chunk]


def _read_chunk_spans(folder: Folder, block: BlockLocation) -> list[Span]:
    with _error_context(folder, block.file):
        return block.entry.chunks(lambda start: _read_range(folder, block, start, block.entry.bytes))


def _read_range(folder: Folder, block: BlockLocation, start: int, stop: int) -> Buffer:
    """Return some bytes of the file of a block, which must be as long as the manifest says."""
    if folder.is_local or stop - start == block.entry.bytes:
        return read_exact(folder, block.file, block.entry.bytes)[start:stop]
    try:
        data = folder.read_buffer(block.file, start, stop)
    except FileNotFoundError as error:
        raise _wrong_size_error(folder, block.file, None, block.entry.bytes) from error
    if len(data) != stop - start:
        raise _wrong_size_error(folder, block.file, folder.size(block.file), block.entry.bytes)
    return data


def read_table(folder: Folder, block: BlockLocation, outputs: Iterable[Output]) -> pa.Table:
    """Return scalars and cells of row groups, as asked for, after checking that they are what the manifest says."""
    requested = {
        output.name: CELL_TYPE if output.stores_cells else pa.from_numpy_dtype(np.dtype(output.dtype))
        for output in outputs
    }
    size = block.entry.bytes
    # Of tables in stores, what is asked for is brought; small ones are as soon there whole.
    data = read_exact(folder, block.file, size) if folder.is_local or size <= _REQUEST_BYTES else None
    with _error_context(folder, block.file):
        key = folder.url, block.file, block.entry
        cached: tuple[pq.FileMetaData, Mapping[str, pa.DataType]] | None = _footers.get(key)
        if cached is None:
            footer = read_footer(_read_footer_bytes(folder, block) if data is None else data)
            cached = footer, column_types(footer)
        footer, types = cached
        # A few bytes may stand for very many rows, or long texts: what the columns are comes first.
        present_groups = [group for group in block.groups if group < footer.num_row_groups]
        _check_table(requested, block.rows, types, sum(footer.row_group(group).num_rows for group in present_groups))
        if data is None:
            data = _read_column_bytes(folder, block, footer, requested)
        table = decode_table(data, requested, block.groups, footer)
        _check_table(requested, block.rows, {field.name: field.type for field in table.schema}, table.num_rows)
    if nulls := [name for name in requested if requested[name] != CELL_TYPE and table[name].null_count]:
        raise CorruptDatasetError(f"{folder.url}/{block.file} was altered: {nulls} hold nulls; {REMEDY}")
    # It was proven right by reading with it.
    _footers.put(key, cached, footer.serialized_size)
    return table


def _read_footer_bytes(folder: Folder, block: BlockLocation) -> Buffer:
    """Return the end of a table in a store, with all of its footer."""
    size = block.entry.bytes
    tail = _read_range(folder, block, size - _REQUEST_BYTES, size)
    length = int.from_bytes(byte_view(tail)[-_FOOTER_END_BYTES:][:_FOOTER_LENGTH_BYTES], "little") + _FOOTER_END_BYTES
    return tail if length <= _REQUEST_BYTES else _read_range(folder, block, max(0, size - length), size)


def _read_column_bytes(
    folder: Folder, block: BlockLocation, footer: pq.FileMetaData, requested: Collection[str]
) -> Buffer:
    """Return a table in a store with the bytes of some columns where they lie; the rest are zeros, and no memory."""
    data = np.zeros(block.entry.bytes, np.uint8)
    for start, stop in column_ranges(footer, block.groups, requested, len(data), max_gap=_REQUEST_BYTES):
        data[start:stop] = np.frombuffer(_read_range(folder, block, start, stop), np.uint8)
    return data


def _check_table(
    requested: Mapping[str, pa.DataType], rows: int, types: Mapping[str, pa.DataType], actual_rows: int
) -> None:
    """Raise CorruptDatasetError unless there are so many rows of the columns wanted."""
    # Parquet keeps no checksum of its footer, which says what the columns are.
    actual_types = {name: types[name] for name in requested if name in types}
    if actual_types != requested or actual_rows != rows:
        raise CorruptDatasetError(
            f"{actual_rows:,} rows of {actual_types} are not the {rows:,} of {requested} that were written"
        )


def column_array(table: pa.Table, output: Output) -> np.ndarray:
    """Return a column of scalars as NumPy."""
    values: np.ndarray = table[output.name].to_numpy()
    return values


class _BoundedCache:
    """What was read last of files, by what tells each from all others, up to a limit of bytes."""

    def __init__(self, limit: int) -> None:
        self._values: dict[object, Any] = {}
        self._limit = limit
        self._bytes = 0
        self.renew_lock()

    def renew_lock(self) -> None:
        """Make a new lock: in a forked process nobody would let go of one that another thread held."""
        self._lock = threading.Lock()

    def get(self, key: object) -> Any:
        """Return what is kept of a file, or None."""
        return self._values.get(key)

    def put(self, key: object, value: Any, nbytes: int) -> None:
        """Keep something of a file, if there is room for it."""
        with self._lock:
            if key in self._values or nbytes > self._limit:
                return
            if self._bytes + nbytes > self._limit:
                self._values, self._bytes = {}, 0
            self._values[key] = value
            self._bytes += nbytes


# Parsing a footer takes longer than reading a small block, and in stores each takes a request.
_footers, _indexes = _BoundedCache(_FOOTER_BYTES), _BoundedCache(_INDEX_BYTES)
_index_locks: dict[object, threading.Lock] = {}
for _renew in (_index_locks.clear, _footers.renew_lock, _indexes.renew_lock):
    call_after_fork(_renew)


@contextmanager
def _error_context(folder: Folder, name: str) -> Iterator[None]:
    try:
        yield
    except CorruptDatasetError as error:
        raise CorruptDatasetError(f"{folder.url}/{name} was altered: {error}; {REMEDY}") from error
