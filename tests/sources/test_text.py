"""Ends of records, compared with a reader of single characters."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskprep.sources.text import cut_records, first_record_end, record_starts

TEXTS = st.text(alphabet='a",\n\r', max_size=60).map(str.encode)


def ends_by_character(text: bytes) -> tuple[list[int], bool]:
    """Follow CSV's rules character by character; return the ends of records and whether a quote is unclosed."""
    ends, inside, at_start, i = [], False, True, 0
    while i < len(text):
        char = chr(text[i])
        if inside:
            if char == '"':
                if text[i + 1 : i + 2] == b'"':
                    i += 1
                else:
                    inside = False
            at_start = False
        elif char == '"' and at_start:
            inside, at_start = True, False
        else:
            at_start = char in ",\n\r"
            if char == "\n":
                ends.append(i + 1)
        i += 1
    return ends, inside


def blocks_of(text: bytes, size: int) -> list[bytes]:
    return [text[i : i + size] for i in range(0, len(text), size)]


@given(TEXTS, st.integers(1, 9), st.lists(st.integers(0, 25), max_size=5).map(sorted))
def test_cuts_are_first_record_ends_after_targets(text: bytes, block_bytes: int, targets: list[int]) -> None:
    ends, inside = ends_by_character(text)
    cuts, _, unclosed_quote = cut_records(blocks_of(text, block_bytes), 0, targets, ",", '"')
    expected = {min((end for end in ends if end >= target), default=None) for target in targets} - {None}
    assert set(cuts) == expected
    assert cuts == sorted(set(cuts))
    assert (unclosed_quote is not None) == inside


@given(TEXTS, st.integers(1, 9), st.lists(st.integers(0, 25), max_size=5).map(sorted))
def test_records_are_counted_if_every_newline_ends_one(text: bytes, block_bytes: int, targets: list[int]) -> None:
    cuts, counts, _ = cut_records(blocks_of(text, block_bytes), 0, targets, ",", '"')
    odd = b"\r" in text or text.startswith(b"\n") or b"\n\n" in text or re.search(rb'(?<!")"("")*(?!")', text)
    assert (counts is None) == bool(odd)
    if counts is not None:
        before = [len(record_starts(text[:cut], ",", '"')) if cut else 0 for cut in (*cuts, len(text))]
        assert counts == before


@given(TEXTS)
def test_unclosed_quote_is_located_at_opening(text: bytes) -> None:
    unclosed_quote = cut_records((text[i : i + 7] for i in range(0, len(text), 7)), 0, (), ",", '"').unclosed_quote
    assert (unclosed_quote is not None) == ends_by_character(text)[1]
    if unclosed_quote is not None:
        assert text[unclosed_quote : unclosed_quote + 1] == b'"'
        assert not ends_by_character(text[:unclosed_quote])[1]
        assert ends_by_character(text[: unclosed_quote + 1])[1]


@given(TEXTS)
def test_record_starts_skip_empty_records(text: bytes) -> None:
    bounds = [0, *ends_by_character(text)[0], len(text)]
    expected = [a for a, b in pairwise(bounds) if text[a:b].strip(b"\r\n")]
    assert record_starts(text, ",", '"').tolist() == expected


def test_quotes_are_ignored_without_quote_character() -> None:
    assert cut_records([b'a"\nb\n'], 0, [1, 4], ",", None) == ([3, 5], [1, 2, 2], None)


@pytest.mark.parametrize(
    ("text", "end"),
    [(b"a,b\n1", 4), (b"a,b\r\n1", 5), (b"a,b\r1", 4), (b'"a\nb",c\n1', 8), (b"a,b", None), (b'"a\nb', None)],
)
def test_first_record_end_for_each_newline(text: bytes, end: int | None) -> None:
    assert first_record_end(text, ",", '"') == end
