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
_HUGGING_FACE = ("name", "split", "revision", "data_files", "data_dir")
_WRITTEN = ("preprocessor", "prepare", "version")
_OPTIONS = {"dataset": (), "files": _WRITTEN, "huggingface": (*_WRITTEN, *_HUGGING_FACE)}


def configured(given: Mapping[str, Any], allowed: Iterable[str], folder: str | os.PathLike[str] | None) -> Any:
    """Return managers as a DataModule takes them; nothing is opened, and nothing imported that is not allowed."""
    made: dict[str, Callable[[], Any]] = {}  # managers that say the same data share what is written

    def manager(one: Any) -> Any:
        if not isinstance(one, Mapping):
            return one
        options = dict(one)
        if isinstance(options.get("data"), Mapping):
            key = _key(options["data"])
            options["data"] = made.setdefault(key, _data(options["data"], key, allowed, folder))
        for name in ("example_processors", "processors", "group_processors"):
            some = options.get(name, [])
            several = some if isinstance(some, list | tuple) else [some]
            options[name] = [_made(name, each, allowed) for each in several]
        return options | {"collate": _made("collate", options.get("collate"), allowed)}

    return {
        place: {name: manager(one) for name, one in named.items()} if isinstance(named, Mapping) else named
        for place, named in given.items()
    }


def _made(option: str, given: Any, allowed: Iterable[str]) -> Any:
    """Return what a mapping stands for: a Packing, or a function with arguments."""
    if not isinstance(given, Mapping):
        return given
    if list(given) == ["packing"]:
        packing = given["packing"]
        if not isinstance(packing, Mapping) or set(packing) != {"block_size", "columns"}:
            raise ConfigError(f"{option}: packing: {packing!r}: expected block_size and columns")
        return Packing(**packing)
    if not isinstance(given.get("function"), str):
        raise ConfigError(f'{option}: {dict(given)!r}: expected "function" with its arguments, or "packing"')
    arguments = {name: value for name, value in given.items() if name != "function"}
    function = resolve(option, given["function"], allowed)
    try:
        inspect.signature(function).bind_partial(**arguments)
    except TypeError as error:
        raise ConfigError(f'{option}: "{given["function"]}" does not accept these arguments: {error}') from error
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


def _data(
    given: Mapping[str, Any], key: str, allowed: Iterable[str], folder: str | os.PathLike[str] | None
) -> Callable[[], Any]:
    """Return the function that finds or writes the dataset that a mapping names."""
    if "function" in given:
        return cast("Callable[[], Any]", _made("data", given, allowed))
    kind = next((name for name in given if name in _OPTIONS), "")
    known = (kind, *_OPTIONS[kind]) if kind else tuple(_OPTIONS)
    for name in given:
        if not kind or name not in known:
            raise ConfigError(f'data: unknown key "{name}".{did_you_mean(name, known)} Keys are: {", ".join(known)}')
    if not kind:
        raise ConfigError(f"data is empty: give one of {', '.join(known)}")
    if kind == "huggingface" and not isinstance(given[kind], str):
        raise ConfigError(f"data: huggingface: {given[kind]!r}: expected the name or the folder of a dataset")
    if kind == "dataset":
        return functools.partial(open_dataset, given[kind])
    if folder is None or "preprocessor" not in given:
        raise ConfigError(f'data: {kind} needs a "preprocessor", and from_config needs folder= to write the dataset to')
    function = given.get("prepare")
    if function is not None:
        function = resolve("data: prepare", _made("data: prepare", function, allowed), allowed)
    elif "version" in given:
        raise ConfigError('data: "version" names the version of a "prepare" function, and there is none: remove it')
    path = Path(folder) / _digest(key)
    return functools.partial(_written, dict(given), path, function)


def _written(given: Mapping[str, Any], path: Path, function: Callable[..., Any] | None) -> Dataset:
    """Write the rows of files or of a dataset of Hugging Face, unless they were written before, and open them."""
    rows, version = given.get("files"), None
    if rows is None:
        try:
            import datasets  # noqa: PLC0415
        except ImportError as error:
            raise MissingPackageError(
                "reading Hugging Face data needs the package datasets: pip install datasets"
            ) from error
        asked = {name: given[name] for name in _HUGGING_FACE if name in given}
        rows = datasets.load_dataset(given["huggingface"], cache_dir=str(path.parent / "huggingface"), **asked)
        version = getattr(rows, "_fingerprint", None)
    if function is not None:
        record, told = as_source(rows).record, given.get("version")
        # Nothing tells whether a function has changed, so without a version its rows are written by each run.
        version = None if record is None or told is None else f"{told}, {_digest(json.dumps(record, default=str))}"
        rows = prepared(rows, function)
    made = given["preprocessor"]
    is_fitted = isinstance(made, str) and made.endswith(".json")
    write = Preprocessor.load(made).write if is_fitted else Preprocessor.from_config(made).fit_write
    try:
        return write(rows, path, version=version)
    except DatasetExistsError:
        # The folder is named by the configuration, and so holds its rows as they were before, and nothing else.
        return write(rows, path, version=version, overwrite=True)


def check_callables(option: str, given: Any, allowed: Iterable[str]) -> None:
    """Refuse what can neither be called nor is the name of something that is allowed; nothing is imported."""
    for one in [given] if isinstance(given, str) or not isinstance(given, Iterable) else given:
        if isinstance(one, str):
            _check_name(option, one, tuple(allowed))
        elif not callable(one):
            raise ConfigError(f"{option}={one!r}: expected a callable or its dotted name")


def resolve(option: str, given: Any, allowed: Iterable[str]) -> Callable[..., Any]:
    """Return what a dotted name such as ``"mypackage.steps.lower"`` stands for, if it is allowed; callables stay."""
    check_callables(option, [given], allowed)
    found: Callable[..., Any] = given
    if not isinstance(given, str):
        return found
    module, _, attribute = given.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ConfigError(f'{option}: cannot import "{given}": {error}') from error
    if not callable(found):
        raise ConfigError(f'{option}: "{given}" is {found!r}, which is not callable')
    return found


def _check_name(option: str, name: str, allowed: tuple[str, ...]) -> None:
    if not all(part.isidentifier() for part in name.split(".")) or "." not in name:
        raise ConfigError(f'{option}: "{name}" is not the dotted name of a function, such as "mypackage.steps.lower"')
    if not any(name.startswith(one) if one.endswith(".") else name == one for one in allowed):
        raise ConfigError(
            f'{option}: "{name}" may not be imported (allowed: {", ".join(map(repr, allowed)) or "none"}): pass the '
            f'function itself, or allow it, as in DataModule(..., allowed=["{name.partition(".")[0]}."])'
        )
