"""The base class of estimators: parameters, copies, text, and no import of scikit-learn."""

from __future__ import annotations

import subprocess
import sys

import pytest
from sklearn.base import clone as sklearn_clone

import daskprep as dp
from daskprep.columns.parametrized import clone

JOBS = """
import sys, tempfile
import pandas as pd
import daskprep as dp
frame = pd.DataFrame({"a": [1.0, 2, 3, 4] * 10, "b": list("xyxy") * 10, "y": [0, 1] * 20})
prep = dp.Preprocessor({"a": "number", "b": dp.Category(transform_to="one_hot"), "y": "binary"}, targets="y").fit(frame)
prep.transform(frame.drop(columns="y")), prep.encode(frame), repr(prep)
prep.write(frame, tempfile.mkdtemp() + "/a.dp", progress=False)["train"].read()
print({"sklearn", "scipy", "torch", "zarr", "distributed"} & {*sys.modules})
"""
ESTIMATORS = [
    dp.Number(normalization="robust", clip_quantiles=(0.01, 0.99)),
    dp.Category(most_common=5, missing_value_strategy="fill_with_mode"),
    dp.Text(most_common=7),
    dp.KFold(3, seed=4),
    dp.Undersample("sold", ratio=2.0),
    dp.Preprocessor({"a": dp.Number(normalization=None), "b": "text"}, targets="a", split=dp.StratifiedSplit("a")),
    dp.Preprocessor({f"column_{i}": dp.Number(normalization="log1p") for i in range(30)}, split=None),
]


def test_jobs_import_neither_scikit_learn_nor_torch():
    done = subprocess.run([sys.executable, "-c", JOBS], capture_output=True, check=True, text=True)
    assert done.stdout == "set()\n", done.stdout


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda one: type(one).__name__)
def test_text_is_an_expression_that_returns_the_estimator(estimator):
    text = repr(estimator)
    again = eval(text, vars(dp))
    assert repr(again) == text
    assert max(map(len, text.splitlines())) <= 100
    assert again.get_params(deep=False).keys() == estimator.get_params(deep=False).keys()


@pytest.mark.parametrize("copy", [clone, sklearn_clone])
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda one: type(one).__name__)
def test_copies_have_equal_parameters(estimator, copy):
    copied = copy(estimator)
    assert copied is not estimator
    assert repr(copied) == repr(estimator)
    assert copied.set_params(**copied.get_params(deep=True)) is copied
    assert repr(copied) == repr(estimator)


def test_unknown_parameters_are_named():
    with pytest.raises(ValueError, match="KFold has no parameter 'sed'. Did you mean \"seed\""):
        dp.KFold(3).set_params(sed=1)
    with pytest.raises(TypeError, match="no parameter|unexpected"):
        dp.KFold(3, sed=1)
