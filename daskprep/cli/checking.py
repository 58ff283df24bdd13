"""`daskprep verify` and `daskprep repair`: is every byte as it was written, and make it so again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

import daskprep as dp
from daskprep.cli.console import resumable
from daskprep.cli.options import (
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


@click.command(short_help="Compare every byte with what was written.")
@dataset_argument
@storage_options
@quiet_option
def verify(dataset: str, storage_options: Mapping[str, Any] | None, *, quiet: bool) -> None:
    """Read every byte of a DATASET and compare it with what was written.

    \b
    daskprep verify listings.dp
    daskprep verify listings.dp || daskprep repair listings.dp listings.csv

    Files that are missing, altered or not part of the dataset are listed, one in a line, and the exit status is 1.
    """
    opened = dp.open_dataset(dataset, storage_options=storage_options)
    damaged = opened.damaged()
    for one in damaged:
        click.echo(printable(f"{one.file} {one.problem}"))
    if damaged:
        files = count(len(damaged), "file")
        raise CorruptDatasetError(
            f"{opened.url}: {files} damaged; make them again with: daskprep repair {dataset} DATA"
        )
    if not quiet:
        click.echo(f"{len(opened.manifest.files):,} files are as they were written")


@click.command(short_help="Make damaged files again from the source.")
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
    """Make the damaged files of a DATASET again, to the very bytes that were written.

    DATA is what the dataset was made of, or the files of each split are; with --trusted in place of it, those files are
    read that it names. Files that are not part of the dataset are removed.

    \b
    daskprep repair listings.dp --trusted
    daskprep repair listings.dp /backup/listings.csv
    """
    from daskprep.sources import as_source

    with on_workers(scheduler, workers), resumable():
        rows = rows_of(data, splits)
        if rows and reading:
            rows = as_source(rows, storage_options=storage_options, **reading)
        progress = False if quiet else None
        repaired = dp.repair(dataset, rows, progress=progress, storage_options=storage_options, trusted=trusted)
    if not quiet:
        click.echo(f"{len(repaired.manifest.files):,} files are as they were written")
