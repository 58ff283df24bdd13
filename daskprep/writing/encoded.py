"""Encoded rows on their way to parts: in memory, or in a file of plain bytes for each partition.

Files are for shuffled rows, which every part takes from every partition, and for writes by several processes. A file
holds, output by output, the rows of train, then validation, then test: the row numbers of the source, then
each output of the layout that has numbers. Shuffled, the rows of a split are sorted by their place in it, and these
places follow, with the border of every part among them. Last come the cells of media: where in the file each begins,
and then all of their bytes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.media.decoding import STORED_TYPE
from daskprep.permutation import make_key, permute
from daskprep.storage.arrays import ROW_ID, Output
from daskprep.storage.checksum import flat
from daskprep.storage.files import Folder
from daskprep.storage.kept import write_checked
from daskprep.storage.layout import Layout
from daskprep.storage.manifest import FIRST_ROWS, Gap
from daskprep.writing.placement import SPLITS, Placement, Run
from daskprep.writing.scratch import scratch_name

ReadInto = Callable[[int, memoryview], None]
Carried: TypeAlias = np.ndarray | pa.StructArray
"""What a write carries from encoding to parts: numbers, and the cells of media, which only parts decode."""
Outputs = Iterable[tuple[str, Carried]]
Gaps: TypeAlias = Mapping[str, np.ndarray]
"""By feature, which of a partition's kept rows are missing (1) or unreadable (2)."""

_PLACE_BYTES = 8
_START_BYTES = 8
HEAPS = STORED_TYPE.num_fields
"""How many columns of bytes make up a column of cells."""


@dataclass(frozen=True)
class EncodedRows:
    """How encoded rows lie in their files, for all partitions.

    `seed` chooses the order of shuffled rows; None leaves them in the order of the source. `media` names the outputs
    whose cells are carried.
    """

    layout: Layout
    placement: Placement
    seed: int | None
    media: frozenset[str] = frozenset()

    @property
    def columns(self) -> tuple[Output, ...]:
        return (ROW_ID, *self.layout.outputs)

    @property
    def _numbers(self) -> list[Output]:
        return [column for column in self.columns if column.name not in self.media]

    @property
    def _cells(self) -> list[Output]:
        return [column for column in self.columns if column.name in self.media]

    @staticmethod
    def rows_of(code: int, splits: np.ndarray, repeats: np.ndarray) -> np.ndarray:
        """Return which of a partition's kept rows are in a split, each as often as it is written."""
        rows = np.flatnonzero(splits == code)
        return np.repeat(rows, repeats[rows]) if len(rows) else rows

    def order(self, partition: int, splits: np.ndarray, repeats: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return which of a partition's kept rows stand where in its file, and the places of shuffled ones by split."""
        chosen, places = [], []
        for split, code in SPLITS.items():
            rows = self.rows_of(code, splits, repeats)
            if self.seed is not None and len(rows):
                start, total = self.placement.starts(split)[partition], self.layout.rows[split]
                place = permute(np.arange(start, start + len(rows)), total, make_key(self.seed, "shuffle", split))
                order = np.argsort(place)
                rows, place = rows[order], place[order]
                places.append(place)
            chosen.append(rows)
        return np.concatenate(chosen), places

    def first_rows(
        self, partition: int, rows: Mapping[str, np.ndarray], places: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[str, int, int]]:
        """Give split, place there and number of those of a partition's kept rows that are the first of a split.

        `rows` are by split in their order, and `places` those of shuffled ones.
        """
        for split, order in rows.items():
            start = int(self.placement.starts(split)[partition])
            where = places.get(split, range(start, start + len(order)))
            for place, row in zip(where[:FIRST_ROWS], order[:FIRST_ROWS].tolist(), strict=False):
                if place < FIRST_ROWS:
                    yield split, int(place), row

    def borders(self, places: Sequence[np.ndarray], partition: int) -> Iterator[np.ndarray]:
        """Give for each split of which a partition has rows where the parts begin among its places."""
        for place, split in zip(places, self._present(partition), strict=True):
            firsts = np.arange(self.layout.parts(split)) * (self.layout.part_blocks * self.layout.block_rows)
            yield np.append(np.searchsorted(place, firsts), len(place))

    def pieces_of(self, split: str, part: int) -> list[Run]:
        """Return where the rows of a part stand, if they are not shuffled, among those of its split in partitions."""
        rows = self.layout.part_range(split, part)
        return [
            run._replace(first=run.first - self.placement.offset(run.partition, split))
            for run in self.placement.runs(split, rows)
        ]

    def read_part(self, folder: Folder, split: str, part: int) -> dict[str, Carried]:
        """Return the row numbers and all outputs of a part."""
        rows = self.layout.part_range(split, part)
        arrays = {column.name: column.empty(len(rows)) for column in self._numbers}
        cells: dict[str, list[Carried]] = {column.name: [] for column in self._cells}
        places = np.empty(len(rows) if self.seed is not None else 0, np.int64)
        at = 0
        runs = {} if self.seed is not None else {run.partition: run for run in self.placement.runs(split, rows)}
        for partition in runs or self.partitions_of(split, part):
            starts = self._starts(partition)
            with folder.opened(scratch_name("encoded", partition)) as read_into:
                run = runs.get(partition) or self._run(read_into, starts["borders", split], split, part, partition)
                for column in self._numbers:
                    target = arrays[column.name][at : at + run.rows]
                    read_into(starts[column.name, 0] + run.first * column.row_bytes, flat(target))
                if self.seed is not None:
                    read_into(starts["places", None] + run.first * _PLACE_BYTES, flat(places[at : at + run.rows]))
                for column in self._cells:
                    heaps = [starts[column.name, heap] + run.first * _START_BYTES for heap in range(HEAPS)]
                    cells[column.name].append(cells_of([_read_heap(read_into, place, run.rows) for place in heaps]))
            at += run.rows
        found: dict[str, Carried] = {**arrays, **{name: concatenated(pieces) for name, pieces in cells.items()}}
        if self.seed is None:
            return found
        order = np.empty(len(rows), np.int64)
        order[places - rows.start] = np.arange(len(rows))
        return {name: take(array, order) for name, array in found.items()}

    def _starts(self, partition: int) -> dict[tuple[str, object], int]:
        """Return where in a partition's file begin the rows of each output, the places, the borders and the cells."""
        total = int(self.placement.counts[partition].sum())
        sizes: dict[tuple[str, object], int] = {(one.name, 0): total * one.row_bytes for one in self._numbers}
        if self.seed is not None:
            sizes["places", None] = total * _PLACE_BYTES
            present = self._present(partition)
            sizes |= {("borders", split): (self.layout.parts(split) + 1) * _PLACE_BYTES for split in present}
        sizes |= {(one.name, heap): (total + 1) * _START_BYTES for one in self._cells for heap in range(HEAPS)}
        return dict(zip(sizes, itertools.accumulate(sizes.values(), initial=0), strict=False))

    def partitions_of(self, split: str, part: int) -> Iterable[int]:
        """Return the partitions that rows of a part come from."""
        if self.seed is not None:
            return np.flatnonzero(self.placement.counts[:, SPLITS[split]]).tolist()
        return [run.partition for run in self.placement.runs(split, self.layout.part_range(split, part))]

    def _run(self, read_into: ReadInto, borders_at: int, split: str, part: int, partition: int) -> Run:
        """Return which shuffled rows of a partition's file belong to a part."""
        borders = np.empty(2, np.int64)
        read_into(borders_at + part * borders.itemsize, flat(borders))
        first, last = borders.tolist()
        return Run(partition, self.placement.offset(partition, split) + first, last - first)

    def _present(self, partition: int) -> list[str]:
        return [split for split, code in SPLITS.items() if self.placement.counts[partition, code]]


def _read_heap(read_into: ReadInto, at: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where some rows of a column of bytes begin, which stands there in the file, and the bytes."""
    starts = np.empty(rows + 1, np.int64)
    read_into(at, flat(starts))
    data = np.empty(starts[-1] - starts[0], np.uint8)
    read_into(int(starts[0]), flat(data))
    return starts, data


def by_split(
    folder: Folder,
    rows: EncodedRows,
    partition: int,
    row_ids: np.ndarray,
    splits: np.ndarray,
    repeats: np.ndarray,
    outputs: Outputs,
    gaps: Gaps,
) -> dict[str, dict[str, Carried]]:
    """Return the encoded rows of a partition by split and output, in the order of the source."""
    chosen = {split: rows.rows_of(code, splits, repeats) for split, code in SPLITS.items()}
    present = {split: order for split, order in chosen.items() if len(order)}
    _save_gaps(folder, partition, gaps, rows.first_rows(partition, present, {}))
    found: dict[str, dict[str, Carried]] = {split: {} for split in present}
    for name, array in _checked(rows, row_ids, outputs):
        for split, order in present.items():
            as_is = len(present) == 1 and _is_all(order, len(splits))
            found[split][name] = array if as_is else take(array, order)
    return found


def save_encoded(
    folder: Folder,
    rows: EncodedRows,
    partition: int,
    row_ids: np.ndarray,
    splits: np.ndarray,
    repeats: np.ndarray,
    outputs: Outputs,
    gaps: Gaps,
) -> None:
    """Write the encoded rows of a partition."""
    order, places = rows.order(partition, splits, repeats)
    present = rows._present(partition)
    ends = {split: rows.placement.counts[partition, SPLITS[split]] for split in present}
    chosen = {split: order[rows.placement.offset(partition, split) :][: ends[split]][:FIRST_ROWS] for split in present}
    firsts = rows.first_rows(partition, chosen, dict(zip(present, places, strict=False)))
    _save_gaps(folder, partition, gaps, firsts)
    as_is = _is_all(order, len(splits))
    cells = []
    with write_checked(folder, scratch_name("encoded", partition)) as write:
        size = 0
        for _, array in _checked(rows, row_ids, outputs):
            if isinstance(array, np.ndarray):
                size += write(np.ascontiguousarray(array) if as_is else take(array, order))
            else:
                cells.append(take(array, order))
        for place in places:
            size += write(place)
        if rows.seed is not None:
            for border in rows.borders(places, partition):
                size += write(border.astype(np.int64))
        _write_heaps(write, [heap for one in cells for heap in heaps_of(one)], size)


def _save_gaps(folder: Folder, partition: int, gaps: Gaps, firsts: Iterable[tuple[str, int, int]]) -> None:
    """Keep which cells of the first rows of splits are missing or unreadable, if any are."""
    found: list[Gap] = [
        (split, place, name, ("missing", "unreadable")[kinds[row] - 1])
        for split, place, row in firsts
        for name, kinds in gaps.items()
        if kinds[row]
    ]
    if found:
        folder.write(scratch_name("gaps", partition), json.dumps(found).encode(), durable=False)


def read_gaps(folder: Folder, rows: EncodedRows, split: str) -> tuple[Gap, ...]:
    """Return which cells of the first rows of a split are missing or unreadable."""
    first = range(min(FIRST_ROWS, rows.layout.rows[split]))
    some = None if rows.seed is not None else {run.partition for run in rows.placement.runs(split, first)}
    present = folder.sizes()
    names = [scratch_name("gaps", one) for one in (range(len(rows.placement.source_rows)) if some is None else some)]
    found = [tuple(gap) for name in names if name in present for gap in json.loads(bytes(folder.read(name)))]
    return tuple(sorted(gap for gap in found if gap[0] == split))


def _write_heaps(write: Callable[..., int], heaps: Sequence[tuple[np.ndarray, pa.Buffer]], size: int) -> None:
    """Write where every row begins in the file, which has some bytes already, and then the bytes of the rows."""
    at = size + sum(starts.nbytes for starts, _ in heaps)
    for starts, data in heaps:
        write(starts + at)
        at += data.size
    for _, data in heaps:
        write(data)


def _checked(rows: EncodedRows, row_ids: np.ndarray, outputs: Outputs) -> Outputs:
    """Give the row numbers, then the outputs, one at a time: those of the layout in its order."""
    for column, (name, array) in zip(rows.columns, itertools.chain([(ROW_ID.name, row_ids)], outputs), strict=True):
        if isinstance(array, np.ndarray):
            found = (name, array.dtype, array.shape[1:])
            assert found == (column.name, np.dtype(column.dtype), column.shape), (found, column)
        assert isinstance(array, np.ndarray) == (column.name not in rows.media), column
        yield name, array


def _is_all(order: np.ndarray, rows: int) -> bool:
    return np.array_equal(order, np.arange(rows))


def take(rows: Carried, order: np.ndarray) -> Carried:
    """Return some rows in some order."""
    if isinstance(rows, np.ndarray):
        return rows.take(order, axis=0, mode="clip")
    return rows.take(pa.array(order))


def concatenated(pieces: Sequence[Carried]) -> Carried:
    """Return pieces of one column as one; a single one without a copy."""
    if len(pieces) == 1:
        return pieces[0]
    if isinstance(pieces[0], np.ndarray):
        return np.concatenate(pieces)
    return pa.concat_arrays(pieces)


def heaps_of(cells: pa.StructArray) -> Iterator[tuple[np.ndarray, pa.Buffer]]:
    """Give the content of each field of cells: where every row begins, and where the last ends, in some bytes.

    What is not there has no bytes: no path and no file is empty.
    """
    for field in STORED_TYPE:
        column = pc.fill_null(pc.struct_field(cells, field.name).cast(pa.large_binary()), b"")
        _, offsets, data = column.buffers()
        starts = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        if data is None or not len(column):
            yield np.zeros(len(column) + 1, np.int64), pa.py_buffer(b"")
        else:
            yield starts - starts[0], data.slice(int(starts[0]), int(starts[-1] - starts[0]))


def cells_of(heaps: Sequence[tuple[np.ndarray, np.ndarray]]) -> pa.StructArray:
    """Return the cells that `heaps_of` took apart; starts may count from anywhere."""
    columns = []
    for field, (starts, data) in zip(STORED_TYPE, heaps, strict=True):
        buffers = [None, pa.py_buffer(starts - starts[0]), pa.py_buffer(data)]
        column = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(starts) - 1, buffers)
        present = pa.array(np.diff(starts) > 0)
        columns.append(pc.if_else(present, column, pa.scalar(None, pa.large_binary())).cast(field.type))
    missing = pc.and_(columns[0].is_null(), columns[1].is_null())
    return pa.StructArray.from_arrays(columns, fields=list(STORED_TYPE), mask=missing)
