"""Blocks of rows as chunks of Zarr arrays, alone or in shards, and the JSON metadata of the arrays."""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

import numpy as np
from numcodecs import blosc

from daskprep.errors import CorruptDatasetError
from daskprep.rows.typed import Amount, read_fields
from daskprep.storage.checkpoint import checkpointable
from daskprep.storage.checksum import CHECKSUM_BYTES, Buffer, byte_view, crc32c
from daskprep.storage.files import Folder
from daskprep.storage.retries import enable_filesystem_retries

if TYPE_CHECKING:
    import zarr

Compression: TypeAlias = Literal["lz4", "zstd", "none"]

# The threads of Blosc share a state that neither other threads nor a forked process can use; zarr disables them, too.
blosc.use_threads = False

# Level 5 of zstd saves less than a tenth of the bytes of level 1, and takes over five times as long.
_LEVELS = {"lz4": 5, "zstd": 1}
_SHUFFLES = {"noshuffle": blosc.NOSHUFFLE, "shuffle": blosc.SHUFFLE}
# Versions, flags, item size; number of bytes: decompressed, of an inner block, compressed.
_BLOSC_HEADER = struct.Struct("<4B3I")
HEADER_BYTES = _BLOSC_HEADER.size
_PLAIN_NAME = re.compile(r"(?!\.|__)[A-Za-z0-9_.-]+")
_MAX_NAME_LENGTH = 200  # file systems allow 255 bytes
# NumPy supports 64 axes, xarray and torch fewer. Not counted: the axis of the rows.
_MAX_AXES = 31
MAX_CHUNK_BYTES = (1 << 31) - 1024  # Blosc counts bytes in signed 32-bit numbers, and its header takes a few
_CHECKSUM_DTYPE, _NUMBER_DTYPE = np.dtype("<u4"), np.dtype("<u8")
_SLOT_BYTES = _CHECKSUM_DTYPE.itemsize + 2 * _NUMBER_DTYPE.itemsize
_ABSENT = (1 << 64) - 1  # Zarr's offset and size of an absent chunk: the last shard may have fewer chunks


@checkpointable
@dataclass(frozen=True)
class Output:
    """An encoded output of a dataset: a named array of numbers."""

    name: str
    dtype: str  # of media, after decoding
    shape: tuple[Amount, ...] = ()  # of one row, () for a scalar
    # The mean bytes of a stored path or file, for media that the loader decodes; None if numbers are stored.
    cell_bytes: Amount | None = None

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def stored_bytes(self) -> int:
        """Bytes of a row in a part, before compression."""
        return self.row_bytes if self.cell_bytes is None else self.cell_bytes

    @property
    def is_scalar(self) -> bool:
        return not self.shape

    @property
    def stores_cells(self) -> bool:
        """Whether encoded media are stored, for the loader to decode."""
        return self.cell_bytes is not None

    def empty(self, rows: int) -> np.ndarray:
        return np.empty((rows, *self.shape), self.dtype)

    def to_dict(self) -> dict[str, Any]:
        cells = {"cell_bytes": self.cell_bytes} if self.stores_cells else {}
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape), **cells}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Output:
        """Return the output that `to_dict` described; ValueError or TypeError if invalid."""
        output = cls(**read_fields(cls, state))
        dtype = np.dtype(output.dtype)
        is_valid = dtype.kind in "biuf" and len(output.shape) <= _MAX_AXES and output.row_bytes <= MAX_CHUNK_BYTES
        if not is_valid or (output.is_scalar and output.stores_cells):
            raise ValueError(f'output "{output.name}": rows of type {output.dtype} and shape {output.shape}')
        return replace(output, dtype=dtype.name)


ROW_ID = Output("row_id", "int64", ())
"""The first column of every table: the number of each row in the source."""


def encode_chunk(rows: np.ndarray, block_rows: int, compression: Compression) -> bytes:
    """Return rows as a chunk, padded with zeros to `block_rows`."""
    return b"".join(encode_chunk_buffers(rows, block_rows, compression))


def encode_chunk_buffers(
    rows: np.ndarray, block_rows: int, compression: Compression
) -> tuple[bytes | memoryview, bytes | memoryview]:
    """Return rows, padded with zeros, as one chunk: its data and its CRC-32C."""
    shape = chunk_shape(rows.shape[1:], block_rows)
    if rows.shape == shape:
        block = np.ascontiguousarray(rows)
    else:
        block = np.zeros(shape, rows.dtype)
        if rows.size:
            block[: len(rows)] = rows
    block = block.astype(block.dtype.newbyteorder("<"), copy=False)
    if compression == "none":
        data = byte_view(block)
    else:
        shuffle = _SHUFFLES[_choose_shuffle(block.dtype)]
        # Blosc takes the item size from the array.
        data = blosc.compress(block.reshape(-1), compression.encode(), _LEVELS[compression], shuffle)
    return data, crc32c(data).to_bytes(CHECKSUM_BYTES, "little")


def decode_chunk(
    data: Buffer, output: Output, block_rows: int, compression: Compression, out: np.ndarray | None = None
) -> np.ndarray:
    """Return all `block_rows` rows of a chunk, in `out` if it fits; CorruptDatasetError if altered."""
    view = byte_view(data)
    if len(view) < CHECKSUM_BYTES:
        raise CorruptDatasetError(f'output "{output.name}": a chunk of {len(view)} bytes is too short to be one')
    payload = view[:-CHECKSUM_BYTES]
    if crc32c(payload).to_bytes(CHECKSUM_BYTES, "little") != bytes(view[-CHECKSUM_BYTES:]):
        raise CorruptDatasetError(
            f'output "{output.name}": a chunk was altered, by its checksum: write the dataset again'
        )
    shape = chunk_shape(output.shape, block_rows)
    fits = out is not None and out.shape == shape and out.dtype == output.dtype
    block = out if out is not None and fits else np.empty(shape, output.dtype)
    if compression == "none":
        _check_size(output, len(payload), block.nbytes)
        byte_view(block)[:] = payload
    else:
        check_header(payload[:HEADER_BYTES], len(payload), block.nbytes, output)
        try:
            blosc.decompress(payload, block)
        except (RuntimeError, ValueError) as error:
            raise CorruptDatasetError(f'output "{output.name}": a chunk cannot be decompressed: {error}') from error
    return block[(slice(None), *map(slice, output.shape))]


def check_header(header: Buffer, stored_bytes: int, block_bytes: int, output: Output) -> None:
    """Raise CorruptDatasetError for wrong sizes, by which Blosc would write outside its buffers."""
    view = byte_view(header)
    sizes = _BLOSC_HEADER.unpack_from(view) if len(view) >= HEADER_BYTES else (0,) * 7
    _check_size(output, sizes[6], stored_bytes)
    _check_size(output, sizes[4], block_bytes)


def _check_size(output: Output, actual_bytes: int, expected_bytes: int) -> None:
    """Raise CorruptDatasetError for another size."""
    if actual_bytes != expected_bytes:
        raise CorruptDatasetError(
            f'output "{output.name}": a chunk has {actual_bytes:,} bytes instead of {expected_bytes:,}: it was altered'
        )


def group_metadata(
    outputs: Iterable[Output], rows: int, block_rows: int, compression: Compression, shard_blocks: int | None = None
) -> dict[str, bytes]:
    """Return the JSON files of a Zarr group by name.

    With `shard_blocks`, a file has the chunks of that number of blocks. The bytes are those that zarr writes, whose
    import takes a quarter of a second.
    """
    arrays = {
        folder_name(output.name): _array_metadata(output, rows, block_rows, compression, shard_blocks)
        for output in outputs
    }
    # A copy of the metadata of all arrays: it saves requests to object stores, and xarray warns if it is missing.
    metadata = {name: arrays[name] for name in sorted(arrays, key=str.casefold)}
    consolidated = {"kind": "inline", "must_understand": False, "metadata": metadata}
    group = {"attributes": {}, "zarr_format": 3, "consolidated_metadata": consolidated, "node_type": "group"}
    files = {"zarr.json": group, **{f"{folder}/zarr.json": array for folder, array in arrays.items()}}
    return {name: json.dumps(files[name], indent=2).encode() for name in sorted(files)}


def _array_metadata(
    output: Output, rows: int, block_rows: int, compression: Compression, shard_blocks: int | None
) -> dict[str, Any]:
    """Return the metadata of a Zarr array, in zarr's own order."""
    dtype = np.dtype(output.dtype)
    one_byte = dtype.itemsize == 1
    codecs: list[dict[str, Any]] = [
        {"name": "bytes"} if one_byte else {"name": "bytes", "configuration": {"endian": "little"}}
    ]
    if compression != "none":
        blosc_options = {
            "typesize": dtype.itemsize,
            "cname": compression,
            "clevel": _LEVELS[compression],
            "shuffle": _choose_shuffle(dtype),
            "blocksize": 0,
        }
        codecs.append({"name": "blosc", "configuration": blosc_options})
    codecs.append({"name": "crc32c"})
    shape = list(chunk_shape(output.shape, block_rows))
    if shard_blocks is not None:
        sharding = {
            "chunk_shape": shape,
            "codecs": codecs,
            "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
            "index_location": "end",
        }
        codecs = [{"name": "sharding_indexed", "configuration": sharding}]
        shape = [shard_blocks * block_rows, *shape[1:]]
    return {
        "shape": [rows, *output.shape],
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}},
        # With the default separator "/", each chunk would have its own folder.
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": dtype.type(0).item(),
        "codecs": codecs,
        "attributes": {} if folder_name(output.name) == output.name else {"output": output.name},
        "dimension_names": ["row", *(f"{output.name}_{axis}" for axis in range(1, len(output.shape) + 1))],
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }


def chunk_name(output: Output, number: int) -> str:
    """Return a chunk's or shard's name within the Zarr group."""
    return f"{folder_name(output.name)}/{'.'.join(['c', str(number), *('0' for _ in output.shape)])}"


def is_chunk(name: str) -> bool:
    """Return whether a file is a chunk, or a shard of chunks."""
    return "/arrays.zarr/" in name and not name.endswith("/zarr.json")


def folder_name(name: str) -> str:
    """Return the unique folder of an output, quoted unless safe."""
    if _PLAIN_NAME.fullmatch(name) and name != "zarr.json" and len(name) <= _MAX_NAME_LENGTH:
        return name
    # `quote` returns "%" only before two digits, so never "%~" or a single "%".
    quoted = quote(name, safe="", errors="surrogatepass") or "%"
    if quoted[0] == "." or quoted.startswith("__") or quoted == "zarr.json":
        quoted = f"%{ord(quoted[0]):02X}{quoted[1:]}"
    if len(quoted) <= _MAX_NAME_LENGTH:
        return quoted
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{quoted[: _MAX_NAME_LENGTH - 18]}%~{digest[:16]}"


def open_group(folder: Folder) -> zarr.Group:
    """Return the Zarr group in a folder, read-only."""
    import zarr  # noqa: PLC0415 slow to import
    from zarr.storage import FsspecStore, LocalStore  # noqa: PLC0415

    if folder.is_local:
        return zarr.open_group(LocalStore(folder.path, read_only=True), mode="r")
    mapper = enable_filesystem_retries(folder.filesystem).get_mapper(folder.path)
    return zarr.open_group(FsspecStore.from_mapper(mapper, read_only=True), mode="r")


def _choose_shuffle(dtype: np.dtype[Any]) -> Literal["shuffle", "noshuffle"]:
    # Shuffling integers of one or two bytes and floats saves about an eighth of the bytes, but they are decompressed at
    # a half to a third of the speed. Larger integers shrink to half.
    return "shuffle" if dtype.kind in "iu" and dtype.itemsize > 2 else "noshuffle"


def chunk_shape(row_shape: tuple[int, ...], block_rows: int) -> tuple[int, ...]:
    # Zarr has no chunks without numbers; but rows may have none, as sets that are all empty.
    """Return the shape of the chunks of an array."""
    return (block_rows, *(max(1, size) for size in row_shape))


class Span(NamedTuple):
    """A range of bytes of a file, with a CRC-32C."""

    start: int
    stop: int
    crc32c: int


def tail_bytes(slots: int) -> int:
    """Return how many bytes follow the chunks of a shard."""
    return slots * _SLOT_BYTES + CHECKSUM_BYTES


def encode_shard(chunks: Sequence[bytes], slots: int) -> bytes:
    """Return a shard: chunks, each with its CRC-32C, then their checksums, and an index with room for `slots`."""
    checksums, index = np.zeros(slots, _CHECKSUM_DTYPE), np.full((slots, 2), _ABSENT, _NUMBER_DTYPE)
    sizes = list(map(len, chunks))
    index[: len(chunks)] = list(zip(accumulate(sizes[:-1], initial=0), sizes, strict=True))
    checksums[: len(chunks)] = [int.from_bytes(chunk[-CHECKSUM_BYTES:], "little") for chunk in chunks]
    seal = crc32c(index).to_bytes(CHECKSUM_BYTES, "little")
    return b"".join([*chunks, checksums.tobytes(), index.tobytes(), seal])


def chunk_spans(tail: Buffer, nbytes: int, checksum: int) -> list[Span]:
    """Return the span of each chunk of a shard, with the checksum that ends the chunk.

    `tail` are the last `tail_bytes` bytes: the checksums of all chunks, the index, and its checksum. `nbytes` and
    `checksum`, from the manifest, are the size of the shard and the checksum of the tail before its end.
    CorruptDatasetError if they differ.
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
