"""A Preprocessor within scikit-learn: arrays, integer column names, and targets passed as `y`."""

from __future__ import annotations

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from scipy import sparse
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import TargetEncoder

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError

ARRAY = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 60.0]])


@pytest.mark.parametrize("to_rows", [np.asarray, np.ndarray.tolist, torch.from_numpy, lambda array: array[:, :]])
def test_arrays_have_columns_x0_x1(to_rows, tmp_path):
    rows, frame = to_rows(ARRAY), pd.DataFrame(ARRAY, columns=["x0", "x1"])
    features = {"x1": dp.Number(normalization="minmax")}
    prep = dp.Preprocessor(features).fit(rows)
    assert prep.to_dict() == dp.Preprocessor(features).fit(frame).to_dict()
    np.testing.assert_array_equal(prep.transform(rows), prep.transform(frame))
    np.testing.assert_array_equal(prep.encode(rows)["x1"], prep.encode(frame)["x1"])
    assert prep.cell_counts(rows).loc["x1", "rows"] == 3
    assert prep.get_feature_names_out().tolist() == prep.feature_names_in_.tolist() == ["x1"]
    dataset = prep.fit_write(rows, tmp_path / "rows.dp")
    assert dataset["train"].read()["x1"].tolist() == pytest.approx([0, 0.2, 1])
    assert len(dp.infer_features(rows)) == 2


def test_arrays_with_too_few_columns_raise():
    prep = dp.Preprocessor({"x0": "number"}).fit(ARRAY)
    with pytest.raises(ColumnError, match="X has 1 features, but Preprocessor is expecting 2 features as input"):
        prep.transform(ARRAY[:, :1])
    named = dp.Preprocessor({"price": "number"}).fit(pd.DataFrame({"price": [1.0, 2.0]}))
    with pytest.raises(
        ColumnError, match=r"^an array has the columns x0, x1, ...: pass a frame with the columns price"
    ):
        named.encode(ARRAY)
    with pytest.raises(TypeError, match="Sparse data was passed"):
        prep.transform(sparse.csr_matrix(ARRAY))
    with pytest.raises(ValueError, match="Expected 2D array, got 1D array"):
        prep.transform(ARRAY[0])


def test_series_equals_a_frame_of_one_column():
    rows = pd.DataFrame({"note": ["good", "bad good"]}, index=[3, 5])
    bag = dp.Bag().fit(rows["note"])
    assert bag.feature_names_in_.tolist() == ["note"]
    assert np.array_equal(bag.transform(rows["note"]), dp.Bag().fit_transform(rows))
    columns = make_column_transformer((dp.Bag(), "note"))
    assert np.array_equal(columns.fit_transform(rows), bag.transform(rows))
    assert "bag__note_good" in columns.get_feature_names_out()
    assert dp.Number().fit(pd.Series([1.0, 3.0])).transform(pd.Series([2.0])).tolist() == [[0.0]]


def test_new_arrays_can_omit_a_target():
    prep = dp.Preprocessor({"x0": "number", "x1": "number"}, targets="x1").fit(ARRAY)
    np.testing.assert_array_equal(prep.transform(ARRAY[:, :1]), prep.transform(ARRAY))
    loaded = dp.Preprocessor.from_dict(prep.to_dict())
    np.testing.assert_array_equal(loaded.transform(ARRAY[:, :1]), prep.transform(ARRAY))


@pytest.mark.parametrize("to_frame", [lambda frame: frame, lambda frame: dd.from_pandas(frame, npartitions=2)])
def test_integer_column_names_become_text(to_frame):
    frame = to_frame(pd.DataFrame(ARRAY, columns=[2023, np.int64(2024)], index=[5, 6, 7]))
    prep = dp.Preprocessor({"2024": dp.Number(normalization=None)}).fit(frame).set_output(transform="pandas")
    table = prep.transform(frame)
    table = table.compute() if hasattr(table, "compute") else table
    assert table["2024"].tolist() == [10, 20, 60]
    assert frame.columns.tolist() == [2023, 2024]
    assert list(dp.infer_features(frame)) == ["2023", "2024"]


def test_preprocessor_accepts_the_array_of_a_previous_step():
    prep = dp.Preprocessor({"x0": "number", "x1": dp.Number(encoding="bins", bins=2)})
    model = make_pipeline(SimpleImputer(), prep, LogisticRegression(C=100)).fit(ARRAY, [0, 0, 1])
    assert model.predict(ARRAY).tolist() == [0, 0, 1]


def test_predict_requires_targets():
    assert not hasattr(dp.Preprocessor({"x0": "number"}), "predict")
    assert hasattr(dp.Preprocessor({"x0": "number", "x1": "number"}, targets="x1"), "predict")


@pytest.fixture(scope="module")
def ids() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    names = {"city": rng.integers(0, 30, 3_000), "user": rng.integers(0, 1_000, 3_000)}
    return pd.DataFrame(names, index=rng.permutation(3_000)).astype(str)


@pytest.fixture(scope="module")
def sold(ids) -> pd.Series:
    rng = np.random.default_rng(1)
    liked = rng.normal(size=30)[ids["city"].astype(int)] + rng.logistic(scale=0.5, size=len(ids))
    return pd.Series(np.where(liked > 0, 1, 0), ids.index, name="sold")


def encoder() -> dp.Preprocessor:
    return dp.Preprocessor({"city": dp.TargetEncoding(), "user": dp.TargetEncoding()})


@pytest.mark.parametrize("make", [encoder, lambda: make_column_transformer((dp.TargetEncoding(), ["city", "user"]))])
def test_target_encoding_scores_equal_scikit_learn(ids, sold, make):
    def score(step, y):
        model = make_pipeline(step, LogisticRegression())
        return cross_val_score(model, ids, y, cv=3, scoring="roc_auc").mean()

    expected = score(TargetEncoder(target_type="binary", cv=KFold(5, shuffle=True, random_state=0)), sold)
    assert score(make(), sold) == pytest.approx(expected, abs=0.01)
    assert expected > 0.7
    assert score(make(), np.random.default_rng(2).integers(0, 2, len(ids))) == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize("make", [encoder, dp.TargetEncoding])
def test_fit_transform_with_y_is_cross_fitted(ids, make):
    labels = np.random.default_rng(2).integers(0, 2, len(ids))
    step = make()
    cross_fitted = step.fit_transform(ids, labels)[:, 1]
    assert roc_auc_score(labels, cross_fitted) == pytest.approx(0.5, abs=0.04)
    assert roc_auc_score(labels, step.transform(ids)[:, 1]) > 0.75
    named = dp.Preprocessor({"user": dp.TargetEncoding(target="label")})
    np.testing.assert_array_equal(named.fit_transform(ids.assign(label=labels))[:, 0], cross_fitted)


@pytest.mark.parametrize(
    ("to_rows", "to_y"),
    [
        (lambda frame: frame, np.asarray),
        (lambda frame: frame, list),
        (lambda frame: pa.Table.from_pandas(frame, preserve_index=False), np.asarray),
        (lambda frame: frame.to_dict("list"), lambda y: y.to_numpy()[:, None]),
        (
            lambda frame: dd.from_pandas(frame.reset_index(drop=True), 3),
            lambda y: dd.from_pandas(y.reset_index(drop=True), 3),
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:A column-vector y was passed")
def test_y_is_aligned_by_position(ids, sold, to_rows, to_y):
    expected = encoder().fit(ids, sold)
    prep = encoder().fit(to_rows(ids), to_y(sold))
    assert prep.to_dict() == expected.to_dict()
    named = dp.Preprocessor({"city": dp.TargetEncoding(target="sold")}).fit(ids.assign(sold=sold))
    np.testing.assert_array_equal(expected.encode(ids)["city"], named.encode(ids)["city"])
    np.testing.assert_array_equal(dp.Preprocessor.from_dict(prep.to_dict()).transform(ids), prep.transform(ids))


def test_bins_use_y(ids, sold):
    rows = ids.assign(price=sold * 2.0 + np.random.default_rng(3).random(len(ids)))
    bins = {"price": dp.Number(encoding="bins", bins=2, bin_strategy="target")}
    learned = dp.Preprocessor(bins).fit(rows, sold).learned_["price"]
    assert 1.0 < learned.edges[1] < 2.0
    single = bins["price"].fit(rows[["price"]], sold)
    assert single.learned_["price"].edges == learned.edges


def test_grid_search_sets_target_encoding_parameters(ids, sold):
    model = make_pipeline(encoder(), LogisticRegression())
    grid = {"preprocessor__user__smooth": ["auto", 50.0], "preprocessor__city__folds": [2, 5]}
    search = GridSearchCV(model, grid, cv=2, scoring="roc_auc", error_score="raise").fit(ids, sold)
    assert search.best_score_ > 0.7
    assert search.predict(ids.head(3)).shape == (3,)


def test_invalid_y_raises(ids, sold, tmp_path):
    with pytest.raises(ConfigError, match='feature "city" requires y to be passed, but the target y is None'):
        encoder().fit_write(ids, tmp_path / "ids.dp")
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        encoder().fit(ids, sold[:5])
    with pytest.raises(ValueError, match="should be a 1d array"):
        encoder().fit(ids, np.zeros((len(ids), 2)))
    ids.to_parquet(tmp_path / "ids.parquet")
    with pytest.raises(ConfigError, match='"city" cannot learn from y for rows of type .*: use target='):
        encoder().fit(str(tmp_path / "ids.parquet"), sold)
    with pytest.raises(ColumnError, match=r'target "y of fit" holds .*target_type="class"'):
        encoder().fit(ids, np.where(sold == 1, "yes", "no"))


def test_write_after_fit_transform_is_cross_fitted(ids, sold, tmp_path):
    prep = encoder()
    expected = prep.fit_transform(ids, sold)[:, 0]
    dataset = prep.write(ids, tmp_path / "ids.dp")
    np.testing.assert_array_equal(dataset["train"].read()["city"], expected)


MIXED = pd.DataFrame(
    {
        "price": [1.5, np.nan, 4.0, -2.0],
        "city": ["Rome", "Oslo", None, "Rome"],
        "tags": ["b a", "c", "", "a c"],
        "day": ["2024-05-06", "1999-12-31", "2024-05-06", "2001-01-01"],
        "point": ["0.5 1", "2 3", "4 5", "6 7"],
        "sold": ["no", "yes", "no", "yes"],
    },
    index=[7, 3, 9, 1],
)
INVERTIBLE = {
    "price": dp.Number(missing_indicator=True),
    "bins": dp.Number(column="price", encoding="bins", bins=2),
    "city": dp.Category(transform_to="one_hot"),
    "place": dp.Category(column="city", transform_to="ordinal", missing_indicator=True),
    "id": dp.Category(column="city"),
    "tags": "set",
    "ids": dp.Set(column="tags", expand_to="ids"),
    "bag": dp.Bag(column="tags"),
    "day": "date",
    "point": "vector",
    "sold": "binary",
}


def test_inverse_transform_equals_decode():
    prep = dp.Preprocessor(INVERTIBLE, targets="sold").fit(MIXED)
    decoded = prep.decode(prep.encode(MIXED.drop(columns="sold")))
    table = prep.transform(MIXED)
    inverse = prep.inverse_transform(table)
    # A set is unordered, and its columns are ordered by id.
    for frame in (decoded, inverse):
        frame["tags"], frame["bag"] = frame["tags"].map(sorted), frame["bag"].map(sorted)
    pd.testing.assert_frame_equal(inverse, decoded)
    assert inverse["price"].isna().tolist() == [False, True, False, False]
    pd.testing.assert_frame_equal(prep.inverse_transform(sparse.csr_array(table))[["city"]], decoded[["city"]])
    named = prep.set_output(transform="pandas").transform(MIXED)
    assert prep.inverse_transform(named).index.tolist() == [7, 3, 9, 1]


def test_pipeline_and_feature_have_inverse_transform():
    model = make_pipeline(dp.Preprocessor({"city": dp.Category(transform_to="one_hot")}))
    assert model.inverse_transform(model.fit_transform(MIXED))["city"].tolist() == ["Rome", "Oslo", "<UNK>", "Rome"]
    vector = dp.Vector()
    cells = vector.inverse_transform(vector.fit_transform(MIXED[["point"]]))["point"]
    assert [list(cell) for cell in cells] == [[0.5, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize(
    ("feature", "table", "message"),
    [
        (dp.Category(column="city", transform_to="ordinal"), [[5]], 'column "x": positions range from -1 to 1'),
        (dp.Category(column="city"), [[5]], 'column "x": cannot decode 5 in row 0'),
        (dp.Category(column="city"), [[1, 2]], r"expects the 1 columns of transform, not an array of shape \(1, 2\)"),
        (dp.Set(column="tags"), [[0, 1, 1, 1, 1]], "4 tokens are in one row, and rows hold at most 2"),
        (dp.Number(column="price", encoding="piecewise_linear", bins=1), [[0.5]], "has no inverse of transform"),
        (dp.Date(column="day", parts=["month"]), [[5]], "have no inverse of transform"),
    ],
)
def test_non_invertible_features_raise(feature, table, message):
    prep = dp.Preprocessor({"x": feature}).fit(MIXED)
    with pytest.raises(ColumnError, match=message):
        prep.inverse_transform(table)
    with pytest.raises(ConfigError, match="compute"):
        prep.inverse_transform(dd.from_pandas(MIXED, npartitions=1))


@pytest.mark.parametrize("rows", [50, 500])
def test_sparse_output_equals_dense_output(rows):
    rng = np.random.default_rng(0)
    values = {
        "city": rng.choice(["a", "b", None], rows),
        "price": rng.random(rows),
        "tags": rng.choice(["x y", "y"], rows),
    }
    frame = pd.DataFrame(values)
    features = {
        "city": dp.Category(transform_to="one_hot", missing_indicator=True),
        "id": dp.Category(column="city"),
        "mean": dp.TargetEncoding(column="city"),
        "price": "number",
        "tags": "set",
    }
    y = rng.integers(0, 2, rows)
    dense = dp.Preprocessor(features).fit(frame, y)
    prep = dp.Preprocessor(features, sparse_output=True)
    cross_fitted = prep.fit_transform(frame, y)
    table = prep.transform(frame)
    assert sparse.issparse(table)
    assert table.format == cross_fitted.format == "csr"
    np.testing.assert_array_equal(table.toarray(), dense.transform(frame))
    np.testing.assert_array_equal(cross_fitted.toarray(), dense.fit_transform(frame, y))
    pd.testing.assert_frame_equal(prep.inverse_transform(table), dense.inverse_transform(dense.transform(frame)))
    assert make_pipeline(prep, LogisticRegression()).fit(frame, y).predict(frame).shape == (rows,)


def test_sparse_output_has_a_column_per_value():
    frame = pd.DataFrame({"user": [f"u{i}" for i in range(3_000)]})
    users = {"user": dp.Category(transform_to="one_hot")}
    table = dp.Preprocessor(users, sparse_output=True).fit_transform(frame)
    assert (table.shape, table.nnz, table.dtype) == ((3_000, 3_000), 3_000, np.int8)
    with pytest.raises(ColumnError, match=r"3,000 values.*Preprocessor\(sparse_output=True\)"):
        dp.Preprocessor(users).fit_transform(frame)


def test_sparse_output_requires_data_in_memory():
    prep = dp.Preprocessor({"city": dp.Category(transform_to="one_hot")}, sparse_output=True).fit(MIXED)
    with pytest.raises(ConfigError, match="sparse_output=True is for data in memory"):
        prep.transform(dd.from_pandas(MIXED, npartitions=1))
    with pytest.raises(ConfigError, match="without set_output"):
        prep.set_output(transform="pandas").transform(MIXED)
    with pytest.raises(ConfigError, match="sparse_output='yes'"):
        prep.set_params(sparse_output="yes").transform(MIXED)
