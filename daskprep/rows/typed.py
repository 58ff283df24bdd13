"""Fields of parameters and learned states: their annotations are the only declaration of what saved files may hold."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, Union

T = TypeVar("T")
PLAIN_TYPES = frozenset({bool, int, float, str, type(None)})  # as in JSON
_MAX_INTEGER = 1 << 62  # of Arrow and NumPy, with room for sums
_MAX_SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class AtLeast:
    """Inclusive bounds of a number, for annotations."""

    bound: float
    most: float = math.inf


Count = Annotated[int, AtLeast(1)]
NonNegative = Annotated[float, AtLeast(0)]
Amount = Annotated[int, AtLeast(0)]  # as integers of any field, below 2**62
Length = Annotated[int, AtLeast(0, (1 << 31) - 1)]  # of rows: an altered one could allocate any amount of memory
CellKind = Literal["integer", "boolean", "float", "float32", "decimal"]  # cell types of labels that are not text


def later(default: T, *, before: Any = dataclasses.MISSING, rows: bool = False) -> T:
    """Return a dataclass field that the first saved files lacked.

    `before` is the value of files without the field, if it is not the default. `rows` is whether row encoders support
    a parameter: features that set others are encoded by column.
    """
    value = default if before is dataclasses.MISSING else before
    return dataclasses.field(default=default, metadata={"before": value, "rows": rows})


def earlier_values(declared: type[Any]) -> dict[str, Any]:
    """Return the values of `later` fields in files without them."""
    return {one.name: one.metadata["before"] for one in dataclasses.fields(declared) if "before" in one.metadata}


def check_fields(declared: type[Any], values: Mapping[str, Any]) -> None:
    """Raise TypeError for a value that does not fit its field; those with a default may lack one."""
    for name, (annotation, default) in _fields_of(declared).items():  # type: ignore[arg-type]
        value = values.get(name, default)
        if value is dataclasses.MISSING:
            raise TypeError(f"{declared.__name__}: {name} is missing")
        if value is not default and not fits(value, annotation):
            shown = str(value)[:_MAX_SHOWN_CHARACTERS]
            raise TypeError(f"{declared.__name__}: {name} must be {describe(annotation)}, not {shown!r}")


def read_fields(declared: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a dataclass from JSON, lists as tuples; TypeError as `check_fields`."""
    check_fields(declared, values)
    fields = _fields_of(declared)  # type: ignore[arg-type]
    return {name: _as_declared(values[name], annotation) for name, (annotation, _) in fields.items() if name in values}


def _as_declared(value: Any, annotation: Any) -> Any:
    """Return a JSON value with the tuples that an annotation has."""
    origin, parts = _parts_of(annotation)
    if origin in (Union, types.UnionType):
        return _as_declared(value, next(part for part in parts if fits(value, part)))
    if origin is Mapping:
        return {key: _as_declared(item, parts[1]) for key, item in value.items()}
    if origin in (list, Sequence):
        return [_as_declared(item, parts[0]) for item in value]
    if origin is not tuple or parts == (str, ...):
        return tuple(value) if origin is tuple else value
    items = map(_as_declared, value, parts[:1] * len(value) if parts[1:] == (...,) else parts)
    return annotation(*items) if hasattr(annotation, "_fields") else tuple(items)


@functools.cache
def _fields_of(declared: type[Any]) -> dict[str, tuple[Any, Any]]:
    """Return annotation and default of each field; Any or tuples if only a type checker imports one."""
    fields = dataclasses.fields(declared)
    try:
        hints = typing.get_type_hints(declared, include_extras=True)
    except NameError:
        hints = {one.name: tuple[Any, ...] if str(one.type).startswith("tuple[") else Any for one in fields}
    defaults = (one.default if one.default_factory is dataclasses.MISSING else one.default_factory() for one in fields)
    return {one.name: (hints[one.name], default) for one, default in zip(fields, defaults, strict=True)}


def fits(value: Any, annotation: Any) -> bool:
    """Return whether a value fits an annotation, with its bounds."""
    origin, parts = _parts_of(annotation)
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in parts)
    if origin is Annotated:
        base, bounds = parts
        return fits(value, base) and bounds.bound <= value <= bounds.most
    if origin is Mapping:
        return isinstance(value, Mapping) and _all_fit(value.values(), parts[1])
    if origin in (list, Sequence) or (origin is tuple and parts[1:] == (...,)):
        return isinstance(value, list | tuple) and _all_fit(value, parts[0])
    if origin is tuple:
        return isinstance(value, list | tuple) and len(value) == len(parts) and all(map(fits, value, parts))
    return _is_of_type(value, origin or annotation)


@functools.cache
def _parts_of(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the origin and the arguments of an annotation."""
    if hasattr(annotation, "_fields"):
        return tuple, tuple(typing.get_type_hints(annotation, include_extras=True).values())
    return typing.get_origin(annotation), typing.get_args(annotation)


def _is_of_type(value: Any, expected: Any) -> bool:
    """Return whether a value is of a type, as NumPy's numbers are; TypeError for a dataclass with an invalid field."""
    if expected is float:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and is_double(value)
    if expected is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool) and abs(int(value)) < _MAX_INTEGER
    if expected is Callable:
        return callable(value)
    if dataclasses.is_dataclass(value):
        check_fields(type(value), vars(value))
    return expected is Any or isinstance(value, expected or type(None))


def is_double(value: numbers.Real) -> bool:
    """Return whether a number is within the range of doubles."""
    try:
        float(value)
    except OverflowError:  # an integer beyond the range of doubles
        return False
    return True


def _all_fit(values: Collection[Any], annotation: Any) -> bool:
    # A vocabulary may have millions of values: collecting their types is faster than checking each.
    kinds = set(map(type, values))
    if annotation is str:
        return kinds <= {str} or all(isinstance(value, str) for value in values)
    if annotation is int and kinds == {int}:
        return max(map(abs, values)) < _MAX_INTEGER
    return (annotation is float and kinds <= {float}) or all(fits(one, annotation) for one in values)


def describe(annotation: Any) -> str:
    """Return an annotation in words: "an integer or None"."""
    origin = typing.get_origin(annotation)
    if origin in (Union, types.UnionType):
        parts = typing.get_args(annotation)
        choices = tuple(choices_of(annotation))
        others = [describe(part) for part in parts if typing.get_origin(part) is not Literal]
        return " or ".join([describe(Literal[choices]), *others] if choices else others)
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in typing.get_args(annotation))
    if origin is Annotated:
        base, bounds = typing.get_args(annotation)
        most = "" if bounds.most == math.inf else f" and at most {bounds.most:,}"
        return f"{describe(base)} of at least {bounds.bound:g}{most}"
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


def choices_of(annotation: Any) -> list[Any]:
    """Return the values of the Literals in an annotation."""
    parts = (annotation, *typing.get_args(annotation))
    return [choice for part in parts if typing.get_origin(part) is Literal for choice in typing.get_args(part)]
