"""Media of windows: decoded row by row by threads, and kept block by block in the cache."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.dataset.mapped import MappedChunks
from daskprep.errors import ConfigError, MediaError
from daskprep.loader.blocks import Group, Pool, groups_of
from daskprep.loader.times import Times
from daskprep.media.decoding import AudioDecoder
from daskprep.storage import Folder

if TYPE_CHECKING:
    from daskprep.dataset import Split
    from daskprep.dataset.cache import BlockCache, GrowingBlock
    from daskprep.features.media import MediaFeature
    from daskprep.storage import Output

__all__ = ["Caching", "Media", "MediaBlock", "Medium", "most_ahead", "prefetch_of"]

_MOST_THREADS = 16
_REMOTE_THREADS = 32
# Spectra are computed for several sounds at once.
_LEAST_SOUNDS = 16
# Sounds that take less time each are decoded by one thread at a time; as much as this may one be late.
_QUICK_SECONDS = 0.00006
_MOST_SPARE_SECONDS = 1.0
_TASK_ROWS = 32
_LAST_ROWS = 8
# Cells are small, and are read long before the rows of their blocks can be decoded.
_MOST_AHEAD = 2
_LARGE_ROW_BYTES = 4096


@dataclass(frozen=True)
class Caching:
    """Which media a loader caches, and where: as its features say, unless the loader says otherwise.

    Attributes
    ----------
    wanted : bool or None
        Whether all media are cached, or none; None: those with ``mode="lazy_cached"``.
    folder : str or None
        Where caches lie; None: within the dataset.
    limit : int or None
        Bytes that all caches there may have.
    """

    wanted: bool | None = None
    folder: str | None = None
    limit: int | None = None

    @classmethod
    def of(cls, cache: object, cache_dir: object, cache_limit: int | None) -> Caching:
        """Return what the options of a loader ask for, or raise ConfigError."""
        if not isinstance(cache, bool | None):
            raise ConfigError(f"cache={cache!r}: expected True, False, or None for what the features say")
        if not isinstance(cache_dir, str | os.PathLike | None):
            raise ConfigError(f"cache_dir={cache_dir!r}: expected a folder, or None to cache within the dataset")
        return cls(cache, None if cache_dir is None else os.fspath(cache_dir), cache_limit)

    def names(self, split: Split, outputs: Iterable[Output]) -> frozenset[str]:
        """Return the names of the outputs that are cached."""
        names = [output.name for output in outputs if output.is_cells]
        if self.wanted is None:
            return frozenset(name for name in names if _feature(split, name).mode == "lazy_cached")
        return frozenset(names if self.wanted else ())

    def cache(self, split: Split, name: str) -> BlockCache:
        """Return the cache of an output."""
        return split.cache(name, None if self.folder is None else Folder.open(self.folder), self.limit)

    def prepare(self, split: Split, outputs: Sequence[Output]) -> None:
        """Import what decoding needs, if anything is to be decoded: a machine with whole caches may lack it."""
        for name in self.undecoded(split, groups_of(outputs, self.names(split, outputs))):
            split.dataset.decoder(name).prepare()

    def undecoded(self, split: Split, groups: Iterable[Group]) -> list[str]:
        """Return the names of the media that are to be decoded, as no cache has all of them."""
        media = [group for group in groups if group.is_cells]
        return [group.name for group in media if not group.is_cached or not self.cache(split, group.name).complete]

    def threads(self, split: Split, names: Sequence[str]) -> int:
        """Return how many threads keep decoding some media busy."""
        if not names:
            return 0
        if any(_is_remote(split, name) for name in names):
            return _REMOTE_THREADS
        return max(2, min(_MOST_THREADS, os.cpu_count() or 1))


def prefetch_of(split: Split, groups: Iterable[Group]) -> int | None:
    """Return the largest prefetch_size that was given to features of media, or None."""
    sizes = [_feature(split, group.name).prefetch_size for group in groups if group.is_cells]
    return max((size for size in sizes if size is not None), default=None)


def most_ahead(groups: Iterable[Group]) -> int | None:
    """Return how many blocks are worth reading ahead for each stream where rows are decoded later; None: any number."""
    return _MOST_AHEAD if any(group.is_cells for group in groups) else None


def _feature(split: Split, name: str) -> MediaFeature:
    return cast("MediaFeature", split.dataset.features[name])


def _is_remote(split: Split, name: str) -> bool:
    """Tell by its first block whether an output names files that lie elsewhere."""
    if _feature(split, name).pack:
        return False
    blocks = split.media(name)
    paths = pc.struct_field(blocks.cells(split.block(name, 0)), "path").drop_null()
    base = blocks.decoder.reader.base or ""
    return len(paths) > 0 and ("://" in base or bool(pc.any(pc.match_substring(paths, "://")).as_py()))


class _Piece(NamedTuple):
    """Rows of one block, with the cells they have there, and where they go."""

    block: MediaBlock
    cells: pa.StructArray
    within: np.ndarray
    at: np.ndarray


def _bring_to_slots(pieces: Sequence[_Piece], rows: np.ndarray) -> None:
    """Copy decoded rows to the slots of their blocks, all at once: each copy hands the interpreter over."""
    slotted = [piece for piece in pieces if piece.block.kept is not None and not piece.block.is_growing]
    if slotted:
        at = np.concatenate([piece.at for piece in slotted])
        places = np.concatenate([piece.block.first + piece.within for piece in slotted])
        kept = slotted[0].block.kept
        assert kept is not None
        order = np.argsort(at)
        kept[places[order]] = rows if len(at) == len(rows) else rows[at[order]]


def _copy_rows(source: np.ndarray, rows: np.ndarray, out: np.ndarray, at: np.ndarray) -> None:
    """Copy rows of one array to places of another."""
    if source[:1].nbytes < _LARGE_ROW_BYTES:
        out[at] = source[rows]
        return
    # Each once, and while others run.
    for row, place in zip(rows.tolist(), at.tolist(), strict=True):
        out[place] = source[row]


class MediaBlock:
    """One output's share of a resident block: cells, or in a slot its rows that are decoded.

    The slot is a part of `kept`, the rows from `first` on.
    """

    def __init__(self, medium: Medium, number: int, kept: np.ndarray | None, first: int) -> None:
        self._medium = medium
        self.number = number
        self.kept = kept
        self.first = first
        self._slot = None if kept is None else kept[first : first + medium.block_rows]
        self._rows = self._slot  # those that are decoded; not the slot's if they are read from the cache
        self._where = medium.split.block(medium.group.name, number)
        self._cells: pa.StructArray | None = None
        self._growing: GrowingBlock | None = None  # takes the rows, and no memory, where it is possible
        self._done = np.zeros(self._where.rows, bool)
        self._is_filled = False
        self._is_settled = medium.cache is None  # nothing is to be written any more
        self._lock = threading.Lock()

    def load(self) -> None:
        """Read the rows from the cache or, as long as they are not there, the cells."""
        cache, slot = self._medium.cache, self._slot
        if cache is not None and slot is not None:
            found = cache.read(self.number, slot, self._medium.mapped)
            if found is not None:
                self._rows = found
                self._done[:] = self._is_settled = True
                return
            self._growing = cache.begin(self.number)
        self._cells = self._medium.blocks.cells(self._where)

    def look(self, within: np.ndarray) -> tuple[pa.StructArray | None, np.ndarray]:
        """Return the cells, and which of some rows are decoded already; without cells, all are."""
        with self._lock:
            return self._cells, self._done[within]

    def copy(self, within: np.ndarray, out: np.ndarray, at: np.ndarray) -> None:
        """Copy rows that are decoded already."""
        if self._growing is not None:
            for row, place in zip(within.tolist(), at.tolist(), strict=True):
                self._growing.read_into(row, out[place])
            return
        assert self._rows is not None
        _copy_rows(self._rows, within, out, at)

    @property
    def is_growing(self) -> bool:
        """Whether rows go to the cache one by one, and not to the slot."""
        return self._growing is not None

    def keep(self, within: np.ndarray, rows: np.ndarray, at: np.ndarray, *, filled: bool) -> None:
        """Keep decoded rows, which are in the slot if there is one; the last one lets the block be in the cache."""
        cache, slot = self._medium.cache, self._slot
        if cache is None or slot is None:
            return
        # Another thread may have brought a row before: it was the same.
        if self._growing is not None:
            for row, place in zip(within.tolist(), at.tolist(), strict=True):
                self._growing.keep(row, rows[place])
        with self._lock:
            self._done[within] = True
            self._is_filled |= filled
            if self._is_settled or not self._done.all():
                return
            self._is_settled, self._cells = True, None
        # What stands for a broken file is no data, and the file may be mended.
        if self._is_filled or self._medium.is_full:
            return
        if self._growing is None:
            self._medium.wrote(is_kept=cache.write(self.number, slot[: self._where.rows]))
        else:
            self._growing.finish()
            self._medium.wrote(is_kept=True)

    def close(self) -> None:
        """Let go of what is open."""
        if self._growing is not None:
            self._growing.close()

    def check(self, failures: Sequence[Any], within: np.ndarray) -> None:
        """Raise MediaError for the first failure, unless failures are filled."""
        self._medium.blocks.check(self._where, failures, within)

    @property
    def is_unfinished(self) -> bool:
        """Whether some rows, and not all, wait in the slot to be written."""
        return not (self._is_settled or self._is_filled or self._medium.is_full) and bool(self._done.any())

    def finish(self) -> None:
        """Decode what no window asked for, so that the block can be written, unless another process wrote it."""
        cells, missing = self._cells, np.flatnonzero(~self._done)
        cache = self._medium.cache
        if cells is None or cache is None or cache.has(self.number):
            return
        try:
            self._medium.decode([_Piece(self, cells, missing, np.arange(len(missing)))])
        except MediaError:
            # It is for who asks for the row to know.
            self._is_settled = True


class Medium:
    """One output of media, as windows of a pipeline are filled with it."""

    def __init__(self, media: Media, group: Group, cache: BlockCache | None) -> None:
        self.split = media.split
        self.mapped = media.mapped
        self.group = group
        self.cache = cache
        self.blocks = self.split.media(group.name)
        self.is_full = False  # the cache has no room
        if cache is not None:
            cache.prepare()
        self._media = media
        self._output = group.outputs[0]
        self._turns = threading.Lock()
        # To be seen with the first rows; images never are.
        self._is_quick = isinstance(self.blocks.decoder, AudioDecoder)
        self._spare_seconds = 0.0  # by which what was decoded in turn was quick
        self.block_rows = self.split.layout.block_rows

    def block(self, number: int, pool: Pool, slot: int) -> MediaBlock:
        """Return a block that is to be loaded, into a slot if it is cached."""
        return MediaBlock(self, number, pool.arrays.get(self.group), slot * self.block_rows)

    def tasks(self, rows: int, threads: int, *, is_last: bool) -> int:
        """Return in how many tasks some rows are best decoded: small ones at the end, so that threads end together."""
        if self._is_quick and self._spare_seconds > 0:
            return 1
        least = _LEAST_SOUNDS if isinstance(self.blocks.decoder, AudioDecoder) else 1
        count = max(threads, rows // (_LAST_ROWS if is_last else _TASK_ROWS))
        return max(1, min(count, rows // least))

    def fill(self, rows: np.ndarray, out: np.ndarray, resident: Mapping[int, MediaBlock]) -> None:
        """Bring rows of a split, by their numbers, to `out`: those that are decoded already, or by decoding them."""
        missing = np.ones(len(rows), bool)
        pieces = []
        for block, within, at in self._by_block(rows, resident):
            cells, ready = block.look(within)
            missing[at] = ~ready
            if ready.any():
                block.copy(within[ready], out, at[ready])
            if cells is not None and not ready.all():
                pieces.append(_Piece(block, cells, within[~ready], at[~ready]))
        if missing.all():
            self.decode(pieces, out)
        elif pieces:
            places = np.cumsum(missing) - 1
            out[missing] = self.decode([piece._replace(at=places[piece.at]) for piece in pieces])

    def _by_block(
        self, rows: np.ndarray, resident: Mapping[int, MediaBlock]
    ) -> Iterable[tuple[MediaBlock, np.ndarray, np.ndarray]]:
        """Give the blocks of some rows, each with which of its rows they are, and their places among those given."""
        numbers, within = np.divmod(rows, self.block_rows)
        order = np.argsort(numbers, kind="stable")
        found, starts = np.unique(numbers[order], return_index=True)
        for number, at in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
            yield resident[number], within[at], at

    def decode(self, pieces: Sequence[_Piece], out: np.ndarray | None = None) -> np.ndarray:
        """Decode rows of some blocks all at once, to where they go in `out`; the blocks keep them."""
        began = time.perf_counter()
        order = np.concatenate([piece.at for piece in pieces])
        out = self._output.empty(len(order)) if out is None else out
        cells = pa.concat_arrays([piece.cells.take(pa.array(piece.within)) for piece in pieces])
        with self._turn(len(cells)):
            failures = self.blocks.decoder.decode(cells.take(pa.array(np.argsort(order))), out)
        _bring_to_slots(pieces, out)
        for block, _, within, at in pieces:
            places = {row: i for i, row in enumerate(at.tolist())} if failures else {}
            failed = [one._replace(row=places[one.row]) for one in failures if one.row in places]
            block.check(failed, within)
            if self.cache is not None:
                block.keep(within, out, at, filled=bool(failed))
        self._media.count(decoding=time.perf_counter() - began, decoded=len(order), filled=len(failures))
        return out

    @contextmanager
    def _turn(self, rows: int) -> Iterator[None]:
        """Let one thread at a time decode what takes less time than to hand the interpreter from thread to thread."""
        if self._is_quick:
            with self._turns:
                if self._is_quick:  # still, after the turns of others
                    began = time.perf_counter()
                    yield
                    # Of all so far, as a thread may have been kept waiting once.
                    spare = self._spare_seconds + _QUICK_SECONDS * rows - (time.perf_counter() - began)
                    self._spare_seconds = min(spare, _MOST_SPARE_SECONDS)
                    self._is_quick = spare > 0
                    return
        yield

    def wrote(self, *, is_kept: bool) -> None:
        """Note that a block was written to the cache, or that there was no room for it."""
        if is_kept:
            self._media.count(cached=1)
        else:
            self.is_full = True


class Media:
    """The media of a pipeline's windows."""

    def __init__(
        self, split: Split, groups: Iterable[Group], caching: Caching, times: Times, mapped: MappedChunks
    ) -> None:
        self.split = split
        self.mapped = mapped
        self._times = times
        self._lock = threading.Lock()
        self.members = [
            Medium(self, group, caching.cache(split, group.name) if group.is_cached else None)
            for group in groups
            if group.is_cells
        ]

    def blocks(self, number: int, pool: Pool, slot: int) -> dict[Group, MediaBlock]:
        """Return what is to be loaded of the media of a block."""
        return {medium.group: medium.block(number, pool, slot) for medium in self.members}

    def count(self, *, decoding: float = 0.0, decoded: int = 0, filled: int = 0, cached: int = 0) -> None:
        """Add to what is known of where time went."""
        with self._lock:
            self._times.decoding += decoding
            self._times.decoded += decoded
            self._times.filled += filled
            self._times.cached += cached
