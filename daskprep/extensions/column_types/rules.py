"""The rules in order of priority: which feature an expert would choose for a column."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.display import YEARS, format_count, format_share
from daskprep.columns.summaries import Lengths, TokenCounts
from daskprep.columns.summaries.column_facts import ColumnFacts
from daskprep.errors import ColumnError
from daskprep.extensions.column_types.column_facts import AMBIGUOUS_MARKERS
from daskprep.extensions.column_types.guess import (
    CODE_NAME,
    CODE_PATTERN,
    DECIMAL_COMMA,
    FEW_ROWS,
    WITHOUT_SPACES,
    Guess,
    are_row_numbers,
    describe_counts,
    describe_rows,
    describe_uniqueness,
    describe_unreadable,
    guess_date,
    guess_set_or_sequence,
    guess_tokens,
    is_almost_unique,
    is_identifier_name,
    is_identifier_text,
    mostly_match,
    note_decimal_commas,
    plain_name,
    quote_value,
    skip,
)
from daskprep.extensions.media.audio_feature import Audio
from daskprep.extensions.media.image_feature import Image
from daskprep.features import FEATURES, Binary, Category, Number, Sequence, Set, Text, Timeseries, Vector
from daskprep.features.binary import LearnedBinary
from daskprep.features.media import MediaFeature
from daskprep.features.notation import guess_and_parse
from daskprep.rows.classes import CONVENTIONAL_LABELS
from daskprep.rows.numbers import AMBIGUOUS

# Up to one cell in twenty may differ from the type of its column.
_MIN_SHARE = 0.95
_MAX_LABELS = 20
_MIN_SENTENCE_WORDS = 5  # shorter texts are labels or names
_MAX_CODES = 12  # more consecutive integers are counts or grades
_MAX_VECTOR_OF_CODES = 5
# Start of a number: no word, because words belong to labels or identifiers.
_NO_WORD = re.compile(r"[^A-Za-z]|[A-Z]{3} 1|[A-Z]{1,3}\$|(Rs|Fr|kr)\b")
# Several words, as in addresses, and hexadecimal numbers.
_NOT_UNITS = re.compile(r"[^\W\d]\s+[^\W\d]|5 [a-fA-F]{3,}$")
_MIN_AMBIGUOUS = 5  # distinct numbers such as "4.733" that are worth a note
_MAX_CLOCK_LABELS = 24  # distinct times of day that are labels


def guess_feature(name: str, facts: ColumnFacts) -> Guess:
    """Return the guess of the first rule that matches a column's facts, or the reason to skip the column."""
    if not facts.rows:
        return skip("no rows")
    if not facts.present:
        return skip(f"no values: all {facts.rows:,} rows are missing")
    if not facts.usable:
        return skip(f"no values: all {facts.rows:,} rows only have markers of missing values")
    name = plain_name(name)
    guesses = (guess for rule in _RULES if (guess := rule(name, facts)) is not None)
    guess = _apply_missing_markers(_note_missing(next(guesses, None) or _guess_text(name, facts), facts), facts)
    return _note_sentinels(guess, facts) if isinstance(guess.feature, Number | Category) else guess


def guess_target(name: str, facts: ColumnFacts) -> Guess:
    """Return the guess for a column to predict: as `guess_feature`, but unique values are labels or numbers too."""
    guess = guess_feature(name, facts)
    words = facts.text.words < 2 * facts.text.cells or facts.distinct.count <= _MAX_LABELS
    by_words = isinstance(guess.feature, Set | Sequence) and guess.feature.tokenizer == "space" and facts.text.cells
    if isinstance(guess.feature, Number) and _are_classes(facts):
        bounds = f"{facts.range.min:.0f} to {facts.range.max:.0f}"
        return Guess(Category(), f"labels from {bounds}: {describe_counts(facts)}")
    if words and (by_words or isinstance(guess.feature, Text)):
        return _apply_missing_markers(Guess(Category(), f"labels: {describe_counts(facts)}"), facts)
    if guess.feature is not None or facts.distinct.count < 2:
        return guess
    if facts.numbers >= _MIN_SHARE * facts.usable and not facts.text.leading_zeros:
        why = f"numbers, {describe_uniqueness(facts)} ({describe_rows(facts)})"
        return _apply_missing_markers(Guess(Number(), why), facts)
    if facts.text.cells == facts.usable and is_identifier_text(plain_name(name), facts):
        return Guess(Category(), f"labels, {describe_uniqueness(facts)} ({describe_rows(facts)})")
    return guess


def _are_classes(facts: ColumnFacts) -> bool:
    """Return whether integers to predict are classes; a few classes may be rare or absent."""
    few = facts.distinct.count <= _MAX_CODES and facts.usable >= FEW_ROWS
    from_start = facts.range.min in (0, 1) and facts.range.max < 2 * facts.distinct.count
    return few and from_start and facts.integers == facts.numbers == facts.usable


def _note_missing(guess: Guess, facts: ColumnFacts) -> Guess:
    """Set `has_missing` if cells are missing or unreadable."""
    has_unreadable = isinstance(guess.feature, Number) and _MIN_SHARE * facts.usable <= facts.numbers < facts.usable
    missing = facts.distinct.count > 1 and bool(facts.missing or facts.null_texts or has_unreadable)
    return guess._replace(has_missing=guess.has_missing or missing)


def _apply_missing_markers(guess: Guess, facts: ColumnFacts) -> Guess:
    """Note whether texts such as "unknown" count as missing or as values, and set `null_values` of the feature."""
    if not facts.null_texts or guess.feature is None or isinstance(guess.feature, MediaFeature):
        return guess
    kind = getattr(guess.feature, "reads_any_text_as", None)
    texts = sorted(facts.distinct_null_texts.texts.to_pylist())
    kept_texts = texts if kind else []
    if getattr(guess.feature, "order", None) is None and isinstance(guess.feature, Binary | Category | Number):
        kept_texts = _ambiguous_markers(facts) if kind else []
        guess.feature.null_values = [text for text in texts if text not in kept_texts] or None
    missing_texts = [text for text in texts if text not in kept_texts]
    treatments = {f"a separate {kind}": kept_texts, "missing": missing_texts}
    notes = [
        f"{quote_value(texts[0])} {'is' if len(texts) == 1 else 'and others are'} treated as {treatment}"
        for treatment, texts in treatments.items()
        if texts
    ]
    return guess._replace(reason="; ".join([guess.reason, *notes]))


def _ambiguous_markers(facts: ColumnFacts) -> list[str]:
    """Return markers of missing values that may be values."""
    return [text for text in facts.distinct_null_texts.texts.to_pylist() if text.lower() in AMBIGUOUS_MARKERS]


def _note_sentinels(guess: Guess, facts: ColumnFacts) -> Guess:
    """Note numbers that may represent missing values; only the user can decide whether they do."""
    sentinels = facts.sentinels
    if not sentinels:
        return guess
    cells = format_share(sum(facts.sentinel_counts[number] for number in sentinels), facts.rows)
    numbers_text = " and ".join(f"{number:.0f}" for number in sentinels)
    kind = "numbers" if isinstance(guess.feature, Number) else "a separate class"
    note = f"{numbers_text} in {cells} of rows, far from all others, may mark missing values, but count as {kind}"
    return guess._replace(reason=f"{guess.reason}; {note}: if so, list them in null_values of read_files")


def _guess_unsupported(name: str, facts: ColumnFacts) -> Guess | None:
    """Return the reason to skip a column with types that no feature reads."""
    if not facts.unsupported:
        return None
    kinds = " and ".join(sorted(facts.unsupported))
    to_seconds = " to seconds, with .dt.total_seconds() in pandas"
    remedy = to_seconds if kinds.startswith("duration") and len(facts.unsupported) == 1 else " first"
    return skip(f"holds values of type {kinds}, which no feature reads: convert the column{remedy}")


def _guess_media(name: str, facts: ColumnFacts) -> Guess | None:
    """Return an Image or Audio for files or paths; else None."""
    cells = {Image: (facts.images, facts.text.images, "images"), Audio: (facts.audio, facts.text.audio, "audio files")}
    for feature, (stored, paths, what) in cells.items():
        if stored + paths >= _MIN_SHARE * facts.usable:
            form = "paths" if paths > stored else "bytes or structs"
            share = format_share(stored + paths, facts.present)
            return Guess(feature(), f"{form} of {what} in {share} of {describe_rows(facts)}")
    return None


def _guess_lists(name: str, facts: ColumnFacts) -> Guess | None:
    """Return a Vector, Timeseries, Set or Sequence for columns of lists, or the reason to skip them; else None."""
    if not facts.lists_of_text and (facts.distinct.total or facts.lengths.count < facts.present):
        return None
    if facts.lists_of_text and facts.lists:
        return skip("holds lists of numbers and lists of text: make all of them text")
    if not facts.lists_of_text:
        return _guess_numbers_in_lists(facts.lengths, facts.lists_with_missing, describe_rows(facts))
    if facts.lists_with_missing:
        return skip(f"{facts.lists_with_missing:,} lists of text have missing items: fill them first")
    mean = facts.lengths.total / facts.lengths.count
    return guess_set_or_sequence(
        facts, "in lists", facts.items.count, mean, facts.lists_with_duplicates, facts.lists_of_text
    )


def _guess_numbers_in_lists(lengths: Lengths, lists_with_missing: int, rows_text: str) -> Guess:
    """Return a Vector for lists of equal length, or Timeseries."""
    shortest, longest = int(lengths.lengths[0]), lengths.max
    if not longest:
        return skip(f"empty lists in all of {rows_text}")
    if shortest == longest and not lists_with_missing:
        return Guess(Vector(), f"{format_count(longest, 'number')} in every cell of {rows_text}")
    why = f"{shortest} to {longest} numbers in a cell of {rows_text}"
    return Guess(Timeseries(), f"{why}, some of them missing" if lists_with_missing else why)


def _guess_constant(name: str, facts: ColumnFacts) -> Guess | None:
    """Return a skip for a column with one value, or a Binary or Category if the rest is missing; else None."""
    if facts.distinct.count != 1:
        return None
    value = facts.distinct.texts[0].as_py()
    n_missing = facts.missing + facts.null_texts
    if n_missing and (learned := _learn_binary(facts)) is not None and learned.bool2str[1] == value:
        label = learned.fallback_true_label
        feature = Category() if label and _ambiguous_markers(facts) else Binary(positive=label)
        return Guess(feature, f"{quote_value(value)} or missing: {describe_counts(facts)}")
    missing = f" or missing ({format_share(n_missing, facts.rows)})" if n_missing else ""
    return skip(f"constant: {quote_value(value)} in every row{missing}")


def _guess_boolean(name: str, facts: ColumnFacts) -> Guess | None:
    """Return a Binary for booleans, spellings of yes and no, and two distinct values; else None."""
    if facts.booleans == facts.present:
        return Guess(Binary(), f"booleans: {describe_counts(facts)}")
    learned = _learn_binary(facts) if facts.distinct.count <= _MAX_LABELS else None
    if learned is None:
        return None
    false, true = learned.bool2str
    labels = f"{quote_value(true)} is True and {quote_value(false)} is False"
    if learned.fallback_true_label is None:
        pairs = zip(facts.distinct.texts.to_pylist(), facts.distinct.counts.tolist(), strict=True)
        n_unreadable = facts.usable - sum(cells for label, cells in pairs if label in learned.str2bool)
        if n_unreadable > (1 - _MIN_SHARE) * facts.usable:
            return None
        reason = f"spellings of yes and no, {labels}{describe_unreadable(n_unreadable, facts.usable)}"
        return Guess(Binary(), f"{reason}: {describe_counts(facts)}", bool(n_unreadable))
    if facts.is_unique or _ambiguous_markers(facts) or (facts.numbers and facts.usable < FEW_ROWS):
        return None
    positive, rarer = learned.fallback_true_label, facts.distinct.texts[int(np.argmin(facts.distinct.counts))].as_py()
    are_conventional = any(label.lower() in CONVENTIONAL_LABELS for label in (false, true))
    if len(set(facts.distinct.counts.tolist())) > 1 and not are_conventional:
        positive, other = rarer, false if rarer == true else true
        labels = f"{quote_value(rarer)}, the rarer one, is True and {quote_value(other)} is False"
    return Guess(Binary(positive=positive), f"two values, {labels}: {describe_counts(facts)}")


def _learn_binary(facts: ColumnFacts) -> LearnedBinary | None:
    """Return the state of a Binary for a column, or None."""
    try:
        return Binary().learn(TokenCounts.of(facts.distinct.texts, facts.distinct.counts))
    except ColumnError:
        return None


def _guess_declared(name: str, facts: ColumnFacts) -> Guess | None:
    """Return an ordered Category, or Binary, for declared orders."""
    if len(facts.declared_orders) != 1:
        return None
    [(order, cells)] = facts.declared_orders.items()
    if cells < facts.present or not all(order) or len(set(order)) < len(order):
        return None
    why = (
        f"in the order that the frame declares, from {quote_value(order[0])} to {quote_value(order[-1])}: "
        f"{describe_counts(facts)}"
    )
    if len(order) > 2:
        return Guess(Category(order=list(order)), why)
    learned = _learn_binary(facts)
    label = order[-1] if learned is None or learned.fallback_true_label else None
    return Guess(Binary(positive=label), why)


def _guess_custom(name: str, facts: ColumnFacts) -> Guess | None:
    """Return the guess of the first custom type, if any."""
    for kind in FEATURES.values():
        if (guess_method := getattr(kind, "guess", None)) is not None and (result := guess_method(facts)) is not None:
            feature, reason = result
            return Guess(feature, f"{reason}: {describe_counts(facts)}")
    return None


def _guess_formatted_number(name: str, facts: ColumnFacts) -> Guess | None:
    """Return a Number for formatted numbers, which otherwise look like labels, vectors, sets or identifiers."""
    if not facts.text.cells or facts.numbers >= _MIN_SHARE * facts.usable or is_identifier_name(name):
        return None
    texts = facts.distinct.texts
    counts = facts.distinct.counts[: len(texts)]
    notation, numbers = guess_and_parse(texts, counts)
    n_seen = int(counts.sum())
    # A decimal point in other cells shows that "1,5" is a number and not a list of two.
    if notation is None and mostly_match(facts, r"^[-+]?\d+([.,]\d+)?$") and mostly_match(facts, r"\.", 0.05):
        reason = f"numbers with a decimal point{describe_unreadable(facts.usable - facts.numbers, facts.usable)}"
        return Guess(Number(), f"{reason}: {describe_counts(facts)}{_note_unreadable(facts)}", has_missing=True)
    if notation is None or not _NO_WORD.match(notation.example) or _NOT_UNITS.search(notation.example):
        return None
    is_unreadable = np.array(numbers.is_null(), bool)
    unreadable_texts = texts.filter(pa.array(is_unreadable))
    have_digits_only = pc.match_substring_regex(unreadable_texts, r"^[\d.,;\s]+$")
    if counts[~is_unreadable].sum() < _MIN_SHARE * n_seen or pc.any(have_digits_only).as_py():
        return None
    is_time = ":" in notation.example
    few = 2 * (facts.usable >= FEW_ROWS and not facts.lists)
    if is_time or len(unreadable_texts):
        few = _MAX_CLOCK_LABELS if is_time else _MAX_LABELS
    if facts.distinct.count <= few or (facts.lists and " " in notation.example):
        return None
    reason = "times or durations, as seconds" if is_time else f"numbers written as {quote_value(notation.example)}"
    ambiguity_note = ", read as in English, since thousands look like decimals" if notation.is_ambiguous else ""
    unread_note = describe_unreadable(int(counts[is_unreadable].sum()), n_seen)
    # The sampled values represent all rare values; the remaining cells have frequent values that were not sampled.
    rest = facts.distinct.total - round(n_seen * facts.distinct.count / max(len(texts), 1))
    if has_unchecked := rest > (1 - _MIN_SHARE) * facts.distinct.total:
        unread_note += f", {format_share(rest, facts.distinct.total)} of frequent values that were not checked"
    why = f"{reason}{ambiguity_note}{unread_note}: {describe_counts(facts)}"
    return Guess(Number(), why, bool(len(unreadable_texts) or has_unchecked))


def _guess_vector(name: str, facts: ColumnFacts) -> Guess | None:
    """Return a Vector or Timeseries for lists of numbers, or tokens for short lists of codes."""
    if facts.lists + facts.numbers < _MIN_SHARE * facts.usable or facts.lists < 0.5 * facts.usable:
        return None
    lengths, bare = facts.lengths.add(1, facts.numbers), not mostly_match(facts, r"^[\[(]", 0.5)
    few = bare and lengths.lengths[0] != lengths.max <= _MAX_VECTOR_OF_CODES
    if few and (codes := guess_tokens(facts)) is not None:
        return codes
    separated = Timeseries(tokenizer="comma") if bare and facts.text.commas >= facts.lists else Timeseries()
    guess = _guess_numbers_in_lists(lengths, facts.lists_with_missing, describe_rows(facts))
    guess = guess._replace(reason=guess.reason + note_decimal_commas(facts))
    return guess._replace(feature=separated) if isinstance(guess.feature, Timeseries) else guess


def _guess_number(name: str, facts: ColumnFacts) -> Guess | None:
    """Return a Number, a Category for codes, or a skip for identifiers, if 95 % of cells are numbers; else None."""
    if facts.numbers < _MIN_SHARE * facts.usable or facts.text.leading_zeros:
        return None
    n_unreadable = facts.usable - facts.numbers
    if n_unreadable and facts.distinct.count <= _MAX_LABELS:
        return Guess(Category(), f"numbers and other labels, few of either: {describe_counts(facts)}")
    bounds = facts.range.min, facts.range.max
    comma = "" if YEARS[0] <= bounds[0] and bounds[1] <= YEARS[1] else ","
    low, high = (f"{bound:{comma}.0f}" if bound == int(bound) else f"{bound:,.6g}" for bound in bounds)
    numbers = f"{'integers' if facts.integers == facts.numbers else 'numbers'} from {low} to {high}"
    if facts.integers == facts.numbers:
        if are_row_numbers(name, facts):
            identified = f"{describe_uniqueness(facts)}, so this looks like an identifier"
            return skip(f"{identified} ({numbers}, {describe_rows(facts)})")
        if is_identifier_name(name) or CODE_NAME.search(name):
            return Guess(Category(), f"integers named like codes: {describe_counts(facts)}")
        if _are_codes(facts):
            first = facts.distinct.texts[0].as_py()
            spelling_note = f', written as "{first}", as new rows have to be' if first.endswith(".0") else ""
            why = f"codes from {low} to {high}, none of them rare{spelling_note}"
            return Guess(Category(), f"{why}: {describe_counts(facts)}")
    unreadable = describe_unreadable(n_unreadable, facts.usable)
    text = f" (read from text{unreadable})" if n_unreadable or facts.text.cells else ""
    note = _note_unreadable(facts) if n_unreadable else _note_thousands(facts)
    return Guess(Number(), f"{numbers}{text}: {describe_counts(facts)}{note}")


def _note_unreadable(facts: ColumnFacts) -> str:
    """Return a note about booleans and decimal commas among numbers, which a Number cannot read; otherwise ""."""
    texts = facts.distinct.texts
    if pc.any(pc.match_substring_regex(texts, "(?i)^(true|false)$")).as_py():
        return "; true and false are unreadable next to numbers: replace them by 1 and 0"
    with_comma = texts.filter(pc.match_substring_regex(texts, DECIMAL_COMMA))
    if not len(with_comma):
        return ""
    example = quote_value(with_comma[0].as_py())
    return f"; {example} is unreadable next to decimal points: write all numbers with one decimal mark"


def _note_thousands(facts: ColumnFacts) -> str:
    """Return a note if points in text may separate thousands, as in "4.733" next to "326"; otherwise ""."""
    texts = facts.distinct.texts
    if not facts.text.cells or not mostly_match(facts, rf"^({AMBIGUOUS}|[+-]?[0-9]{{1,3}})$", 1):
        return ""
    with_point = texts.filter(pc.match_substring(texts, "."))
    if not _MIN_AMBIGUOUS <= len(with_point) < len(texts):
        return ""
    first = with_point[0].as_py()
    return f'; "{first}" is read as {first}: if points separate thousands, use Number(written="{first},5")'


def _are_codes(facts: ColumnFacts) -> bool:
    """Return whether integers are labels: few, consecutive from 0 or 1, and none as rare as large counts."""
    sentinels = facts.sentinels
    values, other_range = facts.distinct.count - len(sentinels), facts.range_without_sentinels
    is_consecutive = other_range.min in (0, 1) and other_range.max - other_range.min + 1 == values
    if not is_consecutive or not 3 - bool(sentinels) <= values <= _MAX_CODES or facts.usable < FEW_ROWS * values:
        return False
    pairs = zip(facts.distinct.texts.to_pylist(), facts.distinct.counts.tolist(), strict=True)
    rarest: int = min(cells for text, cells in pairs if float(text) not in sentinels)
    return rarest * 4 * values >= facts.usable


def _guess_text(name: str, facts: ColumnFacts) -> Guess:
    """Return a Text or a Category for text that no rule matches, or the reason to skip identifiers."""
    values, present = facts.distinct.count, facts.usable
    words = facts.text.words / max(facts.text.cells, 1)
    why = describe_counts(facts) + (f", {words:.1f} words in a cell" if words >= 1.5 else "")
    if is_identifier_text(name, facts):
        example = quote_value(facts.distinct.texts[0].as_py())
        remedy = 'to keep it, add it to the features as a "category"'
        cells = f"{describe_rows(facts)}, such as {example}"
        return skip(f"{describe_uniqueness(facts)}, so this looks like an identifier ({cells}); {remedy}")
    distinct = values / present
    if mostly_match(facts, WITHOUT_SPACES, 0.5):
        words = max(words, _MIN_SENTENCE_WORDS)
    if (coded := mostly_match(facts, CODE_PATTERN)) and is_almost_unique(facts):
        why += ", codes that rarely repeat"
    are_labels = coded or (values <= _MAX_LABELS and (present >= 2 * values or words < 3))
    is_varied = distinct > 0.1 or values > 1000 if words >= _MIN_SENTENCE_WORDS else distinct > 0.5
    return Guess(Text() if is_varied and not are_labels else Category(), why)


_RULES: tuple[Callable[[str, ColumnFacts], Guess | None], ...] = (
    _guess_unsupported, _guess_media, _guess_lists, _guess_constant, _guess_declared, _guess_custom, guess_date,
    _guess_formatted_number, _guess_vector, _guess_boolean, _guess_number, lambda _, facts: guess_tokens(facts),
)  # fmt: skip
