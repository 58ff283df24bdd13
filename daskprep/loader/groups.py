"""Groups of outputs that share an array, and memory for windows and later iterations."""

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
    """Outputs that share an array: scalars of one type as columns, in this order, or a single output of another shape.

    For media that the loader decodes, `is_cached` is whether decoded blocks are cached in memory and on disk.
    """

    outputs: tuple[Output, ...]
    is_cached: bool = False

    @property
    def name(self) -> str:
        """Name of the first output."""
        return self.outputs[0].name

    @property
    def stores_cells(self) -> bool:
        """Whether the dataset stores encoded media, which the loader decodes."""
        return self.outputs[0].stores_cells

    @property
    def is_packed(self) -> bool:
        """Whether the outputs are columns of one array."""
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
        """Bytes per row of a prefetched block."""
        cells = self.outputs[0].stored_bytes if self.stores_cells else 0
        return cells + (0 if self.stores_cells and not self.is_cached else self.row_bytes)

    def empty(self, rows: int) -> np.ndarray:
        return np.empty((rows, *self.row_shape), self.dtype)


def group_outputs(outputs: Sequence[Output], cached: Collection[str] = ()) -> list[Group]:
    """Return the groups of `outputs`: one for all scalars of a type, then one for each of the remaining outputs.

    Gathering eight numbers costs little more than gathering one. `cached` are the names of media with a cache.
    """
    scalars: dict[str, list[Output]] = {}
    for output in outputs:
        if output.is_scalar and not output.stores_cells:
            scalars.setdefault(output.dtype, []).append(output)
    packed = [Group(tuple(members)) for members in scalars.values()]
    separate = [output for output in outputs if output.stores_cells or not output.is_scalar]
    return packed + [Group((output,), output.stores_cells and output.name in cached) for output in separate]


class WindowArrays:
    """Pool of arrays for windows; arrays are reused once no batch refers to a slice of them."""

    def __init__(self, make: Callable[[], dict[Group, np.ndarray]]) -> None:
        self._make = make
        self._allocated: list[dict[Group, np.ndarray]] = []
        self._lock = threading.Lock()

    def trim(self, max_count: int) -> None:
        """Discard arrays beyond `max_count` sets, which a consumer that kept its batches has caused."""
        with self._lock:
            del self._allocated[max_count:]

    def take(self) -> dict[Group, np.ndarray]:
        """Return unused or new arrays by group; they are in use while the returned dict or a slice of one exists."""
        with self._lock:
            for arrays in self._allocated:
                if all(sys.getrefcount(array) <= _OWN_REFERENCES for array in arrays.values()):
                    return dict(arrays)
            self._allocated.append(self._make())
            return dict(self._allocated[-1])


class Buffers:
    """Memory that one iteration passes to the next: allocating it again takes a twentieth of the time of an epoch."""

    def __init__(self) -> None:
        self._buffers: dict[type, tuple[Any, Any]] = {}

    def take(self, kind: type[_Kind], shape: Any, make: Callable[[], _Kind]) -> _Kind:
        """Return the buffer of the class `kind` if it was put back with the same `shape`, otherwise ``make()``."""
        buffer_shape, buffer = self._buffers.pop(kind, (None, None))
        return buffer if buffer_shape == shape else make()

    def put_back(self, shape: Any, buffer: Any) -> None:
        """Store a buffer for the next `take` of its class and shape."""
        self._buffers[type(buffer)] = (shape, buffer)


def _count_own_references() -> int:
    """Return the reference count of an array that only a dict contains, as measured in a generator."""
    arrays = {0: np.empty(1)}
    return next(sys.getrefcount(array) for array in arrays.values())


_OWN_REFERENCES = _count_own_references()
