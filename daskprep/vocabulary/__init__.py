"""Vocabularies: tokens and their ids, special symbols first, then tokens by frequency."""

from __future__ import annotations

from daskprep.vocabulary.special_symbols import Role, SpecialSymbols
from daskprep.vocabulary.vocabulary import LARGE_VOCABULARY, Vocabulary

__all__ = ["LARGE_VOCABULARY", "Role", "SpecialSymbols", "Vocabulary"]
