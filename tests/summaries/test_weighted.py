"""Weighted sums are those of fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from daskprep.summaries import Moments, WeightedMoments
from daskprep.summaries.moments import SQUARE_BITS, SUM_BITS

LARGEST_WEIGHT = float(np.finfo(np.float32).max)
NEAR = st.floats(-1e60, 1e60).map(lambda value: value if abs(value) > 1e-60 else 0.0)
NEAR_WEIGHTS = st.floats(1e-150, LARGEST_WEIGHT) | st.just(0.0)
ANY = st.floats(allow_nan=False, allow_infinity=False)
WEIGHTS = st.floats(0, LARGEST_WEIGHT)


def summed(rows) -> WeightedMoments:
    values, weights = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    return WeightedMoments.of_weighted(values, weights)


@given(st.lists(st.tuples(NEAR, NEAR_WEIGHTS), min_size=1, max_size=20))
def test_sums_do_not_round(rows):
    found = summed(rows)
    exact = [(Fraction(value), Fraction(weight)) for value, weight in rows]
    assert Fraction(found.total, 1 << SUM_BITS) == sum(value * weight for value, weight in exact)
    assert Fraction(found.squares, 1 << SQUARE_BITS) == sum(value**2 * weight for value, weight in exact)
    assert Fraction(found.weights, 1 << SUM_BITS) == sum(weight for _, weight in exact)


@given(st.lists(st.tuples(ANY, WEIGHTS), min_size=1, max_size=20), st.integers(0, 20))
@example([(1e308, 3.0), (-1e308, 1.0), (1e-300, 1e-300)], 1)
def test_parts_in_any_order_give_the_same(rows, cut):
    parts = [summed(some) for some in (rows[:cut], rows[cut:]) if some]
    assert sum(parts[1:], parts[0]) == summed(rows)
    assert summed(rows[::-1]) == summed(rows)


@given(st.lists(ANY, min_size=1, max_size=20), st.sampled_from([1.0, 4.0]))
@example([1e9 + i for i in range(10)], 1.0)
def test_equal_weights_are_as_none(values, weight):
    found, plain = summed([(value, weight) for value in values]), Moments.of(np.array(values))
    np.testing.assert_equal(found.mean(), plain.mean())
    np.testing.assert_equal(found.std(ddof=1), plain.std(ddof=1))


def test_rows_of_weight_0_count_for_nothing():
    rows = [(1.0, 1.0), (2.0, 1.0), (3.0, 1.0), (np.nan, 1.0)]
    whole = summed([*rows, (7.0, 0.0), *[(np.nan, 0.0)] * 5])
    assert whole == summed(rows)
    filled = whole + Moments.of(np.array([2.0])) * 6
    assert (filled.count, filled.missing_count, filled.missing) == (4, 0, 0)
    assert filled.std(ddof=1) == pytest.approx(np.std([1, 2, 3, 2], ddof=1))
