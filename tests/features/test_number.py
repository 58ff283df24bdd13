from __future__ import annotations

import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import MinMaxScaler, RobustScaler, StandardScaler

import daskprep as dp
from daskprep import serving
from daskprep.errors import ColumnError, ConfigError
from daskprep.features.number import LearnedNumber

GOLDEN = {
    "zscore": [-1.26491106, -0.63245553, 0.0, 0.63245553, 1.26491106],
    "minmax": [0.0, 0.25, 0.5, 0.75, 1.0],
    "iq": [-1.0, -0.5, 0.0, 0.5, 1.0],
    "log1p": np.log1p([2, 4, 6, 8, 10]),
    None: [2, 4, 6, 8, 10],
}


def column(*cells) -> pd.DataFrame:
    return pd.DataFrame({"x": list(cells)})


@pytest.mark.parametrize("normalization", GOLDEN)
def test_normalizations_encode_as_expected(as_frame, normalization):
    frame = as_frame(column(2.0, 4.0, 6.0, 8.0, 10.0))
    encoded = np.asarray(dp.Number(normalization=normalization).fit(frame).transform(frame))
    np.testing.assert_allclose(encoded.ravel(), GOLDEN[normalization], rtol=1e-6)
    assert encoded.dtype == np.float32


@pytest.mark.parametrize("normalization", GOLDEN)
def test_decode_returns_numbers(normalization):
    number, values = dp.Number(normalization=normalization), column(2.0, 4.0, 6.0, 8.0, 11.5)
    encoded = number.fit_transform(values).ravel()
    np.testing.assert_allclose(number.decode(encoded, number.learned_["x"]), values["x"], rtol=1e-6)


@pytest.mark.parametrize(
    ("normalization", "scaler"),
    [("zscore", StandardScaler()), ("minmax", MinMaxScaler()), ("iq", RobustScaler())],
)
def test_normalizations_equal_scikit_learn(normalization, scaler):
    values = pd.DataFrame({"x": np.random.default_rng(0).lognormal(size=1000)})
    ours = dp.Number(normalization=normalization).fit_transform(values)
    theirs = scaler.fit_transform(values)
    if normalization == "zscore":  # scikit-learn divides by n, daskprep by n - 1
        theirs = theirs * np.sqrt(999 / 1000)
    np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-7)


def test_fill_with_mean_counts_filled_cells():
    number = dp.Number(missing_value_strategy="fill_with_mean")
    encoded = number.fit_transform(column(1.0, None, 3.0)).ravel()
    learned = number.learned_["x"]
    assert (learned.fill_value, learned.missing, learned.mean, learned.std) == (2.0, 1, 2.0, 1.0)
    assert encoded.tolist() == [-1, 0, 1]


def test_fill_with_const_is_included_in_statistics():
    learned = (
        dp.Number(missing_value_strategy="fill_with_const", fill_value=10.0).fit(column(0.0, None, 2.0)).learned_["x"]
    )
    assert (learned.mean, learned.max) == (4.0, 10.0)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("fill_with_const", [7, 1, 7, 1, 2, 7]),
        ("fill_with_mean", [4 / 3, 1, 4 / 3, 1, 2, 4 / 3]),
        ("fill_with_mode", [1, 1, 1, 1, 2, 1]),
        ("ffill", [1, 1, 1, 1, 2, 2]),
        ("bfill", [1, 1, 1, 1, 2, 2]),
    ],
)
def test_strategies_fill_missing_cells(as_frame, strategy, expected):
    frame = as_frame(column(None, 1.0, None, 1.0, 2.0, None))
    fill = {"fill_value": 7.0} if strategy == "fill_with_const" else {}
    number = dp.Number(normalization=None, missing_value_strategy=strategy, **fill)
    np.testing.assert_allclose(np.asarray(number.fit(frame).transform(frame)).ravel(), expected, rtol=1e-6)


def test_dropped_rows_are_encoded_as_the_mean(as_frame, tmp_path):
    values = column(1.0, None, 4.0)
    number = dp.Number(normalization=None, missing_value_strategy="drop_row")
    assert number.fit(values).transform(values).ravel().tolist() == [1, 2.5, 4]
    prep = dp.Preprocessor({"x": number}).fit(as_frame(values))
    assert np.asarray(prep.encode(as_frame(values))["x"]).tolist() == [1, 2.5, 4]
    assert prep.write(as_frame(values), tmp_path / "a.dp")["train"].read("x")["x"].tolist() == [1, 4]


def test_outliers_encode_as_expected():
    number = dp.Number(normalization=None, outlier_strategy="fill_with_const", outlier_threshold=2.0, fill_value=42.0)
    learned = LearnedNumber(mean=50.0, std=30.0, outlier_fill_value=42.0)
    encoded = number.encode(pa.array([10.0, 20.0, 1000.0, -500.0, 80.0]), learned)
    assert encoded.tolist() == [10, 20, 42, 42, 80]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("fill_with_const", [5, 1, 2, 5, 4, 2]),
        ("fill_with_mean", [5, 1, 2, 204.16667, 4, 2]),
        ("fill_with_mode", [5, 1, 2, 2, 4, 2]),
        ("ffill", [5, 1, 2, 2, 4, 2]),
        ("bfill", [5, 1, 2, 4, 4, 2]),
        ("drop_row", [5, 1, 2, 1211, 4, 2]),
    ],
)
def test_strategies_replace_outliers_across_partitions(as_frame, strategy, expected):
    frame = as_frame(column(None, 1.0, 2.0, 1211.0, 4.0, 2.0))
    options = {"normalization": None, "outlier_strategy": strategy, "outlier_threshold": 1.5, "fill_value": 5.0}
    number = dp.Number(missing_value_strategy="fill_with_const", **options)
    prep = dp.Preprocessor({"x": number}).fit(frame)
    np.testing.assert_allclose(np.asarray(prep.encode(frame)["x"]), expected, rtol=1e-6)


def test_missing_cells_and_outliers_fill_from_different_directions(as_frame):
    number = dp.Number(
        normalization=None, missing_value_strategy="ffill", outlier_strategy="bfill", outlier_threshold=1.5
    )
    frame = as_frame(column(1.0, None, 900.0, 3.0, None, 5.0))
    prep = dp.Preprocessor({"x": number}).fit(frame)
    assert np.asarray(prep.encode(frame)["x"]).tolist() == [1, 1, 3, 3, 3, 5]


def test_negative_outlier_threshold_raises():
    with pytest.raises(ConfigError, match="outlier_threshold must be a number of at least 0, not -1"):
        dp.Number(outlier_threshold=-1).fit(column(1.0))


def test_single_row_is_constant():
    with pytest.warns(UserWarning, match="is constant"):
        assert dp.Number().fit_transform(column(3.0)).tolist() == [[0.0]]


def test_integers_booleans_decimals_and_text_are_numbers():
    cells = {"int": [1, 2], "bool": [True, False], "text": [" 1e1", "+2"], "large": [2**60, 1]}
    encoded = dp.Number(normalization=None).fit_transform(pd.DataFrame(cells))
    assert encoded.tolist() == [[1, 1, 10, 2.0**60], [2, 0, 2, 1]]


def test_columns_of_lists_raise():
    with pytest.raises(ColumnError, match='column "x".*not numbers'):
        dp.Number().fit(column([1], [2]))


@pytest.mark.filterwarnings("ignore:column .x. is constant")
def test_spread_without_inverse_counts_as_0():
    assert not dp.Number(normalization="minmax").fit_transform(column(0.0, 5e-324)).any()


def test_column_parameter_outside_a_preprocessor_raises():
    with pytest.raises(ConfigError, match="column='a' is for features of a Preprocessor"):
        dp.Number(column="a").fit(column(1.0))


def test_invalid_fill_value_raises_in_fit():
    with pytest.raises(ConfigError, match="fill_value nan"):
        dp.Number(missing_value_strategy="fill_with_const", fill_value=float("nan")).fit(column(1.0))


@given(
    st.lists(st.none() | st.decimals(-(10**9), 10**9, places=3), min_size=1),
    st.sampled_from([(20, 3), (30, 12), (38, 25), (60, 40)]),
    st.integers(0, 2),
)
def test_decimals_of_any_scale_are_the_nearest_doubles(values, digits, first):
    kind = pa.decimal128(*digits) if digits[0] <= 38 else pa.decimal256(*digits)
    parsed = dp.Number().parse(pa.array(values, kind)[first:])
    assert parsed.to_pylist() == [None if value is None else float(value) for value in values[first:]]


@pytest.mark.parametrize("digits", [2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**63, 2**64 + 1, -(2**64)])
def test_decimals_of_many_digits_are_the_nearest_doubles(digits):
    value = decimal.Decimal(digits).scaleb(-2)
    assert dp.Number().parse(pa.array([value], pa.decimal128(38, 2))).to_pylist() == [float(value)]


def test_results_beyond_float32_are_clipped():
    number = dp.Number().fit(column(0.0, 4e-164))
    assert number.transform(column(6e144, -6e144)).ravel().tolist() == [np.finfo("f4").max, np.finfo("f4").min]


@pytest.mark.parametrize("normalization", [None, "zscore", "minmax", "iq", "robust", "quantile_normal", "yeo_johnson"])
def test_kept_missing_numbers_are_nan_in_every_array(as_frame, normalization, tmp_path):
    values = column(1.0, None, 2.0, 7.0, None, 3.0)
    kept = dp.Number(normalization=normalization, missing_value_strategy="keep")
    prep = dp.Preprocessor({"x": kept, "present": dp.Number(normalization=None, column="x")})
    dataset = prep.fit_write(as_frame(values), tmp_path / "a.dp")
    present = dp.Preprocessor({"x": dp.Number(normalization=normalization)}).fit(values.dropna())
    expected = np.full(6, np.nan, np.float32)
    expected[values["x"].notna()] = present.encode(values.dropna())["x"]
    rows = [{"x": one} for one in values["x"].astype(object).where(values["x"].notna(), None)]
    for found in (prep.encode(values)["x"], serving.Encoder(prep.to_dict()).encode(rows)["x"]):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(dataset["train"].read("x")["x"], expected)
    assert prep.decode(prep.encode(values))["x"].isna().tolist() == values["x"].isna().tolist()


def test_kept_missing_numbers_are_nan_in_datasets_batches_and_reports(tmp_path):
    values = pd.DataFrame(
        {"x": [1.0, None, 2.0, 7.0] * 10, "y": [1.0, None, 2.0, 7.0] * 10, "label": list("abab") * 10}
    )
    features = {name: dp.Number(missing_value_strategy="keep") for name in ("x", "y")}
    dataset = dp.Preprocessor(features | {"label": "category"}).fit_write(values, tmp_path / "a.dp")
    batch = next(iter(dataset["train"].loader(40, shuffle=False)))
    assert np.isnan(batch["x"].numpy()).tolist() == values["x"].isna().tolist()
    assert "kept as NaN" in dp.Preprocessor.from_dataset(dataset)._repr_html_()
    dataset.report(tmp_path / "a.html")


@pytest.mark.parametrize("encoding", ["bins", "piecewise_linear"])
def test_bins_with_kept_missing_numbers_raise(encoding):
    with pytest.raises(ConfigError, match='has no NaN for missing values.*"fill_with_median" with missing_indicator'):
        dp.Number(encoding=encoding, missing_value_strategy="keep").fit(column(1.0, 2.0))


def test_kept_missing_labels_raise():
    prep = dp.Preprocessor({"x": dp.Number(missing_value_strategy="keep")}, targets="x")
    with pytest.raises(ConfigError, match='target "x": .*would train on missing labels: use "drop_row"'):
        prep.fit(column(1.0, None))


def test_missing_cells_do_not_change_mean_and_std():
    rng = np.random.default_rng(0)
    values = pd.Series(rng.normal(38, 0.6, 10_000)).where(rng.random(10_000) > 0.2)
    learned = dp.Number().fit(pd.DataFrame({"x": values})).learned_["x"]
    assert learned.mean == pytest.approx(values.mean(), rel=1e-12)
    assert 0.5 < learned.std < 0.6


@pytest.mark.parametrize("kind", [dp.Number, dp.Date, dp.Binary])
def test_column_without_values_and_unused_fill_value_warn(kind):
    with pytest.warns(UserWarning, match="has no values: all become"):
        kind().fit(pd.DataFrame({"x": [None, None]}))
    constant = {dp.Number: 5.0, dp.Date: "2001-01-01", dp.Binary: True}[kind]
    with pytest.warns(UserWarning, match='is not used|does not use: add missing_value_strategy="fill_with_const"'):
        kind(fill_value=constant).fit(pd.DataFrame({"x": ["1", "0"]}))


def test_numbers_beyond_float32_warn_with_their_count(tmp_path):
    frame = pd.DataFrame({"x": [1.0, 2.0, -1e300, 1e200]})
    plain, normal = dp.Number(normalization=None), dp.Number(normalization="yeo_johnson")
    message = r'"x": 2 cells \(50.0 %\) clipped: correct them, or fit normalization="yeo_johnson" to rows'
    with pytest.warns(UserWarning, match=message):
        prep = dp.Preprocessor({"x": plain}).fit(frame)
    with pytest.warns(UserWarning, match=message):
        dp.Preprocessor({"x": plain}).fit_write(frame, tmp_path / "data")
    assert dp.Preprocessor.from_dict(prep.to_dict()).learned_ == prep.learned_
    assert "clipped" not in dp.Preprocessor({"x": normal}).fit(frame).to_dict()["features"]["x"]["learned"]
    dp.Preprocessor({"x": dp.Number(normalization=None, encoding="bins")}).fit(frame)


@pytest.mark.parametrize("cells", [["1", " ?", "-999", "3", None, "odd"], [1, "?", -999.0, 3.0, None, "odd"]])
def test_null_values_are_missing_and_not_unreadable(cells):
    frame = pd.DataFrame({"x": cells})
    number = dp.Number(null_values=["?", "-999"], normalization=None, missing_value_strategy="fill_with_const")
    with pytest.warns(UserWarning, match='column "x": 1 of 6 cells cannot be read as a number, such as .odd.'):
        prep = dp.Preprocessor({"x": number}).fit(frame)
    assert prep.encode(frame)["x"].tolist() == [1, 0, 0, 3, 0, 0]
    assert prep.cell_counts(frame).loc["x"].tolist() == [6, 4, 1, 0]
    arrays, report = serving.Encoder(prep.to_dict()).encode(frame.to_dict("records"), report=True)
    assert arrays["x"].tolist() == [1, 0, 0, 3, 0, 0]
    assert (len(report["x"]["missing"]), len(report["x"]["unreadable"])) == (4, 1)


@pytest.mark.parametrize("kind", ["int64", "float32", "Int16", pd.ArrowDtype(pa.decimal128(9, 2))])
def test_numeric_null_values_do_not_depend_on_the_type(kind):
    frame = pd.DataFrame({"x": pd.array([7, -999, 3], kind)})
    assert dp.Number(null_values=["-999"]).fit(frame).learned_["x"].missing == 1
    assert dp.Number(null_values=["?"]).fit(frame).learned_["x"].missing == 0


def test_inferred_numbers_set_null_values_and_fit_without_warning(recwarn):
    numbers = [str(i % 7 + i % 11 / 8) for i in range(60)] * 2
    frame = pd.DataFrame({"x": [*numbers, "?", "n/a"], "y": [*numbers, "-", "-"]})
    inferred = dp.infer_features(frame)
    assert (inferred["x"].null_values, inferred["y"].null_values) == (["?", "n/a"], ["-"])
    dp.Preprocessor(inferred).fit(frame)
    assert not [one for one in recwarn if "cannot be read" in str(one.message)]


def test_columns_beyond_float32_share_one_warning():
    frame = pd.DataFrame({name: [1.0, 2.0, size] for name, size in [("a", 1e300), ("b", 1e300), ("c", -2e200)]})
    with pytest.warns(UserWarning, match="information is lost in") as caught:
        dp.Preprocessor({name: dp.Number(normalization=None) for name in frame}).fit(frame)
    [message] = [str(one.message) for one in caught]
    assert message.count("1 cell (33.3 %) clipped") == 3


@pytest.mark.parametrize("cells", [[3, -123_456_789], ["3", "-123456789"]])
def test_large_integers_without_normalization_warn(cells):
    frame = pd.DataFrame({"x": cells})
    message = r'"x": 1 cell \(50.0 %\) rounded: use normalization="zscore", or the type "category" if they are ids'
    with pytest.warns(UserWarning, match=message):
        dp.Preprocessor({"x": dp.Number(normalization=None)}).fit(frame)
    dp.Preprocessor({"x": dp.Number(normalization="zscore")}).fit(frame)
    dp.Preprocessor({"x": dp.Number(normalization=None)}).fit(pd.DataFrame({"x": [3, -(2**24)]}))
    dp.Preprocessor({"x": dp.Number(normalization=None, encoding="bins")}).fit(frame)
