"""Media of windows, decoded row by row by threads."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from daskprep.dataset.media import MediaBlocks
from daskprep.loader.groups import Group
from daskprep.media.decoding import AudioDecoder, MediaDecoder, decode_cells
from daskprep.permutation import Integers
from daskprep.storage.reading import BlockLocation

# Spectra are computed for several sounds at once.
_MIN_AUDIO_ROWS = 16
_TASK_ROWS = 32
_FINAL_TASK_ROWS = 8


class DecodeStats(NamedTuple):
    """What a task did: seconds, rows that were decoded, how many of them were filled, and blocks that were cached."""

    seconds: float = 0.0
    rows: int = 0
    filled: int = 0
    cached: int = 0


@dataclass
class Times:
    """Where an iteration spends its time: seconds summed over threads, and what the consumer waited for.

    Of media: how many rows were decoded, for how many of these a fill value stands, and how many blocks were cached.
    """

    gathering: float = 0.0
    decoding: float = 0.0
    waiting: float = 0.0
    decoded: int = 0
    filled: int = 0
    cached: int = 0

    def add(self, stats: DecodeStats) -> None:
        """Count what a task has decoded."""
        self.decoding += stats.seconds
        self.decoded += stats.rows
        self.filled += stats.filled
        self.cached += stats.cached


class CellArray(Protocol):
    """Cells of media, of which some can be taken."""

    def take(self, indices: Integers) -> pa.StructArray: ...


class MediaRows:
    """The images or sounds of one output in a block: their cells, of which each window decodes those it needs."""

    cells: CellArray | None = None  # None: all rows are decoded, or nothing was read yet
    is_unfinished = False  # whether the block should be finished before it is let go
    # What decodes the cells; None: that of all blocks. Datasets that are read as one have each its own, which reads
    # nothing but what this one may name.
    decoder: MediaDecoder | None = None

    def load(self) -> None:
        """Read the cells."""

    def lookup(self, indices: Integers) -> tuple[CellArray | None, np.ndarray]:
        """Return the cells, and which of some rows are decoded already; without cells, all are."""
        return self.cells, np.zeros(len(indices), bool)

    def row_ids(self, indices: Integers) -> Integers:
        """Return the numbers that rows have in the source."""
        raise NotImplementedError

    def copy(self, indices: Integers, out: np.ndarray, targets: Integers) -> None:
        """Copy rows that are decoded already."""
        raise NotImplementedError

    def keep(self, indices: Integers, rows: np.ndarray, sources: Integers, *, filled: bool) -> int:
        """Take rows that were decoded, and where they are; return how many blocks that made whole and cached."""
        del indices, rows, sources, filled
        return 0

    def finish(self) -> DecodeStats:
        """Decode what no window asked for, if the block is worth more whole."""
        return DecodeStats()

    def close(self) -> None:
        """Let go of what is open."""


class StoredMedia(MediaRows):
    """Cells of a block of a dataset."""

    def __init__(self, media: MediaBlocks, block: BlockLocation) -> None:
        self._media = media
        self._block = block
        self.decoder = media.decoder

    def load(self) -> None:
        self.cells = self._media.cells(self._block)

    def row_ids(self, indices: Integers) -> Integers:
        return self._media.row_ids(self._block)[indices]


class CellRows(NamedTuple):
    """Rows of one block, the cells of the block, and where the rows go."""

    media: MediaRows
    cells: CellArray
    indices: Integers
    targets: Integers


class Medium:
    """Decodes one output of media for the windows of an iteration, on any number of threads."""

    def __init__(self, group: Group, decoder: MediaDecoder) -> None:
        self.group = group
        self._decoder = decoder
        self._min_rows = _MIN_AUDIO_ROWS if isinstance(decoder, AudioDecoder) else 1

    def count_tasks(self, rows: int, min_tasks: int, *, is_last: bool) -> int:
        """Return in how many tasks some rows are best decoded: small ones at the end, so that threads end together."""
        count = max(min_tasks, rows // (_FINAL_TASK_ROWS if is_last else _TASK_ROWS))
        return max(1, min(count, rows // self._min_rows))

    def gather_rows(
        self, blocks: Sequence[MediaRows], block_indices: Integers, indices: Integers, out: np.ndarray
    ) -> DecodeStats:
        """Bring rows to `out`, of the blocks with some numbers and where they lie there: copied, or decoded."""
        missing: dict[int, list[CellRows]] = {}  # by decoder
        for block_index, targets in group_by_block(block_indices):
            media = blocks[block_index]
            cells, ready = media.lookup(indices[targets])
            if ready.any():
                media.copy(indices[targets[ready]], out, targets[ready])
            if cells is not None and not ready.all():
                rows = CellRows(media, cells, indices[targets[~ready]], targets[~ready])
                missing.setdefault(id(media.decoder), []).append(rows)
        return DecodeStats(
            *map(sum, zip(DecodeStats(), *(self.decode(cell_rows, out) for cell_rows in missing.values()), strict=True))
        )

    def decode(self, cell_rows: Sequence[CellRows], out: np.ndarray) -> DecodeStats:
        """Decode rows of some blocks of one decoder all at once, to where they go; the blocks keep them."""
        began = time.perf_counter()
        decoder = cell_rows[0].media.decoder or self._decoder
        targets = np.concatenate([rows.targets for rows in cell_rows])
        order = np.argsort(targets)
        targets = targets[order]
        cells = pa.concat_arrays([rows.cells.take(rows.indices) for rows in cell_rows]).take(order)
        decoded = out if len(targets) == len(out) else self.group.empty(len(targets))

        def row_ids() -> Integers:
            return np.concatenate([rows.media.row_ids(rows.indices) for rows in cell_rows])[order]

        failures = decode_cells(decoder, cells, decoded, self.group.name, row_ids)
        if decoded is not out:
            out[targets] = decoded
        broken = targets[[failure.row for failure in failures]]
        cached = sum(
            media.keep(indices, out, row_targets, filled=bool(np.isin(row_targets, broken).any()))
            for media, _, indices, row_targets in cell_rows
        )
        return DecodeStats(time.perf_counter() - began, len(order), len(failures), cached)


def group_by_block(block_indices: Integers) -> Iterable[tuple[int, Integers]]:
    """Give the blocks of some rows, each with the places of its rows among those given."""
    order = np.argsort(block_indices, kind="stable")
    blocks, starts = np.unique(block_indices[order], return_index=True)
    return zip(blocks.tolist(), np.split(order, starts[1:]), strict=True)
