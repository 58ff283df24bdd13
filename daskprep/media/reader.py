"""Files behind media cells: read within bounds, and written once by what they hold."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from daskprep.errors import ConfigError, MediaError, StorageError
from daskprep.media.cells import CELL_TYPE, MediaKind
from daskprep.storage.checksum import Buffer, byte_view
from daskprep.storage.files import Folder
from daskprep.storage.local_files import READ_FLAGS, LocalFiles
from daskprep.storage.remote_files import RemoteFiles
from daskprep.storage.retries import RETRY_STATUSES, call_with_retries, explain
from daskprep.storage.urls import check_protocol, check_trusted_path, redact_url

_CHUNK_BYTES = 1 << 24
_WRITING_THREADS = 8
# What a cell is to blame for; that a disk fails, or too many files are open, is no property of the cell.
_CELL_ERRORS = {
    errno.ENOENT: "there is no such file",
    errno.ENOTDIR: "there is no such file",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EISDIR: "it is a folder",
    errno.ENXIO: "it is not a file",
    errno.ELOOP: "its links lead in a circle",
    errno.ENAMETOOLONG: "no file can have a name this long",
}
_ERROR_NUMBERS = {FileNotFoundError: errno.ENOENT, IsADirectoryError: errno.EISDIR, PermissionError: errno.EACCES}
_SUFFIXES = {
    b"\xff\xd8\xff": ".jpg",
    b"GIF8": ".gif",
    b"BM": ".bmp",
    b"II*\0": ".tif",
    b"MM\0*": ".tif",
    b"fLaC": ".flac",
    b"OggS": ".ogg",
    b"ID3": ".mp3",
}


@dataclass(frozen=True, repr=False)
class MediaReader:
    r"""Reads the files that media cells name, from any thread and any process.

    Relative paths of cells begin in the folder `base`, an absolute path or URL, and no cell may name what lies outside
    of it and of the folders `extra_bases`, not even by way of ".." or symbolic links. Without a base, cells may name any file
    or URL; but those of a `dataset` that is not trusted nothing outside of its folder, and no relative path.
    """

    base: str | None = None
    max_bytes: int = 1_000_000_000  # files with more are refused before they are read
    extra_bases: tuple[str, ...] = ()
    dataset: Folder | None = None
    stored_in: str | None = None  # the dataset whose cells have bytes, which errors name

    @property
    def bytes_name(self) -> str:
        """What errors call the bytes of a cell, which have no path."""
        return "bytes in memory" if self.stored_in is None else f"bytes stored in {self.stored_in}"

    def read(self, path: str) -> bytes:
        """Return the bytes of a file.

        A file that is not there, may not be read, is too large or lies outside `base` is a MediaError, and what a
        dataset that is not trusted names outside a ConfigError. If storage fails, it is an OSError.
        """
        location = self._locate(path)
        return self._read_local(location) if location.is_local else self._read_remote(location)

    def local_path(self, path: str) -> str | None:
        """Return where a local file lies, if it may be read; None of others."""
        if self.dataset is None:
            return None if "://" in path else os.path.join(self.base or "", path)  # noqa: PTH118 ten times as fast
        try:
            location = self._locate(path)
        except (MediaError, ConfigError):
            return None
        return location.path if location.is_local else None

    def __repr__(self) -> str:
        return f"<MediaReader {'of any file' if self.base is None else redact_url(self.base)}>"

    @cached_property
    def _roots(self) -> tuple[Folder, ...]:
        folders = () if self.base is None else (self.base, *self.extra_bases)
        for one in folders:
            check_trusted_path(one, "The folder")
            check_protocol(one)
        opened_folders = [Folder.open(one) for one in folders]
        return tuple(map(_resolve_links, opened_folders if self.dataset is None else [*opened_folders, self.dataset]))

    def _locate(self, path: str) -> Folder:
        """Return where a file is."""
        if not path or "\0" in path:
            raise MediaError(f"{path!r} is not a path")
        if self.base is None and self.dataset is None:
            return self._open(path)
        # Where a dataset has a base_dir of its own, a file of that name in its folder is another one.
        can_resolve = self.base is not None or path[0] == "/" or _is_url(path)
        for root in self._roots if can_resolve else ():
            location = _locate_local(root, path) if root.is_local else _locate_remote(root, path)
            if location is not None:
                return location
        if self.dataset is None:
            raise MediaError(f'"{redact_url(path)}" leaves base_dir, {self._roots[0].url}; move the file below it')
        allowed = " and ".join(root.url for root in self._roots)
        # Not the fault of a cell, for which a fill value could stand.
        raise ConfigError(
            f'"{redact_url(path)}" is outside {allowed}, and the dataset that names it is not trusted: open it with '
            "base_dir=, the folder of its files, or with trusted=True if you trust who made it"
        )

    def _open(self, path: str) -> Folder:
        if path[0] == "/":
            return Folder(path, path, LocalFiles())
        try:
            check_protocol(path)
            return Folder.open(path)
        except ConfigError as error:
            if isinstance(error.__cause__, ImportError):
                raise
            raise MediaError(str(error)) from error

    def _read_local(self, location: Folder) -> bytes:
        try:
            descriptor = os.open(location.path, READ_FLAGS)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise MediaError(
                        f"{location.path}: it is {'a folder' if stat.S_ISDIR(status.st_mode) else 'no file'}"
                    )
                self._check_size(status.st_size, location.path)
                chunks = []
                bytes_left = status.st_size
                # A call may give less than it was asked for.
                while bytes_left and (chunk := os.read(descriptor, bytes_left)):
                    chunks.append(chunk)
                    bytes_left -= len(chunk)
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno not in _CELL_ERRORS:
                raise
            raise MediaError(f"{location.path}: {_CELL_ERRORS[error.errno]}") from error

    def _read_remote(self, location: Folder) -> bytes:
        assert isinstance(location.files, RemoteFiles)
        try:
            return call_with_retries(lambda: self._fetch(location), location.files.attempts)
        except MediaError:
            raise
        except Exception as error:
            reason = _explain_cell_error(error)
            if reason is not None:
                raise MediaError(f"{location.url}: {reason}") from error
            raise StorageError(f"{location.url} cannot be read {explain(error)}") from error

    def _fetch(self, location: Folder) -> bytes:
        with location.filesystem.open(location.path, "rb") as file:
            size = getattr(file, "size", None) or 0
            self._check_size(size, location.url)
            # Of a web server that does not tell the size, a read gives what has arrived.
            chunks = [file.read(size or _CHUNK_BYTES)]
            while chunks[-1]:
                self._check_size(sum(map(len, chunks)), location.url)
                chunks.append(file.read(_CHUNK_BYTES))
        if (received := sum(map(len, chunks))) < size:
            raise EOFError(f"{received:,} of {size:,} bytes came")
        return b"".join(chunks)

    def _check_size(self, size: int, name: str) -> None:
        if size > self.max_bytes:
            raise MediaError(f"{name}: it has {size:,} bytes or more, and at most {self.max_bytes:,} are read")


def _is_url(path: str) -> bool:
    protocol, separator, _ = path.partition("://")
    return bool(separator) and "/" not in protocol


def _resolve_links(folder: Folder) -> Folder:
    if not folder.is_local:
        return folder
    return Folder(folder.url, os.path.realpath(folder.path), folder.files)


def _locate_local(root: Folder, path: str) -> Folder | None:
    if _is_url(path):
        if path.partition("://")[0] not in {"file", "local"}:
            return None
        path = Folder.open(path).path
    location = _resolve_links(Folder(path, f"{root.path}/{path}" if path[0] != "/" else path, LocalFiles()))
    return location if location.path.startswith(root.path.rstrip("/") + "/") else None


def _locate_remote(root: Folder, path: str) -> Folder | None:
    name = path
    if _is_url(path):
        # Of web servers, the path is the URL with its credentials.
        prefix = next((one for one in (f"{root.url}/", f"{root.path}/") if path.startswith(one)), None)
        if prefix is None:
            return None
        name = path.removeprefix(prefix)
    # Servers of web pages decode names, and some take "\" for "/".
    if path.startswith("/") or ".." in re.split(r"[/\\]", unquote(name)):
        return None
    return root / name


def _explain_cell_error(error: BaseException) -> str | None:
    """Return what a cell is to blame for, or None; each file system has errors of its own, with no common base."""
    cause = error.__cause__
    is_network_error = isinstance(cause, TimeoutError | ConnectionError) or type(cause).__module__.startswith(
        "aiohttp."
    )
    if cause is not None and is_network_error:
        # fsspec says of all that goes wrong on the way to a web server that the file is not there.
        return _explain_cell_error(cause)
    status = getattr(error, "status", None)
    if isinstance(status, int) and 400 <= status < 500 and status not in RETRY_STATUSES:
        return f"the server answers {status}"
    if isinstance(error, ValueError):
        return "it is not a valid path there"
    # File systems give the class of an error at least, and maybe its number.
    known = (number for kind, number in _ERROR_NUMBERS.items() if isinstance(error, kind))
    return _CELL_ERRORS.get(next(known, getattr(error, "errno", None) or 0))


def name_by_content(data: Buffer, kind: MediaKind) -> str:
    r"""Return the name of a file by what it holds: the same bytes have the same name everywhere."""
    view = byte_view(data)
    start = bytes(view[:8])
    known = (suffix for magic, suffix in _SUFFIXES.items() if start.startswith(magic))
    return hashlib.sha256(view).hexdigest()[:32] + next(known, ".png" if kind == "image" else ".wav")


def save_cell_bytes(cells: pa.StructArray, folder: Folder, kind: MediaKind) -> pa.StructArray:
    """Write the bytes of cells as files named by content, and return the cells with their absolute paths.

    Files that are there already, from this column or another one, are not written again. What was written
    outlives a loss of power.
    """
    path, data, rate = (pc.struct_field(cells, name) for name in ("path", "bytes", "rate"))
    rows = data.is_valid().to_numpy(zero_copy_only=False).nonzero()[0]
    buffers = {int(row): data[int(row)].as_buffer() for row in rows}
    with ThreadPoolExecutor(_WRITING_THREADS, thread_name_prefix="daskprep-media") as pool:
        names = dict(
            zip(buffers, pool.map(lambda buffer: name_by_content(buffer, kind), buffers.values()), strict=True)
        )
        unique = {name: buffers[row] for row, name in names.items()}
        new_flags = list(pool.map(lambda item: _write_if_missing(folder, *item), unique.items()))
    folder.sync([name for name, is_new in zip(unique, new_flags, strict=True) if is_new])
    root = folder.path if folder.is_local else folder.url
    saved = pa.array([f"{root}/{names[row]}" if row in names else None for row in range(len(cells))], pa.string())
    columns = [pc.coalesce(saved, path), pa.nulls(len(cells), pa.large_binary()), rate]
    return pa.StructArray.from_arrays(columns, fields=list(CELL_TYPE), mask=cells.is_null())


def _write_if_missing(folder: Folder, name: str, data: pa.Buffer) -> bool:
    # A file that a loss of power cut short has another size.
    if folder.size(name) == data.size:
        return False
    folder.write(name, data, durable=False)
    return True
