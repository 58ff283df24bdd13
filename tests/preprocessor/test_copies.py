"""Copies of a Preprocessor by pickle, joblib, cloudpickle, deepcopy and skops hold the JSON of `save`."""

from __future__ import annotations

import copy
import io
import json
import pickle
from typing import ClassVar

import cloudpickle
import joblib
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.base import clone

import daskprep as dp
from daskprep.errors import ConfigError, CorruptDatasetError

FRAME = pd.DataFrame(
    {
        "price": [1.0, None, 3.0, 4.0] * 10,
        "city": ["Rome", "Oslo", None, "Bern"] * 10,
        "review": ["calm and sunny", "loud", "sunny, but loud", ""] * 10,
        "walk": ["1 2 3", "4", "5 6", "7"] * 10,
        "when": ["2024-05-06", "2024-05-07", "2024-06-06", "2025-05-06"] * 10,
        "sold": ["no", "yes", "no", "no"] * 10,
    }
)
FEATURES = {
    "price": dp.Number(normalization="quantile_normal", missing_indicator=True),
    "city": "category",
    "tags": dp.Set(column="review"),
    "review": dp.Text(level="both", compute_idf=True),
    "walk": "timeseries",
    "when": dp.Date(parts=["month"], since="2024-01-01"),
    "rate": dp.TargetEncoding(column="city", target="sold", target_type="class"),
    "sold": "binary",
}
PARAMETERS = {
    "plain": {},
    "targets": {"targets": "sold", "split": dp.StratifiedSplit("sold"), "balance": dp.Oversample("sold", 0.5)},
    "folds": {"split": dp.KFold(3)},
    "sparse": {"sparse_output": True, "sample": 0.9, "scratch": "."},
}


def _by_joblib(prep):
    file = io.BytesIO()
    joblib.dump(prep, file)
    file.seek(0)
    return joblib.load(file)


def _by_state(prep):
    """Return the copy that skops makes: from JSON values, bytes and estimators without a fitted state."""
    state = prep.__getstate__()
    assert not any("earned" in type(value).__name__ or isinstance(value, pa.Array) for value in state.values())
    again = type(prep).__new__(type(prep))
    again.__setstate__(state)
    return again


COPIES = {
    "pickle": lambda prep: pickle.loads(pickle.dumps(prep)),
    "joblib": _by_joblib,
    "cloudpickle": lambda prep: pickle.loads(cloudpickle.dumps(prep)),
    "deepcopy": copy.deepcopy,
    "state": _by_state,
}


@pytest.fixture(scope="module", params=PARAMETERS)
def fitted(request) -> dp.Preprocessor:
    return dp.Preprocessor(FEATURES, **PARAMETERS[request.param]).fit(FRAME)


@pytest.mark.parametrize("how", COPIES)
def test_copy_of_fitted_preprocessor_is_equal(fitted, how, sizes):
    sizes(large_vocabulary=8)
    again = COPIES[how](fitted)
    assert json.dumps(again.to_dict()) == json.dumps(fitted.to_dict())
    assert repr(again.get_params()) == repr(fitted.get_params())
    assert repr(vars(again).keys() ^ vars(fitted).keys()) == "set()"
    assert again.targets_ == fitted.targets_
    assert list(again.feature_names_in_) == list(fitted.feature_names_in_)
    for name, array in fitted.encode(FRAME).items():
        np.testing.assert_array_equal(again.encode(FRAME)[name], array)
    for own, other in zip(again.learned_by_fold_, fitted.learned_by_fold_, strict=True):
        assert {name: one.to_dict() for name, one in own.items()} == {n: one.to_dict() for n, one in other.items()}
    assert json.dumps(COPIES[how](again).to_dict()) == json.dumps(fitted.to_dict())
    assert clone(again).to_config() == fitted.to_config()


@pytest.mark.parametrize("how", COPIES)
def test_copy_of_unfitted_or_inferring_preprocessor_is_equal(how):
    again = COPIES[how](dp.Preprocessor(FEATURES, split=dp.KFold(3)))
    assert not hasattr(again, "learned_")
    assert again.to_config() == dp.Preprocessor(FEATURES, split=dp.KFold(3)).to_config()
    frame = FRAME[["price", "city", "sold"]]
    inferred = dp.Preprocessor("auto", targets="sold").set_output(transform="pandas").fit(frame)
    again = COPIES[how](inferred)
    assert again.inferred_.reasons == inferred.inferred_.reasons
    pd.testing.assert_frame_equal(again.transform(frame), inferred.transform(frame))
    array = dp.Preprocessor({"x0": "number"}).fit(np.arange(12.0).reshape(6, 2))
    assert COPIES[how](array).n_features_in_ == array.n_features_in_ == 2


@pytest.mark.parametrize("dump", [pickle.dumps, cloudpickle.dumps])
def test_altered_copy_raises(fitted, dump):
    data = dump(fitted)
    starts = [at for at in range(len(data)) if data.startswith(b'"invalid_samples":[]', at)]
    assert len(starts) >= len(FEATURES) * (1 + len(fitted.learned_by_fold_)) - 1
    for at in starts[:: len(FEATURES) - 1]:
        altered = data[:at] + b'"invalid_samples":{}' + data[at + 20 :]
        with pytest.raises(CorruptDatasetError):
            pickle.loads(altered)
    state = fitted.__getstate__()
    for at, files in enumerate(state["files_"]):
        altered = {
            name: data.replace(b'"invalid_samples":[]', b'"invalid_samples":{}', 1) for name, data in files.items()
        }
        assert altered != files
        with pytest.raises(CorruptDatasetError):
            fitted.__new__(dp.Preprocessor).__setstate__({**state, "files_": [*state["files_"][:at], altered]})


class Doubled(dp.Number):
    """A custom type, of this module alone, which is not registered."""

    kind: ClassVar[str] = "doubled"


@pytest.mark.parametrize("how", ["pickle", "joblib", "cloudpickle", "deepcopy"])
def test_copy_of_custom_feature_or_function_is_equal(how):
    prep = dp.Preprocessor({"price": Doubled(), "tags": dp.Set(column="review", tokenizer=str.split)}).fit(FRAME)
    again = COPIES[how](prep)
    for name, array in prep.encode(FRAME).items():
        np.testing.assert_array_equal(again.encode(FRAME)[name], array)
    with pytest.raises(ConfigError, match="register it by name"):
        prep.__getstate__()


def test_state_of_skops_imports_no_function(tmp_path, monkeypatch):
    (tmp_path / "functions.py").write_text("def embed(values):\n    return [[float(len(one))] for one in values]\n")
    monkeypatch.syspath_prepend(tmp_path)
    prep = dp.Preprocessor({"review": dp.Embedding(function="functions.embed", size=1)}).fit(FRAME)
    expected = prep.encode(FRAME)["review"]
    np.testing.assert_array_equal(COPIES["pickle"](prep).encode(FRAME)["review"], expected)
    with pytest.raises(ConfigError, match="trusted"):
        COPIES["state"](prep).encode(FRAME)


def test_skops_restores_preprocessor_and_feature(tmp_path):
    skops = pytest.importorskip("skops.io")
    prep = dp.Preprocessor(dict.fromkeys(["city", "sold"], "category")).fit(FRAME)
    skops.dump(prep, tmp_path / "prep.skops")
    assert skops.get_untrusted_types(file=tmp_path / "prep.skops") == ["daskprep.preprocessor.Preprocessor"]
    again = skops.load(tmp_path / "prep.skops", trusted=["daskprep.preprocessor.Preprocessor"])
    np.testing.assert_array_equal(again.transform(FRAME), prep.transform(FRAME))
    feature = dp.Category().fit(FRAME["city"])
    skops.dump(feature, tmp_path / "city.skops")
    again = skops.load(tmp_path / "city.skops", trusted=skops.get_untrusted_types(file=tmp_path / "city.skops"))
    np.testing.assert_array_equal(again.transform(FRAME["city"]), feature.transform(FRAME["city"]))
