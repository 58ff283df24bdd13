"""The loaders of a training run, by name, for training, validation, test and prediction."""

from daskprep.extensions.training.batches import Batches
from daskprep.extensions.training.datamodule import DataModule
from daskprep.extensions.training.manager import Manager

__all__ = ["Batches", "DataModule", "Manager"]
