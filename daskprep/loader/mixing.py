"""The order of rows in a mix of sources: a pure function of weights, seed, epoch and row numbers.

`Quotas` determines the rows of each source in each batch. The rows of a source are dealt epoch after epoch, in the
order of `loader/order.py`, and a batch has the next rows of every source, source after source. A rank takes a share of
each of these parts, as if all rows of the batch were dealt to the ranks in turn. So ranks have equal shares, with every
source in them, and the position of the mix is one number of rows per source, whatever the number of ranks.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from daskprep.loader.order import BlockSlice, EpochBlocks, Schedule, WindowPlan, runs
from daskprep.permutation import Integers, make_key, permute

_TABLE_BATCHES = 256
_MAX_CACHED_EPOCHS = 256
_MAX_CACHED_WINDOWS = 16
# Rows of a round of a source with few rows: a block is loaded once for all of them.
_ROUND_ROWS = 4096
_ROUND_BLOCKS = 8  # as many as a shuffled source has in memory
ENDLESS = 1 << 40
"""Number of batches of a mix without an end."""


@dataclass(frozen=True)
class Quotas:
    """The number of rows of each source in consecutive batches.

    After any number of batches, each source has less than one row more or less than its share of all rows. A batch has
    the integer part of the rows that are due, and the remaining rows are of the sources that would be late first; among
    these, of those with the largest remainder. This earliest deadline first finds exact counts for all weights.
    """

    weights: tuple[int, ...]
    batch_size: int
    rows: tuple[int, ...]  # of each source before the first batch
    due: tuple[int, ...]  # rows that each source is behind its share, as multiples of 1 / sum(weights); may be negative

    @classmethod
    def of(cls, weights: Sequence[int], batch_size: int) -> Quotas:
        """Return the quotas of sources from their first row on."""
        zeros = (0,) * len(weights)
        return cls(tuple(weights), batch_size, zeros, zeros)

    def rows_at(self, batches: range) -> Integers:
        """Return the rows of each source before each of `batches`, with the shape (batches, sources)."""
        first = batches[0] // _TABLE_BATCHES
        tables = [self._table(index)[:-1] for index in range(first, batches[-1] // _TABLE_BATCHES + 1)]
        rows: Integers = np.concatenate(tables)[np.array(batches) - first * _TABLE_BATCHES]
        return rows

    def after(self, batch: int) -> Quotas:
        """Return the quotas that start with batch number `batch` of these."""
        rows = tuple(self.rows_at(range(batch, batch + 1))[0].tolist())
        total, passed = sum(self.weights), batch * self.batch_size
        due = tuple(
            due + weight * passed - total * (now - before)
            for due, weight, now, before in zip(self.due, self.weights, rows, self.rows, strict=True)
        )
        return dataclasses.replace(self, rows=rows, due=due)

    def count(self, sizes: Sequence[int], until: Literal["first", "all"] | None) -> int:
        """Return the number of batches until sources of `sizes` rows end, apart from those with weight 0.

        These are the batches in which no share exceeds the rows of its source, or until each share has all of them.
        """
        if until is None:
            return ENDLESS
        # A source has less than one row more or less than its share: once the share has all rows, so has the source.
        total, left = sum(self.weights), zip(self.weights, sizes, self.rows, self.due, strict=True)
        missing = [
            (total * (size - rows) - due, weight * self.batch_size) for weight, size, rows, due in left if weight
        ]
        if until == "first":
            return max(0, min(rest // step for rest, step in missing))
        return max(0, *(-(-rest // step) for rest, step in missing))

    def _table(self, index: int) -> Integers:
        """Return the rows of each source before each batch of a table of batches, and before the next table."""
        # Threads may compute the same table at once, with the same result.
        for missing in range(len(self._tables), index + 1):
            rows = np.array(self.rows) if missing == 0 else self._tables[missing - 1][-1]
            quotas = self._choose(missing * _TABLE_BATCHES, rows.tolist())
            self._tables[missing] = np.cumsum(np.concatenate(([rows], quotas)), axis=0)
        return self._tables[index]

    @cached_property
    def _tables(self) -> dict[int, Integers]:
        return {}

    def _choose(self, batch: int, rows: Sequence[int]) -> Integers:
        """Return the rows of each source in the batches of a table that starts with `batch`, after `rows` rows."""
        total, sources = sum(self.weights), range(len(self.weights))
        steps = [weight * self.batch_size for weight in self.weights]
        start = due = [self.due[k] + steps[k] * batch - total * (rows[k] - self.rows[k]) for k in sources]
        chosen: list[list[int]] = []
        while len(chosen) < _TABLE_BATCHES:
            due = [rest + step for rest, step in zip(due, steps, strict=True)]
            quota = [max(0, rest // total) for rest in due]
            due = [rest - total * count for rest, count in zip(due, quota, strict=True)]
            if left := self.batch_size - sum(quota):
                # By the number of batches after which one more row is late.
                late = [((total - rest - 1) // steps[k], -rest, k) for k, rest in enumerate(due) if rest > 0]
                for _, _, k in sorted(late)[:left]:
                    quota[k] += 1
                    due[k] -= total
            chosen.append(quota)
            if due == start:  # simple weights repeat after a few batches
                break
        return np.tile(chosen, (-(-_TABLE_BATCHES // len(chosen)), 1))[:_TABLE_BATCHES]


@dataclass(frozen=True)
class MixBlocks(EpochBlocks):
    """The blocks of all sources of a mix, epoch after epoch; the position of a block contains its source and epoch.

    Row numbers are those in the split of all sources, plus the number of all its rows for each epoch of a source.
    """

    names: tuple[str, ...] = ()
    block_borders: tuple[int, ...] = ()  # number of the first block of each source, and the number of blocks
    # Epochs of each source for which a block is loaded once. More than one: the positions of its blocks are by number.
    round_epochs: tuple[int, ...] = ()

    @cached_property
    def source_rows(self) -> list[int]:
        """Number of rows of each source."""
        return [int(self.sizes[slice(*borders)].sum()) for borders in itertools.pairwise(self.block_borders)]

    def at(self, source: int, epoch: int) -> EpochBlocks:
        """Return the blocks of an epoch of a source, numbered from 0."""
        blocks = self._epochs.get((source, epoch))
        if blocks is None:
            first, stop = self.block_borders[source : source + 2]
            seed = self._source_seed(source)
            firsts = self._first_rows[first:stop] + epoch * sum(self.source_rows)
            blocks = EpochBlocks(self.sizes[first:stop], self.block_rows, seed, epoch, self.shuffle, None, firsts)
            if len(self._epochs) >= _MAX_CACHED_EPOCHS:
                self._epochs.clear()
            self._epochs[source, epoch] = blocks
        return blocks

    def _source_seed(self, source: int) -> int:
        # Sources with the same rows, such as images and their captions, must not be in the same order.
        return make_key(self.seed, "source", self.names[source], self.epoch)

    @cached_property
    def _first_rows(self) -> Integers:
        return np.cumsum(self.sizes) - self.sizes

    @cached_property
    def _epochs(self) -> dict[tuple[int, int], EpochBlocks]:
        return {}

    def offset(self, source: int, turn: int) -> int:
        """Return the position of the first block of a round of a source; positions of a source are `step` apart."""
        first, stop = self.block_borders[source : source + 2]
        return source + turn * (stop - first) * self.step

    @property
    def step(self) -> int:
        return len(self.names)

    def split_position(self, block_position: int) -> tuple[int, int, int]:
        """Return source, round and position in the round of the block at `block_position`."""
        number, source = divmod(block_position, self.step)
        first, stop = self.block_borders[source : source + 2]
        return source, *divmod(number, stop - first)

    def number_at(self, block_position: int) -> int:
        source, turn, position = self.split_position(block_position)
        within = self.at(source, turn).number_at(position) if self.round_epochs[source] == 1 else position
        return self.block_borders[source] + within

    def first_row_at(self, block_position: int) -> int:
        source, turn, _ = self.split_position(block_position)
        first = int(self._first_rows[self.number_at(block_position)])
        return first + turn * self.round_epochs[source] * sum(self.source_rows)

    def row_order_at(self, block_position: int) -> Integers:
        source, turn, position = self.split_position(block_position)
        if (count := self.round_epochs[source]) == 1:
            return self.at(source, turn).row_order_at(position)
        epochs = range(turn * count, (turn + 1) * count)
        return self._permute(source, "rows", epochs, self._size_at(block_position), position).ravel()

    def row_numbers(self, block_position: int) -> Integers:
        numbers, repeats = super().row_numbers(block_position), self.repeats_at(block_position)
        return numbers if repeats is None else numbers + np.arange(len(numbers)) // repeats[0] * repeats[1]

    def repeats_at(self, block_position: int) -> tuple[int, int] | None:
        """Return the rows of a block in an epoch and the row numbers of one, if the block has several epochs."""
        source = block_position % self.step
        return (self._size_at(block_position), sum(self.source_rows)) if self.round_epochs[source] > 1 else None

    def _size_at(self, block_position: int) -> int:
        return int(self.sizes[self.number_at(block_position)])

    def _permute(self, source: int, kind: str, epochs: range, count: int, *keys: int) -> Integers:
        """Return the permutation of `count` numbers in each epoch of a source, with the shape (epochs, count)."""
        numbers = np.tile(np.arange(count), len(epochs))
        if self.shuffle and count > 1:
            seed = self._source_seed(source)
            epoch_keys = np.array([make_key(seed, kind, epoch, *keys) for epoch in epochs], np.uint64)
            numbers = permute(numbers, count, np.repeat(epoch_keys, count))
        return numbers.reshape(len(epochs), count)

    def locate_rows(self, source: int, epochs: Integers, positions: Integers) -> tuple[Integers, Integers]:
        """Return the positions of blocks, and the positions in their row order, of rows of a source with rounds.

        The rows are specified by their `epochs`, ascending, and their `positions` in the sequence of the epoch.
        """
        sizes = self.sizes[slice(*self.block_borders[source : source + 2])]
        first = int(epochs[0])
        ranks = self._permute(source, "blocks", range(first, int(epochs[-1]) + 1), len(sizes))
        order = np.argsort(ranks, axis=1)
        ends = np.cumsum(sizes[order], axis=1)
        index = (ends[epochs - first] <= positions[:, None]).sum(axis=1)
        blocks = order[epochs - first, index]
        turns, rest = np.divmod(epochs, self.round_epochs[source])
        within = positions - (ends[epochs - first, index] - sizes[blocks]) + rest * sizes[blocks]
        return source + (turns * len(sizes) + blocks) * self.step, within


@dataclass(frozen=True)
class _Part:
    """A rank's rows of one epoch of a source in a window of batches: the schedule of the epoch, and lanes of `deal`."""

    offset: int  # of the positions of its blocks
    step: int  # between positions of its blocks
    schedule: Schedule
    firsts: Integers  # of each lane in each batch, in the sequence of the epoch
    stops: Integers
    targets: Integers  # positions in the window

    @property
    def block_positions(self) -> list[int]:
        return [self.offset + one * self.step for _, blocks in self.covering_blocks for one in blocks]

    @property
    def slices(self) -> Iterator[BlockSlice]:
        counts = self.stops - self.firsts
        is_contiguous = (self.firsts[:, 1:] == self.stops[:, :-1]).all()
        # In one call for all lanes, which is several times as fast.
        targets = runs(self.targets.ravel(), counts.ravel())
        positions = None if is_contiguous else runs(self.firsts.ravel(), counts.ravel())
        ends = np.concatenate(([0], np.cumsum(counts.sum(axis=1)))).tolist()
        for lane, block_positions in self.covering_blocks:
            rows, start = slice(*ends[lane : lane + 2]), int(self.firsts[lane, 0])
            selected = None if positions is None else positions[rows]
            for one in self.schedule.slice_lane(block_positions, start, selected, targets[rows]):
                yield BlockSlice(self.offset + one.block_position * self.step, one.target, one.within)

    @property
    def covering_blocks(self) -> Iterator[tuple[int, range]]:
        """Each lane with rows, and the positions in the epoch of the blocks from its first row to its last."""
        lanes = np.flatnonzero((self.stops > self.firsts).any(axis=1))
        first, last = self.schedule.covering_blocks(self.firsts[lanes, 0], self.stops[lanes, -1])
        return zip(lanes.tolist(), map(range, first, last), strict=True)


@dataclass(frozen=True)
class _SmallPart:
    """A rank's rows of a source with rounds in a window of batches."""

    blocks: Integers  # position of the block of each row
    within: Integers  # positions in the row order of the block
    targets: Integers  # positions in the window

    @property
    def block_positions(self) -> list[int]:
        positions: list[int] = np.unique(self.blocks).tolist()
        return positions

    @property
    def slices(self) -> Iterator[BlockSlice]:
        for position in self.block_positions:
            rows = np.flatnonzero(self.blocks == position)
            yield BlockSlice(position, self.targets[rows], self.within[rows])


@dataclass(frozen=True)
class MixSchedule(Schedule):
    """The batches of a mix, and the share of one rank in each batch."""

    blocks: MixBlocks
    quotas: Quotas = field(kw_only=True)
    batch_count: int = field(kw_only=True)

    def __len__(self) -> int:
        return self.batch_count

    @cached_property
    def rank_range(self) -> range:
        start, stop = (int(self._deal_to_ranks(np.array(self.batch_size), self.rank + own)) for own in (0, 1))
        return range(start, stop)

    def _deal_to_ranks(self, rows: Integers, rank: int) -> Integers:
        """Return the number of `rows` rows, dealt to ranks in turn, for the ranks below `rank`."""
        rounds, rest = np.divmod(rows, self.world_size)
        dealt: Integers = rounds * rank + np.minimum(rest, rank)
        return dealt

    @cached_property
    def lanes(self) -> range:
        return range(self.streams * self.blocks.step)

    def rows_yielded(self, batches: int) -> int:
        return sum(self.quotas.rows) + batches * self.batch_size

    def window(self, batches: range) -> WindowPlan:
        slices = itertools.chain.from_iterable(part.slices for part in self._find_parts(batches))
        return WindowPlan((len(self.rank_range),) * len(batches), tuple(slices))

    def block_positions(self, batches: range) -> list[int]:
        """Return the positions of the blocks from the first to the last row of each lane in `batches`.

        With several ranks, a few blocks may have no rows in between.
        """
        if self.world_size == 1:  # as one large batch
            edges = self.quotas.rows_at(range(batches[0], batches[-1] + 2, batches[-1] + 1 - batches[0]))
            parts = list(self._iterate_parts(edges[:1], edges[1:] - edges[:1]))
        else:
            parts = self._find_parts(batches)
        return list(dict.fromkeys(position for part in parts for position in part.block_positions))

    def _find_parts(self, batches: range) -> list[_Part | _SmallPart]:
        """Return the rows of this rank in `batches`, computed once for their blocks and for their window."""
        parts = self._parts.get(batches)
        if parts is None:
            before = self.quotas.rows_at(batches)
            after = self.quotas.rows_at(range(batches.start + 1, batches.stop + 1, batches.step))
            parts = list(self._iterate_parts(before, after - before))
            if len(self._parts) >= _MAX_CACHED_WINDOWS:
                self._parts.clear()
            self._parts[batches] = parts
        return parts

    @cached_property
    def _parts(self) -> dict[range, list[_Part | _SmallPart]]:
        return {}

    def _iterate_parts(self, before: Integers, counts: Integers) -> Iterator[_Part | _SmallPart]:
        """Yield the rows of this rank in batches, by source and epoch of the source.

        The batches have `counts` rows of each source after the rows `before`, with the shape (batches, sources).
        """
        starts = np.cumsum(counts, axis=1) - counts
        low, high = (
            self._deal_to_ranks(starts + counts, rank) - self._deal_to_ranks(starts, rank)
            for rank in (self.rank, self.rank + 1)
        )
        own_counts = high - low
        targets = np.cumsum(own_counts, axis=1) - own_counts + np.arange(len(before))[:, None] * len(self.rank_range)
        for source, size in enumerate(self.blocks.source_rows):
            first, count = before[:, source], counts[:, source]
            if self.blocks.round_epochs[source] > 1:
                if own_counts[:, source].any():
                    yield self._find_small_part(
                        source, first, count, low[:, source], high[:, source], targets[:, source]
                    )
                continue
            for epoch in range(int(first[0]) // size, -(-int(first[-1] + count[-1]) // size)):
                # A batch may contain the end of an epoch, complete epochs, and the start of another.
                earlier = _clip(epoch * size - first, 0, count)
                start, stop = (_clip(rows - epoch * size, 0, size) for rows in (first, first + count))
                begin, end = (_clip(edge[:, source] - earlier, 0, stop - start) for edge in (low, high))
                if (begin == end).all():
                    continue
                schedule = self._schedule_at(source, epoch)
                firsts, stops, lane_targets = schedule.deal(start, stop - start, begin, end, schedule.lanes)
                target = targets[:, source] + _clip(earlier - low[:, source], 0, own_counts[:, source])
                offset, step = self.blocks.offset(source, epoch), self.blocks.step
                yield _Part(offset, step, schedule, firsts, stops, lane_targets + target)

    def _find_small_part(
        self, source: int, first: Integers, count: Integers, low: Integers, high: Integers, targets: Integers
    ) -> _SmallPart:
        """Return the rows from `low` to `high` among the `count` rows of a source in each batch, for all its epochs."""
        batches, within = np.repeat(np.arange(len(count)), count), runs(np.zeros_like(count), count)
        epochs, rows = np.divmod(first[batches] + within, self.blocks.source_rows[source])
        positions = self._schedule_at(source, 0).stream_borders[rows % self.streams] + rows // self.streams
        order = np.lexsort((positions, epochs, batches))
        own = (within >= low[batches]) & (within < high[batches])
        chosen, targets = order[own], (targets[batches] + within - low[batches])[own]
        return _SmallPart(*self.blocks.locate_rows(source, epochs[chosen], positions[chosen]), targets)

    def _schedule_at(self, source: int, epoch: int) -> Schedule:
        """Return the schedule of an epoch of a source, whose lanes are all streams."""
        blocks = self.blocks.at(source, epoch)
        schedule = self._schedules.get((source, epoch))
        if schedule is None or schedule.blocks is not blocks:
            schedule = Schedule(blocks, self.streams, self.streams, rank=0, world_size=1, drop_last=False)
            if len(self._schedules) >= _MAX_CACHED_EPOCHS:
                self._schedules.clear()
            self._schedules[source, epoch] = schedule
        return schedule

    @cached_property
    def _schedules(self) -> dict[tuple[int, int], Schedule]:
        return {}

    def mask_needed(self, block_positions: Integers, batch: int) -> np.ndarray:
        rows = self.quotas.rows_at(range(batch, batch + 1))[0].tolist()
        mask = np.empty(len(block_positions), bool)
        located = np.array([self.blocks.split_position(one) for one in block_positions.tolist()]).reshape(-1, 3)
        for source, (size, yielded) in enumerate(zip(self.blocks.source_rows, rows, strict=True)):
            own = located[:, 0] == source
            rounds, positions = located[own, 1:].T
            if (epochs := self.blocks.round_epochs[source]) > 1:
                mask[own] = rounds >= yielded // (epochs * size)
                continue
            epoch, rest = divmod(yielded, size)
            unread = self._schedule_at(source, epoch).mask_unread(positions, rest)
            mask[own] = np.where(rounds == epoch, unread, rounds > epoch)
        return mask


def count_round_epochs(rows: int, blocks: int) -> int:
    """Return the epochs of a source in a round: several if it has few rows and blocks."""
    return max(1, _ROUND_ROWS // rows) if rows > 0 and blocks <= _ROUND_BLOCKS else 1


def _clip(values: Integers, low: Integers | int, high: Integers | int) -> Integers:
    """Return values limited to a range; for short arrays, `np.clip` takes several times as long."""
    limited: Integers = np.minimum(np.maximum(values, low), high)
    return limited
