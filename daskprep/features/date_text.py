"""Dates from columns of text and numbers: cells of the same form are parsed together, rare forms one by one."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.features.cells import as_numbers
from daskprep.kernels import null_mask, only_where, string_buffers
from daskprep.sources.cells import local_clock
from daskprep.steps.cells import SECONDS_PER_DAY
from daskprep.steps.dates import (
    COMPACT_DATE,
    INTEGER,
    MAX_DATE_CHARACTERS,
    calendar_parts,
    forms,
    is_leap,
    micros_since_epoch,
    parse_datetime,
)

MICROS_PER_SECOND = 1_000_000
_MICROS_PER_UNIT = {"s": MICROS_PER_SECOND, "ms": 1_000, "us": 1}  # microseconds in a unit
_MIN_MICROS, _MAX_MICROS = (
    -62_135_596_800 * MICROS_PER_SECOND,
    253_402_300_800 * MICROS_PER_SECOND - 1,
)  # years 1 to 9999
_MICROS_PER_DAY = SECONDS_PER_DAY * MICROS_PER_SECOND
_DAYS_SINCE_MARCH = np.array([0, 306, 337, 0, 31, 61, 92, 122, 153, 184, 214, 245, 275], np.int32)
_MAX_INT64 = pa.scalar(2**63 - 1, pa.uint64())
_BLOCK_ROWS = 1 << 17


def iterate_blocks(rows: int) -> Iterator[slice]:
    """Return slices that cut a number of rows into blocks that fit into the cache of a core."""
    return (slice(start, start + _BLOCK_ROWS) for start in range(0, rows, _BLOCK_ROWS))


# Calendar arithmetic: years start in March, so that a leap day is the last day of its year.


def count_days(year: np.ndarray, month: np.ndarray, day: np.ndarray) -> np.ndarray:
    """Return the days from 1970-01-01 to dates of the Gregorian calendar."""
    year = year - (month < 3)
    days: np.ndarray = np.take(_DAYS_SINCE_MARCH, month, mode="clip") + (day - 719_469)
    days += year * 365 + year // 4 - year // 100 + year // 400
    return days


def write_date_parts(micros: np.ndarray, out: np.ndarray) -> None:
    """Write the parts of dates in microseconds to the columns of `out`, in the order of `dates.PARTS`."""
    seconds = micros // MICROS_PER_SECOND
    days = seconds // SECONDS_PER_DAY
    parts = calendar_parts(days.astype(np.int32), (seconds - days * SECONDS_PER_DAY).astype(np.int32))
    for column, part in zip(out.T, parts, strict=False):  # the last part, the weekend, is not one of PARTS
        column[:] = part


# Dates from numbers and timestamps.


def as_timestamps(micros: np.ndarray, unreadable: np.ndarray | None = None) -> pa.Array:
    """Return microseconds since 1970 as timestamps, null where `unreadable`."""
    return pa.array(micros, pa.int64(), mask=unreadable).view(pa.timestamp("us"))


def as_micros(parsed: pa.Array) -> np.ndarray:
    """Return timestamps as integers in their unit; null as 0."""
    ticks = parsed.view(pa.int64())
    return (pc.fill_null(ticks, 0) if ticks.null_count else ticks).to_numpy()  # type: ignore[no-any-return]


def from_timestamps(column: pa.Array) -> pa.Array:
    """Return timestamps of any unit as local time of their zone, in microseconds; null outside the years 1 to 9999."""
    unit, zone = column.type.unit, column.type.tz
    ticks, missing = as_micros(column), null_mask(column)
    if unit == "ns":
        micros = ticks // 1_000
    else:
        size = _MICROS_PER_UNIT[unit]
        # One day more: a local time may be within the range when UTC is not.
        missing |= (ticks < (_MIN_MICROS - _MICROS_PER_DAY) // size) | (ticks > (_MAX_MICROS + _MICROS_PER_DAY) // size)
        micros = np.where(missing, 0, ticks) * size
    if zone not in (None, "UTC"):
        micros = as_micros(local_clock(as_timestamps(micros).cast(pa.timestamp("us", zone))))
    return as_timestamps(micros, missing | (micros < _MIN_MICROS) | (micros > _MAX_MICROS))


def from_numbers(column: pa.Array) -> pa.Array:
    """Return numbers as dates since 1970, in seconds to nanoseconds depending on their size; null if out of range."""
    missing = null_mask(column)
    if pa.types.is_integer(column.type):
        if column.type == pa.uint64():
            missing |= pc.fill_null(pc.greater(column, _MAX_INT64), False).to_numpy(zero_copy_only=False)
        numbers = pc.fill_null(column, 0).cast(pa.int64(), safe=False).to_numpy()
        return as_timestamps(micros_since_epoch(numbers), missing)
    numbers = pc.fill_null(as_numbers(column), np.nan).to_numpy()
    with np.errstate(invalid="ignore"):
        missing = ~(np.abs(numbers) < 2.0**63)
    micros = np.rint(micros_since_epoch(np.where(missing, 0.0, numbers)))
    return as_timestamps(micros.astype(np.int64), missing)


_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int32)
# Cells of the same length and shape (positions of digits) are parsed together. Text that is longer than a date, and
# cells of a length with more shapes than this, are parsed one by one.
_MAX_SHAPES = 32


@functools.lru_cache(1024)
def _find_fields(shape: bytes, datetime_format: str | None) -> dict[str, tuple[int, int]]:
    """Return the start and end of each field of a date in text of this shape; empty if dates have no such shape."""
    text = shape.decode("latin-1")
    matches = (re.fullmatch(form, text, re.IGNORECASE) for form in forms(datetime_format))
    match = next(filter(None, matches), None)
    return {name: match.span(name) for name in match.groupdict() if match.start(name) >= 0} if match else {}


def from_text(text: pa.Array, datetime_format: str | None) -> pa.Array:
    """Return text as timestamps: in the format or ISO 8601, or without a format in a common form; otherwise null."""
    micros, invalid, known = _read_forms(text, datetime_format)
    invalid |= null_mask(text)
    rest = np.flatnonzero(~(known | invalid))
    if len(rest):
        rare = text.take(pa.array(rest)).dictionary_encode()
        rare_micros, rare_invalid = _read_rare(pc.utf8_trim_whitespace(rare.dictionary), datetime_format)
        codes = rare.indices.to_numpy()
        micros[rest], invalid[rest] = rare_micros.take(codes), rare_invalid.take(codes)
    return as_timestamps(micros, invalid)


def _read_forms(text: pa.Array, datetime_format: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return dates in microseconds, a mask of cells that are no dates, and a mask of cells that have a known form."""
    offsets, data = string_buffers(text)
    micros, invalid, known = np.zeros(len(text), np.int64), np.zeros(len(text), bool), np.zeros(len(text), bool)
    for block in iterate_blocks(len(text)):
        for rows, cells in _group_by_length(offsets[block.start : block.stop + 1], data):
            for shape, shape_rows, shape_cells in _group_by_shape(rows + block.start, cells):
                if fields := _find_fields(shape, datetime_format):
                    first, last = int(shape_rows[0]), int(shape_rows[-1])
                    row_index = slice(first, last + 1) if last - first + 1 == len(shape_rows) else shape_rows
                    micros[row_index], invalid[row_index] = _read_cells(shape_cells, fields)
                    known[row_index] = True
    return micros, invalid, known


def _group_by_length(block_offsets: np.ndarray, data: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield for each length up to MAX_DATE_CHARACTERS the row numbers of its texts, and a matrix of characters."""
    sizes = np.diff(block_offsets)
    counts = np.bincount(np.minimum(sizes, MAX_DATE_CHARACTERS + 1), minlength=1)
    for size in (np.flatnonzero(counts[1 : MAX_DATE_CHARACTERS + 1]) + 1).tolist():
        if counts[size] == len(sizes):
            yield np.arange(len(sizes)), data[block_offsets[0] : block_offsets[-1]].reshape(-1, size)
        else:
            rows = np.flatnonzero(sizes == size)
            yield rows, data[block_offsets[rows][:, None] + np.arange(size, dtype=np.int32)]


def _group_by_shape(rows: np.ndarray, cells: np.ndarray) -> Iterator[tuple[bytes, np.ndarray, np.ndarray]]:
    """Yield each shape (the text with 0 for every digit) with its rows and their characters."""
    digit = cells - np.uint8(48) < 10
    shapes = cells * ~digit
    shapes += digit.view(np.uint8) * np.uint8(48)
    for _ in range(_MAX_SHAPES):
        shape = shapes[0]
        # One flat comparison is faster, since NumPy is slow for many short rows.
        equal = shapes.reshape(-1) == np.tile(shape, len(shapes))
        if equal.all():
            yield shape.tobytes(), rows, cells
            return
        alike = equal.reshape(shapes.shape).all(axis=1)
        yield shape.tobytes(), rows[alike], cells[alike]
        rows, cells, shapes = rows[~alike], cells[~alike], shapes[~alike]


def _read_cells(cells: np.ndarray, fields: dict[str, tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return cells of one shape in microseconds, and a mask of those that are no dates."""
    digits = cells - np.uint8(48)
    pairs = digits * np.uint8(10)  # at each position, the number that this digit and the next one form
    pairs.reshape(-1)[:-1] += digits.reshape(-1)[1:]

    def read_number(name: str, default: int) -> Any:
        start, end = fields.get(name, (0, 0))
        if end - start == 4:
            return pairs[:, start] * np.int32(100) + pairs[:, start + 2]
        return default if end == start else (pairs if end - start == 2 else digits)[:, start].astype(np.int32)

    year, month, day = read_number("Y", 1), read_number("M", 1), read_number("D", 1)
    hour, minute, second = read_number("h", 0), read_number("m", 0), read_number("s", 0)
    if fields["Y"][1] - fields["Y"][0] == 2:
        year += np.where(year < 69, np.int32(2000), np.int32(1900))
    no_hour: Any = False
    if "p" in fields:
        no_hour = (hour < 1) | (hour > 12)
        hour = hour % 12 + (12 if cells[0, fields["p"][0]] in b"Pp" else 0)
    micros, invalid = _combine_parts(year, month, day, hour, minute, second)
    for digit_index, column in enumerate(range(*fields.get("f", (0, 0)))[:6]):
        micros += digits[:, column] * np.int64(10 ** (5 - digit_index))
    return micros, invalid | no_hour


def _combine_parts(
    year: Any, month: Any, day: Any, hour: Any, minute: Any, second: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return dates in microseconds since 1970, and a mask of dates or times that do not exist."""
    last = np.take(_MONTH_DAYS, month, mode="clip") + (is_leap(year) & (month == 2))
    invalid = (year < 1) | (month < 1) | (month > 12) | (day < 1) | (day > last)
    invalid |= (hour > 23) | (minute > 59) | (second > 59)
    days = count_days(year, month, day) * np.int64(SECONDS_PER_DAY)
    return (days + (hour * 3600 + minute * 60 + second)) * MICROS_PER_SECOND, invalid


def _read_rare(values: pa.Array, datetime_format: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Return distinct, stripped texts as dates in microseconds, and a mask of texts that are no dates."""
    micros, invalid, known = _read_forms(values, datetime_format)
    if datetime_format is None:
        numbers, no_number = _read_numbers(values)
        micros, known = np.where(known, micros, numbers), known | ~no_number
    for row in np.flatnonzero(~known).tolist():
        moment = parse_datetime(values[row].as_py(), datetime_format)
        invalid[row] = moment is None
        if moment is not None:
            micros[row] = (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    return micros, invalid


def _read_numbers(values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers and dates such as "20210305" in microseconds, and a mask of texts that are neither."""
    is_integer = pc.match_substring_regex(values, f"^{INTEGER}$")
    integers = from_numbers(only_where(is_integer, values).cast(pa.int64()))
    fractions = from_numbers(as_numbers(only_where(pc.invert(is_integer), values)))
    numbers = pc.coalesce(integers, fractions)
    compact = only_where(pc.match_substring_regex(values, f"^{COMPACT_DATE}$"), values)
    digits = pc.fill_null(pc.utf8_rpad(compact, 14, "0").cast(pa.int64()), 0).to_numpy()
    day, clock = np.divmod(digits, 1_000_000)
    micros, invalid = _combine_parts(
        *(part for number in (day, clock) for part in (number // 10_000, number // 100 % 100, number % 100))
    )
    return np.where(invalid, as_micros(numbers), micros), invalid & null_mask(numbers)
