"""Decoded media kept block by block: a Zarr array that fills while others read it."""

from __future__ import annotations

import errno
import math
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from daskprep.dataset.media import STAMP_BYTES, UNKNOWN_STAMP
from daskprep.errors import ConfigError, CorruptDatasetError, StorageError, StorageFullError, warn
from daskprep.storage import Folder
from daskprep.storage.arrays import (
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

# A folder for caches may be one that holds other files as well, which are neither counted nor removed.
_CACHE_FOLDER = re.compile(r"[0-9a-f]{32}/")
_STAMPS_FILE, _USER_PREFIX = "files", "user-"
_CHUNK_FILE = re.compile(r"[0-9a-f]{32}/[^/]+/c\.[0-9.]+")
_BUFFER_BYTES = 1 << 18  # as much as a core keeps at hand
_MIN_ROW_BYTES = 4096  # bytes of a row that are worth writing by themselves
_MAX_TRIES = 10  # to write to a cache that others remove
_MAX_MAPPED_BYTES = 1 << 29
_MAX_CHUNK_OVERHEAD = 4096  # bytes of a chunk beside its rows
_MAX_MAPPED_CHUNKS = 1 << 12  # of the 65,530 mappings that Linux lets a process have

Stamp: TypeAlias = tuple[str, int, int]
"""Path, inode and time of a file: what tells it from one that takes its place."""

# Chunks that this process has written or compared with their checksums, and need not compare again in every epoch.
_checked_chunks: set[Stamp] = set()
# Of which caches this process has told what.
_warned: set[tuple[str, str]] = set()
_NOT_WRITABLE = (PermissionError, NotADirectoryError, FileExistsError)


def make_cache_name(**facts: object) -> str:
    """Return the name of the cache of some media: one for all that their decoded numbers depend on."""
    return json_sha256(facts)[:32]


@dataclass(frozen=True)
class BlockCache:
    """Decoded blocks of one output of a split.

    A block is there once its chunk is, and chunks appear whole: any number of threads, processes and machines may fill
    a cache together, and whoever is killed loses the block in hand. What is there may be removed at any time: it is
    decoded again.
    """

    parent: Folder  # holds caches, of which this is one
    name: str
    output: Output
    rows: int
    block_rows: int
    compression: Compression
    # Bytes that all caches in `parent` may have. Chunks of other datasets make room for new ones, those unused for
    # longest first; those of the same stay, since each is read once in every epoch. In object stores, which have no
    # locks, processes that write at once may exceed it by a chunk each.
    limit: int | None = None
    user: str = ""  # stands for the dataset; a cache may be that of several
    stamps: bytes = b""  # what tells the files of each block from what they were at another time, if anything does

    @property
    def folder(self) -> Folder:
        return self.parent / self.name

    @property
    def _array(self) -> str:
        return folder_name(self.output.name)

    def remove_outdated(self) -> None:
        """Remove the blocks of which files have changed since the stamps were written; those that are gone have not."""
        # Where others remove the cache meanwhile, or have filled the disk, the stamps from before tell of changes.
        with suppress(FileNotFoundError, StorageFullError):
            self._remove_outdated(f"{self._array}/{_STAMPS_FILE}")

    def _remove_outdated(self, name: str) -> None:
        stored = self.folder.read(name) if self.stamps and self.folder.size(name) else self.stamps
        if stored == self.stamps:
            return
        stored = stored if len(stored) == len(self.stamps) else bytes(len(self.stamps))
        before, now = (np.frombuffer(stamps, f"V{STAMP_BYTES}") for stamps in (stored, self.stamps))
        gone, present = now == np.void(UNKNOWN_STAMP), self.present()
        if used := int(gone[present].sum()):
            subject = f'files of {used:,} of {self.blocks:,} blocks of "{self.output.name}"'
            self.warn_once("gone", f"{subject} are not there: their cached rows are used")
        stamps = np.where(gone, before, now)
        self.folder.remove(*(self._chunk_file(block) for block in present if stamps[block] != before[block]))
        if (updated := stamps.tobytes()) != stored:
            with self.explain_errors():
                self.folder.write(name, updated, durable=False)

    def warn_once(self, topic: str, message: str) -> None:
        """Warn, if this process has not told the same of this cache before."""
        if (self.folder.url, topic) not in _warned:
            _warned.add((self.folder.url, topic))
            warn(message)

    @property
    def blocks(self) -> int:
        """How many blocks there are in all."""
        return -(-self.rows // self.block_rows)

    def present(self) -> list[int]:
        """Return the numbers of the blocks that are there."""
        sizes = self.folder.sizes()
        return [block for block in range(self.blocks) if self._chunk_file(block) in sizes]

    @property
    def complete(self) -> bool:
        """Whether every block is there."""
        return len(self.present()) == self.blocks

    def count_rows(self, block: int) -> int:
        """Return how many rows a block has."""
        return min(self.block_rows, self.rows - block * self.block_rows)

    def has(self, block: int) -> bool:
        """Tell whether a block is there."""
        return self.folder.size(self._chunk_file(block)) is not None

    def read(self, block: int, out: np.ndarray | None = None, mapped: MappedChunks | None = None) -> np.ndarray | None:
        """Return the rows of a block, or None if it is not there.

        What must be decompressed lies in `out`, if that has room for a whole block; plain rows are those of the file,
        which stays in `mapped`.
        """
        name = self._chunk_file(block)
        try:
            return self._read(name, out, mapped)[: self.count_rows(block)]
        except CorruptDatasetError:
            # A loss of power may leave part of a chunk; it is decoded again.
            self.folder.remove(name)
            return None
        except FileNotFoundError:
            # It may be there by now.
            return None
        except IsADirectoryError as error:
            raise CorruptDatasetError(f"{self.folder.url}/{name} is a folder, not a cached block: remove it") from error

    @property
    def _is_plain(self) -> bool:
        """Whether chunks hold rows as they are in memory."""
        is_bytes = np.dtype(self.output.dtype).itemsize == 1
        return self.compression == "none" and is_bytes and math.prod(self.output.shape) > 0

    def _read(self, name: str, out: np.ndarray | None, mapped: MappedChunks | None) -> np.ndarray:
        if not self._is_plain:
            data, row_bytes = (
                self.folder.read_buffer(name),
                math.prod(self.output.shape) * np.dtype(self.output.dtype).itemsize,
            )
            # Its checksum would be that of a very large file first.
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
        """Return the rows of a plain chunk, which go from the pages of the file to batches: no byte is copied twice."""
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
        """Return what tells a file from one that takes its place, or None if nothing does."""
        if not self.folder.is_local:
            return None
        path = f"{self.folder.path}/{name}"
        status = os.stat(path)  # noqa: PTH116 a Path would take as long as all the rest
        return path, status.st_ino, status.st_mtime_ns

    def mark_checked(self, block: int) -> None:
        """Note that this process has just computed the checksum of a block."""
        if stamp := self._make_stamp(self._chunk_file(block)):
            _checked_chunks.add(stamp)

    def prepare(self) -> None:
        """Write what tells other tools what chunks hold, before threads write these; ConfigError if it cannot be."""
        if self._missing_metadata():
            self._write_chunk()
        elif self.limit is not None:
            with self.explain_errors(), suppress(FileNotFoundError):  # where others have just removed the cache
                # When it was last used: those unused for longest make room first.
                self.folder.write(f"{self._array}/{_USER_PREFIX}{self.user}", b"\n", durable=False)

    def write(self, block: int, rows: np.ndarray) -> bool:
        """Keep the rows of a block; return whether there was room for them; ConfigError if they cannot be written."""
        return self._write_chunk(self._chunk_file(block), encode_chunk_buffers(rows, self.block_rows, self.compression))

    def _write_chunk(self, file_name: str | None = None, chunk: Sequence[bytes | memoryview] = ()) -> bool:
        """Write what metadata there are not yet, and a chunk, if there is room for them."""
        with self.explain_errors():
            if self.limit is None:
                self._write_files(file_name, chunk)
                return True
            # So that no other takes the room that was found.
            with self.parent.lock():
                files = self._missing_metadata()
                has_room = self._make_room(sum(map(len, [*files.values(), *chunk])))
                if has_room:
                    self._write_files(file_name, chunk)
                return has_room

    def begin(self, block: int) -> GrowingBlock | None:
        """Return a block that rows can be written to one by one, after `prepare`; None where only whole ones can be."""
        is_plain = self.compression == "none" and sys.byteorder == "little" and self.limit is None
        if not is_plain or self.output.row_bytes < _MIN_ROW_BYTES:
            return None
        nbytes = self.block_rows * self.output.row_bytes
        with self.explain_errors():
            file = self.folder.preallocate(self._chunk_file(block), nbytes + CHECKSUM_BYTES)
        return None if file is None else GrowingBlock(self, block, file)

    def _write_files(self, file_name: str | None = None, chunk: Sequence[bytes | memoryview] = ()) -> None:
        for attempt in range(_MAX_TRIES):
            # Who clears the cache holds it; with a limit, it is held here already.
            with self.parent.lock() if attempt and self.limit is None else nullcontext():
                try:
                    for name, data in self._missing_metadata().items():
                        self.folder.write(name, data, durable=False)
                    if file_name is not None:
                        self.folder.write(file_name, *chunk, durable=False)
                except FileNotFoundError:
                    # The cache was removed, with the file that was being written to.
                    if attempt + 1 == _MAX_TRIES:
                        raise
                else:
                    return

    @contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Say of errors of the folder what to do about them."""
        try:
            yield
        except StorageFullError as error:
            error.add_note("while decoded media were cached: give cache_limit, or a cache_dir with more room")
            raise
        except OSError as error:
            if not isinstance(error, (*_NOT_WRITABLE, StorageError)) and error.errno != errno.EROFS:
                raise
            raise ConfigError(
                f'decoded media of "{self.output.name}" cannot be cached in {self.parent.url}: '
                f"{error.strerror or error}; give a cache_dir that can be written to, or cache=False"
            ) from error

    def _chunk_file(self, block: int) -> str:
        return chunk_name(self.output, block)

    def _missing_metadata(self) -> dict[str, bytes]:
        own = {f"{self._array}/{_STAMPS_FILE}": self.stamps, f"{self._array}/{_USER_PREFIX}{self.user}": b"\n"}
        names = ("zarr.json", f"{self._array}/zarr.json", *(name for name, data in own.items() if data))
        if all(self.folder.size(name) for name in names):
            return {}
        return group_metadata([self.output], self.rows, self.block_rows, self.compression) | own

    def _make_room(self, nbytes: int) -> bool:
        """Remove chunks of other datasets as far as needed; return whether there is room then."""
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
        """Return when a file of any cache in a local folder was written, in ns."""
        with suppress(FileNotFoundError):
            return os.lstat(f"{self.parent.path}/{name}").st_mtime_ns
        return 0


class GrowingBlock:
    """A block of a cache whose rows come one by one, in any order, and need no memory meanwhile."""

    def __init__(self, cache: BlockCache, block: int, file: PreallocatedFile) -> None:
        self._cache = cache
        self._block = block
        self._file = file
        self._row_bytes = cache.output.row_bytes

    def write_row(self, row: int, values: np.ndarray) -> None:
        """Write a row."""
        with self._cache.explain_errors():
            self._file.write(row * self._row_bytes, byte_view(values))

    def read_into(self, row: int, values: np.ndarray) -> None:
        """Read a row that was kept."""
        self._file.read_into(row * self._row_bytes, byte_view(values))

    def finish(self) -> None:
        """Let the block be there: all its rows were kept."""
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
                # The cache was removed meanwhile.
                rows = self._cache.output.empty(self._cache.count_rows(self._block))
                self._file.read_into(0, byte_view(rows))
                self._cache.write(self._block, rows)

    def close(self) -> None:
        """Let go of the block, whether it is there or not."""
        self._file.close()


class MappedChunks:
    """Chunks that stay mapped from epoch to epoch: to touch new pages costs more than to copy them.

    They take no memory that the system could not have back. As many are kept as have room.
    """

    def __init__(self) -> None:
        self._chunks: dict[str, tuple[Stamp, np.ndarray]] = {}
        self._nbytes = 0
        self._lock = threading.Lock()

    def get(self, stamp: Stamp) -> np.ndarray | None:
        """Return a chunk, unless it is not there or another file has taken its place."""
        with self._lock:
            kept_stamp, chunk = self._chunks.get(stamp[0], (None, None))
            return chunk if kept_stamp == stamp else None

    def add(self, stamp: Stamp, chunk: np.ndarray) -> None:
        """Keep a chunk, if there is room."""
        with self._lock:
            _, before = self._chunks.pop(stamp[0], (stamp, None))
            self._nbytes -= 0 if before is None else before.nbytes
            if len(self._chunks) < _MAX_MAPPED_CHUNKS and self._nbytes + chunk.nbytes <= _MAX_MAPPED_BYTES:
                self._chunks[stamp[0]] = stamp, chunk
                self._nbytes += chunk.nbytes
