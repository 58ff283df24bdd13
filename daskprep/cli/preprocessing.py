"""`daskprep preprocess`: fit on files and write a dataset."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import daskprep as dp
from daskprep.cli.console import resumable, show, show_written
from daskprep.cli.inferring import inferred_features
from daskprep.cli.options import (
    bytes_option,
    check_files,
    file_options,
    on_workers,
    quiet_option,
    rows_of,
    split_options,
    storage_options,
    target_option,
    weight_option,
    worker_options,
)
from daskprep.errors import ConfigError, CorruptDatasetError, FormatVersionError

if TYPE_CHECKING:
    from daskprep.features import Feature
    from daskprep.sources import Source


@click.command(short_help="Fit on files and write a dataset.")
@click.argument("config", type=click.Path())
@click.argument("data", nargs=-1, type=click.Path())
@split_options
@click.option("-o", "--output", metavar="DATASET", type=click.Path(), help="[default: a.dp for a.csv]")
@click.option("--overwrite", is_flag=True, help="Write again even if nothing changed, or replace another dataset.")
@click.option("--shuffle", is_flag=True, help="Shuffle the rows of each split.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of --shuffle.")
@click.option("--sample-ratio", type=float, metavar="SHARE", help="Use a random share of the rows, such as 0.1.")
@click.option("--sample-size", type=int, metavar="ROWS", help="Use at most so many random rows.")
@bytes_option("--memory", help='Memory limit of all processes together, such as "2GB".')
@target_option
@weight_option
@file_options
@worker_options
@click.option("--skip-save", is_flag=True, help="Fit, print the fitted state, and write nothing.")
@click.option("--dry-run", is_flag=True, help="Print rows, bytes and memory of the write, and write nothing.")
@storage_options
@quiet_option
def preprocess(
    config: str,
    data: Sequence[str],
    output: str | None,
    *,
    sample_ratio: float | None,
    sample_size: int | None,
    memory: int | None,
    targets: Sequence[str],
    weight: str | None,
    scheduler: str | None,
    workers: int | None,
    skip_save: bool,
    dry_run: bool,
    reading: Mapping[str, Any],
    storage_options: Mapping[str, Any] | None,
    quiet: bool,
    **how: Any,
) -> None:
    """Fit the features of CONFIG on DATA, and write a dataset.

    CONFIG is a YAML or JSON file in Ludwig's format, "-" for standard input, or "auto" to guess every column.
    DATA are files, folders, globs or URLs of Parquet, CSV, TSV, JSON or Feather.

    \b
    daskprep preprocess listings.yaml listings.csv
    daskprep preprocess auto 'sales/*.parquet' --target sold -o sales.dp --memory 4GB --workers 4
    daskprep infer a.csv | daskprep preprocess - a.csv -o a.dp
    daskprep preprocess listings.yaml --train a.csv --validation b.csv --test c.parquet -o listings.dp
    daskprep preprocess listings.yaml listings.csv -o listings.dp --dry-run
    daskprep preprocess c.yaml s3://b/a.csv -o s3://b/a.dp --storage-option anon=true

    If a write is interrupted or the disk is full, run the same command again to resume it.
    """
    rows = rows_of(data, how)
    if rows is None:
        raise click.UsageError("give DATA, or the files of each split: --train, --validation, --test")
    if sample_ratio is not None and sample_size is not None:
        raise click.UsageError("give either --sample-ratio or --sample-size")
    check_files(rows)
    check_files([] if config in ("auto", "-") else config)
    is_said = output is not None
    output = output or _beside(data)
    if output is None and not skip_save and not dry_run:
        raise click.UsageError("give -o DATASET, since DATA is not a single file; or --skip-save or --dry-run")
    from daskprep.description import describe
    from daskprep.features.folds import learning_columns
    from daskprep.features.surroundings import assigning_columns
    from daskprep.features.table import source_columns
    from daskprep.writing import plan_source

    with on_workers(scheduler, workers):
        progress = False if quiet else None
        options = {**reading, "storage_options": storage_options}
        prep = _preprocessor(config, rows, targets, options, progress)
        if weight is not None:
            features = {name: one for name, one in _features(prep).items() if name != weight or config != "auto"}
            prep.set_params(features=features, weight=weight)
        if sample_ratio is not None or sample_size is not None:
            prep.set_params(sample=sample_size if sample_ratio is None else sample_ratio)
        split = dp.FixedSplit() if isinstance(rows, dict) else prep.split
        others = [*assigning_columns(split, prep.balance), *learning_columns(_features(prep))]
        columns = source_columns(_features(prep), others if prep.weight is None else [*others, prep.weight])
        source = plan_source(rows, columns, memory, options)
        if output is not None and not (is_said or skip_save or how["overwrite"]):
            _check_beside(output, data[0], source, storage_options)
        if dry_run:
            _print_plan(prep, source, split, output)
        elif output is None or skip_save:
            prep.fit(source, progress=progress)
            show(describe(prep.features_, prep.learned_, split, prep.balance, prep.targets_, prep.sample))
        else:
            with resumable():
                dataset = prep.fit_write(source, output, progress=progress, storage_options=storage_options, **how)
            if not quiet:
                show_written(dataset)


def _beside(data: Sequence[str]) -> str | None:
    """Return where the dataset of one file or folder is written unless it is said."""
    from daskprep.sources.file_source import is_known

    if len(data) != 1 or not Path(data[0]).name.strip(".") or set(data[0]) & set("*?["):
        return None
    given = data[0].rstrip("/")
    stem = re.sub(r"\.\w+(\.(gz|zst|bz2))?$", "", given) if is_known(given) else given
    return f"{stem}.dp"


def _check_beside(path: str, data: str, source: Source, storage_options: Mapping[str, Any] | None) -> None:
    """Raise ConfigError if the default path holds a dataset of other files."""
    from daskprep.storage import Folder
    from daskprep.storage.manifest import read_manifest

    try:
        found = read_manifest(Folder.open(path, storage_options))
    except (CorruptDatasetError, FormatVersionError):
        return  # the write says it
    if found is None:
        return
    before = [name for name, *_ in (found.source or {}).get("files", ())]
    place = Folder.open(data, storage_options).url
    if {file.name for file in source.files}.isdisjoint(before) and not any(
        name.startswith(f"{place}/") for name in before
    ):
        shown = f'"{before[0]}"' if before else "other rows"
        raise ConfigError(
            f"{path} exists already and was written from {shown}: give -o DATASET to write elsewhere, or --overwrite "
            "to replace it"
        )


def _preprocessor(
    config: str, data: Any, targets: Sequence[str], options: Mapping[str, Any], progress: bool | None
) -> dp.Preprocessor:
    if config == "auto":
        features = inferred_features(data, options, targets, progress=progress)
        return dp.Preprocessor(features, targets=targets, split=dp.RandomSplit())
    if targets:
        raise click.UsageError('--target is for "auto": in a configuration, list targets under output_features')
    if config == "-":
        return dp.Preprocessor.from_config(sys.stdin.read())
    # A text would be taken for YAML where its end is not that of a file's name.
    return dp.Preprocessor.from_config(config if "://" in config else Path(config))


def _features(prep: dp.Preprocessor) -> Mapping[str, Feature]:
    assert not isinstance(prep.features, str)
    return prep.features


def _print_plan(prep: dp.Preprocessor, source: Source, split: Any, output: str | None) -> None:
    from daskprep.assignment import sampled
    from daskprep.cli.planning import plan_lines
    from daskprep.description import describe

    click.echo("\n".join([*plan_lines(_features(prep), sampled(source, prep.sample, prep.sample_seed), output), ""]))
    show(describe(_features(prep), {}, split, prep.balance, list(prep.targets or ()), prep.sample))
