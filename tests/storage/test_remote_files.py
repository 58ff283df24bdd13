"""Byte ranges from S3 by obstore equal those by s3fs, which is the fallback."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any
from unittest import mock

import pytest

from daskprep.storage import Folder, remote_files
from tests.dataset.writing.test_faulty_store import Proxy, options, proxy  # noqa: F401 fixtures

DATA = bytes(range(200))


@pytest.fixture(autouse=True)
def reset_obstore(monkeypatch) -> None:
    monkeypatch.setattr(remote_files, "_obstore_process", [])


@pytest.fixture
def folder(s3, options, tmp_path) -> Folder:  # noqa: F811
    found = Folder.open(f"{s3.url}/{tmp_path.name}", {**options, "attempts": 2})
    found.write("a", DATA)
    return found


def forbid_s3fs(folder: Folder) -> Any:
    return mock.patch.object(folder.filesystem, "cat_file", side_effect=RuntimeError("s3fs was used"))


@pytest.mark.parametrize("name", ["a", "a b", "%41", "%~x", "é", "[x]*", "a#b?c", "{a}^"])
def test_range_is_read_by_obstore(folder, name):
    folder.write(name, DATA)
    with forbid_s3fs(folder):
        assert folder.read(name, 3, 9) == DATA[3:9]
        assert folder.read_buffer(name, 190, 300).to_pybytes() == DATA[190:]
        assert folder.read(name, 200, 210) == folder.read(name, 5, 5) == b""


def test_credentials_from_environment(s3, options, tmp_path, monkeypatch, folder):  # noqa: F811
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["secret"])
    bare = {name: value for name, value in options.items() if name not in {"key", "secret"}}
    found = Folder.open(folder.url, bare)
    with forbid_s3fs(found):
        assert found.read("a", 3, 9) == DATA[3:9]


@pytest.mark.parametrize(
    ("status", "code", "remedy"),
    [
        (503, "SlowDown", "SlowDown, 2 attempts.*try later, or raise"),
        (400, "ExpiredToken", "ExpiredToken.*check the credentials"),
        (403, "AccessDenied", "AccessDenied.*check the credentials"),
        (400, "bad code <hunter2>", "check the connection"),
    ],
)
def test_error_shows_reason_and_remedy(proxy, folder, status, code, remedy):  # noqa: F811
    proxy.faults = [(1.0, (status, code))]
    with pytest.raises(OSError, match=remedy) as caught:
        folder.read("a", 3, 9)
    assert "hunter2" not in f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"


def test_missing_object_and_timeouts_raise(options, folder, sizes):  # noqa: F811
    sizes(remote_timeouts={"read_timeout": "200ms"})
    with pytest.raises(FileNotFoundError):
        folder.read("b", 3, 9)
    slow = mock.patch.object(Proxy, "fault", side_effect=lambda: time.sleep(1))
    with slow, pytest.raises(OSError, match=r"TimeoutError, 2 attempts"):
        Folder.open(folder.url, {**options, "attempts": 2}).read("a", 3, 9)
    closed = {**options, "attempts": 2, "client_kwargs": {"endpoint_url": "http://127.0.0.1:9"}}
    with pytest.raises(OSError, match=r"ConnectionError, 2 attempts"):
        Folder.open(folder.url, closed).read("a", 3, 9)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{"requester_pays": True}, {"config_kwargs": {"read_timeout": 9}}])
def test_options_unknown_to_obstore_use_s3fs(folder, options, more):  # noqa: F811
    other = Folder.open(folder.url, {**options, **more})
    with mock.patch.object(remote_files, "_translate_error", side_effect=AssertionError):
        assert other.read("a", 3, 9) == DATA[3:9]
    with forbid_s3fs(other), pytest.raises(OSError, match="RuntimeError"):
        other.read("a", 3, 9)


def test_forked_process_reads_by_s3fs(folder):
    assert folder.read("a", 3, 9) == DATA[3:9]
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=lambda: theirs.send(folder.read("a", 3, 9)))
    process.start()
    assert ours.poll(60)
    assert ours.recv() == DATA[3:9]
    process.join()
