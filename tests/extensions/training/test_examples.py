"""Datasets of torch and lists of examples as data of a manager in any role."""

from __future__ import annotations

import json
from itertools import chain

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, Subset

import daskprep as dp
from daskprep.dataset.loader.batch_iterator import Ranks
from daskprep.errors import ConfigError
from daskprep.extensions.training.examples import Examples


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, row):
        return row


class Stream(IterableDataset):
    """An iterable dataset that has a length but no `__getitem__`."""

    def __init__(self):
        self.epochs = []

    def __len__(self):
        return 10

    def __iter__(self):
        return iter(range(10))

    def set_epoch(self, epoch):
        self.epochs.append(epoch)


def opened(data, role="train", rank=0, world_size=1, **options):
    managers = {"train": {"a": "nowhere.dp"}} | {role: {"a": dp.Manager(data, 4, **options)}}
    module = dp.DataModule(managers, rank=rank, world_size=world_size)
    module.setup("validate" if role == "val" else "fit")
    return module, module.val_dataloader()[0] if role == "val" else module.train_dataloader()


def as_lists(batches):
    return [batch.tolist() for batch in batches]


def test_validation_of_empty_examples(dataset):
    _, loader = opened([{}] * 6, "val", collate=len)
    assert list(loader) == list(loader) == [4, 2]


@given(rows=st.integers(0, 40), size=st.integers(1, 9), world=st.integers(1, 9))
def test_ranks_have_equal_batch_counts_and_each_example_once(rows, size, world):
    size = max(size, world)
    for data in (list(range(rows)), iter_of(rows)):
        if 0 < rows < world:
            with pytest.raises(ConfigError, match=f"{rows} examples are too few for {world} ranks"):
                list(Examples(data, size, Ranks(0, world, uneven=True)))
            continue
        ranks = [Examples(data, size, Ranks(rank, world, uneven=True)) for rank in range(world)]
        shares = [list(one) for one in ranks]
        assert len({len(share) for share in shares}) == 1
        assert len(shares[0]) == len(ranks[0]) if isinstance(data, list) else True
        assert all(batch for share in shares for batch in share)
        assert sorted(one for share in shares for batch in share for one in batch) == list(range(rows))


def iter_of(rows):
    class Rows(IterableDataset):
        def __iter__(self):
            return iter(range(rows))

    return Rows()


def test_torch_datasets_are_shuffled_only_for_training():
    _, loader = opened(Numbers(), seed=1)
    first, second = as_lists(loader), as_lists(loader)
    assert first != second
    for epoch in (first, second):
        assert sorted(chain(*epoch)) == list(range(10))
    assert as_lists(opened(Numbers(), seed=1)[1]) == first
    in_order = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert as_lists(opened(Numbers(), shuffle=False)[1]) == as_lists(opened(Numbers(), "val")[1]) == in_order


@pytest.mark.parametrize("data", [Numbers(), Subset(Numbers(), range(10)), Stream(), list(range(10))])
def test_training_resumes_after_yielded_examples(data):
    whole = as_lists(opened(data, seed=3)[1])
    for world in (1, 2):
        for done in range(1, 4):
            module, loader = opened(data, seed=3)
            seen = [batch.tolist() for _, batch in zip(range(done), loader, strict=False)]
            state = json.loads(json.dumps(module.state_dict()))
            rest = []
            for rank in range(world):
                module, loader = opened(data, seed=3, rank=rank, world_size=world)
                module.load_state_dict(state)
                rest.append(as_lists(loader))
            joined = [sorted(chain(*batches)) for batches in zip(*rest, strict=True)]
            following = whole[done:] if done < 3 else as_lists(second_epoch(data))
            assert joined == [sorted(batch) for batch in following]
            assert seen == whole[:done]


def second_epoch(data):
    _, loader = opened(data, seed=3)
    list(loader)
    return loader


def test_iterable_dataset_receives_epoch_and_keeps_order():
    data = Stream()
    _, loader = opened(data)
    assert as_lists(loader) == as_lists(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert data.epochs == [0, 1]
    with pytest.raises(ConfigError, match="shuffle=True needs a length and rows by number"):
        opened(Stream(), shuffle=True)


def test_hugging_face_iterable_dataset_yields_examples():
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"a": list(range(10))})
    for one in (data, data.to_iterable_dataset()):
        batches = [batch["a"].tolist() for rank in range(2) for batch in opened(one, "val", rank, 2)[1]]
        assert batches == [[0, 1], [4, 5], [8], [2, 3], [6, 7], [9]]


def test_state_of_other_examples_raises():
    module, loader = opened(Numbers())
    next(iter(loader))
    state = module.state_dict()
    for data, options in ((list(range(9)), {}), (Numbers(), {"seed": 2}), (Stream(), {})):
        with pytest.raises(ConfigError, match="the state was saved with"):
            opened(data, **options)[0].load_state_dict(state)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (["a.dp", "b.dp"], r"pass open_dataset\(\[...\]\)"),
        (DataLoader(Numbers()), "forms batches itself: pass its dataset"),
        (pd.DataFrame({"a": [1]}), "expected a split"),
        (pd.Series([1]), "expected a split"),
    ],
)
def test_invalid_examples_raise(data, words):
    with pytest.raises(ConfigError, match=words):
        dp.Manager(data)


def test_ranks_with_unordered_or_partial_examples_raise():
    with pytest.raises(ConfigError, match="is a set, which has another order on each rank"):
        opened({"a", "b"}, "val", 0, 2)
    with pytest.raises(ConfigError, match="takes rank and returned examples, which ranks share"):
        opened(lambda rank: [rank], "val", 0, 2)
    with pytest.raises(ConfigError, match="not divisible by 3 ranks"):
        opened(Numbers(), "train", 0, 3)
    assert as_lists(opened(Numbers(), "train", 2, 3, uneven=True, shuffle=False)[1]) == [[2, 3], [6], [9]]
