"""`daskprep verify` and `daskprep repair`: find and rewrite damaged files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

import daskprep as dp
from daskprep.cli.console import resumable
from daskprep.cli.options import (
    check_dataset,
    check_files,
    dataset_argument,
    file_options,
    on_workers,
    quiet_option,
    rows_of,
    split_options,
    storage_options,
    trusted_option,
    worker_options,
)
from daskprep.display.words import count, printable
from daskprep.errors import CorruptDatasetError


@click.command(short_help="Check every file against its checksum.")
@dataset_argument
@storage_options
@quiet_option
def verify(dataset: str, storage_options: Mapping[str, Any] | None, *, quiet: bool) -> None:
    """Read every file of a DATASET and compare it with its checksum.

    \b
    daskprep verify listings.dp
    daskprep verify listings.dp || daskprep repair listings.dp listings.csv

    Lists files that are missing, changed or not part of the dataset, one per line, and exits with status 1.
    """
    check_dataset(dataset)
    opened = dp.open_dataset(dataset, storage_options=storage_options)
    damaged = opened.damaged()
    for one in damaged:
        click.echo(printable(f"{one.file} {one.problem}"))
    if damaged:
        files = count(len(damaged), "file")
        raise CorruptDatasetError(
            f"{opened.url}: {files} damaged; to write them again, run: daskprep repair {dataset} DATA"
        )
    if not quiet:
        click.echo(f"{count(len(opened.manifest.files), 'file')} verified")


@click.command(short_help="Rewrite damaged files from the source.")
@dataset_argument
@click.argument("data", nargs=-1, type=click.Path())
@split_options
@trusted_option
@file_options
@worker_options
@storage_options
@quiet_option
def repair(
    dataset: str,
    data: Sequence[str],
    *,
    scheduler: str | None,
    workers: int | None,
    reading: Mapping[str, Any],
    storage_options: Mapping[str, Any] | None,
    trusted: bool,
    quiet: bool,
    **splits: Sequence[str],
) -> None:
    """Rewrite the damaged files of a DATASET, byte for byte as before.

    DATA is the data that the dataset was written from, or give the files of each split. With --trusted, DATA may be
    left out: the files that the dataset names are read. Files that do not belong to the dataset are removed.

    \b
    daskprep repair listings.dp --trusted
    daskprep repair listings.dp /backup/listings.csv
    """
    with on_workers(scheduler, workers), resumable():
        rows = rows_of(data, splits)
        check_dataset(dataset)
        check_files(rows)
        if rows and reading:
            from daskprep.sources import as_source

            rows = as_source(rows, storage_options=storage_options, **reading)
        progress = False if quiet else None
        repaired = dp.repair(dataset, rows, progress=progress, storage_options=storage_options, trusted=trusted)
    if not quiet:
        for one in repaired.repaired:
            click.echo(printable(f"repaired {one.file}, which {one.problem}"))
        total, mended = count(len(repaired.manifest.files), "file"), len(repaired.repaired)
        click.echo(f"{mended or 'nothing'} repaired: {total} verified")
