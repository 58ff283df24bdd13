"""Decoded rows."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pyarrow.parquet as pq
import pytest

import daskprep as dp


@pytest.fixture
def as_read(files, rows) -> Callable[[str], pd.DataFrame]:
    """Return the source rows of a split, with missing cells imputed."""

    def read(split: str = "train") -> pd.DataFrame:
        dataset = dp.open_dataset(files / "rows.dp")
        found = rows().iloc[dataset[split].read("row_id")["row_id"]].reset_index(drop=True)
        return found.fillna({"price": dataset.learned["price"].mean})

    return read


def test_decode_writes_source_values_as_csv(call, files, as_read):
    output = call("decode", files / "rows.dp", "--split", "validation").out
    found = pd.read_csv(io.StringIO(output), parse_dates=["listed"])
    source = as_read("validation")
    assert found["price"].tolist() == source["price"].tolist()
    for name in ("city", "listed", "sold"):
        assert found[name].tolist() == source[name].tolist()
    assert [sorted(json.loads(cell)) for cell in found["tags"]] == [sorted(set(row.split())) for row in source["tags"]]
    assert [json.loads(cell) for cell in found["demand"]] == [list(map(float, r.split())) for r in source["demand"]]


def test_decode_writes_an_array_of_rows_as_json(call, files, as_read):
    columns = ["--column", "city", "--column", "demand"]
    ended = call("decode", files / "rows.dp", "--rows", 7, *columns, "--format", "json")
    source = as_read()[:7]
    demand = [list(map(float, row.split())) for row in source["demand"]]
    expected = [{"city": city, "demand": row} for city, row in zip(source["city"], demand, strict=True)]
    assert json.loads(ended.out) == expected
    assert len(ended.out.splitlines()) == 9


def test_decode_writes_parquet_by_file_name(call, files, tmp_path, as_read):
    assert call("decode", files / "rows.dp", "-o", tmp_path / "a.parquet") == (0, "", "")
    table = pq.read_table(tmp_path / "a.parquet")
    assert table["city"].to_pylist() == as_read()["city"].tolist()


def test_decode_writes_through_links_and_pipes(call, files, tmp_path):
    expected = call("decode", files / "rows.dp", "--rows", 3).out
    (tmp_path / "link.csv").symlink_to(tmp_path / "there.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit((tmp_path / "pipe.csv").read_text)
        for name in ("link.csv", "pipe.csv", "new/folder/file.csv"):
            assert call("decode", files / "rows.dp", "--rows", 3, "-o", tmp_path / name) == (0, "", "")
    assert call("decode", files / "rows.dp", "--rows", 3, "-o", "-").out == expected
    assert read.result() == (tmp_path / "there.csv").read_text() == expected
    assert (tmp_path / "new/folder/file.csv").read_text() == expected
    assert (tmp_path / "link.csv").is_symlink()


def test_decode_of_no_rows_is_empty(call, files, rows):
    assert json.loads(call("decode", files / "rows.dp", "--rows", 0, "--format", "json").out) == []
    assert list(csv.reader(io.StringIO(call("decode", files / "rows.dp", "--rows", 0).out))) == [list(rows())]


def test_decode_does_not_depend_on_block_size(call, files, tmp_path, config):
    prep = dp.Preprocessor.from_config(config)
    prep.fit_write(files / "rows.csv", tmp_path / "a.dp", block_rows=16)
    for kind in ("csv", "json"):
        whole = call("decode", files / "rows.dp", "--rows", 100, "--format", kind).out
        assert call("decode", tmp_path / "a.dp", "--rows", 100, "--format", kind).out == whole


def test_decode_suggests_names_of_splits_and_columns(call, files):
    call("decode", files / "rows.dp", "--split", "trian").check_line('Did you mean "train"?')
    call("decode", files / "rows.dp", "--column", "citty").check_line('Did you mean "city"?')


def test_decode_writes_numbers_without_float32_rounding(call, tmp_path):
    numbers = [0, 0.9, 12.1, 3.25, 99_999, 1_033_222, 16_777_216]
    scaled = dp.Number(normalization="log1p", column="raw")
    prep = dp.Preprocessor({"raw": dp.Number(normalization=None), "scaled": scaled})
    pd.DataFrame({"raw": numbers}).to_parquet(tmp_path / "a.parquet")
    prep.fit_write(tmp_path / "a.parquet", tmp_path / "a.dp")
    found = pd.read_csv(io.StringIO(call("decode", tmp_path / "a.dp").out))
    assert found["raw"].tolist() == numbers
    assert found["scaled"].tolist() == pytest.approx(found["raw"].tolist(), rel=1e-5)
    assert found["scaled"].tolist()[:3] == [0, 0.9, 12.1]


def test_decode_writes_zeros_of_a_scaled_column(call, tmp_path):
    gains = [0] * 50 + [99_999, 2_174]
    pd.DataFrame({"gain": gains}).to_parquet(tmp_path / "a.parquet")
    dp.Preprocessor({"gain": dp.Number(normalization="zscore")}).fit_write(tmp_path / "a.parquet", tmp_path / "a.dp")
    assert pd.read_csv(io.StringIO(call("decode", tmp_path / "a.dp").out))["gain"].tolist() == gains


def test_fold_option_opens_the_fold(call, files, tmp_path):
    frame = pd.DataFrame({"price": range(30)})
    folded = dp.Preprocessor({"price": "number"}, split=dp.KFold(3)).fit_write(frame, tmp_path / "folds.dp")
    held = folded.fold(1)["validation"].read("row_id")["row_id"].tolist()
    output = call("decode", tmp_path / "folds.dp", "--fold", 1, "--split", "validation").out
    assert pd.read_csv(io.StringIO(output))["price"].tolist() == held
    assert json.loads(call("inspect", tmp_path / "folds.dp", "--fold", 1, "--json").out)["version"]
    assert "3 folds" in call("inspect", tmp_path / "folds.dp").out
    for command in (["decode"], ["inspect", "--json"], ["inspect", "--html", tmp_path / "page.html"]):
        name, *options = command
        assert "has 3 folds: choose one, as in --fold 0" in call(name, tmp_path / "folds.dp", *options).error
    assert "has no folds" in call("decode", files / "rows.dp", "--fold", 0).error
    assert "its folds are 0 to 2" in call("decode", tmp_path / "folds.dp", "--fold", 3).error
