"""What a report says of all features at once: an overview, alerts, and what goes together; as values and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from daskprep.dataset import Dataset
from daskprep.display.words import share
from daskprep.features import Learned
from daskprep.features.base import rows_seen
from daskprep.features.missing import drops_missing
from daskprep.report.associations import Association, associate, duplicates, sample_scalars, suspects
from daskprep.report.drift import Drift, drifts
from daskprep.report.measures import ClassTally, Column, Dates, Spread, Tokens

Found: TypeAlias = Mapping[str, Mapping[str, Any]]

FORMAT, FORMAT_VERSION = "daskprep-report", 1
_MOST_ASSOCIATIONS = 100  # in JSON
_FILLED, _IMBALANCED, _DUPLICATES, _SKEW = 0.3, 0.9, 0.01, 3.0
_MANY_CLASSES, _MANY_SHARE = 50, 0.2
_QUARTILES = {"min": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "max": 1.0}


@dataclass(frozen=True)
class Alert:
    """What deserves a look before training; `feature` is None for alerts about rows."""

    kind: str
    feature: str | None
    text: str


@dataclass(frozen=True)
class Facts:
    """What the overview and the JSON say of a feature; what a type cannot tell is None or empty."""

    name: str
    type: str
    is_target: bool
    learned: Learned
    rows: int
    distinct: int | None
    drift: Mapping[str, Drift]
    summary: Mapping[str, Mapping[str, float]]
    with_target: float | None = None


@dataclass(frozen=True)
class Findings:
    """All of it, in the order of the features; associations from the strongest on."""

    features: Sequence[Facts]
    alerts: Sequence[Alert]
    associations: Sequence[Association]
    sampled_rows: int

    def to_dict(self, dataset: Dataset) -> dict[str, Any]:
        """Return what docs/report.schema.json describes."""
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "dataset": {
                "version": dataset.version,
                "rows": dict(dataset.layout.rows),
                "features": len(dataset.features),
                "targets": list(dataset.targets),
            },
            "features": [_feature_dict(one) for one in self.features],
            "alerts": [vars(one) for one in self.alerts],
            "associations": [vars(one) for one in self.associations[:_MOST_ASSOCIATIONS]],
            "sampled_rows": self.sampled_rows,
        }


def find(dataset: Dataset, columns: Sequence[Column], found: Found) -> Findings:
    """Conclude from what was counted of all rows, and from a sample of the first split."""
    split = next(iter(dataset.splits.values()))
    rows = sample_scalars(split, columns)
    targets = [column.output.name for column in columns if column.name in dataset.targets]
    pairs = associate(rows, columns)
    first = {column.name: column for column in reversed(columns)}  # the first output of each feature
    facts = [_facts(dataset, first[name], found, pairs, targets) for name in dict.fromkeys(c.name for c in columns)]
    alerts = [alert for one in facts for alert in _alerts(one, first[one.name], found[first[one.name].output.name])]
    alerts += [
        Alert("leakage", name, f'alone predicts the target "{target}" in the sampled rows: is it known before?')
        for name, target in suspects(rows, columns, targets)
    ]
    sampled = len(next(iter(rows.values()))) if rows else 0
    # Rows that balancing repeats are none of the source; other outputs may tell rows apart.
    if sampled and len(rows) == len(columns) and dataset.metadata.get("balance") is None:
        equal = duplicates(rows)
        if equal > _DUPLICATES * sampled:
            text = f"{share(equal, sampled)} of {sampled:,} sampled rows equal an earlier one in all features"
            alerts.append(Alert("duplicates", None, text))
    return Findings(facts, alerts, pairs, sampled)


def _facts(
    dataset: Dataset, column: Column, found: Found, pairs: Sequence[Association], targets: Sequence[str]
) -> Facts:
    name, counted = column.name, found[column.output.name]
    learned = dataset.learned[name]
    strengths = [
        pair.strength
        for pair in pairs
        if column.output.name in (pair.first, pair.second) and {pair.first, pair.second} & set(targets)
    ]
    return Facts(
        name,
        column.feature.kind,
        name in dataset.targets,
        learned,
        rows_seen(column.feature, learned),
        _distinct(counted),
        drifts(counted),
        {split: _summary(one, column.center) for split, one in counted.items() if isinstance(one, Spread)},
        max(strengths) if strengths and name not in dataset.targets else None,
    )


def _distinct(counted: Mapping[str, Any]) -> int | None:
    first, *others = counted.values()
    if isinstance(first, ClassTally):
        size = max(len(one.counts) for one in counted.values())
        return int(np.count_nonzero(sum(np.pad(one.counts, (0, size - len(one.counts))) for one in counted.values())))
    if isinstance(first, Dates):
        return len(sum((one.days for one in others), first.days).keys)
    return len(sum((one.distances for one in others), first.distances).keys) if isinstance(first, Spread) else None


def _summary(spread: Spread, center: float) -> dict[str, float]:
    if not len(spread.distances.keys):
        return {}
    quantiles = {name: spread.distances.quantile(part) + center for name, part in _QUARTILES.items()}
    return {"mean": spread.mean() + center, **quantiles}


def _alerts(facts: Facts, column: Column, counted: Mapping[str, Any]) -> list[Alert]:
    said = {}
    first = next(iter(counted.values()))
    rows = int(first.counts.sum()) if isinstance(first, ClassTally) else 0
    is_class = isinstance(first, ClassTally) and not isinstance(first, Tokens)
    if facts.distinct == 1:
        said["constant"] = "has a single value"
    elif is_class and rows and first.counts.max() >= _IMBALANCED * rows:
        said["imbalance"] = f"one class has {share(int(first.counts.max()), rows)} of the rows"
    if is_class and facts.distinct and facts.distinct > max(_MANY_CLASSES, _MANY_SHARE * rows):
        said["high-cardinality"] = f"has {facts.distinct:,} classes in {rows:,} rows"
    if isinstance(first, Spread) and getattr(column.feature, "normalization", None) != "log1p":
        skew = _skewness(first)
        if abs(skew) > _SKEW:
            said["skew"] = f'has a skewness of {skew:.1f}; normalization="log1p" may suit positive numbers'
    if facts.learned.missing > _FILLED * facts.rows:
        remedy = "their rows are dropped" if drops_missing(column.feature) else "they are filled"
        said["missing"] = f"has {share(facts.learned.missing, facts.rows)} of its values missing, and {remedy}"
    if high := {split: one for split, one in facts.drift.items() if one.is_high}:
        parts = ", ".join(f"{split} (PSI {one.psi:.2f})" for split, one in high.items())
        said["drift"] = f"is distributed differently in {parts}"
    return [Alert(kind, facts.name, text) for kind, text in said.items()]


def _skewness(spread: Spread) -> float:
    values, counts = spread.values()
    # The middle 99.8 % of values tell of the shape; one far value would tell of itself alone.
    low, high = spread.distances.quantile(0.001), spread.distances.quantile(0.999)
    scale = max(abs(low), abs(high))
    if not low < high or not np.isfinite(1 / scale):
        return 0.0
    parts = np.clip(values, low, high) / scale
    parts = parts - np.average(parts, weights=counts)
    deviation = float(np.average(parts**2, weights=counts)) ** 0.5
    return float(np.average((parts / deviation) ** 3, weights=counts)) if deviation > 1e-6 else 0.0


def _feature_dict(facts: Facts) -> dict[str, Any]:
    return {
        "name": facts.name,
        "type": facts.type,
        "target": facts.is_target,
        "rows": facts.rows,
        "missing": facts.learned.missing,
        "unreadable": facts.learned.invalid,
        "distinct": facts.distinct,
        "association_with_target": facts.with_target,
        "drift": {split: one.psi for split, one in facts.drift.items()},
        "summary": {split: dict(one) for split, one in facts.summary.items() if one},
    }
