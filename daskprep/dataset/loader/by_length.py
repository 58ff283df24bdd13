"""Orders with rows of similar length in a batch: groups of batches, and batches of a number of padded tokens.

Groups of consecutive batches are rearranged. The rows of a stream in a group are sorted by length and cut into a part
for each batch. A batch gets the same part of every stream: ranks read the same blocks.

With a bound of padded tokens, consecutive parts are joined to a batch while it stays within the bound, and the batches
are permuted within their group. A batch is a run of parts, so that every rank has as many rows of it, and the number of
rows yielded is a position.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from daskprep.columns.permutation import Integers, make_key, permute
from daskprep.dataset.loader.media import group_by_block
from daskprep.dataset.loader.order import Schedule, WindowPlan, count_dealt, deal, rank_bounds, runs
from daskprep.errors import ConfigError

_MAX_GROUPS = 256
# Blocks of a stream in a group of similar lengths, which all are in memory: fewer leave more padding.
_GROUPED_BLOCKS = 2
_MAX_GROUP_PARTS = 4096


@dataclass(frozen=True, kw_only=True)
class LengthSchedule(Schedule):
    """The batches of an epoch with rows of similar length; `streams` divides `batch_size`."""

    lengths: np.ndarray  # of each row of the split
    max_group_parts: int = 512

    @cached_property
    def stream_borders(self) -> Integers:
        """Start of each stream in the sequence, and its end."""
        return count_dealt(self.blocks.rows, self.streams)

    @cached_property
    def stream_rows(self) -> int:
        """Rows of a stream in a part."""
        return self.batch_size // self.streams

    @cached_property
    def group_rows(self) -> int:
        """Rows of a stream in a group."""
        parts = _GROUPED_BLOCKS * self.blocks.block_rows // self.stream_rows
        return self.stream_rows * min(self.max_group_parts, max(1, parts))

    def block_positions(self, batches: range) -> list[int]:
        """Return the blocks of complete groups with rows of `batches`."""
        parts = self._parts(np.array([batches[0], batches[-1]]))
        if parts[-1] >= self.full_batches:
            return self.window(batches).block_positions
        first, last = (self.rows_before // self.batch_size + parts[[0, -1]]) * self.stream_rows // self.group_rows
        low, high = rank_bounds(self.batch_size, self.rank, self.world_size)
        borders = self.stream_borders[low // self.stream_rows : -(-high // self.stream_rows)]
        rows = self.blocks.rows // self.batch_size * self.stream_rows
        count = min((last + 1) * self.group_rows, rows) - first * self.group_rows
        return self._covering_blocks(borders + first * self.group_rows, np.full_like(borders, count))

    def _count_read(self, batch: int) -> int:
        rows = super()._count_read(int(self._parts(np.array([batch]))[0]))
        return rows - rows % (self.group_rows * self.streams)  # the rows of a group are needed until its end

    def _parts(self, batches: Integers) -> Integers:
        return batches

    def _find_runs(self, starts: Integers, sizes: Integers, low: Integers, high: Integers) -> tuple[Integers, Integers]:
        sequence, size = self.blocks.rows, self.batch_size
        # A batch has rows of one part, and after the last part those that are left.
        own = np.minimum(np.maximum(sequence // size * size - starts, 0), sizes)
        before = starts % size
        cuts = (before + np.minimum(edge, own) for edge in (low, high))
        firsts, counts = deal(sequence, self.streams, starts - before, np.full_like(starts, size), *cuts)
        positions = self._arrange(firsts, counts)
        if (own == sizes).all():
            return positions, np.ones_like(positions)
        part = np.repeat(np.arange(len(starts)), counts.sum(axis=1))
        cuts = (np.maximum(edge - own, 0) for edge in (low, high))
        firsts, counts = deal(sequence, self.streams, starts + own, sizes - own, *cuts)
        order = np.argsort(np.append(part, np.repeat(np.arange(len(starts)), self.streams)), kind="stable")
        firsts = np.append(positions, firsts)[order]
        counts = np.append(np.ones_like(positions), counts)[order]
        return firsts[counts > 0], counts[counts > 0]

    def _count_before(self, positions: Integers) -> Integers:
        before = super()._count_before(positions)
        within, stream = np.divmod(before, self.streams)
        group = np.where(within < self.blocks.rows // self.batch_size * self.stream_rows, within // self.group_rows, -1)
        numbers = np.where(group < 0, -1, group * self.streams + stream)
        for number, rows in group_by_block(numbers) if len(numbers) else ():
            if number >= 0:
                order = self._group_order(number % self.streams, number // self.streams)
                sorter = np.argsort(order)
                index = sorter[np.searchsorted(order, positions[rows], sorter=sorter)]
                part, row = np.divmod(number // self.streams * self.group_rows + index, self.stream_rows)
                before[rows] = part * self.batch_size + number % self.streams * self.stream_rows + row
        return before

    def _arrange(self, firsts: Integers, counts: Integers) -> Integers:
        """Return the positions in the sequence, by length, of rows of parts with the shape (parts, streams)."""
        within = runs((firsts - self.stream_borders[:-1]).ravel(), counts.ravel())
        streams = np.repeat(np.tile(np.arange(self.streams), len(counts)), counts.ravel())
        groups, within = np.divmod(within, self.group_rows)
        positions = np.empty_like(within)
        for number, rows in group_by_block(groups * self.streams + streams) if len(within) else ():
            positions[rows] = self._group_order(number % self.streams, number // self.streams)[within[rows]]
        return positions

    def _group_order(self, stream: int, group: int) -> Integers:
        """Return the positions in the sequence of the rows of a stream in a group, part after part."""
        order = self._group_orders.get((stream, group))
        if order is None:
            rows = self.blocks.rows // self.batch_size * self.stream_rows  # of the stream in parts
            start = group * self.group_rows
            first, size = int(self.stream_borders[stream]) + start, min(self.group_rows, rows - start)
            parts = np.argsort(self._lengths_at(first, first + size), kind="stable").reshape(-1, self.stream_rows)
            order = first + parts[self._order_parts(group, len(parts))].ravel()
            if len(self._group_orders) >= _MAX_GROUPS:
                self._group_orders.clear()
            self._group_orders[stream, group] = order
        return order

    def _order_parts(self, group: int, count: int) -> Integers:
        """Return the order of the parts of a group."""
        return permute(np.arange(count), count, make_key(self.blocks.seed, "lengths", self.blocks.epoch, group))

    def _lengths_at(self, start: int, stop: int) -> np.ndarray:
        """Return the lengths of the rows from position `start` to `stop` in the sequence."""
        starts = self.blocks.starts
        blocks = range(int(np.searchsorted(starts, start, side="right")) - 1, int(np.searchsorted(starts, stop)))
        lengths = np.concatenate([self.lengths[self.blocks.row_numbers(position)] for position in blocks])
        offset = start - int(starts[blocks.start])
        return lengths[offset : offset + stop - start]

    @cached_property
    def _group_orders(self) -> dict[tuple[int, int], Integers]:
        return {}


@dataclass(frozen=True)
class TokenBatches:
    """The batches of an epoch as runs of parts."""

    orders: tuple[Integers, ...]  # by group: its parts, batch after batch
    starts: Integers  # number of the first part of each batch, in this order, and of all parts


@dataclass(frozen=True, kw_only=True)
class TokenSchedule(LengthSchedule):
    """The batches of an epoch with a bound of padded tokens; a part has `batch_size` rows."""

    token_batches: TokenBatches = TokenBatches((), np.zeros(1, np.int64))
    max_group_parts: int = _MAX_GROUP_PARTS

    def cut_epoch(self, tokens: int, multiple: int) -> TokenBatches:
        """Return the batches of the epoch, of at most `tokens` padded tokens; widths are multiples of `multiple`."""
        blocks, part_rows, each = self.blocks, self.batch_size, self.stream_rows
        in_sequence = self._lengths_at(0, blocks.rows)
        orders: list[Integers] = []
        counts = [0]
        stop = blocks.rows // part_rows * each  # rows of a stream in parts
        for group, start in enumerate(range(0, stop, self.group_rows)):
            rows = np.arange(start, min(start + self.group_rows, stop))
            ordered = np.sort(in_sequence[self.stream_borders[:-1, None] + rows], axis=1, kind="stable")
            longest = ordered[:, each - 1 :: each].max(axis=0).astype(np.int64)
            widths = np.maximum(1, -(-longest // multiple)) * multiple
            # Ranks that outnumber the rows after the parts share rows of the last part, then a separate batch.
            own = int(start + self.group_rows >= stop and blocks.rows % part_rows > 0)
            edges = cut_runs(widths[: len(widths) - own], part_rows, tokens)
            order = super()._order_parts(group, len(edges) - 1).tolist() if len(edges) > 1 else []
            batches = [np.arange(edges[run], edges[run + 1]) for run in order] + [np.array([len(widths) - 1])] * own
            orders.append(np.concatenate(batches))
            counts += map(len, batches)
        return TokenBatches(tuple(orders), np.cumsum(counts))

    @cached_property
    def _starts(self) -> Integers:
        """Number of the first part of each remaining batch, from the first remaining part on, and of all parts."""
        starts = self.token_batches.starts - self.rows_before // self.batch_size
        starts, parts = starts[starts >= 0], super().__len__()
        is_between = self.rows_before % self.batch_size > 0 and self.full_batches > 0
        if self.rows_before < self.blocks.rows and (not len(starts) or starts[0] or is_between):
            raise ConfigError(f"state: rows_given={self.rows_before}: no batch of the epoch starts after these rows")
        # Rows after the parts may be a separate batch.
        return starts if parts in starts[-1:] else np.append(starts, parts)

    @property
    def max_rank_rows(self) -> int:
        return super().max_rank_rows * int(np.diff(self._starts).max(initial=1))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def rows_yielded(self, batches: int) -> int:
        return self.blocks.rows if batches >= len(self) else self._dealt_before(int(self._starts[batches]))

    def _plan(self, batches: Integers) -> WindowPlan:
        """Return the plan of batches, each of one or more parts."""
        counts = np.diff(self._starts)[batches]
        plan = super()._plan(self._parts(batches))
        return plan._replace(sizes=np.add.reduceat(plan.sizes, np.cumsum(counts) - counts))

    def _find_batches(self, dealt: Integers) -> Integers:
        return np.searchsorted(self._starts, super()._find_batches(dealt), side="right") - 1

    def _parts(self, batches: Integers) -> Integers:
        return runs(self._starts[batches], np.diff(self._starts)[batches])

    def _order_parts(self, group: int, count: int) -> Integers:
        return self.token_batches.orders[group]


def cut_runs(widths: Integers, part_rows: int, tokens: int) -> list[int]:
    """Return the edges of runs of parts, at least one, whose rows times the last width are within `tokens`."""
    edges = [0]
    while edges[-1] < len(widths):
        rest = widths[edges[-1] :]
        padded = np.arange(1, len(rest) + 1) * rest * part_rows
        edges.append(edges[-1] + max(1, int(np.searchsorted(padded, tokens, side="right"))))
    return edges
