"""A memory limit sets the size of partitions, or raises with figures before anything is read."""

from __future__ import annotations

from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import daskprep as dp
from daskprep.columns.display import parse_bytes
from daskprep.dataset.writing.memory import TASK_FACTOR, MemoryLimit, plan_source
from daskprep.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=100_000), "city": rng.integers(0, 9, 100_000).astype(str)})
    frame.to_parquet(tmp_path / "data.parquet", row_group_size=5_000)
    return str(tmp_path / "data.parquet")


@pytest.fixture(autouse=True)
def two_threads():
    with dask.config.set(num_workers=2):
        yield


@pytest.mark.parametrize(
    ("amount", "expected"), [("2GB", 2 * 10**9), ("1.5 GiB", 3 * 2**29), ("800mb", 8 * 10**8), (123, 123)]
)
def test_parse_bytes_units(amount: str | int, expected: int) -> None:
    assert parse_bytes(amount) == expected


@pytest.mark.parametrize("amount", ["much", "", "-1GB", 0, True, 2.5, "3PB"])
def test_parse_bytes_invalid_raises(amount: object) -> None:
    with pytest.raises(ConfigError, match="expected bytes such as"):
        parse_bytes(amount)  # type: ignore[arg-type]


def test_partitions_fit_memory_limit(file: str) -> None:
    roomy = plan_source(file, ["x", "city"], "2GB", {})
    tight = plan_source(file, ["x", "city"], "366MB", {})
    allowed = MemoryLimit.from_size("366MB").partition_bytes
    assert roomy.npartitions == 1
    assert tight.npartitions > 1
    assert max(fragment.nbytes for fragment in tight.fragments) <= allowed


def test_partitions_are_smaller_for_wider_windows(file: str) -> None:
    limit = MemoryLimit.from_size("1GB")
    task_bytes = TASK_FACTOR * limit.partition_bytes
    features = [dp.Timeseries(column="x", window_size=size) for size in (10, 500, 1_000)]
    features += [dp.Timeseries(column="x", lags=[0], vector_size=1_500), dp.History(column="city", last=2_000)]
    counts = []
    for numbers, feature in zip((10, 500, 1_000, 1_500, 2_000), features, strict=True):
        source = plan_source(file, ["x", "city"], "1GB", {}, {"w": feature})
        counts.append(source.npartitions)
        assert source.row_counts is not None
        for fragment, rows in zip(source.fragments, source.row_counts, strict=True):
            assert TASK_FACTOR * fragment.nbytes + 3 * 4 * numbers * rows <= 1.01 * task_bytes
    assert counts == sorted(set(counts))
    assert counts[0] == 1
    with pytest.raises(ConfigError, match="write the files with smaller row groups"):
        plan_source(file, ["x", "city"], "1GB", {}, {"w": dp.Timeseries(column="x", window_size=9_000)})


def test_bytes_do_not_depend_on_memory_limit(file: str, tmp_path: Path) -> None:
    prep = dp.Preprocessor({"x": "number", "city": "category"}, split=dp.RandomSplit())
    one = prep.fit_write(file, tmp_path / "one", memory="2GB")
    two = prep.fit_write(file, tmp_path / "two", memory="366MB")
    assert one.manifest == two.manifest


def test_memory_limit_too_small_error_shows_figures(file: str, tmp_path: Path) -> None:
    figures = r"366.0 MB \(1 process x 250.0 MB \+ 2 threads x 58.0 MB\)"
    message = f"memory='100MB' is not enough: .* {figures}, .* fewer threads"
    with pytest.raises(ConfigError, match=message):
        dp.Preprocessor({"x": "number"}).fit_write(file, tmp_path / "a", memory="100MB")
    assert not (tmp_path / "a").exists()


def test_memory_limit_too_small_for_cluster_error_shows_figures() -> None:
    limit = MemoryLimit("700MB", 700_000_000, processes=3, threads=2)
    message = str(limit.too_large_error(1_000_000, "reason", "remedy"))
    assert "1.1 GB (3 processes x 335.0 MB + 2 threads x 58.0 MB)" in message
    assert "use fewer workers, or remedy" in message


def test_row_groups_larger_than_memory_limit_raise(tmp_path: Path) -> None:
    pd.DataFrame({"x": np.arange(2_000_000.0)}).to_parquet(tmp_path / "x.parquet", row_group_size=2_000_000)
    with pytest.raises(
        ConfigError, match="the largest partition has 16\\.. MB.*write the files with smaller row groups"
    ):
        dp.Preprocessor({"x": "number"}).fit_write(tmp_path / "x.parquet", tmp_path / "a", memory="400MB")


def test_memory_limit_with_dask_frame_raises(tmp_path: Path) -> None:
    frame = dd.from_pandas(pd.DataFrame({"x": [1.0, 2.0]}), npartitions=1)
    with pytest.raises(ConfigError, match="pass the paths of the files, or leave memory out"):
        dp.Preprocessor({"x": "number"}).fit_write(frame, tmp_path / "a", memory="2GB")


def test_memory_limit_counts_decoded_dictionaries(tmp_path: Path) -> None:
    texts = pa.array([f"{i} " + "word " * 60 for i in range(10)])
    table = pa.table({"x": pa.DictionaryArray.from_arrays(pa.array(list(range(10)) * 10_000), texts)})
    source = plan_source(table, ["x"], "400MB", {})
    allowed = MemoryLimit.from_size("400MB").partition_bytes
    read = [source.read(i, ["x"])["x"].to_pylist() for i in range(source.npartitions)]
    assert allowed / 2 < max(sum(map(len, cells)) for cells in read) <= allowed
    numbers = pa.table({"x": pa.array([1, 2] * 500).dictionary_encode()})
    assert plan_source(numbers, ["x"], "400MB", {}).npartitions == 1


def test_memory_limit_with_pandas_frame(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(131_072.0), "unused": 0.0})
    dp.Preprocessor({"x": "number"}).fit_write(frame, tmp_path / "a", memory="400MB")
    wide = pd.DataFrame({"x": ["a" * 1000] * 20_000})
    with pytest.raises(ConfigError, match="largest partition has 2.\\.. MB"):
        dp.Preprocessor({"x": "text"}).fit_write(wide, tmp_path / "b", memory="400MB")
