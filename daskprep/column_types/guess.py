"""What the rules say of a column: a feature or none, and why."""

from __future__ import annotations

from typing import Any, NamedTuple

from daskprep.display.words import count, quoted, share
from daskprep.features import Feature, Sequence, Set
from daskprep.summaries.column_facts import ColumnFacts

_SHOWN_CHARACTERS = 30
_LARGEST_SET = 20
_MOST_TOKENS = 10_000
_REPEATING = 0.01  # of cells, in which a token is twice


class Guess(NamedTuple):
    """A feature, or None for a column that is skipped, the reason, and whether cells are missing or unreadable."""

    feature: Feature | None
    reason: str
    has_gaps: bool = False


def skip(reason: str) -> Guess:
    """Return the guess that a column is of no use."""
    return Guess(None, reason)


def set_or_sequence(
    facts: ColumnFacts, where: str, tokens: int, mean: float, repeating: int, cells: int, **options: Any
) -> Guess:
    """Return a Sequence for cells that repeat tokens or have many of them, and a Set for others."""
    why = f"{tokens:,} distinct tokens {where} in {rows(facts)}, {mean:.1f} in a cell"
    if repeating > _REPEATING * cells:
        return Guess(Sequence(**options), f"{why}, repeated in {share(repeating, cells)} of them")
    if tokens > _MOST_TOKENS or mean > _LARGEST_SET:
        return Guess(Sequence(**options), f"{why}, too many for a set")
    return Guess(Set(**options), f"{why}, none twice in a cell")


def counted(facts: ColumnFacts) -> str:
    """Return how many values, rows and missing cells there are."""
    about = "" if facts.distinct.is_exact else "about "
    values = facts.distinct.count
    return f"{about}{count(values, 'distinct value')} in {rows(facts)}"


def rows(facts: ColumnFacts) -> str:
    """Return how many rows there are, and which share is missing."""
    missing = facts.missing + facts.marked
    return f"{facts.rows:,} rows" + (f", {share(missing, facts.rows)} missing" if missing else "")


def unreadable(odd: int, values: int) -> str:
    """Return which share of the values is unreadable, behind a comma; nothing if none is."""
    return f", {share(odd, values)} unreadable" if odd else ""


def unique(facts: ColumnFacts) -> str:
    """Say that no value occurs twice, or hardly one, and how sure that is."""
    if not facts.is_unique:
        return f"almost unique ({counted(facts)})"
    kept = len(facts.distinct.counts)
    return "unique in every row" + ("" if facts.distinct.is_exact else f", as far as {kept:,} values tell")


def shown(text: str) -> str:
    """Return a value as messages show it."""
    return quoted(text, _SHOWN_CHARACTERS)
