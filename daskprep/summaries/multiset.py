"""Multisets of integers as two arrays: ascending distinct keys, and their counts."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

# Up to this size of the range of keys, counting into an array is faster than sorting.
DENSE_KEYS = 1 << 22

KeyPosition: TypeAlias = tuple[np.ndarray, np.ndarray]


def empty_integers() -> np.ndarray:
    """Return an empty int64 array."""
    return np.zeros(0, np.int64)


def count_keys(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct int64 keys, ascending, and their counts."""
    if not len(keys):
        return empty_integers(), empty_integers()
    low, high = int(keys.min()), int(keys.max())
    if high - low < min(DENSE_KEYS, 4 * len(keys) + 1024):
        counts = np.bincount(keys - low)
        present = np.flatnonzero(counts > 0)  # of booleans: eight times as fast as of sparse integers
        return present + low, counts[present]
    # NumPy sorts 32-bit integers about twice as fast as 64-bit ones; `np.unique` is slower than both.
    narrow = low >= -(2**31) and high < 2**31
    keys = np.sort(keys.astype(np.int32) if narrow else keys)
    starts = np.flatnonzero(_first_of_run(keys))
    return keys[starts].astype(np.int64), np.diff(starts, append=len(keys))


def sum_by_key(keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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


def locate_quantiles(counts: np.ndarray, fractions: np.ndarray) -> tuple[KeyPosition, KeyPosition, np.ndarray]:
    """Return the positions of the two values around each quantile, and the weight of the upper one (0 to 1).

    A position is the index of a key, and the share of the key's values below, counting half of the value itself.
    """
    if not ((fractions >= 0.0) & (fractions <= 1.0)).all():
        raise ValueError(f"A quantile must be between 0 and 1, not {fractions}.")
    last = int(counts.sum()) - 1
    position = fractions * last
    lower_rank = np.minimum(np.floor(position).astype(np.int64), last)
    return (*locate_ranks(counts, lower_rank), position - lower_rank)


def locate_ranks(counts: np.ndarray, lower_rank: np.ndarray) -> tuple[KeyPosition, KeyPosition]:
    """Return the positions of the values at ranks (from 0 on), and at the next higher ranks."""
    ends = np.cumsum(counts)

    def locate(rank: np.ndarray) -> KeyPosition:
        index = np.searchsorted(ends, rank, side="right")
        return index, (rank - (ends[index] - counts[index]) + 0.5) / counts[index]

    return locate(lower_rank), locate(np.minimum(lower_rank + 1, ends[-1] - 1))


def interpolate(low: np.ndarray, high: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Interpolate between `low` and `high`, with the same rounding as ``numpy.quantile``."""
    with np.errstate(over="ignore", invalid="ignore"):  # the difference may overflow
        difference = high - low
        interpolated = np.where(weight >= 0.5, high - difference * (1.0 - weight), low + difference * weight)
    result: np.ndarray = np.where(np.isinf(difference), low * (1.0 - weight) + high * weight, interpolated)
    return result
