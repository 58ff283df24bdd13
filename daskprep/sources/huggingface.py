"""Hugging Face datasets as sources, read a slice of rows at a time as they are stored."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from daskprep.errors import ColumnError
from daskprep.sources.arrow_types import narrow_table, narrow_type
from daskprep.sources.base import Piece, PieceSource, rows_alone
from daskprep.sources.file_source import PARTITION_BYTES
from daskprep.sources.frames import slices

_SLICE_ROWS = 131_072
# Media may be stored as paths alone, of which the bytes say nothing about what decoding them takes.
_MEDIA_ROWS = 1_024
_REMEDIES = {
    "DatasetDict": 'give one of its splits, such as dataset["train"]',
    "IterableDatasetDict": "load it without streaming=True, and give one of its splits",
    "IterableDataset": "it can be read only once and from its beginning: load it without streaming=True, or write it "
    "to Parquet files and give their paths",
}


@dataclass(frozen=True, eq=False)
class DatasetPiece(Piece):
    """Some rows of a dataset, which travels as the paths of its files."""

    dataset: Any
    start: int
    rows: int
    nbytes: int

    def read(self, columns: Sequence[str]) -> pa.Table:
        if not columns:
            return rows_alone(self.rows)
        table = self.dataset.select_columns(list(columns))[self.start : self.start + self.rows]
        # Of a shuffled dataset every row is a chunk of its own.
        return narrow_table(_as_stored(table).combine_chunks()).select(list(columns))


class HuggingFaceSource(PieceSource):
    """A `datasets.Dataset`; only the slice of rows that is read is in memory, nothing is decoded.

    Images and sounds arrive as structs of bytes and path, classes as whole numbers. A dataset whose rows or order of
    rows is in memory, and not in files, is read in this process.
    """

    def __init__(
        self,
        dataset: Any,
        columns: Iterable[str] | None = None,
        partition_bytes: int = PARTITION_BYTES,
        partitions: int | None = None,
    ) -> None:
        self.columns = list(dataset.column_names)
        if columns is not None:
            wanted = list(dict.fromkeys(columns))
            self.require(wanted)
            self.columns = wanted
        rows = len(dataset)
        # A dataset that is left without columns forgets its rows.
        self._dataset = (dataset.select_columns(self.columns) if self.columns else dataset).with_format("arrow")
        self.in_memory = not _is_on_disk(self._dataset)
        stored = self._dataset.data
        self._row_bytes = stored.nbytes / max(len(stored), 1) if self.columns else 0.0
        of_media = any(pt.is_struct(t) or pt.is_binary(t) or pt.is_large_binary(t) for t in stored.schema.types)
        most = min(_MEDIA_ROWS if of_media else _SLICE_ROWS, -(-rows // (partitions or 1)))
        self._slice_rows = max(1, min(most, int(partition_bytes / max(self._row_bytes, 1))))
        self.row_counts: list[int] = slices(rows, self._slice_rows)
        self.npartitions = len(self.row_counts)
        self._pieces = [
            DatasetPiece(self._dataset, i * self._slice_rows, count, int(count * self._row_bytes))
            for i, count in enumerate(self.row_counts)
        ]

    @property
    def schema(self) -> pa.Schema:
        fields = [(field.name, narrow_type(_stored_type(field.type))) for field in self._dataset.data.schema]
        return pa.schema(fields)

    def __repr__(self) -> str:
        return f"<HuggingFaceSource: {sum(self.row_counts):,} rows, {len(self.columns)} columns>"


def is_dataset(frame: object) -> bool:
    """Tell whether something is a Hugging Face dataset, without importing the library.

    Raises
    ------
    ColumnError
        For several datasets in one, and for streams.
    """
    module = sys.modules.get("datasets")
    for name, remedy in _REMEDIES.items():
        if _is_one(frame, module, name):
            raise ColumnError(f"a datasets.{name} is no table of rows: {remedy}")
    return _is_one(frame, module, "Dataset")


def _is_one(frame: object, module: Any, name: str) -> bool:
    kind = getattr(module, name, None)
    return isinstance(kind, type) and isinstance(frame, kind)


def _is_on_disk(dataset: Any) -> bool:
    """Tell whether pickling it gives paths alone, and not its rows or their numbers."""
    # No public name tells whether a selection is in memory.
    order = getattr(dataset, "_indices", None)
    return _is_mapped(dataset.data) and (order is None or _is_mapped(order))


def _is_mapped(table: Any) -> bool:
    from datasets.table import MemoryMappedTable  # noqa: PLC0415 whoever has a dataset has imported it

    blocks = getattr(table, "blocks", None)
    if blocks is not None:
        return all(_is_mapped(block) for row in blocks for block in row)
    return isinstance(table, MemoryMappedTable)


def _as_stored(table: pa.Table) -> pa.Table:
    """Return the table with the lists and structs that extension types are stored as."""
    for i, field in enumerate(table.schema):
        stored = _stored_type(field.type)
        if stored != field.type:
            table = table.set_column(i, field.name, table.column(i).cast(stored))
    return table


def _stored_type(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _stored_type(kind.storage_type)
    if pt.is_struct(kind):
        return pa.struct([(field.name, _stored_type(field.type)) for field in kind])
    if pt.is_list(kind):
        return pa.list_(_stored_type(kind.value_type))
    if pt.is_large_list(kind):
        return pa.large_list(_stored_type(kind.value_type))
    if pt.is_fixed_size_list(kind):
        return pa.list_(_stored_type(kind.value_type), kind.list_size)
    return kind
