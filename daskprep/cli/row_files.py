"""Decoded rows as CSV, JSON or Parquet, on standard output or in a file."""

from __future__ import annotations

import csv
import io
import itertools
import json
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TextIO

from daskprep.cli.output_files import opened

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["csv", "json", "parquet"]


def write_rows(
    tables: Iterable[pa.Table], kind: Kind, output: str | None, storage_options: Mapping[str, Any] | None = None
) -> None:
    """Write tables one after the other, on standard output if `output` is None, which is no place for Parquet."""
    if output is None:
        _write_text(tables, kind, sys.stdout)
        return
    with opened(output, storage_options) as file:
        if kind == "parquet":
            _write_parquet(tables, file)
            return
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        _write_text(tables, kind, text)
        text.detach()


def _write_parquet(tables: Iterable[pa.Table], file: BinaryIO) -> None:
    import pyarrow.parquet as pq

    rest = iter(tables)
    first = next(rest)
    with pq.ParquetWriter(file, first.schema) as writer:
        for table in itertools.chain([first], rest):
            writer.write_table(table)


def _write_text(tables: Iterable[pa.Table], kind: Kind, file: TextIO) -> None:
    (_write_csv if kind == "csv" else _write_json)(tables, file)


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
