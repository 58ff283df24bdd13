"""Hugging Face datasets as sources."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import dask
import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import daskprep as dp
from daskprep.columns.deferred.cells import convert_media_column
from daskprep.errors import ColumnError
from daskprep.sources import as_source
from daskprep.sources.datasets import HuggingFaceSource

ROWS = 400
FEATURES = datasets.Features(
    {
        "price": datasets.Value("float64"),
        "city": datasets.Value("large_string"),
        "label": datasets.ClassLabel(names=["no", "yes"]),
        "photo": datasets.Image(),
        "grid": datasets.Array2D((2, 2), "int32"),
    }
)


@pytest.fixture(scope="module", autouse=True)
def _no_progress_bars():
    # Progress bars of datasets start a monitor thread.
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def rows() -> dict[str, list[Any]]:
    rng = np.random.default_rng(1)
    return {
        "price": [None, *rng.lognormal(size=ROWS - 1)],
        "city": rng.choice(["Rome", "Oslo", "Bonn"], ROWS).tolist(),
        "label": [i % 2 for i in range(ROWS)],
        "photo": [{"bytes": b"no picture %d" % i, "path": None} for i in range(ROWS - 1)] + [None],
        "grid": [[[i, 1], [2, 3]] for i in range(ROWS)],
    }


def in_memory() -> datasets.Dataset:
    return datasets.Dataset.from_dict(rows(), features=FEATURES)


def on_disk(folder: Path) -> datasets.Dataset:
    in_memory().save_to_disk(str(folder / "saved"), num_shards=3)
    return datasets.load_from_disk(str(folder / "saved"))


def read_table(source: Any, columns: list[str]) -> pa.Table:
    return pa.concat_tables([source.read(i, columns) for i in range(source.npartitions)])


def test_columns_keep_stored_types() -> None:
    source = as_source(in_memory())
    assert isinstance(source, HuggingFaceSource)
    assert source.columns == list(FEATURES)
    table = source.read(0, ["grid", "photo", "label", "city"])
    photo = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    assert table.schema.types == [pa.list_(pa.list_(pa.int32())), photo, pa.int64(), pa.string()]
    expected = rows()
    for name in table.column_names:
        assert table[name].to_pylist() == expected[name]
    assert convert_media_column(table["photo"], "image").field("bytes")[1].as_py() == b"no picture 1"


def test_audio_is_not_decoded() -> None:
    cells = pa.array([{"bytes": b"RIFF", "path": None}, {"bytes": None, "path": "a.wav"}])
    info = datasets.DatasetInfo(features=datasets.Features({"sound": datasets.Audio(sampling_rate=8000)}))
    read = as_source(datasets.Dataset(pa.table({"sound": cells}), info=info)).read(0, ["sound"])
    assert convert_media_column(read["sound"], "audio").field("path").to_pylist() == [None, "a.wav"]


@pytest.mark.parametrize("stored", [False, True])
def test_row_order_is_preserved(stored: bool, tmp_path: Path) -> None:
    dataset = on_disk(tmp_path) if stored else in_memory()
    for chosen in (dataset.shuffle(seed=3), dataset.select([5, 3, 3, 399]), dataset.select(range(50, 90))):
        source = HuggingFaceSource(chosen, None, 200, None)
        assert source.npartitions > 1
        assert sum(source.row_counts) == len(chosen)
        table = read_table(source, ["photo", "price"])
        frame = chosen.with_format("pandas")[:]
        assert table["photo"].to_pylist() == [None if pd.isna(cell) else cell for cell in frame["photo"]]
        np.testing.assert_array_equal(table["price"].to_numpy(), frame["price"])
        assert table["photo"].num_chunks == source.npartitions


def test_dataset_format_is_ignored() -> None:
    dataset = in_memory()
    for other in (dataset.with_format("numpy", columns=["price"]), dataset.with_transform(lambda batch: {"x": [1]})):
        source = as_source(other)
        assert source.columns == list(FEATURES)
        assert source.read(0, ["label"]).equals(as_source(dataset).read(0, ["label"]))


def test_partitions_of_media_have_fewer_rows() -> None:
    numbers = list(range(3_000))
    cells = [{"bytes": None, "path": "a.png"}] * 3_000
    features = datasets.Features({"n": datasets.Value("int64"), "photo": datasets.Image()})
    dataset = datasets.Dataset.from_dict({"n": numbers, "photo": cells}, features=features)
    assert as_source(dataset).row_counts == [1_024, 1_024, 952]
    assert as_source(dataset, columns=["n"]).row_counts == [3_000]
    assert as_source(dataset, columns=["n"], partition_bytes=8_000).row_counts == [1_000] * 3


def test_fragments_have_rows_and_bytes() -> None:
    source = as_source(in_memory(), columns=["grid"])
    assert [fragment.rows for fragment in source.fragments] == [ROWS]
    assert source.fragments[0].nbytes == pytest.approx(in_memory().select_columns(["grid"]).data.nbytes, rel=0.01)


def test_empty_selection_keeps_row_count() -> None:
    assert as_source(in_memory()).read(0, []).num_rows == ROWS
    assert as_source(in_memory(), columns=[]).read(0, []).num_rows == ROWS
    nothing = as_source(in_memory().select([]))
    assert nothing.row_counts == [0]
    assert nothing.read(0, ["city", "photo"]).num_rows == 0


def test_datasets_on_disk_pickle_as_paths(tmp_path: Path) -> None:
    dataset = on_disk(tmp_path)
    for chosen in (dataset, dataset.shuffle(seed=3), dataset.select(range(50, 90))):
        source = as_source(chosen)
        assert not source.in_memory
        sent = pickle.dumps(source.fragments[0])
        assert len(sent) < 5_000
        assert pickle.loads(sent).read(["city"]).equals(source.read(0, ["city"]))


def test_datasets_or_indices_in_memory_are_in_memory_sources(tmp_path: Path) -> None:
    dataset = on_disk(tmp_path)
    both = datasets.concatenate_datasets([dataset, in_memory()])
    assert [as_source(one).in_memory for one in (in_memory(), dataset.select([3, 1]), both)] == [True] * 3


@pytest.mark.parametrize("stored", [False, True])
def test_fit_and_encode_equal_frame(stored: bool, tmp_path: Path) -> None:
    dataset = (on_disk(tmp_path) if stored else in_memory()).shuffle(seed=3)
    frame = dataset.select_columns(["price", "city", "label"]).to_pandas()
    frame["label"] = frame["label"].map({0: "no", 1: "yes"})
    features = {"price": "number", "city": "category", "label": "binary"}
    of_frame, of_dataset = (dp.Preprocessor(features, split=None).fit(one) for one in (frame, dataset))
    assert of_dataset.to_dict() == of_frame.to_dict()
    expected = of_frame.encode(frame)
    for name, array in dask.compute(of_dataset.encode(dataset))[0].items():
        np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize("stored", [False, True])
def test_fit_write_writes_every_row(stored: bool, tmp_path: Path) -> None:
    dataset = (on_disk(tmp_path) if stored else in_memory()).shuffle(seed=3)
    prep = dp.Preprocessor({"price": dp.Number(missing_value_strategy="fill_with_mean"), "label": "binary"})
    written = prep.fit_write(dataset, tmp_path / "out", progress=False, memory="4GB")
    assert sum(len(written[split]) for split in written) == ROWS


@pytest.mark.slow
@pytest.mark.cluster
def test_cluster_reads_datasets_on_disk_and_in_memory(cluster: Any, tmp_path: Path) -> None:
    dataset = on_disk(tmp_path).shuffle(seed=3)
    expected = None
    for one in (dataset, dataset.select(range(ROWS)), dataset.flatten_indices(keep_in_memory=True)):
        source = HuggingFaceSource(one, None, 2_000, None)
        prep = dp.Preprocessor({"price": "number", "city": "category"}, split=None).fit(source)
        encoded = dask.compute(prep.encode(source))[0]
        expected = expected or encoded
        for name, array in encoded.items():
            np.testing.assert_array_equal(array, expected[name])


def test_missing_column_raises() -> None:
    with pytest.raises(ColumnError, match=r'column "citty" is not in the data\. Did you mean "city"'):
        as_source(in_memory(), columns=["citty"])
    with pytest.raises(ColumnError, match='column "x" is not in the data'):
        as_source(in_memory()).read(0, ["x"])


def test_unsupported_column_raises() -> None:
    with pytest.raises(ColumnError, match='column "photo": holds values of type struct'):
        dp.Preprocessor({"photo": "category"}).fit(in_memory())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda one: datasets.DatasetDict(dev=one), r'DatasetDict is not a table of rows: .*dataset\["train"\]'),
        (
            lambda one: datasets.IterableDatasetDict(dev=one.to_iterable_dataset()),
            "IterableDatasetDict is not a table of rows: .*one of its splits",
        ),
    ],
)
def test_dataset_dict_with_unknown_split_raises(make: Any, message: str) -> None:
    with pytest.raises(ColumnError, match=message):
        as_source(make(in_memory()))


def test_dataset_dict_by_split_is_one_source() -> None:
    dataset = in_memory()
    source = as_source(datasets.DatasetDict(test=dataset.select(range(3)), train=dataset), columns=["city"])
    assert source.row_counts == [400, 3]
    assert source.read(1, ["split", "city"])["split"].to_pylist() == ["test"] * 3


def test_repr_shows_size() -> None:
    assert repr(as_source(in_memory())) == "<HuggingFaceSource: 400 rows, 5 columns>"


def test_requested_partitions() -> None:
    dataset = datasets.Dataset.from_dict({"a": list(range(10))})
    assert as_source(dataset, partitions=5).row_counts == [2] * 5
