"""Media of a dataset that are decoded when they are read: the cells of a block, and the arrays they become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa

from daskprep.media.failures import check_failures
from daskprep.storage.arrays import ROW_ID
from daskprep.storage.reading import column_array, read_table_block

if TYPE_CHECKING:
    from daskprep.media.decoding import Failure, MediaDecoder
    from daskprep.storage import Folder, Output
    from daskprep.storage.reading import Block

__all__ = ["MediaBlocks", "read_media_block"]


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

    def decode(self, where: Block, cells: pa.StructArray, rows: np.ndarray, out: np.ndarray) -> list[Failure]:
        """Decode the cells of some rows of a block; return those for which a fill value stands.

        Raises
        ------
        MediaError
            A cell cannot be decoded, and is not to be filled; it names the row of the source.
        """
        failures = self.decoder.decode(cells.take(pa.array(rows)), out)
        self.check(where, failures, rows)
        return failures

    def check(self, where: Block, failures: Sequence[Failure], rows: np.ndarray) -> None:
        """Raise MediaError for the first failure among some rows of a block, unless failures are filled."""
        if failures and self.decoder.on_error != "fill":
            row_ids = column_array(read_table_block(self.folder, where, [ROW_ID]), ROW_ID)
            check_failures(failures, self.decoder.on_error, self.output.name, row_ids[rows])


def read_media_block(media: MediaBlocks, where: Block) -> np.ndarray:
    """Return the decoded rows of a block."""
    out = media.output.empty(where.rows)
    media.decode(where, media.cells(where), np.arange(where.rows), out)
    return out
