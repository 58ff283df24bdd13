"""Checks of the JSON that `Preprocessor.save` writes: its format, digests of learned states, and golden rows.

Golden rows are the encoded rows of sample cells at the time of saving.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import numpy as np

from daskprep.errors import ColumnError, CorruptDatasetError, DaskprepError, FormatVersionError, RejectedValueError
from daskprep.steps.cells import MAX_EXACT_INTEGER
from daskprep.steps.hashing import MAX_HASH_BUCKETS
from daskprep.steps.json_text import parse_json

PLAIN_FORMAT = 1  # without digests: `to_dict`, datasets, and files of the first version
FORMAT = 2
MAX_BYTES = 1 << 30
_MAX_SHOWN_CHARACTERS = 80
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # half of a surrogate pair, which is invalid alone
# Digests leave locations out, since users may edit them: folders differ between machines.
_LOCATION_KEYS = frozenset({"base_dir", "lazy_cache_dir"})
# Learned lengths of rows: altered ones could allocate any amount of memory.
_LENGTH_KEYS = ("max_sequence_length", "size", "vector_size", "max_timeseries_length")
_MAX_VALUES = {**dict.fromkeys(_LENGTH_KEYS, (1 << 31) - 1), "buckets": MAX_HASH_BUCKETS}
TYPES_WITH_LENGTH = frozenset({"category", "set", "bag", "sequence", "text", "vector", "timeseries"})
_LEVELS = ("word", "char")
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("mean", "std", "min", "max", "q1", "q2", "q3", "outlier_fill_value"), (float, int, type(None))),
    **dict.fromkeys(("power", "power_mean", "power_std"), (float, int, type(None))),
    **dict.fromkeys(("quantiles", "edges", "counts"), (list,)),
    **dict.fromkeys(_MAX_VALUES, (int,)),
    **dict.fromkeys(("str2bool", "special_symbols", *_LEVELS), (dict,)),
    **dict.fromkeys(("idx2str", "classes"), (list,)),
    "encodings": (str,),
    "above_zero": (bool,),
    **dict.fromkeys(("fallback_true_label", "written", "cell_type"), (str, type(None))),
}
_ITEM_TYPES = {
    "str2bool": bool, "special_symbols": str, "idx2str": str, "classes": str, "quantiles": float, "edges": float,
    "counts": int,
}  # fmt: skip
_ULPS = 4
_ALTERED_HINT = "it was altered since it was saved: restore the file, or save it again"

# Exceptions that altered values may raise anywhere when the state is read.
_ALTERED_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError,
    re.error,
)  # fmt: skip


@contextmanager
def error_context(what: str) -> Iterator[None]:
    """Convert errors of an altered part of a saved state to CorruptDatasetError; `what` names the part."""
    try:
        yield
    except DaskprepError:
        raise
    except _ALTERED_ERRORS as error:
        raise CorruptDatasetError(
            f"{what} cannot be restored ({type(error).__name__}: {error}): it was altered since it was saved"
        ) from error


def parse_state(data: bytes, name: str) -> dict[str, Any]:
    """Parse the JSON of a saved state, in which large vocabularies are still names of files.

    Raise CorruptDatasetError, with the file's `name`, if it is not valid JSON or not an object.
    """
    try:
        state = parse_json(data)
    except ValueError as error:
        raise CorruptDatasetError(
            f"{name} is not a saved Preprocessor: it is not valid JSON ({error}). It is another file, or was damaged"
        ) from error
    if _SURROGATE.search(data):
        with error_context(name):  # UnicodeEncodeError if one of them has no pair
            _json(state).encode()
    if not isinstance(state, dict):
        raise CorruptDatasetError(f"{name} holds a {type(state).__name__}, not the state of a Preprocessor")
    return state


def check_format(state: Any) -> None:
    """Raise CorruptDatasetError if a state is not a saved Preprocessor, FormatVersionError if its format is newer."""
    fault, features = "", state.get("features") if isinstance(state, Mapping) else None
    if not isinstance(state, Mapping) or "format" not in state or "features" not in state:
        fault = "it has no format and features"
    elif not (isinstance(features, Mapping) and all(isinstance(feature, Mapping) for feature in features.values())):
        fault = f"{str(features)[:_MAX_SHOWN_CHARACTERS]} are not features by name"
    elif type(state["format"]) is not int or state["format"] < 1:
        fault = f"its format is {str(state['format'])[:_MAX_SHOWN_CHARACTERS]}"
    if fault:
        raise CorruptDatasetError(f"this JSON is not a saved Preprocessor: {fault}")
    if state["format"] > FORMAT:
        raise FormatVersionError(
            f"this Preprocessor was saved in format {state['format']}, and this daskprep reads up to {FORMAT}: "
            "upgrade it"
        )


def read_targets(state: Mapping[str, Any], features: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the targets of a saved state; raise CorruptDatasetError for a name not in `features`."""
    targets = state.get("targets", [])
    if not isinstance(targets, list) or not all(isinstance(name, str) and name in features for name in targets):
        raise CorruptDatasetError(
            f"targets: {str(targets)[:_MAX_SHOWN_CHARACTERS]} are not features: it was altered since it was saved"
        )
    return tuple(dict.fromkeys(targets))


def check_learned(learned: Mapping[str, Any]) -> None:
    """Raise TypeError if a learned value that rows depend on has a type or range that is never saved."""
    for key, value in learned.items():
        fits = key not in _TYPES or type(value) in _TYPES[key]
        if fits and key in _ITEM_TYPES:
            fits = set(map(type, value if isinstance(value, list) else value.values())) <= {_ITEM_TYPES[key]}
        if not fits or (key in _MAX_VALUES and not 0 <= value <= _MAX_VALUES[key]):
            raise TypeError(f"{key} is {str(value)[:_MAX_SHOWN_CHARACTERS]}")
        if key in _LEVELS:
            check_learned(value)


# -- digests


def compute_digests(learned: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of each learned value of a feature, by its key."""
    return {key: _digest(value) for key, value in learned.items() if key not in _LOCATION_KEYS}


def add_digest(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with a digest of all but file locations and the learned values, which have digests by feature."""
    features = [
        [name, {key: _drop_locations(value) for key, value in feature.items() if key != "learned"}]
        for name, feature in state["features"].items()
    ]
    rest = {key: value for key, value in state.items() if key != "digest"}
    return {**rest, "digest": _digest({**rest, "features": features})}


def _drop_locations(value: Any) -> Any:
    return (
        {key: item for key, item in value.items() if key not in _LOCATION_KEYS} if isinstance(value, Mapping) else value
    )


def verify(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved state without its digests, in the plain format; raise CorruptDatasetError if one differs."""
    check_format(state)
    if state["format"] == PLAIN_FORMAT:
        return dict(state)
    features = {name: _verify_feature(name, feature) for name, feature in state["features"].items()}
    with error_context("the saved Preprocessor"):
        if "digest" in state and state["digest"] != add_digest(state)["digest"]:  # older files have none
            raise CorruptDatasetError(
                "the saved Preprocessor was edited or damaged: its parameters, targets, split, golden rows or names of "
                "features are not what was saved. Restore the file. To change it on purpose, change the result of "
                "Preprocessor.load(path).to_dict(), and save Preprocessor.from_dict(state)"
            )
    plain = {key: value for key, value in state.items() if key != "digest"}
    return {**plain, "format": PLAIN_FORMAT, "features": features}


def _verify_feature(name: str, feature: Mapping[str, Any]) -> dict[str, Any]:
    """Return a feature's state without digests; raise CorruptDatasetError if a learned value's digest differs."""
    digests, learned = feature.get("digests"), feature.get("learned")
    if not isinstance(digests, Mapping) or not isinstance(learned, Mapping):
        raise CorruptDatasetError(f'feature "{name}" has no digests of its learned state: {_ALTERED_HINT}')
    if "golden" not in feature:
        raise CorruptDatasetError(f'feature "{name}" has no golden rows: {_ALTERED_HINT}')
    with error_context(f'feature "{name}"'):
        actual = compute_digests(learned)
    for key in {**digests, **actual}:
        if digests.get(key) != actual.get(key):
            raise CorruptDatasetError(f'feature "{name}": its learned "{key}" is not what was saved; {_ALTERED_HINT}')
    return {key: value for key, value in feature.items() if key != "digests"}


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:16]


def canonical(value: Any) -> str:
    """Return the canonical text of a JSON value, by RFC 8785.

    Examples
    --------
    >>> canonical({"b": [1.0, 1e-7, True], "a": "é"})
    '{"a":"é","b":[1,1e-7,true]}'
    """
    if isinstance(value, Mapping):
        # A custom type may have numbers as keys, which JSON converts to text.
        named = {key if isinstance(key, str) else _json({key: 0})[2:-4]: item for key, item in value.items()}
        pairs = sorted(named.items(), key=lambda pair: pair[0].encode("utf-16-be"))
        return "{" + ",".join(f"{_json(key)}:{canonical(item)}" for key, item in pairs) + "}"
    if isinstance(value, list | tuple):
        kinds = set(map(type, value))
        if kinds == {str}:
            return _write_texts(value)
        if kinds == {int} and max(value) <= MAX_EXACT_INTEGER and min(value) >= -MAX_EXACT_INTEGER:
            return _json(value)
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, float) or (type(value) is int and abs(value) > MAX_EXACT_INTEGER):
        return _write_number(float(value))
    return _json(value)


_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def _write_texts(texts: Sequence[str]) -> str:
    """Return strings as a JSON list: without characters to escape, in half the time of `json`."""
    joined = '","'.join(texts)
    plain = joined.isprintable() and "\\" not in joined and joined.count('"') == 2 * len(texts) - 2
    return f'["{joined}"]' if plain else _json(texts)


def _write_number(value: float) -> str:
    """Return a double as JavaScript writes it: with the shortest digits that parse to the same double."""
    if value == 0:
        return "0"
    number = Decimal(repr(value)).normalize()
    if not number.is_finite():
        raise ValueError(f"{value} is not a JSON number")
    return f"{number:f}" if -7 < number.adjusted() < 21 else f"{number:e}"


# -- golden rows


def check_golden(
    name: str, feature: Mapping[str, Any], encode: Callable[[Sequence[Any]], Mapping[str, np.ndarray]]
) -> None:
    """Raise CorruptDatasetError unless a feature's golden cells still encode to its golden rows.

    `encode` returns the arrays of cells by the suffix of the output.
    """
    with error_context(f'the golden rows of feature "{name}"'):
        cells, arrays = feature["golden"]["cells"], feature["golden"]["arrays"]
        if not cells:
            return
        if any(len(array["rows"]) != len(cells) for array in arrays.values()):
            raise CorruptDatasetError(
                f'feature "{name}": the number of its golden rows is not {len(cells):,}; {_ALTERED_HINT}'
            )
        # The shortest row counts: all rows have its length, unless one was altered to allow a longer one.
        longest = max(min(_width(row) for row in array["rows"]) for array in arrays.values())
        if feature["type"] in TYPES_WITH_LENGTH and any(
            length > longest for length in _learned_lengths(feature["learned"])
        ):
            raise CorruptDatasetError(f'feature "{name}": its rows are longer than when it was saved; {_ALTERED_HINT}')
        try:
            encoded = encode([None if cell is None else str(cell) for cell in cells])
        except (ColumnError, RejectedValueError) as error:
            raise CorruptDatasetError(
                f'feature "{name}" cannot encode its golden cells {cells}: {error}; {_ALTERED_HINT}'
            ) from error
        if encoded.keys() != arrays.keys():
            raise CorruptDatasetError(
                f'feature "{name}" has outputs {list(encoded)}, but {list(arrays)} when saved; {_ALTERED_HINT}'
            )
        for output, array in arrays.items():
            _check_rows(f'feature "{name}"', cells, encoded[output], array)


def _width(row: Any) -> int:
    """Return the number of values in a nested list."""
    return sum(map(_width, row)) if isinstance(row, list) else 1


def _learned_lengths(learned: Mapping[str, Any]) -> Iterator[int]:
    """Yield the learned lengths of rows, also of the levels of texts."""
    for key, value in learned.items():
        if isinstance(value, Mapping) and key in _LEVELS:
            yield from _learned_lengths(value)
        elif key in _LENGTH_KEYS:
            yield value


def _check_rows(what: str, cells: Sequence[Any], encoded: np.ndarray, saved: Mapping[str, Any]) -> None:
    """Raise CorruptDatasetError unless the `encoded` golden cells have the saved dtype and rows."""
    if encoded.dtype.name != saved["dtype"]:
        raise CorruptDatasetError(
            f"{what} encodes to {encoded.dtype}, but to {saved['dtype']} when saved; {_ALTERED_HINT}"
        )
    for cell, row, expected in zip(cells, encoded, saved["rows"], strict=True):
        if not _equal(row, expected):
            raise CorruptDatasetError(
                f"{what} encodes {cell!r} to {str(row.tolist())[:_MAX_SHOWN_CHARACTERS]}, but to "
                f"{str(expected)[:_MAX_SHOWN_CHARACTERS]} when saved: the file was altered since, or this version "
                "encodes differently: restore the file, or fit again"
            )


def _equal(row: Any, expected: Any) -> bool:
    """Return whether a row equals the saved one; floats may differ as logarithms do between processors."""
    if row.dtype.kind != "f":
        return bool(row.tolist() == expected)
    expected_array = np.array(expected, np.float64)
    tolerance = _ULPS * float(np.finfo(row.dtype).eps) * float(np.abs(expected_array).max(initial=0.0))
    return expected_array.shape == row.shape and bool((np.abs(row - expected_array) <= tolerance).all())
