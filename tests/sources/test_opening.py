"""Types of rows that `fit` accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import dask.bag
import dask.dataframe as dd
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from daskprep.errors import ColumnError, ConfigError
from daskprep.sources import DaskSource, FileSource, PandasSource, as_source, read_files


def test_source_class_by_input_type(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1, 2]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    assert isinstance(as_source(frame), PandasSource)
    assert isinstance(as_source(dd.from_pandas(frame, npartitions=1)), DaskSource)
    for paths in (tmp_path, str(tmp_path), [tmp_path / "a.csv"], (str(tmp_path / "*.csv"),)):
        assert isinstance(as_source(paths), FileSource)


def test_source_is_returned_unchanged() -> None:
    source = as_source(pd.DataFrame({"a": [1]}))
    assert as_source(source) is source
    assert as_source(source, columns=["a"]) is source
    with pytest.raises(ColumnError, match='"b" is not in the data'):
        as_source(source, columns=["b"])


def test_options_are_passed_to_files(tmp_path: Path) -> None:
    pd.DataFrame({"a": range(100), "b": 1}).to_csv(tmp_path / "a.csv", index=False)
    source = as_source(tmp_path / "a.csv", columns=["b"], partition_bytes=100)
    assert source.npartitions > 1
    with pytest.raises(ColumnError, match='"c" is not in the data'):
        as_source(tmp_path / "a.csv", columns=["c"])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (pd.Series([1]), r"a pandas.*Series cannot be read as rows.*\.to_frame\(\)"),
        (
            dd.from_pandas(pd.Series([1], name="a"), npartitions=1),
            r"Series cannot be read as rows.*\.to_frame\(\)",
        ),
        (
            da.zeros((2, 2)),
            r"a dask\.array.*Array cannot be read as rows; .*to_dask_dataframe.*Accepted: frames of pandas",
        ),
        (dask.bag.from_sequence([1]), r"Bag cannot be read as rows; make it a Dask frame, by .*to_dataframe\(\)"),
        (dask.delayed(1), "cannot be read as rows; make it a Dask frame, by .*from_delayed"),
        ([dask.delayed(1)], "a list of .* cannot be read as rows; make it a Dask frame, by .*from_delayed"),
        (pa.chunked_array([[1]]), "ChunkedArray cannot be read: "),
        (pl.Series([1]), r"Series cannot be read as rows.*\.to_frame\(\)"),
        (iter([pa.table({"a": [1]})]), r"iterator cannot be read as rows.*RecordBatchReader\.from_batches"),
        ({"a": 1}, 'column "a" of a dict is 1: .*or rows as a list of dicts'),
        ({"a": "Rome"}, "column \"a\" of a dict is 'Rome'"),
        ({"a": [1], "b": [1, 2]}, r"must have equal lengths, but have {'a': 1, 'b': 2}"),
        ([{"a": 1}, 2], "a list of dict cannot be read as rows"),
        ([pd.DataFrame({"a": [1]})], "a list of DataFrame cannot be read as rows"),
        (["a.csv", 1], "a list of str cannot be read as rows"),
        (None, "a NoneType cannot be read as rows"),
        (3, "a int cannot be read as rows"),
    ],
)
def test_unsupported_input_raises(value: Any, message: str) -> None:
    with pytest.raises((ConfigError, ColumnError), match=message):
        as_source(value)


def test_sizes_of_partitions_are_text_or_bytes(tmp_path):
    (tmp_path / "rows.csv").write_text("n\n" + "1\n" * 5_000)
    counts = {read_files(tmp_path, partition_bytes=size).npartitions for size in ("2KB", "0.002 MB", 2_000)}
    assert len(counts) == 1
    assert min(counts) > 1
    with pytest.raises(ConfigError, match=r'partition_bytes=0: expected bytes such as "2GB"'):
        read_files(tmp_path, partition_bytes=0)
