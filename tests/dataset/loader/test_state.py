"""States are small, record the yielded rows, and resume on any number of ranks."""

from __future__ import annotations

import json
import pickle
import shutil

import numpy as np
import pytest

import daskprep as dp
from daskprep.errors import ConfigError, FormatVersionError

RESUME_OPTIONS = [
    {"world": 1, "prefetch_size": 0},
    {"world": 2, "threads": 1},
    {"world": 3, "prefetch_size": 1},
    {"world": 8, "threads": 3},
]


@pytest.fixture
def resumed(train, rows):
    """Return the remaining batches of a state, joined over all ranks."""

    def resume(state, world=1, **options):
        ranks = []
        for rank in range(world):
            loader = train.loader(
                **{"batch_size": 48, "streams": 24, "row_ids": True, **options}, rank=rank, world_size=world
            )
            loader.load_state_dict(json.loads(json.dumps(state)))
            ranks.append(rows(loader))
            loader.audit()
        return [np.concatenate(parts) for parts in zip(*ranks, strict=True)]

    return resume


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"balance": dp.Undersample("city", ratio=1.0)}])
def test_resume_at_any_batch_neither_loses_nor_repeats_rows(train, rows, resumed, options):
    loader = train.loader(48, streams=24, row_ids=True, **options)
    whole = rows(loader)
    loader.set_epoch(0)
    for stop, _ in enumerate(loader, start=1):
        left = resumed(loader.state_dict(), **RESUME_OPTIONS[stop % len(RESUME_OPTIONS)], **options)
        if stop < len(loader):
            expected, found = whole[stop:], left
            assert len(found) == len(expected)
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(np.sort(one), np.sort(other))


def test_state_before_first_batch_yields_full_epoch(train, rows, resumed):
    loader = train.loader(48, streams=24, row_ids=True)
    loader.set_epoch(3)
    state = loader.state_dict()
    np.testing.assert_array_equal(np.concatenate(resumed(state)), np.concatenate(rows(loader)))


@pytest.mark.parametrize("batch_size", [24, 72, 240])
def test_resume_with_other_batch_size(train, rows, resumed, batch_size):
    loader = train.loader(48, streams=24, row_ids=True)
    batches = iter(loader)
    first = rows(next(batches) for _ in range(7))
    left = resumed(loader.state_dict(), world=3, batch_size=batch_size)
    np.testing.assert_array_equal(np.sort(np.concatenate(first + left)), np.arange(1003))


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"drop_last": True}, {"rank": 1, "world_size": 4}])
@pytest.mark.parametrize("is_exhausted", [True, False])
def test_state_at_end_of_epoch_resumes_with_next_epoch(train, rows, options, is_exhausted):
    loader = train.loader(48, row_ids=True, **options)
    batches = iter(loader)
    for _ in range(len(loader)):
        next(batches)
    if is_exhausted:
        assert next(batches, None) is None
    state = loader.state_dict()
    other = train.loader(48, row_ids=True, **options)
    other.load_state_dict(state)
    found = rows(other)
    expected = rows(loader)
    assert (loader.epoch, other.epoch, len(found)) == (1, 1, len(expected))
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate(expected))


def test_resume_with_only_dropped_rows_starts_next_epoch(train, rows):
    loader = train.loader(48, streams=24)
    batches = iter(loader)
    for _ in range(len(loader) - 1):
        next(batches)
    other = train.loader(96, streams=24, drop_last=True, row_ids=True)
    other.load_state_dict(loader.state_dict())
    assert len(rows(other)) == len(other)
    assert other.epoch == 1


def test_next_epoch_follows_resumed_epoch(train, rows):
    loader = train.loader(48, row_ids=True)
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    assert len(rows(loader)) == len(loader) - 1
    assert len(rows(loader)) == len(loader)
    assert loader.epoch == 1


def test_set_epoch_of_resumed_epoch_keeps_position(train, rows):
    loader = train.loader(48, row_ids=True)
    loader.set_epoch(2)
    next(iter(loader))
    state = loader.state_dict()
    for number, batches in ((2, len(loader) - 1), (3, len(loader)), (2, len(loader))):
        loader.set_epoch(number) if number == 3 else None
        if batches < len(loader):
            loader.load_state_dict(state)
        loader.set_epoch(number)
        assert (len(rows(loader)), loader.epoch) == (batches, number)


def test_state_excludes_prefetched_batches(train):
    loader = train.loader(48)
    batches = iter(loader)
    for number in range(1, 6):
        next(batches)
        assert loader.state_dict()["rows_given"] == 48 * number


@pytest.mark.parametrize("options", [{}, {"balance": dp.Oversample("sold", ratio=0.5)}])
def test_state_is_small_json(train, options):
    loader = train.loader(48, **options)
    list(loader)
    state = loader.state_dict()
    assert json.loads(json.dumps(state)) == state
    assert len(json.dumps(state)) < 1000


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"version": "0123456789abcdef"}, ConfigError, "of version 0123456789abcdef"),
        ({"split": "test"}, ConfigError, r'belongs to split "test", .* reads "train": .*dataset\[\'test\'\]'),
        ({"seed": 7}, ConfigError, "create the loader with seed=7"),
        ({"streams": 8}, ConfigError, "create the loader with streams=8"),
        ({"shuffle": False}, ConfigError, "create the loader with shuffle=False"),
        ({"sampling": "0123abcd"}, ConfigError, "balance= or weights="),
        ({"format": 2}, FormatVersionError, "format 2"),
        ({"rows_given": 4800}, ConfigError, "rows_given=4800"),
        ({"rows_given": -48}, ConfigError, "rows_given=-48"),
        ({"epoch": "1"}, ConfigError, "epoch='1'"),
        ({"first_batch": None}, ConfigError, "first_batch='nothing'"),
    ],
)
def test_state_mismatch_raises(train, changed, error, words):
    loader = train.loader(48)
    state = loader.state_dict()
    with pytest.raises(error, match=words):
        loader.load_state_dict({**state, **changed})
    assert loader.state_dict() == state


@pytest.mark.parametrize(("before", "after"), [((96, 2), (96, 3)), ((499, 1), (96, 12)), ((96, 16), (499, 1))])
def test_resume_on_any_number_of_ranks_and_batch_size(train, rows, before, after):
    def batches_of(batch_size, world, state=None):
        ranks = []
        for rank in range(world):
            loader = train.loader(batch_size, streams=16, row_ids=True, rank=rank, world_size=world)
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            batches = rows(loader) if state is not None else [rows([next(iter(loader))])[0]]
            ranks.append(batches)
        return [np.sort(np.concatenate(parts)) for parts in zip(*ranks, strict=True)], loader.state_dict()

    first, state = batches_of(*before)
    left, _ = batches_of(*after, state)
    np.testing.assert_array_equal(np.sort(np.concatenate([*first, *left])), np.arange(len(train)))
    alone, _ = batches_of(after[0], 1, state)
    assert [batch.tolist() for batch in left] == [batch.tolist() for batch in alone]


def test_state_of_old_default_streams_raises_or_resumes(train, rows):
    loader = train.loader(257, streams=1, row_ids=True)  # as 257 rows had by default
    batches = iter(loader)
    first, state = rows([next(batches)]), loader.state_dict()
    with pytest.raises(ConfigError, match="create the loader with streams=1"):
        train.loader(257).load_state_dict(state)
    resumed = train.loader(257, streams=1, row_ids=True)
    resumed.load_state_dict(state)
    np.testing.assert_array_equal(np.sort(np.concatenate([*first, *rows(resumed)])), np.arange(len(train)))


@pytest.mark.parametrize("state", [{}, None, [1], {"rows_given": 48}, {"model": 1}])
def test_invalid_state_raises(train, state):
    with pytest.raises(ConfigError, match="not a state of a loader"):
        train.loader(48).load_state_dict(state)


def test_too_few_remaining_rows_for_ranks_raises_on_all_ranks(train):
    loader = train.loader(10, shuffle=False)
    batches = iter(loader)
    for _ in range(100):
        next(batches)
    for rank in range(4):
        other = train.loader(12, shuffle=False, rank=rank, world_size=4)
        other.load_state_dict(loader.state_dict())
        with pytest.raises(ConfigError, match="3 rows are left of epoch 0, too few for 4 ranks"):
            iter(other)


@pytest.fixture
def others(table, tmp_path):
    """Return two datasets of one version and other rows."""
    prep = dp.Preprocessor({"price": "number"})
    return [
        prep.fit_write(rows, tmp_path / name, version="v1")
        for name, rows in (("a", table), ("b", table.assign(price=-table["price"])))
    ]


def test_state_of_same_version_with_other_digest_raises(others):
    one, other = (dataset["train"].loader(48) for dataset in others)
    assert one.split.dataset.version == other.split.dataset.version
    with pytest.raises(ConfigError, match=f"digest {others[0].digest[:16]}.*open the dataset that"):
        other.load_state_dict(one.state_dict())


def test_state_resumes_in_its_version_after_append(table, tmp_path):
    prep = dp.Preprocessor({"price": "number"})
    loader = prep.fit_write(table, tmp_path / "a")["train"].loader(48)
    next(iter(loader))
    grown = prep.append(table[:10], tmp_path / "a", on_findings="ignore")["train"].loader(48)
    with pytest.raises(ConfigError, match=r"open_dataset\(path, version=number\)"):
        grown.load_state_dict(loader.state_dict())
    same = dp.open_dataset(tmp_path / "a", version=1)["train"].loader(48)
    same.load_state_dict(loader.state_dict())
    assert same.state_dict() == loader.state_dict()


def test_state_without_digest_resumes(others):
    loader = others[0]["train"].loader(48)
    next(iter(loader))
    state = loader.state_dict()
    del state["digest"]
    other = others[0]["train"].loader(48)
    other.load_state_dict(state)
    assert other.state_dict() == loader.state_dict()


def test_unpickling_after_dataset_was_replaced_raises(others):
    one, other = others
    pickled = [pickle.dumps(what) for what in (one, one["train"], one["train"].loader(48))]
    shutil.rmtree(one.url)
    shutil.copytree(other.url, one.url)
    for what in pickled:
        with pytest.raises(ConfigError, match="it was written again; open it again"):
            pickle.loads(what)
