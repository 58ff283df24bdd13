"""Rows that come one after the other, perhaps once: kept in scratch, and read from there as files are."""

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
from daskprep.sources.base import MOST_ROWS, JoinedPiece, grouped
from daskprep.sources.columnar import Schemas
from daskprep.sources.datasets import stream_schema, stream_tables
from daskprep.sources.feather import FeatherPiece
from daskprep.sources.file_source import FileSource, is_known
from daskprep.sources.frames import chosen_columns, is_of, polars_columns
from daskprep.sources.locations import find_files
from daskprep.sources.spool import Spool

# What lies ready before it is asked for; with the defaults it is several times as much.
_SCANNER = {"batch_readahead": 2, "fragment_readahead": 1}
_LAZY: dict[str, Any] = {"chunk_size": 32_768, "engine": "streaming"}
# Of rows that are written at once.
_BATCH_BYTES = 8_000_000

_read: weakref.WeakSet[Any] = weakref.WeakSet()


@dataclass(frozen=True)
class SpooledPiece(FeatherPiece):
    """Some rows of a stream; `spool` keeps their file."""

    spool: Any
    kind: ClassVar[str] = "kept rows of a stream"


class StreamSource(FileSource):
    """Rows of a stream, which were kept in files."""

    folders = ()

    def fingerprint(self) -> list[tuple[str, int | None, str]]:
        """Return the files without times: nothing tells whether a stream gives the same rows again."""
        return [(file.name, file.size, "") for file in self.files]


def open_stream(
    given: Any, wanted: list[str] | None, partition_bytes: int, scratch: str | os.PathLike[str] | None
) -> StreamSource | None:
    """Read a stream to its end, keep its rows in a folder of `scratch`, and return their source; None for others."""
    try:
        found = _stream_of(polars_columns(given, wanted) if is_of(given, "polars", "LazyFrame") else given)
    except pa.ArrowInvalid as error:
        raise ColumnError(f"the columns of a {type(given).__name__} cannot be read: {error}") from error
    if found is None:
        return None
    schema, read = found
    columns = chosen_columns(schema.names, wanted, "the stream")
    if isinstance(given, pa.RecordBatchReader):
        if given in _read:
            raise ConfigError(
                "this RecordBatchReader was read before, and gives its rows once: create it again, or give the table, "
                "dataset or files that it reads"
            )
        _read.add(given)
    # What gave the rows may hold memory for long, and these files fill a partition as row groups seldom do.
    partition_bytes = partition_bytes * 2 // 5
    types, nbytes = narrow_schema(schema, columns), min(_BATCH_BYTES, partition_bytes)
    try:
        return _kept(_batches(read(columns), types, nbytes), columns, partition_bytes, Spool(scratch))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise ColumnError(f"the rows of a {type(given).__name__} cannot be read: {error}") from error


def _stream_of(given: Any) -> tuple[pa.Schema, Callable[[list[str]], Iterable[Any]]] | None:
    """Return the types of a stream, and what begins to read some of its columns."""
    if is_of(given, "polars", "LazyFrame"):
        types = pa.table(given.collect_schema().to_frame()).schema
        return types, lambda names: given.select(names).collect_batches(**_LAZY)
    if is_of(given, "datasets", "IterableDataset"):
        return stream_schema(given), lambda names: stream_tables(given, names)
    if isinstance(given, pds.Dataset):
        return given.schema, lambda names: given.scanner(columns=names, **_SCANNER).to_reader()
    # DuckDB's `__arrow_c_stream__` computes all rows first.
    reader = given.to_arrow_reader() if is_of(given, "duckdb", "DuckDBPyRelation") else None
    if reader is None and not hasattr(given, "__arrow_c_stream__"):
        return None
    if isinstance(given, pa.RecordBatchReader):
        # Not by its C stream, where batches of other types than it declares become numbers of the same bytes.
        return given.schema, lambda names: (_as_declared(batch, given.schema).select(names) for batch in given)
    reader = reader or pa.RecordBatchReader.from_stream(given)
    return reader.schema, lambda names: (batch.select(names) for batch in reader)


def _as_declared(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch that has the columns of a schema, which Arrow does not check where Python makes batches."""
    if (batch.schema.names, batch.schema.types) == (schema.names, schema.types):
        return batch
    had, said = (", ".join(f"{one.name}: {one.type}" for one in each) for each in (batch.schema, schema))
    raise ColumnError(f"the rows of a RecordBatchReader cannot be read: a batch has {had}, and its schema says {said}")


def _batches(batches: Iterable[Any], schema: pa.Schema, most_bytes: int) -> Iterator[pa.Table]:
    """Give rows as tables of about so many bytes, of delivered types; at least one."""
    held, nbytes = [schema.empty_table()], 0
    for table in (narrow_table(pa.table(batch)) for batch in batches):
        rows = max(1, min(MOST_ROWS, len(table) * most_bytes // max(table.nbytes, 1)))
        for part in (table.slice(start, rows) for start in range(0, len(table), rows)):
            if nbytes and nbytes + part.nbytes > most_bytes:
                yield _joined(held)
                held, nbytes = [], 0
            held.append(part)
            nbytes += part.nbytes
    yield _joined(held)


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    # Where no types were declared, a batch may hold no value of a column yet, or whole numbers alone.
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks()


def _kept(tables: Iterable[pa.Table], columns: list[str], partition_bytes: int, spool: Spool) -> StreamSource:
    """Write each table to a file."""
    kept = []
    for number, table in enumerate(tables):
        spool.write(f"part-{number:06d}.arrow", table)
        kept.append((table.schema, table.num_rows, table.nbytes))
    files = find_files([spool.path], None, is_known)
    schemas = Schemas(files, [schema for schema, _, _ in kept])
    pieces = [
        SpooledPiece(file, rows, nbytes, 0, 1, schemas.casts(schema), spool)
        for file, (schema, rows, nbytes) in zip(files, kept, strict=True)
    ]
    joined = grouped(pieces, partition_bytes, JoinedPiece.of)
    return StreamSource("feather", files, schemas, joined, settings={}, columns=columns)
