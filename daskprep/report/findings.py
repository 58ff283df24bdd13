"""Findings of a report over all features: overview, alerts, associations and drift, as JSON values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np

from daskprep.dataset import Dataset
from daskprep.display.words import format_share
from daskprep.features.base import cross_fit_folds, drops_missing, rows_seen
from daskprep.report.measures import (
    ClassTally,
    Column,
    DateTally,
    RowSample,
    TokenTally,
    associate,
    find_equal_outputs,
    find_leaks,
    score_predictors,
)
from daskprep.summaries import Quantiles
from daskprep.summaries.distinct_values import DistinctValues

SummariesByOutput: TypeAlias = Mapping[str, Mapping[str, Any]]

FORMAT, FORMAT_VERSION = "daskprep-report", 1
_MAX_PAIRS = 100
_MIN_MISSING_SHARE, _MIN_MAJORITY_SHARE, _MIN_DUPLICATE_SHARE = 0.3, 0.9, 0.01
_DRIFT_BINS, _DRIFT_CLASSES, _MIN_DRIFT = 10, 20, 0.2
_MIN_SKEW, _FEW_NUMBERS = 9, 10  # ratio of the distances of the 1 % and 99 % quantiles from the median
_MIN_GAP_SHARE = 0.5  # of the range between these quantiles, in which no value occurs
_MANY_CLASSES, _MANY_SHARE = 50, 0.2
_LINEAR_NORMALIZATIONS = frozenset({None, "zscore", "minmax", "iq", "robust"})  # do not change the skew


def summarize_findings(
    dataset: Dataset, columns: Sequence[Column], summaries: SummariesByOutput, sample: RowSample
) -> dict[str, Any]:
    """Return features, alerts and associations as JSON values with the schema docs/report.schema.json.

    `summaries` are the results of measures over all rows, by output and split. The first split is the reference for
    drift. `sample` contains rows of that split, from which associations are computed.
    """
    rows = sample.frame()
    pairs = associate(rows)
    targets = [column.output.name for column in columns if column.name in dataset.targets]
    predicted = score_predictors(rows, targets)
    strongest = _strongest_with_target(pairs, targets)
    for (name, _), strength in predicted.items():
        strongest[name] = max(strength, strongest.get(name, 0.0))
    features: list[dict[str, Any]] = []
    alerts: list[dict[str, Any]] = []
    for name, outputs in groupby(columns, key=lambda column: column.name):
        column = next(outputs)
        by_split = summaries[column.output.name]
        # Cross-fitted training rows are encoded by other states than the rows of other splits.
        drift = {} if cross_fit_folds({name: column.feature}) else measure_drift(by_split)
        facts = _summarize_column(dataset, column, by_split) | {
            "drift": {split: index for split, (index, _) in drift.items()}
        }
        features.append(facts | {"association_with_target": strongest.get(column.output.name)})
        high = [f"{split} (PSI {index:.2f})" for split, (index, is_high) in drift.items() if is_high]
        column_alerts = list(_find_alerts(facts, column, next(iter(by_split.values()))))
        column_alerts += [("drift", f"is distributed differently in {', '.join(high)}")] * bool(high)
        alerts += [{"kind": kind, "feature": name, "text": text} for kind, text in column_alerts]
    for name, target in find_leaks(predicted):
        text = f'alone predicts the target "{target}" in the sampled rows: check that it is known at inference'
        alerts.append({"kind": "leakage", "feature": name, "text": text})
    for name, other in find_equal_outputs(rows, sample.columns):
        if other not in targets:
            alerts.append(
                {"kind": "equal", "feature": other, "text": f'has the same values as "{name}": leave one out'}
            )
    # Balancing repeats rows, which are not duplicates of the source.
    alerts += [] if dataset.metadata.get("balance") else _find_duplicates(sample.equal)
    dataset_facts = {
        "rows": dict(dataset.layout.rows),
        "features": len(dataset.features),
        "targets": list(dataset.targets),
    }
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "dataset": {"version": dataset.version} | dataset_facts,
        "features": features,
        "alerts": alerts,
        "associations": pairs[:_MAX_PAIRS],
        "sampled_rows": len(rows),
    }


def _find_duplicates(rows: DistinctValues) -> list[dict[str, Any]]:
    """Return an alert if more than 1 % of the rows equal an earlier one; `rows` are hashes of rows and their counts."""
    compared_rows = int(rows.counts.sum())
    equal = compared_rows - len(rows.counts)
    if equal <= _MIN_DUPLICATE_SHARE * compared_rows:
        return []
    compared = f"{compared_rows:,} {'' if rows.is_exact else 'sampled '}rows"
    text = f"{format_share(equal, compared_rows)} of {compared} equal an earlier one in all features"
    return [{"kind": "duplicates", "feature": None, "text": text}]


def _strongest_with_target(pairs: Sequence[Mapping[str, Any]], targets: Sequence[str]) -> dict[str, float]:
    """Return, by output, the strongest association with any target; `pairs` must be sorted, the strongest first."""
    strongest: dict[str, float] = {}
    for pair in pairs:
        if len(names := {pair["first"], pair["second"]} - set(targets)) == 1:
            strongest.setdefault(names.pop(), pair["strength"])
    return strongest


def _summarize_column(dataset: Dataset, column: Column, by_split: Mapping[str, Any]) -> dict[str, Any]:
    """Return name, type and counts of a feature; distinct values are counted in the first split."""
    learned = dataset.learned[column.name]
    return {
        "name": column.name,
        "type": column.feature.kind,
        "target": column.name in dataset.targets,
        "rows": rows_seen(column.feature, learned),
        "missing": learned.missing,
        "unreadable": learned.invalid,
        "distinct": _count_distinct(next(iter(by_split.values()))),
    }


def _count_distinct(result: Any) -> int | None:
    """Return the number of distinct values in the result of a measure; None if it is not exact or has none."""
    if isinstance(result, ClassTally):
        return int(np.count_nonzero(result.counts))
    summary = result.days if isinstance(result, DateTally) else result
    return len(summary.keys) if isinstance(summary, Quantiles) and summary.exact else None


def _find_alerts(facts: Mapping[str, Any], column: Column, first: Any) -> Iterator[tuple[str, str]]:
    """Yield kind and text of the alerts of a feature; `first` is the result of its measure for the first split."""
    distinct = facts["distinct"]
    if distinct == 1:
        yield "constant", "has a single value"
    elif isinstance(first, ClassTally) and not isinstance(first, TokenTally):
        most, rows = int(first.counts.max()), int(first.counts.sum())
        if most >= _MIN_MAJORITY_SHARE * rows:
            yield "imbalance", f"has one class with {format_share(most, rows)} of the rows"
        if distinct > max(_MANY_CLASSES, _MANY_SHARE * rows):
            yield "high-cardinality", f"has {distinct:,} classes in {rows:,} rows"
    if (
        isinstance(first, Quantiles)
        and (distinct is None or distinct > _FEW_NUMBERS)
        and getattr(column.feature, "normalization", "") in _LINEAR_NORMALIZATIONS
        and getattr(column.feature, "encoding", None) is None
        and (remedy := _suggest_normalization(first))
    ):
        yield "skew", f"is strongly skewed; {remedy}"
    if facts["missing"] > _MIN_MISSING_SHARE * facts["rows"]:
        remedy = "their rows are dropped" if drops_missing(column.feature) else "they are imputed"
        yield "missing", f"has {format_share(facts['missing'], facts['rows'])} of its values missing, and {remedy}"


def _suggest_normalization(numbers: Quantiles) -> str | None:
    """Return the remedy for numbers with one tail far longer than the other; None if they are not skewed."""
    low, middle, high = ends = numbers.quantiles(np.array([0.01, 0.5, 0.99])) / 2
    if (ratio := _tail_ratio(ends)) <= _MIN_SKEW:
        return None
    values = numbers.values() / 2
    inner = values[(values >= low) & (values <= high)]
    if np.diff(inner, prepend=low, append=high).max() > _MIN_GAP_SHARE * (high - low):
        return None  # two clusters of values instead of a tail
    if values[0] >= 0 and high - middle > middle - low and _tail_ratio(np.log1p(2 * ends)) < ratio / 2:
        return 'normalization="log1p" may suit it'
    return 'normalization="quantile_normal" evens it out'


def _tail_ratio(ends: np.ndarray) -> float:
    """Return the ratio of the longer tail to the shorter one; `ends` are a low quantile, the median and a high one."""
    shorter, longer = sorted(np.diff(ends).tolist())
    return float(longer / shorter) if shorter else math.inf if longer else 0.0


def measure_drift(by_split: Mapping[str, Any]) -> dict[str, tuple[float, bool]]:
    """Return the population stability index of each further split against the first, and whether it is high.

    An index is high if it exceeds the threshold plus twice its expected value for random splits of this size.
    """
    first, *others = by_split
    pairs = {split: _bin_both(by_split[first], by_split[split]) for split in others}
    return {
        split: _stability_index(*(counts.astype(np.float64) for counts in pair))
        for split, pair in pairs.items()
        if pair
    }


def _bin_both(first: Any, other: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the row counts of two splits in common bins; None for measures without bins.

    Bins are the most frequent classes of the first split and one for the rest, or deciles of its numbers.
    """
    if isinstance(first, ClassTally):
        one, two = first.counts, other.counts
        bins = np.full(max(len(one), len(two)), _DRIFT_CLASSES)
        order = np.argsort(-one, kind="stable")[:_DRIFT_CLASSES]
        bins[order] = np.arange(len(order))
        return np.bincount(bins[: len(one)], one), np.bincount(bins[: len(two)], two, int(bins.max()) + 1)
    if not isinstance(first, Quantiles | DateTally):
        return None
    spreads = [one.days if isinstance(one, DateTally) else one for one in (first, other)]
    if not all(len(spread.keys) for spread in spreads):
        return None
    # Buckets of the same width in both splits, so that the rows of a frequent value are in the same bin.
    shift = max(one.shift for one in spreads)
    keys = [one.keys >> (shift - one.shift) for one in spreads]
    ranks = np.cumsum(spreads[0].counts)
    cuts = np.unique(keys[0][np.searchsorted(ranks, ranks[-1] * np.arange(1, _DRIFT_BINS) / _DRIFT_BINS)])
    one, two = (
        np.bincount(np.searchsorted(cuts, buckets), spread.counts, len(cuts) + 1)
        for buckets, spread in zip(keys, spreads, strict=True)
    )
    return one, two


def _stability_index(first: np.ndarray, other: np.ndarray) -> tuple[float, bool]:
    """Return the population stability index of two arrays of row counts by bin, and whether it is high."""
    first = np.pad(first, (0, len(other) - len(first)))
    kept = first + other > 0
    chance = (np.count_nonzero(kept) - 1) * (1 / max(first.sum(), 1) + 1 / max(other.sum(), 1))
    # Half a row is added to each bin, because an empty one has no logarithm.
    one, two = ((counts[kept] + 0.5) / (counts[kept] + 0.5).sum() for counts in (first, other))
    index = float(((one - two) * np.log(one / two)).sum())
    return index, index - 2 * float(chance) > _MIN_DRIFT
