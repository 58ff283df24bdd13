"""A few images and sounds of a split, small enough for a page; reading all of them would take hours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from daskprep.dataset import Split
from daskprep.display.words import format_count, format_number, truncate
from daskprep.media.decoding import Failure
from daskprep.media.pixels import encode_png
from daskprep.report.axes import bin_classes
from daskprep.report.charts import Chart, Pictures, TableChart

if TYPE_CHECKING:
    from daskprep.report.measures import Column

_MAX_IMAGES, _MAX_SOUNDS = 8, 4
_MAX_SIDE = 128  # pixels
_MAX_REASON_CHARACTERS = 200
_WAVE_SHAPE = (101, 480)  # levels and pieces
_WAVE_COLOUR = np.array([63, 116, 181, 255], np.uint8)  # seen on white and on black
_MAX_HEATMAP_SHAPE = (80, 240)  # features and frames
_SHADES = 16
_CHANNELS = {1: ("grey",), 2: ("grey", "alpha"), 3: ("red", "green", "blue"), 4: ("red", "green", "blue", "alpha")}
# From dark to light, alike for all eyes: after viridis.
_HEATMAP_COLOURS = np.array([(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)], np.float64)


def sample_images(column: Column, splits: Mapping[str, Split]) -> list[Chart]:
    """Decode some images of a split; return them, and how bright they are or what classes their pixels are of."""
    [split] = splits.values()
    ids, images, failures = _decode_rows(split, column, _MAX_IMAGES)
    is_mask = images.ndim == 3
    pictures = [
        (column.feature.decode(_shrink(image, is_mask=is_mask)[None], column.learned)[0].as_py(), f"row {row:,}")
        for row, image in zip(ids, images, strict=True)
    ]
    shown = Pictures(title="Samples", note=_make_note(split, "image", pictures, failures), pictures=pictures)
    if not pictures:
        return [shown]
    if is_mask:
        shades = np.bincount(images.ravel())
        return [shown, _shade_chart(split, "Classes of the pixels of the samples", "class ", shades, 1, "pixel")]
    shades = np.bincount(images.ravel() // (256 // _SHADES), minlength=_SHADES)
    means = images.mean(axis=(0, 2, 3)).tolist()
    channels = zip(_CHANNELS[len(means)], means, strict=True)
    rows = [["channel", "mean"], *([name, format_number(mean)] for name, mean in channels)]
    return [
        shown,
        _shade_chart(split, "Brightness of the samples", "", shades, _SHADES, "value"),
        TableChart(title="Mean colour of the samples", note="From 0 to 255.", rows=rows),
    ]


def _shade_chart(split: Split, title: str, prefix: str, shades: np.ndarray, step: int, unit: str) -> Chart:
    names = [f"{prefix}{index * step}" for index in range(len(shades))]
    return bin_classes(title, {split.name: shades}, names, -(-len(names) // 4), unit)


def sample_sounds(column: Column, splits: Mapping[str, Split]) -> list[Chart]:
    """Decode some sounds of a split; return pictures of their waves or spectra."""
    [split] = splits.values()
    ids, sounds, failures = _decode_rows(split, column, _MAX_SOUNDS)
    note = _make_note(split, "recording", ids, failures)
    shown = [(f"row {row:,}", _strip_padding(sound)) for row, sound in zip(ids, sounds, strict=True)]
    if column.output.shape[-1] == 1:
        pictures = [
            (_draw_wave(sound[:, 0]), f"{row}, largest {format_number(float(np.abs(sound).max()))}")
            for row, sound in shown
        ]
    else:
        pictures = [(_draw_heatmap(sound), row) for row, sound in shown]
        note += " Time goes from left to right, the first feature is at the bottom."
    return [Pictures(title="Samples", note=note, pictures=pictures, of_sounds=True)]


def _make_note(split: Split, noun: str, shown: Sequence[object], failures: list[str]) -> str:
    return " ".join([f"{format_count(len(shown), noun)} of {split.name}, evenly spaced.", *failures])


def _decode_rows(split: Split, column: Column, max_rows: int) -> tuple[list[int], np.ndarray, list[str]]:
    """Return some rows of a split that can be decoded: their numbers in the source, arrays, and why others cannot."""
    positions = np.unique(np.linspace(0, len(split) - 1, max_rows).astype(int)).tolist()
    out = column.output.empty(len(positions))
    failures: dict[int, Failure] = {}
    for index, position in enumerate(positions):
        if not column.output.stores_cells:
            out[index] = split.read(column.output.name, position, position + 1)[column.output.name][0]
            continue
        block, row = divmod(position, split.layout.block_rows)
        media = split.media(column.output.name)
        cells = media.cells(split.block(column.output.name, block)).slice(row, 1)
        for failure in media.decoder.decode(cells, out[index : index + 1]):
            failures[index] = failure
    ids = [int(split.read("row_id", position, position + 1)["row_id"][0]) for position in positions]
    messages = [
        f"Row {ids[one]:,} cannot be decoded: {truncate(f'{row_failure.cell}: {row_failure.reason}', _MAX_REASON_CHARACTERS)}."
        for one, row_failure in failures.items()
    ]
    kept = [one for one in range(len(positions)) if one not in failures]
    return [ids[one] for one in kept], out[kept], messages


def _shrink(image: np.ndarray, *, is_mask: bool) -> np.ndarray:
    """Return an image of at most so many pixels a side: means of squares, and of masks one pixel of each."""
    factor = -(-max(image.shape[-2:]) // _MAX_SIDE)
    if factor <= 1:
        return image
    if is_mask:
        return image[::factor, ::factor]
    height, width = (max(1, side // factor) for side in image.shape[-2:])
    # Of an image that is narrower than a square, the one row or column is all there is.
    tall, wide = min(factor, image.shape[-2]), min(factor, image.shape[-1])
    cropped = image[:, : height * tall, : width * wide]
    squares = cropped.reshape(len(image), height, tall, width, wide)
    small: np.ndarray = np.rint(squares.mean(axis=(2, 4))).astype(np.uint8)
    return small


def _strip_padding(sound: np.ndarray) -> np.ndarray:
    """Return a sound without its end of equal frames, which is padding or silence."""
    changes = np.flatnonzero((sound != sound[-1]).any(axis=1))
    return sound[: changes[-1] + 1] if len(changes) else sound


def _draw_wave(wave: np.ndarray) -> bytes:
    """Return a PNG file in which each column spans the samples of a piece; silence is a thin line."""
    height, width = _WAVE_SHAPE
    starts = np.linspace(0, len(wave), min(width, len(wave)), endpoint=False).astype(int)
    largest = float(np.abs(wave).max()) or 1.0
    low, high = (
        np.rint(extreme.reduceat(wave, starts) / largest * (height // 2)) for extreme in (np.minimum, np.maximum)
    )
    level = height // 2 - np.arange(height)[:, None]
    return encode_png(((low <= level) & (level <= high))[..., None] * _WAVE_COLOUR)


def _draw_heatmap(frames: np.ndarray) -> bytes:
    """Return a PNG file of (frames, features), coloured from the lowest to the highest percent."""
    image = frames.T[::-1]
    for axis, max_size in enumerate(_MAX_HEATMAP_SHAPE):
        image = np.take(
            image, np.linspace(0, image.shape[axis] - 1, min(max_size, image.shape[axis])).astype(int), axis
        )
    low, high = np.percentile(frames, [1, 99])
    level = np.clip((image - low) / max(high - low, np.finfo(np.float32).tiny), 0, 1) * (len(_HEATMAP_COLOURS) - 1)
    steps = np.arange(len(_HEATMAP_COLOURS))
    coloured = np.stack([np.interp(level, steps, _HEATMAP_COLOURS[:, channel]) for channel in range(3)], axis=-1)
    return encode_png(np.rint(coloured).astype(np.uint8))
