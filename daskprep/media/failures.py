"""What happens when a medium cannot be decoded: an error that names it, unless it is to be filled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from daskprep.errors import MediaError

if TYPE_CHECKING:
    from daskprep.media.decoding import Failure

__all__ = ["check_failures"]


def check_failures(failures: Sequence[Failure], on_error: str, column: str, row_ids: np.ndarray) -> None:
    """Raise MediaError for the first failure, unless fill values stand for what cannot be decoded.

    `row_ids` are the numbers, in the source, of the rows that were to be decoded.
    """
    if not failures or on_error == "fill":
        return
    first = failures[0]
    others = f" (and {len(failures) - 1:,} more)" if len(failures) > 1 else ""
    raise MediaError(
        f'column "{column}", row {row_ids[first.row]}: {first.cell}: {first.reason}{others}; mend it, or use '
        'on_error="fill" or "drop"'
    )
