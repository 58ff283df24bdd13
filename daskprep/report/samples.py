"""Samples of images and audio of a split, small enough for a page; reading all media could take hours."""

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

_MAX_IMAGES, _MAX_CLIPS = 8, 4
_MAX_SIDE = 128  # pixels
_MAX_REASON_CHARACTERS = 200
_WAVE_SHAPE = (101, 480)  # levels and columns
_WAVE_COLOUR = np.array([63, 116, 181, 255], np.uint8)  # visible on white and on black
_MAX_HEATMAP_SHAPE = (80, 240)  # features and frames
_SHADES = 16
_CHANNELS = {1: ("grey",), 2: ("grey", "alpha"), 3: ("red", "green", "blue"), 4: ("red", "green", "blue", "alpha")}
# The colormap viridis, which is also readable with color blindness.
_HEATMAP_COLOURS = np.array([(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)], np.float64)


def sample_images(column: Column, splits: Mapping[str, Split]) -> list[Chart]:
    """Return charts of a few decoded images of a split, and of their brightness or the classes of mask pixels."""
    [split] = splits.values()
    ids, images, failures = _decode_rows(split, column, _MAX_IMAGES)
    is_mask = images.ndim == 3
    pictures = [
        (column.feature.decode(_shrink(image, is_mask=is_mask)[None], column.learned)[0].as_py(), f"row {row:,}")
        for row, image in zip(ids, images, strict=True)
    ]
    samples = Pictures(title="Samples", note=_make_note(split, "image", pictures, failures), pictures=pictures)
    if not pictures:
        return [samples]
    if is_mask:
        shades = np.bincount(images.ravel())
        return [samples, _shade_chart(split, "Classes of the pixels of the samples", "class ", shades, 1, "pixel")]
    shades = np.bincount(images.ravel() // (256 // _SHADES), minlength=_SHADES)
    means = images.mean(axis=(0, 2, 3)).tolist()
    channels = zip(_CHANNELS[len(means)], means, strict=True)
    rows = [["channel", "mean"], *([name, format_number(mean)] for name, mean in channels)]
    return [
        samples,
        _shade_chart(split, "Brightness of the samples", "", shades, _SHADES, "value"),
        TableChart(title="Mean color of the samples", note="From 0 to 255.", rows=rows),
    ]


def _shade_chart(split: Split, title: str, prefix: str, shades: np.ndarray, step: int, unit: str) -> Chart:
    names = [f"{prefix}{index * step}" for index in range(len(shades))]
    return bin_classes(title, {split.name: shades}, names, -(-len(names) // 4), unit)


def sample_audio(column: Column, splits: Mapping[str, Split]) -> list[Chart]:
    """Return a chart of the waves or spectra of a few decoded clips of a split."""
    [split] = splits.values()
    ids, clips, failures = _decode_rows(split, column, _MAX_CLIPS)
    note = _make_note(split, "recording", ids, failures)
    shown = [(f"row {row:,}", _strip_padding(clip)) for row, clip in zip(ids, clips, strict=True)]
    if column.output.shape[-1] == 1:
        pictures = [
            (_draw_wave(clip[:, 0]), f"{row}, largest {format_number(float(np.abs(clip).max()))}")
            for row, clip in shown
        ]
    else:
        pictures = [(_draw_heatmap(clip), row) for row, clip in shown]
        note += " Time goes from left to right, the first feature is at the bottom."
    return [Pictures(title="Samples", note=note, pictures=pictures, is_audio=True)]


def _make_note(split: Split, noun: str, shown: Sequence[object], failures: list[str]) -> str:
    return " ".join([f"{format_count(len(shown), noun)} of {split.name}, evenly spaced.", *failures])


def _decode_rows(split: Split, column: Column, max_rows: int) -> tuple[list[int], np.ndarray, list[str]]:
    """Decode up to `max_rows` evenly spaced rows of a split.

    Return the row numbers in the source and the arrays of the decoded rows, and messages on rows that failed.
    """
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
        f"Row {ids[index]:,} cannot be decoded: "
        f"{truncate(f'{failure.cell}: {failure.reason}', _MAX_REASON_CHARACTERS)}."
        for index, failure in failures.items()
    ]
    kept = [index for index in range(len(positions)) if index not in failures]
    return [ids[index] for index in kept], out[kept], messages


def _shrink(image: np.ndarray, *, is_mask: bool) -> np.ndarray:
    """Return an image of at most about `_MAX_SIDE` pixels a side, by means of squares; masks keep one pixel of each."""
    factor = -(-max(image.shape[-2:]) // _MAX_SIDE)
    if factor <= 1:
        return image
    if is_mask:
        return image[::factor, ::factor]
    height, width = (max(1, side // factor) for side in image.shape[-2:])
    # An image that is narrower than a square keeps one row or column.
    tall, wide = min(factor, image.shape[-2]), min(factor, image.shape[-1])
    cropped = image[:, : height * tall, : width * wide]
    squares = cropped.reshape(len(image), height, tall, width, wide)
    small: np.ndarray = np.rint(squares.mean(axis=(2, 4))).astype(np.uint8)
    return small


def _strip_padding(clip: np.ndarray) -> np.ndarray:
    """Return a clip (frames, features) without the equal frames at its end, which are padding or silence."""
    changes = np.flatnonzero((clip != clip[-1]).any(axis=1))
    return clip[: changes[-1] + 1] if len(changes) else clip


def _draw_wave(wave: np.ndarray) -> bytes:
    """Return a PNG file in which each column spans minimum and maximum of a run of samples; silence is a thin line."""
    height, width = _WAVE_SHAPE
    starts = np.linspace(0, len(wave), min(width, len(wave)), endpoint=False).astype(int)
    largest = float(np.abs(wave).max()) or 1.0
    low, high = (
        np.rint(extreme.reduceat(wave, starts) / largest * (height // 2)) for extreme in (np.minimum, np.maximum)
    )
    level = height // 2 - np.arange(height)[:, None]
    return encode_png(((low <= level) & (level <= high))[..., None] * _WAVE_COLOUR)


def _draw_heatmap(frames: np.ndarray) -> bytes:
    """Return frames (frames, features) as a PNG file; the colors range from the 1 % to the 99 % quantile."""
    image = frames.T[::-1]
    for axis, max_size in enumerate(_MAX_HEATMAP_SHAPE):
        image = np.take(
            image, np.linspace(0, image.shape[axis] - 1, min(max_size, image.shape[axis])).astype(int), axis
        )
    low, high = np.percentile(frames, [1, 99])
    level = np.clip((image - low) / max(high - low, np.finfo(np.float32).tiny), 0, 1) * (len(_HEATMAP_COLOURS) - 1)
    steps = np.arange(len(_HEATMAP_COLOURS))
    colored = np.stack([np.interp(level, steps, _HEATMAP_COLOURS[:, channel]) for channel in range(3)], axis=-1)
    return encode_png(np.rint(colored).astype(np.uint8))
