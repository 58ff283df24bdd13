"""Files of paths, globs, folders and URLs: listing them, and reading spans of their bytes; temporary files of rows."""

from __future__ import annotations

import functools
import os
import re
import shutil
import stat
import tarfile
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from daskprep.errors import FILE_SIMILARITY, ConfigError, DaskprepError, did_you_mean
from daskprep.storage.files import Folder, open_output
from daskprep.storage.local_files import make_folder
from daskprep.storage.manifest import MANIFEST
from daskprep.storage.retries import ATTEMPTS, call_with_retries, explain, pop_attempts, retry_fetches
from daskprep.storage.security import open_filesystem, redact_url
from daskprep.storage.threads import map_in_threads

_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_GLOB_CHARACTERS = re.compile(r"[*?\[]")
_HIDDEN = re.compile(r"(^|/)[._]")
_VERSION_FOLDER = re.compile(r"/([0-9a-f]{16}(-[0-9]+)?)/")  # folders of versions in a dataset of encoded rows
# Names that file systems use for the version or modification time of a file, the most reliable first.
_STAMP_KEYS = (
    "ETag", "etag", "md5Hash", "content_md5", "checksum", "version_id", "generation",
    "mtime", "LastModified", "last_modified", "modified", "updated", "created",
)  # fmt: skip

T = TypeVar("T")
AnyFile = TypeVar("AnyFile", bound=Any)  # File, or TextFile
_MIN_FREE_FACTOR = 4  # the dataset written later may need space on the same disk


@dataclass(frozen=True)
class File:
    """A file, local or in a file system of fsspec, as it was listed."""

    name: str  # path or URL without credentials
    size: int | None  # in bytes; None if not reported
    stamp: str  # modification time, or the store's version of the file; "" if not reported
    path: str = field(repr=False)
    filesystem: Any = field(default=None, repr=False)  # None for local files
    # Columns from names of folders: ``city=Rome/part-0.parquet`` has ("city", "Rome").
    folders: tuple[tuple[str, str | None], ...] = field(default=(), repr=False)
    attempts: int = field(default=ATTEMPTS, repr=False)  # of each request

    @property
    def is_local(self) -> bool:
        return self.filesystem is None

    def check_unchanged(self) -> None:
        """Raise ConfigError if a local file is absent or has changed."""
        if not self.is_local:
            return
        try:
            status = Path(self.path).stat()
        except OSError as error:
            raise ConfigError(
                f"{self.name}: cannot be found any more, or not from here: {error.strerror}; workers on "
                "other machines need the same paths, so use a shared folder or a URL"
            ) from error
        if (status.st_size, str(status.st_mtime_ns)) != (self.size, self.stamp):
            raise ConfigError(
                f"{self.name}: changed since it was listed; create the source again (copies on several machines "
                "need the same modification time: copy with cp -p or rsync -t)"
            )

    def open(self, **options: Any) -> Any:
        """Return the file, memory-mapped if local; `options` are for others."""
        if self.is_local:
            return pa.memory_map(self.path)
        handle = call_with_retries(lambda: self.filesystem.open(self.path, "rb", **options), self.attempts)
        return retry_fetches(handle, self.attempts)

    def read(self, start: int, stop: int | None = None) -> pa.Buffer:
        """Return the bytes from `start` to `stop` (None: the end); ConfigError if unreadable."""
        limits = {} if start == 0 and stop is None else {"start": start, "end": stop}
        last = self.size if stop is None else stop if self.size is None else min(stop, self.size)

        def fetch() -> bytes:
            data: bytes = self.filesystem.cat_file(self.path, **limits)
            if last is not None and len(data) < last - start:
                raise EOFError(f"received {len(data):,} of {last - start:,} bytes")  # is retried
            return data

        with explain_read_errors(self, "text"):
            if not self.is_local:
                return pa.py_buffer(call_with_retries(fetch, self.attempts))
            with pa.memory_map(self.path) as mapped:
                mapped.seek(start)
                return mapped.read_buffer((self.size or 0) - start if stop is None else stop - start)


@contextmanager
def explain_read_errors(file: File, kind: str) -> Iterator[None]:
    """Replace errors of Arrow and of the storage by a ConfigError."""
    try:
        yield
    except DaskprepError:
        raise
    except Exception as error:
        if isinstance(error, pa.ArrowException | UnicodeDecodeError | tarfile.TarError) or (
            file.is_local and isinstance(error, OSError | MemoryError)
        ):
            raise ConfigError(f"{file.name}: cannot be read as {kind}: {error}") from error
        if file.is_local:
            raise
        # Errors of file systems have no common base class, and their text may contain a URL with credentials.
        raise ConfigError(f"{file.name}: cannot be read as {kind} {explain(error)}") from error


def for_each_file(function: Callable[[AnyFile], T], files: Sequence[AnyFile]) -> list[T]:
    """Return the results of a function for each file."""
    return map_in_threads(function, files, local=all(file.is_local for file in files))


def find_files(
    paths: Iterable[str], storage_options: Mapping[str, Any] | None, is_data: Callable[[str], bool]
) -> list[File]:
    """Return the files of paths, globs, folders and URLs.

    Lists keep their order; the files of a folder or glob are in natural order (part-2 before part-10). From folders,
    files are left out if the file name or a folder name starts with "." or "_", or if ``is_data(name)`` is False.
    Datasets of encoded rows in a folder or glob are left out too. ConfigError for a file listed twice.
    """
    attempts, options = pop_attempts(storage_options or {})
    files = [file for path in paths for file in _expand_path(path, options, attempts, is_data)]
    file_keys = [(os.path.realpath(file.path) if file.is_local else file.path, file.filesystem) for file in files]
    if len(set(file_keys)) < len(file_keys):
        repeated_key = next(file_key for file_key, times in Counter(file_keys).items() if times > 1)
        name = files[file_keys.index(repeated_key)].name
        raise ConfigError(f"{name}: the paths contain it twice, and its rows would count twice; remove one of them")
    return [replace(file, attempts=attempts) for file in files]


def _expand_path(
    user_path: str, options: Mapping[str, Any], attempts: int, is_data: Callable[[str], bool]
) -> list[File]:
    """Return the files of a path, URL, folder or glob; ConfigError if there is none."""
    filesystem, root = open_filesystem(user_path, options)
    filesystem.invalidate_cache()  # fsspec caches listings, which may be stale
    info = _call_filesystem(user_path, attempts, lambda: filesystem.info(root))
    if info is not None and info["type"] == "directory":
        return _list_folder(filesystem, root, user_path, attempts, is_data, root)
    if info is not None:
        return [_make_file(filesystem, info, user_path, "")]
    if not _GLOB_CHARACTERS.search(root):
        raise _absent_path_error(filesystem, root, user_path)
    infos = _call_filesystem(user_path, attempts, lambda: filesystem.glob(root, detail=True)) or {}
    base = _GLOB_CHARACTERS.split(root, maxsplit=1)[0].rpartition("/")[0]
    files = []
    for path in _drop_datasets(filesystem, sorted(infos, key=_natural_sort_key), base, attempts):
        if infos[path]["type"] == "directory":
            files += _list_folder(filesystem, path, user_path, attempts, is_data, base)
        else:
            files.append(_make_file(filesystem, infos[path], user_path, base))
    if not files:
        raise ConfigError(f'"{redact_url(user_path)}" matches no file; check the pattern')
    return files


def _list_folder(
    filesystem: Any, root: str, user_path: str, attempts: int, is_data: Callable[[str], bool], base: str
) -> list[File]:
    """Return the data files in a folder; ConfigError if there is none, and for tables of Delta Lake."""
    infos = _call_filesystem(user_path, attempts, lambda: filesystem.find(root, detail=True)) or {}
    inner = {path: path[len(root) :].lstrip("/") for path in infos}
    if any(rest.startswith("_delta_log/") for rest in inner.values()):
        raise ConfigError(
            f'the folder "{redact_url(user_path)}" is a Delta Lake table, and also contains files of deleted or '
            "replaced rows: pass deltalake.DeltaTable(path), or a glob of files"
        )
    if MANIFEST in inner.values() and any(_VERSION_FOLDER.match(f"/{rest}") for rest in inner.values()):
        raise ConfigError(
            f'the folder "{redact_url(user_path)}" is a dataset of encoded rows: read it with open_dataset(path), or '
            "pass the rows that it was written from"
        )
    data_paths = [path for path, rest in inner.items() if is_data(rest) and not _HIDDEN.search(rest)]
    paths = _drop_datasets(filesystem, data_paths, base, attempts)
    if not data_paths or (not paths and root == base):
        raise ConfigError(
            f'the folder "{redact_url(user_path)}" has no file that can be read among its {len(infos)} files; '
            "if the names show no format, use a glob with read_files(..., format=)"
        )
    return [_make_file(filesystem, infos[path], user_path, base) for path in sorted(paths, key=_natural_sort_key)]


def _drop_datasets(filesystem: Any, paths: list[str], base: str, attempts: int) -> list[str]:
    """Return the paths in `base` outside of encoded datasets."""
    matches = filter(None, (_VERSION_FOLDER.search(path, len(base) + 1) for path in paths))
    versions = {(match.string[: match.start()], match[1]) for match in matches}
    roots = set()
    for root, version in sorted(versions):
        marks = f"{root}/{MANIFEST}", f"{root}/{version}/receipts", f"{root}/{version}/scratch"
        if any(_call_filesystem(root, attempts, functools.partial(filesystem.exists, mark)) for mark in marks):
            roots.add(f"{root}/")
    return [path for path in paths if not path.startswith(tuple(roots))]


def _natural_sort_key(path: str) -> list[Any]:
    # Text and digits alternate, so that only equal types are compared.
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"([0-9]+)", path))]


def _call_filesystem(user_path: str, attempts: int, call: Callable[[], Any]) -> Any:
    """Return the result of a call, None for an absent path; ConfigError for other errors."""
    try:
        return call_with_retries(call, attempts)
    except FileNotFoundError:
        return None
    except Exception as error:
        raise ConfigError(f'"{redact_url(user_path)}" cannot be listed {explain(error)}') from error


def _absent_path_error(filesystem: Any, path: str, user_path: str) -> ConfigError:
    parent, _, name = path.rstrip("/").rpartition("/")
    siblings: list[str] = []
    with suppress(OSError):
        siblings = [PurePosixPath(sibling).name for sibling in filesystem.ls(parent or "/", detail=False)]
    hint = did_you_mean(name, siblings, FILE_SIMILARITY)
    remedy = " Check the path, or pass the rows themselves if it is not meant as one."
    return ConfigError(f'no file or folder "{redact_url(user_path)}".{hint or remedy}')


def _make_file(filesystem: Any, info: Mapping[str, Any], user_path: str, base: str) -> File:
    """Return a listed file, with columns from folders below `base`; ConfigError for pipes."""
    path: str = info["name"]
    inner_folders = path[len(base) :].split("/")[:-1] if base and path.startswith(base) else []
    pairs = (part.partition("=") for part in inner_folders if "=" in part)
    folders = tuple((unquote(key), None if value == _NULL_FOLDER else unquote(value)) for key, _, value in pairs)
    if isinstance(filesystem, LocalFileSystem):
        try:
            status = Path(path).stat()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}; correct the link, or leave it out") from error
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{path}: is a pipe, a socket or a device, not a file; write its rows to a file")
        return File(path, status.st_size, str(status.st_mtime_ns), path, None, folders)
    stamp = next((str(info[key]) for key in _STAMP_KEYS if info.get(key)), "")
    return File(_remote_name(filesystem, path, user_path), info.get("size"), stamp, path, filesystem, folders)


def _remote_name(filesystem: Any, path: str, user_path: str) -> str:
    """Return a file's URL with its host, without credentials."""
    url = filesystem.unstrip_protocol(path)
    host = urlsplit(user_path.partition("::")[0]).netloc.rpartition("@")[2]
    scheme, _, rest = url.partition("://")
    if host and rest.startswith("/"):
        # FTP and similar file systems omit the host from paths: without it, files of two hosts would have equal names.
        url = f"{scheme}://{host}{rest}"
    chain = user_path.partition("::")[2]
    return redact_url(f"{url}::{chain}" if chain else url)


def has_room(folder: str, nbytes: int) -> bool:
    """Return whether a disk has several times `nbytes` free."""
    return shutil.disk_usage(folder).free > _MIN_FREE_FACTOR * nbytes


class Spool:
    """A temporary folder, removed with its last reference."""

    def __init__(self, parent: str | os.PathLike[str] | None) -> None:
        if parent is not None:
            if "://" in os.fspath(parent):
                raise ConfigError(
                    f"scratch={os.fspath(parent)!r} is a URL, but rows are kept in a local folder: pass the path of a "
                    "local folder, one that the workers of a cluster share"
                )
            parent = make_folder(parent, "scratch")
        self.path = tempfile.mkdtemp(prefix="daskprep-", dir=parent)
        weakref.finalize(self, _remove, self.path, os.getpid())

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (self.path,)

    def write(self, name: str, table: pa.Table) -> Path:
        """Write a table in Arrow's stream format, and return its path."""
        with (
            Folder.open(self.path).writer(name, durable=False) as append,
            open_output(append) as out,
            pa.ipc.new_stream(out, table.schema) as file,
        ):
            file.write_table(table)
        return Path(self.path, name)


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:  # not in forked processes
        shutil.rmtree(path, ignore_errors=True)
