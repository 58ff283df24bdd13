"""Batches of texts of different length in the loaders of Hugging Face's Trainer and of MosaicML; prints a JSON line.

    python -m benchmarks.peers.peer_lengths --data folder --variant trainer

`lengths.py --peers` writes the folder and runs this script. Ids are stored without padding, and each batch
is padded to its longest row. `trainer` groups rows by length, with `DataCollatorWithPadding`; `trainer-2` has two
worker processes; `streaming` is MosaicML's StreamingDataset, which has no groups by length. An epoch is timed after
another one has warmed the caches.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--data", type=Path, required=True)
parser.add_argument("--batch", type=int, default=256)
parser.add_argument("--variant", choices=["trainer", "trainer-2", "streaming"], required=True)


def trainer_batches(data: Path, batch: int, workers: int) -> Iterable[Any]:
    """Return the loader of a Trainer that groups by length, over an Arrow file of lists of ids."""
    import datasets
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import (
        DataCollatorWithPadding,
        PreTrainedTokenizerFast,
        Trainer,
        TrainingArguments,
    )

    rows = data / "arrow"
    if not rows.exists():
        ids, ends = np.load(data / "ids.npy"), np.load(data / "ends.npy")
        parts = np.split(ids, ends[:-1])
        columns = {"input_ids": parts, "length": [len(part) for part in parts]}
        datasets.Dataset.from_dict(columns).save_to_disk(rows)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"<pad>": 0})), pad_token="<pad>")
    arguments = TrainingArguments(
        str(data / "trainer"),
        per_device_train_batch_size=batch,
        train_sampling_strategy="group_by_length",
        length_column_name="length",
        dataloader_num_workers=workers,
        remove_unused_columns=False,
        use_cpu=True,
        report_to=[],
    )
    dataset = datasets.load_from_disk(str(rows))
    trainer = Trainer(torch.nn.Linear(1, 1), arguments, DataCollatorWithPadding(tokenizer), dataset)
    return trainer.get_train_dataloader()


def streaming_batches(data: Path, batch: int) -> Iterable[Any]:
    """Return a loader over MosaicML's shards, padded to the longest row of a batch."""
    from streaming import (
        MDSWriter,
        StreamingDataLoader,
        StreamingDataset,
    )

    shards = data / "mds"
    if not shards.exists():
        ids, ends = np.load(data / "ids.npy"), np.load(data / "ends.npy")
        with MDSWriter(out=str(shards), columns={"input_ids": "ndarray:int32"}) as writer:
            for part in np.split(ids, ends[:-1]):
                writer.write({"input_ids": part.astype(np.int32)})

    def collate(rows: list[Any]) -> dict[str, torch.Tensor]:
        parts = [torch.from_numpy(row["input_ids"].astype(np.int64)) for row in rows]
        return {"input_ids": torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)}

    dataset = StreamingDataset(local=str(shards), shuffle=True, batch_size=batch)
    return StreamingDataLoader(dataset, batch_size=batch, collate_fn=collate)


def main() -> None:
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.variant == "streaming":
        loader = streaming_batches(arguments.data, arguments.batch)
    else:
        loader = trainer_batches(arguments.data, arguments.batch, 2 if arguments.variant == "trainer-2" else 0)
    for _ in range(2):  # the second epoch is warm
        began, places, rows = time.perf_counter(), 0, 0
        for batch in loader:
            ids = batch["input_ids"]
            rows, places = rows + len(ids), places + ids.numel()
        seconds = time.perf_counter() - began
    tokens = len(np.load(arguments.data / "ids.npy", mmap_mode="r"))
    line = {"peer": arguments.variant, "rows": rows, "seconds": seconds, "padding": 1 - tokens / places}
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
