"""Chunks equal those of zarr, and every altered byte is detected."""

from __future__ import annotations

import json
import struct
import uuid
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec
from zarr.storage import MemoryStore

from daskprep.errors import CorruptDatasetError
from daskprep.storage import Compression, Folder, Output
from daskprep.storage.arrays import (
    chunk_name,
    decode_chunk,
    encode_chunk,
    folder_name,
    group_metadata,
    is_chunk,
    open_group,
)
from daskprep.storage.checksum import crc32c

BLOCK = 4


def numbers(rows: int, output: Output, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).integers(0, 200, (rows, *output.shape))
    return values.astype(output.dtype)


def write(folder: Folder, output: Output, rows: np.ndarray, compression: Compression) -> None:
    for name, content in group_metadata([output], len(rows), BLOCK, compression).items():
        folder.write(name, content)
    for block in range(-(-len(rows) // BLOCK)):
        chunk = encode_chunk(rows[block * BLOCK : (block + 1) * BLOCK], BLOCK, compression)
        folder.write(chunk_name(output, block), chunk)


@pytest.mark.parametrize("compression", get_args(Compression))
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int32", "float32", "bool", "float16", "int64"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4)])
def test_zarr_reads_encoded_chunks(
    tmp_path: Path, dtype: str, shape: tuple[int, ...], compression: Compression
) -> None:
    output = Output("pixels", dtype, shape)
    rows = numbers(10, output)
    write(Folder.open(tmp_path), output, rows, compression)
    array = zarr.open(tmp_path, mode="r")["pixels"]
    assert (array.shape, array.chunks, array.dtype) == (rows.shape, (BLOCK, *shape), rows.dtype)
    np.testing.assert_array_equal(array[:], rows)


@pytest.mark.parametrize("compression", get_args(Compression))
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_chunks_written_by_zarr_are_decoded(tmp_path: Path, shape: tuple[int, ...], compression: Compression) -> None:
    output, folder = Output("x", "uint16", shape), Folder.open(tmp_path)
    rows = numbers(6, output) + 1
    for name, content in group_metadata([output], 6, BLOCK, compression).items():
        folder.write(name, content)
    zarr.open(tmp_path, mode="r+")["x"][:] = rows
    blocks = [decode_chunk(folder.read_buffer(chunk_name(output, b)), output, BLOCK, compression) for b in (0, 1)]
    np.testing.assert_array_equal(np.concatenate(blocks)[:6], rows)
    assert not blocks[1][2:].any()


@given(st.data())
def test_encode_chunk_round_trips(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 3), max_size=3)))
    output = Output("x", data.draw(st.sampled_from(["uint8", "uint16", "int32", "float32"])), shape)
    compression, count = data.draw(st.sampled_from(get_args(Compression))), data.draw(st.integers(0, BLOCK))
    rows = numbers(count, output, data.draw(st.integers(0, 9)))
    block = decode_chunk(encode_chunk(rows, BLOCK, compression), output, BLOCK, compression)
    assert (block.shape, block.dtype) == ((BLOCK, *shape), rows.dtype)
    np.testing.assert_array_equal(block[:count], rows)
    assert not block[count:].any()


def test_chunk_does_not_depend_on_memory_order() -> None:
    rows = numbers(BLOCK, Output("x", "uint16", (3,)))
    before = rows.copy()
    chunks = {
        encode_chunk(variant, BLOCK, "lz4")
        for variant in (rows, np.asfortranarray(rows), np.repeat(rows, 2, 0)[::2], rows.astype(">u2"))
    }
    assert len(chunks) == 1
    np.testing.assert_array_equal(rows, before)


def test_decode_chunk_into_out() -> None:
    output = Output("x", "uint16", (3,))
    rows, out = numbers(BLOCK, output), output.empty(BLOCK)
    for compression in get_args(Compression):
        out[:] = 9
        block = decode_chunk(encode_chunk(rows, BLOCK, compression), output, BLOCK, compression, out)
        assert np.shares_memory(block, out)
        np.testing.assert_array_equal(out, rows)


@pytest.mark.parametrize("compression", get_args(Compression))
def test_every_altered_byte_raises(compression: Compression) -> None:
    output = Output("review", "uint16", (3,))
    chunk = encode_chunk(numbers(BLOCK, output), BLOCK, compression)
    for position in range(len(chunk)):
        altered = bytearray(chunk)
        altered[position] ^= 1 << position % 8
        with pytest.raises(CorruptDatasetError, match='output "review": a chunk was altered, by its checksum'):
            decode_chunk(altered, output, BLOCK, compression)


@pytest.mark.parametrize("compression", get_args(Compression))
def test_truncated_chunk_raises(compression: Compression) -> None:
    output = Output("x", "uint16", (3,))
    chunk = encode_chunk(numbers(BLOCK, output), BLOCK, compression)
    for length in range(len(chunk)):
        with pytest.raises(CorruptDatasetError, match='output "x"'):
            decode_chunk(chunk[:length], output, BLOCK, compression)


def sealed(content: bytes) -> bytes:
    return content + crc32c(content).to_bytes(4, "little")


@pytest.mark.parametrize("compression", get_args(Compression))
def test_chunk_of_other_shape_raises(compression: Compression) -> None:
    chunk = encode_chunk(np.zeros((BLOCK, 2), "uint16"), BLOCK, compression)
    for shape in ((1,), (3,), (200,)):
        with pytest.raises(CorruptDatasetError, match="bytes instead of .*: it was altered"):
            decode_chunk(chunk, Output("x", "uint16", shape), BLOCK, compression)


@pytest.mark.parametrize("position", [0, 4, 8, 12])
def test_inconsistent_header_raises(position: int) -> None:
    output = Output("x", "uint16", (300,))
    content = bytearray(encode_chunk(np.zeros((BLOCK, 300), "uint16"), BLOCK, "lz4")[:-4])
    struct.pack_into("<I", content, position, 0x7FFFFFF0)
    with pytest.raises(CorruptDatasetError, match=r"a chunk has .* bytes instead of|cannot be decompressed"):
        decode_chunk(sealed(bytes(content)), output, BLOCK, "lz4")
    with pytest.raises(CorruptDatasetError, match="a chunk has .* bytes instead of"):
        decode_chunk(sealed(b"short"), output, BLOCK, "lz4")


def test_chunks_are_encoded_and_decoded_in_threads() -> None:
    output = Output("x", "uint16", (64,))
    blocks = [numbers(2000, output, seed) for seed in range(8)]
    alone = [encode_chunk(block, 2000, "lz4") for block in blocks]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda block: encode_chunk(block, 2000, "lz4"), blocks * 4))
        decoded = list(pool.map(lambda chunk: decode_chunk(chunk, output, 2000, "lz4"), together))
    assert together == alone * 4
    np.testing.assert_array_equal(decoded, blocks * 4)


def test_array_without_rows(tmp_path: Path) -> None:
    write(Folder.open(tmp_path), Output("x", "int32", (3,)), np.empty((0, 3), "int32"), "lz4")
    assert zarr.open(tmp_path, mode="r")["x"][:].shape == (0, 3)


def test_array_of_zero_width(tmp_path: Path) -> None:
    write(Folder.open(tmp_path), Output("tags", "uint8", (0,)), np.empty((5, 0), "uint8"), "lz4")
    assert zarr.open(tmp_path, mode="r")["tags"][:].shape == (5, 0)


def test_metadata_is_deterministic_and_names_dimensions() -> None:
    outputs = [Output("a/b", "uint16", (2, 3)), Output("a", "int32", (1,))]
    first, second = (group_metadata(outputs, 10, BLOCK, "lz4") for _ in range(2))
    assert first == second
    assert list(first) == ["a%2Fb/zarr.json", "a/zarr.json", "zarr.json"]
    array = json.loads(first["a%2Fb/zarr.json"])
    assert array["dimension_names"] == ["row", "a/b_1", "a/b_2"]
    assert array["attributes"] == {"output": "a/b"}
    assert [codec["name"] for codec in array["codecs"]] == ["bytes", "blosc", "crc32c"]
    assert array["codecs"][1]["configuration"]["shuffle"] == "noshuffle"
    assert json.loads(first["a/zarr.json"])["codecs"][1]["configuration"]["shuffle"] == "shuffle"


ODD = [
    "",
    ".",
    "..",
    ".a",
    "a/b",
    "a%2Fb",
    "__a",
    "zarr.json",
    "c",
    "ä",
    "%",
    "%2E",
    "a b",
    "x" * 300,
    "y" * 201,
    "\ud800",
]


def test_odd_names_have_distinct_folders() -> None:
    names = {name: folder_name(name) for name in [*ODD, "ü" * 60, "ü" * 60 + "x"]}
    assert len(set(names.values())) == len(names)
    for folder in names.values():
        assert 0 < len(folder) <= 200
        assert "/" not in folder
        assert not folder.startswith((".", "__"))
    assert [folder_name(name) for name in ("text", "a.b-c_1", "_x", "c")] == ["text", "a.b-c_1", "_x", "c"]


@given(st.text(max_size=5), st.text(max_size=5))
def test_folder_names_are_unique(one: str, other: str) -> None:
    assert (folder_name(one) == folder_name(other)) == (one == other)


@pytest.mark.parametrize("where", ["local", "memory"])
def test_group_is_read_only(tmp_path: Path, where: str) -> None:
    folder = Folder.open(tmp_path / "g" if where == "local" else f"memory://{uuid.uuid4().hex}/g")
    outputs = [Output(name, "uint16", (2,)) for name in ODD if name != "\ud800"]
    for name, content in group_metadata(outputs, 3, BLOCK, "lz4").items():
        folder.write(name, content)
    rows = numbers(3, outputs[0])
    folder.write(chunk_name(outputs[0], 0), encode_chunk(rows, BLOCK, "lz4"))
    group = open_group(folder)
    assert set(group) == {folder_name(output.name) for output in outputs}
    np.testing.assert_array_equal(group[folder_name("")][:], rows)
    with pytest.raises(ValueError, match="read"):
        group[folder_name("")][:] = 0
    folder.remove_all()


def test_is_chunk() -> None:
    assert chunk_name(Output("x", "uint8", (3, 4)), 12) == "x/c.12.0.0"
    assert is_chunk("train/arrays.zarr/x/c.12.0.0")
    assert not is_chunk("train/arrays.zarr/x/zarr.json")
    assert not is_chunk("train/table/part-00000.parquet")


def test_output_round_trips_as_dict() -> None:
    output = Output("x", "uint16", (2, 3))
    assert Output.from_dict(json.loads(json.dumps(output.to_dict()))) == output
    assert (output.row_bytes, output.is_scalar, output.empty(5).shape) == (12, False, (5, 2, 3))
    assert (Output("y", "float32").row_bytes, Output("y", "float32").is_scalar) == (4, True)
    assert Output("z", "int64", (0,)).row_bytes == 0


def made_by_zarr(outputs: list[Output], rows: int, block_rows: int, compression: Any) -> dict[str, bytes]:
    """Return the metadata that zarr writes for a group."""
    files: dict[str, Any] = {}
    group = zarr.create_group(MemoryStore(store_dict=files))
    for output in outputs:
        dtype = np.dtype(output.dtype)
        shuffle = "shuffle" if dtype.kind in "iu" and dtype.itemsize > 2 else "noshuffle"
        compressors: list[Any] = [Crc32cCodec()]
        if compression != "none":
            level = {"lz4": 5, "zstd": 1}[compression]
            blosc = BloscCodec(cname=compression, clevel=level, shuffle=shuffle, typesize=dtype.itemsize)
            compressors.insert(0, blosc)
        group.create_array(
            folder_name(output.name),
            shape=(rows, *output.shape),
            chunks=(block_rows, *(max(1, size) for size in output.shape)),
            dtype=dtype,
            fill_value=0,
            chunk_key_encoding={"name": "default", "separator": "."},
            filters=(),
            serializer=BytesCodec(endian="little"),
            compressors=compressors,
            dimension_names=("row", *(f"{output.name}_{axis}" for axis in range(1, len(output.shape) + 1))),
            attributes={} if folder_name(output.name) == output.name else {"output": output.name},
        )
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        zarr.consolidate_metadata(group.store)
    return {name: files[name].to_bytes() for name in files}


@pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
def test_metadata_equals_zarr(compression: Any) -> None:
    types = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64"]
    outputs = [Output(f"of {dtype}", dtype, (2, 3)) for dtype in types]
    outputs += [Output("ü b/c", "uint8", (0,)), Output("plain", "float32", (4,)), Output("Z", "int32", (1, 1, 1))]
    for chosen in (outputs, outputs[:1], []):
        assert group_metadata(chosen, 10, 4, compression) == made_by_zarr(chosen, 10, 4, compression)
