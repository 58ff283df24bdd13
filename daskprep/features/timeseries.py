"""Feature type for time series: a list of numbers in every cell, or windows over a column of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from daskprep.features.windows import Reach, SortedRows, WindowImputer, parse_rows, replace_values
from daskprep.rows.normalization import MAX_FLOAT32
from daskprep.rows.series import SEPARATORS, TimeseriesParameters, TimeseriesValues

# Windows: NaN represents a missing number, and `HIDDEN` a number of another split: it fills no missing number, and
# becomes NaN in a window.
HIDDEN = float("inf")
_MIN_AUTO = 256  # limit with timeseries_length_limit="auto"
_MAX_WINDOW = 1 << 24  # a larger window is a mistake, or an attack on memory


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

    @property
    def window_group(self) -> str | None:
        """Column of the groups of windows."""
        return self.group_by

    def parse(self, column: pa.Array, *others: pa.Array) -> pa.Array:
        """Return lists of float32; for windows structs of value, group and time."""
        if not self.is_windowed:
            return parse_number_lists(column, SEPARATORS[self.tokenizer])
        numbers = as_numbers(column).cast(pa.float32(), safe=False)
        parsed = pc.if_else(pc.is_finite(numbers), numbers, pa.scalar(None, pa.float32()))
        return parse_rows(parsed, self, others, mask=parsed.is_null())

    def parse_fill(self, value: object) -> pa.Array:
        """Return one cell with a list of float32; for windows, an empty text becomes NaN, which is padding."""
        if not self.is_windowed:
            return super().parse_fill(value)
        if isinstance(value, str) and not value.strip():
            return pa.array([[np.nan]], pa.list_(pa.float32()))
        return parse_number_lists(super().parse_fill(value).field("value"))

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
        return _SeriesImputer(self) if self.is_windowed else super().imputer


class _SeriesImputer(WindowImputer):
    """Replaces each number by a window over the rows around it, after `ffill` or `bfill` of missing numbers."""

    def __init__(self, feature: Timeseries) -> None:
        """Derive the direction and reach of windows from a feature; raise ConfigError if they are too long."""
        self._feature = feature
        self.per_split = feature.across_splits is not True
        self.sees_earlier_splits = feature.across_splits == "auto" and not feature.horizon
        self._fill_strategy = neighbour_strategy(feature.missing_value_strategy)
        reach = feature.horizon or feature.window_size - 1  # distance to the farthest number, in rows
        if reach > _MAX_WINDOW:
            raise ConfigError(f"Timeseries: a window has {_MAX_WINDOW:,} numbers at most, not {reach:,}")
        before, after = (0, reach) if feature.horizon else (reach, 0)
        super().__init__(Reach(before, after, fills=self._fill_strategy is not None), None)

    def hide(self, parsed: pa.Array, hidden: np.ndarray) -> pa.Array:
        """Return a column with the masked numbers replaced by HIDDEN; rows keep their positions and groups."""
        if not hidden.any():
            return parsed
        number = pc.if_else(pa.array(hidden), pa.scalar(HIDDEN, pa.float32()), parsed.field("value"))
        return replace_values(parsed, number, mask=number.is_null())

    def values_of(self, parsed: pa.Array, learned: LearnedTimeseries | None) -> pa.Array:
        """Return the numbers with NaN for missing ones, or the value that fills them."""
        fill = np.nan
        if learned is not None and fills_with_one_value(self._feature):
            fill = self._feature.parse_fill(learned.fill_value)[0][0].as_py()
        return pc.fill_null(parsed.field("value"), np.float32(fill))

    def mask_present(self, values: pa.Array) -> np.ndarray:
        present: np.ndarray = np.isfinite(values.to_numpy())
        return present

    def cut(self, rows: SortedRows, parsed: pa.Array, learned: LearnedTimeseries | None) -> pa.Array:
        """Return the window of each row as a list of float32; null if its number is missing and not imputed."""
        numbers = rows.values.to_numpy()
        if self._fill_strategy is not None:
            numbers = fill_in_groups(numbers, rows.codes, self._fill_strategy)
        windows = self._windows(numbers, rows)
        windows[np.isinf(windows)] = np.nan
        # A window is missing if the number of its row is, unless imputation fills it.
        missing = ~valid_mask(parsed)
        if self._feature._drops_windows or (learned is not None and fills_with_one_value(self._feature)):
            missing[:] = False
        elif self._fill_strategy is not None:
            missing = np.isnan(numbers[rows.positions])
        return pa.FixedSizeListArray.from_arrays(windows.reshape(-1), windows.shape[1], mask=pa.array(missing))

    def _windows(self, numbers: np.ndarray, rows: SortedRows) -> np.ndarray:
        """Return the numbers of the rows in each window, NaN for those outside the group."""
        horizon, width = self._feature.horizon, self._feature.horizon or self._feature.window_size
        if not len(numbers):
            return np.empty((0, width), np.float32)
        outside = np.full(width, np.nan, np.float32)
        if horizon:
            begins, known = rows.positions + 1, rows.ends - rows.positions - 1
            views = np.lib.stride_tricks.sliding_window_view(np.concatenate([numbers, outside]), width)
        else:
            begins, known = rows.positions + 1, rows.positions + 1 - rows.starts
            views = np.lib.stride_tricks.sliding_window_view(np.concatenate([outside, numbers]), width)
        windows: np.ndarray = views[begins]
        short = np.flatnonzero(known < width)
        steps = np.arange(width) if horizon else np.arange(width)[::-1]
        windows[short] = np.where(steps < known[short, None], windows[short], np.float32(np.nan))
        return windows


def fill_in_groups(numbers: np.ndarray, codes: np.ndarray, strategy: Literal["ffill", "bfill"]) -> np.ndarray:
    """Fill missing numbers of rows, sorted by group, from the nearest number before or after in their group.

    Without one, the nearest on the other side is used.
    """
    positions, present = np.arange(len(numbers)), np.isfinite(numbers)
    before = np.maximum.accumulate(np.where(present, positions, -1))
    after = np.minimum.accumulate(np.where(present, positions, len(numbers))[::-1])[::-1]
    sides = [before, after] if strategy == "ffill" else [after, before]
    filled = numbers
    for source in sides:
        inside = np.isnan(filled) & (codes.take(source, mode="clip") == codes) & (source >= 0) & (source < len(codes))
        filled = np.where(inside, numbers.take(source, mode="clip"), filled)
    return filled
