"""Base class of splits and balances: objects defined by their parameters, with checks and conversion to JSON."""

from __future__ import annotations

import copy
import functools
import inspect
import json
import numbers
import pprint
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from daskprep.columns.display import join_names, settings_card, truncate
from daskprep.errors import ConfigError, check_names, did_you_mean
from daskprep.rows.typed import PLAIN_TYPES

OUTPUT = "_sklearn_output_config"  # the attribute that scikit-learn's `clone` copies

_MAX_LINE, _MAX_VALUE_CHARACTERS = 100, 200


class Estimator:
    """Base class of estimators of scikit-learn, which it takes for its own by their methods.

    Its own base class would import scikit-learn and SciPy, two thirds of the time of an import of this package.
    """

    def __new__(cls, *args: Any, **parameters: Any) -> Self:
        if not parameters.keys() <= getattr(cls.__init__, "__annotations__", {}).keys():  # signatures are slow
            known = inspect.signature(cls.__init__).parameters
            if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values()):
                check_names(cls.__name__, parameters, list(_defaults(cls)))
        return super().__new__(cls)

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return sorted(_defaults(cls))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; with `deep`, parameters of estimators among them too, as "split__seed"."""
        params: dict[str, Any] = {}
        for name in self._get_param_names():
            value = params[name] = getattr(self, name)
            if deep and isinstance(value, Estimator):
                params |= {f"{name}__{nested}": one for nested, one in value.get_params().items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name, such as "split__seed"; ConfigError for an unknown one."""
        for key, value in params.items():
            name, _, nested = key.partition("__")
            known = self.get_params(deep=False)
            if name not in known or (nested and not isinstance(known[name], Estimator)):
                hint = did_you_mean(name, known)
                raise ConfigError(f"{type(self).__name__} has no parameter {name!r}.{hint} It has {', '.join(known)}.")
            if nested:
                known[name].set_params(**{nested: value})
            else:
                setattr(self, name, value)
        return self

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if hasattr(self, name)]  # without methods that need targets

    def __repr__(self) -> str:
        defaults = _defaults(type(self))
        indent, texts = len(type(self).__name__) + 1, []
        for name, value in self.get_params(deep=False).items():
            text = pprint.pformat(value, width=_MAX_LINE - indent - len(name), compact=True, sort_dicts=False)
            if value is not defaults[name] and text != repr(defaults[name]):
                texts.append(f"{name}=" + text.replace("\n", "\n" + " " * (indent + len(name) + 1)))
        line = ", ".join(texts)
        if len(line) + indent >= _MAX_LINE or "\n" in line:
            line = (",\n" + " " * indent).join(texts)
        return f"{type(self).__name__}({line})"

    def _repr_html_(self) -> str:
        columns = list(map(str, getattr(self, "learned_", ())))
        title = type(self).__name__ + (f", fitted on {join_names(columns, 5)}" if columns else "")
        params = self.get_params(deep=False)
        return settings_card({name: truncate(repr(one), _MAX_VALUE_CHARACTERS) for name, one in params.items()}, title)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        del kwargs
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def __sklearn_tags__(self) -> Any:
        from sklearn import utils  # noqa: PLC0415 imported by whoever asks

        is_transformer = hasattr(self, "transform")
        return utils.Tags(
            estimator_type=None,
            target_tags=utils.TargetTags(required=False),
            transformer_tags=utils.TransformerTags() if is_transformer else None,
        )


def _find_defaults(cls: Any) -> Mapping[str, Any]:
    """Return the defaults of constructor parameters by name."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    return {one.name: one.default for one in parameters if one.name != "self"}


_defaults: Callable[[Any], Mapping[str, Any]] = functools.cache(_find_defaults)


def clone(value: Any) -> Any:
    """Return an unfitted copy of an estimator, or a deep copy of another value."""
    if not isinstance(value, Estimator):
        return copy.deepcopy(value)
    if hasattr(value, "__sklearn_clone__"):
        return value.__sklearn_clone__()
    cloned = type(value)(**{name: clone(one) for name, one in value.get_params(deep=False).items()})
    if hasattr(value, OUTPUT):
        setattr(cloned, OUTPUT, getattr(value, OUTPUT))
    return cloned


def check_is_fitted(estimator: object) -> None:
    """Raise scikit-learn's NotFittedError, with our methods that fit or load, for an estimator that is not fitted."""
    if any(name.endswith("_") and not name.startswith("__") for name in vars(estimator)):
        return
    from sklearn.exceptions import NotFittedError  # noqa: PLC0415 it takes a second to import

    remedy = "call fit(frame) first"
    if hasattr(estimator, "fit_write"):
        remedy += ", or fit_write(frame, path) to fit and write; Preprocessor.load(path) returns a saved one"
    raise NotFittedError(f"this {type(estimator).__name__} instance is not fitted yet: {remedy}")


def to_json_value(value: Any, what: str = "the parameter") -> Any:
    """Return a parameter as a JSON value.

    NumPy values, as of a parameter search, become Python values. Functions raise a ConfigError that names `what`.
    """
    if type(value) in PLAIN_TYPES:
        return value
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


class Parametrized(Estimator):
    """Base class with parameters stored unchanged.

    `validate` checks that a `column` is a name and a `seed` an integer. A subclass sets `type`, its name in JSON.
    """

    type: ClassVar[str]

    def validate(self) -> None:
        """Raise `ConfigError` for invalid parameters."""
        self._check_column()
        if not is_integer(getattr(self, "seed", 0)):
            raise self._error("seed", "an integer", "For example, use seed=42.")

    def _check_column(self) -> None:
        """Raise ConfigError unless `column` is a name."""
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
    """Return the object for a result of `to_dict`; None for None.

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
