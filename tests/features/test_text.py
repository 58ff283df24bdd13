from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import daskprep as dp
from daskprep.errors import ColumnError


def column(*cells) -> pd.DataFrame:
    return pd.DataFrame({"x": list(cells)})


def test_missing_text_is_one_unknown_token(as_frame):
    frame = as_frame(column("a b", None, "a"))
    text = dp.Text().fit(frame)
    assert text.learned_["x"].to_dict()["idx2str"] == ["<PAD>", "<UNK>", "a", "b"]
    assert np.asarray(text.transform(frame)).tolist() == [[2, 3], [1, 0], [2, 0]]


def test_cell_equal_to_a_special_symbol_is_that_symbol(as_frame):
    frame = as_frame(column("a b", "<UNK>", "a <UNK>"))
    text = dp.Text().fit(frame)
    assert text.learned_["x"].to_dict()["str2freq"]["<UNK>"] == 1
    assert np.asarray(text.transform(frame))[1].tolist() == [1, 0, 0, 0]


def test_special_symbols_are_found_in_dictionary_columns():
    cells = ["<UNK>", "hello world", "hello", None]
    plain = dp.Text().fit(column(*cells))
    coded = dp.Text().fit(pd.DataFrame({"x": pd.Categorical(cells)}))
    assert coded.learned_["x"].to_dict() == plain.learned_["x"].to_dict()


def test_default_fill_is_the_custom_unknown_symbol():
    text = dp.Text(special_symbols={"padding": "<PAD>", "unknown": "?"}).fit(column("a b", None))
    assert text.learned_["x"].to_dict()["str2freq"] == {"<PAD>": 0, "?": 1, "a": 1, "b": 1}


def test_words_are_lowercased_and_punctuation_is_separate():
    text = dp.Text().fit(column("Hello, WORLD!", "ÉCLAIR éclair"))
    assert text.learned_["x"].to_dict()["str2freq"] == {
        "<PAD>": 0,
        "<UNK>": 0,
        "éclair": 2,
        "!": 1,
        ",": 1,
        "hello": 1,
        "world": 1,
    }


def test_both_levels_have_separate_vocabularies(as_frame):
    frame = as_frame(column("ab a", None, "b"))
    prep = dp.Preprocessor({"x": dp.Text(level="both")}).fit(frame)
    encoded = {name: np.asarray(array).tolist() for name, array in prep.encode(frame).items()}
    assert encoded["x_word"] == [[3, 2], [1, 0], [4, 0]]
    assert encoded["x_char"] == [[2, 3, 4, 2], [1, 0, 0, 0], [3, 0, 0, 0]]
    assert list(encoded) == ["x_word", "x_char"]


def test_both_levels_equal_single_levels():
    frame = column("Some text", "some", None)
    both = dp.Preprocessor({"x": dp.Text(level="both")}).fit(frame).encode(frame)
    for level in ("word", "char"):
        alone = dp.Preprocessor({"x": dp.Text(level=level)}).fit(frame).encode(frame)["x"]
        np.testing.assert_array_equal(both[f"x_{level}"], alone)


def test_inverse_document_frequencies_count_rows():
    learned = dp.Text(compute_idf=True).fit(column("a a b", "a")).learned_["x"]
    assert learned.str2idf == {"<PAD>": 0.0, "<UNK>": 0.0, "a": math.log(4 / 3), "b": math.log(4 / 2)}


def test_learned_99th_percentile_of_lengths():
    rows = ["a"] * 99 + ["a b c d e f g h i j"]
    learned = dp.Text().fit(column(*rows)).learned_["x"]
    assert learned.max_sequence_length == 10
    assert learned.max_sequence_length_99ptile == math.ceil(np.quantile([1] * 99 + [10], 0.99))


def test_decode_joins_words_with_spaces_and_characters_without():
    frame = column("good dog", "dog")
    for level in ("word", "char", "both"):
        prep = dp.Preprocessor({"x": dp.Text(level=level)}).fit(frame)
        assert prep.decode(prep.encode(frame))["x"].tolist() == ["good dog", "dog"]


@pytest.mark.parametrize("kind", ["text", "set", "sequence", "bag", "category"])
def test_invalid_utf8_raises_with_the_column(kind):
    table = pa.table({"x": pa.array([b"\xff b", b"a"]).view(pa.string())})
    with pytest.raises(ColumnError, match='column "x": .*(UTF-8|UTF8)'):
        dp.Preprocessor({"x": kind}).fit(table)
