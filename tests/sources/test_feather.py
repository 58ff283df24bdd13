"""Feather and Arrow IPC files: record batches as fragments."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.feather
import pytest

from daskprep.errors import ColumnError, ConfigError
from daskprep.sources import FileSource, read_files

TABLE = pa.table(
    {
        "text": [f"é{i}" if i % 7 else None for i in range(1000)],
        "number": [float(i) for i in range(1000)],
        "code": pa.array(["a", "b", None, "c"] * 250).dictionary_encode(),
    }
)


def read_table(source: FileSource) -> pa.Table:
    return pa.concat_tables([source.read(i, source.columns) for i in range(source.npartitions)])


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
def test_batches_are_joined_up_to_partition_bytes(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "a.feather"
    pa.feather.write_feather(TABLE, path, compression=compression, chunksize=100)
    for partition_bytes, parts in ((1, 10), (4_500, 5), (10**9, 1)):
        source = read_files(path, partition_bytes=partition_bytes)
        assert source.row_counts == [1000 // parts] * parts
        assert read_table(source).to_pydict() == TABLE.to_pydict()
        assert read_table(source).schema.types == source.schema.types == TABLE.schema.types


@pytest.mark.parametrize("coded", [False, True])
def test_partition_size_counts_text_length(tmp_path: Path, coded: bool) -> None:
    texts = pa.array([f"{i % 10} " + "word " * 60 for i in range(10_000)])
    table = pa.table({"text": texts.dictionary_encode() if coded else texts, "unused": ["x" * 1_000] * 10_000})
    pa.feather.write_feather(table, tmp_path / "a.feather", chunksize=1_000)
    nbytes = sum(map(len, texts.to_pylist()))
    fragments = read_files(tmp_path / "a.feather", columns=["text"], partition_bytes=1_000_000).fragments
    assert len(fragments) == 4
    assert nbytes <= sum(fragment.nbytes for fragment in fragments) < 1.1 * nbytes


def test_ipc_streams_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    with pa.ipc.new_stream(path, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=300)
    source = read_files(path, partition_bytes=1)
    assert source.row_counts == [300, 300, 300, 100]
    assert read_table(source).to_pydict() == TABLE.to_pydict()


def test_remote_files_are_read() -> None:
    with (
        fsspec.open("memory://feather/a.arrow", "wb") as handle,
        pa.ipc.new_file(handle, TABLE.schema) as writer,
    ):
        writer.write_table(TABLE, max_chunksize=300)
    source = read_files("memory://feather/a.arrow", partition_bytes=1)
    assert source.read(3, ["number"])["number"].to_pylist() == [float(i) for i in range(900, 1000)]


def test_column_order_and_empty_selection(tmp_path: Path) -> None:
    path = tmp_path / "a.feather"
    pa.feather.write_feather(TABLE, path, chunksize=400)
    source = read_files(path)
    assert source.read(0, ["number", "text"]).equals(TABLE.select(["number", "text"]))
    assert source.read(0, []).num_rows == 1000


def test_types_are_widened_across_files_or_raise(tmp_path: Path) -> None:
    for name, column in (("1", [1]), ("2", [2.5])):
        pa.feather.write_feather(pa.table({"a": column}), tmp_path / f"{name}.feather")
    assert read_table(read_files(tmp_path))["a"].to_pylist() == [1.0, 2.5]
    pa.feather.write_feather(pa.table({"a": ["x"]}), tmp_path / "3.feather")
    with pytest.raises(ColumnError, match=r'"a" is of type string in .*3\.feather, but of type double'):
        read_files(tmp_path)


@pytest.mark.parametrize("batches", [0, 1])
def test_files_without_rows_are_read(tmp_path: Path, batches: int) -> None:
    with pa.ipc.new_file(tmp_path / "a.arrow", TABLE.schema) as writer:
        for _ in range(batches):
            writer.write_batch(pa.RecordBatch.from_pylist([], TABLE.schema))
    source = read_files(tmp_path / "a.arrow")
    assert source.row_counts == [0]
    assert read_table(source).schema.types == TABLE.schema.types


@pytest.mark.parametrize("content", [b"FEA1 and more", b"no"])
def test_files_of_other_formats_raise(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.feather").write_bytes(content)
    with pytest.raises(ConfigError, match=r"a\.feather: cannot be read as Arrow IPC"):
        read_files(tmp_path / "a.feather")


def test_structs_with_duplicate_fields_raise(tmp_path: Path) -> None:
    one = pa.array([1, 2])
    twins = pa.StructArray.from_arrays([one, one], ["a", "a"])
    pa.feather.write_feather(pa.table({"n": one, "twins": twins}), tmp_path / "a.feather")
    assert read_files(tmp_path / "a.feather", columns=["n"]).read(0, ["n"])["n"].to_pylist() == [1, 2]
    with pytest.raises(ColumnError, match=r'column "twins" of .*a\.feather holds a struct with two fields of one name'):
        read_files(tmp_path / "a.feather", columns=["twins"])
