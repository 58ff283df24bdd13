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
from daskprep.storage.reading import Block

# Spectra are computed for several sounds at once.
_LEAST_SOUNDS = 16
_TASK_ROWS = 32
_LAST_ROWS = 8


class Decoded(NamedTuple):
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

    def add(self, part: Decoded) -> None:
        """Count what a task has decoded."""
        self.decoding += part.seconds
        self.decoded += part.rows
        self.filled += part.filled
        self.cached += part.cached


class CellArray(Protocol):
    """Cells of media, of which some can be taken."""

    def take(self, at: Integers) -> pa.StructArray: ...


class MediaRows:
    """The images or sounds of one output in a block: their cells, of which each window decodes those it needs."""

    cells: CellArray | None = None  # None: all rows are decoded, or nothing was read yet
    is_unfinished = False  # whether the block should be finished before it is let go
    # What decodes the cells; None: that of all blocks. Datasets that are read as one have each its own, which reads
    # nothing but what this one may name.
    decoder: MediaDecoder | None = None

    def load(self) -> None:
        """Read the cells."""

    def look(self, at: Integers) -> tuple[CellArray | None, np.ndarray]:
        """Return the cells, and which of some rows are decoded already; without cells, all are."""
        return self.cells, np.zeros(len(at), bool)

    def row_ids(self, at: Integers) -> Integers:
        """Return the numbers that rows have in the source."""
        raise NotImplementedError

    def copy(self, at: Integers, out: np.ndarray, targets: Integers) -> None:
        """Copy rows that are decoded already."""
        raise NotImplementedError

    def keep(self, at: Integers, rows: np.ndarray, places: Integers, *, filled: bool) -> int:
        """Take rows that were decoded, and where they are; return how many blocks that made whole and cached."""
        del at, rows, places, filled
        return 0

    def finish(self) -> Decoded:
        """Decode what no window asked for, if the block is worth more whole."""
        return Decoded()

    def close(self) -> None:
        """Let go of what is open."""


class StoredMedia(MediaRows):
    """Cells of a block of a dataset."""

    def __init__(self, media: MediaBlocks, where: Block) -> None:
        self._media = media
        self._where = where
        self.decoder = media.decoder

    def load(self) -> None:
        self.cells = self._media.cells(self._where)

    def row_ids(self, at: Integers) -> Integers:
        return self._media.row_ids(self._where)[at]


class CellRows(NamedTuple):
    """Rows of one block, the cells of the block, and where the rows go."""

    media: MediaRows
    cells: CellArray
    at: Integers
    targets: Integers


class Medium:
    """Decodes one output of media for the windows of an iteration, on any number of threads."""

    def __init__(self, group: Group, decoder: MediaDecoder) -> None:
        self.group = group
        self._decoder = decoder
        self._least = _LEAST_SOUNDS if isinstance(decoder, AudioDecoder) else 1

    def tasks(self, rows: int, least: int, *, is_last: bool) -> int:
        """Return in how many tasks some rows are best decoded: small ones at the end, so that threads end together."""
        count = max(least, rows // (_LAST_ROWS if is_last else _TASK_ROWS))
        return max(1, min(count, rows // self._least))

    def fill(self, blocks: Sequence[MediaRows], numbers: Integers, at: Integers, out: np.ndarray) -> Decoded:
        """Bring rows to `out`, of the blocks with some numbers and where they lie there: copied, or decoded."""
        missing: dict[int, list[CellRows]] = {}  # by decoder
        for number, places in by_block(numbers):
            media = blocks[number]
            cells, ready = media.look(at[places])
            if ready.any():
                media.copy(at[places[ready]], out, places[ready])
            if cells is not None and not ready.all():
                rows = CellRows(media, cells, at[places[~ready]], places[~ready])
                missing.setdefault(id(media.decoder), []).append(rows)
        return Decoded(*map(sum, zip(Decoded(), *(self.decode(some, out) for some in missing.values()), strict=True)))

    def decode(self, found: Sequence[CellRows], out: np.ndarray) -> Decoded:
        """Decode rows of some blocks of one decoder all at once, to where they go; the blocks keep them."""
        began = time.perf_counter()
        decoder = found[0].media.decoder or self._decoder
        targets = np.concatenate([rows.targets for rows in found])
        order = np.argsort(targets)
        targets = targets[order]
        cells = pa.concat_arrays([rows.cells.take(rows.at) for rows in found]).take(order)
        decoded = out if len(targets) == len(out) else self.group.empty(len(targets))

        def row_ids() -> Integers:
            return np.concatenate([rows.media.row_ids(rows.at) for rows in found])[order]

        failures = decode_cells(decoder, cells, decoded, self.group.name, row_ids)
        if decoded is not out:
            out[targets] = decoded
        broken = targets[[failure.row for failure in failures]]
        cached = sum(
            media.keep(at, out, places, filled=bool(np.isin(places, broken).any())) for media, _, at, places in found
        )
        return Decoded(time.perf_counter() - began, len(order), len(failures), cached)


def by_block(numbers: Integers) -> Iterable[tuple[int, Integers]]:
    """Give the blocks of some rows, each with the places of its rows among those given."""
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    return zip(found.tolist(), np.split(order, starts[1:]), strict=True)
