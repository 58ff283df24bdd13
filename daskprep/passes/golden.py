"""Golden rows: sample cells and their encodings, saved with a Preprocessor to check that it still encodes alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from daskprep.errors import DaskprepError
from daskprep.features.base import Contract, Learned, all_outputs
from daskprep.passes.encoding import encode_source
from daskprep.sources import PandasSource
from daskprep.steps.saved import check_golden

_MAX_CELLS = 8
_MAX_NUMBERS = 1 << 16  # of all golden rows of a feature; rows longer than this have none
# Errors that methods of a custom type may raise for text.
_ENCODING_ERRORS = (
    DaskprepError,
    pa.ArrowException,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


def make_golden_rows(features: Mapping[str, Contract], learned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the golden rows of each feature: sample cells as text, and their encodings; rejected cells are omitted."""
    return {name: _make_golden(name, feature, learned[name]) for name, feature in features.items()}


def check_golden_rows(name: str, feature: Contract, learned: Learned, golden: Any) -> None:
    """Raise CorruptDatasetError unless a feature encodes its golden cells to the saved rows."""
    saved = {"type": feature.kind, "learned": learned.to_state(), "golden": golden}
    check_golden(name, saved, lambda cells: _encode(name, feature, learned, cells))


def _make_golden(name: str, feature: Contract, learned: Learned) -> dict[str, Any]:
    """Return the cells and encodings of one feature, as JSON-ready values."""
    cells = feature._sample_cells(learned)[:_MAX_CELLS] if len(feature.reads(name)) == 1 else []
    arrays = _try_encode(name, feature, learned, cells)
    if not arrays:
        cells = [cell for cell in cells if _try_encode(name, feature, learned, [cell])]
        arrays = _try_encode(name, feature, learned, cells)
    numbers = sum(array[0].size for array in arrays.values())
    if len(cells) * numbers > _MAX_NUMBERS:
        cells = cells[: _MAX_NUMBERS // numbers]
        arrays = _try_encode(name, feature, learned, cells)
    return {
        "cells": cells if arrays else [],
        "arrays": {output: {"dtype": array.dtype.name, "rows": array.tolist()} for output, array in arrays.items()},
    }


def _try_encode(name: str, feature: Contract, learned: Learned, cells: Sequence[str | None]) -> dict[str, np.ndarray]:
    """Return the encodings of cells by output; empty if a cell is rejected, or if JSON cannot represent a value."""
    try:
        arrays = _encode(name, feature, learned, cells) if cells else {}
    except _ENCODING_ERRORS:
        return {}
    is_plain = all(array.dtype.kind in "biuf" and np.isfinite(array).all() for array in arrays.values())
    return arrays if is_plain else {}


def _encode(name: str, feature: Contract, learned: Learned, cells: Sequence[str | None]) -> dict[str, np.ndarray]:
    [column] = feature.reads(name)
    source = PandasSource(pd.DataFrame({column: pd.Series(list(cells), dtype=object)}))
    encoded = encode_source({name: feature}, {name: learned}, source)
    return {output: np.asarray(encoded[name + output]) for output in all_outputs(feature)}
