"""Files of typed columns: one type for each column over all files, validation, casts and sizes in memory.

Fragments are record batches of Feather and Arrow IPC files, and stripes of ORC files.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from daskprep.errors import ColumnError, ConfigError
from daskprep.sources.arrow_types import common_type, narrow_table, narrow_type
from daskprep.sources.base import FileFragment, Fragment, check_names, group_fragments, join_file_fragments
from daskprep.sources.locations import File, explain_read_errors, for_each_file
from daskprep.storage.security import require_safe

_OFFSET_BYTES = 4
_FILE_MAGIC = b"ARROW1"
_FEATHER_1_MAGIC = b"FEA1"


class CommonSchema:
    """The columns of several files.

    Attributes
    ----------
    types : dict
        Delivered Arrow type of each column.
    problems : dict
        Error message of each unreadable column: absent from some file, or of a type that does not fit other files.
    """

    def __init__(self, files: Sequence[File], schemas: Sequence[pa.Schema]) -> None:
        """Merge the schemas of the files, in order; conflicts are recorded in `problems`, not raised."""
        self.types: dict[str, pa.DataType] = {}
        self.problems: dict[str, str] = {}
        distinct: list[pa.Schema] = []
        for file, schema in zip(files, schemas, strict=True):
            # Thousands of files usually have one schema.
            if not any(schema.equals(known_schema) for known_schema in distinct):
                distinct.append(schema)
                self._add(file, schema, files[0])
        self._require_everywhere(files, schemas)

    def _add(self, file: File, schema: pa.Schema, first: File) -> None:
        """Merge the types of a file into the common types, and record its problems."""
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

    def _require_everywhere(self, files: Sequence[File], schemas: Sequence[pa.Schema]) -> None:
        """Record a problem for each column absent from some file."""
        for file, schema in zip(files, schemas, strict=True):
            if len(schema) == len(self.types):
                continue
            for name in self.types.keys() - set(schema.names):
                other_file = next(
                    candidate
                    for candidate, candidate_schema in zip(files, schemas, strict=True)
                    if name in candidate_schema.names
                )
                self.problems.setdefault(
                    name,
                    f'column "{name}" is missing in {file.name}, but present in {other_file.name}; leave out '
                    "the column or the file",
                )

    def casts(self, schema: pa.Schema) -> tuple[tuple[str, pa.DataType], ...]:
        """Return names and common types of the columns of one file whose types differ from the common types."""
        return tuple(
            (field.name, self.types[field.name])
            for field in schema
            if field.name not in self.problems and narrow_type(field.type) != self.types[field.name]
        )


def _has_duplicate_fields(kind: pa.DataType) -> bool:
    """Return whether two fields of this type, or of a nested type, have the same name."""
    inner = [kind.field(i) for i in range(kind.num_fields)]
    return len({field.name for field in inner}) < len(inner) or any(
        _has_duplicate_fields(field.type) for field in inner
    )


def check_types(fields: Iterable[pa.Field]) -> None:
    """Raise an Arrow or Unicode error for a field, also a nested one, with a name not UTF-8 or a negative list size."""
    for field in fields:
        _ = field.name  # decodes the name, whose bytes Arrow accepts unchecked
        if pt.is_fixed_size_list(field.type) and field.type.list_size < 0:
            raise pa.ArrowInvalid(f'the lists of "{field.name}" have {field.type.list_size} items')
        check_types(field.type.field(i) for i in range(field.type.num_fields))


def validate_and_cast(
    table: pa.Table, columns: list[str], casts: Sequence[tuple[str, pa.DataType]], file: File
) -> pa.Table:
    """Return the columns of a table read from `file`, with `casts` applied, which never change values.

    ColumnError if a column is damaged or a cast fails. Unless validated, Arrow follows invalid offsets and codes to
    memory outside of its buffers.
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
    """Return the bytes of columns after decoding of dictionary codes.

    The mean size of a text is weighted by its codes, or unweighted if that is larger: the cells may be the first rows
    of a sorted column.
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
    """Batches `first` to `last` (exclusive) of one file; `casts` are the columns to cast, with their types."""

    first: int
    last: int
    casts: tuple[tuple[str, pa.DataType], ...]

    def read_stored(self, columns: list[str]) -> pa.Table:
        """Return validated columns in common types; ConfigError if the number of rows changed since listing."""
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
        """Return these columns of the fragment's batches in stored types; without columns, only the cheapest one."""
        with self.file.open() as handle:
            schema = _open_reader(self.file, handle, None).schema
            fields = [schema.names.index(name) for name in columns] or _cheapest_column(schema)
            reader = _open_reader(self.file, handle, fields)
            batches = list(_iterate_batches(reader, self.first, self.last))
            return pa.Table.from_batches(batches, reader.schema)

    @staticmethod
    def layout(file: File) -> tuple[pa.Schema, list[int]]:
        """Return the schema of a file and the rows of each batch, counted by reading only the cheapest column."""
        with explain_read_errors(file, FeatherFragment.kind), file.open() as handle:
            schema = _open_reader(file, handle, None).schema
            check_types(schema)
            reader = _open_reader(file, handle, _cheapest_column(schema))
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


def _cheapest_column(schema: pa.Schema) -> list[int]:
    """Return the index of the cheapest column, in a list: with an empty list, Arrow reads all columns."""
    fixed = [i for i, field in enumerate(schema) if pt.is_primitive(field.type)]
    return fixed[:1] or list(range(min(1, len(schema))))


@dataclass(frozen=True)
class OrcFragment(BatchFragment):
    """Stripes of one file."""

    kind: ClassVar[str] = "ORC"

    def read_batches(self, columns: list[str]) -> pa.Table:
        """Return these columns of the fragment's stripes in stored types; without columns, only the cheapest one."""
        with self.file.open() as handle:
            orc = _open_orc(handle)
            names = columns or [orc.schema[i].name for i in _cheapest_column(orc.schema)]
            stripes = [orc.read_stripe(i, names) for i in range(self.first, self.last)]
            schema = stripes[0].schema if stripes else orc.schema
            return pa.Table.from_batches(stripes, schema)

    @staticmethod
    def layout(file: File) -> tuple[pa.Schema, list[int]]:
        """Return the schema of a file and the rows of each stripe, counted by reading only the cheapest column."""
        with explain_read_errors(file, OrcFragment.kind), file.open() as handle:
            orc = _open_orc(handle)
            check_types(orc.schema)
            if orc.nstripes <= 1:  # the footer has only the total number of rows
                return orc.schema, [orc.nrows] * orc.nstripes
            names = [orc.schema[i].name for i in _cheapest_column(orc.schema)]
            return orc.schema, [orc.read_stripe(i, names).num_rows for i in range(orc.nstripes)]


def _open_orc(handle: Any) -> Any:
    from pyarrow.orc import ORCFile  # noqa: PLC0415 - not in every build of Arrow

    return ORCFile(handle)
