"""The assignment of rows to splits in scratch, and the table of rejects: row id, column and reason of dropped rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from daskprep.columns.display import format_count
from daskprep.errors import warn
from daskprep.features import Feature
from daskprep.features.base import MAX_SHOWN, Contract, kind_with_article
from daskprep.features.media import MediaFeature
from daskprep.passes.assignment import DroppedCells
from daskprep.passes.scratch import read_saved_table, save_table, scratch_name
from daskprep.passes.table import Parsed, PartitionContext
from daskprep.sources.cells import format_cell
from daskprep.sources.split import DROPPED, Splitter
from daskprep.storage.files import Folder
from daskprep.storage.tables import REJECTS_SCHEMA

_GROUP_ROWS = 131_072
_MISSING = "missing"  # reason of rows that a missing value drops


@dataclass(frozen=True)
class AssignSplits:
    """The task that saves split and repeats of every row of a partition, and its rejects, in `scratch`."""

    dropping: Mapping[str, Contract]  # the features that drop rows
    scratch: Folder  # the folder of scratch files
    split: Splitter | None  # the split, which may exclude rows

    def __call__(
        self,
        context: PartitionContext,
        parsed: Parsed,
        splits: np.ndarray,
        repeats: np.ndarray,
        dropped: Mapping[str, DroppedCells],
    ) -> int:
        """Save the assignment of a partition, and return its number of rejects."""
        rejects = 0
        if (splits == DROPPED).any():
            reject_table = list_rejects(self.dropping, dropped, parsed, context.first_row, splits, self.split)
            save_table(self.scratch, scratch_name("rejects", context.number), reject_table)
            rejects = len(reject_table)
        columns = {"split": splits} if context.repeats is None else {"split": splits, "repeats": repeats}
        save_table(self.scratch, scratch_name("placed", context.number), pa.table(columns))
        return rejects


def list_rejects(
    features: Mapping[str, Contract],
    dropped: Mapping[str, DroppedCells],
    parsed: Parsed,
    first_row: int,
    splits: np.ndarray,
    split: Splitter | None = None,
) -> pa.Table:
    """Return the rejects of a partition, sorted by row: a row for each cell that dropped its row, and excluded rows.

    `dropped` has cells and a mask by feature. `first_row` is the row number in the source of the first row. `splits`
    are the splits of the rows, and `split` is the splitter, if it may exclude rows.
    """
    reject_tables = [REJECTS_SCHEMA.empty_table()]
    for name, (column, mask) in dropped.items():
        feature, rows = features[name], np.flatnonzero(mask)
        reasons = np.full(len(rows), _MISSING, object)
        if (cells := parsed.unreadable.get(name)) is not None:
            unreadable_rows = np.flatnonzero(np.isin(rows, cells.rows))
            texts = cells.take(rows).texts.to_pylist()
            reasons[unreadable_rows] = [
                f"{format_cell(text, MAX_SHOWN)} cannot be read as {kind_with_article(feature)}" for text in texts
            ]
        dropped_values = np.flatnonzero(column.take(pa.array(rows)).is_valid())
        values = column.take(pa.array(rows[dropped_values])).to_pylist()
        reasons[dropped_values] = list(map(feature._explain_drop, values))
        reject_tables.append(pa.table([rows + first_row, [name] * len(rows), reasons], schema=REJECTS_SCHEMA))
    if split is not None and split.exclusion_reason:
        listed = pa.concat_tables(reject_tables)["row_id"].to_numpy()
        rows = np.setdiff1d(np.flatnonzero(splits == DROPPED) + first_row, listed)
        columns = [rows, [", ".join(split.assign_columns)] * len(rows), [split.exclusion_reason] * len(rows)]
        reject_tables.append(pa.table(columns, schema=REJECTS_SCHEMA))
    table = pa.concat_tables(reject_tables).combine_chunks()
    return table.take(np.argsort(table["row_id"].to_numpy(), kind="stable"))


def join_rejects(scratch: Folder, filled: Sequence[tuple[int, str, str]], partitions: Sequence[int]) -> pa.Buffer:
    """Return a Parquet file with the saved rejects of partitions, followed by media with a fill value."""
    # A medium in a repeated row is listed once.
    columns = list(zip(*sorted(set(filled)), strict=True)) or [(), (), ()]
    last = pa.table([list(column) for column in columns], schema=REJECTS_SCHEMA)
    saved = (read_saved_table(scratch, scratch_name("rejects", partition)) for partition in partitions)
    return encode_rejects(chain(saved, [last]))


def warn_about_broken_media(data: pa.Buffer, features: Mapping[str, Feature]) -> None:
    """Warn once about each column with images or audio that cannot be decoded, from the file of rejects."""
    media = {name: feature for name, feature in features.items() if isinstance(feature, MediaFeature)}
    if not media:
        return
    counts, firsts = Counter[str](), dict[str, str]()
    for batch in pq.ParquetFile(pa.BufferReader(data)).iter_batches(_GROUP_ROWS, columns=["column", "reason"]):
        broken = batch.filter(pc.not_equal(batch["reason"], _MISSING))
        for name in media:
            reasons = broken["reason"].filter(pc.equal(broken["column"], name))
            if len(reasons):
                counts[name] += len(reasons)
                firsts.setdefault(name, reasons[0].as_py())
    for name, first in firsts.items():
        count = format_count(counts[name], f"{media[name].kind} file")
        action = "rows left out" if media[name].on_error == "drop" else "replaced by a fill value"
        warn(f'column "{name}": {count} cannot be decoded: {action}, listed by rejects(). The first: {first}')


def encode_rejects(tables: Iterable[pa.Table]) -> pa.Buffer:
    """Return a Parquet file with the rejects of all tables."""
    buffered, sink = REJECTS_SCHEMA.empty_table(), pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, REJECTS_SCHEMA, compression="zstd", write_page_checksum=True, store_schema=False
    ) as file:
        for table in tables:
            buffered = pa.concat_tables([buffered, table])
            if full_rows := len(buffered) // _GROUP_ROWS * _GROUP_ROWS:
                file.write_table(buffered.slice(0, full_rows), row_group_size=_GROUP_ROWS)
                buffered = buffered.slice(full_rows)
        if len(buffered):
            file.write_table(buffered, row_group_size=_GROUP_ROWS)
    return sink.getvalue()
