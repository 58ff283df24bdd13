"""Special symbols of vocabularies: padding, unknown, start and stop."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from daskprep.errors import ConfigError, did_you_mean
from daskprep.storage.checkpoint import checkpointable

Role = Literal["padding", "unknown", "start", "stop"]
ROLES: tuple[Role, ...] = get_args(Role)
LUDWIG_SYMBOLS: dict[Role, str] = {"stop": "<EOS>", "start": "<SOS>", "padding": "<PAD>", "unknown": "<UNK>"}


@checkpointable
@dataclass(frozen=True)
class SpecialSymbols:
    """Special symbols of a vocabulary, in the order of their ids.

    Attributes
    ----------
    roles, symbols, ids : tuple
        Role, spelling and id of each symbol.

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
        cls,
        *,
        start_stop: bool = False,
        special_symbols: Literal["ludwig"] | Mapping[str, str] | None = None,
        padding_symbol: str = "<PAD>",
        unknown_symbol: str = "<UNK>",
    ) -> SpecialSymbols:
        """Return the symbols of sequences, sets and bags.

        `special_symbols` overrides the other parameters: a dict of symbols by role in the order of ids, or "ludwig" for
        the ids and symbols of that library, which include start and stop.
        """
        renamed: dict[Role, str] = {"padding": padding_symbol, "unknown": unknown_symbol}
        if isinstance(special_symbols, Mapping):
            return _assign_ids(_check_override(special_symbols, renamed, start_stop=start_stop))
        if special_symbols == "ludwig":
            return _assign_ids({**LUDWIG_SYMBOLS, **renamed})
        delimiters: dict[Role, str] = {"start": "<START>", "stop": "<STOP>"} if start_stop else {}
        return _assign_ids({"padding": padding_symbol, **delimiters, "unknown": unknown_symbol})

    @classmethod
    def for_category(cls, unknown_symbol: str = "<UNK>") -> SpecialSymbols:
        """Return the symbols of categories: only the unknown symbol, with id 0."""
        return _assign_ids({"unknown": unknown_symbol})

    @classmethod
    def locate_in(cls, tokens: Sequence[str] | pa.Array, symbols: Mapping[str, str]) -> SpecialSymbols:
        """Return special symbols with the ids that they have in a pretrained vocabulary.

        `symbols` has spellings by role. Raise ConfigError for a symbol that is not among `tokens`.
        """
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
        """Return whether each symbol is the token at its id.

        If not, symbols with the ids 0, 1, 2, ... can be put before the tokens; raise ConfigError for other ids.
        """
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
        """Return the symbol of a role, None if no symbol has it."""
        return self.symbols[self.roles.index(role)] if role in self.roles else None

    def _id(self, role: Role) -> int | None:
        return self.ids[self.roles.index(role)] if role in self.roles else None


def _assign_ids(symbols: Mapping[Role, str]) -> SpecialSymbols:
    """Assign the ids 0, 1, 2, ... to symbols by role; raise ConfigError for a symbol that is empty or a duplicate."""
    spellings = tuple(symbols.values())
    for role, symbol in symbols.items():
        if not isinstance(symbol, str) or not symbol or spellings.count(symbol) > 1:
            raise ConfigError(
                f"The {role} symbol is {symbol!r}: expected a text that is not empty and that no other "
                f"special symbol has, of {dict(symbols)}."
            )
    return SpecialSymbols(tuple(symbols), spellings, tuple(range(len(spellings))))


def _check_role(name: str) -> Role:
    if name not in ROLES:
        known = ", ".join(ROLES)
        raise ConfigError(f"special_symbols has a role {name!r}: expected {known}.{did_you_mean(name, ROLES)}")
    return name


def _check_override(symbols: Mapping[str, str], renamed: Mapping[Role, str], *, start_stop: bool) -> dict[Role, str]:
    """Return `symbols` by role; raise ConfigError if they contradict `renamed`, or roles are wrong or missing."""
    checked = {_check_role(name): symbol for name, symbol in symbols.items()}
    needed: tuple[Role, ...] = ROLES if start_stop else ("padding", "unknown")
    if lacking := [role for role in needed if role not in checked]:
        raise ConfigError(f"special_symbols={dict(symbols)} lacks {lacking}: pass a symbol for each of {needed}.")
    for role, symbol in renamed.items():
        if symbol not in (LUDWIG_SYMBOLS[role], checked[role]):
            raise ConfigError(
                f"{role}_symbol={symbol!r} contradicts special_symbols={dict(symbols)}: pass only one of them."
            )
    return checked
