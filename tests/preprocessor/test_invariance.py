"""Learned states, splits and encodings do not depend on partitions, schedulers or crashes."""

from __future__ import annotations

import json
import os
import signal
from itertools import pairwise
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.columns.summaries import token_counts
from daskprep.features.base import cross_fit_folds, drops_missing

ROWS = 640
WORDS = np.array(["Alpha", "beta,", "Gamma!", "delta", "éclair", "straße", "omega.", "of", "the", "中文"])


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(7)

    def with_gaps(values, share=0.1):
        return pd.Series(values).mask(rng.random(ROWS) < share)

    def sentences(words, most):
        return [" ".join(rng.choice(words, rng.integers(0, most))) for _ in range(ROWS)]

    return pd.DataFrame(
        {
            "price": with_gaps(rng.lognormal(3, 2, ROWS)),
            "tiny": rng.normal(size=ROWS) * 10.0 ** rng.integers(-30, 30, ROWS),
            "city": with_gaps(rng.choice(["Oslo", "Rome", "Lima", " Lima"], ROWS)),
            "code": with_gaps(rng.integers(0, 40, ROWS)),
            "tags": sentences(np.array(["new", "red", "old", "big"]), 6),
            "words": sentences(WORDS, 9),
            "steps": with_gaps(sentences(np.array(list("abcdefgh")), 12)),
            "review": with_gaps(sentences(WORDS, 15)),
            "demand": [" ".join(map(str, row)) for row in rng.integers(0, 99, (ROWS, 4))],
            "vector": [" ".join(f"{x:.3f}" for x in row) for row in rng.normal(size=(ROWS, 3))],
            "when": pd.Timestamp("2024-02-01") + pd.to_timedelta(rng.integers(0, 10**7, ROWS), unit="s"),
            "cell": rng.integers(576495936675512319, 576495936675512319 + 1000, ROWS),
            "sold": with_gaps(rng.choice(["yes", "no"], ROWS)),
        }
    )


def preprocessor(**options) -> dp.Preprocessor:
    return dp.Preprocessor(
        {
            "price": dp.Number(normalization="iq", missing_value_strategy="fill_with_mean"),
            "tiny": dp.Number(outlier_strategy="fill_with_mean"),
            "city": dp.Category(missing_value_strategy="ffill", missing_indicator=True),
            "code": dp.Category(missing_value_strategy="fill_with_mode", most_common=10),
            "code_number": dp.Number(column="code", missing_value_strategy="bfill"),
            "code_hashed": dp.Category(column="code", hash_buckets=16),
            "city_price": dp.TargetEncoding(column="city", target="price", fold_time=False),
            "code_sold": dp.TargetEncoding(column="code", target="sold", target_type="class", fold_group="tags"),
            "city_code": dp.Category(columns=["city", "code"], oov_buckets=5, min_frequency=3),
            "tags": "set",
            "words": "bag",
            "steps": dp.Sequence(add_start_stop=True, missing_value_strategy="fill_with_mode"),
            "review": dp.Text(level="both", compute_idf=True, missing_value_strategy="ffill", missing_indicator=True),
            "demand": "timeseries",
            "vector": "vector",
            "when": "date",
            "cell": "h3",
            "sold": dp.Binary(missing_value_strategy="drop_row"),
        },
        **options,
    )


def learned_json(prep: dp.Preprocessor) -> str:
    return json.dumps(prep.to_dict()["features"])


def with_empty_partitions(table: pd.DataFrame, npartitions: int) -> dd.DataFrame:
    cuts = np.linspace(0, len(table), npartitions // 2 + 1).astype(int)
    pieces = []
    for start, end in pairwise(cuts):
        pieces += [table.iloc[start:end], table.iloc[:0]]
    return dd.from_map(lambda piece: piece, pieces, meta=table.iloc[:0])


FRAMES = {
    "1": lambda table: dd.from_pandas(table, npartitions=1),
    "3": lambda table: dd.from_pandas(table, npartitions=3),
    "16": lambda table: dd.from_pandas(table, npartitions=16),
    "64": lambda table: dd.from_pandas(table, npartitions=64),
    "16, every other empty": lambda table: with_empty_partitions(table, 16),
}
QUICK = {"3", "16, every other empty"}
for_every_frame = pytest.mark.parametrize(
    "frame", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FRAMES]
)
SCHEDULERS = ["sync", "threads", pytest.param("processes", marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def expected(table) -> dict[str, str]:
    return {
        "all": learned_json(preprocessor().fit(table)),
        "stratified": learned_json(preprocessor(split=dp.StratifiedSplit("city", seed=3)).fit(table)),
    }


@for_every_frame
def test_learned_json_does_not_depend_on_partitions(table, expected, frame):
    frame = FRAMES[frame](table)
    assert learned_json(preprocessor().fit(frame)) == expected["all"]
    stratified = preprocessor(split=dp.StratifiedSplit("city", seed=3)).fit(frame)
    assert learned_json(stratified) == expected["stratified"]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_learned_json_does_not_depend_on_the_scheduler(table, expected, scheduler):
    with dask.config.set(scheduler=scheduler):
        assert learned_json(preprocessor().fit(dd.from_pandas(table, npartitions=5))) == expected["all"]


@for_every_frame
def test_encoded_arrays_do_not_depend_on_partitions(table, frame):
    prep = preprocessor().fit(table)
    expected = prep.encode(table)
    encoded = dask.compute(prep.encode(FRAMES[frame](table)))[0]
    assert encoded.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(encoded[name], array, err_msg=name)
        assert encoded[name].dtype == array.dtype


def numbers() -> pd.DataFrame:
    """Return more distinct values than quantiles count exactly, of several magnitudes, and a target."""
    rng = np.random.default_rng(3)
    values = rng.normal(size=20_000) * 10.0 ** rng.integers(-6, 6, 20_000)
    target = np.where(values > 0, 1.5, -0.3) * rng.random(20_000)
    return pd.DataFrame({"x": pd.Series(values).mask(rng.random(20_000) < 0.1), "y": target})


def scaled(**options) -> dp.Preprocessor:
    scalings = ("robust", "quantile_normal", "quantile_uniform", "yeo_johnson")
    fill = {"missing_value_strategy": "fill_with_median", "missing_indicator": True, "column": "x"}
    features = {one: dp.Number(normalization=one, **fill) for one in scalings}
    features["clipped"] = dp.Number(clip_quantiles=(0.05, 0.9), **fill)
    features["bins"] = dp.Number(encoding="bins", **fill)
    features["pieces"] = dp.Number(encoding="piecewise_linear", bins=7, **fill)
    features["tree"] = dp.Number(encoding="bins", bins=7, bin_strategy="target", target="y", **fill)
    return dp.Preprocessor(features, **options)


@for_every_frame
def test_scaled_and_binned_numbers_do_not_depend_on_partitions(frame):
    table = numbers()
    prep = scaled(split=dp.RandomSplit(seed=1)).fit(table)
    others = scaled(split=dp.RandomSplit(seed=1)).fit(FRAMES[frame](table))
    assert learned_json(others) == learned_json(prep)
    expected, encoded = prep.encode(table), dask.compute(others.encode(FRAMES[frame](table)))[0]
    assert {name: array.tobytes() for name, array in encoded.items()} == {
        name: array.tobytes() for name, array in expected.items()
    }


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_scaled_numbers_do_not_depend_on_the_scheduler(scheduler):
    with dask.config.set(scheduler=scheduler):
        found = learned_json(scaled().fit(dd.from_pandas(numbers(), npartitions=5)))
    assert found == learned_json(scaled().fit(numbers()))


@pytest.mark.slow
@pytest.mark.cluster
def test_scaled_numbers_are_the_same_on_a_cluster(cluster):
    assert learned_json(scaled().fit(dd.from_pandas(numbers(), npartitions=5))) == learned_json(scaled().fit(numbers()))


@for_every_frame
@pytest.mark.parametrize(
    "split",
    [dp.RandomSplit(seed=1), dp.StratifiedSplit("city"), dp.HashSplit("code"), dp.DatetimeSplit("when")],
    ids=lambda split: split.type,
)
def test_assignments_do_not_depend_on_partitions(table, frame, split):
    prep = preprocessor(split=split, balance=dp.Oversample("sold", ratio=0.9))
    expected = prep.assign(table)
    assigned = dask.compute(prep.assign(FRAMES[frame](table)))[0]
    np.testing.assert_array_equal(assigned["split"], expected["split"])
    np.testing.assert_array_equal(assigned["repeats"], expected["repeats"])
    assert (expected["split"] == 255).sum() == table["sold"].isna().sum()


def test_only_training_rows_are_learned_from(table):
    split = dp.RandomSplit((0.5, 0.2, 0.3), seed=5)
    prep = preprocessor(split=split).fit(table)
    training = table[prep.assign(table)["split"] == 0]
    # ffill and bfill read across splits, and dropped rows are in no split: such features learn from more rows.
    # All rows are assigned to folds of target encodings, so that training rows alone have other folds.
    own = {name: f for name, f in prep.features_.items() if not cross_fit_folds({name: f})}
    alone = {name: f for name, f in own.items() if f.imputer is None and not drops_missing(f)}
    again = dp.Preprocessor(alone).fit(training)
    assert {n: one.to_dict() for n, one in again.learned_.items()} == {n: prep.learned_[n].to_dict() for n in alone}


def test_spilled_counts_do_not_change_the_state(table, expected, tmp_path, monkeypatch, sizes):
    spilled = []
    original = token_counts.spill
    sizes(spill_entries=3)
    monkeypatch.setattr(token_counts, "spill", lambda *args: spilled.append(1) or original(*args))
    with dask.config.set(scheduler="threads"):
        prep = preprocessor(scratch=str(tmp_path)).fit(dd.from_pandas(table, npartitions=12))
    assert len(spilled) > 10
    assert learned_json(prep) == expected["all"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.cluster
def test_learned_json_is_the_same_on_a_cluster(cluster, table, expected):
    frame = dd.from_pandas(table, npartitions=5)
    assert learned_json(preprocessor().fit(frame)) == expected["all"]
    stratified = preprocessor(split=dp.StratifiedSplit("city", seed=3)).fit(frame)
    assert learned_json(stratified) == expected["stratified"]
    assert len(cluster.nthreads()) == 2


def kill_once(flag: str) -> None:
    """Kill this worker process, unless one has been killed."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
def test_learned_json_is_the_same_after_a_worker_is_killed(cluster, table, expected, tmp_path):
    flag = str(tmp_path / "killed")

    def read(piece: int) -> pd.DataFrame:
        if piece == 6:
            kill_once(flag)
        return table.iloc[piece * ROWS // 8 : (piece + 1) * ROWS // 8]

    frame = dd.from_map(read, range(8), meta=table.iloc[:0])
    assert learned_json(preprocessor().fit(frame)) == expected["all"]
    assert Path(flag).exists()


def people(rows: int = 800) -> pd.DataFrame:
    """Return rows for every encoding of numbers and categories, with weights, groups and times."""
    rng = np.random.default_rng(11)
    age, job = rng.normal(40, 12, rows).round(3), rng.choice(["smith", "cook", "clerk", "pilot", "nurse"], rows)
    words = rng.choice(WORDS, (rows, 6))
    return pd.DataFrame(
        {
            "age": pd.Series(age).mask(rng.random(rows) < 0.1),
            "income": rng.lognormal(8, 1, rows),
            "job": pd.Series(job).mask(rng.random(rows) < 0.1),
            "home": rng.integers(0, 120, rows),
            "born": pd.Timestamp("1980-05-01") + pd.to_timedelta(rng.integers(0, 10**8, rows), unit="s"),
            "seen": pd.Timestamp("2020-05-01") + pd.to_timedelta(rng.integers(0, 10**7, rows), unit="s"),
            "note": [" ".join(row) for row in words],
            "household": rng.integers(0, 90, rows),
            "weight": rng.integers(1, 9, rows) / 4,
            "sold": rng.choice(["yes", "no", "no"], rows),
        }
    )


def all_encodings(split: dp.Split) -> dp.Preprocessor:
    filled = {"column": "age", "missing_value_strategy": "fill_with_median", "missing_indicator": True}
    folds = {"fold_group": False} if isinstance(split, dp.KFold) else {"folds": 3, "fold_group": False}
    scalings = ("zscore", "robust", "quantile_normal", "quantile_uniform", "yeo_johnson")
    return dp.Preprocessor(
        {
            **{one: dp.Number(normalization=one, **filled) for one in scalings},
            "clipped": dp.Number(clip_quantiles=(0.05, 0.95), **filled),
            "box_cox": dp.Number(column="income", normalization="box_cox"),
            "bins": dp.Number(encoding="bins", bins=9, **filled),
            "given": dp.Number(encoding="bins", bins=[20, 40, 60], **filled),
            "pieces": dp.Number(encoding="piecewise_linear", bins=7, **filled),
            "tree": dp.Number(encoding="piecewise_linear", bins=7, bin_strategy="target", target="income", **filled),
            "job": dp.Category(missing_indicator=True),
            "hashed": dp.Category(column="home", hash_buckets=16),
            "crossed": dp.Category(columns=["job", "home"], oov_buckets=3),
            "job_income": dp.TargetEncoding(column="job", target="income", **folds),
            "home_sold": dp.TargetEncoding(column="home", target="sold", target_type="class", **folds),
            "home_count": dp.TargetEncoding(column="home", encoding="count"),
            "born": dp.Date(parts=["weekend"], cyclic=["month"], since="seen"),
            "note": dp.Text(tokenizer="bpe", most_common=60, truncation="keep_end", max_sequence_length=5),
            "unigrams": dp.Text(tokenizer="unigram", most_common=60, column="note"),
            "sold": "binary",
        },
        weight="weight",
        split=split,
        targets=["sold"],
    )


SPLITS = {
    "rows": dp.RandomSplit(seed=2),
    "groups": dp.GroupSplit("household"),
    "folds": dp.KFold(3, stratify="sold", group="household"),
}


def written_bytes(prep: dp.Preprocessor, frame: dd.DataFrame | pd.DataFrame, folder: Path) -> dict[str, str]:
    """Return the manifest, which has a checksum of every file, of the dataset or of each fold."""
    prep.fit_write(frame, str(folder), version="1", progress=False)  # the manifest has a digest of rows in memory
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("manifest.json"))}


@pytest.fixture(
    scope="module", params=["folds", *(pytest.param(name, marks=pytest.mark.slow) for name in ("rows", "groups"))]
)
def all_at_once(request, tmp_path_factory) -> tuple[dp.Split, dict[str, str]]:
    split = SPLITS[request.param]
    return split, written_bytes(all_encodings(split), people(), tmp_path_factory.mktemp("at_once") / "d")


@pytest.mark.parametrize("npartitions", [3, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 16, 64))])
def test_written_bytes_of_all_encodings_do_not_depend_on_partitions(all_at_once, npartitions, tmp_path):
    split, expected = all_at_once
    frame = dd.from_pandas(people(), npartitions=npartitions)
    assert written_bytes(all_encodings(split), frame, tmp_path / "d") == expected


@pytest.mark.slow
def test_written_bytes_of_all_encodings_are_the_same_in_one_thread(all_at_once, tmp_path):
    split, expected = all_at_once
    with dask.config.set(scheduler="sync"):
        frame = dd.from_pandas(people(), npartitions=4)
        assert written_bytes(all_encodings(split), frame, tmp_path / "d") == expected


@pytest.mark.slow
@pytest.mark.cluster
def test_written_bytes_of_all_encodings_are_the_same_in_processes(cluster, all_at_once, tmp_path):
    split, expected = all_at_once
    assert written_bytes(all_encodings(split), dd.from_pandas(people(), npartitions=7), tmp_path / "d") == expected
