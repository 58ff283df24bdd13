"""Written files open in other libraries with the same values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dask
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import xarray
import zarr

import daskprep as dp
from daskprep.dataset import Dataset
from tests.sizes import sized

ROWS = 500
SCALARS = ["price", "city", "sold"]
ARRAYS = ["review", "tags", "vector"]


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(2)
    words = np.array(["alpha", "beta", "gamma", "delta"])
    return pd.DataFrame(
        {
            "price": pd.Series(rng.lognormal(size=ROWS)).mask(rng.random(ROWS) < 0.2),
            "city": rng.choice([f"city {i}" for i in range(2000)], ROWS),
            "sold": rng.choice([True, False], ROWS),
            "review": [" ".join(rng.choice(words, rng.integers(0, 9))) for _ in range(ROWS)],
            "tags": [" ".join(rng.choice(words, rng.integers(0, 4))) for _ in range(ROWS)],
            "vector": [" ".join(map(str, rng.normal(size=3))) for _ in range(ROWS)],
        }
    )


@pytest.fixture(scope="module", params=["lz4", "zstd", "none"])
def dataset(request, table, tmp_path_factory) -> Dataset:
    features = {"price": "number", "city": "category", "sold": "binary", "review": "text", "tags": "set"}
    prep = dp.Preprocessor({**features, "vector": "vector"}, split=dp.RandomSplit())
    path = tmp_path_factory.mktemp("written") / "listings.dp"
    with sized(part_bytes=64 * 100):
        written = prep.fit_write(table, path, shuffle=True, block_rows=32, compression=request.param)
    assert written.layout.parts("train") > 2
    return written


@pytest.fixture(scope="module")
def expected(dataset, table) -> dict[str, np.ndarray]:
    """The training rows from `encode`, in the order of the written row numbers."""
    rows = dataset["train"].read(["row_id"])["row_id"]
    prep = dp.Preprocessor.from_dataset(dataset)
    return {"row_id": rows, **{name: array[rows] for name, array in prep.encode(table).items()}}


def train(dataset: Dataset, inner: str) -> Path:
    return Path(dataset.url) / dataset.version / "train" / inner


def assert_scalars(found: Any, expected: dict[str, np.ndarray]) -> None:
    assert list(found) == ["row_id", *SCALARS]
    for name, values in found.items():
        assert values.dtype == expected[name].dtype, name
        np.testing.assert_array_equal(values, expected[name])


def test_row_numbers_and_values_match_source(dataset, table, expected):
    decoded = dataset.decode(dataset["train"].read(["city", "sold"]))
    rows = table.iloc[expected["row_id"]]
    assert decoded["city"].tolist() == rows["city"].tolist()
    assert decoded["sold"].tolist() == rows["sold"].tolist()
    assert sorted(np.concatenate([split.read(["row_id"])["row_id"] for split in dataset.splits.values()])) == list(
        range(ROWS)
    )


def test_polars_reads_tables(dataset, expected):
    frame = pl.scan_parquet(train(dataset, "table") / "*.parquet").collect()
    assert_scalars({name: frame[name].to_numpy() for name in frame.columns}, expected)


def test_polars_filters_by_statistics(dataset, expected):
    wanted = int(expected["row_id"][7])
    found = pl.scan_parquet(train(dataset, "table") / "*.parquet").filter(pl.col("row_id") == wanted).collect()
    assert found["city"].to_list() == [expected["city"][7]]


def test_duckdb_reads_tables(dataset, expected):
    # Files are in the order of their names, and rows in the order of the file.
    found = duckdb.sql(f"select * from read_parquet('{train(dataset, 'table')}/*.parquet')").fetchnumpy()
    assert_scalars({name: np.asarray(values) for name, values in found.items()}, expected)


def test_duckdb_row_count_equals_split_length(dataset):
    for name, split in dataset.splits.items():
        path = Path(dataset.url) / dataset.version / name / "table" / "*.parquet"
        assert duckdb.sql(f"select count(*) from '{path}'").fetchall() == [(len(split),)]


def test_pandas_reads_tables(dataset, expected):
    frame = pd.read_parquet(train(dataset, "table"))
    assert isinstance(frame.index, pd.RangeIndex)
    assert_scalars({name: frame[name].to_numpy() for name in frame.columns}, expected)


def test_arrow_reads_tables(dataset, expected):
    found = ds.dataset(train(dataset, "table")).to_table()
    assert_scalars({name: found[name].to_numpy() for name in found.column_names}, expected)
    assert found.equals(dataset["train"].table())


def test_tables_have_no_metadata(dataset):
    paths = list(train(dataset, "table").iterdir())
    assert len(paths) > 1
    for path in paths:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        assert not file.schema_arrow.metadata
        assert not file.metadata.metadata
        assert [str(field.type) for field in file.schema_arrow] == ["int64", "float", "uint16", "uint8"]
        assert not any(field.nullable or field.metadata for field in file.schema_arrow)
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        assert set(sizes[:-1]) <= {dataset.layout.block_rows}


def test_zarr_reads_arrays(dataset, expected):
    group = zarr.open(train(dataset, "arrays.zarr"), mode="r")
    assert sorted(group.array_keys()) == sorted(ARRAYS)
    for name, array in group.arrays():
        assert array.dtype == expected[name].dtype
        assert array.chunks[0] == dataset.layout.block_rows
        np.testing.assert_array_equal(array[:], expected[name])
        np.testing.assert_array_equal(array[40:75], expected[name][40:75])


def test_zarr_metadata_has_no_custom_attributes(dataset):
    paths = list(train(dataset, "arrays.zarr").rglob("zarr.json"))
    assert len(paths) == 1 + len(ARRAYS)
    for path in paths:
        content = json.loads(path.read_bytes())
        assert content["zarr_format"] == 3
        assert content["attributes"] == {}
        codecs = {codec["name"] for codec in content.get("codecs", ())}
        assert codecs <= {"bytes", "blosc", "crc32c"}


def test_xarray_opens_arrays(dataset, expected):
    found = xarray.open_zarr(train(dataset, "arrays.zarr"), consolidated=False)
    assert set(found.data_vars) == set(ARRAYS)
    assert set(found.dims) == {"row", "review_1", "tags_1", "vector_1"}
    for name in ARRAYS:
        assert found[name].dtype == expected[name].dtype
        np.testing.assert_array_equal(found[name].to_numpy(), expected[name])


def test_to_xarray_is_lazy_and_complete(dataset, expected):
    found = dataset["train"].to_xarray()
    assert set(found.data_vars) == {*SCALARS, *ARRAYS}
    assert all(dask.is_dask_collection(found[name].data) for name in found.data_vars)
    for name, array in found.compute().variables.items():
        assert array.dtype == expected[name].dtype
        np.testing.assert_array_equal(array, expected[name])


def test_to_xarray_equals_open_zarr(dataset):
    opened = xarray.open_zarr(train(dataset, "arrays.zarr"), consolidated=False)
    xarray.testing.assert_equal(dataset["train"].to_xarray()[ARRAYS].drop_vars("row_id"), opened)


def test_dask_arrays_are_complete(dataset, expected):
    lazy = dataset["train"].to_dask(["row_id", *SCALARS, *ARRAYS])
    for name, array in lazy.items():
        assert array.chunks[0][0] == dataset.layout.block_rows
        assert array.dtype == expected[name].dtype
        np.testing.assert_array_equal(array.compute(), expected[name])
        np.testing.assert_array_equal(array[33:70:3].compute(), expected[name][33:70:3])
    assert lazy["price"].max().compute() == expected["price"].max()
