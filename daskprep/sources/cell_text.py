"""The text of a value, the same for every type, unit or precision of its column.

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

`as_text` converts a column, `cell_texts` Python objects.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import uuid
from collections.abc import Iterable
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from daskprep.errors import ColumnError
from daskprep.kernels import MIXED, only_where
from daskprep.steps.cells import NUMBER_TYPES, PLAIN_INTEGER_LIMIT, SECONDS_PER_DAY, TIME_TYPES, number_of, text_of

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
    """Return cells as strings, the same for equal values of any type; ColumnError for types without a text.

    pandas turns a column of integers into floats as soon as one cell is missing; the text of a cell must not depend on
    its neighbors.
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
    """Return Arrow's text of a column; for timestamps in a zone that is an offset, the local time with that offset."""
    offset = _parse_offset(column.type.tz) if pt.is_timestamp(column.type) else None
    if offset is None:
        return column.cast(pa.string())
    return pc.binary_join_element_wise(local_clock(column).cast(pa.string()), _format_offset(offset), "")


def _floats_to_text(column: pa.Array) -> pa.Array:
    """Return floats as text: integer values without ".0", in full below 1e76, others in shortest form; null for NaN."""
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
    """Return texts of decimals, in Python's or Arrow's format, with the digits of equal integers and floats."""
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
    """Return texts of timestamps and times of day without trailing zeros, with offsets as hours and minutes."""
    text = pc.replace_substring_regex(text, r"\.(\d*?)0*(Z|[+-].*)?$", r".\1\2")
    text = pc.replace_substring_regex(text, r"\.(Z|[+-].*)?$", r"\1")
    text = pc.replace_substring_regex(text, r"(:\d\d(?:\.\d+)?[+-]\d\d):?(\d\d).*$", r"\1:\2")
    return pc.replace_substring_regex(text, r"Z$", "+00:00")


def _times_to_text(column: pa.Array, text: pa.Array) -> pa.Array:
    """Return simplified texts of times from Arrow's texts, recomputed for late times with Python's time zones."""
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
    """Return durations as text, such as "1 days 00:00:01.5"; the days are negative for negative durations."""
    unit = column.type.unit
    days, ticks = np.divmod(pc.fill_null(column.cast(pa.int64()), 0).to_numpy(), SECONDS_PER_DAY * _PER_SECOND[unit])
    clock = pa.array(ticks).cast(pa.int32() if unit in ("s", "ms") else pa.int64())
    clock = clock.cast(pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit))
    middle = pc.if_else(pa.array(days < 0), " days +", " days ")
    text = pc.binary_join_element_wise(pa.array(days).cast(pa.string()), middle, as_text(clock), "")
    return only_where(column.is_valid(), text)


def cell_texts(cells: Iterable[Any]) -> list[str | None]:
    """Return the text of each scalar, regardless of the types of other cells; None for None and NaN."""
    return [text_of(cell) for cell in cells]


def mixed_cells(cells: Iterable[Any]) -> pa.StructArray:
    """Return scalars of several types as `MIXED` cells: texts, and numbers for cells that are numbers."""
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
    """Return the local time in the zone of `times`, as timestamps without a zone."""
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
    """Return the minutes of a zone that is an offset, such as "+05:30"; None for other zones."""
    # pyarrow before 22 does not support these zones.
    match = re.fullmatch(r"([+-])(\d\d):?(\d\d)", zone or "")
    return None if match is None else int(match[1] + "1") * (int(match[2]) * 60 + int(match[3]))


def _format_offset(offset: int) -> str:
    return f"{'-' if offset < 0 else '+'}{abs(offset) // 60:02}:{abs(offset) % 60:02}"


def is_late(times: pa.TimestampArray) -> pa.BooleanArray:
    """Return a mask of the times after the end of Arrow's time zone tables, within the range of Python's datetime."""
    is_after = pc.greater_equal(times, pa.scalar(_ZONE_TABLES_END, times.type))
    if times.type.unit != "ns":  # nanoseconds end in 2262
        is_after = pc.and_(is_after, pc.less(times, pa.scalar(_PYTHON_TIMES_END, times.type)))
    return pc.fill_null(is_after, fill_value=False)
