"""Shards: the chunks of a part of an array in one file, with Zarr's index at its end.

The checksums of the chunks precede the index; Zarr ignores bytes that its index does not list. The manifest has a
checksum of both, so that a chunk can be verified without reading the other chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from daskprep.errors import CorruptDatasetError
from daskprep.storage.checksum import CHECKSUM_BYTES, Buffer, byte_view, crc32c

_CHECKSUM_DTYPE, _NUMBER_DTYPE = np.dtype("<u4"), np.dtype("<u8")
_SLOT_BYTES = _CHECKSUM_DTYPE.itemsize + 2 * _NUMBER_DTYPE.itemsize
# Zarr's offset and size of an absent chunk: the last shard may have fewer chunks.
_ABSENT = (1 << 64) - 1


class Span(NamedTuple):
    """A range of bytes of a file, from `start` to `stop`, with a CRC-32C."""

    start: int
    stop: int
    crc32c: int


def tail_bytes(slots: int) -> int:
    """Return the number of bytes after the chunks of a shard, whose index has room for `slots` chunks."""
    return slots * _SLOT_BYTES + CHECKSUM_BYTES


def encode_shard(chunks: Sequence[bytes], slots: int) -> bytes:
    """Return a shard of encoded chunks, whose index has room for `slots` chunks, as all shards of an array."""
    checksums, index = np.zeros(slots, _CHECKSUM_DTYPE), np.full((slots, 2), _ABSENT, _NUMBER_DTYPE)
    sizes = list(map(len, chunks))
    index[: len(chunks)] = list(zip(accumulate(sizes[:-1], initial=0), sizes, strict=True))
    checksums[: len(chunks)] = [int.from_bytes(chunk[-CHECKSUM_BYTES:], "little") for chunk in chunks]
    seal = crc32c(index).to_bytes(CHECKSUM_BYTES, "little")
    return b"".join([*chunks, checksums.tobytes(), index.tobytes(), seal])


def chunk_spans(tail: Buffer, nbytes: int, checksum: int) -> list[Span]:
    """Return the spans of the chunks of a shard, each with the checksum that the chunk ends with.

    `tail` are the last `tail_bytes` bytes of the shard; `nbytes` and `checksum` are its size and checksum in the
    manifest. CorruptDatasetError if the checksums differ, or unless the chunks fill the shard before its tail in order.
    """
    view = byte_view(tail)
    sealed, seal = view[:-CHECKSUM_BYTES], int.from_bytes(view[-CHECKSUM_BYTES:], "little")
    slots = len(sealed) // _SLOT_BYTES
    index = sealed[slots * _CHECKSUM_DTYPE.itemsize :]
    if crc32c(sealed) != checksum or crc32c(index) != seal:
        raise CorruptDatasetError("the index of a shard does not match its checksum")
    numbers = np.frombuffer(index, _NUMBER_DTYPE).reshape(slots, 2).tolist()
    chunk_sizes = [size for _, size in numbers if size != _ABSENT]
    stops = list(accumulate(chunk_sizes, initial=0))
    expected = [[start, size] for start, size in zip(stops, chunk_sizes, strict=False)]
    absent = [[_ABSENT, _ABSENT]] * (slots - len(chunk_sizes))
    if numbers != expected + absent or stops[-1] != nbytes - len(view) or min(chunk_sizes, default=0) < CHECKSUM_BYTES:
        raise CorruptDatasetError("the index of a shard does not match its chunks")
    checksums = np.frombuffer(sealed, _CHECKSUM_DTYPE, len(chunk_sizes)).tolist()
    return [Span(*fields) for fields in zip(stops, stops[1:], checksums, strict=False)]
