"""What each partition is told of the others, and the passes that find it out.

A pass asks every partition one question, ``question(told, parsed, table)``: of raw cells, or of rows that were parsed
before. Fitting, assigning, writing and streaming bring along how their partitions are read (`Rows`), and what is done
with the answers.
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
from daskprep.features.missing import Neighbours
from daskprep.features.table import (
    Parsed,
    PartitionCensus,
    Surroundings,
    around_while_learning,
    kept_rows,
    naming,
    read_columns,
    source_columns,
    take_census,
)
from daskprep.progress import Advance, Progress
from daskprep.sources import Source
from daskprep.sources.base import rows_alone
from daskprep.split import PartitionAssignment, Splitter
from daskprep.split.folds import KFold
from daskprep.storage.kept import Kept

Question = Callable[[Surroundings, Parsed, pa.Table], Any]
AnyFeature = TypeVar("AnyFeature", bound="Contract")
Read = Callable[[Mapping[str, "Contract"], int, pa.Table], tuple[Parsed, pa.Table]]


def read_raw(features: Mapping[str, Contract], number: int, table: pa.Table) -> tuple[Parsed, pa.Table]:
    """Parse what features read; split and balance find their columns in the table."""
    return read_columns(features, table), table


@dataclass(frozen=True)
class Rows:
    """The partitions of a source, and how they are read.

    A task first calls ``read(features, number, table)`` for what features read, parsed, and a table that has the
    columns which split and balance read.
    """

    source: Source
    read: Read = read_raw

    def wanted(self, features: Mapping[str, Contract], columns: Iterable[str]) -> list[str]:
        """Return what to read of the source for these features, and for what reads columns as they are."""
        # A table without columns forgets its rows when it is pickled.
        return source_columns(features, columns) or self.source.columns[:1]

    def asked(
        self,
        question: Question,
        features: Mapping[str, Contract],
        columns: Iterable[str],
        told: partitions.Arguments,
    ) -> partitions.Pass:
        """Return the pass that asks a question of what these features read, and of columns as they are."""
        shared = (self.read, dict(features), question, set(columns).intersection(source_columns(features)))
        return partitions.Pass(self.source, _answer, self.wanted(features, columns), shared, told)


def _answer(shared: tuple[Any, ...], told: Surroundings, table: pa.Table) -> Any:
    read, features, question, both = shared
    for place, name in enumerate(table.column_names):
        kind = table[name].type
        if name in both and (pa.types.is_string(kind) or pa.types.is_dictionary(kind)):
            # Features and split would each look the texts up.
            table = table.set_column(place, name, one_array(table[name]).dictionary_encode())
    return question(told, *read(features, told.number, table))


def ask(
    rows: Rows,
    name: str,
    question: Question,
    features: Mapping[str, Contract],
    columns: Sequence[str] = (),
    told: Sequence[Surroundings] | None = None,
    *,
    kept: Kept | None = None,
    advance: Callable[[Any], None] | None = None,
) -> list[Any]:
    """Ask every partition, and return the small answers in order; `advance` is called with each as it comes.

    A question about no column is answered without reading, where the numbers of rows are known.
    """
    if told is None:
        told = untold(rows.source.npartitions)
    if rows.source.row_counts is not None and not features and not columns:
        pairs = list(zip(told, rows.source.row_counts, strict=True))
        return partitions.run(name, _answer_unread, question, pairs, advance=advance)
    return partitions.each(rows.asked(question, features, columns, told), name, kept=kept, advance=advance)


def _answer_unread(question: Question, partition: tuple[Surroundings, int]) -> Any:
    told, rows = partition
    return question(told, *unread(rows))


def unread(rows: int) -> tuple[Parsed, pa.Table]:
    """Return so many rows without a column."""
    return Parsed(rows, {}, {}), rows_alone(rows)


def untold(count: int) -> list[Surroundings]:
    """Return what partitions know that are told nothing: their numbers."""
    return [Surroundings(number) for number in range(count)]


def assigning_columns(split: Splitter | None, balance: Balance | None = None) -> list[str]:
    """Return the columns that split and balance read."""
    read = [[] if split is None else split.assign_columns, [] if balance is None else balance.columns]
    return list(dict.fromkeys(column for columns in read for column in columns))


def dropping_missing(features: Mapping[str, AnyFeature]) -> dict[str, AnyFeature]:
    """Return the features that leave rows out before anything is learned."""
    return {name: feature for name, feature in features.items() if drops_missing(feature)}


# -- before rows are learned from, or assigned


def survey(
    rows: Rows, features: Mapping[str, Contract], split: Splitter | None = None, progress: Progress | None = None
) -> list[Surroundings]:
    """Take the census, if one is needed, and return what each partition must know of the others."""
    if (told := told_ahead(rows.source, features, split)) is not None:
        return told
    looked_at = surveyed(features, split)
    columns = [] if split is None else split.columns
    tell = begin(progress, "counting", rows.source)
    advance = None if tell is None else lambda one: tell(rows=one.rows)
    census = ask(rows, "census", functools.partial(take_census, looked_at, split), looked_at, columns, advance=advance)
    return told_after(census, features, split, rows)


def surveyed(features: Mapping[str, Contract], split: Splitter | None) -> dict[str, Contract]:
    """Return the features that other partitions, or the split, must know of before learning."""
    return {
        name: feature
        for name, feature in features.items()
        if around_while_learning(feature) or (split is not None and drops_missing(feature))
    }


def told_ahead(source: Source, features: Mapping[str, Contract], split: Splitter | None) -> list[Surroundings] | None:
    """Return what each partition must know of the others if no census is needed for it, else None."""
    if surveyed(features, split):
        return None
    if split is not None and (split.columns or (split.counts_rows and source.row_counts is None)):
        return None
    return told_by_numbers(source.row_counts or [0] * source.npartitions, split)


def told_by_numbers(rows: Sequence[int], split: Splitter | None) -> list[Surroundings]:
    """Return what partitions of so many rows must know where no cell decides: the numbers of their rows say all."""
    return told_after([PartitionCensus(count, {}, RowCounts(count, count)) for count in rows], {}, split)


def told_after(
    census: Sequence[PartitionCensus],
    features: Mapping[str, Contract],
    split: Splitter | None,
    rows: Rows | None = None,
) -> list[Surroundings]:
    """Turn what the census found into what each partition must know; a split by time may read `rows` again."""
    told = told_edges(features, [one.edges for one in census])
    if split is None:
        return told
    choosers = planned(rows, split, dropping_missing(features), census, "census")
    return [
        Surroundings(one.number, one.carries, chooser, split.pieces)
        for one, chooser in zip(told, choosers, strict=True)
    ]


def planned(
    rows: Rows | None, split: Splitter, dropping: Mapping[str, Contract], census: Sequence[PartitionCensus], name: str
) -> Sequence[PartitionAssignment]:
    """Return what says the split of the rows of each partition; a split by time may read rows again."""

    def read_again(function: Callable[..., Any]) -> list[Any]:
        assert rows is not None
        return ask(rows, f"{name}-again", functools.partial(_look_again, dropping, function), dropping, split.columns)

    return split.plan([one.split for one in census], read_again)


def _look_again(
    dropping: Mapping[str, Contract], function: Callable[..., Any], told: Surroundings, parsed: Parsed, table: pa.Table
) -> Any:
    return function(table, kept_rows(dropping, parsed.columns))


def told_edges(features: Mapping[str, Contract], edges: Sequence[Mapping[str, Any]]) -> list[Surroundings]:
    """Turn what every partition said of its edges into what completes the columns of each."""
    carries = {
        name: _carries(neighbours, [one[name] for one in edges])
        for name, feature in features.items()
        if edges and name in edges[0] and (neighbours := feature.around) is not None
    }
    if not carries:
        return untold(len(edges))
    return [Surroundings(i, {name: told[i] for name, told in carries.items()}) for i in range(len(edges))]


def _carries(neighbours: Neighbours, edges: Sequence[Any]) -> Sequence[Any]:
    if not (neighbours.apart and isinstance(edges[0], dict)):
        return neighbours.carries(edges)
    by_split = [neighbours.carries([edge[code] for edge in edges]) for code in edges[0]]
    return [dict(zip(edges[0], told, strict=True)) for told in zip(*by_split, strict=True)]


def begin(progress: Progress | None, stage: str, source: Source) -> Advance | None:
    """Begin a stage, if it is to be shown: then, results of partitions travel one by one."""
    if progress is None or not progress.enabled:
        return None
    return progress.stage(stage, total=source.npartitions, unit="partitions")


# -- the folds by which features encode training rows from others: each row of a source is in one


def fold_columns(features: Mapping[str, Contract]) -> list[str]:
    """Return the columns that say in which fold a row is, each once."""
    return list(dict.fromkeys(column for folds in _folds_of(features).values() for column in folds.columns))


def tell_folds(rows: Rows, features: Mapping[str, Contract], told: Sequence[Surroundings]) -> list[Surroundings]:
    """Tell every partition the folds of its rows, for each feature that cross-fits.

    Which fold a row is in does not depend on its split, nor on features that drop rows: all rows of the source are in
    one. Where the numbers of rows are known and no column decides, nothing is read.
    """
    plans: dict[str, Any] = {}
    by_feature: dict[str, Any] = {}
    for name, folds in _folds_of(features).items():
        key = str(folds.to_dict())
        if key not in plans:
            with naming(name):
                census = ask(rows, "folds", functools.partial(take_census, {}, folds), {}, folds.columns)
                plans[key] = planned(rows, folds, {}, census, "folds")
        by_feature[name] = plans[key]
    if not plans:
        return list(told)
    return [
        dataclasses.replace(one, cross_fit={name: plan[place] for name, plan in by_feature.items()})
        for place, one in enumerate(told)
    ]


def told_unread(rows: Rows, features: Mapping[str, Contract], split: Splitter | None) -> list[Surroundings] | None:
    """Return what each partition must know before learning if nothing need be read for it, else None."""
    told = told_ahead(rows.source, features, split)
    if _folds_of(features) and (rows.source.row_counts is None or fold_columns(features)):
        return None
    return told and tell_folds(rows, features, told)


def put_in_folds(
    features: Mapping[str, Contract],
    told: Surroundings,
    table: pa.Table,
    columns: dict[str, pa.Array],
    training: np.ndarray,
) -> None:
    """Let completed columns say the fold of each training row, from 1 on, and 0 for rows that are not for training."""
    for name, assignment in told.cross_fit.items():
        if name in columns:
            folds = np.where(training, assignment.assign(table, None).astype(np.int16) + 1, 0)
            columns[name] = features[name]._put_in_folds(columns[name], folds)


def _folds_of(features: Mapping[str, Contract]) -> dict[str, KFold]:
    return {name: folds for name, feature in features.items() if (folds := feature._cross_fit) is not None}
