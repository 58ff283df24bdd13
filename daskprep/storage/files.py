"""A folder on any file system: files there are written whole or not at all."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from daskprep.storage.checksum import Buffer, byte_view
from daskprep.storage.local_files import Durable, LocalFiles, PreallocatedFile
from daskprep.storage.remote_files import RemoteFiles
from daskprep.storage.retries import pop_attempts
from daskprep.storage.urls import open_filesystem, path_text, redact_url


@dataclass(frozen=True, repr=False)
class Folder:
    """A folder on any file system of fsspec, there already or not yet.

    Names of files are relative to the folder and may hold "/". Every method may be called from many threads and
    processes at once, and a Folder may be pickled; with it goes what opens the file system, credentials included,
    which neither `url` nor `repr` nor messages show.

    Examples
    --------
    >>> from daskprep.storage import Folder
    >>> folder = Folder.open("memory://a-folder-of-its-own")
    >>> folder.write("train/table/part-00000.parquet", b"PAR1", b"...")
    7
    >>> folder.sizes()
    {'train/table/part-00000.parquet': 7}
    >>> (folder / "train").read("table/part-00000.parquet", 0, 4)
    b'PAR1'
    >>> folder.remove_all()
    """

    url: str
    path: str
    files: LocalFiles | RemoteFiles

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
        *,
        follow_links: bool = False,
    ) -> Folder:
        """Return the folder at a local path or a URL; nothing is looked up there yet.

        The folder may be a link, but none below it is; with `follow_links`, files that are read may be.
        """
        text = path_text(path, "folder", "; where rows are passed too, they come first")
        protocol, separator, _ = text.partition("://")
        if not separator or "/" in protocol or protocol in {"file", "local"}:
            local: str = LocalFileSystem._strip_protocol(text)
            return cls(local, local, LocalFiles(local, follow_links))
        # Other processes write here as well: a listing that was kept would miss their files.
        attempts, options = pop_attempts({"use_listings_cache": False, **(storage_options or {})})
        filesystem, inner_path = open_filesystem(text, options)
        return cls(redact_url(text).rstrip("/"), inner_path.rstrip("/"), RemoteFiles(filesystem, attempts))

    @property
    def is_local(self) -> bool:
        return isinstance(self.files, LocalFiles)

    @property
    def is_process_local(self) -> bool:
        """Whether no other process sees what is written here."""
        return isinstance(self.files, RemoteFiles) and self.files.protocol == "memory"

    @property
    def filesystem(self) -> Any:
        """The file system of fsspec that `path` is a path in, or None of a local folder."""
        return self.files.filesystem if isinstance(self.files, RemoteFiles) else None

    def __truediv__(self, name: str) -> Folder:
        return Folder(f"{self.url}/{name}", f"{self.path}/{name}", self.files)

    def __repr__(self) -> str:
        return f'<Folder "{self.url}">'

    def write(self, name: str, *buffers: Buffer, durable: Durable = True) -> int:
        """Write the concatenation of some buffers as one file, whole or not at all, and return its bytes.

        A file of that name is replaced at once: readers see the old or the new one. With `durable`, a file that
        was written outlives a loss of power; with "later" the disk begins to write it, and `sync` waits for that. Raise
        StorageFullError where there is no room.
        """
        with self.writer(name, durable=durable) as append:
            return sum(map(append, buffers))

    def lock(self) -> AbstractContextManager[None]:
        """Keep others who ask for the same from the folder for a while, on local file systems; the folder is made."""
        return self.files.lock(self.path, self.url)

    def sync(self, names: Iterable[str]) -> None:
        """Let files that were written with ``durable=False`` outlive a loss of power from now on."""
        self.files.sync([f"{self.path}/{name}" for name in names], self.path)

    @contextmanager
    def writer(self, name: str, *, durable: Durable = True) -> Iterator[Callable[[Buffer], int]]:
        """Give a function that appends a buffer to a file and returns its bytes; `write` says what is promised.

        The file is there once the block ends, and not at all if it ends with an exception.
        """
        with self.files.writer(f"{self.path}/{name}", f"{self.url}/{name}", durable) as write:

            def append(buffer: Buffer) -> int:
                view = byte_view(buffer)
                write(view)
                return len(view)

            yield append

    def preallocate(self, name: str, size: int) -> PreallocatedFile | None:
        """Return a file whose parts come in any order, which is there once it is finished; None where there is no such.

        The folder that it lies in must be there.
        """
        return self.files.preallocate(f"{self.path}/{name}", size) if isinstance(self.files, LocalFiles) else None

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes of a file from `start` to `stop`, fewer where it ends before."""
        return self.files.read(f"{self.path}/{name}", f"{self.url}/{name}", start, stop)

    @contextmanager
    def open_reader(self, name: str) -> Iterator[Callable[[int, memoryview], None]]:
        """Give a function that fills a target with the bytes of a file from a start on; EOFError if it ends before."""
        with self.files.open_reader(f"{self.path}/{name}", f"{self.url}/{name}") as fill:

            def read_into(start: int, target: memoryview) -> None:
                view = byte_view(target)
                filled = fill(start, view)
                if filled != len(view):
                    raise EOFError(
                        f"{self.url}/{name} has {filled:,} bytes from byte {start:,} on, and {len(view):,} were "
                        "expected: it was cut short or is another file; write it again"
                    )

            yield read_into

    def read_buffer(self, name: str, start: int = 0, stop: int | None = None) -> pa.Buffer:
        """Return what `read` does without a copy; of local files, what is not looked at is not read."""
        return self.files.read_buffer(f"{self.path}/{name}", f"{self.url}/{name}", start, stop)

    def size(self, name: str) -> int | None:
        """Return the bytes of a file, or None if there is none of that name; NO_FILE of a link, a pipe or a device."""
        return self.files.size(f"{self.path}/{name}", f"{self.url}/{name}")

    def sizes(self) -> dict[str, int]:
        """Return the bytes of every file below by name, in the order of the names; of no folder, none.

        Links are not followed: they stand there as files, with NO_FILE, like all that is none.
        """
        return dict(sorted(self.files.sizes(self.path, self.url)))

    def children(self) -> list[str]:
        """Return the names of the files and folders right below, in order."""
        return sorted(self.files.children(self.path, self.url))

    def remove(self, *names: str) -> None:
        """Remove some files; those that are not there are fine."""
        self.files.remove([f"{self.path}/{name}" for name in names], self.url)

    def remove_all(self) -> None:
        """Remove the folder and all below it; a folder that is not there is fine."""
        self.files.remove_all(self.path, self.url)


class CallbackWriter(io.RawIOBase):
    """A file of what is given to a function."""

    def __init__(self, append: Callable[[Any], int]) -> None:
        self._append = append

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._append(data)
