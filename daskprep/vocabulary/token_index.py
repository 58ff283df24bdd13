"""An index of the tokens of a large vocabulary, which a process builds once."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.summaries.token_hash import token_hashes

# What a process keeps: 8 bytes an entry besides the tokens.
MAX_CACHED_INDEXES = 8


class TokenIndex:
    """Ids behind the upper bits of the hash of their token, ascending; what has the same upper bits is compared.

    Both share a word of 64 bits, since NumPy sorts words many times as fast as it finds the order of some.
    """

    def __init__(self, tokens: pa.StringArray) -> None:
        self.tokens = tokens
        self.entries, self._id_mask = _sort_with_row_numbers(token_hashes(tokens))
        prefixes = self.entries & ~self._id_mask
        starts = np.flatnonzero(np.append(True, prefixes[1:] != prefixes[:-1]))
        self.longest_run = int(np.diff(starts, append=len(tokens)).max())

    def find(self, tokens: pa.Array) -> np.ndarray:
        """Return the id of each token, -1 for those that are not there."""
        hashes = token_hashes(tokens)
        # Searching in order stays in cache, which is worth the sorting.
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
            same = pc.equal(tokens.take(pa.array(rows)), self.tokens.take(pa.array(ids)))
            same = same.fill_null(False).to_numpy(zero_copy_only=False)
            result[rows[same]] = ids[same]
        return result


def _sort_with_row_numbers(hashes: np.ndarray) -> tuple[np.ndarray, np.uint64]:
    """Return the upper bits of each hash with its number in the lower ones, ascending, and which are the lower ones."""
    row_mask = np.uint64((1 << len(hashes).bit_length()) - 1)
    sorted_hashes = (hashes & ~row_mask) | np.arange(len(hashes), dtype=np.uint64)
    sorted_hashes.sort()
    return sorted_hashes, row_mask


def digest_tokens(tokens: pa.StringArray) -> bytes:
    """Return a digest that other tokens do not have."""
    digest = hashlib.blake2b(f"{tokens.offset},{len(tokens)}".encode(), digest_size=16)
    for buffer in tokens.buffers()[1:]:
        digest.update(buffer or b"")
    return digest.digest()


@dataclass(frozen=True)
class HashableTokens:
    """Tokens that count as equal to all others of the same digest."""

    digest: bytes
    tokens: pa.StringArray = field(compare=False)


@functools.lru_cache(maxsize=MAX_CACHED_INDEXES)
def get_cached_index(key: HashableTokens) -> TokenIndex:
    """Return the index of some tokens, kept from an earlier call or built now."""
    return TokenIndex(key.tokens)
