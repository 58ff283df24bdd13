"""The summary of a column without each fold equals the sum of the other folds."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskprep.columns.summaries import (
    ColumnSummary,
    FoldedSummary,
    Lengths,
    Rejects,
    Summary,
    TokenCounts,
)
from daskprep.columns.summaries.target_sums import ValueSums
from tests.sizes import sized


@dataclass(frozen=True)
class Words(Summary):
    counts: TokenCounts
    lengths: Lengths
    documents: TokenCounts | None = None


FOLDS = st.lists(st.lists(st.sampled_from("abcd"), max_size=5), min_size=3, max_size=6)


def column(number, words):
    tokens = pa.array(words, pa.string()).dictionary_encode()
    counts = TokenCounts.of(tokens.dictionary, np.bincount(tokens.indices, minlength=len(tokens.dictionary)))
    rejects = Rejects.of(np.array([number]), pa.array([f"odd{number}"]))
    return ColumnSummary(len(words), number, rejects, Words(counts, Lengths.of(np.array([len(words)]))), None, 1)


def fields(one):
    tokens, counts = one.values.counts.rank()
    first = [[part.tolist() for part in one.values.counts.rank(*cut)] for cut in ((2,), (None, 2), (3, 2))]
    lengths = one.values.lengths
    rest = one.rows, one.missing, one.seen, one.rejects, one.cells, one.values.documents, one.values.counts.total
    return tokens.to_pylist(), counts.tolist(), first, lengths.lengths.tolist(), lengths.counts.tolist(), *rest


@pytest.mark.slow
@given(folds=FOLDS)
@pytest.mark.parametrize("limit", [2, 1_000])
def test_sums_per_fold_exclude_each_fold(folds, limit):
    parts = [column(number, words) for number, words in enumerate(folds)]
    with sized(compact_entries=limit):
        whole, *without = map(fields, FoldedSummary(tuple(parts)).sums_per_fold(None))
    assert whole == fields(functools.reduce(operator.add, parts))
    others = [parts[:fold] + parts[fold + 1 :] for fold in range(len(parts) - 1)]
    assert without == [fields(functools.reduce(operator.add, one)) for one in others]


@settings(max_examples=10)
@given(folds=FOLDS)
@pytest.mark.parametrize("limit", [2, 1_000])
def test_sums_per_fold_are_the_same_from_files(tmp_path_factory, folds, limit):
    folder = str(tmp_path_factory.mktemp("spilled"))
    with sized(compact_entries=limit):
        parts = tuple(column(number, words) for number, words in enumerate(folds))
        states = list(FoldedSummary(parts).sums_per_fold(None))
        expected = list(map(fields, states))
        with sized(spill_entries=2):
            assert [fields(state.limit_memory(folder)) for state in states] == expected


@pytest.mark.slow
@settings(max_examples=10)
@given(
    partitions=st.lists(
        st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4), min_size=4, max_size=4), max_size=3
    )
)
@pytest.mark.parametrize(("limit", "spilled"), [(1_000, 1_000), (1_000, 2), (2, 2)])
def test_folds_with_shared_tokens_equal_separate_counts(tmp_path_factory, partitions, limit, spilled):
    tokens, folder = pa.array(list("abcd")), str(tmp_path_factory.mktemp("spilled"))

    def left_out(counted):
        parts = [[ColumnSummary(9, 0, Rejects(), Words(one, Lengths())) for one in each] for each in counted]
        folds = (FoldedSummary(tuple(each)) for each in parts)
        summed = functools.reduce(lambda one, other: (one + other).limit_memory(folder), folds)
        return [fields(state.limit_memory(folder)) for state in summed.sums_per_fold(folder)]

    nothing = [[0] * 4] * 4
    counts = [np.array([*some, [0] * 4]) for some in (nothing, *partitions)]
    with sized(compact_entries=limit, spill_entries=spilled):
        shared = left_out([TokenCounts.of_each(tokens, each) for each in counts])
    assert shared == left_out([[TokenCounts.of(tokens, one) for one in each] for each in counts])


def test_tokens_of_all_folds_are_hashed_once():
    parts = TokenCounts.of_each(pa.array(list("abcd")), np.array([[1, 1, 0, 1], [1, 0, 1, 1], [0, 0, 0, 0]]))
    columns = FoldedSummary(tuple(ColumnSummary(3, 0, Rejects(), part) for part in parts))
    one, other, none = ((columns + columns).limit_memory(None)).parts
    [(tokens, _)], [(others, _)] = one.values.chunks, other.values.chunks
    assert tokens is others
    assert not none.values.chunks
    assert one.values.rank()[1].tolist() == [2, 2, 2]


def test_multiplying_repeats_each_fold():
    folds = FoldedSummary(tuple(column(number, "ab"[:number]) for number in (1, 2, 2)))
    assert folds.rows == 5
    assert [fields(part) for part in (folds * 3).parts] == [fields(part) for part in (folds + folds + folds).parts]


@pytest.mark.parametrize("limit", [5, 100])
def test_many_tokens_and_sums_of_folds_spill(tmp_path, sizes, limit):
    sizes(compact_entries=limit, spill_entries=2, sum_spill_bytes=1)
    values = pa.array(["a", "b", "c"]).dictionary_encode()
    sums = ValueSums.of(values, np.zeros(3, np.uint8), 1, {"y": np.ones(3)})
    *cells, few = (TokenCounts.of_cells(values[:tokens]) for tokens in (3, 3, 3, 1))
    folds = FoldedSummary(tuple(ColumnSummary(3, 0, Rejects(), sums, one + one) for one in (*cells, few)))
    *spilled, last = folds.limit_memory(str(tmp_path)).parts
    assert all(part.values.spilled and part.cells.spilled and not part.cells.entries for part in spilled)
    assert not last.cells.spilled
    left_out = folds.sums_per_fold(str(tmp_path))
    assert all(part.values.spilled and (limit > 5 or part.cells.spilled) for part in left_out)
