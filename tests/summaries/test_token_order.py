"""Tokens are sorted as their UTF-8 bytes are."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskprep.summaries.token_order import argsort_bytes

WORDS = st.text(st.sampled_from("ab\x00\x7f\u00e9\u4e2d\U0001f600"), max_size=20)


def check(tokens: list[str]) -> None:
    array = pa.array(["x", *tokens, "y"], pa.string()).slice(1, len(tokens))
    found = [tokens[place] for place in argsort_bytes(array)]
    assert found == sorted(tokens, key=str.encode)


@given(st.lists(WORDS, unique=True, max_size=40))
def test_any_tokens(tokens: list[str]) -> None:
    check(tokens)


@given(st.lists(WORDS, unique=True, max_size=40), st.integers(0, 20))
def test_tokens_that_begin_alike(tokens: list[str], shared: int) -> None:
    check(["p" * shared + token for token in tokens])


def test_tokens_that_differ_behind_eight_bytes_that_most_share() -> None:
    check(["p" * 8 + "q" * 8 + end for end in "cab"] + ["p" * 8 + "r" * 8, "p" * 7 + "z" * 9])
    check(["a" * length for length in range(20, 0, -1)])


@pytest.mark.parametrize("tokens", [[], [""], ["", "\x00", "\x00\x00"], ["a" * 8, "a" * 8 + "\x00", "a" * 7]])
def test_zeros_and_ends(tokens: list[str]) -> None:
    check(tokens)
