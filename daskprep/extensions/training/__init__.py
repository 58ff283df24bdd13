"""The loaders of a training run, by name, for training, validation, test and prediction.

In: a configuration, or a dataset with options of loaders. Out: loaders and examples, on each rank. A run has the state
of its training loader.
"""

from daskprep.extensions.training.batches import Batches
from daskprep.extensions.training.datamodule import DataModule
from daskprep.extensions.training.manager import Manager

__all__ = ["Batches", "DataModule", "Manager"]
