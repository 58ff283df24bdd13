"""`daskprep inspect`, `report`, `check` and `decode`: contents of a dataset, findings in new rows, rows as values."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import daskprep as dp
from daskprep.columns.display import escape_unprintable
from daskprep.errors import ConfigError
from daskprep.extensions.cli import options
from daskprep.extensions.cli.console import paths_as_typed, show

if TYPE_CHECKING:
    from daskprep.extensions.cli.row_files import RowFormat
    from daskprep.passes.checking import Severity

_PLAIN = (bool, int, float, str)
_HEAD_TOKENS = 10
_TERMINAL_ROWS = 10
_FORMATS_BY_SUFFIX: dict[str, RowFormat] = {"": "csv", ".csv": "csv", ".json": "json", ".parquet": "parquet"}


@click.command(short_help="Show the contents of a dataset.")
@options.dataset
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--html", "page", metavar="FILE", type=click.Path(dir_okay=False), help="Write a report with charts.")
@click.option("--base-dir", type=click.Path(), metavar="FOLDER", help="Folder that relative paths of media start from.")
@options.fold
@options.trusted
@options.storage
def inspect(dataset: str, *, as_json: bool, page: str | None, **open_options: Any) -> None:
    """Show the contents of a DATASET: rows, splits, outputs, vocabularies and missing values.

    \b
    daskprep inspect listings.dp
    daskprep inspect listings.dp --json | jq .splits
    daskprep inspect listings.dp --html listings.html

    --html writes the report of Dataset.report: one file with the distribution of each feature, which needs no network.
    It reads all rows; without it, none are read. To print rows, use decode.
    """
    if as_json and page is not None:
        raise click.UsageError("use --json or --html, not both")
    opened = options.open_dataset(dataset, allow_folded=not as_json and page is None, **open_options)
    if page is not None:
        _write_report(opened, page, open_options["storage_options"])
    elif as_json:
        click.echo(json.dumps(_as_json(opened), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        from daskprep.dataset.writing.rewriting import read_recipe
        from daskprep.extensions.summary_html import describe

        rules, sample = read_recipe(opened), opened.metadata.get("sample")
        learned = describe(opened.features, opened.learned, rules.split, rules.balance, opened.targets, sample)
        show(opened.description, learned)
        if (losses := opened.losses()) is not None and len(losses):
            click.echo(f"\ncells whose encoding lacks information\n{losses.to_string(index=False)}")


def _write_report(dataset: dp.Dataset, page: str, storage_options: Mapping[str, Any] | None) -> None:
    """Write the HTML report to a path or URL."""
    from daskprep.extensions.cli.row_files import open_output

    with open_output(page, storage_options) as file:
        file.write(dataset.report().html.encode())
    click.echo(f"wrote {page}", err=True)


@click.command(short_help="Write an HTML report of a dataset.")
@options.dataset
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False), help="[default: a.html for a.dp]")
@options.fold
@options.trusted
@options.storage
def report(dataset: str, *, output: str | None, **open_options: Any) -> None:
    """Write the report of a DATASET: one HTML file with the distribution of each feature, which needs no network.

    \b
    daskprep report listings.dp
    daskprep report listings.dp -o report.html
    """
    if output is None:
        if "://" in dataset:
            raise click.UsageError("use -o FILE: the report of a URL has no default path")
        output = f"{dataset.rstrip('/').removesuffix('.dp')}.html"
    opened = options.open_dataset(dataset, allow_folded=False, **open_options)
    _write_report(opened, output, open_options["storage_options"])


def _as_json(dataset: dp.Dataset) -> dict[str, Any]:
    """Return the JSON values of `inspect --json`."""
    from daskprep.dataset.writing.rewriting import read_recipe

    layout, files = dataset.layout, [entry for _, entry in dataset.file_entries]
    rules = read_recipe(dataset)
    return {
        "dataset": dataset.url,
        "version": dataset.version,
        "rows": sum(layout.rows.values()),
        "splits": dict(layout.rows),
        "bytes": sum(entry.bytes for entry in files),
        "files": len(files),
        "block_rows": layout.block_rows,
        "compression": layout.compression,
        "rejected_rows": dataset.rejects().num_rows,
        "losses": None if (losses := dataset.losses()) is None else losses.to_dict("records"),
        "duplicates": dataset.duplicates and {split: rows._asdict() for split, rows in dataset.duplicates.items()},
        "split": None if rules.split is None else rules.split.to_dict(),
        "balance": None if rules.balance is None else rules.balance.to_dict(),
        "targets": list(dataset.targets),
        "features": {name: _describe_feature(dataset, name) for name in dataset.features},
        "outputs": {one.name: {"dtype": one.dtype, "shape": list(one.shape)} for one in layout.outputs},
        "vocabularies": dict(_describe_vocabularies(dataset)),
    }


def _describe_feature(dataset: dp.Dataset, name: str) -> dict[str, Any]:
    """Return a feature's type, column, outputs, counts, state."""
    from daskprep.features import Learned
    from daskprep.features.base import all_outputs, rows_seen

    feature, learned = dataset.features[name], dataset.learned[name]
    common = {field.name for field in dataclasses.fields(Learned)}
    own = sorted(field.name for field in dataclasses.fields(learned) if field.name not in common)
    values = {name: getattr(learned, name) for name in own}
    return {
        "type": feature.kind,
        "column": feature.reads(name)[0],
        "outputs": [name + suffix for suffix in all_outputs(feature)],
        "rows": learned.rows,
        "missing": learned.missing,
        "missing_rate": learned.missing / max(rows_seen(feature, learned), 1),
        "unreadable": learned.invalid,
        "unreadable_samples": list(learned.invalid_samples),
        "fill_value": _to_json_value(learned.fill_value),
        "learned": {name: _to_json_value(value) for name, value in values.items() if isinstance(value, _PLAIN)},
    }


def _to_json_value(value: Any) -> Any:
    """Return None for NaN and infinities, text for other types."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, _PLAIN) else str(value)


def _describe_vocabularies(dataset: dp.Dataset) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield size and 10 tokens of each vocabulary, by output."""
    for output in dataset.layout.outputs:
        with suppress(ConfigError):  # the output has no vocabulary
            vocabulary = dataset.vocabulary(output.name)
            head, counts = vocabulary.tokens[:_HEAD_TOKENS].to_pylist(), vocabulary.frequencies
            tokens = [{"token": token, "id": i, "frequency": int(counts[i])} for i, token in enumerate(head)]
            yield output.name, {"size": len(vocabulary), "head": tokens}


@click.command(short_help="Compare new rows with the rows of a fit.")
@click.argument("state", type=click.Path())
@click.argument("new", nargs=-1, required=True, type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--raise-on", type=click.Choice(["error", "warning"]), default="warning", show_default=True,
    help="Lowest severity of a finding for which the exit status is 1.",
)  # fmt: skip
@click.option("--column", "columns", multiple=True, metavar="NAME", help="Column to compare. Repeatable. [all]")
@click.option("--ignore", multiple=True, metavar="NAME", help="Column or kind of finding to leave out. Repeatable.")
@options.files
@options.workers
@options.storage
def check(
    state: str,
    new: Sequence[str],
    *,
    as_json: bool,
    raise_on: Severity,
    columns: Sequence[str],
    ignore: Sequence[str],
    read_options: Mapping[str, Any],
    on_workers: options.OnWorkers,
    storage_options: Mapping[str, Any] | None,
) -> int:
    """Compare the rows of the files NEW with the rows of the fit of STATE.

    STATE is a file of Preprocessor.save, or a dataset. Prints the findings, and exits with status 1 if there are any.

    \b
    daskprep check prep.json new.csv
    daskprep check listings.dp "new/*.parquet" --raise-on error
    daskprep check prep.json new.csv --ignore user --ignore hours
    daskprep check prep.json new.csv --json | jq .findings
    """
    rows: Any = options.one_or_list(new)
    options.check_paths([state, *new])
    prep = _open_preprocessor(state)
    with on_workers(rows, storage_options=storage_options, **read_options):
        if read_options:
            rows = dp.read_files(rows, storage_options=storage_options, **read_options)
        storage = None if read_options else storage_options
        result = prep.check(rows, columns=columns or None, ignore=ignore, storage_options=storage)
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        click.echo(paths_as_typed("\n".join(map(escape_unprintable, str(result).splitlines()))))
    return int(result.has(raise_on))


def _open_preprocessor(state: str) -> dp.Preprocessor:
    """Load the Preprocessor of a dataset, or of a saved file."""
    is_dataset = "://" not in state and Path(state).is_dir()
    return dp.Preprocessor.from_dataset(state) if is_dataset else dp.Preprocessor.load(state)


def _choose_format(kind: RowFormat | None, output: str | None) -> tuple[RowFormat, str | None]:
    """Return the format of rows, and their path.

    The path is None for standard output. By default the suffix chooses, CSV without one. UsageError for unknown
    suffixes, and for Parquet without a path.
    """
    output = None if output == "-" else output
    suffix = Path(output or "").suffix.lower()
    if kind is None and suffix not in _FORMATS_BY_SUFFIX:
        raise click.UsageError(f"{suffix} files cannot be written: use .csv, .json or .parquet, or pass --format")
    kind = kind or _FORMATS_BY_SUFFIX[suffix]
    if kind == "parquet" and output is None:
        raise click.UsageError("Parquet cannot be printed: use -o FILE")
    return kind, output


@click.command(short_help="Convert outputs of a model to labels and units.")
@click.argument("state", type=click.Path())
@click.argument("outputs", type=click.Path(dir_okay=False))
@click.option("--probabilities", is_flag=True, help="Print the probabilities of all classes.")
@click.option("--top-k", type=click.IntRange(min=1), metavar="N", help="Print the N most probable classes.")
@click.option(
    "--threshold", type=click.FloatRange(0, 1), default=0.5, show_default=True,
    help="Probability from which a label is True.",
)  # fmt: skip
@click.option("--no-logits", is_flag=True, help="Outputs for classes are probabilities, not logits.")
@click.option("--format", "kind", type=click.Choice(["csv", "json", "parquet"]), help="[by the name of FILE, or csv]")
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False), help="[standard output]")
def predict(
    state: str, outputs: str, *, no_logits: bool, kind: RowFormat | None, output: str | None, **prediction_options: Any
) -> None:
    """Convert the OUTPUTS of a model for the targets of STATE to labels, tokens and numbers in their original units.

    STATE is a file of Preprocessor.save, or a dataset. OUTPUTS is a file of numpy.save, or of numpy.savez with an array
    named as each target.

    \b
    daskprep predict prep.json outputs.npy
    daskprep predict listings.dp outputs.npz --probabilities -o predictions.parquet
    """
    import numpy as np
    import pyarrow as pa

    from daskprep.extensions.cli.row_files import write_rows

    kind, output = _choose_format(kind, output)
    options.check_paths([state, outputs])
    try:
        loaded: Any = np.load(outputs, allow_pickle=False)
        arrays = loaded if isinstance(loaded, np.ndarray) else dict(loaded)
        if isinstance(arrays, dict) and list(arrays) == ["arr_0"]:  # the name of an array without one
            arrays = arrays["arr_0"]
    except (ValueError, EOFError) as error:
        # NumPy's message proposes to load the file as a pickle, which would run code from it.
        raise ConfigError(f"{outputs} has no arrays of numpy.save or numpy.savez: save the outputs by one") from error
    frame = _open_preprocessor(state).predictions(arrays, logits=not no_logits, **prediction_options)
    write_rows([pa.Table.from_pandas(frame, preserve_index=False)], kind, output)


@click.command(short_help="Print rows as human-readable values.")
@options.dataset
@click.option("--split", default="train", show_default=True, metavar="NAME", help="Split to print.")
@click.option("--rows", type=click.IntRange(min=0), metavar="N", help="Number of rows. [all; 10 on a terminal]")
@click.option("--column", "columns", multiple=True, metavar="NAME", help="Feature to print. Repeatable. [all]")
@click.option("--format", "kind", type=click.Choice(["csv", "json", "parquet"]), help="[by the name of FILE, or csv]")
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False), help="[standard output]")
@options.fold
@options.storage
def decode(
    dataset: str,
    *,
    split: str,
    rows: int | None,
    columns: Sequence[str],
    kind: RowFormat | None,
    output: str | None,
    **open_options: Any,
) -> None:
    """Print the rows of a DATASET as human-readable values.

    \b
    daskprep decode listings.dp --rows 5
    daskprep decode listings.dp --split test --column city --column price --format json
    daskprep decode listings.dp -o listings.parquet

    Rows are read block by block, so the dataset may be larger than memory. JSON output is one array with a row per
    line. In CSV, lists are JSON. Images and audio are printed as paths or sizes; Parquet contains their bytes.
    """
    kind, output = _choose_format(kind, output)
    opened = options.open_dataset(dataset, allow_folded=False, **open_options)
    from daskprep.extensions.cli.row_files import decode_tables, write_rows

    chosen = opened[split if split in opened else options.SPLIT_NAMES.get(split.lower(), split)]
    is_cut = rows is None and output is None and sys.stdout.isatty() and len(chosen) > _TERMINAL_ROWS
    tables = decode_tables(chosen, columns, _TERMINAL_ROWS if is_cut else rows)
    write_rows(tables, kind, output, open_options["storage_options"])
    if is_cut:
        click.echo(f"{_TERMINAL_ROWS} of {len(chosen):,} rows: --rows {len(chosen)} prints all of them", err=True)
