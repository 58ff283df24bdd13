"""Formatted values and tables."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.columns import display


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (16_400_000, "16.4 MB"), (9e15, "9,000.0 TB")],
)
def test_format_bytes_chooses_the_unit(amount, text):
    assert display.format_bytes(amount) == text


def test_format_count_uses_singular_and_plural():
    assert [display.format_count(n, "process", "processes") for n in (1, 2_000)] == ["1 process", "2,000 processes"]


def test_format_share_rounds_neither_to_0_nor_to_100():
    assert [display.format_share(part, 10**6) for part in (0, 1, 999_999, 10**6)] == [
        "0 %",
        "<0.1 %",
        "99.9 %",
        "100 %",
    ]


def test_join_names_truncates_and_counts_the_rest():
    assert display.join_names(["a", "b"], 2) == "a, b"
    assert display.join_names(["a\n", "b", "c"], 2) == r"a\n, b, and 1 more"


def test_single_cell_row_spans_the_table():
    rows = [("split", "rows"), ("train", "7"), ("and a great many more",)]
    assert display.align_columns(rows) == ["split  rows", "train  7", "and a great many more"]
    table = display.Table(("split", "rows"), [(f"s{i}", "7") for i in range(203)], tuple, "split")
    assert table.html().count("colspan") == 1
    assert '<td colspan="2"' in table.html()
    assert "and 3 more splits" in table.html()


def test_columns_wrap_between_words():
    rows = [("feature", "parameters", "learned"), ("a", "strategy='drop_row'", "mean 2; std 3; min 4")]
    assert display.align_columns(rows, 38) == [
        "feature  parameters           learned", "a        strategy='drop_row'  mean 2;",
        "                              std 3;", "                              min 4",
    ]  # fmt: skip


def test_captions_are_escaped_and_stacked():
    html = display.Description(["1 < 2", "3"], []).html()
    assert "<div>1 &lt; 2</div></div><div>3</div>" in html
    assert isinstance(html, display.Markup)


def test_numeric_columns_are_right_aligned():
    rows = [("a", "1,002", "1 row"), ("b", "", "2"), ("c", "<0.1 %", "3")]
    html = display.Table(("name", "number", "mixed"), rows, tuple, "row").html()
    sides = re.findall(r"text-align:(left|right)", html)
    assert sides == ["left", "right", "left"] * 4


def test_only_long_cells_wrap():
    html = display.Table(("name", "why"), [("a b", "word " * 20)], tuple, "row").html()
    assert html.count("white-space:nowrap") == 3
    assert "min-width:9em" in html
    assert html.count("white-space:normal") == 1
    assert "anywhere" not in html


def test_bar_heights_are_proportional_to_counts():
    assert re.findall(r' height="([0-9.]+)"', display.bar_chart([4, 2, 0])) == ["18.0", "9.0", "0.0"]
    assert display.bar_chart([]) == display.bar_chart([0, 0]) == ""


@pytest.mark.parametrize("low", [-1e308, 0.0, 5e-324])
def test_range_chart_stays_within_its_width(low):
    drawn = display.range_chart(low, 1.0, 1.7e308, 1.7e308)
    places = [float(one) for one in re.findall(r' (?:x|width)="([^"]+)"', drawn)]
    assert min(places) >= 0
    assert max(places) <= 72


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-7, "1e-07"),
        (-2.5e-12, "-2.5e-12"),
        (1e308, "1e+308"),
        (float("nan"), ""),
        (0.0, "0"),
        (2e6 + 1e-3, "2000000"),
        (1234567.02, "1234567"),
        ("x" * 50, "x" * 9 + "…"),
        (b"<", r"b'<'"),
    ],
)
def test_format_value(value, text):
    assert display.format_value(value, 10) == text


def test_small_numbers_are_not_shown_as_zero(tmp_path):
    numbers = np.random.default_rng(0).normal(0, 1e-7, 2_000)
    prep = dp.Preprocessor({"tiny": dp.Number(), "year": dp.Number()})
    dataset = prep.fit_write(pd.DataFrame({"tiny": numbers, "year": np.arange(2_000) % 10 + 2_005.0}), tmp_path / "a")
    std, mean = prep.learned_["tiny"].std, prep.learned_["tiny"].mean
    assert f"mean {mean:.6g}; std {std:.6g}" in prep._repr_html_()
    assert "mean 2009.5" in prep._repr_html_()
    html = dataset.report().html
    assert f"std {std:.6g}" in html
    assert f"{numbers[0]:.6g}" in html
    assert f">{numbers.max():.4g}<" in html


@pytest.mark.parametrize(("rows", "is_whole"), [(100, True), (101, False)])
def test_long_tables_scroll_in_html(rows: int, is_whole: bool) -> None:
    card = display.Description(
        ["rows"], [display.Table(("n",), range(rows), lambda number: (str(number),), "row")]
    ).html()
    assert ("max-height" not in card) == is_whole
