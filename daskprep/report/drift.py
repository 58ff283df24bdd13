"""How far the rows of one split are distributed otherwise than those of another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from daskprep.report.measures import ClassTally, Dates
from daskprep.summaries import Quantiles

_BINS, _MOST_CLASSES = 10, 20
_HIGH = 0.2


def drifts(found: Mapping[str, Any]) -> dict[str, tuple[float, bool]]:
    """Return the population stability index of each further split against the first, and whether it is high.

    An index is high where it is so beyond twice of what chance alone makes of so few rows.
    """
    first, *others = found
    binned = {split: _binned(found[first], found[split]) for split in others}
    return {split: _index(*(part.astype(np.float64) for part in both)) for split, both in binned.items() if both}


def _binned(first: Any, other: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Count rows in bins: the most frequent classes and all others, or tenths of the first split."""
    if isinstance(first, ClassTally):
        one, two = first.counts, other.counts
        places = np.full(max(len(one), len(two)), _MOST_CLASSES)
        order = np.argsort(-one, kind="stable")[:_MOST_CLASSES]
        places[order] = np.arange(len(order))
        return np.bincount(places[: len(one)], one), np.bincount(places[: len(two)], two, int(places.max()) + 1)
    if not isinstance(first, Quantiles | Dates):
        return None
    parts = [one.days if isinstance(one, Dates) else one for one in (first, other)]
    if not all(len(part.keys) for part in parts):
        return None
    # By buckets that are as wide in both: the rows of a frequent value are then in the same bin.
    shift = max(one.shift for one in parts)
    keys = [one.keys >> (shift - one.shift) for one in parts]
    ranks = np.cumsum(parts[0].counts)
    cuts = np.unique(keys[0][np.searchsorted(ranks, ranks[-1] * np.arange(1, _BINS) / _BINS)])
    one, two = (
        np.bincount(np.searchsorted(cuts, of), part.counts, len(cuts) + 1) for of, part in zip(keys, parts, strict=True)
    )
    return one, two


def _index(first: np.ndarray, other: np.ndarray) -> tuple[float, bool]:
    first = np.pad(first, (0, len(other) - len(first)))
    kept = first + other > 0
    chance = (np.count_nonzero(kept) - 1) * (1 / max(first.sum(), 1) + 1 / max(other.sum(), 1))
    # Half a row in each bin: nothing has no logarithm.
    one, two = ((counts[kept] + 0.5) / (counts[kept] + 0.5).sum() for counts in (first, other))
    index = float(((one - two) * np.log(one / two)).sum())
    return index, index - 2 * float(chance) > _HIGH
