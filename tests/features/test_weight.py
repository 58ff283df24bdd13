from __future__ import annotations

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from sklearn.preprocessing import StandardScaler

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError, RejectedValueError
from daskprep.extensions.cli import program
from daskprep.serving import Encoder

ROWS = 300


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "price": rng.lognormal(3, 1, ROWS),
            "city": rng.choice(list("abcdef"), ROWS),
            "sold": rng.choice(["yes", "no"], ROWS),
            "people": rng.integers(0, 6, ROWS),
        }
    )


def make(**options) -> dp.Preprocessor:
    features = {
        "price": "number",
        "city": "category",
        "city_price": dp.TargetEncoding(column="city", target="price", folds=2),
        "sold": "binary",
    }
    return dp.Preprocessor(features, **{"targets": "sold", "weight": "people", **options})


def repeated(table: pd.DataFrame) -> pd.DataFrame:
    return table.loc[table.index.repeat(table["people"])]


# -- statistics


def test_weighted_mean_and_std_equal_scikit_learn(table):
    learned = make().fit(table).learned_["price"]
    theirs = StandardScaler().fit(table[["price"]], sample_weight=table["people"])
    n = (table["people"] > 0).sum()
    assert learned.mean == pytest.approx(theirs.mean_[0], rel=1e-12)
    assert learned.std == pytest.approx(np.sqrt(theirs.var_[0] * n / (n - 1)), rel=1e-12)
    scaled = make().fit(table.assign(people=table["people"] * 0.001)).learned_["price"]
    assert (scaled.mean, scaled.std) == pytest.approx((learned.mean, learned.std), rel=1e-12)


@pytest.mark.parametrize(
    "fill",
    [{"missing_value_strategy": "fill_with_const", "fill_value": -5.0}, {"missing_value_strategy": "fill_with_mean"}],
)
def test_filled_values_use_row_weights(table, fill):
    gaps = table.assign(price=table["price"].mask(np.arange(ROWS) % 7 == 0))
    prep = dp.Preprocessor({"price": dp.Number(**fill)}, weight="people").fit(gaps)
    plain = dp.Preprocessor({"price": dp.Number(**fill)}).fit(repeated(gaps))
    assert prep.learned_["price"].mean == pytest.approx(plain.learned_["price"].mean, rel=1e-12)
    assert prep.learned_["price"].std == pytest.approx(plain.learned_["price"].std, rel=1e-2)


@pytest.mark.parametrize("smooth", ["auto", 3.0])
@pytest.mark.parametrize("target", ["price", "sold"])
def test_target_encodings_equal_repeated_rows(table, target, smooth):
    kind = "class" if target == "sold" else "number"
    feature = dp.TargetEncoding(target=target, target_type=kind, smooth=smooth)
    weighted = dp.Preprocessor({"city": feature}, weight="people").fit(table)
    plain = dp.Preprocessor({"city": feature}).fit(repeated(table))
    np.testing.assert_allclose(weighted.encode(table)["city"], plain.encode(table)["city"], rtol=1e-6)


def test_vocabularies_and_ranges_ignore_weights(table):
    weighted, plain = make().fit(table), make(weight=None).fit(table)
    assert weighted.learned_["city"] == plain.learned_["city"]
    assert weighted.learned_["price"].max == plain.learned_["price"].max


def test_unit_weights_equal_no_weights(table):
    ones = make().fit(table.assign(people=1.0)).learned_
    plain = make(weight=None).fit(table).learned_
    assert (ones["price"].mean, ones["price"].std) == (plain["price"].mean, plain["price"].std)
    assert ones["city_price"] == plain["city_price"]


@pytest.mark.parametrize("npartitions", [1, 3, 16, 64])
def test_weighted_states_do_not_depend_on_partitions(table, tmp_path, npartitions):
    rows = table.assign(people=table["people"] / 7)
    prep = make(split=dp.RandomSplit())
    dataset = prep.fit_write(dd.from_pandas(rows, npartitions=npartitions), tmp_path / "d", progress=False)
    whole = make(split=dp.RandomSplit())
    expected = whole.fit_write(rows, tmp_path / "e", progress=False)
    assert prep.to_dict() == whole.to_dict()
    for split in expected:
        for name, array in expected[split].read().items():
            np.testing.assert_array_equal(dataset[split].read()[name], array)


# -- batches


def test_batches_return_weights_third(table, tmp_path):
    prep = make()
    dataset = prep.fit_write(table, tmp_path / "d", progress=False)
    for batches in (dataset["train"].loader(100, shuffle=False), prep.stream(table, 100, shuffle=False)):
        inputs, sold, weights = next(iter(batches))
        assert list(inputs) == ["price", "city", "city_price"]
        assert weights.tolist() == table["people"][:100].tolist()
        assert sold.tolist() == (table["sold"][:100] == "yes").tolist()
    [batch] = dataset["train"].loader(ROWS, targets=(), shuffle=False)
    assert batch["people"].tolist() == table["people"].tolist()
    inputs, _ = next(iter(dataset["train"].loader(100, columns=["price", "sold"])))
    assert list(inputs) == ["price"]


def test_new_rows_need_no_weights(table, tmp_path):
    prep = make().fit(table)
    new = table[["price", "city"]]
    assert list(prep.encode(new)) == ["price", "city", "city_price"]
    assert prep.transform(table).shape == (ROWS, 3)
    assert list(prep.feature_names_in_) == ["price", "city"]
    rows = Encoder(prep.to_dict()).encode(new.to_dict("records"))
    assert list(rows) == ["price", "city", "city_price"]
    assert list(prep.encode(table)) == ["price", "city", "city_price", "sold", "people"]
    assert prep.write(new, tmp_path / "new", progress=False)["train"].read(["price"])["price"].shape == (ROWS,)


# -- saving, and errors


def test_weights_round_trip_through_json_configurations_and_datasets(table, tmp_path):
    prep = make()
    dataset = prep.fit_write(table, tmp_path / "d", progress=False)
    for again in (dp.Preprocessor.from_dict(prep.to_dict()), dp.Preprocessor.from_dataset(dataset)):
        assert again.weight == "people"
        assert again.to_dict() == prep.to_dict()
    config = prep.to_config()
    assert config["preprocessing"]["weight"] == "people"
    assert dp.Preprocessor.from_config(config).fit(table).to_dict() == prep.to_dict()
    prep.save(tmp_path / "prep.json")
    assert dp.Preprocessor.load(tmp_path / "prep.json").to_dict() == prep.to_dict()
    auto = dp.Preprocessor("auto", weight="people").fit(table)
    assert list(auto.features_) == ["price", "city", "sold", "people"]
    assert auto.features_["people"].kind == "weight"


def test_cli_weight_option(table, tmp_path):
    table.to_csv(tmp_path / "rows.csv", index=False)
    arguments = ["preprocess", "auto", str(tmp_path / "rows.csv"), "-o", str(tmp_path / "d"), "--target", "sold"]
    result = CliRunner().invoke(program, [*arguments, "--weight", "people", "-q"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    dataset = dp.open_dataset(tmp_path / "d")
    assert dataset.features["people"].kind == "weight"
    assert len(next(iter(dataset["train"].loader(10)))) == 3


def test_texts_with_possible_thousands_separators_use_row_weights(table):
    gaps = table.assign(price=(table["price"].clip(1, 900).round() + 0.125).mask(table.index % 7 == 0))
    texts = gaps.assign(price=gaps["price"].map("{:.3f}".format, na_action="ignore"))
    assert make().fit(texts).learned_["price"] == make().fit(gaps).learned_["price"]


@pytest.mark.parametrize("odd", [-1.0, None, np.inf, 1e39, 1e-46, 5e-324])
def test_invalid_weights_raise(table, odd):
    rows = table.assign(people=table["people"].astype(object))
    rows.loc[7, "people"] = odd
    with pytest.raises(RejectedValueError, match='column "people": .* is not a weight'):
        make().fit(rows)


def test_smallest_weight_stays_positive(table):
    fitted = dp.Preprocessor({"price": "number"}, weight="people")
    written = fitted.fit(rows := table.assign(people=1e-45)).encode(rows)
    assert (written["people"] > 0).all()


def test_large_numbers_have_the_same_std_with_unit_weights(table):
    far = table.assign(price=1.7e12 + 50 * np.arange(ROWS), people=1)
    weighted, plain = (dp.Preprocessor({"price": "number"}, weight=one).fit(far) for one in ("people", None))
    assert weighted.learned_["price"].std == plain.learned_["price"].std
    np.testing.assert_array_equal(weighted.transform(far), plain.transform(far))


def test_missing_values_of_weight_0_are_ignored(table):
    rows = pd.DataFrame({"price": [1.0, 2.0, 3.0] + [None] * 7, "people": [1.0] * 3 + [0.0] * 7})
    prep = dp.Preprocessor({"price": "number"}, weight="people").fit(rows)
    assert prep.learned_["price"].std == 1.0
    filling = dp.Number(missing_value_strategy="fill_with_mean")
    with pytest.raises(ColumnError, match='column "price": has no value with a weight above 0'):
        dp.Preprocessor({"price": filling}, weight="people").fit(rows.assign(people=rows["price"].isna().astype(int)))


def test_invalid_weight_columns_raise(table):
    with pytest.raises(ConfigError, match="that is not a feature: rename the feature"):
        make(weight="price").fit(table)
    with pytest.raises(ColumnError, match="no value with a weight above 0"):
        make().fit(table.assign(people=0))
    with pytest.raises(ColumnError, match=r"Number\(written="):
        make().fit(table.assign(price="$" + table["price"].round(2).astype(str)))


def test_unknown_type_error_omits_internal_types():
    with pytest.raises(ConfigError, match='no type "weigh"') as caught:
        dp.Preprocessor({"x": "weigh"}).fit(pd.DataFrame({"x": [1]}))
    assert "weight" not in str(caught.value)
    assert "audio" in str(caught.value)


def test_cell_counts_include_weights():
    frame = pd.DataFrame({"x": [1.0, None, 3.0], "pounds": [1.0, 2.0, 3.0]})
    prep = dp.Preprocessor({"x": "number"}, weight="pounds").fit(frame)
    assert prep.cell_counts(frame)["missing"].to_dict() == {"x": 1, "pounds": 0}
