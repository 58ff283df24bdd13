"""Decoded rows as CSV, JSON or Parquet, on standard output or in a file, which exists only once it is complete."""

from __future__ import annotations

import csv
import io
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from daskprep.dataset import Split
from daskprep.dataset.stored import StoredDataset
from daskprep.errors import ConfigError, did_you_mean
from daskprep.features.base import all_outputs
from daskprep.features.checking import decode_column, mask_missing
from daskprep.rows.base import MISSING
from daskprep.storage import Folder
from daskprep.storage.files import CallbackWriter

RowFormat = Literal["csv", "json", "parquet"]


def decode_tables(split: Split, columns: Sequence[str] = (), rows: int | None = None) -> Iterator[pa.Table]:
    """Yield decoded rows by block; without rows, one empty table."""
    names = _select_features(split.dataset, columns)
    stop = len(split) if rows is None else min(rows, len(split))
    for block in range(max(1, -(-stop // split.layout.block_rows))):
        yield _decode_block(split, names, block, stop)


def _select_features(dataset: StoredDataset, columns: Sequence[str]) -> list[str]:
    """Return the columns, all features if none; ConfigError for unknown ones."""
    for name in columns:
        if name not in dataset.features:
            known = list(dataset.features)
            raise ConfigError(
                f'no feature "{name}" in {dataset.url}.{did_you_mean(name, known)} Features are: {", ".join(known)}'
            )
    return list(columns or dataset.features)


def _decode_block(split: Split, names: Sequence[str], block: int, stop: int) -> pa.Table:
    """Return the rows of a block that come before `stop`."""
    dataset, rows = split.dataset, split.layout.block_range(split.name, block)
    rows = rows[: max(stop - rows.start, 0)]
    stored = {one.name for one in split.layout.cells}
    outputs = [name + suffix for name in names for suffix in all_outputs(dataset.features[name])]
    arrays = split.read([output for output in outputs if output not in stored], rows.start, rows.stop)
    columns = {}
    for name in names:
        feature, learned = dataset.features[name], dataset.learned[name]
        feature_arrays = {suffix: arrays[name + suffix] for suffix in all_outputs(feature) if name + suffix in arrays}
        if name in stored:
            cells = split.media(name).cells(split.block(name, block))[: len(rows)]
            columns[name] = mask_missing(cells, feature_arrays.get(MISSING))
            continue
        columns[name] = decode_column(feature, feature_arrays, learned)
    return pa.table(columns)


def write_rows(
    tables: Iterable[pa.Table], kind: RowFormat, output: str | None, storage_options: Mapping[str, Any] | None = None
) -> None:
    """Write tables to a path or URL, or to standard output."""
    write_text = _write_csv if kind == "csv" else _write_json
    if output is None:
        write_text(tables, sys.stdout)
        return
    with open_output(output, storage_options) as file:
        if kind == "parquet":
            _write_parquet(tables, file)
            return
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        write_text(tables, text)
        text.detach()


def _write_parquet(tables: Iterable[pa.Table], file: BinaryIO) -> None:
    """Write tables, at least one, with the schema of the first."""
    rest = iter(tables)
    first = next(rest)
    with pq.ParquetWriter(file, first.schema) as writer:
        for table in itertools.chain([first], rest):
            writer.write_table(table)


def _write_csv(tables: Iterable[pa.Table], file: TextIO) -> None:
    """Write tables as CSV with one header; lists are JSON."""
    writer = csv.writer(file, lineterminator="\n")
    for number, table in enumerate(tables):
        if not number:
            writer.writerow(table.column_names)
        writer.writerows(
            [json.dumps(cell, ensure_ascii=False) if isinstance(cell, list) else cell for cell in row]
            for row in _iterate_rows(table)
        )


def _write_json(tables: Iterable[pa.Table], file: TextIO) -> None:
    """Write tables as one JSON array of objects, a row per line."""
    separator = "[\n"
    for table in tables:
        for row in _iterate_rows(table):
            values = dict(zip(table.column_names, row, strict=True))
            file.write(separator + json.dumps(values, ensure_ascii=False, allow_nan=False))
            separator = ",\n"
    file.write("[]\n" if separator == "[\n" else "\n]\n")


def _iterate_rows(table: pa.Table) -> Iterable[tuple[Any, ...]]:
    return zip(*(_to_text_types(column.combine_chunks()).to_pylist() for column in table.columns), strict=True)


def _to_text_types(column: pa.Array) -> pa.Array:
    """Convert a column to types of CSV and JSON: NaN to null, media to their path or "<123 bytes>"."""
    if pa.types.is_floating(column.type):
        # A float32 is printed with its shortest text: 0.1, not 0.10000000149.
        numbers = column if column.type == pa.float64() else column.cast(pa.string()).cast(pa.float64())
        return pc.if_else(pc.is_finite(numbers), numbers, None)
    if isinstance(column, pa.ListArray | pa.LargeListArray):
        return type(column).from_arrays(column.offsets, _to_text_types(column.values))
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.string())
    if pa.types.is_struct(column.type):
        sizes = _to_text_types(pc.struct_field(column, "bytes"))
        return pc.coalesce(pc.struct_field(column, "path"), sizes)
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        sizes = pc.binary_length(column).cast(pa.string())
        return pc.binary_join_element_wise("<", sizes, " bytes>", "")
    return column


@contextmanager
def open_output(output: str, storage_options: Mapping[str, Any] | None = None) -> Iterator[BinaryIO]:
    """Open a new file, created when the block ends; pipes, devices and links are written directly."""
    path = Path(output)
    # A pipe, a device or a link such as /dev/stdout must not be replaced by a new file.
    if "://" not in output and (path.is_symlink() or (path.exists() and not path.is_file())):
        with path.open("wb") as file:
            yield file
        return
    folder, slash, name = output.rpartition("/")
    writer = Folder.open(folder or slash or ".", storage_options).writer(name)
    with writer as append, io.BufferedWriter(CallbackWriter(append)) as file:
        yield file
