"""How strongly columns go together: on a sample of training rows, for each pair of numbers and classes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from daskprep.dataset import Split
from daskprep.report.measures import Column

SAMPLE_ROWS = 10_000
_PIECES = 10  # of neighbouring rows, evenly spaced
_MOST_CLASSES = 20  # the most frequent; all others are one more
_BINS = 50  # of numbers, where they predict a target
_PREDICTS = 0.95


def sample_scalars(split: Split, columns: Sequence[Column]) -> pd.DataFrame:
    """Return up to 10,000 encoded rows of all outputs that are one number or class a row; numbers are floats."""
    scalars = [one for one in columns if one.output.is_scalar and one.feature.holds in ("numbers", "classes")]
    if not scalars:
        return pd.DataFrame()
    length = SAMPLE_ROWS // _PIECES
    starts = np.linspace(0, len(split) - length, _PIECES).astype(int).tolist()
    pieces = [(start, start + length) for start in starts] if len(split) > SAMPLE_ROWS else [(0, len(split))]
    types = {one.output.name: np.float64 if one.feature.holds == "numbers" else np.int64 for one in scalars}
    rows = [pd.DataFrame(split.read(list(types), *piece)) for piece in pieces]
    return pd.concat(rows, ignore_index=True).astype(types)


def associate(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return all pairs of columns that have more than one value, from 1 (one tells the other) to 0."""
    rows = rows[[name for name in rows if len(rows[name].unique()) > 1]]
    groups = {name: _groups(rows[name]) for name in rows}
    ranks = rows.select_dtypes("float").rank()
    ranks -= ranks.mean()
    units = {name: (ranks[name] / np.linalg.norm(ranks[name])).to_numpy() for name in ranks}
    pairs = []
    for first, second in combinations(rows, 2):
        if first in units and second in units:
            measure, strength = "Spearman", min(abs(float(units[first] @ units[second])), 1.0)
        elif first in units or second in units:
            numbers, classes = (first, second) if first in units else (second, first)
            measure, strength = "correlation ratio", _ratio(groups[classes], units[numbers])
        else:
            measure, strength = "Cramér's V", _cramer(groups[first], groups[second])
        pairs.append({"first": first, "second": second, "measure": measure, "strength": strength})
    return sorted(pairs, key=lambda pair: -pair["strength"])


def suspects(rows: pd.DataFrame, targets: Collection[str]) -> list[tuple[str, str]]:
    """Return which column alone tells which target, almost without an error."""
    groups = {str(name): _groups(rows[name]) for name in rows}
    pairs = [(name, target) for target in targets if target in groups for name in groups if name not in targets]
    return [pair for pair in pairs if _cramer(*(groups[name] for name in pair)) >= _PREDICTS]


def _groups(values: pd.Series) -> np.ndarray:
    """Return small ids: of the most frequent classes, or of quantiles of numbers."""
    if values.dtype == np.float64:
        return np.minimum(values.rank(pct=True).to_numpy() * _BINS, _BINS - 1).astype(np.int64)
    ranks = pd.Series(range(values.nunique()), values.value_counts().index)
    return np.minimum(ranks[values].to_numpy(), _MOST_CLASSES)


def _cramer(first: np.ndarray, second: np.ndarray) -> float:
    """Return Cramér's V without the bias of few rows in many classes."""
    width = int(second.max()) + 1
    crossed = np.bincount(first * width + second, minlength=(int(first.max()) + 1) * width).reshape(-1, width)
    crossed = crossed[crossed.any(axis=1)][:, crossed.any(axis=0)].astype(np.float64)
    total, few, (rows, columns) = len(first), max(len(first) - 1, 1), crossed.shape
    expected = crossed.sum(axis=1)[:, None] * crossed.sum(axis=0) / total
    phi = float(((crossed - expected) ** 2 / expected).sum()) / total - (rows - 1) * (columns - 1) / few
    least = min(rows - (rows - 1) ** 2 / few, columns - (columns - 1) ** 2 / few) - 1
    return min(max(phi, 0.0) / least, 1.0) ** 0.5 if least > 0 else 0.0


def _ratio(groups: np.ndarray, ranks: np.ndarray) -> float:
    """Return the correlation ratio of ranks, whose squares add up to 1, less what chance explains of them."""
    counts = np.bincount(groups)
    explained = float((np.bincount(groups, ranks) ** 2 / np.maximum(counts, 1)).sum())
    left = len(ranks) - int(np.count_nonzero(counts))
    return min(max(1 - (1 - explained) * (len(ranks) - 1) / left, 0.0), 1.0) ** 0.5 if left else 0.0
