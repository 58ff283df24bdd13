"""What a report says of all features at once: overview, alerts, associations and drift, as JSON values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np

from daskprep.dataset import Dataset
from daskprep.display.words import share
from daskprep.features.base import drops_missing, rows_seen
from daskprep.report.associations import RowSample, associate, equals, predictions, suspects
from daskprep.report.measures import ClassTally, Column, Dates, Tokens
from daskprep.summaries import Quantiles
from daskprep.summaries.distinct_values import DistinctValues

Found: TypeAlias = Mapping[str, Mapping[str, Any]]

FORMAT, FORMAT_VERSION = "daskprep-report", 1
_MOST_PAIRS = 100
_MISSING, _IMBALANCED, _DUPLICATES = 0.3, 0.9, 0.01
_DRIFT_BINS, _DRIFT_CLASSES, _DRIFTING = 10, 20, 0.2
_SKEWED, _FEW_NUMBERS = 9, 10  # times as far from the median is one of the outer percentiles as the other
_GAP = 0.5  # of the range between these percentiles, without a value in it
_MANY_CLASSES, _MANY_SHARE = 50, 0.2
_STRAIGHT = frozenset({None, "zscore", "minmax", "iq", "robust"})  # normalizations that leave a skew as it is


def find(dataset: Dataset, columns: Sequence[Column], found: Found, sample: RowSample) -> dict[str, Any]:
    """Conclude from what was counted of all rows, and from a sample; docs/report.schema.json describes the result."""
    rows = sample.frame()
    pairs = associate(rows)
    targets = [column.output.name for column in columns if column.name in dataset.targets]
    predicted = predictions(rows, targets)
    strongest = _with_targets(pairs, targets)
    for (name, _), strength in predicted.items():
        strongest[name] = max(strength, strongest.get(name, 0.0))
    features: list[dict[str, Any]] = []
    alerts: list[dict[str, Any]] = []
    for name, outputs in groupby(columns, key=lambda column: column.name):
        column = next(outputs)
        counted = found[column.output.name]
        # Training rows that are cross-fitted are encoded in another way than those of other splits.
        drift = {} if column.feature._cross_fit else drifts(counted)
        facts = _facts(dataset, column, counted) | {"drift": {split: index for split, (index, _) in drift.items()}}
        features.append(facts | {"association_with_target": strongest.get(column.output.name)})
        high = [f"{split} (PSI {index:.2f})" for split, (index, is_high) in drift.items() if is_high]
        told = list(_alerts(facts, column, next(iter(counted.values()))))
        told += [("drift", f"is distributed differently in {', '.join(high)}")] * bool(high)
        alerts += [{"kind": kind, "feature": name, "text": text} for kind, text in told]
    for one, target in suspects(predicted):
        text = f'alone predicts the target "{target}" in the sampled rows: check that it is known at inference'
        alerts.append({"kind": "leakage", "feature": one, "text": text})
    for one, other in equals(rows, sample.columns):
        if other not in targets:
            alerts.append({"kind": "equal", "feature": other, "text": f'has the same values as "{one}": leave one out'})
    # Rows that balancing repeats are none of the source.
    alerts += [] if dataset.metadata.get("balance") else _duplicates(sample.equal)
    held = {"rows": dict(dataset.layout.rows), "features": len(dataset.features), "targets": list(dataset.targets)}
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "dataset": {"version": dataset.version} | held,
        "features": features,
        "alerts": alerts,
        "associations": pairs[:_MOST_PAIRS],
        "sampled_rows": len(rows),
    }


def _duplicates(rows: DistinctValues) -> list[dict[str, Any]]:
    counted = int(rows.counts.sum())
    equal = counted - len(rows.counts)
    if equal <= _DUPLICATES * counted:
        return []
    of = f"{counted:,} {'' if rows.is_exact else 'sampled '}rows"
    text = f"{share(equal, counted)} of {of} equal an earlier one in all features"
    return [{"kind": "duplicates", "feature": None, "text": text}]


def _with_targets(pairs: Sequence[Mapping[str, Any]], targets: Sequence[str]) -> dict[str, float]:
    """Return the strongest association of each other output with a target; pairs are in this order."""
    strongest: dict[str, float] = {}
    for pair in pairs:
        if len(names := {pair["first"], pair["second"]} - set(targets)) == 1:
            strongest.setdefault(names.pop(), pair["strength"])
    return strongest


def _facts(dataset: Dataset, column: Column, counted: Mapping[str, Any]) -> dict[str, Any]:
    learned = dataset.learned[column.name]
    return {
        "name": column.name,
        "type": column.feature.kind,
        "target": column.name in dataset.targets,
        "rows": rows_seen(column.feature, learned),
        "missing": learned.missing,
        "unreadable": learned.invalid,
        "distinct": _distinct(next(iter(counted.values()))),
    }


def _distinct(counted: Any) -> int | None:
    if isinstance(counted, ClassTally):
        return int(np.count_nonzero(counted.counts))
    found = counted.days if isinstance(counted, Dates) else counted
    return len(found.keys) if isinstance(found, Quantiles) and found.exact else None


def _alerts(facts: Mapping[str, Any], column: Column, first: Any) -> Iterator[tuple[str, str]]:
    distinct = facts["distinct"]
    if distinct == 1:
        yield "constant", "has a single value"
    elif isinstance(first, ClassTally) and not isinstance(first, Tokens):
        most, rows = int(first.counts.max()), int(first.counts.sum())
        if most >= _IMBALANCED * rows:
            yield "imbalance", f"has one class with {share(most, rows)} of the rows"
        if distinct > max(_MANY_CLASSES, _MANY_SHARE * rows):
            yield "high-cardinality", f"has {distinct:,} classes in {rows:,} rows"
    if (
        isinstance(first, Quantiles)
        and (distinct is None or distinct > _FEW_NUMBERS)
        and getattr(column.feature, "normalization", "") in _STRAIGHT
        and getattr(column.feature, "encoding", None) is None
        and (remedy := _skew(first))
    ):
        yield "skew", f"is strongly skewed; {remedy}"
    if facts["missing"] > _MISSING * facts["rows"]:
        remedy = "their rows are dropped" if drops_missing(column.feature) else "they are imputed"
        yield "missing", f"has {share(facts['missing'], facts['rows'])} of its values missing, and {remedy}"


def _skew(numbers: Quantiles) -> str | None:
    """Return the remedy for numbers of which one tail is far longer than the other; None if there is no such tail."""
    low, middle, high = ends = numbers.quantiles(np.array([0.01, 0.5, 0.99])) / 2
    if (ratio := _tails(ends)) <= _SKEWED:
        return None
    values = numbers.values() / 2
    inner = values[(values >= low) & (values <= high)]
    if np.diff(inner, prepend=low, append=high).max() > _GAP * (high - low):
        return None  # two groups of values, and not a tail
    if values[0] >= 0 and high - middle > middle - low and _tails(np.log1p(2 * ends)) < ratio / 2:
        return 'normalization="log1p" may suit it'
    return 'normalization="quantile_normal" evens it out'


def _tails(ends: np.ndarray) -> float:
    """Return how many times as long the longer tail is as the shorter one."""
    shorter, longer = sorted(np.diff(ends).tolist())
    return float(longer / shorter) if shorter else math.inf if longer else 0.0


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
        places = np.full(max(len(one), len(two)), _DRIFT_CLASSES)
        order = np.argsort(-one, kind="stable")[:_DRIFT_CLASSES]
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
    cuts = np.unique(keys[0][np.searchsorted(ranks, ranks[-1] * np.arange(1, _DRIFT_BINS) / _DRIFT_BINS)])
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
    return index, index - 2 * float(chance) > _DRIFTING
