"""Let processes of Dask keep the memory of arrays that are gone for those that come."""

from __future__ import annotations

import ctypes
import functools
import os
import sys

# Dask's nannies start workers with this threshold, above which glibc gives free memory back to the system, and no
# longer adapts by itself what it maps anew for every array.
_OF_DASK = "65536"
# Parameters of `mallopt` as glibc numbers them, M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, and bytes.
_KEEPING = ((-1, 1 << 28), (-3, 1 << 25))


@functools.cache
def keep_freed_memory() -> bool:
    """Undo what Dask's nannies set, once in this process, and tell whether it was set; other settings stay.

    Encoding spends a third of its time on memory that is had anew from the system otherwise.
    """
    if os.environ.get("MALLOC_TRIM_THRESHOLD_") != _OF_DASK or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and all(mallopt(parameter, size) for parameter, size in _KEEPING)
