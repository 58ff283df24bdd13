"""The text of single cells, for columns whose cells are of several kinds."""

from __future__ import annotations

import datetime as dt
import math
import os
import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["SCALARS", "cell_texts"]

_WHOLE_BELOW = 2.0**63
_FRACTION = "a float that is not whole"

SCALARS = (
    str, bool, np.bool_, int, np.integer, float, np.floating, Decimal, bytes, bytearray, os.PathLike,
    uuid.UUID, dt.date, dt.time, dt.timedelta, np.datetime64, np.timedelta64,
)  # fmt: skip


def cell_texts(cells: Sequence[Any]) -> list[str | None]:
    """Return the texts of scalars, each the same whatever kinds its neighbours are of.

    Whole floats read as integers ("1", not "1.0"), other floats by their shortest form, booleans as "True"
    and "False", times by ``str``, bytes as UTF-8; None and NaN have none.
    """
    texts = [_text(cell) for cell in cells]
    fractions = [i for i, text in enumerate(texts) if text is _FRACTION]
    values = pa.array([float(cells[i]) for i in fractions], pa.float64())
    # Arrow's form, because columns that hold floats alone are turned to text by Arrow.
    for i, text in zip(fractions, values.cast(pa.string()).to_pylist(), strict=True):
        texts[i] = text
    return texts


def _text(cell: Any) -> str | None:
    if cell is None or isinstance(cell, str):
        return cell
    if isinstance(cell, float | np.floating):
        return _whole(float(cell))
    if isinstance(cell, bytes | bytearray):
        return cell.decode()
    if isinstance(cell, os.PathLike):
        return os.fsdecode(cell)
    return str(cell)


def _whole(value: float) -> str | None:
    if math.isnan(value):
        return None
    return str(int(value)) if abs(value) < _WHOLE_BELOW and value.is_integer() else _FRACTION
