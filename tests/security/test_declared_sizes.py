"""Small files with large declared sizes raise before memory is allocated."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from daskprep.errors import ConfigError, MediaError
from daskprep.extensions.media.audio import AudioRecipe, decode_audio, encode_wav
from daskprep.extensions.media.images import ImageRecipe, decode_image, read_image_header
from daskprep.sources import read_files

FORTY_MEGABYTES = 40_000_000
RECIPE = ImageRecipe(8, 8, 3)


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width: int, height: int, *more: bytes) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(14)))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(more) + pixels + chunk(b"IEND", b"")


def gif(width: int, height: int) -> bytes:
    screen = b"GIF89a" + struct.pack("<HH", 2, 2) + bytes(3)
    return screen + b"," + struct.pack("<HHHH", 0, 0, width, height) + b"\0\2\2\x4c\1\0;"


def bitmap(width: int, height: int) -> bytes:
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + header


TEXT = zlib.compress(bytes(200_000_000), 9)
IMAGES = {
    "png": png(60_000, 60_000),
    "png of no pixels": png(0, 5),
    "png of most pixels": png(2**31 - 1, 2**31 - 1),
    "compressed text": png(2, 2, chunk(b"zTXt", b"k\0\0" + TEXT)),
    "international text": png(2, 2, chunk(b"iTXt", b"k\0\1\0\0\0" + TEXT)),
    "profile": png(2, 2, chunk(b"iCCP", b"k\0\0" + TEXT)),
    "gif": gif(65_535, 65_535),
    "bmp": bitmap(2**31 - 1, 2**31 - 1),
    "bmp upside down": bitmap(5, -(2**31)),
    "ppm": b"P6 99999999 99999999 255\n",
    "pfm": b"Pf 99999999 99999999 -1.0\n",
}


def peak_bytes(call: Callable[[], object], error: type[Exception], message: str | None = None) -> int:
    """Return the peak memory that Python allocated while a call raised an error."""
    tracemalloc.start()
    try:
        with pytest.raises(error, match=message):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", IMAGES)
def test_image_with_a_large_declared_size_raises(name: str) -> None:
    assert peak_bytes(lambda: decode_image(IMAGES[name], RECIPE), MediaError) < FORTY_MEGABYTES


def test_only_the_first_animation_frame_is_decoded() -> None:
    file = io.BytesIO()
    frames = [Image.new("P", (8, 8), i % 255) for i in range(300)]
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    first = io.BytesIO()
    frames[0].save(first, "GIF")
    assert read_image_header(file.getvalue())[:2] == (8, 8)
    assert (decode_image(file.getvalue(), RECIPE) == decode_image(first.getvalue(), RECIPE)).all()


@pytest.mark.parametrize("rate", [0, 1, 99, 768_001, 2**31, 2**32 - 1])
def test_invalid_sampling_rate_allocates_no_memory(rate: int) -> None:
    wave = encode_wav(np.zeros(4000, np.int16), 8000)
    odd = wave[:24] + rate.to_bytes(4, "little") + wave[28:]
    recipe = AudioRecipe("raw", sampling_rate=48_000, max_seconds=30)
    assert peak_bytes(lambda: decode_audio(odd, recipe), MediaError, "sampling rate|lasts|cannot") < FORTY_MEGABYTES


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("claimed", [2**44, 2**62, -5])
def test_column_with_a_large_declared_size_raises(tmp_path: Path, compression: str, claimed: int) -> None:
    path = tmp_path / "a.arrow"
    table = pa.table({"a": np.zeros(100_000, np.int64)})
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    data = path.read_bytes()
    length = struct.pack("<q", 800_000)
    assert length in data
    path.write_bytes(data.replace(length, struct.pack("<q", claimed)))
    with pytest.raises(ConfigError, match=r"a\.arrow"):
        read_files(path)
