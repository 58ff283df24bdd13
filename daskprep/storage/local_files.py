"""Files of this machine, by the calls of the operating system alone."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import stat
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from daskprep.errors import StorageFullError

__all__ = ["FULL", "GrowingFile", "LocalFiles"]

# No room on the disk, in the quota, or below the largest size that the process may write.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_READ_BYTES = 1 << 30
_OPEN_FILES = "/proc/self/fd"
_GROWING_SHARE = 8  # of the files that a process may have open
# The file system, or an old system, has no files without names; the folder is gone; too many files are open.
_NO_UNNAMED = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EMFILE, errno.ENFILE})


@dataclass(frozen=True)
class LocalFiles:
    """Reads and writes at absolute paths; `Folder` says what each method promises."""

    @contextmanager
    def writer(self, path: str, url: str, durable: bool) -> Iterator[Callable[[memoryview], None]]:
        """Give a function that appends to the file, which is there once the block ends well."""
        target = Path(path)
        temporary = target.with_name(f"{target.name}.{uuid.uuid4().hex}.tmp")
        written = 0
        descriptor = -1

        def write(view: memoryview) -> None:
            nonlocal written
            written += len(view)
            _write_all(descriptor, view)

        with _telling_of_room(target, lambda: written):
            descriptor = _create(temporary)
            try:
                with open(descriptor, "wb", buffering=0):  # noqa: PTH123 it takes a descriptor
                    yield write
                    if durable:
                        os.fsync(descriptor)
                temporary.replace(target)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            if durable:
                _sync(target.parent)

    @contextmanager
    def opened(self, path: str, url: str) -> Iterator[Callable[[int, memoryview], int]]:
        """Give a function that fills a target from an offset on, and returns how many bytes it filled."""
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 as below

            def read_into(start: int, target: memoryview) -> int:
                filled = 0
                while filled < len(target) and (more := os.preadv(file.fileno(), [target[filled:]], start + filled)):
                    filled += more
                return filled

            yield read_into

    def growing(self, path: str, size: int) -> GrowingFile | None:
        return GrowingFile.begin(path, size)

    def sync(self, paths: Sequence[str], root: str) -> None:
        """Flush files, and the folders from theirs up to `root`, each once."""
        folders = {str(folder) for path in paths for folder in Path(path).parents if folder.is_relative_to(root)}
        for path in [*paths, *folders]:
            _sync(path)

    def read(self, path: str, url: str, start: int, stop: int | None) -> bytes:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 Path.open costs as much as the read of a small file
            wanted = max(0, (os.fstat(file.fileno()).st_size if stop is None else stop) - start)
            first = os.pread(file.fileno(), min(wanted, _READ_BYTES), start)
            if len(first) in {0, wanted}:
                return first
            # A call may give less than it was asked for, and never more than 2 GiB.
            pieces, filled = [first], len(first)
            while filled < wanted and (
                piece := os.pread(file.fileno(), min(wanted - filled, _READ_BYTES), start + filled)
            ):
                pieces.append(piece)
                filled += len(piece)
            return b"".join(pieces)

    def mapped(self, path: str, url: str) -> pa.Buffer:
        with pa.memory_map(path) as file:
            return file.read_buffer()

    def size(self, path: str, url: str) -> int | None:
        with suppress(FileNotFoundError, NotADirectoryError):
            status = Path(path).stat()
            return status.st_size if stat.S_ISREG(status.st_mode) else None
        return None

    def sizes(self, path: str, url: str) -> Iterator[tuple[str, int]]:
        return _files_below(path, "")

    def children(self, path: str, url: str) -> list[str]:
        with suppress(FileNotFoundError, NotADirectoryError):
            return [entry.name for entry in Path(path).iterdir()]
        return []

    @contextmanager
    def locked(self, path: str, url: str) -> Iterator[None]:
        """Wait until no other process or thread holds the folder, then hold it; death lets go of it."""
        descriptor = _open_folder(Path(path))
        try:
            with _where_supported():
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            # A process that was forked meanwhile holds the descriptor, too.
            with _where_supported():
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def remove(self, paths: Sequence[str], url: str) -> None:
        for path in paths:
            with suppress(FileNotFoundError, NotADirectoryError):
                Path(path).unlink()

    def remove_all(self, path: str, url: str) -> None:
        while os.path.lexists(path):
            # Others may remove the same folder, or write to it: what they were faster with is no error.
            try:
                shutil.rmtree(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                    raise


class GrowingFile:
    """A file of a known size whose parts come in any order; until it is whole it has no name, and leaves nothing."""

    def __init__(self, descriptor: int, path: str, size: int) -> None:
        self._descriptor = descriptor
        self._path = Path(path)
        self._size = size
        _growing.add(descriptor)
        self._close = weakref.finalize(self, _close_growing, descriptor)

    @classmethod
    def begin(cls, path: str, size: int) -> GrowingFile | None:
        """Return a new file; None where the system has no files without names, or many are open."""
        flags = getattr(os, "O_TMPFILE", None)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _GROWING_SHARE
        if flags is None or not os.path.isdir(_OPEN_FILES) or len(_growing) >= most:  # noqa: PTH112
            return None
        try:
            descriptor = os.open(os.path.dirname(path), flags | os.O_RDWR | os.O_CLOEXEC, 0o666)  # noqa: PTH120
        except OSError as error:
            if error.errno in _NO_UNNAMED:
                return None
            raise
        file = cls(descriptor, path, size)
        try:
            # A disk that is full is to be told of here, and not where a hole in the file is read.
            with file._telling():
                os.posix_fallocate(descriptor, 0, size)
        except BaseException as error:
            file.close()
            if isinstance(error, OSError) and error.errno in _NO_UNNAMED:
                return None
            raise
        return file

    def write(self, start: int, data: memoryview) -> None:
        """Write a part."""
        with self._telling():
            while data:
                written = os.pwrite(self._descriptor, data, start)
                data, start = data[written:], start + written

    def read_into(self, start: int, target: memoryview) -> None:
        """Fill `target` with what was written; with zeros where nothing was."""
        while target:
            read = os.preadv(self._descriptor, [target], start)
            target, start = target[read:], start + read

    def finish(self) -> bool:
        """Give the file its name, unless there is one of that name by now; FileNotFoundError if its folder is gone."""
        with self._telling(), suppress(FileExistsError):
            # Python follows links only if it is given a folder, which an absolute path makes no use of.
            os.link(f"{_OPEN_FILES}/{self._descriptor}", self._path, src_dir_fd=self._descriptor, follow_symlinks=True)
            return True
        return False

    def close(self) -> None:
        """Let go of the file, which is no more if it has no name."""
        self._close()

    def _telling(self) -> AbstractContextManager[None]:
        return _telling_of_room(self._path, lambda: self._size)


# Descriptors, of which a process has only so many.
_growing: set[int] = set()


def _close_growing(descriptor: int) -> None:
    _growing.discard(descriptor)
    os.close(descriptor)


def _files_below(folder: str, prefix: str) -> Iterator[tuple[str, int]]:
    # Other processes write and rename meanwhile: what is gone when its turn comes is left out.
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        with suppress(FileNotFoundError):
            if entry.is_dir():
                yield from _files_below(entry.path, f"{prefix}{entry.name}/")
            else:
                yield f"{prefix}{entry.name}", entry.stat().st_size


@contextmanager
def _telling_of_room(target: Path, size: Callable[[], int]) -> Iterator[None]:
    """Turn the errors of a full disk into one that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL or isinstance(error, StorageFullError):
            raise
        raise StorageFullError(
            f"{target}: no room for this file of {size():,} bytes or more ({error.strerror}); "
            + _remedy(error, target.parent)
        ) from error


@contextmanager
def _where_supported() -> Iterator[None]:
    """Go on without a lock where the file system has none for folders, as some network ones."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}:
            raise


def _create(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        _make_folder(path.parent)
        return os.open(path, flags, 0o666)


def _open_folder(path: Path) -> int:
    while True:
        _make_folder(path)
        # Others may remove it again.
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDONLY)


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    # What is written there later may be durable.
    _sync(folder.parent)


def _write_all(descriptor: int, view: memoryview) -> None:
    # One call writes at most 2 GiB, and less when the disk fills up.
    while view:
        view = view[os.write(descriptor, view) :]


def _sync(path: str | Path) -> None:
    """Make the bytes of a file, or the names of the files in a folder, outlive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remedy(error: OSError, folder: Path) -> str:
    if error.errno == errno.EFBIG:
        return "raise the limit on the size of files (ulimit -f), or write elsewhere"
    while not folder.exists():
        folder = folder.parent
    return f"{shutil.disk_usage(folder).free:,} bytes are free there: make room, or write elsewhere"
