"""Copy windows of batches to the device of the model, while the previous window is in use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from daskprep.errors import ConfigError, did_you_mean
from daskprep.loader.groups import Group

if TYPE_CHECKING:
    from daskprep.loader.pipeline import Window

Tensors = dict[Group, torch.Tensor]


class DeviceTransfer:
    """Conversion of windows to tensors on a device.

    For a GPU, windows are gathered into pinned memory and copied on a separate CUDA stream, one window in advance. They
    are split into batches and expanded on the GPU.
    """

    def __init__(self, device: torch.device | None) -> None:
        self.device = device
        self._is_cuda = device is not None and device.type == "cuda"

    @property
    def make_array(self) -> Callable[[Group, int], np.ndarray]:
        """Function that allocates the array of a group for a number of rows: pinned memory for a GPU."""
        return _allocate_pinned if self._is_cuda else Group.empty

    @property
    def begin_thread(self) -> Callable[[], None] | None:
        """Function that each thread calls first, or None: it selects the GPU, since threads may decode on one.

        The GPU is the loader's, or else the current GPU of the calling thread if torch has initialized CUDA.
        """
        device = self.device if self._is_cuda else None
        if device is not None and device.index is not None:
            return partial(torch.cuda.set_device, device)
        is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return partial(torch.cuda.set_device, torch.cuda.current_device()) if is_used else None

    def move_windows(self, windows: Iterable[Window]) -> Iterator[tuple[Window, Tensors]]:
        """Yield each window with its tensors on the device, by group; raise ConfigError for an unusable device."""
        stream = make_cuda_stream(self.device)
        if stream is None:
            for window in windows:
                yield window, {group: tensor.to(self.device) for group, tensor in _as_tensors(window).items()}
            return
        pending: tuple[Window, Tensors, Tensors, torch.Event] | None = None
        for window in windows:
            source = _as_tensors(window)
            following = (window, source, *self._copy(source, stream))
            if pending is not None:
                yield self._wait_for_copy(pending)
            pending = following
        if pending is not None:
            yield self._wait_for_copy(pending)

    def _copy(self, source: Tensors, stream: torch.cuda.Stream) -> tuple[Tensors, torch.Event]:
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


def _as_tensors(window: Window) -> Tensors:
    rows = len(window.rows)
    return {group: torch.from_numpy(array[:rows]) for group, array in window.arrays.items()}


def _allocate_pinned(group: Group, rows: int) -> np.ndarray:
    """Return an uninitialized array of `rows` rows of a group in pinned memory."""
    dtype = torch.from_numpy(group.empty(0)).dtype
    array: np.ndarray = torch.empty((rows, *group.row_shape), dtype=dtype, pin_memory=True).numpy()
    return array


def as_device(device: str | torch.device | None) -> torch.device | None:
    """Return the torch device with this name, or None for None; raise ConfigError for an unknown name."""
    try:
        return None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        hint = did_you_mean(device, ("cuda", "mps", "cpu"))
        message = f"device={device!r} is not a torch device.{hint} Devices are: cuda, cuda:1, mps, cpu"
        raise ConfigError(message) from error


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
