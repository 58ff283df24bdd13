"""Detection of text cells that are sets or sequences of tokens."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.column_types.guess import Guess, guess_set_or_sequence
from daskprep.column_types.identifiers import mostly_match
from daskprep.features import Set
from daskprep.features.tokens import rows_with_repeats
from daskprep.kernels import TokenCodes
from daskprep.steps.text_tokenizers import json_items
from daskprep.summaries.column_facts import ColumnFacts

_MIN_JOINED_SHARE = 0.05  # minimum share of cells with several tokens
_MAX_TOKENS = {" ": 200, ",": 1000, ";": 1000, "|": 1000}  # distinct tokens by separator
# Minimum mean number of distinct cells with a token: words of titles and names rarely occur in many.
_MIN_CELLS_PER_TOKEN = {" ": 3.0, ",": 2.0, ";": 2.0, "|": 2.0}
_TOKENIZERS = {" ": "space", ",": "comma"}
_NAMES = {" ": "spaces", ",": "commas", ";": "semicolons", "|": "bars"}
# Lists in JSON and Python syntax, as pandas writes them to CSV files, and items with or without quotes of either kind.
_LIST_PATTERN = r"^\[[^\[\]{}]*\]$"
_ITEMS = r"""(?<=[\[ ,]")[^"]+(?=")|(?<=[\[ ,]')[^']+(?=')|[^\s\[\]"',](?:[^\[\]"',]*[^\s\[\]"',])?"""
_SENTENCES = ("the", "of", "and", "is", "in", "to", "for", "with", "not", "at", "on")


def guess_tokens(facts: ColumnFacts) -> Guess | None:
    """Return a Set or a Sequence for lists as text, and for cells of a few distinct tokens; else None."""
    if mostly_match(facts, _LIST_PATTERN):
        are_json = all(json_items(text) is not None for text in facts.distinct.texts.to_pylist())
        options: dict[str, Any] = {"tokenizer": "json"} if are_json else {"tokenizer": "regex", "pattern": _ITEMS}
        items = Set(**options).make_tokenizer().tokenize(facts.distinct.texts)
        return _guess_from_items(facts, items, "in lists written as text", options)
    cells_by_separator = {
        "|": facts.text.bars,
        ";": facts.text.semicolons,
        ",": facts.text.commas,
        " ": facts.text.with_spaces,
    }
    for separator, cells in cells_by_separator.items():
        if (
            cells >= _MIN_JOINED_SHARE * facts.usable
            and cells > 1
            and (guess := _guess_separated(facts, separator)) is not None
        ):
            return guess
    return None


def _guess_separated(facts: ColumnFacts, separator: str) -> Guess | None:
    """Return the guess for cells of tokens between separators, None if the tokens are too many or too rare."""
    cells = _split_cells(facts.distinct.texts, separator)
    tokens, sizes = len(cells.values), np.diff(cells.rows)
    if not tokens or tokens > _MAX_TOKENS[separator] or len(cells.codes) < _MIN_CELLS_PER_TOKEN[separator] * tokens:
        return None
    if separator == " " and not _are_tags(cells.values, sizes):
        return None
    return _guess_from_items(facts, cells, f"between {_NAMES[separator]}", _options(separator))


def _guess_from_items(facts: ColumnFacts, cells: TokenCodes, where: str, options: dict[str, Any]) -> Guess:
    """Return a Set or a Sequence for tokenized cells."""
    sizes = np.diff(cells.rows)
    counts = facts.distinct.counts[: len(sizes)]
    total, repeating = int(counts.sum()), int(counts[rows_with_repeats(cells)].sum())
    return guess_set_or_sequence(
        facts, where, len(cells.values), float(sizes @ counts) / total, repeating, total, **options
    )


def _options(separator: str) -> dict[str, Any]:
    """Return the tokenizer parameters that split cells at a separator."""
    if separator in _TOKENIZERS:
        return {"tokenizer": _TOKENIZERS[separator]}
    escaped = re.escape(separator)
    return {"tokenizer": "regex", "pattern": rf"[^\s{escaped}](?:[^{escaped}]*[^\s{escaped}])?"}


def _are_tags(tokens: pa.StringArray, sizes: np.ndarray) -> bool:
    """Return whether tokens are tags rather than names or phrases.

    Tags have more cells than tokens, varying numbers of tokens in a cell, and no words of sentences.
    """
    varied = np.count_nonzero(sizes != np.bincount(sizes).argmax()) >= 0.1 * len(sizes)
    return bool(
        len(sizes) > len(tokens)
        and varied
        and not pc.any(pc.is_in(pc.ascii_lower(tokens), value_set=pa.array(_SENTENCES))).as_py()
        and not pc.any(pc.match_substring_regex(tokens, r"[.,!?:;'\"]$")).as_py()
    )


def _split_cells(texts: pa.StringArray, separator: str) -> TokenCodes:
    """Return the tokens of texts between separators, without white space and empty ones."""
    lists = pc.utf8_split_whitespace(texts) if separator == " " else pc.split_pattern(texts, separator)
    flat = pc.utf8_trim_whitespace(lists.flatten())
    full = pc.binary_length(flat).to_numpy() > 0
    row = np.repeat(np.arange(len(texts)), pc.list_value_length(lists).to_numpy())[full]
    offsets = np.append(0, np.cumsum(np.bincount(row, minlength=len(texts))))
    tokens = flat.filter(pa.array(full)).dictionary_encode()
    return TokenCodes(offsets, tokens.indices.to_numpy(), tokens.dictionary)
