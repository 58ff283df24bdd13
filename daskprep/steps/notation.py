"""Numbers as people write them, such as "$1,299.50", "1.299,50 €", "(1,200)", "12 %", "3:45:10" and "1h 30m".

The expressions mean the same to Python's `re` and to RE2, by which whole columns are read.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from daskprep.errors import ConfigError
from daskprep.steps.cells import number_of

MAX_CHARACTERS = 64  # characters of a number
AMBIGUOUS = "[+-]?[1-9][0-9]{0,2}[.][0-9]{3}"  # a plain number, or thousands beside a decimal comma
POWERS = {"k": "e3", "K": "e3", "M": "e6", "B": "e9"}
# The end of a unit behind digits, and no exponent.
_POWER = "([0-9].*(?:[A-DF-Za-df-z]|[^0-9.][eE]))"
# What is written otherwise for the same. "(5)" is -5, and the sign of "$-5" comes first.
REPLACEMENTS = (
    ("[\u00a0\u2000-\u200a\u202f\u205f\u3000]", " "), ("\u2019", "'"), ("\u2212", "-"),
    (f"{_POWER}2$", "\\1\u00b2"), (f"{_POWER}3$", "\\1\u00b3"),
    (r"^([^()0-9]*)\(([^()]+)\)$", r"-\1\2"), (r"^([^0-9+-]*[^0-9A-Za-z.+-])([+-])", r"\2\1"),
)  # fmt: skip
NON_ASCII_REPLACEMENTS = 3  # of these are of characters beyond ASCII
# Letters and signs of a unit: no space, no digit or fraction in any form, no dash, no sign of arithmetic.
_LETTERS = (
    "A-Za-z$\u00a1-\u00b0\u00b4-\u00b8\u00ba\u00bb\u00bf-\u00d6\u00d8-\u00f6\u00f8-\u1fff\u200b-\u200f\u2016-\u2018"
    "\u201a-\u202e\u2030-\u205e\u20a0-\u214f\u2190-\u21ff\u2300-\u2fff\u3001-\uff0f\uff1a-\U0010ffff"
)
_WORD = f"/?[%{_LETTERS}][%{_LETTERS}./^*]*[\u00b2\u00b3]?"
_UNIT = f"(?:{_WORD}(?: {_WORD}){{0,2}}|[+#\"'])"
_INDIAN = "[1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3}"
_GROUPS = "|".join(f"(?:{mark}[0-9]{{3}})+" for mark in (",", r"\.", "'", " "))
_SIGN, _CLOCK = "(?P<sign>[+-]?)", "(?P<h>[0-9]{1,4}):(?P<m>[0-5][0-9])"
_EXPONENT = "(?:[eE][+-]?[0-9]+)?"
AMOUNT = (
    rf"{_SIGN} ?(?:(?P<before>[{_LETTERS}]*[{_LETTERS}]\.|[{_LETTERS}]+) ?)?"
    rf"(?P<number>(?:(?:[1-9][0-9]{{0,2}}(?:{_GROUPS})|{_INDIAN}|[0-9]+)(?:[.,][0-9]+)?|[.,][0-9]+){_EXPONENT})"
    rf"(?:(?P<times>[kKMB])(?: (?P<then>{_UNIT}))?| ?(?P<behind>{_UNIT}))?"
)
SECONDS = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}
_WORDS = {"w": "w|weeks?", "d": "d|days?", "h": "h|hrs?|hours?", "m": "m|mins?|minutes?", "s": "s|secs?|seconds?"}
_DECIMAL = r"[0-9]+(?:\.[0-9]+)?"
HOURS = _SIGN + _CLOCK
CLOCK = rf"{_SIGN}(?:(?P<d>[0-9]+) ?(?:d|days?),? ?(?P<plus>\+?))?{_CLOCK}:(?P<s>[0-5][0-9](?:\.[0-9]+)?)"
ISO = (
    rf"{_SIGN}P(?:(?P<w>{_DECIMAL})W)?(?:(?P<d>{_DECIMAL})D)?"
    rf"(?:T(?:(?P<h>{_DECIMAL})H)?(?:(?P<m>{_DECIMAL})M)?(?:(?P<s>{_DECIMAL})S)?)?"
)
DURATION_PATTERNS = (
    CLOCK,
    ISO,
    _SIGN + "".join(f"(?:(?P<{one}>{_DECIMAL}) ?(?:{_WORDS[one]}),? ?)?" for one in SECONDS),
)


class Notation(NamedTuple):
    """How the numbers of a column are written: what they match, and their marks; durations match others.

    `affix_characters` are the characters that may stand before and behind digits, None if numbers have some of them too.
    """

    patterns: tuple[str, ...]
    decimal: str = "."
    thousands: str = ","
    affix_characters: str | None = None

    @property
    def is_duration(self) -> bool:
        return len(self.patterns) > 1


def digits_pattern(decimal: str, thousands: str) -> str:
    """Return the expression of digits with these marks, which are expressions themselves."""
    integer_pattern = f"{f'{_INDIAN}|' * (',' in thousands)}[1-9][0-9]{{0,2}}(?:{thousands}[0-9]{{3}})+|[0-9]+"
    return f"(?:(?:{integer_pattern})(?:{decimal}[0-9]+)?|{decimal}[0-9]+){_EXPONENT}"


def parse_amount(text: str) -> dict[str, str] | None:
    """Return the parts of a number with or without a unit, None of what is no such number."""
    matched = None if full_match(ISO, text) else full_match(AMOUNT, text)
    if matched is None or (matched["before"] and (matched["then"] or matched["behind"])):
        return None
    suffix = matched["then"] or matched["behind"] or ""
    unit = re.sub("(?<=[A-Za-z]{2})s$", "", matched["before"] or suffix)
    return {**matched.groupdict(""), "behind": suffix, "unit": unit}


@functools.lru_cache(1024)
def derive_notation(example: str) -> Notation:
    """Return the style of a number, or raise ConfigError for what is none."""
    text = _tidy(example)
    amount = parse_amount(text)
    if amount is None:
        notation = Notation((*DURATION_PATTERNS, HOURS) if full_match(HOURS, text) else DURATION_PATTERNS)
    else:
        decimal, thousands = _find_marks(amount["number"])
        unit = re.escape(amount["unit"]) + "s?" * (re.search("[A-Za-z]{2}$", amount["unit"]) is not None)
        number = f"(?P<number>{digits_pattern(re.escape(decimal), re.escape(thousands))})"
        times = "".join(POWERS) * bool(amount["times"])
        number += f"(?P<times>{f'[{times}]?' * bool(times)})"
        either = f"(?:{unit} ?)?{number}(?: ?{unit})?" if unit else number
        affix_characters = None if set(amount["unit"]) & {*".,'", *times} else f"{amount['unit']}s +-"
        notation = Notation((f"{_SIGN} ?{either}",), decimal, thousands, affix_characters)
    if parse_number(example, notation) is None:
        raise ConfigError(
            f'{example!r} is not a number, so it cannot show the notation: give one such as "$1,234.50", '
            '"1.234,5 kg" or "1:30:00"'
        )
    return notation


def _find_marks(number: str) -> tuple[str, str]:
    """Return the marks before decimals and between thousands; those of English, unless the digits say otherwise."""
    marks = re.findall("[,.' ]", number)
    if len(set(marks)) == 2:
        return marks[-1], marks[0]
    if marks and (len(marks) > 1 or marks[0] in "' " or re.fullmatch("[1-9][0-9]{0,2},[0-9]{3}", number)):
        return "," if marks[0] == "." else ".", marks[0]
    return (",", ".") if marks == [","] else (".", ",")


def parse_number(text: str, notation: Notation) -> float | None:
    """Return the number that a text states in a style, None if it states none."""
    text = _tidy(text)
    matched = next(filter(None, (full_match(pattern, text) for pattern in notation.patterns)), None)
    if matched is None or not re.search("[0-9]", text):
        return None
    if notation.is_duration:
        return _seconds(matched.groupdict("0"))
    digits = matched["number"].replace(notation.thousands, "").replace(notation.decimal, ".")
    return number_of(matched["sign"] + digits + POWERS.get(matched["times"], ""))


def _seconds(fields: dict[str, str]) -> float:
    weeks, days, hours, minutes, seconds = (float(fields.get(one, "0")) * unit for one, unit in SECONDS.items())
    clock = hours + minutes + seconds  # as columns add them; `sum` of Python 3.12 adds otherwise
    if fields["sign"] != "-":
        return weeks + days + clock
    return (clock if fields.get("plus") == "+" else -clock) - (weeks + days)


def _tidy(text: str) -> str:
    text = text.strip()
    if len(text) > MAX_CHARACTERS:
        return ""
    for pattern, other in REPLACEMENTS[NON_ASCII_REPLACEMENTS:] if text.isascii() else REPLACEMENTS:
        text = _compiled(pattern).sub(other, text)
    return text


def full_match(pattern: str, text: str) -> re.Match[str] | None:
    """Return what the whole of a text is to an expression."""
    return _compiled(pattern).fullmatch(text)


_compiled = functools.lru_cache(1024)(re.compile)
