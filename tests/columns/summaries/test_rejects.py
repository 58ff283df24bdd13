from __future__ import annotations

import numpy as np
import pyarrow as pa

from daskprep.columns.summaries import Rejects
from daskprep.columns.summaries.column_summary import MAX_SAMPLE_CHARACTERS


def test_samples_are_the_first_distinct_texts_in_row_order() -> None:
    rows = np.array([9, 3, 4, 5, 6, 7, 8])
    summary = Rejects.of(rows, pa.array(["a", "b", "a", "c", "d", "e", "f"]))
    assert summary.count == 7
    assert summary.samples == ((3, "b"), (4, "a"), (5, "c"), (6, "d"), (7, "e"))
    assert summary.texts == ("b", "a", "c", "d", "e")


def test_merging_keeps_the_smallest_row_of_each_text() -> None:
    late = Rejects.of(np.array([10, 11]), pa.array(["x", "y"]))
    early = Rejects.of(np.array([1, 2]), pa.array(["y", "z"]))
    assert (late + early).samples == ((1, "y"), (2, "z"), (10, "x"))


def test_empty_rejects() -> None:
    none = Rejects.of(np.zeros(0, np.int64), pa.array([], pa.string()))
    assert none == Rejects()
    assert none + none == Rejects()


def test_long_cells_are_truncated() -> None:
    (text,) = Rejects.of(np.array([0]), pa.array(["é" * 10_000])).texts
    assert text == "é" * MAX_SAMPLE_CHARACTERS
