"""`daskprep cache`: decode images and sounds before they are needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

import daskprep as dp
from daskprep.cli.console import resumable
from daskprep.cli.options import (
    bytes_option,
    dataset_argument,
    on_workers,
    quiet_option,
    storage_options,
    trusted_option,
    worker_options,
)
from daskprep.errors import ConfigError


@click.command(short_help="Decode images and sounds ahead.")
@dataset_argument
@click.option("--split", "splits", multiple=True, metavar="NAME", help="Which split; may be given again. [all]")
@click.option("--column", "columns", multiple=True, metavar="NAME", help="Which output; may be given again. [all]")
@click.option("--cache-dir", type=click.Path(), metavar="FOLDER", help="Where to keep it. [within the dataset]")
@bytes_option("--cache-limit", help="What all caches in the folder may take. [no limit]")
@click.option("--base-dir", type=click.Path(), metavar="FOLDER", help="Where relative paths begin now.")
@trusted_option
@click.option("--clear", is_flag=True, help="Remove what is kept within the dataset instead.")
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
    """Decode the images and sounds of a DATASET and keep them, so that the first epoch is as quick as later ones.

    \b
    daskprep cache photos.dp --base-dir photos
    daskprep cache photos.dp --trusted --split train --workers 8
    daskprep cache photos.dp --trusted --cache-dir /fast/disk --cache-limit 200GB
    daskprep cache photos.dp --clear

    A loader finds what is kept where its cache_dir, if any, is the same.
    """
    opened = dp.open_dataset(dataset, storage_options=storage_options, base_dir=base_dir, trusted=trusted)
    if clear:
        opened.clear_cache()
        return
    if not opened.layout.cells:
        raise ConfigError(
            f"{opened.url} has no images or sounds that are decoded when they are loaded: nothing to keep"
        )
    with on_workers(scheduler, workers), resumable():
        progress = False if quiet else None
        opened.cache_media(splits=splits or None, columns=columns or None, progress=progress, **where)
    if not quiet:
        click.echo(f"{', '.join(columns or (one.name for one in opened.layout.cells))}: decoded and kept")
