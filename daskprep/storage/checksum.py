"""Views of the bytes of buffers, and checksums."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
from typing import Any, TypeAlias

import google_crc32c
import numpy as np
import pyarrow as pa

CHECKSUM_BYTES = 4

try:  # ctypes releases the GIL; google_crc32c keeps it, even while pages of a mapped file are read
    _extend: Any = ctypes.CDLL(importlib.import_module("google_crc32c._crc32c").__file__).crc32c_extend
    _extend.argtypes, _extend.restype = [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t], ctypes.c_uint32
except (ImportError, OSError, AttributeError):  # built without C, or the function is not exported
    _extend = None

Buffer: TypeAlias = "bytes | bytearray | memoryview | np.ndarray[Any, Any] | pa.Buffer"


def byte_view(buffer: Buffer) -> memoryview:
    """Return a view of the bytes of a C-contiguous buffer."""
    view = memoryview(buffer)  # type: ignore[arg-type]  # mypy accepts arrays as buffers from Python 3.12 on
    # A view with a 0 in its shape cannot be cast.
    return view.cast("B") if view.nbytes else memoryview(b"")


def json_sha256(value: object) -> str:
    """Return the SHA-256 of a JSON value as hexadecimal digits."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":")).encode()
    ).hexdigest()


def crc32c(*buffers: Buffer, start: int = 0) -> int:
    """Return the CRC-32C of buffers after bytes with CRC `start`."""
    checksum = start
    for buffer in buffers:
        # google_crc32c rejects writable memoryviews, but accepts writable arrays.
        data = np.frombuffer(byte_view(buffer), np.uint8)
        checksum = _extend(checksum, data.ctypes.data, len(data)) if _extend else google_crc32c.extend(checksum, data)
    return checksum
