"""Cells decoded, and what cannot be decoded named by its row, unless it is to be filled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from daskprep.errors import MediaError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from daskprep.media.decoding import Failure, MediaDecoder
    from daskprep.permutation import Integers


def decode_cells(
    decoder: MediaDecoder, cells: pa.StructArray, out: np.ndarray, column: str, row_ids: Callable[[], Integers]
) -> list[Failure]:
    """Decode cells to `out`; return those for which a fill value stands.

    `row_ids` gives the numbers of the rows in the source, which are asked for if one is to be named.

    Raises
    ------
    MediaError
        A cell cannot be decoded, and is not to be filled.
    """
    failures = decoder.decode(cells, out)
    if failures and decoder.on_error != "fill":
        check_failures(failures, decoder.on_error, column, row_ids())
    return failures


def check_failures(failures: Sequence[Failure], on_error: str, column: str, row_ids: Integers) -> None:
    """Raise MediaError for the first failure, unless fill values stand for what cannot be decoded."""
    if not failures or on_error == "fill":
        return
    first = failures[0]
    others = f" (and {len(failures) - 1:,} more)" if len(failures) > 1 else ""
    raise MediaError(
        f'column "{column}", row {row_ids[first.row]}: {first.cell}: {first.reason}{others}; correct it, or use '
        'on_error="fill" or "drop"'
    )
