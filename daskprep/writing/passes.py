"""The tasks of the passes of a write, each for one partition: scan, assign splits, encode.

Passes exchange rows as scratch files, one of each kind per partition, named by the number of the partition. Only the
task of the partition writes the file, atomically. If the task runs twice, because a worker was lost, both runs write
the same bytes. A pass starts when all tasks of the previous pass are done, so that no file is read too early.

| file | written by | read by | removed |
|---|---|---|---|
| `parsed-*` | `ParseAndSpill` | all passes up to `Encode` | at the end, or by `Encode` after it has encoded the rows |
| `placed-*` | `AssignSplits`, if splits depend on cells | `Encode` | at the end |
| `rejects-*` | `AssignSplits`, if it drops rows | the table of rejects | at the end |
| `gaps-*` | `Encode`, if cells of the first rows of a split are missing | the first part of a split | at the end |
| `encoded-*` | `Encode`, if rows are shuffled or tasks run in several processes | the parts | at the end |
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
    """The task that parses a partition and saves it in `scratch`, with the `columns` that are needed unparsed."""

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
    """Return the census of a partition and the summaries of its training rows, which `context` determines.

    With `counts_rows`, splits depend only on row numbers, and the written rows are counted too.
    """
    census = take_census(census_features, split, context, parsed, table)  # first, because summarizing frees columns
    counted = Assignment({}).count({}, None, context, *make_columnless_rows(parsed.rows)) if counts_rows else None
    return (context.number, census, counted), summarize_columns(features, context, parsed, table)


@dataclass(frozen=True)
class AssignSplits:
    """The task that saves split and repeats of every row of a partition, and its rejects, in `scratch`.

    Attributes
    ----------
    dropping : mapping
        The features that drop rows.
    learned : mapping
        The learned states by feature.
    scratch : Folder
        The folder of scratch files.
    starts : array
        The row number in the source of the first row of each partition.
    split : Splitter or None
        The split, which may exclude rows.
    """

    dropping: Mapping[str, Feature]
    learned: Mapping[str, Any]
    scratch: Folder
    starts: np.ndarray
    split: Splitter | None

    def __call__(self, context: PartitionContext, parsed: Parsed, splits: np.ndarray, repeats: np.ndarray) -> int:
        """Save the assignment of a partition, and return its number of rejects."""
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
    """The task that encodes the rows of a partition in the order of its splits.

    A partition that was encoded before, by a lost worker or a killed write, is not encoded again.

    Attributes
    ----------
    features, learned : mapping
        The features and their learned states.
    rows : EncodedRows
        The format of the encoded rows.
    scanned : ScannedRows
        The reader of the parsed rows.
    scratch : Folder
        The folder of scratch files.
    assignments_stored : bool
        Whether splits and repeats of rows are read from scratch, or computed from row numbers.
    removes_parsed : bool
        Whether to remove the parsed rows of the partition, if no other task reads them.
    """

    features: Mapping[str, Feature]
    learned: Mapping[str, Any]
    rows: EncodedRows
    scanned: ScannedRows
    scratch: Folder
    assignments_stored: bool
    removes_parsed: bool

    def __call__(self, context: PartitionContext) -> int:
        """Save the encoded rows of a partition, and return their number."""
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
        """Return row ids, splits, repeats, outputs and codes of missing values of the kept rows of a partition."""
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
            {name: codes[keep] for name, codes in (missing_codes or {}).items()},
        )

    def _has_first_rows(self, number: int) -> bool:
        """Return whether a partition may have rows among the first rows of a split."""
        placement = self.rows.placement
        starts = (placement.starts(split)[number] for split in placement.rows)
        return self.rows.seed is not None or any(start < FIRST_ROWS for start in starts)

    def _read_assignment(self, context: PartitionContext) -> tuple[np.ndarray, np.ndarray]:
        """Return the split and the number of repeats of each row."""
        if not self.assignments_stored:
            return Assignment({}).assign(
                context, *make_columnless_rows(self.rows.placement.source_rows[context.number])
            )
        table = read_saved_table(self.scratch, scratch_name("placed", context.number))
        splits = table["split"].to_numpy()
        repeats = table["repeats"].to_numpy() if "repeats" in table.column_names else np.ones(len(splits), np.int64)
        return splits, repeats
