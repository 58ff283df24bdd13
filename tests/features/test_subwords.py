"""Subword vocabularies: the same for any partitioning, and the same ids as in the library."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import sentencepiece
from tokenizers import Tokenizer, models

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError, CorruptDatasetError, MissingPackageError
from daskprep.serving import Encoder

TEXT = "low lower lowest new newer newest wide wider widest tide tides slow slower können naïve 北京 \U0001f600"
WORDS = TEXT.split()
KINDS = ["bpe", "wordpiece", "unigram"]


def titles(rows: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    ranks = rng.zipf(1.5, (rows, 4)) % len(WORDS)
    cells = [" ".join(WORDS[rank] for rank in row) + "!" for row in ranks]
    cells[5] = None
    return pd.DataFrame({"x": cells})


def fitted(kind: str, frame=None, **given) -> dp.Preprocessor:
    return dp.Preprocessor({"x": dp.Text(tokenizer=kind, **{"most_common": 48, **given})}).fit(
        titles() if frame is None else frame
    )


@pytest.mark.parametrize("processes", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_state_does_not_depend_on_partitions_and_processes(kind, processes, tmp_path):
    titles().to_parquet(tmp_path / "rows.parquet", row_group_size=7)
    states = [json.dumps(fitted(kind).to_dict())]
    for size in (100, 2_000):
        source = dp.read_files(tmp_path / "rows.parquet", partition_bytes=size)
        states.append(json.dumps(fitted(kind, source).to_dict()))
    code = (
        "import daskprep as dp, json, sys\n"
        f"prep = dp.Preprocessor({{'x': dp.Text(tokenizer={kind!r}, most_common=48)}}).fit({str(tmp_path)!r})\n"
        "sys.stdout.write(json.dumps(prep.to_dict()))"
    )
    command = [sys.executable, "-c", code]
    states += [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(processes)]
    assert len(set(states)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_ids_of_words_equal_the_library(kind):
    prep = fitted(kind, add_start_stop=True, max_sequence_length=64)
    learned = prep.learned_["x"]
    ids = {token: number for number, token in enumerate(learned.vocabulary.tokens.to_pylist())}
    assert len(ids) <= 48 + 4
    if kind == "wordpiece":
        model, mark = models.WordPiece(ids, unk_token="<UNK>"), ""
    elif kind == "unigram":
        scored = zip(ids, [0.0] * 4 + list(learned.scores), strict=True)
        model, mark = models.Unigram(list(scored), 3), "\u2581"
    else:
        tokens = list(ids)
        pairs = [(tokens[left], tokens[right]) for left, right in learned.merges]
        model, mark = models.BPE(ids, pairs, unk_token="<UNK>", fuse_unk=True), "\u2581"
    text = "slowest newest ztide lower 東東 \u2581low"
    words = [*text.split()[:5], "\u2581", "low"]
    expected = [part for word in words for part in Tokenizer(model).encode(mark + word).ids]
    encoded = prep.encode(pd.DataFrame({"x": [text]}))["x"][0].tolist()
    assert encoded == [1, *expected, 2, *[0] * (len(encoded) - len(expected) - 2)]
    assert 3 in expected  # characters outside the vocabulary are unknown


@pytest.mark.parametrize("kind", KINDS)
def test_rows_decode_to_their_words(kind):
    prep = fitted(kind)
    decoded = prep.decode(prep.encode(titles().head(4)))["x"].tolist()
    assert decoded == [cell.replace("!", " !") for cell in titles()["x"].head(4)]


@pytest.mark.parametrize("kind", KINDS)
def test_frequencies_count_subwords_and_unknown_words_are_unseen(kind):
    prep = fitted(kind)
    vocabulary = prep.learned_["x"].vocabulary
    encoded = prep.encode(titles().dropna())["x"]
    counted = np.bincount(encoded.ravel(), minlength=len(vocabulary))
    assert vocabulary.frequencies[2:].tolist() == counted[2:].tolist()
    new = pd.DataFrame({"x": ["slowest", "low \u0416", "tide"]})
    assert prep.cell_counts(new)["unseen"].tolist() == [1]
    both = dp.Preprocessor({"x": dp.Text(tokenizer=kind, most_common=48, level="both")}).fit(titles())
    assert both.cell_counts(new)["unseen"].tolist() == [1]
    assert both.encode(new)["x_word"].tolist() == prep.encode(new)["x"].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_saved_preprocessor_and_serving_encode_equally(kind, tmp_path):
    prep = fitted(kind, truncation="keep_end", max_sequence_length=5)
    prep.save(tmp_path / "prep.json")
    rows = titles()
    again = dp.Preprocessor.load(tmp_path / "prep.json")
    service = Encoder(json.loads((tmp_path / "prep.json").read_text()))
    cells = [{"x": cell} for cell in rows["x"].where(rows["x"].notna(), None)]
    for other in (again.encode(rows), service.encode(cells)):
        assert np.array_equal(other["x"], prep.encode(rows)["x"])
    dataset = prep.fit_write(rows, tmp_path / "rows.dp")
    assert np.array_equal(dataset["train"].read()["x"], prep.encode(rows)["x"])


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_lists_of_words_keep_special_symbols_whole(kind):
    frame = pd.DataFrame({"x": [["New York", "tide"], ["<UNK>", "<PAD>"]] * 3})
    prep = dp.Preprocessor({"x": dp.Sequence(tokenizer=kind, most_common=40, max_sequence_length=16)}).fit(frame)
    assert prep.encode(frame)["x"][1].tolist()[:3] == [1, 0, 0]
    assert prep.decode(prep.encode(frame))["x"][0] == "New York tide"


def test_special_symbols_inside_words_are_text():
    frame = pd.DataFrame({"x": [["x<PAD>"], ["<UNK>y"]] * 9})
    prep = dp.Preprocessor({"x": dp.Sequence(tokenizer="unigram", most_common=40)}).fit(frame)
    encoded = prep.encode(frame)["x"]
    assert (encoded[:, 0] > 1).all()
    assert prep.decode({"x": encoded})["x"].tolist() == ["x<PAD>", "<UNK>y"] * 9
    assert prep.cell_counts(frame)["unseen"].tolist() == [0]


def test_unigrams_equal_sentencepiece(tmp_path):
    words = [word for cell in titles()["x"].dropna() for word in cell.replace("!", " !").split()]
    counts = pd.Series(words).value_counts()
    (tmp_path / "words.tsv").write_text("".join(f"\u2581{word}\t{count}\n" for word, count in counts.items()))
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "words.tsv"), model_prefix=str(tmp_path / "own"), input_format="tsv", vocab_size=49,
        hard_vocab_limit=False, character_coverage=1.0, normalization_rule_name="identity", add_dummy_prefix=False,
        bos_id=-1, eos_id=-1, num_threads=1, split_by_unicode_script=False, split_by_number=False, minloglevel=2,
    )  # fmt: skip
    own = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "own.model"))
    prep = fitted("unigram", lowercase=False)
    learned = prep.learned_["x"]
    pieces = [(own.id_to_piece(number), own.get_score(number)) for number in range(1, len(own))]
    assert [*zip(learned.vocabulary.tokens.to_pylist()[2:], learned.scores, strict=True)] == pieces
    for text in ("slowest", "newertide", "z\u4eactide", "widerwest"):
        encoded = [number for number in prep.encode(pd.DataFrame({"x": [text]}))["x"][0].tolist() if number]
        assert encoded == [number + 1 for number in own.encode("\u2581" + text)]


@pytest.mark.parametrize(
    ("cells", "most_common"),
    [([["\u2585"], ["\0\t"]], 9), ([["a\tb\x1fc", "\ufffe\n"]], 20), ([["ab"]], 1), ([["x" * 2_000]], 9)],
)
def test_unigrams_of_unusual_words_are_learned(cells, most_common):
    frame = pd.DataFrame({"x": cells})
    prep = dp.Preprocessor({"x": dp.Sequence(tokenizer="unigram", most_common=most_common)}).fit(frame)
    assert len(prep.learned_["x"].vocabulary) <= most_common + 2
    assert (prep.encode(frame)["x"][:, 0] > 0).all()


@pytest.mark.parametrize(("kind", "limit"), [("bpe", "subword_words"), ("unigram", "subword_training_characters")])
def test_word_limit_scales_frequencies(kind, limit, sizes):
    whole = fitted(kind).learned_["x"]
    sizes(**{limit: 300})
    some = fitted(kind).learned_["x"]
    assert some.vocabulary.tokens != whole.vocabulary.tokens
    assert some.vocabulary.frequencies.sum() > 300


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_rare_characters_are_unknown(kind, sizes):
    sizes(subword_characters=9)
    vocabulary = fitted(kind).learned_["x"].vocabulary
    assert len([token for token in vocabulary.tokens.to_pylist() if len(token) == 1]) == 9 + 1  # and the word boundary
    assert vocabulary.frequencies[1] > 0


def test_predictions_are_texts():
    frame = titles().dropna()
    given = {"most_common": 48, "column": "x"}
    features = {kind: dp.Text(tokenizer=kind, **given) for kind in KINDS}
    prep = dp.Preprocessor(features, targets=KINDS).fit(frame)
    found = prep.predictions(prep.encode(frame.head(3)))
    for name in KINDS:
        assert found[f"{name}_predictions"].tolist() == [cell.replace("!", " !") for cell in frame["x"].head(3)]


@pytest.mark.parametrize("merges", [[[1, 2, 3]], [[0, 10**9]], [["a", "b"]], [[-1, 3]], [[2, 2]], "ab", [1, 2], 7])
def test_altered_merges_raise(merges):
    state = fitted("bpe").to_dict()
    state["features"]["x"]["learned"]["merges"] = merges
    with pytest.raises(CorruptDatasetError, match="merges"):
        dp.Preprocessor.from_dict(state)


@pytest.mark.parametrize(
    "scores", [[-1.0], [float("nan")] * 48, ["a"] * 48, [[-1.0, -2.0]] * 48, [10**400] * 48, "a" * 48, 7]
)
def test_altered_scores_raise(scores):
    prep = fitted("unigram")
    assert len(prep.learned_["x"].scores) == len(prep.learned_["x"].vocabulary) - 2
    state = prep.to_dict()
    state["features"]["x"]["learned"]["scores"] = scores
    with pytest.raises(CorruptDatasetError, match="scores"):
        dp.Preprocessor.from_dict(state)


@pytest.mark.parametrize("key", ["scores", "special_symbols"])
def test_missing_scores_and_symbols_raise(key):
    state = fitted("unigram").to_dict()
    without = {"scores": [], "special_symbols": {"padding": "<PAD>", "start": "<UNK>"}}
    state["features"]["x"]["learned"][key] = without[key]
    with pytest.raises(CorruptDatasetError, match="scores or the unknown symbol are missing"):
        dp.Preprocessor.from_dict(state).encode(titles())


def test_scores_round_trip_exactly_through_json():
    learned = fitted("unigram").learned_["x"]
    assert type(learned).from_dict(json.loads(json.dumps(learned.to_dict()))).scores == learned.scores


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("bpe", {"compute_idf": True}),
        ("bpe", {"vocab_file": __file__}),
        ("unigram", {"min_frequency": 3}),
    ],
)
def test_vocabulary_parameters_with_subwords_raise(kind, given):
    with pytest.raises(ConfigError, match="trains a vocabulary of most_common subwords"):
        fitted(kind, **given)


def test_missing_trainer_package_raises_at_the_first_rows(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(MissingPackageError, match="pip install sentencepiece"):
        dp.Text(tokenizer="unigram").summarize(dp.Text().parse(pa.array(["low"])))


def test_sets_with_subwords_raise():
    with pytest.raises((ConfigError, ColumnError), match="is for Sequence and Text"):
        dp.Preprocessor({"x": dp.Set(tokenizer="bpe")}).fit(titles())


def test_rows_without_words_have_no_subwords():
    frame = pd.DataFrame({"x": pd.array([None, ""], "string")})
    assert fitted("bpe", frame).encode(frame)["x"].tolist() == [[1], [0]]
    for kind in ("wordpiece", "unigram"):
        assert pa.array(["<PAD>", "<UNK>"]).equals(fitted(kind, frame).learned_["x"].vocabulary.tokens)
        assert fitted(kind, frame).encode(pd.DataFrame({"x": ["low"]}))["x"].tolist() == [[1]]
