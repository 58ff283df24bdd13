"""Which rows of a stream come when: partitions in some order, and their rows strewn over windows of a few of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from daskprep.errors import ConfigError
from daskprep.loader.order import Blocks, Schedule
from daskprep.permutation import Integers, make_key, permute
from daskprep.streaming.encoding import RankShare, Stretch


@dataclass(frozen=True)
class Order:
    """The order of all epochs: a pure function of these numbers."""

    sizes: Integers  # rows that each partition gives
    window_rows: int  # rows that a window has at most, unless one partition alone has more
    seed: int
    shuffle: bool

    @property
    def rows(self) -> int:
        return int(self.sizes.sum())

    def epoch(self, epoch: int) -> EpochWindows:
        """Return the windows of an epoch."""
        numbers = np.flatnonzero(self.sizes)
        order = numbers
        if self.shuffle:
            order = np.empty_like(numbers)
            key = make_key(self.seed, "partitions", epoch)
            order[permute(np.arange(len(numbers)), len(numbers), key)] = numbers
        borders = np.array(list(self._borders(self.sizes[order], epoch)), np.int64)
        ends = np.concatenate(([0], np.cumsum(self.sizes[order])))
        return EpochWindows(
            sizes=np.diff(ends[borders]),
            block_rows=0,
            seed=self.seed,
            epoch=epoch,
            shuffle=self.shuffle,
            partition_sizes=self.sizes,
            partitions=order,
            borders=borders,
        )

    def _borders(self, sizes: Integers, epoch: int) -> Iterator[int]:
        begin = rows = 0
        # The first batch of all waits for one partition, and the first windows for as many as are there by then.
        most = 1 if epoch == 0 else len(sizes)
        yield 0
        for place, size in enumerate(sizes.tolist()):
            if place > begin and (rows + size > self.window_rows or place - begin >= most):
                yield place
                begin, rows, most = place, 0, 2 * most
            rows += size
        yield len(sizes)


@dataclass(frozen=True, kw_only=True)
class EpochWindows(Blocks):
    """The sequence of the rows of an epoch, with windows for blocks; row numbers are those of the split."""

    partition_sizes: Integers  # rows that each partition gives
    partitions: Integers  # the partitions in the order of the epoch
    borders: Integers  # where windows begin among these, and where the last ends

    @cached_property
    def order(self) -> Integers:
        return np.arange(len(self.sizes))

    @cached_property
    def first_numbers(self) -> Integers:
        """The number in the split of the first row that each partition gives."""
        first: Integers = np.cumsum(self.partition_sizes) - self.partition_sizes
        return first

    def members(self, window: int) -> Iterator[tuple[int, Stretch]]:
        """Give the partitions of a window, each with where its rows lie in the sequence."""
        key = make_key(self.seed, "window", self.epoch, window) if self.shuffle else None
        first, start = 0, int(self.starts[window])
        for number in self.partitions[self.borders[window] : self.borders[window + 1]].tolist():
            rows = int(self.partition_sizes[number])
            yield number, Stretch(start, first, rows, int(self.sizes[window]), key)
            first += rows

    def numbers(self, place: int) -> Integers:
        numbers = np.empty(self.sizes[place], np.int64)
        for number, stretch in self.members(place):
            rows = np.arange(stretch.rows) + self.first_numbers[number]
            numbers[stretch.positions() - stretch.start] = rows
        return numbers


def share_of(schedule: Schedule) -> RankShare:
    """Return which positions of the sequence the rank of a schedule is given."""
    tail = range(0)
    if not schedule.drop_last and len(positions := schedule.tail()):
        tail = range(int(positions[0]), int(positions[-1]) + 1)
    return RankShare(schedule.given, schedule.full, schedule.batch_size, schedule.share, tail)


def check_window(sizes: Integers, row_bytes: int, window_bytes: int, given: object) -> int:
    """Return how many rows a window may have: one half is given while the other is made; a partition must fit."""
    largest = int(sizes.argmax())
    nbytes = int(sizes[largest]) * row_bytes
    if nbytes > window_bytes:
        raise ConfigError(
            f"window={given!r} is too small: partition {largest} has {sizes[largest]:,} rows, which take {nbytes:,} "
            "bytes encoded; give a window of twice as much, or smaller partitions: read_files(..., partition_bytes=...)"
        )
    return max(1, window_bytes // 2 // row_bytes)
