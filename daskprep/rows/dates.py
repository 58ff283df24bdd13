"""Row encoder of `Date`, the parsers of dates and of `strptime` formats, and the calendar.

Names of months and sines are read from tables, so that they are the same in every locale and on every machine.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import numpy as np

from daskprep.errors import ConfigError, RejectedValueError
from daskprep.rows.base import Arrays, Parameters, RowEncoder, Strategy
from daskprep.rows.cells import (
    BOOLEAN_TYPES,
    DURATION_TYPES,
    NUMBER_TYPES,
    SECONDS_PER_DAY,
    is_missing,
    number_of,
    reject_types,
    text_of,
)
from daskprep.rows.typed import Count, later

_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_NUMBERS = {
    name[:3].lower(): number + first
    for names, first in ((_MONTHS, 1), (_WEEKDAYS, 0))
    for number, name in enumerate(names)
}

# Python and pandas read names, %c, %x and %X by the locale, and %Z by the time zone of the process.
_LOCALE_CODES = re.compile("%[aAbBpcxXZ]")
_EXPANSIONS = {"%c": "%a %b %d %H:%M:%S %Y", "%x": "%m/%d/%y", "%X": "%H:%M:%S"}
_SAMPLES = {"%a": "Sat", "%A": "Saturday", "%b": "Feb", "%B": "February", "%p": "AM", "%Z": "UTC"}
_NUMERIC_CODES = {"a": "w", "A": "w", "b": "m", "B": "m", "I": "H"}
_CODE_PATTERNS = {
    "a": "|".join(name[:3] for name in _WEEKDAYS), "A": "|".join(_WEEKDAYS),
    "b": "|".join(name[:3] for name in _MONTHS), "B": "|".join(_MONTHS), "p": "AM|PM", "Z": "[A-Z]{1,5}",
    "Y": r"\d{4}", "y": r"\d{2}", "m": "1[0-2]|0[1-9]|[1-9]", "d": r"3[01]|[12]\d|0[1-9]|[1-9]| [1-9]",
    "H": r"2[0-3]|[01]\d|\d", "I": "1[0-2]|0[1-9]|[1-9]", "M": r"[0-5]\d|\d", "S": r"6[01]|[0-5]\d|\d",
    "f": "[0-9]{1,6}", "w": "[0-6]", "u": "[1-7]",
    "j": r"36[0-6]|3[0-5]\d|[12]\d\d|0[1-9]\d|00[1-9]|[1-9]\d|0[1-9]|[1-9]",
    "U": r"5[0-3]|[0-4]\d|\d", "W": r"5[0-3]|[0-4]\d|\d", "G": r"\d{4}", "V": r"5[0-3]|0[1-9]|[1-4]\d|\d",
    "z": r"[+-]\d\d:?[0-5]\d(?::?[0-5]\d(?:\.\d{1,6})?)?|(?-i:Z)",
}  # fmt: skip


# Texts without a format: a clock, which is optional, and a date around it.
_WEEKDAY = "(?:" + "|".join(f"{name[:3]}(?:{name[3:]})?" for name in _WEEKDAYS) + ")"
_MONTH = "(?P<B>" + "|".join(f"{name[:3]}(?:{name[3:]})?" for name in _MONTHS).replace("Sep", "Sept?", 1) + ")"
_CLOCK = re.compile(
    r"(?:^|,? (?:at )?|[;-]|(?<=\d)t)(?:"
    r"(?P<h>\d\d?)(?::(?P<m>\d\d?)(?::(?P<s>\d\d?)(?:(?<=\d\d)[.,](?P<f>\d+))?)?|h(?P<m2>\d\d)m?)"
    r"(?: ?(?P<p>[ap](?:\.?m\.?)?)\b)?"
    r"|(?P<h2>\d\d?) ?(?P<p2>[ap]\.?m\b))\.?"
    rf"(?: ?(?!{_WEEKDAY}\b|{_MONTH.replace('?P<B>', '?:')}\b)"
    r"(?:z|utc|gmt|(?-i:[A-Z]{3,5}))?(?: ?[+-]\d\d?(?::?\d\d)?)?(?: \((?-i:[A-Z]{3,5})\))?)?(?=$|[ ,;])",
    re.IGNORECASE | re.ASCII,
)
_DAY = "(?P<D>3[01]|[12][0-9]|0?[1-9])(?:st|nd|rd|th)?"
_YEAR = "'?(?P<Y>[1-9][0-9]{3}|[0-9]{2})"
_UNAMBIGUOUS_YEAR = "(?P<Y>[1-9][0-9]{3}|3[2-9]|[4-9][0-9])"  # two digits only above 31, the last day
_FOUR_DIGIT_YEAR = "(?P<Y>[1-9][0-9]{3})"
_GAP, _SEPARATOR = "(?:[.,]? |[.,/-])", "(?P<sep> ?[/.-] ?| )"
_BARE_CLOCK = "(?:[ t-]+(?P<h>[0-9]{2})(?P<m>[0-9]{2})(?P<s>[0-9]{2})?)?"
_DAY_PATTERNS = (
    rf"{_DAY}{_GAP}?(?:of )?{_MONTH}{_GAP}?{_YEAR}",
    rf"{_MONTH}{_GAP}{_DAY}{_GAP}{_YEAR}",
    rf"{_MONTH}{_GAP}{_UNAMBIGUOUS_YEAR}{_GAP}{_DAY}",
    rf"{_UNAMBIGUOUS_YEAR}{_GAP}{_MONTH}{_GAP}{_DAY}",
    rf"{_FOUR_DIGIT_YEAR}{_SEPARATOR}(?P<M>[0-9]{{1,2}})(?P=sep)(?P<D>[0-9]{{1,2}}){_BARE_CLOCK}",
    rf"(?P<M>[0-9]{{1,2}}){_SEPARATOR}(?P<D>[0-9]{{1,2}})(?P=sep){_FOUR_DIGIT_YEAR}",
    "(?P<M>[0-9]{1,2})(?P<sep>[/.-])(?P<D>[0-9]{1,2})(?P=sep)(?P<Y>[0-9]{2})",
    rf"{_FOUR_DIGIT_YEAR}(?P<M>[0-9]{{2}})(?P<D>[0-9]{{2}}){_BARE_CLOCK}",
)
_MONTH_PATTERNS = (
    rf"{_MONTH}{_GAP}{_UNAMBIGUOUS_YEAR}", rf"{_UNAMBIGUOUS_YEAR}{_GAP}{_MONTH}",
    rf"(?P<M>[0-9]{{1,2}})[/-]{_FOUR_DIGIT_YEAR}", rf"{_FOUR_DIGIT_YEAR}[/-](?P<M>[0-9]{{1,2}})",
)  # fmt: skip
_DATE_PATTERNS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (*(rf"(?:{_WEEKDAY}[ ,.]+)?{days}(?:[ ,]+{_WEEKDAY})?" for days in _DAY_PATTERNS), *_MONTH_PATTERNS)
]


def parse_words(text: str) -> dict[str, str | None] | None:
    """Return the fields of a date with names and spaces, or None.

    The fields are the groups of `forms`. Where the order is ambiguous, the month is first.
    """
    text = " ".join(text.split())
    fields: dict[str, str | None] = {}
    if clock := _CLOCK.search(text):
        groups = clock.groupdict()
        fields = {name: groups[name] or groups.get(f"{name}2") for name in "hmsfp"}
        text = " ".join(f"{text[: clock.start()]} {text[clock.end() :]}".split())
    text = text.strip(" ,.;")
    match = next(filter(None, (pattern.fullmatch(text) for pattern in _DATE_PATTERNS)), None)
    if match is None or (clock and match.groupdict().get("h")):
        return None
    fields = match.groupdict() | fields
    if month := fields.pop("B", None):
        fields["M"] = str(_NUMBERS[month[:3].lower()])
    elif "D" in fields and match.start("M") < match.start("Y") and int(fields["M"] or 0) > 12:
        fields["M"], fields["D"] = fields["D"], fields["M"]
    return fields


def parse_format(text: str, datetime_format: str) -> dt.datetime:
    """Parse text like `datetime.strptime` in the C locale; ValueError if it does not match."""
    if (numeric := numeric_format(datetime_format)) is None:
        return dt.datetime.strptime(text, datetime_format)
    if (translated := numeric.translate(text)) is None:
        raise ValueError(f"time data {text!r} does not match format {datetime_format!r}")
    return dt.datetime.strptime(translated, numeric.format)


def check_format(datetime_format: str) -> None:
    """Raise an error if `parse_format` cannot parse a written date."""
    english = re.sub("%.", lambda code: _SAMPLES.get(code[0], code[0]), _expand(datetime_format))
    parse_format(dt.datetime(2001, 2, 3, tzinfo=dt.UTC).strftime(english), datetime_format)


class NumericFormat(NamedTuple):
    """Numeric equivalent of a `strptime` format with names."""

    format: str  # the equivalent: numbers with spaces between them
    pattern: re.Pattern[str]  # of texts in the original format; its groups are the codes
    codes: tuple[str, ...]  # of the original format, in the order of the numbers

    def translate(self, text: str | None) -> str | None:
        """Translate text to the numeric format; None for None, and if it does not match."""
        if text is None or (match := self.pattern.fullmatch(text)) is None:
            return None
        groups = match.groupdict()
        values = [groups[code].strip() for code in self.codes]
        for index, code in enumerate(self.codes):
            if code in "aAbB":
                values[index] = str(_NUMBERS[values[index][:3].lower()])
            elif code == "I" and "p" in groups:
                values[index] = str(int(values[index]) % 12 + 12 * (groups["p"].lower() == "pm"))
        return " ".join(values)


@functools.lru_cache(128)
def numeric_format(datetime_format: str) -> NumericFormat | None:
    """Return the equivalent of a format with names, None without; ValueError for an unknown code."""
    if not _LOCALE_CODES.search(datetime_format.replace("%%", "")):
        return None
    codes = re.findall("%(.?)", expanded := _expand(datetime_format), re.DOTALL)
    literals = [re.sub(r"(?:\\?\s)+", r"\\s+", re.escape(text)) for text in re.split("%.?", expanded, flags=re.DOTALL)]
    if unknown_code := next((code for code in codes if code not in (*_CODE_PATTERNS, "%")), None):
        raise ValueError(f"%{unknown_code} is a bad directive in format {datetime_format!r}")
    fields = ["%" if code == "%" else f"(?P<{code}>{_CODE_PATTERNS[code]})" for code in codes]
    pattern = "".join(literal + field for literal, field in zip(literals, [*fields, ""], strict=True))
    numeric_codes = _NUMERIC_CODES if "p" in codes else {**_NUMERIC_CODES, "I": "I"}
    by_target = {numeric_codes.get(code, code): code for code in codes if code not in "%pZ"}
    target_format = " ".join(f"%{target}" for target in by_target)
    return NumericFormat(target_format, re.compile(pattern, re.IGNORECASE), tuple(by_target.values()))


def _expand(datetime_format: str) -> str:
    return re.sub("%.", lambda code: _EXPANSIONS.get(code[0], code[0]), datetime_format)


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

PARTS = ("year", "month", "day", "weekday", "day_of_year", "hour", "minute", "second", "second_of_day")
WEEKEND = "weekend"
# First value and period of each part that recurs.
CYCLES = {
    "month": (1, 12), "day": (1, 31), "weekday": (0, 7), "day_of_year": (1, 366), "hour": (0, 24), "minute": (0, 60),
    "second": (0, 60), "second_of_day": (0, 86_400),
}  # fmt: skip
_MAX_HARMONICS = 12
UNITS = {"seconds": 1, "minutes": 60, "hours": 3_600, "days": 86_400, "weeks": 604_800, "years": 31_556_952}


def forms(datetime_format: str | None) -> tuple[str, ...]:
    """Return patterns of dates in which every digit is 0.

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
    """Return a date in the format or in ISO 8601, without a format in any common form; None if unreadable."""
    if datetime_format is None and _PLAIN_ISO.fullmatch(text):
        try:
            return dt.datetime.fromisoformat(text)
        except ValueError:
            return None
    trimmed = text.strip()
    match = _match_patterns(text, datetime_format) or _match_patterns(trimmed, datetime_format)
    if match is not None:
        return _datetime_from_fields(match.groupdict())
    if datetime_format is not None:
        try:
            return parse_format(trimmed, datetime_format).replace(tzinfo=None)
        except (ValueError, OverflowError):
            return None
    if _COMPACT_DATE.fullmatch(trimmed):
        with contextlib.suppress(ValueError):
            return dt.datetime.strptime(trimmed.ljust(14, "0"), "%Y%m%d%H%M%S")
    number = int(trimmed) if _INTEGER.fullmatch(trimmed) else number_of(trimmed)
    moment = None if number is None else datetime_from_number(number)
    fields = None if moment else parse_words(trimmed)
    return moment if fields is None else _datetime_from_fields(fields)


def _match_patterns(text: str, datetime_format: str | None) -> re.Match[str] | None:
    patterns = _compiled_patterns(datetime_format) if len(text) <= MAX_DATE_CHARACTERS else ()
    return next(filter(None, (pattern.fullmatch(text) for pattern in patterns)), None)


@functools.lru_cache(1024)
def _compiled_patterns(datetime_format: str | None) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(form.replace("0", "[0-9]"), re.IGNORECASE | re.ASCII) for form in forms(datetime_format))


def _datetime_from_fields(fields: dict[str, str | None]) -> dt.datetime | None:
    """Return the date of fields, two-digit years from 1969 to 2068; None if it does not exist."""
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


def datetime_from_number(number: float) -> dt.datetime | None:
    """Return the datetime that a number counts since 1970; None beyond 64 bits.

    The size of the number decides whether it counts seconds, milliseconds, microseconds or nanoseconds.
    """
    # Integers down to the lower bound are -(2**63) as a double, as in a column.
    if not -(2**63) - 1024 <= number < 2**63:
        return None
    size = abs(number)
    if size < 10**13:
        number *= 10**6 if size < 10**10 else 10**3
    elif size >= 10**16:
        number //= 1000
    return _EPOCH_START + dt.timedelta(microseconds=round(number))


def micros_since_epoch(numbers: np.ndarray) -> np.ndarray:
    """Convert numbers to microseconds, as `datetime_from_number`."""
    seconds, milliseconds, microseconds = (
        (numbers < 10**digits) & (numbers > -(10**digits)) for digits in (10, 13, 16)
    )
    if seconds.all():
        return numbers * 1_000_000
    choices = [numbers * 1_000_000, numbers * 1_000, numbers]
    return np.select([seconds, milliseconds, microseconds], choices, numbers // 1_000)


class _DatePair(NamedTuple):
    """Cells of a row's date, and of its reference date."""

    date: Any
    since: Any


@functools.lru_cache(1024)
def parse_iso_date(text: str) -> tuple[int, ...] | None:
    """Return days since 1970 and seconds of the day, or None."""
    moment = parse_datetime(text, "%Y-%m-%d") if _ISO_DATE.match(text) else None
    return None if moment is None else _days_and_seconds(moment)


def _days_and_seconds(moment: dt.datetime) -> tuple[int, ...]:
    clock = moment.hour * 3600 + moment.minute * 60 + moment.second
    return _toordinal(moment.year, moment.month, moment.day) - _EPOCH_START.toordinal(), clock


def _numbers_of(moment: dt.datetime) -> tuple[int, ...]:
    """Return the nine `PARTS` of a date."""
    year, month, day, hour, minute, second = (
        moment.year, moment.month, moment.day, moment.hour, moment.minute, moment.second
    )  # fmt: skip
    ordinal = _toordinal(year, month, day)
    day_of_year = ordinal - _toordinal(year, 1, 1) + 1
    return year, month, day, (ordinal + 6) % 7, day_of_year, hour, minute, second, hour * 3600 + minute * 60 + second


def _toordinal(year: int, month: int, day: int) -> int:
    return dt.date(year, month, day).toordinal()  # pandas' own method takes a microsecond


@functools.cache
def sin_cos_table(part: str, harmonics: int) -> np.ndarray:
    """Return sines and cosines of each value of a cyclic part."""
    size = CYCLES[part][1]
    angles = 2 * np.pi * (np.outer(np.arange(size), np.arange(1, harmonics + 1)) % size) / size
    return np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(size, -1).astype(np.float32)


def is_leap(year: Any) -> Any:
    """Return a mask of leap years."""
    # NumPy divides by a constant with vector instructions, but has none for `%`.
    return (year & 3 == 0) & ((year - year // 25 * 25 != 0) | (year & 15 == 0))


def calendar_parts(days: Any, seconds: Any) -> Sequence[Any]:
    """Return the nine `PARTS`, then 1 for weekends, of days since 1970 and seconds of the day (arrays or tensors)."""
    # Operators that NumPy and torch share. Years start in March, so that a leap day is the last day of its year.
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


@dataclass(frozen=True, kw_only=True)
class DateValues:
    """Learned values of `Date`."""

    first: str | None = None
    last: str | None = None
    value_edges: tuple[float, ...] | None = later(None)  # in seconds since 1970, of bins of about equal counts, and
    value_counts: tuple[int, ...] | None = later(None)  # the training rows in each
    hour_counts: tuple[int, ...] | None = later(None)  # training rows in each hour of the day


@dataclass(kw_only=True, eq=False, repr=False)
class DateParameters(Parameters):
    """Parameters of `Date`."""

    datetime_format: str | None = None
    parts: list[str] | None = later(None, rows=True)
    cyclic: list[str] | Mapping[str, Count] | None = later(None, rows=True)
    since: str | None = later(None, rows=True)
    since_unit: Literal["seconds", "minutes", "hours", "days", "weeks", "years"] = later("days", rows=True)
    missing_value_strategy: Strategy | Literal["fill_with_mean"] = "fill_with_mean"
    fill_value: str | None = EPOCH

    def reads(self, name: str) -> list[str]:
        return super().reads(name) if self._since_column is None else [*super().reads(name), self._since_column]

    @property
    def _reference(self) -> tuple[int, ...] | None:
        return None if self.since is None else parse_iso_date(self.since)

    @property
    def _since_column(self) -> str | None:
        return None if self._reference else self.since

    @property
    def _is_compact(self) -> bool:
        """Whether dates are stored as days and seconds."""
        return any(one is not None for one in (self.parts, self.cyclic, self.since))

    @property
    def _cycles(self) -> list[tuple[str, int]]:
        """The cyclic parts with their numbers of harmonics; ConfigError if too many."""
        if not isinstance(self.cyclic, Mapping):
            return [(part, 1) for part in self.cyclic or ()]
        for part, harmonics in self.cyclic.items():
            most = min(_MAX_HARMONICS, CYCLES[part][1] // 2)  # beyond half of the period, they repeat
            if type(harmonics) is not int or not 1 <= harmonics <= most:
                raise ConfigError(f'Date: cyclic["{part}"]={harmonics!r}: pass a number of harmonics from 1 to {most}')
        return list(self.cyclic.items())

    @property
    def _labels(self) -> list[str]:
        """Names of the columns, without the feature's prefix."""
        cyclic_labels = [
            f"{part}_{axis}{f'_{harmonic}' * (harmonic > 1)}"
            for part, harmonics in self._cycles
            for harmonic in range(1, harmonics + 1)
            for axis in ("sin", "cos")
        ]
        return [*(self.parts or ()), *cyclic_labels, *["since"] * (self.since is not None)]

    def _date_columns(
        self, encoded: Any, to_float: Callable[[Any], Any], look_up: Callable[[str, int, Any], Any]
    ) -> Iterator[Any]:
        """Yield the columns of dates, in the order of `_labels`.

        `encoded`, an array or a tensor, has days and seconds by row, then of the reference if it is a column.
        ``to_float(numbers)`` converts integers to float32, ``look_up(part, harmonics, numbers)`` to rows of
        `sin_cos_table`.
        """
        days, seconds = encoded[:, 0], encoded[:, 1]
        values = dict(zip((*PARTS, WEEKEND), calendar_parts(days, seconds), strict=True))
        for part in self.parts or ():
            yield to_float(values[part])
        for part, harmonics in self._cycles:
            yield from look_up(part, harmonics, values[part] - CYCLES[part][0]).T
        if self.since is not None:
            since_days, since_seconds = self._reference or (encoded[:, 2], encoded[:, 3])
            unit = UNITS[self.since_unit]
            elapsed = (days - since_days) * SECONDS_PER_DAY + (seconds - since_seconds)
            full_units = elapsed // unit
            yield to_float(full_units) + to_float(elapsed - full_units * unit) / unit

    def _date_table(self, rows: np.ndarray) -> np.ndarray:
        columns = self._date_columns(
            rows.astype(np.int64),
            lambda numbers: numbers.astype(np.float32),
            lambda part, harmonics, index: sin_cos_table(part, harmonics)[index],
        )
        return np.stack(list(columns), axis=1)


class DateRowEncoder(RowEncoder):
    """Row encoder of `Date`."""

    values = (DateValues,)

    def prepare(self) -> None:
        self.datetime_format = self.params.datetime_format
        self.compact = self.params._is_compact
        self.numbers_of = _days_and_seconds if self.compact else _numbers_of
        self.width = len(self.columns) * (2 if self.compact else len(PARTS))
        edges = self.learned.get("value_edges")
        if edges and len(self.columns) == 1:
            first, last = (_EPOCH_START + dt.timedelta(seconds=edge) for edge in (edges[0], edges[-1]))
            ends = first.replace(hour=0, minute=0, second=0), last.replace(hour=23, minute=59, second=59)
            self.extent = self.numbers_of(ends[0]), self.numbers_of(ends[1])
        if len(self.columns) > 1:
            pair = itemgetter(*self.columns)
            self.cell_of = lambda row: _DatePair(*pair(row))

    def read(self, cell: Any) -> Any:
        """Return the numbers of a date, or of a date and its reference date; None if the date is missing.

        Without a reference date, the date itself replaces it. Raise RejectedValueError if it is unreadable and
        invalid="raise".
        """
        if not isinstance(cell, _DatePair):
            date = self._to_datetime(cell)
            return None if date is None else self.numbers_of(date)
        date, since = self._to_datetime(cell.date), self._to_datetime(cell.since)
        if since is None and self.params.invalid == "raise" and not is_missing(cell.since):
            raise RejectedValueError(f'{cell.since!r} of column "{self.columns[1]}" cannot be read as a date')
        return None if date is None else self.numbers_of(date) + self.numbers_of(since or date)

    def _is_missing(self, cell: Any) -> bool:
        return super()._is_missing(cell.date if isinstance(cell, _DatePair) else cell)

    def _to_datetime(self, cell: Any) -> dt.datetime | None:
        """Return the date of a cell without its time zone, or None; ColumnError for types that are no dates."""
        if not isinstance(cell, str):
            if isinstance(cell, dt.datetime) and type(cell).__name__ != "NaTType":
                return cell if cell.tzinfo is None else _to_wall_time(cell)
            if is_missing(cell):
                return None
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
        return self.params._date_table(encoded) if self.compact else super().expand(encoded)

    def to_arrays(self, values: Sequence[Any]) -> Arrays:
        return {self.name: np.array(values, np.int32).reshape(-1, self.width)}


def _to_wall_time(moment: dt.datetime) -> dt.datetime:
    """Return a datetime without zone, out of skipped hours."""
    with contextlib.suppress(OverflowError):
        moment = moment.astimezone(dt.UTC).astimezone(moment.tzinfo)
    return moment.replace(tzinfo=None)
