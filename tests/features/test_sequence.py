from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import daskprep as dp
from daskprep.errors import ConfigError
from daskprep.features.tokens import TokenSummary
from daskprep.serving import Encoder


def column(*cells) -> pd.DataFrame:
    return pd.DataFrame({"x": list(cells)})


def encoded(feature, *cells) -> list[list[int]]:
    return feature.transform(column(*cells)).tolist()


def test_documented_example(as_frame):
    sequence = dp.Sequence().fit(as_frame(column("token3 token4 token2", "token3 token1")))
    learned = sequence.learned_["x"].to_dict()
    assert learned["idx2str"] == ["<PAD>", "<UNK>", "token3", "token1", "token2", "token4"]
    assert learned["str2freq"] == {"<PAD>": 0, "<UNK>": 0, "token3": 2, "token1": 1, "token2": 1, "token4": 1}
    assert learned["max_sequence_length"] == 3
    assert encoded(sequence, "token3 token4 token2", "token3 token1") == [[2, 5, 4], [2, 3, 0]]


def test_ludwig_symbols_encode_as_expected():
    sequence = dp.Sequence(special_symbols="ludwig").fit(column("a b c", "a b", "a"))
    assert encoded(sequence, "a b c", "a b", "a") == [[1, 4, 5, 6, 0], [1, 4, 5, 0, 2], [1, 4, 0, 2, 2]]
    assert encoded(sequence, "", None) == [[1, 0, 2, 2, 2], [1, 3, 0, 2, 2]]


def test_start_and_stop_precede_unknown():
    sequence = dp.Sequence(add_start_stop=True).fit(column("a b", "a"))
    assert encoded(sequence, "a b", "z") == [[1, 4, 5, 2], [1, 3, 2, 0]]


def test_truncated_row_ends_with_stop():
    sequence = dp.Sequence(add_start_stop=True, max_sequence_length=3).fit(column("a b c d"))
    assert encoded(sequence, "a b c d") == [[1, 4, 2]]


@pytest.mark.parametrize(
    ("sequence_length", "max_sequence_length", "expected"),
    [(None, 15, 12), (None, 8, 8), (None, None, 12), (15, 20, 15), (8, 20, 8)],
)
def test_lengths_equal_ludwig(sequence_length, max_sequence_length, expected):
    sequence = dp.Sequence(
        sequence_length=sequence_length, max_sequence_length=max_sequence_length, special_symbols="ludwig"
    ).fit(column(" ".join("abcdefghij")))
    assert sequence.learned_["x"].max_sequence_length == expected


def test_left_padding_keeps_the_start_of_a_row():
    sequence = dp.Sequence(padding="left", max_sequence_length=2).fit(column("a b c", "a"))
    assert encoded(sequence, "a b c", "a") == [[2, 3], [0, 2]]


@pytest.mark.parametrize("padding", ["right", "left"])
def test_truncation_keep_end_keeps_start_and_stop(padding):
    rows = column("a b c d e", "a", None)
    given = {"truncation": "keep_end", "padding": padding, "max_sequence_length": 4, "column": "x"}
    plain, marked = dp.Sequence(**given), dp.Sequence(**given, add_start_stop=True)
    prep = dp.Preprocessor({"plain": plain, "marked": marked, "text": dp.Text(**given, level="both")}).fit(rows)
    decoded = {name: column.tolist() for name, column in prep.decode(prep.encode(rows.head(2))).items()}
    assert decoded == {"plain": ["b c d e", "a"], "marked": ["d e", "a"], "text": ["b c d e", "a"]}
    last = prep.learned_["marked"].vocabulary.ids(pa.array(["d", "e"]))
    assert prep.encode(rows)["marked"][0].tolist() == [1, *last, 2]
    saved = Encoder(prep.to_dict()).encode([{"x": cell} for cell in rows["x"].tolist()])
    for name, array in prep.encode(rows).items():
        assert np.array_equal(saved[name], array)


def test_custom_symbols_have_ids_in_their_order():
    symbols = {"unknown": "?", "padding": "_"}
    sequence = dp.Sequence(special_symbols=symbols).fit(column("a b", "a"))
    assert sequence.learned_["x"].to_dict()["idx2str"] == ["?", "_", "a", "b"]
    assert encoded(sequence, "a", "z a") == [[2, 1], [0, 2]]


def test_special_symbol_in_the_data_is_that_symbol():
    sequence = dp.Sequence().fit(column("a <UNK>", "a"))
    assert sequence.learned_["x"].to_dict()["str2freq"] == {"<PAD>": 0, "<UNK>": 1, "a": 2}


def test_vocabulary_file_sets_the_ids(tmp_path):
    path = tmp_path / "vocabulary.txt"
    path.write_text("b extra\nc\na\nb\n")
    sequence = dp.Sequence(vocab_file=str(path)).fit(column("a b", "a z"))
    assert sequence.learned_["x"].to_dict()["str2freq"] == {"<PAD>": 0, "<UNK>": 0, "b": 1, "c": 0, "a": 2}
    assert encoded(sequence, "a b z") == [[4, 2]]


def test_missing_vocabulary_file_raises():
    with pytest.raises(ConfigError, match="nowhere.txt"):
        dp.Sequence(vocab_file="nowhere.txt").fit(column("a"))


def test_unknown_tokenizer_error_suggests_closest_name():
    with pytest.raises(ConfigError, match='Did you mean "space_punct"'):
        dp.Sequence(tokenizer="space_punkt").fit(column("a"))


def test_function_tokenizes_but_cannot_be_saved(tmp_path):
    prep = dp.Preprocessor({"x": dp.Sequence(tokenizer=lambda text: text.split("/"))}).fit(column("a/b", "b"))
    assert prep.encode(column("b/a"))["x"].tolist() == [[2, 3]]
    with pytest.raises(ConfigError, match='"x".*tokenizer'):
        prep.save(tmp_path / "prep.json")


def test_decode_returns_tokens():
    sequence = dp.Sequence(add_start_stop=True).fit(column("a b", "c"))
    ids = sequence.transform(column("c a", "", "z"))
    assert sequence.decode(ids, sequence.learned_["x"]).to_pylist() == ["c a", "", "<UNK>"]


def test_ids_have_the_smallest_dtype():
    assert dp.Sequence().fit_transform(column("a b")).dtype == np.uint8


@pytest.mark.parametrize("name", ["sequence_length", "max_sequence_length"])
def test_length_without_room_for_tokens_raises(name):
    with pytest.raises(ConfigError, match=f"{name}=2 leaves no room.*at least 3"):
        dp.Sequence(add_start_stop=True, **{name: 2}).fit(column("a"))


@pytest.mark.parametrize("own", [0, 1])  # words are shared by many rows, or are in one row each
def test_summaries_of_cuts_equal_summaries_of_their_rows(own):
    cells = [None if i % 7 == 3 else " ".join(f"{word + 9 * i * own}" for word in range(i % 4)) for i in range(20)]
    parsed = dp.Sequence(missing_value_strategy="bfill").parse(pa.array(cells)).slice(1)
    cuts = [np.array([0, 4, 9]), np.array([1, 2, 3, 15]), np.zeros(0, np.intp), np.array([18])]
    for found, rows in zip(TokenSummary.of_subsets(parsed, cuts), cuts, strict=True):
        wanted = TokenSummary.of(parsed.take(pa.array(rows)))
        assert found.lengths == wanted.lengths
        assert [part.tolist() for part in found.counts.rank()] == [part.tolist() for part in wanted.counts.rank()]


def test_overridden_summarize_is_used_in_folds():
    class Twice(dp.Sequence):
        def summarize(self, parsed):
            return super().summarize(parsed) * 2

    frame = pd.DataFrame({"text": ["a b"] * 6})
    prep = dp.Preprocessor({"text": Twice()}, split=dp.KFold(3)).fit(frame)
    assert prep.fold(0).learned_["text"].vocabulary.to_dict()["str2freq"]["a"] == 8


@pytest.mark.parametrize("kind", [dp.Sequence, dp.Text, dp.Set, dp.Bag])
@pytest.mark.parametrize(
    ("name", "tokenizer"), [("pretrained_model_name_or_path", "hf_tokenizer"), ("pattern", "regex")]
)
def test_parameter_unused_by_the_tokenizer_warns(kind, name, tokenizer):
    message = f'has {name}=\'abc\', which tokenizer="space.*" does not use: set tokenizer="{tokenizer}"'
    with pytest.warns(UserWarning, match=message):
        kind(**{name: "abc"}).fit(pd.DataFrame({"x": ["a b", "c"]}))
