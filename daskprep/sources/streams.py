"""Rows that come one after the other, perhaps once: kept in scratch, and read from there as files are."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.dataset as pds

from daskprep.errors import ColumnError, ConfigError
from daskprep.sources.arrow_types import narrow_schema, narrow_table
from daskprep.sources.columnar import Schemas
from daskprep.sources.feather import FeatherPiece
from daskprep.sources.file_source import FileSource
from daskprep.sources.formats import is_known
from daskprep.sources.frames import chosen_columns, is_of
from daskprep.sources.huggingface import stream_names, stream_tables
from daskprep.sources.joining import MOST_ROWS
from daskprep.sources.locations import find_files
from daskprep.storage.files import Appended, Folder

# What lies ready before it is asked for; with the defaults it is several times as much.
_SCANNER = {"batch_readahead": 2, "fragment_readahead": 1}
_LAZY: dict[str, Any] = {"chunk_size": 32_768, "engine": "streaming"}
# Small enough to hold a few at a time, and large enough that a partition has a few.
_BATCH_BYTES = 8_000_000

_read: weakref.WeakSet[Any] = weakref.WeakSet()


class _Stream(NamedTuple):
    """The columns of a stream, and what begins to read some of them; `schema` where it is known."""

    names: list[str]
    read: Callable[[list[str]], Iterable[pa.Table]]
    schema: pa.Schema | None = None


class Spool:
    """A folder that is removed when nobody in this process needs it any more."""

    def __init__(self, parent: str | os.PathLike[str] | None) -> None:
        if parent is not None:
            Path(parent).mkdir(parents=True, exist_ok=True)
        self.path = tempfile.mkdtemp(prefix="daskprep-", dir=parent and Path(parent).resolve())
        weakref.finalize(self, _remove, self.path, os.getpid())

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (self.path,)


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:  # not in forked processes
        shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True)
class SpooledPiece(FeatherPiece):
    """A partition of a stream; `spool` keeps its file."""

    spool: Any
    kind: ClassVar[str] = "kept rows of a stream"


class StreamSource(FileSource):
    """Rows of a stream, which were kept in files."""

    @property
    def folders(self) -> tuple[str, ...]:
        return ()

    def fingerprint(self) -> list[tuple[str, int | None, str]]:
        """Return the files without times: nothing tells whether a stream gives the same rows again."""
        return [(file.name, file.size, "") for file in self.files]

    def __repr__(self) -> str:
        return f"<StreamSource: {sum(self.row_counts or ()):,} rows, {len(self.columns)} columns>"


def open_stream(
    given: Any, wanted: list[str] | None, partition_bytes: int, scratch: str | os.PathLike[str] | None
) -> StreamSource | None:
    """Read a stream to its end, keep its rows in a folder of `scratch`, and return their source; None for others."""
    stream = _stream_of(given)
    if stream is None:
        return None
    columns = chosen_columns(stream.names, wanted, "the stream")
    if isinstance(given, pa.RecordBatchReader):
        if given in _read:
            raise ConfigError(
                "this RecordBatchReader was read before, and gives its rows once: make it anew, or give the table, "
                "dataset or files that it reads"
            )
        _read.add(given)
    schema = None if stream.schema is None else narrow_schema(stream.schema, columns)
    try:
        return _kept(stream.read(columns), schema, columns, partition_bytes, Spool(scratch))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise ColumnError(f"the rows of a {type(given).__name__} cannot be read: {error}") from error


def _stream_of(given: Any) -> _Stream | None:
    if is_of(given, "polars", "LazyFrame"):
        schema = pa.table(given.collect_schema().to_frame()).schema
        return _Stream(
            schema.names,
            lambda names: _tables(given.select(names).collect_batches(chunk_size=_CHUNK, engine="streaming")),
            schema,
        )
    if is_of(given, "datasets", "IterableDataset"):
        return _Stream(stream_names(given), lambda names: stream_tables(given, names))
    if isinstance(given, pds.Dataset):
        return _Stream(
            given.schema.names,
            lambda names: _tables(given.scanner(columns=names, **_SCANNER).to_reader()),
            given.schema,
        )
    # DuckDB's `__arrow_c_stream__` computes all rows first.
    reader = given.to_arrow_reader() if is_of(given, "duckdb", "DuckDBPyRelation") else None
    if reader is None and not hasattr(given, "__arrow_c_stream__"):
        return None
    reader = reader or pa.RecordBatchReader.from_stream(given)
    return _Stream(reader.schema.names, lambda names: (one.select(names) for one in _tables(reader)), reader.schema)


def _tables(batches: Iterable[Any]) -> Iterator[pa.Table]:
    return map(pa.table, batches)


def _batches(tables: Iterable[pa.Table], schema: pa.Schema | None, most_bytes: int) -> Iterator[pa.Table]:
    """Give rows as tables of about so many bytes, of delivered types; at least one, if the types are known."""
    held: list[pa.Table] = [] if schema is None else [schema.empty_table()]
    nbytes = 0
    for part in _slices(map(narrow_table, tables), most_bytes):
        if nbytes and nbytes + part.nbytes > most_bytes:
            yield _joined(held)
            held, nbytes = [], 0
        held.append(part)
        nbytes += part.nbytes
    if held:
        yield _joined(held)


def _slices(tables: Iterable[pa.Table], most_bytes: int) -> Iterator[pa.Table]:
    for table in tables:
        most = max(1, min(MOST_ROWS, len(table) * most_bytes // max(table.nbytes, 1)))
        yield from (table.slice(start, most) for start in range(0, len(table), most))


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    # Where no types were declared, a batch may hold no value of a column yet, or whole numbers alone.
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks()


def _numbered(batches: Iterable[pa.Table], partition_bytes: int) -> Iterator[tuple[int, pa.Table]]:
    """Tell which file each batch goes to: those of a file have one schema, and fit a partition."""
    number = rows = nbytes = 0
    schema = None
    for batch in batches:
        rows, nbytes = rows + batch.num_rows, nbytes + batch.nbytes
        if batch.schema != schema or nbytes > partition_bytes or rows > MOST_ROWS:
            number, rows, nbytes, schema = number + 1, batch.num_rows, batch.nbytes, batch.schema
        yield number, batch


def _kept(
    tables: Iterable[pa.Table], schema: pa.Schema | None, columns: list[str], partition_bytes: int, spool: Spool
) -> StreamSource:
    """Write rows to files, one for each partition."""
    folder, kept = Folder.open(spool.path), []
    batches = _batches(tables, schema, min(_BATCH_BYTES, partition_bytes))
    for number, group in groupby(_numbered(batches, partition_bytes), key=itemgetter(0)):
        rows = nbytes = count = 0
        with ExitStack() as stack:
            append = stack.enter_context(folder.writer(f"part-{number:06d}.arrow", durable=False))
            for _, batch in group:
                if not count:
                    file = stack.enter_context(pa.ipc.new_stream(Appended(append), batch.schema))
                file.write_table(batch)
                rows, nbytes, count = rows + len(batch), nbytes + batch.nbytes, count + len(batch.to_batches())
        kept.append((batch.schema, rows, nbytes, count))
    if not kept:
        raise ColumnError("the stream gives no rows, and so no columns")
    files = find_files([spool.path], None, is_known)
    schemas = Schemas(files, [schema for schema, *_ in kept])
    pieces = [
        SpooledPiece(file, rows, nbytes, 0, count, schemas.casts(schema), spool)
        for file, (schema, rows, nbytes, count) in zip(files, kept, strict=True)
    ]
    return StreamSource("feather", files, schemas, pieces, settings={}, columns=columns)
