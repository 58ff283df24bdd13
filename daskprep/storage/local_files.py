"""Local files, read and written with calls of the operating system alone."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import stat
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

import portalocker
import pyarrow as pa
from portalocker import LockFlags
from portalocker.exceptions import AlreadyLocked, LockException

from daskprep.errors import CorruptDatasetError, StorageError, StorageFullError, warn
from daskprep.storage.threads import call_after_fork

NOT_REGULAR_FILE = -1
"""The size reported for a link, a pipe or a device: none of them is read."""

# The disk or the quota is full, or the file exceeds the largest size that the process may write.
DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REMEDIES = {
    errno.EISDIR: "it is a folder, so add a name",
    errno.ENOTDIR: "a part of the path is a file, so choose another folder",
    errno.ENAMETOOLONG: "shorten the name",
    errno.EACCES: "check the permissions of the folder, or choose another",
    errno.EROFS: "choose another folder",
}
_READ_BYTES = 1 << 30
_HUGE_PAGE_BYTES = 1 << 21
_OPEN_FILES = "/proc/self/fd"
_LOCKS = Path("/proc/locks")
_LOCK_WARNING_SECONDS = 10.0  # of waiting, until a warning
_NO_LOCKS_ERRNOS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
_PREALLOCATED_DIVISOR = 8  # preallocated files take at most 1/8 of the descriptors of a process
# The system or its file system has no unnamed files, the folder was removed, or too many files are open.
_NO_UNNAMED_FILES_ERRNOS = frozenset(
    {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS, errno.ENOENT, errno.EPERM, errno.EMFILE, errno.ENFILE}
)
_NO_LINKS_ERRNOS = frozenset({errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
_NO_FOLDER_SYNC_ERRNOS = frozenset({errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})

_MAX_FOLDER_REMOVALS = 100  # of a folder by other processes, while a file is created in it

Durable: TypeAlias = bool | Literal["later"] | None

# Windows cannot open, flush or lock folders. There a file next to the folder is locked: one inside would prevent the
# removal of the folder.
_OPENS_FOLDERS = os.name == "posix"
# O_NONBLOCK: opening a pipe would wait for its writer. O_BINARY: Windows would translate line ends.
READ_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def load_c_function(name: str) -> Callable[..., object] | None:
    """Return a function of the C library; None if it has none."""
    try:
        function: Callable[..., object] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
    return function


# Starts to write a file to the disk without waiting; only Linux has it.
_begin_flush = load_c_function("sync_file_range") or (lambda *_: None)
# Offset 0, 0 bytes (to the end of the file), SYNC_FILE_RANGE_WRITE.
_FLUSH_ALL_ARGUMENTS = ctypes.c_int64(0), ctypes.c_int64(0), ctypes.c_uint(2)

_seek_lock = threading.Lock()


def _seek_and_read(descriptor: int, size: int, start: int) -> bytes:
    """Return bytes from an offset, on systems without ``pread``."""
    with _seek_lock:  # threads share the position of a descriptor
        os.lseek(descriptor, start, os.SEEK_SET)
        return os.read(descriptor, size)


_pread: Callable[[int, int, int], bytes] = getattr(os, "pread", _seek_and_read)


def _read_and_copy(descriptor: int, targets: Sequence[memoryview], start: int) -> int:
    """Fill the only target from an offset, without ``preadv``."""
    data = _pread(descriptor, len(targets[0]), start)
    targets[0][: len(data)] = data
    return len(data)


_preadv: Callable[[int, Sequence[memoryview], int], int] = getattr(os, "preadv", _read_and_copy)


@dataclass(frozen=True)
class LocalFiles:
    """The operations of `Folder` on local files."""

    # The top folder, which may be a link. Nothing is written, listed or removed through links below it.
    root: str = ""
    follow_links: bool = False  # whether files below the root may be links when they are read
    filesystem: ClassVar[None] = None  # of fsspec
    protocol: ClassVar[str] = "file"
    attempts: ClassVar[int] = 1

    def _find_link(self, path: str) -> str | None:
        """Return the first link above a path, below the root, or None."""
        end = path.find("/", len(self.root) + 1) if self.root else -1
        try:
            while end > 0:
                if stat.S_ISLNK(os.lstat(path[:end]).st_mode):
                    return path[:end]
                end = path.find("/", end + 1)
        except (FileNotFoundError, NotADirectoryError):
            pass
        return None

    def _check_folders(self, path: str) -> None:
        if link := self._find_link(path):
            raise _special_file_error(link, stat.S_IFLNK)

    def _check_file(self, path: str) -> int:
        """Return the size of a regular file; CorruptDatasetError for links and pipes."""
        self._check_folders(path)
        status = os.stat(path, follow_symlinks=self.follow_links)  # noqa: PTH116 a Path would double the time
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(status.st_mode):
            raise _special_file_error(path, status.st_mode)
        return status.st_size

    @contextmanager
    def _open_for_reading(self, path: str) -> Iterator[int]:
        """Yield a descriptor for reading a regular file."""
        self._check_file(path)
        # After the check, the file may have been replaced by a link or a pipe.
        descriptor = os.open(path, READ_FLAGS | (0 if self.follow_links else _NO_LINK))
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def writer(self, path: str, url: str, durable: Durable) -> Iterator[Callable[[memoryview], None]]:
        """Yield a function that appends to a new file, which replaces `path` at the end of the block."""
        self._check_folders(path)
        target = Path(path)
        temporary = target.with_name(f"{target.name}.{uuid.uuid4().hex}.tmp")
        written = 0
        descriptor = -1

        def write(view: memoryview) -> None:
            nonlocal written
            written += len(view)
            # One call writes at most 2 GiB, and less when the disk fills up.
            while view:
                view = view[os.write(descriptor, view) :]

        with _write_error_context(target, lambda: written):
            descriptor = _create_file(temporary, flush=durable is not None)
            try:
                try:
                    yield write
                    if durable is True:
                        os.fsync(descriptor)
                    elif durable:
                        _begin_flush(descriptor, *_FLUSH_ALL_ARGUMENTS)
                finally:
                    os.close(descriptor)
                temporary.replace(target)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            if durable is True:
                _sync(target.parent)

    @contextmanager
    def open_reader(self, path: str, url: str) -> Iterator[Callable[[int, memoryview], int]]:
        """Yield a function that fills a buffer and returns the bytes filled."""
        with self._open_for_reading(path) as descriptor:

            def read_into(start: int, target: memoryview) -> int:
                filled = 0
                while filled < len(target) and (more := _preadv(descriptor, [target[filled:]], start + filled)):
                    filled += more
                return filled

            yield read_into

    def preallocate(self, path: str, size: int) -> PreallocatedFile | None:
        self._check_folders(path)
        return PreallocatedFile.create(path, size)

    def sync(self, paths: Sequence[str]) -> None:
        for path in paths:
            _sync(path)

    def sync_folders(self, paths: Sequence[str], root: str) -> None:
        """Flush the parent folders of files up to `root`, once each."""
        parents = {Path(folder) for folder in {path.rpartition("/")[0] for path in paths}}
        for folder in {folder for one in parents for folder in (one, *one.parents) if folder.is_relative_to(root)}:
            _sync(folder)

    def read(self, path: str, url: str, start: int, stop: int | None) -> bytes:
        """Return up to the bytes requested; less at the file's end."""
        with self._open_for_reading(path) as descriptor:
            remaining = max(0, (os.fstat(descriptor).st_size if stop is None else stop) - start)
            chunks = []
            # A call may return fewer bytes than requested, and never more than 2 GiB.
            while remaining and (chunk := _pread(descriptor, min(remaining, _READ_BYTES), start)):
                chunks.append(chunk)
                start, remaining = start + len(chunk), remaining - len(chunk)
            return b"".join(chunks)  # a single chunk is not copied

    def read_buffer(self, path: str, url: str, start: int, stop: int | None) -> pa.Buffer:
        size = self._check_file(path)
        # `close`, and a size that is not passed, would reacquire the GIL seven times.
        buffer = pa.memory_map(path).read_buffer(size)
        return buffer if (start, stop) == (0, None) else buffer[start:stop]

    def size(self, path: str, url: str) -> int | None:
        if self._find_link(path):
            return None
        with suppress(FileNotFoundError, NotADirectoryError):
            status = os.stat(path, follow_symlinks=self.follow_links)  # noqa: PTH116 as above
            if not stat.S_ISDIR(status.st_mode):
                return status.st_size if stat.S_ISREG(status.st_mode) else NOT_REGULAR_FILE
        return None

    def sizes(self, path: str, url: str) -> Iterator[tuple[str, int]]:
        """Yield name and size of each file at any depth; links and pipes have NOT_REGULAR_FILE."""
        folders = [(path, "")] if self._is_folder(path) else []
        while folders:
            folder, prefix = folders.pop()
            # Other processes may remove or rename entries meanwhile: these are skipped.
            try:
                entries = list(os.scandir(folder))
            except (FileNotFoundError, NotADirectoryError):
                continue
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append((entry.path, f"{prefix}{entry.name}/"))
                    continue
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=self.follow_links)
                    yield f"{prefix}{entry.name}", status.st_size if stat.S_ISREG(status.st_mode) else NOT_REGULAR_FILE

    def _is_folder(self, path: str) -> bool:
        """Return whether a path may be listed: no link below the root."""
        return path == self.root or not (self._find_link(path) or os.path.islink(path))  # noqa: PTH114 as above

    def children(self, path: str, url: str) -> list[str]:
        """Return the names in a folder; none if it does not exist."""
        if not self._is_folder(path):
            return []
        with suppress(FileNotFoundError, NotADirectoryError):
            return [entry.name for entry in Path(path).iterdir()]
        return []

    @contextmanager
    def lock(self, path: str, url: str) -> Iterator[None]:
        """Lock a folder for the block; a killed process unlocks it."""
        self._check_folders(f"{path}/")
        descriptor = _acquire_lock(Path(path))
        try:
            yield
        finally:
            _release_lock(descriptor)

    def link(self, source: str, path: str, url: str) -> None:
        """Create a hard link, or a copy if links are unsupported."""
        self._check_file(source)
        self._check_folders(path)
        with _write_error_context(Path(path), lambda: 0):
            _make_folder(Path(path).parent, flush=True)
            try:
                os.link(source, path)
            except OSError as error:
                if error.errno not in _NO_LINKS_ERRNOS:
                    raise
                shutil.copyfile(source, path)
                _sync(path)

    def remove(self, paths: Sequence[str], url: str) -> None:
        """Remove files; missing ones, and those behind links, are skipped."""
        for path in paths:
            if self._find_link(path) is None:
                with suppress(FileNotFoundError, NotADirectoryError):
                    os.unlink(path)  # noqa: PTH108 as above

    def remove_all(self, path: str, url: str) -> None:
        """Remove a file or a folder, also while others write to it; links are not followed."""
        if self._find_link(path):
            return
        while os.path.lexists(path):
            # Other processes may remove the same files, or add files to a folder: try again.
            try:
                if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114 as above
                    shutil.rmtree(path)
                else:
                    os.unlink(path)  # noqa: PTH108 as above
            except FileNotFoundError:
                pass
            except RecursionError as error:
                raise CorruptDatasetError(f"{path}: its folders are nested too deeply: remove it manually") from error
            except OSError as error:
                if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                    raise


class PreallocatedFile:
    """A file written in any order, without a name until `finish`."""

    def __init__(self, descriptor: int, path: str, size: int) -> None:
        self._descriptor = descriptor  # closed at the latest with this object
        self._path = Path(path)
        self._size = size
        _preallocated.add(descriptor)
        self._close = weakref.finalize(self, _close_preallocated, descriptor)

    @classmethod
    def create(cls, path: str, size: int) -> PreallocatedFile | None:
        """Return a new file; None without unnamed files, or if too many are open; StorageFullError without room."""
        flags = getattr(os, "O_TMPFILE", None)
        if flags is None or not os.path.isdir(_OPEN_FILES) or len(_preallocated) >= _max_preallocated():  # noqa: PTH112
            return None
        try:
            descriptor = os.open(os.path.dirname(path), flags | os.O_RDWR, 0o666)  # noqa: PTH120
        except OSError as error:
            if error.errno in _NO_UNNAMED_FILES_ERRNOS:
                return None
            raise
        file = cls(descriptor, path, size)
        try:
            # A full disk is reported here, rather than by a later write to a hole of the file.
            with file._error_context():
                os.posix_fallocate(descriptor, 0, size)
            _cache_in_huge_pages(descriptor, size)
        except BaseException as error:
            file.close()
            if isinstance(error, OSError) and error.errno in _NO_UNNAMED_FILES_ERRNOS:
                return None
            raise
        return file

    def write(self, start: int, data: memoryview) -> None:
        with self._error_context():
            while data:
                written = os.pwrite(self._descriptor, data, start)
                data, start = data[written:], start + written

    def read_into(self, start: int, target: memoryview) -> None:
        """Fill a buffer from an offset: zeros where none were written."""
        while target:
            read = os.preadv(self._descriptor, [target], start)
            target, start = target[read:], start + read

    def finish(self) -> bool:
        """Name the file; return whether that name was free."""
        with self._error_context(), suppress(FileExistsError):
            # Python follows links only if a folder is passed; the absolute path makes no use of it.
            os.link(f"{_OPEN_FILES}/{self._descriptor}", self._path, src_dir_fd=self._descriptor, follow_symlinks=True)
            return True
        return False

    def close(self) -> None:
        self._close()

    def _error_context(self) -> AbstractContextManager[None]:
        return _write_error_context(self._path, lambda: self._size)


def _cache_in_huge_pages(descriptor: int, size: int) -> None:
    """Keep a new file in memory in pages of 2 MB, if the system can: rows are copied from a mapping in 0.7 of the time.

    Rows that are written one by one would be in pages of 4 KB: a copy looks up the address of each page.
    """
    with suppress(OSError), mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) as view:
        view.madvise(mmap.MADV_HUGEPAGE)
        sum(view[::_HUGE_PAGE_BYTES])  # a page fault reads each page


# Their descriptors: the number that a process may have open is limited.
_preallocated: set[int] = set()


def _max_preallocated() -> int:
    import resource  # noqa: PLC0415 not on Windows, which has no unnamed files either

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _PREALLOCATED_DIVISOR


def _close_preallocated(descriptor: int) -> None:
    _preallocated.discard(descriptor)
    os.close(descriptor)


def _special_file_error(path: str, mode: int) -> CorruptDatasetError:
    """Return the error for a link, pipe, socket or device."""
    if stat.S_ISLNK(mode):
        description = "a link, which could lead anywhere: replace it by its target"
    else:
        description = "not a file but a pipe, a socket or a device: remove it"
    return CorruptDatasetError(f"{path} is {description}")


@contextmanager
def _write_error_context(target: Path, size: Callable[[], int]) -> Iterator[None]:
    """Raise a StorageError with a remedy for a full disk; other errors are unchanged."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        if error.errno in _REMEDIES and str(error.filename).startswith(f"{target}."):  # of the temporary file
            raise StorageError(f'"{target}" cannot be written ({error.strerror}): {_REMEDIES[error.errno]}') from error
        if error.errno not in DISK_FULL_ERRNOS:
            raise
        raise StorageFullError(
            f"{target}: no room for this file of {size():,} bytes or more ({error.strerror}); "
            + _remedy(error, target.parent)
        ) from error


# Descriptors of folders that this process has locked, or waits for.
_lock_descriptors: set[int] = set()


def _close_inherited_locks() -> None:
    """Close the locks that a child process inherited."""
    while _lock_descriptors:
        os.close(_lock_descriptors.pop())


call_after_fork(_close_inherited_locks)


def _acquire_lock(folder: Path) -> int:
    """Lock a folder, made if necessary; return its descriptor."""
    lock_path = folder if _OPENS_FOLDERS else folder.with_name(f".{folder.name}.lock")
    flags = os.O_RDONLY if _OPENS_FOLDERS else os.O_RDWR | os.O_CREAT
    while True:
        descriptor = _create_in_folder(folder, lambda: os.open(lock_path, flags))
        _lock_descriptors.add(descriptor)
        try:
            with _ignore_missing_locks():
                _wait_for_lock(descriptor, folder)
            # The previous holder may have removed the folder, and another process created it again.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), lock_path.stat()):
                    return descriptor
        except BaseException:
            _release_lock(descriptor)
            raise
        _release_lock(descriptor)


def _wait_for_lock(descriptor: int, folder: Path) -> None:
    """Lock a descriptor, with one warning after ten seconds."""
    try:
        portalocker.lock(descriptor, LockFlags.EXCLUSIVE | LockFlags.NON_BLOCKING)
    except AlreadyLocked:
        timer = threading.Timer(_LOCK_WARNING_SECONDS, _warn_of_waiting, [descriptor, folder])
        timer.daemon = True
        timer.start()
        try:
            while True:
                # Windows stops waiting after ten seconds.
                with suppress(AlreadyLocked):
                    portalocker.lock(descriptor, LockFlags.EXCLUSIVE)
                    return
        finally:
            timer.cancel()


def _warn_of_waiting(descriptor: int, folder: Path) -> None:
    """Warn that another process, named by its id on Linux, has locked `folder`."""
    holder = "another process or thread"
    with suppress(OSError):
        inode = os.fstat(descriptor).st_ino
        # 1: FLOCK  ADVISORY  WRITE 4711 08:02:1234 0 EOF
        for lock in map(str.split, _LOCKS.read_text().splitlines()):
            if lock[1] == "FLOCK" and lock[5].endswith(f":{inode}"):
                holder = f"process {lock[4]}"
    warn(f"{folder} is locked by {holder}, which writes there: waiting until it is done; press Ctrl-C to stop")


def _release_lock(descriptor: int) -> None:
    """Unlock and close a descriptor, unless a parent process locked it."""
    if descriptor in _lock_descriptors:  # not so in a forked process, which never held the lock
        with _ignore_missing_locks():
            portalocker.unlock(descriptor)
        _lock_descriptors.discard(descriptor)
        os.close(descriptor)


@contextmanager
def _ignore_missing_locks() -> Iterator[None]:
    """Continue if the file system cannot lock folders."""
    try:
        yield
    except (LockException, OSError) as error:
        cause = error.__cause__ if isinstance(error, LockException) else error
        if not isinstance(cause, OSError):
            raise
        if cause.errno not in _NO_LOCKS_ERRNOS:
            raise cause from None


def make_folder(path: str | os.PathLike[str], parameter: str) -> Path:
    """Create a folder and return its absolute path; StorageError if impossible."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        return Path(path).resolve()
    except (OSError, TypeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StorageError(f"{parameter}={path!r} cannot be a folder ({reason}): choose another path") from error


def _create_file(path: Path, *, flush: bool) -> int:
    """Create a file and its folders; FileExistsError if it exists."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with suppress(FileNotFoundError):
        return os.open(path, flags, 0o666)
    return _create_in_folder(path.parent, lambda: os.open(path, flags, 0o666), flush=flush)


def _create_in_folder(folder: Path, create: Callable[[], int], *, flush: bool = True) -> int:
    """Create a folder, and return the result of `create` in it."""
    for _ in range(_MAX_FOLDER_REMOVALS):  # by other processes
        with suppress(FileNotFoundError):
            _make_folder(folder, flush=flush)
            return create()
    _make_folder(folder, flush=flush)  # raises the reason where no folder can be created, as in /proc
    return create()


def _make_folder(folder: Path, *, flush: bool) -> None:
    """Create a folder and its parents; with `flush`, durably."""
    if folder.is_dir():
        return
    _make_folder(folder.parent, flush=flush)
    try:
        folder.mkdir()
    except FileExistsError:
        if folder.is_file() or folder.is_symlink():
            raise  # otherwise another process created the folder, and may have removed it
    # Files that are written there later may be durable.
    if flush:
        _sync(folder.parent)


def _sync(path: str | Path) -> None:
    """Flush the bytes of a file, or the names in a folder."""
    if not _OPENS_FOLDERS and os.path.isdir(path):  # noqa: PTH112 as above
        return
    descriptor = os.open(path, os.O_RDONLY if _OPENS_FOLDERS else os.O_RDWR)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot flush folders.
        if error.errno not in _NO_FOLDER_SYNC_ERRNOS or not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise
    finally:
        os.close(descriptor)


def _remedy(error: OSError, folder: Path) -> str:
    """Return how to get room for a file in a folder."""
    if error.errno == errno.EFBIG:
        return "raise the limit on the size of files (ulimit -f), or write elsewhere"
    while not folder.exists():
        folder = folder.parent
    return f"{shutil.disk_usage(folder).free:,} bytes are free there: make room, or write elsewhere"
