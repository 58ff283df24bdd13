"""Tars of WebDataset: consecutive members of one key are a row, and their suffixes are its columns."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, ClassVar

import pyarrow as pa

from daskprep.columns.display import format_count
from daskprep.errors import ColumnError, ConfigError, warn
from daskprep.sources.base import FileFragment, Fragment, group_fragments, join_file_fragments
from daskprep.sources.columnar import CommonSchema
from daskprep.sources.locations import File, explain_read_errors, for_each_file

KEY = "__key__"
_END = 1 << 62  # beyond the end of any file
_TEXT_SUFFIXES = ("txt", "text", "cls", "json", "id")


@dataclass(frozen=True)
class TarFragment(FileFragment):
    """The rows whose members are in a range of bytes of a tar."""

    first: int
    last: int
    kind: ClassVar[str] = "a tar"

    def read_stored(self, columns: list[str]) -> pa.Table:
        """Return columns, with null where a row has no such member; ConfigError if the tar has other rows."""
        cells: dict[str, list[object]] = {name: [] for name in columns}
        rows = 0
        with self.file.open() as handle:
            for key, members in _read_rows(handle, self.first, self.last):
                row: dict[str, object] = {KEY: key}
                for suffix, member in members:
                    if suffix in cells:
                        handle.seek(member.offset_data)
                        row[suffix] = cell = handle.read(member.size)
                        if len(cell) < member.size:
                            raise ColumnError(f"{self.file.name}: {member.name} is cut short; write the tar again")
                for name, values in cells.items():
                    values.append(row.get(name))
                rows += 1
        if rows != self.rows:
            raise ConfigError(f"{self.file.name}: changed since it was listed; create the source again")
        arrays = {name: self._as_array(name, values) for name, values in cells.items()}
        return pa.table(arrays) if columns else pa.table({KEY: pa.nulls(rows)}).select([])

    def _as_array(self, name: str, values: list[object]) -> pa.Array:
        try:
            texts = [value.decode() if isinstance(value, bytes) and _is_text(name) else value for value in values]
        except UnicodeDecodeError as error:
            raise ColumnError(f'{self.file.name}: a member ".{name}" is not text in UTF-8: {error}') from error
        return pa.array(texts, _type_of(name))


def _is_text(suffix: str) -> bool:
    return suffix.rpartition(".")[2] in _TEXT_SUFFIXES


def _type_of(column: str) -> pa.DataType:
    return pa.string() if column == KEY or _is_text(column) else pa.binary()


def _read_rows(
    handle: Any, first: int, last: int, skipped: list[str] | None = None
) -> Iterator[tuple[str, list[tuple[str, tarfile.TarInfo]]]]:
    """Yield the key of each row with its members, by suffix; their bytes are not read.

    Links and files without a suffix are in no row, and added to `skipped`; so are hidden files, but not added.
    """

    def members() -> Iterator[tuple[str, str, tarfile.TarInfo]]:
        handle.seek(first)
        with tarfile.open(fileobj=handle, mode="r:") as archive:
            while (member := archive.next()) is not None and member.offset < last:
                archive.members.clear()  # type: ignore[attr-defined]  # TarFile would keep all of them
                folder, slash, name = member.name.rpartition("/")
                stem, dot, suffix = name.partition(".")
                if member.isfile() and dot and stem:
                    yield f"{folder}{slash}{stem}", suffix.lower(), member
                elif stem and not member.isdir() and skipped is not None:
                    skipped.append(member.name)
            if member is None:  # also at a damaged header
                handle.seek(archive.offset)
                if handle.read(tarfile.BLOCKSIZE).strip(b"\0"):
                    raise tarfile.ReadError(f"damaged at byte {archive.offset}")

    for key, group in groupby(members(), lambda one: one[0]):
        members_of_row = [(suffix, member) for _, suffix, member in group]
        if len({KEY, *(suffix for suffix, _ in members_of_row)}) <= len(members_of_row):
            raise tarfile.ReadError(f'two members of "{key}" have one suffix, or one is named "{KEY}"; rename it')
        yield key, members_of_row


def _survey(file: File) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the columns of a tar, and for each row the position of its first header and the bytes of its members."""
    columns: dict[str, None] = {KEY: None}
    rows, skipped = [], list[str]()
    with explain_read_errors(file, TarFragment.kind), file.open() as handle:
        for _, members in _read_rows(handle, 0, _END, skipped):
            columns |= dict.fromkeys(suffix for suffix, _ in members)
            rows.append((members[0][1].offset, sum(member.size for _, member in members)))
    if skipped:
        count = format_count(len(skipped), "file")
        warn(f'{file.name}: {count} without a suffix, or links, are in no row, such as "{skipped[0]}": rename them')
    return list(columns), rows


def plan_tars(
    files: Sequence[File], partition_bytes: int, partitions: int | None
) -> tuple[CommonSchema, list[Fragment]]:
    """Return the common schema of tars, and fragments of about `partition_bytes`; a column may lack in some tars."""
    surveys = for_each_file(_survey, files)
    names = dict.fromkeys(chain.from_iterable(columns for columns, _ in surveys))
    schema = pa.schema([(name, _type_of(name)) for name in names])
    fragments = []
    for file, (_, rows) in zip(files, surveys, strict=True):
        ends = [*(start for start, _ in rows), _END]
        fragments += [
            TarFragment(file, 1, nbytes, start, end) for (start, nbytes), end in zip(rows, ends[1:], strict=True)
        ] or [TarFragment(file, 0, 0, 0, 0)]

    def join(members: list[TarFragment]) -> Fragment:
        return join_file_fragments(members, lambda joined: {"last": joined[-1].last})

    return CommonSchema(files, [schema] * len(files)), group_fragments(
        fragments, partition_bytes, join=join, partitions=partitions
    )
