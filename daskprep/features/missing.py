"""Imputation of missing cells, for all feature types.

Strategies with one value for all cells leave parsed columns unchanged: the value is learned, counts in the summary
with its weight, and is written by `encode`. Only `ffill` and `bfill` need rows of other partitions. Without a neighbor,
and in new rows that a write would drop, they use a learned fallback, which has no weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa

from daskprep.columns.kernels import valid_mask
from daskprep.rows.base import NEIGHBOUR_STRATEGIES
from daskprep.rows.base import Strategy as Strategy  # noqa: PLC0414 custom types import it from here


@dataclass(frozen=True)
class Border:
    """First and last present cell of a partition, or None."""

    first: Any = None
    last: Any = None

    @classmethod
    def of(cls, parsed: pa.Array) -> Border:
        """Return the first and the last value, if there is any."""
        present = np.flatnonzero(valid_mask(parsed))
        if not len(present):
            return cls()
        return cls(parsed[int(present[0])].as_py(), parsed[int(present[-1])].as_py())


NeighbourStrategy = Literal["ffill", "bfill"]
BorderValue = Any  # Python value that fills cells without a neighbor in their own partition; None if there is none


class NeighbourImputer:
    """Fills missing cells from neighboring rows, independently of the partitioning.

    `find_border` collects the border of each partition, `compute_border_values` turns the borders of all partitions
    into one value per partition, and `complete` fills a column with it. `learned` is None during learning.
    """

    used_in_fit: bool = True  # whether columns are also filled during learning
    per_split: bool = False  # whether cells of other splits are hidden (`hide`), if splits are assigned
    sees_earlier_splits: bool = False  # but not of earlier ones: train, validation, test

    def __init__(self, strategy: NeighbourStrategy) -> None:
        self._strategy = strategy

    @classmethod
    def of(cls, strategy: str | None) -> Self | None:
        """Return the imputer of "ffill" or "bfill"; None for others."""
        neighbour = neighbour_strategy(strategy)
        return None if neighbour is None else cls(neighbour)

    def mask_replaced(self, parsed: pa.Array, learned: Any) -> np.ndarray | None:
        """Return a mask of present cells to replace, or None."""
        return None

    def find_border(self, parsed: pa.Array, learned: Any = None) -> Any:
        """Return the cells that other partitions may need."""
        return Border.of(parsed)

    def compute_border_values(self, borders: Sequence[Any]) -> list[Any]:
        """Return the value for the outermost cells of each partition.

        `ffill` uses the last present cell of earlier partitions, or else the first present cell of the frame.
        `bfill` is the mirror image.
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
        """Return a column whose masked cells fill no other cell."""
        raise NotImplementedError

    def complete(self, parsed: pa.Array, border_value: BorderValue, learned: Any = None) -> pa.Array:
        """Fill missing cells from the cell before (ffill) or after, else from `border_value` unless it is None."""
        if not parsed.null_count:
            return parsed
        valid, rows, filler = valid_mask(parsed), np.arange(len(parsed)), pa.array([border_value], parsed.type)
        if self._strategy == "ffill":
            nearest = np.maximum.accumulate(np.where(valid, rows + 1, 0))
            return pa.concat_arrays([filler, parsed]).take(pa.array(nearest))
        nearest = np.minimum.accumulate(np.where(valid, rows, len(parsed))[::-1])[::-1]
        return pa.concat_arrays([parsed, filler]).take(pa.array(nearest))


def neighbour_strategy(strategy: str | None) -> NeighbourStrategy | None:
    """Return the strategy if it uses neighbors, else None."""
    return strategy if strategy in NEIGHBOUR_STRATEGIES else None  # type: ignore[return-value]
