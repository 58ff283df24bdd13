"""Sources of blocks: their interface, blocks in memory or being loaded, and the source that reads files into slots."""

from __future__ import annotations

import functools
import operator
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from daskprep.columns.permutation import Integers
from daskprep.dataset import Split
from daskprep.dataset.cache import BlockCache, read_media_block
from daskprep.dataset.loader.groups import Buffers, Group
from daskprep.dataset.loader.media import MediaRows, StoredMedia, Times
from daskprep.dataset.loader.order import EpochBlocks, Schedule, WindowPlan, runs
from daskprep.storage.reading import column_array, read_block, read_table

_SMALL_BYTES = 1 << 24  # of all scalars of a split; `_FIXED_BYTES` in memory.py includes them


class Need(IntEnum):
    """Urgency of a block, which determines the memory for it."""

    PREFETCH = 0  # needed for several batches: within the memory for prefetching
    BATCH = 1  # needed for a single batch: may use spare memory
    NOW = 2  # required to continue: may exceed the limit


class ResidentBlock:
    """A block of rows in memory, or being loaded.

    The planning thread creates and releases it, and `jobs` fill it on any thread. Other tasks wait for the jobs before
    they use the rows, and end before the block is released. Several blocks may share the `arrays`.
    """

    def __init__(
        self,
        number: int,
        arrays: Mapping[Group, np.ndarray],
        first: int = 0,
        run: Callable[[Callable[[], None]], None] = operator.call,
    ) -> None:
        """Set the number in the source, the arrays by group, the index of the first row in them; `run` calls a job."""
        self.number = number
        self._run = run
        self.arrays = arrays
        self.first = first
        self.media: dict[Group, MediaRows] = {}  # decoded for each window
        self.jobs: list[Callable[[], None]] = []
        # Jobs by the groups that they read, so that a cache can wrap them.
        self.read_jobs: dict[tuple[Group, ...], Callable[[], None]] = {}
        self._futures: list[Future[None]] = []
        self._is_loaded = False

    def begin(self, submit: Callable[[Callable[[], None]], Future[None]]) -> None:
        """Submit and forget the jobs; `wait` raises their errors."""
        # Jobs refer to this block: keeping them would be a reference cycle, which only the garbage collector frees.
        first, *others = [*self.read_jobs.values(), *(rows.load for rows in self.media.values())] or [lambda: None]
        tasks, self.jobs, self.read_jobs = [[*self.jobs, first], *([job] for job in others)], [], {}
        self._futures = [submit(functools.partial(self._run_all, jobs)) for jobs in tasks]

    def _run_all(self, jobs: Sequence[Callable[[], None]]) -> None:
        for job in jobs:
            self._run(job)

    def wait(self) -> None:
        """Wait until the block is loaded; raise errors of jobs."""
        # Every window calls this, and each future would acquire a lock.
        if not self._is_loaded:
            for future in self._futures:
                future.result()
            self._is_loaded = True

    def stop(self) -> None:
        """Cancel the jobs that have not started, and wait for the running ones, which write to the arrays."""
        for future in [] if self._is_loaded else self._futures:
            if not future.cancel():
                future.exception()


AnyBlock = TypeVar("AnyBlock", bound=ResidentBlock)


class BlockSource(Protocol[AnyBlock]):
    """Interface of a source of blocks: files, a cache of another source, Dask tasks; one thread calls it."""

    def load(self, schedule: Schedule, block_position: int, need: Need) -> AnyBlock | None:
        """Return the block at a position of an epoch, without starting its jobs, or None if memory is short."""

    def locate(self, plan: WindowPlan, blocks: Mapping[int, AnyBlock]) -> LocatedRows:
        """Return where the rows of a window are; `blocks` are its blocks by position in the epoch, ascending."""

    def release(self, block: AnyBlock) -> None:
        """Free the memory of a block that no task uses."""

    def grow(self, blocks: int) -> None:
        """Make room for some blocks of one batch; none is in memory."""

    def close(self) -> None:
        """Free all memory; no task uses any block."""


class TakenRows(NamedTuple):
    """Rows of a window in shared arrays."""

    arrays: Mapping[Group, Any]  # or tensors
    indices: Integers  # in the arrays
    targets: slice | None = None  # positions in the window; None: all its rows, in order


class LocatedRows(NamedTuple):
    """The rows of a window: their row numbers, where they are, and for media, their indices in their blocks."""

    rows: Integers
    taken: list[TakenRows]
    within: Integers | None = None


def gather(taken: Sequence[TakenRows], count: int, out: Mapping[Group, np.ndarray]) -> None:
    """Copy rows of blocks, except media, to the arrays in `out`."""
    for arrays, indices, targets in taken:
        for group, array in arrays.items():
            if group.stores_cells:
                continue
            if targets is None:
                # In NumPy, only mode="clip" writes to `out` without a temporary copy; all indices are valid.
                np.take(array, indices, axis=0, out=out[group][:count], mode="clip")
            else:
                out[group][targets] = array.take(indices, axis=0)


@dataclass
class LoaderTimes(Times):
    """Statistics of a loader: also the seconds of reading files, and the number of blocks read."""

    reading: float = 0.0
    blocks: int = 0


class FileBlock(ResidentBlock):
    """A block of a split in a slot of the pool."""

    def __init__(self, owner: FileBlocks, blocks: EpochBlocks, position: int, slot: int, pool: SlotPool) -> None:
        number = blocks.number_at(position)
        super().__init__(number, pool.arrays, slot * pool.block_rows, functools.partial(owner.run, number))
        self.slot = slot
        self.first_row, self.period = blocks.first_row_at(position), blocks.period

        def set_rows() -> None:
            rows = blocks.row_numbers(position)
            pool.row_numbers[slot, : len(rows)] = rows

        self.jobs = [set_rows]


class FileBlocks:
    """Source that reads the blocks of a split, possibly joined from several datasets, into slots.

    Prefetched blocks are at most `budget`. A single batch may need `spare` blocks, because it may cross a block border
    in every stream; the pool has slots for both. A block yields at most `max_rows` rows in an epoch. Groups with a
    cache in `decoded` are media that it contains completely.
    """

    def __init__(
        self,
        split: Split,
        groups: Sequence[Group],
        times: LoaderTimes,
        buffers: Buffers,
        budget: int,
        spare: int,
        max_rows: int,
        make_array: Callable[[Group, int], np.ndarray] = Group.empty,
        decoded: Mapping[tuple[Split, Group], BlockCache] | None = None,
    ) -> None:
        """Open the readers of all outputs; take the pool and cached tables from `buffers`, or create them."""
        self.split = split
        self.groups = list(groups)
        self._times = times
        self._buffers = buffers
        self._budget = budget
        self._decoded = decoded or {}
        self._matrices = [group for group in groups if not group.is_packed and not group.stores_cells]
        self._readers = {(joined, g): joined.block_reader(g.name) for joined in split.joined for g in self._matrices}
        self._packed = [group for group in groups if group.is_packed]
        self._scalars = [output for group in self._packed for output in group.outputs]
        self._is_small = len(split) * sum(output.row_bytes for output in self._scalars) <= _SMALL_BYTES
        self._cells = [group for group in groups if group.stores_cells]
        self._media = {(joined, g): joined.media(g.name) for joined in split.joined for g in self._cells}
        names = tuple(output.name for output in self._scalars)
        self._tables = buffers.take(SmallTables, names, lambda: SmallTables(names))
        self._slots = max(1, min(split.layout.blocks(split.name), max(budget, spare)))
        self._make_pool = functools.partial(
            SlotPool, groups, block_rows=split.layout.block_rows, max_rows=max_rows, make_array=make_array
        )
        self._pool = buffers.take(SlotPool, self._pool_shape, lambda: self._make_pool(self._slots))
        self._held_blocks = 0

    @property
    def _pool_shape(self) -> Any:
        return tuple(self.groups), self._slots, self._make_pool.keywords["max_rows"]

    def load(self, schedule: Schedule, block_position: int, need: Need) -> FileBlock | None:
        """Return a block in a free slot, without starting its jobs; None without a slot, or beyond the budget."""
        if not self._pool.free or (need == Need.PREFETCH and self._held_blocks >= self._budget):
            return None
        self._held_blocks += 1
        block = FileBlock(self, schedule.blocks, block_position, self._pool.free.pop(), self._pool)
        split, within = self.split.locate_block(block.number)
        block.media = {g: StoredMedia(self._media[split, g], split.block(g.name, within)) for g in self._cells}
        block.read_jobs = self._make_read_jobs(block)
        self._times.blocks += len(block.read_jobs) + len(block.media)
        return block

    def locate(self, plan: WindowPlan, blocks: Mapping[int, FileBlock]) -> LocatedRows:
        """Return the row numbers of a window, and where their arrays are in the pool."""
        pool, counts = self._pool, plan.counts
        index = np.searchsorted(list(blocks), plan.blocks)
        slots, first_rows = (
            np.array([getattr(block, name) for block in blocks.values()])[index] for name in ("slot", "first_row")
        )
        rows = pool.row_numbers.reshape(-1).take(runs(slots * pool.row_numbers.shape[1] + plan.firsts, counts))
        period, firsts = next(iter(blocks.values())).period, slots * pool.block_rows
        if period is None and not self._cells:
            return LocatedRows(rows, [TakenRows(pool.arrays, rows + np.repeat(firsts - first_rows, counts))])
        within = rows - np.repeat(first_rows, counts)
        if period is not None:
            within %= period
        return LocatedRows(rows, [TakenRows(pool.arrays, within + np.repeat(firsts, counts))], within)

    def release(self, block: FileBlock) -> None:
        self._held_blocks -= 1
        self._pool.free.append(block.slot)

    def grow(self, blocks: int) -> None:
        self._pool = self._make_pool(blocks)

    def close(self) -> None:
        """Free all slots; later iterations reuse the buffers."""
        self._pool.free = list(range(self._pool.slots))
        self._buffers.put_back(self._pool_shape, self._pool)
        self._buffers.put_back(self._tables.names, self._tables)

    def run(self, number: int, job: Callable[[], None]) -> None:
        """Run a job of the block `number`, and add its seconds to `times`; a note on an error has the row numbers."""
        began = time.perf_counter()
        try:
            job()
        except Exception as error:
            rows = self.split.layout.block_range(self.split.name, number)
            if not hasattr(error, "__notes__"):  # several blocks may wait for the same table and raise its error
                error.add_note(f'while rows {rows.start:,} to {rows.stop - 1:,} of "{self.split.name}" were read')
            raise
        self._times.reading += time.perf_counter() - began

    def _make_read_jobs(self, block: FileBlock) -> dict[tuple[Group, ...], Callable[[], None]]:
        """Return the functions that fill the slot of a block, by the groups that each reads; they may run at once."""
        rows = slice(block.first, block.first + self.split.layout.block_rows)
        targets = {group: array[rows] for group, array in block.arrays.items()}
        number = block.number
        calls: dict[tuple[Group, ...], Callable[[], None]] = {
            (group,): functools.partial(self._read_matrix, group, number, targets[group]) for group in self._matrices
        }
        if self._packed:
            calls[tuple(self._packed)] = functools.partial(self._read_scalars, number, targets)
        return calls

    def _read_matrix(self, group: Group, block: int, target: np.ndarray) -> None:
        """Read a block of an output into the rows of `target`."""
        split, number = self.split.locate_block(block)
        reader = self._readers[split, group]
        location, out = split.block(group.name, number), target[: reader.block_rows]
        if (cache := self._decoded.get((split, group))) is None:
            rows = read_block(reader, location, out)
        else:
            cached_rows = cache.read(number, out)  # None if the cache was removed since
            rows = read_media_block(split.media(group.name), location) if cached_rows is None else cached_rows
        # `np.may_share_memory` would release the GIL.
        if rows.__array_interface__["data"] != target.__array_interface__["data"]:
            target[: len(rows)] = rows

    def _read_scalars(self, block: int, targets: dict[Group, np.ndarray]) -> None:
        """Read a block of all scalar outputs into `targets` by group; if the split is small, through cached tables."""
        split, number = self.split.locate_block(block)
        layout, names = split.layout, self._tables.names
        rows = table_rows = layout.block_range(split.name, number)
        if self._is_small:
            part = number // layout.part_blocks
            table_rows = layout.part_range(split.name, part)
            columns = self._tables.get((split, part), lambda: split.read(names, table_rows.start, table_rows.stop))
            # Raises an error if the dataset was removed or rewritten meanwhile; for remote stores, once per table.
            if split.is_local or rows.start == table_rows.start:
                split.dataset.files.check_size(split.block(names[0], number).file)
        else:
            scalars = [split.output(name) for name in names]  # `Split.read` would copy the columns once more
            table = read_table(split.dataset.files.folder, split.block(names[0], number), scalars)
            columns = {output.name: column_array(table, output) for output in scalars}
        for group in self._packed:
            target = targets[group]
            for column_index, output in enumerate(group.outputs):
                column = columns[output.name][rows.start - table_rows.start : rows.stop - table_rows.start]
                target[: len(column), column_index] = column


class SlotPool:
    """Memory for `slots` blocks: one array per group, except for media that are decoded for every window."""

    def __init__(
        self,
        groups: Sequence[Group],
        slots: int,
        *,
        block_rows: int,
        max_rows: int,
        make_array: Callable[[Group, int], np.ndarray] = Group.empty,
    ) -> None:
        """Allocate free slots of `block_rows` rows."""
        self.slots = slots
        self.block_rows = block_rows
        self.arrays = {g: make_array(g, slots * block_rows) for g in groups if not g.stores_cells}
        self.arrays |= {g: g.empty(slots * block_rows) for g in groups if g.is_cached}
        self.row_numbers = np.empty((slots, max_rows), np.int64)  # of each block in the order of the epoch
        self.free = list(range(slots))  # unused slots


class SmallTables:
    """Scalars of complete tables for all epochs: opening a table takes longer than reading a block."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._parts: dict[Hashable, Future[dict[str, np.ndarray]]] = {}
        self._lock = threading.Lock()

    def get(self, part: Hashable, read: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Return the scalars of a part, from the cache or from `read`; threads that wait for `read` share its error."""
        with self._lock:
            existing = self._parts.get(part)
            future = self._parts[part] = existing or Future()
        if existing is None:
            try:
                future.set_result(read())
            except BaseException as error:
                with self._lock:
                    del self._parts[part]  # later calls try again
                future.set_exception(error)
        return future.result()
