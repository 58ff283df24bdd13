"""Positions in classes and ranks do not depend on partitions."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from fractions import Fraction
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskprep.errors import ColumnError, RejectedValueError
from daskprep.sources.classes import (
    ClassCounts,
    OrderedCounts,
    class_quotas,
    count_classes,
    encode_classes,
    find_ranks,
    integer_weights,
    largest_remainder,
    rejected_rows_error,
    share_classes,
    show_classes,
    stable_order,
)
from tests.sizes import sized

UNITS = ("s", "ms", "us", "ns")


def cut_in_pieces(rows, borders):
    """Cut a list into consecutive pieces, some of them empty."""
    edges = [0, *sorted(border % (len(rows) + 1) for border in borders), len(rows)]
    return [rows[first:last] for first, last in pairwise(edges)]


@pytest.mark.parametrize(
    ("column", "names"),
    [
        (pa.array([1, None, 2], pa.int8()), ["1", None, "2"]),
        (pa.array([1.0, None, 2.5, float("nan"), -0.0]), ["1", None, "2.5", None, "0"]),
        (pa.array([0.1, 3.0], pa.float32()), ["0.1", "3"]),
        (pa.array([1e20, 1e-7, float("inf"), 2.0**53]), ["1e+20", "1e-7", "inf", "9007199254740992"]),
        (pa.array([True, False, None]), ["true", "false", None]),
        (pa.array(["1", " x", None], pa.large_string()), ["1", " x", None]),
        (pa.array(["a", None], pa.string_view()), ["a", None]),
        (
            pa.array([2.0**63, -(2.0**63), 2.0**62]),
            ["9.223372036854776e+18", "-9.223372036854776e+18", "4611686018427387904"],
        ),
        (pa.array([b"ab"]), ["ab"]),
        *[(pa.array([1, 3600], pa.duration("s")).cast(pa.duration(unit)), ["1000000", "3600000000"]) for unit in UNITS],
        (pa.array([1, 3600], pa.time32("s")), ["00:00:01.000000", "01:00:00.000000"]),
        (pa.array([10**9 + 1999], pa.time64("ns")), ["00:00:01.000001"]),
        (pa.array([10**9 + 1999], pa.duration("ns")), ["1000001"]),
        (pa.array([Decimal(100), Decimal(10), Decimal(0)]), ["100", "10", "0"]),
        (pa.array([Decimal("1.0"), Decimal("10.5")]), ["1", "10.5"]),
        (pa.array([Decimal("1.00"), Decimal("100.50"), Decimal("100.00")]), ["1", "100.5", "100"]),
        (pa.array([dt.date(2020, 2, 29)]), ["2020-02-29"]),
        (pa.array([None, None]), [None, None]),
        (pa.array([], pa.string()), []),
        (
            pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 2]), pa.array([1, None, 1])),
            ["1", None, None, "1"],
        ),
    ],
)
def test_class_names_are_string_forms(column, names):
    table = pa.table({"x": pa.chunked_array([column, column[:1]])})
    codes, classes = encode_classes(table, "x")
    assert classes.take(pa.array(codes)).to_pylist() == names + names[:1]
    assert len(set(classes.to_pylist())) == len(classes)


def test_timestamp_has_one_name_in_every_unit_and_zone():
    moment = pa.array([1_600_000_000], pa.timestamp("s"))
    names = set(
        encode_classes(pa.table({"x": pa.array([1_600_000_000_000_000_001], pa.timestamp("ns"))}), "x")[1][
            1:
        ].to_pylist()
    )
    for kind in (pa.timestamp("ms"), pa.timestamp("ns"), pa.timestamp("us", "Asia/Tokyo")):
        names.update(encode_classes(pa.table({"x": moment.cast(kind)}), "x")[1].drop_null().to_pylist())
    assert names == {"2020-09-13 12:26:40.000000"}


def test_invalid_utf8_bytes_are_classes():
    codes, classes = encode_classes(pa.table({"x": [b"\xff", b"ab", b"\xfe", b"\xff"]}), "x")
    assert classes.cast(pa.large_binary()).take(pa.array(codes)).to_pylist() == [b"\xff", b"ab", b"\xfe", b"\xff"]
    assert show_classes(classes, codes[:2]) == ['"\N{REPLACEMENT CHARACTER}"', '"ab"']


def test_chunks_with_different_dictionaries():
    chunks = [pa.array(["b", "a"]).dictionary_encode(), pa.array(["a", None, "c"]).dictionary_encode()]
    codes, classes = encode_classes(pa.table({"x": pa.chunked_array(chunks)}), "x")
    assert classes.take(pa.array(codes)).to_pylist() == ["b", "a", "a", None, "c"]


def test_missing_or_nested_column_raises():
    with pytest.raises(ColumnError, match=r'"colour" is not in the data.* Did you mean "color"'):
        encode_classes(pa.table({"color": [1]}), "colour")
    with pytest.raises(ColumnError, match='"x" holds list'):
        encode_classes(pa.table({"x": [[1]]}), "x")
    with pytest.raises(ColumnError, match='"x" holds run_end_encoded'):
        encode_classes(pa.table({"x": pa.RunEndEncodedArray.from_arrays([2], ["a"])}), "x")


def test_rejected_rows_error_shows_row_numbers():
    examples = [(0, '"a"'), (7, '"b"')]
    error = rejected_rows_error("x", 2, examples, "a time")
    assert isinstance(error, RejectedValueError)
    assert 'Split column "x": 2 row(s) without a time: "a" in row 0, "b" in row 7. ' in str(error)
    assert '"b" in row 7, .... ' in str(rejected_rows_error("x", 3, examples, "a time"))


def test_classes_are_shown_in_quotes():
    assert show_classes(pa.array(["a", None, "b"], pa.large_string()), np.array([2, 1])) == ['"b"', "(missing)"]


def test_too_many_classes_raise(sizes):
    sizes(class_count=3)
    table = pa.table({"x": range(4)})
    assert len(count_classes(table[:3], "x", None).classes) == 3
    with pytest.raises(ColumnError, match='"x" has more than 3 classes'):
        count_classes(table, "x", None)
    halves = [count_classes(table[:2], "x", None), count_classes(table[2:], "x", None)]
    with pytest.raises(ColumnError, match='"x" has more than 3 classes'):
        share_classes(halves, "x", 1)


def as_dict(counts):
    return dict(zip(counts.classes.to_pylist(), counts.counts.tolist(), strict=True))


cells = st.lists(st.sampled_from(["a", "b", "c", "d", None]), max_size=30)


@given(st.lists(cells, max_size=3))
def test_class_totals_sum_over_partitions(parts):
    counts = [count_classes(pa.table({"x": pa.array(part, pa.string())}), "x", None) for part in parts]
    totals, _ = share_classes(counts, "x", 1)
    whole = [cell for part in parts for cell in part]
    assert as_dict(totals) == {cell: whole.count(cell) for cell in set(whole)}


def positions_of(rows, masks, key):
    """Return the position of each row for partitions of cells."""
    tables = [pa.table({"x": pa.array(part, pa.string())}) for part in rows]
    masks = [np.array(mask, dtype=bool) for mask in masks]
    counts = [count_classes(table, "x", mask) for table, mask in zip(tables, masks, strict=True)]
    placed = []
    for table, mask, share in zip(tables, masks, share_classes(counts, "x", key)[1], strict=True):
        positions = np.full(table.num_rows, -1)
        rows_in, classes, places = share.positions(table, mask)
        assert places.dtype == np.int64
        positions[rows_in] = places
        assert share.classes.take(pa.array(classes)).equals(
            table["x"].cast(pa.large_string()).take(rows_in).combine_chunks()
        )
        placed.extend(positions.tolist())
    return placed


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.sampled_from("aab") | st.none(), st.booleans()), max_size=60),
    st.lists(st.integers(0, 99)),
)
def test_positions_fill_each_class_for_every_partitioning(rows, borders):
    pieces = cut_in_pieces(rows, borders)
    parts = [[cell for cell, _ in piece] for piece in pieces]
    masks = [[kept for _, kept in piece] for piece in pieces]
    placed = positions_of(parts, masks, 3)
    assert placed == positions_of([list(chain(*parts))], [list(chain(*masks))], 3)
    for name in ("a", "b", None):
        found = [place for (cell, kept), place in zip(rows, placed, strict=True) if cell == name and kept]
        assert sorted(found) == list(range(len(found)))
    assert all(place == -1 for (_, kept), place in zip(rows, placed, strict=True) if not kept)


def test_positions_do_not_depend_on_rows_per_call(sizes):
    rows = np.random.default_rng(0).choice(["a", "b", "c"], 9_000).tolist()
    everything = [[True] * len(rows)]
    many = positions_of([rows], everything, 1)
    sizes(class_rows_per_call=10**9)
    assert positions_of([rows], everything, 1) == many


def test_positions_differ_between_classes_and_keys():
    rows = [["a"] * 100 + ["b"] * 100]
    placed = positions_of(rows, [[True] * 200], 1)
    assert placed[:100] != placed[100:]
    assert placed != positions_of(rows, [[True] * 200], 2)


def test_positions_keep_the_order_of_many_classes():
    values = np.random.default_rng(0).integers(0, 100_000, 150_000)
    table = pa.table({"x": values})
    share = share_classes([count_classes(table, "x", None)], "x", 1)[1][0]
    rows, classes, places = share.positions(table, None)
    assert np.array_equal(np.sort(rows), np.arange(values.size))
    assert share.classes.take(pa.array(classes)).equals(table["x"].take(rows).cast(pa.large_string()).combine_chunks())
    # Each class fills its range, so that all pairs of class and position are unique.
    totals = np.bincount(classes)
    order = np.lexsort((places, classes))
    assert np.array_equal(places[order], np.arange(values.size) - np.repeat(np.cumsum(totals) - totals, totals))


def test_uncounted_class_raises():
    share = share_classes([count_classes(pa.table({"x": ["a"]}), "x", None)], "x", 1)[1][0]
    for cells in (["b"], ["a", "b"]):
        with pytest.raises(ColumnError, match='"x" changed between two reads'):
            share.positions(pa.table({"x": cells}), None)


@pytest.mark.parametrize("classes", [5, 2**16, 2**16 + 1, 10**6])
def test_stable_order_keeps_row_order_per_class(classes):
    codes = np.random.default_rng(0).integers(0, classes, 2_000).repeat(2)
    codes[[0, 100, 200]] = classes - 1
    expected = sorted(range(codes.size), key=codes.tolist().__getitem__)
    assert stable_order(codes, classes).tolist() == expected


def test_share_classes_without_partitions():
    totals, shares = share_classes([], "x", 1)
    assert (len(totals.classes), totals.counts.size, shares) == (0, 0, [])


numbers = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-20, 20), max_size=60)


def same(a, b):
    return a.shift == b.shift and np.array_equal(a.buckets, b.buckets) and np.array_equal(a.counts, b.counts)


@pytest.fixture
def four_buckets(sizes):
    sizes(class_buckets=4)


def test_ordered_counts_widen_by_the_smallest_shift(four_buckets):
    counts = OrderedCounts.of(np.array([-5, 0, 0, 1, 2, 3, 9]))
    # By 1 bit: -3, 0, 0, 0, 1, 1, 4.
    assert counts.shift == 1
    assert counts.buckets.tolist() == [-3, 0, 1, 4]
    assert counts.counts.tolist() == [1, 3, 2, 1]


@settings(max_examples=60)
@given(parts=st.lists(numbers, min_size=3, max_size=3), limit=st.integers(2, 9))
def test_ordered_counts_add_in_any_order(parts, limit):
    with sized(class_buckets=limit):
        a, b, c = (OrderedCounts.of(np.array(part, dtype=np.int64)) for part in parts)
        whole = OrderedCounts.of(np.array(list(chain(*parts)), dtype=np.int64))
        assert same((a + b) + c, whole)
        assert same(c + (a + b), whole)
        assert whole.buckets.size <= limit
        distinct = {number >> max(whole.shift - 1, 0) for part in parts for number in part}
        assert whole.shift == 0 or len(distinct) > limit


@settings(max_examples=60)
@given(rows=numbers, borders=st.lists(st.integers(0, 99), max_size=4), limit=st.integers(2, 9), data=st.data())
def test_find_ranks_equals_sorting(rows, borders, limit, data):
    ranks = data.draw(st.sets(st.integers(0, len(rows) - 1))) if rows else set()
    parts = [np.array(part, dtype=np.int64) for part in cut_in_pieces(rows, borders)]

    def recount(windows):
        return [[OrderedCounts.of(part[part >> s == b]) for s, b in windows] for part in parts]

    with sized(class_buckets=limit):
        found = find_ranks(ranks, [OrderedCounts.of(part) for part in parts], recount)
    order = np.argsort(np.array(rows, dtype=np.int64), kind="stable")
    owner = np.repeat(np.arange(len(parts)), [part.size for part in parts])
    assert found.keys() == ranks
    for rank in ranks:
        number = rows[order[rank]]
        earlier = [row for row in order[:rank] if rows[row] == number]
        ties = np.bincount(owner[earlier], minlength=len(parts)) if earlier else np.zeros(len(parts), dtype=int)
        rows_by_part = [int((part == number).sum()) for part in parts]
        assert found[rank] == [(number, int(tie), count) for tie, count in zip(ties, rows_by_part, strict=True)]


def test_find_ranks_shares_ties_in_partition_order():
    parts = [OrderedCounts.of(np.array(part, dtype=np.int64)) for part in ([7, 5, 5, 9], [], [5, 5, 5], [5, 1])]

    def recount(windows):
        raise AssertionError("nothing is too coarse, so that no pass over the data is needed")

    # Sorted: 1, then six times 5, then 7 and 9.
    found = find_ranks([0, 1, 2, 4, 6, 7], parts, recount)
    shares = {rank: [before for _, before, _ in places] for rank, places in found.items()}
    assert [places[0][0] for places in found.values()] == [1, 5, 5, 5, 5, 7]
    assert shares == {
        0: [0, 0, 0, 0],
        1: [0, 0, 0, 0],
        2: [1, 0, 0, 0],
        4: [2, 0, 1, 0],
        6: [2, 0, 3, 0],
        7: [0, 0, 0, 0],
    }


@pytest.mark.parametrize("rank", [-1, 3])
def test_rank_out_of_range_raises(rank):
    counts = OrderedCounts.of(np.array([4, 8, 8]))
    assert [counts.find(0), counts.find(2)] == [(4, 0), (8, 1)]
    with pytest.raises(ColumnError, match="The number of rows changed between two reads"):
        counts.find(rank)


def test_find_ranks_raises_if_data_shrank(four_buckets):
    counts = OrderedCounts.of(np.arange(100))
    with pytest.raises(ColumnError, match="changed between two reads"):
        find_ranks([50], [counts], lambda windows: [[OrderedCounts.of(np.zeros(0, dtype=np.int64))] for _ in windows])


def share_slowly(n, probabilities):
    total = sum(probabilities)
    ideal = [n * p / total for p in probabilities]
    shares = [math.floor(x) for x in ideal]
    largest = sorted(range(len(ideal)), key=lambda i: shares[i] - ideal[i])
    for i in largest[: n - sum(shares)]:
        shares[i] += 1
    return shares


@given(st.integers(0, 2**62), st.lists(st.integers(0, 100), min_size=1, max_size=4).filter(sum))
def test_largest_remainder_equals_fractions(n, hundredths):
    total = sum(hundredths)
    probabilities = [part / total for part in hundredths]
    exact = [Fraction(part, total) for part in hundredths]
    assert largest_remainder(n, probabilities).tolist() == share_slowly(n, exact)


@pytest.mark.parametrize(
    ("n", "probabilities", "shares"),
    [
        (10, (0.7, 0.1, 0.2), [7, 1, 2]),
        (15, (0.7, 0.1, 0.2), [11, 1, 3]),  # 10.5, 1.5, 3: the tie goes to train
        (5, (0.2, 0.5, 0.3), [1, 3, 1]),  # 1, 2.5, 1.5: the tie goes to validation
        (1, (0.2, 0.4, 0.4), [0, 1, 0]),
        (3 * 10**9, (1 / 3, 1 / 3, 1 / 3), [10**9] * 3),
        (0, (0.7, 0.1, 0.2), [0, 0, 0]),
        (100, (0.57, 0.29, 0.14), [57, 29, 14]),  # 0.57 * 100 is 56.99999999999999
        (10**9, (0.123456789, 0.876543211), [123_456_789, 876_543_211]),
        (11, (0.7, 0.1, 0.2), [8, 1, 2]),  # Ludwig loses a row here: 7, 1, 2
    ],
)
def test_largest_remainder_assigns_every_row(n, probabilities, shares):
    assert largest_remainder(n, probabilities).tolist() == shares


@given(st.lists(st.integers(0, 2**62)), st.tuples(*[st.floats(0.01, 1)] * 3))
def test_largest_remainder_accepts_arrays(counts, parts):
    probabilities = [part / sum(parts) for part in parts]
    shares = largest_remainder(np.array(counts, dtype=np.int64), probabilities)
    assert shares.shape == (len(counts), 3)
    assert shares.tolist() == [largest_remainder(n, probabilities).tolist() for n in counts]
    assert shares.sum(axis=1).tolist() == counts


def test_largest_remainder_breaks_many_ties_in_order():
    assert largest_remainder(10, [1 / 40] * 40).tolist() == [1] * 10 + [0] * 30


def test_largest_remainder_accepts_int32():
    shares = largest_remainder(np.array([2_000_000_000, 7], dtype=np.int32), (0.7, 0.1, 0.2))
    assert shares.tolist() == [[1_400_000_000, 200_000_000, 400_000_000], [5, 1, 1]]


@pytest.mark.parametrize(
    ("probabilities", "weights"),
    [
        ((0.7, 0.1, 0.2), [7, 1, 2]),
        ((1 / 3, 1 / 3, 1 / 3), [1, 1, 1]),
        ((1 / 1000, 999 / 1000), [1, 999]),
        ((1 / 1001, 1000 / 1001), [999_001, 999_000_999]),  # 9 digits
        ((0.5, 0.123456789, 0.376543211), [500_000_000, 123_456_789, 376_543_211]),
    ],
)
def test_integer_weights_equal_the_fractions(probabilities, weights):
    found = integer_weights(probabilities)
    assert found.dtype == np.int64
    assert found.tolist() == weights


def test_class_quotas_assign_small_classes_to_the_first_split():
    quotas, small = class_quotas(np.array([2, 10, 6, 3]), (0.7, 0.1, 0.2))
    assert quotas.tolist() == [[2, 0, 0], [7, 1, 2], [4, 1, 1], [3, 0, 0]]
    assert small.tolist() == [True, False, False, True]
    assert class_quotas(np.array([2, 3]), (1 / 3, 1 / 3, 1 / 3))[1].tolist() == [True, False]
    assert not class_quotas(np.array([2]), (0.5, 0.0, 0.5))[1].any()


def test_masked_class_counts_omit_unused_classes():
    counts = count_classes(pa.table({"x": ["a", "b", "b", None]}), "x", np.array([True, False, True, False]))
    assert isinstance(counts, ClassCounts)
    assert as_dict(counts) == {"a": 1, "b": 1}
