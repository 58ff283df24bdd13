"""Splits of rows into training, validation and test sets, or into folds; see `daskprep.split.base` for the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daskprep.parametrized import make_from_dict
from daskprep.split.base import DROPPED, TEST, TRAIN, VALIDATION, PartitionAssignment, Splitter
from daskprep.split.folds import KFold, TimeSeriesSplit
from daskprep.split.groups import GroupSplit
from daskprep.split.rows import FixedSplit, HashSplit, RandomSplit, StratifiedSplit
from daskprep.split.times import DatetimeSplit

__all__ = [
    "DROPPED", "SPLITS", "TEST", "TRAIN", "VALIDATION", "DatetimeSplit", "FixedSplit", "GroupSplit", "HashSplit",
    "KFold", "PartitionAssignment", "RandomSplit", "Splitter", "StratifiedSplit", "TimeSeriesSplit", "split_from_dict",
]  # fmt: skip

_SPLITS = RandomSplit, StratifiedSplit, FixedSplit, DatetimeSplit, HashSplit, GroupSplit, KFold, TimeSeriesSplit
SPLITS: dict[str, type[Splitter]] = {split.type: split for split in _SPLITS}


def split_from_dict(data: Mapping[str, Any] | None) -> Splitter | None:
    """Return the split for a result of `to_dict`."""
    if data and (data.get("type") in ("datetime", "time_series") or data.get("time")):
        data = {"divide_times": True} | dict(data)  # as in splits saved before the parameter existed
    return make_from_dict("split", SPLITS, data)
