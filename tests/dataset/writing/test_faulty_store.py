"""Requests to a faulty store are retried; the final error has its reason, without credentials."""

from __future__ import annotations

import io
import pickle
import random
import re
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import fsspec
import numpy as np
import pandas as pd
import pytest
from PIL import Image

import daskprep as dp
from daskprep.columns.deferred.reader import MediaReader
from daskprep.errors import ConfigError
from daskprep.storage import Folder

ROWS = 120
_REFUSAL = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>no hunter2</Message></Error>"


class Proxy(ThreadingHTTPServer):
    """Forward requests to a store, of which some fail: `faults` are (share of requests, status and code, or None)."""

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = urlsplit(endpoint).netloc
        self.faults: list[tuple[float, tuple[int, str] | None]] = []
        self.chance = random.Random(0)
        self.lock = threading.Lock()
        self.failed = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do not print broken connections."""

    def fault(self) -> tuple[int, str] | str:
        """Return the fault of a request: an answer, "cut", or nothing."""
        with self.lock:
            drawn = self.chance.random()
            for share, answer in self.faults:
                if drawn < share:
                    self.failed += 1
                    return answer or "cut"
                drawn -= share
        return ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.server.fault()
        if isinstance(fault, tuple):
            self.answer(fault[0], [], _REFUSAL.format(code=fault[1]).encode())
            return
        connection = HTTPConnection(self.server.target, timeout=60)
        connection.request(self.command, self.path, body, dict(self.headers))
        found = connection.getresponse()
        data = found.read()
        kept = [(name, value) for name, value in found.getheaders() if name.lower() != "transfer-encoding"]
        connection.close()
        self.answer(found.status, kept, data, is_cut=bool(fault) and len(data) > 1)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def answer(self, status: int, headers: list[tuple[str, str]], data: bytes, *, is_cut: bool = False) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if not any(name.lower() == "content-length" for name, _ in headers):
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if is_cut else data)
        self.close_connection |= is_cut

    def log_message(self, format: str, *arguments: Any) -> None:
        """Do not print requests."""


@pytest.fixture
def proxy(s3) -> Iterator[Proxy]:
    server = Proxy(s3.storage_options["client_kwargs"]["endpoint_url"])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def options(s3, proxy) -> dict[str, Any]:
    """Open the store through the proxy, by a separate file system."""
    return {**s3.storage_options, "client_kwargs": {"endpoint_url": proxy.url}, "skip_instance_cache": True}


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"price": rng.normal(size=ROWS), "vector": [f"{one} 2 3" for one in range(ROWS)]})


def write(source: Any, url: str, options: dict[str, Any] | None, **more: Any) -> dp.Dataset:
    prep = dp.Preprocessor({"price": "number", "vector": "vector"})
    return prep.fit_write(source, url, storage_options=options, block_rows=32, version="1", **more)


@pytest.mark.slow
def test_write_and_epoch_survive_faults(proxy, options, s3, tmp_path):
    table().to_parquet(tmp_path / "rows.parquet", row_group_size=40)
    url = f"{s3.url}/{tmp_path.name}"
    Folder.open(url, s3.storage_options).write("rows.parquet", (tmp_path / "rows.parquet").read_bytes())
    expected = write(str(tmp_path / "rows.parquet"), str(tmp_path / "a.dp"), None)
    proxy.faults = [(0.2, (503, "SlowDown")), (0.1, (503, "ServiceUnavailable")), (0.05, None)]
    written = write(f"{url}/rows.parquet", f"{url}/a.dp", options)
    found = dp.open_dataset(f"{url}/a.dp", storage_options=options)
    for dataset in (written, found):
        for one, other in zip(dataset["train"].loader(16, seed=1), expected["train"].loader(16, seed=1), strict=True):
            np.testing.assert_array_equal(one["price"], other["price"])
            np.testing.assert_array_equal(one["vector"], other["vector"])
    found.verify()
    assert proxy.failed > 10


def test_media_reads_survive_faults(proxy, options, s3, tmp_path, monkeypatch):
    url = f"{s3.url}/{tmp_path.name}"
    for number in range(12):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "x.png")
        Folder.open(url, s3.storage_options).write(f"{number}.png", (tmp_path / "x.png").read_bytes())
    monkeypatch.setitem(fsspec.config.conf, "s3", options)
    reader = MediaReader(base=url)
    proxy.faults = [(0.3, (503, "ServiceUnavailable")), (0.1, None)]
    for number in range(12):
        assert Image.open(io.BytesIO(reader.read(f"{number}.png"))).getpixel((0, 0)) == (number, 0, 0)
    assert proxy.failed


@pytest.mark.parametrize(
    ("status", "code", "remedy", "attempts"),
    [
        (503, "SlowDown", "try later, or raise", 3),
        (500, "InternalError", "try later, or raise", 3),
        (400, "ExpiredToken", "check the credentials", 1),
        (403, "AccessDenied", "check the credentials", 1),
        (400, "bad code <hunter2>", "check the connection", 1),
    ],
)
def test_error_shows_reason_and_remedy(proxy, options, s3, tmp_path, status, code, remedy, attempts):
    folder = Folder.open(f"{s3.url}/{tmp_path.name}", {**options, "attempts": 3})
    proxy.faults = [(1.0, (status, code))]
    for call in (lambda: folder.read("a"), lambda: folder.write("a", b"1")):
        with pytest.raises(OSError, match=remedy) as caught:
            call()
        assert re.findall("([0-9]+) attempts", str(caught.value)) == [str(attempts)] * (attempts > 1)
        assert (code in str(caught.value)) == ("<" not in code)
        assert "hunter2" not in str(caught.value)


def test_listing_error_shows_reason(proxy, options, s3):
    proxy.faults = [(1.0, (403, "AccessDenied"))]
    with pytest.raises(ConfigError, match=r"cannot be listed \(PermissionError.*check the credentials"):
        dp.read_files(f"{s3.url}/x/*.parquet", storage_options=options)


def test_missing_bucket_raises(s3):
    with pytest.raises(FileNotFoundError, match="NoSuchBucket"):
        Folder.open("s3://no-such-bucket/a", s3.storage_options).write("a", b"1")


def test_unreachable_store_is_retried(s3, options):
    closed = {**options, "client_kwargs": {"endpoint_url": "http://127.0.0.1:9"}, "attempts": 2}
    with pytest.raises(OSError, match=r"EndpointConnectionError, .*2 attempts|ConnectionError.*2 attempts"):
        Folder.open(f"{s3.url}/a", closed).read("a")


def test_truncated_response_is_retried(memory):
    folder = Folder.open("memory://cut")
    folder.write("a", b"0123456789")
    cuts = [3, 1]
    memory.answer = staticmethod(lambda path, data: data[: -cuts.pop()] if cuts else data)
    assert folder.read("a", 2, 9) == b"2345678"
    assert not cuts
    assert folder.read("a", 8, 20) == b"89"
    folder.remove_all()


@pytest.mark.parametrize("attempts", [0, -1, True, "3", None])
def test_invalid_attempts_raise(attempts):
    with pytest.raises(ConfigError, match="attempts"):
        Folder.open("memory://a", {"attempts": attempts})


def test_attempts_are_pickled_and_passed_on(tmp_path):
    folder = Folder.open("memory://a", {"attempts": 3})
    assert pickle.loads(pickle.dumps(folder)).files.attempts == 3
    fsspec.filesystem("memory").pipe_file("/rows.csv", b"x\n1\n")
    source = dp.read_files("memory://rows.csv", storage_options={"attempts": 3})
    assert source.fragments[0].file.attempts == 3


def test_retries_of_other_file_system_instances_are_unchanged() -> None:
    options = {"use_listings_cache": False, "anon": True, "config_kwargs": {"retries": {"total_max_attempts": 1}}}
    theirs = fsspec.filesystem("s3", **options)
    before = theirs.retries
    ours = Folder.open("s3://bucket/a.dp", options).filesystem
    assert (ours.retries, theirs.retries) == (1, before)
    assert before > 1
