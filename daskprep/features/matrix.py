"""The 2-D array that scikit-learn is given of a column: its outputs side by side, and a name for each of its columns.

A type may put something else there by a method `tabulate`, and give other names by `tabulated_names`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from daskprep.features.base import Contract, Learned
from daskprep.features.checking import empty_arrays
from daskprep.serving.base import MISSING


def side_by_side(feature: Contract, encoded: Mapping[str, np.ndarray], learned: Learned) -> np.ndarray:
    """Turn the outputs of one column into a 2-D array."""
    if (own := getattr(feature, "tabulate", None)) is not None:
        tables = [own(encoded, learned)]
    else:
        tables = [encoded[output].reshape(len(encoded[output]), _width(encoded[output])) for output in feature.outputs]
    if feature.missing_indicator:
        tables.append(encoded[MISSING][:, None])
    return tables[0] if len(tables) == 1 else np.concatenate(tables, axis=1)


def column_names(feature: Contract, name: str, learned: Learned) -> list[str]:
    """Return the names of the columns of this array."""
    marks = [name + MISSING] * feature.missing_indicator
    if (own := getattr(feature, "tabulated_names", None)) is not None:
        return [*own(name, learned), *marks]
    names = []
    for output, array in empty_arrays(feature, learned).items():
        names += [name + output] if array.ndim == 1 else [f"{name}{output}_{i}" for i in range(_width(array))]
    return names + marks


def _width(array: np.ndarray) -> int:
    return int(np.prod(array.shape[1:]))
