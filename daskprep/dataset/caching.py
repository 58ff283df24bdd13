"""Fill the caches of decoded media before they are needed, on all workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from daskprep import partitions
from daskprep.dataset.cache import BlockCache
from daskprep.dataset.media import MediaBlocks
from daskprep.dataset.split import Split
from daskprep.errors import ConfigError, did_you_mean
from daskprep.progress import Progress
from daskprep.storage import Folder, Layout
from daskprep.storage.reading import Block

_Key = tuple[str, str]
_Media = Mapping[_Key, tuple[MediaBlocks, BlockCache]]
"""What workers need of each output of each split."""


def cache_media(
    splits: Mapping[str, Split],
    columns: Iterable[str] | str | None,
    folder: Folder | None,
    limit: int | None,
    progress: Progress,
) -> None:
    """Decode the blocks of some splits and outputs that are not cached yet, one task each, and keep them."""
    chosen = columns if columns is None else list(dict.fromkeys([columns] if isinstance(columns, str) else columns))
    media = {
        (name, output): (split.media(output), split.cache(output, folder, limit))
        for name, split in splits.items()
        for output in _outputs(split.layout, chosen)
    }
    if partitions.is_distributed() and any(cache.parent.is_in_process for _, cache in media.values()):
        raise ConfigError("the workers of a cluster cannot cache in memory://, which one process sees: give cache_dir")
    for _, cache in media.values():
        cache.prepare()
    wanted = [
        (key, splits[key[0]].block(key[1], block), block)
        for key, (_, cache) in media.items()
        for block in sorted(set(range(cache.blocks)) - set(cache.present()))
    ]
    advance = progress.stage("caching", total=len(wanted), unit="blocks")
    partitions.run("cache-media", _keep, media, wanted, advance=advance)


def _keep(media: _Media, wanted: tuple[_Key, Block, int]) -> int:
    key, where, block = wanted
    blocks, cache = media[key]
    if not cache.has(block):
        rows = blocks.output.empty(where.rows)
        # What stands for a broken file is no data, and the file may be mended.
        if not blocks.decode(where, slice(None), rows):
            cache.write(block, rows)
    return where.rows


def _outputs(layout: Layout, columns: list[str] | None) -> list[str]:
    known = [output.name for output in layout.cells]
    for name in columns or ():
        if name not in known:
            raise ConfigError(
                f'"{name}" is not an output of images or audio that are decoded while loading.'
                f"{did_you_mean(name, known)} Those are: {', '.join(known) or 'none'}"
            )
    return known if columns is None else columns
