"""Types of JSON columns, determined for each fragment and merged, so that all fragments read a column alike.

A type is an Arrow type and a flag: True for values of several types, which are read as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from daskprep.kernels import MIXED
from daskprep.sources.arrow_types import common_type
from daskprep.sources.cell_text import cell_texts, mixed_cells

JsonType = tuple[pa.DataType, bool]

NULL_TYPE: JsonType = (pa.null(), False)
_MIXED_TEXT: JsonType = (pa.string(), True)
# Integers beyond 64 bits; Arrow would convert them to floats, and different ids would become equal.
_BIG_INTEGER = pa.decimal128(38, 0)
_MIN_BIG_INTEGER, _MAX_BIG_INTEGER = 2.0**63, 1e38
# Floats with integer values, such as 1.0: merged with big integers they become big integers, otherwise floats.
_INTEGRAL_FLOAT = pa.decimal128(37, 0)


def merge_types(left: JsonType, right: JsonType) -> JsonType:
    """Return the common type of two types; mixed text if they have none."""
    (a, a_mixed), (b, b_mixed) = left, right
    common = common_type(a, b)
    return (common_type(a, b, pa.string()), True) if common is None else (common, a_mixed or b_mixed)


def merge_fields(fields_by_fragment: Iterable[dict[str, JsonType]]) -> dict[str, JsonType]:
    """Return the merged type of each column over all fragments."""
    total: dict[str, JsonType] = {}
    for fields in fields_by_fragment:
        for name, kind in fields.items():
            total[name] = merge_types(total.get(name, NULL_TYPE), kind)
    return total


def array_type(array: pa.Array | pa.ChunkedArray) -> pa.DataType:
    """Return the type of a column that Arrow parsed: text for the dates it infers, and exact big integers."""
    kind = array.type
    if pt.is_timestamp(kind):
        return pa.string()
    if pt.is_list(kind):
        return kind if pt.is_null(kind.value_type) else pa.list_(array_type(pc.list_flatten(array)))
    if pt.is_struct(kind):
        return pa.struct([(field.name, array_type(pc.struct_field(array, [i]))) for i, field in enumerate(kind)])
    if pt.is_floating(kind):
        return _float_type(np.asarray(array.drop_null()))
    if pt.is_integer(kind):
        limits = pc.min_max(array).as_py()
        return _integer_type([limits["min"] or 0, limits["max"] or 0])
    return kind


def _float_type(values: np.ndarray) -> pa.DataType:
    largest = np.max(np.abs(values), initial=0)
    if largest >= _MAX_BIG_INTEGER or not bool((values == np.trunc(values)).all()):
        return pa.float64()
    return _BIG_INTEGER if largest >= _MIN_BIG_INTEGER else _INTEGRAL_FLOAT


def _integer_type(values: Sequence[int]) -> pa.DataType:
    # Compared as floats, because Arrow converts all integers of a column with a float or a big integer to floats.
    largest = max(abs(float(value)) for value in values)
    if largest >= _MAX_BIG_INTEGER:
        return pa.float64()
    return _BIG_INTEGER if largest >= _MIN_BIG_INTEGER else pa.int64()


def settle_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which a column is read, from its merged type over all fragments."""
    if pt.is_list(kind):
        return pa.list_(_settle_inner_type(kind.value_type))
    if pt.is_struct(kind):
        return pa.struct([(field.name, _settle_inner_type(field.type)) for field in kind])
    return pa.float64() if kind == _INTEGRAL_FLOAT else kind


def _settle_inner_type(kind: pa.DataType) -> pa.DataType:
    # Arrow 26.0.1 returns arrays of wrong lengths for lists of the null type.
    return pa.string() if pt.is_null(kind) else settle_type(kind)


def values_type(values: Iterable[Any]) -> JsonType:
    """Return the type of JSON values that Python parsed, the same as `array_type` for values of one type."""
    values = [value for value in values if value is not None]
    kinds = set(map(type, values))
    if not kinds:
        return NULL_TYPE
    if kinds == {bool}:
        return pa.bool_(), False
    if kinds == {str}:
        return pa.string(), False
    if kinds == {list}:
        kind, mixed = values_type(chain.from_iterable(values))
        return pa.list_(kind), mixed
    if kinds == {dict}:
        names = dict.fromkeys(chain.from_iterable(values))
        types = [values_type(value.get(name) for value in values) for name in names]
        return pa.struct(zip(names, (kind for kind, _ in types), strict=True)), any(mixed for _, mixed in types)
    if kinds == {int}:
        return _integer_type(values), False
    if kinds <= {int, float}:
        return _float_type(np.array([float(value) for value in values])), False
    return _MIXED_TEXT


def json_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return JSON values that Python parsed as an array of type `kind`; other types of values become text."""
    return mixed_cells(map(_nested_to_json, values)) if kind == MIXED else pa.array(_convert_values(values, kind), kind)


def _convert_values(values: Sequence[Any], kind: pa.DataType) -> list[Any]:
    """Return values with nested values, texts and numbers converted to the Python types that Arrow needs."""
    if pt.is_string(kind):
        return cell_texts(map(_nested_to_json, values))
    if pt.is_list(kind):
        return [None if value is None else _convert_values(value, kind.value_type) for value in values]
    if pt.is_struct(kind):
        columns = [
            _convert_values([None if value is None else value.get(field.name) for value in values], field.type)
            for field in kind
        ]
        names = [field.name for field in kind]
        rows = zip(*columns, strict=True) if columns else iter([()] * len(values))
        cells = zip(values, (dict(zip(names, row, strict=True)) for row in rows), strict=True)
        return [None if value is None else cell for value, cell in cells]
    # Arrow refuses to convert floats to decimals, and integers that no float represents exactly to floats.
    number = Decimal if pt.is_decimal(kind) else float if pt.is_floating(kind) else None
    return [value if value is None or number is None else number(value) for value in values]


def _nested_to_json(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if isinstance(value, list | dict) else value
