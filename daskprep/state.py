"""Keep parameters and learned state as JSON; vocabularies too large for JSON go to Parquet files beside it."""

from __future__ import annotations

import hashlib
import io
import json
import re
import uuid
from collections.abc import Mapping
from typing import Any

import fsspec
import numpy as np

from daskprep.errors import ConfigError, CorruptDatasetError, FormatVersionError
from daskprep.features.base import Feature
from daskprep.vocabulary import LARGE_VOCABULARY, Vocabulary

__all__ = ["FORMAT", "check_format", "feature_params", "read_state", "write_state"]

FORMAT = 1
_LIMIT_BYTES = 1 << 30
_VOCABULARY_KEYS = ("idx2str", "str2idx", "str2freq")
_FILE_KEY = "vocabulary_file"


def feature_params(name: str, feature: Feature) -> dict[str, Any]:
    """Return a feature's parameters, JSON-ready, or raise ConfigError for one that JSON cannot hold."""
    params: dict[str, Any] = feature.get_params(deep=False)  # type: ignore[no-untyped-call]
    for key, value in params.items():
        if callable(value):
            raise ConfigError(
                f'feature "{name}": {key}={value!r} is a Python function, which JSON cannot hold: '
                "register it by name in daskprep.tokenizers.TOKENIZERS and give the name"
            )
    # A search over numpy.arange sets NumPy scalars.
    return {key: value.item() if isinstance(value, np.generic) else value for key, value in params.items()}


def check_format(state: Any) -> None:
    """Raise unless the state is one that this version can read."""
    if not isinstance(state, Mapping) or "format" not in state or "features" not in state:
        raise CorruptDatasetError("this JSON is no saved Preprocessor: it has no format and features")
    if state["format"] > FORMAT:
        raise FormatVersionError(
            f"this Preprocessor was saved in format {state['format']}, and this daskprep reads up to {FORMAT}: "
            "upgrade it"
        )


def write_state(path: str, state: Mapping[str, Any]) -> None:
    """Write JSON at `path`, whole or not at all, and its large vocabularies in a folder beside it."""
    files, base = fsspec.core.url_to_fs(path)
    parent = files._parent(base)
    files.makedirs(parent, exist_ok=True)
    slim = _with_vocabularies_moved(state, files, base)
    text = json.dumps(slim, ensure_ascii=False, allow_nan=False, indent=1, sort_keys=False)
    temporary = f"{base}.{uuid.uuid4().hex}.tmp"
    try:
        with files.open(temporary, "wb") as file:
            file.write(text.encode())
        files.mv(temporary, base)
        _remove_unnamed_vocabularies(text, files, base)
    finally:
        if files.exists(temporary):
            files.rm(temporary)


def read_state(path: str) -> dict[str, Any]:
    """Read what `write_state` wrote."""
    files, base = fsspec.core.url_to_fs(path)
    if not files.exists(base):
        raise ConfigError(f"there is no saved Preprocessor at {path}")
    if files.size(base) > _LIMIT_BYTES:
        raise CorruptDatasetError(f"{path} is larger than {_LIMIT_BYTES:,} bytes, which no saved Preprocessor is")
    with files.open(base, "rb") as file:
        try:
            state = json.load(file)
        except ValueError as error:
            raise CorruptDatasetError(f"{path} is no JSON: {error}") from error
    restored: dict[str, Any] = _with_vocabularies_back(state, files, base)
    return restored


def _with_vocabularies_moved(value: Any, files: Any, base: str, where: tuple[str, ...] = ()) -> Any:
    """Return the state with every large vocabulary replaced by the name of the file it was written to."""
    if not isinstance(value, Mapping):
        return value
    if isinstance(tokens := value.get("idx2str"), list):  # its other keys are tokens, not structure
        return _moved(value, files, base, where) if len(tokens) > LARGE_VOCABULARY else value
    return {key: _with_vocabularies_moved(one, files, base, (*where, key)) for key, one in value.items()}


def _remove_unnamed_vocabularies(text: str, files: Any, base: str) -> None:
    folder = f"{base}.vocab"
    for path in files.ls(folder, detail=False) if files.exists(folder) else ():
        if path.rsplit("/", 1)[-1] not in text:
            files.rm(path)


def _moved(learned: Mapping[str, Any], files: Any, base: str, where: tuple[str, ...]) -> dict[str, Any]:
    vocabulary = Vocabulary.from_dict(learned)
    column = re.sub(r"[^\w.-]", "_", "-".join(part for part in where if part not in ("features", "learned")))
    content = io.BytesIO()
    vocabulary.write_parquet(content)
    # Named by content, so that an older state beside it goes on naming what it was saved with.
    digest = hashlib.sha256(content.getvalue()).hexdigest()[:16]
    name = f"{base.rsplit('/', 1)[-1]}.vocab/{column}-{digest}.parquet"
    target = f"{files._parent(base)}/{name}"
    files.makedirs(files._parent(target), exist_ok=True)
    with files.open(f"{target}.tmp", "wb") as file:
        file.write(content.getvalue())
    files.mv(f"{target}.tmp", target)
    return {**{key: one for key, one in learned.items() if key not in _VOCABULARY_KEYS}, _FILE_KEY: name}


def _with_vocabularies_back(value: Any, files: Any, base: str) -> Any:
    if not isinstance(value, Mapping) or isinstance(value.get("idx2str"), list):
        return value
    if not isinstance(value.get(_FILE_KEY), str):
        return {key: _with_vocabularies_back(one, files, base) for key, one in value.items()}
    name = value[_FILE_KEY]
    if not re.fullmatch(r"[^/\\]+\.vocab/[^/\\]+\.parquet", name):
        raise CorruptDatasetError(f"{base} names a vocabulary file outside its folder: {name!r}")
    target = f"{files._parent(base)}/{name}"
    if not files.exists(target):
        raise CorruptDatasetError(f"{base} names the vocabulary file {name}, which is not there")
    with files.open(target, "rb") as file:
        vocabulary = Vocabulary.read_parquet(file)
    return {**{key: one for key, one in value.items() if key != _FILE_KEY}, **vocabulary.to_dict()}
