"""Devices without a GPU: transfers that take the place of the loader's, and CUDA's functions that they call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

from daskprep.dataset.loader import augment, loader
from daskprep.dataset.loader.groups import DeviceTransfer


@contextlib.contextmanager
def transferred_by(transfer: type[DeviceTransfer]) -> Iterator[None]:
    """Move the batches of loaders by a transfer, and augment images as on a device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "DeviceTransfer", transfer)
        patch.setattr(augment, "_is_array", lambda images: False)
        yield


@contextlib.contextmanager
def cuda(
    new_stream: Callable[[Any], object] = lambda device: object(),
    on_stream: Callable[[Any], AbstractContextManager[Any]] = contextlib.nullcontext,
    current: int | None = None,
) -> Iterator[list[Any]]:
    """Replace CUDA's streams, with `current` as the current GPU; return the GPUs that threads set."""
    used: list[Any] = []
    functions = {
        "Stream": new_stream,
        "stream": on_stream,
        "current_stream": lambda device: None,
        "set_device": used.append,
        "is_initialized": lambda: current is not None,
        "current_device": lambda: current,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, function in functions.items():
            patch.setattr(torch.cuda, name, function)
        patch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
        yield used
