from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from daskprep.summaries import Lengths

lengths = st.lists(st.integers(0, 50) | st.integers(0, 2**40), min_size=1)


@given(lengths, st.floats(0, 1))
def test_lengths_report_what_numpy_does(values: list[int], fraction: float) -> None:
    summary = Lengths.of(np.array(values))
    assert (summary.count, summary.total, summary.max) == (len(values), sum(values), max(values))
    assert summary.quantile(fraction) == np.quantile(np.array(values, np.float64), fraction)


@given(lengths, st.integers(0, 2**40), st.integers(0, 3))
def test_adding_a_length_is_summarizing_it(values: list[int], length: int, times: int) -> None:
    assert Lengths.of(np.array(values)).add(length, times) == Lengths.of(np.array(values + [length] * times))


def test_no_lists_have_no_length() -> None:
    assert (Lengths().max, Lengths().total, Lengths().count, Lengths().quantile(0.99)) == (0, 0, 0, 0.0)


def test_lengths_may_be_of_any_integer_type() -> None:
    assert Lengths.of(np.array([1, 1, 300], np.int32)) == Lengths.of(np.array([300, 1, 1], np.uint64))
    assert Lengths.of(np.array([1, 2**40], np.uint64)).lengths.dtype == np.int64


def test_lengths_are_equal_if_each_occurs_as_often() -> None:
    one = Lengths.of(np.array([1, 2]))
    assert one != Lengths.of(np.array([1, 3]))
    assert one != Lengths.of(np.array([1, 2, 2]))
    assert one != "lengths"
