"""Facts of one column of one partition, for every Arrow type."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from daskprep.column_types.text_facts import AUDIO_SUFFIXES, IMAGE_SUFFIXES, number_facts, text_facts
from daskprep.features import Audio, Image
from daskprep.features.cells import one_array
from daskprep.features.tokens import rows_with_repeats
from daskprep.kernels import TokenCodes, list_offsets
from daskprep.media.audio import SIGNATURES
from daskprep.sources.cell_text import as_text
from daskprep.summaries import DistinctValues, Lengths
from daskprep.summaries.column_facts import ColumnFacts

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
    """Return the facts of the rows of a column, missing cells included."""
    array = one_array(column)
    return _present_facts(array.drop_null()) + ColumnFacts(array.null_count, array.null_count)


def _present_facts(cells: pa.Array) -> ColumnFacts:
    """Return the facts of non-null cells."""
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
    """Return the facts of the cells of a dictionary column, from its values that occur."""
    counts = np.bincount(cells.indices.to_numpy(), minlength=len(cells.dictionary))
    used = np.flatnonzero(counts)
    values, counts = cells.dictionary.take(pa.array(used)), counts[used]
    if pt.is_string(values.type) and not values.null_count:
        return text_facts(values, counts) + ColumnFacts(declared_orders=_count_declared_order(cells))
    return column_facts(cells.dictionary_decode())


def _count_declared_order(cells: pa.DictionaryArray) -> Counter[tuple[str, ...]]:
    """Count the cells by declared order: the stripped values of an ordered dictionary."""
    if not cells.type.ordered or not 0 < len(cells.dictionary) <= _MAX_DECLARED:
        return Counter()
    return +Counter({tuple(pc.utf8_trim_whitespace(cells.dictionary).to_pylist()): len(cells)})


def _bytes_facts(cells: pa.Array) -> ColumnFacts:
    """Return the facts of binary cells: images, audio, or else text."""
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
    """Return the facts of image and audio cells, by masks, with a sample of each."""
    counts = [int(mask.sum()) for mask in (is_image, is_audio)]
    samples = [
        kind.summarize(kind.parse(data.filter(pa.array(mask))))
        for kind, mask in ((Image(), is_image), (Audio(), is_audio))
    ]
    return ColumnFacts(sum(counts), images=counts[0], audio=counts[1], image_sample=samples[0], audio_sample=samples[1])


def _signatures(cells: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return masks of the binary cells with the signature of an image, and of an audio file."""
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
    mask: np.ndarray = matches.to_numpy(zero_copy_only=False)
    return mask


def _list_facts(cells: pa.ListArray) -> ColumnFacts:
    """Return the facts of lists of numbers or text."""
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
    lists_with_duplicates = np.count_nonzero(
        rows_with_repeats(TokenCodes(offsets, codes.indices.to_numpy(), codes.dictionary))
    )
    items = DistinctValues.of(*_count_values(text.drop_null()))
    return ColumnFacts(
        rows,
        lists_of_text=rows,
        lists_with_missing=lists_with_missing,
        lists_with_duplicates=int(lists_with_duplicates),
        lengths=lengths,
        items=items,
    )


def _rows_with(marked: pa.BooleanArray, offsets: np.ndarray) -> int:
    """Return the number of lists with a marked item."""
    before = np.append(0, np.cumsum(marked.to_numpy(zero_copy_only=False))).take(offsets)
    return int(np.count_nonzero(np.diff(before)))
