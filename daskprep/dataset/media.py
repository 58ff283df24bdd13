"""Media of a dataset that are decoded when they are read: the cells of a block, and the arrays they become."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import pyarrow as pa

from daskprep.media.decoding import Failure, MediaDecoder
from daskprep.media.failures import decode_cells
from daskprep.permutation import Integers
from daskprep.storage import Folder, Output
from daskprep.storage.arrays import ROW_ID
from daskprep.storage.reading import Block, column_array, read_table_block


@dataclass(frozen=True)
class MediaBlocks:
    """Reads and decodes one output of a split; it may travel to workers, and be used on threads."""

    folder: Folder
    output: Output
    decoder: MediaDecoder

    def cells(self, where: Block) -> pa.StructArray:
        """Return the cells of a block."""
        table = read_table_block(self.folder, where, [self.output])
        return cast("pa.StructArray", table[self.output.name].combine_chunks())

    def row_ids(self, where: Block) -> Integers:
        """Return the number in the source of each row of a block."""
        return column_array(read_table_block(self.folder, where, [ROW_ID]), ROW_ID)

    def decode(self, where: Block, rows: slice | Integers, out: np.ndarray) -> list[Failure]:
        """Decode some rows of a block; return those for which a fill value stands.

        Raises
        ------
        MediaError
            A cell cannot be decoded, and is not to be filled; it names the row of the source.
        """
        held = self.cells(where)
        cells = held[rows] if isinstance(rows, slice) else held.take(rows)
        return decode_cells(self.decoder, cells, out, self.output.name, lambda: self.row_ids(where)[rows])


def read_media_block(media: MediaBlocks, where: Block) -> np.ndarray:
    """Return the decoded rows of a block."""
    out = media.output.empty(where.rows)
    media.decode(where, slice(None), out)
    return out
