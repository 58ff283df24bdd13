from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from daskprep.summaries import Quantiles, Range
from daskprep.summaries.quantiles import DISTINCT_LIMIT

finite = st.floats(allow_nan=False, allow_infinity=False)
fractions = st.floats(0, 1)


@given(st.lists(st.floats(-1e300, 1e300), min_size=1), fractions)
@example([1.0, 2.0], 0.75)
def test_quantile_equals_numpy(values: list[float], fraction: float) -> None:
    summary = Quantiles.of(np.array(values))
    assert summary.exact
    assert summary.quantile(fraction) == np.quantile(np.array(values), fraction)


def test_quantile_of_a_gap_beyond_the_doubles_is_finite() -> None:
    largest = float(np.finfo(float).max)
    assert Quantiles.of(np.array([-largest, largest])).quantile(0.5) == 0.0


def test_no_values_have_no_quantiles() -> None:
    assert math.isnan(Quantiles().quantile(0.5))
    assert Quantiles().count == 0


def test_a_fraction_outside_0_to_1_is_refused() -> None:
    with pytest.raises(ValueError, match=r"between 0 and 1, not at 1\.5"):
        Quantiles.of(np.array([1.0])).quantile(1.5)


@pytest.mark.parametrize("scale", [1.0, 1e-300, 1e290])
def test_quantiles_of_many_distinct_values_are_close(scale: float) -> None:
    values = np.random.default_rng(0).standard_cauchy(5 * DISTINCT_LIMIT) * scale
    summary = Quantiles.of(values)
    assert not summary.exact
    assert summary.count == len(values)
    for fraction in (0.0, 0.01, 0.25, 0.4, 0.75, 0.999, 1.0):
        true = np.sort(values)[round(fraction * (len(values) - 1))]
        nearest = summary.quantile(round(fraction * (len(values) - 1)) / (len(values) - 1))
        assert abs(nearest - true) <= 2.0**-13 * abs(true)


@given(st.lists(finite, min_size=1))
def test_values_of_few_are_the_distinct_ones_in_order(values: list[float]) -> None:
    summary = Quantiles.of(np.array(values))
    assert summary.values().tolist() == sorted(set(values))
    assert len(summary.counts) == len(set(values))


def test_values_of_many_are_the_middles_of_their_buckets() -> None:
    values = np.random.default_rng(0).normal(size=2 * DISTINCT_LIMIT)
    values[:10] = 0.0
    summary = Quantiles.of(values)
    assert summary.counts[summary.values() == 0].tolist() == [10]
    total = float(summary.values() @ summary.counts)
    assert abs(total - values.sum()) <= 2.0**-13 * np.abs(values).sum()


def test_a_bucket_holds_what_12_bits_of_the_mantissa_say() -> None:
    many = np.arange(DISTINCT_LIMIT + 1.0) + 1e6
    values = np.array([1.0, 1.0 + 2.0**-13, 1.0 + 2.0**-12, -1.0])
    summary = Quantiles.of(np.concatenate([values, many]))
    assert not summary.exact
    assert summary.counts[:3].tolist() == [1, 2, 1]
    middles = [-1.0 - 2.0**-13, 1.0 + 2.0**-13, 1.0 + 2.0**-12 + 2.0**-13]
    np.testing.assert_allclose(summary.values()[:3], middles, rtol=1e-14)


def test_quantiles_are_equal_if_all_that_they_hold_is() -> None:
    one = Quantiles.of(np.array([1.0, 2.0]))
    assert one == Quantiles.of(np.array([2.0, 1.0]))
    assert one != Quantiles.of(np.array([1.0, 3.0]))
    assert one != Quantiles.of(np.array([1.0, 2.0, 2.0]))
    assert one != Quantiles(one.keys, one.counts, exact=False)
    assert one != "quantiles"


def test_zeros_among_many_distinct_values_stay_zero() -> None:
    values = np.concatenate([np.arange(1.0, DISTINCT_LIMIT + 1), np.zeros(DISTINCT_LIMIT * 2), [-0.0, -5e-324]])
    summary = Quantiles.of(values)
    assert not summary.exact
    assert summary.quantile(0.25) == 0.0
    assert summary.quantile(0.0) == 0.0


def test_the_limit_of_distinct_values_is_met_by_parts_and_whole_alike() -> None:
    values = np.random.default_rng(0).permutation(np.tile(np.arange(float(DISTINCT_LIMIT)), 2))
    parts = np.array_split(values, 7)
    whole = Quantiles.of(values)
    merged = sum((Quantiles.of(part) for part in parts[1:]), Quantiles.of(parts[0]))
    assert whole.exact
    assert merged == whole
    one_more = np.array([-1.0])
    assert not Quantiles.of(np.append(values, one_more)).exact
    assert merged + Quantiles.of(one_more) == Quantiles.of(np.append(values, one_more))


@given(st.lists(finite), finite, st.integers(0, 3))
def test_adding_a_value_is_summarizing_it(values: list[float], value: float, times: int) -> None:
    together = np.array(values + [value] * times)
    assert Quantiles.of(np.array(values)) + Quantiles.of(np.array([value])) * times == Quantiles.of(together)
    assert Range.of(np.array(values)) + Range.of(np.array([value])) * times == Range.of(together)


def test_range_of_no_values_is_empty_and_changes_nothing() -> None:
    empty = Range.of(np.array([]))
    assert empty.empty
    assert empty + Range(1.0, 2.0) == Range(1.0, 2.0)
    assert not Range.of(np.array([1.0])).empty


def test_a_negative_zero_counts_as_zero() -> None:
    assert math.copysign(1.0, Range.of(np.array([-0.0])).min) == 1.0
    assert math.copysign(1.0, Range.of(np.array([-0.0, -1.0])).max) == 1.0
    assert Range.of(np.array([3.0, 1.0, 2.0])) == Range(1.0, 3.0)
    assert len(Quantiles.of(np.array([0.0, -0.0])).keys) == 1
