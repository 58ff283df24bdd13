"""Feature type for histories: the tokens of the rows before a row, by group, across partitions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from daskprep.columns import kernels
from daskprep.columns.kernels import valid_mask
from daskprep.errors import ConfigError
from daskprep.features.base import Loss, TrainingCounts
from daskprep.features.cells import any_in_list, token_lists
from daskprep.features.feature import with_parameters
from daskprep.features.parameters import default_of
from daskprep.features.sequence import LearnedSequence
from daskprep.features.sequence import Sequence as SequenceFeature
from daskprep.features.tokens import TokenSummary
from daskprep.features.windows import (
    Reach,
    SortedRows,
    WindowImputer,
    expand_ranges,
    iterate_chunks,
    parse_rows,
    replace_values,
)
from daskprep.rows.tokens import HistoryParameters

_UNUSED = {
    "sequence_length": "rows have the length `last`",
    "max_sequence_length": "rows have the length `last`",
    "missing_value_strategy": "a missing value is left out of histories",
    "fill_value": "a missing value is left out of histories",
    "missing_indicator": "no history is missing",
}


@with_parameters
class History(HistoryParameters, SequenceFeature):
    """Map the tokens of the last rows of a group to ids, such as the items that a user bought before.

    A row gets the ids of the rows before it in its group, oldest first, without its own. Rows of later splits are in no
    history of earlier ones, and rows without a group have no history. Ids are padded to `last`; zstd stores padding in
    almost no space, and batches with ``trim=True`` are as long as their longest history, with lengths for `jagged`.

    Parameters
    ----------
    by : str or None
        Column of groups, such as users. None: all rows are one group.
    time : str or None
        Column of times. If the rows of a group are not in their order, encoding raises `ColumnError`. None: rows are
        taken in the order of the data without a check. Rows of one time are in the order of the data.
    last : int
        Number of rows of a history, and length of an encoded row.
    tokenizer : str or callable
        Name of a tokenizer, or a function from text to a list of tokens. "untokenized": each value is one token. Values
        that are lists are already tokens.
    vocab_file : str or None
        Text file with one token per line in the order of their ids, used as the vocabulary instead of counting.
    most_common, min_frequency : int or None
        Size of the vocabulary, and minimum count of a token; other tokens become ``<UNK>``. None: all tokens.
    padding : {"right", "left"}
        Side of the padding.
    truncation : {"keep_start", "keep_end"}
        Which tokens are kept if the rows of a history have more than `last` in all.
    add_start_stop, special_symbols, lowercase
        As for `Sequence`.
    ngram_size, pattern, pretrained_model_name_or_path
        Parameters of the tokenizers "ngram", "regex" and "hf_tokenizer".
    sequence_length, max_sequence_length, missing_value_strategy, fill_value, missing_indicator
        Refused unless defaults: rows have length `last`, histories leave out missing values, and none is missing.
    invalid : {"missing", "raise"}
        Whether a value that cannot be read is left out or raises `RejectedValueError`.
    column : str or None
        Column of tokens, if its name differs from the feature's.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskprep import History, Preprocessor
    >>> clicks = pd.DataFrame({"user": ["a", "b", "a", "a", "b"], "item": ["pen", "ink", "ink", "cap", "pen"]})
    >>> prep = Preprocessor({"past": History(column="item", by="user", last=3)}).fit(clicks)
    >>> prep.decode(prep.encode(clicks))["past"].map(list).tolist()
    [[], [], ['pen'], ['pen', 'ink'], ['ink']]
    """

    kind = "history"
    semantic_type = "tokens"
    _loss_remedies: ClassVar[Mapping[Loss, str]] = {
        "unknown": "keep more by most_common or min_frequency",
        "padded": "pass the rows before them too",
    }
    learns_subwords = False

    def check(self) -> None:
        """Raise ConfigError for a parameter of `Sequence` that histories have no use for."""
        super().check()
        for name, reason in _UNUSED.items():
            if getattr(self, name) != default_of(type(self), name):
                raise ConfigError(f"History: {name}={getattr(self, name)!r}: {reason}: leave it out")

    def parse(self, column: pa.Array, *others: pa.Array) -> pa.Array:
        """Return structs of value, group and time; none is missing, since its own tokens are not in a row."""
        tokens = super().parse(column).field("value")
        return parse_rows(tokens, self, others)

    def as_parsed(self, tokens: pa.ListArray) -> pa.Array:
        return parse_rows(tokens, self, ())

    def summarize(self, parsed: pa.Array) -> TokenSummary:
        return super().summarize(parsed.field("value"))

    def cells(self, parsed: pa.Array) -> pa.Array:
        return super().cells(parsed.field("value"))

    def learn(self, summary: TokenSummary) -> LearnedSequence:
        return dataclasses.replace(
            super().learn(summary), max_sequence_length=self.last, max_sequence_length_99ptile=self.last, cut_rows=0
        )

    def ids_of(self, parsed: pa.Array, learned: LearnedSequence) -> pa.ListArray:
        """Return the ids of the tokens of each row itself; null where they are missing."""
        tokens = parsed.field("value")
        lists = token_lists(tokens)
        ids = learned.vocabulary.ids(lists.values).astype(np.int32)[lists.codes]
        return kernels.make_list_array(lists.rows, pa.array(ids, pa.int32()), ~valid_mask(tokens))

    def _lookup(self, parsed: pa.Array, learned: LearnedSequence) -> tuple[kernels.TokenCodes, np.ndarray]:
        if pa.types.is_struct(parsed.type):
            return super()._lookup(parsed.field("value"), learned)
        ids = np.arange(len(learned.vocabulary), dtype=learned.vocabulary.dtype)
        return kernels.TokenCodes(kernels.list_offsets(parsed), parsed.flatten().to_numpy(), pa.array([""])), ids

    def decode(self, encoded: np.ndarray, learned: LearnedSequence) -> pa.Array:
        """Return each row as a list of tokens without padding, start and stop."""
        ids, specials = np.asarray(encoded), learned.vocabulary.specials
        inside = ~np.isin(
            ids, [one for one in (specials.padding_id, specials.start_id, specials.stop_id) if one is not None]
        )
        offsets = kernels.offsets_from_lengths(inside.sum(axis=1))
        return kernels.make_list_array(offsets, learned.vocabulary.decode(ids[inside]))

    def _losses(
        self, parsed: pa.Array, encoded: Mapping[str, np.ndarray], learned: LearnedSequence
    ) -> Mapping[Loss, np.ndarray]:
        lists, ids = self._lookup(parsed, learned)
        return {"unknown": any_in_list(lists, ids == learned.vocabulary.specials.unknown_id)}

    def _learned_losses(self, learned: LearnedSequence) -> Mapping[Loss, int]:
        return {}

    def _mask_unseen(self, parsed: pa.Array, learned: LearnedSequence, *, encodes: bool = True) -> np.ndarray:
        return super()._mask_unseen(parsed.field("value"), learned, encodes=encodes)

    def _training_counts(self, learned: LearnedSequence) -> dict[str, TrainingCounts]:
        return {}

    @property
    def _past(self) -> tuple[str | None, int, bool]:
        return self.by, self.last, False

    def _mask_padded(
        self, encoded: np.ndarray, losses: Mapping[Loss, np.ndarray], learned: LearnedSequence
    ) -> np.ndarray:
        """Return a mask of the rows without a history: shorter ones are usual."""
        is_empty: np.ndarray = np.diff(kernels.list_offsets(self.decode(encoded, learned))) == 0
        return is_empty

    @property
    def _window_numbers(self) -> int:
        return self.last

    @property
    def _window_groups(self) -> list[str | None]:
        return [self.by]

    @property
    def imputer(self) -> WindowImputer:
        return _HistoryImputer(self)


class _HistoryImputer(WindowImputer):
    """Replaces the tokens of each row by the ids of the rows before it."""

    per_split = True
    sees_earlier_splits = True
    null_is_group = False

    def __init__(self, feature: History) -> None:
        super().__init__(feature, Reach(before=feature.last), feature.time)
        self._feature = feature

    def hide(self, parsed: pa.Array, hidden: np.ndarray) -> pa.Array:
        rows = pa.array(np.arange(len(parsed)), mask=hidden)
        return replace_values(parsed, parsed.field("value").take(rows))

    def values_of(self, parsed: pa.Array, learned: Any) -> pa.Array:
        return self._feature.ids_of(parsed, learned)

    def mask_used(self, values: pa.Array) -> np.ndarray:
        return valid_mask(values)

    def cut(self, rows: SortedRows, parsed: pa.Array, learned: Any) -> pa.Array:
        """Return the history of each row as a list of ids."""
        starts, ends = np.maximum(rows.starts, rows.positions - self._feature.last), rows.positions
        offsets, values = kernels.list_offsets(rows.values), rows.values.flatten()
        firsts, lasts = offsets[starts].astype(np.int64), offsets[ends].astype(np.int64)
        lengths = lasts - firsts
        parts = [values.take(pa.array(expand_ranges(firsts[one], lasts[one]))) for one in iterate_chunks(lengths)]
        return kernels.make_list_array(kernels.offsets_from_lengths(lengths), pa.concat_arrays([values[:0], *parts]))
