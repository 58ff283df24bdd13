"""Overview, alerts, associations and drift."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from jsonschema import Draft202012Validator

import daskprep as dp
from daskprep.columns.summaries import Quantiles
from daskprep.extensions.report.findings import (
    ClassTally,
    RowSample,
    associate,
    measure_drift,
    score_predictors,
)
from daskprep.extensions.report.reporters import gather, list_columns

ROWS = 2_000
SCHEMA = Path(__file__).parents[3] / "docs" / "report.schema.json"


@pytest.fixture(scope="module")
def dataset_with_alerts(tmp_path_factory):
    rng = np.random.default_rng(0)
    label = rng.choice(["a", "b", "c"], ROWS)
    number = rng.normal(size=ROWS)
    frame = pd.DataFrame(
        {
            "label": label,
            "copy": label,
            "number": number,
            "cube": number**3,
            "noise": rng.normal(size=ROWS),
            "shift": number + np.where(np.arange(ROWS) < 1_400, 0, 3),
            "skew": rng.lognormal(0, 2, ROWS),
            "gaps": pd.Series(rng.normal(size=ROWS)).mask(rng.random(ROWS) < 0.4),
            "ids": [f"id{i % 900}" for i in range(ROWS)],
            "rare": np.where(np.arange(ROWS) % 50, "no", "yes"),
            "same": "x",
            "target": np.where(number > 0.5, "yes", "no"),
        }
    )
    features = dict.fromkeys(["number", "cube", "noise", "shift", "skew", "gaps"], "number")
    features |= dict.fromkeys(["label", "copy", "ids", "rare", "same"], "category") | {"target": "binary"}
    split = dp.FixedSplit("part")
    frame["part"] = np.where(np.arange(ROWS) < 1_400, 0, 1)
    prep = dp.Preprocessor(features, split=split, targets="target")
    return prep.fit_write(frame, tmp_path_factory.mktemp("alerts") / "d")


def sampled(dataset):
    columns, train = list_columns(dataset), dataset["train"]
    sample = RowSample(columns, len(train))
    gather([train], columns, sample)
    return sample.frame()


def alerts_of(dataset_with_alerts):
    return {(one["kind"], one["feature"]) for one in dataset_with_alerts.report().to_dict()["alerts"]}


def test_each_alert_names_only_its_feature(dataset_with_alerts):
    assert alerts_of(dataset_with_alerts) == {
        ("constant", "same"),
        ("high-cardinality", "ids"),
        ("imbalance", "rare"),
        ("skew", "skew"),
        ("missing", "gaps"),
        ("drift", "shift"),
        ("leakage", "number"),
        ("leakage", "cube"),
        ("leakage", "shift"),  # in training rows, it equals number
        ("equal", "copy"),
        ("equal", "shift"),
    }


def test_labels_that_differ_only_in_case_are_an_alert(tmp_path):
    frame = pd.DataFrame({"city": ["Rome", "rome ", "Oslo", "Bern"] * 9, "other": ["a", "b", "c", "A b"] * 9})
    dataset = dp.Preprocessor({"city": "category", "other": "category"}).fit_write(frame, tmp_path / "d")
    alerts = [one for one in dataset.report().to_dict()["alerts"] if one["kind"] == "spelling"]
    assert [one["feature"] for one in alerts] == ["city"]
    assert "such as 'Rome' and 'rome'" in alerts[0]["text"]


def test_json_matches_the_schema_and_is_a_copy(dataset_with_alerts):
    report = dataset_with_alerts.report()
    answer = report.to_dict()
    Draft202012Validator(json.loads(SCHEMA.read_text("utf-8"))).validate(json.loads(json.dumps(answer)))
    answer["alerts"].clear()
    assert report.to_dict()["alerts"]
    assert [one["name"] for one in answer["features"]] == list(dataset_with_alerts.features)
    gaps = next(one for one in answer["features"] if one["name"] == "gaps")
    assert 0.35 < gaps["missing"] / gaps["rows"] < 0.45


def test_page_shows_overview_alerts_and_associations(dataset_with_alerts):
    html = dataset_with_alerts.report().html
    for heading in ("Alerts", "First rows", "Overview", "Associations"):
        assert f"<h2>{heading}</h2>" in html
    assert "drift in validation" in html
    assert "with target" in html


def test_associations_are_strong_for_copies_and_weak_for_noise(dataset_with_alerts):
    pairs = {frozenset((p["first"], p["second"])): p for p in dataset_with_alerts.report().to_dict()["associations"]}
    copies, cubes = pairs[frozenset(("label", "copy"))], pairs[frozenset(("number", "cube"))]
    assert (copies["measure"], copies["strength"]) == ("Cramér's V", pytest.approx(1))
    assert (cubes["measure"], cubes["strength"]) == ("Spearman", pytest.approx(1))
    assert pairs[frozenset(("number", "target"))]["measure"] == "correlation ratio"
    assert all(pairs[frozenset(("noise", other))]["strength"] < 0.15 for other in ("number", "label", "ids", "target"))


def test_rank_correlation_equals_pandas(dataset_with_alerts):
    rows = sampled(dataset_with_alerts)
    [pair] = [p for p in associate(rows) if {p["first"], p["second"]} == {"gaps", "skew"}]
    assert pair["strength"] == pytest.approx(abs(rows["gaps"].corr(rows["skew"], method="spearman")))


def test_sample_has_random_rows_of_all_blocks_for_any_window(dataset_with_alerts, sizes):
    sizes(report_rows=100)
    rows = sampled(dataset_with_alerts)
    whole = dataset_with_alerts["train"].read("noise")["noise"].astype(float).tolist()
    places = [whole.index(one) for one in rows["noise"]]
    assert len(set(places)) == 100
    assert places == sorted(places)
    assert max(np.diff(places)) < 100  # of 1,400 rows
    sizes(report_bytes=1)
    pd.testing.assert_frame_equal(sampled(dataset_with_alerts), rows)


def _truth(one, other):
    """Compute the association of two columns of all rows, with pandas alone."""
    numbers = [name for name in (one, other) if name.dtype.kind in "fi"]
    if len(numbers) == 2:
        return abs(one.corr(other, method="spearman"))
    if not numbers:
        table = pd.crosstab(one, other)
        expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / len(one)
        return np.sqrt(((table - expected) ** 2 / expected).to_numpy().sum() / len(one) / (min(table.shape) - 1))
    ranks, [classes] = numbers[0].rank(), [name for name in (one, other) if name.dtype.kind not in "fi"]
    return ranks.groupby(classes).transform("mean").std() / ranks.std()


@pytest.mark.parametrize("order", ["time", "class", "shuffled"])
def test_associations_of_a_sample_are_close_to_those_of_all_rows(tmp_path, order):
    rows, rng = 30_000, np.random.default_rng(0)
    time = np.arange(rows)
    frame = pd.DataFrame({"year": 2000 + time // 6_000, "trend": time / 1e3 + rng.normal(0, 5, rows)})
    frame["month"] = [f"m{one:02}" for one in time // 500 % 12]
    frame["kind"] = np.where(rng.random(rows) < 0.3 + 0.4 * (time > 20_000), "a", "b")
    frame["value"] = frame["trend"] + 3 * (frame["kind"] == "a")
    frame["again"] = frame["kind"]
    frame = {"time": frame, "class": frame.sort_values("kind"), "shuffled": frame.sample(frac=1, random_state=0)}[order]
    features = {name: "category" if frame[name].dtype.kind not in "fi" else "number" for name in frame}
    dataset = dp.Preprocessor(features).fit_write(frame.reset_index(drop=True), tmp_path / "d", block_rows=1_000)
    found = dataset.report().to_dict()
    for pair in found["associations"]:
        assert pair["strength"] == pytest.approx(_truth(frame[pair["first"]], frame[pair["second"]]), abs=0.04), pair
    assert [one["feature"] for one in found["alerts"]] == ["again"]


def test_number_that_separates_a_rare_target_is_leakage(tmp_path):
    rng = np.random.default_rng(0)
    target = np.sort(rng.random(4_000) < 0.03)
    frame = pd.DataFrame(
        {"y": target, "leak": target * 10.0 + rng.normal(0, 0.1, 4_000), "flat": rng.integers(0, 3, 4_000)}
    )
    features = {"y": "binary", "leak": "number", "flat": "number"}
    dataset = dp.Preprocessor(features, targets="y").fit_write(frame, tmp_path / "d")
    assert alerts_of(dataset) == {("leakage", "leak"), ("imbalance", "y")}
    known = {one["name"]: one["association_with_target"] for one in dataset.report().to_dict()["features"]}
    assert known["leak"] > 0.98
    assert known["flat"] < 0.1  # though the rows are sorted by class
    assert known["y"] is None


def test_equal_columns_are_an_alert_but_not_features_of_one_column(tmp_path):
    rng = np.random.default_rng(0)
    number, code = rng.normal(1e6, 1, 1_000), rng.integers(0, 900, 1_000)
    frame = pd.DataFrame({"a": number, "b": number, "c": number + rng.normal(0, 1e-3, 1_000), "d": code.astype(str)})
    frame["e"], frame["f"] = frame["d"], frame["d"].sample(frac=1, random_state=0).to_numpy()
    features = dict.fromkeys("ac", "number") | dict.fromkeys("def", "category")
    features |= {"b": dp.Number(normalization="minmax"), "g": dp.Number(column="a", normalization="robust")}
    found = dp.Preprocessor(features).fit_write(frame, tmp_path / "d").report().to_dict()
    assert {one["text"] for one in found["alerts"] if one["kind"] == "equal"} == {
        'has the same values as "a": leave one out',
        'has the same values as "d": leave one out',
    }


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (lambda rng: rng.lognormal(0, 2, 3_000), 'is strongly skewed; normalization="log1p" may suit it'),
        (lambda rng: -rng.lognormal(0, 2, 3_000), 'is strongly skewed; normalization="quantile_normal" evens it out'),
        (lambda rng: rng.lognormal(-20, 2, 3_000), 'is strongly skewed; normalization="quantile_normal" evens it out'),
        (lambda rng: (rng.random(3_000) < 0.05) * 10 + rng.normal(0, 0.1, 3_000), None),
    ],
)
def test_skew_alert_suggests_a_suitable_normalization(tmp_path, values, text):
    frame = pd.DataFrame({"x": values(np.random.default_rng(0))})
    alerts = dp.Preprocessor({"x": "number"}).fit_write(frame, tmp_path / "d").report().to_dict()["alerts"]
    assert [one["text"] for one in alerts] == [text] * (text is not None)


@pytest.mark.parametrize("rows", [1, 2, 20, 60])
def test_few_rows_raise_no_leakage_alert(dataset_with_alerts, rows):
    few = sampled(dataset_with_alerts)[:rows][["noise", "gaps", "ids", "target"]]
    assert max(score_predictors(few, ["target"]).values()) < 0.95


def test_duplicates_are_an_alert_unless_oversampled(tmp_path):
    frame = pd.DataFrame({"x": np.arange(300.0) % 200, "y": np.where(np.arange(300) % 3, "a", "b")})
    frame["y"] = np.where(np.arange(300) % 200 % 3, "a", "b")
    dataset = dp.Preprocessor({"x": "number", "y": "category"}).fit_write(frame, tmp_path / "a")
    assert ("duplicates", None) in alerts_of(dataset)
    texts = [one["text"] for one in dataset.report().to_dict()["alerts"]]
    assert texts == ["33.3 % of 300 rows equal an earlier one in all features"]
    balanced = dp.Preprocessor({"x": "number", "y": "category"}, balance=dp.Oversample("y", ratio=1.0))
    assert ("duplicates", None) not in alerts_of(balanced.fit_write(frame, tmp_path / "b"))


def test_duplicates_are_estimated_for_many_rows(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=45_000), "y": rng.integers(0, 2, 45_000)})
    frame = pd.concat([frame, frame[:5_000]], ignore_index=True)
    dataset = dp.Preprocessor({"x": "number", "y": "binary"}).fit_write(frame, tmp_path / "a")
    [text] = [one["text"] for one in dataset.report().to_dict()["alerts"] if one["kind"] == "duplicates"]
    found, rows = re.match(r"([\d.]+) % of ([\d,]+) sampled rows equal", text).groups()
    assert 9.0 < float(found) < 11.0
    assert int(rows.replace(",", "")) > 15_000


def test_drift_is_zero_for_equal_shares_and_high_for_others():
    tallies = [ClassTally(np.array(one)) for one in ([500, 500], [50, 50], [90, 10])]
    found = measure_drift(dict(zip(("train", "validation", "test"), tallies, strict=True)))
    assert found["validation"][0] < 1e-3
    assert not found["validation"][1]
    # (0.9 - 0.5) ln(0.9 / 0.5) + (0.1 - 0.5) ln(0.1 / 0.5), except for half a row in each class
    assert found["test"][0] == pytest.approx(0.879, abs=0.03)
    assert found["test"][1]


def test_drift_of_numbers_uses_deciles_of_the_first_split():
    rng = np.random.default_rng(0)
    same, moved = (Quantiles.of(rng.normal(shift, 1, 5_000)) for shift in (0, 1))
    first = Quantiles.of(rng.normal(0, 1, 5_000))
    found = measure_drift({"train": first, "validation": same, "test": moved})
    assert found["validation"][0] < 0.02
    assert found["test"][0] > 0.5


def test_frequent_value_is_not_drift():
    rng = np.random.default_rng(0)
    parts = [np.where(rng.random(size) < 0.3, 0.75, rng.normal(0, 1, size)) for size in (14_000, 2_000)]
    train, validation = map(Quantiles.of, parts)
    assert not train.exact
    assert validation.exact
    assert measure_drift({"train": train, "validation": validation})["validation"][0] < 0.02


def test_cross_fitted_rows_and_normalized_numbers_raise_no_alert(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"c": rng.choice(list("abcde"), 4_000), "y": rng.integers(0, 2, 4_000)})
    frame["e"] = np.exp(3 * rng.normal(size=4_000))
    features = {"c": dp.TargetEncoding(target="y"), "y": "binary"}
    features |= {"bent": dp.Number(column="e", normalization="quantile_normal"), "e": dp.Number()}
    prep = dp.Preprocessor(features, targets="y", split=dp.RandomSplit())
    assert alerts_of(prep.fit_write(frame, tmp_path / "a")) == {("skew", "e")}


def test_missing_labels_are_a_share_of_all_rows(tmp_path):
    frame = pd.DataFrame({"x": np.arange(300.0), "y": [None if i % 10 == 0 else i % 2 for i in range(300)]})
    features = {"x": "number", "y": dp.Binary(missing_value_strategy="drop_row")}
    dataset = dp.Preprocessor(features, targets="y", split=dp.RandomSplit((0.2, 0.4, 0.4))).fit_write(
        frame, tmp_path / "a"
    )
    [facts] = [one for one in dataset.report().to_dict()["features"] if one["name"] == "y"]
    assert (facts["missing"], facts["rows"]) == (30, 300)
    assert ("missing", "y") not in alerts_of(dataset)
