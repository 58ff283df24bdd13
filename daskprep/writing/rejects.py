"""Rows that could not be used: their numbers, the column that left them out, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from daskprep.features import Feature
from daskprep.features.base import dropped_rows, noun_of
from daskprep.features.media import MediaFeature
from daskprep.features.table import Parsed, naming
from daskprep.sources.object_cells import shown
from daskprep.split import DROPPED, Splitter
from daskprep.storage.files import Folder
from daskprep.storage.tables import REJECTS_SCHEMA
from daskprep.writing.scratch import read_table, scratch_name

_GROUP_ROWS = 131_072
_SHOWN = 80


def rejects_of(
    features: Mapping[str, Feature],
    learned: Mapping[str, Any],
    parsed: Parsed,
    first_row: int,
    splits: np.ndarray,
    split: Splitter | None = None,
) -> pa.Table:
    """Return one row for each cell that left its row out, by row, then column; then rows that the split left out."""
    found = [REJECTS_SCHEMA.empty_table()]
    for name, feature in features.items():
        with naming(name):
            column = parsed.columns[name]
            dropped = dropped_rows(feature, learned[name].recognize(column), learned[name])
        if dropped is None:
            continue
        rows = np.flatnonzero(dropped)
        reasons = np.full(len(rows), "missing", object)
        if (cells := parsed.unreadable.get(name)) is not None:
            where = np.flatnonzero(np.isin(rows, cells.rows))
            texts = cells.among(rows).texts.to_pylist()
            reasons[where] = [f"{shown(text, _SHOWN)} cannot be read as {noun_of(feature)}" for text in texts]
        odd = np.flatnonzero(column.take(pa.array(rows)).is_valid())
        values = column.take(pa.array(rows[odd])).to_pylist()
        reasons[odd] = [
            feature.why_dropped(value)
            if isinstance(feature, MediaFeature)
            else f"{shown(feature._cell_of(value), _SHOWN)} is left out by what was learned"
            for value in values
        ]
        found.append(pa.table([rows + first_row, [name] * len(rows), reasons], schema=REJECTS_SCHEMA))
    if split is not None and split.leaves_out:
        listed = pa.concat_tables(found)["row_id"].to_numpy()
        rows = np.setdiff1d(np.flatnonzero(splits == DROPPED) + first_row, listed)
        columns = [rows, [", ".join(split.assign_columns)] * len(rows), [split.leaves_out] * len(rows)]
        found.append(pa.table(columns, schema=REJECTS_SCHEMA))
    table = pa.concat_tables(found).combine_chunks()
    return table.take(np.argsort(table["row_id"].to_numpy(), kind="stable"))


def joined_rejects(scratch: Folder, filled: Sequence[tuple[int, str, str]], partitions: Sequence[int]) -> pa.Buffer:
    """Return a Parquet file of the rejects of partitions, and then of the media that were filled, a group at a time."""
    # A row that is written several times is listed once.
    columns = list(zip(*sorted(set(filled)), strict=True)) or [(), (), ()]
    last = pa.table([list(column) for column in columns], schema=REJECTS_SCHEMA)
    tables = chain((read_table(scratch, scratch_name("rejects", partition)) for partition in partitions), [last])
    held, sink = REJECTS_SCHEMA.empty_table(), pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, REJECTS_SCHEMA, compression="zstd", write_page_checksum=True, store_schema=False
    ) as file:
        for table in tables:
            held = pa.concat_tables([held, table])
            if whole := len(held) // _GROUP_ROWS * _GROUP_ROWS:
                file.write_table(held.slice(0, whole), row_group_size=_GROUP_ROWS)
                held = held.slice(whole)
        if len(held):
            file.write_table(held, row_group_size=_GROUP_ROWS)
    return sink.getvalue()
