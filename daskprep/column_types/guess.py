"""What the rules say of a column: a feature or none, and why."""

from __future__ import annotations

from typing import Any, NamedTuple

from daskprep.display.words import format_count, format_share, quote
from daskprep.features import Feature, Sequence, Set
from daskprep.summaries.column_facts import ColumnFacts

_MAX_SHOWN_CHARACTERS = 30
_MAX_SET_TOKENS = 20
_MAX_TOKENS = 10_000
_MAX_REPEATING_SHARE = 0.01  # of cells, in which a token is twice


class Guess(NamedTuple):
    """A feature, or None for a column that is skipped, the reason, and whether cells are missing or unreadable."""

    feature: Feature | None
    reason: str
    has_missing: bool = False


def skip(reason: str) -> Guess:
    """Return the guess that a column is of no use."""
    return Guess(None, reason)


def guess_set_or_sequence(
    facts: ColumnFacts, where: str, tokens: int, mean: float, repeating: int, cells: int, **options: Any
) -> Guess:
    """Return a Sequence for cells that repeat tokens or have many of them, and a Set for others."""
    why = f"{tokens:,} distinct tokens {where} in {describe_rows(facts)}, {mean:.1f} in a cell"
    if repeating > _MAX_REPEATING_SHARE * cells:
        return Guess(Sequence(**options), f"{why}, repeated in {format_share(repeating, cells)} of them")
    if tokens > _MAX_TOKENS or mean > _MAX_SET_TOKENS:
        return Guess(Sequence(**options), f"{why}, too many for a set")
    return Guess(Set(**options), f"{why}, none twice in a cell")


def describe_counts(facts: ColumnFacts) -> str:
    """Return how many values, rows and missing cells there are."""
    about = "" if facts.distinct.is_exact else "about "
    values = facts.distinct.count
    return f"{about}{format_count(values, 'distinct value')} in {describe_rows(facts)}"


def describe_rows(facts: ColumnFacts) -> str:
    """Return how many rows there are, and which share is missing."""
    missing = facts.missing + facts.null_texts
    return f"{facts.rows:,} rows" + (f", {format_share(missing, facts.rows)} missing" if missing else "")


def describe_unreadable(n_unreadable: int, values: int) -> str:
    """Return which share of the values is unreadable, behind a comma; nothing if none is."""
    return f", {format_share(n_unreadable, values)} unreadable" if n_unreadable else ""


def describe_uniqueness(facts: ColumnFacts) -> str:
    """Say that no value occurs twice, or hardly one, and how sure that is."""
    if not facts.is_unique:
        return f"almost unique ({describe_counts(facts)})"
    n_values = len(facts.distinct.counts)
    return "unique in every row" + ("" if facts.distinct.is_exact else f", as far as {n_values:,} values tell")


def quote_value(text: str) -> str:
    """Return a value as messages show it."""
    return quote(text, _MAX_SHOWN_CHARACTERS)
