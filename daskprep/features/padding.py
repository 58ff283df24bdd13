"""Padding of rows that are shorter than others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from daskprep.columns.permutation import Integers


@dataclass(frozen=True)
class Padding:
    """The value that pads short rows, and the side."""

    token: Any  # a number, NaN, or an array of numbers for rows with several numbers per item
    left: bool = False
    is_bag: bool = False  # whether a row has ids and, below them, their counts

    def lengths(self, ids: np.ndarray) -> Integers:
        """Return the length of each row without the padding on its side; tokens equal to it inside count."""
        ids = ids[:, 0] if self.is_bag else ids
        rows, width = ids.shape[:2]
        # Only one side is cut, because some tokenizers use the end-of-sentence symbol as padding. Eight flags at a time
        # take a fifth of the time.
        is_token = np.zeros((rows, -(-width // 8), 8), bool)
        flat = is_token.reshape(rows, 8 * is_token.shape[1])[:, :width]
        if ids.ndim == 2:
            np.not_equal(ids, self.token, out=flat)
        else:
            is_padding = np.isnan(ids) if np.isnan(self.token).any() else np.equal(ids, self.token)
            flat[...] = ~is_padding.all(axis=2)
        groups = is_token.view(np.uint64)[:, :, 0] != 0
        group = groups.argmax(axis=1) if self.left else groups.shape[1] - 1 - groups[:, ::-1].argmax(axis=1)
        flags = is_token[np.arange(rows), group]
        if self.left:
            lengths = width - 8 * group - flags.argmax(axis=1)
        else:
            lengths = 8 * group + 8 - flags[:, ::-1].argmax(axis=1)
        return np.where(flags.any(axis=1), lengths, 0)

    def cut(self, ids: Any, width: int) -> Any:
        """Return rows of a width, cut on the side of the padding."""
        if self.is_bag:
            return ids[:, :, :width]
        return ids[:, ids.shape[1] - width :] if self.left else ids[:, :width]
