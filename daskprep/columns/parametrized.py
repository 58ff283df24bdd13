"""Base class of splits and balances: objects defined by their parameters, with checks and conversion to JSON."""

from __future__ import annotations

import inspect
import json
import numbers
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import validation

from daskprep.columns.display import EstimatorCard
from daskprep.errors import ConfigError, check_names, did_you_mean

if TYPE_CHECKING:
    # scikit-learn has no annotations: with its bases, mypy would accept any parameter and attribute of our estimators.
    class Estimator:
        """BaseEstimator, typed."""

        def __init_subclass__(cls, auto_wrap_output_keys: Any = None) -> None: ...
        def __sklearn_tags__(self) -> Any: ...
        def get_params(self, deep: bool = True) -> dict[str, Any]: ...
        def set_params(self, **params: Any) -> Self: ...

    Transformer = Estimator
else:

    class Estimator(BaseEstimator):
        """BaseEstimator whose constructor suggests names for unknown parameters."""

        def __new__(cls, *args: Any, **parameters: Any) -> Self:
            if not parameters.keys() <= getattr(cls.__init__, "__annotations__", {}).keys():  # signatures are slow
                known = inspect.signature(cls.__init__).parameters
                if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values()):
                    check_names(cls.__name__, parameters, [name for name in known if name != "self"])
            return super().__new__(cls)

    class Transformer(TransformerMixin, Estimator, auto_wrap_output_keys=None):
        """Base class of transformers whose tables scikit-learn does not wrap."""


def check_is_fitted(estimator: object) -> None:
    """Raise scikit-learn's NotFittedError, with our methods that fit or load, for an estimator that is not fitted."""
    remedy = "call fit(frame) first"
    if hasattr(estimator, "fit_write"):
        remedy += ", or fit_write(frame, path) to fit and write; Preprocessor.load(path) returns a saved one"
    validation.check_is_fitted(estimator, msg=f"this %(name)s instance is not fitted yet: {remedy}")


def to_json_value(value: Any, what: str = "the parameter") -> Any:
    """Return a parameter as a JSON value; NumPy values, which a parameter search may set, become Python values.

    `what` names the parameter in the error for a function.
    """
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: to_json_value(item, what) for key, item in value.items()}
    if callable(value):
        raise ConfigError(
            f"{what}={value!r} is a Python function, which JSON and YAML cannot represent: "
            "register it by name in daskprep.columns.tokenizers.TOKENIZERS and pass the name"
        )
    return value


# Saved files and configurations have Ludwig's name.
_SAVED_AS = {"shares": "probabilities"}
_PARAMETER_NAMES = {saved_as: name for name, saved_as in _SAVED_AS.items()}


class Parametrized(EstimatorCard, Estimator):
    """Base class with parameters stored unchanged; `validate` checks that a `column` is a name and a `seed` an integer.

    A subclass sets `type`, its name in JSON.
    """

    type: ClassVar[str]

    def validate(self) -> None:
        """Raise `ConfigError` for invalid parameters."""
        self._check_column()
        if not is_integer(getattr(self, "seed", 0)):
            raise self._error("seed", "an integer", "For example, use seed=42.")

    def _check_column(self) -> None:
        column = getattr(self, "column", "x")
        if not isinstance(column, str) or not column:
            raise self._error("column", "the name of a column", 'For example, use "label".')

    def to_dict(self) -> dict[str, Any]:
        """Return type and parameters as JSON values."""
        self.validate()
        parameters = {"type": self.type} | self._parameters()
        return dict(json.loads(json.dumps(parameters, default=lambda value: value.tolist())))

    def _parameters(self) -> dict[str, Any]:
        return {_SAVED_AS.get(name, name): getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def _error(self, parameter: str, expected: str, remedy: str) -> ConfigError:
        value = getattr(self, parameter)
        return ConfigError(f"{type(self).__name__}: {parameter} must be {expected}, not {value!r}. {remedy}")


T = TypeVar("T", bound=Parametrized)


@typing.dataclass_transform(eq_default=False)
def with_parameters(cls: type[T]) -> type[T]:
    """Add an `__init__` with the annotated fields of a class as parameters; a class decorator."""
    return dataclass(eq=False, repr=False)(cls)


def is_integer(number: object) -> bool:
    """Return whether a value is an integer and not a bool."""
    return isinstance(number, numbers.Integral) and not isinstance(number, bool)


def make_from_dict(noun: str, types: Mapping[str, type[T]], data: Mapping[str, Any] | None) -> T | None:
    """Return the object for `data`, a result of `to_dict`; None for None.

    `types` maps names to classes, and `noun` names them in messages. Raise ConfigError for unknown names.
    """
    if data is None:
        return None
    parameters = {_PARAMETER_NAMES.get(name, name): value for name, value in data.items()}
    name = parameters.pop("type", None)
    if not isinstance(name, str) or name not in types:
        hint = did_you_mean(name, types)
        raise ConfigError(f"no {noun} of type {name!r}.{hint} The types are {', '.join(types)}.")
    what, known = f'{noun.capitalize()} "{name}"', inspect.signature(types[name]).parameters
    for unknown in sorted(parameters.keys() - known.keys()):
        hint = did_you_mean(unknown, known)
        raise ConfigError(f'{what} has no parameter "{unknown}".{hint} It has {", ".join(known)}.')
    try:
        instance = types[name](**parameters)
    except TypeError as error:
        raise ConfigError(f"{what}: {error}. Pass this parameter.") from None
    instance.validate()
    return instance
