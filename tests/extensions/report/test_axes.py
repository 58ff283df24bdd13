from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskprep.columns.summaries import Quantiles
from daskprep.extensions.report.charts import bin_dates, bin_lengths, bin_numbers, make_formatter, nice_ticks


def spread(values):
    return Quantiles.of(np.asarray(values, np.float64))


def histogram(values):
    return bin_numbers("x", {"train": spread(values)})


@given(st.lists(st.floats(-1e30, 1e30, allow_subnormal=True), min_size=1, max_size=50))
def test_every_value_is_in_a_bin_or_noted_as_outside(values):
    chart = histogram(values)
    inside, total = int(chart.counts["train"].sum()), chart.totals["train"]
    assert total == len(values)
    assert (inside < total) == ("not drawn" in chart.note)
    assert len(chart.names) == len(chart.edges) - 1
    assert np.all(np.diff(chart.edges) > 0)


def test_integers_are_centered_in_their_bins():
    chart = histogram([1, 2, 2, 3, 5])
    assert chart.edges.tolist() == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]
    assert chart.counts["train"].tolist() == [1, 2, 1, 0, 1]


def test_integers_with_float32_rounding_have_no_empty_last_bin():
    scaled = (np.arange(1994, 2001) / 7).astype(np.float32)
    chart = histogram(scaled.astype(np.float64) * 7)
    assert chart.edges.tolist() == pytest.approx(np.arange(1993.5, 2001), abs=1e-3)
    assert chart.counts["train"].tolist() == [1] * 7


def test_bins_of_many_integers_are_equally_wide():
    chart = histogram(np.repeat(np.arange(1, 121), 3))
    assert set(chart.counts["train"].tolist()) == {9}


def test_outliers_are_not_drawn_but_noted():
    values = np.concatenate([np.random.default_rng(0).normal(size=10_000), [1e9, 2e9, -1e9]])
    chart = histogram(values)
    assert np.ptp(chart.edges) < 20
    assert chart.note == "Values outside are not drawn: 3 (<0.1 %)."


def test_many_distinct_values_are_counted_in_buckets():
    values = np.random.default_rng(0).normal(size=100_000)
    values[:1000] = 0.0
    quantiles = spread(values)
    found, counts = quantiles.values(), quantiles.counts
    assert not quantiles.exact
    assert counts.sum() == 100_000
    assert counts[found == 0].tolist() == [1000]
    assert np.average(found, weights=counts) == pytest.approx(values.mean(), abs=1e-4)
    assert np.all(np.diff(found) > 0)


@given(st.floats(-1e12, 1e12), st.floats(1e-9, 1e12))
def test_ticks_are_few_and_within_the_axis(low, width):
    ticks = nice_ticks(low, low + width)
    assert len(ticks) <= 6
    assert all(
        low - 1e-9 * abs(low) - width / 1e6 <= tick <= low + width * (1 + 1e-6) + 1e-9 * abs(low) for tick in ticks
    )


@pytest.mark.parametrize(
    ("last", "unit", "bins"),
    [("2024-01-20", "day", 20), ("2024-12-31", "month", 12), ("2043-12-31", "year", 20), ("2150-12-31", "year", 43)],
)
def test_date_unit_follows_the_range(last, unit, bins):
    days = np.arange(np.datetime64("2024-01-01"), np.datetime64(last) + 1).astype(int)
    chart = bin_dates("Dates", {"train": spread(days)})
    assert (chart.title, len(chart.names)) == (f"Dates by {unit}", bins)
    assert chart.counts["train"].sum() == len(days)
    assert chart.names[0].startswith("2024")


def test_month_bins_have_all_their_days():
    days = np.arange(np.datetime64("2024-01-01"), np.datetime64("2024-07-01")).astype(int)
    chart = bin_dates("Dates", {"train": spread(days)})
    assert dict(zip(chart.names, chart.counts["train"].tolist(), strict=True))["2024-02"] == 29


def test_dates_of_missing_values_do_not_change_the_range():
    days = np.concatenate([[0, 0], np.arange(19_000, 19_300).repeat(10)])
    chart = bin_dates("Dates", {"train": spread(days)})
    assert chart.title == "Dates by month"
    assert chart.note == "Values outside are not drawn: 2 (<0.1 %)."


def test_many_lengths_share_bins():
    chart = bin_lengths("Tokens", {"train": np.arange(101)})
    assert chart.names[:2] == ["0 to 2", "3 to 5"]
    assert chart.counts["train"][:2].tolist() == [3, 12]
    assert chart.counts["train"].sum() == np.arange(101).sum()


def test_integer_ticks_are_integers_and_several():
    assert nice_ticks(0.5, 9.5, integers_only=True) == [2, 4, 6, 8]
    assert nice_ticks(0, 3, integers_only=True) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("values", "value", "text"),
    [
        ([1994.0001, 2003.0], 1994.0001, "1994"),
        ([1.0, 12_000.0], 12_000.0, "12,000"),
        ([1.0, 5_637_812.0], 5_637_812.0, "5,637,812"),
        ([-4.4e-6, 773.868], -4.4e-6, "0"),
        ([0.1, 0.3], 0.1 + 0.2, "0.3"),
        ([1e300, -1e300], 1e300, "1e+300"),
        ([], 2.0, "2"),
    ],
)
def test_number_format(values, value, text):
    assert make_formatter([np.array(values)])[0](value) == text


def test_integer_bins_are_named_by_their_values():
    assert histogram([1, 2, 2, 3, 5]).names == ["1", "2", "3", "4", "5"]
    assert histogram(np.arange(1, 121)).names[:2] == ["1 to 3", "4 to 6"]


def test_axis_of_skewed_numbers_is_logarithmic():
    values = np.random.default_rng(0).lognormal(0, 2, 5_000)
    chart = histogram(np.concatenate([values, np.zeros(500)]))
    shares = chart.counts["train"] / chart.totals["train"]
    assert chart.note.startswith("The axis is logarithmic. Values outside are not drawn: 5")
    assert shares.max() < 0.1
    assert [text for _, text in chart.ticks][:3] == ["0.01", "0.1", "1"]
    # The bin around the median, which is 1.
    middle = int(np.searchsorted(chart.edges, 0)) - 1
    assert chart.names[middle].startswith("0.")
    assert "logarithmic" not in histogram(values - 1).note


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_outliers_are_excluded_symmetrically(side):
    for outliers in (1, 2, 3):  # of 400 values, of which 0.5 % are excluded on each side
        edges = histogram(side * np.array([*range(-200, 200 - outliers), *[1e9] * outliers])).edges
        assert (np.abs(edges).max() > 1e8) == (outliers > 2)
