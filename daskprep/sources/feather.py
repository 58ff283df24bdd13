"""Feather and Arrow IPC files: fragments are record batches; local files are memory-mapped."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.types as pt

from daskprep.errors import ConfigError
from daskprep.sources.base import FileFragment, Fragment, group_fragments, join_file_fragments
from daskprep.sources.columnar import CommonSchema, check_types, decoded_nbytes, validate_and_cast
from daskprep.sources.locations import File, explain_read_errors, for_each_file
from daskprep.storage.safe_versions import require_safe

_FILE_MAGIC = b"ARROW1"
_FEATHER_1_MAGIC = b"FEA1"


@dataclass(frozen=True)
class BatchFragment(FileFragment):
    """Batches `first` to `last` (exclusive) of one file; `casts` are the columns to cast, with their types."""

    first: int
    last: int
    casts: tuple[tuple[str, pa.DataType], ...]

    def read_stored(self, columns: list[str]) -> pa.Table:
        table = self.read_batches(columns)
        if table.num_rows != self.rows:
            raise ConfigError(f"{self.file.name}: changed since it was listed; create the source again")
        return validate_and_cast(table, columns, self.casts, self.file)

    @abstractmethod
    def read_batches(self, columns: list[str]) -> pa.Table:
        """Return these columns with their stored types, in any order; with no columns, a table with the row count."""

    @staticmethod
    @abstractmethod
    def layout(file: File) -> tuple[pa.Schema, list[int]]:
        """Return the schema of a file, and the number of rows of each batch."""


@dataclass(frozen=True)
class FeatherFragment(BatchFragment):
    """Record batches of one file."""

    kind: ClassVar[str] = "Arrow IPC"

    def read_batches(self, columns: list[str]) -> pa.Table:
        with self.file.open() as handle:
            schema = _open_reader(self.file, handle, None).schema
            fields = [schema.names.index(name) for name in columns] or cheapest_column(schema)
            reader = _open_reader(self.file, handle, fields)
            batches = list(_iterate_batches(reader, self.first, self.last))
            return pa.Table.from_batches(batches, reader.schema)

    @staticmethod
    def layout(file: File) -> tuple[pa.Schema, list[int]]:
        with explain_read_errors(file, FeatherFragment.kind), file.open() as handle:
            schema = _open_reader(file, handle, None).schema
            check_types(schema)
            reader = _open_reader(file, handle, cheapest_column(schema))
            return schema, [batch.num_rows for batch in _iterate_batches(reader, 0, None)]


def plan_batches(
    kind: type[BatchFragment],
    files: Sequence[File],
    columns: Collection[str] | None,
    partition_bytes: int,
    partitions: int | None = None,
) -> tuple[CommonSchema, list[Fragment]]:
    """Return the common schema of all files, and fragments of about `partition_bytes` of the requested columns."""
    layouts = for_each_file(kind.layout, files)
    common_schema = CommonSchema(files, [schema for schema, _ in layouts])
    names = [
        name
        for name in common_schema.types
        if name not in common_schema.problems and (columns is None or name in columns)
    ]
    width = _row_bytes(kind, files, [rows for _, rows in layouts], names)
    fragments = []
    for file, (schema, rows) in zip(files, layouts, strict=True):
        blank = kind(file, 0, 0, 0, 0, common_schema.casts(schema))
        batches = [
            replace(blank, rows=count, nbytes=int(count * width), first=i, last=i + 1) for i, count in enumerate(rows)
        ]
        fragments += batches or [blank]
    return common_schema, group_fragments(fragments, partition_bytes, _join, partitions=partitions)


def _row_bytes(
    kind: type[BatchFragment], files: Sequence[File], counts: Sequence[Sequence[int]], columns: list[str]
) -> float:
    """Return the mean bytes of a row in the largest batch, which is read: types do not show the size of texts."""
    rows, number, batch = max(
        (n, -i, -j) for i, batch_rows in enumerate(counts) for j, n in enumerate([*batch_rows, 0])
    )
    if not rows:
        return 0.0
    with explain_read_errors(files[-number], kind.kind):
        table = kind(files[-number], rows, 0, -batch, 1 - batch, ()).read_stored(columns)
    return decoded_nbytes(table) / rows


def _join(fragments: list[BatchFragment]) -> Fragment:
    return join_file_fragments(fragments, lambda file_fragments: {"last": file_fragments[-1].last})


def _open_reader(file: File, handle: Any, fields: list[int] | None) -> Any:
    """Return a reader of an IPC file or of an IPC stream, which Hugging Face datasets write with the same suffix."""
    handle.seek(0)
    magic = bytes(handle.read(len(_FILE_MAGIC)))
    handle.seek(0)
    if magic.startswith(_FEATHER_1_MAGIC):
        raise ConfigError(
            f"{file.name}: is of Feather version 1, which Arrow no longer reads; write it again with to_feather"
        )
    require_safe("pyarrow")
    options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
    return (pa.ipc.open_file if magic == _FILE_MAGIC else pa.ipc.open_stream)(handle, options=options)


def _iterate_batches(reader: Any, first: int, last: int | None) -> Iterator[pa.RecordBatch]:
    """Return an iterator over batches `first` to `last` (exclusive; None: to the end)."""
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        stop = reader.num_record_batches if last is None else last
        return (reader.get_batch(i) for i in range(first, stop))
    return islice(reader, first, last)


def cheapest_column(schema: pa.Schema) -> list[int]:
    """Return the index of the cheapest column, in a list: with an empty list, Arrow reads all columns."""
    fixed = [i for i, field in enumerate(schema) if pt.is_primitive(field.type)]
    return fixed[:1] or list(range(min(1, len(schema))))
