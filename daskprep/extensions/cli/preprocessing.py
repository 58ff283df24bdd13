"""`daskprep infer` and `preprocess`: guess the feature type of each column, and fit on files and write a dataset."""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import daskprep as dp
from daskprep.columns.display import format_bytes, format_count
from daskprep.errors import ColumnError, ConfigError
from daskprep.extensions.cli import options
from daskprep.extensions.cli.console import format_line, print_message, resumable, show, show_write_result

if TYPE_CHECKING:
    import pyarrow as pa

    from daskprep.extensions.column_types import InferredFeatures
    from daskprep.sources import Source


@click.command(short_help="Guess column types, as a configuration.")
@click.argument("data", nargs=-1, required=True, type=click.Path())
@options.targets
@options.style
@options.redundant
@options.files
@options.workers
@options.storage
@options.quiet
def infer(
    data: Sequence[str],
    *,
    read_options: Mapping[str, Any],
    on_workers: options.OnWorkers,
    storage_options: Mapping[str, Any] | None,
    **inferring: Any,
) -> None:
    """Guess the feature types of the columns of DATA from all rows, and print a configuration.

    A comment above each column states the reason. Check the file, correct wrong guesses, and pass it to preprocess.

    \b
    daskprep infer listings.csv --target sold --style network > listings.yaml
    daskprep preprocess listings.yaml listings.csv -o listings.dp
    """
    options.check_paths(data)
    from daskprep.sources import as_source

    with on_workers(options.one_or_list(data), storage_options=storage_options, **read_options):
        source = as_source(options.one_or_list(data), storage_options=storage_options, **read_options)
        inferred = dp.infer_features(source, **inferring)
    click.echo(_as_yaml(inferred, inferring["targets"]), nl=False)


def _as_yaml(inferred: InferredFeatures, targets: Sequence[str]) -> str:
    """Return a configuration as YAML, with reasons as comments."""
    from daskprep.extensions.config import write_config

    config = write_config(inferred, dp.RandomSplit(), targets=list(dict.fromkeys(targets)))
    skipped = [f"# Left out: {format_line(f'{name}: {reason}')}\n" for name, reason in inferred.skipped.items()]
    parts = []
    for key in ("input_features", "output_features"):
        # `format_line` removes all line breaks of YAML, which would end the comment.
        comments = (f"# {format_line(inferred.reasons[entry['name']])}\n" for entry in config.get(key, []))
        texts = zip(comments, config.get(key, []), strict=True)
        entries = [textwrap.indent(comment + _dump_yaml([entry]), "  ") for comment, entry in texts]
        parts += [f"{key}:\n", *entries] if entries else [f"{key}: []\n"] * (key in config)
    parts += [*skipped, "# Which rows are for training; split: null trains on all of them.\n"]
    return "".join([*parts, _dump_yaml({"preprocessing": config["preprocessing"]})])


def _dump_yaml(value: Any) -> str:
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100))


@click.command(short_help="Fit on files and write a dataset.")
@click.argument("config", type=click.Path(), required=False)
@options.rows
@click.option("-o", "--output", metavar="DATASET", type=click.Path(), help="[default: a.dp for a.csv]")
@click.option("--overwrite", is_flag=True, help="Replace an existing dataset, even if nothing changed.")
@click.option("--shuffle", is_flag=True, help="Shuffle the rows of each split.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of --shuffle.")
@click.option(
    "--sample-ratio", type=click.FloatRange(0, 1, min_open=True), metavar="SHARE",
    help="Use a random share of the rows, such as 0.1.",
)  # fmt: skip
@click.option("--sample-size", type=click.IntRange(min=1), metavar="ROWS", help="Use at most this many random rows.")
@click.option("--memory", type=options.Bytes(), help='Memory limit of all processes together, such as "2GB".')
@options.targets
@options.style
@options.redundant
@click.option("--weight", metavar="COLUMN", help="Column of the weights of rows.")
@options.files
@options.workers
@click.option("--skip-save", is_flag=True, help="Fit, print the fitted state, and write nothing.")
@click.option("--dry-run", is_flag=True, help="Print rows, bytes and memory of the write, and write nothing.")
@options.storage
@options.quiet
def preprocess(
    config: str | None,
    rows: Any,
    output: str | None,
    *,
    sample_ratio: float | None,
    sample_size: int | None,
    memory: int | None,
    targets: Sequence[str],
    style: str | None,
    redundant: str,
    weight: str | None,
    read_options: Mapping[str, Any],
    on_workers: options.OnWorkers,
    skip_save: bool,
    dry_run: bool,
    storage_options: Mapping[str, Any] | None,
    progress: bool | None,
    **write_options: Any,
) -> None:
    """Fit the features of CONFIG on DATA, and write a dataset.

    CONFIG is a YAML or JSON file in Ludwig's format, "-" for standard input, or "auto" to guess every column, as
    without CONFIG.
    DATA are files, folders, globs or URLs of Parquet, CSV, TSV, JSON, Feather or ORC.

    \b
    daskprep preprocess listings.csv
    daskprep preprocess listings.yaml listings.csv
    daskprep preprocess auto 'sales/*.parquet' --target sold -o sales.dp --memory 4GB --workers 4
    daskprep infer a.csv | daskprep preprocess - a.csv -o a.dp

    \b
    daskprep preprocess listings.yaml --train a.csv --validation b.csv --test c.parquet -o listings.dp
    daskprep preprocess listings.yaml listings.csv -o listings.dp --dry-run
    daskprep preprocess c.yaml s3://b/a.csv -o s3://b/a.dp --storage-option anon=true

    If a write is interrupted or the disk is full, run the same command again to resume it.
    """
    first, (config, rows) = config, _separate_config(config, rows)
    if first != config and progress is None:
        line = "types are inferred, as with auto: to change them, use the configuration that daskprep infer prints"
        click.echo(line, err=True)
    if sample_ratio is not None and sample_size is not None:
        raise click.UsageError("use either --sample-ratio or --sample-size")
    options.check_paths(rows)
    options.check_paths([] if config in ("auto", "-") else config)
    output = output or _default_output(rows)
    if output is None and not skip_save and not dry_run:
        raise click.UsageError("use -o DATASET, since DATA is not a single file; or --skip-save or --dry-run")
    from daskprep.dataset.writing import plan_source
    from daskprep.extensions.summary_html import describe

    read_options = {**read_options, "storage_options": storage_options}
    with on_workers(rows, memory, **read_options):
        inferring = {"targets": targets, "style": style, "redundant": redundant}
        prep = _make_preprocessor(config, rows, weight, read_options, progress, inferring)
        if sample_ratio is not None or sample_size is not None:
            prep.set_params(sample=sample_size if sample_ratio is None else sample_ratio)
        split = prep._resolve_split(rows)
        features = prep._validate_features()
        source = plan_source(rows, prep._columns(features, split), memory, read_options, features)
        if dry_run:
            click.echo("\n".join([*_plan_lines(prep, source, output), ""]))
            show(describe(prep._feature_specs, {}, split, prep.balance, prep._target_names, prep.sample))
        elif output is None or skip_save:
            prep.fit(source, progress=progress)
            show(describe(prep.features_, prep.learned_, split, prep.balance, prep.targets_, prep.sample))
        else:
            with resumable():
                dataset = prep.fit_write(
                    source, output, progress=progress, storage_options=storage_options, **write_options
                )
            if progress is None:
                show_write_result(dataset)


# Of configurations and JSON, the suffix is the same. The readers of files take long to import.
_DATA_FILE = re.compile(r"\.(csv|tsv|parquet|pq|jsonl|ndjson|feather|arrow|orc)(\.(gz|zst|bz2))?/?$", re.IGNORECASE)
_YAML_FILE = re.compile(r"\.ya?ml$", re.IGNORECASE)
_HEAD_BYTES = 1 << 16


def _is_config(path: str) -> bool:
    """Return whether a path is YAML, or JSON that lists features."""
    if not path.lower().endswith(".json") or not Path(path).is_file():
        return bool(_YAML_FILE.search(path))
    with Path(path).open("rb") as file:
        return b'"input_features"' in file.read(_HEAD_BYTES)


def _separate_config(config: str | None, rows: Any) -> tuple[str, Any]:
    """Return the configuration, "auto" if missing, and the rows.

    Data in place of the configuration is the first of the rows. UsageError without rows, or for a configuration there.
    """
    if config is not None and (_DATA_FILE.search(config) or set(config) & set("*?[")):
        if isinstance(rows, dict):
            raise click.UsageError(f"use either DATA, which {config} seems to be, or --{next(iter(rows))}, not both")
        more = [] if rows is None else [rows] if isinstance(rows, str) else rows
        config, rows = "auto", options.one_or_list([config, *more])
    paths = [rows] if isinstance(rows, str) else rows
    if isinstance(paths, list) and (file := next(filter(_is_config, paths), None)):
        data = [path for path in [config, *paths] if path not in (None, "auto", "-", file)]
        line = shlex.join(["daskprep", "preprocess", file, *data]) if data else f"daskprep preprocess {file} DATA"
        raise click.UsageError(f"{file} is a configuration, not DATA: CONFIG comes first, as in {line}")
    if rows is None:
        raise click.UsageError(
            "pass DATA, or CONFIG and then DATA or the files of each split: --train, --validation, --test"
        )
    return config or "auto", rows


def _default_output(rows: Any) -> str | None:
    """Return "a.dp" for the file a.csv or folder a; None for globs or several."""
    from daskprep.sources.file_source import has_known_format

    if not isinstance(rows, str) or not Path(rows).name.strip(".") or set(rows) & set("*?["):
        return None
    path = rows.rstrip("/")
    stem = re.sub(r"\.\w+(\.(gz|zst|bz2))?$", "", path) if has_known_format(path) else path
    return f"{stem}.dp"


def _make_preprocessor(
    config: str,
    rows: Any,
    weight: str | None,
    read_options: Mapping[str, Any],
    progress: bool | None,
    inferring: Mapping[str, Any],
) -> dp.Preprocessor:
    """Return the Preprocessor of a configuration or "auto".

    The configuration is a path, or "-" for standard input. "auto" guesses features. `weight` replaces the
    configuration's; UsageError for options that only "auto" has.
    """
    if config == "auto":
        from daskprep.sources import as_source

        targets = inferring["targets"]
        inferred = dp.infer_features(as_source(rows, **read_options), progress=progress, **inferring)
        for name in targets:
            if (positive := getattr(inferred[name], "positive", None)) is not None:
                line = f'target "{name}": {positive!r} is taken as the positive label; to choose, set its "positive"'
                print_message("warning", f"{line} in the configuration that daskprep infer writes")
        features = {name: feature for name, feature in inferred.items() if name != weight}
        return dp.Preprocessor(features, targets=targets, split=dp.RandomSplit(), weight=weight)
    for option, default in (("targets", ()), ("style", None), ("redundant", "skip")):
        if inferring[option] != default:
            flag = option.removesuffix("s")
            raise click.UsageError(f'--{flag} is for "auto": in a configuration, set parameters and output_features')
    # A string would be parsed as YAML unless it ends like the name of a file.
    config_source = sys.stdin.read() if config == "-" else config if "://" in config else Path(config)
    if config == "-" and not str(config_source).strip():
        raise ConfigError("standard input is empty: - reads a configuration, such as the output of daskprep infer")
    prep = dp.Preprocessor.from_config(config_source)
    return prep if weight is None else prep.set_params(weight=weight)


_SAMPLE_ROWS = 10_000


def _plan_lines(prep: dp.Preprocessor, source: Source, output: str | None) -> list[str]:
    """Return the plan of a write, estimated from first rows."""
    from daskprep.dataset.writing.memory import MemoryLimit
    from daskprep.dataset.writing.plan import choose_layout
    from daskprep.passes.assignment import take_sample
    from daskprep.sources import TableSource

    source = take_sample(source, prep.sample, prep.sample_seed)
    sizes = [fragment.nbytes for fragment in source.fragments]
    number, sample = _read_first_rows(source)
    if source.row_counts is not None:
        rows, qualifier, note = sum(source.row_counts), "", ""
    else:
        rows = round(sample.num_rows * sum(sizes) / max(sizes[number], 1))
        qualifier, note = "about ", ", estimated from one partition"
    prep = dp.Preprocessor(prep._feature_specs).fit(TableSource([sample.slice(0, _SAMPLE_ROWS)]))
    # All rows count as training rows; lengths that the sample underestimates make stored rows longer than planned.
    layout = choose_layout(prep.features_, prep.learned_, {"train": rows})
    limit, stored_bytes = MemoryLimit.from_size(1), rows * layout.row_bytes
    files = format_count(len(source.files), f"{source.format} file".strip())
    blocks = format_count(layout.blocks("train"), "block")
    partitions = f"{format_count(source.npartitions, 'partition')} of up to {format_bytes(max(sizes))}"
    return [
        f"reads    {files}: {format_bytes(sum(sizes))} of rows in memory, in {partitions}",
        f"rows     {qualifier}{rows:,}{note}; before rows are dropped or balanced",
        f"writes   {output or 'nothing, because -o is missing'}",
        f"dataset  about {format_bytes(stored_bytes)} before compression: {layout.row_bytes:,} bytes a row, "
        f"in {blocks} of {format_count(layout.block_rows, 'row')}",
        f"scratch  up to about {format_bytes(sum(sizes) + stored_bytes)} more until the dataset is complete",
        f"memory   up to {format_bytes(limit.required_bytes(max(sizes)))} for "
        f"{format_count(limit.threads, 'thread')} of {format_count(limit.processes, 'process', 'processes')}; "
        "--memory sets a limit",
        "Nothing was written.",
    ]


def _read_first_rows(source: Source) -> tuple[int, pa.Table]:
    """Return number and table of the first partition with rows; or ColumnError."""
    for number in range(source.npartitions):
        table = source.read(number, source.columns)
        if table.num_rows:
            return number, table
    raise ColumnError("the data has no rows: there is nothing to write")
