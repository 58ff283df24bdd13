from __future__ import annotations

import sys

import pytest

import daskprep as dp
from daskprep.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "titles"),
    [
        ("price", ["price: values"]),
        ("city", ["city: classes"]),
        ("review", ["review_word: tokens", "review_word: tokens of a row"]),
        ("review_char", ["review_char: tokens", "review_char: tokens of a row"]),
        ("curve", ["curve: mean by position"]),
        ("listed", ["listed: dates by month", "listed: days of the week", "listed: hours"]),
        ("photo", ["photo: samples", "photo: brightness of the samples"]),
        ("noise", ["noise: samples"]),
        ("bands", ["bands: samples"]),
        ("cell", ["cell: resolutions", "cell: base cells"]),
        ("sold", ["sold: classes"]),
    ],
)
def test_figure_has_a_part_per_chart(dataset, tmp_path, name, titles):
    figure = dataset.plot(name)
    found = [part.get_suptitle() for part in figure.subfigs]
    assert found[: len(titles)] == titles
    figure.savefig(tmp_path / "figure.png", dpi=30)


@pytest.mark.slow
def test_figure_without_name_has_the_first_chart_of_each_feature(dataset, tmp_path):
    figure = dataset.plot()
    titles = [part.get_suptitle() for part in figure.subfigs if part.axes]
    assert {"price: values", "city: classes", "photo: samples", "sold: classes"} <= set(titles)
    assert len(titles) == len(set(titles))
    figure.savefig(tmp_path / "figure.png", dpi=30)


def test_bars_of_one_split_show_row_counts(dataset):
    axes = dataset.plot("city", split="test").subfigs[0].axes[0]
    counts = [int(text.get_text().partition(" ")[0]) for text in axes.texts]
    assert sorted(counts, reverse=True) == counts
    assert sum(counts) == len(dataset["test"])


def test_splits_are_shown_side_by_side(dataset):
    axes = dataset.plot("price", split=None).subfigs[0].axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["train", "validation", "test"]


def test_dollar_signs_are_not_math_text(frame, tmp_path):
    name, value = r"$\x$", r"$\y{$"
    dataset = dp.Preprocessor({name: "category"}).fit_write(frame.assign(**{name: value}), tmp_path / "d")
    figure = dataset.plot(name)
    figure.savefig(tmp_path / "figure.png", dpi=30)
    assert figure.subfigs[0].get_suptitle() == rf"{name}: classes"


def test_unknown_feature_or_split_raises(dataset):
    with pytest.raises(ConfigError, match='no feature "prise". Did you mean "price"'):
        dataset.plot("prise")
    with pytest.raises(ConfigError, match="no split 'tran'"):
        dataset.plot("price", split="tran")


def test_missing_matplotlib_error_names_the_package(dataset, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        dataset.plot("price")
