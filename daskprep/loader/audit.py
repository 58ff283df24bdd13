"""Prove that every row was given exactly once: a sum that does not depend on the order of what is added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from daskprep.errors import CorruptDatasetError
from daskprep.loader.order import Schedule

_HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_WINDOW_BATCHES = 64


@dataclass
class RowTally:
    """How many rows were given, and the sum of a hash of their numbers."""

    rows: int = 0
    digest: int = 0

    def add(self, *others: RowTally) -> None:
        """Count the rows that other tallies have counted."""
        for other in others:
            self.rows += other.rows
            self.digest = (self.digest + other.digest) & 0xFFFFFFFFFFFFFFFF


def tally_batches(rows: np.ndarray, sizes: Sequence[int]) -> list[RowTally]:
    """Return the tallies of batches that lie one after the other; none of them is empty."""
    starts = np.cumsum([0, *sizes[:-1]])
    return [RowTally(*one) for one in zip(sizes, np.add.reduceat(_hashes(rows), starts).tolist(), strict=True)]


def tally_schedule(schedule: Schedule, batches: range) -> RowTally:
    """Return the tally of some batches of a rank, from the order alone."""
    tally = RowTally()
    blocks = schedule.blocks
    numbers_by_position: dict[int, np.ndarray] = {}
    for start in range(0, len(batches), _WINDOW_BATCHES):
        plan = schedule.window(batches[start : start + _WINDOW_BATCHES])
        numbers_by_position = {
            block_position: numbers_by_position[block_position]
            for block_position in plan.block_positions
            if block_position in numbers_by_position
        }
        rows = np.empty(sum(plan.sizes), np.int64)
        for block_slice in plan.slices:
            if block_slice.block_position not in numbers_by_position:
                numbers_by_position[block_slice.block_position] = blocks.row_numbers(block_slice.block_position)
            rows[block_slice.target] = numbers_by_position[block_slice.block_position][block_slice.within]
        tally.add(*tally_batches(rows, plan.sizes))
    return tally


def verify_tally(schedule: Schedule, batches: range, tally: RowTally) -> dict[str, int]:
    """Return what was given in some batches, or raise CorruptDatasetError if it is not what the order says."""
    expected_tally = tally_schedule(schedule, batches)
    if expected_tally != tally:
        raise CorruptDatasetError(
            f"epoch {schedule.blocks.epoch}, rank {schedule.rank}: the {tally.rows:,} rows yielded are not the "
            f"{expected_tally.rows:,} rows expected of {len(batches):,} batches: batches were lost or repeated"
        )
    return {"rows": expected_tally.rows, "batches": len(batches)}


def _hashes(rows: np.ndarray) -> np.ndarray:
    words = (rows.astype(np.uint64) + np.uint64(1)) * _HASH_MULTIPLIER
    words ^= words >> np.uint64(29)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(32)
    return words
