"""Caches before another source: of decoded media, and of copies of the blocks of distant files."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import cast

import numpy as np
import pyarrow.compute as pc

from daskprep.dataset import Split
from daskprep.dataset.cache import BlockCache, GrowingBlock, MappedChunks, make_cache_name
from daskprep.errors import ConfigError, MediaError, StorageFullError
from daskprep.features.media import MediaFeature
from daskprep.loader.groups import Buffers, Group, group_outputs
from daskprep.loader.media import CellArray, CellRows, DecodeStats, MediaRows, Medium
from daskprep.loader.order import Schedule
from daskprep.loader.pipeline import Settings
from daskprep.loader.source import BlockSource, Need, ResidentBlock
from daskprep.permutation import Integers
from daskprep.storage import Folder, Output

_REMOTE_THREADS = 32
_LARGE_ROW_BYTES = 4096


class CachedMedia(MediaRows):
    """Rows of a block that are in the cache, or are decoded and kept until all of them are.

    They are kept in a slot, or where it is possible in the file that becomes the chunk, which takes no memory. Windows
    on several threads bring them: the lock guards which are there, and the thread that brings the last one writes the
    block. Whether it is written depends on no order, as two that decode a row get the same.
    """

    def __init__(
        self, cached_medium: CachedMedium, number: int, cells: MediaRows, buffer: np.ndarray, *, is_ours: bool
    ) -> None:
        self._cached_medium = cached_medium
        self._number = number
        self._media = cells
        self.decoder = cells.decoder
        self._buffer = buffer
        self._slot = self._rows = buffer[: cached_medium.cache.count_rows(number)]
        self._growing: GrowingBlock | None = None
        self._done = np.zeros(len(self._slot), bool)
        self._is_ours = is_ours
        self._is_filled = False
        self._is_settled = False  # nothing is to be written any more
        self._lock = threading.Lock()

    def load(self) -> None:
        cached_medium = self._cached_medium
        cached_rows = cached_medium.cache.read(self._number, self._buffer, cached_medium.mapped)
        if cached_rows is not None:
            self._rows = cached_rows
            self._done[:] = self._is_settled = True
            return
        with cached_medium.tolerate_full_disk():
            self._growing = None if cached_medium.is_full else cached_medium.cache.begin(self._number)
        self._media.load()
        self.cells = self._media.cells

    def lookup(self, indices: Integers) -> tuple[CellArray | None, np.ndarray]:
        with self._lock:
            return self.cells, self._done[indices]

    def row_ids(self, indices: Integers) -> Integers:
        return self._media.row_ids(indices)

    def copy(self, indices: Integers, out: np.ndarray, targets: Integers) -> None:
        if self._growing is not None:
            for row, target in zip(indices.tolist(), targets.tolist(), strict=True):
                self._growing.read_into(row, out[target])
        elif self._rows[:1].nbytes < _LARGE_ROW_BYTES:
            out[targets] = self._rows[indices]
        else:
            # Each once, and while others run.
            for row, target in zip(indices.tolist(), targets.tolist(), strict=True):
                out[target] = self._rows[row]

    def keep(self, indices: Integers, rows: np.ndarray, sources: Integers, *, filled: bool) -> int:
        with self._cached_medium.tolerate_full_disk():
            return self._keep(indices, rows, sources, filled=filled)
        return 0

    def _keep(self, indices: Integers, rows: np.ndarray, sources: Integers, *, filled: bool) -> int:
        # Another thread may have brought a row before: it was the same.
        if self._growing is not None:
            for row, source in zip(indices.tolist(), sources.tolist(), strict=True):
                self._growing.write_row(row, rows[source])
        else:
            self._slot[indices] = rows[sources]
        with self._lock:
            self._done[indices] = True
            self._is_filled |= filled
            if self._is_settled or not self._done.all():
                return 0
            self._is_settled, self.cells = True, None
        # What stands for a broken file is no data, and the file may be mended.
        if self._is_filled or self._cached_medium.is_full:
            return 0
        if self._growing is not None:
            self._growing.finish()
        elif not self._cached_medium.cache.write(self._number, self._slot):
            self._cached_medium.is_full = True
            return 0
        return 1

    @property
    def is_unfinished(self) -> bool:  # type: ignore[override]
        """Whether some rows, and not all, wait to be written, and no other rank or worker sees to them."""
        is_settled = self._is_settled or self._is_filled or self._cached_medium.is_full
        return self._is_ours and not is_settled and bool(self._done.any())

    def finish(self) -> DecodeStats:
        cells, missing = self.cells, np.flatnonzero(~self._done)
        if cells is None or self._cached_medium.cache.has(self._number):
            return DecodeStats()
        try:
            rows = self._cached_medium.medium.group.empty(len(missing))
            return self._cached_medium.medium.decode([CellRows(self, cells, missing, np.arange(len(missing)))], rows)
        except MediaError:
            # It is for who asks for the row to know.
            self._is_settled = True
            return DecodeStats()

    def close(self) -> None:
        if self._growing is not None:
            self._growing.close()


@dataclass
class _WritableCache:
    """A cache that blocks are written to; `is_full` once there was no room, which any thread may find out."""

    cache: BlockCache
    is_full: bool = False

    @contextmanager
    def tolerate_full_disk(self) -> Iterator[None]:
        """Go on where the disk is full, and say once that nothing more is cached."""
        try:
            yield
        except StorageFullError as error:
            self.is_full = True
            self.cache.warn_once(
                "full",
                f'"{self.cache.output.name}" is not cached any more, and blocks without a cache are read or decoded in '
                f"every epoch: {error}; give cache_limit, or a cache_dir with more room",
            )


@dataclass(kw_only=True)
class CachedMedium(_WritableCache):
    """One output that is cached."""

    medium: Medium
    mapped: MappedChunks


class _WrappedBlocks:
    """Another source, to whose blocks something is added."""

    def __init__(self, source: BlockSource[ResidentBlock], split: Split) -> None:
        self._source = source
        self._split = split

    def load(self, schedule: Schedule, block_position: int, need: Need) -> ResidentBlock | None:
        block = self._source.load(schedule, block_position, need)
        if block is not None:
            self._add(block, *self._split.locate_block(block.number))
        return block

    def _add(self, block: ResidentBlock, split: Split, number: int) -> None:
        """Add to a block, given the split of a single dataset that has it, and its number there."""
        raise NotImplementedError

    def release(self, block: ResidentBlock) -> None:
        self._source.release(block)

    def close(self) -> None:
        self._source.close()


class CachedBlocks(_WrappedBlocks):
    """Puts caches before a source, for some media of each split that is joined.

    Where several ranks or workers decode some rows of every block, the `sharer_index` of `sharer_count` sees to the others.
    """

    def __init__(
        self,
        source: BlockSource[ResidentBlock],
        split: Split,
        caches: Mapping[Split, Sequence[tuple[Medium, BlockCache]]],
        buffers: Buffers,
        sharer_index: int,
        sharer_count: int,
    ) -> None:
        super().__init__(source, split)
        self._buffers = buffers
        self._mapped = buffers.take(MappedChunks, (), MappedChunks)
        self._caches = {
            one: [CachedMedium(medium=medium, cache=cache, mapped=self._mapped) for medium, cache in pairs]
            for one, pairs in caches.items()
        }
        self._sharer = sharer_index
        self._sharers = sharer_count
        for one in chain.from_iterable(self._caches.values()):
            with one.tolerate_full_disk():
                one.cache.prepare()

    def _add(self, block: ResidentBlock, split: Split, number: int) -> None:
        is_ours = block.number % self._sharers == self._sharer
        for one in self._caches[split]:
            group = one.medium.group
            buffer = block.arrays[group][block.first : block.first + one.cache.block_rows]
            block.media[group] = CachedMedia(one, number, block.media[group], buffer, is_ours=is_ours)

    def close(self) -> None:
        self._buffers.put_back((), self._mapped)
        super().close()


class CopiedBlocks(_WrappedBlocks):
    """Reads blocks from copies on a disk of this machine, and puts those there that it lacks, as far as there is room.

    Copies are named by the digest of the dataset: ranks and runs on one machine share them, and a dataset that was
    written anew has its own. Media come by themselves, decoded, from their own caches.
    """

    def __init__(
        self,
        source: BlockSource[ResidentBlock],
        split: Split,
        groups: Sequence[Group],
        folder: Folder,
        limit: int | None,
    ) -> None:
        super().__init__(source, split)
        self._caches = {
            (one, group): _WritableCache(_open_copy_cache(one, group, folder, limit))
            for one in split.joined
            if not one.is_local
            for group in groups
            if not group.stores_cells
        }
        for writable in self._caches.values():
            with writable.tolerate_full_disk():
                writable.cache.prepare()

    def _add(self, block: ResidentBlock, split: Split, number: int) -> None:
        rows = slice(block.first, block.first + split.layout.block_rows)
        for groups, read in block.read_jobs.items() if not split.is_local else ():
            targets = [(self._caches[split, group], block.arrays[group][rows]) for group in groups]
            block.read_jobs[groups] = functools.partial(self._read_through, number, targets, read)

    def _read_through(
        self, block: int, targets: Sequence[tuple[_WritableCache, np.ndarray]], read: Callable[[], None]
    ) -> None:
        """Fill some arrays with their rows of a block."""
        for writable, target in targets:
            cached_rows = writable.cache.read(block, target)
            if cached_rows is None:
                break
            if not np.may_share_memory(cached_rows, target):
                target[: len(cached_rows)] = cached_rows
        else:
            return
        read()
        for writable, target in targets:
            with writable.tolerate_full_disk():
                if not writable.is_full and not writable.cache.write(block, target[: writable.cache.count_rows(block)]):
                    writable.is_full = True


def _open_copy_cache(split: Split, group: Group, folder: Folder, limit: int | None) -> BlockCache:
    digest, layout = split.dataset.digest, split.layout
    name = make_cache_name(dataset=digest, split=split.name, outputs=[output.name for output in group.outputs])
    output = Output(group.name, group.dtype.name, group.row_shape)
    return BlockCache(folder, name, output, len(split), layout.block_rows, layout.compression, limit, digest)


@dataclass(frozen=True)
class CachePolicy:
    """Which media a loader caches, and where: as its features say, unless the loader says otherwise."""

    cache_all: bool | None = None  # whether all media are cached, or none; None: those with ``mode="lazy_cached"``
    folder: str | None = None  # where caches lie; None: within the dataset
    limit: int | None = None  # bytes that all caches there may have

    @classmethod
    def of(cls, cache: object, cache_dir: object, cache_limit: int | None) -> CachePolicy:
        """Return what the options of a loader ask for, or raise ConfigError."""
        if not isinstance(cache, bool | None):
            raise ConfigError(f"cache={cache!r}: expected True, False, or None for what the features say")
        if not isinstance(cache_dir, str | os.PathLike | None):
            raise ConfigError(f"cache_dir={cache_dir!r}: expected a folder, or None to cache within the dataset")
        return cls(cache, None if cache_dir is None else os.fspath(cache_dir), cache_limit)

    def cached_names(self, split: Split, outputs: Iterable[Output]) -> frozenset[str]:
        """Return the names of the outputs that are cached."""
        names = [output.name for output in outputs if output.stores_cells]
        if self.cache_all is None:
            return frozenset(name for name in names if _media_feature(split, name).mode == "lazy_cached")
        return frozenset(names if self.cache_all else ())

    def open_cache(self, split: Split, name: str) -> BlockCache:
        """Return the cache of an output."""
        return split.cache(name, None if self.folder is None else Folder.open(self.folder), self.limit)

    def copy_folder(self, split: Split) -> Folder | None:
        """Return the folder for copies of the blocks of distant files, if all is to be cached on this machine."""
        if not self.cache_all or self.folder is None or split.is_local:
            return None
        folder = Folder.open(self.folder)
        return folder if folder.is_local else None

    def has_all_copies(self, split: Split, groups: Iterable[Group]) -> bool:
        """Tell whether this machine has copies of all blocks of distant files, but for media."""
        folder, array_groups = self.copy_folder(split), [group for group in groups if not group.stores_cells]
        remote_splits = [one for one in split.joined if not one.is_local]
        return folder is not None and all(
            _open_copy_cache(one, group, folder, self.limit).complete for one in remote_splits for group in array_groups
        )

    def prepare(self, split: Split, outputs: Sequence[Output]) -> None:
        """Import what decoding needs, if anything is to be decoded: a machine with whole caches may lack it."""
        for name in self.undecoded_names(split, group_outputs(outputs, self.cached_names(split, outputs))):
            split.dataset.decoder(name).prepare()

    def undecoded_names(self, split: Split, groups: Iterable[Group]) -> list[str]:
        """Return the names of the media that are to be decoded, as no cache has all of them."""
        media = [group for group in groups if group.stores_cells]

        def is_complete(group: Group) -> bool:
            return group.is_cached and all(self.open_cache(one, group.name).complete for one in split.joined)

        return [group.name for group in media if not is_complete(group)]

    def threads(self, split: Split, names: Sequence[str]) -> int:
        """Return how many threads keep decoding some media busy."""
        if not names:
            return 0
        if any(_is_remote(one, name) for name in names for one in split.joined):
            return _REMOTE_THREADS
        return Settings.threads_to_decode(split.dataset.decoder(name) for name in names)


def max_prefetch_size(split: Split, groups: Iterable[Group]) -> int | None:
    """Return the largest prefetch_size that was given to features of media, or None."""
    sizes = [_media_feature(split, group.name).prefetch_size for group in groups if group.stores_cells]
    return max((size for size in sizes if size is not None), default=None)


def _media_feature(split: Split, name: str) -> MediaFeature:
    return cast("MediaFeature", split.dataset.features[name])


def _is_remote(split: Split, name: str) -> bool:
    """Tell by its first block whether an output names files that lie elsewhere."""
    if _media_feature(split, name).pack:
        return False
    blocks = split.media(name)
    paths = pc.struct_field(blocks.cells(split.block(name, 0)), "path").drop_null()
    base = blocks.decoder.reader.base or ""
    return len(paths) > 0 and ("://" in base or bool(pc.any(pc.match_substring(paths, "://")).as_py()))
