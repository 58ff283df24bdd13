"""Categories: one id for each distinct value, the most frequent first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from daskprep.features.base import Bounds, Invalid, Tensor
from daskprep.features.cells import as_dictionary
from daskprep.features.feature import Feature
from daskprep.features.missing import Strategy
from daskprep.features.parameters import Count
from daskprep.features.tokens import LearnedTokens
from daskprep.summaries import ColumnSummary, TokenCounts
from daskprep.vocabulary import SpecialSymbols, Vocabulary

_SPECIALS = SpecialSymbols.for_category()


@dataclass(frozen=True, kw_only=True)
class LearnedCategory(LearnedTokens):
    """A vocabulary whose id 0 is ``<UNK>``."""


class Category(Feature[TokenCounts, LearnedCategory]):
    """Map values to ids ranked by frequency, ties by UTF-8 bytes; id 0 is ``<UNK>``, for values not seen in fit.

    Values are compared as stripped text, whole floats as integers, so that a column reads the same whether or not
    missing cells made floats of its integers.

    Parameters
    ----------
    most_common : int or None
        Values kept; the rest become ``<UNK>``. None keeps all.
    min_frequency : int or None
        Values that occur less often become ``<UNK>``.
    lowercase : bool
        Whether case is ignored.
    missing_value_strategy : str
        "fill_with_const" (with `fill_value`), "fill_with_mode", "ffill", "bfill" or "drop_row".
    fill_value : str
        What "fill_with_const" puts in place of missing cells.
    invalid : {"missing", "raise"}
        Whether a cell that cannot be read counts as missing or is an error.
    column : str or None
        Column to read, if it is not called as the feature is.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskprep import Category
    >>> city = Category().fit(pd.DataFrame({"city": ["Rome", "Oslo", "Rome "]}))
    >>> city.learned_["city"].vocabulary.to_dict()["idx2str"]
    ['<UNK>', 'Rome', 'Oslo']
    >>> city.transform(pd.DataFrame({"city": ["Oslo", "Bern", None]})).ravel()
    array([2, 0, 0], dtype=uint8)
    """

    kind = "category"
    holds = "classes"
    reads_any_text_as = "class"

    def __init__(
        self,
        *,
        most_common: Count | None = 10_000,
        min_frequency: Count | None = None,
        lowercase: bool = False,
        missing_value_strategy: Strategy = "fill_with_const",
        fill_value: str | int | float | None = "<UNK>",
        invalid: Invalid = "missing",
        column: str | None = None,
    ) -> None:
        self.most_common = most_common
        self.min_frequency = min_frequency
        self.lowercase = lowercase
        self.missing_value_strategy = missing_value_strategy
        self.fill_value = fill_value
        self.invalid = invalid
        self.column = column

    def parse(self, column: pa.Array) -> pa.Array:
        return as_dictionary(column, lowercase=self.lowercase)

    def parse_fill(self, value: object) -> pa.Array:
        if value == _SPECIALS.symbols[0]:
            return pa.array([value]).dictionary_encode()
        return super().parse_fill(value)

    def cells(self, parsed: pa.Array) -> None:
        return None

    def learn_fill(self, summary: ColumnSummary[TokenCounts]) -> Any:
        return summary.values.top()

    def _learn_fallback(self, summary: ColumnSummary[TokenCounts]) -> Any:
        return self.learn_fill(summary)

    def summarize(self, parsed: pa.Array) -> TokenCounts:
        codes = parsed.indices.drop_null().to_numpy()
        return TokenCounts.of(parsed.dictionary, np.bincount(codes, minlength=len(parsed.dictionary)))

    def learn(self, summary: TokenCounts) -> LearnedCategory:
        vocabulary = Vocabulary.learn(
            summary, _SPECIALS, most_common=self.most_common, min_frequency=self.min_frequency
        )
        return LearnedCategory(vocabulary=vocabulary)

    def encode(self, parsed: pa.Array, learned: LearnedCategory) -> np.ndarray:
        ids = learned.vocabulary.ids(parsed.dictionary)
        table = np.append(ids, ids.dtype.type(0))
        codes = parsed.indices.fill_null(len(ids)) if parsed.null_count else parsed.indices
        encoded: np.ndarray = table.take(codes.to_numpy(), mode="clip")
        return encoded

    def expand(self, batch: Tensor, learned: LearnedCategory) -> Tensor:
        return batch.long()

    def limits(self, learned: LearnedCategory) -> Mapping[str, Bounds]:
        return {"": (0, len(learned.vocabulary) - 1)}

    def decode(self, encoded: np.ndarray, learned: LearnedCategory) -> pa.Array:
        return learned.vocabulary.decode(np.asarray(encoded))
