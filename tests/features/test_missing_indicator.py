from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.impute import SimpleImputer

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError
from daskprep.serving import Encoder
from daskprep.testing import check_feature
from tests.arrow_columns import encode_columns

GAPS = [0, 1, 0, 1, 0, 0]


@pytest.fixture
def frame() -> pd.DataFrame:
    columns = {
        "price": ["1", "no number", "3", None, "5", "6"],
        "city": ["Oslo", None, "Rome", None, "Oslo", "Lima"],
        "sold": ["yes", "what", "no", None, "no", "yes"],
        "tags": ["a b", None, "b", None, "c", "a"],
        "review": ["good one", None, "bad", None, "so so", ""],
        "demand": ["1 2", "x", "3 4", None, "5 6", "7 8"],
        "point": ["1 2", "1", "3 4", None, "5 6", "7 8"],
        "when": ["2024-01-01", "never", "2024-01-02", None, "2024-02-01", "2025-01-01"],
        "place": ["8928308280fffff", "x", "8928308280bffff", None, "8928308280fffff", "8928308280fffff"],
    }
    return pd.DataFrame(columns, dtype=object)


FEATURES = {
    "price": dp.Number(missing_indicator=True, missing_value_strategy="fill_with_mean"),
    "city": dp.Category(missing_indicator=True, missing_value_strategy="ffill"),
    "sold": dp.Binary(missing_indicator=True),
    "tags": dp.Set(missing_indicator=True),
    "review": dp.Text(missing_indicator=True, level="both"),
    "demand": dp.Timeseries(missing_indicator=True),
    "point": dp.Vector(missing_indicator=True, vector_size=2, fill_value="0 0"),
    "when": dp.Date(missing_indicator=True, missing_value_strategy="bfill"),
    "place": dp.H3(missing_indicator=True),
}


@pytest.fixture
def readable(frame) -> pd.DataFrame:
    return pd.DataFrame({name: frame[name].where(np.array(GAPS) == 0) for name in frame})


@pytest.fixture
def prep(readable) -> dp.Preprocessor:
    return dp.Preprocessor(FEATURES).fit(readable)


def test_every_type_marks_missing_and_unreadable_cells(frame, prep):
    encoded = prep.encode(frame)
    for name in FEATURES:
        assert encoded[f"{name}_missing"].dtype == np.uint8
        assert encoded[f"{name}_missing"].tolist() == GAPS, name


def test_indicator_does_not_change_other_outputs(frame, readable, prep):
    plain = {name: type(one)(**{**one.get_params(), "missing_indicator": False}) for name, one in FEATURES.items()}
    others = dp.Preprocessor(plain).fit(readable).encode(frame)
    encoded = prep.encode(frame)
    assert set(encoded) - set(others) == {f"{name}_missing" for name in FEATURES}
    for name, array in others.items():
        np.testing.assert_array_equal(encoded[name], array)


def test_indicator_equals_scikit_learn():
    values = np.random.default_rng(0).normal(size=(1000, 1))
    values[::7] = np.nan
    ours = dp.Number(normalization=None, missing_value_strategy="fill_with_mean", missing_indicator=True)
    table = ours.fit(values).transform(values)
    theirs = SimpleImputer(add_indicator=True).fit_transform(values)
    np.testing.assert_array_equal(table[:, 1], theirs[:, 1])
    np.testing.assert_allclose(table[:, 0], theirs[:, 0], rtol=1e-6)
    assert ours.get_feature_names_out(["x0"]).tolist() == ["x0", "x0_missing"]


def test_one_hot_columns_precede_the_indicator(frame):
    city = dp.Category(transform_to="one_hot", missing_indicator=True).set_output(transform="pandas")
    table = city.fit(frame[["city"]]).transform(frame[["city"]])
    assert list(table) == ["city_Lima", "city_Oslo", "city_Rome", "city_missing"]
    assert table["city_missing"].tolist() == GAPS


def test_decode_restores_missing_cells(frame, prep):
    encoded = prep.encode(frame)
    decoded = prep.decode(encoded)
    assert list(decoded) == list(FEATURES)
    for name in FEATURES:
        assert decoded[name].isna().tolist() == [bool(gap) for gap in GAPS], name
    assert prep.decode({"price": encoded["price"]})["price"].notna().all()
    with pytest.raises(ColumnError, match="from 0 to 1"):
        prep.decode({"price": encoded["price"], "price_missing": encoded["price_missing"] + 1})


def test_single_rows_have_the_same_indicators(frame, prep):
    rows = frame.to_dict("records")
    encoder = Encoder(json.loads(json.dumps(prep.to_dict())))
    for name, array in encode_columns(prep, frame).items():
        if not name.startswith(("city", "when")):  # filled from neighboring rows
            np.testing.assert_array_equal(encoder.encode(rows)[name], array, err_msg=name)
    assert encoder.encode(rows[1])["price_missing"].tolist() == [1]
    assert encoder.encode(rows[1], expand=True)["price_missing"].dtype == np.bool_


def test_rows_of_a_group_are_marked_separately():
    frame = pd.DataFrame({"x": [1.0, None, 3, 4], "shop": list("abab")})
    window = dp.Timeseries(window_size=2, group_by="shop", missing_indicator=True)
    prep = dp.Preprocessor({"x": window}).fit(frame)
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    assert prep.encode(frame)["x_missing"].tolist() == [0, 1, 0, 0]
    assert Encoder(prep.to_dict()).encode(rows)["x_missing"].tolist() == [0, 1, 0, 0]


def test_datasets_batches_and_reports_have_the_indicator(readable, prep, tmp_path):
    dataset = prep.fit_write(readable, tmp_path / "data")
    train = dataset["train"]
    assert train.read()["price_missing"].tolist() == GAPS
    batch = next(iter(train.loader(batch_size=6, shuffle=False)))
    assert batch["price_missing"].dtype == torch.bool
    assert batch["price_missing"].tolist() == [bool(gap) for gap in GAPS]
    streamed = next(iter(prep.stream(readable, batch_size=6, shuffle=False)))
    assert torch.equal(streamed["review_missing"], batch["review_missing"])
    dataset.report(tmp_path / "report.html")
    assert "price_missing" in (tmp_path / "report.html").read_text()
    with pytest.raises(ConfigError, match='"city_missing" is a category, which has no vocabulary'):
        train.num_embeddings("city_missing")


def test_indicator_is_saved_only_if_enabled(frame, prep, tmp_path):
    prep.save(tmp_path / "prep.json")
    again = dp.Preprocessor.load(tmp_path / "prep.json")
    assert again.encode(frame)["tags_missing"].tolist() == GAPS
    params = dp.Preprocessor({"x": "number"}).fit(pd.DataFrame({"x": [1, 2]})).to_dict()["features"]["x"]["params"]
    assert "missing_indicator" not in params


def test_indicator_name_equal_to_another_feature_raises():
    with pytest.raises(ConfigError, match='both return "x_missing"'):
        dp.Preprocessor({"x": dp.Number(missing_indicator=True), "x_missing": "binary"}).fit(pd.DataFrame({"x": [1]}))


@pytest.mark.parametrize("name", FEATURES)
def test_types_with_an_indicator_pass_check_feature(name):
    check_feature(FEATURES[name], [f"{one} 2" for one in range(12)] if name == "point" else None)
