"""Verify that every row was yielded exactly once, by a sum of hashes that does not depend on their order."""

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
    """Number of yielded rows, and the sum of the hashes of their row numbers, modulo 2**64."""

    rows: int = 0
    digest: int = 0

    def add(self, *others: RowTally) -> None:
        """Add the rows of other tallies."""
        for other in others:
            self.rows += other.rows
            self.digest = (self.digest + other.digest) & 0xFFFFFFFFFFFFFFFF


def tally_batches(rows: np.ndarray, sizes: Sequence[int]) -> list[RowTally]:
    """Return the tally of each batch; `rows` are the row numbers of all batches, and `sizes` their lengths, all > 0."""
    starts = np.cumsum([0, *sizes[:-1]])
    return [RowTally(*pair) for pair in zip(sizes, np.add.reduceat(_hashes(rows), starts).tolist(), strict=True)]


def tally_schedule(schedule: Schedule, batches: range) -> RowTally:
    """Return the expected tally of the schedule's rank for the batches with the numbers in `batches`."""
    tally = RowTally()
    blocks = schedule.blocks
    row_numbers: dict[int, np.ndarray] = {}
    for start in range(0, len(batches), _WINDOW_BATCHES):
        plan = schedule.window(batches[start : start + _WINDOW_BATCHES])
        row_numbers = {position: row_numbers[position] for position in plan.block_positions if position in row_numbers}
        rows = np.empty(sum(plan.sizes), np.int64)
        for part in plan.slices:
            if part.block_position not in row_numbers:
                row_numbers[part.block_position] = blocks.row_numbers(part.block_position)
            rows[part.target] = row_numbers[part.block_position][part.within]
        tally.add(*tally_batches(rows, plan.sizes))
    return tally


def verify_tally(schedule: Schedule, batches: range, tally: RowTally) -> dict[str, int]:
    """Return the numbers of rows and batches, or raise CorruptDatasetError if the schedule has another tally."""
    expected_tally = tally_schedule(schedule, batches)
    if expected_tally != tally:
        raise CorruptDatasetError(
            f"epoch {schedule.blocks.epoch}, rank {schedule.rank}: the {tally.rows:,} rows yielded are not the "
            f"{expected_tally.rows:,} rows expected of {len(batches):,} batches: batches were lost or repeated"
        )
    return {"rows": expected_tally.rows, "batches": len(batches)}


def _hashes(rows: np.ndarray) -> np.ndarray:
    """Return a 64-bit hash of each row number."""
    words = (rows.astype(np.uint64) + np.uint64(1)) * _HASH_MULTIPLIER
    words ^= words >> np.uint64(29)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(32)
    return words
