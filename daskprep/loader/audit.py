"""Prove that every row was given exactly once: a sum that does not depend on the order of what is added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from daskprep.errors import CorruptDatasetError
from daskprep.loader.order import Schedule

_ODD = np.uint64(0x9E3779B97F4A7C15)
_WINDOW_BATCHES = 64


@dataclass
class GivenRows:
    """How many rows were given, and the sum of a hash of their numbers."""

    rows: int = 0
    digest: int = 0

    def join(self, *others: GivenRows) -> None:
        """Count the rows that other tallies have counted."""
        for other in others:
            self.rows += other.rows
            self.digest = (self.digest + other.digest) & 0xFFFFFFFFFFFFFFFF


def tallies(rows: np.ndarray, sizes: Sequence[int]) -> list[GivenRows]:
    """Return the tallies of batches that lie one after the other; none of them is empty."""
    starts = np.cumsum([0, *sizes[:-1]])
    return [GivenRows(*one) for one in zip(sizes, np.add.reduceat(_hashes(rows), starts).tolist(), strict=True)]


def expected(schedule: Schedule, batches: range) -> GivenRows:
    """Return the tally of some batches of a rank, from the order alone."""
    tally = GivenRows()
    blocks = schedule.blocks
    orders: dict[int, np.ndarray] = {}
    for start in range(0, len(batches), _WINDOW_BATCHES):
        share = schedule.window(batches[start : start + _WINDOW_BATCHES])
        orders = {place: orders[place] for place in share.places if place in orders}
        rows = np.empty(sum(share.sizes), np.int64)
        for piece in share.pieces:
            if piece.place not in orders:
                orders[piece.place] = blocks.numbers(piece.place)
            rows[piece.target] = orders[piece.place][piece.within]
        tally.join(*tallies(rows, share.sizes))
    return tally


def proven(schedule: Schedule, batches: range, tally: GivenRows) -> dict[str, int]:
    """Return what was given in some batches, or raise CorruptDatasetError if it is not what the order says."""
    due = expected(schedule, batches)
    if due != tally:
        raise CorruptDatasetError(
            f"epoch {schedule.blocks.epoch}, rank {schedule.rank}: the {tally.rows:,} rows yielded are not the "
            f"{due.rows:,} rows expected of {len(batches):,} batches: batches were lost or repeated"
        )
    return {"rows": due.rows, "batches": len(batches)}


def _hashes(rows: np.ndarray) -> np.ndarray:
    words = (rows.astype(np.uint64) + np.uint64(1)) * _ODD
    words ^= words >> np.uint64(29)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(32)
    return words
