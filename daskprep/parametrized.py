"""Things that are what their parameters say: checked, kept as JSON, and made from it again."""

from __future__ import annotations

import inspect
import json
import numbers
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
from sklearn.base import BaseEstimator

from daskprep.display.tables import EstimatorCard
from daskprep.errors import ConfigError, did_you_mean, with_parameter_hints


def to_json_value(value: Any, what: str = "the parameter") -> Any:
    """Return a parameter as JSON and YAML have it, also what a search over `numpy.arange` sets."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: to_json_value(one, what) for key, one in value.items()}
    if callable(value):
        raise ConfigError(
            f"{what}={value!r} is a Python function, which JSON and YAML cannot hold: "
            "register it by name in daskprep.tokenizers.TOKENIZERS and give the name"
        )
    return value


class Parametrized(EstimatorCard, BaseEstimator):
    """Parameters stored untouched; a `column` is a name, and a `seed` a whole number."""

    type: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]
        if "__init__" in vars(cls):
            setattr(cls, "__init__", with_parameter_hints(cls.__init__))  # noqa: B010 mypy refuses the assignment

    def validate(self) -> None:
        """Raise `ConfigError` if the parameters make no sense."""
        self._check_column()
        if not is_integer(getattr(self, "seed", 0)):
            raise self._error("seed", "a whole number", "Give for instance seed=42.")

    def _check_column(self) -> None:
        column = getattr(self, "column", "x")
        if not isinstance(column, str) or not column:
            raise self._error("column", "the name of a column", 'Give a string such as "label".')

    def to_dict(self) -> dict[str, Any]:
        """Return type and parameters as JSON values."""
        self.validate()
        parameters = {"type": self.type} | self._parameters()
        return dict(json.loads(json.dumps(parameters, default=lambda value: value.tolist())))

    def _parameters(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def _error(self, parameter: str, expected: str, remedy: str) -> ConfigError:
        value = getattr(self, parameter)
        return ConfigError(f"{type(self).__name__}: {parameter} must be {expected}, not {value!r}. {remedy}")


T = TypeVar("T", bound=Parametrized)


@typing.dataclass_transform(eq_default=False)
def with_parameters(cls: type[T]) -> type[T]:
    """Make the annotated fields of a class the parameters of its `__init__`."""
    decorated = dataclass(eq=False, repr=False)(cls)
    setattr(decorated, "__init__", with_parameter_hints(decorated.__init__))  # noqa: B010 mypy refuses the assignment
    return decorated


def is_integer(number: object) -> bool:
    """Tell whether something is a whole number, and not a truth."""
    return isinstance(number, numbers.Integral) and not isinstance(number, bool)


def make_from_dict(noun: str, types: Mapping[str, type[T]], data: Mapping[str, Any] | None) -> T | None:
    """Make what `to_dict` described, None of None; unknown names are errors with a suggestion."""
    if data is None:
        return None
    parameters = dict(data)
    name = parameters.pop("type", None)
    if not isinstance(name, str) or name not in types:
        hint = did_you_mean(name, types)
        raise ConfigError(f"There is no {noun} of type {name!r}.{hint} The types are {', '.join(types)}.")
    what, known = f'{noun.capitalize()} "{name}"', inspect.signature(types[name]).parameters
    for unknown in sorted(parameters.keys() - known.keys()):
        hint = did_you_mean(unknown, known)
        raise ConfigError(f'{what} has no parameter "{unknown}".{hint} It has {", ".join(known)}.')
    try:
        instance = types[name](**parameters)
    except TypeError as error:
        raise ConfigError(f"{what}: {error}. Give this parameter.") from None
    instance.validate()
    return instance
