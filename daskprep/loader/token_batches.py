"""Batches of rows of similar length, as many rows as fit a number of padded tokens.

Rows of a group of similar lengths are sorted, and every `batch_size` of them are a part. Consecutive parts are
joined to a batch while its padded tokens stay within the bound, and the batches are permuted within their group. A
batch is a run of parts, so that every rank has as many rows of it, and the number of rows yielded is a position.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from daskprep.errors import ConfigError
from daskprep.loader.order import Schedule, WindowPlan
from daskprep.permutation import Integers, make_key, permute

_MAX_GROUP_PARTS = 4096


@dataclass(frozen=True)
class TokenBatches:
    """The batches of an epoch as runs of parts."""

    orders: tuple[Integers, ...]  # by group: its parts, batch after batch
    starts: Integers  # number of the first part of each batch, in this order, and of all parts


@dataclass(frozen=True)
class TokenSchedule(Schedule):
    """The batches of an epoch with a bound of padded tokens; a part has `batch_size` rows.

    `cut_epoch` returns the batches for `token_batches`, the same for every rank and position.
    """

    token_batches: TokenBatches = TokenBatches((), np.zeros(1, np.int64))
    max_group_batches: int = _MAX_GROUP_PARTS

    def cut_epoch(self, tokens: int, multiple: int) -> TokenBatches:
        """Return the batches of the epoch, of at most `tokens` padded tokens over all ranks.

        Widths are rounded up to a `multiple`. If rows are left after the parts, the last part is a separate batch,
        because ranks that outnumber these rows share its rows, too.
        """
        blocks, part_rows = self.blocks, self.batch_size
        assert self.lengths is not None
        lengths = [self.lengths[blocks.row_numbers(position)] for position in range(len(blocks.order))]
        in_sequence = np.concatenate(lengths)
        each, group_rows = part_rows // self.streams, self._group_rows
        orders: list[Integers] = []
        counts = [0]
        stop = blocks.rows // part_rows * each  # rows of a stream in parts
        for group, start in enumerate(range(0, stop, group_rows)):
            rows = np.arange(start, min(start + group_rows, stop))
            ordered = np.sort(in_sequence[self.stream_borders[:-1, None] + rows], axis=1, kind="stable")
            longest = ordered[:, each - 1 :: each].max(axis=0).astype(np.int64)
            widths = np.maximum(1, -(-longest // multiple)) * multiple
            own = int(start + group_rows >= stop and blocks.rows % part_rows > 0)
            edges = cut_runs(widths[: len(widths) - own], part_rows, tokens)
            key = make_key(blocks.seed, "lengths", blocks.epoch, group)
            order = permute(np.arange(len(edges) - 1), len(edges) - 1, key).tolist() if len(edges) > 1 else []
            runs = [np.arange(edges[run], edges[run + 1]) for run in order] + [np.array([len(widths) - 1])] * own
            orders.append(np.concatenate(runs))
            counts += [len(run) for run in runs]
        return TokenBatches(tuple(orders), np.cumsum(counts))

    @cached_property
    def _starts(self) -> Integers:
        """Number of the first part of each remaining batch, from the first remaining part on, and of all parts."""
        starts = self.token_batches.starts - self.rows_before // self.batch_size
        starts = starts[starts >= 0]
        is_between = self.rows_before % self.batch_size > 0 and self.full_batches > 0
        if self.rows_before < self.blocks.rows and (not len(starts) or starts[0] or is_between):
            raise ConfigError(f"state: rows_given={self.rows_before}: no batch of the epoch starts after these rows")
        # Rows after the parts may be a separate batch.
        return starts if self.part_count in starts[-1:] else np.append(starts, self.part_count)

    @property
    def max_rank_rows(self) -> int:
        return len(self.rank_range) * int(np.diff(self._starts).max(initial=1))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def rows_yielded(self, batches: int) -> int:
        return super().rows_yielded(int(self._starts[min(batches, len(self))]))

    def window(self, batches: range) -> WindowPlan:
        if len(batches) > 1 and batches.step > 1:
            plans = [self.window(batches[number : number + 1]) for number in range(len(batches))]
            sizes = [size for plan in plans for size in plan.sizes]
            offsets = np.cumsum([0, *sizes[:-1]]).tolist()
            parts = [
                replace(part, target=part.target + offset)
                for plan, offset in zip(plans, offsets, strict=True)
                for part in plan.slices
            ]
            return WindowPlan(tuple(sizes), tuple(parts))
        starts = self._starts[batches[0] : batches[-1] + 1]
        plan = super().window(self._parts(batches))
        return WindowPlan(tuple(np.add.reduceat(plan.sizes, starts - starts[0]).tolist()), plan.slices)

    def block_positions(self, batches: range) -> list[int]:
        runs = [batches] if batches.step == 1 else [batches[number : number + 1] for number in range(len(batches))]
        positions = [super(TokenSchedule, self).block_positions(self._parts(run)) for run in runs]
        return list(dict.fromkeys(position for run in positions for position in run))

    def _parts(self, batches: range) -> range:
        """Return the numbers of the parts of consecutive batches."""
        return range(int(self._starts[batches[0]]), int(self._starts[batches[-1] + 1]))

    def mask_needed(self, block_positions: Integers, batch: int) -> np.ndarray:
        return super().mask_needed(block_positions, int(self._starts[batch]))

    def order_parts(self, group: int, count: int) -> Integers:
        return self.token_batches.orders[group]


def cut_runs(widths: Integers, part_rows: int, tokens: int) -> list[int]:
    """Return the edges of runs of parts with ascending `widths` whose rows, times the last width, are within `tokens`.

    A run has at least one part.
    """
    edges = [0]
    while edges[-1] < len(widths):
        rest = widths[edges[-1] :]
        padded = np.arange(1, len(rest) + 1) * rest * part_rows
        edges.append(edges[-1] + max(1, int(np.searchsorted(padded, tokens, side="right"))))
    return edges
