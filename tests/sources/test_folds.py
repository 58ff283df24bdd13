"""Every row is in one of k folds of equal sizes, for any partitioning; groups are not split."""

from __future__ import annotations

from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.model_selection import StratifiedGroupKFold

from daskprep.errors import ColumnError, ConfigError, RejectedValueError
from daskprep.sources import classes
from daskprep.sources.classes import OrderedCounts
from daskprep.sources.split import DROPPED, TRAIN, VALIDATION, GroupSplit, KFold
from daskprep.sources.split.groups import GroupUnits, count_groups
from tests.sizes import sized
from tests.sources.test_split import assign, borders_of, digest, pieces

ROWS = pa.table({"x": [f"k{i % 7}" for i in range(1000)], "y": [i // 3 for i in range(1000)]})
KINDS = [
    KFold(3),
    KFold(3, stratify="x"),
    KFold(3, group="y"),
    KFold(3, "x", "y"),
    KFold(3, time="t", divide_times=True),
]


def kind_of(folds):
    return "-".join(name for name in ("stratify", "group", "time") if getattr(folds, name)) or "rows"


def sizes(assigned, k):
    return np.bincount(assigned, minlength=k).tolist()


def units_of(groups, strata=None):
    """Return the units of numbered groups, and the groups by unit."""
    table = pa.table({"g": groups, "c": groups if strata is None else strata})
    stratify = None if strata is None else "c"
    return GroupUnits.of([count_groups(table, "g", stratify, 1, None)], stratify)


def test_folds_do_not_change_between_releases():
    """If this fails, existing folds would change."""
    assert digest(assign(KFold(5), [ROWS])) == "997815e72e1f4b1d"
    assert digest(assign(KFold(5, stratify="x"), [ROWS])) == "42e9ab1148f06cf8"
    assert digest(assign(KFold(5, group="y"), [ROWS])) == "2fa78a9840996bb1"
    assert digest(assign(KFold(5, "x", "y"), [ROWS])) == "1c2f429c1eb367e0"


@settings(max_examples=25)
@given(data=st.data(), borders=borders_of, limit=st.sampled_from([7, 16_384]))
def test_folds_do_not_depend_on_partitions(data, borders, limit):
    cells = data.draw(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 20)), min_size=12, max_size=60))
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=len(cells), max_size=len(cells))), dtype=bool)
    kept[:12] = True
    groups = [*range(12), *(group for _, group in cells[12:])]  # enough of them for any k
    days = np.array([group for _, group in cells]).astype("datetime64[D]")
    table = pa.table({"x": [name for name, _ in cells], "y": groups, "t": days})
    with sized(class_buckets=limit):
        for folds in KINDS:
            whole = assign(folds, [table], [kept])
            cut = assign(folds, pieces(table, borders), pieces(kept, borders))
            assert np.array_equal(whole, cut)
            assert np.array_equal(whole == DROPPED, ~kept)
            assert np.array_equal(assign(folds, [table.filter(pa.array(kept))]), whole[kept])


@pytest.mark.parametrize("folds", KINDS, ids=kind_of)
def test_assign_without_rows_or_partitions(folds):
    none = pa.table({"x": pa.array([], pa.string()), "y": pa.array([], pa.int64()), "t": pa.array([], pa.date32())})
    assert assign(folds, [none, none]).size == 0
    assert assign(folds, []).size == 0
    assert assign(GroupSplit("y"), [none]).size == 0


@settings(max_examples=30)
@given(rows=st.integers(2, 200), k=st.integers(2, 9), borders=borders_of)
def test_fold_sizes_differ_by_at_most_one_row(rows, k, borders):
    table = pa.table({"x": range(rows)})
    if rows < k:
        with pytest.raises(ColumnError, match=rf"KFold: {rows} rows are too few for {k} folds: add rows"):
            assign(KFold(k), [table])
        return
    found = sizes(assign(KFold(k), pieces(table, borders)), k)
    assert sum(found) == rows
    assert max(found) - min(found) <= 1


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=9, max_size=150), st.integers(2, 9), borders_of)
def test_stratified_fold_sizes_differ_by_at_most_one_row_per_class(cells, k, borders):
    found = assign(KFold(k, stratify="x"), pieces(pa.table({"x": pa.array(cells, pa.string())}), borders))
    for name in [*dict.fromkeys(cells), "all"]:
        here = sizes(found[[name in ("all", cell) for cell in cells]], k)
        assert max(here) - min(here) <= 1


@settings(max_examples=30)
@given(st.lists(st.integers(0, 9), min_size=9, max_size=80), st.integers(2, 9), borders_of, st.sampled_from([3, 99]))
def test_time_folds_are_consecutive_sorted_rows(days, k, borders, limit):
    table = pa.table({"t": np.array(days).astype("datetime64[D]")})
    with sized(class_buckets=limit):
        found = assign(KFold(k, time="t", divide_times=True), pieces(table, borders))
    order = np.argsort(days, kind="stable")
    expected = np.concatenate([np.full(len(part), fold) for fold, part in enumerate(np.array_split(order, k))])
    assert np.array_equal(found[order], expected)


def test_seed_changes_all_folds_except_time_folds():
    days = pa.table({"t": np.arange(99).astype("datetime64[D]")})
    for folds, table in zip(KINDS, [ROWS, ROWS, ROWS, ROWS, days], strict=True):
        one, other = (assign(folds.set_params(seed=seed), [table]) for seed in (1, 2))
        if folds.time:
            assert np.array_equal(one, other)
        else:
            assert 0.5 < np.mean(one != other) < 0.8


def test_all_of_255_folds_are_used():
    table = pa.table({"x": range(510)})
    assert sizes(assign(KFold(255), [table]), 255) == [2] * 255
    assert sizes(assign(KFold(255, group="x"), [table]), 255) == [2] * 255


# ---- groups


@settings(max_examples=40)
@given(st.lists(st.integers(0, 12) | st.none(), min_size=4, max_size=60), st.integers(2, 4), borders_of)
def test_each_group_is_in_one_fold(groups, k, borders):
    groups += range(k)
    table = pa.table({"y": pa.array(groups, pa.int64()), "x": [(group or 0) % 2 for group in groups]})
    for folds in (KFold(k, group="y"), KFold(k, "x", "y")):
        found = assign(folds, pieces(table, borders)).tolist()
        assert len(set(zip(groups, found, strict=True))) == len(set(groups))


def squares_of(units, places, shares):
    """Return the sums of squared deviations from the shares of every class, for one assignment or for many."""
    weights = units.rows / units.rows.sum(axis=1, keepdims=True)
    lacks = [share - (places == split) @ weights.T for split, share in enumerate(shares)]
    return np.square(lacks).sum(axis=(0, -1))


def least_and_most(units, shares):
    """Return the least sum of squares of any assignment, and the bound."""
    every = np.array(list(product(range(len(shares)), repeat=units.units.size)))
    weights = units.rows / units.rows.sum(axis=1, keepdims=True)
    return squares_of(units, every, shares).min() - 1e-9, np.square(weights).sum() + 1e-9


shares_of = st.lists(st.integers(0, 5), min_size=2, max_size=3).filter(lambda parts: parts[0] > 0)


@settings(max_examples=60)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=7), parts=shares_of)
def test_group_shares_are_close_to_requested_shares(sizes, parts):
    shares = [part / sum(parts) for part in parts]
    units = units_of(np.repeat(np.arange(len(sizes)), sizes))
    places = units.assign_units(shares)
    rows = units.rows[0]
    lacks = [share * rows.sum() - rows[places == split].sum() for split, share in enumerate(shares)]
    for split in range(len(shares)):
        if (mine := rows[places == split]).size:
            assert max(lacks) - lacks[split] <= mine.min() + 1e-6
    least, most = least_and_most(units, shares)
    assert least <= squares_of(units, places, shares) <= most
    assert not any(shares[split] == 0 for split in places)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.sampled_from("abc")), min_size=1, max_size=40),
    st.lists(st.integers(1, 5), min_size=2, max_size=3),
)
@example([(group, label) for group, labels in enumerate(["aaa", "cc", "bb", "aac"]) for label in labels], [1, 1])
def test_stratified_group_shares_are_close_to_requested_shares(cells, parts):
    shares = [part / sum(parts) for part in parts]
    groups, strata = zip(*cells, strict=True)
    units = units_of(list(groups), list(strata))
    assert units.rows[0].tolist() == units.rows[1:].sum(axis=0).tolist()
    places = units.assign_units(shares)
    found, (least, most) = squares_of(units, places, shares), least_and_most(units, shares)
    assert least <= found <= most
    for unit, other in product(range(units.units.size), range(len(shares))):
        moved = places.copy()
        moved[unit] = other
        assert squares_of(units, moved, shares) >= found - 1e-9


def test_stratified_groups_are_as_balanced_as_in_scikit_learn():
    rng = np.random.default_rng(0)
    groups = rng.zipf(1.5, 4000) % 300
    labels = (rng.random(4000) < 0.02 + 0.3 * (groups % 5 == 0)).astype(int)
    units = units_of(groups, labels)
    theirs = np.zeros(4000, int)
    for fold, (_, rows) in enumerate(
        StratifiedGroupKFold(5, shuffle=True, random_state=0).split(groups, labels, groups)
    ):
        theirs[rows] = fold
    ours = assign(KFold(5, "c", "g"), [pa.table({"g": groups, "c": labels})])

    def worst(found):
        counts = np.array([[np.sum((found == fold) & (labels == label)) for fold in range(5)] for label in (0, 1)])
        return np.abs(counts / counts.sum(axis=1, keepdims=True) - 0.2).max()

    assert units.units.size == len(set(groups.tolist()))
    assert worst(ours) <= worst(theirs)


def test_many_groups_are_counted_in_bounded_memory():
    groups = np.random.default_rng(0).integers(0, 10**6, 100_000)
    counted = count_groups(pa.table({"g": groups}), "g", None, 1, None)
    assert counted.counts[0].buckets.size <= classes.MAX_BUCKETS
    found = assign(KFold(4, group="g"), [pa.table({"g": groups})])
    assert max(sizes(found, 4)) - min(sizes(found, 4)) <= 10
    assert len(set(zip(groups.tolist(), found.tolist(), strict=True))) == len(set(groups.tolist()))


def test_fold_is_validation_and_the_others_are_training():
    kept = [np.arange(1000) % 9 > 0]
    for folds in KINDS[:4]:
        numbers, held = assign(folds, [ROWS], kept), assign(clone(folds).set_params(fold=2), [ROWS], kept)
        assert np.array_equal(held, np.select([numbers == DROPPED, numbers == 2], [DROPPED, VALIDATION], TRAIN))
    assert (KFold(3).folds, KFold(3, fold=0).folds) == (3, 0)
    first = assign(KFold(3, fold=0), [ROWS])
    assert np.array_equal(first == VALIDATION, assign(KFold(3), [ROWS]) == 0)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 12) | st.none(), min_size=1, max_size=60), borders_of)
def test_each_group_is_in_one_split(groups, borders):
    table = pa.table({"y": pa.array(groups, pa.int64()), "x": [(group or 0) % 2 for group in groups]})
    for split in (GroupSplit("y", (0.6, 0.2, 0.2)), GroupSplit("y", (0.6, 0.4), stratify="x")):
        found = assign(split, pieces(table, borders)).tolist()
        assert len(set(zip(groups, found, strict=True))) == len(set(groups))
        assert TRAIN in found


def test_group_units_do_not_depend_on_partition_order(sizes):
    sizes(class_buckets=7)
    tables = [pa.table({"g": range(40), "c": list(names)}) for names in ("c" * 30 + "b" * 10, "a" * 20 + "b" * 20)]
    parts = [count_groups(table, "g", "c", 1, None) for table in tables]
    units = GroupUnits.of(parts, "c")
    assert units.units.size <= 7
    assert units.rows.sum(axis=1).tolist() == [80, 20, 30, 30]
    assert units.rows[0].tolist() == units.rows[1:].sum(axis=0).tolist()
    assert units.rows.tolist() == GroupUnits.of(parts[::-1], "c").rows.tolist()


def test_shares_of_many_small_groups_are_exact():
    table = pa.table({"y": [number // 2 for number in range(1000)], "x": [number % 4 // 2 for number in range(1000)]})
    for split in (GroupSplit("y"), GroupSplit("y", stratify="x")):
        assert (split.columns, split.assign_columns) == (["y", "x"][: 1 + bool(split.stratify)],) * 2
        found = assign(split, [table])
        assert sizes(found, 3) == [700, 100, 200]
    assert sizes(found[np.array(table["x"]) == 1], 3) == [350, 50, 100]
    assert GroupSplit("y", stratify="y").columns == ["y"]


def test_group_split_with_too_few_groups_raises():
    message = r'Column "y": 1 group\(s\) are too few for \(0.3, 0.7\).*Use more groups'
    with pytest.raises(ColumnError, match=message):
        assign(GroupSplit("y", (0.3, 0.7)), [pa.table({"y": [1, 1]})])


def test_kfold_with_too_few_groups_raises():
    with pytest.raises(ColumnError, match=r'KFold: 2 groups of column "y" are too few for 3 folds'):
        assign(KFold(3, group="y"), [pa.table({"y": [1, 2, 2, 1]})])


@pytest.mark.parametrize("folds", [KFold(3), KFold(3, stratify="y"), KFold(3, time="y")])
def test_kfold_with_too_few_rows_raises(folds):
    for rows in range(1, 3):
        with pytest.raises(ColumnError, match=f"KFold: {rows} rows? .* too few for 3 folds"):
            assign(folds, [pa.table({"y": pa.array(range(rows), pa.timestamp("us"))})])


def test_too_many_classes_with_groups_raise():
    table = pa.table({"x": range(1001), "y": range(1001)})
    with pytest.raises(ColumnError, match=r'Column "x" has 1,001 classes, and groups are stratified by 1,000 at most'):
        assign(KFold(3, "x", "y"), [table])
    assert sizes(assign(KFold(3, "x", "y"), [table[:1000]]), 3) == [334, 333, 333]


def test_rows_changed_between_reads_raise():
    for folds in (KFold(2, group="y"), KFold(2, stratify="y")):
        [plan] = folds.plan([folds.census(pa.table({"y": [1, 2, 2, 1]}))])
        with pytest.raises(ColumnError, match='"y" changed between two reads'):
            plan.assign(pa.table({"y": [1, 2, 3, 1]}), None)
        kept = np.array([True, True, False, True])
        if folds.group:
            assert plan.assign(pa.table({"y": [1, 2, 3, 1]}), kept)[2] == DROPPED
    [plan] = KFold(2).plan([KFold(2).census(ROWS)])
    with pytest.raises(ColumnError, match="number of rows changed"):
        plan.assign(ROWS[1:], None)


def test_unreadable_times_raise():
    with pytest.raises(RejectedValueError, match=r'column "t": 1 row.*"\?" in row 1'):
        assign(KFold(2, time="t"), [pa.table({"t": ["2020-01-01", "?"]})])


@pytest.mark.parametrize(
    ("folds", "message"),
    [
        (KFold(1), "k must be an integer from 2 to 255, not 1. For example, use k=5"),
        (KFold(256), "from 2 to 255, not 256"),
        (KFold(True), "not True"),
        (KFold(2.0), "not 2.0"),
        (KFold(3, fold=3), "fold must be the number of a fold, 0 to 2, or None, not 3. Folds count from 0"),
        (KFold(3, fold=-1), "0 to 2, or None, not -1"),
        (KFold(3, fold=False), "0 to 2, or None, not False"),
        (KFold(group=3), 'group must be the name of a column or None, not 3. For example, use group="label"'),
        (KFold(stratify=""), "stratify must be the name of a column"),
        (KFold(time=["t"]), "time must be the name of a column"),
        (KFold(time="t", group="y"), "leave out time"),
        (KFold(time="t", stratify="y"), "leave out time"),
        (KFold(seed=0.5), "seed must be an integer"),
        (GroupSplit("y", stratify=""), "stratify must be the name of a column or None"),
        (GroupSplit("y", stratify=3), 'not 3. For example, use stratify="label"'),
    ],
)
def test_invalid_parameters_raise(folds, message):
    for call in (folds.validate, folds.to_dict):
        with pytest.raises(ConfigError, match=message):
            call()


def test_columns_of_each_kind_of_folds():
    assert [folds.columns for folds in KINDS] == [[], ["x"], ["y"], ["x", "y"], ["t"]]
    assert KFold(group="y", stratify="y").assign_columns == ["y"]


def test_ordered_counts_add_repeated_numbers():
    numbers, times = np.array([5, 1, 5]), np.array([2, 3, 4])
    counted = OrderedCounts.of(numbers, times)
    assert (counted.buckets.tolist(), counted.counts.tolist()) == ([1, 5], [3, 6])


@given(rows=st.lists(st.integers(1, 40), min_size=12, max_size=60), k=st.integers(2, 5))
def test_groups_of_one_class_equal_groups_without_classes(rows, k):
    groups = np.repeat(np.arange(len(rows)), rows)
    alone, together = units_of(groups), units_of(groups, np.zeros(len(groups), int))
    assert alone.assign_units([1 / k] * k).tolist() == together.assign_units([1 / k] * k).tolist()
