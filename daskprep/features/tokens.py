"""Shared parts of the token types: lists of dictionary codes, their summary, and their vocabulary."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns import kernels
from daskprep.columns.kernels import TokenCodes, valid_mask
from daskprep.columns.permutation import Integers
from daskprep.columns.summaries import ColumnSummary, Lengths, Summary, TokenCounts
from daskprep.columns.summaries.base import SummaryT
from daskprep.columns.tokenizers import Subwords, Tokenizer, get_tokenizer, is_builtin_tokenizer, lowercase_strings
from daskprep.columns.vocabulary import SpecialSymbols, Vocabulary
from daskprep.errors import ColumnError, ConfigError
from daskprep.features.base import Learned, LearnedT, Loss
from daskprep.features.cells import token_lists
from daskprep.features.feature import Feature, with_parameters
from daskprep.rows.tokens import TokenParameters
from daskprep.sources.cells import as_text

UNKNOWN = "<UNK>"  # as a fill value: the out-of-vocabulary symbol, whatever its spelling

_READERS = {"pretrained_model_name_or_path": ("hf_tokenizer", "sentencepiece"), "pattern": ("regex",)}  # tokenizers
_CELL_SEPARATOR = "\x1f"
_MAX_SAMPLE_CHARACTERS = 200  # characters of a token in golden rows
_MAX_SHIFTS = 64  # longer rows are searched for repeats by sorting, shorter ones by comparing shifted copies


def tokenize(column: pa.Array, tokenizer: Tokenizer, *, lowercase: bool) -> pa.ListArray:
    """Return text as lists of tokens, and lists unchanged; ColumnError for other nested types."""
    kind = column.type
    if pa.types.is_list(kind):
        return _from_lists(column, lowercase=lowercase)
    if pa.types.is_nested(kind):
        raise ColumnError(f"holds values of type {kind}, which are neither text nor lists of tokens")
    return tokenizer(as_text(column))


def _from_lists(column: pa.ListArray, *, lowercase: bool) -> pa.ListArray:
    """Return lists of text as tokens; null if an item is null."""
    tokens = as_text(column.flatten())
    if lowercase:
        distinct = tokens.dictionary_encode()
        tokens = lowercase_strings(distinct.dictionary).take(distinct.indices)
    lengths = column.value_lengths().fill_null(0).to_numpy()
    missing = ~valid_mask(column)
    if tokens.null_count:
        rows = np.repeat(np.arange(len(column)), lengths)
        missing[rows[~valid_mask(tokens)]] = True
        tokens = tokens.filter(pa.array(~missing[rows]))
        lengths = np.where(missing, 0, lengths)
    return kernels.make_list_array(kernels.offsets_from_lengths(lengths), tokens.dictionary_encode(), missing)


def drop_repeats(lists: TokenCodes) -> tuple[TokenCodes, np.ndarray]:
    """Keep the first of equal tokens in each row; also return how often each occurs."""
    lengths = np.diff(lists.rows)
    rows = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    longest = int(lengths.max(initial=0))
    if longest <= _MAX_SHIFTS:
        repeats = np.bincount(_first_positions(lists.codes, rows, longest), minlength=len(rows))
        if repeats.all():
            return lists, repeats
        first = np.flatnonzero(repeats)
        counts = repeats[first]
    else:
        keys = rows.astype(np.int64) * max(len(lists.values), 1) + lists.codes
        _, first, counts = np.unique(keys, return_index=True, return_counts=True)
        order = np.argsort(first)
        first, counts = first[order], counts[order]
    kept_lengths = np.bincount(rows[first], minlength=len(lengths))
    return TokenCodes(kernels.offsets_from_lengths(kept_lengths), lists.codes[first], lists.values), counts


def rows_with_repeats(lists: TokenCodes) -> np.ndarray:
    """Return a mask of rows that contain a token twice."""
    return np.diff(drop_repeats(lists)[0].rows) < np.diff(lists.rows)


def _first_positions(codes: np.ndarray, rows: np.ndarray, longest: int) -> np.ndarray:
    """Return the position of the first equal token in the row."""
    first = np.arange(len(codes), dtype=np.int64)
    for shift in range(1, longest):
        same = (codes[shift:] == codes[:-shift]) & (rows[shift:] == rows[:-shift])
        repeated = np.flatnonzero(same)
        first[repeated + shift] = repeated
    return first


@dataclass(frozen=True)
class TokenSummary(Summary):
    """Counts of tokens, row lengths and, on request, documents."""

    counts: TokenCounts
    lengths: Lengths
    documents: TokenCounts | None = None

    @classmethod
    def of(cls, parsed: pa.ListArray, *, documents: bool = False, distinct: bool = False) -> TokenSummary:
        """Summarize the present rows of a parsed column."""
        lists = token_lists(parsed)
        sets = drop_repeats(lists)[0] if documents or distinct else lists
        sizes = np.diff((sets if distinct else lists).rows)
        lengths = Lengths.of(sizes[valid_mask(parsed)] if parsed.null_count else sizes)
        return cls(_count_tokens(lists), lengths, _count_tokens(sets) if documents else None)

    @classmethod
    def of_subsets(cls, parsed: pa.ListArray, row_subsets: list[np.ndarray]) -> list[TokenSummary]:
        """Summarize disjoint subsets of rows, by row numbers."""
        lists, valid = token_lists(parsed), valid_mask(parsed) if parsed.null_count else None
        size = len(lists.values)
        if (len(row_subsets) + 1) * size >= len(lists.codes):
            return [cls.of(parsed.take(pa.array(rows))) for rows in row_subsets]
        # Fewer counts than tokens: their positions fit into 32 bits.
        sizes, firsts = np.diff(lists.rows), np.full(len(parsed), len(row_subsets) * size, np.int32)
        for number, rows in enumerate(row_subsets):
            firsts[rows] = number * size
        cells = np.repeat(firsts, sizes)
        cells += lists.codes
        counts = np.bincount(cells, minlength=(len(row_subsets) + 1) * size).reshape(-1, size)
        lengths = (Lengths.of(sizes[rows if valid is None else rows[valid[rows]]]) for rows in row_subsets)
        return list(map(cls, TokenCounts.of_each(lists.values, counts[:-1]), lengths))


def _count_tokens(lists: TokenCodes) -> TokenCounts:
    return TokenCounts.of(lists.values, np.bincount(lists.codes, minlength=len(lists.values)))


@dataclass(frozen=True, kw_only=True)
class LearnedTokens(Learned):
    """A vocabulary; its JSON has `idx2str`, `str2idx`, `str2freq`."""

    vocabulary: Vocabulary

    def to_dict(self) -> dict[str, Any]:
        plain = self.to_state()
        vocabulary = plain.pop("vocabulary")
        return {**plain, **vocabulary.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        if not isinstance(data.get("vocabulary"), Vocabulary):
            data = {**data, "vocabulary": Vocabulary.from_dict(data)}
        return super().from_dict(data)

    def grow(self, fresh: Self) -> tuple[Self, dict[str, dict[str, int]]]:
        """Return the state with new tokens last, and their counts."""
        is_new = ~self.vocabulary.contains(fresh.vocabulary.tokens)
        tokens = fresh.vocabulary.tokens.filter(pa.array(is_new))
        counts = dict(zip(tokens.to_pylist(), fresh.vocabulary.frequencies[is_new].tolist(), strict=True))
        if not counts:
            return self, {}
        return dataclasses.replace(self, vocabulary=self.vocabulary.extend(tokens)), {"": counts}

    def redact(self, lost: Mapping[str, Integers]) -> Self:
        """Return the state with lost tokens renamed, also in the fill value."""
        names = self._new_names(lost)
        return dataclasses.replace(
            super().redact(lost),
            vocabulary=self.vocabulary.rename(names),
            fill_value=rename_texts(self.fill_value, names),
        )

    def _new_names(self, lost: Mapping[str, Integers], output: str = "") -> dict[str, str]:
        """Return names that replace the tokens with the ids `lost`."""
        ids = lost.get(output, np.zeros(0, np.int64))
        return self.vocabulary.removed_names(ids[ids < len(self.vocabulary)])

    def extends(self, other: Learned) -> bool:
        """Return whether tokens and counts of another come first, and all else is equal."""
        if not isinstance(other, LearnedTokens) or not self.vocabulary.starts_with(other.vocabulary):
            return False
        first = dataclasses.replace(self, vocabulary=other.vocabulary)
        return Learned.extends(first, other)

    def _sample_texts(self) -> list[str]:
        """Return first, middle and last token, and texts of them."""
        ids = [min(len(self.vocabulary.specials), len(self.vocabulary) - 1), len(self.vocabulary) // 2, -1]
        first, middle, last = (self.vocabulary.tokens[index].as_py()[:_MAX_SAMPLE_CHARACTERS] for index in ids)
        return [first, middle, last, f"{last} {first} {last}", f" {middle.upper()}! "]

    @property
    def num_embeddings(self) -> int:
        """Number of rows of an embedding of the ids."""
        return len(self.vocabulary)


def rename_texts(value: Any, names: Mapping[str, str]) -> Any:
    """Return a text, or texts in a list, by their new names."""
    if isinstance(value, list | tuple):
        return type(value)(rename_texts(one, names) for one in value)
    return names.get(value, value) if isinstance(value, str) else value


def _restore_symbols(tokens: pa.ListArray, column: pa.Array, symbols: tuple[str, ...]) -> pa.ListArray:
    """Replace cells that equal a special symbol by that symbol."""
    if not pa.types.is_string(column.type):
        return tokens
    longest = max(len(symbol.encode()) for symbol in symbols)
    rows = np.flatnonzero(np.diff(kernels.string_buffers(column)[0]) <= longest)
    if not len(rows):
        return tokens
    symbol_index = pc.index_in(column.take(pa.array(rows)), value_set=pa.array(symbols))
    if symbol_index.null_count == len(symbol_index):
        return tokens
    symbol_rows = _from_lists(pa.array([[symbol] for symbol in symbols]), lowercase=False)
    source = np.arange(len(tokens))
    source[rows[valid_mask(symbol_index)]] = len(tokens) + symbol_index.drop_null().to_numpy()
    return pa.concat_arrays([tokens, symbol_rows]).take(pa.array(source))


@with_parameters
class TokenFeature(TokenParameters, Feature[SummaryT, LearnedT]):
    """Base class of features whose parsed cells are lists of tokens."""

    reads_any_text_as: ClassVar[str] = "token"
    learns_subwords: ClassVar[bool] = False  # whether tokenizers that learn subwords in fit are supported

    def make_tokenizer(self) -> Tokenizer:
        return get_tokenizer(
            self.tokenizer,
            lowercase=self.lowercase,
            ngram_size=self.ngram_size,
            pattern=self.pattern,
            path=self.pretrained_model_name_or_path,
        )

    def check(self) -> None:
        if isinstance(self.make_tokenizer(), Subwords) and not self.learns_subwords:
            raise ConfigError(
                f'{type(self).__name__}: tokenizer="{self.tokenizer}" is for Sequence and Text: use "space_punct"'
            )

    def _losses(
        self, parsed: pa.Array, encoded: Mapping[str, np.ndarray], learned: LearnedT
    ) -> Mapping[Loss, np.ndarray]:
        """Return masks of rows with unknown, and with cut tokens."""
        unknown, cut = np.zeros(len(parsed), bool), np.zeros(len(parsed), bool)
        for output in self.outputs:
            ids, one = self._row_ids(encoded[output]), cast("LearnedTokens", learned.of_output(output))
            specials, cells = one.vocabulary.specials, parsed.field(output[1:]) if output else parsed
            if (ids == specials.unknown_id).any():
                unknown |= (ids == specials.unknown_id).any(axis=1)
            sizes, boundaries = np.diff(token_lists(cells).rows), {specials.start_id, specials.stop_id} - {None}
            may_be_cut = sizes + len(boundaries) > ids.shape[1]
            if self.learns_subwords and isinstance(self.make_tokenizer(), Subwords):  # more than the words
                is_padding = ids[:, [0, -1]] == (specials.padding_id or 0)
                may_be_cut |= ~is_padding.any(axis=1)
            candidates = np.flatnonzero(may_be_cut)
            if len(candidates):
                is_cut, is_unknown = self._look_beyond(cells.take(pa.array(candidates)), one, output)
                cut[candidates] |= is_cut
                unknown[candidates] |= is_unknown
        return {"unknown": unknown, "cut": cut}

    @staticmethod
    def _row_ids(encoded: np.ndarray) -> np.ndarray:
        """Return the ids of encoded rows, 2-D."""
        return encoded

    def _look_beyond(self, parsed: pa.Array, learned: Any, output: str) -> tuple[np.ndarray, np.ndarray]:
        """Return masks of rows with cut, and with unknown tokens."""
        raise NotImplementedError

    def advice(self, learned: LearnedT) -> str | None:
        """Return a parameter that the tokenizer ignores, or other advice."""
        for name, readers in _READERS.items():
            value = getattr(self, name)
            if value is not None and self.tokenizer not in readers and is_builtin_tokenizer(self.tokenizer):
                remedy = " or ".join(f'tokenizer="{one}"' for one in readers)
                return f'has {name}={value!r:.80}, which tokenizer="{self.tokenizer}" does not use: set {remedy}'
        return super().advice(learned)

    @property
    def _counts_tokens(self) -> bool:
        tokenizer = self.make_tokenizer()
        return tokenizer.model is None and not isinstance(tokenizer, Subwords)

    def _is_cut(self, tokens: int) -> bool:
        is_limited = self.min_frequency is not None or tokens == getattr(self, "most_common", None)
        return is_limited or isinstance(self.make_tokenizer(), Subwords)  # without counts of words

    def fingerprint(self) -> str:
        return self.make_tokenizer().digest()

    def _sample_cells(self, learned: LearnedT) -> list[str | None]:
        # Tokenizers of other packages take seconds to import, and open files.
        foreign = isinstance(self.tokenizer, str) and self.tokenizer.startswith(("hf_", "sentencepiece", "english_"))
        return [] if foreign else super()._sample_cells(learned)

    def parse(self, column: pa.Array) -> pa.Array:
        if pa.types.is_dictionary(column.type):
            return self.as_parsed(self._tokens(as_text(column.dictionary)).take(column.indices))
        return self.as_parsed(self._tokens(column))

    def _tokens(self, column: pa.Array) -> pa.ListArray:
        tokens = tokenize(column, self.make_tokenizer(), lowercase=self.lowercase)
        return _restore_symbols(tokens, column, self.special_symbols_in_use().symbols)

    def cells(self, parsed: pa.Array) -> pa.Array:
        """Return each row's tokens as one text."""
        lists = token_lists(parsed)
        tokens = lists.values.take(pa.array(lists.codes))
        return pc.binary_join(pa.ListArray.from_arrays(pa.array(lists.rows), tokens), _CELL_SEPARATOR)

    def learn_fill(self, summary: ColumnSummary[SummaryT]) -> Any:
        cell = super().learn_fill(summary)
        return cell.split(_CELL_SEPARATOR) if cell else []

    def special_symbols_in_use(self) -> SpecialSymbols:
        """Return the special symbols at the start of the vocabulary."""
        raise NotImplementedError

    def parse_fill(self, value: object) -> pa.Array:
        """Return the value as tokens; a special symbol is one token."""
        # A tokenizer might split "<UNK>" into three tokens.
        specials = self.special_symbols_in_use()
        if value == UNKNOWN:
            value = specials.symbol("unknown") or value
        if isinstance(value, list) or (isinstance(value, str) and value in specials.symbols):
            tokens = value if isinstance(value, list) else [value]  # a list was learned, and is not to be lowercased
            return self.as_parsed(_from_lists(pa.array([tokens]), lowercase=False))
        return super().parse_fill(value)

    def as_parsed(self, tokens: pa.ListArray) -> pa.Array:
        return tokens
