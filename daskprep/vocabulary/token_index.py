"""An index of the tokens of a large vocabulary, which a process builds once."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.kernels import smallest_uint
from daskprep.summaries.token_hash import token_hashes

__all__ = ["TokenIndex", "content_digest", "kept_index"]

# What a process keeps: about 12 bytes an entry besides the tokens.
KEPT_INDEXES = 8


class TokenIndex:
    """Ids by the hash of the token, ascending; what has the same hash is compared."""

    def __init__(self, tokens: pa.StringArray) -> None:
        hashes = token_hashes(tokens)
        order = np.argsort(hashes, kind="stable")
        self.tokens = tokens
        self.ids = order.astype(smallest_uint(len(tokens)))
        self.hashes = hashes[order]
        starts = np.flatnonzero(np.append(True, self.hashes[1:] != self.hashes[:-1]))
        self.longest_run = int(np.diff(starts, append=len(tokens)).max())

    def find(self, tokens: pa.Array) -> np.ndarray:
        """Return the id of each token, -1 for those that are not there."""
        hashes = token_hashes(tokens)
        # Searching in order stays in cache, which is worth the sorting.
        order = np.argsort(hashes)
        places = np.empty(len(tokens), np.int64)
        places[order] = np.searchsorted(self.hashes, hashes[order])
        found = np.full(len(tokens), -1, np.int64)
        for step in range(self.longest_run):
            near = np.minimum(places + step, len(self.hashes) - 1)
            rows = np.flatnonzero((self.hashes[near] == hashes) & (found < 0))
            ids = self.ids[near[rows]].astype(np.int64)
            same = pc.equal(tokens.take(pa.array(rows)), self.tokens.take(pa.array(ids)))
            same = same.fill_null(False).to_numpy(zero_copy_only=False)
            found[rows[same]] = ids[same]
        return found


def content_digest(tokens: pa.StringArray) -> bytes:
    """Return a digest that other tokens do not have."""
    digest = hashlib.blake2b(f"{tokens.offset},{len(tokens)}".encode(), digest_size=16)
    for buffer in tokens.buffers()[1:]:
        digest.update(buffer or b"")
    return digest.digest()


def kept_index(tokens: pa.StringArray, digest: bytes) -> TokenIndex:
    """Return the index of the tokens that have this digest, kept from an earlier call or built now."""
    return _kept_index(_Content(digest, tokens))


@dataclass(frozen=True)
class _Content:
    """Tokens that count as equal to all others of the same digest."""

    digest: bytes
    tokens: pa.StringArray = field(compare=False)


@functools.lru_cache(maxsize=KEPT_INDEXES)
def _kept_index(content: _Content) -> TokenIndex:
    return TokenIndex(content.tokens)
