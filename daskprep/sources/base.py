"""The base class of sources, and the fragments of files that workers receive."""

from __future__ import annotations

import functools
import hashlib
import inspect
import pickle
import pickletools
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, ClassVar, TypeVar

import cloudpickle
import numpy as np
import pyarrow as pa

from daskprep.columns.display import join_names
from daskprep.columns.kernels import unwrap_mixed_table
from daskprep.errors import ColumnError, MissingColumnError, did_you_mean, is_valid_utf8
from daskprep.sources.arrow_types import narrow_table
from daskprep.sources.locations import File, explain_read_errors

# Rows of a few narrow columns are small, but parsing adds memory to each.
MAX_FRAGMENT_ROWS = 1 << 20
_MAX_LISTED_COLUMNS = 20

ReadFunction = Callable[[Sequence[str]], pa.Table]
P = TypeVar("P", bound="Fragment")
F = TypeVar("F", bound="FileFragment")


class Fragment(ABC):
    """A partition of a source, or a part of one: small and picklable."""

    rows: int | None  # number of rows; None if unknown before reading
    nbytes: int  # estimated bytes of the rows in memory

    @abstractmethod
    def read(self, columns: Sequence[str]) -> pa.Table:
        """Return the rows with these columns, in this order."""


@dataclass(frozen=True)
class FileFragment(Fragment):
    """A range of rows of one file."""

    file: File
    rows: int | None
    nbytes: int

    kind: ClassVar[str]

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Return columns, also of folder names; ConfigError if the file changed or is unreadable."""
        self.file.check_unchanged()
        folders = dict(self.file.folders)
        with explain_read_errors(self.file, self.kind):
            table = self.read_stored([name for name in columns if name not in folders])
        for name in columns:
            if name in folders:
                table = table.append_column(name, repeat_text(folders[name], table.num_rows))
        return table.select(list(columns))

    @abstractmethod
    def read_stored(self, columns: list[str]) -> pa.Table:
        """Return columns in delivered types, or the row count alone."""


@dataclass(frozen=True)
class JoinedFragment(Fragment):
    """Several small fragments that are read as one partition."""

    fragments: tuple[Fragment, ...]
    rows: int | None
    nbytes: int

    @classmethod
    def from_fragments(cls, fragments: Sequence[Fragment]) -> JoinedFragment:
        """Join fragments; rows are None if one's are unknown."""
        rows = [fragment.rows for fragment in fragments]
        total = None if None in rows else sum(count or 0 for count in rows)
        return cls(tuple(fragments), total, sum(fragment.nbytes for fragment in fragments))

    def read(self, columns: Sequence[str]) -> pa.Table:
        tables = [fragment.read(columns) for fragment in self.fragments]
        # concat_tables drops the row count of tables without columns.
        return pa.concat_tables(tables) if columns else table_without_columns(sum(table.num_rows for table in tables))


@dataclass(frozen=True)
class FunctionFragment(Fragment):
    """A fragment whose rows ``read_function(columns)`` returns."""

    read_function: ReadFunction
    rows: int | None
    nbytes: int

    def read(self, columns: Sequence[str]) -> pa.Table:
        if self.rows is not None and not columns:
            return table_without_columns(self.rows)
        return self.read_function(columns)


class Source:
    """An ordered list of partitions, each read as an Arrow table of the requested columns.

    To read rows from elsewhere, subclass it: set `columns` and `row_counts`, and define `read_rows`. The source is
    accepted wherever a frame is. Workers receive copies of it, so it has to be small and picklable.

    Attributes
    ----------
    columns : list of str
        Names of the columns.
    row_counts : list of int or None
        Number of rows of each partition, for at least one partition. None if unknown before reading: then set
        `npartitions`. Streams need the numbers.
    npartitions : int
        Number of partitions.
    record : mapping or None
        JSON values that identify the rows, without secrets, such as path, size and modification time of a file. A
        dataset with the same record is not written again. None: the rows cannot be identified.
    in_memory : bool
        Whether the rows are in memory of this process: partitions are then read here and never enter a graph.
    reads_all : bool
        Whether reading one column takes about as long as reading all columns.
    prepared_by : str or None
        Name of the function passed to `prepared`; None for rows that no function prepared.
    is_dask : bool
        Whether the rows are a Dask frame.
    frame : DataFrame
        The pandas or Dask frame; only for sources of frames.
    schema : pyarrow.Schema
        The type in which each column arrives, by default the type in the first partition.
    files, format
        The files of the rows, and their format; empty for other sources.
    splits : mapping
        The source of each split, if the rows were passed by split; otherwise empty.
    """

    columns: list[str]
    row_counts: list[int] | None
    in_memory: bool = False
    reads_all: bool = False
    is_dask: bool = False
    prepared_by: str | None = None
    frame: Any
    files: Sequence[File] = ()
    format: str = ""
    record: Mapping[str, Any] | None = None
    splits: Mapping[str, Source] = {}
    _problems: Mapping[str, str] = {}  # error messages of unreadable columns

    def read(self, partition: int, columns: Sequence[str]) -> pa.Table:
        """Return one partition with these columns, in this order."""
        return unwrap_mixed_table(self._read(partition, columns))

    def read_rows(self, partition: int, columns: list[str]) -> Any:
        """Return a partition as an Arrow table, or as an argument of `pyarrow.table`, such as a dict of lists.

        Subclasses define it. It may be called in several threads, and on workers. The table may have more columns.
        """
        raise NotImplementedError(f"{type(self).__name__} has to define read_rows(partition, columns)")

    def _read(self, partition: int, columns: Sequence[str]) -> pa.Table:
        """Return rows with mixed columns as `MIXED` structs; ColumnError for another table."""
        self.require(columns)
        where = f"{type(self).__name__}.read_rows({partition}, ...)"
        result = self.read_rows(partition, list(columns) or self.columns[:1])
        try:
            table = result if isinstance(result, pa.Table) else pa.table(result)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise ColumnError(f"{where} returned no Arrow table: {error}") from error
        if missing := [name for name in columns if table.column_names.count(name) != 1]:
            raise ColumnError(
                f'{where} returned {table.column_names.count(missing[0])} columns "{missing[0]}", not one'
            )
        if self.row_counts is not None and table.num_rows != (rows := self.row_counts[partition]):
            raise ColumnError(f"{where} returned {table.num_rows:,} rows, but row_counts has {rows:,}")
        return narrow_table(table.select(list(columns)))

    @functools.cached_property
    def npartitions(self) -> int:
        return len(self.row_counts or ())

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """The type of each column, by default of the first partition."""
        return self._read(0, self.columns).schema

    @property
    def fragments(self) -> Sequence[Fragment]:
        counts: Sequence[int | None] = self.row_counts or [None] * self.npartitions
        return [FunctionFragment(functools.partial(self._read, i), rows, 0) for i, rows in enumerate(counts)]

    def identity(self) -> Any:
        """Return JSON values that identify the rows, or None.

        None for rows in memory too: only this process encodes them, so a digest of their cells would have no use.
        """
        return None if self.in_memory else self.record

    @property
    def folders(self) -> tuple[str, ...]:
        """Paths and URLs of the folders that contain the files."""
        return tuple(dict.fromkeys(file.name.rpartition("/")[0] for file in self.files))

    def require(self, columns: Iterable[str]) -> None:
        """Raise ColumnError for the first column that cannot be read."""
        columns = list(columns)
        for name in columns:
            if name in self._problems:
                raise ColumnError(self._problems[name])
        require_columns(columns, self.columns)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {sum(self.row_counts or ()):,} rows, {len(self.columns)} columns>"


class FragmentListSource(Source):
    """A source of fragments; names instead of a schema leave the types open."""

    def __init__(self, columns: pa.Schema | list[str], fragments: Sequence[Fragment]) -> None:
        if isinstance(columns, pa.Schema):
            self.schema = columns
        self.columns = list(columns.names if isinstance(columns, pa.Schema) else columns)
        self._fragments = fragments
        self.npartitions = len(fragments)
        counts = [fragment.rows for fragment in fragments]
        self.row_counts = None if None in counts else counts  # type: ignore[assignment]

    @property
    def fragments(self) -> Sequence[Fragment]:
        return self._fragments

    def _read(self, partition: int, columns: Sequence[str]) -> pa.Table:
        self.require(columns)
        return self._fragments[partition].read(columns)


def require_columns(wanted: Iterable[str], present: Sequence[str]) -> None:
    """Raise MissingColumnError for a column that is not `present`."""
    known = set(present)
    for name in wanted:
        if name not in known:
            columns = join_names(list(map(str, present)), _MAX_LISTED_COLUMNS)
            remedy = " Correct the name, or add the column, with empty cells if its values are unknown."
            if "x0" in known:
                remedy = " Name columns of an array with pandas.DataFrame(array, columns=[...])."
            hint = did_you_mean(name, present) or remedy
            raise MissingColumnError(f'column "{name}" is not in the data.{hint} Its columns are: {columns}', name)


def check_names(names: Sequence[Hashable], where: str, remedy: str) -> None:
    """Raise ColumnError for a repeated or invalid name."""
    if (invalid := next((name for name in names if not is_valid_utf8(name)), None)) is not None:
        raise ColumnError(f"{where}: the column name {invalid!r:.80} has half of a surrogate pair: {remedy}")
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        positions = [i for i, name in enumerate(names) if name == twice[0]]
        raise ColumnError(
            f'{where}: {len(positions)} columns are named "{twice[0]}" (numbers {", ".join(map(str, positions))}, '
            f"counted from 0); names must be unique: {remedy}"
        )


def content_key(value: Any) -> str | None:
    """Return a digest of an object and its module's source code.

    None if its pickle is not stable: sets of text differ by process, as cloudpickle's numbers of a script's classes.
    """
    try:
        data, again = (bytes(cloudpickle.dumps(value)) for _ in range(2))
    except (pickle.PicklingError, AttributeError, TypeError, ValueError):
        return None
    has_sets = any(operation.name in ("ADDITEMS", "FROZENSET") for operation, *_ in pickletools.genops(data))
    if data != again or has_sets or b"_make_skeleton" in data:
        return None
    while isinstance(value, functools.partial):
        value = value.func
    # The pickle of a function in an imported module is its name alone, so the code of the module enters the digest.
    module = sys.modules.get(getattr(value, "__module__", None) or type(value).__module__)
    try:
        source = "" if module is None or isinstance(value, list) else inspect.getsource(module)
    except (OSError, TypeError):
        source = ""
    return hashlib.sha256(b"%d " % len(data) + data + source.encode()).hexdigest()


def table_without_columns(rows: int) -> pa.Table:
    """Return a table without columns that keeps its rows."""
    return pa.table({"": pa.nulls(rows)}).select([])


def repeat_text(value: str | None, rows: int) -> pa.Array:
    """Return a column of one text, or of missing values for None."""
    codes = pa.nulls(rows, pa.int32()) if value is None else pa.repeat(pa.scalar(0, pa.int32()), rows)
    return pa.DictionaryArray.from_arrays(codes, pa.array([] if value is None else [value], pa.string()))


def group_fragments(
    fragments: Sequence[P],
    partition_bytes: int,
    *,
    join: Callable[[list[P]], Fragment] = JoinedFragment.from_fragments,
    keep_separate: Callable[[Any], bool] | None = None,
    partitions: int | None = None,
) -> list[Fragment]:
    """Join consecutive fragments up to `partition_bytes` each, less if that leaves fewer than `partitions`.

    Fragments for which `keep_separate` returns True stay alone.
    """
    groups: list[list[P]] = []
    for cuts in ((), _even_cuts([fragment.nbytes for fragment in fragments], partitions or 1)):
        if groups and len(groups) >= (partitions or 1):
            break
        groups, room, rows = [], 0, 0
        for i, fragment in enumerate(fragments):
            is_separate = keep_separate is not None and keep_separate(fragment)
            if is_separate or fragment.nbytes > room or (fragment.rows or 0) > rows or not groups or i in cuts:
                groups.append([])
                room, rows = (0, 0) if is_separate else (partition_bytes, MAX_FRAGMENT_ROWS)
            groups[-1].append(fragment)
            room, rows = room - fragment.nbytes, rows - (fragment.rows or 0)
    return [group[0] if len(group) == 1 else join(group) for group in groups]


def _even_cuts(sizes: Sequence[int], count: int) -> list[int]:
    """Return the positions that cut `sizes` into `count` parts of similar sums, or one by one if there are fewer."""
    ends, steps = np.cumsum(sizes), np.arange(1, min(count, len(sizes)))
    cuts = np.searchsorted(ends - np.asarray(sizes) / 2, steps * (ends[-1] / (len(steps) + 1)))
    positions: list[int] = (np.maximum.accumulate(cuts - steps).clip(0, len(sizes) - 1 - len(steps)) + steps).tolist()
    return positions


def split_evenly(start: int, stop: int, partition_bytes: int) -> list[int]:
    """Return the inner positions that split a span into equal parts of at most `partition_bytes`."""
    count = max(1, -(-(stop - start) // partition_bytes))
    return [start + (stop - start) * i // count for i in range(1, count)]


def join_file_fragments(fragments: list[F], extra_fields: Callable[[list[F]], dict[str, Any]]) -> Fragment:
    """Join fragments, by file and then to one.

    ``extra_fields(members)`` returns the fields of a file's fragment besides rows and bytes.
    """
    joined: list[Fragment] = []
    for _, group in groupby(fragments, key=lambda fragment: fragment.file):
        members = list(group)
        rows, nbytes = sum(member.rows or 0 for member in members), sum(member.nbytes for member in members)
        joined.append(replace(members[0], rows=rows, nbytes=nbytes, **extra_fields(members)))
    return joined[0] if len(joined) == 1 else JoinedFragment.from_fragments(joined)
