"""Parquet: row groups as fragments, dictionary codes, one type across files."""

from __future__ import annotations

import base64
import datetime as dt
import pickle
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet.encryption import CryptoFactory, EncryptionConfiguration, KmsClient, KmsConnectionConfig

from daskprep.errors import ColumnError, ConfigError
from daskprep.sources import FileSource, read_files

Write = Callable[..., Path]
CODES = pa.dictionary(pa.int32(), pa.string())


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_parquet(name: str = "a.parquet", options: dict[str, Any] | None = None, **columns: Any) -> Path:
        pq.write_table(pa.table(columns), tmp_path / name, **(options or {}))
        return tmp_path / name

    return write_parquet


def read_table(source: FileSource) -> pa.Table:
    return pa.concat_tables([source.read(i, source.columns) for i in range(source.npartitions)])


def test_row_groups_are_joined_up_to_partition_bytes(write: Write) -> None:
    options = {"row_group_size": 100, "use_dictionary": False}
    paths = [write(f"{k}.parquet", options, a=range(k * 1000, k * 1000 + 1000)) for k in range(3)]
    unit = read_files(paths, partition_bytes=1).fragments[0].nbytes
    for parts, counts in ((0.5, [100] * 30), (2, [200] * 15), (24, [2400, 600]), (1000, [3000])):
        source = read_files(paths, partition_bytes=int(unit * parts))
        assert source.row_counts == counts
        assert read_table(source)["a"].to_pylist() == list(range(3000))
        assert [source.read(i, []).num_rows for i in range(source.npartitions)] == counts


REPEATED = [f"{i} " + "word " * (10 * i + 10) for i in range(10)]  # 310 bytes in the mean, 10 of them


@pytest.mark.parametrize(
    ("kind", "cells"),
    [
        (pa.string(), lambda text: text),
        (pa.binary(), lambda text: text.encode()),
        (pa.list_(pa.string()), lambda text: [text]),
        (pa.struct([("a", pa.string()), ("b", pa.int64())]), lambda text: {"a": text, "b": 1}),
        (CODES, lambda text: text),
    ],
)
@pytest.mark.parametrize("is_sorted", [False, True])
def test_partition_size_counts_repeated_values(
    write: Write, kind: pa.DataType, cells: Callable[[str], object], is_sorted: bool
) -> None:
    rows = REPEATED * 3000
    options = {"row_group_size": len(rows) if is_sorted else 6_000}
    path = write(options=options, t=pa.array([cells(text) for text in (sorted(rows) if is_sorted else rows)], kind))
    nbytes = sum(map(len, rows))
    assert path.stat().st_size < nbytes / 30
    assert nbytes < sum(fragment.nbytes for fragment in read_files(path).fragments) < 1.3 * nbytes


def test_dictionary_row_groups_are_split_by_decoded_size(write: Write) -> None:
    rows = {"t": REPEATED * 1000, "n": range(10_000)}
    path = write(options={"row_group_size": 7_000}, **rows)
    source = read_files(path, partition_bytes=500_000)
    assert source.npartitions >= 7
    assert read_table(source).to_pydict() == {"t": rows["t"], "n": list(rows["n"])}
    assert source.schema.field("t").type == CODES
    for i, count in enumerate(source.row_counts or ()):
        table = source.read(i, ["t"])
        assert sum(map(len, table["t"].to_pylist())) < 500_000
        assert source.read(i, []).num_rows == table.num_rows == count
    assert read_table(read_files(path, partition_bytes=10**9)).equals(read_table(source))


def test_partition_size_ignores_unselected_columns(write: Write) -> None:
    path = write(options={"row_group_size": 100}, a=range(1000), b=[bytes([i % 256]) * 500 for i in range(1000)])
    assert read_files(path, partition_bytes=10_000).npartitions > 5
    assert read_files(path, partition_bytes=10_000, columns=["a"]).npartitions == 1


def test_fragments_pickle_small_and_equal(write: Write) -> None:
    source = read_files(write(options={"row_group_size": 10}, a=range(100), b=["x"] * 100), partition_bytes=1)
    for i, fragment in enumerate(source.fragments):
        copy = pickle.loads(pickle.dumps(fragment))
        assert copy == fragment
        assert copy.read(["b", "a"]).equals(source.read(i, ["b", "a"]))
        assert len(pickle.dumps(fragment)) < 1000


def test_repeated_text_is_read_as_dictionary(write: Write) -> None:
    few, many = ["north", None, "south"] * 1000, [f"name {i:08d}" for i in range(3000)]
    source = read_files(write(few=few, many=many, none=pa.nulls(3000, pa.string())))
    assert source.schema.types == [CODES, pa.string(), CODES]
    assert read_table(source).schema.types == source.schema.types
    assert read_table(source).to_pydict() == {"few": few, "many": many, "none": [None] * 3000}


def test_dictionary_requires_dictionary_pages_in_all_files(write: Write) -> None:
    paths = [write("1.parquet", {"use_dictionary": False}, a=["x"] * 100), write("2.parquet", a=["x"] * 100)]
    assert read_files(paths).schema.field("a").type == pa.string()
    assert read_table(read_files(paths))["a"].to_pylist() == ["x"] * 200


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.large_string())]
)
def test_text_types_read_identically(write: Write, kind: pa.DataType) -> None:
    text = [f"name {i:08d}" for i in range(100)] + [None]
    column = read_table(read_files(write(a=pa.array(text).cast(kind))))["a"]
    assert column.type == (CODES if pa.types.is_dictionary(kind) else pa.string())
    assert column.to_pylist() == text


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        (pa.array([1], pa.int32()), pa.array([2.5]), pa.float64()),
        (pa.array([1], pa.int8()), pa.array([2**40]), pa.int64()),
        (pa.nulls(1), pa.array([1]), pa.int64()),
        (pa.array([[1]]), pa.array([[1.5]]), pa.list_(pa.float64())),
        (pa.array([[]], pa.list_(pa.null())), pa.array([["x"]]), pa.list_(pa.string())),
        (pa.array([Decimal("1.5")]), pa.array([10]), pa.decimal128(20, 1)),
        (pa.array(["x"]).dictionary_encode(), pa.array(["y"]), pa.string()),
        (pa.array([1], pa.timestamp("s")), pa.array([1], pa.timestamp("us")), pa.timestamp("us")),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_compatible_types_are_widened(
    write: Write, one: pa.Array, other: pa.Array, kind: pa.DataType, swapped: bool
) -> None:
    arrays = [other, one] if swapped else [one, other]
    paths = [write(f"{i}.parquet", {"use_dictionary": False}, a=array) for i, array in enumerate(arrays)]
    source = read_files(paths)
    assert source.schema.field("a").type == kind
    assert read_table(source)["a"].to_pylist() == pa.chunked_array([array.cast(kind) for array in arrays]).to_pylist()


def test_structs_have_fields_of_all_files(write: Write) -> None:
    paths = [write("1.parquet", a=[{"k": 1}]), write("2.parquet", a=[{"l": "x", "k": 0.5}])]
    assert read_table(read_files(paths))["a"].to_pylist() == [{"k": 1.0, "l": None}, {"k": 0.5, "l": "x"}]


@pytest.mark.parametrize("other", [pa.array(["x"]), pa.array([True]), pa.array([[1]]), pa.array([dt.date(2020, 1, 1)])])
def test_incompatible_types_error_names_file_and_column(write: Write, other: pa.Array) -> None:
    paths = [write("1.parquet", a=[1], b=[1]), write("2.parquet", a=other, b=[1])]
    with pytest.raises(ColumnError, match=r'"a" is of type .* in .*2\.parquet, but of type int64 in files before it'):
        read_files(paths)
    assert read_files(paths, columns=["b"]).read(0, ["b"])["b"].to_pylist() == [1, 1]


def test_lossy_widening_raises(write: Write) -> None:
    source = read_files([write("1.parquet", a=[2**60 + 1]), write("2.parquet", a=[0.5])])
    with pytest.raises(ColumnError, match=r'column "a" of .*1\.parquet does not fit the type double'):
        source.read(0, ["a"])


def test_missing_column_error_names_file_and_column(write: Write) -> None:
    paths = [write("1.parquet", a=[1], b=[1]), write("2.parquet", a=[1])]
    with pytest.raises(ColumnError, match=r'"b" is missing in .*2\.parquet, but present in .*1\.parquet'):
        read_files(paths)
    source = read_files(paths, columns=["a"])
    with pytest.raises(ColumnError, match=r'"aa" is not in the data\. Did you mean "a"'):
        source.read(0, ["aa"])


def test_duplicate_columns_raise(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array([1])] * 3, ["a", "b", "a"]), path)
    with pytest.raises(ColumnError, match=r'2 columns are named "a" \(numbers 0, 2, counted from 0\)'):
        read_files(path)
    assert read_files(path, columns=["b"]).read(0, ["b"]).num_rows == 1


def test_pandas_index_is_not_a_column(tmp_path: Path) -> None:
    pd.DataFrame({"a": [1, 2]}, index=[5, 7]).to_parquet(tmp_path / "a.parquet")
    assert read_files(tmp_path / "a.parquet").columns == ["a"]


def test_files_and_row_groups_without_rows_are_read(write: Write, tmp_path: Path) -> None:
    empty = pa.array([], pa.int64())
    paths = [write("1.parquet", a=empty), write("2.parquet", a=[1]), write("3.parquet", a=empty)]
    pq.ParquetWriter(tmp_path / "4.parquet", pa.schema([("a", pa.int64())])).close()
    for partition_bytes in (1, 1000):
        source = read_files([*paths, tmp_path / "4.parquet"], partition_bytes=partition_bytes)
        assert read_table(source)["a"].to_pylist() == [1]
    assert read_files(tmp_path / "4.parquet").row_counts == [0]


def test_nested_columns_and_names_with_dots(write: Write) -> None:
    columns = {"a": [{"x": 1, "y": [1, 2]}], "a.x": [5], "l": [["s"]]}
    source = read_files(write(**columns))
    assert source.columns == ["a", "a.x", "l"]
    for name, cells in columns.items():
        assert source.read(0, [name]).to_pydict() == {name: cells}


def test_int96_dates_do_not_overflow(write: Write) -> None:
    far = dt.datetime(3000, 1, 1)
    path = write(options={"use_deprecated_int96_timestamps": True}, a=pa.array([far], pa.timestamp("us")))
    assert read_table(read_files(path))["a"].to_pylist() == [far]


def test_changed_file_raises(write: Write) -> None:
    source = read_files(write(a=[1, 2, 3]))
    write(a=[1, 2, 3, 4])
    with pytest.raises(ConfigError, match=r"a\.parquet: changed since it was listed"):
        source.read(0, ["a"])


def test_changed_remote_file_raises() -> None:
    with fsspec.open("memory://lost/a.parquet", "wb") as handle:
        pq.write_table(pa.table({"a": range(10)}), handle, row_group_size=5)
    source = read_files("memory://lost/a.parquet", partition_bytes=1)
    with fsspec.open("memory://lost/a.parquet", "wb") as handle:
        pq.write_table(pa.table({"a": range(3)}), handle)
    for i in range(2):
        with pytest.raises(ConfigError, match=r"memory://.*lost/a\.parquet: .*(changed|cannot be read)"):
            source.read(i, ["a"])


def test_invalid_file_raises(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"hello, this is no Parquet file")
    with pytest.raises(ConfigError, match=r"a\.parquet: cannot be read as Parquet"):
        read_files(path)


class KeyService(KmsClient):
    """An insecure key service."""

    def __init__(self, settings: object) -> None:
        KmsClient.__init__(self)

    def wrap_key(self, key: bytes, name: str) -> bytes:
        return base64.b64encode(key)


def test_encrypted_column_raises(tmp_path: Path) -> None:
    encryption = CryptoFactory(KeyService).file_encryption_properties(
        KmsConnectionConfig(), EncryptionConfiguration("footer", column_keys={"column": ["a"]}, plaintext_footer=True)
    )
    table = pa.table({"a": [1], "b": [2]})
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema, encryption_properties=encryption) as writer:
        writer.write_table(table)
    with pytest.raises(ConfigError, match=r"a\.parquet: cannot be read as Parquet: Cannot decrypt"):
        read_files(tmp_path / "a.parquet")


def test_invalid_utf8_raises(tmp_path: Path) -> None:
    latin = pa.array(["a", "é".encode("latin-1")], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 2, latin.buffers())
    pq.write_table(pa.table({"a": [1, 2], "b": text}), tmp_path / "a.parquet")
    source = read_files(tmp_path / "a.parquet")
    assert source.read(0, ["a"])["a"].to_pylist() == [1, 2]
    with pytest.raises(ColumnError, match=r'a\.parquet: column "b" is damaged: .*UTF8'):
        source.read(0, ["b"])


@pytest.mark.parametrize(("partitions", "found"), [(1, 1), (3, 3), (8, 8), (9, 8)])
def test_requested_partitions_of_row_groups(tmp_path: Path, partitions: int, found: int) -> None:
    table = pa.table({"a": list(range(40))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=5)
    source = read_files(tmp_path / "a.parquet", partitions=partitions)
    assert source.npartitions == found
    assert pa.concat_tables([source.read(i, ["a"]) for i in range(found)]).equals(table)
