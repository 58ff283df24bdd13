"""CSV files are read as with Python's `csv` module, JSON lines as with `json`, for any partitioning."""

from __future__ import annotations

import csv
import io
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from daskprep.errors import DaskprepError
from daskprep.sources import read_files
from tests.amount import one_in

QUICK = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
LONG = settings(max_examples=3_000 // one_in(8), suppress_health_check=[HealthCheck.function_scoped_fixture])

# -- CSV

DELIMITERS = [",", ";", "\t", "|", ":", " "]
# Special characters of readers, letters of one to four bytes, and a byte order mark.
cell_texts = st.text(st.sampled_from("ab\"'\n\r,;\t| \\é€𝄞\ufeff\0"), max_size=6)


@st.composite
def csv_files(draw: st.DrawFn) -> tuple[str, list[list[str]], dict[str, Any]]:
    """Draw the text of a file, its rows, and the style of its cells."""
    delimiter, quote = draw(st.sampled_from(DELIMITERS)), draw(st.sampled_from(['"', "'"]))
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    width = draw(st.integers(1, 4))
    rows = draw(st.lists(st.lists(cell_texts, min_size=width, max_size=width), max_size=12))

    def written(cell: str) -> str:
        # A single empty cell would be a blank line, which is not a row.
        must = any(mark in cell for mark in (delimiter, quote, "\r", "\n")) or (width == 1 and not cell)
        return f"{quote}{cell.replace(quote, 2 * quote)}{quote}" if must or draw(st.booleans()) else cell

    options: dict[str, Any] = {"delimiter": delimiter, "quote": quote, "null_values": []}
    comment, names = draw(st.sampled_from([None, "#"])), [f"c{i}" for i in range(width)]
    lines = draw(st.lists(cell_texts.map(lambda cell: cell.replace("\n", "").replace("\r", "")), max_size=3))
    options |= {"skip_rows": len(lines), "comment": comment}
    if draw(st.booleans()):
        options |= {"header": None, "names": names}
    else:
        lines.append(delimiter.join(names))
    for row in rows:
        lines += [""] * draw(st.sampled_from([0, 0, 0, 1, 5]))
        if comment:
            lines += draw(st.lists(st.sampled_from(['#"', f"# {delimiter}{quote}x", "#,'\"", "#"]), max_size=2))
        lines.append(delimiter.join(map(written, row)))
    text = newline.join(lines) + draw(st.sampled_from(["", newline]))
    assume(not text.startswith("\ufeff"))  # marks the file, and is not in a cell
    return text, rows, options


def cells_of(path: Path, **options: Any) -> list[list[Any]]:
    source = read_files(path, **options)
    return [
        [row[name] for name in source.columns]
        for i in range(source.npartitions)
        for row in source.read(i, source.columns).to_pylist()
    ]


def check_csv(path: Path, file: tuple[str, list[list[str]], dict[str, Any]], partition_bytes: int) -> None:
    text, rows, options = file
    if options["skip_rows"] == 0 and not options["comment"]:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=options["delimiter"], quotechar=options["quote"])
        assert [row for row in reader if row]["names" not in options :] == rows
    path.write_bytes(text.encode())
    assert cells_of(path, partition_bytes=partition_bytes, **options) == rows


@QUICK
@given(csv_files(), st.integers(1, 60))
def test_csv_files_equal_the_csv_module(tmp_path: Path, file: Any, partition_bytes: int) -> None:
    check_csv(tmp_path / "a.csv", file, partition_bytes)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@LONG
@given(csv_files(), st.integers(1, 60))
def test_many_csv_files_equal_the_csv_module(tmp_path: Path, file: Any, partition_bytes: int) -> None:
    check_csv(tmp_path / "a.csv", file, partition_bytes)


# -- JSON lines

texts = st.text(max_size=5) | st.sampled_from(["", "2020-01-31", "1", "true", "null", "\ufeff", "é\u2028𝄞"])
integers = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
plain = [st.booleans(), integers, floats, texts]
kinds = st.deferred(
    lambda: (
        st.sampled_from(plain)
        | kinds.map(lambda values: st.lists(values, max_size=3))
        | st.dictionaries(st.sampled_from("xyz"), kinds, min_size=1, max_size=2).map(st.fixed_dictionaries)
    )
)
anything = st.recursive(
    st.none() | st.integers() | st.booleans() | floats | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def json_rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw rows whose columns have values of one type each, some of them missing."""
    columns = draw(st.dictionaries(texts, kinds, min_size=1, max_size=3))
    cells = {name: st.none() | values for name, values in columns.items()}
    rows: list[dict[str, Any]] = draw(st.lists(st.fixed_dictionaries({}, optional=cells), min_size=1, max_size=8))
    return rows


def write_lines(path: Path, rows: list[dict[str, Any]], *, ascii: bool) -> None:
    path.write_bytes(b"".join(f"{json.dumps(row, ensure_ascii=ascii)}\n".encode() for row in rows))


def write_array(path: Path, rows: list[dict[str, Any]], *, ascii: bool, indent: int | None) -> None:
    path.write_bytes(json.dumps(rows, ensure_ascii=ascii, indent=indent).encode())


def read_lines(path: Path, partition_bytes: int) -> dict[str, list[Any]]:
    source = read_files(path, partition_bytes=partition_bytes)
    tables = [source.read(i, source.columns).to_pydict() for i in range(source.npartitions)]
    return {name: [cell for table in tables for cell in table[name]] for name in source.columns}


def same(found: Any, expected: Any) -> bool:
    """Return whether a cell equals the one in the file; missing fields of objects are null."""
    if isinstance(expected, dict):
        return all(same(found[key], expected.get(key)) for key in found) and expected.keys() <= found.keys()
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, float) and isinstance(found, Decimal):
        # Integers are decimals with all digits if one of their column exceeds 64 bits.
        return expected.is_integer() and abs(expected) < 1e38 and float(found) == expected
    if isinstance(expected, float):
        return isinstance(found, float) and found == expected and math.copysign(1, found) == math.copysign(1, expected)
    # Integers close to the limits of 64 bits are decimals.
    return type(found) in {type(expected), Decimal if type(expected) is int else None} and bool(found == expected)


def check_json(path: Path, rows: list[dict[str, Any]], partition_bytes: int, *, ascii: bool) -> None:
    write_lines(path, rows, ascii=ascii)
    check_rows(path, rows, partition_bytes)
    write_array(path, rows, ascii=ascii, indent=partition_bytes % 3 or None)
    check_rows(path, rows, partition_bytes)


def check_rows(path: Path, rows: list[dict[str, Any]], partition_bytes: int) -> None:
    names = {name for row in rows for name in row}
    assume(names)
    found = read_lines(path, partition_bytes)
    assert found.keys() == names
    for name, cells in found.items():
        assert len(cells) == len(rows)
        assert all(same(cell, row.get(name)) for cell, row in zip(cells, rows, strict=True)), name


@QUICK
@given(json_rows(), st.integers(1, 60), st.booleans())
def test_json_lines_equal_the_json_module(
    tmp_path: Path, rows: list[dict[str, Any]], partition_bytes: int, ascii: bool
) -> None:
    check_json(tmp_path / "a.jsonl", rows, partition_bytes, ascii=ascii)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@LONG
@given(json_rows(), st.integers(1, 60), st.booleans())
def test_many_json_lines_equal_the_json_module(
    tmp_path: Path, rows: list[dict[str, Any]], partition_bytes: int, ascii: bool
) -> None:
    check_json(tmp_path / "a.jsonl", rows, partition_bytes, ascii=ascii)


# -- anything


def outcome(path: Path, partition_bytes: int) -> dict[str, list[Any]] | None:
    """Return the cells of a file, or None if it raises with its name."""
    try:
        return read_lines(path, partition_bytes)
    except DaskprepError as error:
        if path.name not in str(error):
            raise
        return None


def check_anything(path: Path, content: bytes, partition_bytes: int) -> None:
    """Check that a file is read equally for any partitioning, or raises with its name."""
    path.write_bytes(content)
    assert repr(outcome(path, partition_bytes)) == repr(outcome(path, 1_000_000))


@pytest.mark.parametrize(
    ("name", "content", "cells"),
    [
        ("a.jsonl", b'{"a": "x"}\n{}\n', {"a": ["x", None]}), ("a.jsonl", b'{"a": "x"}{', None),
        ("a.csv", b"a,b\nx,y\n", {"a": ["x"], "b": ["y"]}), ("a.csv", b"a,b\nx,\xff\n", None),
    ],
)  # fmt: skip
def test_accepted_and_rejected_files(tmp_path: Path, name: str, content: bytes, cells: Any) -> None:
    (tmp_path / name).write_bytes(content)
    assert outcome(tmp_path / name, 4) == cells


@pytest.mark.slow
@settings(QUICK, max_examples=200)
@given(st.lists(st.dictionaries(texts, anything, max_size=3), min_size=1, max_size=6), st.integers(1, 60))
def test_json_lines_of_mixed_types_do_not_depend_on_partitions(
    tmp_path: Path, rows: list[dict[str, Any]], partition_bytes: int
) -> None:
    write_lines(tmp_path / "a.jsonl", rows, ascii=True)
    whole = read_lines(tmp_path / "a.jsonl", 1_000_000) if any(rows) else {}
    for name, cells in whole.items():
        assert [cell is None for cell in cells] == [row.get(name) is None for row in rows]
    check_anything(tmp_path / "a.jsonl", (tmp_path / "a.jsonl").read_bytes(), partition_bytes)


# fmt: off
pieces = st.sampled_from((
    b'{"a": 1}', b'{"a": "x"}', b'{"a": 1, "a": 2}', b'{"a": "\\ud800"}', b'{"a": [[[[[[1]]]]]]}', b'{"a": 1e999}',
    b'{"a": 123456789012345678901234567890123456789012345}', b'{"a": NaN}', b'{"a": "\xff"}', b'{"a": "\\u0000"}',
    b'{"b": {"a": null}}', b"{}", b"[1]", b"\n", b"\r\n", b"{", b"}", b'"', b",", b" ", b"\0", b"\xef\xbb\xbf",
))
# fmt: on


@settings(QUICK, max_examples=200)
@given(st.lists(pieces, max_size=12).map(b"".join), st.integers(1, 30))
def test_arbitrary_json_lines_are_read_consistently_or_raise(
    tmp_path: Path, content: bytes, partition_bytes: int
) -> None:
    check_anything(tmp_path / "a.jsonl", content, partition_bytes)


# pyarrow logs to stderr that it cannot show a row of wrong length that is not UTF-8; the error is a daskprep error.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:.*its first line is used as column names:UserWarning")
@settings(QUICK, max_examples=200)
@given(st.lists(st.sampled_from(list(b'ab",\n\r\xff\xef\xbb\xbf\0 ')), max_size=40).map(bytes), st.integers(1, 30))
def test_arbitrary_csv_is_read_consistently_or_raises(tmp_path: Path, content: bytes, partition_bytes: int) -> None:
    check_anything(tmp_path / "a.csv", b"a,b\n" + content, partition_bytes)
