"""Streams of rows, which may be read only once: their rows are kept in scratch files and read from there."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.dataset as pds

from daskprep.errors import ColumnError, ConfigError
from daskprep.sources.arrow_types import narrow_schema, narrow_table
from daskprep.sources.base import MAX_FRAGMENT_ROWS, JoinedFragment, group_fragments
from daskprep.sources.columnar import CommonSchema
from daskprep.sources.datasets import stream_schema, stream_tables
from daskprep.sources.feather import FeatherFragment
from daskprep.sources.file_source import FileSource, has_known_format
from daskprep.sources.frames import choose_columns, is_instance_of, select_polars_columns
from daskprep.sources.locations import find_files
from daskprep.sources.spool import Spool

# Prefetched batches and fragments; the defaults prefetch several times as much.
_SCAN_OPTIONS = {"batch_readahead": 2, "fragment_readahead": 1}
_COLLECT_OPTIONS: dict[str, Any] = {"chunk_size": 32_768, "engine": "streaming"}
# Maximum size of a table that is written to a file.
_BATCH_BYTES = 8_000_000

_consumed_readers: weakref.WeakSet[Any] = weakref.WeakSet()


@dataclass(frozen=True)
class SpooledFragment(FeatherFragment):
    """Rows of a stream in one file; `spool` keeps the file from being removed."""

    spool: Any
    kind: ClassVar[str] = "kept rows of a stream"


class StreamSource(FileSource):
    """The rows of a stream, kept in scratch files."""

    folders = ()

    def fingerprint(self) -> list[tuple[str, int | None, str]]:
        """Return the files without modification times, as these do not identify the rows of a stream."""
        return [(file.name, file.size, "") for file in self.files]


def open_stream(
    stream: Any, wanted: list[str] | None, partition_bytes: int, scratch: str | os.PathLike[str] | None
) -> StreamSource | None:
    """Read a stream to its end into a folder in `scratch`, and return its source; None for other objects."""
    try:
        schema_and_read = _open_batches(
            select_polars_columns(stream, wanted) if is_instance_of(stream, "polars", "LazyFrame") else stream
        )
    except pa.ArrowInvalid as error:
        raise ColumnError(f"the columns of a {type(stream).__name__} cannot be read: {error}") from error
    if schema_and_read is None:
        return None
    schema, read = schema_and_read
    columns = choose_columns(schema.names, wanted, "the stream")
    if isinstance(stream, pa.RecordBatchReader):
        if stream in _consumed_readers:
            raise ConfigError(
                "this RecordBatchReader was read before, and returns its rows once: create it again, or pass the "
                "table, dataset or files that it reads"
            )
        _consumed_readers.add(stream)
    # Smaller partitions, as the library behind the stream may keep memory, and scratch files fill a partition fully.
    partition_bytes = partition_bytes * 2 // 5
    types, nbytes = narrow_schema(schema, columns), min(_BATCH_BYTES, partition_bytes)
    try:
        return _spool_tables(_rebatch(read(columns), types, nbytes), columns, partition_bytes, Spool(scratch))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise ColumnError(f"the rows of a {type(stream).__name__} cannot be read: {error}") from error


def _open_batches(stream: Any) -> tuple[pa.Schema, Callable[[list[str]], Iterable[Any]]] | None:
    """Return the schema of a stream, and a function from column names to its batches; None for other objects."""
    if is_instance_of(stream, "polars", "LazyFrame"):
        types = pa.table(stream.collect_schema().to_frame()).schema
        return types, lambda names: stream.select(names).collect_batches(**_COLLECT_OPTIONS)
    if is_instance_of(stream, "datasets", "IterableDataset"):
        return stream_schema(stream), lambda names: stream_tables(stream, names)
    if isinstance(stream, pds.Dataset):
        return stream.schema, lambda names: stream.scanner(columns=names, **_SCAN_OPTIONS).to_reader()
    # DuckDB's `__arrow_c_stream__` computes all rows first.
    reader = stream.to_arrow_reader() if is_instance_of(stream, "duckdb", "DuckDBPyRelation") else None
    if reader is None and not hasattr(stream, "__arrow_c_stream__"):
        return None
    if isinstance(stream, pa.RecordBatchReader):
        # Not through its C stream, which reinterprets the bytes of batches whose types differ from the declared schema.
        return stream.schema, lambda names: (_check_schema(batch, stream.schema).select(names) for batch in stream)
    reader = reader or pa.RecordBatchReader.from_stream(stream)
    return reader.schema, lambda names: (batch.select(names) for batch in reader)


def _check_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch if it has the declared schema, which Arrow does not check for readers of Python batches."""
    if (batch.schema.names, batch.schema.types) == (schema.names, schema.types):
        return batch
    actual, declared = (
        ", ".join(f"{field.name}: {field.type}" for field in columns) for columns in (batch.schema, schema)
    )
    raise ColumnError(
        f"the rows of a RecordBatchReader cannot be read: a batch has {actual}, but its schema has {declared}"
    )


def _rebatch(batches: Iterable[Any], schema: pa.Schema, max_bytes: int) -> Iterator[pa.Table]:
    """Yield tables of delivered types and at most about `max_bytes`; at least one table."""
    pending, nbytes = [schema.empty_table()], 0
    for table in (narrow_table(pa.table(batch)) for batch in batches):
        rows = max(1, min(MAX_FRAGMENT_ROWS, len(table) * max_bytes // max(table.nbytes, 1)))
        for table_slice in (table.slice(start, rows) for start in range(0, len(table), rows)):
            if nbytes and nbytes + table_slice.nbytes > max_bytes:
                yield _concatenate(pending)
                pending, nbytes = [], 0
            pending.append(table_slice)
            nbytes += table_slice.nbytes
    yield _concatenate(pending)


def _concatenate(tables: Sequence[pa.Table]) -> pa.Table:
    # Without a declared schema, one batch may have only nulls or integers where the next has other types.
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks()


def _spool_tables(tables: Iterable[pa.Table], columns: list[str], partition_bytes: int, spool: Spool) -> StreamSource:
    """Write each table to a file of the spool, and return a source of the files."""
    spooled = []
    for number, table in enumerate(tables):
        spool.write(f"part-{number:06d}.arrow", table)
        spooled.append((table.schema, table.num_rows, table.nbytes))
    files = find_files([spool.path], None, has_known_format)
    common_schema = CommonSchema(files, [schema for schema, _, _ in spooled])
    fragments = [
        SpooledFragment(file, rows, nbytes, 0, 1, common_schema.casts(schema), spool)
        for file, (schema, rows, nbytes) in zip(files, spooled, strict=True)
    ]
    joined = group_fragments(fragments, partition_bytes, JoinedFragment.of)
    return StreamSource("feather", files, common_schema, joined, settings={}, columns=columns)
