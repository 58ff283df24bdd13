"""`daskprep decode`: rows as human-readable values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import daskprep as dp
from daskprep.cli.options import check_dataset, dataset_argument, storage_options
from daskprep.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from daskprep.cli.row_files import Kind
    from daskprep.dataset import Split
    from daskprep.dataset.stored import StoredDataset

_MOST_DIGITS = 15


@click.command(short_help="Print rows as human-readable values.")
@dataset_argument
@click.option("--split", default="train", show_default=True, metavar="NAME", help="Split to print.")
@click.option("--rows", type=click.IntRange(min=0), metavar="N", help="Number of rows to print. [all]")
@click.option("--column", "columns", multiple=True, metavar="NAME", help="Feature to print. Repeatable. [all]")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["csv", "json", "parquet"]),
    help="[by the name of FILE, or csv]",
)
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False), help="[standard output]")
@storage_options
def decode(
    dataset: str,
    *,
    split: str,
    rows: int | None,
    columns: Sequence[str],
    kind: Kind | None,
    output: str | None,
    storage_options: Mapping[str, Any] | None,
) -> None:
    """Print the rows of a DATASET as human-readable values.

    \b
    daskprep decode listings.dp --rows 5
    daskprep decode listings.dp --split test --column city --column price --format json
    daskprep decode listings.dp -o listings.parquet

    Rows are read block by block, so the dataset may be larger than memory. JSON output is one array with a row per
    line. CSV holds lists as JSON. Images and audio are printed as paths or sizes; Parquet holds their bytes.
    """
    output = None if output == "-" else output
    endings: dict[str, Kind] = {".json": "json", ".parquet": "parquet"}
    kind = kind or endings.get(Path(output or "").suffix.lower(), "csv")
    if kind == "parquet" and output is None:
        raise click.UsageError("Parquet cannot be printed: give -o FILE")
    check_dataset(dataset)
    from daskprep.cli.row_files import write_rows

    opened = dp.open_dataset(dataset, storage_options=storage_options)
    write_rows(decoded_tables(opened[split], columns, rows), kind, output, storage_options)


def decoded_tables(split: Split, columns: Sequence[str] = (), rows: int | None = None) -> Iterator[pa.Table]:
    """Yield decoded rows block by block, at least one table."""
    names = _features(split.dataset, columns)
    stop = len(split) if rows is None else min(rows, len(split))
    for block in range(max(1, -(-stop // split.layout.block_rows))):
        yield _decoded(split, names, block, stop)


def _features(dataset: StoredDataset, columns: Sequence[str]) -> list[str]:
    for name in columns:
        if name not in dataset.features:
            known = list(dataset.features)
            raise ConfigError(
                f'there is no feature "{name}" in {dataset.url}.{did_you_mean(name, known)} '
                f"Features are: {', '.join(known)}"
            )
    return list(columns or dataset.features)


def _decoded(split: Split, names: Sequence[str], block: int, stop: int) -> pa.Table:
    """Return the rows of a block that come before `stop`, one column for each feature."""
    import pyarrow as pa

    from daskprep.features.base import all_outputs
    from daskprep.features.checking import decode_column, missing_again
    from daskprep.serving.base import MISSING

    dataset, rows = split.dataset, split.layout.block_range(split.name, block)
    rows = rows[: max(stop - rows.start, 0)]
    stored = {one.name for one in split.layout.cells}
    outputs = [name + suffix for name in names for suffix in all_outputs(dataset.features[name])]
    arrays = split.read([output for output in outputs if output not in stored], rows.start, rows.stop)
    columns = {}
    for name in names:
        feature, learned = dataset.features[name], dataset.learned[name]
        if name in stored:
            columns[name] = split.media(name).cells(split.block(name, block))[: len(rows)]
        elif feature.outputs == ("",):
            decode = functools.partial(feature.decode, learned=learned)
            columns[name] = _rounded(decode, arrays[name]) if arrays[name].dtype == "float32" else decode(arrays[name])
        else:
            given = {suffix: arrays[name + suffix] for suffix in feature.outputs}
            columns[name] = decode_column(feature, given, learned)
        if feature.missing_indicator:
            columns[name] = missing_again(columns[name], arrays[name + MISSING])
    return pa.table(columns)


def _rounded(decode: Callable[[np.ndarray], pa.Array], encoded: np.ndarray) -> pa.Array:
    """Return decoded numbers without the digits that are noise: the next float32 is further away."""
    import numpy as np
    import pyarrow as pa

    decoded = decode(encoded)
    if encoded.ndim > 1:
        return decoded
    values = decoded.to_numpy(zero_copy_only=False)
    step = np.abs(decode(np.nextafter(encoded, np.float32(np.inf))).to_numpy(zero_copy_only=False) - values)
    known = np.isfinite(values) & np.isfinite(step) & (step > 0)
    digits = np.clip(np.floor(-np.log10(step, where=known, out=np.zeros_like(values))), 0, _MOST_DIGITS)
    # Adding 0 makes 0 of -0.
    return pa.array(np.where(known, np.rint(values * 10**digits) / 10**digits + 0.0, values))
