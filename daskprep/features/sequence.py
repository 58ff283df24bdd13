"""Feature types for sequences of tokens and for text: padded token ids."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns import kernels
from daskprep.columns.kernels import valid_mask
from daskprep.columns.permutation import Integers
from daskprep.columns.pretrained import import_package
from daskprep.columns.summaries import ColumnSummary, Lengths, Summary
from daskprep.columns.tokenizers import Subwords, Tokenizer, expand
from daskprep.columns.vocabulary import SpecialSymbols, Vocabulary
from daskprep.errors import ConfigError, CorruptDatasetError
from daskprep.features.base import Bounds, Encoded, Learned, Limits, Loss, SideColumns, Tensor
from daskprep.features.cells import any_in_list, token_lists
from daskprep.features.checking import encode_fill_value, memoize
from daskprep.features.feature import with_parameters
from daskprep.features.padding import Padding
from daskprep.features.subwords import check_merges_and_scores, cut_words, learn_subwords, subword_model
from daskprep.features.tokens import LearnedTokens, TokenFeature, TokenSummary, rename_texts
from daskprep.rows.tokens import (
    CONTINUATION_MARK,
    WORD_START_MARK,
    WORD_START_TOKENIZERS,
    Merges,
    Scores,
    SequenceParameters,
    SequenceValues,
    TextParameters,
    join_tokens,
)
from daskprep.storage.security import check_trusted_path, path_text

_SUBWORDS, _MIN_AUTO, _MIN_AUTO_CHARACTERS = 20_000, 256, 1_024  # the latter with max_sequence_length="auto"


@dataclass(frozen=True, kw_only=True)
class LearnedSequence(SequenceValues, LearnedTokens):
    """Fitted state of a sequence column: a vocabulary and lengths."""

    def redact(self, lost: Mapping[str, Integers]) -> Self:
        names, weights = self._new_names(lost), self.str2idf
        if weights is not None:
            weights = {names.get(token, token): weight for token, weight in weights.items()}
        return dataclasses.replace(super().redact(lost), str2idf=weights)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the state; CorruptDatasetError for ids, merges or scores unlike its vocabulary."""
        learned = super().from_dict(data)
        for one in (*learned.first_ids, *learned.last_ids):
            if not 0 <= one < len(learned.vocabulary):
                raise CorruptDatasetError(f"{one!r:.80} is not the id of a token: restore the file, or fit again")
        check_merges_and_scores(learned.merges, learned.scores, learned.vocabulary)
        return learned


@with_parameters
class Sequence(SequenceParameters, TokenFeature[TokenSummary, LearnedSequence]):
    """Map tokens to ids; rows are padded or truncated to one length.

    Without start and stop symbols, ``<PAD>`` is 0 and ``<UNK>`` is 1. With them, ``<PAD>`` is 0, ``<START>`` 1,
    ``<STOP>`` 2 and ``<UNK>`` 3. Truncation keeps these symbols.

    Parameters
    ----------
    tokenizer : str or callable
        Name of a tokenizer, or a function from text to a list of tokens. Values that are lists are already tokens.
        "bpe", "wordpiece" and "unigram" split words into subwords; fit trains a vocabulary of `most_common` subwords.
    vocab_file : str or None
        Text file with one token per line in the order of their ids, used as the vocabulary instead of counting.
    sequence_length : int or None
        Exact length of every row.
    max_sequence_length : int, "auto" or None
        Maximum length of rows, start and stop symbols included. Without `sequence_length`, rows are as long as the
        longest training row, up to this length. "auto": 256 (1,024 for "characters"), or eight times the mean length of
        the training rows if that is more; 256 for subwords; at most what a Hugging Face model takes. None: no limit.
    most_common, min_frequency : int or None
        Size of the vocabulary, minimum count of a token; others become ``<UNK>``. None: all tokens, or 20,000 subwords.
    padding : {"right", "left"}
        Side of the padding.
    truncation : {"keep_start", "keep_end"}
        Whether the first or the last tokens of a row that is too long are kept.
    add_start_stop : bool
        Whether rows start with a start symbol and end with a stop symbol.
    special_symbols : dict, "ludwig" or None
        Symbols by role ("padding", "unknown", "start", "stop") in the order of their ids. "ludwig" is Ludwig's layout:
        ``<EOS>`` 0, ``<SOS>`` 1, ``<PAD>`` 2, ``<UNK>`` 3, with start and stop symbols.
    lowercase : bool
        Whether to ignore case.
    ngram_size, pattern, pretrained_model_name_or_path
        Parameters of the tokenizers "ngram", "regex" and "hf_tokenizer".
    missing_value_strategy : str
        Imputation: "fill_with_const" (with `fill_value`), "fill_with_mode", "ffill", "bfill" or "drop_row".
    fill_value : str
        Text that "fill_with_const" imputes for missing values; a special symbol such as "<UNK>" remains one token.
    missing_indicator, invalid, column
        As for `Feature`.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskprep import Sequence
    >>> steps = Sequence().fit(pd.DataFrame({"steps": ["token3 token4 token2", "token3 token1"]}))
    >>> steps.learned_["steps"].vocabulary.to_dict()["idx2str"]
    ['<PAD>', '<UNK>', 'token3', 'token1', 'token2', 'token4']
    >>> steps.transform(pd.DataFrame({"steps": ["token3 token4 token2", "token3 token9", None]})).tolist()
    [[2, 5, 4], [2, 1, 0], [1, 0, 0]]
    """

    _loss_remedies: ClassVar[Mapping[Loss, str]] = {
        "unknown": "keep more by most_common or min_frequency",
        "cut": "raise max_sequence_length or sequence_length",
    }
    kind = "sequence"
    learns_subwords = True
    semantic_type = "tokens"

    def check(self) -> None:
        """Raise ConfigError for contradictions, or no room for tokens."""
        super().check()
        check_trusted_path(self.vocab_file, "The vocab_file")
        if self.vocab_file is not None and not Path(path_text(self.vocab_file, "vocab_file")).is_file():
            raise ConfigError(f"{type(self).__name__}: no vocab_file at {self.vocab_file}")
        conflicts = self.vocab_file is not None or self.counts_documents()
        conflicts |= self.tokenizer == "unigram" and self.min_frequency is not None
        if conflicts and isinstance(self.make_tokenizer(), Subwords):
            raise ConfigError(
                f'{type(self).__name__}: tokenizer="{self.tokenizer}" trains a vocabulary of most_common subwords: '
                'leave out vocab_file and compute_idf, and with "unigram" min_frequency too'
            )
        if self.tokenizer == "hf_tokenizer" and not Path(self.pretrained_model_name_or_path or "").exists():
            return  # it defines the special symbols, and is only downloaded when it is used
        specials = self.special_symbols_in_use()
        num_boundary_symbols = sum(one is not None for one in (specials.start_id, specials.stop_id))
        for name in ("sequence_length", "max_sequence_length"):
            length = getattr(self, name)
            if length not in (None, "auto") and length <= num_boundary_symbols:
                raise ConfigError(
                    f"{type(self).__name__}: {name}={length} leaves no room for tokens between the "
                    f"{num_boundary_symbols} start and stop symbols: use at least {num_boundary_symbols + 1}"
                )

    def _learned_losses(self, learned: Any) -> Mapping[Loss, int]:
        levels = (learned.of_output(output) for output in self.outputs)
        return {"cut": max(level.cut_rows for level in levels)}

    @property
    def _lacks_padding(self) -> bool:
        """Whether rows would be padded with another token."""
        model = self.make_tokenizer().model if self.tokenizer == "hf_tokenizer" else None
        return model is not None and model.pad_id is None and model.unk_id != 0

    def _padding_error(self) -> ConfigError:
        return ConfigError(
            f'the tokenizer "{self.pretrained_model_name_or_path}" has no padding symbol: call '
            'add_special_tokens(["<pad>"]) of the tokenizer, or enable_padding(pad_id=..., pad_token="<|endoftext|>"), '
            'and save(".../tokenizer.json")'
        )

    def special_symbols_in_use(self) -> SpecialSymbols:
        """Return the symbols, of a model's vocabulary if there is one."""
        if (pretrained := self.make_tokenizer().model) is not None:
            if self._lacks_padding and pretrained.unk_id is None:
                raise self._padding_error()
            roles = {"padding": pretrained.pad_id, "unknown": pretrained.unk_id}
            symbols = {role: pretrained.vocabulary[number] for role, number in roles.items() if number is not None}
            return SpecialSymbols.locate_in(pretrained.vocabulary, symbols)
        return SpecialSymbols.for_tokens(start_stop=self.add_start_stop, special_symbols=self.special_symbols)

    def summarize(self, parsed: pa.Array) -> TokenSummary:
        """Count tokens and row lengths, of subwords the largest possible lengths."""
        summary = TokenSummary.of(parsed, documents=self.counts_documents())
        if not isinstance(kind := self.make_tokenizer(), Subwords):
            return summary
        if kind.algorithm == "unigram":
            import_package("sentencepiece")  # here, so that an error for a missing package precedes the pass over rows
        # The number of subwords is unknown before training: at most one per character, and one for the word start.
        lists = token_lists(parsed)
        is_special = pc.is_in(lists.values, value_set=pa.array(self.special_symbols_in_use().symbols))
        max_parts = pc.if_else(is_special, 1, pc.add(pc.utf8_length(lists.values).cast(pa.int64()), 1)).to_numpy()
        sizes = np.diff(np.append(0, np.cumsum(max_parts[lists.codes]))[lists.rows])
        return dataclasses.replace(summary, lengths=Lengths.of(sizes[valid_mask(parsed)]))

    def _summarize_subsets(
        self, parsed: pa.Array, row_subsets: list[np.ndarray | None], side_columns: list[SideColumns]
    ) -> list[TokenSummary]:
        row_sets = [rows for rows in row_subsets if rows is not None]
        # The shortcut does not apply to a subclass that overrides `summarize`.
        is_default = pa.types.is_list(parsed.type) and type(self).summarize.__module__.startswith("daskprep.features.")
        if not (row_sets and is_default) or self.counts_documents() or isinstance(self.make_tokenizer(), Subwords):
            return super()._summarize_subsets(parsed, row_subsets, side_columns)
        return TokenSummary.of_subsets(parsed, row_sets)

    def learn(self, summary: TokenSummary) -> LearnedSequence:
        """Learn vocabulary and length; ConfigError without padding."""
        if self._lacks_padding:
            raise self._padding_error()
        merges: Merges = ()
        scores: Scores = ()
        kind, specials = self.make_tokenizer(), self.special_symbols_in_use()
        if isinstance(kind, Subwords):
            size, rare = self.most_common or _SUBWORDS, self.min_frequency or 2
            vocabulary, merges, scores = learn_subwords(summary.counts, specials, kind, size, rare)
        else:
            vocabulary = self._learn_vocabulary(summary)
        num_boundary_symbols = sum(one is not None for one in (specials.start_id, specials.stop_id))
        longest = summary.lengths.max + num_boundary_symbols
        least = _MIN_AUTO_CHARACTERS if self.tokenizer == "characters" else _MIN_AUTO
        auto = least if isinstance(kind, Subwords) else summary.lengths.limit(least)  # lengths of subwords are bounds
        auto = min(auto, pretrained.max_length) if (pretrained := kind.model) else auto
        limit = auto if self.max_sequence_length == "auto" else self.max_sequence_length or longest
        length = self.sequence_length or max(min(longest, limit), 1)
        is_cut = summary.lengths.lengths > length - num_boundary_symbols
        typical = math.ceil(summary.lengths.quantile(0.99)) + num_boundary_symbols
        return LearnedSequence(
            vocabulary=vocabulary,
            max_sequence_length=length,
            max_sequence_length_99ptile=min(typical, length),
            str2idf=_compute_idf(vocabulary, summary),
            merges=merges,
            scores=scores,
            decoder=pretrained.decoder if pretrained else "",
            first_ids=pretrained.added_ids[0] if pretrained else (),
            last_ids=pretrained.added_ids[1] if pretrained else (),
            cut_rows=0 if isinstance(kind, Subwords) else int(summary.lengths.counts[is_cut].sum()),
        )

    def counts_documents(self) -> bool:
        return False

    @property
    def _counts_tokens(self) -> bool:
        return super()._counts_tokens and self.vocab_file is None

    @property
    def _grows(self) -> bool:
        return super()._grows and not self.counts_documents()

    def fingerprint(self) -> str:
        if self.vocab_file is None:
            return super().fingerprint()
        check_trusted_path(self.vocab_file, "The vocab_file")
        return super().fingerprint() + hashlib.sha256(Path(self.vocab_file).read_bytes()).hexdigest()

    def _learn_vocabulary(self, summary: TokenSummary) -> Vocabulary:
        """Return the vocabulary of a file, a model or the counts.

        The file has a token per line, before the first space; repeated tokens count once.
        """
        specials = self.special_symbols_in_use()
        if self.vocab_file is not None:
            lines = Path(self.vocab_file).read_text(encoding="utf-8").splitlines()
            tokens = dict.fromkeys(token for line in lines if (token := line.strip().split(" ")[0]))
            return Vocabulary.from_tokens(list(tokens), summary.counts, specials)
        if (pretrained := self.make_tokenizer().model) is not None:
            return Vocabulary.from_tokens(pretrained.vocabulary, summary.counts, specials)
        return Vocabulary.learn(summary.counts, specials, self.most_common, self.min_frequency)

    def encode(self, parsed: pa.Array, learned: LearnedSequence) -> Encoded:
        """Return ids (rows, length), padded or truncated."""
        (lists, ids), specials = self._lookup(parsed, learned), learned.vocabulary.specials
        encoded = kernels.pad(
            lists.rows,
            lists.codes,
            learned.max_sequence_length,
            ids,
            side=self.padding,
            fill=specials.padding_id or 0,
            start=specials.start_id,
            stop=specials.stop_id,
            keeps_end=self.truncation == "keep_end",
        )
        self._restore_added_tokens(encoded, lists, ids, learned)
        return encoded

    def _lookup(self, parsed: pa.Array, learned: LearnedSequence) -> tuple[kernels.TokenCodes, np.ndarray]:
        """Return tokens or subwords of rows, and the id of each code."""
        lists = token_lists(parsed)
        if not isinstance(kind := self.make_tokenizer(), Subwords):
            return lists, learned.vocabulary.ids(lists.values)
        parts = cut_words(kind, _make_subword_model(self, learned), learned.vocabulary.specials, lists.values)
        ids = np.arange(len(learned.vocabulary), dtype=learned.vocabulary.dtype)
        return expand(lists, *parts, lists.values), ids

    def _look_beyond(self, parsed: pa.Array, learned: Any, output: str) -> tuple[np.ndarray, np.ndarray]:
        lists, ids = self._lookup(parsed, learned)
        specials = learned.vocabulary.specials
        room = learned.max_sequence_length - sum(one is not None for one in (specials.start_id, specials.stop_id))
        return np.diff(lists.rows) > room, any_in_list(lists, ids == specials.unknown_id)

    def _restore_added_tokens(
        self, encoded: np.ndarray, lists: kernels.TokenCodes, ids: np.ndarray, learned: LearnedSequence
    ) -> None:
        """Put tokens that a pretrained model adds into cut rows."""
        keeps_end, length = self.truncation == "keep_end", learned.max_sequence_length
        added = np.array(learned.first_ids[:length] if keeps_end else learned.last_ids[-length:], np.int64)
        if not len(added):
            return
        rows = np.flatnonzero(np.diff(lists.rows) > length)
        ends = lists.rows[rows] if keeps_end else lists.rows[rows + 1] - 1
        rows = rows[ids[lists.codes[ends]] == added[0 if keeps_end else -1]]  # others are lists of tokens
        encoded[rows, slice(len(added)) if keeps_end else slice(length - len(added), None)] = added

    def _mask_known(self, words: pa.Array, learned: Any, output: str) -> np.ndarray:
        """Return a mask of known words; of subwords, without an unknown one."""
        if not isinstance(kind := self.make_tokenizer(), Subwords):
            return super()._mask_known(words, learned, output)
        specials = learned.vocabulary.specials
        offsets, ids = cut_words(kind, _make_subword_model(self, learned), specials, words)
        word_index = np.repeat(np.arange(len(words)), np.diff(offsets))
        known: np.ndarray = np.bincount(word_index, ids == specials.unknown_id, len(words)) == 0
        return known

    def expand(self, batch: Tensor, learned: LearnedSequence) -> Tensor:
        return batch.long()

    def limits(self, learned: LearnedSequence) -> Mapping[str, Bounds]:
        return {"": Limits(0, len(learned.vocabulary) - 1, any_length=True)}

    def _paddings(self, learned: Any, *, expand: bool) -> dict[str, Padding]:
        """Return id and side of padding by output; none without a symbol."""
        states = {suffix: learned.of_output(suffix) for suffix in self.outputs}
        return {
            suffix: Padding(token, self.padding == "left")
            for suffix, state in states.items()
            if isinstance(state, LearnedSequence) and (token := state.vocabulary.specials.padding_id) is not None
        }

    def decode(self, encoded: np.ndarray, learned: LearnedSequence) -> pa.Array:
        """Return rows as text; subwords and characters are joined."""
        ids, specials = np.asarray(encoded), learned.vocabulary.specials
        symbol_ids = [one for one in (specials.padding_id, specials.start_id, specials.stop_id) if one is not None]
        inside = ~np.isin(ids, symbol_ids)
        tokens = kernels.make_list_array(
            kernels.offsets_from_lengths(inside.sum(axis=1)), learned.vocabulary.decode(ids[inside])
        )
        joining = learned.decoder or self.tokenizer
        if joining == "byte_level":
            return pa.array([join_tokens(row, joining) for row in tokens.to_pylist()], pa.string())
        text = pc.binary_join(tokens, "" if joining in ("characters", *WORD_START_TOKENIZERS) else " ")
        if joining in WORD_START_TOKENIZERS:
            return pc.replace_substring_regex(pc.replace_substring(text, WORD_START_MARK, " "), "^ ", "")
        return pc.replace_substring(text, f" {CONTINUATION_MARK}", "") if joining == "wordpiece" else text


@memoize
def _make_subword_model(feature: Any, learned: LearnedSequence) -> Any:
    return subword_model(feature.make_tokenizer(), learned.vocabulary, learned.merges, learned.scores)


def _compute_idf(vocabulary: Vocabulary, summary: TokenSummary) -> dict[str, float] | None:
    """Return ``log(vocab_size / (1 + rows with the token))`` by token, 0 without rows; None if none were counted."""
    if summary.documents is None:
        return None
    documents = summary.documents.frequencies(vocabulary.tokens)
    weights = np.where(documents > 0, np.log(len(vocabulary) / (1.0 + documents)), 0.0)
    return dict(zip(vocabulary.tokens.to_pylist(), weights.tolist(), strict=True))


@dataclass(frozen=True)
class LevelSummaries(Summary):
    """Summaries of the words and the characters of a column."""

    word: TokenSummary
    char: TokenSummary


@dataclass(frozen=True, kw_only=True)
class LearnedText(Learned):
    """Fitted states of words and characters, with level="both"."""

    word: LearnedSequence
    char: LearnedSequence

    def of_output(self, output: str) -> LearnedSequence:
        return {"_word": self.word, "_char": self.char}[output]

    def _sample_texts(self) -> list[str]:
        return self.word._sample_texts()

    def grow(self, fresh: Self) -> tuple[Self, dict[str, dict[str, int]]]:
        """Return both levels grown, and counts of new tokens by "_word" and "_char"; none for a level without."""
        (word, words), (char, chars) = self.word.grow(fresh.word), self.char.grow(fresh.char)
        counts = {f"_{level}": new[""] for level, new in (("word", words), ("char", chars)) if new}
        return dataclasses.replace(self, word=word, char=char), counts

    def extends(self, other: Learned) -> bool:
        """Return whether both levels extend, and all else is equal."""
        if not isinstance(other, LearnedText) or not self.word.extends(other.word):
            return False
        first = dataclasses.replace(self, word=other.word, char=other.char)
        return self.char.extends(other.char) and Learned.extends(first, other)

    def redact(self, lost: Mapping[str, Integers]) -> Self:
        """Return the state with tokens renamed in both levels and the fill value."""
        word, char = ({"": lost.get(output, np.zeros(0, np.int64))} for output in ("_word", "_char"))
        fill = self.fill_value
        if isinstance(fill, Mapping):
            names = {"word": self.word._new_names(word), "char": self.char._new_names(char)}
            fill = {level: rename_texts(fill[level], own) for level, own in names.items()}
        return dataclasses.replace(
            super().redact(lost), word=self.word.redact(word), char=self.char.redact(char), fill_value=fill
        )

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_state(), "word": self.word.to_dict(), "char": self.char.to_dict()}

    def to_state(self) -> dict[str, Any]:
        return {**super().to_state(), "word": self.word.to_state(), "char": self.char.to_state()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        levels = {level: LearnedSequence.from_dict(data[level]) for level in ("word", "char")}
        return super().from_dict({**data, **levels})


@with_parameters
class Text(TextParameters, Sequence):
    """Map words, characters or both to ids; rows are padded or truncated to one length.

    Parameters
    ----------
    level : {"word", "char", "both"}
        Whether tokens are words or characters. "both" has two outputs, ``<name>_word`` and ``<name>_char``.
    char_most_common : int or None
        Size of the vocabulary of characters. None: all.
    char_max_sequence_length : int, "auto" or None
        Maximum length of rows in characters, as for `max_sequence_length`.
    compute_idf : bool
        Whether to learn ``log(vocab_size / (1 + rows with the token))`` for each token.
    tokenizer, vocab_file, sequence_length, max_sequence_length, most_common, min_frequency, padding, \
    truncation, add_start_stop, special_symbols, lowercase, ngram_size, pattern, \
    pretrained_model_name_or_path, missing_value_strategy, fill_value, missing_indicator, invalid, column
        As for `Sequence`; vocabulary sizes and lengths refer to words.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskprep import Text
    >>> review = Text().fit(pd.DataFrame({"review": ["Good, really good!", None]}))
    >>> review.learned_["review"].vocabulary.to_dict()["idx2str"]
    ['<PAD>', '<UNK>', 'good', '!', ',', 'really']
    >>> review.transform(pd.DataFrame({"review": ["GOOD?", None]})).tolist()
    [[2, 1, 0, 0, 0], [1, 0, 0, 0, 0]]
    """

    kind = "text"
    semantic_type = "tokens"
    reads_any_text_as = "text"

    def check(self) -> None:
        super().check()
        if self.level == "both":
            self._levels["word"].check()

    def counts_documents(self) -> bool:
        return self.compute_idf

    def _is_cut(self, tokens: int) -> bool:
        return super()._is_cut(tokens) or tokens == self.char_most_common

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("_word", "_char") if self.level == "both" else ("",)

    @property
    def _levels(self) -> dict[str, Sequence]:
        """Features of words and of characters."""
        shared: dict[str, Any] = {**self.get_params(deep=False), "level": "word"}
        char_parameters = {
            "tokenizer": "characters",
            "vocab_file": None,
            "sequence_length": None,
            "most_common": self.char_most_common,
            "max_sequence_length": self.char_max_sequence_length,
        }
        return {"word": Text(**shared), "char": Text(**shared | char_parameters)}

    def fingerprint(self) -> str:
        if self.level != "both":
            return super().fingerprint()
        return "".join(level.fingerprint() for level in self._levels.values())

    def make_tokenizer(self) -> Tokenizer:
        return super().make_tokenizer() if self.level == "word" else self._levels["char"].make_tokenizer()

    def parse(self, column: pa.Array) -> pa.Array:
        if self.level != "both":
            return super().parse(column)
        return _combine_levels({level: sequence.parse(column) for level, sequence in self._levels.items()})

    def parse_fill(self, value: object) -> pa.Array:
        """Return the fill value, of both levels if both; ConfigError for other keys."""
        if self.level == "both":
            levels = self._levels
            values = value if isinstance(value, Mapping) else dict.fromkeys(levels, value)
            if values.keys() != levels.keys():
                raise ConfigError(f"Text: fill_value {value!r:.80} must be one text, or have word and char")
            return _combine_levels({level: one.parse_fill(values[level]) for level, one in levels.items()})
        return super().parse_fill(value)

    def _redact(self, learned: Any, lost: Mapping[str, Integers]) -> Any:
        if self.level == "both" and isinstance(learned.fill_value, str):
            encoded = encode_fill_value(self, learned)
            if any(np.isin(encoded[output], ids).any() for output, ids in lost.items()):
                # As tokens, since a tokenizer would split the name of a removed one.
                parsed = self.parse_fill(learned.fill_value)
                lists = {level: token_lists(parsed.field(level)) for level in self._levels}
                fill = {level: one.values.take(pa.array(one.codes)).to_pylist() for level, one in lists.items()}
                learned = dataclasses.replace(learned, fill_value=fill)
        return super()._redact(learned, lost)

    def cells(self, parsed: pa.Array) -> pa.Array:
        # Different cells may have equal words, but have different characters.
        return super().cells(parsed.field("char") if self.level == "both" else parsed)

    def learn_fill(self, summary: ColumnSummary) -> Any:
        tokens = super().learn_fill(summary)
        return "".join(tokens) if self.level == "both" else tokens

    def summarize(self, parsed: pa.Array) -> TokenSummary | LevelSummaries:  # type: ignore[override]
        if self.level != "both":
            return super().summarize(parsed)
        levels = zip(self._levels.values(), parsed.drop_null().flatten(), strict=True)
        return LevelSummaries(*(level.summarize(one) for level, one in levels))

    def learn(self, summary: TokenSummary | LevelSummaries) -> LearnedSequence | LearnedText:  # type: ignore[override]
        levels = self._levels
        if isinstance(summary, LevelSummaries):
            return LearnedText(word=levels["word"].learn(summary.word), char=levels["char"].learn(summary.char))
        return super().learn(summary) if self.level == "word" else levels["char"].learn(summary)

    def encode(self, parsed: pa.Array, learned: LearnedSequence | LearnedText) -> Encoded:
        """Return ids, of both levels by "_word" and "_char"."""
        if isinstance(learned, LearnedSequence):
            return super().encode(parsed, learned)
        fields = dict(zip(("word", "char"), parsed.flatten(), strict=True))
        return {
            f"_{level}": np.asarray(one.encode(fields[level], getattr(learned, level)))
            for level, one in self._levels.items()
        }

    def _look_beyond(self, parsed: pa.Array, learned: Any, output: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the masks of a level, for both levels by its output."""
        return (
            self._levels[output[1:]]._look_beyond(parsed, learned, "")
            if output
            else super()._look_beyond(parsed, learned, output)
        )

    def _mask_known(self, words: pa.Array, learned: Any, output: str) -> np.ndarray:
        if output:
            return self._levels[output[1:]]._mask_known(words, learned, "")
        return super()._mask_known(words, learned, output)

    def limits(self, learned: LearnedSequence | LearnedText) -> Mapping[str, Bounds]:
        if isinstance(learned, LearnedSequence):
            return super().limits(learned)
        return {f"_{level}": one.limits(getattr(learned, level))[""] for level, one in self._levels.items()}

    def decode(self, encoded: Encoded, learned: LearnedSequence | LearnedText) -> pa.Array:
        """Return texts, for both levels from the words."""
        if isinstance(learned, LearnedText):
            return self._levels["word"].decode(encoded["_word"], learned.word)
        ids = np.asarray(encoded)
        return super().decode(ids, learned) if self.level == "word" else self._levels["char"].decode(ids, learned)

    @property
    def learned_type(self) -> type[Learned]:  # type: ignore[override] # the one type that depends on a parameter
        return LearnedText if self.level == "both" else LearnedSequence


def _combine_levels(levels: Mapping[str, pa.Array]) -> pa.StructArray:
    missing = pc.or_(*(one.is_null() for one in levels.values()))
    return pa.StructArray.from_arrays(list(levels.values()), names=list(levels), mask=missing)
