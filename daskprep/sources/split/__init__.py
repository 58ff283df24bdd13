"""Splits of rows into training, validation and test sets, or into folds.

In: columns of a partition, and counts of others. Out: the split of each row, the same for any partitioning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daskprep.columns.parametrized import make_from_dict
from daskprep.sources.split.base import DROPPED, TEST, TRAIN, VALIDATION, PartitionAssignment, Splitter
from daskprep.sources.split.folds import KFold, TimeSeriesSplit
from daskprep.sources.split.groups import GroupSplit
from daskprep.sources.split.rows import FixedSplit, HashSplit, RandomSplit, StratifiedSplit
from daskprep.sources.split.times import DatetimeSplit

__all__ = [
    "DROPPED", "SPLITS", "TEST", "TRAIN", "VALIDATION", "DatetimeSplit", "FixedSplit", "GroupSplit", "HashSplit",
    "KFold", "PartitionAssignment", "RandomSplit", "Splitter", "StratifiedSplit", "TimeSeriesSplit", "split_from_dict",
]  # fmt: skip

_SPLITS = RandomSplit, StratifiedSplit, FixedSplit, DatetimeSplit, HashSplit, GroupSplit, KFold, TimeSeriesSplit
SPLITS: dict[str, type[Splitter]] = {split.type: split for split in _SPLITS}


def split_from_dict(data: Mapping[str, Any] | None) -> Splitter | None:
    """Return the split for a result of `to_dict`, None for None; ConfigError for other types and parameters."""
    if data and (data.get("type") in ("datetime", "time_series") or data.get("time")):
        data = {"divide_times": True} | dict(data)  # as in splits saved before the parameter existed
    return make_from_dict("split", SPLITS, data)
