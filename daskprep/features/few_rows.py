"""Encode small frames with the row encoders of `steps`: the same bytes, without the overhead of each column.

All cells of a column decide its Arrow type, whereas a row encoder sees one cell. Both agree on plain cells: all of one
Python type, or of a dtype with cells of one Python type. Frames with other cells are left to column encoding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from daskprep.errors import DaskprepError
from daskprep.features.base import Learned
from daskprep.features.checking import memoize
from daskprep.features.feature import Feature
from daskprep.sources import PandasSource, Source
from daskprep.steps import make_row_encoder
from daskprep.steps.base import RowEncoder
from daskprep.steps.saved import error_context
from daskprep.tokenizers import is_builtin_tokenizer
from daskprep.vocabulary import LARGE_VOCABULARY

MAX_ROWS = 128  # column encoding is faster for more rows
_MAX_ITEMS = 1_000  # items of all lists of a column; column encoding is faster for more
_PLAIN_DTYPES = frozenset(map(np.dtype, ("float64", "int64", "int32", "int16", "int8", "bool")))
_PLAIN = (str, float, int, bool)


def encode_small_frame(
    features: Mapping[str, Feature], learned: Mapping[str, Any], source: Source
) -> dict[str, np.ndarray] | None:
    """Return the encoded arrays of a frame of up to MAX_ROWS rows by output; None if columns must encode it."""
    if not isinstance(source, PandasSource) or not 1 <= len(source.frame) <= MAX_ROWS:
        return None
    encoders: dict[str, RowEncoder] = {}
    columns: dict[str, list[Any]] = {}
    for name, feature in features.items():
        if (encoder := _row_encoder(feature, learned[name], name)) is None:
            return None
        encoders[name] = encoder
        for column in encoder.columns:
            if (cells := _plain_cells(source.series[column])) is None:
                return None
            columns[column] = cells
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    try:
        encoded = [(name, encoder.encode(rows)) for name, encoder in encoders.items()]
    except DaskprepError:
        return None  # column encoding raises the error, with the same message as for large frames
    return {name + output: array for name, arrays in encoded for output, array in arrays.items()}


@memoize
def _row_encoder(feature: Feature, learned: Learned, name: str) -> RowEncoder | None:
    """Return the row encoder of a feature; None for custom features and tokenizers, and large vocabularies."""
    params: dict[str, Any] = feature.get_params(deep=False)  # type: ignore[no-untyped-call]
    is_builtin = type(feature).__module__.startswith("daskprep.") and is_builtin_tokenizer(
        params.get("tokenizer", "space")
    )
    vocabularies = [getattr(learned.of_output(output), "vocabulary", ()) for output in feature.outputs]
    if not is_builtin or any(isinstance(value, np.generic) for value in params.values()):
        return None
    if any(len(vocabulary) >= LARGE_VOCABULARY for vocabulary in vocabularies):
        return None
    try:
        with error_context(name):
            return make_row_encoder(name, {"type": feature.kind, "params": params, "learned": learned.to_dict()})
    except DaskprepError:
        return None


def _plain_cells(column: pd.Series[Any]) -> list[Any] | None:
    """Return the cells of a column as Python values, None unless they are plain."""
    dtype = column.dtype
    if isinstance(dtype, pd.StringDtype) and dtype.storage == "pyarrow":
        return pa.array(column.array).to_pylist()  # type: ignore[no-any-return] # pandas takes 8 times as long
    if isinstance(dtype.categories.dtype if isinstance(dtype, pd.CategoricalDtype) else dtype, pd.StringDtype):
        return column.tolist()
    if not isinstance(dtype, np.dtype):
        return None
    if dtype == np.float32:
        return list(column.to_numpy())  # as Python floats, they would have more digits as text
    cells = column.tolist()
    if dtype.kind == "O":
        return cells if _are_plain(cells) else None
    # A row encoder cannot see from NaT that the column has times, which some types reject.
    is_plain = pd.NaT not in cells if dtype.kind == "M" else dtype in _PLAIN_DTYPES
    return cells if is_plain else None


def _are_plain(cells: Sequence[Any]) -> bool:
    """Return whether the present cells are of one plain type, or are lists with items of one plain type."""
    present = [cell for cell in cells if cell is not None and not (type(cell) is float and math.isnan(cell))]
    types = set(map(type, present))
    if types == {list}:
        items = [item for cell in present for item in cell]
        return len(items) <= _MAX_ITEMS and list not in map(type, items) and _are_plain(items)
    if types == {int} and not all(-(2**63) <= cell < 2**63 for cell in present):
        return False
    return len(types) <= 1 and types.issubset(_PLAIN)
