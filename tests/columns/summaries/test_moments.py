from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from daskprep.columns.summaries import Moments, WeightedMoments
from daskprep.columns.summaries.moments import BLOCK_VALUES, GROUP_VALUES, UNIT_BITS, sqrt_fraction

finite = st.floats(allow_nan=False, allow_infinity=False)
scattered = st.builds(math.ldexp, st.floats(-1, 1), st.integers(-1080, 1020))
LARGEST, SMALLEST = float(np.finfo(float).max), 5e-324
LARGEST_WEIGHT = float(np.finfo(np.float32).max)
WEIGHTS = st.floats(0, LARGEST_WEIGHT)
UNITS = 2**1074


def in_units(value: float) -> int:
    """Return a double in units of the smallest one."""
    numerator, denominator = value.as_integer_ratio()
    return numerator * (UNITS // denominator)


def exact(values: list[float]) -> tuple[Fraction, Fraction]:
    numbers = [in_units(value) for value in values]
    return Fraction(sum(numbers), UNITS), Fraction(sum(number * number for number in numbers), UNITS**2)


def is_nearest_root(sqrt_fraction: float, square: Fraction) -> bool:
    """Return whether no other double is closer to the square root."""
    below = (Fraction(sqrt_fraction) + Fraction(max(0.0, math.nextafter(sqrt_fraction, 0.0)))) / 2
    above = (Fraction(sqrt_fraction) + Fraction(math.nextafter(sqrt_fraction, math.inf))) / 2
    return below**2 <= square <= above**2


@given(st.lists(finite | scattered | st.sampled_from([LARGEST, -LARGEST, SMALLEST, 0.1])))
@example([LARGEST] * 3 + [-LARGEST, SMALLEST, 1.0])
@example([2.0**-1022, SMALLEST, -(2.0**-1023)])
@example([1.0, 2.0**-64, 2.0**-65, 2.0**-117])
def test_sums_are_exact(values: list[float]) -> None:
    moments = Moments.of(np.array(values))
    total, squares = exact(values)
    assert Fraction(moments.total, 2**1074) == total
    assert Fraction(moments.squares, 2**2148) == squares
    assert moments.count == len(values)


@pytest.mark.parametrize("size", [BLOCK_VALUES - 1, BLOCK_VALUES + 77, GROUP_VALUES + 77])
@pytest.mark.parametrize("name", ["normal", "mixed", "integers", "ones", "outlier"])
def test_sums_are_exact_over_many_blocks(name: str, size: int) -> None:
    rng = np.random.default_rng(0)
    values = {
        "normal": rng.normal(size=size),
        "mixed": rng.normal(size=size) * 2.0 ** rng.integers(-900, 900, size),
        "integers": rng.integers(-(2**53), 2**53, size).astype(float),
        # The largest possible digits, all of one sign: the bound of 2**53 is reached.
        "ones": np.full(size, 1.0 - 2.0**-53),
        "outlier": np.append(rng.normal(size=size), 1e300),
    }[name]
    moments = Moments.of(values)
    total, squares = exact(values.tolist())
    assert Fraction(moments.total, 2**1074) == total
    assert Fraction(moments.squares, 2**2148) == squares


@given(st.lists(finite, min_size=1), st.integers(0, 1))
@example([LARGEST, LARGEST], 0)
@example([SMALLEST, 0.0, 0.0], 0)
@example([1e16, 1.0, -1e16], 1)
def test_mean_and_std_are_the_closest_doubles(values: list[float], ddof: int) -> None:
    moments = Moments.of(np.array(values))
    total, squares = exact(values)
    count = len(values)
    assert moments.mean() == float(total / count)
    if count > ddof:
        variance = (squares - total * total / count) / (count - ddof)
        std = moments.std(ddof)
        assert is_nearest_root(std, variance) if math.isfinite(std) else variance > Fraction(LARGEST) ** 2


def test_moments_agree_with_numpy() -> None:
    values = np.random.default_rng(0).normal(5, 2, 10_000)
    moments = Moments.of(values)
    np.testing.assert_allclose([moments.mean(), moments.std(1)], [values.mean(), values.std(ddof=1)], rtol=1e-13)


@given(finite, st.integers(0, 5))
def test_adding_a_value_equals_summarizing_it(value: float, times: int) -> None:
    start = Moments.of(np.array([1.5, -2.0]))
    assert start + Moments.of(np.array([value])) * times == Moments.of(np.array([1.5, -2.0, *[value] * times]))


def test_too_few_values_have_no_statistics() -> None:
    assert math.isnan(Moments().mean())
    assert math.isnan(Moments().std())
    assert math.isnan(Moments.of(np.array([3.0])).std(ddof=1))
    assert Moments.of(np.array([3.0])).std() == 0.0


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_non_finite_values_raise(odd: float) -> None:
    with pytest.raises(ValueError, match=f"not {odd}: make such cells null"):
        Moments.of(np.array([1.0, odd]))


def test_input_can_have_any_dtype_and_layout() -> None:
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert Moments.of(table[:, 1]) == Moments.of(np.array([1.0, 5.0, 9.0]))
    assert Moments.of(np.array([1, 5, 9])) == Moments.of(np.array([1.0, 5.0, 9.0]))


def test_sqrt_fraction_rounds_with_all_remaining_bits() -> None:
    # 2**53 + 1 is halfway between two doubles; a root that is above by less than 2**-400 rounds up.
    halfway = 2**53 + 1
    assert sqrt_fraction(halfway**2 << 400, 1 << 400) == 2.0**53
    assert sqrt_fraction((halfway**2 << 400) + 1, 1 << 400) == 2.0**53 + 2


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_sqrt_fraction_rounds_to_the_nearest_double(more: int) -> None:
    square = (((1 << 53) + 1) << 11) ** 2 + more
    assert is_nearest_root(sqrt_fraction(square, 1), Fraction(square))
    assert sqrt_fraction(square, 1) == float(((1 << 53) + 2 * (more > 0)) << 11)


def test_std_beyond_the_largest_double_is_infinite() -> None:
    moments = Moments.of(np.array([LARGEST, -LARGEST]))
    assert (moments.std(), moments.std(1)) == (LARGEST, math.inf)


# -- weighted


def weighted(rows: list[tuple[float, float]]) -> WeightedMoments:
    values, weights = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    return WeightedMoments.of_weighted(values, weights)


@given(st.lists(st.tuples(finite, WEIGHTS), min_size=1, max_size=20))
@example([(LARGEST, LARGEST_WEIGHT), (SMALLEST, 2.0**-149), (1 - 2.0**-53, 1 - 2.0**-53), (2.0**300, 2.0**-149)])
def test_weighted_sums_are_exact(rows: list[tuple[float, float]]) -> None:
    found = weighted(rows)
    exact = [(Fraction(value), Fraction(weight)) for value, weight in rows]
    assert Fraction(found.total, 1 << 2 * UNIT_BITS) == sum(value * weight for value, weight in exact)
    assert Fraction(found.squares, 1 << 3 * UNIT_BITS) == sum(value**2 * weight for value, weight in exact)
    assert Fraction(found.weights, 1 << UNIT_BITS) == sum(weight for _, weight in exact)


@pytest.mark.parametrize("size", [BLOCK_VALUES + 77, GROUP_VALUES + 77])
def test_weighted_sums_are_exact_over_many_blocks(size: int) -> None:
    rng = np.random.default_rng(0)
    # The largest possible digits, and many numbers of random digits.
    for values in (np.full(size, 1.0 - 2.0**-53), rng.lognormal(0, 9, size) * rng.choice([-1, 1], size)):
        moments = WeightedMoments.of_weighted(values, weights := np.abs(values[::-1]))
        rows = [(in_units(value), in_units(weight)) for value, weight in zip(values, weights, strict=True)]
        total, squares = sum(value * weight for value, weight in rows), sum(value**2 * weight for value, weight in rows)
        assert Fraction(moments.total, 1 << 2 * UNIT_BITS) == Fraction(total, UNITS**2)
        assert Fraction(moments.squares, 1 << 3 * UNIT_BITS) == Fraction(squares, UNITS**3)


@given(st.lists(st.tuples(finite, WEIGHTS), min_size=1, max_size=20), st.integers(0, 20))
@example([(1e308, 3.0), (-1e308, 1.0), (1e-300, 1e-300)], 1)
def test_weighted_moments_merge_in_any_order(rows: list[tuple[float, float]], cut: int) -> None:
    parts = [weighted(some) for some in (rows[:cut], rows[cut:]) if some]
    assert sum(parts[1:], parts[0]) == weighted(rows)
    assert weighted(rows[::-1]) == weighted(rows)


@given(st.lists(finite, min_size=1, max_size=20), st.sampled_from([1.0, 4.0]))
@example([1e9 + i for i in range(10)], 1.0)
def test_equal_weights_equal_no_weights(values: list[float], weight: float) -> None:
    found, plain = weighted([(value, weight) for value in values]), Moments.of(np.array(values))
    np.testing.assert_equal(found.mean(), plain.mean())
    np.testing.assert_equal(found.std(ddof=1), plain.std(ddof=1))


def test_rows_of_weight_0_are_ignored() -> None:
    rows = [(1.0, 1.0), (2.0, 1.0), (3.0, 1.0), (np.nan, 1.0)]
    whole = weighted([*rows, (7.0, 0.0), *[(np.nan, 0.0)] * 5])
    assert whole == weighted(rows)
    filled = whole + Moments.of(np.array([2.0])) * 6
    assert (filled.count, filled.missing_count, filled.missing) == (4, 0, 0)
    assert filled.std(ddof=1) == pytest.approx(np.std([1, 2, 3, 2], ddof=1))
