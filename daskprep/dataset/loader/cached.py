"""Sources in front of another: a cache of decoded media, a local cache of remote blocks, and blocks on a device."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import cast

import numpy as np
import pyarrow.compute as pc
import torch

from daskprep.columns.permutation import Integers
from daskprep.dataset import Split
from daskprep.dataset.cache import BlockCache, GrowingBlock, MappedChunks, make_cache_name
from daskprep.dataset.loader.groups import Buffers, DeviceTransfer, Group, Tensors, group_outputs
from daskprep.dataset.loader.media import CellArray, CellRows, DecodeStats, MediaRows, Medium
from daskprep.dataset.loader.order import Schedule, WindowPlan
from daskprep.dataset.loader.pipeline import Settings
from daskprep.dataset.loader.source import BlockSource, LocatedRows, Need, ResidentBlock
from daskprep.errors import ConfigError, MediaError, StorageFullError
from daskprep.features.media import MediaFeature
from daskprep.storage import Folder, Output

_REMOTE_THREADS = 32


class CachedMedia(MediaRows):
    """Media of one block: read from the cache, or decoded row by row and written to the cache once it is complete.

    Decoded rows are collected in `buffer` or, if the cache allows it, in the file of the future chunk, which needs no
    memory. Windows on several threads add rows: a lock guards the mask of decoded rows, and the thread that adds the
    last row writes the block. Two threads that decode the same row get the same result, so that order does not matter.
    """

    def __init__(
        self, cached_medium: CachedMedium, number: int, cells: MediaRows, buffer: np.ndarray, *, is_ours: bool
    ) -> None:
        """Prepare block `number`; `is_ours`: this process completes it if not all rows are decoded."""
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
        self._is_settled = False  # whether the block is written, or will not be
        self._lock = threading.Lock()

    def load(self) -> None:
        """Read the decoded rows from the cache, or else the cells, and start the file of the future chunk."""
        cached_medium = self._cached_medium
        cached_rows = cached_medium.cache.read(self._number, self._buffer, cached_medium.mapped)
        if cached_rows is not None:
            self._rows = self.decoded = cached_rows
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
        """Copy the decoded rows in `indices`, from the file, the cache or memory, to the rows `targets` of `out`."""
        if self._growing is not None:
            for row, target in zip(indices.tolist(), targets.tolist(), strict=True):
                self._growing.read_into(row, out[target])
        else:
            # One by one, because a copy of a large row releases the GIL and needs no temporary array.
            for row, target in zip(indices.tolist(), targets.tolist(), strict=True):
                out[target] = self._rows[row]

    def keep(self, indices: Integers, rows: np.ndarray, sources: Integers, *, filled: bool) -> int:
        """Store decoded rows; return 1 if this completes the block and writes it to the cache, otherwise 0."""
        with self._cached_medium.tolerate_full_disk():
            # Another thread may have added the same row before, with the same values.
            if self._growing is not None:
                self._growing.write_rows(indices.tolist(), (rows[source] for source in sources.tolist()))
            else:
                self._slot[indices] = rows[sources]
            with self._lock:
                self._done[indices] = True
                self._is_filled |= filled
                if self._is_settled or not self._done.all():
                    return 0
                self._is_settled, self.cells = True, None
            # Fill values of broken files are not cached, because the files may be repaired.
            if self._is_filled or self._cached_medium.is_full:
                return 0
            if self._growing is not None:
                self._growing.finish()
            elif not self._cached_medium.cache.write(self._number, self._slot):
                self._cached_medium.is_full = True
                return 0
            return 1
        return 0

    @property
    def is_unfinished(self) -> bool:  # type: ignore[override]
        """Whether this process has to complete the block."""
        is_settled = self._is_settled or self._is_filled or self._cached_medium.is_full
        return self._is_ours and not is_settled and bool(self._done.any())

    def finish(self) -> DecodeStats:
        """Decode and cache missing rows, up to the first broken cell."""
        cells, missing = self.cells, np.flatnonzero(~self._done)
        if cells is None or self._cached_medium.cache.has(self._number):
            return DecodeStats()
        try:
            rows = self._cached_medium.medium.group.empty(len(missing))
            return self._cached_medium.medium.decode([CellRows(self, cells, missing, np.arange(len(missing)))], rows)
        except MediaError:
            # The error is raised again by the window that needs the row.
            self._is_settled = True
            return DecodeStats()

    def close(self) -> None:
        if self._growing is not None:
            self._growing.close()


@dataclass
class _WritableCache:
    """A cache to write blocks to, until it is full."""

    cache: BlockCache
    is_full: bool = False

    @contextmanager
    def tolerate_full_disk(self) -> Iterator[None]:
        """Suppress StorageFullError, with one warning."""
        try:
            yield
        except StorageFullError as error:
            self.is_full = True
            self.cache.warn_once(
                "full",
                f'"{self.cache.output.name}" is no longer cached, and blocks that are not cached are read or decoded '
                f"again in every epoch: {error}; set cache_limit, or a cache_dir with more space",
            )


@dataclass(kw_only=True)
class CachedMedium(_WritableCache):
    """One output of media with its cache and mapped chunks."""

    medium: Medium
    mapped: MappedChunks


@dataclass
class _WrappedBlocks:
    """Base class of a source that changes blocks of another."""

    _source: BlockSource[ResidentBlock]
    _split: Split

    def load(self, schedule: Schedule, block_position: int, need: Need) -> ResidentBlock | None:
        """Return the other source's block, changed; None if it has none yet."""
        if (block := self._source.load(schedule, block_position, need)) is not None:
            self._add(block, *self._split.locate_block(block.number))
        return block

    def _add(self, block: ResidentBlock, split: Split, number: int) -> None:
        """Change a block, which is block `number` of `split`."""
        raise NotImplementedError

    def locate(self, plan: WindowPlan, blocks: Mapping[int, ResidentBlock]) -> LocatedRows:
        return self._source.locate(plan, blocks)

    def release(self, block: ResidentBlock) -> None:
        self._source.release(block)

    def grow(self, blocks: int) -> None:
        self._source.grow(blocks)

    def close(self) -> None:
        self._source.close()


class CachedBlocks(_WrappedBlocks):
    """Source with caches of decoded media in front; `sharer_count` processes take turns completing blocks."""

    def __init__(
        self,
        source: BlockSource[ResidentBlock],
        split: Split,
        caches: Mapping[Split, Sequence[tuple[Medium, BlockCache]]],
        buffers: Buffers,
        sharer_index: int,
        sharer_count: int,
    ) -> None:
        """Wrap a source, and prepare the folders of the caches."""
        super().__init__(source, split)
        self._buffers = buffers
        self._mapped = buffers.take(MappedChunks, (), MappedChunks)
        self._caches = {
            joined_split: [CachedMedium(medium=medium, cache=cache, mapped=self._mapped) for medium, cache in pairs]
            for joined_split, pairs in caches.items()
        }
        self._sharer = sharer_index
        self._sharers = sharer_count
        for cached_medium in chain.from_iterable(self._caches.values()):
            with cached_medium.tolerate_full_disk():
                cached_medium.cache.prepare()

    def _add(self, block: ResidentBlock, split: Split, number: int) -> None:
        """Replace a block's media by media that are read from the cache, or decoded and cached."""
        is_ours = block.number % self._sharers == self._sharer
        for cached in self._caches[split]:
            group = cached.medium.group
            buffer = block.arrays[group][block.first : block.first + cached.cache.block_rows]
            block.media[group] = CachedMedia(cached, number, block.media[group], buffer, is_ours=is_ours)

    def close(self) -> None:
        self._buffers.put_back((), self._mapped)
        super().close()


class CopiedBlocks(_WrappedBlocks):
    """Source that caches blocks of remote files on a disk of this machine, by the digest of the dataset."""

    def __init__(
        self,
        source: BlockSource[ResidentBlock],
        split: Split,
        groups: Sequence[Group],
        folder: Folder,
        limit: int | None,
    ) -> None:
        """Wrap a source, and open a cache in `folder` for each group of each remote dataset, except media."""
        super().__init__(source, split)
        self._caches = {
            (remote, group): _WritableCache(_open_copy_cache(remote, group, folder, limit))
            for remote in split.joined
            if not remote.is_local
            for group in groups
            if not group.stores_cells
        }
        for writable in self._caches.values():
            with writable.tolerate_full_disk():
                writable.cache.prepare()

    def _add(self, block: ResidentBlock, split: Split, number: int) -> None:
        """Read remote groups of a block through the cache."""
        rows = slice(block.first, block.first + split.layout.block_rows)
        for groups, read in block.read_jobs.items() if not split.is_local else ():
            targets = [(self._caches[split, group], block.arrays[group][rows]) for group in groups]
            block.read_jobs[groups] = functools.partial(self._read_through, number, targets, read)

    def _read_through(
        self, block: int, targets: Sequence[tuple[_WritableCache, np.ndarray]], read: Callable[[], None]
    ) -> None:
        """Fill arrays with the rows of a block from the caches, or with `read` if one lacks them; then cache them."""
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


@dataclass
class DeviceBlocks(_WrappedBlocks):
    """Source that copies blocks, except media, to a device, where windows are gathered from them."""

    _transfer: DeviceTransfer
    _tensors: Tensors = field(default_factory=dict)

    def _add(self, block: ResidentBlock, split: Split, number: int) -> None:
        """Append copies of a block's rows to its read jobs."""
        rows = slice(block.first, block.first + self._split.layout.block_rows)
        if not self._tensors:
            self._tensors = self._transfer.mirror(block.arrays)
        for groups, read in block.read_jobs.items():
            copies = [(self._tensors[group][rows], block.arrays[group][rows]) for group in groups]
            block.read_jobs[groups] = functools.partial(self._read_and_copy, read, copies)

    def _read_and_copy(self, read: Callable[[], None], copies: list[tuple[torch.Tensor, np.ndarray]]) -> None:
        read()
        self._transfer.copy_rows(copies)

    def locate(self, plan: WindowPlan, blocks: Mapping[int, ResidentBlock]) -> LocatedRows:
        located = super().locate(plan, blocks)
        return located._replace(taken=[rows._replace(arrays=self._tensors) for rows in located.taken])

    def grow(self, blocks: int) -> None:
        self._free()
        super().grow(blocks)

    def close(self) -> None:
        self._free()
        super().close()

    def _free(self) -> None:
        self._transfer.wait()
        self._tensors = {}


def _open_copy_cache(split: Split, group: Group, folder: Folder, limit: int | None) -> BlockCache:
    """Return the cache in `folder` of a group of a remote split."""
    digest, layout = split.dataset.digest, split.layout
    name = make_cache_name(dataset=digest, split=split.name, outputs=[output.name for output in group.outputs])
    output = Output(group.name, group.dtype.name, group.row_shape)
    counts = split.block_row_counts
    return BlockCache(
        folder, name, output, len(split), layout.block_rows, layout.compression, limit, digest, row_counts=counts
    )


@dataclass(frozen=True)
class CachePolicy:
    """Caching options of a loader."""

    cache_all: bool | None = None  # all media or none; None: only features with mode="lazy_cached"
    folder: str | None = None  # of the caches; None: within the dataset
    limit: int | None = None  # maximum bytes of all caches in the folder

    @classmethod
    def of(cls, cache: object, cache_dir: str | os.PathLike[str] | None, cache_limit: int | None) -> CachePolicy:
        """Return the policy for the options of a loader with these names; raise ConfigError for an invalid one."""
        if not isinstance(cache, bool | None):
            raise ConfigError(f"cache={cache!r}: expected True, False, or None for the mode of each feature")
        return cls(cache, None if cache_dir is None else os.fspath(cache_dir), cache_limit)

    def cached_names(self, split: Split, outputs: Iterable[Output]) -> frozenset[str]:
        """Return the names of media to cache after decoding."""
        names = [output.name for output in outputs if output.stores_cells]
        if self.cache_all is None:
            return frozenset(name for name in names if _media_feature(split, name).mode == "lazy_cached")
        return frozenset(names if self.cache_all else ())

    def open_cache(self, split: Split, name: str) -> BlockCache:
        return split.cache(name, None if self.folder is None else Folder.open(self.folder), self.limit)

    def copy_folder(self, split: Split) -> Folder | None:
        """Return the local cache of remote blocks; None if not cached."""
        if not self.cache_all or self.folder is None or split.is_local:
            return None
        folder = Folder.open(self.folder)
        return folder if folder.is_local else None

    def has_all_copies(self, split: Split, groups: Iterable[Group]) -> bool:
        """Return whether this machine has copies of all blocks of remote files, except media; False without caching."""
        folder, array_groups = self.copy_folder(split), [group for group in groups if not group.stores_cells]
        pairs = [(joined, group) for joined in split.joined if not joined.is_local for group in array_groups]
        return folder is not None and all(_open_copy_cache(*pair, folder, self.limit).complete for pair in pairs)

    def prepare(self, split: Split, outputs: Sequence[Output]) -> None:
        """Import the packages that decode `outputs`, except for completely cached ones: they may not be installed."""
        for name in self.undecoded_names(split, group_outputs(outputs, self.cached_names(split, outputs))):
            split.dataset.decoder(name).prepare()

    def undecoded_names(self, split: Split, groups: Iterable[Group]) -> list[str]:
        """Return the names of the media that must be decoded, because no cache contains all of their rows."""

        def is_complete(group: Group) -> bool:
            return group.is_cached and all(self.open_cache(joined, group.name).complete for joined in split.joined)

        return [group.name for group in groups if group.stores_cells and not is_complete(group)]

    def decoded_caches(self, split: Split, groups: Iterable[Group]) -> dict[tuple[Split, Group], BlockCache]:
        """Return the caches that hold all rows, by split in `split.joined` and by the group of their output."""
        missing = self.undecoded_names(split, groups)
        names = [group.name for group in groups if group.stores_cells and group.name not in missing]
        caches = [(joined, self.open_cache(joined, name)) for name in names for joined in split.joined]
        return {(joined, Group((cache.output,))): cache for joined, cache in caches}

    def threads(self, split: Split, names: Sequence[str]) -> int:
        """Return the default number of threads that decode the outputs `names`: 0 for none, more for remote files."""
        if not names:
            return 0
        if any(_is_remote(joined, name) for name in names for joined in split.joined):
            return _REMOTE_THREADS
        return Settings.threads_to_decode(split.dataset.decoder(name) for name in names)


def max_prefetch_size(split: Split, groups: Iterable[Group]) -> int | None:
    """Return the largest `prefetch_size` of the features of media, or None if no feature has one."""
    sizes = [_media_feature(split, group.name).prefetch_size for group in groups if group.stores_cells]
    return max((size for size in sizes if size is not None), default=None)


def _media_feature(split: Split, name: str) -> MediaFeature:
    return cast("MediaFeature", split.dataset.features[name])


def _is_remote(split: Split, name: str) -> bool:
    """Return whether media of the first block are at URLs."""
    if _media_feature(split, name).pack:
        return False
    blocks = split.media(name)
    paths = pc.struct_field(blocks.cells(split.block(name, 0)), "path").drop_null()
    base = blocks.decoder.reader.base or ""
    return len(paths) > 0 and ("://" in base or bool(pc.any(pc.match_substring(paths, "://")).as_py()))
