"""New rows compared with fitted rows: planted faults are detected, unchanged rows have no findings."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from jsonschema import Draft202012Validator

import daskprep as dp
from daskprep.errors import CheckError, ConfigError

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "benchmarks" / "own" / "check.py"))
SCHEMA = Draft202012Validator(json.loads((ROOT / "docs" / "check.schema.json").read_text("utf-8")))
draw = SCRIPT["draw"]
FOUND_IN = {
    "units": "values price", "spelling": "unseen city", "dates": "range day", "nulls": "missing area",
    "swapped columns": "values area", "kind": "type rooms", "sign": "values balance", "truncation": "values user",
    "time zone": "hours day", "repeated rows": "values price",
}  # fmt: skip


@pytest.fixture(scope="module")
def prep() -> dp.Preprocessor:
    return dp.Preprocessor(SCRIPT["FEATURES"]).fit(draw(4_000, np.random.default_rng(1)))


def test_planted_faults_are_detected(prep):
    found = SCRIPT["find_faults"](prep, 2_000, np.random.default_rng(2))
    assert {name for name, kinds in found.items() if FOUND_IN[name] not in kinds} == set()
    assert len(found) == 10


def test_unchanged_rows_have_no_findings():
    assert list(SCRIPT["false_alarms"](40, 10_000, np.random.default_rng(3))) == []


def test_check_does_not_depend_on_partitioning(as_frame, prep, tmp_path):
    new = draw(300, np.random.default_rng(4)).astype({"city": str, "user": str, "tags": str, "review": str})
    new = new.assign(price=new["price"] * 10, area=new["area"].where(new["rooms"] > 1))
    expected = prep.check(new)
    assert {finding.kind for finding in expected.findings} >= {"values", "missing"}
    assert prep.check(as_frame(new)) == expected
    new.to_parquet(tmp_path / "new.parquet", row_group_size=70)
    assert prep.check(tmp_path / "new.parquet") == expected
    assert prep.check({"train": new[:100], "test": new[100:]}) == expected


@pytest.mark.slow
@pytest.mark.cluster
def test_check_on_cluster_equals_threads(cluster, prep, tmp_path):
    new = draw(2_000, np.random.default_rng(5)).assign(rooms=3)
    new.to_parquet(tmp_path / "new.parquet", row_group_size=500)
    on_cluster = prep.check(tmp_path / "new.parquet")
    assert on_cluster == prep.check(new, workers="threads")
    assert on_cluster.findings


def test_json_follows_schema(prep):
    new = draw(500, np.random.default_rng(6)).drop(columns="area").assign(price=-1.0, rooms="x")
    result = prep.check(new)
    SCHEMA.validate(json.loads(json.dumps(result.to_dict(), allow_nan=False)))
    assert [(one.kind, one.feature) for one in result.findings if one.psi is None] == [("column", "area")]
    assert ("unreadable", "rooms") in {(one.kind, one.feature) for one in result.findings}
    assert str(result).splitlines()[0] == f"{len(result.findings)} findings in 500 rows"


def test_check_without_rows_is_an_error_finding(prep):
    result = prep.check(draw(9, np.random.default_rng(6)).head(0))
    SCHEMA.validate(result.to_dict())
    assert [(one.severity, one.kind, one.feature) for one in result.findings] == [("error", "rows", "")]
    assert str(result).startswith("1 finding in 0 rows\nerror    the new data has no rows")
    with pytest.raises(CheckError, match="no rows"):
        result.raise_for("error")


def test_targets_and_weights_are_optional():
    rng = np.random.default_rng(7)
    frame = pd.DataFrame({"x": rng.normal(size=900), "y": rng.choice(["a", "b"], 900), "w": rng.random(900)})
    prep = dp.Preprocessor({"x": "number", "y": "category"}, targets="y", weight="w").fit(frame)
    assert prep.check(frame[["x"]]).findings == ()
    assert [one.feature for one in prep.check(frame.assign(y="a")).findings] == ["y"]
    with pytest.raises(dp.errors.MissingColumnError):
        prep.encode(frame[["y"]])
    assert [one.text for one in prep.check(frame[["y"]]).findings] == ['column "x" is missing']


def test_raise_on_severity(prep):
    later = draw(3_000, np.random.default_rng(8))
    later["day"] += pd.Timedelta(days=200)
    assert prep.check(later).findings == ()
    later["area"] = later["area"].where(np.arange(3_000) % 50 > 0)
    assert {one.severity for one in prep.check(later, raise_on="error").findings} == {"warning"}
    with pytest.raises(CheckError, match="warning  area"):
        prep.check(later, raise_on="warning")
    with pytest.raises(CheckError, match='column "price" is missing'):
        prep.check(later.drop(columns="price"), raise_on="error")
    with pytest.raises(ConfigError, match="raise_on='any'"):
        prep.check(later, raise_on="any")


def test_older_state_lists_unchecked_features(prep):
    state = prep.to_dict()
    for feature in state["features"].values():
        for key in ("value_edges", "value_counts", "hour_counts"):
            feature["learned"].pop(key, None)
    older = dp.Preprocessor.from_dict(state)
    new = draw(1_000, np.random.default_rng(9))
    result = older.check(new.assign(price=new["price"] * 100, city="Rom"))
    assert {one.feature for one in result.findings} == {"city"}
    assert {("values", name) for name in ("price", "area", "rooms", "balance", "day")} <= set(result.unchecked)


@pytest.mark.parametrize("strategy", ["fill_with_mode", "ffill", "drop_row", "fill_with_const"])
def test_imputed_values_are_not_fitted_values(strategy):
    constants = {"c": "a", "b": True} if strategy == "fill_with_const" else {}
    types = {"x": dp.Number, "c": dp.Category, "b": dp.Binary, "d": dp.Date}
    features = {}
    for name, kind in types.items():
        constant = {"fill_value": constants[name]} if name in constants else {}
        features[name] = kind(missing_value_strategy=strategy, **constant)
    rng, samples = np.random.default_rng(10), []
    for rows in (3_000, 2_000):
        table = pd.DataFrame({"x": rng.integers(0, 9, rows), "c": rng.choice(list("ab"), rows)})
        table["b"] = rng.random(rows) < 0.5
        table["d"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 99, rows), "D")
        samples.append(table.astype(object).where(rng.random((rows, 4)) < 0.6))
    assert dp.Preprocessor(features).fit(samples[0]).check(samples[1]).findings == ()


def test_altered_bins_raise(prep):
    for key, value in (("value_edges", [2.0, 1.0]), ("value_counts", [1])):
        state = prep.to_dict()
        state["features"]["price"]["learned"][key] = value
        with pytest.raises(dp.errors.CorruptDatasetError, match="price"):
            dp.Preprocessor.from_dict(state)
