"""Check the results of feature methods: number of rows, type and shape must follow from the fitted state."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, TypeVarTuple, cast

import numpy as np
import pyarrow as pa

from daskprep.errors import ColumnError, DaskprepError
from daskprep.features.base import Contract, Encoded, Learned, Limits, check_arrow, describe_result, kind_with_article
from daskprep.features.cells import MAX_EXACT_POWER
from daskprep.rows.base import MISSING
from daskprep.rows.cells import MAX_EXACT_INTEGER
from daskprep.rows.classes import convert_labels
from daskprep.rows.predictions import as_array
from daskprep.rows.typed import CellKind
from daskprep.sources.cells import as_text

_NUMBERS = frozenset(np.dtype(kind).str for kind in ("?", *"bhilqBHILQefd"))
_ARROW_TYPES = {"integer": pa.int64(), "boolean": pa.bool_(), "float": pa.float64(), "float32": pa.float32()}

Result = TypeVar("Result")
Extra = TypeVarTuple("Extra")


def memoize(make: Callable[[Any, Any, *Extra], Result]) -> Callable[[Any, Any, *Extra], Result]:
    """Return a function that keeps its result in the state."""
    key = f"_{make.__name__}"  # underscored attributes are not pickled

    @functools.wraps(make)
    def wrapper(feature: Contract, learned: Any, *others: *Extra) -> Result:
        parameters = [type(feature), *vars(feature).values(), *others]
        cached: tuple[list[Any], Result] | None = learned.__dict__.get(key)
        # By identity: parameters may be objects that cannot be compared, such as arrays.
        if cached is None or len(cached[0]) != len(parameters) or not all(map(operator.is_, cached[0], parameters)):
            cached = learned.__dict__[key] = parameters, make(feature, learned, *others)
        return cached[1]

    return wrapper


@contextlib.contextmanager
def column_error_context(name: str) -> Iterator[None]:
    """Name the column in errors; errors of Arrow and UTF-8 become ColumnErrors."""
    try:
        yield
    except DaskprepError as error:
        raise type(error)(f'column "{name}": {error}') from error
    except UnicodeDecodeError as error:
        raise ColumnError(f'column "{name}": holds text that is not UTF-8 ({error}); decode or correct it') from error
    except (pa.ArrowException, OverflowError) as error:
        raise ColumnError(f'column "{name}": cannot be read: {error}') from error


def check_outputs(feature: Contract, encoded: Encoded, rows: int) -> dict[str, np.ndarray]:
    """Return arrays of `encode` by output; ColumnError if wrong."""
    arrays = {"": encoded} if isinstance(encoded, np.ndarray) or not isinstance(encoded, Mapping) else dict(encoded)
    outputs = feature.outputs
    if len(arrays) != len(outputs) or any(output not in arrays for output in outputs):
        raise ColumnError(
            f"encode of {kind_with_article(feature)} returned the outputs {list(arrays)}: "
            f"expected {list(outputs)}, as in its property outputs"
        )
    for array in arrays.values():
        if not isinstance(array, np.ndarray) or array.dtype.str not in _NUMBERS or array.shape[:1] != (rows,):
            raise ColumnError(
                f"encode of {kind_with_article(feature)} returned {describe_result(array)} for {rows:,} cells: "
                "expected a NumPy array of numbers with one row for each"
            )
    return arrays if len(outputs) == 1 else {output: arrays[output] for output in outputs}


@memoize
def empty_arrays(feature: Contract, learned: Learned) -> Mapping[str, np.ndarray]:
    """Return each output for 0 rows, with its type and shape."""
    no_cells = feature.parse(pa.nulls(0))
    if (imputer := feature.imputer) is not None:
        no_cells = imputer.complete(no_cells, None, learned)
    return check_outputs(feature, feature.encode(no_cells, learned), 0)


def all_empty_arrays(feature: Contract, learned: Learned) -> Mapping[str, np.ndarray]:
    """Return an array of 0 rows for each output and indicator.

    Raise ColumnError if ``feature.limits`` names another output, or has a shape that does not fit a row.
    """
    arrays = empty_arrays(feature, learned)
    for output, bounds in feature.limits(learned).items():
        shape = np.broadcast(*Limits(*bounds)[:2]).shape
        if output not in arrays:
            raise ColumnError(
                f"limits of {kind_with_article(feature)} names the output {output!r}: expected one of {list(arrays)}"
            )
        if not _fits(shape, arrays[output].shape[1:]):
            expected = f"{('rows', *shape)}".replace("'rows'", "rows")
            raise ColumnError(
                f"encode of {kind_with_article(feature)} returned {_describe_rows(arrays[output])}: "
                f"expected shape {expected}, as its limits have"
            )
    return {**arrays, MISSING: np.zeros(0, np.uint8)} if feature.missing_indicator else arrays


def _fits(bounds: tuple[int, ...], row: tuple[int, ...]) -> bool:
    """Return whether bounds of a shape broadcast to a row's shape."""
    try:
        return np.broadcast_shapes(bounds, row) == row
    except ValueError:
        return False


@memoize
def encode_fill_value(feature: Contract, learned: Learned) -> Mapping[str, np.ndarray]:
    """Return each output of one cell with the fill value."""
    row = check_outputs(feature, feature.encode(feature.parse_fill(learned.fill_value), learned), 1)
    check_same_layout(feature, "encode", row, empty_arrays(feature, learned))
    return row


def check_same_layout(
    feature: Contract, function: str, arrays: Mapping[str, Any], like: Mapping[str, np.ndarray]
) -> None:
    """Raise ColumnError unless arrays have the dtypes and row shapes of `like`."""
    for output, empty in like.items():
        array = arrays.get(output)
        if not isinstance(array, np.ndarray) or (array.dtype, array.shape[1:]) != (empty.dtype, empty.shape[1:]):
            raise ColumnError(
                f"{function} of {kind_with_article(feature)} returned {describe_result(array)}"
                f"{f' as {output}' * bool(output)}, and for no cells {_describe_rows(empty)}: type and shape must "
                "follow from the fitted state alone"
            )


def _as_encoded(feature: Contract, encoded: Mapping[str, Any], learned: Learned) -> dict[str, np.ndarray]:
    """Return rows in the dtypes of `encode`; ColumnError for unequal rows."""
    limits = {output: Limits(*bounds) for output, bounds in feature.limits(learned).items()} | {MISSING: Limits(0, 1)}
    arrays = {
        output: _check_decodable(feature, _to_array(encoded[output]), empty, limits.get(output))
        for output, empty in all_empty_arrays(feature, learned).items()
        if output in encoded or output in feature.outputs
    }
    rows = {output: len(array) for output, array in arrays.items()}
    if len(set(rows.values())) > 1:
        raise ColumnError(f"the outputs to decode have different numbers of rows: {rows}")
    return arrays


def decode_column(feature: Contract, encoded: Mapping[str, Any], learned: Learned) -> pa.Array:
    """Decode rows by output, from batches or from a model.

    Cells that the missing indicator marks, if it is passed, become missing again. Among the numbers that are encoded
    alike, the one with the fewest digits is returned: 92.8 and not 92.800001, its value after rounding to float32.
    """
    arrays = _as_encoded(feature, encoded, learned)
    marks = arrays.pop(MISSING, None) if feature.missing_indicator else None
    to_decode: Any = arrays[""] if feature.outputs == ("",) else arrays
    decoded = feature.decode(to_decode, learned)
    check_arrow(feature, "decode", decoded, len(next(iter(arrays.values()))))
    if isinstance(to_decode, np.ndarray) and (to_decode.ndim, to_decode.dtype, decoded.type) == (
        1,
        np.float32,
        pa.float64(),
    ):
        with np.errstate(over="ignore"):  # the neighbor of the largest float32 is infinite
            ends = [feature.decode(np.nextafter(to_decode, np.float32(end)), learned) for end in (-np.inf, np.inf)]
        decoded = _round_to_shortest(*(array.to_numpy(zero_copy_only=False) for array in (decoded, *ends)))
    return mask_missing(_restore_type(decoded, getattr(learned, "cell_type", None)), marks)


def restorable_type(labels: pa.Array, cell_type: str) -> CellKind | None:
    """Return the type that all labels can be restored to, or None."""
    if cell_type in ("integer", "float", "float32"):
        with contextlib.suppress(pa.ArrowInvalid):
            labels.cast(_ARROW_TYPES[cell_type])
            return cast("CellKind", cell_type)
    elif cell_type == "untyped" and len(labels):
        if set(labels.to_pylist()) <= {"True", "False"}:
            return "boolean"
        kinds: tuple[CellKind, ...] = ("integer", "float")
        for kind in kinds:
            with contextlib.suppress(pa.ArrowInvalid):
                if as_text(labels.cast(_ARROW_TYPES[kind])).equals(labels):  # "01" is not the text of a number
                    return kind
    elif cell_type in ("boolean", "decimal"):
        with contextlib.suppress(KeyError, ArithmeticError):
            convert_labels(labels.to_pylist(), cell_type)
            return cast("CellKind", cell_type)
    return None


def _restore_type(decoded: pa.Array, cell_type: str | None) -> pa.Array:
    """Return decoded values in the column's cell type."""
    if cell_type is None:
        return decoded
    if pa.types.is_floating(decoded.type):
        values = decoded.to_numpy(zero_copy_only=False)
        are_integral = bool(((values == np.rint(values)) & (np.abs(values) < MAX_EXACT_INTEGER)).all())
        return pa.array(values.astype(np.int64)) if are_integral else decoded
    distinct = decoded.dictionary_encode()
    labels = convert_labels(distinct.dictionary.to_pylist(), cell_type)
    values = pa.array([None if label == "<UNK>" else label for label in labels], _ARROW_TYPES.get(cell_type))
    return values.take(distinct.indices)


def _round_to_shortest(values: np.ndarray, below: np.ndarray, above: np.ndarray) -> pa.Array:
    """Return values with the fewest digits that identify each."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        room = np.minimum(np.abs(values - below), np.abs(above - values)) / 2
        digits = np.ceil(-np.log10(room))
        # Beyond these bounds, powers of ten are inexact, and doubles have no more digits.
        remaining = np.flatnonzero((np.abs(digits) <= MAX_EXACT_POWER) & (room > 1e-15 * np.abs(values)))
    shortest, digits = values.copy(), digits[remaining]
    while len(remaining):
        power, numbers = 10.0 ** np.abs(digits), values[remaining]
        rounded = np.where(digits < 0, np.rint(numbers / power) * power, np.rint(numbers * power) / power)
        fits = (np.abs(rounded - numbers) < room[remaining]) & (digits >= -MAX_EXACT_POWER)
        shortest[remaining[fits]] = rounded[fits] + 0.0  # turns -0 into 0
        fits &= rounded != 0
        remaining, digits = remaining[fits], digits[fits] - 1
    return pa.array(shortest, from_pandas=True) if np.isnan(shortest).any() else pa.array(shortest)


def mask_missing(decoded: pa.Array, marks: np.ndarray | None) -> pa.Array:
    """Return decoded cells, null where `marks` are set."""
    if marks is None or not marks.any():
        return decoded
    return decoded.take(pa.array(np.arange(len(decoded)), mask=marks.astype(bool)))


def _check_decodable(feature: Contract, array: np.ndarray, empty: np.ndarray, limits: Limits | None) -> np.ndarray:
    """Return integers in the dtype of `empty`, floats unchanged; ColumnError for others, or beyond `limits`."""
    if not array.size and array.dtype == np.float64:  # an empty list
        array = array.astype(empty.dtype)
    if array.dtype == np.bool_ and limits is not None and np.array_equal(limits[:2], (0, 1)):
        array = array.astype(empty.dtype)
    any_length = limits is not None and limits.any_length
    same_shape = array.ndim == empty.ndim and (any_length or array.shape[1:] == empty.shape[1:])
    if not same_shape or array.dtype.kind not in ("iuf" if empty.dtype.kind == "f" else "iu"):
        scores = array.dtype.kind == "f"
        raise ColumnError(
            f"cannot decode {describe_result(array)}, since rows of {kind_with_article(feature)} are "
            f"{_describe_rows(empty)}: pass rows from encode or Split.read, or batches of a loader with expand=False"
            + "; pass the argmax of scores, or a model's output for targets to Preprocessor.predictions"
            * scores
        )
    if empty.dtype.kind == "f" or not array.size or (limits is None and array.dtype == empty.dtype):
        return array
    low, high = (np.iinfo(empty.dtype).min, np.iinfo(empty.dtype).max) if limits is None else limits[:2]
    outside = np.argwhere((array < low) | (array > high))
    if len(outside):
        row, *within = outside[0].tolist()
        lowest, highest = (np.broadcast_to(limit, array.shape[1:])[tuple(within)] for limit in (low, high))
        raise ColumnError(
            f"cannot decode {array[(row, *within)]} in row {row:,}: expected integers from {lowest} to {highest} for "
            f"this fitted {feature.kind}; {len(outside):,} numbers are outside"
        )
    return array.astype(empty.dtype, copy=False)


def _to_array(value: Any) -> np.ndarray:
    """Return an array of a list or array, or raise ColumnError."""
    try:
        return as_array(value)
    except ValueError as error:  # a ragged list
        raise ColumnError(f"cannot decode {type(value).__name__}: {error}") from error


def _describe_rows(empty: np.ndarray) -> str:
    return f"{empty.dtype} of shape {('rows', *empty.shape[1:])}".replace("'rows'", "rows")
