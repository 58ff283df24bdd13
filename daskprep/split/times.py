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
from daskprep.permutation import Integers
from daskprep.serving.date_words import numeric_format
from daskprep.split.base import DEFAULT_SHARES, DROPPED, MOST_EXAMPLES, Assigned, ReadAgain, Shares, Splitter, spread
from daskprep.storage.kept import keepable


@with_parameters
class DatetimeSplit(Splitter):
    """Split rows by time: train on the oldest, validate on the next, test on the newest, in exact numbers.

    Rows of the same time are ordered by row number. A time that is missing or cannot be read raises
    `RejectedValueError` with the values and rows.

    Parameters
    ----------
    column : str
        Column of timestamps, dates, or strings. Times without a zone are UTC; strings count to the microsecond.
    probabilities : sequence of float
        Shares of train, validation and test, or of train and test; they add up to 1.
    datetime_format : str or None
        Format of strings in the codes of `strptime`. None: ISO 8601.
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
    counts_column = True

    column: str
    probabilities: Shares = DEFAULT_SHARES
    datetime_format: str | None = None
    gap: str | timedelta | None = None

    def validate(self) -> None:
        super().validate()
        form = self.datetime_format
        if form is not None and not (isinstance(form, str) and "%" in form):
            raise self._error("datetime_format", "None or a format", 'Give for instance "%d/%m/%Y %H:%M".')
        self._gap_nanoseconds()

    def _gap_nanoseconds(self) -> int:
        gap = self.gap
        with suppress(TypeError, ValueError):
            # pandas takes a number without a unit for nanoseconds.
            if gap is None or isinstance(gap, timedelta | np.timedelta64) or re.search("[A-Za-z:]", gap):
                nanoseconds = 0 if gap is None else pd.Timedelta(gap).as_unit("ns").value
                if nanoseconds >= 0:
                    return int(nanoseconds)
        raise self._error("gap", "a duration that is not negative, or None", 'Give for instance "7 days".')

    def _parameters(self) -> dict[str, Any]:
        given = super()._parameters()
        if self.gap is None:  # as in splits from before there was one
            del given["gap"]
        elif not isinstance(self.gap, str):
            given["gap"] = str(pd.Timedelta(self.gap))
        return given

    @property
    def leaves_out(self) -> str | None:
        return None if self.gap is None else f"within the gap of {self.gap} behind the split before"

    def census(self, table: pa.Table, keep: Mask | None = None) -> TimeCounts:
        keys, bad, unit = _Times(self.column, self.datetime_format).read(table, keep)
        rows = np.flatnonzero(bad) if keep is None else np.flatnonzero(keep)[bad]
        cells = find_column(table, self.column)
        examples = ((row, _shown(cells[row])) for row in rows[:MOST_EXAMPLES].tolist())
        return TimeCounts(table.num_rows, unit, OrderedCounts.of(keys[~bad]), rows.size, tuple(examples))

    def plan(self, censuses: Sequence[TimeCounts], read_again: ReadAgain = None) -> list[TimeAssignment]:
        return cut_times(self, censuses, self._ends, read_again, self._gap_nanoseconds())


def cut_times(
    split: DatetimeSplit,
    censuses: Sequence[TimeCounts],
    ends_of: Callable[[int], Sequence[int]],
    read_again: ReadAgain,
    gap: int = 0,
) -> list[TimeAssignment]:
    """Cut the rows of all partitions in order of time, where ``ends_of(rows)`` says.

    Rows less than `gap` nanoseconds behind the last one before a cut are in no piece.
    """
    whole = reduce(add, censuses, TimeCounts(0, "", OrderedCounts.of(np.zeros(0, dtype=np.int64))))
    wanted = f"a time in the format {split.datetime_format or 'ISO 8601'}"
    if whole.bad:
        raise rejected_rows(split.column, whole.bad, whole.examples, wanted)
    if len({census.unit for census in censuses} - {""}) > 1:
        raise ColumnError(f'Column "{split.column}" has nanoseconds in some partitions: use one type.')
    times = _Times(split.column, split.datetime_format)
    ends = ends_of(rows := int(whole.counts.counts.sum()))
    inner = {end for end in ends if end < rows}
    last = {end - 1 for end in inner} if gap else set()
    counts = [census.counts for census in censuses]
    again: Any = read_again  # there if a census may not hold all times
    cuts = find_ranks(inner | last, counts, lambda windows: again(partial(_recount, times, windows)))
    per_partition = zip(*(cuts.get(end, [None] * len(censuses)) for end in ends), strict=True)
    ticks = gap if whole.unit == "ns" else -(-gap // 1_000)
    starts = tuple(cuts[end - 1][0][0] + ticks if gap and end in inner else None for end in ends)
    return [TimeAssignment(times, whole.unit, pair, starts) for pair in per_partition]


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

    column: str
    datetime_format: str | None

    def read(self, table: pa.Table, keep: Mask | None) -> tuple[Integers, Mask, str]:
        """Return the times of the kept rows, which cannot be read, and the unit ("" without times)."""
        cells = find_column(table, self.column)
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
        raise ColumnError(
            f'Column "{self.column}" holds {kind}, which is not a time. Convert the column to timestamps, '
            "dates or strings first."
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
        distinct = pc.if_else(pc.match_substring_regex(encoded.dictionary, r"\d"), encoded.dictionary, None)
        if form == "ISO8601" or "%f" in form:
            distinct = pc.replace_substring_regex(distinct, r"(\.\d{6})\d+", r"\1")
        try:
            # pandas reads names by the locale of the process.
            if form != "ISO8601" and (numeric := numeric_format(form)) is not None:
                distinct, form = pa.array(map(numeric.translate, distinct.to_pylist()), pa.string()), numeric.format
            times = pd.to_datetime(pd.Series(distinct.to_pandas()), format=form, errors="coerce", utc=True)
        except ValueError as error:
            remedy = 'Use the codes of strptime, for instance "%d/%m/%Y %H:%M".'
            raise ConfigError(f'Column "{self.column}": datetime_format {form!r}: {error}. {remedy}') from error
        return pa.array(times.dt.as_unit("us")).cast(pa.timestamp("us")).take(encoded.indices)


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
            raise data_changed(f'Column "{self.times.column}"')
        splits = np.zeros(keys.size, dtype=np.uint8)
        for time, ties in filter(None, self.cuts):
            same = keys == time
            splits += (keys > time) | (same & (np.cumsum(same) > ties))
        for place, start in enumerate(self.starts, 1):
            if start is not None:
                splits[(splits == place) & (keys < start)] = DROPPED
        return spread(table, keep, splits)
