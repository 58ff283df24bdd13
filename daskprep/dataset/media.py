"""Media of a dataset that are decoded when they are read: cells of a block, decoded rows, digests for caches."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.media.decoding import Failure, MediaDecoder, decode_cells
from daskprep.permutation import Integers
from daskprep.storage import Folder, Output
from daskprep.storage.arrays import ROW_ID
from daskprep.storage.reading import BlockLocation, column_array, read_table
from daskprep.storage.threads import map_in_threads

STAMP_BYTES = 8
UNKNOWN_STAMP = bytes(STAMP_BYTES)  # of a block with missing files: its cached rows are kept


@dataclass(frozen=True)
class MediaBlocks:
    """Reader and decoder of one media output of a split; picklable and thread-safe.

    Attributes
    ----------
    folder : Folder
        Folder of the dataset version.
    output : Output
        Name, dtype and row shape of the decoded output.
    decoder : MediaDecoder
        Decoder of the cells.
    """

    folder: Folder
    output: Output
    decoder: MediaDecoder

    def cells(self, location: BlockLocation) -> pa.StructArray:
        """Return the cells of a block, structs of path and bytes."""
        table = read_table(self.folder, location, [self.output])
        return cast("pa.StructArray", table[self.output.name].combine_chunks())

    def row_ids(self, location: BlockLocation) -> Integers:
        """Return the row numbers in the source of the rows of a block."""
        return column_array(read_table(self.folder, location, [ROW_ID]), ROW_ID)

    def decode(self, location: BlockLocation, rows: slice | Integers, out: np.ndarray) -> list[Failure]:
        """Decode the rows at the positions `rows` of a block into `out`; return the failures that were filled.

        Raise MediaError, with the row number in the source, for a failure of a feature that does not fill.
        """
        block_cells = self.cells(location)
        cells = block_cells[rows] if isinstance(rows, slice) else block_cells.take(rows)
        return decode_cells(self.decoder, cells, out, self.output.name, lambda: self.row_ids(location)[rows])


def digest_content(media: MediaBlocks, blocks: Iterable[BlockLocation]) -> tuple[str, bytes]:
    """Return a digest of the cells of the blocks, and the concatenated stamps of the blocks.

    A stamp is a hash of sizes and times of the local files of a block, or `UNKNOWN_STAMP` if a file is missing. 100,000
    files take 0.7 s, mostly in system calls.
    """
    find_path = media.decoder.reader.local_path

    def digest_block(location: BlockLocation) -> tuple[bytes, bytes]:
        cells = media.cells(location)
        paths, data = (pc.struct_field(cells, field).to_pylist() for field in ("path", "bytes"))
        local_paths = [find_path(path) for path in paths if path is not None]
        stamps = [_make_stamp(path) for path in local_paths]
        all_exist = all(path is None or stamp is not None for path, stamp in zip(local_paths, stamps, strict=True))
        stamp = hashlib.blake2b(repr(stamps).encode(), digest_size=STAMP_BYTES).digest() if all_exist else UNKNOWN_STAMP
        return repr((paths, data)).encode(), stamp

    digests = map_in_threads(digest_block, blocks, local=media.folder.is_local)
    return hashlib.sha256(b"".join(cells for cells, _ in digests)).hexdigest(), b"".join(stamp for _, stamp in digests)


def _make_stamp(path: str | None) -> tuple[int, int] | None:
    """Return size and modification time (ns) of a file; None if it is missing or `path` is None."""
    if path is None:
        return None
    try:
        status = os.stat(path)  # noqa: PTH116 ten times as fast
    except (OSError, ValueError):  # ValueError: a path with a null byte
        return None
    return status.st_size, status.st_mtime_ns


def read_media_block(media: MediaBlocks, location: BlockLocation) -> np.ndarray:
    """Return the decoded rows of a block."""
    out = media.output.empty(location.rows)
    media.decode(location, slice(None), out)
    return out
