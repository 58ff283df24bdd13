"""Augmentation of images, compared with plain indexing."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
import torch

import daskprep as dp
from daskprep.dataset.loader.augment import Augmentation, Draws, augment_batch, check_augment
from daskprep.errors import ConfigError

ROWS = np.arange(1000, 1060)
PARTS = ([0, 1, 60], [0, 17, 18, 60], [*range(0, 60, 7), 60])


def images_of(rows: int = 60, channels: int = 3, height: int = 12, width: int = 10) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, 256, (rows, channels, height, width), dtype=torch.uint8, generator=generator)


def augment(images, *steps, rows=ROWS, seed=0, epoch=0, name="photo"):
    shape = tuple(images.shape[1:])
    by_output = check_augment({name: list(steps)}, {name: (str(images.dtype).removeprefix("torch."), shape)})
    return augment_batch({name: images}, rows, seed, epoch, by_output)[name]


def crop_places(images, crops):
    """Return top and left of each crop, found by looking for it everywhere."""
    height, width = crops.shape[2:]
    windows = images.unfold(2, height, 1).unfold(3, width, 1).permute(0, 2, 3, 1, 4, 5)
    same = (windows == crops[:, None, None]).flatten(3).all(3)
    assert (same.flatten(1).sum(1) == 1).all()
    return same.nonzero()[:, 1:]


class Noise(torch.nn.Module):
    """A transform of a batch with torch's own generator, as in torchvision."""

    def forward(self, images):
        return images * torch.rand(images.shape)


# -- operations


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_random_crop_is_part_of_image(channels, dtype):
    images = images_of(channels=channels).to(dtype)
    crops = augment(images, dp.RandomCrop(9, 4))
    assert crops.shape == (60, channels, 9, 4)
    assert crops.dtype == dtype
    places = crop_places(images, crops)
    assert len(torch.unique(places, dim=0)) > 10


def test_random_crop_positions_are_uniform():
    image = torch.arange(30, dtype=torch.uint8).reshape(1, 1, 5, 6)
    corners = augment(image.expand(24_000, 1, 5, 6), dp.RandomCrop(2, 3), rows=np.arange(24_000))[:, 0, 0, 0]
    counts = np.bincount(corners.numpy(), minlength=30).reshape(5, 6)
    assert counts[4:].sum() == counts[:, 4:].sum() == 0
    # Each of the 16 places: 1,500 of 24,000, and 37.5 of standard deviation.
    assert np.abs(counts[:4, :4] - 1500).max() < 4.5 * 37.5


def test_random_crop_padding_is_zero():
    images = images_of(height=6, width=6) | 1
    crops = augment(images, dp.RandomCrop(8, 7, padding=2))
    places = crop_places(torch.nn.functional.pad(images, (2, 2, 2, 2)), crops)
    assert places.amin(0).tolist() == [0, 0]
    assert places.amax(0).tolist() == [2, 3]
    inside = crops.flatten(1).bool().sum(1)
    assert inside.max() == 3 * 6 * 6


def test_random_crop_of_full_size_returns_image():
    images = images_of()
    assert torch.equal(augment(images, dp.RandomCrop(12, 10)), images)


@pytest.mark.parametrize("probability", [0.0, 0.2, 0.5, 1.0])
def test_mirror_rate_matches_probability(probability):
    images = torch.tensor([0, 1], dtype=torch.uint8).expand(10_000, 1, 1, 2)
    mirrored = augment(images, dp.Mirror(probability), rows=np.arange(10_000))[:, 0, 0, 0]
    deviation = (probability * (1 - probability) / 10_000) ** 0.5
    assert abs(mirrored.double().mean() - probability) <= 4 * deviation


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_mirror_flips_full_images(dtype):
    images = images_of().to(dtype)
    changed = augment(images, dp.Mirror())
    unchanged = (changed == images).flatten(1).all(1)
    mirrored = (changed == images.flip(3)).flatten(1).all(1)
    assert (unchanged ^ mirrored).all()
    assert unchanged.any()
    assert mirrored.any()


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_mean_subtraction_scales_uint8_to_unit_range(channels):
    images = images_of(channels=channels)
    mean, std = np.linspace(0.3, 0.6, channels), np.linspace(0.2, 0.4, channels)
    expected = (images.numpy() / 255 - mean[:, None, None]) / std[:, None, None]
    changed = augment(images, dp.MeanSubtraction(mean.tolist(), std.tolist()))
    assert changed.dtype == torch.float32
    np.testing.assert_allclose(changed, expected, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_mean_subtraction_does_not_scale_floats(dtype):
    images = (images_of() / 255).to(dtype)
    changed = augment(images, dp.MeanSubtraction([0.5, 0.25, 0.0]))
    assert changed.dtype == torch.float32
    expected = images.double() - torch.tensor([0.5, 0.25, 0.0])[:, None, None]
    np.testing.assert_allclose(changed, expected, atol=1e-6)


@pytest.mark.parametrize(
    "step", [dp.RandomCrop(5, 4), dp.RandomCrop(13, 10, padding=3), dp.Mirror(), dp.MeanSubtraction([0.5, 2, 3])]
)
def test_tensor_path_equals_numpy_path(step):
    images = images_of()
    # NumPy has no bfloat16, so this takes the code path of a GPU.
    there = step(images.bfloat16(), Draws(ROWS, 5))
    here = step(images.float(), Draws(ROWS, 5))
    assert torch.equal(there.float(), here)


def test_augment_batch_does_not_modify_input():
    images = images_of()
    before = images.clone()
    batch = {"price": torch.ones(60), "photo": images, "row_id": torch.from_numpy(ROWS)}
    steps = [dp.RandomCrop(12, 10), dp.Mirror(), dp.MeanSubtraction([0.5] * 3)]
    changed = augment_batch(batch, ROWS, 0, 0, {("photo",): tuple(steps)})
    assert list(changed) == list(batch)
    assert changed["price"] is batch["price"]
    assert batch["photo"] is images
    assert torch.equal(images, before)


# -- randomness


@pytest.mark.parametrize("edges", PARTS)
def test_augmentation_does_not_depend_on_batching(edges):
    images, steps = images_of(), [dp.RandomCrop(8, 8, padding=1), dp.Mirror()]
    whole = augment(images, *steps)
    parts = [slice(*ends) for ends in itertools.pairwise(edges)]
    assert torch.equal(torch.cat([augment(images[part], *steps, rows=ROWS[part]) for part in parts]), whole)
    order = np.random.default_rng(0).permutation(60)
    assert torch.equal(augment(images[order], *steps, rows=ROWS[order]), whole[order])


@pytest.mark.parametrize("step", [dp.RandomCrop(5, 4), dp.Mirror(), Noise()])
@pytest.mark.parametrize("other", [{"seed": 1}, {"epoch": 1}, {"rows": ROWS + 1}, {"name": "portrait"}])
def test_augmentation_depends_on_seed_epoch_row_and_output(step, other):
    images = images_of()
    assert torch.equal(augment(images, step), augment(images, step))
    assert not torch.equal(augment(images, step), augment(images, step, **other))


def test_repeated_augmentation_draws_independently():
    images = images_of()
    once = augment(images, dp.Mirror())
    twice = augment(images, dp.Mirror(), dp.Mirror())
    assert not torch.equal(twice, images)
    assert not torch.equal(twice, once)


def test_augment_empty_batch():
    steps = [dp.RandomCrop(4, 4, padding=1), dp.Mirror(), dp.MeanSubtraction([0.5] * 3), Noise()]
    assert augment(images_of(rows=0), *steps, rows=ROWS[:0]).shape == (0, 3, 4, 4)


def test_draws_uniform_calls_are_independent():
    draws = Draws(np.arange(50_000), key=3)
    numbers = np.stack([draws.uniform(-2, 2) for _ in range(4)])
    assert numbers.min() >= -2
    assert numbers.max() < 2
    assert np.abs(numbers.mean(1)).max() < 0.03
    assert np.abs(np.corrcoef(numbers) - np.eye(4)).max() < 0.02
    neighbours = np.corrcoef(numbers[0, 1:], numbers[0, :-1])[0, 1]
    assert abs(neighbours) < 0.02


def test_draws_integers_range_excludes_high():
    drawn = Draws(np.arange(30_000), key=3).integers(-1, 2)
    counts = np.bincount(drawn + 1)
    assert len(counts) == 3
    assert np.abs(counts - 10_000).max() < 400
    assert not Draws(np.arange(9), key=3).integers(0, 1).any()


# -- user functions


def test_function_is_reproducible_and_keeps_torch_rng_state():
    images = images_of().float()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = augment(images, Noise())
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(augment(images, Noise()), first)


def test_failing_function_keeps_torch_rng_state():
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        augment(images_of(), lambda images: torch.rand(3) / (1 // 0))
    assert torch.equal(torch.get_rng_state(), before)


def test_function_on_cpu_does_not_seed_gpu(monkeypatch):
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed", seeded.append)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    augment(images_of(), Noise())
    assert not seeded
    torch.manual_seed(1)
    assert seeded


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_augmentation_equals_cpu_and_keeps_rng_state():
    images, steps = images_of(), [dp.RandomCrop(13, 9, padding=2), dp.Mirror(), dp.MeanSubtraction([0.5] * 3)]
    there = augment(images.cuda(), *steps)
    assert torch.allclose(there.cpu(), augment(images, *steps), atol=1e-6)
    before = torch.cuda.get_rng_state(there.device)
    noise = [augment(there, torch.rand_like) for _ in range(2)]
    assert torch.equal(*noise)
    assert torch.equal(torch.cuda.get_rng_state(there.device), before)


def test_functions_mix_with_builtin_augmentations():
    images = images_of()
    changed = augment(images, dp.RandomCrop(8, 8), lambda crops: crops[:, :, ::2], dp.RandomCrop(4, 5))
    assert changed.shape == (60, 3, 4, 5)


def test_function_accepts_rows_of_any_shape():
    sounds = torch.ones(60, 7)
    assert augment(sounds, lambda values: values + torch.rand(60, 1)).std() > 0


@pytest.mark.parametrize("function", [lambda images: images[1:], lambda images: None, lambda images: images.sum()])
def test_function_dropping_rows_raises(function):
    with pytest.raises(ConfigError, match='"photo".*60 rows'):
        augment(images_of(), function)


def test_function_result_smaller_than_crop_raises():
    with pytest.raises(ConfigError, match='"photo".*2 x 10 pixels are too small'):
        augment(images_of(), lambda images: images[:, :, :2], dp.RandomCrop(4, 4))


def test_custom_augmentation_draws_per_row():
    class Dim(Augmentation):
        def __call__(self, images, draws):
            return images * torch.from_numpy(draws.uniform())[:, None, None, None]

    images = images_of()
    whole = augment(images, Dim())
    assert torch.equal(augment(images[20:], Dim(), rows=ROWS[20:]), whole[20:])


# -- options

OUTPUTS = {"photo": ("uint8", (3, 12, 10)), "mask": (np.dtype("uint8"), (12, 10)), "ids": ("int64", (3, 12, 10))}


def test_single_augmentation_becomes_tuple():
    mirror, noise = dp.Mirror(), Noise()
    assert check_augment({"photo": mirror, "mask": [noise]}, OUTPUTS) == {("photo",): (mirror,), ("mask",): (noise,)}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ([dp.Mirror()], "expected a mapping"),
        ({"phto": dp.Mirror()}, '"phto" is not an output.*Did you mean "photo"'),
        ({"photo": dp.Mirror}, '"photo".*expected Mirror()'),
        ({"photo": True}, '"photo": True'),
        ({"photo": ["mirror"]}, "\"photo\": 'mirror'"),
        ({"mask": dp.Mirror()}, r'"mask".*\[12, 10\]: expected images'),
        ({"photo": dp.Mirror(1.5)}, "probability=1.5"),
        ({"photo": dp.RandomCrop(0, 4)}, "height=0"),
        ({"photo": dp.RandomCrop(4, 4.5)}, "width=4.5"),
        ({"photo": dp.RandomCrop(4, 4, padding=-1)}, "padding=-1"),
        ({"photo": dp.RandomCrop(15, 10, padding=1)}, "12 x 10 pixels are too small.*padding=2"),
        ({"photo": [dp.RandomCrop(8, 8), dp.RandomCrop(9, 8)]}, "8 x 8 pixels are too small"),
        ({"photo": dp.MeanSubtraction([0.5])}, "mean=.*expected a number for each of 3 channels"),
        ({"photo": dp.MeanSubtraction(0.5)}, "mean=0.5: expected a number for each"),
        ({"photo": dp.MeanSubtraction("abc")}, "mean='abc'"),
        ({"photo": dp.MeanSubtraction([124, 117, 104])}, "divide means of bytes by 255"),
        ({"photo": dp.MeanSubtraction([0.5] * 3, [1, 0, 1])}, "expected numbers above 0"),
        ({"ids": dp.MeanSubtraction([0.5] * 3)}, "int64: expected uint8 or floats"),
    ],
)
def test_invalid_augment_option_raises(option, message):
    with pytest.raises(ConfigError, match=message):
        check_augment(option, OUTPUTS)


@pytest.mark.parametrize("step", [dp.RandomCrop(5, 4, padding=1), dp.Mirror(0.3), dp.MeanSubtraction((0.5,))])
def test_builtin_augmentations_pickle(step):
    assert pickle.loads(pickle.dumps(step)) == step


# -- images and masks together


def augment_grouped(batch, steps, rows=ROWS, **learned):
    shapes = {name: (str(one.dtype).removeprefix("torch."), tuple(one.shape[1:])) for name, one in batch.items()}
    return augment_batch(batch, rows, 0, 0, check_augment({tuple(batch): steps}, shapes, learned))


@pytest.mark.parametrize(
    "steps", [[dp.RandomCrop(5, 4)], [dp.RandomCrop(13, 9, padding=2), dp.Mirror()], [dp.Mirror()]]
)
def test_mask_and_image_are_augmented_identically(steps):
    images = images_of(channels=1)
    changed = augment_grouped({"photo": images, "mask": images[:, 0]}, steps)
    torch.testing.assert_close(changed["mask"], changed["photo"][:, 0])
    assert not torch.equal(changed["mask"][:, :4, :4], images[:, 0, :4, :4])
    parts = [
        augment_grouped({"photo": images[a:b], "mask": images[a:b, 0]}, steps, ROWS[a:b])
        for a, b in ((0, 17), (17, 60))
    ]
    torch.testing.assert_close(torch.cat([part["mask"] for part in parts]), changed["mask"])


def test_function_draws_identically_for_grouped_outputs():
    images = images_of(channels=1).float()
    changed = augment_grouped({"photo": images, "other": images}, [Noise()])
    torch.testing.assert_close(changed["photo"], changed["other"])


def test_single_output_steps_after_grouped_steps():
    images = images_of()
    shapes = {"photo": ("uint8", (3, 12, 10)), "mask": ("uint8", (12, 10))}
    steps = check_augment({("photo", "mask"): dp.RandomCrop(6, 6), "photo": dp.MeanSubtraction([0.0] * 3)}, shapes)
    changed = augment_batch({"photo": images, "mask": images[:, 0]}, ROWS, 0, 0, steps)
    torch.testing.assert_close(changed["photo"][:, 0], changed["mask"] / 255)


@pytest.mark.parametrize(
    ("steps", "height", "message"),
    [
        (dp.Mirror(), 11, r'the same height and the same width: "photo" \[1, 12, 10\], "mask" \[11, 10\]'),
        (dp.MeanSubtraction([0.5]), 12, '"mask": its classes would become torch.float32'),
        (dp.RandomCrop(99, 9), 12, "too small"),
        ("Mirror", 12, "expected Mirror"),
    ],
)
def test_invalid_grouped_augmentation_raises(steps, height, message):
    shapes = {"photo": ("uint8", (1, 12, 10)), "mask": ("uint8", (height, 10))}
    with pytest.raises(ConfigError, match=message):
        check_augment({("photo", "mask"): steps}, shapes)


# -- fitted pixel statistics


class Learned:
    mean, deviation, mean_image = [0.25, 0.5, 0.75], [0.1, 0.2, 0.4], None


def test_normalize_uses_fitted_statistics_by_default():
    images = images_of()
    mean, std = (torch.tensor(one)[:, None, None] for one in (Learned.mean, Learned.deviation))
    by_mean = augment_grouped({"photo": images}, dp.MeanSubtraction(), photo=Learned)["photo"]
    torch.testing.assert_close(by_mean, images / 255 - mean)
    both = augment_grouped({"photo": images}, dp.Normalize(), photo=Learned)["photo"]
    torch.testing.assert_close(both, (images / 255 - mean) / std)
    explicit = augment_grouped({"photo": images}, dp.Normalize(Learned.mean, Learned.deviation))["photo"]
    torch.testing.assert_close(explicit, both)
    for step in (dp.Normalize(), dp.MeanSubtraction()):
        with pytest.raises(ConfigError, match="nothing was learned"):
            augment_grouped({"photo": images}, step)


def test_mean_image_size_mismatch_raises():
    images = images_of()
    mean = np.random.default_rng(0).random((3, 12, 10), np.float32)
    torch.testing.assert_close(augment(images, dp.MeanSubtraction(mean)), images / 255 - torch.from_numpy(mean))
    with pytest.raises(ConfigError, match="put it before a crop"):
        augment(images, dp.RandomCrop(4, 4), dp.MeanSubtraction(mean))
