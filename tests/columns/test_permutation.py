"""The permutation is a bijection, mixes well and never changes."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from daskprep.columns.permutation import (
    _BLOCK_ROWS,
    _word_blocks,
    bit_lengths,
    hash_strings,
    make_key,
    make_keys,
    permute,
)

SIZES = [*range(40), 63, 64, 65, 100, 255, 256, 257, 1000, 4095, 4097, 65_537]
sizes = st.integers(1, 2**62)
keys = st.integers(0, 2**64 - 1)


# If one of the next three tests fails, existing datasets would be split and ordered differently.


@pytest.mark.parametrize("parts", [(), (7,), (0, 2**40)])
def test_make_keys_equals_make_key(parts):
    expected = [make_key(2**63, "rows", number, *parts) for number in range(5)]
    assert make_keys(2**63, "rows", range(5), *parts).tolist() == expected


def test_make_key_does_not_change_between_releases():
    assert make_key(0) == 3999586761668934864
    assert make_key(42, "random") == 3647800286418901252
    assert make_key(-7, "stratify", 3, "é") == 1458373883253681075


def test_permute_does_not_change_between_releases():
    assert permute(np.arange(10), 10, make_key(0)).tolist() == [6, 0, 7, 8, 2, 5, 3, 9, 4, 1]
    assert permute(np.array([0, 1, 2, 999_999]), 1_000_000, make_key(42, "random")).tolist() == [
        772625,
        50585,
        350961,
        151642,
    ]
    assert permute(np.array([0, 1, 2**62 - 1]), 2**62, 1).tolist() == [
        1485285810795098636,
        2019488553645426890,
        151107059698040274,
    ]


def test_hash_strings_does_not_change_between_releases():
    strings = pa.array(["", "a", None, "12345678", "123456789", "Zürich", "x" * 100])
    assert hash_strings(strings, make_key(0)).tolist() == [
        421206045384685500,
        1263729107054145118,
        471543690320383514,
        7087417047702092947,
        13933690292299599966,
        16639614947995772976,
        1720113809581814067,
    ]


@pytest.mark.parametrize("n", SIZES)
def test_permute_is_a_bijection(n):
    for key in (0, 1, make_key(n)):
        positions = permute(np.arange(n), n, key)
        assert positions.dtype == np.int64
        assert np.array_equal(np.sort(positions), np.arange(n))


@given(n=sizes, key=keys, fractions=st.lists(st.floats(0, 1, exclude_max=True), max_size=20))
def test_permute_is_injective_for_large_sizes(n, key, fractions):
    index = np.array([min(int(fraction * n), n - 1) for fraction in fractions], dtype=np.int64)
    positions = permute(index, n, key)
    assert ((positions >= 0) & (positions < n)).all()
    assert len(np.unique(positions)) == len(np.unique(index))


@settings(max_examples=50)
@given(st.lists(st.tuples(sizes, keys, st.floats(0, 1, exclude_max=True)), min_size=1, max_size=30))
def test_permute_accepts_a_size_and_a_key_per_index(rows):
    n = np.array([size for size, _, _ in rows])
    key = np.array([key for _, key, _ in rows], dtype=np.uint64)
    index = np.array([min(int(fraction * size), size - 1) for size, _, fraction in rows])
    alone = [permute(index[i : i + 1], int(n[i]), int(key[i]))[0] for i in range(len(rows))]
    assert permute(index, n, key).tolist() == alone


def test_permute_does_not_depend_on_batches_or_integer_types():
    n, key = 100_003, make_key(1)
    whole = permute(np.arange(n), n, key)
    some = np.arange(7, n, 13)
    assert np.array_equal(permute(some, n, key), whole[some])
    assert np.array_equal(permute(some.astype(np.uint32), n, key), whole[some])
    assert np.array_equal(permute(some.astype(np.uint64), n, key), whole[some])


def test_permute_does_not_modify_its_input():
    index = np.arange(100, dtype=np.uint64)
    permute(index, 100, 1)
    assert np.array_equal(index, np.arange(100))


def test_permute_accepts_empty_arrays_of_sizes():
    none = np.zeros(0, dtype=np.int64)
    assert permute(none, none, none.astype(np.uint64)).tolist() == []


def test_every_permutation_of_few_rows_is_equally_likely():
    key = np.array([make_key(i) for i in range(24_000)], dtype=np.uint64)
    places = np.stack([permute(np.full(key.size, i), np.full(key.size, 4), key) for i in range(4)])
    counts = np.unique(places, axis=1, return_counts=True)[1]
    assert counts.size == 24
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("n", [10, 97, 1000])
def test_every_position_of_a_row_is_equally_likely(n):
    key = np.arange(200 * n, dtype=np.uint64)
    for row in (0, n // 2, n - 1):
        counts = np.bincount(permute(np.full(key.size, row), np.full(key.size, n), key), minlength=n)
        assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("n", [50_000, 65_536, 1_000_003, 10**12])
def test_positions_of_neighboring_rows_are_uncorrelated(n):
    rows = 20_000
    for seed in range(3):
        share = permute(np.arange(rows), n, make_key(seed)) / n
        steps = np.diff(share) % 1
        assert stats.chisquare(np.bincount((share * 32).astype(int), minlength=32)).pvalue > 1e-4
        assert stats.chisquare(np.bincount((steps * 32).astype(int), minlength=32)).pvalue > 1e-4
        assert abs(np.corrcoef(share[:-1], share[1:])[0, 1]) < 5 / math.sqrt(rows)


def test_neighboring_keys_have_uncorrelated_positions():
    n = 20_000
    one, other = (permute(np.arange(n), n, key) / n for key in (7, 8))
    assert stats.chisquare(np.bincount(((one - other) % 1 * 32).astype(int), minlength=32)).pvalue > 1e-4


def test_make_key_distinguishes_seeds_parts_and_types():
    made = [
        make_key(1),
        make_key(2),
        make_key(1, "a"),
        make_key(1, "a", "b"),
        make_key(1, "ab"),
        make_key(1, 1),
    ]
    made += [make_key(1, "1"), make_key(11), make_key(-1), make_key(1, "")]
    assert len(set(made)) == len(made)
    assert make_key(np.int64(5), np.int32(3)) == make_key(5, 3)


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_bit_lengths_equal_python(numbers):
    assert bit_lengths(np.array(numbers, dtype=np.uint64)).tolist() == [n.bit_length() for n in numbers]


def hash_slowly(text, key):
    """Hash one string as in the docstring of hash_strings, with Python integers."""
    word = 2**64 - 1

    def mix(z):
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & word
        z = (z ^ z >> 27) * 0x94D049BB133111EB & word
        return z ^ z >> 31

    data = b"" if text is None else text.encode()
    total = 0
    for place, start in enumerate(range(0, len(data), 8), 1):
        number = int.from_bytes(data[start : start + 8], "little")
        total += mix(number ^ (place * 0x9E3779B97F4A7C15 + key & word))
    length = -1 if text is None else len(data)
    return mix(((total & word) ^ key) + length * 0xD1342543DE82EF95 & word)


@settings(max_examples=40)
@given(st.lists(st.none() | st.text(max_size=40)), keys, st.integers(0, 3))
def test_hash_strings_equals_the_reference(strings, key, skipped):
    for kind in (pa.string(), pa.large_string()):
        hashes = hash_strings(pa.array(strings, kind)[skipped:], key)
        assert hashes.tolist() == [hash_slowly(text, key) for text in strings[skipped:]]


def test_hash_strings_equals_the_reference_across_blocks():
    strings = ["ab" * 20] * 5_000 + [None] + [""] * 20_000 + ["z" * 200_000, "q"]
    slow = {text: hash_slowly(text, 5) for text in set(strings)}
    assert hash_strings(pa.array(strings), 5).tolist() == [slow[text] for text in strings]


def test_hash_strings_of_a_slice_ignores_its_neighbors():
    strings = ["left", "", None, "a middle part", "right of it", None]
    for kind in (pa.string(), pa.large_string()):
        whole = pa.array(strings, kind)
        for start in range(len(strings)):
            for stop in range(start, len(strings) + 1):
                slow = [hash_slowly(text, 3) for text in strings[start:stop]]
                assert hash_strings(whole[start:stop], 3).tolist() == slow


def test_word_blocks_are_limited_by_words_and_rows():
    lengths = np.array([8] * (_BLOCK_ROWS + 5) + [1] * 3 + [0] * (2 * _BLOCK_ROWS) + [9 * _BLOCK_ROWS, 7, 9])
    blocks = [(block.start, block.stop) for block in _word_blocks(lengths)]
    assert blocks == [
        (0, _BLOCK_ROWS),
        (_BLOCK_ROWS, 2 * _BLOCK_ROWS),
        (2 * _BLOCK_ROWS, 3 * _BLOCK_ROWS),
        (3 * _BLOCK_ROWS, lengths.size - 3),
        (lengths.size - 3, lengths.size - 2),
        (lengths.size - 2, lengths.size),
    ]


def test_hash_strings_spreads_similar_strings():
    hashes = hash_strings(pa.array([f"user-{i}" for i in range(50_000)]), 1)
    assert np.unique(hashes).size == 50_000
    for shift in (0, 20, 58):
        counts = np.bincount((hashes >> np.uint64(shift) & np.uint64(63)).astype(int), minlength=64)
        assert stats.chisquare(counts).pvalue > 1e-4
