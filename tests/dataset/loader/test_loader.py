"""Contents of batches; rows are neither lost nor repeated."""

from __future__ import annotations

import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch

import daskprep as dp
from daskprep.dataset.loader.pipeline import Pipeline
from daskprep.dataset.loader.source import SmallTables
from daskprep.errors import CorruptDatasetError


@pytest.fixture
def epoch(train, rows):
    """Return the rows of each batch of an epoch, once it was audited."""

    def epoch_of(**options):
        loader = train.loader(**{"batch_size": 48, "streams": 24, "row_ids": True, **options})
        found = rows(loader)
        assert loader.audit() == {"rows": sum(map(len, found)), "batches": len(loader)}
        return found

    return epoch_of


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("prefetch_size", [0, 1, None])
def test_global_batches_do_not_depend_on_ranks_or_prefetch(epoch, world, prefetch_size):
    ranks = [epoch(rank=rank, world_size=world, prefetch_size=prefetch_size) for rank in range(world)]
    joined = [np.sort(np.concatenate(parts)) for parts in zip(*ranks, strict=True)]
    assert_equal(joined, [np.sort(batch) for batch in epoch()])


@pytest.mark.parametrize("prefetch_size", [0, 1, 4])
@pytest.mark.parametrize("batch_size", [8, 64, 256])
def test_blocks_are_read_once_if_memory_is_short(tmp_path, batch_size, prefetch_size):
    frame = pd.DataFrame({"n": np.arange(4000.0)})
    prep = dp.Preprocessor({"n": dp.Number(normalization=None)}, split=None)
    train = prep.fit_write(frame, tmp_path / "data.dp", block_rows=16)["train"]
    loader = train.loader(batch_size, streams=4, prefetch_size=prefetch_size, threads=2)
    assert sum(len(batch["n"]) for batch in loader) == len(frame)
    # A stream ends within the first block of the next one, and the first large batch may start before memory grows.
    assert 250 <= loader.stats()["blocks"] <= 250 + 2 * 4


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"streams": 16}, {"streams": 7}, {"shuffle": False}, {"drop_last": True}])
@pytest.mark.parametrize(("world", "batch_size"), [(5, 48), (7, 50), (32, 48), (24, 24)])
def test_uneven_ranks_share_batches(epoch, world, batch_size, options):
    options = {"batch_size": batch_size, "uneven": True} | options
    ranks = [epoch(rank=rank, world_size=world, **options) for rank in range(world)]
    joined = [np.sort(np.concatenate(parts)) for parts in zip(*ranks, strict=True)]
    assert {len(part) for parts in ranks for part in parts[:-2]} <= {batch_size // world, -(-batch_size // world)}
    assert max(map(len, joined)) <= batch_size or batch_size < 2 * world
    expected = epoch(**options)
    if len(expected[-1]) < world:  # the last two batches share these rows
        expected[-2:] = [np.concatenate(expected[-2:])]
        joined[len(expected) - 1 :] = [np.sort(np.concatenate(joined[len(expected) - 1 :]))]
    assert_equal(joined, [np.sort(batch) for batch in expected])


@pytest.mark.parametrize(
    "options", [{"prefetch_size": 0}, {"threads": 1}, {"threads": 7}, {"prefetch_bytes": 0}, {"prefetch_size": 9}]
)
def test_batches_do_not_depend_on_threads(epoch, options):
    assert_equal(epoch(**options), epoch())


@pytest.mark.parametrize("shuffle", [True, False])
def test_batch_values_match_row_ids(train, shuffle):
    whole = train.read()
    for batch in train.loader(48, shuffle=shuffle, row_ids=True, expand=False):
        ids = batch.pop("row_id").numpy()
        assert list(batch) == train.columns
        for name, values in batch.items():
            np.testing.assert_array_equal(values.numpy(), whole[name][ids])


def test_kept_batches_are_not_overwritten(train):
    whole = train.read(["review_word"])["review_word"]
    kept = [(batch["row_id"], batch["review_word"]) for batch in train.loader(32, row_ids=True, expand=False)]
    for ids, words in kept:
        np.testing.assert_array_equal(words.numpy(), whole[ids.numpy()])


@pytest.mark.parametrize("to", ["torch", "numpy"])
def test_kept_expanded_batches_are_not_overwritten(train, sizes, to):
    sizes(expanded_bytes=100)
    loader, rng, kept, copies = train.loader(32, to=to), np.random.default_rng(0), [], []
    for _ in range(3):
        for batch in loader:
            for name in rng.choice(train.columns, 2):
                part = batch[name][int(rng.integers(16)) :]
                kept.append(part)
                copies.append(np.array(part, copy=True) if to == "numpy" else part.clone())
    for part, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(part, copy)


def test_modifying_batch_does_not_affect_later_batches(train):
    first, second = [], []
    for kept, loader in ((first, train.loader(48, seed=1)), (second, train.loader(48, seed=1))):
        for batch in loader:
            kept.append(batch["price"].clone())
            batch["price"].zero_()
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("shuffle", [True, False])
def test_drop_last_drops_incomplete_batch(epoch, shuffle):
    found = epoch(shuffle=shuffle, drop_last=True)
    assert [len(batch) for batch in found] == [48] * (1003 // 48)
    assert len(np.unique(np.concatenate(found))) == 48 * (1003 // 48)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_shuffle_false_preserves_order(epoch, world):
    ranks = [epoch(shuffle=False, rank=rank, world_size=world) for rank in range(world)]
    joined = [np.concatenate(parts) for parts in zip(*ranks, strict=True)]
    np.testing.assert_array_equal(np.concatenate(joined), np.arange(1003))
    assert len(joined[0]) == 48


def test_next_iteration_is_next_epoch(train, rows):
    loader = train.loader(48, row_ids=True)
    epochs = [np.concatenate(rows(loader)) for _ in range(2)]
    assert loader.epoch == 1
    assert not np.array_equal(*epochs)
    for number in (1, 0):
        loader.set_epoch(number)
        np.testing.assert_array_equal(np.concatenate(rows(loader)), epochs[number])


def test_next_iteration_after_break_is_next_epoch(train, rows):
    loader = train.loader(48, row_ids=True)
    next(iter(loader))
    assert len(rows(loader)) == len(loader)
    assert loader.epoch == 1


def test_concurrent_iterations_are_independent(train, rows):
    loader = train.loader(48, row_ids=True)
    first = iter(loader)
    seen = rows([next(first)])
    second = iter(loader)
    assert len(rows(second)) == len(loader)
    loader.audit()
    state = loader.state_dict()
    seen += rows(first)
    np.testing.assert_array_equal(np.sort(np.concatenate(seen)), np.arange(1003))
    assert (loader.state_dict(), state["epoch"]) == (state, 1)


def test_columns_order_is_preserved(train):
    batch = next(iter(train.loader(48, columns=["sold", "review_char", "price"])))
    assert list(batch) == ["sold", "review_char", "price"]
    assert list(next(iter(train.loader(48, columns="price")))) == ["price"]
    assert list(next(iter(train.loader(48, columns=[], row_ids=True)))) == ["row_id"]


def test_targets_are_returned_separately(train):
    inputs, target = next(iter(train.loader(48, columns=["price"], targets="sold")))
    assert (list(inputs), target.dtype) == (["price"], torch.bool)
    inputs, targets = next(iter(train.loader(48, targets=["sold", "city", "sold"])))
    assert list(targets) == ["sold", "city"]
    assert set(inputs) == set(train.columns) - {"sold", "city"}


def test_transform_is_applied_last(train):
    loader = train.loader(
        48, columns=["price"], targets="city", transform=lambda batch: (batch[0]["price"] * 2, batch[1])
    )
    plain = train.loader(48, columns=["price"], targets="city")
    for (doubled, city), (inputs, same) in zip(loader, plain, strict=True):
        assert torch.equal(doubled, inputs["price"] * 2)
        assert torch.equal(city, same)


@pytest.mark.parametrize("nbytes", [1, 5_000, 1 << 30])
def test_batch_expansion_does_not_depend_on_grouping(train, sizes, nbytes):
    sizes(expanded_bytes=nbytes)
    rows = []
    for compact, batch in zip(train.loader(48, expand=False), train.loader(48), strict=True):
        rows.append(len(batch["sold"]))
        assert torch.equal(batch["sold"], compact["sold"].bool())
        assert torch.equal(batch["city"], compact["city"].long())
        assert torch.equal(batch["review_word"], compact["review_word"].long())
    assert sum(rows) == len(train)
    assert rows[-1] < 48


def test_expand_dtypes_and_shapes(train):
    batch = next(iter(train.loader(48)))
    compact = next(iter(train.loader(48, expand=False)))
    types = {name: (values.dtype, tuple(values.shape)) for name, values in batch.items()}
    assert types["city"] == (torch.int64, (48,))
    assert types["sold"] == (torch.bool, (48,))
    assert types["tags"] == (torch.int8, (48, train.num_embeddings("tags")))
    assert types["review_word"][0] == types["review_char"][0] == torch.int64
    assert compact["city"].dtype == compact["review_char"].dtype == torch.uint8
    assert torch.equal(batch["review_word"], compact["review_word"].long())
    assert compact["tags"].shape[1] == train.shape("tags")[0]


def test_overfit_batches_repeats_first_batches(train, rows):
    loader = train.loader(48, row_ids=True, overfit_batches=2, balance=None)
    first, second = rows(loader), rows(loader)
    assert len(loader) == 2
    np.testing.assert_array_equal(np.concatenate(first), np.arange(96))
    assert_equal(first, second)
    loader.audit()
    assert len(rows(train.loader(48, row_ids=True, overfit_batches=1000))) == len(train.loader(48, shuffle=False))


def read_files(memory, folder):
    """Return the names of the files of a folder that were read, with repetitions."""
    return [path.rpartition("/")[2] for path in memory.requests if path.split("/")[-2] == folder]


def test_small_tables_are_read_once(stored, memory, sizes):
    train = stored["train"]
    kept = train.loader(48, row_ids=True)
    epochs = [list(kept), list(kept)]
    reads = read_files(memory, "table")
    assert len(reads) == train.layout.parts("train")
    sizes(resident_bytes=0)
    memory.requests.clear()
    uncached = train.loader(48, row_ids=True)
    for found in epochs:
        for one, other in zip(found, uncached, strict=True):
            assert one.keys() == other.keys() >= {"row_id"}
            assert all(torch.equal(one[name], other[name]) for name in one)
    assert len(read_files(memory, "table")) == 2 * train.layout.blocks("train")


def test_failing_table_read_is_not_retried_by_waiting_threads():
    tables, tries, waiting = SmallTables(("row_id",)), [], threading.Barrier(9)

    def fail():
        tries.append(1)
        time.sleep(0.3)
        raise OSError("no connection")

    def request(_):
        waiting.wait()
        with pytest.raises(OSError, match="no connection"):
            tables.get(0, fail)

    with ThreadPoolExecutor(9) as pool:
        list(pool.map(request, range(9)))
    assert len(tries) == 1
    found = {"row_id": np.arange(3)}
    assert tables.get(0, lambda: found) is tables.get(0, fail) is found


def test_overfit_batches_reads_only_needed_blocks(stored, memory):
    list(stored["train"].loader(48, overfit_batches=2))
    assert sorted(read_files(memory, "review_word")) == ["c.0.0", "c.1.0", "c.2.0"]


def test_first_batch_after_resume_reads_one_block_per_stream(stored, memory):
    train = stored["train"]
    whole = train.loader(16, prefetch_size=0)
    batches = iter(whole)
    for _ in range(20):
        next(batches)
    loader = train.loader(16, prefetch_size=0)
    loader.load_state_dict(whole.state_dict())
    memory.requests.clear()
    next(iter(loader))
    assert 0 < len(read_files(memory, "review_word")) <= 16


def test_each_block_is_read_once(stored, memory):
    list(stored["train"].loader(48))
    read = read_files(memory, "review_word")
    assert sorted(read) == sorted(f"c.{number}.0" for number in range(stored["train"].layout.blocks("train")))


INJECTIONS = {
    "dropped": lambda windows: windows[:2] + windows[3:],
    "dropped last": lambda windows: windows[:-1],
    "dropped first": lambda windows: windows[1:],
    "repeated": lambda windows: windows[:3] + windows[2:],
    "repeated last": lambda windows: windows + windows[-1:],
    "in place of another": lambda windows: [*windows[:-1], windows[0]],
}


@pytest.mark.parametrize("injection", INJECTIONS)
def test_audit_detects_dropped_and_repeated_batches(train, monkeypatch, sizes, injection):
    sizes(window_batches=1)
    plain = Pipeline.__iter__
    monkeypatch.setattr(Pipeline, "__iter__", lambda self: iter(INJECTIONS[injection](list(plain(self)))))
    loader = train.loader(48, drop_last=True)
    for _ in loader:
        pass
    with pytest.raises(CorruptDatasetError, match="batches were lost or repeated"):
        loader.audit()


def test_audit_of_partial_epoch(train):
    loader = train.loader(48)
    assert loader.audit() == {"rows": 0, "batches": 0}
    batches = iter(loader)
    next(batches), next(batches)
    assert loader.audit() == {"rows": 96, "batches": 2}


def test_stats_keys(train):
    loader = train.loader(48)
    list(loader)
    stats = loader.stats()
    assert stats["reading"] > 0
    assert stats.keys() >= {"reading", "gathering", "waiting"}


@pytest.mark.parametrize(
    ("options", "blocks", "shown"),
    [
        ({"prefetch_size": 2}, 32, "32 blocks, 3 threads"),
        ({"prefetch_size": 0}, 0, "none"),
        ({"prefetch_size": 2, "rank": 0, "world_size": 3}, 12, "12 blocks"),
    ],
)
def test_repr_html_shows_prefetch(train, options, blocks, shown):
    loader = train.loader(48, threads=3, **options)
    assert loader.stats()["prefetch_blocks"] == blocks
    assert f">{shown}" in loader._repr_html_()
    list(loader)
    assert loader.stats()["prefetch_blocks"] == blocks
    assert train.loader(48).stats()["prefetch_blocks"] > 0


def test_loader_pickles(train, rows):
    loader = train.loader(48, row_ids=True, balance=dp.Undersample("sold", ratio=1.0))
    batches = iter(loader)
    next(batches)
    copy = pickle.loads(pickle.dumps(loader))
    copy.set_epoch(0)
    loader.set_epoch(0)
    assert_equal(rows(copy), rows(loader))


@pytest.mark.parametrize("rows_written", [1, 5, 16, 17, 48])
def test_fewer_rows_than_batch_size(tmp_path, table, rows, rows_written):
    prep = dp.Preprocessor({"city": "category", "tags": "set"})
    small = prep.fit_write(table.head(rows_written), tmp_path / "small.dp")["train"]
    found = rows(small.loader(48, row_ids=True))
    assert [len(batch) for batch in found] == [rows_written]
    assert list(small.loader(64, drop_last=True)) == []


def test_batch_size_without_divisors_warns_and_mixes_blocks(train, rows):
    with pytest.warns(
        UserWarning, match=r"batch_size=131 has no divisor from 8 to 64.*use batch_size=144 or streams=16"
    ):
        loader = train.loader(131, row_ids=True)
    first = rows(loader)[0]
    assert len(np.unique(first // train.layout.block_rows)) > 16
    assert loader.audit()["rows"] == len(train)
    train.loader(131, streams=131)
