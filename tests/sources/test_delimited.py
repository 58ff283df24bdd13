"""CSV and similar text: partitions do not change cells, and errors name the line."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daskprep.errors import ColumnError, ConfigError, DaskprepError, RejectedValueError
from daskprep.sources import FileSource, read_files
from daskprep.sources.delimited import DEFAULT_NULLS
from tests.sizes import sized

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(content: str | bytes, name: str = "a.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


def read_table(source: FileSource) -> pa.Table:
    return pa.concat_tables([source.read(i, source.columns) for i in range(source.npartitions)])


def rows(source: FileSource) -> list[list[str | None]]:
    return [list(row.values()) for row in read_table(source).to_pylist()]


CELLS = st.text(alphabet='ab",;\n\r\t é"', max_size=6)
PARTITIONS = st.integers(1, 80) | st.just(1000)
BLOCKS = st.integers(8, 64) | st.just(1000)
MARKS = st.sampled_from([(",", "\n"), (",", "\r\n"), (";", "\n"), ("\t", "\r\n")])
RECORDS = st.integers(1, 3).flatmap(lambda width: st.lists(st.lists(CELLS, min_size=width, max_size=width)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RECORDS, PARTITIONS, BLOCKS, MARKS)
def test_cells_do_not_depend_on_partition_bytes(
    write: Write, records: list[list[str]], partition_bytes: int, block_bytes: int, marks: tuple[str, str]
) -> None:
    delimiter, newline = marks
    width = len(records[0]) if records else 2
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator=newline, quoting=csv.QUOTE_ALL)
    writer.writerows([[f"c{i}" for i in range(width)], *records])
    source = read_files(
        write(text.getvalue()), delimiter=delimiter, null_values=["<none>"], partition_bytes=partition_bytes
    )
    with sized(delimited_block_bytes=block_bytes):
        assert rows(source) == records
        assert sum(source.read(i, []).num_rows for i in range(source.npartitions)) == len(records)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(alphabet='a"\r ', max_size=8), max_size=12), PARTITIONS, BLOCKS)
def test_quotes_inside_cells_do_not_shift_partitions(
    write: Write, cells: list[str], partition_bytes: int, block_bytes: int
) -> None:
    path = write("x,y\n" + "".join(f"1,z{cell}\n" for cell in cells))
    try:
        expected = read_table(read_files(path))
    except DaskprepError:  # a bare carriage return ends a record, and may leave one ragged
        expected = None
    with sized(delimited_block_bytes=block_bytes):
        if expected is None:
            with pytest.raises(DaskprepError, match=re.escape(path.name)):
                read_table(read_files(path, partition_bytes=partition_bytes))
        else:
            source = read_files(path, partition_bytes=partition_bytes)
            assert read_table(source).equals(expected)
            assert sum(source.read(i, []).num_rows for i in range(source.npartitions)) == len(expected)


def test_large_file_has_even_fragments_with_small_pickles(write: Write) -> None:
    body = "".join(f'{i},"line\nof {i}"\n' for i in range(2000))
    path = write("id,text\n" + body)
    source = read_files(path, partition_bytes=10_000)
    assert source.npartitions == -(-len(body) // 10_000)
    assert read_table(source).to_pydict() == {
        "id": [str(i) for i in range(2000)],
        "text": [f"line\nof {i}" for i in range(2000)],
    }
    assert all(len(pickle.dumps(fragment)) < 1000 for fragment in source.fragments)
    assert pickle.loads(pickle.dumps(source.fragments[3])).read(["id"]).equals(source.read(3, ["id"]))


@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_quoted_newline_at_arrow_block_border(write: Write, shift: int) -> None:
    block_bytes, header = 1 << 22, "a,b\n"
    cell = "x" * (block_bytes - 4 + shift) + "\r\ny"
    source = read_files(write(header + f'1,"{cell}"\n2,z\n'))
    assert read_table(source)["b"].to_pylist() == [cell, "z"]


@pytest.mark.parametrize("partition_bytes", [1, 1000])
def test_byte_order_mark_in_cell_is_kept(write: Write, partition_bytes: int) -> None:
    source = read_files(write("a,b\n1,2\n\ufeff3,4\n\ufeff,6\n"), partition_bytes=partition_bytes)
    assert rows(source) == [["1", "2"], ["\ufeff3", "4"], ["\ufeff", "6"]]


def test_record_longer_than_arrow_block(write: Write) -> None:
    source = read_files(write(f"a,b\n1,{'x' * 9_000_000}\n2,y\n"))
    assert [len(text) for text in read_table(source)["b"].to_pylist()] == [9_000_000, 1]


def test_default_null_values_equal_pandas(write: Write) -> None:
    from pandas._libs.parsers import STR_NA_VALUES

    assert set(DEFAULT_NULLS) == STR_NA_VALUES
    source = read_files(write("a,b\n" + "".join(f"{value},x\n" for value in DEFAULT_NULLS) + '"NA",x\n'))
    assert read_table(source)["a"].null_count == len(DEFAULT_NULLS) + 1


def test_null_values_replace_default(write: Write) -> None:
    assert rows(read_files(write("a,b\nNA,?\n,x\n"), null_values=["?"])) == [["NA", None], ["", "x"]]


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
def test_delimiter_is_inferred(write: Write, delimiter: str) -> None:
    lines = ["a{0}b{0}c", '1,5{0}"x{0}y"{0}2;3' if delimiter not in ",;" else '1{0}"x,;y"{0}z', "4{0}5{0}6"]
    source = read_files(write("\n".join(lines).format(delimiter)))
    assert source.columns == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_single_column_keeps_commas(write: Write, name: str) -> None:
    assert rows(read_files(write("text\nhello, world\nfoo\n", name))) == [["hello, world"], ["foo"]]


@pytest.mark.parametrize(
    "content",
    ["a,b\r\n1,2\r\n3,4\r\n", "\ufeffa,b\n1,2\n3,4", "\n\na,b\n\n1,2\n\n\n3,4\n\n", "a,b\r1,2\r3,4"],
)
@pytest.mark.parametrize("partition_bytes", [1, 1000])
def test_newlines_byte_order_marks_and_blank_lines_are_skipped(
    write: Write, content: str, partition_bytes: int
) -> None:
    source = read_files(write(content), partition_bytes=partition_bytes)
    assert source.columns == ["a", "b"]
    assert rows(source) == [["1", "2"], ["3", "4"]]
    assert sum(source.read(i, []).num_rows for i in range(source.npartitions)) == 2


def test_header_only_file_is_one_empty_partition(write: Write) -> None:
    for content in ("a,b", "a,b\n", "a,b\n\n"):
        source = read_files(write(content))
        assert read_table(source).schema == pa.schema([("a", pa.string()), ("b", pa.string())])
        assert rows(source) == []


def test_long_header(write: Write) -> None:
    names = [f"column {i} {'x' * 500}" for i in range(1000)]
    source = read_files(write(",".join(names) + "\n" + ",".join("1" * 1000) + "\n"))
    assert source.columns == names


def test_column_order_and_empty_selection(write: Write) -> None:
    source = read_files(write("a,b,c\n1,2,3\n4,5,6\n"))
    assert source.read(0, ["c", "a"]).to_pydict() == {"c": ["3", "6"], "a": ["1", "4"]}
    assert source.read(0, []).num_rows == 2
    assert source.row_counts is None


@pytest.mark.parametrize(
    ("content", "known"),
    [
        ("x,y\n" + "1,a\n" * 30, True),
        ("x,y\n" + "1,a\n" * 29 + "1,a", True),
        ('x,y\n1,""\n' + "1,a\n" * 29, True),
        ('x,y\n1,"a"\n' + "1,a\n" * 29, False),
        ("x,y\n1,a\n\n" + "1,a\n" * 29, False),
        ("x,y\n\n" + "1,a\n" * 30, False),
        ("x,y\r\n" + "1,a\r\n" * 30, False),
    ],
)
@pytest.mark.parametrize("partition_bytes", [5, 40, 10_000])
def test_rows_are_counted_while_searching_cuts(write: Write, content: str, known: bool, partition_bytes: int) -> None:
    source = read_files(write(content), partition_bytes=partition_bytes)
    counts = [source.read(i, ["y"]).num_rows for i in range(source.npartitions)]
    assert sum(counts) == 30
    assert source.row_counts == (counts if known and source.npartitions > 1 else None)


def test_pandas_index_column_is_named(write: Write) -> None:
    assert read_files(write(pd.DataFrame({"x": [1]}).to_csv())).columns == ["Unnamed: 0", "x"]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-16-le", "shift_jis", "utf-8-sig"])
@pytest.mark.parametrize("partition_bytes", [20, 10_000])
def test_other_encodings_are_transcoded(write: Write, encoding: str, partition_bytes: int) -> None:
    word = "ソ表|ポ" if encoding == "shift_jis" else "é, ü"
    text = "näme,b\n".replace("ä", "a" if encoding == "shift_jis" else "ä") + f'"{word}","two\nlines"\n' * 20
    source = read_files(write(text.encode(encoding)), encoding=encoding, partition_bytes=partition_bytes)
    assert rows(source) == [[word, "two\nlines"]] * 20
    cut = encoding in {"latin-1", "cp1252", "utf-8-sig"} and partition_bytes == 20
    assert (source.npartitions > 1) == cut


def test_compressed_files_are_single_partitions(write: Write) -> None:
    text = "a,b\n" + '1,"x\ny"\n' * 100
    for name, compressed in (
        ("a.csv.gz", gzip.compress(text[:300].encode()) + gzip.compress(text[300:].encode())),
        ("b.csv.bz2", bz2.compress(text.encode())),
        ("c.csv.zst", pa.compress(text.encode(), "zstd", asbytes=True)),
    ):
        write(compressed, name)
    write(text, "0.csv")
    folder = write(text, "d.csv").parent
    source = read_files(folder, partition_bytes=10_000)
    assert source.npartitions == 5
    assert rows(source) == [["1", "x\ny"]] * 500


def test_small_files_are_joined(write: Write) -> None:
    for i in range(10):
        path = write(f"a,b\n{i},x\n", f"{i}.csv")
    source = read_files(path.parent, partition_bytes=20)
    assert source.npartitions == 2
    assert read_table(source)["a"].to_pylist() == [str(i) for i in range(10)]


def test_files_with_different_column_order(write: Write) -> None:
    paths = [write("a,b\n1,2\n", "1.csv"), write("b,a\n4,3\n", "2.csv")]
    assert rows(read_files(paths)) == [["1", "2"], ["3", "4"]]


def test_column_missing_in_one_file_raises_if_selected(write: Write) -> None:
    paths = [write("a,b\n1,2\n", "1.csv"), write("a,c\n4,3\n", "2.csv")]
    with pytest.raises(
        ColumnError, match=r'"b" is missing in .*2\.csv, but present in .*1\.csv|"c" is missing in .*1\.csv'
    ):
        read_files(paths)
    source = read_files(paths, columns=["a"])
    assert source.read(0, ["a"]).to_pydict() == {"a": ["1", "4"]}
    with pytest.raises(ColumnError, match=r'"b" is missing in .*2\.csv'):
        source.read(0, ["b"])


@pytest.mark.parametrize("partition_bytes", [10, 1000])
@pytest.mark.parametrize(("line", "cells"), [("7", 1), ("7,8,9", 3)])
def test_ragged_row_error_names_line(write: Write, partition_bytes: int, line: str, cells: int) -> None:
    path = write('a,b\n1,"2\n2"\n\n3,4\n5,6\n' + line + "\n9,9\n")
    with pytest.raises(RejectedValueError, match=rf"a\.csv, line 7: {cells} cells for 2 columns: '{line}'"):
        read_table(read_files(path, partition_bytes=partition_bytes, delimiter=","))


def test_header_with_too_few_names_raises(write: Write) -> None:
    with pytest.raises(RejectedValueError, match="line 2: 3 cells for 2 columns"):
        read_table(read_files(write("a,b\n1,2,3\n4,5,6\n")))


@pytest.mark.parametrize("partition_bytes", [10, 1000])
def test_invalid_utf8_error_names_line_and_column(write: Write, partition_bytes: int) -> None:
    path = write(b'a,b\n1,"2\n2"\n3,4\n5,caf\xe9\n9,9\n')
    source = read_files(path, partition_bytes=partition_bytes)
    with pytest.raises(RejectedValueError, match=r'line 5, column "b": not UTF-8: b.caf\\xe9.*encoding='):
        read_table(source)
    assert len([i for i in range(source.npartitions) if source.read(i, ["a"])]) == source.npartitions
    assert rows(read_files(path, encoding="latin-1"))[2] == ["5", "café"]


def test_wrong_encoding_error_names_byte(write: Write) -> None:
    with pytest.raises(RejectedValueError, match=r"not ascii text at byte 7; pass the right encoding"):
        read_table(read_files(write(b"a,b\n1,x\xe9\n"), encoding="ascii"))
    with pytest.raises(RejectedValueError, match='encoding="utf-16"'):
        read_files(write("a,b\n1,2\n".encode("utf-16")))
    with pytest.raises(RejectedValueError, match=r"not utf-8 text at byte 3;"):
        read_files(write(b"caf\xe9,b\n1,2\n"))


@pytest.mark.parametrize("partition_bytes", [8, 1000])
def test_unclosed_quote_error_names_line(write: Write, partition_bytes: int) -> None:
    path = write('a,b\n1,"x\ny"\n2,"z\n3,4\n5,6\n')
    with pytest.raises(
        RejectedValueError, match=r"a\.csv, line 4: a quote opens a value and is never closed.*quote=None"
    ):
        read_table(read_files(path, partition_bytes=partition_bytes))
    assert rows(read_files(write('a,b\n1,"x\n2,z\n'), quote=None, partition_bytes=partition_bytes)) == [
        ["1", '"x'],
        ["2", "z"],
    ]


@pytest.mark.parametrize("content", ["", "\n\n", "\ufeff"])
def test_empty_file_raises(write: Write, content: str) -> None:
    with pytest.raises(ConfigError, match=r"a\.csv: is empty; expected a first line"):
        read_files(write(content))


def test_duplicate_columns_raise(write: Write) -> None:
    with pytest.raises(ColumnError, match=r'a\.csv: 2 columns are named "b" \(numbers 1, 2, counted from 0\)'):
        read_files(write("a,b,b\n1,2,3\n"))


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
@pytest.mark.parametrize(
    ("pack", "message"),
    [
        (gzip.compress, "as gzip: rename it to .*{name}.gz"),
        (bz2.compress, "as bz2: rename it to .*{name}.bz2"),
        (lambda text: pa.compress(text, "zstd", asbytes=True), "as zstd: rename it to .*{name}.zst"),
        (lzma.compress, "as xz: unpack it"),
        (lambda text: b"PK\x03\x04" + text, "as zip: unpack it"),
    ],
)
def test_compressed_file_with_wrong_suffix_raises(write: Write, pack: Any, message: str, encoding: str) -> None:
    for name, text in (("a.csv", b"a,b\n1,2\n"), ("a.jsonl", b'{"a": 1}\n')):
        with pytest.raises(RejectedValueError, match=rf"{name}: its content is compressed {message.format(name=name)}"):
            read_files(write(pack(text), name), encoding=encoding)


def test_truncated_compressed_file_raises(write: Write) -> None:
    content = gzip.compress(b"a,b\n" + bytes(range(48, 58)) * 9000)[:-20]
    with pytest.raises(ConfigError, match=r"a\.csv\.gz: cannot be read as gzip text"):
        read_table(read_files(write(content, "a.csv.gz")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delimiter": "::"}, "delimiter='::': expected one ASCII character"),
        ({"delimiter": '"'}, "they must differ"),
        ({"quote": ""}, "quote=''"),
        ({"encoding": "utf-9"}, 'encoding="utf-9" is unknown'),
        ({"encoding": "base64"}, 'encoding="base64" is unknown'),
        ({"format": "cvs"}, 'Did you mean "csv"'),
        ({"partition_bytes": 0}, "partition_bytes=0"),
        ({"partitions": 0}, "partitions=0"),
        ({"header": 1}, "header=1"),
        ({"names": ["x", "y"]}, "pass header=None too"),
        ({"names": ["x", "x"], "header": None}, '2 columns are named "x"'),
        ({"skip_rows": -1}, "skip_rows=-1"),
        ({"comment": "//"}, "comment='//'"),
        ({"comment": '"'}, "must differ"),
        ({"decimal": "x"}, "'x' is not a decimal mark"),
        ({"decimal": ""}, "'' is not a decimal mark"),
        ({"thousands": "."}, "are both '.'"),
        ({"decimal": {"a": ","}, "thousands": ","}, "are both ','"),
        ({"null_values": "-"}, "null_values='-'"),
        ({"null_values": [-999]}, r"null_values=\[-999\]: CSV cells are text"),
        ({"null_values": {"a": [None]}}, "CSV cells are text"),
        ({"columns": "ab"}, r"columns='ab': expected a list, such as \['ab'\]"),
        ({"header": None, "names": "ab"}, "names='ab': expected a list"),
        ({"null_values": {"c": ["-"]}}, '"c" is not in the data'),
        ({"format": "jsonl", "skip_rows": 1}, "skip_rows= is for CSV"),
    ],
)
def test_invalid_options_raise(write: Write, options: dict[str, object], message: str) -> None:
    with pytest.raises((ConfigError, ColumnError), match=message):
        read_files(write("a,b\n1,2\n"), **options)


# -- files without names, and with lines that are no rows


@pytest.mark.parametrize("partition_bytes", [1, 1000])
def test_header_none_reads_first_line_as_row(write: Write, partition_bytes: int) -> None:
    path = write("\ufeff\n01234,Rome\n00007,Oslo\n")
    source = read_files(path, header=None, partition_bytes=partition_bytes)
    assert source.columns == ["column_0", "column_1"]
    assert rows(source) == [["01234", "Rome"], ["00007", "Oslo"]]
    named = read_files(path, header=None, names=["zip", "city"], columns=["city"], partition_bytes=partition_bytes)
    assert (named.columns, rows(named)) == (["city"], [["Rome"], ["Oslo"]])


def test_names_of_wrong_length_raise(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"a\.csv: its first line has 3 cells, but names= has 2 names"):
        read_files(write("1,2,3\n"), header=None, names=["a", "b"])


def test_empty_file_with_header_none_needs_names(write: Write) -> None:
    assert rows(read_files(write(""), header=None, names=["a"])) == []
    with pytest.raises(ConfigError, match="is empty"):
        read_files(write(""), header=None)


def test_names_replace_skipped_header(write: Write) -> None:
    source = read_files(write("a,a\n1,2\n"), header=None, skip_rows=1, names=["x", "y"])
    assert (source.columns, rows(source)) == (["x", "y"], [["1", "2"]])


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("lines", [1, 3, 5])
def test_skip_rows_before_header(write: Write, newline: str, lines: int) -> None:
    above = ['a "title, with a quote', "", "of 2020", "", "end"][:lines]
    source = read_files(write(newline.join([*above, "a,b", "1,2", ""])), skip_rows=lines)
    assert (source.columns, rows(source)) == (["a", "b"], [["1", "2"]])


def test_skip_rows_beyond_first_block(write: Write) -> None:
    path = write("x" * 100 + "\n" * 300_000 + "a;b\n1;2\n")
    assert rows(read_files(path, skip_rows=300_000)) == [["1", "2"]]
    with pytest.raises(ConfigError, match="is empty"):
        read_files(path, skip_rows=300_003)


@pytest.mark.parametrize("partition_bytes", [1, 12, 1000])
@pytest.mark.parametrize("delimiter", [None, ";"])
def test_comments_outside_quotes_are_skipped(write: Write, partition_bytes: int, delimiter: str | None) -> None:
    text = '# a title;"\n#;"\na;"b\n#b"\n1;"x\n# y"\n#"\n\n#;";\n2;#z\n#3;4\n5;6\n#'
    source = read_files(write(text), comment="#", delimiter=delimiter, partition_bytes=partition_bytes)
    assert source.columns == ["a", "b\n#b"]
    assert rows(source) == [["1", "x\n# y"], ["2", "#z"], ["5", "6"]]


def test_error_line_numbers_count_comments_and_skipped_lines(write: Write) -> None:
    path = write("title\n# one\na,b\n# two\n1,2\n#\n3\n")
    with pytest.raises(RejectedValueError, match=r"line 7: 1 cells for 2 columns: '3'"):
        read_table(read_files(path, skip_rows=1, comment="#", delimiter=","))


def test_file_of_comments_has_no_rows(write: Write) -> None:
    assert rows(read_files(write("a,b\n# x\n#\n"), comment="#")) == []


# -- what cells mean


def test_null_values_by_column(write: Write) -> None:
    path = write("a,b,c\n-,-,NA\nNA,NA,-\n")
    assert rows(read_files(path, null_values={"a": ["-"], "b": []})) == [[None, "-", None], ["NA", "NA", "-"]]


@pytest.mark.parametrize("marks", [["?", "NA"], {"a": ["?", "NA"]}])
def test_null_values_ignore_one_adjacent_blank(write: Write, marks: list[str] | dict[str, list[str]]) -> None:
    cells = [" ?", "? ", " ? ", " NA", "?", "  ?", "??", " ", " ?a"]
    table = read_table(read_files(write("a,b\n" + "".join(f"{cell},x\n" for cell in cells)), null_values=marks))
    assert table["a"].to_pylist() == [*[None] * 5, *cells[5:]]
    padded = read_table(read_files(write('a,b\n NA,x\n"null ",x\n ,x\n')))  # by default, of which "" is one mark
    assert padded["a"].to_pylist() == [None, None, " "]


def test_decimal_comma_converts_only_numbers(write: Write) -> None:
    cells = [
        "1.234,5",
        "-1.234.567",
        "+,5e3",
        " 12,50 ",
        "01234",
        "012.345",
        "1.23,4",
        "10115 Berlin",
        "1,2,3",
        "",
        "NA",
    ]
    path = write("a\n" + "".join(f'"{cell}"\n' for cell in cells))
    expected = [
        "1234.5",
        "-1234567",
        "+.5e3",
        " 12.50 ",
        "01234",
        "012.345",
        "1.23,4",
        "10115 Berlin",
        "1,2,3",
        None,
        None,
    ]
    with pytest.raises(RejectedValueError, match=r"\"a\": '012\.345' has a point, but decimal=','"):
        read_table(read_files(path, decimal=",", thousands="."))
    path = write(path.read_text().replace('"012.345"\n', ""))
    expected.remove("012.345")
    for partition_bytes in (1, 1000):
        source = read_files(path, decimal=",", thousands=".", delimiter=";", partition_bytes=partition_bytes)
        assert read_table(source)["a"].to_pylist() == expected


@pytest.mark.parametrize("decimal", [",", {"column_1": ","}])
def test_decimal_mark_is_last_candidate_for_delimiter(write: Write, decimal: str | dict[str, str]) -> None:
    source = read_files(write("01;1,5;2,5\n02;3,5;4,5\n"), header=None, decimal=decimal)
    assert [row[:2] for row in rows(source)] == [["01", "1.5"], ["02", "3.5"]]
    assert rows(read_files(write('a,b\n"1,5",2\n'), decimal=",")) == [["1.5", "2"]]


def test_decimal_comma_with_point_raises(write: Write) -> None:
    path = write("price;version\n1,5;1.5\n1.234;2.0\n")
    with pytest.raises(RejectedValueError, match="\"price\": '1.234' has a point"):
        read_table(read_files(path, decimal=","))
    source = read_files(path, decimal={"price": ","}, thousands={"price": "."})
    assert rows(source) == [["1.5", "1.5"], ["1234", "2.0"]]
    for cell in ("1.234,50", "-1.234.567,5 €"):
        path = write(f"price;version\n1,5;1.5\n{cell};2.0\n")
        with pytest.raises(RejectedValueError, match=f'"price": \'{cell}\' has a point.*thousands=".'):
            read_table(read_files(path, decimal={"price": ","}))


def test_decimal_and_thousands_marks_with_units(write: Write) -> None:
    cells = ["1.234 €", "-1.234,5 €", "€7,5", "EUR 1.234", "12,5%", "1.234 kg", "3,5 rooms", "1.5.2024"]
    path = write("x\n" + "\n".join(cells) + "\n")
    source = read_files(path, decimal=",", thousands=".", delimiter=";")
    assert read_table(source)["x"].to_pylist() == [
        "1234 €", "-1234.5 €", "€7.5", "EUR 1234", "12.5%", "1234 kg", "3,5 rooms", "1.5.2024"
    ]  # fmt: skip
    with pytest.raises(RejectedValueError, match="\"x\": '1.234 €' has a point"):
        read_table(read_files(path, decimal=",", delimiter=";"))


@pytest.mark.parametrize("mark", [",", " ", "'", "\u202f", "_"])
def test_thousands_marks(write: Write, mark: str) -> None:
    path = write(f"a;b\n1{mark}234.5;1{mark}23\n1234;0{mark}123\n")
    assert rows(read_files(path, thousands=mark)) == [["1234.5", f"1{mark}23"], ["1234", f"0{mark}123"]]


# -- first lines that look like rows


@pytest.mark.parametrize(
    "text",
    [
        "1.5,2020-01-31\n2.5,2020-02-01\n", "Rome,3\nOslo,4\nRome,5\n", "Rome,Oslo\nRome,Oslo\n", "a,,b\n1,2,3\n",
        "17\n18\n",
    ],
)  # fmt: skip
def test_data_like_header_warns(write: Write, text: str) -> None:
    path = write(text)
    with pytest.warns(UserWarning, match=r"a\.csv: its first line is used as column names.*header=None"):
        read_files(path)
    assert rows(read_files(path, header=None)) == [
        [cell or None for cell in row] for row in csv.reader(io.StringIO(text))
    ]


@pytest.mark.parametrize(
    "text",
    [
        "0,1,2\n5,6,7\n", "2019,2020\n5,6\n", ",0,1\n0,5,6\n", "city,2019\nRome,4\n", ",a\n0,x\n", "a\na\n",
        "1st,2nd\n1,2\n", "0\n1\n",
    ],
)  # fmt: skip
def test_common_headers_do_not_warn(write: Write, text: str) -> None:
    names, *cells = csv.reader(io.StringIO(text))
    source = read_files(write(text))
    # A name that is not there is the one that pandas gives.
    assert (source.columns, rows(source)) == ([name or "Unnamed: 0" for name in names], cells)


# -- how many partitions


@pytest.mark.parametrize("partitions", [1, 2, 3, 5, 8, 100])
def test_small_files_are_split_into_requested_partitions(write: Write, partitions: int) -> None:
    for i in range(8):
        path = write("a,b\n" + f"{i},x\n" * (1 + 40 * (i == 3)), f"{i}.csv")
    source = read_files(path.parent, partitions=partitions)
    assert source.npartitions == min(partitions, 48)  # records
    assert read_table(source).equals(read_table(read_files(path.parent)))


def test_partition_bytes_limits_requested_partitions(write: Write) -> None:
    source = read_files(write("a\n" + "xyz\n" * 100), partitions=2, partition_bytes=40)
    assert source.npartitions == 10


def test_settings_contain_only_non_default_options(write: Write) -> None:
    path = write("a,b\n1,2\n")
    usual = {"format": "csv", "encoding": "utf-8", "delimiter": None, "quote": '"', "null_values": list(DEFAULT_NULLS)}
    assert read_files(path, header=0, partitions=2).settings == usual
    options = {"header": None, "names": ("x", "y"), "skip_rows": 1, "decimal": {"x": ","}}
    assert read_files(path, **options).settings == usual | options
