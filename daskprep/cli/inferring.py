"""`daskprep infer`: guess the feature type of each column, as a commented configuration."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

import click

import daskprep as dp
from daskprep.cli import options
from daskprep.cli.console import format_line

if TYPE_CHECKING:
    from daskprep.column_types import InferredFeatures


@click.command(short_help="Guess column types, as a configuration.")
@click.argument("data", nargs=-1, required=True, type=click.Path())
@options.targets
@options.style
@options.files
@options.workers
@options.storage
@options.quiet
def infer(
    data: Sequence[str],
    *,
    targets: Sequence[str],
    style: Literal["network", "linear", "trees"] | None,
    read_options: Mapping[str, Any],
    workers: AbstractContextManager[None],
    storage_options: Mapping[str, Any] | None,
    progress: bool | None,
) -> None:
    """Guess the feature types of the columns of DATA from all rows, and print a configuration.

    A comment above each column states the reason. Check the file, correct wrong guesses, and pass it to preprocess.

    \b
    daskprep infer listings.csv --target sold --style network > listings.yaml
    daskprep preprocess listings.yaml listings.csv -o listings.dp
    """
    options.check_paths(data)
    from daskprep.sources import as_source

    with workers:
        source = as_source(options.one_or_list(data), storage_options=storage_options, **read_options)
        inferred = dp.infer_features(source, targets=targets, style=style, progress=progress)
    click.echo(_as_yaml(inferred, targets), nl=False)


def _as_yaml(inferred: InferredFeatures, targets: Sequence[str]) -> str:
    """Return a configuration as YAML, with a comment above each column."""
    from daskprep.config import write_config

    config = write_config(inferred, dp.RandomSplit(), targets=list(dict.fromkeys(targets)))
    skipped = [f"# Left out: {format_line(f'{name}: {reason}')}\n" for name, reason in inferred.skipped.items()]
    parts = []
    for key in ("input_features", "output_features"):
        entries = [_comment_entry(entry, inferred.reasons[entry["name"]]) for entry in config.get(key, [])]
        parts += [f"{key}:\n", *entries] if entries else [f"{key}: []\n"] * (key in config)
    parts += [*skipped, "# Which rows are for training; split: null trains on all of them.\n"]
    return "".join([*parts, _dump_yaml({"preprocessing": config["preprocessing"]})])


def _comment_entry(entry: Mapping[str, Any], reason: str) -> str:
    # `format_line` removes all line breaks of YAML, which would end the comment.
    return textwrap.indent(f"# {format_line(reason)}\n{_dump_yaml([entry])}", "  ")


def _dump_yaml(value: Any) -> str:
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100))
