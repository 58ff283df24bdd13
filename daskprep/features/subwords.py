"""Subwords: train a vocabulary on the words of all training rows, and split words with it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns import kernels
from daskprep.columns.pretrained import BATCH_TEXTS, import_package
from daskprep.columns.summaries import TokenCounts
from daskprep.columns.tokenizers import Subwords
from daskprep.columns.vocabulary import SpecialSymbols, Vocabulary
from daskprep.errors import CorruptDatasetError
from daskprep.rows.tokens import CONTINUATION_MARK, WORD_START_MARK, WORD_START_TOKENIZERS, Merges, Scores

# The trainer of byte pairs accepts no counts, so words are repeated: as often as they occur, or in proportion if their
# total is larger than this.
_MAX_TRAINING_WORDS = 1 << 23
_MAX_DISTINCT_WORDS = 500_000  # the most frequent words; rarer ones are not used in training
_MAX_CHARACTERS = 1_000  # the most frequent characters; rarer ones are unknown
_WORD_SEPARATOR = "\x1f"
# SentencePiece accepts counts, but some versions need memory for each occurrence of a character.
_MAX_TRAINING_CHARACTERS = 1 << 23
_MAX_WORD_CHARACTERS = 1_000
_RESERVED_CHARACTERS = "\0\t\u2585"  # not accepted by SentencePiece


def learn_subwords(
    counts: TokenCounts, specials: SpecialSymbols, kind: Subwords, most_common: int, min_frequency: int
) -> tuple[Vocabulary, Merges, Scores]:
    """Train a vocabulary of subwords on counted words.

    `most_common` is the number of subwords without special symbols. The results depend on the counts alone. The package
    tokenizers would number WordPiece subwords, and order the words of unigram models, differently in each process. Its
    byte pairs are deterministic, so WordPiece subwords are derived from them. SentencePiece trains unigram models.
    """
    words, weights = counts.rank(_MAX_DISTINCT_WORDS)
    ordinary = pc.invert(pc.is_in(words, value_set=pa.array(specials.symbols)))
    words, weights = words.filter(ordinary), weights[ordinary.to_numpy(zero_copy_only=False)]
    coded = kernels.encode_characters(words)
    sums = np.bincount(coded.codes, np.repeat(weights, np.diff(coded.rows)), len(coded.values)).astype(np.int64)
    characters = TokenCounts.of(coded.values, sums).rank()[0].to_pylist()
    num_kept = min(_MAX_CHARACTERS, (most_common + 1) // 2)
    alphabet, replacements = characters[:num_kept], {ord(one): _WORD_SEPARATOR for one in characters[num_kept:]}
    merges: Merges = ()
    scores: Scores = ()
    if kind.algorithm == "unigram":
        unigrams = _train_unigrams(words, weights, replacements, max(most_common, len(alphabet) + 1))
        scored = [pair for pair in unigrams if pair[0] not in specials.symbols][:most_common]
        tokens, scores = [*specials.symbols, *(part for part, _ in scored)], tuple(score for _, score in scored)
    else:
        tokens, pairs = _train_byte_pairs(
            _repeat_words(words, weights, replacements), specials, most_common, min_frequency
        )
    if kind.algorithm == "wordpiece":
        parts = [one[1:] if one[0] == WORD_START_MARK else CONTINUATION_MARK + one for one in tokens[len(specials) :]]
        tokens = list(dict.fromkeys([*specials.symbols, *alphabet, *filter(None, parts)]))
        tokens = tokens[: len(specials) + most_common]
    elif kind.algorithm == "bpe":
        ids = {token: number for number, token in enumerate(tokens)}
        merges = tuple((ids[left], ids[right]) for left, right in pairs)
    token_array = pa.array(tokens, pa.string())
    frequencies = np.zeros(len(tokens), np.int64)
    model = subword_model(kind, Vocabulary(token_array, frequencies, specials), merges, scores)
    for words, weights in chain.from_iterable(counts.parts()):
        offsets, part_ids = cut_words(kind, model, specials, words)
        frequencies += np.bincount(part_ids, np.repeat(weights, np.diff(offsets)), len(tokens)).astype(np.int64)
    return Vocabulary(token_array, frequencies, specials), merges, scores


def _repeat_words(words: pa.StringArray, weights: np.ndarray, replacements: dict[int, str]) -> Iterator[str]:
    """Yield texts with each word in proportion to its count."""
    times = _scale_counts(weights, 1, _MAX_TRAINING_WORDS)
    for word, count in zip(words.to_pylist(), times.tolist(), strict=True):
        text = WORD_START_MARK + word.translate(replacements)
        for start in range(0, count, BATCH_TEXTS):
            yield _WORD_SEPARATOR.join([text] * min(BATCH_TEXTS, count - start))


def _scale_counts(weights: np.ndarray, sizes: np.ndarray | int, max_total: int) -> np.ndarray:
    """Return counts, reduced in proportion to a largest total."""
    return np.rint(weights * min(1.0, max_total / max(int((weights * sizes).sum()), 1))).astype(np.int64)


def _train_byte_pairs(
    texts: Iterator[str], specials: SpecialSymbols, most_common: int, min_frequency: int
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return tokens by id, and the pairs in order of merging."""
    library = import_package("tokenizers")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.CharDelimiterSplit(_WORD_SEPARATOR)
    trainer = library.trainers.BpeTrainer(
        vocab_size=len(specials) + most_common,
        min_frequency=min_frequency,
        special_tokens=list(specials.symbols),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].__getitem__), [(left, right) for left, right in model["merges"]]


def _train_unigrams(
    words: pa.StringArray, weights: np.ndarray, replacements: dict[int, str], size: int
) -> list[tuple[str, float]]:
    """Return subwords with log-probabilities, likely ones first."""
    times = _scale_counts(weights, pc.utf8_length(words).to_numpy() + 2, _MAX_TRAINING_CHARACTERS)
    replacements, lines = replacements | dict.fromkeys(map(ord, _RESERVED_CHARACTERS), _WORD_SEPARATOR), []
    for word, count in zip(words.to_pylist(), times.tolist(), strict=True):
        parts = (WORD_START_MARK + word.translate(replacements)).split(_WORD_SEPARATOR) if count else []
        lines += [f"{part}\t{count}" for part in parts if 0 < len(part) <= _MAX_WORD_CHARACTERS]
    if not lines:
        return []
    library, model_file = import_package("sentencepiece"), io.BytesIO()
    disabled = ["hard_vocab_limit", "add_dummy_prefix", "remove_extra_whitespaces", "split_by_number"]
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model_file,
        input_format="tsv",
        model_type="unigram",
        vocab_size=size + 1,  # including the symbol for unknown characters, which has id 0
        character_coverage=1.0,
        normalization_rule_name="identity",
        unk_piece=_WORD_SEPARATOR,
        num_threads=1,
        minloglevel=2,
        **dict.fromkeys([*disabled, "split_by_unicode_script"], False),
        **dict.fromkeys(("bos_id", "eos_id"), -1),
    )
    model = library.SentencePieceProcessor(model_proto=model_file.getvalue())
    return [(model.id_to_piece(number), model.get_score(number)) for number in range(1, model.get_piece_size())]


def subword_model(kind: Subwords, vocabulary: Vocabulary, merges: Merges, scores: Scores) -> Any:
    """Return a tokenizer that splits words into ids; CorruptDatasetError without scores."""
    library, tokens = import_package("tokenizers"), vocabulary.tokens.to_pylist()
    ids, unknown = {token: number for number, token in enumerate(tokens)}, vocabulary.specials.symbol("unknown")
    if kind.algorithm == "wordpiece":
        return library.Tokenizer(library.models.WordPiece(ids, unk_token=unknown))
    if kind.algorithm == "unigram":
        # Special symbols never occur within a word, so their text is empty here.
        num_specials = len(vocabulary.specials)
        if len(scores) != len(tokens) - num_specials or unknown is None:
            raise CorruptDatasetError("scores or the unknown symbol are missing: restore the file, or fit again")
        parts = [("", 0.0)] * num_specials + list(zip(tokens[num_specials:], scores, strict=True))
        model = library.Tokenizer(library.models.Unigram(parts, vocabulary.specials.unknown_id))
        model.normalizer = library.normalizers.Replace(" ", WORD_START_MARK)  # as in SentencePiece's training
        return model
    pairs = [(tokens[left], tokens[right]) for left, right in merges]
    return library.Tokenizer(library.models.BPE(ids, pairs, unk_token=unknown, fuse_unk=True))


def check_merges_and_scores(merges: Merges, scores: Scores, vocabulary: Vocabulary) -> None:
    """Raise CorruptDatasetError unless merges fit, and scores are none or one for each token but specials."""
    if not merges and not scores:
        return
    try:
        pairs = np.array(merges, np.int64).reshape(len(merges), 2)
        left, right = (vocabulary.tokens.take(pa.array(side)) for side in pairs.T)
        is_valid = bool(vocabulary.contains(pc.binary_join_element_wise(left, right, "")).all())
        is_valid &= len(scores) in (0, len(vocabulary) - len(vocabulary.specials))
        is_valid &= all(abs(score) < 1e9 for score in scores)
    except (ValueError, OverflowError, pa.ArrowException):
        is_valid = False
    if not is_valid:
        raise CorruptDatasetError("merges or scores do not match the vocabulary: restore the file, or fit again")


def cut_words(kind: Subwords, model: Any, specials: SpecialSymbols, words: pa.StringArray) -> tuple[np.ndarray, Any]:
    """Split distinct words; return offsets and ids of subwords."""
    start = WORD_START_MARK if kind.algorithm in WORD_START_TOKENIZERS else ""
    known = dict(zip(specials.symbols, specials.ids, strict=True))
    ids: list[list[int]] = []
    for first in range(0, len(words), BATCH_TEXTS):
        texts = words[first : first + BATCH_TEXTS].to_pylist()
        encodings = model.encode_batch_fast([start + text for text in texts], add_special_tokens=False)
        ids += [[known[text]] if text in known else one.ids for text, one in zip(texts, encodings, strict=True)]
    offsets = kernels.offsets_from_lengths(np.fromiter(map(len, ids), np.int32, len(ids)))
    return offsets, np.fromiter(chain.from_iterable(ids), np.int32, int(offsets[-1]))
