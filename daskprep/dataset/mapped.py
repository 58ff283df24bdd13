"""Chunks of caches that stay mapped to memory."""

from __future__ import annotations

import threading
from typing import TypeAlias

import numpy as np

_MAPPED_BYTES = 1 << 29
_MOST_MAPPED = 1 << 12  # of the 65,530 mappings that Linux lets a process have

Stamp: TypeAlias = tuple[str, int, int]
"""Path, inode and time of a file: what tells it from one that takes its place."""


class MappedChunks:
    """Chunks that stay mapped from epoch to epoch: to touch new pages costs more than to copy them.

    They take no memory that the system could not have back. As many are kept as have room.
    """

    def __init__(self) -> None:
        self._chunks: dict[str, tuple[Stamp, np.ndarray]] = {}
        self._nbytes = 0
        self._lock = threading.Lock()

    def get(self, stamp: Stamp) -> np.ndarray | None:
        """Return a chunk, unless it is not there or another file has taken its place."""
        with self._lock:
            kept, chunk = self._chunks.get(stamp[0], (None, None))
            return chunk if kept == stamp else None

    def keep(self, stamp: Stamp, chunk: np.ndarray) -> None:
        """Keep a chunk, if there is room."""
        with self._lock:
            _, before = self._chunks.pop(stamp[0], (stamp, None))
            self._nbytes -= 0 if before is None else before.nbytes
            if len(self._chunks) < _MOST_MAPPED and self._nbytes + chunk.nbytes <= _MAPPED_BYTES:
                self._chunks[stamp[0]] = stamp, chunk
                self._nbytes += chunk.nbytes
