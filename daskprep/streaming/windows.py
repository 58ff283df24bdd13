"""Windows of encoded rows in memory, filled by partitions as they come, within a number of bytes."""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from daskprep.assignment import Told
from daskprep.errors import ConfigError
from daskprep.loader.blocks import Group
from daskprep.partitions import Asked, Feed
from daskprep.streaming.encoding import RankShare, Rows, Stretch
from daskprep.streaming.order import EpochWindows

__all__ = ["Supply", "Times", "Upcoming", "WindowRows"]

# What each thread works on, and what it finds when it is done with that.
_PARTITIONS_PER_THREAD = 2
_LOOK_SECONDS = 1.0


@dataclass
class Times:
    """Seconds that the consumer waited, and what was done; seconds of decoding are summed over threads."""

    waiting: float = 0.0
    decoding: float = 0.0
    decoded: int = 0
    filled: int = 0
    partitions: int = 0
    windows: int = 0
    peak_bytes: int = 0


class Upcoming(NamedTuple):
    """A window that is to be made: of which epoch, which one, and what of it the rank is given."""

    epoch: EpochWindows
    number: int
    share: RankShare

    @property
    def rows(self) -> range:
        """Which of the rank's own rows it has."""
        start, stop = self.epoch.starts[self.number : self.number + 2].tolist()
        return range(self.share.before(start), self.share.before(stop))


class _Cells:
    """The cells of media in a window, as partitions brought them."""

    def __init__(self) -> None:
        self._pieces: dict[int, pa.StructArray] = {}
        self.nbytes = 0

    def add(self, first: int, cells: pa.StructArray) -> None:
        """Keep the cells of slots from `first` on, one piece at a time."""
        self._pieces[first] = cells
        self.nbytes += cells.nbytes

    def take(self, slots: np.ndarray) -> pa.StructArray:
        """Return the cells of some slots, in their order."""
        starts = np.array(sorted(self._pieces), np.int64)
        pieces = np.searchsorted(starts, slots, side="right") - 1
        order = np.argsort(pieces, kind="stable")
        found, borders = np.unique(pieces[order], return_index=True)
        taken = [
            self._pieces[int(starts[piece])].take(pa.array(slots[at] - starts[piece]))
            for piece, at in zip(found.tolist(), np.split(order, borders[1:]), strict=True)
        ]
        return pa.concat_arrays(taken).take(pa.array(np.argsort(order)))


class WindowRows:
    """The rows of one window that a rank is given, in the order in which partitions came.

    `order` tells where they lie in the order in which they are given, so that the result depends on no other.
    """

    def __init__(self, upcoming: Upcoming, groups: Sequence[Group], nbytes: int) -> None:
        self.upcoming = upcoming
        self.charged_bytes = nbytes
        self.rows = len(upcoming.rows)
        self.numbers = np.empty(self.rows, np.int64)
        self._order = np.empty(self.rows, np.uint32)
        self._groups = list(groups)
        self._arrays = {group: group.empty(self.rows) for group in groups if not group.is_cells}
        self._cells = {group: _Cells() for group in groups if group.is_cells}
        self._filled = 0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in memory."""
        cells = sum(cells.nbytes for cells in self._cells.values())
        return cells + sum(array.nbytes for array in (*self._arrays.values(), self.numbers, self._order))

    def add(self, stretch: Stretch, first_number: int, rows: Rows, *, chosen: bool) -> None:
        """Copy in the rows of a partition: all of them, or, if they were `chosen`, the rank's own alone."""
        if not chosen:
            stretch.check(rows)
        places = self.upcoming.share.places(stretch.positions())
        own = np.flatnonzero(places >= 0)
        if not len(own):
            return
        with self._lock:
            first = self._filled
            self._filled += len(own)
        slots = slice(first, first + len(own))
        self.numbers[slots] = first_number + own
        self._order[places[own] - self.upcoming.rows.start] = np.arange(slots.start, slots.stop)
        whole = chosen or len(own) == stretch.rows
        for group, column in zip(self._groups, rows, strict=True):
            if group in self._cells:
                cells = column if whole else column.take(pa.array(own))
                with self._lock:
                    self._cells[group].add(first, cells)
            else:
                self._arrays[group][slots] = column if whole else column.take(own, axis=0)

    def copy(self, rows: slice, arrays: dict[Group, np.ndarray], numbers: np.ndarray, at: int) -> None:
        """Copy rows, in the order in which they are given, to a place in other arrays."""
        slots = self._order[rows]
        target = slice(at, at + len(slots))
        for group, array in self._arrays.items():
            # "clip" is the only mode that writes to `out` without a copy; the rows are known to be there.
            np.take(array, slots, axis=0, out=arrays[group][target], mode="clip")
        np.take(self.numbers, slots, out=numbers[target], mode="clip")

    def cells(self, rows: slice) -> dict[Group, pa.StructArray]:
        """Return the cells of rows, in the order in which they are given."""
        slots = self._order[rows].astype(np.int64)
        return {group: cells.take(slots) for group, cells in self._cells.items()}


class Supply:
    """Has windows made, in order, as long as there is room for them.

    Partitions are asked for on whatever thread makes room: that which brought one, or that which let go of a window.
    """

    def __init__(
        self,
        feed: Feed,
        upcoming: Iterator[Upcoming],
        told: Sequence[tuple[Told, int]],
        groups: Sequence[Group],
        *,
        row_bytes: int,
        window_bytes: int,
        times: Times,
    ) -> None:
        self._feed = feed
        self._upcoming = upcoming
        self._next: Upcoming | None = next(upcoming, None)
        self._told = told
        self._groups = list(groups)
        self._row_bytes = row_bytes
        self._room = self._window_bytes = window_bytes
        self._times = times
        self._windows: deque[WindowRows] = deque()  # given, made, or being made
        self._missing: dict[WindowRows, int] = {}
        self._waiting: deque[tuple[WindowRows, Asked, Stretch]] = deque()
        self._asked: dict[WindowRows, list[Asked]] = {}
        self._working = 0
        self._places = 0
        self._given = 0  # of the windows that are held
        self._error: BaseException | None = None
        self._is_closed = False
        self._changed = threading.Condition(threading.RLock())
        self._is_asking = False
        self._most = _PARTITIONS_PER_THREAD * feed.width()
        self._looked_at = time.monotonic()
        with self._changed:
            self._ask()

    def take(self) -> WindowRows:
        """Wait for the next window; the caller gives it back with `drop`."""
        with self._changed:
            self._ask()
            while not self._is_over and self._missing.get(self._windows[self._given], 0):
                # At its end, Python waits for threads before anybody can close this.
                if not self._changed.wait(_LOOK_SECONDS) and self._feed.has_ended():
                    raise CancelledError
            if self._error is not None:
                raise self._error
            if self._is_closed:
                raise CancelledError
            window = self._windows[self._given]
            self._given += 1
            return window

    @property
    def _is_over(self) -> bool:
        return self._is_closed or self._error is not None

    def drop(self, window: WindowRows) -> None:
        """Let go of a window, and ask for more."""
        with self._changed:
            self._windows.remove(window)
            self._given -= 1
            self._room += window.charged_bytes
            del self._missing[window]
            for asked in self._asked.pop(window):
                self._feed.forget(asked)
            self._times.windows += 1
            self._ask()

    def close(self) -> None:
        """Stop asking; whoever waits for a window gets a CancelledError."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _ask(self) -> None:
        """Put partitions to work, as many as the workers are kept busy by and as there is room for."""
        if self._is_asking:  # a partition was there at once: whoever asked for it goes on
            return
        self._is_asking = True
        try:
            while not self._is_over and self._working < self._most and (self._waiting or self._open()):
                window, asked, stretch = self._waiting.popleft()
                self._working += 1
                future = self._feed.begin(asked)
                future.add_done_callback(functools.partial(self._arrived, window, asked, stretch))
        finally:
            self._is_asking = False

    def _open(self) -> bool:
        """Make room for the next window, if there is one and room."""
        upcoming = self._next
        if upcoming is None:
            return False
        nbytes = int(upcoming.epoch.sizes[upcoming.number]) * self._row_bytes
        if nbytes > self._room and self._windows:
            return False
        self._next = next(self._upcoming, None)
        window = WindowRows(upcoming, self._groups, nbytes)
        self._room -= nbytes
        self._windows.append(window)
        self._asked[window] = []
        for number, stretch in upcoming.epoch.members(upcoming.number):
            share = upcoming.share
            then = (stretch, share) if share.world_size > 1 else None
            asked = Asked(number, self._told[number], then, upcoming.epoch.epoch, self._places)
            self._places += 1
            self._asked[window].append(asked)
            self._waiting.append((window, asked, stretch))
        self._missing[window] = len(self._asked[window])
        return True

    def _look_at_width(self) -> None:
        """Ask now and then how many workers there are: to ask a scheduler takes a while."""
        now = time.monotonic()
        if now - self._looked_at > _LOOK_SECONDS:
            self._looked_at = now
            self._most = _PARTITIONS_PER_THREAD * self._feed.width()

    def _charge(self, window: WindowRows) -> None:
        """Take more room if cells of media are larger than those that were learned from."""
        nbytes = window.nbytes
        if nbytes > self._window_bytes:
            raise ConfigError(
                f"a window takes {nbytes:,} bytes, more than window={self._window_bytes:,}: its images or sounds are "
                'stored in more bytes than those that were learned from; give a larger window, or decode_on="workers"'
            )
        excess = max(0, nbytes - window.charged_bytes)
        window.charged_bytes += excess
        self._room -= excess

    def _arrived(self, window: WindowRows, asked: Asked, stretch: Stretch, future: Future[Any]) -> None:
        if future.cancelled():
            return
        try:
            first_number = int(window.upcoming.epoch.first_numbers[asked.number])
            window.add(stretch, first_number, future.result(), chosen=asked.then is not None)
            self._look_at_width()
            with self._changed:
                self._charge(window)
                self._working -= 1
                self._missing[window] -= 1
                self._times.partitions += 1
                self._times.peak_bytes = max(self._times.peak_bytes, sum(one.nbytes for one in self._windows))
                self._changed.notify_all()
                self._ask()
        except BaseException as error:
            error.add_note(f"while partition {asked.number} was read and encoded")
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()
