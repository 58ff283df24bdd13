"""What a task of each pass of a write does with one partition: scan, place, encode.

Passes hand rows on as files of scratch, one of each kind for each partition, named by its number. Only the task of
that partition writes it, whole or not at all; should a lost worker's task run twice, both write the same bytes. A
pass begins when all tasks of the one before are done, so that nobody reads what is still being written.

| file | written by | read by | removed |
|---|---|---|---|
| `parsed-*` | `ParseAndSpill` | all passes to `Encode` | at the end, or by `Encode` when its own file is there |
| `placed-*` | `AssignSplits`, if cells decide where rows go | `Encode` | at the end |
| `rejects-*` | `AssignSplits`, if it leaves rows out | the list of rejects | at the end |
| `gaps-*` | `Encode`, if cells of the first rows of a split are missing | the first part of a split | at the end |
| `encoded-*` | `Encode`, if parts take rows of many partitions | the parts | at the end |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from daskprep.assignment import Assignment, PartitionCounts
from daskprep.features import Feature
from daskprep.features.base import Contract
from daskprep.features.partition_context import add_fold_numbers, fold_columns, make_columnless_rows
from daskprep.features.table import (
    Parsed,
    PartitionCensus,
    PartitionContext,
    completed_columns,
    encoded_outputs,
    parse_columns,
    summarize_columns,
    take_census,
)
from daskprep.split import DROPPED, TRAIN, Splitter
from daskprep.storage.checkpoint import is_intact
from daskprep.storage.files import Folder
from daskprep.storage.manifest import FIRST_ROWS
from daskprep.summaries import ColumnSummary
from daskprep.writing.encoded import EncodedOrCells, EncodedRows, MissingCodes, Outputs, group_by_split, save_encoded
from daskprep.writing.rejects import list_rejects
from daskprep.writing.scratch import ScannedRows, read_saved_table, save_parsed, save_table, scratch_name


@dataclass(frozen=True)
class ParseAndSpill:
    """Parses a partition, and keeps it as scratch with the `columns` of the source that split and balance read."""

    columns: Sequence[str]
    scratch: Folder

    def __call__(self, features: Mapping[str, Contract], number: int, table: pa.Table) -> tuple[Parsed, pa.Table]:
        parsed = parse_columns(features, table)
        source = table.select(list(self.columns))
        save_parsed(self.scratch, number, parsed, source)
        return parsed, source


def scan_and_summarize(
    features: Mapping[str, Contract],
    census_features: Mapping[str, Contract],
    split: Splitter | None,
    counts_rows: bool,
    context: PartitionContext,
    parsed: Parsed,
    table: pa.Table,
) -> tuple[tuple[int, PartitionCensus, PartitionCounts | None], dict[str, ColumnSummary]]:
    """Take the census of a partition and summarize its training rows, where it is known ahead which these are.

    With `counts_rows`, the numbers of the rows say all of what the partition gives, and it is counted too.
    """
    census = take_census(census_features, split, context, parsed, table)  # summarizing uses the columns up
    counted = Assignment({}).count({}, None, context, *make_columnless_rows(parsed.rows)) if counts_rows else None
    return (context.number, census, counted), summarize_columns(features, context, parsed, table)


@dataclass(frozen=True)
class AssignSplits:
    """Keeps split and repeats of every row of a partition as scratch, and why rows are left out.

    `starts` are the numbers in the source of the first rows of all partitions.
    """

    dropping: Mapping[str, Feature]
    learned: Mapping[str, Any]
    scratch: Folder
    starts: np.ndarray
    split: Splitter | None

    def __call__(self, context: PartitionContext, parsed: Parsed, splits: np.ndarray, repeats: np.ndarray) -> int:
        """Return how many rejects there are."""
        rejects = 0
        if (splits == DROPPED).any():
            first = int(self.starts[context.number])
            reject_table = list_rejects(self.dropping, self.learned, parsed, first, splits, self.split)
            save_table(self.scratch, scratch_name("rejects", context.number), reject_table)
            rejects = len(reject_table)
        columns = {"split": splits} if context.repeats is None else {"split": splits, "repeats": repeats}
        save_table(self.scratch, scratch_name("placed", context.number), pa.table(columns))
        return rejects


@dataclass(frozen=True)
class Encode:
    """Encodes the rows of a placed partition in the order of its splits.

    A partition that has been encoded before, by a task whose worker died or by a write that was killed, is left.
    With `assignments_stored` the splits and repeats of rows lie in scratch, else they follow from the numbers of the rows. With
    `removes_parsed` the parsed rows are removed, since nothing will ask for them again.
    """

    features: Mapping[str, Feature]
    learned: Mapping[str, Any]
    rows: EncodedRows
    scanned: ScannedRows
    scratch: Folder
    assignments_stored: bool
    removes_parsed: bool

    def __call__(self, context: PartitionContext) -> int:
        number = context.number
        if not is_intact(self.scratch, scratch_name("encoded", number)):
            save_encoded(self.scratch, self.rows, number, *self._encode(context))
        if self.removes_parsed:
            self.scratch.remove(scratch_name("parsed", number))
        return int(self.rows.placement.counts[number].sum())

    def encode_by_split(self, context: PartitionContext) -> dict[str, dict[str, EncodedOrCells]]:
        """Return the encoded rows of a partition instead of saving them."""
        return group_by_split(self.scratch, self.rows, context.number, *self._encode(context))

    def _encode(self, context: PartitionContext) -> tuple[np.ndarray, np.ndarray, np.ndarray, Outputs, MissingCodes]:
        placement, number = self.rows.placement, context.number
        splits, repeats = self._read_assignment(context)
        keep = splits != DROPPED
        table = self.scanned.source._read(
            number, self.scanned.columns_to_read(self.features, fold_columns(self.features))
        )
        parsed, source = self.scanned.parse(self.features, number, table)
        missing_codes: dict[str, np.ndarray] | None = {} if self._has_first_rows(number) else None
        columns = completed_columns(
            self.features, self.learned, context, parsed, missing_codes=missing_codes, splits=splits
        )
        add_fold_numbers(self.features, context, source, columns, splits == TRAIN)
        row_ids = placement.source_starts[number] + np.flatnonzero(keep)
        outputs = encoded_outputs(self.features, self.learned, columns, keep, keep_media_cells=True)
        return (
            row_ids,
            splits[keep],
            repeats[keep],
            outputs,
            {name: one[keep] for name, one in (missing_codes or {}).items()},
        )

    def _has_first_rows(self, number: int) -> bool:
        """Tell whether a partition may have some of the first rows of a split."""
        placement = self.rows.placement
        starts = (placement.starts(split)[number] for split in placement.rows)
        return self.rows.seed is not None or any(start < FIRST_ROWS for start in starts)

    def _read_assignment(self, context: PartitionContext) -> tuple[np.ndarray, np.ndarray]:
        """Return split and repeats of each row."""
        if not self.assignments_stored:
            return Assignment({}).assign(
                context, *make_columnless_rows(self.rows.placement.source_rows[context.number])
            )
        table = read_saved_table(self.scratch, scratch_name("placed", context.number))
        splits = table["split"].to_numpy()
        repeats = table["repeats"].to_numpy() if "repeats" in table.column_names else np.ones(len(splits), np.int64)
        return splits, repeats
