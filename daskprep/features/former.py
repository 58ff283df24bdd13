"""Hooks by the names of the release before, which types of one's own may define and others may call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from daskprep.features.base import Contract, validate
from daskprep.features.missing import may_drop_rows

_DEFINED = {
    "fill_from_cell": "define learn_fill",
    "mean": "define learn_fill",
    "dropped": "define drops",
    "may_drop_rows": "define drops",
    "check_parameters": "define check; this is not called",
    "counts_cells": "let cells return None; this is not called",
    "encoded_fill": "let encode write it for null cells, and parse_fill return one; this is not called",
    "recognize": "define it for what learn returns; this is not called",
    "read": "let parse take all columns that reads names; this is not called",
    "any_length": "return it by limits, in Limits; this is not looked at",
}
CALLED: dict[str, Callable[[Any], Any]] = {
    "check_parameters": lambda feature: lambda: validate(feature),
    "may_drop_rows": may_drop_rows,
}


def adopt(cls: type[Contract]) -> None:
    """Let a type that was just made go on under the names that it gives its hooks, with a warning."""
    given = _DEFINED.keys() & vars(cls).keys()
    for name in sorted(given):
        warnings.warn(f"{cls.__name__}.{name}: {_DEFINED[name]}", DeprecationWarning, stacklevel=3)
    if given & {"mean", "fill_from_cell"}:
        cls.learn_fill = _learn_fill  # type: ignore[method-assign]
    if given & {"dropped", "may_drop_rows"}:
        cls.drops = property(_drops)  # type: ignore[assignment, method-assign]


def _learn_fill(self: Any, summary: Any) -> Any:
    if self.missing_value_strategy == "fill_with_mean" and hasattr(self, "mean"):
        return self.mean(summary.values)
    own = (vars(kind).get("learn_fill", _learn_fill) for kind in type(self).__mro__)
    value = next(hook for hook in own if hook is not _learn_fill)(self, summary)
    return self.fill_from_cell(value) if hasattr(self, "fill_from_cell") else value


def _drops(self: Any) -> Any:
    if hasattr(type(self), "may_drop_rows") and not self.may_drop_rows:
        return None
    return getattr(self, "dropped", None)
