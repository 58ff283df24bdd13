"""Read a dataset: its splits as arrays, tables and lazy arrays, what was learned from it, and whether it is whole."""

from __future__ import annotations

from daskprep.dataset.checking import Damage
from daskprep.dataset.dataset import Dataset, FoldedDataset
from daskprep.dataset.opening import open_dataset
from daskprep.dataset.split import Split
