"""Measures of the rows of one output: small summaries that merge across blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from daskprep.features import Feature, Learned
from daskprep.features.date_numbers import MICROS_PER_SECOND, SECONDS_PER_DAY
from daskprep.storage import Output
from daskprep.summaries import Quantiles, Range, Summary
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
