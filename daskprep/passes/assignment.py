"""Assignment of every row to a split, and the number of times that a balance writes it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from daskprep.columns.parametrized import is_integer, to_json_value
from daskprep.errors import ConfigError
from daskprep.features.base import Contract, find_dropped_rows, may_drop_rows
from daskprep.features.checking import column_error_context
from daskprep.passes.borders import BorderFiles
from daskprep.passes.contexts import ContextPlan, assignment_columns, exchange_borders
from daskprep.passes.engine import PartitionReader, Pass, run_pass
from daskprep.passes.fitting import bind_features
from daskprep.passes.table import (
    Parsed,
    PartitionCensus,
    PartitionContext,
    collect_borders,
    complete_column,
    kept_rows,
    select_dropping_features,
)
from daskprep.sources import Source, partitions
from daskprep.sources.balance import Balance
from daskprep.sources.opening import SPLIT, get_splits, select_rows
from daskprep.sources.split import DROPPED, TEST, TRAIN, VALIDATION, FixedSplit, RandomSplit, Splitter
from daskprep.sources.split.folds import PeriodAssignment
from daskprep.sources.split.rows import RandomAssignment, sample_rows
from daskprep.storage.files import Folder

DroppedCells = tuple[pa.Array, np.ndarray]
"""The cells of a feature, and a mask of those that drop their row."""
RejectWriter = Callable[[PartitionContext, Parsed, np.ndarray, np.ndarray, Mapping[str, DroppedCells]], Any]


@dataclass(frozen=True)
class Assignment:
    """The rules that assign each row to a split, and how often they write it."""

    features: Mapping[str, Contract]  # also those that drop rows
    split: Splitter | None = None
    balance: Balance | None = None
    # Learned states, to also drop rows that only encoding drops: outliers and unseen labels. These rows still count in
    # the split, which is the same as during fitting.
    learned: Mapping[str, Any] | None = None

    def bind_features(self, source: Source) -> Assignment:
        """Return the assignment with its features bound to a source."""
        return dataclasses.replace(self, features=bind_features(self.features, source, self.columns))

    @property
    def columns(self) -> list[str]:
        return assignment_columns(self.split, self.balance)

    @functools.cached_property
    def dropping(self) -> dict[str, Contract]:
        if self.learned is None:
            return select_dropping_features(self.features)
        return {name: feature for name, feature in self.features.items() if may_drop_rows(feature)}

    def make_contexts(
        self, reader: PartitionReader, cross_fitted: Mapping[str, Contract] = MappingProxyType({})
    ) -> list[PartitionContext]:
        """Return a context for each partition, in few passes, with folds of the features `cross_fitted`."""
        plan = ContextPlan(select_dropping_features(self.features), self.split, cross_fitted)
        return self.add_repeats(reader, plan.make_contexts(reader))

    def add_repeats(
        self, reader: PartitionReader, contexts: list[PartitionContext], scratch: Folder | None = None
    ) -> list[PartitionContext]:
        """Return contexts with the borders of windows that drop rows, and the repeats that the balance plans.

        Each takes a pass, if there are such windows or a balance; in this order. Large borders are in files below
        `scratch`.
        """
        if windows := self._dropping_windows:
            files = None if scratch is None else BorderFiles.of(reader.source, scratch / "dropping")

            def collect(context: PartitionContext, parsed: Parsed, table: pa.Table) -> dict[str, Any]:
                splits = None if self.split is None else self._find_dropped(context, parsed, table)[0]
                borders = collect_borders(windows, parsed, self.learned, splits)
                return borders if files is None else files.save(context.number, borders)

            work = Pass("census", collect, {**self.dropping, **windows}, self.columns)
            contexts = exchange_borders(windows, run_pass(reader, work, contexts), contexts, files)
        if (balance := self.balance) is None:
            return contexts

        def count_classes(context: PartitionContext, parsed: Parsed, table: pa.Table) -> Any:
            return balance.census(table, self._splits(context, parsed, table) == TRAIN)

        plans = balance.plan(run_pass(reader, Pass("balance", count_classes, self.dropping, self.columns), contexts))
        return [dataclasses.replace(context, repeats=plan) for context, plan in zip(contexts, plans, strict=True)]

    def count_partitions(
        self,
        reader: PartitionReader,
        contexts: Sequence[PartitionContext],
        border_features: Mapping[str, Contract] | None = None,
        store_rejects: RejectWriter | None = None,
        scratch: Folder | None = None,
    ) -> tuple[list[PartitionContext], list[PartitionCensus]]:
        """Return the contexts, and the counts of rows by split.

        The contexts also get the border values from other partitions for `border_features`, which impute across
        partitions; large borders are in files in `scratch`. ``store_rejects(context, parsed, splits, repeats,
        dropped)`` is called in the task of each partition, and counts have its result; `dropped` has cells and a mask
        of dropped rows by feature.
        """
        windows = self._dropping_windows  # contexts have their borders
        border_features = {name: one for name, one in (border_features or {}).items() if name not in windows}
        files = None if scratch is None else BorderFiles.of(reader.source, scratch)

        def count(context: PartitionContext, parsed: Parsed, table: pa.Table) -> PartitionCensus:
            splits, dropped = self._find_dropped(context, parsed, table)
            repeats = self._repeats(context, table, splits)
            rejects = 0 if store_rejects is None else store_rejects(context, parsed, splits, repeats, dropped)
            borders = collect_borders(border_features, parsed, self.learned, None if self.split is None else splits)
            borders = borders if files is None else files.save(context.number, borders)
            left_out = int(np.count_nonzero(splits == DROPPED))
            counts = tuple(int(repeats[splits == code].sum()) for code in (TRAIN, VALIDATION, TEST))
            return PartitionCensus(len(splits), borders, None, counts, rejects, left_out)

        work = Pass("count", count, {**self.dropping, **border_features}, self.columns)
        census = run_pass(reader, work, contexts)
        return exchange_borders(border_features, [partition.borders for partition in census], contexts, files), census

    def arrays(self, source: Source, sample: float | None = None, seed: int = 0) -> dict[str, Any]:
        """Return the arrays "split" (uint8) and "repeats" (int64).

        They are NumPy arrays for data in memory, and lazy Dask arrays otherwise. Rows outside the sample are `DROPPED`.
        """
        assignment = self.bind_features(source)
        if sample is None:
            contexts = assignment.make_contexts(PartitionReader(source))
        else:
            samples = _choose_samples(source, sample, seed)
            contexts = assignment.make_contexts(PartitionReader(_select_rows(source, samples)))
            contexts = [
                dataclasses.replace(context, sample=sample) for context, sample in zip(contexts, samples, strict=True)
            ]
        empty: dict[str, np.ndarray] = {"split": np.empty(0, np.uint8), "repeats": np.empty(0, np.int64)}

        def assign(context: PartitionContext, parsed: Parsed, table: pa.Table) -> dict[str, np.ndarray]:
            rows = parsed.rows
            chosen = np.ones(rows, bool) if context.sample is None else context.sample.is_train(rows)
            if context.sample is not None:  # windows are cut between the rows of the sample, as in a write
                mask = pa.array(chosen)
                columns = {name: cells.filter(mask) for name, cells in parsed.columns.items()}
                parsed = dataclasses.replace(parsed, rows=int(chosen.sum()), columns=columns)
                table = table.filter(mask)
            splits, repeats = assignment.assign(context, parsed, table)
            if isinstance(context.assignment, PeriodAssignment) and context.assignment.fold is None:
                splits = context.assignment.fold_of(splits)
            of_rows = {"split": np.full(rows, DROPPED, splits.dtype), "repeats": np.zeros(rows, np.int64)}
            of_rows["split"][chosen], of_rows["repeats"][chosen] = splits, repeats
            return of_rows

        work = Pass("encode", assign, assignment.dropping, self.columns)
        return partitions.build_arrays(PartitionReader(source).work(work, contexts), like=lambda: empty)

    def assign(self, context: PartitionContext, parsed: Parsed, table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        """Return the split and the repeats of each row."""
        splits = self._splits(context, parsed, table)
        return splits, self._repeats(context, table, splits)

    def _repeats(self, context: PartitionContext, table: pa.Table, splits: np.ndarray) -> np.ndarray:
        """Return how often each row is written; 0 if it is dropped."""
        if context.repeats is None:
            repeats = np.ones(len(splits), np.int64)
        else:
            repeats = np.asarray(context.repeats.repeats(table, splits == TRAIN), np.int64)
        repeats[splits == DROPPED] = 0
        return repeats

    def _splits(self, context: PartitionContext, parsed: Parsed, table: pa.Table) -> np.ndarray:
        """Return the split of each row of a partition."""
        return self._find_dropped(context, parsed, table)[0]

    def _find_dropped(
        self, context: PartitionContext, parsed: Parsed, table: pa.Table
    ) -> tuple[np.ndarray, dict[str, DroppedCells]]:
        """Return the split of each row, and the cells that drop rows.

        Windows are cut between rows of splits from before any window drops rows. Without their borders, none does.
        """
        keep = kept_rows(self.dropping, parsed.columns)
        if context.assignment is not None:
            splits = context.assignment.assign(table, keep)
        else:
            splits = np.full(parsed.rows, TRAIN, np.uint8)
            splits[~keep if keep is not None else slice(0)] = DROPPED
        dropping: dict[str, DroppedCells] = {}
        if self.learned is None:
            return splits, dropping
        windows = [name for name in self._dropping_windows if name in context.border_values]
        for name in (*(name for name in self.dropping if name not in self._dropping_windows), *windows):
            feature, learned, cells = self.dropping[name], self.learned[name], parsed.columns[name]
            with column_error_context(name):
                known = learned.mask_unlearned(cells)
                if name in windows and feature.imputer is not None:
                    cells = known = complete_column(
                        feature.imputer, known, context.border_values[name], learned, splits
                    )
                dropped = find_dropped_rows(feature, known, learned)
            if dropped is not None:
                dropping[name] = cells, dropped
                if name in windows:
                    dropped &= splits != DROPPED
                else:
                    splits[dropped] = DROPPED
        for name in windows:
            splits[dropping[name][1]] = DROPPED
        return splits, dropping

    @property
    def _dropping_windows(self) -> dict[str, Contract]:
        """The features that drop rows with an incomplete window."""
        return {} if self.learned is None else {name: one for name, one in self.dropping.items() if one._drops_windows}


def check_row_parameters(split: Any, balance: Any, fit_on: Any, sample: Any, sample_seed: Any) -> None:
    """Raise ConfigError for invalid parameters about rows."""
    if fit_on not in ("train", "all"):
        raise ConfigError(f'Preprocessor: fit_on must be "train" or "all", not {fit_on!r}')
    size = to_json_value(sample)
    max_size = 1 if isinstance(size, float) else math.inf
    if size is not None and (isinstance(size, bool) or not isinstance(size, int | float) or not 0 < size <= max_size):
        raise ConfigError(f"Preprocessor: sample={sample!r}: pass a share such as 0.1, or a number of rows")
    if not is_integer(sample_seed):
        raise ConfigError(f"Preprocessor: sample_seed={sample_seed!r}: expected an integer")
    parameters = (
        ("split", split, Splitter, "RandomSplit((0.7, 0.1, 0.2))"),
        ("balance", balance, Balance, 'Oversample("sold", ratio=0.5)'),
    )
    for name, value, kind, example in parameters:
        if not isinstance(value, kind | None):
            raise ConfigError(f"Preprocessor: {name} must be an object such as {example}, or None, not {value!r}")
        if value is not None:
            value.validate()
    if fit_on == "all" and split is not None and split.folds:
        raise ConfigError(
            f'Preprocessor: {type(split).__name__} without a fold needs fit_on="train": use that, or pass it fold=0'
        )


def resolve_split(frame: Any, split: Splitter | None, *, is_fitted: bool = False) -> Splitter | None:
    """Return `split`, or the FixedSplit of a dict of frames.

    Raise ConfigError for both, unless rows are new to a fitted Preprocessor, whose split they need not follow.
    """
    frames = frame.values() if isinstance(frame, Mapping) else [frame]
    if any(hasattr(item, "get_params") for item in frames):
        raise ConfigError("Preprocessor: expected rows, not features: pass features to Preprocessor(features)")
    if not get_splits(frame):
        return split
    column = FixedSplit(SPLIT)
    # RandomSplit() is allowed, because it is the default of a configuration without a split.
    if split is not None and not is_fitted and split.to_dict() not in (column.to_dict(), RandomSplit().to_dict()):
        raise ConfigError(
            f"Preprocessor: the data is already split, and {split!r} would split it again: leave it out "
            "(split=None, in a configuration split: null), or pass all rows as one source"
        )
    return column


def take_sample(source: Source, sample: float | None, seed: int) -> Source:
    """Return a source of a random sample of the rows, which takes a pass if their number is unknown."""
    return source if sample is None else _select_rows(source, _choose_samples(source, sample, seed))


def _choose_samples(source: Source, sample: float, seed: int) -> Sequence[RandomAssignment]:
    rows = run_pass(PartitionReader(source), Pass("count", lambda context, parsed, table: parsed.rows))
    return sample_rows(rows, to_json_value(sample), to_json_value(seed))


def _select_rows(source: Source, samples: Sequence[RandomAssignment]) -> Source:
    rows = partitions.run_tasks("count", _count_sampled_rows, None, samples)
    return select_rows(source, [sample.is_train for sample in samples], rows)


def _count_sampled_rows(shared: None, sample: RandomAssignment) -> int:
    return int(np.count_nonzero(sample.is_train(len(sample.ranks))))
