"""Interface of the sources of blocks, and blocks that are in memory or being loaded."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from enum import IntEnum
from typing import Protocol, TypeVar

import numpy as np

from daskprep.loader.groups import Group
from daskprep.loader.media import MediaRows
from daskprep.loader.order import Schedule
from daskprep.permutation import Integers


class Need(IntEnum):
    """Urgency of a block, which determines how much memory it may take."""

    PREFETCH = 0  # needed for several batches: within the memory for prefetching
    BATCH = 1  # needed for a single batch: may use spare memory
    NOW = 2  # required to continue: may allocate memory


class ResidentBlock:
    """A block of rows in memory, or being loaded.

    The planning thread creates and releases it, and `jobs` fill it on any thread. Other tasks wait for the jobs before
    they use the rows, and end before the block is released.

    Parameters
    ----------
    number : int
        Block number in its source.
    arrays : mapping of Group to ndarray
        Memory of the rows by group; several blocks may share an array.
    first : int
        Index of the first row of the block in the arrays.
    run : callable
        Runs a job.
    """

    def __init__(
        self,
        number: int,
        arrays: Mapping[Group, np.ndarray],
        first: int = 0,
        run: Callable[[Callable[[], None]], None] = operator.call,
    ) -> None:
        self.number = number
        self._run = run
        self.arrays = arrays
        self.first = first
        self.media: dict[Group, MediaRows] = {}  # decoded for each window
        self.jobs: list[Callable[[], None]] = []
        # Jobs by the groups that they read, so that a cache can wrap them.
        self.read_jobs: dict[tuple[Group, ...], Callable[[], None]] = {}
        self._futures: list[Future[None]] = []
        self._is_loaded = False

    def begin(self, submit: Callable[[Callable[[], None]], Future[None]]) -> None:
        """Submit the jobs."""
        # Jobs refer to this block: keeping them would be a reference cycle, which only the garbage collector frees.
        jobs, self.jobs, self.read_jobs = [*self.read_jobs.values(), *self.jobs], [], {}
        jobs += [rows.load for rows in self.media.values()]
        self._futures = [submit(functools.partial(self._run, job)) for job in jobs]

    def wait(self) -> None:
        """Wait until the block is loaded; raise the error of a job that failed."""
        # Every window calls this, and each future would acquire a lock.
        if not self._is_loaded:
            for future in self._futures:
                future.result()
            self._is_loaded = True

    def stop(self) -> None:
        """Cancel the jobs that have not started, and wait for the running ones, which write to the arrays."""
        for future in self._futures:
            if not future.cancel():
                future.exception()

    def row_indices(self, within: slice | Integers) -> Integers:
        """Return the indices in the block of the rows at the positions `within` of its row order."""
        raise NotImplementedError

    def row_numbers(self, indices: Integers) -> Integers:
        """Return the row numbers in the split of the rows with these indices in the block."""
        raise NotImplementedError


AnyBlock = TypeVar("AnyBlock", bound=ResidentBlock)


class BlockSource(Protocol[AnyBlock]):
    """Interface of a source of blocks: the files of a dataset, a cache in front of another source, Dask tasks.

    Only one thread calls its methods.
    """

    def load(self, schedule: Schedule, block_position: int, need: Need) -> AnyBlock | None:
        """Return the block at a position of an epoch, without starting its jobs, or None if memory is short."""

    def release(self, block: AnyBlock) -> None:
        """Free the memory of a block that no task uses."""

    def close(self) -> None:
        """Free all memory; no task uses any block."""


LocatedRows = tuple[ResidentBlock, slice | Integers, Integers]
"""Rows of a block: the block, the positions of the rows in a window, and their indices in the block."""


def gather(located: Sequence[LocatedRows], count: int, out: Mapping[Group, np.ndarray]) -> Integers:
    """Copy `count` rows of blocks to the first rows of the arrays in `out`, except media; return their row numbers."""
    rows, positions = np.empty(count, np.int64), np.empty(count, np.int64)
    for block, target, indices in located:
        positions[target] = indices + block.first
        rows[target] = block.row_numbers(indices)
    arrays = {id(block.arrays): block.arrays for block, _, _ in located}
    if len(arrays) == 1:
        for group, array in located[0][0].arrays.items():
            if not group.stores_cells:
                # In NumPy, only mode="clip" writes to `out` without a temporary copy; all indices are valid.
                np.take(array, positions, axis=0, out=out[group][:count], mode="clip")
        return rows
    for key, memory in arrays.items():
        targets = np.concatenate([np.arange(count)[target] for block, target, _ in located if id(block.arrays) == key])
        for group, array in memory.items():
            if not group.stores_cells:
                out[group][targets] = array.take(positions[targets], axis=0)
    return rows
