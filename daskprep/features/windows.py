"""Windows over the rows before or after a row, by group, across partitions: one mechanism for all types of values."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from daskprep.columns.display import format_count
from daskprep.columns.kernels import valid_mask
from daskprep.columns.permutation import Integers
from daskprep.columns.summaries.token_counts import shard_numbers
from daskprep.errors import ColumnError
from daskprep.features.base import Contract
from daskprep.features.missing import NeighbourImputer
from daskprep.sources.cells import as_text
from daskprep.sources.split.times import SeriesOrder, read_times
from daskprep.storage.checkpoint import checkpointable

FIELDS = ["value", "group", "time"]
_CHUNK_VALUES = 1 << 22  # in memory at a time


class Reach(NamedTuple):
    """The rows that windows have, in their group."""

    before: int = 0  # number of rows before a row; with `span`, no limit
    after: int = 0
    span: int = 0  # microseconds between a row and others that its window has; 0: no limit
    fills: bool = False  # whether missing values are filled from the nearest present rows


@checkpointable
@dataclass(frozen=True)
class WindowBorder:
    """The rows of one partition that windows of other partitions may have, in order, by group."""

    groups: pa.Array
    positions: Integers  # of the groups in the partition
    values: pa.Array
    codes: Integers  # indices of their groups
    times: Integers  # empty if windows need none
    extent: Integers  # first and last time of each group; empty without times
    late: int  # number of rows that are earlier than the row before them in their group

    @property
    def nbytes(self) -> int:
        arrays = (self.groups, self.positions, self.values, self.codes, self.times, self.extent)
        return sum(one.nbytes for one in arrays)

    def split(self, shares: Sequence[range]) -> Iterator[WindowBorder]:
        """Yield the rows of the groups of each share."""
        numbers = share_numbers(self.groups, shares)
        of_rows = numbers[self.codes]
        for number in range(len(shares)):
            chosen, rows = np.flatnonzero(numbers == number), np.flatnonzero(of_rows == number)
            yield WindowBorder(
                self.groups.take(pa.array(chosen)),
                self.positions[chosen],
                self.values.take(pa.array(rows)),
                np.searchsorted(chosen, self.codes[rows]),
                self.times[rows] if len(self.times) else self.times,
                self.extent[chosen] if len(self.extent) else self.extent,
                0 if number else self.late,
            )


@checkpointable
class OuterRows(NamedTuple):
    """Rows of other partitions that windows of a partition have."""

    values: pa.Array
    codes: Integers  # positions of their groups in the partition
    times: Integers
    before: int  # number of rows before the partition, which are first


class SortedRows(NamedTuple):
    """Rows of a partition and around it, sorted by group, and the rows of the partition among them."""

    values: pa.Array
    codes: Integers
    times: Integers
    starts: Integers  # for each row of the partition, the first row of its group
    positions: Integers  # the row itself, or the number of rows before it if it is in no window
    ends: Integers  # the end of its group


def parse_rows(values: pa.Array, feature: Any, others: Sequence[pa.Array], mask: pa.Array | None = None) -> pa.Array:
    """Return structs of value, group and time; `others` has the columns of group and time that the feature reads."""
    named = dict(zip(feature.reads("")[1:], others, strict=False))
    group, time = (named.get(name) for name in (*feature._window_groups, feature.time))
    groups = pa.nulls(len(values)) if group is None else as_text(group)
    times = pa.nulls(len(values)) if time is None else read_times(time, feature.time)
    return pa.StructArray.from_arrays([values, groups, times], FIELDS, mask=mask)


def replace_values(parsed: pa.Array, values: pa.Array, mask: pa.Array | None = None) -> pa.Array:
    """Return the structs of `parse_rows` with other values."""
    return pa.StructArray.from_arrays([values, parsed.field("group"), parsed.field("time")], FIELDS, mask=mask)


class WindowImputer(NeighbourImputer):
    """Replaces each cell by a window over the rows around it."""

    used_in_fit = False
    null_is_group = True  # whether rows without a group are a group
    uses_times = False  # whether windows need times, and not only their order

    def __init__(self, feature: Contract, reach: Reach, time: str | None) -> None:
        self._before, self._reach, self._time = feature._before, reach, time

    @abstractmethod
    def values_of(self, parsed: pa.Array, learned: Any) -> pa.Array:
        """Return the value of each row that windows have."""

    def mask_present(self, values: pa.Array) -> np.ndarray:
        """Return a mask of the values that are not missing."""
        return valid_mask(values)

    def mask_used(self, values: pa.Array) -> np.ndarray:
        """Return a mask of the rows that count in windows."""
        return np.ones(len(values), bool)

    @abstractmethod
    def cut(self, rows: SortedRows, parsed: pa.Array, learned: Any) -> pa.Array:
        """Return the window of each row of a partition."""

    def find_border(self, parsed: pa.Array, learned: Any = None) -> WindowBorder:
        """Return the rows of each group that windows of other partitions may have."""
        return self.find_border_rows(parsed, learned)[1]

    def find_border_rows(self, parsed: pa.Array, learned: Any = None) -> tuple[Integers, WindowBorder]:
        """Return the numbers of the rows of `find_border`, and their values."""
        codes, groups = self._codes_of(parsed)
        values, times = self.values_of(parsed, learned), self._times_of(parsed)
        late, extent = 0, np.empty((0, 2), np.int64)
        if len(times):
            in_group = codes >= 0
            order = SeriesOrder.of(times[in_group], codes[in_group], groups)
            late, extent = order.late, order.ends
        rows = np.flatnonzero(self.mask_used(values) & (codes >= 0))
        rows = rows[np.argsort(codes[rows], kind="stable")]
        firsts, ends = (np.searchsorted(codes[rows], np.arange(len(groups)), side=side) for side in ("left", "right"))
        present = self.mask_present(values)[rows] if self._reach.fills else None
        own = codes[rows], times[rows] if len(times) else times
        kept = np.zeros(len(rows), bool)
        if self._reach.before or self._reach.fills:
            kept[expand_ranges(*self._nearest(own, firsts, ends, extent[:, 1:], present))] = True
        if self._reach.after or self._reach.fills:
            kept[expand_ranges(*self._nearest(own, firsts, ends, extent[:, :1], present, ahead=True))] = True
        rows = rows[kept]
        kept_times = times[rows] if self.uses_times else times[:0]
        numbers = np.arange(len(groups))
        return rows, WindowBorder(groups, numbers, values.take(pa.array(rows)), codes[rows], kept_times, extent, late)

    def compute_border_values(self, borders: Sequence[WindowBorder]) -> list[Any]:
        """Return for each partition the rows of other partitions, or of `with_history`, that its windows have."""
        borders = [*self._before, *borders]
        self.check_order(self.count_late(borders))
        return list(self.outer_rows(borders, len(self._before)))

    def join_borders(self, borders: Sequence[WindowBorder]) -> WindowBorder:
        """Return the rows of all borders that later partitions may have."""
        names = pa.concat_arrays([border.groups for border in borders]).dictionary_encode(null_encoding="encode")
        codes, numbers, first = names.indices.to_numpy(), np.arange(len(names.dictionary)), borders[0]
        extent = ends = np.concatenate([border.extent for border in borders])
        if len(ends):
            extent = np.empty((len(numbers), 2), np.int64)
            extent[codes[::-1], 0], extent[codes, 1] = ends[::-1, 0], ends[:, 1]  # the last of several is assigned
        later = WindowBorder(
            names.dictionary, numbers, first.values[:0], numbers[:0], first.times[:0], extent[:, [1, 1]], 0
        )
        [outer] = self.outer_rows([*borders, later], len(borders))
        late = self.count_late(borders)
        return WindowBorder(names.dictionary, numbers, outer.values, outer.codes, outer.times, extent, late)

    def count_late(self, borders: Sequence[WindowBorder]) -> int:
        """Return the number of rows that are earlier than the row before them in their group."""
        orders = [SeriesOrder(border.late, border.groups, border.extent) for border in borders if len(border.extent)]
        return SeriesOrder.count_late(orders) if orders else 0

    def check_order(self, late: int) -> None:
        """Raise ColumnError for rows that are late."""
        if late:
            raise ColumnError(
                f'the times of "{self._time}" go back at {format_count(late, "row")} within a group, so the '
                "rows before a row are not its past: sort the data by time first"
            )

    def outer_rows(self, borders: Sequence[WindowBorder], skip: int) -> Iterator[OuterRows]:
        """Yield the rows of other partitions for each partition but the first `skip`."""
        names = pa.concat_arrays([border.groups for border in borders]).dictionary_encode(null_encoding="encode")
        known = np.split(
            names.indices.to_numpy().astype(np.int64), np.cumsum([len(border.groups) for border in borders])[:-1]
        )
        codes = np.concatenate([own[border.codes] for own, border in zip(known, borders, strict=True)])
        parts = np.repeat(np.arange(len(borders)), [len(border.codes) for border in borders])
        order = np.argsort(codes, kind="stable")
        keys, rows = (codes * len(borders) + parts)[order], (codes[order], _concat(borders, "times", order))
        values = pa.concat_arrays([border.values for border in borders]).take(pa.array(order))
        present = self.mask_present(values) if self._reach.fills else None
        for part, groups in list(enumerate(known))[skip:]:
            # Sorted positions take a fraction of the time, since their neighbors are in the processor's cache.
            by_code, bounds = np.argsort(groups), np.empty((4, len(groups)), np.int64)
            for bound, at in zip(bounds, (0, part, part + 1, len(borders)), strict=True):
                bound[by_code] = np.searchsorted(keys, groups[by_code] * len(borders) + at)
            extent, none = borders[part].extent, (bounds[0], bounds[0])
            before = after = none
            if self._reach.before or self._reach.fills:
                before = self._nearest(rows, bounds[0], bounds[1], extent[:, :1], present)
            if self._reach.after or self._reach.fills:
                after = self._nearest(rows, bounds[2], bounds[3], extent[:, 1:], present, ahead=True)
            taken = [expand_ranges(starts, ends) for starts, ends in (before, after)]
            owners = [np.repeat(np.arange(len(one)) % max(len(groups), 1), ends - one) for one, ends in (before, after)]
            both = np.concatenate(taken)
            times = rows[1][both] if len(rows[1]) else rows[1]
            positions = borders[part].positions[np.concatenate(owners)]
            yield OuterRows(values.take(pa.array(both)), positions, times, len(taken[0]))

    def complete(self, parsed: pa.Array, border_value: OuterRows | None, learned: Any = None) -> pa.Array:
        """Return the window of each row."""
        values, (codes, _) = self.values_of(parsed, learned), self._codes_of(parsed)
        times = self._times_of(parsed) if self.uses_times else np.zeros(0, np.int64)
        first = 0
        if border_value is not None:
            outer, outer_codes, outer_times, first = border_value
            values = pa.concat_arrays([outer.slice(0, first), values, outer.slice(first)])
            codes = np.concatenate([outer_codes[:first], codes, outer_codes[first:]])
            times = np.concatenate([outer_times[:first], times, outer_times[first:]])
        by_group = np.argsort(codes, kind="stable")
        used = (self.mask_used(values) & (codes >= 0))[by_group]
        number = np.append(0, np.cumsum(used))  # of rows in windows before each row
        sorted_at = np.empty(len(codes), np.int64)
        sorted_at[by_group] = np.arange(len(codes))
        own = sorted_at[first : first + len(parsed)]
        sorted_codes, rows = codes[by_group], by_group[used]
        edges = number[np.searchsorted(sorted_codes, np.arange(codes.max(initial=-1) + 2))]
        starts, ends = (edges[codes[first : first + len(parsed)] + one] for one in (0, 1))
        alone = codes[first : first + len(parsed)] < 0
        starts[alone] = ends[alone] = number[own[alone]]
        return self.cut(
            SortedRows(
                values.take(pa.array(rows)),
                codes[rows],
                times[rows] if len(times) else times,
                starts,
                number[own],
                ends,
            ),
            parsed,
            learned,
        )

    def complete_shares(
        self, parsed: pa.Array, shares: Sequence[range], read: Callable[[int], OuterRows], learned: Any
    ) -> pa.Array:
        """Return the window of each row; ``read(number)`` returns the rows of a share of the groups."""
        codes, groups = self._codes_of(parsed)
        numbers = share_numbers(groups, shares)
        of_rows = np.append(numbers, 0)[codes]
        completed, order = [], np.argsort(of_rows, kind="stable")
        for number, rows in enumerate(np.split(order, np.cumsum(np.bincount(of_rows, minlength=len(shares)))[:-1])):
            if len(rows):
                outer, chosen = read(number), np.flatnonzero(numbers == number)
                outer = outer._replace(codes=np.searchsorted(chosen, outer.codes))
                completed.append(self.complete(parsed.take(pa.array(rows)), outer, learned))
        return pa.concat_arrays(completed).take(pa.array(np.argsort(order)))

    def _codes_of(self, parsed: pa.Array) -> tuple[Integers, pa.Array]:
        """Return the position of each row's group among the distinct groups, -1 without one, and their names."""
        groups = parsed.field("group")
        if pa.types.is_null(groups.type):
            return np.zeros(len(parsed), np.int64), pa.array([""] * min(len(parsed), 1), pa.string())
        encoded = groups.dictionary_encode(null_encoding="encode" if self.null_is_group else "mask")
        return encoded.indices.fill_null(-1).to_numpy().astype(np.int64), encoded.dictionary

    def _times_of(self, parsed: pa.Array) -> Integers:
        times = parsed.field("time")
        return np.zeros(0, np.int64) if pa.types.is_null(times.type) else times.to_numpy()

    def _nearest(
        self,
        rows: tuple[Integers, Integers],
        begins: Integers,
        ends: Integers,
        at: Integers,
        present: np.ndarray | None,
        *,
        ahead: bool = False,
    ) -> tuple[Integers, Integers]:
        """Return ranges of the rows next to the end of each range, or with `ahead` next to its beginning.

        `rows` are the codes and times of all, sorted; `at` is the time from which a span is measured. The first
        present row behind the nearest ones is a separate range.
        """
        codes, times = rows
        if self._reach.span:
            own = codes.take(begins, mode="clip") if len(codes) else begins
            located = locate(codes, times, own, at[:, 0] + (self._reach.span if ahead else -self._reach.span))
            located = np.clip(located, begins, ends)
        else:
            count = self._reach.after if ahead else self._reach.before
            located = np.minimum(begins + count, ends) if ahead else np.maximum(ends - count, begins)
        near = (begins, located) if ahead else (located, ends)
        if present is None or not len(present):
            return near
        numbers = np.arange(len(present))
        if ahead:
            fillers = np.minimum.accumulate(np.where(present, numbers, len(present))[::-1])[::-1]
            fillers = np.append(fillers, len(present))[located]
            exists = fillers < ends
            firsts = np.where(exists, fillers, located)
            return np.concatenate([near[0], firsts]), np.concatenate([near[1], firsts + exists])
        fillers = np.append(-1, np.maximum.accumulate(np.where(present, numbers, -1)))[located]
        exists = fillers >= begins
        firsts = np.where(exists, fillers, located)
        return np.concatenate([firsts, near[0]]), np.concatenate([firsts + exists, near[1]])


def share_numbers(groups: pa.Array, shares: Sequence[range]) -> Integers:
    """Return the position of the range of shards that has each group."""
    stops = [one.stop for one in shares]
    numbers: Integers = np.searchsorted(stops, shard_numbers(groups.fill_null("")), side="right")
    return numbers


def locate(codes: Integers, times: Integers, groups: Integers, at: Integers) -> Integers:
    """Return the number of rows, sorted by group and time, that are in an earlier group, or not later than a time."""
    _, ranks = np.unique(np.concatenate([times, at]), return_inverse=True)  # of times: keys are then below 2**63
    size = len(ranks) + 1
    keys, wanted = codes * size + ranks[: len(times)], groups * size + ranks[len(times) :]
    located: Integers = np.searchsorted(keys, wanted, side="right")
    return located


def expand_ranges(starts: Integers, ends: Integers) -> Integers:
    """Return the integers of all ranges, one range after another."""
    lengths = ends - starts
    firsts = np.cumsum(lengths) - lengths
    expanded: Integers = np.arange(lengths.sum()) + np.repeat(starts - firsts, lengths)
    return expanded


def iterate_chunks(lengths: np.ndarray) -> Iterator[slice]:
    """Yield slices of rows that have a limited number of values together."""
    ends = np.cumsum(lengths)
    first = 0
    while first < len(lengths):
        before = ends[first - 1] if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, before + _CHUNK_VALUES, side="right")))
        yield slice(first, stop)
        first = stop


def _concat(borders: Sequence[WindowBorder], name: str, order: Integers) -> Integers:
    joined: Integers = np.concatenate([getattr(border, name) for border in borders])
    return joined[order] if len(joined) else joined
