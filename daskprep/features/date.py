"""Dates: calendar and clock as nine integers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from daskprep.errors import ColumnError, ConfigError
from daskprep.features.base import Bounds, Invalid, Learned, Tensor
from daskprep.features.date_numbers import (
    DAY,
    SECOND,
    as_micros,
    as_timestamps,
    blocks_of,
    count_days,
    from_numbers,
    from_timestamps,
    take_apart,
)
from daskprep.features.date_text import from_text
from daskprep.features.feature import Feature, with_parameters
from daskprep.features.missing import Strategy, fills_all
from daskprep.serving.dates import EPOCH
from daskprep.sources.cell_text import as_text
from daskprep.summaries import Range

PARTS = ("year", "month", "day", "weekday", "day_of_year", "hour", "minute", "second", "second_of_day")
_LIMITS = (1, 1, 1, 0, 1, 0, 0, 0, 0), (9999, 12, 31, 6, 366, 23, 59, 59, 86_399)


@dataclass(frozen=True, kw_only=True)
class LearnedDate(Learned):
    """First and last date of the training rows, to the second; None where there is none."""

    first: str | None = None
    last: str | None = None


@with_parameters
class Date(Feature[Range, LearnedDate]):
    """Split dates into year, month, day, weekday, day of year, hour, minute, second and second of day.

    Text is read as ISO 8601 or another common form, month first ("3/5/2021" is March 5). Missing parts default to the
    first month, the first day and midnight; a date without a year cannot be read. UTC offsets are dropped, so the local
    time stays as written. Numbers count seconds since 1970, or milliseconds (from 11 digits), microseconds (from 14) or
    nanoseconds (from 17). Text of digits alone may also be a year or a date ("2021", "20210305", "20210305093059").
    Only the years 1 to 9999 can be read.

    Parameters
    ----------
    datetime_format : str or None
        Format of text in the codes of `datetime.strptime`, such as "%d/%m/%Y". ISO 8601 is still read, and no other
        form is guessed. Numbers are then read as text: "%Y%m%d" reads 20210305.
    missing_value_strategy : str
        Imputation of missing values: "fill_with_const" (with `fill_value`), "fill_with_mode", "ffill", "bfill" or
        "drop_row".
    fill_value : str
        Date that "fill_with_const" imputes for missing values; an empty text stands for the default.
    missing_indicator : bool
        Whether a second output, "_missing", marks missing values.
    invalid : {"missing", "raise"}
        Whether a value that is not a date counts as missing or raises `RejectedValueError`.
    column : str or None
        Column to read, if its name differs from that of the feature.

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
           [ 1970,     1,     1,     3,     1,     0,     0,     0,     0]],
          dtype=int32)
    >>> date.get_feature_names_out()[-1]
    'seen_second_of_day'
    """

    kind = "date"
    holds = "dates"
    # None that only dateutil reads: a service may have none.
    _odd_cells = ("2012-02-29T13:51:50.417-07:00", "3/5/2021", "1600000000", "20210305", "2021-02-30")

    datetime_format: str | None = None
    missing_value_strategy: Strategy = "fill_with_const"
    fill_value: str | None = EPOCH
    invalid: Invalid = "missing"
    column: str | None = None

    def check(self) -> None:
        if self.datetime_format is not None:
            if "%" not in self.datetime_format:
                raise ConfigError(f'Date: datetime_format {self.datetime_format!r} has no field, such as "%Y-%m-%d"')
            try:
                datetime.strptime(datetime(2001, 2, 3, tzinfo=UTC).strftime(self.datetime_format), self.datetime_format)
            except (ValueError, re.error) as error:
                raise ConfigError(
                    f"Date: datetime_format {self.datetime_format!r} is not a format of datetime.strptime: {error}"
                ) from error
        if self.fill_value is not None:
            self.parse_fill(self.fill_value)

    def parse(self, column: pa.Array) -> pa.Array:
        kind = column.type
        if pa.types.is_dictionary(kind):
            return self.parse(column.dictionary).take(column.indices)
        if pa.types.is_timestamp(kind):
            return from_timestamps(column)
        if pa.types.is_date(kind):
            unit = "s" if pa.types.is_date32(kind) else "ms"
            return from_timestamps(column.cast(pa.timestamp(unit)))
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        if number and self.datetime_format is None:
            return from_numbers(column)
        if number or pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_null(kind):
            return from_text(as_text(column), self.datetime_format)
        raise ColumnError(f"holds values of type {kind}, which are not dates")

    def parse_fill(self, value: object) -> pa.Array:
        return super().parse_fill(value or EPOCH)

    def summarize(self, parsed: pa.Array) -> Range:
        return Range.of(as_micros(parsed.drop_null()) // SECOND)

    def learn(self, summary: Range) -> LearnedDate:
        if summary.empty:
            return LearnedDate()
        return LearnedDate(first=_written(summary.min), last=_written(summary.max))

    def cells(self, parsed: pa.Array) -> pa.Array:
        return parsed.cast(pa.string())

    def advice(self, learned: LearnedDate) -> str | None:
        if self.datetime_format is not None:
            return None
        if any(re.match(r"\s*\d\d?[-/.]\d\d?[-/.]\d", sample) for sample in learned.invalid_samples):
            return 'is read month first: give datetime_format, such as "%d/%m/%Y", if the day comes first'
        filled = learned.missing and fills_all(self)
        if not filled and learned.first and learned.last and learned.first >= EPOCH and learned.last < "1970-01-02":
            return (
                "has all its dates on one day, 1970-01-01: numbers count seconds since then; "
                'give datetime_format, such as "%Y", if they are something else'
            )
        return None

    def encode(self, parsed: pa.Array, learned: LearnedDate) -> np.ndarray:
        micros = as_micros(parsed)
        out = np.empty((len(micros), len(PARTS)), np.int32)
        for block in blocks_of(len(micros)):
            take_apart(micros[block], out[block])
        return out

    def expand(self, batch: Tensor, learned: LearnedDate) -> Tensor:
        return batch.long()

    def limits(self, learned: LearnedDate) -> Mapping[str, Bounds]:
        return {"": _LIMITS}

    def decode(self, encoded: np.ndarray, learned: LearnedDate) -> pa.Array:
        parts = np.asarray(encoded, np.int64)
        days = count_days(parts[:, 0], parts[:, 1], parts[:, 2])
        return as_timestamps((days * DAY + parts[:, 8]) * SECOND)

    def tabulated_names(self, name: str, learned: LearnedDate) -> list[str]:
        return [f"{name}_{part}" for part in PARTS]


def _written(second: float) -> str:
    return (datetime(1970, 1, 1) + timedelta(seconds=second)).isoformat(" ")
