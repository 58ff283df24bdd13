"""The Arrow types that sources deliver, and the common type of a column in several files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

TEXT_CODES = pa.dictionary(pa.int32(), pa.string())

# Types of most columns, delivered unchanged: comparing an id is faster than the dozen checks of `narrow_type`.
PLAIN_TYPE_IDS = frozenset(
    kind.id for kind in (pa.float64(), pa.int64(), pa.string(), pa.binary(), pa.bool_(), pa.timestamp("us"), pa.null())
)
_MAX_OFFSET = 2**31 - 1
_CLASS_NAMES_KEY = b"class_names"  # metadata of an integer field
_UNTYPED: Mapping[bytes | str, bytes | str] = {b"untyped": b""}  # metadata of a text field
_DIGITS_128, _DIGITS_256 = 38, 76
_EXTENSIONS = {"arrow.uuid": pa.string(), "arrow.bool8": pa.bool_()}
_LARGE = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
_NARROW = {**_LARGE, pa.string_view(): pa.string(), pa.binary_view(): pa.binary(), pa.float16(): pa.float32()}


def narrow_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which a column of `kind` is delivered.

    Offsets and codes have 32 bits, and only text has codes, which stay ordered. Half floats become float32, UUIDs text,
    other extension types their storage type, and small decimals decimal128.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return _EXTENSIONS.get(kind.extension_name) or narrow_type(kind.storage_type)
    if kind in _NARROW:
        return _NARROW[kind]
    if pt.is_run_end_encoded(kind):
        return narrow_type(kind.value_type)
    if pt.is_decimal32(kind) or pt.is_decimal64(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if pt.is_dictionary(kind):
        values = narrow_type(kind.value_type)
        return pa.dictionary(pa.int32(), values, kind.ordered) if pt.is_string(values) else values
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_list_view(kind) or pt.is_large_list_view(kind):
        return pa.list_(narrow_type(kind.value_type))
    if pt.is_fixed_size_list(kind):
        return pa.list_(narrow_type(kind.value_type), kind.list_size)
    if pt.is_struct(kind):
        # Media may have more bytes than 32-bit offsets reach, and structs cannot be split into chunks as columns can.
        wide = {pa.binary_view(): pa.large_binary()} | {large: large for large in _LARGE}
        return pa.struct([(field.name, wide.get(field.type) or narrow_type(field.type)) for field in kind])
    return kind


def narrow_schema(schema: pa.Schema, columns: Sequence[str] | None = None) -> pa.Schema:
    """Return delivered types of columns (None: all) of a schema."""
    fields = schema if columns is None else [schema.field(name) for name in columns]
    return pa.schema([field.with_type(narrow_type(field.type)).with_nullable(True) for field in fields])


def narrow_table(table: pa.Table) -> pa.Table:
    """Return a table with columns cast to their `narrow_type`."""
    for i, field in enumerate(table.schema):
        if narrow_type(field.type) != field.type:
            table = table.set_column(i, field.name, narrow_column(table.column(i)))
    return table


def narrow_column(column: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column cast to its `narrow_type`, in small chunks."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    target = column.type if column.type.id in PLAIN_TYPE_IDS else narrow_type(column.type)
    if target == column.type:
        return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array(chunks, target)
    if column.type in _LARGE:
        chunks = [narrow_chunk for chunk in chunks for narrow_chunk in _narrow_offsets(chunk)]
    else:
        chunks = [_narrow_array(chunk, target) for chunk in chunks]
    return pa.chunked_array(chunks, target)


def _narrow_array(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Return an array cast to a type from `narrow_type`."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name not in _EXTENSIONS:
        return _narrow_array(array.storage, target)
    if kind == pa.uuid():
        return _uuid_texts(array.storage)
    if pt.is_run_end_encoded(kind):
        return _narrow_array(pc.run_end_decode(array), target)
    if pt.is_dictionary(kind) and not pt.is_dictionary(target):
        return _narrow_array(array.dictionary_decode(), target)
    if pt.is_list(target) and kind != target:
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        offsets = pa.array(np.append(0, np.cumsum(lengths)), pa.int32())
        return pa.ListArray.from_arrays(
            offsets, _narrow_array(array.flatten(), target.value_type), mask=array.is_null()
        )
    if pt.is_fixed_size_list(target):
        cells = array.values.slice(array.offset * target.list_size, len(array) * target.list_size)
        values = _narrow_array(cells, target.value_type)
        return pa.FixedSizeListArray.from_arrays(values, type=target, mask=array.is_null())
    if pt.is_struct(target):
        cells = [_narrow_array(cells, field.type) for cells, field in zip(array.flatten(), target, strict=True)]
        return pa.StructArray.from_arrays(cells, fields=list(target), mask=array.is_null())
    return array.cast(target)


def _uuid_texts(array: pa.FixedSizeBinaryArray) -> pa.Array:
    """Return UUIDs as lower-case text, null where missing."""
    cells = pc.fill_null(array, bytes(16))
    octets = np.frombuffer(cells.buffers()[1], np.uint8)[cells.offset * 16 :][: len(cells) * 16]
    digits = np.stack([octets >> 4, octets & 15], axis=1).reshape(-1, 32)
    letters = np.insert(np.frombuffer(b"0123456789abcdef", np.uint8)[digits], [8, 12, 16, 20], ord("-"), axis=1)
    offsets = pa.py_buffer(np.arange(len(cells) + 1, dtype=np.int32) * 36)
    texts = pa.StringArray.from_buffers(len(cells), offsets, pa.py_buffer(np.ascontiguousarray(letters)))
    return pc.if_else(array.is_valid(), texts, pa.scalar(None, pa.string()))


def _narrow_offsets(array: pa.Array) -> list[pa.Array]:
    """Return large strings with 32-bit offsets, halved until they fit; Arrow's cast refuses slices of large columns."""
    target = _LARGE[array.type]
    _, offsets, data = array.buffers()
    if offsets is None or not len(array):
        return [pa.array([], target)]
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    nbytes = int(ends[-1] - ends[0])
    if nbytes > _MAX_OFFSET:
        half = len(array) // 2
        if not half:
            return [array.cast(target)]
        return [*_narrow_offsets(array.slice(0, half)), *_narrow_offsets(array.slice(half))]
    valid = pc.is_valid(array).buffers()[1] if array.null_count else None
    start = pa.py_buffer((ends - ends[0]).astype(np.int32))
    data = pa.py_buffer(b"") if data is None else data.slice(int(ends[0]), nbytes)
    return [pa.Array.from_buffers(target, len(array), [valid, start, data])]


def common_type(left: pa.DataType, right: pa.DataType, fallback: pa.DataType | None = None) -> pa.DataType | None:
    """Return the type that holds the values of two types exactly, or `fallback`; null adapts to the other type."""
    if left == right:
        return left
    if pt.is_null(left) or pt.is_null(right):
        return right if pt.is_null(left) else left
    if all(pt.is_string(kind) or pt.is_dictionary(kind) for kind in (left, right)):
        return TEXT_CODES if pt.is_dictionary(left) and pt.is_dictionary(right) else pa.string()
    if pt.is_list(left) and pt.is_list(right):
        values = common_type(left.value_type, right.value_type, fallback)
        return None if values is None else pa.list_(values)
    if pt.is_struct(left) and pt.is_struct(right):
        return _common_struct(left, right, fallback)
    if pt.is_timestamp(left) and pt.is_timestamp(right):
        return _promote(left, right) or fallback
    if _is_exact(left) and _is_exact(right) and (pt.is_decimal(left) or pt.is_decimal(right)):
        return _common_decimal(left, right) or fallback
    return (_promote(left, right) if _is_number(left) and _is_number(right) else None) or fallback


def _common_struct(left: pa.DataType, right: pa.DataType, fallback: pa.DataType | None) -> pa.DataType | None:
    """Return a struct of the fields of both, or None if two of one name have no common type."""
    types = {field.name: field.type for field in left}
    for field in right:
        merged = common_type(types.get(field.name, pa.null()), field.type, fallback)
        if merged is None:
            return None
        types[field.name] = merged
    return pa.struct(list(types.items()))


def _is_number(kind: pa.DataType) -> bool:
    return bool(_is_exact(kind) or pt.is_floating(kind))


def _is_exact(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_decimal(kind))


def _common_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return a decimal with all digits of both, None beyond 76."""
    # Arrow's own rule reserves too few digits for integers, and its cast then fails.
    (left_digits, scale), (right_digits, right_scale) = _max_digits(left), _max_digits(right)
    scale = max(scale, right_scale)
    digits = max(left_digits, right_digits) + scale
    if digits > _DIGITS_256:
        return None
    return pa.decimal128(digits, scale) if digits <= _DIGITS_128 else pa.decimal256(digits, scale)


def _max_digits(kind: pa.DataType) -> tuple[int, int]:
    """Return the numbers of digits before and after the point."""
    if pt.is_decimal(kind):
        return kind.precision - kind.scale, kind.scale
    return len(str(2 ** (kind.bit_width - pt.is_signed_integer(kind)))), 0


def _promote(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the type of both, by Arrow's permissive rules, or None."""
    schemas = [pa.schema([("", kind)]) for kind in (left, right)]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return None


def add_class_names(field: pa.Field, names: Sequence[str]) -> pa.Field:
    """Return an integer field with class names as metadata."""
    return field.with_metadata({_CLASS_NAMES_KEY: json.dumps(list(names))})


def class_column(table: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a column, named classes as an ordered dictionary; a code without a name is missing."""
    column, metadata = table[name], table.schema.field(name).metadata or {}
    if _CLASS_NAMES_KEY not in metadata:
        return column
    names = pa.array(json.loads(metadata[_CLASS_NAMES_KEY]), pa.string())
    known = pc.and_(pc.greater_equal(column, 0), pc.less(column, len(names)))
    codes = pc.if_else(known, column, None).cast(pa.int32())
    kind = pa.dictionary(pa.int32(), pa.string(), ordered=True)
    chunks = [pa.DictionaryArray.from_arrays(chunk, names, ordered=True) for chunk in codes.chunks]
    return pa.chunked_array(chunks, kind)


def untyped_field(name: str) -> pa.Field:
    """Return the field of text that may be numbers or booleans."""
    return pa.field(name, pa.string(), metadata=_UNTYPED)


def declared_order(column: pa.ChunkedArray) -> str:
    """Return the values of an ordered dictionary as JSON; "" if not ordered, or if chunks differ."""
    if not pt.is_dictionary(column.type) or not column.type.ordered:
        return ""
    orders = {tuple(chunk.dictionary.cast(pa.string()).to_pylist()) for chunk in column.chunks}
    return json.dumps(orders.pop()) if len(orders) == 1 else ""


def cell_type(field: pa.Field) -> str:
    """Return the name of a column's type for `CellType`, "" for null and "untyped" for text of files without types."""
    kind = field.type
    if field.metadata == _UNTYPED:
        return "untyped"
    if pt.is_integer(kind):
        return "integer"
    if pt.is_floating(kind):
        return "float" if pt.is_float64(kind) else "float32"
    return (
        "boolean" if pt.is_boolean(kind) else "decimal" if pt.is_decimal(kind) else "" if pt.is_null(kind) else "text"
    )
