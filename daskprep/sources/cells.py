"""Cells as text and as Arrow arrays.

`as_text` converts a column to text, `cell_texts` Python objects. The text of a value is the same for every type, unit
or precision of its column:

| value | text |
|---|---|
| text, bytes | unchanged, bytes decoded as UTF-8 |
| integers, and floats and decimals below 1e76 with integer values | digits alone: "1", not "1.0" |
| other floats and decimals | the shortest form: "1.5", not "1.50" |
| booleans | "True", "False" |
| dates | "2020-07-01" |
| timestamps | "2020-07-01 12:00:00.5", with a zone the clock and the offset from UTC: "2020-07-01 12:00:00+02:00" |
| times of day | "12:00:00.5" |
| durations | "1 days 00:00:01.5", "-1 days +23:59:59" |
| UUIDs | "00000000-0000-0000-0000-000000000001" |
| null, NaN, NaT | null |

`Cells` converts Python objects to an Arrow array, by the `cell_kind` of their column:

| cells of the column | result |
|---|---|
| text, integers, floats, booleans, bytes, dates, times or decimals alone | that Arrow type |
| integers and floats | double |
| scalars of several types, integers beyond 64 bits, times in several zones or with nanoseconds | `MIXED` cells |
| decimals with more than 76 digits in total | `MIXED` cells |
| lists, tuples, sets, 1-D arrays | lists; sets are sorted, elements of several types are text |
| objects of images or audio (see `daskprep.columns.deferred.cells`), also with other cells | `CELL_TYPE` structs |
| text and bytes of files | `CELL_TYPE` structs |
| None, NaN, NaT, pandas.NA | null |
| other dicts and objects, lists with scalars, lists with arrays of several dimensions | ColumnError |
"""

from __future__ import annotations

import datetime as dt
import decimal
import os
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from daskprep.columns.deferred.cells import ACCEPTED_OBJECTS, MediaKind, convert_media_objects, is_pillow, is_tensor
from daskprep.columns.kernels import MIXED, only_where
from daskprep.errors import ColumnError, RejectedValueError
from daskprep.rows.cells import NUMBER_TYPES, PLAIN_INTEGER_LIMIT, SECONDS_PER_DAY, TIME_TYPES, number_of, text_of

_MIN_LARGE = 2.0**63  # beyond int64
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

SCALARS = (
    str, bool, np.bool_, int, np.integer, float, np.floating, Decimal, bytes, bytearray, os.PathLike, uuid.UUID,
    dt.date, dt.time, np.datetime64, dt.timedelta, np.timedelta64,
)  # fmt: skip

# Arrow computes daylight saving times only up to the end of most systems' tables; Python applies the rules after it.
_ZONE_TABLES_END = dt.datetime(2037, 1, 1, tzinfo=dt.UTC)
_PYTHON_TIMES_END = dt.datetime(9999, 12, 30, tzinfo=dt.UTC)


def as_text(column: pa.Array) -> pa.Array:
    """Return cells as strings, equal for equal values of any type.

    pandas turns a column of integers into floats as soon as one cell is missing; the text of a cell must not depend on
    its neighbors. ColumnError for lists, structs, and bytes that are not UTF-8.
    """
    kind = column.type
    if pt.is_string(kind):
        return column
    if pt.is_dictionary(kind):
        return as_text(column.dictionary).take(column.indices)
    if pt.is_boolean(kind):
        return pc.if_else(column, "True", "False")
    if pt.is_floating(kind):
        return _floats_to_text(column.cast(pa.float32()) if pt.is_float16(kind) else column)
    if pt.is_duration(kind):
        return _durations_to_text(column)
    if pt.is_nested(kind):
        raise ColumnError(f"holds values of type {kind}, which have no single text: use Set, Sequence or Vector")
    try:
        text = _cast_to_text(column)
    except pa.ArrowNotImplementedError as error:
        raise ColumnError(f"holds values of type {kind}, which have no text: convert them first") from error
    except pa.ArrowInvalid as error:
        raise ColumnError("holds bytes that are not UTF-8 text: decode them first") from error
    if pt.is_decimal(kind):
        return _simplify_decimals(text)
    return _times_to_text(column, text) if pt.is_timestamp(kind) or pt.is_time(kind) else text


def _cast_to_text(column: pa.Array) -> pa.Array:
    """Return cells as text; times of a fixed offset are local, with it."""
    offset = _parse_offset(column.type.tz) if pt.is_timestamp(column.type) else None
    if offset is None:
        return column.cast(pa.string())
    return pc.binary_join_element_wise(local_clock(column).cast(pa.string()), _format_offset(offset), "")


def _floats_to_text(column: pa.Array) -> pa.Array:
    """Return floats in shortest form, integers without ".0", and null for NaN."""
    # The digits of a float32 column are float32 digits: 0.1, not 0.10000000149011612.
    values = column.to_numpy(zero_copy_only=False).astype(np.float64)
    missing = np.isnan(values)
    with np.errstate(invalid="ignore"):
        is_large = np.abs(values) >= _MIN_LARGE
        is_integral = (values == np.trunc(values)) & ~is_large
    integers = pa.array(np.where(is_integral, values, 0).astype(np.int64)).cast(pa.string())
    text = pc.if_else(pa.array(is_integral), integers, column.cast(pa.string()))
    if is_large.any() and (prints_all_digits := is_large & (np.abs(values) < PLAIN_INTEGER_LIMIT)).any():
        text = pc.replace_with_mask(
            text, pa.array(prints_all_digits), pa.array(cell_texts(values[prints_all_digits]), pa.string())
        )
    return only_where(pa.array(~missing), text) if missing.any() else text


def _simplify_decimals(text: pa.Array) -> pa.Array:
    """Return decimals' texts with the digits of equal numbers."""
    text = pc.replace_substring_regex(text, r"(\.\d*?)0+(E.*)?$", r"\1\2")
    text = pc.replace_substring_regex(text, r"\.(E.*)?$", r"\1")
    text = pc.replace_substring_regex(text, r"^-?0(E.*)?$", "0")
    text = pc.replace_substring(text, "E", "e")
    # Arrow formats floats from 1e10 with an exponent, unless their values are integers.
    large = pc.fill_null(pc.match_substring_regex(text, r"^-?\d{11,}\.|e\+"), fill_value=False)
    if not pc.any(large).as_py():
        return text
    rewritten = cell_texts(map(Decimal, text.filter(large).to_pylist()))
    return pc.replace_with_mask(text, large, pa.array(rewritten, pa.string()))


def _simplify_times(text: pa.Array) -> pa.Array:
    """Return times without trailing zeros, and with offsets such as "+00:00"."""
    text = pc.replace_substring_regex(text, r"\.(\d*?)0*(Z|[+-].*)?$", r".\1\2")
    text = pc.replace_substring_regex(text, r"\.(Z|[+-].*)?$", r"\1")
    text = pc.replace_substring_regex(text, r"(:\d\d(?:\.\d+)?[+-]\d\d):?(\d\d).*$", r"\1:\2")
    return pc.replace_substring_regex(text, r"Z$", "+00:00")


def _times_to_text(column: pa.Array, text: pa.Array) -> pa.Array:
    """Return the simplified `text` of times; where Arrow has no zone rules, texts are computed again."""
    text = _simplify_times(text)
    if not pt.is_timestamp(column.type) or column.type.tz is None or not pc.any(late := is_late(column)).as_py():
        return text
    times = column.filter(late)
    clock, seconds = local_clock(times), pa.int64()
    utc = times.cast(pa.timestamp(times.type.unit)).cast(seconds)
    minutes = (pc.subtract(clock.cast(seconds), utc).to_numpy() // (60 * _PER_SECOND[times.type.unit])).tolist()
    rewritten = pc.binary_join_element_wise(
        _simplify_times(clock.cast(pa.string())), pa.array(map(_format_offset, minutes)), ""
    )
    return pc.replace_with_mask(text, late, rewritten)


def _durations_to_text(column: pa.Array) -> pa.Array:
    """Return durations as text, such as "1 days 00:00:01.5"."""
    unit = column.type.unit
    days, ticks = np.divmod(pc.fill_null(column.cast(pa.int64()), 0).to_numpy(), SECONDS_PER_DAY * _PER_SECOND[unit])
    clock = pa.array(ticks).cast(pa.int32() if unit in ("s", "ms") else pa.int64())
    clock = clock.cast(pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit))
    middle = pc.if_else(pa.array(days < 0), " days +", " days ")
    text = pc.binary_join_element_wise(pa.array(days).cast(pa.string()), middle, as_text(clock), "")
    return only_where(column.is_valid(), text)


def cell_texts(cells: Iterable[Any]) -> list[str | None]:
    """Return the text of each scalar; None for None and NaN."""
    return [text_of(cell) for cell in cells]


def mixed_cells(cells: Iterable[Any]) -> pa.StructArray:
    """Return scalars as `MIXED` cells, with text, and with a number if they are numbers; None and NaN are missing."""
    cell_list = list(cells)
    texts = pa.array(cell_texts(cell_list), pa.string())
    # NumPy's durations are instances of np.integer.
    numbers = [
        number_of(cell) if isinstance(cell, NUMBER_TYPES) and not isinstance(cell, TIME_TYPES) else None
        for cell in cell_list
    ]
    return pa.StructArray.from_arrays(
        [texts, pa.array(numbers, pa.float64())], fields=list(MIXED), mask=texts.is_null()
    )


def local_clock(times: pa.TimestampArray) -> pa.TimestampArray:
    """Return the local time of `times`, without a zone."""
    if (offset := _parse_offset(times.type.tz)) is not None:
        utc, unit = times.cast(pa.timestamp(times.type.unit)).cast(pa.int64()), times.type.unit
        return pc.add(utc, offset * 60 * _PER_SECOND[unit]).cast(pa.timestamp(unit))
    clock = pc.local_timestamp(times)
    late = is_late(times)
    if not pc.any(late).as_py():
        return clock
    moments = times.filter(late).cast(pa.timestamp(times.type.unit)).to_numpy(zero_copy_only=False)
    local_times = pd.DatetimeIndex(moments, tz="UTC").tz_convert(ZoneInfo(times.type.tz)).tz_localize(None)
    return pc.replace_with_mask(clock, late, pa.array(np.asarray(local_times), clock.type))


def _parse_offset(zone: str | None) -> int | None:
    """Return the minutes of a zone such as "+05:30", or None."""
    match = re.fullmatch(r"([+-])(\d\d):?(\d\d)", zone or "")  # pyarrow before 22 does not support these zones
    return None if match is None else int(match[1] + "1") * (int(match[2]) * 60 + int(match[3]))


def _format_offset(offset: int) -> str:
    return f"{'-' if offset < 0 else '+'}{abs(offset) // 60:02}:{abs(offset) % 60:02}"


def is_late(times: pa.TimestampArray) -> pa.BooleanArray:
    """Return a mask of times after the end of Arrow's zone tables."""
    is_after = pc.greater_equal(times, pa.scalar(_ZONE_TABLES_END, times.type))
    if times.type.unit != "ns":  # nanoseconds end in 2262
        is_after = pc.and_(is_after, pc.less(times, pa.scalar(_PYTHON_TIMES_END, times.type)))
    return pc.fill_null(is_after, fill_value=False)


_LIST_TYPES = (list, tuple, set, frozenset, np.ndarray, pd.Series)
_BOOLEANS = (bool, np.bool_)
_NUMBERS = (int, float, np.integer, np.floating)
_SMALL_FLOATS = (np.float16, np.float32)
_BYTES = (bytes, bytearray)
_PATHS_AND_FILES = (str, os.PathLike, *_BYTES)
# Kinds of scalars with a separate Arrow type (None: the type that Arrow infers), narrower kinds first.
_SCALAR_KINDS: dict[str, tuple[tuple[type, ...], pa.DataType | None]] = {
    "text": ((str,), pa.string()),
    "boolean": (_BOOLEANS, pa.bool_()),
    "integer": ((int, np.integer), pa.int64()),
    "single": (_SMALL_FLOATS, pa.float32()),
    "float": ((float, np.floating), pa.float64()),
    "number": (_NUMBERS, pa.float64()),
    "bytes": (_BYTES, pa.binary()),
    "decimal": ((Decimal,), None),
    "datetime": ((dt.datetime,), None),
    "date": ((dt.date,), pa.date32()),
    "time": ((dt.time,), None),
    "duration": ((dt.timedelta,), None),
}
_ZONE_TYPES = (dt.timezone, ZoneInfo)
_MINUTE = dt.timedelta(minutes=1)  # unit of Arrow's offsets from UTC
_MAX_DIGITS = 76  # of decimal256
_NO_TRAPS = decimal.Context(traps=[])  # a signaling NaN is a missing value, not an error

# Every format of images and audio has a zero byte in its first bytes; text in single-byte encodings has none.
_HEAD_BYTES = 8_000


def cell_kind(cells: np.ndarray) -> str:
    """Return the kind of the cells of a column.

    A kind of scalar, such as "text"; "missing" (only missing values), "list", "mixed" (scalars of several types),
    "image" or "audio" (objects of media, also with other cells), or "refused".
    """
    present = cells[~_is_missing(cells)]
    types = set(map(type, present))
    if not types:
        return "missing"
    for kind, (accepted, _) in _SCALAR_KINDS.items():
        if _are_all_of(types, accepted) and (kind == "boolean" or bool not in types):
            return _lossless_kind(kind, present, types)
    if _are_all_of(types, _LIST_TYPES):
        # In a readable column of lists no cell is media, so the first cell decides, except for arrays.
        return (_media_kind(present if types == {np.ndarray} else present[:1]) and _media_kind(present)) or "list"
    if _are_all_of(types, SCALARS):
        files = [cell for cell in present if isinstance(cell, _BYTES)] if _are_all_of(types, _PATHS_AND_FILES) else []
        # Bytes of a file, not encoded text.
        has_files = any(b"\0" in cell[:_HEAD_BYTES] and not _is_text(cell) for cell in files)
        return "image" if has_files else "mixed"
    return _media_kind(present) or "refused"


def _is_missing(cells: np.ndarray) -> np.ndarray:
    with decimal.localcontext(_NO_TRAPS):
        return pd.isna(cells)


def _media_kind(cells: np.ndarray) -> MediaKind | None:
    """Return "audio" if a cell is audio, else "image" if one is a medium, else None."""
    if any(map(_is_audio, cells)):
        return "audio"
    return "image" if any(map(_is_medium, cells)) else None


def _is_audio(cell: object) -> bool:
    """Return whether a cell is a dict with "array", or a pair of samples and rate."""
    if isinstance(cell, Mapping):
        return "array" in cell
    # A tuple of a list and a number is no readable list, so it is a pair of samples and rate.
    if not isinstance(cell, tuple) or len(cell) != 2 or not isinstance(cell[1], _NUMBERS):
        return False
    return isinstance(cell[0], list) or getattr(cell[0], "ndim", 0) in {1, 2}


def _is_medium(cell: Any) -> bool:
    """Return whether a cell is a dict of a file, pixels, a tensor, or a Pillow image."""
    if isinstance(cell, Mapping):
        return "bytes" in cell or "path" in cell
    if isinstance(cell, np.ndarray) or is_tensor(cell):
        return bool(cell.ndim >= (2 if isinstance(cell, np.ndarray) else 1))
    return is_pillow(cell)


def _are_all_of(types: Iterable[type], accepted: tuple[type, ...]) -> bool:
    return all(issubclass(kind, accepted) for kind in types)


def _lossless_kind(kind: str, present: np.ndarray, types: set[type]) -> str:
    """Return `kind`, or "mixed" if that would change values."""
    if kind == "decimal":
        return kind if all(map(Decimal.is_finite, present)) and _count_digits(present) <= _MAX_DIGITS else "mixed"
    if kind in ("float", "number") and not types.isdisjoint(_SMALL_FLOATS):
        return "mixed"
    if kind in ("datetime", "time"):
        # Arrow stores one zone for a column, by its name, and no zone for times of day.
        zone, zone_types = present[0].tzinfo, () if kind == "time" else _ZONE_TYPES
        if any(cell.tzinfo != zone for cell in present) or not (zone is None or isinstance(zone, zone_types)):
            return "mixed"
        if isinstance(zone, dt.timezone) and zone.utcoffset(None) % _MINUTE:
            return "mixed"
    if kind in ("datetime", "duration"):
        # Arrow converts Python objects to microseconds.
        nanosecond_field = "nanosecond" if kind == "datetime" else "nanoseconds"
        return "mixed" if any(getattr(cell, nanosecond_field, 0) for cell in present) else kind
    if kind == "date" and any(issubclass(cell_type, dt.datetime) for cell_type in types):
        return "mixed"
    if kind == "integer":
        return kind if min(present) >= -(2**63) and max(present) < 2**63 else "mixed"
    if kind == "number":
        integers = [abs(int(cell)) for cell in present if not isinstance(cell, float | np.floating)]
        return kind if max(integers) <= 2**53 else "mixed"
    return kind


def _count_digits(present: np.ndarray) -> int:
    fraction = max(-cast("int", cell.as_tuple().exponent) for cell in present)
    return max(max(map(Decimal.adjusted, present)) + 1, 0) + max(fraction, 0)


@dataclass(frozen=True)
class Cells:
    """Cells of a slice of a column, with the facts for error messages."""

    values: np.ndarray
    column: str
    kind: str  # the `cell_kind` of all rows of the column, so that all slices have one type
    first_row: int | None  # row number of the first cell; None if unknown, as in a Dask partition

    def to_arrow(self) -> pa.Array:
        """Return the cells as an Arrow array; an error names column, row and value of an unreadable cell."""
        missing = _is_missing(self.values)
        try:
            return self._convert(missing)
        except UnicodeError as error:
            raise self._invalid_text_error(missing) from error
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            if isinstance(error, ColumnError):
                raise
            raise ColumnError(
                f'column "{self.column}", {self.kind} cells that cannot be read: {error}; use .astype(str)'
            ) from error

    def _convert(self, missing: np.ndarray) -> pa.Array:
        """Return the cells as Arrow by their kind; ColumnError for a refused one."""
        if self.kind == "missing":
            return pa.nulls(len(self.values))
        if self.kind == "refused":
            raise self._refused_error(missing)
        if self.kind in _SCALAR_KINDS:
            return pa.array(self.values, _SCALAR_KINDS[self.kind][1], mask=missing, from_pandas=True)
        cells = [None if gone else cell for gone, cell in zip(missing, self.values, strict=True)]
        if self.kind == "mixed":
            return mixed_cells(cells)
        return self._convert_lists(cells) if self.kind == "list" else self._convert_media(cells)

    def _convert_media(self, objects: list[Any]) -> pa.StructArray:
        """Return media objects as structs; ColumnError for the first unreadable one."""
        kind = cast("MediaKind", self.kind)
        cells, unreadable = convert_media_objects(objects, kind)
        if unreadable:
            row, reason = unreadable[0].row, unreadable[0].reason.rstrip(".")
            noun = "an image" if kind == "image" else "audio"
            accepted = ACCEPTED_OBJECTS[kind]
            raise self._error(row, f"this cell cannot be read as {noun} ({reason}); accepted are {accepted}")
        return cells

    def _convert_lists(self, values: list[Any]) -> pa.Array:
        """Return lists as an Arrow list array; lists of text if elements have several types, or are times."""
        cells = [self._as_list(i, cell) for i, cell in enumerate(values)]
        try:
            array = pa.array(cells, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            array = None
        if array is not None and not _has_objects(array.type):
            return array
        texts = [None if cell is None else self._element_texts(i, cell) for i, cell in enumerate(cells)]
        return pa.array(texts, pa.list_(pa.string()))

    def _as_list(self, i: int, cell: Any) -> Any:
        """Return a cell as Arrow reads it, sets sorted by text; ColumnError for an array of several dimensions."""
        if isinstance(cell, set | frozenset):
            return sorted(cell, key=str)
        if isinstance(cell, np.ndarray) and cell.ndim != 1:
            problem = f"an array of {cell.ndim} dimensions cannot be read, only of 1; use .ravel() or more columns"
            raise self._error(i, problem)
        return list(cell) if isinstance(cell, pd.Series) else cell

    def _element_texts(self, i: int, cell: Any) -> list[str | None]:
        """Return the elements of a list as text, None if missing; ColumnError with row `i` for a nested one."""
        elements = [None if not isinstance(x, _LIST_TYPES) and pd.isna(x) else x for x in cell]
        for element in elements:
            if element is not None and not isinstance(element, SCALARS):
                raise self._error(i, f"a {type(element).__name__} in a list cannot be read: {format_cell(element)}")
        return cell_texts(elements)

    def _refused_error(self, missing: np.ndarray) -> ColumnError:
        """Return the error for the first unreadable cell, or scalar among lists."""
        for i, cell in enumerate(self.values):
            if not missing[i] and not isinstance(cell, (*SCALARS, *_LIST_TYPES)):
                remedy = "put its values in separate columns" if isinstance(cell, dict) else "convert it first"
                return self._error(
                    i, f"a cell of type {type(cell).__name__} cannot be read: {format_cell(cell)}; {remedy}"
                )
        i, cell = next((i, c) for i, c in enumerate(self.values) if not missing[i] and not isinstance(c, _LIST_TYPES))
        problem = f"a cell of type {type(cell).__name__} in a column of lists: {format_cell(cell)}"
        return self._error(i, f"{problem}; make all cells lists, or all text")

    def _invalid_text_error(self, missing: np.ndarray) -> RejectedValueError:
        i, cell = next((i, c) for i, c in enumerate(self.values) if not missing[i] and not _is_text(c))
        return RejectedValueError(
            f'column "{self.column}", {self._row_label(i)}: {format_cell(cell)} is not UTF-8 text; decode or correct it'
        )

    def _error(self, i: int, problem: str) -> ColumnError:
        return ColumnError(f'column "{self.column}", {self._row_label(i)}: {problem}')

    def _row_label(self, i: int) -> str:
        return f"row {i} of a partition" if self.first_row is None else f"row {self.first_row + i}"


def _has_objects(kind: pa.DataType) -> bool:
    """Return whether lists of a type are read as text."""
    if pt.is_list(kind):
        return _has_objects(kind.value_type)
    # Times in lists are read as text, since Arrow would drop their zones and nanoseconds.
    return pt.is_struct(kind) or pt.is_temporal(kind) or isinstance(kind, pa.BaseExtensionType)


def _is_text(cell: Any) -> bool:
    """Return whether a cell or list can be encoded as UTF-8."""
    try:
        for text in cell_texts(list(cell) if isinstance(cell, _LIST_TYPES) else [cell]):
            (text or "").encode()
    except UnicodeError:
        return False
    return True


def format_cell(cell: Any, max_length: int = 60) -> str:
    """Return the representation of a cell, of limited length."""
    text = repr(cell)
    return text if len(text) <= max_length else f"{text[:max_length]}..."
