"""Blocks read ahead, and windows of batches gathered from them by threads, in order."""

from __future__ import annotations

import bisect
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from daskprep.inline import InlineExecutor
from daskprep.loader.audit import RowTally, tally_batches
from daskprep.loader.groups import Buffers, Group, WindowArrays
from daskprep.loader.media import DecodeStats, Medium, Times
from daskprep.loader.order import Schedule
from daskprep.loader.resident import BlockKey, ResidentBlocks
from daskprep.loader.source import BlockSource, Need, ResidentBlock, gather
from daskprep.loader.switch_interval import short_switch_interval
from daskprep.media.decoding import MediaDecoder
from daskprep.permutation import Integers

_LOCAL_THREADS = 4
_REMOTE_THREADS = 48
_WINDOW_BYTES = 32_000_000
_MAX_BATCHES = 64
_WINDOWS_AHEAD = 2
# Where rows are decoded or made meanwhile, windows are small, as to touch new memory costs more than a window does. If
# they are decoded, more windows keep threads busy while one of them is at a large image, or writes to the cache: this
# many for each thread, as far as their rows have no more bytes, for which threads beyond so many do not count.
_SMALL_BYTES = 8_000_000
_DECODED_AHEAD = 2
_DECODED_BYTES = 16_000_000
_MAX_DECODE_THREADS = 16

Epoch: TypeAlias = tuple[Schedule, range]
"""The batches of an epoch that are asked for."""


@dataclass(frozen=True)
class Settings:
    """How much is read ahead, and by how many threads; no threads read when it is asked for."""

    ahead_blocks: int
    threads: int
    decodes: bool = False  # whether some rows are to be decoded meanwhile
    local: bool = True  # if not, the first window does not share the connections with what is read ahead
    whole_blocks: bool = False  # whether blocks come so late that windows end with them, rather than wait for the next

    @classmethod
    def threads_for(cls, *, local: bool) -> int:
        """Return how many threads keep the cores, or the connections to a store, busy."""
        return min(_LOCAL_THREADS, os.cpu_count() or 1) if local else _REMOTE_THREADS

    @classmethod
    def threads_to_decode(cls, decoders: Iterable[MediaDecoder]) -> int:
        """Return how many threads keep the cores busy with media."""
        max_threads = max((decoder.max_threads for decoder in decoders), default=_MAX_DECODE_THREADS)
        return max(2, min(max_threads, os.cpu_count() or 1))


@dataclass
class Window:
    """Consecutive batches of one rank in one epoch."""

    schedule: Schedule
    epoch: range  # all batches of the epoch that are given
    batches: range
    arrays: dict[Group, np.ndarray]  # rows by group, with room for more behind them
    rows: Integers  # the number of each row in the split
    sizes: tuple[int, ...]  # rows of each batch, whose tallies are in `tallies`
    tallies: list[RowTally]
    # For media: blocks, and of each row the number of its block among these, and where it lies there.
    origins: tuple[list[ResidentBlock], Integers, Integers] | None = None


class _PendingWindow(NamedTuple):
    """A window on its way: the blocks that it comes from, who gathers it, and who decodes its media."""

    epoch: int
    keys: list[BlockKey]
    gathered: Future[Window]
    decoded: list[Future[DecodeStats]]


class Pipeline:
    """Gives the windows of one rank's batches, epoch after epoch.

    Holds the blocks that its streams are in, those read ahead, and a few windows. The thread that iterates plans, and
    has blocks read, windows gathered and rows decoded by others, which live from the first window to `close`, or to
    the end of the iteration, however it ends. Tasks are asked for in an order in which none waits for a later one.
    """

    def __init__(
        self,
        source: BlockSource[Any],
        groups: Sequence[Group],
        media: Sequence[Medium],
        epochs: Iterable[Epoch],
        settings: Settings,
        *,
        times: Times,
        make_array: Callable[[Group, int], np.ndarray] = Group.empty,
        begin_thread: Callable[[], object] | None = None,
        buffers: Buffers | None = None,
    ) -> None:
        self.source = source
        self.settings = settings
        self.times = times
        self._media = list(media)
        self._buffers = buffers or Buffers()
        self._begin_thread = begin_thread
        self._remaining_epochs = iter(epochs)
        self._epochs: dict[int, Epoch] = {}  # those that something is still to be done for
        self._is_complete_epoch = True  # whether all batches of the last epoch are asked for
        # What is to be planned, and what nothing was read for yet.
        self._unplanned = self._unread = self._advance_epoch((-1, range(0)))
        schedule, _ = self._epochs[0]
        self._rank_rows = rank_rows = len(schedule.rank_range)
        row_bytes = max(1, sum(group.row_bytes for group in groups))
        window_bytes = _SMALL_BYTES if settings.decodes or settings.whole_blocks else _WINDOW_BYTES
        self._max_batches = max(1, min(_MAX_BATCHES, window_bytes // (rank_rows * row_bytes)))
        threads, nbytes = settings.threads if settings.decodes else 0, self._max_batches * rank_rows * row_bytes
        extra_windows = min(_DECODED_AHEAD * threads, _DECODED_BYTES * min(threads, _MAX_DECODE_THREADS) // nbytes)
        self._windows_ahead = max(_WINDOWS_AHEAD, extra_windows)
        # Behind the last full batch there may be a share of what is left.
        rows = self._max_batches * rank_rows + schedule.streams + rank_rows
        self._shape = (tuple(groups), rows)
        self._windows = self._buffers.take(
            WindowArrays,
            self._shape,
            lambda: WindowArrays(lambda: {group: make_array(group, rows) for group in groups}),
        )
        self._size = 1
        self._begun = False
        self._queue: deque[_PendingWindow] = deque()
        self._executor: Any = None
        self._resident: ResidentBlocks
        # At the end of the interpreter, modules may have gone before an iterator that was left.
        self._getpid = os.getpid
        self._process = os.getpid()

    def __iter__(self) -> Iterator[Window]:
        threads = self.settings.threads
        self._executor = (
            ThreadPoolExecutor(threads, "daskprep-load", self._begin_thread) if threads else InlineExecutor()
        )
        self._resident = ResidentBlocks(self.source, self._executor, self.times.add)
        with short_switch_interval() if threads else nullcontext(), closing(self):
            while True:
                self._plan()
                if not self._queue:
                    self._resident.finish(is_complete=self._is_complete_epoch)
                    return
                pending = self._queue.popleft()
                window = self._wait_for(pending)
                self._release(pending.epoch, window)
                if threads:
                    self._plan()
                yield window
                del window, pending
                if self._getpid() != self._process:
                    raise RuntimeError(
                        "these batches were begun in another process, whose threads a fork does not take along: "
                        "iterate over it again"
                    )

    def close(self) -> None:
        """Stop the threads; what is being read is waited for."""
        if self._executor is None:
            return
        if self._getpid() == self._process:
            self._resident.stop()
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._resident.close()
            self.source.close()
            self._windows.trim(self._windows_ahead + 1)
            self._buffers.put_back(self._shape, self._windows)
        self._executor = None
        self._queue.clear()

    def _wait_for(self, pending: _PendingWindow) -> Window:
        began = time.perf_counter()
        window = pending.gathered.result()
        for future in pending.decoded:
            self.times.add(future.result())
        self.times.waiting += time.perf_counter() - began
        window.origins = None
        return window

    def _advance_epoch(self, current: tuple[int, range]) -> tuple[int, range]:
        """Return where batches go on: in the next epoch if those of one are through; without batches, nowhere."""
        epoch, batches = current
        while not batches:
            if epoch + 1 not in self._epochs:
                following = next(self._remaining_epochs, None)
                if following is None:
                    break
                self._epochs[epoch + 1] = following
                self._is_complete_epoch = following[1].stop >= len(following[0])
            epoch += 1
            batches = self._epochs[epoch][1]
        return epoch, batches

    def _plan(self) -> None:
        """Put the next windows to work, and read ahead what they will need."""
        ahead = self._windows_ahead if self.settings.threads else 1
        while len(self._queue) < ahead and self._unplanned[1]:
            keys, size = self._reserve_next()
            if not size:
                return
            epoch, left = self._unplanned
            batches = left[:size]
            self._unplanned = self._advance_epoch((epoch, left[size:]))
            self._size = min(2 * self._size, self._max_batches)
            blocks = {key[1]: self._resident[key] for key in keys}
            gathered = self._executor.submit(self._gather, *self._epochs[epoch], batches, blocks)
            self._queue.append(_PendingWindow(epoch, keys, gathered, self._submit_decoding(size, gathered)))
        if self.settings.threads and (self._begun or self.settings.local):
            self._read_ahead()
        self._begun = True

    def _reserve_next(self) -> tuple[list[BlockKey], int]:
        """Return for how many of the next batches there is room, and their blocks; 0 if some must be released first."""
        self._resident.release_finished()
        epoch, left = self._unplanned
        schedule, _ = self._epochs[epoch]
        size = min(self._size, len(left), self._count_within_block(schedule, left))
        need = Need.AHEAD
        while True:
            keys = [(epoch, block_position) for block_position in schedule.block_positions(left[:size])]
            need = max(need, Need.BATCH if size == 1 else Need.AHEAD)
            if self._resident.hold(schedule, keys, self._busy_keys() | set(keys), need):
                return keys, size
            if self._queue:
                return [], 0
            if self._resident.pending_release:
                self._resident.release_finished(wait=True)
                continue
            if size == 1:
                need = Need.NOW
            size = max(1, size // 2)

    def _count_within_block(self, schedule: Schedule, batches: range) -> int:
        """Return how many batches end with the block that they begin in, if the next one may be far."""
        if not self.settings.whole_blocks:
            return len(batches)
        starts = schedule.blocks.starts
        position = schedule.rows_before + batches.start * schedule.batch_size
        end = int(starts[bisect.bisect_right(starts, position)]) if position < starts[-1] else position
        return max(1, (end - position) // schedule.batch_size)

    def _read_ahead(self) -> None:
        """Read the blocks that the streams come to next into room that is free."""
        if self._resident.has_evicted or self._unread[0] < self._unplanned[0]:
            self._resident.has_evicted, self._unread = False, self._unplanned
        epoch, batches = self._unread
        if epoch == self._unplanned[0]:
            batches = batches[max(0, len(batches) - len(self._unplanned[1])) :]
        while batches:
            schedule = self._epochs[epoch][0]
            for block_position in schedule.block_positions(batches[: self._max_batches]):
                if not self._resident.load(schedule, (epoch, block_position)):
                    self._unread = epoch, batches
                    return
            epoch, batches = self._advance_epoch((epoch, batches[self._max_batches :]))
        self._unread = epoch, batches

    def _release(self, epoch: int, window: Window) -> None:
        """Let blocks go that nothing behind a window of an epoch needs."""
        idle, last = self._resident.idle(self._busy_keys()), window.batches[-1]
        block_positions = np.array(
            [block_position for one, block_position in idle if one == epoch and last != window.epoch[-1]], np.int64
        )
        needed = (
            block_positions[window.schedule.needed(block_positions, last + 1)].tolist() if len(block_positions) else []
        )
        needed_keys = {(epoch, block_position) for block_position in needed}
        self._resident.release(key for key in idle if key[0] <= epoch and key not in needed_keys)
        for one in [one for one in self._epochs if one < epoch]:
            del self._epochs[one]

    def _busy_keys(self) -> set[BlockKey]:
        return {key for pending in self._queue for key in pending.keys}

    def _gather(
        self, schedule: Schedule, epoch: range, batches: range, resident: Mapping[int, ResidentBlock]
    ) -> Window:
        for block in resident.values():
            # Asked for before this task, so that threads have begun them all: waiting cannot lock up.
            block.wait()
        began = time.perf_counter()
        plan = schedule.window(batches)
        slices = [
            (resident[block_slice.block_position], block_slice.target, block_slice.within)
            for block_slice in plan.slices
        ]
        located = [(block, target, block.row_indices(within)) for block, target, within in slices]
        arrays, count = self._windows.take(), sum(plan.sizes)
        rows = gather(located, count, arrays)
        origins = None
        if self._media:
            blocks = list(resident.values())
            block_indices = {id(block): number for number, block in enumerate(blocks)}
            origins = blocks, np.empty(count, np.int64), np.empty(count, np.int64)
            for block, target, indices in located:
                origins[1][target] = block_indices[id(block)]
                origins[2][target] = indices
        self.times.gathering += time.perf_counter() - began
        tallied = tally_batches(rows, plan.sizes)
        return Window(schedule, epoch, batches, arrays, rows, plan.sizes, tallied, origins)

    def _submit_decoding(self, batches: int, gathered: Future[Window]) -> list[Future[DecodeStats]]:
        """Put the media of a window to work: asked for behind its gathering, so that waiting for it cannot lock up."""
        tasks = []
        # The first one all threads decode at once; the more windows are on their way, the fewer are at each.
        threads, windows = self.settings.threads, len(self._queue) + 1
        min_tasks = min(threads, -(-_DECODED_AHEAD * threads // windows))
        for medium in self._media:
            count = medium.count_tasks(batches * self._rank_rows, min_tasks, is_last=not self._unplanned[1])
            tasks += [self._executor.submit(_gather_media, medium, gathered, part, count) for part in range(count)]
        return tasks


def _gather_media(medium: Medium, gathered: Future[Window], part: int, count: int) -> DecodeStats:
    window = gathered.result()
    rows = slice(*(len(window.rows) * edge // count for edge in (part, part + 1)))
    if window.origins is None or not len(window.rows[rows]):
        return DecodeStats()
    blocks, block_indices, indices = window.origins
    media = [block.media[medium.group] for block in blocks]
    return medium.gather_rows(media, block_indices[rows], indices[rows], window.arrays[medium.group][rows])
