from __future__ import annotations

import multiprocessing
import pickle
import re
import sys
import warnings

import dask
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import daskprep as dp
from daskprep.dataset import open_dataset
from daskprep.errors import ConfigError, CorruptDatasetError
from daskprep.storage import Folder

MATRICES = ["tags", "bag", "review_word", "review_char", "vector"]
FIRST = {"train": 0, "validation": 70, "test": 80}


def assert_same(found, expected):
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def rows_of(encoded, start, stop):
    return {name: array[start:stop] for name, array in encoded.items()}


@pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
@pytest.mark.parametrize(("block_rows", "part_blocks"), [(8, 3), (7, 1), (128, 2), (1, 70), (10, 100)])
def test_read_returns_written_arrays(write, encoded, tmp_path, compression, block_rows, part_blocks):
    write(tmp_path, compression=compression, block_rows=block_rows, part_blocks=part_blocks)
    dataset = open_dataset(tmp_path)
    for name, split in dataset.splits.items():
        assert_same(split.read(), rows_of(encoded, FIRST[name], FIRST[name] + len(split)))
        start = FIRST[name] + 1000
        assert split.read("row_id")["row_id"].tolist() == list(range(start, start + len(split)))


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 8), (3, 5), (5, 3), (7, 9), (8, 24), (23, 49), (69, 70), (70, 90), (-9, -2), (None, None)]
)
def test_read_start_and_stop_as_slice(dataset, encoded, start, stop):
    assert_same(dataset["train"].read(start=start, stop=stop), rows_of(rows_of(encoded, 0, 70), start, stop))


def test_read_preserves_column_order(dataset):
    train = dataset["train"]
    assert list(train.read(["vector", "row_id", "city", "city"], stop=1)) == ["vector", "row_id", "city"]
    assert train.read([]) == {}
    assert train.columns == ["price", "city", "tags", "bag", "review_word", "review_char", "vector", "sold"]


def test_read_returns_writable_copies(dataset):
    names = ["city", "vector", "row_id"]
    for name, array in dataset["train"].read(names, start=1, stop=8).items():
        array[:] = 0
        # Only the copy was modified.
        assert dataset["train"].read([name], start=1, stop=8)[name].any()


def test_table_has_row_ids_and_scalars(dataset, encoded):
    table = dataset["test"].table()
    assert table.column_names == ["row_id", "price", "city", "sold"]
    np.testing.assert_array_equal(table["city"], encoded["city"][80:])
    assert dataset["test"].table(["sold", "row_id"]).column_names == ["sold", "row_id"]
    with pytest.raises(ConfigError, match=r'"vector".*shape \(3,\).*read\(\)'):
        dataset["test"].table(["vector"])


def test_split_exports_arrow_stream(dataset, encoded):
    train = dataset["train"]
    assert [batch.num_rows for batch in train.to_arrow()] == [8] * 8 + [6]
    for table in (pa.table(train), train.to_arrow().read_all(), pl.DataFrame(train).to_arrow()):
        assert table.column_names == ["row_id", *train.columns]
        assert table.select(["row_id", "price", "city", "sold"]).to_pydict() == train.table().to_pydict()
        for name in ("bag", "tags", "vector"):
            assert table[name].to_pylist() == encoded[name][:70].tolist()
    total = duckdb.sql("SELECT sum(vector[2]) FROM train").fetchall()[0][0]
    assert total == pytest.approx(encoded["vector"][:70, 1].sum())


def test_to_arrow_selects_columns(dataset, encoded):
    assert dataset["test"].to_arrow(["sold", "row_id"]).schema.names == ["sold", "row_id"]
    found = dataset["test"].to_arrow("vector").read_all()
    assert found.schema.types == [pa.list_(pa.float32(), 3)]
    with pytest.raises(ConfigError, match='no output "x"'):
        dataset["test"].to_arrow("x")


def test_arrays_is_read_only_zarr_group(dataset, encoded):
    group = dataset["train"].arrays
    assert sorted(group.array_keys()) == sorted(MATRICES)
    for name in MATRICES:
        np.testing.assert_array_equal(group[name][:], encoded[name][:70])
    with pytest.raises(ValueError, match="read-only|read only"):
        group["vector"][0] = 1.0


def test_dask_arrays_have_one_chunk_per_block(dataset, encoded):
    arrays = dataset["train"].to_dask()
    assert arrays["vector"].chunks == ((8,) * 8 + (6,), (3,))
    assert arrays["city"].chunks == ((8,) * 8 + (6,),)
    assert_same(dict(zip(arrays, dask.compute(*arrays.values()), strict=True)), rows_of(encoded, 0, 70))
    np.testing.assert_array_equal(arrays["bag"][30:50, 1].sum(axis=0), encoded["bag"][30:50, 1].sum(axis=0))


def test_dask_graphs_contain_no_rows(write, prep, encoded, tmp_path):
    write(tmp_path, block_rows=1, rows={"train": 100})
    array = open_dataset(tmp_path)["train"].to_dask("vector")["vector"]
    assert len(pickle.dumps(array)) < 100 * 300
    layer = dict(array.dask)
    assert len(layer) == 101


def test_to_xarray_has_dimensions_and_row_ids(dataset, encoded):
    lazy = dataset["train"].to_xarray()
    assert lazy["bag"].dims == ("row", "bag_1", "bag_2")
    assert lazy["row_id"].values.tolist() == list(range(1000, 1070))
    assert list(lazy.coords) == ["row_id"]
    np.testing.assert_array_equal(lazy["vector"].isel(row=slice(3, 20)).values, encoded["vector"][3:20])


def test_to_xarray_without_xarray_raises(dataset, monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ImportError, match="pip install xarray"):
        dataset["train"].to_xarray()


def test_shape_and_num_embeddings(dataset, prep):
    train = dataset["train"]
    assert train.shape("city") == ()
    assert train.shape("vector") == (3,)
    assert train.num_embeddings("city") == 4
    assert train.num_embeddings("bag") == len(prep.learned_["bag"].vocabulary)
    assert train.num_embeddings("review_word") == len(prep.learned_["review"].word.vocabulary)
    assert train.num_embeddings("review_char") == len(prep.learned_["review"].char.vocabulary)
    with pytest.raises(ConfigError, match='"price" is a number.*no vocabulary.*city'):
        train.num_embeddings("price")


def test_unknown_output_error_suggests_name(dataset):
    train = dataset["train"]
    for call in (train.read, train.table, train.to_dask, train.shape, train.num_embeddings):
        with pytest.raises(ConfigError, match=r'no output "citi".*Did you mean "city"'):
            call("citi")


def test_head_is_decoded(dataset, table):
    head = dataset["test"].head(3)
    assert head["city"].tolist() == table["city"].iloc[80:83].tolist()
    np.testing.assert_allclose(head["price"], table["price"].iloc[80:83], rtol=1e-5)
    assert len(dataset["test"].head(1000)) == 20
    assert len(dataset["test"].head(0)) == 0


ODD = ["a/b", "..", "zarr.json", "c", "row", "x.y", "x", "ä b", "a%2Fb", "vec_1", "row_1"]


def test_odd_output_names_round_trip(write, tmp_path):
    values = np.arange(30)
    frame = pd.DataFrame({"v": values.astype(float), "w": [f"{i} {i + 1}" for i in values]})
    scalars = {name: dp.Number(column="v", normalization=None) for name in ODD}
    matrices = {f"{name} m": dp.Vector(column="w") for name in ODD} | {
        "vec": dp.Vector(column="w"),
        "": dp.Vector(column="w"),
    }
    prep = dp.Preprocessor(scalars | matrices).fit(frame)
    encoded = prep.encode(frame)
    write(tmp_path, encoded, prep, rows={"train": 30})
    dataset = open_dataset(tmp_path)
    train = dataset["train"]
    dataset.verify()
    assert_same(train.read(), encoded)
    assert len(list(train.arrays.array_keys())) == len(matrices)
    arrays = train.to_dask()
    assert_same(dict(zip(arrays, dask.compute(*arrays.values()), strict=True)), encoded)
    lazy = train.to_xarray()
    assert not lazy.indexes
    np.testing.assert_array_equal(lazy["row"].values, encoded["row"])


def test_outputs_of_zero_width_are_read(write, tmp_path):
    frame = pd.DataFrame({"tags": [""] * 9})
    prep = dp.Preprocessor({"tags": "set"}).fit(frame)
    write(tmp_path, prep.encode(frame), prep, rows={"train": 9}, block_rows=4)
    train = open_dataset(tmp_path)["train"]
    assert train.read()["tags"].shape == train.to_dask()["tags"].compute().shape == (9, 0)


def test_split_without_scalars_has_row_ids(write, tmp_path, table, encoded):
    prep = dp.Preprocessor({"vector": "vector"}).fit(table)
    write(tmp_path, {"vector": encoded["vector"]}, prep)
    assert open_dataset(tmp_path)["test"].table().column_names == ["row_id"]


def test_split_without_matrices_has_empty_group(write, tmp_path, table, encoded):
    prep = dp.Preprocessor({"price": "number"}).fit(table)
    write(tmp_path, {"price": encoded["price"]}, prep)
    assert list(open_dataset(tmp_path)["test"].arrays.array_keys()) == []


def test_pickled_split_reads_same_rows(dataset, encoded):
    copy = pickle.loads(pickle.dumps(dataset["validation"]))
    assert_same(copy.read(), rows_of(encoded, 70, 80))
    assert pickle.loads(pickle.dumps(dataset)).version == dataset.version


def test_unpickling_after_dataset_was_replaced_raises(write, path, dataset):
    pickled = pickle.dumps(dataset["train"])
    write(path, version="ffffffff")
    with pytest.raises(ConfigError, match="ffffffff, not 3f2a9c1b"):
        pickle.loads(pickled)


def _read_into(queue, split):
    queue.put(int(split.read("vector")["vector"].sum()) + int(split.arrays["vector"][:].sum()))


def test_forked_process_reads(dataset, encoded):
    train, queue = dataset["train"], multiprocessing.get_context("fork").SimpleQueue()
    train.read()
    _ = train.arrays["vector"][:]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on, of forks beside threads
        child = multiprocessing.get_context("fork").Process(target=_read_into, args=(queue, train))
        child.start()
    child.join(60)
    assert child.exitcode == 0
    assert queue.get() == 2 * int(encoded["vector"][:70].sum())


def test_memory_dataset_is_read(write, encoded):
    write("memory://made/deep.dp")
    try:
        dataset = open_dataset("memory://made/deep.dp")
        assert dataset.url == "memory://made/deep.dp"
        train = dataset["train"]
        assert_same(train.read(), rows_of(encoded, 0, 70))
        np.testing.assert_array_equal(train.to_dask()["vector"].compute(), encoded["vector"][:70])
        np.testing.assert_array_equal(train.arrays["vector"][:], encoded["vector"][:70])
        dataset.verify()
        Folder.open("memory://made/deep.dp").remove("3f2a9c1b/train/arrays.zarr/vector/c.3.0")
        with pytest.raises(
            CorruptDatasetError, match=r"vector/c.3.0 is missing; only the process that wrote to memory://"
        ):
            train.read()
    finally:
        Folder.open("memory://made").remove_all()


INDICES = [
    [3, 1],
    [-1, 0, -1, 35, 8, 7],
    np.array([69, 0, 33], np.uint16),
    range(60, 2, -7),
    slice(None, None, -1),
    slice(5, 60, 9),
    slice(7, 25),
    np.arange(70) % 13 == 5,
    [True] + [False] * 69,
    list(range(8, 16))[::-1],
    [],
    np.zeros(70, bool),
]


@pytest.mark.parametrize("index", INDICES, ids=lambda index: str(index)[:20])
@pytest.mark.parametrize("compression", ["lz4", "none"])
def test_getitem_returns_rows_in_order_of_index(write, encoded, tmp_path, index, compression):
    write(tmp_path, compression=compression)
    chosen = index if isinstance(index, slice) else np.asarray(index, None if len(index) else int)
    found = open_dataset(tmp_path)["train"][index]
    assert_same(found, {name: array[:70][chosen] for name, array in encoded.items()})


@pytest.mark.parametrize("number", [0, 69, -1, -70, np.int64(8)])
def test_getitem_with_int_returns_row(dataset, encoded, number):
    found = dataset["train"][number]
    assert list(found) == dataset["train"].columns
    for name, array in encoded.items():
        np.testing.assert_array_equal(found[name], array[:70][number])
        assert np.ndim(found[name]) == array.ndim - 1


@pytest.mark.parametrize("index", [70, -71, [0, 70], [-71]])
def test_getitem_out_of_range_raises(dataset, index):
    with pytest.raises(IndexError, match=r'row -?7[01] is out of range: split "train" of .* has 70 rows'):
        dataset["train"][index]


@pytest.mark.parametrize("index", [[0.5], [[1]], [True], np.zeros(69, bool), None, 1.0, True])
def test_getitem_invalid_index_raises(dataset, index):
    with pytest.raises(ConfigError, match=r"(?s)70 rows: .* is not a valid index; use .*a list of numbers, a slice"):
        dataset["train"][index]


def test_getitem_with_name_suggests_read(dataset):
    for index in ("city", ["city"]):
        with pytest.raises(ConfigError, match=re.escape(f"{index!r} is not a valid index; use read({index!r}) for")):
            dataset["train"][index]


def test_getitem_reads_only_blocks_of_rows(dataset, monkeypatch):
    read = []
    in_folder = Folder.read_buffer
    monkeypatch.setattr(Folder, "read_buffer", lambda self, name: (read.append(name), in_folder(self, name))[1])
    dataset["train"][[66, 2, 65]]
    tables = {name.rpartition("/")[2] for name in read if "/table/" in name}
    assert tables == {"part-00000.parquet", "part-00002.parquet"}
    assert {name.rpartition("/c.")[2].split(".")[0] for name in read if "/c." in name} == {"0", "8"}


def test_iteration_yields_all_rows(dataset, encoded):
    rows = list(dataset["train"])
    assert len(rows) == 70
    np.testing.assert_array_equal([row["city"] for row in rows], encoded["city"][:70])
