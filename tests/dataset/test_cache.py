"""Caches of decoded media: complete blocks, keyed by everything that they depend on."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import zarr
from distributed import Client

import daskprep as dp
from daskprep.columns.deferred.reader import MediaReader
from daskprep.dataset import Dataset
from daskprep.errors import ConfigError, MediaError
from daskprep.extensions.media.pixels import encode_png
from daskprep.storage import Folder

ROWS = 100


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("photos")
    paths = [folder / f"{number}.png" for number in range(ROWS)]
    for path in paths:
        path.write_bytes(encode_png(rng.integers(0, 256, (9, 7, 3)).astype(np.uint8)))
    return [str(path) for path in paths]


def write(path: Path, photos: list[str], **options) -> Dataset:
    feature = dp.Image(**{"height": 6, "width": 5, "num_channels": 3, "mode": "lazy_cached"} | options)
    prep = dp.Preprocessor({"photo": feature}, split=dp.RandomSplit((0.6, 0.2, 0.2)))
    return prep.fit_write(pd.DataFrame({"photo": photos}), path, block_rows=8)


@pytest.fixture
def dataset(photos: list[str], tmp_path: Path) -> Dataset:
    return write(tmp_path / "photos.dp", photos)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def cache_of(dataset: Dataset) -> Path:
    return Path(dataset.url) / "cache"


def test_block_is_present_after_write(dataset):
    cache, train = dataset["train"].cache("photo"), dataset["train"]
    rows = train.read("photo")["photo"]
    last = cache.blocks - 1
    assert cache.read(last) is None
    assert not cache.has(last)
    assert cache.write(last, rows[last * 8 :])
    np.testing.assert_array_equal(cache.read(last), rows[last * 8 :])
    np.testing.assert_array_equal(cache.read(last, np.empty((8, 3, 6, 5), np.uint8)), rows[last * 8 :])
    assert cache.has(last)
    assert cache.present() == [last]


def test_zarr_reads_cache(dataset):
    dataset.cache_media()
    for split in dataset.splits.values():
        found = zarr.open_group(split.cache("photo").folder.path, mode="r")["photo"]
        np.testing.assert_array_equal(found[:], split.read("photo")["photo"])


def test_cache_media_of_all_splits_keeps_present_blocks(dataset, monkeypatch):
    dataset.cache_media(splits="test")
    assert dataset["test"].cache("photo").complete
    assert not dataset["train"].cache("photo").present()
    dataset.cache_media()
    assert all(split.cache("photo").complete for split in dataset.splits.values())
    monkeypatch.setattr(MediaReader, "read", None)
    dataset.cache_media()
    for split in dataset.splits.values():
        assert split.loader(8).stats()["decoded"] == 0


def test_cache_is_not_part_of_dataset(dataset):
    dataset.cache_media()
    dataset.verify()
    dataset.clear_cache()
    assert not cache_of(dataset).exists()
    dataset.verify()


def test_clear_cache_ignores_other_cache_dir(dataset, tmp_path):
    dataset.cache_media(cache_dir=tmp_path / "elsewhere", columns="photo")
    dataset.clear_cache()
    assert dataset["train"].cache("photo", Folder.open(tmp_path / "elsewhere")).complete
    assert not cache_of(dataset).exists()


@pytest.mark.slow
@pytest.mark.cluster
def test_cluster_writes_same_cache(dataset, tmp_path, cluster: Client):
    with_threads = tmp_path / "threads"
    dataset.cache_media(cache_dir=with_threads)
    dataset.cache_media(cluster)
    assert files(cache_of(dataset)) == files(with_threads)
    with pytest.raises(ConfigError, match="memory://"):
        dataset.cache_media(cluster, cache_dir="memory://cached")


def test_settings_and_splits_have_separate_caches(photos, tmp_path):
    larger = write(tmp_path / "larger.dp", photos, width=6)
    other = write(tmp_path / "other.dp", photos, resize_method="crop_or_pad")
    same = write(tmp_path / "same.dp", photos)
    again = write(tmp_path / "again.dp", photos)
    names = [[split.cache("photo").name for split in one.splits.values()] for one in (larger, other, same)]
    assert len({name for one in names for name in one}) == 9
    assert [split.cache("photo").name for split in again.splits.values()] == names[2]


def test_fill_values_are_not_cached(photos, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no image")
    dataset = write(tmp_path / "f.dp", [*photos, str(tmp_path / "broken.png")], on_error="fill")
    dataset.cache_media()
    caches = [split.cache("photo") for split in dataset.splits.values()]
    assert sum(cache.blocks - len(cache.present()) for cache in caches) == 1


def test_undecodable_file_error_names_row(photos, tmp_path):
    (tmp_path / "broken.png").write_bytes(Path(photos[0]).read_bytes())
    dataset = write(tmp_path / "f.dp", [*photos, str(tmp_path / "broken.png")])
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(MediaError, match=f'column "photo", row {ROWS}: .*broken.png'):
        dataset.cache_media()


def test_cache_limit_removes_only_chunks_of_other_datasets(dataset, photos, tmp_path):
    folder = tmp_path / "shared"
    # Files of other programs are neither counted nor removed.
    theirs = folder / "array.zarr" / "photo" / "c.0.0.0.0"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(bytes(100_000))
    dataset.cache_media(cache_dir=folder)
    before = files(folder)
    limit = sum(map(len, before.values())) - 100_000 + 3_000
    other = write(tmp_path / "other.dp", photos, width=6)
    other.cache_media(splits="test", cache_dir=folder, cache_limit=limit)
    after = files(folder)
    assert other["test"].cache("photo", Folder.open(folder)).complete
    assert 0 < sum(name in after for name in before) < len(before)
    assert theirs.exists()
    assert sum(map(len, after.values())) - 100_000 <= limit


def test_cache_limit_keeps_chunks_of_same_dataset(dataset, tmp_path):
    folder, train = Folder.open(tmp_path / "shared"), dataset["train"]
    rows = train.read("photo")["photo"]
    cache, test = (dataset[name].cache("photo", folder, 5_000) for name in ("train", "test"))
    written = [block for block in range(cache.blocks - 1) if cache.write(block, rows[block * 8 : block * 8 + 8])]
    assert 0 < len(written) < cache.blocks - 1
    assert not test.write(0, rows[:8])
    assert cache.present() == written
    assert sum(folder.sizes().values()) <= 5_000


def test_cache_media_of_eager_output_raises(dataset, photos, tmp_path):
    with pytest.raises(ConfigError, match='Did you mean "photo"'):
        dataset.cache_media(columns=["photos"])
    eager = write(tmp_path / "eager.dp", photos, mode="eager")
    eager.cache_media()
    assert not cache_of(eager).exists()
    with pytest.raises(ConfigError, match="Those are: none"):
        eager.cache_media(columns="photo")


def pixels_of(level: int, folder: Path, count: int = 6) -> pd.DataFrame:
    folder.mkdir()
    for row in range(count):
        (folder / f"{row}.png").write_bytes(encode_png(np.full((4, 4), level + row, np.uint8)))
    return pd.DataFrame({"x": [f"{row}.png" for row in range(count)]})


def test_datasets_of_same_version_have_separate_caches(tmp_path):
    found = []
    for level in (0, 100):
        frame = pixels_of(level, tmp_path / f"{level}")
        frame["x"] = [str(tmp_path / f"{level}" / name) for name in frame["x"]]
        image = dp.Image(height=4, width=4, num_channels=1, mode="lazy_cached")
        dataset = dp.Preprocessor({"x": image}).fit_write(frame, tmp_path / f"{level}.dp", version="2024")
        loader = dataset["train"].loader(6, shuffle=False, expand=False, cache_dir=tmp_path / "caches")
        for _ in range(2):
            [batch] = loader
            found.append(batch["x"][:, 0, 0, 0].tolist())
    assert found == [list(range(6))] * 2 + [list(range(100, 106))] * 2


def test_base_dirs_have_separate_caches(tmp_path):
    frame, _ = pixels_of(0, tmp_path / "a"), pixels_of(100, tmp_path / "b")
    image = dp.Image(height=4, width=4, num_channels=1, mode="lazy_cached", base_dir=str(tmp_path / "a"))
    dp.Preprocessor({"x": image}).fit_write(frame, tmp_path / "c.dp")
    for base, level in ((None, 0), (tmp_path / "b", 100)):
        train = dp.open_dataset(tmp_path / "c.dp", base_dir=base, trusted=True)["train"]
        [batch] = train.loader(6, shuffle=False, expand=False)
        assert batch["x"][:, 0, 0, 0].tolist() == list(range(level, level + 6))


def test_chunk_removed_while_reading_is_missing(dataset, monkeypatch):
    cache = dataset["train"].cache("photo")
    monkeypatch.setattr(type(cache.folder), "size", lambda folder, name: 7)
    assert cache.read(0) is None


def test_cache_media_accepts_iterator_of_columns(dataset):
    dataset.cache_media(columns=iter(["photo"]))
    assert all(split.cache("photo").complete for split in dataset.splits.values())


@pytest.mark.parametrize("limit", [None, 10**9])
def test_cache_is_cleared_during_writes(dataset, limit):
    train = dataset["train"]
    cache = dataclasses.replace(train.cache("photo"), limit=limit)
    rows, stop = train.read("photo")["photo"][:8], threading.Event()

    def clear() -> int:
        cleared = 0
        while not stop.wait(0.005):
            dataset.clear_cache()
            cleared += 1
        return cleared

    with ThreadPoolExecutor(1) as pool:
        clearing = pool.submit(clear)
        try:
            assert all(cache.write(0, rows) for _ in range(300))
        finally:
            stop.set()
    assert clearing.result()
    assert cache.write(0, rows)
    np.testing.assert_array_equal(cache.read(0), rows)


def test_block_written_during_clear_cache_is_kept(dataset, monkeypatch):
    train = dataset["train"]
    cache, rows, children = train.cache("photo"), train.read("photo")["photo"][:8], Folder.children

    def children_before_a_write(folder: Folder) -> list[str]:
        found = children(folder)
        if folder.url == cache.parent.url:
            assert cache.write(0, rows)
        return found

    monkeypatch.setattr(Folder, "children", children_before_a_write)
    dataset.clear_cache()
    assert cache.has(0)


@pytest.mark.parametrize("limit", [None, 10**9])
def test_write_blocks_concurrent_clear_cache(dataset, limit, monkeypatch):
    train = dataset["train"]
    cache = dataclasses.replace(train.cache("photo"), limit=limit)
    rows, clearing = train.read("photo")["photo"][:8], []
    write, flock, settled = Folder.write, fcntl.flock, threading.Event()

    def clear() -> None:
        dataset.clear_cache()
        settled.set()

    def lock(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX:  # now it waits
            settled.set()
        flock(descriptor, operation)

    def write_without_luck(folder: Folder, name: str, *buffers, **options) -> int:
        # Another thread clears the cache before every write of a chunk.
        if name.startswith("photo/c."):
            settled.clear()
            clearing.append(threading.Thread(target=clear))
            clearing[-1].start()
            assert settled.wait(60)
        return write(folder, name, *buffers, **options)

    monkeypatch.setattr("portalocker.portalocker.LOCKER", lock)
    monkeypatch.setattr(Folder, "write", write_without_luck)
    assert cache.write(0, rows)
    for one in clearing:
        one.join()
    assert len(clearing) <= 2


def test_epoch_redecodes_after_clear_cache(dataset):
    dataset.cache_media()
    train = dataset["train"]
    expected = {row: value.copy() for row, value in zip(*train.read(["row_id", "photo"]).values(), strict=True)}
    loader = train.loader(4, row_ids=True, expand=False, prefetch_size=1, prefetch_bytes=1)
    found = []
    for batch in loader:
        dataset.clear_cache()
        found += zip(batch["row_id"].tolist(), batch["photo"].numpy().copy(), strict=True)
    assert len(found) == len(train)
    for row, value in found:
        np.testing.assert_array_equal(value, expected[row])


def two_columns(path: Path, photos: list[str], **options) -> Dataset:
    features = {"photo": dp.Image(height=6, width=5, num_channels=3), "x": dp.Number(**options)}
    frame = pd.DataFrame({"photo": photos, "x": np.arange(ROWS)})
    return dp.Preprocessor(features).fit_write(frame, path, block_rows=8, overwrite=True)


def test_cache_survives_unrelated_changes(photos, tmp_path, monkeypatch):
    two_columns(tmp_path / "a.dp", photos).cache_media()
    read = MediaReader.read
    monkeypatch.setattr(MediaReader, "read", None)
    for options in ({}, {"normalization": "zscore"}):
        assert two_columns(tmp_path / "a.dp", photos, **options)["train"].cache("photo").complete
    monkeypatch.setattr(MediaReader, "read", read)
    other = two_columns(tmp_path / "a.dp", photos[::-1])
    assert not other["train"].cache("photo").present()


def test_overwrite_removes_unused_cache(photos, tmp_path):
    two_columns(tmp_path / "a.dp", photos).cache_media()
    dataset = two_columns(tmp_path / "a.dp", photos[:50] * 2)
    assert not files(tmp_path / "a.dp" / "cache")
    dataset.cache_media(splits="train")
    dataset.clear_cache(unused=True)
    assert dataset["train"].cache("photo").complete


def test_changed_files_invalidate_only_their_blocks(tmp_path):
    paths = [str(tmp_path / f"{row}.png") for row in range(40)]
    for path in paths:
        Path(path).write_bytes(encode_png(np.zeros((6, 5, 3), np.uint8)))
    split = dp.FixedSplit("part")
    frame = pd.DataFrame({"photo": paths, "part": ["train"] * 40})
    feature = dp.Image(height=6, width=5, num_channels=3)
    dp.Preprocessor({"photo": feature}, split=split).fit_write(frame, tmp_path / "a.dp", block_rows=8).cache_media()
    Path(paths[17]).write_bytes(encode_png(np.full((6, 5, 3), 9, np.uint8)))
    Path(paths[39]).unlink()
    dataset = dp.open_dataset(tmp_path / "a.dp", trusted=True)
    with pytest.warns(UserWarning, match='files of 1 of 5 blocks of "photo" are missing: their cached rows are used'):
        assert dataset["train"].cache("photo").present() == [0, 1, 3, 4]
    Path(paths[39]).write_bytes(Path(paths[0]).read_bytes())
    dataset = dp.open_dataset(tmp_path / "a.dp", trusted=True)
    dataset.cache_media()
    assert dataset["train"].cache("photo").read(2)[1].max() == 9
    assert dp.open_dataset(tmp_path / "a.dp", trusted=True)["train"].cache("photo").complete


@pytest.mark.parametrize("gone", [slice(None), slice(3, 4)])
def test_complete_cache_needs_no_files(tmp_path, gone):
    paths = [tmp_path / "photos" / f"{row}.png" for row in range(40)]
    paths[0].parent.mkdir()
    for row, path in enumerate(paths):
        path.write_bytes(encode_png(np.full((6, 5, 3), row, np.uint8)))
    feature = dp.Image(height=6, width=5, num_channels=3, mode="lazy_cached")
    prep = dp.Preprocessor({"photo": feature})
    dataset = prep.fit_write(pd.DataFrame({"photo": list(map(str, paths))}), tmp_path / "a.dp", block_rows=8)

    def epochs():
        dataset = dp.open_dataset(tmp_path / "a.dp", trusted=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader = dataset["train"].loader(8, shuffle=False, expand=False)
            found = [[batch["photo"][:, 0, 0, 0].tolist() for batch in loader] for _ in range(2)]
        return found[0], found[1], [str(one.message) for one in caught]

    dataset.cache_media()
    for path in paths[gone]:
        path.unlink()
    paths[-1].parent.mkdir(exist_ok=True)
    expected = np.arange(40).reshape(5, 8).tolist()
    blocks = len(paths[gone]) // 8 or 1
    message = f'files of {blocks} of 5 blocks of "photo" are missing: their cached rows are used'
    assert epochs() == (expected, expected, [message])
    assert epochs() == (expected, expected, [])
    dataset.clear_cache()
    with pytest.raises(MediaError, match="no such file"):
        epochs()


@pytest.mark.parametrize(("call", "number"), [
    ("os.posix_fallocate", errno.ENOSPC), ("os.pwrite", errno.EDQUOT), ("os.link", errno.ENOSPC),
    ("os.write", errno.ENOSPC), ("os.write", errno.EDQUOT),
])  # fmt: skip
@pytest.mark.parametrize("limit", [None, 10**9])
def test_epoch_continues_if_cache_disk_is_full(photos, tmp_path, monkeypatch, call, number, limit):
    train = write(tmp_path / "a.dp", photos, height=40, width=50)["train"]
    expected = train.read(["row_id", "photo"])
    loader = train.loader(4, row_ids=True, expand=False, cache_limit=limit)
    called = []

    def full(*args, **options):
        called.append(args)
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        patch.setattr(call, full)
        for _ in range(2):
            found = {}
            for batch in loader:
                found |= zip(batch["row_id"].tolist(), batch["photo"].numpy().copy(), strict=True)
            np.testing.assert_array_equal([found[row] for row in expected["row_id"].tolist()], expected["photo"])
            assert len(found) == len(train)
    assert len(caught) == bool(called)
    assert all("set cache_limit, or a cache_dir with more space" in str(one.message) for one in caught)
    list(loader)
    assert train.cache("photo").complete


@pytest.mark.parametrize("place", ["/user-", "/files"])
def test_cache_removed_concurrently_is_recreated(dataset, monkeypatch, place):
    dataset.cache_media()
    train, removed, write = dataset["train"], [], Folder.write

    def removing(folder, name, *data, **options):
        if place in name and not removed:
            removed.append(dataset.clear_cache())
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return write(folder, name, *data, **options)

    cache = train.cache("photo")
    cache.folder.write("photo/files", b"other than before")
    monkeypatch.setattr(Folder, "write", removing)
    loader = train.loader(4, cache_limit=10**9)
    assert sum(len(batch["photo"]) for batch in loader) == len(train)
    assert removed


def test_cache_of_packed_media_is_keyed_by_table_checksums(photos, tmp_path, monkeypatch, sizes):
    sizes(table_row_bytes=100)
    dataset = write(tmp_path / "a.dp", photos, pack=True)
    monkeypatch.setattr("daskprep.dataset.split.digest_content", None)
    names = [split.cache("photo").name for split in dataset.splits.values()]
    again = write(tmp_path / "b.dp", photos, pack=True)
    assert [split.cache("photo").name for split in again.splits.values()] == names
    assert len(set(names)) == 3


@pytest.mark.parametrize("trusted", [False, True])
def test_packed_media_error_names_dataset(tmp_path, trusted):
    path = tmp_path / "cut.png"
    path.write_bytes(encode_png(np.zeros((60, 50, 3), np.uint8))[:-40])
    write(tmp_path / "a.dp", [str(path)] * 5, pack=True)
    train = dp.open_dataset(tmp_path / "a.dp", trusted=trusted)["train"]
    message = rf'column "photo", row \d: bytes stored in {tmp_path}/a.dp: it is broken or cut short'
    for read in (lambda: list(train.loader(2)), lambda: train.read("photo")):
        with pytest.raises(MediaError, match=message):
            read()


def test_url_has_no_local_path_for_a_file_stamp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("s3:").mkdir()
    Path("s3:/0.png").write_bytes(b"png")
    assert Path(MediaReader().local_path("s3:/0.png")).read_bytes() == b"png"
    assert MediaReader().local_path("s3://0.png") is None
