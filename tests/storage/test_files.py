"""Files are written atomically on every kind of file system, and credentials are not shown."""

from __future__ import annotations

import errno
import fcntl
import gc
import multiprocessing
import os
import pickle
import re
import stat
import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from fsspec.implementations.dirfs import DirFileSystem

from daskprep.errors import ConfigError, StorageFullError
from daskprep.storage import Folder, checksum, local_files
from daskprep.storage.checksum import crc32c
from daskprep.storage.local_files import PreallocatedFile
from daskprep.storage.remote_files import RemoteFiles
from daskprep.storage.security import redact_url
from tests.sizes import Sizes


@pytest.fixture(params=["local", "memory", "with-folders"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    """Yield a missing folder: local, remote without directories, and remote with directories."""
    if request.param == "local":
        yield Folder.open(tmp_path / "new" / "data.dp")
        return
    if request.param == "with-folders":
        files = DirFileSystem(str(tmp_path), fsspec.filesystem("file", auto_mkdir=False))
        yield Folder("dir://new/data.dp", "new/data.dp", RemoteFiles(files))
        return
    made = Folder.open(f"memory://{uuid.uuid4().hex}/data.dp")
    yield made
    made.remove_all()


def read_into(folder: Folder, name: str, start: int, target: memoryview) -> None:
    with folder.open_reader(name) as fill:
        fill(start, target)


def test_folders_removed_concurrently_are_recreated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, mkdir = [], Path.mkdir

    def disturbed(self: Path) -> None:
        made.append(self.name)
        mkdir(self)
        if len(made) == 1:
            self.rmdir()
            raise FileExistsError(errno.EEXIST, "made by others, who removed it")
        if len(made) == 4:
            self.rmdir()

    monkeypatch.setattr(Path, "mkdir", disturbed)
    Folder.open(tmp_path).write("a/b/c.bin", b"x")
    assert made == ["a", "b", "a", "b", "b"]
    assert (tmp_path / "a" / "b" / "c.bin").read_bytes() == b"x"


def test_failing_mkdir_raises_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path) -> None:
        raise FileNotFoundError(errno.ENOENT, "as in /proc", str(self))

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(FileNotFoundError, match="as in /proc"):
        Folder.open(tmp_path).write("a/b.bin", b"x")


@pytest.mark.parametrize("make", [lambda path: path.write_bytes(b""), lambda path: path.symlink_to("nowhere")])
def test_lock_below_file_or_broken_link_raises(tmp_path: Path, make) -> None:
    make(tmp_path / "a")
    with pytest.raises((FileExistsError, NotADirectoryError)):
        local_files._acquire_lock(tmp_path / "a" / "b")


def test_write_read_round_trip(folder: Folder) -> None:
    values = np.arange(6, dtype="uint16").reshape(2, 3)
    assert folder.write("train/a.bin", b"ab", memoryview(b"c"), pa.py_buffer(b"d"), values, np.empty((0, 2))) == 16
    assert folder.read("train/a.bin") == b"abcd" + values.tobytes()
    assert folder.read("train/a.bin", 1, 3) == b"bc"
    assert folder.read("train/a.bin", 2, 2) == b""
    assert folder.read("train/a.bin", 14, 100) == values.tobytes()[10:]
    assert folder.read("train/a.bin", 100) == b""
    assert folder.read_buffer("train/a.bin").to_pybytes() == folder.read("train/a.bin")
    assert folder.size("train/a.bin") == 16


def test_write_replaces_file_and_sizes_lists_names(folder: Folder) -> None:
    assert folder.sizes() == {}
    for name, content in {"b": b"1", "a/c/0": b"22", "a.txt": b"", "b ": b"4444"}.items():
        folder.write(name, content)
    folder.write("b", b"333")
    assert folder.sizes() == {"a.txt": 0, "a/c/0": 2, "b": 3, "b ": 4}
    assert (folder / "a").sizes() == {"c/0": 2}
    assert folder.children() == ["a", "a.txt", "b", "b "]
    assert folder.read_buffer("a.txt").size == 0


@pytest.mark.parametrize("name", ["a b%20[x]*?.bin", "ä/😀", "-", "a#b&c=d", "'\"\\", "x" * 200])
def test_special_characters_in_names(folder: Folder, name: str) -> None:
    folder.write(name, b"1")
    folder.write("other", b"2")
    assert folder.read(name) == b"1"
    assert folder.sizes() == {name: 1, "other": 1}
    folder.remove(name)
    assert folder.sizes() == {"other": 1}


def test_missing_files(folder: Folder) -> None:
    folder.write("there", b"1")
    assert folder.size("gone") is None
    assert folder.size("there/gone") is None
    for read in (folder.read, folder.read_buffer, lambda name: folder.read(name, 1, 2)):
        with pytest.raises(FileNotFoundError, match="gone"):
            read("gone")
    with pytest.raises(FileNotFoundError, match="gone"):
        read_into(folder, "gone", 0, memoryview(bytearray(1)))
    folder.remove("gone", "there")
    assert (folder / "gone").sizes() == {}
    assert (folder / "gone").children() == []


def test_folder_is_not_a_file(folder: Folder) -> None:
    folder.write("a/b", b"1")
    assert folder.size("a") is None
    assert (folder / "a/b").sizes() == {}


def test_read_into_fills_target(folder: Folder) -> None:
    folder.write("a", b"0123456789")
    target = np.zeros(2, "uint16")
    read_into(folder, "a", 3, memoryview(target))
    assert target.tobytes() == b"3456"
    read_into(folder, "a", 10, memoryview(b""))


@pytest.mark.parametrize(("start", "left"), [(7, 3), (10, 0), (12, 0)])
def test_read_into_short_file_raises(folder: Folder, start: int, left: int) -> None:
    folder.write("a", b"0123456789")
    with pytest.raises(EOFError, match=f"/a has {left}, not 4 bytes from byte {start}"):
        read_into(folder, "a", start, memoryview(bytearray(4)))


def test_remove_all_removes_only_the_folder(folder: Folder) -> None:
    for name in ("v[1]*/a", "v[1]*/b/c", "v1/a", "v/a"):
        folder.write(name, b"1")
    (folder / "v[1]*").remove_all()
    (folder / "never").remove_all()
    assert list(folder.sizes()) == ["v/a", "v1/a"]
    assert folder.children() == ["v", "v1"]


def test_interrupted_write_keeps_old_file(folder: Folder) -> None:
    folder.write("a/b", b"old")
    with pytest.raises(KeyboardInterrupt), folder.writer("a/b") as append:  # noqa: PT012 to break off is the point
        append(b"new")
        assert folder.read("a/b") == b"old"
        raise KeyboardInterrupt
    assert folder.sizes() == {"a/b": 3}
    assert folder.read("a/b") == b"old"


@pytest.mark.parametrize("call", ["os.write", "os.fsync", "pathlib.Path.replace"])
def test_failing_system_call_leaves_no_file(tmp_path: Path, call: str) -> None:
    folder = Folder.open(tmp_path)
    with mock.patch(call, side_effect=OSError(5, "broken")), pytest.raises(OSError, match="broken"):
        folder.write("a", b"12")
    assert list(tmp_path.iterdir()) == []


def test_partial_system_calls_are_repeated(tmp_path: Path) -> None:
    folder, pread, preadv, write = Folder.open(tmp_path), os.pread, os.preadv, os.write
    target = bytearray(9)
    with (
        mock.patch("os.write", lambda file, view: write(file, view[:2])),
        mock.patch("os.pread", lambda file, size, start: pread(file, min(size, 2), start)),
        mock.patch("os.preadv", lambda file, views, start: preadv(file, [views[0][:2]], start)),
    ):
        folder.write("a", b"0123456789")
        assert folder.read("a", 1) == b"123456789"
        read_into(folder, "a", 1, memoryview(target))
    assert target == b"123456789"


def test_full_disk_error_names_file_and_bytes(tmp_path: Path) -> None:
    script = """
        import resource, sys
        from daskprep.errors import StorageFullError
        from daskprep.storage import Folder
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        folder = Folder.open(sys.argv[1])
        folder.write("small", b"1" * 1000)
        try:
            folder.write("large", b"1" * 5000)
        except StorageFullError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "data.dp")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"{tmp_path}/data.dp/large: no room for this file of 5,000 bytes" in done.stdout
    assert "ulimit -f" in done.stdout
    assert [path.name for path in (tmp_path / "data.dp").iterdir()] == ["small"]


def preallocate(folder: Folder) -> PreallocatedFile:
    file = folder.preallocate("a", 5)
    assert file is not None
    return file


def test_preallocated_file_is_written_in_any_order(tmp_path: Path) -> None:
    folder, pwrite = Folder.open(tmp_path), os.pwrite
    file = preallocate(folder)
    with mock.patch("os.pwrite", lambda descriptor, data, start: pwrite(descriptor, data[:1], start)):
        file.write(3, memoryview(b"45"))
        file.write(0, memoryview(b"123"))
    found = bytearray(5)
    file.read_into(0, memoryview(found))
    assert found == b"12345"
    assert folder.children() == []
    assert file.finish()
    assert folder.read("a") == b"12345"


def test_second_preallocated_file_is_dropped(tmp_path: Path) -> None:
    folder = Folder.open(tmp_path)
    files = [preallocate(folder), preallocate(folder)]
    files[0].write(0, memoryview(b"first"))
    assert [file.finish() for file in files] == [True, False]
    assert folder.sizes() == {"a": 5}
    assert folder.read("a") == b"first"


@pytest.mark.slow
def test_unfinished_preallocated_file_is_removed(tmp_path: Path) -> None:
    gc.collect()  # files left open by earlier tests
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    preallocate(Folder.open(tmp_path)).write(0, memoryview(b"12345"))
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files


@pytest.mark.parametrize("call", ["os.pwrite", "os.posix_fallocate"])
def test_preallocated_file_without_space_raises(tmp_path: Path, call: str) -> None:
    full = mock.patch(call, side_effect=OSError(28, "No space left on device"))
    with full, pytest.raises(StorageFullError, match="a: no room for this file of 5 bytes or more"):
        preallocate(Folder.open(tmp_path)).write(0, memoryview(b"12345"))


@pytest.mark.parametrize("call", ["os.open", "os.posix_fallocate"])
@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EMFILE])
def test_preallocate_returns_none_if_unsupported(tmp_path: Path, call: str, number: int) -> None:
    with mock.patch(call, side_effect=OSError(number, "none here")):
        assert Folder.open(tmp_path).preallocate("a", 5) is None
    assert Folder.open("memory://nowhere").preallocate("a", 5) is None


def test_preallocated_files_are_limited_by_open_files(tmp_path: Path) -> None:
    gc.collect()  # files left open by earlier tests
    folder = Folder.open(tmp_path)
    with mock.patch("resource.getrlimit", return_value=(80, 80)):
        files = [folder.preallocate("a", 5) for _ in range(12)]
        assert [file is not None for file in files] == [True] * 10 + [False] * 2
        files[0].close()
        assert folder.preallocate("a", 5) is not None


def test_full_remote_raises_storage_full_error(folder: Folder) -> None:
    if folder.is_local:
        pytest.skip("the operating system reports this for local files")
    full = OSError(28, "No space left on device")
    failing = mock.patch.object(type(folder.filesystem), "pipe_file", side_effect=full)
    with failing, pytest.raises(StorageFullError, match=r"data\.dp/a: no room there"):
        folder.write("a", b"1")


def test_durable_file_and_new_folders_are_flushed(tmp_path: Path) -> None:
    folder = Folder.open(tmp_path)
    with mock.patch("os.fsync") as flushed:
        folder.write("a/b/c", b"1", durable=False)
        # The folders that "a" and "b" were made in: later files there may be durable.
        assert flushed.call_count == 2
        folder.write("a/b/d", b"1", durable=False)
        assert flushed.call_count == 2
        folder.write("d/e/f", b"1")
    # The file and its folder; the folders that "d" and "e" were made in.
    assert flushed.call_count == 6


def test_new_folders_of_a_cache_are_not_flushed(tmp_path: Path) -> None:
    folder = Folder.open(tmp_path)
    with mock.patch("os.fsync") as flushed:
        folder.write("a/b/c", b"1", durable=None)
    assert flushed.call_count == 0
    assert folder.read("a/b/c") == b"1"


def test_files_are_flushed_together(tmp_path: Path) -> None:
    folder = Folder.open(tmp_path)
    names = [f"a/b/{number}" for number in range(5)]
    for name in names:
        folder.write(name, b"1", durable=False)
    with mock.patch("os.fsync") as flushed:
        folder.sync(names)
    # Five files, "b", "a" and the folder itself.
    assert flushed.call_count == 8


def test_durable_later_starts_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    monkeypatch.setattr(
        local_files, "_begin_flush", lambda descriptor, *_: started.append(os.fstat(descriptor).st_size)
    )
    folder = Folder.open(tmp_path)
    with mock.patch("os.fsync") as flushed:
        folder.write("a", b"1", durable=False)
        folder.write("b", b"123", durable="later")
    assert (started, flushed.call_count, folder.sizes()) == ([3], 0, {"a": 1, "b": 3})


def test_begin_flush_system_call(tmp_path: Path) -> None:
    with open(tmp_path / "a", "wb") as file:  # noqa: PTH123 it takes a descriptor
        file.write(b"1" * 10_000)
        file.flush()
        assert local_files._begin_flush(file.fileno(), *local_files._FLUSH_ALL_ARGUMENTS) == (
            0 if sys.platform == "linux" else None
        )


def test_threads_write_same_file(folder: Folder) -> None:
    contents = [bytes([65 + i]) * 1000 for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda content: folder.write("x/y/same", content), contents))
    assert folder.read("x/y/same") in contents
    assert folder.sizes() == {"x/y/same": 1000}


def test_folder_is_removed_concurrently(tmp_path: Path) -> None:
    folder = Folder.open(tmp_path / "data")
    for i in range(200):
        folder.write(f"{i % 10}/{i}", b"1", durable=False)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: folder.remove_all(), range(4)))
    assert not (tmp_path / "data").exists()


def test_folder_is_removed_during_writes(tmp_path: Path) -> None:
    folder, rmdir, left = Folder.open(tmp_path / "data"), os.rmdir, [1, 2, 3]

    def one_more_before(name: str, *, dir_fd: int | None = None) -> None:
        if left:
            folder.write(f"a/{left.pop()}", b"1", durable=False)
        rmdir(name, dir_fd=dir_fd)

    folder.write("a/b", b"1")
    with mock.patch("os.rmdir", one_more_before):
        folder.remove_all()
    assert not left
    assert not (tmp_path / "data").exists()


def test_folder_pickles(folder: Folder) -> None:
    folder.write("a", b"1")
    again = pickle.loads(pickle.dumps(folder / "b"))
    assert again == folder / "b"
    assert (again.url, again.is_local, again.is_process_local) == (
        f"{folder.url}/b",
        folder.is_local,
        folder.is_process_local,
    )
    again.write("c", b"22")
    assert folder.sizes() == {"a": 1, "b/c": 2}


def _file_system_of(folder: Folder, answer: object) -> None:
    answer.send(id(folder.filesystem))  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_file_system_is_recreated_after_fork() -> None:
    folder = Folder.open("memory://forked")
    before = id(folder.filesystem)
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_file_system_of, args=(folder, theirs))
    process.start()
    process.join()
    assert ours.recv() != before


def test_local_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("data", Path("data"), "data/", f"file://{tmp_path}/data"):
        assert Folder.open(path).url == f"{tmp_path}/data"
    assert repr(Folder.open("data")) == f'<Folder "{tmp_path}/data">'
    assert Folder.open(f"{tmp_path}/a::b://c").is_local


def test_invalid_path_raises() -> None:
    for wrong in (3, "", None):
        with pytest.raises(ConfigError, match="expected the path or URL of a folder, not"):
            Folder.open(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match='Did you mean "memory"'):
        Folder.open("memroy://x")


@pytest.mark.parametrize(("protocol", "package"), [("s3", "s3fs"), ("s3a", "s3fs"), ("abfss", "adlfs")])
def test_missing_package_error_names_package(protocol: str, package: str) -> None:
    missing = mock.patch("daskprep.storage.security.url_to_fs", side_effect=ImportError(f"Install {package}"))
    with missing, pytest.raises(ConfigError, match=f"{protocol}://bucket/x.*pip install {package}"):
        Folder.open(f"{protocol}://me:secret@bucket/x")


def test_credentials_are_not_shown() -> None:
    folder = Folder.open("memory://me:secret@host/x", {"token": "secret"}) / "y"
    failing = mock.patch.object(type(folder.filesystem), "cat_file", side_effect=RuntimeError("secret"))
    with failing, pytest.raises(OSError, match=r"y/a cannot be read \(RuntimeError\); check") as caught:
        folder.read("a")
    with pytest.raises(FileNotFoundError) as missing:
        folder.read("a")
    shown = [folder.url, repr(folder), str(caught.value), str(missing.value)]
    assert not any("secret" in text for text in shown)


@pytest.mark.parametrize("dtype", ["uint8", "bool", "float16", "float32", "int64"])
def test_crc32c_of_parts_equals_crc32c_of_concatenation(dtype: str) -> None:
    values = np.arange(12).astype(dtype).reshape(3, 4)
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(values, b"", memoryview(bytearray(b"x")), pa.py_buffer(b"y")) == crc32c(values.tobytes() + b"xy")
    assert crc32c(b"456789", start=crc32c(b"123")) == 0xE3069283
    assert crc32c() == crc32c(np.empty((0, 3))) == 0


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://key:sec/ret@bucket/x", "s3://bucket/x"),
        ("ftp://user:se/cret@host/x", "ftp://host/x"),
        ("abfs://container@account.net/x", "abfs://container@account.net/x"),
        ("hdfs://host:8020/a@b", "hdfs://host:8020/a@b"),
        ("s3://bucket/a:b@c?d", "s3://bucket/a:b@c?d"),
    ],
)
def test_redact_url_removes_only_passwords(url: str, shown: str) -> None:
    assert redact_url(url) == shown


def test_redact_url_removes_query() -> None:
    assert "SECRET" not in redact_url("abfs://c@account.net/x?sig=SECRET")


def is_locked(path: Path) -> bool:
    """Return whether the lock of a folder is held."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def test_lock_is_released_despite_forked_process(tmp_path: Path) -> None:
    folder = Folder.open(tmp_path)
    began, end = os.pipe()
    with folder.lock():
        child = os.fork()
        if not child:
            os.read(began, 1)
            os._exit(0)
        states = [is_locked(tmp_path)]
    states.append(is_locked(tmp_path))
    os.write(end, b".")
    assert os.waitpid(child, 0)[1] == 0
    os.close(began)
    os.close(end)
    assert states == [True, False]


def test_forked_process_outliving_parent_does_not_keep_lock(tmp_path: Path) -> None:
    folder = Folder.open(tmp_path)
    began, end = os.pipe()
    parent = os.fork()
    if not parent:
        with folder.lock():
            if not os.fork():
                os.read(began, 1)
            os._exit(not is_locked(tmp_path))  # without letting go, as if it was killed
    code, is_still_locked = os.waitpid(parent, 0)[1], is_locked(tmp_path)
    os.write(end, b".")
    os.close(end)
    os.close(began)
    assert (code, is_still_locked) == (0, False)


def test_forked_process_leaving_block_keeps_lock_of_parent(tmp_path: Path) -> None:
    lock = Folder.open(tmp_path).lock()
    lock.__enter__()
    child = os.fork()
    if not child:
        lock.__exit__(None, None, None)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert is_locked(tmp_path)
    lock.__exit__(None, None, None)
    assert not is_locked(tmp_path)


def test_waiting_for_lock_warns_with_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: Sizes) -> None:
    sizes(lock_warning_seconds=0.01)
    folder, warned = Folder.open(tmp_path), threading.Event()
    messages: list[str] = []

    def record_warning(text: str, **_: Any) -> None:
        messages.append(text)
        warned.set()

    monkeypatch.setattr(local_files, "warn", record_warning)
    holding = threading.Event()

    def hold() -> None:
        with folder.lock():
            holding.set()
            warned.wait(60)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold)
        holding.wait(60)
        with folder.lock():
            pass
    assert re.search(f"{re.escape(str(tmp_path))} is locked by process [0-9]+, .*Ctrl-C to stop", messages[0])


def test_lock_of_folder_recreated_while_waiting(tmp_path: Path) -> None:
    folder = Folder.open(tmp_path / "a")
    waiting = threading.Event()
    flock = fcntl.flock

    def waits(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX:
            waiting.set()
        flock(descriptor, operation)

    with mock.patch("portalocker.portalocker.LOCKER", waits), ThreadPoolExecutor(1) as pool:
        again = folder.lock()
        with folder.lock():
            other = pool.submit(again.__enter__)
            waiting.wait(60)
            folder.remove_all()
            (tmp_path / "a").mkdir()
        other.result()
        descriptor = os.open(tmp_path / "a", os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
        again.__exit__(None, None, None)


@pytest.mark.parametrize("code", ["ENOLCK", "EOPNOTSUPP", "ENOSYS", "EINVAL", "EBADF"])
def test_file_system_without_locks_and_folder_fsync(tmp_path: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(what: str) -> None:
        raise OSError(getattr(errno, what), what)

    fsync = os.fsync
    monkeypatch.setattr("portalocker.portalocker.LOCKER", lambda *_: refuse(code))
    monkeypatch.setattr(
        os, "fsync", lambda one: refuse("EINVAL") if stat.S_ISDIR(os.fstat(one).st_mode) else fsync(one)
    )
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: refuse("EOPNOTSUPP"))
    folder = Folder.open(tmp_path / "deep" / "er")
    with folder.lock():
        folder.write("a", b"1")
        folder.write("b", b"2", durable=False)
        folder.sync(["b"])
        assert folder.preallocate("c", 10) is None
    assert folder.sizes() == {"a": 1, "b": 1}


def test_other_errors_of_folder_fsync_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "broken")

    folder = Folder.open(tmp_path)
    folder.write("a", b"1", durable=False)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="broken"):
        folder.sync(["a"])


@pytest.mark.parametrize("in_c", [True, False])
def test_crc32c_equals_standard_in_any_build(in_c, monkeypatch):
    if not in_c:
        monkeypatch.setattr(checksum, "_extend", None)
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"", b"1234", memoryview(bytearray(b"5678")), np.frombuffer(b"9", np.uint8)) == 0xE3069283
    assert crc32c(b"56789", start=crc32c(b"1234")) == 0xE3069283
