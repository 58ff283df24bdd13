"""`daskprep decode`: rows as values that a person reads."""

from __future__ import annotations

import csv
import functools
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

import daskprep as dp
from daskprep.cli.options import dataset_argument, storage_options
from daskprep.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from daskprep.dataset import Split

__all__ = ["decode"]

_MOST_DIGITS = 15


@click.command(short_help="Print rows as values that a person reads.")
@dataset_argument
@click.option("--split", default="train", show_default=True, metavar="NAME", help="Which split.")
@click.option("--rows", type=click.IntRange(min=0), metavar="N", help="How many of the first rows. [all]")
@click.option("--column", "columns", multiple=True, metavar="NAME", help="Which feature; may be given again. [all]")
@click.option("--format", "kind", type=click.Choice(["csv", "json", "parquet"]), help="[csv, or by the name of FILE]")
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Where to. [here]"
)
@storage_options
def decode(
    dataset: str,
    *,
    split: str,
    rows: int | None,
    columns: Sequence[str],
    kind: str | None,
    output: Path | None,
    storage_options: Mapping[str, Any] | None,
) -> None:
    """Print the rows of a DATASET as values that a person reads.

    \b
    daskprep decode listings.dp --rows 5
    daskprep decode listings.dp --split test --column city --column price --format json
    daskprep decode listings.dp -o listings.parquet

    Rows come block by block, so that a dataset may be larger than memory. JSON is an array with one row in a line;
    lists stand in CSV as JSON. Of images and sounds there are paths, or how large they are; Parquet has their bytes.
    """
    kind = kind or _kind_of(output)
    if kind == "parquet" and output is None:
        raise click.UsageError("Parquet is no text for a terminal: give -o FILE")
    opened = dp.open_dataset(dataset, storage_options=storage_options)
    tables = _tables(opened[split], columns, rows)
    if kind == "parquet" and output is not None:
        _write_parquet(tables, output)
        return
    with nullcontext(sys.stdout) if output is None else output.open("w", encoding="utf-8", newline="") as file:
        (_write_csv if kind == "csv" else _write_json)(tables, file)


def _kind_of(output: Path | None) -> str:
    ending = "" if output is None else output.suffix[1:].lower()
    return ending if ending in ("json", "parquet") else "csv"


def _tables(split: Split, columns: Sequence[str], rows: int | None) -> Iterator[pa.Table]:
    """Give decoded rows block by block, at least one table."""
    names = _features(split.dataset, columns)
    stop = len(split) if rows is None else min(rows, len(split))
    for block in range(max(1, -(-stop // split.layout.block_rows))):
        yield _decoded(split, names, block, stop)


def _features(dataset: dp.Dataset, columns: Sequence[str]) -> list[str]:
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

    dataset, rows = split.dataset, split.layout.block_range(split.name, block)
    rows = rows[: max(stop - rows.start, 0)]
    stored = {one.name for one in split.layout.cells}
    outputs = [name + suffix for name in names for suffix in dataset.features[name].outputs]
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
            columns[name] = feature.decode({suffix: arrays[name + suffix] for suffix in feature.outputs}, learned)
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


# -- as files


def _write_parquet(tables: Iterable[pa.Table], path: Path) -> None:
    import pyarrow.parquet as pq

    rest = iter(tables)
    first = next(rest)
    with pq.ParquetWriter(path, first.schema) as writer:
        for table in itertools.chain([first], rest):
            writer.write_table(table)


def _write_csv(tables: Iterable[pa.Table], file: TextIO) -> None:
    writer = csv.writer(file, lineterminator="\n")
    for number, table in enumerate(tables):
        if not number:
            writer.writerow(table.column_names)
        writer.writerows(
            [json.dumps(cell, ensure_ascii=False) if isinstance(cell, list) else cell for cell in row]
            for row in _rows(table)
        )


def _write_json(tables: Iterable[pa.Table], file: TextIO) -> None:
    separator = "[\n"
    for table in tables:
        for row in _rows(table):
            values = dict(zip(table.column_names, row, strict=True))
            file.write(separator + json.dumps(values, ensure_ascii=False, allow_nan=False))
            separator = ",\n"
    file.write("[]\n" if separator == "[\n" else "\n]\n")


def _rows(table: pa.Table) -> Iterable[tuple[Any, ...]]:
    return zip(*(_readable(column.combine_chunks()).to_pylist() for column in table.columns), strict=True)


def _readable(column: pa.Array) -> pa.Array:
    """Return a column in types that CSV and JSON have."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(column.type):
        # The shortest text of a float32 is that of the number as it came.
        numbers = column if column.type == pa.float64() else column.cast(pa.string()).cast(pa.float64())
        return pc.if_else(pc.is_finite(numbers), numbers, None)
    if isinstance(column, pa.ListArray | pa.LargeListArray):
        return type(column).from_arrays(column.offsets, _readable(column.values))
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.string())
    if pa.types.is_struct(column.type):
        sizes = _readable(pc.struct_field(column, "bytes"))
        return pc.coalesce(pc.struct_field(column, "path"), sizes)
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        sizes = pc.binary_length(column).cast(pa.string())
        return pc.binary_join_element_wise("<", sizes, " bytes>", "")
    return column
