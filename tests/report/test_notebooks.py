"""Splits and loaders as tables."""

from __future__ import annotations

import pytest

import daskprep as dp


@pytest.fixture
def nasty(frame, tmp_path):
    renamed = frame.rename(columns={"rooms": "<b>"})
    return dp.Preprocessor({"<b>": "number", "city": "category"}).fit_write(renamed, tmp_path / "d")["train"]


def test_a_split_is_a_table_of_its_outputs(dataset):
    html = dataset["test"]._repr_html_()
    assert "Split &quot;test&quot; of " in html
    assert f"{len(dataset['test'])} rows in 4 blocks of up to 16 rows" in html
    assert html.count("<tr") == 1 + len(dataset["test"].columns)
    assert "3 x 6 x 8" in html


def test_a_loader_is_a_table_of_its_settings(dataset):
    loader = dataset["train"].loader(batch_size=32, seed=7, columns=["price", "city"], rank=1, world_size=2)
    html = loader._repr_html_()
    for text in ("32 over all ranks", "shuffled, 16 streams, seed 7", "1 of 2", "0, 0 rows given", "price, city"):
        assert text in html


def test_a_loader_says_how_far_it_is(dataset):
    loader = dataset["train"].loader(batch_size=32, columns=["price"], shuffle=False)
    next(iter(loader))
    assert "0, 32 rows given" in loader._repr_html_()
    assert "as on disk" in loader._repr_html_()


def test_names_in_tables_are_escaped(nasty):
    for html in (nasty._repr_html_(), nasty.loader(batch_size=16)._repr_html_()):
        assert "<b>" not in html
        assert "&lt;b&gt;" in html
