"""Blocks read ahead by threads, and windows of batches gathered from them, in order."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from daskprep.inline import InlineExecutor
from daskprep.loader.audit import Tally, tallies
from daskprep.loader.blocks import BlockFiles, Buffers, Group, Pool, Windows
from daskprep.loader.order import Schedule, Share

__all__ = ["Pipeline", "Settings", "Times", "Window"]

_LOCAL_THREADS = 4
_REMOTE_THREADS = 32
_WINDOW_BYTES = 16_000_000
_MOST_BATCHES = 64
_WINDOWS_AHEAD = 4
_TURN_SECONDS = 0.0005


class _Turns:
    """How long a thread may keep the interpreter while another waits for it: shorter while blocks are decoded.

    Between two short calls of NumPy a thread takes the interpreter again before one that waits has woken up. Only when
    the interval is over does that one get its turn: with the 5 ms of Python, a first batch takes twice as long.
    """

    def __init__(self) -> None:
        self._running = 0
        self._before = 0.0
        self.unlock()

    def unlock(self) -> None:
        """Make a new lock: in a forked process nobody would let go of one that another thread held."""
        self._lock = threading.Lock()

    def shorten(self) -> None:
        with self._lock:
            self._running += 1
            if self._running == 1:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, _TURN_SECONDS))

    def restore(self) -> None:
        with self._lock:
            self._running -= 1
            if not self._running:
                sys.setswitchinterval(self._before)


_turns = _Turns()
os.register_at_fork(after_in_child=_turns.unlock)


@dataclass(frozen=True)
class Settings:
    """How much is read ahead, and by how many threads; no threads read when it is asked for."""

    ahead_blocks: int
    threads: int

    @classmethod
    def threads_for(cls, *, local: bool) -> int:
        """Return how many threads keep the cores, or the connections to a store, busy."""
        return min(_LOCAL_THREADS, os.cpu_count() or 1) if local else _REMOTE_THREADS


@dataclass
class Times:
    """Seconds spent, summed over threads, and what the consumer waited for."""

    reading: float = 0.0
    gathering: float = 0.0
    waiting: float = 0.0
    blocks: int = 0


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
    loaded: list[Future[Any]] = field(default_factory=list)


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
        make_arrays: Callable[[Group, int], np.ndarray] | None = None,
        buffers: Buffers | None = None,
    ) -> None:
        self.files = files
        self.schedule = schedule
        self.settings = settings
        self.times = Times()
        self._left = batches
        self._ahead = batches  # what nothing was read for yet
        layout = files.split.layout
        self._block_rows = layout.block_rows
        own = -(-schedule.batch_size // schedule.world_size)
        row_bytes = max(1, sum(group.row_bytes for group in files.groups))
        self._most = max(1, min(_MOST_BATCHES, _WINDOW_BYTES // (own * row_bytes)))
        # Behind the last full batch there may be a share of what is left.
        rows = self._most * own + schedule.streams + own
        make = make_arrays or (lambda group, count: group.empty(count))
        self._buffers = buffers or Buffers()
        self._shape = (tuple(files.groups), rows)
        self._windows = self._buffers.take(
            Windows, self._shape, lambda: Windows(lambda: {group: make(group, rows) for group in files.groups})
        )
        self._size = 1
        self._resident: dict[int, _Resident] = {}
        self._queue: deque[tuple[_Planned, Future[Window]]] = deque()
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
        if threads:
            _turns.shorten()
        try:
            while True:
                self._plan()
                if not self._queue:
                    return
                planned, future = self._queue.popleft()
                began = time.perf_counter()
                window = future.result()
                self.times.waiting += time.perf_counter() - began
                self._release(planned.batches[-1] + 1)
                if threads:
                    self._plan()
                yield window
                del window, future
                if os.getpid() != self._process:
                    raise RuntimeError(
                        "these batches were begun in another process, whose threads a fork does not take along: "
                        "iterate over the loader anew"
                    )
        finally:
            if threads:
                _turns.restore()
            self.close()

    def close(self) -> None:
        """Stop the threads; what is being read is waited for."""
        if self._executor is not None and os.getpid() == self._process:
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._pool.clear()
            self._buffers.leave((self._shape, self._pool.slots), self._pool)
            self._windows.trim(_WINDOWS_AHEAD + 1)
            self._buffers.leave(self._shape, self._windows)
        self._executor = None
        self._queue.clear()
        self._resident.clear()

    def _make_pool(self, slots: int) -> Pool:
        make = functools.partial(Pool, self.files.groups, self._block_rows, slots)
        return self._buffers.take(Pool, (self._shape, slots), make)

    # -- what comes next

    def _plan(self) -> None:
        """Put the next windows to work, and read ahead what they will need."""
        ahead = _WINDOWS_AHEAD if self.settings.threads else 1
        while len(self._queue) < ahead and self._left:
            planned = self._next()
            if planned is None:
                return
            self._left = self._left[len(planned.batches) :]
            self._size = min(2 * self._size, self._most)
            for place in planned.places:
                self._load(place)
            self._queue.append((planned, self._executor.submit(self._gather, planned, dict(self._resident))))
        self._read_ahead()

    def _next(self) -> _Planned | None:
        """Return as many of the next batches as there is room for; None if some must be released first."""
        size = min(self._size, len(self._left))
        while True:
            batches = self._left[:size]
            planned = _Planned(batches, self.schedule.places(batches))
            if self._make_room(planned.places, alone=size == 1):
                return planned
            if self._queue:
                return None
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
            self._drop(place)
            self._ahead = self._left
            if missing <= len(self._pool.free) - unused:
                return True
        return False

    def _grow(self, slots: int) -> None:
        """Make a larger pool: one batch may touch more blocks than were thought of."""
        assert not self._queue
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
        resident = _Resident(slot, block, np.empty(0, np.int64))
        self._resident[place] = resident
        resident.loaded = [
            self._executor.submit(self._timed_read, job, block)
            for job in self.files.jobs(block, self._pool.targets(slot))
        ]
        resident.loaded.append(self._executor.submit(self._set_order, resident))

    def _timed_read(self, job: Callable[[], None], block: int) -> None:
        began = time.perf_counter()
        try:
            job()
        except Exception as error:
            rows = self.files.split.layout.block_range(self.files.split.name, block)
            error.add_note(f'while rows {rows.start:,} to {rows.stop - 1:,} of "{self.files.split.name}" were read')
            raise
        self.times.reading += time.perf_counter() - began
        self.times.blocks += 1

    def _set_order(self, resident: _Resident) -> None:
        resident.order = self.schedule.blocks.rows_within(resident.block)

    def _gather(self, planned: _Planned, resident: dict[int, _Resident]) -> Window:
        for place in planned.places:
            # Asked for before this task, so that threads have begun them all: waiting cannot lock up.
            for future in resident[place].loaded:
                future.result()
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
                self._drop(place)

    def _busy(self) -> set[int]:
        """Return the places of the blocks that windows are gathered from."""
        return {place for planned, _ in self._queue for place in planned.places}

    def _drop(self, place: int) -> None:
        resident = self._resident.pop(place)
        for future in resident.loaded:
            if not future.cancel():
                future.exception()  # it may still write to the slot
        self._pool.free.append(resident.slot)
