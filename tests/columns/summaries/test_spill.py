from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from daskprep.columns.summaries.token_counts import SHARDS, shard_groups, shard_numbers, spill
from daskprep.errors import StorageFullError


def test_shard_returns_its_tokens_and_counts(tmp_path: Path) -> None:
    tokens = pa.array([f"token {number}" for number in range(2000)])
    file = spill(str(tmp_path / "made" / "here"), tokens, np.arange(2000))
    assert file.entries == 2000
    shards = shard_numbers(tokens)
    for shard in (0, 7, SHARDS - 1):
        [(found, counts)] = file.read([shard])
        assert counts.tolist() == np.flatnonzero(shards == shard).tolist()
        assert found.equals(tokens.take(pa.array(counts)))
    spill(str(tmp_path / "made" / "here"), tokens, np.arange(2000))
    assert len(list((tmp_path / "made" / "here").iterdir())) == 2


@pytest.mark.parametrize("kind", [np.int64, np.float64])
def test_row_of_counts_is_stored_per_token(tmp_path: Path, kind: type) -> None:
    tokens = pa.array([f"token {number}" for number in range(2000)])
    rows = np.arange(6000, dtype=kind).reshape(2000, 3)
    file = spill(str(tmp_path), tokens, rows)
    found = [entries for shard in range(SHARDS) for entries in file.read([shard])]
    kept = {
        token: counts.tolist() for names, some in found for token, counts in zip(names.to_pylist(), some, strict=True)
    }
    assert kept == dict(zip(tokens.to_pylist(), rows.tolist(), strict=True))
    assert {counts.dtype for _, counts in found} == {np.dtype(kind)}


def test_full_disk_raises_and_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = pa.array(["a"])
    for number, kind in ((errno.ENOSPC, StorageFullError), (errno.EIO, OSError)):

        def fail(*_: object, number: int = number) -> None:
            raise OSError(number, "disk full")

        monkeypatch.setattr(pa.ipc, "new_file", fail)
        with pytest.raises(kind, match="disk full") as caught:
            spill(str(tmp_path), tokens, np.array([1]))
        assert isinstance(caught.value, StorageFullError) is (number == errno.ENOSPC)
        if number == errno.ENOSPC:
            assert not list(tmp_path.iterdir())


def test_full_disk_while_creating_the_file_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(pa, "OSFile", fail)
    with pytest.raises(StorageFullError, match="disk full"):
        spill(str(tmp_path), pa.array(["a"]), np.array([1]))


@pytest.mark.parametrize(
    ("entries", "groups"), [([], 1), ([0], 1), ([10], 1), ([11], 2), ([10, 15], 3), ([10**6], SHARDS)]
)
def test_shards_are_read_in_groups_of_limited_entries(entries: list[int], groups: int) -> None:
    found = list(shard_groups(sum(entries), 10))
    assert len(found) == groups
    assert [shard for group in found for shard in group] == list(range(SHARDS))
    assert max(map(len, found)) - min(map(len, found)) <= 1
