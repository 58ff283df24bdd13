"""Requests that hang are tried once more, and others for a minute; lack of memory is no fault of a store."""

from __future__ import annotations

from itertools import count

import pytest

import daskprep as dp
from daskprep.columns.deferred.reader import MediaReader
from daskprep.storage import Folder, retries


@pytest.mark.parametrize(("seconds", "calls"), [(61.0, 2), (10.0, 7), (0.1, retries.ATTEMPTS)])
def test_hanging_request_is_retried(monkeypatch, seconds, calls):
    clock, made = [0.0], count(1)

    def hang():
        clock[0] += seconds
        next(made)
        raise TimeoutError

    monkeypatch.setattr(retries.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(retries.time, "sleep", lambda _: None)
    with pytest.raises(TimeoutError) as error:
        retries.call_with_retries(hang, retries.ATTEMPTS)
    assert error.value.attempts == calls == next(made) - 1


@pytest.mark.parametrize(
    "read",
    [
        lambda url: Folder.open(url).read("a.csv", 0, 3),
        lambda url: Folder.open(url).sizes(),
        lambda url: dp.read_files(f"{url}/a.csv"),
        lambda url: dp.read_files(f"{url}/*.csv"),
        lambda url: MediaReader(url).read("a.csv"),
    ],
)
def test_memory_error_is_no_error_of_the_store(monkeypatch, tmp_path, read):
    url = f"memory://{tmp_path.name}"
    folder = Folder.open(url)
    folder.write("a.csv", b"x\n1\n")

    def fail(*_, **__):
        raise MemoryError

    for name in ("cat_file", "open", "find", "ls", "_open", "glob", "info"):
        monkeypatch.setattr(type(folder.filesystem), name, fail)
    with pytest.raises(MemoryError):
        read(url)
