"""The display of a Preprocessor in a notebook and in a terminal, before and after fitting."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from daskprep.columns.vocabulary import SpecialSymbols, Vocabulary
from daskprep.extensions.cli.program import main
from daskprep.extensions.summary_html import describe, describe_learned
from daskprep.features import FEATURES, Binary, Category, Learned, Number, Sequence, TargetEncoding
from daskprep.features.base import rows_seen
from daskprep.features.binary import LearnedBinary
from daskprep.features.category import LearnedCategory
from daskprep.features.number import LearnedNumber
from daskprep.features.sequence import LearnedSequence, LearnedText
from daskprep.preprocessor import Preprocessor
from daskprep.sources.balance import Oversample
from daskprep.sources.split import RandomSplit, StratifiedSplit

SCRIPT = "<script>alert('&')</script>"


class Page(HTMLParser):
    """Cells by row, caption text, tags and attributes; raises if tags are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.caption, self.tags, self.attributes, self.open = [], "", set(), set(), []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in ("br", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        data = data.replace("\u00a0", " ")  # before a percent sign
        if self.open[-1] == "div":
            self.caption += data + "\n"
        else:
            self.rows[-1][-1] += data


def page_of(*args):
    return Page(describe(*args).html())


def cells_of(learned, feature=None, name="x"):
    """Return the cells of one feature by column name."""
    columns, row = page_of({name: feature or Number()}, {name: learned}).rows
    return dict(zip(columns, row, strict=True))


def vocabulary_of(counts, specials=None):
    specials = specials or SpecialSymbols.for_category()
    tokens = [*specials.symbols, *counts]
    return Vocabulary(pa.array(tokens), np.array([0] * len(specials) + [*counts.values()], np.int64), specials)


# -- before fitting


def test_unfitted_description_lists_changed_parameters():
    features = {"price": Number(normalization="iq", fill_value=-1.0), "city": Category(column="town")}
    page = page_of(features, {}, RandomSplit((0.5, 0.5), seed=3), Oversample("city", ratio=0.5))
    assert page.rows == [
        ["feature", "type", "parameters"],
        ["price", "number", "fill_value=-1.0, normalization='iq'"],
        ["city (column 'town')", "category", ""],
    ]
    assert page.caption.splitlines() == [
        "2 features, not fitted",
        "split: RandomSplit(seed=3, shares=(0.5, 0.5))",
        "balance: Oversample(column='city', ratio=0.5, seed=42)",
    ]


def test_caption_without_split():
    caption = page_of({"x": Number()}, {}).caption.splitlines()
    assert caption == ["1 feature, not fitted", "no split: all rows are for training"]


@pytest.mark.parametrize("kind", FEATURES)
def test_every_type_has_no_parameters_by_default(kind):
    assert page_of({"x": FEATURES[kind]()}, {}).rows[1] == ["x", kind, ""]


def test_default_value_of_another_type_is_a_change():
    assert page_of({"x": Number(fill_value=0)}, {}).rows[1][2] == "fill_value=0"


def test_function_is_shown_by_name():
    assert page_of({"x": Sequence(tokenizer=str.split)}, {}).rows[1][2] == "tokenizer=split"


# -- after fitting


def test_missing_and_unreadable_cells_are_counted():
    learned = LearnedNumber(
        rows=12_345, missing=1_235, invalid=3, invalid_samples=("oops", "n/a"), fill_value=0.0, mean=1.0
    )
    cells = cells_of(learned)
    assert "rows" not in cells  # it is in the caption, since all features have the same
    assert cells["missing"] == "1,235 (10.0 %), filled with 0"
    assert cells["unreadable"] == "3: 'oops', 'n/a'"


@pytest.mark.parametrize(
    ("strategy", "words"),
    [("drop_row", "dropped"), ("ffill", "filled by ffill"), ("bfill", "filled by bfill")],
)
def test_missing_cells_without_fill_value_name_the_strategy(strategy, words):
    dropped = strategy == "drop_row"
    cells = cells_of(Learned(rows=4 - dropped, missing=1), Number(missing_value_strategy=strategy))
    assert cells["missing"] == f"1 (25.0 %), {words}"


def test_small_share_is_not_shown_as_zero():
    assert cells_of(Learned(rows=10**6, missing=1, fill_value=0))["missing"].startswith("1 (<0.1 %)")
    assert "missing" not in cells_of(Learned(rows=10**6))


def test_caption_has_the_number_of_rows():
    assert "1 feature, learned from 1,200 rows" in page_of({"x": Number()}, {"x": Learned(rows=1200)}).caption


def test_feature_without_learned_state_has_empty_cells():
    rows = page_of({"x": Number(), "y": Number()}, {"x": LearnedNumber(rows=2, mean=1.5)}).rows
    assert rows[1][3:] == ["mean 1.5"]
    assert rows[2][3:] == [""]


def test_number_lists_its_statistics():
    learned = LearnedNumber(rows=3, fill_value=0.0, mean=2.0, std=1 / 3, min=-1e30, max=1234567.0)
    assert describe_learned(learned) == ["mean 2", "std 0.333333", "min -1e+30", "max 1234567"]


def test_binary_lists_its_labels():
    assert describe_learned(LearnedBinary(bool2str=("no", "yes"))) == ["False: 'no'", "True: 'yes'"]
    assert describe_learned(LearnedBinary(above_zero=True)) == ["False: 0 and below", "True: above 0"]


def test_category_lists_most_frequent_tokens():
    counts = {"a": 9_000, "b": 8, "c": 7, "d": 6, "e": 5, "f": 4}
    learned = LearnedCategory(vocabulary=vocabulary_of(counts))
    assert describe_learned(learned) == ["vocabulary of 7: 'a' 9,000, 'b' 8, 'c' 7, 'd' 6, 'e' 5"]


def test_ready_vocabulary_lists_most_frequent_tokens():
    # It is not sorted by frequency, special symbols are frequent and in the middle, and most tokens never occur.
    tokens = ["z", "<UNK>", "y", "x", "w", "<PAD>", *(f"t{i}" for i in range(1000)), "last"]
    specials = SpecialSymbols.locate_in(tokens, {"padding": "<PAD>", "unknown": "<UNK>"})
    frequencies = np.zeros(len(tokens), np.int64)
    frequencies[[0, 1, 2, 3, 5, -1]] = [1, 99, 3, 3, 99, 3]
    learned = LearnedCategory(vocabulary=Vocabulary(pa.array(tokens), frequencies, specials))
    assert describe_learned(learned) == ["vocabulary of 1,007: 'y' 3, 'x' 3, 'last' 3, 'z' 1"]


def test_ties_are_ordered_by_id():
    learned = LearnedCategory(vocabulary=vocabulary_of(dict.fromkeys("gfedcba", 1)))
    assert describe_learned(learned) == ["vocabulary of 8: 'g' 1, 'f' 1, 'e' 1, 'd' 1, 'c' 1"]


def test_empty_vocabulary_is_described():
    assert describe_learned(LearnedCategory(vocabulary=vocabulary_of({}))) == ["vocabulary of 1"]


def test_text_labels_word_and_char_facts():
    level = LearnedSequence(vocabulary=vocabulary_of({"a": 2}), max_sequence_length=9, max_sequence_length_99ptile=7)
    shared = ["vocabulary of 2: 'a' 2", "length 9", "99 % are within 7"]
    assert describe_learned(level) == shared
    assert describe_learned(LearnedText(word=level, char=level)) == [
        f"{name}: {', '.join(shared)}" for name in ("word", "char")
    ]


def test_target_encoding_tables_are_omitted():
    frame = pd.DataFrame({"city": ["Rome", "Oslo", "Rome", "Oslo", "Rome"], "price": range(5)})
    prep = Preprocessor({"city": TargetEncoding(target="price")}).fit(frame)
    assert Page(prep._repr_html_()).rows[1][-1] == "vocabulary of 3: 'Rome' 3, 'Oslo' 2"


def test_custom_type_lists_its_fields():
    @dataclass(frozen=True, kw_only=True)
    class LearnedOdd(Learned):
        number_of_parts: int
        table: dict

    assert describe_learned(LearnedOdd(rows=3, number_of_parts=4_000, table={})) == ["number of parts 4,000"]


def test_large_vocabulary_is_not_converted_to_python_objects(monkeypatch):
    vocabulary = vocabulary_of({f"token{i}": 10**6 - i for i in range(20_000)})
    monkeypatch.setattr(Vocabulary, "to_dict", lambda self: pytest.fail("the whole vocabulary was listed"))
    learned = LearnedCategory(vocabulary=vocabulary)
    description = describe({"x": Category()}, {"x": learned})
    assert "vocabulary of 20,001" in description.html()
    assert "vocabulary of 20,001" in description.text()


# -- escaping


def test_every_value_is_escaped():
    learned = LearnedCategory(
        rows=2,
        missing=1,
        invalid=1,
        invalid_samples=(SCRIPT,),
        fill_value=SCRIPT,
        vocabulary=vocabulary_of({SCRIPT: 1}),
    )
    features = {SCRIPT: Category(column=SCRIPT, fill_value=SCRIPT)}
    text = describe(features, {SCRIPT: learned}, StratifiedSplit(SCRIPT), Oversample(SCRIPT, ratio=0.5)).html()
    page = Page(text)
    assert page.tags == {"table", "div", "tr", "th", "td", "span", "svg", "rect", "wbr"}
    assert text.count("&lt;script&gt;") == 8
    assert page.rows[1][0].startswith(SCRIPT)
    assert SCRIPT not in text


def test_html_has_no_external_resources_or_colors():
    text = describe({"x": Binary()}, {"x": LearnedBinary(rows=1)}).html()
    assert Page(text).attributes == {"style", "scope"}
    assert not any(word in text for word in ("url(", "http", "src=", "<style", "black", "white;", ":#"))


def test_long_values_are_truncated():
    long = "x" * 10**6
    learned = LearnedCategory(
        rows=2,
        missing=1,
        invalid=1,
        invalid_samples=(long,),
        fill_value=long,
        vocabulary=vocabulary_of({long: 1}),
    )
    args = {long: Category(fill_value=long, column=long)}, {long: learned}, StratifiedSplit(long)
    assert len(describe(*args).html()) < 4_000
    assert len(describe(*args).text()) < 1_500
    assert "…" in describe(*args).text()


def test_line_breaks_in_values_are_escaped():
    name = "a\nb\t\u202e"
    learned = LearnedNumber(rows=1, invalid=1, invalid_samples=("c\nd",))
    lines = describe({name: Number()}, {name: learned}).text().splitlines()
    assert len(lines) == 4
    assert lines[3].startswith(r"a\nb\t\u202e  number")
    assert r"1: 'c\nd'" in lines[3]


def test_many_features_are_truncated_and_counted():
    features = {f"x{i}": Number() for i in range(1_500)}
    rows = page_of(features, {}).rows
    assert (len(rows), rows[-1]) == (202, ["and 1,300 more features"])
    lines = describe(features, {}).text().splitlines()
    assert (len(lines), lines[-1]) == (64, "and 1,440 more features")


# -- text


def test_text_is_aligned_in_columns():
    features = {"price": Number(normalization="iq"), "city": Category()}
    learned = {
        "price": LearnedNumber(rows=4, missing=1, fill_value=0.0, mean=2.5),
        "city": LearnedCategory(rows=4, vocabulary=vocabulary_of({"Rome": 3, "Oslo": 1})),
    }
    assert describe(features, learned, RandomSplit()).text().splitlines() == [
        "2 features, learned from 4 rows",
        "split: RandomSplit(seed=42, shares=(0.7, 0.1, 0.2))",
        "feature  type      parameters          missing                    learned",
        "price    number    normalization='iq'  1 (25.0 %), filled with 0  mean 2.5",
        "city     category                      0                          vocabulary of 3: 'Rome' 3, 'Oslo' 1",
    ]


@pytest.mark.filterwarnings("ignore:column")
def test_preprocessor_is_described_before_and_after_fit():
    frame = pd.DataFrame({"price": ["1", "3", None, "oops"], "city": ["Rome", "Oslo", "Rome", None]})
    prep = Preprocessor({"price": Number(missing_value_strategy="fill_with_mean"), "city": "category"})
    assert Page(prep._repr_html_()).rows[0] == ["feature", "type", "parameters"]
    price, city = Page(prep.fit(frame)._repr_html_()).rows[1:]
    assert price[3:5] == ["2 (50.0 %), filled with 2", "1: 'oops'"]
    assert price[5].startswith("mean 2; std ")
    assert city[3:] == ["1 (25.0 %), filled with '<UNK>'", "0", "vocabulary of 3: 'Rome' 2, 'Oslo' 1"]


@pytest.mark.parametrize("split", [None, RandomSplit()])
@pytest.mark.parametrize("fit_on", ["train", "all"])
def test_missing_shares_are_relative_to_rows_seen(tmp_path, capsys, split, fit_on):
    """Of 1,000 rows, 100 have no price and another 100 no area; of the other 800 a quarter has no height."""
    number = np.arange(1000.0)
    frame = pd.DataFrame(
        {
            "price": np.where(number < 100, np.nan, number),
            "area": np.where(number >= 900, np.nan, number),
            "height": np.where(number % 4 == 0, np.nan, number),
        }
    )
    features = {name: Number(missing_value_strategy="drop_row") for name in ("price", "area")} | {"height": Number()}
    dataset = Preprocessor(features, split=split, fit_on=fit_on).fit_write(frame, tmp_path / "d")
    prep = Preprocessor.from_dataset(dataset)
    cells = {row[0]: row[3] for row in Page(prep._repr_html_()).rows[1:]}
    assert cells["price"] == cells["area"] == "100 (10.0 %), dropped"
    height = prep.learned_["height"]
    assert height.rows == (800 if split is None or fit_on == "all" else 560)
    assert f"{height.missing} ({height.missing / height.rows:.1%})".replace("%", " %") in cells["height"]
    assert dataset.report().html.count("missing</b> 100 (10.0 %), dropped") == 2
    main(["inspect", dataset.url, "--json"])
    rates = {name: one["missing_rate"] for name, one in json.loads(capsys.readouterr().out)["features"].items()}
    assert rates == {"price": 0.1, "area": 0.1, "height": height.missing / height.rows}


def test_states_without_rows_seen_are_read():
    learned = LearnedNumber.from_dict({"rows": 900, "missing": 100})
    assert learned.to_dict() == LearnedNumber(rows=900, missing=100).to_dict()
    assert rows_seen(Number(missing_value_strategy="drop_row"), learned) == 1000
    assert rows_seen(Number(), learned) == 900


@pytest.mark.parametrize(
    ("sample", "shown"),
    [(0.1, "0.1 of the rows"), (5000, "5,000 rows at most"), (np.int64(7), "7 rows at most"), (1.0, "1 of the rows")],
)
def test_sample_is_shown(sample, shown):
    prep = Preprocessor({"x": "number"}, sample=sample)
    assert Page(prep._repr_html_()).caption.splitlines()[-1] == f"sample: {shown}"
    assert "sample=" in repr(prep)
    assert "sample" not in Preprocessor({"x": "number"})._repr_html_()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"features": {"fare": "number", "tip": "float"}}, 'feature "tip": no type "float". Did you mean "number"?'),
        ({"features": {"fare": "number"}, "targets": "tip"}, 'targets: no feature "tip"'),
        ({"features": "auto", "split": "random"}, "split must be"),
        ({"features": "auto", "sample": "all"}, "sample='all'"),
    ],
)
def test_html_of_invalid_parameters_has_the_message(parameters, message):
    prep = Preprocessor(**parameters)
    assert message in html.unescape(prep._repr_html_())
    assert prep._repr_mimebundle_()["text/html"] == prep._repr_html_()
