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
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from daskprep.dataset import Split
from daskprep.dataset.cache import BlockCache, read_media_block
from daskprep.loader.groups import Buffers, Group, Tensors
from daskprep.loader.media import MediaRows, StoredMedia, Times
from daskprep.loader.order import Schedule
from daskprep.permutation import Integers
from daskprep.storage.reading import column_array, read_block, read_table

_SMALL_BYTES = 1 << 22  # of all scalars of a split


class Need(IntEnum):
    """Urgency of a block, which determines how much memory it may take."""

    PREFETCH = 0  # needed for several batches: within the memory for prefetching
    BATCH = 1  # needed for a single batch: may use spare memory
    NOW = 2  # required to continue: may allocate memory


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
        self.tensors: Tensors = {}  # the same rows on the device of the model, if windows are gathered there
        self.first = first
        self.media: dict[Group, MediaRows] = {}  # decoded for each window
        self.jobs: list[Callable[[], None]] = []
        # Jobs by the groups that they read, so that a cache can wrap them.
        self.read_jobs: dict[tuple[Group, ...], Callable[[], None]] = {}
        self._futures: list[Future[None]] = []
        self._is_loaded = False

    def begin(self, submit: Callable[[Callable[[], None]], Future[None]]) -> None:
        """Submit the jobs, and forget them."""
        # Jobs refer to this block: keeping them would be a reference cycle, which only the garbage collector frees.
        jobs, self.jobs, self.read_jobs = [*self.read_jobs.values(), *self.jobs], [], {}
        jobs += [rows.load for rows in self.media.values()]
        self._futures = [submit(functools.partial(self._run, job)) for job in jobs]

    def wait(self) -> None:
        """Wait until the block is loaded; raise the error of a job that failed."""
        # Every window calls this, and each future would acquire a lock.
        if not self._is_loaded:
            for future in self._futures:
                future.result()
            self._is_loaded = True

    def stop(self) -> None:
        """Cancel the jobs that have not started, and wait for the running ones, which write to the arrays."""
        for future in self._futures:
            if not future.cancel():
                future.exception()

    def locate(self, within: slice | Integers) -> tuple[Integers, Integers]:
        """Return the indices in the block, and the row numbers in the split, of rows by position in its row order."""
        raise NotImplementedError


AnyBlock = TypeVar("AnyBlock", bound=ResidentBlock)


class BlockSource(Protocol[AnyBlock]):
    """Interface of a source of blocks: the files of a dataset, a cache in front of another source, Dask tasks.

    Only one thread calls its methods.
    """

    def load(self, schedule: Schedule, block_position: int, need: Need) -> AnyBlock | None:
        """Return the block at a position of an epoch, without starting its jobs, or None if memory is short."""

    def release(self, block: AnyBlock) -> None:
        """Free the memory of a block that no task uses."""

    def close(self) -> None:
        """Free all memory; no task uses any block."""


LocatedRows = tuple[ResidentBlock, slice | Integers, Integers, Integers]
"""Rows of a block: the block, their positions in a window, their indices in the block, and their row numbers."""


class TakenRows(NamedTuple):
    """Rows of a window from blocks that share arrays: such a block, indices in the arrays, and positions in the window.

    Without positions, these are all rows of the window, in order.
    """

    block: ResidentBlock
    indices: Integers
    targets: Integers | None = None


def join_rows(located: Sequence[LocatedRows], count: int) -> tuple[Integers, list[TakenRows]]:
    """Return the row numbers of the `count` rows of a window, and where the rows are, by shared arrays."""
    rows, positions = np.empty(count, np.int64), np.empty(count, np.int64)
    for block, target, indices, numbers in located:
        positions[target] = indices + block.first
        rows[target] = numbers
    blocks = {id(block.arrays): block for block, *_ in located}
    if len(blocks) == 1:
        return rows, [TakenRows(located[0][0], positions)]
    taken, order = [], np.arange(count)
    for key, first in blocks.items():
        targets = np.concatenate([order[target] for block, target, *_ in located if id(block.arrays) == key])
        taken.append(TakenRows(first, positions[targets], targets))
    return rows, taken


def gather(taken: Sequence[TakenRows], count: int, out: Mapping[Group, np.ndarray]) -> None:
    """Copy rows of blocks to the first `count` rows of the arrays in `out`, except media."""
    for block, indices, targets in taken:
        for group, array in block.arrays.items():
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

    def __init__(
        self, owner: FileBlocks, number: int, first_row: int, slot: int, arrays: dict[Group, np.ndarray], first: int
    ) -> None:
        super().__init__(number, arrays, first, functools.partial(owner.run, number))
        self.slot = slot
        self.order = np.empty(0, np.int64)
        self.repeats: tuple[int, int] | None = None  # rows of an epoch, and its row numbers, if there are several
        self._first_row = first_row

    def locate(self, within: slice | Integers) -> tuple[Integers, Integers]:
        indices = self.order[within]
        if self.repeats is None:
            return indices, indices + self._first_row
        rows, step = self.repeats
        return indices, indices + self._first_row + np.arange(len(self.order))[within] // rows * step


class FileBlocks:
    """Source that reads the blocks of a split, possibly joined from several datasets, into slots.

    Prefetched blocks are at most `budget`. A single batch may need `spare` blocks, because it may cross a block border
    in every lane; the pool has slots for both. Groups with a cache in `decoded` are media that it contains completely.
    """

    def __init__(
        self,
        split: Split,
        groups: Sequence[Group],
        times: LoaderTimes,
        buffers: Buffers,
        budget: int,
        spare: int,
        make_array: Callable[[Group, int], np.ndarray] = Group.empty,
        decoded: Mapping[tuple[Split, Group], BlockCache] | None = None,
    ) -> None:
        """Open the readers of all outputs; take the pool of slots and cached tables from `buffers`, or create them.

        `make_array` allocates the memory for a number of rows of a group, except media.
        """
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
        shape = (tuple(groups), max(1, min(split.layout.blocks(split.name), max(budget, spare))))
        self._pool = buffers.take(SlotPool, shape, lambda: SlotPool(*shape, split.layout.block_rows, make_array))
        self._held_blocks = 0

    def load(self, schedule: Schedule, block_position: int, need: Need) -> FileBlock | None:
        """Return a block in a free slot, without starting its jobs; None without a slot, or beyond the budget.

        If it is needed now, the pool grows.
        """
        if need == Need.PREFETCH and self._held_blocks >= self._budget:
            return None
        if not self._pool.free:
            if need < Need.NOW:
                return None
            self._pool.grow()
        self._held_blocks += 1
        slot, blocks = self._pool.free.pop(), schedule.blocks
        number = blocks.number_at(block_position)
        block = FileBlock(self, number, blocks.first_row_at(block_position), slot, *self._pool.memory(slot))
        split, within = self.split.locate_block(number)
        block.media = {g: StoredMedia(self._media[split, g], split.block(g.name, within)) for g in self._cells}
        block.read_jobs = self._make_read_jobs(block)
        self._times.blocks += len(block.read_jobs) + len(block.media)

        def set_order() -> None:
            block.order, block.repeats = blocks.row_order_at(block_position), blocks.repeats_at(block_position)

        block.jobs = [set_order]
        return block

    def release(self, block: FileBlock) -> None:
        self._held_blocks -= 1
        self._pool.free.append(block.slot)

    def close(self) -> None:
        self._pool.clear()
        self._buffers.put_back((tuple(self.groups), self._pool.slots), self._pool)
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
        """Read a block of the output of `group` into the first rows of `target`."""
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
            # `Split.read` would copy the columns once more.
            scalars = [split.output(name) for name in names]
            table = read_table(split.dataset.files.folder, split.block(names[0], number), scalars)
            columns = {output.name: column_array(table, output) for output in scalars}
        for group in self._packed:
            for column_index, output in enumerate(group.outputs):
                column = columns[output.name][rows.start - table_rows.start : rows.stop - table_rows.start]
                targets[group][: len(column), column_index] = column


class SlotPool:
    """Memory for `slots` blocks: one array per group, except for media that are decoded for every window.

    `free` is the list of unused slots.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        slots: int,
        block_rows: int,
        make_array: Callable[[Group, int], np.ndarray] = Group.empty,
    ) -> None:
        """Allocate `slots` slots of `block_rows` rows with `make_array`, all free."""
        self.slots = slots
        self._make_array = make_array
        self._groups = groups
        self._block_rows = block_rows
        self._slabs: list[dict[Group, np.ndarray]] = []
        self._slot_locations: list[tuple[int, int]] = []  # slab and first row of each slot
        self.free: list[int] = []
        self.clear()

    def clear(self) -> None:
        """Mark every slot as free, and discard the slots that `grow` added."""
        del self._slabs[1:], self._slot_locations[self.slots :]
        if not self._slabs:
            self._add(self.slots)
        self.free = list(range(self.slots))[::-1]

    def grow(self) -> None:
        """Double the number of slots: one batch may touch more blocks than the pool was created for."""
        slot_count = len(self._slot_locations)
        self._add(slot_count)
        self.free += range(slot_count, 2 * slot_count)

    def memory(self, slot: int) -> tuple[dict[Group, np.ndarray], int]:
        """Return the arrays that contain a slot, and the index of its first row."""
        slab, first = self._slot_locations[slot]
        return self._slabs[slab], first

    def _add(self, slots: int) -> None:
        rows = slots * self._block_rows
        slab = {g: self._make_array(g, rows) for g in self._groups if not g.stores_cells}
        self._slabs.append(slab | {g: g.empty(rows) for g in self._groups if g.is_cached})
        self._slot_locations += [(len(self._slabs) - 1, slot * self._block_rows) for slot in range(slots)]


class SmallTables:
    """Scalars of complete tables, cached from epoch to epoch: opening a table takes longer than reading a block.

    `names` are the outputs that are cached. `Buffers` reuses the cache for the same names.
    """

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
