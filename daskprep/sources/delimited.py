"""Delimited text such as CSV: dialects, cells read as strings, and splits between records, never in a quoted cell."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import count, islice, pairwise
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from daskprep.columns.display import join_names
from daskprep.columns.kernels import only_where
from daskprep.errors import ConfigError, RejectedValueError, is_valid_utf8
from daskprep.sources.arrow_types import untyped_field
from daskprep.sources.base import FileFragment, check_names, split_evenly
from daskprep.sources.text import (
    BLOCK_BYTES,
    TextFile,
    blank_out_comments,
    cut_records,
    first_record_end,
    parse_in_blocks,
    record_starts,
)

_HEAD_BYTES = 1 << 18
_PARSED_BYTES = 1 << 22
_SNIFFED_ROWS = 50
_MAX_SHOWN_CHARACTERS = 80
_MAX_SHOWN_CELLS = 5  # of the first line, in a warning
_RETURN = 13
_LINE_END = re.compile(rb"\r\n|\r|\n")
# Numbers, dates, times and amounts of money: digits, punctuation, and the letters in timestamps and exponents.
_NUMBER_LIKE = re.compile(r"(?=.*\d)(?:[\s\d.,:/+\-()$€£%']|(?<=\d)[TZeE](?=[\d+\-]|$))+")
DELIMITERS = (",", "\t", ";", "|")
# The strings that pandas.read_csv treats as missing values.
DEFAULT_NULLS = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A",
    "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
# Text around a number: a sign, a currency symbol or code before it; an exponent, a symbol or a short unit after it.
_NUMBER_PREFIX = r"^\s*[+-]?\s*(?:\p{Sc}\s*|[A-Z]{3}\s+)?[+-]?"
_NUMBER_SUFFIX = r"(?:[eE][+-]?\d+)?(?:\s*[\p{Sc}%‰]|\s*[A-Za-zµ°]{1,4}[²³]?)?\s*$"
_NUMBER_WITH_POINT = rf"{_NUMBER_PREFIX}(?:\d+\.\d*|\.\d+|[1-9]\d{{0,2}}(?:\.\d{{3}})+,\d+){_NUMBER_SUFFIX}"


@dataclass(frozen=True)
class DelimitedFragment(FileFragment):
    """Records between two positions of a text file, read as strings."""

    text: TextFile
    start: int
    stop: int | None
    dialect: Dialect
    kind: ClassVar[str] = "delimited text"

    def read_stored(self, columns: list[str]) -> pa.Table:
        """Return columns as text without comments, numbers as "1234.5"; RejectedValueError for invalid cells."""
        data = self.text.read(self.start, self.stop)
        if self.dialect.comment:
            data = pa.py_buffer(b"".join(self.dialect.drop_comments([data.to_pybytes()])))
        wanted = columns or [self.dialect.names[0]]
        if not data.size:
            return pa.schema(map(untyped_field, wanted)).empty_table().select(columns)
        table = self._parse_table(data, wanted)
        for i, name in enumerate(wanted):
            try:
                cells = table[name].cast(pa.string())
            except pa.ArrowInvalid as error:
                raise self._invalid_text_error(data, name, table[name]) from error
            table = table.set_column(i, untyped_field(name), self.dialect.convert_cells(name, cells))
        return table.select(columns)

    def _parse_table(self, data: pa.Buffer, columns: list[str]) -> pa.Table:
        """Return columns as undecoded bytes; RejectedValueError for an open quote, or a wrong number of cells."""
        dialect, view = self.dialect, np.frombuffer(data, np.uint8)
        blocks = [view[i : i + BLOCK_BYTES] for i in range(0, len(view), BLOCK_BYTES)]
        has_quotes = dialect.quote is not None and any((block == ord(dialect.quote)).any() for block in blocks)
        if has_quotes and self.stop is None:
            # Arrow reads the rest of the text after an unclosed quote as one cell, without an error.
            byte_blocks = (block.tobytes() for block in blocks)
            opened_at = cut_records(byte_blocks, 0, (), dialect.delimiter, dialect.quote).unclosed_quote
            if opened_at is not None:
                line = self.text.line_number_at(self.start) + int((view[:opened_at] == 10).sum())
                raise _unclosed_quote_error(self.text, line)
        ragged: list[Any] = []

        def parse(lines: pa.Buffer, block_bytes: int) -> pa.Table:
            if has_quotes:
                block_bytes = _safe_block_size(np.frombuffer(lines, np.uint8), block_bytes)
            return pa_csv.read_csv(
                pa.BufferReader(lines),
                read_options=pa_csv.ReadOptions(
                    use_threads=False, block_size=block_bytes, column_names=list(dialect.names)
                ),
                parse_options=pa_csv.ParseOptions(
                    delimiter=dialect.delimiter,
                    quote_char=dialect.quote if has_quotes else False,
                    newlines_in_values=has_quotes,
                    invalid_row_handler=lambda row: ragged.append(row) or "error",  # type: ignore[func-returns-value]
                ),
                convert_options=pa_csv.ConvertOptions(
                    column_types=dict.fromkeys(columns, pa.binary()),
                    include_columns=columns,
                    strings_can_be_null=True,
                    null_values=[] if isinstance(dialect.null_values, dict) else dialect.missing(""),
                ),
            )

        try:
            return parse_in_blocks(parse, data, _PARSED_BYTES)
        except pa.ArrowInvalid as error:
            if not ragged:
                raise
            row, delimiter, text = ragged[0], dialect.delimiter, ragged[0].text
            if len(text) > _MAX_SHOWN_CHARACTERS:
                end = text.rfind(delimiter, 0, _MAX_SHOWN_CHARACTERS) + 1
                text = f"{text[: end or _MAX_SHOWN_CHARACTERS]}..."
            raise RejectedValueError(
                f"{self.file.name}, line {self._line_number(data, row.number - 1)}: {row.actual_columns} cells for "
                f"{row.expected_columns} columns: {text!r}; correct the line "
                f"(cells that contain {delimiter!r} must be in quotes), or pass the right delimiter= to "
                "read_files"
            ) from error

    def _invalid_text_error(self, data: pa.Buffer, column: str, cells: pa.ChunkedArray) -> RejectedValueError:
        numbered = enumerate(cells.to_pylist())
        row, cell = next((i, cell) for i, cell in numbered if cell and cell.decode(errors="ignore").encode() != cell)
        return RejectedValueError(
            f'{self.file.name}, line {self._line_number(data, row)}, column "{column}": not UTF-8: '
            f"{cell[:_MAX_SHOWN_CHARACTERS]!r}{'...' * (len(cell) > _MAX_SHOWN_CHARACTERS)}; pass the right encoding: "
            "read_files(..., encoding=)"
        )

    def _line_number(self, data: pa.Buffer, row: int) -> int:
        """Return the line of the file, from 1, at which row `row` of `data` starts."""
        text: bytes = data.to_pybytes()
        starts = record_starts(text, self.dialect.delimiter, self.dialect.quote)
        offset = int(starts[min(row, len(starts) - 1)])
        return self.text.line_number_at(self.start) + text.count(b"\n", 0, offset)


def _safe_block_size(view: np.ndarray, block_bytes: int) -> int:
    """Return the next block size with which no block ends in a carriage return.

    Arrow 26.0.1 drops a newline at the start of the next block, even if both characters are in quotes.
    """
    while (view[block_bytes - 1 : -1 : block_bytes] == _RETURN).any():
        block_bytes += 1
    return block_bytes


def plan_delimited(text: TextFile, dialect: Dialect, partition_bytes: int) -> list[DelimitedFragment]:
    """Return fragments of a file of about `partition_bytes`, cut between records.

    They have the detected dialect. Raise an error for a quote that is not closed.
    """
    for nbytes in (_HEAD_BYTES * 16**i for i in count()):
        head, complete, start = _read_head(text, dialect, nbytes)
        head_text = text.decode_head(head[start:])
        file_dialect = replace(dialect, delimiter=dialect.delimiter or _sniff(head_text, dialect, complete=complete))
        # The head is read again: whether a line in quotes is a comment depends on the delimiter before the quotes.
        head, complete, start = _read_head(text, file_dialect, nbytes) if dialect.comment else (head, complete, start)
        length = first_record_end(head[start:], file_dialect.delimiter, dialect.quote)
        if length is not None or complete:
            break
    body = len(head) if length is None else start + length
    file_dialect = replace(file_dialect, names=_read_names(text, head, start, body, file_dialect))
    body = start if dialect.header is None else body
    file, size = text.file, text.file.size or 0
    if not text.can_split or size - body <= partition_bytes:
        return [DelimitedFragment(file, None, max(size - body, 0), text, body, None, file_dialect)]
    targets, blocks = split_evenly(body, size, partition_bytes), file_dialect.drop_comments(text.blocks(body))
    cuts = cut_records(blocks, body, targets, file_dialect.delimiter, dialect.quote)
    if cuts.unclosed_quote is not None:
        raise _unclosed_quote_error(text, text.line_number_at(cuts.unclosed_quote))
    bounds = [body, *(cut for cut in cuts.positions if cut < size), size]
    rows = [None] * len(bounds) if cuts.counts is None else [b - a for a, b in pairwise([0, *cuts.counts])]
    fragments = zip(pairwise(bounds), rows, strict=False)
    return [DelimitedFragment(file, count, b - a, text, a, b, file_dialect) for (a, b), count in fragments]


def _read_head(text: TextFile, dialect: Dialect, nbytes: int) -> tuple[bytes, bool, int]:
    """Return the first bytes, whether they are the whole file, and the position of the first record."""
    head, complete = text.head(nbytes)
    starts = [text.skip_byte_order_mark(head)]
    starts += [end.end() for end in islice(_LINE_END.finditer(head, starts[0]), dialect.skip_rows)]
    rest = head[starts[-1] :] if len(starts) > dialect.skip_rows else b""
    record = b"".join(dialect.drop_comments([rest])).lstrip(b"\r\n")
    start = len(head) - len(record)
    return head[:start] + record, complete, start


def _read_names(text: TextFile, head: bytes, start: int, stop: int, dialect: Dialect) -> tuple[str, ...]:
    """Return the names in the first record, of header=None `names` or "column_0" and on; ConfigError if it has none."""
    name, record = text.file.name, head[start:stop]
    if not record.strip():
        if dialect.names:
            return dialect.names
        raise ConfigError(f"{name}: is empty; expected a first line with the column names")
    try:
        line = record.decode(text.encoding if text.can_split else "utf-8")
    except UnicodeDecodeError as error:
        raise text.encoding_error(error, start) from error
    try:
        cells = next(_read_csv_rows(line, dialect.delimiter, dialect.quote))
    except (csv.Error, StopIteration) as error:
        raise ConfigError(f"{name}: its first line cannot be read as column names: {error}") from error
    if dialect.header is None:
        names = dialect.names or tuple(f"column_{i}" for i in range(len(cells)))
        if len(names) != len(cells):
            raise ConfigError(f"{name}: its first line has {len(cells)} cells, but names= has {len(names)} names")
        return names
    # pandas writes the index with an empty name, and reads an empty name back as "Unnamed: 0".
    names = tuple(cell or f"Unnamed: {i}" for i, cell in enumerate(cells))
    check_names(names, name, "rename one in the file's first line, or use header=None if that line is a row")
    return names


def describe_suspicious_header(text: TextFile, dialect: Dialect) -> str | None:
    """Return why a header looks like a row or lacks names."""
    head, _, start = _read_head(text, dialect, _HEAD_BYTES)
    rows = _first_rows(text.decode_head(head[start:]), dialect.delimiter, dialect.quote)
    cells = rows[0] if rows else []
    if "" in cells[1:]:
        return f"has no name for column {cells.index('', 1)}, counted from 0"
    names = [cell for cell in cells if cell]
    first = int(names[0]) if names and names[0].isdecimal() else 0
    # pandas names columns 0, 1, 2, ... by default; a single number other than 0 is more likely a cell.
    is_numbered = names == [str(first + i) for i in range(len(names))] and (not first or len(names) > 1)
    repeated_cells = {(i, cell) for row in rows[1:] for i, cell in enumerate(row) if cell and len(cells) > 1}
    once = [cell for i, cell in enumerate(cells) if cell and (i, cell) not in repeated_cells]
    if is_numbered or not all(map(_NUMBER_LIKE.fullmatch, once)):
        return None
    return (
        f"looks like a row: {join_names([*map(repr, cells)], _MAX_SHOWN_CELLS)} are numbers, dates, or also cells of "
        "rows below"
    )


def _read_csv_rows(text: str, delimiter: str, quote: str | None) -> Any:
    quoting: Any = csv.QUOTE_NONE if quote is None else csv.QUOTE_MINIMAL
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quotechar=quote, quoting=quoting)


def _sniff(head: str, dialect: Dialect, *, complete: bool) -> str:
    """Return the delimiter with which the first rows have equally many cells, the most if several do."""
    widths = {}
    for delimiter in DELIMITERS:
        counts = [len(row) for row in _first_rows(head, delimiter, dialect.quote)]
        # The head may end inside the last record.
        widths[delimiter] = counts[:_SNIFFED_ROWS] if complete or len(counts) > _SNIFFED_ROWS else counts[:-1] or counts
    single = all(counts[:1] == [1] for counts in widths.values())

    def rank(delimiter: str) -> tuple[bool, bool, int]:
        counts = widths[delimiter]
        first = counts[0] if counts else 0
        # With a single name in the header, commas in the rows are part of their text.
        return len(set(counts)) == 1 and (first > 1 or single), delimiter not in dialect.number_marks, first

    return max(DELIMITERS, key=rank)


def _first_rows(head: str, delimiter: str, quote: str | None) -> list[list[str]]:
    """Return the first rows as cells, without empty ones; none if they are no CSV."""
    with suppress(csv.Error):
        return list(islice(filter(None, _read_csv_rows(head, delimiter, quote)), _SNIFFED_ROWS + 1))
    return []


def _unclosed_quote_error(text: TextFile, line: int) -> RejectedValueError:
    return RejectedValueError(
        f"{text.file.name}, line {line}: a quote opens a value and is never closed; correct the line, or use "
        "read_files(..., quote=None) if quotes mean nothing in this file"
    )


@dataclass(frozen=True)
class Dialect:
    """The format of a delimited file; `delimiter` and `names` are empty until they are detected in it."""

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
        """Options from `header` on that are not at their defaults."""
        return {
            option.name: value for option in fields(self)[3:] if (value := getattr(self, option.name)) != option.default
        }

    def missing(self, column: str) -> list[str]:
        """Return the texts of missing values in a column, also padded."""
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
        """Return blocks with comments blanked out."""
        if self.comment is None:
            return blocks
        return blank_out_comments(blocks, self.delimiter or DELIMITERS[0], self.quote, self.comment)

    def check(self) -> None:
        """Raise ConfigError for options that are invalid, or contradict each other."""
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
        check_names(self.names, "names=", "use a unique name for each column")
        if not isinstance(self.skip_rows, int) or self.skip_rows < 0:
            raise ConfigError(f"skip_rows={self.skip_rows!r}: expected the number of lines as an integer")

    def _check_numbers(self) -> None:
        """Raise ConfigError for decimal marks and separators that are no single, distinct marks."""
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
        """Return cells with nulls, and numbers as "1234.5"; RejectedValueError for a point in a number with commas."""
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
    return option.get(column, default) if isinstance(option, Mapping) else option


def _is_mark(value: object) -> bool:
    return isinstance(value, str) and len(value) == 1
