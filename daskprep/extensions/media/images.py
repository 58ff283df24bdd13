"""Decoding of image files to arrays of one shape: allowed formats and sizes, resizing, packing.

Pillow reads and checks the header of every file. Only the pixels of JPEG files may be decoded by a faster package,
which the recipe names. The functions have no state, so that threads can decode concurrently.
"""

from __future__ import annotations

import functools
import importlib
import io
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from daskprep.columns.deferred.cells import parse_npy
from daskprep.errors import ConfigError, MediaError
from daskprep.extensions.media import gpu, pixels
from daskprep.extensions.media.pixels import Array, Encoded, Pixels
from daskprep.storage.checksum import json_sha256
from daskprep.storage.security import require_safe

if TYPE_CHECKING:
    from PIL import Image, ImageFile

ResizeMethod = Literal["interpolate", "crop_or_pad"]
JpegDecoder = Literal["pillow", "opencv", "gpu"]

MAX_PIXELS = 100_000_000  # 400 MB, decoded
_MAX_INFERRED = 256  # pixels
_VERSIONS = {"pillow": 1, "opencv": 2, "gpu": 1}  # raised when the pixels of the same recipe change
# First bytes of each format, and the Pillow class that reads it. `Image.open` is not used: it warns of large images, or
# refuses them, by a limit that is global to the process.
_FORMATS = {
    "JPEG": (re.compile(rb"\xff\xd8\xff"), "JpegImagePlugin", "JpegImageFile"),
    "PNG": (re.compile(rb"\x89PNG\r\n\x1a\n"), "PngImagePlugin", "PngImageFile"),
    "BMP": (re.compile(rb"BM"), "BmpImagePlugin", "BmpImageFile"),
    "GIF": (re.compile(rb"GIF8[79]a"), "GifImagePlugin", "GifImageFile"),
    "TIFF": (re.compile(rb"II[*+]\0|MM\0[*+]"), "TiffImagePlugin", "TiffImageFile"),
    "WEBP": (re.compile(rb"RIFF....WEBP", re.DOTALL), "WebPImagePlugin", "WebPImageFile"),
    "PPM": (re.compile(rb"P[1-7fF]\s"), "PpmImagePlugin", "PpmImageFile"),
    "NPY": (re.compile(rb"\x93NUMPY"), "", ""),
}
FORMATS = tuple(_FORMATS)


@dataclass(frozen=True)
class ImageRecipe:
    """Parameters that turn images into uint8 planes, as in `Image`.

    Colors become gray by ITU-R 601 luma. Alpha is dropped as in Pillow, without compositing on a background, unless
    `channels` is 2 or 4; missing alpha is opaque, 255. Pixels of a `mask` are labels, never mixed: images are resized
    by the nearest pixel, 16-bit values below 256 are not scaled. `upright` applies the EXIF orientation.
    """

    height: int
    width: int
    channels: int
    resize_method: ResizeMethod = "interpolate"
    formats: tuple[str, ...] = FORMATS
    max_pixels: int = MAX_PIXELS
    decoder: JpegDecoder = "pillow"
    jpeg_scale: int = 1
    mask: bool = False
    upright: bool = True

    def __post_init__(self) -> None:
        """Raise ConfigError for invalid sizes, channels or formats."""
        object.__setattr__(self, "formats", tuple(self.formats))
        for name in ("height", "width", "max_pixels", "jpeg_scale"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: expected at least 1.")
        pixels.check_choice("channels", self.channels, tuple(pixels.MODES))
        for name in self.formats:
            pixels.check_choice("formats", name, FORMATS)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of a decoded image: channels, height, width."""
        return self.channels, self.height, self.width

    def digest(self) -> str:
        """Return a SHA-256, which is equal if pixels are."""
        fields = {name: value for name, value in asdict(self).items() if name != "upright" or not value}
        return json_sha256(fields | {"version": _VERSIONS[self.decoder]})


def decode_image(source: Encoded, recipe: ImageRecipe, out: Pixels | None = None) -> Pixels:
    """Decode an image file as uint8 (channels, height, width).

    The EXIF orientation is applied if `upright`, palettes become colors, CMYK becomes RGB, and animations are their
    first frame. 16-bit gray is scaled to 8 bits by 1/257, and floats from 0..1. Raise `MediaError` for a file that is
    truncated or broken, or has a format or size that the recipe does not allow.

    Interpolated JPEGs are decoded at a half, a quarter or an eighth of their size if that is at least the target size.
    This takes a quarter of the time for 4 megapixels. The mean difference from decoding photos of 500 x 375 pixels in
    full is 0.3 gray levels at 224 pixels, and 1.5 to 2 at 64 to 160. With ``jpeg_scale=2`` it is 0 to 0.1 from 128
    pixels on, and 0.8 at 64. These figures are for Pillow; OpenCV adds up to 0.8.
    """
    data = bytes(source)
    with pixels.convert_pillow_errors():
        file = _open(data, recipe.formats, recipe.max_pixels)
        orientation = pixels.remaining_turn(file, recipe.upright)
        image = pixels.turn(_load(file, data, recipe, is_rotated=orientation >= 5), orientation)
    out = np.empty(recipe.shape, np.uint8) if out is None else out
    pixels.fit(image, pixels.MODES[recipe.channels], recipe.resize_method == "crop_or_pad", recipe.mask, out)
    return out


def parse_gpu_jpeg(source: Encoded, recipe: ImageRecipe) -> gpu.Jpeg | None:
    """Return a JPEG to decode on a GPU; None for other formats, progressive ones, and colors GPUs misread."""
    data = bytes(source)
    if not _FORMATS["JPEG"][0].match(data):
        return None
    with pixels.convert_pillow_errors():
        file = _open(data, recipe.formats, recipe.max_pixels)
        if file.mode not in {"L", "RGB"} or "progressive" in file.info:
            return None
        layers: Any = file.layer  # type: ignore[attr-defined]
        if file.mode == "RGB" and (file.info.get("adobe_transform") == 0 or bytes(row[0] for row in layers) == b"RGB"):
            return None  # GPU decoders misinterpret a file that stores RGB instead of luma and chroma
        _check_end(file, data)
        return gpu.Jpeg(data, file.size, pixels.remaining_turn(file, recipe.upright))


def shrink(source: Encoded, recipe: ImageRecipe, side: int | None, quality: int | None) -> bytes:
    """Return an image file with a shorter side up to `side`.

    `side` None: the size is kept. `quality` is for JPEG; None: 95 for JPEG files, and other formats become PNG. The
    file is returned unchanged if it is small enough and `quality` is None, otherwise without EXIF data.
    """
    from PIL.Image import Resampling  # noqa: PLC0415 columns of other types do without Pillow

    data = bytes(source)
    with pixels.convert_pillow_errors():
        file = _open(data, recipe.formats, recipe.max_pixels)
        factor = 1.0 if side is None else min(1.0, side / min(file.size))
        if factor == 1 and quality is None:
            return data
        mode = pixels.lossless_mode(file)
        orientation = pixels.remaining_turn(file, recipe.upright)
        image = pixels.convert(pixels.turn(file, orientation), mode, recipe.mask)
        size = round(image.width * factor), round(image.height * factor)
        image = image.resize(size, Resampling.NEAREST if recipe.mask else Resampling.BILINEAR)
    is_jpeg = mode in {"L", "RGB"} and not recipe.mask and (quality is not None or file.format == "JPEG")
    out = io.BytesIO()
    image.info.clear()  # the orientation was applied
    image.save(out, "JPEG" if is_jpeg else "PNG", **({"quality": quality or 95} if is_jpeg else {}))
    return out.getvalue()


class ImageHeader(NamedTuple):
    """Decoded size and EXIF orientation of an image."""

    height: int
    width: int
    channels: int
    orientation: int


def read_image_header(
    source: Encoded, formats: Sequence[str] = FORMATS, max_pixels: int = MAX_PIXELS, upright: bool = True
) -> ImageHeader:
    """Return size, channels and EXIF orientation without decoding; MediaError if refused."""
    with pixels.convert_pillow_errors():
        image = _open(source, formats, max_pixels)
        is_rotated = pixels.remaining_turn(image, upright) >= 5
        orientation = pixels.read_orientation(image)
    width, height = image.size[::-1] if is_rotated else image.size
    return ImageHeader(height, width, len(pixels.lossless_mode(image)), orientation)


def infer_size(sizes: Sequence[Sequence[int]]) -> tuple[int, int, int]:
    """Return the mean height and width, at most 256, and the channels of most images, or 3."""
    height, width = (min(round(sum(size[axis] for size in sizes) / len(sizes)), _MAX_INFERRED) for axis in (0, 1))
    counts = [size[2] for size in sizes]
    return height, width, next((number for number in (1, 2, 4) if 2 * counts.count(number) > len(counts)), 3)


def _import_opencv() -> Any:
    """Return the module cv2, or raise ImportError."""
    try:
        importlib.import_module("cv2")
    except ImportError as error:
        raise ImportError(
            'Images with jpeg_decoder="opencv" need a package that is not installed: pip install opencv-python-headless'
        ) from error
    require_safe("opencv-python-headless")
    return importlib.import_module("cv2")


def _open(source: Encoded, formats: Sequence[str], max_pixels: int) -> ImageFile.ImageFile:
    """Return an image with its header read; MediaError for other formats, and more than `max_pixels`."""
    from PIL import features  # noqa: PLC0415 as above

    start = bytes(memoryview(source)[:30])
    name = next((name for name, row in _FORMATS.items() if row[0].match(start)), None)
    if name is None or name not in formats:
        problem = f"it is a {name} file" if name else f"it is not an image: it starts with {start[:12]!r}"
        raise MediaError(f"{problem if start else 'it is empty'}. Expected one of {', '.join(formats)}.")
    if name == "NPY":
        values = parse_npy(source)
        _check_size(sorted(values.shape)[-2:], max_pixels)  # before pixels are scaled
        return pixels.image_from_array(values)  # type: ignore[return-value]  # callers use only attributes of Image
    if name == "WEBP":
        if not features.check_module("webp"):
            raise MediaError("it is a WEBP file, which the installed Pillow was built without.")
        _check_size(_parse_webp_size(start), max_pixels)  # Pillow allocates all pixels when it reads the header
    image: ImageFile.ImageFile = _pillow_class(name)(io.BytesIO(source))
    _check_size(image.size, max_pixels)
    return image


@functools.cache
def _pillow_class(name: str) -> Any:
    """Import and return Pillow's class for a format."""
    require_safe("pillow")
    _, module, class_name = _FORMATS[name]
    return getattr(importlib.import_module(f"PIL.{module}"), class_name)


def prepare(recipe: ImageRecipe) -> None:
    """Import the libraries that decoding needs."""
    importlib.import_module("PIL.features")
    for name in {"JPEG", "PNG"} & set(recipe.formats):
        _pillow_class(name)
    if recipe.decoder == "gpu":
        gpu.prepare()
    elif recipe.decoder == "opencv":
        _import_opencv()


def _check_end(file: ImageFile.ImageFile, data: bytes) -> None:
    """Raise MediaError for a JPEG file without an end marker."""
    if file.fp and data.rfind(b"\xff\xd9", file.fp.tell()) < 0:  # some decoders would invent the missing pixels
        raise MediaError("it is cut short: a JPEG file without an end.")


def _check_size(size: Sequence[int], max_pixels: int) -> None:
    """Raise MediaError for more pixels than `max_pixels`."""
    if math.prod(size) > max_pixels:
        raise MediaError(
            f"it has {' x '.join(map(str, size))} pixels: expected at most max_pixels={max_pixels:,} in all."
        )


def _parse_webp_size(start: bytes) -> tuple[int, int]:
    """Return width and height from 30 bytes of a WebP file."""
    if start[12:16] == b"VP8X":
        return int.from_bytes(start[24:27], "little") + 1, int.from_bytes(start[27:30], "little") + 1
    if start[12:16] == b"VP8L":
        bits = int.from_bytes(start[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return int.from_bytes(start[26:28], "little") & 0x3FFF, int.from_bytes(start[28:30], "little") & 0x3FFF


def _load(file: ImageFile.ImageFile, data: bytes, recipe: ImageRecipe, *, is_rotated: bool) -> Image.Image:
    """Return an image with its pixels, not yet turned; JPEGs to interpolate may be smaller than the file."""
    if file.format == "JPEG":
        grey = recipe.channels <= 2 and not recipe.mask
        target_size = None
        min_size = file.size
        if recipe.resize_method == "interpolate" and not recipe.mask:
            target_size = (recipe.height, recipe.width) if is_rotated else (recipe.width, recipe.height)
            min_size = (recipe.jpeg_scale * target_size[0], recipe.jpeg_scale * target_size[1])
        if recipe.decoder == "opencv" and file.mode in {"L", "RGB"}:
            _check_end(file, data)
            scale = min(file.width // min_size[0], file.height // min_size[1])
            divisor = next((divisor for divisor in (8, 4, 2) if scale >= divisor), 1)  # the same choice as `draft`
            decoded = _decode_with_opencv(data, divisor, target_size, grey=grey or file.mode == "L")
            return pixels.image_from_array(decoded)
        file.draft("L" if grey else None, min_size)  # chooses a scale with at least `min_size`
        file.decodermaxblock = len(data)  # one block: Pillow's default of 64 kB takes 3 % longer
    file.load()
    return file


def _decode_with_opencv(data: bytes, scale_divisor: int, target_size: tuple[int, int] | None, *, grey: bool) -> Pixels:
    """Return a JPEG as gray or RGBA pixels, resized to `target_size` (width, height) if any; MediaError if broken."""
    cv2 = _import_opencv()
    kind = "GRAYSCALE" if grey else "COLOR"
    flag = getattr(cv2, f"IMREAD_{kind}" if scale_divisor == 1 else f"IMREAD_REDUCED_{kind}_{scale_divisor}")
    decoded: Pixels | None = cv2.imdecode(np.frombuffer(data, np.uint8), flag | cv2.IMREAD_IGNORE_ORIENTATION)
    if decoded is None:
        raise MediaError("it is broken or cut short.")
    if target_size is not None:
        kernel_x, kernel_y = map(smoothing_kernel, decoded.shape[1::-1], target_size)
        if max(len(kernel_x), len(kernel_y)) > 1:
            decoded = cv2.sepFilter2D(decoded, -1, kernel_x, kernel_y)
        decoded = cv2.resize(decoded, target_size, interpolation=cv2.INTER_LINEAR)
    # Pillow stores four bytes per RGB pixel, so that RGBA needs no conversion.
    return decoded if grey else cv2.cvtColor(decoded, cv2.COLOR_BGR2RGBA)


@functools.lru_cache(maxsize=1024)
def smoothing_kernel(source_length: int, target_length: int) -> Array:
    """Return a filter that smooths like Pillow.

    Pillow weights pixels by a triangle as wide as the ratio of the lengths. The filter mixes the two triangles of the
    neighboring integer widths, so that its variance plus the variance of the interpolation is the same.
    """
    ratio = max(1.0, source_length / target_length)
    narrow_width = int(ratio)
    wide_share = (ratio**2 - narrow_width**2) / (2 * narrow_width + 1)
    radius = narrow_width if wide_share else narrow_width - 1
    distance = np.abs(np.arange(-radius, radius + 1, dtype=np.float64))
    narrow, wide = (np.maximum(0.0, width - distance) / width**2 for width in (narrow_width, narrow_width + 1))
    return ((1 - wide_share) * narrow + wide_share * wide).astype(np.float32)
