"""One of two ranks of torch.distributed without a trainer: prepare, yield rows, and fail."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import NoReturn

import numpy as np
import pandas as pd
import torch.distributed

import daskprep as dp
from daskprep.errors import DaskprepError

FOLDER, RANK = Path(sys.argv[1]), int(sys.argv[2])
CALLS: list[int] = []


def prepare() -> Path:
    CALLS.append(1)
    table = pd.DataFrame({"area": np.random.default_rng(0).normal(size=100)})
    dp.Preprocessor({"area": "number"}).fit_write(table, FOLDER / "listings.dp", block_rows=8)
    return FOLDER / "listings.dp"


class Numbers(torch.utils.data.IterableDataset):
    def __init__(self) -> None:
        self.lock = Lock()  # what cannot be sent to the other rank

    def __iter__(self) -> Iterator[int]:
        return iter(range(9))


def fail() -> NoReturn:
    raise OSError("no room")


def meet(batch: torch.Tensor) -> list[int]:
    """Wait for the other rank, as a metric of all ranks does."""
    torch.distributed.all_reduce(torch.ones(1))
    return batch.tolist()


def main() -> None:
    torch.distributed.init_process_group("gloo", f"file://{FOLDER}/meeting", rank=RANK, world_size=2)
    managers = {
        "train": {"lm": dp.Manager(prepare, 16, row_ids=True)},
        "val": {"numbers": dp.Manager(Numbers, 4), "prompts": dp.Manager(list(range(9)), 4)},
        "predict": {"prompts": dp.Manager(list(range(10)), 10)},
    }
    data = dp.DataModule(managers)
    data.prepare_data()
    data.setup("fit")
    rows = [row for batch in data.train_dataloader() for row in batch["row_id"].tolist()]
    numbers = [[meet(batch) for batch in loader] for loader in data.val_dataloader()]
    data.setup("predict")
    [prompts] = data.predict_dataloader()
    examples = [row for batch in prompts for row in batch.tolist()]
    try:
        dp.DataModule({"train": {"lm": fail}}).prepare_data()
    except (OSError, DaskprepError) as error:
        failed = str(error)
    results = {"calls": len(CALLS), "rows": rows, "numbers": numbers, "examples": examples, "failed": failed}
    (FOLDER / f"rank-{RANK}.json").write_text(json.dumps(results))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
