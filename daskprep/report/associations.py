"""How strongly columns go together: on a sample of training rows, for each pair of numbers and classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from daskprep.dataset import Split
from daskprep.report.measures import Column

SAMPLE_ROWS = 10_000
_PIECES = 10  # of neighbouring rows, evenly spaced
_MOST_CLASSES = 20  # the most frequent; all others are one more
_BINS = 50  # of numbers, where they predict classes
_FEW_ROWS = 50  # in which anything may predict anything
_PREDICTS = 0.95


@dataclass(frozen=True)
class Association:
    """A pair of outputs, from 0 (they tell nothing of each other) to 1."""

    first: str
    second: str
    measure: str
    strength: float


class _Sampled(NamedTuple):
    """The sample of a column: ranks of length 1 around 0 and bins of numbers, or groups alone of classes."""

    groups: np.ndarray
    ranks: np.ndarray | None = None


def sample_scalars(split: Split, columns: Sequence[Column]) -> dict[str, np.ndarray]:
    """Return up to 10,000 rows of the outputs that are one number or class a row, encoded."""
    scalars = [one for one in columns if one.output.is_scalar and one.feature.holds in ("numbers", "classes")]
    names = [one.output.name for one in scalars]
    if not names:
        return {}
    if len(split) <= SAMPLE_ROWS:
        return split.read(names)
    length = SAMPLE_ROWS // _PIECES
    starts = np.linspace(0, len(split) - length, _PIECES).astype(int).tolist()
    pieces = [split.read(names, start, start + length) for start in starts]
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in names}


def associate(rows: dict[str, np.ndarray], columns: Sequence[Column]) -> list[Association]:
    """Return all pairs of a sample whose columns have more than one value, the strongest first."""
    sampled = _sampled(rows, columns)
    pairs = [_pair(one, other, sampled[one], sampled[other]) for one, other in combinations(sampled, 2)]
    return sorted(pairs, key=lambda pair: -pair.strength)


def suspects(rows: dict[str, np.ndarray], columns: Sequence[Column], targets: Sequence[str]) -> list[tuple[str, str]]:
    """Return which output alone predicts which target, almost without an error."""
    sampled = _sampled(rows, columns)
    if not sampled or len(next(iter(rows.values()))) < _FEW_ROWS:
        return []
    return [
        (one, target)
        for target in targets
        for one in sampled
        if target in sampled and one not in targets and _predicts(sampled[one], sampled[target]) >= _PREDICTS
    ]


def duplicates(rows: dict[str, np.ndarray]) -> int:
    """Return how many rows of a sample equal an earlier one in all columns."""
    wide = np.stack([column.astype(np.float64) for column in rows.values()], axis=1)
    return len(wide) - len(np.unique(wide, axis=0))


def _sampled(rows: dict[str, np.ndarray], columns: Sequence[Column]) -> dict[str, _Sampled]:
    holds = {column.output.name: column.feature.holds for column in columns}
    sampled = {}
    for name, values in rows.items():
        _, ids, counts = np.unique(values, return_inverse=True, return_counts=True)
        if len(counts) < 2:
            continue
        if holds[name] == "classes":
            places = np.argsort(np.argsort(-counts, kind="stable"), kind="stable")
            sampled[name] = _Sampled(np.minimum(places[ids], _MOST_CLASSES))
        else:
            # Equal values have the mean of their ranks.
            ranks = (np.cumsum(counts) - (counts - 1) / 2)[ids]
            bins = np.minimum((ranks - 0.5) * min(_BINS, len(counts)) // len(values), _BINS - 1).astype(np.int64)
            ranks -= ranks.mean()
            sampled[name] = _Sampled(bins, ranks / np.linalg.norm(ranks))
    return sampled


def _pair(first: str, second: str, one: _Sampled, other: _Sampled) -> Association:
    if one.ranks is not None and other.ranks is not None:
        return Association(first, second, "Spearman", min(abs(float(one.ranks @ other.ranks)), 1.0))
    if one.ranks is None and other.ranks is None:
        return Association(first, second, "Cramér's V", _cramer(_crossed(one.groups, other.groups)))
    numbers, classes = (one, other) if one.ranks is not None else (other, one)
    assert numbers.ranks is not None
    return Association(first, second, "correlation ratio", _ratio(classes.groups, numbers.ranks))


def _crossed(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    width = int(second.max()) + 1
    counts = np.bincount(first * width + second, minlength=(int(first.max()) + 1) * width).reshape(-1, width)
    return counts[counts.any(axis=1)][:, counts.any(axis=0)].astype(np.float64)


def _cramer(crossed: np.ndarray) -> float:
    """Return Cramér's V without the bias of few rows in many classes."""
    total, (rows, columns) = crossed.sum(), crossed.shape
    expected = crossed.sum(axis=1)[:, None] * crossed.sum(axis=0) / total
    phi = float(((crossed - expected) ** 2 / expected).sum()) / total
    few = max(total - 1, 1)
    phi = max(phi - (rows - 1) * (columns - 1) / few, 0.0)
    least = min(rows - (rows - 1) ** 2 / few, columns - (columns - 1) ** 2 / few) - 1
    return min(float(phi / least) ** 0.5, 1.0) if least > 0 else 0.0


def _ratio(groups: np.ndarray, ranks: np.ndarray) -> float:
    """Return the correlation ratio of ranks, whose squares add up to 1, less what chance explains of them."""
    counts = np.bincount(groups)
    explained = float((np.bincount(groups, ranks) ** 2 / np.maximum(counts, 1)).sum())
    left, of = len(ranks) - int(np.count_nonzero(counts)), len(ranks) - 1
    return min(max(1 - (1 - explained) * of / left, 0.0), 1.0) ** 0.5 if left > 0 else 0.0


def _predicts(feature: _Sampled, target: _Sampled) -> float:
    """Return which part of a target a feature explains: of classes, the part of wrong guesses that it saves."""
    if target.ranks is not None:
        if feature.ranks is not None:
            return abs(float(feature.ranks @ target.ranks))
        return _ratio(feature.groups, target.ranks)
    crossed = _crossed(feature.groups, target.groups)
    often = crossed.sum(axis=0).max()
    return float((crossed.max(axis=1).sum() - often) / (crossed.sum() - often))
