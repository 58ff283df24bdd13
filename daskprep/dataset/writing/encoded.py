"""The task that encodes a partition, and encoded rows before they are written to parts: in memory, or in a file each.

Files are used for shuffled rows, because every part has rows of every partition, and for writes by several processes. A
file has these sections, each with the rows of train, then validation, then test:

1. the row ids, each output of numbers in the order of the layout, and bits: for each row, feature and cause, 1 if the
   encoding of the cell lacks information for this cause;
2. if rows are shuffled, their positions in the split, by which they are sorted, and the index of the first row of each
   part among them;
3. the cells of media: the offset in the file of each, and then their bytes.

Passes exchange rows as scratch files, one of each kind per partition, named by the number of the partition. Only the
task of the partition writes the file, atomically. If the task runs twice, because a worker was lost, both runs write
the same bytes. A pass starts when all tasks of the previous pass are done, so that no file is read too early.

| file | written by | read by | removed |
|---|---|---|---|
| `parsed-*` | `SpillingParser` | all passes up to `Encode` | at the end, or by `Encode` after it has encoded the rows |
| `placed-*` | `AssignSplits`, if splits depend on cells | `Encode` | at the end |
| `rejects-*` | `AssignSplits`, if it drops rows | the table of rejects | at the end |
| `gaps-*` | `Encode`, if cells of the first rows of a split are missing | the first part of a split | at the end |
| `outputs-*` | `Encode`, if rows are shuffled or tasks run in several processes | the parts | at the end |
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.deferred.decoders import STORED_TYPE
from daskprep.columns.permutation import make_key, permute
from daskprep.dataset.writing.plan import SPLITS, Placement, Run
from daskprep.features import Feature
from daskprep.features.base import Loss
from daskprep.passes.assignment import Assignment
from daskprep.passes.contexts import add_fold_numbers, fold_columns
from daskprep.passes.engine import PartitionReader, make_columnless_rows
from daskprep.passes.scratch import read_saved_table, scratch_name
from daskprep.passes.table import LossMasks, PartitionContext, completed_columns, encoded_outputs
from daskprep.sources.split import DROPPED, TRAIN
from daskprep.storage.arrays import ROW_ID, Output
from daskprep.storage.checkpoint import is_intact, write_with_checksum
from daskprep.storage.checksum import byte_view
from daskprep.storage.files import Folder
from daskprep.storage.layout import Layout
from daskprep.storage.manifest import FIRST_ROWS, LossCounts, MissingCell

ReadInto = Callable[[int, memoryview], None]
EncodedOrCells: TypeAlias = np.ndarray | pa.StructArray
"""The rows of an output between encoding and writing: numbers, or the cells of media, which are decoded later."""

_POSITION_BYTES = 8
_START_BYTES = 8
LOSS_BITS = "\0losses"
"""The name of the column of `pack_losses`, which no feature has."""
VARLEN_COLUMNS = STORED_TYPE.num_fields
"""The number of columns of bytes that a column of cells consists of."""


class KeptRows(NamedTuple):
    """The rows of a partition that are in a split, in the order of the source."""

    splits: np.ndarray  # codes
    repeats: np.ndarray
    outputs: Iterable[tuple[str, EncodedOrCells]]  # row ids, then in the order of the layout, and `LOSS_BITS`
    missing_codes: Mapping[str, np.ndarray]  # by feature, the codes of `completed_columns`


@dataclass(frozen=True)
class EncodedRows:
    """The format of the files of encoded rows, for all partitions."""

    layout: Layout
    placement: Placement  # rows of each split in each partition
    seed: int | None  # of the shuffle; None keeps the order of the source
    losses: tuple[tuple[str, Loss], ...]  # features and causes, one for each bit of a row
    media: frozenset[str] = frozenset()  # outputs stored as cells instead of numbers

    @property
    def columns(self) -> tuple[Output, ...]:
        return (ROW_ID, *self.layout.outputs, Output(LOSS_BITS, "uint8", (-(-len(self.losses) // 8),)))

    def pack_losses(self, losses: Mapping[str, Mapping[Loss, np.ndarray]], rows: int) -> np.ndarray:
        """Return the bits of each row from masks by feature and cause."""
        packed = np.zeros((rows, -(-len(self.losses) // 8)), np.uint8)
        for index, (name, cause) in enumerate(self.losses):
            if (mask := losses.get(name, {}).get(cause)) is not None and mask.any():
                packed[:, index // 8] |= mask.astype(np.uint8) << (index % 8)
        return packed

    def mask_losses(self, packed: np.ndarray, name: str, cause: Loss) -> np.ndarray:
        """Return a mask of the cells of a feature with a loss, from the bits of rows."""
        index = self.losses.index((name, cause))
        mask: np.ndarray = (packed[:, index // 8] & (1 << index % 8)) != 0
        return mask

    def count_losses(self, packed: np.ndarray) -> LossCounts:
        """Return the number of cells of each feature and cause that has any, from the bits of rows."""
        counts: dict[str, dict[str, int]] = {}
        occurring = np.bitwise_or.reduce(packed, axis=0)
        for index, (name, cause) in enumerate(self.losses):
            if occurring[index // 8] & (1 << index % 8):
                counts.setdefault(name, {})[cause] = int(np.count_nonzero(self.mask_losses(packed, name, cause)))
        return counts

    @property
    def _number_columns(self) -> list[Output]:
        return [column for column in self.columns if column.name not in self.media]

    @property
    def _cell_columns(self) -> list[Output]:
        return [column for column in self.columns if column.name in self.media]

    @staticmethod
    def rows_in_split(code: int, splits: np.ndarray, repeats: np.ndarray) -> np.ndarray:
        """Return the indices of the rows of the split with a code, each repeated for the number of times it is written.

        `splits` and `repeats` have the split and the number of repeats of each kept row of a partition.
        """
        rows = np.flatnonzero(splits == code)
        return np.repeat(rows, repeats[rows]) if len(rows) else rows

    def order(self, partition: int, splits: np.ndarray, repeats: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the order of the kept rows of a partition in its file, and the positions of shuffled rows.

        The order consists of row indices, the positions of an array for each split with rows.
        """
        chosen, positions = [], []
        for split, code in SPLITS.items():
            rows = self.rows_in_split(code, splits, repeats)
            if self.seed is not None and len(rows):
                start, total = self.placement.starts(split)[partition], self.layout.rows[split]
                split_positions = permute(
                    np.arange(start, start + len(rows)), total, make_key(self.seed, "shuffle", split)
                )
                order = np.argsort(split_positions)
                rows, split_positions = rows[order], split_positions[order]
                positions.append(split_positions)
            chosen.append(rows)
        return np.concatenate(chosen), positions

    def first_rows(
        self, partition: int, rows: Mapping[str, np.ndarray], positions: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[str, int, int]]:
        """Yield split, position and row index of each kept row of a partition among the first rows of a split.

        `rows` are the row indices of each split in order, and `positions` the positions of shuffled rows.
        """
        for split, order in rows.items():
            start = int(self.placement.starts(split)[partition])
            row_positions = positions.get(split, range(start, start + len(order)))
            for position, row in zip(row_positions[:FIRST_ROWS], order[:FIRST_ROWS].tolist(), strict=False):
                if position < FIRST_ROWS:
                    yield split, int(position), row

    def borders(self, positions: Sequence[np.ndarray], partition: int) -> Iterator[np.ndarray]:
        """Yield, for each split with rows in a partition, the index of the first row of each part, and their end."""
        for split_positions, split in zip(positions, self._present_splits(partition), strict=True):
            part_starts = np.arange(self.layout.parts(split)) * (self.layout.part_blocks * self.layout.block_rows)
            yield np.append(np.searchsorted(split_positions, part_starts), len(split_positions))

    def runs_of_part(self, split: str, part: int) -> list[Run]:
        """Return the runs with the rows of an unshuffled part, counted from the first row of the split."""
        rows = self.layout.part_range(split, part)
        return [
            run._replace(first=run.first - self.placement.offset(run.partition, split))
            for run in self.placement.runs(split, rows)
        ]

    def read_part(self, folder: Folder, split: str, part: int) -> dict[str, EncodedOrCells]:
        """Return the rows of a part by output, row ids first, read from the files in `folder`."""
        rows = self.layout.part_range(split, part)
        arrays = {column.name: column.empty(len(rows)) for column in self._number_columns}
        cells: dict[str, list[EncodedOrCells]] = {column.name: [] for column in self._cell_columns}
        positions = np.empty(len(rows) if self.seed is not None else 0, np.int64)
        rows_read = 0
        runs = {} if self.seed is not None else {run.partition: run for run in self.placement.runs(split, rows)}
        for partition in runs or self.partitions_of(split, part):
            starts = self._section_starts(partition)
            with folder.open_reader(scratch_name("outputs", partition)) as read_into:
                run = runs.get(partition) or self._find_run(read_into, starts["borders", split], split, part, partition)
                for column in self._number_columns:
                    target = arrays[column.name][rows_read : rows_read + run.rows]
                    read_into(starts[column.name, 0] + run.first * column.row_bytes, byte_view(target))
                if self.seed is not None:
                    target = positions[rows_read : rows_read + run.rows]
                    read_into(starts["positions", None] + run.first * _POSITION_BYTES, byte_view(target))
                for column in self._cell_columns:
                    offsets = [starts[column.name, i] + run.first * _START_BYTES for i in range(VARLEN_COLUMNS)]
                    varlen = [_read_varlen(read_into, offset, run.rows) for offset in offsets]
                    cells[column.name].append(cells_from_varlen(varlen))
            rows_read += run.rows
        outputs: dict[str, EncodedOrCells] = {**arrays, **{name: concatenate(slices) for name, slices in cells.items()}}
        if self.seed is None:
            return outputs
        order = np.empty(len(rows), np.int64)
        order[positions - rows.start] = np.arange(len(rows))
        return {name: take(array, order) for name, array in outputs.items()}

    def _section_starts(self, partition: int) -> dict[tuple[str, object], int]:
        """Return the offset of each section in the file of a partition.

        The keys are (output, 0) or, for cells, (output, field index); ("positions", None) and ("borders", split).
        """
        total = int(self.placement.counts[partition].sum())
        sizes: dict[tuple[str, object], int] = {(one.name, 0): total * one.row_bytes for one in self._number_columns}
        if self.seed is not None:
            sizes["positions", None] = total * _POSITION_BYTES
            present = self._present_splits(partition)
            sizes |= {("borders", split): (self.layout.parts(split) + 1) * _POSITION_BYTES for split in present}
        sizes |= {
            (one.name, i): (total + 1) * _START_BYTES for one in self._cell_columns for i in range(VARLEN_COLUMNS)
        }
        return dict(zip(sizes, itertools.accumulate(sizes.values(), initial=0), strict=False))

    def partitions_of(self, split: str, part: int) -> Iterable[int]:
        """Return the partitions with rows of a part."""
        if self.seed is not None:
            return np.flatnonzero(self.placement.counts[:, SPLITS[split]]).tolist()
        return [run.partition for run in self.placement.runs(split, self.layout.part_range(split, part))]

    def _find_run(self, read_into: ReadInto, borders_offset: int, split: str, part: int, partition: int) -> Run:
        """Return the run of shuffled rows of a part in the file of a partition."""
        borders = np.empty(2, np.int64)
        read_into(borders_offset + part * borders.itemsize, byte_view(borders))
        first, last = borders.tolist()
        return Run(partition, self.placement.offset(partition, split) + first, last - first)

    def _present_splits(self, partition: int) -> list[str]:
        return [split for split, code in SPLITS.items() if self.placement.counts[partition, code]]


def _read_varlen(read_into: ReadInto, offset: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the start offsets of `rows` values of a column of bytes, read from `offset`, and their bytes."""
    starts = np.empty(rows + 1, np.int64)
    read_into(offset, byte_view(starts))
    data = np.empty(starts[-1] - starts[0], np.uint8)
    read_into(int(starts[0]), byte_view(data))
    return starts, data


def save_encoded(folder: Folder, rows: EncodedRows, partition: int, kept: KeptRows) -> None:
    """Write the encoded rows of a partition to its file, sorted by split, and its missing cells among first rows."""
    order, positions = rows.order(partition, kept.splits, kept.repeats)
    present = rows._present_splits(partition)
    ends = {split: rows.placement.counts[partition, SPLITS[split]] for split in present}
    chosen = {split: order[rows.placement.offset(partition, split) :][: ends[split]][:FIRST_ROWS] for split in present}
    first_rows = rows.first_rows(partition, chosen, dict(zip(present, positions, strict=False)))
    _save_missing_cells(folder, partition, kept.missing_codes, first_rows)
    is_identity = _is_identity(order, len(kept.splits))
    cells = []
    with write_with_checksum(folder, scratch_name("outputs", partition)) as write:
        size = 0
        for _, array in kept.outputs:
            if isinstance(array, np.ndarray):
                size += write(np.ascontiguousarray(array) if is_identity else take(array, order))
            else:
                cells.append(take(array, order))
        for split_positions in positions:
            size += write(split_positions)
        if rows.seed is not None:
            for border in rows.borders(positions, partition):
                size += write(border.astype(np.int64))
        _write_varlen(write, [column for array in cells for column in varlen_buffers(array)], size)


def _save_missing_cells(
    folder: Folder, partition: int, missing_codes: Mapping[str, np.ndarray], first_rows: Iterable[tuple[str, int, int]]
) -> None:
    """Write the missing cells among the first rows of splits, from a partition, as JSON; no file if there are none."""
    missing_cells: list[MissingCell] = [
        (split, position, name, ("missing", "unreadable")[codes[row] - 1])
        for split, position, row in first_rows
        for name, codes in missing_codes.items()
        if codes[row] in (1, 2)
    ]
    if missing_cells:
        folder.write(scratch_name("gaps", partition), json.dumps(missing_cells).encode(), durable=False)


def read_missing_cells(folder: Folder, rows: EncodedRows, split: str) -> tuple[MissingCell, ...]:
    """Return the missing and unreadable cells of the first rows of a split, from the files of `_save_missing_cells`."""
    first = range(min(FIRST_ROWS, rows.layout.rows[split]))
    unshuffled = {run.partition for run in rows.placement.runs(split, first)}
    partitions = unshuffled if rows.seed is None else range(len(rows.placement.source_rows))
    names, present = [scratch_name("gaps", one) for one in partitions], set(folder.children())
    missing_cells = [tuple(cell) for name in names if name in present for cell in json.loads(bytes(folder.read(name)))]
    return tuple(sorted(cell for cell in missing_cells if cell[0] == split))


def _write_varlen(write: Callable[..., int], varlen: Sequence[tuple[np.ndarray, pa.Buffer]], size: int) -> None:
    """Write columns of bytes, first all start offsets and then all bytes; `size` bytes precede them in the file."""
    offset = size + sum(starts.nbytes for starts, _ in varlen)
    for starts, data in varlen:
        write(starts + offset)
        offset += data.size
    for _, data in varlen:
        write(data)


def _is_identity(order: np.ndarray, rows: int) -> bool:
    return np.array_equal(order, np.arange(rows))


def take(rows: EncodedOrCells, order: np.ndarray) -> EncodedOrCells:
    """Return the rows with the indices `order`."""
    if isinstance(rows, np.ndarray):
        return rows.take(order, axis=0, mode="clip")
    return rows.take(pa.array(order))


def concatenate(slices: Sequence[EncodedOrCells]) -> EncodedOrCells:
    """Return the concatenation of slices of a column; a single slice is not copied."""
    if len(slices) == 1:
        return slices[0]
    if isinstance(slices[0], np.ndarray):
        return np.concatenate(slices)
    return pa.concat_arrays(slices)


def varlen_buffers(cells: pa.StructArray) -> Iterator[tuple[np.ndarray, pa.Buffer]]:
    """Yield start offsets and bytes of each field of a column of cells; the last offset is the end.

    A missing value has no bytes, because neither a path nor a file is empty.
    """
    for field in STORED_TYPE:
        column = pc.fill_null(pc.struct_field(cells, field.name).cast(pa.large_binary()), b"")
        _, offsets, data = column.buffers()
        starts = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        if data is None or not len(column):
            yield np.zeros(len(column) + 1, np.int64), pa.py_buffer(b"")
        else:
            yield starts - starts[0], data.slice(int(starts[0]), int(starts[-1] - starts[0]))


def cells_from_varlen(varlen: Sequence[tuple[np.ndarray, np.ndarray]]) -> pa.StructArray:
    """Return the cells from the start offsets and bytes of each field; the first offset need not be 0."""
    columns = []
    for field, (starts, data) in zip(STORED_TYPE, varlen, strict=True):
        buffers = [None, pa.py_buffer(starts - starts[0]), pa.py_buffer(data)]
        column = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(starts) - 1, buffers)
        present = pa.array(np.diff(starts) > 0)
        columns.append(pc.if_else(present, column, pa.scalar(None, pa.large_binary())).cast(field.type))
    missing = pc.and_(columns[0].is_null(), columns[1].is_null())
    return pa.StructArray.from_arrays(columns, fields=list(STORED_TYPE), mask=missing)


@dataclass(frozen=True)
class Encode:
    """The task that encodes the rows of a partition in the order of its splits.

    A partition that was encoded before, by a lost worker or a killed write, is not encoded again.
    """

    features: Mapping[str, Feature]
    learned: Mapping[str, Any]
    rows: EncodedRows
    reader: PartitionReader
    scratch: Folder
    assignments_stored: bool  # whether splits and repeats are read from scratch, or computed from row numbers
    removes_parsed: bool  # whether to remove the parsed rows of the partition, if no other task reads them

    def __call__(self, context: PartitionContext) -> int:
        """Save the encoded rows of a partition, and return their number."""
        number = context.number
        if not is_intact(self.scratch, scratch_name("outputs", number)):
            save_encoded(self.scratch, self.rows, number, self._encode(context))
        if self.removes_parsed:
            self.scratch.remove(scratch_name("parsed", number))
        return int(self.rows.placement.counts[number].sum())

    def encode_by_split(self, context: PartitionContext) -> dict[str, dict[str, EncodedOrCells]]:
        """Return the encoded rows of a partition by split and output, in the order of the source; do not save them."""
        rows, number, kept = self.rows, context.number, self._encode(context)
        chosen = {split: rows.rows_in_split(code, kept.splits, kept.repeats) for split, code in SPLITS.items()}
        present = {split: order for split, order in chosen.items() if len(order)}
        _save_missing_cells(self.scratch, number, kept.missing_codes, rows.first_rows(number, present, {}))
        encoded: dict[str, dict[str, EncodedOrCells]] = {split: {} for split in present}
        is_identity = len(present) == 1 and _is_identity(next(iter(present.values())), len(kept.splits))
        for name, array in kept.outputs:
            for split, order in present.items():
                encoded[split][name] = array if is_identity else take(array, order)
        return encoded

    def _encode(self, context: PartitionContext) -> KeptRows:
        """Read a parsed partition and encode its rows in a split, lazily by output, with the assignments of rows."""
        placement, number = self.rows.placement, context.number
        splits, repeats = self._read_assignment(context)
        keep = splits != DROPPED
        parsed, source = self.reader.read(self.features, fold_columns(self.features), number)
        missing_codes: dict[str, np.ndarray] = {}
        columns = completed_columns(
            self.features, self.learned, context, parsed, missing_codes=missing_codes, splits=splits
        )
        add_fold_numbers(self.features, context, source, columns, splits == TRAIN)
        row_ids = placement.source_starts[number] + np.flatnonzero(keep)
        kept_codes = {name: codes[keep] for name, codes in missing_codes.items()}

        def outputs() -> Iterator[tuple[str, EncodedOrCells]]:
            losses: LossMasks = {}
            yield ROW_ID.name, row_ids
            yield from encoded_outputs(
                self.features,
                self.learned,
                columns,
                keep,
                keep_media_cells=True,
                missing_codes=kept_codes,
                losses=losses,
            )
            yield LOSS_BITS, self.rows.pack_losses(losses, len(row_ids))

        return KeptRows(splits[keep], repeats[keep], outputs(), kept_codes)

    def _read_assignment(self, context: PartitionContext) -> tuple[np.ndarray, np.ndarray]:
        """Return the split code and the number of repeats of each row, from scratch or from the context."""
        if not self.assignments_stored:
            return Assignment({}).assign(
                context, *make_columnless_rows(self.rows.placement.source_rows[context.number])
            )
        table = read_saved_table(self.scratch, scratch_name("placed", context.number))
        splits = table["split"].to_numpy()
        repeats = table["repeats"].to_numpy() if "repeats" in table.column_names else np.ones(len(splits), np.int64)
        return splits, repeats
