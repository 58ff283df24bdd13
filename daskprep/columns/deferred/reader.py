"""Files of media cells: reading of allowed files only, and writing of files named by content."""

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

from daskprep.columns.deferred.cells import CELL_TYPE, MediaKind
from daskprep.errors import ConfigError, MediaError, StorageError
from daskprep.storage.checksum import Buffer, byte_view
from daskprep.storage.files import Folder
from daskprep.storage.local_files import READ_FLAGS, LocalFiles
from daskprep.storage.retries import RETRY_STATUSES, call_with_retries, explain
from daskprep.storage.security import check_protocol, check_trusted_path, redact_url

_CHUNK_BYTES = 1 << 24
_WRITING_THREADS = 8
# Errors caused by the path of a cell. Others, such as a failing disk or too many open files, are raised as OSError.
_CELL_ERRORS = {
    errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENXIO, errno.ELOOP, errno.ENAMETOOLONG,
}  # fmt: skip
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
    """Thread-safe reader of the files that media cells name.

    `base` is the folder of relative paths, an absolute path or URL. Cells may name only files in `base` and
    `extra_bases`, also after resolving ".." and symbolic links. Without a `base`, they may name any file or URL, or
    only files in an untrusted `dataset`, by absolute paths or URLs.
    """

    base: str | None = None
    max_bytes: int = 1_000_000_000  # larger files are refused before they are read
    extra_bases: tuple[str, ...] = ()
    dataset: Folder | None = None
    stored_in: str | None = None  # dataset that stores the bytes of cells, for error messages

    @property
    def bytes_name(self) -> str:
        """Name in error messages of the bytes of a cell, which have no path."""
        return "bytes in memory" if self.stored_in is None else f"bytes stored in {self.stored_in}"

    def read(self, path: str) -> bytes:
        """Return the bytes of a file.

        Raise MediaError if the file is missing, unreadable, too large or outside `base`; ConfigError if the cell of an
        untrusted dataset names a file outside; OSError if the storage fails.
        """
        location = self._locate(path)
        return self._read_local(location) if location.is_local else self._read_remote(location)

    def local_path(self, path: str) -> str | None:
        """Return the path of an allowed local file; None for URLs and other places."""
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
        for folder in folders:
            check_trusted_path(folder, "The folder")
            check_protocol(folder)
        opened = [Folder.open(folder) for folder in folders]
        return tuple(map(_resolve_links, opened if self.dataset is None else [*opened, self.dataset]))

    def _locate(self, path: str) -> Folder:
        """Return the allowed location of a path or URL; MediaError outside `base`, ConfigError if untrusted."""
        if not path or "\0" in path:
            raise MediaError(f"{path!r} is not a path")
        if self.base is None and self.dataset is None:
            return self._open(path)
        # Without a base, relative paths are not looked up in the folder of the dataset: a file there is another one.
        can_resolve = self.base is not None or path[0] == "/" or _is_url(path)
        for root in self._roots if can_resolve else ():
            location = _locate_local(root, path) if root.is_local else _locate_remote(root, path)
            if location is not None:
                return location
        if self.dataset is None:
            raise MediaError(f'"{redact_url(path)}" leaves base_dir, {self._roots[0].url}; move the file below it')
        allowed = " and ".join(root.url for root in self._roots)
        # Not a MediaError, which on_error="fill" would replace by a fill value.
        raise ConfigError(
            f'"{redact_url(path)}" is outside {allowed}, and the dataset that names it is not trusted: open it with '
            "base_dir=, the folder of its files, or with trusted=True if you trust its author"
        )

    def _open(self, path: str) -> Folder:
        """Return the location of a path or URL, or raise MediaError."""
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
        """Return the bytes of a regular file; MediaError if the path is at fault, else OSError."""
        try:
            descriptor = os.open(location.path, READ_FLAGS)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a file"
                    raise MediaError(f"{location.path}: it is {kind}")
                self._check_size(status.st_size, location.path)
                chunks = []
                bytes_left = status.st_size
                # A call may return fewer bytes than requested.
                while bytes_left and (chunk := os.read(descriptor, bytes_left)):
                    chunks.append(chunk)
                    bytes_left -= len(chunk)
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno not in _CELL_ERRORS:
                raise
            raise MediaError(f"{location.path}: {os.strerror(error.errno).lower()}") from error

    def _read_remote(self, location: Folder) -> bytes:
        """Return a remote file's bytes; MediaError if the path is at fault, else StorageError."""
        try:
            return call_with_retries(lambda: self._fetch(location), location.files.attempts)
        except MediaError:
            raise
        except Exception as error:
            if (reason := _explain_cell_error(error)) is not None:
                raise MediaError(f"{location.url}: {reason}") from error
            raise StorageError(f"{location.url} cannot be read {explain(error)}") from error

    def _fetch(self, location: Folder) -> bytes:
        """Return the bytes of a remote file; EOFError if incomplete, MediaError if too large."""
        with location.filesystem.open(location.path, "rb") as file:
            size = getattr(file, "size", None) or 0
            self._check_size(size, location.url)
            # If a web server does not send the size, a read returns only the bytes that have arrived.
            chunks = [file.read(size or _CHUNK_BYTES)]
            while chunks[-1]:
                self._check_size(sum(map(len, chunks)), location.url)
                chunks.append(file.read(_CHUNK_BYTES))
        if (received := sum(map(len, chunks))) < size:
            raise EOFError(f"{received:,} of {size:,} bytes received")
        return b"".join(chunks)

    def _check_size(self, size: int, name: str) -> None:
        if size > self.max_bytes:
            raise MediaError(f"{name}: it has {size:,} bytes or more, and at most {self.max_bytes:,} are read")


def _is_url(path: str) -> bool:
    protocol, separator, _ = path.partition("://")
    return bool(separator) and "/" not in protocol


def _resolve_links(folder: Folder) -> Folder:
    """Return a local folder by its real path, others unchanged."""
    if not folder.is_local:
        return folder
    return Folder(folder.url, os.path.realpath(folder.path), folder.files)


def _locate_local(root: Folder, path: str) -> Folder | None:
    """Return a path's resolved location in `root`; None outside."""
    if _is_url(path):
        if path.partition("://")[0] not in {"file", "local"}:
            return None
        path = Folder.open(path).path
    location = _resolve_links(Folder(path, f"{root.path}/{path}" if path[0] != "/" else path, LocalFiles()))
    return location if location.path.startswith(root.path.rstrip("/") + "/") else None


def _locate_remote(root: Folder, path: str) -> Folder | None:
    """Return a path's or URL's location in `root`; None outside."""
    name = path
    if _is_url(path):
        # For web servers, `root.path` is the URL with its credentials.
        prefix = next((one for one in (f"{root.url}/", f"{root.path}/") if path.startswith(one)), None)
        if prefix is None:
            return None
        name = path.removeprefix(prefix)
    # Web servers decode percent-encoded names, and some treat "\" as "/".
    if path.startswith("/") or ".." in re.split(r"[/\\]", unquote(name)):
        return None
    return root / name


def _explain_cell_error(error: BaseException) -> str | None:
    """Return why a path is unreadable; None if not its fault."""
    cause = error.__cause__
    is_from_aiohttp = type(cause).__module__.startswith("aiohttp.")
    if cause is not None and (is_from_aiohttp or isinstance(cause, TimeoutError | ConnectionError)):
        return _explain_cell_error(cause)  # fsspec raises FileNotFoundError for every network error of a web server
    status = getattr(error, "status", None)
    if isinstance(status, int) and 400 <= status < 500 and status not in RETRY_STATUSES:
        return f"the server answers {status}"
    if isinstance(error, ValueError):
        return "it is not a valid path there"
    # Some file systems raise the class of an error without its number.
    numbers = (number for kind, number in _ERROR_NUMBERS.items() if isinstance(error, kind))
    number = next(numbers, getattr(error, "errno", None))
    return os.strerror(number).lower() if number in _CELL_ERRORS else None


def name_by_content(data: Buffer, kind: MediaKind) -> str:
    """Return a file name by hash of the content, with a suffix."""
    view = byte_view(data)
    start = bytes(view[:8])
    suffixes = (suffix for magic, suffix in _SUFFIXES.items() if start.startswith(magic))
    return hashlib.sha256(view).hexdigest()[:32] + next(suffixes, ".png" if kind == "image" else ".wav")


def save_cell_bytes(cells: pa.StructArray, folder: Folder, kind: MediaKind) -> pa.StructArray:
    """Write bytes of cells as files named by content; return the cells with paths."""
    path, data, rate = (pc.struct_field(cells, name) for name in ("path", "bytes", "rate"))
    rows = data.is_valid().to_numpy(zero_copy_only=False).nonzero()[0]
    buffers = {int(row): data[int(row)].as_buffer() for row in rows}
    with ThreadPoolExecutor(_WRITING_THREADS, thread_name_prefix="daskprep-media") as pool:
        names = dict(zip(buffers, pool.map(lambda item: name_by_content(item, kind), buffers.values()), strict=True))
        unique = {name: buffers[row] for row, name in names.items()}
        new_flags = list(pool.map(lambda item: _write_if_missing(folder, *item), unique.items()))
    folder.sync([name for name, is_new in zip(unique, new_flags, strict=True) if is_new])
    root = folder.path if folder.is_local else folder.url
    saved = pa.array([f"{root}/{names[row]}" if row in names else None for row in range(len(cells))], pa.string())
    columns = [pc.coalesce(saved, path), pa.nulls(len(cells), pa.large_binary()), rate]
    return pa.StructArray.from_arrays(columns, fields=list(CELL_TYPE), mask=cells.is_null())


def _write_if_missing(folder: Folder, name: str, data: pa.Buffer) -> bool:
    """Write a file unless it has this size; return whether it did."""
    is_missing: bool = folder.size(name) != data.size  # a file that a power failure truncated has another size
    if is_missing:
        folder.write(name, data, durable=False)
    return is_missing
