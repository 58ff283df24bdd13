"""Arrow tables, datasets and streams as sources, also of libraries that export Arrow."""

from __future__ import annotations

import datetime as dt
import gc
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import datasets
import deltalake
import duckdb
import lance
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pds
import pyarrow.parquet as pq
import pytest

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError
from daskprep.sources import Source, StreamSource, as_source

ROWS = 900
FEATURES = {
    "city": "category",
    "price": dp.Number(normalization="zscore", missing_value_strategy="fill_with_mean"),
    "count": "number",
    "tags": "set",
    "note": "text",
    "sold": "binary",
    "day": "date",
}


@pytest.fixture(scope="module", autouse=True)
def _no_progress_bars() -> Iterator[None]:
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def table() -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "city": pa.array(rng.choice(["Rome", "Oslo", None], ROWS).tolist(), pa.string()),
            "price": [None if i % 7 == 0 else float(x) for i, x in enumerate(rng.normal(size=ROWS))],
            "count": [None if i % 11 == 0 else i % 13 for i in range(ROWS)],
            "tags": [[f"t{i % 5}", "x"] if i % 3 else [] for i in range(ROWS)],
            "note": [f"word{i % 50} and {i % 7}" for i in range(ROWS)],
            "sold": [bool(i % 2) for i in range(ROWS)],
            "day": pa.array(
                [dt.datetime(2020, 1, 1) + dt.timedelta(i * 7919 % 1009) for i in range(ROWS)], pa.timestamp("us")
            ),
        }
    )


def parquet(folder: Path) -> Path:
    pq.write_table(table(), folder / "rows.parquet", row_group_size=250)
    return folder / "rows.parquet"


def reader(rows: pa.Table, batch_rows: int = 77) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=batch_rows))


def of_lance(folder: Path) -> Any:
    return lance.write_dataset(table(), str(folder / "rows.lance"), max_rows_per_file=400)


def of_delta(folder: Path) -> deltalake.DeltaTable:
    deltalake.write_deltalake(str(folder / "delta"), table())
    return deltalake.DeltaTable(str(folder / "delta"))


def streaming(folder: Path) -> datasets.IterableDataset:
    found = datasets.Dataset.from_parquet(str(parquet(folder)), cache_dir=str(folder / "cache"))
    return found.to_iterable_dataset(num_shards=3)


IN_MEMORY: dict[str, Callable[[], Any]] = {
    "table": table,
    "batch": lambda: table().combine_chunks().to_batches()[0],
    "polars": lambda: pl.from_arrow(table()),
    "dict": lambda: table().to_pydict(),
    "dicts": lambda: table().to_pylist(),
}
OUT_OF_CORE: dict[str, Callable[[Path], Any]] = {
    "reader": lambda folder: reader(table()),
    "lazy frame": lambda folder: pl.scan_parquet(parquet(folder)),
    "duckdb": lambda folder: duckdb.sql(f"FROM '{parquet(folder)}'"),
    "arrow dataset": lambda folder: pds.dataset(parquet(folder)),
    "filtered dataset": lambda folder: pds.dataset(parquet(folder)).filter(pds.field("sold").is_valid()),
    "dataset of tables": lambda folder: pds.dataset([table()]),
    "lance": of_lance,
    "delta": of_delta,
    "delta's dataset": lambda folder: of_delta(folder).to_pyarrow_dataset(),
    "streaming": streaming,
    "generator": lambda folder: datasets.IterableDataset.from_generator(lambda: iter(table().to_pylist())),
}


def files_of(written: Path) -> dict[str, bytes]:
    """Return the files of the version, by their names within it; the manifest names the files of the source."""
    inner = {file: file.relative_to(written).parts[1:] for file in written.rglob("*") if file.is_file()}
    return {"/".join(name): file.read_bytes() for file, name in inner.items() if name}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files of a dataset written from Parquet."""
    folder = tmp_path_factory.mktemp("parquet")
    write(parquet(folder), folder / "out")
    return files_of(folder / "out")


def write(frame: Any, path: Path, **options: Any) -> dp.Preprocessor:
    prep = dp.Preprocessor(FEATURES, split=dp.RandomSplit())
    prep.fit_write(frame, path, progress=False, **options)
    return prep


@pytest.mark.parametrize("kind", [*IN_MEMORY, *OUT_OF_CORE])
def test_written_bytes_equal_parquet(kind: str, written: dict[str, bytes], tmp_path: Path) -> None:
    frame = IN_MEMORY[kind]() if kind in IN_MEMORY else OUT_OF_CORE[kind](tmp_path)
    write(frame, tmp_path / "out", memory="4GB")
    assert len(written) > 10
    assert files_of(tmp_path / "out") == written


@pytest.mark.parametrize("kind", ["reader", "lazy frame", "duckdb", "arrow dataset", "lance", "streaming"])
def test_written_bytes_do_not_depend_on_partitions(kind: str, written: dict[str, bytes], tmp_path: Path) -> None:
    source = as_source(OUT_OF_CORE[kind](tmp_path), partition_bytes=20_000)
    assert source.npartitions > 2
    write(source, tmp_path / "out")
    assert files_of(tmp_path / "out") == written


@pytest.mark.parametrize("kind", [*IN_MEMORY, *OUT_OF_CORE])
def test_fit_encode_and_guess(kind: str, tmp_path: Path) -> None:
    expected = dp.Preprocessor(FEATURES).fit(table().to_pandas())
    arrays = expected.encode(table().to_pandas())

    def make() -> Any:
        return IN_MEMORY[kind]() if kind in IN_MEMORY else OUT_OF_CORE[kind](tmp_path / "again")

    (tmp_path / "again").mkdir()
    prep = dp.Preprocessor(FEATURES).fit(make())
    states = [one.to_dict() for one in (prep, expected)]
    for state in states:  # pandas makes floats of integers with gaps
        state["features"]["count"]["learned"].pop("cell_type", None)
    assert states[0] == states[1]
    (tmp_path / "again").rename(tmp_path / "before")
    (tmp_path / "again").mkdir()
    for name, array in dask.compute(dict(prep.encode(make())))[0].items():
        np.testing.assert_array_equal(array, arrays[name])


def test_stream_is_inferred_and_written_in_one_pass(tmp_path: Path) -> None:
    prep = dp.Preprocessor("auto")
    dataset = prep.fit_write(reader(table()), tmp_path / "out", progress=False)
    assert sum(len(dataset[split]) for split in dataset) == ROWS
    assert list(dp.infer_features(reader(table()))) == list(prep.features_)


def test_stream_keeps_only_selected_columns() -> None:
    source = as_source(reader(table()), columns=["note", "city"])
    assert isinstance(source, StreamSource)
    assert source.columns == ["note", "city"]
    assert source.read(0, ["city"]).to_pylist() == table().select(["city"]).to_pylist()
    assert source.read(0, []).num_rows == ROWS


def test_scratch_url_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="scratch='memory://scratch' is a URL.*local folder"):
        as_source(table().to_reader(), scratch="memory://scratch")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_stream_scratch_lives_as_long_as_lazy_result(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    prep = dp.Preprocessor({"price": "number"}, scratch=str(scratch)).fit(table())
    lazy = prep.encode(reader(table()))
    gc.collect()
    (folder,) = scratch.iterdir()
    assert list(folder.iterdir())
    assert len(lazy["price"].compute()) == ROWS
    del lazy
    gc.collect()
    assert not list(scratch.iterdir())


def test_unpickled_fragment_does_not_delete_scratch() -> None:
    source = as_source(reader(table()))
    fragment = pickle.loads(pickle.dumps(source.fragments[0]))
    assert fragment.read(["city"]).equals(source.read(0, ["city"]))
    del fragment
    gc.collect()
    assert source.read(0, ["city"]).num_rows == ROWS


@pytest.mark.slow
@pytest.mark.cluster
def test_cluster_reads_streams_and_fragments(cluster: Any, tmp_path: Path, written: dict[str, bytes]) -> None:
    for kind in ("reader", "lance", "arrow dataset"):
        source = as_source(OUT_OF_CORE[kind](tmp_path), partition_bytes=20_000)
        write(source, tmp_path / kind)
        assert files_of(tmp_path / kind) == written


def test_consumed_stream_raises() -> None:
    rows = reader(table())
    prep = dp.Preprocessor({"price": "number"}).fit(rows)
    with pytest.raises(ConfigError, match="this RecordBatchReader was read before, and returns its rows once"):
        prep.encode(rows)


def test_lazy_frames_and_relations_are_rereadable(tmp_path: Path) -> None:
    for kind in ("lazy frame", "duckdb", "generator"):
        frame = OUT_OF_CORE[kind](tmp_path)
        prep = dp.Preprocessor({"price": "number"}).fit(frame)
        assert len(prep.encode(frame)["price"].compute()) == ROWS


def test_missing_targets_are_ignored_in_encode() -> None:
    prep = dp.Preprocessor({"price": "number", "sold": "binary"}, targets="sold").fit(reader(table()))
    assert list(prep.encode(reader(table().select(["price"])))) == ["price"]


@pytest.mark.parametrize("rows", [table().slice(0, 0), table().slice(0, 1)])
def test_few_rows(rows: pa.Table, tmp_path: Path) -> None:
    for frame in (rows, reader(rows), pl.from_arrow(rows), pl.from_arrow(rows).lazy(), pds.dataset([rows])):
        source = as_source(frame)
        assert source.row_counts == [rows.num_rows]
        assert source.read(0, ["price"]).column("price").to_pylist() == rows["price"].to_pylist()


def test_large_batches_are_split() -> None:
    source = as_source(reader(table(), batch_rows=ROWS), partition_bytes=5_000)
    assert source.npartitions > 5
    assert max(fragment.nbytes for fragment in source.fragments) <= 2_200
    assert [x for i in range(source.npartitions) for x in source.read(i, ["note"])["note"].to_pylist()] == table()[
        "note"
    ].to_pylist()


def test_stream_partitions_are_two_fifths_of_partition_bytes() -> None:
    source = as_source(reader(table(), batch_rows=10), partition_bytes=20_000)
    nbytes = [fragment.nbytes for fragment in source.fragments]
    assert len(nbytes) > 5
    assert 5_000 < max(nbytes) <= 8_000


def test_tables_in_memory_are_sliced() -> None:
    rows = pa.table({"a": range(300_000), "b": ["x"] * 300_000})
    assert as_source(rows).row_counts == [131_072, 131_072, 37_856]
    assert max(as_source(rows, partition_bytes=100_000).row_counts or []) <= 100_000 // 9
    media = pa.table({"a": pa.array([b"x"] * 3_000, pa.binary_view())})
    assert as_source(media).row_counts == [1_024, 1_024, 952]


def test_row_groups_and_row_ranges_are_partitions(tmp_path: Path) -> None:
    source = as_source(pds.dataset(parquet(tmp_path)), partition_bytes=1)
    assert not isinstance(source, StreamSource)
    assert source.row_counts == [250, 250, 250, 150]
    assert as_source(pds.dataset(tmp_path / "rows.parquet")).row_counts == [ROWS]
    cut = as_source(of_lance(tmp_path), columns=["price"], partition_bytes=800)
    assert cut.row_counts is not None
    assert max(cut.row_counts) <= 100
    assert sum(cut.row_counts) == ROWS


def test_columns_of_hive_folders_and_later_files(tmp_path: Path) -> None:
    pds.write_dataset(table().select(["city", "sold"]), tmp_path / "sets", format="parquet", partitioning=["sold"])
    pq.write_table(pa.table({"a": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": [2], "b": ["x"]}), tmp_path / "2.parquet")
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    folders = pds.dataset(tmp_path / "sets", partitioning=["sold"])
    assert set(read_all(as_source(folders), "sold")) == {"false", "true"}
    later = pds.dataset([tmp_path / "1.parquet", tmp_path / "2.parquet"], schema=schema)
    assert read_all(as_source(later, partition_bytes=1), "b") == [None, "x"]


def read_all(source: Source, column: str) -> list[Any]:
    return [cell for i in range(source.npartitions) for cell in source.read(i, [column])[column].to_pylist()]


def test_deleted_rows_of_lance_are_skipped(tmp_path: Path) -> None:
    dataset = of_lance(tmp_path)
    dataset.delete("count = 3")
    source = as_source(dataset, columns=["count"], partition_bytes=1_000)
    assert read_all(source, "count") == [one for one in table()["count"].to_pylist() if one != 3]


def test_missing_file_raises(tmp_path: Path) -> None:
    source = as_source(pds.dataset(parquet(tmp_path)), partition_bytes=1)
    (tmp_path / "rows.parquet").unlink()
    with pytest.raises(ConfigError, match="rows.parquet.* cannot be read: .*create the dataset again"):
        source.read(1, ["city"])


def test_types_differing_between_batches() -> None:
    def rows() -> Iterator[dict[str, Any]]:
        for i in range(700):
            yield {"a": i if i < 300 else i + 0.5, "b": None if i < 600 else "x"}

    source = as_source(datasets.IterableDataset.from_generator(rows), partition_bytes=2_000)
    assert source.npartitions > 2
    assert source.schema.types == [pa.float64(), pa.string()]
    assert read_all(source, "a") == [float(i) if i < 300 else i + 0.5 for i in range(700)]
    assert read_all(source, "b") == [None] * 600 + ["x"] * 100
    mixed = datasets.IterableDataset.from_generator(lambda: ({"a": 1 if i < 300 else "x"} for i in range(700)))
    with pytest.raises(ColumnError, match="rows of a IterableDataset cannot be read: .*Field a has incompatible types"):
        as_source(mixed)
    with pytest.raises(ConfigError, match="contains rows"):
        as_source(datasets.IterableDataset.from_generator(lambda: iter(())))


@pytest.mark.parametrize("make", [table, lambda: reader(table()), lambda: pds.dataset([table()])])
def test_missing_and_duplicate_columns_raise(make: Callable[[], Any]) -> None:
    with pytest.raises(ColumnError, match=r'column "citty" is not in the data\. Did you mean "city"'):
        as_source(make(), columns=["citty"])
    twice = pa.table([[1], [2], [3]], names=["a", "a", "b"])
    for frame in (twice, reader(twice)):
        with pytest.raises(ColumnError, match='2 columns are named "a"'):
            as_source(frame)


def test_stream_errors_propagate() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from table().to_batches(max_chunksize=100)[:2]
        raise OSError("the line is dead")

    with pytest.raises(OSError, match="the line is dead"):
        as_source(pa.RecordBatchReader.from_batches(table().schema, batches()))


@pytest.mark.parametrize(
    "batch",
    [
        {"a": pa.array([1]), "b": pa.array([2.0])},
        {"a": pa.array([1.0]), "b": pa.array(["x"], pa.large_string())},
        {"b": pa.array(["x"]), "a": pa.array([1.0])},
        {"a": pa.array([1.0])},
    ],
)
def test_batch_with_wrong_schema_raises(batch: dict[str, pa.Array]) -> None:
    schema = pa.schema([("a", pa.float64()), ("b", pa.string())])
    good = pa.record_batch({"a": [0.5], "b": ["y"]})
    with pytest.raises(
        ColumnError, match="the rows of a RecordBatchReader cannot be read: Schema at index 0 was different"
    ):
        as_source(pa.RecordBatchReader.from_batches(schema, iter([good, pa.record_batch(batch)])))


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("kind", [pl.Int128, pl.UInt128])
@pytest.mark.parametrize("largest", [5, 2**100, 2**127 - 1])
def test_int128_columns(kind: Any, largest: int, lazy: bool) -> None:
    frame = pl.DataFrame({"a": pl.Series([1, None, largest], dtype=kind), "b": ["x", "y", "z"]})
    rows = frame.lazy() if lazy else frame
    features = {"n": dp.Number(column="a", normalization="minmax"), "c": dp.Category(column="a")}
    prep = dp.Preprocessor(features).fit(rows)
    assert np.asarray(prep.encode(rows)["n"]).tolist() == [0.0, 0.5, 1.0]
    assert {"1", str(largest)} <= {str(token) for token in prep.learned_["c"].vocabulary.tokens}


@pytest.mark.parametrize("kind", [pl.List(pl.Int128), pl.Struct({"k": pl.UInt128}), pl.Object])
def test_types_unsupported_by_arrow_raise_unless_excluded(kind: Any) -> None:
    frame = pl.DataFrame({"a": pl.Series([None], dtype=kind), "b": [1]})
    for rows in (frame, frame.lazy()):
        with pytest.raises(ColumnError, match='column "a" of a polars .*Frame has type .*: cast it'):
            as_source(rows)
    assert as_source(frame, columns=["b"]).columns == ["b"]


def test_delta_lake_folder_raises(tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path), table())
    deltalake.DeltaTable(str(tmp_path)).delete("count < 10")
    with pytest.raises(ConfigError, match=r"is a Delta Lake table.* pass deltalake\.DeltaTable\(path\)"):
        as_source(tmp_path)


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["a", "b", None], pa.string_view()),
        pa.array(["a", "b", None], pa.large_string()),
        pa.array(["a", "b", None]).dictionary_encode(),
        pa.array(["a", "b", None]).cast(pa.dictionary(pa.uint8(), pa.large_string())),
        pa.RunEndEncodedArray.from_arrays([1, 2, 3], pa.array(["a", "b", None])),
        pa.ExtensionArray.from_storage(pa.json_(), pa.array(["a", "b", None])),
    ],
)
def test_text_types_encode_identically(array: pa.Array) -> None:
    plain = dp.Preprocessor({"a": "category"}).fit(pa.table({"a": pa.array(["a", "b", None])}))
    for frame in (pa.table({"a": array}), reader(pa.table({"a": array}), 2)):
        assert dp.Preprocessor({"a": "category"}).fit(frame).to_dict() == plain.to_dict()


@pytest.mark.parametrize(
    "array",
    [
        pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
        pa.array([{"a": 1}, None]),
        pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
    ],
)
@pytest.mark.parametrize("kind", ["number", "category", "set", "vector", "text", "date", "image"])
def test_unsupported_types_raise(array: pa.Array, kind: str) -> None:
    with pytest.raises(ColumnError, match='column "a".* (map|struct|month_day_nano_interval)'):
        dp.Preprocessor({"a": kind}).fit(pa.table({"a": array}))


def test_dict_preserves_integers_and_arrays() -> None:
    columns = {
        "id": [2**62 + 1, None],
        "vector": np.eye(2),
        "text": pl.Series(["a", None]),
        "time": pd.Series([pd.Timestamp(0), None], index=[5, 6]),
        "plain": np.array([1.5, np.nan]),
        "arrow": pa.array([True, None]),
    }
    found = as_source(columns).read(0, list(columns)).to_pylist()
    assert found[0] == {
        "id": 2**62 + 1,
        "vector": [1.0, 0.0],
        "text": "a",
        "time": dt.datetime(1970, 1, 1),
        "plain": 1.5,
        "arrow": True,
    }
    assert {name: found[1][name] for name in ("id", "text", "time", "plain", "arrow")} == dict.fromkeys(
        ("id", "text", "time", "plain", "arrow")
    )
    assert as_source([{"a": 1}, {"b": "x"}]).read(0, ["a", "b"]).to_pylist() == [
        {"a": 1, "b": None},
        {"a": None, "b": "x"},
    ]


def test_stream_and_predict_on_arrow_data() -> None:
    prep = dp.Preprocessor({"price": "number", "sold": "binary"}, targets="sold", split=None).fit(table())
    for frame in (reader(table()), table(), pl.from_arrow(table()).lazy()):
        rows = sum(len(target) for _, target in prep.stream(frame, 100, shuffle=False))
        assert rows == ROWS
    found = [prep.predict(frame, lambda batch: batch["price"], ids="note") for frame in (table(), reader(table()))]
    pd.testing.assert_frame_equal(found[0], found[1].compute().reset_index(drop=True))


def test_encode_returns_arrow_compatible_arrays() -> None:
    prep = dp.Preprocessor({"price": "number", "tags": "set"}).fit(table())
    for frame in (table(), pl.from_arrow(table()), table().combine_chunks().to_batches()[0]):
        arrays = prep.encode(frame)
        for found in (pa.table(arrays), pl.DataFrame(arrays).to_arrow()):
            np.testing.assert_array_equal(found["price"].to_numpy(), arrays["price"])
            assert found["tags"].to_pylist() == arrays["tags"].tolist()
        assert len(prep.decode(arrays)) == ROWS
        with pytest.raises(ConfigError, match="its rows are encoded already"):
            prep.encode(arrays)


@pytest.mark.parametrize("container", ["pandas", "polars"])
def test_transform_returns_frames_for_arrow(container: Any) -> None:
    prep = dp.Preprocessor({"city": "category", "price": "number"}).set_output(transform=container).fit(table())
    feature = dp.Category().set_output(transform=container)
    expected = prep.transform(table().to_pandas())
    for frame in (table(), pl.from_arrow(table())):
        assert expected.equals(prep.transform(frame))
        cities = frame.select(["city"])
        assert feature.fit(cities).transform(cities)["city"].to_list() == expected["city"].to_list()
        assert feature.feature_names_in_.tolist() == ["city"]
