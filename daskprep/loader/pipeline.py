"""Blocks read ahead by threads, and windows of batches gathered from them, in order."""

from __future__ import annotations

import functools
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from daskprep.dataset.mapped import MappedChunks
from daskprep.inline import InlineExecutor
from daskprep.loader.audit import Tally, tallies
from daskprep.loader.blocks import BlockFiles, Buffers, Group, Pool, SmallTables, Windows
from daskprep.loader.media import Caching, Media, MediaBlock, Medium
from daskprep.loader.order import Schedule, Share
from daskprep.loader.times import Times
from daskprep.loader.turns import short_turns

__all__ = ["Pipeline", "Settings", "Window"]

_LOCAL_THREADS = 4
_REMOTE_THREADS = 32
_WINDOW_BYTES = 32_000_000
_MOST_BATCHES = 64
_WINDOWS_AHEAD = 2
# Where rows are decoded meanwhile, windows are small, as to touch new memory costs more than a window does; and more
# of them, if they are, keep threads busy while what was decoded is written to the cache.
_DECODED_BYTES = 8_000_000
_DECODED_AHEAD = 4


@dataclass(frozen=True)
class Settings:
    """How much is read ahead, and by how many threads; no threads read when it is asked for.

    `decodes` tells whether some rows are to be decoded meanwhile.
    """

    ahead_blocks: int
    threads: int
    decodes: bool = False

    @classmethod
    def threads_for(cls, *, local: bool) -> int:
        """Return how many threads keep the cores, or the connections to a store, busy."""
        return min(_LOCAL_THREADS, os.cpu_count() or 1) if local else _REMOTE_THREADS


@dataclass
class Window:
    """Consecutive batches of one rank: arrays by group, the numbers of their rows, and the tally of each batch."""

    share: Share
    arrays: dict[Group, np.ndarray]
    rows: np.ndarray
    tallies: list[Tally]


@dataclass(frozen=True)
class _Planned:
    """Consecutive batches, and the places of the blocks that they come from."""

    batches: range
    places: list[int]


@dataclass
class _Resident:
    """A block in a slot, or on its way there."""

    slot: int
    block: int
    order: np.ndarray
    media: dict[Group, MediaBlock]
    loaded: list[Future[Any]] = field(default_factory=list)
    is_there: bool = False

    def wait(self) -> None:
        """Wait until it is loaded; raise what went wrong."""
        # Every window asks, and a future takes locks to answer.
        if not self.is_there:
            for future in self.loaded:
                future.result()
            self.is_there = True


class _Coming(NamedTuple):
    """A window on its way: what it is gathered by, and what its media are decoded by."""

    planned: _Planned
    gathered: Future[Window]
    decoded: list[Future[None]]

    def result(self) -> Window:
        """Wait until all of it is there."""
        window = self.gathered.result()
        for future in self.decoded:
            future.result()
        return window


class Pipeline:
    """Gives the windows of one rank's batches, from `first` on in steps of `step`.

    Holds the blocks that its streams are in, those read ahead, and a few windows. Threads live from the first window
    to `close`, or to the end of the iteration, however it ends.
    """

    def __init__(
        self,
        files: BlockFiles,
        schedule: Schedule,
        settings: Settings,
        *,
        batches: range,
        caching: Caching | None = None,
        make_arrays: Callable[[Group, int], np.ndarray] | None = None,
        buffers: Buffers | None = None,
    ) -> None:
        self.files = files
        self.schedule = schedule
        self.settings = settings
        self.times = Times()
        self._buffers = buffers or Buffers()
        self._mapped = self._buffers.take(MappedChunks, (), MappedChunks)
        self._tables = self._buffers.take(SmallTables, files.scalars, SmallTables)
        self._media = Media(files.split, files.groups, caching or Caching(), self.times, self._mapped)
        self._left = batches
        self._ahead = batches  # what nothing was read for yet
        # Workers, and ranks where there are fewer streams, decode some rows of every block: one sees to the others.
        ranks, rank = (schedule.world_size, schedule.rank) if schedule.streams < schedule.world_size else (1, 0)
        self._sharers = ranks * batches.step
        self._sharer = rank * batches.step + batches.start % batches.step
        self._is_whole = batches.stop >= len(schedule)
        layout = files.split.layout
        self._block_rows = layout.block_rows
        own = self._own = -(-schedule.batch_size // schedule.world_size)
        row_bytes = max(1, sum(group.row_bytes for group in files.groups))
        window_bytes = _DECODED_BYTES if settings.decodes else _WINDOW_BYTES
        self._most = max(1, min(_MOST_BATCHES, window_bytes // (own * row_bytes)))
        more = min(_DECODED_AHEAD, _WINDOW_BYTES // (self._most * own * row_bytes)) if settings.decodes else 0
        self._windows_ahead = max(_WINDOWS_AHEAD, more)
        # Behind the last full batch there may be a share of what is left.
        rows = self._most * own + schedule.streams + own
        make = make_arrays or (lambda group, count: group.empty(count))
        self._shape = (tuple(files.groups), rows)
        self._windows = self._buffers.take(
            Windows, self._shape, lambda: Windows(lambda: {group: make(group, rows) for group in files.groups})
        )
        self._size = 1
        self._resident: dict[int, _Resident] = {}
        self._leaving: list[tuple[Future[None], int]] = []  # blocks that are finished for the cache, and their slots
        self._queue: deque[_Coming] = deque()
        lanes = max(1, schedule.streams // schedule.world_size)
        # A batch may lie across a border in every lane. Room for that takes no memory until it is used.
        self._budget = lanes + settings.ahead_blocks
        slots = min(len(schedule.blocks.sizes), max(self._budget, 2 * lanes))
        self._pool = self._make_pool(max(1, slots))
        self._executor: Any = None
        self._process = os.getpid()

    def __iter__(self) -> Iterator[Window]:
        threads = self.settings.threads
        pool = ThreadPoolExecutor(threads, thread_name_prefix="daskprep-load") if threads else None
        self._executor = pool or InlineExecutor()
        with short_turns() if threads else nullcontext(), closing(self):
            while True:
                self._plan()
                if not self._queue:
                    self._finish_all()
                    return
                coming = self._queue.popleft()
                began = time.perf_counter()
                window = coming.result()
                self.times.waiting += time.perf_counter() - began
                self._release(coming.planned.batches[-1] + 1)
                if threads:
                    self._plan()
                yield window
                del window, coming
                if os.getpid() != self._process:
                    raise RuntimeError(
                        "these batches were begun in another process, whose threads a fork does not take along: "
                        "iterate over the loader anew"
                    )

    def close(self) -> None:
        """Stop the threads; what is being read is waited for."""
        if self._executor is not None and os.getpid() == self._process:
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._pool.clear()
            self._buffers.leave((self._shape, self._pool.slots), self._pool)
            self._windows.trim(self._windows_ahead + 1)
            self._buffers.leave(self._shape, self._windows)
            self._buffers.leave((), self._mapped)
            self._buffers.leave(self.files.scalars, self._tables)
        self._executor = None
        self._queue.clear()
        for resident in self._resident.values():
            for one in resident.media.values():
                one.close()
        self._resident.clear()
        self._leaving.clear()

    def _make_pool(self, slots: int) -> Pool:
        make = functools.partial(Pool, self.files.groups, self._block_rows, slots)
        return self._buffers.take(Pool, (self._shape, slots), make)

    # -- what comes next

    def _plan(self) -> None:
        """Put the next windows to work, and read ahead what they will need."""
        ahead = self._windows_ahead if self.settings.threads else 1
        while len(self._queue) < ahead and self._left:
            planned = self._next()
            if planned is None:
                return
            self._left = self._left[len(planned.batches) :]
            self._size = min(2 * self._size, self._most)
            for place in planned.places:
                self._load(place)
            gathered = self._executor.submit(self._gather, planned, dict(self._resident))
            self._queue.append(_Coming(planned, gathered, self._decode(planned, gathered)))
        self._read_ahead()

    def _decode(self, planned: _Planned, gathered: Future[Window]) -> list[Future[None]]:
        """Put the media of a window to work: asked for behind its gathering, so that waiting for it cannot lock up."""
        tasks = []
        for medium in self._media.members:
            found = [self._resident[place] for place in planned.places]
            blocks = {resident.block: resident.media[medium.group] for resident in found}
            count = medium.tasks(len(planned.batches) * self._own, self.settings.threads, is_last=not self._left)
            tasks += [self._executor.submit(self._fill, medium, blocks, gathered, part, count) for part in range(count)]
        return tasks

    def _fill(
        self, medium: Medium, blocks: dict[int, MediaBlock], gathered: Future[Window], part: int, count: int
    ) -> None:
        """Fill one of several parts of a window."""
        window = gathered.result()
        rows = slice(*(len(window.rows) * edge // count for edge in (part, part + 1)))
        if len(window.rows[rows]):
            medium.fill(window.rows[rows], window.arrays[medium.group][rows], blocks)

    def _next(self) -> _Planned | None:
        """Return as many of the next batches as there is room for; None if some must be released first."""
        self._free_left()
        size = min(self._size, len(self._left))
        while True:
            batches = self._left[:size]
            planned = _Planned(batches, self.schedule.places(batches))
            if self._make_room(planned.places, alone=size == 1):
                return planned
            if self._queue:
                return None
            if self._leaving:
                self._free_left(wait=True)
                continue
            if size == 1:
                self._grow(len(planned.places))
            size = max(1, size // 2)

    def _make_room(self, places: list[int], *, alone: bool) -> bool:
        """Free slots for some blocks, if need be by dropping blocks that are not needed soon.

        Those of several batches must fit in what memory was given; a batch alone may need more.
        """
        missing = sum(place not in self._resident for place in places)
        unused = 0 if alone else max(0, len(self._pool.free) + len(self._resident) - self._budget)
        if missing <= len(self._pool.free) - unused:
            return True
        busy = self._busy() | set(places)
        for place in [place for place in self._resident if place not in busy]:
            self._finish(self._drop(place))
            self._free_left()
            self._ahead = self._left
            if missing <= len(self._pool.free) - unused:
                return True
        return False

    def _grow(self, slots: int) -> None:
        """Make a larger pool: one batch may touch more blocks than were thought of."""
        assert not self._queue
        assert not self._leaving
        self._resident.clear()
        self._pool = self._make_pool(slots)

    def _read_ahead(self) -> None:
        """Read the blocks that the streams come to next into slots that are free."""
        if not self.settings.threads:
            return
        self._ahead = self._ahead[max(0, len(self._ahead) - len(self._left)) :]
        while self._ahead and self._pool.free:
            for place in self.schedule.places(self._ahead[: self._most]):
                if not self._pool.free or len(self._resident) >= self._budget:
                    return
                self._load(place)
            self._ahead = self._ahead[self._most :]

    def _load(self, place: int) -> None:
        if place in self._resident:
            return
        block = int(self.schedule.blocks.order[place])
        slot = self._pool.free.pop()
        resident = _Resident(slot, block, np.empty(0, np.int64), self._media.blocks(block, self._pool, slot))
        self._resident[place] = resident
        jobs = self.files.jobs(block, self._pool.targets(slot), self._tables)
        jobs += [one.load for one in resident.media.values()]
        resident.loaded = [self._executor.submit(self._timed_read, job, block) for job in jobs]
        resident.loaded.append(self._executor.submit(self._set_order, resident))

    def _timed_read(self, job: Callable[[], None], block: int) -> None:
        began = time.perf_counter()
        try:
            job()
        except Exception as error:
            rows = self.files.split.layout.block_range(self.files.split.name, block)
            if not hasattr(error, "__notes__"):  # it may be that of a table, which others wait for as well
                error.add_note(f'while rows {rows.start:,} to {rows.stop - 1:,} of "{self.files.split.name}" were read')
            raise
        self.times.reading += time.perf_counter() - began
        self.times.blocks += 1

    def _set_order(self, resident: _Resident) -> None:
        resident.order = self.schedule.blocks.rows_within(resident.block)

    def _gather(self, planned: _Planned, resident: dict[int, _Resident]) -> Window:
        for place in planned.places:
            # Asked for before this task, so that threads have begun them all: waiting cannot lock up.
            resident[place].wait()
        began = time.perf_counter()
        share = self.schedule.window(planned.batches)
        count = sum(share.sizes)
        rows, positions = np.empty(count, np.int64), np.empty(count, np.int64)
        for piece in share.pieces:
            found = resident[piece.place]
            within = found.order[piece.within]
            positions[piece.target] = within + found.slot * self._block_rows
            rows[piece.target] = within + found.block * self._block_rows
        arrays = self._windows.take()
        self._pool.gather(positions, arrays)
        self.times.gathering += time.perf_counter() - began
        return Window(share, arrays, rows, tallies(rows, share.sizes))

    def _release(self, batch: int) -> None:
        """Free the slots of blocks that no stream needs any more."""
        busy = self._busy()
        idle = np.array([place for place in self._resident if place not in busy], np.int64)
        if len(idle):
            for place in idle[~self.schedule.needed(idle, batch)].tolist():
                self._finish(self._drop(place))

    def _busy(self) -> set[int]:
        """Return the places of the blocks that windows are gathered from."""
        return {place for coming in self._queue for place in coming.planned.places}

    def _drop(self, place: int) -> _Resident:
        resident = self._resident.pop(place)
        for future in resident.loaded:
            if not future.cancel():
                future.exception()  # it may still write to the slot
        return resident

    def _finish(self, resident: _Resident) -> None:
        """Free the slot of a block, once its media are whole and in the cache if some rows were for other streams."""
        is_ours = resident.block % self._sharers == self._sharer
        media = [one for one in resident.media.values() if is_ours and one.is_unfinished]
        if media:
            self._leaving.append((self._executor.submit(_finish_each, media), resident.slot))
        else:
            self._pool.free.append(resident.slot)

    def _finish_all(self) -> None:
        """Let the media of an epoch that is over be cached, those of rows that were left out at its end as well."""
        if self._is_whole:
            for place in list(self._resident):
                self._finish(self._drop(place))
        self._free_left(wait=True)

    def _free_left(self, *, wait: bool = False) -> None:
        """Free the slots of blocks that are finished."""
        left, self._leaving = self._leaving, []
        for future, slot in left:
            if wait or future.done():
                future.result()
                self._pool.free.append(slot)
            else:
                self._leaving.append((future, slot))


def _finish_each(media: list[MediaBlock]) -> None:
    for one in media:
        one.finish()
