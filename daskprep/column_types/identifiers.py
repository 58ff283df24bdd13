"""Detection of identifiers: values that only distinguish rows or entities."""

from __future__ import annotations

import math
import re

import pyarrow as pa
import pyarrow.compute as pc

from daskprep.summaries.column_facts import ColumnFacts

# In fewer rows, unique values may be a coincidence.
FEW_ROWS = 20
_MANY_ROWS = 100
_MIN_DISTINCT_SHARE = 0.9
_MIN_SHARE = 0.95
_ENTITY_NAMES = (
    "user|customer|client|passenger|patient|person|member|student|employee|account|order|invoice|product|item"
)
_ENTITY_NAMES += "|object|record|row|case|sample|session|transaction|encounter|event|visit|device|listing|house|loan"
_IDENTIFIER = re.compile(rf"(^|_)(id|ids|uuid|guid|uid|identifier)$|^id_|({_ENTITY_NAMES})id$")
_NUMBERED = re.compile(r"_(no|nr|nbr|number)$")
_NUMBERING = re.compile(r"(^|_)(index|idx|key|pk|nr|no|number|rowid|row|rownames|line|serial|rank)$|^unnamed|^$")
CODE_NAME = re.compile(r"(^|_)(zip|zipcode|zip_code|postcode|postal_code|plz|fips|geoid|naics|icd|code)$")
_MEASURED = re.compile(
    r"(^|_)(price|cost|amount|salary|wage|income|revenue|sales|gdp|budget|balance|value|population|area|sqft|size"
    r"|volume|weight|mass|height|length|width|depth|distance|mileage|age|year|score|votes|views|count|total|sum|mean"
    r"|max|min)(_|$)"
)
# Serial numbers have the same number of digits, rarely fewer than this.
_SERIAL_DIGITS = 5
# Unique numbers are row numbers if random numbers in their range would be unique with probability e**-10 or less.
_CHANCE = 10
# More possible codes than this are identifiers, rather than codes of diagnoses, places or goods.
_MAX_CODES = 1_000_000
_ROUND = r"^\d*0(\.0*)?$"
# Words with a digit, optionally with short words in capital letters; and text in scripts without spaces.
CODE_PATTERN = r"^[\w./#:-]*\d[\w./#:-]*$|^([A-Z]{1,3}|[A-Z]*\d[A-Z0-9]*)([ ./#-]([A-Z]{1,3}|[A-Z]*\d[A-Z0-9]*))+$"
WITHOUT_SPACES = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]{5}"


def plain_name(name: str) -> str:
    """Return a column's name in lower case, with underscores between its words."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"[\W_]+", "_", words).strip("_").lower()


def is_identifier_name(name: str) -> bool:
    """Return whether a plain name is typical of identifiers."""
    numbered = _NUMBERED.search(name) is not None and _MEASURED.search(name) is None
    return numbered or _IDENTIFIER.search(name) is not None


def are_row_numbers(name: str, facts: ColumnFacts) -> bool:
    """Return whether whole numbers identify rows, by the column's name or by their values."""
    if not facts.is_unique:
        return is_identifier_name(name) and is_almost_unique(facts)
    measured = _MEASURED.search(name) is not None
    if is_identifier_name(name) or (_NUMBERING.search(name) and not measured):
        return True
    low, high = facts.range.min, facts.range.max
    if facts.usable < FEW_ROWS or low < 0 or measured:
        return False
    same_length = len(f"{low:.0f}") == len(f"{high:.0f}") >= _SERIAL_DIGITS
    serial = same_length and not mostly_match(facts, _ROUND, 0.5) and CODE_NAME.search(name) is None
    return serial or facts.usable**2 >= 2 * _CHANCE * (high - low + 1)


def is_identifier_text(name: str, facts: ColumnFacts) -> bool:
    """Return whether texts identify rows and are no prose."""
    one_word = facts.text.with_spaces <= (1 - _MIN_SHARE) * facts.usable and not mostly_match(
        facts, WITHOUT_SPACES, 0.5
    )
    if not one_word and not mostly_match(facts, CODE_PATTERN):
        return False
    if is_identifier_name(name) or (_NUMBERING.search(name) and facts.is_unique):
        return facts.is_unique or is_almost_unique(facts)
    if facts.is_unique:
        return facts.usable >= FEW_ROWS and not _look_random(facts)
    return (
        is_almost_unique(facts)
        and facts.usable >= _MANY_ROWS
        and mostly_match(facts, CODE_PATTERN)
        and not _look_random(facts)
    )


def _look_random(facts: ColumnFacts) -> bool:
    """Return whether texts are codes from a limited range that repeat about as often as random draws would."""
    texts = facts.distinct.texts
    digits, letters = (pc.count_substring_regex(texts, kind).to_numpy() for kind in (r"\d", r"\p{L}"))
    short = 10.0**digits * 26.0**letters <= _MAX_CODES
    if not mostly_match(facts, CODE_PATTERN) or 2 * short.sum() < len(texts):
        return False
    texts = texts.filter(pa.array(short & (digits > 0)))
    numbers = pc.replace_substring_regex(texts, r"\D", "").cast(pa.int64()).to_numpy()
    words = len(pc.replace_substring_regex(texts, r"\d", "").unique())
    possible, n_draws = words * int(numbers.max() - numbers.min() + 1), facts.usable
    repeats = n_draws + possible * math.expm1(-n_draws / possible)
    return n_draws**2 < 2 * _CHANCE * possible or n_draws - facts.distinct.count >= repeats / 2


def is_almost_unique(facts: ColumnFacts) -> bool:
    """Return whether at least nine in ten values are distinct."""
    return facts.usable >= FEW_ROWS and facts.distinct.count >= _MIN_DISTINCT_SHARE * facts.usable


def mostly_match(facts: ColumnFacts, pattern: str, share: float = _MIN_SHARE) -> bool:
    """Return whether at least this share of the sampled distinct texts contains a match of a pattern."""
    texts = facts.distinct.texts
    return (pc.sum(pc.match_substring_regex(texts, pattern)).as_py() or 0) >= share * max(len(texts), 1)
