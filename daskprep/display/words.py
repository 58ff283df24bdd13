"""Numbers, sizes and names as human-readable text of bounded length."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice

_UNITS = ("", "KB", "MB", "GB", "TB")
_MAX_NAME_CHARACTERS = 60

YEARS = (1500, 2200)


def format_count(amount: int, noun: str, plural: str | None = None) -> str:
    """Return an amount with its noun in the singular or plural.

    >>> format_count(1, "row"), format_count(2000, "row"), format_count(2, "process", "processes")
    ('1 row', '2,000 rows', '2 processes')
    """
    return f"{amount:,} {noun if amount == 1 else plural or f'{noun}s'}"


def format_bytes(amount: float) -> str:
    """Return a number of bytes in the unit with the shortest number.

    >>> format_bytes(1), format_bytes(1_234_000)
    ('1 byte', '1.2 MB')
    """
    power = 0
    while amount >= 1000 and power < len(_UNITS) - 1:
        amount, power = amount / 1000, power + 1
    return f"{amount:,.1f} {_UNITS[power]}" if power else format_count(int(amount), "byte")


def format_share(part: float, total: float) -> str:
    """Return the share of a part in a total in percent; only an empty part is 0 %, and only a full one 100 %.

    >>> format_share(1, 8), format_share(1, 10_000), format_share(0, 0)
    ('12.5 %', '<0.1 %', '0 %')
    """
    if not part:
        return "0 %"
    percent = 100 * part / total
    return "<0.1 %" if percent < 0.1 else "100 %" if part == total else f"{min(percent, 99.9):.1f} %"


def format_number(value: float) -> str:
    """Return a number with about four significant digits.

    >>> format_number(1234567.0), format_number(0.000123), format_number(3.0), format_number(2.34567)
    ('1,234,567', '0.000123', '3', '2.346')
    """
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if 1000 <= abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def truncate(text: str, limit: int = _MAX_NAME_CHARACTERS) -> str:
    """Return printable text of at most `limit` characters, cut with an ellipsis."""
    return escape_unprintable(text if len(text) <= limit else f"{text[: limit - 1]}…")


def quote(text: str, limit: int) -> str:
    """Return the Python literal of a text, cut to `limit` characters."""
    return repr(text if len(text) <= limit else f"{text[: limit - 1]}…")


def join_names(names: Sequence[str], max_names: int) -> str:
    """Return the first names, each truncated, and the number of further names.

    >>> join_names(["a", "b", "c"], 2)
    'a, b, and 1 more'
    """
    more = [f"and {len(names) - max_names:,} more"] if len(names) > max_names else []
    return ", ".join([*map(truncate, names[:max_names]), *more])


def escape_unprintable(text: str) -> str:
    """Return text with unprintable characters, and those that change the text direction, as Python escapes."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def format_value(value: object, limit: int) -> str:
    """Return one value of a table: floats with six digits, times without needless zeros, at most `limit` characters.

    >>> format_value(1994.0000002, 9), format_value(0.1 + 0.2, 9), format_value(1e-7, 9)
    ('1994', '0.3', '1e-07')
    >>> format_value(["a", "b"], 9)
    'a b'
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            return "" if math.isnan(value) else str(value)
        is_integral = abs(value) < 1e15 and abs(value - round(value)) <= 1e-7 * abs(value)
        return str(round(value)) if is_integral else f"{value:.6g}"
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return truncate(" ".join(format_value(item, limit) for item in islice(value, limit)), limit)
    return "" if value is None else truncate(str(value).removesuffix(" 00:00:00"), limit)
