"""Sources of blocks: their interface, a block in memory or being loaded, and the blocks in memory together."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from enum import IntEnum
from typing import Protocol, TypeVar

import numpy as np

from daskprep.loader.groups import Group
from daskprep.loader.media import DecodeStats, MediaRows
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
    they use the rows, and end before the block is released. Several blocks may share the `arrays`.
    """

    def __init__(
        self,
        number: int,
        arrays: Mapping[Group, np.ndarray],
        first: int = 0,
        run: Callable[[Callable[[], None]], None] = operator.call,
    ) -> None:
        """Set the number in the source, the arrays by group, the index of the first row in them; `run` calls a job."""
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
        """Submit the jobs, and forget them."""
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
    """Copy rows of blocks to the first `count` rows of the arrays in `out`, except media; return their row numbers."""
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


BlockKey = tuple[int, int]
"""The index of an epoch in an iteration, and the position of a block in it."""


class ResidentBlocks:
    """The blocks of one source that are in memory or being loaded; only one thread calls its methods.

    A released block may have to be completed for its cache; its memory is free after a thread has done that.
    """

    def __init__(
        self, source: BlockSource[ResidentBlock], executor: Executor, on_finished: Callable[[DecodeStats], None]
    ) -> None:
        """Start without blocks; `executor` runs jobs, and `on_finished` receives the statistics of completed blocks."""
        self._source = source
        self._executor = executor
        self._on_finished = on_finished
        self._blocks: dict[BlockKey, ResidentBlock] = {}
        # Blocks that are being completed before their memory is free.
        self.pending_release: list[tuple[Future[list[DecodeStats]], ResidentBlock]] = []
        self.has_evicted = False  # whether a prefetched block was evicted, and so must be loaded again

    def __getitem__(self, key: BlockKey) -> ResidentBlock:
        return self._blocks[key]

    def idle(self, busy: Collection[BlockKey]) -> list[BlockKey]:
        """Return the keys of the blocks that are not in `busy`."""
        return [key for key in self._blocks if key not in busy]

    def load(self, schedule: Schedule, key: BlockKey, need: Need = Need.PREFETCH) -> bool:
        """Start loading a block unless it is resident; return whether it is, False if memory is short."""
        if key not in self._blocks:
            block = self._source.load(schedule, key[1], need)
            if block is None:
                return False
            self._blocks[key] = block
            block.begin(self._executor.submit)
        return True

    def hold(self, schedule: Schedule, keys: Sequence[BlockKey], busy: Collection[BlockKey], need: Need) -> bool:
        """Start loading blocks, evicting blocks not in `busy` to make room; return False if memory is still short."""
        for key in keys:
            while not self.load(schedule, key, need):
                evicted = next((resident for resident in self._blocks if resident not in busy), None)
                if evicted is None:
                    return False
                self.has_evicted = True
                self.release([evicted])
                self.release_finished()
        return True

    def release(self, keys: Iterable[BlockKey]) -> None:
        """Release blocks; their memory is free now, or after a thread has decoded missing rows that a cache needs."""
        for key in keys:
            block = self._blocks.pop(key)
            block.stop()
            unfinished = [rows for rows in block.media.values() if rows.is_unfinished]
            if unfinished:
                self.pending_release.append((self._executor.submit(_finish, unfinished), block))
            else:
                self._discard(block)

    def release_finished(self, *, wait: bool = False) -> None:
        """Free the memory of released blocks that threads have completed; with `wait`, wait for all released blocks."""
        pending_release, self.pending_release = self.pending_release, []
        for future, block in pending_release:
            if wait or future.done():
                for decoded in future.result():
                    self._on_finished(decoded)
                self._discard(block)
            else:
                self.pending_release.append((future, block))

    def finish(self, *, is_complete: bool) -> None:
        """Wait for pending releases at the end of an iteration; if the last epoch `is_complete`, release all blocks."""
        if is_complete:
            self.release(list(self._blocks))
        self.release_finished(wait=True)

    def stop(self) -> None:
        """Stop the jobs of all blocks, so that no thread waits for a block."""
        for block in self._blocks.values():
            block.stop()

    def close(self) -> None:
        """Close the media of all blocks; no thread may use a block."""
        for block in [*self._blocks.values(), *(block for _, block in self.pending_release)]:
            _close(block)
        self._blocks.clear()
        self.pending_release.clear()

    def _discard(self, block: ResidentBlock) -> None:
        _close(block)
        self._source.release(block)


def _close(block: ResidentBlock) -> None:
    for rows in block.media.values():
        rows.close()


def _finish(unfinished: Sequence[MediaRows]) -> list[DecodeStats]:
    return [rows.finish() for rows in unfinished]
