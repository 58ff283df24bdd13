from __future__ import annotations

import builtins
import json
import pickle
import re
import sys
import types
from collections.abc import Callable

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import daskprep as dp
from daskprep.columns.tokenizers import (
    TOKENIZERS,
    MissingPackageError,
    Pretrained,
    Tokenizer,
    get_tokenizer,
)
from daskprep.errors import ConfigError, RejectedValueError
from daskprep.rows.tokens import join_tokens


def separated(separator: str) -> Callable[[str], list[str]]:
    return lambda text: [part.strip() for part in text.strip().split(separator)] if text.strip() else []


def grams(text: str) -> list[str]:
    words = text.split()
    return [" ".join(words[at : at + n]) for n in (1, 2, 3) for at in range(len(words) - n + 1)]


IN_PYTHON = {
    "space": str.split,
    "space_punct": re.compile(r"\w+|[^\w\s]").findall,
    "underscore": separated("_"),
    "comma": separated(","),
    "characters": list,
    "untokenized": lambda text: [text],
    "stripped": lambda text: [text.strip()],
    "ngram": grams,
    "regex": re.compile(r"[A-Za-z\u00e0-\u00ff]+").findall,
}
NEED_A_FILE = {"hf_tokenizer": {"path": "a name"}, "sentencepiece": {"path": "a name"}}


# Characters that lower-case to something other than one letter, or depending on neighbors; that are white space or
# end a word without being ASCII; that join letters without being one; and ASCII that matters to any of these.
TRICKY = "\u0130\u03a3\u03c3\u03c2\u00df\u212a\u01c5\u0390\u00a0\u3000\u0085\u2028\u001c\u001f\0\x7f"
TRICKY += "\u0301\u00ad\u2019\u2014\u4e2d\U0001f600"
TEXT = st.text(st.sampled_from(TRICKY + "aAzZ09_ ,.':^`-\t\n") | st.characters(codec="utf-8"), max_size=40)
WORDS = st.lists(
    st.sampled_from(["Hello", "hello", "don\u2019t", "\u039f\u0394\u039f\u03a3", "\u00c9t\u00e9", "42", "x" * 20])
).map(" ".join)
ROWS = st.lists(st.none() | TEXT | WORDS, max_size=12)


def make(name: str, *, lowercase: bool = False) -> Tokenizer:
    return get_tokenizer(name, lowercase=lowercase, ngram_size=3, pattern=r"[A-Za-z\u00e0-\u00ff]+")


def check(tokens: pa.ListArray) -> None:
    """Check the tokenizer-independent contract of a result."""
    tokens.validate(full=True)
    assert tokens.type == pa.list_(pa.dictionary(pa.int32(), pa.string()))
    codes, dictionary = tokens.flatten().indices.to_numpy(), tokens.values.dictionary.to_pylist()
    assert len(set(dictionary)) == len(dictionary)
    assert np.array_equal(np.unique(codes), np.arange(len(dictionary)))


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("name", IN_PYTHON)
@given(ROWS)
@example(["\u0391\u03a3.\u0392", "\u0391\u03a3'", "'\u03a3", "\u03a3\u00b7\u03a3", "a\u03a3\u00adb"])
@example(["\u0130stanbul", "I\u0307", "\u212a\u212a k", "K"])
@example(["a\u00a0b\u3000c\u0085d\x1ce\u2028f", "\u00a0", " \u3000"])
@example(["don\u2019t \u201cgo\u201d\u2014there\u2026", "dont", "t", "\u2019"])
@example(["a\0b", "\0", "a\0 \0", "a", "abcdefgh\0"])
@settings(max_examples=25)
def test_random_strings_are_split_as_in_python(name, lowercase, rows):
    column = pa.array([None, "not in the slice", *rows, "nor this"], pa.string()).slice(2, len(rows))
    tokens = make(name, lowercase=lowercase)(column)
    check(tokens)
    in_python = IN_PYTHON[name]
    lowered = [row.lower() if row and lowercase else row for row in rows]
    assert tokens.to_pylist() == [None if row is None else in_python(row) for row in lowered]


ALL_CHARACTERS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]


def plain(tokens: pa.ListArray) -> list[list[str] | None]:
    """Return lists of strings; `to_pylist` of a dictionary array takes ten times as long."""
    return tokens.cast(pa.list_(pa.string())).to_pylist()


@pytest.mark.slow
@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("name", ["space", "space_punct", "characters"])
def test_every_character_is_split_as_in_python(name, lowercase):
    rows = [f"A{one}b {one}" for one in ALL_CHARACTERS[:0x3100]]
    rows += ["".join(ALL_CHARACTERS[at : at + 50]) for at in range(0x3100, 0x20000, 50)]
    expected = [IN_PYTHON[name](row.lower() if lowercase else row) for row in rows]
    assert plain(make(name, lowercase=lowercase)(pa.array(rows))) == expected


def test_arrow_white_space_equals_python():
    rows = [f"{one}a{one}" for one in ALL_CHARACTERS[:0x20000]]
    assert plain(make("stripped")(pa.array(rows))) == [[row.strip()] for row in rows]


@pytest.mark.parametrize("name", IN_PYTHON)
@pytest.mark.parametrize("rows", [[], [None], [None, None], [""], ["", None, ""], [" \t"]])
def test_columns_without_tokens(name, rows):
    tokens = make(name, lowercase=True)(pa.array(rows, pa.string()))
    check(tokens)
    assert tokens.to_pylist() == [None if row is None else IN_PYTHON[name](row) for row in rows]


@pytest.mark.parametrize("name", IN_PYTHON)
def test_row_tokens_do_not_depend_on_blocks(name, sizes):
    rows = ["A b, c_d \u00c9\u2019s", None, "", "x" * 50, "\u039f\u0394\u039f\u03a3 1,2"] * 20
    whole = make(name, lowercase=True)(pa.array(rows)).to_pylist()
    sizes(kernel_bytes=32, kernel_spans=16)
    assert make(name, lowercase=True)(pa.array(rows)).to_pylist() == whole


def test_large_strings():
    column = pa.array(["\u039f\u0394\u039f\u03a3 b", None], pa.large_string())
    assert make("space_punct", lowercase=True)(column).to_pylist() == [["\u03bf\u03b4\u03bf\u03c2", "b"], None]


def test_lowercased_non_ascii_token_joins_the_ascii_token():
    tokens = make("space_punct", lowercase=True)(pa.array(["k", "\u212a", "don\u2019t", "T", "\u2019"]))
    assert tokens.to_pylist() == [["k"], ["k"], ["don", "\u2019", "t"], ["t"], ["\u2019"]]
    assert sorted(tokens.values.dictionary.to_pylist()) == ["don", "k", "t", "\u2019"]


def test_ngrams_stay_within_their_rows():
    tokens = get_tokenizer("ngram")(pa.array(["a b c", None, "d", "a b"]))
    assert tokens.to_pylist() == [["a", "b", "c", "a b", "b c"], None, ["d"], ["a", "b", "a b"]]
    assert get_tokenizer("ngram", ngram_size=1)(pa.array(["a b"])).to_pylist() == [["a", "b"]]


def test_json_lists_and_invalid_cells():
    cells = ['["a", "B c", ""]', "[1, 2.50, -3e2]", "[]", None, '["\\u00c9"]']
    unreadable = ["", "a", '"a"', '{"a": 1}', '["a", null]', "[true]", '[["a"]]', '["\\ud800"]', "[NaN]", "[" * 10_000]
    tokens = get_tokenizer("json", lowercase=True)(pa.array(cells + unreadable))
    check(tokens)
    lists = [["a", "b c", ""], ["1", "2.50", "-3e2"], [], None, ["\u00e9"]]
    assert tokens.to_pylist() == lists + [None] * len(unreadable)


def test_function_is_called_once_per_distinct_string():
    seen = []

    def pairs(text: str) -> list[str]:
        seen.append(text)
        return re.findall("..", text)

    tokens = get_tokenizer(pairs, lowercase=True)(pa.array(["ABab", None, "abAB", "c", "ABab"]))
    check(tokens)
    assert tokens.to_pylist() == [["ab", "ab"], None, ["ab", "ab"], [], ["ab", "ab"]]
    assert sorted(seen) == ["abab", "abab", "c"]


def test_function_error_names_the_string():
    with pytest.raises(RejectedValueError, match="on 'b': ZeroDivisionError") as caught:
        get_tokenizer(lambda text: [text] if text == "a" else [1 / 0])(pa.array(["a", "b"]))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("result", ["ab", None, [1], ["a", None], ["\ud800"], iter("a")])
def test_function_must_return_strings(result):
    with pytest.raises(RejectedValueError, match=r"for 'cell'; it must return a list of strings"):
        get_tokenizer(lambda _: result)(pa.array(["cell"]))


def test_unknown_name_error_suggests_closest_name():
    with pytest.raises(ConfigError, match='no tokenizer "space_punkt". Did you mean "space_punct"?'):
        get_tokenizer("space_punkt")
    with pytest.raises(ConfigError, match="no tokenizer"):
        get_tokenizer(["space"])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("regex", {}, "needs a pattern"),
        ("regex", {"pattern": "("}, "is not a regular expression"),
        ("regex", {"pattern": "(" * 2_000 + ")" * 2_000}, "is not a regular expression: it is nested too deeply"),
        ("regex", {"pattern": f"a{{{10**20}}}"}, "is not a regular expression"),
        ("ngram", {"ngram_size": 0}, "must be 1 or more"),
        ("custom", {}, "the function itself"),
        ("hf_tokenizer", {}, "pretrained_model_name_or_path"),
        ("hf_tokenizer", {"path": "no/such/tokenizer.json"}, "no file no/such/tokenizer.json"),
    ],
)
def test_invalid_options_raise(name, options, message):
    with pytest.raises(ConfigError, match=message):
        get_tokenizer(name, **options)


def test_options_of_other_tokenizers_are_ignored():
    assert get_tokenizer("space", pattern="x", path="y", ngram_size=9) == get_tokenizer("space")


def test_get_tokenizer_accepts_a_tokenizer():
    tokenizer = get_tokenizer("comma")
    assert get_tokenizer(tokenizer) is tokenizer


def test_tokenizer_can_be_registered(monkeypatch):
    monkeypatch.setitem(
        TOKENIZERS, "semicolon", lambda lowercase: get_tokenizer(lambda text: text.split(";"), lowercase=lowercase)
    )
    assert get_tokenizer("semicolon", lowercase=True)(pa.array(["A;b"])).to_pylist() == [["a", "b"]]


def test_unhashable_tokenizer_can_be_registered(monkeypatch):
    class Semicolons:
        __hash__ = None

        def __call__(self, *, lowercase):
            return get_tokenizer(lambda text: text.split(";"), lowercase=lowercase)

    monkeypatch.setitem(TOKENIZERS, "semicolon", Semicolons())
    assert get_tokenizer("semicolon", lowercase=True)(pa.array(["A;b"])).to_pylist() == [["a", "b"]]


@pytest.mark.parametrize("name", [*IN_PYTHON, "json"])
def test_tokenizers_can_be_pickled(name):
    tokenizer = make(name, lowercase=True)
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again == tokenizer
    assert again.digest() == tokenizer.digest()
    assert tokenizer.model is None


def test_digests_distinguish_tokenizers():
    def splitter(separator: str) -> Callable[[str], list[str]]:
        return lambda text: text.split(separator)

    kinds = [make(name, lowercase=lowercase) for name in [*IN_PYTHON, "json"] for lowercase in (False, True)]
    kinds += [get_tokenizer("regex", pattern="a"), get_tokenizer("ngram", ngram_size=4)]
    kinds += [get_tokenizer(function) for function in (str.split, str.splitlines, splitter("a"), splitter("b"))]
    assert len({kind.digest() for kind in kinds}) == len(kinds)
    assert get_tokenizer(splitter("a")).digest() == get_tokenizer(splitter("a")).digest()


# -- tokenizers of other packages


def save_tokenizer(path, **special) -> str:
    tokenizers = pytest.importorskip("tokenizers")
    ids = {"[UNK]": 0, "a": 1, "b": 2, "c": 4, "[CLS]": 5, "[PAD]": 6}  # there is no token 3
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[CLS]", "[PAD]"])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $A", special_tokens=[("[CLS]", 5)])
    tokenizer.enable_truncation(2)
    if special.get("padding"):
        tokenizer.enable_padding(pad_id=2, pad_token="b", length=9)
    tokenizer.save(str(path))
    return str(path)


def test_hugging_face_keeps_ids(tmp_path):
    tokenizer = get_tokenizer("hf_tokenizer", lowercase=True, path=save_tokenizer(tmp_path / "tokenizer.json"))
    assert tokenizer.model.vocabulary == ["[UNK]", "a", "b", "[no token 3]", "c", "[CLS]", "[PAD]"]
    assert (tokenizer.model.pad_id, tokenizer.model.unk_id) == (6, 0)
    tokens = tokenizer(pa.array(["a B c", None, "", "what a", "a B c"]))
    check(tokens)
    expected = [["[CLS]", "a", "b", "c"], None, ["[CLS]"], ["[CLS]", "[UNK]", "a"], ["[CLS]", "a", "b", "c"]]
    assert tokens.to_pylist() == expected
    assert tokenizer(pa.array([], pa.string())).to_pylist() == []


def test_hugging_face_folder_with_padding_configuration(tmp_path):
    save_tokenizer(tmp_path / "tokenizer.json", padding=True)
    tokenizer = get_tokenizer("hf_tokenizer", path=str(tmp_path))
    assert tokenizer.model.pad_id == 2
    assert tokenizer(pa.array(["c"])).to_pylist() == [["[CLS]", "c"]]


@pytest.mark.parametrize("file", [None, "tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("entry", ["filler", {"content": "filler", "lstrip": False}])
def test_hugging_face_padding_need_not_be_an_added_token(tmp_path, file, entry):
    tokenizers = pytest.importorskip("tokenizers")
    ids = {"[UNK]": 0, "good": 1, "room": 2, "bad": 3, "[PAD]": 4, "filler": 5}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    rows = pd.DataFrame({"x": ["good room", "bad"]})
    text = dp.Text(tokenizer="hf_tokenizer", pretrained_model_name_or_path=str(tmp_path))
    prep = dp.Preprocessor({"x": text}, split=None).fit(rows)
    assert prep.encode(rows)["x"].tolist() == [[1, 2], [3, 4]]
    if file:
        digest = text.make_tokenizer().digest()
        (tmp_path / file).write_text(json.dumps({"pad_token": entry, "unk_token": None}))
        assert dp.Preprocessor({"x": text}, split=None).fit(rows).encode(rows)["x"].tolist() == [[1, 2], [3, 5]]
        assert text.make_tokenizer().digest() != digest
    assert prep.encode(rows)["x"].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(("declared", "length"), [(300, 300), (10**30, 402)])
def test_hugging_face_rows_are_as_long_as_the_model_takes(tmp_path, declared, length):
    save_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": declared}))
    rows = pd.DataFrame({"x": ["a " * 401, "b " * 300]})
    text = dp.Text(tokenizer="hf_tokenizer", pretrained_model_name_or_path=str(tmp_path))
    assert dp.Preprocessor({"x": text}, split=None).fit(rows).encode(rows)["x"].shape == (2, length)
    wide = dp.Preprocessor({"x": text.set_params(max_sequence_length=None)}, split=None).fit(rows)
    assert wide.encode(rows)["x"].shape == (2, 402)


def test_hugging_face_digest_depends_on_the_content(tmp_path):
    one = get_tokenizer("hf_tokenizer", path=save_tokenizer(tmp_path / "one.json"))
    same = get_tokenizer("hf_tokenizer", path=save_tokenizer(tmp_path / "two.json"))
    other = get_tokenizer("hf_tokenizer", path=save_tokenizer(tmp_path / "three.json", padding=True))
    assert one.digest() == same.digest() != other.digest()
    assert pickle.loads(pickle.dumps(one)).digest() == one.digest()
    before = one.digest()
    save_tokenizer(tmp_path / "one.json", padding=True)
    assert one.digest() == other.digest() != before


def test_hugging_face_by_name(tmp_path, monkeypatch):
    tokenizers = pytest.importorskip("tokenizers")
    backend = tokenizers.Tokenizer.from_file(save_tokenizer(tmp_path / "tokenizer.json"))
    fast = types.SimpleNamespace(backend_tokenizer=backend, pad_token_id=6, unk_token_id=None)
    known = {"some/name": fast, "some/slow": types.SimpleNamespace()}
    fake = types.SimpleNamespace(AutoTokenizer=types.SimpleNamespace(from_pretrained=lambda name, **_: known[name]))
    monkeypatch.setitem(sys.modules, "transformers", fake)
    tokenizer = get_tokenizer("hf_tokenizer", path="some/name")
    assert tokenizer(pa.array(["a"])).to_pylist() == [["[CLS]", "a"]]
    assert (tokenizer.model.pad_id, tokenizer.model.unk_id) == (6, None)
    with pytest.raises(ConfigError, match="some/slow has no fast version"):
        get_tokenizer("hf_tokenizer", path="some/slow")(pa.array(["a"]))


@pytest.mark.parametrize("decoder", ["ByteLevel", "Metaspace", "WordPiece"])
def test_decode_joins_tokens_as_hugging_face(tmp_path, decoder):
    library = pytest.importorskip("tokenizers")
    texts = pd.DataFrame({"x": ["smørbrød is good goodness 日本", "good smør\n"]})
    model, trainer = {
        "ByteLevel": (library.models.BPE(), library.trainers.BpeTrainer),
        "Metaspace": (library.models.BPE(unk_token="[UNK]"), library.trainers.BpeTrainer),
        "WordPiece": (library.models.WordPiece(unk_token="[UNK]"), library.trainers.WordPieceTrainer),
    }[decoder]
    tokenizer = library.Tokenizer(model)
    splitter = "BertPreTokenizer" if decoder == "WordPiece" else decoder
    tokenizer.pre_tokenizer = getattr(library.pre_tokenizers, splitter)()
    tokenizer.decoder = getattr(library.decoders, decoder)()
    tokenizer.train_from_iterator(texts["x"], trainer(special_tokens=["<pad>", "[UNK]"], show_progress=False))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    feature = dp.Text(
        tokenizer="hf_tokenizer", pretrained_model_name_or_path=str(tmp_path / "tokenizer.json"), lowercase=False
    )
    prep = dp.Preprocessor({"x": feature}, targets="x").fit(texts)
    arrays = prep.encode(texts)
    decoded = [tokenizer.decode(row) for row in arrays["x"].tolist()]
    assert prep.decode(arrays)["x"].tolist() == decoded
    assert prep.predictions(arrays["x"])["x_predictions"].tolist() == decoded
    assert "smør" in decoded[1]
    saved = prep.to_dict()
    assert saved["features"]["x"]["learned"].pop("decoder") == {"ByteLevel": "byte_level"}.get(decoder, decoder.lower())
    assert "smør" in dp.Preprocessor.from_dict(saved, trusted=True).decode(arrays)["x"][1] or decoder == "ByteLevel"


def test_invalid_utf8_decodes_as_replacement_characters():
    assert join_tokens(["Ã", "<日>", "a"], "byte_level") == "\ufffd<日>a"


def test_hugging_face_without_a_padding_symbol(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    path, texts = str(tmp_path / "gpt.json"), pd.DataFrame({"x": ["a b", "b"]})
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "<|endoftext|>": 2}))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(path)
    text = dp.Text(tokenizer="hf_tokenizer", pretrained_model_name_or_path=path, fill_value="b")
    with pytest.raises(ConfigError, match=r'column "x": .*gpt.json" has no padding symbol: call add_special_tokens'):
        dp.Preprocessor({"x": text}).fit(texts)
    tokenizer.enable_padding(pad_id=2, pad_token="<|endoftext|>")
    tokenizer.save(path)
    assert dp.Preprocessor({"x": text}).fit(texts).encode(texts)["x"].tolist() == [[0, 1], [1, 2]]
    tokenizer.no_padding()
    tokenizer.add_special_tokens(["<pad>"])
    tokenizer.save(path)
    assert dp.Preprocessor({"x": text}).fit(texts).encode(texts)["x"].tolist() == [[0, 1], [1, 3]]


def test_padding_with_the_first_token_raises_in_fit_but_old_states_load(tmp_path, monkeypatch):
    tokenizers = pytest.importorskip("tokenizers")
    path, texts = str(tmp_path / "unk.json"), pd.DataFrame({"x": ["a b a", "b"]})
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(path)
    prep = dp.Preprocessor({"x": dp.Text(tokenizer="hf_tokenizer", pretrained_model_name_or_path=path, fill_value="b")})
    with pytest.raises(ConfigError, match='unk.json" has no padding symbol'):
        prep.fit(texts)
    with monkeypatch.context() as earlier:
        earlier.setattr(dp.Text, "_lacks_padding", False)
        prep.fit(texts).save(tmp_path / "prep.json")
    loaded = dp.Preprocessor.load(tmp_path / "prep.json", trusted=True)
    assert loaded.encode(texts)["x"].tolist() == [[0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("path", ["/no/such/folder", "./tok", "../tok", "~/tok", "models/bert/tok"])
def test_missing_folder_raises(path):
    pytest.importorskip("tokenizers")
    with pytest.raises(ConfigError, match=f"no tokenizer.json in {path}: there is no such folder"):
        get_tokenizer("hf_tokenizer", path=path)


def test_name_without_transformers_raises(tmp_path, monkeypatch):
    pytest.importorskip("tokenizers")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingPackageError, match='no folder "some/other".*pip install transformers$'):
        get_tokenizer("hf_tokenizer", path="some/other")(pa.array(["a"]))
    with pytest.raises(ConfigError, match=f"no tokenizer.json in {tmp_path}: .*pip install transformers$"):
        get_tokenizer("hf_tokenizer", path=str(tmp_path))(pa.array(["a"]))


@pytest.mark.parametrize(
    ("name", "package"),
    [("english_tokenize", "spacy"), ("hf_tokenizer", "tokenizers"), ("sentencepiece", "sentencepiece")],
)
def test_missing_package_error_names_the_package(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=f"pip install {package}$") as caught:
        get_tokenizer(name, **NEED_A_FILE.get(name, {}))
    assert isinstance(caught.value, ImportError)


def test_import_error_inside_a_package_is_raised_unchanged(monkeypatch, tmp_path):
    (tmp_path / "spacy.py").write_text("import a_package_that_spacy_would_need")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "spacy", raising=False)
    with pytest.raises(ModuleNotFoundError, match="a_package_that_spacy_would_need"):
        get_tokenizer("english_tokenize")


def fake_spacy() -> types.SimpleNamespace:
    """Return a fake spaCy: tokens are words, white space and "n't"; a lemma is the word without its "s"."""

    class Token(builtins.str):
        text = property(builtins.str.__str__)
        is_space = property(builtins.str.isspace)
        is_stop = property(lambda self: self in {"the", "were"})
        like_num = property(builtins.str.isdigit)
        lemma_ = property(lambda self: self.removesuffix("s"))

    def pipe(texts: list[str]) -> list[list[Token]]:
        return [[Token(part) for part in re.findall(r"\s+|n't|[\w.]+?(?=n't)|[\w.]+|\S", text)] for text in texts]

    def load(name: str, disable: list[str]) -> types.SimpleNamespace:
        return types.SimpleNamespace(pipe=pipe)

    def blank(language: str) -> types.SimpleNamespace:
        return types.SimpleNamespace(tokenizer=types.SimpleNamespace(pipe=pipe))

    return types.SimpleNamespace(load=load, blank=blank)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("english_tokenize", ["the", "300", "cats", "were", "n't", "at", "5.20", "!"]),
        ("english_tokenize_filter", ["the", "cats", "were", "n't"]),
        ("english_tokenize_remove_stopwords", ["300", "cats", "n't", "at", "5.20", "!"]),
        ("english_lemmatize", ["the", "300", "cat", "were", "n't", "at", "5.20", "!"]),
        ("english_lemmatize_filter", ["the", "cat", "were", "n't"]),
        ("english_lemmatize_remove_stopwords", ["300", "cat", "n't", "at", "5.20", "!"]),
    ],
)
def test_english_tokens_with_a_fake_spacy(name, expected, monkeypatch):
    from daskprep.columns import tokenizers

    tokenizers._load_english.cache_clear()
    monkeypatch.setitem(sys.modules, "spacy", fake_spacy())
    tokens = get_tokenizer(name, lowercase=True)(pa.array(["The 300 cats  weren't at 5.20!", None, ""]))
    tokenizers._load_english.cache_clear()
    check(tokens)
    assert tokens.to_pylist() == [expected, None, []]


def test_english_tokens_equal_spacy():
    pytest.importorskip("spacy")
    tokens = get_tokenizer("english_tokenize_filter", lowercase=True)(pa.array(["The 3 cats weren't at $5.20!"]))
    assert tokens.to_pylist() == [["the", "cats", "were", "n't"]]


def test_sentencepiece_keeps_ids(tmp_path, monkeypatch):
    class Processor:
        def __init__(self, model_file: str) -> None:
            assert model_file == str(tmp_path / "m.model")

        def encode(self, texts: list[str]) -> list[list[int]]:
            return [[2 if one == "a" else 0 for one in text] for text in texts]

        id_to_piece = staticmethod(["<unk>", "<s>", "a"].__getitem__)
        get_piece_size = staticmethod(lambda: 3)
        pad_id = staticmethod(lambda: -1)
        unk_id = staticmethod(lambda: 0)

    monkeypatch.setitem(sys.modules, "sentencepiece", types.SimpleNamespace(SentencePieceProcessor=Processor))
    (tmp_path / "m.model").write_bytes(b"content")
    tokenizer = get_tokenizer("sentencepiece", path=str(tmp_path / "m.model"))
    assert isinstance(tokenizer, Pretrained)
    assert tokenizer(pa.array(["ab", None, ""])).to_pylist() == [["a", "<unk>"], None, []]
    assert (tokenizer.model.vocabulary, tokenizer.model.pad_id, tokenizer.model.unk_id) == (
        ["<unk>", "<s>", "a"],
        None,
        0,
    )
    assert json.loads(json.dumps(tokenizer.parameters())) == tokenizer.parameters()


def test_sentencepiece_pads_with_a_symbol_that_is_not_its_pad_id(tmp_path):
    library = pytest.importorskip("sentencepiece")
    (tmp_path / "words.txt").write_text("one two three\n" * 20)
    library.SentencePieceTrainer.train(
        input=str(tmp_path / "words.txt"), model_prefix=str(tmp_path / "m"), vocab_size=20, hard_vocab_limit=False,
        control_symbols=["<pad>"], pad_id=-1, minloglevel=2,
    )  # fmt: skip
    text = dp.Text(tokenizer="sentencepiece", pretrained_model_name_or_path=str(tmp_path / "m.model"))
    frame = pd.DataFrame({"t": ["one", "two three one two"]})
    prep = dp.Preprocessor({"t": text}).fit(frame)
    pad_id = library.SentencePieceProcessor(model_file=str(tmp_path / "m.model")).piece_to_id("<pad>")
    assert prep.encode(frame)["t"][0, -1] == pad_id != 0


@pytest.mark.parametrize(("truncation", "direction"), [("keep_start", "right"), ("keep_end", "left")])
def test_truncated_rows_keep_the_tokens_that_hugging_face_adds(tmp_path, truncation, direction):
    library = pytest.importorskip("tokenizers")
    ids = {token: number for number, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d"])}
    tokenizer = library.Tokenizer(library.models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = library.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.post_processor = library.processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(tmp_path / "bert.json"))
    frame = pd.DataFrame({"x": ["a b c d", "a b", "d c b a b c", "x"]})
    feature = dp.Text(
        tokenizer="hf_tokenizer",
        pretrained_model_name_or_path=str(tmp_path / "bert.json"),
        max_sequence_length=4,
        truncation=truncation,
        fill_value="[UNK]",
    )
    prep = dp.Preprocessor({"x": feature}).fit(frame)
    tokenizer.enable_truncation(4, direction=direction)
    tokenizer.enable_padding(length=4)
    assert prep.encode(frame)["x"].tolist() == [one.ids for one in tokenizer.encode_batch(frame["x"].tolist())]
    lists = prep.encode(pd.DataFrame({"x": [["a", "b", "c", "d", "a"]]}))["x"].tolist()
    assert lists == [[4, 5, 6, 7] if truncation == "keep_start" else [5, 6, 7, 4]]
    state = prep.to_dict()
    assert (
        dp.Preprocessor.from_dict(state, trusted=True).encode(frame)["x"].tolist() == prep.encode(frame)["x"].tolist()
    )
    earlier = [state["features"]["x"]["learned"].pop(name) for name in ("first_ids", "last_ids")]
    assert list(map(list, earlier)) == [[2], [3]]
    rows = dp.Preprocessor.from_dict(state, trusted=True).encode(frame)["x"].tolist()
    assert rows[0] == ([2, 4, 5, 6] if truncation == "keep_start" else [5, 6, 7, 3])
