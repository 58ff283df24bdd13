"""Overview, alerts, associations and drift."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from jsonschema import Draft202012Validator

import daskprep as dp
from daskprep.report import associations
from daskprep.report.associations import associate, sample_scalars, suspects
from daskprep.report.findings import drifts
from daskprep.report.gathering import columns_of
from daskprep.report.measures import ClassTally
from daskprep.summaries import Quantiles

ROWS = 2_000
SCHEMA = Path(__file__).parents[2] / "docs" / "report.schema.json"


@pytest.fixture(scope="module")
def told(tmp_path_factory):
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
    return prep.fit_write(frame, tmp_path_factory.mktemp("told") / "d")


def alerts_of(told):
    return {(one["kind"], one["feature"]) for one in told.report().to_dict()["alerts"]}


def test_each_alert_names_its_feature_and_no_other(told):
    assert alerts_of(told) == {
        ("constant", "same"),
        ("high-cardinality", "ids"),
        ("imbalance", "rare"),
        ("skew", "skew"),
        ("missing", "gaps"),
        ("drift", "shift"),
        ("leakage", "number"),
        ("leakage", "cube"),
        ("leakage", "shift"),  # in training rows, it is the number
    }


def test_the_json_follows_its_schema_and_is_a_copy(told):
    report = told.report()
    answer = report.to_dict()
    Draft202012Validator(json.loads(SCHEMA.read_text("utf-8"))).validate(json.loads(json.dumps(answer)))
    answer["alerts"].clear()
    assert report.to_dict()["alerts"]
    assert [one["name"] for one in answer["features"]] == list(told.features)
    gaps = next(one for one in answer["features"] if one["name"] == "gaps")
    assert 0.35 < gaps["missing"] / gaps["rows"] < 0.45


def test_the_page_shows_overview_alerts_and_associations(told):
    html = told.report().html
    for heading in ("Alerts", "First rows", "Overview", "Associations"):
        assert f"<h2>{heading}</h2>" in html
    assert "drift in validation" in html
    assert "with target" in html


def test_associations_are_strong_for_copies_and_weak_for_noise(told):
    pairs = {frozenset((p["first"], p["second"])): p for p in told.report().to_dict()["associations"]}
    copies, cubes = pairs[frozenset(("label", "copy"))], pairs[frozenset(("number", "cube"))]
    assert (copies["measure"], copies["strength"]) == ("Cramér's V", pytest.approx(1))
    assert (cubes["measure"], cubes["strength"]) == ("Spearman", pytest.approx(1))
    assert pairs[frozenset(("number", "target"))]["measure"] == "correlation ratio"
    assert all(pairs[frozenset(("noise", other))]["strength"] < 0.15 for other in ("number", "label", "ids", "target"))


def test_the_strength_of_ranks_is_that_of_pandas(told):
    rows = sample_scalars(told["train"], columns_of(told))
    [pair] = [p for p in associate(rows) if {p["first"], p["second"]} == {"gaps", "skew"}]
    assert pair["strength"] == pytest.approx(abs(rows["gaps"].corr(rows["skew"], method="spearman")))


def test_a_sample_is_of_bounded_size_and_evenly_spaced(told, monkeypatch):
    monkeypatch.setattr(associations, "SAMPLE_ROWS", 100)
    rows = sample_scalars(told["train"], columns_of(told))
    assert len(rows) == 100
    whole = told["train"].read("noise")["noise"]
    assert rows["noise"][:10].tolist() == whole[:10].tolist()
    assert rows["noise"][-10:].tolist() == whole[-10:].tolist()


@pytest.mark.parametrize("rows", [1, 2, 20, 60])
def test_of_few_rows_nothing_is_suspected(told, rows):
    few = sample_scalars(told["train"], columns_of(told))[:rows][["noise", "gaps", "ids", "target"]]
    assert suspects(few, ["target"]) == []


def test_duplicates_are_told_unless_rows_were_repeated_on_purpose(tmp_path):
    frame = pd.DataFrame({"x": np.arange(300.0) % 200, "y": np.where(np.arange(300) % 3, "a", "b")})
    frame["y"] = np.where(np.arange(300) % 200 % 3, "a", "b")
    dataset = dp.Preprocessor({"x": "number", "y": "category"}).fit_write(frame, tmp_path / "a")
    assert ("duplicates", None) in alerts_of(dataset)
    balanced = dp.Preprocessor({"x": "number", "y": "category"}, balance=dp.Oversample("y", ratio=1.0))
    assert ("duplicates", None) not in alerts_of(balanced.fit_write(frame, tmp_path / "b"))


def test_drift_is_zero_for_equal_shares_and_high_for_others():
    tallies = [ClassTally(np.array(one)) for one in ([500, 500], [50, 50], [90, 10])]
    found = drifts(dict(zip(("train", "validation", "test"), tallies, strict=True)))
    assert found["validation"][0] < 1e-3
    assert not found["validation"][1]
    # (0.9 - 0.5) ln(0.9 / 0.5) + (0.1 - 0.5) ln(0.1 / 0.5), but for half a row in each class
    assert found["test"][0] == pytest.approx(0.879, abs=0.03)
    assert found["test"][1]


def test_drift_of_numbers_is_by_deciles_of_the_first_split():
    rng = np.random.default_rng(0)
    same, moved = (Quantiles.of(rng.normal(shift, 1, 5_000)) for shift in (0, 1))
    first = Quantiles.of(rng.normal(0, 1, 5_000))
    found = drifts({"train": first, "validation": same, "test": moved})
    assert found["validation"][0] < 0.02
    assert found["test"][0] > 0.5


def test_a_frequent_value_is_no_drift_however_many_others_there_are():
    rng = np.random.default_rng(0)
    parts = [np.where(rng.random(size) < 0.3, 0.75, rng.normal(0, 1, size)) for size in (14_000, 2_000)]
    train, validation = map(Quantiles.of, parts)
    assert not train.exact
    assert validation.exact
    assert drifts({"train": train, "validation": validation})["validation"][0] < 0.02


def test_cross_fitted_rows_and_bent_numbers_give_no_alert(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"c": rng.choice(list("abcde"), 4_000), "y": rng.integers(0, 2, 4_000)})
    frame["e"] = np.exp(3 * rng.normal(size=4_000))
    features = {"c": dp.TargetEncoding(target="y"), "y": "binary"}
    features |= {"bent": dp.Number(column="e", normalization="quantile_normal"), "e": dp.Number()}
    prep = dp.Preprocessor(features, targets="y", split=dp.RandomSplit())
    assert alerts_of(prep.fit_write(frame, tmp_path / "a")) == {("skew", "e")}


def test_missing_labels_are_a_share_of_all_rows_though_training_rows_are_few(tmp_path):
    frame = pd.DataFrame({"x": np.arange(300.0), "y": [None if i % 10 == 0 else i % 2 for i in range(300)]})
    features = {"x": "number", "y": dp.Binary(missing_value_strategy="drop_row")}
    dataset = dp.Preprocessor(features, targets="y", split=dp.RandomSplit((0.2, 0.4, 0.4))).fit_write(
        frame, tmp_path / "a"
    )
    [facts] = [one for one in dataset.report().to_dict()["features"] if one["name"] == "y"]
    assert (facts["missing"], facts["rows"]) == (30, 300)
    assert ("missing", "y") not in alerts_of(dataset)
