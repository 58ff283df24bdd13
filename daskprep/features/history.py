"""Feature type for histories: the tokens of the rows before a row, by group, across partitions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from daskprep.columns import kernels
from daskprep.columns.display import format_count
from daskprep.columns.kernels import valid_mask
from daskprep.columns.permutation import Integers
from daskprep.errors import ColumnError, ConfigError
from daskprep.features.base import Loss, TrainingCounts
from daskprep.features.cells import any_in_list, token_lists
from daskprep.features.feature import with_parameters
from daskprep.features.missing import NeighbourImputer
from daskprep.features.parameters import default_of
from daskprep.features.sequence import LearnedSequence
from daskprep.features.sequence import Sequence as SequenceFeature
from daskprep.features.tokens import TokenSummary
from daskprep.rows.tokens import HistoryParameters
from daskprep.sources.cells import as_text
from daskprep.sources.split.times import SeriesOrder, read_times

_FIELDS = ["tokens", "group", "time"]
_UNUSED = {
    "sequence_length": "rows have the length `last`",
    "max_sequence_length": "rows have the length `last`",
    "missing_value_strategy": "a missing value is left out of histories",
    "fill_value": "a missing value is left out of histories",
    "missing_indicator": "no history is missing",
}


@dataclass(frozen=True)
class HistoryBorder:
    """The rows of one partition that histories in later partitions may have."""

    groups: pa.Array  # names of all groups of the partition
    ids: pa.ListArray  # of the last rows of each group, in order
    codes: Integers  # positions of their groups
    order: SeriesOrder | None  # of the times; None without times


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
        Refused unless at their defaults: rows have length `last`, a missing value is left out of histories, and no
        history is missing.
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
    _loss_remedies: ClassVar[Mapping[Loss, str]] = {"unknown": "keep more by most_common or min_frequency"}
    learns_subwords = False

    def check(self) -> None:
        """Raise ConfigError for a parameter of `Sequence` that histories have no use for."""
        super().check()
        for name, reason in _UNUSED.items():
            if getattr(self, name) != default_of(type(self), name):
                raise ConfigError(f"History: {name}={getattr(self, name)!r}: {reason}: leave it out")

    def parse(self, column: pa.Array, *others: pa.Array) -> pa.Array:
        """Return structs of tokens, group and time; none is missing, since its own tokens are not in a row."""
        tokens = super().parse(column).field("tokens")
        named = dict(zip(self.reads("")[1:], others, strict=False))
        group = pa.repeat("", len(column)) if self.by is None else pa.nulls(len(column), pa.string())
        if self.by in named:
            group = as_text(named[self.by])
        time = read_times(named[self.time], self.time) if self.time in named else pa.nulls(len(column), pa.int64())
        return pa.StructArray.from_arrays([tokens, group, time], _FIELDS)

    def as_parsed(self, tokens: pa.ListArray) -> pa.Array:
        nulls = [pa.nulls(len(tokens), kind) for kind in (pa.string(), pa.int64())]
        return pa.StructArray.from_arrays([tokens, *nulls], _FIELDS)

    def summarize(self, parsed: pa.Array) -> TokenSummary:
        return super().summarize(parsed.field("tokens"))

    def cells(self, parsed: pa.Array) -> pa.Array:
        return super().cells(parsed.field("tokens"))

    def learn(self, summary: TokenSummary) -> LearnedSequence:
        return dataclasses.replace(
            super().learn(summary), max_sequence_length=self.last, max_sequence_length_99ptile=self.last, cut_rows=0
        )

    def ids_of(self, parsed: pa.Array, learned: LearnedSequence) -> pa.ListArray:
        """Return the ids of the tokens of each row itself; null where they are missing."""
        tokens = parsed.field("tokens")
        lists = token_lists(tokens)
        ids = learned.vocabulary.ids(lists.values).astype(np.int32)[lists.codes]
        return kernels.make_list_array(lists.rows, pa.array(ids, pa.int32()), ~valid_mask(tokens))

    def _lookup(self, parsed: pa.Array, learned: LearnedSequence) -> tuple[kernels.TokenCodes, np.ndarray]:
        if pa.types.is_struct(parsed.type):
            return super()._lookup(parsed.field("tokens"), learned)
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
        return super()._mask_unseen(parsed.field("tokens"), learned, encodes=encodes)

    def _training_counts(self, learned: LearnedSequence) -> dict[str, TrainingCounts]:
        return {}

    @property
    def _window_groups(self) -> list[str | None]:
        return [self.by]

    @property
    def imputer(self) -> NeighbourImputer:
        return _HistoryImputer(self)


class _HistoryImputer(NeighbourImputer):
    """Replaces the tokens of each row by the ids of the rows before it."""

    used_in_fit = False
    per_split = True
    sees_earlier_splits = True

    def __init__(self, feature: History) -> None:
        self._feature = feature

    def hide(self, parsed: pa.Array, hidden: np.ndarray) -> pa.Array:
        rows = pa.array(np.arange(len(parsed)), mask=hidden)
        return pa.StructArray.from_arrays(
            [parsed.field("tokens").take(rows), parsed.field("group"), parsed.field("time")], _FIELDS
        )

    def find_border(self, parsed: pa.Array, learned: Any = None) -> HistoryBorder:
        """Return the last rows of each group."""
        codes, groups = _codes_of(parsed)
        ids = self._feature.ids_of(parsed, learned)
        rows = _rows_by_group(codes, valid_mask(ids))
        ends = np.searchsorted(codes[rows], codes[rows], side="right")
        rows = rows[ends - np.arange(len(rows)) <= self._feature.last]
        order = None
        if self._feature.time is not None and len(parsed):
            has_group = codes >= 0
            order = SeriesOrder.of(parsed.field("time").to_numpy()[has_group], codes[has_group], groups)
        return HistoryBorder(groups, ids.take(pa.array(rows)), codes[rows], order)

    def compute_border_values(self, borders: Sequence[HistoryBorder]) -> list[Any]:
        """Return for each partition the last rows of its groups in earlier partitions, and their groups."""
        orders = [border.order for border in borders if border.order is not None]
        if orders and (late := SeriesOrder.count_late(orders)):
            raise ColumnError(
                f'the times of "{self._feature.time}" go back at {format_count(late, "row")} within a group, so the '
                "rows before a row are not its past: sort the data by time first"
            )
        names = pa.concat_arrays([border.groups for border in borders]).dictionary_encode()
        sizes = [len(border.groups) for border in borders]
        known = np.split(names.indices.to_numpy().astype(np.int64), np.cumsum(sizes)[:-1])
        codes = np.concatenate([own[border.codes] for own, border in zip(known, borders, strict=True)])
        parts = np.repeat(np.arange(len(borders)), [len(border.codes) for border in borders])
        order = np.argsort(codes, kind="stable")
        keys, ids = (codes * len(borders) + parts)[order], pa.concat_arrays([border.ids for border in borders])
        border_values = []
        for part, groups in enumerate(known):
            ends = np.searchsorted(keys, groups * len(borders) + part)
            starts = np.maximum(np.searchsorted(keys, groups * len(borders)), ends - self._feature.last)
            rows = order[_expand_ranges(starts, ends)]
            border_values.append((ids.take(pa.array(rows)), np.repeat(np.arange(len(groups)), ends - starts)))
        return border_values

    def complete(self, parsed: pa.Array, border_value: Any, learned: Any = None) -> pa.Array:
        """Return the history of each row as a list of ids."""
        ids, (codes, _) = self._feature.ids_of(parsed, learned), _codes_of(parsed)
        if border_value is not None:
            ids = pa.concat_arrays([border_value[0], ids])
            codes = np.concatenate([border_value[1], codes])
        rows, size = _rows_by_group(codes, valid_mask(ids)), len(codes)
        keys, own = (codes * size + np.arange(size))[rows], np.arange(size - len(parsed), size)
        ends = np.searchsorted(keys, codes[own] * size + own)
        starts = np.maximum(np.searchsorted(keys, codes[own] * size), ends - self._feature.last)
        starts = np.where(codes[own] < 0, ends, starts)
        past = ids.take(pa.array(rows))
        offsets, values = kernels.list_offsets(past), past.flatten()
        firsts, lasts = offsets[starts].astype(np.int64), offsets[ends].astype(np.int64)
        values = values.take(pa.array(_expand_ranges(firsts, lasts)))
        return kernels.make_list_array(kernels.offsets_from_lengths(lasts - firsts), values)


def _codes_of(parsed: pa.Array) -> tuple[Integers, pa.Array]:
    """Return the position of each row's group among the distinct groups, -1 without one, and their names."""
    groups = parsed.field("group").dictionary_encode()
    return groups.indices.fill_null(-1).to_numpy().astype(np.int64), groups.dictionary


def _rows_by_group(codes: Integers, present: np.ndarray) -> Integers:
    """Return the numbers of the present rows with a group, sorted by group, stably."""
    rows = np.flatnonzero(present & (codes >= 0))
    by_group: Integers = rows[np.argsort(codes[rows], kind="stable")]
    return by_group


def _expand_ranges(starts: Integers, ends: Integers) -> Integers:
    """Return the integers of all ranges, one range after another."""
    lengths = ends - starts
    firsts = np.cumsum(lengths) - lengths
    expanded: Integers = np.arange(lengths.sum()) + np.repeat(starts - firsts, lengths)
    return expanded
