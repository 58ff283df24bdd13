"""Strict JSON parser: Python's parser accepts NaN, and silently takes the last of two equal keys."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NoReturn


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raise ValueError for NaN, a key that occurs twice, and very deep nesting.

    Examples
    --------
    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ...
    ValueError: the key "a" occurs twice in it
    """
    try:
        return json.loads(text, object_pairs_hook=check_unique_keys, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def check_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object as a dict; raise ValueError for a key that occurs twice."""
    result = dict(pairs)
    if len(result) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        duplicate = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f'the key "{duplicate}" occurs twice in it')
    return result


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
