"""Built-in tokenizers for a single text, and row encoders of `Set`, `Bag`, `Sequence` and `Text`.

`daskprep.columns.tokenizers` splits columns by the same rules.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Annotated, Any, Literal

import numpy as np

from daskprep.errors import ColumnError
from daskprep.rows.base import Arrays, Parameters, RowEncoder, Strategy, Truncation, VocabularyValues, smallest_uint
from daskprep.rows.cells import LIST_TYPES, text_of
from daskprep.rows.typed import AtLeast, Count, Length, later

TokenizeFunction = Callable[[str], list[str] | None]

_WORD = re.compile(r"\w+|[^\w\s]")


def words(text: str) -> list[str]:
    """Split a text into words and single punctuation marks."""
    return [text] if text.isalnum() else _WORD.findall(text)


def ngrams(tokens: Sequence[str], max_size: int) -> list[str]:
    """Return tokens, then pairs of neighbors, up to `max_size`."""
    sizes = range(1, min(max_size, len(tokens)) + 1)
    return [" ".join(tokens[i : i + size]) for size in sizes for i in range(len(tokens) - size + 1)]


def matches(text: str, pattern: re.Pattern[str]) -> list[str]:
    """Return the non-empty matches of a regular expression."""
    return [match[0] for match in pattern.finditer(text) if match[0]]


def json_items(text: str, *, lowercase: bool = False) -> list[str] | None:
    """Return the items of a JSON list as text, or None; numbers keep their notation: 1.50 is "1.50"."""
    try:
        items = json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    if not isinstance(items, list) or not are_strings(items):
        return None
    return [item.lower() for item in items] if lowercase else items


def are_strings(tokens: Sequence[Any]) -> bool:
    """Return whether all tokens are strings that UTF-8 can encode."""
    try:
        "".join(tokens).encode()  # half a surrogate pair cannot be encoded
    except (TypeError, UnicodeEncodeError):
        return False
    return True


def _split_at(text: str, separator: str, *, lowercase: bool) -> list[str]:
    # Lowercase after the split: the lowercase form of a capital sigma depends on its neighbours.
    tokens = [(token.lower() if lowercase else token).strip() for token in text.split(separator)]
    return [] if tokens == [""] else tokens


def _lowercase_first(tokenize: TokenizeFunction) -> Callable[[Mapping[str, Any]], TokenizeFunction]:
    """Return a factory of tokenizers that may lowercase first."""
    return lambda params: (lambda text: tokenize(text.lower())) if params["lowercase"] else tokenize


WORD_START_MARK, CONTINUATION_MARK = "\u2581", "##"  # prefix of the first subword of a word, or of all later ones
WORD_START_TOKENIZERS = ("bpe", "unigram", "metaspace")  # tokenizers that mark the first subword


def _byte_characters() -> dict[str, int]:
    """Return the byte of each character of the tokens of GPT-style tokenizers."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_CHARACTERS = _byte_characters()


@functools.lru_cache(maxsize=1 << 16)
def _token_bytes(token: str) -> bytes:
    """Return the bytes that a token's characters represent, or its UTF-8."""
    try:
        return bytes([_BYTE_CHARACTERS[character] for character in token])
    except KeyError:
        return token.encode()


def join_tokens(tokens: Sequence[str], tokenizer: object) -> str:
    """Join the tokens of a tokenizer to text, such as subwords to words.

    `tokenizer` is the name of a tokenizer, or the decoder of a Hugging Face tokenizer: "byte_level" or "metaspace".
    """
    if tokenizer == "byte_level":
        return b"".join(map(_token_bytes, tokens)).decode(errors="replace")
    text = ("" if tokenizer in ("characters", *WORD_START_TOKENIZERS) else " ").join(tokens)
    if tokenizer == "wordpiece":
        return text.replace(" " + CONTINUATION_MARK, "")
    return text.replace(WORD_START_MARK, " ").removeprefix(" ") if tokenizer in WORD_START_TOKENIZERS else text


TOKENIZERS: dict[str, Callable[[Mapping[str, Any]], TokenizeFunction]] = {
    "space": _lowercase_first(str.split),
    "space_punct": _lowercase_first(words),
    "underscore": lambda params: functools.partial(_split_at, separator="_", lowercase=params["lowercase"]),
    "comma": lambda params: functools.partial(_split_at, separator=",", lowercase=params["lowercase"]),
    "characters": _lowercase_first(list),
    "untokenized": _lowercase_first(lambda text: [text]),
    "stripped": _lowercase_first(lambda text: [text.strip()]),
    "ngram": lambda params: _lowercase_first(lambda text: ngrams(text.split(), params["ngram_size"]))(params),
    "regex": lambda params: _lowercase_first(functools.partial(matches, pattern=re.compile(params["pattern"])))(params),
    "json": lambda params: functools.partial(json_items, lowercase=params["lowercase"]),
}
"""Factories of tokenizers by name: each takes a feature's parameters, and returns a function that splits a text."""


@dataclass(kw_only=True, eq=False, repr=False)
class TokenParameters(Parameters):
    """Parameters of types whose cells are lists of tokens."""

    tokenizer: str | Callable[..., Any] = "space"
    min_frequency: Count | None = None
    lowercase: bool = False
    ngram_size: Count = 2
    pattern: str | None = None
    pretrained_model_name_or_path: str | None = None
    missing_value_strategy: Strategy = "fill_with_const"
    fill_value: str | None = "<UNK>"


class TokenRowEncoder(RowEncoder):
    """Row encoder of a type whose cells are lists of tokens."""

    has_vocabulary = True

    def prepare(self) -> None:
        tokens, roles = self.learned["idx2str"], self.learned["special_symbols"]
        self.ids = {token: number for number, token in enumerate(tokens)}
        self.dtype = smallest_uint(len(tokens))
        self.symbols: dict[str, str] = roles
        self.special = frozenset(roles.values())
        self.unknown = self.ids[roles["unknown"]]
        self.tokenize = TOKENIZERS[self.params.tokenizer](vars(self.params))

    def read(self, cell: Any) -> Any:
        is_plain = type(cell) is str and cell.isascii() and cell not in self.special
        tokens = self.tokenize(cell) if is_plain else self.tokens_of(cell)
        return None if tokens is None else self.build_row(tokens)

    def is_unknown(self, value: Any) -> bool:
        return self.unknown in value

    def is_unseen(self, cell: Any) -> bool:
        return not self.ids.keys() >= set(self.tokens_of(cell) or ())

    def read_fill(self, fill: Any) -> Any:
        if isinstance(fill, list):  # tokens of the vocabulary, or names of removed ones, which are not lowercased
            return self.build_row(fill)
        return self.read(self.symbols["unknown"] if fill == "<UNK>" else fill)

    def tokens_of(self, cell: Any) -> list[str] | None:
        """Return a cell's tokens, None if missing or unreadable."""
        if isinstance(cell, str) and cell in self.special:
            return [str(cell)]  # a tokenizer may split "<UNK>" into three tokens
        if isinstance(cell, LIST_TYPES):
            return self._items(cell)
        text = text_of(cell)
        return None if text is None else self.tokenize(text)

    def _items(self, cell: Any) -> list[str] | None:
        """Return a list's items as tokens, sets sorted; None if one is missing, ColumnError if not 1-D."""
        if isinstance(cell, np.ndarray) and cell.ndim != 1:
            raise ColumnError(f"an array of {cell.ndim} dimensions cannot be read, only of 1; use .ravel()")
        items = sorted(cell, key=str) if isinstance(cell, set | frozenset) else cell
        tokens = [text_of(item) for item in items]
        if self.params.lowercase:
            tokens = [None if token is None else token.lower() for token in tokens]
        return None if None in tokens else tokens  # type: ignore[return-value]

    def build_row(self, tokens: list[str]) -> Any:
        """Return the ids of a row's tokens, in the form that `to_arrays` takes."""
        raise NotImplementedError

    def ids_of(self, tokens: Sequence[str]) -> list[int]:
        """Return the id of each token, or the unknown id."""
        return list(map(self.ids.get, tokens, repeat(self.unknown)))


@dataclass(frozen=True, kw_only=True)
class SetValues:
    """Learned values of `Set` and `Bag` in addition to their vocabulary."""

    max_set_size: int  # tokens in the largest training row
    size: Length  # ids in an encoded row


@dataclass(kw_only=True, eq=False, repr=False)
class BagParameters(TokenParameters):
    """Parameters of `Bag`, and of `Set` besides its own."""

    most_common: Count | None = 10_000
    max_size: Count | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class SetParameters(BagParameters):
    """Parameters of `Set`."""

    expand_to: Literal["multi_hot", "ids"] = "multi_hot"


class SetRowEncoder(TokenRowEncoder):
    """Row encoder of `Set`."""

    values = (VocabularyValues, SetValues)

    def prepare(self) -> None:
        super().prepare()
        self.size = self.learned["size"]

    def build_row(self, tokens: list[str]) -> Any:
        return self.ids_of(list(dict.fromkeys(tokens))[: self.size])

    def losses(self, cell: Any) -> Sequence[str]:
        return ("cut",) if len(set(self.tokens_of(cell) or ())) > self.size else ()

    def to_arrays(self, values: Sequence[Any]) -> Arrays:
        return {self.name: _pad_rows(values, (len(values), self.size), self.dtype)}

    def expand(self, encoded: np.ndarray) -> np.ndarray:
        return super().expand(encoded) if self.params.expand_to == "ids" else multi_hot(encoded, len(self.ids))


class BagRowEncoder(SetRowEncoder):
    """Row encoder of `Bag`."""

    def prepare(self) -> None:
        super().prepare()
        self.dtype = np.promote_types(self.dtype, np.uint16)
        self.max_count = np.iinfo(self.dtype).max

    def build_row(self, tokens: list[str]) -> Any:
        counts = dict(list(Counter(tokens).items())[: self.size])
        return self.ids_of(list(counts)), [min(count, self.max_count) for count in counts.values()]

    def is_unknown(self, value: Any) -> bool:
        return self.unknown in value[0]

    def to_arrays(self, values: Sequence[Any]) -> Arrays:
        flat = [ids_or_counts for row in values for ids_or_counts in row]
        return {self.name: _pad_rows(flat, (len(flat), self.size), self.dtype).reshape(len(values), 2, self.size)}

    def expand(self, encoded: np.ndarray) -> np.ndarray:
        return frequencies(encoded, len(self.ids))


Merges = tuple[tuple[int, int], ...]
Scores = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class SequenceValues:
    """Learned values of `Sequence` in addition to its vocabulary."""

    max_sequence_length: Length
    max_sequence_length_99ptile: int  # enough for 99 % of the training rows, at most `max_sequence_length`.
    str2idf: Mapping[str, float] | None = None  # from `_compute_idf`
    merges: Merges = later(())  # pairs of token ids, in the order in which "bpe" merges them
    scores: Scores = later(())  # log-probability of each ordinary token, for "unigram"
    decoder: str = later("")  # of a pretrained tokenizer, as in `PretrainedModel`

    first_ids: tuple[int, ...] = later(())  # of tokens that a pretrained tokenizer adds before each text, and
    last_ids: tuple[int, ...] = later(())  # after it: truncation keeps both

    cut_rows: int = later(0)  # training rows with more tokens than `max_sequence_length`, except for subwords


@dataclass(kw_only=True, eq=False, repr=False)
class SequenceParameters(TokenParameters):
    """Parameters of `Sequence`."""

    vocab_file: str | None = None
    sequence_length: Count | None = None
    max_sequence_length: Count | Literal["auto"] | None = "auto"
    most_common: Count | None = None
    padding: Literal["right", "left"] = "right"
    truncation: Truncation = later("keep_start", rows=True)
    add_start_stop: bool = False
    special_symbols: Mapping[str, str] | Literal["ludwig"] | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class HistoryParameters(SequenceParameters):
    """Parameters of `History`."""

    by: str | None = None
    time: str | None = None
    last: Annotated[int, AtLeast(1, 1 << 20)] = 50
    tokenizer: str | Callable[..., Any] = "untokenized"
    truncation: Truncation = "keep_end"

    def reads(self, name: str) -> list[str]:
        return [*super().reads(name), *(one for one in (self.by, self.time) if one is not None)]


class SequenceRowEncoder(TokenRowEncoder):
    """Row encoder of `Sequence`, and of one level of `Text`."""

    values = (VocabularyValues, SequenceValues)

    def prepare(self) -> None:
        super().prepare()
        start, stop, padding = (self.symbols.get(role) for role in ("start", "stop", "padding"))
        self.start = self.ids_of([] if start is None else [start])
        self.stop = self.ids_of([] if stop is None else [stop])
        self.padding_id = 0 if padding is None else self.ids[padding]
        self.length = self.learned["max_sequence_length"]
        self.max_tokens = max(self.length - len(self.start) - len(self.stop), 0)
        self.is_left = self.params.padding == "left"
        self.keeps_end = self.params.truncation == "keep_end"

    def losses(self, cell: Any) -> Sequence[str]:
        return ("cut",) if len(self.tokens_of(cell) or ()) > self.max_tokens else ()

    def build_row(self, tokens: list[str]) -> Any:
        if len(tokens) > self.max_tokens:
            first = len(tokens) - self.max_tokens if self.keeps_end else 0
            tokens = tokens[first : first + self.max_tokens]
        ids = self.ids_of(tokens)
        return [*self.start, *ids, *self.stop][-self.length :] if self.start or self.stop else ids

    def to_arrays(self, values: Sequence[Any]) -> Arrays:
        shape = len(values), self.length
        return {self.name: _pad_rows(values, shape, self.dtype, self.padding_id, is_left=self.is_left)}


@dataclass(kw_only=True, eq=False, repr=False)
class TextParameters(SequenceParameters):
    """Parameters of `Text`."""

    level: Literal["word", "char", "both"] = "word"
    tokenizer: str | Callable[..., Any] = "space_punct"
    char_most_common: Count | None = None
    char_max_sequence_length: Count | Literal["auto"] | None = "auto"
    lowercase: bool = True
    compute_idf: bool = False


class TextRowEncoder(RowEncoder):
    """Row encoder of `Text` at both levels; one level is encoded by `SequenceRowEncoder`."""

    has_vocabulary = True

    @classmethod
    def create(cls, name: str, params: Any, learned: Mapping[str, Any]) -> RowEncoder:
        if params.level == "both":
            return cls(name, params, learned)
        own = params if params.level == "word" else replace(params, tokenizer="characters")
        return SequenceRowEncoder(name, own, learned)

    def prepare(self) -> None:
        params = replace(self.params, column=self.column)
        levels = {"word": params, "char": replace(params, tokenizer="characters")}
        self.levels = {
            f"_{level}": SequenceRowEncoder(f"{self.name}_{level}", own, self.learned[level])
            for level, own in levels.items()
        }

    def read(self, cell: Any) -> list[list[int]] | None:
        rows = [level.read(cell) for level in self.levels.values()]
        return None if None in rows else rows

    def is_unknown(self, value: Any) -> bool:
        return any(level.is_unknown(ids) for level, ids in zip(self.levels.values(), value, strict=True))

    def is_unseen(self, cell: Any) -> bool:
        return any(level.is_unseen(cell) for level in self.levels.values())

    def losses(self, cell: Any) -> Sequence[str]:
        return max((level.losses(cell) for level in self.levels.values()), key=len)

    def read_fill(self, fill: Any) -> list[list[int]]:
        fills = fill if isinstance(fill, Mapping) else dict.fromkeys(("word", "char"), fill)
        return [level.read_fill(fills[output[1:]]) for output, level in self.levels.items()]

    def to_arrays(self, values: Sequence[list[list[int]]]) -> Arrays:
        """Return the ids of both levels by "_word" and "_char"."""
        result: Arrays = {}
        for index, level in enumerate(self.levels.values()):
            result |= level.to_arrays([rows[index] for rows in values])
        return result


def multi_hot(ids: np.ndarray, tokens: int) -> np.ndarray:
    """Return an int8 table of rows by tokens from padded ids."""
    hot = np.zeros((len(ids), tokens), np.int8)
    np.put_along_axis(hot, ids.astype(np.intp), 1, axis=1)
    hot[:, 0] = 0  # padding
    return hot


def frequencies(bags: np.ndarray, tokens: int) -> np.ndarray:
    """Return a float32 table of counts of rows by tokens."""
    result = np.zeros((len(bags), tokens), np.float32)
    np.add.at(result, (np.arange(len(bags))[:, None], bags[:, 0].astype(np.intp)), bags[:, 1])
    result[:, 0] = 0  # padding
    return result


def _pad_rows(
    rows: Sequence[Sequence[int]], shape: tuple[int, int], dtype: np.dtype[Any], fill: int = 0, *, is_left: bool = False
) -> np.ndarray:
    """Return rows of ids as a matrix, padded with `fill` after each row, or before it."""
    matrix = np.full(shape, fill, dtype) if fill else np.zeros(shape, dtype)  # which takes a sixth of the time
    for target, row in zip(matrix, rows, strict=True):
        if is_left:
            target[shape[1] - len(row) :] = row
        else:
            target[: len(row)] = row
    return matrix
