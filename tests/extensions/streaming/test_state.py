"""States are small, record the yielded rows, and resume on any number of ranks."""

from __future__ import annotations

import itertools
import json
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import daskprep as dp
from daskprep.dataset.loader.pipeline import Pipeline
from daskprep.errors import ConfigError, CorruptDatasetError, FormatVersionError
from daskprep.sources.frames import PandasSource

OPTIONS = {"row_ids": True, "window": 30_000}


def resumed(prep, source, state, numbers, world=1, **options):
    """Return the remaining batches of a state, joined over all ranks."""
    ranks = []
    for rank in range(world):
        stream = prep.stream(source, **{"batch_size": 60, **OPTIONS, **options}, rank=rank, world_size=world)
        stream.load_state_dict(json.loads(json.dumps(state)))
        ranks.append(numbers(stream))
        stream.audit()
    return [np.concatenate(shares) for shares in zip(*ranks, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"drop_last": True}])
def test_resume_after_any_batch_neither_loses_nor_repeats_rows(simple, parts, numbers, options):
    stream = simple.stream(parts, 60, epochs=2, **OPTIONS, **options)
    whole = numbers(stream)
    stream.set_epoch(0)
    for stop, _ in enumerate(stream, start=1):
        if stop == len(whole):
            break
        if options and stop % 4:  # every fourth batch has each number of ranks too
            continue
        left = resumed(simple, parts, stream.state_dict(), numbers, 1 + stop % 3, epochs=2, **options)
        for one, other in zip(left, whole[stop:], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("batch_size", [20, 120, 300])
def test_resume_with_other_batch_size(simple, parts, numbers, batch_size):
    stream = simple.stream(parts, 60, **OPTIONS)
    batches = iter(stream)
    first = numbers(next(batches) for _ in range(7))
    left = resumed(simple, parts, stream.state_dict(), numbers, 2, batch_size=batch_size)
    np.testing.assert_array_equal(np.sort(np.concatenate(first + left)), np.arange(1003))


@pytest.mark.parametrize("is_exhausted", [True, False])
def test_state_at_end_resumes_with_next_epochs(simple, parts, numbers, is_exhausted):
    stream = simple.stream(parts, 60, epochs=2, **OPTIONS)
    batches = iter(stream)
    for _ in range(len(stream)):
        next(batches)
    if is_exhausted:
        assert next(batches, None) is None
    left = resumed(simple, parts, stream.state_dict(), numbers, epochs=2)
    expected = numbers(stream)
    assert len(left) == len(expected) == len(stream)
    np.testing.assert_array_equal(np.concatenate(left), np.concatenate(expected))


def test_set_epoch_of_resumed_epoch_keeps_position(simple, parts, numbers):
    stream = simple.stream(parts, 60, **OPTIONS)
    stream.set_epoch(2)
    next(iter(stream))
    other = simple.stream(parts, 60, **OPTIONS)
    other.load_state_dict(stream.state_dict())
    other.set_epoch(2)
    assert len(numbers(other)) == len(stream) - 1
    other.set_epoch(2)
    assert len(numbers(other)) == len(stream)


def test_abandoned_iterator_does_not_change_state(simple, parts):
    stream = simple.stream(parts, 60, **OPTIONS)
    old = iter(stream)
    next(old)
    new = iter(stream)
    next(new)
    next(old)
    assert (stream.epoch, stream.state_dict()["rows_given"]) == (1, 60)


def test_resume_reads_only_remaining_windows(simple, gated, numbers):
    stream = simple.stream(gated, 50, shuffle=False, row_ids=True, window=4 * 100 * 30)
    batches = iter(stream)
    for _ in range(14):
        next(batches)
    state = stream.state_dict()
    batches.close()
    gated.read_partitions.clear()
    stream.load_state_dict(state)
    np.testing.assert_array_equal(np.concatenate(numbers(stream)), np.arange(700, 1003))
    assert min(gated.read_partitions) >= 5


@pytest.mark.filterwarnings("ignore:.* are left out:UserWarning")
def test_state_is_small_json(prep, parts):
    stream = prep.stream(parts, 60, window="1MB")
    list(stream)
    assert len(json.dumps(stream.state_dict())) < 1000


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"digest": "0123456789abcdef"}, ConfigError, "stream 0123456789abcdef"),
        ({"split": "test"}, ConfigError, 'belongs to split "test"'),
        ({"seed": 7}, ConfigError, "create the stream with seed=7"),
        ({"shuffle": False}, ConfigError, "create the stream with shuffle=False"),
        ({"window_rows": 7}, ConfigError, "windows of 7 rows"),
        ({"format": 2}, FormatVersionError, "format 2"),
        ({"rows_given": 1004}, ConfigError, "rows_given=1004"),
        ({"rows_given": -1}, ConfigError, "rows_given=-1"),
        ({"epoch": "1"}, ConfigError, "epoch='1'"),
    ],
)
def test_state_mismatch_raises(simple, parts, changed, error, words):
    stream = simple.stream(parts, 60, **OPTIONS)
    with pytest.raises(error, match=words):
        stream.load_state_dict({**stream.state_dict(), **changed})


def test_invalid_state_raises(simple, parts):
    with pytest.raises(ConfigError, match="not a state of a stream"):
        simple.stream(parts, 60).load_state_dict({"epoch": 1})


def test_state_of_other_preprocessor_or_rows_raises(simple, table, parts):
    state = simple.stream(parts, 60).state_dict()
    other = dp.Preprocessor({"price": dp.Number(normalization="zscore"), "city": "category"}).fit(table)
    for stream in (other.stream(parts, 60), simple.stream(table.iloc[1:], 60)):
        with pytest.raises(ConfigError, match="The Preprocessor or the partitions differ"):
            stream.load_state_dict(state)


def test_state_of_other_source_with_same_row_count_raises(simple, table, path, tmp_path):
    table.assign(price=-1.0).to_parquet(tmp_path / "other.parquet")
    for one, other in ((path, tmp_path / "other.parquet"), (table, table.assign(price=-1.0))):
        state = simple.stream(one, 60).state_dict()
        with pytest.raises(ConfigError, match="another source.*Stream the source that the state was saved for"):
            simple.stream(other, 60).load_state_dict(state)


def test_state_resumes_with_moved_files_or_without_source_digest(simple, path, tmp_path):
    shutil.copy2(path, tmp_path / "moved.parquet")
    table = pd.read_parquet(path)
    started, moved = simple.stream(path, 60), simple.stream(tmp_path / "moved.parquet", 60)
    next(iter(started))
    moved.load_state_dict(started.state_dict())
    assert moved.state_dict()["rows_given"] == 60
    state = simple.stream(table, 60).state_dict()
    simple.stream(table.copy(), 60).load_state_dict(state)
    del state["source"]
    simple.stream(table.assign(price=-1.0), 60).load_state_dict(state)


@pytest.mark.parametrize("how", ["splits", "sample", "both", "prepared"])
def test_state_of_changed_rows_in_splits_and_samples_raises(simple, table, path, tmp_path, how):
    changed = table.assign(price=-1.0)
    changed.to_parquet(tmp_path / "other.parquet")

    def stream(source):
        prep = dp.Preprocessor.from_dict(simple.to_dict())
        prep.sample = 0.5 if how in ("sample", "both") else None
        rows = source if how == "sample" else {"train": source, "test": path}
        return prep.stream(rows, 60, prepare=same if how == "prepared" else None)

    kinds = [(path, tmp_path / "other.parquet")]
    kinds += [(table, changed)] * (how != "prepared")
    for one, other in kinds:
        state = json.loads(json.dumps(stream(one).state_dict()))
        stream(one).load_state_dict(state)
        with pytest.raises(ConfigError, match="another source"):
            stream(other).load_state_dict(state)
        stream(other).load_state_dict({**state, "source": None})  # as older versions wrote it


def same(rows):
    return rows


def test_frame_with_times_outside_python_range_resumes():
    table = pd.DataFrame({"when": pd.array([-(10**14), 0], pd.ArrowDtype(pa.timestamp("s")))})
    prep = dp.Preprocessor({"when": "category"}).fit(table)
    state = prep.stream(table, 1).state_dict()
    prep.stream(table.copy(), 1).load_state_dict(state)
    with pytest.raises(ConfigError, match="another source"):
        prep.stream(table[::-1], 1).load_state_dict(state)


def test_source_digest_skips_image_columns(monkeypatch):
    table = pd.DataFrame({"photo": [np.zeros((2, 2, 3), np.uint8)] * 3, "price": [1.0, 2.0, 3.0]})
    prep = dp.Preprocessor({"photo": dp.Image(height=2, width=2), "price": "number"}).fit(table)
    read = []
    sample = PandasSource.sample
    monkeypatch.setattr(PandasSource, "sample", lambda *args: read.append(args[1]) or sample(*args))
    state = prep.stream(table, 1).state_dict()
    assert read == [["price"]]
    with pytest.raises(ConfigError, match="another source"):
        prep.stream(table.assign(price=0.0), 1).load_state_dict(state)


def test_audit_detects_lost_batch(simple, parts, monkeypatch, sizes):
    stream = simple.stream(parts, 60, **OPTIONS)
    assert stream.audit() == {"rows": 0, "batches": 0}
    list(stream)
    assert stream.audit() == {"rows": 1003, "batches": 17}
    sizes(window_batches=1)
    plain = Pipeline.__iter__
    monkeypatch.setattr(Pipeline, "__iter__", lambda self: itertools.islice(plain(self), 1, None))
    assert len(list(stream)) == 16
    with pytest.raises(CorruptDatasetError, match="lost or repeated"):
        stream.audit()


def test_set_epoch_does_not_shorten_existing_iterator(simple, parts, numbers):
    stream = simple.stream(parts, 100, row_ids=True)
    batches = iter(stream)
    stream.set_epoch(5)
    assert len(numbers(batches)) == len(stream)
