"""How far the rows of one split are distributed otherwise than those of another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from daskprep.report.measures import ClassTally, Dates, Spread
from daskprep.summaries import Quantiles

_BINS = 10
_MOST_CLASSES = 20
HIGH = 0.2


class Drift(NamedTuple):
    """The population stability index against the first split, and what of it chance alone would give."""

    psi: float
    chance: float

    @property
    def is_high(self) -> bool:
        return self.psi - 2 * self.chance > HIGH


def drifts(found: Mapping[str, Any]) -> dict[str, Drift]:
    """Return the drift of each further split, where what was counted of a column allows it."""
    first, *others = found
    counted = {split: _binned(found[first], found[split]) for split in others}
    return {split: _drift(*both) for split, both in counted.items() if both is not None}


def _binned(first: Any, other: Any) -> tuple[np.ndarray, np.ndarray] | None:
    if isinstance(first, Spread):
        return _by_quantiles(first.distances, other.distances)
    if isinstance(first, Dates):
        return _by_quantiles(first.days, other.days)
    if isinstance(first, ClassTally):
        size = max(len(first.counts), len(other.counts))
        one, two = (np.pad(counts, (0, size - len(counts))) for counts in (first.counts, other.counts))
        order = np.argsort(-one, kind="stable")
        shown = order[: min(_MOST_CLASSES, int(np.count_nonzero(one)))]
        return _and_others(one, shown), _and_others(two, shown)
    return None


def _and_others(counts: np.ndarray, shown: np.ndarray) -> np.ndarray:
    return np.append(counts[shown], counts.sum() - counts[shown].sum())


def _by_quantiles(first: Quantiles, other: Quantiles) -> tuple[np.ndarray, np.ndarray] | None:
    if not first.count or not other.count:
        return None
    cuts = np.unique([first.quantile(place / _BINS) for place in range(1, _BINS)])
    one, two = (
        np.bincount(np.searchsorted(cuts, part.values(), side="right"), part.counts, len(cuts) + 1)
        for part in (first, other)
    )
    return one, two


def _drift(first: np.ndarray, other: np.ndarray) -> Drift:
    kept = first + other > 0
    rows = max(first.sum(), 1), max(other.sum(), 1)
    # Half a row in each bin: a logarithm of nothing is none.
    one, two = ((counts[kept] + 0.5) / (counts[kept] + 0.5).sum() for counts in (first, other))
    psi = float(((one - two) * np.log(one / two)).sum())
    return Drift(psi, float((int(kept.sum()) - 1) * (1 / rows[0] + 1 / rows[1])))
