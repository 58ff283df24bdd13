"""Guesses from the form of cells: dates, lists of tokens, identifiers, and sizes of media."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.display import format_count, format_share, quote
from daskprep.columns.kernels import TokenCodes
from daskprep.columns.summaries.column_facts import ColumnFacts
from daskprep.errors import ConfigError
from daskprep.extensions.media.audio_feature import Audio
from daskprep.extensions.media.image_feature import Image
from daskprep.features import Date, Feature, Sequence, Set
from daskprep.features.tokens import rows_with_repeats
from daskprep.rows.tokens import json_items

# In fewer rows, unique values may be a coincidence.
FEW_ROWS = 20
_MANY_ROWS = 100
_MIN_DISTINCT_SHARE = 0.9
_MIN_PREFIX_SHARE = 0.95
_ENTITY_NAMES = (
    "user|customer|client|passenger|patient|person|member|student|employee|account|order|invoice|product|item"
    "|object|record|row|case|sample|session|transaction|encounter|event|visit|device|listing|house|loan"
)
_IDENTIFIER = re.compile(rf"(^|_)(id|ids|uuid|guid|uid|identifier)$|^id_|({_ENTITY_NAMES})id$")
_NUMBERED = re.compile(r"_(no|nr|nbr|number)$")
_NUMBERING = re.compile(r"(^|_)(index|idx|key|pk|nr|no|number|rowid|row|rownames|line|serial|rank)$|^unnamed|^$")
CODE_NAME = re.compile(r"(^|_)(zip|zipcode|zip_code|postcode|postal_code|plz|fips|geoid|naics|icd|code)$")
_MEASURED = re.compile(
    r"(^|_)(price|cost|amount|salary|wage|income|revenue|sales|gdp|budget|balance|value|population|area|sqft|size"
    r"|volume|weight|mass|height|length|width|depth|distance|mileage|age|year|score|votes|views|count|total|sum|mean"
    r"|max|min)(_|$)"
)
_SERIAL_DIGITS = 5  # serial numbers have the same number of digits, rarely fewer than this
# Unique numbers are row numbers if random numbers in their range would be unique with probability e**-10 or less.
_CHANCE = 10
# More possible codes than this are identifiers, rather than codes of diagnoses, places or goods.
_MAX_CODES = 1_000_000
_ROUND = r"^\d*0(\.0*)?$"
# Words with a digit, optionally with short words in capital letters; and text in scripts without spaces.
CODE_PATTERN = r"^[\w./#:-]*\d[\w./#:-]*$|^([A-Z]{1,3}|[A-Z]*\d[A-Z0-9]*)([ ./#-]([A-Z]{1,3}|[A-Z]*\d[A-Z0-9]*))+$"
WITHOUT_SPACES = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]{5}"


def plain_name(name: str) -> str:
    """Return a name in lower case, words joined by underscores."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"[\W_]+", "_", words).strip("_").lower()


def is_identifier_name(name: str) -> bool:
    """Return whether a plain name is typical of identifiers."""
    numbered = _NUMBERED.search(name) is not None and _MEASURED.search(name) is None
    return numbered or _IDENTIFIER.search(name) is not None


def are_row_numbers(name: str, facts: ColumnFacts) -> bool:
    """Return whether integers identify rows."""
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
    """Return whether texts are codes or single words that identify rows, by the column's name or uniqueness."""
    has_spaces = facts.text.with_spaces > (1 - _MIN_PREFIX_SHARE) * facts.usable
    if (has_spaces or mostly_match(facts, WITHOUT_SPACES, 0.5)) and not mostly_match(facts, CODE_PATTERN):
        return False
    if is_identifier_name(name) or (_NUMBERING.search(name) and facts.is_unique):
        return facts.is_unique or is_almost_unique(facts)
    if facts.is_unique:
        return facts.usable >= FEW_ROWS and not _look_random(facts)
    is_code = is_almost_unique(facts) and facts.usable >= _MANY_ROWS and mostly_match(facts, CODE_PATTERN)
    return is_code and not _look_random(facts)


def _look_random(facts: ColumnFacts) -> bool:
    """Return whether texts are codes that repeat at least half as often as random draws."""
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


def mostly_match(facts: ColumnFacts, pattern: str, share: float = _MIN_PREFIX_SHARE) -> bool:
    """Return whether at least this share of the sampled distinct texts contains a match of a pattern."""
    texts = facts.distinct.texts
    return (pc.sum(pc.match_substring_regex(texts, pattern)).as_py() or 0) >= share * max(len(texts), 1)


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
    """Return the numbers of distinct values and rows in words."""
    about = "" if facts.distinct.is_exact else "about "
    values = facts.distinct.count
    return f"{about}{format_count(values, 'distinct value')} in {describe_rows(facts)}"


def describe_rows(facts: ColumnFacts) -> str:
    """Return rows and the share of missing cells in words."""
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
    return "unique in every row" if facts.distinct.is_exact else f"all of {n_values:,} sampled values are distinct"


def quote_value(text: str) -> str:
    """Return a value in quotes for messages, truncated."""
    return quote(text, _MAX_SHOWN_CHARACTERS)


_MIN_JOINED_SHARE = 0.05  # minimum share of cells with several tokens
_MAX_DISTINCT = {" ": 200, ",": 1000, ";": 1000, "|": 1000}  # distinct tokens by separator
# Minimum mean number of distinct cells with a token: words of titles and names rarely occur in many.
_MIN_CELLS_PER_TOKEN = {" ": 3.0, ",": 2.0, ";": 2.0, "|": 2.0}
DECIMAL_COMMA = r"^[-+]?\d+,\d+$"
_TOKENIZERS = {" ": {"tokenizer": "space"}, ",": {"tokenizer": "comma"}} | {
    mark: {"tokenizer": "regex", "pattern": rf"[^\s{escaped}](?:[^{escaped}]*[^\s{escaped}])?"}
    for mark, escaped in ((";", ";"), ("|", r"\|"))
}
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
    text = facts.text
    cells_by_separator = {"|": text.bars, ";": text.semicolons, ",": text.commas, " ": text.with_spaces}
    for separator, cells in cells_by_separator.items():
        is_common = cells > 1 and cells >= _MIN_JOINED_SHARE * facts.usable
        if is_common and (guess := _guess_separated(facts, separator)) is not None:
            return guess
    return None


def _guess_separated(facts: ColumnFacts, separator: str) -> Guess | None:
    """Return the guess for cells of tokens between separators, None if the tokens are too many or too rare."""
    cells = _split_cells(facts.distinct.texts, separator)
    tokens, sizes = len(cells.values), np.diff(cells.rows)
    if not tokens or tokens > _MAX_DISTINCT[separator] or len(cells.codes) < _MIN_CELLS_PER_TOKEN[separator] * tokens:
        return None
    if separator == " " and not _are_tags(cells.values, sizes):
        return None
    guess = _guess_from_items(facts, cells, f"between {_NAMES[separator]}", _TOKENIZERS[separator])
    return guess._replace(reason=guess.reason + note_decimal_commas(facts)) if separator == "," else guess


def note_decimal_commas(facts: ColumnFacts) -> str:
    """Return a note if almost all cells look like numbers with a decimal comma, and others contradict it."""
    texts = facts.distinct.texts
    others = texts.filter(pc.match_substring_regex(texts, r"^[-+]?\d+,\d+\.\d*$"))
    if not len(others) or not mostly_match(facts, DECIMAL_COMMA):
        return ""
    example = quote_value(others[0].as_py())
    return f"; for numbers with decimal commas, correct cells such as {example}, and infer again"


def _guess_from_items(facts: ColumnFacts, cells: TokenCodes, where: str, options: Mapping[str, Any]) -> Guess:
    """Return a Sequence if tokenized cells repeat tokens or have many, else a Set; `where` is for the reason."""
    sizes = np.diff(cells.rows)
    counts = facts.distinct.counts[: len(sizes)]
    total, repeating = int(counts.sum()), int(counts[rows_with_repeats(cells)].sum())
    return guess_set_or_sequence(
        facts, where, len(cells.values), float(sizes @ counts) / total, repeating, total, **options
    )


def _are_tags(tokens: pa.StringArray, sizes: np.ndarray) -> bool:
    """Return whether distinct tokens are tags: fewer than cells, `sizes` of these vary, no words of sentences."""
    varied = np.count_nonzero(sizes != np.bincount(sizes).argmax()) >= 0.1 * len(sizes)
    return bool(
        len(sizes) > len(tokens)
        and varied
        and not pc.any(pc.is_in(pc.ascii_lower(tokens), value_set=pa.array(_SENTENCES))).as_py()
        and not pc.any(pc.match_substring_regex(tokens, r"[.,!?:;'\"]$")).as_py()
    )


def _split_cells(texts: pa.StringArray, separator: str) -> TokenCodes:
    """Return the tokens of texts between separators."""
    lists = pc.utf8_split_whitespace(texts) if separator == " " else pc.split_pattern(texts, separator)
    flat = pc.utf8_trim_whitespace(lists.flatten())
    full = pc.binary_length(flat).to_numpy() > 0
    row = np.repeat(np.arange(len(texts)), pc.list_value_length(lists).to_numpy())[full]
    offsets = np.append(0, np.cumsum(np.bincount(row, minlength=len(texts))))
    tokens = flat.filter(pa.array(full)).dictionary_encode()
    return TokenCodes(offsets, tokens.indices.to_numpy(), tokens.dictionary)


_MIN_SHARE = 0.95  # of cells with dates in a column of dates
_MAX_LABELS = 20  # distinct values, up to which numbers like 20240131 are labels unless named as dates
_NAME = re.compile(r"(^|_)(date|day|time|datetime|timestamp|ts|at|when|created|updated|modified|born|dob|epoch)(_|$)")
_SECONDS = (10**8, 4 * 10**9)  # the years 1973 to 2096
_SCALES = (1, 10**3, 10**6, 10**9)
_LOG_FORMATS = ("%d/%b/%Y:%H:%M:%S %z", "%d/%b/%Y:%H:%M:%S")  # logs of web servers
_FIELDS = re.compile(r"\d{1,2}(?P<mark>[-/.])\d{1,2}[-/.](?P<year>\d{4}|\d{2})(?P<clock>.*)")
_CLOCK = re.compile(r"(?P<gap>[ T])\d{1,2}:\d{2}(?P<seconds>:\d{2})?(?P<fraction>\.\d{1,6})?(?P<half>\s?[aApP][mM])?")


def guess_date(name: str, facts: ColumnFacts) -> Guess | None:
    """Return a Date for dates of any type; else None."""
    if facts.times:
        return Guess(Date(), f"dates: {describe_counts(facts)}")
    if facts.text.dates >= _MIN_SHARE * facts.usable and facts.text.dates:
        return _guess_date_text(facts)
    if facts.usable and facts.numbers == facts.integers == facts.usable:
        return _guess_numbers(name, facts)
    return None


def _guess_date_text(facts: ColumnFacts) -> Guess | None:
    """Return a Date with the first format that 95 % of the texts match; None if no format does."""
    texts, samples = facts.distinct.texts, facts.distinct.texts.to_pylist()
    is_ambiguous = _FIELDS.fullmatch(samples[0]) and not facts.text.day_first and not facts.text.day_second
    for date_format in dict.fromkeys([_day_first_format(facts), None, *_LOG_FORMATS]):
        feature = Date(datetime_format=date_format)
        dates, counts = feature.parse(texts), facts.distinct.counts[: len(texts)]
        if len(dates.drop_null()) < _MIN_SHARE * len(texts) - facts.null_texts:
            continue
        sample, note = samples[0], "read month first, which no cell contradicts" if is_ambiguous else "as text"
        if date_format is not None and date_format not in _LOG_FORMATS:  # the first may be in ISO 8601
            sample, note = next(filter(_FIELDS.fullmatch, samples)), "day first"
        # `distinct` keeps a sample of many values, which may contain none of the unreadable ones.
        share = counts[np.array(dates.is_null(), bool)].sum() / counts.sum()
        n_unreadable = max(round(float(share) * facts.usable), facts.usable - facts.text.dates)
        reason = f"dates, {note}, such as {quote_value(sample)}{describe_unreadable(n_unreadable, facts.usable)}"
        return Guess(feature, f"{reason}: {describe_counts(facts)}", bool(n_unreadable))
    return None


def _day_first_format(facts: ColumnFacts) -> str | None:
    """Return the format if most dates are day first; else None."""
    match = next(filter(None, map(_FIELDS.fullmatch, facts.distinct.texts.to_pylist())), None)
    if match is None:
        return None
    if not (facts.text.day_first > facts.text.day_second or (match["mark"] == "." and not facts.text.day_second)):
        return None
    mark = match["mark"]
    day = f"%d{mark}%m{mark}" + ("%Y" if len(match["year"]) == 4 else "%y")
    if not match["clock"]:
        return day
    clock = _CLOCK.fullmatch(match["clock"])
    if clock is None:
        return None
    hour = "%I:%M" if clock["half"] else "%H:%M"
    seconds = (":%S" if clock["seconds"] else "") + (".%f" if clock["fraction"] else "")
    half = f"{' ' * clock['half'][0].isspace()}%p" if clock["half"] else ""
    return f"{day}{clock['gap']}{hour}{seconds}{half}"


def _guess_numbers(name: str, facts: ColumnFacts) -> Guess | None:
    """Return a Date for numbers such as 20240131, and for seconds since 1970 or fractions of them, else None."""
    named = _NAME.search(name) is not None
    if facts.compact_dates == facts.numbers and (named or facts.distinct.count > _MAX_LABELS):
        feature = Date(datetime_format="%Y%m%d")
        if len(feature.parse(facts.distinct.texts).drop_null()) >= _MIN_SHARE * len(facts.distinct.texts):
            return Guess(feature, f"dates as numbers, such as {facts.distinct.texts[0]}: {describe_counts(facts)}")
    low, high = _SECONDS
    for scale, unit in zip(_SCALES, ("seconds", "milliseconds", "microseconds", "nanoseconds"), strict=True):
        if named and low * scale <= facts.range.min and facts.range.max <= high * scale:
            return Guess(Date(), f"{unit} since 1970, judging by name and range: {describe_counts(facts)}")
    return None


_MAX_SIDE = 256
_MAX_AUDIO_S = 30.0


def suggest_size(guess: Guess, facts: ColumnFacts, folders: tuple[str, ...]) -> Guess:
    """Return the guess with a size of images or audio that suits most files; unchanged if none can be read."""
    if not isinstance(guess.feature, Image | Audio):
        return guess
    feature = guess.feature._with_base_folders(folders)
    texts = facts.distinct.texts
    try:
        paths = feature.parse(texts.filter(pc.invert(pc.match_substring(texts, "://"))))
        stored = facts.image_sample if isinstance(feature, Image) else facts.audio_sample
        readable_facts = [file.facts for file in feature.sample(stored + feature.summarize(paths)) if not file.error]
    except (ConfigError, OSError):  # relative paths are ambiguous, or storage fails: a fit raises the error
        return guess
    if isinstance(guess.feature, Image):
        sizes = [image.header[:2] for image in readable_facts]
        return _suggest_image_size(guess, guess.feature, sizes) if sizes else guess
    seconds = sorted(audio.seconds for audio in readable_facts if audio.seconds is not None)
    return _suggest_audio_length(guess, guess.feature, seconds) if seconds else guess


def _suggest_image_size(guess: Guess, feature: Image, sizes: list[tuple[int, int]]) -> Guess:
    """Set height and width of `feature` to the median, at most 256; return the guess with the reason."""
    low, high, median = (np.quantile(sizes, quantile, axis=0).tolist() for quantile in (0, 1, 0.5))
    scale = min(1.0, _MAX_SIDE / max(median))
    height, width = (max(1, round(side * scale)) for side in median)
    if low == high == [height, width]:
        return guess
    feature.height, feature.width = height, width
    note = "the median" + (f", with no side above {_MAX_SIDE}" if scale < 1 else "")
    sizes_text = f"{low[0]:.0f} x {low[1]:.0f} to {high[0]:.0f} x {high[1]:.0f} pixels"
    return guess._replace(reason=f"{guess.reason}; {sizes_text}, resized to {height} x {width}, {note}")


def _suggest_audio_length(guess: Guess, feature: Audio, seconds: list[float]) -> Guess:
    """Set the length of the longest file as the limit, at most 30 s; return the guess with the reason."""
    limit = min(max(math.ceil(seconds[-1] * 10 - 1e-6), 1) / 10, _MAX_AUDIO_S)
    feature.audio_file_length_limit_in_s = limit
    fitting_share = format_share(sum(length <= limit for length in seconds), len(seconds))
    summary = f"{seconds[0]:.3g} to {seconds[-1]:.3g} s, cut at {limit:g} s, enough for {fitting_share} of them"
    return guess._replace(reason=f"{guess.reason}; {summary}")
