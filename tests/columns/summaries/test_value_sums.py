from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from daskprep.columns.summaries.target_sums import DIGIT_BITS, MAX_POSITIONS, SumTable, ValueSums
from tests.sizes import Sizes

FOLDS = 2

Row = tuple[str, int, float]
doubles = st.builds(math.ldexp, st.integers(-(2**53), 2**53).map(float), st.integers(-40, 40))
rows_strategy = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, FOLDS - 1), doubles | st.just(math.nan)), max_size=30
)


def summed(rows: list[Row]) -> ValueSums:
    values = pa.array([value for value, _, _ in rows], pa.string()).dictionary_encode()
    folds = np.array([fold for _, fold, _ in rows], np.uint8)
    numbers = np.array([number for _, _, number in rows], np.float64)
    return ValueSums.of(values, folds, FOLDS, {"rows": np.ones(len(rows)), "y": numbers})


def counted(values: list[str]) -> ValueSums:
    """Return sums of two labels, which take 32 + 8 * 2 * FOLDS bytes per value during addition."""
    return summed([(value, 0, 1.0) for value in values])


def found(summary: ValueSums) -> dict[str, dict[str, list[Fraction]]]:
    """Return the sums by quantity, value and fold, without zeros of values without sums."""
    sums: dict[str, dict[str, list[Fraction]]] = {}
    for part in summary.parts():
        for column, (quantity, place) in enumerate(part.labels):
            for value, digits in zip(part.values.to_pylist(), part.digits[:, column].tolist(), strict=True):
                before = sums.setdefault(quantity, {}).get(value, [Fraction(0)] * FOLDS)
                unit = Fraction(2) ** (DIGIT_BITS * place)
                sums[quantity][value] = [one + digit * unit for one, digit in zip(before, digits, strict=True)]
    return {
        quantity: {value: one for value, one in by_value.items() if any(one)} for quantity, by_value in sums.items()
    }


def expected(rows: list[Row]) -> dict[str, dict[str, list[Fraction]]]:
    sums: dict[str, dict[str, list[Fraction]]] = {}
    for value, fold, number in rows:
        for quantity, added in (("rows", 1.0), ("y", number)):
            if added and not math.isnan(added):
                sums.setdefault(quantity, {}).setdefault(value, [Fraction(0)] * FOLDS)[fold] += Fraction(added)
    return {
        quantity: {value: one for value, one in by_value.items() if any(one)} for quantity, by_value in sums.items()
    }


@given(rows_strategy)
@example([("a", 1, 0.0), ("a", 0, -0.5), ("b", 1, 2.0**93)])
def test_sums_are_exact(rows: list[Row]) -> None:
    assert found(summed(rows)) == expected(rows)


@pytest.mark.parametrize("sign", [1, -1])
def test_many_sums_of_the_largest_digits_are_exact(sign: int) -> None:
    summary = summed([("a", 0, sign * (2.0**53 - 1))] * 1000)
    for _ in range(26):
        summary = (summary + summary).limit_memory(None)
    assert found(summary)["y"] == {"a": [sign * Fraction(1000 * 2**26 * (2**53 - 1)), Fraction(0)]}


def test_sums_by_fold_include_total_and_all_but_each_fold() -> None:
    [part] = summed([("a", 0, 3.0), ("b", 1, -0.5), ("a", 1, 2.0**60), ("a", 1, math.nan)]).parts()
    assert (part.folds, part.values.to_pylist()) == (FOLDS, ["a", "b"])
    assert part.sums_by_fold("rows", 0).tolist() == [[3.0, 2.0, 1.0], [1.0, 1.0, 0.0]]
    assert part.sums_by_fold("y", 0).tolist() == [[2.0**60 + 3, 2.0**60, 3.0], [-0.5, -0.5, 0.0]]
    assert part.sums_by_fold("y", 2).tolist() == [[2.0**8, 2.0**8, 3 * 2.0**-52], [-(2.0**-53), -(2.0**-53), 0.0]]
    assert part.sums_by_fold("other", 0).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("number", [math.nan, 0.0])
def test_values_with_zero_sums_are_not_stored(number: float) -> None:
    values = pa.array(["a", "b"]).dictionary_encode()
    summary = ValueSums.of(values, np.zeros(2, np.uint8), FOLDS, {"y": np.full(2, number)})
    assert (summary.chunks, summary.spilled, list(summary.parts())) == ((), (), [])


@pytest.mark.parametrize("together", [True, False])
def test_only_the_highest_positions_of_a_quantity_are_kept(together: bool) -> None:
    places = [4, 4 - MAX_POSITIONS + 1, 4 - MAX_POSITIONS]
    rows = [("a", 0, 2.0 ** (DIGIT_BITS * place)) for place in places]
    summary = summed(rows) if together else summed(rows[2:]) + summed(rows[:1]) + summed(rows[1:2])
    for sums in (summary, summary.limit_memory(None)):
        [part] = sums.parts()
        assert part.labels == (("rows", 0), ("y", places[1]), ("y", places[0]))
        assert part.digits.tolist() == [[[3, 0], [1, 0], [1, 0]]]


@pytest.mark.parametrize("highest", [30, 0, -30])
def test_highest_bit_of_a_position_needs_no_other_position(highest: int) -> None:
    lowest = highest - MAX_POSITIONS + 1
    rows = [("a", 0, 2.0 ** (DIGIT_BITS * highest + DIGIT_BITS - 1)), ("a", 1, 2.0 ** (DIGIT_BITS * lowest))]
    assert found(summed(rows)) == expected(rows)
    assert found(summed(rows[1:])) == expected(rows[1:])


@pytest.mark.parametrize(
    ("least", "most", "kind"),
    [(0, 127, np.int8), (0, 128, np.int16), (-128, 0, np.int8), (-129, 0, np.int16), (-300, 5, np.int16)],
)
def test_sums_have_the_smallest_dtype(least: int, most: int, kind: type) -> None:
    rows = [("a", 0, float(least)), ("b", 0, float(most))]
    quantities = {"y": np.array([number for _, _, number in rows])}
    values = pa.array(["a", "b"]).dictionary_encode()
    summary = ValueSums.of(values, np.zeros(2, np.uint8), 1, quantities)
    assert (summary.chunks[0].digits.dtype, summary.chunks[0].digits.ravel().tolist()) == (kind, [least, most])
    [part] = (summary + summary).parts()
    assert part.digits.ravel().tolist() == [2 * least, 2 * most]


# -- within memory


def test_chunks_are_merged_within_the_group_limit(tmp_path: Path, sizes: Sizes) -> None:
    two = counted(["a", "b", "c"]) + counted(["b", "d"])
    added_bytes = 5 * (32 + 8 * 2 * FOLDS)
    sizes(sum_group_bytes=added_bytes)
    [chunk] = two.limit_memory(str(tmp_path)).chunks
    assert chunk.values.to_pylist() == ["a", "b", "c", "d"]
    sizes(sum_group_bytes=added_bytes - 1)
    assert two.limit_memory(str(tmp_path)).chunks == two.chunks
    assert len(two.limit_memory(None).chunks) == 1
    assert not list(tmp_path.iterdir())


def test_merged_chunks_are_not_copied(tmp_path: Path) -> None:
    one = counted(["a", "b"])
    for folder in (None, str(tmp_path)):
        assert one.limit_memory(folder).chunks[0] is one.chunks[0]
        assert ValueSums().limit_memory(folder).chunks == ()


def test_sums_beyond_the_memory_limit_spill(tmp_path: Path, sizes: Sizes) -> None:
    one = counted(["a", "b"])
    nbytes = one.chunks[0].values.nbytes + 2 * 2 * FOLDS  # of int8
    sizes(sum_spill_bytes=nbytes)
    assert one.limit_memory(str(tmp_path)).chunks
    assert not list(tmp_path.iterdir())
    sizes(sum_spill_bytes=nbytes - 1)
    assert one.limit_memory(None).chunks
    spilled = one.limit_memory(str(tmp_path))
    assert (spilled.chunks, len(spilled.spilled), len(list(tmp_path.iterdir()))) == ((), 1, 1)
    assert found(spilled) == found(one)
    again = (spilled + counted(["b", "c"])).limit_memory(str(tmp_path))
    assert (again.chunks, len(again.spilled), len(list(tmp_path.iterdir()))) == ((), 2, 2)
    assert found(again) == found(counted(["a", "b", "b", "c"]))


def test_chunks_too_large_to_merge_spill_separately(tmp_path: Path, sizes: Sizes) -> None:
    sizes(sum_spill_bytes=1, sum_group_bytes=100)
    summary = (counted(["a", "b"]) + summed([("b", 1, 2.0**70)])).limit_memory(str(tmp_path))
    assert [(len(one.labels), one.file.entries) for one in summary.spilled] == [(2, 2), (2, 1)]
    assert found(summary) == expected([("a", 0, 1.0), ("b", 0, 1.0), ("b", 1, 2.0**70)])


def test_few_sums_do_not_spill_by_default(tmp_path: Path, sizes: Sizes) -> None:
    summary = (counted(["a", "b"]) + counted(["b"])).limit_memory(str(tmp_path))
    assert not summary.spilled
    sizes(sum_spill_bytes=0)
    [part] = summary.limit_memory(str(tmp_path)).parts()
    assert sorted(zip(part.values.to_pylist(), part.sums_by_fold("rows", 0)[:, 0], strict=True)) == [
        ("a", 1.0),
        ("b", 2.0),
    ]


def test_files_are_read_in_parts_of_limited_bytes(tmp_path: Path, sizes: Sizes) -> None:
    sizes(sum_spill_bytes=0)
    values = [f"value {number}" for number in range(1600)]
    summary = counted(values).limit_memory(str(tmp_path))
    sizes(sum_group_bytes=40 * (32 + 8 * 2 * FOLDS))
    parts = list(summary.parts())
    assert len(parts) == 1600 // 40
    assert max(len(part.values) for part in parts) < 80  # shards by hash differ in size
    assert sorted(value for part in parts for value in part.values.to_pylist()) == sorted(values)


def test_parts_have_disjoint_values_and_equal_labels(tmp_path: Path, sizes: Sizes) -> None:
    sizes(sum_spill_bytes=0)
    folder = str(tmp_path)
    files = [summed([(f"value {number}", 0, 1.0) for number in range(300)])]
    files += [summed([(f"value {number}", 1, 2.0**70) for number in range(290, 310)])]
    memory = summed([("value 0", 1, -0.25), ("in memory", 0, 5.0)])
    summary = files[0].limit_memory(folder) + memory + files[1].limit_memory(folder) * 2
    sizes(sum_group_bytes=200)  # two values at a time
    parts = list(summary.parts())
    assert {part.labels for part in parts} == {(("rows", 0), ("y", -1), ("y", 0), ("y", 2))}
    values = [value for part in parts for value in part.values.to_pylist()]
    assert len(values) == len(set(values)) == 311
    rows = [(f"value {number}", 0, 1.0) for number in range(300)]
    rows += [(f"value {number}", 1, 2.0**70) for number in range(290, 310)] * 2
    assert found(summary) == expected([*rows, ("value 0", 1, -0.25), ("in memory", 0, 5.0)])


@pytest.mark.parametrize("times", [0, 1, 3])
def test_sums_in_memory_and_in_files_are_multiplied(times: int, tmp_path: Path, sizes: Sizes) -> None:
    sizes(sum_spill_bytes=0)
    rows = [("a", 0, 0.1), ("b", 1, -3.0)]
    summary = summed(rows).limit_memory(str(tmp_path)) + summed(rows[:1])
    assert found(summary * times) == expected([*rows, rows[0]] * times)


def test_nbytes_counts_values_and_digits() -> None:
    values = pa.array(["a", "bc"])
    sums = SumTable(values, (("y", 0),), np.zeros((2, 1, 3), np.int16))
    assert sums.nbytes == values.nbytes + 2 * 3 * 2
