"""Guesses of the rules for a column: a feature or None, and the reason."""

from __future__ import annotations

from typing import Any, NamedTuple

from daskprep.display.words import format_count, format_share, quote
from daskprep.features import Feature, Sequence, Set
from daskprep.summaries.column_facts import ColumnFacts

_MAX_SHOWN_CHARACTERS = 30
_MAX_SET_TOKENS = 20  # mean number of tokens in a cell of a set
_MAX_TOKENS = 10_000  # distinct tokens of a set
_MAX_REPEATING_SHARE = 0.01  # of a set's cells contain a token twice


class Guess(NamedTuple):
    """A feature, or None for a column that is skipped, the reason, and whether cells are missing or unreadable."""

    feature: Feature | None
    reason: str
    has_missing: bool = False


def skip(reason: str) -> Guess:
    """Return the guess that a column is skipped."""
    return Guess(None, reason)


def guess_set_or_sequence(
    facts: ColumnFacts, where: str, tokens: int, mean: float, repeating: int, cells: int, **options: Any
) -> Guess:
    """Return a Sequence if cells repeat tokens or have many, else a Set.

    `tokens` is the number of distinct tokens, `mean` their mean number in a cell, and `repeating` the number of `cells`
    that contain a token twice. `options` are parameters of the feature, and `where` is a phrase for the reason.
    """
    why = f"{tokens:,} distinct tokens {where} in {describe_rows(facts)}, {mean:.1f} in a cell"
    if repeating > _MAX_REPEATING_SHARE * cells:
        return Guess(Sequence(**options), f"{why}, repeated in {format_share(repeating, cells)} of them")
    if tokens > _MAX_TOKENS or mean > _MAX_SET_TOKENS:
        return Guess(Sequence(**options), f"{why}, too many for a set")
    return Guess(Set(**options), f"{why}, none twice in a cell")


def describe_counts(facts: ColumnFacts) -> str:
    """Return the numbers of distinct values, rows and missing cells in words."""
    about = "" if facts.distinct.is_exact else "about "
    values = facts.distinct.count
    return f"{about}{format_count(values, 'distinct value')} in {describe_rows(facts)}"


def describe_rows(facts: ColumnFacts) -> str:
    """Return the number of rows and the share of missing cells in words."""
    missing = facts.missing + facts.null_texts
    return f"{facts.rows:,} rows" + (f", {format_share(missing, facts.rows)} missing" if missing else "")


def describe_unreadable(n_unreadable: int, values: int) -> str:
    """Return the share of unreadable values, preceded by a comma; "" if there are none."""
    return f", {format_share(n_unreadable, values)} unreadable" if n_unreadable else ""


def describe_uniqueness(facts: ColumnFacts) -> str:
    """Return in words that values are unique or almost unique, and on how many values this is based."""
    if not facts.is_unique:
        return f"almost unique ({describe_counts(facts)})"
    n_values = len(facts.distinct.counts)
    return "unique in every row" + ("" if facts.distinct.is_exact else f", judging by {n_values:,} values")


def quote_value(text: str) -> str:
    """Return a value in quotes for messages, truncated."""
    return quote(text, _MAX_SHOWN_CHARACTERS)
