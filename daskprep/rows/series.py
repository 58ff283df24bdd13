"""Row encoders of `Vector` and `Timeseries`, and the parser of lists of numbers."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np

from daskprep.errors import ColumnError, RejectedValueError
from daskprep.rows.base import (
    MISSING,
    NEIGHBOUR_STRATEGIES,
    Arrays,
    CellReport,
    Parameters,
    RowEncoder,
    RowMappings,
    Strategy,
    Truncation,
    json_number,
)
from daskprep.rows.cells import (
    LIST_TYPES,
    MAX_EXACT_INTEGER,
    NUMBER_TYPES,
    TIME_TYPES,
    is_missing,
    number_of,
    reject_types,
    text_of,
)
from daskprep.rows.dates import DateParameters
from daskprep.rows.normalization import NORMALIZATIONS, Normalization
from daskprep.rows.typed import AtLeast, Count, Length, later

# Exactly the numbers that Arrow's cast from text accepts.
FLOAT_PATTERN = (
    r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
    r"|[iI][nN][fF]([iI][nN][iI][tT][yY])?|[nN][aA][nN](\([A-Za-z0-9_]*\))?)"
)
MAX_PAST = 1 << 62  # rows of windows without a limit
SEPARATORS = {"space": None, "comma": ",", "underscore": "_"}

_FLOAT = re.compile(FLOAT_PATTERN)
_BRACKETS_AND_COMMAS = str.maketrans(dict.fromkeys(",[]()", " "))
_FLOAT32_OVERFLOW = 2.0**128 - 2.0**103  # the smallest double that float32 rounds to infinity
_NAN = float("nan")

NumberList: TypeAlias = Sequence[float] | np.ndarray


def parse_numbers(cell: Any, separator: str | None = None) -> NumberList | None:
    """Return the numbers of a cell, NaN for empty items; None if the cell is missing or one item is no number.

    Numbers are rounded so that their float32 is the nearest to the decimal text. Text is split at `separator`; None
    splits at white space, commas and brackets.
    """
    if not isinstance(cell, str):
        if isinstance(cell, LIST_TYPES):
            return _parse_list(cell)
        reject_types(cell, TIME_TYPES, "list of numbers")
        if isinstance(cell, NUMBER_TYPES) and not _is_wide(cell):
            is_integer = isinstance(cell, int | np.integer)
            return [_round_for_float32(float(cell), int(cell))] if is_integer else _parse_single(cell)
    text = text_of(cell)
    if text is None or separator is not None:
        return None if text is None else _parse_text(text, separator)
    # With one comma, all separators must be commas: "1,299 2" is unreadable.
    commas = text.count(",")
    numbers = _parse_text(text.translate(_BRACKETS_AND_COMMAS), None)
    return None if numbers is None or (commas and len(numbers) != commas + 1) else numbers


def _is_wide(cell: Any) -> bool:
    """Return whether an integer is beyond int64, so that it is read as text."""
    return isinstance(cell, (int, np.unsignedinteger)) and not -(2**63) <= cell < 2**63


def _parse_single(cell: Any) -> list[float] | None:
    number = number_of(cell)
    return None if number is None or abs(number) >= _FLOAT32_OVERFLOW else [number]


def _parse_text(text: str, separator: str | None) -> list[float] | None:
    """Return the numbers of a text between separators (None: white space); None if one item is no float32 number."""
    if separator is None:
        tokens = text.split()
    else:
        tokens = [token.strip() or "nan" for token in text.split(separator)] if text.strip() else []
    # Arrow rejects "1_000" and non-ASCII digits, which Python's float accepts.
    plain = text.isascii() and (separator == "_" or "_" not in text)
    numbers = []
    for token in tokens:
        try:
            number = float(token)
        except ValueError:
            number = _NAN
            if _FLOAT.fullmatch(token) is None:
                return None
        if not plain and _FLOAT.fullmatch(token) is None:
            return None
        number = _round_for_float32(number, token)
        if abs(number) >= _FLOAT32_OVERFLOW:
            return None
        numbers.append(number)
    return numbers


def _round_for_float32(number: float, exact: Any) -> float:
    """Adjust `number`, the double nearest to `exact`, so that rounding to float32 is correct for `exact` too.

    `exact` is the text, integer or Decimal that was parsed.
    """
    mantissa, exponent = math.frexp(number)
    # Rounding twice is wrong if the double is half way between two float32 and `exact` is not.
    if math.ldexp(mantissa, min(25, exponent + 150)) % 2 == 1 and (exact_value := Decimal(exact)) != number:
        return math.nextafter(number, math.inf if exact_value > number else -math.inf)
    return number


def _parse_list(cell: Any) -> NumberList | None:
    """Return the numbers of a list, set or array; None if one is no float32 number. ColumnError for nested lists.

    The rules are the same as for the Arrow type that it converts to.
    """
    if isinstance(cell, np.ndarray):
        if cell.ndim != 1:
            raise ColumnError(f"an array of {cell.ndim} dimensions cannot be read, only of 1: use .ravel()")
        if cell.dtype.kind in "fiub":
            with np.errstate(over="ignore"):
                singles = cell.astype(np.float32)
            return None if np.isinf(singles).any() else singles
        cell = cell.tolist()
    elif isinstance(cell, set | frozenset):
        cell = sorted(cell, key=str)
    kinds = set(map(type, cell))
    # The comparisons fail if the first number is NaN.
    if cell and kinds <= {int, float} and min(cell) >= -MAX_EXACT_INTEGER and max(cell) <= MAX_EXACT_INTEGER:
        return cell
    cell = [element.item() if isinstance(element, np.number | np.bool_) else element for element in cell]
    present = [element for element in cell if not is_missing(element)]
    kinds = set(map(type, present))
    # Integers that Arrow converts without loss, in a list with floats or without.
    low, high = (-MAX_EXACT_INTEGER, MAX_EXACT_INTEGER) if float in kinds else (-(2**63), 2**63 - 1)
    numeric = kinds <= {int, float} or kinds <= {int, Decimal} or kinds == {bool}
    if not numeric or any(isinstance(element, int) and not low <= element <= high for element in present):
        return _parse_elements(cell, kinds)
    numbers = [_NAN if is_missing(element) else _round_for_float32(float(element), element) for element in cell]
    if Decimal in kinds:
        numbers = [number or 0.0 for number in numbers]
    return None if any(abs(number) >= _FLOAT32_OVERFLOW for number in numbers) else numbers


def _parse_elements(cell: Sequence[Any], kinds: set[type]) -> list[float] | None:
    """Return the numbers of a list whose elements are read as text."""
    if (bytes in kinds and kinds <= {str, bytes}) or any(isinstance(element, (*LIST_TYPES, dict)) for element in cell):
        raise ColumnError(f"{cell!r} is not a list of numbers: pass numbers or text")
    texts = [text_of(element) for element in cell]
    return _parse_text(" ".join("nan" if text is None else text for text in texts), None)


@dataclass(frozen=True, kw_only=True)
class VectorValues:
    """Learned values of `Vector`."""

    vector_size: Length = 1


@dataclass(kw_only=True, eq=False, repr=False)
class VectorParameters(Parameters):
    """Parameters of `Vector`."""

    vector_size: Count | None = None
    missing_value_strategy: Strategy = "fill_with_const"
    fill_value: str | float | None = "0"


class VectorRowEncoder(RowEncoder):
    """Row encoder of `Vector`."""

    values = (VectorValues,)

    def prepare(self) -> None:
        self.size = self.learned["vector_size"]

    def read(self, cell: Any) -> tuple[NumberList] | None:
        """Return the numbers of a cell; None if one is missing or unreadable, or their count is not `vector_size`."""
        numbers = parse_numbers(cell)
        if numbers is None or len(numbers) != (self.params.vector_size or len(numbers) or 1):
            return None
        has_missing = np.isnan(numbers).any() if isinstance(numbers, np.ndarray) else math.isnan(sum(numbers))
        return None if has_missing else (numbers,)  # unlike an array, a tuple compares with None as a whole

    def to_arrays(self, values: Sequence[tuple[NumberList]]) -> Arrays:
        """Return vectors as float32 rows; raise RejectedValueError for one that does not have the learned size."""
        for (numbers,) in values:
            if len(numbers) != self.size:
                raise RejectedValueError(
                    f"a vector has {len(numbers)} numbers, not {self.size} as learned; correct it, "
                    f"or fit with vector_size={self.size} to count it as missing"
                )
        return {self.name: np.array(values, np.float32).reshape(-1, self.size)}


@dataclass(frozen=True, kw_only=True)
class TimeseriesValues:
    """Learned values of `Timeseries`."""

    max_timeseries_length: Length = 1
    cut_rows: int = later(0)  # training rows with a longer series
    # As of `Number`, of the numbers in windows, for a normalization; of vectors and dates, by component.
    mean: float | tuple[float, ...] | None = later(None)
    std: float | tuple[float, ...] | None = later(None)
    min: float | tuple[float, ...] | None = later(None)
    max: float | tuple[float, ...] | None = later(None)


Statistic = Literal["mean", "min", "max", "count", "last", "since"]


@dataclass(kw_only=True, eq=False, repr=False)
class TimeseriesParameters(Parameters):
    """Parameters of `Timeseries`."""

    tokenizer: Literal["space", "comma", "underscore"] = "space"
    timeseries_length_limit: Count | Literal["auto"] = "auto"
    padding_value: float | None = None
    padding: Literal["right", "left"] = "right"
    truncation: Truncation = later("keep_start", rows=True)
    window_size: Annotated[int, AtLeast(0)] | str = 0
    horizon: Annotated[int, AtLeast(0)] = 0
    group_by: str | None = None
    time: str | None = later(None)
    step: str | None = later(None)
    shift: Annotated[int, AtLeast(0, 1 << 24)] = later(0)
    lags: Sequence[Annotated[int, AtLeast(0, 1 << 24)]] | None = later(None)
    statistics: Sequence[Statistic] | None = later(None)
    normalization: Literal["zscore", "minmax", "log1p"] | None = later(None)
    vector_size: Count | None = later(None)
    parts: list[str] | None = later(None)
    cyclic: list[str] | Mapping[str, Count] | None = later(None)
    across_splits: bool | Literal["auto"] = later("auto", before=True, rows=True)
    missing_value_strategy: Strategy = "fill_with_const"
    fill_value: str | float | None = ""

    @property
    def is_windowed(self) -> bool:
        """Whether a row is a window over the rows around it."""
        return bool(self.window_size or self.horizon or self.lags)

    @property
    def padding_number(self) -> float:
        """The number for padding and missing numbers: by default NaN in windows, and 0 in series of a cell."""
        return (_NAN if self.is_windowed else 0.0) if self.padding_value is None else float(self.padding_value)

    def reads(self, name: str) -> list[str]:
        return [*super().reads(name), *(one for one in (self.group_by, self.time) if one is not None)]


def component_names(params: Mapping[str, Any]) -> list[str] | None:
    """Return the names of the numbers that a row has in windows, by the parameters of a series; None: one number."""
    parts, cyclic, size = map(params.get, ("parts", "cyclic", "vector_size"))  # saved parameters lack defaults
    if parts is None and cyclic is None:
        return None if size is None else [str(number) for number in range(size)]
    return DateParameters(parts=parts, cyclic=cyclic)._labels


def normalize(
    normalization: Normalization | None, learned: Mapping[str, Any], numbers: np.ndarray, *, inverse: bool = False
) -> np.ndarray:
    """Return numbers normalized, or with `inverse` the original ones; components are in the last axis."""
    if not isinstance(learned.get("mean"), Sequence):
        normalizer = NORMALIZATIONS[normalization](learned)
        return normalizer.inverse_transform(numbers) if inverse else normalizer.transform(numbers)
    names = ("mean", "std", "min", "max")
    states = [dict(zip(names, one, strict=True)) for one in zip(*(learned[name] for name in names), strict=True)]
    columns = zip(states, np.moveaxis(numbers, -1, 0), strict=True)
    return np.stack([normalize(normalization, one, column, inverse=inverse) for one, column in columns], axis=-1)


class TimeseriesRowEncoder(RowEncoder):
    """Row encoder of `Timeseries`; windows extend over the rows that are encoded together."""

    values = (TimeseriesValues,)

    def prepare(self) -> None:
        """Set separator, length, padding, truncation, and whether rows are windows over their neighbors."""
        params = self.params
        self.separator = SEPARATORS[params.tokenizer]
        self.length = self.learned["max_timeseries_length"]
        self.padding = params.padding_number
        self.is_left = params.padding == "left"
        self.keeps_end = params.truncation == "keep_end"
        self.looks_ahead = params.horizon > 0
        self.uses_neighbours = params.is_windowed
        if self.uses_neighbours:
            self.seen["padded"] = 0
        if self.uses_neighbours and not self.looks_ahead:
            is_filled = params.missing_value_strategy in NEIGHBOUR_STRATEGIES
            self.past = params.group_by, MAX_PAST if is_filled else params.window_size - 1, True

    def find_needed(self, rows: RowMappings) -> list[int]:
        """Return the positions of the rows that windows need: the last ones, and a number before to fill theirs."""
        start, read = max(len(rows) - self.params.window_size + 1, 0), self._read_present if self.nulls else self.read
        present = (number for number in reversed(range(start)) if read(rows[number][self.column]) is not None)
        return [*islice(present, 1), *range(start, len(rows))]

    def read(self, cell: Any) -> Sequence[float] | None:
        if not self.uses_neighbours:
            numbers = parse_numbers(cell, self.separator)
            return numbers.tolist() if isinstance(numbers, np.ndarray) else numbers
        reject_types(cell, (*TIME_TYPES, *LIST_TYPES), "number")
        return _parse_single(cell)

    def losses(self, cell: Any) -> Sequence[str]:
        numbers = None if self.uses_neighbours else self.read(cell)
        return ("cut",) if numbers is not None and len(numbers) > self.length else ()

    def read_fill(self, fill: Any) -> Sequence[float] | None:
        return [_NAN] if self.uses_neighbours and isinstance(fill, str) and not fill.strip() else self.read(fill)

    def encode(self, rows: RowMappings, first: int = 0) -> Arrays:
        """Return the arrays of rows by output; windows are of the rows of a group, and those with padding count."""
        arrays = self._encode_groups(rows, first)
        if self.uses_neighbours:
            is_missing = np.isnan(arrays[self.name])
            self._count("padded", int(is_missing.any(axis=1).sum()))
            arrays[self.name][is_missing] = self.padding
        return arrays

    def report(self, rows: RowMappings, first: int = 0) -> CellReport:
        """Return the cells of `RowEncoder.report`, and as "padded" the rows whose window has padding."""
        report = super().report(rows, first)
        if self.uses_neighbours:
            uncounted = copy.copy(self)
            uncounted.seen, uncounted.padding = dict(self.seen), _NAN
            padded = np.flatnonzero(np.isnan(uncounted.encode(rows, first)[self.name]).any(axis=1)).tolist()
            report |= {"padded": {row: json_number(rows[first + row][self.column]) for row in padded}} if padded else {}
        return report

    def _encode_groups(self, rows: RowMappings, first: int) -> Arrays:
        """Encode each group's rows together, in the order of all rows."""
        if len(self.columns) == 1:
            return super().encode(rows, first)
        groups: dict[str | None, list[int]] = {}
        try:
            for number, row in enumerate(rows):
                groups.setdefault(text_of(row[self.columns[1]]), []).append(number)
        except ValueError as error:
            raise RejectedValueError(f'column "{self.columns[1]}": {error}; correct the cell') from error
        out = {self.name: np.empty((len(rows) - first, self.length), np.float32)}
        if self.params.missing_indicator:
            out[self.name + MISSING] = np.empty(len(rows) - first, np.uint8)
        for row_numbers in groups.values():
            own = [number - first for number in row_numbers if number >= first]
            past = len(row_numbers) - len(own)
            for output, array in super().encode([rows[number] for number in row_numbers], past).items():
                out[output][own] = array
        return out

    def apply_neighbours(self, values: list[Any]) -> list[Any]:
        """Return the window of each row, padded with NaN at the end of the group; without windows, only impute."""
        values = super().apply_neighbours(values)
        if not self.uses_neighbours:
            return values
        if (strategy := self.params.missing_value_strategy) not in NEIGHBOUR_STRATEGIES:
            fill = [_NAN] if strategy == "drop_row" else self.fill
            values = [fill if value is None else value for value in values]
        numbers = [_NAN if value is None else value[0] for value in values]
        edge_padding = [_NAN] * self.length
        padded = numbers + edge_padding if self.looks_ahead else edge_padding + numbers
        return [None if value is None else padded[i : i + self.length] for i, value in enumerate(values, start=1)]

    def to_arrays(self, values: Sequence[Sequence[float]]) -> Arrays:
        """Return series as float32 rows of the learned length; NaN becomes the padding value, except in windows."""
        length, padding = self.length, _NAN if self.uses_neighbours else self.padding
        rows = []
        for numbers in values:
            truncated = numbers[-length:] if self.keeps_end else numbers[:length]
            row = [padding if number != number else number for number in truncated]  # noqa: PLR0124 as NaN does
            rest = [padding] * (length - len(row))
            rows.append(rest + row if self.is_left else row + rest)
        return {self.name: np.array(rows, np.float32).reshape(-1, length)}
