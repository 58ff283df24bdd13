"""Datasets of Hugging Face and Arrow, tables of Delta Lake, Lance and Iceberg, and streams, kept in scratch files.

Fragments are row groups of Parquet, or row ranges. The rows of a stream may be read only once.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.dataset as pds

from daskprep.columns.kernels import unwrap_mixed_table
from daskprep.errors import ColumnError, ConfigError
from daskprep.sources.arrow_types import add_class_names, narrow_schema, narrow_table
from daskprep.sources.base import (
    MAX_FRAGMENT_ROWS,
    Fragment,
    FragmentListSource,
    FunctionFragment,
    Source,
    content_key,
    group_fragments,
)
from daskprep.sources.columnar import CommonSchema, FeatherFragment
from daskprep.sources.file_source import FileSource, has_known_format
from daskprep.sources.frames import (
    choose_columns,
    frame_of_columns,
    is_instance_of,
    max_slice_rows,
    select_polars_columns,
    slice_lengths,
    table_from_pandas,
)
from daskprep.sources.locations import Spool, find_files
from daskprep.storage.threads import map_in_threads

_BATCH_ROWS = 256  # rows of a stream in one batch
_SAMPLE_ROWS = 1_000  # rows in the sample for the mean size of a row
# Prefetched batches and fragments; the defaults prefetch several times as much.
_SCAN_OPTIONS = {"batch_readahead": 2, "fragment_readahead": 1}
_COLLECT_OPTIONS: dict[str, Any] = {"chunk_size": 32_768, "engine": "streaming"}
_BATCH_BYTES = 8_000_000  # maximum size of a table that is written to a file
_consumed_readers: weakref.WeakSet[Any] = weakref.WeakSet()


class HuggingFaceSource(FragmentListSource):
    """A `datasets.Dataset`.

    Slices of rows are read without decoding of media. Images and audio arrive as structs of bytes and path, classes as
    integers with the class names as metadata. Rows in memory, or whose order is, are read in this process.
    """

    def __init__(self, dataset: Any, columns: list[str] | None, partition_bytes: int, partitions: int | None) -> None:
        names = choose_columns(dataset.column_names, columns, "the dataset")
        rows = len(dataset)
        # A dataset without columns loses its number of rows.
        chosen = (dataset.select_columns(names) if names else dataset).with_format("arrow")
        # datasets has no public attribute for the selected row numbers. A pickle of memory-mapped rows has only paths.
        stored_tables = [table for table in (chosen.data, getattr(chosen, "_indices", None)) if table is not None]
        self.in_memory = not all(map(_is_memory_mapped, stored_tables))
        stored = chosen.data
        row_bytes = stored.nbytes / max(len(stored), 1) if names else 0.0
        max_rows = max_slice_rows(stored.schema, row_bytes, partition_bytes)
        max_rows = max(1, min(max_rows, -(-rows // (partitions or 1))))
        fragments = [
            FunctionFragment(functools.partial(_read_rows, chosen, i * max_rows, count), count, int(count * row_bytes))
            for i, count in enumerate(slice_lengths(rows, max_rows))
        ]
        super().__init__(narrow_schema(stored.schema, names), fragments)
        # The fingerprint changes with the rows and with every transformation.
        fingerprint = getattr(dataset, "_fingerprint", None)
        self.record = {"fingerprint": fingerprint} if isinstance(fingerprint, str) else None

    def identity(self) -> Any:
        return None if self.in_memory else content_key(list(self.fragments))


def _read_rows(dataset: Any, start: int, rows: int, columns: Sequence[str]) -> pa.Table:
    """Return rows of a Hugging Face dataset in narrow types, with class names in place of ids."""
    table = dataset.select_columns(list(columns))[start : start + rows]
    # In a shuffled dataset every row is a separate Arrow chunk.
    return _add_class_names(narrow_table(table.combine_chunks()).select(list(columns)), dataset.features)


def _add_class_names(table: pa.Table, features: Any) -> pa.Table:
    """Return a table with class names as metadata, unless they are the numbers of the classes."""
    schema = table.schema
    for i, field in enumerate(schema):
        names = getattr(features.get(field.name), "names", None)
        if names and names != [*map(str, range(len(names)))]:
            schema = schema.set(i, add_class_names(field, names))
    return table.cast(schema)


def is_dataset(frame: object) -> bool:
    """Return whether an object is a `datasets.Dataset`; ColumnError for a dict of splits."""
    for name in ("DatasetDict", "IterableDatasetDict"):
        if is_instance_of(frame, "datasets", name):
            raise ColumnError(
                f'a datasets.{name} is not a table of rows: pass one of its splits, such as dataset["train"]'
            )
    return is_instance_of(frame, "datasets", "Dataset")


def _iterate_tables(dataset: Any, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield tables of an `IterableDataset`; a key that a batch lacks is missing in it."""
    if dataset.features is not None:
        for table in dataset.select_columns(list(columns)).with_format("arrow").iter(_BATCH_ROWS):
            yield _add_class_names(table, dataset.features)
        return
    for batch in dataset.iter(_BATCH_ROWS):
        rows = len(next(iter(batch.values())))
        cells = {name: batch.get(name, [None] * rows) for name in columns}
        yield unwrap_mixed_table(table_from_pandas(frame_of_columns(cells), columns))


def _is_memory_mapped(table: Any) -> bool:
    """Return whether all parts of a table are in files."""
    from datasets.table import MemoryMappedTable  # noqa: PLC0415 a dataset exists, so it is imported

    blocks = getattr(table, "blocks", None)
    if blocks is not None:
        return all(_is_memory_mapped(block) for row in blocks for block in row)
    return isinstance(table, MemoryMappedTable)


@dataclass(frozen=True)
class LakeTable:
    """A table of Delta Lake, Lance or Iceberg: its address, and the start of the paths of its files."""

    uri: str
    root: str


def open_arrow_dataset(
    dataset: pds.Dataset,
    wanted: list[str] | None,
    partition_bytes: int,
    table: LakeTable | None = None,
    names: Collection[str] | None = None,
) -> ArrowDatasetSource | None:
    """Return the source of a dataset of Parquet or Lance; None for other formats, filtered and empty ones.

    The dataset is a snapshot of `table`, if there is one. With `names`, only these files are read.
    """
    columns = choose_columns(dataset.schema.names, wanted, "the dataset")
    try:
        arrow_fragments = list(dataset.get_fragments())
    except ValueError:  # a filtered dataset
        return None
    is_lance = is_instance_of(dataset, "lance", "LanceDataset")
    if not is_lance and {type(one) for one in arrow_fragments} != {pds.ParquetFileFragment}:
        return None
    if is_lance:
        table = LakeTable(str(dataset.uri), f"{dataset.uri}#")
    files = _describe_files(dataset, arrow_fragments, table)
    if names is not None:
        chosen = [number for number, (name, *_) in enumerate(files) if name in names]
        arrow_fragments, files = [arrow_fragments[i] for i in chosen], [files[i] for i in chosen]
    sample = narrow_table(dataset.head(_SAMPLE_ROWS, columns=columns, batch_size=_SAMPLE_ROWS))
    row_bytes = max(1.0, sample.nbytes / max(len(sample), 1))
    max_rows = max(1, int(partition_bytes / row_bytes))
    split = functools.partial(_split_arrow_fragment, max_rows=max_rows)
    fragments = []
    for part, rows, start in chain.from_iterable(map_in_threads(split, arrow_fragments, local=False)):
        read = functools.partial(_read_arrow_fragment, part, dataset.schema, rows, start)
        fragments.append(FunctionFragment(read, rows, int(rows * row_bytes)))
    joined = group_fragments(fragments, partition_bytes)
    if not joined:
        return None
    record: dict[str, Any] = {"files": files, "schema": str(dataset.schema)}
    only = None
    if table is not None:
        record["table"] = table.uri
        only = functools.partial(open_arrow_dataset, dataset, wanted, partition_bytes, table)
    return ArrowDatasetSource(narrow_schema(dataset.schema, columns), joined, record, only)


def _describe_files(dataset: Any, arrow_fragments: Sequence[Any], table: LakeTable | None) -> list[list[Any]]:
    """Return name, size and stamp of each file of a dataset, or of each fragment of Lance with its deleted rows."""
    root = "" if table is None else table.root
    if not isinstance(dataset, pds.FileSystemDataset):
        return [
            [f"{root}{one.fragment_id}", one.count_rows(), f"{one.num_deletions} deleted"] for one in arrow_fragments
        ]
    paths = [one.path for one in arrow_fragments]
    # The files of a table never change.
    return [
        [f"{root}{path}", info.size, "constant" if table else info.mtime_ns and str(info.mtime_ns)]
        for path, info in zip(paths, dataset.filesystem.get_file_info(paths), strict=True)
    ]


class ArrowDatasetSource(FragmentListSource):
    """An Arrow dataset of Parquet files, or a snapshot of a table of Delta Lake or Lance.

    `only` returns the source of some files of a table, and is None for other datasets.
    """

    def __init__(
        self,
        schema: pa.Schema,
        fragments: Sequence[Fragment],
        record: Mapping[str, Any],
        only: Callable[[Collection[str]], ArrowDatasetSource | None] | None,
    ) -> None:
        super().__init__(schema, fragments)
        self.record = record if all(stamp for *_, stamp in record["files"]) else None
        self.only = only

    def identity(self) -> Any:
        """Return the record and a digest of the fragments; None if one is unknown."""
        key = content_key(list(self.fragments))
        return None if key is None or self.record is None else [self.record, key]


def _read_arrow_fragment(
    arrow_fragment: Any, schema: pa.Schema, rows: int, start: int | None, columns: Sequence[str]
) -> pa.Table:
    """Return columns of a row group (`start` None), or `rows` rows of Lance; ConfigError if unreadable or changed."""
    scan_options = {"schema": schema, "use_threads": False} if start is None else {"offset": start, "limit": rows}
    try:
        table = arrow_fragment.to_table(columns=list(columns), **scan_options)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(f"{arrow_fragment!r}: cannot be read: {error}; create the dataset again") from error
    if table.num_rows != rows:
        raise ConfigError(f"{arrow_fragment!r}: its rows changed since it was listed; create the dataset again")
    return narrow_table(table).select(list(columns))


def _split_arrow_fragment(arrow_fragment: Any, max_rows: int) -> list[tuple[Any, int, int | None]]:
    """Return (fragment, rows, first row) of each row group (first row None), or of `max_rows` rows of Lance."""
    if isinstance(arrow_fragment, pds.ParquetFileFragment):
        parts = arrow_fragment.split_by_row_group()
        return [(part, sum(group.num_rows for group in part.row_groups), None) for part in parts]
    rows = arrow_fragment.count_rows()
    return [(arrow_fragment, min(max_rows, rows - start), start) for start in range(0, rows, max_rows)]


@dataclass(frozen=True)
class SpooledFragment(FeatherFragment):
    """Rows of a stream in one file; `spool` keeps the file from being removed."""

    spool: Any
    kind: ClassVar[str] = "kept rows of a stream"


class StreamSource(FileSource):
    """The rows of a stream, kept in scratch files; `snapshot` identifies the rows of a table."""

    folders = ()
    snapshot: Mapping[str, Any] | None = None

    @property
    def record(self) -> Mapping[str, Any] | None:  # type: ignore[override]
        return self.snapshot or super().record

    def fingerprint(self) -> list[tuple[str, int | None, str]]:
        return [(file.name, file.size, "") for file in self.files]


def open_stream(
    stream: Any, wanted: list[str] | None, partition_bytes: int, scratch: str | os.PathLike[str] | None
) -> StreamSource | None:
    """Read a stream into files in `scratch`, and return their source; None for other data; or ColumnError."""
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
    """Return the schema of a stream, and a function from columns to batches; None if it is not a stream."""
    if is_instance_of(stream, "polars", "LazyFrame"):
        types = pa.table(stream.collect_schema().to_frame()).schema
        return types, lambda names: stream.select(names).collect_batches(**_COLLECT_OPTIONS)
    if is_instance_of(stream, "datasets", "IterableDataset"):
        if stream.features is None:
            schema = pa.schema([(name, pa.null()) for name in next(iter(stream), ())])
        else:
            schema = _add_class_names(stream.features.arrow_schema.empty_table(), stream.features).schema
        return schema, lambda names: _iterate_tables(stream, names)
    if isinstance(stream, pds.Dataset):
        return stream.schema, lambda names: stream.scanner(columns=names, **_SCAN_OPTIONS).to_reader()
    # DuckDB's `__arrow_c_stream__` computes all rows first.
    reader = stream.to_arrow_reader() if is_instance_of(stream, "duckdb", "DuckDBPyRelation") else None
    if reader is None and not hasattr(stream, "__arrow_c_stream__"):
        return None
    if isinstance(stream, pa.RecordBatchReader):
        # Not through its C stream, which reinterprets the bytes of batches whose types differ from the declared schema.
        return stream.schema, lambda names: (
            pa.Table.from_batches([one], stream.schema).select(names) for one in stream
        )
    reader = reader or pa.RecordBatchReader.from_stream(stream)
    return reader.schema, lambda names: (batch.select(names) for batch in reader)


def open_iceberg(
    table: Any, wanted: list[str] | None, partition_bytes: int, scratch: str | os.PathLike[str] | None
) -> Source | None:
    """Return the source of a table or scan of pyiceberg: its files, or a stream if not all of their rows are read."""
    scan = table.scan() if is_instance_of(table, "pyiceberg.table", "Table") else table
    metadata, tasks = scan.table_metadata, sorted(scan.plan_files(), key=lambda one: str(one.file.file_path))
    is_filtered = str(scan.row_filter) != "AlwaysTrue()" or scan.limit is not None
    is_plain = len(metadata.schemas) == 1 and not any(one.delete_files for one in tasks)
    if tasks and is_plain and not is_filtered and hasattr(scan.io, "fs_by_scheme"):
        locations = [scan.io.parse_location(one.file.file_path) for one in tasks]
        scheme, netloc, _ = locations[0]
        files = scan.io.fs_by_scheme(scheme, netloc)
        schema = pa.schema([field.remove_metadata() for field in scan.projection().as_arrow()])
        dataset = pds.dataset([path for *_, path in locations], schema, "parquet", files)
        return open_arrow_dataset(dataset, wanted, partition_bytes, LakeTable(metadata.location, f"{scheme}://"))
    source = open_stream(scan.to_arrow_batch_reader(), wanted, partition_bytes, scratch)
    snapshot = scan.snapshot_id or metadata.current_snapshot_id
    if source is not None:
        source.snapshot = {
            "table": metadata.location,
            "snapshot": snapshot,
            "filter": str(scan.row_filter),
            "limit": scan.limit,
        }
    return source


def _rebatch(batches: Iterable[Any], schema: pa.Schema, max_bytes: int) -> Iterator[pa.Table]:
    """Yield tables in delivered types of at most about `max_bytes`, at least one, which may be empty."""
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
    """Write tables to files, and return a source of these."""
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
    joined = group_fragments(fragments, partition_bytes)
    return StreamSource("feather", files, common_schema, joined, settings={}, columns=columns)
