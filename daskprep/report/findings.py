"""What a report says of all features at once: overview, alerts, associations and drift, as JSON values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from daskprep.dataset import Dataset
from daskprep.display.words import share
from daskprep.features.base import drops_missing, rows_seen
from daskprep.report.associations import associate, sample_scalars, suspects
from daskprep.report.drift import drifts
from daskprep.report.measures import ClassTally, Column, Dates, Tokens
from daskprep.summaries import Quantiles

Found: TypeAlias = Mapping[str, Mapping[str, Any]]

FORMAT, FORMAT_VERSION = "daskprep-report", 1
_MOST_PAIRS = 100
_MISSING, _IMBALANCED, _DUPLICATES = 0.3, 0.9, 0.01
_SKEWED, _FEW_NUMBERS = 9, 10  # times as far from the median is one of the outer percentiles as the other
_MANY_CLASSES, _MANY_SHARE = 50, 0.2
_STRAIGHT = frozenset({None, "zscore", "minmax", "iq", "robust"})  # normalizations that leave a skew as it is


def find(dataset: Dataset, columns: Sequence[Column], found: Found) -> dict[str, Any]:
    """Conclude from what was counted of all rows, and from a sample; docs/report.schema.json describes the result."""
    rows = sample_scalars(next(iter(dataset.splits.values())), columns)
    pairs = associate(rows)
    targets = [column.output.name for column in columns if column.name in dataset.targets]
    strongest = _with_targets(pairs, targets)
    features: list[dict[str, Any]] = []
    alerts: list[dict[str, Any]] = []
    firsts = {column.name: column for column in reversed(columns)}  # the first output of each feature
    for name in dict.fromkeys(column.name for column in columns):
        column = firsts[name]
        counted = found[column.output.name]
        # Training rows that are cross-fitted are encoded in another way than those of other splits.
        drift = {} if column.feature._cross_fit else drifts(counted)
        facts = _facts(dataset, column, counted) | {"drift": {split: index for split, (index, _) in drift.items()}}
        features.append(facts | {"association_with_target": strongest.get(column.output.name)})
        high = [f"{split} (PSI {index:.2f})" for split, (index, is_high) in drift.items() if is_high]
        told = list(_alerts(facts, column, next(iter(counted.values()))))
        told += [("drift", f"is distributed differently in {', '.join(high)}")] * bool(high)
        alerts += [{"kind": kind, "feature": name, "text": text} for kind, text in told]
    for one, target in suspects(rows, targets):
        text = f'alone predicts the target "{target}" in the sampled rows: check that it is known at inference'
        alerts.append({"kind": "leakage", "feature": one, "text": text})
    # Rows that balancing repeats are none of the source; other outputs may distinguish rows.
    comparable = len(rows.columns) == len(columns) and dataset.metadata.get("balance") is None
    if comparable and (equal := int(rows.duplicated().sum())) > _DUPLICATES * len(rows):
        text = f"{share(equal, len(rows))} of {len(rows):,} sampled rows equal an earlier one in all features"
        alerts.append({"kind": "duplicates", "feature": None, "text": text})
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
    ):
        low, middle, high = (first.quantile(part) / 2 for part in (0.01, 0.5, 0.99))
        if max(middle - low, high - middle) > _SKEWED * min(middle - low, high - middle):
            yield "skew", 'is strongly skewed; normalization="log1p" may suit positive numbers'
    if facts["missing"] > _MISSING * facts["rows"]:
        remedy = "their rows are dropped" if drops_missing(column.feature) else "they are imputed"
        yield "missing", f"has {share(facts['missing'], facts['rows'])} of its values missing, and {remedy}"
