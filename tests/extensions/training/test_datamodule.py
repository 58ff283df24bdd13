"""The loaders of a run in a loop of one's own: names, stages, states, ranks."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

import daskprep as dp
from daskprep.errors import ConfigError


@pytest.fixture
def managers(dataset):
    def manager(**options):
        return dp.Manager(dataset, 16, row_ids=True, **options)

    return {
        "train": {"lm": manager()},
        "val": {"lm": manager(), "slow": manager(stages=["validate", "test"])},
        "test": {"other": manager()},
        "predict": {"lm": manager(split="test")},
    }


def test_dataloader_names_follow_stage(managers):
    data = dp.DataModule(managers)
    data.setup("fit")
    assert data.dataloader_names == {"train": ["lm"], "val": ["lm"], "test": ["slow", "other"], "predict": ["lm"]}
    assert len(data.val_dataloader()) == 1
    data.setup("val")

    assert data.dataloader_names["validate"] == data.dataloader_names["val"] == ["lm", "slow"]
    assert len(data.val_dataloader()) == 2
    with pytest.raises(ConfigError, match='no role "tset". Each role is one of|no role "tset". Did you mean "test"'):
        data.dataloader_names["tset"]


def test_loaders_exist_between_setup_and_teardown(managers):
    data = dp.DataModule(managers)
    with pytest.raises(ConfigError, match=r'loaders of "val" are not open: call setup\("fit"\) or setup\("validate"\)'):
        data.val_dataloader()
    for stage in ("fit", "test", "predict"):
        data.setup(stage)
    assert data.train_dataloader() is data.train_dataloader()
    data.teardown("fit")

    assert [len(data.test_dataloader()), len(data.predict_dataloader())] == [2, 1]
    with pytest.raises(ConfigError, match='"train" are not open'):
        data.train_dataloader()


def test_only_training_loader_is_shuffled(managers, rows):
    data = dp.DataModule(managers)
    data.setup("fit")
    train, val = data.train_dataloader(), data.val_dataloader()[0]

    assert rows(train) != rows(train)
    assert rows(val) == rows(val)
    assert val.epoch == 0  # Random changes are the same each time, too.


@pytest.mark.parametrize("load_first", [True, False], ids=["opened load_first", "open"])
def test_state_loads_before_or_after_setup(managers, rows, load_first):
    data = dp.DataModule(managers)
    data.setup("fit")
    whole = rows(data.train_dataloader()) + rows(data.train_dataloader())
    data = dp.DataModule(managers)
    data.setup("fit")
    first = rows(islice(data.train_dataloader(), 7))
    state = json.loads(json.dumps(data.state_dict()))
    other = dp.DataModule(managers)
    if load_first:
        other.load_state_dict(state)
    other.setup("fit")
    if not load_first:
        other.load_state_dict(state)

    assert len(json.dumps(state)) < 1000
    assert first + rows(other.train_dataloader()) + rows(other.train_dataloader()) == whole


def test_state_survives_teardown(managers, rows):
    whole = dp.DataModule(managers)
    whole.setup("fit")
    expected = rows(whole.train_dataloader())
    data = dp.DataModule(managers)
    assert data.state_dict() == {}
    data.setup("fit")
    first = rows(islice(data.train_dataloader(), 3))
    before = data.state_dict()
    data.teardown("fit")
    assert data.state_dict() == before
    data.setup("fit")

    assert first + rows(data.train_dataloader()) == expected


def test_state_of_other_manager_raises(managers):
    data = dp.DataModule(managers)
    data.setup("fit")
    state = data.state_dict()
    other = dp.DataModule({"train": {"ml": managers["train"]["lm"]}})

    with pytest.raises(ConfigError, match='no training manager "ml", only lm: use'):
        other.load_state_dict(state)


def test_overfit_batches_in_training_and_validation(managers, rows):
    data = dp.DataModule(managers, overfit_batches=1)
    for stage in ("fit", "test"):
        data.setup(stage)
    train, val, tests = data.train_dataloader(), data.val_dataloader()[0], data.test_dataloader()

    assert len(train) == len(val) == 1
    assert (
        rows(train) == rows(train) == [managers["train"]["lm"].data["train"].read("row_id", stop=16)["row_id"].tolist()]
    )
    assert rows(val) == rows(val)
    assert [len(one) for one in tests] == [2, 2]


def test_overfit_batches_with_packing(dataset):
    packed = dp.Manager(dataset, 4, group_processors=[dp.Packing(block_size=16, columns="steps")])
    data = dp.DataModule({"train": {"lm": packed}}, overfit_batches=2)
    data.setup("fit")
    epochs = [[batch["steps"].tolist() for batch in data.train_dataloader()] for _ in range(2)]

    assert len(epochs[0]) == 2
    assert epochs[0] == epochs[1]


def test_functions_are_called_once_for_all_managers_and_stages(dataset):
    calls = []

    def prepare():
        calls.append(1)
        return dataset

    data = dp.DataModule({place: {"lm": prepare} for place in ("train", "val", "test")})
    data.prepare_data()
    for stage in ("fit", "validate", "test", "fit"):
        data.setup(stage)

    assert len(calls) == 1
    assert data.train_dataloader().source.split.name == "train"


REFUSED = [
    ({}, 'no managers: pass {"train"'),
    ({"train": {"a": "a.dp", "b": "a.dp"}}, r'"train" has 2 managers \(a, b\)'),
    ({"trian": {"a": "a.dp"}}, 'no role "trian". Did you mean "train"'),
    ({"train": "a.dp"}, "expected managers by name"),
    (
        {"train": {"a": "a.dp"}, "val": {"a": "a.dp"}, "validate": {"b": "a.dp"}},
        '"validate" means "val", which is already used',
    ),
    ({"train": {"a": {"data": "a.dp", "stages": "test"}}}, '"train" runs in stage "fit" only'),
    (
        {"train": {"a": "a.dp"}, "val": {"a": {"data": "a.dp", "stages": "test"}}, "test": {"a": "a.dp"}},
        'stage "test" has two managers named "a"',
    ),
    ("a.dp", "a str is not a mapping of managers by role"),
]


@pytest.mark.parametrize(("managers", "message"), REFUSED)
def test_invalid_managers_raise(managers, message):
    with pytest.raises(ConfigError, match=message):
        dp.DataModule(managers)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"rank": 1}, "pass both rank and world_size"), ({"overfit_batches": 0}, "overfit_batches=0: expected")],
)
def test_invalid_options_raise(options, message):
    with pytest.raises(ConfigError, match=message):
        dp.DataModule({"train": {"a": "a.dp"}}, **options)


def test_datamodule_pickles(managers, rows):
    data = dp.DataModule(managers)
    data.setup("fit")

    assert rows(pickle.loads(pickle.dumps(data)).train_dataloader()) == rows(data.train_dataloader())


def test_importing_names_does_not_import_torch():
    code = "import sys, daskprep; daskprep.__all__; print('torch' in sys.modules, 'lightning' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    completed = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    )

    assert completed.stdout.split() == ["False", "False"]


@pytest.mark.slow
def test_torch_ranks_wait_for_first_rank_and_share_rows(tmp_path):
    script = Path(__file__).parent / "ranks_process.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    commands = [[sys.executable, str(script), str(tmp_path), str(rank)] for rank in range(2)]
    processes = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for command in commands]
    errors = [process.communicate(timeout=280)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    results = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    dataset = dp.open_dataset(tmp_path / "listings.dp")

    assert [one["calls"] for one in results] == [1, 0]
    assert sorted(results[0]["rows"] + results[1]["rows"]) == sorted(dataset["train"].read("row_id")["row_id"].tolist())
    assert [one["numbers"] for one in results] == [[[[0, 1], [4], [7]]] * 2, [[[2, 3], [5, 6], [8]]] * 2]
    assert [one["examples"] for one in results] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert [one["failed"] for one in results] == [
        "no room",
        "rank 0 failed to prepare the data: OSError: no room",
    ]


def test_shared_method_is_called_once(dataset):
    class Data:
        calls = 0

        def prepare(self):
            self.calls += 1
            return dataset

    mine = Data()
    data = dp.DataModule({"train": {"a": mine.prepare}, "val": {"a": mine.prepare}})
    data.prepare_data()
    data.setup("fit")
    assert mine.calls == 1


def test_training_loader_in_validation_raises(dataset):
    loader = dataset["train"].loader(16, shuffle=False)
    with pytest.raises(ConfigError, match="is also used for training.*pass a function") as caught:
        dp.DataModule({"train": {"a": loader}, "val": {"b": loader}})
    assert caught.value.__notes__ == ['in manager "b" of "val"']
