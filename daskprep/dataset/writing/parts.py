"""Files of parts, which are consecutive blocks of a split: a task writes each with a receipt of its files."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from daskprep.columns.deferred.decoders import check_failures, decode_cells
from daskprep.columns.permutation import mix
from daskprep.dataset.writing.duplicates import HASHES, ComparedOutputs, hash_rows, save_hashes
from daskprep.dataset.writing.encoded import LOSS_BITS, EncodedOrCells, EncodedRows, concatenate, read_missing_cells
from daskprep.dataset.writing.versions import RECEIPTS, SCRATCH
from daskprep.errors import CorruptDatasetError
from daskprep.features import Feature
from daskprep.features.media import MediaFeature
from daskprep.storage.arrays import ROW_ID, Output, encode_chunk, encode_shard
from daskprep.storage.checksum import Buffer
from daskprep.storage.files import Folder
from daskprep.storage.layout import Layout
from daskprep.storage.local_files import Durable
from daskprep.storage.manifest import FileEntry, LossCounts, Receipt, add_losses
from daskprep.storage.tables import Columns, encode_table

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
    # The outputs to hash, and the folder for the hashes, so that rows of several splits are compared.
    compared: ComparedOutputs | None = None
    hashes: Folder | None = None

    def __call__(
        self, part: Part, encoded_rows: Sequence[Mapping[str, EncodedOrCells]] | None = None
    ) -> tuple[int, Receipt]:
        """Write a part and its receipt; return its number of rows, and the receipt.

        `encoded_rows` has the rows of the split, by output, of partitions with rows of the part; None: read from
        scratch.
        """
        part_rows = self._read_rows(part) if encoded_rows is None else self._slice_rows(part, encoded_rows)
        filled: list[FilledMedium] = []

        def read(output: Output, start: int, stop: int) -> EncodedOrCells:
            rows = part_rows.rows(output.name, start, stop)
            if output.name in self.rows.media:
                return self._store_media(output, rows, part_rows.rows(ROW_ID.name, start, stop), filled)
            return rows

        files = {
            one.name: write_file(self.version, one, durable="later")
            for one in encode_part(self.rows.layout, part.split, part.number, read)
        }
        if self.compared is not None:
            self._save_hashes(part, part_rows, self.compared)
        if self.syncs:
            self.version.sync(files)
        missing_cells = read_missing_cells(self.scratch, self.rows, part.split) if part.number == 0 else ()
        rows_written = len(self.rows.layout.part_range(part.split, part.number))
        losses = self.rows.count_losses(part_rows.rows(LOSS_BITS, 0, rows_written))
        receipt = Receipt(files, filled, missing_cells, losses)
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

    def _store_media(
        self, output: Output, cells: pa.StructArray, row_ids: np.ndarray, filled: list[FilledMedium]
    ) -> EncodedOrCells:
        """Return media in their stored form: decoded, as cells, or with `pack` as files instead of paths.

        Media that cannot be decoded are appended to `filled`.
        """
        feature = cast("MediaFeature", self.features[output.name])
        decoder = feature.decoder(self.learned[output.name])
        stored: EncodedOrCells = cells
        if not output.stores_cells:
            stored = output.empty(len(cells))
            failures = decode_cells(decoder, cells, stored, output.name, lambda: row_ids)
        elif feature.pack:
            stored, failures = decoder.pack(cells)
            check_failures(failures, feature.on_error, output.name, lambda: row_ids)
        else:
            return cells
        filled += [
            (int(row_ids[failure.row]), output.name, f"{failure.cell}: {failure.reason}") for failure in failures
        ]
        return stored


class NewFile(NamedTuple):
    """The name and the content of a file of a version, with the numbers of its rows and slots, if it has any."""

    name: str
    data: Buffer
    rows: int | None = None
    slots: int | None = None


def encode_part(
    layout: Layout,
    split: str,
    part: int,
    read: Callable[[Output, int, int], EncodedOrCells],
    outputs: Collection[Output] | None = None,
    blocks: Collection[int] | None = None,
) -> Iterator[NewFile]:
    """Yield the files of a part of a split: its table, and for each matrix a file per block, or one shard.

    ``read(output, start, stop)`` returns rows of the part in their stored form. With `outputs`, only files that have
    these are yielded; with `blocks`, only files that have these blocks.
    """
    size, rows = layout.block_rows, len(layout.part_range(split, part))
    in_table = (ROW_ID, *layout.scalars, *layout.cells)

    def read_columns() -> Iterator[Columns]:
        """Yield the columns of the table in one batch, or by block if media files are read."""
        step = size if layout.cells else rows
        for start in range(0, rows, step):
            yield {output.name: read(output, start, min(start + step, rows)) for output in in_table}

    if outputs is None or not set(outputs).issubset(layout.matrices):
        yield NewFile(layout.table_file(split, part), encode_table(read_columns(), size, layout.compression), rows)
    ranges = {
        block: range(start, min(start + size, rows))
        for block, start in zip(layout.part_block_range(split, part), range(0, rows, size), strict=True)
        if layout.sharded or blocks is None or block in blocks
    }
    for output in layout.matrices:
        if outputs is not None and output not in outputs:
            continue
        chunks = (encode_chunk(read(output, own.start, own.stop), size, layout.compression) for own in ranges.values())
        if layout.sharded:
            shard = encode_shard(list(chunks), layout.part_blocks)
            yield NewFile(layout.array_file(split, output, part), shard, rows, layout.part_blocks)
        else:
            for (block, own), chunk in zip(ranges.items(), chunks, strict=True):
                yield NewFile(layout.array_file(split, output, block), chunk, len(own))


def write_file(version: Folder, file: NewFile, *, durable: Durable = True) -> FileEntry:
    """Write a file, and return its entry."""
    version.write(file.name, file.data, durable=durable)
    return FileEntry.from_data(*file)


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
