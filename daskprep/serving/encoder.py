"""All features of a saved Preprocessor, row by row."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from daskprep.errors import ColumnError, ConfigError, CorruptDatasetError, did_you_mean
from daskprep.serving.base import RowEncoder
from daskprep.serving.large import with_large
from daskprep.serving.saved import LIMIT_BYTES, check_golden, check_learned, parse_state, telling, verified

# By the name of a type: the module of its row encoder, and the class. A module is imported once a feature needs it.
_ENCODERS = {
    "number": ("numbers", "NumberRows"),
    "category": ("classes", "CategoryRows"),
    "binary": ("classes", "BinaryRows"),
}


class Encoder:
    """Encodes rows as `Preprocessor.encode` does, without pandas, pyarrow, Dask or scikit-learn.

    Threads may share one. `load` makes it of what `Preprocessor.save` wrote.

    Parameters
    ----------
    state : mapping
        What `Preprocessor.to_dict` gives, or the JSON that `Preprocessor.save` wrote.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        state = verified(state)
        features = {}
        for name, feature in state["features"].items():
            with telling(f'feature "{name}"'):
                if feature["type"] in _ENCODERS:
                    check_learned(feature["learned"])
                features[name] = _row_encoder(name, feature)
            if "golden" in feature:
                check_golden(name, feature, features[name].encode)
        targets = state.get("targets", [])
        if not isinstance(targets, list) or not all(isinstance(name, str) and name in features for name in targets):
            raise CorruptDatasetError(f"targets: {str(targets)[:80]} are no features: the file was altered")
        self._inputs = {name: one for name, one in features.items() if name not in targets}
        self._targets = {name: features[name] for name in targets}

    def encode(self, rows: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Return arrays by output, with a row for every row; a mapping alone is one row.

        Each row must have the columns of all inputs, None where a cell is missing. Targets are encoded only if every
        row has their columns.
        """
        listed = [rows] if isinstance(rows, Mapping) else rows
        encoders = self._inputs
        if self._targets and all(one.column in row for row in listed for one in self._targets.values()):
            encoders = {**encoders, **self._targets}
        arrays: dict[str, np.ndarray] = {}
        for name, encoder in encoders.items():
            column = encoder.column
            try:
                cells = [row[column] for row in listed]
            except KeyError:
                raise self._lacking(column, listed) from None
            for output, array in encoder.encode(cells).items():
                arrays[name + output] = array
        return arrays

    def _lacking(self, column: str, rows: Sequence[Mapping[str, Any]]) -> ColumnError:
        number, row = next((i, row) for i, row in enumerate(rows) if column not in row)
        return ColumnError(
            f'row {number} has no "{column}".{did_you_mean(column, row)} Give None where a cell is missing. '
            f"The row has: {', '.join(map(str, row))}"
        )


def load(path: str | os.PathLike[str]) -> Encoder:
    """Read what `Preprocessor.save` wrote, for one row at a time. Nothing is unpickled or evaluated.

    CorruptDatasetError if the file was altered since, or if cells that it lists do not become the rows that it lists.
    """
    file = Path(path)
    try:
        size = file.stat().st_size
        data = file.read_bytes() if size <= LIMIT_BYTES else b""
    except OSError as error:
        raise ConfigError(f"there is no saved Preprocessor to read at {path}: {error}") from error
    if size > LIMIT_BYTES:
        raise CorruptDatasetError(f"{path} is larger than {LIMIT_BYTES:,} bytes, as no saved Preprocessor is")
    state = verified(parse_state(data, str(path)))
    del data
    for feature in state["features"].values():
        if isinstance(feature.get("learned"), Mapping):
            feature["learned"] = with_large(feature["learned"], file)
    return Encoder(state)


def _row_encoder(name: str, feature: Mapping[str, Any]) -> RowEncoder:
    module, encoder = _ENCODERS.get(feature["type"], ("whole", "WholeRows"))
    made: RowEncoder = getattr(importlib.import_module(f"daskprep.serving.{module}"), encoder)(
        name, feature["params"], feature["learned"]
    )
    return made
