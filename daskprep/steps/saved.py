"""What `Preprocessor.save` wrote: its format, digests of what was learned, and rows that cells were seen to become."""

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
from daskprep.steps.hashing import MAX_HASH_BUCKETS
from daskprep.steps.json_text import parse_json

PLAIN_FORMAT = 1  # of `to_dict`, of datasets, and of files before 2: no digests
FORMAT = 2
MAX_BYTES = 1 << 30
_MAX_SHOWN_CHARACTERS = 80
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # one of a pair; alone it is no character
_MAX_EXACT_INTEGER = 1 << 53
# Locations may be edited in a saved file: a folder can be elsewhere on the machine that reads it.
_LOCATION_KEYS = frozenset({"base_dir", "lazy_cache_dir"})
# Lengths of rows, by which a file of a few bytes could ask for any amount of memory, and the types that have them.
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

# What reading a part raises whose types and numbers are not those of any that was saved.
_ALTERED_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError,
    re.error,
)  # fmt: skip


@contextmanager
def error_context(what: str) -> Iterator[None]:
    """Turn whatever goes wrong with a part of a state that nobody saved into an error that names it."""
    try:
        yield
    except DaskprepError:
        raise
    except _ALTERED_ERRORS as error:
        raise CorruptDatasetError(
            f"{what} cannot be restored ({type(error).__name__}: {error}): it was altered since it was saved"
        ) from error


def parse_state(data: bytes, name: str) -> dict[str, Any]:
    """Return the JSON of a state as it lies in the file, where it names large vocabularies in place of holding them."""
    try:
        state = parse_json(data)
    except ValueError as error:
        raise CorruptDatasetError(
            f"{name} is not valid JSON ({error}), as every saved Preprocessor is: it is another file, or was damaged"
        ) from error
    if _SURROGATE.search(data):
        with error_context(name):
            _json(state).encode()
    if not isinstance(state, dict):
        raise CorruptDatasetError(f"{name} holds {type(state).__name__} in place of what a Preprocessor learned")
    return state


def check_format(state: Any) -> None:
    """Raise unless the state is one that this version can read."""
    fault, features = "", state.get("features") if isinstance(state, Mapping) else None
    if not isinstance(state, Mapping) or "format" not in state or "features" not in state:
        fault = "it has no format and features"
    elif not (isinstance(features, Mapping) and all(isinstance(one, Mapping) for one in features.values())):
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
    """Return the names of the features that are targets; CorruptDatasetError for what is none of the features."""
    targets = state.get("targets", [])
    if not isinstance(targets, list) or not all(isinstance(name, str) and name in features for name in targets):
        raise CorruptDatasetError(
            f"targets: {str(targets)[:_MAX_SHOWN_CHARACTERS]} are not features: it was altered since it was saved"
        )
    return tuple(dict.fromkeys(targets))


def check_learned(learned: Mapping[str, Any]) -> None:
    """Raise TypeError where what rows depend on is of another type than any that is saved."""
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
    """Return a digest of each value that was learned, by its name."""
    return {key: _digest(value) for key, value in learned.items() if key not in _LOCATION_KEYS}


def add_digest(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with one digest of everything but what was learned, which the digests of features cover."""
    features = [
        [name, {key: _drop_locations(value) for key, value in one.items() if key != "learned"}]
        for name, one in state["features"].items()
    ]
    rest = {key: value for key, value in state.items() if key != "digest"}
    return {**rest, "digest": _digest({**rest, "features": features})}


def _drop_locations(value: Any) -> Any:
    return (
        {key: one for key, one in value.items() if key not in _LOCATION_KEYS} if isinstance(value, Mapping) else value
    )


def verify(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state without its digests, which must match."""
    check_format(state)
    if state["format"] == PLAIN_FORMAT:
        return dict(state)
    features = {name: _verify_feature(name, one) for name, one in state["features"].items()}
    with error_context("the saved Preprocessor"):
        if "digest" in state and state["digest"] != add_digest(state)["digest"]:  # files of before have none
            raise CorruptDatasetError(
                "the saved Preprocessor was edited or damaged: its parameters, targets, split, golden rows or names of "
                "features are not what was saved. Restore the file. To change it on purpose, change the result of "
                "Preprocessor.load(path).to_dict(), and save Preprocessor.from_dict(state)"
            )
    plain = {key: value for key, value in state.items() if key != "digest"}
    return {**plain, "format": PLAIN_FORMAT, "features": features}


def _verify_feature(name: str, feature: Mapping[str, Any]) -> dict[str, Any]:
    digests, learned = feature.get("digests"), feature.get("learned")
    if not isinstance(digests, Mapping) or not isinstance(learned, Mapping):
        raise CorruptDatasetError(f'feature "{name}" has no digests of what it learned: {_ALTERED_HINT}')
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
    """Return the one text of a JSON value that RFC 8785 gives it.

    Examples
    --------
    >>> canonical({"b": [1.0, 1e-7, True], "a": "é"})
    '{"a":"é","b":[1,1e-7,true]}'
    """
    if isinstance(value, Mapping):
        # A type of one's own may have numbers as keys, of which JSON makes texts.
        named = {key if isinstance(key, str) else _json({key: 0})[2:-4]: one for key, one in value.items()}
        pairs = sorted(named.items(), key=lambda pair: pair[0].encode("utf-16-be"))
        return "{" + ",".join(f"{_json(key)}:{canonical(one)}" for key, one in pairs) + "}"
    if isinstance(value, list | tuple):
        kinds = set(map(type, value))
        if kinds == {str}:
            return _write_texts(value)
        if kinds == {int} and max(value) <= _MAX_EXACT_INTEGER and min(value) >= -_MAX_EXACT_INTEGER:
            return _json(value)
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, float) or (type(value) is int and abs(value) > _MAX_EXACT_INTEGER):
        return _write_number(float(value))
    return _json(value)


_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def _write_texts(texts: Sequence[str]) -> str:
    """Write a vocabulary: where nothing is to be escaped, in half the time that `json` takes."""
    joined = '","'.join(texts)
    plain = joined.isprintable() and "\\" not in joined and joined.count('"') == 2 * len(texts) - 2
    return f'["{joined}"]' if plain else _json(texts)


def _write_number(value: float) -> str:
    """Write a double as JavaScript does: the shortest digits that give it back."""
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
    """Raise CorruptDatasetError unless cells become the rows that they became when they were saved."""
    with error_context(f'the golden rows of feature "{name}"'):
        cells, arrays = feature["golden"]["cells"], feature["golden"]["arrays"]
        if not cells:
            return
        if any(len(one["rows"]) != len(cells) for one in arrays.values()):
            raise CorruptDatasetError(
                f'feature "{name}": its golden rows are not {len(cells):,} in number; {_ALTERED_HINT}'
            )
        # Of the shortest row, or a long one beside many cells would ask for any amount of memory.
        longest = max(min(_width(row) for row in one["rows"]) for one in arrays.values())
        if feature["type"] in TYPES_WITH_LENGTH and any(
            length > longest for length in _learned_lengths(feature["learned"])
        ):
            raise CorruptDatasetError(
                f'feature "{name}": its rows are longer than those it was saved with; {_ALTERED_HINT}'
            )
        try:
            encoded = encode([None if cell is None else str(cell) for cell in cells])
        except (ColumnError, RejectedValueError) as error:
            raise CorruptDatasetError(
                f'feature "{name}" cannot encode {cells} as it did: {error}; {_ALTERED_HINT}'
            ) from error
        if encoded.keys() != arrays.keys():
            raise CorruptDatasetError(
                f'feature "{name}" gives {list(encoded)}, and gave {list(arrays)}; {_ALTERED_HINT}'
            )
        for output, one in arrays.items():
            _check_rows(f'feature "{name}"', cells, encoded[output], one)


def _width(row: Any) -> int:
    return sum(map(_width, row)) if isinstance(row, list) else 1


def _learned_lengths(learned: Mapping[str, Any]) -> Iterator[int]:
    for key, value in learned.items():
        if isinstance(value, Mapping) and key in _LEVELS:
            yield from _learned_lengths(value)
        elif key in _LENGTH_KEYS:
            yield value


def _check_rows(what: str, cells: Sequence[Any], encoded: np.ndarray, saved: Mapping[str, Any]) -> None:
    if encoded.dtype.name != saved["dtype"]:
        raise CorruptDatasetError(f"{what} encodes to {encoded.dtype}, and did to {saved['dtype']}; {_ALTERED_HINT}")
    for cell, row, expected in zip(cells, encoded, saved["rows"], strict=True):
        if not _equal(row, expected):
            raise CorruptDatasetError(
                f"{what} encodes {cell!r} to {str(row.tolist())[:_MAX_SHOWN_CHARACTERS]}, and did to {str(expected)[:_MAX_SHOWN_CHARACTERS]}: the file "
                "was altered since it was saved, or this version encodes otherwise: restore the file, or fit again"
            )


def _equal(row: Any, expected: Any) -> bool:
    """Tell whether a row is what it was; floats up to what processors differ by in a logarithm."""
    if row.dtype.kind != "f":
        return bool(row.tolist() == expected)
    expected_array = np.array(expected, np.float64)
    tolerance = _ULPS * float(np.finfo(row.dtype).eps) * float(np.abs(expected_array).max(initial=0.0))
    return expected_array.shape == row.shape and bool((np.abs(row - expected_array) <= tolerance).all())
