"""`daskprep decode`: rows as human-readable values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from daskprep.cli import options

if TYPE_CHECKING:
    from daskprep.cli.row_files import RowFormat


@click.command(short_help="Print rows as human-readable values.")
@options.dataset
@click.option("--split", default="train", show_default=True, metavar="NAME", help="Split to print.")
@click.option("--rows", type=click.IntRange(min=0), metavar="N", help="Number of rows to print. [all]")
@click.option("--column", "columns", multiple=True, metavar="NAME", help="Feature to print. Repeatable. [all]")
@click.option("--format", "kind", type=click.Choice(["csv", "json", "parquet"]), help="[by the name of FILE, or csv]")
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False), help="[standard output]")
@options.fold
@options.storage
def decode(
    dataset: str,
    *,
    fold: int | None,
    split: str,
    rows: int | None,
    columns: Sequence[str],
    kind: RowFormat | None,
    output: str | None,
    storage_options: Mapping[str, Any] | None,
) -> None:
    """Print the rows of a DATASET as human-readable values.

    \b
    daskprep decode listings.dp --rows 5
    daskprep decode listings.dp --split test --column city --column price --format json
    daskprep decode listings.dp -o listings.parquet

    Rows are read block by block, so the dataset may be larger than memory. JSON output is one array with a row per
    line. In CSV, lists are JSON. Images and audio are printed as paths or sizes; Parquet contains their bytes.
    """
    output = None if output == "-" else output
    kinds_by_suffix: dict[str, RowFormat] = {".json": "json", ".parquet": "parquet"}
    kind = kind or kinds_by_suffix.get(Path(output or "").suffix.lower(), "csv")
    if kind == "parquet" and output is None:
        raise click.UsageError("Parquet cannot be printed: use -o FILE")
    opened = options.open_dataset(dataset, fold=fold, allow_folded=False, storage_options=storage_options)
    from daskprep.cli.row_files import decode_tables, write_rows

    write_rows(decode_tables(opened[split], columns, rows), kind, output, storage_options)
