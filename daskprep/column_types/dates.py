"""Whether a column holds dates, and how they are written."""

from __future__ import annotations

import re

import numpy as np

from daskprep.column_types.guess import Guess, counted, shown, unreadable
from daskprep.features import Date
from daskprep.summaries.column_facts import ColumnFacts

_MOST = 0.95
_LABELS = 20
_NAME = re.compile(r"(^|_)(date|day|time|datetime|timestamp|ts|at|when|created|updated|modified|born|dob|epoch)(_|$)")
_SECONDS = (10**8, 4 * 10**9)  # the years 1973 to 2096
_SCALES = (1, 10**3, 10**6, 10**9)
_LOGGED = ("%d/%b/%Y:%H:%M:%S %z", "%d/%b/%Y:%H:%M:%S")  # by web servers
_FIELDS = re.compile(r"\d{1,2}(?P<mark>[-/.])\d{1,2}[-/.](?P<year>\d{4}|\d{2})(?P<clock>.*)")
_CLOCK = re.compile(r"(?P<gap>[ T])\d{1,2}:\d{2}(?P<seconds>:\d{2})?(?P<fraction>\.\d{1,6})?(?P<half>\s?[aApP][mM])?")


def guess_date(name: str, facts: ColumnFacts) -> Guess | None:
    """Return a Date for dates of the frame's own types, in text, or in numbers."""
    if facts.times:
        return Guess(Date(), f"dates: {counted(facts)}")
    if facts.text.dates >= _MOST * facts.typed and facts.text.dates:
        return _guess_written(facts)
    if facts.typed and facts.numbers == facts.whole == facts.typed:
        return _guess_numbers(name, facts)
    return None


def _guess_written(facts: ColumnFacts) -> Guess | None:
    texts, samples = facts.distinct.texts, facts.distinct.texts.to_pylist()
    in_doubt = _FIELDS.fullmatch(samples[0]) and not facts.text.day_first and not facts.text.day_second
    for written in dict.fromkeys([_day_first_format(facts), None, *_LOGGED]):
        feature = Date(datetime_format=written)
        dates, counts = feature.parse(texts), facts.distinct.counts[: len(texts)]
        if len(dates.drop_null()) < _MOST * len(texts) - facts.marked:
            continue
        sample, how = samples[0], "read month first, which no cell contradicts" if in_doubt else "as text"
        if written is not None and written not in _LOGGED:  # others may be as ISO 8601 has them
            sample, how = next(filter(_FIELDS.fullmatch, samples)), "day first"
        # Of many distinct values some are kept, which may lack those that are no dates at all.
        share = counts[np.array(dates.is_null(), bool)].sum() / counts.sum()
        odd = max(round(float(share) * facts.typed), facts.typed - facts.text.dates)
        what = f"dates, {how}, such as {shown(sample)}{unreadable(odd, facts.typed)}"
        return Guess(feature, f"{what}: {counted(facts)}", bool(odd))
    return None


def _day_first_format(facts: ColumnFacts) -> str | None:
    """Return how dates are written if most are day first, or as 31.12.2020, which nobody means month first."""
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
    named = _NAME.search(name) is not None
    if facts.calendar == facts.numbers and (named or facts.distinct.count > _LABELS):
        feature = Date(datetime_format="%Y%m%d")
        if len(feature.parse(facts.distinct.texts).drop_null()) >= _MOST * len(facts.distinct.texts):
            return Guess(feature, f"dates as numbers, such as {facts.distinct.texts[0]}: {counted(facts)}")
    low, high = _SECONDS
    for scale, unit in zip(_SCALES, ("seconds", "milliseconds", "microseconds", "nanoseconds"), strict=True):
        if named and low * scale <= facts.range.min and facts.range.max <= high * scale:
            return Guess(Date(), f"{unit} since 1970, judging by name and range: {counted(facts)}")
    return None
