"""Named tokenizers: objects that turn an Arrow column of strings into lists of dictionary-encoded tokens.

Most tokenizers cut the bytes of all rows with vectorized kernels. They then cut each distinct span that is not ASCII
as Python's `str` methods and `re` do, without a Python string per row or token. `RowTokenizer` and `Pretrained` are
slower: they process every distinct row as a Python string.

To add a tokenizer, subclass `Tokenizer` as a frozen dataclass and register it in `TOKENIZERS`.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns import kernels
from daskprep.columns.kernels import Array, Spans, TokenCodes
from daskprep.columns.pretrained import CONFIG_FILES, PretrainedModel, import_package, load_model
from daskprep.errors import ConfigError, MissingPackageError, RejectedValueError, did_you_mean
from daskprep.rows.tokens import are_strings, json_items, matches, words
from daskprep.storage.security import UntrustedModelName, check_trusted_path, path_text


@dataclass(frozen=True, kw_only=True)
class Tokenizer(ABC):
    """Base class: a callable that cuts the strings of a column.

    Tokenizers are small and picklable. Two tokenizers with the same `digest` return the same tokens.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from daskprep.columns.tokenizers import get_tokenizer
    >>> words = get_tokenizer("space_punct", lowercase=True)
    >>> words(pa.array(["Don't!", None, "", "ΟΔΟΣ"])).to_pylist()
    [['don', "'", 't', '!'], None, [], ['οδος']]
    """

    lowercase: bool = False  # whether to lower-case strings, as `str.lower` does, before they are cut

    def __call__(self, column: pa.StringArray) -> pa.ListArray:
        """Return the tokens of each row, null where the row is null."""
        return _to_list_array(self.tokenize(column), kernels.null_mask(column) if column.null_count else None)

    @abstractmethod
    def tokenize(self, column: pa.StringArray) -> TokenCodes:
        """Return the tokens of each row; a null row has none."""

    @property
    def model(self) -> PretrainedModel | None:
        """The trained model of a tokenizer with its own ids, or None."""
        return None

    def parameters(self) -> dict[str, Any]:
        """Return all parameters that tokens depend on, as JSON values."""
        return {"tokenizer": type(self).__name__, **{f.name: getattr(self, f.name) for f in fields(self)}}

    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.parameters(), sort_keys=True).encode()).hexdigest()


def _to_list_array(token_codes: TokenCodes, nulls: Array | None) -> pa.ListArray:
    codes = pa.array(token_codes.codes)
    return kernels.make_list_array(
        token_codes.rows, pa.DictionaryArray.from_arrays(codes, token_codes.values, safe=False), nulls
    )


class SpanTokenizer(Tokenizer):
    """Base class of tokenizers that cut ASCII text as bytes."""

    def tokenize(self, column: pa.StringArray) -> TokenCodes:
        return _cut_non_ascii(kernels.encode_spans(self._split(column)), self._cut)

    @abstractmethod
    def _split(self, column: pa.StringArray) -> Spans:
        """Cut every row into spans; one of ASCII text is one token."""

    @abstractmethod
    def _cut(self, text: str) -> list[str]:
        """Return the tokens of a span, or of a row."""


@dataclass(frozen=True, kw_only=True)
class Words(SpanTokenizer):
    r"""Words and punctuation marks: ``re.findall(r"\w+|[^\w\s]", text)``."""

    def _split(self, column: pa.StringArray) -> Spans:
        column = _lowercase_sigma_rows(column) if self.lowercase else column
        return kernels.split_words(column, lowercase=self.lowercase)

    def _cut(self, text: str) -> list[str]:
        return words(text.lower() if self.lowercase else text)


@dataclass(frozen=True, kw_only=True)
class Subwords(Words):
    """Words and punctuation marks, which a feature splits further."""

    algorithm: Literal["bpe", "wordpiece", "unigram"]

    def __post_init__(self) -> None:
        import_package("tokenizers")


@dataclass(frozen=True, kw_only=True)
class Spaced(SpanTokenizer):
    """Tokens separated by white space: ``text.split()``."""

    def _split(self, column: pa.StringArray) -> Spans:
        return kernels.split_spaces(column, lowercase=self.lowercase)

    def _cut(self, text: str) -> list[str]:
        return text.lower().split() if self.lowercase else text.split()


@dataclass(frozen=True, kw_only=True)
class NGrams(Spaced):
    """Tokens separated by white space, and n-grams up to `ngram_size`."""

    ngram_size: int = 2

    def __post_init__(self) -> None:
        if self.ngram_size < 1:
            raise ConfigError(f"ngram_size is {self.ngram_size!r}; it must be 1 or more")

    def tokenize(self, column: pa.StringArray) -> TokenCodes:
        return _add_ngrams(super().tokenize(column), self.ngram_size)


@dataclass(frozen=True, kw_only=True)
class Characters(Tokenizer):
    """Single characters (code points): ``list(text)``."""

    def tokenize(self, column: pa.StringArray) -> TokenCodes:
        if not self.lowercase:
            return kernels.encode_characters(column)
        column = _lowercase_sigma_rows(column)
        return _cut_non_ascii(kernels.encode_characters(column, lowercase=True), lambda value: list(value.lower()))


@dataclass(frozen=True, kw_only=True)
class Separated(Tokenizer):
    """Tokens separated by an ASCII character; blank text has none."""

    separator: str

    def tokenize(self, column: pa.StringArray) -> TokenCodes:
        """Return stripped parts between separators, none if blank."""
        rows, codes, values = kernels.encode_spans(kernels.split_at(column, self.separator))
        values = pc.utf8_trim_whitespace(lowercase_strings(values) if self.lowercase else values)
        return kernels.drop_blank_rows(TokenCodes(rows, *kernels.merge_equal(codes, values)))


@dataclass(frozen=True, kw_only=True)
class Whole(Tokenizer):
    """The text as one token."""

    strip: bool = False

    def tokenize(self, column: pa.StringArray) -> TokenCodes:
        """Return each text as one token, also an empty one."""
        rows, codes, values = kernels.encode_rows(column)
        values = lowercase_strings(values) if self.lowercase else values
        values = pc.utf8_trim_whitespace(values) if self.strip else values
        return TokenCodes(rows, *kernels.merge_equal(codes, values))


def _lowercase_sigma_rows(column: pa.StringArray) -> pa.StringArray:
    """Lower-case rows with a capital sigma, by its neighbors."""
    return _lowercase_rows(column, kernels.find_rows_with(column, "Σ"))


def lowercase_strings(values: pa.StringArray) -> pa.StringArray:
    """Return texts in lower case as `str.lower`, unlike Arrow."""
    small = pc.ascii_lower(values)
    if pc.all(pc.string_is_ascii(values), min_count=0).as_py():
        return small
    return _lowercase_rows(small, kernels.find_non_ascii(values))


def _lowercase_rows(column: pa.StringArray, index: Array) -> pa.StringArray:
    """Return a column with the rows at `index` in lower case."""
    if not len(index):
        return column
    mask = np.zeros(len(column), bool)
    mask[index] = True
    small = [text.lower() for text in column.take(pa.array(index)).to_pylist()]
    return pc.replace_with_mask(column, pa.array(mask), pa.array(small, column.type))


def _cut_non_ascii(token_codes: TokenCodes, cut: Callable[[str], list[str]]) -> TokenCodes:
    """Replace each value that is not ASCII by its tokens."""
    index = kernels.find_non_ascii(token_codes.values)
    texts = token_codes.values.take(pa.array(index)).to_pylist()
    return _replace_values(token_codes, index, [cut(text) for text in texts])


def _replace_values(token_codes: TokenCodes, index: Array, tokens: Sequence[Sequence[str]]) -> TokenCodes:
    """Replace the value at `index[k]` by `tokens[k]`; others are ASCII."""
    if not len(index):
        return token_codes
    unchanged = np.ones(len(token_codes.values), bool)
    unchanged[index] = False
    flat = pa.array(list(chain.from_iterable(tokens)), pa.string()).dictionary_encode()
    lengths = np.ones(len(unchanged), np.int32)
    lengths[index] = np.fromiter(map(len, tokens), np.int32, len(tokens))
    is_kept = np.repeat(unchanged, lengths)
    codes = np.empty(len(is_kept), np.int32)
    codes[is_kept] = np.arange(unchanged.sum())
    codes[~is_kept] = flat.indices.to_numpy() + unchanged.sum()
    values = pa.concat_arrays([token_codes.values.filter(pa.array(unchanged)), flat.dictionary])
    if unchanged.any() and len(kernels.find_non_ascii(flat.dictionary)) < len(flat.dictionary):
        codes, values = kernels.merge_equal(codes, values)
    return expand(token_codes, kernels.offsets_from_lengths(lengths), codes, values)


def expand(token_codes: TokenCodes, offsets: Array, codes: Array, values: pa.StringArray) -> TokenCodes:
    """Replace code k by ``codes[offsets[k]:offsets[k + 1]]``."""
    lengths = np.diff(offsets)
    if (lengths == 1).all():
        return TokenCodes(token_codes.rows, kernels.look_up(codes, token_codes.codes), values)
    sizes = kernels.look_up(lengths, token_codes.codes)
    before = kernels.offsets_from_lengths(sizes)
    index = np.repeat(kernels.look_up(offsets, token_codes.codes) - before[:-1], sizes)
    index += np.arange(before[-1], dtype=np.int32)
    return TokenCodes(before.take(token_codes.rows), kernels.look_up(codes, index), values)


def _add_ngrams(token_codes: TokenCodes, n: int) -> TokenCodes:
    """Append n-grams of 2 to `n` tokens without spaces, joined by a space, to each row."""
    tokens = len(token_codes.values)
    row_of = np.repeat(np.arange(len(token_codes.rows) - 1), np.diff(token_codes.rows))
    start, grams, values = np.arange(len(row_of)), token_codes.codes, token_codes.values
    codes, rows, parts, value_count = [grams], [row_of], [values], tokens
    longest = int(np.diff(token_codes.rows).max(initial=0))
    for size in range(2, min(n, longest) + 1):
        last = start + (size - 1)
        within_row = np.flatnonzero(row_of.take(start) == np.append(row_of, -1).take(last, mode="clip"))
        start, last = start.take(within_row), last.take(within_row)
        pairs = grams.take(within_row).astype(np.int64) * tokens + token_codes.codes.take(last)
        encoded = pa.array(pairs).dictionary_encode()
        head, tail = map(pa.array, np.divmod(encoded.dictionary.to_numpy(), max(tokens, 1)))
        values = pc.binary_join_element_wise(values.take(head), token_codes.values.take(tail), " ")
        grams = encoded.indices.to_numpy()
        codes.append(grams + np.int32(value_count))
        rows.append(row_of.take(start))
        parts.append(values)
        value_count += len(values)
    row = np.concatenate(rows)
    order = np.argsort(row, kind="stable")
    offsets = kernels.offsets_from_lengths(np.bincount(row, minlength=len(token_codes.rows) - 1))
    return TokenCodes(offsets, np.concatenate(codes).take(order), pa.concat_arrays(parts))


class RowTokenizer(Tokenizer):
    """Base class of tokenizers that cut distinct rows, 50 times slower."""

    lowers_texts: ClassVar[bool] = True  # False: `cut` itself lower-cases

    def __call__(self, column: pa.StringArray) -> pa.ListArray:
        return _to_list_array(*self._cut_rows(column))

    def tokenize(self, column: pa.StringArray) -> TokenCodes:
        return self._cut_rows(column)[0]

    def _cut_rows(self, column: pa.StringArray) -> tuple[TokenCodes, Array]:
        """Return the tokens of rows, and a mask of null or unreadable ones, without tokens."""
        rows = kernels.encode_rows(column)
        values = lowercase_strings(rows.values) if self.lowercase and self.lowers_texts else rows.values
        tokens = list(self.cut(values.to_pylist()))
        nulls = kernels.null_mask(column)
        nulls[~nulls] = np.array([row is None for row in tokens], bool).take(rows.codes)
        return _replace_values(rows, np.arange(len(tokens)), [row or [] for row in tokens]), nulls

    @abstractmethod
    def cut(self, texts: list[str]) -> Iterable[list[str] | None]:
        """Return the tokens of each text, None for an unreadable one."""


@dataclass(frozen=True, kw_only=True)
class Regex(RowTokenizer):
    """The non-empty matches of a regular expression."""

    pattern: str | None = None

    def __post_init__(self) -> None:
        if not self.pattern:
            raise ConfigError(r'The tokenizer "regex" needs a pattern, such as pattern=r"\w+"')
        try:
            re.compile(self.pattern)
        except (re.error, RecursionError, OverflowError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
            raise ConfigError(f"pattern={self.pattern!r:.80} is not a regular expression: {reason}") from error

    def cut(self, texts: list[str]) -> Iterable[list[str]]:
        pattern = re.compile(self.pattern or "")
        return (matches(text, pattern) for text in texts)


@dataclass(frozen=True, kw_only=True)
class Json(RowTokenizer):
    """The items of a JSON list; other text cannot be read.

    The token of a number is its notation: the tokens of ``["a", 1.50]`` are "a" and "1.50".
    """

    lowers_texts: ClassVar[bool] = False  # an escape such as \\u00C9 hides a capital

    def cut(self, texts: list[str]) -> Iterable[list[str] | None]:
        return (json_items(text, lowercase=self.lowercase) for text in texts)


@dataclass(frozen=True, kw_only=True)
class Custom(RowTokenizer):
    """The tokens that a function returns for each distinct row."""

    function: Any = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError('Pass the function itself as the tokenizer, in place of "custom"')

    def parameters(self) -> dict[str, Any]:
        """Return the parameters, and the function's source code."""
        function = self.function
        cells = [repr(cell.cell_contents) for cell in getattr(function, "__closure__", None) or ()]
        try:  # without source code, the address in `repr` identifies the function, so that it never hits a cache
            source = inspect.getsource(function) if inspect.isfunction(function) else repr(function)
        except OSError:
            source = repr(function)
        return {**super().parameters(), "function": [source, *cells]}

    def cut(self, texts: list[str]) -> Iterable[list[str]]:
        return map(self._call_function, texts)

    def _call_function(self, text: str) -> list[str]:
        """Return the function's tokens of a text; RejectedValueError unless it returns a list of strings."""
        try:
            tokens = self.function(text)
        except Exception as error:
            raise RejectedValueError(
                f"The tokenizer {self.function!r} failed on {text!r}: {error!r}. It must take any string"
            ) from error
        if not isinstance(tokens, list | tuple) or not are_strings(tokens):
            raise RejectedValueError(
                f"The tokenizer {self.function!r} returned {tokens!r} for {text!r}; it must return a list of strings"
            )
        return list(tokens)


@dataclass(frozen=True, kw_only=True)
class Spacy(RowTokenizer):
    """The tokens of spaCy for English text, without white space.

    `remove_numbers` also drops tokens of one or two characters, and tokens that contain one of ``.,@$%/:;+=``.
    """

    lemmatize: bool = False
    remove_numbers: bool = False
    remove_stopwords: bool = False

    def __post_init__(self) -> None:
        import_package("spacy")

    def cut(self, texts: list[str]) -> Iterable[list[str]]:
        nlp = _load_english(self.lemmatize)
        for doc in nlp.pipe(texts) if self.lemmatize else nlp.tokenizer.pipe(texts):
            yield [token.lemma_ if self.lemmatize else token.text for token in doc if self._is_kept(token)]

    def _is_kept(self, token: Any) -> bool:
        """Return whether a token is no space, stop word or number, if so set."""
        minor = token.like_num or len(token) <= 2 or any(mark in token.text for mark in ".,@$%/:;+=")
        dropped = (self.remove_stopwords and token.is_stop) or (self.remove_numbers and minor)
        return not token.is_space and not dropped


@lru_cache
def _load_english(lemmatize: bool) -> Any:
    """Return spaCy's tokenizer, or its model for lemmas; MissingPackageError if not installed."""
    spacy = import_package("spacy")
    if not lemmatize:
        return spacy.blank("en")
    try:
        return spacy.load("en_core_web_sm", disable=["parser", "ner"])
    except OSError as error:
        hint = "Install it with: python -m spacy download en_core_web_sm"
        raise MissingPackageError(f"Lemmas need spaCy's English model. {hint}") from error


@dataclass(frozen=True, kw_only=True)
class Pretrained(Tokenizer):
    """A trained tokenizer with its own ids, for each distinct row.

    With the package tokenizers, `path` is a `tokenizer.json`, a folder with one, or a model name for the package
    transformers; special tokens that the tokenizer adds are kept. With sentencepiece, it is a `.model` file.
    """

    path: str | None = None
    package: Literal["tokenizers", "sentencepiece"]

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("This tokenizer needs a file or a name: pass pretrained_model_name_or_path")
        check_trusted_path(self.path, "The tokenizer")
        path_text(self.path, "tokenizer")
        if Path(self.path).suffix in {".json", ".model"} and not Path(self.path).is_file():
            raise ConfigError(f"no file {self.path} to load a tokenizer from")
        # A name on the Hugging Face Hub has one slash at most.
        is_path = self.path.startswith(("/", ".", "~")) or self.path.count("/") > 1
        if is_path and not Path(self.path).exists():
            raise ConfigError(f"no tokenizer.json in {self.path}: there is no such folder")
        import_package(self.package)

    @property
    def model(self) -> PretrainedModel:
        """The trained model, loaded again if the file changes."""
        file = Path(self.path or "")
        file = file / "tokenizer.json" if file.is_dir() else file
        files = [one for one in (file, *map(file.with_name, CONFIG_FILES)) if one.is_file()]
        stamp = tuple((one.stat().st_mtime_ns, one.stat().st_size) for one in files) if file.is_file() else None
        return load_model(
            self.package, str(file if stamp else self.path), stamp, isinstance(self.path, UntrustedModelName)
        )

    def parameters(self) -> dict[str, Any]:
        return {**super().parameters(), "path": None, "content": self.model.digest}

    def tokenize(self, column: pa.StringArray) -> TokenCodes:
        """Return the model's tokens for each text; distinct texts are encoded once."""
        model, rows = self.model, kernels.encode_rows(column)
        texts = lowercase_strings(rows.values) if self.lowercase else rows.values
        ids = list(model.encode(texts.to_pylist()))
        offsets = kernels.offsets_from_lengths(np.fromiter(map(len, ids), np.int32, len(ids)))
        used, codes = np.unique(np.fromiter(chain.from_iterable(ids), np.int32), return_inverse=True)
        values = pa.array([model.vocabulary[token_id] for token_id in used.tolist()], pa.string())
        return expand(rows, offsets, codes.astype(np.int32), values)


TOKENIZERS: dict[str, Callable[..., Tokenizer]] = {
    "space": Spaced,
    "space_punct": Words,
    "underscore": partial(Separated, separator="_"),
    "comma": partial(Separated, separator=","),
    "characters": Characters,
    "untokenized": Whole,
    "stripped": partial(Whole, strip=True),
    "ngram": NGrams,
    "regex": Regex,
    "json": Json,
    "custom": Custom,
    "bpe": partial(Subwords, algorithm="bpe"),
    "wordpiece": partial(Subwords, algorithm="wordpiece"),
    "unigram": partial(Subwords, algorithm="unigram"),
    "hf_tokenizer": partial(Pretrained, package="tokenizers"),
    "sentencepiece": partial(Pretrained, package="sentencepiece"),
    "english_tokenize": Spacy,
    "english_tokenize_filter": partial(Spacy, remove_numbers=True),
    "english_tokenize_remove_stopwords": partial(Spacy, remove_stopwords=True),
    "english_lemmatize": partial(Spacy, lemmatize=True),
    "english_lemmatize_filter": partial(Spacy, lemmatize=True, remove_numbers=True),
    "english_lemmatize_remove_stopwords": partial(Spacy, lemmatize=True, remove_stopwords=True),
}
_BUILTIN = dict(TOKENIZERS)


def is_builtin_tokenizer(name: object) -> bool:
    """Return whether a name is of a built-in, not replaced tokenizer."""
    return isinstance(name, str) and TOKENIZERS.get(name) is _BUILTIN.get(name)


def get_tokenizer(
    name: str | Tokenizer | Callable[[str], list[str]],
    *,
    lowercase: bool = False,
    ngram_size: int = 2,
    pattern: str | None = None,
    path: str | None = None,
) -> Tokenizer:
    """Return the tokenizer of a name, or of a function.

    Names are those in `TOKENIZERS`. `ngram_size` is for "ngram", `pattern` for "regex", and `path` for "hf_tokenizer"
    and "sentencepiece". A `Tokenizer` is returned unchanged. ConfigError for another name.
    """
    if isinstance(name, Tokenizer):
        return name
    if callable(name):
        return Custom(lowercase=lowercase, function=name)
    if not isinstance(name, str) or name not in TOKENIZERS:
        model = f' For a model of Hugging Face, use tokenizer="hf_tokenizer", pretrained_model_name_or_path="{name}".'
        raise ConfigError(
            f'no tokenizer "{name}".{did_you_mean(name, TOKENIZERS) or model} Use one of {", ".join(TOKENIZERS)}, or '
            "pass a function from a string to a list of strings"
        )
    options = {"lowercase": lowercase, "ngram_size": ngram_size, "pattern": pattern, "path": path}
    declared = inspect.signature(TOKENIZERS[name]).parameters
    return TOKENIZERS[name](**{option: value for option, value in options.items() if option in declared})
