"""Bins that follow a target: the leaves of a decision tree of one number, as in Gorishniy et al."""

from __future__ import annotations

import heapq

import numpy as np
import pyarrow as pa

from daskprep.errors import ColumnError
from daskprep.features.cells import as_dictionary, as_numbers, one_array
from daskprep.summaries import Range
from daskprep.summaries.target_sums import TargetSums

LEAF_ROWS = 64
MOST_CLASSES = 100
_LEAST_GAIN = 1e-12  # of the squares that a split could save: less is rounding


def sum_target(numbers: pa.Array, target: pa.ChunkedArray, *, by_class: bool) -> TargetSums:
    """Sum up a target by the numbers beside it; rows that lack either are left out."""
    column = one_array(target)
    if not by_class:
        found = as_numbers(column)
        present = numbers.is_valid().to_numpy(zero_copy_only=False) & found.is_valid().to_numpy(zero_copy_only=False)
        values, targets = (one.to_numpy(zero_copy_only=False)[present] for one in (numbers, found))
        return TargetSums.of_numbers(values, targets)
    labels = as_dictionary(column)
    present = numbers.is_valid().to_numpy(zero_copy_only=False) & labels.is_valid().to_numpy(zero_copy_only=False)
    codes = labels.indices.fill_null(0).to_numpy()[present]
    names = labels.dictionary.to_pylist()
    check_classes(len(names))
    return TargetSums.of(numbers.to_numpy(zero_copy_only=False)[present], codes, tuple(names))


def check_classes(classes: int) -> None:
    """Raise ColumnError for more classes than are counted by bucket."""
    if classes > MOST_CLASSES:
        raise ColumnError(f'its target has more than {MOST_CLASSES} classes: use target_type="number", or fewer')


def tree_edges(sums: TargetSums, bins: int, extent: Range) -> np.ndarray:
    """Return the edges of up to so many bins: the ends of a range, and the thresholds of a tree between them.

    The tree grows where a split saves most squared error, or impurity of classes, as scikit-learn's with
    `max_leaf_nodes`. Thresholds are in the middle between values, or between buckets.
    """
    check_classes(sum(isinstance(label, str) for label in sums.labels))
    if not len(sums.rows):
        raise ColumnError(
            "has no plain numbers with a target beside them, so its bins cannot follow the target: "
            'use bin_strategy="quantile", or the parameter written for formatted numbers'
        )
    low, high = sums.buckets.edges()
    tree = _Tree(sums.rows, sums.targets())
    splits = tree.grown(bins)
    thresholds = high[splits - 1] / 2 + low[splits] / 2
    inside = thresholds[(thresholds > extent.min) & (thresholds < extent.max)]
    return np.unique([extent.min, *inside, extent.max])


class _Tree:
    """Cuts buckets in order where that saves most."""

    def __init__(self, rows: np.ndarray, targets: np.ndarray) -> None:
        centered = targets - rows[:, None] * (targets.sum(axis=0) / rows.sum())
        self._rows = np.concatenate([[0], np.cumsum(rows)])
        self._sums = np.concatenate([np.zeros((1, targets.shape[1])), np.cumsum(centered, axis=0)])
        self._least = _LEAST_GAIN * float((centered**2 / rows[:, None]).sum())

    def grown(self, leaves: int) -> np.ndarray:
        """Return the first buckets of all leaves but the first, in order."""
        heap = [self._best(0, len(self._rows) - 1)]
        splits: list[int] = []
        while len(splits) < leaves - 1 and heap:
            loss, split, start, stop = heapq.heappop(heap)
            if -loss <= self._least:
                break
            splits.append(split)
            for part in ((start, split), (split, stop)):
                heapq.heappush(heap, self._best(*part))
        return np.array(sorted(splits), np.int64)

    def _best(self, start: int, stop: int) -> tuple[float, int, int, int]:
        """Return the loss of the best split of some buckets, negative, and where it is."""
        rows, sums = self._rows[start : stop + 1], self._sums[start : stop + 1]
        left, right = rows[1:-1] - rows[0], rows[-1] - rows[1:-1]
        room = np.flatnonzero((left >= LEAF_ROWS) & (right >= LEAF_ROWS))
        if not len(room):
            return 0.0, start, start, stop
        below, above = sums[1:-1][room] - sums[0], sums[-1] - sums[1:-1][room]
        saved = (below**2 / left[room][:, None] + above**2 / right[room][:, None]).sum(axis=1)
        best = int(saved.argmax())
        gain = float(saved[best] - ((sums[-1] - sums[0]) ** 2).sum() / (rows[-1] - rows[0]))
        return -gain, start + 1 + int(room[best]), start, stop
