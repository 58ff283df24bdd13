"""Feature type for time series: a list of numbers in every cell, or windows over a column of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.display import format_count
from daskprep.columns.kernels import float_values, list_offsets, pad, valid_mask
from daskprep.columns.summaries import Lengths
from daskprep.errors import ConfigError
from daskprep.features.base import Learned, Loss, fills_with_one_value
from daskprep.features.cells import as_numbers
from daskprep.features.feature import Feature, with_parameters
from daskprep.features.missing import NeighbourImputer, neighbour_strategy
from daskprep.features.padding import Padding
from daskprep.features.vector import any_in_row, matrix_to_lists, parse_number_lists
from daskprep.rows.normalization import MAX_FLOAT32
from daskprep.rows.series import SEPARATORS, TimeseriesParameters, TimeseriesValues
from daskprep.sources.cells import as_text

# Windows: rows are sorted by group. NaN represents a missing number, and `HIDDEN` a number of another split: it fills
# no missing number, and becomes NaN in a window.
HIDDEN = float("inf")
_MIN_AUTO = 256  # limit with timeseries_length_limit="auto"
_MAX_WINDOW = 1 << 24  # a larger window is a mistake, or an attack on memory


@dataclass(frozen=True)
class WindowBorder:
    """Information about one partition that the windows of other partitions need, by group."""

    groups: pa.Array
    sizes: np.ndarray  # number of rows of each group
    # Numbers that windows of other partitions reach, outermost last; NaN: fewer rows. Shape (groups, reach).
    nearest: np.ndarray
    ends: np.ndarray  # first and last present number of each group; shape (groups, 2)


@dataclass(frozen=True)
class GroupedRows:
    """The numbers of a partition, sorted by group."""

    numbers: np.ndarray
    order: np.ndarray | slice  # row numbers of the numbers before sorting
    sizes: np.ndarray  # number of rows of each group
    groups: pa.Array  # names of the groups

    @property
    def starts(self) -> np.ndarray:
        """Position of the first row of each group."""
        starts: np.ndarray = np.cumsum(self.sizes) - self.sizes
        return starts


def rows_by_group(parsed: pa.Array) -> GroupedRows:
    """Sort the numbers of a parsed column by group, stably; without groups, all rows are one group."""
    grouped = pa.types.is_struct(parsed.type)
    column = pc.struct_field(parsed, "number") if grouped else parsed
    numbers = pc.fill_null(column, np.nan).to_numpy(zero_copy_only=False)
    if not grouped:
        present = min(len(numbers), 1)
        return GroupedRows(numbers, slice(None), np.full(present, len(numbers)), pa.nulls(present, pa.string()))
    groups = parsed.field("group").dictionary_encode(null_encoding="encode")
    codes = groups.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    return GroupedRows(numbers[order], order, np.bincount(codes, minlength=len(groups.dictionary)), groups.dictionary)


def fill_in_groups(rows: GroupedRows, strategy: Literal["ffill", "bfill"], fills: np.ndarray | None) -> np.ndarray:
    """Fill missing numbers from the nearest number before or after in their group, or from `fills`, by group."""
    numbers, sizes, starts = np.where(np.isinf(rows.numbers), np.nan, rows.numbers), rows.sizes, rows.starts
    positions = np.arange(len(numbers))
    if strategy == "ffill":
        source = np.maximum.accumulate(np.where(np.isnan(numbers), -1, positions))
        outside = source < np.repeat(starts, sizes)
    else:
        source = np.minimum.accumulate(np.where(np.isnan(numbers), len(numbers), positions)[::-1])[::-1]
        outside = source >= np.repeat(starts + sizes, sizes)
    outer_fills = np.float32(np.nan) if fills is None else np.repeat(fills, sizes)
    return np.where(outside, outer_fills, numbers.take(source, mode="clip"))


def find_border_fills(
    borders: Sequence[WindowBorder], parts: Sequence[np.ndarray], groups: int, strategy: str | None
) -> list[np.ndarray]:
    """Return for each partition the number that fills the outermost missing numbers of each of its groups, or NaN.

    `parts` has the ids of each partition's groups, of `groups` in all. `ffill` uses the last number of earlier
    partitions, or else the first number of all; `bfill` is the mirror image.
    """
    forward = list(range(len(borders)))
    near, far = 0, 1
    if strategy == "bfill":
        forward, near, far = forward[::-1], 1, 0
    latest = np.full(groups, np.nan, np.float32)
    for partition in reversed(forward):
        latest[parts[partition]] = _first_present(borders[partition].ends[:, near], latest[parts[partition]])
    fills: list[np.ndarray] = [latest] * len(borders)
    for partition in forward:
        fills[partition] = latest[parts[partition]]
        latest[parts[partition]] = _first_present(borders[partition].ends[:, far], fills[partition])
    return fills


def _first_present(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(first), second, first)


def push_numbers(known: np.ndarray, nearest: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Append the numbers of a partition, by group, to earlier numbers, and return the last `reach` ones.

    `known` and `nearest` have shape (groups, reach); `sizes` is the number of rows of each group in the partition.
    """
    reach = known.shape[1]
    column = np.arange(reach)
    older = column + np.minimum(sizes, reach)[:, None]
    newer = np.broadcast_to(column + reach, older.shape)
    return np.take_along_axis(np.hstack([known, nearest]), np.where(older < reach, older, newer), axis=1)


def nearest_numbers(rows: GroupedRows, numbers: np.ndarray, reach: int, *, ahead: bool) -> np.ndarray:
    """Return for each group the `reach` numbers at the border that windows reach across, outermost last.

    With `ahead`, windows extend to later rows, and the border is the first row.
    """
    empty = np.full((len(rows.groups), reach), np.nan, np.float32)
    extended, start = _extend_groups(rows, numbers, empty, ahead=ahead)
    first, column = (start, np.arange(reach)[::-1]) if ahead else (start + rows.sizes, np.arange(reach))
    return extended.take(first[:, None] + column)


def cut_windows(rows: GroupedRows, numbers: np.ndarray, outer_numbers: np.ndarray, *, ahead: bool) -> np.ndarray:
    """Return the window of each row, in the row order before sorting; `outer_numbers` are from other partitions."""
    reach = outer_numbers.shape[1]
    width = reach if ahead else reach + 1
    if not len(numbers):
        return np.empty((0, width), np.float32)
    extended, start = _extend_groups(rows, numbers, outer_numbers, ahead=ahead)
    first = np.arange(len(numbers)) + np.repeat(start - rows.starts, rows.sizes) + int(ahead)
    begin = np.empty_like(first)
    begin[rows.order] = first
    windows: np.ndarray = np.lib.stride_tricks.sliding_window_view(extended, width)[begin]
    return windows


def _extend_groups(
    rows: GroupedRows, numbers: np.ndarray, outer_numbers: np.ndarray, *, ahead: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Insert `outer_numbers` before each group, or with `ahead` after it; return the numbers and the group starts."""
    reach = outer_numbers.shape[1]
    start = rows.starts + np.arange(len(rows.groups)) * reach
    extended = np.empty(len(numbers) + outer_numbers.size, np.float32)
    shift = np.repeat(start - rows.starts, rows.sizes) + (0 if ahead else reach)
    extended[np.arange(len(numbers)) + shift] = numbers
    column = np.arange(reach)
    if ahead:
        extended[(start + rows.sizes)[:, None] + column[::-1]] = outer_numbers
    else:
        extended[start[:, None] + column] = outer_numbers
    return extended, start


@dataclass(frozen=True, kw_only=True)
class LearnedTimeseries(TimeseriesValues, Learned):
    """Fitted state of a time series: the length of rows after truncation and padding."""


@with_parameters
class Timeseries(TimeseriesParameters, Feature[Lengths, LearnedTimeseries]):
    """Read series of numbers as rows of a float32 matrix, padded or truncated to one length.

    A value is text such as "0.5 1e-3 nan" or "[1, 2]", a list or array, or a single number. Missing numbers within a
    series become `padding_value`. A value with other text or an infinite number cannot be read. With `window_size` or
    `horizon`, each value is one number, and an encoded row consists of the numbers of the rows around it, across all
    partitions.

    Parameters
    ----------
    tokenizer : {"space", "comma", "underscore"}
        Separator of the numbers in text; "space" also reads lists in brackets.
    timeseries_length_limit : int or "auto"
        Maximum length of a series. "auto": 256, or eight times the mean length of the training rows if that is more.
    padding_value : float or None
        Padding of short series, and the value for "nan" and for rows outside the frame. None: 0, and NaN in windows.
    padding : {"right", "left"}
        Side of the padding.
    truncation : {"keep_start", "keep_end"}
        Whether the first or the last numbers of a series that is too long are kept.
    window_size : int
        Length of a window that ends in its own row; 0 for none.
    horizon : int
        Length of a window that starts in the next row; 0 for none.
    group_by : str or None
        Column of groups: windows take numbers only from rows with the same value. Missing values form a group too.
    across_splits : bool or "auto"
        Whether windows in datasets and streams also take numbers from rows of other splits. If not, these are padding.
        "auto": a `window_size` takes numbers of earlier splits (train, validation, test), a `horizon` of no other.
    missing_value_strategy : str
        Imputation of missing values: "fill_with_const" (with `fill_value`), "fill_with_mode" (not for windows),
        "ffill", "bfill" (both within the groups of windows) or "drop_row".
    fill_value : str or float
        Series, or the number in a window, that "fill_with_const" imputes for missing values. An empty text is padding.
    missing_indicator : bool
        Whether a second output, "_missing", marks missing values.
    invalid : {"missing", "raise"}
        Whether a value that cannot be read counts as missing or raises `RejectedValueError`.
    column : str or None
        Column to read, if its name differs from the feature's.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskprep import Timeseries
    >>> frame = pd.DataFrame({"pulse": ["61 62.5 nan", None, "70"]})
    >>> Timeseries(padding_value=-1).fit_transform(frame)
    array([[61. , 62.5, -1. ],
           [-1. , -1. , -1. ],
           [70. , -1. , -1. ]], dtype=float32)
    >>> Timeseries(window_size=3).fit_transform(pd.DataFrame({"load": [1, 2, 3, 4]}))
    array([[nan, nan,  1.],
           [nan,  1.,  2.],
           [ 1.,  2.,  3.],
           [ 2.,  3.,  4.]], dtype=float32)
    """

    _loss_remedies: ClassVar[Mapping[Loss, str]] = {
        "cut": "raise timeseries_length_limit",
        "padded": "leave out these rows, or pass the rows before them too",
    }
    kind = "timeseries"
    semantic_type = "series"
    _edge_case_cells = ("0.1 2.5 nan", "1_-2e3", "[1, 2.25, 3]", "", "no series")

    def check(self) -> None:
        """Raise ConfigError for padding beyond float32, contradictory windows, or a fill value that is not a series."""
        if self.padding_value is not None and not abs(self.padding_value) <= MAX_FLOAT32:
            raise ConfigError(f"Timeseries: padding_value {self.padding_value!r} is not a finite float32")
        if self.window_size and self.horizon:
            raise ConfigError(
                f"Timeseries: window_size={self.window_size} uses previous rows, horizon={self.horizon} following "
                "rows; set one of them to 0, or use two features"
            )
        if self.group_by is not None and not self.is_windowed:
            raise ConfigError(f'Timeseries: group_by="{self.group_by}" needs a window_size or a horizon')
        if self.is_windowed and self.missing_value_strategy == "fill_with_mode":
            raise ConfigError(
                'Timeseries: windows do not support "fill_with_mode": use "fill_with_const", "ffill" or "bfill"'
            )
        if self.fill_value is not None:
            self.parse_fill(self.fill_value)

    @property
    def _window_groups(self) -> list[str | None]:
        return [self.group_by] if self.is_windowed else []

    def parse(self, column: pa.Array, groups: pa.Array | None = None) -> pa.Array:
        """Return lists of float32; for windows float32 numbers, or structs of `number` and `group` with `groups`."""
        if not self.is_windowed:
            return parse_number_lists(column, SEPARATORS[self.tokenizer])
        numbers = as_numbers(column).cast(pa.float32(), safe=False)
        parsed = pc.if_else(pc.is_finite(numbers), numbers, pa.scalar(None, pa.float32()))
        if groups is None:
            return parsed
        return pa.StructArray.from_arrays([parsed, as_text(groups)], ["number", "group"], mask=parsed.is_null())

    def parse_fill(self, value: object) -> pa.Array:
        """Return one cell with a list of float32; for windows, an empty text becomes NaN, which is padding."""
        if not self.is_windowed:
            return super().parse_fill(value)
        if isinstance(value, str) and not value.strip():
            return pa.array([[np.nan]], pa.list_(pa.float32()))
        return parse_number_lists(super().parse_fill(value))

    def summarize(self, parsed: pa.Array) -> Lengths:
        # Nothing is learned from windows: their size is a parameter.
        return Lengths() if self.is_windowed else Lengths.of(np.diff(list_offsets(parsed.drop_null())))

    def learn(self, summary: Lengths) -> LearnedTimeseries:
        limit = self.timeseries_length_limit
        longest = max(1, min(summary.max, summary.limit(_MIN_AUTO) if limit == "auto" else limit))
        cut_rows = int(summary.counts[summary.lengths > longest].sum())
        return LearnedTimeseries(max_timeseries_length=self.window_size or self.horizon or longest, cut_rows=cut_rows)

    def cells(self, parsed: pa.Array) -> pa.Array:
        return pc.binary_join(parsed.cast(pa.list_(pa.string())), SEPARATORS[self.tokenizer] or " ")

    def encode(self, parsed: pa.Array, learned: LearnedTimeseries) -> np.ndarray:
        """Return float32 rows, padded or truncated to the learned length; NaN becomes `padding_value`."""
        numbers = float_values(parsed.flatten())
        length, fill = learned.max_timeseries_length, self.padding_number
        offsets = list_offsets(parsed)
        if (np.diff(offsets) == length).all():
            out: np.ndarray = numbers.reshape(len(parsed), length).copy()
        else:
            keeps_end = self.truncation == "keep_end"
            out = pad(offsets, numbers, length, side=self.padding, fill=fill, keeps_end=keeps_end)
        np.copyto(out, fill, where=np.isnan(out), casting="same_kind")
        return out

    def _losses(
        self, parsed: pa.Array, encoded: Mapping[str, np.ndarray], learned: LearnedTimeseries
    ) -> Mapping[Loss, np.ndarray]:
        if self.is_windowed:
            return {"padded": any_in_row(parsed, np.isnan)}
        return {"cut": np.diff(list_offsets(parsed)) > learned.max_timeseries_length}

    def _learned_losses(self, learned: LearnedTimeseries) -> Mapping[Loss, int]:
        return {"cut": learned.cut_rows}

    def _paddings(self, learned: LearnedTimeseries, *, expand: bool) -> dict[str, Padding]:
        return {} if self.is_windowed else {"": Padding(np.float32(self.padding_number), self.padding == "left")}

    def decode(self, encoded: np.ndarray, learned: LearnedTimeseries) -> pa.Array:
        return matrix_to_lists(encoded)

    @property
    def _drops_windows(self) -> bool:
        return self.is_windowed and self.missing_value_strategy == "drop_row"

    @property
    def row_filter(self) -> Callable[[pa.Array, LearnedTimeseries], np.ndarray] | None:
        return (lambda windows, learned: any_in_row(windows, np.isnan)) if self._drops_windows else None

    def _explain_drop(self, value: Any) -> str:
        missing = sum(number != number for number in value)  # noqa: PLR0124 as NaN does
        return f"{missing} of {format_count(len(value), 'number')} of the {self._window_name} are missing"

    @property
    def _window_name(self) -> str:
        return "horizon" if self.horizon else "window"

    @property
    def imputer(self) -> NeighbourImputer | None:
        return _WindowImputer(self) if self.is_windowed else super().imputer


class _WindowImputer(NeighbourImputer):
    """Replaces each number by a window over the rows around it, after `ffill` or `bfill` of missing numbers."""

    used_in_fit = False

    def __init__(self, feature: Timeseries) -> None:
        """Derive the direction and reach of windows from a feature; raise ConfigError if they are too long."""
        self._feature = feature
        self.per_split = feature.across_splits is not True
        self.sees_earlier_splits = feature.across_splits == "auto" and not feature.horizon
        self._fill_strategy = neighbour_strategy(feature.missing_value_strategy)
        self._looks_ahead = feature.horizon > 0
        self._reach = feature.horizon or feature.window_size - 1  # distance to the farthest number, in rows
        if self._reach > _MAX_WINDOW:
            raise ConfigError(f"Timeseries: a window has {_MAX_WINDOW:,} numbers at most, not {self._reach:,}")

    def hide(self, parsed: pa.Array, hidden: np.ndarray) -> pa.Array:
        """Return a column with the masked numbers replaced by HIDDEN; rows keep their positions and groups."""
        if not hidden.any():
            return parsed
        grouped = pa.types.is_struct(parsed.type)
        number = pc.struct_field(parsed, "number") if grouped else parsed
        number = pc.if_else(pa.array(hidden), pa.scalar(HIDDEN, pa.float32()), number)
        if not grouped:
            return number
        return pa.StructArray.from_arrays([number, parsed.field("group")], ["number", "group"], mask=number.is_null())

    def find_border(self, parsed: pa.Array, learned: LearnedTimeseries | None = None) -> WindowBorder:
        """Return the numbers of each group that windows and imputation in other partitions may need."""
        rows = rows_by_group(parsed)
        nearest = nearest_numbers(rows, self._fill(rows, learned, None), self._reach, ahead=self._looks_ahead)
        ends = np.full((len(rows.groups), 2), np.nan, np.float32)
        if self._fill_strategy:
            ends[:, 0] = fill_in_groups(rows, "bfill", None)[rows.starts]
            ends[:, 1] = fill_in_groups(rows, "ffill", None)[rows.starts + rows.sizes - 1]
        return WindowBorder(rows.groups, rows.sizes, nearest, ends)

    def compute_border_values(self, borders: Sequence[WindowBorder]) -> list[Any]:
        """Return for each partition the numbers (groups, reach) beyond its border, and a fill (groups,) or NaN."""
        names = pa.concat_arrays([border.groups for border in borders]).dictionary_encode(null_encoding="encode")
        group_codes = np.split(names.indices.to_numpy(), np.cumsum([len(border.groups) for border in borders])[:-1])
        fills = find_border_fills(borders, group_codes, len(names.dictionary), self._fill_strategy)
        outer = np.full((len(names.dictionary), self._reach), np.nan, np.float32)
        border_values: list[Any] = [None] * len(borders)
        order = range(len(borders))
        for i in reversed(order) if self._looks_ahead else order:
            border_values[i] = outer[group_codes[i]], fills[i]
            nearest = np.where(np.isnan(borders[i].nearest), fills[i][:, None], borders[i].nearest)
            outer[group_codes[i]] = push_numbers(border_values[i][0], nearest, borders[i].sizes)
        return border_values

    def complete(self, parsed: pa.Array, border_value: Any, learned: LearnedTimeseries | None = None) -> pa.Array:
        """Return the window of each row as a list of float32; null if its number is missing and not imputed."""
        rows = rows_by_group(parsed)
        outer, fills = border_value or (np.full((len(rows.groups), self._reach), np.nan, np.float32), None)
        numbers = self._fill(rows, learned, fills)
        windows = cut_windows(rows, numbers, outer, ahead=self._looks_ahead)
        windows[np.isinf(windows)] = np.nan
        # A window is missing if the number of its row is, unless imputation fills it.
        missing = ~valid_mask(parsed)
        if self._feature._drops_windows or (learned is not None and fills_with_one_value(self._feature)):
            missing[:] = False
        elif self._fill_strategy:
            missing[rows.order] = np.isnan(numbers)
        return pa.FixedSizeListArray.from_arrays(windows.reshape(-1), windows.shape[1], mask=pa.array(missing))

    def _fill(self, rows: GroupedRows, learned: LearnedTimeseries | None, fills: np.ndarray | None) -> np.ndarray:
        """Return the numbers of rows after imputation; `fills` fills the outermost missing numbers of each group."""
        if self._fill_strategy:
            return np.where(np.isinf(rows.numbers), rows.numbers, fill_in_groups(rows, self._fill_strategy, fills))
        if learned is None or not fills_with_one_value(self._feature):
            return rows.numbers
        fill = self._feature.parse_fill(learned.fill_value)[0][0].as_py()
        return np.where(np.isnan(rows.numbers), np.float32(fill), rows.numbers)
