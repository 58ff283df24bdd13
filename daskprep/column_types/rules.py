"""The rules, in the order in which they are asked: which feature a person would choose for a column."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.column_types.dates import guess_date
from daskprep.column_types.guess import Guess, counted, rows, set_or_sequence, shown, skip, unique, unreadable
from daskprep.column_types.identifiers import (
    CODE_NAME,
    CODED,
    FEW_ROWS,
    WITHOUT_SPACES,
    almost_unique,
    mostly,
    names_things,
    number_rows,
    plain_name,
    text_tells_apart,
)
from daskprep.column_types.text_facts import MARKING_WORDS
from daskprep.column_types.tokens import guess_tokens
from daskprep.display.words import YEARS, count, share
from daskprep.errors import ColumnError
from daskprep.features import FEATURES, Audio, Binary, Category, Image, Number, Sequence, Set, Text, Timeseries, Vector
from daskprep.features.binary import LearnedBinary
from daskprep.features.media import MediaFeature
from daskprep.features.written import read_alike
from daskprep.serving.classes import CONVENTIONAL
from daskprep.summaries import Lengths, TokenCounts
from daskprep.summaries.column_facts import ColumnFacts

# Odd cells that do not change what a column is: up to one in twenty.
_MOST = 0.95
_LABELS = 20
_SENTENCE = 5  # words, of which shorter texts are labels or names
_CODES = 12  # of more, whole numbers that follow each other are counts or grades of something
_LONGEST_VECTOR_OF_CODES = 5
# What a number may begin with: no word, which may be that of a label or an identifier.
_NO_WORD = re.compile(r"[^A-Za-z]|[A-Z]{3} 1|[A-Z]{1,3}\$|(Rs|Fr|kr)\b")
# Several words, as of addresses, and what a hexadecimal number may be.
_NOT_UNITS = re.compile(r"[^\W\d]\s+[^\W\d]|5 [a-fA-F]{3,}$")
_HOURS = 24  # so few times of day are labels


def guess_feature(name: str, facts: ColumnFacts) -> Guess:
    """Return the feature for a column, or why it is skipped."""
    if not facts.rows:
        return skip("no rows")
    if not facts.present:
        return skip(f"no values: all {facts.rows:,} rows are missing")
    if not facts.typed:
        return skip(f"no values: all {facts.rows:,} rows only have markers of missing values")
    name = plain_name(name)
    guesses = (guess for rule in _RULES if (guess := rule(name, facts)) is not None)
    guess = _with_marks(_with_gaps(next(guesses, None) or _guess_text(name, facts), facts), facts)
    return _with_stand_ins(guess, facts) if isinstance(guess.feature, Number | Category) else guess


def guess_target(name: str, facts: ColumnFacts) -> Guess:
    """Return the feature for a column to predict: its values are labels or measures, and tell no rows apart."""
    guess = guess_feature(name, facts)
    words = facts.text.words < 2 * facts.text.cells or facts.distinct.count <= _LABELS
    by_words = isinstance(guess.feature, Set | Sequence) and guess.feature.tokenizer == "space" and facts.text.cells
    if isinstance(guess.feature, Number) and _are_classes(facts):
        return Guess(Category(), f"labels from {facts.range.min:.0f} to {facts.range.max:.0f}: {counted(facts)}")
    if words and (by_words or isinstance(guess.feature, Text)):
        return _with_marks(Guess(Category(), f"labels: {counted(facts)}"), facts)
    if guess.feature is not None or facts.distinct.count < 2:
        return guess
    if facts.numbers >= _MOST * facts.typed and not facts.text.led_by_zero:
        return _with_marks(Guess(Number(), f"numbers, {unique(facts)} ({rows(facts)})"), facts)
    if facts.text.cells == facts.typed and text_tells_apart(plain_name(name), facts):
        return Guess(Category(), f"labels, {unique(facts)} ({rows(facts)})")
    return guess


def _are_classes(facts: ColumnFacts) -> bool:
    """Tell whether whole numbers to predict are classes, of which some may be rare and some not there."""
    few = facts.distinct.count <= _CODES and facts.typed >= FEW_ROWS
    from_start = facts.range.min in (0, 1) and facts.range.max < 2 * facts.distinct.count
    return few and from_start and facts.whole == facts.numbers == facts.typed


def _with_gaps(guess: Guess, facts: ColumnFacts) -> Guess:
    odd = isinstance(guess.feature, Number) and _MOST * facts.typed <= facts.numbers < facts.typed
    gaps = facts.distinct.count > 1 and bool(facts.missing or facts.marked or odd)
    return guess._replace(has_gaps=guess.has_gaps or gaps)


def _with_marks(guess: Guess, facts: ColumnFacts) -> Guess:
    """Say whether text that spells a missing value is one for the feature, or stays a value where any text is."""
    if not facts.marked or guess.feature is None or isinstance(guess.feature, MediaFeature):
        return guess
    kind = getattr(guess.feature, "reads_any_text_as", None)
    texts = sorted(facts.spelled.texts.to_pylist())
    stays = texts if kind else []
    if getattr(guess.feature, "order", None) is None and isinstance(guess.feature, Binary | Category | Number):
        stays = _marking_words(facts) if kind else []
        guess.feature.null_values = [text for text in texts if text not in stays] or None
    gone = [text for text in texts if text not in stays]
    said = [f"{shown(one)}, count as a {kind} of their own" for one in stays[:1]]
    said += [f"{shown(one)}, count as missing" for one in gone[:1]]
    return guess._replace(reason="; markers of missing values, such as ".join([guess.reason, *said]))


def _marking_words(facts: ColumnFacts) -> list[str]:
    return [text for text in facts.spelled.texts.to_pylist() if text.lower() in MARKING_WORDS]


def _with_stand_ins(guess: Guess, facts: ColumnFacts) -> Guess:
    """Say which numbers may stand for missing ones; only who knows the data can tell."""
    odd = facts.stand_ins
    if not odd:
        return guess
    cells = share(sum(facts.nines[number] for number in odd), facts.rows)
    listed = " and ".join(f"{number:.0f}" for number in odd)
    what = "numbers" if isinstance(guess.feature, Number) else "a class of their own"
    note = f"{listed} in {cells} of rows, far from all others, may mark missing values, but count as {what}"
    return guess._replace(reason=f"{guess.reason}; {note}: if so, list them in null_values of read_files")


def _guess_unread(name: str, facts: ColumnFacts) -> Guess | None:
    if not facts.others:
        return None
    kinds = " and ".join(sorted(facts.others))
    return skip(f"holds values of type {kinds}, which no feature reads: convert the column first")


def _guess_media(name: str, facts: ColumnFacts) -> Guess | None:
    cells = {Image: (facts.images, facts.text.images, "images"), Audio: (facts.sounds, facts.text.sounds, "sounds")}
    for feature, (stored, paths, what) in cells.items():
        if stored + paths >= _MOST * facts.typed:
            form = "paths" if paths > stored else "bytes or structs"
            return Guess(feature(), f"{form} of {what} in {share(stored + paths, facts.present)} of {rows(facts)}")
    return None


def _guess_lists(name: str, facts: ColumnFacts) -> Guess | None:
    if not facts.lists_of_text and (facts.distinct.total or facts.lengths.count < facts.present):
        return None
    if facts.lists_of_text and facts.lists:
        return skip("holds lists of numbers beside lists of text: make all of them text")
    if not facts.lists_of_text:
        return _guess_numbers_in_lists(facts.lengths, facts.gaps, rows(facts))
    if facts.gaps:
        return skip(f"{facts.gaps:,} lists of text have missing items: fill them first")
    mean = facts.lengths.total / facts.lengths.count
    return set_or_sequence(facts, "in lists", facts.items.count, mean, facts.repeats, facts.lists_of_text)


def _guess_numbers_in_lists(lengths: Lengths, gaps: int, of: str) -> Guess:
    shortest, longest = int(lengths.lengths[0]), lengths.max
    if not longest:
        return skip(f"empty lists in all of {of}")
    if shortest == longest and not gaps:
        return Guess(Vector(), f"{count(longest, 'number')} in every cell of {of}")
    why = f"{shortest} to {longest} numbers in a cell of {of}"
    return Guess(Timeseries(), f"{why}, some of them missing" if gaps else why)


def _guess_constant(name: str, facts: ColumnFacts) -> Guess | None:
    if facts.distinct.count != 1:
        return None
    value = facts.distinct.texts[0].as_py()
    gone = facts.missing + facts.marked
    if gone and (learned := _learn_binary(facts)) is not None and learned.bool2str[1] == value:
        label = learned.fallback_true_label
        feature = Category() if label and _marking_words(facts) else Binary(positive=label)
        return Guess(feature, f"{shown(value)} or missing: {counted(facts)}")
    missing = f" or missing ({share(gone, facts.rows)})" if gone else ""
    return skip(f"constant: {shown(value)} in every row{missing}")


def _guess_boolean(name: str, facts: ColumnFacts) -> Guess | None:
    if facts.booleans == facts.present:
        return Guess(Binary(), f"booleans: {counted(facts)}")
    learned = _learn_binary(facts) if facts.distinct.count <= _LABELS else None
    if learned is None:
        return None
    false, true = learned.bool2str
    labels = f"{shown(true)} is True and {shown(false)} is False"
    if learned.fallback_true_label is None:
        pairs = zip(facts.distinct.texts.to_pylist(), facts.distinct.counts.tolist(), strict=True)
        odd = facts.typed - sum(cells for label, cells in pairs if label in learned.str2bool)
        if odd > (1 - _MOST) * facts.typed:
            return None
        what = f"spellings of yes and no, {labels}{unreadable(odd, facts.typed)}"
        return Guess(Binary(), f"{what}: {counted(facts)}", bool(odd))
    if facts.is_unique or _marking_words(facts) or (facts.numbers and facts.typed < FEW_ROWS):
        return None
    positive, rarer = learned.fallback_true_label, facts.distinct.texts[int(np.argmin(facts.distinct.counts))].as_py()
    if len(set(facts.distinct.counts.tolist())) > 1 and not any(one.lower() in CONVENTIONAL for one in (false, true)):
        positive = rarer
        labels = f"{shown(rarer)}, the rarer one, is True and {shown(false if rarer == true else true)} is False"
    return Guess(Binary(positive=positive), f"two values, {labels}: {counted(facts)}")


def _learn_binary(facts: ColumnFacts) -> LearnedBinary | None:
    try:
        return Binary().learn(TokenCounts.of(facts.distinct.texts, facts.distinct.counts))
    except ColumnError:
        return None


def _guess_declared(name: str, facts: ColumnFacts) -> Guess | None:
    if len(facts.declared) != 1:
        return None
    [(order, cells)] = facts.declared.items()
    if cells < facts.present or not all(order) or len(set(order)) < len(order):
        return None
    why = f"in the order that the frame declares, from {shown(order[0])} to {shown(order[-1])}: {counted(facts)}"
    if len(order) > 2:
        return Guess(Category(order=list(order)), why)
    learned = _learn_binary(facts)
    label = order[-1] if learned is None or learned.fallback_true_label else None
    return Guess(Binary(positive=label), why)


def _guess_asked(name: str, facts: ColumnFacts) -> Guess | None:
    for kind in FEATURES.values():
        if (ask := getattr(kind, "guess", None)) is not None and (found := ask(facts)) is not None:
            feature, what = found
            return Guess(feature, f"{what}: {counted(facts)}")
    return None


def _guess_written(name: str, facts: ColumnFacts) -> Guess | None:
    """Find numbers as people write them, which would else look like labels, vectors, sets or identifiers."""
    if not facts.text.cells or facts.numbers >= _MOST * facts.typed or names_things(name):
        return None
    texts = facts.distinct.texts
    counts = facts.distinct.counts[: len(texts)]
    found, numbers = read_alike(texts, counts)
    seen = int(counts.sum())
    # Lists of two numbers would have no point beside the comma.
    if found is None and mostly(facts, r"^[-+]?\d+([.,]\d+)?$") and mostly(facts, r"\.", 0.05):
        what = f"numbers with a decimal point{unreadable(facts.typed - facts.numbers, facts.typed)}"
        return Guess(Number(), f"{what}: {counted(facts)}", has_gaps=True)
    if found is None or not _NO_WORD.match(found.example) or _NOT_UNITS.search(found.example):
        return None
    unread = np.array(numbers.is_null(), bool)
    odd = texts.filter(pa.array(unread))
    if counts[~unread].sum() < _MOST * seen or pc.any(pc.match_substring_regex(odd, r"^[\d.,;\s]+$")).as_py():
        return None
    is_time = ":" in found.example
    few = _HOURS if is_time else _LABELS if len(odd) else 2 * (facts.typed >= FEW_ROWS and not facts.lists)
    if facts.distinct.count <= few or (facts.lists and " " in found.example):
        return None
    what = "times or durations, as seconds" if is_time else f"numbers written as {shown(found.example)}"
    doubt = ", read as in English, since nothing tells thousands from decimals" if found.in_doubt else ""
    not_read = unreadable(int(counts[unread].sum()), seen)
    # Of many distinct values some are kept, whose counts say how often the others occur, but for frequent ones.
    rest = facts.distinct.total - round(seen * facts.distinct.count / max(len(texts), 1))
    if doubtful := rest > (1 - _MOST) * facts.distinct.total:
        not_read += f", {share(rest, facts.distinct.total)} of frequent values that were not looked at"
    return Guess(Number(), f"{what}{doubt}{not_read}: {counted(facts)}", bool(len(odd) or doubtful))


def _guess_vector(name: str, facts: ColumnFacts) -> Guess | None:
    if facts.lists + facts.numbers < _MOST * facts.typed or facts.lists < 0.5 * facts.typed:
        return None
    lengths, bare = facts.lengths.add(1, facts.numbers), not mostly(facts, r"^[\[(]", 0.5)
    few = bare and lengths.lengths[0] != lengths.max <= _LONGEST_VECTOR_OF_CODES
    if few and (codes := guess_tokens(facts)) is not None:
        return codes
    separated = Timeseries(tokenizer="comma") if bare and facts.text.commas >= facts.lists else Timeseries()
    guess = _guess_numbers_in_lists(lengths, facts.gaps, rows(facts))
    return guess._replace(feature=separated) if isinstance(guess.feature, Timeseries) else guess


def _guess_number(name: str, facts: ColumnFacts) -> Guess | None:
    if facts.numbers < _MOST * facts.typed:
        return None
    odd = facts.typed - facts.numbers
    if facts.text.led_by_zero:
        return None
    if odd and facts.distinct.count <= _LABELS:
        return Guess(Category(), f"numbers beside other labels, few of either: {counted(facts)}")
    bounds = facts.range.min, facts.range.max
    comma = "" if YEARS[0] <= bounds[0] and bounds[1] <= YEARS[1] else ","
    low, high = (f"{bound:{comma}.0f}" if bound == int(bound) else f"{bound:,.6g}" for bound in bounds)
    what = f"{'whole ' * (facts.whole == facts.numbers)}numbers from {low} to {high}"
    if facts.whole == facts.numbers:
        if number_rows(name, facts):
            return skip(f"{unique(facts)}: an identifier ({what}, {rows(facts)})")
        if names_things(name) or CODE_NAME.search(name):
            return Guess(Category(), f"whole numbers named like codes: {counted(facts)}")
        if _are_codes(facts):
            first = facts.distinct.texts[0].as_py()
            written = f', written as "{first}", as new rows have to be' if first.endswith(".0") else ""
            return Guess(Category(), f"codes from {low} to {high}, none of them rare{written}: {counted(facts)}")
    text = f", as text{unreadable(odd, facts.typed)}" if odd or facts.text.cells else ""
    return Guess(Number(), f"{what}{text}: {counted(facts)}")


def _are_codes(facts: ColumnFacts) -> bool:
    """Tell whether whole numbers are labels: all from 0 or 1 on, few, and none rare, as large counts would be."""
    odd = facts.stand_ins
    values, found = facts.distinct.count - len(odd), facts.besides
    run = found.min in (0, 1) and found.max - found.min + 1 == values
    if not run or not 3 - bool(odd) <= values <= _CODES or facts.typed < FEW_ROWS * values:
        return False
    pairs = zip(facts.distinct.texts.to_pylist(), facts.distinct.counts.tolist(), strict=True)
    rarest: int = min(cells for text, cells in pairs if float(text) not in odd)
    return rarest * 4 * values >= facts.typed


def _guess_text(name: str, facts: ColumnFacts) -> Guess:
    values, present = facts.distinct.count, facts.typed
    words = facts.text.words / max(facts.text.cells, 1)
    why = counted(facts) + (f", {words:.1f} words in a cell" if words >= 1.5 else "")
    if text_tells_apart(name, facts):
        such = shown(facts.distinct.texts[0].as_py())
        remedy = 'to keep it, add it to the features as a "category"'
        return skip(f"{unique(facts)}: an identifier ({rows(facts)}, such as {such}); {remedy}")
    distinct = values / present
    if mostly(facts, WITHOUT_SPACES, 0.5):
        words = max(words, _SENTENCE)
    if (coded := mostly(facts, CODED)) and almost_unique(facts):
        why += ", codes that hardly come twice"
    if coded or (values <= _LABELS and (present >= 2 * values or words < 3)):
        is_text = False
    elif words >= _SENTENCE:
        is_text = distinct > 0.1 or values > 1000
    else:
        is_text = distinct > 0.5
    return Guess(Text() if is_text else Category(), why)


_RULES: tuple[Callable[[str, ColumnFacts], Guess | None], ...] = (
    _guess_unread,
    _guess_media,
    _guess_lists,
    _guess_constant,
    _guess_declared,
    _guess_asked,
    guess_date,
    _guess_written,
    _guess_vector,
    _guess_boolean,
    _guess_number,
    lambda _, facts: guess_tokens(facts),
)
