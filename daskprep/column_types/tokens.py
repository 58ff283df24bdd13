"""Whether cells of text are sets or sequences of a few tokens."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.column_types.guess import Guess, rows
from daskprep.display.words import share
from daskprep.features import Feature, Sequence, Set
from daskprep.features.tokens import TokenLists, without_repeats
from daskprep.summaries.column_facts import ColumnFacts

_JOINED = 0.05  # cells of several tokens, at least
_MOST_TOKENS = {" ": 200, ",": 1000, ";": 1000, "|": 1000}
# In how many distinct cells a token must be, on average: words of titles and names rarely are in many.
_LEAST_CELLS = {" ": 3.0, ",": 2.0, ";": 2.0, "|": 2.0}
_LARGEST_SET = 20
_TOKENIZERS = {" ": "space", ",": "comma"}
_NAMES = {" ": "spaces", ",": "commas", ";": "semicolons", "|": "bars"}
_SENTENCES = ("the", "of", "and", "is", "in", "to", "for", "with", "not", "at", "on")


class _DistinctCells(NamedTuple):
    """The tokens of some distinct cells, and how many rows hold each cell."""

    offsets: np.ndarray
    codes: np.ndarray
    dictionary: pa.Array
    counts: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets)

    @property
    def repeating(self) -> int:
        """Rows with a token twice."""
        first, _ = without_repeats(TokenLists(self.offsets, self.codes, self.dictionary))
        return int(self.counts[np.diff(first.offsets) < self.sizes].sum())


def guess_tokens(facts: ColumnFacts) -> Guess | None:
    """Return a Set or a Sequence for cells that are put together of few tokens, whatever separates these."""
    held = {"|": facts.text.bars, ";": facts.text.semicolons, ",": facts.text.commas, " ": facts.text.spaced}
    for mark, cells in held.items():
        if cells >= _JOINED * facts.typed and cells > 1 and (guess := _guess(facts, mark)) is not None:
            return guess
    return None


def _guess(facts: ColumnFacts, mark: str) -> Guess | None:
    cells = _cut(facts, mark)
    tokens, sizes = len(cells.dictionary), cells.sizes
    if not tokens or tokens > _MOST_TOKENS[mark] or len(cells.codes) < _LEAST_CELLS[mark] * tokens:
        return None
    if mark == " " and not _are_tags(cells):
        return None
    mean = float(sizes @ cells.counts) / float(cells.counts.sum())
    why = f"{tokens:,} distinct tokens between {_NAMES[mark]} in {rows(facts)}, {mean:.1f} in a cell"
    repeating = cells.repeating
    if repeating > 0.01 * cells.counts.sum():
        of = share(repeating, int(cells.counts.sum()))
        return Guess(_feature(Sequence, mark), f"{why}, repeated in {of} of them")
    if mean > _LARGEST_SET:
        return Guess(_feature(Sequence, mark), f"{why}, too many for a set")
    return Guess(_feature(Set, mark), f"{why}, none twice in a cell")


def _feature(kind: type[Set | Sequence], mark: str) -> Feature:
    """Return a feature that cuts cells at a mark."""
    if mark in _TOKENIZERS:
        return kind(tokenizer=_TOKENIZERS[mark])
    odd = re.escape(mark)
    return kind(tokenizer="regex", pattern=rf"[^\s{odd}](?:[^{odd}]*[^\s{odd}])?")


def _are_tags(cells: _DistinctCells) -> bool:
    """Tell tags from names and phrases: more cells than tokens, of several sizes, and no words of sentences."""
    sizes = cells.sizes
    varied = np.count_nonzero(sizes != np.bincount(sizes).argmax()) >= 0.1 * len(sizes)
    words = pc.ascii_lower(cells.dictionary)
    return bool(
        len(sizes) > len(cells.dictionary)
        and varied
        and not pc.any(pc.is_in(words, value_set=pa.array(_SENTENCES))).as_py()
        and not pc.any(pc.match_substring_regex(cells.dictionary, r"[.,!?:;'\"]$")).as_py()
    )


def _cut(facts: ColumnFacts, mark: str) -> _DistinctCells:
    texts = facts.distinct.texts
    lists = pc.utf8_split_whitespace(texts) if mark == " " else pc.split_pattern(texts, mark)
    flat = pc.utf8_trim_whitespace(lists.flatten())
    lengths = pc.list_value_length(lists).to_numpy()
    full = pc.binary_length(flat).to_numpy() > 0
    row = np.repeat(np.arange(len(texts)), lengths)[full]
    offsets = np.append(0, np.cumsum(np.bincount(row, minlength=len(texts))))
    tokens = flat.filter(pa.array(full)).dictionary_encode()
    return _DistinctCells(offsets, tokens.indices.to_numpy(), tokens.dictionary, facts.distinct.counts[: len(texts)])
