"""Sources, processors and errors of managers."""

from __future__ import annotations

import os
import sys

import pytest
import torch

import daskprep as dp
from daskprep.dataset.loader import Loader
from daskprep.errors import ConfigError


def opened(manager, place="val", **options):
    """Return the loader of a manager in a role."""
    managers = (
        {"train": {"lm": manager}} if place == "train" else {"train": {"lm": "nowhere.dp"}, place: {"lm": manager}}
    )
    data = dp.DataModule(managers, **options)
    stage = "validate" if place == "val" else "fit" if place == "train" else place
    data.setup(stage)
    return data.train_dataloader() if place == "train" else getattr(data, f"{place}_dataloader")()[0]


@pytest.mark.parametrize(("place", "split"), [("train", "train"), ("val", "validation"), ("test", "test")])
def test_default_split_follows_role(dataset, path, place, split):
    for data in (dataset, path, str(path), lambda: dataset, lambda: path, dataset[split], lambda: dataset[split]):
        loader = opened(dp.Manager(data, 16), place).source
        assert loader.split.name == split
        assert loader.shuffle == (place == "train")
    assert opened(dp.Manager(dataset, split="test"), place).source.split.name == "test"


def test_predict_without_split_raises(dataset):
    with pytest.raises(ConfigError, match=r"split is needed: .* has train, validation, test. Pass split="):
        opened(dp.Manager(dataset), "predict")
    assert opened(dp.Manager(dataset, split="test"), "predict").source.split.name == "test"


def test_columns_to_remove_are_not_read(dataset):
    batches = opened(dp.Manager(dataset, columns_to_remove=["steps", "sold"], row_ids=True))

    assert batches.source.names == ["price", "area"]
    assert set(next(iter(batches))) == {"price", "area", "row_id"}


def test_columns_to_remove_includes_added_outputs(dataset):
    packing = dp.Packing(block_size=16, columns="steps")
    packed = dp.Manager(dataset, 4, group_processors=[packing], columns_to_remove="position_ids")
    assert set(next(iter(opened(packed)))) == {"steps", "document_ids"}

    dropped = dp.Manager(dataset, 4, group_processors=[packing], columns_to_remove=["price", "document_ids"])
    assert set(next(iter(opened(dropped)))) == {"steps", "position_ids"}

    loader = dataset["test"].loader(4, shuffle=False, targets="sold", row_ids=True)
    inputs, sold = next(iter(opened(dp.Manager(loader, columns_to_remove=["price", "area", "steps"]))))
    assert set(inputs) == {"row_id"}
    assert sold.dtype == torch.bool
    with pytest.raises(ConfigError, match='batches have no output "prise".* Did you mean "price"'):
        next(iter(opened(dp.Manager(loader, columns_to_remove=["prise"]))))


def test_loader_options_are_passed_on(dataset):
    manager = dp.Manager(dataset, 8, seed=5, targets="sold", prefetch_size=0, drop_last=True)
    loader = opened(manager).source

    assert (loader.seed, loader.prefetch_size, loader.drop_last, loader.batch_size) == (5, 0, True, 8)
    assert isinstance(next(iter(loader)), tuple)


def test_processors_are_imported_by_allowed_name(dataset, tmp_path, monkeypatch):
    (tmp_path / "own_steps.py").write_text("def shifted(batch):\n    return {'price': batch['price'] + 1000}\n")
    monkeypatch.syspath_prepend(tmp_path)
    manager = {"data": dataset, "processors": ["own_steps.shifted"], "collate": "own_steps.shifted"}

    for allowed in ("own_steps.", ["own_steps.shifted"]):
        batch = next(iter(opened(manager, allowed=allowed)))
        assert (batch["price"] > 1900).all()
    with pytest.raises(ConfigError, match='cannot import "own_steps.shifter"'):
        opened({"data": dataset, "processors": "own_steps.shifter"}, allowed="own_steps.")


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("antigravity.geohash", ()),
        ("antigravity.geohash", ("mine.", "anti.")),
        ("antigravity.geohash", ("antigravity",)),
        ("os.system", ("posix.",)),
        ("mine.__import__('os').system", ("mine.",)),
        ("mine", ("mine.",)),
    ],
)
def test_import_outside_allowed_raises(dataset, name, allowed):
    with pytest.raises(ConfigError, match="processors: "):
        opened({"data": dataset, "processors": [name]}, allowed=allowed)
    assert "antigravity" not in sys.modules


REFUSED = [
    ({"data": 3}, "data=3: expected a split, a dataset"),
    ({"batch_size": 8}, 'lacks "data"'),
    ({"data": "a.dp", "batchsize": 8}, 'no option "batchsize". Did you mean "batch_size"'),
    ({"data": "a.dp", "rank": 1}, "rank is not an option of a Manager"),
    ({"data": "a.dp", "overfit_batches": 1}, "overfit_batches is not an option of a Manager"),
    ({"data": "a.dp", "stages": "vali"}, 'no stage "vali". Did you mean "validate"'),
    ({"data": "a.dp", "shuffle": True}, "shuffle=True is for training only"),
    ({"data": "a.dp", "processors": [3]}, "processors=3: expected a callable"),
    ({"data": "a.dp", "pack": 1, "group_processors": dp.Packing(4, "a")}, "pack and a Packing"),
    ({"data": "a.dp", "group_processors": [iter, dp.Packing(4, "a")]}, "before all others"),
]


@pytest.mark.parametrize(("manager", "message"), REFUSED)
def test_invalid_manager_raises(manager, message):
    with pytest.raises(ConfigError, match=message) as caught:
        dp.DataModule({"train": {"lm": "a.dp"}, "val": {"other": manager}})
    assert caught.value.__notes__ == ['in manager "other" of "val"']


REFUSED_OPENING = [
    ({"split": "valid"}, 'no split "valid".*Did you mean "validation"'),
    ({"columns_to_remove": ["prise"]}, 'no output "prise".*Did you mean "price"'),
    ({"columns_to_remove": ["sold"], "targets": "sold"}, '"sold" is also in targets'),
    ({"columns_to_remove": ["sold"], "columns": ["price"]}, "columns and columns_to_remove exclude each other"),
    (
        {"columns_to_remove": "steps", "group_processors": dp.Packing(8, "steps")},
        r"names all outputs of .* \(steps\), so nothing",
    ),
    ({"columns_to_remove": ["price", "area", "steps", "sold"]}, "names all outputs of .* nothing is left"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED_OPENING)
def test_options_not_matching_dataset_raise_in_setup(dataset, options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        opened(dp.Manager(dataset, **options))
    assert 'in manager "lm" of "val"' in caught.value.__notes__


def test_split_contradicting_data_raises(dataset):
    with pytest.raises(ConfigError, match='split="test" contradicts data, which is the split "train"'):
        opened(dp.Manager(dataset["train"], split="test"))


def test_function_returning_none_raises(dataset):
    with pytest.raises(ConfigError, match="returned None: expected a split, a dataset"):
        opened(dp.Manager(lambda: os.environ.get("NO_SUCH_PLACE")))


# -- streams


def test_stream_function_receives_rank(dataset):
    made = []

    def stream(rank, world_size):
        made.append((rank, world_size))
        return dataset["train"].loader(16, rank=rank, world_size=world_size, row_ids=True)

    data = dp.DataModule({"train": {"lm": stream}}, rank=1, world_size=2)
    data.prepare_data()
    assert made == []
    data.setup("fit")

    assert made == [(1, 2)]
    assert [len(batch["row_id"]) for batch in data.train_dataloader()] == [8] * 10


def test_managers_create_separate_streams(dataset):
    def stream():
        return dataset["test"].loader(16, shuffle=False)

    data = dp.DataModule({"train": {"lm": stream}, "val": {"one": stream, "other": stream}})
    data.prepare_data()
    data.setup("fit")
    loaders = [data.train_dataloader(), *data.val_dataloader()]

    assert all(isinstance(one.source, Loader) for one in loaders)
    assert len({id(one.source) for one in loaders}) == 3


def test_incompatible_streams_raise(dataset):
    shuffled = dataset["test"].loader(16)
    with pytest.raises(ConfigError, match="is shuffled, which is for training only"):
        opened(dp.Manager(shuffled))
    with pytest.raises(ConfigError, match="batch_size must be set when the stream is created"):
        opened(dp.Manager(shuffled, 16), "train")
    with pytest.raises(ConfigError, match="has world_size=1, but there are 2 ranks"):
        opened(dp.Manager(shuffled), "train", rank=0, world_size=2)


def test_manager_without_data_raises():
    with pytest.raises(ConfigError, match=r"^{'split': 'train'} lacks \"data\""):
        dp.DataModule.from_config({"train": {"lm": {"split": "train"}}})
