"""JSON: one object a line or one array of them, cut between them, every column of one type over all files.

Types come from a pass over all rows when the source is made, piece by piece on threads, because a type that
is guessed from a sample, or from one piece, fails or differs in another. That pass also counts the rows.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json
import pyarrow.types as pt

from daskprep.errors import ConfigError, RejectedValueError, StorageFullError
from daskprep.kernels import MIXED
from daskprep.serving.json_text import check_unique_keys
from daskprep.sources.base import FileFragment, split_evenly, table_without_columns
from daskprep.sources.json_types import JsonType, array_type, json_array, merge_fields, settle_type, values_type
from daskprep.sources.quotes import join_quote_runs, take_ends
from daskprep.sources.spool import Spool
from daskprep.sources.text import BLOCK_BYTES, TextFile, parse_in_blocks

_HEAD_BYTES = 1 << 16
_PARSED_BYTES = 1 << 20
_MAX_SHOWN_CHARACTERS = 80
_MAX_LEVELS = 100
_INTEGER_TO_FLOAT = (pa.int64(), pa.float64())
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NEWLINE = 10
_UNMARKED_BYTES = bytes(sorted({*range(256)} - {*b"[{]}\n"}))

# What an opening or closing bracket does to the number of those that are open.
_DEPTH_CHANGES = np.zeros(256, np.int8)
_DEPTH_CHANGES[list(b"[{")], _DEPTH_CHANGES[list(b"]}")] = 1, -1
_IS_MARK = np.isin(np.arange(256), list(b"[{]},\n"))


class _ParsedRows:
    """The rows of a piece as its survey parsed them: in this process, for who reads them first, or in a file."""

    def __init__(self, path: Path | None = None, spool: Any = None) -> None:
        self.table: pa.Table | None = None
        self.path, self.spool = path, spool

    def __reduce__(self) -> tuple[type[_ParsedRows], tuple[Path | None]]:
        return _ParsedRows, (self.path,)

    def rows(self) -> pa.Table | None:
        """Return the rows, of a table in memory once; None if there are none, or a worker does not see the file."""
        table, self.table = self.table, None
        if self.path is not None and self.path.exists():
            with self.path.open("rb") as file:
                table = pa.ipc.open_stream(file).read_all()
        return table


@dataclass(frozen=True)
class JsonFragment(FileFragment):
    """The lines between two positions of a file, or elements of the array that it holds.

    `schema` has the types of all columns; those in `mixed` hold values of several kinds, read as text.
    """

    text: TextFile
    start: int
    stop: int | None
    schema: pa.Schema
    mixed: frozenset[str]
    is_array: bool
    parsed_rows: _ParsedRows = field(default_factory=_ParsedRows, compare=False, repr=False)
    kind: ClassVar[str] = "JSON"

    def read_stored(self, columns: list[str]) -> pa.Table:
        parsed_rows = self.parsed_rows.rows()
        if parsed_rows is not None and (table := self._cast_parsed_rows(parsed_rows, columns)) is not None:
            return table
        data = self._read_lines()
        plain = pa.schema([self.schema.field(name) for name in columns if name not in self.mixed])
        try:
            table = self._parse_table(data, plain)
            table.validate(full=True)  # Arrow's parser takes any bytes for UTF-8
        except pa.ArrowInvalid as error:
            for _ in self._iterate_objects(data):
                pass  # the first line that is at fault raises
            raise self._unreadable_error(error) from error
        mixed = [name for name in columns if name in self.mixed]
        if mixed:
            objects = list(self._iterate_objects(data))
            for name in mixed:
                values = [one.get(name) for one in objects]
                table = table.append_column(name, json_array(values, self.schema.field(name).type))
        return table.select(columns)

    def survey(self, keep: Spool | bool) -> tuple[int, dict[str, JsonType]]:
        """Return how many rows there are, and the type of every column; keep the rows in files or memory if told."""
        data = self._read_lines()
        self._check_depth(data.to_pybytes())
        try:
            table = self._parse_table(data, None)
        except pa.ArrowInvalid as error:
            objects = list(self._iterate_objects(data))
            names = dict.fromkeys(name for one in objects for name in one)
            types = {name: values_type(one.get(name) for one in objects) for name in names}
            if not any(mixed for _, mixed in types.values()):
                raise self._unreadable_error(error) from error
            return len(objects), types
        if keep:
            with suppress(pa.ArrowInvalid, StorageFullError):  # rows that are not kept are parsed again
                table.validate(full=True)
                if isinstance(keep, Spool):
                    self.parsed_rows.path, self.parsed_rows.spool = keep.write(f"{uuid.uuid4().hex}.arrow", table), keep
                else:
                    self.parsed_rows.table = table
        return table.num_rows, {name: (array_type(table[name]), False) for name in table.column_names}

    def _cast_parsed_rows(self, table: pa.Table, columns: list[str]) -> pa.Table | None:
        """Return columns of the rows that were kept in the types of all pieces; None where values would change."""
        arrays = []
        for name in columns:
            kind = self.schema.field(name).type
            column = table[name] if name in table.column_names else pa.nulls(table.num_rows)
            if name in self.mixed or (column.type, kind) not in ((kind, kind), (pa.null(), kind), _INTEGER_TO_FLOAT):
                return None
            arrays.append(column.cast(kind, safe=False))
        return pa.table(arrays, columns) if columns else table_without_columns(table.num_rows)

    def _read_lines(self) -> pa.Buffer:
        data = self.text.read(self.start, self.stop)
        return pa.py_buffer(_split_elements(data.to_pybytes())) if self.is_array else data

    def _check_depth(self, text: bytes) -> None:
        """Refuse what is nested very deeply: Arrow's parser calls itself for each level, until the process dies."""
        for number in _find_deep_lines(text):
            line = text.split(b"\n")[number]
            if len(_find_deep_lines(_STRINGS.sub(b"", line))):
                raise self._bad_line_error(number, line, f"it is nested more than {_MAX_LEVELS} levels deep")

    def _parse_table(self, data: pa.Buffer, schema: pa.Schema | None) -> pa.Table:
        if not data.size or (data.size < _HEAD_BYTES and data.to_pybytes().isspace()):
            return (schema or pa.schema([])).empty_table()
        options = pa_json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "ignore"
        )

        def parse(lines: pa.Buffer, block_bytes: int) -> pa.Table:
            read = pa_json.ReadOptions(use_threads=False, block_size=block_bytes)
            return pa_json.read_json(pa.BufferReader(lines), read_options=read, parse_options=options)

        return parse_in_blocks(parse, data, _PARSED_BYTES)

    def _iterate_objects(self, data: pa.Buffer) -> Iterator[dict[str, Any]]:
        for number, line in enumerate(data.to_pybytes().split(b"\n")):
            if not line.strip():
                continue
            try:
                # Of bytes, json would guess the encoding, and take halves of surrogate pairs.
                value = json.loads(line.decode(), object_pairs_hook=check_unique_keys)
                if b"\\u" in line:
                    json.dumps(value, ensure_ascii=False).encode()  # refuses those that are escaped
            except (ValueError, RecursionError) as error:
                raise self._bad_line_error(number, line, str(error)) from error
            if not isinstance(value, dict):
                raise self._bad_line_error(number, line, f"a {type(value).__name__}")
            yield value

    def _unreadable_error(self, error: pa.ArrowInvalid) -> RejectedValueError:
        return RejectedValueError(f"{self.file.name}: cannot be read as {self.kind}: {error}; correct the file")

    def _bad_line_error(self, number: int, line: bytes, reason: str) -> RejectedValueError:
        return RejectedValueError(
            f"{self.file.name}, line {self._line_number(number)}: not one JSON object: "
            f"{reason}: {line.strip()[:_MAX_SHOWN_CHARACTERS].decode(errors='replace')!r}; correct the line"
        )

    def _line_number(self, number: int) -> int:
        """Return the line of the file, counted from 1, that holds a line or element of the piece."""
        if self.is_array:
            data = self.text.read(self.start, self.stop).to_pybytes()
            lines = _split_elements(data).split(b"\n")[: number + 1]
            number = data.count(b"\n", 0, len(b"\n".join(lines)) - len(lines[-1].lstrip()))
        return self.text.line_number_at(self.start) + number


def _find_deep_lines(text: bytes) -> np.ndarray:
    """Return the numbers of lines in which brackets, also those in strings, are open on too many levels."""
    marks = np.frombuffer(text.translate(None, _UNMARKED_BYTES), np.uint8)
    ends = np.append(np.flatnonzero(marks == _NEWLINE), len(marks))
    lengths = np.diff(ends, prepend=-1)
    if lengths.max() <= _MAX_LEVELS:  # no line has so many brackets, and most files end here
        return np.zeros(0, np.int64)
    depth = np.cumsum(_DEPTH_CHANGES[marks], dtype=np.int64)
    before = np.concatenate([[0], depth])[ends - lengths + 1]
    levels = depth - np.repeat(before, lengths)[: len(marks)]
    line = np.repeat(np.arange(len(ends)), lengths)[: len(marks)]
    return np.unique(line[levels > _MAX_LEVELS])


def plan_json(text: TextFile, partition_bytes: int) -> list[JsonFragment]:
    """Cut a file between rows into pieces of about `partition_bytes`, of which no types are known yet."""
    head, complete = text.head(_HEAD_BYTES)
    start = text.skip_byte_order_mark(head)
    beginning = head[start:].lstrip()
    size = text.file.size or 0
    is_array = beginning.startswith(b"[")
    bounds: list[tuple[int, int | None]] = [(start, None)]
    if is_array:
        start = len(head) - len(beginning) + 1
        bounds = [*_cut_elements(text, start, split_evenly(start, size, partition_bytes) if text.can_cut else [])]
    else:
        _check_lines(text, beginning, complete=complete)
        if text.can_cut:
            bounds = list(pairwise([start, *_line_starts(text, split_evenly(start, size, partition_bytes)), size]))
    blank = JsonFragment(text.file, None, 0, text, 0, None, pa.schema([]), frozenset(), is_array)
    return [replace(blank, nbytes=(b or size) - a, start=a, stop=b, parsed_rows=_ParsedRows()) for a, b in bounds]


def assign_types(
    fragments: Sequence[JsonFragment], surveys: Sequence[tuple[int, dict[str, JsonType]]]
) -> list[JsonFragment]:
    """Give all pieces the types that hold the values of all of them."""
    types = merge_fields(fragment_types for _, fragment_types in surveys)
    mixed = frozenset(name for name, (_, is_mixed) in types.items() if is_mixed)
    fields = {
        name: MIXED if name in mixed and pt.is_string(kind) else settle_type(kind) for name, (kind, _) in types.items()
    }
    schema = pa.schema(list(fields.items()))
    return [
        replace(fragment, rows=rows, schema=schema, mixed=mixed)
        for fragment, (rows, _) in zip(fragments, surveys, strict=True)
    ]


def _check_lines(text: TextFile, head: bytes, *, complete: bool) -> None:
    """Refuse JSON that is not in lines, which would read as rows by accident."""
    first, newline, _ = head.partition(b"\n")
    first = first.strip()
    if not first:
        return
    try:
        is_object = isinstance(json.loads(first), dict) if newline or complete else first.startswith(b"{")
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise ConfigError(
            f"{text.file.name}: its first line is not a JSON object; one object a line, or one array of objects is "
            "needed: read it with pandas.read_json and pass the frame, or write it again with "
            "to_json(orient='records', lines=True)"
        )


def _line_starts(text: TextFile, targets: Sequence[int]) -> list[int]:
    starts: list[int] = []
    size = text.file.size or 0
    for target in targets:
        if starts and target <= starts[-1]:
            continue
        position = target - 1
        for block in text.blocks(position):
            if (newline_index := block.find(b"\n")) >= 0:
                position += newline_index + 1
                break
            position += len(block)
        if position < size:
            starts.append(position)
    return starts


def _scan_structure(blocks: Iterable[bytes]) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Follow strings and brackets from where an element may begin.

    Gives blocks, with the places in each of newlines outside of strings, of commas between elements, and of brackets
    that close the array.
    """
    inside, depth = False, 0
    small_blocks = (block[i : i + BLOCK_BYTES] for block in blocks for i in range(0, len(block), BLOCK_BYTES))
    for block in join_quote_runs(small_blocks, "\\"):
        view = np.frombuffer(block, np.uint8)
        quotes = np.flatnonzero(view == ord('"'))
        if b'\\"' in block:
            # A quote after an odd number of backslashes is a part of its string.
            last_others = np.maximum.accumulate(np.where(view == ord("\\"), -1, np.arange(len(view))))
            quotes = quotes[(quotes - np.where(quotes, last_others[quotes - 1], -1)) & 1 == 1]
        marks = np.flatnonzero(_IS_MARK[view])
        marks = marks[(np.searchsorted(quotes, marks) + inside) & 1 == 0]
        levels = depth + np.cumsum(_DEPTH_CHANGES[view[marks]], dtype=np.int64)
        commas = marks[(view[marks] == ord(",")) & (levels == 0)]
        yield view, marks[view[marks] == ord("\n")], commas, marks[levels < 0]
        inside ^= bool(len(quotes) & 1)
        depth = int(levels[-1]) if len(levels) else depth


def _cut_elements(text: TextFile, start: int, targets: Sequence[int]) -> list[tuple[int, int]]:
    """Return where parts of an array begin and end: at the first comma at or after each target."""
    cuts, waiting, position = [], list(targets)[::-1], start
    for view, _, commas, ends in _scan_structure(text.blocks(start)):
        last = int(ends[0]) if len(ends) else len(view)
        cuts += take_ends(position + commas[commas < last], waiting)
        position += last
        if len(ends):
            break
    rest = b"".join(block.strip() for block in text.blocks(position))
    if rest != b"]":
        problem = f"after its end comes {rest[1:9]!r}" if rest else "it is never closed"
        raise RejectedValueError(
            f"{text.file.name}, line {text.line_number_at(position)}: not a JSON array: {problem}; correct the file, or write "
            "one object a line"
        )
    return list(zip([start, *(cut + 1 for cut in cuts)], [*cuts, position], strict=True))


def _split_elements(data: bytes) -> bytes:
    """Return the elements of a part of an array, one in a line; whatever else is there stays in its place."""
    element_lines = []
    for view, newlines, commas, _ in _scan_structure([data]):
        block = view.copy()
        block[newlines], block[commas] = ord(" "), ord("\n")
        element_lines.append(block.tobytes())
    return b"".join(element_lines)
