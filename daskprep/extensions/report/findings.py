"""Findings of a report: measures that merge across blocks, alerts, associations, leakage and drift, as JSON values."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.display import format_share, join_names
from daskprep.columns.permutation import make_key, mix, permute
from daskprep.columns.summaries import Quantiles, Range, Summary
from daskprep.columns.summaries.samples import DistinctValues
from daskprep.columns.summaries.shifts import LARGE_SHIFT, choose_bins, compare_counts
from daskprep.columns.vocabulary import Vocabulary
from daskprep.dataset import Dataset
from daskprep.dataset.describing import describe_duplicates
from daskprep.features import Category, Feature, Learned
from daskprep.features.base import cross_fit_folds, drops_missing, rows_seen
from daskprep.features.category import LearnedCategory
from daskprep.features.date import MICROS_PER_SECOND, SECONDS_PER_DAY
from daskprep.storage import Output

_FLOAT32_NOISE = 1e-6  # of the largest value
_MAX_POSITION_VALUE = 1e140  # larger numbers are clipped in means and deviations, so that sums of squares stay finite


@dataclass(frozen=True)
class Column:
    """Output of a dataset, with its feature and learned state."""

    name: str
    output: Output
    feature: Feature
    learned: Learned

    @property
    def vocabulary(self) -> Vocabulary:
        vocabulary = getattr(self.learned, "vocabulary", None)
        assert isinstance(vocabulary, Vocabulary)
        return vocabulary


@dataclass(frozen=True)
class ClassTally(Summary):
    """Number of rows of each class, by id."""

    counts: np.ndarray


@dataclass(frozen=True)
class TokenTally(ClassTally):
    """Count of each token by id, and of rows of each length."""

    lengths: np.ndarray


@dataclass(frozen=True)
class DateTally(Summary):
    """Counts of days, weekdays (Monday first) and hours."""

    days: Quantiles
    weekdays: np.ndarray
    hours: np.ndarray


@dataclass(frozen=True)
class H3Tally(Summary):
    """Counts of each resolution and each base cell of H3."""

    resolutions: np.ndarray
    base_cells: np.ndarray


@dataclass(frozen=True)
class PositionSums(Summary):
    """Sums and squares by position in a row, and the range."""

    rows: int
    sums: np.ndarray
    squares: np.ndarray
    range: Range

    @property
    def means(self) -> np.ndarray:
        return self.sums / self.rows

    @property
    def deviations(self) -> np.ndarray:
        return np.sqrt(np.maximum(self.squares / self.rows - self.means**2, 0))


def compute_mean(numbers: Quantiles) -> float:
    """Return the mean of numbers."""
    values = numbers.values()
    # Weighted by shares, because a sum of very large doubles would overflow.
    mean = float(values @ (numbers.counts / numbers.count))
    return float(min(max(mean, values[0]), values[-1]))


def compute_deviation(numbers: Quantiles) -> float:
    """Return the population standard deviation of numbers that are not empty."""
    halves = numbers.values() / 2 - compute_mean(numbers) / 2  # the difference of two large doubles would overflow
    largest = float(np.abs(halves).max())
    return largest and 2 * largest * math.sqrt(float((halves / largest) ** 2 @ (numbers.counts / numbers.count)))


def count_zeros(numbers: Quantiles) -> int:
    """Return how often 0 occurs, up to rounding errors of float32."""
    sizes = np.abs(numbers.values())
    return int(numbers.counts[sizes <= _FLOAT32_NOISE * sizes.max()].sum())


def measure_numbers(column: Column, rows: np.ndarray) -> Quantiles:
    """Return the distribution of decoded numbers; missing ones are left out."""
    return Quantiles.of(column.feature.decode(rows, column.learned).drop_null().to_numpy())


def count_classes(column: Column, rows: np.ndarray) -> ClassTally:
    """Count the rows of each class id."""
    max_id = np.max(column.feature.limits(column.learned)[""][1])
    return ClassTally(np.bincount(rows, minlength=int(max_id) + 1))


def count_tokens(column: Column, rows: np.ndarray) -> TokenTally:
    """Count token ids without padding; bags have counts of ids."""
    ids, repeats = (rows[:, 0], rows[:, 1].ravel()) if rows.ndim == 3 else (rows, None)
    size, padding = len(column.vocabulary), column.vocabulary.specials.padding_id or 0
    # Weighted bincount returns doubles, in which sums of integers are exact.
    counts = np.bincount(ids.ravel(), repeats, minlength=size).astype(np.int64)
    counts[padding] = 0
    lengths = np.count_nonzero(ids != padding, axis=1)
    return TokenTally(counts, np.bincount(lengths, minlength=ids.shape[1] + 1))


def count_dates(column: Column, rows: np.ndarray) -> DateTally:
    """Count days, weekdays and hours of encoded dates."""
    moments = column.feature.decode(rows, column.learned).cast(pa.int64()).to_numpy()
    days, seconds = np.divmod(moments // MICROS_PER_SECOND, SECONDS_PER_DAY)
    weekdays, hours = np.bincount((days + 3) % 7, minlength=7), np.bincount(seconds // 3_600, minlength=24)
    return DateTally(Quantiles.of(days), weekdays, hours)


def count_h3_cells(column: Column, rows: np.ndarray) -> H3Tally:
    """Count resolutions and base cells of encoded H3 cells."""
    return H3Tally(np.bincount(rows[:, 2], minlength=16), np.bincount(rows[:, 3], minlength=128))


def measure_positions(column: Column, rows: np.ndarray) -> PositionSums:
    """Return sums and the range of numbers by position in a row."""
    flat = rows.reshape(len(rows), -1)
    low, high = (float(flat.min()), float(flat.max())) if flat.size else (0.0, 0.0)
    if max(-low, high) > _MAX_POSITION_VALUE:
        flat = np.clip(flat, -_MAX_POSITION_VALUE, _MAX_POSITION_VALUE)
    squares = np.einsum("ij,ij->j", flat, flat, dtype=np.float64)
    return PositionSums(len(rows), flat.sum(axis=0, dtype=np.float64), squares, Range(low, high))


def measure_other(column: Column, rows: np.ndarray) -> Summary:
    """Measure a custom type; infinite values count as 0."""
    numbers = np.where(np.isfinite(rows), rows, 0).astype(np.float64)
    return Quantiles.of(numbers) if rows.ndim == 1 else measure_positions(column, numbers)


SAMPLE_ROWS = 10_000
_MAX_CLASSES = 20  # the most frequent; the remaining classes are merged into one more
_BINS = 50  # of a number in Cramér's V
_MIN_LEAKAGE = 0.95
_MIN_EQUAL_ROWS = 20  # equal values in fewer rows may be a coincidence
_MAX_RELATIVE_DIFFERENCE = 1e-5  # of the range of a number; more than the rounding errors of float32
_HASH_MULTIPLIER = np.uint64(0xD1342543DE82EF95)

_UNKNOWN = np.uint64(0)  # in place of the hash of a row

_SamplePart: TypeAlias = tuple[Mapping[str, np.ndarray], DistinctValues]


def _has_unknown(column: Column) -> bool:
    """Return whether training rows of a category were <UNK>."""
    if not (isinstance(column.feature, Category) and isinstance(column.learned, LearnedCategory)):
        return False
    counts = column.feature._training_counts(column.learned) if column.learned.has_unknown else {}
    return bool(counts) and counts["values"].unknown > 0


class RowSample:
    """Random sample of up to 10,000 rows of numbers and classes, and counts of equal rows.

    The selected rows depend only on the number of rows, and are taken from windows that are read anyway. `columns` are
    the outputs with one number or class per row. `equal` has hashes of the distinct rows, and how often each occurs; it
    is empty if the dataset has other outputs as well. Rows with ``<UNK>`` in an output of `with_unknown` are left out.
    """

    def __init__(self, columns: Sequence[Column], rows: int) -> None:
        scalar_types = ("numbers", "classes")
        self.columns = [one for one in columns if one.output.is_scalar and one.feature.semantic_type in scalar_types]
        self.equal = DistinctValues()
        self.with_unknown = [one.output.name for one in self.columns if _has_unknown(one)]
        self._are_all = len(self.columns) == len(columns)
        self._sampled = np.arange(min(rows, SAMPLE_ROWS))
        if rows > SAMPLE_ROWS:
            self._sampled = np.sort(permute(self._sampled, rows, make_key(0, "rows of a report")))
        self._parts: list[_SamplePart] = []

    def sample_window(self, arrays: Mapping[str, np.ndarray], start: int, stop: int) -> _SamplePart:
        """Return sampled rows of a window, and counts of equal rows."""
        first, last = np.searchsorted(self._sampled, [start, stop])
        rows = {one.output.name: arrays[one.output.name] for one in self.columns}
        sampled = {name: array[self._sampled[first:last] - start] for name, array in rows.items()}
        return sampled, self._count_equal_rows(rows)

    def _count_equal_rows(self, rows: Mapping[str, np.ndarray]) -> DistinctValues:
        """Return hashes of rows without <UNK> and their counts; none unless all outputs are scalars."""
        if not (rows and self._are_all):
            return DistinctValues()
        hashes = np.zeros(1, np.uint64)
        for array in rows.values():
            bits = (array + np.float64(0)).view(np.uint64) if array.dtype.kind == "f" else array.astype(np.uint64)
            hashes = mix(hashes * _HASH_MULTIPLIER + bits)
        for name in self.with_unknown:
            hashes = np.where(rows[name] == 0, _UNKNOWN, hashes)
        hashes = hashes[hashes != _UNKNOWN] if self.with_unknown else hashes
        return DistinctValues.of(pa.array(hashes.view(np.int64)), np.ones(len(hashes), np.int64))

    def add(self, window_sample: _SamplePart) -> None:
        """Add the result of `sample_window` for the next window."""
        self._parts.append(window_sample)
        self.equal = self.equal + window_sample[1]

    def frame(self) -> pd.DataFrame:
        """Return sampled encoded rows; NaN becomes minimum - 1."""
        types = {
            one.output.name: np.float64 if one.feature.semantic_type == "numbers" else np.int64 for one in self.columns
        }
        joined = {name: np.concatenate([rows[name] for rows, _ in self._parts]) for name in types}
        rows = pd.DataFrame(joined).astype(types)
        return rows.fillna(rows.min() - 1)


def associate(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the associations of all pairs of columns.

    The strongest is first. Constant columns are left out. Two numbers: Spearman's; a number and a class: correlation
    ratio; two classes: Cramér's V.
    """
    rows = rows[[name for name in rows if len(rows[name].unique()) > 1]]
    groups = {name: _group_values(rows[name]) for name in rows}
    ranks = rows.select_dtypes("float").rank()
    ranks -= ranks.mean()
    units = {name: (ranks[name] / np.linalg.norm(ranks[name])).to_numpy() for name in ranks}
    pairs = []
    for first, second in combinations(rows, 2):
        if first in units and second in units:
            measure, strength = "Spearman", min(abs(float(units[first] @ units[second])), 1.0)
        elif first in units or second in units:
            numbers, classes = (first, second) if first in units else (second, first)
            measure, strength = "correlation ratio", _correlation_ratio(groups[classes], units[numbers])
        else:
            measure, strength = "Cramér's V", _cramers_v(groups[first], groups[second])
        pairs.append({"first": first, "second": second, "measure": measure, "strength": strength})
    return sorted(pairs, key=lambda pair: -pair["strength"])


def score_predictors(rows: pd.DataFrame, targets: Collection[str]) -> dict[tuple[str, str], float]:
    """Return scores 0 to 1 of predictors, by column and target."""
    groups = {str(name): _group_values(rows[name]) for name in rows}
    # Rows with equal numbers are put in random order, because the source may be sorted by class.
    ties = permute(np.arange(len(rows)), len(rows), make_key(0, "ties of a report"))
    strengths = {}
    for target in (name for name in targets if name in groups):
        is_class = rows[target].dtype != np.float64
        for name in (name for name in groups if name not in targets):
            if is_class and rows[name].dtype == np.float64:
                # Each row is predicted by the row with the next smaller number, which also finds rare classes.
                ordered = groups[target][np.lexsort((ties, rows[name]))]
                strengths[name, target] = _cramers_v(ordered[:-1], ordered[1:]) if len(ordered) > 1 else 0.0
            else:
                strengths[name, target] = _cramers_v(groups[name], groups[target])
    return strengths


def find_equal_outputs(rows: pd.DataFrame, columns: Sequence[Column]) -> list[tuple[str, str]]:
    """Return pairs of outputs with equal decoded values.

    The earlier one is first; outputs of one column are no pair. Constant outputs are left out. None below 20 rows.
    """
    if len(rows) < _MIN_EQUAL_ROWS:
        return []
    pairs = []
    earlier: list[tuple[Column, pd.Series]] = []
    for column in columns:
        name = column.output.name
        if name not in rows or len(rows[name].unique()) == 1:
            continue
        encoded = rows[name].to_numpy().astype(column.output.dtype)
        values = pd.Series(column.feature.decode(encoded, column.learned).to_pandas())
        for other, other_values in earlier:
            sources = [each.feature.column or each.name for each in (column, other)]
            if sources[0] != sources[1] and _have_same_values(values, other_values):
                pairs.append((other.output.name, name))
                break
        else:
            earlier.append((column, values))
    return pairs


def _have_same_values(one: pd.Series, other: pd.Series) -> bool:
    """Return whether columns are equal, up to rounding if both are float64."""
    if one.dtype != np.float64 or other.dtype != np.float64:
        return one.dtype == other.dtype and one.equals(other)
    with np.errstate(over="ignore"):
        return bool((np.abs(one - other) <= _MAX_RELATIVE_DIFFERENCE * min(np.ptp(one), np.ptp(other))).all())


def _group_values(values: pd.Series) -> np.ndarray:
    """Return a group id per row: 50 quantiles, or 20 frequent classes and a rest."""
    if values.dtype == np.float64:
        return np.minimum(values.rank(pct=True).to_numpy() * _BINS, _BINS - 1).astype(np.int64)
    ranks = pd.Series(range(values.nunique()), values.value_counts().index)
    return np.minimum(ranks[values].to_numpy(), _MAX_CLASSES)


def _cramers_v(first: np.ndarray, second: np.ndarray) -> float:
    """Return Cramér's V of ids, corrected for chance, 0 to 1."""
    width = int(second.max()) + 1
    crossed = np.bincount(first * width + second, minlength=(int(first.max()) + 1) * width).reshape(-1, width)
    crossed = crossed[crossed.any(axis=1)][:, crossed.any(axis=0)].astype(np.float64)
    total, denominator, (rows, columns) = len(first), max(len(first) - 1, 1), crossed.shape
    expected = crossed.sum(axis=1)[:, None] * crossed.sum(axis=0) / total
    phi = float(((crossed - expected) ** 2 / expected).sum()) / total - (rows - 1) * (columns - 1) / denominator
    limit = min(rows - (rows - 1) ** 2 / denominator, columns - (columns - 1) ** 2 / denominator) - 1
    return min(max(phi, 0.0) / limit, 1.0) ** 0.5 if limit > 0 else 0.0


def _correlation_ratio(groups: np.ndarray, ranks: np.ndarray) -> float:
    """Return the correlation ratio of ranks, corrected for chance."""
    counts = np.bincount(groups)
    explained = float((np.bincount(groups, ranks) ** 2 / np.maximum(counts, 1)).sum())
    if not (degrees_of_freedom := len(ranks) - int(np.count_nonzero(counts))):
        return 0.0
    return float(min(max(1 - (1 - explained) * (len(ranks) - 1) / degrees_of_freedom, 0.0), 1.0) ** 0.5)


SummariesByOutput: TypeAlias = Mapping[str, Mapping[str, Any]]

FORMAT, FORMAT_VERSION = "daskprep-report", 1
_MAX_PAIRS = 100
_MIN_MISSING_SHARE, _MIN_MAJORITY_SHARE, _MIN_DUPLICATE_SHARE = 0.3, 0.9, 0.01
_DRIFT_BINS = 10
_MIN_SKEW, _FEW_NUMBERS = 9, 10  # ratio of the distances of the 1 % and 99 % quantiles from the median
_MIN_GAP_SHARE = 0.5  # of the range between these quantiles, in which no value occurs
_MANY_CLASSES, _MANY_SHARE = 50, 0.2
_LINEAR_NORMALIZATIONS = frozenset({None, "zscore", "minmax", "iq", "robust"})  # do not change the skew


def summarize_findings(
    dataset: Dataset, columns: Sequence[Column], summaries: SummariesByOutput, sample: RowSample
) -> dict[str, Any]:
    """Return features, alerts and associations, with the schema docs/report.schema.json."""
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
        drift = {} if cross_fit_folds({name: column.feature}) else measure_drift(by_split, len(columns))
        facts = _summarize_column(dataset, column, by_split)
        facts["drift"] = {split: index for split, (index, _) in drift.items()}
        features.append(facts | {"association_with_target": strongest.get(column.output.name)})
        high = [f"{split} (PSI {index:.2f})" for split, (index, is_high) in drift.items() if is_high]
        column_alerts = list(_find_alerts(facts, column, next(iter(by_split.values()))))
        column_alerts += [("drift", f"is distributed differently in {', '.join(high)}")] * bool(high)
        alerts += [{"kind": kind, "feature": name, "text": text} for kind, text in column_alerts]
    for name, target in [pair for pair, strength in predicted.items() if strength >= _MIN_LEAKAGE]:
        text = f'alone predicts the target "{target}" in the sampled rows: check that it is known at inference'
        alerts.append({"kind": "leakage", "feature": name, "text": text})
    for name, other in find_equal_outputs(rows, sample.columns):
        if other not in targets:
            text = f'has the same values as "{name}": leave one out'
            alerts.append({"kind": "equal", "feature": other, "text": text})
    # Balancing repeats rows, which are not duplicates of the source.
    alerts += [] if dataset.metadata.get("balance") else _find_duplicates(sample.equal, sample.with_unknown)
    shared = describe_duplicates(dataset.layout, dataset.duplicates or {})
    alerts += [{"kind": "shared-rows", "feature": None, "text": text} for text in shared]
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "dataset": {
            "version": dataset.version,
            "rows": dict(dataset.layout.rows),
            "features": len(dataset.features),
            "targets": list(dataset.targets),
        },
        "features": features,
        "alerts": alerts,
        "losses": None if (losses := dataset.losses()) is None else losses.to_dict("records"),
        "associations": pairs[:_MAX_PAIRS],
        "sampled_rows": len(rows),
    }


def _find_duplicates(rows: DistinctValues, with_unknown: Sequence[str]) -> list[dict[str, Any]]:
    """Return an alert if 1 % of rows equal earlier ones, or none."""
    compared_rows = int(rows.counts.sum())
    equal = compared_rows - len(rows.counts)
    if equal <= _MIN_DUPLICATE_SHARE * compared_rows:
        return []
    compared = f"{compared_rows:,} {'' if rows.is_exact else 'sampled '}rows"
    if with_unknown:
        compared += f" without <UNK> in {join_names(with_unknown, 5)}"
    text = f"{format_share(equal, compared_rows)} of {compared} equal an earlier one in all features"
    return [{"kind": "duplicates", "feature": None, "text": text}]


def _strongest_with_target(pairs: Sequence[Mapping[str, Any]], targets: Sequence[str]) -> dict[str, float]:
    """Return by output its strongest association with a target; pairs are sorted."""
    strongest: dict[str, float] = {}
    for pair in pairs:
        if len(names := {pair["first"], pair["second"]} - set(targets)) == 1:
            strongest.setdefault(names.pop(), pair["strength"])
    return strongest


def _summarize_column(dataset: Dataset, column: Column, by_split: Mapping[str, Any]) -> dict[str, Any]:
    """Return name, type, counts of missing cells and distinct values."""
    learned, counts = dataset.learned[column.name], dataset.missing_counts
    missing = None
    if counts is not None:
        missing = {split: counts.get(split, {}).get(column.name, 0) for split in dataset.layout.rows}
    return {
        "name": column.name,
        "type": column.feature.kind,
        "target": column.name in dataset.targets,
        "rows": rows_seen(column.feature, learned),
        "missing": learned.missing,
        "missing_by_split": missing,
        "unreadable": learned.invalid,
        "distinct": _count_distinct(next(iter(by_split.values()))),
    }


def _count_distinct(result: Any) -> int | None:
    """Return the distinct values of a measure; None if not exact."""
    if isinstance(result, ClassTally):
        return int(np.count_nonzero(result.counts))
    summary = result.days if isinstance(result, DateTally) else result
    return len(summary.keys) if isinstance(summary, Quantiles) and summary.exact else None


def _find_alerts(facts: Mapping[str, Any], column: Column, first: Any) -> Iterator[tuple[str, str]]:
    """Yield kind and text of the alerts of a feature."""
    distinct = facts["distinct"]
    if distinct == 1:
        yield "constant", "has a single value"
    elif isinstance(first, ClassTally) and not isinstance(first, TokenTally):
        most, rows = int(first.counts.max()), int(first.counts.sum())
        if most >= _MIN_MAJORITY_SHARE * rows:
            majority = "<UNK>" if first.counts[0] == most and _has_unknown(column) else "one class"
            yield "imbalance", f"has {majority} with {format_share(most, rows)} of the rows"
        if distinct > max(_MANY_CLASSES, _MANY_SHARE * rows):
            yield "high-cardinality", f"has {distinct:,} classes in {rows:,} rows"
        if pair := _find_spellings(getattr(column.learned, "vocabulary", None)):
            yield "spelling", f"has labels that differ only in case, such as {pair[0]!r} and {pair[1]!r}"
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


def _find_spellings(vocabulary: Vocabulary | None) -> list[str]:
    """Return two tokens that differ only in case, or none."""
    if vocabulary is None or not len(vocabulary):
        return []
    folded = pc.utf8_lower(vocabulary.tokens)
    codes = folded.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    repeated = np.flatnonzero(np.bincount(codes)[codes] > 1)
    same = np.flatnonzero(codes == codes[repeated[0]])[:2] if len(repeated) else repeated
    return [vocabulary.tokens[int(i)].as_py() for i in same]


def _suggest_normalization(numbers: Quantiles) -> str | None:
    """Return the remedy for skewed numbers; None for others and two clusters."""
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
    """Return longer tail / shorter; inf for one tail, 0 for none."""
    shorter, longer = sorted(np.diff(ends).tolist())
    return float(longer / shorter) if shorter else math.inf if longer else 0.0


def measure_drift(by_split: Mapping[str, Any], columns: int = 1) -> dict[str, tuple[float, bool]]:
    """Return drift from the first split, by further split.

    That is its population stability index, and whether it is high and no chance. Splits that cannot be compared are
    left out.
    """
    first, *others = by_split
    drift = {}
    for split in others:
        if (pair := _bin_both(by_split[first], by_split[split])) is not None:
            classes = len(by_split[first].counts) if isinstance(by_split[first], ClassTally) else 0
            shift = compare_counts(*pair, ordered=not classes, candidates=classes)
            is_high = shift.psi > LARGE_SHIFT and shift.exceeds_chance(columns * len(others))
            drift[split] = shift.psi, is_high
    return drift


def _bin_both(first: Any, other: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Return rows of two splits by class or decile of the first; None for other measures, or no values."""
    if isinstance(first, ClassTally):
        one, two = first.counts, other.counts
        bins = choose_bins(one, max(len(one), len(two)))
        size = int(bins.max()) + 1
        return np.bincount(bins[: len(one)], one, size), np.bincount(bins[: len(two)], two, size)
    if not isinstance(first, Quantiles | DateTally):
        return None
    spreads = [one.days if isinstance(one, DateTally) else one for one in (first, other)]
    if not all(len(spread.keys) for spread in spreads):
        return None
    # Buckets of the same width in both splits, so that the rows of a frequent value are in the same bin.
    shift = max(one.shift for one in spreads)
    keys = [one.keys >> (shift - one.shift) for one in spreads]
    cuts = Quantiles(keys[0], spreads[0].counts).cut(_DRIFT_BINS)
    one, two = (
        np.bincount(np.searchsorted(cuts, buckets), spread.counts, len(cuts) + 1)
        for buckets, spread in zip(keys, spreads, strict=True)
    )
    return one, two
