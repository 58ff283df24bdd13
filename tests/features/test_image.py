from __future__ import annotations

import io
import json
import warnings
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from PIL import Image as PILImage
from sklearn.base import clone

import daskprep as dp
from daskprep.columns.summaries.samples import mean_image
from daskprep.errors import ColumnError, ConfigError, MediaError, RejectedValueError
from daskprep.extensions.media.image_feature import LearnedImage
from daskprep.extensions.media.pixels import encode_png
from daskprep.features import Learned
from daskprep.features.base import find_dropped_rows, may_drop_rows
from daskprep.features.media import PARSED_TYPE
from daskprep.passes.table import parse_columns

SMALL = {"height": 2, "width": 3, "num_channels": 1}


def noise(height: int = 6, width: int = 9, channels: int = 3, seed: int = 0) -> np.ndarray:
    shape = (height, width) if channels == 1 else (height, width, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def flat(level: int, height: int = 4, width: int = 4) -> bytes:
    return encode_png(np.full((height, width), level, np.uint8))


def column(*cells) -> pd.DataFrame:
    return pd.DataFrame({"x": list(cells)}, dtype=object)


def fit(feature: dp.Image, *cells) -> dp.Preprocessor:
    return dp.Preprocessor({"x": feature}, split=None).fit(column(*cells))


def encode(feature: dp.Image, *cells) -> np.ndarray:
    return np.asarray(fit(feature, *cells).encode(column(*cells))["x"])


def learned(feature: dp.Image, *cells) -> LearnedImage:
    found = fit(feature, *cells).learned_["x"]
    assert isinstance(found, LearnedImage)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with 24 images of different sizes."""
    for k in range(24):
        (tmp_path / f"{k}.png").write_bytes(encode_png(noise(4 + k % 5, 6 + k % 3, 3, seed=k)))
    return tmp_path


# -- decoding


def test_resized_image_equals_pillow():
    pixels = noise(40, 30)
    wanted = np.asarray(PILImage.fromarray(pixels).resize((16, 12), PILImage.Resampling.BILINEAR))
    ours = encode(dp.Image(height=12, width=16), encode_png(pixels))
    assert ours.shape == (1, 3, 12, 16)
    assert ours.dtype == np.uint8
    assert np.abs(ours[0].astype(int) - wanted.transpose(2, 0, 1)).max() <= 1


def test_crop_or_pad_keeps_the_scale():
    pixels = noise(5, 5, 1)
    ours = encode(dp.Image(height=3, width=7, resize_method="crop_or_pad"), encode_png(pixels))
    assert np.array_equal(ours[0, 0], np.pad(pixels[1:4], ((0, 0), (1, 1)), "edge"))


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_channels_are_converted(channels):
    pixels = noise(2, 3, 4)
    mode = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[channels]
    wanted = np.asarray(PILImage.fromarray(pixels).convert(mode)).reshape(2, 3, channels)
    ours = encode(dp.Image(height=2, width=3, num_channels=channels), encode_png(pixels))
    assert np.array_equal(ours[0], wanted.transpose(2, 0, 1))


def test_paths_bytes_and_structs_are_the_same_image(folder):
    path = str(folder / "0.png")
    data = Path(path).read_bytes()
    structs = pd.arrays.ArrowExtensionArray(pa.array([{"bytes": data, "path": None}, {"bytes": None, "path": path}]))
    prep = fit(dp.Image(), path)
    one = prep.encode(column(path))["x"]
    assert np.array_equal(prep.encode(column(data))["x"], one)
    assert np.array_equal(prep.encode(pd.DataFrame({"x": structs}))["x"], np.concatenate([one, one]))


def test_fit_transform_returns_rows_of_pixels(folder):
    frame = pd.DataFrame({"photo": [str(folder / "1.png"), str(folder / "2.png")]})
    feature = dp.Image(**SMALL)
    table = feature.fit_transform(frame)
    assert table.shape == (2, 6)
    assert feature.get_feature_names_out().tolist() == [f"photo_{i}" for i in range(6)]
    lazy = clone(feature).fit(dd.from_pandas(frame, npartitions=2)).transform(dd.from_pandas(frame, npartitions=2))
    assert np.array_equal(np.asarray(lazy), table)


def test_decode_returns_images_of_the_same_pixels():
    pixels = noise(4, 5)
    prep = fit(dp.Image(), encode_png(pixels))
    [data] = prep.decode(prep.encode(column(encode_png(pixels))))["x"]
    assert np.array_equal(np.asarray(PILImage.open(io.BytesIO(data))), pixels)


# -- sizes


def test_size_is_the_mean_of_the_sample():
    found = learned(dp.Image(), flat(1, 10, 20), flat(2, 13, 40))
    assert (found.height, found.width, found.num_channels) == (12, 30, 1)


def test_inferred_size_is_bounded():
    found = learned(dp.Image(), flat(0, 300, 20))
    assert (found.height, found.width) == (256, 20)


def test_explicit_sizes_override_inferred_ones():
    found = learned(dp.Image(height=2, width=3), encode_png(noise()))
    assert (found.height, found.width, found.num_channels) == (2, 3, 3)
    found = learned(dp.Image(num_channels=4), encode_png(noise(5, 7)))
    assert (found.height, found.width, found.num_channels) == (5, 7, 4)


def test_files_are_not_opened_with_all_sizes_set():
    found = learned(dp.Image(**SMALL), "/no/such/file.png", "/nor/this.png")
    assert (found.height, found.width, found.num_channels, found.file_bytes) == (2, 3, 1, 15)


@pytest.mark.parametrize("npartitions", [1, 3, 16])
@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("params", [{"on_error": "fill", "pack": True}, {"num_classes": 2, "num_channels": 1}])
def test_learned_state_does_not_depend_on_partitions(folder, npartitions, in_memory, params):
    paths = [str(folder / f"{k}.png") for k in range(24)]
    cells = [Path(path).read_bytes() for path in paths] if in_memory else paths
    feature = dp.Image(sample_size=5, **params)
    whole = learned(feature, *cells)
    with dask.config.set({"dataframe.convert-string": False}):
        frame = dd.from_pandas(column(*cells), npartitions=npartitions, sort=False)
    again = dp.Preprocessor({"x": feature}, split=None).fit(frame).learned_["x"]
    assert json.dumps(again.to_dict()) == json.dumps(whole.to_dict())
    assert LearnedImage.from_dict(json.loads(json.dumps(whole.to_dict()))) == whole


def test_sample_size_limits_opened_files(folder, monkeypatch):
    opened = []
    monkeypatch.setattr(
        dp.Image, "read_facts", lambda self, data, real=dp.Image.read_facts: opened.append(1) or real(self, data)
    )
    learned(dp.Image(sample_size=7), *[str(folder / f"{k % 24}.png") for k in range(48)])
    assert len(opened) == 7


def test_unreadable_files_of_the_sample_are_skipped():
    assert learned(dp.Image(), flat(0, 3, 5), b"nothing", "/no/such.png").width == 5


def test_sample_without_readable_files_raises():
    with pytest.raises(MediaError, match=r'column "x": none of 2 files.*pass height, width and num_channels'):
        fit(dp.Image(), "/no/such.png", b"nothing")
    with pytest.raises(MediaError, match="has no image to learn from"):
        fit(dp.Image(), None, None)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"height": 3}, "height is set and width is not: set both or neither"),
        ({"width": 3}, "width is set and height is not"),
        ({"missing_value_strategy": "fill_with_mode"}, 'use "fill_with_const"'),
        ({"fill_value": 1.5}, "brightness from 0 to 1"),
        ({"num_classes": 3, "fill_value": 3}, "a class from 0 to 2"),
        ({"num_classes": 129}, "at most 128"),
        ({"mode": "eager", "pack": True}, "pack=True is for lazy modes"),
        ({"expand_to": "uint8", "standardize_image": "imagenet1k"}, "standardize_image"),
        ({"prefetch_size": -1}, "prefetch_size must be at least 0"),
        ({"formats": ["JPG"]}, "'JPG'"),
        ({"formats": "PNG"}, "formats must be a list"),
        ({"num_channels": 5}, "num_channels must be one of 1, 2, 3, 4"),
        ({"mode": "lasy"}, 'Did you mean "lazy"'),
        ({"resize_method": "interpolation"}, 'Did you mean "interpolate"'),
        ({"jpeg_decoder": "cv2"}, "jpeg_decoder must be one of"),
        ({"max_pixels": 0}, "max_pixels must be an integer of at least 1"),
    ],
)
def test_contradictory_parameters_raise(params, message):
    with pytest.raises(ConfigError, match=message):
        fit(dp.Image(**params), flat(0))


# -- missing and broken cells


@pytest.mark.parametrize(("strategy", "levels"), [("bfill", [5, 5, 5, 9, 9, 9]), ("ffill", [5, 5, 5, 5, 9, 9])])
@pytest.mark.parametrize("npartitions", [1, 3, 6])
def test_ffill_and_bfill_work_across_partitions(strategy, levels, npartitions):
    with dask.config.set({"dataframe.convert-string": False}):
        frame = dd.from_pandas(column(None, None, flat(5), None, flat(9), None), npartitions=npartitions, sort=False)
    prep = dp.Preprocessor({"x": dp.Image(**SMALL, missing_value_strategy=strategy)}, split=None).fit(frame)
    assert np.asarray(prep.encode(frame)["x"])[:, 0, 0, 0].tolist() == levels
    assert prep.learned_["x"].missing == 4


def test_fill_with_const_fills_a_constant_brightness():
    params = {"height": 1, "width": 1, "missing_value_strategy": "fill_with_const", "fill_value": 0.5}
    assert encode(dp.Image(num_channels=2, **params), None, flat(9)).ravel().tolist() == [128, 255, 9, 255]
    assert encode(dp.Image(num_channels=3, **params), None).ravel().tolist() == [128] * 3


def test_dropped_rows_are_encoded_as_black():
    encoded = encode(dp.Image(**SMALL, missing_value_strategy="drop_row"), None, flat(1), "")
    assert encoded[:, 0, 0, 0].tolist() == [0, 1, 0]


def test_empty_cell_is_missing_or_raises():
    assert encode(dp.Image(**SMALL), b"", flat(4))[:, 0, 0, 0].tolist() == [0, 4]
    with pytest.raises(RejectedValueError, match='column "x"'):
        fit(dp.Image(**SMALL, invalid="raise"), b"", flat(4))


def test_column_without_images_is_black_or_raises():
    assert encode(dp.Image(**SMALL), None, None)[:, 0, 0, 0].tolist() == [0, 0]
    prep = fit(dp.Image(**SMALL, missing_value_strategy="bfill"), None, None)
    with pytest.raises(RejectedValueError, match='column "x": 2 cells are missing'):
        prep.encode(column(None, None))


def test_broken_image_raises_with_its_path():
    cells = [flat(0), "/no/such.png"]
    with pytest.raises(MediaError, match=r'column "x": row 1 of this partition, /no/such.png: no such file'):
        encode(dp.Image(**SMALL), *cells)


def test_broken_image_is_filled_with_the_mean_color():
    red, blue = (np.zeros((8, 8, 3), np.uint8) for _ in range(2))
    red[..., 0], blue[..., 2] = 200, 100
    cells = [encode_png(red), b"broken", encode_png(blue)]
    feature = dp.Image(height=1, width=1, on_error="fill")
    assert learned(feature, *cells).mean_colour == [100, 0, 50]
    assert encode(feature, *cells)[:, :, 0, 0].tolist() == [[200, 0, 0], [100, 0, 50], [0, 0, 100]]
    assert learned(clone(feature).set_params(num_channels=1), *cells).mean_colour == [36]
    assert learned(clone(feature).set_params(num_channels=2), *cells).mean_colour == [36, 255]
    assert learned(clone(feature).set_params(on_error="raise"), *cells).mean_colour is None


@pytest.mark.parametrize("npartitions", [1, 2, 5])
def test_broken_images_to_drop_are_black_and_fill_no_gap(npartitions):
    with dask.config.set({"dataframe.convert-string": False}):
        frame = dd.from_pandas(
            column(None, b"broken", flat(3), flat(4)[:-30], None), npartitions=npartitions, sort=False
        )
    for strategy, ends in (("bfill", 3), ("fill_with_const", 0)):
        feature = dp.Image(**SMALL, on_error="drop", missing_value_strategy=strategy)
        prep = dp.Preprocessor({"x": feature}, split=None).fit(frame)
        assert np.asarray(prep.encode(frame)["x"])[:, 0, 0, 0].tolist() == [ends, 0, 3, 0, ends]


def test_dropped_rows_have_a_reason():
    feature = dp.Image(on_error="drop")
    cells = feature.parse(pa.array(["/no/such.png"]))
    assert cells.type == PARSED_TYPE
    assert may_drop_rows(feature)
    assert find_dropped_rows(feature, cells, None).tolist() == [True]
    assert feature._explain_drop(cells[0].as_py()) == "/no/such.png: no such file or directory"


def test_broken_images_are_excluded_from_the_learned_state():
    feature = dp.Image(**SMALL, on_error="drop")
    assert learned(feature, flat(1), b"broken" * 1_000).file_bytes == len(flat(1))


def test_max_pixels_and_formats_are_limits():
    with pytest.raises(MediaError, match="max_pixels=15"):
        encode(dp.Image(**SMALL, max_pixels=15), flat(0))
    with pytest.raises(MediaError, match="it is a PNG file"):
        encode(dp.Image(**SMALL, formats=("JPEG",)), flat(0))


# -- masks


def test_masks_become_class_ids():
    mask = np.array([[[0, 0, 0], [255, 0, 0]], [[0, 255, 0], [255, 0, 0]]], np.uint8)
    feature = dp.Image(num_classes="auto")
    prep = fit(feature, encode_png(mask))
    assert prep.learned_["x"].class_map == [[0, 0, 0], [0, 255, 0], [255, 0, 0]]
    encoded = prep.encode(column(encode_png(mask)))["x"]
    assert encoded.tolist() == [[[0, 2], [1, 2]]]
    [data] = prep.decode({"x": encoded})["x"]
    assert np.array_equal(np.asarray(PILImage.open(io.BytesIO(data))), mask)
    expanded = feature.expand(torch.from_numpy(encoded), prep.learned_["x"])
    assert (expanded.dtype, expanded.tolist()) == (torch.int64, encoded.tolist())


def test_two_classes_of_gray_are_black_and_white():
    mask = encode_png(np.array([[3, 250, 130, 90]], np.uint8))
    feature = dp.Image(num_classes=2)
    assert learned(feature, mask).class_map == [[0], [255]]
    assert encode(feature, mask).tolist() == [[[0, 1, 1, 0]]]


def test_more_colors_than_classes_raise_and_fewer_warn():
    mask = encode_png(np.array([[0, 1, 2]], np.uint8))
    with pytest.raises(MediaError, match=r'column "x": has masks of 3 colors, and num_classes is 2'):
        fit(dp.Image(num_classes=2, num_channels=3), mask)
    with pytest.warns(UserWarning, match='column "x" has masks of 3 colors.*not num_classes=5'):
        assert len(learned(dp.Image(num_classes=5), mask).class_map) == 3
    with pytest.raises(MediaError, match="more than 128 colors"):
        fit(dp.Image(num_classes="auto"), encode_png(np.arange(200, dtype=np.uint8)[None]))


def test_gray_palette_has_the_same_classes_for_any_number_of_channels():
    picture = PILImage.new("P", (4, 1))
    picture.putpalette([10, 200, 30, 99, 7, 250, 3, 3, 3])
    picture.putdata([0, 1, 2, 1])
    file = io.BytesIO()
    picture.save(file, "PNG")
    for channels in (None, 1, 2, 3, 4):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            classes = encode(dp.Image(num_classes="auto", num_channels=channels), file.getvalue()).ravel()
        assert len(set(classes.tolist())) == 3


def test_missing_masks_are_filled_with_a_class():
    mask = encode_png(np.array([[0, 5]], np.uint8))
    params = {"num_classes": 2, "num_channels": 3, "missing_value_strategy": "fill_with_const"}
    assert encode(dp.Image(fill_value=1, **params), None, mask).tolist() == [[[1, 1]], [[0, 1]]]
    with pytest.raises(ConfigError, match="a class from 0 to 1"):
        fit(dp.Image(num_classes="auto", missing_value_strategy="fill_with_const", fill_value=2), mask)


# -- batches


def test_batches_are_scaled_and_standardized():
    batch = torch.from_numpy(noise(2, 2, 3).transpose(2, 0, 1)[None].copy())
    shape = LearnedImage(height=2, width=2, num_channels=3)
    scaled = batch.double() / 255
    assert torch.allclose(dp.Image().expand(batch, shape).double(), scaled, atol=1e-7)
    assert dp.Image(expand_to="uint8").expand(batch, shape) is batch
    standard = dp.Image(standardize_image="imagenet1k").expand(batch, shape)
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    wanted = (scaled - mean.double()[:, None, None]) / deviation.double()[:, None, None]
    assert standard.dtype == torch.float32
    assert torch.allclose(standard.double(), wanted, atol=1e-5)
    assert batch.dtype == torch.uint8


def test_images_without_three_channels_are_not_standardized():
    feature = dp.Image(standardize_image="imagenet1k")
    with pytest.warns(UserWarning, match='column "x" has images of 1 channels, so standardize_image'):
        found = learned(feature, flat(255))
    assert feature.expand(torch.full((1, 1, 2, 2), 255, dtype=torch.uint8), found).max() == 1


# -- locations of files, and storage


def test_relative_paths_start_in_the_current_folder_or_base_dir(folder, monkeypatch):
    monkeypatch.chdir(folder)
    here = dp.Image().parse(pa.array(["0.png", "/a.png", "s3://b/c.png", None]))
    assert pa.compute.struct_field(here, "path").to_pylist() == [f"{folder}/0.png", "/a.png", "s3://b/c.png", None]
    monkeypatch.chdir("/")
    feature = dp.Image(base_dir=str(folder))
    assert feature.parse(pa.array(["0.png"]))[0]["path"].as_py() == "0.png"
    assert encode(feature, "0.png").shape == (1, 3, 4, 6)


def test_paths_outside_base_dir_raise(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "a.png"
    outside.write_bytes(flat(0))
    feature = dp.Image(**SMALL, base_dir=str(folder))
    with pytest.raises(MediaError, match="leaves base_dir"):
        encode(feature, str(outside))
    decoder = feature.decoder(fit(feature, "0.png").learned_["x"], base_dir=str(outside.parent))
    assert decoder.reader.read("a.png") == flat(0)


def test_images_in_memory_are_written_to_the_cache_once(folder, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    feature = dp.Image(**SMALL, lazy_cache_dir=str(cache), base_dir=str(folder))
    cells = [flat(1), flat(2), flat(1), "0.png"]
    first = encode(feature, *cells)
    files = {path: path.stat().st_mtime_ns for path in (cache / "x").iterdir()}
    assert len(files) == 2
    assert np.array_equal(encode(feature, *cells), first)
    assert {path: path.stat().st_mtime_ns for path in (cache / "x").iterdir()} == files
    parsed = parse_columns({"x": feature}, pa.table({"x": pa.array(cells[:3])})).columns["x"]
    assert pa.compute.struct_field(parsed, "bytes").null_count == 3


def test_column_folders_stay_inside_lazy_cache_dir(tmp_path):
    feature = dp.Image(lazy_cache_dir=str(tmp_path / "cache"))
    for name in ("..", "a/b", "."):
        parse_columns({name: feature}, pa.table({name: pa.array([flat(1)])}))
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["%2E", "%2E%2E", "a%2Fb"]
    assert list(tmp_path.iterdir()) == [tmp_path / "cache"]


def test_eager_images_in_memory_are_not_cached(tmp_path):
    encode(dp.Image(**SMALL, mode="eager", lazy_cache_dir=str(tmp_path)), flat(1))
    assert not list(tmp_path.iterdir())


def test_cell_bytes_is_the_size_of_paths_or_files(folder):
    paths = [str(folder / f"{k}.png") for k in range(24)]
    sizes = [Path(path).stat().st_size for path in paths]
    feature = dp.Image(**SMALL)
    assert feature.cell_bytes(learned(feature, *paths)) == round(np.mean([len(path) for path in paths]))
    packed = clone(feature).set_params(pack=True)
    assert packed.cell_bytes(learned(packed, *paths)) == round(np.mean(sizes))
    eager = clone(feature).set_params(mode="eager")
    assert eager.cell_bytes(learned(eager, *paths)) is None


def test_stored_cells_have_filled_images():
    feature = dp.Image(**SMALL, missing_value_strategy="fill_with_const", fill_value=0)
    prep = fit(feature, flat(1))
    carried = feature._stored_cells(feature.parse(pa.array([flat(1), None])), prep.learned_["x"])
    assert carried[""].to_pylist() == [{"bytes": flat(1), "path": None}, None]
    strict = dp.Image(**SMALL)
    with pytest.raises(RejectedValueError, match="1 missing cells and no image"):
        strict._stored_cells(strict.parse(pa.array([None], pa.binary())), Learned())


def test_saved_preprocessor_encodes_equally(tmp_path):
    cells = [encode_png(noise(seed=k)) for k in range(3)]
    prep = fit(dp.Image(on_error="fill", formats=("PNG",)), *cells)
    prep.save(tmp_path / "prep.json")
    again = dp.Preprocessor.load(tmp_path / "prep.json")
    assert again.learned_ == prep.learned_
    assert np.array_equal(again.encode(column(*cells))["x"], prep.encode(column(*cells))["x"])


def test_columns_without_images_raise():
    with pytest.raises(ColumnError, match='column "x".*holds no image'):
        fit(dp.Image(), 1, 2)


@pytest.mark.parametrize("place", ["base_dir", "lazy_cache_dir"])
def test_passwords_in_urls_raise(place):
    with pytest.raises(ConfigError, match=f"{place} contains a password"):
        fit(dp.Image(**SMALL, **{place: "https://user:hunter2@host/images"}), flat(1))


def test_relative_base_dir_is_saved_as_absolute(tmp_path, monkeypatch):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(flat(7))
    monkeypatch.chdir(tmp_path)
    dp.Preprocessor({"x": dp.Image(**SMALL, base_dir="images")}).fit_write(column("a.png"), tmp_path / "a.dp")
    monkeypatch.chdir("/")
    assert dp.open_dataset(tmp_path / "a.dp", trusted=True)["train"].read("x")["x"].max() == 7


def test_same_file_names_in_another_folder_are_another_source(tmp_path, monkeypatch):
    found = []
    for level in (1, 2):
        folder = tmp_path / f"{level}"
        folder.mkdir()
        (folder / "a.png").write_bytes(flat(level))
        monkeypatch.chdir(folder)
        prep = dp.Preprocessor({"x": dp.Image(**SMALL, mode="eager")})
        dataset = prep.fit_write(column("a.png"), tmp_path / "a.dp", version="1", overwrite=True)
        found.append(int(dataset["train"].read("x")["x"].max()))
    assert found == [1, 2]


# -- mean and deviation of pixels


@pytest.mark.parametrize("statistics", ["channels", "image"])
def test_pixel_statistics_equal_numpy_for_every_partitioning(statistics):
    images = [noise(seed=seed) for seed in range(70)]
    feature = dp.Image(height=6, width=9, num_channels=3, pixel_statistics=statistics)
    frame = pd.DataFrame({"x": [encode_png(image) for image in images]})
    whole = dp.Preprocessor({"x": feature}, split=None).fit(frame)
    with dask.config.set({"dataframe.convert-string": False}):
        pieces = dp.Preprocessor({"x": feature}, split=None).fit(dd.from_pandas(frame, npartitions=7))
    assert whole.to_dict() == pieces.to_dict()
    found = dp.Preprocessor.from_dict(json.loads(json.dumps(whole.to_dict()))).learned_["x"]
    pixels = np.stack(images) / 255
    np.testing.assert_allclose(found.mean, pixels.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(found.deviation, pixels.std(axis=(0, 1, 2)), rtol=1e-12)
    assert (found.mean_image is None) == (statistics == "channels")
    if found.mean_image is not None:
        np.testing.assert_allclose(mean_image(found.mean_image), pixels.mean(axis=0).transpose(2, 0, 1), atol=1e-7)


def test_pixel_statistics_exclude_missing_and_broken_images():
    feature = dp.Image(**SMALL, pixel_statistics="image", on_error="fill")
    found = learned(feature, flat(51), None, b"no image", flat(153))
    assert found.mean == [0.4]
    np.testing.assert_allclose(found.deviation, [0.2])
    with pytest.raises(MediaError, match="is not an image"):
        learned(dp.Image(**SMALL, pixel_statistics="image"), flat(51), b"no image")
    with pytest.raises(MediaError, match="no image to learn pixel_statistics from"):
        learned(feature, b"no image")
    for wrong in ({}, {"height": 2, "width": 3}, SMALL | {"num_classes": 2}):
        with pytest.raises(ConfigError, match="needs height, width and num_channels"):
            learned(dp.Image(**wrong, pixel_statistics="channels"), flat(1))


def test_loader_subtracts_the_mean_image(tmp_path):
    cells = [encode_png(noise(seed=seed)) for seed in range(20)]
    feature = dp.Image(height=6, width=9, num_channels=3, pixel_statistics="image")
    dataset = dp.Preprocessor({"x": feature}, split=None).fit_write(column(*cells), tmp_path / "a.dp")
    opened = dp.open_dataset(tmp_path / "a.dp")
    [batch] = opened["train"].loader(20, augment={"x": dp.MeanSubtraction()})
    np.testing.assert_allclose(batch["x"].mean(0), 0, atol=1e-6)
    [batch] = opened["train"].loader(20, augment={"x": dp.Normalize()})
    np.testing.assert_allclose(batch["x"].std(dim=(0, 2, 3), correction=0), 1, rtol=1e-5)
    assert "mean" not in learned(dp.Image(**SMALL), flat(3)).to_dict()
    assert dataset.verify() is None
