"""JPEG files decoded by nvImageCodec on a GPU, or by a stand-in with Pillow."""

import contextlib
import importlib.util
import io
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from PIL import Image

import daskprep as dp
from daskprep.columns.deferred.decoders import STORED_TYPE
from daskprep.columns.deferred.reader import MediaReader
from daskprep.errors import ConfigError, MediaError
from daskprep.extensions.media import gpu
from daskprep.extensions.media.decoders import ImageDecoder
from daskprep.extensions.media.images import ImageRecipe

HAS_GPU = torch.cuda.is_available() and importlib.util.find_spec("nvidia.nvimgcodec") is not None
BILINEAR = Image.Resampling.BILINEAR


class PillowLibrary:
    """A stand-in for nvImageCodec: decodes with Pillow, and records the number of files per call."""

    Backend = staticmethod(lambda kind: kind)
    BackendKind = SimpleNamespace(HW_GPU_ONLY="circuits", HYBRID_CPU_GPU="both")
    ColorSpec = SimpleNamespace(GRAY=0, SRGB=1)
    SampleFormat = SimpleNamespace(P_Y="L", P_RGB="RGB")
    DecodeParams = SimpleNamespace

    def __init__(self):
        self.batch_sizes = []
        self.kinds = []
        self.unknown = lambda data: False

    def Decoder(self, device_id, backends):
        self.kinds += backends
        return self

    def decode(self, files, params, cuda_stream):
        self.batch_sizes.append(len(files))
        return [None if self.unknown(data) else self._decoded(data, params.sample_format) for data in files]

    def _decoded(self, data, mode):
        pixels = np.asarray(Image.open(io.BytesIO(data)).convert(mode))
        return torch.from_numpy(np.atleast_3d(pixels).transpose(2, 0, 1).copy())


@pytest.fixture
def library(monkeypatch):
    """Return the stand-in."""
    one = PillowLibrary()
    monkeypatch.setattr(gpu, "_current_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(gpu, "_decoders", {})
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", one)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace(cuda_stream=1))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    return one


@pytest.fixture
def decoder_of_files(request):
    """Use the GPU of this machine, or the stand-in."""
    if not HAS_GPU:
        request.getfixturevalue("library")


def picture(width=60, height=40, mode="RGB"):
    coarse = np.random.default_rng(7).integers(0, 256, (4, 6, 4), dtype=np.uint8)
    return Image.fromarray(coarse).convert("RGB").resize((width, height), BILINEAR).convert(mode)


def jpeg(image, orientation=1, **options):
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    image.save(file, "JPEG", exif=exif, quality=95, **options)
    return file.getvalue()


def png(image):
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def decoded(files, recipe, decoder="gpu", on_error="raise"):
    """Return the pixels of files, and the failures."""
    data = [None if file is None else {"bytes": file, "path": None} for file in files]
    recipe = ImageRecipe(**{**vars(recipe), "decoder": decoder})
    colour = (9,) * recipe.channels
    one = ImageDecoder(MediaReader(), on_error, recipe, missing=colour, broken=colour)
    out = np.full((len(files), *recipe.shape), 77, np.uint8)
    failures = one.decode(pa.array(data, STORED_TYPE), out)
    return out, failures


def difference(left, right):
    assert left.shape == right.shape
    return np.abs(left.astype(int) - right).mean()


RECIPES = [
    ImageRecipe(60, 45, 3),
    ImageRecipe(45, 60, 1),
    ImageRecipe(700, 700, 4),
    ImageRecipe(400, 600, 3),
    ImageRecipe(610, 301, 2, resize_method="crop_or_pad"),
    ImageRecipe(100, 101, 3, resize_method="crop_or_pad"),
    ImageRecipe(60, 45, 3, upright=False),
]


@pytest.mark.usefixtures("decoder_of_files")
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_orientations_equal_pillow(recipe, mode):
    files = [jpeg(picture(600, 400, mode), orientation) for orientation in range(1, 9)]
    (ours, none), (pillows, _) = decoded(files, recipe), decoded(files, recipe, "pillow")
    assert not none
    for one, other in zip(ours, pillows, strict=True):
        assert difference(one, other) < 1


@pytest.mark.usefixtures("decoder_of_files")
@pytest.mark.parametrize(
    "options",
    [
        {"subsampling": 0},
        {"subsampling": 1},
        {"subsampling": 2},
        {"progressive": True},
        {"restart_marker_rows": 1},
        {"optimize": True},
        {"keep_rgb": True},
    ],
    ids=str,
)
def test_jpeg_variants_equal_pillow(options):
    file = jpeg(picture(333, 217), **options)
    recipe = ImageRecipe(217, 333, 3)
    assert difference(decoded([file], recipe)[0], decoded([file], recipe, "pillow")[0]) < 1.5


@pytest.mark.usefixtures("decoder_of_files")
def test_pixels_do_not_depend_on_batch():
    noise = np.random.default_rng(0).integers(0, 256, (37, 90, 90, 3)).astype(np.uint8)
    sizes = [(50 + 3 * number, 90 - number) for number in range(37)]
    files = [jpeg(Image.fromarray(one).resize(size)) for one, size in zip(noise, sizes, strict=True)]
    recipe = ImageRecipe(24, 32, 3)
    together = decoded(files, recipe)[0]
    apart = np.concatenate([decoded([file], recipe)[0] for file in files])
    backwards = decoded(files[::-1], recipe)[0][::-1]
    np.testing.assert_array_equal(together, apart)
    np.testing.assert_array_equal(together, backwards)


@pytest.mark.usefixtures("decoder_of_files")
def test_other_files_are_decoded_by_pillow():
    progressive, plain_colours = jpeg(picture(), progressive=True), jpeg(picture(), keep_rgb=True)
    files = [
        png(picture()),
        jpeg(picture(mode="CMYK")),
        None,
        jpeg(picture()),
        jpeg(picture(9000, 20)),
        progressive,
        plain_colours,
    ]
    recipe = ImageRecipe(20, 30, 3)
    (ours, none), (pillows, _) = decoded(files, recipe), decoded(files, recipe, "pillow")
    assert not none
    others = [0, 1, 2, 4, 5, 6]
    np.testing.assert_array_equal(ours[others], pillows[others])
    assert difference(ours[3], pillows[3]) < 2  # Pillow decodes at half the size


@pytest.mark.usefixtures("decoder_of_files")
def test_broken_files_are_failures_by_row():
    good = jpeg(picture())
    files = [b"", good, good[:-2], good[: len(good) // 2], b"\xff\xd8\xff" + bytes(30), good]
    out, failures = decoded(files, ImageRecipe(40, 60, 3), on_error="fill")
    assert [failure.row for failure in failures] == [0, 2, 3, 4]
    assert all("cut short" in failure.reason for failure in failures[1:])
    assert (out[[0, 2, 3, 4]] == 9).all()
    np.testing.assert_array_equal(out[1], out[5])


def test_undecodable_files_fall_back_to_pillow(library):
    good, other = jpeg(picture()), jpeg(picture(61, 41))
    library.unknown = lambda data: data == other
    recipe = ImageRecipe(20, 30, 3)
    out, failures = decoded([other, good, other], recipe)
    assert not failures
    pillows = decoded([other, good, other], recipe, "pillow")[0]
    np.testing.assert_array_equal(out[[0, 2]], pillows[[0, 2]])


def test_file_failing_its_call_does_not_affect_others(library):
    bad, good = jpeg(picture(61, 41)), jpeg(picture())
    plain = library.decode

    def all_or_nothing(files, **options):
        return [None] * len(files) if bad in files else plain(files, **options)

    recipe = ImageRecipe(20, 30, 3)
    expected = decoded([good], recipe)[0][0]
    library.decode = all_or_nothing
    out, failures = decoded([good, bad, good], recipe)
    assert not failures
    np.testing.assert_array_equal(out[[0, 2]], [expected, expected])
    np.testing.assert_array_equal(out[[1]], decoded([bad], recipe, "pillow")[0])


def test_batch_size_is_limited_by_memory(library, sizes):
    file, recipe = jpeg(picture()), ImageRecipe(40, 60, 3)
    expected = decoded([file], recipe)[0][0]
    target = gpu.Target(*recipe.shape, crop=False)
    sizes(gpu_bytes=2 * gpu.Jpeg(file, (60, 40), 1).nbytes(target))
    out = decoded([file] * 5, recipe)[0]
    assert library.batch_sizes == [1, 2, 2, 1]
    np.testing.assert_array_equal(out, [expected] * 5)


def test_group_files_reads_lazily(sizes):
    target, read = gpu.Target(3, 4, 4, crop=False), []
    sizes(gpu_bytes=3 * gpu.Jpeg(b"", (8, 8), 1).nbytes(target))

    def files():
        for row in range(8):
            read.append(row)
            yield row, gpu.Jpeg(b"", (8, 8), 1)

    groups = gpu.group_files(files(), target)
    assert list(next(groups)) == [0, 1, 2]
    assert read == [0, 1, 2, 3]
    assert [list(group) for group in groups] == [[3, 4, 5], [6, 7]]


def test_very_large_images_are_decoded_by_pillow(library, sizes):
    sizes(gpu_pixels=60 * 40)
    files, recipe = [jpeg(picture()), jpeg(picture(100, 100))], ImageRecipe(40, 60, 3)
    out = decoded(files, recipe)[0]
    assert library.batch_sizes == [1]
    np.testing.assert_array_equal(out[1], decoded(files, recipe, "pillow")[0][1])


def test_gpu_errors_propagate(library):
    def out_of_memory(data):
        raise torch.OutOfMemoryError("no memory")

    library.unknown = out_of_memory
    with pytest.raises(torch.OutOfMemoryError):
        decoded([jpeg(picture())], ImageRecipe(4, 4, 3), on_error="fill")


@pytest.mark.usefixtures("decoder_of_files")
@pytest.mark.parametrize("mode", ["lazy", "lazy_cached", "eager"])
def test_datasets_and_loaders_decode_on_gpu(mode, tmp_path):
    frame = pd.DataFrame({"photo": [jpeg(picture(50 + row, 40)) for row in range(40)], "row": range(40)})

    def rows(decoder):
        photo = dp.Image(height=24, width=24, num_channels=3, mode=mode, jpeg_decoder=decoder, expand_to="uint8")
        prep = dp.Preprocessor({"photo": photo, "row": dp.Number(normalization=None)}, split=None)
        dataset = prep.fit_write(frame, tmp_path / decoder, progress=False)
        for _ in range(2):  # the second epoch may come from a cache
            found = {}
            for batch in dataset["train"].loader(7):
                found |= dict(zip(batch["row"].tolist(), batch["photo"].numpy(), strict=True))
        return np.stack([found[row] for row in range(40)])

    assert difference(rows("gpu"), rows("pillow")) < 1


def test_masks_on_gpu_raise():
    with pytest.raises(ConfigError, match="decodes no masks"):
        dp.Image(num_classes=2, jpeg_decoder="gpu").fit(pd.DataFrame({"photo": [png(picture())]}))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_missing_gpu_raises():
    with pytest.raises(ConfigError, match="needs an NVIDIA GPU"):
        decoded([jpeg(picture())], ImageRecipe(4, 4, 3))


def test_fit_without_gpu_and_change_decoder(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    frame = pd.DataFrame({"photo": [jpeg(picture()), jpeg(picture(50, 40))]})
    photo = dp.Image(height=24, width=24, num_channels=3, jpeg_decoder="gpu", on_error="fill", expand_to="uint8")
    prep = dp.Preprocessor({"photo": photo}, split=None)
    dataset = prep.fit_write(frame, tmp_path / "photos", progress=False)
    with pytest.raises(ConfigError, match=r'set_params\(jpeg_decoder="pillow"\)'):
        prep.encode(frame)
    with pytest.raises(ConfigError, match="needs an NVIDIA GPU"):
        next(iter(dataset["train"].loader(2)))
    for features in (prep.features_, dataset.features):
        features["photo"].set_params(jpeg_decoder="pillow")
    found = next(iter(dataset["train"].loader(2, shuffle=False)))["photo"].numpy()
    np.testing.assert_array_equal(found, prep.encode(frame)["photo"])


def test_missing_package_raises(library, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", None)
    with pytest.raises(ImportError, match="pip install .nvidia-nvimgcodec-cu13"):
        decoded([jpeg(picture())], ImageRecipe(4, 4, 3))


@pytest.mark.parametrize("circuits", [True, False])
def test_gpu_without_jpeg_hardware_falls_back_or_raises(library, circuits):
    def made(device_id, backends):
        library.kinds += backends
        if backends == ["circuits"] or not circuits:
            raise RuntimeError("could not create decoder")
        return library

    library.Decoder = made
    if circuits:
        assert not decoded([jpeg(picture())], ImageRecipe(4, 4, 3))[1]
    else:
        with pytest.raises(ImportError, match="not for this driver"):
            decoded([jpeg(picture())], ImageRecipe(4, 4, 3))
    assert library.kinds == ["circuits", "both"]


def decode_concurrently(library, files, recipes, then=lambda data: False):
    """Decode a file per thread while another call is running, and return the futures."""
    started, go = threading.Event(), threading.Event()

    def unknown(data):
        if started.is_set():
            return then(data)
        started.set()
        assert go.wait(60)
        return False

    library.unknown = unknown
    with ThreadPoolExecutor(len(files) + 1) as pool:
        first = pool.submit(decoded, [jpeg(picture())], recipes[0])
        assert started.wait(60)
        others = [pool.submit(decoded, [file], recipe) for file, recipe in zip(files, recipes, strict=True)]
        [decoder] = gpu._decoders.values()
        while len(decoder._pending) < len(files):
            time.sleep(0.001)
        go.set()
    assert not first.result()[1]
    return others


def test_waiting_threads_share_one_call(library):
    files = [jpeg(picture(50 + number, 40)) for number in range(6)]
    recipe = ImageRecipe(20, 30, 3)
    others = decode_concurrently(library, files, [recipe] * 6)
    assert library.batch_sizes == [1, 6]
    for file, other in zip(files, others, strict=True):
        np.testing.assert_array_equal(other.result()[0], decoded([file], recipe)[0])


def test_shared_calls_split_by_channels_and_memory(library, sizes):
    file, colours, grey = jpeg(picture()), ImageRecipe(20, 30, 3), ImageRecipe(20, 30, 1)
    target = gpu.Target(*colours.shape, crop=False)
    sizes(gpu_bytes=2 * gpu.Jpeg(file, (60, 40), 1).nbytes(target))
    recipes = [colours, colours, colours, grey, colours]
    others = decode_concurrently(library, [file] * 5, recipes)
    assert sum(library.batch_sizes) == 6
    assert max(library.batch_sizes) <= 2
    for other, recipe in zip(others, recipes, strict=True):
        np.testing.assert_array_equal(other.result()[0], decoded([file], recipe)[0])


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, KeyboardInterrupt])
def test_error_of_shared_call_reaches_every_thread(library, error):
    def fails(data):
        raise error("no memory")

    for other in decode_concurrently(library, [jpeg(picture())] * 3, [ImageRecipe(4, 4, 3)] * 3, fails):
        with pytest.raises(error):
            other.result()


def test_broken_file_error_names_row(library, tmp_path):
    frame = pd.DataFrame({"photo": [jpeg(picture()), jpeg(picture())[:-2]]})
    photo = dp.Image(height=4, width=4, num_channels=3, mode="eager", jpeg_decoder="gpu")
    with pytest.raises(MediaError, match='column "photo", row 1: .*cut short'):
        dp.Preprocessor({"photo": photo}, split=None).fit_write(frame, tmp_path / "out", progress=False)
