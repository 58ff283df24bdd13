"""Feature type for time series: a list of numbers in every cell, or windows over numbers, vectors or dates."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.display import format_count
from daskprep.columns.kernels import float_values, list_offsets, make_list_array, pad, valid_mask
from daskprep.columns.summaries import Lengths, Moments, Range, Summary
from daskprep.errors import ColumnError, ConfigError
from daskprep.features.base import Learned, Loss, fills_with_one_value
from daskprep.features.cells import as_numbers
from daskprep.features.date import Date, LearnedDate
from daskprep.features.feature import Feature, with_parameters
from daskprep.features.missing import NeighbourImputer, neighbour_strategy
from daskprep.features.padding import Padding
from daskprep.features.vector import LearnedVector, Vector, any_in_row, matrix_to_lists, parse_number_lists
from daskprep.features.windows import (
    Reach,
    SortedRows,
    WindowImputer,
    expand_ranges,
    iterate_chunks,
    locate,
    parse_rows,
    replace_values,
)
from daskprep.rows.normalization import MAX_FLOAT32, NORMALIZATIONS
from daskprep.rows.series import (
    MAX_PAST,
    SEPARATORS,
    TimeseriesParameters,
    TimeseriesValues,
    component_names,
    normalize,
)

# Windows: a row has a list of numbers, one for each component of a vector or date. They are NaN in a missing row, and
# `HIDDEN` in a row of another split: it fills no missing row, and becomes NaN in a window.
HIDDEN = float("inf")
_MIN_AUTO = 256  # limit with timeseries_length_limit="auto"
_MAX_WINDOW = 1 << 24  # a larger window is a mistake, or an attack on memory


@dataclass(frozen=True)
class ComponentSummary(Summary):
    """Moments and range of numbers."""

    moments: Moments
    range: Range


@dataclass(frozen=True)
class SeriesSummary(Summary):
    """Lengths of series, or for windows with a normalization, the numbers of each component."""

    lengths: Lengths = field(default_factory=Lengths)
    components: tuple[ComponentSummary, ...] = ()

    def __add__(self, other: SeriesSummary) -> SeriesSummary:
        return SeriesSummary(self.lengths + other.lengths, tuple(map(operator.add, self.components, other.components)))

    def __mul__(self, times: int) -> SeriesSummary:
        return SeriesSummary(self.lengths * times, tuple(one * times for one in self.components))


@dataclass(frozen=True, kw_only=True)
class LearnedTimeseries(TimeseriesValues, Learned):
    """Fitted state of a time series: the length of rows after truncation and padding."""


@with_parameters
class Timeseries(TimeseriesParameters, Feature[SeriesSummary, LearnedTimeseries]):
    """Read series of numbers as rows of a float32 matrix, padded or truncated to one length.

    A value is text such as "0.5 1e-3 nan" or "[1, 2]", a list or array, or a single number. Missing numbers within a
    series become `padding_value`. A value with other text or an infinite number cannot be read. With `window_size` or
    `horizon`, each value is one number, and an encoded row has the numbers around it, across partitions. With
    `vector_size`, `parts` or `cyclic`, each value is a vector or a date, and a step of a window has several numbers.

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
    window_size : int or str
        Length of a window that ends in its own row, in rows, or with `step` in steps; 0 for none. A duration such as
        "28D" takes the rows of this time before a row, for `statistics`.
    horizon : int
        Length of a window that starts in the next row; 0 for none.
    group_by : str or None
        Column of groups: windows take numbers only from rows with the same value. Missing values form a group too.
    time : str or None
        Column of times. If the rows of a group are not in their order, encoding raises `ColumnError`. None: rows are
        taken in the order of the data without a check. Rows of one time are in the order of the data. If it is also
        `column`, windows have the seconds between their rows and the row.
    step : str or None
        Duration of a step, such as "1D": windows have a number for each step of time, NaN for steps without a row. A
        row is in the nearest step; of several rows, the last counts. None: a step is a row.
    shift : int
        Number of steps between the end of a window and its row: 1 leaves out the row itself, and 7 the last week.
    lags : sequence of int or None
        Numbers of steps before a row, each a column: 0 is the row itself. They replace a window.
    statistics : sequence of {"mean", "min", "max", "count", "last", "since"} or None
        Columns, in place of a window, about its present numbers: "last" is the newest one, and "since" the seconds
        since then, or without `time` the number of rows. Without a number, all but "count" are NaN.
    normalization : {"zscore", "minmax", "log1p"} or None
        As for `Number`, learned from the numbers of training rows. Predictions and `decode` have the original units.
        Each number of vectors and dates has its own scale.
    vector_size : int or None
        Windows of vectors with this number of numbers, as `Vector` reads them; others cannot be read.
    parts : list of str or None
        Windows of dates: parts of each date, as `Date` has them.
    cyclic : list of str, mapping of str to int, or None
        Windows of dates: parts as sine and cosine, as `Date` has them.
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
    >>> points = Timeseries(window_size=2, vector_size=2).fit(pd.DataFrame({"at": ["0 1", "2 3"]}))
    >>> points.transform(pd.DataFrame({"at": ["0 1", "2 3"]}))
    array([[nan, nan,  0.,  1.],
           [ 0.,  1.,  2.,  3.]], dtype=float32)
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
        self._check_windows()
        if self._dates is not None:
            self._dates.check()
        if self.step is not None:
            _micros(self, "step")
        if self.fill_value is not None:
            self.parse_fill(self.fill_value)

    def _check_windows(self) -> None:
        """Raise ConfigError for contradictory windows."""
        if self.window_size and self.horizon:
            raise ConfigError(
                f"Timeseries: window_size={self.window_size} uses previous rows, horizon={self.horizon} following "
                "rows; set one of them to 0, or use two features"
            )
        if self.is_windowed and self.missing_value_strategy == "fill_with_mode":
            raise ConfigError(
                'Timeseries: windows do not support "fill_with_mode": use "fill_with_const", "ffill" or "bfill"'
            )
        for name, needed, exists in (
            ("group_by", "a window_size, a horizon or lags", self.is_windowed),
            ("time", "a window_size, a horizon or lags", self.is_windowed),
            ("normalization", "a window_size, a horizon or lags", self.is_windowed),
            ("step", "a column in time, and a number of steps as window_size", self.time and not self._span),
            ("vector_size", "a window_size, a horizon or lags", self.is_windowed),
            ("parts", "a window_size, a horizon or lags", self.is_windowed),
            ("cyclic", "a window_size, a horizon or lags", self.is_windowed),
            ("vector_size", "vectors, and parts and cyclic need dates: leave out one", self._dates is None),
            ("shift", "a window_size", self.window_size),
            ("lags", "a number as window_size, and no horizon", not (self._span or self.horizon)),
            ("statistics", "a window_size", self.window_size),
        ):
            if getattr(self, name) and not exists:
                raise ConfigError(f"Timeseries: {name}={getattr(self, name)!r} needs {needed}")
        if self._span and not (self.time and self.statistics):
            raise ConfigError(
                f"Timeseries: window_size={self.window_size!r} needs a column in time, and statistics: for a number "
                'each day, use step="1D" and a number as window_size'
            )
        if self._of_times and (self.statistics or self.normalization or self.vector_size):
            raise ConfigError(
                f'Timeseries: windows of the times of "{self.time}" have seconds: leave out statistics, '
                'normalization and vector_size, or use the statistic "since" of another column'
            )
        if (numbers := self._steps * self._components) > _MAX_WINDOW:
            raise ConfigError(f"Timeseries: a window has {_MAX_WINDOW:,} numbers at most, not {numbers:,}")

    @property
    def _span(self) -> bool:
        """Whether windows have the rows of a duration."""
        return isinstance(self.window_size, str)

    @property
    def _of_times(self) -> bool:
        """Whether windows have the seconds between their rows and the row."""
        return self.time is not None and self.column == self.time and self._dates is None

    @property
    def _dates(self) -> Date | None:
        """The feature of dates whose parts windows have."""
        return None if self.parts is None and self.cyclic is None else Date(parts=self.parts, cyclic=self.cyclic)

    @property
    def _components(self) -> int:
        """The number of numbers that a row has in windows."""
        names = component_names(vars(self))
        return 1 if names is None else len(names)

    @property
    def _steps(self) -> int:
        """The distance to the farthest number of windows, in rows or steps."""
        size = self.shift + self.window_size - 1 if isinstance(self.window_size, int) and self.window_size else 0
        return max(self.horizon, size, *(self.lags or (0,)))

    @property
    def _window_width(self) -> int:
        """The number of columns of windows."""
        if self.lags or self.statistics:
            return len(self.lags or ()) + len(self.statistics or ())
        assert isinstance(self.window_size, int)
        return self.horizon or self.window_size

    def tabulated_names(self, name: str, learned: LearnedTimeseries) -> list[str]:
        """Return the names of the columns in tables: of lags and statistics, or numbers from 0; then of components."""
        own = [*(f"lag_{lag}" for lag in self.lags or ()), *(self.statistics or ())]
        steps = [f"{name}_{one}" for one in own or range(learned.max_timeseries_length)]
        components = component_names(vars(self))
        return steps if components is None else [f"{step}_{one}" for step in steps for one in components]

    @property
    def _counts_steps(self) -> bool:
        return self.step is None and not self._span

    @property
    def _past(self) -> tuple[str | None, int, bool] | None:
        if not self.is_windowed or self.horizon:
            return None
        is_limited = self.step is None and not self._span and neighbour_strategy(self.missing_value_strategy) is None
        return self.group_by, self._steps if is_limited else MAX_PAST, True

    @property
    def _window_numbers(self) -> int:
        steps = self._steps if self.step and self.statistics else 0  # which are then in memory, too
        return max(self._window_width, steps) * self._components if self.is_windowed else 0

    @property
    def _window_groups(self) -> list[str | None]:
        return [self.group_by] if self.is_windowed else []

    def parse(self, column: pa.Array, *others: pa.Array) -> pa.Array:
        """Return lists of float32; for windows structs of value, group and time."""
        if not self.is_windowed:
            return parse_number_lists(column, SEPARATORS[self.tokenizer])
        numbers = self._read_numbers(column)
        return parse_rows(to_lists(numbers), self, others, mask=pa.array(np.isnan(numbers[:, 0])))

    def _read_numbers(self, column: pa.Array) -> np.ndarray:
        """Return the numbers of each row, by component; NaN where a value is missing or cannot be read."""
        if self._of_times:
            return np.zeros((len(column), 1), np.float32)
        if (dates := self._dates) is not None:
            parsed = dates.parse(column)
            numbers = dates._date_table(dates.encode(parsed, LearnedDate()))
        elif self.vector_size is not None:
            vectors = Vector(vector_size=self.vector_size)
            parsed = vectors.parse(column)
            numbers = vectors.encode(parsed, LearnedVector(vector_size=self.vector_size))
        elif pa.types.is_nested(column.type):
            raise ColumnError(f"holds values of type {column.type}: windows of vectors need their vector_size")
        else:
            parsed = as_numbers(column).cast(pa.float32(), safe=False)
            numbers = float_values(parsed)[:, None].copy()
            numbers[np.isinf(numbers)] = np.nan
        numbers[~valid_mask(parsed)] = np.nan
        return numbers

    def parse_fill(self, value: object) -> pa.Array:
        """Return one cell with a list of float32; for windows, an empty text becomes NaN, which is padding."""
        if not self.is_windowed:
            return super().parse_fill(value)
        if isinstance(value, str) and not value.strip():
            return to_lists(np.full((1, self._components), np.nan, np.float32))
        if self.vector_size is not None:
            return Vector(vector_size=self.vector_size).parse_fill(value)
        return super().parse_fill(value).field("value")

    def summarize(self, parsed: pa.Array) -> SeriesSummary:
        if not self.is_windowed:
            return SeriesSummary(Lengths.of(np.diff(list_offsets(parsed.drop_null()))))
        if self.normalization is None:  # the size of windows is a parameter
            return SeriesSummary()
        numbers = to_matrix(parsed.field("value") if pa.types.is_struct(parsed.type) else parsed, self._components)
        numbers = numbers[np.isfinite(numbers[:, 0])].astype(np.float64)
        return SeriesSummary(Lengths(), tuple(ComponentSummary(Moments.of(one), Range.of(one)) for one in numbers.T))

    def learn(self, summary: SeriesSummary) -> LearnedTimeseries:
        if self.is_windowed:
            if not any(one.moments.count for one in summary.components):
                return LearnedTimeseries(max_timeseries_length=self._window_width)
            columns: list[tuple[float, ...]] = []
            for numbers, extent in ((one.moments, one.range) for one in summary.components):
                NORMALIZATIONS[self.normalization].check_domain(np.array([extent.min]))
                std = numbers.std(ddof=1) if numbers.count > 1 else 0.0
                columns.append((numbers.mean(), std, extent.min, extent.max))
            values = columns[0] if component_names(vars(self)) is None else zip(*columns, strict=True)
            state: dict[str, Any] = dict(zip(("mean", "std", "min", "max"), values, strict=True))
            return LearnedTimeseries(max_timeseries_length=self._window_width, **state)
        return self._learn_length(summary.lengths)

    def _learn_length(self, summary: Lengths) -> LearnedTimeseries:
        limit = self.timeseries_length_limit
        longest = max(1, min(summary.max, summary.limit(_MIN_AUTO) if limit == "auto" else limit))
        cut_rows = int(summary.counts[summary.lengths > longest].sum())
        return LearnedTimeseries(max_timeseries_length=longest, cut_rows=cut_rows)

    def cells(self, parsed: pa.Array) -> pa.Array:
        return pc.binary_join(parsed.cast(pa.list_(pa.string())), SEPARATORS[self.tokenizer] or " ")

    def encode(self, parsed: pa.Array, learned: LearnedTimeseries) -> np.ndarray:
        """Return float32 rows, padded or truncated to the learned length; NaN becomes `padding_value`."""
        numbers = float_values(parsed.flatten())
        length, fill = learned.max_timeseries_length * self._components, self.padding_number
        offsets = list_offsets(parsed)
        if (np.diff(offsets) == length).all():
            out: np.ndarray = numbers.reshape(len(parsed), length).copy()
        else:
            keeps_end = self.truncation == "keep_end"
            out = pad(offsets, numbers, length, side=self.padding, fill=fill, keeps_end=keeps_end)
        np.copyto(out, fill, where=np.isnan(out), casting="same_kind")
        is_flat = component_names(vars(self)) is None
        return out if is_flat else out.reshape(len(out), learned.max_timeseries_length, self._components)

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
        """Return rows as lists; numbers, but not statistics, in the units of the column."""
        if self.normalization is not None and not self.statistics:
            encoded = normalize(self.normalization, vars(learned), encoded, inverse=True)
        if encoded.ndim == 2:
            return matrix_to_lists(encoded)
        rows, steps, components = encoded.shape
        return make_list_array(np.arange(rows + 1) * steps, matrix_to_lists(encoded.reshape(-1, components)))

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
        """Derive the direction and reach of windows from a feature."""
        self._feature = feature
        self.per_split = feature.across_splits is not True
        self.sees_earlier_splits = feature.across_splits == "auto" and not feature.horizon
        self._fill_strategy = neighbour_strategy(feature.missing_value_strategy)
        self.uses_times = feature._of_times or (feature.time is not None and bool(feature.step or feature.statistics))
        self._step = 0 if feature.step is None else _micros(feature, "step")
        span = _micros(feature, "window_size") if feature._span else self._step * (feature._steps + 1)
        reach = feature._steps or 1 if span else feature._steps
        before, after = (0, reach) if feature.horizon else (reach, 0)
        super().__init__(feature, Reach(before, after, span, self._fill_strategy is not None), feature.time)

    def hide(self, parsed: pa.Array, hidden: np.ndarray) -> pa.Array:
        """Return a column with the masked numbers replaced by HIDDEN; rows keep their positions and groups."""
        if not hidden.any():
            return parsed
        numbers = np.where(hidden[:, None], np.float32(HIDDEN), self._matrix(parsed.field("value")))
        return replace_values(parsed, to_lists(numbers), mask=pa.array(np.isnan(numbers[:, 0])))

    def _matrix(self, values: pa.Array) -> np.ndarray:
        return to_matrix(values, self._feature._components)

    def values_of(self, parsed: pa.Array, learned: LearnedTimeseries | None) -> pa.Array:
        """Return the normalized numbers with NaN for missing ones, or the value that fills them."""
        numbers = self._matrix(parsed.field("value"))
        if learned is not None and fills_with_one_value(self._feature):
            fill = self._matrix(self._feature.parse_fill(learned.fill_value))
            numbers = np.where(np.isnan(numbers), fill, numbers)
        if learned is None or self._feature.normalization is None:
            return to_lists(numbers)
        hidden = np.isinf(numbers)
        shown = np.where(hidden, np.nan, numbers.astype(np.float64))
        normalized = normalize(self._feature.normalization, vars(learned), shown)
        return to_lists(np.where(hidden, np.float32(HIDDEN), normalized))

    def mask_present(self, values: pa.Array) -> np.ndarray:
        present: np.ndarray = np.isfinite(self._matrix(values)[:, 0])
        return present

    def cut(self, rows: SortedRows, parsed: pa.Array, learned: LearnedTimeseries | None) -> pa.Array:
        """Return the window of each row as a list of float32; null if its number is missing and not imputed."""
        numbers = self._matrix(rows.values)
        if self._fill_strategy is not None:
            numbers = fill_in_groups(numbers, rows.codes, self._fill_strategy)
        if self._feature._of_times:
            seconds = np.where(np.isinf(numbers), np.inf, rows.times[:, None] / 1_000_000)
            windows = np.abs(rows.times[rows.positions, None, None] / 1_000_000 - self._columns(seconds, rows))
            windows = windows.astype(np.float32)
        else:
            windows = self._columns(numbers, rows)
        windows[np.isinf(windows)] = np.nan
        # A window is missing if the number of its row is, unless imputation fills it.
        missing = ~valid_mask(parsed)
        if self._feature._drops_windows or (learned is not None and fills_with_one_value(self._feature)):
            missing[:] = False
        elif self._fill_strategy is not None:
            missing = np.isnan(numbers[rows.positions, 0])
        return to_lists(windows, mask=pa.array(missing))

    def _columns(self, numbers: np.ndarray, rows: SortedRows) -> np.ndarray:
        """Return the windows of rows, or their lags and statistics, with the components of numbers as the last axis."""
        feature = self._feature
        if feature.horizon:
            return self._windows(numbers, rows, feature.horizon)
        lags = [self._windows(numbers, rows, 1, lag) for lag in feature.lags or ()]
        if not feature.statistics:
            return np.hstack(lags) if lags else self._windows(numbers, rows, feature._window_width, feature.shift)
        ends = np.maximum(rows.positions + 1 - feature.shift, rows.starts)
        own_times = rows.times[rows.positions] if len(rows.times) else rows.positions
        row_times = rows.times if len(rows.times) else np.arange(len(numbers))
        unit = 1_000_000 if len(rows.times) else 1
        if self._step:
            width = int(feature.window_size)
            numbers = self._windows(numbers, rows, width, feature.shift).reshape(-1, numbers.shape[1])
            starts = np.arange(len(ends)) * width
            ends = starts + width
            row_times = np.repeat(own_times - self._step * feature.shift, width)
            row_times -= np.tile(np.arange(width)[::-1] * self._step, len(starts))
        elif feature._span:
            starts = np.minimum(self._locate(rows, own_times - self._reach.span), ends)
        else:
            starts = np.maximum(ends - int(feature.window_size), rows.starts)
        statistics = np.empty((len(ends), len(feature.statistics), numbers.shape[1]), np.float32)
        for one in iterate_chunks(ends - starts):
            for component, column in enumerate(numbers.T):
                statistics[one, :, component] = _statistics(
                    feature.statistics, column, starts[one], ends[one], row_times, own_times[one], unit
                )
        return np.hstack([*lags, statistics])

    def _windows(self, numbers: np.ndarray, rows: SortedRows, width: int, shift: int = 0) -> np.ndarray:
        """Return the numbers of the rows, or steps of time, in each window, NaN for those outside the group."""
        if not len(numbers):
            return np.empty((0, width, numbers.shape[1]), numbers.dtype)
        if self._step:
            return self._steps_of_time(numbers, rows, width, shift)
        outside = np.full((width, numbers.shape[1]), np.nan, numbers.dtype)
        ahead = self._feature.horizon > 0
        if ahead:
            begins, known = rows.positions + 1, rows.ends - rows.positions - 1
            numbers = np.concatenate([numbers, outside])
        else:
            begins = np.maximum(rows.positions + 1 - shift, rows.starts)
            known = begins - rows.starts
            numbers = np.concatenate([outside, numbers])
        views = np.lib.stride_tricks.sliding_window_view(numbers.reshape(-1), width * numbers.shape[1])
        windows = views[begins * numbers.shape[1]].reshape(len(begins), width, numbers.shape[1])
        short = np.flatnonzero(known < width)
        steps = np.arange(width) if ahead else np.arange(width)[::-1]
        padded = windows[short]
        padded[steps >= known[short, None]] = np.nan
        windows[short] = padded
        return windows

    def _steps_of_time(self, numbers: np.ndarray, rows: SortedRows, width: int, shift: int) -> np.ndarray:
        """Return for each row the number of the last row that is nearest to each step, NaN for steps without rows."""
        own_times, step, ahead = rows.times[rows.positions], self._step, self._feature.horizon > 0
        if ahead:
            starts, ends = rows.positions + 1, self._locate(rows, own_times + step * (width + 1))
        else:
            starts = self._locate(rows, own_times - step * (width + shift))
            ends = np.minimum(rows.positions + 1, self._locate(rows, own_times - step * (shift - 1)))
        starts = np.minimum(starts, ends)
        windows = np.full((len(ends), width, numbers.shape[1]), np.nan, numbers.dtype)
        for chunk in iterate_chunks(ends - starts):
            sources = expand_ranges(starts[chunk], ends[chunk])
            owners = np.repeat(np.arange(chunk.start, chunk.stop), (ends - starts)[chunk])
            distances = np.abs(rows.times[sources] - own_times[owners])
            steps = (2 * distances + step) // (2 * step) - (1 if ahead else shift)
            inside = (steps >= 0) & (steps < width) & ~np.isinf(numbers[sources, 0])
            columns = steps[inside] if ahead else width - 1 - steps[inside]
            windows[owners[inside], columns] = numbers[sources[inside]]  # of several rows, the last
        return windows

    def _locate(self, rows: SortedRows, times: np.ndarray) -> np.ndarray:
        """Return for each row the end of the rows of its group that are not later than a time."""
        return locate(rows.codes, rows.times, rows.codes[rows.positions], times)


def _statistics(
    names: Sequence[str],
    numbers: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    times: np.ndarray,
    own_times: np.ndarray,
    unit: int,
) -> np.ndarray:
    """Return statistics of the present numbers in each range, NaN without one; "since" is in multiples of `unit`."""
    sources, owners = expand_ranges(starts, ends), np.repeat(np.arange(len(starts)), ends - starts)
    present = np.isfinite(numbers[sources])
    sources, owners = sources[present], owners[present]
    values = numbers[sources].astype(np.float64)
    counts = np.bincount(owners, minlength=len(starts))
    some = np.flatnonzero(counts)
    firsts = (np.cumsum(counts) - counts)[some]
    lasts = firsts + counts[some] - 1
    results: dict[str, Callable[[], np.ndarray]] = {
        # Numbers are added in order, so that a mean does not depend on the partition.
        "mean": lambda: np.bincount(owners, values, minlength=len(starts))[some] / counts[some],
        "min": lambda: np.minimum.reduceat(values, firsts),
        "max": lambda: np.maximum.reduceat(values, firsts),
        "last": lambda: values[lasts],
        "since": lambda: (own_times[some] - times[sources[lasts]]) / unit,
    }
    columns = np.full((len(starts), len(names)), np.nan)
    for column, name in enumerate(names):
        if name == "count":
            columns[:, column] = counts
        elif len(some):
            columns[some, column] = results[name]()
    return columns.astype(np.float32)


def _micros(feature: Timeseries, name: str) -> int:
    """Return the microseconds of a duration in a parameter; raise ConfigError for another text."""
    text = getattr(feature, name)
    with suppress(ValueError):
        if (micros := pd.Timedelta(text) // pd.Timedelta(microseconds=1)) > 0 and not text.strip().isdigit():
            return int(micros)
    raise ConfigError(f'Timeseries: {name}={text!r} is no duration: use a text such as "28D", "12h" or "15min"')


def fill_in_groups(numbers: np.ndarray, codes: np.ndarray, strategy: Literal["ffill", "bfill"]) -> np.ndarray:
    """Fill missing numbers of rows, sorted by group, from the nearest number before or after in their group.

    Without one, the nearest on the other side is used.
    """
    positions, present = np.arange(len(numbers)), np.isfinite(numbers[:, 0])
    before = np.maximum.accumulate(np.where(present, positions, -1))
    after = np.minimum.accumulate(np.where(present, positions, len(numbers))[::-1])[::-1]
    sides = [before, after] if strategy == "ffill" else [after, before]
    filled = numbers
    for source in sides:
        inside = (codes.take(source, mode="clip") == codes) & (source >= 0) & (source < len(codes))
        inside &= np.isnan(filled[:, 0])
        filled = np.where(inside[:, None], numbers.take(source, axis=0, mode="clip"), filled)
    return filled


def to_lists(numbers: np.ndarray, mask: pa.Array | None = None) -> pa.Array:
    """Return the rows of an array as lists of one length."""
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), math.prod(numbers.shape[1:]), mask=mask)


def to_matrix(lists: pa.Array, width: int) -> np.ndarray:
    """Return lists of numbers as rows of a matrix."""
    matrix: np.ndarray = lists.flatten().to_numpy().reshape(-1, width)
    return matrix
