"""Boxes and keypoints move with their image: each is compared with the pixels that show it."""

from __future__ import annotations

import importlib
import io
import json
import sys
import types

import numpy as np
import pandas as pd
import PIL.Image
import pytest
import torch

import daskprep as dp
from daskprep.errors import ConfigError
from daskprep.extensions.media.pixels import encode_png
from daskprep.nn import Inputs

LEVELS = np.array([0, 60, 120, 180, 240], np.uint8)  # of the background, three boxes and a keypoint
HEIGHT, WIDTH = 24, 32


def draw(rows, *, scales=(1,), seed=0):
    """Return rows with an image that shows its boxes and its keypoint, as a photo and as a mask."""
    rng = np.random.default_rng(seed)
    cells = []
    for _ in range(rows):
        scale = rng.choice(scales)
        height, width = (HEIGHT, WIDTH) if len(scales) > 1 else (rng.integers(20, 33), rng.integers(28, 45))
        classes = np.zeros((height, width), np.uint8)
        boxes = []
        for band in range(rng.integers(0, 4)):
            x, y = 1 + 6 * band + rng.integers(3), 1 + rng.integers(height - 10)
            x2, y2 = x + 1 + rng.integers(3), y + 1 + rng.integers(7)
            classes[y:y2, x:x2] = band + 1
            boxes.append([x, y, x2, y2])
        x, y = 20 + rng.integers(6), 1 + rng.integers(height - 2)
        classes[y, x] = 4
        pixels = LEVELS[classes].repeat(scale, 0).repeat(scale, 1)
        cells.append(
            {
                "photo": encode_png(np.stack([pixels, 255 - pixels, pixels], 2)),
                "mask": encode_png(pixels),
                "boxes": (scale * np.array(boxes).reshape(-1, 4)).tolist(),
                "joint": [[scale * (x + 0.5), scale * (y + 0.5)]],
                "kinds": [f"kind{number}" for number in range(len(boxes))],
            }
        )
    return pd.DataFrame(cells)


def make_features(mode="lazy", resize_method="crop_or_pad"):
    image = {"height": HEIGHT, "width": WIDTH, "mode": mode, "resize_method": resize_method}
    return {
        "photo": dp.Image(**image, num_channels=3, expand_to="uint8"),
        "mask": dp.Image(**image, num_classes=5, num_channels=1),
        "boxes": dp.Boxes(image="photo"),
        "joint": dp.Keypoints(image="photo"),
        "kinds": dp.Sequence(),
    }


def count_wrong(batch, *, photo=True):
    """Return the numbers of wrong pixels, boxes and keypoints of a batch, which the classes of its mask show."""
    classes = batch["mask"].numpy()
    pixels = LEVELS[classes]
    wrong_pixels = wrong = shown = 0
    if photo:
        shades = batch["photo"].numpy()
        # Pixels beyond an image are black in a photo, and class 0 in a mask.
        outside = (shades == 0).all(1)
        wrong_pixels = int(((shades[:, 0] != pixels) | (~outside & (shades[:, 1] != 255 - pixels))).sum())
    for number in range(batch["boxes"].shape[1] + 1):
        is_point = number == batch["boxes"].shape[1]
        is_shown = classes == (4 if is_point else number + 1)
        columns, lines = is_shown.any(1), is_shown.any(2)
        found = np.full((len(classes), 4), np.nan, np.float32)
        visible = np.flatnonzero(columns.any(1))
        first = np.stack([columns.argmax(1), lines.argmax(1)], 1)
        last = np.stack([columns.shape[1] - columns[:, ::-1].argmax(1), lines.shape[1] - lines[:, ::-1].argmax(1)], 1)
        found[visible] = np.concatenate([first, last], 1)[visible]
        if is_point:
            found = (found[:, :2] + found[:, 2:]) / 2
        expected = batch["joint"][:, 0] if is_point else batch["boxes"][:, number]
        wrong += int((~np.isclose(expected.numpy(), found, atol=0.02, equal_nan=True)).any(1).sum())
        shown += len(visible)
    return np.array([wrong_pixels, wrong, shown])


def check(mode, rows, epochs, folder, augment):
    """Return the counts of all batches of a loader or of a stream, and the number of images."""
    frame = draw(rows)
    prep = dp.Preprocessor(make_features("lazy" if mode == "stream" else mode), split=None)
    options = {"seed": 3, "augment": {("photo", "mask", "boxes", "joint"): augment}}
    counts, images = np.zeros(3, int), 0
    if mode == "stream":
        batches = prep.fit(frame).stream(frame, 50, epochs=epochs, **options)
    else:
        loader = prep.fit_write(frame, folder / mode, block_rows=64)["train"].loader(50, **options)
        batches = (batch for _ in range(epochs) for batch in loader)
    for batch in batches:
        counts += count_wrong(batch)
        images += len(batch["photo"])
    assert images == rows * epochs
    return counts.tolist()


CROP_AND_MIRROR = [dp.RandomCrop(16, 20, padding=3), dp.Mirror()]
MODES = ["eager", "lazy", "lazy_cached", "stream"]


@pytest.mark.parametrize("mode", MODES)
def test_boxes_follow_crop_and_mirror(tmp_path, mode):
    wrong_pixels, wrong, shown = check(mode, 100, 2, tmp_path, CROP_AND_MIRROR)
    assert (wrong_pixels, wrong) == (0, 0)
    assert shown > 200


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_boxes_follow_10_000_crops(tmp_path, mode):
    wrong_pixels, wrong, shown = check(mode, 1_000, 10, tmp_path, CROP_AND_MIRROR)
    assert (wrong_pixels, wrong) == (0, 0)
    assert shown > 10_000


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_boxes_follow_center_crop(tmp_path, mode):
    assert check(mode, 60, 1, tmp_path, dp.CenterCrop(16, 20))[:2] == [0, 0]


def test_boxes_follow_resize(tmp_path):
    frame = draw(80, scales=(1, 2, 3))
    prep = dp.Preprocessor(make_features(resize_method="interpolate"), split=None)
    train = prep.fit_write(frame, tmp_path / "rows.dp")["train"]
    keys = {("photo", "mask", "boxes", "joint"): CROP_AND_MIRROR}
    for options in ({}, {"augment": keys}):
        for batch in train.loader(40, **options):
            assert count_wrong(batch, photo=False)[1] == 0
            assert set(batch["boxes_size"][:, 0].tolist()) <= {HEIGHT, 2 * HEIGHT, 3 * HEIGHT}
            assert (batch["boxes_size"][:, 0] * WIDTH == batch["boxes_size"][:, 1] * HEIGHT).all()


def as_stored(pixels, orientation):
    """Return pixels as a file with this EXIF orientation has them: `pixels` is upright."""
    stored = pixels if orientation < 5 else pixels.swapaxes(0, 1)
    # A viewer mirrors the pixels before it exchanges the axes, so the file is mirrored after.
    horizontal, vertical = orientation in {2, 3, 7, 8}, orientation in {3, 4, 6, 7}
    return np.ascontiguousarray(stored[:: -1 if vertical else 1, :: -1 if horizontal else 1])


def save_with_exif(pixels, orientation, kind):
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    return file.getvalue()


def find_places(classes):
    """Return the boxes of the classes 1 to 3, and the middle of class 4."""
    rows = [np.nonzero(classes == number) for number in range(1, 5)]
    boxes = [[int(x.min()), int(y.min()), int(x.max()) + 1, int(y.max()) + 1] for y, x in rows if len(x)]
    x1, y1, x2, y2 = boxes.pop()
    return boxes, [[(x1 + x2) / 2, (y1 + y2) / 2]]


def draw_turned(image_frame, place_frame, scale=1):
    """Return rows like `draw` for each EXIF orientation, with masks and places in upright or stored pixels."""
    cells = draw(24, scales=(1, 1)).to_dict("records")
    for row, cell in enumerate(cells):
        orientation = row % 8 + 1
        upright = np.asarray(PIL.Image.open(io.BytesIO(cell["mask"]))).repeat(scale, 0).repeat(scale, 1)
        stored = as_stored(upright, orientation)
        image = np.stack([stored, 255 - stored, stored], 2)
        by_frame = {"upright": upright, "stored": stored}
        cell["photo"] = save_with_exif(image, orientation, ("PNG", "TIFF", "WEBP")[row // 8])
        cell["mask"] = encode_png(by_frame[image_frame])
        cell["boxes"], cell["joint"] = find_places(np.searchsorted(LEVELS, by_frame[place_frame]))
    return pd.DataFrame(cells)


@pytest.mark.parametrize("resize_method", ["crop_or_pad", "interpolate"])
@pytest.mark.parametrize("place_frame", ["upright", "stored"])
@pytest.mark.parametrize("image_frame", ["upright", "stored"])
def test_boxes_and_masks_fit_every_orientation(tmp_path, image_frame, place_frame, resize_method):
    scale = 2 if resize_method == "interpolate" else 1
    frame = draw_turned(image_frame, place_frame, scale)
    features = make_features(resize_method=resize_method)
    size = {"height": HEIGHT, "width": WIDTH}
    if image_frame == "stored" and scale > 1:  # all sides shrink by half
        frame = frame[[row % 8 < 4 for row in range(len(frame))]]
    elif scale == 1:
        size = {"height": WIDTH, "width": WIDTH}
    for name in ("photo", "mask"):
        features[name].set_params(orientation=image_frame, **size)
    for name in ("boxes", "joint"):
        features[name].set_params(orientation=place_frame)
    train = dp.Preprocessor(features, split=None).fit_write(frame, tmp_path / "rows.dp")["train"]
    for augment in ({}, {("photo", "mask", "boxes", "joint"): CROP_AND_MIRROR}):
        for batch in train.loader(12, seed=1, augment=augment):
            wrong_pixels, wrong, shown = count_wrong(batch, photo=scale == 1)
            assert (wrong_pixels, wrong) == (0, 0)
            assert shown > 5


@pytest.mark.parametrize("other", ["boxes", "mask", "both"])
def test_files_turned_upright_warn_once(other):
    frame = draw_turned("upright", "upright")
    names = {"boxes": ["boxes", "joint"], "mask": ["mask"], "both": ["mask", "boxes", "joint"]}[other]
    features = {name: feature for name, feature in make_features().items() if name in ["photo", *names]}
    with pytest.warns(UserWarning, match="orientation") as found:
        dp.Preprocessor(features, split=None).fit(frame)
    assert len(found) == 1
    assert {"boxes": "17", "mask": "21", "both": "17"}[other] in str(found[0].message)  # 17 of 21 have boxes
    features["photo"].set_params(orientation="upright")
    prep = dp.Preprocessor(features, split=None).fit(frame)
    assert "turned" not in json.dumps(prep.to_dict())


def test_boxes_and_labels_have_equal_lengths(tmp_path):
    frame, features = draw(50, scales=(1, 2)), make_features(resize_method="interpolate")
    train = dp.Preprocessor(features, split=None).fit_write(frame, tmp_path / "rows.dp")["train"]
    for batch in train.loader(16, trim=True):
        assert batch["boxes_length"].tolist() == batch["kinds_length"].tolist()
        assert batch["boxes"].shape[1] == max(1, int(batch["boxes_length"].max()))


@pytest.mark.parametrize(
    ("options", "cells"),
    [
        ({}, [[[4, 2, 8, 6], [0, 0, 40, 20]], [], None]),
        ({}, ["[[4, 2, 8, 6], [0, 0, 40, 20]]", "[]", None]),
        ({"format": "xywh"}, [[[4, 2, 4, 4], [0, 0, 40, 20]], [], None]),
        ({"format": "cxcywh"}, [[[6, 4, 4, 4], [20, 10, 40, 20]], [], None]),
    ],
)
def test_boxes_formats(options, cells):
    frame = pd.DataFrame({"photo": [encode_png(np.zeros((20, 40), np.uint8))] * 3, "boxes": cells})
    features = {"photo": dp.Image(height=10, width=10), "boxes": dp.Boxes(image="photo", **options)}
    prep = dp.Preprocessor(features, split=None).fit(frame)
    encoded = prep.encode(frame)
    assert encoded["boxes"][0].tolist() == [[1, 1, 2, 3], [0, 0, 10, 10]]
    assert np.isnan(encoded["boxes"][1:]).all()
    assert encoded["boxes_size"].tolist() == [[20, 40]] * 3
    decoded = prep.decode({name: encoded[name] for name in ("boxes", "boxes_size")})["boxes"]
    assert [[box.tolist() for box in row] for row in decoded] == [[[1, 1, 2, 3], [0, 0, 10, 10]], [], []]
    restored = dp.Preprocessor.from_dict(prep.to_dict())
    assert np.array_equal(restored.encode(frame)["boxes"], encoded["boxes"], equal_nan=True)


def test_inputs_without_default_for_boxes_raises():
    prep = dp.Preprocessor(make_features(), split=None).fit(draw(3))
    with pytest.raises(ConfigError, match='"boxes" is boxes, for which Inputs has no default'):
        Inputs(prep, columns=["boxes"])


def test_keypoints_coco_format():
    frame = pd.DataFrame({"photo": [encode_png(np.zeros((8, 8), np.uint8))], "joints": [[[1, 2, 2], [3, 4, 0]]]})
    features = {"photo": dp.Image(height=8, width=8), "joints": dp.Keypoints(image="photo", format="xyv")}
    joints = dp.Preprocessor(features, split=None).fit(frame).encode(frame)["joints"]
    assert np.array_equal(joints, np.float32([[[1, 2], [np.nan, np.nan]]]), equal_nan=True)


def test_unreadable_boxes_warn_and_become_nan(tmp_path):
    photo = encode_png(np.zeros((8, 8), np.uint8))
    frame = pd.DataFrame({"photo": [photo, b"no image", photo], "boxes": [[[1, 2, 3]], [[1, 2, 3, 4]], [[1, 2, 3, 4]]]})
    features = {"photo": dp.Image(height=8, width=8, on_error="fill"), "boxes": dp.Boxes(image="photo")}
    with pytest.warns(UserWarning, match='"boxes": 2 of 3 cells cannot be read as boxes'):
        prep = dp.Preprocessor(features, split=None).fit(frame)
    boxes = prep.encode(frame)["boxes"]
    assert np.isnan(boxes[:2]).all()
    assert boxes[2].tolist() == [[1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"boxes": dp.Boxes(image="photo")}, "no features of type Image read this column"),
        ({"photo": dp.Image(), "boxes": dp.Boxes(image="photo")}, "its Image has no height and width"),
    ],
)
def test_boxes_without_image_size_raise(features, message):
    with pytest.raises(ConfigError, match=message):
        dp.Preprocessor(features, split=None).fit(draw(3))


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        ({"photo": dp.Mirror()}, r'would move "photo" and not "boxes": use the key \(.photo., .boxes.\)'),
        ({"boxes": dp.Mirror()}, '"boxes" moves with its image'),
        ({("photo", "boxes", "joint"): torch.flipud}, 'cannot move "boxes": use RandomCrop'),
        ({("photo", "boxes", "joint"): dp.MeanSubtraction([0.5] * 3)}, 'cannot move "boxes"'),
    ],
)
def test_augment_image_without_boxes_raises(tmp_path, augment, message):
    train = dp.Preprocessor(make_features(), split=None).fit_write(draw(9), tmp_path / "rows.dp")["train"]
    with pytest.raises(ConfigError, match=message):
        train.loader(3, augment=augment)
    train.loader(3, augment={"photo": dp.MeanSubtraction([0.5] * 3)})
    train.loader(3, augment={"photo": dp.Mirror()}, columns=["photo"])


class StandIn(torch.Tensor):
    """A tensor with attributes, as those of `torchvision.tv_tensors`."""

    @staticmethod
    def __new__(cls, values, **attributes):
        tensor = torch.as_tensor(values).as_subclass(cls)
        vars(tensor).update(attributes)
        return tensor


class Crop:
    """Crop images and boxes at a random place, and mirror half of them, as torchvision's transforms do."""

    def __call__(self, sample):
        top, left, flip = int(torch.randint(9, ())), int(torch.randint(13, ())), bool(torch.rand(()) < 0.5)
        changed = {}
        for name, values in sample.items():
            if values.shape[-1] == WIDTH:
                part = values[..., top : top + 16, left : left + 20]
                changed[name] = part.flip(-1) if flip else part
            else:
                moved = values - torch.tensor([left, top, left, top])
                moved[:, 0::2] = moved[:, 0::2].clamp(0, 20)
                moved[:, 1::2] = moved[:, 1::2].clamp(0, 16)
                mirrored = torch.stack([20 - moved[:, 2], moved[:, 1], 20 - moved[:, 0], moved[:, 3]], 1)
                changed[name] = mirrored if flip else moved
        return changed


@pytest.fixture(params=["torchvision", "stand-in"])
def random_crop(request, monkeypatch):
    """Return a transform of torchvision, or of a stand-in for it where it is not installed for this torch."""
    if request.param == "torchvision":
        try:
            v2 = importlib.import_module("torchvision.transforms.v2")
        except (ImportError, RuntimeError) as error:  # of a torchvision that is built for another torch
            pytest.skip(str(error))
        return v2.Compose([v2.RandomCrop((16, 20)), v2.RandomHorizontalFlip()])
    kinds = dict.fromkeys(("Image", "Mask", "BoundingBoxes"), StandIn)
    for name, names in {"transforms.v2": {"Transform": Crop}, "tv_tensors": kinds}.items():
        module = types.ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, f"torchvision.{name}", module)
    return Crop()


@pytest.mark.parametrize("mode", MODES)
def test_torchvision_transforms_boxes(tmp_path, mode, random_crop):
    wrong_pixels, wrong, shown = check(mode, 60, 2, tmp_path, random_crop)
    assert (wrong_pixels, wrong) == (0, 0)
    assert shown > 100


def test_torchvision_seed_depends_on_epoch_and_row(tmp_path, random_crop):
    train = dp.Preprocessor(make_features("eager"), split=None).fit_write(draw(60), tmp_path / "rows.dp")["train"]
    options = {"augment": {("photo", "mask", "boxes", "joint"): random_crop}, "row_ids": True, "uneven": True}

    def crops(*loaders):
        batches = [batch for loader in loaders for batch in loader]
        return {row: batch["boxes"][i] for batch in batches for i, row in enumerate(batch["row_id"].tolist())}

    before = torch.random.get_rng_state()
    loader = train.loader(12, **options)
    first, second = crops(loader), crops(loader)
    assert torch.equal(torch.random.get_rng_state(), before)
    ranks = crops(*(train.loader(20, streams=4, rank=rank, world_size=3, **options) for rank in range(3)))
    assert first.keys() == ranks.keys()
    assert all(torch.equal(first[row].nan_to_num(-1), ranks[row].nan_to_num(-1)) for row in first)
    assert any(not torch.equal(first[row].nan_to_num(-1), second[row].nan_to_num(-1)) for row in first)


def test_transform_dropping_boxes_or_sizes_raises(tmp_path, random_crop, monkeypatch):
    train = dp.Preprocessor(make_features(), split=None).fit_write(draw(20), tmp_path / "rows.dp")["train"]
    call = type(random_crop).__call__

    def crop_without_boxes(self, sample):
        return {name: values[:0] if values.shape[-1] == 4 else values for name, values in call(self, sample).items()}

    def crop_to_any_size(self, sample):
        stop = int(torch.randint(2, 9, ()))
        changed = call(self, sample)
        return {name: values[..., :stop] if values.shape[-1] > 4 else values for name, values in changed.items()}

    for name, function in {"removed boxes": crop_without_boxes, "of different sizes": crop_to_any_size}.items():
        monkeypatch.setattr(type(random_crop), "__call__", function)
        with pytest.raises(ConfigError, match=name):
            next(iter(train.loader(8, augment={("photo", "mask", "boxes", "joint"): random_crop})))
