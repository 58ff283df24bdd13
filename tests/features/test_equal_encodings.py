"""Encodings that also exist in category_encoders, skrub and rtdl_num_embeddings have equal values."""

from __future__ import annotations

import category_encoders as ce
import numpy as np
import pandas as pd
import pytest
import rtdl_num_embeddings as rtdl
import skrub
import torch

import daskprep as dp

ROWS = 200_000


def fit(table: pd.DataFrame, feature: dp.Feature) -> dp.Preprocessor:
    return dp.Preprocessor({"x": feature}).fit(table)


@pytest.fixture(scope="module")
def cities() -> pd.DataFrame:
    """Return prices of cities, of which a few have most of the rows."""
    rng = np.random.default_rng(0)
    names = pd.Series(rng.zipf(1.5, ROWS) % 3000).astype(str).radd("c")
    return pd.DataFrame({"city": names, "price": rng.lognormal(size=ROWS)})


@pytest.mark.filterwarnings("ignore:.*no_silent_downcasting")
@pytest.mark.parametrize("m", [0.5, 10.0])
def test_smoothed_target_encoding_equals_m_estimate(cities, m):
    theirs = ce.MEstimateEncoder(cols=["city"], m=m).fit(cities[["city"]], cities["price"])
    new = pd.DataFrame({"city": [*cities["city"].unique(), "unseen"], "price": 0.0})
    prep = fit(cities, dp.TargetEncoding(column="city", target="price", smooth=m))
    np.testing.assert_allclose(prep.encode(new)["x"], theirs.transform(new[["city"]])["city"], rtol=1e-7)


@pytest.mark.filterwarnings("ignore:.*no_silent_downcasting")
@pytest.mark.parametrize("encoding", ["count", "frequency"])
def test_count_and_frequency_equal_count_encoder(cities, encoding):
    theirs = ce.CountEncoder(cols=["city"], normalize=encoding == "frequency").fit(cities[["city"]])
    new = pd.DataFrame({"city": [*cities["city"].unique(), "unseen"]})
    found = fit(cities, dp.TargetEncoding(column="city", encoding=encoding)).encode(new)["x"]
    np.testing.assert_allclose(found, theirs.transform(new)["city"].astype(float), rtol=1e-7)


@pytest.mark.parametrize("shape", ["normal", "lognormal", "few"])
def test_robust_scaling_equals_squashing_scaler(shape):
    rng = np.random.default_rng(1)
    draw = {"normal": rng.normal(3, 2, ROWS), "lognormal": rng.lognormal(1, 1, ROWS), "few": rng.integers(1, 50, ROWS)}
    table = pd.DataFrame({"x": draw[shape].astype(float)})
    theirs = np.ravel(skrub.SquashingScaler().fit_transform(table))
    np.testing.assert_allclose(fit(table, dp.Number(normalization="robust")).encode(table)["x"], theirs, atol=1e-3)


@pytest.mark.parametrize(("part", "turn"), [("month", 1 / 12), ("hour", 0), ("weekday", 1 / 7)])
def test_cyclic_parts_equal_datetime_encoder_with_first_at_0(part, turn):
    seconds = np.random.default_rng(2).integers(0, 10**8, ROWS)
    table = pd.DataFrame({"x": pd.Timestamp("2021-01-01") + pd.to_timedelta(seconds, unit="s")})
    theirs = skrub.DatetimeEncoder(periodic_encoding="circular", add_weekday=True).fit_transform(table["x"])
    sine, cosine = (theirs[f"x_{part}_circular_{axis}"].to_numpy() for axis in (0, 1))
    angle = np.arctan2(sine, cosine) - 2 * np.pi * turn
    found = np.asarray(fit(table, dp.Date(cyclic=[part])).transform(table))
    np.testing.assert_allclose(found, np.stack([np.sin(angle), np.cos(angle)], axis=1), atol=1e-6)


def test_piecewise_linear_with_equal_edges_equals_rtdl():
    numbers = torch.from_numpy(np.random.default_rng(3).normal(3, 2, (ROWS, 1)).astype(np.float32))
    (edges,) = rtdl.compute_bins(numbers, n_bins=16)
    theirs = rtdl.PiecewiseLinearEncoding([edges])(numbers)
    table = pd.DataFrame({"x": numbers[:, 0].numpy()})
    for bins, atol in ((edges.tolist(), 2e-6), (16, 3e-3)):  # given, and learned from a summary
        prep = fit(table, dp.Number(encoding="piecewise_linear", bins=bins))
        stored = torch.from_numpy(prep.encode(table)["x"])
        pieces = prep.features_["x"].expand(stored, prep.learned_["x"])
        np.testing.assert_allclose(pieces, theirs, atol=atol)
        np.testing.assert_allclose(prep.learned_["x"].edges, edges, atol=atol)
