"""Groups of outputs that share an array: memory for windows, and blocks and windows on the device of the model."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from daskprep.columns.permutation import Integers
from daskprep.errors import ConfigError, did_you_mean
from daskprep.storage.arrays import Output

_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class Group:
    """Outputs that share an array: scalars of one type as columns, or a single output of another shape."""

    outputs: tuple[Output, ...]
    is_cached: bool = False  # whether decoded blocks of media are cached in memory and on disk

    def __hash__(self) -> int:
        return hash(self.outputs[0].name)  # hashing a thousand outputs takes longer than a lookup

    @property
    def name(self) -> str:
        """Name of the first output."""
        return self.outputs[0].name

    @property
    def stores_cells(self) -> bool:
        """Whether encoded media are stored, for the loader to decode."""
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
    """Return a group of all scalars of a type, and of each other output; media in `cached` have a cache."""
    scalars: dict[str, list[Output]] = {}
    for output in outputs:
        if output.is_scalar and not output.stores_cells:
            scalars.setdefault(output.dtype, []).append(output)
    packed = [Group(tuple(members)) for members in scalars.values()]
    separate = [output for output in outputs if output.stores_cells or not output.is_scalar]
    return packed + [Group((output,), output.stores_cells and output.name in cached) for output in separate]


class ReusedArrays:
    """Pool of arrays by key, reused without references: touching new memory costs more than a copy."""

    def __init__(self) -> None:
        self._arrays: dict[Hashable, list[np.ndarray]] = {}
        self._lock = threading.Lock()

    def trim(self, max_count: int) -> None:
        """Discard arrays beyond `max_count` for each key, which a consumer that kept its batches has caused."""
        with self._lock:
            for arrays in self._arrays.values():
                del arrays[max_count:]

    def take(self, key: Hashable, size: int, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Return an unused array of at least `size` rows, or a new one in place of those that are too small.

        It is in use while there are references to it or to a slice of it.
        """
        with self._lock:
            arrays = self._arrays.setdefault(key, [])
            for array in arrays:
                if len(array) >= size and sys.getrefcount(array) <= _OWN_REFERENCES:
                    return array
            arrays[:] = [array for array in arrays if sys.getrefcount(array) > _OWN_REFERENCES]
            arrays.append(make())
            return arrays[-1]


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


# The reference count of an array that only a list contains, as measured in a generator.
_OWN_REFERENCES = next(sys.getrefcount(array) for array in [np.empty(1)])
Tensors = dict[Group, torch.Tensor]
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class Arrays(Protocol):
    """Rows by group, in arrays that may be longer or in tensors on the device, and the row numbers."""

    arrays: dict[Group, np.ndarray]
    rows: Integers
    tensors: Tensors


Window = TypeVar("Window", bound=Arrays)


class DeviceTransfer:
    """Conversion of windows to tensors on a device.

    For a GPU, all copies and gathers run on one separate CUDA stream, whose order protects memory on the GPU from being
    overwritten before it is read. If this transfer `gathers`, blocks are copied once they are read, and windows are
    gathered from them on the GPU, except media. Other windows are gathered into pinned memory and copied, one window in
    advance. Windows are split into batches and expanded on the GPU.
    """

    def __init__(self, device: torch.device | None, *, gathers: bool = False) -> None:
        """Create the stream; only a GPU `gathers`."""
        self.device = device
        self._is_cuda = device is not None and device.type == "cuda"
        self.gathers = gathers and self._is_cuda
        self._stream = make_cuda_stream(device)

    @property
    def make_array(self) -> Callable[[Group, int], np.ndarray]:
        """Function that allocates the array of a group for a number of rows: pinned memory for a GPU."""
        return _allocate_pinned if self._is_cuda else Group.empty

    @property
    def make_block_array(self) -> Callable[[Group, int], np.ndarray]:
        """The same function for blocks, which are in pinned memory only if windows are gathered on a GPU."""
        return self.make_array if self.gathers else Group.empty

    @property
    def begin_thread(self) -> Callable[[], None] | None:
        """Function that each thread calls first, to select the GPU of the loader or caller; or None."""
        device = self.device if self._is_cuda else None
        if device is not None and device.index is not None:
            return partial(torch.cuda.set_device, device)
        current = current_gpu()
        return None if current is None else partial(torch.cuda.set_device, current)

    def move_windows(self, windows: Iterable[Window]) -> Iterator[tuple[Window, Tensors]]:
        """Yield each window with its tensors on the device, by group."""
        if self._stream is None:
            for window in windows:
                copies = {group: tensor.to(self.device) for group, tensor in _as_tensors(window).items()}
                yield window, window.tensors | copies
            return
        pending: tuple[Window, Tensors, Tensors, torch.Event] | None = None
        for window in windows:
            source = _as_tensors(window)
            copied, event = self._copy(source, self._stream)
            following = (window, source, window.tensors | copied, event)
            if pending is not None:
                yield self._wait_for_copy(pending)
            pending = following
        if pending is not None:
            yield self._wait_for_copy(pending)

    def mirror(self, arrays: Mapping[Group, np.ndarray]) -> Tensors:
        """Return memory on the device for arrays, except media."""
        with torch.cuda.stream(self._stream):
            return {
                group: torch.empty_like(torch.from_numpy(array), device=self.device)
                for group, array in arrays.items()
                if not group.stores_cells
            }

    def copy_rows(self, copies: Iterable[tuple[torch.Tensor, np.ndarray]]) -> None:
        """Copy arrays to tensors on the device, and wait."""
        with torch.cuda.stream(self._stream):
            for target, array in copies:
                target.copy_(torch.from_numpy(array), non_blocking=True)
        if self._stream is not None:
            self._stream.record_event().synchronize()

    def gather(self, tensors: Tensors, indices: Integers) -> Tensors:
        """Return rows of tensors on the device, for its stream."""
        with torch.cuda.stream(self._stream):
            index = to_device(indices, self.device)
            # torch indexes few of the unsigned types.
            return {
                group: rows.view(_SIGNED.get(rows.dtype, rows.dtype)).index_select(0, index).view(rows.dtype)
                for group, rows in tensors.items()
            }

    def wait(self) -> None:
        """Wait for the work in progress, whose memory is then free."""
        if self._stream is not None:
            self._stream.synchronize()

    def _copy(self, source: Tensors, stream: torch.cuda.Stream) -> tuple[Tensors, torch.Event]:
        """Start a copy on a stream; return tensors and its end as an event."""
        with torch.cuda.stream(stream):
            copied = {group: tensor.to(self.device, non_blocking=True) for group, tensor in source.items()}
            return copied, stream.record_event()

    def _wait_for_copy(self, pending: tuple[Window, Tensors, Tensors, torch.Event]) -> tuple[Window, Tensors]:
        """Return a window with its tensors once they are copied, for use on the current CUDA stream."""
        window, _, copied, event = pending
        # The source is referenced until here, because unreferenced memory is reused for another window.
        event.synchronize()
        current = torch.cuda.current_stream(self.device)
        for tensor in copied.values():
            tensor.record_stream(current)
        return window, copied


def _as_tensors(window: Arrays) -> Tensors:
    rows = len(window.rows)
    return {group: torch.from_numpy(array[:rows]) for group, array in window.arrays.items()}


def _allocate_pinned(group: Group, rows: int) -> np.ndarray:
    """Return an uninitialized array in pinned memory."""
    dtype = torch.from_numpy(group.empty(0)).dtype
    return torch.empty((rows, *group.row_shape), dtype=dtype, pin_memory=True).numpy()


def as_device(device: str | torch.device | None) -> torch.device | None:
    """Return the torch device with this name, or None for None; raise ConfigError for an unknown name."""
    try:
        return None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        hint = did_you_mean(device, ("cuda", "mps", "cpu"))
        message = f"device={device!r} is not a torch device.{hint} Devices are: cuda, cuda:1, mps, cpu"
        raise ConfigError(message) from error


def current_gpu() -> int | None:
    """Return the number of the current GPU of this thread, or None if torch has not initialized CUDA."""
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]


def make_cuda_stream(device: torch.device | None) -> torch.cuda.Stream | None:
    """Return a new CUDA stream of a GPU, None for other devices; raise ConfigError if torch cannot use the device."""
    try:
        if device is not None and device.type == "cuda":
            return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        torch.empty(0, device=device)
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        raise ConfigError(
            f'device="{device}" cannot be used here ({str(error).partition(chr(10))[0]}): omit device for batches on '
            "the CPU, or install a driver and a version of torch that support it"
        ) from error
    return None


def to_device(array: np.ndarray, device: torch.device | None) -> torch.Tensor:
    """Return an array as a tensor on a device, for None and CPU with the memory of the array; copies may be pending."""
    tensor = torch.from_numpy(array)
    if device is None or device.type != "cuda":
        return tensor if device is None else tensor.to(device)
    # A copy from memory that is not pinned waits for all pending work of the GPU.
    return tensor.pin_memory().to(device, non_blocking=True)
