"""Summary of the lengths of lists."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from daskprep.summaries.base import Summary
from daskprep.summaries.multiset import count_keys, empty_integers, interpolate, locate_quantiles, sum_by_key


@dataclass(frozen=True, eq=False)
class Lengths(Summary):
    """Histogram of list lengths: `counts[i]` lists have `lengths[i]` items.

    Examples
    --------
    >>> import numpy as np
    >>> lengths = Lengths.of(np.array([3, 0, 3])).add(5, times=2)
    >>> lengths.max, lengths.total, lengths.quantile(0.5)
    (5, 16, 3.0)
    """

    lengths: np.ndarray = field(default_factory=empty_integers)
    counts: np.ndarray = field(default_factory=empty_integers)

    @classmethod
    def of(cls, lengths: np.ndarray) -> Lengths:
        """Summarize the lengths of lists, empty ones included."""
        return cls(*count_keys(np.ascontiguousarray(lengths, dtype=np.int64)))

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    @property
    def total(self) -> int:
        """Number of items of all lists together."""
        return int(self.lengths @ self.counts)

    @property
    def max(self) -> int:
        """Number of items of the longest list, 0 without lists."""
        return int(self.lengths[-1]) if len(self.lengths) else 0

    def quantile(self, fraction: float) -> float:
        """Return a quantile of the lengths, as ``numpy.quantile`` does; 0 without lists."""
        if not len(self.lengths):
            return 0.0
        (lower, _), (upper, _), weight = locate_quantiles(self.counts, np.array(fraction))
        return float(interpolate(self.lengths[lower].astype(float), self.lengths[upper].astype(float), weight))

    def add(self, length: int, times: int) -> Lengths:
        """Return this histogram with `times` more lists of `length` items."""
        return self + Lengths.of(np.array([length])) * times

    def __add__(self, other: Lengths) -> Lengths:
        keys = np.concatenate([self.lengths, other.lengths])
        return Lengths(*sum_by_key(keys, np.concatenate([self.counts, other.counts])))

    def __mul__(self, times: int) -> Lengths:
        return Lengths(self.lengths, self.counts * times) if times else Lengths()
