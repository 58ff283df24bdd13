"""Fill the caches of decoded media before they are needed, on all workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from daskprep import partitions
from daskprep.dataset.cache import BlockCache
from daskprep.dataset.media import MediaBlocks
from daskprep.dataset.split import Split
from daskprep.errors import ConfigError, did_you_mean
from daskprep.progress import Progress
from daskprep.storage import Folder, Layout
from daskprep.storage.reading import Block

_Key = tuple[str, str]


class _Wanted(NamedTuple):
    """A block that is to be decoded and kept."""

    key: _Key
    where: Block
    block: int


@dataclass(frozen=True)
class _Media:
    """What workers need of one output of one split."""

    blocks: MediaBlocks
    cache: BlockCache


def cache_media(
    splits: Mapping[str, Split],
    columns: Iterable[str] | str | None,
    folder: Folder | None,
    limit: int | None,
    progress: Progress,
) -> None:
    """Decode the blocks of some splits and outputs that are not cached yet, one task each, and keep them."""
    chosen = columns if columns is None or isinstance(columns, str) else list(columns)
    media = {
        (name, output): _Media(split.media(output), split.cache(output, folder, limit))
        for name, split in splits.items()
        for output in _outputs(split.layout, chosen)
    }
    if partitions.is_distributed() and any(one.cache.parent.is_in_process for one in media.values()):
        raise ConfigError("the workers of a cluster cannot cache in memory://, which one process sees: give cache_dir")
    for one in media.values():
        one.cache.prepare()
    wanted = list(_missing(splits, media))
    advance = progress.stage("caching", total=len(wanted), unit="blocks")
    partitions.run("cache-media", _keep, media, wanted, advance=advance)


def _missing(splits: Mapping[str, Split], media: Mapping[_Key, _Media]) -> Iterator[_Wanted]:
    for (split, output), one in media.items():
        for block in sorted(set(range(one.cache.blocks)) - set(one.cache.present())):
            yield _Wanted((split, output), splits[split].block(output, block), block)


def _keep(media: Mapping[_Key, _Media], wanted: _Wanted) -> int:
    """Decode and keep a block; return its rows."""
    blocks, cache = media[wanted.key].blocks, media[wanted.key].cache
    if not cache.has(wanted.block):
        rows = blocks.output.empty(wanted.where.rows)
        # What stands for a broken file is no data, and the file may be mended.
        if not blocks.decode(wanted.where, slice(None), rows):
            cache.write(wanted.block, rows)
    return wanted.where.rows


def _outputs(layout: Layout, columns: Sequence[str] | None) -> list[str]:
    known = [output.name for output in layout.cells]
    if columns is None:
        return known
    chosen = [columns] if isinstance(columns, str) else list(dict.fromkeys(columns))
    for name in chosen:
        if name not in known:
            raise ConfigError(
                f'"{name}" is no output of images or sounds that are decoded when they are loaded.'
                f"{did_you_mean(name, known)} Those are: {', '.join(known) or 'none'}"
            )
    return chosen
