"""What a task of each pass of a write does with one partition: scan, summarize, place, encode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from daskprep.assignment import row_repeats, row_splits
from daskprep.features.table import (
    Parsed,
    PartitionCensus,
    Surroundings,
    census_columns,
    completed_columns,
    encoded_outputs,
    kept_rows,
    read_columns,
    summarize_columns,
)
from daskprep.sources.base import rows_alone
from daskprep.split import DROPPED, TRAIN
from daskprep.summaries import FrameSummary
from daskprep.writing.carried import Carried
from daskprep.writing.encoded import EncodedRows, Outputs, by_split, encoded_name, save_encoded
from daskprep.writing.learned import SavedLearned
from daskprep.writing.placement import SPLITS
from daskprep.writing.rejects import rejects_of, save_rejects
from daskprep.writing.scratch import ScratchSource, intact, parsed_name, parsed_of, rows_of, save_parsed, write_checked

if TYPE_CHECKING:
    from daskprep.features import Feature
    from daskprep.storage.files import Folder

__all__ = [
    "Encode",
    "Place",
    "Placed",
    "Scan",
    "Scanned",
    "count_classes",
    "look_again",
    "place_by_numbers",
    "placed_name",
    "scan_and_summarize",
    "summarize",
]


@dataclass(frozen=True)
class Scan:
    """Parses a partition, keeps it as scratch, and says what the others must know of it."""

    features: Mapping[str, Feature]
    around: Mapping[str, Feature]
    split: Any
    columns: Sequence[str]
    scratch: Folder

    def __call__(self, number: int, table: pa.Table) -> PartitionCensus:
        return self.look(*self.keep(number, table))

    def keep(self, number: int, table: pa.Table) -> tuple[Parsed, pa.Table]:
        """Parse a partition and save it; give it with the columns of the source that are kept as they are."""
        parsed = read_columns(self.features, table)
        source = table.select(list(self.columns))
        save_parsed(self.scratch, number, parsed, source)
        return parsed, source

    def look(self, parsed: Parsed, source: pa.Table) -> PartitionCensus:
        """Return what the other partitions must know of one."""
        return census_columns(self.around, self.split, parsed, source)


@dataclass(frozen=True)
class Scanned(FrameSummary):
    """The summary of one partition, with its census; merged with others it is a plain summary."""

    number: int
    census: PartitionCensus


def look_again(
    around: Mapping[str, Feature], function: Callable[[pa.Table, np.ndarray | None], Any], table: pa.Table
) -> Any:
    """Let a split look at a scanned partition once more."""
    return function(rows_of(table), kept_rows(around, parsed_of(table).columns))


def scan_and_summarize(scan: Scan, around: Surroundings, table: pa.Table) -> Scanned:
    """Scan a partition and summarize its training rows, where no census must say first which these are."""
    parsed, source = scan.keep(around.number, table)
    census = scan.look(parsed, source)
    return Scanned(summarize_columns(scan.features, around, parsed, source).columns, around.number, census)


def summarize(features: Mapping[str, Feature], around: Surroundings, table: pa.Table) -> FrameSummary:
    """Summarize the training rows of a scanned partition."""
    return summarize_columns(features, around, parsed_of(table), rows_of(table))


@dataclass(frozen=True)
class Placed:
    """Rows of one partition that go to each split, what its columns must tell the others, and its rejects."""

    counts: tuple[int, ...]
    edges: PartitionCensus
    rejects: int


@dataclass(frozen=True)
class Place:
    """Chooses split and repeats of every row of a scanned partition, and keeps both as scratch if it `saves`."""

    dropping: Mapping[str, Feature]
    around: Mapping[str, Feature]
    learned: SavedLearned
    features: Mapping[str, Feature]
    scratch: Folder
    starts: np.ndarray
    saves: bool

    def splits(self, around: Surroundings, parsed: Parsed, source: pa.Table) -> np.ndarray:
        """Return the split of each row."""
        return row_splits(self.dropping, self.learned.load(self.features), around, parsed, source)

    def __call__(self, told: tuple[Surroundings, Any], table: pa.Table) -> Placed:
        around, balance = told
        parsed, source = parsed_of(table), rows_of(table)
        learned = self.learned.load(self.features)
        splits = self.splits(around, parsed, source)
        repeats = row_repeats(splits, balance, source)
        edges = census_columns(self.around, None, parsed, source, learned)
        if not self.saves:
            return Placed(_counts(splits, repeats), edges, 0)
        rejects = 0
        if (splits == DROPPED).any():
            first = int(self.starts[around.number])
            rejects = save_rejects(self.scratch, around.number, rejects_of(self.dropping, learned, parsed, first))
        columns = {"split": splits} if balance is None else {"split": splits, "repeats": repeats}
        placed = pa.table(columns)
        with write_checked(self.scratch, placed_name(around.number)) as write:
            write(_ipc_bytes(placed))
        return Placed(_counts(splits, repeats), edges, rejects)


def place_by_numbers(around: Surroundings, rows: int) -> Placed:
    """Do what `Place` does where no cell is looked at; nothing is read, and nothing kept."""
    splits, repeats = _by_numbers(around, rows)
    return Placed(_counts(splits, repeats), PartitionCensus(rows, {}), 0)


def _by_numbers(around: Surroundings, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return split and repeats of each row of a partition where the numbers of rows say all."""
    source = rows_alone(rows)
    splits = row_splits({}, None, around, Parsed(rows, {}, {}), source)
    return splits, row_repeats(splits, None, source)


def _counts(splits: np.ndarray, repeats: np.ndarray) -> tuple[int, ...]:
    return tuple(int(repeats[splits == code].sum()) for code in SPLITS.values())


def count_classes(shared: tuple[Place, Any], around: Surroundings, table: pa.Table) -> Any:
    """Let the balance count the classes of a partition's training rows."""
    place, balance = shared
    source = rows_of(table)
    return balance.census(source, place.splits(around, parsed_of(table), source) == TRAIN)


@dataclass(frozen=True)
class Encode:
    """Encodes the rows of a placed partition in the order of its splits.

    A partition that has been encoded before, by a task whose worker died or by a write that was killed, is left.
    With `placed` the splits and repeats of rows lie in scratch, else they follow from the numbers of the rows. With
    `frees` the parsed rows are removed, since nothing will ask for them again.
    """

    features: Mapping[str, Feature]
    learned: SavedLearned
    rows: EncodedRows
    source: ScratchSource
    scratch: Folder
    placed: bool
    frees: bool

    def __call__(self, around: Surroundings) -> int:
        number = around.number
        if not intact(self.scratch, encoded_name(number)):
            save_encoded(self.scratch, self.rows, number, *self._encoded(around))
        if self.frees:
            self.scratch.remove(parsed_name(number))
        return int(self.rows.placement.counts[number].sum())

    def by_split(self, around: Surroundings) -> dict[str, dict[str, Carried]]:
        """Return the encoded rows of a partition instead of saving them."""
        return by_split(self.rows, *self._encoded(around))

    def _encoded(self, around: Surroundings) -> tuple[np.ndarray, np.ndarray, np.ndarray, Outputs]:
        placement, learned, number = self.rows.placement, self.learned.load(self.features), around.number
        splits, repeats = self._placed(number) if self.placed else _by_numbers(around, placement.source_rows[number])
        keep = splits != DROPPED
        parsed = parsed_of(self.source.read(number, self.source.wanted(list(self.features))))
        columns = completed_columns(self.features, learned, around, parsed)
        row_ids = placement.source_starts[number] + np.flatnonzero(keep)
        outputs = encoded_outputs(self.features, learned, columns, keep, carried=True)
        return row_ids, splits[keep], repeats[keep], outputs

    def _placed(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        data = self.scratch.mapped(placed_name(number))
        table = pa.ipc.open_stream(pa.BufferReader(data)).read_all()
        splits = table["split"].to_numpy()
        repeats = table["repeats"].to_numpy() if "repeats" in table.column_names else np.ones(len(splits), np.int64)
        return splits, repeats


def placed_name(partition: int) -> str:
    """Return the name of the file of splits and repeats of a partition."""
    return f"placed-{partition:06d}.arrows"


def _ipc_bytes(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()
