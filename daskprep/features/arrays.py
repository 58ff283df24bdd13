"""Encoded arrays of many features: of small frames, of no rows, as columns of one table, and decoded."""

from __future__ import annotations

import math
from collections import UserDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from daskprep.columns.tokenizers import is_builtin_tokenizer
from daskprep.columns.vocabulary import LARGE_VOCABULARY
from daskprep.errors import ColumnError, ConfigError, DaskprepError, did_you_mean
from daskprep.features.base import Contract, Learned, all_outputs, rows_seen
from daskprep.features.checking import all_empty_arrays, column_error_context, decode_column, empty_arrays, memoize
from daskprep.rows import make_row_encoder
from daskprep.rows.base import MISSING, RowEncoder
from daskprep.rows.saved import error_context
from daskprep.sources import PandasSource, Source
from daskprep.storage.tables import arrow_column

if TYPE_CHECKING:
    from scipy import sparse

# Small frames: row encoders return the same bytes, without the overhead of each column. All cells of a column decide
# its Arrow type, whereas a row encoder sees one cell. Both agree on plain cells: all of one Python type, or of a dtype
# with cells of one Python type. Frames with other cells are left to column encoding.
MIN_CELLS = 10  # of fewer, a share says little
MAX_ROWS = 128  # column encoding is faster for more rows
_MAX_ITEMS = 1_000  # items of all lists of a column; column encoding is faster for more
_PLAIN_DTYPES = frozenset(map(np.dtype, ("float64", "int64", "int32", "int16", "int8", "bool")))
_PLAIN = (str, float, int, bool)


def encode_small_frame(
    features: Mapping[str, Contract], learned: Mapping[str, Any], source: Source
) -> dict[str, np.ndarray] | None:
    """Return encoded arrays by output of a small frame, or None.

    None: a larger source, a feature without a row encoder, cells of mixed types, or a cell that cannot be encoded.
    None, too, if many cells are unseen or missing, so that the caller compares them with the fit.
    """
    if not isinstance(source, PandasSource) or not 1 <= len(source.frame) <= MAX_ROWS:
        return None
    encoders: dict[str, RowEncoder] = {}
    columns: dict[str, list[Any]] = {}
    for name, feature in features.items():
        if feature._before or (encoder := _row_encoder(feature, learned[name], name)) is None:
            return None
        encoders[name] = encoder
        for column in encoder.columns:
            if (cells := _plain_cells(source.series[column])) is None:
                return None
            columns[column] = cells
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    before = {name: dict(encoder.seen) for name, encoder in encoders.items()}
    try:
        arrays = {output: array for one in encoders.values() for output, array in one.encode(rows).items()}
    except DaskprepError:
        return None  # column encoding raises the error, with the same message as for large frames
    for name, encoder in encoders.items():
        unseen, missing = (encoder.seen[kind] - before[name][kind] for kind in ("unseen", "missing"))
        known = learned[name].missing * len(rows) / max(rows_seen(features[name], learned[name]), 1)
        if unseen >= MIN_CELLS or missing >= max(MIN_CELLS, 2 * known):
            return None
    return arrays


@memoize
def _row_encoder(feature: Any, learned: Learned, name: str) -> RowEncoder | None:
    """Return the row encoder; None for other types and large vocabularies."""
    params: dict[str, Any] = feature.get_params(deep=False)
    is_builtin = type(feature).__module__.startswith("daskprep.") and is_builtin_tokenizer(
        params.get("tokenizer", "space")
    )
    vocabularies = [getattr(learned.of_output(output), "vocabulary", ()) for output in feature.outputs]
    is_large = any(len(vocabulary) >= LARGE_VOCABULARY for vocabulary in vocabularies)
    if not is_builtin or is_large or any(isinstance(value, np.generic) for value in params.values()):
        return None
    try:
        with error_context(name):
            return make_row_encoder(name, {"type": feature.kind, "params": params, "learned": learned.to_dict()})
    except DaskprepError:
        return None


def _plain_cells(column: pd.Series[Any]) -> list[Any] | None:
    """Return cells as Python values; None if they are not plain."""
    dtype = column.dtype
    if isinstance(dtype, pd.StringDtype) and dtype.storage == "pyarrow":
        return pa.array(column.array).to_pylist()  # pandas takes 8 times as long
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
    """Return whether present cells, or items, have one plain type."""
    present = [cell for cell in cells if cell is not None and not (type(cell) is float and math.isnan(cell))]
    types = set(map(type, present))
    if types == {list}:
        items = [item for cell in present for item in cell]
        return len(items) <= _MAX_ITEMS and list not in map(type, items) and _are_plain(items)
    if types == {int} and not all(-(2**63) <= cell < 2**63 for cell in present):
        return False
    return len(types) <= 1 and types.issubset(_PLAIN)


class EncodedArrays(UserDict[str, Any]):
    """Encoded arrays by output, also as an Arrow table."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        table = pa.table({name: arrow_column(array) for name, array in self.data.items()})
        return table.__arrow_c_stream__(requested_schema)


def empty_outputs(features: Mapping[str, Contract], learned: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return an array of 0 rows by output, with type and shape."""
    arrays: dict[str, np.ndarray] = {}
    for name, feature in features.items():
        with column_error_context(name):
            arrays |= {name + output: array for output, array in all_empty_arrays(feature, learned[name]).items()}
    return arrays


def tabulate(
    features: Mapping[str, Contract], learned: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Concatenate encoded arrays as columns of one 2-D array.

    A feature type may define its own columns in a method `tabulate`, and their names in `tabulated_names`.
    """
    tables: list[np.ndarray] = []
    for name, feature in features.items():
        with column_error_context(name):
            own_arrays = {output: arrays[name + output] for output in all_outputs(feature)}
            if (own_tabulate := getattr(feature, "tabulate", None)) is not None:
                tables.append(own_tabulate(own_arrays, learned[name]))
            else:
                stored = [own_arrays[output] for output in feature.outputs]
                tables += [array.reshape(len(array), _width(array)) for array in stored]
            if feature.missing_indicator:
                tables.append(own_arrays[MISSING][:, None])
    return tables[0] if len(tables) == 1 else np.concatenate(tables, axis=1)


def tabulate_sparse(
    features: Mapping[str, Contract], learned: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> sparse.csr_matrix:
    """Return the table of `tabulate` as a sparse matrix."""
    from scipy import sparse  # noqa: PLC0415 SciPy is slow to import

    parts = []
    for name, feature in features.items():
        with column_error_context(name):
            make_sparse = getattr(feature, "tabulate_sparse", None)
            own = None if make_sparse is None else make_sparse(arrays[name], learned[name])
            if own is None:
                parts.append(sparse.csr_matrix(tabulate({name: feature}, learned, arrays)))
            else:
                marks = [sparse.csr_matrix(arrays[name + MISSING][:, None])] if feature.missing_indicator else []
                parts += [own, *marks]
    return sparse.csr_matrix(sparse.hstack(parts, format="csr"))


def untabulate(
    features: Mapping[str, Contract], learned: Mapping[str, Any], table: np.ndarray
) -> dict[str, np.ndarray]:
    """Return encoded arrays by output from a `tabulate` table.

    A feature type with a method `tabulate` has its inverse in `untabulate`. ColumnError for another number of columns.
    """
    widths = [len(column_names(feature, name, learned[name])) for name, feature in features.items()]
    if table.ndim != 2 or table.shape[1] != sum(widths):
        raise ColumnError(
            f"inverse_transform expects the {sum(widths)} columns of transform, not an array of shape {table.shape}"
        )
    tables = np.split(table, np.cumsum(widths)[:-1], axis=1)
    arrays: dict[str, np.ndarray] = {}
    for (name, feature), columns in zip(features.items(), tables, strict=True):
        with column_error_context(name):
            own_arrays = _untabulate_feature(feature, learned[name], columns)
        arrays |= {name + output: array for output, array in own_arrays.items()}
    return arrays


def _untabulate_feature(feature: Contract, learned: Learned, columns: np.ndarray) -> dict[str, np.ndarray]:
    """Return the arrays of a feature from its columns; ColumnError without an inverse."""
    marks = {MISSING: columns[:, -1].astype(np.uint8)} if feature.missing_indicator else {}
    table = columns[:, : columns.shape[1] - len(marks)]
    if hasattr(feature, "tabulate"):
        if (own_untabulate := getattr(feature, "untabulate", None)) is None:
            raise ColumnError(f"{type(feature).__name__} has no inverse of transform: use decode(prep.encode(rows))")
        table = own_untabulate(table, learned)
    empty = empty_arrays(feature, learned)
    parts = np.split(table, np.cumsum([_width(array) for array in empty.values()])[:-1], axis=1)
    return marks | {
        output: (part if array.dtype.kind == "f" else np.rint(part))
        .reshape(len(part), *array.shape[1:])
        .astype(array.dtype)
        for (output, array), part in zip(empty.items(), parts, strict=True)
    }


def column_names(feature: Contract, name: str, learned: Learned) -> list[str]:
    """Return the columns of `tabulate`: the outputs, "a_0", "a_1" for several, or the type's own."""
    indicators = [name + MISSING] * feature.missing_indicator
    if (own_names := getattr(feature, "tabulated_names", None)) is not None:
        return [*own_names(name, learned), *indicators]
    names = []
    for output, array in empty_arrays(feature, learned).items():
        names += [name + output] if array.ndim == 1 else [f"{name}{output}_{i}" for i in range(_width(array))]
    return names + indicators


def _width(array: np.ndarray) -> int:
    return int(np.prod(array.shape[1:]))


def decode_arrays(
    features: Mapping[str, Contract], learned: Mapping[str, Any], arrays: Mapping[str, Any]
) -> pd.DataFrame:
    """Decode the features with all outputs in `arrays` to a frame; ConfigError for unknown outputs or unequal rows."""
    if not isinstance(arrays, Mapping):
        raise ConfigError(
            f'decode: expected a dict of arrays by output, such as {{"{next(iter(features))}": array}}, not a '
            f"{type(arrays).__name__}; decode the inputs and the targets of a batch separately"
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
