"""Feature type for images: pixels of one size, or segmentation masks."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa

from daskprep.columns.summaries import ColumnSummary, FileSample
from daskprep.columns.summaries.samples import PixelSums
from daskprep.errors import ConfigError, MediaError
from daskprep.extensions.media.decoders import ImageDecoder
from daskprep.extensions.media.images import (
    FORMATS,
    MAX_PIXELS,
    ImageHeader,
    ImageRecipe,
    decode_image,
    infer_size,
    read_image_header,
)
from daskprep.extensions.media.pixels import encode_png, find_class_colours
from daskprep.features.base import Bounds, Tensor
from daskprep.features.feature import with_parameters
from daskprep.features.media import LearnedMedia, MediaContent, MediaFeature, mask_undecodable
from daskprep.rows.typed import Count, NonNegative, later

# Mean and standard deviation of each channel, as torchvision's models for ImageNet expect.
_STANDARDIZATIONS = {"imagenet1k": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))}
_LUMA = (0.299, 0.587, 0.114)
_MAX_CLASSES = 128
# End of the warning about files that masks, boxes and keypoints may not fit.
TURNED = (
    "that EXIF turns upright, but not their masks, boxes and keypoints: pass "
    'orientation="upright" to the Image if these fit upright images, or "stored" if they fit the pixels of the file'
)
_PREVIEW_SIDE = 16  # pixels; previews provide mean colors, and show that a file can be decoded
_CHANNELS = (1, 2, 3, 4)
_BATCH_ROWS = 32  # images decoded at a time for pixel statistics


class _ImageFacts(NamedTuple):
    """Properties of an image of the sample."""

    header: ImageHeader
    colour: tuple[float, ...] = ()  # mean color as RGBA; empty if it is not needed
    # Distinct colors of a mask, by the number of channels that it is decoded to.
    colours: dict[int, tuple[tuple[int, ...], ...]] | None = None


@dataclass(frozen=True, kw_only=True)
class LearnedImage(LearnedMedia):
    """Fitted state of an image column."""

    height: int = 1
    width: int = 1
    num_channels: int = 3
    mean_colour: list[int] | None = None  # of the sample, for `on_error="fill"`
    class_map: list[list[int]] | None = None  # color of each class of masks
    mean: list[float] | None = later(None)  # of each channel, from 0 to 1, as `deviation`
    deviation: list[float] | None = later(None)
    mean_image: str | None = later(None)  # an .npy file in base64
    turned: int = later(0)  # files of the sample that EXIF turns upright, unlike masks of the table


@with_parameters
class Image(MediaFeature[LearnedImage]):
    """Decode images to uint8 arrays (channels, height, width), when writing or when loading.

    A value is a path or URL, the bytes of a file, or a struct of `bytes` and `path`. Sizes that are None are learned
    from a sample: the images with the smallest hashes of their paths or bytes, independently of the partitioning.

    Parameters
    ----------
    height, width : int or None
        Size in pixels. None for both: the mean size of the sample, at most 256 each.
    num_channels : int or None
        1 is gray, 2 gray and alpha, 3 RGB, 4 RGBA. None: 1, 2 or 4 if more than half of the sample has it, else 3.
    resize_method : {"interpolate", "crop_or_pad"}
        "interpolate": bilinear with antialiasing. "crop_or_pad": crop the center, and repeat edges of smaller ones.
    orientation : {"upright", "stored"} or None
        Whether EXIF turns pixels upright, or they stay as stored in the file, which masks, boxes and keypoints may fit.
        None: upright, with a warning if there are such files next to masks, boxes or keypoints.
    sample_size : int
        Number of images in the sample.
    standardize_image : {"imagenet1k"} or None
        Whether batches are normalized by the mean and standard deviation of ImageNet; for images with 3 channels only.
    pixel_statistics : {"channels", "image"} or None
        Whether to learn the mean and standard deviation of each channel from all images, which fitting then decodes;
        "image": also a mean image. For `MeanSubtraction` and `Normalize`. Set `height`, `width`, `num_channels`.
    num_classes : int, "auto" or None
        Images are segmentation masks with this many classes, one for each color of the sample, in the order of the
        colors. "auto": as many as the sample has colors, at most 128. Rows are class ids, uint8 (height, width). With
        2 classes and 1 channel, pixels are rounded to black and white.
    mode : {"lazy", "lazy_cached", "eager"}
        When to decode. "eager": when a dataset is written, which then stores pixels. "lazy": when a loader reads, in
        every epoch; the dataset stores paths, or bytes of images in memory. "lazy_cached": in the first epoch only.
    pack : bool
        Whether lazy modes store the bytes of files instead of their paths.
    pack_size, pack_quality : int or None
        Make packed files smaller. Larger images are resized to this length of the shorter side, and stored as JPEG of
        this quality, 1 to 100, or as PNG with alpha. Without a quality, JPEG files have 95, and others become PNG.
    prefetch_size : int or None
        Blocks that a loader prefetches for each stream. None: chosen by the loader.
    lazy_cache_dir : str or None
        Folder where lazy modes write images that are in memory, to store their paths. None: bytes are stored.
    base_dir : str or None
        Folder that relative paths start from; values may then not name files outside it. None: the folder of the data
        file, or the current folder for frames.
    on_error : {"raise", "fill", "drop"}
        Whether an image that cannot be decoded raises `MediaError`, is filled with the mean color of the sample, or
        drops its row. To drop rows, all images are decoded whenever they are read.
    jpeg_decoder : {"pillow", "opencv", "gpu"}
        Package that decodes JPEG files. "opencv" also resizes them, which takes three quarters of the time at 224
        pixels and differs by one gray level. "gpu" does both on an NVIDIA GPU, with nvImageCodec and torch.
    jpeg_scale : int
        JPEG files are decoded at a fraction of their size, but at least this many times the target size.
    max_pixels : int
        Larger images cannot be decoded.
    formats : sequence of str or None
        Formats that may be decoded, out of "JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM" and "NPY". None: all.
    expand_to : {"float32", "uint8"}
        Type of batches: numbers from 0 to 1, or bytes. Batches of masks are int64.
    missing_value_strategy : str
        Imputation of missing values: "fill_with_const" (with `fill_value`), "drop_row", "ffill" or "bfill".
    fill_value : float or None
        Value that "fill_with_const" imputes for missing images: brightness from 0 to 1, or class for masks. None: 0.
    missing_indicator : bool
        Whether a second output, "_missing", marks missing values.
    invalid : {"missing", "raise"}
        Whether an empty value counts as missing or raises `RejectedValueError`.
    column : str or None
        Column to read, if its name differs from the feature's.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from daskprep import Image
    >>> from daskprep.extensions.media.pixels import encode_png
    >>> black, white = (encode_png(np.full((4, 6), level, np.uint8)) for level in (0, 255))
    >>> frame = pd.DataFrame({"photo": [black, None, white]})
    >>> Image(width=2, height=1).fit_transform(frame)  # a missing image is black
    array([[  0,   0],
           [  0,   0],
           [255, 255]], dtype=uint8)
    """

    kind = "image"
    semantic_type = "images"
    media = "image"
    known_formats = FORMATS
    untrusted_limits: ClassVar[Mapping[str, float]] = {"max_pixels": MAX_PIXELS}

    height: Count | None = None
    width: Count | None = None
    num_channels: Literal[1, 2, 3, 4] | None = None
    resize_method: Literal["interpolate", "crop_or_pad"] = "interpolate"
    orientation: Literal["upright", "stored"] | None = later(None)
    sample_size: Count = 100
    standardize_image: Literal["imagenet1k"] | None = None
    pixel_statistics: Literal["channels", "image"] | None = later(None)
    num_classes: Count | Literal["auto"] | None = None
    pack_size: Count | None = later(None)
    pack_quality: Count | None = later(None)
    jpeg_decoder: Literal["pillow", "opencv", "gpu"] = "pillow"
    jpeg_scale: Count = 1
    max_pixels: Count = MAX_PIXELS
    expand_to: Literal["float32", "uint8"] = "float32"
    fill_value: NonNegative | None = None
    _has_masks: ClassVar[bool] = False

    def check(self) -> None:
        """Raise ConfigError where size, channels, masks, packing, statistics and fill value contradict each other."""
        super().check()
        self._make_recipe(1, 1, 1)
        if (self.height is None) != (self.width is None):
            present, absent = ("width", "height") if self.height is None else ("height", "width")
            raise ConfigError(f"Image: {present} is set and {absent} is not: set both or neither")
        if self._max_classes > _MAX_CLASSES:
            raise ConfigError(f"Image: num_classes must be at most {_MAX_CLASSES}, not {self.num_classes}")
        if self.jpeg_decoder == "gpu" and self.is_mask:
            raise ConfigError('Image: jpeg_decoder="gpu" decodes no masks, which JPEG blurs: use another decoder')
        if self.standardize_image is not None and (self.expand_to == "uint8" or self.is_mask):
            kind = "masks are" if self.is_mask else 'expand_to="uint8" is'
            raise ConfigError(f"Image: standardize_image is for numbers from 0 to 1, which {kind} not: leave it out")
        if (self.pack_size or self.pack_quality) and not self.pack:
            raise ConfigError("Image: pack_size and pack_quality are for packed files: use pack=True")
        if self.pack_quality is not None and (self.is_mask or self.pack_quality > 100):
            raise ConfigError("Image: pack_quality must be at most 100, and None for masks, which JPEG blurs")
        if self.pixel_statistics is not None and (self.is_mask or None in (self.height, self.num_channels)):
            raise ConfigError(
                "Image: pixel_statistics needs height, width and num_channels, and does not support masks"
            )
        self._check_fill(self.fill_value or 0, self._max_classes)

    def _check_learned(self, learned: LearnedImage) -> None:
        """Raise ValueError unless masks alone have a class map."""
        if self.is_mask == (learned.class_map is None):
            raise ValueError("class_map is required for masks, and only allowed for masks")
        self._check_fill(learned.fill_value or 0, len(learned.class_map or ()))

    def _check_fill(self, fill: float, classes: int) -> None:
        """Raise ConfigError unless `fill` is a brightness from 0 to 1, or for masks a class below `classes`."""
        if self.is_mask:
            if fill >= classes or fill != int(fill):
                raise ConfigError(f"Image: fill_value of masks must be a class from 0 to {classes - 1}, not {fill}")
        elif not 0 <= fill <= 1:
            raise ConfigError(f"Image: fill_value must be a brightness from 0 to 1, not {fill}")

    @property
    def is_mask(self) -> bool:
        """Whether pixels are classes."""
        return self.num_classes is not None

    def _bind(self, features: Mapping[str, Any]) -> Self:
        """Return the feature, or a copy that counts turned files if there are masks that they may not fit."""
        has_masks = any(getattr(other, "is_mask", False) for other in features.values())
        if self.orientation or self.is_mask or not has_masks or any(one._is_in_images for one in features.values()):
            return self
        copied = copy.copy(self)
        vars(copied)["_has_masks"] = True
        return copied

    @property
    def _max_classes(self) -> int:
        return _MAX_CLASSES if self.num_classes in (None, "auto") else int(self.num_classes)

    @property
    def sampled_files(self) -> int:
        infers = None in (self.height, self.num_channels) or self.is_mask or self._needs_mean_colour
        return self.sample_size if infers or self.pack or self._has_masks else 0

    @property
    def _needs_mean_colour(self) -> bool:
        return self.on_error == "fill" and not self.is_mask

    def _make_recipe(self, height: int, width: int, channels: int, resize_method: Any = None) -> ImageRecipe:
        """Return the recipe to decode images to a shape; `resize_method` replaces the parameter of this name."""
        return ImageRecipe(
            int(height),
            int(width),
            int(channels),
            resize_method or self.resize_method,
            formats=self.allowed_formats,
            max_pixels=int(self.max_pixels),
            decoder=self.jpeg_decoder,
            jpeg_scale=self.jpeg_scale,
            mask=self.is_mask,
            upright=self.orientation != "stored",
        )

    def check_decodable(self, content: pa.Buffer | bytes) -> None:
        # "interpolate" reads all pixels: a crop could miss unreadable ones.
        decode_image(content, self._make_recipe(_PREVIEW_SIDE, _PREVIEW_SIDE, self.num_channels or 3, "interpolate"))

    def read_facts(self, content: pa.Buffer | bytes) -> _ImageFacts:
        """Return the size, and if `learn` needs them, the colors of a mask or the mean color of a preview."""
        recipe = self._make_recipe(_PREVIEW_SIDE, _PREVIEW_SIDE, 4, "interpolate")
        header = read_image_header(content, recipe.formats, recipe.max_pixels, recipe.upright)
        if self.is_mask:
            channels = _CHANNELS if self.num_channels is None else (self.num_channels,)
            return _ImageFacts(
                header, colours={count: self._find_colours(content, header, count) for count in channels}
            )
        if self._needs_mean_colour:
            return _ImageFacts(header, tuple(decode_image(content, recipe).mean(axis=(1, 2)).tolist()))
        return _ImageFacts(header)

    def _find_colours(
        self, content: pa.Buffer | bytes, header: ImageHeader, channels: int
    ) -> tuple[tuple[int, ...], ...]:
        """Return the distinct colors of a mask, up to one more than the maximum, so that an excess shows."""
        image = decode_image(content, self._make_recipe(*header[:2], channels))
        rounded = (image >= 128) * np.uint8(255) if self._is_binary_mask(channels) else image
        distinct = np.unique(rounded.reshape(channels, -1), axis=1).T
        return tuple(map(tuple, distinct[: _MAX_CLASSES + 1].tolist()))

    def _is_binary_mask(self, channels: int) -> bool:
        return self.num_classes == 2 and channels == 1

    def summarize(self, parsed: pa.Array) -> FileSample:
        """Sample files; with `pixel_statistics`, also decode all images and sum the pixels of the readable ones."""
        summary = super().summarize(parsed)
        if self.pixel_statistics is None:
            return summary
        cells = mask_undecodable(parsed).drop_null()
        height, width, channels = self._resolve_size([])
        learned = LearnedImage(height=height, width=width, num_channels=channels, base_dir=self.absolute_base_dir)
        cell_batches = [cells[start : start + _BATCH_ROWS] for start in range(0, len(cells), _BATCH_ROWS)] or [cells]
        decoded = (np.delete(*self._decode_cells(cell_batch, learned), axis=0) for cell_batch in cell_batches)
        sums = (PixelSums.of(images, by_pixel=self.pixel_statistics == "image") for images in decoded)
        return replace(summary, pixels=functools.reduce(operator.add, sums))

    def learn(self, summary: FileSample) -> LearnedImage:
        """Learn the shape, and colors and statistics that parameters need; MediaError if no file can be decoded."""
        sample = self.sample(summary)
        height, width, channels = self._resolve_size(sample)
        return LearnedImage(
            **({} if summary.pixels is None else summary.pixels.statistics(height * width)),
            height=height,
            width=width,
            num_channels=channels,
            file_bytes=self.estimate_cell_bytes(summary, sample),
            base_dir=self.absolute_base_dir,
            mean_colour=self._learn_mean_colour(sample, channels) if self._needs_mean_colour else None,
            class_map=self._learn_class_map(sample, channels) if self.is_mask else None,
            turned=sum(not file.error and file.facts.header.orientation > 1 for file in sample) * self._has_masks,
        )

    def learn_column(self, summary: ColumnSummary[FileSample]) -> LearnedImage:
        """Learn the state; ValueError unless only masks have classes."""
        learned = super().learn_column(summary)
        self._check_learned(learned)
        return learned

    def _resolve_size(self, sample: Sequence[MediaContent]) -> tuple[int, int, int]:
        """Return height, width and number of channels: the parameters, or values inferred from the sample."""
        height, width = self.height, self.width
        channels: int | None = self.num_channels
        if height is None or width is None or channels is None:
            sizes = [file.facts.header for file in self.require_decodable(sample, "height, width and num_channels")]
            inferred = infer_size(sizes)
            height, width = inferred[:2] if height is None or width is None else (height, width)
            channels = channels or inferred[2]
        return int(height), int(width), int(channels)

    def _learn_mean_colour(self, sample: Sequence[MediaContent], channels: int) -> list[int]:
        """Return the mean color of the readable files of the sample, 0 to 255 per channel; black without files."""
        colours = [file.facts.colour for file in sample if not file.error]
        if not colours:
            return self._grey(0.0, channels)
        red, green, blue, alpha = np.mean(colours, axis=0).tolist()
        grey = sum(weight * part for weight, part in zip(_LUMA, (red, green, blue), strict=True))
        mean = {1: [grey], 2: [grey, alpha], 3: [red, green, blue], 4: [red, green, blue, alpha]}[channels]
        return [round(part) for part in mean]

    def _grey(self, brightness: float, channels: int) -> list[int]:
        level = round(255 * brightness)
        return {1: [level], 2: [level, 255], 3: [level] * 3, 4: [level] * 3 + [255]}[channels]

    def _learn_class_map(self, sample: Sequence[MediaContent], channels: int) -> list[list[int]]:
        """Return the color of each class of masks; raise MediaError for more colors than `num_classes`."""
        masks = [file.facts.colours[channels] for file in self.require_decodable(sample, "masks that can be decoded")]
        pixels = [np.array(colours, np.uint8).T[:, :, None] for colours in masks]
        colours: list[list[int]] = find_class_colours(pixels, _MAX_CLASSES).tolist()
        if len(colours) > self._max_classes:
            raise MediaError(
                f"has masks of {len(colours)} colors, and num_classes is {self.num_classes}: correct the masks (JPEG "
                "blurs them, PNG does not), or use a larger num_classes"
            )
        return colours

    def advice(self, learned: LearnedImage) -> str | None:
        """Return a warning about turned files, `standardize_image` without effect, or too few colors; else None."""
        if learned.turned:
            return f"has {learned.turned:,} files in its sample {TURNED}"
        if self.standardize_image is not None and learned.num_channels != 3:
            return f"has images of {learned.num_channels} channels, so standardize_image, which needs 3, has no effect"
        colours = len(learned.class_map or ())
        if self.num_classes not in (None, "auto") and colours < self._max_classes:
            return (
                f"has masks of {colours} colors in its sample, and this number of classes, "
                f"not num_classes={self.num_classes}; a larger sample_size may find more"
            )
        return None

    def decoder(self, learned: LearnedImage, base_dir: str | None = None) -> ImageDecoder:
        """Return a decoder; missing images become the fill value, broken ones the mean color if on_error="fill"."""
        channels = learned.num_channels
        fill = learned.fill_value or 0
        mask = learned.class_map is not None
        return ImageDecoder(
            self.reader(base_dir or learned.base_dir),
            "fill" if self.on_error == "fill" else "raise",
            self._make_recipe(learned.height, learned.width, channels),
            missing=(int(fill),) if mask else tuple(self._grey(fill, channels)),
            broken=(0,) if mask else tuple(learned.mean_colour or self._grey(0.0, channels)),
            colours=None if learned.class_map is None else tuple(map(tuple, learned.class_map)),
            two_levels=self._is_binary_mask(channels),
            packing=(self.pack_size, self.pack_quality) if self.pack_size or self.pack_quality else None,
        )

    def expand(self, batch: Tensor, learned: LearnedImage) -> Tensor:
        """Return classes of masks as int64, and pixels as uint8 or as float32 from 0 to 1, standardized if set."""
        if learned.class_map is not None:
            return batch.long()
        if self.expand_to == "uint8":
            return batch
        # Float batches come from augmentations, which scale them to 0 to 1.
        scaled = batch if batch.is_floating_point() else batch.float().div_(255)
        if self.standardize_image is None or learned.num_channels != 3:
            return scaled
        mean, deviation = (
            scaled.new_tensor(numbers).view(3, 1, 1) for numbers in _STANDARDIZATIONS[self.standardize_image]
        )
        return scaled.sub(mean).div_(deviation)

    def limits(self, learned: LearnedImage) -> Mapping[str, Bounds]:
        return {} if learned.class_map is None else {"": (0, len(learned.class_map) - 1)}

    def decode(self, encoded: np.ndarray, learned: LearnedImage) -> pa.Array:
        """Return a PNG file as bytes for each image; classes of masks become their colors."""
        if learned.class_map is None:
            images = np.moveaxis(np.asarray(encoded, np.uint8), 1, -1)
        else:
            images = np.array(learned.class_map, np.uint8)[np.asarray(encoded, np.intp)]
        return pa.array([encode_png(image) for image in images], pa.binary())
