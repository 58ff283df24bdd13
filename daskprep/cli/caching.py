"""`daskprep cache`: decode images and audio before training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

import daskprep as dp
from daskprep.cli.console import resumable
from daskprep.cli.options import (
    bytes_option,
    check_dataset,
    dataset_argument,
    on_workers,
    quiet_option,
    storage_options,
    trusted_option,
    worker_options,
)
from daskprep.errors import ConfigError


@click.command(short_help="Decode images and audio before training.")
@dataset_argument
@click.option("--split", "splits", multiple=True, metavar="NAME", help="Split to decode. Repeatable. [all]")
@click.option("--column", "columns", multiple=True, metavar="NAME", help="Output to decode. Repeatable. [all]")
@click.option("--cache-dir", type=click.Path(), metavar="FOLDER", help="Folder of the cache. [within the dataset]")
@bytes_option("--cache-limit", help="Maximum size of all caches in the folder. [no limit]")
@click.option("--base-dir", type=click.Path(), metavar="FOLDER", help="Folder that relative paths start from.")
@trusted_option
@click.option("--clear", is_flag=True, help="Remove the cache within the dataset.")
@worker_options
@storage_options
@quiet_option
def cache(
    dataset: str,
    *,
    splits: Sequence[str],
    columns: Sequence[str],
    base_dir: str | None,
    trusted: bool,
    clear: bool,
    scheduler: str | None,
    workers: int | None,
    storage_options: Mapping[str, Any] | None,
    quiet: bool,
    **where: Any,
) -> None:
    """Decode the images and audio of a DATASET into a cache, so that the first epoch is as fast as later ones.

    \b
    daskprep cache photos.dp --base-dir photos
    daskprep cache photos.dp --trusted --split train --workers 8
    daskprep cache photos.dp --trusted --cache-dir /fast/disk --cache-limit 200GB
    daskprep cache photos.dp --clear

    With --cache-dir, give loaders the same cache_dir.
    """
    check_dataset(dataset)
    opened = dp.open_dataset(dataset, storage_options=storage_options, base_dir=base_dir, trusted=trusted)
    if clear:
        opened.clear_cache()
        return
    if not opened.layout.cells:
        raise ConfigError(
            f"{opened.url} has no images or audio that are decoded while loading: there is nothing to cache"
        )
    with on_workers(scheduler, workers), resumable():
        progress = False if quiet else None
        opened.cache_media(splits=splits or None, columns=columns or None, progress=progress, **where)
    if not quiet:
        click.echo(f"{', '.join(columns or (one.name for one in opened.layout.cells))}: decoded and cached")
