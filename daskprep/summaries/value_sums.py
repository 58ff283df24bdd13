"""Exact sums by distinct value and by fold, within memory however many values there are."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from daskprep.storage.checkpoint import checkpointable
from daskprep.summaries.base import Summary
from daskprep.summaries.spill import SpilledCounts, shard_groups, sort_by_shard, spill

# A double is cut into digits of 26 bits at fixed places. So many rows of a partition as fit in memory add up to less
# than 2**53, which float64 holds exactly, and those of all partitions to less than 2**63.
DIGIT_BITS = 26
_DIGIT = (1 << DIGIT_BITS) - 1
# Of a quantity, so many places below the highest are kept: what lies further down is below 2**-180 of the largest.
MAX_POSITIONS = 8

# What may stay in memory when there is a folder to spill to, and what is added up at a time.
SPILL_BYTES = 64 << 20
GROUP_BYTES = 64 << 20
_VALUE_BYTES = 32  # of a text, about

DigitLabels = tuple[tuple[str, int], ...]


@checkpointable
@dataclass(frozen=True)
class SumTable:
    """The sums of some values.

    Attributes
    ----------
    values : pa.Array
        Distinct texts.
    labels : tuple
        A quantity and the place of a digit for each of the columns.
    digits : ndarray
        Sums of digits, of shape (values, labels, folds), in the smallest type that holds them.
    """

    values: pa.Array
    labels: DigitLabels
    digits: np.ndarray

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes + self.digits.nbytes)

    @property
    def folds(self) -> int:
        return int(self.digits.shape[2])

    def sums_by_fold(self, quantity: str, unit: int) -> np.ndarray:
        """Return the sums of a quantity over all folds, then over all but each, in units of 2**(26 * unit)."""
        sums = np.zeros((len(self.digits), 1 + self.folds))
        for column, (name, position) in reversed(list(enumerate(self.labels))):
            if name == quantity:
                digits = self.digits[:, column].astype(np.int64)
                total = digits.sum(axis=1, keepdims=True)
                fold_totals = np.concatenate([total, total - digits], axis=1)
                sums += np.ldexp(fold_totals.astype(np.float64), DIGIT_BITS * (position - unit))
        return sums


class SpilledSums(NamedTuple):
    """Sums in a file."""

    labels: DigitLabels
    folds: int
    file: SpilledCounts


@dataclass(frozen=True, eq=False)
class ValueSums(Summary):
    """Sums of quantities for every distinct value of a column, apart by fold; they never round.

    Examples
    --------
    >>> values = pa.array(["a", "b", "a"]).dictionary_encode()
    >>> sums = ValueSums.of(values, np.array([0, 0, 1], np.uint8), 2, {"y": np.array([0.1, 2.0, 0.2])})
    >>> [part] = (sums + sums).parts()
    >>> part.values.to_pylist(), part.sums_by_fold("y", 0).tolist()
    (['a', 'b'], [[0.6000000000000001, 0.4, 0.2], [4.0, 0.0, 4.0]])
    """

    chunks: tuple[SumTable, ...] = ()
    spilled: tuple[SpilledSums, ...] = ()

    @classmethod
    def of(
        cls, values: pa.DictionaryArray, folds: np.ndarray, fold_count: int, quantities: Mapping[str, np.ndarray]
    ) -> ValueSums:
        """Summarize rows by their value and their fold, one of `fold_count`; what is NaN of a quantity is left out."""
        distinct = len(values.dictionary)
        cells = values.indices.to_numpy().astype(np.int64) * fold_count + folds
        columns: dict[tuple[str, int], np.ndarray] = {}
        for name, numbers in quantities.items():
            for position, rows, digits in _split_digits(numbers):
                fold_sums = (
                    np.bincount(cells[rows], digits, distinct * fold_count)
                    .astype(np.int64)
                    .reshape(distinct, fold_count)
                )
                columns[name, position] = _shrink_dtype(
                    columns.get((name, position), 0) + fold_sums
                )  # digits of others lie there too
        labels = _select_labels(columns)
        if not distinct or not labels:
            return cls()
        digits = np.empty((distinct, len(labels), fold_count), np.result_type(*(columns[label] for label in labels)))
        for column, label in enumerate(labels):
            digits[:, column] = columns.pop(label)  # most are in memory once, as they may take most of it
        return cls((SumTable(values.dictionary, labels, digits),))

    def __add__(self, other: ValueSums) -> ValueSums:
        return ValueSums(self.chunks + other.chunks, self.spilled + other.spilled)

    def __mul__(self, times: int) -> ValueSums:
        return ValueSums(self.chunks * times, self.spilled * times)

    def limit_memory(self, folder: str | None) -> ValueSums:
        """Return equal sums with at most 64 MB in memory and the others in `folder`."""
        chunks = self.chunks
        if len(chunks) > 1 and (folder is None or _estimate_sum_bytes(chunks) <= GROUP_BYTES):
            chunks = (_sum_chunks(chunks),)
        if folder is None or sum(chunk.nbytes for chunk in chunks) <= SPILL_BYTES:
            return ValueSums(chunks, self.spilled)
        files = (spill(folder, one.values, one.digits.reshape(len(one.values), -1)) for one in chunks)
        spilled = (SpilledSums(one.labels, one.folds, file) for one, file in zip(chunks, files, strict=True))
        return ValueSums((), (*self.spilled, *spilled))

    def parts(self) -> Iterator[SumTable]:
        """Give the sums in parts that share no value; all have the same labels."""
        all_labels = [*(chunk.labels for chunk in self.chunks), *(one.labels for one in self.spilled)]
        labels = _select_labels({label for labels in all_labels for label in labels})
        in_memory = _sum_chunks(self.chunks, labels) if self.chunks else None
        if not self.spilled:
            if in_memory is not None:
                yield in_memory
            return
        sorted_memory = None if in_memory is None else sort_by_shard(in_memory.values, in_memory.digits)
        row_bytes = _VALUE_BYTES + 8 * len(labels) * self.spilled[0].folds
        for shards in shard_groups([one.file for one in self.spilled], GROUP_BYTES // row_bytes):
            tables = [
                SumTable(values, one.labels, digits.reshape(len(values), len(one.labels), one.folds))
                for one in self.spilled
                for values, digits in one.file.read(shards)
            ]
            if sorted_memory is not None:
                values, digits, borders = sorted_memory
                rows = slice(int(borders[shards.start]), int(borders[shards.stop]))
                if rows.start < rows.stop:  # Arrow leaves out empty chunks
                    tables.append(SumTable(values[rows], labels, digits[rows]))
            if tables:
                yield _sum_chunks(tuple(tables), labels)


def _split_digits(numbers: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Cut doubles into digits with their sign; give a place, which rows have digits there, and these."""
    present = np.flatnonzero(numbers == numbers)  # noqa: PLR0124 NaN is not
    numbers = numbers[present]
    mantissa, exponent = np.frexp(np.abs(numbers))
    integer_mantissa = np.ldexp(mantissa, 53).astype(np.int64)
    positions, shift = np.divmod(exponent - 53, DIGIT_BITS)
    low = (integer_mantissa & _DIGIT) << shift
    high = ((integer_mantissa >> DIGIT_BITS) << shift) + (low >> DIGIT_BITS)
    sign = np.where(numbers < 0, -1.0, 1.0)
    for position in np.unique(positions).tolist():
        rows = np.flatnonzero(positions == position)
        for offset, values in enumerate((low & _DIGIT, high & _DIGIT, high >> DIGIT_BITS)):
            digits = values[rows]
            if digits.any():
                yield position + offset, present[rows], digits * sign[rows]


def _select_labels(labels: Collection[tuple[str, int]]) -> DigitLabels:
    """Return labels in order, without the places that are too far below the highest of their quantity."""
    highest: dict[str, int] = {}
    for name, position in labels:
        highest[name] = max(position, highest.get(name, position))
    return tuple(sorted((name, position) for name, position in labels if position > highest[name] - MAX_POSITIONS))


def _shrink_dtype(digits: np.ndarray) -> np.ndarray:
    """Return whole numbers in the smallest type that holds them."""
    lowest = min(int(digits.min()), -1 - int(digits.max()))
    return digits.astype(np.min_scalar_type(lowest))


def _estimate_sum_bytes(chunks: tuple[SumTable, ...]) -> int:
    """Return how many bytes the sum of chunks takes at most while they are added up."""
    labels = {label for chunk in chunks for label in chunk.labels}
    return sum(len(chunk.values) for chunk in chunks) * (_VALUE_BYTES + 8 * len(labels) * chunks[0].folds)


def _sum_chunks(chunks: tuple[SumTable, ...], labels: DigitLabels | None = None) -> SumTable:
    """Return the sums of chunks, in each of which a value is there once."""
    labels = labels or _select_labels({label for chunk in chunks for label in chunk.labels})
    encoded = pa.chunked_array([chunk.values for chunk in chunks]).dictionary_encode().chunks
    total = np.zeros((len(encoded[0].dictionary), len(labels), chunks[0].folds), np.int64)
    for chunk, codes in zip(chunks, encoded, strict=True):
        rows = codes.indices.to_numpy()
        for column, label in enumerate(chunk.labels):
            if label in labels:
                total[rows, labels.index(label)] += chunk.digits[:, column]
    return SumTable(encoded[0].dictionary, labels, _shrink_dtype(total))
