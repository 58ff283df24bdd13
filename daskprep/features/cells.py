"""Read raw cells of any Arrow type as text or numbers, with the same result for each type that a partition may have."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.kernels import TokenCodes, list_offsets, only_where, plain_values, unwrap_mixed_column, valid_mask
from daskprep.columns.summaries.token_counts import argsort_bytes
from daskprep.columns.tokenizers import lowercase_strings
from daskprep.errors import ColumnError
from daskprep.rows.cells import MAX_EXACT_INTEGER, NUMBER_PATTERN
from daskprep.sources.arrow_types import narrow_column
from daskprep.sources.cells import as_text

_NUMBER = f"^({NUMBER_PATTERN.pattern}|[+-]?(?i:nan|inf|infinity))$"
MAX_EXACT_POWER = 22  # 10**22 is the greatest power of ten that a double holds exactly
_PROBES = 64  # cells that are cast to find out whether a column is text of plain numbers


def one_array(column: pa.Array | pa.ChunkedArray, *, plain: bool = True) -> pa.Array:
    """Return a column as one array with 32-bit offsets.

    Lists and binary of fixed size get a variable size. Raise ColumnError if it has more than 2 GB.
    """
    column = unwrap_mixed_column(narrow_column(column)) if plain else narrow_column(column)
    column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        raise ColumnError(
            f"a partition holds {column.nbytes:,} bytes in one column, more than 2 GB: use smaller partitions"
        )
    if pa.types.is_fixed_size_list(column.type):
        return column.cast(pa.list_(column.type.value_type))
    return column.cast(pa.binary()) if pa.types.is_fixed_size_binary(column.type) else column


def as_dictionary(column: pa.Array, *, lowercase: bool = False) -> pa.DictionaryArray:
    """Return cells as dictionary-encoded text, stripped, each text once; ColumnError for lists."""
    distinct = pa.types.is_string(column.type)
    if not pa.types.is_dictionary(column.type):
        try:
            column = column.dictionary_encode()
        except pa.ArrowNotImplementedError:  # decimal32 and decimal64; lists, which `as_text` rejects
            column = as_text(column).dictionary_encode()
    indices, values = column.indices, as_text(column.dictionary)
    clean = pc.utf8_trim_whitespace(lowercase_strings(values) if lowercase else values)
    if distinct and clean.equals(values):
        return column
    merged = clean.dictionary_encode()
    if len(merged.dictionary) == len(values) and not clean.null_count:
        return pa.DictionaryArray.from_arrays(indices, clean)
    return pa.DictionaryArray.from_arrays(merged.indices.take(indices), merged.dictionary)


def mask_texts(parsed: pa.DictionaryArray, texts: Iterable[str] | pa.Array) -> pa.DictionaryArray:
    """Return dictionary-encoded text, null where it is in `texts`."""
    matches = pc.is_in(parsed.dictionary, value_set=pa.array(texts, pa.string()))
    if not matches.true_count:
        return parsed
    indices = pc.if_else(matches.take(parsed.indices), pa.scalar(None, pa.int32()), parsed.indices)
    return pa.DictionaryArray.from_arrays(indices, parsed.dictionary)


def as_numbers(column: pa.Array) -> pa.Array:
    """Return cells as doubles, null for no finite number; ColumnError for other types."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return as_numbers(column.dictionary).take(column.indices)
    if is_text(kind):
        return parse_numbers_and_strip(as_text(column))[0]
    if pa.types.is_integer(kind):
        return column.cast(pa.float64(), safe=False)
    if pa.types.is_decimal(kind):
        return _from_decimals(column)
    if pa.types.is_floating(kind) or pa.types.is_null(kind):
        return _finite(column if kind == pa.float64() else column.cast(pa.float64()))
    if pa.types.is_boolean(kind):
        return column.cast(pa.uint8()).cast(pa.float64())
    remedy = 'use another type, such as "date" or "category"'
    raise ColumnError(f"holds values of type {kind}, which are not numbers: {duration_remedy(kind) or remedy}")


def duration_remedy(kind: pa.DataType) -> str:
    """Return how to convert a column if its type is a duration, otherwise ""."""
    return "convert the column to seconds, with .dt.total_seconds() in pandas" if pa.types.is_duration(kind) else ""


def is_text(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is string or (UTF-8) binary."""
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def take_by_code(parsed: pa.DictionaryArray, table: np.ndarray, missing: Any) -> np.ndarray:
    """Return `table[code]` for each cell of a dictionary array, and `missing` for null cells."""
    codes = plain_values(parsed.indices)
    if parsed.null_count:
        codes = np.where(valid_mask(parsed.indices), codes, len(table))
    values: np.ndarray = np.append(table, table.dtype.type(missing)).take(codes, mode="clip")
    return values


def argsort_values(texts: pa.Array) -> np.ndarray:
    """Return the order of texts by number, else by UTF-8 bytes."""
    numbers = as_numbers(texts)
    return argsort_bytes(texts) if numbers.null_count else np.argsort(numbers.to_numpy(), kind="stable")


def parse_numbers_and_strip(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the numbers of texts, null for other text, and the stripped texts."""
    with contextlib.suppress(pa.ArrowInvalid):
        # A sample first: Arrow 26.0.1 creates an error for each invalid cell, which takes longer than to parse it.
        texts[:: max(len(texts) // _PROBES, 1)].cast(pa.float64())
        return _finite(texts.cast(pa.float64())), texts  # the cast fails for cells with white space
    texts = pc.utf8_trim_whitespace(texts)
    readable = pc.match_substring_regex(texts, _NUMBER)
    return _finite(only_where(readable, texts).cast(pa.float64())), texts


def _from_decimals(column: pa.Array) -> pa.Array:
    """Return the nearest doubles of decimals; Arrow's cast (26.0.1) errs."""
    kind = column.type
    if pa.types.is_decimal128(kind) and 0 <= kind.scale <= MAX_EXACT_POWER:
        # Below 2**53, digits and power of ten are exact doubles, and their quotient is rounded once.
        low, high = np.frombuffer(column.buffers()[1], np.int64).reshape(-1, 2)[column.offset :][: len(column)].T
        if column.null_count:
            low, high = (np.where(column.is_valid().to_numpy(zero_copy_only=False), words, 0) for words in (low, high))
        if not len(low) or (
            (low >> 63 == high).all() and low.min() >= -MAX_EXACT_INTEGER and low.max() <= MAX_EXACT_INTEGER
        ):
            numbers = pa.array(low / 10.0**kind.scale)
            return pc.if_else(column.is_valid(), numbers, None) if column.null_count else numbers
    return column.cast(pa.string()).cast(pa.float64())


def _finite(column: pa.Array) -> pa.Array:
    """Return doubles, null for NaN and infinities."""
    finite = pc.is_finite(column)
    if not finite.false_count:
        return column
    return pc.if_else(finite, column, pa.scalar(None, pa.float64()))


def token_lists(parsed: pa.ListArray) -> TokenCodes:
    """Return a parsed column as offsets, codes and distinct tokens; nulls are empty."""
    if parsed.null_count:
        flat = parsed.flatten()
        offsets = list_offsets(parsed)
    else:
        offsets = plain_values(parsed, np.int32, len(parsed) + 1)
        first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
        flat = parsed.values.slice(first, last - first)
        offsets = offsets - first if first else offsets
    return TokenCodes(offsets, plain_values(flat.indices), flat.dictionary)


def any_in_list(lists: TokenCodes, flags: np.ndarray) -> np.ndarray:
    """Return a mask of the rows with a token that is flagged."""
    flagged_rows = np.zeros(len(lists.rows) - 1, bool)
    if flags.any():
        positions = np.flatnonzero(flags[lists.codes])
        flagged_rows[np.searchsorted(lists.rows, positions, side="right") - 1] = True
    return flagged_rows
