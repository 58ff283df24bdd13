"""Output of transformers with set_output."""

from __future__ import annotations

import pickle
import sys

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import daskprep as dp
from daskprep.errors import ConfigError

FRAME = pd.DataFrame(
    {"city": ["Rome", "Oslo", "Rome", None], "price": [1.0, 2.0, None, 4.0], "sold": ["no", "yes", "no", "yes"]},
    index=[7, 3, 9, 1],
)


def fitted() -> dp.Preprocessor:
    features = {"city": dp.Category(transform_to="one_hot"), "price": dp.Number(normalization=None), "sold": "binary"}
    return dp.Preprocessor(features, targets="sold").fit(FRAME)


def test_preprocessor_set_output_returns_frames():
    prep = fitted()
    array = prep.transform(FRAME)
    frame = prep.set_output(transform="pandas").transform(FRAME)
    assert frame.columns.tolist() == ["city_Oslo", "city_Rome", "price"] == prep.get_feature_names_out().tolist()
    assert frame.index.tolist() == [7, 3, 9, 1]
    assert np.array_equal(frame.to_numpy(), array)
    assert np.array_equal(prep.fit_transform(FRAME), frame)
    assert isinstance(prep.set_output().transform(FRAME), pd.DataFrame)
    polars = prep.set_output(transform="polars").transform(FRAME)
    assert isinstance(polars, pl.DataFrame)
    assert polars.columns == frame.columns.tolist()
    assert np.array_equal(polars.to_numpy(), array)
    assert isinstance(prep.set_output(transform="default").transform(FRAME), np.ndarray)


def test_feature_set_output_returns_frames():
    date = dp.Date().set_output(transform="pandas")
    frame = pd.DataFrame({"seen": ["2024-05-06"], "left": ["2024-05-07"]}, index=["a"])
    table = date.fit_transform(frame)
    assert table.loc["a", ["seen_day", "left_day"]].tolist() == [6, 7]
    assert date.transform(frame).dtypes.unique().tolist() == [np.int32]
    arrays = dp.Number(normalization=None).set_output(transform="pandas").fit_transform(np.array([[1.0], [2.0]]))
    assert arrays.columns.tolist() == ["x0"]
    assert arrays.index.tolist() == [0, 1]


def test_dask_frames_are_transformed_to_lazy_frames(tmp_path):
    prep = fitted().set_output(transform="pandas")
    expected = prep.transform(FRAME)
    lazy = prep.transform(dd.from_pandas(FRAME, npartitions=2, sort=False))
    assert isinstance(lazy, dd.DataFrame)
    assert lazy.columns.tolist() == expected.columns.tolist()
    assert lazy.compute().reset_index(drop=True).equals(expected.reset_index(drop=True))
    FRAME.to_parquet(tmp_path / "rows.parquet")
    assert prep.transform(str(tmp_path / "rows.parquet")).compute().equals(expected.reset_index(drop=True))
    with pytest.raises(ConfigError, match="in memory"):
        prep.set_output(transform="polars").transform(str(tmp_path / "rows.parquet"))


def test_clones_and_pickles_keep_the_output_setting():
    for one in (fitted(), dp.Number().fit(FRAME[["price"]])):
        one.set_output(transform="pandas")
        again = clone(one).fit(FRAME if isinstance(one, dp.Preprocessor) else FRAME[["price"]])
        for other in (again, pickle.loads(pickle.dumps(one))):
            assert isinstance(other.transform(FRAME[list(one.feature_names_in_)]), pd.DataFrame)
    assert isinstance(clone(fitted()).fit(FRAME).transform(FRAME), np.ndarray)


def test_scikit_learn_config_applies_unless_set_output():
    prep = fitted()
    with sklearn.config_context(transform_output="pandas"):
        assert isinstance(prep.transform(FRAME), pd.DataFrame)
        assert isinstance(prep.set_output(transform="default").transform(FRAME), np.ndarray)


def test_invalid_output_and_missing_polars_raise(monkeypatch):
    with pytest.raises(ConfigError, match='Did you mean "pandas"'):
        dp.Number().set_output(transform="panda")
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ImportError, match="pip install polars"):
        fitted().set_output(transform="polars").transform(FRAME)


def test_set_output_works_in_pipelines_and_column_transformers():
    features = {"city": dp.Category(transform_to="one_hot"), "price": "number"}
    pipeline = make_pipeline(dp.Preprocessor(features), StandardScaler()).set_output(transform="pandas")
    assert pipeline.fit_transform(FRAME).columns.tolist() == ["city_Oslo", "city_Rome", "price"]
    columns = make_column_transformer(
        (dp.Category(transform_to="one_hot"), ["city"]), (dp.Number(), ["price"]), verbose_feature_names_out=False
    ).set_output(transform="pandas")
    table = columns.fit_transform(FRAME)
    assert table.columns.tolist() == ["city_Oslo", "city_Rome", "price"]
    assert table.index.tolist() == [7, 3, 9, 1]
    many = pd.concat([FRAME] * 30, ignore_index=True)
    trees = HistGradientBoostingClassifier(max_iter=2, categorical_features=["city"])
    prep = dp.Preprocessor({"city": dp.Category(transform_to="ordinal"), "price": "number"})
    model = make_pipeline(prep.set_output(transform="pandas"), trees)
    assert cross_val_score(model, many, many["sold"], cv=2, error_score="raise").min() > 0
