"""Loaders in torch's DataLoader and processes yield the same batches."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import daskprep as dp

pytestmark = [
    # More workers than cores are what some users have.
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    # torchdata 0.11 with torch 2.13.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]


@pytest.fixture
def epoch(train, rows):
    return rows(train.loader(48, row_ids=True))


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def in_workers(loader, workers, **options):
    return DataLoader(loader, batch_size=None, num_workers=workers, **options)


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_workers_yield_same_batches(train, rows, epoch, workers):
    assert_equal(rows(in_workers(train.loader(48, row_ids=True), workers)), epoch)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_workers_with_forkserver_and_spawn(train, rows, epoch, method):
    loader = train.loader(48, row_ids=True, targets="sold")
    batches = in_workers(loader, 1, multiprocessing_context=method)
    assert_equal(rows(inputs for inputs, _ in batches), epoch)


def test_persistent_workers_advance_epoch(train, rows, epoch):
    batches = in_workers(train.loader(48, row_ids=True), 2, persistent_workers=True)
    second = train.loader(48, row_ids=True)
    second.set_epoch(1)
    assert_equal(rows(batches), epoch)
    assert_equal(rows(batches), rows(second))


def test_restarted_workers_use_set_epoch(train, rows):
    loader, other = train.loader(48, row_ids=True), train.loader(48, row_ids=True)
    for number in (1, 2):
        loader.set_epoch(number)
        other.set_epoch(number)
        assert_equal(rows(in_workers(loader, 2)), rows(other))


def test_more_workers_than_batches(train, rows):
    whole = rows(train.loader(960, row_ids=True))
    batches = in_workers(train.loader(960, row_ids=True), 3, persistent_workers=True)
    assert_equal(rows(batches), whole)
    assert len(rows(batches)) == len(whole)


def test_workers_resume_from_state(train, rows, epoch):
    loader = train.loader(48, row_ids=True)
    batches = iter(loader)
    first = rows(next(batches) for _ in range(5))
    other = train.loader(48, row_ids=True)
    other.load_state_dict(loader.state_dict())
    assert_equal(first + rows(in_workers(other, 2)), epoch)


# -- StatefulDataLoader


def stateful(train, workers, **options):
    return StatefulDataLoader(train.loader(48, row_ids=True), batch_size=None, num_workers=workers, **options)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "stops"), [(0, (0, 1, 8, 20, 21)), (2, (1, 7, 20)), (3, (19,))])
def test_stateful_data_loader_resumes_at_any_batch(train, rows, epoch, workers, stops):
    for stop in stops:
        loader = stateful(train, workers)
        batches = iter(loader)
        first = rows(next(batches) for _ in range(stop))
        state = json.loads(json.dumps(loader.state_dict(), default=int))
        del batches
        other = stateful(train, workers)
        other.load_state_dict(state)
        left = rows(other)
        if workers or stop < len(epoch):
            assert_equal(first + left, epoch)
        else:
            # At the end of an epoch, a loader without workers starts the next one.
            assert_equal(left, rows(second_of(train)))


def second_of(train):
    loader = train.loader(48, row_ids=True)
    loader.set_epoch(1)
    return loader


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}])
def test_stateful_data_loader_starts_next_epoch_after_end(train, rows, options):
    workers = 2 if options else 0
    loader = stateful(train, workers, **options)
    for _ in loader:
        pass
    other = stateful(train, workers, **options)
    other.load_state_dict(loader.state_dict())
    assert_equal(rows(other), rows(second_of(train)))


# -- torch.distributed


def take_part(rank: int, path: Path, folder: Path, world: int) -> None:
    """Save the rows of two epochs and the batches of a rank, from loaders without rank options."""
    store = torch.distributed.FileStore(str(folder / "store"), world)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)
    try:
        loader = dp.open_dataset(path)["train"].loader(48, row_ids=True)
        found: dict[str, Any] = {"own": row_ids(loader), "again": row_ids(loader)}
        loader.set_epoch(0)
        found["workers"] = row_ids(in_workers(loader, 1, multiprocessing_context="spawn"))
        batches = torch.tensor([len(found["own"])])
        torch.distributed.all_reduce(batches)
        found["all batches"] = int(batches)
        (folder / f"{rank}.json").write_text(json.dumps(found))
    finally:
        torch.distributed.destroy_process_group()


def row_ids(batches: Any) -> list[list[int]]:
    return [batch["row_id"].tolist() for batch in batches]


@pytest.fixture(scope="module")
def ranks(path, tmp_path_factory) -> Iterator[list[dict[str, Any]]]:
    """Return the results of two ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=take_part, args=(rank, path, folder, 2)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    yield [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    for process in processes:
        process.kill()


@pytest.mark.slow
def test_torch_distributed_ranks_share_batches(ranks, epoch):
    joined = [np.sort(one + other) for one, other in zip(ranks[0]["own"], ranks[1]["own"], strict=True)]
    assert_equal(joined, [np.sort(batch) for batch in epoch])
    assert [found["all batches"] for found in ranks] == [2 * len(epoch)] * 2
    assert ranks[0]["again"] != ranks[0]["own"]


@pytest.mark.slow
def test_spawned_workers_yield_share_of_rank(ranks):
    for found in ranks:
        assert found["workers"] == found["own"]


# -- DataLoader of a split


@pytest.mark.parametrize("targets", [(), ["sold"], ["sold", "city"]])
def test_data_loader_of_split_equals_loader(table, tmp_path, targets):
    features = {"price": "number", "city": "category", "tags": "set", "sold": "binary"}
    prep = dp.Preprocessor(features, targets=targets, weight="pounds", split=None)
    train = prep.fit_write(table.head(50).assign(pounds=2.0), tmp_path / "few.dp")["train"]
    expected = list(train.loader(8, shuffle=False))
    some = torch.utils.data.Subset(train, range(50))
    for found in (DataLoader(train, 8), DataLoader(some, 8, num_workers=1)):
        for one, other in zip(found, expected, strict=True):
            assert len(one) == len(other)
            torch.testing.assert_close(*map(tree_leaves, (one, other)), rtol=0, atol=0)
    [first, *_] = rows = list(DataLoader(train, batch_size=None))
    assert len(rows) == 50
    assert {name: value.tolist() for name, value in first.items()} == {k: v.tolist() for k, v in train[0].items()}


def test_split_getitem_returns_stored_dtype(train):
    assert train[[3, 1]]["city"].dtype == train[3]["city"].dtype == np.uint8
