"""What happens to missing cells, for all types.

Strategies that put one value everywhere leave parsed columns alone: the value is learned, its weight is added to the
summary, and `encode` writes it. Only `ffill` and `bfill` look beyond the borders of a partition. Where they find no
cell, and in new rows that a write would drop, a fallback is put, which was learned too and has no weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa

Strategy = Literal["fill_with_const", "fill_with_mode", "bfill", "ffill", "drop_row"]


@dataclass(frozen=True)
class Border:
    """First and last present cell of a partition, as Python values; both None where nothing is present."""

    first: Any = None
    last: Any = None

    @classmethod
    def of(cls, parsed: pa.Array) -> Border:
        present = np.flatnonzero(valid_mask(parsed))
        if not len(present):
            return cls()
        return cls(parsed[int(present[0])].as_py(), parsed[int(present[-1])].as_py())


NeighbourStrategy = Literal["ffill", "bfill"]
BorderValue = (
    Any  # the cell, as a Python value, that fills what has no neighbour inside its partition; None if there is none
)


class NeighbourImputer:
    """Completes a column with the rows around, wherever partitions are cut.

    Each partition tells its `edge`, `carries` turns the edges of all into what each of them is told, and `complete`
    takes that. `learned` is None while learning.
    """

    used_in_fit: bool = True  # whether columns are completed already while learning
    per_split: bool = False  # whether rows of other splits are no neighbours, where splits are known: `hide` hides them

    def __init__(self, strategy: NeighbourStrategy) -> None:
        self._strategy = strategy

    @classmethod
    def of(cls, strategy: str | None) -> Self | None:
        """Return what fills gaps by a strategy, if it is one of those by which a neighbour does."""
        neighbour = neighbour_strategy(strategy)
        return None if neighbour is None else cls(neighbour)

    def find_border(self, parsed: pa.Array, learned: Any = None) -> Any:
        return Border.of(parsed)

    def compute_border_values(self, borders: Sequence[Any]) -> list[Any]:
        """Return for each partition the cell that fills its outermost gap.

        `ffill` takes the last present cell of the partitions before, and where there is none the first one of the
        frame; `bfill` is its mirror image.
        """
        if self._strategy == "bfill":
            return NeighbourImputer("ffill").compute_border_values(
                [Border(border.last, border.first) for border in reversed(borders)]
            )[::-1]
        border_value = next((border.first for border in borders if border.first is not None), None)
        result = []
        for border in borders:
            result.append(border_value)
            border_value = border_value if border.last is None else border.last
        return result

    def hide(self, parsed: pa.Array, hidden: np.ndarray) -> pa.Array:
        """Return a column without what the hidden cells hold; they keep their places."""
        raise NotImplementedError

    def complete(self, parsed: pa.Array, border_value: BorderValue, learned: Any = None) -> pa.Array:
        """Fill every gap from the nearest present cell before (`ffill`) or after it, borders from `border_value`."""
        if not parsed.null_count:
            return parsed
        valid, rows, filler = valid_mask(parsed), np.arange(len(parsed)), pa.array([border_value], parsed.type)
        if self._strategy == "ffill":
            nearest = np.maximum.accumulate(np.where(valid, rows + 1, 0))
            return pa.concat_arrays([filler, parsed]).take(pa.array(nearest))
        nearest = np.minimum.accumulate(np.where(valid, rows, len(parsed))[::-1])[::-1]
        return pa.concat_arrays([parsed, filler]).take(pa.array(nearest))


def neighbour_strategy(strategy: str | None) -> NeighbourStrategy | None:
    """Return a strategy if it is one of those by which a neighbour fills a gap."""
    return strategy if strategy in ("ffill", "bfill") else None  # type: ignore[return-value]


def valid_mask(parsed: pa.Array) -> np.ndarray:
    """Return which cells are present."""
    if not parsed.null_count:
        return np.ones(len(parsed), bool)
    valid: np.ndarray = parsed.is_valid().to_numpy(zero_copy_only=False)
    return valid
