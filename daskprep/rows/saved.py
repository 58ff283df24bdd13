"""JSON that `Preprocessor.save` writes: strict parsing, digests of learned states, golden rows, large vocabularies.

Golden rows are the encoded rows of sample cells at the time of saving. Large vocabularies are in Parquet files.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from daskprep.errors import (
    ColumnError,
    ConfigError,
    CorruptDatasetError,
    DaskprepError,
    FormatVersionError,
    RejectedValueError,
)
from daskprep.rows.cells import MAX_EXACT_INTEGER


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raise ValueError for NaN and repeated keys.

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
    """Return pairs as a dict; ValueError for a repeated key."""
    result = dict(pairs)
    if len(result) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        duplicate = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f'the key "{duplicate}" occurs twice in it')
    return result


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


PLAIN_FORMAT = 1  # without digests: `to_dict`, datasets, and files of the first version
FORMAT = 2
MAX_BYTES = 1 << 30
_MAX_SHOWN_CHARACTERS = 80
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # half of a surrogate pair, which is invalid alone
# Digests leave locations out, since users may edit them: folders differ between machines.
_LOCATION_KEYS = frozenset({"base_dir", "lazy_cache_dir", "cache_dir"})
# Learned lengths of rows.
_LENGTH_KEYS = ("max_sequence_length", "size", "vector_size", "max_timeseries_length")
TYPES_WITH_LENGTH = frozenset({"category", "set", "bag", "sequence", "history", "text", "vector", "timeseries"})
_LEVELS = ("word", "char")
_ULPS = 4
_ALTERED_HINT = "the file was altered after it was saved: restore it, or save the Preprocessor again"

# Exceptions that altered values may raise anywhere when the state is read.
_ALTERED_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError,
    re.error,
)  # fmt: skip


@contextmanager
def error_context(what: str) -> Iterator[None]:
    """Convert errors of an altered state to CorruptDatasetError."""
    try:
        yield
    except DaskprepError:
        raise
    except _ALTERED_ERRORS as error:
        raise CorruptDatasetError(
            f"{what} cannot be restored ({type(error).__name__}: {error}): it was altered since it was saved"
        ) from error


def parse_state(data: bytes, name: str) -> dict[str, Any]:
    """Parse the JSON of a saved state; CorruptDatasetError naming `name` if it is no JSON object."""
    try:
        state = parse_json(data)
    except ValueError as error:
        raise CorruptDatasetError(
            f"{name} is not a saved Preprocessor: pass the file that Preprocessor.save wrote. If it is that file, it "
            f"was damaged: it is not valid JSON ({error})"
        ) from error
    if _SURROGATE.search(data):
        with error_context(name):  # UnicodeEncodeError if one of them has no pair
            _json(state).encode()
    if not isinstance(state, dict):
        raise CorruptDatasetError(f"{name} holds a {type(state).__name__}, not the state of a Preprocessor")
    return state


def check_format(state: Any) -> None:
    """Raise CorruptDatasetError unless a state has a format, FormatVersionError for a later one."""
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
            "upgrade daskprep"
        )


def read_targets(state: Mapping[str, Any], features: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a state's targets, or raise CorruptDatasetError."""
    targets = state.get("targets", [])
    if not isinstance(targets, list) or not all(isinstance(name, str) and name in features for name in targets):
        raise CorruptDatasetError(
            f"targets: {str(targets)[:_MAX_SHOWN_CHARACTERS]} are not features: it was altered since it was saved"
        )
    return tuple(dict.fromkeys(targets))


# -- digests


def compute_digests(learned: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of each learned value, by its key."""
    return {key: _digest(value) for key, value in learned.items() if key not in _LOCATION_KEYS}


def add_digest(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with a digest of all but learned values."""
    features = [
        [name, {key: _drop_locations(value) for key, value in feature.items() if key != "learned"}]
        for name, feature in state["features"].items()
    ]
    rest = {key: value for key, value in state.items() if key != "digest"}
    return {**rest, "digest": _digest({**rest, "features": features})}


def _drop_locations(value: Any) -> Any:
    """Return a mapping without paths of files; other values as is."""
    if not isinstance(value, Mapping):
        return value
    return {key: item for key, item in value.items() if key not in _LOCATION_KEYS}


def verify(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state in the plain format, without digests; CorruptDatasetError or FormatVersionError if invalid."""
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
    """Return a feature without digests, or raise CorruptDatasetError."""
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
    """Return strings as a JSON list, in half the time of `json`."""
    joined = '","'.join(texts)
    plain = joined.isprintable() and "\\" not in joined and joined.count('"') == 2 * len(texts) - 2
    return f'["{joined}"]' if plain else _json(texts)


def _write_number(value: float) -> str:
    """Return a double as in JavaScript; ValueError unless finite."""
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
    """Raise CorruptDatasetError for another encoding of golden cells, by `encode` as arrays by suffix."""
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
        lengths = _learned_lengths(feature["learned"]) if feature["type"] in TYPES_WITH_LENGTH else ()
        if any(length > longest for length in lengths):
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
    """Yield learned lengths of rows, also of levels of texts."""
    for key, value in learned.items():
        if isinstance(value, Mapping) and key in _LEVELS:
            yield from _learned_lengths(value)
        elif key in _LENGTH_KEYS:
            yield value


def _check_rows(what: str, cells: Sequence[Any], encoded: np.ndarray, saved: Mapping[str, Any]) -> None:
    """Raise CorruptDatasetError for another dtype or other rows."""
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
    """Return whether a row equals the saved one, up to rounding."""
    if row.dtype.kind != "f":
        return bool(row.tolist() == expected)
    expected_array = np.array(expected, np.float64)
    tolerance = _ULPS * float(np.finfo(row.dtype).eps) * float(np.abs(expected_array).max(initial=0.0))
    return expected_array.shape == row.shape and bool((np.abs(row - expected_array) <= tolerance).all())


FILE_KEY = "vocabulary_file"
_FILE_NAME = re.compile(r"(?:[^/\\]+\.)?vocab/[^/\\]+\.parquet")
_MAX_EXPANSION = 100  # ratio of the size in memory to the file size, beyond which a file was not written by daskprep


def load_vocabularies(
    value: Any, where: str, read: Callable[[str], bytes], to_learned: Callable[[str, bytes], Mapping[str, Any]]
) -> Any:
    """Return a state with the vocabularies of the files that it names; CorruptDatasetError for altered files.

    ``read(name)`` returns a file's bytes, ``to_learned(name, content)`` its learned values. `where` names the state in
    errors.
    """
    if not isinstance(value, Mapping) or isinstance(value.get("idx2str"), list):
        return value
    name = value.get(FILE_KEY)
    if not isinstance(name, str):
        return {key: load_vocabularies(item, where, read, to_learned) for key, item in value.items()}
    others = {key: item for key, item in value.items() if key != FILE_KEY}
    return {**others, **to_learned(name, _read_checked(name, where, read))}


def _read_checked(name: str, where: str, read: Callable[[str], bytes]) -> bytes:
    """Return the bytes of a vocabulary file, named by its digest; CorruptDatasetError for others."""
    if not _FILE_NAME.fullmatch(name):
        raise CorruptDatasetError(f"{where} names a vocabulary file outside its folder: {name!r}")
    try:
        content = read(name)
    except FileNotFoundError as error:
        raise CorruptDatasetError(f"{where} names the vocabulary file {name}, which does not exist") from error
    if not name.endswith(f"-{hashlib.sha256(content).hexdigest()[:16]}.parquet"):
        raise CorruptDatasetError(f"the vocabulary file {name} is not the one that {where} was saved with: restore it")
    return content


def read_unless_link(path: Path) -> bytes:
    """Return the bytes of a file; CorruptDatasetError for a link."""
    if path.is_symlink() or path.parent.is_symlink():
        raise CorruptDatasetError(f"{path} is a link, but a vocabulary must be a file: replace the link by the file")
    return path.read_bytes()


def parse_vocabulary_file(name: str, content: bytes) -> dict[str, Any]:
    """Return a vocabulary file without frequencies; ConfigError without pyarrow, CorruptDatasetError if altered."""
    try:
        import pyarrow as pa  # noqa: PLC0415 only large vocabularies need it
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"the vocabulary {name} is stored in Parquet, since it has more than 100,000 tokens: pip install pyarrow "
            "to serve it, or fit with a smaller most_common"
        ) from error
    try:
        with pq.ParquetFile(io.BytesIO(content), page_checksum_verification=True) as file:
            footer = file.metadata
            groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
            # Without a dictionary, the footer states the size in memory; with one, a small file could fill any memory.
            plain = not any(group.column(0).has_dictionary_page for group in groups)
            size = max(footer.num_rows * 8, sum(group.total_byte_size for group in groups))
            if not plain or size > _MAX_EXPANSION * len(content):
                raise CorruptDatasetError(f"the vocabulary {name} was not written by daskprep: restore it")
            tokens, roles = (file.read([column])[column].to_pylist() for column in ("token", "roles"))
    except (pa.ArrowException, KeyError, OSError) as error:
        raise CorruptDatasetError(f"{name} holds no vocabulary ({error}): restore it, or fit again") from error
    symbols = {
        role: token for token, role_names in zip(tokens, roles, strict=True) for role in (role_names or "").split(",")
    }
    symbols.pop("", None)
    # Encoded rows do not depend on frequencies.
    return {"idx2str": tokens, "special_symbols": symbols, "frequencies": {"values": [0], "tokens": [len(tokens)]}}
