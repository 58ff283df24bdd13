"""The data of a training run as one object: loaders for training, validation, test and prediction, by name."""

from daskprep.training.batches import Batches
from daskprep.training.datamodule import DataModule
from daskprep.training.manager import Manager

__all__ = ["Batches", "DataModule", "Manager"]
