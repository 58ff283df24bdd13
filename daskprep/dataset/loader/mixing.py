"""The order of rows in a mix of sources: a pure function of weights, seed, epoch and row numbers.

`Quotas` determines the rows of each source in each batch. The rows of a source are dealt epoch after epoch, in the
order of `order.py`, and a batch has the next rows of every source, source after source. A rank takes a share of
each of these parts, as if all rows of the batch were dealt to the ranks in turn. So ranks have equal shares, with every
source in them, and the position of the mix is one number of rows per source, whatever the number of ranks.
"""

from __future__ import annotations

import dataclasses
import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from daskprep.columns.permutation import Integers, make_key, make_keys, permute
from daskprep.dataset.loader.order import EpochBlocks, Schedule, WindowPlan, count_until_dealt, deal, runs, split_runs

_TABLE_BATCHES = 256
_CACHED_ORDERS = 4  # for each source
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
        return np.concatenate(tables)[np.array(batches) - first * _TABLE_BATCHES]

    def after(self, batch: int) -> Quotas:
        """Return the quotas that start with a batch of these."""
        rows = tuple(self.rows_at(range(batch, batch + 1))[0].tolist())
        total, passed = sum(self.weights), batch * self.batch_size
        due = tuple(
            due + weight * passed - total * (now - before)
            for due, weight, now, before in zip(self.due, self.weights, rows, self.rows, strict=True)
        )
        return dataclasses.replace(self, rows=rows, due=due)

    def count(self, sizes: Sequence[int], until: Literal["first", "all"] | None) -> int:
        """Return the number of batches until the first or all sources of `sizes` rows end, without weights of 0."""
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

    def find_batch(self, source: int, row: int, batches: int) -> int:
        """Return the batch with a row of a source, by its number among the rows yielded; `batches` if it is later."""
        # A source has less than one row more or less than its share, which bounds the search.
        step, total = self.weights[source] * self.batch_size, sum(self.weights)
        missing = total * (row - self.rows[source]) - self.due[source]
        first, stop = (missing // step - 1, -(-(missing + 2 * total) // step)) if step else (batches, batches)
        numbers = range(min(batches, max(0, first)), min(batches, stop))
        return numbers.start + bisect_right(
            numbers, row, key=lambda one: self.rows_at(range(one + 1, one + 2))[0, source]
        )

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
    """The blocks of all sources of a mix; in each epoch, row numbers increase by the number of all rows."""

    names: tuple[str, ...] = ()
    block_borders: tuple[int, ...] = ()  # number of the first block of each source, and the number of blocks
    round_epochs: tuple[int, ...] = ()  # epochs of each source for which a block is loaded once

    @cached_property
    def source_rows(self) -> list[int]:
        return [int(self.sizes[slice(*borders)].sum()) for borders in itertools.pairwise(self.block_borders)]

    @property
    def max_rows(self) -> int:
        edges = itertools.pairwise(self.block_borders)
        return max(
            int(self.sizes[slice(*borders)].max(initial=0)) * count
            for borders, count in zip(edges, self.round_epochs, strict=True)
        )

    def locate(self, source: int, firsts: Integers, counts: Integers) -> tuple[Integers, Integers, Integers, Integers]:
        """Return runs of the epochs of a source as `split_runs` does; a run is within an epoch."""
        sizes, rows = self.sizes[slice(*self.block_borders[source : source + 2])], self.source_rows[source]
        epochs = range(int(firsts.min()) // rows, int(firsts.max()) // rows + 1)
        order, edges = self._order(source, epochs)
        index, within, counts, run = split_runs(firsts, counts, edges)
        turn, rest = np.divmod(epochs.start + index // len(sizes), self.round_epochs[source])
        block = order[index]
        within += rest * sizes[block]
        return source + (turn * len(sizes) + block) * len(self.names), within, counts, run

    def count_until_dealt(self, source: int, streams: int, block_positions: Integers) -> Integers:
        """Return how many rows of a source are dealt when all rows of the blocks at `block_positions` are."""
        first, stop = self.block_borders[source : source + 2]
        turn, block = np.divmod(block_positions // len(self.names), stop - first)
        rows, count = self.source_rows[source], self.round_epochs[source]
        if count > 1:
            return (turn + 1) * count * rows
        epochs = range(int(turn.min()), int(turn.max()) + 1)
        order, edges = self._order(source, epochs)
        indices = np.argsort(order.reshape(len(epochs), -1), axis=1)
        index = (turn - epochs.start) * (stop - first) + indices[turn - epochs.start, block]
        starts, stops = (edges[one] - turn * rows for one in (index, index + 1))
        return turn * rows + count_until_dealt(rows, min(streams, rows), starts, stops)

    def find_dealt(self, source: int, streams: int, epoch: int, rows: Integers) -> Integers:
        """Return how many rows of a source are dealt before `rows`, numbers in the split, in one of its epochs."""
        start, count, epochs = self.block_borders[source], self.source_rows[source], range(epoch, epoch + 1)
        block = np.searchsorted(self.firsts[: self.block_borders[source + 1]], rows, side="right") - 1
        within = rows - self.firsts[block]
        if self.shuffle:
            seed = make_key(self.seed, "source", self.names[source], self.epoch)
            within = self._invert(within, block, lambda one: int(make_keys(seed, "rows", epochs, one - start)[0]))
        order, edges = self._order(source, epochs)
        positions = edges[np.argsort(order)[block - start]] + within - epoch * count
        return epoch * count + count_until_dealt(count, min(streams, count), positions, positions + 1) - 1

    def _order(self, source: int, epochs: range) -> tuple[Integers, Integers]:
        """Return the blocks of epochs of a source in their order, and their borders in the sequence of all epochs."""
        if (source, epochs) not in self._orders:
            sizes = self.sizes[slice(*self.block_borders[source : source + 2])]
            order = np.argsort(self._permute(source, "blocks", epochs, len(sizes)), axis=1).ravel()
            edges = epochs.start * self.source_rows[source] + np.append(0, np.cumsum(sizes[order]))
            if len(self._orders) >= _CACHED_ORDERS * len(self.names):
                self._orders.clear()
            self._orders[source, epochs] = order, edges
        return self._orders[source, epochs]

    @cached_property
    def _orders(self) -> dict[tuple[int, range], tuple[Integers, Integers]]:
        return {}

    def _split_position(self, block_position: int) -> tuple[int, int, int]:
        """Return source, round, and number in the source of a block."""
        number, source = divmod(block_position, len(self.names))
        first, stop = self.block_borders[source : source + 2]
        return source, *divmod(number, stop - first)

    def number_at(self, block_position: int) -> int:
        source, _, block = self._split_position(block_position)
        return self.block_borders[source] + block

    def row_numbers(self, block_position: int) -> Integers:
        """Return the permuted rows of a source's block, once for each epoch of its round."""
        source, turn, block = self._split_position(block_position)
        count, size = self.round_epochs[source], int(self.sizes[self.number_at(block_position)])
        epochs = range(turn * count, (turn + 1) * count)
        rows = self._permute(source, "rows", epochs, size, block) + np.array(epochs)[:, None] * sum(self.source_rows)
        return rows.ravel() + self.first_row_at(block_position)

    def _permute(self, source: int, kind: str, epochs: range, count: int, *keys: int) -> Integers:
        """Return the permutation of `count` numbers in each epoch of a source, with the shape (epochs, count)."""
        numbers = np.tile(np.arange(count), len(epochs))
        if self.shuffle and count > 1:
            # Sources with the same rows, such as images and their captions, must not be in the same order.
            seed = make_key(self.seed, "source", self.names[source], self.epoch)
            numbers = permute(numbers, count, np.repeat(make_keys(seed, kind, epochs, *keys), count))
        return numbers.reshape(len(epochs), count)


@dataclass(frozen=True)
class MixSchedule(Schedule):
    """The batches of a mix, and the share of one rank."""

    blocks: MixBlocks
    quotas: Quotas = field(kw_only=True)
    batch_count: int = field(kw_only=True)

    def __len__(self) -> int:
        return self.batch_count

    def _deal_to_ranks(self, rows: Integers, rank: int) -> Integers:
        """Return the number of rows dealt to ranks below `rank`."""
        rounds, rest = np.divmod(rows, self.world_size)
        return rounds * rank + np.minimum(rest, rank)

    @property
    def max_rank_rows(self) -> int:
        return self.batch_size // self.world_size + (self.rank < self.batch_size % self.world_size)

    @property
    def open_blocks(self) -> int:
        return self.streams * len(self.blocks.names)

    def rows_yielded(self, batches: int) -> int:
        return sum(self.quotas.rows) + batches * self.batch_size

    def first_batches(self, rows: Integers) -> Integers:
        blocks, first = self.blocks, np.empty_like(rows)
        sources = np.searchsorted(np.cumsum(blocks.source_rows), rows, side="right")
        for source in np.unique(sources).tolist():
            index, yielded = np.flatnonzero(sources == source), self.quotas.rows[source]
            epoch = yielded // blocks.source_rows[source]
            now, later = (blocks.find_dealt(source, self.streams, one, rows[index]) for one in (epoch, epoch + 1))
            dealt = np.where(now < yielded, later, now).tolist()
            first[index] = [self.quotas.find_batch(source, row, len(self)) for row in dealt]
        return first

    def window(self, batches: range) -> WindowPlan:
        before = self.quotas.rows_at(batches)
        after = self.quotas.rows_at(range(batches.start + 1, batches.stop + 1, batches.step))
        return self._locate(before, after - before)

    def block_positions(self, batches: range) -> list[int]:
        if self.world_size > 1 or batches.step > 1:
            return self.window(batches).block_positions
        before, after = self.quotas.rows_at(range(batches[0], batches[-1] + 2, batches[-1] + 1 - batches[0]))
        return self._locate(before[None], (after - before)[None]).block_positions

    def mask_unread(self, block_positions: Integers, batch: int) -> np.ndarray:
        sources, mask = block_positions % len(self.blocks.names), np.ones(len(block_positions), bool)
        for source, rows in enumerate(self.quotas.rows_at(range(batch, batch + 1))[0].tolist()):
            if (own := sources == source).any():
                mask[own] = self.blocks.count_until_dealt(source, self.streams, block_positions[own]) > rows
        return mask

    def _locate(self, before: Integers, counts: Integers) -> WindowPlan:
        """Return this rank's rows of batches with `counts` rows of each source after `before`."""
        starts = np.cumsum(counts, axis=1) - counts
        low, high = (
            self._deal_to_ranks(starts + counts, rank) - self._deal_to_ranks(starts, rank)
            for rank in (self.rank, self.rank + 1)
        )
        sources = [
            self._find_source_runs(source, *(edge[:, source] for edge in (before, counts, low, high)))
            for source in range(len(self.blocks.names))
            if (high > low)[:, source].any()
        ]
        batch, *columns = map(np.concatenate, zip(*sources, strict=True))
        order = np.argsort(batch, kind="stable")
        return WindowPlan((high - low).sum(axis=1), *(one[order] for one in columns))

    def _find_source_runs(
        self, source: int, first: Integers, count: Integers, low: Integers, high: Integers
    ) -> tuple[Integers, Integers, Integers, Integers]:
        """Return the batch, block, start in it and length of each run of a source, in the order of batches.

        Batch i has ``count[i]`` rows of the source after ``first[i]``, this rank those from ``low[i]`` to ``high[i]``.
        """
        rows = self.blocks.source_rows[source]
        # A batch may have the end of an epoch, complete epochs, and the start of another.
        epochs = np.where(count > 0, (first + count - 1) // rows - first // rows + 1, 0)
        batch, epoch = np.repeat(np.arange(len(first)), epochs), runs(first // rows, epochs)
        starts = np.maximum(first[batch], epoch * rows)
        sizes = np.minimum((first + count)[batch], (epoch + 1) * rows) - starts
        earlier = starts - first[batch]
        low, high = (np.minimum(np.maximum(edge[batch] - earlier, 0), sizes) for edge in (low, high))
        firsts, counts = deal(rows, min(self.streams, rows), starts - epoch * rows, sizes, low, high)
        has_rows = counts > 0
        firsts, batch = (firsts + (epoch * rows)[:, None])[has_rows], np.repeat(batch, has_rows.sum(axis=1))
        blocks, within, counts, run = self.blocks.locate(source, firsts, counts[has_rows])
        return batch[run], blocks, within, counts


def count_round_epochs(rows: int, blocks: int) -> int:
    """Return the epochs of a source in a round."""
    return max(1, _ROUND_ROWS // rows) if rows > 0 and blocks <= _ROUND_BLOCKS else 1
