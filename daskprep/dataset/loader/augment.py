"""Augmentation of batches of images: random changes that depend on seed, epoch and row alone."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from daskprep.columns import kernels
from daskprep.columns.permutation import Integers, make_key, permute
from daskprep.columns.summaries.samples import mean_image
from daskprep.dataset.loader.groups import to_device
from daskprep.errors import ConfigError, did_you_mean

Shape = tuple[int, ...]
RowType = tuple[torch.dtype, Shape]
Step = Callable[..., Any]  # an Augmentation, or a function of a tensor
Steps = Mapping[tuple[str, ...], Sequence[Step]]  # by the outputs that share the random numbers
Regions = Mapping[str, frozenset[str]]  # the outputs of boxes and keypoints, and the names of their images

_WORD_BITS = 62  # the largest domain of `permute`
_FLOAT_BITS = 53
_SPAN_BITS = 31
_POINT_RADIUS = 1 / 64  # pixels


@dataclass(frozen=True, eq=False)
class Draws:
    """Random numbers for each row of a batch, from the row numbers `rows` and the seed `key`.

    The numbers of a row do not depend on the other rows of the batch. Each call returns further, independent numbers.
    """

    rows: Integers
    key: int
    _calls: Iterator[int] = field(default_factory=itertools.count, repr=False)

    def uniform(self, low: float = 0.0, high: float = 1.0) -> NDArray[np.float64]:
        """Return a random number from `low` up to, but not including, `high` for each row."""
        fractions: NDArray[np.float64] = np.ldexp(self._random_bits() >> (_WORD_BITS - _FLOAT_BITS), -_FLOAT_BITS)
        return low + (high - low) * fractions

    def integers(self, low: int, high: int) -> Integers:
        """Return a random integer from `low` to ``high - 1`` for each row; they may be at most 2**31 apart."""
        return low + (((self._random_bits() >> (_WORD_BITS - _SPAN_BITS)) * (high - low)) >> _SPAN_BITS)

    def _random_bits(self) -> Integers:
        return permute(self.rows, 2**_WORD_BITS, make_key(self.key, next(self._calls)))


class Augmentation(ABC):
    """Base class of random changes of images; subclasses can be passed to a loader like the built-in ones."""

    @abstractmethod
    def __call__(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Return changed images without modifying `images`; both have the shape (rows, channels, height, width)."""

    def move_points(self, points: torch.Tensor, size: Shape, draws: Draws) -> torch.Tensor:
        """Return points (rows, points, 2), x and y in pixels, moved as the pixels of images of a height and width.

        Only changes that define this method can be applied to images with boxes or keypoints.
        """
        raise NotImplementedError

    def infer_row_type(self, dtype: torch.dtype, shape: Shape) -> RowType:
        """Return type and shape of a changed image, from type and shape of an image before the change.

        Raise ConfigError if the parameters are invalid or do not suit these images.
        """
        return dtype, shape

    def bind_learned(self, learned: Any) -> Self:
        """Return the augmentation with values from the learned state of its images' feature, if it needs any."""
        return self


@dataclass(frozen=True)
class RandomCrop(Augmentation):
    """Crop each image to one size at a random position.

    ``train.loader(augment={"photo": RandomCrop(224, 224)})`` draws new positions in each epoch. A row has the same
    position for any batch size and on any rank. A row that an epoch repeats has one position in it.

    Parameters
    ----------
    height, width : int
        Size of the crop in pixels.
    padding : int
        Pixels of zeros that are added around each image first, so that crops may reach beyond it.

    Examples
    --------
    >>> import numpy as np, torch
    >>> import daskprep as dp
    >>> from daskprep.dataset.loader.augment import Draws
    >>> images = torch.arange(1, 9, dtype=torch.uint8).reshape(2, 1, 2, 2)
    >>> dp.RandomCrop(1, 2)(images, Draws(np.array([7, 8]), key=1)).tolist()
    [[[[3, 4]]], [[[7, 8]]]]
    >>> dp.RandomCrop(2, 2, padding=1)(images, Draws(np.array([7, 8]), key=1)).tolist()
    [[[[0, 3], [0, 0]]], [[[8, 0], [0, 0]]]]
    """

    height: int
    width: int
    padding: int = 0

    def __call__(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Return the crops of images (rows, channels, height, width) that are padded with zeros, at drawn positions."""
        size, padding = (self.height, self.width), self.padding
        offsets = self._draw_offsets(tuple(images.shape[2:]), draws)
        if _is_array(images):
            array = images.numpy()
            if padding:
                array = np.pad(array, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
            windows = np.lib.stride_tricks.sliding_window_view(array, size, axis=(2, 3))
            return torch.from_numpy(windows[np.arange(len(images)), :, offsets[0], offsets[1]])
        if padding:
            images = torch.nn.functional.pad(images, (padding,) * 4)
        tops, lefts = to_device(offsets, images.device)
        row_indices = torch.arange(len(images), device=images.device)
        return images.unfold(2, self.height, 1).unfold(3, self.width, 1)[row_indices, :, tops, lefts]

    def _draw_offsets(self, size: Shape, draws: Draws) -> Integers:
        """Return the upper and the left edge (2, rows) of crops of padded images; `size` is without padding."""
        height, width = (length + 2 * self.padding for length in size)
        return np.stack([draws.integers(0, height - self.height + 1), draws.integers(0, width - self.width + 1)])

    def move_points(self, points: torch.Tensor, size: Shape, draws: Draws) -> torch.Tensor:
        shifts = (self.padding - self._draw_offsets(size, draws)[::-1].T).astype(np.float32)
        return points + to_device(shifts, points.device)[:, None]

    def infer_row_type(self, dtype: torch.dtype, shape: Shape) -> RowType:
        """Return the type, and the shape of a crop; raise ConfigError for sizes that are invalid or too large."""
        for name, minimum in (("height", 1), ("width", 1), ("padding", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
                raise ConfigError(f"{self}: {name}={value!r}: expected an integer from {minimum}, in pixels")
        channels, height, width = _image_shape(self, shape)
        shortage = max(self.height - height, self.width - width)
        if shortage > 2 * self.padding:
            raise ConfigError(
                f"{self}: images of {height} x {width} pixels are too small for a crop of {self.height} x "
                f"{self.width}: make height and width smaller, or use padding={-(-shortage // 2)}"
            )
        return dtype, (channels, self.height, self.width)


@dataclass(frozen=True)
class CenterCrop(RandomCrop):
    """Crop the center of each image, such as of validation images to the size that `RandomCrop` has for training.

    Parameters
    ----------
    height, width, padding
        As for `RandomCrop`.

    Examples
    --------
    >>> import numpy as np, torch
    >>> import daskprep as dp
    >>> from daskprep.dataset.loader.augment import Draws
    >>> dp.CenterCrop(1, 2)(torch.arange(12).reshape(1, 1, 3, 4), Draws(np.array([7]), key=1)).tolist()
    [[[[5, 6]]]]
    """

    def _draw_offsets(self, size: Shape, draws: Draws) -> Integers:
        """Return the center's offsets for all rows; halves to even."""
        excess = np.array(size) + 2 * self.padding - [self.height, self.width]
        edges = np.rint(excess / 2).astype(np.int64)  # halves to even, as torchvision's CenterCrop
        return np.repeat(edges[:, None], len(draws.rows), axis=1)


@dataclass(frozen=True)
class Mirror(Augmentation):
    """Flip images horizontally at random, different ones in each epoch.

    A row that an epoch repeats is flipped every time in that epoch, or never.

    Parameters
    ----------
    probability : float
        Probability that an image is flipped.

    Examples
    --------
    >>> import numpy as np, torch
    >>> import daskprep as dp
    >>> from daskprep.dataset.loader.augment import Draws
    >>> images = torch.tensor([1, 2] * 3, dtype=torch.uint8).reshape(3, 1, 1, 2)
    >>> dp.Mirror()(images, Draws(np.array([7, 8, 9]), key=1)).tolist()
    [[[[1, 2]]], [[[1, 2]]], [[[2, 1]]]]
    """

    probability: float = 0.5

    def __call__(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Return a copy of images (rows, channels, height, width) with the drawn rows flipped along the width."""
        is_flipped = draws.uniform() < self.probability
        if _is_array(images):
            array = images.numpy()
            mirrored = array.copy()
            mirrored[is_flipped] = array[is_flipped][..., ::-1]
            return torch.from_numpy(mirrored)
        return torch.where(to_device(is_flipped, images.device)[:, None, None, None], images.flip(3), images)

    def move_points(self, points: torch.Tensor, size: Shape, draws: Draws) -> torch.Tensor:
        """Return points with x mirrored in the rows that are flipped."""
        is_flipped = to_device(draws.uniform() < self.probability, points.device)[:, None, None]
        mirrored = torch.stack([size[1] - points[..., 0], points[..., 1]], dim=-1)
        return torch.where(is_flipped, mirrored, points)

    def infer_row_type(self, dtype: torch.dtype, shape: Shape) -> RowType:
        """Return the type and shape; ConfigError for an invalid probability."""
        if not _is_number(self.probability) or not 0 <= self.probability <= 1:
            raise ConfigError(f"{self}: probability={self.probability!r}: expected a number from 0 to 1")
        return dtype, _image_shape(self, shape)


@dataclass(frozen=True)
class MeanSubtraction(Augmentation):
    """Convert images to float32, and subtract the mean of each channel or a mean image.

    Bytes are divided by 255 first; floats are used unchanged. Since the result is float, the loader does not divide it
    by 255 again, but a feature that standardizes images still does. Put it last: floats take four times the memory.

    Parameters
    ----------
    mean : sequence of float, ndarray or None
        Mean of each channel, where 0 is black and 1 is white, or an image of means. None: the image, or else the
        channel means, that the feature learned by `pixel_statistics`.
    std : sequence of float or None
        Divisor of each channel after the subtraction, in the same unit.

    Examples
    --------
    >>> import numpy as np, torch
    >>> import daskprep as dp
    >>> from daskprep.dataset.loader.augment import Draws
    >>> images = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 1, 1, 3)
    >>> changed = dp.MeanSubtraction([0.2], std=[0.4])(images, Draws(np.array([7]), key=1))
    >>> changed.numpy().round(4).tolist()
    [[[[-0.5, 0.0, 2.0]]]]
    """

    mean: Sequence[float] | NDArray[Any] | None = None
    std: Sequence[float] | None = None

    def bind_learned(self, learned: Any) -> Self:
        return self if self.mean is not None else replace(self, mean=self._find_learned(learned, "mean_image", "mean"))

    def _find_learned(self, learned: Any, *names: str) -> Any:
        """Return the first attribute of `learned` among `names` that is not None, or raise ConfigError."""
        value = next((attribute for name in names if (attribute := getattr(learned, name, None)) is not None), None)
        if value is None:
            raise ConfigError(f"{self}: nothing was learned: pass numbers, or set pixel_statistics of the feature")
        return mean_image(value) if isinstance(value, str) else value

    def __call__(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Return (images - mean) / std as a new float32 tensor; bytes are divided by 255 first."""
        mean = np.array(self.mean, np.float64)
        mean = mean if mean.ndim == 3 else mean[:, None, None]
        factor = 1 / (np.ones(len(mean)) if self.std is None else np.array(self.std, np.float64))[:, None, None]
        shift = -mean * factor
        if images.dtype == torch.uint8:
            factor = factor / 255
        constants = [constant.astype(np.float32) for constant in (factor, shift)]
        if _is_array(images):
            array = images.numpy().astype(np.float32)
            array *= constants[0]
            array += constants[1]
            return torch.from_numpy(array)
        factors, shifts = (to_device(constant, images.device) for constant in constants)
        return images.to(torch.float32, copy=True).mul_(factors).add_(shifts)

    def infer_row_type(self, dtype: torch.dtype, shape: Shape) -> RowType:
        """Return float32 and the same shape; raise ConfigError for a mean or std that does not suit the images."""
        shape = _image_shape(self, shape)
        is_image = isinstance(self.mean, np.ndarray) and self.mean.ndim == 3
        if is_image and np.asarray(self.mean).shape != shape:
            raise ConfigError(f"{self}: images are {list(shape)}, and the mean image is not: put it before a crop")
        for name, values in (("mean", None if is_image else self.mean), ("std", self.std)):
            is_valid = np.iterable(values) and all(map(_is_number, values)) and len(values) == shape[0]
            if not is_valid and values is not None:
                raise ConfigError(f"{self}: {name}={values!r}: expected a number for each of {shape[0]} channels")
        if self.std is not None and min(self.std) <= 0:
            raise ConfigError(f"{self}: std={self.std!r}: expected numbers above 0")
        if not (dtype == torch.uint8 or dtype.is_floating_point):
            raise ConfigError(f"{self}: the images are {dtype}: expected uint8 or floats")
        if dtype == torch.uint8 and not all(0 <= value <= 1 for value in np.ravel(np.asarray(self.mean))):
            raise ConfigError(
                f"{self}: mean={self.mean!r}: expected numbers from 0 to 1, so divide means of bytes by 255"
            )
        return torch.float32, shape


class Normalize(MeanSubtraction):
    """Normalize images as float32 by the mean and standard deviation of each channel, both passed or both learned.

    Parameters
    ----------
    mean : sequence of numbers or None
        Mean of each channel, from 0 to 1 for bytes. None: learned by ``Image(pixel_statistics="channels")``.
    std : sequence of numbers or None
        Standard deviation of each channel, in the same unit.
    """

    def bind_learned(self, learned: Any) -> Self:
        """Return a copy with learned mean and deviation, if not passed."""
        if self.mean is not None:
            return self
        return replace(self, mean=self._find_learned(learned, "mean"), std=self._find_learned(learned, "deviation"))


def check_augment(
    augment: Mapping[Any, Any],
    outputs: Mapping[str, tuple[DTypeLike, Shape]],
    learned: Mapping[str, Any] = MappingProxyType({}),
    regions: Regions = MappingProxyType({}),
) -> Steps:
    """Return the steps of the option `augment` by output names, with learned values bound; ConfigError for others."""
    if not isinstance(augment, Mapping):
        raise ConfigError(f'augment={augment!r}: expected a mapping such as {{"photo": Mirror()}}')
    checked: dict[tuple[str, ...], tuple[Step, ...]] = {}
    empty = {name: (torch.from_numpy(np.empty(0, dtype)), tuple(shape)) for name, (dtype, shape) in outputs.items()}
    rows: dict[str, RowType | None] = {name: (tensor.dtype, shape) for name, (tensor, shape) in empty.items()}
    for key, value in augment.items():
        names = key if isinstance(key, tuple) else (key,)
        for name in names:
            if name not in outputs:
                raise ConfigError(
                    f'augment: "{name}" is not an output ({", ".join(outputs)}).{did_you_mean(name, outputs)}'
                )
        images = [name for name in names if name not in regions]
        _check_same_size({name: row[1] for name in images if (row := rows[name]) is not None})
        steps = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        checked[names] = tuple(
            step.bind_learned(learned.get(names[0])) if isinstance(step, Augmentation) else step for step in steps
        )
        _check_regions(names, images, checked[names], {name: regions[name] for name in regions if name in outputs})
        rows |= {name: _infer_final_row_type(name, checked[names], rows[name], len(names) > 1) for name in images}
    return checked


def _check_regions(names: Sequence[str], images: Sequence[str], steps: Sequence[Step], regions: Regions) -> None:
    """Raise ConfigError for boxes or keypoints without their images, and for steps that would move one of both only."""
    inherited = Augmentation.move_points
    moving = [one for one in steps if _is_torchvision(one) or getattr(type(one), "move_points", inherited) != inherited]
    for name, own_images in regions.items():
        if name in names and not images:
            raise ConfigError(f'augment: "{name}" moves with its image: use a key such as ("photo", "{name}")')
        if name in names and (others := [step for step in steps if step not in moving]):
            raise ConfigError(
                f'augment: {others[0]!r} cannot move "{name}": use RandomCrop, CenterCrop, Mirror or transforms of '
                f'torchvision.transforms.v2 for it, and other changes with the key "{images[0]}"'
            )
        if name not in names and moving and (alone := own_images.intersection(names)):
            raise ConfigError(
                f'augment: {moving[0]!r} would move "{min(alone)}" and not "{name}": use the key '
                f'{(*names, name)!r}, or leave "{name}" out with columns='
            )


def _check_same_size(shapes: Mapping[str, Shape]) -> None:
    """Raise ConfigError if rows differ in height or width."""
    if len({shape[-2:] for shape in shapes.values()}) > 1:
        shown = ", ".join(f'"{name}" {list(shape)}' for name, shape in shapes.items())
        raise ConfigError(f"augment: outputs of one key must have the same height and the same width: {shown}")


def _infer_final_row_type(name: str, steps: Sequence[Step], row: RowType | None, is_alike: bool) -> RowType | None:
    """Return type and shape of a row after all steps, None if unknown; or ConfigError. `is_alike`: it may be a mask."""
    is_mask = is_alike and row is not None and len(row[1]) == 2
    current = (row[0], (1, *row[1])) if row is not None and is_mask else row
    for step in steps:
        if isinstance(step, type) or not callable(step):
            raise ConfigError(
                f'augment: "{name}": {step!r}: expected Mirror(), another augmentation, a function, or a list'
            )
        current = (
            _infer_row_type(name, step, *current) if current is not None and isinstance(step, Augmentation) else None
        )
    if row is None or current is None or not is_mask:
        return current
    if current[0] != row[0]:
        raise ConfigError(f'augment: "{name}": its classes would become {current[0]}: change the colors of images only')
    return current[0], current[1][1:]


def _infer_row_type(name: str, step: Augmentation, dtype: torch.dtype, shape: Shape) -> RowType:
    """Return the row type after a step; raise its ConfigError with the output `name` in the message."""
    try:
        return step.infer_row_type(dtype, shape)
    except ConfigError as error:
        raise ConfigError(f'augment: "{name}": {error}') from None


def augment_batch(
    batch: Mapping[str, torch.Tensor],
    rows: Integers,
    seed: int,
    epoch: int,
    steps_by_output: Steps,
    regions: Collection[str] = (),
) -> dict[str, torch.Tensor]:
    """Return a batch with the outputs of `steps_by_output` augmented, by seed, epoch and row; `batch` stays."""
    changed = dict(batch)
    for names, steps in steps_by_output.items():
        images = [name for name in names if name not in regions]
        _check_same_size({name: tuple(changed[name].shape[1:]) for name in images})
        for step_index, step in enumerate(steps):
            key = make_key(seed, "augment", epoch, *names, step_index)
            if _is_torchvision(step):
                changed |= _transform_rows(step, {name: changed[name] for name in names}, images, rows, key)
                continue
            size = tuple(changed[images[0]].shape[-2:])
            for name in images:
                values = changed[name]
                is_mask = len(names) > 1 and values.dim() == 3
                pixels = values[:, None] if is_mask else values
                if isinstance(step, Augmentation):
                    _infer_row_type(name, step, pixels.dtype, tuple(pixels.shape[1:]))
                    pixels = step(pixels, Draws(rows, key))
                else:
                    rows_digest = hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()
                    pixels = _call_function(name, step, pixels, make_key(key, rows_digest))
                changed[name] = pixels[:, 0] if is_mask else pixels
            for name in names:
                if name in regions:
                    points = changed[name].reshape(len(rows), -1, 2)
                    moved = (
                        cast("Augmentation", step).move_points(points, size, Draws(rows, key)).view_as(changed[name])
                    )
                    changed[name] = kernels.keep_inside(_sort_corners(moved), *changed[images[0]].shape[-2:])
    return changed


def _sort_corners(regions: torch.Tensor) -> torch.Tensor:
    """Return boxes with their smaller coordinates first, which a change may have swapped; keypoints unchanged."""
    if regions.shape[-1] == 2:
        return regions
    first, second = regions[..., :2], regions[..., 2:]
    return torch.cat([torch.minimum(first, second), torch.maximum(first, second)], dim=-1)


def _is_torchvision(step: Step) -> bool:
    """Return whether a step is a transform of torchvision's v2, which was imported if there is one."""
    v2 = sys.modules.get("torchvision.transforms.v2")
    return v2 is not None and isinstance(step, v2.Transform)


def _transform_rows(
    transform: Step, group: Mapping[str, torch.Tensor], images: Sequence[str], rows: Integers, key: int
) -> dict[str, torch.Tensor]:
    """Return a group after a transform of torchvision's v2 of each row, seeded by its number; or ConfigError."""
    tv_tensors = importlib.import_module("torchvision.tv_tensors")
    regions = [name for name in group if name not in images]
    results: dict[str, list[torch.Tensor]] = {name: [] for name in group}
    with _forked_generators(group[images[0]].device) as set_seed:
        for index, row in enumerate(rows.tolist()):
            set_seed(make_key(key, row))
            sample = {
                name: (tv_tensors.Image if group[name].dim() == 4 else tv_tensors.Mask)(group[name][index])
                for name in images
            }
            present = {name: ~group[name][index].isnan().any(dim=1) for name in regions}
            # One object, as torchvision expects; a keypoint is a very small box, which shows if it is cropped.
            corners = [_to_corners(group[name][index][present[name]]) for name in regions]
            if regions:
                size = tuple(group[images[0]].shape[-2:])
                sample[regions[0]] = tv_tensors.BoundingBoxes(torch.cat(corners), format="XYXY", canvas_size=size)
            changed = transform(sample)
            for name in images:
                results[name].append(changed[name].as_subclass(torch.Tensor))
            moved = changed[regions[0]].as_subclass(torch.Tensor) if regions else torch.empty(0, 4)
            if len(moved) != sum(map(len, corners)):
                raise ConfigError(
                    f'augment: {transform!r} removed boxes of "{regions[0]}": leave SanitizeBoundingBoxes out'
                )
            inside = kernels.keep_inside(moved.clone(), *changed[images[0]].shape[-2:])
            for name, part in zip(regions, inside.split([len(one) for one in corners]), strict=True):
                values = torch.full_like(group[name][index], math.nan)
                values[present[name]] = part if values.shape[-1] == 4 else (part[:, :2] + part[:, 2:]) / 2
                results[name].append(values)
    for name in images:
        if len(sizes := {tuple(image.shape) for image in results[name]}) > 1:
            raise ConfigError(
                f'augment: "{name}": {transform!r} returned images of different sizes, {sorted(sizes)[:2]}: add Resize'
            )
    return {name: torch.stack(parts) for name, parts in results.items()}


def _to_corners(regions: torch.Tensor) -> torch.Tensor:
    return regions if regions.shape[1] == 4 else torch.cat([regions - _POINT_RADIUS, regions + _POINT_RADIUS], dim=1)


@contextmanager
def _forked_generators(device: torch.device) -> Iterator[Callable[[int], None]]:
    """Yield a function that seeds torch until the block ends."""
    # torch.manual_seed would seed every GPU, but fork_rng restores only the generators of the CPU and the named GPU.
    with torch.random.fork_rng([device] if device.type == "cuda" else [], device_type="cuda"):

        def set_seed(key: int) -> None:
            torch.default_generator.manual_seed(key)
            if device.type == "cuda":
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(key)

        yield set_seed


def _call_function(name: str, function: Step, values: torch.Tensor, key: int) -> torch.Tensor:
    """Return the result of a user's function for images, torch seeded by `key`; ConfigError for other rows."""
    with _forked_generators(values.device) as set_seed:
        set_seed(key)
        result = function(values)
    if not isinstance(result, torch.Tensor) or not result.dim() or len(result) != len(values):
        description = list(result.shape) if isinstance(result, torch.Tensor) else f"a {type(result).__name__}"
        raise ConfigError(
            f'augment: "{name}": {function!r} returned {description} for a tensor of {list(values.shape)}: expected a '
            f"tensor of {len(values)} rows"
        )
    return result


def _image_shape(step: Augmentation, shape: Shape) -> Shape:
    """Return (channels, height, width), or raise ConfigError."""
    if len(shape) != 3:
        raise ConfigError(f"{step}: rows have the shape {list(shape)}: expected images, or pass a function of a tensor")
    return shape


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and math.isfinite(value)


def _is_array(images: torch.Tensor) -> bool:
    """Return whether NumPy can read the images: it moves bytes in a fifth of the time that torch takes on a CPU."""
    return images.device.type == "cpu" and images.dtype != torch.bfloat16 and not images.requires_grad
