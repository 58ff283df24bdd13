"""Time-series folds are trained only on the past, and equal scikit-learn's."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import sklearn.model_selection
from hypothesis import given, settings
from hypothesis import strategies as st

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError
from daskprep.sources.split import TRAIN, VALIDATION, TimeSeriesSplit
from tests.sources.test_split import assign, borders_of, pieces


def days(rows):
    return pd.date_range("2024-01-01", periods=rows)


@settings(max_examples=40)
@given(
    rows=st.integers(24, 80), k=st.integers(2, 6), gap=st.integers(0, 3), window=st.none() | st.integers(4, 20),
    seed=st.integers(0, 99), borders=borders_of,
)  # fmt: skip
def test_folds_equal_scikit_learn(rows, k, gap, window, seed, borders):
    order = np.random.default_rng(seed).permutation(rows)
    table = pa.table({"day": days(rows)[order]})
    theirs = sklearn.model_selection.TimeSeriesSplit(
        k, gap=gap, max_train_size=None if window is None else window - gap
    )
    duration = None if window is None else f"{window} days"
    for fold, (train, test) in enumerate(theirs.split(np.arange(rows))):
        split = TimeSeriesSplit("day", k, gap=f"{gap + 1} days" if gap else None, window=duration, fold=fold)
        splits = assign(split, pieces(table, borders))[np.argsort(order)]
        assert np.flatnonzero(splits == TRAIN).tolist() == train.tolist()
        assert np.flatnonzero(splits == VALIDATION).tolist() == test.tolist()


@pytest.mark.parametrize(
    "parameters", [{}, {"gap": "3 days"}, {"window": "9 days"}, {"gap": "2 days", "window": "9 days"}]
)
@pytest.mark.parametrize("npartitions", [1, 4])
def test_single_pass_folds_equal_separate_folds(tmp_path, parameters, npartitions):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"day": rng.permutation(days(40)), "x": rng.normal(size=40), "c": rng.choice(list("abcde"), 40)}
    )
    parts = [frame[i::npartitions] for i in range(npartitions)]
    for number, part in enumerate(parts):
        part.to_parquet(tmp_path / f"{number}.parquet")
    path, features = str(tmp_path / "*.parquet"), {"x": "number", "c": "category"}
    split = TimeSeriesSplit("day", 3, **parameters)
    prep = dp.Preprocessor(features, split=split)
    dataset = prep.fit_write(path, tmp_path / "all.dp")
    alone = dp.Preprocessor(features, split=split).fit(path)
    frame = pd.concat(parts)
    for fold in range(3):
        one = dp.Preprocessor(features, split=TimeSeriesSplit("day", 3, **parameters, fold=fold))
        written = one.fit_write(path, tmp_path / f"{fold}.dp")
        assert dataset.fold(fold).learned == written.learned == prep.fold(fold).learned_ == alone.fold(fold).learned_
        for name in ("train", "validation"):
            rows = dataset.fold(fold)[name].read()
            assert all(np.array_equal(rows[key], array) for key, array in written[name].read().items())
        splits = one.assign(path)["split"].compute()
        assert written.learned["x"].mean == pytest.approx(frame["x"][splits == TRAIN].mean())
        assert np.array_equal(splits == VALIDATION, prep.assign(path)["split"].compute() == fold)
        assert frame["day"][splits == TRAIN].max() < frame["day"][splits == VALIDATION].min()


def test_saved_fold_assigns_the_same_rows(tmp_path):
    frame = pd.DataFrame({"x": range(20), "day": days(20)})
    prep = dp.Preprocessor({"x": "number"}, split=TimeSeriesSplit("day", 3, gap="2 days")).fit(frame)
    prep.fold(1).save(tmp_path / "p.json")
    loaded = dp.Preprocessor.load(tmp_path / "p.json")
    assert loaded.assign(frame)["split"].tolist() == prep.fold(1).assign(frame)["split"].tolist()


def test_invalid_time_series_splits_raise():
    with pytest.raises(ConfigError, match="k must be an integer from 2 to 80"):
        TimeSeriesSplit("day", 81).validate()
    with pytest.raises(ConfigError, match="window must be longer than `gap`"):
        TimeSeriesSplit("day", gap="3 days", window="2 days").validate()
    with pytest.raises(ColumnError, match="3 rows are too few for 3 folds"):
        assign(TimeSeriesSplit("day", 3), [pa.table({"day": days(3)})])
