"""Base class of summaries, which merge with ``+`` and limit their memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from typing_extensions import TypeVar

from daskprep.storage.checkpoint import checkpointable, field_names


@dataclass(frozen=True)
class Summary:
    """Small, picklable summary of rows that merges with ``+``.

    Merging is associative and commutative: final results are equal to the last bit for every order and grouping.
    ``summary * times`` summarizes the same rows repeated `times` times. A dataclass whose fields all have ``+`` and
    ``*`` needs no other code; a field that is None on either side of a merge is None in the result.

    >>> from dataclasses import dataclass
    >>> from daskprep.columns.summaries import Moments, Range, Summary
    >>> import numpy as np
    >>> @dataclass(frozen=True)
    ... class Shape(Summary):
    ...     moments: Moments
    ...     range: Range
    >>> def shape(values):
    ...     return Shape(Moments.of(np.array(values)), Range.of(np.array(values)))
    >>> both = shape([1.0, 2.0]) + shape([6.0])
    >>> both.moments.mean(), both.range.max
    (3.0, 6.0)
    """

    def __add__(self, other: Self) -> Self:
        if type(other) is not type(self):
            return NotImplemented
        names = field_names(type(self))
        return type(self)(**{name: add_fields(getattr(self, name), getattr(other, name)) for name in names})

    def __mul__(self, times: int) -> Self:
        values = {name: getattr(self, name) for name in field_names(type(self))}
        repeated = {name: None if value is None else value * times for name, value in values.items()}
        return type(self)(**repeated)

    def __eq__(self, other: object) -> bool:
        names = field_names(type(self))
        same = (np.array_equal(getattr(self, name), getattr(other, name)) for name in names)
        return type(other) is type(self) and all(same)

    __hash__ = None  # type: ignore[assignment]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        checkpointable(cls)

    def limit_memory(self, folder: str | None) -> Self:
        """Return an equal summary of limited memory, after every merge."""
        changed: dict[str, Any] = {}
        for name in field_names(type(self)):
            value = getattr(self, name)
            if isinstance(value, Summary) and (limited_value := value.limit_memory(folder)) is not value:
                changed[name] = limited_value
        return replace(self, **changed) if changed else self


SummaryT = TypeVar("SummaryT", bound=Summary, default=Any)


def add_fields(left: Any, right: Any) -> Any:
    """Return the sum of two fields, None if either is None."""
    return None if left is None or right is None else left + right


def finite_doubles(values: np.ndarray) -> np.ndarray:
    """Return `values` as a float64 vector; raise ValueError for NaN and infinity."""
    doubles = np.ascontiguousarray(values, dtype=np.float64).ravel()
    finite = np.isfinite(doubles)
    if not finite.all():
        nonfinite = doubles[int(np.argmin(finite))]
        raise ValueError(f"Summaries take finite numbers, not {nonfinite}: make such cells null when parsing.")
    return doubles
