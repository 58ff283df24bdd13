"""`daskprep infer`: guess the feature type of each column, as a commented configuration."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

import daskprep as dp
from daskprep.cli.console import line_of
from daskprep.cli.options import (
    check_files,
    data_argument,
    file_options,
    on_workers,
    one_or_list,
    quiet_option,
    storage_options,
    target_option,
    worker_options,
)

if TYPE_CHECKING:
    from daskprep.column_types import InferredFeatures


@click.command(short_help="Guess column types, as a configuration.")
@data_argument
@target_option
@click.option(
    "--style",
    type=click.Choice(["network", "linear", "trees"]),
    help="Kind of model: propose encodings that suit it.",
)
@file_options
@worker_options
@storage_options
@quiet_option
def infer(
    data: Sequence[str],
    *,
    targets: Sequence[str],
    style: Literal["network", "linear", "trees"] | None,
    scheduler: str | None,
    workers: int | None,
    reading: Mapping[str, Any],
    storage_options: Mapping[str, Any] | None,
    quiet: bool,
) -> None:
    """Guess the feature types of the columns of DATA from all rows, and print a configuration.

    A comment above each column gives the reason. Check the file, correct wrong guesses, and pass it to preprocess.

    \b
    daskprep infer listings.csv --target sold --style network > listings.yaml
    daskprep preprocess listings.yaml listings.csv -o listings.dp
    """
    with on_workers(scheduler, workers):
        check_files(one_or_list(data))
        options = {**reading, "storage_options": storage_options}
        found = inferred_features(one_or_list(data), options, targets, style, progress=False if quiet else None)
    click.echo(_as_yaml(found, targets), nl=False)


def inferred_features(
    data: Any,
    options: Mapping[str, Any],
    targets: Sequence[str],
    style: Literal["network", "linear", "trees"] | None = None,
    *,
    progress: bool | None,
) -> InferredFeatures:
    """Return what was guessed of each column; `options` are those of `read_files`."""
    from daskprep.sources import as_source

    return dp.infer_features(as_source(data, **options), targets=targets, style=style, progress=progress)


def _as_yaml(found: InferredFeatures, targets: Sequence[str]) -> str:
    """Return a configuration with a comment for each column."""
    from daskprep.config import write_config

    config = write_config(found, dp.RandomSplit(), targets=list(dict.fromkeys(targets)))
    skipped = [f"# Left out: {line_of(f'{name}: {reason}')}\n" for name, reason in found.skipped.items()]
    parts = []
    for key in ("input_features", "output_features"):
        entries = [_commented(entry, found.reasons[entry["name"]]) for entry in config.get(key, [])]
        parts += [f"{key}:\n", *entries] if entries else [f"{key}: []\n"] * (key in config)
    parts += [*skipped, "# Which rows are for training; split: null trains on all of them.\n"]
    return "".join([*parts, _dumped({"preprocessing": config["preprocessing"]})])


def _commented(entry: Mapping[str, Any], reason: str) -> str:
    # A comment ends where its line does, and YAML knows more ends of lines than one.
    return textwrap.indent(f"# {line_of(reason)}\n{_dumped([entry])}", "  ")


def _dumped(value: Any) -> str:
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100))
