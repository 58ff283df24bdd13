"""ORC files: stripes as fragments."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import fsspec
import pandas as pd
import pyarrow as pa
import pyarrow.orc
import pytest

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError
from daskprep.extensions.cli import main
from daskprep.sources import FileSource, read_files

TABLE = pa.table(
    {
        "text": [f"é{i}" if i % 7 else None for i in range(1000)],
        "number": [float(i) for i in range(1000)],
        "tags": [["a", "b"][: i % 3] for i in range(1000)],
        "a.b": list(range(1000)),
        "day": [dt.date(2020, 1, 1 + i % 31) for i in range(1000)],
    }
)


def write(path: Path, table: pa.Table = TABLE, rows: int = 100, **options: object) -> Path:
    """Write stripes of `rows` rows."""
    pa.orc.write_table(table, path, stripe_size=1, batch_size=rows, **options)
    return path


def read_table(source: FileSource) -> pa.Table:
    return pa.concat_tables([source.read(i, source.columns) for i in range(source.npartitions)])


def test_stripes_are_joined_up_to_partition_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.orc")
    for partition_bytes, parts in ((1, 10), (10**9, 1)):
        source = read_files(path, partition_bytes=partition_bytes)
        assert source.row_counts == [1000 // parts] * parts
        assert read_table(source).to_pydict() == TABLE.to_pydict()
        assert read_table(source).schema.types == source.schema.types == TABLE.schema.types


@pytest.mark.parametrize("compression", ["zlib", "zstd", "snappy", "lz4"])
def test_compressed_files_are_read(tmp_path: Path, compression: str) -> None:
    source = read_files(write(tmp_path / "a.orc", compression=compression), partition_bytes=1)
    assert read_table(source).to_pydict() == TABLE.to_pydict()


def test_column_order_and_empty_selection(tmp_path: Path) -> None:
    source = read_files(write(tmp_path / "a.orc"))
    assert source.read(0, ["a.b", "number", "text"]).equals(TABLE.select(["a.b", "number", "text"]))
    assert source.read(0, []).num_rows == 1000


def test_remote_files_are_read() -> None:
    with fsspec.open("memory://orc/a.orc", "wb") as handle:
        pa.orc.write_table(TABLE, handle, stripe_size=1, batch_size=100)
    source = read_files("memory://orc/a.orc", partition_bytes=1)
    assert source.read(9, ["number"])["number"].to_pylist() == [float(i) for i in range(900, 1000)]


def test_types_are_widened_across_files_or_raise(tmp_path: Path) -> None:
    for name, column in (("1", [1]), ("2", [2.5])):
        write(tmp_path / f"{name}.orc", pa.table({"a": column}))
    assert read_table(read_files(tmp_path))["a"].to_pylist() == [1.0, 2.5]
    write(tmp_path / "3.orc", pa.table({"a": ["x"]}))
    with pytest.raises(ColumnError, match=r'"a" is of type string in .*3\.orc, but of type double'):
        read_files(tmp_path)


def test_files_without_rows_are_read(tmp_path: Path) -> None:
    source = read_files(write(tmp_path / "a.orc", TABLE.slice(0, 0)))
    assert source.row_counts == [0]
    assert read_table(source).schema.types == TABLE.schema.types


def test_auto_features_equal_frame(tmp_path: Path) -> None:
    prep = dp.Preprocessor("auto").fit(read_files(write(tmp_path / "a.orc"), partition_bytes=1))
    frame = TABLE.to_pandas().assign(day=lambda rows: pd.to_datetime(rows["day"]))
    assert prep.to_dict() == dp.Preprocessor(dict(prep.inferred_)).fit(frame).to_dict()


def test_command_line_format_option(tmp_path: Path) -> None:
    rows, output = str(write(tmp_path / "rows.dat")), str(tmp_path / "a.dp")
    assert main(["preprocess", "auto", rows, "--format", "orc", "-o", output]) == 0
    assert len(dp.open_dataset(tmp_path / "a.dp")["train"]) == 700


def test_damaged_and_other_files_raise(tmp_path: Path) -> None:
    data = write(tmp_path / "a.orc").read_bytes()
    for damaged in (data[:-40], data[: len(data) // 2], b"", b"ORC"):
        (tmp_path / "b.orc").write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"b\.orc: cannot be read as ORC"):
            read_files(tmp_path / "b.orc")
