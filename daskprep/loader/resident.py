"""The blocks that are in memory: which go when others need their room."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Executor, Future

from daskprep.loader.media import DecodeStats, MediaRows
from daskprep.loader.order import Schedule
from daskprep.loader.source import BlockSource, Need, ResidentBlock

BlockKey = tuple[int, int]
"""The number of an epoch of an iteration, and a place in it."""


class ResidentBlocks:
    """The blocks that one source has brought to memory, or is bringing there; one thread calls it.

    A block that is let go may still have rows to be cached: its room is free once a thread has done that.
    """

    def __init__(
        self, source: BlockSource[ResidentBlock], executor: Executor, on_finished: Callable[[DecodeStats], None]
    ) -> None:
        self._source = source
        self._executor = executor
        self._on_finished = on_finished
        self._blocks: dict[BlockKey, ResidentBlock] = {}
        # Those whose room will be free once threads are done.
        self.pending_release: list[tuple[Future[list[DecodeStats]], ResidentBlock]] = []
        self.has_evicted = False  # what was read ahead

    def __getitem__(self, key: BlockKey) -> ResidentBlock:
        return self._blocks[key]

    def idle(self, busy: Collection[BlockKey]) -> list[BlockKey]:
        """Return the blocks that no window is made of."""
        return [key for key in self._blocks if key not in busy]

    def load(self, schedule: Schedule, key: BlockKey, need: Need = Need.AHEAD) -> bool:
        """Have a block brought to memory; return whether there was room for it."""
        if key not in self._blocks:
            block = self._source.load(schedule, key[1], need)
            if block is None:
                return False
            self._blocks[key] = block
            block.begin(self._executor.submit)
        return True

    def hold(self, schedule: Schedule, keys: Sequence[BlockKey], busy: Collection[BlockKey], need: Need) -> bool:
        """Have some blocks brought to memory, in place of others that are not busy; return whether there was room."""
        for key in keys:
            while not self.load(schedule, key, need):
                evicted = next((one for one in self._blocks if one not in busy), None)
                if evicted is None:
                    return False
                self.has_evicted = True
                self.release([evicted])
                self.release_finished()
        return True

    def release(self, keys: Iterable[BlockKey]) -> None:
        """Let blocks go, those with rows that are worth it after what is missing was decoded."""
        for key in keys:
            block = self._blocks.pop(key)
            block.stop()
            unfinished = [rows for rows in block.media.values() if rows.is_unfinished]
            if unfinished:
                self.pending_release.append((self._executor.submit(_finish, unfinished), block))
            else:
                self._discard(block)

    def release_finished(self, *, wait: bool = False) -> None:
        """Let the room of blocks be free that are finished."""
        pending_release, self.pending_release = self.pending_release, []
        for future, block in pending_release:
            if wait or future.done():
                for decoded in future.result():
                    self._on_finished(decoded)
                self._discard(block)
            else:
                self.pending_release.append((future, block))

    def finish(self, *, is_complete: bool) -> None:
        """End with the last epoch: if it was a whole one, blocks are worth finishing."""
        if is_complete:
            self.release(list(self._blocks))
        self.release_finished(wait=True)

    def stop(self) -> None:
        """Let nobody wait for a block any more."""
        for block in self._blocks.values():
            block.stop()

    def close(self) -> None:
        """Let go of what is open; no thread works on any block."""
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
