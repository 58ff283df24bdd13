"""The split by time: the oldest rows for training, later rows for validation and testing."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.display import format_count, join_names
from daskprep.columns.kernels import only_where
from daskprep.columns.parametrized import with_parameters
from daskprep.columns.permutation import Integers
from daskprep.errors import ColumnError, ConfigError, warn
from daskprep.rows.dates import micros_since_epoch, numeric_format
from daskprep.sources.classes import (
    Mask,
    OrderedCounts,
    Ties,
    data_changed_error,
    encode_classes,
    find_column,
    find_ranks,
    rejected_rows_error,
)
from daskprep.sources.split.base import (
    DEFAULT_SHARES,
    DROPPED,
    MAX_EXAMPLES,
    ReadAgain,
    Shares,
    SplitArray,
    Splitter,
    scatter_splits,
)
from daskprep.storage.checkpoint import checkpointable

ALL_ROWS = 2**63 - 1  # rows
# Fields of a time that several columns contain, with their minimum and maximum.
_FIELD_RANGES = {
    "year": (1, 9999),
    "month": (1, 12),
    "day": (1, 31),
    "hour": (0, 23),
    "minute": (0, 59),
    "second": (0, 59),
}


class TimeSplitter(Splitter):
    """Base class of splits in order of time."""

    counts_column = True

    column: str | list[str]  # type: ignore[assignment]
    datetime_format: str | None
    gap: str | timedelta | None
    divide_times: bool

    def _check_column(self) -> None:
        """Raise ConfigError unless `column` is a name, or two to six names."""
        names = self.column
        if isinstance(names, str):
            return super()._check_column()
        is_valid = isinstance(names, list) and 2 <= len(names) <= len(_FIELD_RANGES)
        if not (is_valid and all(isinstance(name, str) for name in names)):
            remedy = f"Use columns of {', '.join(_FIELD_RANGES)}."
            raise self._error("column", "the name of a column, or two to six names", remedy)
        if self.datetime_format is not None:
            raise ConfigError(f"{type(self).__name__}: several columns contain numbers: leave out datetime_format.")
        return None

    def validate(self) -> None:
        super().validate()
        time_format = self.datetime_format
        if time_format is not None and not (isinstance(time_format, str) and "%" in time_format):
            raise self._error("datetime_format", "None or a format", 'For example, use "%d/%m/%Y %H:%M".')
        self._nanoseconds("gap")

    def _nanoseconds(self, parameter: str) -> int:
        """Return a duration in ns, 0 for None; ConfigError below 0."""
        gap = getattr(self, parameter)
        with suppress(TypeError, ValueError):
            # pandas reads a number without a unit as nanoseconds.
            if gap is None or isinstance(gap, timedelta | np.timedelta64) or re.search("[A-Za-z:]", gap):
                nanoseconds = 0 if gap is None else pd.Timedelta(gap).as_unit("ns").value
                if nanoseconds >= 0:
                    return int(nanoseconds)
        raise self._error(parameter, "a duration that is not negative, or None", 'For example, use "7 days".')

    def _parameters(self) -> dict[str, Any]:
        """Return parameters as JSON values, durations as text."""
        parameters = super()._parameters()
        if self.divide_times:
            del parameters["divide_times"]
        for name in {"gap", "window"} & parameters.keys():
            if parameters[name] is None:
                del parameters[name]
            elif not isinstance(parameters[name], str):
                parameters[name] = str(pd.Timedelta(parameters[name]))
        return parameters

    def census(self, table: pa.Table, keep: Mask | None = None) -> TimeCounts:
        return self._census_of_series({}, table, keep)

    def _census_of_series(self, groups: Mapping[str | None, bool], table: pa.Table, keep: Mask | None) -> TimeCounts:
        """Return a census with the order of times in series; `groups` is whether their steps are counted."""
        reader = _TimeReader(self.column, self.datetime_format)
        keys, bad, unit = reader.read(table, keep)
        rows = np.flatnonzero(bad) if keep is None else np.flatnonzero(keep)[bad]
        cells = [find_column(table, name) for name in reader.names]
        if self.gap is not None and self.datetime_format is None and len(cells) == 1 and _is_number(cells[0].type):
            self._check_unit(keys[~bad])
        examples = []
        for row in rows[:MAX_EXAMPLES].tolist():
            values = [part[row].as_py() for part in cells]
            examples.append((row, ", ".join("(missing)" if value is None else f'"{value}"' for value in values)))
        orders = []
        for group, counts_steps in groups.items():
            codes, names = np.zeros(table.num_rows, np.intp), pa.nulls(1, pa.large_string())
            if group is not None:
                codes, names = encode_classes(table, group)
            orders.append(
                SeriesOrder.of(keys[~bad], (codes if keep is None else codes[keep])[~bad], names, counts_steps)
            )
        counts = OrderedCounts.of(keys[~bad])
        return TimeCounts(table.num_rows, unit, counts, rows.size, tuple(examples), tuple(orders))

    def _check_unit(self, keys: Integers) -> None:
        """Raise ConfigError if all times are within a day of 1970-01-01, which are probably no seconds."""
        if keys.size and np.abs(keys).max() < 86_400 * 1_000_000:
            raise ConfigError(
                f'{type(self).__name__}: read as seconds, the numbers of column "{self.column}" are times on one day, '
                '1970-01-01. If they are not seconds, set datetime_format, such as "%Y"'
            )


@with_parameters
class DatetimeSplit(TimeSplitter):
    """Split by time: train on the oldest rows, validate on later ones, test on the newest.

    Rows of the same time are in one split, and the shares are as near as they allow. A time that is missing or cannot
    be read raises `RejectedValueError` with the values and rows.

    Parameters
    ----------
    column : str or list of str
        Column of timestamps, dates, strings or numbers. Times without a zone are UTC; strings are read in microseconds.
        Numbers count seconds since 1970, or milliseconds to nanoseconds by their size, as for `Date`. Several columns
        contain year, month, day, hour, minute and second as numbers, or the first two to five of these.
    shares : sequence of float
        Shares of train, validation and test, or of train and test; they add up to 1.
    datetime_format : str or None
        Format of strings in the codes of `strptime`. None: ISO 8601. Numbers are then read as text: "%Y" reads 2021.
    gap : str, timedelta or None
        Rows less than this duration after the last training row, or after the last validation row, are dropped. A
        string has a unit, such as "7 days" or "12h". Shares apply before rows are dropped.
    divide_times : bool
        Whether rows of the same time may be in two splits, in the order of rows, so that the shares are exact.

    Examples
    --------
    >>> import pyarrow as pa
    >>> split = DatetimeSplit("day", (0.5, 0.25, 0.25), datetime_format="%d/%m/%Y")
    >>> table = pa.table({"day": ["03/02/2020", "01/02/2020", "01/03/2020", "02/02/2020"]})
    >>> split.plan([split.census(table)])[0].assign(table, None).tolist()
    [1, 0, 2, 0]
    """

    type = "datetime"

    column: str | list[str]
    shares: Shares = DEFAULT_SHARES
    datetime_format: str | None = None
    gap: str | timedelta | None = None
    divide_times: bool = False

    @property
    def exclusion_reason(self) -> str | None:
        return None if self.gap is None else f"less than {self.gap} after the end of the previous split"

    def plan(self, censuses: Sequence[TimeCounts], read_again: ReadAgain = None) -> list[TimeAssignment]:
        """Return the plan, with a warning for splits without rows."""
        order = TimeOrder.of(self, censuses, read_again)
        ends = self._ends(order.rows)
        cuts = order.cut(ends, self.divide_times)
        if empty := order.find_empty(ends, cuts):
            names = join_names([("train", "validation", "test")[part] for part in empty], 2)
            warn(
                f'no rows are left for {names}, since the rows of one time of "{order.reader.name}" stay together: use '
                f"other shares, a finer time, or {type(self).__name__}(..., divide_times=True)"
            )
        return order.assign(cuts, self._nanoseconds("gap"))


class Cut(NamedTuple):
    """Cut between two rows in order of time: the rank of the row after it."""

    rank: int
    # A time, and how many of the partition's rows with this time precede the cut. None: a cut at the end.
    positions: Sequence[tuple[int, int] | None]


@dataclass(eq=False)
class TimeOrder:
    """The times of all rows in order, by their ranks, which count from 0."""

    reader: _TimeReader
    unit: str
    rows: int
    _counts: Sequence[OrderedCounts]
    _read_again: Any  # not None if a census may be too coarse
    _ties: dict[int, list[Ties]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, split: TimeSplitter, censuses: Sequence[TimeCounts], read_again: ReadAgain) -> TimeOrder:
        """Return the order for censuses in partition order; RejectedValueError for unreadable times."""
        total = reduce(add, censuses, TimeCounts(0, "", OrderedCounts.of(np.zeros(0, dtype=np.int64))))
        reader = _TimeReader(split.column, split.datetime_format)
        if total.bad:
            expected = f"a time in the format {split.datetime_format or 'ISO 8601'}"
            if len(reader.names) > 1:
                expected = f"numbers of {', '.join(list(_FIELD_RANGES)[: len(reader.names)])}"
            raise rejected_rows_error(reader.name, total.bad, total.examples, expected)
        if len({census.unit for census in censuses} - {""}) > 1:
            raise ColumnError(f'Column "{reader.name}" has nanoseconds in some partitions: use one type.')
        for orders in zip(*(census.orders for census in censuses), strict=True):
            if faults := SeriesOrder.find_faults(orders, total.unit, reader.name):
                warn(
                    f'the times of "{reader.name}" {join_names(list(faults), 3)}: windows take rows in the order of '
                    f"the data, so {join_names(list(faults.values()), 3)}"
                )
        rows = int(total.counts.counts.sum())
        return cls(reader, total.unit, rows, [census.counts for census in censuses], read_again)

    def find(self, ranks: Collection[int]) -> dict[int, list[Ties]]:
        """Return, by rank, the rows with the time at the rank in each partition; also for ranks found before."""
        self._ties |= find_ranks(
            set(ranks) - self._ties.keys(),
            self._counts,
            lambda windows: self._read_again(partial(_recount, self.reader, windows)),
        )
        return self._ties

    def cut(self, ends: Sequence[int], divide: bool) -> list[Cut]:
        """Return cuts at ascending ranks, or unless `divide`, at the nearest ones between different times."""
        ties_by_rank = self.find({end for end in ends if end < self.rows})
        cuts: list[Cut] = []
        for index, end in enumerate(ends):
            last = cuts[-1].rank if cuts else 0
            if end == self.rows:
                cut = Cut(end, [None] * len(self._counts))
            elif index and end == ends[index - 1]:
                cut = cuts[-1]
            elif divide:
                cut = Cut(end, [(time, before) for time, before, _ in ties_by_rank[end]])
            else:
                start = end - sum(ties.before for ties in ties_by_rank[end])
                stop = start + sum(ties.rows for ties in ties_by_rank[end])
                nearest = sorted((start, stop), key=lambda rank: abs(rank - end))
                fitting = [rank for rank in nearest if last < rank < self.rows]
                [rank, *_] = fitting or [rank for rank in nearest if rank >= max(last, 1)]
                cut = Cut(rank, [(ties.number, 0 if rank == start else ALL_ROWS) for ties in ties_by_rank[end]])
            cuts.append(cut)
        return cuts

    def find_empty(self, ends: Sequence[int], cuts: Sequence[Cut]) -> list[int]:
        """Return the indices of parts between cuts that lost all rows."""
        wanted, rows = (np.diff([0, *ranks, self.rows]) for ranks in (ends, [cut.rank for cut in cuts]))
        empty: list[int] = np.flatnonzero((wanted > 0) & (rows == 0)).tolist()
        return empty

    def assign(self, cuts: Sequence[Cut], gap: int = 0) -> list[TimeAssignment]:
        """Return each partition's assignment, without rows up to `gap` nanoseconds after the row before a cut."""
        ticks = gap if self.unit == "ns" else -(-gap // 1_000)
        inner = {cut.rank - 1 for cut in cuts if gap and cut.rank < self.rows}
        ties_by_rank = self.find(inner)
        starts = tuple(ties_by_rank[cut.rank - 1][0].number + ticks if cut.rank - 1 in inner else None for cut in cuts)
        positions = zip(*(cut.positions for cut in cuts), strict=True)
        return [TimeAssignment(self.reader, self.unit, pair, starts) for pair in positions]


@checkpointable
@dataclass(frozen=True, eq=False)
class TimeCounts:
    """Counts of the times of a partition's kept rows, to add in partition order."""

    rows: int  # number of rows, including dropped rows
    unit: str  # unit of the times, "us" or "ns"; "" without times
    counts: OrderedCounts  # rows by time
    bad: int = 0  # rows with a missing or unreadable time
    examples: tuple[tuple[int, str], ...] = ()  # row numbers and values of the first of these.
    # Of a partition, for features with windows; a sum has none.
    orders: tuple[SeriesOrder, ...] = ()

    def __add__(self, other: TimeCounts) -> TimeCounts:
        later = ((self.rows + row, value) for row, value in other.examples)
        examples = (*self.examples, *later)[:MAX_EXAMPLES]
        counts, bad = self.counts + other.counts, self.bad + other.bad
        return TimeCounts(self.rows + other.rows, self.unit or other.unit, counts, bad, examples)


@checkpointable
@dataclass(frozen=True, eq=False)
class SeriesOrder:
    """Rows that are earlier than the row before them in their series."""

    late: int
    names: pa.Array
    ends: Integers  # first and last time of each series; shape (series, 2)
    steps: OrderedCounts | None = None  # differences between the times of neighboring rows; None: not counted

    @classmethod
    def of(cls, times: Integers, codes: Integers, names: pa.Array, counts_steps: bool = False) -> SeriesOrder:
        """Return the order of rows; `codes` are positions of their series in `names`."""
        rows = np.argsort(codes, kind="stable")
        codes, times = codes[rows], times[rows]
        starts = np.flatnonzero(np.diff(codes, prepend=-1))
        differences = np.diff(times)[np.diff(codes) == 0]
        lasts = np.append(starts[1:], len(times))[: len(starts)] - 1
        ends, steps = times[np.stack([starts, lasts], axis=1)], None
        if counts_steps:
            steps = OrderedCounts.of(differences[differences >= 0])
        return cls(int(np.count_nonzero(differences < 0)), names.take(pa.array(codes[starts])), ends, steps)

    @classmethod
    def find_faults(cls, orders: Sequence[SeriesOrder], unit: str, name: str) -> dict[str, str]:
        """Return the irregularities in the times of all partitions, in their order, each with its remedy."""
        faults = {}
        across = cls._steps_across(orders)
        if late := sum(one.late for one in orders) + int(np.count_nonzero(across < 0)):
            faults[f"go back at {format_count(late, 'row')} within a series"] = "sort it by time first"
        counted = [one.steps for one in orders if one.steps is not None]
        steps = reduce(add, counted, OrderedCounts.of(across[across >= 0]))
        keys, counts = steps.buckets, steps.counts
        if not counted or steps.shift or not len(keys):
            return faults
        if repeated := int(counts[keys == 0].sum()):
            faults[f"repeat at {format_count(repeated, 'row')} of a series"] = "name the column of series in group_by"
        usual = int(keys[np.argmax(np.where(keys > 0, counts, 0))])
        # Times without a usual step are events.
        if usual and 2 * counts[keys == usual].sum() > counts[keys > 0].sum():
            missing = int((counts * (np.maximum(2 * keys + usual, 0) // (2 * usual) - 1).clip(0)).sum())
            if missing:
                step = pd.Timedelta(usual, "ns" if unit == "ns" else "us")
                text = f"{step.days}D" if step == pd.Timedelta(days=step.days) else f"{step.total_seconds():g}s"
                faults[f"lack {format_count(missing, 'step')} of {text}"] = f'use time="{name}", step="{text}"'
        return faults

    @classmethod
    def count_late(cls, orders: Sequence[SeriesOrder]) -> int:
        """Return the number of late rows of all partitions, in their order."""
        return sum(one.late for one in orders) + int(np.count_nonzero(cls._steps_across(orders) < 0))

    @staticmethod
    def _steps_across(orders: Sequence[SeriesOrder]) -> Integers:
        """Return the differences between the last time of a series in a partition and its next time."""
        series = pa.concat_arrays([one.names for one in orders]).dictionary_encode(null_encoding="encode")
        codes, ends = series.indices.to_numpy(), np.concatenate([one.ends for one in orders])
        parts = np.argsort(codes, kind="stable")
        codes, ends = codes[parts], ends[parts]
        across: Integers = (ends[1:, 0] - ends[:-1, 1])[np.diff(codes) == 0]
        return across


@dataclass(frozen=True)
class _TimeReader:
    """A reader of times as integers since 1970: nanoseconds or microseconds."""

    column: str | list[str]
    datetime_format: str | None

    @property
    def names(self) -> list[str]:
        return [self.column] if isinstance(self.column, str) else self.column

    @property
    def name(self) -> str:
        return ", ".join(self.names)

    def read(self, table: pa.Table, keep: Mask | None) -> tuple[Integers, Mask, str]:
        """Return the times of the kept rows, a mask of unreadable ones, and the unit."""
        columns = [find_column(table, name) for name in self.names]
        cells = columns[0] if len(columns) == 1 else pa.chunked_array([_from_parts(columns)])
        # Arrow 26 cannot filter string views.
        cells = cells.cast(pa.large_string()) if pa.types.is_string_view(cells.type) else cells
        chunks = (cells if keep is None else cells.filter(pa.array(keep))).chunks
        try:
            timestamps = [pa.nulls(0, pa.timestamp("us")), *map(self._to_timestamps, chunks)]
        except pa.ArrowInvalid as error:
            raise ColumnError(f'Column "{self.name}": {error}: correct or drop these times.') from error
        keys = np.concatenate([chunk.cast(pa.int64()).fill_null(0).to_numpy() for chunk in timestamps])
        bad = np.concatenate([np.asarray(chunk.is_null()) for chunk in timestamps])
        return keys, bad, timestamps[-1].type.unit if not bad.all() else ""

    def _to_timestamps(self, cells: pa.Array) -> pa.Array:
        """Return cells as timestamps; null for unreadable times; ColumnError for other types."""
        kind = cells.type
        if pa.types.is_dictionary(kind):
            return self._to_timestamps(cells.dictionary).take(cells.indices)
        if pa.types.is_timestamp(kind):
            return cells if kind.unit == "ns" else cells.cast(pa.timestamp("us", kind.tz))
        if pa.types.is_date(kind) or pa.types.is_null(kind):
            return cells.cast(pa.timestamp("us"))
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return self._parse(pc.utf8_trim_whitespace(cells.cast(pa.large_string())))
        if _is_number(kind) and self.datetime_format is None:
            return _from_epochs(cells)
        if _is_number(kind):
            integers = cells if pa.types.is_integer(kind) else cells.cast(pa.float64()).cast(pa.int64(), safe=False)
            return self._parse(integers.cast(pa.large_string()))
        raise ColumnError(
            f'column "{self.name}" has type {kind}, which is not a time. Convert the column to timestamps, '
            "dates, numbers or strings first."
        )

    def _parse(self, text: pa.Array) -> pa.Array:
        """Return timestamps for strings; null for unreadable strings."""
        time_format = self.datetime_format or "ISO8601"
        for zone in (None, "UTC") if time_format == "ISO8601" else ():
            # Arrow parses either all strings of a column or none; pandas parses mixed ones.
            with suppress(pa.ArrowInvalid):
                return text.cast(pa.timestamp("us", zone))
        if not set(re.findall("%.", time_format)) <= {"%Y", "%m", "%d", "%H", "%M", "%S"} or time_format == "ISO8601":
            return self._parse_strictly(text, time_format)
        timestamps = pc.strptime(text, format=time_format, unit="us", error_is_null=True)
        # Arrow reads 31 February as 2 March, and "20" as the year 20: parse these again.
        ambiguous = pc.or_(pc.less(pc.day(timestamps), 4), pc.less(pc.year(timestamps), 1000)).fill_null(True)
        return pc.replace_with_mask(timestamps, ambiguous, self._parse_strictly(text.filter(ambiguous), time_format))

    def _parse_strictly(self, text: pa.Array, time_format: str) -> pa.Array:
        """Return timestamps for strings, parsed by pandas; ConfigError for an invalid format."""
        encoded = text.dictionary_encode()
        # pandas reads "now" and "today" as times, and loses early years if one time has nanoseconds.
        distinct = only_where(pc.match_substring_regex(encoded.dictionary, r"\d"), encoded.dictionary)
        if time_format == "ISO8601" or "%f" in time_format:
            distinct = pc.replace_substring_regex(distinct, r"(\.\d{6})\d+", r"\1")
        try:
            # pandas reads names of months and weekdays in the locale of the process.
            if time_format != "ISO8601" and (numeric := numeric_format(time_format)) is not None:
                distinct = pa.array(map(numeric.translate, distinct.to_pylist()), pa.string())
                time_format = numeric.format
            times = pd.to_datetime(pd.Series(distinct.to_pandas()), format=time_format, errors="coerce", utc=True)
        except ValueError as error:
            remedy = 'Use the codes of strptime, such as "%d/%m/%Y %H:%M".'
            raise ConfigError(f'Column "{self.name}": datetime_format {time_format!r}: {error}. {remedy}') from error
        return pa.array(times.dt.as_unit("us")).cast(pa.timestamp("us")).take(encoded.indices)


def read_times(cells: pa.Array, column: str) -> pa.Array:
    """Return cells of a column as microseconds since 1970; ColumnError for a missing or unreadable one."""
    times, bad, unit = _TimeReader(column, None).read(pa.table({column: cells}), None)
    if bad.any():
        raise ColumnError(
            f'Column "{column}": {format_count(int(bad.sum()), "row")} without a readable time: drop them'
        )
    return pa.array(times // 1_000 if unit == "ns" else times)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _from_epochs(cells: pa.Array) -> pa.Array:
    """Return timestamps for numbers since 1970, in seconds to nanoseconds by their size; null if missing."""
    is_integral = pa.types.is_integer(cells.type)
    numbers = cells if is_integral else cells.cast(pa.float64())
    with np.errstate(invalid="ignore"):
        bad = ~(np.abs(numbers.fill_null(0).to_numpy()) < 2.0**63) | np.asarray(cells.is_null())
    numbers = pc.if_else(pa.array(bad), pa.scalar(0, numbers.type), numbers).to_numpy()
    micros = micros_since_epoch(numbers.astype(np.int64) if is_integral else numbers)
    return pa.array(np.rint(micros).astype(np.int64), mask=bad).view(pa.timestamp("us"))


def _from_parts(columns: Sequence[pa.ChunkedArray]) -> pa.Array:
    """Return timestamps for columns of year, month, ...; null unless they are integers of a valid time."""
    fields = [pd.to_numeric(column.to_pandas(), errors="coerce").to_numpy(float, na_value=np.nan) for column in columns]
    bad = np.any([(field != np.rint(field)) | ~np.isfinite(field) for field in fields], axis=0)
    for field, (low, high) in zip(fields, _FIELD_RANGES.values(), strict=False):
        bad |= ~((field >= low) & (field <= high))
    year, month, day, *clock = (np.where(bad, 1, field).astype(np.int64) for field in (*fields, np.ones(len(bad)))[:6])
    months = (year - 1970) * 12 + month - 1
    days = months.astype("datetime64[M]").astype("datetime64[D]") + (day - 1)
    bad |= days.astype("datetime64[M]").astype(np.int64) != months
    seconds = days.astype("datetime64[s]").astype(np.int64)
    for field, size in zip(clock[: len(fields) - 3], (3_600, 60, 1), strict=False):
        seconds += field * size
    return pa.array(seconds * 1_000_000, mask=bad).view(pa.timestamp("us"))


def _recount(reader: _TimeReader, windows: Any, table: pa.Table, keep: Mask | None) -> list[OrderedCounts]:
    keys = reader.read(table, keep)[0]
    return [OrderedCounts.of(keys[keys >> shift == bucket]) for shift, bucket in windows]


@dataclass(frozen=True)
class TimeAssignment:
    """The plan of a split by time for one partition."""

    reader: _TimeReader
    unit: str
    # A time, and how many of the partition's rows with this time precede the cut. None: a cut at the end.
    cuts: tuple[tuple[int, int] | None, ...]
    # The first time after each cut that is not dropped for `gap`. None: no time is dropped.
    starts: tuple[int | None, ...]

    def assign(self, table: pa.Table, keep: Mask | None) -> SplitArray:
        """Return the number of cuts before each row, `DROPPED` within `gap`; ColumnError if times changed."""
        keys, bad, unit = self.reader.read(table, keep)
        if bad.any() or unit not in ("", self.unit):
            raise data_changed_error(f'Column "{self.reader.name}"')
        splits = np.zeros(keys.size, dtype=np.uint8)
        for time, ties in filter(None, self.cuts):
            same = keys == time
            splits += (keys > time) | (same & (np.cumsum(same) > ties))
        for split_code, start in enumerate(self.starts, 1):
            if start is not None:
                splits[(splits == split_code) & (keys < start)] = DROPPED
        return scatter_splits(table, keep, splits)
