"""Windows of a stream: the order of rows in them, and encoded rows in memory, within a limit.

Partitions are permuted, and rows are permuted within windows of partitions. They fill a window in order of arrival.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import numpy as np
import pyarrow as pa

from daskprep.columns.permutation import Integers, make_key, permute
from daskprep.dataset.loader.groups import Group
from daskprep.dataset.loader.media import CellArray, MediaRows, Times, group_by_block
from daskprep.dataset.loader.order import EpochBlocks, Schedule, WindowPlan, rank_bounds
from daskprep.dataset.loader.source import LocatedRows, Need, ResidentBlock, TakenRows
from daskprep.errors import ConfigError
from daskprep.extensions.streaming.encoding import EncodedPartition, PartitionSpan, RankShare
from daskprep.passes.table import PartitionContext
from daskprep.sources.partitions import PartitionExecutor, PartitionRequest
from daskprep.storage.arrays import ROW_ID
from daskprep.storage.manifest import LossCounts

# One partition in progress and one waiting, so that a thread is never idle.
_PARTITIONS_PER_THREAD = 2
_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class StreamOrder:
    """The order of rows in all epochs: a pure function."""

    sizes: Integers  # rows of each partition in the split
    window_rows: int  # maximum rows of a window, unless a single partition has more
    seed: int  # of the shuffle
    shuffle: bool  # whether to permute partitions, and rows within windows

    @property
    def rows(self) -> int:
        return int(self.sizes.sum())

    def epoch(self, epoch: int) -> EpochWindows:
        """Return the windows of the epoch with this number; partitions without rows are in no window."""
        order = partition_numbers = np.flatnonzero(self.sizes)
        if self.shuffle:
            order, count = np.empty_like(partition_numbers), len(partition_numbers)
            order[permute(np.arange(count), count, make_key(self.seed, "partitions", epoch))] = partition_numbers
        window_borders = np.array(list(self._borders(self.sizes[order], epoch)), np.int64)
        ends = np.concatenate(([0], np.cumsum(self.sizes[order])))
        return EpochWindows(
            sizes=np.diff(ends[window_borders]),
            block_rows=0,
            seed=self.seed,
            epoch=epoch,
            shuffle=self.shuffle,
            firsts=np.cumsum(self.sizes) - self.sizes,
            partition_sizes=self.sizes,
            partitions=order,
            window_borders=window_borders,
        )

    def _borders(self, sizes: Integers, epoch: int) -> Iterator[int]:
        """Yield the start of each window as an index of `sizes`, the rows by partition, and finally their number."""
        start = rows = 0
        # In epoch 0 the first window has one partition, so that the first batch is early; later windows double in size.
        max_partitions = 1 if epoch == 0 else len(sizes)
        yield 0
        for index, size in enumerate(sizes.tolist()):
            if index > start and (rows + size > self.window_rows or index - start >= max_partitions):
                yield index
                start, rows, max_partitions = index, 0, 2 * max_partitions
            rows += size
        yield len(sizes)


@dataclass(frozen=True, kw_only=True)
class EpochWindows(EpochBlocks):
    """The rows of an epoch in order, with windows as blocks."""

    partition_sizes: Integers  # rows of each partition in the split
    partitions: Integers  # partition numbers in the order of the epoch
    window_borders: Integers  # start of each window in `partitions`, and the end of the last window

    @cached_property
    def order(self) -> Integers:
        return np.arange(len(self.sizes))

    def window_partitions(self, window: int) -> Iterator[tuple[int, PartitionSpan]]:
        """Yield number and span of the partitions of a window."""
        key = make_key(self.seed, "window", self.epoch, window) if self.shuffle else None
        first, start = 0, int(self.starts[window])
        for number in self.partitions[self.window_borders[window] : self.window_borders[window + 1]].tolist():
            rows = int(self.partition_sizes[number])
            yield number, PartitionSpan(start, first, rows, int(self.sizes[window]), key)
            first += rows

    def row_numbers(self, block_position: int) -> Integers:
        """Return the row numbers in the split of the window at `block_position`, in the order of the epoch."""
        row_numbers = np.empty(self.sizes[block_position], np.int64)
        for number, span in self.window_partitions(block_position):
            rows = np.arange(span.rows) + self.firsts[number]
            row_numbers[span.positions() - span.start] = rows
        return row_numbers


def compute_rank_share(schedule: Schedule) -> RankShare:
    """Return the positions in the sequence of the schedule's rank."""
    last = tuple(map(schedule.own_rows, range(schedule.full_batches, len(schedule))))
    own = range(*rank_bounds(schedule.batch_size, schedule.rank, schedule.world_size))
    return RankShare(schedule.rows_before, schedule.full_batches, schedule.batch_size, own, last)


def check_window(sizes: Integers, row_bytes: int, window_bytes: int, window: object) -> int:
    """Return the maximum rows of a window, half of `window_bytes`; ConfigError for too large partitions."""
    largest = int(sizes.argmax())
    nbytes = int(sizes[largest]) * row_bytes
    if nbytes > window_bytes:
        raise ConfigError(
            f"window={window!r} is too small: partition {largest} has {sizes[largest]:,} rows, which take {nbytes:,} "
            "bytes encoded; use a window of twice as many bytes, or smaller partitions: read_files(..., "
            "partition_bytes=...)"
        )
    return max(1, window_bytes // 2 // row_bytes)


@dataclass
class StreamTimes(Times):
    """Statistics of a stream: also the partitions that arrived, the windows released, and the peak bytes of windows."""

    partitions: int = 0
    windows: int = 0
    peak_bytes: int = 0


@dataclass(eq=False)
class _WindowMedia(MediaRows):
    """Encoded images or audio of one output in a window, in the order in which partitions arrived."""

    _window: WindowRows
    _chunks: dict[int, pa.StructArray] = field(default_factory=dict)
    nbytes: int = 0

    def add(self, first: int, cells: pa.StructArray) -> None:
        """Store the cells of a partition in the slots from `first` on."""
        self._chunks[first] = cells
        self.nbytes += cells.nbytes

    def shrink_to(self, indices: Integers) -> None:
        """Discard all slots but `indices`, renumbered from 0."""
        kept = self.take(indices) if len(indices) else None
        self._chunks, self.nbytes = {}, 0
        if kept is not None:
            self.add(0, kept)

    def take(self, indices: Integers) -> pa.StructArray:
        """Return the cells of the slots `indices`, in this order."""
        starts = np.array(sorted(self._chunks), np.int64)
        groups = list(group_by_block(np.searchsorted(starts, indices, side="right") - 1))
        parts = [self._chunks[int(starts[chunk])].take(indices[where] - starts[chunk]) for chunk, where in groups]
        return pa.concat_arrays(parts).take(np.argsort(np.concatenate([where for _, where in groups])))

    def lookup(self, indices: Integers) -> tuple[CellArray | None, np.ndarray]:
        return self, np.zeros(len(indices), bool)

    def row_ids(self, indices: Integers) -> Integers:
        [row_ids] = [array for group, array in self._window.arrays.items() if group.name == ROW_ID.name]
        return cast("Integers", row_ids[indices, 0])


class WindowRows(ResidentBlock):
    """A rank's rows of one window, stored in the order in which partitions arrived.

    `order` contains the slot of each row in the order in which rows are yielded, so that batches do not depend on the
    order of arrival. Partitions arrive on any thread: each reserves slots under the lock, and writes without it.
    """

    def __init__(
        self, owner: WindowBlocks, schedule: Schedule, number: int, groups: Sequence[Group], nbytes: int
    ) -> None:
        """Allocate the arrays of window `number` of an epoch, for which `owner` has reserved `nbytes` bytes."""
        self.epoch = cast("EpochWindows", schedule.blocks)
        self.share = compute_rank_share(schedule)
        self.start, stop = self.epoch.starts[number : number + 2].tolist()
        self.own = range(self.share.count_before(self.start), self.share.count_before(stop))
        rows = len(self.own)
        super().__init__(number, {group: group.empty(rows) for group in groups if not group.stores_cells})
        self.charged_bytes = nbytes
        self._row_numbers = np.empty(rows, np.int64)
        self.order = np.empty(rows, np.uint32)
        self._groups = list(groups)
        self._cells = {group: _WindowMedia(self) for group in groups if group.stores_cells}
        self.media = dict(self._cells)
        self._filled = 0
        self._rows_yielded = 0
        self._lock = threading.Lock()
        self._owner = owner
        self.is_stopped = False

    def wait(self) -> None:
        self._owner.wait_for(self)

    def stop(self) -> None:
        super().stop()
        self._owner.stop(self)

    def locate(self, start: int, rows: int) -> tuple[Integers, Integers]:
        """Return slots and row numbers of the rank's next `rows` rows from a position on, which count as yielded."""
        first = self.share.count_before(self.start + start) - self.own.start
        self._rows_yielded = max(self._rows_yielded, first + rows)
        slots = self.order[first : first + rows].astype(np.int64)
        return slots, self._row_numbers[slots]

    def shrink(self) -> None:
        """Discard the rows that were yielded, if all rows have arrived, and renumber the slots; no task may use it."""
        left = self.order[self._rows_yielded :].astype(np.int64)
        if self._filled < len(self.order) or not self._rows_yielded:
            return
        slots = np.sort(left)
        self.order[self._rows_yielded :] = np.searchsorted(slots, left)
        self._row_numbers = self._row_numbers[slots]
        self.arrays = {group: array[slots] for group, array in self.arrays.items()}
        for cells in self._cells.values():
            cells.shrink_to(slots)

    @property
    def nbytes(self) -> int:
        cells = sum(cells.nbytes for cells in self._cells.values())
        return cells + sum(array.nbytes for array in (*self.arrays.values(), self._row_numbers, self.order))

    def add(self, span: PartitionSpan, first_number: int, rows: EncodedPartition, *, chosen: bool) -> None:
        """Copy this rank's rows of a partition into the window; if `chosen`, `rows` has no others."""
        if not chosen:
            span.check(rows)
        rank_positions = self.share.rank_positions(span.positions())
        own = np.flatnonzero(rank_positions >= 0)
        if not len(own):
            return
        with self._lock:
            first = self._filled
            self._filled += len(own)
        slots = slice(first, first + len(own))
        self._row_numbers[slots] = first_number + own
        self.order[rank_positions[own] - self.own.start] = np.arange(slots.start, slots.stop)
        all_rows = chosen or len(own) == span.rows
        for group, column in zip(self._groups, rows.arrays, strict=True):
            if group in self._cells:
                cells = column if all_rows else column.take(pa.array(own))
                with self._lock:
                    self._cells[group].add(first, cells)
            else:
                self.arrays[group][slots] = column if all_rows else column.take(own, axis=0)


@dataclass
class WindowBlocks:
    """Source whose blocks are windows of partitions that Dask tasks encode.

    The planning thread loads windows, and partitions arrive on threads of Dask; a condition guards their shared state.
    Requests are submitted by the thread that makes room for them: on arrival of a partition, or on loading a window.
    """

    _executor: PartitionExecutor
    _contexts: Sequence[PartitionContext]
    _groups: Sequence[Group]
    _row_bytes: int  # of a row in a window
    _window_bytes: int  # maximum of all windows
    _times: StreamTimes
    _losses: dict[int, LossCounts]  # of each partition that has arrived, by its number
    _missing: dict[WindowRows, int] = field(default_factory=dict)  # partitions to come, by window in memory
    _waiting: deque[tuple[WindowRows, PartitionRequest, PartitionSpan]] = field(default_factory=deque)
    _requests: dict[WindowRows, list[PartitionRequest]] = field(default_factory=dict)
    _working: int = 0
    _next_priority: int = 0
    _error: BaseException | None = None
    _is_closed: bool = False
    _is_submitting: bool = False

    def __post_init__(self) -> None:
        self._free_bytes = self._window_bytes
        self._changed = threading.Condition(threading.RLock())
        self._max_partitions = _PARTITIONS_PER_THREAD * self._executor.concurrency()
        self._polled_at = time.monotonic()

    def load(self, schedule: Schedule, block_position: int, need: Need) -> WindowRows | None:
        """Return a window whose partitions are requested; None if memory is short, unless it is needed now."""
        nbytes = int(schedule.blocks.sizes[block_position]) * self._row_bytes
        with self._changed:
            if need == Need.PREFETCH and len(self._waiting) >= self._max_partitions:
                return None
            if nbytes > self._free_bytes and self._missing:
                if need < Need.NOW:
                    return None
                # The next batch continues from the last rows of an earlier window, whose yielded rows are discarded.
                for earlier in self._missing:
                    earlier.shrink()
                    self._free_bytes += earlier.charged_bytes - earlier.nbytes
                    earlier.charged_bytes = earlier.nbytes
            window = WindowRows(self, schedule, block_position, self._groups, nbytes)
            self._free_bytes -= nbytes
            self._requests[window] = []
            window_partitions = list(window.epoch.window_partitions(block_position))
            rank_share = None if window.share.is_all else window.share
            for number, span in window_partitions:
                chosen = None if rank_share is None else (span, rank_share)
                context, epoch = self._contexts[number], window.epoch.epoch
                request = PartitionRequest(number, context, chosen, epoch, self._next_priority)
                self._next_priority += 1
                self._requests[window].append(request)
                self._waiting.append((window, request, span))
            self._missing[window] = len(window_partitions)
            self._submit_requests()
        return window

    def locate(self, plan: WindowPlan, blocks: Mapping[int, WindowRows]) -> LocatedRows:
        """Return where rows of batches are; they count as yielded."""
        located, taken, stop = [], [], 0
        for position, block in blocks.items():
            if (own := plan.blocks == position).any():
                # Rows of consecutive batches follow each other, in windows and among the rows of the rank.
                start, stop = stop, stop + int(plan.counts[own].sum())
                located.append(block.locate(int(plan.firsts[own][0]), stop - start))
                taken.append(TakenRows(block.arrays, located[-1][0], slice(start, stop)))
        within, rows = map(np.concatenate, zip(*located, strict=True))
        return LocatedRows(rows, taken if len(taken) > 1 else [taken[0]._replace(targets=None)], within)

    def grow(self, blocks: int) -> None:
        """Do nothing: a window needed now may exceed the limit."""

    def release(self, block: WindowRows) -> None:
        """Free the memory of a window, release its results on the workers, and submit further requests."""
        with self._changed:
            self._free_bytes += block.charged_bytes
            del self._missing[block]
            for request in self._requests.pop(block):
                self._executor.release(request)
            self._times.windows += 1
            self._submit_requests()

    def close(self) -> None:
        """Cancel all requests, also of waiting threads."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def wait_for(self, window: WindowRows) -> None:
        """Wait until all rows of a window have arrived; raise the error of a partition, or CancelledError if closed."""
        with self._changed:
            while self._missing[window] and not (self._is_over or window.is_stopped):
                # When Python exits, it joins this thread before `close` could be called.
                if not self._changed.wait(_POLL_SECONDS) and self._executor.is_shut_down():
                    raise CancelledError
            if self._error is not None:
                raise self._error
            if self._missing[window]:
                raise CancelledError

    def stop(self, window: WindowRows) -> None:
        """Raise CancelledError in threads that wait for a window."""
        with self._changed:
            window.is_stopped = True
            self._changed.notify_all()

    @property
    def _is_over(self) -> bool:
        return self._is_closed or self._error is not None

    def _submit_requests(self) -> None:
        """Submit waiting requests, up to `_max_partitions` in progress; the caller holds the condition."""
        if self._is_submitting:  # a partition arrived during `submit`: the loop below continues
            return
        self._is_submitting = True
        try:
            while not self._is_over and self._working < self._max_partitions and self._waiting:
                window, request, span = self._waiting.popleft()
                self._working += 1
                future = self._executor.submit(request)
                future.add_done_callback(functools.partial(self._on_arrival, window, request, span))
        finally:
            self._is_submitting = False

    def _charge(self, window: WindowRows) -> None:
        """Reserve more bytes if a window is larger than estimated, as media may be; ConfigError if it cannot fit."""
        nbytes = window.nbytes
        if nbytes > self._window_bytes:
            raise ConfigError(
                f"a window takes {nbytes:,} bytes, more than window={self._window_bytes:,}: its images or audio have "
                'larger files than those in the training rows; use a larger window, or decode_on="workers"'
            )
        excess = max(0, nbytes - window.charged_bytes)
        window.charged_bytes += excess
        self._free_bytes -= excess

    def _on_arrival(
        self, window: WindowRows, request: PartitionRequest, span: PartitionSpan, future: Future[Any]
    ) -> None:
        """Add the rows of an encoded partition to its window, or record its error, and submit further requests."""
        if future.cancelled():
            return
        try:
            first_number = int(window.epoch.firsts[request.number])
            rows = future.result()
            window.add(span, first_number, rows, chosen=request.then is not None)
            self._losses[request.number] = rows.losses
            # The number of workers changes, and requesting it from the scheduler takes time.
            if (now := time.monotonic()) - self._polled_at > _POLL_SECONDS:
                self._polled_at, self._max_partitions = now, _PARTITIONS_PER_THREAD * self._executor.concurrency()
            with self._changed:
                self._working -= 1
                if window in self._missing:
                    self._charge(window)
                    self._missing[window] -= 1
                self._times.partitions += 1
                self._times.peak_bytes = max(self._times.peak_bytes, sum(held.nbytes for held in self._missing))
                self._changed.notify_all()
                self._submit_requests()
        except BaseException as error:
            error.add_note(f"while partition {request.number} was read and encoded")
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()
