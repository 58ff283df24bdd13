"""Vectorized kernels on Arrow's bytes: cut strings into tokens, encode distinct tokens, pad, parse floats.

Every kernel consists of vectorized NumPy or Arrow calls, which release the GIL. Bytes are processed block by block,
so that the output of one call is still in the CPU's cache for the next call.

A *span* is a range of bytes between two offsets. Trailing NUL bytes are padding and do not belong to it: a splitter
overwrites separators with NUL, which avoids moving the other bytes together. A NUL in the data itself is replaced by
`ESCAPED_NUL`, a byte that UTF-8 never uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.rows.series import FLOAT_PATTERN

Regions = TypeVar("Regions")  # an array of NumPy, or a tensor

Array: TypeAlias = npt.NDArray[Any]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Codes: TypeAlias = npt.NDArray[np.int32]
Mask: TypeAlias = npt.NDArray[np.bool_]
Uint64Array: TypeAlias = npt.NDArray[np.uint64]
Side: TypeAlias = Literal["right", "left"]

u8, u64 = np.uint8, np.uint64

# Blocks nearly fit the caches of a core. A call on one takes much longer than reacquiring the GIL, for which a thread
# waits for all other threads. One core takes as long with a quarter of the rows, and longer with twice the bytes.
BLOCK_BYTES = 1 << 20
BLOCK_SPANS = 1 << 18
BLOCK_ROWS = 1 << 14

WORD_BYTES = 8  # bytes of a span that fit in one uint64
BYTE_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(WORD_BYTES + 1)], u64)
# Bytes that valid UTF-8 never contains: two mark keys by their first byte, one replaces NUL.
LONG, EMPTY_SLOT, ESCAPED_NUL = 0xFE, 0xFC, 0xFD
MAX_SLOT_BITS = 17  # 2**17 slots of 12 bytes; larger tables leave the L2 cache and are slower
MULTIPLIERS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)  # `2 * n + 1` for multiplicative hashing, with well-mixed bits


class Spans(NamedTuple):
    """Rows cut into spans."""

    rows: Codes  # offsets of the rows in the spans: row i has the spans ``rows[i]`` to ``rows[i + 1] - 1``
    offsets: Codes  # offsets of the spans in `data`
    data: Bytes  # bytes of all spans, followed by 8 NUL bytes


class TokenCodes(NamedTuple):
    """Dictionary-encoded tokens: ``codes[rows[i]:rows[i + 1]]`` belong to row i."""

    rows: Codes
    codes: Codes
    values: pa.StringArray


# Cells of several types: the text of each cell, and for numbers also the number, as text may format it differently.
MIXED = pa.struct([("daskprep.text", pa.string()), ("daskprep.number", pa.float64())])


def unwrap_mixed_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of `MIXED` cells as text; others unchanged."""
    return pc.struct_field(column, 0) if column.type == MIXED else column


def unwrap_mixed_table(table: pa.Table) -> pa.Table:
    """Return a table with its columns of `MIXED` cells as text."""
    if MIXED not in table.schema.types:
        return table
    return pa.table([unwrap_mixed_column(column) for column in table.columns], table.column_names)


def string_buffers(column: pa.Array) -> tuple[Codes, Bytes]:
    """Return the int32 offsets, from 0, and the bytes of strings; nulls are empty."""
    if not pa.types.is_string(column.type):
        column = column.cast(pa.string())
    if len(column) == 0:
        return np.zeros(1, np.int32), np.empty(0, u8)
    _, offset_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[column.offset : column.offset + len(column) + 1]
    if column.null_count and np.diff(offsets)[null_mask(column)].any():
        return string_buffers(column.fill_null(""))
    data = np.empty(0, u8) if data_buffer is None else np.frombuffer(data_buffer, u8)
    return (offsets - offsets[0] if offsets[0] else offsets), data[offsets[0] : offsets[-1]]


def make_string_array(offsets: Array, data: Bytes) -> pa.StringArray:
    """Return a string array of n + 1 offsets into bytes."""
    offsets = np.ascontiguousarray(offsets, np.int32)
    return pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))


def make_list_array(offsets: Array, values: pa.Array, nulls: Mask | None = None) -> pa.ListArray:
    """Return a list array of n + 1 offsets into `values`; `nulls` masks lists."""
    offsets = np.ascontiguousarray(offsets, np.int32)
    if nulls is not None and nulls.any():
        return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(nulls))
    buffers = [None, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(pa.list_(values.type), len(offsets) - 1, buffers, children=[values])


def list_offsets(array: pa.Array) -> Codes:
    """Return the offsets of lists in ``array.flatten()``, from 0; nulls are empty."""
    if not array.null_count and pa.types.is_list(array.type):
        offsets: Codes = plain_values(array, np.int32, len(array) + 1)
        from_zero: Codes = offsets - offsets[0]
        return from_zero
    lengths = pc.list_value_length(array)
    return offsets_from_lengths(np.where(valid_mask(lengths), plain_values(lengths), 0))


def offsets_from_lengths(lengths: Array) -> Codes:
    """Return the n + 1 offsets of rows with these lengths."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def plain_values(array: pa.Array, dtype: Any = None, count: int | None = None) -> Array:
    """Return values, or `count` offsets of lists, as a view; undefined for nulls."""
    # `to_numpy` would reacquire the GIL eight times.
    dtype = array.type.to_pandas_dtype() if dtype is None else dtype
    buffer, count = array.buffers()[1], len(array) if count is None else count
    if buffer is None or not count:  # an empty array
        return np.zeros(count, dtype)
    return np.frombuffer(buffer, dtype, count, array.offset * np.dtype(dtype).itemsize)


def float_values(array: pa.Array) -> Array:
    """Return the floats of an array, NaN for nulls."""
    values = plain_values(array)
    return np.where(valid_mask(array), values, np.nan) if array.null_count else values


def as_arrow(values: Array) -> pa.Array:
    """Return numbers as an Arrow array without nulls, as a view."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def null_mask(array: pa.Array) -> Mask:
    """Return a mask of the nulls of an array."""
    return ~valid_mask(array) if array.null_count else np.zeros(len(array), bool)


def valid_mask(array: pa.Array) -> Mask:
    """Return a mask of the values of an array that are not null."""
    if not array.null_count:
        return np.ones(len(array), bool)
    bits = array.buffers()[0]
    if bits is None or (pa.types.is_dictionary(array.type) and array.dictionary.null_count):
        return np.array(array.is_valid(), bool)
    return _unpack_bits(bits, array.offset, len(array))


def bool_values(array: pa.Array) -> Mask:
    """Return the values of a boolean array without nulls."""
    return _unpack_bits(array.buffers()[1], array.offset, len(array)) if len(array) else np.zeros(0, bool)


def _unpack_bits(bits: pa.Buffer, offset: int, count: int) -> Mask:
    unpacked = np.unpackbits(np.frombuffer(bits, u8)[offset >> 3 : (offset + count + 7) >> 3], bitorder="little")
    return unpacked.view(bool)[offset & 7 : (offset & 7) + count]


def look_up(table: Array, index: Array) -> Array:
    """Return ``table[index]``, by blocks that stay in the CPU's cache; positions outside are clipped."""
    out = np.empty(len(index), table.dtype)
    for begin in range(0, len(index), BLOCK_SPANS):
        end = begin + BLOCK_SPANS
        np.take(table, index[begin:end], mode="clip", out=out[begin:end])
    return out


def find_non_ascii(values: pa.StringArray) -> npt.NDArray[np.intp]:
    """Return the positions of strings with NUL or beyond ASCII."""
    offsets, data = string_buffers(values)
    return np.unique(np.searchsorted(offsets, np.flatnonzero(data - u8(1) > 126), side="right") - 1)


def find_rows_with(column: pa.Array, character: str) -> npt.NDArray[np.intp]:
    """Return the ascending positions of strings with a character."""
    offsets, data = string_buffers(column)
    first, *rest = character.encode()
    index = np.flatnonzero(data == first)
    for distance, byte in enumerate(rest, 1):
        index = index[data.take(index + distance, mode="clip") == byte]
    return np.unique(np.searchsorted(offsets, index, side="right") - 1)


def split_words(column: pa.Array, *, lowercase: bool = False) -> Spans:
    r"""Cut rows into words and punctuation marks: ``\w+|[^\w\s]``, exact for ASCII.

    Bytes above 127 count as letters. A span with these bytes ends where tokens end; the caller may have to cut and to
    lower-case it.
    """

    def classify(raw: Bytes, out: Bytes, continues: Mask) -> Mask:
        word = _letter_mask(raw)
        _copy(raw, out, word if lowercase else None)
        word |= np.less(raw - u8(48), 10, out=continues)
        word |= np.equal(raw, 95, out=continues)
        word |= np.less(raw.view(np.int8), 0, out=continues)
        np.logical_and(word[1:], word[:-1], out=continues[1:])
        return _blank_spaces(raw, out)

    return _split(column, classify)


def split_spaces(column: pa.Array, *, lowercase: bool = False) -> Spans:
    """Cut rows at ASCII white space; other white space remains."""

    def classify(raw: Bytes, out: Bytes, continues: Mask) -> Mask:
        _copy(raw, out, _letter_mask(raw) if lowercase else None)
        solid = _blank_spaces(raw, out)
        continues[1:] = solid[:-1]
        return solid

    return _split(column, classify)


def split_at(column: pa.Array, separator: str) -> Spans:
    """Cut rows at an ASCII character; spans may be empty."""
    offsets, data = _copy_buffers(column)
    text = data[:-WORD_BYTES]
    index = np.flatnonzero(text == ord(separator))
    text[index] = 0
    before = np.searchsorted(index, offsets)
    edges = np.insert(index + 1, before[1:], offsets[1:])
    rows = before + np.arange(len(offsets))
    return Spans(rows.astype(np.int32), np.append(0, edges).astype(np.int32), data)


def _split(column: pa.Array, classify: Callable[[Bytes, Bytes, Mask], Mask]) -> Spans:
    """Cut rows into spans, block by block.

    ``classify(raw, out, continues)`` copies the bytes `raw` to `out`, and overwrites separators by NUL in `out`. In
    `continues`, it marks bytes that continue the previous one's span. It returns a mask of the bytes of spans.
    """
    offsets, source = string_buffers(column)
    source = _escape_nul(source)
    data = np.empty(len(source) + WORD_BYTES, u8)
    data[len(source) :] = 0
    rows, spans, total = [np.zeros(1, np.int32)], [], 0
    for begin, end in _iterate_blocks(offsets):
        low, high = int(offsets[begin]), int(offsets[end])
        edges = offsets[begin : end + 1] - low
        marks = np.zeros(high - low + 1, bool)
        starts = marks[:-1]
        inside = classify(source[low:high], data[low:high], starts)
        marks[edges] = False
        np.greater(inside, starts, out=starts)
        start_offsets = np.flatnonzero(starts).astype(np.int32)
        rows.append((np.searchsorted(start_offsets, edges[1:]) + total).astype(np.int32))
        spans.append(start_offsets + np.int32(low))
        total += len(start_offsets)
    spans.append(np.array([len(source)], np.int32))
    return Spans(np.concatenate(rows), np.concatenate(spans), data)


def _copy_buffers(column: pa.Array) -> tuple[Codes, Bytes]:
    """Return offsets and a copy of the bytes, before 8 NUL bytes."""
    offsets, data = string_buffers(column)
    return offsets, np.concatenate([_escape_nul(data), np.zeros(WORD_BYTES, u8)])


def _escape_nul(data: Bytes) -> Bytes:
    return np.where(data == 0, u8(ESCAPED_NUL), data) if len(data) and data.min() == 0 else data


def _iterate_blocks(offsets: Codes) -> Iterator[tuple[int, int]]:
    """Yield start and end of blocks of about `BLOCK_BYTES`."""
    cuts = np.searchsorted(offsets, np.arange(BLOCK_BYTES, offsets[-1], BLOCK_BYTES))
    return pairwise(np.unique(np.concatenate([[0], cuts, [len(offsets) - 1]])).tolist())


def _letter_mask(raw: Bytes) -> Mask:
    return (raw | u8(32)) - u8(97) < 26


def _copy(raw: Bytes, out: Bytes, letters: Mask | None) -> None:
    """Copy bytes; ASCII letters in `letters` become lower case."""
    if letters is None:
        out[:] = raw
    else:  # multiplied, not shifted: NumPy has no vector code for shifts of bytes
        np.multiply(letters.view(u8), u8(32), out=out)
        out |= raw


def _blank_spaces(raw: Bytes, out: Bytes) -> Mask:
    """Overwrite ASCII white space in `out` by NUL; return a mask of other bytes."""
    if len(raw) and raw.min() >= 32:
        solid: Mask = raw != 32
    else:
        solid = (raw - u8(28)) > 4
        solid &= (raw - u8(9)) > 4
    out *= solid.view(u8)
    return solid


def encode_spans(spans: Spans) -> TokenCodes:
    """Dictionary-encode spans as tokens."""
    return TokenCodes(spans.rows, *_encode_spans(spans.offsets, spans.data))


def encode_rows(column: pa.Array) -> TokenCodes:
    """Dictionary-encode rows, a token each but for nulls."""
    return TokenCodes(offsets_from_lengths(~null_mask(column)), *_encode_spans(*_copy_buffers(column.drop_null())))


def encode_characters(column: pa.Array, *, lowercase: bool = False) -> TokenCodes:
    """Dictionary-encode characters; `lowercase` is for ASCII."""
    offsets, data = string_buffers(column)
    continues = data.view(np.int8) < -64  # UTF-8's continuation bytes, 0x80 to 0xBF
    firsts = data[~continues] if continues.any() else data
    rows = offsets - np.searchsorted(np.flatnonzero(continues), offsets).astype(np.int32)
    ascii_of = np.arange(256, dtype=u8)
    _copy(ascii_of.copy(), ascii_of, _letter_mask(ascii_of) if lowercase else None)
    distinct_bytes = plain_values(as_arrow(firsts).unique())
    used = np.zeros(256, bool)
    used[ascii_of[distinct_bytes[distinct_bytes < 128]]] = True
    values = make_string_array(np.arange(used.sum() + 1), np.flatnonzero(used).astype(u8))
    codes = look_up((np.cumsum(used, dtype=np.int32) - 1).take(ascii_of), firsts)
    index = np.flatnonzero(data > 0xBF)  # lead bytes of the characters outside ASCII
    sizes = np.digitize(data.take(index), [0xC0, 0xE0, 0xF0]) + 1
    words = sliding_words(np.append(data, np.zeros(WORD_BYTES, u8)))
    non_ascii_codes, keys = _encode_keys(words[index] & BYTE_MASKS.take(sizes))
    codes[firsts > 127] = non_ascii_codes + np.int32(len(values))
    return TokenCodes(rows, codes, pa.concat_arrays([values, _words_to_strings(keys)]))


def _encode_spans(offsets: Codes, data: Bytes) -> tuple[Codes, pa.StringArray]:
    """Return the int32 code of each span, and the values by code."""
    keys, long = _make_keys(offsets, data)
    if 3 * len(long) > len(keys):
        codes, values = _encode_strings(make_string_array(offsets, data))
    else:
        keys[long] = LONG
        codes, distinct_keys = _encode_keys(keys)
        values = _words_to_strings(distinct_keys)
        if len(long):
            long_codes, long_values = _encode_strings(make_string_array(offsets, data).take(as_arrow(long)))
            # The first long value replaces the key LONG; the other long values follow the short ones.
            long_index = int(np.flatnonzero(distinct_keys == LONG)[0])
            codes[long] = np.where(long_codes == 0, np.int32(long_index), long_codes + np.int32(len(distinct_keys) - 1))
            values = pa.concat_arrays([values[:long_index], long_values[:1], values[long_index + 1 :], long_values[1:]])
    ends, text = string_buffers(values)
    return codes, make_string_array(ends, np.where(text == ESCAPED_NUL, u8(0), text))


def _make_keys(offsets: Codes, data: Bytes) -> tuple[Uint64Array, Array]:
    """Return the first 8 bytes of each span as a little-endian key, and the indices of longer spans.

    Shorter keys end in zeros. A span whose ninth byte is NUL (padding) is not longer.
    """
    words = sliding_words(data)
    keys, long = np.empty(len(offsets) - 1, u64), [np.empty(0, np.intp)]
    for begin in range(0, len(keys), BLOCK_SPANS):
        edges = offsets[begin : begin + BLOCK_SPANS + 1].astype(np.intp)
        start, size = edges[:-1], np.diff(edges)
        np.bitwise_and(words[start], BYTE_MASKS.take(size, mode="clip"), out=keys[begin : begin + len(size)])
        rest = np.flatnonzero(size > WORD_BYTES)
        long.append(rest[data.take(start.take(rest) + WORD_BYTES) != 0] + begin)
    return keys, np.concatenate(long)


def sliding_words(data: Bytes) -> Uint64Array:
    """Return a view of the 8 bytes from every address as a uint64."""
    return np.ndarray((len(data) - WORD_BYTES + 1,), "<u8", buffer=data, strides=(1,))


def _encode_strings(values: pa.StringArray) -> tuple[Codes, pa.StringArray]:
    encoded = _strip_padding(values).dictionary_encode()
    return plain_values(encoded.indices), encoded.dictionary


def _encode_keys(keys: Uint64Array, multipliers: tuple[int, ...] = MULTIPLIERS) -> tuple[Codes, Uint64Array]:
    """Return the code of each key, and the distinct keys by code.

    Each slot of a hash table that fits the CPU's cache stores one of its colliding keys, mostly a frequent one, as the
    last write wins. The few keys that lose their slot are encoded recursively with the next multiplier.
    """
    if len(keys) <= BLOCK_SPANS // 32 or not multipliers:
        encoded = as_arrow(keys).dictionary_encode()
        return plain_values(encoded.indices), plain_values(encoded.dictionary)
    bits = min(MAX_SLOT_BITS, len(keys).bit_length())
    blocks = [slice(begin, begin + BLOCK_SPANS) for begin in range(0, len(keys), BLOCK_SPANS)]
    slots = np.full(1 << bits, EMPTY_SLOT, u64)
    for block in blocks:
        slots[_slots(keys[block], multipliers[0], bits)] = keys[block]
    used = np.flatnonzero(slots != EMPTY_SLOT)
    code_of = np.zeros(len(slots), np.int32)
    code_of[used] = np.arange(len(used), dtype=np.int32)
    codes, missed = np.empty(len(keys), np.int32), []
    for block in blocks:
        index = _slots(keys[block], multipliers[0], bits)
        np.take(code_of, index, mode="clip", out=codes[block])
        missed.append(np.flatnonzero(slots.take(index, mode="clip") != keys[block]) + block.start)
    miss = np.concatenate(missed)
    rest_codes, rest = _encode_keys(keys.take(miss), multipliers[1:])
    codes[miss] = rest_codes + np.int32(len(used))
    return codes, np.concatenate([slots.take(used), rest])


def _slots(keys: Uint64Array, multiplier: int, bits: int) -> npt.NDArray[np.int64]:
    return ((keys * u64(multiplier)) >> u64(64 - bits)).view(np.int64)


def _words_to_strings(words: Uint64Array) -> pa.StringArray:
    return _strip_padding(make_string_array(np.arange(0, words.nbytes + 1, WORD_BYTES), words.view(u8)))


def _strip_padding(values: pa.StringArray) -> pa.StringArray:
    return pc.ascii_rtrim(values, characters="\0")


def merge_equal(codes: Codes, values: pa.StringArray) -> tuple[Codes, pa.StringArray]:
    """Return codes and values with equal values merged, in the order of their first occurrence."""
    encoded = values.dictionary_encode()
    if len(encoded.dictionary) == len(values):
        return codes, values
    return look_up(plain_values(encoded.indices), codes), encoded.dictionary


def drop_blank_rows(token_codes: TokenCodes) -> TokenCodes:
    """Return codes without the token "" where it is alone."""
    empty = pc.index(token_codes.values, "").as_py()
    sizes = np.diff(token_codes.rows)
    single_token_rows = np.flatnonzero(sizes == 1)
    blank = single_token_rows[token_codes.codes.take(token_codes.rows.take(single_token_rows)) == empty]
    if not len(blank):
        return token_codes
    sizes[blank] = 0
    codes = np.delete(token_codes.codes, token_codes.rows.take(blank))
    if (codes == empty).any():
        return TokenCodes(offsets_from_lengths(sizes), codes, token_codes.values)
    codes -= codes > empty
    values = pa.concat_arrays([token_codes.values[:empty], token_codes.values[empty + 1 :]])
    return TokenCodes(offsets_from_lengths(sizes), codes, values)


def pad(
    offsets: Array,
    values: Array,
    length: int,
    table: Array | None = None,
    *,
    side: Side = "right",
    fill: float = 0,
    start: int | None = None,
    stop: int | None = None,
    keeps_end: bool = False,
) -> Array:
    """Return a matrix of rows, padded with `fill` or truncated.

    Row i has ``values[offsets[i]:offsets[i + 1]]``; with a `table`, these are positions in it. A row that is too long
    keeps its first values, or with `keeps_end` its last. The ids `start` and `stop` enclose the values of each row,
    including truncated rows; None adds no id.
    """
    out = np.full((len(offsets) - 1, length), fill, values.dtype if table is None else table.dtype)
    for begin in range(0, len(out), BLOCK_ROWS):
        edges = offsets[begin : begin + BLOCK_ROWS + 1]
        row_values = values[edges[0] : edges[-1]]
        if table is not None:
            row_values = table.take(row_values, mode="clip")
        _fill_matrix(
            out[begin : begin + BLOCK_ROWS], edges, row_values, side=side, start=start, stop=stop, keeps_end=keeps_end
        )
    return out


def _fill_matrix(
    out: Array, edges: Array, values: Array, *, side: Side, start: int | None, stop: int | None, keeps_end: bool
) -> None:
    """Write rows of `values` to a filled `out`, as `pad` does."""
    length, sizes = out.shape[1], np.diff(edges)
    if not length or not len(out):
        return
    before, after = int(start is not None), int(stop is not None)
    kept_sizes = np.minimum(sizes, max(length - before - after, 0))
    index_type = np.min_scalar_type(length)  # often a byte per compared position, where int64 takes eight
    if side == "right":
        first = np.full(len(out), min(before, length), index_type)
    else:
        first = np.maximum(length - kept_sizes - after, 0).astype(index_type)
    end = first + kept_sizes.astype(index_type)
    position = np.arange(length, dtype=index_type)
    inside = position < end[:, None]
    if side == "left" or before:
        inside &= position >= first[:, None]
    out[inside] = _truncate(edges, sizes, kept_sizes, values, keeps_end=keeps_end)
    row = np.arange(len(out))
    if start is not None:
        out[row, np.maximum(first, 1) - 1] = start
    if stop is not None:
        out[row, np.minimum(end, length - 1)] = stop


def _truncate(edges: Array, sizes: Array, kept_sizes: Array, values: Array, *, keeps_end: bool) -> Array:
    """Return a row's first `kept_sizes` values, or with `keeps_end` the last."""
    cut = np.flatnonzero(sizes > kept_sizes)
    if not len(cut):
        return values
    dropped = sizes[cut] - kept_sizes[cut]
    begin = edges[cut] - edges[0] - offsets_from_lengths(dropped)[:-1] + (0 if keeps_end else kept_sizes[cut])
    is_kept = np.ones(len(values), bool)
    is_kept[np.repeat(begin, dropped) + np.arange(dropped.sum())] = False
    return values[is_kept]


def only_where(mask: pa.Array, values: pa.Array) -> pa.Array:
    """Return values where a mask is true, and nulls elsewhere."""
    # With a null scalar, pyarrow before 24 returns wrong text if the values are a slice of a longer array.
    return pc.if_else(mask, values, pa.nulls(len(values), values.type))


def parse_float_lists(column: pa.Array, separator: str | None = None) -> pa.ListArray:
    """Parse rows of numbers, by default between white space, as lists of float32.

    "nan" and an empty field between two separators become NaN. Rows with other text are null; rows without numbers are
    empty.
    """
    text = pc.utf8_trim_whitespace(column)
    lists = pc.ascii_split_whitespace(text) if separator is None else pc.split_pattern(text, separator)
    try:
        return make_list_array(list_offsets(lists), lists.flatten().cast(pa.float32()), null_mask(column))
    except pa.ArrowInvalid:  # a blank row, an empty field, white space outside ASCII, or a field that is not a number
        return _parse_irregular_lists(text, separator)


def _parse_irregular_lists(text: pa.StringArray, separator: str | None) -> pa.ListArray:
    """Parse trimmed rows as `parse_float_lists`, by distinct field: slower, but any text."""
    lists = pc.utf8_split_whitespace(text) if separator is None else pc.split_pattern(text, separator)
    offsets, encoded = list_offsets(lists), pc.utf8_trim_whitespace(lists.flatten()).dictionary_encode()
    tokens = encoded.dictionary
    numeric = pc.match_substring_regex(tokens, f"^{FLOAT_PATTERN}$")
    numbers = pc.if_else(numeric, tokens, "nan").cast(pa.float32()).take(encoded.indices)
    is_invalid = pc.invert(pc.or_(numeric, pc.equal(tokens, ""))).take(encoded.indices)
    unreadable = np.diff(offsets_from_lengths(is_invalid).take(offsets)) > 0
    numbers = make_list_array(offsets, numbers, unreadable | null_mask(text))
    return pc.if_else(pc.equal(pc.fill_null(text, " "), ""), pa.scalar([], numbers.type), numbers)


def keep_inside(regions: Regions, height: int, width: int) -> Regions:
    """Cut boxes (..., 4) to an image in place.

    Boxes without area, and keypoints (..., 2) outside, become NaN. `regions` is an array or a tensor of pixels.
    """
    values: Any = regions
    if values.shape[-1] == 4:
        values[..., 0::2] = values[..., 0::2].clip(0, width)
        values[..., 1::2] = values[..., 1::2].clip(0, height)
        is_inside = (values[..., 2] > values[..., 0]) & (values[..., 3] > values[..., 1])
    else:
        x, y = values[..., 0], values[..., 1]
        is_inside = (x >= 0) & (x <= width) & (y >= 0) & (y <= height)
    values[~is_inside] = np.nan
    return regions
