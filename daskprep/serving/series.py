"""Rows of `Vector` and `Timeseries`, and how their numbers are written."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np

from daskprep.errors import ColumnError, RejectedValueError
from daskprep.serving.base import MISSING, Arrays, RowEncoder, Rows
from daskprep.serving.cells import LISTS, NUMBERS, TIMES, is_missing, number_of, refuse, text_of

# What Arrow's cast accepts as a number, no more and no less.
FLOAT = (
    r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
    r"|[iI][nN][fF]([iI][nN][iI][tT][yY])?|[nN][aA][nN](\([A-Za-z0-9_]*\))?)"
)
SEPARATORS = {"space": None, "comma": ",", "underscore": "_"}

_FLOAT = re.compile(FLOAT)
_BRACKETS_AND_COMMAS = str.maketrans(dict.fromkeys(",[]()", " "))
_INFINITE_FROM = 2.0**128 - 2.0**103  # as a float32
_NAN = float("nan")
_EXACT = 2**53

Numbers: TypeAlias = Sequence[float] | np.ndarray


def numbers_in(cell: Any, separator: str | None = None) -> Numbers | None:
    """Return the numbers of a cell, NaN for an empty place; None if it is missing or anything in it is no number.

    As float32 they are the nearest to what is written. Text is cut at `separator`, or else at white space, commas and
    brackets.
    """
    if not isinstance(cell, str):
        if isinstance(cell, LISTS):
            return _in_list(cell)
        refuse(cell, TIMES, "list of numbers")
        if isinstance(cell, NUMBERS) and not _is_wide(cell):
            whole = isinstance(cell, int | np.integer)
            return [_nearest(float(cell), int(cell))] if whole else _alone(cell)
    text = text_of(cell)
    if text is None or separator is not None:
        return None if text is None else _in_text(text, separator)
    # Commas, where there are any, stand between all numbers.
    commas = text.count(",")
    numbers = _in_text(text.translate(_BRACKETS_AND_COMMAS), None)
    return None if numbers is None or (commas and len(numbers) != commas + 1) else numbers


def _is_wide(cell: Any) -> bool:
    """Tell whether a whole number is read as text, since no column of integers holds it."""
    return isinstance(cell, (int, np.unsignedinteger)) and not -(2**63) <= cell < 2**63


def _alone(cell: Any) -> list[float] | None:
    number = number_of(cell)
    return None if number is None or abs(number) >= _INFINITE_FROM else [number]


def _in_text(text: str, separator: str | None) -> list[float] | None:
    if separator is None:
        tokens = text.split()
    else:
        tokens = [token.strip() or "nan" for token in text.split(separator)] if text.strip() else []
    # Python reads "1_000" and other digits than ours.
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
        number = _nearest(number, token)
        if abs(number) >= _INFINITE_FROM:
            return None
        numbers.append(number)
    return numbers


def _nearest(number: float, exact: Any) -> float:
    """Return a double of which the float32 is nearest to a number that is `number`, rounded to a double."""
    mantissa, exponent = math.frexp(number)
    # Half way between two float32 the double does not tell on which side the number is.
    if math.ldexp(mantissa, min(25, exponent + 150)) % 2 == 1 and (true := Decimal(exact)) != number:
        return math.nextafter(number, math.inf if true > number else -math.inf)
    return number


def _in_list(cell: Any) -> Numbers | None:
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
    if cell and kinds <= {int, float} and min(cell) >= -_EXACT and max(cell) <= _EXACT:  # so the first is not NaN
        return cell  # type: ignore[no-any-return]
    cell = [element.item() if isinstance(element, np.number | np.bool_) else element for element in cell]
    present = [element for element in cell if not is_missing(element)]
    kinds = set(map(type, present))
    low, high = (-_EXACT, _EXACT) if float in kinds else (-(2**63), 2**63 - 1)  # what Arrow holds beside the others
    numeric = kinds <= {int, float} or kinds <= {int, Decimal} or kinds == {bool}
    if not numeric or any(isinstance(element, int) and not low <= element <= high for element in present):
        return _in_elements(cell, kinds)  # else they are text
    numbers = [_NAN if is_missing(element) else _nearest(float(element), element) for element in cell]
    if Decimal in kinds:
        numbers = [number or 0.0 for number in numbers]
    return None if any(abs(number) >= _INFINITE_FROM for number in numbers) else numbers


def _in_elements(cell: Sequence[Any], kinds: set[type]) -> list[float] | None:
    if (bytes in kinds and kinds <= {str, bytes}) or any(isinstance(element, (*LISTS, dict)) for element in cell):
        raise ColumnError(f"{cell!r} is not a list of numbers: give numbers or text")
    texts = [text_of(element) for element in cell]
    return _in_text(" ".join("nan" if text is None else text for text in texts), None)


class VectorRows(RowEncoder):
    """Rows of `Vector`."""

    def prepare(self) -> None:
        self.wanted = self.params["vector_size"]
        self.size = self.learned["vector_size"]

    def read(self, cell: Any) -> Numbers | None:
        numbers = numbers_in(cell)
        if numbers is None or len(numbers) != (self.wanted or len(numbers) or 1):
            return None
        gaps = np.isnan(numbers).any() if isinstance(numbers, np.ndarray) else math.isnan(sum(numbers))
        return None if gaps else numbers

    def arrays(self, values: Sequence[Numbers]) -> Arrays:
        for numbers in values:
            if len(numbers) != self.size:
                raise RejectedValueError(
                    f"a vector has {len(numbers)} numbers, not {self.size} as learned; correct it, "
                    f"or fit with vector_size={self.size} to count it as missing"
                )
        return {"": np.array(values, np.float32).reshape(-1, self.size)}


class TimeseriesRows(RowEncoder):
    """Rows of `Timeseries`; windows are cut over the rows that are encoded together."""

    def prepare(self) -> None:
        params = self.params
        self.separator = SEPARATORS[params["tokenizer"]]
        self.length = self.learned["max_timeseries_length"]
        self.padding = float(params["padding_value"])
        self.left = params["padding"] == "left"
        self.keeps_end = params.get("truncation") == "keep_end"
        self.ahead = params["horizon"] > 0
        self.looks_around = self.ahead or params["window_size"] > 0
        if params["group_by"] is not None:
            self.columns = self.column, params["group_by"]

    def read(self, cell: Any) -> Numbers | None:
        if not self.looks_around:
            return numbers_in(cell, self.separator)
        refuse(cell, (*TIMES, *LISTS), "number")
        return _alone(cell)

    def read_fill(self, fill: Any) -> Numbers | None:
        return [_NAN] if self.looks_around and isinstance(fill, str) and not fill.strip() else self.read(fill)

    def encode(self, rows: Rows) -> Arrays:
        if len(self.columns) == 1:
            return super().encode(rows)
        groups: dict[str | None, list[int]] = {}
        try:
            for number, row in enumerate(rows):
                groups.setdefault(text_of(row[self.columns[1]]), []).append(number)
        except ValueError as error:
            raise RejectedValueError(f'column "{self.columns[1]}": {error}; correct the cell') from error
        out = {"": np.empty((len(rows), self.length), np.float32)}
        if self.marks_missing:
            out[MISSING] = np.empty(len(rows), np.uint8)
        for alike in groups.values():
            for output, array in super().encode([rows[number] for number in alike]).items():
                out[output][alike] = array
        return out

    def complete(self, values: list[Any]) -> list[Any]:
        """Return windows over the numbers of one group, where there are to be any."""
        values = super().complete(values)
        if not self.looks_around:
            return values
        if self.params["missing_value_strategy"] not in ("ffill", "bfill", "drop_row"):
            values = [self.fill if value is None else value for value in values]
        known = [_NAN if value is None else value[0] for value in values]
        outside = [_NAN] * self.length
        around = known + outside if self.ahead else outside + known
        return [None if value is None else around[i : i + self.length] for i, value in enumerate(values, start=1)]

    def arrays(self, values: Sequence[Numbers]) -> Arrays:
        length, padding = self.length, self.padding
        rows = []
        for numbers in values:
            kept = numbers[-length:] if self.keeps_end else numbers[:length]
            row = [padding if number != number else number for number in kept]  # noqa: PLR0124 as NaN does
            rest = [padding] * (length - len(row))
            rows.append(rest + row if self.left else row + rest)
        return {"": np.array(rows, np.float32).reshape(-1, length)}
