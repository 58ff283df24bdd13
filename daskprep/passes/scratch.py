"""Parsed rows between passes: an Arrow file per partition, written by a parser and read as a source."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from daskprep.features.base import Contract
from daskprep.passes.engine import Parser, PartitionReader
from daskprep.passes.table import Parsed, UnreadableCells
from daskprep.sources.base import Fragment, FragmentListSource, table_without_columns
from daskprep.storage.checkpoint import TRAILER_BYTES, Checkpoint, write_with_checksum
from daskprep.storage.files import Folder, open_output

# Prefixes of the columns of a scratch file: the parsed cells of a feature, the texts of its unreadable cells, or an
# unparsed column of the source.
_PARSED, _UNREADABLE, _SOURCE = "parsed:", "unreadable:", "source:"
_CELL_TYPES = b"cell_types"  # metadata of the schema


@dataclass(frozen=True)
class ScratchFragment(Fragment):
    """The parsed rows of one partition."""

    rows: int
    nbytes: int
    folder: Folder
    name: str

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Return the saved ones of `columns` in the order of the file; parsed ones with their unreadable cells."""
        data = self.folder.read_buffer(self.name)
        content = pa.BufferReader(data.slice(0, data.size - TRAILER_BYTES))
        schema = pa.ipc.open_file(content).schema
        wanted = {*columns, *(_UNREADABLE + name.removeprefix(_PARSED) for name in columns if name.startswith(_PARSED))}
        fields = [index for index, name in enumerate(schema.names) if name in wanted]
        table = pa.ipc.open_file(content, options=pa.ipc.IpcReadOptions(included_fields=fields)).read_all()
        return table if fields else table_without_columns(self.rows)


def scratch_name(kind: Literal["parsed", "placed", "rejects", "gaps", "outputs"], partition: int) -> str:
    """Return the name of a scratch file of a partition."""
    return f"{kind}-{partition:06d}.scratch"


def parsing_checkpoint(folder: Folder, name: str) -> Checkpoint:
    """Return the checkpoint of a pass, valid with its parsed rows."""
    return Checkpoint(folder, name, functools.partial(scratch_name, "parsed"))


@dataclass(frozen=True)
class SpillingParser(Parser):
    """Parses `features` and saves them in `folder`, with `columns`."""

    features: Mapping[str, Contract]
    unparsed: Sequence[str]
    folder: Folder

    def columns(self, features: Mapping[str, Contract], unparsed: Sequence[str]) -> list[str]:
        return super().columns(self.features, self.unparsed)

    def parse(
        self, features: Mapping[str, Contract], unparsed: Sequence[str], number: int, table: pa.Table
    ) -> tuple[Parsed, pa.Table]:
        """Parse and save features; return them, and unparsed columns."""
        parsed, table = super().parse(self.features, self.unparsed, number, table)
        source = table.select(list(self.unparsed))
        save_parsed(self.folder, number, parsed, source)
        return parsed, source


def save_parsed(folder: Folder, partition: int, parsed: Parsed, source: pa.Table) -> None:
    """Write the parsed columns of a partition, and unparsed ones."""
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


class ScratchParser(Parser):
    """Takes columns from the table of a `ScratchFragment`."""

    def columns(self, features: Mapping[str, Contract], unparsed: Sequence[str]) -> list[str]:
        return _scratch_columns(features, unparsed)

    def parse(
        self, features: Mapping[str, Contract], unparsed: Sequence[str], number: int, table: pa.Table
    ) -> tuple[Parsed, pa.Table]:
        """Return the saved parsed columns, and the raw ones."""
        columns, unreadable, source = {}, {}, {}
        for name in table.column_names:
            column = table[name].chunk(0) if table[name].num_chunks == 1 else table[name].combine_chunks()
            if name.startswith(_PARSED):
                columns[name.removeprefix(_PARSED)] = column
            elif name.startswith(_UNREADABLE):
                rows = np.flatnonzero(column.is_valid())
                unreadable[name.removeprefix(_UNREADABLE)] = UnreadableCells(rows, column.drop_null())
            elif name.startswith(_SOURCE):
                source[name.removeprefix(_SOURCE)] = table[name]
        cell_types = json.loads((table.schema.metadata or {}).get(_CELL_TYPES, "{}"))
        parsed = Parsed(table.num_rows, columns, unreadable, cell_types)
        return parsed, pa.table(source) if source else table.select([])


def scratch_reader(
    folder: Folder, rows: Sequence[int], names: Sequence[str], columns: Sequence[str]
) -> PartitionReader:
    """Return a reader of parsed partitions."""
    fragments = [ScratchFragment(count, 0, folder, scratch_name("parsed", i)) for i, count in enumerate(rows)]
    return PartitionReader(FragmentListSource(_scratch_columns(names, columns), fragments), ScratchParser())


def _scratch_columns(names: Iterable[str], columns: Iterable[str]) -> list[str]:
    """Return the names in scratch files of features and columns."""
    return [*(_PARSED + name for name in names), *(_SOURCE + column for column in columns)]


def save_table(folder: Folder, name: str, table: pa.Table, open_writer: Any = pa.ipc.new_stream) -> None:
    """Write a table with its checksum as an Arrow stream or file."""
    with write_with_checksum(folder, name) as write, open_output(write) as out, open_writer(out, table.schema) as file:
        file.write_table(table)


def read_saved_table(folder: Folder, name: str) -> pa.Table:
    """Return a table that `save_table` wrote as a stream."""
    return pa.ipc.open_stream(pa.BufferReader(folder.read_buffer(name))).read_all()
