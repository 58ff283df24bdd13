"""Feature type for dates: calendar and clock as nine integers, or as float32 columns for models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.errors import ColumnError, ConfigError, RejectedValueError, did_you_mean
from daskprep.features.base import Bounds, Learned, Tensor, fill_advice, fills_with_one_value
from daskprep.features.cells import is_text
from daskprep.features.date_text import (
    MICROS_PER_SECOND,
    as_micros,
    as_timestamps,
    count_days,
    from_numbers,
    from_text,
    from_timestamps,
    iterate_blocks,
    write_date_parts,
)
from daskprep.features.feature import Feature, with_parameters
from daskprep.features.missing import valid_mask
from daskprep.kernels import make_list_array
from daskprep.sources.cells import as_text
from daskprep.steps.cells import SECONDS_PER_DAY
from daskprep.steps.dates import CYCLES, EPOCH, PARTS, WEEKEND, DateParameters, check_format, sin_cos_table
from daskprep.summaries import ColumnSummary, Range, Summary

_LIMITS = (1, 1, 1, 0, 1, 0, 0, 0, 0), (9999, 12, 31, 6, 366, 23, 59, 59, 86_399)
_COMPACT_LIMITS = (-719_162, 0), (2_932_896, 86_399)  # the same years as days and seconds
_SUM_BLOCK_ROWS = 1 << 24
_MIN_STEPS, _MAX_BACKWARD_SHARE = 20, 0.01  # for rows that count as ordered by time, in either direction
_sin_cos_tables: dict[tuple[str, Any], Tensor] = {}


@dataclass(frozen=True, kw_only=True)
class LearnedDate(Learned):
    """Fitted state of a date column: first and last date of the training rows, to the second; None without dates."""

    in_order: ClassVar[bool] = False  # whether rows are ordered by the date; set by a fit, and not saved

    first: str | None = None
    last: str | None = None


@dataclass(frozen=True)
class DateSummary(Summary):
    """Statistics of dates as seconds since 1970."""

    range: Range
    seconds: int  # their exact sum
    count: int
    rises: int = 0  # dates after the date of the previous row of the same partition
    falls: int = 0

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
    cyclic : list of str or None
        Parts as sine and cosine of their angle on a circle, so that December is next to January: any of the nine
        except "year".
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
    missing_indicator : bool
        Whether a second output, "_missing", marks missing values.
    invalid : {"missing", "raise"}
        Whether a value that is not a date counts as missing or raises `RejectedValueError`.
    column : str or None
        Column to read, if its name differs from the feature's.

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
    _edge_case_cells = ("2012-02-29T13:51:50.417-07:00", "3/5/2021", "1600000000", "20210305", "2021-02-30")

    def check(self) -> None:
        """Raise ConfigError for an invalid format, unknown or empty parts, or a fill value that is not a date."""
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
        """Parse cells to timestamps; with a `since` column, to lists of two timestamps, the second from that column."""
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
        """Return cells as local timestamps in microseconds, null if unreadable; ColumnError for other types."""
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
        raise ColumnError(f"holds values of type {kind}, which are not dates")

    def parse_fill(self, value: object) -> pa.Array:
        return super().parse_fill(value or EPOCH)

    def summarize(self, parsed: pa.Array) -> DateSummary:
        """Return range, exact sum and number of the present dates in seconds, and how many rise and fall."""
        seconds = _to_micros(parsed.drop_null())[0] // MICROS_PER_SECOND
        # A 64-bit sum overflows after 36 million dates of the year 9999, so blocks are added up as Python integers.
        sums = (
            int(seconds[start : start + _SUM_BLOCK_ROWS].sum()) for start in range(0, len(seconds), _SUM_BLOCK_ROWS)
        )
        rises, falls = (int(np.count_nonzero(compare(seconds[1:], seconds[:-1]))) for compare in (np.greater, np.less))
        return DateSummary(Range.of(seconds), sum(sums), len(seconds), rises, falls)

    def learn(self, summary: DateSummary) -> LearnedDate:
        if summary.range.empty:
            return LearnedDate()
        return LearnedDate(first=_format_second(summary.range.min), last=_format_second(summary.range.max))

    def learn_column(self, summary: ColumnSummary[DateSummary]) -> LearnedDate:
        learned = super().learn_column(summary)
        if summary.values.in_order:
            object.__setattr__(learned, "in_order", True)
        return learned

    def learn_fill(self, summary: ColumnSummary[DateSummary]) -> Any:
        if self.missing_value_strategy == "fill_with_mean":
            return _format_second(summary.values.seconds // summary.values.count)
        return super().learn_fill(summary)

    def cells(self, parsed: pa.Array) -> pa.Array:
        return as_timestamps(_to_micros(parsed)[0], ~valid_mask(parsed)).cast(pa.string())

    def _remedy(self, learned: LearnedDate) -> str:
        verb = "correct" if self.datetime_format else "set"
        return f"{super()._remedy(learned)}, {verb} datetime_format"

    def advice(self, learned: LearnedDate) -> str | None:
        """Return a warning about the fill value, a day that may come first, or numbers of another unit; else None."""
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

    def encode(self, parsed: pa.Array, learned: LearnedDate) -> np.ndarray:
        """Return int32 rows: the nine parts, or in compact form days and seconds of the date, then of `since`."""
        micros, *since = _to_micros(parsed)
        if self._is_compact:
            days_and_seconds = [
                part for one in (micros, *since) for part in np.divmod(one // MICROS_PER_SECOND, SECONDS_PER_DAY)
            ]
            return np.stack(days_and_seconds, axis=1).astype(np.int32)
        out = np.empty((len(micros), len(PARTS)), np.int32)
        for block in iterate_blocks(len(micros)):
            write_date_parts(micros[block], out[block])
        return out

    def expand(self, batch: Tensor, learned: LearnedDate) -> Tensor:
        """Return the nine parts as int64, or the float32 columns of compact rows, computed on the batch's device."""
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
        """Return timestamps, exact to the second, of the nine parts or of compact rows, without the `since` column."""
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


def _to_micros(parsed: pa.Array) -> list[np.ndarray]:
    """Return dates in microseconds since 1970, 0 where missing; as a second array, the dates of a `since` column."""
    if not pa.types.is_list(parsed.type):
        return [as_micros(parsed)]
    pairs = np.zeros((len(parsed), 2), np.int64)
    pairs[valid_mask(parsed)] = parsed.flatten().to_numpy().reshape(-1, 2)
    return [pairs[:, 0], pairs[:, 1]]


def _look_up_cycle(part: str, numbers: Tensor) -> Tensor:
    """Return sine and cosine of a part for each of `numbers`, from a table that is copied once to each device."""
    key = part, numbers.device
    if key not in _sin_cos_tables:
        _sin_cos_tables[key] = numbers[:0].float().new_tensor(sin_cos_table(part))
    return _sin_cos_tables[key][numbers]


def _format_second(second: float) -> str:
    return (datetime(1970, 1, 1) + timedelta(seconds=second)).isoformat(" ")
