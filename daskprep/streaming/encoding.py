"""What a task of a stream does: a partition becomes the encoded rows of one split, or those that one rank is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa

from daskprep.assignment import Assignment
from daskprep.errors import CorruptDatasetError
from daskprep.features import Feature
from daskprep.features.media import MediaFeature
from daskprep.features.partition_context import add_fold_numbers
from daskprep.features.table import PartitionContext, completed_columns, encoded_outputs, parse_columns
from daskprep.media.decoding import decode_cells
from daskprep.permutation import Integers, permute
from daskprep.split import TRAIN
from daskprep.storage.arrays import ROW_ID
from daskprep.writing.encoded import EncodedOrCells, take

EncodedRows: TypeAlias = Sequence[EncodedOrCells]
"""One array for each group of outputs."""


@dataclass(frozen=True)
class Encoding:
    """How partitions are encoded, for all of them."""

    features: Mapping[str, Feature]  # those of the outputs that are given
    dropping: Mapping[str, Feature]  # the features that may leave rows out
    learned: Mapping[str, Any]
    code: int  # the split whose rows are given
    groups: Sequence[tuple[str, ...]]  # the outputs of each array; several are scalars of one type, side by side
    decodes: bool  # whether images and sounds are decoded, and not given as cells


def encode_partition(encoding: Encoding, inputs: tuple[PartitionContext, int], table: pa.Table) -> EncodedRows:
    """Encode the rows of the split, given what a partition must know and the number of its first row."""
    context, first_row = inputs
    parsed = parse_columns({**encoding.dropping, **encoding.features}, table)
    splits, repeats = Assignment(encoding.dropping, learned=encoding.learned).assign(context, parsed, table)
    keep = splits == encoding.code
    row_ids = first_row + np.flatnonzero(keep)
    columns = completed_columns(encoding.features, encoding.learned, context, parsed, table, splits=splits)
    add_fold_numbers(encoding.features, context, table, columns, splits == TRAIN)
    rows: dict[str, EncodedOrCells] = {ROW_ID.name: row_ids}
    for name, column in encoded_outputs(encoding.features, encoding.learned, columns, keep, keep_media_cells=True):
        stores_cells = not isinstance(column, np.ndarray)
        rows[name] = _decode_media(encoding, name, column, row_ids) if stores_cells and encoding.decodes else column
    order = np.repeat(np.arange(len(row_ids)), repeats[keep])
    is_in_order = np.array_equal(order, np.arange(len(row_ids)))
    joined = [_stack_columns([rows.pop(name) for name in names]) for names in encoding.groups]
    return joined if is_in_order else [take(column, order) for column in joined]


def _decode_media(encoding: Encoding, name: str, cells: pa.StructArray, row_ids: np.ndarray) -> np.ndarray:
    feature = cast("MediaFeature", encoding.features[name])
    decoder = feature.decoder(encoding.learned[name])
    rows = np.empty((len(cells), *decoder.shape), decoder.dtype)
    decode_cells(decoder, cells, rows, name, lambda: row_ids)
    return rows


def _stack_columns(columns: list[EncodedOrCells]) -> EncodedOrCells:
    if len(columns) > 1 or (isinstance(columns[0], np.ndarray) and columns[0].ndim == 1):
        return np.stack(columns, axis=1)
    return columns[0]


@dataclass(frozen=True)
class RankShare:
    """Which positions of an epoch's sequence a rank is given: a piece of each full batch, and one of what is left."""

    first: int  # the position from which on rows are given; those before were given earlier
    full_batches: int  # number of full batches
    batch_size: int
    own: range  # of the positions of a full batch, those of the rank
    tail: range  # the rank's positions behind the full batches

    @property
    def is_all(self) -> bool:
        """Whether there are no other ranks."""
        return len(self.own) == self.batch_size

    def rank_positions(self, positions: Integers) -> Integers:
        """Return the place of each position among the rank's own, and -1 for those of others."""
        own = len(self.own)
        batches, within = np.divmod(positions - self.first, self.batch_size)
        within -= self.own.start
        rank_positions = batches * own + within
        rank_positions[(batches < 0) | (batches >= self.full_batches) | (within < 0) | (within >= own)] = -1
        if self.tail:
            last = (positions >= self.tail.start) & (positions < self.tail.stop)
            rank_positions[last] = positions[last] - self.tail.start + self.full_batches * own
        return rank_positions

    def count_before(self, position: int) -> int:
        """Return how many of the rank's own positions lie before a position."""
        own = len(self.own)
        batches, within = divmod(max(0, position - self.first), self.batch_size)
        rows = (
            self.full_batches * own
            if batches >= self.full_batches
            else batches * own + min(max(within - self.own.start, 0), own)
        )
        return rows + min(max(position - self.tail.start, 0), len(self.tail)) if self.tail else rows


@dataclass(frozen=True)
class PartitionSpan:
    """Where the rows of a partition lie in an epoch's sequence: strewn over a window, or one after the other."""

    start: int  # where the window begins
    first: int  # of the rows of the window, the first that the partition has
    rows: int  # and how many
    window_rows: int  # rows of the window
    key: int | None  # chooses how the rows of the window are permuted; None: they are not

    def positions(self) -> Integers:
        """Return the position of each row."""
        index = np.arange(self.first, self.first + self.rows)
        return self.start + (index if self.key is None else permute(index, self.window_rows, self.key))

    def check(self, rows: EncodedRows) -> None:
        """Raise CorruptDatasetError if a partition does not give the rows that were counted."""
        if len(rows[0]) != self.rows:
            raise CorruptDatasetError(
                f"it gave {len(rows[0]):,} rows, and {self.rows:,} when they were counted: the source has changed, or "
                "is computed differently each time; persist it, or write it to files first"
            )


def select_own_rows(rows: EncodedRows, selection: tuple[PartitionSpan, RankShare]) -> EncodedRows:
    """Return those rows of a partition that a rank is given."""
    span, share = selection
    span.check(rows)
    own = np.flatnonzero(share.rank_positions(span.positions()) >= 0)
    return [take(column, own) for column in rows]
