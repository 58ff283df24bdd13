"""A Preprocessor within scikit-learn: arrays and integer column names."""

from __future__ import annotations

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import daskprep as dp
from daskprep.errors import ColumnError

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


def test_arrays_with_too_few_columns_are_refused():
    prep = dp.Preprocessor({"x0": "number"}).fit(ARRAY)
    with pytest.raises(ColumnError, match="X has 1 features, but Preprocessor is expecting 2 features as input"):
        prep.transform(ARRAY[:, :1])
    named = dp.Preprocessor({"price": "number"}).fit(pd.DataFrame({"price": [1.0, 2.0]}))
    with pytest.raises(ColumnError, match="arrays have the columns x0, x1, ..., and features read price"):
        named.encode(ARRAY)
    with pytest.raises(TypeError, match="Sparse data was passed"):
        prep.transform(sparse.csr_matrix(ARRAY))
    with pytest.raises(ValueError, match="Expected 2D array, got 1D array"):
        prep.transform(ARRAY[0])


def test_new_arrays_may_lack_a_target():
    prep = dp.Preprocessor({"x0": "number", "x1": "number"}, targets="x1").fit(ARRAY)
    np.testing.assert_array_equal(prep.transform(ARRAY[:, :1]), prep.transform(ARRAY))
    loaded = dp.Preprocessor.from_dict(prep.to_dict())
    np.testing.assert_array_equal(loaded.transform(ARRAY[:, :1]), prep.transform(ARRAY))


@pytest.mark.parametrize("to_frame", [lambda frame: frame, lambda frame: dd.from_pandas(frame, npartitions=2)])
def test_integers_that_name_columns_become_text(to_frame):
    frame = to_frame(pd.DataFrame(ARRAY, columns=[2023, np.int64(2024)], index=[5, 6, 7]))
    prep = dp.Preprocessor({"2024": dp.Number(normalization=None)}).fit(frame).set_output(transform="pandas")
    table = prep.transform(frame)
    table = table.compute() if hasattr(table, "compute") else table
    assert table["2024"].tolist() == [10, 20, 60]
    assert frame.columns.tolist() == [2023, 2024]
    assert list(dp.infer_features(frame)) == ["2023", "2024"]


def test_a_preprocessor_reads_the_array_of_a_step_before_it():
    prep = dp.Preprocessor({"x0": "number", "x1": dp.Number(encoding="bins", bins=2)})
    model = make_pipeline(SimpleImputer(), prep, LogisticRegression(C=100)).fit(ARRAY, [0, 0, 1])
    assert model.predict(ARRAY).tolist() == [0, 0, 1]


def test_only_a_preprocessor_with_targets_predicts():
    assert not hasattr(dp.Preprocessor({"x0": "number"}), "predict")
    assert hasattr(dp.Preprocessor({"x0": "number", "x1": "number"}, targets="x1"), "predict")
