"""Columns of cells to try a feature type with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from daskprep.media.audio import encode_wav
from daskprep.media.pixels import encode_png

_H3_CELLS = (
    "8928308280fffff", "8928308283bffff", "85283473fffffff", "8001fffffffffff", "821c07fffffffff", "85283447fffffff",
)  # fmt: skip
_ORDER = (0, 1, 0, 2, 3, 0, 1, 4, 5, 2, 0, 3)  # of six different cells, some of them more frequent


def made_up_columns() -> Iterator[list[Any]]:
    """Give columns of words, spellings of yes and no, dates, H3 cells, vectors, numbers, images and sounds.

    A type takes the first one that it can read, so those that fewer types can read come first among the alike.
    """
    kinds: list[list[Any]] = [
        ["red fox", "blue", "blue hare", "red hare red", "grey", "fox grey blue"],
        ["yes", "no", "no", "yes", "yes", "no"],
        ["2021-03-05 10:20:30", "1999-12-31", "2024-02-29 23:59:59", "1970-01-01", "2010-10-10", "2001-07-01 01:02:03"],
        list(_H3_CELLS),
        ["0.5 1.25 -2", "3 0 1", "2.5 2.5 2.5", "-1 -2 -3", "0 0 0", "10 20 30"],
        [1.5, -2.0, 300.0, 0.0, 7.25, -40.5],
        [encode_png(pixels) for pixels in np.random.default_rng(0).integers(0, 256, (6, 4, 6, 3), np.uint8)],
        [encode_wav(samples, 1_000) for samples in np.random.default_rng(0).uniform(-1, 1, (6, 200))],
    ]
    for cells in kinds:
        yield [cells[place] for place in _ORDER]
