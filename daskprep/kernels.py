"""Vector arithmetic on Arrow's bytes: cut strings into tokens, number the distinct ones, pad, read floats.

Every kernel is made of whole-array NumPy or Arrow calls, which release the GIL. Bytes are worked on block by
block, so that what one call leaves the next one finds in the CPU's cache.

A *piece* is a stretch of bytes between two offsets. Trailing NUL bytes are padding and do not belong to it: a
splitter overwrites separators with NUL and need not move the other bytes together. A NUL in the data itself
is kept as `ESCAPED_NUL`, a byte that UTF-8 never uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.serving.series import FLOAT_PATTERN

Array: TypeAlias = npt.NDArray[Any]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Codes: TypeAlias = npt.NDArray[np.int32]
Mask: TypeAlias = npt.NDArray[np.bool_]
Uint64Array: TypeAlias = npt.NDArray[np.uint64]
Side: TypeAlias = Literal["right", "left"]

u8, u64 = np.uint8, np.uint64

# Blocks that stay in the caches of a core, and keep a call busy for much longer than it takes to get the GIL back: with
# many threads, who waits for it waits for all others. Blocks of a quarter were no faster with two threads.
BLOCK_BYTES = 1 << 20
BLOCK_SPANS = 1 << 18
BLOCK_ROWS = 1 << 12

WORD_BYTES = 8  # bytes of a piece that one uint64 holds
BYTE_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(WORD_BYTES + 1)], u64)
# Bytes that valid UTF-8 never contains: two that mark keys by their first byte, one that stands for NUL.
LONG, EMPTY_SLOT, ESCAPED_NUL = 0xFE, 0xFC, 0xFD
MAX_SLOT_BITS = 17  # 2**17 slots of 12 bytes; larger tables leave the L2 cache and are slower
MULTIPLIERS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)  # odd, their bits well mixed


class Spans(NamedTuple):
    """Rows cut into pieces: `rows` are offsets into the pieces, `offsets` those of the pieces into `data`."""

    rows: Codes
    offsets: Codes
    data: Bytes  # 8 NUL bytes follow the last piece


class TokenCodes(NamedTuple):
    """Rows of tokens as positions in distinct values: `codes[rows[i]:rows[i + 1]]` belong to row i."""

    rows: Codes
    codes: Codes
    values: pa.StringArray


# Cells of several kinds: the text of each, and those that are numbers also as such, however text writes numbers.
MIXED = pa.struct([("daskprep.text", pa.string()), ("daskprep.number", pa.float64())])


def unwrap_mixed_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column with cells of several kinds as text."""
    return pc.struct_field(column, 0) if column.type == MIXED else column


def unwrap_mixed_table(table: pa.Table) -> pa.Table:
    """Return a table with cells of several kinds as text."""
    if MIXED not in table.schema.types:
        return table
    return pa.table([unwrap_mixed_column(column) for column in table.columns], table.column_names)


def string_buffers(column: pa.Array) -> tuple[Codes, Bytes]:
    """Return the offsets (n + 1, from 0) and bytes of a string array; a null has no bytes."""
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
    """Return a string array over NumPy's memory; no byte is copied."""
    offsets = np.ascontiguousarray(offsets, np.int32)
    return pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))


def make_list_array(offsets: Array, values: pa.Array, nulls: Mask | None = None) -> pa.ListArray:
    """Return a list array; rows marked in `nulls` are null (and should have no values)."""
    mask = pa.array(nulls) if nulls is not None and nulls.any() else None
    return pa.ListArray.from_arrays(pa.array(np.asarray(offsets, np.int32)), values, mask=mask)


def list_offsets(array: pa.Array) -> Codes:
    """Return the offsets of the rows in `array.flatten()`: they start at 0, and a null row is empty."""
    return offsets_from_lengths(pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False))


def offsets_from_lengths(lengths: Array) -> Codes:
    """Return the offsets (n + 1, from 0) of rows with these lengths."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def null_mask(array: pa.Array) -> Mask:
    """Return where an array is null."""
    return np.array(array.is_null(), bool)


def look_up(table: Array, index: Array) -> Array:
    """Return `table[index]`, by blocks: the int64 copy that NumPy makes of the index stays in the cache."""
    out = np.empty(len(index), table.dtype)
    for begin in range(0, len(index), BLOCK_SPANS):
        end = begin + BLOCK_SPANS
        np.take(table, index[begin:end], mode="clip", out=out[begin:end])
    return out


def find_non_ascii(values: pa.StringArray) -> npt.NDArray[np.intp]:
    """Return the positions of the strings with a character that is not ASCII, or is NUL."""
    offsets, data = string_buffers(values)
    return np.unique(np.searchsorted(offsets, np.flatnonzero(data - u8(1) > 126), side="right") - 1)


def find_rows_with(column: pa.Array, character: str) -> npt.NDArray[np.intp]:
    """Return the rows in which a character occurs."""
    offsets, data = string_buffers(column)
    first, *rest = character.encode()
    at = np.flatnonzero(data == first)
    for ahead, byte in enumerate(rest, 1):
        at = at[data.take(at + ahead, mode="clip") == byte]
    return np.unique(np.searchsorted(offsets, at, side="right") - 1)


def split_words(column: pa.Array, *, lowercase: bool = False) -> Spans:
    r"""Cut every row into words and single punctuation marks: ``\w+|[^\w\s]``, exact for ASCII.

    Bytes above 127 count as letters: a piece with such bytes may have to be cut further and lower-cased by
    somebody else, but it ends where tokens end.
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
    """Cut every row at ASCII white space; a piece may hold other white space, but ends where tokens end."""

    def classify(raw: Bytes, out: Bytes, continues: Mask) -> Mask:
        _copy(raw, out, _letter_mask(raw) if lowercase else None)
        solid = _blank_spaces(raw, out)
        continues[1:] = solid[:-1]
        return solid

    return _split(column, classify)


def split_at(column: pa.Array, separator: str) -> Spans:
    """Cut every row at an ASCII character: n separators give n + 1 pieces, some of them perhaps empty."""
    offsets, data = _copy_buffers(column)
    text = data[:-WORD_BYTES]
    at = np.flatnonzero(text == ord(separator))
    text[at] = 0
    before = np.searchsorted(at, offsets)
    edges = np.insert(at + 1, before[1:], offsets[1:])
    rows = before + np.arange(len(offsets))
    return Spans(rows.astype(np.int32), np.append(0, edges).astype(np.int32), data)


def _split(column: pa.Array, classify: Callable[[Bytes, Bytes, Mask], Mask]) -> Spans:
    """Cut rows where `classify` says, block by block.

    It gets the bytes, where to copy them to, and where to mark those that go on with the piece of the byte
    before. It returns which bytes belong to a piece at all; the others it has overwritten by NUL in the copy.
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
    """Return offsets and a copy of the bytes that may be written to, followed by 8 NUL bytes."""
    offsets, data = string_buffers(column)
    return offsets, np.concatenate([_escape_nul(data), np.zeros(WORD_BYTES, u8)])


def _escape_nul(data: Bytes) -> Bytes:
    return np.where(data == 0, u8(ESCAPED_NUL), data) if len(data) and data.min() == 0 else data


def _iterate_blocks(offsets: Codes) -> Iterator[tuple[int, int]]:
    """Yield runs of rows that hold about `BLOCK_BYTES` together."""
    cuts = np.searchsorted(offsets, np.arange(BLOCK_BYTES, offsets[-1], BLOCK_BYTES))
    return pairwise(np.unique(np.concatenate([[0], cuts, [len(offsets) - 1]])).tolist())


def _letter_mask(raw: Bytes) -> Mask:
    return (raw | u8(32)) - u8(97) < 26


def _copy(raw: Bytes, out: Bytes, letters: Mask | None) -> None:
    """Copy bytes; ASCII letters, if given, as small ones."""
    if letters is None:
        out[:] = raw
    else:  # multiplied, not shifted: NumPy has no vector code for shifts of bytes
        np.multiply(letters.view(u8), u8(32), out=out)
        out |= raw


def _blank_spaces(raw: Bytes, out: Bytes) -> Mask:
    """Overwrite ASCII white space, as of `str.isspace`, by NUL in `out`; return where there is none."""
    if len(raw) and raw.min() >= 32:
        solid: Mask = raw != 32
    else:
        solid = (raw - u8(28)) > 4
        solid &= (raw - u8(9)) > 4
    out *= solid.view(u8)
    return solid


def encode_spans(spans: Spans) -> TokenCodes:
    """Number the distinct pieces."""
    return TokenCodes(spans.rows, *_encode_spans(spans.offsets, spans.data))


def encode_rows(column: pa.Array) -> TokenCodes:
    """Number the distinct rows: a row is one token, unless it is null."""
    return TokenCodes(offsets_from_lengths(~null_mask(column)), *_encode_spans(*_copy_buffers(column.drop_null())))


def encode_characters(column: pa.Array, *, lowercase: bool = False) -> TokenCodes:
    """Number the distinct characters (code points); `lowercase` is for ASCII only."""
    offsets, data = string_buffers(column)
    continues = data.view(np.int8) < -64  # UTF-8's continuation bytes, 0x80 to 0xBF
    firsts = data[~continues] if continues.any() else data
    rows = offsets - np.searchsorted(np.flatnonzero(continues), offsets).astype(np.int32)
    ascii_of = np.arange(256, dtype=u8)
    _copy(ascii_of.copy(), ascii_of, _letter_mask(ascii_of) if lowercase else None)
    distinct_bytes = pa.array(firsts).unique().to_numpy()
    used = np.zeros(256, bool)
    used[ascii_of[distinct_bytes[distinct_bytes < 128]]] = True
    values = make_string_array(np.arange(used.sum() + 1), np.flatnonzero(used).astype(u8))
    codes = look_up((np.cumsum(used, dtype=np.int32) - 1).take(ascii_of), firsts)
    at = np.flatnonzero(data > 0xBF)
    sizes = np.digitize(data.take(at), [0xC0, 0xE0, 0xF0]) + 1
    non_ascii_codes, keys = _encode_keys(
        sliding_words(np.append(data, np.zeros(WORD_BYTES, u8)))[at] & BYTE_MASKS.take(sizes)
    )
    codes[firsts > 127] = non_ascii_codes + np.int32(len(values))
    return TokenCodes(rows, codes, pa.concat_arrays([values, _words_to_strings(keys)]))


def _encode_spans(offsets: Codes, data: Bytes) -> tuple[Codes, pa.StringArray]:
    """Number the distinct pieces: those of at most 8 bytes by the word that they are, longer ones as strings."""
    keys, long = _make_keys(offsets, data)
    if 3 * len(long) > len(keys):
        codes, values = _encode_strings(make_string_array(offsets, data))
    else:
        keys[long] = LONG
        codes, distinct_keys = _encode_keys(keys)
        values = _words_to_strings(distinct_keys)
        if len(long):
            long_codes, long_values = _encode_strings(make_string_array(offsets, data).take(pa.array(long)))
            long_index = int(
                np.flatnonzero(distinct_keys == LONG)[0]
            )  # of the first long piece; the others follow the short ones
            codes[long] = np.where(long_codes == 0, np.int32(long_index), long_codes + np.int32(len(distinct_keys) - 1))
            values = pa.concat_arrays([values[:long_index], long_values[:1], values[long_index + 1 :], long_values[1:]])
    ends, text = string_buffers(values)
    return codes, make_string_array(ends, np.where(text == ESCAPED_NUL, u8(0), text))


def _make_keys(offsets: Codes, data: Bytes) -> tuple[Uint64Array, Array]:
    """Return the first 8 bytes of each piece, and which pieces have more."""
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
    """Return a view of 8 bytes from any address: one gather reads the beginnings of all pieces."""
    return np.ndarray((len(data) - WORD_BYTES + 1,), "<u8", buffer=data, strides=(1,))


def _encode_strings(values: pa.StringArray) -> tuple[Codes, pa.StringArray]:
    encoded = _strip_padding(values).dictionary_encode()
    return encoded.indices.to_numpy(), encoded.dictionary


def _encode_keys(keys: Uint64Array, multipliers: tuple[int, ...] = MULTIPLIERS) -> tuple[Codes, Uint64Array]:
    """Number the distinct keys: codes, and keys by code.

    Each slot of a table that fits the cache keeps one of the keys that fall on it, mostly a frequent one, as
    the last write wins. Keys that find another in their slot are few: they go on to the next multiplier.
    """
    if len(keys) <= BLOCK_SPANS // 32 or not multipliers:
        encoded = pa.array(keys).dictionary_encode()
        return np.array(encoded.indices), encoded.dictionary.to_numpy()
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
        at = _slots(keys[block], multipliers[0], bits)
        np.take(code_of, at, mode="clip", out=codes[block])
        missed.append(np.flatnonzero(slots.take(at, mode="clip") != keys[block]) + block.start)
    miss = np.concatenate(missed)
    rest_codes, rest = _encode_keys(keys.take(miss), multipliers[1:])
    codes[miss] = rest_codes + np.int32(len(used))
    return codes, np.concatenate([slots.take(used), rest])


def _slots(keys: Uint64Array, multiplier: int, bits: int) -> npt.NDArray[np.int64]:
    return ((keys * u64(multiplier)) >> u64(64 - bits)).view(np.int64)


def _words_to_strings(words: Uint64Array) -> pa.StringArray:
    """Return each word as a string."""
    return _strip_padding(make_string_array(np.arange(0, words.nbytes + 1, WORD_BYTES), words.view(u8)))


def _strip_padding(values: pa.StringArray) -> pa.StringArray:
    return pc.ascii_rtrim(values, characters="\0")


def merge_equal(codes: Codes, values: pa.StringArray) -> tuple[Codes, pa.StringArray]:
    """Give values that have become equal one code."""
    encoded = values.dictionary_encode()
    if len(encoded.dictionary) == len(values):
        return codes, values
    return look_up(encoded.indices.to_numpy(), codes), encoded.dictionary


def drop_blank_rows(token_codes: TokenCodes) -> TokenCodes:
    """Take the token away from rows whose only token is empty."""
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
    """Lay rows of values out in a matrix (rows, length), or what codes stand for in `table`.

    Of a row that is too long the head is kept, or the tail, on whichever side the padding is. The ids `start` and
    `stop`, if given, go before and after the tokens of each row; a row that is cut still has both.
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
    """Write rows of values into a matrix that holds the padding already."""
    length, sizes = out.shape[1], np.diff(edges)
    if not length or not len(out):
        return
    before, after = int(start is not None), int(stop is not None)
    kept_sizes = np.minimum(sizes, max(length - before - after, 0))
    index_type = np.min_scalar_type(length)  # a byte to compare for each place, where int64 would take eight
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
    """Return the first `kept_sizes` of the `sizes` values of each row, or the last."""
    cut = np.flatnonzero(sizes > kept_sizes)
    if not len(cut):
        return values
    dropped = sizes[cut] - kept_sizes[cut]
    begin = edges[cut] - edges[0] - offsets_from_lengths(dropped)[:-1] + (0 if keeps_end else kept_sizes[cut])
    is_kept = np.ones(len(values), bool)
    is_kept[np.repeat(begin, dropped) + np.arange(dropped.sum())] = False
    return values[is_kept]


def only_where(mask: pa.Array, values: pa.Array) -> pa.Array:
    """Return values where a mask is true, and nulls elsewhere.

    Given a null instead of nulls, pyarrow before 24 returns wrong text if the values are a slice of a longer array.
    """
    return pc.if_else(mask, values, pa.nulls(len(values), values.type))


def parse_float_lists(column: pa.Array, separator: str | None = None) -> pa.ListArray:
    """Read rows of numbers, separated by white space unless told, as lists of float32.

    "nan" is read as NaN, and so is an empty place between two separators. A row with anything else that is no
    number is null; a row without numbers is an empty list.
    """
    text = pc.utf8_trim_whitespace(column)
    lists = pc.ascii_split_whitespace(text) if separator is None else pc.split_pattern(text, separator)
    try:
        return make_list_array(list_offsets(lists), lists.flatten().cast(pa.float32()), null_mask(column))
    except pa.ArrowInvalid:  # a blank row, an empty place, other white space, or no number
        return _parse_irregular_lists(text, separator)


def _parse_irregular_lists(text: pa.StringArray, separator: str | None) -> pa.ListArray:
    lists = pc.utf8_split_whitespace(text) if separator is None else pc.split_pattern(text, separator)
    offsets, encoded = list_offsets(lists), pc.utf8_trim_whitespace(lists.flatten()).dictionary_encode()
    tokens = encoded.dictionary
    numeric = pc.match_substring_regex(tokens, f"^{FLOAT_PATTERN}$")
    numbers = pc.if_else(numeric, tokens, "nan").cast(pa.float32()).take(encoded.indices)
    is_invalid = pc.invert(pc.or_(numeric, pc.equal(tokens, ""))).take(encoded.indices)
    unreadable = np.diff(offsets_from_lengths(is_invalid).take(offsets)) > 0
    numbers = make_list_array(offsets, numbers, unreadable | null_mask(text))
    return pc.if_else(pc.equal(pc.fill_null(text, " "), ""), pa.scalar([], numbers.type), numbers)
