"""Encodings of inferred features that suit a kind of model, and the reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from daskprep.column_types.guess import Guess
from daskprep.display.words import format_share
from daskprep.features import Binary, Category, Number, TargetEncoding
from daskprep.features.notation import guess_and_parse
from daskprep.features.target_encoding import MAX_CLASSES
from daskprep.steps.numbers import Normalization
from daskprep.summaries.column_facts import ColumnFacts
from daskprep.summaries.quantiles import MAX_BUCKETS

Style = Literal["network", "linear", "trees"]
STYLES: dict[Style, str] = {"network": "networks", "linear": "linear models", "trees": "trees"}

# Distinct numbers, from which on bins resolve finer differences than a network does without them.
_MANY_VALUES = 100
# Labels, up to which one-hot columns, or splits of a tree, are feasible.
_FEW_LABELS = 50
# Asymmetry of quantiles: 0 for uniform and normal distributions, 0.56 for exponential ones.
_SKEWED = 0.4
# Distance from the median in units of the 5 % to 95 % range; a million normal numbers reach 1.5.
_FAR = 3.0
_FREQUENT = 0.01  # share of all cells with one value
# Share of all cells with one value, from which on a quantile transform would spread that value over several quantiles.
_SPIKE = 0.05
_IMPUTING_STRATEGIES = ("fill_with_mean", "fill_with_median", "fill_with_mode", "ffill", "bfill")


class EncodingTarget(NamedTuple):
    """A target whose means can encode categories, with its type for TargetEncoding."""

    column: str
    target_type: Literal["number", "class"]


def find_encoding_target(targets: Mapping[str, tuple[Guess, ColumnFacts]]) -> EncodingTarget | None:
    """Return the first target that has a mean, a plain number or a class; None if there is none."""
    for name, (guess, facts) in targets.items():
        if isinstance(guess.feature, Number) and facts.numbers == facts.usable and not facts.null_texts:
            return EncodingTarget(name, "number")
        if (
            isinstance(guess.feature, Binary | Category)
            and facts.distinct.count <= MAX_CLASSES
            and not facts.null_texts
        ):
            return EncodingTarget(name, "class")
    return None


def apply_style(guess: Guess, facts: ColumnFacts, style: Style, target: EncodingTarget | None) -> Guess:
    """Return the guess with the encoding for a style of model, and the reason."""
    feature, notes = guess.feature, [guess.reason]
    if type(feature) is Number:
        notes.append(f"for {STYLES[style]}: {_encode_number(feature, facts, style, has_missing=guess.has_missing)}")
    elif type(feature) is Category:
        feature, why = _encode_category(feature, facts, style, target)
        notes.append(f"for {STYLES[style]}: {why}")
    if (
        feature is not None
        and guess.has_missing
        and style != "trees"
        and feature.missing_value_strategy in _IMPUTING_STRATEGIES
    ):
        feature.missing_indicator = True
        notes.append("an indicator marks missing values")
    return guess._replace(feature=feature, reason="; ".join(notes))


def _encode_number(feature: Number, facts: ColumnFacts, style: Style, *, has_missing: bool) -> str:
    """Set the normalization and imputation of a number for a style; return the reason."""
    if style == "trees":
        feature.normalization = None
        feature.missing_value_strategy = "keep"
        return "unscaled, since only the order of numbers matters; missing values stay NaN"
    shape = _classify_shape(facts)
    feature.normalization = shape.network if style == "network" else shape.linear
    if shape is not _EVEN and has_missing:
        feature.missing_value_strategy = "fill_with_median"
    if style == "linear" or facts.distinct.count < _MANY_VALUES:
        return shape.reason
    feature.encoding = "piecewise_linear"
    return f"{shape.reason}, piecewise linear, since it has many values"


class _Shape(NamedTuple):
    """Normalizations for a shape of distribution, and the reason."""

    network: Normalization
    linear: Normalization
    reason: str


_EVEN = _Shape("zscore", "zscore", "z-scores, since the tails are short")
_ONE_VALUE = _Shape("zscore", "zscore", "z-scores, since half of the rows or more have one value")
_COUNTS = _Shape("log1p", "log1p", "logarithms, since half of the rows or more have one value")
_LOPSIDED = _Shape("quantile_normal", "yeo_johnson", "normalized to a normal shape, since it is skewed")
_SPIKED = _Shape("yeo_johnson", "yeo_johnson", "a power transform, since it is skewed and one value is frequent")
_TAILED = _Shape("robust", "robust", "scaled by quartiles and smoothly clipped, since tails are long")


def _classify_shape(facts: ColumnFacts) -> _Shape:
    """Classify the distribution of numbers from the sampled distinct values, independently of the partitioning."""
    texts, total = facts.distinct.texts, facts.distinct.total
    counts = facts.distinct.counts[: len(texts)]
    numbers = guess_and_parse(texts, counts)[1].to_numpy(zero_copy_only=False)
    order = np.argsort(numbers, kind="stable")[: int(np.isfinite(numbers).sum())]
    if not len(order):
        return _EVEN
    # A sampled rare value represents all rare values; a frequent value represents itself, or was not sampled.
    weights = np.where(counts > _FREQUENT * total, 1.0, facts.distinct.count / len(texts))
    unsampled = total - float((counts * weights).sum())
    if 2 * max(counts.max(), unsampled) >= total:
        return _ONE_VALUE if min(numbers[order[0]], facts.range.min) < 0 else _COUNTS
    spiked = facts.distinct.count > MAX_BUCKETS and max(counts[numbers != 0].max(), unsampled) > _SPIKE * total
    numbers, below = numbers[order], np.cumsum((counts * weights)[order])
    low, middle, high = (float(numbers[np.searchsorted(below, quantile * below[-1])]) for quantile in (0.05, 0.5, 0.95))
    if abs((high - middle) - (middle - low)) > _SKEWED * (high - low):
        return _SPIKED if spiked else _LOPSIDED
    longest = max(max(numbers[-1], facts.range.max) - middle, middle - min(numbers[0], facts.range.min))
    return _TAILED if longest > _FAR * (high - low) else _EVEN


def _encode_category(
    feature: Category, facts: ColumnFacts, style: Style, target: EncodingTarget | None
) -> tuple[Category | TargetEncoding, str]:
    """Return the feature for a category in a style, and the reason."""
    values = facts.distinct.count
    if style == "network":
        return feature, "ids for an embedding"
    if style == "linear" and values <= _FEW_LABELS:
        feature.transform_to = "one_hot"
        return feature, "a column for each value"
    if values <= _FEW_LABELS or feature.order is not None:
        feature.transform_to = "ordinal"
        return feature, "positions in order"
    marks = feature.null_values
    if target is not None:
        encoding = TargetEncoding(target=target.column, target_type=target.target_type, null_values=marks)
        return encoding, f'the mean of "{target.column}" for each value, since it has many'
    if style == "trees":
        encoding = TargetEncoding(encoding="count", null_values=marks)
        return encoding, "how often each value occurs, since it has many; name targets to encode by their means"
    feature.transform_to, feature.most_common = "one_hot", _FEW_LABELS
    covered = format_share(int(np.sort(facts.distinct.counts)[-_FEW_LABELS:].sum()), facts.usable)
    return (
        feature,
        f"columns for the {_FEW_LABELS} most frequent values, {covered} of cells; name targets to encode by their "
        "means",
    )
