"""Where blocks of rows come from, and what is known of one that is in memory or on its way there."""

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
    """How badly a block is needed, and so how much memory it may take."""

    AHEAD = 0  # for several batches: what readers were given
    BATCH = 1  # for one batch: room besides, if there is some
    NOW = 2  # nothing can go on without it


class ResidentBlock:
    """A block of rows in memory, or on its way there.

    Whoever plans makes it and lets it go, and `jobs` fill it on any thread. What else works on its rows waits for them
    first, and is done before the block is let go.
    """

    def __init__(
        self,
        number: int,
        arrays: Mapping[Group, np.ndarray],
        first: int = 0,
        run: Callable[[Callable[[], None]], None] = operator.call,
    ) -> None:
        self.number = number  # among those of its source
        self._run = run  # what does a job
        self.arrays = arrays  # where rows lie, maybe beside those of other blocks: from `first` on
        self.first = first
        self.media: dict[Group, MediaRows] = {}  # those that are decoded for each window
        self.jobs: list[Callable[[], None]] = []
        # Those that bring rows of some groups: a cache may stand before each.
        self.read_jobs: dict[tuple[Group, ...], Callable[[], None]] = {}
        self._futures: list[Future[None]] = []
        self._is_loaded = False

    def begin(self, submit: Callable[[Callable[[], None]], Future[None]]) -> None:
        """Put the jobs to work."""
        # They know this block: to keep them would make a circle, which only a collection of garbage frees.
        jobs, self.jobs, self.read_jobs = [*self.read_jobs.values(), *self.jobs], [], {}
        jobs += [rows.load for rows in self.media.values()]
        self._futures = [submit(functools.partial(self._run, job)) for job in jobs]

    def wait(self) -> None:
        """Wait until it is loaded; raise what went wrong."""
        # Every window asks, and a future takes locks to answer.
        if not self._is_loaded:
            for future in self._futures:
                future.result()
            self._is_loaded = True

    def stop(self) -> None:
        """Begin no job any more, and wait for those that write to its arrays."""
        for future in self._futures:
            if not future.cancel():
                future.exception()

    def row_indices(self, within: slice | Integers) -> Integers:
        """Return where rows lie among those of the block, by their places in the sequence."""
        raise NotImplementedError

    def row_numbers(self, indices: Integers) -> Integers:
        """Return the numbers in the split of rows that lie at some places."""
        raise NotImplementedError


AnyBlock = TypeVar("AnyBlock", bound=ResidentBlock)


class BlockSource(Protocol[AnyBlock]):
    """What blocks come from: the files of a dataset, a cache before another source, tasks of Dask.

    One thread calls it. Chosen rows of a dataset, and a cache of remote files, are sources like these.
    """

    def load(self, schedule: Schedule, block_position: int, need: Need) -> AnyBlock | None:
        """Return the block at a place of an epoch, its jobs not begun; None if there is no room for it now."""

    def release(self, block: AnyBlock) -> None:
        """Let others have the room of a block that nobody works on any more."""

    def close(self) -> None:
        """Let go of all; nothing works on any block."""


LocatedRows = tuple[ResidentBlock, slice | Integers, Integers]
"""Rows of a block: where they go, and where they lie in the block."""


def gather(located: Sequence[LocatedRows], count: int, out: Mapping[Group, np.ndarray]) -> Integers:
    """Copy rows of blocks to the beginning of arrays, and return their numbers; media come by themselves."""
    rows, positions = np.empty(count, np.int64), np.empty(count, np.int64)
    for block, target, indices in located:
        positions[target] = indices + block.first
        rows[target] = block.row_numbers(indices)
    arrays = {id(block.arrays): block.arrays for block, _, _ in located}
    if len(arrays) == 1:
        for group, array in located[0][0].arrays.items():
            if not group.stores_cells:
                # "clip" is the only mode that writes to `out` without a copy; the rows are known to be there.
                np.take(array, positions, axis=0, out=out[group][:count], mode="clip")
        return rows
    for key, memory in arrays.items():
        targets = np.concatenate([np.arange(count)[target] for block, target, _ in located if id(block.arrays) == key])
        for group, array in memory.items():
            if not group.stores_cells:
                out[group][targets] = array.take(positions[targets], axis=0)
    return rows
