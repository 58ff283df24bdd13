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

from daskprep.serving.series import FLOAT

Array: TypeAlias = npt.NDArray[Any]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Codes: TypeAlias = npt.NDArray[np.int32]
Mask: TypeAlias = npt.NDArray[np.bool_]
Words: TypeAlias = npt.NDArray[np.uint64]
Side: TypeAlias = Literal["right", "left"]

u8, u64 = np.uint8, np.uint64

# Blocks that stay in the caches of a core, and keep a call busy for much longer than it takes to get the GIL back: with
# many threads, who waits for it waits for all others. Blocks of a quarter were no faster with two threads.
BLOCK_BYTES = 1 << 20
BLOCK_PIECES = 1 << 18
BLOCK_ROWS = 1 << 12

WORD = 8  # bytes of a piece that one uint64 holds
KEEP_BYTES = np.array([(1 << (8 * n)) - 1 for n in range(WORD + 1)], u64)
# Bytes that valid UTF-8 never contains: two that mark keys by their first byte, one that stands for NUL.
LONG, EMPTY_SLOT, ESCAPED_NUL = 0xFE, 0xFC, 0xFD
MAX_SLOT_BITS = 17  # 2**17 slots of 12 bytes; larger tables leave the L2 cache and are slower
MULTIPLIERS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)  # odd, their bits well mixed


class Pieces(NamedTuple):
    """Rows cut into pieces: `rows` are offsets into the pieces, `offsets` those of the pieces into `data`."""

    rows: Codes
    offsets: Codes
    data: Bytes  # 8 NUL bytes follow the last piece


class Coded(NamedTuple):
    """Rows of tokens as positions in distinct values: `codes[rows[i]:rows[i + 1]]` belong to row i."""

    rows: Codes
    codes: Codes
    values: pa.StringArray


# Cells of several kinds: the text of each, and those that are numbers also as such, however text writes numbers.
MIXED = pa.struct([("daskprep.text", pa.string()), ("daskprep.number", pa.float64())])


def plain_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column with cells of several kinds as text."""
    return pc.struct_field(column, 0) if column.type == MIXED else column


def plain_table(table: pa.Table) -> pa.Table:
    """Return a table with cells of several kinds as text."""
    if MIXED not in table.schema.types:
        return table
    return pa.table([plain_column(column) for column in table.columns], table.column_names)


def string_views(column: pa.Array) -> tuple[Codes, Bytes]:
    """Return the offsets (n + 1, from 0) and bytes of a string array; a null has no bytes."""
    if not pa.types.is_string(column.type):
        column = column.cast(pa.string())
    if len(column) == 0:
        return np.zeros(1, np.int32), np.empty(0, u8)
    _, offset_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[column.offset : column.offset + len(column) + 1]
    if column.null_count and np.diff(offsets)[null_mask(column)].any():
        return string_views(column.fill_null(""))
    data = np.empty(0, u8) if data_buffer is None else np.frombuffer(data_buffer, u8)
    return (offsets - offsets[0] if offsets[0] else offsets), data[offsets[0] : offsets[-1]]


def strings(offsets: Array, data: Bytes) -> pa.StringArray:
    """Return a string array over NumPy's memory; no byte is copied."""
    offsets = np.ascontiguousarray(offsets, np.int32)
    return pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))


def list_of(offsets: Array, values: pa.Array, nulls: Mask | None = None) -> pa.ListArray:
    """Return a list array; rows marked in `nulls` are null (and should have no values)."""
    mask = pa.array(nulls) if nulls is not None and nulls.any() else None
    return pa.ListArray.from_arrays(pa.array(np.asarray(offsets, np.int32)), values, mask=mask)


def list_offsets(array: pa.Array) -> Codes:
    """Return the offsets of the rows in `array.flatten()`: they start at 0, and a null row is empty."""
    return offsets_of(pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False))


def offsets_of(lengths: Array) -> Codes:
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
    for begin in range(0, len(index), BLOCK_PIECES):
        end = begin + BLOCK_PIECES
        np.take(table, index[begin:end], mode="clip", out=out[begin:end])
    return out


def non_ascii(values: pa.StringArray) -> npt.NDArray[np.intp]:
    """Return the positions of the strings with a character that is not ASCII, or is NUL."""
    offsets, data = string_views(values)
    return np.unique(np.searchsorted(offsets, np.flatnonzero(data - u8(1) > 126), side="right") - 1)


def rows_with(column: pa.Array, character: str) -> npt.NDArray[np.intp]:
    """Return the rows in which a character occurs."""
    offsets, data = string_views(column)
    first, *rest = character.encode()
    at = np.flatnonzero(data == first)
    for ahead, byte in enumerate(rest, 1):
        at = at[data.take(at + ahead, mode="clip") == byte]
    return np.unique(np.searchsorted(offsets, at, side="right") - 1)


def split_words(column: pa.Array, *, lowercase: bool = False) -> Pieces:
    r"""Cut every row into words and single punctuation marks: ``\w+|[^\w\s]``, exact for ASCII.

    Bytes above 127 count as letters: a piece with such bytes may have to be cut further and lower-cased by
    somebody else, but it ends where tokens end.
    """

    def classify(raw: Bytes, out: Bytes, goes_on: Mask) -> Mask:
        word = _letters(raw)
        _copy(raw, out, word if lowercase else None)
        word |= np.less(raw - u8(48), 10, out=goes_on)
        word |= np.equal(raw, 95, out=goes_on)
        word |= np.less(raw.view(np.int8), 0, out=goes_on)
        np.logical_and(word[1:], word[:-1], out=goes_on[1:])
        return _blank_spaces(raw, out)

    return _split(column, classify)


def split_spaces(column: pa.Array, *, lowercase: bool = False) -> Pieces:
    """Cut every row at ASCII white space; a piece may hold other white space, but ends where tokens end."""

    def classify(raw: Bytes, out: Bytes, goes_on: Mask) -> Mask:
        _copy(raw, out, _letters(raw) if lowercase else None)
        solid = _blank_spaces(raw, out)
        goes_on[1:] = solid[:-1]
        return solid

    return _split(column, classify)


def split_at(column: pa.Array, separator: str) -> Pieces:
    """Cut every row at an ASCII character: n separators give n + 1 pieces, some of them perhaps empty."""
    offsets, data = _copied(column)
    text = data[:-WORD]
    at = np.flatnonzero(text == ord(separator))
    text[at] = 0
    before = np.searchsorted(at, offsets)
    edges = np.insert(at + 1, before[1:], offsets[1:])
    rows = before + np.arange(len(offsets))
    return Pieces(rows.astype(np.int32), np.append(0, edges).astype(np.int32), data)


def _split(column: pa.Array, classify: Callable[[Bytes, Bytes, Mask], Mask]) -> Pieces:
    """Cut rows where `classify` says, block by block.

    It gets the bytes, where to copy them to, and where to mark those that go on with the piece of the byte
    before. It returns which bytes belong to a piece at all; the others it has overwritten by NUL in the copy.
    """
    offsets, source = string_views(column)
    source = _escape_nul(source)
    data = np.empty(len(source) + WORD, u8)
    data[len(source) :] = 0
    rows, pieces, total = [np.zeros(1, np.int32)], [], 0
    for begin, end in _blocks(offsets):
        low, high = int(offsets[begin]), int(offsets[end])
        edges = offsets[begin : end + 1] - low
        marks = np.zeros(high - low + 1, bool)
        starts = marks[:-1]
        inside = classify(source[low:high], data[low:high], starts)
        marks[edges] = False
        np.greater(inside, starts, out=starts)
        found = np.flatnonzero(starts).astype(np.int32)
        rows.append((np.searchsorted(found, edges[1:]) + total).astype(np.int32))
        pieces.append(found + np.int32(low))
        total += len(found)
    pieces.append(np.array([len(source)], np.int32))
    return Pieces(np.concatenate(rows), np.concatenate(pieces), data)


def _copied(column: pa.Array) -> tuple[Codes, Bytes]:
    """Return offsets and a copy of the bytes that may be written to, followed by 8 NUL bytes."""
    offsets, data = string_views(column)
    return offsets, np.concatenate([_escape_nul(data), np.zeros(WORD, u8)])


def _escape_nul(data: Bytes) -> Bytes:
    return np.where(data == 0, u8(ESCAPED_NUL), data) if len(data) and data.min() == 0 else data


def _blocks(offsets: Codes) -> Iterator[tuple[int, int]]:
    """Yield runs of rows that hold about `BLOCK_BYTES` together."""
    cuts = np.searchsorted(offsets, np.arange(BLOCK_BYTES, offsets[-1], BLOCK_BYTES))
    return pairwise(np.unique(np.concatenate([[0], cuts, [len(offsets) - 1]])).tolist())


def _letters(raw: Bytes) -> Mask:
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


def code_pieces(pieces: Pieces) -> Coded:
    """Number the distinct pieces."""
    return Coded(pieces.rows, *_code(pieces.offsets, pieces.data))


def code_rows(column: pa.Array) -> Coded:
    """Number the distinct rows: a row is one token, unless it is null."""
    return Coded(offsets_of(~null_mask(column)), *_code(*_copied(column.drop_null())))


def code_characters(column: pa.Array, *, lowercase: bool = False) -> Coded:
    """Number the distinct characters (code points); `lowercase` is for ASCII only."""
    offsets, data = string_views(column)
    goes_on = data.view(np.int8) < -64  # UTF-8's continuation bytes, 0x80 to 0xBF
    firsts = data[~goes_on] if goes_on.any() else data
    rows = offsets - np.searchsorted(np.flatnonzero(goes_on), offsets).astype(np.int32)
    ascii_of = np.arange(256, dtype=u8)
    _copy(ascii_of.copy(), ascii_of, _letters(ascii_of) if lowercase else None)
    found = pa.array(firsts).unique().to_numpy()
    used = np.zeros(256, bool)
    used[ascii_of[found[found < 128]]] = True
    values = strings(np.arange(used.sum() + 1), np.flatnonzero(used).astype(u8))
    codes = look_up((np.cumsum(used, dtype=np.int32) - 1).take(ascii_of), firsts)
    at = np.flatnonzero(data > 0xBF)
    sizes = np.digitize(data.take(at), [0xC0, 0xE0, 0xF0]) + 1
    odd, keys = _number(words_at(np.append(data, np.zeros(WORD, u8)))[at] & KEEP_BYTES.take(sizes))
    codes[firsts > 127] = odd + np.int32(len(values))
    return Coded(rows, codes, pa.concat_arrays([values, _strings_of(keys)]))


def _code(offsets: Codes, data: Bytes) -> tuple[Codes, pa.StringArray]:
    """Number the distinct pieces: those of at most 8 bytes by the word that they are, longer ones as strings."""
    keys, long = _keys(offsets, data)
    if 3 * len(long) > len(keys):
        codes, values = _code_strings(strings(offsets, data))
    else:
        keys[long] = LONG
        codes, found = _number(keys)
        values = _strings_of(found)
        if len(long):
            numbers, texts = _code_strings(strings(offsets, data).take(pa.array(long)))
            place = int(np.flatnonzero(found == LONG)[0])  # of the first long piece; the others follow the short ones
            codes[long] = np.where(numbers == 0, np.int32(place), numbers + np.int32(len(found) - 1))
            values = pa.concat_arrays([values[:place], texts[:1], values[place + 1 :], texts[1:]])
    ends, text = string_views(values)
    return codes, strings(ends, np.where(text == ESCAPED_NUL, u8(0), text))


def _keys(offsets: Codes, data: Bytes) -> tuple[Words, Array]:
    """Return the first 8 bytes of each piece, and which pieces have more."""
    words = words_at(data)
    keys, long = np.empty(len(offsets) - 1, u64), [np.empty(0, np.intp)]
    for begin in range(0, len(keys), BLOCK_PIECES):
        edges = offsets[begin : begin + BLOCK_PIECES + 1].astype(np.intp)
        start, size = edges[:-1], np.diff(edges)
        np.bitwise_and(words[start], KEEP_BYTES.take(size, mode="clip"), out=keys[begin : begin + len(size)])
        rest = np.flatnonzero(size > WORD)
        long.append(rest[data.take(start.take(rest) + WORD) != 0] + begin)
    return keys, np.concatenate(long)


def words_at(data: Bytes) -> Words:
    """Return a view of 8 bytes from any address: one gather reads the beginnings of all pieces."""
    return np.ndarray((len(data) - WORD + 1,), "<u8", buffer=data, strides=(1,))


def _code_strings(values: pa.StringArray) -> tuple[Codes, pa.StringArray]:
    encoded = _unpadded(values).dictionary_encode()
    return encoded.indices.to_numpy(), encoded.dictionary


def _number(keys: Words, multipliers: tuple[int, ...] = MULTIPLIERS) -> tuple[Codes, Words]:
    """Number the distinct keys: codes, and keys by code.

    Each slot of a table that fits the cache keeps one of the keys that fall on it, mostly a frequent one, as
    the last write wins. Keys that find another in their slot are few: they go on to the next multiplier.
    """
    if len(keys) <= BLOCK_PIECES // 32 or not multipliers:
        encoded = pa.array(keys).dictionary_encode()
        return np.array(encoded.indices), encoded.dictionary.to_numpy()
    bits = min(MAX_SLOT_BITS, len(keys).bit_length())
    blocks = [slice(begin, begin + BLOCK_PIECES) for begin in range(0, len(keys), BLOCK_PIECES)]
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
    rest_codes, rest = _number(keys.take(miss), multipliers[1:])
    codes[miss] = rest_codes + np.int32(len(used))
    return codes, np.concatenate([slots.take(used), rest])


def _slots(keys: Words, multiplier: int, bits: int) -> npt.NDArray[np.int64]:
    return ((keys * u64(multiplier)) >> u64(64 - bits)).view(np.int64)


def _strings_of(words: Words) -> pa.StringArray:
    """Return each word as a string."""
    return _unpadded(strings(np.arange(0, words.nbytes + 1, WORD), words.view(u8)))


def _unpadded(values: pa.StringArray) -> pa.StringArray:
    return pc.ascii_rtrim(values, characters="\0")


def merge_equal(codes: Codes, values: pa.StringArray) -> tuple[Codes, pa.StringArray]:
    """Give values that have become equal one code."""
    encoded = values.dictionary_encode()
    if len(encoded.dictionary) == len(values):
        return codes, values
    return look_up(encoded.indices.to_numpy(), codes), encoded.dictionary


def drop_blank_rows(coded: Coded) -> Coded:
    """Take the token away from rows whose only token is empty."""
    empty = pc.index(coded.values, "").as_py()
    sizes = np.diff(coded.rows)
    one = np.flatnonzero(sizes == 1)
    blank = one[coded.codes.take(coded.rows.take(one)) == empty]
    if not len(blank):
        return coded
    sizes[blank] = 0
    codes = np.delete(coded.codes, coded.rows.take(blank))
    if (codes == empty).any():
        return Coded(offsets_of(sizes), codes, coded.values)
    codes -= codes > empty
    values = pa.concat_arrays([coded.values[:empty], coded.values[empty + 1 :]])
    return Coded(offsets_of(sizes), codes, values)


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
        _lay(out[begin : begin + BLOCK_ROWS], edges, row_values, side=side, start=start, stop=stop, keeps_end=keeps_end)
    return out


def _lay(
    out: Array, edges: Array, values: Array, *, side: Side, start: int | None, stop: int | None, keeps_end: bool
) -> None:
    """Write rows of values into a matrix that holds the padding already."""
    length, sizes = out.shape[1], np.diff(edges)
    if not length or not len(out):
        return
    before, after = int(start is not None), int(stop is not None)
    kept = np.minimum(sizes, max(length - before - after, 0))
    small = np.min_scalar_type(length)  # a byte to compare for each place, where int64 would take eight
    if side == "right":
        first = np.full(len(out), min(before, length), small)
    else:
        first = np.maximum(length - kept - after, 0).astype(small)
    end = first + kept.astype(small)
    place = np.arange(length, dtype=small)
    inside = place < end[:, None]
    if side == "left" or before:
        inside &= place >= first[:, None]
    out[inside] = _cut(edges, sizes, kept, values, keeps_end=keeps_end)
    row = np.arange(len(out))
    if start is not None:
        out[row, np.maximum(first, 1) - 1] = start
    if stop is not None:
        out[row, np.minimum(end, length - 1)] = stop


def _cut(edges: Array, sizes: Array, kept: Array, values: Array, *, keeps_end: bool) -> Array:
    """Return the first `kept` of the `sizes` values of each row, or the last."""
    cut = np.flatnonzero(sizes > kept)
    if not len(cut):
        return values
    dropped = sizes[cut] - kept[cut]
    begin = edges[cut] - edges[0] - offsets_of(dropped)[:-1] + (0 if keeps_end else kept[cut])
    stays = np.ones(len(values), bool)
    stays[np.repeat(begin, dropped) + np.arange(dropped.sum())] = False
    return values[stays]


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
        return list_of(list_offsets(lists), lists.flatten().cast(pa.float32()), null_mask(column))
    except pa.ArrowInvalid:  # a blank row, an empty place, other white space, or no number
        return _parse_odd_lists(text, separator)


def _parse_odd_lists(text: pa.StringArray, separator: str | None) -> pa.ListArray:
    lists = pc.utf8_split_whitespace(text) if separator is None else pc.split_pattern(text, separator)
    offsets, encoded = list_offsets(lists), pc.utf8_trim_whitespace(lists.flatten()).dictionary_encode()
    tokens = encoded.dictionary
    numeric = pc.match_substring_regex(tokens, f"^{FLOAT}$")
    numbers = pc.if_else(numeric, tokens, "nan").cast(pa.float32()).take(encoded.indices)
    junk = pc.invert(pc.or_(numeric, pc.equal(tokens, ""))).take(encoded.indices)
    unreadable = np.diff(offsets_of(junk).take(offsets)) > 0
    numbers = list_of(offsets, numbers, unreadable | null_mask(text))
    return pc.if_else(pc.equal(pc.fill_null(text, " "), ""), pa.scalar([], numbers.type), numbers)
