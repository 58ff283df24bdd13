"""The order of a split's rows in an epoch: a pure function of seed, epoch and row numbers.

The blocks of a split are permuted, and so are the rows within each block. This sequence of all rows is cut into
streams: contiguous ranges whose lengths differ by at most one row. Rows are dealt round-robin: the first row of each
stream, then the second row of each, until the streams are exhausted. A global batch consists of the next rows dealt,
sorted by stream. A rank takes a contiguous share of every global batch, so ranks read disjoint blocks except at the
borders of their shares. Ranks, threads and workers determine only where a row is processed, never its batch, unless
fewer rows than ranks are left for the last batch.

By length, groups of consecutive batches are rearranged. The rows that a stream contributes to a group are sorted by
length and cut into a part for each batch, and a batch gets the same part of every stream. No row leaves its stream, so
that ranks read the same blocks as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from daskprep.loader.sampling import Sampling
from daskprep.permutation import Integers, make_key, permute

_PREFERRED_STREAMS = 16
MIN_STREAMS = 8
MAX_STREAMS = 64
_MAX_BLOCKS = 256  # a stream keeps a block in memory
# A permutation of fewer rows costs as much as one of this size.
_MIN_PERMUTED_ROWS = 4096
_MAX_GROUPS = 256
# Blocks of a stream in a group of similar lengths, which all are in memory: fewer leave more padding.
_GROUPED_BLOCKS = 2


def default_streams(batch_size: int) -> int:
    """Return the number of streams that are mixed in a batch: the smallest divisor of `batch_size` from 16 on.

    If that divisor exceeds 64, return the largest divisor from 8 to 64 if there is one. Without any divisor from 8 to
    256, return 16; a batch then has unequal numbers of rows per stream. For batches of less than 16 rows, return
    `batch_size`.
    """
    divisors = [streams for streams in range(1, batch_size + 1) if batch_size % streams == 0]
    preferred = next((streams for streams in divisors if streams >= _PREFERRED_STREAMS), batch_size)
    fallback = max(streams for streams in divisors if streams <= MAX_STREAMS)
    if preferred > MAX_STREAMS and fallback >= MIN_STREAMS:
        return fallback
    return preferred if preferred <= _MAX_BLOCKS else _PREFERRED_STREAMS


@dataclass(frozen=True)
class EpochBlocks:
    """The sequence of all rows of an epoch, block after block."""

    sizes: Integers  # rows that each block yields in the epoch, by block number
    block_rows: int  # rows of a block on disk; the last block may have fewer
    seed: int
    epoch: int
    shuffle: bool
    sampling: Sampling | None = None  # selects and repeats the rows of each block; None: each row once
    # Row number of the first row of each block; None: only the last block has less than `block_rows` rows.
    firsts: Integers | None = None

    @cached_property
    def rows(self) -> int:
        return int(self.starts[-1])

    @cached_property
    def order(self) -> Integers:
        """Block numbers in the order of the epoch, permuted by seed and epoch if rows are shuffled."""
        block_numbers = np.arange(len(self.sizes))
        if not self.shuffle:
            return block_numbers
        order = np.empty_like(block_numbers)
        order[permute(block_numbers, len(block_numbers), make_key(self.seed, "blocks", self.epoch))] = block_numbers
        return order

    @cached_property
    def starts(self) -> Integers:
        """Start of each block in the sequence of rows, in the order of the epoch, and the end of the last block."""
        return np.concatenate(([0], np.cumsum(self.sizes[self.order])))

    def number_at(self, block_position: int) -> int:
        """Return the number in the split of the block at `block_position`, in the order of the epoch."""
        return int(self.order[block_position])

    def first_row_at(self, block_position: int) -> int:
        """Return the row number of the first row of the block at `block_position`."""
        block = self.number_at(block_position)
        return block * self.block_rows if self.firsts is None else int(self.firsts[block])

    def row_order_at(self, block_position: int) -> Integers:
        """Return the indices within the block at `block_position` of the rows that it yields, in the epoch's order."""
        return self.row_order(self.number_at(block_position))

    def row_numbers(self, block_position: int) -> Integers:
        """Return the row numbers in the split of the block at `block_position`, in the order of the epoch."""
        return self.row_order_at(block_position) + self.first_row_at(block_position)

    def repeats_at(self, block_position: int) -> tuple[int, int] | None:
        """Return None, as no block contains the rows of several epochs."""

    def row_order(self, block: int) -> Integers:
        """Return the indices within a block of the rows that it yields, in the order of the epoch."""
        indices = self._permute_rows(block) if self.shuffle else np.arange(self.sizes[block])
        return indices if self.sampling is None else self.sampling.rows(block, self.epoch)[indices]

    def _permute_rows(self, block: int) -> Integers:
        """Return the row indices of a block in permuted order; small blocks are permuted in cached groups."""
        count = max(1, _MIN_PERMUTED_ROWS // max(1, self.block_rows))
        if count == 1:
            size = int(self.sizes[block])
            return permute(np.arange(size), size, make_key(self.seed, "rows", self.epoch, block))
        group = int(self._position_of_block[block]) // count
        permutations = self._permutations.get(group)
        if permutations is None:
            block_numbers = self.order[group * count : (group + 1) * count]
            sizes = self.sizes[block_numbers]
            keys = [make_key(self.seed, "rows", self.epoch, number) for number in block_numbers.tolist()]
            starts = np.concatenate(([0], np.cumsum(sizes)))
            index = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)
            permuted = permute(index, np.repeat(sizes, sizes), np.repeat(np.array(keys, np.uint64), sizes))
            permutations = dict(zip(block_numbers.tolist(), np.split(permuted, starts[1:-1]), strict=True))
            # Each stream reads one group at a time, so that few groups are in use.
            if len(self._permutations) >= _MAX_GROUPS:
                self._permutations.clear()
            self._permutations[group] = permutations
        return permutations[block]

    @cached_property
    def _permutations(self) -> dict[int, dict[int, Integers]]:
        return {}

    @cached_property
    def _position_of_block(self) -> Integers:
        positions = np.empty_like(self.order)
        positions[self.order] = np.arange(len(self.order))
        return positions


@dataclass(frozen=True)
class BlockSlice:
    """Rows of a window that one block contains."""

    block_position: int  # in the order of the epoch
    target: slice | np.ndarray  # positions of the rows in the window
    within: slice | np.ndarray  # positions of the rows in the row order of the block


@dataclass(frozen=True)
class WindowPlan:
    """The rows of one rank in consecutive batches: the number of rows of each batch, and the rows by block."""

    sizes: tuple[int, ...]
    slices: tuple[BlockSlice, ...]

    @property
    def block_positions(self) -> list[int]:
        return list(dict.fromkeys(block_slice.block_position for block_slice in self.slices))


@dataclass(frozen=True)
class Schedule:
    """The batches of an epoch, and the share of one rank in each batch."""

    blocks: EpochBlocks
    batch_size: int  # rows over all ranks together
    streams: int  # number of streams that are mixed in a batch
    rank: int
    world_size: int
    drop_last: bool
    rows_before: int = 0  # rows of the epoch that all ranks together yielded before the first batch
    # Length of each row of the split, to batch rows of similar length. Then `batch_size` divides `rows_before`, and
    # `streams` divides `batch_size`.
    lengths: np.ndarray | None = None
    max_group_batches: int = 512  # in a group of similar lengths

    @cached_property
    def stream_borders(self) -> Integers:
        """Start of each stream in the sequence, and the end of the last stream."""
        return self._count_dealt(self.blocks.rows, np.arange(self.streams + 1))

    @cached_property
    def rank_range(self) -> range:
        """Positions in a full batch of the rows of this rank."""
        return range(*rank_bounds(self.batch_size, self.rank, self.world_size))

    @cached_property
    def full_batches(self) -> int:
        """Number of remaining batches of `batch_size` rows."""
        return (self.blocks.rows - self.rows_before - sum(self.last_sizes)) // self.batch_size

    @cached_property
    def last_sizes(self) -> tuple[int, ...]:
        """Number of rows of each batch after the full batches."""
        if self.drop_last:
            return ()
        return divide_rest(self.blocks.rows - self.rows_before, self.batch_size, self.world_size)

    @property
    def max_rank_rows(self) -> int:
        """Maximum number of rows of this rank in a full batch."""
        return len(self.rank_range)

    @cached_property
    def part_count(self) -> int:
        """Number of remaining batches: of `batch_size` rows, and those after them."""
        return self.full_batches + len(self.last_sizes)

    def __len__(self) -> int:
        """Return the number of remaining batches, the same on every rank."""
        return self.part_count

    def rows_yielded(self, batches: int) -> int:
        """Return how many rows of the epoch all ranks together have yielded after `batches` more batches."""
        if batches >= self.part_count:
            # Dropped rows count as yielded, so that the epoch is over.
            return self.blocks.rows
        full = min(batches, self.full_batches)
        return self.rows_before + full * self.batch_size + sum(self.last_sizes[: batches - full])

    def window(self, batches: range) -> WindowPlan:
        """Return the plan of the batches with the numbers in `batches`, at least one: this rank's rows by block."""
        full = self._select_full(batches)
        sizes = [len(self.rank_range)] * len(full)
        slices: list[BlockSlice] = []
        if full:
            slices += self._slice_full_batches(full)
        for batch in batches[len(full) :]:
            positions = self.last_positions(batch)
            slices += self._slice_positions(positions, sum(sizes) + np.arange(len(positions)))
            sizes.append(len(positions))
        return WindowPlan(tuple(sizes), tuple(slices))

    def _select_full(self, batches: range) -> range:
        return batches[: len(range(batches.start, min(batches.stop, self.full_batches), batches.step))]

    def block_positions(self, batches: range) -> list[int]:
        """Return the positions of the blocks with this rank's rows of `batches`, as `window` does, but faster."""
        full = self._select_full(batches)
        block_positions: dict[int, None] = {}
        if full and self.lengths is not None:
            grouped = np.searchsorted(self.blocks.starts, self._group_positions(full)[0], side="right") - 1
            block_positions.update(dict.fromkeys(np.unique(grouped).tolist()))
        elif full:
            firsts, stops, _ = self._lane_bounds(full[:: max(1, len(full) - 1)])
            contiguous = self._contiguous_lanes(full)
            block_bounds = self.covering_blocks(firsts[:, 0], stops[:, -1])
            for lane, (is_contiguous, *bounds) in enumerate(zip(contiguous, *block_bounds, strict=True)):
                candidates = range(*bounds)
                block_positions.update(
                    dict.fromkeys(candidates if is_contiguous else self._select_touched(lane, full, candidates))
                )
        for batch in batches[len(full) :]:
            last = np.searchsorted(self.blocks.starts, self.last_positions(batch), side="right") - 1
            block_positions.update(dict.fromkeys(np.unique(last).tolist()))
        return list(block_positions)

    def _select_touched(self, lane: int, batches: range, candidates: range) -> list[int]:
        """Return the block positions among `candidates` with rows of a lane in `batches`.

        A lane, specified by its index, has the rows of one stream in the batches of this rank. This is for lanes that
        skip rows between batches, so that blocks between them may have no rows.
        """
        firsts, stops, _ = (bounds[0] for bounds in self._lane_bounds(batches, slice(lane, lane + 1)))
        nonempty = stops > firsts
        starts = self.blocks.starts[candidates.start : candidates.stop + 1]
        # A block is touched if the first batch that ends after the start of the block starts before its end.
        batch = np.searchsorted(stops[nonempty], starts[:-1], side="right")
        first = np.append(firsts[nonempty], self.blocks.rows)[batch]
        touched: list[int] = (
            candidates.start + np.flatnonzero((first < starts[1:]) & (starts[:-1] < starts[1:]))
        ).tolist()
        return touched

    def _slice_full_batches(self, batches: range) -> Iterator[BlockSlice]:
        """Yield the rows of this rank in full batches, which start the window, by lane and block."""
        if self.lengths is not None:
            yield from self._slice_positions(*self._group_positions(batches))
            return
        firsts, stops, targets = self._lane_bounds(batches)
        first, last = self.covering_blocks(firsts[:, 0], stops[:, -1])
        counts, batch_offsets = stops - firsts, np.arange(len(batches)) * len(self.rank_range)
        runs_by_count: dict[int, Integers] = {}
        lane_starts = zip(firsts[:, 0].tolist(), counts[:, 0].tolist(), targets[:, 0].tolist(), strict=True)
        for lane, (is_contiguous, (start, count, offset)) in enumerate(
            zip(self._contiguous_lanes(batches), lane_starts, strict=True)
        ):
            if self._regular_lanes is None:
                target = runs(targets[lane] + batch_offsets, counts[lane])
            else:
                if count not in runs_by_count:
                    runs_by_count[count] = runs(batch_offsets, counts[lane])
                target = runs_by_count[count] + offset
            positions = None if is_contiguous else runs(firsts[lane], counts[lane])
            yield from self.slice_lane(range(first[lane], last[lane]), start, positions, target)

    def _group_positions(self, batches: range) -> tuple[Integers, Integers]:
        """Return the positions of this rank's rows of full batches in the sequence, by length, and in the window."""
        firsts, stops, targets = self._lane_bounds(batches)
        counts = stops - firsts
        positions = []
        for stream, first, count in zip(self.lanes, firsts, counts, strict=True):
            border = int(self.stream_borders[stream])
            # Lengths change the positions within a group of a stream.
            groups, within = np.divmod(runs(first, count) - border, self._group_rows)
            edges = np.flatnonzero(np.diff(groups)) + 1
            for group, part in zip(groups[np.append(0, edges)].tolist(), np.split(within, edges), strict=True):
                positions.append(self._group_order(stream, group)[part])
        offsets = np.arange(len(batches)) * len(self.rank_range)
        return np.concatenate(positions), runs((targets + offsets).ravel(), counts.ravel())

    @cached_property
    def _group_rows(self) -> int:
        """Rows of a stream in a group of similar lengths."""
        stream_rows = self.batch_size // self.streams
        batches = _GROUPED_BLOCKS * self.blocks.block_rows // stream_rows
        return stream_rows * min(self.max_group_batches, max(1, batches))

    def _group_order(self, stream: int, group: int) -> Integers:
        """Return the positions in the sequence of the rows of a stream in a group, batch after batch."""
        order = self._group_orders.get((stream, group))
        if order is None:
            stream_rows = self.batch_size // self.streams
            rows = self.blocks.rows // self.batch_size * stream_rows  # of the stream in full batches
            start = group * self._group_rows
            first, size = int(self.stream_borders[stream]) + start, min(self._group_rows, rows - start)
            parts = np.argsort(self._lengths_at(first, first + size), kind="stable").reshape(-1, stream_rows)
            order = first + parts[self.order_parts(group, len(parts))].ravel()
            if len(self._group_orders) >= _MAX_GROUPS:
                self._group_orders.clear()
            self._group_orders[stream, group] = order
        return order

    def order_parts(self, group: int, count: int) -> Integers:
        """Return the order of the `count` parts of a group, by length, in which they are batches."""
        return permute(np.arange(count), count, make_key(self.blocks.seed, "lengths", self.blocks.epoch, group))

    def _lengths_at(self, start: int, stop: int) -> np.ndarray:
        """Return the lengths of the rows from position `start` to `stop` in the sequence."""
        assert self.lengths is not None
        [first], [last] = self.covering_blocks(np.array([start]), np.array([stop]))
        lengths = np.concatenate([self.lengths[self.blocks.row_numbers(position)] for position in range(first, last)])
        offset = start - int(self.blocks.starts[first])
        return lengths[offset : offset + stop - start]

    @cached_property
    def _group_orders(self) -> dict[tuple[int, int], Integers]:
        return {}

    def covering_blocks(self, starts: Integers, stops: Integers) -> tuple[list[int], list[int]]:
        """Return the first and the stop block position of each range of the sequence from `starts` to `stops`."""
        first: list[int] = (np.searchsorted(self.blocks.starts, starts, side="right") - 1).tolist()
        last: list[int] = np.searchsorted(self.blocks.starts, stops, side="left").tolist()
        return first, last

    def _count_dealt(self, rows: Integers | int, streams: Integers) -> Integers:
        """Return how many of the first `rows` rows dealt are from streams with a number below each of `streams`."""
        rounds, rest = np.divmod(rows, self.streams)
        dealt: Integers = rounds * streams + np.minimum(rest, streams)
        return dealt

    @cached_property
    def lanes(self) -> range:
        """Streams with rows for this rank; a lane is the share of one stream in the batches of this rank."""
        low, high = self._stream_start_bounds
        own_streams = np.flatnonzero((high[1:] > self.rank_range.start) & (low[:-1] < self.rank_range.stop))
        return range(int(own_streams[0]), int(own_streams[-1]) + 1)

    @cached_property
    def _stream_start_bounds(self) -> tuple[Integers, Integers]:
        """Smallest and largest position in a batch at which the rows of each stream start."""
        streams = np.arange(self.streams + 1)
        each, more = divmod(self.batch_size, self.streams)
        low = each * streams + np.maximum(streams + more - self.streams, 0)
        return low, each * streams + np.minimum(streams, more)

    def _contiguous_lanes(self, batches: range) -> list[bool]:
        """Return for each lane whether its rows of consecutive `batches` are contiguous in the sequence."""
        return self._complete_lanes if batches.step == 1 else [False] * len(self.lanes)

    @cached_property
    def _complete_lanes(self) -> list[bool]:
        """Whether each lane contains all rows of its stream."""
        low, high = (edges[self.lanes.start : self.lanes.stop + 1] for edges in self._stream_start_bounds)
        complete: list[bool] = ((low[:-1] >= self.rank_range.start) & (high[1:] <= self.rank_range.stop)).tolist()
        return complete

    @cached_property
    def _regular_lanes(self) -> tuple[Integers, Integers, Integers] | None:
        """Lane bounds of the first batch if each batch shifts them by the same number of rows, otherwise None."""
        return (
            None
            if self.batch_size % self.streams
            else self._lane_bounds_after(np.array([self.rows_before]), self.lanes)
        )

    def _lane_bounds(self, batches: range, chosen: slice = slice(None)) -> tuple[Integers, Integers, Integers]:
        """Return start and stop of each lane in the sequence, and its start in this rank's rows, for each batch.

        The arrays have the shape (lanes, batches); `chosen` selects lanes.
        """
        batch_numbers = np.arange(batches.start, batches.stop, batches.step)
        if self._regular_lanes is None:
            return self._lane_bounds_after(self.rows_before + batch_numbers * self.batch_size, self.lanes[chosen])
        firsts, stops, targets = self._regular_lanes
        shift = batch_numbers * (self.batch_size // self.streams)
        return firsts[chosen] + shift, stops[chosen] + shift, targets[chosen]

    def _lane_bounds_after(self, rows: Integers, lanes: range) -> tuple[Integers, Integers, Integers]:
        """Return the bounds of `_lane_bounds` for batches that start after `rows` rows of the sequence were dealt."""
        return self.deal(rows, self.batch_size, self.rank_range.start, self.rank_range.stop, lanes)

    def deal(
        self, rows: Integers, sizes: Integers | int, low: Integers | int, high: Integers | int, lanes: range
    ) -> tuple[Integers, Integers, Integers]:
        """Return start and stop of each lane in the sequence, and its start in a share, for each batch.

        A batch has the next `sizes` rows after `rows` rows of the sequence, sorted by stream, and the share has its
        rows from `low` to `high`. The arrays have the shape (lanes, batches).
        """
        streams = np.arange(lanes.start, lanes.stop + 1)[:, None]
        before = self._count_dealt(rows, streams)
        edges = self._count_dealt(rows + sizes, streams) - before
        first, last = (np.minimum(np.maximum(edge, edges[:-1]), edges[1:]) for edge in (low, high))
        offsets = self.stream_borders[streams[:-1]] + before[1:] - before[:-1] - edges[:-1]
        return offsets + first, offsets + last, first - low

    def slice_lane(
        self, block_positions: range, start: int, positions: Integers | None, target: Integers
    ) -> Iterator[BlockSlice]:
        """Yield the rows of a lane in a range of blocks, block by block; `target` are their positions in the window.

        `positions` are their positions in the sequence; None: contiguous from `start` on.
        """
        starts = self.blocks.starts[block_positions.start : block_positions.stop + 1].tolist()
        if positions is None:
            stop = start + len(target)
            for block_position, (begin, end) in zip(block_positions, pairwise(starts), strict=True):
                low, high = max(begin, start), min(end, stop)
                yield BlockSlice(block_position, target[low - start : high - start], slice(low - begin, high - begin))
            return
        edges = np.searchsorted(positions, starts).tolist()
        for block_position, begin, (low, high) in zip(block_positions, starts, pairwise(edges), strict=False):
            if low < high:
                yield BlockSlice(block_position, target[low:high], positions[low:high] - begin)

    def last_positions(self, batch: int) -> Integers:
        """Return the positions in the sequence of this rank's rows in a batch after the full batches."""
        start, stop = (Schedule.rows_yielded(self, number) for number in (batch, batch + 1))
        low, high = rank_bounds(stop - start, self.rank, self.world_size)
        by_length = self.blocks.rows // self.batch_size * self.batch_size if self.lengths is not None else 0
        parts = []
        if start < by_length:  # rows of the last part by length, whose other rows are in the batch before
            stream_rows = self.batch_size // self.streams
            group, first = divmod(start // self.batch_size * stream_rows, self._group_rows)
            orders = [self._group_order(stream, group)[first : first + stream_rows] for stream in range(self.streams)]
            parts.append(np.concatenate(orders)[start % self.batch_size :][: stop - start])
        edges = [self._count_dealt(max(edge, by_length), np.arange(self.streams + 1)) for edge in (start, stop)]
        starts, stops = (self.stream_borders[:-1] + np.diff(dealt) for dealt in edges)
        parts += [np.arange(*bounds) for bounds in zip(starts.tolist(), stops.tolist(), strict=True)]
        return np.concatenate(parts)[low:high]

    def _slice_positions(self, positions: Integers, targets: Integers) -> Iterator[BlockSlice]:
        """Yield the rows at `positions` in the sequence, block by block; `targets` are positions in the window."""
        block_positions = np.searchsorted(self.blocks.starts, positions, side="right") - 1
        for block_position in np.unique(block_positions).tolist():
            chosen = np.flatnonzero(block_positions == block_position)
            yield BlockSlice(
                block_position, targets[chosen], positions[chosen] - int(self.blocks.starts[block_position])
            )

    def mask_needed(self, block_positions: Integers, batch: int) -> np.ndarray:
        """Return a mask of `block_positions`: whether this rank reads the block in batch number `batch` or later."""
        rows = self.rows_before + min(batch, self.full_batches) * self.batch_size
        if self.lengths is not None:  # the rows of a group are needed until its end
            rows -= rows % (self._group_rows * self.streams)
        return self.mask_unread(block_positions, rows)

    def mask_unread(self, block_positions: Integers, rows: int) -> np.ndarray:
        """Return a mask of `block_positions`: whether lanes have rows of the block after `rows` rows were dealt."""
        streams = np.arange(self.lanes.start, self.lanes.stop + 1)
        borders = self.stream_borders[streams]
        first, stop = borders[:-1] + np.diff(self._count_dealt(rows, streams)), borders[1:]
        begin, end = self.blocks.starts[block_positions, None], self.blocks.starts[block_positions + 1, None]
        is_needed: np.ndarray = np.any((begin < stop) & (end > first) & (first < stop), axis=1)
        return is_needed


def rank_bounds(rows: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return start and stop of a rank's share of `rows` rows; shares differ by at most one row."""
    return rank * rows // world_size, (rank + 1) * rows // world_size


def divide_rest(rows: int, batch_size: int, world_size: int) -> tuple[int, ...]:
    """Return the sizes of the batches of `rows` rows after those with `batch_size` rows.

    Every rank must have a row of each batch, so fewer rows than ranks are completed from the batch before. If that has
    less than two rows for each rank, it takes them instead: only then, a batch has more than `batch_size` rows.
    """
    full, rest = divmod(rows, batch_size)
    if not rest or rest >= world_size or not full:
        return (rest,) * (rest > 0)
    both = batch_size + rest
    return (both - world_size, world_size) if both >= 2 * world_size else (both,)


def runs(starts: Integers, counts: Integers) -> Integers:
    """Return the concatenated ranges of `counts` integers that start at `starts`."""
    if (counts == counts[0]).all():
        return (starts[:, None] + np.arange(counts[0])).ravel()
    ends = np.cumsum(counts)
    return np.arange(ends[-1]) + np.repeat(starts - ends + counts, counts)
