"""Windows of batches gathered from windows of rows, and their media decoded, ahead of who trains."""

from __future__ import annotations

import bisect
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from daskprep.loader.audit import tallies
from daskprep.loader.blocks import Group, Windows
from daskprep.loader.order import Schedule, Share
from daskprep.loader.pipeline import Window
from daskprep.media.decoding import AudioDecoder, MediaDecoder
from daskprep.media.failures import check_failures
from daskprep.storage.arrays import ROW_ID
from daskprep.streaming.order import share_of
from daskprep.streaming.windows import Supply, Times, WindowRows

__all__ = ["Reader", "StreamWindow"]

_WINDOW_BYTES = 8_000_000
_MOST_BATCHES = 64
_AHEAD = 2
# Spectra are computed for several sounds at once.
_LEAST_SOUNDS = 16


@dataclass
class StreamWindow(Window):
    """Consecutive batches of one epoch."""

    schedule: Schedule


class _Coming(NamedTuple):
    """Batches on their way: gathered, and then decoded in several parts."""

    gathered: Future[tuple[StreamWindow, Mapping[Group, pa.StructArray]]]
    decoded: list[Future[None]]


class Reader:
    """Gives the batches of one epoch after the other.

    One thread gathers them in order, others decode their media. They live as long as the iteration, however it ends.
    """

    def __init__(
        self,
        supply: Supply,
        schedules: Iterator[Schedule],
        groups: Sequence[Group],
        decoders: Mapping[str, MediaDecoder],
        *,
        own: int,
        threads: int,
        make_array: Callable[[Group, int], np.ndarray] | None,
        times: Times,
    ) -> None:
        self._supply = supply
        self._schedules = schedules
        self._groups = list(groups)
        self._decoders = decoders
        self._times = times
        # Cells may take more than what they are decoded to.
        row_bytes = max(1, sum(max(one.row_bytes, sum(out.stored_bytes for out in one.outputs)) for one in groups))
        self._most = max(1, min(_MOST_BATCHES, _WINDOW_BYTES // (own * row_bytes)))
        # Behind the last full batch there may be a share of what is left.
        rows = self._most * own + own
        make = make_array or (lambda group, count: group.empty(count))
        self._arrays = Windows(lambda: {group: make(group, rows) for group in groups})
        self._row_ids = next((group for group in groups if group.name == ROW_ID.name), None)
        self._threads = threads
        self._gatherer = ThreadPoolExecutor(1, thread_name_prefix="daskprep-gather")
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="daskprep-decode") if decoders else None
        self._lock = threading.Lock()
        self._current: WindowRows | None = None
        self._taken = 0

    def __iter__(self) -> Iterator[StreamWindow]:
        # At the end of the interpreter, modules may have gone before an iterator that was left.
        getpid = os.getpid
        process = getpid()
        queue: deque[_Coming] = deque()
        planned = self._planned()
        try:
            self._plan(queue, planned)
            while queue:
                coming = queue.popleft()
                began = time.perf_counter()
                window, _ = coming.gathered.result()
                for future in coming.decoded:
                    future.result()
                self._times.waiting += time.perf_counter() - began
                del coming
                self._plan(queue, planned)
                yield window
                del window
                if os.getpid() != process:
                    raise RuntimeError(
                        "these batches were begun in another process, whose threads a fork does not take along: "
                        "iterate over the stream anew"
                    )
        finally:
            if getpid() == process:
                self.close()

    def close(self) -> None:
        """Stop the threads."""
        self._supply.close()
        for pool in (self._gatherer, self._pool):
            if pool is not None:
                pool.shutdown(cancel_futures=True)

    def _plan(self, queue: deque[_Coming], planned: Iterator[tuple[Schedule, range]]) -> None:
        """Put the next batches to work."""
        while len(queue) < _AHEAD and (following := next(planned, None)) is not None:
            queue.append(self._begin(*following))

    def _planned(self) -> Iterator[tuple[Schedule, range]]:
        """Give the batches that are gathered at a time: one at first, then twice as many each time."""
        size = 1
        for schedule in self._schedules:
            batches, own = range(len(schedule)), schedule.batch_size // schedule.world_size
            share = share_of(schedule)
            ends = [share.before(end) for end in schedule.blocks.starts[1:].tolist()]
            while batches:
                # Not beyond the window that they begin in: those of the next one may be far.
                at = batches.start * own
                within = (ends[bisect.bisect_right(ends, at)] - at) // own
                count = max(1, min(size, within))
                yield schedule, batches[:count]
                batches = batches[count:]
                size = min(2 * size, self._most)

    def _begin(self, schedule: Schedule, batches: range) -> _Coming:
        gathered = self._gatherer.submit(self._gather, schedule, batches)
        if self._pool is None:
            return _Coming(gathered, [])
        rows = sum(schedule.sizes(batches))
        decoded = []
        for group in self._groups:
            if group.is_cells:
                least = _LEAST_SOUNDS if isinstance(self._decoders[group.name], AudioDecoder) else 1
                parts = max(1, min(self._threads, rows // least))
                decoded += [
                    self._pool.submit(self._decode, gathered, group, range(rows * i // parts, rows * (i + 1) // parts))
                    for i in range(parts)
                ]
        return _Coming(gathered, decoded)

    def _gather(self, schedule: Schedule, batches: range) -> tuple[StreamWindow, Mapping[Group, pa.StructArray]]:
        sizes = schedule.sizes(batches)
        arrays, numbers = self._arrays.take(), np.empty(sum(sizes), np.int64)
        cells: dict[Group, list[pa.StructArray]] = {group: [] for group in self._groups if group.is_cells}
        at = 0
        while at < len(numbers):
            if self._current is None:
                self._current, self._taken = self._supply.take(), 0
            current = self._current
            rows = slice(self._taken, min(current.rows, self._taken + len(numbers) - at))
            current.copy(rows, arrays, numbers, at)
            for group, one in current.cells(rows).items():
                cells[group].append(one)
            at += rows.stop - rows.start
            self._taken = rows.stop
            if rows.stop == current.rows:
                self._current = None
                self._supply.drop(current)
        window = StreamWindow(Share(batches, sizes, ()), arrays, numbers, tallies(numbers, sizes), schedule)
        return window, {group: pa.concat_arrays(pieces) for group, pieces in cells.items()}

    def _decode(
        self, gathered: Future[tuple[StreamWindow, Mapping[Group, pa.StructArray]]], group: Group, rows: range
    ) -> None:
        window, cells = gathered.result()
        began = time.perf_counter()
        part = slice(rows.start, rows.stop)
        decoder = self._decoders[group.name]
        failures = decoder.decode(cells[group][part], window.arrays[group][part])
        if failures:
            assert self._row_ids is not None
            row_ids = window.arrays[self._row_ids][part].ravel()
            check_failures(failures, decoder.on_error, group.name, row_ids)
        with self._lock:
            self._times.decoding += time.perf_counter() - began
            self._times.decoded += len(rows)
            self._times.filled += len(failures)
