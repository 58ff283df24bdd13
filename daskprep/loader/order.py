"""Which rows of a split come when: a pure function of seed, epoch and row numbers.

The blocks of a split are permuted, and the rows within each block. This sequence of all rows is cut into streams,
contiguous pieces that differ by at most one row. Rows are dealt from the streams in turn: the first row of each stream,
then the second of each, and so on. A global batch holds the next rows that are dealt, ordered by stream, and a rank its
share of every global batch, so that ranks read disjoint blocks except at the borders of their shares. Ranks, threads
and workers only determine where the rows of a batch go.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from daskprep.loader.sampling import Sampling
from daskprep.permutation import Integers, make_key, permute

_STREAMS_WANTED = 16
LEAST_STREAMS = 8
MOST_STREAMS = 64
_MOST_BLOCKS = 256  # a stream keeps a block in memory
# A permutation costs as much as one of so many rows however few it has.
_PERMUTED_ROWS = 4096
_MOST_GROUPS = 256


def default_streams(batch_size: int) -> int:
    """Return the number of streams that a batch mixes: 16, or the next number that divides the batch.

    If that is more than 64, it is less than 16 where 8 or more divide the batch. If nothing from 8 to 256 does, it is
    16, which then give unequal numbers of rows to a batch. Batches of less than 16 rows have a stream for each row.
    """
    divisors = [streams for streams in range(1, batch_size + 1) if batch_size % streams == 0]
    wanted = next((streams for streams in divisors if streams >= _STREAMS_WANTED), batch_size)
    few = max(streams for streams in divisors if streams <= MOST_STREAMS)
    if wanted > MOST_STREAMS and few >= LEAST_STREAMS:
        return few
    return wanted if wanted <= _MOST_BLOCKS else _STREAMS_WANTED


@dataclass(frozen=True)
class Blocks:
    """The sequence of all rows of an epoch: blocks one after the other, each with its rows in some order."""

    sizes: Integers  # rows that each block gives, by its number
    block_rows: int  # rows that each block has on disk; the last one may have fewer
    seed: int
    epoch: int
    shuffle: bool
    sampling: Sampling | None = None  # which of the rows a block gives; None: each once
    firsts: Integers | None = None  # the first row of each block, where others than the last have fewer rows

    @cached_property
    def rows(self) -> int:
        return int(self.starts[-1])

    @cached_property
    def order(self) -> Integers:
        """The number of the block at each place of the sequence."""
        numbers = np.arange(len(self.sizes))
        if not self.shuffle:
            return numbers
        order = np.empty_like(numbers)
        order[permute(numbers, len(numbers), make_key(self.seed, "blocks", self.epoch))] = numbers
        return order

    @cached_property
    def starts(self) -> Integers:
        """Where the block at each place begins in the sequence, and where the last one ends."""
        return np.concatenate(([0], np.cumsum(self.sizes[self.order])))

    def numbers(self, place: int) -> Integers:
        """Return the numbers of the rows of the block at a place, in the order in which they are given."""
        block = int(self.order[place])
        return self.rows_within(block) + (block * self.block_rows if self.firsts is None else self.firsts[block])

    def rows_within(self, block: int) -> Integers:
        """Return the order of the rows that a block gives."""
        places = self._permuted(block) if self.shuffle else np.arange(self.sizes[block])
        return places if self.sampling is None else self.sampling.rows(block, self.epoch)[places]

    def _permuted(self, block: int) -> Integers:
        """Return the permutation of a block's rows; of small blocks, neighbours in the sequence come in one go."""
        count = max(1, _PERMUTED_ROWS // max(1, self.block_rows))
        if count == 1:
            size = int(self.sizes[block])
            return permute(np.arange(size), size, make_key(self.seed, "rows", self.epoch, block))
        group = int(self._place_of[block]) // count
        found = self._orders.get(group)
        if found is None:
            numbers = self.order[group * count : (group + 1) * count]
            sizes = self.sizes[numbers]
            keys = [make_key(self.seed, "rows", self.epoch, number) for number in numbers.tolist()]
            starts = np.concatenate(([0], np.cumsum(sizes)))
            index = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)
            places = permute(index, np.repeat(sizes, sizes), np.repeat(np.array(keys, np.uint64), sizes))
            found = dict(zip(numbers.tolist(), np.split(places, starts[1:-1]), strict=True))
            # Streams go through the sequence side by side: few groups are in use at a time.
            if len(self._orders) >= _MOST_GROUPS:
                self._orders.clear()
            self._orders[group] = found
        return found[block]

    @cached_property
    def _orders(self) -> dict[int, dict[int, Integers]]:
        return {}

    @cached_property
    def _place_of(self) -> Integers:
        places = np.empty_like(self.order)
        places[self.order] = np.arange(len(self.order))
        return places


@dataclass(frozen=True)
class BlockRows:
    """Rows of a window that come from one block: `target` in the window, `within` in the block's own order."""

    place: int
    target: slice | np.ndarray
    within: slice | np.ndarray


@dataclass(frozen=True)
class Share:
    """What one rank takes of consecutive batches: their rows each, and where these lie."""

    sizes: tuple[int, ...]
    pieces: tuple[BlockRows, ...]

    @property
    def places(self) -> list[int]:
        return list(dict.fromkeys(piece.place for piece in self.pieces))


@dataclass(frozen=True)
class Schedule:
    """The batches of an epoch, and the share that a rank has in each.

    `given` rows of the epoch were yielded before.
    """

    blocks: Blocks
    batch_size: int
    streams: int
    rank: int
    world_size: int
    drop_last: bool
    given: int = 0

    @cached_property
    def borders(self) -> Integers:
        """Where each stream begins in the sequence, and where the last one ends."""
        return self._dealt(self.blocks.rows, np.arange(self.streams + 1))

    @cached_property
    def share(self) -> range:
        """The rows of a full batch that this rank has."""
        return range(*bounds_of(self.batch_size, self.rank, self.world_size))

    @cached_property
    def full(self) -> int:
        """Number of full batches that are left."""
        return (self.blocks.rows - self.given) // self.batch_size

    @cached_property
    def _rest(self) -> int:
        """Number of rows behind the full batches."""
        return self.blocks.rows - self.given - self.full * self.batch_size

    @cached_property
    def _tail_alone(self) -> bool:
        """Whether what is left makes a batch of its own, and not a part of the last full one.

        Every rank must have a row of it. For streams that divide the batch, the ranks that do so too see the same
        batches.
        """
        least = max(self.streams if self.streams <= self.batch_size else 1, self.world_size)
        return self._rest >= least or not self.full

    def __len__(self) -> int:
        """Return the number of batches that are left, the same on every rank."""
        if self.drop_last or not self._rest:
            return self.full
        return self.full + self._tail_alone

    def rows_given(self, batches: int) -> int:
        """Return the rows of the epoch that were given after some more batches, on all ranks together."""
        if batches >= len(self):
            # Rows that are dropped count as given: the epoch is over.
            return self.blocks.rows
        return self.given + batches * self.batch_size

    def window(self, batches: range) -> Share:
        """Return this rank's share of some batches, batch after batch."""
        full = self._full_of(batches)
        sizes = [len(self.share)] * len(full)
        pieces: list[BlockRows] = []
        if full:
            pieces += self._of_full(full)
        if self._has_tail(batches):
            tail = self.tail()
            pieces += self._of_positions(tail, sum(sizes))
            if self._tail_alone:
                sizes.append(len(tail))
            else:
                sizes[-1] += len(tail)
        return Share(tuple(sizes), tuple(pieces))

    def _full_of(self, batches: range) -> range:
        return batches[: len(range(batches.start, min(batches.stop, self.full), batches.step))]

    def _has_tail(self, batches: range) -> bool:
        """Tell whether what is left behind the full batches is given with the last of some batches."""
        return batches[-1] == len(self) - 1 and not self.drop_last

    def places(self, batches: range) -> list[int]:
        """Return the places of the blocks that hold this rank's share of some batches: those of `window`, sooner."""
        full = self._full_of(batches)
        places: dict[int, None] = {}
        if full:
            firsts, stops, _ = self._lanes(full[:: max(1, len(full) - 1)])
            joined = self._joined(full)
            near = self._places_of(firsts[:, 0], stops[:, -1])
            for lane, (is_joined, *between) in enumerate(zip(joined, *near, strict=True)):
                found = range(*between)
                places.update(dict.fromkeys(found if is_joined else self._reached(lane, full, found)))
        if self._has_tail(batches):
            tail = np.searchsorted(self.blocks.starts, self.tail(), side="right") - 1
            places.update(dict.fromkeys(np.unique(tail).tolist()))
        return list(places)

    def _reached(self, lane: int, batches: range, places: range) -> list[int]:
        """Return which of some blocks hold rows of a lane that leaves rows out between its batches."""
        firsts, stops, _ = (one[0] for one in self._lanes(batches, slice(lane, lane + 1)))
        held = stops > firsts
        starts = self.blocks.starts[places.start : places.stop + 1]
        # The first batch that ends behind the beginning of a block must begin before its end.
        batch = np.searchsorted(stops[held], starts[:-1], side="right")
        first = np.append(firsts[held], self.blocks.rows)[batch]
        found: list[int] = (places.start + np.flatnonzero((first < starts[1:]) & (starts[:-1] < starts[1:]))).tolist()
        return found

    def _of_full(self, batches: range) -> Iterator[BlockRows]:
        firsts, stops, targets = self._lanes(batches)
        first, last = self._places_of(firsts[:, 0], stops[:, -1])
        counts, own = stops - firsts, np.arange(len(batches)) * len(self.share)
        known: dict[int, Integers] = {}
        begun = zip(firsts[:, 0].tolist(), counts[:, 0].tolist(), targets[:, 0].tolist(), strict=True)
        for lane, (is_joined, (start, count, at)) in enumerate(zip(self._joined(batches), begun, strict=True)):
            if self._steady is None:
                target = _runs(targets[lane] + own, counts[lane])
            else:
                if count not in known:
                    known[count] = _runs(own, counts[lane])
                target = known[count] + at
            positions = None if is_joined else _runs(firsts[lane], counts[lane])
            yield from self._of_lane(range(first[lane], last[lane]), start, positions, target)

    def _places_of(self, starts: Integers, stops: Integers) -> tuple[list[int], list[int]]:
        """Return between which places the blocks of each of some ranges of the sequence are."""
        first: list[int] = (np.searchsorted(self.blocks.starts, starts, side="right") - 1).tolist()
        last: list[int] = np.searchsorted(self.blocks.starts, stops, side="left").tolist()
        return first, last

    def _dealt(self, rows: Integers | int, streams: Integers) -> Integers:
        """Return how many of the first rows that are dealt come from the streams before each of some."""
        rounds, rest = np.divmod(rows, self.streams)
        dealt: Integers = rounds * streams + np.minimum(rest, streams)
        return dealt

    @cached_property
    def lanes(self) -> range:
        """The streams that this rank takes rows of; a lane is what one stream gives to each batch of this rank."""
        low, high = self._edges
        held = np.flatnonzero((high[1:] > self.share.start) & (low[:-1] < self.share.stop))
        return range(int(held[0]), int(held[-1]) + 1)

    @cached_property
    def _edges(self) -> tuple[Integers, Integers]:
        """Where in a batch the rows of each stream begin, at the least and at the most."""
        streams = np.arange(self.streams + 1)
        each, more = divmod(self.batch_size, self.streams)
        low = each * streams + np.maximum(streams + more - self.streams, 0)
        return low, each * streams + np.minimum(streams, more)

    def _joined(self, batches: range) -> list[bool]:
        """Tell of each lane whether it leaves out no row between batches."""
        return self._whole if batches.step == 1 else [False] * len(self.lanes)

    @cached_property
    def _whole(self) -> list[bool]:
        """Tell of each lane whether it has all rows of its stream."""
        low, high = (edges[self.lanes.start : self.lanes.stop + 1] for edges in self._edges)
        whole: list[bool] = ((low[:-1] >= self.share.start) & (high[1:] <= self.share.stop)).tolist()
        return whole

    @cached_property
    def _steady(self) -> tuple[Integers, Integers, Integers] | None:
        """The lanes of the first batch if they move by the same number of rows from batch to batch."""
        return None if self.batch_size % self.streams else self._lanes_at(np.array([self.given]), self.lanes)

    def _lanes(self, batches: range, chosen: slice = slice(None)) -> tuple[Integers, Integers, Integers]:
        """Return where each lane begins and ends in the sequence, and begins in this rank's rows, for each batch."""
        numbers = np.arange(batches.start, batches.stop, batches.step)
        if self._steady is None:
            return self._lanes_at(self.given + numbers * self.batch_size, self.lanes[chosen])
        firsts, stops, targets = self._steady
        moved = numbers * (self.batch_size // self.streams)
        return firsts[chosen] + moved, stops[chosen] + moved, targets[chosen]

    def _lanes_at(self, rows: Integers, lanes: range) -> tuple[Integers, Integers, Integers]:
        """Return `_lanes` for the batches before which some numbers of rows are dealt."""
        streams = np.arange(lanes.start, lanes.stop + 1)[:, None]
        before = self._dealt(rows, streams)
        edges = self._dealt(rows + self.batch_size, streams) - before
        low, high = (
            np.minimum(np.maximum(edge, edges[:-1]), edges[1:]) for edge in (self.share.start, self.share.stop)
        )
        offsets = self.borders[streams[:-1]] + before[1:] - before[:-1] - edges[:-1]
        return offsets + low, offsets + high, low - self.share.start

    def _of_lane(self, places: range, start: int, positions: Integers | None, target: Integers) -> Iterator[BlockRows]:
        """Give the rows of a lane by block; without positions, they are those from a start on."""
        starts = self.blocks.starts[places.start : places.stop + 1].tolist()
        if positions is None:
            stop = start + len(target)
            for place, (begin, end) in zip(places, pairwise(starts), strict=True):
                low, high = max(begin, start), min(end, stop)
                yield BlockRows(place, target[low - start : high - start], slice(low - begin, high - begin))
            return
        edges = np.searchsorted(positions, starts).tolist()
        for place, begin, (low, high) in zip(places, starts, pairwise(edges), strict=False):
            if low < high:
                yield BlockRows(place, target[low:high], positions[low:high] - begin)

    def tail(self) -> Integers:
        """Return where this rank's share of what is left behind the full batches lies in the sequence."""
        given = np.diff(self._dealt(self.blocks.rows - self._rest, np.arange(self.streams + 1)))
        starts, stops = (self.borders[:-1] + given).tolist(), self.borders[1:].tolist()
        positions = np.concatenate([np.arange(*piece) for piece in zip(starts, stops, strict=True)])
        return positions[slice(*bounds_of(len(positions), self.rank, self.world_size))]

    def _of_positions(self, positions: Integers, at: int) -> Iterator[BlockRows]:
        places = np.searchsorted(self.blocks.starts, positions, side="right") - 1
        for place in np.unique(places).tolist():
            chosen = np.flatnonzero(places == place)
            yield BlockRows(place, at + chosen, positions[chosen] - int(self.blocks.starts[place]))

    def needed(self, places: Integers, batch: int) -> np.ndarray:
        """Tell which of the blocks at some places this rank still needs from a batch on."""
        streams = np.arange(self.lanes.start, self.lanes.stop + 1)
        borders = self.borders[streams]
        first = borders[:-1] + np.diff(self._dealt(self.given + min(batch, self.full) * self.batch_size, streams))
        begin, end = self.blocks.starts[places], self.blocks.starts[places + 1]
        found: np.ndarray = np.any((begin[:, None] < borders[1:]) & (end[:, None] > first), axis=1)
        return found


def bounds_of(rows: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return between which of some rows the share of a rank lies; shares differ by at most one row."""
    return rank * rows // world_size, (rank + 1) * rows // world_size


def _runs(starts: Integers, counts: Integers) -> Integers:
    """Return the numbers of runs, one after the other, by where each starts and how many it has."""
    if (counts == counts[0]).all():
        return (starts[:, None] + np.arange(counts[0])).ravel()
    ends = np.cumsum(counts)
    return np.arange(ends[-1]) + np.repeat(starts - ends + counts, counts)
