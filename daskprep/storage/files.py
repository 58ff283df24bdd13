"""Folders on any file system, with atomically written files."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from daskprep.storage.checksum import Buffer, byte_view
from daskprep.storage.local_files import Durable, LocalFiles, PreallocatedFile
from daskprep.storage.retries import pop_attempts
from daskprep.storage.security import open_filesystem, path_text, redact_url

if TYPE_CHECKING:
    from daskprep.storage.remote_files import RemoteFiles

_OUTPUT_BYTES = 1 << 22


@dataclass(frozen=True, repr=False)
class Folder:
    """A folder on any file system of fsspec, which need not exist yet.

    Names of files are relative to the folder and may contain "/". All methods may be called from several threads and
    processes concurrently. A Folder may be pickled. The pickle includes the storage options with their credentials,
    which `url`, `repr` and messages never show.
    """

    url: str  # the path or URL without credentials, for messages
    path: str  # the path in the file system
    files: LocalFiles | RemoteFiles  # the file system

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
        *,
        follow_links: bool = False,
    ) -> Folder:
        """Return the folder at a path or URL, without accessing it.

        The folder may be a link. Links below it are rejected; with `follow_links`, files that are read may be links.
        """
        text = path_text(path, "folder", ": rows are first and the path second, as in fit_write(frame, path)")
        protocol, separator, _ = text.partition("://")
        if not separator or "/" in protocol or protocol in {"file", "local"}:
            local: str = LocalFileSystem._strip_protocol(text)
            return cls(local, local, LocalFiles(local, follow_links))
        # Other processes write to the folder as well: a cached listing would miss their files.
        attempts, options = pop_attempts({"use_listings_cache": False, **(storage_options or {})})
        from daskprep.storage.remote_files import RemoteFiles  # noqa: PLC0415 local files do without it

        filesystem, inner_path = open_filesystem(text, options)
        return cls(redact_url(text).rstrip("/"), inner_path.rstrip("/"), RemoteFiles(filesystem, attempts))

    @property
    def is_local(self) -> bool:
        return isinstance(self.files, LocalFiles)

    @property
    def is_process_local(self) -> bool:
        """Whether other processes cannot read the files: "memory://"."""
        return not self.is_local and self.files.protocol == "memory"

    @property
    def filesystem(self) -> Any:
        """The file system of fsspec, or None for a local folder."""
        return self.files.filesystem

    def __truediv__(self, name: str) -> Folder:
        return Folder(f"{self.url}/{name}", f"{self.path}/{name}", self.files)

    def __repr__(self) -> str:
        return f'<Folder "{self.url}">'

    def write(self, name: str, *buffers: Buffer, durable: Durable = True) -> int:
        """Write buffers as one file, atomically; return its size.

        Readers see the old or the new file. With `durable`, it survives a power failure; with "later", the disk starts
        to write it, and `sync` waits for that. New folders are flushed, unless `durable` is None: no durable file may
        be written to them. Raise StorageFullError if the disk is full.
        """
        with self.writer(name, durable=durable) as append:
            return sum(map(append, buffers))

    def lock(self) -> AbstractContextManager[None]:
        """Return a context that creates and locks a local folder."""
        return self.files.lock(self.path, self.url)

    def sync(self, names: Iterable[str], *, contents: bool = True, folders: bool = True) -> None:
        """Flush files written with ``durable=False``, and folders."""
        paths = [f"{self.path}/{name}" for name in names]
        if contents:
            self.files.sync(paths)
        if folders:
            self.files.sync_folders(paths, self.path)

    @contextmanager
    def writer(self, name: str, *, durable: Durable = True) -> Iterator[Callable[[Buffer], int]]:
        """Yield a function that appends a buffer to a new file and returns its bytes.

        The file appears once the block ends without an exception; `write` documents `durable`.
        """
        with self.files.writer(f"{self.path}/{name}", f"{self.url}/{name}", durable) as write:

            def append(buffer: Buffer) -> int:
                view = byte_view(buffer)
                write(view)
                return len(view)

            yield append

    def preallocate(self, name: str, size: int) -> PreallocatedFile | None:
        """Return a file to write in any order, which appears once finished; None if unsupported."""
        return self.files.preallocate(f"{self.path}/{name}", size) if isinstance(self.files, LocalFiles) else None

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes of a file from `start` to `stop`."""
        return self.files.read(f"{self.path}/{name}", f"{self.url}/{name}", start, stop)

    @contextmanager
    def open_reader(self, name: str) -> Iterator[Callable[[int, memoryview], None]]:
        """Yield a function that fills a buffer from an offset, or raises EOFError."""
        with self.files.open_reader(f"{self.path}/{name}", f"{self.url}/{name}") as fill:

            def read_into(start: int, target: memoryview) -> None:
                view = byte_view(target)
                filled = fill(start, view)
                if filled != len(view):
                    raise EOFError(
                        f"{self.url}/{name} has {filled:,}, not {len(view):,} bytes from byte {start:,}: write it again"
                    )

            yield read_into

    def read_buffer(self, name: str, start: int = 0, stop: int | None = None) -> pa.Buffer:
        """Return the bytes of `read`; local files are mapped."""
        return self.files.read_buffer(f"{self.path}/{name}", f"{self.url}/{name}", start, stop)

    def size(self, name: str) -> int | None:
        """Return the bytes of a file, NOT_REGULAR_FILE for links; None if absent."""
        return self.files.size(f"{self.path}/{name}", f"{self.url}/{name}")

    def sizes(self) -> dict[str, int]:
        """Return the bytes of all files below the folder by name; links have NOT_REGULAR_FILE."""
        return dict(sorted(self.files.sizes(self.path, self.url)))

    def children(self) -> list[str]:
        """Return the sorted names of the direct files and folders."""
        return sorted(self.files.children(self.path, self.url))

    def link(self, name: str, source: Folder) -> None:
        """Add a file of another folder; a local disk stores it only once."""
        self.files.link(f"{source.path}/{name}", f"{self.path}/{name}", f"{self.url}/{name}")

    def remove(self, *names: str) -> None:
        self.files.remove([f"{self.path}/{name}" for name in names], self.url)

    def remove_all(self) -> None:
        self.files.remove_all(self.path, self.url)


class CallbackWriter(io.RawIOBase):
    """A writable file object that passes its data to `append`."""

    def __init__(self, append: Callable[[Any], int]) -> None:
        self._append = append

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._append(data)


def open_output(append: Callable[[Any], int]) -> pa.NativeFile:
    """Return a buffered Arrow file that calls `append`."""
    # Each call of `append` takes the GIL.
    return pa.BufferedOutputStream(pa.PythonFile(CallbackWriter(append), "w"), _OUTPUT_BYTES)
