"""Target bins, compared with decision trees of scikit-learn."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import pairwise

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import daskprep as dp
from daskprep.columns.summaries import Range
from daskprep.columns.summaries.target_sums import TargetSums, split_into_digits
from daskprep.errors import ColumnError, ConfigError
from daskprep.features.bins import MIN_LEAF_ROWS, TargetColumn, sum_target, tree_edges
from daskprep.serving import Encoder
from tests.sizes import sized

ROWS = 200_000
COLUMNS = {
    "few": lambda rng: rng.integers(0, 3000, ROWS) / 10,  # as many values as are counted exactly
    "normal": lambda rng: rng.normal(size=ROWS),
    "lognormal": lambda rng: rng.lognormal(0, 2, ROWS),
}


def table(name: str) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x = COLUMNS[name](rng)
    y = np.sin(x) + (x > 1) * 2 + rng.normal(size=ROWS)
    letters = np.where(rng.random(ROWS) < 0.5 + 0.4 * np.tanh(x - 1), "a", np.where(rng.random(ROWS) < 0.3, "b", "c"))
    return pd.DataFrame({"x": x, "number": y, "class": letters})


def binned(target: str, bins: int = 16, **parameters) -> dp.Preprocessor:
    number = dp.Number(
        encoding="bins", bins=bins, bin_strategy="target", target=target, target_type=target, **parameters
    )
    return dp.Preprocessor({"x": number})


@pytest.mark.slow
@pytest.mark.parametrize("target", ["number", "class"])
@pytest.mark.parametrize("name", COLUMNS)
def test_target_bins_equal_decision_tree_leaves(name, target):
    frame = table(name)
    x = frame["x"].to_numpy()
    prep = binned(target).fit(frame)
    edges = np.array(prep.learned_["x"].edges)
    kind = DecisionTreeRegressor if target == "number" else DecisionTreeClassifier
    theirs = kind(max_leaf_nodes=16, min_samples_leaf=MIN_LEAF_ROWS).fit(x[:, None], frame[target])
    tree = theirs.tree_
    thresholds = np.unique([x.min(), *tree.threshold[tree.children_left != tree.children_right], x.max()])
    assert len(edges) == len(thresholds)
    if name == "few":
        np.testing.assert_allclose(edges, thresholds, rtol=1e-6)
        return
    # Splits of nearly the same gain may differ: the explained sum of squares is the same.
    ids = prep.encode(frame)["x"]
    targets = pd.get_dummies(frame[target]).to_numpy(float) if target == "class" else frame[["number"]].to_numpy()

    def explained(groups: np.ndarray) -> float:
        means = pd.DataFrame(targets).groupby(groups).transform("mean").to_numpy()
        return float(((means - targets.mean(axis=0)) ** 2).sum())

    assert explained(ids) > 0.999 * explained(theirs.apply(x[:, None]))


def test_bins_use_training_rows_and_new_rows_need_no_target():
    frame = table("normal").iloc[:5_000]
    split = dp.RandomSplit(seed=1)
    number = dp.Number(encoding="piecewise_linear", bins=8, bin_strategy="target", target="number")
    prep = dp.Preprocessor({"x": number}, split=split).fit(frame)
    training = frame[prep.assign(frame)["split"] == 0]
    assert dp.Preprocessor({"x": number}).fit(training).learned_["x"].edges == prep.learned_["x"].edges
    rows = frame[["x"]]
    encoder = Encoder(json.loads(json.dumps(prep.to_dict())))
    np.testing.assert_array_equal(encoder.encode(rows.to_dict("records"))["x"], prep.encode(rows)["x"])


@pytest.mark.parametrize("partitions", [1, 3, 16, 64])
def test_bins_do_not_depend_on_partitions(partitions, tmp_path):
    frame = table("lognormal").iloc[:20_000]
    pieces = dd.from_pandas(frame, npartitions=partitions)
    for target in ("number", "class"):
        assert binned(target).fit(pieces).to_dict() == binned(target).fit(frame).to_dict()
    dataset = binned("number").fit_write(pieces, tmp_path / "data")
    assert dataset.learned["x"].edges == binned("number").fit(frame).learned_["x"].edges
    assert dataset["train"].num_embeddings("x") == 16


def test_bins_of_possible_thousands_use_the_parsed_numbers():
    frame = table("few").iloc[:2_000]
    frame = frame.assign(x=np.floor(frame["x"]) + 1.125)
    texts = frame.assign(x=frame["x"].map("{:.3f}".format))
    comma = pd.concat([texts, pd.DataFrame({"x": ["1.234,5"] * 200, "number": None, "class": None})])
    for target in ("number", "class"):
        edges = binned(target).fit(frame).learned_["x"].edges
        assert binned(target).fit(texts).learned_["x"].edges == edges
        thousands = binned(target).fit(dd.from_pandas(comma, npartitions=3)).learned_["x"]
        assert (thousands.written, thousands.edges) == ("1.234,5", tuple(1000 * edge for edge in edges))


def test_rows_without_number_or_target_are_ignored():
    frame = table("few").iloc[:2_000].copy()
    gaps = pd.concat([frame, pd.DataFrame({"x": [5.0, None], "number": [None, 1e6], "class": [None, "a"]})])
    for target in ("number", "class"):
        assert binned(target).fit(gaps).learned_["x"].edges == binned(target).fit(frame).learned_["x"].edges


@given(st.lists(st.tuples(*[st.sampled_from([None, 0.0, 1.0, -3e-200, 7e9, 1e300])] * 2), min_size=1), st.data())
def test_target_sums_ignore_rows_without_a_number(rows, data):
    numbers, column = (pa.array(one, pa.float64()) for one in zip(*rows, strict=True))
    cut = data.draw(st.integers(0, len(rows)))
    parts = [
        sum_target(numbers[start:stop], TargetColumn.of(pa.chunked_array([column[start:stop]]), by_class=False))
        for start, stop in ((0, cut), (cut, len(rows)))
    ]
    both = np.array([row for row in rows if None not in row], float).reshape(-1, 2)
    whole, found = TargetSums.of(both[:, 0], *split_into_digits(both[:, 1])), parts[0] + parts[1]
    assert found.buckets == whole.buckets
    np.testing.assert_array_equal(found.targets(), whole.targets())


def test_bins_of_a_shifted_target_are_equal():
    frame = table("few").iloc[:2_000].round()
    far = frame.assign(number=frame["number"] + 2**20)
    assert binned("number").fit(far).learned_["x"].edges == binned("number").fit(frame).learned_["x"].edges


def test_bins_have_a_minimum_number_of_rows():
    for rows, edges in ((127, (0.0, 126.0)), (128, (0.0, 63.5, 127.0))):
        frame = pd.DataFrame({"x": np.arange(float(rows)), "number": np.arange(rows) > 63})
        assert binned("number").fit(frame).learned_["x"].edges == edges


def test_constant_target_has_one_bin():
    frame = pd.DataFrame({"x": np.arange(1000.0), "number": 0.1})
    assert binned("number").fit(frame).learned_["x"].edges == (0.0, 999.0)


@given(st.lists(st.tuples(st.integers(-9, 9), st.floats(-60_000, 60_000, width=16)), max_size=40), st.integers(1, 5))
def test_target_sums_are_exact_in_any_order(rows, limit):
    with sized(quantile_buckets=2 + limit):
        values, target = np.array(rows, np.float64).reshape(-1, 2).T
        parts = [TargetSums.of(values[i::3], *split_into_digits(target[i::3])) for i in range(3)]
        whole = TargetSums.of(values, *split_into_digits(target))
        assert parts[0] + parts[1] + parts[2] == whole
        assert parts[2] + (parts[1] + parts[0]) == whole
        assert whole * 2 == whole + whole
    exact = sum((Fraction(one) for one in target.tolist()), Fraction(0))
    places = [place - max(whole.labels, default=0) for place in whole.labels]
    found = sum(int(one) * Fraction(16) ** place for one, place in zip(whole.sums.sum(axis=0), places, strict=True))
    assert found * Fraction(16) ** max(whole.labels, default=0) == exact


def saved_by(rows: list[tuple[float, list[int]]], threshold: float) -> Fraction:
    """Return the sum of squares that a threshold saves: of the target, or of the rows of its classes."""

    def squares(part: list[list[int]]) -> Fraction:
        return Fraction(sum(sum(column) ** 2 for column in zip(*part, strict=True)), len(part))

    below, above = ([target for value, target in rows if (value < threshold) is low] for low in (True, False))
    return squares(below) + squares(above) - squares(below + above)


@settings(max_examples=40)
@given(
    rows=st.lists(st.tuples(st.integers(0, 9), st.integers(-3, 3)), min_size=1, max_size=30),
    leaf_rows=st.integers(1, 4),
    by_class=st.booleans(),
)
def test_next_bin_is_split_at_the_largest_gain(rows, leaf_rows, by_class):
    values, target = np.array(rows, float).T
    sums = TargetSums.of(values, *split_into_digits(target))
    if by_class:
        sums = TargetSums.of(values, target.astype(int) + 3, tuple("abcdefg"))
        rows = [(value, [one == other for other in range(-3, 4)]) for value, one in rows]
    else:
        rows = [(value, [one]) for value, one in rows]
    many = 2**24  # of each row
    middles = [sum(pair) / 2 for pair in pairwise(np.unique(values).tolist())]
    cuts: list[float] = []
    for bins in range(1, 8):
        with sized(leaf_rows=leaf_rows):
            edges = tree_edges(sums, bins, Range.of(values)).tolist()
            inside = tree_edges(sums, bins, Range(2.5, 6.0)).tolist()
        with sized(leaf_rows=leaf_rows * many):
            assert tree_edges(sums * many, bins, Range.of(values)).tolist() == edges
        saved = {}
        for low, high in pairwise([-math.inf, *cuts, math.inf]):
            leaf = [row for row in rows if low < row[0] < high]
            for middle in (middle for middle in middles if low < middle < high):
                if leaf_rows <= sum(value < middle for value, _ in leaf) <= len(leaf) - leaf_rows:
                    saved[middle] = saved_by(leaf, middle)
        if bins > 1 and any(saved.values()):
            [new] = set(edges[1:-1]) - set(cuts)
            assert saved[new] > max(saved.values()) - 1e-9
            cuts = sorted([*cuts, new])
        assert edges == sorted({values.min(), *cuts, values.max()})
        assert inside == [2.5, *(cut for cut in cuts if 2.5 < cut < 6), 6.0]


def test_invalid_bins_and_targets_raise():
    frame = pd.DataFrame({"x": ["1", "2"], "number": ["a", "b"], "class": ["a", "b"]})
    with pytest.raises(ColumnError, match="no plain numbers in rows with a target"):
        binned("number").fit(frame)
    with pytest.raises(ConfigError, match='"x" requires y to be passed'):
        dp.Preprocessor({"x": dp.Number(encoding="bins", bin_strategy="target")}).fit(frame)
    with pytest.raises(ConfigError, match="needs a number of bins and an encoding"):
        dp.Preprocessor({"x": dp.Number(bin_strategy="target")}).fit(frame)
    with pytest.raises(ConfigError, match="other strategies take no target"):
        dp.Preprocessor({"x": dp.Number(encoding="bins", target="number")}).fit(frame)
    many = pa.chunked_array([pa.array([str(one) for one in range(101)])])
    assert len(TargetColumn.of(many[1:], by_class=True).labels) == 100
    with pytest.raises(ColumnError, match="more than 100 classes"):
        TargetColumn.of(many, by_class=True)
    parts = [
        sum_target(pa.array(np.zeros(len(one))), TargetColumn.of(one, by_class=True)) for one in (many[:60], many[60:])
    ]
    with pytest.raises(ColumnError, match="more than 100 classes"):
        tree_edges(parts[0] + parts[1], 2, Range(0.0, 1.0))
