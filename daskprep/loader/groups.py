"""Outputs that lie side by side in memory, and arrays for windows of them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from daskprep.storage.arrays import Output

_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class Group:
    """Outputs that lie side by side in memory: the scalars of one type, or one output of another shape."""

    outputs: tuple[Output, ...]
    is_cached: bool = False  # of media decoded when they are loaded: whether decoded blocks are kept, here and on disk

    @property
    def name(self) -> str:
        """Name of the first output."""
        return self.outputs[0].name

    @property
    def stores_cells(self) -> bool:
        """Whether it holds media that are decoded when they are loaded."""
        return self.outputs[0].stores_cells

    @property
    def is_packed(self) -> bool:
        return self.outputs[0].is_scalar and not self.stores_cells

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
        cells = self.outputs[0].stored_bytes if self.stores_cells else 0
        return cells + (0 if self.stores_cells and not self.is_cached else self.row_bytes)

    def empty(self, rows: int) -> np.ndarray:
        return np.empty((rows, *self.row_shape), self.dtype)


def group_outputs(outputs: Sequence[Output], cached: Collection[str] = ()) -> list[Group]:
    """Return the groups of some outputs: one gather for eight numbers costs little more than one for a single one.

    `cached` are the names of the media whose decoded blocks are kept.
    """
    scalars: dict[str, list[Output]] = {}
    for output in outputs:
        if output.is_scalar and not output.stores_cells:
            scalars.setdefault(output.dtype, []).append(output)
    packed = [Group(tuple(members)) for members in scalars.values()]
    others = [output for output in outputs if output.stores_cells or not output.is_scalar]
    return packed + [Group((output,), output.stores_cells and output.name in cached) for output in others]


class WindowArrays:
    """Arrays that batches are slices of, used again as soon as nobody holds a slice any more."""

    def __init__(self, make: Callable[[], dict[Group, np.ndarray]]) -> None:
        self._make = make
        self._allocated: list[dict[Group, np.ndarray]] = []
        self._lock = threading.Lock()

    def trim(self, max_count: int) -> None:
        """Forget all arrays but a few: whoever kept the batches of an epoch had many made."""
        with self._lock:
            del self._allocated[max_count:]

    def take(self) -> dict[Group, np.ndarray]:
        """Return arrays that nobody holds; who has the dict that is returned, or a slice of an array, holds them."""
        with self._lock:
            for arrays in self._allocated:
                if all(sys.getrefcount(array) <= _OWN_REFERENCES for array in arrays.values()):
                    return dict(arrays)
            self._allocated.append(self._make())
            return dict(self._allocated[-1])


class Buffers:
    """The memory that one iteration leaves to the next: fresh pages cost a twentieth of the time of an epoch."""

    def __init__(self) -> None:
        self._buffers: dict[type, tuple[Any, Any]] = {}

    def take(self, kind: type[_Kind], shape: Any, make: Callable[[], _Kind]) -> _Kind:
        """Return what was left in this shape, or make it."""
        buffer_shape, buffer = self._buffers.pop(kind, (None, None))
        return buffer if buffer_shape == shape else make()

    def put_back(self, shape: Any, buffer: Any) -> None:
        """Keep something for the next that asks for its kind in this shape."""
        self._buffers[type(buffer)] = (shape, buffer)


def _count_own_references() -> int:
    """Return the references to an array of a dict while a generator looks at it."""
    arrays = {0: np.empty(1)}
    return next(sys.getrefcount(array) for array in arrays.values())


_OWN_REFERENCES = _count_own_references()
