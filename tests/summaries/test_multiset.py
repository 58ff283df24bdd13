from __future__ import annotations

import numpy as np
import pytest

from daskprep.summaries.multiset import count_keys, interpolate, sum_by_key


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
def test_keys_are_counted_whatever_their_range(keys: list[int]) -> None:
    distinct, counts = count_keys(np.array(keys))
    assert distinct.tolist() == sorted(set(keys))
    assert counts.tolist() == [keys.count(key) for key in sorted(set(keys))]
    assert distinct.dtype == counts.dtype == np.int64


def test_counts_of_equal_keys_add_up() -> None:
    keys, counts = sum_by_key(np.array([4, 1, 4, 2, 1]), np.array([1, 10, 100, 1000, 10_000]))
    assert (keys.tolist(), counts.tolist()) == ([1, 2, 4], [10_010, 1000, 101])


def test_the_middle_is_rounded_as_numpy_rounds_it() -> None:
    low, high = -489.8619485211566, 5.275492379532281
    assert low + (high - low) * 0.5 != high - (high - low) * 0.5
    assert interpolate(np.array(low), np.array(high), np.array(0.5)) == np.quantile([low, high], 0.5)
