from __future__ import annotations

import base64
import dataclasses
import io
import operator

import numpy as np
import pyarrow as pa
import pytest

from daskprep.columns.summaries import FileSample, Rejects
from daskprep.columns.summaries.samples import PixelSums, mean_image
from daskprep.errors import MediaError

PATHS = pa.array(["a.png", None, "b.png", None])
DATA = pa.array([None, b"xy", None, None], pa.large_binary())


def test_paths_and_bytes_are_counted_and_sampled() -> None:
    sample = FileSample.of(PATHS, DATA, 4, lambda content: content.to_pybytes())
    assert (sample.limit, sample.cells, sample.bytes) == (4, 4, 12)
    assert sorted((file.path, file.facts) for file in sample.files) == [("", b"xy"), ("a.png", None), ("b.png", None)]


def test_limit_0_samples_nothing() -> None:
    sample = FileSample.of(PATHS, DATA, 0, lambda content: pytest.fail("a file was looked at"))
    assert (sample.cells, sample.bytes, sample.files) == (4, 12, ())


def test_merging_keeps_the_larger_limit() -> None:
    one, none = (FileSample.of(PATHS[:1], DATA[:1], limit, bytes) for limit in (1, 0))
    both = one + FileSample.of(PATHS[2:], DATA[2:], 2, bytes)
    assert (both.limit, len(both.files)) == (2, 2)
    assert (one + none).files == (none + one).files == one.files


def test_merging_another_summary_raises() -> None:
    with pytest.raises(AttributeError):
        operator.add(FileSample(), Rejects())


def test_equal_files_are_sampled_once_and_repeated_rows_counted() -> None:
    data = pa.array([b"xy", b"z", b"xy", None], pa.large_binary())
    sample = FileSample.of(pa.array([None, None, None, "a"]), data, 2, lambda content: content.to_pybytes())
    whole = FileSample.of(pa.array([None, None, None, "a"]), data, 9, lambda content: content.to_pybytes())
    assert sample.files == whole.files[:2] == tuple(sorted(whole.files)[:2])
    assert sorted((file.path, file.facts) for file in whole.files) == [("", b"xy"), ("", b"z"), ("a", None)]
    thrice, never = whole * 3, whole * 0
    assert (thrice.limit, thrice.cells, thrice.bytes, thrice.files, thrice.pixels) == (9, 12, 18, whole.files, None)
    assert (never.limit, never.cells, never.bytes, never.files) == (9, 0, 0, ())


IMAGES = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 2), np.uint8)
NO_FILES = pa.nulls(1, pa.string()), pa.nulls(1, pa.large_binary())


@pytest.mark.parametrize("by_pixel", [False, True])
def test_pixel_mean_and_deviation_equal_numpy(by_pixel: bool) -> None:
    sums = PixelSums.of(IMAGES[:2], by_pixel=by_pixel) + PixelSums.of(IMAGES[2:], by_pixel=by_pixel)
    assert sums == PixelSums.of(IMAGES, by_pixel=by_pixel)
    found, expected = sums.statistics(8), IMAGES / 255
    np.testing.assert_allclose(found["mean"], expected.mean(axis=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(found["deviation"], expected.std(axis=(0, 2, 3)), rtol=1e-12)
    if not by_pixel:
        assert found["mean_image"] is None
        return
    image = mean_image(found["mean_image"])
    assert (image.shape, image.dtype) == ((3, 4, 2), np.float32)
    np.testing.assert_array_equal(image, expected.mean(axis=0).astype(np.float32))


def test_pixel_sums_do_not_overflow() -> None:
    sums = PixelSums.of(np.full((300, 1, 16, 16), 255, np.uint8), by_pixel=False)
    assert (sums.images, sums.sums.tolist(), sums.squares.tolist()) == (300, [19_584_000], [4_993_920_000])
    assert sums.sums.dtype == sums.squares.dtype == np.int64
    assert sums.statistics(256) == {"mean": [1.0], "deviation": [0.0], "mean_image": None}


def test_mean_image_is_never_unpickled() -> None:
    file = io.BytesIO()
    np.save(file, np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        mean_image(base64.b64encode(file.getvalue()).decode())


def test_statistics_without_images_raise() -> None:
    with pytest.raises(MediaError, match="no image to learn pixel_statistics from"):
        PixelSums.of(IMAGES[:0], by_pixel=True).statistics(8)


def test_pixels_are_merged_only_if_both_sides_have_them() -> None:
    pixels = PixelSums.of(IMAGES, by_pixel=False)
    plain = FileSample.of(*NO_FILES, 1, len)
    with_pixels = dataclasses.replace(plain, pixels=pixels)
    assert (with_pixels + with_pixels).pixels == pixels + pixels == (with_pixels * 2).pixels
    assert (with_pixels + plain).pixels is (plain + with_pixels).pixels is None
