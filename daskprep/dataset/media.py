"""Media of a dataset that are decoded when they are read: the cells of a block, and the arrays they become."""

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
from daskprep.storage.reading import Block, column_array, read_table
from daskprep.storage.threads import in_threads

STAMP_BYTES = 8
UNKNOWN = bytes(STAMP_BYTES)  # of a block some of whose files are not there now: what is cached of it stays


@dataclass(frozen=True)
class MediaBlocks:
    """Reads and decodes one output of a split; it may travel to workers, and be used on threads."""

    folder: Folder
    output: Output
    decoder: MediaDecoder

    def cells(self, where: Block) -> pa.StructArray:
        """Return the cells of a block."""
        table = read_table(self.folder, where, [self.output])
        return cast("pa.StructArray", table[self.output.name].combine_chunks())

    def row_ids(self, where: Block) -> Integers:
        """Return the number in the source of each row of a block."""
        return column_array(read_table(self.folder, where, [ROW_ID]), ROW_ID)

    def decode(self, where: Block, rows: slice | Integers, out: np.ndarray) -> list[Failure]:
        """Decode some rows of a block; return those for which a fill value stands.

        Of a cell that cannot be decoded and is not to be filled, a MediaError names the row of the source.
        """
        held = self.cells(where)
        cells = held[rows] if isinstance(rows, slice) else held.take(rows)
        return decode_cells(self.decoder, cells, out, self.output.name, lambda: self.row_ids(where)[rows])


def content_of(media: MediaBlocks, blocks: Iterable[Block]) -> tuple[str, bytes]:
    """Return a digest of the cells of some blocks, and of each block a stamp of the sizes and times of local files.

    The stamp is `UNKNOWN` where a file is not there. Of 100,000 files it takes 0.7 s, most of which are the calls of
    the system.
    """
    place = media.decoder.reader.local_path

    def look(where: Block) -> tuple[bytes, bytes]:
        cells = media.cells(where)
        path, data = (pc.struct_field(cells, field).to_pylist() for field in ("path", "bytes"))
        places = [place(one) for one in path if one is not None]
        seen = [_stamp(one) for one in places]
        is_known = all(where is None or stamp is not None for where, stamp in zip(places, seen, strict=True))
        stamp = hashlib.blake2b(repr(seen).encode(), digest_size=STAMP_BYTES).digest() if is_known else UNKNOWN
        return repr((path, data)).encode(), stamp

    found = in_threads(look, blocks, local=media.folder.is_local)
    return hashlib.sha256(b"".join(cells for cells, _ in found)).hexdigest(), b"".join(stamp for _, stamp in found)


def _stamp(path: str | None) -> tuple[int, int] | None:
    if path is None:
        return None
    try:
        status = os.stat(path)  # noqa: PTH116 ten times as fast
    except (OSError, ValueError):  # ValueError: no path at all
        return None
    return status.st_size, status.st_mtime_ns


def read_media_block(media: MediaBlocks, where: Block) -> np.ndarray:
    """Return the decoded rows of a block."""
    out = media.output.empty(where.rows)
    media.decode(where, slice(None), out)
    return out
