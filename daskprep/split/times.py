"""The split by time: the past for training, what came next for validation and testing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.classes import Mask, OrderedCounts, data_changed, find_column, find_ranks, rejected_rows
from daskprep.described import with_parameters
from daskprep.errors import ColumnError, ConfigError
from daskprep.kernels import only_where
from daskprep.permutation import Integers
from daskprep.serving.date_words import numeric_format
from daskprep.serving.dates import micros_since_epoch
from daskprep.split.base import DEFAULT_SHARES, DROPPED, MOST_EXAMPLES, Assigned, ReadAgain, Shares, Splitter, spread
from daskprep.storage.kept import keepable

# Of what several columns hold: the least and the largest number.
_PARTS = {"year": (1, 9999), "month": (1, 12), "day": (1, 31), "hour": (0, 23), "minute": (0, 59), "second": (0, 59)}


class TimeSplitter(Splitter):
    """What splits in order of time share."""

    counts_column = True

    column: str | list[str]  # type: ignore[assignment]
    datetime_format: str | None
    gap: str | timedelta | None

    def _check_column(self) -> None:
        names = self.column
        if isinstance(names, str):
            return super()._check_column()
        if not (isinstance(names, list) and 2 <= len(names) <= len(_PARTS) and all(map(_is_name, names))):
            parts = ", ".join(_PARTS)
            raise self._error("column", "the name of a column, or those of two to six", f"Give columns of {parts}.")
        if self.datetime_format is not None:
            raise ConfigError(f"{type(self).__name__}: several columns hold numbers: leave out datetime_format.")
        return None

    def validate(self) -> None:
        super().validate()
        form = self.datetime_format
        if form is not None and not (isinstance(form, str) and "%" in form):
            raise self._error("datetime_format", "None or a format", 'Give for instance "%d/%m/%Y %H:%M".')
        self._nanoseconds("gap")

    def _nanoseconds(self, parameter: str) -> int:
        gap = getattr(self, parameter)
        with suppress(TypeError, ValueError):
            # pandas takes a number without a unit for nanoseconds.
            if gap is None or isinstance(gap, timedelta | np.timedelta64) or re.search("[A-Za-z:]", gap):
                nanoseconds = 0 if gap is None else pd.Timedelta(gap).as_unit("ns").value
                if nanoseconds >= 0:
                    return int(nanoseconds)
        raise self._error(parameter, "a duration that is not negative, or None", 'Give for instance "7 days".')

    def _parameters(self) -> dict[str, Any]:
        given = super()._parameters()
        for name in {"gap", "window"} & given.keys():
            if given[name] is None:  # as in splits from before there was one
                del given[name]
            elif not isinstance(given[name], str):
                given[name] = str(pd.Timedelta(given[name]))
        return given

    def census(self, table: pa.Table, keep: Mask | None = None) -> TimeCounts:
        times = _Times(self.column, self.datetime_format)
        keys, bad, unit = times.read(table, keep)
        rows = np.flatnonzero(bad) if keep is None else np.flatnonzero(keep)[bad]
        cells = [find_column(table, name) for name in times.names]
        if self.gap is not None and self.datetime_format is None and len(cells) == 1 and _is_number(cells[0].type):
            self._check_unit(keys[~bad])
        examples = ((row, ", ".join(_shown(one[row]) for one in cells)) for row in rows[:MOST_EXAMPLES].tolist())
        return TimeCounts(table.num_rows, unit, OrderedCounts.of(keys[~bad]), rows.size, tuple(examples))

    def _check_unit(self, keys: Integers) -> None:
        if keys.size and np.abs(keys).max() < 86_400 * 1_000_000:
            raise ConfigError(
                f'{type(self).__name__}: the numbers of column "{self.column}" are times of one day, 1970-01-01, if '
                'they count seconds: a gap needs datetime_format, such as "%Y", if they are something else'
            )


@with_parameters
class DatetimeSplit(TimeSplitter):
    """Split rows by time: train on the oldest, validate on the next, test on the newest, in exact numbers.

    Rows of the same time are ordered by row number. A time that is missing or cannot be read raises
    `RejectedValueError` with the values and rows.

    Parameters
    ----------
    column : str or list of str
        Column of timestamps, dates, strings or numbers. Times without a zone are UTC; strings count to the microsecond.
        Numbers count seconds since 1970, or milliseconds to nanoseconds by their size, as for `Date`. Several columns
        hold year, month, day, hour, minute and second as numbers, or the first two to five of these.
    probabilities : sequence of float
        Shares of train, validation and test, or of train and test; they add up to 1.
    datetime_format : str or None
        Format of strings in the codes of `strptime`. None: ISO 8601. Numbers are then read as text: "%Y" reads 2021.
    gap : str, timedelta or None
        Rows less than this after the last training row, or after the last validation row, belong to no split. Text has
        a unit, such as "7 days" or "12h". Shares are those before rows are left out.

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
    probabilities: Shares = DEFAULT_SHARES
    datetime_format: str | None = None
    gap: str | timedelta | None = None

    @property
    def leaves_out(self) -> str | None:
        return None if self.gap is None else f"within the gap of {self.gap} behind the split before"

    def plan(self, censuses: Sequence[TimeCounts], read_again: ReadAgain = None) -> list[TimeAssignment]:
        return cut_times(self, censuses, self._ends, read_again, self._nanoseconds("gap"))


def cut_times(
    split: TimeSplitter,
    censuses: Sequence[TimeCounts],
    ends_of: Callable[[int], Sequence[int]],
    read_again: ReadAgain,
    gap: int = 0,
) -> list[TimeAssignment]:
    """Cut the rows of all partitions in order of time, where ``ends_of(rows)`` says.

    Rows less than `gap` nanoseconds behind the last one before a cut are in no piece.
    """
    ends: Sequence[int] = ()

    def ranks_of(rows: int) -> set[int]:
        nonlocal ends
        ends = ends_of(rows)
        inner = {end for end in ends if end < rows}
        return inner | ({end - 1 for end in inner} if gap else set())

    times, unit, rows, cuts = find_times(split, censuses, ranks_of, read_again)
    per_partition = zip(*(cuts.get(end, [None] * len(censuses)) for end in ends), strict=True)
    ticks = gap if unit == "ns" else -(-gap // 1_000)
    starts = tuple(cuts[end - 1][0][0] + ticks if gap and end < rows else None for end in ends)
    return [TimeAssignment(times, unit, pair, starts) for pair in per_partition]


def find_times(
    split: TimeSplitter, censuses: Sequence[TimeCounts], ranks_of: Callable[[int], set[int]], read_again: ReadAgain
) -> tuple[_Times, str, int, dict[int, list[tuple[int, int]]]]:
    """Return how times are read, their unit, the number of rows, and where the ranks lie that ``ranks_of(rows)`` names.

    Raise an error for times that cannot be read.
    """
    whole = reduce(add, censuses, TimeCounts(0, "", OrderedCounts.of(np.zeros(0, dtype=np.int64))))
    times = _Times(split.column, split.datetime_format)
    parts = f"numbers of {', '.join(list(_PARTS)[: len(times.names)])}"
    wanted = f"a time in the format {split.datetime_format or 'ISO 8601'}" if len(times.names) == 1 else parts
    if whole.bad:
        raise rejected_rows(times.name, whole.bad, whole.examples, wanted)
    if len({census.unit for census in censuses} - {""}) > 1:
        raise ColumnError(f'Column "{times.name}" has nanoseconds in some partitions: use one type.')
    rows = int(whole.counts.counts.sum())
    counts = [census.counts for census in censuses]
    again: Any = read_again  # there if a census may not hold all times
    cuts = find_ranks(ranks_of(rows), counts, lambda windows: again(partial(_recount, times, windows)))
    return times, whole.unit, rows, cuts


@keepable
@dataclass(frozen=True, eq=False)
class TimeCounts:
    """The times of a partition's kept rows, and the rows whose time cannot be read; `+` in row order."""

    rows: int
    unit: str
    counts: OrderedCounts
    bad: int = 0
    examples: tuple[tuple[int, str], ...] = ()

    def __add__(self, other: TimeCounts) -> TimeCounts:
        later = ((self.rows + row, value) for row, value in other.examples)
        examples = (*self.examples, *later)[:MOST_EXAMPLES]
        counts, bad = self.counts + other.counts, self.bad + other.bad
        return TimeCounts(self.rows + other.rows, self.unit or other.unit, counts, bad, examples)


@dataclass(frozen=True)
class _Times:
    """Reads the times of a column as integers: nanoseconds for timestamp[ns], else microseconds."""

    column: str | list[str]
    datetime_format: str | None

    @property
    def names(self) -> list[str]:
        return [self.column] if isinstance(self.column, str) else self.column

    @property
    def name(self) -> str:
        return ", ".join(self.names)

    def read(self, table: pa.Table, keep: Mask | None) -> tuple[Integers, Mask, str]:
        """Return the times of the kept rows, which cannot be read, and the unit ("" without times)."""
        columns = [find_column(table, name) for name in self.names]
        cells = columns[0] if len(columns) == 1 else pa.chunked_array([_from_parts(columns)])
        # Arrow 26 cannot filter string views.
        cells = cells.cast(pa.large_string()) if pa.types.is_string_view(cells.type) else cells
        chunks = (cells if keep is None else cells.filter(pa.array(keep))).chunks
        stamps = [pa.nulls(0, pa.timestamp("us")), *map(self._stamps, chunks)]
        keys = np.concatenate([part.cast(pa.int64()).fill_null(0).to_numpy() for part in stamps])
        bad = np.concatenate([np.asarray(part.is_null()) for part in stamps])
        return keys, bad, stamps[-1].type.unit if not bad.all() else ""

    def _stamps(self, cells: pa.Array) -> pa.Array:
        kind = cells.type
        if pa.types.is_dictionary(kind):
            return self._stamps(cells.dictionary).take(cells.indices)
        if pa.types.is_timestamp(kind):
            return cells if kind.unit == "ns" else _in_microseconds(cells, pa.timestamp("us", kind.tz))
        if pa.types.is_date(kind) or pa.types.is_null(kind):
            return _in_microseconds(cells, pa.timestamp("us"))
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return self._parse(pc.utf8_trim_whitespace(cells.cast(pa.large_string())))
        if _is_number(kind) and self.datetime_format is None:
            return _from_epochs(cells)
        if _is_number(kind):
            whole = cells if pa.types.is_integer(kind) else cells.cast(pa.float64()).cast(pa.int64(), safe=False)
            return self._parse(whole.cast(pa.large_string()))
        raise ColumnError(
            f'column "{self.name}" holds {kind}, which is not a time. Convert the column to timestamps, '
            "dates, numbers or strings first."
        )

    def _parse(self, text: pa.Array) -> pa.Array:
        form = self.datetime_format or "ISO8601"
        for zone in (None, "UTC") if form == "ISO8601" else ():
            # Arrow reads a column as a whole or not at all; a mixed one is left to pandas.
            with suppress(pa.ArrowInvalid):
                return text.cast(pa.timestamp("us", zone))
        if not set(re.findall("%.", form)) <= {"%Y", "%m", "%d", "%H", "%M", "%S"} or form == "ISO8601":
            return self._parse_strictly(text, form)
        stamps = pc.strptime(text, format=form, unit="us", error_is_null=True)
        # Arrow takes 31 February for 2 March, and "20" for the year 20: have these read again.
        doubtful = pc.or_(pc.less(pc.day(stamps), 4), pc.less(pc.year(stamps), 1000)).fill_null(True)
        return pc.replace_with_mask(stamps, doubtful, self._parse_strictly(text.filter(doubtful), form))

    def _parse_strictly(self, text: pa.Array, form: str) -> pa.Array:
        encoded = text.dictionary_encode()
        # pandas takes "now" and "today" for times, and loses early years if one time has nanoseconds.
        distinct = only_where(pc.match_substring_regex(encoded.dictionary, r"\d"), encoded.dictionary)
        if form == "ISO8601" or "%f" in form:
            distinct = pc.replace_substring_regex(distinct, r"(\.\d{6})\d+", r"\1")
        try:
            # pandas reads names by the locale of the process.
            if form != "ISO8601" and (numeric := numeric_format(form)) is not None:
                distinct, form = pa.array(map(numeric.translate, distinct.to_pylist()), pa.string()), numeric.format
            times = pd.to_datetime(pd.Series(distinct.to_pandas()), format=form, errors="coerce", utc=True)
        except ValueError as error:
            remedy = 'Use the codes of strptime, for instance "%d/%m/%Y %H:%M".'
            raise ConfigError(f'Column "{self.name}": datetime_format {form!r}: {error}. {remedy}') from error
        return pa.array(times.dt.as_unit("us")).cast(pa.timestamp("us")).take(encoded.indices)


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(name)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _from_epochs(cells: pa.Array) -> pa.Array:
    """Return the times that numbers count since 1970, null where they are beyond 64 bits."""
    whole = pa.types.is_integer(cells.type)
    numbers = cells if whole else cells.cast(pa.float64())
    with np.errstate(invalid="ignore"):
        bad = ~(np.abs(numbers.fill_null(0).to_numpy()) < 2.0**63) | np.asarray(cells.is_null())
    numbers = pc.if_else(pa.array(bad), pa.scalar(0, numbers.type), numbers).to_numpy()
    micros = micros_since_epoch(numbers.astype(np.int64) if whole else numbers)
    return pa.array(np.rint(micros).astype(np.int64), mask=bad).view(pa.timestamp("us"))


def _from_parts(columns: Sequence[pa.ChunkedArray]) -> pa.Array:
    """Return the times whose year, month, day, hour, minute and second are in columns; null where there is none."""
    parts = [pd.to_numeric(column.to_pandas(), errors="coerce").to_numpy(float, na_value=np.nan) for column in columns]
    bad = np.any([(part != np.rint(part)) | ~np.isfinite(part) for part in parts], axis=0)
    for part, (low, high) in zip(parts, _PARTS.values(), strict=False):
        bad |= ~((part >= low) & (part <= high))
    year, month, day, *clock = (np.where(bad, 1, part).astype(np.int64) for part in (*parts, np.ones(len(bad)))[:6])
    months = (year - 1970) * 12 + month - 1
    days = months.astype("datetime64[M]").astype("datetime64[D]") + (day - 1)
    bad |= days.astype("datetime64[M]").astype(np.int64) != months
    seconds = days.astype("datetime64[s]").astype(np.int64)
    for part, size in zip(clock[: len(parts) - 3], (3_600, 60, 1), strict=False):
        seconds += part * size
    return pa.array(seconds * 1_000_000, mask=bad).view(pa.timestamp("us"))


def _shown(cell: pa.Scalar) -> str:
    try:
        return "(missing)" if (value := cell.as_py()) is None else f'"{value}"'
    except (OverflowError, ValueError):  # beyond the times of Python
        return f"{cell.value:,} of {cell.type}"


def _in_microseconds(cells: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return times in microseconds, null where they are beyond 64 bits."""
    try:
        return cells.cast(kind)
    except pa.ArrowInvalid:
        unit = "d" if pa.types.is_date32(cells.type) else getattr(cells.type, "unit", "ms")
        counts = cells.cast(pa.int32() if unit == "d" else pa.int64()).cast(pa.int64())
        most = ((1 << 63) - 1) // {"d": 86_400_000_000, "s": 1_000_000}.get(unit, 1_000)
        near = pc.and_(pc.greater_equal(counts, -most), pc.less_equal(counts, most))
        return pc.if_else(near, cells, None).cast(kind)


def _recount(times: _Times, windows: Any, table: pa.Table, keep: Mask | None) -> list[OrderedCounts]:
    keys = times.read(table, keep)[0]
    return [OrderedCounts.of(keys[keys >> shift == bucket]) for shift, bucket in windows]


@dataclass(frozen=True)
class TimeAssignment:
    """Cuts, None at the end: a time, and how many of the partition's rows of that time come before.

    With a gap, `starts` are the first times behind each cut that are not left out.
    """

    times: _Times
    unit: str
    cuts: tuple[tuple[int, int] | None, ...]
    starts: tuple[int | None, ...]

    def assign(self, table: pa.Table, keep: Mask | None) -> Assigned:
        keys, bad, unit = self.times.read(table, keep)
        if bad.any() or unit not in ("", self.unit):
            raise data_changed(f'Column "{self.times.name}"')
        splits = np.zeros(keys.size, dtype=np.uint8)
        for time, ties in filter(None, self.cuts):
            same = keys == time
            splits += (keys > time) | (same & (np.cumsum(same) > ties))
        for place, start in enumerate(self.starts, 1):
            if start is not None:
                splits[(splits == place) & (keys < start)] = DROPPED
        return spread(table, keep, splits)
