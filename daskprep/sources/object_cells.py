"""Conversion of cells that are Python objects to Arrow arrays.

| cells of the column | result |
|---|---|
| text, integers, floats, booleans, bytes, dates, times or decimals alone | that Arrow type |
| integers and floats | double |
| scalars of several types, integers beyond 64 bits, times in several zones or with nanoseconds | `MIXED` cells |
| decimals with more than 76 digits in total | `MIXED` cells |
| lists, tuples, sets, 1-D arrays | lists; sets are sorted, elements of several types are text |
| objects of images or audio (see `daskprep.media.cells`), also with other cells | `CELL_TYPE` structs |
| text and bytes of files | `CELL_TYPE` structs |
| None, NaN, NaT, pandas.NA | null |
| other dicts and objects, lists with scalars, lists with arrays of several dimensions | ColumnError |
"""

from __future__ import annotations

import datetime as dt
import decimal
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.types as pt

from daskprep.errors import ColumnError, RejectedValueError
from daskprep.media.cells import ACCEPTED_OBJECTS, MediaKind, convert_media_objects, is_pillow, is_tensor
from daskprep.sources.cell_text import SCALARS, cell_texts, mixed_cells

_LIST_TYPES = (list, tuple, set, frozenset, np.ndarray, pd.Series)
_BOOLEANS = (bool, np.bool_)
_NUMBERS = (int, float, np.integer, np.floating)
_SMALL_FLOATS = (np.float16, np.float32)
_BYTES = (bytes, bytearray)
_MEDIA: frozenset[str] = frozenset({"image", "audio"})
# Kinds of scalars with a separate Arrow type (None: the type that Arrow infers), narrower kinds first.
_SCALAR_KINDS: dict[str, tuple[tuple[type, ...], pa.DataType | None]] = {
    "text": ((str,), pa.string()),
    "boolean": (_BOOLEANS, pa.bool_()),
    "integer": ((int, np.integer), pa.int64()),
    "single": (_SMALL_FLOATS, pa.float32()),
    "float": ((float, np.floating), pa.float64()),
    "number": (_NUMBERS, pa.float64()),
    "bytes": (_BYTES, pa.binary()),
    "decimal": ((Decimal,), None),
    "datetime": ((dt.datetime,), None),
    "date": ((dt.date,), pa.date32()),
    "time": ((dt.time,), None),
    "duration": ((dt.timedelta,), None),
}
_ZONE_TYPES = (dt.timezone, ZoneInfo)
_MINUTE = dt.timedelta(minutes=1)  # unit of Arrow's offsets from UTC
_MAX_DIGITS = 76  # of decimal256
_NO_TRAPS = decimal.Context(traps=[])  # a signaling NaN is a missing value, not an error

# Every format of images and audio has a zero byte in its first bytes; text in single-byte encodings has none.
_HEAD_BYTES = 8_000


def cell_kind(cells: np.ndarray) -> str:
    """Return the kind of the cells of a column, which determines its Arrow type.

    A kind of scalar, such as "text"; "missing" (only missing values), "list", "mixed" (scalars of several types),
    "image" or "audio" (objects of media, also with other cells), or "refused".
    """
    present = cells[~_is_missing(cells)]
    types = set(map(type, present))
    if not types:
        return "missing"
    for kind, (accepted, _) in _SCALAR_KINDS.items():
        if _are_all_of(types, accepted) and (kind == "boolean" or bool not in types):
            return _lossless_kind(kind, present, types)
    if _are_all_of(types, _LIST_TYPES):
        # In a readable column of lists no cell is media, so the first cell decides, except for arrays.
        return (_media_kind(present if types == {np.ndarray} else present[:1]) and _media_kind(present)) or "list"
    if _are_all_of(types, SCALARS):
        return "image" if _are_paths_and_files(present, types) else "mixed"
    return _media_kind(present) or "refused"


def _is_missing(cells: np.ndarray) -> np.ndarray:
    """Return a mask of missing values: None, NaN, NaT and pandas.NA."""
    with decimal.localcontext(_NO_TRAPS):
        return pd.isna(cells)


def _media_kind(cells: np.ndarray) -> MediaKind | None:
    """Return the kind of media among the cells; None if no cell is certainly media."""
    if any(map(_is_audio, cells)):
        return "audio"
    return "image" if any(map(_is_medium, cells)) else None


def _is_audio(cell: object) -> bool:
    """Return whether a cell is certainly audio: a dict with "array", or a tuple of samples and rate."""
    if isinstance(cell, Mapping):
        return "array" in cell
    # A tuple of a list and a number is no readable list, so it is a pair of samples and rate.
    if not isinstance(cell, tuple) or len(cell) != 2 or not isinstance(cell[1], _NUMBERS):
        return False
    return isinstance(cell[0], list) or getattr(cell[0], "ndim", 0) in {1, 2}


def _is_medium(cell: Any) -> bool:
    """Return whether a cell is media: a dict of a file, an array of pixels, a tensor, or a Pillow image."""
    if isinstance(cell, Mapping):
        return "bytes" in cell or "path" in cell
    if isinstance(cell, np.ndarray) or is_tensor(cell):
        return bool(cell.ndim >= (2 if isinstance(cell, np.ndarray) else 1))
    return is_pillow(cell)


def _are_paths_and_files(present: np.ndarray, types: set[type]) -> bool:
    """Return whether all cells are paths or bytes, and some are bytes of a file, not encoded text."""
    if not _are_all_of(types, (str, os.PathLike, *_BYTES)):
        return False
    return any(b"\0" in cell[:_HEAD_BYTES] and not _is_text(cell) for cell in present if isinstance(cell, _BYTES))


def _are_all_of(types: Iterable[type], accepted: tuple[type, ...]) -> bool:
    return all(issubclass(kind, accepted) for kind in types)


def _lossless_kind(kind: str, present: np.ndarray, types: set[type]) -> str:
    """Return `kind`, or "mixed" if Arrow's type for that kind would change values silently."""
    if kind == "decimal":
        return kind if all(map(Decimal.is_finite, present)) and _count_digits(present) <= _MAX_DIGITS else "mixed"
    if kind in ("float", "number") and not types.isdisjoint(_SMALL_FLOATS):
        return "mixed"
    if kind in ("datetime", "time"):
        # Arrow stores one zone for a column, by its name, and no zone for times of day.
        zone, zone_types = present[0].tzinfo, () if kind == "time" else _ZONE_TYPES
        if any(cell.tzinfo != zone for cell in present) or not (zone is None or isinstance(zone, zone_types)):
            return "mixed"
        if isinstance(zone, dt.timezone) and zone.utcoffset(None) % _MINUTE:
            return "mixed"
    if kind in ("datetime", "duration"):
        # Arrow converts Python objects to microseconds.
        nanosecond_field = "nanosecond" if kind == "datetime" else "nanoseconds"
        return "mixed" if any(getattr(cell, nanosecond_field, 0) for cell in present) else kind
    if kind == "date" and any(issubclass(cell_type, dt.datetime) for cell_type in types):
        return "mixed"
    if kind == "integer":
        return kind if min(present) >= -(2**63) and max(present) < 2**63 else "mixed"
    if kind == "number":
        integers = [abs(int(cell)) for cell in present if not isinstance(cell, float | np.floating)]
        return kind if max(integers) <= 2**53 else "mixed"
    return kind


def _count_digits(present: np.ndarray) -> int:
    """Return the number of digits of the narrowest type for all of these decimals."""
    fraction = max(-cast("int", cell.as_tuple().exponent) for cell in present)
    return max(max(map(Decimal.adjusted, present)) + 1, 0) + max(fraction, 0)


@dataclass(frozen=True)
class Cells:
    """Cells of a slice of a column, with the facts for error messages.

    Attributes
    ----------
    values : numpy.ndarray of objects
        The cells.
    column : str
        Name of the column.
    kind : str
        The `cell_kind` of all rows of the column, so that all slices have one type.
    first_row : int or None
        Row number of the first cell; None if unknown, as in a Dask partition.
    """

    values: np.ndarray
    column: str
    kind: str
    first_row: int | None

    def to_arrow(self) -> pa.Array:
        """Return the cells as an Arrow array; ColumnError or RejectedValueError for cells that cannot be read."""
        missing = _is_missing(self.values)
        try:
            return self._convert(missing)
        except UnicodeError as error:
            raise self._invalid_text_error(missing) from error
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            if isinstance(error, ColumnError):
                raise
            raise ColumnError(
                f'column "{self.column}", {self.kind} cells that cannot be read: {error}; use .astype(str)'
            ) from error

    def _convert(self, missing: np.ndarray) -> pa.Array:
        """Return the cells as an Arrow array by their kind; errors of Arrow and of encodings are raised unchanged."""
        if self.kind == "missing":
            return pa.nulls(len(self.values))
        if self.kind == "refused":
            raise self._refused_error(missing)
        if self.kind in ("mixed", "list", *_MEDIA):
            cells = [None if gone else cell for gone, cell in zip(missing, self.values, strict=True)]
            if self.kind == "mixed":
                return mixed_cells(cells)
            return (
                self._convert_lists(cells)
                if self.kind == "list"
                else self._convert_media(cells, cast("MediaKind", self.kind))
            )
        return pa.array(self.values, _SCALAR_KINDS[self.kind][1], mask=missing, from_pandas=True)

    def _convert_media(self, objects: list[Any], kind: MediaKind) -> pa.StructArray:
        """Return objects as `CELL_TYPE` structs; ColumnError with the row number of the first unreadable one."""
        cells, unreadable = convert_media_objects(objects, kind)
        if unreadable:
            row, reason = unreadable[0].row, unreadable[0].reason.rstrip(".")
            noun = "an image" if kind == "image" else "audio"
            accepted = ACCEPTED_OBJECTS[kind]
            raise self._error(row, f"this cell cannot be read as {noun} ({reason}); accepted are {accepted}")
        return cells

    def _convert_lists(self, values: list[Any]) -> pa.Array:
        """Return lists as an Arrow list array; as lists of text if their elements have no common plain type."""
        cells = [self._as_list(i, cell) for i, cell in enumerate(values)]
        try:
            array = pa.array(cells, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            array = None
        if array is not None and not _has_objects(array.type):
            return array
        texts = [None if cell is None else self._element_texts(i, cell) for i, cell in enumerate(cells)]
        return pa.array(texts, pa.list_(pa.string()))

    def _as_list(self, i: int, cell: Any) -> Any:
        """Return a cell as a list: sets are sorted by their text; ColumnError for an array that is not 1-D."""
        if isinstance(cell, set | frozenset):
            return sorted(cell, key=str)
        if isinstance(cell, np.ndarray) and cell.ndim != 1:
            problem = f"an array of {cell.ndim} dimensions cannot be read, only of 1; use .ravel() or more columns"
            raise self._error(i, problem)
        return list(cell) if isinstance(cell, pd.Series) else cell

    def _element_texts(self, i: int, cell: Any) -> list[str | None]:
        """Return the elements of a list as texts, None for missing ones; ColumnError for an element of another type."""
        elements = [None if not isinstance(x, _LIST_TYPES) and pd.isna(x) else x for x in cell]
        for element in elements:
            if element is not None and not isinstance(element, SCALARS):
                raise self._error(i, f"a {type(element).__name__} in a list cannot be read: {format_cell(element)}")
        return cell_texts(elements)

    def _refused_error(self, missing: np.ndarray) -> ColumnError:
        """Return the error of the first unreadable cell, or of the first scalar in a column of lists."""
        for i, cell in enumerate(self.values):
            if not missing[i] and not isinstance(cell, (*SCALARS, *_LIST_TYPES)):
                remedy = "put its values in separate columns" if isinstance(cell, dict) else "convert it first"
                return self._error(
                    i, f"a cell of type {type(cell).__name__} cannot be read: {format_cell(cell)}; {remedy}"
                )
        i, cell = next((i, c) for i, c in enumerate(self.values) if not missing[i] and not isinstance(c, _LIST_TYPES))
        problem = f"a cell of type {type(cell).__name__} in a column of lists: {format_cell(cell)}"
        return self._error(i, f"{problem}; make all cells lists, or all text")

    def _invalid_text_error(self, missing: np.ndarray) -> RejectedValueError:
        """Return the error for the first cell that is not UTF-8 text, with its row number."""
        i, cell = next((i, c) for i, c in enumerate(self.values) if not missing[i] and not _is_text(c))
        return RejectedValueError(
            f'column "{self.column}", {self._row_label(i)}: {format_cell(cell)} is not UTF-8 text; decode or correct it'
        )

    def _error(self, i: int, problem: str) -> ColumnError:
        return ColumnError(f'column "{self.column}", {self._row_label(i)}: {problem}')

    def _row_label(self, i: int) -> str:
        return f"row {i} of a partition" if self.first_row is None else f"row {self.first_row + i}"


def _has_objects(kind: pa.DataType) -> bool:
    """Return whether lists of a type are read as text: with structs, times or extension types, also in inner lists."""
    if pt.is_list(kind):
        return _has_objects(kind.value_type)
    # Times in lists are read as text, since Arrow would drop their zones and nanoseconds.
    return pt.is_struct(kind) or pt.is_temporal(kind) or isinstance(kind, pa.BaseExtensionType)


def _is_text(cell: Any) -> bool:
    """Return whether a cell, or each element of a list, is text that can be encoded as UTF-8."""
    try:
        for text in cell_texts(list(cell) if isinstance(cell, _LIST_TYPES) else [cell]):
            (text or "").encode()
    except UnicodeError:
        return False
    return True


def format_cell(cell: Any, max_length: int = 60) -> str:
    """Return the representation of a cell for an error, truncated to `max_length` characters."""
    text = repr(cell)
    return text if len(text) <= max_length else f"{text[:max_length]}..."
