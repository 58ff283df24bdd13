"""Plan of a write: rows, bytes and memory, estimated from the first rows of the data."""

from __future__ import annotations

import pyarrow as pa

from daskprep.display.words import format_bytes, format_count
from daskprep.errors import ColumnError
from daskprep.passes.assignment import take_sample
from daskprep.preprocessor import Preprocessor
from daskprep.sources import Source, TableSource
from daskprep.writing.memory import MemoryLimit
from daskprep.writing.plan import choose_layout

_SAMPLE_ROWS = 10_000


def plan_lines(prep: Preprocessor, source: Source, output: str | None) -> list[str]:
    """Return the plan of a write as lines of text, after a fit on the first rows of one partition."""
    source = take_sample(source, prep.sample, prep.sample_seed)
    sizes = [fragment.nbytes for fragment in source.fragments]
    number, sample = _read_first_rows(source)
    if source.row_counts is not None:
        rows, qualifier, note = sum(source.row_counts), "", ""
    else:
        rows = round(sample.num_rows * sum(sizes) / max(sizes[number], 1))
        qualifier, note = "about ", ", estimated from one partition"
    prep = Preprocessor(prep._feature_specs).fit(TableSource([sample.slice(0, _SAMPLE_ROWS)]))
    # All rows count as training rows; lengths that the sample underestimates make stored rows longer than planned.
    layout = choose_layout(prep.features_, prep.learned_, {"train": rows})
    limit, stored_bytes = MemoryLimit.from_size(1), rows * layout.row_bytes
    files, blocks = (
        format_count(len(source.files), f"{source.format} file".strip()),
        format_count(layout.blocks("train"), "block"),
    )
    partitions = f"{format_count(source.npartitions, 'partition')} of up to {format_bytes(max(sizes))}"
    return [
        f"reads    {files}: {format_bytes(sum(sizes))} of rows in memory, in {partitions}",
        f"rows     {qualifier}{rows:,}{note}; before rows are dropped or balanced",
        f"writes   {output or 'nothing, because -o is missing'}",
        f"dataset  about {format_bytes(stored_bytes)} before compression: {layout.row_bytes:,} bytes a row, "
        f"in {blocks} of {format_count(layout.block_rows, 'row')}",
        f"scratch  up to about {format_bytes(sum(sizes) + stored_bytes)} more until the dataset is complete",
        f"memory   up to {format_bytes(limit.required_bytes(max(sizes)))} for "
        f"{format_count(limit.threads, 'thread')} of {format_count(limit.processes, 'process', 'processes')}; "
        "--memory sets a limit",
        "Nothing was written.",
    ]


def _read_first_rows(source: Source) -> tuple[int, pa.Table]:
    """Return the number and the table of the first partition that has rows."""
    for number in range(source.npartitions):
        table = source.read(number, source.columns)
        if table.num_rows:
            return number, table
    raise ColumnError("the data has no rows: there is nothing to write")
