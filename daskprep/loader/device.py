"""Put windows of batches where the model is, while the window before is worked on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np
import torch

from daskprep.errors import ConfigError, did_you_mean
from daskprep.loader.groups import Group
from daskprep.loader.pipeline import Window

_DEVICES = ("cuda", "mps", "cpu")
Tensors = dict[Group, torch.Tensor]


class DeviceTransfer:
    """Turns windows into tensors on a device.

    On a GPU, windows are gathered into pinned memory and copied on a stream of their own, one window ahead; what is
    cut from them and expanded is then already there.
    """

    def __init__(self, device: torch.device | None) -> None:
        self.device = device
        self._is_cuda = device is not None and device.type == "cuda"

    @property
    def make_array(self) -> Callable[[Group, int], np.ndarray]:
        """What makes the arrays that windows are gathered into."""
        return _allocate_pinned if self._is_cuda else Group.empty

    @property
    def begin_thread(self) -> Callable[[], None] | None:
        """What threads do first: use the GPU of the loader, or the current one of this thread, as it may decode."""
        device = self.device if self._is_cuda else None
        if device is not None and device.index is not None:
            return partial(torch.cuda.set_device, device)
        is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return partial(torch.cuda.set_device, torch.cuda.current_device()) if is_used else None

    def move_windows(self, windows: Iterable[Window]) -> Iterator[tuple[Window, Tensors]]:
        """Give each window with its tensors on the device."""
        stream = make_cuda_stream(self.device)
        if stream is None:
            for window in windows:
                yield window, {group: tensor.to(self.device) for group, tensor in _as_tensors(window).items()}
            return
        ahead: tuple[Window, Tensors, Tensors, torch.Event] | None = None
        for window in windows:
            source = _as_tensors(window)
            following = (window, source, *self._copy(source, stream))
            if ahead is not None:
                yield self._wait_for_copy(ahead)
            ahead = following
        if ahead is not None:
            yield self._wait_for_copy(ahead)

    def _copy(self, source: Tensors, stream: torch.cuda.Stream) -> tuple[Tensors, torch.Event]:
        with torch.cuda.stream(stream):
            copied = {group: tensor.to(self.device, non_blocking=True) for group, tensor in source.items()}
            return copied, stream.record_event()

    def _wait_for_copy(self, ahead: tuple[Window, Tensors, Tensors, torch.Event]) -> tuple[Window, Tensors]:
        window, _, copied, event = ahead
        # The source is held until here: its memory is gathered into again once nobody holds it.
        event.synchronize()
        current = torch.cuda.current_stream(self.device)
        for tensor in copied.values():
            tensor.record_stream(current)
        return window, copied


def _as_tensors(window: Window) -> Tensors:
    rows = len(window.rows)
    return {group: torch.from_numpy(array[:rows]) for group, array in window.arrays.items()}


def _allocate_pinned(group: Group, rows: int) -> np.ndarray:
    template = group.empty(0)
    array: np.ndarray = torch.empty(
        (rows, *group.row_shape), dtype=torch.from_numpy(template).dtype, pin_memory=True
    ).numpy()
    return array


def as_device(device: str | torch.device | None) -> torch.device | None:
    """Return a device of torch; ConfigError if there is none of that name."""
    try:
        return None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        hint = did_you_mean(device, _DEVICES)
        raise ConfigError(
            f"device={device!r} is not a torch device.{hint} Devices are: cuda, cuda:1, mps, cpu"
        ) from error


def make_cuda_stream(device: torch.device | None) -> torch.cuda.Stream | None:
    """Return a stream of a GPU, None for other devices; ConfigError for a device that torch cannot use here."""
    try:
        if device is not None and device.type == "cuda":
            return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        torch.empty(0, device=device)
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        raise ConfigError(
            f'device="{device}" cannot be used here ({str(error).partition(chr(10))[0]}): leave device out for batches '
            "on the CPU, or install torch and a driver for it"
        ) from error
    return None


def to_device(array: np.ndarray, device: torch.device | None) -> torch.Tensor:
    """Return an array as a tensor on a device; None for where it is."""
    tensor = torch.from_numpy(array)
    if device is None or device.type != "cuda":
        return tensor if device is None else tensor.to(device)
    # From memory that is not pinned, a copy waits for all that the GPU has yet to do.
    return tensor.pin_memory().to(device, non_blocking=True)
