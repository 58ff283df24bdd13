"""The order of a stream's rows: partitions are permuted, and rows are permuted within windows of partitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from daskprep.errors import ConfigError
from daskprep.loader.order import EpochBlocks, Schedule
from daskprep.permutation import Integers, make_key, permute
from daskprep.streaming.encoding import PartitionSpan, RankShare


@dataclass(frozen=True)
class StreamOrder:
    """The order of rows in all epochs: a pure function of the attributes."""

    sizes: Integers  # rows of each partition in the split
    window_rows: int  # maximum rows of a window, unless a single partition has more
    seed: int  # of the shuffle
    shuffle: bool  # whether to permute partitions, and rows within windows

    @property
    def rows(self) -> int:
        return int(self.sizes.sum())

    def epoch(self, epoch: int) -> EpochWindows:
        """Return the windows of the epoch with this number; partitions without rows are in no window."""
        partition_numbers = np.flatnonzero(self.sizes)
        order = partition_numbers
        if self.shuffle:
            order = np.empty_like(partition_numbers)
            key = make_key(self.seed, "partitions", epoch)
            order[permute(np.arange(len(partition_numbers)), len(partition_numbers), key)] = partition_numbers
        window_borders = np.array(list(self._borders(self.sizes[order], epoch)), np.int64)
        ends = np.concatenate(([0], np.cumsum(self.sizes[order])))
        return EpochWindows(
            sizes=np.diff(ends[window_borders]),
            block_rows=0,
            seed=self.seed,
            epoch=epoch,
            shuffle=self.shuffle,
            partition_sizes=self.sizes,
            partitions=order,
            window_borders=window_borders,
        )

    def _borders(self, sizes: Integers, epoch: int) -> Iterator[int]:
        """Yield the start of each window as an index of `sizes`, the rows by partition, and finally their number."""
        start = rows = 0
        # In epoch 0 the first window has one partition, so that the first batch is early; later windows double in size.
        max_partitions = 1 if epoch == 0 else len(sizes)
        yield 0
        for index, size in enumerate(sizes.tolist()):
            if index > start and (rows + size > self.window_rows or index - start >= max_partitions):
                yield index
                start, rows, max_partitions = index, 0, 2 * max_partitions
            rows += size
        yield len(sizes)


@dataclass(frozen=True, kw_only=True)
class EpochWindows(EpochBlocks):
    """The sequence of all rows of an epoch, with windows as blocks."""

    partition_sizes: Integers  # rows of each partition in the split
    partitions: Integers  # partition numbers in the order of the epoch
    window_borders: Integers  # start of each window in `partitions`, and the end of the last window

    @cached_property
    def order(self) -> Integers:
        return np.arange(len(self.sizes))

    @cached_property
    def first_numbers(self) -> Integers:
        """Row number in the split of the first row of each partition."""
        first: Integers = np.cumsum(self.partition_sizes) - self.partition_sizes
        return first

    def window_partitions(self, window: int) -> Iterator[tuple[int, PartitionSpan]]:
        """Yield the number of each partition of a window, and its span in the sequence."""
        key = make_key(self.seed, "window", self.epoch, window) if self.shuffle else None
        first, start = 0, int(self.starts[window])
        for number in self.partitions[self.window_borders[window] : self.window_borders[window + 1]].tolist():
            rows = int(self.partition_sizes[number])
            yield number, PartitionSpan(start, first, rows, int(self.sizes[window]), key)
            first += rows

    def row_numbers(self, block_position: int) -> Integers:
        """Return the row numbers in the split of the window at `block_position`, in the order of the epoch."""
        row_numbers = np.empty(self.sizes[block_position], np.int64)
        for number, span in self.window_partitions(block_position):
            rows = np.arange(span.rows) + self.first_numbers[number]
            row_numbers[span.positions() - span.start] = rows
        return row_numbers


def compute_rank_share(schedule: Schedule) -> RankShare:
    """Return the positions in the sequence of the schedule's rank."""
    tail = range(0)
    if not schedule.drop_last and len(positions := schedule.tail()):
        tail = range(int(positions[0]), int(positions[-1]) + 1)
    return RankShare(schedule.rows_before, schedule.full_batches, schedule.batch_size, schedule.rank_range, tail)


def check_window(sizes: Integers, row_bytes: int, window_bytes: int, window: object) -> int:
    """Return the maximum number of rows of a window, or raise ConfigError if a partition does not fit in the memory.

    A window has half of `window_bytes`, because one window is yielded while the next is encoded. `sizes` are the rows
    of each partition, and `window` is the option in messages.
    """
    largest = int(sizes.argmax())
    nbytes = int(sizes[largest]) * row_bytes
    if nbytes > window_bytes:
        raise ConfigError(
            f"window={window!r} is too small: partition {largest} has {sizes[largest]:,} rows, which take {nbytes:,} "
            "bytes encoded; use a window of twice as many bytes, or smaller partitions: read_files(..., "
            "partition_bytes=...)"
        )
    return max(1, window_bytes // 2 // row_bytes)
