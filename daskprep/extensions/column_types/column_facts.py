"""Facts of one column: counts for every Arrow type, and patterns of its distinct texts and numbers."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from daskprep.columns.kernels import TokenCodes, list_offsets, string_buffers
from daskprep.columns.summaries import DistinctValues, Lengths, Range
from daskprep.columns.summaries.column_facts import ColumnFacts, TextFacts
from daskprep.columns.summaries.quantiles import sum_by_key
from daskprep.extensions.media.audio import SIGNATURES
from daskprep.extensions.media.audio_feature import Audio
from daskprep.extensions.media.image_feature import Image
from daskprep.features.cells import as_numbers, one_array
from daskprep.features.tokens import rows_with_repeats
from daskprep.features.vector import any_in_row, parse_number_lists
from daskprep.sources.cells import as_text

# Words that may also be values, such as "none" for the alley of a house.
AMBIGUOUS_MARKERS = ("unknown", "none", "nil")
_MISSING_MARKERS = (
    *AMBIGUOUS_MARKERS, "missing", "undefined", "?", "-", "--", "---", ".", "..", "...", "na", "n/a", "n.a.", "n/d",
    "#n/a", "<na>", "nan", "nat", "null", "(null)", "#null!", "#div/0!", "#value!",
)  # fmt: skip
CLOCK = r"[T ,]\s*\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?\s*([aApP]\.?[mM]\.?)?\s*(Z|UTC|GMT|[+-]\d{2}:?\d{2})?"
_DAY_AND_MONTH = r"\d{1,2}[-/]\d{1,2}[-/](\d{4}|\d{2})|\d{1,2}\.\d{1,2}\.\d{4}|\d{2}\.\d{2}\.\d{2}"
# Dates that start with a digit. A version such as "1.10.2" and an address such as "10.0.0.1" have none of these shapes.
_NUMERIC_DATE = (
    rf"^(\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}({CLOCK})?|({_DAY_AND_MONTH})({CLOCK})?|\d{{4}}[-/]\d{{2}}"
    r"|\d{8}T\d{4}(\d{2}([.,]\d+)?)?Z?)$"
)
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_NAMED_DATE = (
    rf"(?i)^{_MONTH}[ -]\d{{4}}$"
    rf"|^([a-z]{{3,9}}\.?,? )?(\d{{1,2}}(st|[nr]d|th)?[ ./-]{_MONTH}|{_MONTH}\.? \d{{1,2}}(st|[nr]d|th)?)\b.*\d$"
)
_MAX_DATE_BYTES = 40
_DAY_FIRST = r"^(1[3-9]|[23]\d)[-/.]\d{1,2}[-/.]\d"
_DAY_SECOND = r"^\d{1,2}[-/.](1[3-9]|[23]\d)[-/.]\d"
_LEADING_ZERO = r"^[+-]?0\d+$"
_H3 = r"^(0[xX])?8[0-9a-fA-F]{14}$"
IMAGE_SUFFIXES = r"(?i)\.(png|jpe?g|bmp|gif|tiff?|webp|p[bgp]m)$"
AUDIO_SUFFIXES = r"(?i)\.(wav|flac|ogg|oga|mp3|aiff?)$"
_ALL_DIGITS_EXACT = 2.0**53
# Characters of numbers and lists of numbers: a check of bytes is faster than a regular expression for each cell.
_BYTES = {
    kind: np.isin(np.arange(256), np.frombuffer(characters, np.uint8))
    for kind, characters in (("number", b"0123456789+-.eE"), ("lists", b"0123456789+-.eE ,\t[]()nNaA"))
}
# Numbers that often represent missing values, such as -9 and 999.
_NINES = np.array([-9.0, *(sign * (10.0**digits - 1) for digits in range(2, 8) for sign in (-1, 1))])
_FIRST_DAY, _LAST_DAY = 18_000_101, 22_001_231


class _Values(NamedTuple):
    """Distinct texts and how often each occurs."""

    texts: pa.StringArray
    counts: np.ndarray

    def where(self, mask: Any) -> _Values:
        chosen = _to_mask(mask)
        return self if chosen.all() else _Values(self.texts.filter(pa.array(chosen)), self.counts[chosen])

    def like(self, pattern: str) -> np.ndarray:
        """Return a mask of the values that match a pattern."""
        return _to_mask(pc.match_substring_regex(self.texts, pattern))

    def rows(self, mask: Any) -> int:
        return int(self.counts[_to_mask(mask)].sum())


def _to_mask(mask: Any) -> np.ndarray:
    """Return a NumPy mask from a NumPy or Arrow one."""
    if isinstance(mask, np.ndarray):
        return mask
    return mask.to_numpy(zero_copy_only=False)


def number_facts(numbers: pa.Array, counts: np.ndarray) -> ColumnFacts:
    """Return the facts of numbers of any Arrow type and their counts; NaN and infinities are missing."""
    doubles = as_numbers(numbers)
    if doubles.null_count:
        finite = doubles.is_valid()
        missing = int(counts[~_to_mask(finite)].sum())
        numbers, counts = numbers.filter(finite), counts[_to_mask(finite)]
        return number_facts(numbers, counts) + ColumnFacts(missing, missing)
    values = doubles.to_numpy() + 0.0
    keys = values.view(np.int64)
    if pa.types.is_integer(numbers.type) and len(values) and np.abs(values).max() >= _ALL_DIGITS_EXACT:
        far = np.abs(values) >= _ALL_DIGITS_EXACT
        keys = np.where(far, ~numbers.to_numpy().astype(np.int64), keys)
    distinct = DistinctValues.of(pa.array(keys), counts, numbers)
    return ColumnFacts(int(counts.sum()), **_number_fields(values, counts), distinct=distinct)


def _number_fields(values: np.ndarray, counts: np.ndarray) -> dict[str, Any]:
    """Return the counts, ranges and sentinels of finite numbers, as keyword arguments of ColumnFacts."""
    is_integral = values == np.floor(values)
    nines = is_integral.copy()
    nines[is_integral] = np.isin(values[is_integral], _NINES)
    sentinels, cells = sum_by_key(values[nines], counts[nines])
    return {
        "numbers": int(counts.sum()),
        "integers": int(counts[is_integral].sum()),
        "compact_dates": int(counts[_is_day(values) & is_integral].sum()),
        "range": (span := Range.of(values)),
        "sentinel_counts": Counter(dict(zip(sentinels.tolist(), cells.tolist(), strict=True))),
        "range_without_sentinels": Range.of(values[~nines]) if nines.any() else span,
    }


def _is_day(values: np.ndarray) -> np.ndarray:
    """Return a mask of the numbers that look like YYYYMMDD, in any month up to day 31."""
    near = (values >= _FIRST_DAY) & (values <= _LAST_DAY)
    if not near.any():
        return near
    month, day = values // 100 % 100, values % 100
    return near & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)


def text_facts(texts: pa.StringArray, counts: np.ndarray) -> ColumnFacts:
    """Return the facts of distinct texts with their counts: missing, marker, numeric, list, date and path cells."""
    all_values = _Values(pc.utf8_trim_whitespace(texts), counts)
    sizes = pc.binary_length(all_values.texts).to_numpy()
    values = all_values.where(sizes > 0)
    rows, present = int(counts.sum()), int(values.counts.sum())
    is_marker = _to_mask(pc.is_in(pc.ascii_lower(values.texts), value_set=pa.array(_MISSING_MARKERS)))
    values, markers = values.where(~is_marker), values.where(is_marker)
    distinct_null_texts, distinct = (DistinctValues.of(*group) for group in (markers, values))
    words, cells = _word_facts(values) + _path_facts(values), int(markers.counts.sum())
    missing: dict[str, Any] = {"missing": rows - present, "null_texts": cells}
    facts = ColumnFacts(rows, **missing, distinct_null_texts=distinct_null_texts, distinct=distinct, text=words)
    return facts + _numeric_text_facts(values) + ColumnFacts(text=_named_date_facts(values))


def _word_facts(values: _Values) -> TextFacts:
    """Count words, and the cells with spaces and separators."""
    offsets, data = string_buffers(values.texts)
    spaces, *marks = (_occurrences(offsets, data == ord(mark)) for mark in " ,;|")
    cells = int(values.counts.sum())
    return TextFacts(
        cells,
        cells + int(spaces @ values.counts),
        *(int(values.counts[occurrences > 0].sum()) for occurrences in (spaces, *marks)),
    )


def _occurrences(offsets: np.ndarray, marked: np.ndarray) -> np.ndarray:
    """Return the number of marked bytes in each text."""
    # For rare bytes, this takes a tenth of the time of a search in every text.
    return np.diff(np.searchsorted(np.flatnonzero(marked), offsets))


def _path_facts(values: _Values) -> TextFacts:
    """Count the cells that are paths of images and audio."""
    offsets, data = string_buffers(values.texts)
    if not len(data):
        return TextFacts()
    ends = offsets[1:]
    dots = np.zeros(len(ends), bool)
    for length in (4, 5):
        dots |= (data.take(ends - length, mode="clip") == ord(".")) & (np.diff(offsets) > length)
    near = values.where(dots)
    return TextFacts(images=near.rows(near.like(IMAGE_SUFFIXES)), audio=near.rows(near.like(AUDIO_SUFFIXES)))


def _numeric_text_facts(values: _Values) -> ColumnFacts:
    """Return the facts of texts of numbers, lists, dates or codes."""
    offsets, data = string_buffers(values.texts)
    first = data.take(offsets[:-1], mode="clip") if len(data) else np.zeros(0, np.uint8)
    candidates = values.where((first - np.uint8(48) < 10) | np.isin(first, np.frombuffer(b"+-.[(", np.uint8)))
    if not len(candidates.counts):
        return ColumnFacts()
    offsets, data = string_buffers(candidates.texts)
    in_number, in_lists = (_occurrences(offsets, ~_BYTES[kind][data]) == 0 for kind in ("number", "lists"))
    near = candidates.where(in_number)
    numbers = as_numbers(near.texts)
    read = near.where(numbers.is_valid())
    facts = ColumnFacts(
        **_number_fields(numbers.drop_null().to_numpy(), read.counts),
        text=TextFacts(leading_zeros=read.rows(read.like(_LEADING_ZERO))),
    )
    rest = ~in_number
    rest[in_number] = np.array(numbers.is_null(), bool)
    return (
        facts
        + _list_text_facts(candidates.where(rest & in_lists & ~in_number))
        + ColumnFacts(text=_pattern_facts(candidates.where(rest)))
    )


def _list_text_facts(values: _Values) -> ColumnFacts:
    """Count texts that are lists of several numbers or in brackets, with their lengths and missing items."""
    if not len(values.counts):
        return ColumnFacts()
    parsed = parse_number_lists(values.texts)
    lengths = pc.fill_null(pc.list_value_length(parsed), 0).to_numpy().astype(np.int64)
    several = (lengths > 1) | (values.like(r"^\[") & _to_mask(parsed.is_valid()))
    lists, lists_with_missing = values.where(several), any_in_row(parsed, np.isnan)
    return ColumnFacts(
        lists=int(lists.counts.sum()),
        lists_with_missing=int(values.counts[lists_with_missing & several].sum()),
        lengths=Lengths(*sum_by_key(lengths[several], lists.counts)),
    )


def _pattern_facts(values: _Values) -> TextFacts:
    """Count the cells that are dates in digits, such as "31.3.2024", or H3 cells."""
    short = values.where(pc.binary_length(values.texts).to_numpy() <= _MAX_DATE_BYTES)
    dates = short.where(short.like(_NUMERIC_DATE))
    return TextFacts(
        dates=int(dates.counts.sum()),
        day_second=dates.rows(dates.like(_DAY_SECOND)),
        day_first=dates.rows(dates.like(_DAY_FIRST)),
        h3=short.rows(short.like(_H3)),
    )


def _named_date_facts(values: _Values) -> TextFacts:
    """Count the cells that are dates with the name of a month."""
    offsets, data = string_buffers(values.texts)
    if not len(data):
        return TextFacts()
    last = data.take(offsets[1:] - 1, mode="clip")
    short = values.where((last - np.uint8(48) < 10) & (np.diff(offsets) <= _MAX_DATE_BYTES))
    return TextFacts(dates=short.rows(short.like(_NAMED_DATE)))


_HEAD_BYTES = 16  # bytes with a signature of an image or audio file
_SAMPLE = 1 << 11
_MAX_DECLARED = 1_000  # values of a declared order
_IMAGE = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|BM.{4}\0\0\0\0|GIF8[79]a|II[*+]\0|MM\0[*+]|RIFF....WEBP|P[1-7fF]\s"
    rb"|\x93NUMPY",
    re.DOTALL,
)
_AUDIO = re.compile(b"|".join(SIGNATURES.values()), re.DOTALL)


def column_facts(column: pa.Array | pa.ChunkedArray) -> ColumnFacts:
    """Return the facts of a column, missing cells included."""
    array = one_array(column)
    return _present_facts(array.drop_null()) + ColumnFacts(array.null_count, array.null_count)


def _present_facts(cells: pa.Array) -> ColumnFacts:
    """Return the facts of non-null cells of any Arrow type; nested and unknown types count as unsupported."""
    kind = cells.type
    if pt.is_dictionary(kind):
        return _dictionary_facts(cells)
    if pt.is_boolean(kind):
        return ColumnFacts(len(cells), booleans=len(cells), distinct=DistinctValues.of(*_count_values(as_text(cells))))
    if pt.is_string(kind):
        return text_facts(*_count_values(cells))
    if pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind):
        return number_facts(*_count_values(cells))
    if pt.is_timestamp(kind) or pt.is_date(kind):
        values, counts = _count_values(cells)
        micros = values.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False).cast(pa.int64())
        return ColumnFacts(len(cells), times=len(cells), distinct=DistinctValues.of(micros, counts, values))
    if pt.is_binary(kind):
        return _bytes_facts(cells)
    if pt.is_list(kind):
        return _list_facts(cells)
    return _struct_facts(cells) if pt.is_struct(kind) else _other_facts(cells)


def _count_values(cells: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return distinct values and their counts, or if most cells are distinct, the cells with counts of 1.

    Facts are the same in both cases: they add up over cells, and `DistinctValues` merges equal values.
    """
    if len(cells) > 2 * _SAMPLE:
        sample = cells.take(pa.array(np.arange(0, len(cells), len(cells) // _SAMPLE)))
        if pc.count_distinct(sample).as_py() > 0.9 * len(sample):
            return cells, np.ones(len(cells), np.int64)
    counted = cells.value_counts()
    return counted.field("values"), counted.field("counts").to_numpy()


def _other_facts(cells: pa.Array) -> ColumnFacts:
    """Return the facts of cells of a type that no feature reads."""
    return ColumnFacts(len(cells), unsupported=+Counter({str(cells.type): len(cells)}))


def _dictionary_facts(cells: pa.DictionaryArray) -> ColumnFacts:
    """Return facts of used values and a declared order."""
    counts = np.bincount(cells.indices.to_numpy(), minlength=len(cells.dictionary))
    used = np.flatnonzero(counts)
    values, counts = cells.dictionary.take(pa.array(used)), counts[used]
    if pt.is_string(values.type) and not values.null_count:
        return text_facts(values, counts) + ColumnFacts(declared_orders=_count_declared_order(cells))
    return column_facts(cells.dictionary_decode())


def _count_declared_order(cells: pa.DictionaryArray) -> Counter[tuple[str, ...]]:
    """Count the cells of an ordered dictionary by its order."""
    if not cells.type.ordered or not 0 < len(cells.dictionary) <= _MAX_DECLARED:
        return Counter()
    return +Counter({tuple(pc.utf8_trim_whitespace(cells.dictionary).to_pylist()): len(cells)})


def _bytes_facts(cells: pa.Array) -> ColumnFacts:
    """Return the facts of binary cells: media, or else text."""
    is_image, is_audio = _signatures(cells)
    rest = cells.filter(pa.array(~(is_image | is_audio)))
    facts = _media_facts(cells, is_image, is_audio)
    if not len(rest):
        return facts
    try:
        return facts + text_facts(*_count_values(rest.cast(pa.string())))
    except pa.ArrowInvalid:
        return facts + _other_facts(rest)


def _media_facts(data: pa.Array, is_image: np.ndarray, is_audio: np.ndarray) -> ColumnFacts:
    """Return the numbers of image and audio cells, which masks mark, with a sample of files of each."""
    counts = [int(mask.sum()) for mask in (is_image, is_audio)]
    samples = [
        kind.summarize(kind.parse(data.filter(pa.array(mask))))
        for kind, mask in ((Image(), is_image), (Audio(), is_audio))
    ]
    return ColumnFacts(sum(counts), images=counts[0], audio=counts[1], image_sample=samples[0], audio_sample=samples[1])


def _signatures(cells: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return masks of the cells that are images, and audio."""
    heads = pc.binary_slice(cells, 0, _HEAD_BYTES).to_pylist()
    is_image = np.array([head is not None and _IMAGE.match(head) is not None for head in heads], bool)
    is_audio = np.array([head is not None and _AUDIO.match(head) is not None for head in heads], bool)
    return is_image, is_audio & ~is_image


def _struct_facts(cells: pa.StructArray) -> ColumnFacts:
    """Return the facts of structs: Hugging Face cells of images and audio, with bytes or paths."""
    names = {field.name for field in cells.type}
    if {"array", "sampling_rate"} <= names:
        return ColumnFacts(len(cells), audio=len(cells))
    if not names & {"bytes", "path"}:
        return _other_facts(cells)
    # If a Hugging Face cell has both, its path may be from another machine: the bytes decide.
    data, path = (_field(cells, name) for name in ("bytes", "path"))
    is_image, is_audio = _signatures(data.cast(pa.large_binary()))
    unrecognized = ~(is_image | is_audio)
    is_image |= unrecognized & _has_suffix(path, IMAGE_SUFFIXES)
    is_audio |= unrecognized & _has_suffix(path, AUDIO_SUFFIXES)
    absent = np.array(data.is_null(), bool) & np.array(path.is_null(), bool)
    unsupported = cells.filter(pa.array(~(is_image | is_audio | absent)))
    missing = int(absent.sum())
    return _media_facts(data, is_image, is_audio) + ColumnFacts(missing, missing) + _other_facts(unsupported)


def _field(cells: pa.StructArray, name: str) -> pa.Array:
    """Return a field of structs, or nulls if they lack it."""
    if cells.type.get_field_index(name) < 0:
        return pa.nulls(len(cells), pa.binary() if name == "bytes" else pa.string())
    return pc.struct_field(cells, name)


def _has_suffix(path: pa.Array, suffixes: str) -> np.ndarray:
    """Return a mask of the paths that match a pattern of suffixes."""
    matches = pc.fill_null(pc.match_substring_regex(path.cast(pa.string()), suffixes), fill_value=False)
    return matches.to_numpy(zero_copy_only=False)


def _list_facts(cells: pa.ListArray) -> ColumnFacts:
    """Return the number, lengths and missing items of lists of numbers or text; other lists are unsupported."""
    items, offsets = cells.flatten(), list_offsets(cells)
    kind, rows = items.type, len(cells)
    lengths = Lengths.of(np.diff(offsets))
    if pt.is_null(kind):
        # Empty lists have no item type: their length is the only fact.
        return ColumnFacts(rows, lists_with_missing=_rows_with(items.is_null(), offsets), lengths=lengths)
    if pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind) or pt.is_boolean(kind):
        lists_with_missing = _rows_with(items.is_null(nan_is_null=True), offsets)
        return ColumnFacts(rows, lists=rows, lists_with_missing=lists_with_missing, lengths=lengths)
    if not (pt.is_string(kind) or pt.is_dictionary(kind)):
        return _other_facts(cells)
    text = as_text(items)
    lists_with_missing = _rows_with(text.is_null(), offsets)
    codes = pc.fill_null(text, "").dictionary_encode()
    repeats = rows_with_repeats(TokenCodes(offsets, codes.indices.to_numpy(), codes.dictionary))
    counts: dict[str, Any] = {
        "lists_with_missing": lists_with_missing,
        "lists_with_duplicates": int(np.count_nonzero(repeats)),
    }
    items = DistinctValues.of(*_count_values(text.drop_null()))
    return ColumnFacts(rows, lists_of_text=rows, lengths=lengths, items=items, **counts)


def _rows_with(marked: pa.BooleanArray, offsets: np.ndarray) -> int:
    before = np.append(0, np.cumsum(marked.to_numpy(zero_copy_only=False))).take(offsets)
    return int(np.count_nonzero(np.diff(before)))
