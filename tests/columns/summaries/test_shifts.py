"""Counts of two samples: the p-value is a close upper bound of the exact tail, and bins are exact."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import hypergeom

from daskprep.columns.summaries import Quantiles, Range
from daskprep.columns.summaries.shifts import compare_counts, count_bins

NUMBERS = st.lists(st.floats(-60_000, 60_000, allow_subnormal=False, width=16), min_size=1, max_size=200)


@given(st.integers(1, 3_000), st.integers(1, 3_000), st.floats(0, 1), st.floats(0, 1))
def test_p_value_is_a_close_upper_bound(total, other_total, share, other_share):
    count, other = round(total * share), round(other_total * other_share)
    pair = np.array([other, other_total - other]), np.array([count, total - count])
    bound = compare_counts(*pair, only_more=True).p_value
    exact = hypergeom.sf(count - 1, total + other_total, total, count + other)
    assert bound >= exact * (1 - 1e-6) - 1e-300
    assert not 1e-200 < exact < 1e-3 or bound < 1.25 * exact


def test_compare_counts_returns_the_worst_bin_and_its_shares():
    shift = compare_counts(np.array([500, 300, 200]), np.array([100, 60, 840]), ordered=True)
    assert shift.event in (2, 4)
    assert (shift.share, shift.expected) in ((0.84, 0.2), (0.16, 0.8))
    assert shift.exceeds_chance(10_000)
    assert not compare_counts(np.array([50, 30, 20]), np.array([5, 3, 2])).exceeds_chance(1)
    assert compare_counts(np.zeros(3, int), np.array([5, 3, 2])).p_value == 1


@given(NUMBERS, NUMBERS)
def test_bins_include_their_upper_edge(numbers, others):
    values = np.array(numbers)
    edges, counts = Quantiles.of(values).bins(8, Range.of(values))
    assert len(counts) == len(edges) - 1 <= 8
    assert (edges[0], edges[-1], sum(counts)) == (values.min(), values.max(), len(values))
    assert count_bins(values, np.array(edges)).tolist() == [0, *counts, 0]
    bins = np.searchsorted(np.array(edges[1:]), others) + 1
    expected = np.where(np.array(others) < edges[0], 0, bins)
    assert (
        count_bins(np.array(others), np.array(edges)).tolist()
        == np.bincount(expected, minlength=len(counts) + 2).tolist()
    )


def test_bins_of_buckets_are_exact():
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(size=20_000), np.zeros(1_000), -rng.lognormal(0, 5, 20_000)])
    summary = Quantiles.of(values)
    assert not summary.exact
    edges, counts = summary.bins(32, Range.of(values))
    assert len(counts) == 32
    assert count_bins(values, np.array(edges)).tolist() == [0, *counts, 0]
