from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from daskprep.columns.summaries import Lengths
from daskprep.columns.summaries.samples import MAX_TEXTS, DistinctValues
from daskprep.columns.summaries.token_counts import token_hashes

LIMIT = 1 << 14


def once(*values: str) -> DistinctValues:
    return DistinctValues.of(pa.array(values, pa.string()), np.ones(len(values)))


def numbers(values: np.ndarray) -> DistinctValues:
    return DistinctValues.of(pa.array(values), np.ones(len(values), np.int64))


def counts(found: DistinctValues) -> dict[str, int]:
    return dict(zip(found.texts.to_pylist(), found.counts.tolist(), strict=False))


def test_values_are_counted_at_every_position():
    values = pa.array(["b", "a", "b", "c", "a"])
    found = DistinctValues.of(values, np.array([1, 2, 3, 4, 5], np.int32))
    assert counts(found) == {"a": 7, "b": 4, "c": 4}
    assert (found.count, found.total, found.is_exact, found.all_unique) == (3, 15, True, False)
    assert found.hashes.tolist() == sorted(token_hashes(pa.array(["a", "b", "c"])).tolist())
    assert found.counts.dtype == np.int64


def test_empty_summary():
    empty = once()
    assert (empty.count, empty.total, empty.is_exact, empty.all_unique) == (0, 0, True, True)
    assert empty == DistinctValues() == once("a") * 0
    assert empty + once("a") == once("a") + empty == once("a")
    assert empty.counts.dtype == np.int64


def test_all_unique_requires_each_value_once():
    assert once("a", "b").all_unique
    assert not once("a", "b", "a").all_unique
    assert not (once("a", "b") + once("a")).all_unique
    assert not (once("a") * 2).all_unique


def test_equality_compares_all_fields():
    some = once("a", "b")
    assert some == once("b", "a")
    assert some != once("a")
    assert some != once("a", "c")
    assert some != some * 2
    assert some != DistinctValues(some.hashes, some.counts, some.texts, 3)
    assert some != DistinctValues(some.hashes, some.counts + 1, some.texts, 2)
    assert some != DistinctValues(some.hashes + np.uint64(1), some.counts, some.texts, 2)
    assert some != DistinctValues(some.hashes, some.counts, some.texts.take(pa.array([1, 0])), 2)
    assert some != "ab"


def test_merging_equals_summarizing_all_values():
    left, right = once("a", "b", "b", "d"), once("b", "c", "e")
    both = left + right
    assert both == right + left == once("a", "b", "b", "d", "b", "c", "e")
    assert counts(both) == {"a": 1, "b": 3, "c": 1, "d": 1, "e": 1}
    assert left * 3 == left + left + left
    with pytest.raises(AttributeError):
        left + Lengths()


def test_values_are_shown_as_the_passed_texts():
    found = DistinctValues.of(pa.array([5, 3, 5]), np.array([1, 1, 1]), pa.array(["five", "three", "V"]))
    assert counts(found) == {"five": 2, "three": 1}
    days = DistinctValues.of(pa.array([1, 2]), np.ones(2), pa.array([1, 2]).cast(pa.timestamp("s")))
    assert set(days.texts.to_pylist()) == {"1970-01-01 00:00:01", "1970-01-01 00:00:02"}


def test_long_texts_are_truncated():
    assert once("é" * 1001 + "b").texts.to_pylist() == ["é" * 1000]
    assert once("x" + "é" * 998).texts.to_pylist() == ["x" + "é" * 998]
    assert once("é" * 1001, "é" * 1002).count == 2


def test_texts_of_the_smallest_hashes_are_kept():
    values = np.arange(3 * MAX_TEXTS)
    found = numbers(values)
    order = np.argsort(token_hashes(pa.array(values)))
    assert found.texts.to_pylist() == [str(value) for value in values[order][:1024]]
    assert found.count == len(values)
    parts = [numbers(part) for part in np.array_split(values, 5)]
    assert parts[3] + (parts[0] + parts[4]) + (parts[2] + parts[1]) == found


@pytest.mark.parametrize(
    ("size", "exact"),
    [
        (LIMIT - 1, True),
        (LIMIT, False),
        (LIMIT + 1, False),
        (2 * LIMIT, False),
        (2 * LIMIT + 1, False),
        (40_000, False),
    ],
)
def test_count_is_exact_up_to_the_limit(size, exact):
    found = numbers(np.arange(size))
    assert found.is_exact is exact
    assert len(found.hashes) == len(found.counts) == min(size, LIMIT)
    assert (found.count == size) or not exact


def test_count_is_estimated_from_the_largest_kept_hash():
    found = numbers(np.arange(100_000))
    largest = int(np.sort(token_hashes(pa.array(np.arange(100_000))))[LIMIT - 1])
    assert int(found.hashes[-1]) == largest
    estimate = round((LIMIT - 1) * 2.0**64 / largest)
    assert 100_000 < estimate < 101_000
    assert (found * 2).count == estimate
    assert found.count == 100_000  # at most the number of rows


@pytest.mark.parametrize("distinct", [10, LIMIT - 1, LIMIT, LIMIT + 1, 20_000, 2 * LIMIT + 2, 70_000])
def test_repeated_values_are_counted_exactly(distinct):
    values = np.random.default_rng(0).permutation(np.arange(80_000) % distinct)
    found = numbers(values)
    assert found == sum((numbers(part) for part in np.array_split(values, 9)), DistinctValues())
    expected = Counter(values.tolist())
    assert all(expected[int(text)] == count for text, count in counts(found).items())
    order = np.argsort(token_hashes(pa.array(np.arange(distinct))))[:LIMIT]
    assert found.counts.tolist() == [expected[value] for value in order.tolist()]
    assert found.texts.to_pylist() == [str(value) for value in order[:MAX_TEXTS].tolist()]
