"""Feature types for boxes and keypoints in an image: lists of regions that move with its pixels."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns import kernels
from daskprep.columns.deferred.decoders import read_content
from daskprep.columns.kernels import float_values, list_offsets, make_list_array, null_mask, pad, unwrap_mixed_column
from daskprep.columns.summaries import Lengths, Summary
from daskprep.errors import ConfigError, MediaError
from daskprep.extensions.media.image_feature import TURNED, Image
from daskprep.extensions.media.images import read_image_header
from daskprep.extensions.media.pixels import INVERSE_TURNS, center_offset
from daskprep.features.base import Learned, Loss
from daskprep.features.cells import one_array
from daskprep.features.feature import Feature, with_parameters
from daskprep.features.padding import Padding
from daskprep.features.vector import mask_rows, parse_number_lists
from daskprep.rows.typed import later

SIZE = "_size"
_HEADER = ("height", "width", "orientation")  # of the image, in parsed cells
AnyFeature = TypeVar("AnyFeature")


def turn(regions: np.ndarray, orientations: np.ndarray, sizes: np.ndarray) -> None:
    """Move regions (rows, regions, corners, 2) in place as EXIF orientations move pixels, to images of these sizes.

    `orientations` has one entry, and `sizes` a height and a width, for each row.
    """
    is_rotated = orientations >= 5
    regions[is_rotated] = regions[is_rotated][..., ::-1]
    for axis, mirrored in ((0, (2, 3, 6, 7)), (1, (3, 4, 7, 8))):
        rows = np.isin(orientations, mirrored)
        regions[rows, ..., axis] = sizes[rows, 1 - axis, None, None] - regions[rows, ..., axis][..., ::-1]


@dataclass(frozen=True, kw_only=True)
class RegionCounts(Summary):
    """Numbers of regions in the rows, and the number of rows with regions whose image has an EXIF orientation."""

    lengths: Lengths
    turned: int


@dataclass(frozen=True, kw_only=True)
class LearnedRegions(Learned):
    """Fitted state of a column of boxes or keypoints: the number of regions in a row, and the size of images."""

    size: int = 1
    height: int = 1
    width: int = 1
    crops: bool = False  # whether images are cropped or padded to this size, instead of resized
    turned: int = later(0)  # rows whose image EXIF turns upright, if no parameter says that their regions fit it


class _Regions(Feature[RegionCounts, LearnedRegions]):
    """Base class of types whose cells are lists of regions in an image of another column.

    Parsed cells have the numbers of the cell, height and width of its image before it is resized, and the EXIF
    orientation that moves them to its pixels.
    """

    _loss_remedies: ClassVar[Mapping[Loss, str]] = {"cut": "fit on rows with as many, inside of their images"}
    _is_in_images = True
    _numbers: ClassVar[int]  # numbers of a region in a row
    _image: ClassVar[Image | None] = None
    image: str
    orientation: Literal["upright", "stored"] | None

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("", SIZE)

    @property
    def _cell_numbers(self) -> int:
        return self._numbers

    def reads(self, name: str) -> list[str]:
        return [*super().reads(name), self.image]

    def _bind(self, features: Mapping[str, Any]) -> Self:
        """Return a copy that reads images as the only `Image` of their column; ConfigError without one."""
        images = [
            feature
            for name, feature in features.items()
            if isinstance(feature, Image) and not feature.is_mask and feature.reads(name)[0] == self.image
        ]
        problem = "" if len(images) == 1 else f"{len(images) or 'no'} features of type Image read this column"
        if not problem and images[0].height is None:
            problem = "its Image has no height and width, which it needs"
        if problem:
            raise ConfigError(
                f'{type(self).__name__}: image="{self.image}": {problem}: add "{self.image}": Image(height=..., '
                "width=...) to the features of the Preprocessor"
            )
        copied = copy.copy(self)
        image = copy.copy(images[0])
        image.on_error = "raise"  # only headers are read here
        vars(copied)["_image"] = image
        return copied

    def _bound_image(self) -> Image:
        """Return the Image that regions are in, or raise ConfigError."""
        if self._image is None:
            raise ConfigError(
                f"{type(self).__name__} moves with the images of another column: use it in a Preprocessor with an Image"
            )
        return self._image

    def parse(self, column: pa.Array) -> pa.Array:
        return self._parse_lists(column, np.zeros((len(column), 3), np.int32))

    def _parse_columns(self, names: Sequence[str], *columns: pa.ChunkedArray) -> pa.Array:
        """Return regions with headers of images; null if unknown."""
        image = self._bound_image()
        reader, headers = image.reader(), np.zeros((len(columns[0]), 3), np.int32)
        upright = image.orientation != "stored"
        for row, cell in enumerate(image.parse(unwrap_mixed_column(columns[1]))):
            if cell.is_valid:
                try:
                    content = read_content(cell, reader)
                    header = read_image_header(content, image.allowed_formats, image.max_pixels, upright)
                    headers[row] = header.height, header.width, self._turn(header.orientation, upright)
                except MediaError:
                    continue  # the image reports it, by its `on_error`
        return self._parse_lists(one_array(columns[0]), headers)

    def _turn(self, orientation: int, upright: bool) -> int:
        """Return the EXIF orientation that moves regions to the pixels of the image; unused without a parameter."""
        if self.orientation == ("upright" if upright else "stored"):
            return 1
        return orientation if upright else INVERSE_TURNS.get(orientation, orientation)

    def _parse_lists(self, column: pa.Array, headers: np.ndarray) -> pa.StructArray:
        """Return structs of `numbers` and `headers`; null for cells that are no regions of a known image."""
        missing = column.is_null()
        if pa.types.is_list(column.type) and pa.types.is_list(column.type.value_type):
            regions, offsets = column.flatten(), list_offsets(column)
            column = make_list_array(list_offsets(regions)[offsets], regions.flatten(), null_mask(column))
        lists = parse_number_lists(column)
        counts = np.diff(list_offsets(lists))
        lists = mask_rows(lists, (counts % self._cell_numbers > 0) | ((counts > 0) & (headers[:, 0] == 0)))
        lists = pc.if_else(missing, pa.scalar([], lists.type), lists)
        parts = [lists, *map(pa.array, headers.T)]
        return pa.StructArray.from_arrays(parts, ["numbers", *_HEADER], mask=lists.is_null())

    def summarize(self, parsed: pa.Array) -> RegionCounts:
        """Count the regions of rows, and the rows that EXIF turns."""
        present = parsed.drop_null()
        lengths = np.diff(list_offsets(pc.struct_field(present, "numbers"))) // self._cell_numbers
        turned = int(((pc.struct_field(present, "orientation").to_numpy() > 1) & (lengths > 0)).sum())
        return RegionCounts(lengths=Lengths.of(lengths), turned=turned)

    def learn(self, summary: RegionCounts) -> LearnedRegions:
        """Learn the most regions of a row, from 1, and image size."""
        image = self._bound_image()
        return LearnedRegions(
            size=max(1, summary.lengths.max),
            turned=0 if self.orientation or image.orientation else summary.turned,
            height=int(image.height or 1),
            width=int(image.width or 1),
            crops=image.resize_method == "crop_or_pad",
        )

    def advice(self, learned: LearnedRegions) -> str | None:
        """Return a warning about turned images, or other advice."""
        if learned.turned:
            return f"belongs to {learned.turned:,} images {TURNED}"
        return super().advice(learned)

    def _to_regions(self, cells: np.ndarray) -> np.ndarray:
        """Return regions (rows, regions, `_numbers`) in pixels, from the numbers of cells (rows, regions, numbers)."""
        return cells

    def encode(self, parsed: pa.Array, learned: LearnedRegions) -> dict[str, np.ndarray]:
        """Return regions in pixels of resized images, NaN for padding and outside of a crop, and sizes before it."""
        lists = pc.struct_field(parsed, "numbers")
        count = self._cell_numbers
        numbers = float_values(lists.flatten()).astype(np.float64)
        cells = pad(list_offsets(lists), numbers, learned.size * count, fill=np.nan)
        regions = self._to_regions(cells.reshape(len(parsed), learned.size, count))
        header = np.stack([pc.fill_null(pc.struct_field(parsed, name), 0).to_numpy() for name in _HEADER], 1)
        sizes, orientations = header[:, :2], header[:, 2]
        points = regions.reshape(len(parsed), learned.size * self._numbers // 2, 2)
        if self.orientation:
            turn(regions.reshape(len(parsed), learned.size, self._numbers // 2, 2), orientations, sizes)
        for axis, target in ((0, learned.width), (1, learned.height)):
            lengths = sizes[:, 1 - axis, None].astype(np.int64)
            if learned.crops:
                points[:, :, axis] += center_offset(lengths, target)
            else:
                points[:, :, axis] *= target / np.maximum(lengths, 1)
        return {
            "": kernels.keep_inside(regions.astype(np.float32), learned.height, learned.width),
            SIZE: sizes.astype(np.int32),
        }

    def _losses(
        self, parsed: pa.Array, encoded: Mapping[str, np.ndarray], learned: LearnedRegions
    ) -> Mapping[Loss, np.ndarray]:
        kept = (~np.isnan(encoded[""]).any(axis=2)).sum(axis=1)
        return {"cut": kept < np.diff(list_offsets(pc.struct_field(parsed, "numbers"))) // self._cell_numbers}

    def _paddings(self, learned: LearnedRegions, *, expand: bool) -> dict[str, Padding]:
        return {"": Padding(math.nan)}

    def decode(self, encoded: Any, learned: LearnedRegions) -> pa.Array:
        """Return each row as a list of regions, each a list of numbers, in pixels of resized images."""
        regions = np.asarray(encoded[""], np.float32)
        is_region = ~np.isnan(regions).any(axis=2)
        numbers = regions[is_region]
        inner = make_list_array(np.arange(len(numbers) + 1) * self._numbers, pa.array(numbers.reshape(-1)))
        return make_list_array(np.append(0, np.cumsum(is_region.sum(axis=1))), inner)

    def cells(self, parsed: pa.Array) -> None:
        return None


@with_parameters
class Boxes(_Regions):
    """Read the boxes of objects in an image as float32 rows (boxes, 4), padded to one number of boxes.

    A value is a list of boxes, each a list of four numbers, or text such as "[[10, 20, 50, 60]]", in pixels of the
    image before it is resized. A missing value means no boxes. Rows have the corners x1, y1, x2, y2 in
    pixels of the resized image, cut to it. NaN is padding, or a box without area or outside of the image. The output
    "_size" has height and width of the image before it is resized.

    Parameters
    ----------
    image : str
        Column of the images, which an `Image` with height and width reads.
    orientation : {"upright", "stored"} or None
        Whether values count pixels of the image that EXIF turns upright, or of the stored one.
        None: those that the `Image` reads, with a warning if it has no `orientation` either.
    format : {"xyxy", "xywh", "cxcywh"}
        Four numbers of a value: two corners, or the first corner (as in COCO) or center, and width and height.
    missing_value_strategy : str
        "fill_with_const", or "drop_row" for rows whose value cannot be read.
    fill_value : str
        Boxes of values that cannot be read; "" for none.
    missing_indicator : bool
        Whether a second output, "_missing", marks values that cannot be read.
    invalid : {"missing", "raise"}
        Whether a value that cannot be read counts as missing or raises `RejectedValueError`.
    column : str or None
        Column to read, if its name differs from the feature's.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> import daskprep as dp
    >>> from daskprep.extensions.media.pixels import encode_png
    >>> photo = encode_png(np.zeros((20, 40), np.uint8))
    >>> frame = pd.DataFrame({"photo": [photo, photo], "boxes": [[[4, 2, 8, 6], [30, 10, 50, 20]], []]})
    >>> features = {"photo": dp.Image(height=10, width=10), "boxes": dp.Boxes(image="photo")}
    >>> dp.Preprocessor(features, split=None).fit(frame).encode(frame)["boxes"]
    array([[[ 1. ,  1. ,  2. ,  3. ],
            [ 7.5,  5. , 10. , 10. ]],
    <BLANKLINE>
           [[ nan,  nan,  nan,  nan],
            [ nan,  nan,  nan,  nan]]], dtype=float32)
    """

    kind = "boxes"
    _numbers = 4
    _edge_case_cells = ("", "[[1, 2, 3, 4], [5, 6, 7, 8]]", "1 2 3", "no boxes")

    image: str = "image"
    orientation: Literal["upright", "stored"] | None = later(None)
    format: Literal["xyxy", "xywh", "cxcywh"] = "xyxy"
    missing_value_strategy: Literal["fill_with_const", "drop_row"] = "fill_with_const"
    fill_value: str | None = ""

    def _to_regions(self, cells: np.ndarray) -> np.ndarray:
        """Return corners x1, y1, x2, y2, changed in place."""
        if self.format == "cxcywh":
            cells[..., :2] -= cells[..., 2:] / 2
        if self.format != "xyxy":
            cells[..., 2:] += cells[..., :2]
        return cells


@with_parameters
class Keypoints(_Regions):
    """Read points in an image as float32 rows (points, 2), padded to one number of points.

    A value is a list of points, each a list of two numbers, or text, in pixels of the image before it is resized: 0
    is the left or upper edge of the first pixel. A missing value means no points. Rows have x and y in pixels of the
    resized image. NaN is padding, or a point that is outside of the image or not visible. The output "_size" has
    height and width of the image before it is resized.

    Parameters
    ----------
    image : str
        Column of the images, which an `Image` with height and width reads.
    format : {"xy", "xyv"}
        Numbers of a point. "xyv": the third number is its visibility, and 0 if the point is not labeled (as in COCO).
    orientation, missing_value_strategy, fill_value, missing_indicator, invalid, column
        As for `Boxes`.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> import daskprep as dp
    >>> from daskprep.extensions.media.pixels import encode_png
    >>> frame = pd.DataFrame({"photo": [encode_png(np.zeros((20, 40), np.uint8))], "eyes": [[[10, 5], [20, 5]]]})
    >>> features = {"photo": dp.Image(height=10, width=10), "eyes": dp.Keypoints(image="photo")}
    >>> dp.Preprocessor(features, split=None).fit(frame).encode(frame)["eyes"].tolist()
    [[[2.5, 2.5], [5.0, 2.5]]]
    """

    kind = "keypoints"
    _numbers = 2
    _edge_case_cells = ("", "[[1, 2], [5, 6]]", "1 2 3", "no points")

    image: str = "image"
    orientation: Literal["upright", "stored"] | None = later(None)
    format: Literal["xy", "xyv"] = "xy"
    missing_value_strategy: Literal["fill_with_const", "drop_row"] = "fill_with_const"
    fill_value: str | None = ""

    @property
    def _cell_numbers(self) -> int:
        return len(self.format)

    def _to_regions(self, cells: np.ndarray) -> np.ndarray:
        """Return x and y, NaN for points of visibility 0."""
        if self.format == "xyv":
            cells[cells[..., 2] == 0] = np.nan
        return cells[..., :2].copy()
