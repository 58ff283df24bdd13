"""Rows of `Category` and `Binary`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from daskprep.serving.base import RowEncoder, ids_type, number_of, text_of

CONVENTIONAL = {
    **dict.fromkeys(("yes", "y", "true", "t", "1", "1.0"), True),
    **dict.fromkeys(("no", "n", "false", "f", "0", "0.0", "-1", "-1.0"), False),
}


class CategoryRows(RowEncoder):
    """Rows of `Category`."""

    def prepare(self) -> None:
        tokens = self.learned["idx2str"]
        self.ids = {token: number for number, token in enumerate(tokens)}
        self.dtype = ids_type(len(tokens))
        self.lowercase = self.params["lowercase"]

    def read(self, cell: Any) -> int | None:
        text = text_of(cell)
        if text is None:
            return None
        text = text.strip()
        return self.ids.get(text.lower() if self.lowercase else text, 0)

    def read_fill(self, fill: Any) -> int | None:
        return 0 if fill == "<UNK>" else self.read(fill)

    def arrays(self, values: Sequence[int]) -> dict[str, np.ndarray]:
        return {"": np.array(values, self.dtype)}

    def expand(self, encoded: np.ndarray) -> np.ndarray:
        return encoded.astype(np.int64)


class BinaryRows(RowEncoder):
    """Rows of `Binary`."""

    def prepare(self) -> None:
        known = self.learned["str2bool"]
        self.labels = dict(known)
        self.others = {}
        if self.learned["fallback_true_label"] is None and all(label.lower() in CONVENTIONAL for label in known):
            self.others = CONVENTIONAL

    def read(self, cell: Any) -> bool | None:
        text = text_of(cell)
        text = None if text is None else text.strip()
        if not text:
            return None
        if self.learned["above_zero"]:
            number = number_of(text)
            return None if number is None else number > 0
        truth = self.labels.get(text)
        return self.others.get(text.lower()) if truth is None else truth

    def read_fill(self, fill: Any) -> bool:
        return bool(fill)  # what stands for a missing cell is a truth, and no label

    def arrays(self, values: Sequence[bool]) -> dict[str, np.ndarray]:
        return {"": np.array(values, np.uint8)}

    def expand(self, encoded: np.ndarray) -> np.ndarray:
        return encoded.astype(np.bool_)
