"""Detection of dates in a column, and of their format."""

from __future__ import annotations

import re

import numpy as np

from daskprep.column_types.guess import Guess, describe_counts, describe_unreadable, quote_value
from daskprep.features import Date
from daskprep.summaries.column_facts import ColumnFacts

_MIN_SHARE = 0.95  # of cells with dates in a column of dates
_MAX_LABELS = 20  # distinct values, up to which numbers like 20240131 are labels unless named as dates
_NAME = re.compile(r"(^|_)(date|day|time|datetime|timestamp|ts|at|when|created|updated|modified|born|dob|epoch)(_|$)")
_SECONDS = (10**8, 4 * 10**9)  # the years 1973 to 2096
_SCALES = (1, 10**3, 10**6, 10**9)
_LOG_FORMATS = ("%d/%b/%Y:%H:%M:%S %z", "%d/%b/%Y:%H:%M:%S")  # logs of web servers
_FIELDS = re.compile(r"\d{1,2}(?P<mark>[-/.])\d{1,2}[-/.](?P<year>\d{4}|\d{2})(?P<clock>.*)")
_CLOCK = re.compile(r"(?P<gap>[ T])\d{1,2}:\d{2}(?P<seconds>:\d{2})?(?P<fraction>\.\d{1,6})?(?P<half>\s?[aApP][mM])?")


def guess_date(name: str, facts: ColumnFacts) -> Guess | None:
    """Return a Date for columns of date types, and for dates as text or as numbers; else None."""
    if facts.times:
        return Guess(Date(), f"dates: {describe_counts(facts)}")
    if facts.text.dates >= _MIN_SHARE * facts.usable and facts.text.dates:
        return _guess_date_text(facts)
    if facts.usable and facts.numbers == facts.integers == facts.usable:
        return _guess_numbers(name, facts)
    return None


def _guess_date_text(facts: ColumnFacts) -> Guess | None:
    """Return a Date for text if a format fits most values, else None."""
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
    """Return the format if most dates are day first, or have dots as in 31.12.2020; else None."""
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
