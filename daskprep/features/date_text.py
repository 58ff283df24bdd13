"""Dates from text: cells of the same form are parsed together, and only rare forms one by one."""

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
from daskprep.features.date_numbers import (
    MICROS_PER_SECOND,
    as_micros,
    as_timestamps,
    count_days,
    from_numbers,
    iterate_blocks,
)
from daskprep.kernels import null_mask, only_where, string_buffers
from daskprep.steps.cells import SECONDS_PER_DAY
from daskprep.steps.dates import COMPACT_DATE, INTEGER, MAX_DATE_CHARACTERS, forms, is_leap, parse_datetime

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
    """Yield the rows of each length up to MAX_DATE_CHARACTERS, and a matrix of their characters."""
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
    invalid = (hour > 23) | (minute > 59) | (second > 59)
    if "p" in fields:
        invalid |= (hour < 1) | (hour > 12)
        hour = hour % 12 + (12 if cells[0, fields["p"][0]] in b"Pp" else 0)
    days, invalid_days = _count_and_check_days(year, month, day)
    micros = (days * np.int64(SECONDS_PER_DAY) + (hour * 3600 + minute * 60 + second)) * MICROS_PER_SECOND
    for digit_index, column in enumerate(range(*fields.get("f", (0, 0)))[:6]):
        micros += digits[:, column] * np.int64(10 ** (5 - digit_index))
    return micros, invalid_days | invalid


def _count_and_check_days(year: Any, month: Any, day: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the days since 1970, and a mask of dates that do not exist in the calendar."""
    last = np.take(_MONTH_DAYS, month, mode="clip") + (is_leap(year) & (month == 2))
    return count_days(year, month, day), (year < 1) | (month < 1) | (month > 12) | (day < 1) | (day > last)


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
    days, invalid = _count_and_check_days(day // 10_000, day // 100 % 100, day % 100)
    hour, minute, second = clock // 10_000, clock // 100 % 100, clock % 100
    invalid |= (hour > 23) | (minute > 59) | (second > 59)
    micros = (days * SECONDS_PER_DAY + hour * 3600 + minute * 60 + second) * MICROS_PER_SECOND
    return np.where(invalid, as_micros(numbers), micros), invalid & null_mask(numbers)
