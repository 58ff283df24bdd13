"""Samples of the plainest sound files, read where they lie: opening a decoder would take several times as long."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

_INTEGERS, _FLOATS = 1, 3
_TYPES: dict[tuple[int, int], np.dtype[Any]] = {(_INTEGERS, 16): np.dtype("<i2"), (_FLOATS, 32): np.dtype("<f4")}
_FORM = struct.Struct("<HHIIHH")


def plain_samples(data: memoryview) -> tuple[npt.NDArray[Any], int] | None:
    """Return samples (frames, channels), not copied, and how many make a second; None of anything but a plain WAV file.

    Plain are integers of 16 bits and floats of 32 whose header tells the length that the file has.

    Examples
    --------
    >>> import numpy as np
    >>> from daskprep.media.audio import encode_wav
    >>> plain_samples(memoryview(encode_wav(np.array([[1, 2], [3, 4], [5, 6]], np.int16), 8_000)))
    (array([[1, 2],
           [3, 4],
           [5, 6]], dtype=int16), 8000)
    """
    if bytes(data[:4]) != b"RIFF" or bytes(data[8:12]) != b"WAVE":
        return None
    form: tuple[int, ...] | None = None
    for name, content in _chunks(data):
        if name == b"fmt " and len(content) >= _FORM.size:
            form = _FORM.unpack_from(content)
        elif name == b"data" and form is not None:
            kind, channels, rate, _, frame_bytes, bits = form
            dtype = _TYPES.get((kind, bits))
            # Of a file that was never closed, the header tells of no samples.
            if (
                dtype is None
                or not content.nbytes
                or not channels
                or frame_bytes != channels * dtype.itemsize
                or len(content) % frame_bytes
            ):
                return None
            return np.frombuffer(content, dtype).reshape(-1, channels), rate
    return None


def _chunks(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Give name and content of the chunks that are whole."""
    at = 12
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        content = data[at + 8 : at + 8 + size]
        if len(content) < size:
            return
        yield bytes(data[at : at + 4]), content
        at += 8 + size + size % 2
