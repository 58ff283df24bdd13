"""Which rows are for training, which for validation, which for testing: one class for each way to choose."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from daskprep.classes import RowCounts, largest_remainder
from daskprep.errors import ConfigError, did_you_mean
from daskprep.split.base import DROPPED, TEST, TRAIN, VALIDATION, PartitionAssignment, Splitter
from daskprep.split.columns import FixedSplit, HashSplit
from daskprep.split.random import RandomSplit, StratifiedSplit
from daskprep.split.times import DatetimeSplit, TimeCounts

__all__ = [
    "DROPPED", "SPLITS", "TEST", "TRAIN", "VALIDATION", "DatetimeSplit", "FixedSplit", "HashSplit",
    "PartitionAssignment", "RandomSplit", "RowCounts", "Splitter", "StratifiedSplit", "TimeCounts",
    "largest_remainder", "split_from_dict",
]  # fmt: skip

SPLITS: dict[str, type[Splitter]] = {
    split.type: split for split in (RandomSplit, StratifiedSplit, FixedSplit, DatetimeSplit, HashSplit)
}


def split_from_dict(data: Mapping[str, Any] | None) -> Splitter | None:
    """Make the split that `to_dict` described, None of None; unknown names are errors with a suggestion."""
    if data is None:
        return None
    parameters = dict(data)
    name = parameters.pop("type", None)
    if name not in SPLITS:
        hint = did_you_mean(name, SPLITS)
        raise ConfigError(f"There is no split of type {name!r}.{hint} The types are {', '.join(SPLITS)}.")
    known = inspect.signature(SPLITS[name]).parameters
    for unknown in sorted(parameters.keys() - known.keys()):
        hint = did_you_mean(unknown, known)
        raise ConfigError(f'Split "{name}" has no parameter "{unknown}".{hint} It has {", ".join(known)}.')
    try:
        return SPLITS[name](**parameters)
    except TypeError as error:
        raise ConfigError(f'Split "{name}": {error}. Give this parameter.') from None
