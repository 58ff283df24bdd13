"""Media are decoded ahead and cached by block; batches do not depend on how."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader

import daskprep as dp
from daskprep.columns.deferred.reader import MediaReader
from daskprep.dataset import Dataset, Split
from daskprep.dataset.loader.augment import RandomCrop
from daskprep.dataset.loader.cached import CachedBlocks, CachedMedia, CachePolicy
from daskprep.dataset.loader.groups import Buffers, group_outputs
from daskprep.dataset.loader.media import Medium, StoredMedia
from daskprep.dataset.loader.order import EpochBlocks, Schedule
from daskprep.dataset.loader.source import FileBlocks, LoaderTimes, Need, SlotPool
from daskprep.errors import ConfigError, MediaError
from daskprep.extensions.media.audio import encode_wav
from daskprep.extensions.media.decoders import AudioDecoder, ImageDecoder
from daskprep.extensions.media.pixels import encode_png
from daskprep.storage import Folder
from tests.sizes import Sizes

ROWS = 400
BLOCK_ROWS = 8


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Paths of images that are all different."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("photos")
    paths = [folder / f"{number}.png" for number in range(ROWS)]
    for path in paths:
        path.write_bytes(encode_png(rng.integers(0, 256, (9, 7, 3)).astype(np.uint8)))
    return [str(path) for path in paths]


def write(path: Path, photos: list, *, split=None, **options) -> Dataset:
    features = {"photo": dp.Image(height=6, width=5, num_channels=3, **options), "x": dp.Number()}
    table = pd.DataFrame({"photo": photos, "x": np.arange(len(photos)) * 1.0})
    return dp.Preprocessor(features, split=split).fit_write(table, path, block_rows=BLOCK_ROWS)


@pytest.fixture(scope="module")
def written(photos: list[str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a dataset with a cache, which tests copy."""
    return write(tmp_path_factory.mktemp("written") / "cached.dp", photos, mode="lazy_cached").url


@pytest.fixture(params=["rows", "blocks"])
def train(written: str, tmp_path: Path, sizes: Sizes, request: pytest.FixtureRequest) -> Split:
    """A split with an empty cache of single rows, as for large rows, or of blocks."""
    if request.param == "rows":
        sizes(cached_row_bytes=1)
    shutil.copytree(written, tmp_path / "cached.dp")
    return dp.open_dataset(tmp_path / "cached.dp", trusted=True)["train"]


@pytest.fixture(scope="module")
def lazy(photos: list[str], tmp_path_factory: pytest.TempPathFactory) -> Split:
    return write(tmp_path_factory.mktemp("lazy") / "lazy.dp", photos)["train"]


def by_row(split: Split, column: str = "photo") -> dict[int, np.ndarray]:
    rows = split.read(["row_id", column])
    return dict(zip(rows["row_id"].tolist(), rows[column], strict=True))


def given(batches, column="photo") -> list[tuple[int, np.ndarray]]:
    return [
        one for batch in batches for one in zip(batch["row_id"].tolist(), batch[column].numpy().copy(), strict=True)
    ]


def check(rows: list[tuple[int, np.ndarray]], expected: dict[int, np.ndarray], count: int | None = None) -> None:
    assert len(rows) == len({row for row, _ in rows}) == (len(expected) if count is None else count)
    for row, value in rows:
        np.testing.assert_array_equal(value, expected[row])


def chunks(split: Split, folder: Path | None = None) -> dict[str, bytes]:
    root = Path(split.dataset.url) / "cache" if folder is None else folder
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("c.*")}


OPTIONS = [
    {},
    {"prefetch_size": 0},
    {"prefetch_size": 3, "threads": 7},
    {"prefetch_bytes": 1, "threads": 1},
    {"shuffle": False},
    {"drop_last": True, "streams": 4},
    {"cache": False},
]


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
def test_decoded_rows_do_not_depend_on_options(train, options):
    loader = train.loader(48, row_ids=True, expand=False, **options)
    expected = by_row(train)
    count = ROWS // 48 * 48 if loader.drop_last else ROWS
    for _ in range(2):
        check(given(loader), expected, count)
        loader.audit()
    decoded = loader.stats()["decoded"]
    assert decoded == (ROWS if options == {"cache": False} else 0)
    assert train.cache("photo").complete == (options != {"cache": False})


def test_lazy_rows_are_cached_with_cache_true(lazy, tmp_path):
    for options in ({}, {"cache": True, "cache_dir": tmp_path}):
        loader = lazy.loader(48, row_ids=True, expand=False, **options)
        for _ in range(2):
            check(given(loader), by_row(lazy))
        assert loader.stats()["decoded"] == (0 if options else ROWS)
    assert len(chunks(lazy, tmp_path)) == ROWS // BLOCK_ROWS
    assert not chunks(lazy)


def test_packed_files_are_decoded_without_sources(photos, tmp_path):
    copies = [str(tmp_path / f"{number}.png") for number in range(60)]
    for source, copy in zip(photos, copies, strict=False):
        Path(copy).write_bytes(Path(source).read_bytes())
    split = write(tmp_path / "packed.dp", copies, pack=True)["train"]
    expected = by_row(split)
    for copy in copies:
        Path(copy).unlink()
    check(given(split.loader(16, row_ids=True, expand=False)), expected)


@pytest.mark.parametrize("type", ["raw", "fbank"])
def test_audio_does_not_depend_on_options(tmp_path, type):
    rng = np.random.default_rng(0)
    words = [encode_wav(rng.normal(size=rng.integers(800, 2000)) / 4, 8000) for _ in range(120)]
    sound = dp.Audio(type=type, audio_file_length_limit_in_s=0.2, mode="lazy_cached")
    dataset = dp.Preprocessor({"word": sound}).fit_write(pd.DataFrame({"word": words}), tmp_path / "w.dp", block_rows=8)
    expected = by_row(dataset["train"], "word")
    for options in ({"cache": False}, {"cache": False, "threads": 1}, {}, {}):
        check(given(dataset["train"].loader(32, row_ids=True, **options), "word"), expected)


def test_ranks_fill_shared_cache(train):
    expected, rows, decoded = by_row(train), [], 0
    for rank in (0, 1):
        loader = train.loader(48, row_ids=True, expand=False, rank=rank, world_size=2)
        rows += given(loader)
        decoded += loader.stats()["decoded"]
    check(rows, expected)
    assert train.cache("photo").complete
    # The ranks share a block where the last stream of one ends and the first of the other begins.
    assert decoded <= ROWS + BLOCK_ROWS
    again = train.loader(48, row_ids=True, expand=False)
    check(given(again), expected)
    assert again.stats()["decoded"] == 0


def test_ranks_sharing_all_blocks_split_caching(train):
    for rank in (0, 1):
        loader = train.loader(8, row_ids=True, shuffle=False, rank=rank, world_size=2)
        list(loader)
        assert loader.stats()["cached"] == ROWS // BLOCK_ROWS // 2
    assert loader.stats()["decoded"] == ROWS // 2


@pytest.mark.parametrize(("streams", "world"), [(2, 3), (2, 4), (4, 3), (3, 8)])
def test_ranks_sharing_streams_fill_shared_cache(train, streams, world):
    rows, decoded = [], 0
    for rank in range(world):
        options = {"streams": streams, "rank": rank, "world_size": world}
        loader = train.loader(24, row_ids=True, expand=False, **options)
        rows += given(loader)
        decoded += loader.stats()["decoded"]
    check(rows, by_row(train))
    assert train.cache("photo").complete
    assert decoded < 2 * ROWS


def test_block_cached_by_another_process_is_not_completed(train):
    [group] = groups = group_outputs([train.output("photo")], ["photo"])
    medium = Medium(group, train.dataset.decoder("photo"))
    files = FileBlocks(train, groups, LoaderTimes(), Buffers(), budget=1, spare=1, max_rows=BLOCK_ROWS)
    source = CachedBlocks(
        files, train, {train: [(medium, train.cache("photo"))]}, Buffers(), sharer_index=0, sharer_count=1
    )
    sizes = np.full(ROWS // BLOCK_ROWS, BLOCK_ROWS)
    blocks = EpochBlocks(sizes, BLOCK_ROWS, seed=0, epoch=0, shuffle=False, firsts=np.cumsum(sizes) - sizes)
    block = source.load(Schedule(blocks, BLOCK_ROWS, 1, 0, 1, drop_last=False), 3, Need.PREFETCH)
    media = block.media[group]
    media.load()
    out = group.empty(2)
    assert medium.gather_rows([media], np.zeros(2, np.int64), np.array([2, 0]), out).rows == 2
    np.testing.assert_array_equal(out, train.read("photo", 24, 27)["photo"][[2, 0]])
    assert media.is_unfinished
    train.dataset.cache_media()
    assert media.finish().rows == 0


@pytest.mark.parametrize("options", [{}, {"cache": False}])
def test_resume_with_media_yields_remaining_rows(train, options):
    loader = train.loader(48, row_ids=True, expand=False, **options)
    whole = given(train.loader(48, row_ids=True, expand=False, cache=False))
    batches = iter(loader)
    before = given([next(batches) for _ in range(4)])
    state = json.loads(json.dumps(loader.state_dict()))
    batches.close()
    after = train.loader(48, row_ids=True, expand=False, **options)
    after.load_state_dict(state)
    rows = before + given(after)
    assert [row for row, _ in rows] == [row for row, _ in whole]
    check(rows, by_row(train))


def test_cache_of_interrupted_epoch_is_used(train):
    loader = train.loader(48, row_ids=True, expand=False, streams=4)
    batches = iter(loader)
    for _ in range(len(loader) // 2):
        next(batches)
    batches.close()
    present = len(train.cache("photo").present())
    assert present >= ROWS // BLOCK_ROWS // 2 - 4
    after = train.loader(48, row_ids=True, expand=False, streams=4)
    check(given(after), by_row(train))
    assert after.stats()["decoded"] == ROWS - present * BLOCK_ROWS


def start(split: Split, options: dict, die_after: int = 0) -> subprocess.Popen:
    script = str(Path(__file__).with_name("caching_process.py"))
    code = f"import runpy; runpy.run_path({script!r}, run_name='__main__')"
    command = [sys.executable, "-c", code, split.dataset.url, json.dumps(options), str(die_after)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_concurrent_processes_write_same_cache_as_one(train, tmp_path):
    ranks = [start(train, {"rank": rank, "world_size": 2}) for rank in (0, 1)]
    stats = [json.loads(process.communicate()[0]) for process in ranks]
    list(train.loader(32, columns=["photo"], cache_dir=tmp_path / "alone"))
    assert chunks(train) == chunks(train, tmp_path / "alone")
    assert len(chunks(train)) == ROWS // BLOCK_ROWS
    assert sum(one["decoded"] for one in stats) <= ROWS + BLOCK_ROWS


@pytest.mark.slow
def test_killed_process_leaves_complete_blocks(train):
    with start(train, {"streams": 4}, die_after=7) as process:
        assert process.wait() == -9
    present = len(train.cache("photo").present())
    assert present >= 7 * 32 // BLOCK_ROWS - 2 * 4
    loader = train.loader(32, row_ids=True, expand=False)
    check(given(loader), by_row(train))
    assert loader.stats()["decoded"] == ROWS - present * BLOCK_ROWS


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"", lambda data: bytes([data[0] ^ 1]) + data[1:]]
)
def test_damaged_cache_chunk_is_redecoded(train, damage):
    list(train.loader(48))
    before = chunks(train)
    path = next((Path(train.dataset.url) / "cache").rglob("c.3.*"))
    path.write_bytes(damage(path.read_bytes()))
    loader = train.loader(48, row_ids=True, expand=False)
    check(given(loader), by_row(train))
    assert loader.stats()["decoded"] == BLOCK_ROWS
    assert chunks(train) == before


def test_splits_of_equal_size_have_separate_caches(photos, tmp_path):
    dataset = write(tmp_path / "three.dp", photos, mode="lazy_cached", split=dp.RandomSplit((0.5, 0.25, 0.25)))
    halves = [dataset["validation"], dataset["test"]]
    assert len(halves[0]) != 0
    for split in [*halves, *halves]:
        check(given(split.loader(16, row_ids=True, expand=False)), by_row(split))


def test_fill_values_are_not_cached(photos, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    dataset = write(tmp_path / "f.dp", [*photos[:50], str(broken)], mode="lazy_cached", on_error="fill")
    split = dataset["train"]
    expected, block = by_row(split), int(np.flatnonzero(split.read("row_id")["row_id"] == 50)[0]) // BLOCK_ROWS
    for epoch in range(2):
        loader = split.loader(16, row_ids=True, expand=False)
        check(given(loader), expected)
        assert loader.stats()["filled"] == 1
        assert loader.stats()["decoded"] == (51 if epoch == 0 else len(split.layout.block_range("train", block)))
    assert set(range(split.cache("photo").blocks)) - set(split.cache("photo").present()) == {block}
    broken.write_bytes(Path(photos[0]).read_bytes())
    check(given(split.loader(16, row_ids=True, expand=False)), by_row(split))
    assert split.cache("photo").complete


@pytest.mark.parametrize("options", [{}, {"prefetch_size": 0}, {"cache": True}])
def test_missing_file_raises_and_loader_stays_usable(photos, tmp_path, options):
    gone = tmp_path / "gone.png"
    gone.write_bytes(Path(photos[0]).read_bytes())
    split = write(tmp_path / "g.dp", [*photos[:60], str(gone)])["train"]
    gone.unlink()
    loader, before = split.loader(16, row_ids=True, **options), threading.active_count()
    for _ in range(2):
        with pytest.raises(MediaError, match=rf'column "photo", row 60: {gone}: no such file.*on_error'):
            list(loader)
        assert threading.active_count() == before
    gone.write_bytes(Path(photos[0]).read_bytes())
    assert len(given(loader)) == 61


def test_rows_of_batch_are_decoded_in_parallel(lazy, monkeypatch):
    both, plain = threading.Barrier(2, timeout=30), MediaReader.read

    def read(reader, path):
        both.wait()
        return plain(reader, path)

    monkeypatch.setattr(MediaReader, "read", read)
    batches = iter(lazy.loader(2, threads=2, streams=2))
    assert len(next(batches)["x"]) == 2
    both.abort()
    batches.close()


@pytest.mark.parametrize(("pack", "threads"), [(False, 32), (True, max(2, min(16, os.cpu_count() or 1)))])
def test_remote_files_use_more_threads(photos, tmp_path, pack, threads):
    store = fsspec.filesystem("memory")
    for number in range(20):
        store.pipe_file(f"/elsewhere/{number}.png", Path(photos[number]).read_bytes())
    urls = [f"memory://elsewhere/{number}.png" for number in range(20)]
    split = write(tmp_path / "r.dp", urls, pack=pack)["train"]
    check(given(split.loader(16, row_ids=True, expand=False)), by_row(split))
    groups = group_outputs([split.output("photo")], ["photo"])
    caching = CachePolicy()
    assert caching.undecoded_names(split, groups) == ["photo"]
    assert caching.threads(split, ["photo"]) == threads
    split.dataset.cache_media()
    assert caching.undecoded_names(split, groups) == []
    assert caching.threads(split, []) == 0
    store.rm("/elsewhere", recursive=True)


def test_lazy_media_use_no_pool_memory(lazy):
    outputs = [lazy.output("photo"), lazy.output("x")]
    photo, cached = (group_outputs(outputs, names)[1] for names in ((), ("photo",)))
    pool = SlotPool(group_outputs(outputs), 4, block_rows=8, max_rows=8)
    assert [group.name for group in pool.arrays] == ["x"]
    assert photo.resident_bytes == lazy.output("photo").cell_bytes
    assert cached.resident_bytes == photo.resident_bytes + 3 * 6 * 5


def test_columns_without_media_open_no_file(lazy, monkeypatch):
    monkeypatch.setattr(MediaReader, "read", None)
    assert len(given(lazy.loader(48, columns=["x"], row_ids=True), "x")) == ROWS


def test_cache_dir_not_writable_raises(train, tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ConfigError, match="cannot be cached in .*file/sub: .*cache_dir"):
        list(train.loader(48, cache_dir=tmp_path / "file" / "sub"))


def test_cache_limit_bounds_size_and_rest_is_redecoded(train, tmp_path):
    limit = 20_000
    loader = train.loader(48, row_ids=True, expand=False, cache_dir=tmp_path / "c", cache_limit=limit)
    for _ in range(2):
        check(given(loader), by_row(train))
    cached = sum(path.stat().st_size for path in (tmp_path / "c").rglob("*") if path.is_file())
    present = len(chunks(train, tmp_path / "c"))
    assert cached <= limit
    assert present > limit / (BLOCK_ROWS * 90) / 2
    assert loader.stats()["decoded"] == ROWS - present * BLOCK_ROWS


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_data_loader_workers_fill_cache(train, context):
    loader = train.loader(48, row_ids=True, expand=False)
    # A process that is spawned takes seconds to start: it stays for the second epoch.
    options = {"multiprocessing_context": context, "persistent_workers": context == "spawn"}
    workers = DataLoader(loader, batch_size=None, num_workers=2, **options)
    for _ in range(2):
        check(given(workers), by_row(train))
        # A worker does not cache blocks that are assigned to another one.
        assert len(train.cache("photo").present()) > 3 / 4 * ROWS // BLOCK_ROWS


@pytest.mark.parametrize("options", [{}, {"prefetch_size": 0}, {"cache": False}])
def test_closed_iteration_leaves_no_thread(train, options):
    loader, before = train.loader(48, **options), threading.active_count()
    for _ in range(3):
        batches = iter(loader)
        next(batches)
        batches.close()
        assert threading.active_count() == before
    list(loader)
    assert threading.active_count() == before


def test_oversampled_rows_are_identical(photos, tmp_path):
    features = {"photo": dp.Image(height=6, width=5, mode="lazy_cached"), "sold": dp.Binary()}
    table = pd.DataFrame({"photo": photos, "sold": [number % 10 == 0 for number in range(ROWS)]})
    split = dp.Preprocessor(features).fit_write(table, tmp_path / "s.dp", block_rows=BLOCK_ROWS)["train"]
    loader = split.loader(48, row_ids=True, expand=False, balance=dp.Oversample("sold", ratio=0.5))
    expected = by_row(split)
    for _ in range(2):
        for row, value in given(loader):
            np.testing.assert_array_equal(value, expected[row])
    assert split.cache("photo").complete


@pytest.mark.parametrize(("size", "threads"), [(0, 0), (3, 5), (None, 5)])
def test_prefetch_size_of_feature_sets_decoding_threads(photos, tmp_path, monkeypatch, size, threads):
    split = write(tmp_path / "p.dp", photos[:64], prefetch_size=size)["train"]
    names = set()
    plain = MediaReader.read
    monkeypatch.setattr(MediaReader, "read", lambda *one: names.add(threading.current_thread().name) or plain(*one))
    loader = split.loader(32, threads=5)
    list(loader)
    assert all(name.startswith("daskprep-load") for name in names) == bool(threads)


def test_augmentation_does_not_depend_on_ranks(lazy):
    options = {"row_ids": True, "expand": False, "augment": {"photo": RandomCrop(4, 4)}, "seed": 5}
    alone = dict(given(lazy.loader(48, **options)))
    for rank in (0, 1):
        for row, value in given(lazy.loader(48, rank=rank, world_size=2, **options)):
            np.testing.assert_array_equal(value, alone[row])
    loader = lazy.loader(48, **options)
    first, second = dict(given(loader)), dict(given(loader))
    assert first[7].shape == (3, 4, 4)
    assert any((first[row] != second[row]).any() for row in first)


@pytest.mark.parametrize("options", [{"cache": "yes"}, {"cache_limit": "10GB"}, {"augment": {"x2": 1}}])
def test_invalid_cache_options_raise(lazy, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        lazy.loader(48, **options)


def test_augmented_floats_are_not_rescaled(photos, tmp_path):
    split = write(tmp_path / "means.dp", photos[:60])["train"]
    options = {"row_ids": True, "shuffle": False}
    plain, moved = (
        next(iter(split.loader(16, **options, **more)))["photo"]
        for more in ({}, {"augment": {"photo": dp.MeanSubtraction(mean=(0.5, 0.5, 0.5))}})
    )
    np.testing.assert_allclose(moved, plain - 0.5, atol=1e-6)


def test_complete_cache_needs_no_decoder(train, monkeypatch):
    for _ in range(2):
        list(train.loader(48, expand=False))
    monkeypatch.setattr(ImageDecoder, "prepare", lambda self: pytest.fail("a decoder was imported"))
    assert sum(len(batch["photo"]) for batch in train.loader(48, expand=False)) == ROWS
    with pytest.raises(pytest.fail.Exception):
        train.loader(48, cache=False)


def test_rows_cached_individually_use_no_slots_and_close_files(photos, tmp_path, monkeypatch, sizes):
    sizes(cached_row_bytes=1)
    untouched, keep = [], CachedMedia.keep

    def watched(media, *args, **kwargs):
        before = media._slot.copy()
        made = keep(media, *args, **kwargs)
        untouched.append(np.array_equal(media._slot, before))
        return made

    monkeypatch.setattr(CachedMedia, "keep", watched)
    train = write(tmp_path / "cached.dp", photos, mode="lazy_cached")["train"]
    before = len(list(Path("/proc/self/fd").iterdir()))
    list(train.loader(48, expand=False))
    assert train.cache("photo").complete
    assert set(untouched) == {True}
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_blocks_cached_without_unnamed_files_equal_grown_blocks(train, tmp_path, photos, sizes):
    sizes(open_files="/no/such/folder")
    other = write(tmp_path / "whole.dp", photos, mode="lazy_cached")["train"]
    for split in (train, other):
        list(split.loader(48, expand=False))
    whole, grown = chunks(other), chunks(train)
    assert sorted(whole.values()) == sorted(grown.values())


def write_sounds(folder: Path, count: int) -> Split:
    names = [str(folder / f"{number}.wav") for number in range(count)]
    for number, name in enumerate(names):
        Path(name).write_bytes(encode_wav(np.full(50, number / 1000), 1_000))
    sound = dp.Audio(type="raw", audio_file_length_limit_in_s=0.05)
    return dp.Preprocessor({"sound": sound}).fit_write(pd.DataFrame({"sound": names}), folder / "a.dp")["train"]


def watch_decoding(monkeypatch, seconds: Callable[[list[int]], float]) -> tuple[list[int], list[int]]:
    """Slow decoding down; return the number of concurrent threads and of rows for each call."""
    decode, running, seen, rows, lock = AudioDecoder.decode, [], [], [], threading.Lock()

    def watched(self, cells, out):
        if not len(out):  # the trial of a state that is read
            return decode(self, cells, out)
        with lock:
            running.append(1)
            seen.append(len(running))
            rows.append(len(out))
            wait = seconds(rows)
        time.sleep(wait)
        failures = decode(self, cells, out)
        running.pop()
        return failures

    monkeypatch.setattr(AudioDecoder, "decode", watched)
    return seen, rows


def test_audio_is_decoded_by_all_threads(tmp_path, monkeypatch):
    split = write_sounds(tmp_path, 64)
    seen, rows = watch_decoding(monkeypatch, lambda _: 0.3)
    assert sum(len(batch["sound"]) for batch in split.loader(64, expand=False, threads=4)) == 64
    assert rows == [16] * 4
    assert max(seen) > 1


def test_decoding_tasks_grow_after_first_windows(train, monkeypatch, sizes):
    decode, rows, lock = ImageDecoder.decode, [], threading.Lock()

    def watched(self, cells, out):
        with lock:
            rows.extend([len(out)] * bool(len(out)))  # none in the trial of a state that is read
        time.sleep(0.01)
        return decode(self, cells, out)

    monkeypatch.setattr(ImageDecoder, "decode", watched)
    sizes(window_bytes=1)  # a batch is a window
    assert sum(len(batch["photo"]) for batch in train.loader(64, threads=8, cache=False, expand=False)) == ROWS
    # Two tasks for each thread are shared by the windows on their way: 8 and 8 of the first two, 6 of the third ...
    assert rows[:16] == [8] * 16
    assert max(rows) > 8


@pytest.mark.parametrize(("nbytes", "ahead"), [(1, 1), (1, 5), (1 << 30, 2)])
def test_batches_do_not_depend_on_decoding_windows(train, sizes, nbytes, ahead):
    expected = given(train.loader(16, expand=False, row_ids=True, cache=False))
    sizes(window_bytes=nbytes, decoded_windows=ahead)
    found = given(train.loader(16, expand=False, row_ids=True, cache=False))
    assert [row for row, _ in found] == [row for row, _ in expected]
    assert all(np.array_equal(one, other) for (_, one), (_, other) in zip(found, expected, strict=True))


def test_repeated_rows_are_read_from_growing_block(photos, tmp_path, sizes):
    sizes(cached_row_bytes=1)
    table = pd.DataFrame({"photo": photos, "rare": np.arange(ROWS) % 10 == 0})
    features = {"photo": dp.Image(height=6, width=5, num_channels=3, mode="lazy_cached"), "rare": dp.Binary()}
    split = dp.Preprocessor(features).fit_write(table, tmp_path / "rare.dp", block_rows=BLOCK_ROWS)["train"]
    twice = split.loader(48, expand=False, row_ids=True, balance=dp.Oversample("rare", ratio=1.0))
    expected = by_row(split)
    rows = given(twice)
    for row, value in rows:
        np.testing.assert_array_equal(value, expected[row])
    assert twice.stats()["decoded"] < len(rows) - ROWS // 2  # some come twice to one batch


@pytest.mark.parametrize("expand", [False, True])
def test_kept_images_are_not_overwritten(train, sizes, expand):
    sizes(expanded_bytes=300)
    loader, rng, expected = train.loader(48, row_ids=True, expand=expand), np.random.default_rng(0), by_row(train)
    kept = [batch for _ in range(4) for batch in loader if rng.random() < 0.5]
    assert loader.stats()["decoded"] == 0
    for batch in kept:
        for row, photo in zip(batch["row_id"].tolist(), batch["photo"], strict=True):
            original = torch.from_numpy(expected[row])
            assert torch.equal(photo, original.float().div_(255) if expand else original)


def test_cache_cleared_during_epoch_is_recreated(train):
    expected = by_row(train)
    batches = iter(train.loader(48, expand=False, row_ids=True, prefetch_size=1))
    first = [next(batches)]
    train.dataset.clear_cache()
    check(given([*first, *batches]), expected)
    assert any(name.endswith(".0.0.0") for name in chunks(train))


def mapped_chunks(monkeypatch) -> list[str]:
    names: list[str] = []
    read_buffer = Folder.read_buffer
    monkeypatch.setattr(Folder, "read_buffer", lambda self, name: names.append(name) or read_buffer(self, name))
    return names


def test_mapped_chunks_are_reused_until_replaced(train, monkeypatch):
    loader, expected = train.loader(48, row_ids=True, expand=False), by_row(train)
    for _ in range(2):
        list(loader)
    names = mapped_chunks(monkeypatch)
    check(given(loader), expected)
    assert not [name for name in names if name.startswith("photo/c.")]
    path = next((Path(train.dataset.url) / "cache").rglob("c.3.*"))
    path.write_bytes(path.read_bytes()[:-1])
    check(given(loader), expected)
    assert loader.stats()["decoded"] == BLOCK_ROWS
    train.dataset.clear_cache()
    check(given(loader), expected)
    assert loader.stats()["decoded"] == ROWS


@pytest.mark.parametrize("limit", ["bytes", "number"])
def test_mapped_chunks_are_limited(train, monkeypatch, sizes, limit):
    chunk_bytes = BLOCK_ROWS * train.output("photo").row_bytes
    sizes(**{"bytes": {"mapped_bytes": 3 * chunk_bytes}, "number": {"mapped_chunks": 3}}[limit])
    loader = train.loader(48, row_ids=True, expand=False)
    for _ in range(2):
        list(loader)
    names = mapped_chunks(monkeypatch)
    check(given(loader), by_row(train))
    assert len([name for name in names if name.startswith("photo/c.")]) == ROWS // BLOCK_ROWS - 3


def test_checksum_of_own_chunks_is_not_recomputed(photos, tmp_path, monkeypatch, sizes):
    sizes(cached_row_bytes=1)
    train = write(tmp_path / "cached.dp", photos, mode="lazy_cached")["train"]
    list(train.loader(48))
    monkeypatch.setattr("daskprep.dataset.cache.crc32c", lambda *_: pytest.fail("a checksum was computed"))
    loader = train.loader(48, row_ids=True, expand=False)
    assert len(given(loader)) == ROWS
    assert not loader.stats()["decoded"]


@pytest.mark.parametrize("cache", [False, True])
def test_media_error_notes_rows(lazy, tmp_path, monkeypatch, cache):
    def fail(media):
        raise OSError("out of reach")

    monkeypatch.setattr(StoredMedia, "load", fail)
    with pytest.raises(OSError, match="out of reach") as caught:
        list(lazy.loader(48, shuffle=False, cache=cache, cache_dir=tmp_path, prefetch_size=0))
    assert caught.value.__notes__ == ['while rows 0 to 7 of "train" were read']


def test_split_getitem_decodes_only_selected_rows(lazy, monkeypatch):
    whole = lazy.read("photo")["photo"]
    counts = []
    decode = ImageDecoder.decode
    monkeypatch.setattr(
        ImageDecoder, "decode", lambda self, cells, *a: (counts.append(len(cells)), decode(self, cells, *a))[1]
    )
    rows = [ROWS - 1, 0, 40, 2]
    np.testing.assert_array_equal(lazy[rows]["photo"], whole[rows])
    assert sum(counts) == len(rows)
    np.testing.assert_array_equal(lazy[-3]["photo"], whole[-3])


def test_data_loader_of_split_yields_same_images_as_loader(lazy):
    expected = next(iter(lazy.loader(8, shuffle=False)))
    found = next(iter(DataLoader(lazy, 8)))
    assert found["photo"].dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
