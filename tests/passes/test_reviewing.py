"""Rows of a daily job: dates that move on are no fault, and rows that are appended, written or encoded are checked."""

from __future__ import annotations

import json
import warnings
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.errors import CheckError, ConfigError
from daskprep.extensions.cli import main

FEATURES = {"amount": "number", "at": "date", "city": "category", "returned": "binary"}


def day(number: int, rows: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(number)
    at = pd.Timestamp("2024-03-06") + pd.to_timedelta(number * 86_400 + rng.integers(6 * 3600, 22 * 3600, rows), "s")
    frame = pd.DataFrame({"amount": rng.lognormal(3, 0.5, rows).round(2), "at": at})
    return frame.assign(city=rng.choice(list("abc"), rows), returned=rng.choice(["yes", "no"], rows))


FAULTS: dict[str, tuple[str, Any]] = {
    "missing": ("amount", lambda rows: rows["amount"].where(rows.index >= 100)),
    "decimal commas": ("amount", lambda rows: rows["amount"].map("{:.2f}".format).str.replace(".", ",")),
    "units": ("amount", lambda rows: rows["amount"] * 100),
    "day first": ("at", lambda rows: "06.03.2024"),
    "far": ("at", lambda rows: rows["at"] + pd.DateOffset(years=100)),
    "spelling": ("city", lambda rows: rows["city"].str.upper()),
    "labels": ("returned", lambda rows: rows["returned"].where(rows.index >= 100, "maybe")),
}
BY_CELL = ["missing", "decimal commas", "spelling", "labels"]  # missing, unreadable or unseen


@pytest.fixture
def prep(tmp_path) -> dp.Preprocessor:
    prep = dp.Preprocessor(FEATURES, split=None)
    prep.fit_write(day(0), tmp_path / "a.dp")
    return prep


def carried(rows: pd.DataFrame, carrier: str, folder: Any) -> Any:
    if carrier == "csv":
        rows.to_csv(folder / "rows.csv", index=False)
        return folder / "rows.csv"
    return {"frame": rows, "dask": dd.from_pandas(rows, 3), "by split": {"train": rows[:300], "test": rows[300:]}}[
        carrier
    ]


@pytest.mark.slow
def test_dates_that_move_on_are_no_finding(prep):
    assert [number for number in range(1, 30) if prep.check(day(number), raise_on="warning").findings] == []
    assert prep.check(pd.concat([day(number) for number in range(60)])).findings == ()


def test_appended_rows_move_the_ranges(prep, tmp_path):
    loaded, path = dp.Preprocessor.from_dict(prep.to_dict()), tmp_path / "a.dp"
    high = day(60).assign(amount=lambda rows: rows["amount"].where(rows.index > 0, 200.0))
    assert [one.kind for one in prep.check(high).findings] == ["range"]  # after a gap of two months
    with pytest.warns(UserWarning, match='append: .* column "at": 100 % is above'):
        prep.append(high, path)
    stored = dp.Preprocessor.from_dataset(path)
    assert stored.to_dict()["features"] == prep.to_dict()["features"]
    loaded.append(day(1), path)  # with the state before the first append
    for one in (prep, stored, loaded):
        assert one.check(high).findings == one.check(day(80)).findings == ()
        assert one.learned_["amount"].value_edges[-1] == 200
    assert len(dp.open_dataset(path)["train"].read("amount")["amount"]) == 3 * 400


def test_grow_moves_the_ranges(as_frame, prep):
    before = prep.encode(day(60))
    assert prep.grow(as_frame(day(60).assign(city="d"))) == {"city": {"d": 400}}
    assert prep.check(day(80)).findings == ()
    for name, array in prep.encode(day(60)).items():
        assert np.array_equal(array, before[name])


@pytest.mark.parametrize("carrier", ["frame", "dask", "csv", "by split"])
@pytest.mark.parametrize("fault", FAULTS)
def test_append_reports_what_check_finds(prep, fault, carrier, tmp_path):
    column, plant = FAULTS[fault]
    rows = day(1).assign(**{column: plant(day(1))})
    expected, path = prep.check(rows), tmp_path / "a.dp"
    assert {one.feature for one in expected.findings} == {column}
    files = sorted(path.rglob("*"))
    with pytest.raises(CheckError, match=f"(error|warning)  {column}"):
        prep.append(carried(rows, carrier, tmp_path), path, on_findings="raise")
    assert len(dp.open_dataset(path)["train"]) == 400
    assert {file for file in path.rglob("*") if file.is_file()} == {file for file in files if file.is_file()}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        prep.append(carried(rows, carrier, tmp_path), path)
    [message] = [str(one.message) for one in caught if "append" in str(one.message)]
    assert all(f'column "{column}": {one.text}' in message for one in expected.findings)


def test_append_ignores_findings(prep, tmp_path):
    grown = prep.append(day(1).assign(city="x"), tmp_path / "a.dp", on_findings="ignore")
    assert len(grown["train"]) == 800
    with pytest.raises(ConfigError, match="on_findings='stop'"):
        prep.append(day(2), tmp_path / "a.dp", on_findings="stop")


@pytest.mark.parametrize("count", [60, 400])
@pytest.mark.parametrize("way", ["write", "encode", "predict"])
@pytest.mark.parametrize("fault", [*FAULTS, "none"])
def test_cells_that_differ_from_the_fit_warn_once(fault, way, count, tmp_path):
    column, plant = FAULTS.get(fault, ("city", lambda rows: rows["city"]))
    rows = day(1).assign(**{column: plant(day(1))}).iloc[max(100 - count // 2, 0) :][:count]
    prep = dp.Preprocessor(FEATURES, targets="returned", split=None).fit(day(0))
    calls = {
        "write": lambda: prep.write(rows, tmp_path / "b.dp"),
        "encode": lambda: prep.encode(rows),
        "predict": lambda: prep.predict(rows, lambda batch: batch["amount"]),
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        calls[way]()
    messages = [str(one.message) for one in caught if str(one.message).startswith(f"{way}: ")]
    # A prediction needs no labels, a write leaves out rows without them, and `encode` leaves out the target.
    is_expected = fault in BY_CELL and column != "returned"
    without = [str(one.message) for one in caught if 'encoded without "returned"' in str(one.message)]
    assert len(without) == (way == "encode" and column == "returned")
    assert len(messages) == is_expected
    if is_expected:
        [finding] = [one for one in prep.check(rows).findings if one.kind in ("missing", "unreadable", "unseen")]
        assert f'column "{column}": {finding.text}' in messages[0]


def test_zip_codes_that_pandas_read_as_numbers_warn(tmp_path):
    rng = np.random.default_rng(0)
    codes = [f"{code:05}" for code in rng.integers(1_000, 20_000, 30)]
    pd.DataFrame({"zip": rng.choice(codes, 500), "x": 1.0, "y": rng.random(500)}).to_csv(tmp_path / "a.csv")
    prep = dp.Preprocessor({"zip": "category", "y": "number"}, targets="y").fit(tmp_path / "a.csv")
    with pytest.warns(
        UserWarning, match=r'predict: column "zip": \d.*has a category or token that the fit lacks.*dtype='
    ):
        prep.predict(pd.read_csv(tmp_path / "a.csv"), lambda batch: batch["zip"].float())


def test_few_rows_and_lazy_rows_do_not_warn(prep):
    rows = day(1).assign(city="x")
    prep.encode(rows[:8])
    {name: array.compute() for name, array in prep.encode(dd.from_pandas(rows, 2)).items()}


@pytest.mark.parametrize("names", [["amount"], ["amount", "city"], ["hours", "at"], ["values"]], ids=str)
def test_columns_and_ignore_select_findings(prep, names, tmp_path):
    rows = day(1).assign(amount=lambda rows: rows["amount"] * 100, city="x")
    rows["at"] += pd.Timedelta(hours=9)
    every = prep.check(rows).findings
    kept = [one for one in every if one.feature not in names and one.kind not in names]
    assert [(one.feature, one.kind) for one in prep.check(rows, ignore=names).findings] == [
        (one.feature, one.kind) for one in kept
    ]
    columns = [name for name in names if name in FEATURES]
    found = prep.check(rows, columns=columns or None).findings
    assert {one.feature for one in found} == ({*columns} or {one.feature for one in every})
    prep.save(tmp_path / "prep.json")
    rows.to_csv(tmp_path / "new.csv", index=False)
    options = [part for name in names for part in ("--ignore", name)]
    status = main(["check", str(tmp_path / "prep.json"), str(tmp_path / "new.csv"), *options])
    assert status == bool(kept)


def test_unknown_names_of_columns_and_kinds_raise(prep):
    with pytest.raises(ConfigError, match="columns='hours' is no feature or column"):
        prep.check(day(1), columns="hours")
    with pytest.raises(ConfigError, match="ignore='amuont' is no .* Did you mean \"amount\""):
        prep.check(day(1), ignore="amuont")
    renamed = dp.Preprocessor({"price": dp.Number(column="amount")}).fit(day(0))
    rows = day(1).assign(amount=-5.0)
    assert [renamed.check(rows, ignore=name).findings for name in ("price", "amount")] == [(), ()]
    assert json.dumps(renamed.check(rows, columns="amount").to_dict())
