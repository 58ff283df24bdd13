"""Several datasets opened as one."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import dask
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import daskprep as dp
from daskprep.errors import ConfigError, CorruptDatasetError

FEATURES = {
    "price": dp.Number(normalization=None),
    "city": "category",
    "tags": "set",
    "review": dp.Sequence(add_start_stop=True),
    "sold": "binary",
}
ROWS = (403, 90, 151)


def frame(rows, first=0):
    rng = np.random.default_rng(first)
    return pd.DataFrame(
        {
            "price": np.arange(first, first + rows) * 1.0,
            "city": rng.choice(["Rome", "Oslo", "Bern"], rows),
            "tags": rng.choice(["a b", "b", "c d e"], rows),
            "review": [" ".join(rng.choice(list("abc"), length)) for length in rng.integers(0, 9, rows)],
            "sold": rng.random(rows) < 0.2,
        }
    )


FRAMES = [frame(rows, sum(ROWS[:place])) for place, rows in enumerate(ROWS)]


@pytest.fixture(scope="module")
def prep():
    return dp.Preprocessor(FEATURES, split=dp.RandomSplit((0.7, 0.0, 0.3))).fit(pd.concat(FRAMES))


def test_datasets_are_opened_and_loaded_without_dask(prep, tmp_path):
    prep.write(FRAMES[0], tmp_path / "a.dp")
    code = "import sys, daskprep as dp; next(iter(dp.open_dataset('a.dp')['train'].loader(8))); "
    code += "assert not {'dask', 'distributed', 'sklearn', 'zarr'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


@pytest.fixture(scope="module")
def paths(prep, tmp_path_factory):
    """Three datasets with different block sizes, the second without a test split."""
    folder = tmp_path_factory.mktemp("joined")
    paths = [folder / f"{name}.dp" for name in "abc"]
    for path, table, size, split in zip(paths, FRAMES, (16, 64, 7), (True, False, True), strict=True):
        one = dp.Preprocessor.from_dict(prep.to_dict())
        one.split = prep.split if split else None
        one.write(table, path, block_rows=size)
    return paths


@pytest.fixture
def joined(paths):
    return dp.open_dataset(paths)


def concatenated(paths, split="train", columns=None):
    """Return the rows of all datasets, one after the other."""
    found = [dp.open_dataset(path) for path in paths]
    read = [one[split].read(columns) for one in found if split in one.splits]
    return {name: np.concatenate([one[name] for one in read]) for name in read[0]}


def assert_same(found, expected):
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("split", ["train", "test"])
def test_rows_are_in_order_of_datasets(joined, paths, split):
    expected, rows = concatenated(paths, split), joined[split]
    assert list(joined.splits) == ["train", "test"]
    assert len(rows) == len(expected["price"])
    assert_same(rows.read(), expected)
    assert_same(rows.read(start=200, stop=-40), {name: array[200:-40] for name, array in expected.items()})
    index = np.random.default_rng(0).permutation(len(rows))[:100]
    assert_same(rows[index], {name: array[index] for name, array in expected.items()})
    assert rows[-1]["price"] == expected["price"][-1]
    lazy = rows.to_dask(["tags", "price", "row_id"])
    assert_same(dict(zip(lazy, dask.compute(*lazy.values()), strict=True)), concatenated(paths, split, list(lazy)))
    np.testing.assert_array_equal(rows.table(["price"])["price"], expected["price"])
    assert [row["price"] for row in rows] == expected["price"].tolist()
    np.testing.assert_array_equal(rows.to_xarray()["price"].values, expected["price"])


def test_learned_state_equals_each_dataset(joined, paths, prep):
    one = dp.open_dataset(paths[0])
    assert joined.learned == one.learned
    assert joined["train"].num_embeddings("city") == one["train"].num_embeddings("city")
    assert joined.decode(joined["train"].read("city", stop=3))["city"].isin(["Rome", "Oslo", "Bern"]).all()
    assert dp.Preprocessor.from_dataset(joined).learned_ == prep.learned_
    assert_same(pickle.loads(pickle.dumps(joined))["test"].read(), concatenated(paths, "test"))
    rows = sum(map(len, joined.splits.values()))
    assert f"{', '.join(map(str, paths))}: {rows} rows" in repr(joined)
    assert all(str(path) in joined["train"]._repr_html_() for path in paths)


OPTIONS = [{}, {"shuffle": False}, {"prefetch_size": 0}, {"balance": dp.Oversample("sold", ratio=1.0)}]


@pytest.mark.parametrize("options", OPTIONS)
def test_loader_yields_rows_of_all_datasets(joined, paths, options):
    expected = concatenated(paths)
    order = np.argsort(expected["price"])
    loader = joined["train"].loader(32, **options)
    for _ in range(2):
        batches = list(loader)
        loader.audit()
        price = np.concatenate([batch["price"] for batch in batches])
        assert set(price) == set(expected["price"])
        assert len(price) == len(order) or "balance" in options
        places = order[np.searchsorted(expected["price"][order], price)]
        np.testing.assert_array_equal(np.concatenate([batch["city"] for batch in batches]), expected["city"][places])
        tags = joined["train"].loader(32, columns=["tags"], expand=False, shuffle=False)
        np.testing.assert_array_equal(torch.cat([batch["tags"] for batch in tags]), expected["tags"])
    if "shuffle" in options:
        np.testing.assert_array_equal(price, expected["price"])


def test_ranks_share_all_rows(joined, paths):
    ranks = [joined["train"].loader(32, rank=rank, world_size=4) for rank in range(4)]
    price = np.concatenate([batch["price"] for loader in ranks for batch in loader])
    np.testing.assert_array_equal(np.sort(price), np.sort(concatenated(paths)["price"]))


def test_documents_are_packed_across_datasets(joined, paths):
    ids = concatenated(paths)["review"]
    loader = joined["train"].loader(4, shuffle=False, pack=dp.Packing(32, "review"))
    packed = torch.cat([batch["review"].ravel() for batch in loader])
    np.testing.assert_array_equal(packed[packed != 0], ids[ids != 0])
    assert len(loader) == len(list(loader))


def test_state_resumes_and_depends_on_all_datasets(joined, paths):
    loader = joined["train"].loader(32)
    batches = iter(loader)
    prices = [next(batches)["price"] for _ in range(5)]
    batches.close()
    state = json.loads(json.dumps(loader.state_dict()))
    again = dp.open_dataset(paths)["train"].loader(32)
    again.load_state_dict(state)
    prices += [batch["price"] for batch in again]
    np.testing.assert_array_equal(np.sort(np.concatenate(prices)), np.sort(concatenated(paths)["price"]))
    for others in (paths[:2], paths[::-1]):
        with pytest.raises(ConfigError, match="digest"):
            dp.open_dataset(others)["train"].loader(32).load_state_dict(state)


def test_images_are_decoded_and_cached_per_dataset(tmp_path):
    images = np.random.default_rng(0).integers(0, 255, (50, 8, 8, 3)).astype(np.uint8)
    table = pd.DataFrame({"photo": list(images), "price": np.arange(50)})
    features = {"photo": dp.Image(height=8, width=8, num_channels=3, mode="lazy_cached", pack=True), "price": "number"}
    prep = dp.Preprocessor(features).fit(table)
    paths = [tmp_path / "a.dp", tmp_path / "b.dp"]
    for path, rows, size in zip(paths, (slice(0, 30), slice(30, 50)), (8, 4), strict=True):
        prep.write(table[rows], path, block_rows=size)
    joined = dp.open_dataset(paths)
    for _ in range(2):
        loader = joined["train"].loader(10, shuffle=False, expand=False)
        found = torch.cat([batch["photo"] for batch in loader]).numpy()
        np.testing.assert_array_equal(found, joined["train"].read("photo")["photo"])
    assert loader.stats()["decoded"] == 0
    assert all(one["train"].cache("photo").complete for one in joined.datasets)
    joined.clear_cache()
    joined.cache_media(progress=False)
    assert all(one["train"].cache("photo").complete for one in joined.datasets)


def test_damage_names_dataset(prep, tmp_path):
    paths = [tmp_path / "a.dp", tmp_path / "b.dp"]
    for path, table in zip(paths, FRAMES, strict=False):
        prep.write(table, path)
    joined = dp.open_dataset(paths)
    joined.verify()
    next(paths[1].glob("*/train/table/*.parquet")).write_bytes(b"")
    assert joined.damaged()[0].file.startswith(str(paths[1]))
    with pytest.raises(CorruptDatasetError, match=r"b\.dp/.*parquet has 0 bytes"):
        joined.verify()


CHANGES = [
    ({"city": dp.Category(most_common=1)}, r"features\.city\.params\.most_common is None, not 1"),
    ({"city": "set"}, r"features\.city\.type is 'category', not 'set'"),
    ({"more": dp.Number(column="price")}, r"features\.more is None, not"),
]


@pytest.mark.parametrize(("features", "words"), CHANGES)
def test_different_preprocessors_error_names_difference(paths, tmp_path, features, words):
    other = dp.Preprocessor(FEATURES | features).fit_write(FRAMES[0], tmp_path / "other.dp")
    with pytest.raises(ConfigError, match=rf"different Preprocessors wrote them \({words}"):
        dp.open_dataset([paths[0], other.url])


def test_different_fitted_state_raises(paths, tmp_path):
    other = dp.Preprocessor(FEATURES).fit_write(FRAMES[0], tmp_path / "other.dp")
    with pytest.raises(ConfigError, match=r"wrote them \(features\.price\.learned\."):
        dp.open_dataset([paths[0], other.url])


@pytest.mark.parametrize("columns", [None, ["price"], ["price", "row_id"]])
def test_to_arrow_yields_rows_of_all_datasets(joined, paths, columns):
    expected = [dp.open_dataset(path)["train"].to_arrow(columns).read_all() for path in paths]
    assert joined["train"].to_arrow(columns).read_all().equals(pa.concat_tables(expected))
    assert pa.table(joined["train"]).num_rows == len(joined["train"])


def test_reports_and_rejects_cover_all_datasets(joined):
    report = joined.report()
    assert report.to_dict()["dataset"]["rows"] == {name: len(split) for name, split in joined.splits.items()}
    assert "<svg" in report.html
    assert joined.plot("price").axes
    rejects = joined.rejects().to_pylist()
    expected = [{"dataset": i, **row} for i, one in enumerate(joined.datasets) for row in one.rejects().to_pylist()]
    assert rejects == expected


def test_arrays_of_several_datasets_raise(joined):
    with pytest.raises(ConfigError, match=r"arrays needs a single dataset, not 3 \(.*: use one of dataset\.datasets"):
        _ = joined["train"].arrays


def test_list_of_one_dataset(paths):
    assert dp.open_dataset(paths[:1]).digest == dp.open_dataset(paths[0]).digest
    with pytest.raises(ConfigError, match="the list of datasets is empty"):
        dp.open_dataset([])
