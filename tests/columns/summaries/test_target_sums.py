from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from daskprep.columns.summaries import Quantiles
from daskprep.columns.summaries.target_sums import TargetSums, split_into_digits
from tests.sizes import sized

finite = st.floats(allow_nan=False, allow_infinity=False)
SMALLEST = 5e-324


def sum_numbers(values: np.ndarray, target: np.ndarray) -> TargetSums:
    """Summarize finite values and the finite target of each."""
    return TargetSums.of(values, *split_into_digits(target))


def by_class(values: list[float], names: list[str], labels: tuple[str, ...]) -> TargetSums:
    return TargetSums.of(np.array(values), np.array([labels.index(name) for name in names], np.int64), labels)


def held(sums: TargetSums) -> list[Fraction]:
    """Return the sum of each bucket."""
    places = [Fraction(16) ** int(place) for place in sums.labels]
    return [
        sum((digit * place for digit, place in zip(row, places, strict=True)), Fraction(0))
        for row in sums.sums.tolist()
    ]


def test_empty_sums() -> None:
    none = np.zeros(0)
    for empty in (sum_numbers(none, none), TargetSums.of(none, none.astype(np.int64), ("a",))):
        assert empty == TargetSums()
        assert empty.targets().shape == (0, 0)
        assert empty + sum_numbers(np.ones(1), np.ones(1)) == sum_numbers(np.ones(1), np.ones(1))


@pytest.mark.parametrize("values", [[3.0, 1.0, 3.0, 2.0], [1e300, -1e300, 1e300, 5.0], [0.0, -0.5, -0.0, -0.25]])
def test_rows_of_each_class_are_counted_by_value(values: list[float]) -> None:
    sums = by_class(values, ["b", "a", "c", "c"], ("c", "b", "a"))
    assert sums.labels == ("a", "b", "c")
    assert sums.buckets.values().tolist() == sorted(set(values))
    assert sums.rows.tolist() == [1, 1, 2]
    assert sums.targets().tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 1.0]]


def test_classes_missing_in_parts_are_zero() -> None:
    left = by_class([1.0, 1.0, 2.0], ["z", "b", "b"], ("z", "b"))
    right = by_class([2.0, 3.0], ["a", "z"], ("a", "z"))
    for both in (left + right, right + left):
        assert both.labels == ("a", "b", "z")
        assert both.targets().tolist() == [[0.0, 1.0, 1.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    assert (left * 3).targets().tolist() == [[3.0, 3.0], [3.0, 0.0]]
    assert (left * 3).rows.tolist() == [6, 3]


@given(st.lists(finite | st.sampled_from([0.0, -0.0, SMALLEST, -SMALLEST]), min_size=1, max_size=30), st.integers(2, 6))
@example([-SMALLEST, SMALLEST, -1.0, 1.0, 2.0, 0.0], 3)
def test_buckets_equal_quantiles(values: list[float], most: int) -> None:
    with sized(quantile_buckets=most + 1):
        numbers = np.array(values)
        expected = Quantiles.of(numbers)
        whole = sum_numbers(numbers, numbers)
        parts = [sum_numbers(numbers[i::3], numbers[i::3]) for i in range(3)]
        assert whole.buckets == expected
        assert parts[2] + parts[0] + parts[1] == whole


@given(st.lists(st.builds(math.ldexp, st.integers(1 - 2**24, 2**24).map(float), st.integers(-9, 9)), min_size=1))
def test_sums_of_24_bits_are_exact(target: list[float]) -> None:
    for values in (np.zeros(len(target)), np.arange(float(len(target)))):
        sums = sum_numbers(values, np.array(target))
        assert sum(held(sums), Fraction(0)) == sum(map(Fraction, target), Fraction(0))
        assert held(sums * 5) == [5 * one for one in held(sums)]


def test_targets_are_rounded_to_24_bits() -> None:
    target = [1.0 + 2.0**-24, 1.0 + 3 * 2.0**-24, -1.0 - 2.0**-23]
    sums = sum_numbers(np.arange(3.0), np.array(target))
    assert held(sums) == [1, 1 + Fraction(1, 2**22), -1 - Fraction(1, 2**23)]


@pytest.mark.parametrize(("target", "places"), [([0.5], 1), ([3.0, 3.0], 1), ([-1.0, 16.0**4], 5)])
def test_labels_range_from_the_lowest_to_the_highest_digit(target: list[float], places: int) -> None:
    sums = sum_numbers(np.zeros(len(target)), np.array(target))
    assert len(sums.labels) == places
    assert (sums + sums).labels == sums.labels
    assert sums.targets().tolist() == [[sum(target) / 16.0 ** max(sums.labels)]]


@pytest.mark.parametrize("together", [True, False])
def test_only_the_16_highest_digits_are_kept(together: bool) -> None:
    target = np.array([16.0**place for place in (3, 3 - 15, 3 - 16, 3 - 40)])
    parts = [sum_numbers(np.zeros(len(one)), one) for one in ([target] if together else np.split(target, 4))]
    for ordered in (parts, parts[::-1]):
        sums = sum(ordered, TargetSums())
        assert len(sums.labels) == 16
        assert held(sums) == [16**3 + Fraction(16) ** (3 - 15)]
        assert sums.rows.tolist() == [4]


@pytest.mark.parametrize("target", [16.0 ** np.arange(4), 16.0 ** np.array([9, 0, 25, 8])])
def test_sums_of_selected_rows_equal_separate_sums(target: np.ndarray) -> None:
    values, (codes, labels, digits) = np.arange(4.0), split_into_digits(target)
    for size in range(1, 5):
        for some in map(list, itertools.combinations(range(4), size)):
            alone = sum_numbers(values[some], target[some])
            assert TargetSums.of(values[some], codes[some], labels, digits[some]) == alone


def test_split_into_digits_returns_consecutive_positions() -> None:
    codes, places, digits = split_into_digits(np.array([0.0, 1.0, -(16.0**3)]))
    assert (codes.tolist(), places) == ([0, 0, 3], (-6, -5, -4, -3))
    assert [digit * 16.0 ** places[code] for code, digit in zip(codes, digits, strict=True)] == [0.0, 1.0, -(16.0**3)]
    assert split_into_digits(np.zeros(2))[1] == (0,)


def test_zeros_do_not_change_tiny_targets() -> None:
    values, target = np.arange(3.0), np.array([2.0**-900, 0.0, -3 * 2.0**-901])
    whole = sum_numbers(values, target)
    assert held(whole) == [Fraction(one) for one in target.tolist()]
    parts = [sum_numbers(values[i : i + 1], target[i : i + 1]) for i in range(3)]
    assert parts[1] + parts[0] + parts[2] == whole
    assert parts[0] + (parts[2] + parts[1]) == whole


def test_sums_beyond_doubles_are_scaled_by_the_largest_digit() -> None:
    target = np.array([1.5e308, 1.5e308, -1.0])
    sums = sum_numbers(np.array([1.0, 1.0, 2.0]), target)
    (first,), (second,) = sums.targets().tolist()
    assert math.isclose(first * (16.0 ** max(sums.labels) / 2), 1.5e308, rel_tol=2.0**-23)
    assert second == 0.0
