"""Readers of the files of a dataset and the blocks of its outputs; only files that the manifest lists are read."""

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
from daskprep.storage.arrays import Span, decode_chunk
from daskprep.storage.checksum import CHECKSUM_BYTES, Buffer, byte_view
from daskprep.storage.local_files import NOT_REGULAR_FILE
from daskprep.storage.manifest import read_manifest
from daskprep.storage.tables import CELL_TYPE, column_ranges, column_types, decode_table, read_footer
from daskprep.storage.threads import call_after_fork

REMEDY = (
    "verify() lists all damaged files; restore them from a copy, write them again with daskprep.repair, or write the "
    "dataset again with overwrite=True"
)

_FOOTER_BYTES = 1_000_000  # limit of the cache, as stored; in memory footers take eight times as much
_INDEX_BYTES = 4_000_000  # limit of the cache of indexes of shards, in memory
_SPAN_BYTES = 250  # in memory

_FOOTER_LENGTH_BYTES, _FOOTER_END_BYTES = 4, 8  # at the end of a Parquet file: the length of its footer, and "PAR1"
# Transferring this many bytes from a store takes little time compared with the latency of the request.
_REQUEST_BYTES = 1 << 16


@dataclass(frozen=True)
class VersionFiles:
    """The files of one version of a dataset, and their entries."""

    folder: Folder
    entries: Mapping[str, FileEntry]

    def entry(self, name: str) -> FileEntry:
        """Return the entry of a file in the manifest, or raise CorruptDatasetError."""
        if name not in self.entries:
            raise CorruptDatasetError(f"{self.folder.url}/{name} is needed and the manifest does not list it; {REMEDY}")
        return self.entries[name]

    def read(self, name: str) -> bytes:
        """Return the content of a listed file; CorruptDatasetError if it was altered."""
        entry = self.entry(name)
        data = read_exact(self.folder, name, entry.bytes)
        if not entry.matches(name, data):
            raise _altered_error(self.folder, name)
        return data.to_pybytes()

    def check_size(self, name: str) -> None:
        """Raise CorruptDatasetError for another size."""
        size, expected = self.folder.size(name), self.entry(name).bytes
        if size != expected:
            raise _wrong_size_error(self.folder, name, size, expected)

    def check_sizes(self, folder: str) -> None:
        """Raise CorruptDatasetError for a file of a wrong size."""
        listed = {name: entry for name, entry in self.entries.items() if name.startswith(f"{folder}/")}
        sizes = (self.folder / folder).sizes()
        for name, entry in listed.items():
            size = sizes.get(name[len(folder) + 1 :])
            if size != entry.bytes:
                raise _wrong_size_error(self.folder, name, size, entry.bytes)


def read_exact(folder: Folder, name: str, size: int) -> pa.Buffer:
    """Return the bytes of a file; CorruptDatasetError unless there are `size`."""
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
    return CorruptDatasetError(f"{folder.url}/{name} was altered: its checksum differs from the manifest; {REMEDY}")


def _wrong_size_error(folder: Folder, name: str, size: int | None, expected: int) -> CorruptDatasetError:
    """Return the error for a file of another size, or absent."""
    if size == NOT_REGULAR_FILE:
        return CorruptDatasetError(f"{folder.url}/{name} is a link, a pipe or a device, not a file; {REMEDY}")
    if size is not None:
        return CorruptDatasetError(f"{folder.url}/{name} has {size:,} bytes, not {expected:,} as written; {REMEDY}")
    if _is_replaced(folder) or (not folder.children() and not folder.is_process_local):
        return CorruptDatasetError(f"{folder.url} is gone: the dataset was written again or removed; open it again")
    hint = "; only the process that wrote to memory:// can read it" if folder.is_process_local else ""
    return CorruptDatasetError(f"{folder.url}/{name} is missing{hint}; {REMEDY}")


def _is_replaced(version: Folder) -> bool:
    """Return whether a newer version, which removes files, exists."""
    url, path = (name.rpartition("/")[0] for name in (version.url, version.path))
    try:
        manifest = read_manifest(Folder(url, path, version.files))
    except (CorruptDatasetError, FormatVersionError, OSError):
        return False
    return manifest is not None and not version.path.endswith(f"/{manifest.version}")


@dataclass(frozen=True)
class BlockLocation:
    """The location of a block of an output: a chunk or row groups."""

    file: str  # name in the version folder
    entry: FileEntry
    rows: int
    groups: tuple[int, ...] = ()  # numbers of the row groups of a table; empty for chunks
    chunk: int = 0  # number of the chunk in its file; 0 unless that is a shard.
    # Positions of deleted rows among the stored rows, which `rows` does not count.
    hidden: tuple[int, ...] = ()

    @property
    def stored_rows(self) -> int:
        return self.rows + len(self.hidden)

    @property
    def kept(self) -> np.ndarray:
        return np.delete(np.arange(self.stored_rows), self.hidden)


@dataclass(frozen=True)
class BlockReader:
    """The folder and format of the blocks of one output."""

    folder: Folder
    output: Output
    block_rows: int
    compression: Compression


def read_block(reader: BlockReader, block: BlockLocation, out: np.ndarray | None = None) -> np.ndarray:
    """Return the rows of a block that are not hidden, in `out` if it fits; CorruptDatasetError if altered."""
    if block.groups:
        return column_array(read_table(reader.folder, block, [reader.output]), reader.output)
    span = chunk_span(reader.folder, block)
    data = _read_range(reader.folder, block, span.start, span.stop)
    # Decoding checks the chunk against the checksum at its end. Comparing that with the manifest detects chunks of
    # other datasets.
    if int.from_bytes(byte_view(data)[-CHECKSUM_BYTES:], "little") != span.crc32c:
        raise _altered_error(reader.folder, block.file)
    with _error_context(reader.folder, block.file):
        rows = decode_chunk(data, reader.output, reader.block_rows, reader.compression, out)[: block.stored_rows]
    return rows[block.kept] if block.hidden else rows


def chunk_span(folder: Folder, block: BlockLocation) -> Span:
    """Return the span of a block's chunk in its file; CorruptDatasetError if it has none."""
    key = folder.url, block.file, block.entry
    spans: list[Span] = _indexes.get(key) or []
    if not spans and block.entry.slots is None:
        spans = _read_chunk_spans(folder, block)
    elif not spans:
        # Threads that start with blocks of the same shard read its index only once. The locks are per file and removed
        # after use, because a forked process inherits those that other threads hold.
        try:
            with index_locks.setdefault(key, threading.Lock()):
                spans = _indexes.get(key) or _read_chunk_spans(folder, block)
                _indexes.put(key, spans, len(spans) * _SPAN_BYTES)
        finally:
            index_locks.pop(key, None)
    if block.chunk >= len(spans):
        raise _altered_error(folder, block.file)
    return spans[block.chunk]


def _read_chunk_spans(folder: Folder, block: BlockLocation) -> list[Span]:
    with _error_context(folder, block.file):
        return block.entry.chunks(lambda start: _read_range(folder, block, start, block.entry.bytes))


def _read_range(folder: Folder, block: BlockLocation, start: int, stop: int) -> Buffer:
    """Return bytes of a file; CorruptDatasetError if it has another size."""
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
    """Return a table of outputs of a block, scalars or cells of media; CorruptDatasetError if altered."""
    requested = {
        one.name: CELL_TYPE if one.stores_cells else pa.from_numpy_dtype(np.dtype(one.dtype)) for one in outputs
    }
    size = block.entry.bytes
    # From large tables in stores, only the requested columns are read; a small one takes no longer to read in full.
    data = read_exact(folder, block.file, size) if folder.is_local or size <= _REQUEST_BYTES else None
    with _error_context(folder, block.file):
        key = folder.url, block.file, block.entry
        cached: tuple[pq.FileMetaData, Mapping[str, pa.DataType]] | None = _footers.get(key)
        if cached is None:
            footer = read_footer(_read_footer_bytes(folder, block) if data is None else data)
            cached = footer, column_types(footer)
        footer, types = cached
        # A few bytes may encode a huge number of rows, or long texts: check the types before decoding.
        present_groups = [group for group in block.groups if group < footer.num_row_groups]
        _check_table(
            requested, block.stored_rows, types, sum(footer.row_group(group).num_rows for group in present_groups)
        )
        if data is None:
            data = _read_column_bytes(folder, block, footer, requested)
        table = decode_table(data, requested, block.groups, footer)
        _check_table(requested, block.stored_rows, {field.name: field.type for field in table.schema}, table.num_rows)
    if nulls := [name for name in requested if requested[name] != CELL_TYPE and table[name].null_count]:
        raise CorruptDatasetError(f"{folder.url}/{block.file} was altered: {nulls} hold nulls; {REMEDY}")
    _footers.put(key, cached, footer.serialized_size)  # only a footer that decoded the table without an error is cached
    return table.take(block.kept) if block.hidden else table


def _read_footer_bytes(folder: Folder, block: BlockLocation) -> Buffer:
    """Return the end of a table in a store, with its footer."""
    size = block.entry.bytes
    tail = _read_range(folder, block, size - _REQUEST_BYTES, size)
    length = int.from_bytes(byte_view(tail)[-_FOOTER_END_BYTES:][:_FOOTER_LENGTH_BYTES], "little") + _FOOTER_END_BYTES
    return tail if length <= _REQUEST_BYTES else _read_range(folder, block, max(0, size - length), size)


def _read_column_bytes(
    folder: Folder, block: BlockLocation, footer: pq.FileMetaData, requested: Collection[str]
) -> Buffer:
    """Return the bytes of columns, with zeros elsewhere."""
    data = np.zeros(block.entry.bytes, np.uint8)  # the operating system provides no memory for the zeros
    for start, stop in column_ranges(footer, block.groups, requested, len(data), max_gap=_REQUEST_BYTES):
        data[start:stop] = np.frombuffer(_read_range(folder, block, start, stop), np.uint8)
    return data


def _check_table(
    requested: Mapping[str, pa.DataType], rows: int, types: Mapping[str, pa.DataType], actual_rows: int
) -> None:
    """Raise CorruptDatasetError for other types or rows."""
    # Parquet has no checksum for its footer, with the types of the columns.
    actual_types = {name: types[name] for name in requested if name in types}
    if actual_types != requested or actual_rows != rows:
        raise CorruptDatasetError(
            f"{actual_rows:,} rows of {actual_types} are not the {rows:,} of {requested} that were written"
        )


def column_array(table: pa.Table, output: Output) -> np.ndarray:
    """Return the column of a scalar output as a NumPy array."""
    column = table[output.name]
    if column.num_chunks != 1 or not len(column) or output.dtype == "bool":
        return column.to_numpy()
    # Without nulls; `to_numpy` would reacquire the GIL seven times.
    chunk, dtype = column.chunk(0), np.dtype(output.dtype)
    return np.frombuffer(chunk.buffers()[1], dtype, len(chunk), chunk.offset * dtype.itemsize)


class BoundedCache:
    """A thread-safe cache, emptied when it exceeds `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._values: dict[object, Any] = {}
        self._limit = limit
        self._bytes = 0
        self.renew_lock()

    def renew_lock(self) -> None:
        """Replace the lock, which another thread may hold during a fork."""
        self._lock = threading.Lock()

    def get(self, key: object) -> Any:
        return self._values.get(key)

    def put(self, key: object, value: Any, nbytes: int) -> None:
        """Store a value unless the key has one; beyond the limit, drop earlier ones, or this one."""
        with self._lock:
            if key in self._values or nbytes > self._limit:
                return
            if self._bytes + nbytes > self._limit:
                self._values, self._bytes = {}, 0
            self._values[key] = value
            self._bytes += nbytes


# Parsing a footer takes longer than reading a small block, and from stores it takes a request.
_footers, _indexes = BoundedCache(_FOOTER_BYTES), BoundedCache(_INDEX_BYTES)
index_locks: dict[object, threading.Lock] = {}
for _renew in (index_locks.clear, _footers.renew_lock, _indexes.renew_lock):
    call_after_fork(_renew)


@contextmanager
def _error_context(folder: Folder, name: str) -> Iterator[None]:
    """Name the file in CorruptDatasetErrors."""
    try:
        yield
    except CorruptDatasetError as error:
        raise CorruptDatasetError(f"{folder.url}/{name} was altered: {error}; {REMEDY}") from error
