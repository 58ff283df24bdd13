"""Blocks of the files of a split: a pool of slots that files are decoded into."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from daskprep.dataset import Split
from daskprep.loader.groups import Buffers, Group
from daskprep.loader.media import StoredMedia, Times
from daskprep.loader.order import Schedule
from daskprep.loader.source import Need, ResidentBlock
from daskprep.permutation import Integers
from daskprep.storage.reading import column_array, read_block, read_table

_SMALL_BYTES = 1 << 22  # of all scalars of a split


@dataclass
class LoaderTimes(Times):
    """Of files: seconds of reading, and how many blocks were read."""

    reading: float = 0.0
    blocks: int = 0


class FileBlock(ResidentBlock):
    """A block of a split in a slot."""

    def __init__(self, owner: FileBlocks, number: int, slot: int, arrays: dict[Group, np.ndarray], first: int) -> None:
        super().__init__(number, arrays, first, functools.partial(owner.run, number))
        self.slot = slot
        self.order = np.empty(0, np.int64)
        self._start = owner.split.layout.block_range(owner.split.name, number).start

    def row_indices(self, within: slice | Integers) -> Integers:
        return self.order[within]

    def row_numbers(self, indices: Integers) -> Integers:
        return indices + self._start


class FileBlocks:
    """Reads the blocks of a split into slots, as many as there is memory for.

    `budget` blocks are held at most; one batch may need `spare` besides, as it may lie across a border in every lane.
    """

    def __init__(
        self, split: Split, groups: Sequence[Group], times: LoaderTimes, buffers: Buffers, budget: int, spare: int
    ) -> None:
        self.split = split
        self.groups = list(groups)
        self._times = times
        self._buffers = buffers
        self._budget = budget
        self._matrices = [group for group in groups if not group.is_packed and not group.stores_cells]
        self._readers = {(one, g): one.block_reader(g.name) for one in split.joined for g in self._matrices}
        self._packed = [group for group in groups if group.is_packed]
        self._scalars = [output for group in self._packed for output in group.outputs]
        self._is_small = len(split) * sum(output.row_bytes for output in self._scalars) <= _SMALL_BYTES
        self._cells = [group for group in groups if group.stores_cells]
        self._media = {(one, group): one.media(group.name) for one in split.joined for group in self._cells}
        names = tuple(output.name for output in self._scalars)
        self._tables = buffers.take(SmallTables, names, lambda: SmallTables(names))
        shape = (tuple(groups), max(1, min(split.layout.blocks(split.name), max(budget, spare))))
        self._pool = buffers.take(SlotPool, shape, lambda: SlotPool(*shape, split.layout.block_rows))
        self._held_blocks = 0

    def load(self, schedule: Schedule, block_position: int, need: Need) -> FileBlock | None:
        if need == Need.AHEAD and self._held_blocks >= self._budget:
            return None
        if not self._pool.free:
            if need < Need.NOW:
                return None
            self._pool.grow()
        self._held_blocks += 1
        slot, number = self._pool.free.pop(), int(schedule.blocks.order[block_position])
        block = FileBlock(self, number, slot, *self._pool.memory(slot))
        split, within = self.split.locate_block(number)
        block.media = {g: StoredMedia(self._media[split, g], split.block(g.name, within)) for g in self._cells}
        block.read_jobs = self._make_read_jobs(block)
        self._times.blocks += len(block.read_jobs) + len(block.media)

        def set_order() -> None:
            block.order = schedule.blocks.row_order(number)

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
        """Do a job of a block; errors say which rows it has."""
        began = time.perf_counter()
        try:
            job()
        except Exception as error:
            rows = self.split.layout.block_range(self.split.name, number)
            if not hasattr(error, "__notes__"):  # it may be that of a table, which others wait for as well
                error.add_note(f'while rows {rows.start:,} to {rows.stop - 1:,} of "{self.split.name}" were read')
            raise
        self._times.reading += time.perf_counter() - began

    def _make_read_jobs(self, block: FileBlock) -> dict[tuple[Group, ...], Callable[[], None]]:
        """Return what must be called, in any order, to fill the slot of a block: one call for the groups of a file."""
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
        split, number = self.split.locate_block(block)
        reader = self._readers[split, group]
        rows = read_block(reader, split.block(group.name, number), target[: reader.block_rows])
        if not np.may_share_memory(rows, target):
            target[: len(rows)] = rows

    def _read_scalars(self, block: int, targets: dict[Group, np.ndarray]) -> None:
        split, number = self.split.locate_block(block)
        layout, names = split.layout, self._tables.names
        rows = table_rows = layout.block_range(split.name, number)
        if self._is_small:
            part = number // layout.part_blocks
            table_rows = layout.part_range(split.name, part)
            columns = self._tables.get((split, part), lambda: split.read(names, table_rows.start, table_rows.stop))
            # Who goes on with a dataset that was removed or written anew is to be told; in stores, once in an epoch.
            if split.is_local or rows.start == table_rows.start:
                split.dataset.files.check_size(split.block(names[0], number).file)
        else:
            # Not by `read`, which copies them once more.
            table = read_table(split.dataset.files.folder, split.block(names[0], number), self._scalars)
            columns = {output.name: column_array(table, output) for output in self._scalars}
        for group in self._packed:
            for column_index, output in enumerate(group.outputs):
                column = columns[output.name][rows.start - table_rows.start : rows.stop - table_rows.start]
                targets[group][: len(column), column_index] = column


class SlotPool:
    """Room for some blocks, side by side in an array for each group but media that are decoded for every window."""

    def __init__(self, groups: Sequence[Group], slots: int, block_rows: int) -> None:
        self.slots = slots
        self._groups = groups
        self._block_rows = block_rows
        self._slabs: list[dict[Group, np.ndarray]] = []
        self._slot_locations: list[tuple[int, int]] = []  # slab and first row of each slot
        self.free: list[int] = []
        self.clear()

    def clear(self) -> None:
        """Let every slot be free, and those that were made besides go."""
        del self._slabs[1:], self._slot_locations[self.slots :]
        if not self._slabs:
            self._add(self.slots)
        self.free = list(range(self.slots))[::-1]

    def grow(self) -> None:
        """Make as many slots again: one batch may touch more blocks than were thought of."""
        slot_count = len(self._slot_locations)
        self._add(slot_count)
        self.free += range(slot_count, 2 * slot_count)

    def memory(self, slot: int) -> tuple[dict[Group, np.ndarray], int]:
        """Return the arrays that a slot is a part of, and its first row there."""
        slab, first = self._slot_locations[slot]
        return self._slabs[slab], first

    def _add(self, slots: int) -> None:
        rows = slots * self._block_rows
        self._slabs.append({g: g.empty(rows) for g in self._groups if g.is_cached or not g.stores_cells})
        self._slot_locations += [(len(self._slabs) - 1, slot * self._block_rows) for slot in range(slots)]


class SmallTables:
    """Scalars of whole tables that are kept from epoch to epoch: to open a table takes longer than to read a block.

    They are some columns of one split, by whose names `Buffers` keeps them.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._parts: dict[Hashable, Future[dict[str, np.ndarray]]] = {}
        self._lock = threading.Lock()

    def get(self, part: Hashable, read: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Return the scalars of a part, which the first to ask for them reads; all who wait get its error."""
        with self._lock:
            existing = self._parts.get(part)
            future = self._parts[part] = existing or Future()
        if existing is None:
            try:
                future.set_result(read())
            except BaseException as error:
                with self._lock:
                    del self._parts[part]  # whoever comes later tries again
                future.set_exception(error)
        return future.result()
