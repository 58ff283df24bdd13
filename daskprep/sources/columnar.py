"""Files of typed columns: one type for each column over all files, validation, casts and sizes in memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from daskprep.errors import ColumnError
from daskprep.sources.arrow_types import common_type, narrow_table, narrow_type
from daskprep.sources.base import check_names
from daskprep.sources.locations import File

_OFFSET_BYTES = 4


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
