"""Counts of distinct values, and a sample of values that does not depend on the partitioning."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.summaries.base import Summary
from daskprep.summaries.token_counts import token_hashes

# Only the values with the smallest hashes are kept, 256 KiB a column. The largest of these hashes estimates the number
# of distinct values, with a standard error of 0.8 %.
_MAX_VALUES = 1 << 14
MAX_TEXTS = 1 << 10
_MAX_TEXT_CHARACTERS = 1000
_HASH_SPACE = 2.0**64


@dataclass(frozen=True, eq=False)
class DistinctValues(Summary):
    """Distinct values with the smallest hashes, at most 16,384, with their counts.

    A value that is in the result was kept in every partition that has it, so its count is exact.

    Examples
    --------
    >>> import numpy as np, pyarrow as pa
    >>> left = DistinctValues.of(pa.array(["b", "a"]), np.array([2, 1]))
    >>> both = left + DistinctValues.of(pa.array(["c", "a"]), np.array([1, 1]))
    >>> both.count, both.is_exact, both.total, sorted(both.texts.to_pylist())
    (3, True, 5, ['a', 'b', 'c'])
    """

    # Ascending hashes, and the number of cells of each.
    hashes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    texts: pa.StringArray = field(default_factory=lambda: pa.array([], pa.string()))  # texts of the first 1,024 values
    total: int = 0  # cells

    @classmethod
    def of(cls, values: pa.Array, counts: np.ndarray, texts: pa.Array | None = None) -> DistinctValues:
        """Summarize strings or values of 64 bits, without nulls, with the count of each; values may be repeated.

        `texts` has the values to display, as strings or in a type that casts to strings (None: `values`).
        """
        total = int(counts.sum())
        hashes = token_hashes(values)
        display_values = values if texts is None else texts
        if len(hashes) > 2 * _MAX_VALUES:
            # Partitioning is faster than sorting. If repeated values leave too few distinct ones, all are sorted.
            is_small = hashes <= np.partition(hashes, 2 * _MAX_VALUES)[2 * _MAX_VALUES]
            if len(np.unique(hashes[is_small])) >= _MAX_VALUES:
                hashes, counts = hashes[is_small], counts[is_small]
                display_values = display_values.filter(pa.array(is_small))
        hashes, counts, first = _take_smallest(hashes, counts)
        kept_texts = display_values.take(pa.array(first[:MAX_TEXTS])).cast(pa.string())
        return cls(hashes, counts, pc.utf8_slice_codeunits(kept_texts, 0, _MAX_TEXT_CHARACTERS), total)

    @property
    def is_exact(self) -> bool:
        """Whether the summary has all distinct values."""
        return len(self.hashes) < _MAX_VALUES

    @property
    def count(self) -> int:
        """Number of distinct values; an estimate unless `is_exact`."""
        if self.is_exact:
            return len(self.hashes)
        return min(round((_MAX_VALUES - 1) * _HASH_SPACE / float(self.hashes[-1])), self.total)

    @property
    def all_unique(self) -> bool:
        return bool((self.counts == 1).all())

    def __add__(self, other: DistinctValues) -> DistinctValues:
        """Return the smallest hashes of both with the sums of their counts, and the first texts."""
        if type(other) is not type(self):
            return NotImplemented
        # The first texts of both are among the first texts of each.
        counts = np.concatenate([self.counts, other.counts])
        hashes, counts, first = _take_smallest(np.concatenate([self.hashes, other.hashes]), counts)
        first = first[:MAX_TEXTS]
        indices = np.where(first < len(self.hashes), first, first - len(self.hashes) + len(self.texts))
        texts = pa.concat_arrays([self.texts, other.texts]).take(pa.array(indices))
        return DistinctValues(hashes, counts, texts, self.total + other.total)

    def __mul__(self, times: int) -> DistinctValues:
        if not times:
            return DistinctValues()
        return DistinctValues(self.hashes, self.counts * times, self.texts, self.total * times)


def _take_smallest(hashes: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the smallest distinct hashes, the sums of their counts, and their first positions in `hashes`."""
    distinct, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    sums = np.bincount(inverse, counts).astype(np.int64)  # exact below 2**53
    return distinct[:_MAX_VALUES], sums[:_MAX_VALUES], first[:_MAX_VALUES]
