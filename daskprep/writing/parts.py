"""Writers of parts: consecutive blocks of a split, which one task writes with a receipt of the files."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
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
from daskprep.permutation import mix
from daskprep.storage.arrays import ROW_ID, Output, encode_chunk, encode_shard
from daskprep.storage.checksum import Buffer
from daskprep.storage.files import Folder
from daskprep.storage.local_files import Durable
from daskprep.storage.manifest import FileEntry, LossCounts, Receipt, add_losses
from daskprep.storage.tables import Columns, encode_table
from daskprep.writing.duplicates import HASHES, ComparedOutputs, hash_rows, save_hashes
from daskprep.writing.encoded import LOSS_BITS, EncodedOrCells, EncodedRows, concatenate, read_missing_cells
from daskprep.writing.versions import RECEIPTS, SCRATCH

# Slices of a part are seldom in two arrays, which are then copied.
_HASHED_ROWS = 1 << 15

FilledMedium = tuple[int, str, str]
"""A medium that could not be decoded and got the fill value: row id, column and reason."""


@dataclass(frozen=True)
class _PartRows:
    """The rows of a part: for each output, consecutive arrays that start at the rows `starts`."""

    starts: list[int]
    arrays: Mapping[str, Sequence[EncodedOrCells]]

    def rows(self, output: str, start: int, stop: int) -> Any:
        """Return the rows `start` to `stop` of an output; they are not copied if they are in one array."""
        first, last = bisect_right(self.starts, start) - 1, bisect_left(self.starts, stop)
        row_arrays = self.arrays[output][first:last]
        slices = [
            array[max(0, start - array_start) : stop - array_start]
            for array, array_start in zip(row_arrays, self.starts[first:last], strict=True)
        ]
        return concatenate(slices)


@dataclass(frozen=True, order=True)
class Part:
    """A part of a split, by its number."""

    split: str
    number: int

    @property
    def receipt(self) -> str:
        """The name of its receipt in the version folder."""
        return f"{RECEIPTS}/{self.split}-{self.number:05d}.json"

    @property
    def hashes(self) -> str:
        """The name of its file of hashes in the scratch folder."""
        return f"{HASHES}{self.split}-{self.number:05d}.scratch"


@dataclass(frozen=True)
class PartWriter:
    """A writer of the parts of a version from encoded rows."""

    version: Folder
    scratch: Folder  # has the files of encoded rows
    rows: EncodedRows
    features: Mapping[str, Feature]
    learned: Mapping[str, Any]
    syncs: bool  # whether to flush the files of a part to the disk
    # The entries of the manifest that files must match in a repair; None in a write.
    expected: Mapping[str, FileEntry] | None = None
    # The outputs to hash, and the folder for the hashes, so that rows of several splits are compared.
    compared: ComparedOutputs | None = None
    hashes: Folder | None = None

    def __call__(
        self, part: Part, encoded_rows: Sequence[Mapping[str, EncodedOrCells]] | None = None
    ) -> tuple[int, Receipt]:
        """Write a part and its receipt; return its number of rows, and the receipt.

        `encoded_rows` has the rows of the split, by output, of each partition with rows of the part; None: read the
        rows from scratch.
        """
        part_rows = self._read_rows(part) if encoded_rows is None else self._slice_rows(part, encoded_rows)
        filled: list[FilledMedium] = []
        files = {
            name: write_file(self.version, name, data, rows, self.expected, slots=slots, durable="later")
            for name, data, rows, slots in self._encode_files(part, part_rows, filled)
        }
        if self.compared is not None:
            self._save_hashes(part, part_rows, self.compared)
        if self.syncs:
            self.version.sync(files)
        missing_cells = read_missing_cells(self.scratch, self.rows, part.split) if part.number == 0 else ()
        rows_written = len(self.rows.layout.part_range(part.split, part.number))
        losses = self.rows.count_losses(part_rows.rows(LOSS_BITS, 0, rows_written))
        receipt = Receipt(files, filled, missing_cells, losses)
        if self.expected is None:
            # A resumed write checks the files against the receipt, so neither must survive a power failure.
            self.version.write(part.receipt, receipt.to_bytes(), durable=False)
        return rows_written, receipt

    def _save_hashes(self, part: Part, part_rows: _PartRows, compared: ComparedOutputs) -> None:
        """Write the hashes of the rows of a part."""
        assert self.hashes is not None
        rows = len(self.rows.layout.part_range(part.split, part.number))
        hashes = np.zeros((2, rows), np.uint64)
        for start in range(0, rows, _HASHED_ROWS):
            stop = min(start + _HASHED_ROWS, rows)
            for target, names in zip(hashes, compared[:2], strict=True):
                if names:
                    target[start:stop] = hash_rows([part_rows.rows(name, start, stop) for name in names])
        row_ids = part_rows.rows(ROW_ID.name, 0, rows)
        for name in compared.categories:
            unseen = self.rows.mask_losses(part_rows.rows(LOSS_BITS, 0, rows), name, "unknown")
            hashes[0, unseen] = mix(row_ids[unseen].astype(np.uint64))  # equal to no other row
        save_hashes(self.hashes, part.hashes, hashes[0], hashes[1], row_ids)
        if not self.version.is_local:  # the scratch folder may be removed when the process ends
            (self.version / SCRATCH).write(part.hashes, self.hashes.read(part.hashes), durable=False)

    def _read_rows(self, part: Part) -> _PartRows:
        arrays = self.rows.read_part(self.scratch, part.split, part.number)
        return _PartRows([0], {name: [array] for name, array in arrays.items()})

    def _slice_rows(self, part: Part, encoded_rows: Sequence[Mapping[str, EncodedOrCells]]) -> _PartRows:
        """Return the rows of a part from the encoded rows of its partitions, as slices without a copy."""
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
        """Yield name, content, number of rows and slots of each file of a part.

        Scalars and the cells of media are stored in one table. Media that cannot be decoded are appended to `filled`.
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
        """Yield the number of each block of a part, and the chunk of an output."""
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
        """Yield the columns of the table of a part: in one batch, or by block if media files are read."""
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
        """Return the decoded cells of media; failures are appended to `filled`."""
        rows = output.empty(len(cells))
        failures = decode_cells(self._feature_and_decoder(output)[1], cells, rows, output.name, lambda: row_ids)
        filled += _to_filled_media(output, failures, row_ids)
        return rows

    def _pack_cells(
        self, output: Output, cells: pa.StructArray, row_ids: np.ndarray, filled: list[FilledMedium]
    ) -> pa.StructArray:
        """Return the cells to store of an output that the loader decodes: with `pack`, files instead of paths."""
        feature, decoder = self._feature_and_decoder(output)
        if not feature.pack:
            return cells
        packed, failures = decoder.pack(cells)
        check_failures(failures, feature.on_error, output.name, lambda: row_ids)
        filled += _to_filled_media(output, failures, row_ids)
        return packed

    def _feature_and_decoder(self, output: Output) -> tuple[MediaFeature, MediaDecoder]:
        """Return the feature of a media output and its decoder."""
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
    """Write a file and return its entry; CorruptDatasetError if `expected`, of a repair, has another entry for it."""
    entry = FileEntry.from_data(name, data, rows, slots)
    if expected is not None and expected.get(name) != entry:
        raise CorruptDatasetError(
            f"{name} cannot be repaired: the source, or other versions of pyarrow and zarr, result in other bytes than "
            "were written; repair it from the original source, or write the dataset again with overwrite=True"
        )
    version.write(name, data, durable=durable)
    return entry


def read_receipts(version: Folder) -> dict[str, Receipt]:
    """Return the valid receipts by name: intact, with all files of the part unchanged."""
    sizes = version.sizes()
    receipts = {}
    for name in sorted(name for name in sizes if name.startswith(f"{RECEIPTS}/") and name.endswith(".json")):
        try:
            receipt = Receipt.from_bytes(version.read(name))
        except CorruptDatasetError:
            continue
        if all(
            sizes.get(file) == entry.bytes and entry.matches(file, version.read(file))
            for file, entry in receipt.files.items()
        ):
            receipts[name] = receipt
    return receipts


def count_losses(parts: Sequence[Part], receipts: Sequence[Receipt]) -> dict[str, LossCounts] | None:
    """Return the losses of each split; None if a receipt is of an older version, without counts."""
    totals: dict[str, LossCounts] = {part.split: {} for part in parts}
    for part, receipt in zip(parts, receipts, strict=True):
        if receipt.losses is None:
            return None
        totals[part.split] = add_losses(totals[part.split], receipt.losses)
        # A file that cannot be decoded is listed for each copy of its row.
        broken = Counter(column for _, column, _ in receipt.filled)
        totals[part.split] = add_losses(totals[part.split], {name: {"unreadable": n} for name, n in broken.items()})
    return totals


def _to_filled_media(output: Output, failures: list[Failure], row_ids: np.ndarray) -> list[FilledMedium]:
    return [(int(row_ids[failure.row]), output.name, f"{failure.cell}: {failure.reason}") for failure in failures]
