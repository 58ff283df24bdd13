"""Managers as YAML says them: data by name, functions from those that a program allows, packing as a mapping."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from daskprep.dataset import Dataset, open_dataset
from daskprep.errors import ConfigError, DatasetExistsError, MissingPackageError, did_you_mean
from daskprep.loader import Packing
from daskprep.preprocessor import Preprocessor
from daskprep.sources import as_source, prepared

# What `datasets.load_dataset` is told; code of others is none of it.
_HUGGING_FACE_OPTIONS = ("name", "split", "revision", "data_files", "data_dir")
_WRITE_OPTIONS = ("preprocessor", "prepare", "version")
_OPTIONS = {"dataset": (), "files": _WRITE_OPTIONS, "huggingface": (*_WRITE_OPTIONS, *_HUGGING_FACE_OPTIONS)}


def configured(config: Mapping[str, Any], allowed: Iterable[str], folder: str | os.PathLike[str] | None) -> Any:
    """Return managers as a DataModule takes them; nothing is opened, and nothing imported that is not allowed."""
    data_functions: dict[str, Callable[[], Any]] = {}  # managers that say the same data share what is written

    def build_manager(one: Any) -> Any:
        if not isinstance(one, Mapping):
            return one
        options = dict(one)
        if isinstance(options.get("data"), Mapping):
            key = _key(options["data"])
            options["data"] = data_functions.setdefault(key, _build_data(options["data"], key, allowed, folder))
        for name in ("example_processors", "processors", "group_processors"):
            value = options.get(name, [])
            functions = value if isinstance(value, list | tuple) else [value]
            options[name] = [_build(name, each, allowed) for each in functions]
        return options | {"collate": _build("collate", options.get("collate"), allowed)}

    return {
        role: {name: build_manager(one) for name, one in managers.items()}
        if isinstance(managers, Mapping)
        else managers
        for role, managers in config.items()
    }


def _build(option: str, spec: Any, allowed: Iterable[str]) -> Any:
    """Return what a mapping stands for: a Packing, or a function with arguments."""
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
    function = resolve(option, spec["function"], allowed)
    try:
        inspect.signature(function).bind_partial(**arguments)
    except TypeError as error:
        raise ConfigError(f'{option}: "{spec["function"]}" does not accept these arguments: {error}') from error
    except ValueError:
        pass  # what is written in C tells no parameters
    return functools.partial(function, **arguments)


def _key(data: Mapping[Any, Any]) -> str:
    try:
        return json.dumps(data, sort_keys=True, default=str)
    except TypeError as error:
        raise ConfigError(f"data: {dict(data)!r}: keys must be strings; put them in quotes") from error


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _build_data(
    spec: Mapping[str, Any], key: str, allowed: Iterable[str], folder: str | os.PathLike[str] | None
) -> Callable[[], Any]:
    """Return the function that finds or writes the dataset that a mapping names."""
    if "function" in spec:
        return cast("Callable[[], Any]", _build("data", spec, allowed))
    kind = next((name for name in spec if name in _OPTIONS), "")
    known = (kind, *_OPTIONS[kind]) if kind else tuple(_OPTIONS)
    for name in spec:
        if not kind or name not in known:
            raise ConfigError(f'data: unknown key "{name}".{did_you_mean(name, known)} Keys are: {", ".join(known)}')
    if not kind:
        raise ConfigError(f"data is empty: give one of {', '.join(known)}")
    if kind == "huggingface" and not isinstance(spec[kind], str):
        raise ConfigError(f"data: huggingface: {spec[kind]!r}: expected the name or the folder of a dataset")
    if kind == "dataset":
        return functools.partial(open_dataset, spec[kind])
    if folder is None or "preprocessor" not in spec:
        raise ConfigError(f'data: {kind} needs a "preprocessor", and from_config needs folder= to write the dataset to')
    function = spec.get("prepare")
    if function is not None:
        function = resolve("data: prepare", _build("data: prepare", function, allowed), allowed)
    elif "version" in spec:
        raise ConfigError('data: "version" names the version of a "prepare" function, and there is none: remove it')
    path = Path(folder) / _digest(key)
    return functools.partial(_write_dataset, dict(spec), path, function)


def _write_dataset(spec: Mapping[str, Any], path: Path, function: Callable[..., Any] | None) -> Dataset:
    """Write the rows of files or of a dataset of Hugging Face, unless they were written before, and open them."""
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
        # Nothing tells whether a function has changed, so without a version its rows are written by each run.
        version = (
            None
            if record is None or declared_version is None
            else f"{declared_version}, {_digest(json.dumps(record, default=str))}"
        )
        rows = prepared(rows, function)
    preprocessor = spec["preprocessor"]
    is_fitted = isinstance(preprocessor, str) and preprocessor.endswith(".json")
    write = Preprocessor.load(preprocessor).write if is_fitted else Preprocessor.from_config(preprocessor).fit_write
    try:
        return write(rows, path, version=version)
    except DatasetExistsError:
        # The folder is named by the configuration, and so holds its rows as they were before, and nothing else.
        return write(rows, path, version=version, overwrite=True)


def check_callables(option: str, value: Any, allowed: Iterable[str]) -> None:
    """Refuse what can neither be called nor is the name of something that is allowed; nothing is imported."""
    for one in [value] if isinstance(value, str) or not isinstance(value, Iterable) else value:
        if isinstance(one, str):
            _check_name(option, one, tuple(allowed))
        elif not callable(one):
            raise ConfigError(f"{option}={one!r}: expected a callable or its dotted name")


def resolve(option: str, value: Any, allowed: Iterable[str]) -> Callable[..., Any]:
    """Return what a dotted name such as ``"mypackage.steps.lower"`` stands for, if it is allowed; callables stay."""
    check_callables(option, [value], allowed)
    function: Callable[..., Any] = value
    if not isinstance(value, str):
        return function
    module, _, attribute = value.rpartition(".")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ConfigError(f'{option}: cannot import "{value}": {error}') from error
    if not callable(function):
        raise ConfigError(f'{option}: "{value}" is {function!r}, which is not callable')
    return function


def _check_name(option: str, name: str, allowed: tuple[str, ...]) -> None:
    if not all(part.isidentifier() for part in name.split(".")) or "." not in name:
        raise ConfigError(f'{option}: "{name}" is not the dotted name of a function, such as "mypackage.steps.lower"')
    if not any(name.startswith(one) if one.endswith(".") else name == one for one in allowed):
        raise ConfigError(
            f'{option}: "{name}" may not be imported (allowed: {", ".join(map(repr, allowed)) or "none"}): pass the '
            f'function itself, or allow it, as in DataModule(..., allowed=["{name.partition(".")[0]}."])'
        )
