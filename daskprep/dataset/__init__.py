"""Open datasets, and what writes and loads them.

In: the folder of a dataset, or rows to write. Out: splits as arrays, tables, lazy arrays and batches, the fitted
state, and the damage that checks find. `writing` writes, `loader` streams to torch, and `methods` opens extensions.
"""

from __future__ import annotations

from daskprep.dataset.dataset import Dataset, FoldedDataset
from daskprep.dataset.opening import open_dataset
from daskprep.dataset.split import Split
from daskprep.dataset.stored import Damage
