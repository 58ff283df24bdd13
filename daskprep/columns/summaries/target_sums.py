"""Exact sums of a target by buckets of a number, and of quantities by distinct value and by fold, in bounded memory."""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from daskprep.columns.summaries.base import Summary, finite_doubles
from daskprep.columns.summaries.moments import split_at_positions
from daskprep.columns.summaries.quantiles import (
    DENSE_KEYS,
    Quantiles,
    assign_buckets,
    empty_integers,
    finest_shift,
    merge_buckets,
)
from daskprep.columns.summaries.token_counts import SpilledCounts, shard_groups, sort_by_shard, spill
from daskprep.storage.checkpoint import checkpointable

Label: TypeAlias = int | str

# Targets are rounded to 24 bits, and become integers of at most 27 bits at positions of 4 bits. Sums of 2**26 rows of a
# partition, and of 2**36 in total, are then exact. Positions 16 below the highest one are left out.
_MANTISSA_BITS, _POSITION_SHIFT, _MAX_TARGET_POSITIONS = 24, 2, 16
_POSITION_BITS = 1 << _POSITION_SHIFT


@dataclass(frozen=True, eq=False)
class TargetSums(Summary):
    """Buckets of a number with sums of a target."""

    keys: np.ndarray = field(default_factory=empty_integers)  # buckets, as in `Quantiles`
    rows: np.ndarray = field(default_factory=empty_integers)  # by bucket
    # Rows of each class or sums of digits, of shape (buckets, labels).
    sums: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    labels: tuple[Label, ...] = ()  # class, or position of the digits, of each column of `sums`
    shift: int = 0

    @classmethod
    def of(
        cls, values: np.ndarray, codes: np.ndarray, labels: tuple[Label, ...], digits: np.ndarray | None = None
    ) -> TargetSums:
        """Summarize finite values with the class of each (`codes` in `labels`), or with `digits` at positions."""
        keys, shift = assign_buckets(finite_doubles(values))
        if not len(keys):
            return cls()
        if digits is not None:
            highest = int(codes.max())
            lowest = max(int(codes.min()), highest - _MAX_TARGET_POSITIONS + 1)
            if lowest or highest + 1 < len(labels):
                digits = np.where(codes < lowest, 0.0, digits)
                codes, labels = np.maximum(codes, lowest) - lowest, labels[lowest : highest + 1]
        low = int(keys.min())
        if int(keys.max()) - low < DENSE_KEYS:
            keys -= low
            rows = np.bincount(keys)
            present = np.flatnonzero(rows > 0)
            rows, distinct = rows[present], present + low
            row_offsets = np.zeros(int(present[-1]) + 1, np.int64)
            row_offsets[present] = np.arange(0, len(present) * len(labels), len(labels))
            cells = row_offsets.take(keys)
        else:
            distinct, cells, rows = np.unique(keys, return_inverse=True, return_counts=True)
            cells *= len(labels)
        cells += codes
        sums = np.bincount(cells, digits, len(distinct) * len(labels)).astype(np.int64).reshape(-1, len(labels))
        if digits is not None and len(labels) == 1 and not digits.any():  # zeros have no position
            sums, labels = sums[:, :0], ()
        return cls(distinct, rows, sums, labels, shift)._coarsen()

    @property
    def buckets(self) -> Quantiles:
        """Buckets and their numbers of rows."""
        return Quantiles(self.keys, self.rows, self.shift)

    def targets(self) -> np.ndarray:
        """Return the sum of the target by bucket, (buckets, 1), or rows by class."""
        sums = self.sums.astype(np.float64)
        if not self.labels or isinstance(self.labels[0], str):
            return sums
        positions = np.array(self.labels)
        # Relative to the highest position, since sums may overflow; in order, so that empty positions have no effect.
        scaled = np.ldexp(sums, _POSITION_BITS * (positions - positions.max()))
        total: np.ndarray = functools.reduce(operator.add, scaled.T)[:, None]
        return total

    def __add__(self, other: TargetSums) -> TargetSums:
        labels = _order_labels({*self.labels, *other.labels})
        shift = max(self.shift, other.shift)
        keys = np.concatenate([part.keys >> (shift - part.shift) for part in (self, other)])
        keys, totals = merge_buckets(keys, np.concatenate([part._align_columns(labels) for part in (self, other)]))
        return TargetSums(keys, totals[:, 0], totals[:, 1:], labels, shift)._coarsen()

    def __mul__(self, times: int) -> TargetSums:
        repeated = TargetSums(self.keys, self.rows * times, self.sums * times, self.labels, self.shift)
        return repeated if times else TargetSums()

    def _align_columns(self, labels: tuple[Label, ...]) -> np.ndarray:
        """Return `rows`, then the column of `sums` of each of `labels`."""
        columns = dict(zip(self.labels, self.sums.T, strict=True))
        return np.column_stack([self.rows, *(columns.get(label, np.zeros_like(self.rows)) for label in labels)])

    def _coarsen(self) -> TargetSums:
        labels = _order_labels(set(self.labels))
        extra_shift = finest_shift(self.keys)
        if not extra_shift and labels == self.labels:
            return self
        keys, totals = merge_buckets(self.keys >> extra_shift, self._align_columns(labels))
        return TargetSums(keys, totals[:, 0], totals[:, 1:], labels, self.shift + extra_shift)


def split_into_digits(target: np.ndarray) -> tuple[np.ndarray, tuple[Label, ...], np.ndarray]:
    """Return each number's position index, positions, and digits.

    Numbers are rounded to 24 bits, and are digits times 16**position, so that sums are exact. ValueError unless finite.
    """
    mantissas, exponents = np.frexp(finite_doubles(target))
    exponents -= _MANTISSA_BITS
    digits = np.ldexp(np.rint(np.ldexp(mantissas, _MANTISSA_BITS)), exponents & (_POSITION_BITS - 1))
    positions = exponents >> _POSITION_SHIFT
    is_nonzero = mantissas != 0.0
    used = positions if is_nonzero.all() else positions[is_nonzero]
    lowest, highest = (int(used.min()), int(used.max())) if len(used) else (0, 0)
    return np.where(is_nonzero, positions - lowest, 0), tuple(range(lowest, highest + 1)), digits


def _order_labels(labels: set[Label]) -> tuple[Label, ...]:
    """Return classes in order, or positions up to the highest."""
    positions = [label for label in labels if isinstance(label, int)]
    if not positions:
        return tuple(sorted(labels, key=str))
    return tuple(range(max(min(positions), max(positions) - _MAX_TARGET_POSITIONS + 1), max(positions) + 1))


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
    """Table of sums by distinct value."""

    values: pa.Array
    labels: DigitLabels  # quantity and digit position of each column of `digits`
    digits: np.ndarray  # sums of digits, of shape (values, labels, folds), in the smallest sufficient type

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes + self.digits.nbytes)

    @property
    def folds(self) -> int:
        return int(self.digits.shape[2])

    def sums_by_fold(self, quantity: str, unit: int) -> np.ndarray:
        """Return sums of a quantity over all folds, then without each, in ``2**(DIGIT_BITS * unit)``."""
        sums = np.zeros((len(self.digits), 1 + self.folds))
        for column, (name, position) in reversed(list(enumerate(self.labels))):
            if name == quantity:
                digits = self.digits[:, column].astype(np.int64)
                total = digits.sum(axis=1, keepdims=True)
                fold_totals = np.concatenate([total, total - digits], axis=1)
                sums += np.ldexp(fold_totals.astype(np.float64), DIGIT_BITS * (position - unit))
        return sums


class SpilledSums(NamedTuple):
    """Sums in a file, a row of shape (labels, folds) for each value."""

    labels: DigitLabels
    folds: int
    file: SpilledCounts


@dataclass(frozen=True, eq=False)
class ValueSums(Summary):
    """Exact sums of quantities by distinct value of a column and by fold."""

    chunks: tuple[SumTable, ...] = ()  # sums in memory; a value may be in several chunks
    spilled: tuple[SpilledSums, ...] = ()  # sums in files

    @classmethod
    def of(
        cls, values: pa.DictionaryArray, folds: np.ndarray, fold_count: int, quantities: Mapping[str, np.ndarray]
    ) -> ValueSums:
        """Summarize the `quantities` of rows, if not NaN, by value and fold number."""
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
        """Return equal sums with at most 64 MB in memory, others in `folder`; None: all in memory."""
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
        """Yield the sums in parts, each value in one of them; none without values."""
        all_labels = [*(chunk.labels for chunk in self.chunks), *(sums.labels for sums in self.spilled)]
        labels = _keep_high_positions({label for labels in all_labels for label in labels})
        in_memory = _sum_chunks(self.chunks, labels) if self.chunks else None
        if not self.spilled:
            if in_memory is not None:
                yield in_memory
            return
        sorted_memory = None if in_memory is None else sort_by_shard(in_memory.values, in_memory.digits)
        row_bytes = _VALUE_BYTES + 8 * len(labels) * self.spilled[0].folds
        for shards in shard_groups(sum(sums.file.entries for sums in self.spilled), GROUP_BYTES // row_bytes):
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


def _keep_high_positions(labels: Collection[tuple[str, int]]) -> DigitLabels:
    """Return labels in order, without low positions."""
    highest: dict[str, int] = {}
    for name, position in labels:
        highest[name] = max(position, highest.get(name, position))
    return tuple(sorted((name, position) for name, position in labels if position > highest[name] - MAX_POSITIONS))


def _shrink_dtype(digits: np.ndarray) -> np.ndarray:
    lowest = min(int(digits.min()), -1 - int(digits.max()))
    return digits.astype(np.min_scalar_type(lowest))


def _sum_chunks(chunks: tuple[SumTable, ...], labels: DigitLabels | None = None) -> SumTable:
    """Return a table with the sums of chunks, at `labels`; None: at the highest positions."""
    labels = labels or _keep_high_positions({label for chunk in chunks for label in chunk.labels})
    encoded = pa.chunked_array([chunk.values for chunk in chunks]).dictionary_encode().chunks
    total = np.zeros((len(encoded[0].dictionary), len(labels), chunks[0].folds), np.int64)
    for chunk, codes in zip(chunks, encoded, strict=True):
        rows = codes.indices.to_numpy()
        for column, label in enumerate(chunk.labels):
            if label in labels:
                total[rows, labels.index(label)] += chunk.digits[:, column]
    return SumTable(encoded[0].dictionary, labels, _shrink_dtype(total))
