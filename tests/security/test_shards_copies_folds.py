"""Malicious shards, copies of blocks and folds raise a daskprep error, or rows are read as written."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.errors import ConfigError, CorruptDatasetError, DaskprepError
from daskprep.storage import Folder
from daskprep.storage.checksum import crc32c
from daskprep.storage.manifest import FileEntry
from tests.security.test_hostile_datasets import Hostile

ROWS, BLOCK_ROWS = 40, 4
SHARD = "train/arrays.zarr/vector/c.0.0"
NONE = (1 << 64) - 1
MOST_BYTES = 200_000_000  # the first loader imports torch, which takes 55 MB
FEATURES = {"price": "number", "vector": "vector"}


def table() -> pd.DataFrame:
    numbers = np.random.default_rng(0).integers(0, 99, (ROWS, 20))
    return pd.DataFrame({"price": np.arange(ROWS), "vector": [" ".join(map(str, row)) for row in numbers]})


def readings(path: Path) -> dict[str, Callable[[], object]]:
    return {
        "read": lambda: dp.open_dataset(path)["train"].read(),  # noqa: PLW0108
        "some rows": lambda: dp.open_dataset(path)["train"][3:9],
        "loader": lambda: list(dp.open_dataset(path)["train"].loader(8)),
        "verify": lambda: dp.open_dataset(path).verify(),
        "arrays": lambda: [array.shape for _, array in dp.open_dataset(path)["train"].arrays.arrays()],
    }


def outcomes(calls: dict[str, Callable[[], object]]) -> dict[str, str]:
    """Return the outcome of each call; it may raise daskprep errors, and use little memory."""
    found = {}
    for name, call in calls.items():
        tracemalloc.start()
        try:
            call()
            found[name] = "done"
        except DaskprepError as error:
            found[name] = type(error).__name__
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < MOST_BYTES, name
    return found


# -- the index of a shard


def slots_of(tail: bytes) -> tuple[list[int], list[list[int]]]:
    count = (len(tail) - 4) // 20
    numbers = struct.unpack(f"<{2 * count}Q", tail[4 * count : -4])
    return list(struct.unpack(f"<{count}I", tail[: 4 * count])), [
        list(numbers[i : i + 2]) for i in range(0, 2 * count, 2)
    ]


def put(slot: int, part: int, value: int) -> Callable[[list[list[int]]], None]:
    return lambda index: index[slot].__setitem__(part, value % (1 << 64))


INDEXES: dict[str, Callable[[list[list[int]]], None]] = {
    "behind the file": put(0, 0, 1 << 40),
    "at the end of all numbers": put(0, 0, NONE - 1),
    "before the file": put(1, 0, -8),
    "a negative size": put(1, 1, -8),
    "a huge size": put(9, 1, 1 << 62),
    "no size": put(3, 1, 0),
    "not there, with a size": put(0, 0, NONE),
    "not there": lambda index: index.__setitem__(0, [NONE, NONE]),
    "all the same": lambda index: index.__setitem__(slice(None), [index[0]] * len(index)),
    "one within another": lambda index: index.__setitem__(2, index[1]),
    "in another order": lambda index: index.reverse(),
    "sizes whose sum is the right one again": lambda index: (put(0, 1, 1 << 63)(index), put(1, 1, 1 << 63)(index))[0],
}


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sharded") / "a.dp"
    dp.Preprocessor(FEATURES).fit_write(table(), path, block_rows=BLOCK_ROWS, shards=True, progress=False)
    return path


def copied(path: Path, to: Path) -> Hostile:
    fsspec.filesystem("file").put(f"{path}/", f"{to}/", recursive=True)
    return Hostile(to)


@pytest.mark.parametrize("attack", INDEXES)
def test_altered_index_with_valid_checksums_raises(sharded: Path, tmp_path: Path, attack: str) -> None:
    hostile = copied(sharded, tmp_path / "a.dp")
    file = hostile.folder / SHARD
    data, slots = file.read_bytes(), hostile.manifest["files"][SHARD][3]
    tail = data[-(20 * slots + 4) :]
    checksums, index = slots_of(tail)
    INDEXES[attack](index)
    numbers = b"".join(struct.pack("<2Q", *one) for one in index)
    data = data[: -len(tail)] + struct.pack(f"<{slots}I", *checksums) + numbers + crc32c(numbers).to_bytes(4, "little")
    file.write_bytes(data)
    hostile.manifest["files"][SHARD] = FileEntry.from_data(SHARD, data, ROWS, slots).to_list()
    hostile.seal()
    found = outcomes(readings(tmp_path / "a.dp"))
    assert {found[name] for name in ("read", "some rows", "loader")} == {"CorruptDatasetError"}


@pytest.mark.parametrize("slots", [0, -1, 1, 9, 11, 257, 10**6, 10**18, 10**400, True, "10", None])
def test_wrong_slots_in_a_manifest_raise(sharded: Path, tmp_path: Path, slots: Any) -> None:
    hostile = copied(sharded, tmp_path / "a.dp")
    hostile.manifest["files"][SHARD][3] = slots
    hostile.seal()
    found = outcomes(readings(tmp_path / "a.dp"))
    assert {found[name] for name in ("read", "some rows", "loader", "verify")} == {"CorruptDatasetError"}


# -- copies of blocks from a store


@pytest.fixture
def distant(tmp_path: Path) -> Iterator[dp.Dataset]:
    url = f"memory://{tmp_path.name}/a.dp"
    yield dp.Preprocessor(FEATURES).fit_write(table(), url, block_rows=BLOCK_ROWS, progress=False)
    Folder.open(f"memory://{tmp_path.name}").remove_all()


def epoch(dataset: dp.Dataset, folder: Path) -> list[list[float]]:
    batches = list(dataset["train"].loader(8, shuffle=False, cache=True, cache_dir=folder))
    return np.concatenate([batch["vector"].numpy() for batch in batches]).tolist()


def linked(path: Path, decoy: Path) -> None:
    path.unlink()
    path.symlink_to(decoy)


def piped(path: Path, decoy: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def vanished(path: Path, decoy: Path) -> None:
    path.unlink()
    path.mkdir()


COPIES: dict[str, Callable[[Path, Path], object]] = {
    "other content": lambda path, decoy: path.write_bytes(bytes(path.stat().st_size)),
    "one byte": lambda path, decoy: path.write_bytes(path.read_bytes()[:-9] + b"!" + path.read_bytes()[-8:]),
    "cut": lambda path, decoy: path.write_bytes(path.read_bytes()[:-3]),
    "nothing": lambda path, decoy: path.write_bytes(b""),
    "longer": lambda path, decoy: path.write_bytes(path.read_bytes() * 2),
    "a hole of 64 GB": lambda path, decoy: os.truncate(path, 1 << 36),
    "a link": linked,
    "a pipe": piped,
    "a folder": vanished,
}


@pytest.mark.parametrize("attack", COPIES)
@pytest.mark.timeout(60)
def test_altered_copy_does_not_change_rows(distant: dp.Dataset, tmp_path: Path, attack: str) -> None:
    folder, decoy = tmp_path / "copies", tmp_path / "decoy"
    expected = epoch(distant, folder)
    file = next(path for path in sorted(folder.rglob("c.*")) if path.is_file() and len(list(path.parent.iterdir())) > 2)
    decoy.write_bytes(file.read_bytes()[::-1])
    before = decoy.read_bytes(), decoy.stat().st_mtime_ns
    COPIES[attack](file, decoy)
    tracemalloc.start()
    try:
        assert epoch(distant, folder) == expected
    except DaskprepError as error:
        assert file.name in str(error)  # noqa: PT017
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MOST_BYTES
    assert (decoy.read_bytes(), decoy.stat().st_mtime_ns) == before


def test_link_in_place_of_a_copies_folder_is_not_followed(distant: dp.Dataset, tmp_path: Path) -> None:
    folder, decoy = tmp_path / "copies", tmp_path / "decoy"
    expected = epoch(distant, folder)
    inner = next(path for path in sorted(folder.rglob("c.*")) if path.is_file()).parent
    inner.rename(decoy)
    inner.symlink_to(decoy)
    before = {path.name: path.stat().st_mtime_ns for path in decoy.iterdir()}
    try:
        assert epoch(distant, folder) == expected
    except DaskprepError as error:
        assert "link" in str(error)  # noqa: PT017
    assert {path.name: path.stat().st_mtime_ns for path in decoy.iterdir()} == before


# -- folds


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("folded") / "a.dp"
    dp.Preprocessor({"price": "number"}, split=dp.KFold(2)).fit_write(table(), path, block_rows=4, progress=False)
    return path


def fold_readings(path: Path) -> dict[str, Callable[[], object]]:
    return {
        "open": lambda: repr(dp.open_dataset(path)),
        "fold": lambda: dp.open_dataset(path).fold(0)["train"].read(),  # noqa: PLW0108
        "all": lambda: [one["train"].read() for one in dp.open_dataset(path)],
        "verify": lambda: dp.open_dataset(path).verify(),
        "repair": lambda: dp.repair(path, table()),
        "clear_cache": lambda: dp.open_dataset(path).clear_cache(),
    }


NAMES = ["..", ".", "", "../decoy", "a/../../decoy", "/decoy", "a/b", "a\\b", "a\0b", "x" * 300, None, 7]


@pytest.mark.parametrize("version", NAMES)
def test_fold_version_outside_the_dataset_raises(folded: Path, tmp_path: Path, version: Any) -> None:
    hostile = copied(folded, tmp_path / "a.dp")
    (tmp_path / "decoy").mkdir()
    (tmp_path / "decoy" / "kept").write_bytes(b"")
    fold = Hostile(hostile.folder / "fold-0")
    fold.manifest["version"] = version
    fold.seal()
    name = "fold-0/manifest.json"
    hostile.manifest["files"][name] = FileEntry.from_data(name, (hostile.folder / name).read_bytes()).to_list()
    hostile.seal()
    found = outcomes(fold_readings(tmp_path / "a.dp"))
    assert (found["fold"], found["all"]) == ("CorruptDatasetError",) * 2
    assert (tmp_path / "decoy" / "kept").exists()


@pytest.mark.parametrize("name", ["../decoy/kept", "fold-0/../../../decoy/kept", "/decoy/kept", "fold-0//kept", ""])
def test_fold_file_name_outside_the_dataset_raises(folded: Path, tmp_path: Path, name: str) -> None:
    hostile = copied(folded, tmp_path / "a.dp")
    (tmp_path / "decoy").mkdir()
    (tmp_path / "decoy" / "kept").write_bytes(b"")
    hostile.manifest["files"][name] = [0, 0]
    hostile.seal()
    found = outcomes(fold_readings(tmp_path / "a.dp"))
    assert (found["open"], found["fold"], found["verify"]) == ("CorruptDatasetError",) * 3
    assert (tmp_path / "decoy" / "kept").exists()


@pytest.mark.parametrize("what", ["fold-0", "fold-0/manifest.json", "fold-0/VERSION", "fold-0/VERSION/train"])
def test_link_inside_a_fold_is_not_followed(folded: Path, tmp_path: Path, what: str) -> None:
    hostile, decoy = copied(folded, tmp_path / "a.dp"), tmp_path / "decoy"
    version = Hostile(hostile.folder / "fold-0").manifest["version"]
    place = hostile.folder / what.replace("VERSION", version)
    place.rename(decoy)
    place.symlink_to(decoy)
    held = {path: path.stat().st_mtime_ns for path in [decoy, *decoy.rglob("*")]}
    found = outcomes(fold_readings(tmp_path / "a.dp"))
    assert {found["fold"], found["all"]} == {"CorruptDatasetError"}
    assert {path: path.stat().st_mtime_ns for path in [decoy, *decoy.rglob("*")]} == held


@pytest.mark.parametrize("folds", [-1, 10**9, 10**400, True, "2", [2], 3])
def test_invalid_number_of_folds_raises(folded: Path, tmp_path: Path, folds: Any) -> None:
    hostile = copied(folded, tmp_path / "a.dp")
    hostile.manifest["settings"]["folds"] = folds
    hostile.seal()
    found = outcomes(fold_readings(tmp_path / "a.dp"))
    assert found["all"] in {"CorruptDatasetError", "ConfigError", "done"}
    with pytest.raises((CorruptDatasetError, ConfigError)):
        dp.open_dataset(tmp_path / "a.dp").fold(2)
