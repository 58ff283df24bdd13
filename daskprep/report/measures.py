"""Measures of the rows of an output that merge across blocks, and associations and leakage on a sample of rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa

from daskprep.features import Feature, Learned
from daskprep.features.date_text import MICROS_PER_SECOND, SECONDS_PER_DAY
from daskprep.permutation import make_key, mix, permute
from daskprep.storage import Output
from daskprep.summaries import Quantiles, Range, Summary
from daskprep.summaries.distinct_values import DistinctValues
from daskprep.vocabulary import Vocabulary

_MAX_POSITION_VALUE = 1e140  # larger numbers are clipped in means and deviations, so that sums of squares stay finite


@dataclass(frozen=True)
class Column:
    """Output of a dataset with its feature, and the learned state of that output; `name` is the feature's name."""

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
    """Count of each token by id, and in `lengths` the number of rows with 0, 1, 2, ... tokens."""

    lengths: np.ndarray


@dataclass(frozen=True)
class DateTally(Summary):
    """Distribution of days since 1970, and counts of weekdays (Monday first) and hours."""

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
    """Number of rows, sums and sums of squares by position in a row, and the range over all positions."""

    rows: int
    sums: np.ndarray
    squares: np.ndarray
    range: Range

    @property
    def means(self) -> np.ndarray:
        return self.sums / self.rows

    @property
    def deviations(self) -> np.ndarray:
        deviations: np.ndarray = np.sqrt(np.maximum(self.squares / self.rows - self.means**2, 0))
        return deviations


def compute_mean(numbers: Quantiles) -> float:
    """Return the mean of numbers; the numbers of a bucket count as its middle."""
    values = numbers.values()
    # Weighted by shares, because a sum of very large doubles would overflow.
    mean = float(values @ (numbers.counts / numbers.count))
    return float(min(max(mean, values[0]), values[-1]))


def measure_numbers(column: Column, rows: np.ndarray) -> Quantiles:
    """Return the distribution of numbers before normalization, without missing values."""
    return Quantiles.of(column.feature.decode(rows, column.learned).drop_null().to_numpy())


def count_classes(column: Column, rows: np.ndarray) -> ClassTally:
    """Count the rows of each class id."""
    max_id = np.max(column.feature.limits(column.learned)[""][1])
    return ClassTally(np.bincount(rows, minlength=int(max_id) + 1))


def count_tokens(column: Column, rows: np.ndarray) -> TokenTally:
    """Count token ids without padding; bags (rows, 2, length) contain ids and the count of each id."""
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
    return DateTally(
        Quantiles.of(days), np.bincount((days + 3) % 7, minlength=7), np.bincount(seconds // 3_600, minlength=24)
    )


def count_h3_cells(column: Column, rows: np.ndarray) -> H3Tally:
    """Count resolutions and base cells of encoded H3 cells."""
    return H3Tally(np.bincount(rows[:, 2], minlength=16), np.bincount(rows[:, 3], minlength=128))


def measure_positions(column: Column, rows: np.ndarray) -> PositionSums:
    """Sum numbers and their squares by position in a row."""
    flat = rows.reshape(len(rows), -1)
    low, high = (float(flat.min()), float(flat.max())) if flat.size else (0.0, 0.0)
    if max(-low, high) > _MAX_POSITION_VALUE:
        flat = np.clip(flat, -_MAX_POSITION_VALUE, _MAX_POSITION_VALUE)
    squares = np.einsum("ij,ij->j", flat, flat, dtype=np.float64)
    return PositionSums(len(rows), flat.sum(axis=0, dtype=np.float64), squares, Range(low, high))


def measure_other(column: Column, rows: np.ndarray) -> Summary:
    """Measure the rows of a custom feature type; values that are not finite count as 0."""
    numbers = np.where(np.isfinite(rows), rows, 0).astype(np.float64)
    return Quantiles.of(numbers) if rows.ndim == 1 else measure_positions(column, numbers)


SAMPLE_ROWS = 10_000
_MAX_CLASSES = 20  # the most frequent; the remaining classes are merged into one more
_BINS = 50  # of a number in Cramér's V
_MIN_LEAKAGE = 0.95
_MIN_EQUAL_ROWS = 20  # equal values in fewer rows may be a coincidence
_MAX_RELATIVE_DIFFERENCE = 1e-5  # of the range of a number; more than the rounding errors of float32
_HASH_MULTIPLIER = np.uint64(0xD1342543DE82EF95)

_SamplePart: TypeAlias = tuple[Mapping[str, np.ndarray], DistinctValues]


class RowSample:
    """Random sample of up to 10,000 rows of the scalar numbers and classes, and counts of equal rows among all rows.

    The selected rows depend only on the number of rows. They are taken from windows of rows that are read anyway, so
    that no block is read twice.

    Attributes
    ----------
    columns : list of Column
        Outputs with one number or class per row.
    equal : DistinctValues
        Hashes of the distinct rows, and how often each occurs; empty if the dataset has other outputs as well.
    """

    def __init__(self, columns: Sequence[Column], rows: int) -> None:
        """Choose the scalar columns of numbers and classes, and the sorted positions of the sampled rows."""
        scalar_types = ("numbers", "classes")
        self.columns = [one for one in columns if one.output.is_scalar and one.feature.semantic_type in scalar_types]
        self.equal = DistinctValues()
        self._are_all = len(self.columns) == len(columns)
        indices = np.arange(min(rows, SAMPLE_ROWS))
        self._sampled = (
            indices if len(indices) == rows else np.sort(permute(indices, rows, make_key(0, "rows of a report")))
        )
        self._parts: list[_SamplePart] = []

    def sample_window(self, arrays: Mapping[str, np.ndarray], start: int, stop: int) -> _SamplePart:
        """Return the sampled rows of the window [start, stop) by output, and counts of its equal rows."""
        first, last = np.searchsorted(self._sampled, [start, stop])
        rows = {one.output.name: arrays[one.output.name] for one in self.columns}
        return {key: array[self._sampled[first:last] - start] for key, array in rows.items()}, self._count_equal_rows(
            rows
        )

    def _count_equal_rows(self, rows: Mapping[str, np.ndarray]) -> DistinctValues:
        """Return the hashes of rows and their counts; empty if the columns are not all outputs."""
        if not (rows and self._are_all):
            return DistinctValues()
        hashes = np.zeros(1, np.uint64)
        for array in rows.values():
            bits = (array + np.float64(0)).view(np.uint64) if array.dtype.kind == "f" else array.astype(np.uint64)
            hashes = mix(hashes * _HASH_MULTIPLIER + bits)
        return DistinctValues.of(pa.array(hashes.view(np.int64)), np.ones(len(hashes), np.int64))

    def add(self, window_sample: _SamplePart) -> None:
        """Add the result of `sample_window` for the next window."""
        self._parts.append(window_sample)
        self.equal = self.equal + window_sample[1]

    def frame(self) -> pd.DataFrame:
        """Return the sampled encoded rows: numbers as float64, classes as int64.

        Missing numbers are replaced by a value below the minimum.
        """
        types = {
            one.output.name: np.float64 if one.feature.semantic_type == "numbers" else np.int64 for one in self.columns
        }
        joined = {name: np.concatenate([rows[name] for rows, _ in self._parts]) for name in types}
        rows = pd.DataFrame(joined).astype(types)
        return rows.fillna(rows.min() - 1)


def associate(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the association of all pairs of columns, from 1 (one determines the other) to 0, the strongest first.

    Columns with a single value are left out. Each pair has "first", "second", "measure" and "strength".
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
    """Return by (column, target) how well each column alone predicts each target, from 1 (without errors) to 0."""
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


def find_leaks(predicted: Mapping[tuple[str, str], float]) -> list[tuple[str, str]]:
    """Return the pairs (column, target) where the column alone predicts the target almost without errors."""
    return [pair for pair, strength in predicted.items() if strength >= _MIN_LEAKAGE]


def find_equal_outputs(rows: pd.DataFrame, columns: Sequence[Column]) -> list[tuple[str, str]]:
    """Return the pairs of outputs with equal decoded values in all sampled rows.

    Two outputs of one source column, and outputs with a single value, are left out.
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
    if one.dtype != np.float64 or other.dtype != np.float64:
        return one.dtype == other.dtype and one.equals(other)
    with np.errstate(over="ignore"):
        return bool((np.abs(one - other) <= _MAX_RELATIVE_DIFFERENCE * min(np.ptp(one), np.ptp(other))).all())


def _group_values(values: pd.Series) -> np.ndarray:
    """Return a small group id per row: the rank of its class by frequency, or the quantile bin of its number."""
    if values.dtype == np.float64:
        return np.minimum(values.rank(pct=True).to_numpy() * _BINS, _BINS - 1).astype(np.int64)
    ranks = pd.Series(range(values.nunique()), values.value_counts().index)
    return np.minimum(ranks[values].to_numpy(), _MAX_CLASSES)


def _cramers_v(first: np.ndarray, second: np.ndarray) -> float:
    """Return Cramér's V of two columns of group ids, with the bias correction for few rows in many classes."""
    width = int(second.max()) + 1
    crossed = np.bincount(first * width + second, minlength=(int(first.max()) + 1) * width).reshape(-1, width)
    crossed = crossed[crossed.any(axis=1)][:, crossed.any(axis=0)].astype(np.float64)
    total, denominator, (rows, columns) = len(first), max(len(first) - 1, 1), crossed.shape
    expected = crossed.sum(axis=1)[:, None] * crossed.sum(axis=0) / total
    phi = float(((crossed - expected) ** 2 / expected).sum()) / total - (rows - 1) * (columns - 1) / denominator
    limit = min(rows - (rows - 1) ** 2 / denominator, columns - (columns - 1) ** 2 / denominator) - 1
    return min(max(phi, 0.0) / limit, 1.0) ** 0.5 if limit > 0 else 0.0


def _correlation_ratio(groups: np.ndarray, ranks: np.ndarray) -> float:
    """Return the correlation ratio of ranks by group, corrected for chance; squares of `ranks` must add up to 1."""
    counts = np.bincount(groups)
    explained = float((np.bincount(groups, ranks) ** 2 / np.maximum(counts, 1)).sum())
    degrees_of_freedom = len(ranks) - int(np.count_nonzero(counts))
    return (
        min(max(1 - (1 - explained) * (len(ranks) - 1) / degrees_of_freedom, 0.0), 1.0) ** 0.5
        if degrees_of_freedom
        else 0.0
    )
