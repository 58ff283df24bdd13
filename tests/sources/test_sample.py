"""A sample replaces all rows: exact, seeded, the same for any partitioning."""

from __future__ import annotations

import json
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError
from daskprep.sources.split.rows import sample_rows

ROWS = 230
FEATURES = {"city": "category", "price": dp.Number(normalization="zscore", missing_value_strategy="drop_row")}


@pytest.fixture
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    price = pd.Series(rng.normal(size=ROWS)).mask(rng.random(ROWS) < 0.1)
    return pd.DataFrame({"city": rng.choice(["Rome", "Oslo", "Bern"], ROWS), "price": price})


def taken(rows: int, sample: float, seed: int = 42) -> np.ndarray:
    return np.flatnonzero(sample_rows([rows], sample, seed)[0].is_train(rows))


def files(folder: Path) -> dict[str, bytes]:
    found = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    return {name: data for name, data in found.items() if not name.endswith("metadata.json")}


@pytest.mark.parametrize(("sample", "rows"), [(0.1, 23), (0.35, 80), (50, 50), (1.0, ROWS), (10**9, ROWS)])
def test_sample_size_is_exact_and_smaller_samples_are_subsets(sample: float, rows: int) -> None:
    assert len(taken(ROWS, sample)) == rows
    assert set(taken(ROWS, 7)) <= set(taken(ROWS, sample))
    whole = sample_rows([ROWS], sample, 1)[0].is_train(ROWS)
    parts = sample_rows([100, 0, 130], sample, 1)
    assert np.array_equal(np.concatenate([one.is_train(len(one.ranks)) for one in parts]), whole)


def test_sample_share_is_decimal_and_stable_between_releases() -> None:
    assert taken(10, 0.35, 5).tolist() == [1, 2, 4, 6]
    assert set(taken(10, 3, 5)) < set(taken(10, 0.35, 5))


def test_share_that_selects_no_rows_raises() -> None:
    with pytest.raises(ColumnError, match=r"sample=0\.05 of 10 rows is none: use a larger share"):
        sample_rows([4, 6, 0], 0.05, 1)
    assert [taken(0, sample).tolist() for sample in (0.5, 3)] == [[], []]


def test_seed_changes_the_sample() -> None:
    assert taken(ROWS, 20, 1).tolist() != taken(ROWS, 20, 2).tolist()


def test_dataset_of_a_sample_equals_dataset_of_its_rows(table, as_frame, tmp_path) -> None:
    split = dp.StratifiedSplit("city")
    expected = dp.Preprocessor(FEATURES, split=split).fit_write(table.iloc[taken(ROWS, 0.4)], tmp_path / "a")
    prep = dp.Preprocessor(FEATURES, split=split, sample=0.4)
    found = prep.fit_write(as_frame(table), tmp_path / "b")
    assert files(Path(found.url) / found.version) == files(Path(expected.url) / expected.version)
    assert prep.learned_ == prep.fit(as_frame(table)).learned_
    assert found.metadata["sample"] == 0.4
    assert dp.Preprocessor.from_dataset(found).sample == 0.4


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "rows.jsonl"])
def test_file_samples_do_not_depend_on_partitions(table, tmp_path, name) -> None:
    path = tmp_path / name
    if name.endswith("csv"):
        table.to_csv(path, index=False)
    elif name.endswith("parquet"):
        table.to_parquet(path, row_group_size=40)
    else:
        table.to_json(path, orient="records", lines=True, double_precision=15)
    prep = dp.Preprocessor(FEATURES, sample=60, sample_seed=3)
    expected = prep.fit_write(table, tmp_path / "a")
    for partition_bytes in (500, 10**6):
        found = prep.fit_write(dp.read_files(path, partition_bytes=partition_bytes), tmp_path / "b", overwrite=True)
        assert files(Path(found.url) / found.version) == files(Path(expected.url) / expected.version)


def test_assign_excludes_rows_outside_the_sample(table, as_frame) -> None:
    split = dp.RandomSplit(seed=1)
    prep = dp.Preprocessor(FEATURES, split=split, balance=dp.Undersample("city", ratio=1.0), sample=90)
    rows = taken(ROWS, 90)
    expected = dp.Preprocessor(FEATURES, split=split, balance=prep.balance).assign(table.iloc[rows])
    found = {name: np.asarray(array) for name, array in prep.assign(as_frame(table)).items()}
    for name, left_out in (("split", 255), ("repeats", 0)):
        whole = np.full(ROWS, left_out)
        whole[rows] = expected[name]
        assert np.array_equal(found[name], whole)


@pytest.mark.filterwarnings("ignore:.* rows are left out")
def test_stream_yields_the_sample_and_encode_all_rows(table, as_frame) -> None:
    prep = dp.Preprocessor({"city": "category"}, sample=0.5).fit(as_frame(table))
    expected = prep.encode(table.iloc[taken(ROWS, 0.5)])["city"]
    found = [batch["city"].numpy() for batch in prep.stream(as_frame(table), 50, shuffle=False)]
    assert np.array_equal(np.concatenate(found), expected)
    assert len(np.asarray(prep.encode(as_frame(table))["city"])) == ROWS


def test_sample_of_separate_splits_is_taken_from_all_rows(table, tmp_path) -> None:
    given = {"train": table[:150], "test": table[150:]}
    dataset = dp.Preprocessor({"city": "category"}, sample=40).fit_write(given, tmp_path / "a")
    rows = taken(ROWS, 40)
    assert {name: len(split) for name, split in dataset.splits.items()} == {
        "train": np.count_nonzero(rows < 150),
        "test": np.count_nonzero(rows >= 150),
    }


def test_sample_round_trips_through_json_and_config(table) -> None:
    for sample in (0.25, 100):
        prep = dp.Preprocessor(FEATURES, sample=sample, sample_seed=5).fit(table)
        for again in (
            dp.Preprocessor.from_dict(json.loads(json.dumps(prep.to_dict()))),
            dp.Preprocessor.from_config(json.loads(json.dumps(prep.to_config()))),
        ):
            assert (again.sample, again.sample_seed) == (sample, 5)
            assert type(again.sample) is type(sample)
    assert "sample" not in dp.Preprocessor(FEATURES).to_dict()


def configured(**preprocessing: object) -> dp.Preprocessor:
    features = [{"name": "city", "type": "category"}]
    return dp.Preprocessor.from_config({"input_features": features, "preprocessing": preprocessing})


def test_ludwig_sample_keys_are_read() -> None:
    assert configured(sample_ratio=0.2).sample == 0.2
    assert configured(sample_ratio=1.0, sample_size=10).sample == 10
    assert configured(sample_ratio=1.0, sample_size=None).sample is None
    assert configured(sample_size=0).sample is None
    assert configured(sample_size=9, sample_seed=7).sample_seed == 7


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sample_ratio": 0.1, "sample_size": 5}, "preprocessing.sample_size: contradicts sample_ratio"),
        ({"sample_ratio": 1.5}, "preprocessing.sample_ratio: must be .* not 1.5"),
        ({"sample_size": 2.5}, "preprocessing.sample_size: must be .* not 2.5"),
        ({"sample_size": -1}, "preprocessing.sample_size: must be .* not -1"),
    ],
)
def test_invalid_ludwig_sample_keys_raise(given, message) -> None:
    with pytest.raises(ConfigError, match=message):
        configured(**given)


@pytest.mark.parametrize(
    ("sample", "seed"), [(0, 1), (True, 1), (-0.1, 1), (1.5, 1), ("10%", 1), (0.1, "x"), (float("nan"), 1)]
)
def test_invalid_samples_raise(table, sample, seed) -> None:
    with pytest.raises(ConfigError, match="Preprocessor: sample"):
        dp.Preprocessor(FEATURES, sample=sample, sample_seed=seed).fit(table)


@pytest.mark.parametrize("sample", [True, np.True_])
def test_boolean_sample_and_seed_raise(table, sample) -> None:
    with pytest.raises(ConfigError, match="Preprocessor: sample=.*True"):
        dp.Preprocessor(FEATURES, sample=sample).fit(table)
    with pytest.raises(ConfigError, match="Preprocessor: sample_seed=.*True"):
        dp.Preprocessor(FEATURES, sample=5, sample_seed=sample).fit(table)


@pytest.mark.parametrize(
    ("sample", "same"), [(np.int64(50), 50), (np.uint8(50), 50), (np.float64(0.25), 0.25), (np.float32(0.25), 0.25)]
)
def test_numpy_samples_equal_python_samples(table, tmp_path, sample, same) -> None:
    prep = dp.Preprocessor(FEATURES, sample=sample, sample_seed=np.int64(3))
    found = prep.fit_write(table, tmp_path / "a")
    expected = dp.Preprocessor(FEATURES, sample=same, sample_seed=3)
    assert found.metadata["sample"] == same
    assert len(found["train"]) == len(expected.fit_write(table, tmp_path / "b")["train"])
    assert json.dumps(prep.to_dict()) == json.dumps(expected.to_dict())
    assert json.dumps(prep.to_config()) == json.dumps(expected.to_config())
    assert np.array_equal(prep.assign(table)["split"], expected.assign(table)["split"])
    prep.save(tmp_path / "a.json")
    assert type(dp.Preprocessor.load(tmp_path / "a.json").sample) is type(same)


def test_share_of_too_few_rows_raises(table, tmp_path) -> None:
    with pytest.raises(ColumnError, match="sample=0.001 of 230 rows is none: use a larger share"):
        dp.Preprocessor(FEATURES, sample=0.001).fit(table)
    with pytest.raises(ColumnError, match="no rows: there is nothing to write"):
        dp.Preprocessor(FEATURES, sample=0.5).fit_write(table[:0], tmp_path / "a")


def test_row_count_changed_between_reads_raises(table) -> None:
    frame = dd.from_pandas(table, npartitions=2, sort=False)
    sampled = sample_rows([100, 100], 10, 0)
    with pytest.raises(ColumnError, match="number of rows changed"):
        sampled[0].is_train(len(frame.partitions[0]))
