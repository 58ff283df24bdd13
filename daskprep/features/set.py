"""Feature types for sets and bags of tokens: ids on disk, multi-hot vectors or counts in batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from daskprep.columns import kernels
from daskprep.columns.vocabulary import SpecialSymbols, Vocabulary
from daskprep.errors import ColumnError, CorruptDatasetError
from daskprep.features.base import Bounds, Loss, Tensor
from daskprep.features.cells import any_in_list, token_lists
from daskprep.features.checking import empty_arrays
from daskprep.features.feature import with_parameters
from daskprep.features.padding import Padding
from daskprep.features.tokens import LearnedTokens, TokenFeature, TokenSummary, drop_repeats
from daskprep.rows.tokens import BagParameters, SetParameters, SetValues, frequencies, multi_hot

_PAD = 0


@dataclass(frozen=True, kw_only=True)
class LearnedSet(SetValues, LearnedTokens):
    """Fitted state of a set or bag column: a vocabulary and sizes."""


@with_parameters
class _SetBase(BagParameters, TokenFeature[TokenSummary, LearnedSet]):
    """Base class of sets and bags: distinct tokens, in order."""

    _loss_remedies: ClassVar[Mapping[Loss, str]] = {
        "unknown": "keep more by most_common or min_frequency",
        "cut": "raise max_size",
    }

    def special_symbols_in_use(self) -> SpecialSymbols:
        return SpecialSymbols.for_tokens()

    def learn(self, summary: TokenSummary) -> LearnedSet:
        """Learn the vocabulary, and the largest size up to `max_size`."""
        specials = self.special_symbols_in_use()
        vocabulary = Vocabulary.learn(summary.counts, specials, self.most_common, self.min_frequency)
        largest = summary.lengths.max
        size = largest if self.max_size is None else min(largest, self.max_size)
        return LearnedSet(vocabulary=vocabulary, max_set_size=largest, size=size)

    def _pack_ids(self, table: np.ndarray, learned: LearnedSet) -> tuple[np.ndarray, np.ndarray]:
        """Return ids of columns that are not 0, padded, and their values; ColumnError for too many."""
        is_token = table > 0
        widest = int(is_token.sum(axis=1).max(initial=0))
        if widest > learned.size:
            raise ColumnError(f"{widest} tokens are in one row, and rows hold at most {learned.size}")
        order = np.argsort(~is_token, axis=1, kind="stable")[:, : learned.size]
        values = np.take_along_axis(table, order, axis=1)
        values = np.pad(values, ((0, 0), (0, learned.size - values.shape[1])))
        ids = np.pad(order, ((0, 0), (0, learned.size - order.shape[1])))
        return np.where(values > 0, ids, _PAD), np.maximum(values, 0)

    def _look_beyond(self, parsed: pa.Array, learned: Any, output: str) -> tuple[np.ndarray, np.ndarray]:
        lists, _ = drop_repeats(token_lists(parsed))
        unknown = ~learned.vocabulary.contains(lists.values)
        return np.diff(lists.rows) > learned.size, any_in_list(lists, unknown)

    def tabulated_names(self, name: str, learned: LearnedSet) -> list[str]:
        return [f"{name}_{token}" for token in learned.vocabulary.tokens.to_pylist()]


@with_parameters
class Set(SetParameters, _SetBase):
    """Map the distinct tokens of a row to ids; batches are multi-hot.

    Parameters
    ----------
    max_size : int or None
        Maximum number of tokens in a row; truncation keeps the first ones. None: the largest number in a training row.
    expand_to : {"multi_hot", "ids"}
        Output of `transform` and of batches: a column for each token of the vocabulary, or the padded ids.
    tokenizer, most_common, min_frequency, lowercase, ngram_size, pattern, pretrained_model_name_or_path, \
    missing_value_strategy, fill_value, missing_indicator, invalid, column
        As for `Sequence`.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskprep import Set
    >>> tags = Set().fit(pd.DataFrame({"tags": ["new red", "red red", None]}))
    >>> tags.get_feature_names_out().tolist()
    ['tags_<PAD>', 'tags_<UNK>', 'tags_red', 'tags_new']
    >>> tags.transform(pd.DataFrame({"tags": ["red old", ""]})).tolist()
    [[0, 1, 1, 0], [0, 0, 0, 0]]
    """

    kind = "set"
    semantic_type = "sets"

    def as_parsed(self, tokens: pa.ListArray) -> pa.Array:
        """Return lists without repeated tokens; nulls stay null."""
        lists, _ = drop_repeats(token_lists(tokens))
        values = pa.DictionaryArray.from_arrays(pa.array(lists.codes, pa.int32()), lists.values)
        return kernels.make_list_array(lists.rows, values, kernels.null_mask(tokens))

    def summarize(self, parsed: pa.Array) -> TokenSummary:
        return TokenSummary.of(parsed)

    def encode(self, parsed: pa.Array, learned: LearnedSet) -> np.ndarray:
        """Return ids of distinct tokens, padded or cut at the end."""
        lists = token_lists(parsed)
        table = learned.vocabulary.ids(lists.values)
        return kernels.pad(lists.rows, lists.codes, learned.size, table, fill=_PAD)

    def expand(self, batch: Tensor, learned: LearnedSet) -> Tensor:
        """Return multi-hot rows as int8, or ids; CorruptDatasetError for ids out of range."""
        if self.expand_to == "ids":
            return batch.long()
        hot = batch.new_zeros((len(batch), len(learned.vocabulary)), dtype=batch[:0].char().dtype)
        try:
            hot.scatter_(1, batch.long(), 1)
        except RuntimeError as error:
            if not len(batch) or int(batch.max()) < len(learned.vocabulary):
                raise
            raise CorruptDatasetError(
                f"a batch contains the id {int(batch.max())}, but the vocabulary has {len(learned.vocabulary)} tokens: "
                "the rows belong to another dataset, or were changed"
            ) from error
        hot[:, _PAD] = 0
        return hot

    def tabulate(self, encoded: Mapping[str, np.ndarray], learned: LearnedSet) -> np.ndarray:
        return encoded[""] if self.expand_to == "ids" else multi_hot(encoded[""], len(learned.vocabulary))

    def untabulate(self, table: np.ndarray, learned: LearnedSet) -> np.ndarray:
        return table if self.expand_to == "ids" else self._pack_ids(table, learned)[0]

    def tabulated_names(self, name: str, learned: LearnedSet) -> list[str]:
        ids = [f"{name}_{i}" for i in range(learned.size)]
        return ids if self.expand_to == "ids" else super().tabulated_names(name, learned)

    def limits(self, learned: LearnedSet) -> Mapping[str, Bounds]:
        return {"": (0, len(learned.vocabulary) - 1)}

    def _paddings(self, learned: LearnedSet, *, expand: bool) -> dict[str, Padding]:
        return {"": Padding(0)} if self.expand_to == "ids" or not expand else {}

    def decode(self, encoded: np.ndarray, learned: LearnedSet) -> pa.Array:
        """Return lists of tokens; ColumnError for multi-hot rows."""
        ids = np.asarray(encoded)
        # Expanded batches may be as wide as rows of ids, but in rows of ids, tokens never follow padding.
        if ids.shape[1] == len(learned.vocabulary) and not ids[:, :1].any() and ids.any() and ids.max() == 1:
            raise ColumnError(
                "cannot decode multi-hot vectors, to which a loader expands the ids of a set: use a loader with "
                "expand=False"
            )
        return decode_lists(ids, learned)


class Bag(_SetBase):
    """Map the tokens of a row to ids and counts (bag of words).

    On disk, a row is an array of shape (2, size): its distinct ids, and their counts.

    Parameters
    ----------
    tokenizer, most_common, min_frequency, max_size, lowercase, ngram_size, pattern, \
    pretrained_model_name_or_path, missing_value_strategy, fill_value, missing_indicator, invalid, column
        As for `Set`.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskprep import Bag
    >>> words = Bag().fit(pd.DataFrame({"words": ["to be or not to be"]}))
    >>> words.transform(pd.DataFrame({"words": ["be be to"]})).tolist()
    [[0.0, 0.0, 2.0, 1.0, 0.0, 0.0]]
    """

    kind = "bag"
    semantic_type = "bags"

    @staticmethod
    def _row_ids(encoded: np.ndarray) -> np.ndarray:
        ids: np.ndarray = encoded[:, 0]
        return ids

    def summarize(self, parsed: pa.Array) -> TokenSummary:
        return TokenSummary.of(parsed, distinct=True)

    def encode(self, parsed: pa.Array, learned: LearnedSet) -> np.ndarray:
        """Return an array (rows, 2, size) of ids and counts, padded."""
        lists, counts = drop_repeats(token_lists(parsed))
        ids = learned.vocabulary.ids(lists.values)
        # The dtype must not depend on the rows of a partition, so counts have 16 bits, or more if ids need more.
        out = np.empty((len(parsed), 2, learned.size), np.promote_types(ids.dtype, np.uint16))
        counts = np.minimum(counts, np.iinfo(out.dtype).max)
        out[:, 0] = kernels.pad(lists.rows, lists.codes, learned.size, ids, fill=_PAD)
        out[:, 1] = kernels.pad(lists.rows, counts.astype(out.dtype), learned.size)
        return out

    def expand(self, batch: Tensor, learned: LearnedSet) -> Tensor:
        """Return float32 rows of counts by token."""
        ids, counts = batch[:, 0].long(), batch[:, 1].float()
        token_counts = counts.new_zeros((len(batch), len(learned.vocabulary)))
        token_counts.scatter_add_(1, ids, counts)
        token_counts[:, _PAD] = 0
        return token_counts

    def tabulate(self, encoded: Mapping[str, np.ndarray], learned: LearnedSet) -> np.ndarray:
        return frequencies(encoded[""], len(learned.vocabulary))

    def untabulate(self, table: np.ndarray, learned: LearnedSet) -> np.ndarray:
        return np.concatenate(self._pack_ids(table, learned), axis=1)

    def limits(self, learned: LearnedSet) -> Mapping[str, Bounds]:
        max_count = np.iinfo(empty_arrays(self, learned)[""].dtype).max
        return {"": (0, [[len(learned.vocabulary) - 1], [max_count]])}

    def _paddings(self, learned: LearnedSet, *, expand: bool) -> dict[str, Padding]:
        return {} if expand else {"": Padding(0, is_bag=True)}

    def decode(self, encoded: np.ndarray, learned: LearnedSet) -> pa.Array:
        array = np.asarray(encoded)
        return decode_lists(array[:, 0], learned, repeats=array[:, 1])


def decode_lists(ids: np.ndarray, learned: LearnedSet, repeats: np.ndarray | None = None) -> pa.Array:
    """Return padded rows of ids as lists of tokens, each `repeats` times (None: once)."""
    inside = ids != _PAD
    times = inside if repeats is None else np.where(inside, repeats, 0)
    flat = np.repeat(ids.ravel(), times.ravel().astype(np.int64))
    offsets = kernels.offsets_from_lengths(times.sum(axis=1, dtype=np.int64))
    return kernels.make_list_array(offsets, learned.vocabulary.decode(flat))
