"""Parsed rows between the passes of a write: an Arrow file per partition, read as a source."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from daskprep.features.base import Contract
from daskprep.features.partition_context import ParsePartition, PartitionReader
from daskprep.features.table import Parsed, UnreadableCells
from daskprep.sources.base import Fragment, FragmentListSource, table_without_columns
from daskprep.storage.checkpoint import TRAILER_BYTES, write_with_checksum
from daskprep.storage.files import CallbackWriter, Folder

# Prefixes of the columns of a scratch file: the parsed cells of a feature, the texts of its unreadable cells, or an
# unparsed column of the source.
_PARSED, _UNREADABLE, _SOURCE = "parsed:", "unreadable:", "source:"
_CELL_TYPES = b"cell_types"  # metadata of the schema


def scratch_columns(names: Iterable[str], columns: Iterable[str]) -> list[str]:
    """Return the names in scratch files of the parsed cells of features, `names`, and of `columns` of the source."""
    return [*(_PARSED + name for name in names), *(_SOURCE + column for column in columns)]


class ScratchSource(FragmentListSource):
    """A source of the rows that an earlier pass parsed; `rows` are the numbers of rows of its partitions."""

    def __init__(self, folder: Folder, rows: Sequence[int], names: Sequence[str], columns: Sequence[str]) -> None:
        fragments = [ScratchFragment(count, 0, folder, scratch_name("parsed", i)) for i, count in enumerate(rows)]
        super().__init__(scratch_columns(names, columns), fragments)


@dataclass(frozen=True)
class ScratchFragment(Fragment):
    """The parsed rows of one partition."""

    rows: int
    nbytes: int
    folder: Folder
    name: str

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Return columns of the file; with parsed columns also the texts of their unreadable cells, if any."""
        data = self.folder.read_buffer(self.name)
        content = pa.BufferReader(data.slice(0, data.size - TRAILER_BYTES))
        schema = pa.ipc.open_file(content).schema
        texts = [_UNREADABLE + column.removeprefix(_PARSED) for column in columns if column.startswith(_PARSED)]
        present = [*columns, *(text for text in texts if text in schema.names)]
        options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name) for name in present])
        table = pa.ipc.open_file(content, options=options).read_all()
        return table if present else table_without_columns(self.rows)


def scratch_name(kind: Literal["parsed", "placed", "rejects", "gaps", "encoded"], partition: int) -> str:
    """Return the name of a scratch file of a partition."""
    return f"{kind}-{partition:06d}.scratch"


def save_parsed(folder: Folder, partition: int, parsed: Parsed, source: pa.Table) -> None:
    """Write the parsed columns of a partition, their unreadable cells, and columns of the source."""
    columns: dict[str, Any] = {_PARSED + name: column for name, column in parsed.columns.items()}
    for name, cells in parsed.unreadable.items():
        positions = np.full(parsed.rows, -1, np.int64)
        positions[cells.rows] = np.arange(len(cells.rows))
        columns[_UNREADABLE + name] = cells.texts.take(pa.array(positions, mask=positions < 0))
    columns |= {_SOURCE + name: source[name].combine_chunks() for name in source.column_names}
    cell_types_json = json.dumps(parsed.cell_types)
    table = (
        pa.table(columns, metadata={_CELL_TYPES: cell_types_json}) if columns else pa.table({"": pa.nulls(parsed.rows)})
    )
    save_table(folder, scratch_name("parsed", partition), table, pa.ipc.new_file)


def read_scanned(features: Mapping[str, Contract], number: int, table: pa.Table) -> tuple[Parsed, pa.Table]:
    """Return parsed columns, and columns of the source, from the table of a `ScratchFragment`."""
    columns, unreadable = {}, {}
    for name in table.column_names:
        column = table[name].chunk(0) if table[name].num_chunks == 1 else table[name].combine_chunks()
        if name.startswith(_PARSED):
            columns[name.removeprefix(_PARSED)] = column
        elif name.startswith(_UNREADABLE):
            texts = column.drop_null()
            unreadable[name.removeprefix(_UNREADABLE)] = UnreadableCells(np.flatnonzero(column.is_valid()), texts)
    names = [name for name in table.column_names if name.startswith(_SOURCE)]
    source = table.select(names)
    if names:
        source = source.rename_columns([name.removeprefix(_SOURCE) for name in names])
    cell_types = json.loads((table.schema.metadata or {}).get(_CELL_TYPES, "{}"))
    return Parsed(table.num_rows, columns, unreadable, cell_types), source


@dataclass(frozen=True)
class ScannedRows(PartitionReader):
    """A reader of the partitions that an earlier pass parsed."""

    parse: ParsePartition = read_scanned

    def columns_to_read(self, features: Mapping[str, Contract], columns: Iterable[str]) -> list[str]:
        return scratch_columns(features, columns)


def save_table(folder: Folder, name: str, table: pa.Table, open_writer: Any = pa.ipc.new_stream) -> None:
    """Write a table with its checksum as an Arrow stream, or in the format of `open_writer`."""
    with write_with_checksum(folder, name) as write, open_writer(CallbackWriter(write), table.schema) as file:
        file.write_table(table)


def read_saved_table(folder: Folder, name: str) -> pa.Table:
    """Return a table that `save_table` wrote as a stream."""
    return pa.ipc.open_stream(pa.BufferReader(folder.read_buffer(name))).read_all()
