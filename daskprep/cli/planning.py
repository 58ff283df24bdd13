"""What a write would read, hold and write, told from a few rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from daskprep.display.words import count, size
from daskprep.errors import ColumnError
from daskprep.features import Feature
from daskprep.preprocessor import Preprocessor
from daskprep.sources import FileSource, Source
from daskprep.storage import Layout
from daskprep.writing.memory import Ceiling
from daskprep.writing.plan import choose_layout

_SAMPLE_ROWS = 10_000


@dataclass(frozen=True)
class Estimate:
    """The size of a write before it starts.

    Attributes
    ----------
    rows : int
        Rows of the source; `counted` tells whether the files say so, or a partition that was read.
    source_bytes, largest_bytes : int
        What the rows of all partitions, and of the largest, take in memory.
    layout : Layout
        How the rows would lie on disk if all were training rows, as far as a few rows tell how long they are.
    memory_bytes : int
        What all processes would hold together at most.
    """

    files: int
    format: str
    partitions: int
    rows: int
    counted: bool
    source_bytes: int
    largest_bytes: int
    layout: Layout
    memory_bytes: int
    processes: int
    threads: int

    @classmethod
    def of(cls, features: Mapping[str, Feature], source: Source) -> Estimate:
        """Read one partition of a source, and learn from its first rows."""
        assert isinstance(source, FileSource)
        sizes = [piece.nbytes for piece in source.pieces]
        number, sample = _first_rows(source)
        counts = source.row_counts
        rows = round(sample.num_rows * sum(sizes) / max(sizes[number], 1)) if counts is None else sum(counts)
        prep = Preprocessor(features).fit(_Sample(sample.slice(0, _SAMPLE_ROWS)))
        ceiling = Ceiling.of(1)
        return cls(
            len(source.files),
            source.format,
            source.npartitions,
            rows,
            counts is not None,
            sum(sizes),
            max(sizes),
            choose_layout(prep.features_, prep.learned_, {"train": rows}, None, "lz4"),
            ceiling.needed(max(sizes)),
            ceiling.processes,
            ceiling.threads,
        )

    @property
    def dataset_bytes(self) -> int:
        """What the dataset takes before it is compressed."""
        return self.rows * self.layout.row_bytes

    def lines(self, output: str | None) -> list[str]:
        """Return the plan as lines of text."""
        told = "" if self.counted else ", told from one partition"
        about = "" if self.counted else "about "
        files, blocks = count(self.files, f"{self.format} file"), self.layout.blocks("train")
        partitions = f"{count(self.partitions, 'partition')} of up to {size(self.largest_bytes)}"
        return [
            f"reads    {files}: {size(self.source_bytes)} of rows in memory, in {partitions}",
            f"rows     {about}{self.rows:,}{told}; less what is dropped, and as the balance has it",
            f"writes   {output or 'nothing, as no -o is given'}",
            f"dataset  about {size(self.dataset_bytes)} before compression: {self.layout.row_bytes:,} bytes a row, "
            f"in {count(blocks, 'block')} of {count(self.layout.block_rows, 'row')}",
            f"scratch  up to about {size(self.source_bytes + self.dataset_bytes)} more until the dataset is whole",
            f"memory   up to {size(self.memory_bytes)} for {count(self.threads, 'thread')} of "
            f"{count(self.processes, 'process', 'processes')}; --memory sets a ceiling",
            "Nothing was written.",
        ]


class _Sample(Source):
    """Some rows that were read already."""

    in_memory = True
    npartitions = 1

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.columns = table.column_names
        self.row_counts = [table.num_rows]

    def read(self, partition: int, columns: Sequence[str]) -> pa.Table:
        del partition
        return self.table.select(list(columns))


def _first_rows(source: FileSource) -> tuple[int, pa.Table]:
    """Return the first partition that has rows."""
    for number in range(source.npartitions):
        table = source.read(number, source.columns)
        if table.num_rows:
            return number, table
    raise ColumnError("the data has no rows: there is nothing to write")
