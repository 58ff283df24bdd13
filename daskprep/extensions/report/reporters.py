"""Charts, measures and samples for each semantic type of a column, gathered in one pass over a dataset."""

from __future__ import annotations

import calendar
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from daskprep.columns.deferred.decoders import Failure
from daskprep.columns.display import format_count, format_number, format_share, truncate
from daskprep.columns.summaries import Quantiles
from daskprep.dataset import Dataset, Split
from daskprep.extensions.media.audio import encode_wav
from daskprep.extensions.media.audio_feature import Audio, LearnedAudio
from daskprep.extensions.media.pixels import encode_png
from daskprep.extensions.report import findings
from daskprep.extensions.report.charts import (
    Band,
    Bars,
    Chart,
    Pictures,
    TableChart,
    bin_classes,
    bin_dates,
    bin_lengths,
    bin_numbers,
    make_formatter,
)
from daskprep.extensions.report.findings import (
    ClassTally,
    Column,
    DateTally,
    H3Tally,
    PositionSums,
    RowSample,
    TokenTally,
)
from daskprep.features.base import SemanticType
from daskprep.features.binary import Binary, LearnedBinary
from daskprep.rows.base import MISSING
from daskprep.storage.arrays import ROW_ID

_MAX_IMAGES, _MAX_CLIPS = 8, 4
_MAX_CLIP_SECONDS, _MAX_CLIP_RATE = 3, 16_000  # of embedded audio: 96 KB, or 128 KB as base64
_FREQUENCY_NAMES = {"fbank": "mel bands", "mel": "mel bands", "mfcc": "coefficients", "stft_phase": "features"}
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
    """Return charts of images, and their brightness or classes."""
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
    """Return a chart of clips: waves with audio, or heat maps."""
    [split] = splits.values()
    ids, clips, failures = _decode_rows(split, column, _MAX_CLIPS)
    note = _make_note(split, "recording", ids, failures)
    shown = [(f"row {row:,}", _strip_padding(clip)) for row, clip in zip(ids, clips, strict=True)]
    feature, learned = column.feature, column.learned
    seconds: list[float] = []
    audio: list[bytes] = []
    vertical = None
    is_raw = column.output.shape[-1] == 1
    if isinstance(feature, Audio) and isinstance(learned, LearnedAudio):  # custom types have no axes
        seconds = [len(clip) / column.output.shape[0] * feature.length_limit(learned) for _, clip in shown]
        if is_raw:
            audio = [_encode_clip(clip[:, 0], learned.sampling_rate) for _, clip in shown]
            note += f" The audio is cut after {_MAX_CLIP_SECONDS} seconds, in low quality."
        else:
            vertical = _label_frequencies(feature, learned.sampling_rate, column.output.shape[-1])
    elif not is_raw:
        note += " The horizontal axis is time, and the first feature is at the bottom."
    if is_raw:
        pictures = [
            (_draw_wave(clip[:, 0]), f"{row}, largest {format_number(float(np.abs(clip).max()))}")
            for row, clip in shown
        ]
    else:
        pictures = [(_draw_heatmap(clip), row) for row, clip in shown]
    samples = Pictures(title="Samples", note=note, pictures=pictures, is_audio=True)
    return [replace(samples, seconds=seconds, vertical=vertical, audio=audio)]


def _label_frequencies(feature: Audio, rate: int, bands: int) -> tuple[str, str, str]:
    """Return labels of the axis of spectra, from the top."""
    if (name := _FREQUENCY_NAMES.get(feature.type)) is not None:
        return f"{bands:,}", name, "1"
    points = feature.num_fft_points or round(feature.window_length_in_s * rate)
    return f"{format_number((bands - 1) * rate / points)}", "Hz", "0"


def _encode_clip(wave: np.ndarray, rate: int) -> bytes:
    """Return the first seconds of a wave as a small WAV file."""
    factor = -(-rate // _MAX_CLIP_RATE)
    samples = wave[: _MAX_CLIP_SECONDS * rate]
    samples = np.add.reduceat(samples, np.arange(0, len(samples), factor)) / factor
    loudest = max(1.0, float(np.abs(samples).max()))
    return encode_wav(np.rint(samples / loudest * 32767).astype(np.int16), rate // factor)


def _make_note(split: Split, noun: str, shown: Sequence[object], failures: list[str]) -> str:
    return " ".join([f"{format_count(len(shown), noun)} of {split.name}, evenly spaced.", *failures])


def _decode_rows(split: Split, column: Column, max_rows: int) -> tuple[list[int], np.ndarray, list[str]]:
    """Return ids and arrays of evenly spaced rows that can be decoded, and messages on failures."""
    positions = np.unique(np.linspace(0, len(split) - 1, max_rows).astype(int)).tolist()
    out = column.output.empty(len(positions))
    failures: dict[int, Failure] = {}
    for index, position in enumerate(positions):
        if not column.output.stores_cells:
            out[index] = split.read(column.output.name, position, position + 1)[column.output.name][0]
            continue
        starts = split.layout.starts(split.name)
        block = int(np.searchsorted(starts, position, side="right")) - 1
        owner, number = split.locate_block(block)
        media = owner.media(column.output.name)
        cells = media.cells(owner.block(column.output.name, number)).slice(position - int(starts[block]), 1)
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
    """Return an image of about 128 pixels a side, by squares."""
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
    return np.rint(squares.mean(axis=(2, 4))).astype(np.uint8)


def _strip_padding(clip: np.ndarray) -> np.ndarray:
    """Return a clip without the equal frames at its end."""
    changes = np.flatnonzero((clip != clip[-1]).any(axis=1))
    return clip[: changes[-1] + 1] if len(changes) else clip


def _draw_wave(wave: np.ndarray) -> bytes:
    """Return a PNG file with the range of runs of samples."""
    height, width = _WAVE_SHAPE
    starts = np.linspace(0, len(wave), min(width, len(wave)), endpoint=False).astype(int)
    largest = float(np.abs(wave).max()) or 1.0
    low, high = (
        np.rint(extreme.reduceat(wave, starts) / largest * (height // 2)) for extreme in (np.minimum, np.maximum)
    )
    level = height // 2 - np.arange(height)[:, None]
    return encode_png(((low <= level) & (level <= high))[..., None] * _WAVE_COLOUR)


def _draw_heatmap(frames: np.ndarray) -> bytes:
    """Return frames as a PNG file, of colors by quantiles."""
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


_MAX_BARS = 12
_MAX_POSITIONS = 512
_QUARTILES = ((0.0, "smallest"), (0.25, "first quarter"), (0.5, "median"), (0.75, "third quarter"), (1.0, "largest"))
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MAX_LABEL_CHARACTERS = 40
_LEADING_NUMBER = re.compile(r"-?\d[\d,]*(\.\d+)?")
_NATURAL_ORDERS = [
    *([one.lower() for one in names] for names in (calendar.day_name, calendar.day_abbr)),
    *([one.lower() for one in names] for names in (calendar.month_name, calendar.month_abbr)),
    *(text.split(",") for text in ("very low,low,medium,high,very high", "xxs,xs,s,m,l,xl,xxl")),
]

BySplit = Mapping[str, Any]
SUMMARY = "Summary"
"""The title of the table with a column for each split."""


class ColumnReporter(NamedTuple):
    """Functions that report on columns of a semantic type."""

    # Returns the charts of a column from the results of `measure` by split. Without a measure, its second argument is
    # the first split by name, from which it reads samples.
    charts: Callable[[Column, BySplit], list[Chart]]
    measure: Callable[[Column, np.ndarray], Any] | None = None  # returns a mergeable summary of rows of a column


def _show_numbers(column: Column, by_split: Mapping[str, Quantiles]) -> list[Chart]:
    """Return a histogram, and a table of mean, std, quartiles and zeros."""
    format_number, _ = make_formatter([one.values() for one in by_split.values()])
    rows = [["", *by_split]]
    rows.append(["mean", *(format_number(findings.compute_mean(one)) for one in by_split.values())])
    rows.append(["std", *(format_number(findings.compute_deviation(one)) for one in by_split.values())])
    for fraction, name in _QUARTILES:
        rows.append([name, *(format_number(one.quantile(fraction)) for one in by_split.values())])
    zeros = [(findings.count_zeros(one), one.count) for one in by_split.values()]
    rows.append(["zeros", *(f"{amount:,} ({format_share(amount, total)})" for amount, total in zeros)])
    return [bin_numbers("Values", by_split), TableChart(title=SUMMARY, rows=rows)]


def _show_classes(column: Column, by_split: Mapping[str, ClassTally]) -> list[Chart]:
    """Return bars of frequent classes, by decoded name."""

    def decode_ids(ids: np.ndarray) -> list[str]:
        return _format_names(column.feature.decode(ids.astype(column.output.dtype), column.learned))

    return [_make_bars("Classes", {split: one.counts for split, one in by_split.items()}, decode_ids, "classes")]


def _show_tokens(
    column: Column,
    by_split: Mapping[str, TokenTally],
    title: str = "Distinct tokens of a row",
    *,
    share_of_rows: bool = False,
) -> list[Chart]:
    """Return bars of frequent tokens but specials, and lengths of rows."""
    specials = column.vocabulary.specials
    hidden_ids = [one for one in (specials.padding_id, specials.start_id, specials.stop_id) if one is not None]
    counts = {split: one.counts.copy() for split, one in by_split.items()}
    for one in counts.values():
        one[hidden_ids] = 0
    totals = {split: int(one.lengths.sum()) for split, one in by_split.items()} if share_of_rows else None
    note = f"Shares are of {'the rows' if share_of_rows else 'all tokens'}."
    return [
        _make_bars("Tokens", counts, lambda ids: _format_names(column.vocabulary.decode(ids)), "tokens", totals, note),
        bin_lengths(title, {split: one.lengths for split, one in by_split.items()}),
    ]


def _show_dates(column: Column, by_split: Mapping[str, DateTally]) -> list[Chart]:
    """Return histograms of days, weekdays, hours if they differ."""
    charts = [
        bin_dates("Dates", {split: one.days for split, one in by_split.items()}),
        bin_classes("Days of the week", {split: one.weekdays for split, one in by_split.items()}, _WEEKDAYS),
    ]
    hours = {split: one.hours for split, one in by_split.items()}
    if np.count_nonzero(sum(hours.values())) > 1:
        charts.append(bin_classes("Hours", hours, [f"{hour}:00" for hour in range(24)], label_step=6))
    return list(charts)


def _show_h3_cells(column: Column, by_split: Mapping[str, H3Tally]) -> list[Chart]:
    """Return bars of resolutions and of base cells."""
    resolutions = {split: one.resolutions for split, one in by_split.items()}
    cells = {split: one.base_cells for split, one in by_split.items()}
    return [
        _make_bars("Resolutions", resolutions, lambda ids: [f"resolution {one}" for one in ids], "resolutions"),
        _make_bars("Base cells", cells, lambda ids: [f"base cell {one}" for one in ids], "base cells"),
    ]


def _show_positions(column: Column, by_split: Mapping[str, PositionSums]) -> list[Chart]:
    """Return a table of means and extremes, and means by position."""
    first = next(iter(by_split.values()))
    rows = [["", *by_split]]
    rows.append(["smallest", *(format_number(one.range.min) for one in by_split.values())])
    means = (format_number(float(one.means.mean())) if one.means.size else "" for one in by_split.values())
    rows.append(["mean", *means])
    rows.append(["largest", *(format_number(one.range.max) for one in by_split.values())])
    charts: list[Chart] = [TableChart(title=SUMMARY, rows=rows)]
    if len(first.sums) > 1:
        band = Band(
            title="Mean by position",
            note="The band is one standard deviation of the first split to either side; padding is included.",
            positions=len(first.sums),
            means={split: _pool_means(one.means) for split, one in by_split.items()},
            low=_pool_means(first.means - first.deviations),
            high=_pool_means(first.means + first.deviations),
        )
        charts.insert(0, band)
    return charts


def _show_other(column: Column, by_split: BySplit) -> list[Chart]:
    """Return charts of a custom type: by position, or a histogram."""
    if not isinstance(next(iter(by_split.values())), Quantiles):
        return _show_positions(column, by_split)
    spreads = {split: one for split, one in by_split.items() if len(one.keys)}
    return [bin_numbers("Values", spreads)] if spreads else []


REPORTERS: Mapping[SemanticType, ColumnReporter] = {
    "numbers": ColumnReporter(_show_numbers, findings.measure_numbers),
    "classes": ColumnReporter(_show_classes, findings.count_classes),
    "tokens": ColumnReporter(partial(_show_tokens, title="Tokens of a row"), findings.count_tokens),
    "sets": ColumnReporter(partial(_show_tokens, share_of_rows=True), findings.count_tokens),
    "bags": ColumnReporter(_show_tokens, findings.count_tokens),
    "series": ColumnReporter(_show_positions, findings.measure_positions),
    "dates": ColumnReporter(_show_dates, findings.count_dates),
    "places": ColumnReporter(_show_h3_cells, findings.count_h3_cells),
    "images": ColumnReporter(sample_images),
    "sounds": ColumnReporter(sample_audio),
    "others": ColumnReporter(_show_other, findings.measure_other),
}


def _make_bars(
    title: str,
    counts: Mapping[str, np.ndarray],
    name_ids: Callable[[np.ndarray], list[str]],
    noun: str,
    totals: Mapping[str, int] | None = None,
    note: str = "",
) -> Bars:
    """Return bars of the most frequent ids of the first split, and of the rest, as shares of `totals`."""
    # Splits may differ in the number of ids, because altered rows may contain ids beyond the vocabulary.
    max_length = max(map(len, counts.values()))
    counts = {split: np.pad(one, (0, max_length - len(one))) for split, one in counts.items()}
    total_counts = sum(counts.values(), np.int64(0))
    order = np.lexsort((-total_counts, -next(iter(counts.values()))))
    ids = order[: min(_MAX_BARS, int(np.count_nonzero(total_counts)))]
    if len(ids) == np.count_nonzero(total_counts):
        ids = ids[_sort_naturally(name_ids(ids))]
    labels = [truncate(name, _MAX_LABEL_CHARACTERS) for name in name_ids(ids)]
    shown = {split: one[ids].tolist() for split, one in counts.items()}
    others = int(np.count_nonzero(total_counts)) - len(ids)
    if others and totals is None:
        labels.append(f"{others:,} other {noun}")
        shown = {
            split: [*bar_counts, int(counts[split].sum()) - sum(bar_counts)] for split, bar_counts in shown.items()
        }
    elif others:
        note = f"{note} {others:,} other {noun} are not shown."
    sums = {split: int(one.sum()) for split, one in counts.items()} if totals is None else totals
    return Bars(title=title, note=note, labels=labels, counts=shown, totals=sums)


def _sort_naturally(names: Sequence[str]) -> list[int]:
    """Return the order of names by number, day, month or size."""
    indices = list(range(len(names)))
    numbers = [_LEADING_NUMBER.match(name) for name in names]
    if all(numbers):
        return sorted(indices, key=lambda index: float(numbers[index][0].replace(",", "")))  # type: ignore[index]
    for order in _NATURAL_ORDERS:
        if all(name.lower() in order for name in names):
            return sorted(indices, key=lambda index: order.index(names[index].lower()))
    return indices


def _format_names(names: pa.Array) -> list[str]:
    # Quotes show empty names and leading or trailing spaces.
    return [name if name and name == name.strip() else repr(name) for name in map(str, names.to_pylist())]


def _pool_means(numbers: np.ndarray) -> np.ndarray:
    """Return numbers by position, averaged over neighbors if many."""
    if len(numbers) <= _MAX_POSITIONS:
        return numbers
    starts = np.linspace(0, len(numbers), _MAX_POSITIONS, endpoint=False).astype(int)
    return np.add.reduceat(numbers, starts) / np.diff(starts, append=len(numbers))


_WINDOW_BYTES = 4_000_000
_MAX_THREADS = 4

T = TypeVar("T")
R = TypeVar("R")
_Task = tuple[Split, Sequence[Column], int, int]  # columns, and start and stop of rows, that are read together


def choose_reporter(column: Column) -> ColumnReporter:
    """Return the charts and the measure for a column."""
    semantic_type = column.feature.semantic_type
    return REPORTERS["series" if semantic_type == "numbers" and not column.output.is_scalar else semantic_type]


def list_columns(dataset: Dataset) -> list[Column]:
    """Return all outputs, missing indicators included."""
    outputs = {output.name: output for output in dataset.layout.outputs}
    columns = []
    for name, feature in dataset.features.items():
        for suffix in feature.outputs:
            learned = dataset.learned[name].of_output(suffix)
            columns.append(Column(name, outputs[name + suffix], feature, learned))
        if feature.missing_indicator:
            learned = LearnedBinary(bool2str=("present", "missing"))
            columns.append(Column(name, outputs[name + MISSING], Binary(), learned))
    return columns


def gather(
    splits: Sequence[Split], columns: Sequence[Column], sample: RowSample | None = None
) -> dict[str, dict[str, Any]]:
    """Return the measures of all rows by output and split, of media the split; add rows to `sample`."""
    measured = [column for column in columns if choose_reporter(column).measure is not None]
    summaries: dict[str, dict[str, Any]] = {column.output.name: {splits[0].name: splits[0]} for column in columns}
    summaries |= {column.output.name: {} for column in measured}

    def measure(task: _Task) -> tuple[dict[str, Any], Any]:
        split, columns, start, stop = task
        rows = split.read([column.output.name for column in columns], start, stop)
        is_sampled = sample is not None and split is splits[0] and columns[0].output.is_scalar
        sample_part = sample.sample_window(rows, start, stop) if sample and is_sampled else None
        return dict(_measure_columns(columns, rows)), sample_part

    tasks = [task for split in splits for task in _make_tasks(split, measured)]
    for (split, *_), (results, sample_part) in zip(tasks, _map_in_order(measure, tasks), strict=True):
        if sample and sample_part:
            sample.add(sample_part)
        for name, result in results.items():
            by_split = summaries[name]
            by_split[split.name] = by_split[split.name] + result if split.name in by_split else result
    return summaries


def _measure_columns(columns: Sequence[Column], rows: Mapping[str, Any], index: Any = ...) -> Iterator[tuple[str, Any]]:
    """Yield name and measure of columns for rows at `index`."""
    for column in columns:
        measure = choose_reporter(column).measure
        assert measure is not None
        yield column.output.name, measure(column, rows[column.output.name][index])


def _make_tasks(split: Split, columns: Sequence[Column]) -> Iterator[_Task]:
    """Yield the tasks of a split: scalars together, of one table."""
    groups = [[column for column in columns if column.output.is_scalar]]
    groups += [[column] for column in columns if not column.output.is_scalar]
    for group in filter(None, groups):
        for start, stop in split_windows(split, sum(column.output.row_bytes for column in group)):
            yield split, group, start, stop


def split_windows(split: Split, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield start and stop of windows of blocks."""
    block_rows = split.layout.block_rows
    step = max(1, _WINDOW_BYTES // max(1, row_bytes * block_rows)) * block_rows
    for start in range(0, len(split), step):
        yield start, min(start + step, len(split))


def _map_in_order(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield results in order, with few of them in memory."""
    threads = min(_MAX_THREADS, os.cpu_count() or 1)
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="daskprep-report") as pool:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def count_source_rows(split: Split, columns: Sequence[Column]) -> tuple[int, dict[str, Any]]:
    """Return the number of distinct source rows of a split, and their measures by output."""
    seen = np.zeros(0, np.uint8)
    distinct = 0
    before: dict[str, Any] = {}
    names = [column.output.name for column in columns]
    for start, stop in split_windows(split, sum(column.output.row_bytes for column in columns) + ROW_ID.row_bytes):
        rows = split.read([ROW_ID.name, *names], start, stop)
        ids, first = np.unique(rows[ROW_ID.name], return_index=True)
        if ids[-1] >> 3 >= len(seen):
            seen = np.concatenate([seen, np.zeros(int(ids[-1] >> 3) + 1, np.uint8)])
        byte_indices, bits = ids >> 3, np.left_shift(1, ids & 7).astype(np.uint8)
        new = seen[byte_indices] & bits == 0
        np.bitwise_or.at(seen, byte_indices[new], bits[new])
        distinct += int(np.count_nonzero(new))
        for name, result in _measure_columns(columns, rows, first[new]):
            before[name] = before[name] + result if name in before else result
    return distinct, before
