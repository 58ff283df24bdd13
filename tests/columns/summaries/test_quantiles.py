from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from daskprep.columns.summaries import Quantiles, Range
from daskprep.columns.summaries.quantiles import MAX_BUCKETS, assign_buckets, finest_shift
from tests.sizes import sized

finite = st.floats(allow_nan=False, allow_infinity=False)
fractions = st.floats(0, 1)


@given(st.lists(st.floats(-1e300, 1e300), min_size=1), fractions)
@example([1.0, 2.0], 0.75)
def test_quantile_equals_numpy(values: list[float], fraction: float) -> None:
    summary = Quantiles.of(np.array(values))
    assert summary.exact
    assert summary.quantile(fraction) == np.quantile(np.array(values), fraction)


def test_quantile_between_extreme_doubles_is_finite() -> None:
    largest = float(np.finfo(float).max)
    found = Quantiles.of(np.array([-largest, largest])).quantiles(np.array([0.0, 0.5, 1.0]))
    assert found.tolist() == [-largest, 0.0, largest]


@given(st.lists(st.floats(-1e150, 1e150), min_size=1), st.integers(1, 12))
@example([3.0, 1.0, 2.0], 5)
@example([1.0, 2.0, 4.0], 3)
@example([0.0, 5e-324], 12)
def test_evenly_spaced_quantiles_have_even_ranks(values: list[float], number: int) -> None:
    found = Quantiles.of(np.array(values)).evenly_spaced(number)
    assert found.shape == (number,)
    ordered, gaps = [*sorted(values), math.inf], max(number - 1, 1)
    for place, quantile in enumerate(found.tolist()):
        below, rest = divmod(place * (len(values) - 1), gaps)
        low, high = ordered[below], ordered[below + 1]
        if not rest:
            assert quantile == low
        else:
            exact = Fraction(low) + (Fraction(high) - Fraction(low)) * Fraction(rest, gaps)
            rounding = Fraction(max(abs(low), abs(high))) / 2**50 + Fraction(math.ulp(0.0))
            assert abs(Fraction(quantile) - exact) <= rounding


def test_quantiles_of_no_values_are_nan() -> None:
    assert math.isnan(Quantiles().quantile(0.5))
    assert np.isnan(Quantiles().evenly_spaced(3)).tolist() == [True] * 3
    assert Quantiles().count == 0


# Typical columns: values around zero, of one sign and skewed, far from it, close together, and of all magnitudes.
SHAPES = {
    "normal": lambda rng, n: rng.normal(size=n),
    "lognormal": lambda rng, n: rng.lognormal(size=n),
    "cauchy": lambda rng, n: rng.standard_cauchy(n),
    "far": lambda rng, n: 1e9 + rng.normal(size=n),
    "clustered": lambda rng, n: rng.choice([-50.0, 3.0, 1000.0], n) + rng.normal(size=n) * 0.01,
    "all sizes": lambda rng, n: rng.normal(size=n) * 10.0 ** rng.integers(-300, 300, n),
    "negative": lambda rng, n: -rng.lognormal(size=n),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_quantile_error_is_bounded_by_the_bucket(shape: str) -> None:
    rows = 200_001
    values = np.sort(SHAPES[shape](np.random.default_rng(0), rows))
    summary = Quantiles.of(values)
    assert not summary.exact
    assert len(summary.keys) <= MAX_BUCKETS
    assert summary.keys.nbytes + summary.counts.nbytes <= 1 << 16
    assert summary.count == rows
    places = np.linspace(0, rows - 1, 1001).astype(int)
    found = summary.quantiles(places / (rows - 1))
    error = 2.0 ** (summary.shift - 52)
    assert (np.abs(found - values[places]) <= error * np.abs(values[places]) + 2.0 ** (summary.shift - 1074)).all()
    assert (np.diff(found) >= 0).all()


# The largest share of the rows that lie between a quantile and the true one; 4,096 buckets of 200,000 rows.
RANK_ERRORS = {"normal": 3e-4, "lognormal": 3e-4, "cauchy": 3e-4, "far": 3e-4, "clustered": 1e-2}
RANK_ERRORS |= {"all sizes": 3e-4, "negative": 3e-4}


@pytest.mark.parametrize("shape", SHAPES)
def test_quantile_rank_error_is_small(shape: str) -> None:
    values = np.sort(SHAPES[shape](np.random.default_rng(1), 200_000))
    fractions = np.linspace(0, 1, 1001)
    ranks = np.searchsorted(values, Quantiles.of(values).quantiles(fractions)) / len(values)
    assert np.abs(ranks - fractions).max() <= RANK_ERRORS[shape]


@given(st.lists(finite, min_size=1, max_size=60), st.randoms(use_true_random=False), st.integers(1, 6))
def test_quantiles_do_not_depend_on_order_and_parts(values: list[float], random, limit: int) -> None:
    with sized(quantile_buckets=3 + limit, quantile_sample=2):
        whole = Quantiles.of(np.array(values))
        assert whole.shift <= 64
        random.shuffle(values)
        cuts = sorted(random.randrange(len(values) + 1) for _ in range(3))
        parts = [Quantiles.of(np.array(part)) for part in np.split(np.array(values), cuts)]
        random.shuffle(parts)
        assert (parts[0] + parts[1]) + (parts[2] + parts[3]) == whole
        assert parts[3] + (parts[1] + (parts[0] + parts[2])) == whole
        assert len(whole.keys) <= 3 + limit


@given(st.lists(finite, min_size=5, max_size=40, unique=True))
@example([-5e-324, 5e-324, 1.0, 2.0, 4.0])
def test_shift_is_the_smallest_within_the_bucket_limit(values: list[float]) -> None:
    with sized(quantile_buckets=4):
        found = Quantiles.of(np.array(values))
        keys = Quantiles.of(np.array(values[:1])).keys.tolist()
        keys = [key for value in values for key in Quantiles.of(np.array([value])).keys.tolist()]

    def buckets(shift: int) -> int:
        return len({0 if key >> shift == -1 else key >> shift for key in keys})

    assert buckets(found.shift) <= 4
    assert found.shift == 0 or buckets(found.shift - 1) > 4


@given(st.lists(finite, min_size=1))
@example([5e-324, -5e-324])
def test_values_of_few_are_sorted_and_distinct(values: list[float]) -> None:
    summary = Quantiles.of(np.array(values))
    assert summary.values().tolist() == sorted(set(values))
    assert len(summary.counts) == len(set(values))


def test_values_of_many_are_bucket_midpoints() -> None:
    values = np.random.default_rng(0).normal(size=20 * MAX_BUCKETS)
    values[:10] = 0.0
    summary = Quantiles.of(values)
    assert summary.counts[summary.values() == 0].tolist() == [10]
    total = float(summary.values() @ summary.counts)
    assert abs(total - values.sum()) <= 2.0 ** (summary.shift - 53) * np.abs(values).sum()


def test_bucket_is_the_leading_bits_of_the_mantissa() -> None:
    many = 2.0 + np.arange(4 * MAX_BUCKETS) / (2 * MAX_BUCKETS)  # too many numbers in one octave for 12 bits
    values = np.array([1.0, 1.0 + 2.0**-12, 1.0 + 2.0**-11, -1.0])
    summary = Quantiles.of(np.concatenate([values, many]))
    assert summary.shift == 52 - 11
    assert summary.counts[:3].tolist() == [1, 2, 1]
    middles = [-1.0 - 2.0**-12, 1.0 + 2.0**-12, 1.0 + 2.0**-11 + 2.0**-12]
    np.testing.assert_allclose(summary.values()[:3], middles, rtol=1e-14)
    assert summary.quantile(0.0) == -1.0 - 2.0**-12


def test_equality_compares_all_fields() -> None:
    one = Quantiles.of(np.array([1.0, 2.0]))
    assert one == Quantiles.of(np.array([2.0, 1.0]))
    assert one != Quantiles.of(np.array([1.0, 3.0]))
    assert one != Quantiles.of(np.array([1.0, 2.0, 2.0]))
    assert one != Quantiles(one.keys, one.counts, shift=1)
    assert one != "quantiles"


def test_zeros_among_many_distinct_values_stay_zero() -> None:
    values = np.concatenate([np.arange(1.0, MAX_BUCKETS + 1), np.zeros(MAX_BUCKETS * 2), [-0.0, -5e-324]])
    summary = Quantiles.of(values)
    assert not summary.exact
    assert summary.quantile(0.25) == 0.0
    assert summary.quantile(0.0) == 0.0
    assert [edge[0] for edge in summary.edges()] == [0.0, 0.0]


def test_few_values_have_separate_buckets_except_zeros() -> None:
    keys, shift = assign_buckets(np.array([0.0, -0.0, 5e-324, -5e-324, 1.0]))
    assert (keys.tolist(), shift) == ([0, 0, 1, -2, 1023 << 52], 0)


@pytest.mark.parametrize("shape", SHAPES)
def test_buckets_of_rows_equal_buckets_of_the_summary(shape: str) -> None:
    values = SHAPES[shape](np.random.default_rng(2), 20_000)
    summary, (keys, shift) = Quantiles.of(values), assign_buckets(values)
    further = finest_shift(np.unique(keys))
    rest = keys >> further
    assert shift + further == summary.shift
    assert np.array_equal(np.unique(np.where(rest == -1, 0, rest)), summary.keys)


def test_limit_of_distinct_values_is_the_same_for_parts_and_whole() -> None:
    values = np.random.default_rng(0).permutation(np.tile(np.arange(float(MAX_BUCKETS)), 2))
    parts = np.array_split(values, 7)
    whole = Quantiles.of(values)
    merged = sum((Quantiles.of(part) for part in parts[1:]), Quantiles.of(parts[0]))
    assert whole.exact
    assert merged == whole
    one_more = np.array([-1.0])
    assert not Quantiles.of(np.append(values, one_more)).exact
    assert merged + Quantiles.of(one_more) == Quantiles.of(np.append(values, one_more))


@given(st.lists(finite), finite, st.integers(0, 3))
def test_adding_a_value_equals_summarizing_it(values: list[float], value: float, times: int) -> None:
    together = np.array(values + [value] * times)
    assert Quantiles.of(np.array(values)) + Quantiles.of(np.array([value])) * times == Quantiles.of(together)
    assert Range.of(np.array(values)) + Range.of(np.array([value])) * times == Range.of(together)


def test_range_of_no_values_is_empty_and_neutral() -> None:
    empty = Range.of(np.array([]))
    assert empty.empty
    assert empty + Range(1.0, 2.0) == Range(1.0, 2.0)
    assert not Range.of(np.array([1.0])).empty


def test_negative_zero_counts_as_zero() -> None:
    assert math.copysign(1.0, Range.of(np.array([-0.0])).min) == 1.0
    assert math.copysign(1.0, Range.of(np.array([-0.0, -1.0])).max) == 1.0
    assert Range.of(np.array([3.0, 1.0, 2.0])) == Range(1.0, 3.0)
    assert len(Quantiles.of(np.array([0.0, -0.0])).keys) == 1
