"""Parser of dates with names of months, and of `strptime` formats: in English, in every locale and time zone."""

from __future__ import annotations

import datetime as dt
import functools
import re
from typing import NamedTuple

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
    "a": "|".join(name[:3] for name in _WEEKDAYS),
    "A": "|".join(_WEEKDAYS),
    "b": "|".join(name[:3] for name in _MONTHS),
    "B": "|".join(_MONTHS),
    "p": "AM|PM",
    "Z": "[A-Z]{1,5}",
    "Y": r"\d{4}",
    "y": r"\d{2}",
    "m": "1[0-2]|0[1-9]|[1-9]",
    "d": r"3[01]|[12]\d|0[1-9]|[1-9]| [1-9]",
    "H": r"2[0-3]|[01]\d|\d",
    "I": "1[0-2]|0[1-9]|[1-9]",
    "M": r"[0-5]\d|\d",
    "S": r"6[01]|[0-5]\d|\d",
    "f": "[0-9]{1,6}",
    "w": "[0-6]",
    "u": "[1-7]",
    "j": r"36[0-6]|3[0-5]\d|[12]\d\d|0[1-9]\d|00[1-9]|[1-9]\d|0[1-9]|[1-9]",
    "U": r"5[0-3]|[0-4]\d|\d",
    "W": r"5[0-3]|[0-4]\d|\d",
    "G": r"\d{4}",
    "V": r"5[0-3]|0[1-9]|[1-4]\d|\d",
    "z": r"[+-]\d\d:?[0-5]\d(?::?[0-5]\d(?:\.\d{1,6})?)?|(?-i:Z)",
}


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
    """Return the fields of a date that may have names and spaces, by letter; None if no pattern matches.

    The fields are the groups of `dates.forms`. Where the order is ambiguous, the month is first.
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
    """Parse text like `datetime.strptime` in the C locale; raise ValueError if it does not match the format."""
    if (numeric := numeric_format(datetime_format)) is None:
        return dt.datetime.strptime(text, datetime_format)
    if (translated := numeric.translate(text)) is None:
        raise ValueError(f"time data {text!r} does not match format {datetime_format!r}")
    return dt.datetime.strptime(translated, numeric.format)


def check_format(datetime_format: str) -> None:
    """Raise ValueError or re.error if `parse_format` cannot parse a date that was written in the format."""
    english = re.sub("%.", lambda code: _SAMPLES.get(code[0], code[0]), _expand(datetime_format))
    parse_format(dt.datetime(2001, 2, 3, tzinfo=dt.UTC).strftime(english), datetime_format)


class NumericFormat(NamedTuple):
    """Numeric equivalent of a `strptime` format with names.

    Attributes
    ----------
    format : str
        The equivalent format: numbers with spaces between them.
    pattern : re.Pattern
        Pattern of texts in the original format; its groups are the codes.
    codes : tuple of str
        Codes of the original format, in the order of the numbers.
    """

    format: str
    pattern: re.Pattern[str]
    codes: tuple[str, ...]

    def translate(self, text: str | None) -> str | None:
        """Translate text in the original format to the numeric one; None if it is missing or does not match."""
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
    """Return the numeric equivalent of a format that depends on the locale or time zone; None for other formats."""
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
