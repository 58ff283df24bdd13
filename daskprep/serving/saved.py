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
from daskprep.serving.hashing import MOST_BUCKETS
from daskprep.serving.json_text import parse_json

PLAIN_FORMAT = 1  # of `to_dict`, of datasets, and of files before 2: no digests
FORMAT = 2
LIMIT_BYTES = 1 << 30
_SHOWN = 80
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # one of a pair; alone it is no character
_EXACT = 1 << 53
# Locations may be edited in a saved file: a folder can be elsewhere on the machine that reads it.
_PLACES = frozenset({"base_dir", "lazy_cache_dir"})
# Lengths of rows, by which a file of a few bytes could ask for any amount of memory, and the types that have them.
_LENGTHS = ("max_sequence_length", "size", "vector_size", "max_timeseries_length")
_MOST = {**dict.fromkeys(_LENGTHS, (1 << 31) - 1), "buckets": MOST_BUCKETS}
SIZED = frozenset({"category", "set", "bag", "sequence", "text", "vector", "timeseries"})
_LEVELS = ("word", "char")
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("mean", "std", "min", "max", "q1", "q2", "q3", "outlier_fill_value"), (float, int, type(None))),
    **dict.fromkeys(("power", "power_mean", "power_std"), (float, int, type(None))),
    **dict.fromkeys(("quantiles", "edges", "counts"), (list,)),
    **dict.fromkeys(_MOST, (int,)),
    **dict.fromkeys(("str2bool", "special_symbols", *_LEVELS), (dict,)),
    **dict.fromkeys(("idx2str", "classes"), (list,)),
    "encodings": (str,),
    "above_zero": (bool,),
    **dict.fromkeys(("fallback_true_label", "written", "cell_type"), (str, type(None))),
}
_WITHIN = {
    "str2bool": bool, "special_symbols": str, "idx2str": str, "classes": str, "quantiles": float, "edges": float,
    "counts": int,
}  # fmt: skip
_ULPS = 4
_SPOILT = "it was altered since it was saved: restore the file, or save it again"

# What reading a part raises whose types and numbers are not those of any that was saved.
_ALTERED = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError,
    re.error,
)  # fmt: skip


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Turn whatever goes wrong with a part of a state that nobody saved into an error that names it."""
    try:
        yield
    except DaskprepError:
        raise
    except _ALTERED as error:
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
        with telling(name):
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
        fault = f"{str(features)[:_SHOWN]} are not features by name"
    elif type(state["format"]) is not int or state["format"] < 1:
        fault = f"its format is {str(state['format'])[:_SHOWN]}"
    if fault:
        raise CorruptDatasetError(f"this JSON is not a saved Preprocessor: {fault}")
    if state["format"] > FORMAT:
        raise FormatVersionError(
            f"this Preprocessor was saved in format {state['format']}, and this daskprep reads up to {FORMAT}: "
            "upgrade it"
        )


def restored_targets(state: Mapping[str, Any], features: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the features that are targets; CorruptDatasetError for what is none of the features."""
    targets = state.get("targets", [])
    if not isinstance(targets, list) or not all(isinstance(name, str) and name in features for name in targets):
        raise CorruptDatasetError(
            f"targets: {str(targets)[:_SHOWN]} are not features: it was altered since it was saved"
        )
    return tuple(dict.fromkeys(targets))


def check_learned(learned: Mapping[str, Any]) -> None:
    """Raise TypeError where what rows depend on is of another type than any that is saved."""
    for key, value in learned.items():
        fits = key not in _TYPES or type(value) in _TYPES[key]
        if fits and key in _WITHIN:
            fits = set(map(type, value if isinstance(value, list) else value.values())) <= {_WITHIN[key]}
        if not fits or (key in _MOST and not 0 <= value <= _MOST[key]):
            raise TypeError(f"{key} is {str(value)[:_SHOWN]}")
        if key in _LEVELS:
            check_learned(value)


# -- digests


def digests_of(learned: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of each value that was learned, by its name."""
    return {key: _digest(value) for key, value in learned.items() if key not in _PLACES}


def with_digest(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with one digest of everything but what was learned, which the digests of features cover."""
    features = [
        [name, {key: _without_places(value) for key, value in one.items() if key != "learned"}]
        for name, one in state["features"].items()
    ]
    rest = {key: value for key, value in state.items() if key != "digest"}
    return {**rest, "digest": _digest({**rest, "features": features})}


def _without_places(value: Any) -> Any:
    return {key: one for key, one in value.items() if key not in _PLACES} if isinstance(value, Mapping) else value


def verified(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state without its digests, which must match."""
    check_format(state)
    if state["format"] == PLAIN_FORMAT:
        return dict(state)
    features = {name: _verified(name, one) for name, one in state["features"].items()}
    with telling("the saved Preprocessor"):
        if "digest" in state and state["digest"] != with_digest(state)["digest"]:  # files of before have none
            raise CorruptDatasetError(
                "the saved Preprocessor was edited or damaged: its parameters, targets, split, golden rows or names of "
                "features are not what was saved. Restore the file. To change it on purpose, change the result of "
                "Preprocessor.load(path).to_dict(), and save Preprocessor.from_dict(state)"
            )
    plain = {key: value for key, value in state.items() if key != "digest"}
    return {**plain, "format": PLAIN_FORMAT, "features": features}


def _verified(name: str, feature: Mapping[str, Any]) -> dict[str, Any]:
    digests, learned = feature.get("digests"), feature.get("learned")
    if not isinstance(digests, Mapping) or not isinstance(learned, Mapping):
        raise CorruptDatasetError(f'feature "{name}" has no digests of what it learned: {_SPOILT}')
    if "golden" not in feature:
        raise CorruptDatasetError(f'feature "{name}" has no golden rows: {_SPOILT}')
    with telling(f'feature "{name}"'):
        found = digests_of(learned)
    for key in {**digests, **found}:
        if digests.get(key) != found.get(key):
            raise CorruptDatasetError(f'feature "{name}": its learned "{key}" is not what was saved; {_SPOILT}')
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
            return _texts(value)
        if kinds == {int} and max(value) <= _EXACT and min(value) >= -_EXACT:
            return _json(value)
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, float) or (type(value) is int and abs(value) > _EXACT):
        return _number(float(value))
    return _json(value)


_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def _texts(texts: Sequence[str]) -> str:
    """Write a vocabulary: where nothing is to be escaped, in half the time that `json` takes."""
    joined = '","'.join(texts)
    plain = joined.isprintable() and "\\" not in joined and joined.count('"') == 2 * len(texts) - 2
    return f'["{joined}"]' if plain else _json(texts)


def _number(value: float) -> str:
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
    with telling(f'the golden rows of feature "{name}"'):
        cells, arrays = feature["golden"]["cells"], feature["golden"]["arrays"]
        if not cells:
            return
        if any(len(one["rows"]) != len(cells) for one in arrays.values()):
            raise CorruptDatasetError(f'feature "{name}": its golden rows are not {len(cells):,} in number; {_SPOILT}')
        # Of the shortest row, or a long one beside many cells would ask for any amount of memory.
        longest = max(min(_width(row) for row in one["rows"]) for one in arrays.values())
        if feature["type"] in SIZED and any(length > longest for length in _lengths(feature["learned"])):
            raise CorruptDatasetError(f'feature "{name}": its rows are longer than those it was saved with; {_SPOILT}')
        try:
            found = encode([None if cell is None else str(cell) for cell in cells])
        except (ColumnError, RejectedValueError) as error:
            raise CorruptDatasetError(
                f'feature "{name}" cannot encode {cells} as it did: {error}; {_SPOILT}'
            ) from error
        if found.keys() != arrays.keys():
            raise CorruptDatasetError(f'feature "{name}" gives {list(found)}, and gave {list(arrays)}; {_SPOILT}')
        for output, one in arrays.items():
            _check_rows(f'feature "{name}"', cells, found[output], one)


def _width(row: Any) -> int:
    return sum(map(_width, row)) if isinstance(row, list) else 1


def _lengths(learned: Mapping[str, Any]) -> Iterator[int]:
    for key, value in learned.items():
        if isinstance(value, Mapping) and key in _LEVELS:
            yield from _lengths(value)
        elif key in _LENGTHS:
            yield value


def _check_rows(what: str, cells: Sequence[Any], found: np.ndarray, saved: Mapping[str, Any]) -> None:
    if found.dtype.name != saved["dtype"]:
        raise CorruptDatasetError(f"{what} encodes to {found.dtype}, and did to {saved['dtype']}; {_SPOILT}")
    for cell, row, was in zip(cells, found, saved["rows"], strict=True):
        if not _equal(row, was):
            raise CorruptDatasetError(
                f"{what} encodes {cell!r} to {str(row.tolist())[:_SHOWN]}, and did to {str(was)[:_SHOWN]}: the file "
                "was altered since it was saved, or this version encodes otherwise: restore the file, or fit again"
            )


def _equal(row: Any, was: Any) -> bool:
    """Tell whether a row is what it was; floats up to what processors differ by in a logarithm."""
    if row.dtype.kind != "f":
        return bool(row.tolist() == was)
    before = np.array(was, np.float64)
    room = _ULPS * float(np.finfo(row.dtype).eps) * float(np.abs(before).max(initial=0.0))
    return before.shape == row.shape and bool((np.abs(row - before) <= room).all())
