"""Shards have the rows of chunks in fewer files, and are read in parts from a store."""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray
import zarr

import daskprep as dp
from daskprep.dataset import Dataset
from daskprep.errors import ConfigError, CorruptDatasetError
from daskprep.storage import Folder, Manifest, reading
from daskprep.storage.checksum import crc32c
from tests.conftest import WatchedMemory
from tests.sizes import Sizes

ROWS, BLOCK_ROWS = 1_000, 64


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    words = np.array(["alpha", "beta", "gamma"])
    return pd.DataFrame(
        {
            "price": rng.normal(size=ROWS),
            "size": rng.normal(size=ROWS),
            "review": [" ".join(rng.choice(words, rng.integers(0, 5))) for _ in range(ROWS)],
            "vector": [" ".join(map(str, row)) for row in rng.integers(0, 99, (ROWS, 30))],
        }
    )


@pytest.fixture
def small_parts(sizes: Sizes) -> None:
    """Five blocks per part."""
    sizes(part_bytes=5 * BLOCK_ROWS * 170)


def write(table: pd.DataFrame, path: Any, **options: Any) -> Dataset:
    features = {"price": "number", "size": "number", "review": "text", "vector": "vector"}
    prep = dp.Preprocessor(features, split=dp.RandomSplit())
    return prep.fit_write(table, path, **{"version": "1", "block_rows": BLOCK_ROWS, **options})


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("compression", ["lz4", "none"])
def test_shards_equal_chunks(table: pd.DataFrame, tmp_path: Path, compression: Any) -> None:
    chunks = write(table, tmp_path / "chunks.dp", compression=compression)
    shards = write(table, tmp_path / "shards.dp", compression=compression, shards=True)
    shards.verify()
    assert shards.layout.parts("train") > 1
    for name, split in shards.splits.items():
        expected, lazy = chunks[name].read(), split.to_dask()
        group = zarr.open(tmp_path / "shards.dp" / shards.version / name / "arrays.zarr", mode="r")
        opened = xarray.open_zarr(tmp_path / "shards.dp" / shards.version / name / "arrays.zarr")
        for output, array in split.read().items():
            np.testing.assert_array_equal(array, expected[output])
            np.testing.assert_array_equal(lazy[output].compute(), expected[output])
            if array.ndim > 1:
                np.testing.assert_array_equal(group[output][:], expected[output])
                np.testing.assert_array_equal(opened[output].to_numpy(), expected[output])
        np.testing.assert_array_equal(split[[7, 3]]["vector"], expected["vector"][[7, 3]])
        for one, other in zip(split.loader(32), chunks[name].loader(32), strict=True):
            for output in expected:
                np.testing.assert_array_equal(one[output], other[output])


@pytest.mark.usefixtures("small_parts")
def test_shard_is_one_file_per_array_and_part(table: pd.DataFrame, tmp_path: Path) -> None:
    shards = write(table, tmp_path / "a.dp", shards=True)
    kinds = Counter(name.split("/")[-2] for name in shards.manifest.files if name.startswith("train/"))
    parts = shards.layout.parts("train")
    assert shards.layout.blocks("train") > 2 * parts
    assert (kinds["table"], kinds["vector"], kinds["review"]) == (parts, parts + 1, parts + 1)  # and zarr.json


def test_default_is_shards_in_stores_and_chunks_on_disk(table: pd.DataFrame, tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}"
    chosen = [write(table, path).layout.sharded for path in (tmp_path / "a.dp", f"{url}/a.dp")]
    requested = [write(table, f"{url}/b.dp", shards=False), write(table, tmp_path / "b.dp", shards=True)]
    assert (chosen, [one.layout.sharded for one in requested]) == ([False, True], [False, True])
    body = [json.loads(one.root.read("manifest.json"))["manifest"] for one in requested]
    assert [one["format"] for one in body] == [1, 2]
    assert [one["settings"].get("shards") for one in body] == [None, True]
    assert "sharded" not in body[0]["layout"]
    Folder.open(url).remove_all()
    with pytest.raises(ConfigError, match="shards=1"):
        write(table, tmp_path / "c.dp", shards=1)


@pytest.mark.usefixtures("small_parts")
def test_damaged_shards_are_detected_and_repaired(table: pd.DataFrame, tmp_path: Path) -> None:
    shards = write(table, tmp_path / "a.dp", shards=True)
    name = "train/arrays.zarr/vector/c.1.0"
    file = tmp_path / "a.dp" / shards.version / name
    data = file.read_bytes()
    for altered in (data[:-1], data[:9] + b"?" + data[10:], data[:-30] + b"?" + data[-29:], b""):
        file.write_bytes(altered)
        assert [Path(one.file).name for one in shards.damaged()] == ["c.1.0"]
        assert dp.repair(tmp_path / "a.dp", table).damaged() == []
        assert file.read_bytes() == data
    file.unlink()
    with pytest.raises(CorruptDatasetError, match=r"vector/c\.1\.0 is missing"):
        shards["train"].read("vector")


@pytest.mark.usefixtures("small_parts")
def test_blocks_are_read_from_store_by_byte_ranges(
    table: pd.DataFrame, tmp_path: Path, memory: type[WatchedMemory], sizes: Sizes
) -> None:
    sizes(request_bytes=200)
    url = f"memory://{tmp_path.name}"
    train = write(table, f"{url}/a.dp", compression="none")["train"]
    requested = Counter[str]()

    def answer(path: str, data: bytes) -> bytes:
        requested[path.rpartition(f"{train.dataset.version}/")[2]] += len(data)
        return data

    memory.answer = staticmethod(answer)
    expected = train.read(["price", "vector"])
    for number in range(train.layout.blocks("train")):
        block = reading.read_block(train.block_reader("vector"), train.block("vector", number))
        rows = train.layout.block_range("train", number)
        np.testing.assert_array_equal(block, expected["vector"][rows.start : rows.stop])
    entries = train.dataset.manifest.files
    for name, count in requested.items():
        # Vectors are read twice, the index of a shard once, and the footer and one of three columns of tables.
        assert count <= (2 if "vector" in name else 0.9) * entries[name].bytes, name
    assert sum("vector" in name for name in requested) == train.layout.parts("train")
    Folder.open(url).remove_all()


@pytest.mark.usefixtures("small_parts")
def test_threads_read_shard_index_once(table: pd.DataFrame, tmp_path: Path, memory: type[WatchedMemory]) -> None:
    url = f"memory://{tmp_path.name}"
    train = write(table, f"{url}/a.dp")["train"]

    def answer(path: str, data: bytes) -> bytes:
        time.sleep(0.05)
        return data

    memory.answer = staticmethod(answer)
    memory.requests.clear()
    reader, block = train.block_reader("vector"), train.block("vector", 0)
    with ThreadPoolExecutor(8) as pool:
        spans = list(pool.map(lambda _: reading.chunk_span(reader.folder, block), range(8)))
    assert [path.endswith(block.file) for path in memory.requests] == [True]
    assert len(set(spans)) == 1
    assert not reading.index_locks
    Folder.open(url).remove_all()


class Slowly(int):
    """A number that yields to other threads while it is added."""

    def __radd__(self, other: int) -> int:
        time.sleep(0.01)
        return other + int(self)


def test_bounded_cache_size_is_thread_safe() -> None:
    kept = reading.BoundedCache(8)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: kept.put(number, number, Slowly(1)), range(8)))
    assert [kept.get(number) for number in range(8)] == list(range(8))
    kept.put("one more", None, 1)
    assert [kept.get(number) for number in range(8)] == [None] * 8


def altered(manifest: bytes, **changes: Any) -> bytes:
    body = {**json.loads(manifest)["manifest"], **changes}
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return b'{"checksum":"%08x","manifest":%s}\n' % (crc32c(text), text)


def test_inconsistent_shard_manifest_raises(table: pd.DataFrame, tmp_path: Path) -> None:
    text = write(table, tmp_path / "a.dp", shards=True).root.read("manifest.json")
    body = json.loads(text)["manifest"]
    name = "train/arrays.zarr/vector/c.0.0"
    nbytes, checksum, rows, _ = body["files"][name]

    def files(*entry: int) -> dict[str, Any]:
        return {"files": {**body["files"], name: list(entry)}}

    for changes in (
        {"format": 1},
        {"layout": {**body["layout"], "sharded": False}},
        {"layout": {**body["layout"], "sharded": 1}},
        files(nbytes, checksum, rows, 257),
        files(300, checksum, rows, 15),
        files(nbytes, checksum, rows, -1),
        {"files": {**body["files"], "metadata.json": [1, 2, 3, 4]}},
    ):
        with pytest.raises(CorruptDatasetError, match="here is damaged"):
            Manifest.from_bytes(altered(text, **changes), "here")
    assert Manifest.from_bytes(altered(text), "here").to_bytes() == text
