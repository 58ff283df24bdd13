"""Parameters that all types share, and the base class of row encoders: cells of a column, and missing values."""

from __future__ import annotations

import dataclasses
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ClassVar, Literal

import numpy as np

from daskprep.errors import DaskprepError, RejectedValueError, UnfilledCellError
from daskprep.rows.cells import is_missing, text_of
from daskprep.rows.typed import check_fields, later

Truncation = Literal["keep_start", "keep_end"]
Strategy = Literal["fill_with_const", "fill_with_mode", "bfill", "ffill", "drop_row"]
Invalid = Literal["missing", "raise"]


@dataclass(kw_only=True, eq=False, repr=False)
class Parameters:
    """Parameters of every type, which its row encoder declares."""

    missing_indicator: bool = later(False, rows=True)
    invalid: Invalid = "missing"
    column: str | None = None

    def reads(self, name: str) -> list[str]:
        """Return the columns that a feature reads, its main one first."""
        return [self.column or name]


def changed_parameters(params: Parameters) -> set[str]:
    """Return the names of parameters that are not defaults."""
    own = ((field.name, getattr(params, field.name), field.default) for field in dataclasses.fields(params))
    return {name for name, value, default in own if type(value) is not type(default) or value != default}


MISSING = "_missing"  # the output of a missing indicator
NEIGHBOUR_STRATEGIES = ("ffill", "bfill")  # of imputation, from the rows before or after
CELL_KINDS = ("missing", "unreadable", "unseen")
COUNTED = ("missing", "unseen", "out_of_range")  # kinds of cells that row encoders count
count_lock = threading.Lock()
Arrays = dict[str, np.ndarray]
CellReport = dict[str, dict[int, Any]]
"""Cells of one feature: by one of `CELL_KINDS`, then by row number."""
RowMappings = Sequence[Mapping[str, Any]]


def json_number(cell: Any) -> Any:
    """Return a cell, or the text of a float that JSON lacks."""
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell


class RowEncoder(ABC):
    """Encoder of rows for the feature `name`, with the same results as its type's `encode`.

    `learned` is the learned state, as in the saved JSON. After its construction, an encoder changes only its counts in
    `seen`, under a lock, so threads may share it.
    """

    uses_neighbours = False  # whether neighbouring rows may change cells that are not missing
    past: tuple[str | None, int, bool] | None = None
    """Of windows: the column of groups, the number of rows before a row, and whether rows without a group are one."""
    has_vocabulary = False  # whether `is_unknown` may return True
    extent: tuple[Any, Any] | None = None  # smallest and largest value of the fit, if values are in order
    values: ClassVar[tuple[type[Any], ...]] = ()
    """Dataclasses of the learned values that it uses."""

    def __init__(self, name: str, params: Any, learned: Mapping[str, Any]) -> None:
        """Set parameters and learned state, call `prepare`, then read the fill value; NaN if missing ones are kept.

        Raise TypeError for a learned value of another type than its field declares.
        """
        for declared in self.values:
            check_fields(declared, learned)
        self.name = name
        self.columns: tuple[str, ...] = tuple(params.reads(name))  # all columns that it reads, the feature's own first
        self.column: str = params.column or name
        self.params = params
        self.learned = learned
        self.has_missing_indicator: bool = params.missing_indicator
        self.nulls = strip_null_values(vars(params))
        self.seen = dict.fromkeys(COUNTED, 0)
        self.cell_of: Callable[[Mapping[str, Any]], Any] = itemgetter(self.column)  # of a row, as `read` takes it
        self.prepare()
        fill = learned.get("fill_value")
        self.fill = None if fill is None else self.read_fill(fill)
        if params.missing_value_strategy == "keep":
            self.fill = math.nan

    @classmethod
    def create(cls, name: str, params: Any, learned: Mapping[str, Any]) -> RowEncoder:
        """Return the encoder for these parameters."""
        return cls(name, params, learned)

    def require_labels(self) -> None:
        if self.params.missing_value_strategy == "drop_row":
            self.fill = None

    def prepare(self) -> None:  # noqa: B027 optional
        """Set the attributes that `read` and `to_arrays` use, from the parameters and the learned state."""

    @abstractmethod
    def read(self, cell: Any) -> Any:
        """Return the value of a cell, in a form that `to_arrays` takes; None if it is missing or unreadable."""

    def read_fill(self, fill: Any) -> Any:
        """Return the value of the learned fill value."""
        return self.read(fill)

    @abstractmethod
    def to_arrays(self, values: Sequence[Any]) -> Arrays:
        """Return arrays by output of `read` values without None."""

    def expand(self, encoded: np.ndarray) -> np.ndarray:
        """Return an encoded array in the form of batches."""
        return encoded if encoded.dtype.kind == "f" else encoded.astype(np.int64)

    def apply_neighbours(self, values: list[Any]) -> list[Any]:
        """Return values filled by "ffill" and "bfill"."""
        strategy = self.params.missing_value_strategy
        return fill_from_neighbours(values, strategy) if strategy in NEIGHBOUR_STRATEGIES else values

    def encode(self, rows: RowMappings, first: int = 0) -> Arrays:
        """Return arrays by output, with values imputed.

        Rows before `first` are only in the windows of others: they are neither returned nor counted.
        Raise KeyError if a row lacks one of `columns`, RejectedValueError for a cell that cannot be read or imputed.
        """
        read, cell_of = self._read_present if self.nulls else self.read, self.cell_of
        try:
            values = [read(cell_of(row)) for row in rows]
            own = values[first:] if first else values
            if has_missing := None in own:
                self._count("missing", own.count(None))
            if self.has_vocabulary:
                present = [value for value in own if value is not None] if has_missing else own
                if any(map(self.is_unknown, present)):  # or a cell is the symbol "<UNK>" itself
                    both = [one for one in zip(own, map(cell_of, rows[first:]), strict=True) if one[0] is not None]
                    self._count("unseen", sum(self.is_unknown(value) and self.is_unseen(cell) for value, cell in both))
            if self.extent is not None:
                low, high = self.extent
                outside = [value for value in own if value is not None and not low <= value <= high]
                if outside:
                    self._count("out_of_range", len(outside))
            if has_missing or self.uses_neighbours:
                values = self._fill_missing(values, rows)
            arrays = self.to_arrays(values[first:] if first else values)
        except DaskprepError as error:
            raise type(error)(f'column "{self.column}"{self._find_failing(rows[first:])}: {error}') from error
        except (ValueError, RecursionError) as error:  # invalid UTF-8, integers of too many digits, deep lists
            where = self._find_failing(rows[first:])
            raise RejectedValueError(f'column "{self.column}"{where}: {error}; correct the cell') from error
        if self.has_missing_indicator:
            arrays[self.name + MISSING] = np.array([value is None for value in own], np.uint8)
        return arrays

    def report(self, rows: RowMappings, first: int = 0) -> CellReport:
        """Return missing, unreadable and unseen cells by row number, which counts from row `first`.

        Cells with other losses are listed by cause. Unreadable cells are missing too. A kind without cells is left out.
        Infinities and NaN are text.
        """
        rows = rows[first:]
        flagged: CellReport = {kind: {} for kind in CELL_KINDS}
        for number, row in enumerate(rows):
            cell = self.cell_of(row)
            shown = json_number(row[self.column] if self.column in self.columns else cell)
            if self._read_present(cell) is None:
                flagged["missing"][number] = shown
                if not self._is_missing(cell):
                    flagged["unreadable"][number] = shown
                continue
            if self.is_unseen(cell):
                flagged["unseen"][number] = shown
            for cause in self.losses(cell):
                flagged.setdefault(cause, {})[number] = shown
        return {kind: cells for kind, cells in flagged.items() if cells}

    def losses(self, cell: Any) -> Sequence[str]:
        """Return "cut", "clipped" or "rounded" if a cell loses information."""
        return ()

    def is_unseen(self, cell: Any) -> bool:
        """Return whether a present cell has a token that the vocabulary lacks."""
        return self.has_vocabulary and self.is_unknown(self.read(cell))

    def is_unknown(self, value: Any) -> bool:
        """Return whether a value has the id of such tokens."""
        raise NotImplementedError

    def _count(self, kind: str, cells: int) -> None:
        with count_lock:
            self.seen[kind] += cells

    def _find_failing(self, rows: RowMappings) -> str:
        """Return ", row N" for the first row that cannot be read; "" if none, or for a single row."""
        for number, row in enumerate(rows if len(rows) > 1 else ()):
            try:
                self._read_present(self.cell_of(row))
            except (DaskprepError, ValueError, RecursionError):
                return f", row {number}"
        return ""

    def _read_present(self, cell: Any) -> Any:
        return None if self._is_missing(cell) else self.read(cell)

    def _is_missing(self, cell: Any) -> bool:
        return is_missing(cell) or (bool(self.nulls) and (text_of(cell) or "").strip() in self.nulls)

    def _fill_missing(self, values: list[Any], rows: RowMappings) -> list[Any]:
        """Return values with None imputed; RejectedValueError if invalid="raise", or without a fill value."""
        if self.params.invalid == "raise":
            for number, (value, cell) in enumerate(zip(values, map(self.cell_of, rows), strict=True)):
                if value is None and not self._is_missing(cell):
                    raise RejectedValueError(
                        f'{cell!r} of row {number:,} cannot be read; correct it, or use invalid="missing"'
                    )
        values = self.apply_neighbours(values)
        if self.fill is None and any(value is None for value in values):
            raise UnfilledCellError(
                "a value is missing, and no fill value was learned: pass a value, or fit with "
                '"fill_with_const" and a fill_value'
            )
        return [self.fill if value is None else value for value in values]


@dataclass(frozen=True, kw_only=True)
class VocabularyValues:
    """Learned values of a vocabulary in saved JSON."""

    idx2str: list[str]
    special_symbols: Mapping[str, str]


def strip_null_values(params: Mapping[str, Any]) -> frozenset[str]:
    """Return the stripped texts that mark missing cells."""
    return frozenset(text.strip() for text in params.get("null_values") or ())


def fill_from_neighbours(values: Sequence[Any], strategy: str) -> list[Any]:
    """Return values with None replaced by the value before ("ffill") or after; at the end by the nearest."""
    filled = list(values)
    order = range(len(filled)) if strategy == "ffill" else range(len(filled) - 1, -1, -1)
    last = next((filled[i] for i in order if filled[i] is not None), None)
    for i in order:
        last = filled[i] = last if filled[i] is None else filled[i]
    return filled


def smallest_uint(count: int) -> np.dtype[Any]:
    """Return the smallest unsigned dtype for `count` ids."""
    return np.min_scalar_type(max(count - 1, 0))
