"""Row weights for statistics and losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from daskprep.columns.summaries import Moments
from daskprep.errors import ColumnError, RejectedValueError
from daskprep.features.base import Invalid, Learned
from daskprep.features.cells import as_numbers
from daskprep.features.feature import Feature, with_parameters

_MAX_WEIGHT = float(np.finfo(np.float32).max)  # losses are weighted in single precision
_ROUNDED_TO_0 = 2.0**-150  # greatest double that float32 rounds to 0


@dataclass(frozen=True, kw_only=True)
class LearnedWeight(Learned):
    """Fitted state of weights: their sum over training rows."""

    total: float


@with_parameters
class Weight(Feature[Moments, LearnedWeight]):
    """The weight of each row, a number of at least 0: the feature that ``Preprocessor(weight=)`` adds.

    Weights are stored separately from the inputs. Missing, negative or non-numeric weights raise `RejectedValueError`.

    Parameters
    ----------
    column : str or None
        Column to read, if its name differs from the feature's.
    """

    kind = "weight"
    semantic_type = "numbers"
    _weighs_rows = True
    _is_input = False
    missing_value_strategy = "fill_with_const"  # `parse` rejects missing weights, so that none is ever filled
    fill_value = 1.0
    invalid: ClassVar[Invalid] = "raise"  # type: ignore[misc] # no parameter here

    def parse(self, column: pa.Array) -> pa.Array:
        """Return weights as doubles; RejectedValueError for any other."""
        numbers = as_numbers(column)
        weights = numbers.to_numpy(zero_copy_only=False)
        is_rejected = ~((weights >= 0) & (weights <= _MAX_WEIGHT)) | ((weights > 0) & (weights <= _ROUNDED_TO_0))
        if is_rejected.any():
            value = weights[first := int(np.argmax(is_rejected))]
            remedy = "multiply all weights by one number" if 0 < value < 1 else "correct the data"
            raise RejectedValueError(
                f"{column[first].as_py()!r} is not a weight: each row needs 0, or a number from 1.4e-45 to 3.4e38, "
                f"the range of float32; {remedy}"
            )
        return numbers

    def summarize(self, parsed: pa.Array) -> Moments:
        return Moments.of(parsed.to_numpy(zero_copy_only=False))

    def learn(self, summary: Moments) -> LearnedWeight:
        """Learn the total; ColumnError if all weights are 0."""
        if summary.count and not summary.total:
            raise ColumnError("has the weight 0 in all training rows: at least one weight must be above 0")
        return LearnedWeight(total=summary.mean() * summary.count if summary.count else 0.0)

    def encode(self, parsed: pa.Array, learned: LearnedWeight) -> np.ndarray:
        weights: np.ndarray = parsed.to_numpy(zero_copy_only=False).astype(np.float32)
        return weights

    def decode(self, encoded: np.ndarray, learned: LearnedWeight) -> pa.Array:
        return pa.array(encoded)
