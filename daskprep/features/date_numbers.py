"""Calendar arithmetic on integers, and dates from timestamps and numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.features.cells import as_numbers
from daskprep.kernels import null_mask
from daskprep.sources.cell_text import local_clock
from daskprep.steps.cells import SECONDS_PER_DAY
from daskprep.steps.dates import calendar_parts, micros_since_epoch

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
    """Return the dates of numbers since 1970, in seconds to nanoseconds depending on their size."""
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
