"""Balanced classes have exactly the requested training rows for any partitioning."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.utils.class_weight import compute_class_weight

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError
from daskprep.sources.balance import BALANCES, Oversample, Undersample, balance_from_dict, balanced_weights

pytestmark = pytest.mark.filterwarnings("ignore:column .x.. .* without a value are a separate class")

EXAMPLES = [
    Oversample("x", ratio=0.5, seed=3),
    Oversample("x", counts={"a": 9, 1: 8, None: 4}),
    Undersample("x", ratio=np.float64(0.25)),
    Undersample("x", counts=[("a", np.int64(1)), (None, 0)], seed=np.int64(7)),
]


def through_pickle(value):
    return pickle.loads(pickle.dumps(value))


def repeat(balance, tables, masks=None):
    """Run census, plan and repeats as the owner of the partitions does; everything sent is pickled."""
    masks = masks or [None] * len(tables)
    pairs = list(zip(tables, masks, strict=True))
    plan = balance.plan([through_pickle(balance.census(table, mask)) for table, mask in pairs])
    parts = [through_pickle(one).repeats(table, mask) for one, (table, mask) in zip(plan, pairs, strict=True)]
    assert all(part.dtype == np.int64 for part in parts)
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def pieces(rows, borders):
    edges = [0, *sorted(border % (len(rows) + 1) for border in borders), len(rows)]
    return [rows[first:last] for first, last in pairwise(edges)]


def sums(cells, mask, repeats):
    """Return the number of training rows of each class after balancing."""
    found = Counter()
    for cell, train, times in zip(cells, mask, repeats.tolist(), strict=True):
        if train:
            found[cell] += times
    return found


def table_of(**rows):
    return pa.table({"x": [name for name, count in rows.items() for _ in range(count)]})


rows = st.lists(st.tuples(st.sampled_from(["a", "a", "a", "b", "c", None]), st.booleans()), max_size=100)
ratios = st.integers(1, 100).map(lambda hundredths: hundredths / 100)
borders_of = st.lists(st.integers(0, 999), max_size=5)


def test_repeats_do_not_change_between_releases():
    """If this fails, existing datasets would be balanced differently."""
    table = table_of(a=700, b=250, c=50)
    for balance, expected in (
        (Oversample("x", ratio=0.6), "990d473c9ed1afa5"),
        (Undersample("x", ratio=0.4), "747d47f0db99deca"),
    ):
        assert hashlib.sha256(repeat(balance, [table]).tobytes()).hexdigest()[:16] == expected


@settings(max_examples=40)
@given(rows=rows, ratio=ratios, borders=borders_of, over=st.booleans())
def test_ratio_is_exact_per_class_for_every_partitioning(rows, ratio, borders, over):
    cells, mask = [cell for cell, _ in rows], np.array([train for _, train in rows], dtype=bool)
    column = pa.array(cells, pa.string())
    balance = Oversample("x", ratio) if over else Undersample("x", ratio)
    tables = [pa.table({"x": part}) for part in pieces(column, borders)]
    repeats = repeat(balance, tables, pieces(mask, borders))
    assert np.array_equal(repeats, repeat(balance, [pa.table({"x": column})], [mask]))
    assert (repeats[~mask] == 1).all()
    present = Counter(cell for cell, train in rows if train)
    exact = Fraction(round(ratio * 100), 100)
    for name, count in present.items():
        wanted = round(exact * max(present.values())) if over else round(min(present.values()) / exact)
        expected = max(count, wanted) if over else min(count, wanted)
        assert sums(cells, mask, repeats)[name] == expected
        # Fair: row counts differ by at most one within a class.
        assert np.ptp(repeats[mask & np.array([cell == name for cell in cells])]) <= 1


@settings(max_examples=40)
@given(rows=rows, borders=borders_of, data=st.data())
def test_counts_are_exact_and_keep_other_classes(rows, borders, data):
    cells, mask = [cell for cell, _ in rows], np.array([train for _, train in rows], dtype=bool)
    present = Counter(cell for cell, train in rows if train)
    named = data.draw(st.sets(st.sampled_from(sorted(present, key=str)))) if present else set()
    more = {name: present[name] + data.draw(st.integers(0, 50)) for name in named}
    fewer = {name: data.draw(st.integers(0, present[name])) for name in named}
    tables = [pa.table({"x": part}) for part in pieces(pa.array(cells, pa.string()), borders)]
    for balance, wanted in ((Oversample("x", counts=more), more), (Undersample("x", counts=fewer), fewer)):
        found = sums(cells, mask, repeat(balance, tables, pieces(mask, borders)))
        assert {name: found[name] for name in present} == {**present, **wanted}


@pytest.mark.parametrize(
    ("balance", "expected"),
    [
        (Oversample("x", ratio=0.05), {"a": 90, "b": 10}),  # Ludwig shrinks b to 4 rows
        (Oversample("x", ratio=0.5), {"a": 90, "b": 45}),
        (Oversample("x", ratio=1), {"a": 90, "b": 90}),
        (Undersample("x", ratio=0.05), {"a": 90, "b": 10}),  # Ludwig fails: it samples 200 of 90 rows
        (Undersample("x", ratio=0.5), {"a": 20, "b": 10}),
        (Undersample("x", ratio=1.0), {"a": 10, "b": 10}),
        (Undersample("x", ratio=1e-300), {"a": 90, "b": 10}),
        (Oversample("x", counts={"b": 1000}), {"a": 90, "b": 1000}),
        (Undersample("x", counts={"a": 0}), {"a": 0, "b": 10}),
    ],
)
def test_repeats_of_two_classes(balance, expected):
    table = table_of(a=90, b=10)
    repeats = repeat(balance, [table])
    assert sums(table["x"].to_pylist(), np.ones(100, dtype=bool), repeats) == expected


def test_undersampling_keeps_the_smallest_class():
    assert repeat(Undersample("x", ratio=0.5), [table_of(a=5_000, b=2_000)]).sum() == 6_000


def test_ratios_round_half_to_even():
    table = table_of(a=10, b=1)
    assert repeat(Oversample("x", ratio=0.35), [table])[10:].sum() == 4  # 3.5, half to even
    assert repeat(Oversample("x", ratio=0.45), [table])[10:].sum() == 4  # 4.5
    assert repeat(Oversample("x", ratio=0.29), [table_of(a=100, b=1)])[100:].sum() == 29  # not 28.99999


def test_missing_values_are_a_class():
    table = pa.table({"x": ["a"] * 8 + [None] * 2})
    with pytest.warns(UserWarning, match='column "x": 2 training rows without a value are a separate class'):
        assert repeat(Oversample("x", ratio=0.5), [table])[8:].tolist() == [2, 2]
    assert repeat(Oversample("x", counts={None: 6}), [table])[8:].tolist() == [3, 3]


@pytest.mark.parametrize("value", [1, 1.0, "1"])
def test_counts_accept_class_names_of_every_type(value):
    columns = [pa.array([1, 0, 0]), pa.array([1.0, 0.0, 0.0]), pa.array(["1", "0", "0"]).dictionary_encode()]
    for column in columns:
        repeats = repeat(Oversample("x", counts={value: 2}), [pa.table({"x": column})])
        assert repeats.tolist() == [2, 1, 1]
    truth = pa.table({"x": [True, False]})
    assert repeat(Oversample("x", counts={True: 3}), [truth]).tolist() == [3, 1]


def test_rows_are_sampled_from_all_positions_by_seed():
    table = table_of(a=1000, b=100)
    one, other = (repeat(Undersample("x", ratio=0.2, seed=seed), [table]) for seed in (1, 2))
    assert (one[:1000].reshape(10, 100).sum(axis=1) > 25).all()
    assert not np.array_equal(one, other)


def test_splits_and_balances_sample_different_rows():
    table = table_of(a=1000)
    kept = repeat(Undersample("x", counts={"a": 500}), [table]) == 1
    repeated = repeat(Oversample("x", counts={"a": 1500}), [table]) == 2
    assert 0.4 < np.mean(kept == repeated) < 0.6


def test_partitions_without_training_rows():
    table = table_of(a=3)
    none = np.zeros(3, dtype=bool)
    for balance in (Oversample("x", ratio=0.5), Undersample("x", ratio=0.5)):
        assert repeat(balance, [table, table[:0]], [none, none[:0]]).tolist() == [1, 1, 1]
        assert repeat(balance, []).size == 0


def test_many_classes_are_exact():
    values = np.random.default_rng(0).permutation(np.repeat(np.arange(50_000), np.arange(50_000) % 4 + 1))
    repeats = repeat(Oversample("x", ratio=1.0), [pa.table({"x": values[:60_000]}), pa.table({"x": values[60_000:]})])
    assert (np.bincount(values, weights=repeats) == 4).all()


@pytest.mark.parametrize("balance", EXAMPLES, ids=repr)
def test_parameters_survive_json_clone_and_set_params(balance):
    described = json.loads(json.dumps(balance.to_dict()))
    assert described["type"] == balance.type
    again = balance_from_dict(described)
    assert type(again) is type(balance) is BALANCES[balance.type]
    assert again.to_dict() == balance.to_dict()
    assert clone(balance).to_dict() == balance.to_dict()
    assert clone(balance).set_params(column="y").columns == ["y"]
    table = pa.table({"x": ["a", "a", None, "1", "b"]})
    assert np.array_equal(repeat(again, [table]), repeat(balance, [table]))


@pytest.mark.parametrize(
    ("balance", "message"),
    [
        (Oversample("x"), "needs either ratio or counts, not neither: "),
        (Oversample("x", 0.5, {"a": 1}), "needs either ratio or counts, not both: "),
        (Oversample("x", 0), "ratio must be above 0 and at most 1, not 0"),
        (Undersample("x", 1.5), "ratio must be above 0 and at most 1, not 1.5"),
        (Undersample("x", float("nan")), "ratio must be"),
        (Undersample("x", float("inf")), "ratio must be"),
        (Undersample("x", True), "ratio must be"),
        (Undersample("x", "0.5"), "ratio must be"),
        (Oversample("", 0.5), "column must be the name of a column"),
        (Oversample(5, 0.5), "column must be the name of a column"),
        (Oversample("x", 0.5, seed=None), "seed must be an integer"),
        (Oversample("x", 0.5, seed=True), "seed must be an integer"),
        (Undersample("x", counts={"a": 10**30}), 'counts must be integers .class "a"'),
        (Oversample("x", counts={"a": 1.5}), 'counts must be integers .class "a"'),
        (Oversample("x", counts={"a": -1}), "counts must be integers"),
        (Oversample("x", counts={"a": True}), "counts must be integers"),
        (Oversample("x", counts={"a": 1, 1: 2, "1": 2}), 'one number per class .*"1" has two'),
        (Oversample("x", counts=5), "counts must be numbers of rows by class"),
        (Oversample("x", counts={object: 5}), "counts must be numbers of rows by class"),
    ],
)
def test_invalid_parameters_raise(balance, message):
    prep = dp.Preprocessor({"x": "category"}, balance=balance)
    for call in (balance.validate, balance.to_dict, lambda: prep.fit({"x": ["a"]})):
        with pytest.raises(ConfigError, match=f"{type(balance).__name__}.*{message}"):
            call()


def test_class_weights_equal_scikit_learn():
    rows = np.repeat([0, 1, 3], [1, 5, 2])
    weights = balanced_weights(np.bincount(rows))
    assert weights.dtype == np.float32
    assert weights[2] == 0
    np.testing.assert_allclose(weights[[0, 1, 3]], compute_class_weight("balanced", classes=np.unique(rows), y=rows))


def test_counts_of_unknown_class_raise():
    balance = Oversample("sold", counts={"Yes": 5})
    with pytest.raises(ColumnError, match=r'Column "sold".*class "Yes", which no.*Did you mean "yes".*"no", "yes"'):
        repeat(balance, [pa.table({"sold": ["yes", "no", "no"]})])


@pytest.mark.parametrize("classes", [10, 11, 40])
def test_unknown_class_error_lists_the_10_largest_classes(classes):
    names = [f"c{number:02}" for number in range(classes)]
    largest = [names[-1], *names[:9]]
    table = pa.table({"x": [*names, names[-1]]})
    with pytest.raises(ColumnError) as caught:
        repeat(Oversample("x", counts={"none": 5}), [table])
    shown = ", ".join(f'"{name}"' for name in largest)
    assert str(caught.value).endswith(f"The most frequent classes are {shown}.")


def test_counts_in_wrong_direction_error_names_the_other_class():
    table = table_of(a=10)
    with pytest.raises(ConfigError, match=r'"a" has 10 training rows for a target of 9.*never drops.*Use Undersample'):
        repeat(Oversample("x", counts={"a": 9}), [table])
    with pytest.raises(
        ConfigError, match=r'"a" has 10 training rows for a target of 11.*never repeats.*Use Oversample'
    ):
        repeat(Undersample("x", counts={"a": 11}), [table])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"type": "oversampel", "column": "x"}, 'no balance of type .*Did you mean "oversample"'),
        ({"type": "oversample", "column": "x", "ration": 1}, 'no parameter "ration".*Did you mean "ratio"'),
        ({"type": "undersample", "ratio": 1}, "'column'"),
    ],
)
def test_invalid_dicts_raise(data, message):
    assert balance_from_dict(None) is None
    with pytest.raises(ConfigError, match=message):
        balance_from_dict(data)
