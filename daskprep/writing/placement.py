"""Where the rows of every partition go: how many to each split, and from which place on."""

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
    """Rows of one split that lie together: `rows` of them in a partition's file, from its row `first` on."""

    partition: int
    first: int
    rows: int


@checkpointable
@dataclass(frozen=True)
class Placement:
    """For each partition: its rows in the source, and those that are written to each split, repeats counted."""

    source_rows: tuple[int, ...]
    counts: np.ndarray

    @classmethod
    def of(cls, source_rows: Sequence[int], counts: Sequence[Sequence[int]]) -> Placement:
        return cls(tuple(source_rows), np.array(counts, np.int64).reshape(len(source_rows), len(SPLITS)))

    @property
    def rows(self) -> dict[str, int]:
        """Rows of each split that has any."""
        totals = self.counts.sum(axis=0).tolist()
        return {name: total for name, total in zip(SPLITS, totals, strict=True) if total}

    def starts(self, split: str) -> np.ndarray:
        """Return where the rows of each partition begin in a split, and where the last ones end."""
        starts: np.ndarray = self._starts[:, SPLITS[split]]
        return starts

    @functools.cached_property
    def _starts(self) -> np.ndarray:
        return np.concatenate((np.zeros((1, len(SPLITS)), np.int64), np.cumsum(self.counts, axis=0)))

    def offset(self, partition: int, split: str) -> int:
        """Return the row in a partition's file at which a split begins."""
        return int(self._offsets[partition, SPLITS[split]])

    @functools.cached_property
    def _offsets(self) -> np.ndarray:
        offsets: np.ndarray = np.cumsum(self.counts, axis=1) - self.counts
        return offsets

    def runs(self, split: str, rows: range) -> Iterator[Run]:
        """Give where the rows of a split that stand in this range are to be found, in order."""
        starts = self.starts(split)
        first = max(0, int(np.searchsorted(starts, rows.start, side="right")) - 1)
        partition_slice = slice(first, int(np.searchsorted(starts, rows.stop)))
        begins = np.maximum(starts[partition_slice], rows.start)
        counts = np.minimum(starts[1:][partition_slice], rows.stop) - begins
        first_rows = self._offsets[partition_slice, SPLITS[split]] + begins - starts[partition_slice]
        for partition, (first_row, count) in enumerate(
            zip(first_rows.tolist(), counts.tolist(), strict=True), start=first
        ):
            if count:
                yield Run(partition, first_row, count)

    @functools.cached_property
    def source_starts(self) -> np.ndarray:
        """The number in the source of the first row of each partition."""
        return np.concatenate(([0], np.cumsum(np.array(self.source_rows, np.int64))))
