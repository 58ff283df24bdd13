"""The loaders of a training run, by name, for training, validation, test and prediction.

In: a configuration, or a dataset with options. Out: loaders and examples by rank. A run has its loader's state.
"""

from daskprep.extensions.training.batches import Batches
from daskprep.extensions.training.datamodule import DataModule
from daskprep.extensions.training.manager import Manager

__all__ = ["Batches", "DataModule", "Manager"]
