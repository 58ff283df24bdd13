from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskprep.columns.summaries import Lengths
from daskprep.columns.summaries.quantiles import count_keys, interpolate, sum_by_key


@pytest.mark.parametrize(
    "keys",
    [
        [5, 3, 5, 5, -2],
        [0, 2**31 + 5, 2**31 + 5],
        [0, 2**31, -5],
        [0, -(2**31) - 5, -(2**31)],
        [-(2**63), 2**63 - 1, 0, 0],
        [2**31 - 1, -(2**31), 2**31 - 1],
    ],
)
def test_keys_of_any_range_are_counted(keys: list[int]) -> None:
    distinct, counts = count_keys(np.array(keys))
    assert distinct.tolist() == sorted(set(keys))
    assert counts.tolist() == [keys.count(key) for key in sorted(set(keys))]
    assert distinct.dtype == counts.dtype == np.int64


def test_counts_of_equal_keys_are_summed() -> None:
    keys, counts = sum_by_key(np.array([4, 1, 4, 2, 1]), np.array([1, 10, 100, 1000, 10_000]))
    assert (keys.tolist(), counts.tolist()) == ([1, 2, 4], [10_010, 1000, 101])


def test_interpolate_rounds_like_numpy() -> None:
    low, high = -489.8619485211566, 5.275492379532281
    assert low + (high - low) * 0.5 != high - (high - low) * 0.5
    assert interpolate(np.array(low), np.array(high), np.array(0.5)) == np.quantile([low, high], 0.5)


# -- lengths

lengths = st.lists(st.integers(0, 50) | st.integers(0, 2**40), min_size=1)


@given(lengths, st.floats(0, 1))
def test_lengths_equal_numpy(values: list[int], fraction: float) -> None:
    summary = Lengths.of(np.array(values))
    assert (summary.count, summary.total, summary.max) == (len(values), sum(values), max(values))
    assert summary.quantile(fraction) == np.quantile(np.array(values, np.float64), fraction)


@given(lengths, st.integers(0, 2**40), st.integers(0, 3))
def test_adding_a_length_equals_summarizing_it(values: list[int], length: int, times: int) -> None:
    assert Lengths.of(np.array(values)).add(length, times) == Lengths.of(np.array(values + [length] * times))


def test_empty_lengths_are_0() -> None:
    assert (Lengths().max, Lengths().total, Lengths().count, Lengths().quantile(0.99)) == (0, 0, 0, 0.0)


def test_lengths_can_have_any_integer_dtype() -> None:
    assert Lengths.of(np.array([1, 1, 300], np.int32)) == Lengths.of(np.array([300, 1, 1], np.uint64))
    assert Lengths.of(np.array([1, 2**40], np.uint64)).lengths.dtype == np.int64


def test_lengths_are_equal_with_equal_counts() -> None:
    one = Lengths.of(np.array([1, 2]))
    assert one != Lengths.of(np.array([1, 3]))
    assert one != Lengths.of(np.array([1, 2, 2]))
    assert one != "lengths"
