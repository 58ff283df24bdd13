"""JSON of one object a line, or of one array of objects, split between objects, with one type for each column.

The type of a column is the common type over all files, and so needs a pass over all rows when a source is created. A
type inferred from a sample or one fragment could fail in another fragment. The pass also counts the rows.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json
import pyarrow.types as pt

from daskprep.columns.kernels import MIXED
from daskprep.errors import ConfigError, RejectedValueError, StorageFullError
from daskprep.rows.saved import check_unique_keys
from daskprep.sources.arrow_types import common_type
from daskprep.sources.base import FileFragment, split_evenly, table_without_columns
from daskprep.sources.cells import cell_texts, mixed_cells
from daskprep.sources.locations import Spool
from daskprep.sources.text import BLOCK_BYTES, TextFile, join_quote_runs, parse_in_blocks, take_ends

_HEAD_BYTES = 1 << 16
_PARSED_BYTES = 1 << 20
_MAX_SHOWN_CHARACTERS = 80
_MAX_LEVELS = 100
_INTEGER_TO_FLOAT = (pa.int64(), pa.float64())
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NEWLINE = 10
_UNMARKED_BYTES = bytes(sorted({*range(256)} - {*b"[{]}\n"}))
# How a single line starts that `DataFrame.to_json` wrote in another orientation than "records".
_PANDAS_START = re.compile(rb'\{"columns":\[|\{"schema":\{"fields":\[|\{"0":\{"|\{"(?:[^"\\]|\\.)*":\{"0":')
_DEPTH_CHANGES = np.zeros(256, np.int8)  # change of the nesting depth at each byte
_DEPTH_CHANGES[list(b"[{")], _DEPTH_CHANGES[list(b"]}")] = 1, -1
_IS_MARK = np.isin(np.arange(256), list(b"[{]},\n"))
# An Arrow type and a flag: True for values of several types, which are read as text.
JsonType = tuple[pa.DataType, bool]
Survey = tuple[int, dict[str, JsonType], Path | None]
_NULL_TYPE: JsonType = (pa.null(), False)
_MIXED_TEXT: JsonType = (pa.string(), True)
# Integers beyond 64 bits; Arrow would convert them to floats, and different ids would become equal.
_BIG_INTEGER = pa.decimal128(38, 0)
_MIN_BIG_INTEGER, _MAX_BIG_INTEGER = 2.0**63, 1e38
# Floats with integer values, such as 1.0: merged with big integers they become big integers, otherwise floats.
_INTEGRAL_FLOAT = pa.decimal128(37, 0)


@dataclass(frozen=True)
class JsonFragment(FileFragment):
    """Lines of a file, or elements of its array.

    `schema` has the types of all columns; columns in `mixed` have values of several types, read as text.
    """

    text: TextFile
    start: int
    stop: int | None
    schema: pa.Schema
    mixed: frozenset[str]
    is_array: bool
    parsed: Path | None = field(default=None, compare=False, repr=False)  # the file of the rows that `survey` parsed
    spool: Any = field(default=None, compare=False, repr=False)  # keeps the folder of the file from being removed
    kind: ClassVar[str] = "JSON"

    def read_stored(self, columns: list[str]) -> pa.Table:
        """Return columns, mixed ones as JSON; RejectedValueError for an invalid line."""
        if self.parsed is not None and self.parsed.exists():  # workers may not share the folder
            with pa.OSFile(str(self.parsed)) as file:
                parsed_rows = pa.ipc.open_stream(file).read_all()
            if (table := self._cast_parsed_rows(parsed_rows, columns)) is not None:
                return table
        data = self._read_lines()
        plain = pa.schema([self.schema.field(name) for name in columns if name not in self.mixed])
        try:
            table = self._parse_table(data, plain)
            table.validate(full=True)  # Arrow's parser does not check that strings are UTF-8
        except pa.ArrowInvalid as error:
            list(self._iterate_objects(data))  # raises at the first invalid line, with its number
            raise self._unreadable_error(error) from error
        if mixed := [name for name in columns if name in self.mixed]:
            objects = list(self._iterate_objects(data))
            for name in mixed:
                values, kind = [row.get(name) for row in objects], self.schema.field(name).type
                cells = map(_nested_to_json, values)
                column = mixed_cells(cells) if kind == MIXED else pa.array(_convert_values(values, kind), kind)
                table = table.append_column(name, column)
        return table.select(columns)

    def survey(self, spool: Spool | None) -> Survey:
        """Return the number of rows, types by column, and the file of parsed rows in `spool`, None if not kept."""
        data = self._read_lines()
        self._check_depth(data.to_pybytes())
        try:
            table = self._parse_table(data, None)
        except pa.ArrowInvalid as error:
            objects = list(self._iterate_objects(data))
            names = dict.fromkeys(name for row in objects for name in row)
            types = {name: _values_type(row.get(name) for row in objects) for name in names}
            if not any(mixed for _, mixed in types.values()):
                raise self._unreadable_error(error) from error
            return len(objects), types, None
        path = None
        if spool is not None:
            with suppress(pa.ArrowInvalid, StorageFullError):  # rows that cannot be kept are parsed again
                table.validate(full=True)
                path = spool.write(f"{uuid.uuid4().hex}.arrow", table)
        return table.num_rows, {name: (_array_type(table[name]), False) for name in table.column_names}, path

    def _cast_parsed_rows(self, table: pa.Table, columns: list[str]) -> pa.Table | None:
        """Return columns in the types of the schema, None if they differ too much."""
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
        """Raise RejectedValueError for deeply nested lines, which Arrow's parser never finishes."""
        for number in _find_deep_lines(text):
            line = text.split(b"\n")[number]
            if len(_find_deep_lines(_STRINGS.sub(b"", line))):
                raise self._bad_line_error(number, line, f"it is nested more than {_MAX_LEVELS} levels deep")

    def _parse_table(self, data: pa.Buffer, schema: pa.Schema | None) -> pa.Table:
        """Return rows with the columns of `schema` alone, or with all in inferred types (None)."""
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
        """Yield the object of each line but blank ones; RejectedValueError for a line that is none."""
        for number, line in enumerate(data.to_pybytes().split(b"\n")):
            if not line.strip():
                continue
            try:
                # Decoded first, since json guesses the encoding of bytes, and accepts halves of surrogate pairs.
                value = json.loads(line.decode(), object_pairs_hook=check_unique_keys)
                if b"\\u" in line:
                    json.dumps(value, ensure_ascii=False).encode()  # raises for escaped halves
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
        """Return the line of the file, from 1, of a line or array element of this fragment."""
        if self.is_array:
            data = self.text.read(self.start, self.stop).to_pybytes()
            lines = _split_elements(data).split(b"\n")[: number + 1]
            number = data.count(b"\n", 0, len(b"\n".join(lines)) - len(lines[-1].lstrip()))
        return self.text.line_number_at(self.start) + number


def _find_deep_lines(text: bytes) -> np.ndarray:
    """Return the numbers, from 0, of lines with more than 100 levels of brackets."""
    marks = np.frombuffer(text.translate(None, _UNMARKED_BYTES), np.uint8)
    ends = np.append(np.flatnonzero(marks == _NEWLINE), len(marks))
    lengths = np.diff(ends, prepend=-1)
    if lengths.max() <= _MAX_LEVELS:  # no line has enough brackets: the common case
        return np.zeros(0, np.int64)
    depth = np.cumsum(_DEPTH_CHANGES[marks], dtype=np.int64)
    before = np.concatenate([[0], depth])[ends - lengths + 1]
    levels = depth - np.repeat(before, lengths)[: len(marks)]
    line = np.repeat(np.arange(len(ends)), lengths)[: len(marks)]
    return np.unique(line[levels > _MAX_LEVELS])


def plan_json(text: TextFile, partition_bytes: int) -> list[JsonFragment]:
    """Return fragments of a file, still without types; ConfigError unless it has objects, or an array."""
    head, complete = text.head(_HEAD_BYTES)
    start = text.skip_byte_order_mark(head)
    first_text = head[start:].lstrip()
    size = text.file.size or 0
    is_array = first_text.startswith(b"[")
    bounds: list[tuple[int, int | None]] = [(start, None)]
    if is_array:
        start = len(head) - len(first_text) + 1
        bounds = [*_cut_elements(text, start, split_evenly(start, size, partition_bytes) if text.can_split else [])]
    else:
        _check_lines(text, first_text, complete=complete)
        if text.can_split:
            bounds = list(pairwise([start, *_line_starts(text, split_evenly(start, size, partition_bytes)), size]))
    blank = JsonFragment(text.file, None, 0, text, 0, None, pa.schema([]), frozenset(), is_array)
    return [replace(blank, nbytes=(b or size) - a, start=a, stop=b) for a, b in bounds]


def assign_types(fragments: Sequence[JsonFragment], surveys: Sequence[Survey], spool: Spool) -> list[JsonFragment]:
    """Return the fragments with row counts and common types; columns without one are in `mixed`."""
    types: dict[str, JsonType] = {}
    for _, fragment_types, _ in surveys:
        for name, (kind, is_mixed) in fragment_types.items():
            merged, was_mixed = types.get(name, _NULL_TYPE)
            has_none = common_type(merged, kind) is None
            types[name] = common_type(merged, kind, pa.string()), has_none or is_mixed or was_mixed
    mixed = frozenset(name for name, (_, is_mixed) in types.items() if is_mixed)
    fields = {
        name: MIXED if name in mixed and pt.is_string(kind) else _settle_type(kind) for name, (kind, _) in types.items()
    }
    schema = pa.schema(list(fields.items()))
    return [
        replace(fragment, rows=rows, schema=schema, mixed=mixed, parsed=parsed, spool=spool)
        for fragment, (rows, _, parsed) in zip(fragments, surveys, strict=True)
    ]


def _check_lines(text: TextFile, head: bytes, *, complete: bool) -> None:
    """Raise ConfigError unless the file starts with an object."""
    first, newline, rest = head.partition(b"\n")
    first = first.strip()
    if not first:
        return
    is_object = first.startswith(b"{") and not (_PANDAS_START.match(first) and not rest.strip())
    if is_object and (newline or complete):
        try:
            json.loads(first)
        except (ValueError, RecursionError):
            is_object = False
    if not is_object:
        raise ConfigError(
            f"{text.file.name}: its first line is not a JSON object of one row. Expected one object a line, or one "
            "array of objects: read it with pandas.read_json and pass the frame, or write it again with "
            "to_json(orient='records', lines=True)"
        )


def _line_starts(text: TextFile, targets: Sequence[int]) -> list[int]:
    """Return the first line start at or after each target, each once, before the end."""
    starts: list[int] = []
    for target in targets:
        if starts and target <= starts[-1]:
            continue
        position = target - 1
        for block in text.blocks(position):
            if (newline_index := block.find(b"\n")) >= 0:
                starts.append(position + newline_index + 1)
                break
            position += len(block)
    return [start for start in starts if start < (text.file.size or 0)]


def _scan_structure(blocks: Iterable[bytes]) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield blocks, and positions outside of strings: newlines, commas between elements, array ends."""
    inside, depth = False, 0
    small_blocks = (block[i : i + BLOCK_BYTES] for block in blocks for i in range(0, len(block), BLOCK_BYTES))
    for block in join_quote_runs(small_blocks, "\\"):
        view = np.frombuffer(block, np.uint8)
        quotes = np.flatnonzero(view == ord('"'))
        if b'\\"' in block:
            # A backslash before a quote escapes it, unless another backslash escapes the first.
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
    """Return (start, stop) of parts of an array, cut at commas; RejectedValueError if it does not end."""
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
            f"{text.file.name}, line {text.line_number_at(position)}: not a JSON array: {problem}; correct the file, "
            "or write one object a line"
        )
    return list(zip([start, *(cut + 1 for cut in cuts)], [*cuts, position], strict=True))


def _split_elements(data: bytes) -> bytes:
    """Return elements of an array as lines; newlines within elements become spaces."""
    element_lines = []
    for view, newlines, commas, _ in _scan_structure([data]):
        block = view.copy()
        block[newlines], block[commas] = ord(" "), ord("\n")
        element_lines.append(block.tobytes())
    return b"".join(element_lines)


def _array_type(array: pa.Array | pa.ChunkedArray) -> pa.DataType:
    """Return the type of a parsed column, of numbers by their size, of times text."""
    kind = array.type
    if pt.is_timestamp(kind):
        return pa.string()
    if pt.is_list(kind):
        return kind if pt.is_null(kind.value_type) else pa.list_(_array_type(pc.list_flatten(array)))
    if pt.is_struct(kind):
        return pa.struct([(field.name, _array_type(pc.struct_field(array, [i]))) for i, field in enumerate(kind)])
    if pt.is_floating(kind):
        return _float_type(np.asarray(array.drop_null()))
    if pt.is_integer(kind):
        limits = pc.min_max(array).as_py()
        return _integer_type([limits["min"] or 0, limits["max"] or 0])
    return kind


def _float_type(values: np.ndarray) -> pa.DataType:
    """Return the type for floats: integral, big integers, or float64."""
    largest = np.max(np.abs(values), initial=0)
    if largest >= _MAX_BIG_INTEGER or not bool((values == np.trunc(values)).all()):
        return pa.float64()
    return _BIG_INTEGER if largest >= _MIN_BIG_INTEGER else _INTEGRAL_FLOAT


def _integer_type(values: Sequence[int]) -> pa.DataType:
    """Return int64, the type of big integers, or float64 beyond."""
    # Compared as floats, because Arrow converts all integers of a column with a float or a big integer to floats.
    largest = max(abs(float(value)) for value in values)
    if largest >= _MAX_BIG_INTEGER:
        return pa.float64()
    return _BIG_INTEGER if largest >= _MIN_BIG_INTEGER else pa.int64()


def _settle_type(kind: pa.DataType) -> pa.DataType:
    """Return the type to read a column in, for a merged type."""
    if pt.is_list(kind):
        return pa.list_(_settle_inner_type(kind.value_type))
    if pt.is_struct(kind):
        return pa.struct([(field.name, _settle_inner_type(field.type)) for field in kind])
    return pa.float64() if kind == _INTEGRAL_FLOAT else kind


def _settle_inner_type(kind: pa.DataType) -> pa.DataType:
    # Arrow 26.0.1 returns arrays of wrong lengths for lists of the null type.
    return pa.string() if pt.is_null(kind) else _settle_type(kind)


def _values_type(values: Iterable[Any]) -> JsonType:
    """Return the type of parsed JSON values, and whether they have several, and are read as text."""
    values = [value for value in values if value is not None]
    kinds = set(map(type, values))
    if not kinds:
        return _NULL_TYPE
    if kinds == {bool}:
        return pa.bool_(), False
    if kinds == {str}:
        return pa.string(), False
    if kinds == {list}:
        kind, mixed = _values_type(chain.from_iterable(values))
        return pa.list_(kind), mixed
    if kinds == {dict}:
        names = dict.fromkeys(chain.from_iterable(values))
        types = [_values_type(value.get(name) for value in values) for name in names]
        return pa.struct(zip(names, (kind for kind, _ in types), strict=True)), any(mixed for _, mixed in types)
    if kinds == {int}:
        return _integer_type(values), False
    if kinds <= {int, float}:
        return _float_type(np.array([float(value) for value in values])), False
    return _MIXED_TEXT


def _convert_values(values: Sequence[Any], kind: pa.DataType) -> list[Any]:
    """Return values as the Python types that Arrow needs."""
    if pt.is_string(kind):
        return cell_texts(map(_nested_to_json, values))
    if pt.is_list(kind):
        return [None if value is None else _convert_values(value, kind.value_type) for value in values]
    if pt.is_struct(kind):
        columns = [
            _convert_values([None if value is None else value.get(field.name) for value in values], field.type)
            for field in kind
        ]
        names = [field.name for field in kind]
        rows = zip(*columns, strict=True) if columns else iter([()] * len(values))
        cells = zip(values, (dict(zip(names, row, strict=True)) for row in rows), strict=True)
        return [None if value is None else cell for value, cell in cells]
    # Arrow refuses to convert floats to decimals, and integers that no float represents exactly to floats.
    number = Decimal if pt.is_decimal(kind) else float if pt.is_floating(kind) else None
    return [value if value is None or number is None else number(value) for value in values]


def _nested_to_json(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if isinstance(value, list | dict) else value
