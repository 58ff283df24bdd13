"""Columns of cells become arrays, with missing and broken cells."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from daskprep.columns.deferred.cells import convert_media_column
from daskprep.columns.deferred.decoders import STORED_TYPE, Failure, MediaDecoder
from daskprep.columns.deferred.reader import MediaReader
from daskprep.extensions.media.audio import AudioRecipe, decode_audio, encode_wav
from daskprep.extensions.media.decoders import AudioDecoder, ImageDecoder
from daskprep.extensions.media.images import ImageRecipe, decode_image
from daskprep.extensions.media.pixels import encode_png
from daskprep.extensions.media.spectra import compute_features
from tests.sizes import sized

RECIPE = ImageRecipe(3, 4, 3)
IMAGES = ImageDecoder(MediaReader(), "fill", RECIPE, missing=(1, 2, 3), broken=(7, 8, 9))
SPECTRA = AudioRecipe("fbank", 8_000, length_limit_in_s=0.2, num_filter_bands=5)
SOUNDS = AudioDecoder(MediaReader(), "fill", SPECTRA, missing=5.0, broken=-5.0)


def picture(seed: int = 0) -> bytes:
    return encode_png(np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8))


def sound(seed: int = 0, samples: int = 900) -> bytes:
    return encode_wav(np.random.default_rng(seed).uniform(-1, 1, samples), 8_000)


def decoded(decoder: MediaDecoder, cells: pa.StructArray) -> tuple[np.ndarray, list[Failure]]:
    out = np.full((len(cells), *decoder.shape), 77, decoder.dtype)
    return out, decoder.decode(cells, out)


def test_images_are_decoded_into_rows() -> None:
    cells = convert_media_column([picture(0), picture(1)], "image")
    out, failures = decoded(IMAGES, cells)
    assert not failures
    assert np.array_equal(out, [decode_image(picture(k), RECIPE) for k in (0, 1)])


def test_missing_and_broken_images_are_filled() -> None:
    out, failures = decoded(IMAGES, convert_media_column([None, b"GIF", picture()], "image"))
    assert [(one.row, one.cell) for one in failures] == [(1, "bytes in memory")]
    assert "not an image" in failures[0].reason
    assert out[0, :, 0, 0].tolist() == [1, 2, 3]
    assert (out[1].transpose(1, 2, 0) == [7, 8, 9]).all()
    assert np.array_equal(out[2], decode_image(picture(), RECIPE))


def test_failures_are_in_row_order_with_paths(tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(picture()[:60])
    cells = convert_media_column(
        [str(tmp_path / "none.png"), None, str(tmp_path / "bad.png"), "http://u:p@:0/x"], "image"
    )
    failures = decoded(IMAGES, cells.slice(0, 3))[1]
    assert [one.row for one in failures] == [0, 2]
    assert failures[0] == Failure(0, str(tmp_path / "none.png"), "no such file or directory")
    assert "cut short" in failures[1].reason


@pytest.mark.parametrize("decoder", [IMAGES, SOUNDS], ids=["image", "audio"])
def test_storage_error_is_not_a_failure_of_cell(decoder: MediaDecoder) -> None:
    cells = convert_media_column(["/a.png"], "image")
    with mock.patch.object(MediaReader, "read", side_effect=OSError("disk")), pytest.raises(OSError, match="disk"):
        decoded(decoder, cells)


def test_masks_become_classes_and_unseen_colors_class_0() -> None:
    mask = np.array([[0, 9], [5, 1]], np.uint8)
    recipe = ImageRecipe(2, 2, 1, "crop_or_pad", mask=True)
    decoder = ImageDecoder(MediaReader(), "fill", recipe, (2,), (1,), colours=((0,), (5,), (9,)))
    with pytest.warns(UserWarning, match="masks have pixels of other colors than the 3 class colors"):
        out, _ = decoded(decoder, convert_media_column([encode_png(mask), None, b"x"], "image"))
    assert decoder.shape == (2, 2)
    assert out.tolist() == [[[0, 2], [1, 0]], [[2, 2], [2, 2]], [[1, 1], [1, 1]]]


def test_masks_of_two_levels_are_rounded() -> None:
    recipe = ImageRecipe(1, 2, 1, mask=True)
    decoder = ImageDecoder(MediaReader(), "raise", recipe, (0,), (0,), ((0,), (255,)), two_levels=True)
    out, _ = decoded(decoder, convert_media_column([encode_png(np.array([[100, 200]], np.uint8))], "image"))
    assert out.tolist() == [[[0, 1]]]


def test_audio_with_missing_and_broken_cells() -> None:
    rows = [None, sound(0), b"noise", None, sound(1, 5_000), b"x", None]
    out, failures = decoded(SOUNDS, convert_media_column(rows, "audio"))
    assert [one.row for one in failures] == [2, 5]
    assert (out[[0, 3, 6]] == 5).all()
    assert (out[[2, 5]] == -5).all()
    waves = [decode_audio(rows[row], SPECTRA) for row in (1, 4)]
    assert np.array_equal(out[[1, 4]], compute_features(waves, SPECTRA))


@pytest.mark.parametrize("samples", [1, 1_000, 10**9])
def test_audio_does_not_depend_on_groups(samples: int) -> None:
    cells = convert_media_column([sound(0), None, sound(1), b"x", sound(2)], "audio")
    whole, _ = decoded(SOUNDS, cells)
    with sized(spectra_samples=samples):
        assert np.array_equal(decoded(SOUNDS, cells)[0], whole)


@pytest.mark.parametrize(("decoder", "kind"), [(IMAGES, "image"), (SOUNDS, "audio")])
def test_empty_column_is_decoded_and_packed(decoder: MediaDecoder, kind: str) -> None:
    none = convert_media_column([], kind)  # type: ignore[arg-type]
    assert decoded(decoder, none)[0].shape == (0, *decoder.shape)
    assert decoder.pack(none)[0].type == STORED_TYPE


def test_pack_replaces_paths_by_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture())
    gone = str(tmp_path / "gone.png")
    packed, failures = IMAGES.pack(convert_media_column([str(tmp_path / "a.png"), None, gone, b"in memory"], "image"))
    contents = [{"bytes": picture(), "path": None}, None, {"bytes": None, "path": gone}]
    assert packed.to_pylist() == [*contents, {"bytes": b"in memory", "path": None}]
    assert failures == [Failure(2, gone, "no such file or directory")]


def test_packed_cells_decode_like_files(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(sound())
    cells = convert_media_column([str(tmp_path / "a.wav"), None], "audio")
    assert np.array_equal(decoded(SOUNDS, SOUNDS.pack(cells)[0])[0], decoded(SOUNDS, cells)[0])


CHANGED = {
    "height": replace(IMAGES, recipe=ImageRecipe(4, 4, 3)),
    "missing": replace(IMAGES, missing=(0, 0, 0)),
    "broken": replace(IMAGES, broken=(0, 0, 0)),
    "colours": replace(IMAGES, colours=((0, 0, 0), (1, 1, 1))),
    "levels": replace(IMAGES, two_levels=True),
}


@pytest.mark.parametrize("change", CHANGED)
def test_digest_depends_on_settings(change: str) -> None:
    assert CHANGED[change].digest() != IMAGES.digest()


def test_digest_ignores_reader_and_unused_fills() -> None:
    assert replace(IMAGES, reader=MediaReader("/elsewhere")).digest() == IMAGES.digest()
    strict = replace(IMAGES, on_error="raise")
    assert replace(strict, broken=(0, 0, 0)).digest() == strict.digest()
    assert replace(SOUNDS, missing=0.0).digest() != SOUNDS.digest()
    assert replace(SOUNDS, recipe=replace(SPECTRA, norm="per_file")).digest() != SOUNDS.digest()


@pytest.mark.parametrize(("decoder", "content"), [(IMAGES, picture), (SOUNDS, sound)], ids=["image", "audio"])
def test_decoder_pickles_and_is_thread_safe(decoder: MediaDecoder, content: object) -> None:
    cells = convert_media_column([content(k) for k in range(4)], "image")  # type: ignore[operator]
    copy = pickle.loads(pickle.dumps(decoder))
    assert copy == decoder
    assert copy.digest() == decoder.digest()
    with ThreadPoolExecutor(4) as pool:
        many = list(pool.map(lambda _: decoded(copy, cells)[0], range(8)))
    assert all(np.array_equal(one, decoded(decoder, cells)[0]) for one in many)
