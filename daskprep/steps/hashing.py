"""Stable hash of a single text into buckets; `permutation.hash_strings` is the same hash for columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

BUCKET_KEY = 0
MAX_HASH_BUCKETS = 1 << 24  # an embedding has a row for each
SEPARATOR = "|"  # between the parts of a cross
MISSING_PART = "\\-"  # no other part can equal it, since backslashes of parts are doubled

_WORD_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_LENGTH_FACTOR = 0xD1342543DE82EF95


def bucket_of(text: str, buckets: int) -> int:
    """Return the bucket of a text, from 0 to `buckets` - 1."""
    data = text.encode()
    total = 0
    for word_number, start in enumerate(range(0, len(data), 8), 1):
        word = int.from_bytes(data[start : start + 8], "little")
        total += _mix(word ^ (word_number * _GOLDEN + BUCKET_KEY & _WORD_MASK))
    return _mix((total & _WORD_MASK ^ BUCKET_KEY) + len(data) * _LENGTH_FACTOR & _WORD_MASK) % buckets


def bucket_names(numbers: Iterable[int]) -> list[str]:
    """Return the label of each bucket number, such as "<BUCKET 3>"."""
    return [f"<BUCKET {number}>" for number in numbers]


def join_parts(parts: Sequence[str | None]) -> str | None:
    """Join the parts of a cross to one text, unique by escaping; None if all parts are missing."""
    if all(part is None for part in parts):
        return None
    return SEPARATOR.join(MISSING_PART if part is None else _escape(part) for part in parts)


def _escape(part: str) -> str:
    return part.replace("\\", "\\\\").replace(SEPARATOR, "\\" + SEPARATOR)


def _mix(word: int) -> int:
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _WORD_MASK
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD_MASK
    return word ^ word >> 31
