"""Cells of media on their way into a part: decoded to arrays, or stored as they are or with their files' bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa

from daskprep.features import Feature
from daskprep.features.media import MediaFeature
from daskprep.media.decoding import Failure, MediaDecoder, check_failures, decode_cells
from daskprep.storage.arrays import Output

Filled = tuple[int, str, str]
"""A row whose medium could not be decoded, so that a fill value stands for it: its number, column and reason."""


@dataclass(frozen=True)
class MediaColumns:
    """What tasks that write parts must know to decode the cells that are carried to them."""

    features: Mapping[str, Feature]
    learned: Mapping[str, Any]

    def decode(self, output: Output, cells: pa.StructArray, row_ids: np.ndarray) -> tuple[np.ndarray, list[Filled]]:
        """Return the decoded rows of an output, and those for which a fill value stands."""
        rows = output.empty(len(cells))
        failures = decode_cells(self._decoder(output), cells, rows, output.name, lambda: row_ids)
        return rows, _filled(output, failures, row_ids)

    def stored(self, output: Output, cells: pa.StructArray, row_ids: np.ndarray) -> tuple[pa.StructArray, list[Filled]]:
        """Return what a table holds of an output that is decoded when it is loaded."""
        if not self._feature(output).pack:
            return cells, []
        packed, failures = self._decoder(output).pack(cells)
        check_failures(failures, self._feature(output).on_error, output.name, row_ids)
        return packed, _filled(output, failures, row_ids)

    def _feature(self, output: Output) -> MediaFeature:
        return cast("MediaFeature", self.features[output.name])

    def _decoder(self, output: Output) -> MediaDecoder:
        return self._feature(output).decoder(self.learned[output.name])


def _filled(output: Output, failures: list[Failure], row_ids: np.ndarray) -> list[Filled]:
    return [(int(row_ids[one.row]), output.name, f"{one.cell}: {one.reason}") for one in failures]
