"""NumPy memory maps of the encoded table as a loader, in a fresh order each epoch; prints one JSON line.

    python -m benchmarks.peers.peer_memmap --data bench-data/tab --variant columns

`columns` reads 17 arrays, `sorted-columns` does so in the order of the rows within a batch, and `packed` reads one
array of records. `torch` is a DataLoader over a TensorDataset of the columns, in memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers.common import ENCODED, load_npy, main, parser

arguments = parser(variant="columns").parse_args()
torch.set_num_threads(1)
columns = load_npy(arguments.data, "r")
packed = np.load(f"{arguments.data}/packed/rows.npy", "r")
rows = len(packed)


def epoch(number: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the batches of an epoch."""
    order = np.random.default_rng(number).permutation(rows)
    for start in range(0, rows, arguments.batch):
        batch = order[start : start + arguments.batch]
        if arguments.variant == "packed":
            found = packed[batch]
            yield {name: torch.from_numpy(np.ascontiguousarray(found[name])) for name in ENCODED}
        else:
            batch = np.sort(batch) if arguments.variant == "sorted-columns" else batch
            yield {name: torch.from_numpy(column[batch]) for name, column in columns.items()}


def torch_epoch(_: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the batches of torch's loader."""
    for batch in DataLoader(tensors, arguments.batch, shuffle=True):
        yield dict(zip(columns, batch, strict=True))


if arguments.variant == "torch":
    tensors = TensorDataset(*(torch.from_numpy(np.array(column)) for column in columns.values()))
main(f"memory maps, {arguments.variant}", arguments, torch_epoch if arguments.variant == "torch" else epoch, rows=rows)
