"""The first rows of a split, in which imputed cells are marked."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import daskprep as dp
from daskprep.dataset.describing import read_first_rows
from daskprep.storage.manifest import MANIFEST

ROWS = 300
FEATURES = {
    "price": dp.Number(missing_value_strategy="fill_with_mean"),
    "city": dp.Category(missing_value_strategy="fill_with_mode"),
    "level": dp.Number(missing_value_strategy="ffill"),
    "label": dp.Binary(missing_value_strategy="drop_row"),
}


def make_frame(seed, rows=ROWS):
    rng = np.random.default_rng(seed)
    price = pd.Series(rng.lognormal(4, 0.5, rows).round(2).astype(str)).mask(rng.random(rows) < 0.2)
    frame = pd.DataFrame({"price": price.mask(rng.random(rows) < 0.2, "see text")})
    frame["city"] = pd.Series(rng.choice(["Oslo", "Rome"], rows)).mask(rng.random(rows) < 0.4)
    frame["level"] = pd.Series(rng.normal(size=rows)).mask(rng.random(rows) < 0.3)
    frame["label"] = pd.Series(rng.choice(["yes", "no"], rows)).mask(rng.random(rows) < 0.2)
    return frame


def gaps_of(frame, dataset):
    """Return the expected missing cells of the first rows, from the source."""
    found = []
    for split in dataset:
        for place, row in enumerate(dataset[split].read("row_id", stop=5)["row_id"].tolist()):
            for name in FEATURES:
                cell = frame[name][row]
                if kind := "missing" if pd.isna(cell) else "unreadable" if cell == "see text" else None:
                    found.append((split, place, name, kind))
    return sorted(found)


@pytest.mark.slow
@given(
    seed=st.integers(0, 100),
    size=st.sampled_from([7, 50, ROWS]),
    shuffle=st.booleans(),
    split=st.sampled_from([None, dp.RandomSplit((0.5, 0.3, 0.2)), dp.HashSplit("price"), dp.StratifiedSplit("label")]),
    balance=st.sampled_from([None, dp.Oversample("label", ratio=1.0)]),
)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.filterwarnings("ignore:.*(cannot be read|rows of)")
def test_missing_cells_of_the_first_rows_equal_the_source(tmp_path_factory, seed, size, shuffle, split, balance):
    path, frame = tmp_path_factory.mktemp("gaps"), make_frame(seed)
    frame.to_parquet(path / "a.parquet", row_group_size=size)
    source = dp.read_files(path / "a.parquet", partition_bytes=1)
    prep = dp.Preprocessor(FEATURES, split=split, balance=balance)
    dataset = prep.fit_write(source, path / "a.dp", shuffle=shuffle, block_rows=16)
    assert list(dataset.manifest.missing_cells) == gaps_of(frame, dataset)


@pytest.mark.filterwarnings("ignore:.*cannot be read")
def test_imputed_cells_are_marked(tmp_path):
    frame = pd.DataFrame({"price": ["10", None, "see text", "14", "18"], "city": ["a", None, "b", "b", "c"]})
    dataset = dp.Preprocessor({name: FEATURES[name] for name in frame}).fit_write(frame, tmp_path / "a.dp")
    assert read_first_rows(dataset["train"]) == [
        ("price", "city"),
        ("10", "a"),
        ("14 (imputed)", "b (imputed)"),
        ("14 (unreadable, imputed)", "b"),
        ("14", "b"),
        ("18", "c"),
    ]
    assert "14 (unreadable, imputed)" in dataset.report().html


@pytest.mark.filterwarnings("ignore:.*cannot be read")
def test_cells_of_the_missing_indicator_are_marked(tmp_path):
    prep = dp.Preprocessor({"price": dp.Number(missing_value_strategy="fill_with_mean", missing_indicator=True)})
    dataset = prep.fit_write(pd.DataFrame({"price": ["10", None, "see text", "14"]}), tmp_path / "a.dp")
    assert read_first_rows(dataset["train"])[1:] == [("10",), ("(missing)",), ("(unreadable)",), ("14",)]


def test_datasets_without_missing_cells_mark_possibly_imputed_cells(tmp_path):
    frame = pd.DataFrame({"price": [10.0, None, 14.0, 12.0], "whole": [1.0, 2.0, 3.0, 2.0]})
    features = {"price": FEATURES["price"], "whole": dp.Number(missing_value_strategy="fill_with_mean")}
    dataset = dp.Preprocessor(features).fit_write(frame, tmp_path / "a.dp")
    older = dataclasses.replace(dataset.manifest, missing_cells=None)
    assert b"gaps" not in older.to_bytes()
    (tmp_path / "a.dp" / MANIFEST).write_bytes(older.to_bytes())
    opened = dp.open_dataset(tmp_path / "a.dp")
    assert [row[0] for row in read_first_rows(opened["train"])[1:]] == [
        "10",
        "12 (maybe imputed)",
        "14",
        "12 (maybe imputed)",
    ]
    assert "may be imputed" in opened.report().html
    assert "may be imputed" not in dataset.report().html
