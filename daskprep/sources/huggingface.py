"""Hugging Face datasets as sources, read a slice of rows at a time as they are stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from daskprep.errors import ColumnError
from daskprep.sources.arrow_types import narrow_schema, narrow_table
from daskprep.sources.base import Piece, PieceSource, rows_alone
from daskprep.sources.file_source import PARTITION_BYTES
from daskprep.sources.frames import frame_of_columns, is_of, rows_of_slices, slices, table_from_pandas

# Of a stream: rows that are fetched at a time.
_BATCH_ROWS = 256
_REMEDIES = {
    "DatasetDict": 'give one of its splits, such as dataset["train"]',
    "IterableDatasetDict": 'give one of its splits, such as dataset["train"]',
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
        return narrow_table(table.combine_chunks()).select(list(columns))


class HuggingFaceSource(PieceSource):
    """A `datasets.Dataset`; only the slice of rows that is read is in memory, nothing is decoded.

    Images and sounds arrive as structs of bytes and path, classes as whole numbers. A dataset whose rows or order of
    rows is in memory, and not in files, is read in this process.
    """

    def __init__(
        self, dataset: Any, columns: Iterable[str] | None = None, partition_bytes: int = PARTITION_BYTES
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
        self._slice_rows = rows_of_slices(stored.schema, self._row_bytes, partition_bytes)
        self.row_counts: list[int] = slices(rows, self._slice_rows)
        self.npartitions = len(self.row_counts)
        self._pieces = [
            DatasetPiece(self._dataset, i * self._slice_rows, count, int(count * self._row_bytes))
            for i, count in enumerate(self.row_counts)
        ]

    @property
    def schema(self) -> pa.Schema:
        return narrow_schema(self._dataset.data.schema)

    def __repr__(self) -> str:
        return f"<HuggingFaceSource: {sum(self.row_counts):,} rows, {len(self.columns)} columns>"


def is_dataset(frame: object) -> bool:
    """Tell whether something is a Hugging Face dataset, without importing the library.

    Raises
    ------
    ColumnError
        For several datasets in one.
    """
    for name, remedy in _REMEDIES.items():
        if is_of(frame, "datasets", name):
            raise ColumnError(f"a datasets.{name} is no table of rows: {remedy}")
    return is_of(frame, "datasets", "Dataset")


def stream_names(dataset: Any) -> list[str]:
    """Return the columns of an `IterableDataset`; those of its first row, where only rows tell."""
    return list(dataset.column_names or next(iter(dataset), ()))


def stream_tables(dataset: Any, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Give the rows of an `IterableDataset` as they are stored; where no types are known, as the cells of frames are."""
    if dataset.features is not None:
        yield from dataset.select_columns(list(columns)).with_format("arrow").iter(_BATCH_ROWS)
        return
    for batch in dataset.iter(_BATCH_ROWS):
        rows = len(next(iter(batch.values())))
        cells = {name: batch.get(name, [None] * rows) for name in columns}
        yield table_from_pandas(frame_of_columns(cells), columns)


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
