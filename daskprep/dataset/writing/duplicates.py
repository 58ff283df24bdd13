"""Rows of a split whose inputs another split has too: hashes of rows as parts are written, and counts of equal ones.

A file of a part has the hashes of its rows in 256 shards, as the files of spilled tokens. One group of shards at a time
is compared, so that memory does not depend on the number of rows. A table of bits rules out most rows, and the rest are
compared by both hashes, of inputs and of targets.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.permutation import Uint64Array, hash_strings, make_key, mix
from daskprep.columns.summaries.token_counts import SHARDS, shard_groups
from daskprep.features import Category, Feature
from daskprep.features.base import all_outputs, cross_fit_folds
from daskprep.sources import partitions
from daskprep.storage.checkpoint import write_with_checksum
from daskprep.storage.checksum import byte_view
from daskprep.storage.files import Folder
from daskprep.storage.manifest import DuplicateRows

_BUFFER_BYTES = 1 << 19  # of rows that are hashed at a time, which stay in the cache of a core
_GROUP_ROWS = 1 << 19  # rows that are compared at a time
_TABLE_CELLS = 8  # of the table, for each row
_SAMPLE_ROWS = 10
_FOLD = np.uint64(32)
_HASH_MULTIPLIER = np.uint64(0xD1342543DE82EF95)


HASHES = "inputs-"
"""The prefix of the files of `save_hashes`."""


class ComparedOutputs(NamedTuple):
    """Names of the outputs with the inputs of a model, and of those with its targets."""

    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    categories: tuple[str, ...]  # inputs in which id 0 is ``<UNK>``: equal ids may be of different values

    @classmethod
    def of(cls, features: Mapping[str, Feature], targets: Collection[str]) -> ComparedOutputs | None:
        """Return the outputs to compare; None if there are no inputs, or if equal cells are encoded differently.

        Cross-fitted features encode the training rows by other states than other rows. Weights and keys are not inputs.
        """
        inputs = {name: one for name, one in features.items() if name not in targets and one._is_input}
        if not inputs or cross_fit_folds(inputs):
            return None
        outputs = [(name, name + suffix) for name, feature in features.items() for suffix in all_outputs(feature)]
        return cls(
            tuple(output for name, output in outputs if name in inputs),
            tuple(output for name, output in outputs if name in targets),
            tuple(name for name, one in inputs.items() if isinstance(one, Category) and not one.is_closed),
        )


def hash_rows(columns: Sequence[np.ndarray | pa.StructArray]) -> Uint64Array:
    """Return a hash of each row of several columns, which have equal numbers of rows.

    The words of a row are multiplied by keys and added up, twice. Different rows rarely have equal hashes (2**-64).
    """
    arrays = [array for column in columns for array in _as_arrays(column)]
    arrays.sort(key=lambda array: -array.dtype.itemsize)  # aligns each
    n_words = -(-sum(array.itemsize * array.shape[1] for array in arrays) // 8)
    first, second = _make_keys(n_words)
    hashes = np.empty(len(arrays[0]), np.uint64)
    step = max(1, _BUFFER_BYTES // (8 * n_words))
    buffer, shifted = np.zeros((2, min(step, len(hashes)), n_words), np.uint64)
    for start in range(0, len(hashes), step):
        rows = min(step, len(hashes) - start)
        offset = 0
        for array in arrays:
            end = offset + array.shape[1] * array.itemsize
            target = buffer.view(array.dtype)[:rows, offset // array.itemsize : end // array.itemsize]
            # One column at a time is several times as fast as rows of one cell.
            if array.shape[1] == 1:
                target[:, 0] = array[start : start + rows, 0]
            else:
                target[:] = array[start : start + rows]
            offset = end
        words = buffer[:rows]
        # Differences of the upper bits alone would be lost in the products.
        words ^= np.right_shift(words, _FOLD, out=shifted[:rows])
        sums: list[Any] = [np.einsum("ij,j->i", words, keys) for keys in (first, second)]
        hashes[start : start + rows] = mix(mix(sums[0]) + sums[1])
    return hashes


@functools.cache
def _make_keys(words: int) -> tuple[Uint64Array, Uint64Array]:
    """Return two keys for each word of a row."""
    keys = mix(np.arange(2 * words).astype(np.uint64) + np.uint64(make_key(0, "duplicates"))) | np.uint64(1)
    return keys[:words], keys[words:]


def _as_arrays(column: np.ndarray | pa.StructArray) -> Iterator[np.ndarray]:
    """Yield the contents of a column as two-dimensional arrays of numbers; the paths and bytes of cells are hashed."""
    if isinstance(column, np.ndarray):
        plain = np.ascontiguousarray(column.reshape(len(column), -1))
        yield plain + plain.dtype.type(0) if plain.dtype.kind == "f" else plain  # -0.0 equals 0.0
    else:
        for field in column.type:
            yield hash_strings(pc.struct_field(column, field.name), 0)[:, None]


def save_hashes(folder: Folder, name: str, hashes: Uint64Array, targets: Uint64Array, row_ids: np.ndarray) -> None:
    """Write a file of a part: the borders of the shards, and the hashes of inputs and targets and the rows by shard."""
    shards = (hashes >> np.uint64(56)).astype(np.uint8)
    order = np.argsort(shards, kind="stable")
    with write_with_checksum(folder, name) as write:
        write(np.append(0, np.cumsum(np.bincount(shards, minlength=SHARDS))))
        for column in (hashes, targets, row_ids):
            write(column[order])


class HashedPart(NamedTuple):
    """A file of `save_hashes`, with its number of rows and the number of its split."""

    name: str
    entries: int
    split: int

    @property
    def bit(self) -> np.uint8:
        return np.uint8(1 << self.split)


def count_duplicates(folder: Folder, parts: Sequence[HashedPart], splits: Sequence[str]) -> dict[str, DuplicateRows]:
    """Return the rows of each split whose inputs occur in another split; splits without such rows are left out.

    The number of a split is its position in `splits`.
    """
    groups = list(shard_groups(sum(part.entries for part in parts), _GROUP_ROWS))
    results = partitions.run_tasks("duplicates", _compare_shards, (folder, parts, len(splits)), groups)
    by_split = {split: functools.reduce(_add, counted) for split, *counted in zip(splits, *results, strict=True)}
    return {split: rows for split, rows in by_split.items() if rows.rows}


def _add(one: DuplicateRows, other: DuplicateRows) -> DuplicateRows:
    samples = [tuple(sorted(sum(pair, ()))[:_SAMPLE_ROWS]) for pair in zip(one[2:], other[2:], strict=True)]
    return DuplicateRows(one.rows + other.rows, one.other_target + other.other_target, *samples)


def _compare_shards(work: tuple[Folder, Sequence[HashedPart], int], shards: range) -> list[DuplicateRows]:
    """Return the rows of each split whose inputs occur in another one, of the rows in some shards."""
    folder, parts, n_splits = work
    borders = [_read_borders(folder, part, shards) for part in parts]
    n_rows = sum(map(len, borders))
    mask = np.uint64((1 << (_TABLE_CELLS * n_rows).bit_length()) - 1)
    table = np.zeros(int(mask) + 1, np.uint8)
    for part, span in zip(parts, borders, strict=True):
        table[_read_column(folder, part, span, 0) & mask] |= part.bit
    selected = [_select_shared(folder, part, span, table, mask) for part, span in zip(parts, borders, strict=True)]
    inputs, pairs, bits, counts, row_ids = (np.concatenate(columns) for columns in zip(*selected, strict=True))
    is_shared = _combine_bits(inputs, bits) != bits
    has_other_target = is_shared & (_combine_bits(pairs, bits) == bits)
    counted = []
    for bit in (1 << number for number in range(n_splits)):
        chosen = [kind & (bits == bit) for kind in (is_shared, has_other_target)]
        rows, other_target = (int(counts[kind].sum()) for kind in chosen)
        samples = (tuple(np.sort(row_ids[kind])[:_SAMPLE_ROWS].tolist()) for kind in chosen)
        counted.append(DuplicateRows(rows, other_target, *samples))
    return counted


def _read_borders(folder: Folder, part: HashedPart, shards: range) -> range:
    """Return the positions in a file of the rows of some shards."""
    borders = np.empty(SHARDS + 1, np.int64)
    with folder.open_reader(part.name) as read_into:
        read_into(0, byte_view(borders))
    return range(int(borders[shards.start]), int(borders[shards.stop]))


def _read_column(folder: Folder, part: HashedPart, rows: range, column: int) -> Uint64Array:
    """Return the selected rows of a column of a file: hashes of inputs, hashes of targets, or row ids."""
    values = np.empty(len(rows), np.uint64)
    with folder.open_reader(part.name) as read_into:
        read_into(8 * (SHARDS + 1 + column * part.entries + rows.start), byte_view(values))
    return values


def _select_shared(
    folder: Folder, part: HashedPart, rows: range, table: np.ndarray, mask: np.uint64
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct rows of a part that the table has in several splits, and some that only look so.

    They are hashes of inputs, and of inputs and targets; the bit of the split; numbers of rows; and smallest row ids.
    """
    inputs = _read_column(folder, part, rows, 0)
    chosen = np.flatnonzero(table[inputs & mask] != part.bit)
    inputs = inputs[chosen]
    targets, row_ids = (_read_column(folder, part, rows, column)[chosen] for column in (1, 2))
    pairs = mix(inputs + targets * _HASH_MULTIPLIER)
    order = np.argsort(pairs, kind="stable")
    starts = np.flatnonzero(np.diff(pairs[order], prepend=~pairs[order[:1]]))
    first = order[starts]
    counts = np.diff(starts, append=len(order))
    smallest = np.minimum.reduceat(row_ids[order], starts) if len(starts) else row_ids
    return inputs[first], pairs[first], np.full(len(first), part.bit), counts, smallest


def _combine_bits(keys: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """Return for each key the union of the bits of all equal keys."""
    _, positions = np.unique(keys, return_inverse=True)
    combined = np.zeros(len(keys), np.uint8)
    np.bitwise_or.at(combined, positions, bits)
    return combined[positions]
