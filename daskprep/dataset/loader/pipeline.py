"""Prefetch blocks and gather windows of batches from them, in threads and in order; tally the rows of batches."""

from __future__ import annotations

import bisect
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from daskprep.columns.deferred.decoders import MediaDecoder
from daskprep.columns.permutation import Integers
from daskprep.dataset.loader.groups import Buffers, DeviceTransfer, Group, ReusedArrays, Tensors
from daskprep.dataset.loader.media import DecodeStats, MediaRows, Medium, Times
from daskprep.dataset.loader.order import Schedule
from daskprep.dataset.loader.source import BlockSource, Need, ResidentBlock, gather
from daskprep.errors import CorruptDatasetError
from daskprep.storage.threads import InlineExecutor

_LOCAL_THREADS = 4
_REMOTE_THREADS = 48
_WINDOW_BYTES = 32_000_000
_MAX_BATCHES = 64
_WINDOWS_AHEAD = 2
# Windows refer to rows of a mapped cache, and need memory for them only if the cache is removed meanwhile.
_LATE_SHARE = 4
_PLANNED_AT_ONCE = 8  # besides these, so that no batch waits for the plan of all others
# Windows are small while rows are decoded or encoded, because touching new memory costs more than another window. When
# media are decoded, more windows per thread are in progress, so that threads stay busy while one of them decodes a
# large image or writes to the cache. Bytes per thread, for up to _MAX_DECODE_THREADS threads, bound their number.
SMALL_BYTES = 8_000_000
_DECODED_AHEAD = 2
_DECODED_BYTES = 16_000_000
_MAX_DECODE_THREADS = 16

Epoch: TypeAlias = tuple[Schedule, range]
"""The schedule of an epoch, and the numbers of the batches to yield."""


@dataclass(frozen=True)
class Settings:
    """Maximum numbers of prefetched blocks and of threads; 0 threads: the calling thread reads."""

    prefetch_blocks: int
    threads: int
    decodes: bool = False  # whether media have to be decoded during the iteration
    window_bytes: int | None = None  # maximum bytes of a window with several batches; None: the default
    single_block_windows: bool = False  # windows end with their block, because the next one may take long to arrive

    @classmethod
    def threads_for(cls, *, local: bool) -> int:
        """Return the default number of threads for reading: one per core up to 4, or 48 for a remote store."""
        return min(_LOCAL_THREADS, os.cpu_count() or 1) if local else _REMOTE_THREADS

    @classmethod
    def threads_to_decode(cls, decoders: Iterable[MediaDecoder]) -> int:
        """Return the default number of threads for decoding: one per core up to the maximum of the decoders."""
        max_threads = max((decoder.max_threads for decoder in decoders), default=_MAX_DECODE_THREADS)
        return max(2, min(max_threads, os.cpu_count() or 1))


@dataclass
class Window:
    """Consecutive batches of one rank in one epoch: their numbers, and the size and tally of each.

    `epoch` has the numbers of all batches of the epoch that are yielded. `arrays` may be longer than `rows`, the row
    numbers in the split. `tensors` has the groups that were gathered on the device.
    """

    schedule: Schedule
    epoch: range
    batches: range
    arrays: dict[Group, np.ndarray]
    rows: Integers
    sizes: list[int]
    tallies: list[RowTally]
    # To decode media: the blocks, and for each row the index of its block and its index in the block.
    origins: tuple[list[ResidentBlock], Integers, Integers] | None = None
    tensors: Tensors = field(default_factory=dict)
    stats: list[DecodeStats] = field(default_factory=list)  # of media that are gathered with the other rows
    late_rows: dict[Group, list[np.ndarray]] = field(default_factory=dict)  # views of rows that batches copy


BlockKey = tuple[int, int]
"""The index of an epoch in an iteration, and the position of a block in it."""


@dataclass
class ResidentBlocks:
    """The blocks of one source that are in memory or being loaded; only one thread calls its methods."""

    _source: BlockSource[ResidentBlock]
    _executor: Executor  # for jobs
    _on_finished: Callable[[DecodeStats], None]  # receives the statistics of completed blocks
    _blocks: dict[BlockKey, ResidentBlock] = field(default_factory=dict)
    # Blocks that are being completed before their memory is free.
    pending_release: list[tuple[Future[list[DecodeStats]], ResidentBlock]] = field(default_factory=list)

    def __getitem__(self, key: BlockKey) -> ResidentBlock:
        return self._blocks[key]

    def idle(self, pins: Collection[BlockKey]) -> list[BlockKey]:
        return [key for key in self._blocks if key not in pins]

    def load(self, schedule: Schedule, key: BlockKey, need: Need, pins: Collection[BlockKey] | None = None) -> bool:
        """Start loading a block, and evict others than `pins` (None: no block); return False if memory is short."""
        while key not in self._blocks:
            if (block := self._source.load(schedule, key[1], need)) is not None:
                self._blocks[key] = block
                block.begin(self._executor.submit)
            elif pins is None or not (idle := self.idle(pins)):
                return False
            else:
                self.release(idle[:1])
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
        """Stop the jobs of all blocks: no thread waits for one."""
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


class _PlannedWindow(NamedTuple):
    """A window of batches, which keeps its blocks in memory: the batches left of its epoch, and how many it has."""

    epoch: int
    left: range
    size: int
    keys: list[BlockKey]


class _PendingWindow(NamedTuple):
    """A window in progress: its gathering and decoding tasks."""

    planned: _PlannedWindow
    gathered: Future[Window]
    decoded: list[Future[DecodeStats]]


class Pipeline:
    """Iterable of the windows of one rank's batches, epoch after epoch.

    In memory are the current block of each stream, the prefetched blocks and a few windows. The iterating thread plans
    and submits tasks that read blocks, gather windows and decode rows. The threads of these tasks run from the first
    window until `close` or the end of the iteration, also after an error. No task waits for a task submitted later, so
    that threads cannot deadlock. `times` is updated during the iteration. `transfer` allocates the arrays of windows.
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
        transfer: DeviceTransfer,
        buffers: Buffers | None = None,
    ) -> None:
        """Choose the sizes of windows, and take the memory for them from `buffers`; `epochs` must not be empty."""
        self.source = source
        self.settings = settings
        self.times = times
        self._media = list(media)
        self._buffers = buffers or Buffers()
        self.transfer = transfer
        self._begin_thread = transfer.begin_thread
        self._remaining_epochs = iter(epochs)
        self._epochs: dict[int, Epoch] = {}  # with windows that are in progress or not yet planned
        self._is_complete_epoch = True  # whether the last epoch includes its last batch
        self._unplanned = self._advance_epoch((-1, range(0)))  # epoch and batches to be planned
        schedule, _ = self._epochs[0]
        self._rank_rows = rank_rows = schedule.max_rank_rows
        is_limited = settings.window_bytes is not None
        late = {medium.group for medium in media if medium.is_late}
        share = 1 if is_limited else _LATE_SHARE
        row_bytes = max(1, sum(group.row_bytes // (share if group in late else 1) for group in groups))
        window_bytes = SMALL_BYTES if settings.decodes or settings.single_block_windows else _WINDOW_BYTES
        window_bytes = min(window_bytes, settings.window_bytes or window_bytes)
        self._max_batches = max(1, min(_MAX_BATCHES, window_bytes // (rank_rows * row_bytes)))
        threads, nbytes = settings.threads * settings.decodes, self._max_batches * rank_rows * row_bytes
        threads = 0 if is_limited else threads
        extra_windows = min(_DECODED_AHEAD * threads, _DECODED_BYTES * min(threads, _MAX_DECODE_THREADS) // nbytes)
        self._max_windows = max(_WINDOWS_AHEAD, extra_windows)
        # The last two batches may each have one row more of this rank.
        self._window_rows = self._max_batches * rank_rows + 2
        in_memory = [group for group in groups if group.stores_cells or not transfer.gathers]
        self._in_memory = [group for group in in_memory if group not in late]
        self._shape = (tuple(groups), self._window_rows)
        self.arrays = self._buffers.take(ReusedArrays, self._shape, ReusedArrays)
        self._size = 1
        # A stream encodes partitions, so its threads start with several of them.
        self._reads_ahead = settings.threads > 0 and settings.single_block_windows
        self._queue: deque[_PendingWindow] = deque()
        self._ahead: deque[_PlannedWindow] = deque()  # later windows; the first `_loaded` are prefetched
        self._loaded = 0
        self._pins: Counter[BlockKey] = Counter()  # how many of all these windows need a block
        self._executor: Any = None
        self._resident: ResidentBlocks
        # When the interpreter exits, modules may be gone before an abandoned iterator is closed.
        self._getpid, self._is_finalizing = os.getpid, sys.is_finalizing
        self._process = os.getpid()

    def __iter__(self) -> Iterator[Window]:
        """Yield windows, whose arrays are reused once nothing refers to them; raise the errors of tasks."""
        threads = self.settings.threads
        self._executor = (
            ThreadPoolExecutor(threads, "daskprep-load", self._begin_thread) if threads else InlineExecutor()
        )
        self._resident = ResidentBlocks(self.source, self._executor, self.times.add)
        with closing(self):
            while True:
                self._plan()
                if not self._queue:
                    self._resident.finish(is_complete=self._is_complete_epoch)
                    return
                pending = self._queue.popleft()
                window = self._wait_for(pending)
                self._release(pending.planned)
                if self._reads_ahead:
                    self._plan()
                # Otherwise a single batch would take as long as the reads of later blocks.
                self._reads_ahead = threads > 0
                yield window
                del window, pending
                if self._getpid() != self._process:
                    raise RuntimeError(
                        "this iteration was started in another process: start a new iteration in this one"
                    )

    def close(self) -> None:
        """Stop the threads, close the source, and return the memory to `buffers`; a forked process does not."""
        if self._executor is None:
            return
        if self._getpid() == self._process:
            self._resident.stop()
            # Python has waited for all tasks when it exits, and `queue`, which canceling needs, may be gone.
            self._executor.shutdown(wait=True, cancel_futures=not self._is_finalizing())
            self._resident.close()
            self.source.close()
            self.arrays.trim(self._max_windows + 1)
            self._buffers.put_back(self._shape, self.arrays)
        self._executor = None
        self._queue.clear()

    def _wait_for(self, pending: _PendingWindow) -> Window:
        """Return a window after it is gathered and decoded; add the waiting time and the statistics to `times`."""
        began = time.perf_counter()
        window = pending.gathered.result()
        for stats in [*window.stats, *(future.result() for future in pending.decoded)]:
            self.times.add(stats)
        self.times.waiting += time.perf_counter() - began
        window.origins = None
        return window

    def _advance_epoch(self, current: tuple[int, range]) -> tuple[int, range]:
        """Return `current` if it has batches left, otherwise the next epoch and its batches, if any."""
        epoch, batches = current
        while not batches:
            if epoch + 1 not in self._epochs:
                next_epoch = next(self._remaining_epochs, None)
                if next_epoch is None:
                    break
                self._epochs[epoch + 1] = next_epoch
                self._is_complete_epoch = next_epoch[1].stop >= len(next_epoch[0])
            epoch += 1
            batches = self._epochs[epoch][1]
        return epoch, batches

    def _plan(self) -> None:
        """Submit the tasks of the next windows, up to the maximum in progress, and prefetch blocks for later ones."""
        max_windows = self._max_windows if self._reads_ahead else 1
        while len(self._queue) < max_windows and (window := self._hold_next()) is not None:
            schedule, batches = self._epochs[window.epoch]
            blocks = {key[1]: self._resident[key] for key in window.keys}
            gathered = self._executor.submit(self._gather, schedule, batches, window.left[: window.size], blocks)
            self._queue.append(_PendingWindow(window, gathered, self._submit_decoding(window.size, gathered)))
        if self._reads_ahead:
            self._prefetch()

    def _plan_window(self) -> _PlannedWindow | None:
        """Pin and return the window of the next batches whose blocks fit into memory; None after the last."""
        epoch, left = self._unplanned
        if not left:
            return None
        schedule, _ = self._epochs[epoch]
        size = min(self._size, len(left), self._count_within_block(schedule, left))
        # While a window is gathered, the next one is loaded.
        max_blocks = min(schedule.open_blocks + self.settings.prefetch_blocks // 2, len(schedule.blocks.sizes))
        while len(positions := schedule.block_positions(left[:size])) > max_blocks and size > 1:
            size = self._size = size // 2
        keys = [(epoch, position) for position in positions]
        self._unplanned = self._advance_epoch((epoch, left[size:]))
        self._size = min(2 * self._size, self._max_batches)
        self._pins.update(keys)
        return _PlannedWindow(epoch, left, size, keys)

    def _discard(self, window: _PlannedWindow) -> None:
        """Plan the batches of a window again, the last one planned."""
        self._unplanned = window.epoch, window.left
        self._unpin(window)

    def _unpin(self, window: _PlannedWindow) -> None:
        self._pins.subtract(window.keys)
        self._pins = +self._pins

    def _load(self, window: _PlannedWindow, need: Need, pins: Collection[BlockKey] | None = None) -> bool:
        """Start loading the blocks of a window; False without memory."""
        schedule, _ = self._epochs[window.epoch]
        return all(self._resident.load(schedule, key, need, pins) for key in window.keys)

    def _hold_next(self) -> _PlannedWindow | None:
        """Return the next window, loading its blocks; None after the last, or if others must be released."""
        self._resident.release_finished()
        self._loaded = max(0, self._loaded - 1)
        window, need = self._ahead.popleft() if self._ahead else self._plan_window(), Need.PREFETCH
        while window is not None:
            is_small = window.size == 1 or self.settings.single_block_windows
            need = max(need, Need.BATCH if is_small else Need.PREFETCH)
            if self._load(window, need, self._pins):
                break
            if self._ahead:  # these windows are later, so that their blocks may wait
                self._discard(self._ahead.pop())
                self._loaded = min(self._loaded, len(self._ahead))
            elif self._queue:
                self._discard(window)
                return None
            elif self._resident.pending_release:
                self._resident.release_finished(wait=True)
            elif need < Need.NOW:
                need = Need.NOW
            else:
                self._resident.release(self._resident.idle(()))
                self._resident.release_finished(wait=True)
                self.source.grow(2 * len(window.keys))
        return window

    def _prefetch(self) -> None:
        """Start loading the blocks of later windows in their order, across epochs, while there is free memory."""
        for _ in range(_PLANNED_AT_ONCE):
            if self._loaded == len(self._ahead):
                if (window := self._plan_window()) is None:
                    return
                self._ahead.append(window)
            if not self._load(self._ahead[self._loaded], Need.PREFETCH):
                return
            self._loaded += 1

    def _count_within_block(self, schedule: Schedule, batches: range) -> int:
        """Return how many of `batches` end in the block of the first, at least 1; all unless windows have one block."""
        if not self.settings.single_block_windows:
            return len(batches)
        starts = schedule.blocks.starts
        position = schedule.rows_yielded(batches.start)
        end = int(starts[bisect.bisect_right(starts, position)]) if position < starts[-1] else position
        return max(1, (end - position) // schedule.batch_size)

    def _release(self, window: _PlannedWindow) -> None:
        """Release the blocks that no batch after `window` needs, and the blocks and schedules of earlier epochs."""
        self._unpin(window)
        idle = [key for key in self._resident.idle(self._pins) if key[0] <= window.epoch]
        positions = np.array([position for epoch, position in idle if epoch == window.epoch], np.int64)
        if (rest := window.left[window.size :]) and len(positions):
            schedule, _ = self._epochs[window.epoch]
            unread = {(window.epoch, one) for one in positions[schedule.mask_unread(positions, rest[0])].tolist()}
            idle = [key for key in idle if key not in unread]
        self._resident.release(idle)
        for number in [number for number in self._epochs if number < window.epoch]:
            del self._epochs[number]

    def _gather(
        self, schedule: Schedule, epoch: range, batches: range, resident: Mapping[int, ResidentBlock]
    ) -> Window:
        """Return the window of `batches`, with rows copied from `resident` blocks, except media that are decoded."""
        for block in resident.values():
            block.wait()  # jobs of blocks are submitted before this task, so that threads run them first: no deadlock
        began = time.perf_counter()
        plan = schedule.window(batches)
        located, arrays, sizes = self.source.locate(plan, resident), self._take_arrays(), plan.sizes.tolist()
        count, rows = sum(sizes), located.rows
        tensors: Tensors = {}
        if self.transfer.gathers:
            [taken] = located.taken
            tensors = self.transfer.gather(dict(taken.arrays), taken.indices)
        else:
            gather(located.taken, count, arrays)
        origins = None
        if self._media and located.within is not None:
            block_indices = np.repeat(np.searchsorted(list(resident), plan.blocks), plan.counts)
            origins = list(resident.values()), block_indices, located.within
        window = Window(schedule, epoch, batches, arrays, rows, sizes, tally_batches(rows, sizes), origins, tensors)
        for medium in [] if self.settings.decodes else self._media:
            late_rows = medium.find_rows(*_locate_media(medium, window)) if medium.is_late else None
            if late_rows is not None:
                window.late_rows[medium.group] = late_rows
                continue
            if medium.is_late:  # the cache was removed meanwhile
                arrays[medium.group] = medium.group.empty(count)
            window.stats.append(_gather_media(medium, window, slice(count)))
        self.times.gathering += time.perf_counter() - began
        return window

    def _take_arrays(self) -> dict[Group, np.ndarray]:
        """Return unused arrays for a window."""
        rows = self._window_rows
        return {
            group: self.arrays.take(group, rows, partial(self.transfer.make_array, group, rows))
            for group in self._in_memory
        }

    def _submit_decoding(self, batches: int, gathered: Future[Window]) -> list[Future[DecodeStats]]:
        """Submit the tasks that decode the media of a window of `batches` after `gathered`; none if it copies."""
        tasks: list[Future[DecodeStats]] = []
        if not self.settings.decodes:  # a copy takes less than a task
            return tasks
        # All threads share the first window; the more windows are in progress, the fewer threads work on each.
        threads, windows = self.settings.threads, len(self._queue) + 1
        min_tasks = min(threads, -(-_DECODED_AHEAD * threads // windows))
        for medium in self._media:
            count = medium.count_tasks(batches * self._rank_rows, min_tasks, is_last=not self._unplanned[1])
            tasks += [self._executor.submit(_decode_media, medium, gathered, part, count) for part in range(count)]
        return tasks


def _decode_media(medium: Medium, gathered: Future[Window], part: int, count: int) -> DecodeStats:
    """Decode the media of part `part` of `count` equal parts of a window's rows, into its arrays; return statistics."""
    window = gathered.result()
    return _gather_media(medium, window, slice(*(len(window.rows) * edge // count for edge in (part, part + 1))))


def _gather_media(medium: Medium, window: Window, rows: slice) -> DecodeStats:
    """Copy or decode the media of rows of a window into its arrays; return statistics."""
    if not len(window.rows[rows]):
        return DecodeStats()
    media, block_indices, indices = _locate_media(medium, window)
    return medium.gather_rows(media, block_indices[rows], indices[rows], window.arrays[medium.group][rows])


def _locate_media(medium: Medium, window: Window) -> tuple[list[MediaRows], Integers, Integers]:
    """Return the blocks of a window, and for each row the index of its block and its index in the block."""
    assert window.origins is not None
    blocks, block_indices, indices = window.origins
    return [block.media[medium.group] for block in blocks], block_indices, indices


@dataclass
class RowTally:
    """Number of yielded rows, and the sum of their hashes."""

    rows: int = 0
    digest: int = 0

    def add(self, *others: RowTally) -> None:
        for other in others:
            self.rows += other.rows
            self.digest = (self.digest + other.digest) & 0xFFFFFFFFFFFFFFFF


def tally_batches(rows: np.ndarray, sizes: Sequence[int]) -> list[RowTally]:
    """Return the tally of each batch; `rows` are the row numbers of all batches, and `sizes` their lengths, all > 0."""
    starts = np.cumsum([0, *sizes[:-1]])
    return [RowTally(*pair) for pair in zip(sizes, np.add.reduceat(_hashes(rows), starts).tolist(), strict=True)]


def tally_schedule(schedule: Schedule, batches: range) -> RowTally:
    """Return the expected tally of the schedule's rank for the batches with the numbers in `batches`."""
    tally = RowTally()
    for _, sizes, rows in schedule.row_numbers(batches, _MAX_BATCHES):
        tally.add(*tally_batches(rows, sizes.tolist()))
    return tally


def verify_tally(schedule: Schedule, batches: range, tally: RowTally) -> dict[str, int]:
    """Return the numbers of rows and batches; raise CorruptDatasetError if `tally` is not the schedule's for them."""
    expected_tally = tally_schedule(schedule, batches)
    if expected_tally != tally:
        raise CorruptDatasetError(
            f"epoch {schedule.blocks.epoch}, rank {schedule.rank}: the {tally.rows:,} rows yielded are not the "
            f"{expected_tally.rows:,} rows expected of {len(batches):,} batches: batches were lost or repeated"
        )
    return {"rows": expected_tally.rows, "batches": len(batches)}


def _hashes(rows: np.ndarray) -> np.ndarray:
    """Return a 64-bit hash of each row number."""
    words = (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    words ^= words >> np.uint64(29)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(32)
    return words
