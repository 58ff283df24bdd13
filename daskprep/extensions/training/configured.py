"""Managers of a configuration: data by name, functions from an allowlist, packing as a mapping."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from daskprep.dataset import Dataset, open_dataset
from daskprep.dataset.loader.packing import Packing
from daskprep.errors import ConfigError, DatasetExistsError, MissingPackageError, did_you_mean
from daskprep.preprocessor import Preprocessor
from daskprep.sources import as_source, prepared
from daskprep.storage.security import check_function_name, import_function

# Allowed arguments of `datasets.load_dataset`; `trust_remote_code` is not among them.
_HUGGING_FACE_OPTIONS = ("name", "split", "revision", "data_files", "data_dir")
_WRITE_OPTIONS = ("preprocessor", "prepare", "version")
_OPTIONS = {"dataset": (), "files": _WRITE_OPTIONS, "huggingface": (*_WRITE_OPTIONS, *_HUGGING_FACE_OPTIONS)}


def configure_managers(config: Mapping[str, Any], allowed: Iterable[str], folder: str | os.PathLike[str] | None) -> Any:
    """Return managers as dicts of parameters, with functions for names; equal `data` share one function."""
    data_functions: dict[str, Callable[[], Any]] = {}  # managers with equal data share its dataset

    def build_manager(spec: Any) -> Any:
        if not isinstance(spec, Mapping):
            return spec
        options = dict(spec)
        if isinstance(options.get("data"), Mapping):
            key = json.dumps(options["data"], sort_keys=True, default=str)
            options["data"] = data_functions.setdefault(key, _build_data(options["data"], key, allowed, folder))
        for name in ("example_processors", "processors", "group_processors"):
            if name in options:
                value = options[name]
                functions = value if isinstance(value, list | tuple) else [value]
                options[name] = [_build(name, each, allowed) for each in functions]
        return options | ({"collate": _build("collate", options["collate"], allowed)} if "collate" in options else {})

    return {
        role: {name: build_manager(spec) for name, spec in managers.items()}
        if isinstance(managers, Mapping)
        else managers
        for role, managers in config.items()
    }


def _build(option: str, spec: Any, allowed: Iterable[str]) -> Any:
    """Return the Packing or function of a mapping, or the value; ConfigError for other mappings."""
    if not isinstance(spec, Mapping):
        return spec
    if list(spec) == ["packing"]:
        packing = spec["packing"]
        if not isinstance(packing, Mapping) or set(packing) != {"block_size", "columns"}:
            raise ConfigError(f"{option}: packing: {packing!r}: expected block_size and columns")
        return Packing(**packing)
    if not isinstance(spec.get("function"), str):
        raise ConfigError(f'{option}: {dict(spec)!r}: expected "function" with its arguments, or "packing"')
    arguments = {name: value for name, value in spec.items() if name != "function"}
    return functools.partial(resolve(option, spec["function"], allowed), **arguments)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _build_data(
    spec: Mapping[str, Any], key: str, allowed: Iterable[str], folder: str | os.PathLike[str] | None
) -> Callable[[], Any]:
    """Return a function that opens or writes a dataset.

    ConfigError for unknown keys. Written datasets are in `folder`, named by a digest of `key`.
    """
    if "function" in spec:
        return cast("Callable[[], Any]", _build("data", spec, allowed))
    kind = next((name for name in spec if name in _OPTIONS), "")
    known = (kind, *_OPTIONS[kind]) if kind else tuple(_OPTIONS)
    for name in spec:
        if not kind or name not in known:
            raise ConfigError(f'data: unknown key "{name}".{did_you_mean(name, known)} Keys are: {", ".join(known)}')
    if not kind:
        raise ConfigError(f"data is empty: set one of {', '.join(known)}")
    if kind == "dataset":
        return functools.partial(open_dataset, spec[kind])
    if folder is None or "preprocessor" not in spec:
        raise ConfigError(f'data: {kind} needs a "preprocessor", and from_config needs folder= to write the dataset to')
    function = spec.get("prepare")
    if function is not None:
        function = resolve("data: prepare", _build("data: prepare", function, allowed), allowed)
    elif "version" in spec:
        raise ConfigError('data: "version" names the version of a "prepare" function, which is missing: remove it')
    path = Path(folder) / _digest(key)
    return functools.partial(_write_dataset, dict(spec), path, function)


def _write_dataset(spec: Mapping[str, Any], path: Path, function: Callable[..., Any] | None) -> Dataset:
    """Return the dataset of a spec, written to `path`.

    The rows come from "files", or else from "huggingface", and `function`, if any, prepares them. A "preprocessor"
    with the ending ".json" is already fitted; any other is a configuration. A dataset that differs is overwritten.
    """
    rows, version = spec.get("files"), None
    if rows is None:
        try:
            import datasets  # noqa: PLC0415
        except ImportError as error:
            raise MissingPackageError(
                "reading Hugging Face data needs the package datasets: pip install datasets"
            ) from error
        options = {name: spec[name] for name in _HUGGING_FACE_OPTIONS if name in spec}
        rows = datasets.load_dataset(spec["huggingface"], cache_dir=str(path.parent / "huggingface"), **options)
        version = getattr(rows, "_fingerprint", None)
    if function is not None:
        record, declared_version = as_source(rows).record, spec.get("version")
        # A change of the function cannot be detected: without a version, each run writes its rows.
        is_versioned = record is not None and declared_version is not None
        version = f"{declared_version}, {_digest(json.dumps(record, default=str))}" if is_versioned else None
        rows = prepared(rows, function)
    preprocessor = spec["preprocessor"]
    is_fitted = isinstance(preprocessor, str) and preprocessor.endswith(".json")
    write = Preprocessor.load(preprocessor).write if is_fitted else Preprocessor.from_config(preprocessor).fit_write
    try:
        return write(rows, path, version=version)
    except DatasetExistsError:  # the folder, named by a digest of the configuration, has older rows of the same data
        return write(rows, path, version=version, overwrite=True)


def check_callables(option: str, value: Any, allowed: Iterable[str]) -> None:
    """Raise ConfigError unless all are callables or allowed names."""
    for function in [value] if isinstance(value, str) or not isinstance(value, Iterable) else value:
        if isinstance(function, str):
            _check_name(option, function, tuple(allowed))
        elif not callable(function):
            raise ConfigError(f"{option}={function!r}: expected a callable or its dotted name")


def resolve(option: str, value: Any, allowed: Iterable[str]) -> Callable[..., Any]:
    """Return a callable, or the function of an allowed name."""
    check_callables(option, [value], allowed)
    return import_function(option, value) if isinstance(value, str) else value


def _check_name(option: str, name: str, allowed: tuple[str, ...]) -> None:
    """Raise ConfigError unless a name or its package is allowed."""
    check_function_name(option, name)
    if not any(name.startswith(prefix) if prefix.endswith(".") else name == prefix for prefix in allowed):
        raise ConfigError(
            f'{option}: "{name}" may not be imported (allowed: {", ".join(map(repr, allowed)) or "none"}): pass the '
            f'function itself, or allow it, as in DataModule(..., allowed=["{name.partition(".")[0]}."])'
        )
