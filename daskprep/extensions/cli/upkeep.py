"""`daskprep verify`, `repair` and `cache`: maintenance of the files of a dataset."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import click

import daskprep as dp
from daskprep.columns.display import escape_unprintable, format_count
from daskprep.errors import ConfigError, CorruptDatasetError
from daskprep.extensions.cli import options
from daskprep.extensions.cli.console import ignore_closed_output, resumable


@click.command(short_help="Check every file against its checksum.")
@options.dataset
@options.storage
@options.quiet
def verify(dataset: str, storage_options: Mapping[str, Any] | None, *, progress: bool | None) -> None:
    """Read every file of a DATASET and compare it with its checksum.

    \b
    daskprep verify listings.dp
    daskprep verify listings.dp || daskprep repair listings.dp listings.csv

    Lists files that are missing, changed or not part of the dataset, one per line, and exits with status 1. Other files
    next to its manifest.json, such as a README, are ignored.
    """
    opened = options.open_dataset(dataset, storage_options=storage_options)
    damaged = opened.damaged()
    for one in damaged:
        click.echo(escape_unprintable(f"{one.file} {one.problem}"))
    if damaged:
        files = format_count(len(damaged), "file")
        raise CorruptDatasetError(
            f"{opened.url}: {files} damaged; to write them again, run: daskprep repair {shlex.quote(dataset)} DATA"
        )
    if progress is None:
        click.echo(f"{format_count(len(opened.file_entries), 'file')} verified")


@click.command(short_help="Rewrite damaged files from the source.")
@options.dataset
@options.rows
@options.trusted
@options.files
@options.workers
@options.storage
@options.quiet
def repair(
    dataset: str,
    rows: Any,
    *,
    trusted: bool,
    read_options: Mapping[str, Any],
    on_workers: options.OnWorkers,
    storage_options: Mapping[str, Any] | None,
    progress: bool | None,
) -> None:
    """Rewrite the damaged files of a DATASET, byte for byte as before.

    DATA is the data that the dataset was written from, or pass the files of each split. With --trusted, DATA may be
    left out: the files that the dataset names are read. Files that are not part of the dataset are removed,
    but not those next to its manifest.json.

    \b
    daskprep repair listings.dp --trusted
    daskprep repair listings.dp /backup/listings.csv
    """
    options.check_paths(dataset, "dataset")
    options.check_paths(rows)
    with on_workers(rows, storage_options=storage_options, **read_options), resumable():
        if rows and read_options:
            from daskprep.sources import as_source

            rows = as_source(rows, storage_options=storage_options, **read_options)
        repaired = dp.repair(dataset, rows, progress=progress, storage_options=storage_options, trusted=trusted)
    if progress is None:
        with ignore_closed_output():
            for one in repaired.repaired:
                click.echo(escape_unprintable(f"repaired {one.file}, which {one.problem}"))
            total, num_repaired = format_count(len(repaired.file_entries), "file"), len(repaired.repaired)
            click.echo(f"{num_repaired or 'nothing'} repaired: {total} verified")


@click.command(short_help="Decode images and audio before training.")
@options.dataset
@click.option("--split", "splits", multiple=True, metavar="NAME", help="Split to decode. Repeatable. [all]")
@click.option("--column", "columns", multiple=True, metavar="NAME", help="Output to decode. Repeatable. [all]")
@click.option("--cache-dir", type=click.Path(), metavar="FOLDER", help="Folder of the cache. [within the dataset]")
@click.option("--cache-limit", type=options.Bytes(), help="Maximum size of all caches in the folder. [no limit]")
@click.option("--base-dir", type=click.Path(), metavar="FOLDER", help="Folder that relative paths start from.")
@options.trusted
@click.option("--clear", is_flag=True, help="Remove the cache within the dataset.")
@options.workers
@options.storage
@options.quiet
def cache(
    dataset: str,
    *,
    splits: Sequence[str],
    columns: Sequence[str],
    cache_dir: str | None,
    cache_limit: int | None,
    clear: bool,
    on_workers: options.OnWorkers,
    progress: bool | None,
    **open_options: Any,
) -> None:
    """Decode the images and audio of a DATASET into a cache, so that the first epoch is as fast as later ones.

    \b
    daskprep cache photos.dp --base-dir photos
    daskprep cache photos.dp --trusted --split train --workers 8
    daskprep cache photos.dp --trusted --cache-dir /fast/disk --cache-limit 200GB
    daskprep cache photos.dp --clear

    With --cache-dir, pass the same cache_dir to loaders.
    """
    opened = options.open_dataset(dataset, **open_options)
    if clear:
        opened.clear_cache()
        return
    if not opened.layout.cells:
        raise ConfigError(
            f"{opened.url} has no images or audio that are decoded while loading: there is nothing to cache"
        )
    with on_workers(None), resumable():
        opened.cache_media(
            splits=splits or None,
            columns=columns or None,
            cache_dir=cache_dir,
            cache_limit=cache_limit,
            progress=progress,
        )
    if progress is None:
        click.echo(f"{', '.join(columns or (one.name for one in opened.layout.cells))}: decoded and cached")
