"""Compare the counts of two samples of rows: the probability of a difference without a cause, and its size."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

LARGE_SHIFT = 0.2  # population stability index
MAX_CHANCE = 0.001  # that rows which did not change have any finding, over all columns together
_MAX_CLASSES = 20
_BLOCK_VALUES = 8_192  # fit into the first cache of a core


class Shift(NamedTuple):
    """Difference between two samples in their counts by bin.

    `event` is the number of the bin that differs most. With the number of bins added, it is the last of several bins.
    """

    p_value: float  # upper bound, for all bins
    psi: float  # population stability index
    event: int
    share: float  # of the rows of the other sample
    expected: float  # of the rows of the first sample

    def exceeds_chance(self, comparisons: int) -> bool:
        """Return whether this is no chance result of one of `comparisons`."""
        return self.p_value * comparisons <= MAX_CHANCE


def compare_counts(
    first: np.ndarray, other: np.ndarray, *, ordered: bool = False, only_more: bool = False, candidates: int = 0
) -> Shift:
    """Compare the row counts of two samples by bin; no shift if one has no rows.

    With `ordered` bins, the rows up to each bin are compared too. With `only_more`, only larger shares are differences,
    of all bins but the last. The bins were chosen from `candidates` because `first` has many rows in them.
    """
    first_total, other_total = int(first.sum()), int(other.sum())
    if not (first_total and other_total):
        return Shift(1.0, 0.0, 0, 0.0, 0.0)
    rows = np.stack([first, other]).astype(np.float64)
    if ordered:
        rows = np.concatenate([rows, np.cumsum(rows, axis=1)[:, :-1]], axis=1)
    if only_more or len(first) == 2:
        rows = rows[:, : len(first) - 1]
    one, two = rows
    p_values = _chance_of_excess(two, other_total, one, first_total)
    if not only_more:
        p_values = 2 * np.minimum(p_values, _chance_of_excess(one, first_total, two, other_total))
    event = int(np.argmin(p_values))
    p_value = min(float(p_values[event]) * max(len(one), candidates), 1.0)
    return Shift(
        p_value, stability_index(first, other), event, float(two[event]) / other_total, float(one[event]) / first_total
    )


def _chance_of_excess(count: np.ndarray, total: int, other: np.ndarray, other_total: int) -> np.ndarray:
    """Return a bound on the chance of at least `count` of `total` rows in each bin.

    The tail of the hypergeometric distribution is at most its first term, times the sum of a geometric series, because
    the ratio of its terms decreases. Bounds are within 10 % of the tail where it is below 0.001.
    """

    def log_choose(number: float, taken: np.ndarray) -> np.ndarray:
        from scipy.special import gammaln  # noqa: PLC0415 SciPy takes half a second to import

        combinations: np.ndarray = gammaln(number + 1.0) - gammaln(taken + 1.0) - gammaln(number - taken + 1.0)
        return combinations

    logarithm = log_choose(total, count) + log_choose(other_total, other)
    logarithm -= log_choose(total + other_total, count + other)
    ratio = (total - count) * other / ((count + 1) * (other_total - other + 1))
    falls = ratio < 1  # otherwise, the count is below the most likely one
    bounds: np.ndarray = np.where(falls, np.exp(np.minimum(logarithm, 0)) / np.where(falls, 1 - ratio, 1), 1.0)
    return bounds.clip(max=1.0)


def stability_index(first: np.ndarray, other: np.ndarray) -> float:
    """Return the population stability index of two arrays of row counts by bin."""
    kept = first + other > 0
    # Half a row is added to each bin, because an empty one has no logarithm.
    one, two = ((counts[kept] + 0.5) / (counts[kept] + 0.5).sum() for counts in (first, other))
    return float(((one - two) * np.log(one / two)).sum())


def choose_bins(counts: np.ndarray, size: int) -> np.ndarray:
    """Return the bin of each of `size` classes: one for each of the 20 with the highest counts, then one for others."""
    bins = np.full(size, _MAX_CLASSES)
    order = np.argsort(-counts, kind="stable")[:_MAX_CLASSES]
    bins[order] = np.arange(len(order))
    return bins


def count_bins(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the number of values below the first edge, up to each further edge (inclusive), and above the last."""
    up_to = np.zeros(len(edges), np.int64)
    for start in range(0, len(values), _BLOCK_VALUES):  # a third of the time of a binary search for each value
        block = values[start : start + _BLOCK_VALUES]
        up_to += [np.count_nonzero(block < edges[0]), *(np.count_nonzero(block <= edge) for edge in edges[1:])]
    return np.diff(up_to, prepend=0, append=len(values))
