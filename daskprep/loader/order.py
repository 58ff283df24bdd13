"""Which rows of a split come when: a pure function of seed, epoch and row numbers.

The blocks of a split are permuted, and the rows within each block. This sequence of all rows is cut into streams,
contiguous pieces that differ by at most one row. A global batch takes the same number of rows from each stream, and a
rank its share of every global batch: whole streams, so that ranks read disjoint blocks but for those at the borders.
Nothing depends on ranks, threads or workers but which of the rows of a batch go where.
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
    """Return a number of streams that divides the batch: 16 or, where that does not, the next that does.

    Instead of more than 64, it is less than 16 where that still mixes a batch, or where memory would not do.
    """
    divisors = [streams for streams in range(1, batch_size + 1) if batch_size % streams == 0]
    wanted = next((streams for streams in divisors if streams >= _STREAMS_WANTED), batch_size)
    few = max(streams for streams in divisors if streams <= MOST_STREAMS)
    return few if wanted > _MOST_BLOCKS or (wanted > MOST_STREAMS and few >= LEAST_STREAMS) else wanted


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

    `given` rows of the epoch, an equal number of each stream, were given before.
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
        short, longer = divmod(self.blocks.rows, self.streams)
        numbers = np.arange(self.streams + 1)
        return numbers * short + np.minimum(numbers, longer)

    @cached_property
    def share(self) -> int:
        """Rows of a batch that come from each stream."""
        return self.batch_size // self.streams

    @cached_property
    def _begun(self) -> int:
        """Rows of each stream that were given before."""
        return self.given // self.streams

    @cached_property
    def full(self) -> int:
        """Batches that all streams can still fill."""
        return (self.blocks.rows // self.streams - self._begun) // self.share

    @cached_property
    def _rest(self) -> int:
        """Rows that are left behind the full batches."""
        return self.blocks.rows - self.streams * (self._begun + self.full * self.share)

    @cached_property
    def _tail_alone(self) -> bool:
        """Whether what is left makes a batch of its own, and not a part of the last full one.

        Fewer rows than could be shared out to as many ranks as there may be would leave some with none.
        """
        least = self.streams if self.streams > 1 else self.world_size
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
        sizes = [self.batch_size // self.world_size] * len(full)
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
            starts, lane_rows = self._lanes(full)
            step = full.step * self.share
            stops = starts + (len(full) - 1) * step + lane_rows
            for start, *near in zip(starts.tolist(), *self._places_of(starts, stops), strict=True):
                if lane_rows == step:
                    places.update(dict.fromkeys(range(*near)))
                    continue
                near_places = np.arange(*near)
                reached = self._reached(near_places, start, step, lane_rows, len(full))
                places.update(dict.fromkeys(near_places[reached].tolist()))
        if self._has_tail(batches):
            tail = np.searchsorted(self.blocks.starts, self.tail(), side="right") - 1
            places.update(dict.fromkeys(np.unique(tail).tolist()))
        return list(places)

    def _reached(self, places: Integers, start: int, step: int, lane_rows: int, batches: int) -> np.ndarray:
        """Tell which of some blocks hold rows of a lane that leaves rows out between its batches."""
        begin, end = self.blocks.starts[places], self.blocks.starts[places + 1]
        # The first batch that ends behind the beginning of a block must begin before its end.
        first = np.maximum(-((start + lane_rows - 1 - begin) // step), 0)
        reached: np.ndarray = (start + first * step < end) & (first < batches) & (begin < end)
        return reached

    def _of_full(self, batches: range) -> Iterator[BlockRows]:
        starts, lane_rows = self._lanes(batches)
        own = self.batch_size // self.world_size
        # Where in the window the rows of the first lane go.
        target = (np.arange(len(batches))[:, None] * own + np.arange(lane_rows)).ravel()
        step = batches.step * self.share
        first, last = self._places_of(starts, starts + (len(batches) - 1) * step + lane_rows)
        for lane, (start, *places) in enumerate(zip(starts.tolist(), first, last, strict=True)):
            yield from self._of_lane(range(*places), start, step, lane_rows, target + lane * lane_rows)

    def _places_of(self, starts: Integers, stops: Integers) -> tuple[list[int], list[int]]:
        """Return between which places the blocks of each of some ranges of the sequence are."""
        first: list[int] = (np.searchsorted(self.blocks.starts, starts, side="right") - 1).tolist()
        last: list[int] = np.searchsorted(self.blocks.starts, stops, side="left").tolist()
        return first, last

    def _lanes(self, batches: range) -> tuple[Integers, int]:
        """Return where each lane begins in the sequence, and how many rows it has in a batch.

        A lane is what one stream gives to each batch of this rank.
        """
        own = self.batch_size // self.world_size
        lane_rows = min(self.share, own)
        streams, offsets = np.divmod(self.rank * own + np.arange(0, own, lane_rows), self.share)
        return self.borders[streams] + self._begun + batches.start * self.share + offsets, lane_rows

    def _of_lane(self, places: range, start: int, step: int, lane_rows: int, target: Integers) -> Iterator[BlockRows]:
        starts = self.blocks.starts[places.start : places.stop + 1].tolist()
        if lane_rows == step:
            stop = start + len(target)
            for place, (begin, end) in zip(places, pairwise(starts), strict=True):
                low, high = max(begin, start), min(end, stop)
                yield BlockRows(place, target[low - start : high - start], slice(low - begin, high - begin))
            return
        batches = len(target) // lane_rows
        positions = (start + np.arange(batches)[:, None] * step + np.arange(lane_rows)).ravel()
        edges = np.searchsorted(positions, starts).tolist()
        for place, begin, (low, high) in zip(places, starts, pairwise(edges), strict=False):
            if low < high:
                yield BlockRows(place, target[low:high], positions[low:high] - begin)

    def tail(self) -> Integers:
        """Return where this rank's share of what is left behind the full batches lies in the sequence."""
        first = self._begun + self.full * self.share
        positions = np.concatenate([np.arange(a + first, b) for a, b in pairwise(self.borders.tolist())])
        low, high = (rank * len(positions) // self.world_size for rank in (self.rank, self.rank + 1))
        return positions[low:high]

    def _of_positions(self, positions: Integers, at: int) -> Iterator[BlockRows]:
        places = np.searchsorted(self.blocks.starts, positions, side="right") - 1
        for place in np.unique(places).tolist():
            chosen = np.flatnonzero(places == place)
            yield BlockRows(place, at + chosen, positions[chosen] - int(self.blocks.starts[place]))

    def needed(self, places: Integers, batch: int) -> np.ndarray:
        """Tell which of the blocks at some places this rank still needs from a batch on."""
        own = self.batch_size // self.world_size
        lane_rows = min(self.share, own)
        streams = np.unique((self.rank * own + np.arange(0, own, lane_rows)) // self.share)
        first = self.borders[streams] + self._begun + min(batch, self.full) * self.share
        begin, end = self.blocks.starts[places], self.blocks.starts[places + 1]
        found: np.ndarray = np.any((begin[:, None] < self.borders[streams + 1]) & (end[:, None] > first), axis=1)
        return found
