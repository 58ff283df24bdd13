"""Rows of features that only the whole of daskprep can encode: each asks its feature."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from daskprep.errors import DaskprepError, MissingPackageError
from daskprep.serving.base import Arrays, Rows


class WholeRows:
    """Rows of images and sounds, of tokenizers of other packages, and of types of a user's own.

    Parameters
    ----------
    name : str
        The feature's name.
    feature : mapping
        Its type, parameters and what it learned, as the saved JSON has them.
    """

    def __init__(self, name: str, feature: Mapping[str, Any]) -> None:
        self.name = name
        state = {"format": 1, "features": {name: feature}, "split": None, "balance": None, "fit_on": "train"}
        try:
            # By name, since serving is to do without them wherever it can.
            self._prep = importlib.import_module("daskprep.preprocessor").Preprocessor.from_dict(state)
            self._pandas = importlib.import_module("pandas")
        except DaskprepError:
            raise
        except ImportError as error:
            raise MissingPackageError(
                f'feature "{name}" ({feature["type"]}) is encoded by its type itself, which needs the package '
                f"{error.name or error}: install all that daskprep needs, by: pip install daskprep"
            ) from error
        self.columns: tuple[str, ...] = tuple(self._prep.features_[name].reads(name))

    def encode(self, rows: Rows) -> Arrays:
        """Return the arrays of rows by the suffix of the output; KeyError for a column that one of them has not."""
        # Objects all, for pandas would make floats of integers beside None.
        cells = {column: _objects([row[column] for row in rows]) for column in self.columns}
        arrays = self._prep.encode(self._pandas.DataFrame(cells, dtype=object))
        return {output.removeprefix(self.name): array for output, array in arrays.items()}

    def expand(self, encoded: np.ndarray) -> np.ndarray:
        """Return what a model reads of an array, as batches of a loader have it."""
        torch = importlib.import_module("torch")
        [feature] = self._prep.features_.values()
        expanded: np.ndarray = feature.expand(torch.from_numpy(encoded), self._prep.learned_[self.name]).numpy()
        return expanded


def _objects(cells: Sequence[Any]) -> np.ndarray:
    column = np.empty(len(cells), object)
    for i, cell in enumerate(cells):  # NumPy would make a matrix of cells that are arrays
        column[i] = cell
    return column
