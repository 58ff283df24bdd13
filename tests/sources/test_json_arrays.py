"""JSON arrays: split between elements, read like JSON lines."""

from __future__ import annotations

import gc
import gzip
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from daskprep.errors import DaskprepError, RejectedValueError, StorageFullError
from daskprep.sources import FileSource, read_files
from daskprep.sources.locations import Spool
from tests.sizes import sized

ROWS: list[dict[str, Any]] = [
    {"a": 1, "b": 'x",[{\\'},
    {"a": 2.5, "b": "\\\\", "c": [{"d": "}]"}, {"d": None}]},
    {},
    {"a": None, "b": 'é"\\"\n', "c": []},
] * 5


def read_table(source: FileSource) -> pa.Table:
    return pa.concat_tables([source.read(i, source.columns) for i in range(source.npartitions)])


@pytest.fixture
def lines(tmp_path: Path) -> pa.Table:
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return read_table(read_files(tmp_path / "lines.jsonl"))


@pytest.mark.parametrize("indent", [None, 0, 2])
@pytest.mark.parametrize("partition_bytes", [1, 50, 1_000_000])
@pytest.mark.parametrize("block_bytes", [3, 1 << 20])
def test_json_array_equals_json_lines(
    tmp_path: Path, lines: pa.Table, indent: int | None, partition_bytes: int, block_bytes: int
) -> None:
    path = tmp_path / "a.json"
    path.write_text(f" \n{json.dumps(ROWS, indent=indent, ensure_ascii=indent is None)}\n\n", encoding="utf-8")
    with sized(text_block_bytes=block_bytes):
        source = read_files(path, partition_bytes=partition_bytes)
        assert read_table(source).equals(lines)
    assert source.row_counts is not None
    assert sum(source.row_counts) == len(ROWS)
    assert (source.npartitions > 5) == (partition_bytes < 1_000_000)


def test_compressed_and_transcoded_arrays_are_read(tmp_path: Path, lines: pa.Table) -> None:
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(json.dumps(ROWS, indent=1).encode()))
    (tmp_path / "b.json").write_bytes(json.dumps(ROWS, ensure_ascii=False).encode("utf-16"))
    assert read_table(read_files(tmp_path / "a.json.gz", partition_bytes=10)).equals(lines)
    assert read_table(read_files(tmp_path / "b.json", encoding="utf-16")).equals(lines)


def test_arrays_and_lines_in_one_source(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text('[{"a": 1},\n {"a": 2}]')
    (tmp_path / "2.jsonl").write_text('{"a": 3}\n')
    (tmp_path / "3.json").write_text(" [ ] ")
    for partition_bytes in (1, 1000):
        assert read_table(read_files(tmp_path, partition_bytes=partition_bytes))["a"].to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("partition_bytes", [1, 1000])
@pytest.mark.parametrize("element", ['{"a": }', "7", "[1]", '{"a": 1, "a": 2}', '{"a": "\n"}'])
def test_invalid_element_error_names_line(tmp_path: Path, element: str, partition_bytes: int) -> None:
    (tmp_path / "a.json").write_text(f'[{{"a": 1}}, {{"a":\n2}},\n\n{element},\n{{"a": 3}}]')
    with pytest.raises(RejectedValueError, match=r"a\.json, line 4: not one JSON object"):
        read_files(tmp_path / "a.json", partition_bytes=partition_bytes)


@pytest.mark.parametrize(
    "content", ['[{"a": 1}', '[{"a": "]}', '[{"a": 1}}', '[{"a": 1}]\n[{"a": 2}]', "[", '[{"a": 1]}']
)
def test_malformed_array_raises(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(DaskprepError, match=r"a\.json"):
        read_table(read_files(tmp_path / "a.json"))


# -- rows are parsed once


def exchange(path: Path, data: bytes | None = None) -> bytes:
    """Replace the bytes of a file, by default by some that raise, and keep its size and time; return those before."""
    status, before = path.stat(), path.read_bytes()
    path.write_bytes(data or b"?" * status.st_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return before


def test_small_files_are_parsed_once(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1, "b": "x", "c": [1]}\n{"a": 2.5}\n{"b": null}\n')
    expected = [1.0, 2.5, None]
    source = read_files(path)
    exchange(path)
    copy = pickle.loads(pickle.dumps(source.fragments[0]))
    assert source.read(0, ["a", "b"]).to_pydict() == {"a": expected, "b": ["x", None, None]}
    assert source.read(0, ["a"])["a"].to_pylist() == copy.read(["a"])["a"].to_pylist() == expected


def test_rows_are_reparsed_if_types_differ(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1, "b": "2020-01-31"}\n')
    (tmp_path / "b.jsonl").write_text('{"a": "x", "b": "y"}\n{"a": 0.5}\n')
    table = read_table(read_files(tmp_path))
    assert table.to_pydict() == {"a": ["1", "x", "0.5"], "b": ["2020-01-31", "y", None]}


@pytest.mark.slow
@pytest.mark.parametrize("place", ["scratch", None, "memory://scratch"])
def test_large_files_are_parsed_once_into_scratch(tmp_path: Path, temporary: Path, place: str | None) -> None:
    scratch = temporary if place == "scratch" else place
    rows = [{"a": i, "b": None if i < 20 else f"x{i}"} for i in range(50)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = read_files(tmp_path / "a.jsonl", partition_bytes=100, scratch=scratch)
    content = exchange(tmp_path / "a.jsonl")
    copies = pickle.loads(pickle.dumps(source.fragments))
    assert len(copies) > 5
    assert [row for fragment in copies for row in fragment.read(["a", "b"]).to_pylist()] == rows
    assert read_table(source).to_pylist() == rows
    del source
    gc.collect()
    assert not list(temporary.iterdir())
    exchange(tmp_path / "a.jsonl", content)
    assert [row for fragment in copies for row in fragment.read(["a", "b"]).to_pylist()] == rows


@pytest.mark.slow
@pytest.mark.parametrize("free", [0, 10**12])
def test_large_files_are_reparsed_if_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n' * 50)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: mock.Mock(free=free))
    with mock.patch.object(Spool, "write", side_effect=StorageFullError) as write:
        source = read_files(tmp_path / "a.jsonl", partition_bytes=100, scratch=tmp_path / "scratch")
    assert write.called == (free > 0)
    assert read_table(source).num_rows == 50
    del source
    gc.collect()
    assert not list((tmp_path / "scratch").iterdir())
