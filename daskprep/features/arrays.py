"""Encoded arrays of many features: empty ones, as columns of one table, and decoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from daskprep.errors import ConfigError, did_you_mean
from daskprep.features.base import Contract, Learned, all_outputs
from daskprep.features.checking import all_empty_arrays, column_error_context, decode_column, empty_arrays
from daskprep.steps.base import MISSING


def empty_outputs(features: Mapping[str, Contract], learned: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return an array of 0 rows for each output, with its type and shape."""
    arrays: dict[str, np.ndarray] = {}
    for name, feature in features.items():
        with column_error_context(name):
            arrays |= {name + output: array for output, array in all_empty_arrays(feature, learned[name]).items()}
    return arrays


def tabulate(
    features: Mapping[str, Contract], learned: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Concatenate encoded arrays as columns of one 2-D array, of the smallest type that holds all values.

    A feature type may define its own columns in a method `tabulate`, and their names in `tabulated_names`.
    """
    tables: list[np.ndarray] = []
    for name, feature in features.items():
        with column_error_context(name):
            own_arrays = {output: arrays[name + output] for output in all_outputs(feature)}
            if (own_tabulate := getattr(feature, "tabulate", None)) is not None:
                tables.append(own_tabulate(own_arrays, learned[name]))
            else:
                tables += [
                    own_arrays[output].reshape(len(own_arrays[output]), _width(own_arrays[output]))
                    for output in feature.outputs
                ]
            if feature.missing_indicator:
                tables.append(own_arrays[MISSING][:, None])
    return tables[0] if len(tables) == 1 else np.concatenate(tables, axis=1)


def column_names(feature: Contract, name: str, learned: Learned) -> list[str]:
    """Return the names of the columns that `tabulate` creates for a feature."""
    indicators = [name + MISSING] * feature.missing_indicator
    if (own_names := getattr(feature, "tabulated_names", None)) is not None:
        return [*own_names(name, learned), *indicators]
    names = []
    for output, array in empty_arrays(feature, learned).items():
        names += [name + output] if array.ndim == 1 else [f"{name}{output}_{i}" for i in range(_width(array))]
    return names + indicators


def _width(array: np.ndarray) -> int:
    """Return the number of columns of an array's rows when flattened."""
    return int(np.prod(array.shape[1:]))


def decode_arrays(
    features: Mapping[str, Contract], learned: Mapping[str, Any], arrays: Mapping[str, Any]
) -> pd.DataFrame:
    """Decode encoded arrays by output to a frame of human-readable values; features without arrays are omitted."""
    if not isinstance(arrays, Mapping):
        raise ConfigError(
            f"arrays to decode must be a mapping by output, not {type(arrays).__name__}: decode the inputs and the "
            "targets of a batch separately"
        )
    known_outputs = {name + output for name, feature in features.items() for output in all_outputs(feature)}
    for key in arrays:
        if key not in known_outputs:
            raise ConfigError(f'no output "{key}" to decode.{did_you_mean(key, known_outputs)}')
    columns = {}
    for name, feature in features.items():
        own_arrays = {output: arrays[name + output] for output in all_outputs(feature) if name + output in arrays}
        if all(output in own_arrays for output in feature.outputs):
            with column_error_context(name):
                columns[name] = decode_column(feature, own_arrays, learned[name])
    rows = {name: len(column) for name, column in columns.items()}
    if len(set(rows.values())) > 1:
        raise ConfigError(f"arrays to decode have different numbers of rows: {rows}")
    frame: pd.DataFrame = pa.table(columns).to_pandas(integer_object_nulls=True)
    return frame
