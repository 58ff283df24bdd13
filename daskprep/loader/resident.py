"""The blocks that are in memory: which go when others need their room."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Executor, Future

from daskprep.loader.media import Decoded, MediaRows
from daskprep.loader.order import Schedule
from daskprep.loader.source import BlockSource, Need, ResidentBlock

Key = tuple[int, int]
"""The number of an epoch of an iteration, and a place in it."""


class ResidentBlocks:
    """The blocks that one source has brought to memory, or is bringing there; one thread calls it.

    A block that is let go may still have rows to be cached: its room is free once a thread has done that.
    """

    def __init__(
        self, source: BlockSource[ResidentBlock], executor: Executor, finished: Callable[[Decoded], None]
    ) -> None:
        self._source = source
        self._executor = executor
        self._finished = finished
        self._blocks: dict[Key, ResidentBlock] = {}
        # Those whose room will be free once threads are done.
        self.leaving: list[tuple[Future[list[Decoded]], ResidentBlock]] = []
        self.has_evicted = False  # what was read ahead

    def __getitem__(self, key: Key) -> ResidentBlock:
        return self._blocks[key]

    def idle(self, busy: Collection[Key]) -> list[Key]:
        """Return the blocks that no window is made of."""
        return [key for key in self._blocks if key not in busy]

    def load(self, schedule: Schedule, key: Key, need: Need = Need.AHEAD) -> bool:
        """Have a block brought to memory; return whether there was room for it."""
        if key not in self._blocks:
            block = self._source.load(schedule, key[1], need)
            if block is None:
                return False
            self._blocks[key] = block
            block.begin(self._executor.submit)
        return True

    def hold(self, schedule: Schedule, keys: Sequence[Key], busy: Collection[Key], need: Need) -> bool:
        """Have some blocks brought to memory, in place of others that are not busy; return whether there was room."""
        for key in keys:
            while not self.load(schedule, key, need):
                evicted = next((one for one in self._blocks if one not in busy), None)
                if evicted is None:
                    return False
                self.has_evicted = True
                self.release([evicted])
                self.settle()
        return True

    def release(self, keys: Iterable[Key]) -> None:
        """Let blocks go, those with rows that are worth it after what is missing was decoded."""
        for key in keys:
            block = self._blocks.pop(key)
            block.stop()
            unfinished = [rows for rows in block.media.values() if rows.is_unfinished]
            if unfinished:
                self.leaving.append((self._executor.submit(_finish, unfinished), block))
            else:
                self._let_go(block)

    def settle(self, *, wait: bool = False) -> None:
        """Let the room of blocks be free that are finished."""
        leaving, self.leaving = self.leaving, []
        for future, block in leaving:
            if wait or future.done():
                for decoded in future.result():
                    self._finished(decoded)
                self._let_go(block)
            else:
                self.leaving.append((future, block))

    def finish(self, *, whole: bool) -> None:
        """End with the last epoch: if it was a whole one, blocks are worth finishing."""
        if whole:
            self.release(list(self._blocks))
        self.settle(wait=True)

    def stop(self) -> None:
        """Let nobody wait for a block any more."""
        for block in self._blocks.values():
            block.stop()

    def close(self) -> None:
        """Let go of what is open; no thread works on any block."""
        for block in [*self._blocks.values(), *(block for _, block in self.leaving)]:
            _close(block)
        self._blocks.clear()
        self.leaving.clear()

    def _let_go(self, block: ResidentBlock) -> None:
        _close(block)
        self._source.release(block)


def _close(block: ResidentBlock) -> None:
    for rows in block.media.values():
        rows.close()


def _finish(unfinished: Sequence[MediaRows]) -> list[Decoded]:
    return [rows.finish() for rows in unfinished]
