"""Open datasets: splits as arrays, tables and lazy arrays, the fitted state, and checks for damaged files."""

from __future__ import annotations

from daskprep.dataset.dataset import Dataset, FoldedDataset
from daskprep.dataset.opening import open_dataset
from daskprep.dataset.split import Split
from daskprep.dataset.stored import Damage
