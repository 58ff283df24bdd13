"""Say of every row which split it belongs to and how often it is written."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from sklearn.base import BaseEstimator

from daskprep import partitions
from daskprep.balance import Balance
from daskprep.described import is_whole, plain
from daskprep.errors import ConfigError
from daskprep.features import Feature
from daskprep.features.base import dropped_rows, may_drop_rows
from daskprep.features.fitting import located
from daskprep.features.surroundings import Rows, ask, assigning_columns, dropping_missing, survey, told_edges, untold
from daskprep.features.table import Parsed, Surroundings, edges_of, kept_rows, naming
from daskprep.sources import Source
from daskprep.sources.composed import SPLIT, some_rows, splits_of
from daskprep.split import DROPPED, TEST, TRAIN, VALIDATION, FixedSplit, RandomSplit, Splitter
from daskprep.split.random import RandomAssignment, sample_rows
from daskprep.split.time_series import Periods
from daskprep.storage.kept import keepable

Keep = Callable[[Surroundings, Parsed, np.ndarray, np.ndarray], int]


@keepable
@dataclass(frozen=True)
class Counted:
    """What one partition gives."""

    rows: int  # in the source
    counts: tuple[int, ...]  # of train, validation and test, repeated rows as often as they are written
    edges: Mapping[str, Any] = field(default_factory=dict)  # what columns of others must know of it, by feature
    rejects: int = 0  # reasons for which rows are left out, if these are kept
    left_out: int = 0  # rows that belong to no split, since a cell is missing or cannot be used


@dataclass(frozen=True)
class Assignment:
    """What decides which split a row belongs to, and how often it is written.

    With `learned`, rows that encoding leaves out besides those of missing cells (outliers, labels that were not seen)
    are taken from their splits. The split itself is that of learning, over all rows whose cells can be read.
    """

    features: Mapping[str, Feature]
    split: Splitter | None = None
    balance: Balance | None = None
    learned: Mapping[str, Any] | None = None

    def located(self, source: Source) -> Assignment:
        """Return the assignment of a source that has all the columns that are read."""
        return dataclasses.replace(self, features=located(self.features, source, self.columns))

    @property
    def columns(self) -> list[str]:
        """The columns that split and balance read."""
        return assigning_columns(self.split, self.balance)

    @functools.cached_property
    def dropping(self) -> dict[str, Feature]:
        """The features that may leave rows out."""
        if self.learned is None:
            return dropping_missing(self.features)
        return {name: feature for name, feature in self.features.items() if may_drop_rows(feature)}

    @property
    def by_numbers(self) -> bool:
        """Whether the numbers of rows say all, and no cell is looked at."""
        return not (self.dropping or self.columns)

    # -- for all partitions

    def told(self, rows: Rows) -> list[Surroundings]:
        """Return what each partition must know to assign its rows, in as few passes as will do."""
        return self.balanced(rows, survey(rows, dropping_missing(self.features), self.split))

    def balanced(self, rows: Rows, told: list[Surroundings]) -> list[Surroundings]:
        """Return what each partition is told, and the repeats that the balance plans for it besides."""
        if self.balance is None:
            return told
        plans = self.balance.plan(ask(rows, "balance", self._count_classes, self.dropping, self.columns, told))
        return [dataclasses.replace(one, repeats=plan) for one, plan in zip(told, plans, strict=True)]

    def counted(
        self,
        rows: Rows,
        told: Sequence[Surroundings],
        around: Mapping[str, Feature] | None = None,
        keep: Keep | None = None,
    ) -> tuple[list[Surroundings], list[Counted]]:
        """Count what each partition gives, and tell what completes the columns of features that look `around`.

        ``keep(told, parsed, splits, repeats)`` is called in the task of a partition and returns its number of rejects.
        """
        around = around or {}
        question = functools.partial(self.count, around, keep)
        counted = ask(rows, "count", question, {**self.dropping, **around}, self.columns, told)
        if not around:
            return list(told), counted
        edges = told_edges(around, [one.edges for one in counted])
        return [dataclasses.replace(a, carries=b.carries) for a, b in zip(told, edges, strict=True)], counted

    def arrays(self, source: Source, sample: float | None = None, seed: int = 0) -> dict[str, Any]:
        """Return the arrays "split" (uint8) and "repeats" (int64): NumPy for data in memory, lazy Dask arrays else.

        They have all rows of the source; those outside the sample are left out of all splits.
        """
        assignment, rows, chosen = self.located(source), Rows(source), _chosen(source, sample, seed)
        told = assignment.told(Rows(_sampled(source, chosen)))
        told = [dataclasses.replace(one, sample=choice) for one, choice in zip(told, chosen, strict=True)]
        empty: dict[str, np.ndarray] = {"split": np.empty(0, np.uint8), "repeats": np.empty(0, np.int64)}
        work = rows.asked(assignment._named, assignment.dropping, self.columns, told)
        return partitions.arrays(work, like=lambda: empty)

    # -- for one partition

    def assign(self, told: Surroundings, parsed: Parsed, table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        """Return of each row its split, and how often it is written."""
        splits = self._splits(told, parsed, table)
        if told.repeats is None:
            repeats = np.ones(len(splits), np.int64)
        else:
            repeats = np.asarray(told.repeats.repeats(table, splits == TRAIN), np.int64)
        repeats[splits == DROPPED] = 0
        return splits, repeats

    def _splits(self, told: Surroundings, parsed: Parsed, table: pa.Table) -> np.ndarray:
        keep = kept_rows(self.dropping, parsed.columns)
        if told.sample is not None:
            keep = np.logical_and(told.sample.is_train(parsed.rows), True if keep is None else keep)
        if told.rows is not None:
            splits = told.rows.assign(table, keep)
        else:
            splits = np.full(parsed.rows, TRAIN, np.uint8)
            splits[~keep if keep is not None else slice(0)] = DROPPED
        if self.learned is None:
            return splits
        for name, feature in self.dropping.items():
            learned = self.learned[name]
            with naming(name):
                dropped = dropped_rows(feature, learned.recognize(parsed.columns[name]), learned)
            if dropped is not None:
                splits[dropped] = DROPPED
        return splits

    def _named(self, told: Surroundings, parsed: Parsed, table: pa.Table) -> dict[str, np.ndarray]:
        splits, repeats = self.assign(told, parsed, table)
        if isinstance(told.rows, Periods) and told.rows.fold is None:
            splits = told.rows.fold_of(splits)
        return {"split": splits, "repeats": repeats}

    def _count_classes(self, told: Surroundings, parsed: Parsed, table: pa.Table) -> Any:
        assert self.balance is not None
        return self.balance.census(table, self._splits(told, parsed, table) == TRAIN)

    def count(
        self, around: Mapping[str, Feature], keep: Keep | None, told: Surroundings, parsed: Parsed, table: pa.Table
    ) -> Counted:
        """Count what a partition gives."""
        splits, repeats = self.assign(told, parsed, table)
        rejects = 0 if keep is None else keep(told, parsed, splits, repeats)
        counts = tuple(int(repeats[splits == code].sum()) for code in (TRAIN, VALIDATION, TEST))
        left_out = int(np.count_nonzero(splits == DROPPED))
        edges = edges_of(around, parsed, self.learned, None if self.split is None else splits)
        return Counted(len(splits), counts, edges, rejects, left_out)


def check_uses(split: Any, balance: Any, fit_on: Any, sample: Any, sample_seed: Any) -> None:
    """Raise ConfigError where what a Preprocessor says of the use of rows makes no sense."""
    if fit_on not in ("train", "all"):
        raise ConfigError(f'Preprocessor: fit_on must be "train" or "all", not {fit_on!r}')
    size = plain(sample)
    most = 1 if isinstance(size, float) else math.inf
    if size is not None and (isinstance(size, bool) or not isinstance(size, int | float) or not 0 < size <= most):
        raise ConfigError(f"Preprocessor: sample={sample!r}: give a share such as 0.1, or a number of rows")
    if not is_whole(sample_seed):
        raise ConfigError(f"Preprocessor: sample_seed={sample_seed!r}: expected a whole number")
    uses = (
        ("split", split, Splitter, "RandomSplit((0.7, 0.1, 0.2))"),
        ("balance", balance, Balance, 'Undersample("sold")'),
    )
    for name, given, kind, example in uses:
        if not isinstance(given, kind | None):
            raise ConfigError(f"Preprocessor: {name} must be an object such as {example}, or None, not {given!r}")
        if given is not None:
            given.validate()
    if fit_on == "all" and split is not None and split.folds:
        raise ConfigError(
            f'Preprocessor: {type(split).__name__} without a fold needs fit_on="train": use that, or give it fold=0'
        )


def split_of_rows(frame: Any, split: Splitter | None) -> Splitter | None:
    """Return what says the split of rows: that which is given, or the splits by which the rows are given."""
    given = frame.values() if isinstance(frame, Mapping) else [frame]
    if any(isinstance(one, BaseEstimator) for one in given):
        raise ConfigError("Preprocessor: expected rows, not features: pass features to Preprocessor(features)")
    if not splits_of(frame):
        return split
    column = FixedSplit(SPLIT)
    # A configuration that says nothing of splits has the second.
    if split is not None and split.to_dict() not in (column.to_dict(), RandomSplit().to_dict()):
        raise ConfigError(
            f"Preprocessor: the data is given by split, and {split!r} would split it again: leave it out "
            "(split=None, in a configuration split: null), or give all rows as one source"
        )
    return column


def sampled(source: Source, sample: float | None, seed: int) -> Source:
    """Return a source of a share of the rows, or of so many; they are counted first where that is not known."""
    return _sampled(source, _chosen(source, sample, seed))


def _chosen(source: Source, sample: float | None, seed: int) -> Sequence[RandomAssignment | None]:
    if sample is None:
        return [None] * source.npartitions
    _, counted = Assignment({}).counted(Rows(source), untold(source.npartitions))
    return sample_rows([one.rows for one in counted], plain(sample), plain(seed))


def _sampled(source: Source, chosen: Sequence[RandomAssignment | None]) -> Source:
    masks = [one.is_train for one in chosen if one is not None]
    return some_rows(source, masks, partitions.run("count", _count_chosen, None, chosen)) if masks else source


def _count_chosen(shared: None, choice: RandomAssignment) -> int:
    return int(np.count_nonzero(choice.is_train(len(choice.ranks))))
