"""Row encoder of `Date`, and the parser of dates."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from daskprep.errors import RejectedValueError
from daskprep.steps.base import Arrays, RowEncoder, RowMappings
from daskprep.steps.cells import (
    BOOLEAN_TYPES,
    DURATION_TYPES,
    NUMBER_TYPES,
    is_missing,
    number_of,
    reject_types,
    text_of,
)
from daskprep.steps.date_columns import date_table, is_compact
from daskprep.steps.date_words import parse_format, parse_words

EPOCH = "1970-01-01 00:00:00"
MAX_DATE_CHARACTERS = 40  # longer texts are not compared with the patterns
INTEGER = "-?([0-9]{1,18}|[0-8][0-9]{18})"
COMPACT_DATE = "(19|20|21)[0-9]{6}([0-9]{6})?"

_ZONE = r"(?: ?(?:Z|UTC|GMT|[+-]00(?::?00)?))?"
_TIME = rf"(?:[T ](?P<h>00?)(?::(?P<m>00)(?::(?P<s>00)(?:[.,](?P<f>0+))?)?)?(?: ?(?P<p>[AP]M))?{_ZONE})?"
_ISO = rf"(?P<Y>0000)-(?P<M>00)-(?P<D>00){_TIME}"
# Patterns of dates in which every digit is 0. A text that matches one but is no date (2021-02-30) is unreadable.
_COMMON_PATTERNS = (
    _ISO,
    rf"(?P<Y>0000)(?P<sep>[-/.])(?P<M>00?)(?P=sep)(?P<D>00?){_TIME}",
    rf"(?P<M>00?)(?P<sep>[-/.])(?P<D>00?)(?P=sep)(?P<Y>0000|00){_TIME}",
    r"(?P<Y>0000)(?:[-/.](?P<M>00))?",
    rf"(?P<Y>0000)(?P<M>00)(?P<D>00)T(?P<h>00)(?P<m>00)(?:(?P<s>00)(?:[.,](?P<f>0+))?)?{_ZONE}",
)
_DIRECTIVES = {
    "Y": "(?P<Y>0000)", "m": "(?P<M>00)", "d": "(?P<D>00)", "H": "(?P<h>00)", "M": "(?P<m>00)", "S": "(?P<s>00)",
    "f": "(?P<f>0{1,6})", "z": "(?:Z|[+-]00:?00)",
}  # fmt: skip
# The subset of ISO 8601 for which `datetime.fromisoformat` equals the patterns of `forms`, but is faster.
_PLAIN_ISO = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ](?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2})?")
_INTEGER, _COMPACT_DATE = re.compile(INTEGER), re.compile(COMPACT_DATE)
_EPOCH_START = dt.datetime(1970, 1, 1)
_ISO_DATE = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_NON_DATE_TYPES = (dt.time, *DURATION_TYPES, *BOOLEAN_TYPES)


def forms(datetime_format: str | None) -> tuple[str, ...]:
    """Return patterns of dates in which every digit is 0; their groups are the fields.

    For None, they are the common forms; for a format, its own pattern, if all its fields are digits, and ISO 8601.
    """
    if datetime_format is None:
        return _COMMON_PATTERNS
    literals, directives = re.split("%.", datetime_format), re.findall("%(.)", datetime_format)
    # Other formats (names of months, digits between the fields) are parsed cell by cell.
    if "Y" in directives and all(d in _DIRECTIVES for d in directives) and not re.search(r"\d", "".join(literals)):
        fields = [*map(_DIRECTIVES.__getitem__, directives), ""]
        return "".join(re.escape(literal) + field for literal, field in zip(literals, fields, strict=True)), _ISO
    return (_ISO,)


def parse_datetime(text: str, datetime_format: str | None) -> dt.datetime | None:
    """Parse a date in the format or in ISO 8601, or, without a format, in any common form; None if unreadable."""
    if datetime_format is None and _PLAIN_ISO.fullmatch(text):
        try:
            return dt.datetime.fromisoformat(text)
        except ValueError:
            return None
    trimmed = text.strip()
    match = _match_patterns(text, datetime_format) or _match_patterns(trimmed, datetime_format)
    if match is not None:
        return _datetime_from_fields(match.groupdict())
    moment = _parse_digits(trimmed) if datetime_format is None else None
    return moment or _parse_words_or_format(trimmed, datetime_format)


def _match_patterns(text: str, datetime_format: str | None) -> re.Match[str] | None:
    patterns = _compiled_patterns(datetime_format) if len(text) <= MAX_DATE_CHARACTERS else ()
    return next(filter(None, (pattern.fullmatch(text) for pattern in patterns)), None)


@functools.lru_cache(1024)
def _compiled_patterns(datetime_format: str | None) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(form.replace("0", "[0-9]"), re.IGNORECASE | re.ASCII) for form in forms(datetime_format))


def _datetime_from_fields(fields: dict[str, str | None]) -> dt.datetime | None:
    """Return the date of the fields of a pattern, None if it does not exist; two-digit years are 1969 to 2068."""
    get = fields.get
    year_text = get("Y") or ""
    year, hour = int(year_text), int(get("h") or 0)
    if len(year_text) == 2:
        year += 2000 if year < 69 else 1900
    if am_pm := get("p"):
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if am_pm[0] in "Pp" else 0)
    micros = (get("f") or "0")[:6].ljust(6, "0")
    try:
        return dt.datetime(
            year, int(get("M") or 1), int(get("D") or 1), hour, int(get("m") or 0), int(get("s") or 0), int(micros)
        )
    except ValueError:
        return None


def _parse_digits(text: str) -> dt.datetime | None:
    """Return the date of a compact text such as 20210203, or of a number that counts since 1970; else None."""
    if _COMPACT_DATE.fullmatch(text):
        with contextlib.suppress(ValueError):
            return dt.datetime.strptime(text.ljust(14, "0"), "%Y%m%d%H%M%S")
    number = int(text) if _INTEGER.fullmatch(text) else number_of(text)
    return None if number is None else datetime_from_number(number)


def datetime_from_number(number: float) -> dt.datetime | None:
    """Return the time that a number counts since 1970, None beyond 64 bits.

    The size of the number decides whether it counts seconds, milliseconds, microseconds or nanoseconds.
    """
    if not -(2**63) - isinstance(number, int) < number < 2**63:
        return None
    size = abs(number)
    if size < 10**13:
        number *= 10**6 if size < 10**10 else 10**3
    elif size >= 10**16:
        number //= 1000
    return _EPOCH_START + dt.timedelta(microseconds=round(number))


def micros_since_epoch(numbers: np.ndarray) -> np.ndarray:
    """Convert numbers to microseconds since 1970, with the units of `datetime_from_number`."""
    seconds, milliseconds, microseconds = (
        (numbers < 10**digits) & (numbers > -(10**digits)) for digits in (10, 13, 16)
    )
    if seconds.all():
        return numbers * 1_000_000
    choices = [numbers * 1_000_000, numbers * 1_000, numbers]
    return np.select([seconds, milliseconds, microseconds], choices, numbers // 1_000)


def _parse_words_or_format(text: str, datetime_format: str | None) -> dt.datetime | None:
    """Parse a date in the format, or, without one, with names of months; None if unreadable."""
    if datetime_format is None:
        fields = parse_words(text)
        return None if fields is None else _datetime_from_fields(fields)
    try:
        return parse_format(text, datetime_format).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None


class _DatePair(NamedTuple):
    """Cells of a row's date, and of its reference date, which elapsed time is counted from."""

    date: Any
    since: Any


def parse_iso_date(text: str) -> tuple[int, int] | None:
    """Return the days since 1970 and the seconds of the day of an ISO 8601 text; None for other texts."""
    moment = parse_datetime(text, "%Y-%m-%d") if _ISO_DATE.match(text) else None
    return None if moment is None else _days_and_seconds(moment)


def _days_and_seconds(moment: dt.datetime) -> tuple[int, int]:
    clock = moment.hour * 3600 + moment.minute * 60 + moment.second
    return moment.toordinal() - _EPOCH_START.toordinal(), clock


class DateRowEncoder(RowEncoder):
    """Row encoder of `Date`."""

    def prepare(self) -> None:
        self.datetime_format = self.params["datetime_format"]
        self.compact = is_compact(self.params)
        since = self.params.get("since")
        self.reference = None if since is None else parse_iso_date(since)
        if since is not None and self.reference is None:
            self.columns = (self.column, since)

    def cells(self, rows: RowMappings) -> list[Any]:
        if len(self.columns) == 1:
            return super().cells(rows)
        return [_DatePair(*(row[column] for column in self.columns)) for row in rows]

    def read(self, cell: Any) -> Any:
        if not isinstance(cell, _DatePair):
            return self._to_datetime(cell)
        date, since = self._to_datetime(cell.date), self._to_datetime(cell.since)
        if since is None and self.params.get("invalid") == "raise" and not is_missing(cell.since):
            raise RejectedValueError(f'{cell.since!r} of column "{self.columns[1]}" cannot be read as a date')
        return None if date is None else (date, since or date)

    def _is_missing(self, cell: Any) -> bool:
        return super()._is_missing(cell.date if isinstance(cell, _DatePair) else cell)

    def _to_datetime(self, cell: Any) -> dt.datetime | None:
        """Return the date of a cell of any type, None if it is missing or unreadable."""
        if not isinstance(cell, str):
            if is_missing(cell):
                return None
            if isinstance(cell, dt.datetime):
                return _to_wall_time(cell)
            if isinstance(cell, dt.date):
                return dt.datetime(cell.year, cell.month, cell.day)
            reject_types(cell, _NON_DATE_TYPES, "date")
            if self.datetime_format is None and isinstance(cell, NUMBER_TYPES):
                return datetime_from_number(int(cell) if isinstance(cell, int | np.integer) else float(cell))
        text = text_of(cell)
        return None if text is None else parse_datetime(text, self.datetime_format)

    def read_fill(self, fill: Any) -> Any:
        fill = fill or EPOCH
        return self.read(fill if len(self.columns) == 1 else _DatePair(fill, fill))

    def expand(self, encoded: np.ndarray) -> np.ndarray:
        return date_table(encoded, self.params, self.reference) if self.compact else super().expand(encoded)

    def to_arrays(self, values: Sequence[Any]) -> Arrays:
        if self.compact:
            pairs = [value if len(self.columns) > 1 else (value,) for value in values]
            numbers = [[number for moment in pair for number in _days_and_seconds(moment)] for pair in pairs]
            return {"": np.array(numbers, np.int32).reshape(-1, 2 * len(self.columns))}
        return {"": np.array([_split_into_parts(moment) for moment in values], np.int32).reshape(-1, 9)}


def _to_wall_time(moment: dt.datetime) -> dt.datetime:
    """Return the local time of a datetime, without its zone; times that a clock change skips are moved after it."""
    if moment.tzinfo is not None:
        with contextlib.suppress(OverflowError):
            moment = moment.astimezone(dt.UTC).astimezone(moment.tzinfo)
    return moment.replace(tzinfo=None)


def _split_into_parts(moment: dt.datetime) -> tuple[int, ...]:
    """Return the parts of a date in the order of `date_columns.PARTS`."""
    year, hour, minute, second = moment.year, moment.hour, moment.minute, moment.second
    day_of_year = moment.toordinal() - dt.date(year, 1, 1).toordinal() + 1
    return (
        *(year, moment.month, moment.day, moment.weekday(), day_of_year, hour, minute, second),
        hour * 3600 + minute * 60 + second,
    )
