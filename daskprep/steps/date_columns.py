"""Columns of numbers for dates: calendar parts, cyclic encodings (sine and cosine), and the time since another date.

Dates are integers: days since 1970 and seconds of the day. The code works for NumPy and torch, whose operators have the
same names. Sines are read from tables, so that they are the same on every machine.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

PARTS = ("year", "month", "day", "weekday", "day_of_year", "hour", "minute", "second", "second_of_day")
WEEKEND = "weekend"
# First value and period of each part that recurs.
CYCLES = {
    "month": (1, 12), "day": (1, 31), "weekday": (0, 7), "day_of_year": (1, 366), "hour": (0, 24), "minute": (0, 60),
    "second": (0, 60), "second_of_day": (0, 86_400),
}  # fmt: skip
UNITS = {"seconds": 1, "minutes": 60, "hours": 3_600, "days": 86_400, "weeks": 604_800, "years": 31_556_952}
DAY = 86_400


@functools.cache
def sin_cos_table(part: str) -> np.ndarray:
    """Return the float32 sine and cosine of each value of a cyclic part, by its distance from the first value."""
    size = CYCLES[part][1]
    angles = 2 * np.pi * np.arange(size) / size
    return np.stack([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def is_compact(params: Mapping[str, Any]) -> bool:
    """Return whether a date is stored as days and seconds, from which batches compute the columns."""
    return any(params.get(name) is not None for name in ("parts", "cyclic", "since"))


def column_labels(params: Mapping[str, Any]) -> list[str]:
    """Return the names of the columns, without the prefix of the feature's name."""
    cyclic_labels = [f"{part}_{axis}" for part in params.get("cyclic") or () for axis in ("sin", "cos")]
    return [*(params.get("parts") or ()), *cyclic_labels, *["since"] * (params.get("since") is not None)]


def date_columns(
    encoded: Any,
    params: Mapping[str, Any],
    reference: tuple[int, int] | None,
    to_float: Callable[[Any], Any],
    look_up: Callable[[str, Any], Any],
) -> Iterator[Any]:
    """Yield the columns of dates, in the order of `column_labels`.

    Parameters
    ----------
    encoded : array or tensor
        By row: days and seconds, then days and seconds of the reference if that is a column too.
    params : mapping
        Parameters of the feature.
    reference : tuple of int or None
        Days and seconds of the date that "since" counts from; None if it is a column.
    to_float, look_up : callable
        ``to_float(numbers)`` converts integers to float32, ``look_up(part, numbers)`` to rows of `sin_cos_table`.
    """
    days, seconds = encoded[:, 0], encoded[:, 1]
    values = dict(zip((*PARTS, WEEKEND), calendar_parts(days, seconds), strict=True))
    for part in params.get("parts") or ():
        yield to_float(values[part])
    for part in params.get("cyclic") or ():
        sin_cos = look_up(part, values[part] - CYCLES[part][0])
        yield sin_cos[:, 0]
        yield sin_cos[:, 1]
    if params.get("since") is not None:
        since_days, since_seconds = (encoded[:, 2], encoded[:, 3]) if reference is None else reference
        unit = UNITS[params.get("since_unit", "days")]
        elapsed = (days - since_days) * DAY + (seconds - since_seconds)
        full_units = elapsed // unit
        yield to_float(full_units) + to_float(elapsed - full_units * unit) / unit


def date_table(rows: np.ndarray, params: Mapping[str, Any], reference: tuple[int, int] | None) -> np.ndarray:
    """Return the columns of `date_columns` as a float32 array of shape (rows, columns)."""
    columns = date_columns(
        rows.astype(np.int64),
        params,
        reference,
        lambda numbers: numbers.astype(np.float32),
        lambda part, index: sin_cos_table(part)[index],
    )
    return np.stack(list(columns), axis=1)


def is_leap(year: Any) -> Any:
    """Return a mask of leap years."""
    # NumPy divides by a constant with vector instructions, but has none for `%`.
    return (year & 3 == 0) & ((year - year // 25 * 25 != 0) | (year & 15 == 0))


def calendar_parts(days: Any, seconds: Any) -> Sequence[Any]:
    """Return arrays of the `PARTS` of dates, then 1 for weekends; dates are days since 1970 and seconds of the day."""
    # The computation has years that start in March, so that a leap day is the last day of its year.
    shifted = days + 719_468
    era = shifted // 146_097  # 400 years
    day_of_era = shifted - era * 146_097
    year = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    since_march = day_of_era - (365 * year + year // 4 - year // 100)
    month = (5 * since_march + 2) // 153
    day = since_march - (153 * month + 2) // 5 + 1
    early = month // 10  # 1 for January and February, which end the year that started in March
    month = month + 3 - 12 * early
    year = year + era * 400 + early
    leap = is_leap(year)
    day_of_year = since_march + 60 + leap - early * (365 + leap)
    weekday = days + 3 - (days + 3) // 7 * 7
    hour, minutes = seconds // 3_600, seconds // 60
    parts = year, month, day, weekday, day_of_year, hour, minutes - hour * 60, seconds - minutes * 60, seconds
    return *parts, weekday // 5
