"""Pixels as arrays and as Pillow images: bit depths, colors, orientation, class maps of masks.

Modes are Pillow's: "L" is gray, "LA" gray and alpha, "P" a palette, "I;16", "I", "F" 16-bit, 32-bit and float gray.
"""

from __future__ import annotations

import io
import math
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from daskprep.errors import ConfigError, MediaError, did_you_mean

if TYPE_CHECKING:
    from PIL import Image

Encoded: TypeAlias = bytes | bytearray | memoryview | pa.Buffer  # a file in memory
Array = NDArray[Any]
Pixels = NDArray[np.uint8]

MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
# Formats of files that decode to their first image.
_STILL_FORMATS = {"JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM"}
_MAX_UINT16 = 65_535
_ALPHA_TYPES = {"La": "LA", "LA": "LA", "PA": "RGBA", "RGBa": "RGBA", "RGBA": "RGBA"}
_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_ORIENTATION_TAG, _SHORT_TYPE = 0x0112, 3
# Operation that makes an image upright, by EXIF orientation.
_TRANSPOSITIONS = {
    2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270", 7: "TRANSVERSE",
    8: "ROTATE_90",
}  # fmt: skip
INVERSE_TURNS = {6: 8, 8: 6}  # other orientations are their own inverses


@contextmanager
def convert_pillow_errors() -> Iterator[None]:
    """Convert errors and warnings of Pillow to MediaError."""
    from PIL.Image import DecompressionBombError  # noqa: PLC0415 columns of other types do without Pillow

    pillow_errors = (OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, AssertionError, OverflowError)
    try:
        yield
    except MediaError:
        raise
    except (*pillow_errors, Warning, struct.error, zlib.error, DecompressionBombError) as error:
        raise MediaError(f"it is broken or cut short: {error}") from error


def check_choice(name: str, value: object, options: Sequence[object]) -> None:
    """Raise ConfigError if a value is not one of the options."""
    if value not in options:
        shown = ", ".join(map(repr, options))
        raise ConfigError(f"{name} is {value!r}: expected one of {shown}.{did_you_mean(value, options)}")


def scale_to_bytes(values: Array, labels: bool = False) -> Pixels:
    """Map pixels of any depth to 0..255, except `labels`; MediaError for values of an unknown scale."""
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * np.uint8(255)
    low, high = values.min(), values.max()
    if values.dtype.kind == "f":
        if not (low >= 0 and high <= 1):  # `not` also refuses NaN
            raise MediaError(f"its float pixels range from {low} to {high}: expected 0 to 1. Scale them.")
        return np.rint(values.astype(np.float32) * 255).astype(np.uint8)
    max_value = 255 if labels else _MAX_UINT16
    if low < 0 or high > max_value:
        kind = "labels" if labels else "integer pixels"
        raise MediaError(f"its {kind} range from {low} to {high}: expected 0 to {max_value}. Scale or renumber them.")
    return values.astype(np.uint8) if labels else ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)


def lossless_mode(image: Image.Image) -> str:
    """Return the mode that keeps all colors and alpha."""
    if image.mode in _ALPHA_TYPES:
        return _ALPHA_TYPES[image.mode]
    grey = image.mode in {"1", "L", "F"} or image.mode.startswith("I")
    if "transparency" in image.info and image.mode in {"1", "L", "P", "RGB"}:
        return "LA" if grey else "RGBA"
    return "L" if grey else "RGB"


def convert(image: Image.Image, mode: str, labels: bool = False) -> Image.Image:
    """Return an image in a `mode` of `MODES`; without alpha, "transparency" is removed from its `info` in place."""
    from PIL import Image  # noqa: PLC0415 as above

    if image.mode == "F" or image.mode.startswith("I"):
        image = Image.fromarray(scale_to_bytes(np.asarray(image), labels))
    if "A" not in mode:
        image.info.pop("transparency", None)  # Pillow would search a palette entry for the transparent color
    elif "transparency" in image.info or image.mode in _ALPHA_TYPES:
        image = image.convert(lossless_mode(image))
    if image.mode in {"La", "RGBa", "LAB", "HSV"}:
        image = image.convert(lossless_mode(image))  # Pillow cannot convert these directly to gray
    return image if image.mode == mode else image.convert(mode)


def image_from_array(values: Array) -> Image.Image:
    """Return an array of two or three dimensions as an image.

    An array is channels first if the first axis has 1 to 4 entries and the last has more. Types are uint8, uint16,
    bool, and floats from 0 to 1. 16-bit gray keeps its depth; other types are scaled to 8 bits. MediaError for others.
    """
    from PIL import Image  # noqa: PLC0415 as above

    if values.dtype not in (np.uint8, np.uint16, np.bool_) and values.dtype.kind != "f":
        raise MediaError(f"it is an array of {values.dtype}: expected uint8, uint16, bool, or floats from 0 to 1.")
    if values.ndim == 3 and values.shape[0] in MODES and values.shape[2] not in MODES:
        values = values.transpose(1, 2, 0)
    if values.ndim not in {2, 3} or (values.ndim == 3 and values.shape[2] not in MODES) or not values.size:
        raise MediaError(
            f"it is an array of shape {values.shape}: expected (height, width), or those and 1 to 4 channels."
        )
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[:, :, 0]
    is_deep = values.dtype == np.uint16 and values.ndim == 2
    return Image.fromarray(np.ascontiguousarray(values.astype(np.uint16) if is_deep else scale_to_bytes(values)))


def read_orientation(image: Image.Image) -> int:
    """Return the EXIF orientation of a file, 1 if broken, for which Pillow's own reader fails."""
    if image.format == "TIFF":
        value = image.tag_v2.get(_ORIENTATION_TAG)  # type: ignore[attr-defined]
        return value if value in _TRANSPOSITIONS else 1
    tiff = bytes(image.info.get("exif") or b"").removeprefix(b"Exif\0\0")
    order = _BYTE_ORDERS.get(tiff[:4])
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(f"{order}I", tiff, 4)
        (entries,) = struct.unpack_from(f"{order}H", tiff, start)
        for offset in range(start + 2, start + 2 + 12 * entries, 12):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", tiff, offset)
            if tag == _ORIENTATION_TAG:
                return int(value) if kind == _SHORT_TYPE and 1 <= value <= 8 else 1
    except struct.error:  # truncated EXIF data
        return 1
    return 1


def remaining_turn(image: Image.Image, upright: bool = True) -> int:
    """Return the orientation to apply to the loaded pixels."""
    orientation = read_orientation(image)
    if image.format == "TIFF":  # Pillow makes these upright as it loads them
        return 1 if upright else INVERSE_TURNS.get(orientation, orientation)
    return orientation if upright else 1


def turn(image: Image.Image, orientation: int) -> Image.Image:
    """Return an image turned by an EXIF orientation."""
    if orientation == 1:
        return image
    from PIL.Image import Transpose  # noqa: PLC0415 as above

    return image.transpose(Transpose[_TRANSPOSITIONS[orientation]])


def _view_planes(image: Image.Image) -> Pixels:
    """Return a view of pixels (channels, height, width)."""
    if image.mode == "L":
        return np.asarray(image)[np.newaxis]
    if (shared := _view_pixels(image)) is not None:
        return shared.transpose(2, 0, 1)[: len(image.mode)]
    # Raw mode "L" stores each channel of a line contiguously, which halves the time of the copy.
    lines = np.frombuffer(image.tobytes("raw", f"{image.mode};L"), np.uint8)
    return lines.reshape(image.height, -1, image.width).transpose(1, 0, 2)


def _view_pixels(image: Image.Image) -> Pixels | None:
    """Return a view of each pixel's four bytes; None unless RGB in one block."""
    if image.mode not in {"RGB", "RGBA"}:
        return None
    try:
        pixels = pa.array(image)
    except ValueError:  # Pillow allocates large images in several blocks of memory
        return None
    flat: Pixels = pixels.values.to_numpy()
    shape = (image.height, image.width, 4)
    return flat.reshape(shape) if flat.size == math.prod(shape) else None


def fit(image: Image.Image, mode: str, crop: bool, labels: bool, out: Pixels) -> None:
    """Write an image into `out`, in a mode of `MODES`, cropped and padded or interpolated."""
    from PIL.Image import Resampling  # noqa: PLC0415 as above

    height, width = out.shape[1:]
    if crop and (image.width > width or image.height > height):
        kept_width, kept_height = min(image.width, width), min(image.height, height)
        # Rounds halves to even, as torchvision's center_crop.
        left, top = round((image.width - kept_width) / 2), round((image.height - kept_height) / 2)
        image = image.crop((left, top, left + kept_width, top + kept_height))
    image = convert(image, mode, labels)
    if image.size != (width, height):
        if crop:
            rows, columns = height - image.height, width - image.width  # missing: edge pixels are repeated
            padding = ((0, 0), (rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2))
            out[...] = np.pad(_view_planes(image), padding, mode="edge")
            return
        method = Resampling.NEAREST if labels else Resampling.BILINEAR
        image = image.resize((width, height), method, reducing_gap=2.0)
    out[...] = _view_planes(image)


def center_offset(lengths: NDArray[np.int64], target: int) -> NDArray[np.int64]:
    """Return how far pixels move in a crop or padding."""
    cropped = np.rint(np.maximum(lengths - target, 0) / 2).astype(np.int64)  # halves to even, as in `fit`
    return np.maximum(target - lengths, 0) // 2 - cropped


def encode_png(image: Array | Image.Image) -> bytes:
    """Return an array or a Pillow image as a PNG file, in the same bytes for equal pixels.

    16-bit gray keeps its depth; other depths above 8 bits are scaled. Of the metadata, an EXIF orientation is kept.
    """
    from PIL import Image  # noqa: PLC0415 as above

    metadata = {}
    if isinstance(image, np.ndarray):
        image = image_from_array(image)
    else:
        if (orientation := remaining_turn(image)) > 1:
            entry = (_ORIENTATION_TAG, _SHORT_TYPE, 1, orientation)
            metadata = {"exif": struct.pack("<4sIHHHIII", b"II*\0", 8, 1, *entry, 0)}
        if image.mode == "I":
            values = np.asarray(image)
            scale_to_bytes(values)  # raises for values outside of 16 bits
            image = Image.fromarray(values.astype(np.uint16))
        elif not image.mode.startswith("I"):
            image = convert(image.copy(), lossless_mode(image))
    file = io.BytesIO()
    # A new image, because the old one may have metadata. Level 1 takes a third of the time of the default.
    Image.fromarray(np.asarray(image)).save(file, "PNG", compress_level=1, **metadata)
    return file.getvalue()


def find_source_file(image: Image.Image) -> str | None:
    """Return the path of an image's unchanged file, or None."""
    from PIL import Image, ImageFile  # noqa: PLC0415 as above

    if not isinstance(image, ImageFile.ImageFile) or not isinstance(image.filename, str):
        return None
    path = os.path.abspath(image.filename)  # noqa: PTH100 a Path would tidy it up
    if not image.filename or not os.path.isfile(path):  # noqa: PTH113 as above
        return None
    with Image.open(path) as file:
        is_same = (file.format, file.mode, file.size) == (image.format, image.mode, image.size)
        return path if file.format in _STILL_FORMATS and is_same and file.tobytes() == image.tobytes() else None


def find_class_colours(images: Iterable[Pixels], max_colours: int = 128) -> Pixels:
    """Return the distinct colors of masks, sorted, as rows; MediaError if too many, or channels differ."""
    colours: set[int] = set()
    channels = 0
    for image in images:
        if channels and image.shape[0] != channels:
            raise MediaError(f"masks have {channels} and {image.shape[0]} channels: expected the same for all.")
        channels = image.shape[0]
        colours.update(np.unique(_pack_colours(image)).tolist())
        if len(colours) > max_colours:
            raise MediaError(
                f"masks have more than {max_colours} colors: expected one per class. JPEG blurs masks; PNG keeps them."
            )
    packed = np.array(sorted(colours), dtype=">u4")
    return packed.view(np.uint8).reshape(-1, 4)[:, 4 - channels :].copy()


def map_to_classes(image: Pixels, colours: Pixels, two_levels: bool = False) -> tuple[Pixels, int]:
    """Return class ids as uint8, and the number of unknown pixels.

    `colours` is the result of `find_class_colours`: class k has the color `colours[k]`. Others are unknown and become
    class 0. With `two_levels`, channels are first rounded to 0 and 255. MediaError for other channels.
    """
    if image.shape[0] != colours.shape[1]:
        raise MediaError(f"the mask has {image.shape[0]} channels: expected {colours.shape[1]}.")
    packed_colours = _pack_colours(colours.T[:, :, np.newaxis])[:, 0]
    packed = _pack_colours((image >= 128) * np.uint8(255) if two_levels else image)
    class_ids = np.minimum(np.searchsorted(packed_colours, packed), len(packed_colours) - 1)
    unseen = packed_colours[class_ids] != packed
    class_ids[unseen] = 0
    return class_ids.astype(np.uint8), int(np.count_nonzero(unseen))


def _pack_colours(image: Pixels) -> NDArray[np.uint32]:
    """Return one integer per pixel, in the order of colors."""
    packed = np.zeros(image.shape[1:], np.uint32)
    for plane in image:
        packed <<= np.uint32(8)
        packed |= plane
    return packed
