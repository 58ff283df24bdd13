"""Words and tables that people read."""

from __future__ import annotations

import pytest

from daskprep.display import markup, tables, words


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (16_400_000, "16.4 MB"), (9e15, "9,000.0 TB")],
)
def test_bytes_come_in_the_unit_that_makes_a_short_number(amount, text):
    assert words.size(amount) == text


def test_an_amount_has_its_noun():
    assert [words.count(n, "process", "processes") for n in (1, 2_000)] == ["1 process", "2,000 processes"]


def test_what_is_there_is_never_called_nothing_nor_what_is_not_all_everything():
    assert [words.share(part, 10**6) for part in (0, 1, 999_999, 10**6)] == ["0 %", "<0.1 %", "99.9 %", "100 %"]


def test_names_are_listed_up_to_a_number_and_the_others_counted():
    assert words.listed(["a", "b"], 2) == "a, b"
    assert words.listed(["a\n", "b", "c"], 2) == r"a\n, b, and 1 more"


def test_a_row_of_one_cell_is_as_wide_as_the_table():
    rows = [("split", "rows"), ("train", "7"), ("and a great many more",)]
    assert tables.aligned(rows) == ["split  rows", "train  7", "and a great many more"]
    html = tables.notebook_table(rows)
    assert html.count("colspan") == 1
    assert "caption" not in html
    assert '<td colspan="2"' in html


def test_lines_above_a_table_are_escaped_and_stand_below_each_other():
    html = tables.notebook_table([["a"]], "1 < 2", "3")
    assert "1 &lt; 2<br>3</caption>" in html
    assert isinstance(html, markup.Markup)
