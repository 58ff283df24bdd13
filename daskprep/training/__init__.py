"""The loaders of a training run, by name, for training, validation, test and prediction."""

from daskprep.training.batches import Batches
from daskprep.training.datamodule import DataModule
from daskprep.training.manager import Manager

__all__ = ["Batches", "DataModule", "Manager"]
