"""Every row is assigned to exactly one split, with exact counts, for any partitioning."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import pickle
import warnings
from collections import Counter
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

import daskprep as dp
from daskprep.columns.parametrized import Parametrized, to_json_value, with_parameters
from daskprep.errors import ColumnError, ConfigError, RejectedValueError
from daskprep.sources import classes
from daskprep.sources.classes import RowCounts, largest_remainder
from daskprep.sources.split import (
    DROPPED,
    SPLITS,
    TEST,
    TRAIN,
    VALIDATION,
    DatetimeSplit,
    FixedSplit,
    GroupSplit,
    HashSplit,
    KFold,
    RandomSplit,
    StratifiedSplit,
    TimeSeriesSplit,
    split_from_dict,
)
from tests.sizes import sized

EXAMPLES = [
    RandomSplit((0.5, 0.25, 0.25), seed=7),
    StratifiedSplit("x", (0.6, 0.4), seed=np.int64(3), on_small="train"),
    FixedSplit("x"),
    DatetimeSplit("x", [0.8, 0.1, 0.1], datetime_format="%d/%m/%Y"),
    DatetimeSplit("x", (0.5, 0.5), gap=dt.timedelta(hours=36)),
    HashSplit("x", np.array([0.5, 0.5, 0.0]), seed=-1),
    GroupSplit("x", (0.5, 0.25, 0.25), seed=5),
    KFold(2, stratify="x", fold=1),
]


def through_pickle(value):
    return pickle.loads(pickle.dumps(value))


def assign(split, tables, keeps=None):
    """Run census, plan and assignment as the owner of the partitions does; everything sent is pickled."""
    keeps = keeps or [None] * len(tables)
    pairs = list(zip(tables, keeps, strict=True))
    passes = []

    def again(function):
        passes.append(function)
        return [through_pickle(function)(table, keep) for table, keep in pairs]

    reads = [table.select(split.columns) if split.columns else table for table in tables]
    censuses = [through_pickle(split.census(table, keep)) for table, keep in zip(reads, keeps, strict=True)]
    plan = split.plan(censuses, again)
    assign.passes = len(passes)
    parts = [
        through_pickle(one).assign(table.select(split.assign_columns) if split.assign_columns else table, keep)
        for one, (table, keep) in zip(plan, pairs, strict=True)
    ]
    assert all(part.dtype == np.uint8 for part in parts)
    return np.concatenate([np.zeros(0, dtype=np.uint8), *parts])


def pieces(rows, borders):
    edges = [0, *sorted(border % (len(rows) + 1) for border in borders), len(rows)]
    return [rows[first:last] for first, last in pairwise(edges)]


def tables_of(column, borders):
    return [pa.table({"x": part, "other": np.zeros(len(part))}) for part in pieces(column, borders)]


@contextmanager
def quietly():
    """Ignore warnings about classes too small to split, which another test checks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def counts(assigned):
    return [int(np.count_nonzero(assigned == split)) for split in (TRAIN, VALIDATION, TEST)]


def digest(assigned):
    return hashlib.sha256(assigned.tobytes()).hexdigest()[:16]


borders_of = st.lists(st.integers(0, 999), max_size=5)
shares = st.tuples(st.integers(1, 10), st.integers(0, 10), st.integers(0, 10)).map(
    lambda parts: tuple(part / sum(parts) for part in parts)
)


# ---- all splits


def test_assignments_do_not_change_between_releases():
    """If this fails, existing datasets would be split differently."""
    table = pa.table({"x": [f"k{i % 7}" for i in range(1000)], "y": range(1000)})
    assert digest(assign(RandomSplit(), [table])) == "b528d77e8fcfaf5c"
    assert digest(assign(StratifiedSplit("x"), [table])) == "1c88cefaa22ebaf6"
    assert digest(assign(HashSplit("y"), [table])) == "c9462e56fc20ec8f"


@pytest.mark.parametrize("split", EXAMPLES, ids=lambda split: split.type)
def test_parameters_survive_json_clone_and_set_params(split):
    described = json.loads(json.dumps(split.to_dict()))
    assert described["type"] == split.type
    again = split_from_dict(described)
    assert type(again) is type(split)
    assert again.to_dict() == split.to_dict()
    assert clone(split).to_dict() == split.to_dict()
    name, value = ("seed", 99) if split.type in ("random", "kfold") else ("column", "z")
    assert clone(split).set_params(**{name: value}).get_params()[name] == value


def test_every_split_is_registered():
    assert SPLITS.keys() == {"random", "stratify", "fixed", "datetime", "hash", "group", "kfold", "time_series"}
    assert all(SPLITS[split.type] is type(split) for split in EXAMPLES)
    assert split_from_dict(None) is None
    assert split_from_dict({"type": "stratify", "column": "y"}).shares == (0.7, 0.1, 0.2)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"type": "stratified", "column": "x"}, 'no split of type .stratified.* Did you mean "stratify"'),
        ({"probabilities": [1, 0, 0]}, "no split of type None"),
        ({"type": "random", "probability": [1, 0, 0]}, 'Did you mean "shares"'),
        ({"type": "hash"}, "'column'"),
        ({"type": "random", "probabilities": [1, 1, 0]}, "a sum of 1"),
    ],
)
def test_invalid_dicts_raise(data, message):
    with pytest.raises(ConfigError, match=message):
        split_from_dict(data)


@pytest.mark.parametrize(
    "probabilities",
    [
        (0.5, 0.1, 0.1),
        (70, 10, 20),
        (1.2, -0.1, -0.1),
        (float("inf"), 0.5, 0.5),
        (float("nan"), 0.5, 0.5),
        (0.5, float("nan"), 0.5),
        (1.0,),
        (),
        (0.25, 0.25, 0.25, 0.25),
        0.7,
        "abc",
        (0.0, 0.5, 0.5),
        (0.0, 0.0, 0.0),
    ],
)
def test_invalid_shares_raise_with_a_remedy(probabilities):
    for split in (
        RandomSplit(probabilities),
        HashSplit("x", probabilities),
        DatetimeSplit("x", probabilities),
    ):
        message = r"3 numbers \(or 2\) of at least 0 with a sum of 1, the first above 0"
        remedy = r"Use shares of train, validation, test, such as \(0.7, 0.1, 0.2\), or of train, test\.$"
        with pytest.raises(ConfigError, match=f"{type(split).__name__}: shares must be {message}, not .*{remedy}"):
            split.validate()


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (RandomSplit(seed=1.5), "seed must be an integer, not 1.5"),
        (RandomSplit(seed=True), "seed must be an integer"),
        (FixedSplit(3), "column must be the name of a column, not 3"),
        (HashSplit(""), "column must be the name of a column"),
        (GroupSplit("x", stratify=3), 'stratify must be the name of a column or None, not 3. For .*stratify="label"'),
        (GroupSplit("x", stratify=""), "stratify must be the name of a column"),
        (GroupSplit(""), "column must be the name of a column"),
        (StratifiedSplit("x", on_small="drop"), 'on_small must be "error" or "train"'),
        (DatetimeSplit("x", gap="5"), 'gap must be a duration that is not negative, or None, not .5.. For .*"7 days"'),
        (DatetimeSplit("x", gap=5), "gap must be a duration"),
        (DatetimeSplit("x", gap="-1 day"), "gap must be a duration that is not negative"),
        (DatetimeSplit("x", gap="7 dais"), "gap must be a duration"),
        (DatetimeSplit("x", datetime_format="mixed"), "datetime_format must be None or a format"),
        (DatetimeSplit("x", datetime_format=5), "datetime_format must be None or a format"),
    ],
)
def test_invalid_parameters_raise(split, message):
    prep = dp.Preprocessor({"x": "category"}, split=split)
    for call in (split.validate, split.to_dict, lambda: prep.fit({"x": ["2020-01-01"]})):
        with pytest.raises(ConfigError, match=message):
            call()


def test_census_columns():
    without = {"random", "fixed", "hash"}  # which assign each row by itself
    assert all(split.columns == ([] if split.type in without else ["x"]) for split in EXAMPLES)


def test_exclusion_reason_and_number_of_folds():
    assert all(split.exclusion_reason is None for split in EXAMPLES if split.type != "datetime")
    assert not any(split.folds for split in EXAMPLES)
    assert DatetimeSplit("x").exclusion_reason is None
    assert DatetimeSplit("x", gap="7 days").exclusion_reason == "less than 7 days after the end of the previous split"


def test_two_shares_are_train_and_test():
    rows = pa.table({"x": range(10)})
    assert counts(assign(RandomSplit((0.7, 0.3)), [rows])) == [7, 0, 3]


@pytest.mark.parametrize("split", EXAMPLES, ids=lambda split: split.type)
def test_assign_without_rows_or_partitions(split):
    none = pa.table({"x": pa.array([], pa.string())})
    assert assign(split, [none, none]).size == 0
    assert assign(split, []).size == 0


def test_missing_column_error_suggests_closest_name():
    table = pa.table({"colour": [1]})
    for kind in (StratifiedSplit, FixedSplit, DatetimeSplit, HashSplit, GroupSplit):
        split = kind("color")
        with pytest.raises(ColumnError, match=r'"color" is not in the data.* Did you mean "colour"'):
            split.plan([split.census(table)])[0].assign(table, None)


@settings(max_examples=25)
@given(data=st.data(), borders=borders_of, probabilities=shares)
def test_assignments_do_not_depend_on_partitions(data, borders, probabilities):
    cells = data.draw(st.lists(st.sampled_from(["2020-01-01", "2021-05-05", "2019-02-03"]), max_size=80))
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=len(cells), max_size=len(cells))), dtype=bool)
    column = pa.array(cells, pa.string())
    for split in (
        StratifiedSplit("x", probabilities, on_small="train"),
        DatetimeSplit("x", (0.5, 0.25, 0.25)),
        HashSplit("x", probabilities),
        RandomSplit((0.5, 0.25, 0.25)),
        GroupSplit("x", (1.0, 0.0)),
        GroupSplit("x", (0.7, 0.3), stratify="x"),
    ):
        with quietly():
            whole = assign(split, tables_of(column, []), [kept])
            cut = assign(split, tables_of(column, borders), pieces(kept, borders))
        assert np.array_equal(whole, cut)
        assert np.array_equal(whole == DROPPED, ~kept)
        # Dropped rows do not change the assignment of the others.
        with quietly():
            assert np.array_equal(assign(split, tables_of(column.filter(pa.array(kept)), [])), whole[kept])


# ---- random


@settings(max_examples=40)
@given(rows=st.integers(1, 300), probabilities=shares, borders=borders_of)
def test_random_quotas_are_exact(rows, probabilities, borders):
    expected = largest_remainder(rows, probabilities).tolist()
    split, tables = RandomSplit(probabilities), tables_of(pa.array(range(rows)), borders)
    if expected[0]:
        assert counts(assign(split, tables)) == expected
    else:
        with pytest.raises(ColumnError, match=f"{rows} rows are too few"):
            assign(split, tables)


@pytest.mark.parametrize("rows", [4, 9, 10, 11, 20, 100])
def test_random_assigns_every_row(rows):
    assigned = assign(RandomSplit(), [pa.table({"x": range(rows)})])
    assert sum(counts(assigned)) == rows
    assert abs(counts(assigned)[TRAIN] - 0.7 * rows) < 1


def test_random_reads_no_columns():
    split = RandomSplit()
    assert (split.columns, split.assign_columns) == ([], [])
    table = pa.table({"x": range(100)})
    planned = split.plan([RowCounts(60, 60), RowCounts(40, 40)])
    parts = [one.assign(part, None) for one, part in zip(planned, (table[:60], table[60:]), strict=True)]
    assert np.array_equal(np.concatenate(parts), assign(split, [table]))


def test_seed_changes_the_assignment():
    table = pa.table({"x": np.arange(1000) % 3})
    for make in (RandomSplit, lambda seed: StratifiedSplit("x", seed=seed)):
        one, other = assign(make(seed=1), [table]), assign(make(seed=2), [table])
        assert 0.3 < np.mean(one != other) < 0.6


def test_row_count_changed_between_reads_raises():
    plan = RandomSplit().plan([RowCounts(10, 10)])
    with pytest.raises(ColumnError, match="number of rows changed between two reads"):
        plan[0].assign(pa.table({"x": range(9)}), None)


# ---- stratify


@settings(max_examples=40)
@given(
    cells=st.lists(st.sampled_from(["a", "b", "c", None]), max_size=150),
    probabilities=shares,
    borders=borders_of,
)
def test_stratified_quotas_are_exact_in_each_class(cells, probabilities, borders):
    split = StratifiedSplit("x", probabilities, on_small="train")
    with quietly():
        assigned = assign(split, tables_of(pa.array(cells, pa.string()), borders))
    for name, rows in Counter(cells).items():
        expected = largest_remainder(rows, probabilities)
        if any(p > 0 and quota == 0 for p, quota in zip(probabilities, expected, strict=True)):
            expected = np.array([rows, 0, 0])
        here = np.array([cell == name for cell in cells])
        assert counts(assigned[here]) == expected.tolist()


def test_too_small_classes_raise_with_a_remedy():
    table = pa.table({"sold": ["yes"] * 50 + ["no"] * 3 + [None]})
    message = r'"sold": too few rows of 2 class.*\(missing\) has 1, "no" has 3\. 10 rows .*"drop_row".*on_small="train"'
    with pytest.raises(ColumnError, match=message):
        assign(StratifiedSplit("sold"), [table])
    with pytest.warns(UserWarning, match=r'"no" has 3.*All rows of these classes are used for training'):
        assigned = assign(StratifiedSplit("sold", on_small="train"), [table])
    assert counts(assigned[50:]) == [4, 0, 0]
    assert counts(assigned[:50]) == [35, 5, 10]


@pytest.mark.parametrize("classes", [5, 6, 30])
def test_too_small_classes_error_lists_the_5_smallest(classes):
    names = [f"c{number:02}" for number in range(classes)]
    table = pa.table({"x": [*names, *names[:-1], *["large"] * 100]})
    with pytest.raises(ColumnError) as error:
        assign(StratifiedSplit("x"), [table])
    shown = ", ".join([f'"{names[-1]}" has 1', *(f'"{name}" has 2' for name in names[:4])])
    assert f": {shown}{', ...' if classes > 5 else ''}. 10 rows are always enough." in str(error.value)


def test_suggested_number_of_rows_is_enough():
    for rows, probabilities, enough in ((1, (0.4, 0.6), 3), (2, (0.35, 0.35, 0.3), 4)):
        split = StratifiedSplit("x", probabilities)
        with pytest.raises(ColumnError, match=rf"\. {enough} rows are always enough\."):
            assign(split, [pa.table({"x": ["a"] * rows})])
        assert assign(split, [pa.table({"x": ["a"] * enough})]).size == enough


def test_classes_can_be_small_for_shares_of_0():
    assert counts(assign(StratifiedSplit("x", (0.5, 0.5)), [pa.table({"x": [1, 2, 1, 2]})])) == [2, 0, 2]


@pytest.mark.parametrize(
    "other",
    [
        pa.array([0.0, 1.0] * 20),
        pa.array(["0", "1"] * 20),
        pa.array(["0", "1"] * 20).dictionary_encode(),
        pa.array([0, 1] * 20, pa.uint8()).dictionary_encode(),
    ],
    ids=str,
)
def test_classes_do_not_depend_on_the_type_of_a_partition(other):
    column = pa.array([0, 1] * 20)
    whole = assign(StratifiedSplit("x"), [pa.table({"x": column}), pa.table({"x": column})])
    assert np.array_equal(assign(StratifiedSplit("x"), [pa.table({"x": column}), pa.table({"x": other})]), whole)


def test_many_classes_are_exact():
    values = np.random.default_rng(0).permutation(np.repeat(np.arange(50_000), 4))
    assigned = assign(StratifiedSplit("x", (0.5, 0.25, 0.25)), tables_of(pa.array(values), [100_000]))
    for split, quota in ((TRAIN, 2), (VALIDATION, 1), (TEST, 1)):
        assert (np.bincount(values[assigned == split], minlength=50_000) == quota).all()


def test_rows_of_a_class_are_sampled_from_all_positions():
    assigned = assign(StratifiedSplit("x"), [pa.table({"x": ["a"] * 1000 + ["b"] * 1000})])
    tenths = assigned.reshape(20, 100)
    assert ((tenths == TRAIN).sum(axis=1) > 50).all()
    assert not np.array_equal(assigned[:1000], assigned[1000:])


# ---- fixed


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, 1, 2, 0]),
        pa.array([0.0, 1.0, 2.0, 0.0]),
        pa.array(["0", "1", "2", "0"]),
        pa.array(["train", "validation", "test", "train"]),
        pa.array(["TRAIN", "Val", " Test", "train "], pa.large_string()),
        pa.array(["train", "valid", "test", "train"]).dictionary_encode(),
    ],
    ids=str,
)
def test_fixed_accepts_numbers_and_words(column):
    split = FixedSplit("x")
    assert (split.columns, split.assign_columns) == ([], ["x"])
    for borders in ([], [1, 3]):
        assert assign(split, tables_of(column, borders)).tolist() == [TRAIN, VALIDATION, TEST, TRAIN]


def test_fixed_error_lists_unreadable_values_and_rows():
    tables = [pa.table({"split": ["train"] * 5}), pa.table({"split": ["test", "dev", None, "3", "4"]})]
    with pytest.raises(RejectedValueError) as error:
        assign(FixedSplit(), tables)
    assert 'column "split": 4 row(s) without 0, 1, 2 or train' in str(error.value)
    assert '"dev" in row 6, (missing) in row 7, "3" in row 8, ...' in str(error.value)


def test_fixed_ignores_dropped_rows():
    for value in ("dev", "test"):
        table = pa.table({"split": ["train", value, "test"]})
        assert assign(FixedSplit(), [table], [np.array([True, False, True])]).tolist() == [TRAIN, DROPPED, TEST]


@pytest.mark.parametrize("value", [True, 1.5, -1, b"\xff", float("nan")])
def test_fixed_raises_for_other_values(value):
    with pytest.raises(RejectedValueError, match="1 row"):
        assign(FixedSplit(), [pa.table({"split": [value]})])


# ---- hash


def test_hash_does_not_change_between_releases():
    """Rows keep their split if data grows."""
    split = HashSplit("x", (0.4, 0.3, 0.3))
    values = ["u0", "u1", "1", "", None, "é", "a rather long value, longer than a word"]
    assert assign(split, [pa.table({"x": values})]).tolist() == [1, 0, 0, 1, 1, 0, 0]


@settings(max_examples=40)
@given(st.lists(st.text(max_size=5) | st.none(), max_size=50), borders_of, st.randoms())
def test_hash_depends_only_on_the_value(cells, borders, random):
    split = HashSplit("x", (0.4, 0.3, 0.3))
    assert (split.columns, split.assign_columns) == ([], ["x"])
    where = dict(zip(cells, assign(split, tables_of(pa.array(cells, pa.string()), borders)).tolist(), strict=True))
    more = [*cells, "new", "newer"]
    random.shuffle(more)
    assigned = assign(split, tables_of(pa.array(more, pa.string()), borders))
    assert all(where.get(cell, place) == place for cell, place in zip(more, assigned.tolist(), strict=True))


def test_hash_does_not_depend_on_the_type():
    numbers = pa.array(range(-50, 50))
    first = assign(HashSplit("x"), [pa.table({"x": numbers})])
    assert len(set(first.tolist())) == 3
    for other in (
        pa.float64(),
        pa.float32(),
        pa.int8(),
        pa.string(),
        pa.large_string(),
        pa.decimal128(21, 2),
    ):
        assert np.array_equal(assign(HashSplit("x"), [pa.table({"x": numbers.cast(other)})]), first)


def test_hash_shares_are_approximate_and_exact_for_0():
    table = pa.table({"x": range(100_000)})
    shares = np.array(counts(assign(HashSplit("x", (0.7, 0.1, 0.2)), [table]))) / 100_000
    assert np.abs(shares - (0.7, 0.1, 0.2)).max() < 0.006
    assert counts(assign(HashSplit("x", (0.7, 0.3, 0.0)), [table]))[TEST] == 0
    assert counts(assign(HashSplit("x", (0.7, 0.0, 0.3)), [table]))[VALIDATION] == 0
    assert counts(assign(HashSplit("x", (1.0, 0.0, 0.0)), [table])) == [100_000, 0, 0]


def test_hash_seeds_are_independent_also_for_missing_values():
    table = pa.table({"x": [None, "", *map(str, range(1000))]})
    assigned = np.array([assign(HashSplit("x", (0.5, 0.5), seed=seed), [table]) for seed in range(40)])
    assert (np.ptp(assigned[:, :2], axis=0) > 0).all()
    assert 0.4 < np.mean(assigned[0] != assigned[1]) < 0.6


# ---- datetime


def sorted_split(times, probabilities):
    """Cut rows sorted by (time, row number), the reference for DatetimeSplit."""
    order = np.argsort(np.asarray(times), kind="stable")
    assigned = np.empty(len(times), dtype=np.uint8)
    assigned[order] = np.repeat([TRAIN, VALIDATION, TEST], largest_remainder(len(times), probabilities))
    return assigned


@settings(max_examples=80)
@given(
    times=st.lists(st.integers(0, 9) | st.integers(-(2**62), 2**62), min_size=1, max_size=80),
    borders=borders_of,
    limit=st.integers(2, 9),
    probabilities=st.sampled_from([(0.7, 0.1, 0.2), (0.5, 0.5), (1.0, 0.0, 0.0), (0.5, 0.5, 0.0)]),
)
def test_datetime_equals_sorting(times, borders, limit, probabilities):
    column = pa.array(times).cast(pa.timestamp("ns"))
    with sized(class_buckets=limit):
        assigned = assign(DatetimeSplit("x", probabilities, divide_times=True), tables_of(column, borders))
    three = probabilities if len(probabilities) == 3 else (probabilities[0], 0.0, probabilities[1])
    assert np.array_equal(assigned, sorted_split(times, three))


@settings(max_examples=80)
@given(
    times=st.lists(st.integers(0, 12), min_size=9, max_size=80),
    borders=borders_of,
    limit=st.integers(2, 20),
    split=st.sampled_from([
        DatetimeSplit("x"), DatetimeSplit("x", (0.5, 0.5)), DatetimeSplit("x", (0.6, 0.2, 0.2), gap="2 days"),
        KFold(3, time="x"), TimeSeriesSplit("x", 2), TimeSeriesSplit("x", 2, fold=1, gap="2 days", window="4 days"),
    ]),
)  # fmt: skip
def test_rows_of_one_time_stay_together(times, borders, limit, split):
    days = np.array(times)
    column = pa.array(days.astype("datetime64[D]"))
    with sized(class_buckets=limit), warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            assigned = assign(split, tables_of(column, borders))
        except ColumnError:
            assert split.type != "datetime"
            return
    by_time = [np.unique(assigned[days == day]) for day in np.unique(days)]
    assert max(map(len, by_time)) == 1
    if isinstance(split, DatetimeSplit) and split.gap is None:
        shares = split.shares if len(split.shares) == 3 else (split.shares[0], 0.0, split.shares[1])
        ends = np.cumsum(largest_remainder(len(days), shares))[:-1]
        sizes = np.bincount(assigned, minlength=3)
        edges = np.cumsum([0, *np.unique(days, return_counts=True)[1]])
        for end, cut in zip(ends, np.cumsum(sizes)[:-1], strict=True):
            assert cut in (edges[edges <= end].max(), edges[edges > end].min())  # an edge of the time at the cut
        assert any("no rows are left" in str(one.message) for one in found) == any(
            share and not size for share, size in zip(shares, sizes, strict=True)
        )
        assert sizes[0]


def test_splits_saved_before_divide_times_divide():
    for saved in (
        {"type": "datetime", "column": "x"},
        {"type": "time_series", "column": "x"},
        {"type": "kfold", "time": "x"},
    ):
        split = split_from_dict(saved)
        assert split.divide_times
        assert split.to_dict().items() >= saved.items()
        assert "divide_times" not in split.to_dict()
    assert "divide_times" not in KFold(3).to_dict()
    for split in (DatetimeSplit("x"), TimeSeriesSplit("x"), KFold(3, time="x")):
        assert split_from_dict(split.to_dict()).divide_times is False


def test_datetime_reads_again_only_for_many_distinct_times():
    days = np.random.default_rng(0).integers(0, 10_000, 50_000)
    column = pa.array(days.astype("datetime64[D]"))
    divided = DatetimeSplit("x", divide_times=True)
    assert np.array_equal(assign(divided, tables_of(column, [20_000])), sorted_split(days, (0.7, 0.1, 0.2)))
    assert assign.passes == 0
    seconds = np.random.default_rng(0).integers(0, 10**9, 50_000)
    column = pa.array(seconds).cast(pa.timestamp("s"))
    assigned = assign(DatetimeSplit("x"), tables_of(column, [20_000]))
    assert np.array_equal(assigned, sorted_split(seconds, (0.7, 0.1, 0.2)))
    assert assign.passes == 1


def test_datetime_census_is_bounded():
    times = np.random.default_rng(0).integers(0, 2**50, 200_000)
    census = DatetimeSplit("x").census(pa.table({"x": pa.array(times).cast(pa.timestamp("us"))}))
    assert len(pickle.dumps(census)) < 2 * 8 * classes.MAX_BUCKETS + 2_000
    assert (census + census).counts.buckets.size <= classes.MAX_BUCKETS


@pytest.mark.parametrize("rows", [9, 11])
def test_datetime_assigns_every_row(rows):
    assigned = assign(DatetimeSplit("x"), [pa.table({"x": pa.array(np.arange(rows).astype("datetime64[D]"))})])
    assert counts(assigned) == {9: [6, 1, 2], 11: [8, 1, 2]}[rows]
    assert np.array_equal(assigned, np.sort(assigned))


def test_datetime_is_the_same_for_every_type():
    days = np.random.default_rng(0).permutation(400)
    expected = sorted_split(days, (0.7, 0.1, 0.2))
    dates = pa.array(days.astype("datetime64[D]"))
    columns = [dates, dates.cast(pa.date64()), dates.cast(pa.string()), dates.cast(pa.large_string())]
    columns += [dates.cast(pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")]
    columns += [dates.cast(pa.timestamp("us")).cast(pa.timestamp("ms", "Europe/Berlin"))]
    columns += [dates.cast(pa.string()).dictionary_encode(), dates.cast(pa.string()).cast(pa.string_view())]
    columns += [pc.binary_join_element_wise(dates.cast(pa.string()), end, "") for end in ("T10:00:00Z", " 07 ")]
    for column in columns:
        assert np.array_equal(assign(DatetimeSplit("x"), tables_of(column, [150])), expected), column.type
    for form in ("%d/%m/%Y", "%Y-%m-%d %H:%M:%S.%f", "%d %b %Y", "%Y%m%d"):
        column = pa.array([day.strftime(form) for day in dates.to_pylist()])
        assert np.array_equal(assign(DatetimeSplit("x", datetime_format=form), tables_of(column, [150])), expected)


def order_of(texts, datetime_format=None):
    """Return the texts in the order of the split, by cutting after each of them."""
    table = pa.table({"x": texts})
    ranks = np.zeros(len(texts), dtype=int)
    for cut in range(1, len(texts)):
        ranks += assign(DatetimeSplit("x", (cut / len(texts), 1 - cut / len(texts)), datetime_format), [table]) == TEST
    return [texts[row] for row in np.argsort(ranks, kind="stable")]


def test_datetime_orders_mixed_iso_strings():
    ordered = [
        "0001-01-01",
        "1500-06-01",
        "2020-01-01T00:30:00+01:00",  # the evening before in UTC
        "2020-01-01",
        "2020-01-01T00:00:01",
        "2020-01-01 00:00:01.5Z",
        "2020-01-01 00:00:01.500001999",
        "9999-12-31",
    ]
    assert order_of(ordered[::-1]) == ordered


def test_datetime_format_applies_to_iso_like_strings():
    ordered = ["2020-12-01", "2020-01-02", "2020-11-02"]
    assert order_of(ordered[::-1], "%Y-%d-%m") == ordered


def test_datetime_format_accepts_more_digits_than_microseconds():
    late = ["01/02/2020 10:00:00.5", "01/02/2020 10:00:00.500001999", "01/02/2020 10:00:00.500002"]
    ordered = ["01/02/1066 10:00:00.5", *late]  # outside the range of nanoseconds
    assert order_of(ordered[::-1], "%d/%m/%Y %H:%M:%S.%f") == ordered


def test_datetime_accepts_a_different_unit_per_partition():
    column = pa.array([dt.datetime(2020, 1, day) for day in range(1, 11)], pa.timestamp("s"))
    tables = [pa.table({"x": part.cast(pa.timestamp(unit))}) for part, unit in ((column[5:], "s"), (column[:5], "ms"))]
    assert assign(DatetimeSplit("x", (0.5, 0.5)), tables).tolist() == [TEST] * 5 + [TRAIN] * 5


def test_datetime_orders_by_nanoseconds():
    column = pa.array([3, 1, 2], pa.timestamp("ns"))
    assert assign(DatetimeSplit("x", (1 / 3, 1 / 3, 1 / 3)), [pa.table({"x": column})]).tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("value", "datetime_format"),
    [
        ("yesterday", None),
        ("now", None),
        ("today", "%d/%m/%Y"),
        ("2020-02-30", None),
        ("31/02/2020", "%d/%m/%Y"),
        ("31/02/2021", "%d/%m/%Y"),
        ("03/02/20", "%d/%m/%Y"),
        ("14/02/20", "%d/%m/%Y"),
        ("03/02/2020 and more", "%d/%m/%Y"),
        ("", None),
        (None, None),
        (None, "%d/%m/%Y"),
    ],
)
def test_datetime_error_lists_unreadable_values_and_rows(value, datetime_format):
    good = "2020-03-04" if datetime_format is None else "04/03/2020"
    tables = [pa.table({"when": [good] * 5}), pa.table({"when": pa.array([good, value, good])})]
    shown = r"\(missing\)" if value is None else f'"{value}"'
    with pytest.raises(RejectedValueError, match=f'column "when": 1 row.*{shown} in row 6.*drop their rows'):
        assign(DatetimeSplit("when", datetime_format=datetime_format), tables)
    kept = [None, np.array([True, False, True])]
    assert counts(assign(DatetimeSplit("when", datetime_format=datetime_format, divide_times=True), tables, kept)) == [
        5,
        1,
        1,
    ]


def test_datetime_counts_all_unreadable_values():
    tables = [pa.table({"x": ["?", "2020-01-01"]}), pa.table({"x": ["??", "!", "!!"]})]
    with pytest.raises(RejectedValueError, match=r'4 row.*"\?" in row 0, "\?\?" in row 2, "!" in row 3, \.\.\.'):
        assign(DatetimeSplit("x"), tables)


@settings(max_examples=30)
@given(seconds=st.lists(st.integers(0, 4 * 10**9), min_size=3, max_size=30), borders=borders_of)
def test_datetime_accepts_numbers_and_columns_of_parts(seconds, borders):
    times = pd.to_datetime(pd.Series(seconds), unit="s")
    parts = {name: getattr(times.dt, name) for name in ("year", "month", "day", "hour", "minute", "second")}
    table = pa.table({"t": times, "s": seconds, "ms": pa.array(seconds, pa.float64()), **parts})
    expected = assign(DatetimeSplit("t", divide_times=True), [table])
    for column in ("s", "ms", list(parts)):
        split = DatetimeSplit(column, divide_times=True)
        assert np.array_equal(assign(split, pieces(table, borders)), expected)


def test_datetime_accepts_numeric_years_and_requires_format_for_a_gap():
    table = pa.table({"year": [2020, 2024, 2021, 2022]})
    assert assign(DatetimeSplit("year", (0.5, 0.5)), [table]).tolist() == [0, 2, 0, 2]
    split = DatetimeSplit("year", (0.5, 0.5), datetime_format="%Y", gap="400 days")
    assert assign(split, [table]).tolist() == [0, 2, 0, DROPPED]
    with pytest.raises(ConfigError, match='set datetime_format, such as "%Y"'):
        assign(DatetimeSplit("year", gap="400 days"), [table])


def test_datetime_error_shows_invalid_parts():
    table = pa.table({"year": [2021, 2021], "month": ["2", "2"], "day": [28, 30]})
    with pytest.raises(RejectedValueError, match=r'"year, month, day".*"2021", "2", "30" in row 1'):
        assign(DatetimeSplit(["year", "month", "day"]), [table])
    with pytest.raises(ConfigError, match="Use columns of year, month, day"):
        DatetimeSplit(["year"]).validate()


def test_datetime_raises_for_other_column_types():
    with pytest.raises(ColumnError, match=r'column "x" has type bool, which is not a time'):
        assign(DatetimeSplit("x"), [pa.table({"x": [True]})])
    remedy = r'Use the codes of strptime, such as "%d/%m/%Y %H:%M"\.$'
    with pytest.raises(ConfigError, match=f"datetime_format '%d/%Q'.*{remedy}"):
        assign(DatetimeSplit("x", datetime_format="%d/%Q"), [pa.table({"x": ["1/2"]})])
    mixed = [pa.table({"x": pa.array([dt.datetime(2020, 1, 1)], pa.timestamp(unit))}) for unit in ("us", "ns")]
    with pytest.raises(ColumnError, match="nanoseconds in some partitions"):
        assign(DatetimeSplit("x"), mixed)


@settings(max_examples=60)
@given(
    days=st.lists(st.integers(0, 30), min_size=1, max_size=60),
    borders=borders_of,
    limit=st.sampled_from([3, 99]),
    unit=st.sampled_from(["s", "us", "ns"]),
    gap=st.integers(0, 9),
)
def test_datetime_excludes_rows_within_the_gap(days, borders, limit, unit, gap):
    column = pa.array(np.array(days).astype("datetime64[D]")).cast(pa.timestamp(unit))
    with sized(class_buckets=limit):
        assigned = assign(
            DatetimeSplit("x", (0.5, 0.25, 0.25), gap=f"{gap} days", divide_times=True), tables_of(column, borders)
        )
    expected = sorted_split(days, (0.5, 0.25, 0.25))
    last = {split: np.array(days)[expected == split].max(initial=-99) for split in (TRAIN, VALIDATION)}
    last[VALIDATION] = max(last.values())  # also if it has no rows
    for row, (day, split) in enumerate(zip(days, expected.tolist(), strict=True)):
        left_out = split != TRAIN and day < last[split - 1] + gap
        assert assigned[row] == (DROPPED if left_out else split)


def test_datetime_accepts_gaps_in_every_form():
    table = pa.table({"x": pa.array(np.arange(8).astype("datetime64[D]"))})
    for gap in ("2 days", "48h", "2 days 00:00:00", dt.timedelta(days=2), np.timedelta64(2, "D")):
        split = DatetimeSplit("x", (0.5, 0.5), gap=gap)
        assert assign(split, [table]).tolist() == [TRAIN] * 4 + [DROPPED] + [TEST] * 3
        assert assign(split_from_dict(split.to_dict()), [table]).tolist() == [TRAIN] * 4 + [DROPPED] + [TEST] * 3
    assert "gap" not in DatetimeSplit("x").to_dict()
    for first, last in ((0, TEST), (2**62, DROPPED)):
        late = pa.table({"x": pa.array([first, 2**63 - 1]).cast(pa.timestamp("ns"))})
        assert assign(DatetimeSplit("x", (0.5, 0.5), gap="100000 days"), [late]).tolist() == [TRAIN, last]
    instant = pa.table({"x": pa.array([0, 1, 2]).cast(pa.timestamp("us"))})  # a part of a microsecond is one
    assert assign(DatetimeSplit("x", (0.5, 0.5), gap="1ns"), [instant]).tolist() == [TRAIN, TRAIN, TEST]
    assert assign(DatetimeSplit("x", (0.5, 0.5), gap="1001ns"), [instant]).tolist() == [TRAIN, TRAIN, DROPPED]


def test_datetime_accepts_dropped_partitions_without_times():
    column = pa.array([dt.datetime(2020, 1, day) for day in range(1, 11)], pa.timestamp("ns"))
    tables = [
        pa.table({"x": pa.nulls(2)}),
        pa.table({"x": column}),
        pa.table({"x": pa.array([], pa.string())}),
    ]
    kept = [np.zeros(2, dtype=bool), None, None]
    assert assign(DatetimeSplit("x"), tables, kept).tolist() == [DROPPED] * 2 + [0] * 7 + [1] + [2] * 2


def test_datetime_raises_for_missing_times_of_a_null_partition():
    tables = [pa.table({"x": ["2020-01-01"]}), pa.table({"x": pa.nulls(1)})]
    with pytest.raises(RejectedValueError, match=r"1 row\(s\) .*: \(missing\) in row 1\."):
        assign(DatetimeSplit("x"), tables)


def test_datetime_raises_if_times_changed_between_reads():
    split, table = DatetimeSplit("x", divide_times=True), pa.table({"x": ["2020-01-01"] * 3})
    [plan] = split.plan([split.census(table)])
    with pytest.raises(ColumnError, match='"x" changed between two reads'):
        plan.assign(pa.table({"x": ["2020-01-01", "?", "2020-01-01"]}), None)
    with pytest.raises(ColumnError, match='"x" changed between two reads'):
        plan.assign(pa.table({"x": pa.array([1, 2, 3], pa.timestamp("ns"))}), None)


@pytest.mark.parametrize(("split", "good"), [(DatetimeSplit("x"), "2020-01-01"), (FixedSplit("x"), "0")])
def test_rejected_row_numbers_count_dropped_rows(split, good):
    tables = [pa.table({"x": [good] * 3}), pa.table({"x": ["!", good, "?"]})]
    kept = [np.array([True, False, True]), np.array([False, True, True])]
    with pytest.raises(RejectedValueError, match=r'1 row.*: "\?" in row 5\.'):
        assign(split, tables, kept)


def test_custom_split_error_suggests_closest_parameter():
    class HalfSplit(RandomSplit):
        def __init__(self, *, share=0.5):
            self.share = share

    class QuarterSplit(HalfSplit):
        pass

    assert QuarterSplit(share=0.2).share == 0.2
    with pytest.raises(TypeError, match='Did you mean "share"'):
        QuarterSplit(shaer=0.1)


def test_parametrized_objects_compare_by_identity():
    made = with_parameters(type("Made", (Parametrized,), {"__annotations__": {"size": int}, "size": 1, "type": "made"}))
    assert made(2) != made(2)
    assert [repr(made(size=size)) for size in (1, 2)] == ["Made()", "Made(size=2)"]
    assert made(size=2).to_dict() == {"type": "made", "size": 2}


def test_to_json_value_converts_numpy_numbers():
    assert [type(to_json_value(given)) for given in (np.int8(1), np.float32(0.5), 2, None, "a")] == [
        int, float, int, type(None), str,
    ]  # fmt: skip
    assert (to_json_value(np.int8(7)), to_json_value(0.5)) == (7, 0.5)


@pytest.mark.parametrize(
    "times",
    [
        pa.array([2**60, 9223372036854, *range(28)], pa.timestamp("s")),
        pa.array([-(2**63), *range(29)], pa.timestamp("ms", "UTC")),
        pa.array([2**31 - 1, *range(29)], pa.date32()),
        pa.array([2**62, *range(29)]).view(pa.date64()),
    ],
)
def test_times_out_of_range_raise(times):
    table = pa.table({"t": times, "y": range(30)})
    for split in (dp.DatetimeSplit("t"), dp.KFold(3, time="t", fold=0)):
        with pytest.raises(ColumnError, match='Column "t": .* out of bounds'):
            dp.Preprocessor({"y": "number"}, split=split).fit(table)


def test_empty_split_of_groups_warns(tmp_path):
    frame = pd.DataFrame({"shop": ["a", "b"] * 20, "price": range(40)})
    prep = dp.Preprocessor({"price": "number"}, split=dp.GroupSplit("shop"))
    message = r'"shop" has too few values .*"validation" has no rows \(train: 20, validation: 0, test: 20\)'
    with pytest.warns(UserWarning, match=message):
        prep.fit_write(frame, tmp_path / "a.dp", progress=False)
    prep.set_params(split=dp.GroupSplit("shop", (0.5, 0.5))).fit_write(frame, tmp_path / "b.dp", progress=False)
