"""Blocks in memory: a pool of slots that files are decoded into, and rows gathered from it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from daskprep.storage.arrays import Output
from daskprep.storage.reading import column_array, read_block, read_table_block

if TYPE_CHECKING:
    from daskprep.dataset import Split

__all__ = ["BlockFiles", "Buffers", "Group", "Pool", "SmallTables", "Windows", "groups_of"]

_SMALL_BYTES = 1 << 22  # of all scalars of a split

_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class Group:
    """Outputs that lie side by side in memory: the scalars of one type, or one output of another shape.

    Attributes
    ----------
    is_cached : bool
        Of media that are decoded when they are loaded: whether decoded blocks are kept, here and in a cache.
    """

    outputs: tuple[Output, ...]
    is_cached: bool = False

    @property
    def name(self) -> str:
        """Name of the first output."""
        return self.outputs[0].name

    @property
    def is_cells(self) -> bool:
        """Whether it holds media that are decoded when they are loaded."""
        return self.outputs[0].is_cells

    @property
    def is_packed(self) -> bool:
        return self.outputs[0].is_scalar and not self.is_cells

    @property
    def row_shape(self) -> tuple[int, ...]:
        return (len(self.outputs),) if self.is_packed else self.outputs[0].shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.outputs[0].dtype)

    @property
    def row_bytes(self) -> int:
        return sum(output.row_bytes for output in self.outputs)

    @property
    def resident_bytes(self) -> int:
        """Bytes of a row of a block that is read ahead."""
        cells = sum(output.stored_bytes for output in self.outputs if output.is_cells)
        return cells + (0 if self.is_cells and not self.is_cached else self.row_bytes)

    def empty(self, rows: int) -> np.ndarray:
        return np.empty((rows, *self.row_shape), self.dtype)


def groups_of(outputs: Sequence[Output], cached: Collection[str] = ()) -> list[Group]:
    """Return the groups of some outputs: one gather for eight numbers costs little more than one for a single one.

    `cached` are the names of the media whose decoded blocks are kept.
    """
    scalars: dict[str, list[Output]] = {}
    for output in outputs:
        if output.is_scalar and not output.is_cells:
            scalars.setdefault(output.dtype, []).append(output)
    packed = [Group(tuple(members)) for members in scalars.values()]
    others = [output for output in outputs if output.is_cells or not output.is_scalar]
    return packed + [Group((output,), output.is_cells and output.name in cached) for output in others]


class BlockFiles:
    """Reads the blocks of a split into arrays; media that are decoded later are not among them."""

    def __init__(self, split: Split, groups: Sequence[Group]) -> None:
        self.split = split
        self.groups = list(groups)
        self.is_local = split.dataset.files.folder.is_local
        self._readers = {g: split.block_reader(g.name) for g in groups if not g.is_packed and not g.is_cells}
        self._packed = [group for group in groups if group.is_packed]
        self._scalars = [output for group in self._packed for output in group.outputs]
        self._is_small = len(split) * sum(output.row_bytes for output in self._scalars) <= _SMALL_BYTES

    @property
    def scalars(self) -> tuple[str, ...]:
        """Names of the outputs that lie in tables."""
        return tuple(output.name for output in self._scalars)

    def jobs(self, block: int, targets: dict[Group, np.ndarray], tables: SmallTables) -> list[Callable[[], None]]:
        """Return what must be called, in any order, to fill the targets with a block: one call for each file."""
        calls: list[Callable[[], None]] = [
            lambda group=group: self._read_matrix(group, block, targets[group])  # type: ignore[misc]
            for group in self._readers
        ]
        if self._packed:
            calls.append(lambda: self._read_scalars(block, targets, tables))
        return calls

    def _read_matrix(self, group: Group, block: int, target: np.ndarray) -> None:
        where = self.split.block(group.name, block)
        found = read_block(self._readers[group], where, target)
        if not np.may_share_memory(found, target):
            target[: len(found)] = found

    def _read_scalars(self, block: int, targets: dict[Group, np.ndarray], tables: SmallTables) -> None:
        columns = self._part(block, tables) if self._is_small else self._block(block)
        for group in self._packed:
            for place, output in enumerate(group.outputs):
                column = columns[output.name]
                targets[group][: len(column), place] = column

    def _block(self, block: int) -> dict[str, np.ndarray]:
        where = self.split.block(self._scalars[0].name, block)
        table = read_table_block(self.split.dataset.files.folder, where, self._scalars)
        return {output.name: column_array(table, output) for output in self._scalars}

    def _part(self, block: int, tables: SmallTables) -> dict[str, np.ndarray]:
        split, layout = self.split, self.split.layout
        part = block // layout.part_blocks
        held, rows = layout.part_range(split.name, part), layout.block_range(split.name, block)
        columns = tables.get(part, lambda: split.read(self.scalars, held.start, held.stop))
        # Whoever goes on with a dataset that was removed or written anew is to be told.
        split.dataset.files.check_size(split.block(self.scalars[0], block).file)
        return {name: column[rows.start - held.start : rows.stop - held.start] for name, column in columns.items()}


class Pool:
    """Room for some blocks, side by side in one array for each group but media that are decoded for every window."""

    def __init__(self, groups: Sequence[Group], block_rows: int, slots: int) -> None:
        self.block_rows = block_rows
        self.slots = slots
        self.arrays = {g: g.empty(slots * block_rows) for g in groups if g.is_cached or not g.is_cells}
        self.clear()

    def clear(self) -> None:
        """Let every slot be free."""
        self.free = list(range(self.slots))[::-1]

    def targets(self, slot: int) -> dict[Group, np.ndarray]:
        """Return the arrays that the block in a slot is read into."""
        rows = slice(slot * self.block_rows, (slot + 1) * self.block_rows)
        return {group: array[rows] for group, array in self.arrays.items()}

    def gather(self, rows: np.ndarray, out: dict[Group, np.ndarray]) -> None:
        """Copy rows of the pool, in the order asked for, to the beginning of other arrays; media come by themselves."""
        for group, array in self.arrays.items():
            if not group.is_cells:
                # "clip" is the only mode that writes to `out` without a copy; the rows are known to be there.
                np.take(array, rows, axis=0, out=out[group][: len(rows)], mode="clip")


class Windows:
    """Arrays that batches are slices of, used again as soon as nobody holds a slice any more."""

    def __init__(self, make: Callable[[], dict[Group, np.ndarray]]) -> None:
        self._make = make
        self._made: list[dict[Group, np.ndarray]] = []
        self._lock = threading.Lock()

    def trim(self, most: int) -> None:
        """Forget all arrays but a few: whoever kept the batches of an epoch had many made."""
        with self._lock:
            del self._made[most:]

    def take(self) -> dict[Group, np.ndarray]:
        """Return arrays that nobody holds; who has the dict that is returned, or a slice of an array, holds them."""
        with self._lock:
            for arrays in self._made:
                if all(sys.getrefcount(array) <= _HELD_BY_US for array in arrays.values()):
                    return dict(arrays)
            self._made.append(self._make())
            return dict(self._made[-1])


class Buffers:
    """The memory that one iteration leaves to the next: fresh pages cost a twentieth of the time of an epoch."""

    def __init__(self) -> None:
        self._kept: dict[type, tuple[Any, Any]] = {}

    def take(self, kind: type[_Kind], shape: Any, make: Callable[[], _Kind]) -> _Kind:
        """Return what was left in this shape, or make it."""
        left_shape, left = self._kept.pop(kind, (None, None))
        return left if left_shape == shape else make()

    def leave(self, shape: Any, left: Any) -> None:
        """Keep something for the next that asks for its kind in this shape."""
        self._kept[type(left)] = (shape, left)


class SmallTables:
    """Scalars of whole tables that are kept from epoch to epoch: to open a table takes longer than to read a block.

    They are some columns of one split: `Buffers` keeps them by the names.
    """

    def __init__(self) -> None:
        self._parts: dict[int, Future[dict[str, np.ndarray]]] = {}
        self._lock = threading.Lock()

    def get(self, part: int, read: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Return the scalars of a part, which the first to ask for them reads; all who wait get its error."""
        with self._lock:
            kept = self._parts.get(part)
            found = self._parts[part] = kept or Future()
        if kept is None:
            try:
                found.set_result(read())
            except BaseException as error:
                with self._lock:
                    del self._parts[part]  # whoever comes later tries again
                found.set_exception(error)
        return found.result()


def _count_own() -> int:
    """Return the references to an array of a dict while a generator looks at it."""
    arrays = {0: np.empty(1)}
    return next(sys.getrefcount(array) for array in arrays.values())


_HELD_BY_US = _count_own()
