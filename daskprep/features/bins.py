"""Bin edges: evenly spaced, quantiles, or the leaves of a decision tree that predicts a target from the number."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from daskprep.columns.summaries import Quantiles, Range
from daskprep.columns.summaries.target_sums import Label, TargetSums, split_into_digits
from daskprep.errors import ColumnError
from daskprep.features.cells import as_dictionary, as_numbers, one_array
from daskprep.rows.normalization import evenly_spaced_quantiles

MIN_LEAF_ROWS = 64
MAX_CLASSES = 100
_MIN_GAIN = 1e-12  # as a share of the squared deviations: a smaller gain is a rounding error


def bounded_range(quantiles: Quantiles, extent: Range, fractions: Sequence[float]) -> Range:
    """Return the range between two quantiles; 0 and 1 are ends."""
    low, high = np.clip(quantiles.quantiles(np.array(fractions)), extent.min, extent.max).tolist()
    return Range(extent.min if fractions[0] == 0.0 else low, extent.max if fractions[1] == 1.0 else high)


def learn_edges(
    bins: int | Sequence[float], is_uniform: bool, quantiles: Quantiles | None, extent: Range
) -> np.ndarray:
    """Return ascending bin edges: passed, or even ones or quantiles, each once."""
    if not isinstance(bins, int):
        return np.array(bins, np.float64)
    fractions = np.linspace(0.0, 1.0, bins + 1)
    if is_uniform:
        return np.unique(extent.min * (1.0 - fractions) + extent.max * fractions)
    assert quantiles is not None
    return np.unique(evenly_spaced_quantiles(quantiles, extent, bins + 1))


class TargetColumn(NamedTuple):
    """Target values as `TargetSums.of` takes them, for rows with one."""

    present: np.ndarray | None  # mask of the rows with a target; None: all
    codes: np.ndarray
    labels: tuple[Label, ...]
    digits: np.ndarray | None = None

    @classmethod
    def of(cls, target: pa.ChunkedArray, *, by_class: bool) -> TargetColumn:
        """Read a target column as classes or as numbers."""
        column = as_dictionary(one_array(target)) if by_class else as_numbers(one_array(target))
        present = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
        if not by_class:
            return cls(present, *split_into_digits(column.drop_null().to_numpy()))
        check_classes(len(column.dictionary))
        return cls(present, column.indices.drop_null().to_numpy(), tuple(column.dictionary.to_pylist()))


def sum_target(numbers: pa.Array, targets: TargetColumn) -> TargetSums:
    """Sum the target by number; rows without a number or a target are omitted."""
    present, codes, labels, digits = targets
    values = numbers.to_numpy(zero_copy_only=False)
    if present is not None:
        values = values[present]
    if numbers.null_count:
        has_number = values == values  # noqa: PLR0124 False for NaN
        values, codes, digits = values[has_number], codes[has_number], None if digits is None else digits[has_number]
    return TargetSums.of(values, codes, labels, digits)


def check_classes(classes: int) -> None:
    """Raise ColumnError for more than MAX_CLASSES classes."""
    if classes > MAX_CLASSES:
        raise ColumnError(f'its target has more than {MAX_CLASSES} classes: use target_type="number", or fewer')


def tree_edges(sums: TargetSums, bins: int, extent: Range) -> np.ndarray:
    """Return the ends of a range, and a tree's thresholds inside.

    The tree grows where a split reduces the squared error, or the impurity of classes, the most, as in scikit-learn
    with `max_leaf_nodes`: the bins of Gorishniy et al. (2022). Thresholds are midpoints of values or buckets.
    ColumnError without rows.
    """
    check_classes(sum(isinstance(label, str) for label in sums.labels))
    if not len(sums.rows):
        raise ColumnError(
            "has no plain numbers in rows with a target, so its bins cannot follow the target: "
            'use target_type="class" if the target is text, bin_strategy="quantile", or written= for formatted numbers'
        )
    low, high = sums.buckets.edges()
    tree = _Tree(sums.rows, sums.targets())
    splits = tree.grow(bins)
    thresholds = high[splits - 1] / 2 + low[splits] / 2
    return np.unique([extent.min, *thresholds.clip(extent.min, extent.max), extent.max])


class _Tree:
    """Regression tree of sorted buckets, by the squared error.

    `rows` are the numbers of rows of buckets, and `targets` their sums of the target, with a column per class.
    """

    def __init__(self, rows: np.ndarray, targets: np.ndarray) -> None:
        centered = targets - rows[:, None] * (targets.sum(axis=0) / rows.sum())
        self._rows = np.concatenate([[0], np.cumsum(rows)])
        self._sums = np.concatenate([np.zeros((1, targets.shape[1])), np.cumsum(centered, axis=0)])
        self._min_gain = _MIN_GAIN * float((centered**2 / rows[:, None]).sum())

    def grow(self, leaves: int) -> np.ndarray:
        """Return the first bucket of every leaf but the first, in order."""
        heap = [self._best_split(0, len(self._rows) - 1)]
        splits: list[int] = []
        while len(splits) < leaves - 1:
            loss, split, start, stop = heapq.heappop(heap)
            if -loss <= self._min_gain:
                break
            splits.append(split)
            for part in ((start, split), (split, stop)):
                heapq.heappush(heap, self._best_split(*part))
        return np.array(sorted(splits), np.int64)

    def _best_split(self, start: int, stop: int) -> tuple[float, int, int, int]:
        """Return negative gain, position and bounds of the best split."""
        rows, sums = self._rows[start : stop + 1], self._sums[start : stop + 1]
        first, last = rows.searchsorted([rows[0] + MIN_LEAF_ROWS, rows[-1] - MIN_LEAF_ROWS + 1]).tolist()
        if first >= last:
            return 0.0, start, start, stop
        middle, inner = rows[first:last, None], sums[first:last]
        below, above = (inner - sums[0]) ** 2, (sums[-1] - inner) ** 2
        saved = (below / (middle - rows[0]) + above / (rows[-1] - middle)).sum(axis=1)
        best = int(saved.argmax())
        gain = float(saved[best] - ((sums[-1] - sums[0]) ** 2).sum() / (rows[-1] - rows[0]))
        return -gain, start + first + best, start, stop
