"""What the row encoders of all types share: how a column is read, and what stands for its missing cells."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from daskprep.errors import DaskprepError, RejectedValueError
from daskprep.steps.cells import is_missing, text_of

MISSING = "_missing"  # the output of a missing indicator
CELL_KINDS = ("missing", "unreadable", "unseen")
Arrays = dict[str, np.ndarray]
CellReport = dict[str, dict[int, Any]]
"""By one of `CELL_KINDS`: cells by the number of their row."""
RowMappings = Sequence[Mapping[str, Any]]


class RowEncoder(ABC):
    """Encodes the cells of one feature just as `encode` of its type does.

    Parameters and what was learned are as the saved JSON has them. It holds nothing that changes once it is made, so
    that threads may share it.
    """

    uses_neighbours = False  # whether cells that are there may change by what is around them

    def __init__(self, name: str, params: Mapping[str, Any], learned: Mapping[str, Any]) -> None:
        self.name = name
        self.column: str = params.get("column") or name
        self.columns: tuple[str, ...] = (self.column,)  # what it reads, its own column first
        self.params = params
        self.learned = learned
        self.has_missing_indicator: bool = params.get("missing_indicator", False)
        self.nulls = strip_null_values(params)
        self.prepare()
        fill = learned.get("fill_value")
        self.fill = None if fill is None else self.read_fill(fill)
        if params.get("missing_value_strategy") == "keep":
            self.fill = math.nan

    def prepare(self) -> None:  # noqa: B027 a type may have nothing to prepare
        """Make of parameters and learned values what `read` and `to_arrays` use."""

    @abstractmethod
    def read(self, cell: Any) -> Any:
        """Return the value of a cell, None if it is missing or cannot be read."""

    def read_fill(self, fill: Any) -> Any:
        """Return the value that stands for missing cells."""
        return self.read(fill)

    @abstractmethod
    def to_arrays(self, values: Sequence[Any]) -> Arrays:
        """Return the arrays of values, none of which is missing, by the suffix of the output."""

    def expand(self, encoded: np.ndarray) -> np.ndarray:
        """Return what a model reads of an array, as batches of a loader have it."""
        return encoded if encoded.dtype.kind == "f" else encoded.astype(np.int64)

    def apply_neighbours(self, values: list[Any]) -> list[Any]:
        """Return values with what the rows around make of them; None where they have none."""
        strategy = self.params["missing_value_strategy"]
        return fill_from_neighbours(values, strategy) if strategy in ("ffill", "bfill") else values

    def encode(self, rows: RowMappings) -> Arrays:
        """Return the arrays of rows by the suffix of the output; KeyError for a column that one of them has not."""
        read = self._read_present if self.nulls else self.read
        try:
            cells = self.cells(rows)
            values = [read(cell) for cell in cells]
            indicators = (
                {MISSING: np.array([value is None for value in values], np.uint8)} if self.has_missing_indicator else {}
            )
            if self.uses_neighbours or [value for value in values if value is None]:
                values = self._fill_missing(values, cells)
            return {**self.to_arrays(values), **indicators}
        except DaskprepError as error:
            raise type(error)(f'column "{self.column}": {error}') from error
        except (ValueError, RecursionError) as error:  # no UTF-8, numbers of more digits than Python writes, deep lists
            raise RejectedValueError(f'column "{self.column}": {error}; correct the cell') from error

    def report(self, rows: RowMappings) -> CellReport:
        """Return the cells that are missing, unreadable and unseen, as `Preprocessor.cell_counts` counts them."""
        flagged: CellReport = {kind: {} for kind in CELL_KINDS}
        for number, (row, cell) in enumerate(zip(rows, self.cells(rows), strict=True)):
            shown = row[self.column] if self.column in self.columns else cell
            if self._read_present(cell) is None:
                flagged["missing"][number] = shown
                if not self._is_missing(cell):
                    flagged["unreadable"][number] = shown
            elif self.is_unseen(cell):
                flagged["unseen"][number] = shown
        return {kind: cells for kind, cells in flagged.items() if cells}

    def is_unseen(self, cell: Any) -> bool:
        """Tell whether a cell that can be read holds a category or token without an id of its own."""
        return False

    def cells(self, rows: RowMappings) -> list[Any]:
        """Return the cell of each row."""
        column = self.column
        return [row[column] for row in rows]

    def _read_present(self, cell: Any) -> Any:
        return None if self._is_missing(cell) else self.read(cell)

    def _is_missing(self, cell: Any) -> bool:
        return is_missing(cell) or (bool(self.nulls) and (text_of(cell) or "").strip() in self.nulls)

    def _fill_missing(self, values: list[Any], cells: Sequence[Any]) -> list[Any]:
        if self.params.get("invalid") == "raise":
            for number, (value, cell) in enumerate(zip(values, cells, strict=True)):
                if value is None and not self._is_missing(cell):
                    raise RejectedValueError(
                        f'{cell!r} of row {number:,} cannot be read; correct it, or use invalid="missing"'
                    )
        values = self.apply_neighbours(values)
        if self.fill is None and any(value is None for value in values):
            raise RejectedValueError(
                "a value is missing, and no fill value was learned: give a value, or fit with "
                '"fill_with_const" and a fill_value'
            )
        return [self.fill if value is None else value for value in values]


def strip_null_values(params: Mapping[str, Any]) -> frozenset[str]:
    """Return the texts that count as missing cells, without the white space around them."""
    return frozenset(text.strip() for text in params.get("null_values") or ())


def fill_from_neighbours(values: Sequence[Any], strategy: str) -> list[Any]:
    """Return values, None replaced by the nearest value before ("ffill") or after it, or else on the other side."""
    filled = list(values)
    order = range(len(filled)) if strategy == "ffill" else range(len(filled) - 1, -1, -1)
    last = next((filled[i] for i in order if filled[i] is not None), None)
    for i in order:
        last = filled[i] = last if filled[i] is None else filled[i]
    return filled


def smallest_uint(count: int) -> np.dtype[Any]:
    """Return the smallest unsigned type that holds every id below `count`."""
    return np.min_scalar_type(max(count - 1, 0))
