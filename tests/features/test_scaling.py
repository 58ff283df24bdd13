"""Normalizations by quantiles and powers, and bins, compared with scikit-learn."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri
from sklearn.preprocessing import KBinsDiscretizer, PowerTransformer, QuantileTransformer, RobustScaler

import daskprep as dp
from daskprep.errors import ConfigError, RejectedValueError
from daskprep.rows.normalization import normal_cdf, normal_ppf
from daskprep.serving import Encoder
from daskprep.testing import check_feature

ROWS = 200_000
NORMALIZATIONS = ["robust", "quantile_normal", "quantile_uniform", "yeo_johnson", "box_cox"]


def shapes() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "normal": rng.normal(3, 2, ROWS),
        "lognormal": rng.lognormal(1, 1, ROWS),
        "few": rng.integers(1, 50, ROWS).astype(float),
        "clustered": rng.choice([-5.0, 1.0, 40.0], ROWS) + rng.normal(size=ROWS),
    }


@pytest.fixture(scope="module", params=shapes())
def column(request) -> np.ndarray:
    return shapes()[request.param]


def fit(values, **parameters) -> dp.Preprocessor:
    return dp.Preprocessor({"x": dp.Number(**parameters)}).fit(pd.DataFrame({"x": values}))


def encode(prep: dp.Preprocessor, values) -> np.ndarray:
    return prep.encode(pd.DataFrame({"x": values}))["x"]


def test_quantile_transform_equals_scikit_learn(column):
    theirs = QuantileTransformer(subsample=None, n_quantiles=1000).fit_transform(column[:, None])[:, 0]
    shares = encode(fit(column, normalization="quantile_uniform"), column)
    assert np.abs(shares - theirs).max() < 2e-3
    theirs = QuantileTransformer(subsample=None, n_quantiles=1000, output_distribution="normal")
    expected = theirs.fit_transform(column[:, None])[:, 0]
    scores = encode(fit(column, normalization="quantile_normal"), column)
    assert np.abs(scores - expected).max() < 0.04
    inside = np.abs(expected) < 2.5
    assert np.abs(scores - expected)[inside].max() < 0.02
    assert scores.min() == np.float32(ndtri(1e-7))
    beyond = encode(fit(column, normalization="quantile_normal"), [column.min() - 1, column.max() + 1])
    np.testing.assert_allclose(beyond, theirs.transform([[column.min() - 1], [column.max() + 1]])[:, 0], rtol=1e-6)


def test_power_transform_equals_scikit_learn(column):
    theirs = PowerTransformer().fit(column[:, None])
    prep = fit(column, normalization="yeo_johnson")
    assert abs(prep.learned_["x"].power - theirs.lambdas_[0]) < 1e-4
    np.testing.assert_allclose(encode(prep, column), theirs.transform(column[:, None])[:, 0], atol=1e-3)
    if column.min() <= 0:
        with pytest.raises(RejectedValueError, match='no Box-Cox transform, which needs values above 0: use "yeo_joh'):
            fit(column, normalization="box_cox")
        return
    theirs = PowerTransformer("box-cox").fit(column[:, None])
    prep = fit(column, normalization="box_cox")
    assert abs(prep.learned_["x"].power - theirs.lambdas_[0]) < 1e-4
    np.testing.assert_allclose(encode(prep, column), theirs.transform(column[:, None])[:, 0], atol=1e-3)


def test_robust_scaling_equals_clipped_scikit_learn(column):
    scaled = RobustScaler().fit_transform(column[:, None])[:, 0]
    expected = scaled / np.sqrt(1 + (scaled / 3) ** 2)
    np.testing.assert_allclose(encode(fit(column, normalization="robust"), column), expected, atol=1e-3)


def test_robust_scaling_with_equal_quartiles_uses_half_the_range():
    prep = fit([0.0] * 10 + [8.0], normalization="robust")
    np.testing.assert_allclose(encode(prep, [0.0, 4.0]), [0.0, 1 / np.sqrt(1 + 1 / 9)], rtol=1e-6)


def test_box_cox_of_zeros_with_outlier_strategy_raises():
    options = {"clip_quantiles": (0, 0.9), "outlier_strategy": "fill_with_mean"}
    with pytest.raises(RejectedValueError, match="0 has no Box-Cox"):
        fit([0.0] * 19 + [5.0], normalization="box_cox", **options)


def test_equal_quartiles_warn(recwarn):
    fit([0.0] * 7 + [5.0, 9.0], normalization="iq")
    assert 'has equal quartiles, so "iq" makes it 0 everywhere: "robust" then' in str(recwarn[0].message)


@pytest.mark.filterwarnings("ignore:column .* is constant:UserWarning")
@given(st.lists(st.integers(0, 9), min_size=2, max_size=100))
def test_quantiles_of_few_rows_are_their_values(values):
    prep = fit([float(value) for value in values], normalization="quantile_uniform", missing_value_strategy="drop_row")
    assert prep.learned_["x"].quantiles == tuple(sorted(map(float, values)))


@pytest.mark.parametrize("strategy", ["quantile", "uniform"])
def test_bins_equal_scikit_learn(column, strategy):
    kind = {"quantile_method": "linear"} if strategy == "quantile" else {}
    theirs = KBinsDiscretizer(20, encode="ordinal", strategy=strategy, subsample=None, **kind).fit(column[:, None])
    prep = fit(column, encoding="bins", bins=20, bin_strategy=strategy)
    ids = encode(prep, column)
    assert ids.dtype == np.uint8
    assert len(prep.learned_["x"].edges) == len(theirs.bin_edges_[0])
    np.testing.assert_allclose(prep.learned_["x"].edges, theirs.bin_edges_[0], rtol=3e-3, atol=1e-3)
    assert (ids != theirs.transform(column[:, None])[:, 0]).mean() < 2e-3


@pytest.mark.parametrize("bins", [1, 2, 16])
def test_piecewise_linear_equals_gorishniy_et_al(column, bins):
    prep = fit(column, encoding="piecewise_linear", bins=bins)
    stored = encode(prep, column)
    assert stored.dtype == np.float32
    np.testing.assert_array_equal(stored, encode(fit(column), column))
    learned = prep.learned_["x"]
    expanded = prep.features_["x"].expand(torch.from_numpy(stored), learned)
    assert expanded.shape == (len(column), learned.num_embeddings)
    assert expanded.dtype == torch.float32
    np.testing.assert_array_equal(prep.transform(pd.DataFrame({"x": column})), expanded)
    assert prep.get_feature_names_out().tolist() == [f"x_{i}" for i in range(learned.num_embeddings)]
    edges = np.array(learned.edges)
    expected = (column[:, None] - edges[:-1]) / np.diff(edges)
    inner = slice(0, -1), slice(1, None)
    expected[:, inner[0]] = np.minimum(expected[:, inner[0]], 1)
    expected[:, inner[1]] = np.maximum(expected[:, inner[1]], 0)
    np.testing.assert_allclose(expanded.numpy(), expected, atol=2e-4)


def test_piecewise_linear_extrapolates_in_first_and_last_bin():
    prep = fit([0.0, 1, 2, 4], encoding="piecewise_linear", bins=[0, 1, 4], normalization=None)
    expanded = prep.features_["x"].expand(torch.tensor([-1.0, 0.5, 1.0, 2.5, 7.0]), prep.learned_["x"])
    assert expanded.tolist() == [[-1, 0], [0.5, 0], [1, 0], [1, 0.5], [1, 2]]


def test_explicit_bins_decode_to_their_midpoints():
    prep = fit([5.0, 60.0, 20.0], encoding="bins", bins=[0, 18, 65, 100])
    ids = encode(prep, [-3, 17.9, 18, 64, 65, 200])
    assert ids.tolist() == [0, 0, 1, 1, 2, 2]
    assert prep.decode({"x": ids})["x"].tolist() == [9, 9, 41.5, 41.5, 82.5, 82.5]
    assert prep.features_["x"].expand(torch.from_numpy(ids), prep.learned_["x"]).dtype == torch.int64


def test_equal_quantiles_reduce_the_number_of_bins():
    prep = fit([0.0] * 90 + list(range(1, 11)), encoding="bins", bins=10)
    assert prep.learned_["x"].edges[::2] == (0.0, 10.0)
    one = fit([3.0, 3.0], encoding="piecewise_linear")
    expanded = one.features_["x"].expand(torch.from_numpy(encode(one, [3.0, 4.0])), one.learned_["x"])
    assert expanded.tolist() == [[0.0], [0.0]]


def test_embedding_of_bins_has_one_row_per_bin(tmp_path):
    prep = dp.Preprocessor({"x": dp.Number(encoding="bins", bins=4), "y": "number"}, targets="x")
    dataset = prep.fit_write(pd.DataFrame({"x": np.arange(100.0), "y": 0.0 + np.arange(100)}), tmp_path / "data")
    assert dataset["train"].num_embeddings("x") == 4
    with pytest.raises(ConfigError, match="has no vocabulary"):
        dataset["train"].num_embeddings("y")
    batch = next(iter(dataset["train"].loader(batch_size=10, shuffle=False)))
    assert batch[1].dtype == torch.int64
    fitted = dp.Preprocessor.from_dataset(dataset)
    found = fitted.predictions([[0.0, 0, 9, 0]], probabilities=True)
    assert found["x_predictions"].tolist() == [61.875]


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_normalized_numbers_round_trip_through_decode(column, normalization):
    values = np.abs(column) + 0.1
    prep = fit(values, normalization=normalization)
    middle = (values > np.quantile(values, 0.01)) & (values < np.quantile(values, 0.99))
    decoded = prep.decode({"x": encode(prep, values)})["x"].to_numpy()
    np.testing.assert_allclose(
        decoded[middle], values[middle], rtol=2e-5, atol=5e-3 if "quantile" in normalization else 2e-5
    )
    far = prep.decode({"x": encode(prep, [values.max() * 1e3])})["x"].to_numpy()
    assert np.isfinite(far).all()


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("values", [[2.0, 2.0], [1.0], [1e-300, 1e300], [5e-324, 1.0, 1e308, 1.7e308]])
def test_unusual_columns_encode_as_finite_numbers(normalization, values):
    if len(set(values)) > 1:
        prep = fit(values, normalization=normalization)
    else:
        with pytest.warns(UserWarning, match="is constant"):
            prep = fit(values, normalization=normalization)
        assert encode(prep, values).tolist() == [0.0] * len(values)
    assert np.isfinite(encode(prep, [*values, 3.0])).all()
    assert np.isfinite(prep.decode({"x": encode(prep, values)})["x"]).all()
    json.dumps(prep.to_dict(), allow_nan=False)


def test_too_many_bins_raise():
    with pytest.raises(ConfigError, match="bins=1000000000000 are too many: use at most 65,536"):
        fit([1.0, 2.0], encoding="bins", bins=10**12)


def test_numbers_are_clipped_at_quantiles():
    values = np.arange(101.0)
    prep = fit(values, clip_quantiles=(0.05, 0.9), normalization="minmax")
    assert (prep.learned_["x"].min, prep.learned_["x"].max) == (5.0, 90.0)
    np.testing.assert_allclose(encode(prep, [-7, 5, 47.5, 90, 1000]), [0, 0, 0.5, 1, 1])
    bins = fit(values, clip_quantiles=(0.05, 0.9), encoding="bins", bin_strategy="uniform", bins=2)
    assert bins.learned_["x"].edges == (5.0, 47.5, 90.0)


def test_fill_with_median_fills_missing_cells():
    prep = fit([1.0, 2.0, None, 30.0], missing_value_strategy="fill_with_median", normalization=None)
    assert prep.learned_["x"].fill_value == 2.0
    assert encode(prep, [None, 7.0]).tolist() == [2.0, 7.0]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"clip_quantiles": (0.9, 0.1)}, "pass two shares"),
        ({"clip_quantiles": (0.1,)}, "pass two shares"),
        ({"clip_quantiles": 0.1}, "clip_quantiles must be a list of numbers or None"),
        ({"bins": [1.0]}, "at least two finite edges in ascending order"),
        ({"bins": [1.0, 1.0]}, "at least two finite edges in ascending order"),
        ({"bins": [0, np.inf]}, "at least two finite edges in ascending order"),
        ({"bins": 0}, "bins must be an integer of at least 1"),
        ({"encoding": "bin"}, "Did you mean"),
        ({"normalization": "quantile"}, "normalization must be one of"),
    ],
)
def test_invalid_parameters_raise(parameters, message):
    with pytest.raises(ConfigError, match=message):
        fit([1.0, 2.0], **parameters)


VARIANTS = [
    *({"normalization": one} for one in NORMALIZATIONS),
    {"encoding": "bins", "bins": 5},
    {"encoding": "bins", "bins": [0.5, 2, 3, 40], "clip_quantiles": [0.1, 0.9]},
    {"encoding": "piecewise_linear", "bins": 5},
    {"encoding": "piecewise_linear", "bins": 5, "normalization": "quantile_normal", "bin_strategy": "uniform"},
    {"clip_quantiles": (0.1, 0.9), "missing_value_strategy": "fill_with_median"},
    {"normalization": "robust", "outlier_strategy": "fill_with_mean", "missing_value_strategy": "ffill"},
]


@pytest.mark.parametrize("parameters", VARIANTS, ids=str)
def test_single_rows_encode_to_the_same_bits(parameters, tmp_path):
    values = np.random.default_rng(3).lognormal(size=5_000)
    prep = fit(values, **{"missing_value_strategy": "fill_with_const", "fill_value": 1.0, **parameters})
    cells = [*values[:200].tolist(), 1e9, "2.5", None]
    rows = [{"x": cell} for cell in cells]
    encoder = Encoder(json.loads(json.dumps(prep.to_dict())))
    columns = encode(prep, pd.Series(cells, dtype=object))
    arrays = encoder.encode(rows)["x"]
    assert arrays.dtype == columns.dtype
    np.testing.assert_array_equal(arrays, columns)
    expanded = prep.features_["x"].expand(torch.from_numpy(columns), prep.learned_["x"]).numpy()
    np.testing.assert_array_equal(encoder.encode(rows, expand=True)["x"], expanded)
    prep.save(tmp_path / "prep.json")
    np.testing.assert_array_equal(encode(dp.Preprocessor.load(tmp_path / "prep.json"), values), encode(prep, values))


@pytest.mark.parametrize("parameters", VARIANTS, ids=str)
def test_numbers_pass_check_feature(parameters):
    column = [0.7, 1.5, 2.25, 3.0, 4.5, 6.0, 8.0, 11.0, 30.0, 31.0, 32.0, 50.0]
    check_feature(
        dp.Number(**{"missing_value_strategy": "fill_with_const", "fill_value": 1.0, **parameters}),
        None if "bins" in parameters else column,
    )


@given(st.floats(1e-10, 1 - 1e-10))
def test_normal_ppf_equals_scipy(share):
    assert abs(normal_ppf(np.array([share]))[0] - ndtri(share)) < 1e-13 * max(1, abs(ndtri(share)))


@given(st.floats(-6, 6))
def test_normal_cdf_equals_scipy(score):
    # Near 1, doubles are 2e-16 apart.
    assert abs(normal_cdf(np.array([score]))[0] - ndtr(score)) < max(1.2e-7 * ndtr(-abs(score)), 3e-16)


def test_piecewise_linear_column_without_numbers_has_one_column():
    frame = pd.DataFrame({"a": [None, None], "b": [1.0, 2.0]})
    pieces = dp.Number(encoding="piecewise_linear", missing_value_strategy="ffill")
    prep = dp.Preprocessor({"a": pieces, "b": "number"}).fit(frame)
    assert prep.transform(frame.assign(a=[1.0, 2.0])).shape == (2, len(prep.get_feature_names_out())) == (2, 2)


EXTREME = st.sampled_from([0.0, 5e-324, -1e-310, 1.0, 3.5e38, -1e200, 2e292, np.finfo(float).max, -np.finfo(float).max])


@pytest.mark.slow
@pytest.mark.parametrize("normalization", [None, "zscore", "minmax", "log1p", "iq", *NORMALIZATIONS])
@pytest.mark.parametrize("encoding", [None, "bins", "piecewise_linear"])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_extreme_numbers_stay_finite_and_ordered(normalization, encoding, data):
    least = {"log1p": -0.5, "box_cox": 5e-324}.get(normalization)
    finite = st.floats(allow_nan=False, allow_infinity=False)
    numbers = st.one_of(EXTREME, finite).map(lambda one: max(one, least or one))
    values, more = data.draw(st.lists(numbers, min_size=2, max_size=9)), data.draw(st.lists(numbers, max_size=9))
    parameters = {"bins": 3, "bin_strategy": data.draw(st.sampled_from(["quantile", "uniform"]))}
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        prep = fit(values, normalization=normalization, encoding=encoding, **parameters)
    cells = sorted({*values, *more})
    stored, encoder = encode(prep, cells), Encoder(json.loads(json.dumps(prep.to_dict())))
    rows = [{"x": cell} for cell in cells]
    assert encoder.encode(rows)["x"].tobytes() == stored.tobytes()
    expanded = prep.features_["x"].expand(torch.from_numpy(stored), prep.learned_["x"]).numpy()
    np.testing.assert_array_equal(encoder.encode(rows, expand=True)["x"], expanded)
    assert np.isfinite(prep.decode({"x": stored})["x"]).all()
    for one in (stored.astype(float), expanded.astype(float)):
        assert np.isfinite(one).all()
        assert (np.diff(one, axis=0) >= -1e-6 * np.abs(one[1:]) - 1e-7).all()


def test_range_beyond_float64_is_not_constant():
    most = np.finfo(float).max
    cells = [-most, 0.0, most / 2, most]
    assert encode(fit(cells, normalization="minmax"), cells).tolist() == [0.0, 0.5, 0.75, 1.0]
    prep = fit([*range(1, 8), most], normalization="robust")
    assert encode(prep, [1e155, 1e300, most]).tolist() == [3.0, 3.0, 3.0]
    with pytest.warns(UserWarning, match="2 cells .* clipped"):
        pieces = fit([-1e200, 1e200], normalization=None, encoding="piecewise_linear", bins=1)
    found = pieces.transform(pd.DataFrame({"x": [-1e200, 0.0, 1e200]}))[:, 0]
    np.testing.assert_allclose(found, [0.0, 0.5, 1.0], atol=1e-6)


@pytest.mark.parametrize("normalization", ["quantile_normal", "quantile_uniform"])
@pytest.mark.filterwarnings("ignore:column .* is constant")
def test_missing_cell_of_a_constant_column_stays_missing(normalization):
    prep = fit([2.0, 2.0, 2.0], normalization=normalization, missing_value_strategy="keep")
    np.testing.assert_array_equal(encode(prep, [2.0, None, 3.0]), [0.0, np.nan, 0.0])


SKEWED = np.random.default_rng(0).lognormal(1, 1, 2_000) + 1.0
NEGATIVE = 1e4 - 100 * SKEWED


# The largest results by normalization; 0: those of the fitted range. Others are linear.
LIMITS = {"log1p": 710, "robust": 3, "quantile_uniform": 1, "quantile_normal": 5.2, "yeo_johnson": 0, "box_cox": 0}


@pytest.mark.parametrize("normalization", [None, "zscore", "minmax", "log1p", "iq", *NORMALIZATIONS])
@pytest.mark.parametrize("encoding", [None, "bins", "piecewise_linear"])
@pytest.mark.parametrize("values", [SKEWED, NEGATIVE, SKEWED.round()], ids=["skewed", "negative", "few"])
def test_numbers_beyond_the_fit_become_at_most_linear(values, encoding, normalization):
    prep = fit(values, normalization=normalization, encoding=encoding, bins=5)
    low, high, most = values.min(), values.max(), np.finfo(float).max
    least = {"log1p": np.nextafter(-1.0, 0.0), "box_cox": 5e-324}.get(normalization, -most)
    distances = np.array([1e-9, 0.01, 0.5, 1.0, 2.0, 10.0]) * (high - low)
    cells = np.unique(np.concatenate([[least, low, high, most], low - distances, high + distances]))
    cells = cells[cells >= least]
    results = prep.transform(pd.DataFrame({"x": cells})).astype(float)
    assert np.isfinite(results).all()
    assert (np.diff(results, axis=0) >= 0).all()
    rows = [{"x": cell} for cell in cells]
    served = Encoder(json.loads(json.dumps(prep.to_dict()))).encode(rows, expand=True)["x"]
    np.testing.assert_array_equal(served.reshape(results.shape), results)
    stored = encode(prep, cells).astype(float)
    at_low, at_high = stored[cells == low], stored[cells == high]
    with np.errstate(over="ignore"):
        line = at_low + (at_high - at_low) * (cells / (high - low) - low / (high - low))
    if encoding == "bins":
        assert set(stored[cells <= low]) == {0}
        assert set(stored[cells >= high]) == {prep.learned_["x"].num_embeddings - 1}
    elif normalization in LIMITS:
        limit = LIMITS[normalization] or max(abs(at_low), abs(at_high))
        assert (abs(stored) <= limit).all()
    else:
        most_stored = np.finfo(np.float32).max
        np.testing.assert_allclose(stored, line.clip(-most_stored, most_stored), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("normalization", ["yeo_johnson", "box_cox"])
def test_powers_of_numbers_beyond_the_fit_are_those_of_its_ends(normalization):
    prep = fit(SKEWED, normalization=normalization)
    assert prep.learned_["x"].power < 0
    low, high = prep.learned_["x"].power_range
    assert (low, high) == (SKEWED.min(), SKEWED.max())
    cells = [low / 100, low, high, high * 100]
    np.testing.assert_array_equal(encode(prep, cells), encode(prep, [low, low, high, high]))
    np.testing.assert_array_equal(prep.decode({"x": np.array([-99.0, 99.0])})["x"], [low, high])
    state = prep.to_dict()
    del state["features"]["x"]["learned"]["power_range"]  # as saved by older versions
    theirs = PowerTransformer(normalization.replace("_", "-")).fit(SKEWED[:, None])
    expected = theirs.transform(np.array(cells)[:, None])[:, 0]
    np.testing.assert_allclose(encode(dp.Preprocessor.from_dict(state), cells), expected, rtol=1e-3)
    assert Encoder(state).encode({"x": cells[0]})["x"] < encode(prep, [low])[0]


def test_outliers_that_box_cox_refuses_do_not_bound_it():
    numbers = pd.Series([-1e4, *np.linspace(1, 9, 99)])
    prep = fit(numbers, normalization="box_cox", outlier_strategy="fill_with_const", fill_value=5.0)
    assert prep.learned_["x"].power_range == (1.0, 9.0)
