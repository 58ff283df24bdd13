"""Check constructor parameters against the annotations of the constructor, which are their only declaration."""

from __future__ import annotations

import functools
import inspect
import numbers
import sys
import typing
from collections import ChainMap
from typing import Any

from daskprep.errors import ConfigError, did_you_mean, is_valid_utf8
from daskprep.rows.typed import Count as Count  # noqa: PLC0414 custom types import it from here
from daskprep.rows.typed import choices_of, describe, fits, is_double

signature_of = functools.cache(inspect.signature)


@functools.cache
def annotations_of(cls: type[Any]) -> dict[str, Any]:
    """Return annotations of constructor parameters by name."""
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
    """Raise ConfigError for a value unlike its annotation."""
    known = signature_of(type(owner).__init__).parameters
    for name, annotation in annotations_of(type(owner)).items():  # type: ignore[arg-type]
        value = getattr(owner, name)
        if value is known[name].default:
            continue
        if not is_valid_utf8(value):
            raise ConfigError(f"{type(owner).__name__}: {name}={value!r:.80} has half of a surrogate pair: correct it")
        if not fits(value, annotation):
            raise ConfigError(
                f"{type(owner).__name__}: {name} must be {describe(annotation)}, not {value!r:.80}."
                + _suggestion(value, annotation)
            )


def _suggestion(value: Any, annotation: Any) -> str:
    """Return the end of a message about a wrong value, such as a choice."""
    if isinstance(value, numbers.Integral) and not is_double(value):
        return " A 64-bit float cannot hold it."
    if isinstance(value, list | tuple) and len(value) > 1:
        return f" Pass a single value for each parameter, such as {value[0]!r:.80}."
    return did_you_mean(value, choices_of(annotation))
