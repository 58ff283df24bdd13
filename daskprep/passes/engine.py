"""The engine of passes: it reads and parses partitions, maps them to results, and merges these.

Fitting, assigning, writing, streaming, predictions and type inference describe their passes as `Pass` objects, and
`run_pass` runs them. A `PartitionReader` reads raw rows, or rows that an earlier pass parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from daskprep.features.base import Contract
from daskprep.features.cells import one_array
from daskprep.passes.table import Parsed, PartitionContext, parse_columns, source_columns
from daskprep.sources import Source, partitions
from daskprep.sources.base import table_without_columns
from daskprep.sources.partitions.progress import Progress
from daskprep.storage.checkpoint import Checkpoint

MapPartition = Callable[[PartitionContext, Parsed, pa.Table], Any]


@dataclass(frozen=True)
class Pass:
    """A function of each partition, and the columns it reads."""

    name: str  # prefix of the names of its tasks
    # ``map(context, parsed, table)`` returns the result of a partition; `table` has the unparsed columns.
    map: MapPartition
    features: Mapping[str, Contract] = field(default_factory=dict)  # to parse
    columns: Sequence[str] = ()  # to read unparsed
    # For a `map` that returns a pair: a small result, and a mapping with a value for each feature, or else each column.
    # ``merge(values)`` merges up to 8 values, and ``finish(name, values)`` returns the result of the last.
    merge: Callable[[list[Any]], Any] | None = None
    finish: Callable[[Any, list[Any]], Any] | None = None


class Parser:
    """Parses the columns of features, and selects others."""

    def columns(self, features: Mapping[str, Contract], unparsed: Sequence[str]) -> list[str]:
        """Return the columns of the source to read."""
        return source_columns(features, unparsed)

    def parse(
        self, features: Mapping[str, Contract], unparsed: Sequence[str], number: int, table: pa.Table
    ) -> tuple[Parsed, pa.Table]:
        """Return the parsed columns, and a table with unparsed ones."""
        for name in set(unparsed).intersection(source_columns(features)):
            if pa.types.is_string(kind := table[name].type) or pa.types.is_dictionary(kind):
                # Otherwise features and split would each build a dictionary of the texts.
                codes = one_array(table[name]).dictionary_encode()
                table = table.set_column(table.column_names.index(name), name, codes)
        return parse_columns(features, table), table


@dataclass(frozen=True)
class PartitionReader:
    """Reads the partitions of a source, with a parser for its tables."""

    source: Source
    parser: Parser = field(default_factory=Parser)

    def work(self, one: Pass, contexts: partitions.Arguments) -> partitions.Work:
        # A table without columns loses its number of rows when it is pickled.
        columns = self.parser.columns(one.features, one.columns) or self.source.columns[:1]
        return partitions.Work(self.source, map_table, columns, (self.parser, one), contexts)

    def read(self, features: Mapping[str, Contract], unparsed: Sequence[str], number: int) -> tuple[Parsed, pa.Table]:
        """Return one partition parsed, and its unparsed columns."""
        table = self.source._read(number, self.parser.columns(features, unparsed))
        return self.parser.parse(features, unparsed, number, table)


def map_table(shared: tuple[Parser, Pass], context: PartitionContext, table: pa.Table) -> Any:
    """Parse a partition's table, and return the result of a pass."""
    parser, one = shared
    return one.map(context, *parser.parse(one.features, one.columns, context.number, table))


def run_pass(
    reader: PartitionReader,
    one: Pass,
    contexts: Sequence[PartitionContext] | None = None,
    *,
    checkpoint: Checkpoint | None = None,
    advance: Callable[[Any], None] | None = None,
) -> Any:
    """Return the results of a pass in the order of partitions.

    If they are merged, return small results in this order, and the finished results by name, as `map_reduce` does.
    `advance` is called with each result, or small result, as it arrives. A pass without columns reads nothing if the
    row counts of partitions are available. `contexts` default to partition numbers.
    """
    source = reader.source
    contexts = [*map(PartitionContext, range(source.npartitions))] if contexts is None else contexts
    if source.row_counts is not None and not reader.parser.columns(one.features, one.columns):
        pairs = list(zip(contexts, source.row_counts, strict=True))
        return partitions.run_tasks(one.name, _map_rows, one.map, pairs, advance=advance)
    work = reader.work(one, contexts)
    if one.merge is None or one.finish is None:
        return partitions.map_partitions(work, one.name, checkpoint=checkpoint, advance=advance)
    return partitions.map_reduce(
        work,
        one.name,
        merge=one.merge,
        finish=one.finish,
        keys=list(one.features or one.columns),
        checkpoint=checkpoint,
        advance=advance,
    )


def _map_rows(map_partition: MapPartition, partition: tuple[PartitionContext, int]) -> Any:
    context, rows = partition
    return map_partition(context, *make_columnless_rows(rows))


def make_columnless_rows(rows: int) -> tuple[Parsed, pa.Table]:
    """Return a parsed partition and a table of `rows` rows without columns."""
    return Parsed(rows, {}, {}), table_without_columns(rows)


def begin_stage(progress: Progress | None, stage: str, source: Source) -> Callable[[Any], None] | None:
    """Start a stage of the progress bar; return `advance`, for results that are rows or have `rows`."""
    if progress is None:
        return None
    advance = progress.stage(stage, total=source.npartitions, unit="partitions")
    return (lambda result: advance(rows=getattr(result, "rows", result))) if progress.enabled else None
