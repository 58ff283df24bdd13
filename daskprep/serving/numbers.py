"""Rows of `Number`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from daskprep.errors import RejectedValueError
from daskprep.serving.base import RowEncoder, number_of
from daskprep.serving.units import center_and_scale

_LARGEST = float(np.finfo(np.float32).max)


class NumberRows(RowEncoder):
    """Rows of `Number`."""

    def prepare(self) -> None:
        self.normalization = self.params["normalization"]
        self.center, self.scale = center_and_scale(self.normalization, self.learned)

    def read(self, cell: Any) -> float | None:
        return number_of(cell)

    def arrays(self, values: Sequence[float]) -> dict[str, np.ndarray]:
        if self.normalization == "log1p":
            return {"": _logarithms(values)}
        center, scale = self.center, self.scale
        scaled = [(value - center) * scale for value in values]
        return {"": np.array([max(-_LARGEST, min(one, _LARGEST)) for one in scaled], np.float32)}


def _logarithms(values: Sequence[float]) -> np.ndarray:
    for value in values:
        if value <= -1:
            raise RejectedValueError(f"{value:g} has no log1p, which needs values above -1: use another normalization")
    return np.log1p(np.array(values, np.float64)).astype(np.float32)
