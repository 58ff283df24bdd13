"""Write a part: some whole blocks of one split, by one task, with a receipt for what was written."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

import numpy as np
import pyarrow as pa

from daskprep.errors import CorruptDatasetError
from daskprep.features import Feature
from daskprep.features.media import MediaFeature
from daskprep.media.decoding import Failure, MediaDecoder, check_failures, decode_cells
from daskprep.storage.arrays import ROW_ID, Output, encode_chunk
from daskprep.storage.checksum import Buffer
from daskprep.storage.files import Folder
from daskprep.storage.local_files import Durable
from daskprep.storage.manifest import FileEntry, Receipt
from daskprep.storage.shards import encode_shard
from daskprep.storage.tables import Columns, encode_table
from daskprep.writing.encoded import EncodedOrCells, EncodedRows, concatenate, read_gaps

RECEIPTS = "receipts"

FilledMedium = tuple[int, str, str]
"""A row whose medium could not be decoded, so that a fill value stands for it: its number, column and reason."""


@dataclass(frozen=True)
class _PartRows:
    """The rows of a part, output by output in arrays that follow one another; `starts` tells where each begins."""

    starts: list[int]
    arrays: Mapping[str, Sequence[EncodedOrCells]]

    def rows(self, output: str, start: int, stop: int) -> Any:
        """Return some rows of an output; without a copy if they lie in one array."""
        first, last = bisect_right(self.starts, start) - 1, bisect_left(self.starts, stop)
        row_arrays = self.arrays[output][first:last]
        slices = [
            array[max(0, start - begin) : stop - begin]
            for array, begin in zip(row_arrays, self.starts[first:last], strict=True)
        ]
        return concatenate(slices)


@dataclass(frozen=True, order=True)
class Part:
    """One part of one split."""

    split: str
    number: int

    @property
    def receipt(self) -> str:
        """Name of its receipt in the folder of the version."""
        return f"{RECEIPTS}/{self.split}-{self.number:05d}.json"


@dataclass(frozen=True)
class PartWriter:
    """Writes parts into the folder of a version from encoded rows.

    With `syncs`, the files of a part outlive a loss of power when it is done. With `expected`, a part is made again:
    it must have the bytes that the manifest lists.
    """

    version: Folder
    scratch: Folder
    rows: EncodedRows
    features: Mapping[str, Feature]
    learned: Mapping[str, Any]
    syncs: bool
    expected: Mapping[str, FileEntry] | None = None

    def __call__(
        self, part: Part, encoded_rows: Sequence[Mapping[str, EncodedOrCells]] | None = None
    ) -> tuple[int, Receipt]:
        """Write a part and its receipt; return how many rows it has, and the receipt.

        `encoded_rows` are the encoded rows of this split, in each partition that the part takes rows from; without it they are
        read from scratch.
        """
        part_rows = self._read_rows(part) if encoded_rows is None else self._slice_rows(part, encoded_rows)
        filled: list[FilledMedium] = []
        files = {
            name: write_file(self.version, name, data, rows, self.expected, slots=slots, durable="later")
            for name, data, rows, slots in self._encode_files(part, part_rows, filled)
        }
        if self.syncs:
            self.version.sync(files)
        gaps = read_gaps(self.scratch, self.rows, part.split) if part.number == 0 else ()
        receipt = Receipt(files, filled, gaps)
        if self.expected is None:
            # A receipt only holds if the files are what it lists, so neither must outlive a loss of power.
            self.version.write(part.receipt, receipt.to_bytes(), durable=False)
        return len(self.rows.layout.part_range(part.split, part.number)), receipt

    def _read_rows(self, part: Part) -> _PartRows:
        arrays = self.rows.read_part(self.scratch, part.split, part.number)
        return _PartRows([0], {name: [array] for name, array in arrays.items()})

    def _slice_rows(self, part: Part, encoded_rows: Sequence[Mapping[str, EncodedOrCells]]) -> _PartRows:
        runs = self.rows.runs_of_part(part.split, part.number)
        arrays = {
            column.name: [
                partition[column.name][run.first : run.first + run.rows]
                for partition, run in zip(encoded_rows, runs, strict=True)
            ]
            for column in self.rows.columns
        }
        return _PartRows([0, *accumulate(run.rows for run in runs[:-1])], arrays)

    def _encode_files(
        self, part: Part, part_rows: _PartRows, filled: list[FilledMedium]
    ) -> Iterator[tuple[str, Buffer, int, int | None]]:
        """Give name, content, rows and slots of each file, one at a time; add to `filled` what could not be decoded.

        Scalars and the cells of media go to one table.
        """
        layout, split = self.rows.layout, part.split
        rows = layout.part_range(split, part.number)
        tables = self._table_columns(part, part_rows, filled)
        table = layout.table_file(split, part.number)
        yield table, encode_table(tables, layout.block_rows, layout.compression), len(rows), None
        row_ids = part_rows.rows(ROW_ID.name, 0, len(rows))
        for output in layout.matrices:
            chunks = self._encode_chunks(part, output, part_rows, row_ids, filled)
            if layout.sharded:
                shard = encode_shard([chunk for _, chunk in chunks], layout.part_blocks)
                yield layout.array_file(split, output, part.number), shard, len(rows), layout.part_blocks
                continue
            for block, chunk in chunks:
                yield layout.array_file(split, output, block), chunk, len(layout.block_range(split, block)), None

    def _encode_chunks(
        self, part: Part, output: Output, part_rows: _PartRows, row_ids: Any, filled: list[FilledMedium]
    ) -> Iterator[tuple[int, bytes]]:
        """Give the chunk of each block of an output in a part."""
        layout, split = self.rows.layout, part.split
        first = layout.part_range(split, part.number).start
        for block in layout.part_block_range(split, part.number):
            block_range_in_split = layout.block_range(split, block)
            block_slice = slice(block_range_in_split.start - first, block_range_in_split.stop - first)
            rows = part_rows.rows(output.name, block_slice.start, block_slice.stop)
            if output.name in self.rows.media:
                rows = self._decode(output, rows, row_ids[block_slice], filled)
            yield block, encode_chunk(rows, layout.block_rows, layout.compression)

    def _table_columns(self, part: Part, part_rows: _PartRows, filled: list[FilledMedium]) -> Iterator[Columns]:
        """Give the columns of the table of a part: all at once, or where files are read into it, block by block."""
        layout = self.rows.layout
        rows = layout.part_range(part.split, part.number)
        step = layout.block_rows if layout.cells else len(rows)
        for start in range(0, len(rows), step):
            stop = min(start + step, len(rows))
            columns = {column.name: part_rows.rows(column.name, start, stop) for column in (ROW_ID, *layout.scalars)}
            for output in layout.cells:
                cells = part_rows.rows(output.name, start, stop)
                columns[output.name] = self._pack_cells(output, cells, columns[ROW_ID.name], filled)
            yield columns

    def _decode(
        self, output: Output, cells: pa.StructArray, row_ids: np.ndarray, filled: list[FilledMedium]
    ) -> np.ndarray:
        rows = output.empty(len(cells))
        failures = decode_cells(self._feature_and_decoder(output)[1], cells, rows, output.name, lambda: row_ids)
        filled += _to_filled_media(output, failures, row_ids)
        return rows

    def _pack_cells(
        self, output: Output, cells: pa.StructArray, row_ids: np.ndarray, filled: list[FilledMedium]
    ) -> pa.StructArray:
        """Return what a table holds of an output that is decoded when it is loaded."""
        feature, decoder = self._feature_and_decoder(output)
        if not feature.pack:
            return cells
        packed, failures = decoder.pack(cells)
        check_failures(failures, feature.on_error, output.name, lambda: row_ids)
        filled += _to_filled_media(output, failures, row_ids)
        return packed

    def _feature_and_decoder(self, output: Output) -> tuple[MediaFeature, MediaDecoder]:
        """Return the feature of an output whose cells are carried to parts, and what decodes them."""
        feature = cast("MediaFeature", self.features[output.name])
        return feature, feature.decoder(self.learned[output.name])


def write_file(
    version: Folder,
    name: str,
    data: Buffer,
    rows: int | None,
    expected: Mapping[str, FileEntry] | None,
    *,
    slots: int | None = None,
    durable: Durable = True,
) -> FileEntry:
    """Write a file and return its entry; CorruptDatasetError if it is made again and not the one that is expected."""
    entry = FileEntry.of(name, data, rows, slots)
    if expected is not None and expected.get(name) != entry:
        raise CorruptDatasetError(
            f"{name} cannot be made again: the source, or other versions of pyarrow and zarr, give other bytes than "
            "those that were written; repair from the very source of the dataset, or write it again with overwrite=True"
        )
    version.write(name, data, durable=durable)
    return entry


def read_receipts(version: Folder) -> dict[str, Receipt]:
    """Return the receipts that hold, by name.

    A part counts if its receipt is whole and all its files are there with the bytes that it lists.
    """
    sizes = version.sizes()
    receipts = {}
    for name in sorted(name for name in sizes if name.startswith(f"{RECEIPTS}/") and name.endswith(".json")):
        try:
            receipt = Receipt.from_bytes(version.read(name))
        except CorruptDatasetError:
            continue
        if all(_matches_entry(version, file, entry, sizes) for file, entry in receipt.files.items()):
            receipts[name] = receipt
    return receipts


def _matches_entry(version: Folder, file: str, entry: FileEntry, sizes: Mapping[str, int]) -> bool:
    return sizes.get(file) == entry.bytes and entry.matches(file, version.read(file))


def _to_filled_media(output: Output, failures: list[Failure], row_ids: np.ndarray) -> list[FilledMedium]:
    return [(int(row_ids[one.row]), output.name, f"{one.cell}: {one.reason}") for one in failures]
