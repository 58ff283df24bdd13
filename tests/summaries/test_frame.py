"""What is known of a column without each fold is what the other folds say together."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskprep.summaries import ColumnSummary, Lengths, Rejects, Summary, TokenCounts, token_counts
from daskprep.summaries.frame import without_each


@dataclass(frozen=True)
class Words(Summary):
    counts: TokenCounts
    lengths: Lengths
    documents: TokenCounts | None = None


def column(number, words):
    tokens = pa.array(words, pa.string()).dictionary_encode()
    counts = TokenCounts.of(tokens.dictionary, np.bincount(tokens.indices, minlength=len(tokens.dictionary)))
    rejects = Rejects.of(np.array([number]), pa.array([f"odd{number}"]))
    return ColumnSummary(len(words), number, rejects, Words(counts, Lengths.of(np.array([len(words)]))), None, 1)


def told(one):
    tokens, counts = one.values.counts.ranked()
    first = [[part.tolist() for part in one.values.counts.ranked(*cut)] for cut in ((2,), (None, 2), (3, 2))]
    lengths = one.values.lengths
    rest = one.rows, one.missing, one.seen, one.rejects, one.cells, one.values.documents, one.values.counts.total
    return tokens.to_pylist(), counts.tolist(), first, lengths.lengths.tolist(), lengths.counts.tolist(), *rest


@given(folds=st.lists(st.lists(st.sampled_from("abcd"), max_size=5), min_size=3, max_size=6))
@pytest.mark.parametrize("limit", [2, 1_000])
def test_each_fold_is_left_out(tmp_path_factory, folds, limit):
    parts = [column(number, words) for number, words in enumerate(folds)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_counts, "COMPACT_ENTRIES", limit)
        states = list(without_each(parts, None))
        whole, *without = map(told, states)
        patch.setattr(token_counts, "SPILL_ENTRIES", 2)
        folder = str(tmp_path_factory.mktemp("spilled"))
        assert [told(state.bounded(folder)) for state in states] == [whole, *without]
    assert whole == told(functools.reduce(operator.add, parts))
    others = [parts[:fold] + parts[fold + 1 :] for fold in range(len(parts) - 1)]
    assert without == [told(functools.reduce(operator.add, one)) for one in others]
