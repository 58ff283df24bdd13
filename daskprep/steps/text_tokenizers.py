"""Built-in tokenizers for a single text; `daskprep.tokenizers` splits columns by the same rules."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

TokenizeFunction = Callable[[str], list[str] | None]

_WORD = re.compile(r"\w+|[^\w\s]")


def words(text: str) -> list[str]:
    """Split a text into words and single punctuation marks."""
    return [text] if text.isalnum() else _WORD.findall(text)


def ngrams(tokens: Sequence[str], max_size: int) -> list[str]:
    """Return the tokens, then all pairs of neighbours, then triples, ... up to `max_size`."""
    sizes = range(1, min(max_size, len(tokens)) + 1)
    return [" ".join(tokens[i : i + size]) for size in sizes for i in range(len(tokens) - size + 1)]


def matches(text: str, pattern: re.Pattern[str]) -> list[str]:
    """Return the matches of a regular expression, empty ones left out."""
    return [match[0] for match in pattern.finditer(text) if match[0]]


def json_items(text: str, *, lowercase: bool = False) -> list[str] | None:
    """Return the items of a JSON list of strings and numbers as text; None for other texts.

    Numbers keep their notation: 1.50 is "1.50".
    """
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
    """Return a factory of tokenizers that lowercase the text first if the feature has `lowercase`."""
    return lambda params: (lambda text: tokenize(text.lower())) if params["lowercase"] else tokenize


WORD_START_MARK, CONTINUATION_MARK = "\u2581", "##"  # prefix of the first subword of a word, or of all later ones
WORD_START_TOKENIZERS = ("bpe", "unigram")  # tokenizers that mark the first subword


def join_tokens(tokens: Sequence[str], tokenizer: object) -> str:
    """Join the tokens of a tokenizer to text, such as subwords to words."""
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
