"""Say of every row which split it belongs to and how often it is written."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from daskprep import partitions
from daskprep.balance import Balance
from daskprep.features import Feature
from daskprep.features.fitting import beside, check_columns, survey
from daskprep.features.missing import dropped_rows, drops_missing, may_drop_rows
from daskprep.features.table import Parsed, Surroundings, kept_rows, naming, read_columns, source_columns
from daskprep.sources import Source
from daskprep.split import DROPPED, TRAIN, Split

__all__ = ["Planned", "Told", "assign_source", "plan_assignment", "row_repeats", "row_splits"]


@dataclass(frozen=True)
class Told:
    """What one partition must know to assign its rows."""

    around: Surroundings
    repeats: Any = None


@dataclass(frozen=True)
class Planned:
    """How the rows of a source are assigned.

    Attributes
    ----------
    dropping : dict
        The features that may leave rows out.
    columns : list of str
        What must be read to assign rows; maybe nothing, where their numbers are enough.
    told : list of Told
        What each partition must know.
    """

    dropping: Mapping[str, Feature]
    columns: list[str]
    told: list[Told]


def assign_source(
    features: Mapping[str, Feature],
    source: Source,
    split: Split | None,
    balance: Balance | None,
    learned: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the arrays "split" (uint8) and "repeats" (int64): NumPy for data in memory, lazy Dask arrays else.

    The split is that of learning, over the rows whose cells can be read. With `learned`, rows that encoding leaves
    out besides (outliers, labels that were not seen) are then taken from their splits.
    """
    planned = plan_assignment(features, source, split, balance, learned)
    like: dict[str, np.ndarray] = {"split": np.empty(0, np.uint8), "repeats": np.empty(0, np.int64)}
    columns = planned.columns or source.columns[:1]
    shared = (planned.dropping, learned)
    return partitions.arrays(source, _assign, columns, shared, planned.told, like=like, rows=source.row_counts)


def plan_assignment(
    features: Mapping[str, Feature],
    source: Source,
    split: Split | None,
    balance: Balance | None,
    learned: Mapping[str, Any] | None = None,
) -> Planned:
    """Find out what each partition must know to assign its rows, in as few passes over as few columns as will do."""
    check_columns(features, source)
    features = beside(features, source)
    dropping = {
        name: feature
        for name, feature in features.items()
        if (drops_missing(feature) if learned is None else may_drop_rows(feature))
    }
    columns = source_columns(dropping)
    for owner in (split, balance):
        if owner is not None:
            wanted = owner.assign_columns if isinstance(owner, Split) else owner.columns
            source.require(wanted)
            columns += [column for column in wanted if column not in columns]
    surveyed = {name: feature for name, feature in dropping.items() if drops_missing(feature)}
    told = [Told(around) for around in survey(surveyed, source, split)]
    if balance is not None:
        function = functools.partial(_balance_census, dropping, learned)
        counted = partitions.each(source, "balance", function, columns, balance, told)
        told = [Told(one.around, repeats) for one, repeats in zip(told, balance.plan(counted), strict=True)]
    return Planned(dropping, columns, told)


def row_splits(
    features: Mapping[str, Feature],
    learned: Mapping[str, Any] | None,
    around: Surroundings,
    parsed: Parsed,
    table: pa.Table,
) -> np.ndarray:
    """Return the split of each row of one partition; `features` are those that may drop rows.

    With `learned`, rows that encoding leaves out are taken from their splits.
    """
    keep = kept_rows(features, parsed.columns)
    if around.rows is not None:
        splits = around.rows.assign(table, keep)
    else:
        splits = np.full(parsed.rows, TRAIN, np.uint8)
        splits[~keep if keep is not None else slice(0)] = DROPPED
    for name, one in (learned or {}).items():
        if name not in features:
            continue
        with naming(name):
            dropped = dropped_rows(features[name], one.recognize(parsed.columns[name]), one)
        if dropped is not None:
            splits[dropped] = DROPPED
    return splits


def row_repeats(splits: np.ndarray, repeats: Any, table: pa.Table) -> np.ndarray:
    """Return how often each row is written; `repeats` is what the balance planned for the partition, if it did."""
    if repeats is None:
        times = np.ones(len(splits), np.int64)
    else:
        times = np.asarray(repeats.repeats(table, splits == TRAIN), np.int64)
    times[splits == DROPPED] = 0
    return times


def _splits(features: Mapping[str, Feature], learned: Any, around: Surroundings, table: pa.Table) -> np.ndarray:
    return row_splits(features, learned, around, read_columns(features, table), table)


def _balance_census(
    features: Mapping[str, Feature],
    learned: Mapping[str, Any] | None,
    balance: Balance,
    told: Told,
    table: pa.Table,
) -> Any:
    return balance.census(table, _splits(features, learned, told.around, table) == TRAIN)


def _assign(state: tuple[Any, Any], told: Told, table: pa.Table) -> dict[str, np.ndarray]:
    splits = _splits(*state, told.around, table)
    return {"split": splits, "repeats": row_repeats(splits, told.repeats, table)}
