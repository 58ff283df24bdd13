"""Conversion of single cells of any type to text or a number; `sources.cells` has the table of texts."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import os
import re
import uuid
from collections.abc import Callable
from decimal import Decimal
from math import isfinite
from typing import Any

import numpy as np

from daskprep.errors import ColumnError

NUMBER_PATTERN = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
LIST_TYPES = (list, tuple, set, frozenset, np.ndarray)

PLAIN_INTEGER_LIMIT = 1e76  # the digits of Arrow's decimals; larger floats are written with an exponent
SECONDS_PER_DAY = 86_400
MAX_EXACT_INTEGER = 2**53  # floats below it represent every integer
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1, "m": 60 * 10**9, "h": 3600 * 10**9}
_NANOSECONDS |= {"D": SECONDS_PER_DAY * 10**9, "W": 7 * SECONDS_PER_DAY * 10**9}
_OFFSET = re.compile(r"([+-][0-9]{2}:[0-9]{2})(:[0-9.]+)?$")
# Units of np.datetime64 whose text has another form, and the units to convert them to.
_OTHER_UNITS = {"h": "s", "m": "s", "Y": "D", "M": "D", "W": "D", "ps": "ns", "fs": "ns", "as": "ns"}
BOOLEAN_TYPES = (bool, np.bool_)
DURATION_TYPES = (dt.timedelta, np.timedelta64)
TIME_TYPES = (dt.date, dt.time, np.datetime64, *DURATION_TYPES)
NUMBER_TYPES = (int, float, Decimal, np.integer, np.floating, np.bool_)


def is_missing(cell: Any) -> bool:
    """Return whether a cell is None, NaN, NaT or pandas.NA."""
    if cell is None or type(cell).__name__ in ("NaTType", "NAType"):
        return True
    if isinstance(cell, Decimal):
        return cell.is_nan()
    return isinstance(cell, float | np.generic) and bool(cell != cell)  # noqa: PLR0124 as NaN and NaT do


def reject_types(cell: Any, kinds: tuple[type, ...], noun: str) -> None:
    """Raise ColumnError for a cell of one of these types.

    A time of day with a zone is exempt: Arrow has no type for it, so columns of it are text.
    """
    if isinstance(cell, kinds) and not (isinstance(cell, dt.time) and cell.tzinfo) and not is_missing(cell):
        raise ColumnError(f"{cell!r} is of type {type(cell).__name__}, which is no {noun}")


def number_of(cell: Any) -> float | None:
    """Return a finite number or plain decimal text as float, None for other cells; ColumnError for times."""
    kind = type(cell)
    if kind is float:
        return cell if isfinite(cell) else None
    if kind is str:
        return _parse_plain_number(cell)
    if kind is int or kind is bool:
        return _to_double(cell)
    return None if is_missing(cell) else _number_of_other(cell)


def _number_of_other(cell: Any) -> float | None:
    """Return the number of a rarer type, such as Decimal, or text; None if it is none, ColumnError for times."""
    reject_types(cell, TIME_TYPES, "number")
    if isinstance(cell, Decimal):
        return _to_double(cell or 0)  # Arrow's decimals have no negative zero
    if isinstance(cell, int | float | np.integer | np.floating | np.bool_):
        return _to_double(cell)
    return _parse_plain_number(text_of(cell) or "")


def _to_double(cell: Any) -> float | None:
    """Return a number or its text as float; None if not finite."""
    try:
        number = float(cell)
    except OverflowError:
        return None
    return number if isfinite(number) else None


def _parse_plain_number(text: str) -> float | None:
    """Return the number of a text such as "1.5e3", or None; UnicodeError if it is not UTF-8."""
    stripped = text.strip()
    if NUMBER_PATTERN.fullmatch(stripped) is None:
        text.encode()  # UnicodeError for text that Arrow would reject
        return None
    return _to_double(stripped)


def text_of(cell: Any) -> str | None:
    """Return the canonical text of a cell, None if it is missing; UnicodeError if it is not UTF-8."""
    kind = type(cell)
    if kind is str:
        if not cell.isascii():
            cell.encode()
        return cell
    if kind is int or kind is bool:
        return str(cell)
    if kind is float and 1e-4 <= abs(cell) < 1e10 and not cell.is_integer():
        return repr(cell)
    return None if is_missing(cell) else _text_of_other(cell)


@functools.singledispatch
def _text_of_other(cell: Any) -> str:
    """Return the text of a cell by its type, or raise ColumnError."""
    remedy = "use Set, Sequence or Vector" if isinstance(cell, LIST_TYPES) else "convert it first"
    raise ColumnError(
        f"holds a value of type {type(cell).__name__}, which has no single text: {str(cell)[:60]!r}; {remedy}"
    )


def _text_of_float(cell: Any) -> str:
    """Return integers below 1e76 as digits, others in shortest form."""
    value = float(cell)
    if value.is_integer() and abs(value) < PLAIN_INTEGER_LIMIT:
        return str(int(value))
    # With the digits that its precision needs: a float32 is 0.1, not 0.10000000149011612.
    kind = np.float32 if isinstance(cell, np.float16 | np.float32) else np.float64
    exact: Any = kind(cell)
    if kind(1e-6) <= abs(exact) < 1e10:
        return np.format_float_positional(exact, trim="-")
    return np.format_float_scientific(exact, trim="-", exp_digits=1)


def _text_of_decimal(cell: Decimal) -> str:
    """Return a Decimal as text without trailing zeros."""
    if cell.is_infinite():
        return "inf" if cell > 0 else "-inf"
    if cell == cell.to_integral_value():
        return f"{cell.to_integral_value():f}" if cell else "0"
    digits, _, power = str(cell).partition("E")
    text = _strip_zeros(digits) + (f"e{power}" if power else "")
    # Like floats, decimals from 1e10 on that are not integers are written with an exponent.
    short = _text_of_float(float(cell)) if abs(cell) >= 10**10 else text
    return short if Decimal(short) == cell else text


def _text_of_time(cell: dt.datetime | dt.time) -> str:
    """Return ISO text with a space and the UTC offset, if any."""
    if type(cell) is dt.datetime and not isinstance(cell.tzinfo, dt.timezone | None):
        # Times that a clock change skips are moved after it. Conversion overflows next to the years 1 and 9999.
        with contextlib.suppress(OverflowError):
            cell = cell.astimezone(dt.UTC).astimezone(cell.tzinfo)
    text = str(cell)
    offset = cell.tzinfo and _OFFSET.search(text)
    return _strip_zeros(text[: offset.start()]) + offset[1] if offset else _strip_zeros(text)


def _text_of_datetime64(cell: np.datetime64) -> str:
    unit = _OTHER_UNITS.get(np.datetime_data(cell.dtype)[0])
    return _strip_zeros(str(cell if unit is None else cell.astype(f"M8[{unit}]")).replace("T", " "))


def _text_of_timedelta(cell: dt.timedelta | np.timedelta64) -> str:
    """Return a duration as "2 days 03:00:00"; ColumnError for months and years."""
    if isinstance(cell, np.timedelta64):
        unit, step = np.datetime_data(cell.dtype)
        if unit not in _NANOSECONDS:
            raise ColumnError(f"{cell!r} has no fixed length: use days")
        nanoseconds = int(cell.astype(np.int64)) * step * _NANOSECONDS[unit]
    else:
        nanoseconds = (cell.days * SECONDS_PER_DAY + cell.seconds) * 10**9 + cell.microseconds * 1000
        nanoseconds += getattr(cell, "nanoseconds", 0)  # only pandas.Timedelta has them
    days, rest = divmod(nanoseconds, SECONDS_PER_DAY * 10**9)
    seconds, fraction = divmod(rest, 10**9)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:09}"
    return f"{days} days {'+' if days < 0 else ''}{_strip_zeros(clock)}"


def _strip_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


_WRITERS: tuple[tuple[tuple[type, ...], Callable[[Any], str]], ...] = (
    ((str,), lambda cell: cell.encode().decode()),
    ((bool, np.bool_), lambda cell: str(bool(cell))),
    ((int, np.integer), lambda cell: str(int(cell))),
    ((float, np.floating), _text_of_float),
    ((Decimal,), _text_of_decimal),
    ((bytes, bytearray), lambda cell: cell.decode()),
    ((os.PathLike,), os.fsdecode),
    ((uuid.UUID, dt.date), str),
    ((dt.datetime, dt.time), _text_of_time),
    ((np.datetime64,), _text_of_datetime64),
    ((dt.timedelta, np.timedelta64), _text_of_timedelta),
)
for _kinds, _write in _WRITERS:
    for _kind in _kinds:
        _text_of_other.register(_kind, _write)
