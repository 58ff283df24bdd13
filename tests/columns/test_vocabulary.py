from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskprep.columns import vocabulary
from daskprep.columns.summaries import TokenCounts
from daskprep.columns.vocabulary import VOCABULARY_SCHEMA, SpecialSymbols, Vocabulary
from daskprep.errors import ConfigError, CorruptDatasetError, RejectedValueError
from tests.sizes import Sizes, sized

PLAIN = SpecialSymbols.for_tokens()
READY = ["[PAD]", "hello", "[UNK]", "world"]


def counted(text: str) -> TokenCounts:
    encoded = pa.array(text.split(), pa.string()).dictionary_encode()
    return TokenCounts.of(encoded.dictionary, np.bincount(encoded.indices, minlength=len(encoded.dictionary)))


def learned(text: str, specials: SpecialSymbols = PLAIN, **cut: int) -> dict[str, Any]:
    return Vocabulary.learn(counted(text), specials, **cut).to_dict()


@pytest.fixture
def index_all(sizes: Sizes) -> None:
    """Use an index for any number of tokens."""
    sizes(indexed_tokens=0)


# Special symbols


@pytest.mark.parametrize(
    ("options", "symbols", "ids"),
    [
        ({}, ("<PAD>", "<UNK>"), (0, 1, None, None)),
        (
            {"start_stop": True},
            ("<PAD>", "<START>", "<STOP>", "<UNK>"),
            (0, 3, 1, 2),
        ),
        (
            {"special_symbols": "ludwig"},
            ("<EOS>", "<SOS>", "<PAD>", "<UNK>"),
            (2, 3, 1, 0),
        ),
        (
            {"special_symbols": {"unknown": "?", "stop": "!", "padding": "_"}},
            ("?", "!", "_"),
            (2, 0, None, 1),
        ),
    ],
)
def test_special_symbols_have_the_first_ids(
    options: dict[str, Any], symbols: tuple[str, ...], ids: tuple[int | None, ...]
) -> None:
    specials = SpecialSymbols.for_tokens(**options)
    assert specials.symbols == symbols
    assert len(specials) == len(symbols)
    assert (specials.padding_id, specials.unknown_id, specials.start_id, specials.stop_id) == ids
    for role, number in zip(("padding", "unknown", "start", "stop"), ids, strict=True):
        assert specials.symbol(role) == (None if number is None else symbols[number])


def test_categories_have_one_special_symbol() -> None:
    assert SpecialSymbols.for_category() == SpecialSymbols(("unknown",), ("<UNK>",), (0,))
    assert SpecialSymbols.for_category("?").symbol("unknown") == "?"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"special_symbols": {"padding": 3, "unknown": "?"}}, "padding symbol is 3: expected a text"),
        ({"special_symbols": {"x": "_"}}, "role 'x': expected padding, unknown, start, stop[.]"),
        ({"special_symbols": {"pad": "_", "unknown": "?"}}, r"role 'pad'.*Did you mean \"padding\"\?"),
        ({"special_symbols": {"padding": "_"}}, r"lacks \['unknown'\]"),
        (
            {"special_symbols": {"padding": "_", "unknown": "?"}, "start_stop": True},
            r"lacks \['start', 'stop'\]",
        ),
        ({"special_symbols": {"padding": "_", "unknown": "_"}}, "padding symbol is '_'.*no other"),
        ({"special_symbols": {"padding": "_", "unknown": ""}}, "unknown symbol is ''.*not empty"),
    ],
)
def test_invalid_special_symbols_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SpecialSymbols.for_tokens(**options)


# Learning


def test_documented_example() -> None:
    rows = ["token3 token4 token2", "token3 token1"]
    known = Vocabulary.learn(counted(" ".join(rows)), PLAIN)
    assert known.to_dict() == {
        "idx2str": ["<PAD>", "<UNK>", "token3", "token1", "token2", "token4"],
        "str2idx": {"<PAD>": 0, "<UNK>": 1, "token3": 2, "token1": 3, "token2": 4, "token4": 5},
        "str2freq": {"<PAD>": 0, "<UNK>": 0, "token3": 2, "token1": 1, "token2": 1, "token4": 1},
        "vocab_size": 6,
        "special_symbols": {"padding": "<PAD>", "unknown": "<UNK>"},
    }
    assert known.ids(pa.array(["token3", "token2", "new"])).tolist() == [2, 4, 1]


def test_special_symbol_in_the_data_is_not_counted_as_a_token() -> None:
    text = "<PAD> <PAD> <PAD> <UNK> b b b b c c a a"
    assert learned(text, most_common=2, min_frequency=2)["str2freq"] == {
        "<PAD>": 3,
        "<UNK>": 1,
        "b": 4,
        "a": 2,
    }


def test_rare_special_symbol_keeps_its_frequency() -> None:
    assert learned("a a <UNK>")["idx2str"] == ["<PAD>", "<UNK>", "a"]
    assert learned("a a b b <UNK>", most_common=1)["str2freq"] == {"<PAD>": 0, "<UNK>": 1, "a": 2}


def test_vocabulary_is_truncated_after_ranking() -> None:
    assert learned("b b a a d c c c", most_common=2)["idx2str"][2:] == ["c", "a"]
    assert learned("b b a a d c c c", min_frequency=2)["idx2str"][2:] == ["c", "a", "b"]
    assert learned("b b a a d c c c", min_frequency=3, most_common=5)["idx2str"][2:] == ["c"]
    assert learned("a", most_common=0)["idx2str"] == ["<PAD>", "<UNK>"]


@given(st.lists(st.text(max_size=3)), st.integers(1, 4), st.none() | st.integers(1, 5))
def test_vocabulary_does_not_depend_on_partitions(tokens: list[str], parts: int, most_common: int | None) -> None:
    whole = TokenCounts.of(pa.array(tokens, pa.string()), np.ones(len(tokens)))
    cut = TokenCounts(pa.string())
    for part in np.array_split(np.arange(len(tokens)), parts)[::-1]:
        cut += TokenCounts.of(pa.array([tokens[row] for row in part], pa.string()), np.ones(len(part)))
    assert Vocabulary.learn(cut, PLAIN, most_common) == Vocabulary.learn(whole, PLAIN, most_common)


def test_vocabulary_without_tokens_has_special_symbols() -> None:
    assert learned("")["idx2str"] == ["<PAD>", "<UNK>"]
    assert learned("", SpecialSymbols.for_category())["idx2str"] == ["<UNK>"]


# Ready vocabularies


def test_listed_tokens_keep_their_order_after_special_symbols() -> None:
    known = Vocabulary.from_tokens(["z", "<UNK>", "a"], counted("a a q <UNK>"), PLAIN)
    assert known.to_dict()["idx2str"] == ["<PAD>", "<UNK>", "z", "a"]
    assert known.frequencies.tolist() == [0, 1, 0, 2]


def test_special_symbols_of_a_ready_vocabulary_keep_their_ids() -> None:
    specials = SpecialSymbols.locate_in(READY, {"unknown": "[UNK]", "padding": "[PAD]", "stop": "[PAD]"})
    assert (specials.padding_id, specials.stop_id, specials.unknown_id, specials.start_id) == (0, 0, 2, None)
    assert specials == SpecialSymbols(("padding", "stop", "unknown"), ("[PAD]", "[PAD]", "[UNK]"), (0, 0, 2))
    known = Vocabulary.from_tokens(READY, None, specials)
    assert known.tokens.to_pylist() == READY
    assert known.ids(pa.array(["world", "new"])).tolist() == [3, 2]


def test_ready_vocabulary_can_omit_special_symbols() -> None:
    known = Vocabulary.from_tokens(READY, None, SpecialSymbols.locate_in(READY, {}))
    assert known.tokens.to_pylist() == READY
    assert known.to_dict()["special_symbols"] == {}


def test_special_symbols_missing_from_the_vocabulary_raise() -> None:
    with pytest.raises(ConfigError, match=r"stop symbol '\[SEP\]' is not in the vocabulary of 4 tokens"):
        SpecialSymbols.locate_in(READY, {"stop": "[SEP]"})
    specials = SpecialSymbols.locate_in(READY, {"unknown": "[UNK]"})
    with pytest.raises(ConfigError, match="has other tokens: find them in this vocabulary"):
        Vocabulary.from_tokens(["a", "b", "c"], None, specials)


def test_duplicate_listed_token_raises() -> None:
    with pytest.raises(ConfigError, match="lists 'b' more than once"):
        Vocabulary.from_tokens(["a", "b", "c", "b"], None, PLAIN)


# Ids


@pytest.mark.parametrize("indexed", [0, 10**9])
@given(known=st.sets(st.text(max_size=4)), queries=st.lists(st.text(max_size=4)), skipped=st.integers(0, 2))
def test_ids_are_positions_in_the_vocabulary(indexed: int, known: set[str], queries: list[str], skipped: int) -> None:
    words = Vocabulary.from_tokens(sorted(known), None, PLAIN)
    expected = [words.to_dict()["str2idx"].get(token, 1) for token in queries]
    with sized(indexed_tokens=indexed):
        assert words.ids(pa.array(queries, pa.string()).slice(skipped)).tolist() == expected[skipped:]


def test_index_distinguishes_tokens_of_equal_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "token_hashes", lambda tokens: np.arange(len(tokens), dtype=np.uint64) << 63)
    index = vocabulary.TokenIndex(pa.array(list("abcdefgh")))
    monkeypatch.setattr(vocabulary, "token_hashes", lambda tokens: np.array([0, 1, 1, 0, 0], np.uint64) << 63)
    assert index.find(pa.array(["g", "b", "h", "b", "zz"])).tolist() == [6, 1, 7, -1, -1]


@pytest.mark.parametrize("hashes", [[0, 0, 0, 1, 2], [0, 1, 1, 1, 2], [0, 1, 2, 2, 2], [0, 1, 2, 3, 4]])
def test_index_searches_all_equal_hashes(hashes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "token_hashes", lambda tokens: np.array(hashes, np.uint64) << 60)
    tokens = pa.array(list("abcde"))
    index = vocabulary.TokenIndex(tokens)
    assert index.longest_run == max(map(hashes.count, hashes))
    assert index.find(tokens).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("indexed", [0, 10**9])
def test_missing_token_is_unknown(indexed: int, sizes: Sizes) -> None:
    sizes(indexed_tokens=indexed)
    known = Vocabulary.from_tokens(["", "a"], None, PLAIN)
    assert known.ids(pa.array(["a", None, ""])).tolist() == [3, 1, 2]


@pytest.mark.usefixtures("index_all")
def test_equal_vocabularies_share_a_cached_index() -> None:
    Vocabulary._index.cache_clear()
    known = Vocabulary.learn(counted("x y z"), PLAIN)
    data = pickle.dumps(known)
    for _ in range(3):
        assert pickle.loads(data).ids(pa.array(["x"])).tolist() == [2]
    other = Vocabulary(pa.array([*known.tokens[:4].to_pylist(), "w"]), known.frequencies, known.specials)
    assert other.ids(pa.array(["z", "w"])).tolist() == [1, 4]
    assert Vocabulary._index.cache_info().misses == 2
    assert len(pickle.dumps(known)) == len(data)


@pytest.mark.parametrize(
    ("size", "dtype"), [(256, np.uint8), (257, np.uint16), (65_536, np.uint16), (65_537, np.uint32)]
)
def test_ids_have_the_smallest_dtype(size: int, dtype: type[np.unsignedinteger[Any]]) -> None:
    known = Vocabulary.from_tokens([str(number) for number in range(size - 2)], None, PLAIN)
    last = known.ids(pa.array([str(size - 3)]))
    assert (last.dtype, int(last[0])) == (dtype, size - 1)


def test_unknown_token_without_unknown_symbol_raises() -> None:
    known = Vocabulary.from_tokens(READY, None, SpecialSymbols.locate_in(READY, {"padding": "[PAD]"}))
    with pytest.raises(RejectedValueError, match="Token 'new' is not in the vocabulary of 4 tokens"):
        known.ids(pa.array(["hello", "new"]))
    with pytest.raises(RejectedValueError, match="Id 9 is not in the vocabulary: expected 0 to 3"):
        known.decode(np.array([0, 9]))


# Decoding and storing


def test_decode_is_the_inverse_of_ids() -> None:
    known = Vocabulary.learn(counted("b b a c"), PLAIN)
    ids = known.ids(pa.array(["c", "b", "new", "<PAD>"]))
    assert known.decode(ids).to_pylist() == ["c", "b", "<UNK>", "<PAD>"]
    assert known.decode(np.array([[2, 99], [-1, 0]])).to_pylist() == ["b", "<UNK>", "<UNK>", "<PAD>"]
    assert known.decode(np.array([4, 5])).to_pylist() == ["c", "<UNK>"]


READY_VOCABULARY = Vocabulary.from_tokens(
    READY, counted("hello hello"), SpecialSymbols.locate_in(READY, {"unknown": "[UNK]", "padding": "[PAD]"})
)
SHARED = Vocabulary.from_tokens(READY, None, SpecialSymbols.locate_in(READY, {"padding": "[PAD]", "stop": "[PAD]"}))
STORED = [
    Vocabulary.learn(counted("b b a é 😀"), SpecialSymbols.for_tokens(start_stop=True)),
    Vocabulary.learn(counted(""), SpecialSymbols.for_category()),
    READY_VOCABULARY,
    SHARED,
    Vocabulary.from_tokens([], None, SpecialSymbols.locate_in([], {})),
]


ODD_SYMBOLS = {"padding": '"', "unknown": "\\n\n\u2028"}


@given(st.lists(st.text(max_size=4) | st.text(st.characters(max_codepoint=0x7F), max_size=4), unique=True, max_size=30))
def test_to_json_equals_json_of_to_dict(tokens):
    counts = TokenCounts.of(pa.array(tokens, pa.string()), np.arange(len(tokens), dtype=np.int64) << 33)
    for specials in (PLAIN, SpecialSymbols.for_tokens(special_symbols=ODD_SYMBOLS)):
        known = Vocabulary.learn(counts, specials)
        text = json.dumps(known.to_dict(), ensure_ascii=False, separators=(",", ":"))
        assert known.to_json() == text


@pytest.mark.parametrize("known", STORED)
def test_json_round_trip(known: Vocabulary) -> None:
    text = json.dumps({**known.to_dict(), "other": 1})
    assert Vocabulary.from_dict(json.loads(text)) == known
    assert Vocabulary.from_dict(json.loads(known.to_json())) == known
    text = json.dumps({**known.to_lists(), "other": 1})
    assert Vocabulary.from_dict(json.loads(text)) == known


def test_to_lists_has_unique_tokens_and_frequency_runs() -> None:
    known = Vocabulary.learn(counted("c c c a a b b d"), PLAIN)
    assert known.to_lists() == {
        "idx2str": ["<PAD>", "<UNK>", "c", "a", "b", "d"],
        "frequencies": {"values": [0, 3, 2, 1], "tokens": [2, 1, 2, 1]},
        "special_symbols": {"padding": "<PAD>", "unknown": "<UNK>"},
    }


@pytest.mark.parametrize("known", STORED)
def test_parquet_round_trip(known: Vocabulary, tmp_path: Path) -> None:
    path = tmp_path / "city.parquet"
    known.write_parquet(path)
    assert Vocabulary.read_parquet(path) == known
    assert Vocabulary.read_parquet(str(path)) == known
    with io.BytesIO() as file:
        known.write_parquet(file)
        assert file.getvalue() == path.read_bytes()
        file.seek(0)
        assert Vocabulary.read_parquet(file) == known


def test_parquet_is_readable_without_daskprep(tmp_path: Path) -> None:
    path = tmp_path / "city.parquet"
    READY_VOCABULARY.write_parquet(path)
    rows = pq.read_table(path).to_pylist()
    assert rows[:2] == [
        {"token": "[PAD]", "frequency": 0, "roles": "padding"},
        {"token": "hello", "frequency": 2, "roles": None},
    ]
    columns = pq.ParquetFile(path).metadata.row_group(0).to_dict()["columns"]
    assert {column["compression"] for column in columns} == {"ZSTD"}
    assert [column["has_dictionary_page"] for column in columns] == [False, False, True]


def test_damaged_parquet_raises(tmp_path: Path) -> None:
    path = tmp_path / "city.parquet"
    many = Vocabulary.from_tokens([f"word {number}" for number in range(5000)], None, PLAIN)
    many.write_parquet(path)
    good = path.read_bytes()
    for place in (len(good) // 3, len(good) - 6):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(CorruptDatasetError, match=r"city\.parquet holds no vocabulary"):
            Vocabulary.read_parquet(path)
    path.write_bytes(good[:-100])
    with pytest.raises(CorruptDatasetError, match=r"city\.parquet holds no vocabulary"):
        Vocabulary.read_parquet(path)


def test_other_parquet_raises(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(CorruptDatasetError, match=r"holds no vocabulary \(its columns are \['a'\], and not"):
        Vocabulary.read_parquet(path)
    with pytest.raises(FileNotFoundError):
        Vocabulary.read_parquet(tmp_path / "none.parquet")


def test_parquet_bomb_of_many_rows_raises(tmp_path: Path) -> None:
    path, rows = tmp_path / "bomb.parquet", 500_000
    table = pa.table([[""] * rows, np.zeros(rows, np.int64), pa.nulls(rows, pa.string())], schema=VOCABULARY_SCHEMA)
    with pq.ParquetWriter(path, VOCABULARY_SCHEMA, compression="zstd") as file:
        for _ in range(24):
            file.write_table(table)
    assert path.stat().st_size < 1_000_000
    with pytest.raises(CorruptDatasetError, match="it decodes to 27. MB, more than 64 times its size and 256 MB"):
        Vocabulary.read_parquet(path)


@pytest.mark.slow
@pytest.mark.parametrize("use_dictionary", [True, False])
def test_parquet_bomb_of_long_texts_raises(use_dictionary: bool, tmp_path: Path) -> None:
    path = tmp_path / "bomb.parquet"
    table = pa.table([["x" * 1_000_000] * 400, [1] * 400, pa.nulls(400, pa.string())], schema=VOCABULARY_SCHEMA)
    pq.write_table(table, path, compression="zstd", use_dictionary=use_dictionary)
    assert path.stat().st_size < 1_000_000
    with pytest.raises(CorruptDatasetError, match="it decodes to 38. MB, more than 64 times its size and 256 MB"):
        Vocabulary.read_parquet(path)


@pytest.mark.parametrize(
    "change",
    [
        {"str2freq": {}},
        {"idx2str": ["a", 3]},
        {"special_symbols": {"padding": "gone"}},
        {"special_symbols": {"role": "a"}},
        {"special_symbols": None},
    ],
)
def test_damaged_json_raises(change: dict[str, Any]) -> None:
    with pytest.raises(CorruptDatasetError, match="not a vocabulary as daskprep writes it"):
        Vocabulary.from_dict({**learned("a"), **change})


@pytest.mark.parametrize(
    "frequencies",
    [
        {"values": [0, 1], "tokens": [2, 2]},
        {"values": [0, 1], "tokens": [1, 1]},
        {"values": [0, 1, 2], "tokens": [4, -1, 0]},
        {"values": [0], "tokens": [2, 1]},
        {"values": [0, 1]},
        {"values": ["x", 1], "tokens": [2, 1]},
        {"values": [0, 1, 2, 3, 4], "tokens": [2**62, 2**62, 2**62, 2**62, 3]},
        {"values": [0, 1], "tokens": [2**64, 3]},
        {"values": [0, 2**64], "tokens": [2, 1]},
    ],
)
def test_damaged_lists_raise(frequencies: dict[str, list[Any]]) -> None:
    lists = Vocabulary.learn(counted("a"), PLAIN).to_lists()
    with pytest.raises(CorruptDatasetError, match="not a vocabulary as daskprep writes it"):
        Vocabulary.from_dict({**lists, "frequencies": frequencies})


def test_contains_known_tokens() -> None:
    known = Vocabulary.learn(counted("a a b"), PLAIN, most_common=1)
    assert known.contains(pa.array(["<PAD>", "a", "b", None])).tolist() == [True, True, False, False]


def test_vocabularies_differ_in_tokens_frequencies_or_symbols() -> None:
    known = Vocabulary.learn(counted("a b"), PLAIN)
    assert known == Vocabulary.learn(counted("b a"), PLAIN)
    assert known != Vocabulary.learn(counted("b a a"), PLAIN)
    assert known != Vocabulary.learn(counted("b c"), PLAIN)
    assert known != Vocabulary(known.tokens, known.frequencies, SpecialSymbols.for_category("<PAD>"))
    assert known != "a b"


def test_frequencies_that_are_lists_raise():
    state = {"idx2str": ["<UNK>"], "str2freq": {"<UNK>": []}, "special_symbols": {"unknown": "<UNK>"}}
    with pytest.raises(CorruptDatasetError, match="frequencies are of shape"):
        Vocabulary.from_dict(state)
