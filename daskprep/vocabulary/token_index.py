"""Index of the tokens of a large vocabulary, which each process builds once."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.summaries.token_hash import token_hashes

# An index takes 8 bytes an entry, and keeps the tokens in memory.
MAX_CACHED_INDEXES = 8


class TokenIndex:
    """Sorted words of 64 bits: the upper bits of each token's hash, then its id. Equal upper bits are resolved by text.

    Hash and id share a word because `np.sort` is many times faster than `np.argsort`.
    """

    def __init__(self, tokens: pa.StringArray) -> None:
        self.tokens = tokens
        self.entries, self._id_mask = _sort_with_row_numbers(token_hashes(tokens))
        prefixes = self.entries & ~self._id_mask
        starts = np.flatnonzero(np.append(True, prefixes[1:] != prefixes[:-1]))
        self.longest_run = int(np.diff(starts, append=len(tokens)).max())

    def find(self, tokens: pa.Array) -> np.ndarray:
        """Return the id of each token, -1 for tokens that are not in the index."""
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
            same = pc.equal(tokens.take(pa.array(rows)), self.tokens.take(pa.array(ids)))
            same = same.fill_null(False).to_numpy(zero_copy_only=False)
            result[rows[same]] = ids[same]
        return result


def _sort_with_row_numbers(hashes: np.ndarray) -> tuple[np.ndarray, np.uint64]:
    """Replace the lower bits of each hash by its row number, sort, and return the words and the mask of these bits."""
    row_mask = np.uint64((1 << len(hashes).bit_length()) - 1)
    sorted_hashes = (hashes & ~row_mask) | np.arange(len(hashes), dtype=np.uint64)
    sorted_hashes.sort()
    return sorted_hashes, row_mask


def digest_tokens(tokens: pa.StringArray) -> bytes:
    """Return a digest of an array of tokens; equal digests imply equal tokens."""
    digest = hashlib.blake2b(f"{tokens.offset},{len(tokens)}".encode(), digest_size=16)
    for buffer in tokens.buffers()[1:]:
        digest.update(buffer or b"")
    return digest.digest()


@dataclass(frozen=True)
class HashableTokens:
    """Tokens that compare and hash by their digest, as a key of the cache."""

    digest: bytes
    tokens: pa.StringArray = field(compare=False)


@functools.lru_cache(maxsize=MAX_CACHED_INDEXES)
def get_cached_index(key: HashableTokens) -> TokenIndex:
    """Return the index of the tokens of `key`, cached for later calls."""
    return TokenIndex(key.tokens)
