"""Positions of rows within their classes, and ranks in a sorted column, computed over partitions.

Splits and balances use them. A *class* is a cell in its string form (`class_names`), so that 1, 1.0 and "1" are one
class, and partitions may differ in type; missing cells are a separate class. `count_classes` counts each partition,
and `share_classes` adds up the counts in partition order. It returns a `ClassShare` per partition, which computes the
positions of its rows. For sorted columns, `OrderedCounts` and `find_ranks` compute exact quantiles from bounded counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from operator import add
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from daskprep.columns.kernels import only_where, unwrap_mixed_column
from daskprep.columns.permutation import Integers, Uint64Array, bit_lengths, hash_strings, permute
from daskprep.errors import ColumnError, RejectedValueError
from daskprep.sources.base import require_columns
from daskprep.storage.checkpoint import checkpointable

Mask = NDArray[np.bool_]

# The client holds the class counts of all partitions in memory; 1,000,000 classes take about 30 MB per partition.
MAX_CLASSES = 1_000_000
# A pass over the data divides the width of a bucket by this number if numbers are spread evenly: two passes find a
# rank among about 268 million distinct numbers.
MAX_BUCKETS = 16_384
# Below this number of rows per class, one call on per-row keys is faster than one call per class.
_MIN_ROWS_PER_CALL = 2_000


def find_column(table: pa.Table, column: str) -> pa.ChunkedArray:
    """Return a column; MissingColumnError if there is none."""
    require_columns([column], table.column_names)
    return unwrap_mixed_column(table.column(column))


def data_changed_error(what: str) -> ColumnError:
    """Return the error for a partition that changed between reads."""
    return ColumnError(
        f"{what} changed between two reads of the data. Make sure that the source returns the same rows each time, for "
        "instance by writing it to Parquet first."
    )


def rejected_rows_error(
    column: str, rows: int, examples: Sequence[tuple[int, str]], expected: str
) -> RejectedValueError:
    """Return the error for rows without an `expected` value."""
    shown = ", ".join(f"{value} in row {row}" for row, value in examples) + ", ..." * (rows > len(examples))
    return RejectedValueError(
        f'Split column "{column}": {rows} row(s) without {expected}: {shown}. Rows count from 0. Correct these '
        "values, or drop their rows before the split."
    )


def show_classes(names: pa.Array, indices: Integers) -> list[str]:
    """Return class names for messages: quoted, or "(missing)"."""
    shown = names.take(pa.array(indices)).cast(pa.large_binary()).to_pylist()
    return ["(missing)" if name is None else f'"{name.decode(errors="replace")}"' for name in shown]


def class_names(values: pa.Array) -> pa.Array:
    """Return class names of cells, null for missing ones and NaN.

    Integral floats are named like integers (1.0 is "1"), decimals lose trailing zeros, and booleans are "true" and
    "false". Timestamps are UTC in microseconds; times of day and durations also have microseconds. Bytes are unchanged.
    """
    kind = values.type
    if pa.types.is_floating(kind):
        return _float_names(values)
    if pa.types.is_timestamp(kind):
        # Two casts: the first fixes the digits, the second turns a time zone into UTC.
        values = values.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.timestamp("us"))
    elif pa.types.is_time(kind):
        values = values.cast(pa.time64("us"), safe=False)
    elif pa.types.is_duration(kind):
        values = values.cast(pa.duration("us"), safe=False)
    names = pc.cast(values, options=pc.CastOptions(pa.large_string(), allow_invalid_utf8=True))
    if pa.types.is_decimal(kind) and kind.scale > 0:
        names = pc.ascii_rtrim(pc.ascii_rtrim(names, "0"), ".")
    return names


def _float_names(values: pa.Array) -> pa.Array:
    """Return the names of floats, integral ones as integers."""
    wide = values.cast(pa.float64())
    wide = pc.if_else(pc.is_nan(wide), None, wide)
    is_integral = pc.and_(pc.equal(pc.floor(wide), wide), pc.less(pc.abs(wide), 2.0**63))
    integers = pc.if_else(is_integral, wide, 0.0).cast(pa.int64()).cast(pa.large_string())
    return pc.if_else(is_integral, integers, only_where(pc.is_valid(wide), values.cast(pa.large_string())))


def encode_classes(table: pa.Table, column: str) -> tuple[Integers, pa.Array]:
    """Return the class code of every row, and the distinct class names by code.

    Some names may have no row. Null names missing values. ColumnError for nested types.
    """
    cells = find_column(table, column)
    kind = cells.type
    if pa.types.is_nested(kind) or pa.types.is_run_end_encoded(kind):
        raise ColumnError(f'Column "{column}" holds {kind}, which has no classes: use plain values.')
    shares_dictionary = not pa.types.is_dictionary(kind)
    chunks = cells.dictionary_encode().chunks
    dictionaries = [chunk.dictionary for chunk in (chunks[:1] if shares_dictionary else chunks)]
    classes = pa.concat_arrays([pa.nulls(1, pa.large_string()), *map(class_names, dictionaries)])
    distinct = np.arange(len(classes))
    has_unique_names = pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not (shares_dictionary and has_unique_names):
        # Different cells may have the same name: 0.0 and -0.0, or a value in the dictionaries of two chunks.
        merged = classes.dictionary_encode(null_encoding="encode")
        classes, distinct = merged.dictionary, merged.indices.to_numpy().astype(np.int64)
    codes, first = list[Integers](), 1
    for chunk in chunks:
        size = len(chunk.dictionary)
        chunk_codes = np.append(distinct[first : first + size], distinct[0])
        indices = chunk.indices.fill_null(size) if chunk.null_count else chunk.indices
        codes.append(chunk_codes[indices.to_numpy()])
        first += 0 if shares_dictionary else size
    return codes[0] if len(codes) == 1 else np.concatenate([np.zeros(0, np.int64), *codes]), classes


@checkpointable
@dataclass(frozen=True)
class RowCounts:
    """Number of rows in a partition, and of the kept rows."""

    rows: int
    kept: int


@checkpointable
@dataclass(frozen=True, eq=False)
class ClassCounts:
    """Numbers of rows by class."""

    classes: pa.Array  # distinct names; null is the class of missing values
    counts: Integers  # rows of each class, above 0


def _unify(parts: Sequence[ClassCounts]) -> tuple[list[Integers], pa.Array]:
    """Return class codes of each part, and all class names."""
    names = pa.chunked_array([part.classes for part in parts], pa.large_string())
    # Arrow drops empty chunks here, so the codes are split by the lengths of the parts.
    chunks = pc.dictionary_encode(names, null_encoding="encode").chunks
    codes = np.concatenate([np.zeros(0, dtype=np.int64), *(chunk.indices.to_numpy() for chunk in chunks)])
    ends = np.cumsum([len(part.classes) for part in parts])
    return np.split(codes, ends)[:-1], chunks[0].dictionary if chunks else pa.array([], pa.large_string())


def count_classes(table: pa.Table, column: str, mask: Mask | None) -> ClassCounts:
    """Count the rows of each class among those in `mask` (None: all); ColumnError for above 1,000,000 classes."""
    codes, classes = encode_classes(table, column)
    counts = np.bincount(codes if mask is None else codes[mask])
    used = np.flatnonzero(counts)
    _check_class_count(column, used.size)
    return ClassCounts(classes.take(pa.array(used)), counts[used].astype(np.int64))


def _check_class_count(column: str, classes: int) -> None:
    """Raise ColumnError beyond MAX_CLASSES."""
    if classes > MAX_CLASSES:
        raise ColumnError(
            f'Column "{column}" has more than {MAX_CLASSES:,} classes, too many to count each. Use a '
            "column with fewer distinct values, or a split that needs no counts (RandomSplit, HashSplit)."
        )


@dataclass(frozen=True, eq=False)
class ClassShare:
    """The classes of one partition, with their counts before and in total."""

    column: str
    key: int  # key of the permutation of each class
    classes: pa.Array  # names, of the classes with rows in the partition
    before: Integers  # rows of each of these classes in earlier partitions
    totals: Integers  # and in all partitions

    def positions(self, table: pa.Table, mask: Mask | None) -> tuple[Integers, Integers, Integers]:
        """Return the marked row numbers, sorted by class, their classes and positions.

        The position of a row is its rank among all marked rows of its class, permuted by key and name of the class.
        """
        codes = self._encode_rows(table, mask)
        order = stable_order(codes, len(self.classes))
        counts = np.bincount(codes, minlength=len(self.classes))
        first = np.cumsum(counts) - counts
        ranks = np.arange(codes.size)
        ranks += np.repeat(self.before - first, counts)
        keys = hash_strings(self.classes, self.key)
        rows = order if mask is None else np.flatnonzero(mask)[order]
        return rows, np.repeat(np.arange(counts.size), counts), self._permute_ranks(ranks, counts, keys)

    def _permute_ranks(self, ranks: Integers, counts: Integers, keys: Uint64Array) -> Integers:
        """Return ranks, permuted within each class by its key; consecutive `counts` are of one class."""
        if ranks.size < _MIN_ROWS_PER_CALL * counts.size:
            return permute(ranks, np.repeat(self.totals, counts), np.repeat(keys, counts))
        ends = np.cumsum(counts)
        spans = zip(ends - counts, ends, self.totals, keys, strict=True)
        parts = [permute(ranks[first:end], int(total), int(key)) for first, end, total, key in spans]
        return np.concatenate([np.zeros(0, dtype=np.int64), *parts])

    def _encode_rows(self, table: pa.Table, mask: Mask | None) -> Integers:
        """Return the class number of each marked row; ColumnError for a class that the census lacks."""
        codes, names = encode_classes(table, self.column)
        indices = pc.index_in(names, value_set=self.classes).fill_null(-1).to_numpy().astype(np.int64)
        known: Integers = indices[codes if mask is None else codes[mask]]
        if known.size and known.min() < 0:
            raise data_changed_error(f'Column "{self.column}"')
        return known


def stable_order(codes: Integers, classes: int) -> Integers:
    """Return the stable argsort of codes below `classes`, by sorts of 16 bits."""
    order = np.argsort(codes.astype(np.uint16), kind="stable")
    if classes > 0x10000:
        order = order[np.argsort((codes >> 16)[order].astype(np.uint16), kind="stable")]
    return order


def share_classes(parts: Sequence[ClassCounts], column: str, key: int) -> tuple[ClassCounts, list[ClassShare]]:
    """Return the total counts of classes, and the share of each partition, in order."""
    codes, classes = _unify(parts)
    _check_class_count(column, len(classes))
    totals = np.zeros(len(classes), dtype=np.int64)
    before = []
    for part, code in zip(parts, codes, strict=True):
        before.append(totals[code])
        totals[code] += part.counts
    shares = [
        ClassShare(column, key, part.classes, rows_before, totals[code])
        for part, code, rows_before in zip(parts, codes, before, strict=True)
    ]
    return ClassCounts(classes, totals), shares


@checkpointable
@dataclass(frozen=True, eq=False)
class OrderedCounts:
    """Numbers of rows by bucket of 2**shift integers, at most 16,384.

    `shift` is the smallest that meets this limit for all rows so far, so that sums do not depend on their order.
    """

    shift: int
    buckets: Integers  # sorted numbers >> shift with rows
    counts: Integers  # rows of each bucket

    @classmethod
    def of(cls, numbers: Integers, counts: Integers | None = None) -> OrderedCounts:
        """Count integers: each occurrence, or distinct ones with `counts`."""
        if counts is None:
            numbers, counts = np.unique(numbers, return_counts=True)
        return cls._coarsen(0, numbers, counts.astype(np.int64))

    def __add__(self, other: OrderedCounts) -> OrderedCounts:
        shift = max(self.shift, other.shift)
        buckets = [part.buckets >> (shift - part.shift) for part in (self, other)]
        return self._coarsen(shift, np.concatenate(buckets), np.concatenate([self.counts, other.counts]))

    @classmethod
    def _coarsen(cls, shift: int, buckets: Integers, counts: Integers) -> OrderedCounts:
        """Return counts by bucket, merged to at most MAX_BUCKETS."""
        order = np.argsort(buckets)
        buckets = buckets[order]
        # Adjacent numbers are in different buckets until their highest differing bit is shifted out.
        bits = bit_lengths((buckets[1:] ^ buckets[:-1]).view(np.uint64)).astype(np.int64)
        at_least = np.cumsum(np.bincount(bits, minlength=65)[::-1])[::-1]
        extra_shift = int(np.argmax(at_least[1:] < MAX_BUCKETS))
        buckets >>= extra_shift
        first = np.flatnonzero(np.diff(buckets, prepend=buckets[:1] - 1))
        return cls(shift + extra_shift, buckets[first], np.add.reduceat(counts[order], first))

    def rows_in(self, bucket: int) -> int:
        return int(self.counts[self.buckets == bucket].sum())

    def find(self, rank: int) -> tuple[int, int]:
        """Return the bucket of a rank (from 0), and the rows before it; ColumnError if there are fewer rows."""
        ends = np.cumsum(self.counts)
        index = int(np.searchsorted(ends, rank, side="right"))
        if rank < 0 or index == ends.size:
            raise data_changed_error("The number of rows")
        return int(self.buckets[index]), int(ends[index] - self.counts[index])


Window = tuple[int, int]
"""A shift and a bucket: the numbers n with n >> shift == bucket."""


class Ties(NamedTuple):
    """Rows of a partition with the number at a rank, and those before it."""

    number: int
    before: int
    rows: int


def find_ranks(
    ranks: Collection[int],
    parts: Sequence[OrderedCounts],
    recount: Callable[[Sequence[Window]], Sequence[Sequence[OrderedCounts]]],
) -> dict[int, list[Ties]]:
    """Return, by rank (from 0), the rows of each partition with the number at the rank.

    If the counts `parts` are too coarse, ``recount(windows)`` must return, for each partition, the counts inside each
    window. It is called once for all ranks, and again only while windows are too coarse.
    """
    result_by_rank = {}
    pending = dict.fromkeys(ranks, (0, list(parts)))
    while pending:
        windows: dict[int, tuple[Window, int]] = {}
        for rank, (before, counts) in pending.items():
            total_counts = reduce(add, counts)
            bucket, earlier = total_counts.find(rank - before)
            if total_counts.shift:
                windows[rank] = (total_counts.shift, bucket), before + earlier
            else:
                rows = np.array([part.rows_in(bucket) for part in counts])
                rows_before = np.clip(rank - before - earlier - (np.cumsum(rows) - rows), 0, rows)
                ties = zip(rows_before.tolist(), rows.tolist(), strict=True)
                result_by_rank[rank] = [Ties(bucket, *pair) for pair in ties]
        requested = sorted({window for window, _ in windows.values()})
        results = recount(requested) if requested else []
        pending = {
            rank: (before, [result[requested.index(window)] for result in results])
            for rank, (window, before) in windows.items()
        }
    return result_by_rank


def largest_remainder(n: int | Integers, probabilities: Sequence[float]) -> Integers:
    """Return shares of `n` rows, each within one row of n * probability.

    They add up to `n`; ties between remainders favor the earlier share. Probabilities are read as fractions with
    denominators up to 1,000 if they equal one (0.7, 1/3), otherwise with 9 digits. Exact for n up to 2**62. If `n` is
    an array, shares are the last axis.
    """
    weights = integer_weights(probabilities)
    total = int(weights.sum())
    quotient, remainder = np.divmod(np.asarray(n, dtype=np.int64)[..., None], total)
    shares = quotient * weights + remainder * weights // total
    remainders = remainder * weights % total
    left = quotient * total + remainder - shares.sum(axis=-1, keepdims=True)
    # argsort twice is the rank of each remainder, largest first, ties in order.
    rank = np.argsort(np.argsort(-remainders, kind="stable"))
    shares += rank < left
    return shares


def integer_weights(probabilities: Sequence[float]) -> Integers:
    """Return integers in proportion, with a sum up to about 10**9."""
    fractions = [Fraction(p).limit_denominator(1_000) for p in probabilities]
    if any(abs(float(f) - p) > 1e-12 for f, p in zip(fractions, probabilities, strict=True)):
        fractions = [Fraction(round(p * 10**9), 10**9) for p in probabilities]
    common = math.lcm(*(f.denominator for f in fractions))
    return np.array([int(f * common) for f in fractions], dtype=np.int64)


def class_quotas(counts: Integers, probabilities: Sequence[float]) -> tuple[Integers, Mask]:
    """Return the rows of each class (row) in each share (column), and a mask of small classes.

    A class is small if a share with a positive probability would have no row; its rows are in the first share.
    """
    quotas = largest_remainder(counts, probabilities)
    small = ((quotas == 0) & (integer_weights(probabilities) > 0)).any(axis=-1)
    quotas[small] = 0
    quotas[small, 0] = counts[small]
    return quotas, small
