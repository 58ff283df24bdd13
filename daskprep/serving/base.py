"""What the row encoders of all types share: how cells are read, and what stands for missing ones."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from daskprep.errors import RejectedValueError

NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)


class RowEncoder(ABC):
    """Encodes the cells of one feature just as `encode` of its type does.

    It holds nothing that changes once it is made, so that threads may share it.

    Parameters
    ----------
    name : str
        The feature's name.
    params, learned : mapping
        Its parameters and what it learned, as the saved JSON has them.
    """

    def __init__(self, name: str, params: Mapping[str, Any], learned: Mapping[str, Any]) -> None:
        self.name = name
        self.column: str = params.get("column") or name
        self.params = params
        self.learned = learned
        self.prepare()
        fill = learned.get("fill_value")
        self.fill = None if fill is None else self.read_fill(fill)

    def prepare(self) -> None:
        """Make of parameters and learned values what `read` and `arrays` use."""

    @abstractmethod
    def read(self, cell: Any) -> Any:
        """Return the value of a cell, None if it is missing or cannot be read."""

    def read_fill(self, fill: Any) -> Any:
        """Return the value that stands for missing cells."""
        return self.read(fill)

    @abstractmethod
    def arrays(self, values: Sequence[Any]) -> dict[str, np.ndarray]:
        """Return the arrays of values, none of which is missing, by the suffix of the output."""

    def encode(self, cells: Sequence[Any]) -> dict[str, np.ndarray]:
        """Return the arrays of cells, with a row for each, by the suffix of the output."""
        read = self.read
        values = [read(cell) for cell in cells]
        if any(value is None for value in values):
            self._complete(values, cells)
        return self.arrays(values)

    def expand(self, encoded: np.ndarray) -> np.ndarray:
        """Return what a model reads, as batches of a loader have it."""
        return encoded

    def _complete(self, values: list[Any], cells: Sequence[Any]) -> None:
        """Put values in the places of missing ones, or raise RejectedValueError."""
        if self.params.get("invalid") == "raise":
            for value, cell in zip(values, cells, strict=True):
                if value is None and not is_missing(cell):
                    raise RejectedValueError(
                        f'column "{self.column}": {cell!r} cannot be read; mend it or use invalid="missing"'
                    )
        strategy = self.params.get("missing_value_strategy")
        if strategy in ("ffill", "bfill"):
            order = range(len(values)) if strategy == "ffill" else range(len(values) - 1, -1, -1)
            last = next((values[i] for i in order if values[i] is not None), None)
            for i in order:
                last = values[i] = last if values[i] is None else values[i]
        for i, value in enumerate(values):
            if value is None:
                if self.fill is None:
                    raise RejectedValueError(
                        f'column "{self.column}": the cell of row {i} is missing, and nothing was learned to stand for '
                        'it: give a value, or fit with "fill_with_const" and a fill_value'
                    )
                values[i] = self.fill


def is_missing(cell: Any) -> bool:
    """Tell whether a cell is None, NaN or NaT."""
    return cell is None or (cell != cell) is True or type(cell).__name__ in ("NaTType", "NAType")


def number_of(cell: Any) -> float | None:
    """Return the finite double that a cell holds or states, None if there is none."""
    kind = type(cell)
    if kind is float:
        return cell if math.isfinite(cell) else None
    if kind is int or kind is bool:
        return float(cell)
    if kind is str:
        return _number_in(cell)
    if cell is None:
        return None
    if isinstance(cell, np.generic):
        return number_of(cell.item())
    return _number_in(str(cell))


def _number_in(text: str) -> float | None:
    text = text.strip()
    if NUMBER.fullmatch(text) is None:
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def text_of(cell: Any) -> str | None:
    """Return the one text of a value, whatever type holds it, None if it is missing."""
    kind = type(cell)
    if kind is str:
        return str(cell)
    if kind is int or kind is bool:
        return str(cell)
    if kind is float:
        return _text_of_float(cell)
    if is_missing(cell):
        return None
    if isinstance(cell, np.generic):
        return text_of(cell.item())
    raise NotImplementedError(kind)  # dates, decimals, bytes, UUIDs: as sources/cell_text.py says


def _text_of_float(cell: float) -> str | None:
    if cell != cell:
        return None
    return str(int(cell)) if cell.is_integer() and abs(cell) < 2.0**63 else repr(cell)


def ids_type(count: int) -> np.dtype[Any]:
    """Return the smallest unsigned type that holds so many ids."""
    return np.min_scalar_type(max(count - 1, 0))
