"""Splits and loaders as tables."""

from __future__ import annotations

import collections

import pytest

import daskprep as dp
from daskprep.dataset import Split


@pytest.fixture
def dataset_with_html_names(frame, tmp_path):
    renamed = frame.rename(columns={"rooms": "<b>"})
    return dp.Preprocessor({"<b>": "number", "city": "category"}).fit_write(renamed, tmp_path / "d")["train"]


def test_split_html_is_a_table_of_its_outputs(dataset):
    html = dataset["test"]._repr_html_()
    assert "Split &quot;test&quot; of " in html
    assert f"{len(dataset['test'])} rows in 4 blocks of up to 16 rows" in html
    assert html.count("<tr") == 1 + len(dataset["test"].columns) + 1 + 5
    assert "3 x 6 x 8" in html


def test_loader_html_is_a_table_of_its_settings(dataset):
    loader = dataset["train"].loader(batch_size=32, seed=7, columns=["price", "city"], rank=1, world_size=2)
    html = loader._repr_html_()
    for text in ("32 over all ranks", "shuffled, 16 streams, seed 7", "1 of 2", "0, 0 rows yielded", "price, city"):
        assert text in html


def test_loader_html_shows_its_progress(dataset):
    loader = dataset["train"].loader(batch_size=32, columns=["price"], shuffle=False)
    next(iter(loader))
    assert "0, 32 rows yielded" in loader._repr_html_()
    assert "as on disk" in loader._repr_html_()


def test_names_in_tables_are_escaped(dataset_with_html_names):
    for html in (dataset_with_html_names._repr_html_(), dataset_with_html_names.loader(batch_size=16)._repr_html_()):
        assert "<b>" not in html
        assert "&lt;b&gt;" in html


def test_dataset_html_shows_first_rows_without_media(dataset):
    html = dataset._repr_html_()
    head = dataset["train"].head(5)
    assert all(f">{city}</td>" in html for city in head["city"])
    assert f">{head['rooms'][0]:.0f}</td>" in html
    assert html.count("photo") == 1  # in the table of outputs


def test_dataset_html_does_not_compile_namedtuples(dataset, monkeypatch):
    monkeypatch.setattr(collections, "namedtuple", lambda *_, **__: pytest.fail("compiles code"))
    assert f">{dataset['train'].head(1)['city'][0]}</td>" in dataset._repr_html_()


def test_unreadable_rows_are_reported_and_large_blocks_are_not_read(dataset, monkeypatch, sizes):
    whole = len(dataset._repr_html_())
    sizes(shown_block_bytes=-1)
    assert len(dataset._repr_html_()) < whole
    monkeypatch.undo()

    def fail(*arguments, **options):
        raise FileNotFoundError("train/table")

    monkeypatch.setattr(Split, "read", fail)
    assert "The first rows cannot be read: train/table" in dataset._repr_html_()
    monkeypatch.setattr(Split, "is_local", False)
    assert "first rows" not in dataset._repr_html_()


@pytest.mark.parametrize("one", [dp.Number(fill_value=7.0), dp.RandomSplit(seed=7), dp.Oversample("a", ratio=0.7)])
def test_html_of_features_splits_and_balances_shows_parameters(one):
    html = one._repr_mimebundle_()["text/html"]
    assert f">{type(one).__name__}</div>" in html
    assert "<script" not in html
    assert any(f">{value}</td>" in html for value in ("7.0", "7", "0.7"))


def test_fitted_feature_html_names_its_columns(frame):
    fitted = dp.Number().fit(frame[["rooms", "area"]])
    assert "Number, fitted on rooms, area" in fitted._repr_html_()
