"""Reports, figures and tables of columns with extreme numbers, dates and names."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.columns.summaries import Quantiles
from daskprep.extensions.cli import main
from daskprep.extensions.report.charts import bin_numbers, draw
from daskprep.extensions.report.findings import compute_mean, measure_other
from daskprep.extensions.report.reporters import REPORTERS, gather, list_columns

LARGEST, SMALLEST = np.finfo(np.float64).max, 5e-324
ODD = "<b>\u202e\x00\x1b[31m\u2028$x_1$&amp;" + "w" * 5_000
NUMBERS: dict[str, list[float | None]] = {
    "whole range": [-LARGEST, 0.0, LARGEST] * 4,
    "half of it": [LARGEST, LARGEST / 2, 1.0] * 4,
    "largest": [LARGEST] * 12,
    "lowest": [-LARGEST] * 12,
    "subnormal": [SMALLEST, 2 * SMALLEST, -SMALLEST] * 4,
    "smallest": [SMALLEST] * 12,
    "zero and smallest": [0.0, SMALLEST] * 6,
    "huge and tiny": [LARGEST, SMALLEST, -SMALLEST, 1.0] * 3,
    "neighbours": [1e300, np.nextafter(1e300, np.inf)] * 6,
    "close and far": [1.0, 1.0 + 1e-15, 1e308] * 4,
    "one row": [1.7e308],
    "two rows": [-LARGEST, LARGEST],
    "mostly missing": [None] * 11 + [LARGEST],
    "all missing": [None] * 12,
    "infinite": [np.inf, -np.inf, np.nan, 1.0] * 3,
    "float32": [3.4e38, -3.4e38, 1e-45] * 4,
    "integers": [2.0**63, -(2.0**63), 2.0**53 + 2] * 4,
}
FEATURES: dict[str, Any] = {
    "plain": dp.Number(missing_value_strategy="fill_with_const"),
    "mean": dp.Number(missing_value_strategy="fill_with_mean"),
    "z": dp.Number(normalization="zscore", missing_value_strategy="fill_with_const"),
    "minmax": dp.Number(normalization="minmax", missing_value_strategy="fill_with_const"),
    "iq": dp.Number(normalization="iq", missing_value_strategy="fill_with_const"),
    "outliers": dp.Number(outlier_strategy="fill_with_mean", missing_value_strategy="fill_with_const"),
}


def coordinates(page: str) -> list[float]:
    """Return all coordinates of a drawing."""
    drawn = re.findall(r' (?:x|y|width|height|d|style)="([^"]*)"', page)
    return [float(one) for text in drawn for one in re.findall(r"-?(?:\binf\b|nan|[0-9.]*[0-9])", text)]


def show(dataset: dp.Dataset, path: Path) -> None:
    """Check every view of a dataset: without warnings, with all features, and with finite numbers."""
    page, text, html = dataset.report(path / "report.html").html, repr(dataset), dataset._repr_html_()
    rows, names = len(dataset["train"]), list(dataset.features)
    assert np.isfinite(coordinates(page)).all()
    assert page.count("<section") == len(names)
    assert text.startswith(f"Dataset at {dataset.url}: {rows} row")
    assert html.count("</tr>") >= len(names)
    for name in names:
        figure = dataset.plot(name)
        figure.savefig(path / "plot.png", dpi=20)
        assert np.isfinite([(*axes.get_xlim(), *axes.get_ylim()) for axes in figure.axes]).all()
    head = dataset["train"].head(2)
    assert (list(head), len(head)) == (names, min(rows, 2))
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert main(["inspect", dataset.url]) == 0
    assert output.getvalue().startswith(text)
    assert f"{len(names)} feature" in output.getvalue()


def write(columns: dict[str, Any], features: dict[str, Any], path: Path, **options: Any) -> dp.Dataset:
    prep = dp.Preprocessor(features, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of columns without spread, or with unreadable cells
        dataset = prep.fit_write(pd.DataFrame(columns), path / "made.dp")
    assert np.isfinite(coordinates(prep._repr_html_())).all()
    assert prep._repr_html_().count("</tr>") > len(features)
    assert repr(prep).startswith("Preprocessor(features={")
    return dataset


@pytest.mark.slow
@pytest.mark.parametrize("values", NUMBERS)
def test_extreme_numbers_are_shown(values, tmp_path):
    column = pd.Series(NUMBERS[values], dtype=float)
    # The mean of a column without numbers raises.
    features = {name: one for name, one in FEATURES.items() if name != "mean" or column.notna().any()}
    show(write(dict.fromkeys(features, column), features, tmp_path), tmp_path)


WORDS = {
    "empty": [""] * 9,
    "blank": [" ", "\t", "\u00a0"] * 3,
    "one": ["a"] * 9,
    "missing": [None, None, "a"] * 3,
    "odd": [ODD, "\u200f\u05d0", "$\\frac{1}{$"] * 3,
    "long": ["a b c " * 2_000, "", "x"] * 3,
}


@pytest.mark.slow
@pytest.mark.parametrize("words", WORDS)
def test_empty_and_unusual_words_are_shown(words, tmp_path):
    features = {kind: kind for kind in ("category", "set", "bag", "sequence", "text")}
    show(write(dict.fromkeys(features, WORDS[words]), features, tmp_path), tmp_path)


OTHERS: dict[str, tuple[Any, list[Any]]] = {
    "no points": ("timeseries", ["", "", ""]),
    "one point": ("timeseries", ["1", "2", "3"]),
    "far points": ("timeseries", ["3.4e38 -3.4e38", "1e-45 3e38", "1e300 -1e300"]),
    "no vector": ("vector", ["", "", ""]),
    "far vector": ("vector", ["3.4e38 -3.4e38", "1e-45 3e38", "1e300 -1e300"]),
    "same vector": ("vector", ["3e38 3e38"] * 3),
    "first and last year": ("date", ["0001-01-01", "9999-12-31", "1970-01-01"]),
    "first year": ("date", ["0001-01-01", "0001-01-02"]),
    "last year": ("date", ["9999-12-31T23:59:59", "9999-12-30"]),
    "one day": ("date", ["2024-02-29"]),
    "no date": ("date", [None, None]),
    "binary of one": ("binary", [True, True]),
    "missing binary": ("binary", [None, True]),
    "h3": ("h3", ["8928308280fffff"]),
    "no h3": ("h3", [None]),
}


@pytest.mark.parametrize("case", OTHERS)
def test_few_and_extreme_values_of_other_types_are_shown(case, tmp_path):
    feature, values = OTHERS[case]
    show(write({"x": values}, {"x": feature}, tmp_path), tmp_path)


@pytest.mark.parametrize("values", [[2**63 - 1, -(2**63)] * 3, [2**64 - 1] * 3, [-(2**63)] * 3])
def test_largest_integers_are_shown(values, tmp_path):
    show(write({"x": values}, {"x": "number"}, tmp_path), tmp_path)


@pytest.mark.parametrize("name", [ODD, "\u202eabc", "$x_{", "\n", " ", "a" * 3_000, "<script>", '"', "__"])
def test_unusual_names_are_shown(name, tmp_path):
    show(write({name: [1.0, 2.0], "y": ["a", "b"]}, {name: "number", "y": "category"}, tmp_path), tmp_path)


@pytest.mark.parametrize("values", NUMBERS)
def test_types_of_extreme_numbers_are_inferred(values):
    column = pd.Series(NUMBERS[values], dtype=float)
    if len(column) == 1:
        column = pd.concat([column, column])
    found = dp.infer_features(pd.DataFrame({"x": column, "y": np.arange(len(column)) % 2}))
    finite = column[np.isfinite(column)]
    # One value is informative if it is missing elsewhere, and uninformative if it is in every row.
    kind = "number" if len(set(finite)) > 1 else "binary" if 0 < len(finite) < len(column) else None
    assert [getattr(found.get(name), "kind", None) for name in ("x", "y")] == [kind, "binary"]
    assert repr(found).startswith(f"{len(found)} feature")
    assert found._repr_html_().count("</tr>") >= 3  # header, x and y


@pytest.mark.parametrize("values", NUMBERS)
def test_histogram_covers_all_doubles(values):
    found = np.array([one for one in NUMBERS[values] if one is not None and np.isfinite(one)])
    quantiles = Quantiles.of(found)
    if not len(found):
        return
    chart = bin_numbers("Values", {"train": quantiles})
    assert chart.counts["train"].sum() == len(found)
    assert np.isfinite(chart.edges).all()
    assert (np.diff(chart.edges) > 0).all()
    labels = " ".join([*chart.names, *(text for _, text in chart.ticks)])
    assert "inf" not in labels
    assert np.isfinite(coordinates(draw(chart))).all()
    assert found.min() <= compute_mean(quantiles) <= found.max()


@pytest.mark.parametrize("values", NUMBERS)
def test_band_covers_all_doubles(values):
    found = np.array([0.0 if one is None else one for one in NUMBERS[values]])
    rows = np.stack([found, found[::-1]], axis=1)
    charts = list(REPORTERS["others"].charts(None, {"train": measure_other(None, rows)}))
    assert len(charts) == 2
    for chart in charts:
        assert np.isfinite(coordinates(draw(chart))).all()


def test_dates_with_selected_parts_are_counted_like_full_dates(tmp_path: Path) -> None:
    frame = pd.DataFrame({"day": pd.date_range("1969-12-30 22:00", periods=50, freq="7h")})
    whole, parts = dp.Date(column="day"), dp.Date(column="day", parts=["weekend"], since="day")
    dataset = dp.Preprocessor({"whole": whole, "parts": parts}).fit_write(frame, tmp_path / "a.dp")
    show(dataset, tmp_path / "report.html")
    found = gather([dataset["train"]], list_columns(dataset))
    for one, other in zip(*(vars(found[name]["train"]).values() for name in ("whole", "parts")), strict=True):
        np.testing.assert_equal(getattr(one, "counts", one), getattr(other, "counts", other))
