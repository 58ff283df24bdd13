"""Parquet: footers are read once, fragments are row groups, and only the requested columns are decoded."""

from __future__ import annotations

import functools
import io
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from daskprep.errors import ConfigError
from daskprep.sources.arrow_types import TEXT_CODES, narrow_type
from daskprep.sources.base import FileFragment, Fragment, group_fragments, join_file_fragments
from daskprep.sources.columnar import CommonSchema, check_types, decoded_nbytes, validate_and_cast
from daskprep.sources.locations import File, explain_read_errors, for_each_file

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
    """The size of a column in a row group: number of values, uncompressed bytes stored, and bytes in memory.

    With `has_codes`, a text column is dictionary-encoded, and `memory` is the size of its codes.
    """

    name: str
    values: int
    stored: int
    memory: int
    has_codes: bool


@dataclass(frozen=True)
class _Footer:
    """The schema of a file, the number of rows of each row group, and the column sizes of the largest row group."""

    schema: pa.Schema
    rows: tuple[int, ...]
    sizes: tuple[_ColumnSize, ...]


@dataclass(frozen=True)
class ParquetFragment(FileFragment):
    """Consecutive rows of one file.

    Attributes
    ----------
    row_groups : tuple of pairs
        Number of each row group to read, and its number of rows.
    skipped : int
        Number of rows to skip in the first row group.
    dictionary_columns : tuple of str
        Text columns to read as dictionary codes.
    casts : tuple of pairs
        Columns to cast to the common type of all files, with that type.
    """

    row_groups: tuple[tuple[int, int], ...]
    skipped: int
    dictionary_columns: tuple[str, ...]
    casts: tuple[tuple[str, pa.DataType], ...]
    kind: ClassVar[str] = "Parquet"

    def read_stored(self, columns: list[str]) -> pa.Table:
        """Return validated columns in common types; ConfigError if the row groups changed since the file was listed."""
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
    """Return the common schema of all files, and fragments of about `partition_bytes` of the requested columns.

    Text columns with repeated values are read as dictionary codes, which is faster. Their size is the size of the
    decoded texts, because tasks decode them to tokenize them.
    """
    footers = for_each_file(_read_footer, files)
    dictionary_columns = _choose_dictionary_columns(footers)
    common_schema = CommonSchema(files, [_delivered_schema(footer.schema, dictionary_columns) for footer in footers])
    widths = _row_bytes(files, footers, columns, dictionary_columns)
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
    return common_schema, group_fragments(fragments, partition_bytes, _join, partitions=partitions)


def _split_row_group(
    rows: int, delivered_width: float, decoded_width: float, partition_bytes: int
) -> list[tuple[int, int, int]]:
    """Return (start, stop, bytes) of the slices of a row group, more than one if only its decoded texts are too large.

    `delivered_width` and `decoded_width` are bytes of a row as delivered and with decoded texts. Each slice reads the
    codes of the complete row group.
    """
    slice_count, room = 1, partition_bytes - rows * delivered_width
    if rows * decoded_width > partition_bytes and room >= partition_bytes / 2:
        slice_count = min(rows, math.ceil(rows * (decoded_width - delivered_width) / room))
    nbytes = int(rows * (delivered_width + (decoded_width - delivered_width) / slice_count))
    return [(rows * i // slice_count, rows * (i + 1) // slice_count, nbytes) for i in range(slice_count)]


def _join(fragments: list[ParquetFragment]) -> Fragment:
    """Return one fragment per file for consecutive fragments, joined if there are several files."""
    return join_file_fragments(
        fragments,
        lambda file_fragments: {
            "row_groups": tuple(dict.fromkeys(group for member in file_fragments for group in member.row_groups))
        },
    )


@contextmanager
def _open_parquet(
    file: File, dictionary_columns: Sequence[str] = (), metadata: Any = None, buffer_bytes: int = 0
) -> Generator[pq.ParquetFile, None, None]:
    """Open a file; `dictionary_columns` are read as codes, and all bytes through a buffer if `buffer_bytes` > 0."""
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
    """Return the schema without pandas' index columns, the rows of row groups, and column sizes of a file."""
    with explain_read_errors(file, "Parquet"), _open_parquet(file) as parquet:
        metadata = parquet.metadata
        rows = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
        schema = pa.schema([field for field in parquet.schema_arrow if not _PANDAS_INDEX.fullmatch(field.name)])
        check_types(schema)
        return _Footer(schema, rows, _estimate_sizes(file, metadata, rows))


def _estimate_sizes(file: File, metadata: pq.FileMetaData, rows: Sequence[int]) -> tuple[_ColumnSize, ...]:
    """Return the column sizes of the largest row group alone, since reading thousands of them would take long."""
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
    """Raise an Arrow error if the footer describes a column that is invalid or encrypted.

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
    """Return the text columns in all files that are faster to read as dictionary codes."""
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


def _row_bytes(
    files: Sequence[File],
    footers: Sequence[_Footer],
    columns: Collection[str] | None,
    dictionary_columns: Collection[str],
) -> tuple[float, float]:
    """Return the estimated bytes of a row in memory, as delivered and with decoded texts, for `columns` or all."""
    rows, number = max((max(footer.rows, default=0), -i) for i, footer in enumerate(footers))
    footer, file = footers[-number], files[-number]
    if not rows:
        return 0.0, 0.0
    stored: dict[str, float] = {}
    codes = []
    for size in footer.sizes:
        name = size.name if size.name in footer.schema.names else size.name.partition(".")[0]
        if columns is None or name in columns:
            stored[name] = stored.get(name, 0.0) + size.memory / rows
            codes += [size.name] * size.has_codes
    try:
        texts = _sample_decoded_widths(file, footer.rows.index(rows), codes) if codes else {}
    except KeyError as error:  # an unknown name in a damaged footer
        raise ConfigError(f"{file.name}: cannot be read as Parquet: its schema has no column {error}") from error
    decoded_widths = {name: max(width, texts.get(name, 0.0)) for name, width in stored.items()}
    return sum(stored[name] if name in dictionary_columns else decoded_widths[name] for name in decoded_widths), sum(
        decoded_widths.values()
    )


def _sample_decoded_widths(file: File, row_group: int, paths: list[str]) -> dict[str, float]:
    """Return the decoded bytes of a row for each of `paths`, from a sample; footers have only the size of codes."""
    with (
        explain_read_errors(file, "Parquet"),
        _open_parquet(file, paths, _read_metadata(file), _BUFFER_BYTES) as parquet,
    ):
        first = next(parquet.iter_batches(_FIRST_ROWS, [row_group], paths, use_threads=False), ())
        return {name: decoded_nbytes(first[name]) / len(first) for name in first.schema.names} if first else {}


def _changed_file_error(file: File) -> ConfigError:
    return ConfigError(f"{file.name}: its row groups changed since it was listed; create the source again")
