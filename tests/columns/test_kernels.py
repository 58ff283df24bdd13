from __future__ import annotations

import math
import re
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskprep.columns import kernels
from daskprep.columns.kernels import TokenCodes
from daskprep.rows.base import smallest_uint
from tests.sizes import Sizes, sized

ROWS = st.lists(st.none() | st.text(max_size=40), max_size=20)
# Few distinct tokens of every length with its own code path, so that tokens repeat.
TOKENS = st.sampled_from(
    ["a", "b", "é", "\0", "abcdefgh", "bbcdefgh", "abcdefghi", "bbcdefghi", "abcdefgh\0", "x" * 16, "x" * 17, "ü" * 30]
)


def sliced(rows: list[str | None], kind: pa.DataType | None = None) -> pa.Array:
    """Return a column that starts and ends inside of its buffers."""
    column = pa.array([None, "before the slice", *rows, "behind"], kind or pa.string())
    return column.slice(2, len(rows))


def rows_of(token_codes: TokenCodes) -> list[list[str]]:
    values = token_codes.values.to_pylist()
    assert len(set(values)) == len(values)
    edges = token_codes.rows.tolist()
    return [[values[code] for code in token_codes.codes[a:b]] for a, b in pairwise(edges)]


@pytest.fixture(params=["large blocks", "tiny blocks"])
def blocks(request: pytest.FixtureRequest, sizes: Sizes) -> None:
    if request.param == "tiny blocks":
        sizes(kernel_bytes=16, kernel_spans=8, kernel_rows=2)


# -- Arrow and NumPy


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
@pytest.mark.parametrize("rows", [[], [None], [""], ["", None, "a", "bcd", "é"]])
def test_string_views_of_slices_and_nulls(rows, kind):
    offsets, data = kernels.string_buffers(sliced(rows, kind) if kind != pa.string_view() else pa.array(rows, kind))
    texts = [bytes(data[a:b]).decode() for a, b in pairwise(offsets)]
    assert texts == [row or "" for row in rows]
    assert offsets[0] == 0


def test_string_views_skip_bytes_hidden_below_a_null():
    _, offsets, data = pa.array(["a", "hidden", "b"]).buffers()
    hidden = pa.Array.from_buffers(pa.string(), 3, [pa.py_buffer(b"\x05"), offsets, data])
    assert hidden.to_pylist() == ["a", None, "b"]
    assert bytes(kernels.string_buffers(hidden)[1]) == b"ab"


def test_strings_undo_string_views():
    column = sliced(["a", "", "bcd"])
    assert kernels.make_string_array(*kernels.string_buffers(column)).equals(column)


@pytest.mark.parametrize("kind", [pa.list_(pa.int8()), pa.large_list(pa.int8()), pa.list_(pa.int8(), 2)])
def test_list_offsets_belong_to_flatten(kind):
    array = pa.array([[9, 9], [1, 2], None, [3, 4], [5, 6]], kind).slice(1, 3)
    offsets, flat = kernels.list_offsets(array), array.flatten().to_pylist()
    assert offsets.tolist() == [0, 2, 2, 4]
    assert [flat[a:b] for a, b in pairwise(offsets)] == [[1, 2], [], [3, 4]]
    assert kernels.list_offsets(array[:0]).tolist() == [0]


def test_list_of_marks_null_rows():
    lists = kernels.make_list_array(np.array([0, 2, 2, 3]), pa.array([1, 2, 3]), np.array([False, True, False]))
    assert lists.to_pylist() == [[1, 2], None, [3]]
    assert kernels.make_list_array(np.array([0]), pa.array([], pa.int8())).to_pylist() == []


@given(st.lists(st.one_of(st.none(), st.booleans()), max_size=40), st.integers(0, 20), st.integers(0, 20))
def test_masks_of_slices(cells, start, length):
    column = pa.array(cells, pa.bool_()).slice(start, length)
    for kind in (pa.bool_(), pa.float64(), pa.string(), pa.dictionary(pa.int32(), pa.string())):
        one = column.cast(pa.string()).cast(kind) if pa.types.is_dictionary(kind) else column.cast(kind)
        assert kernels.valid_mask(one).tolist() == one.is_valid().to_pylist()
        assert kernels.null_mask(one).tolist() == one.is_null().to_pylist()
    assert kernels.bool_values(column.drop_null()).tolist() == column.drop_null().to_pylist()
    marks = pa.array([True, *[False] * 12, True]).slice(start)
    assert kernels.bool_values(marks).tolist() == marks.to_pylist()
    numbers = column.cast(pa.float64())
    np.testing.assert_array_equal(kernels.float_values(numbers), numbers.to_numpy(zero_copy_only=False))
    assert kernels.as_arrow(kernels.plain_values(numbers.drop_null())).equals(numbers.drop_null())


def test_nulls_of_arrays_without_bitmap_and_of_dictionaries():
    dictionary = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["a", None]))
    for column in (pa.nulls(3), dictionary, pa.array([], pa.float64())):
        assert kernels.valid_mask(column).tolist() == column.is_valid().to_pylist()


@pytest.mark.parametrize(("n", "dtype"), [(0, "u1"), (1, "u1"), (256, "u1"), (257, "u2"), (65537, "u4"), (2**40, "u8")])
def test_smallest_uint_holds_ids_below_n(n, dtype):
    assert smallest_uint(n) == np.dtype(dtype)


@given(st.lists(st.integers(0, 9)), st.integers(1, 4))
def test_look_up_equals_indexing(index, block):
    table = np.arange(10, 20, dtype=np.int16)
    with sized(kernel_spans=block):
        found = kernels.look_up(table, np.array(index, np.int32))
    assert found.tolist() == [table[i] for i in index]
    assert found.dtype == table.dtype


@given(ROWS)
def test_rows_with_a_character(rows):
    assert kernels.find_rows_with(sliced(rows), "Σ").tolist() == [i for i, row in enumerate(rows) if "Σ" in (row or "")]


def test_rows_with_a_character_at_the_end_or_its_first_byte_alone():
    assert kernels.find_rows_with(pa.array(["Ξ", "aΣ", "", "Σ"]), "Σ").tolist() == [1, 3]


@given(ROWS)
def test_non_ascii_finds_nul_too(rows):
    odd = [i for i, row in enumerate(rows) if row and (not row.isascii() or "\0" in row)]
    assert kernels.find_non_ascii(sliced(rows)).tolist() == odd


# -- splitting


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("lowercase", [False, True])
def test_split_ascii_as_python_does(lowercase):
    ascii_characters = "".join(map(chr, range(1, 128)))
    rows = ["abcdefgh abcdefgh  abcdefgh", "abcdefghijklmnop  abcdefghijklmnop", None, "", " \x1c\t"]
    rows += ["Don't  STOP_me1!", "a\x1fb", ascii_characters, *ascii_characters]
    lowered = [(row or "").lower() if lowercase else row or "" for row in rows]
    words = kernels.encode_spans(kernels.split_words(sliced(rows), lowercase=lowercase))
    assert rows_of(words) == [re.findall(r"\w+|[^\w\s]", row) for row in lowered]
    spaced = kernels.encode_spans(kernels.split_spaces(sliced(rows), lowercase=lowercase))
    assert rows_of(spaced) == [row.split() for row in lowered]
    assert rows_of(kernels.encode_characters(sliced(rows), lowercase=lowercase)) == list(map(list, lowered))


@given(ROWS)
def test_split_words_equals_a_regular_expression(rows):
    token_codes = kernels.encode_spans(kernels.split_words(sliced(rows)))
    pattern = re.compile(r"\w+|[^\w\s]")
    cut_again = [[token for piece in row for token in pattern.findall(piece)] for row in rows_of(token_codes)]
    assert cut_again == [pattern.findall(row or "") for row in rows]


@given(ROWS)
def test_split_at_keeps_empty_pieces(rows):
    token_codes = kernels.encode_spans(kernels.split_at(sliced(rows), ","))
    assert rows_of(token_codes) == [(row or "").split(",") for row in rows]


@given(ROWS)
def test_encode_characters(rows):
    assert rows_of(kernels.encode_characters(sliced(rows))) == [list(row or "") for row in rows]


def test_splitters_do_not_modify_their_input():
    column = pa.array(["Some, Text\0 É", None])
    before = column.to_pylist()
    for split in (kernels.split_words, kernels.split_spaces):
        split(column, lowercase=True)
    kernels.split_at(column, ",")
    kernels.encode_characters(column, lowercase=True)
    assert column.to_pylist() == before


# -- distinct


@pytest.mark.usefixtures("blocks")
def test_distinct_tokens_of_every_length():
    rows = ["x" * n + end for n in range(40) for end in ("", "y", "\0", "é")] * 3
    token_codes = kernels.encode_rows(pa.array(rows))
    assert rows_of(token_codes) == [[row] for row in rows]
    assert len(token_codes.values) == len(set(rows))


@given(st.lists(st.none() | TOKENS | st.text(max_size=20)))
def test_encode_rows_skips_nulls(rows):
    token_codes = kernels.encode_rows(sliced(rows))
    assert rows_of(token_codes) == [[] if row is None else [row] for row in rows]
    assert token_codes.codes.dtype == np.int32


def test_encode_rows_of_short_and_long_rows_in_any_proportion():
    for long, short in ((100, 7), (7, 100)):
        rows = [f"token number {number % 7}" for number in range(long)] + [str(number % 7) for number in range(short)]
        token_codes = kernels.encode_rows(pa.array(rows))
        assert rows_of(token_codes) == [[row] for row in rows]
        assert len(token_codes.values) == 14


def test_encode_rows_resolves_collisions_of_keys(sizes):
    sizes(kernel_slot_bits=3, kernel_spans=64)
    rows = np.random.default_rng(0).integers(0, 300, 5000).astype(str).tolist()
    assert rows_of(kernels.encode_rows(pa.array(rows))) == [[row] for row in rows]


def test_merge_equal_joins_codes():
    codes, values = kernels.merge_equal(np.array([0, 1, 2, 1], np.int32), pa.array(["a", "b", "a"]))
    assert values.take(pa.array(codes)).to_pylist() == ["a", "b", "a", "b"]
    assert len(values) == 2


@given(st.lists(st.lists(st.sampled_from(["", "a", "b"]), max_size=3)))
def test_drop_blank_rows(rows):
    encoded = pa.array([token for row in rows for token in row], pa.string()).dictionary_encode()
    offsets = kernels.offsets_from_lengths(np.array([len(row) for row in rows], int))
    token_codes = kernels.drop_blank_rows(TokenCodes(offsets, encoded.indices.to_numpy(), encoded.dictionary))
    expected = [[] if row == [""] else row for row in rows]
    assert rows_of(token_codes) == expected
    assert set(token_codes.values.to_pylist()) == {token for row in expected for token in row}


# -- pad


SIDES = st.sampled_from(["right", "left"])


def padded(row, length, side, fill, start, stop, keeps_end=False):
    room = max(length - (start is not None) - (stop is not None), 0)
    if keeps_end:
        row = row[max(len(row) - room, 0) :]
    ids = [start] * (start is not None) + row
    if stop is not None:
        ids = [*ids[: max(length - 1, 0)], stop]
    ids = ids[:length]
    blank = [fill] * (length - len(ids))
    return ids + blank if side == "right" else blank + ids


@given(
    st.lists(st.lists(st.integers(0, 5), max_size=8), max_size=12),
    st.integers(0, 9),
    SIDES,
    st.none() | st.just(98),
    st.none() | st.just(99),
    st.sampled_from([2, 1024]),
    st.booleans(),
)
@settings(max_examples=300)
def test_pad(rows, length, side, start, stop, block, keeps_end):
    table = np.array([10, 11, 12, 13, 14, 15], np.uint8)
    offsets = kernels.offsets_from_lengths(np.array([len(row) for row in rows], int))
    codes = np.array([code for row in rows for code in row], np.int32)
    with sized(kernel_rows=block):
        out = kernels.pad(offsets, codes, length, table, side=side, fill=7, start=start, stop=stop, keeps_end=keeps_end)
    ids = [[table[code] for code in row] for row in rows]
    assert out.tolist() == [padded(row, length, side, 7, start, stop, keeps_end) for row in ids]
    assert out.shape == (len(rows), length)
    assert out.dtype == np.uint8


@pytest.mark.parametrize("length", [255, 256, 300, 70_000])
def test_pad_to_lengths_beyond_small_types(length):
    out = kernels.pad(np.array([0, 300]), np.zeros(300, np.int32), length, np.array([5], np.uint8), stop=9)
    expected = [5] * min(300, length - 1) + [9]
    assert out[0].tolist() == expected + [0] * (length - len(expected))


def test_pad_rows_with_an_offset():
    out = kernels.pad(np.array([2, 3, 5]), np.arange(5), 2, np.arange(10, 15))
    assert out.tolist() == [[12, 0], [13, 14]]


@given(
    st.lists(st.lists(st.floats(width=32), max_size=5), max_size=6),
    st.integers(0, 4),
    SIDES,
    st.booleans(),
)
def test_pad_values(rows, length, side, keeps_end):
    offsets = kernels.offsets_from_lengths(np.array([len(row) for row in rows], int))
    values = np.array([value for row in rows for value in row], np.float32)
    out = kernels.pad(offsets, values, length, side=side, fill=0.5, keeps_end=keeps_end)
    expected = [padded(row, length, side, 0.5, None, None, keeps_end) for row in rows]
    assert np.array_equal(out, np.array(expected, np.float32).reshape(len(rows), length), equal_nan=True)


# -- floats

NUMBERS = st.floats(width=32).map(str) | st.sampled_from(["1", "-2.50", "+.5", "3.", "1E3", "nan", "-Inf", "1e999"])
JUNK = st.sampled_from(["x", "1_0", "--1", "1,5", "0x1", "1e", ".", "\0", "1\0", "\u0661", "NaN(", "\u017f"])


def read(text: str) -> list[float] | None:
    try:
        if "_" in text or not text.isascii():  # Python accepts more notations than Arrow
            raise ValueError
        return [float(token) for token in text.split()]
    except ValueError:
        return None


def assert_lists(found: pa.ListArray, expected: list[list[float] | None]) -> None:
    found.validate(full=True)
    for row, want in zip(found.to_pylist(), expected, strict=True):
        if want is None:
            assert row is None
        else:
            assert np.array_equal(np.array(row, np.float32), np.array(want, np.float32), equal_nan=True)


@given(st.lists(st.none() | st.lists(NUMBERS, max_size=5), max_size=8), st.sampled_from([" ", "  ", "\t", " " * 12]))
@settings(max_examples=200)
def test_parse_numbers(rows, space):
    texts = [None if row is None else space.join(row) for row in rows]
    found = kernels.parse_float_lists(sliced(texts))
    assert found.type == pa.list_(pa.float32())
    assert_lists(found, [None if t is None else read(t) for t in texts])


@given(st.lists(st.none() | st.lists(NUMBERS | JUNK, max_size=5), max_size=8))
@settings(max_examples=200)
def test_parse_numbers_with_invalid_tokens(rows):
    texts = [None if row is None else " ".join(row) for row in [*rows, ["junk"]]]
    found = kernels.parse_float_lists(sliced(texts))
    assert_lists(found, [None if t is None else read(t) for t in texts])


@given(st.text("+-0123456789.eEinfatyINFATY()_x", max_size=8))
@settings(max_examples=500)
def test_numbers_parse_as_in_arrow_with_and_without_invalid_tokens(token):
    alone = kernels.parse_float_lists(pa.array([token]))
    with_junk = kernels.parse_float_lists(pa.array([token, "junk"]))
    assert str(alone[0]) == str(with_junk[0])


def test_parse_numbers_between_unicode_white_space():
    found = kernels.parse_float_lists(pa.array(["\u30001\u00a02\u20283\x1c4\x855 "]))
    assert found.to_pylist() == [[1, 2, 3, 4, 5]]


def test_parse_numbers_between_separators():
    found = kernels.parse_float_lists(sliced(["1, 2 ,3", None, "1,,2", "1 2,3", "", " ", "7"]), ",")
    rows = found.to_pylist()
    assert rows[0] == [1, 2, 3]
    assert rows[2][0] == 1
    assert math.isnan(rows[2][1])
    assert [rows[1], *rows[3:]] == [None, None, [], [], [7]]


@pytest.mark.parametrize("rows", [[], [None], ["", " "]])
def test_parse_numbers_of_empty_rows(rows):
    found = kernels.parse_float_lists(sliced(rows))
    assert found.to_pylist() == [None if row is None else [] for row in rows]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary(), pa.float64()])
def test_only_where_masks_values_of_a_slice(kind):
    values = pa.array([f"{number}" for number in range(20)]).cast(kind, safe=False)[9:15]
    mask = [True, False, None, True, True, False]
    found = kernels.only_where(pa.array(mask), values)
    found.validate(full=True)
    assert found.to_pylist() == [one if keep else None for one, keep in zip(values.to_pylist(), mask, strict=True)]
