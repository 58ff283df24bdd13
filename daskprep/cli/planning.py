"""What a write would read, hold in memory and write, estimated from a few rows."""

from __future__ import annotations

import pyarrow as pa

from daskprep.assignment import sampled
from daskprep.display.words import count, size
from daskprep.errors import ColumnError
from daskprep.preprocessor import Preprocessor
from daskprep.sources import Source, TableSource
from daskprep.writing.memory import Ceiling
from daskprep.writing.plan import choose_layout

_SAMPLE_ROWS = 10_000


def plan_lines(prep: Preprocessor, source: Source, output: str | None) -> list[str]:
    """Return the plan of a write as lines of text: one partition is read, and its first rows are learned from."""
    source = sampled(source, prep.sample, prep.sample_seed)
    sizes = [piece.nbytes for piece in source.pieces]
    number, sample = _first_rows(source)
    if source.row_counts is not None:
        rows, about, told = sum(source.row_counts), "", ""
    else:
        rows = round(sample.num_rows * sum(sizes) / max(sizes[number], 1))
        about, told = "about ", ", estimated from one partition"
    prep = Preprocessor(prep._given_features).fit(TableSource([sample.slice(0, _SAMPLE_ROWS)]))
    # As if all were training rows, as far as a few tell how long they are.
    layout = choose_layout(prep.features_, prep.learned_, {"train": rows})
    ceiling, stored = Ceiling.of(1), rows * layout.row_bytes
    files, blocks = count(len(source.files), f"{source.format} file".strip()), count(layout.blocks("train"), "block")
    partitions = f"{count(source.npartitions, 'partition')} of up to {size(max(sizes))}"
    return [
        f"reads    {files}: {size(sum(sizes))} of rows in memory, in {partitions}",
        f"rows     {about}{rows:,}{told}; before rows are dropped or balanced",
        f"writes   {output or 'nothing, because -o is not given'}",
        f"dataset  about {size(stored)} before compression: {layout.row_bytes:,} bytes a row, "
        f"in {blocks} of {count(layout.block_rows, 'row')}",
        f"scratch  up to about {size(sum(sizes) + stored)} more until the dataset is complete",
        f"memory   up to {size(ceiling.needed(max(sizes)))} for {count(ceiling.threads, 'thread')} of "
        f"{count(ceiling.processes, 'process', 'processes')}; --memory sets a limit",
        "Nothing was written.",
    ]


def _first_rows(source: Source) -> tuple[int, pa.Table]:
    """Return the first partition that has rows."""
    for number in range(source.npartitions):
        table = source.read(number, source.columns)
        if table.num_rows:
            return number, table
    raise ColumnError("the data has no rows: there is nothing to write")
