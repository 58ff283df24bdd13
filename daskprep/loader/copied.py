"""Copies of distant blocks on a disk of this machine, before another source."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from daskprep.dataset import Split
from daskprep.dataset.cache import BlockCache, cache_name
from daskprep.loader.groups import Group
from daskprep.loader.order import Schedule
from daskprep.loader.source import BlockSource, Need, ResidentBlock
from daskprep.storage import Folder, Output


class CopiedBlocks:
    """Reads blocks from a folder of copies, and puts those there that it lacks, as far as there is room.

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
        self._source = source
        self._split = split
        self._is_full = False  # which any thread may find out
        self._caches = {
            (one, group): _cache(one, group, folder, limit)
            for one in split.joined
            if not one.is_local
            for group in groups
            if not group.is_cells
        }
        for cache in self._caches.values():
            cache.prepare()

    def load(self, schedule: Schedule, place: int, need: Need) -> ResidentBlock | None:
        block = self._source.load(schedule, place, need)
        if block is None:
            return None
        split, number = self._split.located(block.number)
        if not split.is_local:
            rows = slice(block.first, block.first + split.layout.block_rows)
            for groups, read in block.reads.items():
                targets = {self._caches[split, group]: block.arrays[group][rows] for group in groups}
                block.reads[groups] = functools.partial(self._bring, number, targets, read)
        return block

    def release(self, block: ResidentBlock) -> None:
        self._source.release(block)

    def close(self) -> None:
        self._source.close()

    def _bring(self, block: int, targets: Mapping[BlockCache, np.ndarray], read: Callable[[], None]) -> None:
        """Fill some arrays with their rows of a block."""
        if all(_copy(cache, block, target) for cache, target in targets.items()):
            return
        read()
        for cache, target in targets.items():
            if not self._is_full and not cache.write(block, target[: cache.rows_of(block)]):
                self._is_full = True


def _cache(split: Split, group: Group, folder: Folder, limit: int | None) -> BlockCache:
    digest, layout = split.dataset.digest, split.layout
    name = cache_name(dataset=digest, split=split.name, outputs=[output.name for output in group.outputs])
    output = Output(group.name, group.dtype.name, group.row_shape)
    return BlockCache(folder, name, output, len(split), layout.block_rows, layout.compression, limit, digest)


def _copy(cache: BlockCache, block: int, target: np.ndarray) -> bool:
    """Bring the rows of a block to where they belong; return whether there is a copy of them."""
    found = cache.read(block, target)
    if found is not None and not np.may_share_memory(found, target):
        target[: len(found)] = found
    return found is not None
