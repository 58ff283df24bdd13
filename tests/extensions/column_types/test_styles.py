"""Encodings and reasons of each style."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import daskprep as dp
from daskprep.errors import ConfigError

ROWS = 6_000


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    income = rng.lognormal(10, 1, ROWS)
    income[::10] = np.nan
    tailed = rng.standard_t(1.5, ROWS)
    visits = np.where(rng.random(ROWS) < 0.7, 0, rng.integers(1, 9_000, ROWS))
    return pd.DataFrame(
        {
            "income": income,
            "height": rng.normal(170, 10, ROWS),
            "drift": tailed,
            "visits": visits,
            "change": np.where(visits, tailed, 0.0),
            "grade": rng.integers(0, 30, ROWS) * 2,
            "written": [f"${10 ** (i % 61 / 20) * 1_000:,.2f}" for i in range(ROWS)],
            "port": rng.choice(["S", "C", "Q", None], ROWS),
            "shop": [f"shop {i * 7 % 60}" if i % 9 else "?" for i in range(ROWS)],
            "lift": rng.choice(["yes", "no", None], ROWS),
            "sold": rng.choice(["yes", "no"], ROWS),
        }
    )


def inferred(frame: pd.DataFrame, style: str | None, targets: str | None = "sold"):
    return dp.infer_features(frame, targets=targets, style=style, progress=False)


def parameters(feature: dp.Number) -> dict[str, object]:
    plain = type(feature)().get_params()
    return {name: value for name, value in feature.get_params().items() if plain[name] != value}


CLIP = {"clip_quantiles": [0.0, 1.0]}
PLE = {"encoding": "piecewise_linear"}
PLE8 = {**PLE, "bins": 8}
MEDIAN = {"missing_value_strategy": "fill_with_median", "missing_indicator": True}
MODE = {"missing_indicator": True}


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        (
            "network",
            {
                "income": {"normalization": "quantile_normal", **PLE, **MEDIAN},
                "height": {**CLIP, **PLE},
                "drift": {"normalization": "robust", **PLE},
                "visits": {"normalization": "log1p", **CLIP, **PLE},
                "change": {"normalization": "quantile_normal", **PLE},
                "grade": CLIP,
                "written": {"normalization": "quantile_normal"},
                "port": {},
                "shop": {"null_values": ["?"]},
                "lift": MODE,
            },
        ),
        (
            "linear",
            {
                "income": {"normalization": "yeo_johnson", **PLE8, **MEDIAN},
                "income_scaled": {**CLIP, "column": "income", "missing_value_strategy": "fill_with_median"},
                "height": CLIP,
                "drift": {"normalization": "robust"},
                "visits": {"normalization": "log1p", **CLIP, **PLE8},
                "visits_scaled": {**CLIP, "column": "visits"},
                "change": {"normalization": "quantile_normal", **PLE8},
                "change_scaled": {**CLIP, "column": "change"},
                "grade": CLIP,
                "written": {"normalization": "yeo_johnson"},
                "written_scaled": {**CLIP, "column": "written"},
                "port": {"transform_to": "one_hot"},
                "shop": {"target": "sold", "target_type": "class", "null_values": ["?"]},
                "shop_components": {"column": "shop", "null_values": ["?"]},
                "lift": MODE,
            },
        ),
        (
            "trees",
            {
                **{
                    name: {"normalization": None, "missing_value_strategy": "keep"}
                    for name in ["income", "height", "drift", "visits", "change", "grade", "written"]
                },
                "port": {"transform_to": "ordinal"},
                "port_mean": {"column": "port", "target": "sold", "target_type": "class"},
                "shop": {"target": "sold", "target_type": "class", "null_values": ["?"]},
                "shop_components": {"column": "shop", "null_values": ["?"]},
                "lift": {},
            },
        ),
    ],
)
def test_style_sets_encodings_for_its_models(frame, style, expected):
    found = inferred(frame, style)
    proposed = {name: parameters(feature) for name, feature in found.items() if name != "sold"}
    for one in proposed.values():
        one.pop("positive", None)
    assert proposed == expected


def test_no_style_sets_no_encodings_and_targets_stay_unchanged(frame):
    plain, styled = inferred(frame, None), inferred(frame, "network")
    assert not any("; for networks" in reason for reason in plain.reasons.values())
    assert all(feature.get_params().get("encoding") is None for feature in plain.values())
    assert repr(styled["sold"]) == repr(plain["sold"])


def test_reason_explains_the_encoding(frame):
    found = inferred(frame, "network").reasons
    assert found["income"].endswith(
        "for networks: normalized to a normal shape, since it is skewed, piecewise linear, since it has many values; "
        "an indicator marks missing values"
    )
    assert (
        found["visits"].split("; ")[1].startswith("for networks: logarithms, since half of the rows or more have one")
    )


def test_many_categories_without_target_are_counted_or_truncated(frame):
    trees, linear = (inferred(frame, style, targets=None) for style in ("trees", "linear"))
    assert trees["shop"].encoding == "count"
    assert (linear["shop"].transform_to, linear["shop"].most_common) == ("one_hot", 50)
    assert "name targets" in trees.reasons["shop"]
    assert "50 most frequent values, 87.6 %" in linear.reasons["shop"]


def test_numeric_target_is_used_for_encoding_unless_in_a_notation(frame):
    assert inferred(frame, "linear", targets="height")["shop"].target_type == "number"
    assert inferred(frame, "linear", targets="written")["shop"].kind == "category"


@pytest.mark.slow
def test_style_does_not_depend_on_partitions(frame, tmp_path):
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=100)
    source = dp.read_files(tmp_path / "rows.parquet", partition_bytes=3_000)
    assert source.npartitions > 5
    for style in ("network", "linear", "trees"):
        assert repr(dict(inferred(source, style))) == repr(dict(inferred(frame, style)))


@pytest.mark.parametrize("style", ["network", "linear", "trees"])
def test_frequent_codes_beside_means_lose_nothing(style, tmp_path):
    codes = [f"{number % 150 if number % 3 else number}" for number in range(ROWS)]
    frame = pd.DataFrame({"user": [f"u{code}" for code in codes], "sold": np.arange(ROWS) % 2})
    prep = dp.Preprocessor("auto", targets="sold", style=style, split=None)
    dataset = prep.fit_write(frame, tmp_path / "a.dp", progress=False)  # a warning would be an error
    losses = dataset.losses().set_index(["feature", "cause"])["share"]
    assert losses["user_frequent", "unknown"] > 0.2
    only = dp.Preprocessor({"user": prep.features_["user_frequent"], "sold": "binary"}, targets="sold", split=None)
    with pytest.warns(UserWarning, match='information is lost in "user": .* unknown'):
        only.fit(frame)


@pytest.mark.parametrize("style", ["network", "linear"])
@pytest.mark.parametrize("odd", [1e30, -1e30])
def test_one_odd_number_has_a_bounded_effect(frame, style, odd):
    features = {name: one for name, one in inferred(frame, style).items() if isinstance(one, dp.Number)}
    prep = dp.Preprocessor(features).fit(frame)
    row = pd.DataFrame({name: [odd if name != "written" else f"${odd:.0f}"] for name in features})
    assert np.abs(prep.transform(row)).max() <= np.abs(prep.transform(frame)).max()


@pytest.mark.parametrize("style", ["network", "linear", "trees"])
def test_styled_features_fit_and_round_trip_through_config(frame, style, tmp_path):
    prep = dp.Preprocessor(inferred(frame, style), targets="sold", split=dp.RandomSplit())
    again = dp.Preprocessor.from_config(prep.to_config())
    assert again.fit(frame).encode(frame).keys() == prep.fit(frame).encode(frame).keys()


def test_numbers_unreadable_in_the_sample_use_default_scaling():
    odd = ["".join(letters) for letters in itertools.islice(itertools.permutations("pqrstuvw"), 2_900)]
    column = pd.Series(["0.5", "1.5", "3.5"] * 30_000 + odd)
    feature = dp.infer_features(pd.DataFrame({"x": column}), style="network", progress=False)["x"]
    assert feature.normalization == "zscore"


@pytest.mark.parametrize("style", ["network", "linear", "trees"])
@pytest.mark.parametrize(("rows", "size"), [(100, 4), (249, 4), (250, 5), (1_499, 29), (2_000, 30)])
def test_texts_become_components(style, rows, size):
    words = np.random.default_rng(0).choice(["fine", "poor", "soft", "loud", "small", "broken"], (rows, 6))
    frame = pd.DataFrame({"review": [" ".join(row) for row in words]})
    found = inferred(frame, style, targets=None)
    assert (found["review"].kind, found["review"].size) == ("text_components", size)
    assert found.reasons["review"].endswith("leading directions of n-grams of characters")
    assert inferred(frame, None, targets=None)["review"].kind == "text"


@pytest.mark.parametrize(("rows", "encoding"), [(4_999, None), (5_000, "piecewise_linear")])
def test_numbers_for_networks_are_piecewise_linear_from_5000_rows_on(rows, encoding):
    frame = pd.DataFrame({"x": np.random.default_rng(0).normal(size=rows)})
    assert inferred(frame, "network", targets=None)["x"].encoding == encoding


def rare_and_frequent(names: list[str]) -> pd.DataFrame:
    """Return rows of ten frequent values with 30 rows each, and others with one."""
    rows = [*names[:10] * 30, *names[10:]]
    return pd.DataFrame({"who": rows, "sold": np.arange(len(rows)) % 2 == 0})


CODES = [f"u{number * 37:05}" for number in range(310)]


@pytest.mark.parametrize(
    ("style", "options"),
    [
        ("network", {}),
        ("linear", {"most_common": 50, "transform_to": "one_hot"}),
        ("trees", {"most_common": 50, "transform_to": "ordinal"}),
    ],
)
def test_codes_have_frequent_values_beside_their_means(style, options):
    frame = rare_and_frequent(CODES)
    found = inferred(frame, style)
    assert list(found) == ["who", "sold", "who_frequent"]
    assert (found["who"].kind, found["who"].target) == ("target_encoding", "sold")
    assert parameters(found["who_frequent"]) == {"column": "who", "min_frequency": 20, **options}
    assert "20 rows or more" in found.reasons["who_frequent"]
    prep = dp.Preprocessor(found, targets="sold").fit(frame)
    assert len(prep.learned_["who_frequent"].vocabulary) == 11


def test_features_beside_have_other_names_than_columns():
    found = inferred(rare_and_frequent(CODES).assign(who_frequent=1.5, who_frequent_2="x"), "trees")
    assert list(found) == ["who", "sold", "who_frequent_3"]
    assert found["who_frequent_3"].column == "who"


@pytest.mark.parametrize(("values", "beside"), [(2, []), (3, ["kind_mean"]), (50, ["kind_mean"]), (51, [])])
def test_trees_get_means_beside_ids_of_up_to_50_labels(values, beside):
    kinds = [f"kind {number}" for number in range(values)]
    frame = pd.DataFrame({"kind": kinds * 30, "sold": np.arange(values * 30) % 7 < 3})
    found = inferred(frame, "trees")
    assert [name for name in found if name.endswith("_mean")] == beside
    assert [name for name in inferred(frame, "trees", None) if name.endswith("_mean")] == []
    frame["kind"] = pd.Categorical(frame["kind"], kinds, ordered=True)
    assert [name for name in inferred(frame, "trees") if name.endswith("_mean")] == []


@pytest.mark.parametrize("style", ["network", "linear", "trees"])
@pytest.mark.parametrize("targets", ["sold", None])
def test_names_have_components_beside(style, targets):
    letters = ["".join(word) for word in itertools.permutations("aeiourst", 4)]
    found = inferred(rare_and_frequent([f"{word} motors" for word in letters[:280]]), style, targets)
    assert parameters(found["who_components"]) == {"column": "who", "size": 11}
    assert "spellings" in found.reasons["who_components"]
    assert (found["who"].kind == "target_encoding") == (targets is not None or style == "trees")


def test_networks_embed_values_with_many_rows():
    frame = pd.DataFrame({"who": CODES[:60] * 20, "sold": [True, False] * 600})
    assert list(inferred(frame, "network")) == ["who", "sold"]
    assert inferred(frame, "network")["who"].kind == "category"
    assert inferred(frame[1:], "network")["who"].kind == "target_encoding"


def test_unknown_style_raises(frame):
    with pytest.raises(ConfigError, match='Did you mean "network"'):
        dp.infer_features(frame, style="networks")


@pytest.mark.parametrize("value", range(12))
def test_frequent_value_counts_even_if_not_sampled(value):
    rng = np.random.default_rng(value)
    numbers = rng.uniform(1, 1e6, 60_000)

    def normalization(share: float) -> str:
        column = np.where(rng.random(len(numbers)) < share, float(value), numbers)
        found = dp.infer_features(pd.DataFrame({"x": column}), style="linear", progress=False)
        return found["x"].normalization

    assert [normalization(0.7), normalization(0.1)] == ["log1p", "zscore"]


@pytest.mark.parametrize("style", ["network", "trees"])
def test_auto_preprocessor_accepts_a_style(frame, style):
    prep = dp.Preprocessor("auto", targets="sold", style=style).fit(frame)
    assert repr(dict(prep.inferred_)) == repr(dict(inferred(frame, style)))
    assert clone(prep).style == style


def test_unknown_style_and_style_without_auto_raise(frame):
    with pytest.raises(ConfigError, match='Did you mean "trees"'):
        dp.Preprocessor("auto", style="tree").fit(frame)
    with pytest.raises(ConfigError, match="style='trees' is for features=\"auto\""):
        dp.Preprocessor({"sold": "binary"}, style="trees").fit(frame)


@pytest.mark.parametrize(
    ("share", "rows", "normalization"),
    [(0.0, 20_000, "quantile_normal"), (0.2, 20_000, "yeo_johnson"), (0.2, 3_000, "quantile_normal")],
)
def test_frequent_value_prevents_quantile_normalization(share, rows, normalization):
    rng = np.random.default_rng(0)
    prices = np.where(rng.random(rows) < share, 33.0, rng.lognormal(3.5, 1, rows))
    found = dp.infer_features(pd.DataFrame({"price": prices}), style="network")
    assert found["price"].normalization == normalization
    assert ("one value is frequent" in found.reasons["price"]) == (normalization == "yeo_johnson")


@pytest.mark.parametrize("style", ["linear", "network"])
def test_dates_for_linear_models_and_networks_are_harmonics_and_years(style):
    times = pd.Timestamp("2021-03-01") + pd.to_timedelta(np.arange(800) * 86_401, unit="s")
    for column, parts in (
        (pd.Series(times), {"day_of_year": 2, "hour": 3}),
        (pd.Series(times.date), {"day_of_year": 2}),
    ):
        found = dp.infer_features(pd.DataFrame({"seen": column}), style=style, progress=False)
        assert found["seen"].cyclic == {"weekday": 3 if style == "linear" else 1, **parts}
        assert (found["seen"].since, found["seen"].since_unit) == ("2022-01-01", "years")
        table = dp.Preprocessor(dict(found)).fit_transform(pd.DataFrame({"seen": column}))
        assert np.abs(table).max() < 2


@pytest.mark.parametrize("style", ["linear", "network"])
@pytest.mark.parametrize("share", [0.6, 0.97])
@pytest.mark.parametrize("odd", [0.0, 1e12, -1e12])
def test_rare_changes_keep_their_scale_beside_one_odd_number(style, share, odd):
    rng = np.random.default_rng(0)
    change = np.where(rng.random(ROWS) < share, 0.0, rng.normal(0, 10, ROWS))
    frame = pd.DataFrame({"change": np.append(change, odd)})
    found = inferred(frame, style, targets=None)
    assert found["change"].normalization == ("quantile_normal" if odd else "zscore")
    found["change"].encoding = None
    table = dp.Preprocessor(dict(found)).fit_transform(frame)[:-1, 0]
    assert np.corrcoef(table, change)[0, 1] > 0.8


@pytest.mark.parametrize("style", ["linear", "network"])
@pytest.mark.parametrize("odd", ["9999-12-31", "0001-01-01"])
def test_odd_date_does_not_squeeze_the_others(style, odd):
    days = pd.date_range("2021-03-01", periods=800, freq="D").strftime("%Y-%m-%d")
    frame = pd.DataFrame({"seen": [*days, odd]})
    found = dp.infer_features(frame, style=style, progress=False)
    assert found["seen"].since is None
    assert f"the year {odd[:4]} is far from all others" in found.reasons["seen"]
    assert np.abs(dp.Preprocessor(dict(found)).fit_transform(frame)).max() <= 1


@pytest.mark.parametrize(("style", "normalization"), [("network", "zscore"), ("linear", "zscore")])
def test_reason_names_the_normalization_without_marks_of_missing_values(style, normalization):
    ages = np.random.default_rng(0).normal(40, 10, ROWS).round(1)
    marked = np.where(np.arange(ROWS) % 50, ages, -999)
    found = inferred(pd.DataFrame({"age": marked}), style, targets=None)
    assert found["age"].normalization == "robust"
    assert f', or normalization="{normalization}" once null_values lists -999' in found.reasons["age"]
    declared = inferred(pd.DataFrame({"age": np.where(marked == -999, np.nan, marked)}), style, targets=None)
    assert declared["age"].normalization == normalization
    assert "once" not in declared.reasons["age"]
