"""Categories: one id for each distinct value, the most frequent first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from daskprep.errors import ColumnError
from daskprep.features.base import Bounds, Invalid, Tensor
from daskprep.features.cells import as_dictionary, as_numbers
from daskprep.features.checking import kept
from daskprep.features.feature import Feature, with_parameters
from daskprep.features.missing import Strategy
from daskprep.features.parameters import Count
from daskprep.features.tokens import LearnedTokens
from daskprep.sources.cell_text import as_text
from daskprep.summaries import ColumnSummary, TokenCounts
from daskprep.summaries.token_order import byte_order
from daskprep.vocabulary import SpecialSymbols, Vocabulary

MOST_COLUMNS = 1_000  # a table of more would be mostly zeros that take a byte each
_SPECIALS = SpecialSymbols.for_category()


@dataclass(frozen=True, kw_only=True)
class LearnedCategory(LearnedTokens):
    """A vocabulary whose id 0 is ``<UNK>``."""


@with_parameters
class Category(Feature[TokenCounts, LearnedCategory]):
    """Map categories to integer ids, ranked by frequency; id 0 is ``<UNK>``, for values not seen in fit.

    Ties are ordered by UTF-8 bytes. Values are compared as stripped text, and whole floats as integers. A column
    therefore gives the same ids whether or not missing values turned its integers into floats.

    Parameters
    ----------
    most_common : int or None
        Size of the vocabulary; rarer values become ``<UNK>``. None: all values.
    min_frequency : int or None
        Values that occur less often become ``<UNK>``.
    lowercase : bool
        Whether to ignore case.
    order : list of str or None
        The values in the order of their ids, for ordinal data; all others become ``<UNK>``. None: ranked by frequency.
    null_values : list of str or None
        Texts that mark missing values, such as "?".
    missing_value_strategy : str
        Imputation of missing values: "fill_with_const" (with `fill_value`), "fill_with_mode", "ffill", "bfill" or
        "drop_row".
    fill_value : str
        Value that "fill_with_const" imputes for missing values.
    transform_to : {"ids", "ordinal", "one_hot"}
        What `transform` returns to scikit-learn. "ids": the ids. "ordinal": positions of the values, -1 for ``<UNK>``.
        "one_hot": a column for each of at most 1,000 values, all 0 for ``<UNK>``. The last two use `order` if given;
        otherwise values are sorted by number if all are numbers, or else by UTF-8 bytes. `encode`, datasets and batches
        always hold ids.
    invalid : {"missing", "raise"}
        Whether a value that cannot be read counts as missing or raises `RejectedValueError`.
    column : str or None
        Column to read, if its name differs from that of the feature.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskprep import Category
    >>> frame = pd.DataFrame({"city": ["Rome", "Oslo", "Rome "]})
    >>> other = pd.DataFrame({"city": ["Oslo", "Bern", None]})
    >>> city = Category().fit(frame)
    >>> city.learned_["city"].vocabulary.to_dict()["idx2str"]
    ['<UNK>', 'Rome', 'Oslo']
    >>> city.transform(other).ravel()
    array([2, 0, 0], dtype=uint8)
    >>> Category(transform_to="ordinal").fit(frame).transform(other).ravel()
    array([ 0, -1, -1], dtype=int8)
    >>> city = Category(transform_to="one_hot").fit(frame).set_output(transform="pandas")
    >>> city.transform(other)
       city_Oslo  city_Rome
    0          1          0
    1          0          0
    2          0          0
    """

    kind = "category"
    holds = "classes"
    reads_any_text_as = "class"

    most_common: Count | None = 10_000
    min_frequency: Count | None = None
    lowercase: bool = False
    order: list[str] | None = None
    null_values: list[str] | None = None
    missing_value_strategy: Strategy = "fill_with_const"
    fill_value: str | int | float | None = "<UNK>"
    transform_to: Literal["ids", "ordinal", "one_hot"] = "ids"
    invalid: Invalid = "missing"
    column: str | None = None

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
        if self.order is not None:
            listed = as_text(self.parse(pa.array(self.order, pa.string())))
            vocabulary = Vocabulary.from_tokens(listed, summary, _SPECIALS)
        else:
            vocabulary = Vocabulary.learn(summary, _SPECIALS, self.most_common, self.min_frequency)
        if self.transform_to == "one_hot":
            check_one_hot(len(vocabulary))
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

    def tabulate(self, encoded: Mapping[str, np.ndarray], learned: LearnedCategory) -> np.ndarray:
        ids = encoded[""]
        if self.transform_to == "ids":
            return ids[:, None]
        places = _in_order(self, learned)["places"].take(ids)
        if self.transform_to == "ordinal":
            return places[:, None]
        check_one_hot(len(learned.vocabulary))
        hot = np.zeros((len(ids), len(learned.vocabulary) - 1), np.int8)
        known = np.flatnonzero(places >= 0)
        hot[known, places[known]] = 1
        return hot

    def tabulated_names(self, name: str, learned: LearnedCategory) -> list[str]:
        if self.transform_to != "one_hot":
            return [name]
        values = learned.vocabulary.tokens.take(pa.array(_in_order(self, learned)["ids"]))
        return [f"{name}_{value}" for value in values.to_pylist()]


def check_one_hot(tokens: int) -> None:
    """Raise ColumnError if so many tokens, ``<UNK>`` among them, are too many for a column each."""
    if tokens - 1 > MOST_COLUMNS:
        raise ColumnError(
            f'has {tokens - 1:,} values, and transform_to="one_hot" makes a column of each, of at most '
            f'{MOST_COLUMNS:,}: keep fewer by most_common or min_frequency, or use "ordinal" or "ids"'
        )


@kept
def _in_order(feature: Any, learned: LearnedCategory) -> dict[str, np.ndarray]:
    """Return the ids of the values in their order, and by id the place there, -1 for ``<UNK>``."""
    values = learned.vocabulary.tokens.slice(1)
    numbers = as_numbers(values)
    order = byte_order(values) if numbers.null_count else np.argsort(numbers.to_numpy(), kind="stable")
    order = order if feature.order is None else np.arange(len(values))
    places = np.full(len(values) + 1, -1, np.min_scalar_type(-len(values) - 1))
    places[order + 1] = np.arange(len(values))
    return {"ids": order + 1, "places": places}
