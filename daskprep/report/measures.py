"""What is counted of the rows of one output: small summaries that merge, block after block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from daskprep.features import Feature, Learned
from daskprep.features.date_numbers import MICROS_PER_SECOND, SECONDS_PER_DAY
from daskprep.storage import Output
from daskprep.summaries import Quantiles, Range, Summary
from daskprep.vocabulary import Vocabulary

_MAX_POSITION_VALUE = 1e140  # whose squares can be added up; means and deviations take what lies beyond for that


@dataclass(frozen=True)
class Column:
    """An output, with the feature that made it and what that learned."""

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
    """How often each class occurs."""

    counts: np.ndarray


@dataclass(frozen=True)
class TokenTally(ClassTally):
    """How often each token occurs, and how many rows have how many of them."""

    lengths: np.ndarray


@dataclass(frozen=True)
class DateTally(Summary):
    """Days since 1970, days of the week from Monday on, and hours."""

    days: Quantiles
    weekdays: np.ndarray
    hours: np.ndarray


@dataclass(frozen=True)
class H3Tally(Summary):
    """How often each resolution and each base cell of H3 occurs."""

    resolutions: np.ndarray
    base_cells: np.ndarray


@dataclass(frozen=True)
class PositionSums(Summary):
    """Sums, squares and range of the numbers at each position of a row."""

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
    """Return the mean of numbers; those of a bucket count as its middle."""
    values = numbers.values()
    # Shares of the largest doubles add up to a double, which they do not themselves.
    mean = float(values @ (numbers.counts / numbers.count))
    return float(min(max(mean, values[0]), values[-1]))


def measure_numbers(column: Column, rows: np.ndarray) -> Quantiles:
    """Measure numbers as they were before they were normalized."""
    return Quantiles.of(column.feature.decode(rows, column.learned).drop_null().to_numpy())


def count_classes(column: Column, rows: np.ndarray) -> ClassTally:
    """Count ids, one a row."""
    max_id = np.max(column.feature.limits(column.learned)[""][1])
    return ClassTally(np.bincount(rows, minlength=int(max_id) + 1))


def count_tokens(column: Column, rows: np.ndarray) -> TokenTally:
    """Count padded ids, those of bags as often as the numbers below them say."""
    ids, repeats = (rows[:, 0], rows[:, 1].ravel()) if rows.ndim == 3 else (rows, None)
    size, padding = len(column.vocabulary), column.vocabulary.specials.padding_id or 0
    # Sums of whole numbers, which are exact in doubles.
    counts = np.bincount(ids.ravel(), repeats, minlength=size).astype(np.int64)
    counts[padding] = 0
    lengths = np.count_nonzero(ids != padding, axis=1)
    return TokenTally(counts, np.bincount(lengths, minlength=ids.shape[1] + 1))


def count_dates(column: Column, rows: np.ndarray) -> DateTally:
    """Count the parts of dates."""
    moments = column.feature.decode(rows, column.learned).cast(pa.int64()).to_numpy()
    days, seconds = np.divmod(moments // MICROS_PER_SECOND, SECONDS_PER_DAY)
    return DateTally(
        Quantiles.of(days), np.bincount((days + 3) % 7, minlength=7), np.bincount(seconds // 3_600, minlength=24)
    )


def count_h3_cells(column: Column, rows: np.ndarray) -> H3Tally:
    """Count the parts of H3 cells."""
    return H3Tally(np.bincount(rows[:, 2], minlength=16), np.bincount(rows[:, 3], minlength=128))


def measure_positions(column: Column, rows: np.ndarray) -> PositionSums:
    """Measure numbers by where they stand in a row."""
    flat = rows.reshape(len(rows), -1)
    low, high = (float(flat.min()), float(flat.max())) if flat.size else (0.0, 0.0)
    if max(-low, high) > _MAX_POSITION_VALUE:
        flat = np.clip(flat, -_MAX_POSITION_VALUE, _MAX_POSITION_VALUE)
    squares = np.einsum("ij,ij->j", flat, flat, dtype=np.float64)
    return PositionSums(len(rows), flat.sum(axis=0, dtype=np.float64), squares, Range(low, high))


def measure_other(column: Column, rows: np.ndarray) -> Summary:
    """Measure the rows of a type of someone's own; what is no finite number counts as 0."""
    numbers = np.where(np.isfinite(rows), rows, 0).astype(np.float64)
    return Quantiles.of(numbers) if rows.ndim == 1 else measure_positions(column, numbers)
