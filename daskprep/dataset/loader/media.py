"""Decode the images and audio of windows in threads."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from daskprep.columns.deferred.decoders import MediaDecoder, decode_cells
from daskprep.columns.permutation import Integers
from daskprep.dataset.cache import MediaBlocks
from daskprep.dataset.loader.groups import Group
from daskprep.storage.reading import BlockLocation

_TASK_ROWS = 32
_FINAL_TASK_ROWS = 8


class DecodeStats(NamedTuple):
    """Statistics of a task: seconds, decoded rows, rows among these with a fill value, and blocks cached."""

    seconds: float = 0.0
    rows: int = 0
    filled: int = 0
    cached: int = 0


@dataclass
class Times:
    """Statistics of an iteration; seconds are summed over threads."""

    gathering: float = 0.0
    decoding: float = 0.0
    waiting: float = 0.0  # seconds that the consumer waited
    decoded: int = 0  # rows of media
    filled: int = 0  # rows of media with a fill value, because decoding failed
    cached: int = 0  # blocks written to a cache

    def add(self, stats: DecodeStats) -> None:
        self.decoding += stats.seconds
        self.decoded += stats.rows
        self.filled += stats.filled
        self.cached += stats.cached


class CellArray(Protocol):
    """Encoded media of a block, by row index."""

    def take(self, indices: Integers) -> pa.StructArray: ...


class MediaRows:
    """The images or audio of one output in a block; each window decodes the rows that it needs."""

    cells: CellArray | None = None  # encoded media; None: all rows are decoded, or the block is not loaded
    is_unfinished = False  # whether to call `finish` before the block is released
    # All rows, in memory or mapped. None: `lookup` finds those that are decoded.
    decoded: np.ndarray | None = None
    # None: the decoder of the output. Each of several joined datasets has a separate decoder, which reads only files
    # that this dataset may refer to.
    decoder: MediaDecoder | None = None

    def load(self) -> None:
        """Read the cells."""

    def lookup(self, indices: Integers) -> tuple[CellArray | None, np.ndarray]:
        """Return the cells, and a mask of the rows in `indices` that are decoded already; all are if cells is None."""
        return self.cells, np.zeros(len(indices), bool)

    def row_ids(self, indices: Integers) -> Integers:
        """Return the numbers in the source of the rows `indices`."""
        raise NotImplementedError

    def copy(self, indices: Integers, out: np.ndarray, targets: Integers) -> None:
        """Copy the decoded rows `indices` to the rows `targets`."""
        raise NotImplementedError

    def keep(self, indices: Integers, rows: np.ndarray, sources: Integers, *, filled: bool) -> int:
        """Store decoded rows, if there is a cache.

        Return the number of blocks completed and cached by this, 0 or 1. Row ``indices[i]`` of the block is row
        ``sources[i]`` of `rows`. `filled` is whether any has a fill value.
        """
        del indices, rows, sources, filled
        return 0

    def finish(self) -> DecodeStats:
        """Decode the rows that no window has needed, if the complete block can be cached; return the statistics."""
        return DecodeStats()

    def close(self) -> None:
        """Close open files."""


class StoredMedia(MediaRows):
    """Encoded media of a block, read from the files of a dataset."""

    def __init__(self, media: MediaBlocks, block: BlockLocation) -> None:
        self._media = media
        self._block = block
        self.decoder = media.decoder

    def load(self) -> None:
        self.cells = self._media.cells(self._block)

    def row_ids(self, indices: Integers) -> Integers:
        return self._media.row_ids(self._block)[indices]


class CellRows(NamedTuple):
    """Rows to decode: the block and its cells, row indices in the block, and row indices in the result."""

    media: MediaRows
    cells: CellArray
    indices: Integers
    targets: Integers


class Medium:
    """Decoding of one output of media for the windows of an iteration; methods are thread-safe."""

    def __init__(self, group: Group, decoder: MediaDecoder) -> None:
        self.group = group
        # Whether batches copy their rows from blocks that are decoded, instead of windows: see `find_rows`.
        self.is_late = False
        self._decoder = decoder
        self._min_rows = decoder.min_rows

    def count_tasks(self, rows: int, min_tasks: int, *, is_last: bool) -> int:
        """Return the number of tasks that decode `rows` rows: small ones for the last window."""
        count = max(min_tasks, rows // (_FINAL_TASK_ROWS if is_last else _TASK_ROWS))
        return max(1, min(count, rows // self._min_rows))

    def find_rows(
        self, blocks: Sequence[MediaRows], block_indices: Integers, indices: Integers
    ) -> list[np.ndarray] | None:
        """Return views of rows; None if a block is not all decoded."""
        arrays = [media.decoded for media in blocks if media.decoded is not None]
        if len(arrays) < len(blocks):
            return None
        return [arrays[block][row] for block, row in zip(block_indices.tolist(), indices.tolist(), strict=True)]

    def gather_rows(
        self, blocks: Sequence[MediaRows], block_indices: Integers, indices: Integers, out: np.ndarray
    ) -> DecodeStats:
        """Write rows of blocks to `out`, decoding those not decoded before; return the statistics.

        Row i of `out` is row ``indices[i]`` of block ``blocks[block_indices[i]]``.
        """
        if (decoded := self.find_rows(blocks, block_indices, indices)) is not None:
            copy_rows(decoded, out)
            return DecodeStats()
        missing: dict[int, list[CellRows]] = {}  # by decoder
        for block_index, targets in group_by_block(block_indices):
            media = blocks[block_index]
            cells, ready = media.lookup(indices[targets])
            if ready.any():
                media.copy(indices[targets[ready]], out, targets[ready])
            if cells is not None and not ready.all():
                rows = CellRows(media, cells, indices[targets[~ready]], targets[~ready])
                missing.setdefault(id(media.decoder), []).append(rows)
        stats = [self.decode(cell_rows, out) for cell_rows in missing.values()]
        return DecodeStats(*map(sum, zip(DecodeStats(), *stats, strict=True)))

    def decode(self, cell_rows: Sequence[CellRows], out: np.ndarray) -> DecodeStats:
        """Decode rows of blocks to `out`, and store them in the blocks; failures are filled, or MediaError."""
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
            media.keep(indices, out, row_targets, filled=bool(failures) and bool(np.isin(row_targets, broken).any()))
            for media, _, indices, row_targets in cell_rows
        )
        return DecodeStats(time.perf_counter() - began, len(order), len(failures), cached)


def copy_rows(rows: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Copy rows of several arrays with one call, which needs no temporary array and releases the GIL for each row."""
    np.concatenate(rows, out=out.reshape(-1, *out.shape[2:]))


def group_by_block(block_indices: Integers) -> Iterable[tuple[int, Integers]]:
    """Yield each block index, with its positions."""
    order = np.argsort(block_indices, kind="stable")
    blocks, starts = np.unique(block_indices[order], return_index=True)
    return zip(blocks.tolist(), np.split(order, starts[1:]), strict=True)
