"""Vocabularies: special symbols, tokens ranked by frequency, their ids, and an index of the tokens of large ones."""

from __future__ import annotations

import functools
import io
import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from daskprep.columns.kernels import as_arrow, bool_values, plain_values, valid_mask
from daskprep.columns.summaries import TokenCounts
from daskprep.columns.summaries.token_counts import token_hashes
from daskprep.errors import ConfigError, CorruptDatasetError, RejectedValueError, did_you_mean
from daskprep.rows.base import smallest_uint
from daskprep.rows.parameter_names import LUDWIG_SYMBOLS
from daskprep.storage.checkpoint import checkpointable
from daskprep.storage.tables import read_bounded_table

Role = Literal["padding", "unknown", "start", "stop"]
ROLES: tuple[Role, ...] = get_args(Role)

LARGE_VOCABULARY = 100_000  # larger vocabularies are saved in Parquet files, not in JSON

# Arrow hashes all entries at each lookup, about 100 ns an entry. From this size on, a cached index is faster, unless
# there are more tokens to look up than entries.
MIN_INDEXED_TOKENS = 10_000
MAX_CACHED = 8  # an index takes 8 bytes an entry, JSON some 30, and both keep the tokens in memory


VOCABULARY_SCHEMA = pa.schema(
    [
        pa.field("token", pa.string(), nullable=False),
        pa.field("frequency", pa.int64(), nullable=False),
        # Roles of a special symbol, separated by commas; null for other tokens.
        pa.field("roles", pa.string()),
    ]
)


@checkpointable
@dataclass(frozen=True)
class SpecialSymbols:
    """Special symbols of a vocabulary, in the order of their ids.

    Examples
    --------
    >>> SpecialSymbols.for_tokens(start_stop=True).symbols
    ('<PAD>', '<START>', '<STOP>', '<UNK>')
    >>> SpecialSymbols.for_tokens(special_symbols="ludwig").padding_id
    2
    >>> SpecialSymbols.for_tokens().start_id is None
    True
    """

    roles: tuple[Role, ...]
    symbols: tuple[str, ...]
    ids: tuple[int, ...]

    @classmethod
    def for_tokens(
        cls, *, start_stop: bool = False, special_symbols: Literal["ludwig"] | Mapping[str, str] | None = None
    ) -> SpecialSymbols:
        """Return the symbols of sequences, sets and bags.

        `special_symbols` overrides them: symbols by role in the order of ids, or "ludwig" for its own. ConfigError if
        one lacks.
        """
        if isinstance(special_symbols, Mapping):
            checked = {_check_role(name): symbol for name, symbol in special_symbols.items()}
            needed: tuple[Role, ...] = ROLES if start_stop else ("padding", "unknown")
            if lacking := [role for role in needed if role not in checked]:
                raise ConfigError(
                    f"special_symbols={dict(special_symbols)} lacks {lacking}: pass a symbol for each of {needed}."
                )
            return _assign_ids(checked)
        if special_symbols == "ludwig":
            return _assign_ids(LUDWIG_SYMBOLS)
        delimiters: dict[Role, str] = {"start": "<START>", "stop": "<STOP>"} if start_stop else {}
        return _assign_ids({"padding": "<PAD>", **delimiters, "unknown": "<UNK>"})

    @classmethod
    def for_category(cls, unknown_symbol: str = "<UNK>") -> SpecialSymbols:
        """Return the symbols of categories: the unknown one, with id 0."""
        return _assign_ids({"unknown": unknown_symbol})

    @classmethod
    def locate_in(cls, tokens: Sequence[str] | pa.Array, symbols: Mapping[str, str]) -> SpecialSymbols:
        """Return symbols, by role, with their ids among `tokens`; ConfigError for an absent one."""
        token_array = tokens if isinstance(tokens, pa.Array) else pa.array(tokens, pa.string())
        symbol_ids = pc.index_in(pa.array(symbols.values(), pa.string()), value_set=token_array).to_pylist()
        located = list(zip(map(_check_role, symbols), symbols.values(), symbol_ids, strict=True))
        for role, symbol, symbol_id in located:
            if symbol_id is None:
                raise ConfigError(
                    f"The {role} symbol {symbol!r} is not in the vocabulary of {len(token_array)} tokens: "
                    "use a symbol that is in it, or leave this role out."
                )
        located.sort(key=operator.itemgetter(2))  # one symbol may have several roles, which keep their order
        return cls(*zip(*located, strict=True)) if located else cls((), (), ())

    def match_tokens(self, tokens: pa.StringArray) -> bool:
        """Return whether each symbol is the token at its id; if not, ConfigError unless ids are 0, 1, ..."""
        inside = max(self.ids, default=-1) < len(tokens)
        if inside and tokens.take(pa.array(self.ids, pa.int64())).to_pylist() == list(self.symbols):
            return True
        if self.ids != tuple(range(len(self.ids))):
            raise ConfigError(
                f"The special symbols {self.symbols} have ids {self.ids}, where this vocabulary has other "
                "tokens: find them in this vocabulary."
            )
        return False

    def __len__(self) -> int:
        return len(self.symbols)

    @property
    def padding_id(self) -> int | None:
        return self._id("padding")

    @property
    def unknown_id(self) -> int | None:
        return self._id("unknown")

    @property
    def start_id(self) -> int | None:
        return self._id("start")

    @property
    def stop_id(self) -> int | None:
        return self._id("stop")

    def symbol(self, role: Role) -> str | None:
        return self.symbols[self.roles.index(role)] if role in self.roles else None

    def _id(self, role: Role) -> int | None:
        return self.ids[self.roles.index(role)] if role in self.roles else None


def _assign_ids(symbols: Mapping[Role, str]) -> SpecialSymbols:
    """Assign the ids 0, 1, 2, ... to symbols by role; ConfigError for an empty or repeated one."""
    spellings = tuple(symbols.values())
    for role, symbol in symbols.items():
        if not isinstance(symbol, str) or not symbol or spellings.count(symbol) > 1:
            raise ConfigError(
                f"The {role} symbol is {symbol!r}: expected a text that is not empty and that no other "
                f"special symbol has, of {dict(symbols)}."
            )
    return SpecialSymbols(tuple(symbols), spellings, tuple(range(len(spellings))))


def _check_role(name: str) -> Role:
    """Raise ConfigError for an unknown role."""
    if name not in ROLES:
        known = ", ".join(ROLES)
        raise ConfigError(f"special_symbols has a role {name!r}: expected {known}.{did_you_mean(name, ROLES)}")
    return name


@checkpointable
@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Tokens in the order of their ids, with their frequencies.

    Examples
    --------
    >>> import numpy as np, pyarrow as pa
    >>> counts = TokenCounts.of(pa.array(["b", "a", "c", "<UNK>"]), np.array([1, 1, 5, 2]))
    >>> vocabulary = Vocabulary.learn(counts, SpecialSymbols.for_tokens(), most_common=2)
    >>> vocabulary.to_dict()["str2freq"]
    {'<PAD>': 0, '<UNK>': 2, 'c': 5, 'a': 1}
    >>> vocabulary.ids(pa.array(["a", "b"]))
    array([3, 1], dtype=uint8)
    """

    tokens: pa.StringArray  # by id, including special symbols
    frequencies: np.ndarray  # int64
    specials: SpecialSymbols

    def __reduce__(self) -> tuple[Any, ...]:
        return Vocabulary, (self.tokens, self.frequencies, self.specials)

    def __getstate__(self) -> dict[str, Any]:
        # For skops, which restores objects from their state, and Arrow arrays without their memory.
        content = io.BytesIO()
        self.write_parquet(content)
        return {"parquet": content.getvalue()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(vars(Vocabulary.read_parquet(io.BytesIO(state["parquet"]))))

    @classmethod
    def learn(
        cls,
        counts: TokenCounts,
        specials: SpecialSymbols,
        most_common: int | None = None,
        min_frequency: int | None = None,
    ) -> Vocabulary:
        """Rank tokens by (frequency descending, UTF-8 bytes ascending), then apply the limits.

        A token that equals a special symbol has its id, and does not count towards the limits.
        """
        symbols = pa.array(specials.symbols, pa.string())
        limit = None if most_common is None else most_common + len(symbols)
        tokens, frequencies = counts.rank(limit, min_frequency)
        symbol_frequencies = counts.frequencies(symbols)
        if symbol_frequencies.any():
            ordinary = pc.invert(pc.is_in(tokens, value_set=symbols))
            tokens, frequencies = tokens.filter(ordinary), frequencies[ordinary.to_numpy(zero_copy_only=False)]
        tokens = pa.concat_arrays([symbols, tokens.slice(0, most_common)])
        return cls(tokens, np.concatenate([symbol_frequencies, frequencies[:most_common]]), specials)

    @classmethod
    def from_tokens(
        cls, tokens: Sequence[str] | pa.StringArray, counts: TokenCounts | None, specials: SpecialSymbols
    ) -> Vocabulary:
        """Return a vocabulary of tokens in the order of a list.

        ConfigError for a repeated one. Special symbols that are at their ids stay; otherwise they come first.
        """
        token_array = tokens if isinstance(tokens, pa.Array) else pa.array(tokens, pa.string())
        if not specials.match_tokens(token_array):
            symbols = pa.array(specials.symbols, pa.string())
            ordinary = pc.invert(pc.is_in(token_array, value_set=symbols))
            token_array = pa.concat_arrays([symbols, token_array.filter(ordinary)])
        token_counts = token_array.value_counts()
        if len(token_counts) < len(token_array):
            token = token_counts.field("values").filter(pc.greater(token_counts.field("counts"), 1))[0].as_py()
            raise ConfigError(f"The vocabulary lists {token!r} more than once: each token has one id, so list it once.")
        frequencies = np.zeros(len(token_array), np.int64) if counts is None else counts.frequencies(token_array)
        return cls(token_array, frequencies, specials)

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Vocabulary)
            and self.specials == other.specials
            and self.tokens.equals(other.tokens)
            and np.array_equal(self.frequencies, other.frequencies)
        )

    def __hash__(self) -> int:
        return hash((len(self), self.specials))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Smallest unsigned type for all ids."""
        return smallest_uint(len(self))

    def ids(self, dictionary: pa.Array) -> np.ndarray:
        """Return the id of each token, for others of the unknown symbol; RejectedValueError without it."""
        token_ids = self.find_ids(dictionary)
        unknown = token_ids < 0
        if unknown.any():
            if self.specials.unknown_id is None:
                token = dictionary[int(np.argmax(unknown))].as_py()
                raise RejectedValueError(
                    f"Token {token!r} is not in the vocabulary of {len(self)} tokens, which has no symbol "
                    "for unknown ones: name an unknown symbol."
                )
            token_ids[unknown] = self.specials.unknown_id
        return token_ids.astype(self.dtype)

    def decode(self, ids: np.ndarray) -> pa.StringArray:
        """Return the token of each id, out of range the unknown symbol; RejectedValueError without it."""
        indices = np.asarray(ids).ravel().astype(np.int64)
        outside = (indices < 0) | (indices >= len(self))
        if outside.any():
            if self.specials.unknown_id is None:
                invalid_id = indices[int(np.argmax(outside))]
                raise RejectedValueError(f"Id {invalid_id} is not in the vocabulary: expected 0 to {len(self) - 1}.")
            indices[outside] = self.specials.unknown_id
        return self.tokens.take(pa.array(indices))

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and dicts; `idx2str` has tokens by id."""
        tokens = self.tokens.to_pylist()
        return {
            "idx2str": tokens,
            "str2idx": {token: number for number, token in enumerate(tokens)},
            "str2freq": dict(zip(tokens, self.frequencies.tolist(), strict=True)),
            "vocab_size": len(tokens),
            "special_symbols": dict(zip(self.specials.roles, self.specials.symbols, strict=True)),
        }

    @functools.lru_cache(maxsize=MAX_CACHED)  # noqa: B019 as bounded as indexes
    def to_json(self) -> str:
        """Return `to_dict` as JSON, in a third of the time of `json`."""
        tokens = list(map(json.encoder.encode_basestring, self.tokens.to_pylist()))
        ids, counts = (
            ",".join([f"{token}:{number}" for token, number in zip(tokens, numbers, strict=True)])
            for numbers in (range(len(tokens)), self.frequencies.tolist())
        )
        symbols = dict(zip(self.specials.roles, self.specials.symbols, strict=True))
        return (
            f'{{"idx2str":[{",".join(tokens)}],"str2idx":{{{ids}}},"str2freq":{{{counts}}},"vocab_size":{len(self)},'
            f'"special_symbols":{json.dumps(symbols, ensure_ascii=False, separators=(",", ":"))}}}'
        )

    def to_lists(self) -> dict[str, Any]:
        """Return a smaller equivalent of `to_dict`: each token once, and runs of frequencies."""
        starts = np.flatnonzero(np.diff(self.frequencies, prepend=self.frequencies[:1] - 1))
        return {
            "idx2str": self.tokens.to_pylist(),
            "frequencies": {
                "values": self.frequencies[starts].tolist(),
                "tokens": np.diff(starts, append=len(self)).tolist(),
            },
            "special_symbols": dict(zip(self.specials.roles, self.specials.symbols, strict=True)),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Vocabulary:
        """Restore a vocabulary from `to_dict` or `to_lists`; CorruptDatasetError if invalid, other keys are ignored."""
        try:
            tokens = pa.array(data["idx2str"], pa.string())
            if "frequencies" in data:
                values, runs = (np.array(data["frequencies"][part], np.int64) for part in ("values", "tokens"))
                # NumPy's sum may overflow to the right total, and `repeat` would then write beyond its result.
                if (total := sum(runs.tolist())) != len(tokens):
                    raise ValueError(f"{len(tokens)} tokens, and {total} frequencies")
                frequencies = np.repeat(values, runs)
            else:
                frequencies = np.array([data["str2freq"][token] for token in data["idx2str"]], np.int64)
            if frequencies.shape != (len(tokens),):
                raise ValueError(f"frequencies are of shape {frequencies.shape}")
            specials = SpecialSymbols.locate_in(tokens, dict(data["special_symbols"]))
        except (KeyError, OverflowError, TypeError, ValueError, pa.ArrowException, ConfigError) as error:
            raise CorruptDatasetError(
                f"This is not a vocabulary as daskprep writes it ({error!r}): restore the file, or fit again."
            ) from error
        return cls(tokens, frequencies, specials)

    def write_parquet(self, path: str | PathLike[str] | IO[bytes]) -> None:
        """Write a Parquet file of a row per id, byte-reproducible."""
        roles: list[str | None] = [None] * (max(self.specials.ids, default=-1) + 1)
        for role, number in zip(self.specials.roles, self.specials.ids, strict=True):
            # One symbol may be both padding and stop, as in some pretrained vocabularies.
            roles[number] = f"{roles[number]},{role}" if roles[number] else role
        ordinary = pa.nulls(len(self) - len(roles), pa.string())
        column = pa.concat_arrays([pa.array(roles, pa.string()), ordinary])
        table = pa.table([self.tokens, self.frequencies, column], schema=VOCABULARY_SCHEMA)
        pq.write_table(table, path, compression="zstd", use_dictionary=["roles"], write_page_checksum=True)

    @classmethod
    def read_parquet(cls, path: str | PathLike[str] | IO[bytes]) -> Vocabulary:
        """Read a `write_parquet` file, or raise CorruptDatasetError."""
        source = io.BytesIO(Path(path).read_bytes()) if isinstance(path, str | PathLike) else path
        try:
            table = read_bounded_table(source, VOCABULARY_SCHEMA)
        except CorruptDatasetError as error:
            raise CorruptDatasetError(f"{path} holds no vocabulary ({error}): restore it, or fit again.") from error
        ids = np.flatnonzero(table["roles"].is_valid().to_numpy())
        symbol_rows = [
            (role, table["token"][number].as_py(), int(number))
            for number in ids
            for role in table["roles"][number].as_py().split(",")
        ]
        roles, symbols, symbol_ids = zip(*symbol_rows, strict=True) if symbol_rows else ((), (), ())
        specials = SpecialSymbols(roles, symbols, symbol_ids)
        return cls(table["token"].combine_chunks(), table["frequency"].to_numpy(), specials)

    def contains(self, dictionary: pa.Array) -> np.ndarray:
        return self.find_ids(dictionary) >= 0

    def find_ids(self, dictionary: pa.Array) -> np.ndarray:
        """Return the id of each token, -1 outside the vocabulary."""
        if len(self) < max(MIN_INDEXED_TOKENS, len(dictionary)):
            indices = pc.index_in(dictionary, value_set=self.tokens)
            return np.where(valid_mask(indices), plain_values(indices), np.int64(-1))
        return self._index().find(dictionary)

    @functools.lru_cache(maxsize=MAX_CACHED)  # noqa: B019 all copies in a process share one index
    def _index(self) -> TokenIndex:
        return TokenIndex(self.tokens)

    def extend(self, tokens: pa.StringArray) -> Vocabulary:
        frequencies = np.concatenate([self.frequencies, np.zeros(len(tokens), np.int64)])
        return Vocabulary(pa.concat_arrays([self.tokens, tokens]), frequencies, self.specials)

    def removed_names(self, ids: np.ndarray) -> dict[str, str]:
        """Return "<REMOVED id>" by token; in more brackets if one is so called."""
        names = np.array([f"<REMOVED {number}>" for number in ids.tolist()], object)
        while True:
            others = self.find_ids(pa.array(names, pa.string()))
            if not (taken := (others >= 0) & (others != ids)).any():
                break
            names[taken] = [f"<{name}>" for name in names[taken]]
        return dict(zip(self.tokens.take(pa.array(ids, pa.int64())).to_pylist(), names.tolist(), strict=True))

    def rename(self, names: Mapping[str, str]) -> Vocabulary:
        """Return a vocabulary with tokens renamed, each under its id."""
        if not names:
            return self
        ids = self.find_ids(pa.array(list(names), pa.string()))
        renamed = np.isin(np.arange(len(self)), ids)
        texts = pa.array(list(names.values()), pa.string()).take(pa.array(np.argsort(ids)))
        return Vocabulary(pc.replace_with_mask(self.tokens, pa.array(renamed), texts), self.frequencies, self.specials)

    def starts_with(self, other: Vocabulary) -> bool:
        """Return whether it starts with tokens and counts of `other`."""
        return Vocabulary(self.tokens.slice(0, len(other)), self.frequencies[: len(other)], self.specials) == other


class TokenIndex:
    """Sorted words of 64 bits: the upper bits of each token's hash, then its id.

    Hash and id share a word because `np.sort` is many times faster than `np.argsort`.
    """

    def __init__(self, tokens: pa.StringArray) -> None:
        self.tokens = tokens
        self.entries, self._id_mask = _sort_with_row_numbers(token_hashes(tokens))
        prefixes = self.entries & ~self._id_mask
        starts = np.flatnonzero(np.append(True, prefixes[1:] != prefixes[:-1]))
        self.longest_run = int(np.diff(starts, append=len(tokens)).max())

    def find(self, tokens: pa.Array) -> np.ndarray:
        """Return the id of each token, -1 for others."""
        hashes = token_hashes(tokens)
        # Lookups in sorted order stay in the CPU cache, which saves more time than the sort takes.
        sorted_hashes, row_mask = _sort_with_row_numbers(hashes)
        order = (sorted_hashes & row_mask).view(np.int64)
        hashes &= ~self._id_mask
        positions = np.empty(len(tokens), np.int64)
        positions[order] = np.searchsorted(self.entries, hashes[order])
        result = np.full(len(tokens), -1, np.int64)
        for step in range(self.longest_run):
            candidates = self.entries[np.minimum(positions + step, len(self.entries) - 1)]
            rows = np.flatnonzero((candidates & ~self._id_mask == hashes) & (result < 0))
            ids = (candidates[rows] & self._id_mask).view(np.int64)
            same = pc.equal(tokens.take(as_arrow(rows)), self.tokens.take(as_arrow(ids)))
            is_same = bool_values(same.fill_null(False) if same.null_count else same)
            result[rows[is_same]] = ids[is_same]
        return result


def _sort_with_row_numbers(hashes: np.ndarray) -> tuple[np.ndarray, np.uint64]:
    """Sort hashes with row numbers as low bits; return their mask."""
    row_mask = np.uint64((1 << len(hashes).bit_length()) - 1)
    sorted_hashes = (hashes & ~row_mask) | np.arange(len(hashes), dtype=np.uint64)
    sorted_hashes.sort()
    return sorted_hashes, row_mask
