"""The dialect of a delimited file: its delimiter, quotes, comments, missing values and number formats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from daskprep.errors import ConfigError, RejectedValueError, is_valid_utf8
from daskprep.kernels import only_where
from daskprep.sources.base import check_names
from daskprep.sources.quotes import blank_out_comments

DELIMITERS = (",", "\t", ";", "|")
# The strings that pandas.read_csv treats as missing values.
DEFAULT_NULLS = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A",
    "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip

# Text around a number: a sign, a currency symbol or code before it; an exponent, a symbol or a short unit after it.
_NUMBER_PREFIX = r"^\s*[+-]?\s*(?:\p{Sc}\s*|[A-Z]{3}\s+)?[+-]?"
_NUMBER_SUFFIX = r"(?:[eE][+-]?\d+)?(?:\s*[\p{Sc}%‰]|\s*[A-Za-zµ°]{1,4}[²³]?)?\s*$"
_NUMBER_WITH_POINT = rf"{_NUMBER_PREFIX}(?:\d+\.\d*|\.\d+){_NUMBER_SUFFIX}"


@dataclass(frozen=True)
class Dialect:
    """The format of a delimited file, with the options of `read_files`.

    `delimiter` and `names` are empty until they are detected in the file.
    """

    delimiter: str
    quote: str | None
    null_values: list[str] | dict[str, list[str]]
    header: int | None = 0
    names: tuple[str, ...] = ()
    skip_rows: int = 0
    comment: str | None = None
    decimal: str | Mapping[str, str] = "."
    thousands: str | Mapping[str, str] | None = None

    @property
    def non_default_options(self) -> dict[str, Any]:
        """Values of the options from `header` on that differ from their defaults."""
        return {
            option.name: value for option in fields(self)[3:] if (value := getattr(self, option.name)) != option.default
        }

    def missing(self, column: str) -> list[str]:
        """Return the texts of missing values in a column, also with a space before or after, as in UCI's " ?"."""
        marks = _option_for(self.null_values, column, DEFAULT_NULLS)
        return [*marks, *(padded for mark in marks if mark.strip() for padded in (f" {mark}", f"{mark} ", f" {mark} "))]

    @property
    def named_columns(self) -> list[str]:
        """Columns with a separate value of some option."""
        options = (self.null_values, self.decimal, self.thousands)
        return [name for option in options if isinstance(option, Mapping) for name in option]

    @property
    def number_marks(self) -> set[Any]:
        """Decimal marks and thousands separators of all columns."""
        names = ["", *self.named_columns]
        return {_option_for(option, name, None) for option in (self.decimal, self.thousands) for name in names}

    def drop_comments(self, blocks: Iterable[bytes]) -> Iterable[bytes]:
        """Return blocks with comments blanked out; with no delimiter yet, a comma is assumed."""
        if self.comment is None:
            return blocks
        return blank_out_comments(blocks, self.delimiter or DELIMITERS[0], self.quote, self.comment)

    def check(self) -> None:
        """Raise ConfigError for invalid or contradictory options."""
        self._check_numbers()
        if not is_valid_utf8(self.null_values):
            raise ConfigError(f"null_values={self.null_values!r:.80}: one has half of a surrogate pair: correct it")
        options = {"delimiter": self.delimiter or None, "quote": self.quote, "comment": self.comment}
        marks = {name: mark for name, mark in options.items() if mark is not None}
        for name, mark in marks.items():
            if not _is_mark(mark) or not mark.isascii() or mark in "\r\n":
                raise ConfigError(f"{name}={mark!r}: expected one ASCII character, such as {DELIMITERS[0]!r}")
        if len(set(marks.values())) < len(marks):
            raise ConfigError(f"{' and '.join(marks)} are {', '.join(map(repr, marks.values()))}; they must differ")
        if self.header is not None and (isinstance(self.header, bool) or self.header != 0):
            raise ConfigError(f"header={self.header!r}: expected 0 if a line holds names, None if not")
        if self.names and self.header is not None:
            raise ConfigError("names= is for files without names: pass header=None too, or columns= to choose columns")
        check_names(self.names, "names=", "give each column a unique name")
        if not all(isinstance(name, str) for name in self.names):
            raise ConfigError(f"names={list(self.names)!r}: names of columns are text")
        if isinstance(self.skip_rows, bool) or not isinstance(self.skip_rows, int) or self.skip_rows < 0:
            raise ConfigError(f"skip_rows={self.skip_rows!r}: expected a whole number of lines")

    def _check_numbers(self) -> None:
        for column in ["", *self.named_columns]:
            decimal, thousands = _option_for(self.decimal, column, "."), _option_for(self.thousands, column, None)
            for mark in (decimal, *([] if thousands is None else [thousands])):
                if not _is_mark(mark) or mark.isalnum() or mark in "+-":
                    raise ConfigError(
                        f'{mark!r} is not a decimal mark or thousands separator: pass one, such as "," or "."'
                    )
            if decimal == thousands:
                raise ConfigError(f'decimal and thousands are both {decimal!r}; they must differ, as "," and "." do')

    def convert_cells(self, name: str, cells: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the text cells of a column with nulls as missing values, and numbers with a decimal point."""
        if isinstance(self.null_values, dict):
            missing = pa.array(self.missing(name), pa.string())
            cells = only_where(pc.invert(pc.is_in(cells, value_set=missing)), cells)
        decimal, thousands = _option_for(self.decimal, name, "."), _option_for(self.thousands, name, None)
        if decimal == "." and thousands is None:
            return cells
        point, integer_digits = re.escape(decimal), r"\d+"
        if thousands is not None:
            # Groups have three digits; text with a leading 0, such as a zip code, is not a number.
            integer_digits = rf"(?:\d+|[1-9]\d{{0,2}}(?:{re.escape(thousands)}\d{{3}})+)"
        number = rf"{_NUMBER_PREFIX}(?:{integer_digits}(?:{point}\d*)?|{point}\d+){_NUMBER_SUFFIX}"
        is_number = pc.match_substring_regex(cells, number)
        if decimal != ".":
            wrong = pc.and_not(pc.match_substring_regex(cells, _NUMBER_WITH_POINT), is_number)
            if (row := pc.index(wrong, value=True).as_py()) >= 0:
                raise RejectedValueError(
                    f'column "{name}": {cells[row].as_py()!r} has a point, but decimal={decimal!r}; pass thousands="." '
                    'if points separate thousands, or name the columns of numbers: decimal={"price": ","}'
                )
        plain = cells if thousands is None else pc.replace_substring(cells, thousands, "")
        return pc.if_else(is_number, pc.replace_substring(plain, decimal, "."), cells)


def _option_for(option: Any, column: str, default: Any) -> Any:
    """Return the value of an option for a column; `default` for a column absent from a mapping."""
    return option.get(column, default) if isinstance(option, Mapping) else option


def _is_mark(value: object) -> bool:
    return isinstance(value, str) and len(value) == 1
