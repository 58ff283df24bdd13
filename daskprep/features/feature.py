"""The base of every feature type: its contract, and the face of scikit-learn."""

from __future__ import annotations

import inspect
import typing
from dataclasses import dataclass
from typing import Any, TypeVar

from daskprep.errors import hints_parameters
from daskprep.features.base import Contract, Invalid, Learned, LearnedT
from daskprep.features.estimator import Estimator
from daskprep.summaries.base import SummaryT

AnyFeature = TypeVar("AnyFeature", bound="Feature[Any, Any]")


@dataclass(kw_only=True, eq=False, repr=False)
class Feature(Contract[SummaryT, LearnedT], Estimator):
    """Base of every type.

    ``Feature[S, L]`` summarizes to `S` and learns `L`; a type checker then sees what goes from function to function.
    A subclass stores its parameters in `__init__`, untouched, and gives pure functions of Arrow and NumPy arrays.
    Missing cells are null in a parsed column; `encode` may write anything for them, since the base class puts the
    learned fill value there.

    Parameters
    ----------
    missing_indicator : bool
        Whether a second output, "_missing", tells which cells were missing or unreadable.
    invalid : {"missing", "raise"}
        Whether a cell that cannot be read counts as missing or raises `RejectedValueError`.
    column : str or None
        Column to read, if its name differs from that of the feature.
    """

    missing_indicator: bool = False
    invalid: Invalid = "missing"
    column: str | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for given in (one for base in vars(cls).get("__orig_bases__", ()) for one in typing.get_args(base)):
            if isinstance(given, type) and issubclass(given, Learned) and "learned_type" not in vars(cls):
                cls.learned_type = given
        if "kind" in vars(cls) and "holds" not in vars(cls):
            cls.holds = "others"  # what a type of another name decodes to may be anything
        if "__init__" in vars(cls):
            setattr(cls, "__init__", hints_parameters(cls.__init__))  # noqa: B010 mypy refuses the assignment
        _check_parameters(cls)


@typing.dataclass_transform(eq_default=False, kw_only_default=True)
def with_parameters(cls: type[AnyFeature]) -> type[AnyFeature]:
    """Make the annotated fields of a type the parameters of its `__init__`, after those that it inherits."""
    made = dataclass(kw_only=True, eq=False, repr=False)(cls)
    _check_parameters(made)
    setattr(made, "__init__", hints_parameters(made.__init__))  # noqa: B010 as above
    return made


def _check_parameters(cls: type[Feature]) -> None:
    """Raise TypeError for a parameter of which the attribute would hide what the package calls."""
    own = vars(Feature)["__dataclass_fields__"]
    for name in (name for name in inspect.signature(cls.__init__).parameters if name not in own):
        hook = inspect.getattr_static(cls, name, None)
        if name == "kind" or hasattr(Feature, name) or inspect.isroutine(hook) or isinstance(hook, property):
            owner = next((base for base in cls.__mro__ if name in vars(base) and base is not Contract), Feature)
            raise TypeError(
                f'{cls.__name__}: the parameter "{name}" of __init__ hides {owner.__name__}.{name}, which daskprep '
                "uses: give the parameter another name"
            )
