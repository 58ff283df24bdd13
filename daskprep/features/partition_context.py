"""Contexts of partitions, which carry information from other partitions, and the passes that collect it.

A pass calls ``map_partition(context, parsed, table)`` for each partition, with parsed columns and the table of columns
that split and balance read. Fitting, assigning, writing and streaming bring a `PartitionReader`, which reads raw cells
or rows that were parsed before, and use the results.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from daskprep import partitions
from daskprep.balance import Balance
from daskprep.classes import RowCounts
from daskprep.features.base import Contract, drops_missing
from daskprep.features.cells import one_array
from daskprep.features.missing import NeighbourImputer
from daskprep.features.table import (
    Parsed,
    PartitionCensus,
    PartitionContext,
    column_error_context,
    get_fit_imputer,
    kept_rows,
    parse_columns,
    source_columns,
    take_census,
)
from daskprep.progress import Advance, Progress
from daskprep.sources import Source
from daskprep.sources.base import table_without_columns
from daskprep.split import PartitionAssignment, Splitter
from daskprep.split.folds import KFold
from daskprep.storage.checkpoint import Checkpoint

MapPartition = Callable[[PartitionContext, Parsed, pa.Table], Any]
AnyFeature = TypeVar("AnyFeature", bound="Contract")
ParsePartition = Callable[[Mapping[str, "Contract"], int, pa.Table], tuple[Parsed, pa.Table]]


def parse_raw(features: Mapping[str, Contract], number: int, table: pa.Table) -> tuple[Parsed, pa.Table]:
    """Parse the columns of features; the table is returned unchanged for split and balance."""
    return parse_columns(features, table), table


@dataclass(frozen=True)
class PartitionReader:
    """Reads and parses the partitions of a source.

    Attributes
    ----------
    source : Source
        The partitions.
    parse : callable
        ``parse(features, number, table)`` returns the parsed columns of a partition, and a table with the columns of
        split and balance.
    """

    source: Source
    parse: ParsePartition = parse_raw

    def columns_to_read(self, features: Mapping[str, Contract], columns: Iterable[str]) -> list[str]:
        """Return the columns of the source to read for features, and `columns`, which are read unparsed."""
        # A table without columns loses its number of rows when it is pickled.
        return source_columns(features, columns) or self.source.columns[:1]

    def make_pass(
        self,
        map_partition: MapPartition,
        features: Mapping[str, Contract],
        columns: Iterable[str],
        contexts: partitions.Arguments,
    ) -> partitions.Pass:
        """Return the pass that calls `map_partition` with parsed features, and with `columns` unparsed."""
        shared = (self.parse, dict(features), map_partition, set(columns).intersection(source_columns(features)))
        return partitions.Pass(
            self.source, _apply_to_partition, self.columns_to_read(features, columns), shared, contexts
        )


def _apply_to_partition(shared: tuple[Any, ...], context: PartitionContext, table: pa.Table) -> Any:
    """Parse the raw table of a partition and call `map_partition`."""
    parse, features, map_partition, shared_columns = shared
    for column_index, name in enumerate(table.column_names):
        kind = table[name].type
        if name in shared_columns and (pa.types.is_string(kind) or pa.types.is_dictionary(kind)):
            # Otherwise features and split would each build a dictionary of the texts.
            table = table.set_column(column_index, name, one_array(table[name]).dictionary_encode())
    return map_partition(context, *parse(features, context.number, table))


def run_pass(
    reader: PartitionReader,
    name: str,
    map_partition: MapPartition,
    features: Mapping[str, Contract],
    columns: Sequence[str] = (),
    contexts: Sequence[PartitionContext] | None = None,
    *,
    checkpoint: Checkpoint | None = None,
    advance: Callable[[Any], None] | None = None,
) -> list[Any]:
    """Call `map_partition` for every partition, and return the small results in order.

    `advance` is called with each result as it arrives. A pass without features and columns reads nothing if the row
    counts of partitions are available. `contexts` default to partition numbers.
    """
    if contexts is None:
        contexts = default_contexts(reader.source.npartitions)
    if reader.source.row_counts is not None and not features and not columns:
        pairs = list(zip(contexts, reader.source.row_counts, strict=True))
        return partitions.run_tasks(name, _apply_without_reading, map_partition, pairs, advance=advance)
    return partitions.map_partitions(
        reader.make_pass(map_partition, features, columns, contexts), name, checkpoint=checkpoint, advance=advance
    )


def _apply_without_reading(map_partition: MapPartition, partition: tuple[PartitionContext, int]) -> Any:
    context, rows = partition
    return map_partition(context, *make_columnless_rows(rows))


def make_columnless_rows(rows: int) -> tuple[Parsed, pa.Table]:
    """Return a parsed partition and a table of `rows` rows without columns."""
    return Parsed(rows, {}, {}), table_without_columns(rows)


def default_contexts(count: int) -> list[PartitionContext]:
    """Return contexts of `count` partitions that contain only their numbers."""
    return [PartitionContext(number) for number in range(count)]


def assignment_columns(split: Splitter | None, balance: Balance | None = None) -> list[str]:
    """Return the columns that split and balance read."""
    read = [[] if split is None else split.assign_columns, [] if balance is None else balance.columns]
    return list(dict.fromkeys(column for columns in read for column in columns))


def select_dropping_features(features: Mapping[str, AnyFeature]) -> dict[str, AnyFeature]:
    """Return the features with "drop_row", which drop rows before learning."""
    return {name: feature for name, feature in features.items() if drops_missing(feature)}


# -- contexts for learning and for assigning rows to splits


def plan_contexts(
    reader: PartitionReader,
    features: Mapping[str, Contract],
    split: Splitter | None = None,
    progress: Progress | None = None,
) -> list[PartitionContext]:
    """Return the context of each partition for learning, from a census of all partitions if one is needed."""
    if (contexts := contexts_without_census(reader.source, features, split)) is not None:
        return contexts
    census_features = select_census_features(features, split)
    columns = [] if split is None else split.columns
    report = begin_stage(progress, "counting", reader.source)
    advance = None if report is None else lambda one: report(rows=one.rows)
    census = run_pass(
        reader,
        "census",
        functools.partial(take_census, census_features, split),
        census_features,
        columns,
        advance=advance,
    )
    return contexts_from_census(census, features, split, reader)


def select_census_features(features: Mapping[str, Contract], split: Splitter | None) -> dict[str, Contract]:
    """Return the features on which other partitions or the split depend before learning."""
    return {
        name: feature
        for name, feature in features.items()
        if get_fit_imputer(feature) or (split is not None and drops_missing(feature))
    }


def contexts_without_census(
    source: Source, features: Mapping[str, Contract], split: Splitter | None
) -> list[PartitionContext] | None:
    """Return the contexts of partitions if no census is needed, else None."""
    if select_census_features(features, split):
        return None
    if split is not None and (split.columns or (split.counts_rows and source.row_counts is None)):
        return None
    return contexts_from_row_counts(source.row_counts or [0] * source.npartitions, split)


def contexts_from_row_counts(rows: Sequence[int], split: Splitter | None) -> list[PartitionContext]:
    """Return the contexts of partitions with these numbers of rows, if no cell influences the split."""
    return contexts_from_census([PartitionCensus(count, {}, RowCounts(count, count)) for count in rows], {}, split)


def contexts_from_census(
    census: Sequence[PartitionCensus],
    features: Mapping[str, Contract],
    split: Splitter | None,
    reader: PartitionReader | None = None,
) -> list[PartitionContext]:
    """Return the contexts of partitions from the census of each; a split by time may read `reader` again."""
    contexts = exchange_borders(features, [context.borders for context in census])
    if split is None:
        return contexts
    assignments = plan_assignments(reader, split, select_dropping_features(features), census, "census")
    return [
        PartitionContext(context.number, context.border_values, assignment, split.segments)
        for context, assignment in zip(contexts, assignments, strict=True)
    ]


def plan_assignments(
    reader: PartitionReader | None,
    split: Splitter,
    dropping: Mapping[str, Contract],
    census: Sequence[PartitionCensus],
    name: str,
) -> Sequence[PartitionAssignment]:
    """Return the assignment of rows to splits of each partition; a split by time may read the `dropping` columns again.

    `name` is the stage of the census, for the second pass.
    """

    def read_again(function: Callable[..., Any]) -> list[Any]:
        assert reader is not None
        return run_pass(
            reader,
            f"{name}-again",
            functools.partial(_call_with_kept_rows, dropping, function),
            dropping,
            split.columns,
        )

    return split.plan([partition.split for partition in census], read_again)


def _call_with_kept_rows(
    dropping: Mapping[str, Contract],
    function: Callable[..., Any],
    context: PartitionContext,
    parsed: Parsed,
    table: pa.Table,
) -> Any:
    """Call `function` with the table of a partition and the mask of its kept rows."""
    return function(table, kept_rows(dropping, parsed.columns))


def exchange_borders(features: Mapping[str, Contract], borders: Sequence[Mapping[str, Any]]) -> list[PartitionContext]:
    """Turn the borders of all partitions, by feature, into contexts with the border values for each partition."""
    border_values = {
        name: _compute_border_values_by_split(imputer, [partition_borders[name] for partition_borders in borders])
        for name, feature in features.items()
        if borders and name in borders[0] and (imputer := feature.imputer) is not None
    }
    if not border_values:
        return default_contexts(len(borders))
    return [
        PartitionContext(i, {name: values[i] for name, values in border_values.items()}) for i in range(len(borders))
    ]


def _compute_border_values_by_split(imputer: NeighbourImputer, borders: Sequence[Any]) -> Sequence[Any]:
    if not (imputer.per_split and isinstance(borders[0], dict)):
        return imputer.compute_border_values(borders)
    by_split = [imputer.compute_border_values([border[code] for border in borders]) for code in borders[0]]
    return [dict(zip(borders[0], values, strict=True)) for values in zip(*by_split, strict=True)]


def begin_stage(progress: Progress | None, stage: str, source: Source) -> Advance | None:
    """Start a stage of the progress bar and return its callback; None without a bar, to save the transfer."""
    if progress is None or not progress.enabled:
        return None
    return progress.stage(stage, total=source.npartitions, unit="partitions")


# -- cross-fitting: each row of a source is in one fold and is encoded by the other folds


def fold_columns(features: Mapping[str, Contract]) -> list[str]:
    """Return the columns that determine the folds of rows, without duplicates."""
    return list(dict.fromkeys(column for folds in _folds_of(features).values() for column in folds.columns))


def add_fold_assignments(
    reader: PartitionReader, features: Mapping[str, Contract], contexts: Sequence[PartitionContext]
) -> list[PartitionContext]:
    """Return the contexts with the fold assignment of each feature that cross-fits.

    The fold of a row depends neither on its split nor on features that drop rows: all rows of the source have one.
    If row counts are available and no column determines the folds, nothing is read.
    """
    plans: dict[str, Any] = {}
    by_feature: dict[str, Any] = {}
    for name, folds in _folds_of(features).items():
        key = str(folds.to_dict())
        if key not in plans:
            with column_error_context(name):
                census = run_pass(reader, "folds", functools.partial(take_census, {}, folds), {}, folds.columns)
                plans[key] = plan_assignments(reader, folds, {}, census, "folds")
        by_feature[name] = plans[key]
    if not plans:
        return list(contexts)
    return [
        dataclasses.replace(context, cross_fit={name: plan[number] for name, plan in by_feature.items()})
        for number, context in enumerate(contexts)
    ]


def contexts_without_reading(
    reader: PartitionReader, features: Mapping[str, Contract], split: Splitter | None
) -> list[PartitionContext] | None:
    """Return the contexts of partitions for learning if no partition needs to be read for them, else None."""
    contexts = contexts_without_census(reader.source, features, split)
    if _folds_of(features) and (reader.source.row_counts is None or fold_columns(features)):
        return None
    return contexts and add_fold_assignments(reader, features, contexts)


def add_fold_numbers(
    features: Mapping[str, Contract],
    context: PartitionContext,
    table: pa.Table,
    columns: dict[str, pa.Array],
    training: np.ndarray,
) -> None:
    """Add folds to the completed `columns` of features that cross-fit: from 1 for training rows, 0 for other rows."""
    for name, assignment in context.cross_fit.items():
        if name in columns:
            folds = np.where(training, assignment.assign(table, None).astype(np.int16) + 1, 0)
            columns[name] = features[name]._add_fold_numbers(columns[name], folds)


def _folds_of(features: Mapping[str, Contract]) -> dict[str, KFold]:
    return {name: folds for name, feature in features.items() if (folds := feature._cross_fit) is not None}
