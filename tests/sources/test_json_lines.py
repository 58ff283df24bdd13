"""JSON lines: types do not depend on partitions, and errors name the line."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daskprep.errors import ConfigError, DaskprepError, RejectedValueError
from daskprep.sources import FileSource, read_files

WriteLines = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> WriteLines:
    def write_lines(*objects: Any, name: str = "a.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in objects))
        return path

    return write_lines


def read_table(source: FileSource) -> pa.Table:
    return pa.concat_tables([source.read(i, source.columns) for i in range(source.npartitions)])


SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=4)
KINDS = st.sampled_from(
    [
        st.integers(-9, 9),
        st.floats(-9, 9),
        st.text("ab2-", max_size=4),
        SCALARS,
        st.integers(2**63 - 600, 2**63 + 600) | st.sampled_from([1.0, -0.0, 1e20, 1e39, 0.5, float("inf")]),
        st.lists(st.integers(0, 9) | st.sampled_from([1.0, 2**64, 0.5]), max_size=2),
        st.lists(SCALARS, max_size=2) | st.dictionaries(st.sampled_from("kl"), SCALARS, max_size=2),
    ]
)
COLUMNS = KINDS.flatmap(lambda kind: st.lists(st.none() | kind, min_size=1, max_size=8))


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(COLUMNS, st.integers(1, 60))
def test_table_does_not_depend_on_partition_bytes(write: WriteLines, cells: list[Any], partition_bytes: int) -> None:
    path = write(*[{"a": cell, "b": i} if i % 3 else {"a": cell} for i, cell in enumerate(cells)], {"b": 1})
    expected = read_table(read_files(path))
    cut = read_files(path, partition_bytes=partition_bytes)
    assert read_table(cut).combine_chunks().equals(expected.combine_chunks())
    assert sum(cut.row_counts or ()) == len(cells) + 1


@pytest.mark.parametrize(
    ("cells", "kind", "expected"),
    [
        ([1, None, 3], pa.int64(), [1, None, 3]),
        ([1, 2.5], pa.float64(), [1.0, 2.5]),
        ([True, None], pa.bool_(), [True, None]),
        (["2020-01-01", "2020-01-02"], pa.string(), ["2020-01-01", "2020-01-02"]),
        ([1, "x"], pa.string(), ["1", "x"]),
        ([1.0, "x", 2.5, True, None], pa.string(), ["1", "x", "2.5", "True", None]),
        ([[1, 2], [], None], pa.list_(pa.int64()), [[1, 2], [], None]),
        ([["2020-01-01"], ["a", None]], pa.list_(pa.string()), [["2020-01-01"], ["a", None]]),
        ([[1, "x"], [2.5]], pa.list_(pa.string()), [["1", "x"], ["2.5"]]),
        ([[1], ["x"]], pa.list_(pa.string()), [["1"], ["x"]]),
        ([[1], "x"], pa.string(), ["[1]", "x"]),
        ([{"k": 1}, "x"], pa.string(), ['{"k":1}', "x"]),
        ([{"k": 1}, {"k": "x", "l": None}], pa.struct([("k", pa.string()), ("l", pa.string())]), [
            {"k": "1", "l": None}, {"k": "x", "l": None}
        ]),
        ([2**64 - 1, 1], pa.decimal128(38, 0), [Decimal(2**64 - 1), Decimal(1)]),
        ([2**64 - 1, 1.5], pa.float64(), [2.0**64, 1.5]),
        ([2**64 - 1, 1.0], pa.decimal128(38, 0), [Decimal(2**64 - 1), Decimal(1)]),
        ([2**63 - 1], pa.decimal128(38, 0), [Decimal(2**63 - 1)]),
        ([1, 2.0], pa.float64(), [1.0, 2.0]),
        ([{"k": 2**64, "l": 1}, {"k": 1.0, "l": "x"}], pa.struct([("k", pa.decimal128(38, 0)), ("l", pa.string())]), [
            {"k": Decimal(2**64), "l": "1"}, {"k": Decimal(1), "l": "x"}
        ]),
        ([None, None], pa.null(), [None, None]),
        ([[None, None], [], None], pa.list_(pa.string()), [[None, None], [], None]),
        ([[[None]], [[]]], pa.list_(pa.list_(pa.string())), [[[None]], [[]]]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("partition_bytes", [1, 1000])
def test_types_of_columns(
    write: WriteLines, cells: list[Any], kind: pa.DataType, expected: list[Any], partition_bytes: int
) -> None:
    source = read_files(write(*[{"a": cell} for cell in cells]), partition_bytes=partition_bytes)
    assert source.schema.field("a").type == kind
    table = read_table(source)
    assert table["a"].type == kind
    assert table["a"].to_pylist() == expected


def test_nan_is_float(write: WriteLines) -> None:
    column = read_table(read_files(write('{"a": NaN}', '{"a": 1}')))["a"]
    assert column.type == pa.float64()
    assert math.isnan(column[0].as_py())


def test_missing_keys_become_null(write: WriteLines) -> None:
    paths = [
        write({"a": 1}, name="1.jsonl"),
        write({"b": "x"}, {"a": 2.5}, name="2.ndjson"),
        write(name="3.json"),
    ]
    assert read_table(read_files(paths)).to_pydict() == {"a": [1.0, None, 2.5], "b": [None, "x", None]}


def test_blank_lines_and_byte_order_marks_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf\n{"a": 1}\r\n\n  \n{"a": 2}')
    for partition_bytes in (1, 1000):
        assert read_table(read_files(path, partition_bytes=partition_bytes))["a"].to_pylist() == [1, 2]


@pytest.mark.parametrize("line", [b"", b'{"a": 2}'])
def test_byte_order_mark_inside_file_raises(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n\xef\xbb\xbf' + line)
    for partition_bytes in (1, 1000):
        with pytest.raises(RejectedValueError, match="line 2"):
            read_table(read_files(path, partition_bytes=partition_bytes))


def test_line_longer_than_arrow_block(write: WriteLines) -> None:
    source = read_files(write({"a": "x" * 3_000_000}, {"a": "y"}))
    assert [len(text) for text in read_table(source)["a"].to_pylist()] == [3_000_000, 1]


def test_column_order_and_empty_selection(write: WriteLines) -> None:
    source = read_files(write({"a": 1, "b": 2, "c": "x"}, {"a": "x"}))
    assert source.read(0, ["c", "a"]).to_pydict() == {"c": ["x", None], "a": ["1", "x"]}
    assert source.read(0, []).num_rows == 2
    assert source.row_counts == [2]


def test_compressed_and_transcoded_files_are_read(tmp_path: Path) -> None:
    lines = '{"a": "é"}\n{"a": 1}\n'
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "b.jsonl").write_bytes(lines.encode("utf-16"))
    assert read_table(read_files(tmp_path / "a.jsonl.gz"))["a"].to_pylist() == ["é", "1"]
    assert read_table(read_files(tmp_path / "b.jsonl", encoding="utf-16"))["a"].to_pylist() == ["é", "1"]


@pytest.mark.parametrize("partition_bytes", [1, 1000])
@pytest.mark.parametrize(
    "line", ['{"a": }', '{"a": 1', '[{"a": 1}]', "7", '{"a": 1, "a": 2}', '{"a": 1} x', '{"a": "\\ud800"}']
)
def test_invalid_line_error_names_line(write: WriteLines, line: str, partition_bytes: int) -> None:
    with pytest.raises(RejectedValueError, match=r"a\.jsonl, line 3: not one JSON object"):
        read_table(read_files(write({"a": 1}, "", line, {"a": 2}), partition_bytes=partition_bytes))


def test_invalid_utf8_raises(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": "x"}\n{"a": "caf\xe9"}\n')
    with pytest.raises(RejectedValueError, match=r"a\.jsonl, line 2"):
        read_table(read_files(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [('{\n"a": 1}', "is not a JSON object"), ("7", "is not")],
)
def test_json_not_in_lines_raises(write: WriteLines, content: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"a\.json: its first line {message}.*pandas\.read_json"):
        read_files(write(content, name="a.json"))


def test_file_without_objects_raises(write: WriteLines) -> None:
    with pytest.raises(ConfigError, match="the file has no columns"):
        read_files(write())


@pytest.mark.parametrize("first", ["", '{"a": "[[[[{"}\n{"a": "]]"}\n'])
@pytest.mark.parametrize("levels", [101, 1000, 200_000])
def test_deep_nesting_raises(tmp_path: Path, first: str, levels: int) -> None:
    opens = '{"a": [' * (levels // 2) + "1" + ', "]}"]}' * (levels // 2)
    (tmp_path / "a.jsonl").write_text(f'{first}{{"b": [{opens}]}}\n')
    with pytest.raises(DaskprepError, match=r"a\.jsonl.*(nested more than 100 levels|not a JSON object)"):
        read_files(tmp_path / "a.jsonl")


def test_brackets_in_text_do_not_count_as_nesting(tmp_path: Path) -> None:
    text = "[{" * 300 + '\\"' + "]" * 7
    (tmp_path / "a.jsonl").write_text(f'{{"a": {json.dumps(text)}, "b": {"[" * 90}{"]" * 90}}}\n' * 3)
    assert read_files(tmp_path / "a.jsonl").read(0, ["a"])["a"].to_pylist() == [text] * 3


def test_duplicate_key_raises_with_mixed_types(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": "x"}\n{"a": 1, "a": 2}\n')
    with pytest.raises(RejectedValueError, match=r'a\.jsonl, line 2: .*the key "a" occurs twice'):
        read_files(tmp_path / "a.jsonl")


@pytest.mark.parametrize("rows", [3, 20_000])
@pytest.mark.parametrize("orient", ["columns", "index", "split", "table"])
def test_other_orientations_of_pandas_are_refused(tmp_path: Path, orient: Any, rows: int) -> None:
    path = tmp_path / "a.json"
    pd.DataFrame({"price": np.arange(rows) / 2, "city": ["Rome"] * rows}).to_json(path, orient=orient)
    with pytest.raises(ConfigError, match="not a JSON object of one row.*read_json.*orient=.records., lines=True"):
        read_files(path)


def test_lines_of_structs_are_not_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a":{"0":1}}\n{"a":{"0":2}}\n')
    assert read_files(path).row_counts == [2]
