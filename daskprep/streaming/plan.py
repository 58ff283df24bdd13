"""What is to be known of all partitions before one is streamed: what each is told, and how many rows it gives."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from daskprep import partitions
from daskprep.assignment import Planned, Told, plan_assignment, row_repeats, row_splits
from daskprep.errors import ColumnError, ConfigError
from daskprep.features.fitting import surroundings
from daskprep.features.table import PartitionCensus, census_columns, read_columns, source_columns
from daskprep.permutation import Integers
from daskprep.sources.base import rows_alone
from daskprep.writing.placement import SPLITS

if TYPE_CHECKING:
    from daskprep.balance import Balance
    from daskprep.features import Feature
    from daskprep.sources import Source
    from daskprep.split import Split

__all__ = ["Plan", "plan_stream"]


@dataclass(frozen=True)
class Plan:
    """What each partition of a source gives.

    Attributes
    ----------
    dropping : mapping
        The features that may leave rows out.
    columns : list of str
        What must be read to tell which rows these are.
    told : list of Told
        What each partition must know of the others.
    source_rows : ndarray
        Rows of each partition in the source.
    counts : ndarray
        Rows that each partition gives to each split, repeated ones as often as they are given.
    """

    dropping: Mapping[str, Feature]
    columns: list[str]
    told: list[Told]
    source_rows: Integers
    counts: Integers

    @functools.cached_property
    def first_rows(self) -> Integers:
        """The number in the source of the first row of each partition."""
        return np.cumsum(self.source_rows) - self.source_rows

    def sizes(self, split: str) -> Integers:
        """Return the rows that each partition gives to a split; ConfigError if no partition gives any."""
        sizes: Integers = self.counts[:, SPLITS[split]]
        if not sizes.any():
            totals = dict(zip(SPLITS, self.counts.sum(axis=0).tolist(), strict=True))
            known = ", ".join(f"{name} ({rows:,})" for name, rows in totals.items() if rows)
            raise ConfigError(f'split="{split}" has no rows; those with rows are: {known or "none"}')
        return sizes


@dataclass(frozen=True)
class _Counted:
    """What a partition gives, and what the others must know of it."""

    counts: tuple[int, ...]
    census: PartitionCensus


def plan_stream(
    features: Mapping[str, Feature],
    learned: Mapping[str, Any],
    source: Source,
    split: Split | None,
    balance: Balance | None,
    given: Collection[str],
) -> Plan:
    """Find out what each partition gives; nothing is read where the numbers of rows tell.

    `given` names the features whose outputs are given: only these are told what lies in other partitions.
    """
    if source.is_dask:
        partitions.check_apart(source, source.columns)
    planned = plan_assignment(features, source, split, balance, learned)
    around = {name: feature for name, feature in features.items() if feature.around is not None and name in given}
    counted = _count(planned, around, learned, source)
    if around:
        carries = [one.carries for one in surroundings(around, [one.census for one in counted], None, None)]
        planned = dataclasses.replace(
            planned,
            told=[
                Told(dataclasses.replace(one.around, carries=carry), one.repeats)
                for one, carry in zip(planned.told, carries, strict=True)
            ],
        )
    plan = Plan(
        planned.dropping,
        planned.columns,
        planned.told,
        np.array([one.census.rows for one in counted], np.int64),
        np.array([one.counts for one in counted], np.int64).reshape(-1, len(SPLITS)),
    )
    if not plan.source_rows.sum():
        raise ColumnError("the data has no rows: there is nothing to stream")
    return plan


def _count(
    planned: Planned, around: Mapping[str, Feature], learned: Mapping[str, Any], source: Source
) -> list[_Counted]:
    count = functools.partial(_count_partition, dict(planned.dropping), dict(around))
    if source.row_counts is not None and not planned.columns and not around:
        pairs = zip(planned.told, source.row_counts, strict=True)
        return [count(None, told, rows_alone(rows)) for told, rows in pairs]
    columns = list(dict.fromkeys([*planned.columns, *source_columns(around)])) or source.columns[:1]
    return partitions.each(source, "count", count, columns, dict(learned), planned.told)


def _count_partition(
    dropping: Mapping[str, Feature], around: Mapping[str, Feature], learned: Any, told: Told, table: pa.Table
) -> _Counted:
    parsed = read_columns({**dropping, **around}, table)
    splits = row_splits(dropping, learned, told.around, parsed, table)
    repeats = row_repeats(splits, told.repeats, table)
    counts = tuple(int(repeats[splits == code].sum()) for code in SPLITS.values())
    return _Counted(counts, census_columns(around, None, parsed, table, learned))
