from __future__ import annotations

import weakref

import cloudpickle
import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from dask.utils import key_split

import daskprep as dp
from daskprep import partitions
from daskprep.sources import as_source

ROWS = 40


@pytest.fixture
def table() -> pd.DataFrame:
    return pd.DataFrame({"x": np.arange(ROWS, dtype=float), "c": ["a", "b"] * (ROWS // 2), "unused": 0})


def counted_frame(table: pd.DataFrame, folder, npartitions: int = 4) -> dd.DataFrame:
    """Make a Dask frame whose partitions leave a file each time they are read."""

    def read(piece: int) -> pd.DataFrame:
        (folder / f"{piece}-{len(list(folder.iterdir()))}").touch()
        return table.iloc[piece * ROWS // npartitions : (piece + 1) * ROWS // npartitions]

    return dd.from_map(read, range(npartitions), meta=table.iloc[:0])


def reads(folder) -> dict[str, int]:
    pieces = sorted(path.name.split("-")[0] for path in folder.iterdir())
    return {piece: pieces.count(piece) for piece in pieces}


@pytest.mark.parametrize("split", [None, dp.HashSplit("c")], ids=["no split", "hash split"])
def test_fit_reads_each_partition_once(table, tmp_path, split):
    prep = dp.Preprocessor({"x": "number", "c": "category"}, split=split)
    with dask.config.set(scheduler="sync"):
        prep.fit(counted_frame(table, tmp_path))
    assert reads(tmp_path) == {"0": 1, "1": 1, "2": 1, "3": 1}


def test_a_census_reads_each_partition_once_more(table, tmp_path):
    prep = dp.Preprocessor({"x": dp.Number(missing_value_strategy="ffill")}, split=dp.StratifiedSplit("c"))
    with dask.config.set(scheduler="sync"):
        prep.fit(counted_frame(table, tmp_path))
    assert reads(tmp_path) == {"0": 2, "1": 2, "2": 2, "3": 2}


def test_a_random_split_of_parquet_takes_its_census_from_the_footers(table, tmp_path, monkeypatch):
    table.to_parquet(tmp_path / "part.parquet", row_group_size=10)
    source = as_source(str(tmp_path / "part.parquet"), partition_bytes=1)
    wanted = []
    kind = type(source.pieces[0])
    original = kind.read
    monkeypatch.setattr(kind, "read", lambda self, columns: wanted.append(list(columns)) or original(self, columns))
    with dask.config.set(scheduler="sync"):
        dp.Preprocessor({"x": "number"}, split=dp.RandomSplit()).fit(source)
    assert wanted == [["x"]] * 4


def graph_of(arrays) -> dict:
    return {key: task for array in arrays.values() for key, task in array.__dask_graph__().items()}


def test_encode_and_transform_are_lazy(table, tmp_path):
    prep = dp.Preprocessor({"x": dp.Number(missing_value_strategy="ffill"), "c": "category"}).fit(table)
    frame = counted_frame(table, tmp_path)
    prep.encode(frame)
    prep.transform(frame)
    assert reads(tmp_path) == {}


def test_arrays_that_are_computed_together_read_each_partition_once(table, tmp_path):
    prep = dp.Preprocessor({"x": "number", "c": "category"}).fit(table)
    with dask.config.set(scheduler="sync"):
        dask.compute(prep.encode(counted_frame(table, tmp_path)))
    assert reads(tmp_path) == {"0": 1, "1": 1, "2": 1, "3": 1}


def test_task_names_can_be_read(table):
    prep = dp.Preprocessor({"x": dp.Number(missing_value_strategy="ffill"), "c": "category"}).fit(table)
    names = {key_split(key) for key in graph_of(prep.encode(dd.from_pandas(table, npartitions=3)))}
    assert {"encode", "pick-x", "pick-c", "census", "exchange-census"} <= names


def test_no_table_is_in_a_graph(table, tmp_path):
    table.to_parquet(tmp_path / "part.parquet", row_group_size=10)
    prep = dp.Preprocessor({"x": "number", "c": "category"}).fit(table)
    graph = graph_of(prep.encode(str(tmp_path / "part.parquet")))
    assert not any(isinstance(task, pa.Table | pd.DataFrame) for task in graph.values())
    big = pd.concat([table] * 1000)
    big.to_parquet(tmp_path / "part.parquet", row_group_size=len(big))
    grown = graph_of(prep.encode(str(tmp_path / "part.parquet")))
    assert len(cloudpickle.dumps(grown)) < len(cloudpickle.dumps(graph)) + 100


def test_pandas_partitions_stay_out_of_graphs(table, monkeypatch):
    monkeypatch.setattr(partitions, "_layer", None)
    prep = dp.Preprocessor({"x": "number", "c": "category"}, split=dp.StratifiedSplit("c")).fit(table)
    assert isinstance(prep.encode(table)["x"], np.ndarray)


def test_known_row_counts_give_known_chunks(table, tmp_path):
    table.to_parquet(tmp_path / "part.parquet", row_group_size=10)
    prep = dp.Preprocessor({"x": "number"}).fit(table)
    array = prep.encode(as_source(str(tmp_path / "part.parquet"), partition_bytes=1))["x"]
    assert array.chunks == ((10, 10, 10, 10),)
    assert np.isnan(prep.encode(dd.from_pandas(table, npartitions=2))["x"].shape[0])


def test_the_tree_has_few_tasks():
    frame = dd.from_pandas(pd.DataFrame({f"x{i}": np.arange(2000.0) for i in range(50)}), npartitions=200)
    sizes = []

    def count(dsk, keys, **options):
        graph = dsk.__dask_graph__()
        sizes.append(len(graph))
        return dask.get(graph, keys, **options)

    with dask.config.set(scheduler=count):
        dp.Preprocessor({f"x{i}": "number" for i in range(50)}).fit(frame)
    assert sum(sizes) < 700


def test_a_lazy_fill_from_neighbours_holds_few_partitions():
    alive, peak = set(), []

    def read(piece: int) -> pd.DataFrame:
        frame = pd.DataFrame({"x": [float(piece), np.nan]})
        alive.add(id(frame))
        weakref.finalize(frame, alive.discard, id(frame))
        peak.append(len(alive))
        return frame

    frame = dd.from_map(read, range(30), meta=pd.DataFrame({"x": [1.0]}))
    prep = dp.Preprocessor({"x": dp.Number(missing_value_strategy="ffill", normalization=None)})
    prep.fit(pd.DataFrame({"x": [1.0, 2.0]}))
    with dask.config.set(scheduler="sync"):
        assert prep.encode(frame)["x"].sum().compute() == 2 * sum(range(30))
    assert len(peak) == 60
    assert max(peak) < 10


def test_one_core_sees_every_row(monkeypatch):
    monkeypatch.setattr(partitions, "CPU_COUNT", 1)
    frame = pd.DataFrame({"x": np.arange(300_000.0)})
    prep = dp.Preprocessor({"x": "number"}).fit(frame)
    assert prep.learned_["x"].rows == len(prep.encode(frame)["x"]) == 300_000
