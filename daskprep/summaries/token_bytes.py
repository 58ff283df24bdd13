"""Hashes and order of the tokens of Arrow arrays by their bytes, the same in every process and on every machine."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.kernels import BYTE_MASKS, WORD_BYTES, sliding_words
from daskprep.permutation import mix

# The increment of the SplitMix64 generator.
STEP = np.uint64(0x9E3779B97F4A7C15)

# The tokens of a chunk and their intermediate arrays stay in the CPU cache.
CHUNK_TOKENS = 1 << 15
# Longer tokens are hashed one by one: each pass over a chunk takes microseconds, even for a single token.
LONG_TOKEN_BYTES = 512


def token_hashes(tokens: pa.Array) -> np.ndarray:
    """Return a uint64 hash of each token: of the UTF-8 bytes of strings, or of the bits of 64-bit values.

    The array must not have nulls. Different tokens may have the same hash.
    """
    if not pa.types.is_string(tokens.type):
        return mix(tokens.to_numpy(zero_copy_only=False).view(np.uint64) + STEP)
    hashes = np.empty(len(tokens), np.uint64)
    for start in range(0, len(tokens), CHUNK_TOKENS):
        chunk = tokens.slice(start, CHUNK_TOKENS)
        hashes[start : start + len(chunk)] = _string_hashes(chunk)
    return hashes


def _string_hashes(tokens: pa.StringArray) -> np.ndarray:
    """Return a hash of the length and the bytes of each string."""
    _, offset_buffer, data = tokens.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(tokens) + 1, 4 * tokens.offset).astype(np.int64)
    lengths = np.diff(offsets)
    hashes = mix(lengths.astype(np.uint64) * STEP)
    if offsets[-1] == offsets[0]:
        return hashes
    text = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    offsets -= offsets[0]
    words = sliding_words(np.concatenate([text, np.zeros(WORD_BYTES, np.uint8)]))
    longest = min(int(lengths.max()), LONG_TOKEN_BYTES)
    for done in range(0, longest, 8):
        remaining = lengths - done
        rows: Any = slice(None) if int(remaining.min()) > 0 else np.flatnonzero(remaining > 0)
        word = words[offsets[:-1][rows] + done] & BYTE_MASKS[np.minimum(remaining[rows], 8)]
        hashes[rows] = mix(hashes[rows] ^ word)
    for long in np.flatnonzero(lengths > LONG_TOKEN_BYTES):
        digest = hashlib.blake2b(text[offsets[long] : offsets[long + 1]].tobytes(), digest_size=8).digest()
        hashes[long] = np.uint64(int.from_bytes(digest, "little"))
    return hashes


def argsort_bytes(tokens: pa.StringArray) -> np.ndarray:
    """Return the indices that sort tokens by their UTF-8 bytes.

    The sort keys are integers of the first eight bytes after the common prefix, ten times as fast as comparing strings.
    Only tokens with equal keys are compared as strings.
    """
    if not len(tokens):
        return np.zeros(0, np.int64)
    keys = _leading_words(tokens)
    order = np.argsort(keys)
    equal = np.diff(keys[order]) == 0
    tied = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
    if len(tied):
        # Runs of equal keys are in the order of bytes already, so that one sort of all tied tokens orders every run.
        tied_rows = order[tied]
        order[tied] = tied_rows[pc.sort_indices(tokens.take(pa.array(tied_rows))).to_numpy()]
    return order


def _leading_words(tokens: pa.StringArray) -> np.ndarray:
    """Return the first eight bytes of each token after the common prefix, as integers in the order of the bytes.

    The prefix is skipped in steps of eight bytes.
    """
    offsets = np.frombuffer(tokens.buffers()[1], np.int32)[tokens.offset : tokens.offset + len(tokens) + 1]
    text = np.frombuffer(tokens.buffers()[2] or b"", np.uint8)
    # A word starts at every byte: words overlap.
    words = sliding_words(np.concatenate([text[offsets[0] : offsets[-1]], np.zeros(WORD_BYTES, np.uint8)])).view(">u8")
    starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    shortest = int(lengths.min())
    skipped = 0
    while skipped + WORD_BYTES <= shortest:
        keys = words[starts + skipped]
        if (keys != keys[0]).any():
            plain: np.ndarray = keys.astype(np.uint64)
            return plain
        skipped += WORD_BYTES
    keys = words[starts + skipped].astype(np.uint64)
    missing = np.clip(WORD_BYTES - (lengths - skipped), 0, WORD_BYTES).astype(np.uint64) * np.uint64(8)
    # A shift by 64 is undefined in C: shift by half, twice.
    half, rest = missing >> np.uint64(1), missing - (missing >> np.uint64(1))
    masked: np.ndarray = (((keys >> half) >> rest) << half) << rest
    return masked
