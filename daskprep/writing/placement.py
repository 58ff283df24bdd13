"""The number of rows of each partition in each split, and their positions there."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from daskprep.split import TEST, TRAIN, VALIDATION
from daskprep.storage import layout
from daskprep.storage.checkpoint import checkpointable

SPLITS = dict(zip(layout.SPLITS, (TRAIN, VALIDATION, TEST), strict=True))


class Run(NamedTuple):
    """Consecutive rows of one split in the file of a partition: `rows` rows from the row number `first`."""

    partition: int
    first: int
    rows: int


@checkpointable
@dataclass(frozen=True)
class Placement:
    """The number of rows of each partition in the source, and in each split.

    Attributes
    ----------
    source_rows : tuple of int
        The number of source rows of each partition.
    counts : array of shape (partitions, 3)
        The number of written rows, including repeats, of each partition in train, validation and test.
    """

    source_rows: tuple[int, ...]
    counts: np.ndarray

    @classmethod
    def from_counts(cls, source_rows: Sequence[int], counts: Sequence[Sequence[int]]) -> Placement:
        """Return a placement from the two sequences, with a number or counts for each partition."""
        return cls(tuple(source_rows), np.array(counts, np.int64).reshape(len(source_rows), len(SPLITS)))

    @property
    def rows(self) -> dict[str, int]:
        """The number of rows of each split, without empty splits."""
        totals = self.counts.sum(axis=0).tolist()
        return {name: total for name, total in zip(SPLITS, totals, strict=True) if total}

    def starts(self, split: str) -> np.ndarray:
        """Return the position in a split of the first row of each partition, followed by the rows of the split."""
        starts: np.ndarray = self._starts[:, SPLITS[split]]
        return starts

    @functools.cached_property
    def _starts(self) -> np.ndarray:
        return np.concatenate((np.zeros((1, len(SPLITS)), np.int64), np.cumsum(self.counts, axis=0)))

    def offset(self, partition: int, split: str) -> int:
        """Return the row number in the file of a partition at which a split starts."""
        return int(self._offsets[partition, SPLITS[split]])

    @functools.cached_property
    def _offsets(self) -> np.ndarray:
        offsets: np.ndarray = np.cumsum(self.counts, axis=1) - self.counts
        return offsets

    def runs(self, split: str, rows: range) -> Iterator[Run]:
        """Yield the runs that contain a range of rows of a split, in order."""
        starts = self.starts(split)
        first = max(0, int(np.searchsorted(starts, rows.start, side="right")) - 1)
        partition_slice = slice(first, int(np.searchsorted(starts, rows.stop)))
        run_starts = np.maximum(starts[partition_slice], rows.start)
        counts = np.minimum(starts[1:][partition_slice], rows.stop) - run_starts
        first_rows = self._offsets[partition_slice, SPLITS[split]] + run_starts - starts[partition_slice]
        for partition, (first_row, count) in enumerate(
            zip(first_rows.tolist(), counts.tolist(), strict=True), start=first
        ):
            if count:
                yield Run(partition, first_row, count)

    @functools.cached_property
    def source_starts(self) -> np.ndarray:
        """The row number in the source of the first row of each partition, followed by the number of rows."""
        return np.concatenate(([0], np.cumsum(np.array(self.source_rows, np.int64))))
