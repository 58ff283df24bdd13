"""Feature type for text: padded token ids of words, of characters, or of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.errors import ConfigError
from daskprep.features.base import Bounds, Encoded, Learned
from daskprep.features.feature import with_parameters
from daskprep.features.sequence import LearnedSequence, Sequence
from daskprep.features.tokens import TokenSummary
from daskprep.steps.tokens import TextParameters
from daskprep.summaries import ColumnSummary, Summary
from daskprep.tokenizers import Tokenizer


@dataclass(frozen=True)
class LevelSummaries(Summary):
    """Summaries of the words and the characters of a column."""

    word: TokenSummary
    char: TokenSummary


@dataclass(frozen=True, kw_only=True)
class LearnedText(Learned):
    """Fitted states of the words and the characters of a column, with `level="both"`."""

    word: LearnedSequence
    char: LearnedSequence

    def of_output(self, output: str) -> LearnedSequence:
        return {"_word": self.word, "_char": self.char}[output]

    def _sample_texts(self) -> list[str]:
        return self.word._sample_texts()

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
        Size of the vocabulary of characters.
    char_max_sequence_length : int or None
        Maximum length of rows in characters.
    compute_idf : bool
        Whether to learn ``log(vocab_size / (1 + rows with the token))`` for each token.
    tokenizer, vocab_file, sequence_length, max_sequence_length, most_common, min_frequency, padding, \
    truncation, padding_symbol, unknown_symbol, add_start_stop, special_symbols, lowercase, ngram_size, pattern, \
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

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("_word", "_char") if self.level == "both" else ("",)

    @property
    def _levels(self) -> dict[str, Sequence]:
        """Features for words and for characters, to which the levels "char" and "both" delegate."""
        shared: dict[str, Any] = {**self.get_params(deep=False), "level": "word"}  # type: ignore[no-untyped-call]
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
        if self.level == "both":
            levels = self._levels
            values = value if isinstance(value, Mapping) else dict.fromkeys(levels, value)
            if values.keys() != levels.keys():
                raise ConfigError(f"Text: fill_value {value!r:.80} must be one text, or have word and char")
            return _combine_levels({level: one.parse_fill(values[level]) for level, one in levels.items()})
        return super().parse_fill(value)

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
        if isinstance(learned, LearnedSequence):
            return super().encode(parsed, learned)
        fields = dict(zip(("word", "char"), parsed.flatten(), strict=True))
        return {
            f"_{level}": np.asarray(one.encode(fields[level], getattr(learned, level)))
            for level, one in self._levels.items()
        }

    def mask_known_words(self, words: pa.Array, learned: Any, output: str = "") -> np.ndarray:
        return (
            super().mask_known_words(words, learned)
            if not output
            else self._levels[output[1:]].mask_known_words(words, learned)
        )

    def limits(self, learned: LearnedSequence | LearnedText) -> Mapping[str, Bounds]:
        if isinstance(learned, LearnedSequence):
            return super().limits(learned)
        return {f"_{level}": one.limits(getattr(learned, level))[""] for level, one in self._levels.items()}

    def decode(self, encoded: Encoded, learned: LearnedSequence | LearnedText) -> pa.Array:
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
