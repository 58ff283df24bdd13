from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskprep.columns.summaries.token_counts import (
    CHUNK_TOKENS,
    LONG_TOKEN_BYTES,
    SHARDS,
    argsort_bytes,
    shard_numbers,
    token_hashes,
)

# Computed once by this code; never change them.
GOLDEN = [0, 3764562023654139118, 17316911634776423582, 5209615563161901568, 12466213861218000260]

tokens_strategy = st.lists(st.text(alphabet="a\x00é", max_size=30) | st.text(), min_size=1, max_size=30)


@given(tokens_strategy, st.integers(0, 5))
def test_hash_depends_only_on_the_token(tokens: list[str], skipped: int) -> None:
    hashes = token_hashes(pa.array(tokens))
    alone = [int(token_hashes(pa.array([token]))[0]) for token in tokens]
    assert hashes.tolist() == alone
    assert token_hashes(pa.array(tokens).slice(skipped)).tolist() == alone[skipped:]


@given(tokens_strategy)
def test_equal_hashes_imply_equal_tokens(tokens: list[str]) -> None:
    assert len(np.unique(token_hashes(pa.array(tokens)))) == len(set(tokens))


def test_hashes_do_not_change_between_processes_and_versions() -> None:
    # Files that one process wrote are read by others.
    tokens = pa.array(["", "a", "12345678", "123456789", "x" * (LONG_TOKEN_BYTES + 1)])
    assert token_hashes(tokens).tolist() == GOLDEN
    assert token_hashes(pa.array(["x" * LONG_TOKEN_BYTES])).tolist() == [5931541766255360438]
    assert token_hashes(pa.array([7, -1])).tolist() == [7191089600892374487, 16490336266968443936]


def test_hashes_of_whole_words_do_not_depend_on_longer_tokens() -> None:
    assert token_hashes(pa.array(["12345678", "123456789"])).tolist() == GOLDEN[2:4]


def test_hash_of_a_long_token_does_not_depend_on_neighbors() -> None:
    long = "x" * (LONG_TOKEN_BYTES + 1)
    assert token_hashes(pa.array([long, "y", long])).tolist()[::2] == [GOLDEN[-1]] * 2


def test_long_tokens_that_differ_at_the_end_have_different_hashes() -> None:
    tokens = pa.array(["x" * length + end for length in (400, 511, 512, 513, 5000) for end in "ab"])
    assert len(np.unique(token_hashes(tokens))) == 10


def test_tokens_are_spread_evenly_over_shards() -> None:
    tokens = pa.array([f"https://example.org/{number}" for number in range(3 * CHUNK_TOKENS)])
    sizes = np.bincount(shard_numbers(tokens), minlength=SHARDS)
    assert sizes.min() > 0.7 * sizes.mean()
    assert sizes.max() < 1.4 * sizes.mean()


def test_numbers_are_hashed_by_their_bits() -> None:
    numbers = pa.array(np.arange(1000))
    assert len(np.unique(token_hashes(numbers))) == 1000
    assert token_hashes(numbers.slice(7, 1)) == token_hashes(pa.array([7]))


def test_no_tokens_have_no_hashes() -> None:
    assert len(token_hashes(pa.array([], pa.string()))) == 0


# -- order

WORDS = st.text(st.sampled_from("ab\x00\x7f\u00e9\u4e2d\U0001f600"), max_size=20)


def check_order(tokens: list[str]) -> None:
    array = pa.array(["x", *tokens, "y"], pa.string()).slice(1, len(tokens))
    found = [tokens[place] for place in argsort_bytes(array)]
    assert found == sorted(tokens, key=str.encode)


@given(st.lists(WORDS, unique=True, max_size=40))
def test_any_tokens_are_sorted_by_bytes(tokens: list[str]) -> None:
    check_order(tokens)


@given(st.lists(WORDS, unique=True, max_size=40), st.integers(0, 20))
def test_tokens_with_a_shared_prefix_are_sorted(tokens: list[str], shared: int) -> None:
    check_order(["p" * shared + token for token in tokens])


def test_tokens_that_differ_after_a_common_word_are_sorted() -> None:
    check_order(["p" * 8 + "q" * 8 + end for end in "cab"] + ["p" * 8 + "r" * 8, "p" * 7 + "z" * 9])
    check_order(["a" * length for length in range(20, 0, -1)])


@pytest.mark.parametrize("tokens", [[], [""], ["", "\x00", "\x00\x00"], ["a" * 8, "a" * 8 + "\x00", "a" * 7]])
def test_tokens_with_nul_and_of_any_length_are_sorted(tokens: list[str]) -> None:
    check_order(tokens)
