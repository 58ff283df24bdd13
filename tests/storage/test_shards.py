"""Shards equal those of zarr, and every altered byte is detected in parts and in full."""

from __future__ import annotations

import struct
from itertools import accumulate
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, ShardingCodec
from zarr.storage import MemoryStore

from daskprep.errors import CorruptDatasetError
from daskprep.storage import Compression, FileEntry, Folder, Output
from daskprep.storage.arrays import chunk_name, chunk_spans, encode_chunk, encode_shard, group_metadata, tail_bytes
from daskprep.storage.checksum import crc32c
from daskprep.storage.reading import BlockLocation, BlockReader, chunk_span, read_block

BLOCK, SLOTS = 4, 3
NAME = "train/arrays.zarr/x/c.0.0"


def numbers(rows: int, output: Output) -> np.ndarray:
    values = np.random.default_rng(0).integers(0, 200, (rows, *output.shape))
    return values.astype(output.dtype)


def shards(rows: np.ndarray, compression: Compression) -> list[bytes]:
    chunks = [encode_chunk(rows[at : at + BLOCK], BLOCK, compression) for at in range(0, len(rows), BLOCK)]
    return [encode_shard(chunks[at : at + SLOTS], SLOTS) for at in range(0, len(chunks), SLOTS)]


@pytest.mark.parametrize("compression", get_args(Compression))
@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32", "bool"])
@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_zarr_reads_encoded_shards(tmp_path: Path, dtype: str, shape: tuple[int, ...], compression: Any) -> None:
    output, folder = Output("x", dtype, shape), Folder.open(tmp_path)
    rows = numbers(30, output)
    for name, content in group_metadata([output], len(rows), BLOCK, compression, SLOTS).items():
        folder.write(name, content)
    for number, shard in enumerate(shards(rows, compression)):
        folder.write(chunk_name(output, number), shard)
    array = zarr.open(tmp_path, mode="r")["x"]
    assert (array.shards, array.chunks) == ((BLOCK * SLOTS, *shape), (BLOCK, *shape))
    np.testing.assert_array_equal(array[:], rows)
    np.testing.assert_array_equal(array[5:14], rows[5:14])


@pytest.mark.parametrize("compression", get_args(Compression))
def test_metadata_equals_zarr(compression: Any) -> None:
    output, files = Output("x", "int32", (2, 3)), dict[str, Any]()
    inner: list[Any] = [BytesCodec(), Crc32cCodec()]
    if compression != "none":
        level = {"lz4": 5, "zstd": 1}[compression]
        inner.insert(1, BloscCodec(cname=compression, clevel=level, shuffle="shuffle", typesize=4))
    zarr.create_group(MemoryStore(store_dict=files)).create_array(
        "x",
        shape=(30, 2, 3),
        chunks=(BLOCK * SLOTS, 2, 3),
        dtype="int32",
        chunk_key_encoding={"name": "default", "separator": "."},
        serializer=ShardingCodec(chunk_shape=(BLOCK, 2, 3), codecs=inner),
        compressors=(),
        filters=(),
        fill_value=0,
        dimension_names=("row", "x_1", "x_2"),
    )
    made = group_metadata([output], 30, BLOCK, compression, SLOTS)
    assert made["x/zarr.json"] == files["x/zarr.json"].to_bytes()


@pytest.mark.parametrize("compression", get_args(Compression))
def test_every_altered_byte_raises(tmp_path: Path, compression: Any) -> None:
    output, folder = Output("x", "uint16", (2,)), Folder.open(tmp_path)
    rows = numbers(10, output)
    shard = shards(rows, compression)[0]
    entry = FileEntry.from_data(NAME, shard, 10, SLOTS)
    assert entry.matches(NAME, shard)
    reader = BlockReader(folder, output, BLOCK, compression)
    for position in range(len(shard)):
        altered = bytearray(shard)
        altered[position] ^= 1 << position % 8
        assert not entry.matches(NAME, altered)
        # Separate files, so that indexes of others are not cached.
        folder.write(f"{position}", altered)
        blocks = [BlockLocation(f"{position}", entry, BLOCK, chunk=chunk) for chunk in range(3)]
        with pytest.raises(CorruptDatasetError, match="was altered"):
            [read_block(reader, block) for block in blocks]


def test_swapped_chunks_raise(tmp_path: Path) -> None:
    output, folder = Output("x", "uint16", (2,)), Folder.open(tmp_path)
    rows = numbers(12, output)
    shard, turned = shards(rows, "none")[0], shards(rows[::-1].copy(), "none")[0]
    tail = tail_bytes(SLOTS)
    entry = FileEntry.from_data(NAME, shard, 12, SLOTS)
    folder.write("x", turned[:-tail] + shard[-tail:])
    assert not entry.matches(NAME, turned[:-tail] + shard[-tail:])
    for chunk in range(SLOTS):
        with pytest.raises(CorruptDatasetError, match="checksum differs from the manifest"):
            read_block(BlockReader(folder, output, BLOCK, "none"), BlockLocation("x", entry, BLOCK, chunk=chunk))


def sealed(slots: list[tuple[int, int]], checksums: list[int]) -> bytes:
    """Return the tail of a shard with valid checksums and any index."""
    index = b"".join(struct.pack("<2Q", *slot) for slot in slots)
    return struct.pack(f"<{len(checksums)}I", *checksums) + index + crc32c(index).to_bytes(4, "little")


NONE = (1 << 64) - 1


@pytest.mark.parametrize(
    "slots",
    [
        [(0, 60), (60, 41)],  # one byte too many
        [(0, 60), (60, 39)],
        [(0, 60), (61, 40)],  # a gap
        [(0, 60), (30, 40)],  # twice
        [(60, 40), (0, 60)],  # in another order
        [(0, 100), (NONE, 7)],
        [(NONE, NONE), (0, 100)],
        [(0, 97), (97, 3)],  # too short to be one
        [(0, 1 << 63), ((1 << 63), (1 << 63) + 100)],  # a sum that overflows
        [(NONE, NONE), (NONE, NONE)],
    ],
)
def test_inconsistent_index_raises(slots: list[tuple[int, int]]) -> None:
    tail = sealed(slots, [1, 2])
    with pytest.raises(CorruptDatasetError, match="does not match its chunks"):
        chunk_spans(tail, 100 + len(tail), crc32c(tail[:-4]))


def test_chunk_spans_match_chunks() -> None:
    chunks = [b"12345678", b"abcdef", b"0123456789"]
    shard = encode_shard(chunks, 5)
    spans = chunk_spans(shard[-tail_bytes(5) :], len(shard), FileEntry.from_data(NAME, shard, 1, 5).crc32c)
    assert [shard[span.start : span.stop] for span in spans] == chunks
    assert [span.stop for span in spans] == list(accumulate(map(len, chunks)))
    assert [span.crc32c for span in spans] == [int.from_bytes(chunk[-4:], "little") for chunk in chunks]


def test_missing_block_of_shard_raises(tmp_path: Path) -> None:
    folder, shard = Folder.open(tmp_path), shards(numbers(5, Output("x", "uint16", (2,))), "lz4")[0]
    folder.write("x", shard)
    with pytest.raises(CorruptDatasetError, match="was altered"):
        chunk_span(folder, BlockLocation("x", FileEntry.from_data(NAME, shard, 5, SLOTS), BLOCK, chunk=2))
