"""Media files are read within base folders and limits, and saved once by content."""

from __future__ import annotations

import errno
import os
import pickle
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock

import fsspec
import pyarrow as pa
import pytest

from daskprep.columns.deferred.cells import CELL_TYPE, convert_media_column
from daskprep.columns.deferred.reader import MediaReader, name_by_content, save_cell_bytes
from daskprep.errors import ConfigError, MediaError
from daskprep.storage import Folder

LIMIT = 1_000


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Return a folder with one file, next to a secret file."""
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "base" / "deep").mkdir(parents=True)
    (tmp_path / "base" / "deep" / "a.png").write_bytes(b"picture")
    return tmp_path / "base"


@pytest.fixture
def memory() -> Iterator[str]:
    """Yield the URL of the same folder in memory."""
    root = f"memory://{uuid.uuid4().hex}"
    files = fsspec.filesystem("memory")
    files.pipe_file(f"{root}/secret", b"secret")
    files.pipe_file(f"{root}/base/deep/a.png", b"picture")
    yield f"{root}/base"
    files.rm(root, recursive=True)


class Answers(BaseHTTPRequestHandler):
    """Respond with the status at the start of the path."""

    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        kind = self.path.split("/")[1]
        self.send_response(int(kind) if kind.isdigit() else 200)
        data = b"x" * (2 * LIMIT) if "big" in self.path else b"picture"
        if kind != "unknown":
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET

    def log_message(self, *arguments: object) -> None:
        """Do not print requests."""


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    """Yield the URL of a web server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_paths_are_relative_to_the_base(base: Path) -> None:
    reader = MediaReader(str(base))
    for path in ("deep/a.png", "deep/../deep/a.png", str(base / "deep" / "a.png"), f"file://{base}/deep/a.png"):
        assert reader.read(path) == b"picture"


def test_urls_are_relative_to_the_base(memory: str) -> None:
    reader = MediaReader(f"{memory}/")
    assert reader.read("deep/a.png") == reader.read(f"{memory}/deep/a.png") == b"picture"


def test_files_without_base(base: Path, memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(base)
    for path in ("deep/a.png", "../base/deep/a.png", f"{base}/deep/a.png", f"file://{base}/deep/a.png"):
        assert MediaReader().read(path) == b"picture"
    assert MediaReader().read(f"{memory}/deep/a.png") == b"picture"


@pytest.mark.parametrize(
    "path",
    ["../secret", "deep/../../secret", "{root}/secret", "file://{root}/secret", "link", "folder/secret", "/etc/passwd",
     "{root}/base-other/x", "memory://secret", "nowhere://secret", "~/secret", "."],
)  # fmt: skip
def test_path_outside_local_base_raises(base: Path, path: str) -> None:
    (base / "link").symlink_to("../secret")
    (base / "folder").symlink_to("..")
    (base.parent / "base-other").mkdir()
    (base.parent / "base-other" / "x").write_bytes(b"secret")
    with pytest.raises(MediaError, match="leaves base_dir|no such file"):
        MediaReader(str(base)).read(path.format(root=base.parent))


@pytest.mark.parametrize(
    "path",
    ["../secret", "deep/../../secret", "%2e%2e/secret", "%2E./secret", "deep\\..\\..\\secret", "/etc/passwd",
     "{base}/../secret", "{base}-other/secret", "{root}/secret", "file:///etc/passwd", "https://example.org/a.png"],
)  # fmt: skip
def test_path_outside_remote_base_raises(memory: str, path: str) -> None:
    with pytest.raises(MediaError, match=f"leaves base_dir, {memory}; move the file below it"):
        MediaReader(memory).read(path.format(base=memory, root=memory.removesuffix("/base")))


def test_chained_urls_outside_base_raise(base: Path, memory: str) -> None:
    for root in (str(base), memory):
        with pytest.raises(MediaError, match="leaves base_dir"):
            MediaReader(root).read(f"simplecache::file://{base}/deep/a.png")


def test_symlinked_base_and_symlinks_below_base(base: Path) -> None:
    (base.parent / "alias").symlink_to(base)
    (base / "link.png").symlink_to("deep/a.png")
    reader = MediaReader(str(base.parent / "alias"))
    assert reader.read("link.png") == reader.read(f"{base}/deep/a.png") == b"picture"


def test_extra_bases(base: Path, memory: str, tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "b.png").write_bytes(b"saved")
    reader = MediaReader(str(base), extra_bases=(str(tmp_path / "saved"), memory))
    assert reader.read(f"{tmp_path}/saved/b.png") == b"saved"
    assert reader.read("deep/a.png") == reader.read(f"{memory}/deep/a.png") == b"picture"
    with pytest.raises(MediaError, match="leaves base_dir"):
        reader.read(f"{tmp_path}/secret")


def test_files_larger_than_max_bytes_raise(base: Path, memory: str) -> None:
    for root in (str(base), memory):
        assert MediaReader(root, max_bytes=7).read("deep/a.png") == b"picture"
        with pytest.raises(MediaError, match="it has 7 bytes or more, and at most 6 are read"):
            MediaReader(root, max_bytes=6).read("deep/a.png")


def test_local_file_errors(base: Path) -> None:
    (base / "circle").symlink_to("circle")
    os.mkfifo(base / "pipe")
    reader = MediaReader(str(base))
    reasons = {
        "none.png": "no such file", "deep/a.png/b": "not a directory", "deep": "a folder", "pipe": "not a file",
        "circle": "too many levels of symbolic links", "n" * 300: "file name too long",
        "a\0b": "is not a path", "": "is not a path",
    }  # fmt: skip
    for path, reason in reasons.items():
        with pytest.raises(MediaError, match=reason):
            reader.read(path)


def test_permission_denied_raises(base: Path) -> None:
    # Root may read any file, so the system call is replaced.
    with (
        mock.patch("os.open", side_effect=PermissionError(errno.EACCES, "denied")),
        pytest.raises(MediaError, match="permission denied"),
    ):
        MediaReader(str(base)).read("deep/a.png")


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ESTALE])
def test_storage_error_is_not_a_media_error(base: Path, number: int) -> None:
    with (
        mock.patch("os.open", side_effect=OSError(number, "failure")),
        pytest.raises(OSError, match="failure"),
    ):
        MediaReader(str(base)).read("deep/a.png")


def test_remote_file_errors(memory: str) -> None:
    reader = MediaReader(memory)
    with pytest.raises(MediaError, match=f"{memory}/none.png: no such file"):
        reader.read("none.png")
    with pytest.raises(MediaError, match="a folder|no such file"):
        reader.read("deep")
    with pytest.raises(MediaError, match='"nowhere://x" is not a URL that data may contain'):
        MediaReader().read("nowhere://x")


def test_missing_package_raises_config_error() -> None:
    # Another test may have imported it.
    missing = mock.patch("daskprep.storage.security.url_to_fs", side_effect=ImportError("Install s3fs"))
    with missing, pytest.raises(ConfigError, match="pip install s3fs"):
        MediaReader().read("s3://bucket/a.png")


def test_web_servers_are_read(web: str) -> None:
    reader = MediaReader(web, max_bytes=LIMIT)
    for path in ("known/a.png", "unknown/a.png", f"{web}/known/a.png"):
        assert reader.read(path) == b"picture"
    for path in ("known/big.png", "unknown/big.png"):
        with pytest.raises(MediaError, match="it has 2,000 bytes or more, and at most 1,000 are read"):
            reader.read(path)


@pytest.mark.parametrize(("status", "reason"), [(404, "the server answers 404"), (403, "the server answers 403")])
def test_client_error_of_web_server_raises_media_error(web: str, status: int, reason: str) -> None:
    with pytest.raises(MediaError, match=reason):
        MediaReader(web).read(f"{status}/a.png")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_server_error_of_web_server_is_not_a_media_error(web: str, status: int) -> None:
    with pytest.raises(OSError, match=f"{web}/{status}/a.png cannot be read .*check the connection"):
        MediaReader(web).read(f"{status}/a.png")


def test_unreachable_web_server_is_not_a_media_error() -> None:
    with pytest.raises(OSError, match=r"http://127\.0\.0\.1:9/a\.png\?[0-9a-f]{8} cannot be read") as caught:
        MediaReader().read("http://me:hunter2@127.0.0.1:9/a.png?token=hunter2")
    assert "hunter2" not in str(caught.value)


def test_web_server_timeout_is_not_a_media_error(web: str) -> None:
    late = FileNotFoundError(web)
    late.__cause__ = TimeoutError()
    with (
        mock.patch.object(fsspec.get_filesystem_class("http"), "open", side_effect=late),
        pytest.raises(OSError, match="check the connection") as caught,
    ):
        MediaReader(web).read("known/a.png")
    assert not isinstance(caught.value, FileNotFoundError)


def test_credentials_are_not_shown(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    address = web.removeprefix("http://")
    monkeypatch.setitem(fsspec.config.conf, "http", {"headers": {"key": "hunter2"}})
    reader = MediaReader(f"http://me:hunter2@{address}")
    with pytest.raises(MediaError) as caught:
        reader.read("404/a.png")
    assert "hunter2" not in f"{reader!r} {caught.value}"
    assert reader.read(f"http://{address}/known/a.png") == b"picture"
    assert reader.read(f"http://me:hunter2@{address}/known/a.png") == b"picture"


def test_reader_pickles_and_is_thread_safe(base: Path, memory: str) -> None:
    for root in (str(base), memory):
        reader = MediaReader(root)
        reader.read("deep/a.png")
        again = pickle.loads(pickle.dumps(reader))
        assert (again, hash(again)) == (reader, hash(reader))
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(again.read, ["deep/a.png"] * 20)) == {b"picture"}


def test_name_by_content() -> None:
    assert name_by_content(b"\x89PNG", "image") == name_by_content(pa.py_buffer(b"\x89PNG"), "image")
    assert name_by_content(b"1", "image")[:32] != name_by_content(b"2", "image")[:32]
    names = [name_by_content(data, "audio") for data in (b"RIFF", b"OggS..", b"fLaC", b"")]
    assert [name[32:] for name in names] == [".wav", ".ogg", ".flac", ".wav"]
    assert name_by_content(b"\xff\xd8\xff\xe0", "image")[32:] == ".jpg"


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    """Yield a missing folder."""
    made = Folder.open(tmp_path / "saved" if request.param == "local" else f"memory://{uuid.uuid4().hex}/saved")
    yield made
    made.remove_all()


def test_cell_bytes_are_saved_once_and_read(folder: Folder) -> None:
    cells = convert_media_column([b"one", "a.png", None, b"two", b"one"], "image")
    saved = save_cell_bytes(cells, folder, "image")
    assert saved.type == CELL_TYPE
    assert sorted(folder.sizes()) == sorted({name_by_content(b"one", "image"), name_by_content(b"two", "image")})
    assert saved[1:3].to_pylist() == [cells[1].as_py(), None]
    reader = MediaReader()
    assert [reader.read(saved[row].as_py()["path"]) for row in (0, 3, 4)] == [b"one", b"two", b"one"]
    assert saved.field("bytes").null_count == 5


def test_saved_files_are_not_rewritten(folder: Folder) -> None:
    cells = convert_media_column([b"skipped", b"one", b"two"], "image").slice(1)
    first = save_cell_bytes(cells, folder, "image")
    folder.remove(name_by_content(b"two", "image"))
    folder.write(name_by_content(b"one", "image"), b"ONE")
    assert save_cell_bytes(cells, folder, "image").equals(first)
    assert folder.read(name_by_content(b"one", "image")) == b"ONE"
    assert folder.read(name_by_content(b"two", "image")) == b"two"


def test_truncated_saved_file_is_rewritten(folder: Folder) -> None:
    folder.write(name_by_content(b"one", "image"), b"")
    save_cell_bytes(convert_media_column([b"one"], "image"), folder, "image")
    assert folder.read(name_by_content(b"one", "image")) == b"one"


def test_rate_is_kept_and_paths_are_not_saved(folder: Folder) -> None:
    cells = pa.array([{"path": None, "bytes": b"RIFF", "rate": 8_000}], CELL_TYPE)
    assert save_cell_bytes(cells, folder, "audio").field("rate").to_pylist() == [8_000]
    paths = convert_media_column(pa.array(["a.wav", None]), "audio")
    empty = Folder.open(f"memory://{uuid.uuid4().hex}")
    assert save_cell_bytes(paths, empty, "audio").equals(paths)
    assert empty.sizes() == {}
