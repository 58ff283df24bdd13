"""A few images and sounds of a split, small enough for a page; reading all of them would take hours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from daskprep.display.words import count, cut, number
from daskprep.media.pixels import encode_png
from daskprep.report.axes import by_class
from daskprep.report.charts import Chart, ChartData, Heats, Pictures, Waves

if TYPE_CHECKING:
    from daskprep.dataset import Split
    from daskprep.media.decoding import Failure
    from daskprep.report.measures import Column

_IMAGES, _SOUNDS = 8, 4
_SIDE = 128  # pixels
_REASON_CHARACTERS = 200
_WAVE_PIECES = 240
_HEAT = (80, 240)  # features and frames
_SHADES = 16
_CHANNELS = {1: ("grey",), 2: ("grey", "alpha"), 3: ("red", "green", "blue"), 4: ("red", "green", "blue", "alpha")}
# From dark to light, alike for all eyes: after viridis.
_HEAT_COLOURS = np.array([(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)], np.float64)


@dataclass(frozen=True)
class SampledImages:
    """Some images of a split.

    Attributes
    ----------
    means : tuple of float
        Of each channel, over the pixels of the images.
    shades : array
        How many numbers of all channels are in each sixteenth of the range from 0 to 255; of masks, how many pixels
        are of each class.
    """

    split: str
    shape: tuple[int, ...]
    pictures: list[tuple[bytes, str]]
    means: tuple[float, ...]
    shades: np.ndarray
    failures: list[str] = field(default_factory=list)

    def charts(self) -> list[Chart]:
        note = " ".join([f"{_from(len(self.pictures), self.split, 'image')}.", *self.failures])
        charts: list[Chart] = [Pictures(title="Samples", note=note, pictures=self.pictures)]
        if not self.pictures:
            return charts
        if len(self.shape) == 2:
            return [*charts, self._shades("Classes of the pixels of the samples", "class ", 1, "pixel")]
        names = _CHANNELS.get(self.shape[0], tuple(map(str, range(self.shape[0]))))
        rows = [["channel", "mean"], *([name, number(mean)] for name, mean in zip(names, self.means, strict=True))]
        return [
            *charts,
            self._shades("Brightness of the samples", "", _SHADES, "value"),
            ChartData(title="Mean colour of the samples", note="From 0 to 255.", rows=rows),
        ]

    def _shades(self, title: str, prefix: str, step: int, of: str) -> Chart:
        names = [f"{prefix}{place * step}" for place in range(len(self.shades))]
        return by_class(title, {self.split: self.shades}, names, -(-len(names) // 4), of)


@dataclass(frozen=True)
class SampledSounds:
    """Some sounds of a split: waves as pieces, or spectra as pictures."""

    split: str
    waves: list[tuple[np.ndarray, np.ndarray, str]]
    heats: list[tuple[bytes, str]]
    failures: list[str]

    def charts(self) -> list[Chart]:
        note = " ".join([f"{_from(len(self.waves or self.heats), self.split, 'sound')}.", *self.failures])
        if self.waves:
            return [Waves(title="Samples", note=note, waves=self.waves)]
        below = f"{note} Time goes from left to right, the first feature is at the bottom."
        return [Heats(title="Samples", note=below, pictures=self.heats)]


def sample_images(split: Split, column: Column) -> SampledImages:
    """Decode some images of a split."""
    ids, images, failures = _rows(split, column, _IMAGES)
    is_mask = images.ndim == 3
    small = [_shrunk(image, is_mask=is_mask) for image in images]
    pictures = [
        (column.feature.decode(image[None], column.learned)[0].as_py(), f"row {row:,}")
        for row, image in zip(ids, small, strict=True)
    ]
    shades = np.bincount(images.ravel() if is_mask else images.ravel() // (256 // _SHADES), minlength=_SHADES)
    return SampledImages(
        split.name,
        column.output.shape,
        pictures,
        () if is_mask or not len(images) else tuple(images.mean(axis=(0, 2, 3)).tolist()),
        np.trim_zeros(shades, "b") if is_mask else shades,
        failures,
    )


def sample_sounds(split: Split, column: Column) -> SampledSounds:
    """Decode some sounds of a split."""
    ids, sounds, failures = _rows(split, column, _SOUNDS)
    captions = [f"row {row:,}" for row in ids]
    waves, heats = [], []
    for sound, caption in zip(sounds, captions, strict=True):
        if column.output.shape[-1] == 1:
            waves.append((*_pieces(sound[:, 0]), caption))
        else:
            heats.append((_heat(sound), caption))
    return SampledSounds(split.name, waves, heats, failures)


def _from(amount: int, split: str, noun: str) -> str:
    return f"{count(amount, noun)} of {split}, evenly spaced"


def _rows(split: Split, column: Column, wanted: int) -> tuple[list[int], np.ndarray, list[str]]:
    """Return some rows of a split that can be decoded: their numbers in the source, arrays, and why others cannot."""
    places = np.unique(np.linspace(0, len(split) - 1, wanted).astype(int)).tolist()
    out = column.output.empty(len(places))
    failed: dict[int, Failure] = {}
    for number_, place in enumerate(places):
        if not column.output.is_cells:
            out[number_] = split.read(column.output.name, place, place + 1)[column.output.name][0]
            continue
        block, row = divmod(place, split.layout.block_rows)
        media = split.media(column.output.name)
        cells = media.cells(split.block(column.output.name, block)).slice(row, 1)
        for failure in media.decoder.decode(cells, out[number_ : number_ + 1]):
            failed[number_] = failure
    ids = [int(split.read("row_id", place, place + 1)["row_id"][0]) for place in places]
    said = [
        f"Row {ids[one]:,} cannot be decoded: {cut(f'{why.cell}: {why.reason}', _REASON_CHARACTERS)}."
        for one, why in failed.items()
    ]
    kept = [one for one in range(len(places)) if one not in failed]
    return [ids[one] for one in kept], out[kept], said


def _shrunk(image: np.ndarray, *, is_mask: bool) -> np.ndarray:
    """Return an image of at most so many pixels a side: means of squares, and of masks one pixel of each."""
    factor = -(-max(image.shape[-2:]) // _SIDE)
    if factor <= 1:
        return image
    if is_mask:
        return image[::factor, ::factor]
    height, width = (max(1, side // factor) for side in image.shape[-2:])
    # Of an image that is narrower than a square, the one row or column is all there is.
    tall, wide = min(factor, image.shape[-2]), min(factor, image.shape[-1])
    whole = image[:, : height * tall, : width * wide]
    squares = whole.reshape(len(image), height, tall, width, wide)
    small: np.ndarray = np.rint(squares.mean(axis=(2, 4))).astype(np.uint8)
    return small


def _pieces(wave: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    starts = np.linspace(0, len(wave), min(_WAVE_PIECES, len(wave)), endpoint=False).astype(int)
    return np.minimum.reduceat(wave, starts), np.maximum.reduceat(wave, starts)


def _heat(frames: np.ndarray) -> bytes:
    """Return a PNG file of (frames, features), coloured from the lowest to the highest percent."""
    image = frames.T[::-1]
    for axis, most in enumerate(_HEAT):
        image = np.take(image, np.linspace(0, image.shape[axis] - 1, min(most, image.shape[axis])).astype(int), axis)
    low, high = np.percentile(frames, [1, 99])
    level = np.clip((image - low) / max(high - low, np.finfo(np.float32).tiny), 0, 1) * (len(_HEAT_COLOURS) - 1)
    steps = np.arange(len(_HEAT_COLOURS))
    coloured = np.stack([np.interp(level, steps, _HEAT_COLOURS[:, channel]) for channel in range(3)], axis=-1)
    return encode_png(np.rint(coloured).astype(np.uint8))
