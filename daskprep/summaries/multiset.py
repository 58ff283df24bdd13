"""Multisets of integers as two arrays: ascending distinct keys, and how often each occurs."""

from __future__ import annotations

import math

import numpy as np

# Up to this many possible keys, counting into an array beats sorting.
DENSE_KEYS = 1 << 22


def no_integers() -> np.ndarray:
    """Return an empty int64 array."""
    return np.zeros(0, np.int64)


def tallied(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct int64 keys, ascending, and their counts."""
    if not len(keys):
        return no_integers(), no_integers()
    low, high = int(keys.min()), int(keys.max())
    if high - low < min(DENSE_KEYS, 4 * len(keys) + 1024):
        counts = np.bincount(keys - low)
        present = np.flatnonzero(counts)
        return present + low, counts[present]
    # numpy sorts 32-bit integers about twice as fast, and its `unique` is slower than either.
    narrow = low >= -(2**31) and high < 2**31
    keys = np.sort(keys.astype(np.int32) if narrow else keys)
    starts = np.flatnonzero(_first_of_run(keys))
    return keys[starts].astype(np.int64), np.diff(starts, append=len(keys))


def distinct(keys: np.ndarray) -> int:
    """Return how many distinct keys there are."""
    return int(np.count_nonzero(_first_of_run(np.sort(keys))))


def merged(keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Add up the counts of equal keys."""
    if not len(keys):
        return keys, counts
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(_first_of_run(keys))
    return keys[starts], np.add.reduceat(counts[order], starts)


def _first_of_run(keys: np.ndarray) -> np.ndarray:
    first = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    return first


def kth(counts: np.ndarray, fraction: float) -> tuple[int, int, float]:
    """Return the indexes of the two keys around a quantile, and the weight of the upper one (0 to 1)."""
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"A quantile lies between 0 and 1, not at {fraction}.")
    ends = np.cumsum(counts)
    last = int(ends[-1]) - 1
    position = fraction * last
    below = min(math.floor(position), last)
    indexes = np.searchsorted(ends, [below, min(below + 1, last)], side="right")
    return int(indexes[0]), int(indexes[1]), position - below


def between(low: float, high: float, weight: float) -> float:
    """Interpolate as ``numpy.quantile`` does, to the same bit."""
    gap = high - low
    if math.isinf(gap):
        return low * (1.0 - weight) + high * weight
    return high - gap * (1.0 - weight) if weight >= 0.5 else low + gap * weight
