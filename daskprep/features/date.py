"""Feature type for dates: calendar and clock as nine integers, or as float32 columns for models."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.kernels import make_list_array, null_mask, only_where, plain_values, string_buffers, valid_mask
from daskprep.columns.summaries import ColumnSummary, Quantiles, Range, Summary
from daskprep.columns.summaries.shifts import count_bins
from daskprep.errors import ColumnError, ConfigError, RejectedValueError, did_you_mean
from daskprep.features.base import (
    VALUE_BINS,
    Bounds,
    Learned,
    Tensor,
    TrainingCounts,
    check_bins,
    fill_advice,
    fills_with_one_value,
)
from daskprep.features.cells import as_numbers, duration_remedy, is_text
from daskprep.features.feature import Feature, with_parameters
from daskprep.rows.cells import SECONDS_PER_DAY
from daskprep.rows.dates import (
    COMPACT_DATE,
    CYCLES,
    EPOCH,
    INTEGER,
    MAX_DATE_CHARACTERS,
    PARTS,
    WEEKEND,
    DateParameters,
    DateValues,
    calendar_parts,
    check_format,
    forms,
    is_leap,
    micros_since_epoch,
    parse_datetime,
    sin_cos_table,
)
from daskprep.sources.cells import as_text, local_clock

MICROS_PER_SECOND = 1_000_000
_MICROS_PER_UNIT = {"s": MICROS_PER_SECOND, "ms": 1_000, "us": 1}  # microseconds in a unit
_MIN_MICROS = -62_135_596_800 * MICROS_PER_SECOND  # the year 1
_MAX_MICROS = 253_402_300_800 * MICROS_PER_SECOND - 1  # the year 9999
_MICROS_PER_DAY = SECONDS_PER_DAY * MICROS_PER_SECOND
_DAYS_SINCE_MARCH = np.array([0, 306, 337, 0, 31, 61, 92, 122, 153, 184, 214, 245, 275], np.int32)
_MAX_INT64 = pa.scalar(2**63 - 1, pa.uint64())
_BLOCK_ROWS = 1 << 17
_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int32)
# Cells of the same length and shape (positions of digits) are parsed together. Text that is longer than a date, and
# cells of a length with more shapes than this, are parsed one by one.
_MAX_SHAPES = 32

_LIMITS = (1, 1, 1, 0, 1, 0, 0, 0, 0), (9999, 12, 31, 6, 366, 23, 59, 59, 86_399)
_COMPACT_LIMITS = (-719_162, 0), (2_932_896, 86_399)  # the same years as days and seconds
_SUM_BLOCK_ROWS = 1 << 24
_MIN_STEPS, _MAX_BACKWARD_SHARE = 20, 0.01  # for rows that count as ordered by time, in either direction
_HOURS = tuple(f"from {hour:02}:00 to {hour:02}:59" for hour in range(24))
_sin_cos_tables: dict[tuple[str, int, Any], Tensor] = {}


@dataclass(frozen=True, kw_only=True)
class LearnedDate(DateValues, Learned):
    """Fitted state of a date column: first and last date, and bins."""

    in_order: ClassVar[bool] = False  # whether rows are ordered by the date; set by a fit, and not saved


@dataclass(frozen=True)
class DateSummary(Summary):
    """Statistics of dates as seconds since 1970."""

    range: Range
    seconds: int  # their exact sum
    count: int
    rises: int = 0  # dates after the date of the previous row of the same partition
    falls: int = 0
    quantiles: Quantiles = field(default_factory=Quantiles)
    hours: np.ndarray = field(default_factory=lambda: np.zeros(24, np.int64))

    @property
    def in_order(self) -> bool:
        fewer, more = sorted((self.rises, self.falls))
        return more >= _MIN_STEPS and fewer <= _MAX_BACKWARD_SHARE * self.count


@with_parameters
class Date(DateParameters, Feature[DateSummary, LearnedDate]):
    """Split dates into year, month, day, weekday, day of year, hour, minute, second and second of day.

    Text is read as ISO 8601 or another common form, month first ("3/5/2021" is March 5). Missing parts default to the
    first month, the first day and midnight; a date without a year cannot be read. UTC offsets are dropped, so the local
    time stays as written. Numbers count seconds since 1970, or milliseconds (from 11 digits), microseconds (from 14) or
    nanoseconds (from 17). Text of digits alone may also be a year or a date ("2021", "20210305", "20210305093059").
    Only the years 1 to 9999 can be read.

    With `parts`, `cyclic` or `since`, models read these as float32 instead of the nine numbers. The date is then stored
    as days and seconds in 8 bytes, 16 if `since` is a column, and the rest is computed on the device of the batch.

    Parameters
    ----------
    datetime_format : str or None
        Format of text in the codes of `datetime.strptime`, such as "%d/%m/%Y". ISO 8601 is still read, and no other
        form is guessed. Numbers are then read as text: "%Y%m%d" reads 20210305.
    parts : list of str or None
        Parts as numbers: any of the nine, such as "year" and "day_of_year", and "weekend", which is 1 on Saturday and
        Sunday. None: all nine, or none with `cyclic` or `since`.
    cyclic : list of str, mapping of str to int, or None
        Parts as sine and cosine of their angle on a circle, so that December is next to January: any of the nine
        except "year". A mapping has the number of harmonics of each: ``{"hour": 3}`` adds sine and cosine of twice and
        three times the angle, by which a linear model fits two peaks a day.
    since : str or None
        Date in ISO 8601, or name of a column of dates, from which the time to this date is counted. It is 0 where that
        column is missing or cannot be read; `datetime_format` applies to both columns.
    since_unit : {"seconds", "minutes", "hours", "days", "weeks", "years"}
        Unit of the time since; a year has 365.2425 days.
    missing_value_strategy : str
        Imputation of missing values: "fill_with_mean" (to the second), "fill_with_mode", "fill_with_const" (with
        `fill_value`), "ffill", "bfill" or "drop_row".
    fill_value : str
        Date that "fill_with_const" imputes for missing values; an empty text is the default.
    missing_indicator, invalid, column
        As for `Feature`.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskprep import Date
    >>> frame = pd.DataFrame({"seen": ["2022-06-25 09:30:59", "2012-02-26T13:51:50.417-07:00", "2021", None]})
    >>> date = Date().fit(frame)
    >>> date.transform(frame)
    array([[ 2022,     6,    25,     5,   176,     9,    30,    59, 34259],
           [ 2012,     2,    26,     6,    57,    13,    51,    50, 49910],
           [ 2021,     1,     1,     4,     1,     0,     0,     0,     0],
           [ 2018,     7,    18,     2,   199,    23,    47,    36, 85656]],
          dtype=int32)
    >>> date.get_feature_names_out()[-1]
    'seen_second_of_day'
    >>> date = Date(parts=["weekend"], cyclic=["month"], since="2022-01-01").fit(frame)
    >>> date.get_feature_names_out()
    array(['seen_weekend', 'seen_month_sin', 'seen_month_cos', 'seen_since'],
          dtype=object)
    >>> date.transform(frame)[0].round(3)
    array([  1.   ,   0.5  ,  -0.866, 175.397], dtype=float32)
    """

    kind = "date"
    semantic_type = "dates"
    _follows_time = True
    _edge_case_cells = ("2012-02-29T13:51:50.417-07:00", "3/5/2021", "1600000000", "20210305", "2021-02-30")

    def check(self) -> None:
        """Raise ConfigError for an invalid format or unknown parts."""
        if self.datetime_format is not None:
            if "%" not in self.datetime_format:
                raise ConfigError(f'Date: datetime_format {self.datetime_format!r} has no field, such as "%Y-%m-%d"')
            try:
                check_format(self.datetime_format)
            except (ValueError, re.error) as error:
                raise ConfigError(
                    f"Date: datetime_format {self.datetime_format!r} is not a format of datetime.strptime: {error}"
                ) from error
        for name, known in (("parts", (*PARTS, WEEKEND)), ("cyclic", CYCLES)):
            for part in getattr(self, name) or ():
                if part not in known:
                    hint = did_you_mean(part, known)
                    raise ConfigError(f"Date: {name} has no {part!r}.{hint} Available are: {', '.join(known)}")
        if self._is_compact and not self._labels:
            raise ConfigError("Date: parts and cyclic are empty, which leaves nothing to read: list parts, or use None")
        if self.fill_value is not None:
            self.parse_fill(self.fill_value)

    def parse(self, column: pa.Array, since: pa.Array | None = None) -> pa.Array:
        """Return timestamps of dates.

        For a feature with a column `since`, lists of date and start in microseconds. A missing start is the date
        itself. Raise RejectedValueError for an unreadable start with invalid="raise".
        """
        dates = self._parse_timestamps(column)
        if self._since_column is None:
            return dates
        start = dates if since is None else self._parse_timestamps(since)
        if (
            self.invalid == "raise"
            and since is not None
            and (unreadable := valid_mask(since) & ~valid_mask(start)).any()
        ):
            raise RejectedValueError(
                f'{since.filter(pa.array(unreadable))[0].as_py()!r} of column "{self._since_column}" cannot be read as '
                'a date; correct the data, or use invalid="missing"'
            )
        pairs = np.stack([as_micros(dates), as_micros(pc.coalesce(start, dates))], axis=1)
        present = valid_mask(dates)
        return make_list_array(np.append(0, np.cumsum(present)) * 2, pa.array(pairs[present].ravel()), ~present)

    def _parse_timestamps(self, column: pa.Array) -> pa.Array:
        """Return cells as local timestamps in microseconds; ColumnError for other types."""
        kind = column.type
        if pa.types.is_dictionary(kind):
            return self._parse_timestamps(column.dictionary).take(column.indices)
        if pa.types.is_timestamp(kind):
            return from_timestamps(column)
        if pa.types.is_date(kind):
            unit = "s" if pa.types.is_date32(kind) else "ms"
            return from_timestamps(column.cast(pa.timestamp(unit)))
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        if number and self.datetime_format is None:
            return from_numbers(column)
        if number or is_text(kind) or pa.types.is_null(kind):
            return from_text(as_text(column), self.datetime_format)
        remedy = duration_remedy(kind) or "use another type"
        raise ColumnError(f"holds values of type {kind}, which are not dates: {remedy}")

    def parse_fill(self, value: object) -> pa.Array:
        return super().parse_fill(value or EPOCH)

    def summarize(self, parsed: pa.Array) -> DateSummary:
        seconds = _to_micros(parsed.drop_null())[0] // MICROS_PER_SECOND
        # A 64-bit sum overflows after 36 million dates of the year 9999, so blocks are added up as Python integers.
        starts = range(0, len(seconds), _SUM_BLOCK_ROWS)
        total = sum(int(seconds[start : start + _SUM_BLOCK_ROWS].sum()) for start in starts)
        rises, falls = (int(np.count_nonzero(compare(seconds[1:], seconds[:-1]))) for compare in (np.greater, np.less))
        quantiles, hours = Quantiles.of(seconds), _count_hours(seconds)
        return DateSummary(Range.of(seconds), total, len(seconds), rises, falls, quantiles, hours)

    def learn(self, summary: DateSummary) -> LearnedDate:
        """Return the first and last date as text; empty without dates."""
        if summary.range.empty:
            return LearnedDate()
        return LearnedDate(first=_format_second(summary.range.min), last=_format_second(summary.range.max))

    def learn_column(self, summary: ColumnSummary[DateSummary]) -> LearnedDate:
        values = summary.values
        edges, counts = values.quantiles.bins(VALUE_BINS, values.range)
        learned = super().learn_column(summary)
        if counts:
            hours = tuple(values.hours.tolist())
            learned = replace(learned, value_edges=edges, value_counts=counts, hour_counts=hours)
        if values.in_order:
            object.__setattr__(learned, "in_order", True)
        return learned

    def learn_fill(self, summary: ColumnSummary[DateSummary]) -> Any:
        """Return the mean date as text, to the second, or the most frequent cell."""
        if self.missing_value_strategy == "fill_with_mean":
            return _format_second(summary.values.seconds // summary.values.count)
        return super().learn_fill(summary)

    def cells(self, parsed: pa.Array) -> pa.Array:
        return as_timestamps(_to_micros(parsed)[0], ~valid_mask(parsed)).cast(pa.string())

    def _remedy(self, learned: LearnedDate) -> str:
        verb = "correct" if self.datetime_format else "set"
        return f"{super()._remedy(learned)}, {verb} datetime_format"

    def advice(self, learned: LearnedDate) -> str | None:
        """Return why dates may have another meaning, or None."""
        if advice := fill_advice(self, learned):
            return advice
        if self.datetime_format is not None:
            return None
        if any(re.match(r"\s*\d\d?[-/.]\d\d?[-/.]\d", sample) for sample in learned.invalid_samples):
            return 'is read month first: set datetime_format, such as "%d/%m/%Y", if the day comes first'
        filled = learned.missing and fills_with_one_value(self)
        if not filled and learned.first and learned.last and learned.first >= EPOCH and learned.last < "1970-01-02":
            return (
                "has all its dates on one day, 1970-01-01: numbers count seconds since then; "
                'set datetime_format, such as "%Y", if they have another meaning'
            )
        return None

    def _training_counts(self, learned: LearnedDate) -> dict[str, TrainingCounts]:
        """Return the bins of the fit, and rows by hour."""
        counts = super()._training_counts(learned)
        if learned.hour_counts:
            counts["hours"] = TrainingCounts(np.array(learned.hour_counts), labels=_HOURS)
        return counts

    def _check_learned(self, learned: LearnedDate) -> None:
        check_bins(learned)
        if learned.hour_counts and (len(learned.hour_counts) != len(_HOURS) or min(learned.hour_counts) < 0):
            raise ValueError("hour_counts are not the rows of 24 hours")

    def _ordered_values(self, parsed: pa.Array) -> np.ndarray:
        return _to_micros(parsed)[0] // MICROS_PER_SECOND

    def _count_by_bin(self, parsed: pa.Array, learned: LearnedDate) -> dict[str, np.ndarray]:
        seconds = self._ordered_values(parsed)
        values = count_bins(seconds.astype(np.float64), np.array(learned.value_edges))
        return {"values": values, "hours": _count_hours(seconds)}

    def encode(self, parsed: pa.Array, learned: LearnedDate) -> np.ndarray:
        """Return int32 rows: nine parts, or days and seconds if compact."""
        micros, *since = _to_micros(parsed)
        if self._is_compact:
            days_and_seconds = [
                part for one in (micros, *since) for part in np.divmod(one // MICROS_PER_SECOND, SECONDS_PER_DAY)
            ]
            return np.stack(days_and_seconds, axis=1).astype(np.int32)
        out = np.empty((len(micros), len(PARTS)), np.int32)
        for block in iterate_blocks(len(micros)):
            _write_parts(micros[block], out[block])
        return out

    def expand(self, batch: Tensor, learned: LearnedDate) -> Tensor:
        """Return the parts as int64, or the columns of compact rows."""
        batch = batch.long()
        if not self._is_compact:
            return batch
        columns = list(self._date_columns(batch, lambda numbers: numbers.float(), _look_up_cycle))
        out = batch[:0].float().new_empty((len(batch), len(columns)))
        for column_index, column in enumerate(columns):
            out[:, column_index] = column
        return out

    def limits(self, learned: LearnedDate) -> Mapping[str, Bounds]:
        if not self._is_compact:
            return {"": _LIMITS}
        lowest, highest = (bound * (1 + (self._since_column is not None)) for bound in _COMPACT_LIMITS)
        return {"": (lowest, highest)}

    def decode(self, encoded: np.ndarray, learned: LearnedDate) -> pa.Array:
        """Return timestamps, exact to the second."""
        parts = np.asarray(encoded, np.int64)
        if self._is_compact:
            return as_timestamps((parts[:, 0] * SECONDS_PER_DAY + parts[:, 1]) * MICROS_PER_SECOND)
        days = count_days(parts[:, 0], parts[:, 1], parts[:, 2])
        return as_timestamps((days * SECONDS_PER_DAY + parts[:, 8]) * MICROS_PER_SECOND)

    def tabulated_names(self, name: str, learned: LearnedDate) -> list[str]:
        labels = self._labels if self._is_compact else PARTS
        return [f"{name}_{label}" for label in labels]

    def tabulate(self, encoded: Mapping[str, np.ndarray], learned: LearnedDate) -> np.ndarray:
        return self._date_table(encoded[""]) if self._is_compact else encoded[""]

    def untabulate(self, table: np.ndarray, learned: LearnedDate) -> np.ndarray:
        """Return the table as nine parts; ColumnError for chosen parts."""
        if self._is_compact:
            raise ColumnError("parts of dates have no inverse of transform: use decode(prep.encode(rows))")
        return table


def _to_micros(parsed: pa.Array) -> list[np.ndarray]:
    """Return dates in microseconds, 0 if missing, then of `since`."""
    if not pa.types.is_list(parsed.type):
        return [as_micros(parsed)]
    pairs = np.zeros((len(parsed), 2), np.int64)
    pairs[valid_mask(parsed)] = parsed.flatten().to_numpy().reshape(-1, 2)
    return [pairs[:, 0], pairs[:, 1]]


def _look_up_cycle(part: str, harmonics: int, numbers: Tensor) -> Tensor:
    """Return sine and cosine of each harmonic of the numbers of a part, from a cached table."""
    key = part, harmonics, numbers.device
    if key not in _sin_cos_tables:
        _sin_cos_tables[key] = numbers[:0].float().new_tensor(sin_cos_table(part, harmonics))
    return _sin_cos_tables[key][numbers]


def _count_hours(seconds: np.ndarray) -> np.ndarray:
    """Return the number of dates in each hour of the day."""
    return np.bincount(seconds // 3_600 % 24, minlength=24)


def _format_second(second: float) -> str:
    return (datetime(1970, 1, 1) + timedelta(seconds=second)).isoformat(" ")


# Cells of the same form are parsed together, rare forms one by one.


def iterate_blocks(rows: int) -> Iterator[slice]:
    """Return slices of rows that fit into the cache of a core."""
    return (slice(start, start + _BLOCK_ROWS) for start in range(0, rows, _BLOCK_ROWS))


# Calendar arithmetic: years start in March, so that a leap day is the last day of its year.


def _write_parts(micros: np.ndarray, out: np.ndarray) -> None:
    """Write the parts of dates to the columns of `out`."""
    # Arrays are freed before the next block: within the loop of `encode`, parsing and encoding took 1.4 times as long.
    seconds = micros // MICROS_PER_SECOND
    days = seconds // SECONDS_PER_DAY
    parts = calendar_parts(days.astype(np.int32), (seconds - days * SECONDS_PER_DAY).astype(np.int32))
    for column, part in zip(out.T, parts, strict=False):  # the last part, the weekend, is not one of PARTS
        column[:] = part


def count_days(year: np.ndarray, month: np.ndarray, day: np.ndarray) -> np.ndarray:
    """Return the days from 1970-01-01 to dates of the Gregorian calendar."""
    year = year - (month < 3)
    days: np.ndarray = np.take(_DAYS_SINCE_MARCH, month, mode="clip") + (day - 719_469)
    days += year * 365 + year // 4 - year // 100 + year // 400
    return days


# Dates from numbers and timestamps.


def as_timestamps(micros: np.ndarray, unreadable: np.ndarray | None = None) -> pa.Array:
    """Return microseconds since 1970 as timestamps, null where `unreadable`."""
    return pa.array(micros, pa.int64(), mask=unreadable).view(pa.timestamp("us"))


def as_micros(parsed: pa.Array) -> np.ndarray:
    """Return timestamps as integers in their unit; null as 0."""
    ticks = parsed.view(pa.int64())
    values = plain_values(ticks)
    return np.where(valid_mask(ticks), values, 0) if ticks.null_count else values


def from_timestamps(column: pa.Array) -> pa.Array:
    """Return timestamps as local time in microseconds; null outside of the years 1 to 9999."""
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
    """Return numbers since 1970 as dates, in the unit of their size; null beyond 64 bits."""
    missing = null_mask(column)
    if pa.types.is_integer(column.type):
        if column.type == pa.uint64():
            missing |= pc.fill_null(pc.greater(column, _MAX_INT64), False).to_numpy(zero_copy_only=False)
        numbers = pc.fill_null(column, 0).cast(pa.int64(), safe=False).to_numpy()
        return as_timestamps(micros_since_epoch(numbers), missing)
    numbers = pc.fill_null(as_numbers(column), np.nan).to_numpy()
    with np.errstate(invalid="ignore"):
        missing = ~((numbers >= -(2.0**63)) & (numbers < 2.0**63))
    micros = np.rint(micros_since_epoch(np.where(missing, 0.0, numbers)))
    return as_timestamps(micros.astype(np.int64), missing)


@functools.lru_cache(1024)
def _find_fields(shape: bytes, datetime_format: str | None) -> dict[str, tuple[int, int]]:
    """Return the spans of the fields in texts of a shape, or {}."""
    text = shape.decode("latin-1")
    matches = (re.fullmatch(form, text, re.IGNORECASE) for form in forms(datetime_format))
    match = next(filter(None, matches), None)
    return {name: match.span(name) for name in match.groupdict() if match.start(name) >= 0} if match else {}


def from_text(text: pa.Array, datetime_format: str | None) -> pa.Array:
    """Return texts as timestamps, null where unreadable."""
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
    """Return dates, and masks of invalid cells and of known forms."""
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
    """Yield for each length its rows and a matrix of characters."""
    sizes = np.diff(block_offsets)
    counts = np.bincount(np.minimum(sizes, MAX_DATE_CHARACTERS + 1), minlength=1)
    for size in (np.flatnonzero(counts[1 : MAX_DATE_CHARACTERS + 1]) + 1).tolist():
        if counts[size] == len(sizes):
            yield np.arange(len(sizes)), data[block_offsets[0] : block_offsets[-1]].reshape(-1, size)
        else:
            rows = np.flatnonzero(sizes == size)
            yield rows, data[block_offsets[rows][:, None] + np.arange(size, dtype=np.int32)]


def _group_by_shape(rows: np.ndarray, cells: np.ndarray) -> Iterator[tuple[bytes, np.ndarray, np.ndarray]]:
    """Yield each shape (digits as 0), its rows and characters."""
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
    """Return cells of one shape as dates, and a mask of others."""
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
    """Return dates in microseconds, and a mask of invalid ones."""
    last = np.take(_MONTH_DAYS, month, mode="clip") + (is_leap(year) & (month == 2))
    invalid = (year < 1) | (month < 1) | (month > 12) | (day < 1) | (day > last)
    invalid |= (hour > 23) | (minute > 59) | (second > 59)
    days = count_days(year, month, day) * np.int64(SECONDS_PER_DAY)
    return (days + (hour * 3600 + minute * 60 + second)) * MICROS_PER_SECOND, invalid


def _read_rare(values: pa.Array, datetime_format: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Return distinct texts as dates, and a mask of invalid ones."""
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
    """Return numbers such as "20210305" as dates, and a mask of other texts."""
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
