"""Files of typed columns: one type for each column over all files, validation, casts and sizes in memory.

Fragments are record batches of Feather and Arrow IPC, stripes of ORC, row groups of Parquet; footers are read once.
"""

from __future__ import annotations

import functools
import io
import math
import os
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from daskprep.errors import ColumnError, ConfigError
from daskprep.sources.arrow_types import TEXT_CODES, common_type, narrow_table, narrow_type
from daskprep.sources.base import FileFragment, Fragment, check_names, group_fragments, join_file_fragments
from daskprep.sources.locations import File, explain_read_errors, for_each_file
from daskprep.storage.security import require_safe

_OFFSET_BYTES = 4
_FILE_MAGIC = b"ARROW1"


class CommonSchema:
    """The columns of several files."""

    def __init__(self, files: Sequence[File], schemas: Sequence[pa.Schema]) -> None:
        """Merge the schemas of the files, and record `problems`."""
        self.types: dict[str, pa.DataType] = {}  # delivered Arrow types
        # Error messages of unreadable columns: absent from some file, or of a type that does not fit other files.
        self.problems: dict[str, str] = {}
        distinct: list[pa.Schema] = []
        for file, schema in zip(files, schemas, strict=True):
            # Thousands of files usually have one schema.
            if not any(schema.equals(known_schema) for known_schema in distinct):
                distinct.append(schema)
                self._add(file, schema, files[0])
        for file, schema in zip(files, schemas, strict=True):
            for name in self.types.keys() - set(schema.names) if len(schema) != len(self.types) else ():
                other_file = next(one for one, types in zip(files, schemas, strict=True) if name in types.names)
                self.problems.setdefault(
                    name,
                    f'column "{name}" is missing in {file.name}, but present in {other_file.name}; leave out '
                    "the column or the file",
                )

    def _add(self, file: File, schema: pa.Schema, first: File) -> None:
        """Merge the types of a file into `types`, and record problems."""
        for name in {name for name in schema.names if len(schema.get_all_field_indices(name)) > 1}:
            try:
                check_names(schema.names, file.name, "write the file again with other names")
            except ColumnError as error:
                self.problems.setdefault(name, str(error))
        for field in schema:
            kind, known = narrow_type(field.type), self.types.get(field.name, pa.null())
            common = common_type(known, kind)
            if common is None:
                self.problems.setdefault(
                    field.name,
                    f'column "{field.name}" is of type {kind} in {file.name}, but of type {known} in '
                    f"files before it ({first.name}); write it in one type in all files",
                )
            else:
                self.types[field.name] = common
            if _has_duplicate_fields(field.type):
                problem = f'column "{field.name}" of {file.name} holds a struct with two fields of one name'
                self.problems.setdefault(field.name, f"{problem}; name each differently")

    def casts(self, schema: pa.Schema) -> tuple[tuple[str, pa.DataType], ...]:
        """Return the columns of a file to cast, with the common types."""
        return tuple(
            (field.name, self.types[field.name])
            for field in schema
            if field.name not in self.problems and narrow_type(field.type) != self.types[field.name]
        )


def _has_duplicate_fields(kind: pa.DataType) -> bool:
    """Return whether a struct, at any depth, has a name twice."""
    inner = [kind.field(i) for i in range(kind.num_fields)]
    return len({field.name for field in inner}) < len(inner) or any(
        _has_duplicate_fields(field.type) for field in inner
    )


def check_types(fields: Iterable[pa.Field]) -> None:
    """Raise an error of Arrow or UnicodeDecodeError for negative list sizes and invalid names, at any depth."""
    for field in fields:
        _ = field.name  # decodes the name, whose bytes Arrow accepts unchecked
        if pt.is_fixed_size_list(field.type) and field.type.list_size < 0:
            raise pa.ArrowInvalid(f'the lists of "{field.name}" have {field.type.list_size} items')
        check_types(field.type.field(i) for i in range(field.type.num_fields))


def validate_and_cast(
    table: pa.Table, columns: list[str], casts: Sequence[tuple[str, pa.DataType]], file: File
) -> pa.Table:
    """Return the columns of a table with `casts` applied.

    ColumnError if damaged. Unless validated, Arrow follows invalid offsets and codes to memory outside of its buffers.
    """
    table.validate()
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise ColumnError(f'{file.name}: column "{name}" is damaged: {error}; write the file again') from error
    table = narrow_table(table.select(columns))
    for name, kind in casts:
        column_index = table.schema.get_field_index(name)
        if column_index < 0 or table.schema.field(column_index).type == kind:
            continue
        try:
            table = table.set_column(column_index, name, table.column(column_index).cast(kind))
        except pa.ArrowInvalid as error:
            raise ColumnError(
                f'column "{name}" of {file.name} does not fit the type {kind} that all files need: {error}; '
                "write it in one type in all files"
            ) from error
    return table


def decoded_nbytes(array: pa.Table | pa.ChunkedArray | pa.Array) -> int:
    """Return the bytes of columns with dictionary codes decoded.

    Text sizes are weighted by codes, or unweighted if that is larger: cells may be the first of a sorted column.
    """
    if isinstance(array, pa.Table | pa.ChunkedArray):
        return sum(map(decoded_nbytes, array.columns if isinstance(array, pa.Table) else array.chunks))
    if pt.is_struct(array.type):
        return sum(map(decoded_nbytes, array.flatten()))
    if isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray) and not pt.is_map(array.type):
        return len(array) * _OFFSET_BYTES + decoded_nbytes(array.flatten())
    if not pt.is_dictionary(array.type):
        return int(array.nbytes)
    values, codes = array.dictionary, array.indices.drop_null()
    if not len(codes):
        return int(array.nbytes)
    mean = decoded_nbytes(values) / max(len(values), 1)
    if pt.is_string(values.type) or pt.is_binary(values.type):
        mean = max(mean, _OFFSET_BYTES + (pc.mean(pc.binary_length(values).take(codes)).as_py() or 0))
    return math.ceil(len(codes) * mean)


@dataclass(frozen=True)
class BatchFragment(FileFragment):
    """Batches `first` to `last` (exclusive) of one file."""

    first: int
    last: int
    casts: tuple[tuple[str, pa.DataType], ...]

    def read_stored(self, columns: list[str]) -> pa.Table:
        """Return columns of batches, cast; ConfigError if the file has other rows."""
        table = self.read_batches(columns)
        if table.num_rows != self.rows:
            raise ConfigError(f"{self.file.name}: changed since it was listed; create the source again")
        return validate_and_cast(table, columns, self.casts, self.file)

    @abstractmethod
    def read_batches(self, columns: list[str]) -> pa.Table:
        """Return these columns with their stored types, or without columns the row count."""

    @staticmethod
    @abstractmethod
    def layout(file: File) -> tuple[pa.Schema, list[int]]:
        """Return a file's schema, and the rows of each batch."""


@dataclass(frozen=True)
class FeatherFragment(BatchFragment):
    """Record batches of one file."""

    kind: ClassVar[str] = "Arrow IPC"

    def read_batches(self, columns: list[str]) -> pa.Table:
        """Return columns of the batches; if `columns` is empty, the cheapest one."""
        with self.file.open() as handle:
            schema = _open_reader(handle, None).schema
            fields = [schema.names.index(name) for name in columns] or _cheapest_column(schema)
            reader = _open_reader(handle, fields)
            batches = list(_iterate_batches(reader, self.first, self.last))
            return pa.Table.from_batches(batches, reader.schema)

    @staticmethod
    def layout(file: File) -> tuple[pa.Schema, list[int]]:
        with explain_read_errors(file, FeatherFragment.kind), file.open() as handle:
            schema = _open_reader(handle, None).schema
            check_types(schema)
            reader = _open_reader(handle, _cheapest_column(schema))
            return schema, [batch.num_rows for batch in _iterate_batches(reader, 0, None)]


def plan_batches(
    kind: type[BatchFragment],
    files: Sequence[File],
    columns: Collection[str] | None,
    partition_bytes: int,
    partitions: int | None = None,
) -> tuple[CommonSchema, list[Fragment]]:
    """Return the common schema of all files, and fragments of about `partition_bytes` of `columns` (None: all)."""
    layouts = for_each_file(kind.layout, files)
    common_schema = CommonSchema(files, [schema for schema, _ in layouts])
    readable = [name for name in common_schema.types if name not in common_schema.problems]
    names = readable if columns is None else [name for name in readable if name in columns]
    width = _batch_row_bytes(kind, files, [rows for _, rows in layouts], names)
    fragments = []
    for file, (schema, rows) in zip(files, layouts, strict=True):
        blank = kind(file, 0, 0, 0, 0, common_schema.casts(schema))
        batches = [
            replace(blank, rows=count, nbytes=int(count * width), first=i, last=i + 1) for i, count in enumerate(rows)
        ]
        fragments += batches or [blank]
    join = functools.partial(join_file_fragments, extra_fields=lambda joined: {"last": joined[-1].last})
    return common_schema, group_fragments(fragments, partition_bytes, join=join, partitions=partitions)


def _batch_row_bytes(
    kind: type[BatchFragment], files: Sequence[File], counts: Sequence[Sequence[int]], columns: list[str]
) -> float:
    """Return mean row bytes of the largest batch, 0 without rows."""
    rows, number, batch = max(
        (n, -i, -j) for i, batch_rows in enumerate(counts) for j, n in enumerate([*batch_rows, 0])
    )
    if not rows:
        return 0.0
    with explain_read_errors(files[-number], kind.kind):
        table = kind(files[-number], rows, 0, -batch, 1 - batch, ()).read_stored(columns)
    return decoded_nbytes(table) / rows


def _open_reader(handle: Any, fields: list[int] | None) -> Any:
    """Return a reader of Arrow's file or stream format, with these fields (None: all)."""
    handle.seek(0)
    magic = bytes(handle.read(len(_FILE_MAGIC)))
    handle.seek(0)
    require_safe("pyarrow")
    options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
    return (pa.ipc.open_file if magic == _FILE_MAGIC else pa.ipc.open_stream)(handle, options=options)


def _iterate_batches(reader: Any, first: int, last: int | None) -> Iterator[pa.RecordBatch]:
    """Return the batches from first to last, None: all."""
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        stop = reader.num_record_batches if last is None else last
        return (reader.get_batch(i) for i in range(first, stop))
    return islice(reader, first, last)


def _cheapest_column(schema: pa.Schema) -> list[int]:
    """Return the index of the cheapest column, as none means all."""
    fixed = [i for i, field in enumerate(schema) if pt.is_primitive(field.type)]
    return fixed[:1] or list(range(min(1, len(schema))))


@dataclass(frozen=True)
class OrcFragment(BatchFragment):
    """Stripes of one file."""

    kind: ClassVar[str] = "ORC"

    def read_batches(self, columns: list[str]) -> pa.Table:
        """Return columns of the stripes; if `columns` is empty, the cheapest one."""
        with self.file.open() as handle:
            orc = _open_orc(handle)
            names = columns or [orc.schema[i].name for i in _cheapest_column(orc.schema)]
            stripes = [orc.read_stripe(i, names) for i in range(self.first, self.last)]
            schema = stripes[0].schema if stripes else orc.schema
            return pa.Table.from_batches(stripes, schema)

    @staticmethod
    def layout(file: File) -> tuple[pa.Schema, list[int]]:
        with explain_read_errors(file, OrcFragment.kind), file.open() as handle:
            orc = _open_orc(handle)
            check_types(orc.schema)
            names = [orc.schema[i].name for i in _cheapest_column(orc.schema)]
            return orc.schema, [orc.read_stripe(i, names).num_rows for i in range(orc.nstripes)]


def _open_orc(handle: Any) -> Any:
    from pyarrow.orc import ORCFile  # noqa: PLC0415 - not in every build of Arrow

    return ORCFile(handle)


# Milliseconds to read 125,000 cells as codes and as strings, by number of distinct values (stored bytes per cell).
# 10 (0.5): 1.0, 4.9; 1,000 (1.4): 1.8, 5.2; 27,000 (4.8): 4.2, 6.5; 81,000 (9.8): 16.5, 8.2; texts: 69, 39.
# With codes of 6 to 7 bytes, a fit of a category, set or text takes 0.75 to 0.88 of the time.
_CODES_BELOW_BYTES = 8.0
# Rows in the sample for the size of decoded texts, and bytes of one read for it.
_FIRST_ROWS = 4_096
_BUFFER_BYTES = 1 << 20
_MAX_FILE_BYTES = 2**63 - 1
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}


@dataclass(frozen=True)
class _ColumnSize:
    """The size of a column in a row group: values, stored bytes, and bytes in memory.

    With `has_codes`, a text column is dictionary-encoded, and `memory` is the size of its codes.
    """

    name: str
    values: int
    stored: int
    memory: int
    has_codes: bool


@dataclass(frozen=True)
class _Footer:
    """The schema, rows of row groups, and column sizes of the largest row group."""

    schema: pa.Schema
    rows: tuple[int, ...]
    sizes: tuple[_ColumnSize, ...]


@dataclass(frozen=True)
class ParquetFragment(FileFragment):
    """Consecutive rows of one file."""

    row_groups: tuple[tuple[int, int], ...]  # numbers of row groups, each with its number of rows
    skipped: int  # rows to skip in the first row group
    dictionary_columns: tuple[str, ...]  # text columns read as codes
    casts: tuple[tuple[str, pa.DataType], ...]  # columns to cast, with the common types
    kind: ClassVar[str] = "Parquet"

    def read_stored(self, columns: list[str]) -> pa.Table:
        """Return rows of row groups; an error if the file changed."""
        metadata = _read_metadata(self.file)
        with _open_parquet(self.file, self.dictionary_columns, metadata) as parquet:
            if self.row_groups and self.row_groups[-1][0] >= parquet.num_row_groups:
                raise _changed_file_error(self.file)
            table = parquet.read_row_groups([i for i, _ in self.row_groups], columns=columns, use_threads=False)
        if table.num_rows != sum(rows for _, rows in self.row_groups):
            raise _changed_file_error(self.file)
        return validate_and_cast(table.slice(self.skipped, self.rows), columns, self.casts, self.file)


def plan_parquet(
    files: Sequence[File], columns: Collection[str] | None, partition_bytes: int, partitions: int | None = None
) -> tuple[CommonSchema, list[Fragment]]:
    """Return the common schema of all files, and their fragments.

    Text columns with repeated values are read as dictionary codes, which is faster. Their size is the size of the
    decoded texts, because tasks decode them to tokenize them.
    """
    footers = for_each_file(_read_footer, files)
    dictionary_columns = _choose_dictionary_columns(footers)
    common_schema = CommonSchema(files, [_delivered_schema(footer.schema, dictionary_columns) for footer in footers])
    widths = _parquet_row_bytes(files, footers, columns, dictionary_columns)
    fragments = []
    for file, footer in zip(files, footers, strict=True):
        casts = common_schema.casts(_delivered_schema(footer.schema, dictionary_columns))
        blank = ParquetFragment(file, 0, 0, (), 0, tuple(sorted(dictionary_columns)), casts)
        groups = [
            replace(blank, rows=stop - start, nbytes=nbytes, row_groups=((i, rows),), skipped=start)
            for i, rows in enumerate(footer.rows)
            for start, stop, nbytes in _split_row_group(rows, *widths, partition_bytes)
        ]
        fragments += groups or [blank]

    def join_row_groups(joined: list[ParquetFragment]) -> dict[str, Any]:
        return {"row_groups": tuple(dict.fromkeys(group for member in joined for group in member.row_groups))}

    join = functools.partial(join_file_fragments, extra_fields=join_row_groups)
    return common_schema, group_fragments(fragments, partition_bytes, join=join, partitions=partitions)


def _split_row_group(
    rows: int, delivered_width: float, decoded_width: float, partition_bytes: int
) -> list[tuple[int, int, int]]:
    """Return (start, stop, bytes) of the slices of a row group with too large texts."""
    slice_count, room = 1, partition_bytes - rows * delivered_width
    if rows * decoded_width > partition_bytes and room >= partition_bytes / 2:
        slice_count = min(rows, math.ceil(rows * (decoded_width - delivered_width) / room))
    nbytes = int(rows * (delivered_width + (decoded_width - delivered_width) / slice_count))
    return [(rows * i // slice_count, rows * (i + 1) // slice_count, nbytes) for i in range(slice_count)]


@contextmanager
def _open_parquet(
    file: File, dictionary_columns: Sequence[str] = (), metadata: Any = None, buffer_bytes: int = 0
) -> Generator[pq.ParquetFile, None, None]:
    """Open a file; `dictionary_columns` are read as codes."""
    # A local row group of 18 columns: 122 ms memory-mapped, 149 ms with buffers, 137 ms memory-mapped with pre_buffer.
    # By default INT96 is read in nanoseconds, in which dates before 1678 or after 2262 overflow.
    # cache_type: the reader requests exactly the spans that it needs, so a cache would never be hit.
    with (
        file.open(cache_type="none") as handle,
        pq.ParquetFile(
            handle,
            metadata=metadata,
            read_dictionary=list(dictionary_columns),
            pre_buffer=not (file.is_local or buffer_bytes),
            buffer_size=buffer_bytes,
            coerce_int96_timestamp_unit="us",
        ) as parquet,
    ):
        yield parquet


@functools.lru_cache(maxsize=32)
def _read_metadata(file: File) -> pq.FileMetaData:
    with _open_parquet(file) as parquet:
        return parquet.metadata


def _read_footer(file: File) -> _Footer:
    """Return schema and sizes of a file, without pandas' index; ConfigError if it cannot be read."""
    with explain_read_errors(file, "Parquet"), _open_parquet(file) as parquet:
        metadata = parquet.metadata
        rows = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
        schema = pa.schema([field for field in parquet.schema_arrow if not _PANDAS_INDEX.fullmatch(field.name)])
        check_types(schema)
        return _Footer(schema, rows, _estimate_sizes(file, metadata, rows))


def _estimate_sizes(file: File, metadata: pq.FileMetaData, rows: Sequence[int]) -> tuple[_ColumnSize, ...]:
    """Return the column sizes of the largest row group."""
    if not rows:
        return ()
    largest = max(range(len(rows)), key=rows.__getitem__)
    _check_columns(file, metadata, largest)
    group = metadata.row_group(largest)
    sizes = []
    for i in range(group.num_columns):
        chunk = group.column(i)
        stored, values = chunk.total_uncompressed_size, chunk.num_values
        memory = max(stored, values * _WIDTHS.get(chunk.physical_type, 8))
        has_codes = chunk.has_dictionary_page and chunk.physical_type == "BYTE_ARRAY"
        sizes.append(_ColumnSize(chunk.path_in_schema, values, stored, memory, has_codes))
    return tuple(sizes)


def _check_columns(file: File, metadata: pq.FileMetaData, row_group: int) -> None:
    """Raise an Arrow error for an invalid or encrypted column.

    In pyarrow 26.0.1, `RowGroupMetaData.column` aborts the process for these columns. The reader of rows raises
    instead, before it reads the first byte.
    """
    reader = pq.ParquetFile(pa.PythonFile(_SizeOnlyFile(file.size), "r"), metadata=metadata).reader
    for i in range(metadata.num_columns):
        with suppress(_ReadingError):
            reader.read_row_groups([row_group], column_indices=[i], use_threads=False)


class _ReadingError(Exception):
    """A read of the bytes of a file."""


class _SizeOnlyFile(io.RawIOBase):
    """A file that has a size, but raises on reads."""

    def __init__(self, size: int | None) -> None:
        super().__init__()
        self._end = _MAX_FILE_BYTES if size is None else size

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return offset

    def tell(self) -> int:
        return self._end

    def read(self, size: int = -1) -> bytes:
        raise _ReadingError


def _choose_dictionary_columns(footers: Sequence[_Footer]) -> frozenset[str]:
    """Return the text columns to read as codes: encoded so in all files, and small per value."""
    texts = [{field.name for field in footer.schema if pt.is_string(narrow_type(field.type))} for footer in footers]
    sizes = [size for footer in footers for size in footer.sizes]
    plain = {size.name for size in sizes if size.values and not size.has_codes}
    values, stored = Counter[str](), Counter[str]()
    for size in sizes:
        values[size.name] += size.values
        stored[size.name] += size.stored
    everywhere = set.intersection(*texts)
    return frozenset(name for name in everywhere - plain if stored[name] < _CODES_BELOW_BYTES * values[name])


def _delivered_schema(schema: pa.Schema, dictionary_columns: Collection[str]) -> pa.Schema:
    return pa.schema([field.with_type(TEXT_CODES) if field.name in dictionary_columns else field for field in schema])


def _parquet_row_bytes(
    files: Sequence[File],
    footers: Sequence[_Footer],
    columns: Collection[str] | None,
    dictionary_columns: frozenset[str],
) -> tuple[float, float]:
    """Return the bytes of a row of `columns` (None: all), as delivered and decoded; zeros without rows."""
    rows, number = max((max(footer.rows, default=0), -i) for i, footer in enumerate(footers))
    footer, file = footers[-number], files[-number]
    if not rows:
        return 0.0, 0.0
    stored: dict[str, float] = {}
    codes, names = [], set(footer.schema.names)
    for size in footer.sizes:
        name = size.name if size.name in names else size.name.partition(".")[0]
        if columns is None or name in columns:
            stored[name] = stored.get(name, 0.0) + size.memory / rows
            codes += [size.name] * size.has_codes
    try:
        texts = _sample_decoded_widths(file, footer.rows.index(rows), codes) if codes else {}
    except KeyError as error:  # an unknown name in a damaged footer
        raise ConfigError(f"{file.name}: cannot be read as Parquet: its schema has no column {error}") from error
    decoded_widths = {name: max(width, texts.get(name, 0.0)) for name, width in stored.items()}
    delivered_widths = decoded_widths | {name: stored[name] for name in dictionary_columns & stored.keys()}
    return sum(delivered_widths.values()), sum(decoded_widths.values())


def _sample_decoded_widths(file: File, row_group: int, paths: list[str]) -> dict[str, float]:
    """Return decoded bytes of a row by path, from a sample."""
    with (
        explain_read_errors(file, "Parquet"),
        _open_parquet(file, paths, _read_metadata(file), _BUFFER_BYTES) as parquet,
    ):
        first = next(parquet.iter_batches(_FIRST_ROWS, [row_group], paths, use_threads=False), ())
        return {name: decoded_nbytes(first[name]) / len(first) for name in first.schema.names} if first else {}


def _changed_file_error(file: File) -> ConfigError:
    return ConfigError(f"{file.name}: its row groups changed since it was listed; create the source again")
