"""The parameters that all types share, and annotations of parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal


@dataclass(frozen=True)
class AtLeast:
    """Inclusive lower bound of a number, for annotations."""

    bound: float


Count = Annotated[int, AtLeast(1)]
NonNegative = Annotated[float, AtLeast(0)]
Truncation = Literal["keep_start", "keep_end"]
Strategy = Literal["fill_with_const", "fill_with_mode", "bfill", "ffill", "drop_row"]
Invalid = Literal["missing", "raise"]

# Parameters that were renamed; saved files keep the former name.
SAVED_AS = {"positive": "fallback_true_label"}
PARAMETER_NAMES = {saved_as: name for name, saved_as in SAVED_AS.items()}


@dataclass(kw_only=True, eq=False, repr=False)
class Parameters:
    """Parameters of every type. Each type declares its own next to its row encoder, and its feature inherits them."""

    missing_indicator: bool = False
    invalid: Invalid = "missing"
    column: str | None = None

    def reads(self, name: str) -> list[str]:
        """Return the columns that a feature with this name reads, its main column first: arguments of `parse`."""
        return [self.column or name]
