"""Lightning's Trainer: named loaders in every stage, and checkpoints that resume exactly."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import MisconfigurationException

import daskprep as dp
from daskprep.errors import ConfigError
from daskprep.lightning import DataModule

pytestmark = [
    # Lightning 2.6 with torch 2.13.
    pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning"),
    # A callback writes the checkpoints; the resumed run does not need it.
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks:UserWarning"),
]

BATCH = 16
STEPS = 10  # of an epoch: 160 rows


class Recorder(LightningModule):
    """Record the rows of training batches, and of other batches by loader name."""

    def __init__(self, *, fail_at=None, one_cycle=False):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.fail_at, self.one_cycle = fail_at, one_cycle
        self.trained, self.seen = [], []

    def training_step(self, batch, batch_idx):
        if len(self.trained) == self.fail_at:
            raise RuntimeError("a step failed")
        self.trained.append(batch["row_id"].tolist())
        return self.layer(batch["area"][:, None]).pow(2).mean()

    def _see(self, batch, dataloader_idx):
        name = self.trainer.datamodule.dataloader_names[self.trainer.state.stage][dataloader_idx]
        self.seen.append((name, batch["row_id"].tolist()))
        return name

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        name = self._see(batch, dataloader_idx)
        self.log(f"{name}_rows", len(batch["row_id"]), add_dataloader_idx=False, reduce_fx=torch.sum, batch_size=1)

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        self._see(batch, dataloader_idx)

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return self._see(batch, dataloader_idx)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
        if not self.one_cycle:
            return optimizer
        steps = int(self.trainer.estimated_stepping_batches)
        return [optimizer], [torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)]


def identity(batches):
    """A group processor: its length is unknown, so Lightning fetches one batch ahead."""
    yield from batches


def flat(batches):
    return list(chain.from_iterable(batches))


def data_of(dataset, **options):
    manager = dp.Manager(dataset, BATCH, row_ids=True, **options)
    return DataModule({"train": {"lm": manager}, "val": {"lm": dp.Manager(dataset, BATCH, row_ids=True)}})


def trainer_of(**options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    defaults = {"max_epochs": 2, "enable_checkpointing": "callbacks" in options, **options}
    return Trainer(accelerator="cpu", **quiet, **defaults)


def fitted(data, ckpt=None, model=None, **options):
    model = model or Recorder()
    trainer_of(**options).fit(model, data, ckpt_path=ckpt)
    return model.trained


def keeping(folder, **options):
    return [ModelCheckpoint(folder, save_top_k=-1, **options)]


def checkpoints(folder):
    """Yield checkpoints with their number of training batches."""
    for path in folder.glob("*.ckpt"):
        loops = torch.load(path, weights_only=True)["loops"]
        yield path, loops["fit_loop"]["epoch_loop.batch_progress"]["total"]["processed"]


def test_import_without_lightning_raises(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, "daskprep.lightning")

    with pytest.raises(ImportError, match="pip install lightning"):
        importlib.import_module("daskprep.lightning")


# -- stages


def test_loaders_of_each_stage_are_named(dataset):
    two = {name: {"data": dataset["test"], "batch_size": 8, "row_ids": True} for name in ("lm", "other")}
    data = DataModule({"train": {"lm": {"data": dataset, "row_ids": True}}, "val": two, "test": two, "predict": two})
    model, trainer = Recorder(), trainer_of(max_epochs=1)
    rows = sorted(dataset["test"].read("row_id")["row_id"].tolist())

    trainer.fit(model, data)
    fit = model.seen[4:]  # Lightning looks at two batches of each before it trains.
    assert trainer.callback_metrics["other_rows"] == len(rows)
    for run in (trainer.validate, trainer.test):
        model.seen = []
        run(model, data, verbose=False)
        assert model.seen == fit
    predicted = trainer.predict(model, data)

    assert predicted == [["lm"] * 3, ["other"] * 3]
    assert sorted(flat(ids for name, ids in fit if name == "other")) == rows


def test_missing_loaders_warn_or_raise_in_lightning(dataset):
    data = DataModule({"train": {"lm": {"data": dataset, "row_ids": True}}})
    model, trainer = Recorder(), trainer_of(max_epochs=1)

    with pytest.warns(UserWarning, match="have no `val_dataloader`. Skipping val loop"):
        trainer.fit(model, data)
    assert len(model.trained) == 1
    with pytest.raises(MisconfigurationException, match="`test_dataloader` must be implemented"):
        trainer.test(model, data)


def test_module_without_training_predicts_and_raises_in_fit(dataset):
    data = DataModule({"predict": {"lm": {"data": dataset["test"], "batch_size": 8, "row_ids": True}}})
    assert trainer_of().predict(Recorder(), data) == ["lm"] * 3
    data.val_dataloader = data.predict_dataloader  # which silences Lightning's warning
    with pytest.raises(dp.errors.ConfigError, match='"train" has no manager, which fit needs'):
        trainer_of().fit(Recorder(), data)


def test_manager_stages_select_loaders(dataset):
    val = {
        "quick": {"data": dataset, "row_ids": True},
        "slow": {"data": dataset, "row_ids": True, "stages": ["validate", "test"]},
    }
    data = DataModule({"train": {"lm": {"data": dataset, "row_ids": True}}, "val": val})
    model, trainer = Recorder(), trainer_of(max_epochs=1)
    names = []
    for run in (trainer.fit, trainer.validate, trainer.test):
        model.seen = []
        run(model, data)
        names.append({name for name, _ in model.seen})

    assert names == [{"quick"}, {"quick", "slow"}, {"slow"}]


# -- resuming


WAYS = {
    "every other step": ({"every_n_train_steps": 2}, {}),
    "at the end of an epoch": ({"save_on_train_epoch_end": True}, {}),
    "after validation": ({}, {"val_check_interval": 4}),
    "while gradients are accumulated": ({"every_n_train_steps": 2}, {"accumulate_grad_batches": 4}),
    "in shortened epochs": ({"every_n_train_steps": 2}, {"limit_train_batches": 5, "max_epochs": 3}),
    "with reloaded dataloaders": ({"every_n_train_steps": 3}, {"reload_dataloaders_every_n_epochs": 1}),
    "by steps": ({"every_n_train_steps": 3}, {"max_steps": 20, "max_epochs": None}),
}


@pytest.mark.slow
@pytest.mark.parametrize("groups", [[], [identity]], ids=["known length", "unknown length"])
@pytest.mark.parametrize("way", WAYS)
def test_checkpoint_resumes_with_remaining_batches(dataset, tmp_path, way, groups):
    saving, options = WAYS[way]
    whole = fitted(data_of(dataset, group_processors=groups), callbacks=keeping(tmp_path, **saving), **options)
    found = dict(checkpoints(tmp_path))

    assert len(found) >= 2
    assert len({tuple(batch) for batch in whole}) == len(whole)
    for path, trained in found.items():
        rest = fitted(data_of(dataset, group_processors=groups), path, **options)
        assert rest == whole[trained:], f"{way}, after {trained} batches"


def test_resumed_epoch_yields_each_row_once(dataset, tmp_path):
    first = fitted(data_of(dataset), callbacks=keeping(tmp_path, every_n_train_steps=7), max_epochs=1)
    rest = fitted(data_of(dataset), next(tmp_path.glob("*.ckpt")), max_epochs=1)

    assert len(rest) == 3
    assert sorted(flat(first[:7] + rest)) == sorted(dataset["train"].read("row_id")["row_id"].tolist())


def test_resume_within_epoch_with_other_batch_size_raises(dataset, tmp_path):
    def data_of_size(size):
        managers = {"lm": dp.Manager(dataset, size, row_ids=True, streams=8)}
        return DataModule({"train": managers, "val": {"lm": dp.Manager(dataset, BATCH, row_ids=True)}})

    saving = keeping(tmp_path, every_n_train_steps=7) + keeping(tmp_path, save_on_train_epoch_end=True)
    fitted(data_of_size(BATCH), callbacks=saving, max_epochs=1)
    [within, end] = sorted(checkpoints(tmp_path), key=lambda one: one[1])
    with pytest.raises(dp.errors.ConfigError, match=f"batches of {BATCH} rows, and batch_size is now 8: resume with"):
        fitted(data_of_size(8), within[0])
    assert len(fitted(data_of_size(8), end[0])) == 20


def test_run_resumes_twice(dataset, tmp_path):
    whole = fitted(data_of(dataset))
    seen, ckpt = [], None
    for part, stop in enumerate((6, 13, 20)):
        trainer, model = trainer_of(max_steps=stop, max_epochs=None), Recorder()
        trainer.fit(model, data_of(dataset), ckpt_path=ckpt)
        ckpt = tmp_path / f"{part}.ckpt"
        trainer.save_checkpoint(ckpt)
        seen += model.trained

    assert seen == whole


@pytest.mark.parametrize("groups", [[], [identity]], ids=["known length", "unknown length"])
@pytest.mark.parametrize("failing", [0, 9, 10, 13])
def test_failed_batch_is_repeated_after_resume(dataset, tmp_path, failing, groups):
    whole = fitted(data_of(dataset, group_processors=groups))
    trainer, model = trainer_of(), Recorder(fail_at=failing)
    with pytest.raises(RuntimeError, match="a step failed"):
        trainer.fit(model, data_of(dataset, group_processors=groups))
    trainer.save_checkpoint(tmp_path / "failed.ckpt")

    rest = fitted(data_of(dataset, group_processors=groups), tmp_path / "failed.ckpt")

    # Lightning counts a failed last batch of an epoch as done; it comes first in the next epoch.
    assert rest[:5] == whole[failing : failing + 5]


def test_estimated_steps_do_not_restart_resumed_run(dataset, tmp_path):
    options = {"callbacks": keeping(tmp_path, every_n_train_steps=7), "max_epochs": 1}
    whole = fitted(data_of(dataset), model=Recorder(one_cycle=True), **options)
    rest = fitted(data_of(dataset), next(tmp_path.glob("*.ckpt")), Recorder(one_cycle=True), max_epochs=1)

    assert rest == whole[7:]


@pytest.mark.parametrize("groups", [[], [identity]], ids=["known length", "unknown length"])
@pytest.mark.parametrize("stop", [7, STEPS])
def test_stopped_fit_resumes_at_same_batch(dataset, tmp_path, stop, groups):
    whole = fitted(data_of(dataset, group_processors=groups))
    trainer, model = trainer_of(max_steps=stop, max_epochs=None), Recorder()
    trainer.fit(model, data_of(dataset, group_processors=groups))
    trainer.save_checkpoint(tmp_path / "stopped.ckpt")

    def rest(**options):
        return fitted(data_of(dataset, group_processors=groups), tmp_path / "stopped.ckpt", **options)

    assert rest(max_steps=20, max_epochs=None) == whole[stop:]
    # Without max_steps, the Trainer counts the epoch in which it stopped as complete.
    assert rest(max_epochs=3)[: 20 - stop] == whole[stop:]


def test_same_trainer_continues_and_new_trainer_restarts(dataset):
    whole = fitted(data_of(dataset))
    data, trainer, model = data_of(dataset), trainer_of(max_epochs=1), Recorder()
    trainer.fit(model, data)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, data)

    assert model.trained == whole
    assert fitted(data) == whole


def test_checkpoint_without_data_state_raises(dataset, tmp_path):
    class Other(DataModule):
        pass

    fitted(data_of(dataset), callbacks=keeping(tmp_path, every_n_train_steps=7), max_epochs=1)
    data = Other(data_of(dataset).managers)

    with pytest.raises(ConfigError, match="no state of .*Other, so training would restart"):
        fitted(data, next(tmp_path.glob("*.ckpt")), max_epochs=1)


def test_failed_run_does_not_affect_next_fit(dataset, tmp_path):
    whole = fitted(data_of(dataset), callbacks=keeping(tmp_path, every_n_train_steps=7), max_epochs=1)
    data = data_of(dataset)
    with pytest.raises(RuntimeError, match="a step failed"):
        trainer_of().fit(Recorder(fail_at=1), data, ckpt_path=next(tmp_path.glob("*.ckpt")))

    assert fitted(data, max_epochs=1) == whole


def test_validating_checkpoint_does_not_affect_next_fit(dataset, tmp_path):
    whole = fitted(data_of(dataset), callbacks=keeping(tmp_path, every_n_train_steps=7), max_epochs=1)
    data = data_of(dataset)
    trainer_of().validate(Recorder(), data, next(tmp_path.glob("*.ckpt")), verbose=False)

    assert fitted(data, max_epochs=1) == whole


def test_checkpoint_resumes_packed_documents(dataset, tmp_path):
    class Tokens(Recorder):
        def training_step(self, batch, batch_idx):
            self.trained.append(batch["steps"].tolist())
            return self.layer(batch["steps"][:, :1].float()).pow(2).mean()

    def data():
        packed = dp.Manager(dataset, 4, group_processors=[dp.Packing(block_size=16, columns="steps")])
        return DataModule({"train": {"lm": packed}, "val": {"lm": dp.Manager(dataset, row_ids=True)}})

    whole = fitted(data(), model=Tokens(), callbacks=keeping(tmp_path, every_n_train_steps=5), max_epochs=1)
    found = dict(checkpoints(tmp_path))

    assert found
    for path, trained in found.items():
        assert fitted(data(), path, Tokens(), max_epochs=1) == whole[trained:]


def test_checkpoint_resumes_endless_stream(dataset, tmp_path):
    table = pd.DataFrame({"area": np.random.default_rng(0).normal(size=100)})
    prep = dp.Preprocessor({"area": "number"}).fit(table)
    frame = dd.from_pandas(table, npartitions=4)

    def data():
        val = {"lm": dp.Manager(dataset, row_ids=True)}
        return DataModule({"train": {"lm": lambda: prep.stream(frame, BATCH, epochs=None, row_ids=True)}, "val": val})

    options = {"max_steps": 18, "max_epochs": None}  # An epoch has 7 batches.
    whole = fitted(data(), callbacks=keeping(tmp_path, every_n_train_steps=5), **options)
    found = dict(checkpoints(tmp_path))

    assert sorted(flat(whole[:7])) == list(range(100))
    assert sorted(found.values()) == [5, 10, 15]
    for path, trained in found.items():
        assert fitted(data(), path, **options) == whole[trained:]


# -- overfitting


@pytest.mark.parametrize("way", ["Trainer", "DataModule"])
def test_overfit_batches_repeats_batches(dataset, way):
    data, options = data_of(dataset), {"num_sanity_val_steps": 0}
    if way == "Trainer":
        options["overfit_batches"] = 2
    else:
        manager = dp.Manager(dataset, BATCH, row_ids=True)
        data = DataModule({"train": {"lm": manager}, "val": {"lm": manager}}, overfit_batches=2)
    model = Recorder()
    trained = fitted(data, model=model, **options)

    assert flat(trained[:2]) == dataset["train"].read("row_id", stop=2 * BATCH)["row_id"].tolist()
    assert trained == trained[:2] * 2
    assert model.seen[:2] == model.seen[2:]


# -- ranks


@pytest.mark.slow
def test_two_ranks_share_rows_and_one_rank_resumes(tmp_path):
    script = Path(__file__).parent / "ddp_process.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, script, tmp_path]
    ran = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stderr
    results = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    dataset = dp.open_dataset(tmp_path / "listings.dp")

    assert [one["calls"] for one in results] == [1, 0]  # The first rank writes, and both open what it wrote.
    assert len(results[0]["trained"]) == len(results[1]["trained"]) == 20
    for split, rows in (("train", "trained"), ("validation", "val"), ("test", "test")):
        seen = flat(batch for one in results for batch in one[rows][:STEPS])
        assert sorted(seen) == sorted(dataset[split].read("row_id")["row_id"].tolist())
    for rows in ("bare", "wrapped"):  # loaders without a DataModule
        assert [len(batch) for batch in results[0][rows]][:-1] == [7] * 10
        seen = flat(batch for one in results for batch in one[rows])
        assert sorted(seen) == sorted(dataset["train"].read("row_id")["row_id"].tolist())
    alone = fitted(data_of(dataset), tmp_path / "step=13.ckpt")
    both = [sorted(one + other) for one, other in zip(*(one["trained"] for one in results), strict=True)]
    assert [sorted(batch) for batch in alone] == both[13:]


class Speaker(LightningModule):
    def predict_step(self, batch, batch_idx):
        return batch


def test_predict_prompts_from_configuration(path):
    config = f"{{train: {{a: {{data: {path}}}}}, predict: {{b: {{data: [one, two, three], batch_size: 2}}}}}}"
    trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    assert trainer.predict(Speaker(), DataModule.from_config(config)) == [["one", "two"], ["three"]]


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, row):
        return {"row_id": row, "area": torch.tensor(float(row))}


class RowsInOrder(torch.utils.data.IterableDataset):
    def __iter__(self):
        return map(Rows().__getitem__, range(50))


@pytest.mark.parametrize("data", [Rows(), RowsInOrder()])
@pytest.mark.parametrize("group", [[], [identity]])
def test_checkpoint_resumes_torch_datasets(tmp_path, data, group):
    def module():
        manager = dp.Manager(data, BATCH, seed=3, group_processors=group)
        return DataModule({"train": {"lm": manager}, "val": {"lm": dp.Manager(data, BATCH)}})

    whole = fitted(module(), callbacks=keeping(tmp_path, every_n_train_steps=1))
    assert [sorted(flat(whole[start : start + 4])) for start in (0, 4)] == [list(range(50))] * 2
    taken = {trained: path for path, trained in checkpoints(tmp_path)}
    assert sorted(taken) == list(range(1, 9))
    for trained, path in taken.items():
        assert fitted(module(), path) == whole[trained:]
