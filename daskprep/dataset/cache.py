"""Decoded media of a dataset: digests of cells, and a cache of Zarr arrays that is filled block by block."""

from __future__ import annotations

import errno
import hashlib
import math
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.deferred.decoders import Failure, MediaDecoder, decode_cells
from daskprep.columns.permutation import Integers
from daskprep.errors import ConfigError, CorruptDatasetError, StorageError, StorageFullError, warn
from daskprep.storage import Folder
from daskprep.storage.arrays import (
    ROW_ID,
    Compression,
    Output,
    chunk_name,
    decode_chunk,
    encode_chunk_buffers,
    folder_name,
    group_metadata,
)
from daskprep.storage.checksum import CHECKSUM_BYTES, byte_view, crc32c, json_sha256
from daskprep.storage.local_files import PreallocatedFile
from daskprep.storage.reading import BlockLocation, column_array, read_table
from daskprep.storage.threads import map_in_threads

STAMP_BYTES = 8
UNKNOWN_STAMP = bytes(STAMP_BYTES)  # of a block with missing files: its cached rows are kept


@dataclass(frozen=True)
class MediaBlocks:
    """Reader and decoder of one media output of a split; picklable and thread-safe."""

    folder: Folder  # of the dataset version
    output: Output  # as decoded
    decoder: MediaDecoder

    def cells(self, location: BlockLocation) -> pa.StructArray:
        """Return the cells of a block, structs of path and bytes."""
        table = read_table(self.folder, location, [self.output])
        return cast("pa.StructArray", table[self.output.name].combine_chunks())

    def row_ids(self, location: BlockLocation) -> Integers:
        """Return the row numbers in the source of the rows of a block."""
        return column_array(read_table(self.folder, location, [ROW_ID]), ROW_ID)

    def decode(self, location: BlockLocation, rows: slice | Integers, out: np.ndarray) -> list[Failure]:
        """Decode the rows at the positions `rows` of a block into `out`; return the failures that were filled.

        Raise MediaError, with the row number in the source, for a failure of a feature that does not fill.
        """
        block_cells = self.cells(location)
        cells = block_cells[rows] if isinstance(rows, slice) else block_cells.take(rows)
        return decode_cells(self.decoder, cells, out, self.output.name, lambda: self.row_ids(location)[rows])


def digest_content(media: MediaBlocks, blocks: Iterable[BlockLocation]) -> tuple[str, bytes]:
    """Return a digest of the cells of the blocks, and the concatenated stamps of the blocks.

    A stamp is a hash of sizes and times of the local files of a block, or `UNKNOWN_STAMP` if a file is missing. 100,000
    files take 0.7 s, mostly in system calls.
    """
    find_path = media.decoder.reader.local_path

    def digest_block(location: BlockLocation) -> tuple[bytes, bytes]:
        """Return the cells of a block as bytes, and the stamp of their files."""
        cells = media.cells(location)
        paths, data = (pc.struct_field(cells, field).to_pylist() for field in ("path", "bytes"))
        local_paths = [find_path(path) for path in paths if path is not None]
        stamps = [_make_stamp(path) for path in local_paths]
        all_exist = all(path is None or stamp is not None for path, stamp in zip(local_paths, stamps, strict=True))
        stamp = hashlib.blake2b(repr(stamps).encode(), digest_size=STAMP_BYTES).digest() if all_exist else UNKNOWN_STAMP
        return repr((paths, data)).encode(), stamp

    digests = map_in_threads(digest_block, blocks, local=media.folder.is_local)
    return hashlib.sha256(b"".join(cells for cells, _ in digests)).hexdigest(), b"".join(stamp for _, stamp in digests)


def _make_stamp(path: str | None) -> tuple[int, int] | None:
    """Return size and modification time (ns) of a file; None if it is missing or `path` is None."""
    if path is None:
        return None
    try:
        status = os.stat(path)  # noqa: PTH116 ten times as fast
    except (OSError, ValueError):  # ValueError: a path with a null byte
        return None
    return status.st_size, status.st_mtime_ns


def read_media_block(media: MediaBlocks, location: BlockLocation) -> np.ndarray:
    """Return the decoded rows of a block; failures are filled, or MediaError."""
    out = media.output.empty(location.rows)
    media.decode(location, slice(None), out)
    return out


# A cache folder may also contain other files, which are neither counted nor removed.
_CACHE_FOLDER = re.compile(r"[0-9a-f]{32}/")
_STAMPS_FILE, _USER_PREFIX = "files", "user-"
_CHUNK_FILE = re.compile(r"[0-9a-f]{32}/[^/]+/c\.[0-9.]+")
_BUFFER_BYTES = 1 << 18  # fits the cache of a core
_MIN_ROW_BYTES = 4096  # smaller rows are not worth a system call each
_MAX_TRIES = 10  # to write to a cache that other processes remove
_MAX_MAPPED_BYTES = 1 << 31
_MAX_CHUNK_OVERHEAD = 4096  # bytes of a chunk in addition to its rows
_MAX_MAPPED_CHUNKS = 1 << 12  # Linux allows 65,530 mappings per process

Stamp: TypeAlias = tuple[str, int, int]
"""Path, inode and modification time (ns) of a file, which differ if another file has replaced it."""

# Chunks that this process has written or verified: their checksums are not computed again in every epoch.
_checked_chunks: set[Stamp] = set()
_warned: set[tuple[str, str]] = set()  # URL of a cache and topic of a warning that was shown
_NOT_WRITABLE = (PermissionError, NotADirectoryError, FileExistsError)


def make_cache_name(**facts: object) -> str:
    """Return the name of a cache: a hash of all facts that the decoded values depend on."""
    return json_sha256(facts)[:32]


@dataclass(frozen=True)
class BlockCache:
    """Decoded blocks of one output of a split.

    Each block is a chunk file that is created atomically. Any number of threads, processes and machines may therefore
    fill a cache together; a killed process loses only its current block. Blocks may be removed at any time.
    """

    parent: Folder  # of all caches
    name: str  # from `make_cache_name`
    output: Output  # as decoded
    rows: int  # of the split
    block_rows: int
    compression: Compression  # of the chunks
    # Maximum bytes of all caches in `parent`; None: no limit. Chunks of other datasets are removed to make room, the
    # least recently used first. Chunks of this dataset stay, because each is read once per epoch. Object stores have no
    # locks: there, each concurrent writer may exceed the limit by one chunk.
    limit: int | None = None
    user: str = ""  # digest of the dataset; several datasets may share a cache
    # `STAMP_BYTES` per block that change with the media files of the block; empty if changes are not detected.
    stamps: bytes = b""
    row_counts: tuple[int, ...] = ()  # rows of each block; empty if only the last one may have less than `block_rows`

    @property
    def folder(self) -> Folder:
        return self.parent / self.name

    @property
    def _array(self) -> str:
        return folder_name(self.output.name)

    def remove_outdated(self) -> None:
        """Remove blocks with media files that changed since the stamps were written; a missing file is no change."""
        # If the cache was just removed or the disk is full, the old stamps stay, and the next call compares them.
        with suppress(FileNotFoundError, StorageFullError):
            self._update_stamps(f"{self._array}/{_STAMPS_FILE}")

    def _update_stamps(self, name: str) -> None:
        """Remove chunks whose stamps differ from the stored ones, and write the new stamps to the file `name`."""
        stored = self.folder.read(name) if self.stamps and self.folder.size(name) else self.stamps
        if stored == self.stamps:
            return
        stored = stored if len(stored) == len(self.stamps) else bytes(len(self.stamps))
        before, now = (np.frombuffer(stamps, f"V{STAMP_BYTES}") for stamps in (stored, self.stamps))
        gone, present = now == np.void(UNKNOWN_STAMP), self.present()
        if used := int(gone[present].sum()):
            subject = f'files of {used:,} of {self.blocks:,} blocks of "{self.output.name}"'
            self.warn_once("gone", f"{subject} are missing: their cached rows are used")
        stamps = np.where(gone, before, now)
        self.folder.remove(*(self._chunk_file(block) for block in present if stamps[block] != before[block]))
        if (updated := stamps.tobytes()) != stored:
            with self.explain_errors():
                self.folder.write(name, updated, durable=None)

    def warn_once(self, topic: str, message: str) -> None:
        """Warn unless this process has already warned about the same topic of this cache."""
        if (self.folder.url, topic) not in _warned:
            _warned.add((self.folder.url, topic))
            warn(message)

    @property
    def blocks(self) -> int:
        """Number of blocks of the split, cached or not."""
        return len(self.row_counts) or -(-self.rows // self.block_rows)

    def present(self) -> list[int]:
        """Return the numbers of the cached blocks."""
        sizes = self.folder.sizes()
        return [block for block in range(self.blocks) if self._chunk_file(block) in sizes]

    @property
    def complete(self) -> bool:
        """Whether every block is cached."""
        return len(self.present()) == self.blocks

    def count_rows(self, block: int) -> int:
        """Return the number of rows of a block."""
        return self.row_counts[block] if self.row_counts else min(self.block_rows, self.rows - block * self.block_rows)

    def has(self, block: int) -> bool:
        """Return whether a block is cached."""
        return self.folder.size(self._chunk_file(block)) is not None

    def read(self, block: int, out: np.ndarray | None = None, mapped: MappedChunks | None = None) -> np.ndarray | None:
        """Return the rows of a block, or None if it is not cached.

        Compressed rows are written to `out` if it has room for a full block. Uncompressed rows are a view of the
        mapped file, which is added to `mapped`.
        """
        name = self._chunk_file(block)
        try:
            return self._read(name, out, mapped)[: self.count_rows(block)]
        except CorruptDatasetError:
            # A power failure may leave part of a chunk: the block is decoded again.
            self.folder.remove(name)
            return None
        except FileNotFoundError:
            return None
        except IsADirectoryError as error:
            raise CorruptDatasetError(f"{self.folder.url}/{name} is a folder, not a cached block: remove it") from error

    @property
    def is_plain(self) -> bool:
        """Whether chunks contain rows in the same bytes as in memory."""
        is_bytes = np.dtype(self.output.dtype).itemsize == 1
        return self.compression == "none" and is_bytes and math.prod(self.output.shape) > 0

    def _read(self, name: str, out: np.ndarray | None, mapped: MappedChunks | None) -> np.ndarray:
        """Return the rows of a chunk file, including the fill rows of the last block."""
        if not self.is_plain:
            data = self.folder.read_buffer(name)
            row_bytes = math.prod(self.output.shape) * np.dtype(self.output.dtype).itemsize
            # Checked before the checksum, which would read all of a huge file.
            if len(data) > 2 * self.block_rows * row_bytes + _MAX_CHUNK_OVERHEAD:
                raise CorruptDatasetError(f"{self.folder.url}/{name} has {len(data):,} bytes")
            return decode_chunk(data, self.output, self.block_rows, self.compression, out)
        stamp = self._make_stamp(name)
        chunk = None if mapped is None or stamp is None else mapped.get(stamp)
        if chunk is None:
            chunk = self._read_plain(name, stamp)
            if mapped is not None and stamp is not None:
                mapped.add(stamp, chunk)
        return chunk

    def _read_plain(self, name: str, stamp: Stamp | None) -> np.ndarray:
        """Return the rows of an uncompressed chunk as a view of the mapped file; batches make the only copy."""
        view, shape = memoryview(self.folder.read_buffer(name)), (self.block_rows, *self.output.shape)
        inner = view[: math.prod(shape)]
        if len(view) != len(inner) + CHECKSUM_BYTES:
            raise CorruptDatasetError(f"{self.folder.url}/{name} has {len(view):,} bytes")
        if stamp is None or stamp not in _checked_chunks:
            if int.from_bytes(view[len(inner) :], "little") != crc32c(inner):
                raise CorruptDatasetError(f"{self.folder.url}/{name} was altered")
            if stamp is not None:
                _checked_chunks.add(stamp)
        return np.frombuffer(inner, self.output.dtype).reshape(shape)

    def _make_stamp(self, name: str) -> Stamp | None:
        """Return path, inode and modification time of a chunk file; None if the folder is remote."""
        if not self.folder.is_local:
            return None
        path = f"{self.folder.path}/{name}"
        status = os.stat(path)  # noqa: PTH116 a Path would double the time
        return path, status.st_ino, status.st_mtime_ns

    def mark_checked(self, block: int) -> None:
        """Record that this process has just computed the checksum of a block."""
        if stamp := self._make_stamp(self._chunk_file(block)):
            _checked_chunks.add(stamp)

    def prepare(self) -> None:
        """Write the Zarr metadata before threads write chunks; raise ConfigError if the folder is not writable."""
        if self._missing_metadata():
            self._write_chunk()
        elif self.limit is not None:
            with self.explain_errors(), suppress(FileNotFoundError):  # another process may have just removed the cache
                # Its modification time is the time of last use, by which `_make_room` sorts.
                self.folder.write(f"{self._array}/{_USER_PREFIX}{self.user}", b"\n", durable=None)

    def write(self, block: int, rows: np.ndarray) -> bool:
        """Cache the rows of a block; return False if `limit` leaves no room. ConfigError if they cannot be written."""
        return self._write_chunk(self._chunk_file(block), encode_chunk_buffers(rows, self.block_rows, self.compression))

    def _write_chunk(self, file_name: str | None = None, chunk: Sequence[bytes | memoryview] = ()) -> bool:
        """Write missing metadata and the buffers of `chunk` to `file_name`; return False if `limit` leaves no room."""
        with self.explain_errors():
            if self.limit is None:
                self._write_files(file_name, chunk)
                return True
            # Another process could otherwise fill the room between check and write.
            with self.parent.lock():
                files = self._missing_metadata()
                has_room = self._make_room(sum(map(len, [*files.values(), *chunk])))
                if has_room:
                    self._write_files(file_name, chunk)
                return has_room

    def begin(self, block: int) -> GrowingBlock | None:
        """Return a block for writing row by row, after `prepare`; None if only full blocks can be written."""
        is_plain = self.compression == "none" and sys.byteorder == "little" and self.limit is None
        if not is_plain or self.output.row_bytes < _MIN_ROW_BYTES:
            return None
        nbytes = self.block_rows * self.output.row_bytes
        with self.explain_errors():
            file = self.folder.preallocate(self._chunk_file(block), nbytes + CHECKSUM_BYTES)
        return None if file is None else GrowingBlock(self, block, file)

    def _write_files(self, file_name: str | None = None, chunk: Sequence[bytes | memoryview] = ()) -> None:
        """Write missing metadata and a chunk; try up to ten times if another process removes the cache."""
        for attempt in range(_MAX_TRIES):
            # `clear_cache` holds this lock, so a retry waits for it; with a limit, the caller holds it already.
            with self.parent.lock() if attempt and self.limit is None else nullcontext():
                try:
                    for name, data in self._missing_metadata().items():
                        self.folder.write(name, data, durable=None)
                    if file_name is not None:
                        self.folder.write(file_name, *chunk, durable=None)
                except FileNotFoundError:
                    # The cache was removed, with the file that was being written to.
                    if attempt + 1 == _MAX_TRIES:
                        raise
                else:
                    return

    @contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Add the remedy to errors of the cache folder; raise ConfigError if it is not writable."""
        try:
            yield
        except StorageFullError as error:
            error.add_note("while decoded media were cached: pass cache_limit, or a cache_dir with more room")
            raise
        except OSError as error:
            if not isinstance(error, (*_NOT_WRITABLE, StorageError)) and error.errno != errno.EROFS:
                raise
            raise ConfigError(
                f'decoded media of "{self.output.name}" cannot be cached in {self.parent.url}: '
                f"{error.strerror or error}; pass a writable cache_dir, or cache=False"
            ) from error

    def _chunk_file(self, block: int) -> str:
        return chunk_name(self.output, block)

    def _missing_metadata(self) -> dict[str, bytes]:
        """Return the content of all metadata files by name if one is missing; an empty dict if all exist."""
        own = {f"{self._array}/{_STAMPS_FILE}": self.stamps, f"{self._array}/{_USER_PREFIX}{self.user}": b"\n"}
        names = ("zarr.json", f"{self._array}/zarr.json", *(name for name, data in own.items() if data))
        if all(self.folder.size(name) for name in names):
            return {}
        rows = self.blocks * self.block_rows if self.row_counts else self.rows
        return group_metadata([self.output], rows, self.block_rows, self.compression) | own

    def _make_room(self, nbytes: int) -> bool:
        """Remove as many chunks of other datasets as needed for `nbytes`; return whether they fit."""
        assert self.limit is not None
        sizes = {name: max(size, 0) for name, size in self.parent.sizes().items() if _CACHE_FOLDER.match(name)}
        excess = sum(sizes.values()) + nbytes - self.limit
        own = {name.partition("/")[0] for name in sizes if name.endswith(f"/{_USER_PREFIX}{self.user}")}
        others = [name for name in sizes if name.partition("/")[0] not in own and _CHUNK_FILE.fullmatch(name)]
        if excess > 0 and self.parent.is_local:
            used = {name.partition("/")[0]: self._modified_time(name) for name in sizes if f"/{_USER_PREFIX}" in name}
            others.sort(key=lambda name: used.get(name.partition("/")[0], 0))
        if sum(sizes[name] for name in others) < excess:
            return False
        for name in others:
            if excess <= 0:
                break
            self.parent.remove(name)
            excess -= sizes[name]
        return True

    def _modified_time(self, name: str) -> int:
        """Return the modification time (ns) of a file in the local `parent`; 0 if it is missing."""
        with suppress(FileNotFoundError):
            return os.lstat(f"{self.parent.path}/{name}").st_mtime_ns
        return 0


class GrowingBlock:
    """Block of a cache that is written to disk row by row, in any order, before it is complete."""

    def __init__(self, cache: BlockCache, block: int, file: PreallocatedFile) -> None:
        self._cache = cache
        self._block = block
        self._file = file
        self._row_bytes = cache.output.row_bytes

    def write_rows(self, rows: Iterable[int], values: Iterable[np.ndarray]) -> None:
        """Write the values of rows."""
        with self._cache.explain_errors():
            for row, row_values in zip(rows, values, strict=True):
                self._file.write(row * self._row_bytes, byte_view(row_values))

    def read_into(self, row: int, values: np.ndarray) -> None:
        """Read a row that was written, into `values`."""
        self._file.read_into(row * self._row_bytes, byte_view(values))

    def finish(self) -> None:
        """Write the checksum and rename the file to its chunk name; if the cache was removed, write the rows again."""
        nbytes = self._cache.block_rows * self._row_bytes
        buffer, checksum = memoryview(bytearray(_BUFFER_BYTES)), 0
        for start in range(0, nbytes, _BUFFER_BYTES):
            view = buffer[: min(_BUFFER_BYTES, nbytes - start)]
            self._file.read_into(start, view)
            checksum = crc32c(view, start=checksum)
        with self._cache.explain_errors():
            self._file.write(nbytes, memoryview(checksum.to_bytes(CHECKSUM_BYTES, "little")))
            try:
                if self._file.finish():
                    self._cache.mark_checked(self._block)
            except FileNotFoundError:
                # The cache was removed while rows were written.
                rows = self._cache.output.empty(self._cache.count_rows(self._block))
                self._file.read_into(0, byte_view(rows))
                self._cache.write(self._block, rows)

    def close(self) -> None:
        """Close the file; an unfinished block is discarded."""
        self._file.close()


class MappedChunks:
    """Chunks that stay mapped from epoch to epoch, because page faults of a new mapping cost more than the copy.

    The operating system can reclaim their memory. Beyond a number of chunks or bytes, no more are kept.
    """

    def __init__(self) -> None:
        self._chunks: dict[str, tuple[Stamp, np.ndarray]] = {}
        self._nbytes = 0
        self._lock = threading.Lock()

    def get(self, stamp: Stamp) -> np.ndarray | None:
        """Return the chunk of a file; None if it is not mapped or the file was replaced."""
        with self._lock:
            kept_stamp, chunk = self._chunks.get(stamp[0], (None, None))
            return chunk if kept_stamp == stamp else None

    def add(self, stamp: Stamp, chunk: np.ndarray) -> None:
        """Keep a chunk mapped in place of an older one of the file, unless 4,096 chunks or 2 GiB are exceeded."""
        with self._lock:
            _, before = self._chunks.pop(stamp[0], (stamp, None))
            self._nbytes -= 0 if before is None else before.nbytes
            if len(self._chunks) < _MAX_MAPPED_CHUNKS and self._nbytes + chunk.nbytes <= _MAX_MAPPED_BYTES:
                self._chunks[stamp[0]] = stamp, chunk
                self._nbytes += chunk.nbytes
