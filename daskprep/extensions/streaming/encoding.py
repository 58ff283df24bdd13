"""Tasks of a stream: encode the rows of a split in a partition, and select the rows of a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from daskprep.columns.deferred.decoders import decode_cells
from daskprep.columns.permutation import Integers, permute
from daskprep.dataset.writing.encoded import EncodedOrCells, take
from daskprep.errors import CorruptDatasetError
from daskprep.features import Feature
from daskprep.features.base import Contract
from daskprep.features.media import MediaFeature
from daskprep.passes.assignment import Assignment
from daskprep.passes.contexts import add_fold_numbers
from daskprep.passes.losses import count_losses
from daskprep.passes.table import LossMasks, Parsed, PartitionContext, completed_columns, encoded_outputs
from daskprep.sources.split import TRAIN
from daskprep.storage.arrays import ROW_ID
from daskprep.storage.manifest import LossCounts


class EncodedPartition(NamedTuple):
    """Rows of a partition: one array for each group of outputs, and the losses of all rows of the partition."""

    arrays: Sequence[EncodedOrCells]
    losses: LossCounts


@dataclass(frozen=True)
class Encoding:
    """The encoding of partitions, as the function of a pass."""

    features: Mapping[str, Feature]  # of the outputs
    dropping: Mapping[str, Contract]  # that may drop rows
    learned: Mapping[str, Any]  # state of these features
    code: int  # of the split whose rows are returned
    groups: Sequence[tuple[str, ...]]  # outputs of each array; several outputs are scalars of one type
    decodes: bool  # whether to decode images and audio

    def __call__(self, context: PartitionContext, parsed: Parsed, table: pa.Table) -> EncodedPartition:
        """Return the encoded rows of the split in a partition, repeated as by the balance, by group."""
        splits, repeats = Assignment(self.dropping, learned=self.learned).assign(context, parsed, table)
        keep = splits == self.code
        row_ids = context.first_row + np.flatnonzero(keep)
        codes: dict[str, np.ndarray] = {}
        columns = completed_columns(
            self.features, self.learned, context, parsed, table, missing_codes=codes, splits=splits
        )
        add_fold_numbers(self.features, context, table, columns, splits == TRAIN)
        rows: dict[str, EncodedOrCells] = {ROW_ID.name: row_ids}
        losses: LossMasks = {}
        kept = {name: own[keep] for name, own in codes.items()}
        for name, column in encoded_outputs(
            self.features, self.learned, columns, keep, keep_media_cells=True, missing_codes=kept, losses=losses
        ):
            stores_cells = not isinstance(column, np.ndarray)
            rows[name] = self._decode_media(name, column, row_ids) if stores_cells and self.decodes else column
        order = np.repeat(np.arange(len(row_ids)), repeats[keep])
        is_in_order = np.array_equal(order, np.arange(len(row_ids)))
        arrays = [_stack_columns([rows.pop(name) for name in names]) for names in self.groups]
        counts = count_losses(losses, repeats[keep])
        return EncodedPartition(arrays if is_in_order else [take(array, order) for array in arrays], counts)

    def _decode_media(self, name: str, cells: pa.StructArray, row_ids: np.ndarray) -> np.ndarray:
        """Return the decoded images or audio of the output `name`; raise MediaError for a broken one, if so set."""
        decoder = cast("MediaFeature", self.features[name]).decoder(self.learned[name])
        rows = np.empty((len(cells), *decoder.shape), decoder.dtype)
        decode_cells(decoder, cells, rows, name, lambda: row_ids)
        return rows


def _stack_columns(columns: list[EncodedOrCells]) -> EncodedOrCells:
    """Return columns as one matrix, or a single matrix or cells as is."""
    if len(columns) > 1 or (isinstance(columns[0], np.ndarray) and columns[0].ndim == 1):
        return np.stack(columns, axis=1)
    return columns[0]


@dataclass(frozen=True)
class RankShare:
    """A rank's positions in an epoch's sequence: a range of each full batch, and a range of each batch after them."""

    first: int  # position of the first row to yield
    full_batches: int  # number of full batches
    batch_size: int  # rows over all ranks
    own: range  # the rank's positions within a full batch
    last: tuple[range, ...]  # those in the sequence after the full batches

    @property
    def is_all(self) -> bool:
        return len(self.own) == self.batch_size

    def rank_positions(self, positions: Integers) -> Integers:
        """Return, for positions in the sequence, their index among the rank's positions; -1 for other ranks' rows."""
        own = len(self.own)
        batches, within = np.divmod(positions - self.first, self.batch_size)
        within -= self.own.start
        rank_positions = batches * own + within
        rank_positions[(batches < 0) | (batches >= self.full_batches) | (within < 0) | (within >= own)] = -1
        before = self.full_batches * own
        for batch in self.last:
            is_own = (positions >= batch.start) & (positions < batch.stop)
            rank_positions[is_own] = positions[is_own] - batch.start + before
            before += len(batch)
        return rank_positions

    def count_before(self, position: int) -> int:
        """Return the rank's positions below `position`."""
        own = len(self.own)
        batches, within = divmod(max(0, position - self.first), self.batch_size)
        rows = self.full_batches * own
        if batches < self.full_batches:
            rows = batches * own + min(max(within - self.own.start, 0), own)
        return rows + sum(min(max(position - batch.start, 0), len(batch)) for batch in self.last)


@dataclass(frozen=True)
class PartitionSpan:
    """Positions of a partition's rows in an epoch's sequence: permuted within a window, or contiguous."""

    start: int  # position of the window's first row in the sequence
    first: int  # index of the partition's first row in the window, before the permutation
    rows: int  # number of rows of the partition
    window_rows: int
    key: int | None  # seed of the permutation of the window; None: no permutation

    def positions(self) -> Integers:
        """Return the position of each row in the sequence."""
        index = np.arange(self.first, self.first + self.rows)
        return self.start + (index if self.key is None else permute(index, self.window_rows, self.key))

    def check(self, rows: EncodedPartition) -> None:
        """Raise CorruptDatasetError for another number of rows."""
        if (count := len(rows.arrays[0])) != self.rows:
            raise CorruptDatasetError(
                f"it has {count:,} rows, but had {self.rows:,} when they were counted: the source has changed, "
                "or is computed differently each time; persist it, or write it to files first"
            )


def select_own_rows(rows: EncodedPartition, selection: tuple[PartitionSpan, RankShare]) -> EncodedPartition:
    """Return the rows of a partition that belong to a rank, from the partition's span and the rank's share."""
    span, share = selection
    span.check(rows)
    own = np.flatnonzero(share.rank_positions(span.positions()) >= 0)
    return EncodedPartition([take(column, own) for column in rows.arrays], rows.losses)
