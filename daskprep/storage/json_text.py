"""JSON as the standard has it: Python's own reader takes more, and the last of two equal keys without a word."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def parse_json(text: str | bytes) -> Any:
    """Return the value that a text holds; ValueError for NaN, a key that stands twice, and very deep nesting.

    Examples
    --------
    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ...
    ValueError: the key "a" stands twice in it
    """
    try:
        return json.loads(text, object_pairs_hook=unique_keys, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON as a dict; ValueError for a key that stands twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f'the key "{key}" stands twice in it')
        found[key] = value
    return found


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
