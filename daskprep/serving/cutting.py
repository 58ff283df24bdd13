"""How the tokenizers that are Python's own cut one text; `daskprep.tokenizers` cuts whole columns by the same rules."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Cut = Callable[[str], list[str] | None]

_WORD = re.compile(r"\w+|[^\w\s]")


def words(text: str) -> list[str]:
    """Return words and single punctuation marks."""
    return [text] if text.isalnum() else _WORD.findall(text)


def ngrams(tokens: Sequence[str], most: int) -> list[str]:
    """Return the tokens, then all pairs of neighbours, then triples, ... up to `most`."""
    sizes = range(1, min(most, len(tokens)) + 1)
    return [" ".join(tokens[i : i + size]) for size in sizes for i in range(len(tokens) - size + 1)]


def matches(text: str, pattern: re.Pattern[str]) -> list[str]:
    """Return the matches of a regular expression, empty ones left out."""
    return [match[0] for match in pattern.finditer(text) if match[0]]


def json_items(text: str, *, lowercase: bool = False) -> list[str] | None:
    """Return the items of a JSON list of strings and numbers, None of any other text; a number is what is written."""
    try:
        items = json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    if not isinstance(items, list) or not are_strings(items):
        return None
    return [item.lower() for item in items] if lowercase else items


def are_strings(tokens: Sequence[Any]) -> bool:
    """Tell whether all are strings that UTF-8 holds."""
    try:
        "".join(tokens).encode()  # half a surrogate pair cannot be encoded
    except (TypeError, UnicodeEncodeError):
        return False
    return True


def _separated(text: str, separator: str, *, lowercase: bool) -> list[str]:
    # In lower case after the cut, for the small form of a capital sigma depends on what is around it.
    pieces = [(piece.lower() if lowercase else piece).strip() for piece in text.split(separator)]
    return [] if pieces == [""] else pieces


def _on_lower(cut: Cut) -> Callable[[Mapping[str, Any]], Cut]:
    return lambda params: (lambda text: cut(text.lower())) if params["lowercase"] else cut


WORD_START, CONTINUED = "\u2581", "##"  # what the first part of a word begins with, or all others
STARTED = ("bpe", "unigram")  # the tokenizers whose parts begin so


def text_of_tokens(tokens: Sequence[str], tokenizer: object) -> str:
    """Return the text of tokens."""
    text = ("" if tokenizer in ("characters", *STARTED) else " ").join(tokens)
    if tokenizer == "wordpiece":
        return text.replace(" " + CONTINUED, "")
    return text.replace(WORD_START, " ").removeprefix(" ") if tokenizer in STARTED else text


CUTS: dict[str, Callable[[Mapping[str, Any]], Cut]] = {
    "space": _on_lower(str.split),
    "space_punct": _on_lower(words),
    "underscore": lambda params: functools.partial(_separated, separator="_", lowercase=params["lowercase"]),
    "comma": lambda params: functools.partial(_separated, separator=",", lowercase=params["lowercase"]),
    "characters": _on_lower(list),
    "untokenized": _on_lower(lambda text: [text]),
    "stripped": _on_lower(lambda text: [text.strip()]),
    "ngram": lambda params: _on_lower(lambda text: ngrams(text.split(), params["ngram_size"]))(params),
    "regex": lambda params: _on_lower(functools.partial(matches, pattern=re.compile(params["pattern"])))(params),
    "json": lambda params: functools.partial(json_items, lowercase=params["lowercase"]),
}
"""What makes of a feature's parameters the function that cuts a text, by the tokenizer's name."""
