"""Exact sums by distinct value and by fold, in bounded memory for any number of values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from daskprep.storage.checkpoint import checkpointable
from daskprep.summaries.base import Summary
from daskprep.summaries.exact import split_at_positions
from daskprep.summaries.spill import SpilledCounts, shard_groups, sort_by_shard, spill

# Doubles are split into digits of 26 bits at fixed positions. Their sums over a partition, which has fewer than 2**27
# rows, stay below 2**53, where float64 is exact; over all partitions, they stay below 2**63.
DIGIT_BITS = 26
# Positions kept for a quantity, from its highest: lower digits are below 2**-180 of the largest number.
MAX_POSITIONS = 8

# Limits on the sums in memory if there is a folder to spill to, and on the sums that are added up in one step.
SPILL_BYTES = 64 << 20
GROUP_BYTES = 64 << 20
_VALUE_BYTES = 32  # estimated size of a text

DigitLabels = tuple[tuple[str, int], ...]


@checkpointable
@dataclass(frozen=True)
class SumTable:
    """Table of sums by distinct value.

    Attributes
    ----------
    values : pa.Array
        Distinct texts.
    labels : tuple
        Quantity and digit position of each column of `digits`.
    digits : ndarray
        Sums of digits, of shape (values, labels, folds), in the smallest sufficient type.
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
        """Return sums of a quantity in units of 2**(26 * `unit`): a row per value.

        The first column is over all folds, and each of the next ones leaves one fold out.
        """
        sums = np.zeros((len(self.digits), 1 + self.folds))
        for column, (name, position) in reversed(list(enumerate(self.labels))):
            if name == quantity:
                digits = self.digits[:, column].astype(np.int64)
                total = digits.sum(axis=1, keepdims=True)
                fold_totals = np.concatenate([total, total - digits], axis=1)
                sums += np.ldexp(fold_totals.astype(np.float64), DIGIT_BITS * (position - unit))
        return sums


class SpilledSums(NamedTuple):
    """Sums in a file: the digits of a value are a row of `file`, of shape (labels, folds)."""

    labels: DigitLabels
    folds: int
    file: SpilledCounts


@dataclass(frozen=True, eq=False)
class ValueSums(Summary):
    """Exact sums of quantities by distinct value of a column and by fold.

    Attributes
    ----------
    chunks : tuple of SumTable
        Sums in memory; a value may be in several chunks.
    spilled : tuple of SpilledSums
        Sums in files.

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
        """Summarize rows by their value and their fold number, which is below `fold_count`.

        `quantities` has numbers by row; NaN is left out.
        """
        distinct = len(values.dictionary)
        cells = values.indices.to_numpy().astype(np.int64) * fold_count + folds
        columns: dict[tuple[str, int], np.ndarray] = {}
        for name, numbers in quantities.items():
            present = np.flatnonzero(numbers == numbers)  # noqa: PLR0124 False for NaN
            present_cells = cells[present]
            for position, digits in split_at_positions(numbers[present], DIGIT_BITS, MAX_POSITIONS):
                sums = np.bincount(present_cells, digits, distinct * fold_count).astype(np.int64)
                columns[name, position] = _shrink_dtype(sums.reshape(distinct, fold_count))
        labels = tuple(sorted(columns))
        if not distinct or not labels:
            return cls()
        digits = np.empty((distinct, len(labels), fold_count), np.result_type(*(columns[label] for label in labels)))
        for column, label in enumerate(labels):
            digits[:, column] = columns.pop(label)  # frees each column once it is copied
        return cls((SumTable(values.dictionary, labels, digits),))

    def __add__(self, other: ValueSums) -> ValueSums:
        return ValueSums(self.chunks + other.chunks, self.spilled + other.spilled)

    def limit_memory(self, folder: str | None) -> ValueSums:
        """Return equal sums with at most 64 MB in memory and the rest in `folder`."""
        chunks = self.chunks
        if len(chunks) > 1:
            labels = {label for chunk in chunks for label in chunk.labels}
            row_bytes = _VALUE_BYTES + 8 * len(labels) * chunks[0].folds
            if folder is None or sum(len(chunk.values) for chunk in chunks) * row_bytes <= GROUP_BYTES:
                chunks = (_sum_chunks(chunks),)
        if folder is None or sum(chunk.nbytes for chunk in chunks) <= SPILL_BYTES:
            return ValueSums(chunks, self.spilled)
        files = (spill(folder, chunk.values, chunk.digits.reshape(len(chunk.values), -1)) for chunk in chunks)
        spilled = (SpilledSums(chunk.labels, chunk.folds, file) for chunk, file in zip(chunks, files, strict=True))
        return ValueSums((), (*self.spilled, *spilled))

    def parts(self) -> Iterator[SumTable]:
        """Yield the sums in parts with the same labels; each value is in one part only."""
        all_labels = [*(chunk.labels for chunk in self.chunks), *(sums.labels for sums in self.spilled)]
        labels = _select_labels({label for labels in all_labels for label in labels})
        in_memory = _sum_chunks(self.chunks, labels) if self.chunks else None
        if not self.spilled:
            if in_memory is not None:
                yield in_memory
            return
        sorted_memory = None if in_memory is None else sort_by_shard(in_memory.values, in_memory.digits)
        row_bytes = _VALUE_BYTES + 8 * len(labels) * self.spilled[0].folds
        for shards in shard_groups([sums.file for sums in self.spilled], GROUP_BYTES // row_bytes):
            tables = [
                SumTable(values, sums.labels, digits.reshape(len(values), len(sums.labels), sums.folds))
                for sums in self.spilled
                for values, digits in sums.file.read(shards)
            ]
            if sorted_memory is not None:
                values, digits, borders = sorted_memory
                rows = slice(int(borders[shards.start]), int(borders[shards.stop]))
                if rows.start < rows.stop:  # Arrow's dictionary_encode leaves out empty chunks
                    tables.append(SumTable(values[rows], labels, digits[rows]))
            if tables:
                yield _sum_chunks(tuple(tables), labels)


def _select_labels(labels: Collection[tuple[str, int]]) -> DigitLabels:
    """Return labels in order, without the positions that are too far below the highest of their quantity."""
    highest: dict[str, int] = {}
    for name, position in labels:
        highest[name] = max(position, highest.get(name, position))
    return tuple(sorted((name, position) for name, position in labels if position > highest[name] - MAX_POSITIONS))


def _shrink_dtype(digits: np.ndarray) -> np.ndarray:
    """Convert integers to the smallest sufficient type."""
    lowest = min(int(digits.min()), -1 - int(digits.max()))
    return digits.astype(np.min_scalar_type(lowest))


def _sum_chunks(chunks: tuple[SumTable, ...], labels: DigitLabels | None = None) -> SumTable:
    """Return one table with the sums of chunks; a value occurs at most once in each chunk."""
    labels = labels or _select_labels({label for chunk in chunks for label in chunk.labels})
    encoded = pa.chunked_array([chunk.values for chunk in chunks]).dictionary_encode().chunks
    total = np.zeros((len(encoded[0].dictionary), len(labels), chunks[0].folds), np.int64)
    for chunk, codes in zip(chunks, encoded, strict=True):
        rows = codes.indices.to_numpy()
        for column, label in enumerate(chunk.labels):
            if label in labels:
                total[rows, labels.index(label)] += chunk.digits[:, column]
    return SumTable(encoded[0].dictionary, labels, _shrink_dtype(total))
