"""Placement of rows equals counting them one by one."""

from __future__ import annotations

import numpy as np
import pytest

from daskprep.dataset.writing.plan import SPLITS, Placement, Run

# Of three partitions, one empty, and of a split that has no rows.
PLACED = Placement.from_counts([5, 0, 4], [[2, 0, 3], [0, 0, 0], [1, 0, 3]])


def test_placement_sums_rows_of_splits_and_source():
    assert PLACED.rows == {"train": 3, "test": 6}
    assert PLACED.source_rows == (5, 0, 4)
    assert PLACED.source_starts.tolist() == [0, 5, 5, 9]
    assert PLACED.counts.dtype == PLACED.starts("test").dtype == np.int64
    assert {name: PLACED.starts(name).tolist() for name in SPLITS} == {
        "train": [0, 2, 2, 3],
        "validation": [0, 0, 0, 0],
        "test": [0, 3, 3, 6],
    }
    assert [PLACED.offset(2, name) for name in SPLITS] == [0, 1, 1]


def test_placement_without_partitions():
    none = Placement.from_counts([], [])
    assert none.rows == {}
    assert none.starts("train").tolist() == none.source_starts.tolist() == [0]
    assert none.source_starts.dtype == np.int64
    assert list(none.runs("train", range(0))) == []


def test_runs_of_range_by_partition():
    assert list(PLACED.runs("test", range(1, 5))) == [Run(0, 3, 2), Run(2, 1, 2)]
    assert list(PLACED.runs("test", range(3, 6))) == [Run(2, 1, 3)]
    assert list(PLACED.runs("train", range(2, 2))) == []


@pytest.mark.parametrize("seed", range(20))
def test_runs_preserve_row_order(seed):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 4, (int(rng.integers(1, 6)), 3)) * rng.integers(0, 2, (1, 3))
    placed = Placement.from_counts(counts.sum(axis=1).tolist(), counts.tolist())
    for number, split in enumerate(SPLITS):
        rows = [
            (partition, row)
            for partition, here in enumerate(counts.tolist())
            for row in range(sum(here[:number]), sum(here[: number + 1]))
        ]
        for start in range(len(rows) + 1):
            for stop in range(start, len(rows) + 1):
                runs = list(placed.runs(split, range(start, stop)))
                found = [(run.partition, row) for run in runs for row in range(run.first, run.first + run.rows)]
                assert found == rows[start:stop]
                assert all(run.rows for run in runs)
                assert len({run.partition for run in runs}) == len(runs)
