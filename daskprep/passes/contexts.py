"""Contexts of partitions, which carry information from other partitions, and the passes that collect it.

| information | collected by | used for |
|---|---|---|
| split of rows | the census of a `ContextPlan` | the training rows of a fit, writes and streams |
| borders | the same census for a fit, and `exchange_borders` for encoding | imputation from neighboring rows |
| folds | a census of each distinct `KFold` in a `ContextPlan` | encoding training rows by other folds |
| repeats | `Assignment.add_repeats` | balance |
| sample | `assignment.take_sample` | leaving out rows |
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from daskprep.features.base import Contract, cross_fit_folds, drops_missing
from daskprep.features.checking import column_error_context
from daskprep.features.missing import NeighbourImputer
from daskprep.features.windows import WindowImputer
from daskprep.passes.borders import BorderFiles
from daskprep.passes.engine import PartitionReader, Pass, begin_stage, run_pass
from daskprep.passes.table import (
    CompletedColumn,
    Parsed,
    PartitionCensus,
    PartitionContext,
    get_fit_imputer,
    kept_rows,
    learning_columns,
    select_dropping_features,
    take_census,
)
from daskprep.sources import Source
from daskprep.sources.balance import Balance
from daskprep.sources.classes import RowCounts
from daskprep.sources.partitions.progress import Progress
from daskprep.sources.split import KFold, PartitionAssignment, Splitter
from daskprep.sources.split.times import TimeSplitter


def assignment_columns(split: Splitter | None, balance: Balance | None = None) -> list[str]:
    """Return the columns that split and balance read."""
    read = [*([] if split is None else split.assign_columns), *([] if balance is None else balance.columns)]
    return list(dict.fromkeys(read))


def fold_columns(features: Mapping[str, Contract]) -> list[str]:
    """Return the columns that determine the folds of rows, without duplicates."""
    return list(dict.fromkeys(column for folds in cross_fit_folds(features).values() for column in folds.columns))


def series_columns(features: Mapping[str, Contract], split: Splitter | None) -> dict[str | None, bool]:
    """Return the columns of groups of windows, None for windows without groups, whose order a split by time checks.

    Values are whether windows count rows as steps of time.
    """
    columns: dict[str | None, bool] = {}
    for feature in features.values() if isinstance(split, TimeSplitter) else ():
        for group in feature._window_groups:
            columns[group] = columns.get(group, False) or feature._counts_steps
    return columns


def unparsed_columns(
    features: Mapping[str, Contract], split: Splitter | None, balance: Balance | None = None, *, is_fitted: bool = False
) -> list[str]:
    """Return the columns that are needed unparsed."""
    own = fold_columns(features) if is_fitted else learning_columns(features)
    series = filter(None, series_columns(features, split))
    return list(dict.fromkeys([*assignment_columns(split, balance), *own, *series]))


@dataclass(frozen=True)
class ContextPlan:
    """The information that tasks need from other partitions."""

    features: Mapping[str, Contract]  # the features that choose or impute training rows
    split: Splitter | None = None  # assigns rows to splits
    # Contexts get the folds of rows for each of these features that cross-fits; None: of `features`.
    cross_fitted: Mapping[str, Contract] | None = None

    @functools.cached_property
    def census(self) -> Pass:
        """The pass that collects borders and counts for the split."""
        is_split = self.split is not None
        features = {
            name: one
            for name, one in self.features.items()
            if get_fit_imputer(one) or (is_split and drops_missing(one))
        }
        columns = [] if self.split is None else self.split.columns
        split_census: Callable[..., Any] | None = None if self.split is None else self.split.census
        if isinstance(self.split, TimeSplitter):
            groups = series_columns(self.features, self.split)
            columns = list(dict.fromkeys([*columns, *filter(None, groups)]))
            split_census = functools.partial(self.split._census_of_series, groups)
        return Pass("census", functools.partial(take_census, features, split_census), features, columns)

    def needs_census(self, source: Source) -> bool:
        """Return whether row counts do not suffice."""
        counts_rows = self.split is not None and self.split.counts_rows and source.row_counts is None
        return bool(self.census.features or self.census.columns or counts_rows)

    def needs_reading(self, source: Source) -> bool:
        """Return whether partitions need to be read for the contexts."""
        reads_folds = self._folds and (source.row_counts is None or any(one.columns for one in self._folds.values()))
        return bool(reads_folds or self.needs_census(source))

    @property
    def _folds(self) -> dict[str, KFold]:
        return cross_fit_folds(self.features if self.cross_fitted is None else self.cross_fitted)

    def make_contexts(
        self, reader: PartitionReader, census: Sequence[PartitionCensus] | None = None, progress: Progress | None = None
    ) -> list[PartitionContext]:
        """Return the context of each partition; without a `census`, a pass counts the rows if that is needed."""
        source = reader.source
        if census is None and self.needs_census(source):
            census = run_pass(reader, self.census, advance=begin_stage(progress, "counting", source))
        elif census is None:
            census = census_of_rows(source.row_counts or [0] * source.npartitions)
        contexts = exchange_borders(self.features, [partition.borders for partition in census])
        if self.split is not None:
            dropping = select_dropping_features(self.features)
            assignments = _plan_split(reader, self.split, dropping, census)
            contexts = [
                replace(context, assignment=assignment, n_folds=self.split.segments)
                for context, assignment in zip(contexts, assignments, strict=True)
            ]
        return self._add_folds(reader, contexts)

    def _add_folds(self, reader: PartitionReader, contexts: list[PartitionContext]) -> list[PartitionContext]:
        """Return contexts with the folds of cross-fitted features.

        The fold of a row depends neither on its split nor on features that drop rows: all rows of the source have one.
        """
        plans: dict[str, Sequence[PartitionAssignment]] = {}
        by_feature = {}
        for name, folds in self._folds.items():
            key = str(folds.to_dict())
            if key not in plans:
                with column_error_context(name):
                    plans[key] = _plan_split(reader, folds, {}, run_pass(reader, ContextPlan({}, folds).census))
            by_feature[name] = plans[key]
        if not plans:
            return contexts
        return [
            replace(context, cross_fit={name: plan[number] for name, plan in by_feature.items()})
            for number, context in enumerate(contexts)
        ]


def add_first_rows(contexts: Sequence[PartitionContext], rows: Sequence[int]) -> list[PartitionContext]:
    """Return the contexts with the number of each first row."""
    starts = itertools.accumulate(rows, initial=0)
    return [replace(context, first_row=start) for context, start in zip(contexts, starts, strict=False)]


def census_of_rows(rows: Iterable[int]) -> list[PartitionCensus]:
    """Return the census of partitions from their row counts."""
    return [PartitionCensus(count, {}, RowCounts(count, count)) for count in rows]


def _plan_split(
    reader: PartitionReader, split: Splitter, dropping: Mapping[str, Contract], census: Sequence[PartitionCensus]
) -> Sequence[PartitionAssignment]:
    """Return the assignment of rows to splits of each partition."""

    def read_again(function: Callable[[pa.Table, Any], Any]) -> list[Any]:
        def call(context: PartitionContext, parsed: Parsed, table: pa.Table) -> Any:
            return function(table, kept_rows(dropping, parsed.columns))

        results: list[Any] = run_pass(reader, Pass("census-again", call, dropping, split.columns))
        return results

    return split.plan([partition.split for partition in census], read_again)


def exchange_borders(
    features: Mapping[str, Contract],
    borders: Sequence[Mapping[str, Any]],
    contexts: Sequence[PartitionContext] | None = None,
    files: BorderFiles | None = None,
) -> list[PartitionContext]:
    """Return contexts (None: new ones) with the values that imputers compute from all partitions' borders.

    Large borders of windows are in `files`.
    """
    contexts = [*map(PartitionContext, range(len(borders)))] if contexts is None else contexts
    border_values = {
        name: _compute_border_values_by_split(imputer, [one[name] for one in borders], files, str(number))
        for number, (name, feature) in enumerate(features.items())
        if borders and name in borders[0] and (imputer := feature.imputer) is not None
    }
    if not border_values:
        return list(contexts)
    return [
        replace(
            context,
            border_values={**context.border_values, **{name: values[number] for name, values in border_values.items()}},
        )
        for number, context in enumerate(contexts)
    ]


def _compute_border_values_by_split(
    imputer: NeighbourImputer, borders: Sequence[Any], files: BorderFiles | None, label: str
) -> Sequence[Any]:
    """Return the border values of each partition."""
    if imputer.per_split and isinstance(borders[0], dict):
        by_split = [
            _compute_border_values_by_split(imputer, [border[code] for border in borders], files, f"{label}-{code}")
            for code in borders[0]
        ]
        return [dict(zip(borders[0], values, strict=True)) for values in zip(*by_split, strict=True)]
    if files is not None and isinstance(imputer, WindowImputer) and any(isinstance(one, list) for one in borders):
        return files.exchange(label, imputer, borders)
    return imputer.compute_border_values(borders)


def add_fold_numbers(
    features: Mapping[str, Contract],
    context: PartitionContext,
    table: pa.Table,
    columns: dict[str, CompletedColumn],
    training: np.ndarray,
) -> None:
    """Add folds, from 1, and 0 if not in `training`, to columns of features that cross-fit, in place."""
    for name, assignment in context.cross_fit.items():
        if name in columns:
            folds = np.where(training, assignment.assign(table, None).astype(np.int16) + 1, 0)
            cells, is_missing = columns[name]
            columns[name] = CompletedColumn(features[name]._add_fold_numbers(cells, folds), is_missing)
