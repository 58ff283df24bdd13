"""The calendar in whole numbers, and dates from timestamps and numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.features.cells import as_numbers
from daskprep.kernels import null_mask
from daskprep.sources.cell_text import local_clock

SECOND, DAY = 1_000_000, 86_400
_TICKS = {"s": SECOND, "ms": 1_000, "us": 1}  # microseconds in a unit
_FIRST, _LAST = -62_135_596_800 * SECOND, 253_402_300_800 * SECOND - 1  # years 1 to 9999
_DAYS_SINCE_MARCH = np.array([0, 306, 337, 0, 31, 61, 92, 122, 153, 184, 214, 245, 275], np.int32)
_LARGEST = pa.scalar(2**63 - 1, pa.uint64())
_BLOCK_ROWS = 1 << 14


def blocks_of(rows: int) -> Iterator[slice]:
    """Cut row numbers into blocks that stay in a core's cache."""
    return (slice(start, start + _BLOCK_ROWS) for start in range(0, rows, _BLOCK_ROWS))


# The calendar. Years begin in March, so that a leap day is the last day of its year.


def count_days(year: np.ndarray, month: np.ndarray, day: np.ndarray) -> np.ndarray:
    """Return the days from 1970-01-01 to dates of the Gregorian calendar."""
    year = year - (month < 3)
    days: np.ndarray = np.take(_DAYS_SINCE_MARCH, month, mode="clip") + (day - 719_469)
    days += year * 365 + year // 4 - year // 100 + year // 400
    return days


def is_leap(year: np.ndarray) -> np.ndarray:
    """Return which years have a February 29."""
    # NumPy divides by a constant with vector instructions, but has none for `%`.
    leap: np.ndarray = (year & 3 == 0) & ((year - year // 25 * 25 != 0) | (year & 15 == 0))
    return leap


def take_apart(micros: np.ndarray, out: np.ndarray) -> None:
    """Write year, month, day, weekday, day of year, hour, minute, second and second of day to `out`."""
    seconds = micros // SECOND
    days = seconds // DAY
    second_of_day = (seconds - days * DAY).astype(np.int32)
    days = days.astype(np.int32)
    shifted = days + 719_468
    era = shifted // 146_097  # 400 years
    day_of_era = shifted - era * 146_097
    year = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year + year // 4 - year // 100)
    month = (5 * day_of_year + 2) // 153
    out[:, 2] = day_of_year - (153 * month + 2) // 5 + 1
    early = month >= 10  # January and February, which end the year that began in March
    year += era * 400
    out[:, 4] = day_of_year + np.where(early, np.int32(-305), is_leap(year) + np.int32(60))
    np.add(month, np.where(early, np.int32(-9), np.int32(3)), out=out[:, 1])
    np.add(year, early, out=out[:, 0])
    weekday = days + 3
    out[:, 3] = weekday - weekday // 7 * 7
    hour = second_of_day // 3600
    rest = second_of_day - hour * 3600
    minute = rest // 60
    out[:, 5] = hour
    out[:, 6] = minute
    out[:, 7] = rest - minute * 60
    out[:, 8] = second_of_day


# From numbers and timestamps


def as_timestamps(micros: np.ndarray, unreadable: np.ndarray | None = None) -> pa.Array:
    """Return microseconds since 1970 as timestamps, null where `unreadable`."""
    return pa.array(micros, pa.int64(), mask=unreadable).view(pa.timestamp("us"))


def as_micros(parsed: pa.Array) -> np.ndarray:
    """Return timestamps as the integers that they are; null as 0."""
    ticks = parsed.view(pa.int64())
    return (pc.fill_null(ticks, 0) if ticks.null_count else ticks).to_numpy()  # type: ignore[no-any-return]


def from_timestamps(column: pa.Array) -> pa.Array:
    """Return timestamps of any unit as the clock of their zone shows them, in microseconds; null out of range."""
    unit, zone = column.type.unit, column.type.tz
    ticks, missing = as_micros(column), null_mask(column)
    if unit == "ns":
        micros = ticks // 1_000
    else:
        size = _TICKS[unit]
        missing |= (ticks < _FIRST // size) | (ticks > _LAST // size)
        micros = np.where(missing, 0, ticks) * size
    if zone in (None, "UTC"):
        return as_timestamps(micros, missing)
    clock = as_micros(local_clock(as_timestamps(micros).cast(pa.timestamp("us", zone))))
    return as_timestamps(clock, missing | (clock < _FIRST) | (clock > _LAST))


def from_numbers(column: pa.Array) -> pa.Array:
    """Return the moments that numbers count since 1970, in units told by their size."""
    missing = null_mask(column)
    if pa.types.is_integer(column.type):
        if column.type == pa.uint64():
            missing |= pc.fill_null(pc.greater(column, _LARGEST), False).to_numpy(zero_copy_only=False)
        numbers = pc.fill_null(column, 0).cast(pa.int64(), safe=False).to_numpy()
        return as_timestamps(_since_epoch(numbers), missing)
    numbers = pc.fill_null(as_numbers(column), np.nan).to_numpy()
    with np.errstate(invalid="ignore"):
        missing = ~(np.abs(numbers) < 2.0**63)
    micros = np.rint(_since_epoch(np.where(missing, 0.0, numbers)))
    return as_timestamps(micros.astype(np.int64), missing)


def _since_epoch(numbers: np.ndarray) -> np.ndarray:
    seconds, milliseconds, microseconds = (
        (numbers < 10**digits) & (numbers > -(10**digits)) for digits in (10, 13, 16)
    )
    if seconds.all():
        return numbers * SECOND
    choices = [numbers * SECOND, numbers * 1_000, numbers]
    return np.select([seconds, milliseconds, microseconds], choices, numbers // 1_000)
