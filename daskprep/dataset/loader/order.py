"""The order of a split's rows in an epoch: a pure function of seed, epoch and row numbers.

The blocks of a split are permuted, and so are the rows within each block. This sequence of all rows is cut into
streams: contiguous ranges whose lengths differ by at most one row. Rows are dealt round-robin: the first row of each
stream, then the second row of each, until the streams are exhausted. A global batch consists of the next rows dealt,
sorted by stream. A rank takes a contiguous share of every global batch, so ranks read disjoint blocks except at the
borders of their shares. Ranks, threads and workers determine only where a row is processed, never its batch, unless
fewer rows than ranks are left for the last batch.

Numbers of batches go in, and runs of rows in blocks come out (`Schedule.window`); all else gathers these rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from daskprep.columns.permutation import Integers, make_key, permute
from daskprep.dataset.loader.sampling import Sampling

_PREFERRED_STREAMS = 16
MIN_STREAMS = 8
MAX_STREAMS = 64
_MAX_BLOCKS = 256  # a stream keeps a block in memory
# A permutation of fewer rows costs as much as one of this size.
_MIN_PERMUTED_ROWS = 4096
_MAX_GROUPS = 256


def default_streams(batch_size: int) -> int:
    """Return the number of streams that are mixed in a batch: the smallest divisor of `batch_size` from 16 on.

    If that divisor exceeds 64, return the largest divisor from 8 to 64 if there is one. Without any divisor from 8 to
    256, return 16; a batch then has unequal numbers of rows per stream. Below 16 rows, return `batch_size`.
    """
    divisors = [streams for streams in range(1, batch_size + 1) if batch_size % streams == 0]
    preferred = next((streams for streams in divisors if streams >= _PREFERRED_STREAMS), batch_size)
    fallback = max(streams for streams in divisors if streams <= MAX_STREAMS)
    if preferred > MAX_STREAMS and fallback >= MIN_STREAMS:
        return fallback
    return preferred if preferred <= _MAX_BLOCKS else _PREFERRED_STREAMS


@dataclass(frozen=True)
class EpochBlocks:
    """The sequence of all rows of an epoch, block after block.

    `sizes` are the rows that each block yields, by block number. A block has at most `block_rows` rows on disk, and its
    first row has the number in `firsts`; in a stream, these are of partitions. `sampling` selects and repeats the rows
    of blocks. If a block contains the rows of several epochs, their row numbers differ by `period` in each epoch.
    """

    sizes: Integers
    block_rows: int
    seed: int
    epoch: int
    shuffle: bool
    firsts: Integers
    sampling: Sampling | None = None
    period: int | None = None

    @cached_property
    def rows(self) -> int:
        return int(self.starts[-1])

    @property
    def max_rows(self) -> int:
        return int(self.sizes.max())

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
        return int(self.firsts[self.number_at(block_position)])

    def row_numbers(self, block_position: int) -> Integers:
        """Return the row numbers in the split of the block at `block_position`, in the order of the epoch."""
        return self.row_order(self.number_at(block_position)) + self.first_row_at(block_position)

    def row_order(self, block: int) -> Integers:
        """Return the indices in a block of the rows it yields."""
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

    def find(self, rows: Integers) -> tuple[Integers, Integers]:
        """Return the position in the sequence of each use of `rows` of the split, and the index in `rows` of each."""
        block = np.searchsorted(self.firsts, rows, side="right") - 1
        within, index = rows - self.firsts[block], np.arange(len(rows))
        if self.sampling is not None:
            uses = []
            for number in np.unique(block).tolist():
                sampled, members = self.sampling.rows(number, self.epoch), np.flatnonzero(block == number)
                first, stop = (np.searchsorted(sampled, within[members], side=side) for side in ("left", "right"))
                uses.append((runs(first, stop - first), np.repeat(members, stop - first)))
            within, index = (np.concatenate(columns) for columns in zip(*uses, strict=True))
            block = block[index]
        if self.shuffle:
            within = self._invert(within, block, lambda one: make_key(self.seed, "rows", self.epoch, one))
        return self.starts[self._position_of_block[block]] + within, index

    def _invert(self, rows: Integers, blocks: Integers, make: Callable[[int], int]) -> Integers:
        """Return the places of rows in the permutations of their blocks; `make` returns the key of a block."""
        numbers, block = np.unique(blocks, return_inverse=True)
        keys = np.array([make(number) for number in numbers.tolist()], np.uint64)
        return permute(rows, self.sizes[blocks], keys[block], inverse=True)

    @cached_property
    def _permutations(self) -> dict[int, dict[int, Integers]]:
        return {}

    @cached_property
    def _position_of_block(self) -> Integers:
        """Position in the order of each block."""
        positions = np.empty_like(self.order)
        positions[self.order] = np.arange(len(self.order))
        return positions


class BlockRows(NamedTuple):
    """Rows of a window that one block contains."""

    block_position: int  # in the order of the epoch
    within: Integers  # positions of the rows in the row order of the block
    targets: Integers  # positions of the rows in the window


class WindowPlan(NamedTuple):
    """The rows of one rank in consecutive batches, as runs of rows that follow each other in a block."""

    sizes: Integers  # rows of each batch
    blocks: Integers  # positions of the blocks of runs
    firsts: Integers  # of the first row of each run in the row order of its block
    counts: Integers  # rows of each run, at least one

    @property
    def block_positions(self) -> list[int]:
        return np.unique(self.blocks).tolist()

    def by_block(self) -> list[BlockRows]:
        """Return the rows by block, in ascending position."""
        order = np.argsort(self.blocks, kind="stable")
        counts = self.counts[order]
        within = runs(self.firsts[order], counts)
        targets = runs((np.cumsum(self.counts) - self.counts)[order], counts)
        positions, first_runs = np.unique(self.blocks[order], return_index=True)
        edges = np.append((np.cumsum(counts) - counts)[first_runs], len(within)).tolist()
        return [
            BlockRows(position, within[start:stop], targets[start:stop])
            for position, (start, stop) in zip(positions.tolist(), pairwise(edges), strict=True)
        ]


@dataclass(frozen=True)
class Schedule:
    """The batches of an epoch, and the share of one rank; subclasses define another `_find_runs`."""

    blocks: EpochBlocks
    batch_size: int  # rows over all ranks together
    streams: int  # number of streams that are mixed in a batch
    rank: int
    world_size: int
    drop_last: bool
    rows_before: int = 0  # rows of the epoch that all ranks together yielded before the first batch
    sharers: int | None = None  # number of ranks that the last batches are divided for; None: `world_size`

    @cached_property
    def full_batches(self) -> int:
        """Number of remaining batches of `batch_size` rows."""
        return (self.blocks.rows - self.rows_before - sum(self.last_sizes)) // self.batch_size

    @cached_property
    def last_sizes(self) -> tuple[int, ...]:
        """Number of rows of each batch after the full batches."""
        if self.drop_last:
            return ()
        return divide_rest(self.blocks.rows - self.rows_before, self.batch_size, self.sharers or self.world_size)

    @property
    def max_rank_rows(self) -> int:
        """Maximum number of rows of this rank in a full batch."""
        start, stop = rank_bounds(self.batch_size, self.rank, self.world_size)
        return stop - start

    @property
    def open_blocks(self) -> int:
        """Number of streams with rows for this rank."""
        start, stop = rank_bounds(self.batch_size, self.rank, self.world_size)
        edges = 2 if self.batch_size % self.streams else 0  # streams have one row more in some batches
        return min(
            self.streams, -(-stop * self.streams // self.batch_size) - start * self.streams // self.batch_size + edges
        )

    def __len__(self) -> int:
        """Return the number of remaining batches of every rank."""
        return self.full_batches + len(self.last_sizes)

    def rows_yielded(self, batches: int) -> int:
        """Return how many rows of the epoch all ranks together have yielded after `batches` more batches."""
        # Dropped rows count as yielded, so that the epoch is over.
        return self.blocks.rows if batches >= len(self) else self._dealt_before(batches)

    def _dealt_before(self, batch: int) -> int:
        """Return how many rows are dealt before a batch."""
        # Of one batch, as loaders count after each: NumPy would take ten times as long.
        full = min(batch, self.full_batches)
        return self.rows_before + full * self.batch_size + sum(self.last_sizes[: batch - full])

    def _count_dealt(self, batches: Integers) -> Integers:
        """Return how many rows are dealt before each of `batches`."""
        full = np.minimum(batches, self.full_batches)
        return self.rows_before + full * self.batch_size + self._last_ends[batches - full]

    @cached_property
    def _last_ends(self) -> Integers:
        return np.cumsum((0, *self.last_sizes))

    def window(self, batches: range) -> WindowPlan:
        """Return the rows of this rank in `batches`, at least one."""
        return self._plan(np.arange(batches.start, batches.stop, batches.step))

    def _plan(self, batches: Integers) -> WindowPlan:
        """Return this rank's rows of `batches`, in their order."""
        starts = self._count_dealt(batches)
        sizes = self._count_dealt(batches + 1) - starts
        low, high = (rank * sizes // self.world_size for rank in (self.rank, self.rank + 1))
        firsts, counts = self._find_runs(starts, sizes, low, high)
        return WindowPlan(high - low, *split_runs(firsts, counts, self.blocks.starts)[:3])

    def block_positions(self, batches: range) -> list[int]:
        """Return the blocks from the first to the last row of each stream in `batches`, faster than `window`."""
        if batches[-1] >= self.full_batches or self.batch_size % self.streams:
            return self.window(batches).block_positions
        starts = self._count_dealt(np.array([batches[0], batches[-1]]))
        low, high = (np.full_like(starts, edge) for edge in rank_bounds(self.batch_size, self.rank, self.world_size))
        firsts, counts = self._deal(starts, np.full_like(starts, self.batch_size), low, high)
        first, last = (edges[:, counts[0] > 0] for edges in (firsts, firsts + counts))
        return self._covering_blocks(first[0], last[1] - first[0])

    def mask_unread(self, block_positions: Integers, batch: int) -> np.ndarray:
        """Return a mask of `block_positions`: whether a block has rows to come in batch number `batch` or later."""
        starts = self.blocks.starts
        ends = count_until_dealt(self.blocks.rows, self.streams, starts[block_positions], starts[block_positions + 1])
        return ends > self._count_read(batch)

    def _count_read(self, batch: int) -> int:
        """Return how many rows of the epoch are dealt before those that batch number `batch` may need."""
        return self._dealt_before(batch)

    def _covering_blocks(self, firsts: Integers, counts: Integers) -> list[int]:
        return np.unique(split_runs(firsts, counts, self.blocks.starts)[0]).tolist()

    def _deal(self, starts: Integers, sizes: Integers, low: Integers, high: Integers) -> tuple[Integers, Integers]:
        """Return the runs of `deal` for a share of batches; it has the streams of the share, or more."""
        numbers = None
        if self.world_size > 1:
            each = sizes.min() // self.streams
            first, last = low.min() // (sizes.max() // self.streams + 1), high.max() // each if each else self.streams
            numbers = np.arange(first, min(self.streams, last + 1) + 1)
        return deal(self.blocks.rows, self.streams, starts, sizes, low, high, numbers)

    def _find_runs(self, starts: Integers, sizes: Integers, low: Integers, high: Integers) -> tuple[Integers, Integers]:
        """Return start and length of the runs in the sequence of the rows of batches, in the order of their rows.

        Batch i has the next ``sizes[i]`` rows after ``starts[i]`` rows were dealt. Of these, the runs contain the rows
        from ``low[i]`` to ``high[i]``.
        """
        if (sizes == self.batch_size).all() and not self.batch_size % self.streams:
            # Each batch shifts the runs of the first by the same number of rows.
            [firsts], [counts] = self._deal(starts[:1], sizes[:1], low[:1], high[:1])
            has_rows, shift = counts > 0, (starts - starts[0]) // self.streams
            return (firsts[has_rows] + shift[:, None]).ravel(), np.tile(counts[has_rows], len(starts))
        firsts, counts = self._deal(starts, sizes, low, high)
        return firsts[counts > 0], counts[counts > 0]

    def own_rows(self, batch: int) -> range:
        """Return this rank's rows of a batch among the rows dealt."""
        start, stop = self._dealt_before(batch), self._dealt_before(batch + 1)
        low, high = rank_bounds(stop - start, self.rank, self.world_size)
        return range(start + low, start + high)

    def first_batches(self, rows: Integers) -> Integers:
        """Return the number of the first batch with each of `rows` of the split, or of all batches if there is none."""
        positions, index = self.blocks.find(rows)
        first = np.full(len(rows), len(self))
        np.minimum.at(first, index, self._find_batches(self._count_before(positions)))
        return first

    def _count_before(self, positions: Integers) -> Integers:
        """Return how many rows of the epoch are dealt before those at `positions` in the sequence."""
        return count_until_dealt(self.blocks.rows, self.streams, positions, positions + 1) - 1

    def _find_batches(self, dealt: Integers) -> Integers:
        """Return the number of the batch with each row, by the rows dealt before; the number of batches for none."""
        remaining = dealt - self.rows_before
        rest = remaining - self.full_batches * self.batch_size
        last = self.full_batches + np.searchsorted(self._last_ends, rest, side="right") - 1
        batches = np.where(rest < 0, remaining // self.batch_size, last)
        return np.where(remaining < 0, self.full_batches + len(self.last_sizes), batches)

    def row_numbers(self, batches: range, step: int) -> Iterator[tuple[range, Integers, Integers]]:
        """Yield `step` batches at a time: their numbers, the sizes of this rank's shares, and their row numbers."""
        orders: dict[int, Integers] = {}
        for start in range(0, len(batches), step):
            plan = self.window(batches[start : start + step])
            rows = np.empty(plan.sizes.sum(), np.int64)
            parts = plan.by_block()
            orders = {one.block_position: orders.get(one.block_position) for one in parts}  # type: ignore[misc]
            for position, within, targets in parts:
                if orders[position] is None:
                    orders[position] = self.blocks.row_numbers(position)
                rows[targets] = orders[position][within]
            yield batches[start : start + step], plan.sizes, rows


def count_dealt(rows: Integers | int, streams: int, numbers: Integers | None = None) -> Integers:
    """Return how many of the first `rows` rows dealt are from the streams below each of `numbers`; None: 0 to all."""
    numbers = np.arange(streams + 1) if numbers is None else numbers
    rounds, rest = np.divmod(rows, streams)
    return rounds * numbers + np.minimum(rest, numbers)


def count_until_dealt(rows: int, streams: int, starts: Integers, stops: Integers) -> Integers:
    """Return how many of `rows` rows are dealt when all from each of `starts` to `stops` in the sequence are."""
    borders = count_dealt(rows, streams)
    stream = np.searchsorted(borders, stops - 1, side="right") - 1
    until: Integers = (stops - 1 - borders[stream]) * streams + stream + 1
    return np.where(starts < borders[stream], rows, until)  # the last rows of an earlier stream are dealt last


def deal(
    rows: int,
    streams: int,
    starts: Integers,
    sizes: Integers,
    low: Integers,
    high: Integers,
    numbers: Integers | None = None,
) -> tuple[Integers, Integers]:
    """Return start and length of each stream's rows in a sequence of `rows` rows, with the shape (batches, streams).

    Batch i has the next ``sizes[i]`` rows after ``starts[i]`` rows were dealt, sorted by stream. The result has those
    from ``low[i]`` to ``high[i]``. `numbers` has the first stream of the result to the stop; None: all.
    """
    before = count_dealt(starts[:, None], streams, numbers)
    edges = count_dealt((starts + sizes)[:, None], streams, numbers) - before
    cut = np.minimum(np.maximum(edges, low[:, None]), high[:, None])
    # The positions in the batch of a stream's rows, to positions in the sequence.
    shift = count_dealt(rows, streams, numbers)[:-1] + np.diff(before, axis=1) - edges[:, :-1]
    return shift + cut[:, :-1], np.diff(cut, axis=1)


def split_runs(firsts: Integers, counts: Integers, edges: Integers) -> tuple[Integers, Integers, Integers, Integers]:
    """Return runs of a sequence, split at the `edges` of its blocks: index of the block, start in it, and length.

    The last array has the index of the run that each is a part of. All runs have rows.
    """
    blocks = np.searchsorted(edges, firsts, side="right") - 1
    run = np.arange(len(firsts))
    if (counts > 1).any() and ((spanned := np.searchsorted(edges, firsts + counts) - blocks) > 1).any():
        run, blocks = np.repeat(run, spanned), runs(blocks, spanned)
        stops = np.minimum(edges[blocks + 1], (firsts + counts)[run])
        firsts = np.maximum(edges[blocks], firsts[run])
        keep = stops > firsts  # blocks may be empty
        run, blocks, firsts, counts = run[keep], blocks[keep], firsts[keep], (stops - firsts)[keep]
    return blocks, firsts - edges[blocks], counts, run


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
    """Return the concatenated ranges of `counts` integers."""
    if (counts == counts[0]).all():
        return (starts[:, None] + np.arange(counts[0])).ravel()
    ends = np.cumsum(counts)
    return np.arange(ends[-1]) + np.repeat(starts - ends + counts, counts)
