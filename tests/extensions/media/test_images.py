import dataclasses
import importlib.util
import io
import pickle
import struct
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image, ImageOps

from daskprep.errors import ConfigError, MediaError
from daskprep.extensions.media import images
from daskprep.extensions.media.images import FORMATS, ImageRecipe, decode_image, infer_size, read_image_header, shrink
from daskprep.extensions.media.pixels import encode_png, find_class_colours, map_to_classes

BILINEAR = Image.Resampling.BILINEAR


def picture(width=60, height=40, mode="RGB"):
    """Return a smooth image without symmetry: its orientations differ, and JPEG preserves it."""
    coarse = np.random.default_rng(7).integers(0, 256, (4, 6, 4), dtype=np.uint8)
    return Image.fromarray(coarse).convert("RGB").resize((width, height), BILINEAR).convert(mode)


def saved(image, kind="PNG", **options):
    file = io.BytesIO()
    if kind == "NPY":
        np.save(file, np.asarray(image))
        return file.getvalue()
    image.save(file, kind, **options)
    return file.getvalue()


def plain(image):
    """Return the pixels of a Pillow image, channels first."""
    pixels = np.asarray(image)
    return pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def exact(height, width, channels, **options):
    return ImageRecipe(height, width, channels, resize_method="crop_or_pad", **options)


def difference(left, right):
    assert left.shape == right.shape
    return np.abs(left.astype(int) - right).mean()


def chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


@pytest.mark.parametrize("kind", FORMATS)
def test_formats_equal_pillow(kind):
    data = saved(picture(), kind)
    image = picture() if kind == "NPY" else Image.open(io.BytesIO(data)).convert("RGB")
    np.testing.assert_array_equal(decode_image(data, exact(40, 60, 3)), plain(image))
    resized = plain(image.resize((25, 31), BILINEAR))
    assert difference(decode_image(data, ImageRecipe(31, 25, 3)), resized) < 1


@pytest.mark.parametrize("size", [(64, 48), (100, 50), (400, 900)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("jpeg_scale", "most"), [(1, 1.5), (2, 0.7)])
def test_scaled_jpeg_is_close_to_pillow(size, channels, jpeg_scale, most):
    data = saved(picture(900, 700), "JPEG", quality=90)
    expected = Image.open(io.BytesIO(data)).convert("L" if channels == 1 else "RGB").resize(size, BILINEAR)
    decoded = decode_image(data, ImageRecipe(size[1], size[0], channels, jpeg_scale=jpeg_scale))
    assert difference(decoded, plain(expected)) < most


def test_decode_image_source_types():
    data = saved(picture())
    recipe = ImageRecipe(20, 20, 3)
    expected = decode_image(data, recipe)
    for source in (bytearray(data), memoryview(data), pa.py_buffer(data)):
        np.testing.assert_array_equal(decode_image(source, recipe), expected)
        assert read_image_header(source)[:3] == (40, 60, 3)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_modes_are_converted_to_channels(mode, channels):
    image = picture(mode="RGB").convert(mode) if mode != "LAB" else Image.new("LAB", (60, 40), (128, 128, 128))
    kind = "TIFF" if mode in {"CMYK", "YCbCr", "LAB"} else "PNG"
    pixels = decode_image(saved(image, kind), exact(40, 60, channels))
    names = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
    expected = (image.convert("RGB") if mode in {"CMYK", "YCbCr", "LAB"} else image).convert(names[channels])
    assert difference(pixels, plain(expected)) < 0.5
    if channels in {2, 4}:
        assert (pixels[-1] == 255).all()


def test_alpha_channel():
    image = Image.fromarray(np.array([[[10, 20, 30, 0], [40, 50, 60, 128]]], dtype=np.uint8))
    data = saved(image)
    assert decode_image(data, exact(1, 2, 4))[3].tolist() == [[0, 128]]
    assert decode_image(data, exact(1, 2, 2))[1].tolist() == [[0, 128]]
    assert decode_image(data, exact(1, 2, 3)).tolist() == [[[10, 40]], [[20, 50]], [[30, 60]]]
    assert read_image_header(data)[:3] == (1, 2, 4)


@pytest.mark.parametrize(("mode", "transparency", "channels"), [
    ("P", bytes([0, 255] * 8), 4), ("P", 0, 4), ("RGB", (1, 2, 3), 4), ("L", 7, 2), ("1", 0, 2),
])  # fmt: skip
def test_transparent_color_becomes_alpha(mode, transparency, channels):
    image = picture().quantize(16) if mode == "P" else picture(mode=mode)
    data = saved(image, transparency=transparency)
    assert read_image_header(data)[:3] == (40, 60, channels)
    expected = plain(Image.open(io.BytesIO(data)).convert("RGBA"))
    np.testing.assert_array_equal(decode_image(data, exact(40, 60, 4)), expected)
    np.testing.assert_array_equal(decode_image(data, exact(40, 60, 3)), expected[:3])


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_uint16_pixels_are_scaled(kind):
    values = np.array([[0, 128, 129, 257, 1000, 65534, 65535]], dtype=np.uint16)
    pixels = decode_image(saved(Image.fromarray(values), kind), exact(1, 7, 1))
    assert pixels.tolist() == [[[0, 0, 1, 1, 4, 255, 255]]]


def test_pixels_out_of_range_raise():
    wide = Image.fromarray(np.array([[0, 65_536]], dtype=np.int32))
    with pytest.raises(MediaError, match="range from 0 to 65536: expected 0 to 65535"):
        decode_image(saved(wide, "TIFF"), exact(1, 2, 1))
    floats = Image.fromarray(np.array([[0, 0.5, 1]], dtype=np.float32))
    assert decode_image(saved(floats, "TIFF"), exact(1, 3, 1)).tolist() == [[[0, 128, 255]]]
    for bad in (255, np.nan, -0.1):
        with pytest.raises(MediaError, match="expected 0 to 1"):
            decode_image(saved(Image.fromarray(np.array([[0, bad]], dtype=np.float32)), "TIFF"), exact(1, 2, 1))


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation_is_applied(kind, turn):
    exif = Image.Exif()
    exif[0x0112] = turn
    data = saved(picture(600, 400), kind, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    height, width = upright.height, upright.width
    assert read_image_header(data)[:3] == (height, width, 3)
    np.testing.assert_array_equal(decode_image(data, exact(height, width, 3)), plain(upright))
    expected = plain(upright.resize((30, 50), BILINEAR))
    assert difference(decode_image(data, ImageRecipe(50, 30, 3)), expected) < 0.7
    stored = Image.open(io.BytesIO(saved(picture(600, 400), kind)))
    as_in_file = exact(400, 600, 3, upright=False)
    assert read_image_header(data, upright=False) == (400, 600, 3, turn)
    for content in (data, shrink(data, as_in_file, None, 100)):
        assert difference(decode_image(content, as_in_file), plain(stored.convert("RGB"))) < 1
    assert exact(4, 4, 3).digest() == "917639a129cc4d2426890e7cf53e55ab983feb9128959bbe18611673c2d928af"
    assert exact(4, 4, 3).digest() != exact(4, 4, 3, upright=False).digest()


@pytest.mark.parametrize("exif", [
    b"", b"Exif\0\0", b"Exif\0\0junk", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01",
    b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x09\0\0\0",
])  # fmt: skip
def test_broken_exif_is_ignored(exif):
    data = saved(picture(), "PNG")
    data = data[:33] + chunk(b"eXIf", exif) + data[33:]
    assert read_image_header(data)[:3] == (40, 60, 3)
    np.testing.assert_array_equal(decode_image(data, exact(40, 60, 3)), plain(picture()))


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_animation_uses_first_frame(kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    first, second = picture(mode="L"), picture(mode="L").transpose(Image.Transpose.ROTATE_180)
    data = saved(first, kind, save_all=True, append_images=[second], **options)
    np.testing.assert_array_equal(decode_image(data, exact(40, 60, 1)), plain(first))


def test_cmyk_jpeg_colors():
    pixels = decode_image(saved(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG"), ImageRecipe(8, 8, 3))
    assert np.abs(pixels.mean(axis=(1, 2)) - [255, 0, 0]).max() < 4


@pytest.mark.parametrize(("old", "new"), [((5, 8), (5, 8)), ((5, 8), (9, 3)), ((2, 3), (5, 4)), ((1, 1), (3, 4)),
                                          ((10, 9), (3, 4))])  # fmt: skip
def test_crop_or_pad_centers_and_repeats_edges(old, new):
    image = np.arange(old[0] * old[1], dtype=np.uint8).reshape(old)
    rows, columns = (
        np.clip(np.arange(n) + (round((o - n) / 2) if o > n else -((n - o) // 2)), 0, o - 1)
        for o, n in zip(old, new, strict=True)
    )
    expected = image[np.ix_(rows, columns)]
    np.testing.assert_array_equal(decode_image(encode_png(image), exact(*new, 1))[0], expected)


def test_encode_png_layouts_and_dtypes():
    rows = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    expected = rows.transpose(2, 0, 1)
    recipe = exact(6, 8, 3)
    for source in (rows, expected, rows.astype(np.uint16) * 257, rows / 255, (rows / 255).astype(np.float32)):
        np.testing.assert_array_equal(decode_image(encode_png(source), recipe), expected)
    np.testing.assert_array_equal(decode_image(encode_png(rows[:, :, 0]), recipe), expected[[0, 0, 0]])
    np.testing.assert_array_equal(decode_image(encode_png(rows[:, :, :1]), exact(6, 8, 1)), expected[:1])
    np.testing.assert_array_equal(decode_image(encode_png(rows > 100), recipe), (expected > 100) * 255)


@pytest.mark.parametrize(("array", "reason"), [
    (np.zeros((2, 2), np.int64), "array of int64"), (np.zeros((2, 2), "M8[s]"), "array of datetime64"),
    (np.zeros((2, 2), object), "array of object"), (np.full((2, 2), 1.5), "range from 1.5"),
    (np.zeros(4, np.uint8), r"shape \(4,\)"), (np.zeros((9, 9, 9), np.uint8), r"shape \(9, 9, 9\)"),
    (np.zeros((0, 4), np.uint8), r"shape \(0, 4\)"),
])  # fmt: skip
def test_encode_png_invalid_array_raises(array, reason):
    with pytest.raises(MediaError, match=reason):
        encode_png(array)


def test_image_of_one_pixel():
    assert decode_image(saved(Image.new("RGB", (1, 1), (1, 2, 3)), "BMP"), ImageRecipe(2, 2, 3)).tolist() == [
        [[1, 1], [1, 1]], [[2, 2], [2, 2]], [[3, 3], [3, 3]],
    ]  # fmt: skip


@pytest.mark.parametrize("kind", FORMATS)
def test_truncated_files_raise(kind):
    data = saved(picture(), kind)
    for length in (len(data) // 2, len(data) - 30, 20, 9):
        with pytest.raises(MediaError, match="cut short: |it starts with"):
            decode_image(data[:length], ImageRecipe(20, 20, 3))


@pytest.mark.parametrize(("data", "reason"), [
    (b"", "it is empty"), (b"\0" * 500, "it is not an image"), (b"hello, world", "starts with b'hello, world'"),
    (b"\xff\xd8\xff" + b"\0" * 50, "broken"), (b"\x89PNG\r\n\x1a\n" + b"x" * 50, "broken"),
    (b"BM" + b"\xff" * 50, "broken"), (b"GIF89a", "broken"), (b"RIFF\0\0\0\0WEBPVP8 ", "broken"),
    (b"P6 zwei 2 255", "broken"), (b"II*\0\xff\xff\xff\xff", "broken"),
    (b"<svg></svg>", "it is not an image"), (b"%!PS-Adobe", "it is not an image"),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:Truncated File Read")
def test_invalid_image_raises(data, reason):
    with pytest.raises(MediaError, match=reason):
        decode_image(data, ImageRecipe(4, 4, 3))
    with pytest.raises(MediaError, match=reason):
        read_image_header(data)


def test_damaged_files_decode_or_raise_media_error():
    random = np.random.default_rng(3)
    files = [saved(picture(), kind) for kind in FORMATS if kind != "TIFF"]  # libtiff reports on the terminal
    recipe = ImageRecipe(8, 8, 3)
    refused = 0
    for _ in range(600):
        data = bytearray(files[random.integers(len(files))])
        places = random.integers(0, min(len(data), int(random.choice([60, 10_000]))), 4)
        for place in places:
            data[place] = random.choice([0, 255, random.integers(256)])
        try:
            assert decode_image(data, recipe).shape == recipe.shape
        except MediaError:
            refused += 1
    assert 0 < refused < 600


def bombs():
    size = struct.pack(">II", 30_000, 20_000)
    yield b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size + bytes([8, 2, 0, 0, 0])) + chunk(b"IDAT", b"")
    yield b"P6 30000 20000 255\n"
    yield (
        b"GIF89a"
        + struct.pack("<HH", 30_000, 20_000)
        + b"\0\0\0,"
        + struct.pack("<HHHHB", 0, 0, 30_000, 20_000, 0)
        + b"\2\0;"
    )
    yield b"BM" + struct.pack("<IIIIiiHHIIIIII", 54, 0, 54, 40, 30_000, 20_000, 1, 24, 0, 0, 0, 0, 0, 0)
    canvas = b"\0\0\0\0" + (29_999).to_bytes(3, "little") + (19_999).to_bytes(3, "little")
    yield b"RIFF" + struct.pack("<I", 100) + b"WEBPVP8X" + struct.pack("<I", 10) + canvas


@pytest.mark.parametrize("data", list(bombs()), ids=["PNG", "PPM", "GIF", "BMP", "WEBP"])
def test_decompression_bombs_raise(data):
    for call in (lambda: decode_image(data, ImageRecipe(4, 4, 3)), lambda: read_image_header(data)):
        with pytest.raises(MediaError, match="30000 x 20000 pixels: expected at most max_pixels=100,000,000"):
            call()


@pytest.mark.parametrize("lossless", [True, False])
def test_webp_size_is_read_from_header(lossless):
    data = saved(picture(61, 43), "WEBP", lossless=lossless)
    with pytest.raises(MediaError, match="61 x 43 pixels"):
        read_image_header(data, max_pixels=2_622)
    assert read_image_header(data, max_pixels=2_623)[:3] == (43, 61, 3)


def test_pillow_pixel_limit_is_not_applied(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # a warning, and from 200 on an error, of `Image.open`
    for size in ((15, 10), (60, 40)):
        decode_image(saved(picture(*size)), ImageRecipe(4, 4, 3))
    assert Image.MAX_IMAGE_PIXELS == 100


def test_formats_not_allowed_raise():
    with pytest.raises(MediaError, match="it is a GIF file. Expected one of JPEG, PNG"):
        decode_image(saved(picture(), "GIF"), ImageRecipe(4, 4, 3, formats=("JPEG", "PNG")))
    with pytest.raises(MediaError, match="it is not an image"):
        decode_image(saved(picture(), "TGA"), ImageRecipe(4, 4, 3))


def test_out_is_written_and_returned():
    batch = np.zeros((3, 3, 20, 30), np.uint8)
    recipe = ImageRecipe(20, 30, 3)
    expected = decode_image(saved(picture()), recipe)
    assert decode_image(saved(picture()), recipe, out=batch[1]).base is batch
    np.testing.assert_array_equal(batch[1], expected)
    assert not batch[[0, 2]].any()


def test_decode_image_in_threads():
    files = [saved(picture(300, 200 + n), "JPEG") for n in range(40)]
    recipe = ImageRecipe(50, 50, 3)
    expected = np.stack([decode_image(file, recipe) for file in files])
    batch = np.empty_like(expected)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: decode_image(files[n], recipe, out=batch[n]), range(40)))
    np.testing.assert_array_equal(batch, expected)


def test_opencv_equals_pillow():
    pytest.importorskip("cv2")
    exif = Image.Exif()
    exif[0x0112] = 6
    for image in (picture(600, 400), picture(600, 400, "L"), picture(600, 400, "CMYK")):
        data = saved(image, "JPEG", exif=exif)
        as_in_file = ImageRecipe(45, 60, 3, upright=False)
        for recipe in (
            as_in_file,
            ImageRecipe(60, 45, 3),
            ImageRecipe(60, 45, 1),
            ImageRecipe(900, 900, 4),
            exact(610, 300, 2),
        ):
            other = dataclasses.replace(recipe, decoder="opencv")
            assert difference(decode_image(data, other), decode_image(data, recipe)) < 1
        for broken in (data[:-2], data[: len(data) // 2]):
            with pytest.raises(MediaError, match="cut short"):
                decode_image(broken, other)


@pytest.mark.parametrize(("found", "wanted"), [(224, 224), (100, 224), (250, 224), (448, 224), (500, 224), (1999, 224)])
def test_smoothing_kernel_variance_equals_pillow(found, wanted):
    weights = images.smoothing_kernel(found, wanted).astype(float)
    places = np.arange(len(weights)) - len(weights) // 2
    assert len(weights) % 2 == 1
    assert weights.sum() == pytest.approx(1)
    # A triangle of ratio r has the variance r² / 6, and linear interpolation has that of ratio 1.
    assert weights @ places**2 == pytest.approx((max(1, found / wanted) ** 2 - 1) / 6, abs=1e-5)


@pytest.mark.parametrize("size", [(500, 375), (640, 240), (224, 224), (150, 120)])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_opencv_resize_is_close_to_pillow(size, channels):
    cv2 = pytest.importorskip("cv2")
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3)).astype(np.uint8)
    data = saved(Image.fromarray(noise), "JPEG", quality=95)
    ours, pillows = (decode_image(data, ImageRecipe(224, 224, channels, decoder=by)) for by in ("opencv", "pillow"))
    # Noise is the hardest case: plain interpolation differs several times more.
    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR if channels > 1 else cv2.IMREAD_GRAYSCALE)
    plain = np.atleast_3d(cv2.resize(decoded, (224, 224)))[:, :, ::-1].transpose(2, 0, 1)
    assert difference(ours, pillows) < 4
    if max(size) > 224:
        assert difference(ours[: len(plain)], pillows[: len(plain)]) < difference(plain, pillows[: len(plain)]) / 4


def test_missing_opencv_raises(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    recipe = ImageRecipe(4, 4, 3, decoder="opencv")
    with pytest.raises(ImportError, match="pip install opencv"):
        decode_image(saved(picture(), "JPEG"), recipe)
    assert decode_image(saved(picture(), "PNG"), recipe).shape == (3, 4, 4)


def test_importing_module_does_not_import_pillow():
    code = "import sys, daskprep.extensions.media.images; assert not {'PIL', 'cv2'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_recipe_pickles_and_digest_depends_on_settings():
    recipe = ImageRecipe(3, 4, 1, formats=("PNG",), mask=True)
    assert pickle.loads(pickle.dumps(recipe)).digest() == recipe.digest()
    assert recipe.shape == (1, 3, 4)
    changes = [
        {"height": 9}, {"width": 9}, {"channels": 3}, {"resize_method": "crop_or_pad"}, {"formats": ["GIF"]},
        {"max_pixels": 9}, {"decoder": "opencv"}, {"mask": False},
    ]  # fmt: skip
    digests = {dataclasses.replace(recipe, **change).digest() for change in [{}, *changes]}
    assert len(digests) == 9


@pytest.mark.parametrize(("change", "message"), [
    ({"height": 0}, "height is 0"), ({"channels": 5}, "channels is 5: expected one of 1, 2, 3, 4"),
    ({"formats": ["PGN"]}, 'mean "PNG"'),
])  # fmt: skip
def test_invalid_recipe_raises(change, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(ImageRecipe(3, 4, 1), **change)


def test_encode_png_round_trips():
    random = np.random.default_rng(1)
    for shape in ((5, 7), (5, 7, 2), (5, 7, 3), (4, 9, 7)):
        array = random.integers(0, 256, shape, dtype=np.uint8)
        height, width, channels = read_image_header(encode_png(array))[:3]
        recipe = exact(height, width, channels)
        expected = array[None] if array.ndim == 2 else array if shape[2] == 7 else array.transpose(2, 0, 1)
        np.testing.assert_array_equal(decode_image(encode_png(array), recipe), expected)
    deep = random.integers(0, 65_536, (5, 7), dtype=np.uint16)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(encode_png(deep)))), deep)


def test_encode_png_is_deterministic():
    first, second = picture(), picture()
    second.info.update(dpi=(72, 72), comment="b", icc_profile=b"profile")
    assert encode_png(first) == encode_png(second) == encode_png(np.asarray(first))
    assert encode_png(first) == encode_png(np.asfortranarray(np.asarray(first)))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I", "F", "I;16"])
def test_encode_png_pillow_modes(mode):
    grey = picture(mode="L")
    image = {
        "I": lambda: Image.fromarray(np.asarray(grey).astype(np.int32) * 257),
        "I;16": lambda: Image.fromarray(np.asarray(grey).astype(np.uint16) * 257),
        "F": lambda: Image.fromarray(np.asarray(grey).astype(np.float32) / 255),
    }.get(mode, lambda: picture().convert(mode))()
    expected = grey if mode in {"I", "I;16", "F"} else image
    pixels = decode_image(encode_png(image), exact(40, 60, 3))
    np.testing.assert_array_equal(pixels, plain(expected.convert("RGB")))


def test_encode_png_keeps_orientation_and_input():
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.open(io.BytesIO(saved(picture(), "PNG", exif=exif)))
    image.load()
    assert read_image_header(encode_png(image)) == (60, 40, 3, 6)
    np.testing.assert_array_equal(decode_image(encode_png(image), exact(40, 60, 3, upright=False)), plain(picture()))
    assert image.size == (60, 40)
    transparent = Image.open(io.BytesIO(saved(picture().quantize(16), transparency=0)))
    assert read_image_header(encode_png(transparent))[:3] == (40, 60, 4)
    assert transparent.mode == "P"
    assert transparent.info["transparency"] == 0


@pytest.mark.parametrize(("sizes", "expected"), [
    ([(10, 20, 3)], (10, 20, 3)),
    ([(10, 20, 1), (11, 21, 1), (12, 25, 3)], (11, 22, 1)),
    ([(10, 20, 1), (10, 20, 3)], (10, 20, 3)),
    ([(10, 20, 2)] * 2 + [(10, 20, 4)], (10, 20, 2)),
    ([(10, 20, 4)] * 2 + [(10, 20, 1)], (10, 20, 4)),
    ([(1, 1, 3), (2, 4, 3)], (2, 2, 3)),  # halves to even
    ([(900, 800, 3)], (256, 256, 3)),
    ([(900, 80, 3)], (256, 80, 3)),
])  # fmt: skip
def test_inferred_sizes(sizes, expected):
    assert infer_size(sizes) == expected


def test_class_colors_are_sorted_and_map_to_labels():
    colours = np.array([[0, 0, 0], [0, 200, 1], [7, 0, 0], [255, 255, 255]], dtype=np.uint8)
    labels = np.random.default_rng(0).integers(0, 4, (9, 11), dtype=np.uint8)
    mask = colours[labels].transpose(2, 0, 1)
    found = find_class_colours([mask[:, :4], mask[:, 4:]])
    np.testing.assert_array_equal(found, colours)
    classes, unseen = map_to_classes(mask, found)
    np.testing.assert_array_equal(classes, labels)
    assert (classes.dtype, unseen) == (np.uint8, 0)
    classes, unseen = map_to_classes(mask, found[[0, 2]])
    np.testing.assert_array_equal(classes, labels == 2)
    assert unseen == np.isin(labels, [1, 3]).sum()


def test_two_level_masks_are_rounded():
    mask = np.array([[[0, 3, 127, 128, 250]]], dtype=np.uint8)
    assert find_class_colours([mask]).ravel().tolist() == [0, 3, 127, 128, 250]
    classes, unseen = map_to_classes(mask, np.array([[0], [255]], np.uint8), two_levels=True)
    assert (classes.tolist(), unseen) == ([[0, 0, 0, 1, 1]], 0)


def test_class_colors_invalid_masks_raise():
    ramp = np.arange(130, dtype=np.uint8).reshape(1, 10, 13)
    with pytest.raises(MediaError, match="more than 128 colors"):
        find_class_colours([ramp])
    assert find_class_colours([ramp], max_colours=130).shape == (130, 1)
    with pytest.raises(MediaError, match="1 and 3 channels"):
        find_class_colours([ramp[:, :2], np.zeros((3, 2, 2), np.uint8)])
    with pytest.raises(MediaError, match="1 channels: expected 3"):
        map_to_classes(ramp, np.zeros((2, 3), np.uint8))


def test_masks_are_resized_without_interpolation():
    labels = np.array([[0, 1], [7, 255]], dtype=np.uint16)
    recipe = ImageRecipe(6, 6, 1, mask=True)
    found = decode_image(encode_png(labels), recipe)[0]
    np.testing.assert_array_equal(found, np.kron(labels, np.ones((3, 3), np.uint16)))
    with pytest.raises(MediaError, match="labels range from 1 to 256: expected 0 to 255"):
        decode_image(encode_png(labels + 1), recipe)
    jpeg = saved(picture(900, 700), "JPEG")
    nearest = Image.open(io.BytesIO(jpeg)).resize((50, 40), Image.Resampling.NEAREST)
    np.testing.assert_array_equal(decode_image(jpeg, ImageRecipe(40, 50, 3, mask=True)), plain(nearest))


def test_jpeg_end_marker_in_comment_is_ignored():
    if importlib.util.find_spec("cv2") is None:
        pytest.skip("needs OpenCV")
    data = saved(picture(), "JPEG", comment=b"thumbnail \xff\xd9")
    with pytest.raises(MediaError, match="without an end"):
        decode_image(data[:-2], ImageRecipe(8, 8, 3, decoder="opencv"))


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_pixels_do_not_depend_on_pillow_memory_blocks(mode):
    image = picture(width=300, height=200, mode=mode)
    recipe = ImageRecipe(height=150, width=160, channels=len(mode))
    resized = np.asarray(image.resize((160, 150), BILINEAR, reducing_gap=2.0)).transpose(2, 0, 1)
    before = Image.core.get_block_size()
    Image.core.set_block_size(1 << 12)  # so that an image lies in several pieces
    try:
        decoded = decode_image(saved(image), recipe)
    finally:
        Image.core.set_block_size(before)
    np.testing.assert_array_equal(decoded, resized)


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_npy_files_equal_arrays_in_memory():
    random = np.random.default_rng(1)
    colours = random.integers(0, 256, (7, 9, 3), np.uint8)
    deep = random.integers(0, 65_536, (7, 9), np.uint16)
    shares = random.random((3, 7, 9), np.float32)
    for array in (colours, colours[..., 0], colours.transpose(2, 0, 1), np.asfortranarray(colours), deep, shares):
        recipe = ImageRecipe(5, 6, 3)
        np.testing.assert_array_equal(decode_image(npy(array), recipe), decode_image(encode_png(array), recipe))
    classes = np.array([[0, 1, 2]], np.uint16)
    assert decode_image(npy(classes), ImageRecipe(1, 3, 1, mask=True)).tolist() == [[[0, 1, 2]]]
    assert read_image_header(npy(colours))[:3] == (7, 9, 3)


@pytest.mark.parametrize(("data", "reason"), [
    (npy(np.zeros((4, 4)))[:-1], "cut short"), (npy(np.full((4, 4), 2.0)), "float pixels range from 2.0 to 2.0"),
    (npy(np.zeros((2, 2, 2, 2))), "of shape"), (npy(np.array(["a"])), "expected numbers"),
    (npy(np.zeros((30, 50), np.uint8)), "30 x 50 pixels"), (npy(np.zeros(0, np.uint8)), "of shape"),
    (npy(np.zeros((2, 2), np.int64)), "array of int64"), (b"\x93NUMPY\x01\x00", "not a .npy file"),
    (npy(np.zeros((9, 9), np.uint8)).replace(b"(9, 9)", b"(((((" ), "not a .npy file"),
])  # fmt: skip
def test_invalid_npy_files_raise(data, reason):
    with pytest.raises(MediaError, match=reason):
        decode_image(data, ImageRecipe(4, 4, 3, max_pixels=1_000))


def test_npy_with_pickled_objects_raises():
    objects = io.BytesIO()
    np.save(objects, np.array([[{"a": 1}]], object), allow_pickle=True)
    with pytest.raises(MediaError, match="expected numbers"):
        decode_image(objects.getvalue(), ImageRecipe(4, 4, 3))
