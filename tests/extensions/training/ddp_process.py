"""Train on two ranks and save the rows of each. Lightning starts this script for the second rank."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

import daskprep as dp
from daskprep.lightning import DataModule

FOLDER = Path(sys.argv[1])
CALLS: list[int] = []


def prepare() -> Path:
    CALLS.append(1)
    table = pd.DataFrame({"area": np.random.default_rng(0).normal(size=200)})
    prep = dp.Preprocessor({"area": "number"}, split=dp.RandomSplit((0.8, 0.1, 0.1)))
    prep.fit_write(table, FOLDER / "listings.dp", block_rows=8)
    return FOLDER / "listings.dp"


class Recorder(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.rows: dict[str, list[list[int]]] = {"trained": [], "val": [], "test": []}

    def training_step(self, batch, batch_idx):
        self.rows["trained"].append(batch["row_id"].tolist())
        return self.layer(batch["area"][:, None]).pow(2).mean()

    def validation_step(self, batch, batch_idx):
        self.rows["val"].append(batch["row_id"].tolist())

    def test_step(self, batch, batch_idx):
        self.rows["test"].append(batch["row_id"].tolist())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def make_trainer(**options) -> Trainer:
    return Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        logger=False,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def main() -> None:
    manager = dp.Manager(prepare, 16, row_ids=True)
    data = DataModule({place: {"lm": manager} for place in ("train", "val", "test")})
    checkpoints = ModelCheckpoint(FOLDER, filename="{step}", save_top_k=-1, every_n_train_steps=13)
    trainer = make_trainer(max_epochs=2, callbacks=[checkpoints], check_val_every_n_epoch=2)
    model = Recorder()
    trainer.fit(model, data)
    results = {"calls": len(CALLS), **model.rows}
    trainer.test(model, data, verbose=False)
    results["test"] = model.rows["test"]
    loader = dp.open_dataset(FOLDER / "listings.dp")["train"].loader(15, row_ids=True, uneven=True)
    for name, batches in (("bare", loader), ("wrapped", DataLoader(loader, batch_size=None))):
        loader.set_epoch(0)
        plain = Recorder()
        make_trainer(max_epochs=1, enable_checkpointing=False).fit(plain, batches)
        results[name] = plain.rows["trained"]
    (FOLDER / f"rank-{trainer.global_rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
