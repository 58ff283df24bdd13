"""Files on a remote file system of fsspec."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import pyarrow as pa

from daskprep.errors import StorageError, StorageFullError
from daskprep.storage.local_files import DISK_FULL_ERRNOS
from daskprep.storage.retries import ATTEMPTS, call_with_retries, disable_s3fs_retries, explain, is_transient, reason_of
from daskprep.storage.s3_ranges import read_range
from daskprep.storage.threads import map_in_threads

# Stores without folders, where makedirs could create a bucket.
_WITHOUT_FOLDERS = frozenset({"memory", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci"})

T = TypeVar("T")


class RemoteFiles:
    """The storage operations of `Folder` on a file system of fsspec; `Folder` documents the methods.

    Paths are never patterns: no method of fsspec that expands "*" is called.

    Parameters
    ----------
    filesystem : fsspec.AbstractFileSystem
        The file system.
    attempts : int
        The maximum number of attempts of a request that fails temporarily.
    """

    def __init__(self, filesystem: Any, attempts: int = ATTEMPTS) -> None:
        disable_s3fs_retries(filesystem)
        self._filesystem = filesystem
        self.attempts = attempts
        self._process = os.getpid()
        self._stores: dict[str, Any] = {}

    @property
    def filesystem(self) -> Any:
        """The fsspec file system, created again in a forked process."""
        if self._process != os.getpid():
            # After a fork, the thread with the event loop of the file system no longer exists.
            constructor, arguments = self._filesystem.__reduce__()[:2]
            self._filesystem, self._process = constructor(*arguments), os.getpid()
            disable_s3fs_retries(self._filesystem)
        return self._filesystem

    @property
    def protocol(self) -> str:
        names = self._filesystem.protocol
        return str(names if isinstance(names, str) else names[0])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteFiles) and bool(self._filesystem == other._filesystem)

    def __hash__(self) -> int:
        return hash(self._filesystem)

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFiles, (self.filesystem, self.attempts)

    def _request(self, url: str, action: str, call: Callable[[], T]) -> T:
        """Return the result of `call`, with retries; errors name `url` and the `action` ("read")."""
        with storage_error_context(url, action):
            return call_with_retries(call, self.attempts)

    def _request_uncached(self, url: str, action: str, call: Callable[[Any], Any]) -> Any:
        """Return the result of `call` on the file system, with retries and without its cached listings."""

        def call_uncached() -> Any:
            self.filesystem.invalidate_cache()
            return call(self.filesystem)

        return self._request(url, action, call_uncached)

    @contextmanager
    def writer(self, path: str, url: str, durable: object) -> Iterator[Callable[[memoryview], None]]:
        """Yield a function that appends bytes to a file, which is uploaded once the block ends without an error."""
        content: list[bytes] = []
        yield lambda view: content.append(bytes(view))
        data = b"".join(content)  # a single buffer is not copied

        def put() -> None:
            try:
                self.filesystem.pipe_file(path, data)
            except FileNotFoundError:
                if self.protocol in _WITHOUT_FOLDERS:
                    raise
                self.filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
                self.filesystem.pipe_file(path, data)

        self._request(url, "written", put)

    @contextmanager
    def lock(self, path: str, url: str) -> Iterator[None]:
        """Do nothing: stores do not have locks."""
        yield

    def sync(self, paths: Sequence[str], root: str) -> None:
        """Do nothing: uploaded files are durable."""

    def read(self, path: str, url: str, start: int, stop: int | None) -> bytes:
        return bytes(self._read_range(path, url, start, stop))

    def read_buffer(self, path: str, url: str, start: int, stop: int | None) -> pa.Buffer:
        return pa.py_buffer(self._read_range(path, url, start, stop))

    def _read_range(self, path: str, url: str, start: int, stop: int | None) -> bytes | memoryview:
        """Return the bytes of a file from `start` to `stop`, or to its end, fewer if it is shorter."""
        if start == 0 and stop is None:
            # s3fs would request the size first, and report no reason if that request fails.
            options = {"max_concurrency": 1} if self.protocol in {"s3", "s3a"} else {}
            return self._request(url, "read", lambda: bytes(self.filesystem.cat_file(path, **options)))
        if stop is None:
            stop = self.size(path, url)
        if stop is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url)
        # Stores reject empty ranges.
        return self._fetch_range(path, url, start, stop) if start < stop else b""

    @contextmanager
    def open_reader(self, path: str, url: str) -> Iterator[Callable[[int, memoryview], int]]:
        """Yield a function that fills a buffer with the bytes from an offset and returns how many it filled."""

        def read_into(start: int, target: memoryview) -> int:
            if not target:
                return 0
            data = self._read_range(path, url, start, start + len(target))
            target[: len(data)] = data
            return len(data)

        yield read_into

    def _fetch_range(self, path: str, url: str, start: int, stop: int) -> memoryview:
        """Return the bytes of a nonempty range; a response with too few bytes is retried, too."""

        def fetch_range() -> memoryview:
            try:
                data = read_range(self.filesystem, path, start, stop, self._stores)
            except Exception as error:
                if isinstance(error, FileNotFoundError) or is_transient(error) or hasattr(error, "response"):
                    raise
                # Stores raise various errors for a range beyond the end of a file.
                size = self.size(path, url)
                if size is None or start < size:
                    raise
                return memoryview(b"")
            if len(data) < stop - start and len(data) < min(stop, self.size(path, url) or 0) - start:
                raise EOFError(f"{len(data):,} of {stop - start:,} bytes were received")
            return data

        return self._request(url, "read", fetch_range)

    def size(self, path: str, url: str) -> int | None:
        with suppress(FileNotFoundError):
            info = self._request_uncached(url, "looked up", lambda files: files.info(path))
            return int(info["size"]) if info["type"] == "file" else None
        return None

    def sizes(self, path: str, url: str) -> Iterator[tuple[str, int]]:
        for file_path, info in self._find(path, url).items():
            yield file_path[len(path) :].lstrip("/"), int(info["size"])

    def children(self, path: str, url: str) -> list[str]:
        with suppress(FileNotFoundError):
            listing = self._request_uncached(url, "listed", lambda files: files.ls(path, detail=False))
            # `ls` of a file returns the file itself.
            return [name.rstrip("/").rpartition("/")[2] for name in listing if name.rstrip("/") != path]
        return []

    def remove(self, paths: Sequence[str], url: str) -> None:
        def remove_one(path: str) -> None:
            with suppress(FileNotFoundError):
                call_with_retries(lambda: self.filesystem.rm_file(path), self.attempts)

        with storage_error_context(url, "removed"):
            map_in_threads(remove_one, paths, local=False)

    def remove_all(self, path: str, url: str) -> None:
        self.remove(list(self._find(path, url)), url)
        if self.protocol in _WITHOUT_FOLDERS:
            return
        with suppress(FileNotFoundError), storage_error_context(url, "removed"):
            folders = self.filesystem.find(path, withdirs=True, detail=True)
            for folder in sorted(folders, key=len, reverse=True):
                self.filesystem.rmdir(folder)

    def _find(self, path: str, url: str) -> dict[str, Any]:
        with suppress(FileNotFoundError):
            listing = self._request_uncached(url, "listed", lambda files: files.find(path, detail=True))
            # `find` of a file returns the file itself.
            return {name: info for name, info in listing.items() if name != path}
        return {}


@contextmanager
def storage_error_context(url: str, action: str) -> Iterator[None]:
    """Raise errors of any file system as a StorageError or FileNotFoundError that names `url`, without credentials.

    `action` completes the message "cannot be ...". The errors of the file systems have no common base class.
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        if is_transient(error):
            raise StorageError(f"{url} cannot be {action} {explain(error)}") from error
        bucket = " (NoSuchBucket)" if "NoSuchBucket" in reason_of(error) else ""
        raise FileNotFoundError(errno.ENOENT, f"{os.strerror(errno.ENOENT)}{bucket}", url) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
            raise StorageFullError(f"{url}: no room there: make room, or write elsewhere") from error
        if isinstance(error, OSError) and getattr(error, "filename", None) == url:
            raise
        raise StorageError(f"{url} cannot be {action} {explain(error)}") from error
