"""Rows passed by split equal one frame with a split column."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.dataset.writing import job
from daskprep.errors import ColumnError, ConfigError
from daskprep.sources.delimited import DelimitedFragment

from .conftest import make_table, tree

pytestmark = pytest.mark.filterwarnings("ignore:column .* cell.* cannot be read:UserWarning")
SIZES = {"train": 300, "validation": 40, "test": 60}
Frames = dict[str, Any]


@pytest.fixture
def tables() -> dict[str, pd.DataFrame]:
    """Return rows for each split, without empty text, which is missing in CSV."""
    made = {name: make_table(rows, seed).drop(columns="when") for seed, (name, rows) in enumerate(SIZES.items())}
    return {name: table.replace("", "nothing") for name, table in made.items()}


@pytest.fixture
def mixed(tables: dict[str, pd.DataFrame], tmp_path: Path) -> Frames:
    """Return a Parquet file, a frame and a CSV file, not in the order of the splits."""
    train = tables["train"]
    train.astype({"price": str}).mask(train.isna()).to_parquet(tmp_path / "train.parquet", row_group_size=70)
    tables["test"].to_csv(tmp_path / "test.csv", index=False)
    return {"test": tmp_path / "test.csv", "train": tmp_path / "train.parquet", "validation": tables["validation"]}


@pytest.fixture
def files(mixed: Frames, tables: dict[str, pd.DataFrame], tmp_path: Path) -> Frames:
    tables["validation"].to_csv(tmp_path / "validation.csv", index=False)
    return {**mixed, "validation": str(tmp_path / "validation.csv")}


def concatenated(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([table.assign(split=name) for name, table in tables.items()], ignore_index=True)


@pytest.fixture
def make(prep: Callable[..., dp.Preprocessor]) -> Callable[..., dp.Preprocessor]:
    def made(**options: Any) -> dp.Preprocessor:
        one = prep(**options)
        return one.set_params(features={key: feature for key, feature in one.features.items() if key != "when"})

    return made


def as_dask(tables: dict[str, pd.DataFrame]) -> Frames:
    return {name: dd.from_pandas(table, npartitions=3, sort=False) for name, table in tables.items()}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"balance": dp.Oversample("sold", ratio=0.9)}, {"fit_on": "all"}])
@pytest.mark.parametrize("shuffle", [False, True])
def test_separate_splits_have_bytes_of_split_column(make, tables, mixed, tmp_path, options, shuffle) -> None:
    expected = make(split=dp.FixedSplit(), **options).fit_write(concatenated(tables), tmp_path / "a", shuffle=shuffle)
    wanted = tree(Path(expected.url) / expected.version)
    for number, rows_by_split in enumerate((tables, mixed, as_dask(tables))):
        found = make(**options).fit_write(rows_by_split, tmp_path / str(number), shuffle=shuffle)
        assert {name: len(split) for name, split in found.splits.items()}.keys() == SIZES.keys()
        assert tree(Path(found.url) / found.version) == wanted


def test_fit_assign_and_stream_use_separate_splits(make, tables, mixed) -> None:
    prep, expected = make().fit(mixed), make(split=dp.FixedSplit()).fit(concatenated(tables))
    assert prep.learned_ == expected.learned_
    assert prep.split is None
    assert np.array_equal(prep.assign(mixed)["split"], expected.assign(concatenated(tables))["split"])
    with pytest.warns(UserWarning, match="rows are left out"):
        rows = sum(len(batch["city"]) for batch in prep.stream(mixed, split="test", batch_size=16))
    assert rows == int(make_table(60, 2)["price"].pipe(pd.to_numeric, errors="coerce").notna().sum())
    assert len(prep.encode(mixed)["city"]) == sum(SIZES.values())


def test_auto_features_skip_split_column(tables, tmp_path) -> None:
    prep = dp.Preprocessor("auto", targets="sold")
    prep.fit_write({name: table[["city", "sold", "review"]] for name, table in tables.items()}, tmp_path / "a")
    assert list(prep.features_) == ["city", "sold", "review"]
    assert prep.inferred_.skipped == {"split": "contains the split of each row"}


def test_files_by_split_are_recognized_and_write_resumes(make, files, tmp_path, monkeypatch) -> None:
    features = make().features
    del features["walk"]  # fills across partitions reread rows
    expected = dp.Preprocessor(features).fit_write(files, tmp_path / "concatenated")
    with monkeypatch.context() as patch:
        patch.setattr(job, "commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            dp.Preprocessor(features).fit_write(files, tmp_path / "a")
    monkeypatch.setattr(DelimitedFragment, "read_stored", lambda *_: pytest.fail("was read again"))
    dataset = dp.Preprocessor(features).fit_write(files, tmp_path / "a")
    assert tree(tmp_path / "a") == tree(tmp_path / "concatenated")
    assert dp.Preprocessor(features).fit_write(files, tmp_path / "a").version == dataset.version == expected.version


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("sample", [None, 0.5])
def test_repair_dataset_of_separate_splits(make, files, tmp_path, trusted, sample) -> None:
    dataset = make(sample=sample).fit_write(files, tmp_path / "a")
    before = tree(tmp_path / "a")
    for name in ("train", "test"):
        (tmp_path / "a" / dataset.version / name / "table" / "part-00000.parquet").write_bytes(b"")
    dp.repair(tmp_path / "a", None if trusted else files, trusted=trusted)
    assert tree(tmp_path / "a") == before


def test_memory_limit_applies_to_every_split(make, mixed, tmp_path) -> None:
    assert make().fit_write(mixed, tmp_path / "a", memory="3GB").splits.keys() == SIZES.keys()
    with pytest.raises(ConfigError, match='split "train": memory=1000 is not enough'):
        make().fit_write(mixed, tmp_path / "b", memory=1000)


def test_separate_splits_with_preprocessor_split_raise(make, tables) -> None:
    with pytest.raises(ConfigError, match=r"already split, and HashSplit\(column='city'\).*split=None"):
        make(split=dp.HashSplit("city")).fit(tables)
    with pytest.raises(ConfigError, match="already split"):
        make(split=dp.HashSplit("city")).fit_write(tables, "a")
    for same in (dp.FixedSplit(), dp.RandomSplit()):  # the split column, and the default of a configuration
        assert make(split=same).fit(tables).learned_ == make().fit(tables).learned_


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda one: {"val": one["train"], "train": one["train"]}, ConfigError, "no split 'val'.*validation"),
        (lambda one: {**one, "test": one["test"].drop(columns="city")}, ColumnError, 'split "test": column "city"'),
        (lambda one: {**one, "test": 3}, ConfigError, 'split "test": a int cannot be read as rows'),
        (lambda one: {**one, "test": as_dask(one)["test"]}, ConfigError, 'split "test" is a Dask frame.*all'),
        (lambda one: {"test": one["test"]}, ColumnError, r'no training rows.*fit_on="all"'),
        (lambda one: {**one, "train": one["train"].iloc[:0]}, ColumnError, r'no training rows.*fit_on="all"'),
    ],
)
def test_invalid_separate_splits_raise(make, tables, tmp_path, change, error, message) -> None:
    with pytest.raises(error, match=message):
        make().fit_write(change(tables), tmp_path / "a")


def test_split_without_rows_is_dropped(make, tables, tmp_path) -> None:
    dataset = make().fit_write({**tables, "test": tables["test"].iloc[:0]}, tmp_path / "a")
    assert list(dataset.splits) == ["train", "validation"]
    assert list(make().fit(tables).write({"test": tables["test"]}, tmp_path / "b").splits) == ["test"]


def test_targets_missing_in_one_split_raise(make, tables, tmp_path) -> None:
    prep = make(targets="sold").fit(tables)
    unlabelled = {name: table.drop(columns="sold") for name, table in tables.items()}
    assert "sold" not in prep.write(unlabelled, tmp_path / "a")["test"].columns
    with pytest.raises(ColumnError, match='split "test": column "sold"'):
        prep.write({**tables, "test": unlabelled["test"]}, tmp_path / "b")


def test_predict_with_split_as_id(make, files) -> None:
    prep = dp.Preprocessor({"city": "category", "sold": "binary"}, targets="sold").fit(files)
    found = prep.predict(files, lambda batch: batch["city"] / 9, ids=["split"]).compute()
    assert found["split"].value_counts().to_dict() == SIZES
