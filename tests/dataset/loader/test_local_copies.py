"""Blocks of a remote store are read once, and then from a local cache, even if it is damaged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.dataset import Dataset
from daskprep.errors import ConfigError
from daskprep.storage import Folder
from tests.conftest import WatchedMemory
from tests.sizes import Sizes

ROWS, BLOCK_ROWS = 500, 32


class Requests:
    """Counts the requests to the file system in memory for bytes of files."""

    def __init__(self, memory: type[WatchedMemory]) -> None:
        self.memory = memory

    def take(self) -> int:
        """Return the number of requests since the last call."""
        count = len(self.memory.requests)
        self.memory.requests.clear()
        return count


@pytest.fixture
def requests(memory: type[WatchedMemory], sizes: Sizes) -> Requests:
    # Scalars of small splits are kept in memory, which would hide what is read.
    sizes(resident_bytes=0)
    return Requests(memory)


def write(url: str, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "price": rng.normal(size=ROWS),
            "city": rng.choice(["Oslo", "Rome"], ROWS),
            "vector": [" ".join(map(str, row)) for row in rng.integers(0, 99, (ROWS, 40))],
        }
    )
    prep = dp.Preprocessor({"price": "number", "city": "category", "vector": "vector"})
    return prep.fit_write(frame, url, block_rows=BLOCK_ROWS, overwrite=True)


@pytest.fixture
def dataset(tmp_path: Path, requests: Requests) -> Iterator[Dataset]:
    yield write(f"memory://{tmp_path.name}/a.dp")
    Folder.open(f"memory://{tmp_path.name}").remove_all()


def epoch(dataset: Any, folder: Path | str | None, seed: int = 0, **options: Any) -> list[dict[str, np.ndarray]]:
    cached = {"cache": True, "cache_dir": folder} if folder is not None else {}
    loader = dataset["train"].loader(16, seed=seed, row_ids=True, **cached, **options)
    return [{name: array.numpy().copy() for name, array in batch.items()} for batch in loader]


def check_same(one: list[dict[str, np.ndarray]], other: list[dict[str, np.ndarray]]) -> None:
    assert len(one) == len(other)
    for first, second in zip(one, other, strict=True):
        for name in second:
            np.testing.assert_array_equal(first[name], second[name])


def copies(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("c.*") if path.is_file())


def test_second_epoch_sends_no_requests(dataset: Dataset, requests: Requests, tmp_path: Path) -> None:
    check_same(epoch(dataset, tmp_path / "copies"), epoch(dataset, None))
    assert requests.take() > 0
    for seed in (0, 1):
        found = epoch(dataset, tmp_path / "copies", seed)
        assert requests.take() == 0
        check_same(found, epoch(dataset, None, seed))
        requests.take()


def test_ranks_and_column_subsets_share_cached_blocks(dataset: Dataset, requests: Requests, tmp_path: Path) -> None:
    for rank in (0, 1):
        epoch(dataset, tmp_path, rank=rank, world_size=2)
    requests.take()
    epoch(dataset, tmp_path, seed=7)
    assert requests.take() == 0
    epoch(dataset, tmp_path, columns=["vector"])
    assert requests.take() == 0


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone"])
def test_damaged_cached_blocks_are_fetched_from_store(
    dataset: Dataset, requests: Requests, tmp_path: Path, damage: str
) -> None:
    expected = epoch(dataset, tmp_path)
    file = next(path for path in copies(tmp_path) if "vector" in str(path))
    data = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes({"flip": b"?" + data[1:-9] + b"!" + data[-8:], "cut": data[:-3], "empty": b""}[damage])
    requests.take()
    check_same(epoch(dataset, tmp_path), expected)
    assert requests.take() <= 2  # the block, and where it lies
    assert file.read_bytes() == data


def test_overwritten_dataset_does_not_use_old_cache(dataset: Dataset, tmp_path: Path) -> None:
    epoch(dataset, tmp_path / "copies")
    overwritten = write(dataset.url, seed=1)
    check_same(epoch(overwritten, tmp_path / "copies"), epoch(overwritten, None))


def cached_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def test_cache_limit_keeps_cached_blocks(dataset: Dataset, requests: Requests, tmp_path: Path) -> None:
    epoch(dataset, tmp_path / "all")
    limit = cached_bytes(tmp_path / "all") // 2
    epoch(dataset, tmp_path / "half", cache_limit=limit)
    kept = copies(tmp_path / "half")
    assert cached_bytes(tmp_path / "half") <= limit
    assert 0 < len(kept) < len(copies(tmp_path / "all"))
    requests.take()
    check_same(epoch(dataset, tmp_path / "half", cache_limit=limit), epoch(dataset, tmp_path / "all"))
    assert requests.take() <= 2 * (len(copies(tmp_path / "all")) - len(kept))
    # Smaller blocks may still find room.
    assert set(kept) <= set(copies(tmp_path / "half"))
    assert cached_bytes(tmp_path / "half") <= limit


def test_cache_limit_evicts_least_recently_used_dataset(dataset: Dataset, tmp_path: Path) -> None:
    one, other = dataset, write(f"{dataset.url}-other", seed=1)
    folder = tmp_path / "copies"
    epoch(one, folder)
    limit = 2 * cached_bytes(folder) + 20_000  # room for what describes the arrays
    epoch(other, folder, cache_limit=limit)
    # The first dataset was used last.
    for seconds, used in enumerate((other, one), start=1_000):
        for mark in folder.rglob(f"user-{used.digest}"):
            os.utime(mark, (seconds, seconds))

    def count_copies(dataset: Dataset) -> int:
        return sum(len(copies(mark.parent)) for mark in folder.rglob(f"user-{dataset.digest}"))

    before = count_copies(one), count_copies(other)
    third = write(f"{dataset.url}-third", seed=2)
    epoch(third, folder, cache_limit=limit)
    assert count_copies(one) == before[0]
    assert count_copies(other) < before[1]
    assert count_copies(third) == before[0]
    assert cached_bytes(folder) <= limit


def test_cache_eviction_does_not_follow_symlinks(dataset: Dataset, tmp_path: Path) -> None:
    folder, decoy = tmp_path / "copies", tmp_path / "decoy"
    target = decoy / "x" / "c.0.0"
    target.parent.mkdir(parents=True)
    target.write_bytes(b"mine" * 1_000)
    folder.mkdir()
    (folder / ("0" * 32)).symlink_to(decoy)
    (folder / ("1" * 32) / "x").mkdir(parents=True)
    (folder / ("1" * 32) / "x" / "c.0.0").symlink_to(target)
    epoch(dataset, folder, cache_limit=30_000)
    assert target.read_bytes() == b"mine" * 1_000
    assert cached_bytes(folder) <= 30_000


def test_cache_of_several_datasets_opened_together(dataset: Dataset, requests: Requests, tmp_path: Path) -> None:
    local = tmp_path / "local.dp"
    prep = dp.Preprocessor.from_dataset(dataset)
    frame = pd.DataFrame({"price": [1.0] * 40, "city": ["Oslo"] * 40, "vector": [" ".join(["1"] * 40)] * 40})
    prep.write(frame, local, block_rows=16)
    joined = dp.open_dataset([dataset.url, local])
    check_same(epoch(joined, tmp_path / "copies"), epoch(joined, None))
    requests.take()
    epoch(joined, tmp_path / "copies")
    assert requests.take() == 0


def test_cache_skips_local_datasets_and_remote_cache_dir(dataset: Dataset, requests: Requests, tmp_path: Path) -> None:
    near = write(str(tmp_path / "near.dp"))
    check_same(epoch(near, tmp_path / "copies"), epoch(near, None))
    epoch(dataset, f"memory://{tmp_path.name}/copies")
    assert not copies(tmp_path / "copies")
    assert not Folder.open(f"memory://{tmp_path.name}/copies").sizes()


def test_cache_dir_not_writable_raises(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot be cached"):
        epoch(dataset, tmp_path / "file")
