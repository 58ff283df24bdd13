"""Check constructor parameters against the annotations of the constructor, which are their only declaration."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import numbers
import sys
import types
import typing
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, Union

from daskprep.errors import ConfigError, did_you_mean, is_valid_utf8
from daskprep.rows.base import Count as Count  # noqa: PLC0414 custom types import it from here

CellKind = Literal["integer", "boolean", "float", "float32", "decimal"]  # cell types of labels that are not text

signature_of = functools.cache(inspect.signature)


@functools.cache
def annotations_of(cls: type[Any]) -> dict[str, Any]:
    """Return the annotation of each constructor parameter, by name."""
    constructor = cls.__init__
    # A dataclass's __init__ also has the parameters of its bases, with annotations from the bases' modules.
    known = ChainMap(*(vars(sys.modules[base.__module__]) for base in cls.__mro__ if base.__module__ in sys.modules))
    hints = typing.get_type_hints(constructor, localns=known, include_extras=True)
    names = [name for name in inspect.signature(constructor).parameters if name != "self"]
    return {name: hints.get(name, Any) for name in names}


def default_of(cls: type[Any], name: str) -> Any:
    """Return the default of a constructor parameter of `cls`; None if it has none."""
    parameter = signature_of(cls.__init__).parameters.get(name)
    return None if parameter is None or parameter.default is inspect.Parameter.empty else parameter.default


def check_parameters(owner: object) -> None:
    """Raise ConfigError for the first parameter of an object whose value does not fit its annotation."""
    for name, annotation in annotations_of(type(owner)).items():  # type: ignore[arg-type]
        value = getattr(owner, name)
        if not is_valid_utf8(value):
            raise ConfigError(f"{type(owner).__name__}: {name}={value!r:.80} has half of a surrogate pair: correct it")
        if not _fits(value, annotation):
            raise ConfigError(
                f"{type(owner).__name__}: {name} must be {_describe(annotation)}, not {value!r:.80}."
                + _suggestion(value, annotation)
            )


def _fits(value: Any, annotation: Any) -> bool:
    """Return whether a parameter's value fits its annotation; bounds of numbers included."""
    origin = typing.get_origin(annotation)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in typing.get_args(annotation))
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in typing.get_args(annotation))
    if origin is Annotated:
        base, *bounds = typing.get_args(annotation)
        return _fits(value, base) and all(value >= bound.bound for bound in bounds)
    if annotation is Any:
        return True
    if annotation is None or annotation is type(None):
        return value is None
    if origin in (list, Sequence):
        return isinstance(value, list | tuple) and all(_fits(item, typing.get_args(annotation)[0]) for item in value)
    expected = origin or annotation
    if expected is float:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and _is_double(value)
    if expected is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if expected is Callable:
        return callable(value)
    return isinstance(value, expected)


def _is_double(value: numbers.Real) -> bool:
    """Return whether a number is within the range of doubles."""
    try:
        float(value)
    except OverflowError:  # an integer beyond the range of doubles
        return False
    return True


@functools.cache
def _fields_of(cls: type[Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def check_fields(learned: Any) -> None:
    """Raise TypeError for a field of a dataclass whose value does not fit its annotation."""
    for name, annotation in _fields_of(type(learned)).items():  # type: ignore[arg-type]
        value = getattr(learned, name)
        if not _is_of_type(value, annotation):
            raise TypeError(
                f"{type(learned).__name__}: {name} must be {_describe(annotation)}, not {str(value)[:80]!r}"
            )


def _is_of_type(value: Any, annotation: Any) -> bool:
    """Return whether a value read from JSON fits an annotation, nested values included; lists also fit tuples."""
    if dataclasses.is_dataclass(value):
        check_fields(value)
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return any(_is_of_type(value, part) for part in parts)
    if origin is Mapping:
        return isinstance(value, Mapping) and _all_of_type(value.values(), parts[1])
    if origin is list or (origin is tuple and parts[1:] == (...,)):
        return isinstance(value, list | tuple) and _all_of_type(value, parts[0])
    if origin is tuple:
        return isinstance(value, list | tuple) and len(value) == len(parts) and all(map(_is_of_type, value, parts))
    return _fits(value, annotation) and (annotation is not int or abs(value) < 1 << 62)


def _all_of_type(values: Collection[Any], annotation: Any) -> bool:
    # A vocabulary may have millions of values: collecting their types is faster than checking each.
    if annotation in (float, str):
        return set(map(type, values)) <= ({int, float} if annotation is float else {str})
    return all(_is_of_type(value, annotation) for value in values)


def _describe(annotation: Any) -> str:
    """Return an annotation in words, for messages: "an integer or None"."""
    origin = typing.get_origin(annotation)
    if origin in (Union, types.UnionType):
        parts = typing.get_args(annotation)
        choices = tuple(_choices(annotation))
        others = [_describe(part) for part in parts if typing.get_origin(part) is not Literal]
        return " or ".join([_describe(Literal[choices]), *others] if choices else others)
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in typing.get_args(annotation))
    if origin is Annotated:
        base, bound = typing.get_args(annotation)
        return f"{_describe(base)} of at least {bound.bound:g}"
    if annotation is None or annotation is type(None):
        return "None"
    if origin is Sequence:
        return "a list of numbers"
    words = {
        int: "an integer",
        float: "a number",
        str: "a string",
        bool: "True or False",
        Mapping: "a dict",
        list: "a list of strings",
    }
    return words.get(origin or annotation, getattr(annotation, "__name__", str(annotation)).lower())


def _suggestion(value: Any, annotation: Any) -> str:
    """Return the end of a message about a wrong value: similar choices, or a hint about large integers and lists."""
    if isinstance(value, numbers.Integral) and not _is_double(value):
        return " A 64-bit float cannot hold it."
    if isinstance(value, list | tuple) and len(value) > 1:
        return f" Pass a single value for each parameter, such as {value[0]!r:.80}."
    return did_you_mean(value, _choices(annotation))


def _choices(annotation: Any) -> list[Any]:
    """Return the values of a Literal annotation, or of the Literals in a union."""
    parts = (annotation, *typing.get_args(annotation))
    return [choice for part in parts if typing.get_origin(part) is Literal for choice in typing.get_args(part)]
