"""Vocabularies of parts of words: the same for any partitioning, and the same ids as the library's."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tokenizers import Tokenizer, models

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError, CorruptDatasetError
from daskprep.features import subwords
from daskprep.serving import Encoder

TEXT = "low lower lowest new newer newest wide wider widest tide tides slow slower können naïve 北京 \U0001f600"
WORDS = TEXT.split()
KINDS = ["bpe", "wordpiece"]


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


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_rows_give_the_same_bytes_for_any_partitioning_and_process(kind, tmp_path):
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
    states += [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(2)]
    assert len(set(states)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_the_library_for_whole_words(kind):
    prep = fitted(kind, add_start_stop=True, max_sequence_length=64)
    learned = prep.learned_["x"]
    ids = {token: number for number, token in enumerate(learned.vocabulary.tokens.to_pylist())}
    assert len(ids) <= 48 + 4
    if kind == "wordpiece":
        model, mark = models.WordPiece(ids, unk_token="<UNK>"), ""
    else:
        tokens = list(ids)
        pairs = [(tokens[left], tokens[right]) for left, right in learned.merges]
        model, mark = models.BPE(ids, pairs, unk_token="<UNK>", fuse_unk=True), "\u2581"
    text = "slowest newest ztide lower 東東 \u2581low"
    words = [*text.split()[:5], "\u2581", "low"]
    expected = [part for word in words for part in Tokenizer(model).encode(mark + word).ids]
    encoded = prep.encode(pd.DataFrame({"x": [text]}))["x"][0].tolist()
    assert encoded == [1, *expected, 2, *[0] * (len(encoded) - len(expected) - 2)]
    assert 3 in expected  # characters that were not learned are unknown


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_decoded_to_their_words(kind):
    prep = fitted(kind)
    decoded = prep.decode(prep.encode(titles().head(4)))["x"].tolist()
    assert decoded == [cell.replace("!", " !") for cell in titles()["x"].head(4)]


@pytest.mark.parametrize("kind", KINDS)
def test_frequencies_are_those_of_parts_and_words_beyond_are_counted_unseen(kind):
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
def test_a_saved_preprocessor_and_a_service_encode_alike(kind, tmp_path):
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


def test_lists_hold_words_and_special_symbols_stay_whole():
    frame = pd.DataFrame({"x": [["New York", "tide"], ["<UNK>", "<PAD>"]] * 3})
    prep = dp.Preprocessor({"x": dp.Sequence(tokenizer="bpe", most_common=40, max_sequence_length=3)}).fit(frame)
    assert prep.encode(frame)["x"][1].tolist() == [1, 0, 0]
    assert prep.decode(prep.encode(frame))["x"][0] == "New York tide"


def test_more_words_than_are_fed_count_in_proportion(monkeypatch):
    whole = fitted("bpe").learned_["x"]
    monkeypatch.setattr(subwords, "_WORDS_FED", 300)
    some = fitted("bpe").learned_["x"]
    assert some.vocabulary.tokens != whole.vocabulary.tokens
    assert some.vocabulary.frequencies.sum() > 300


def test_rare_characters_are_unknown(monkeypatch):
    monkeypatch.setattr(subwords, "_CHARACTERS", 9)
    vocabulary = fitted("bpe").learned_["x"].vocabulary
    assert len([token for token in vocabulary.tokens.to_pylist() if len(token) == 1]) == 9 + 1  # and the start
    assert vocabulary.frequencies[1] > 0


def test_predictions_are_texts():
    frame = titles().dropna()
    given = {"most_common": 48, "column": "x"}
    features = {"x": dp.Text(tokenizer="wordpiece", **given), "y": dp.Text(tokenizer="bpe", **given)}
    prep = dp.Preprocessor(features, targets=["x", "y"]).fit(frame)
    found = prep.predictions(prep.encode(frame.head(3)))
    for name in ("x", "y"):
        assert found[f"{name}_predictions"].tolist() == [cell.replace("!", " !") for cell in frame["x"].head(3)]


@pytest.mark.parametrize("merges", [[[1, 2, 3]], [[0, 10**9]], [["a", "b"]], [[-1, 3]], [[2, 2]], "ab", [1, 2], 7])
def test_altered_merges_are_refused(merges):
    learned = fitted("bpe").learned_["x"]
    with pytest.raises(CorruptDatasetError, match="merges"):
        type(learned).from_dict({**learned.to_dict(), "merges": merges})


@pytest.mark.parametrize(
    "given",
    [{"most_common": None}, {"compute_idf": True}, {"vocab_file": __file__}],
)
def test_what_has_no_meaning_for_parts_is_refused(given):
    with pytest.raises(ConfigError, match="trains a vocabulary of most_common parts"):
        fitted("bpe", **given)


def test_sets_have_no_parts():
    with pytest.raises((ConfigError, ColumnError), match="is for Sequence and Text"):
        dp.Preprocessor({"x": dp.Set(tokenizer="bpe")}).fit(titles())


def test_no_words_make_no_parts():
    frame = pd.DataFrame({"x": pd.array([None, ""], "string")})
    assert fitted("bpe", frame).encode(frame)["x"].tolist() == [[1], [0]]
    assert pa.array(["<PAD>", "<UNK>"]).equals(fitted("wordpiece", frame).learned_["x"].vocabulary.tokens)
