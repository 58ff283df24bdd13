"""Blocks in memory: loading, eviction and release."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Executor, Future

from daskprep.loader.media import DecodeStats, MediaRows
from daskprep.loader.order import Schedule
from daskprep.loader.source import BlockSource, Need, ResidentBlock

BlockKey = tuple[int, int]
"""The index of an epoch in an iteration, and the position of a block in it."""


class ResidentBlocks:
    """The blocks of one source that are in memory or being loaded; only one thread calls its methods.

    A released block may have to be completed for its cache; its memory is free after a thread has done that.

    Parameters
    ----------
    source : BlockSource
        Loads the blocks.
    executor : Executor
        Runs the jobs of blocks.
    on_finished : callable
        Called with the statistics of each completed block.
    """

    def __init__(
        self, source: BlockSource[ResidentBlock], executor: Executor, on_finished: Callable[[DecodeStats], None]
    ) -> None:
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
        """Start loading a block unless it is resident; return False if memory is short."""
        if key not in self._blocks:
            block = self._source.load(schedule, key[1], need)
            if block is None:
                return False
            self._blocks[key] = block
            block.begin(self._executor.submit)
        return True

    def hold(self, schedule: Schedule, keys: Sequence[BlockKey], busy: Collection[BlockKey], need: Need) -> bool:
        """Start loading blocks, evicting blocks that are not in `busy`; return False if memory is short."""
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
        """Release blocks, after decoding the missing rows of those that are to be cached."""
        for key in keys:
            block = self._blocks.pop(key)
            block.stop()
            unfinished = [rows for rows in block.media.values() if rows.is_unfinished]
            if unfinished:
                self.pending_release.append((self._executor.submit(_finish, unfinished), block))
            else:
                self._discard(block)

    def release_finished(self, *, wait: bool = False) -> None:
        """Free the memory of released blocks that are completed; with `wait`, wait for all of them."""
        pending_release, self.pending_release = self.pending_release, []
        for future, block in pending_release:
            if wait or future.done():
                for decoded in future.result():
                    self._on_finished(decoded)
                self._discard(block)
            else:
                self.pending_release.append((future, block))

    def finish(self, *, is_complete: bool) -> None:
        """Wait for pending releases at the end of an iteration.

        If `is_complete`, the last epoch was yielded to its end, and all blocks are released first.
        """
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
