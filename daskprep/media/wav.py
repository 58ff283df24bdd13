"""Reader of plain WAV files without a decoder or a copy: libsndfile would take several times as long."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

_PCM, _IEEE_FLOAT = 1, 3
_DTYPES: dict[tuple[int, int], np.dtype[Any]] = {(_PCM, 16): np.dtype("<i2"), (_IEEE_FLOAT, 32): np.dtype("<f4")}
_FORMAT_STRUCT = struct.Struct("<HHIIHH")


def read_plain_wav(data: memoryview) -> tuple[npt.NDArray[Any], int] | None:
    """Return a view of the samples (frames, channels) and the sampling rate; None for other than plain WAV files.

    Plain files have 16-bit integers or 32-bit floats, and a header with the actual length.

    Examples
    --------
    >>> import numpy as np
    >>> from daskprep.media.audio import encode_wav
    >>> read_plain_wav(memoryview(encode_wav(np.array([[1, 2], [3, 4], [5, 6]], np.int16), 8_000)))
    (array([[1, 2],
           [3, 4],
           [5, 6]], dtype=int16), 8000)
    """
    if bytes(data[:4]) != b"RIFF" or bytes(data[8:12]) != b"WAVE":
        return None
    format_fields: tuple[int, ...] | None = None
    for name, content in _iterate_chunks(data):
        if name == b"fmt " and len(content) >= _FORMAT_STRUCT.size:
            format_fields = _FORMAT_STRUCT.unpack_from(content)
        elif name == b"data" and format_fields is not None:
            format_tag, channels, rate, _, frame_bytes, bits = format_fields
            dtype = _DTYPES.get((format_tag, bits))
            # The header of a file that was never closed states no samples, although the file may have some.
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


def _iterate_chunks(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yield name and content of each complete chunk of a RIFF file."""
    offset = 12
    while offset + 8 <= len(data):
        size = int.from_bytes(data[offset + 4 : offset + 8], "little")
        content = data[offset + 8 : offset + 8 + size]
        if len(content) < size:
            return
        yield bytes(data[offset : offset + 4]), content
        offset += 8 + size + size % 2
